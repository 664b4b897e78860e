/* The limits of a process, read from trees of /proc and /sys/fs/cgroup as on machines and in
 * containers. Each tree is a list of files, written into a temporary folder; the expected figures
 * are worked out by hand from the rules at the head of base/limits.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/limits.h"

#define MIB ((uint64_t)1 << 20)

typedef struct {
    const char *path, *text;
} tree_file;

/* A machine of 8 GiB with 6 free and 16 cores, where no limit is set. */
#define MACHINE                                                                                    \
    {"proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1024 kB\n"                     \
                     "MemAvailable:    6291456 kB\n"},                                             \
        {"proc/self/status", "Name:\tlateen\nVmSize:\t  102400 kB\nVmData:\t   51200 kB\n"         \
                             "Cpus_allowed:\tffff\nCpus_allowed_list:\t0-15\n"},                   \
    {                                                                                              \
        "proc/self/limits",                                                                        \
            "Limit                     Soft Limit           Hard Limit           Units     \n"     \
            "Max data size             unlimited            unlimited            bytes     \n"     \
            "Max address space         unlimited            unlimited            bytes     \n"     \
    }
#define V2_MOUNT                                                                                   \
    {                                                                                              \
        "proc/self/mountinfo",                                                                     \
            "22 1 0:20 / /proc rw - proc proc rw\n"                                                \
            "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"     \
    }
#define GROUP "sys/fs/cgroup/kubepods.slice/pod1.slice/box.scope/"

static void write_tree(char folder[64], const tree_file *files) {
    char path[LT_PATH_BYTES];
    snprintf(folder, 64, "/tmp/lt-limits-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (; files->path != NULL; files++) {
        FILE *f;
        snprintf(path, sizeof path, "%s/%s", folder, files->path);
        *strrchr(path, '/') = '\0';
        assert_int_equal(lt_file_make_dirs(path), LT_OK);
        snprintf(path, sizeof path, "%s/%s", folder, files->path);
        f = fopen(path, "w");
        assert_non_null(f);
        fputs(files->text, f);
        fclose(f);
    }
}

static lt_limits limits_of(const tree_file *files) {
    char folder[64];
    lt_limits l;
    write_tree(folder, files);
    lt_limits_read_under(&l, folder);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    return l;
}

static void expect(const tree_file *files, uint64_t memory, uint64_t available, int cpus,
                   const char *by) {
    const lt_limits l = limits_of(files);
    assert_int_equal(l.memory_bytes, memory);
    assert_int_equal(l.available_bytes, available);
    assert_int_equal(l.n_cpus, cpus);
    if (strstr(l.available_by, by) == NULL) {
        fail_msg("available by '%s', not '%s'", l.available_by, by);
    }
}

static void a_machine_without_groups(void **state) {
    const tree_file files[] = {MACHINE, {NULL, NULL}}, none[] = {{"x", ""}, {NULL, NULL}};
    (void)state;
    expect(files, 8192 * MIB, 6144 * MIB, 16, "MemAvailable");
    expect(none, LT_LIMIT_UNKNOWN, LT_LIMIT_UNKNOWN, 1, "");
}

static void version_2_with_max_everywhere(void **state) {
    const tree_file files[] = {MACHINE,
                               V2_MOUNT,
                               {"proc/self/cgroup", "0::/user.slice\n"},
                               {"sys/fs/cgroup/user.slice/memory.max", "max\n"},
                               {"sys/fs/cgroup/user.slice/memory.high", "max\n"},
                               {"sys/fs/cgroup/user.slice/memory.current", "734003200\n"},
                               {"sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"},
                               {NULL, NULL}};
    (void)state;
    expect(files, 8192 * MIB, 6144 * MIB, 16, "MemAvailable");
}

/* The pod's limit is the smaller one, since its container has none; cache that can be dropped
 * does not count as used, mapped files do: 1024 - (700 - (300 + 200 - 50 + 10)) = 784. */
