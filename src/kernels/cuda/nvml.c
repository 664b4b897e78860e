/* nvml.c: see nvml.h. */
#include "kernels/cuda/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#include "base/error.h"

enum {
    CLOCK_SM = 1,
    CLOCK_MEMORY = 2,
    SENSOR_GPU = 0,
    ECC_UNCORRECTED = 1,
    ECC_SINCE_BOOT = 0,
    MAX_LINKS = 18
};
typedef struct nvml_device *nvml_device;

#define NVML_MAP(X)                                                                                \
    X(init, "nvmlInit_v2", (void))                                                                 \
    X(by_pci, "nvmlDeviceGetHandleByPciBusId_v2", (const char *, nvml_device *))                   \
    X(clock, "nvmlDeviceGetClockInfo", (nvml_device, int, unsigned *))                             \
    X(clock_max, "nvmlDeviceGetMaxClockInfo", (nvml_device, int, unsigned *))                      \
    X(power, "nvmlDeviceGetPowerUsage", (nvml_device, unsigned *))                                 \
    X(power_limit, "nvmlDeviceGetEnforcedPowerLimit", (nvml_device, unsigned *))                   \
    X(temperature, "nvmlDeviceGetTemperature", (nvml_device, int, unsigned *))                     \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_device, unsigned long long *))  \
    X(ecc_mode, "nvmlDeviceGetEccMode", (nvml_device, int *, int *))                               \
    X(ecc_errors, "nvmlDeviceGetTotalEccErrors", (nvml_device, int, int, unsigned long long *))    \
    X(link_state, "nvmlDeviceGetNvLinkState", (nvml_device, unsigned, int *))

static struct {
#define NVML_FIELD(field, symbol, params) int(*field) params;
    NVML_MAP(NVML_FIELD)
#undef NVML_FIELD
    int (*energy)(nvml_device, unsigned long long *); /* Volta and newer; else NULL. */
    void *library;
    int status; /* Result of init. */
    bool ready; /* All functions of NVML_MAP are there, and init has succeeded. */
} nvml;
static pthread_once_t nvml_once = PTHREAD_ONCE_INIT;

static void nvml_load(void) {
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        return;
    }
    nvml.library = lib;
    nvml.status = -1;
#define LOAD(field, symbol, params)                                                                \
    *(void **)&nvml.field = dlsym(lib, symbol);                                                    \
    if (nvml.field == NULL) {                                                                      \
        return;                                                                                    \
    }
    NVML_MAP(LOAD)
#undef LOAD
    *(void **)&nvml.energy = dlsym(lib, "nvmlDeviceGetTotalEnergyConsumption");
    nvml.status = nvml.init();
    nvml.ready = nvml.status == 0;
}

lt_err lt_nvml_open(void) {
    pthread_once(&nvml_once, nvml_load);
    if (nvml.library == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "NVML (libnvidia-ml.so.1) is not there");
    }
    if (!nvml.ready) {
        LT_FAIL(LT_ERR_DEVICE, "NVML does not work (status %d of nvmlInit)", nvml.status);
    }
    return LT_OK;
}

void *lt_nvml_symbol(const char *name) {
    return dlsym(nvml.library, name);
}

lt_err lt_nvml_read(lt_nvml_reading *out, const char *pci) {
    nvml_device dev = NULL;
    unsigned sm = 0, sm_max = 0, memory = 0, power = 0, limit = 0, celsius = 0;
    unsigned long long errors = 0;
    int ecc = 0, pending = 0;

    pthread_once(&nvml_once, nvml_load);
    if (!nvml.ready) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "NVML (libnvidia-ml.so.1) is not there: no clocks and power");
    }
    if (nvml.by_pci(pci, &dev) != 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "NVML does not know the GPU at %s", pci);
    }
    *out = (lt_nvml_reading){.ecc_uncorrected = -1};
    (void)nvml.clock(dev, CLOCK_SM, &sm);
    (void)nvml.clock_max(dev, CLOCK_SM, &sm_max);
    (void)nvml.clock(dev, CLOCK_MEMORY, &memory);
    (void)nvml.power(dev, &power);
    (void)nvml.power_limit(dev, &limit);
    (void)nvml.temperature(dev, SENSOR_GPU, &celsius);
    (void)nvml.throttle(dev, &out->throttle);
    (void)nvml.ecc_mode(dev, &ecc, &pending);
    if (nvml.ecc_errors(dev, ECC_UNCORRECTED, ECC_SINCE_BOOT, &errors) == 0) {
        out->ecc_uncorrected = (long long)errors;
    }
    for (unsigned link = 0; link < MAX_LINKS; link++) {
        int active = 0;
        out->n_nvlinks += nvml.link_state(dev, link, &active) == 0 && active != 0;
    }
    out->sm_mhz = (int)sm, out->sm_mhz_max = (int)sm_max, out->memory_mhz = (int)memory;
    /* NVML counts milliwatts. */
    out->power_w = power / 1000.0, out->power_limit_w = limit / 1000.0;
    out->temperature_c = (int)celsius;
    out->ecc = ecc != 0;
    return LT_OK;
}

lt_err lt_nvml_energy(double *joules, const char *pci) {
    nvml_device dev = NULL;
    unsigned long long millijoules = 0;

    pthread_once(&nvml_once, nvml_load);
    if (!nvml.ready || nvml.energy == NULL || nvml.by_pci(pci, &dev) != 0 ||
        nvml.energy(dev, &millijoules) != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "the GPU at %s does not count its energy", pci);
    }
    *joules = (double)millijoules * 1e-3;
    return LT_OK;
}
