/* checks.h: the table of all checks: a name, which side of a level is bad, whether the value is a
 * counter, and the levels of warn, drain and evict. It is also an option table: each row is a key
 * of the YAML file that overrides levels,
 *
 *     gpu.temperature_c: [80, 90, off]
 *     ib.gbps: [400, 200, off]
 *
 * and a key that is not in the table is refused. Sources of the default levels: for XIDs,
 * NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors), which says what requires a reset or a
 * replacement; rates of PCIe replays and NVLink errors are of the order of DCGM's health watches
 * (8 replays a minute); PCIe below 4 GB/s is from IBM's Autopilot. Lower limits of speeds are off
 * or very low, because normal speeds depend on the fleet: measure them and set the limits. */
#ifndef LT_PLATFORM_HEALTH_CHECKS_H
#define LT_PLATFORM_HEALTH_CHECKS_H

#include <stdio.h>

#include "base/option.h"
#include "lateen/health.h"

/* Columns: name of the enum, name, unit, side, kind, levels of warn, drain, evict, help. ABOVE: a
 * value at the level or above it is bad; BELOW: a value under it is. COUNT: a counter, judged by
 * its growth per hour. */
#define LT_HEALTH_XID_MAP(X)                                                                       \
    X(48, "off, 1, off", "double-bit ECC error")                                                   \
    X(63, "1, off, off", "a row of memory was remapped")                                           \
    X(64, "off, off, 1", "remapping a row of memory failed")                                       \
    X(74, "off, 1, off", "NVLink error")                                                           \
    X(79, "off, off, 1", "the GPU has fallen off the bus")                                         \
    X(92, "1, off, off", "high rate of single-bit ECC errors")                                     \
    X(94, "off, 1, off", "contained ECC error")                                                    \
    X(95, "off, off, 1", "uncontained ECC error")                                                  \
    X(119, "off, 1, off", "the GPU's system processor does not answer")                            \
    X(120, "off, 1, off", "error of the GPU's system processor")                                   \
    X(140, "off, 1, off", "unrecovered ECC error")