static void version_2_nested(void **state) {
    const tree_file files[] = {
        MACHINE,
        V2_MOUNT,
        {"proc/self/cgroup", "0::/kubepods.slice/pod1.slice/box.scope\n"},
        {GROUP "memory.max", "max\n"},
        {GROUP "memory.current", "104857600\n"},
        {GROUP "memory.stat", "anon 1\n"},
        {GROUP "cpu.max", "250000 100000\n"},
        {"sys/fs/cgroup/kubepods.slice/pod1.slice/memory.max", "1073741824\n"},
        {"sys/fs/cgroup/kubepods.slice/pod1.slice/memory.high", "max\n"},
        {"sys/fs/cgroup/kubepods.slice/pod1.slice/memory.current", "734003200\n"},
        {"sys/fs/cgroup/kubepods.slice/pod1.slice/memory.stat",
         "anon 209715200\nfile 524288000\nfile_mapped 52428800\ninactive_anon 4096\n"
         "inactive_file 314572800\nactive_file 209715200\nslab_reclaimable 10485760\n"},
        {"sys/fs/cgroup/kubepods.slice/cpu.max", "1200000 100000\n"},
        {"sys/fs/cgroup/kubepods.slice/memory.max", "4294967296\n"},
        {"sys/fs/cgroup/kubepods.slice/memory.current", "1073741824\n"},
        {NULL, NULL}};
    (void)state;
    expect(files, 1024 * MIB, 784 * MIB, 3, "memory.max of /sys/fs/cgroup/kubepods.slice/pod1.sl");
}

/* memory.high throttles before memory.max kills: the smaller of both counts. A quota below one
 * core is one thread; a cpuset counts the cores in its list. */
static void version_2_high_and_cpuset(void **state) {
    const tree_file files[] = {MACHINE,
                               V2_MOUNT,
                               {"proc/self/cgroup", "0::/a\n"},
                               {"sys/fs/cgroup/a/memory.max", "1073741824\n"},
                               {"sys/fs/cgroup/a/memory.high", "536870912\n"},
                               {"sys/fs/cgroup/a/memory.current", "104857600\n"},
                               {"sys/fs/cgroup/a/cpuset.cpus.effective", "0-1,8,12-14\n"},
                               {NULL, NULL}};
    tree_file slow[sizeof files / sizeof *files + 1];
    const size_t n = sizeof files / sizeof *files;
    (void)state;
    expect(files, 512 * MIB, 412 * MIB, 6, "memory.high of /sys/fs/cgroup/a");
    memcpy(slow, files, sizeof files);
    slow[n - 1] = (tree_file){"sys/fs/cgroup/a/cpu.max", "50000 100000\n"};
    slow[n] = (tree_file){NULL, NULL};
    expect(slow, 512 * MIB, 412 * MIB, 1, "memory.high of /sys/fs/cgroup/a");
}

/* A container with a cgroup namespace of its own sees itself as the root, and the mount's root as
 * "/". */
static void version_2_namespace(void **state) {
    const tree_file files[] = {MACHINE,
                               V2_MOUNT,
                               {"proc/self/cgroup", "0::/\n"},
                               {"sys/fs/cgroup/memory.max", "268435456\n"},
                               {"sys/fs/cgroup/memory.current", "67108864\n"},
                               {"sys/fs/cgroup/cpu.max", "200000 100000\n"},
                               {NULL, NULL}};
    /* A process that was moved out of the root of its namespace. */
    const tree_file above[] = {MACHINE,
                               V2_MOUNT,
                               {"proc/self/cgroup", "0::/../other\n"},
                               {"sys/fs/cgroup/memory.max", "268435456\n"},
                               {"sys/fs/cgroup/memory.current", "67108864\n"},
                               {NULL, NULL}};
    (void)state;
    expect(files, 256 * MIB, 192 * MIB, 2, "memory.max of /sys/fs/cgroup");
    expect(above, 256 * MIB, 192 * MIB, 16, "memory.max of /sys/fs/cgroup");
}

