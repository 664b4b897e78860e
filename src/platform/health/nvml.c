/* nvml.c: readings of all GPUs through NVIDIA's management library. The declarations are copied
 * from its public header, so the header is not needed to build. If the library lacks a function, or
 * the function refuses, its readings stay unknown. */
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/nvml.h"
#include "platform/health/machine.h"

typedef struct nvml_device *nvml_device;

/* nvmlPciInfo_t */
typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, id, subsystem_id;
    char bus_id[32];
} pci_info;

/* nvmlMemory_v2_t */
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_info;
#define MEMORY_VERSION (sizeof(memory_info) | 2u << 24)

/* nvmlFieldValue_t */
typedef struct {
    unsigned field, scope;
    long long time, latency;
    int type, status;
    union {
        unsigned u32;
        unsigned long long u64;
        double f64;
    } value;
} field_value;

enum {
    CLOCK_SM = 1,
    CLOCK_MEMORY = 2,
    SENSOR_GPU = 0,
    ERROR_CORRECTED = 0,
    ERROR_UNCORRECTED = 1,
    SINCE_DRIVER = 0,
    FIELD_MEMORY_TEMPERATURE = 82,
    MAX_LINKS = 18
};

/* Calls that fill one number: the field, the symbol, further arguments, the factor to its unit. */
#define UNSIGNED_MAP(X)                                                                            \
    X(power_w, "nvmlDeviceGetPowerUsage", 1e-3)                                                    \
    X(power_limit_w, "nvmlDeviceGetEnforcedPowerLimit", 1e-3)                                      \
    X(pcie_replays, "nvmlDeviceGetPcieReplayCounter", 1)                                           \
    X(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth", 1)                                             \
    X(pcie_width_max, "nvmlDeviceGetMaxPcieLinkWidth", 1)                                          \
    X(pcie_generation, "nvmlDeviceGetCurrPcieLinkGeneration", 1)
#define SELECTED_MAP(X)                                                                            \
    X(sm_clock_mhz, "nvmlDeviceGetClockInfo", CLOCK_SM)                                            \
    X(sm_clock_max_mhz, "nvmlDeviceGetMaxClockInfo", CLOCK_SM)                                     \
    X(memory_clock_mhz, "nvmlDeviceGetClockInfo", CLOCK_MEMORY)                                    \
    X(temperature_c, "nvmlDeviceGetTemperature", SENSOR_GPU)
#define LONG_MAP(X)                                                                                \
    X(energy_mj, "nvmlDeviceGetTotalEnergyConsumption")                                            \
    X(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons")
#define LINK_ERROR_MAP(X) /* nvmlNvLinkErrorCounter_t */                                           \
    X(nvlink_replays, 0)                                                                           \
    X(nvlink_recoveries, 1)                                                                        \
    X(nvlink_crc_flits, 2)                                                                         \
    X(nvlink_crc_data, 3)

/* A function of the library; NULL: the library lacks it. */
#define FUNCTION(variable, symbol, ...)                                                            \
    int (*variable)(__VA_ARGS__);                                                                  \
    *(void **)(&(variable)) = lt_nvml_symbol(symbol)

static void read_numbers(nvml_device dev, lt_gpu_reading *g) {
    unsigned small = 0;
    unsigned long long large = 0;
#define READ_UNSIGNED(field, symbol, factor)                                                       \
    {                                                                                              \
        FUNCTION(get, symbol, nvml_device, unsigned *);                                            \
        g->field = get != NULL && get(dev, &small) == 0 ? small * (double)(factor) : NAN;          \
    }
    UNSIGNED_MAP(READ_UNSIGNED)
#undef READ_UNSIGNED
#define READ_SELECTED(field, symbol, what)                                                         \
    {                                                                                              \
        FUNCTION(get, symbol, nvml_device, int, unsigned *);                                       \
        g->field = get != NULL && get(dev, what, &small) == 0 ? (double)small : NAN;               \
    }
    SELECTED_MAP(READ_SELECTED)
#undef READ_SELECTED
#define READ_LONG(field, symbol)                                                                   \
    {                                                                                              \
        FUNCTION(get, symbol, nvml_device, unsigned long long *);                                  \
        g->field = get != NULL && get(dev, &large) == 0 ? (double)large : NAN;                     \
    }
    LONG_MAP(READ_LONG)
#undef READ_LONG
}

static void read_memory(nvml_device dev, lt_gpu_reading *g) {
    memory_info m = {.version = MEMORY_VERSION};
    struct {
        unsigned gpu, memory;
    } used;
    unsigned long long errors = 0;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    field_value t = {.field = FIELD_MEMORY_TEMPERATURE};
    FUNCTION(memory, "nvmlDeviceGetMemoryInfo_v2", nvml_device, memory_info *);
    FUNCTION(utilisation, "nvmlDeviceGetUtilizationRates", nvml_device, void *);
    FUNCTION(ecc, "nvmlDeviceGetTotalEccErrors", nvml_device, int, int, unsigned long long *);
    FUNCTION(rows, "nvmlDeviceGetRemappedRows", nvml_device, unsigned *, unsigned *, unsigned *,
             unsigned *);
    FUNCTION(fields, "nvmlDeviceGetFieldValues", nvml_device, int, field_value *);

    if (memory != NULL && memory(dev, &m) == 0) {
        g->memory_free_mib = (double)m.free / 1048576.0;
        g->memory_used_mib = (double)m.used / 1048576.0;
    }
    if (utilisation != NULL && utilisation(dev, &used) == 0) {
        g->utilisation = used.gpu;
        g->memory_utilisation = used.memory;
    }
    if (ecc != NULL && ecc(dev, ERROR_CORRECTED, SINCE_DRIVER, &errors) == 0) {
        g->ecc_corrected = (double)errors;
    }
    if (ecc != NULL && ecc(dev, ERROR_UNCORRECTED, SINCE_DRIVER, &errors) == 0) {
        g->ecc_uncorrected = (double)errors;
    }
    if (rows != NULL && rows(dev, &corrected, &uncorrected, &pending, &failed) == 0) {
        g->rows_corrected = corrected;
        g->rows_uncorrected = uncorrected;
        g->rows_pending = pending;
        g->rows_failed = failed;
    }
    if (fields != NULL && fields(dev, 1, &t) == 0 && t.status == 0) {
        g->memory_temperature_c = t.value.u32;
    }
}

/* Sums over the links of the GPU. A link without a partner is down, too: if no link is up, the GPU
 * is connected to no other, and nothing is wrong. */
static void read_links(nvml_device dev, lt_gpu_reading *g) {
    FUNCTION(state, "nvmlDeviceGetNvLinkState", nvml_device, unsigned, int *);
    FUNCTION(errors, "nvmlDeviceGetNvLinkErrorCounter", nvml_device, unsigned, int,
             unsigned long long *);
    int up = 0, down = 0;
    for (unsigned link = 0; state != NULL && link < MAX_LINKS; link++) {
        int active = 0;
        if (state(dev, link, &active) != 0) {
            continue;
        }
        up += active != 0;
        down += active == 0;
#define READ_ERRORS(field, counter)                                                                \
    {                                                                                              \
        unsigned long long n = 0;                                                                  \
        if (active != 0 && errors != NULL && errors(dev, link, counter, &n) == 0) {                \
            g->field = lt_reading_add(g->field, (double)n);                                        \
        }                                                                                          \
    }
        LINK_ERROR_MAP(READ_ERRORS)
#undef READ_ERRORS
    }
    if (up > 0) {
        g->nvlinks_up = up;
        g->nvlinks_down = down;
    }
}

static void read_gpu(nvml_device dev, int index, lt_gpu_reading *g) {
    pci_info pci = {.bus_id = ""};
    FUNCTION(name, "nvmlDeviceGetName", nvml_device, char *, unsigned);
    FUNCTION(uuid, "nvmlDeviceGetUUID", nvml_device, char *, unsigned);
    FUNCTION(place, "nvmlDeviceGetPciInfo_v3", nvml_device, pci_info *);

    *g = lt_gpu_reading_unknown(index);
    if (name != NULL) {
        (void)name(dev, g->name, sizeof g->name);
    }
    if (uuid != NULL) {
        (void)uuid(dev, g->uuid, sizeof g->uuid);
    }
    if (place != NULL && place(dev, &pci) == 0) {
        memcpy(g->pci, pci.bus_id, sizeof g->pci);
        g->pci[sizeof g->pci - 1] = '\0';
    }
    read_numbers(dev, g);
    read_memory(dev, g);
    read_links(dev, g);
}

lt_err lt_machine_gpus_nvml(const lt_machine_source *s, lt_gpu_reading *out, int *n) {
    unsigned count = 0;

    (void)s;
    *n = 0;
    LT_TRY(lt_nvml_open());
    FUNCTION(get_count, "nvmlDeviceGetCount_v2", unsigned *);
    FUNCTION(by_index, "nvmlDeviceGetHandleByIndex_v2", unsigned, nvml_device *);
    if (get_count == NULL || by_index == NULL || get_count(&count) != 0) {
        LT_FAIL(LT_ERR_DEVICE, "NVML does not count the GPUs");
    }
    for (unsigned i = 0; i < count && *n < LT_HEALTH_GPUS; i++) {
        nvml_device dev = NULL;
        if (by_index(i, &dev) == 0) { /* A lost GPU cannot be opened, and is omitted. */
            read_gpu(dev, (int)i, &out[(*n)++]);
        }
    }
    return LT_OK;
}
