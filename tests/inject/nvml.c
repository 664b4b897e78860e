/* nvml.c: a libnvidia-ml.so.1 with two GPUs and known readings, for tests/e2e/health.py. Names
 * and structs are those of NVIDIA's nvml.h. GPU 0 answers everything; GPU 1 answers only its
 * names, as an old card would. LATEEN_TEST_NVML=fail: the driver is not loaded. */
#include <stdlib.h>
#include <string.h>

#define NOT_SUPPORTED     3
#define DRIVER_NOT_LOADED 9

typedef struct gpu {
    int index;
} gpu;
static gpu gpus[2] = {{0}, {1}};

typedef struct {
    char bus_legacy[16];
    unsigned domain, bus, device, id, subsystem_id;
    char bus_id[32];
} pci_info;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_info;
typedef struct {
    unsigned field, scope;
    long long time, latency;
    int type, status;
    union {
        unsigned u32;
        unsigned long long u64;
    } value;
} field_value;

int nvmlInit_v2(void) {
    const char *wanted = getenv("LATEEN_TEST_NVML");
    return wanted != NULL && strcmp(wanted, "fail") == 0 ? DRIVER_NOT_LOADED : 0;
}

int nvmlDeviceGetCount_v2(unsigned *n) {
    *n = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu **out) {
    *out = &gpus[i];
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, gpu **out) {
    (void)pci;
    *out = &gpus[0];
    return 0;
}

int nvmlDeviceGetName(gpu *g, char *out, unsigned room) {
    (void)room;
    (void)strcpy(out, g->index == 0 ? "Test GPU" : "Old GPU");
    return 0;
}

int nvmlDeviceGetUUID(gpu *g, char *out, unsigned room) {
    (void)room;
    (void)strcpy(out, g->index == 0 ? "GPU-00" : "GPU-11");
    return 0;
}

int nvmlDeviceGetPciInfo_v3(gpu *g, pci_info *out) {
    memset(out, 0, sizeof *out);
    (void)strcpy(out->bus_id, g->index == 0 ? "00000000:18:00.0" : "00000000:3B:00.0");
    return 0;
}

/* A reading: GPU 0 returns the number, GPU 1 does not support it. */
#define TELLS(name, type, number, ...)                                                             \
    int name(gpu *g, ##__VA_ARGS__, type *out) {                                                   \
        *out = (type)(number);                                                                     \
        return g->index == 0 ? 0 : NOT_SUPPORTED;                                                  \
    }
TELLS(nvmlDeviceGetPowerUsage, unsigned, 651500)
TELLS(nvmlDeviceGetEnforcedPowerLimit, unsigned, 700000)
TELLS(nvmlDeviceGetPcieReplayCounter, unsigned, 7)
TELLS(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 8)
TELLS(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
TELLS(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
TELLS(nvmlDeviceGetClockInfo, unsigned, kind == 1 ? 1980 : 2619, int kind)
TELLS(nvmlDeviceGetMaxClockInfo, unsigned, kind == 1 ? 1985 : 2620, int kind)
TELLS(nvmlDeviceGetTemperature, unsigned, sensor == 0 ? 61 : 0, int sensor)
TELLS(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 123456789012ULL)
TELLS(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 0x4)
TELLS(nvmlDeviceGetTotalEccErrors, unsigned long long, 10 * type_ + counter + 3, int type_,
      int counter)
TELLS(nvmlDeviceGetNvLinkErrorCounter, unsigned long long, link < 4 ? 1 + counter : 100,
      unsigned link, int counter)

int nvmlDeviceGetNvLinkState(gpu *g, unsigned link, int *active) {
    *active = link < 4;
    return g->index == 0 && link < 6 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetEccMode(gpu *g, int *current, int *pending) {
    *current = *pending = 1;
    return g->index == 0 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo_v2(gpu *g, memory_info *m) {
    if (m->version != (sizeof *m | 2u << 24)) {
        return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH. */
    }
    m->free = 60ULL << 30, m->used = 20ULL << 30, m->reserved = 0, m->total = 80ULL << 30;
    return g->index == 0 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetUtilizationRates(gpu *g, unsigned out[2]) {
    out[0] = 97, out[1] = 41;
    return g->index == 0 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetRemappedRows(gpu *g, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    *corrected = 5, *uncorrected = 2, *pending = 1, *failed = 0;
    return g->index == 0 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(gpu *g, int n, field_value *v) {
    for (int i = 0; i < n; i++) {
        v[i].status = v[i].field == 82 && g->index == 0 ? 0 : NOT_SUPPORTED;
        v[i].value.u32 = 77;
    }
    return 0;
}