#define V1_MOUNTS(root)                                                                            \
    {"proc/self/mountinfo",                                                                        \
     "33 22 0:30 " root " /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"          \
     "34 22 0:31 " root " /sys/fs/cgroup/memory\\040one ro master:12 - cgroup cgroup rw,memory\n"  \
     "35 22 0:32 " root " /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n"                    \
     "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},                             \
    {                                                                                              \
        "proc/self/cgroup",                                                                        \
            "9:name=systemd:/docker/abc\n4:memory:/docker/abc\n3:cpuset:/docker/abc\n"             \
            "1:cpu,cpuacct:/docker/abc\n0::/system.slice\n"                                        \
    }

/* Version 1 on the machine itself: the group's own limit, and that of its parent. 512 - (200 -
 * (100 - 20)) = 392. */
static void version_1_on_the_machine(void **state) {
    const tree_file files[] = {
        MACHINE,
        V1_MOUNTS("/"),
        {"sys/fs/cgroup/memory one/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"},
        {"sys/fs/cgroup/memory one/docker/abc/memory.usage_in_bytes", "104857600\n"},
        {"sys/fs/cgroup/memory one/docker/memory.limit_in_bytes", "536870912\n"},
        {"sys/fs/cgroup/memory one/docker/memory.usage_in_bytes", "209715200\n"},
        {"sys/fs/cgroup/memory one/docker/memory.stat",
         "cache 1\ninactive_file 7\nhierarchical_memory_limit 536870912\n"
         "total_inactive_file 73400320\ntotal_active_file 31457280\ntotal_mapped_file 20971520\n"},
        {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n"},
        {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "400000\n"},
        {"sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"},
        {"sys/fs/cgroup/cpuset/docker/abc/cpuset.cpus", "0-7\n"},
        {NULL, NULL}};
    (void)state;
    expect(files, 512 * MIB, 392 * MIB, 4,
           "memory.limit_in_bytes of /sys/fs/cgroup/memory one/doc");
}

/* Docker without a cgroup namespace: the mount shows the container's group at its own root, and
 * no parent; memory.stat reports the limit of a parent. */
static void version_1_in_a_container(void **state) {
    const tree_file files[] = {
        MACHINE,
        V1_MOUNTS("/docker/abc"),
        {"sys/fs/cgroup/memory one/memory.limit_in_bytes", "1073741824\n"},
        {"sys/fs/cgroup/memory one/memory.usage_in_bytes", "104857600\n"},
        {"sys/fs/cgroup/memory one/memory.stat", "hierarchical_memory_limit 314572800\n"},
        {"sys/fs/cgroup/cpuset/cpuset.effective_cpus", "3\n"},
        {NULL, NULL}};
    (void)state;
    expect(files, 300 * MIB, 200 * MIB, 1,
           "hierarchical_memory_limit of /sys/fs/cgroup/memory one");
}

/* More is used than the limit allows (it was lowered): nothing is left, and the difference does
 * not wrap. */
static void used_beyond_the_limit(void **state) {
    const tree_file files[] = {MACHINE,
                               V2_MOUNT,
                               {"proc/self/cgroup", "0::/a\n"},
                               {"sys/fs/cgroup/a/memory.max", "0\n"},
                               {"sys/fs/cgroup/a/memory.current", "104857600\n"},
                               {"sys/fs/cgroup/a/memory.stat", "inactive_file 999999999999\n"},
                               {"sys/fs/cgroup/memory.max", "rubbish\n"},
                               {NULL, NULL}};
    (void)state;
    expect(files, 0, 0, 16, "memory.max of /sys/fs/cgroup/a");
}

static void limits_of_the_process(void **state) {
    const tree_file files[] = {
        MACHINE,
        {"proc/self/limits",
         "Limit                     Soft Limit           Hard Limit           Units     \n"
         "Max data size             104857600            unlimited            bytes     \n"
         "Max address space         1073741824           2147483648           bytes     \n"},
        {NULL, NULL}};
    const tree_file pinned[] = {
        MACHINE,
        {"proc/self/status", "VmSize:\t  102400 kB\nCpus_allowed_list:\t0,4-5\n"},
        {NULL, NULL}};
    (void)state;
    expect(files, 100 * MIB, 50 * MIB, 16, "RLIMIT_DATA");
    expect(pinned, 8192 * MIB, 6144 * MIB, 3, "MemAvailable");
}

/* This process: the figures have the right magnitude, and follow a limit that is set. */
static void this_process(void **state) {
    struct rlimit was, less;
    const uint64_t space = lt_limits_virtual_bytes();
    lt_limits l;
    (void)state;
    lt_limits_read(&l);
    assert_true(l.n_cpus >= 1 && l.available_bytes <= l.memory_bytes);
    assert_in_range(lt_limits_resident_bytes(), MIB / 2, space);
    assert_int_equal(getrlimit(RLIMIT_AS, &was), 0);
    if (was.rlim_cur != RLIM_INFINITY) {
        return; /* Under a sanitizer, for instance. */
    }
    less = (struct rlimit){space + 64 * MIB, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
    lt_limits_read(&l);
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    assert_in_range(l.available_bytes, 60 * MIB, 64 * MIB);
    assert_string_equal(l.available_by, "RLIMIT_AS");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_without_groups), cmocka_unit_test(version_2_with_max_everywhere),
        cmocka_unit_test(version_2_nested),         cmocka_unit_test(version_2_high_and_cpuset),
        cmocka_unit_test(version_2_namespace),      cmocka_unit_test(version_1_on_the_machine),
        cmocka_unit_test(version_1_in_a_container), cmocka_unit_test(used_beyond_the_limit),
        cmocka_unit_test(limits_of_the_process),    cmocka_unit_test(this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
