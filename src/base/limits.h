/* limits.h: how much memory and how many cores of the machine this process may use. All code that
 * sizes something by the machine calls these functions.
 *
 * In a container, /proc describes the whole machine, but the process is killed at the container's
 * limit. So the smallest of these counts:
 *
 *     memory    MemAvailable of /proc/meminfo
 *               the limit of each control group, from that of the process up to the visible root:
 *               version 2's memory.max and memory.high, version 1's memory.limit_in_bytes and the
 *               hierarchical_memory_limit of memory.stat. What the group uses is subtracted,
 *               except for page cache that the kernel would reclaim; mapped files, such as a
 *               model's weights, do not count as reclaimable
 *               RLIMIT_AS less the address space in use, RLIMIT_DATA less the data in use
 *               (ulimit -v, -d)
 *     cores     Cpus_allowed_list of /proc/self/status (the same as sched_getaffinity)
 *               the cpuset of each control group, and its quota (cpu.max; cpu.cfs_quota_us over
 *               cpu.cfs_period_us), rounded up
 *
 * The paths of the groups are read from /proc/self/cgroup and /proc/self/mountinfo, because a
 * container may see only a part of the tree, under another path. */
#ifndef LT_BASE_LIMITS_H
#define LT_BASE_LIMITS_H

#include <stdint.h>

#define LT_LIMIT_UNKNOWN      UINT64_MAX
#define LT_LIMITS_LARGE_BYTES (1 << 20)

typedef struct {
    /* The smaller of the machine's memory and the limits; LT_LIMIT_UNKNOWN: no file has it. */
    uint64_t memory_bytes;
    uint64_t available_bytes; /* What can still be allocated; LT_LIMIT_UNKNOWN: no file has it. */
    int n_cpus;               /* At least 1. */
    char memory_by[256], available_by[256], cpus_by[256]; /* The file or limit that decided. */
} lt_limits;

void lt_limits_read(lt_limits *out);
/* The same with `root` put before the paths /proc and /sys, for tests; "": the real files. */
void lt_limits_read_under(lt_limits *out, const char *root);

/* Resident memory and address space of this process, from /proc/self/statm; 0: unknown. */
uint64_t lt_limits_resident_bytes(void);
uint64_t lt_limits_virtual_bytes(void);
int64_t lt_limits_open_files(void); /* Its open file descriptors. */

/* Buffers from LT_LIMITS_LARGE_BYTES on return to the system when they are freed. By default the
 * GNU allocator raises this threshold to the largest buffer freed so far, up to 32 MiB, and then
 * keeps free memory of up to 64 MiB at the end of each thread's heap. */
void lt_limits_return_memory(void);

#endif