#define LT_HEALTH_CHECK_MAP(X)                                                                     \
    X(GPU_MISSING, "gpu.missing", "GPUs", ABOVE, VALUE, "off, off, 1",                             \
      "GPUs on the PCI bus that the driver does not show")                                         \
    X(GPU_XID_OTHER, "gpu.xid_other", "", ABOVE, VALUE, "off, off, off",                           \
      "XID errors without a row of their own, mostly of programs")                                 \
    X(GPU_ECC_UNCORRECTED, "gpu.ecc_uncorrected", "", ABOVE, VALUE, "off, 1, off",                 \
      "uncorrected ECC errors since the driver was loaded")                                        \
    X(GPU_ECC_CORRECTED, "gpu.ecc_corrected_per_h", "1/h", ABOVE, COUNT, "100, off, off",          \
      "corrected ECC errors")                                                                      \
    X(GPU_ROWS_PENDING, "gpu.rows_pending", "", ABOVE, VALUE, "off, 1, off",                       \
      "a remapped row waits for a reset of the GPU")                                               \
    X(GPU_ROWS_FAILED, "gpu.rows_failed", "", ABOVE, VALUE, "off, off, 1",                         \
      "a row of memory could not be remapped")                                                     \
    X(GPU_ROWS_REMAPPED, "gpu.rows_remapped", "rows", ABOVE, VALUE, "8, off, off",                 \
      "rows remapped after uncorrected errors")                                                    \
    X(GPU_TEMPERATURE, "gpu.temperature_c", "C", ABOVE, VALUE, "87, 93, off", "temperature")       \
    X(GPU_MEMORY_TEMPERATURE, "gpu.memory_temperature_c", "C", ABOVE, VALUE, "95, 105, off",       \
      "temperature of the memory")                                                                 \
    X(GPU_SLOW_HEAT, "gpu.slowed_by_heat", "", ABOVE, VALUE, "1, off, off",                        \
      "the driver lowers clocks because of heat")                                                  \
    X(GPU_SLOW_HARDWARE, "gpu.slowed_by_hardware", "", ABOVE, VALUE, "off, 1, off",                \
      "the hardware lowers clocks to protect itself")                                              \
    X(GPU_POWER_BRAKE, "gpu.power_brake", "", ABOVE, VALUE, "off, 1, off",                         \
      "the power supply of the machine lowers clocks")                                             \
    X(GPU_CLOCK, "gpu.clock_share", "", BELOW, VALUE, "0.5, 0.3, off",                             \
      "clock of a busy GPU as a share of its highest")                                             \
    X(GPU_WIDTH, "gpu.pcie_width_share", "", BELOW, VALUE, "1, 0.5, off",                          \
      "share of the PCIe lanes of GPU and slot that is in use")                                    \
    X(GPU_REPLAYS, "gpu.pcie_replays_per_h", "1/h", ABOVE, COUNT, "60, 480, off",                  \
      "PCIe packets that were sent again")                                                         \
    X(GPU_NVLINKS_DOWN, "gpu.nvlinks_down", "links", ABOVE, VALUE, "off, 1, off",                  \
      "NVLinks that are down beside others that are up")                                           \
    X(GPU_NVLINK_ERRORS, "gpu.nvlink_errors_per_h", "1/h", ABOVE, COUNT, "10, 1000, off",          \
      "NVLink packets that were sent again or failed their checksum")                              \
    X(NET_DOWN, "net.down", "", ABOVE, VALUE, "off, 1, off",                                       \
      "a network interface that is switched on has no link")                                       \
    X(NET_SPEED, "net.gbps", "Gb/s", BELOW, VALUE, "off, off, off", "speed of the link")           \
    X(NET_ERRORS, "net.errors_per_h", "1/h", ABOVE, COUNT, "10, 1000, off",                        \
      "packets received or sent with errors")                                                      \
    X(NET_FLAPS, "net.flaps_per_h", "1/h", ABOVE, COUNT, "2, 20, off", "losses of the link")       \
    X(IB_DOWN, "ib.down", "", ABOVE, VALUE, "off, 1, off", "an InfiniBand port is not active")     \
    X(IB_SPEED, "ib.gbps", "Gb/s", BELOW, VALUE, "off, off, off", "speed of the port")             \
    X(IB_ERRORS, "ib.errors_per_h", "1/h", ABOVE, COUNT, "10, 1000, off",                          \
      "symbol errors and packets received with errors")                                            \
    X(IB_FLAPS, "ib.flaps_per_h", "1/h", ABOVE, COUNT, "1, 10, off",                               \
      "links that went down or had to recover")                                                    \
    X(FS_MISSING, "fs.missing", "", ABOVE, VALUE, "off, 1, off",                                   \
      "a mount point of --mounts is not mounted")                                                  \
    X(FS_STALLED, "fs.stalled", "", ABOVE, VALUE, "off, 1, off",                                   \
      "the file system does not answer in time")                                                   \
    X(FS_READ_ONLY, "fs.read_only", "", ABOVE, VALUE, "off, 1, off", "mounted read-only")          \
    X(FS_FREE, "fs.free_share", "", BELOW, VALUE, "0.1, 0.02, off", "share of space that is free") \
    X(FS_INODES, "fs.inodes_free_share", "", BELOW, VALUE, "0.1, 0.02, off",                       \
      "share of inodes that is free")                                                              \
    X(DISK_ERRORS, "disk.errors", "", ABOVE, VALUE, "1, 10, off",                                  \
      "input and output errors that the kernel reported")                                          \
    X(MEM_AVAILABLE, "mem.available_share", "", BELOW, VALUE, "0.05, 0.01, off",                   \
      "share of memory that is available")                                                         \
    X(MEM_UNCORRECTED, "mem.uncorrected", "", ABOVE, VALUE, "off, 1, off",                         \
      "uncorrected errors of the memory since boot (EDAC)")                                        \
    X(MEM_CORRECTED, "mem.corrected_per_h", "1/h", ABOVE, COUNT, "10, 1000, off",                  \
      "corrected errors of the memory (EDAC)")                                                     \
    X(MEM_OOM, "mem.oom_kills_per_h", "1/h", ABOVE, COUNT, "1, off, off",                          \
      "processes killed because memory was exhausted")                                             \
    X(CPU_OFFLINE, "cpu.offline", "cores", ABOVE, VALUE, "1, off, off",                            \
      "hardware threads that are present but not in use")                                          \
    X(CPU_CHECKS, "cpu.machine_checks", "", ABOVE, VALUE, "1, 10, off",                            \
      "machine checks that the kernel reported")                                                   \
    X(CPU_THROTTLES, "cpu.throttles_per_h", "1/h", ABOVE, COUNT, "1000, off, off",                 \
      "times that heat lowered the clock of a processor")                                          \
    X(TIME_UNSYNCHRONISED, "time.unsynchronised", "", ABOVE, VALUE, "1, off, off",                 \
      "the clock follows no other clock")                                                          \
    X(TIME_ERROR, "time.error_s", "s", ABOVE, VALUE, "0.5, 10, off",                               \
      "largest error of a clock that follows another")                                             \
    X(LOAD, "load.per_core", "", ABOVE, VALUE, "4, 20, off",                                       \
      "load of the last 5 minutes per hardware thread")                                            \
    X(LOAD_BLOCKED, "load.blocked", "processes", ABOVE, VALUE, "50, off, off",                     \
      "processes that wait for a device")                                                          \
    X(LEMON_EXCLUSIONS, "lemon.exclusions", "", ABOVE, VALUE, "3, off, off",                       \
      "28 days: users who excluded the node")                                                      \
    X(LEMON_XIDS, "lemon.xids", "", ABOVE, VALUE, "4, off, off", "28 days: XID errors")            \
    X(LEMON_TICKETS, "lemon.tickets", "", ABOVE, VALUE, "2, off, off", "28 days: tickets")         \
    X(LEMON_OUTS, "lemon.outs", "", ABOVE, VALUE, "3, off, off",                                   \
      "28 days: times that the node became unfit or was taken out")                                \
    X(LEMON_MULTI, "lemon.multi_node_failures", "", ABOVE, VALUE, "2, off, off",                   \
      "28 days: jobs on several nodes that failed because of this one")                            \
    X(LEMON_SINGLE, "lemon.single_node_failures", "", ABOVE, VALUE, "2, off, off",                 \
      "28 days: jobs on this node alone that failed because of it")                                \
    X(LEMON_SHARE, "lemon.single_node_failure_share", "", ABOVE, VALUE, "0.1, off, off",           \
      "28 days: share of jobs on this node alone that failed because of it")                       \
    X(LEMON_SCORE, "lemon.score", "signals", ABOVE, VALUE, "1, 3, off",                            \
      "how many of the seven signals above are at their level of warn")                            \
    X(CPU_PRODUCTS, "cpu.product_errors", "", ABOVE, VALUE, "off, off, 1",                         \
      "tier 2: matrix products of a core with other bits than the known ones")                     \
    X(CPU_COPY, "cpu.copy_gbps", "GB/s", BELOW, VALUE, "2, 0.5, off",                              \
      "tier 2: copying memory, bytes read and written")                                            \
    X(CPU_FLOPS, "cpu.gflops", "GFLOP/s", BELOW, VALUE, "off, off, off",                           \
      "tier 2: matrix products of all cores")                                                      \
    X(GPU_IN_USE, "gpu.memory_in_use_share", "", ABOVE, VALUE, "0.05, 0.2, off",                   \
      "tier 2: memory of the GPU that is taken before the job begins")                             \
    X(GPU_PRODUCTS, "gpu.product_errors", "", ABOVE, VALUE, "off, off, 1",                         \
      "tier 2: matrix products of the GPU with other bits than the known ones")                    \
    X(GPU_COPIES, "gpu.copy_errors", "", ABOVE, VALUE, "off, off, 1",                              \
      "tier 2: copies to the GPU and back that changed")                                           \
    X(GPU_UPLOAD, "gpu.upload_gbps", "GB/s", BELOW, VALUE, "8, 4, off",                            \
      "tier 2: copying from the host to the GPU")                                                  \
    X(GPU_DOWNLOAD, "gpu.download_gbps", "GB/s", BELOW, VALUE, "8, 4, off",                        \
      "tier 2: copying from the GPU to the host")                                                  \
    X(GPU_FLOPS, "gpu.tflops", "TFLOP/s", BELOW, VALUE, "off, off, off",                           \
      "tier 2: matrix products of the GPU in bf16")                                                \
    X(MEM_PATTERNS, "mem.pattern_errors", "words", ABOVE, VALUE, "off, off, 1",                    \
      "tier 3: words of memory that did not keep a pattern")                                       \
    X(GPU_PATTERNS, "gpu.pattern_errors", "words", ABOVE, VALUE, "off, off, 1",                    \
      "tier 3: words of the GPU's memory that did not keep a pattern")

