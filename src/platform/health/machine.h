/* machine.h: the interface through which checks read a machine, so that they work in the same way
 * on this machine and on a recorded one.
 *
 * Files of /proc, /sys and /dev are read under `root`, a folder that is put before their paths: ""
 * for this machine. Everything that is not a file comes from functions: GPUs (NVML, opened at run
 * time), answers of file systems, the state of the clock. A recorded machine (recorded.c) is a
 * folder with such files and recorded.json, which has the rest; tests introduce faults there. */
#ifndef LT_PLATFORM_HEALTH_MACHINE_H
#define LT_PLATFORM_HEALTH_MACHINE_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "base/file.h"
#include "lateen/base.h"

/* Readings of a GPU: field; dcgm-exporter's name, type and help for it in Prometheus ("":
 * dcgm-exporter does not have it). NAN: the GPU does not report it. */
#define LT_GPU_READING_MAP(X)                                                                      \
    X(sm_clock_mhz, "DCGM_FI_DEV_SM_CLOCK", GAUGE, "SM clock frequency (in MHz).")                 \
    X(sm_clock_max_mhz, "", GAUGE, "")                                                             \
    X(memory_clock_mhz, "DCGM_FI_DEV_MEM_CLOCK", GAUGE, "Memory clock frequency (in MHz).")        \
    X(memory_temperature_c, "DCGM_FI_DEV_MEMORY_TEMP", GAUGE, "Memory temperature (in C).")        \
    X(temperature_c, "DCGM_FI_DEV_GPU_TEMP", GAUGE, "GPU temperature (in C).")                     \
    X(power_w, "DCGM_FI_DEV_POWER_USAGE", GAUGE, "Power draw (in W).")                             \
    X(power_limit_w, "DCGM_FI_DEV_POWER_MGMT_LIMIT", GAUGE, "Power limit (in W).")                 \
    X(energy_mj, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", COUNTER,                                  \
      "Total energy consumption since boot (in mJ).")                                              \
    X(pcie_replays, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", COUNTER, "Total number of PCIe retries.")   \
    X(pcie_width, "DCGM_FI_DEV_PCIE_LINK_WIDTH", GAUGE, "PCIe lanes in use.")                      \
    X(pcie_width_max, "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", GAUGE,                                    \
      "PCIe lanes that GPU and slot have.")                                                        \
    X(pcie_generation, "DCGM_FI_DEV_PCIE_LINK_GEN", GAUGE, "PCIe generation in use.")              \
    X(utilisation, "DCGM_FI_DEV_GPU_UTIL", GAUGE, "GPU utilization (in %).")                       \
    X(memory_utilisation, "DCGM_FI_DEV_MEM_COPY_UTIL", GAUGE, "Memory utilization (in %).")        \
    X(xid, "DCGM_FI_DEV_XID_ERRORS", GAUGE, "Value of the last XID error encountered.")            \
    X(memory_free_mib, "DCGM_FI_DEV_FB_FREE", GAUGE, "Framebuffer memory free (in MiB).")          \
    X(memory_used_mib, "DCGM_FI_DEV_FB_USED", GAUGE, "Framebuffer memory used (in MiB).")          \
    X(ecc_corrected, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", COUNTER,                                     \
      "Total number of single-bit volatile ECC errors.")                                           \
    X(ecc_uncorrected, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", COUNTER,                                   \
      "Total number of double-bit volatile ECC errors.")                                           \
    X(rows_uncorrected, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", COUNTER,                        \
      "Number of remapped rows for uncorrectable errors")                                          \
    X(rows_corrected, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", COUNTER,                            \
      "Number of remapped rows for correctable errors")                                            \
    X(rows_pending, "DCGM_FI_DEV_ROW_REMAP_PENDING", GAUGE,                                        \
      "Whether a remapping of rows is pending.")                                                   \
    X(rows_failed, "DCGM_FI_DEV_ROW_REMAP_FAILURE", GAUGE, "Whether remapping of rows has failed") \
    X(throttle_reasons, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", GAUGE,                               \
      "Why clocks are lowered, as a bit mask.")                                                    \
    X(nvlinks_up, "", GAUGE, "")                                                                   \
    X(nvlinks_down, "", GAUGE, "")                                                                 \
    X(nvlink_replays, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", COUNTER,                      \
      "Total number of NVLink retries.")                                                           \
    X(nvlink_recoveries, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", COUNTER,                 \
      "Total number of NVLink recovery errors.")                                                   \
    X(nvlink_crc_flits, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", COUNTER,                  \
      "Total number of NVLink flow-control CRC errors.")                                           \
    X(nvlink_crc_data, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", COUNTER,                   \
      "Total number of NVLink data CRC errors.")

typedef struct {
    int index;
    char name[96], uuid[80], pci[32]; /* pci: "00000000:18:00.0" */
#define LT_GPU_READING_FIELD(field, dcgm, type, help) double field;
    LT_GPU_READING_MAP(LT_GPU_READING_FIELD)
#undef LT_GPU_READING_FIELD
} lt_gpu_reading;

#define LT_HEALTH_GPUS 64

static inline lt_gpu_reading lt_gpu_reading_unknown(int index) {
#define LT_GPU_READING_NAN(field, dcgm, type, help) .field = NAN,
    return (lt_gpu_reading){.index = index, LT_GPU_READING_MAP(LT_GPU_READING_NAN)};
#undef LT_GPU_READING_NAN
}

/* Add to a sum of readings; an unknown reading, NAN, adds nothing. A sum begins as NAN, for no
 * known reading. */
static inline double lt_reading_add(double sum, double value) {
    return isnan(value) ? sum : isnan(sum) ? value : sum + value;
}

typedef struct {
    bool stalled; /* It did not answer in time; the rest is then unknown. */
    double bytes, free_bytes, files, free_files;
} lt_mount_reading;

typedef struct {
    bool synchronised;
    double error_s; /* Largest error, as estimated by the kernel. */
} lt_time_reading;

typedef struct lt_machine_source lt_machine_source;
struct lt_machine_source {
    char root[LT_PATH_BYTES];
    json_t *recorded; /* NULL: this machine. */
    /* All GPUs of the driver, at most LT_HEALTH_GPUS. UNSUPPORTED: there is no driver; any other
     * failure: there is one, and it does not work. */
    lt_err (*gpus)(const lt_machine_source *s, lt_gpu_reading *out, int *n);
    /* Query the file system at path, for at most deadline_s. */
    lt_err (*mount)(const lt_machine_source *s, lt_mount_reading *out, const char *path,
                    double deadline_s);
    lt_err (*time)(const lt_machine_source *s, lt_time_reading *out);
};

/* Open this machine (folder ""), or the one recorded in `folder`. close accepts a zeroed
 * source. */
LT_MUST_USE lt_err lt_machine_open(lt_machine_source *s, const char *folder);
void lt_machine_close(lt_machine_source *s);

/* A file under the root: its beginning as text, without the newline at its end; its first number;
 * the names in a folder. False: it cannot be read, or does not begin with a number. */
bool lt_machine_text(const lt_machine_source *s, char *out, size_t room, const char *fmt, ...)
    LT_PRINTF(4, 5);
bool lt_machine_number(const lt_machine_source *s, double *out, const char *fmt, ...)
    LT_PRINTF(3, 4);
bool lt_machine_names(const lt_machine_source *s, char ***names, size_t *n, const char *folder);
/* The number after `key` at the beginning of a line of text. */
bool lt_machine_entry(const char *text, const char *key, double *out);

/* nvml.c */
lt_err lt_machine_gpus_nvml(const lt_machine_source *s, lt_gpu_reading *out, int *n);

#endif
