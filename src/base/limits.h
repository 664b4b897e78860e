/* limits.h: what this process may use of the machine: memory and cores. Every room that sizes
 * something by the machine asks here.
 *
 * A container has the files of the whole machine in /proc, and is killed at its own limit. So the
 * least of these counts:
 *
 *     memory    MemAvailable of /proc/meminfo
 *               each control group from the process's own up to the root that is visible: version
 *               2's memory.max and memory.high, version 1's memory.limit_in_bytes and the
 *               hierarchical_memory_limit of memory.stat, less what the group uses, but for page
 *               cache that the kernel would drop for it (files that are mapped, such as a model's
 *               weights, are not counted as such) RLIMIT_AS less the address space in use,
 *               RLIMIT_DATA less the data in use (ulimit -v, -d)
 *     cores     Cpus_allowed_list of /proc/self/status (what sched_getaffinity tells)
 *               of each control group the cpuset, and the quota (cpu.max; cpu.cfs_quota_us over
 *               cpu.cfs_period_us), rounded up
 *
 * Where the groups lie is read from /proc/self/cgroup and /proc/self/mountinfo, as a container may
 * see a part of the tree only, under another path. */
#ifndef LT_BASE_LIMITS_H
#define LT_BASE_LIMITS_H

#include <stdint.h>

#define LT_LIMIT_UNKNOWN UINT64_MAX

typedef struct {
    /* The machine's memory, or the least of the limits; LT_LIMIT_UNKNOWN: no file says. */
    uint64_t memory_bytes;
    uint64_t available_bytes; /* What could still be taken; LT_LIMIT_UNKNOWN: no file says. */
    int n_cpus;               /* At least 1. */
    char memory_by[256], available_by[256], cpus_by[256]; /* Which file or limit said so. */
} lt_limits;

void lt_limits_read(lt_limits *out);
/* The same with another root folder before /proc and /sys, for tests: "" is the machine's own. */
void lt_limits_read_under(lt_limits *out, const char *root);

/* Of this process, from /proc/self/statm: what is resident, and its address space; 0: unknown. */
uint64_t lt_limits_resident_bytes(void);
uint64_t lt_limits_virtual_bytes(void);
int64_t lt_limits_open_files(void); /* Its descriptors. */

#endif