/* XIDs come first, as gpu.xid_48 and so on. */
typedef enum {
#define LT_HEALTH_XID_ENUM(number, levels, help) LT_CHECK_XID_##number,
    LT_HEALTH_XID_MAP(LT_HEALTH_XID_ENUM)
#undef LT_HEALTH_XID_ENUM
#define LT_HEALTH_CHECK_ENUM(id, name, unit, side, kind, levels, help) LT_CHECK_##id,
        LT_HEALTH_CHECK_MAP(LT_HEALTH_CHECK_ENUM)
#undef LT_HEALTH_CHECK_ENUM
            LT_CHECK_COUNT
} lt_health_check_id;

typedef enum { LT_SIDE_ABOVE, LT_SIDE_BELOW } lt_check_side;
typedef enum { LT_KIND_VALUE, LT_KIND_COUNT } lt_check_kind;

typedef struct {
    const char *name, *unit, *help;
    lt_check_side side;
    lt_check_kind kind;
} lt_check_row;
extern const lt_check_row lt_check_rows[LT_CHECK_COUNT];

/* The levels in effect. level[check][result] is NAN if off; the entry of OK is not used. */
typedef struct {
    char text[LT_CHECK_COUNT][LT_OPTION_STR_BYTES];
    double level[LT_CHECK_COUNT][LT_HEALTH_RESULT_COUNT];
} lt_check_levels;

/* Load the table's levels, then those of the file, unless path is "". FORMAT or ARG names file
 * and key: an unknown key, a level that is not a number, levels in the wrong order. */
LT_MUST_USE lt_err lt_check_levels_load(lt_check_levels *l, const char *path);
void lt_check_levels_print(const lt_check_levels *l, FILE *to);

/* The worst level that value reaches; *limit: that level, NAN for OK. */
lt_health_result lt_check_judge(const lt_check_levels *l, lt_health_check_id check, double value,
                                double *limit);

/* The row of an XID; GPU_XID_OTHER for those without one. */
lt_health_check_id lt_check_of_xid(long number);

#endif
