/* sandbox.h: runs an untrusted program, such as code that a model wrote, and reports how it ended.
 *
 *     lateen ── init: the first process of its namespaces ── program ── what the program starts
 *        │                    │
 *        │◀── how it ended ───┘      one socket, which only init has
 *        │◀── standard output, standard error; ──▶ standard input
 *
 * KINDS
 *     namespaces  The program has its own user, process tree, mounts, network, IPC, host name and
 *                 view of cgroups. Its root is an empty tmpfs with read-only mounts of /usr, /bin,
 *                 /sbin, /lib*, /etc/alternatives, /etc/ld.so.cache and the folders that the caller
 *                 adds, five device files, and the writable folders /work, /tmp and /dev/shm. There
 *                 is no /proc and no /sys. The network has no device.
 *     rlimits     For kernels and containers that refuse namespaces. The program sees the files
 *                 that its user may read, and works in a folder that is removed afterwards. Under
 *                 root it gets a user id that no other process has.
 * Both kinds set no_new_privs, resource limits and a seccomp filter (filter.c), close all other
 * files, and clear the environment. A kind that is refused is an error, and never becomes the
 * weaker one.
 *
 * LIMITS     of                     kept by                                  `limit` in the result
 *     wall_s        the run         the caller's clock                       "wall"
 *     cpu_s         each process    RLIMIT_CPU                               "cpu"
 *     memory_bytes  each process    RLIMIT_AS: its allocations fail
 *     disk_bytes    all files       size of the tmpfs; kind rlimits: each
 *                                   file, RLIMIT_FSIZE                       "disk" (FSIZE only)
 *     output_bytes  stdout, stderr  the caller, which ends the run           "output"
 *     processes     processes and   RLIMIT_NPROC: clone fails
 *                   threads
 *     files         each process    RLIMIT_NOFILE
 * Memory of the whole run is at most processes * memory_bytes + disk_bytes.
 *
 * INVARIANTS
 *     When lt_sandbox_run returns, no process of the run is alive, even if the program became a
 *     daemon: the end of init ends its process namespace. In kind rlimits init is the reaper of
 *     all descendants and kills them: under root all processes of the user id, otherwise its
 *     children until there are none.
 *     If the caller dies, so does the run (PR_SET_PDEATHSIG).
 *     The program never has an open file of the caller, nor the socket over which init reports.
 *
 * WHAT IT DOES NOT DO. The kernel is shared, so a program can escape through a bug in the kernel
 * that the allowed system calls reach. Neither time nor caches are hidden, so side channels remain.
 * CPU time of all processes together is bounded only by wall_s times the cores.
 * docs/post-training.md says the same to users.
 *
 * The calling process is forked, so it should be small: a trainer starts `lateen sandbox` and lets
 * that process run the jobs (jobs.h). References: namespaces(7), user_namespaces(7), seccomp(2),
 * pivot_root(2), mount_setattr(2). */
#ifndef LT_PLATFORM_SANDBOX_H
#define LT_PLATFORM_SANDBOX_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_SANDBOX_KINDS "namespaces|rlimits"
#define LT_SANDBOX_BINDS 16
typedef enum { LT_SANDBOX_NAMESPACES, LT_SANDBOX_RLIMITS } lt_sandbox_kind;

typedef struct {
    double wall_s, cpu_s;
    int64_t memory_bytes, disk_bytes, output_bytes;
    int64_t processes, files;
} lt_sandbox_limits;
#define LT_SANDBOX_LIMITS                                                                          \
    ((lt_sandbox_limits){.wall_s = 10,                                                             \
                         .cpu_s = 10,                                                              \
                         .memory_bytes = (int64_t)1 << 30,                                         \
                         .disk_bytes = (int64_t)64 << 20,                                          \
                         .output_bytes = (int64_t)1 << 20,                                         \
                         .processes = 32,                                                          \
                         .files = 256})

typedef struct {
    const char *name, *data; /* The name has no '/'. */
    size_t bytes;
} lt_sandbox_file;

typedef struct {
    lt_sandbox_kind kind;
    lt_sandbox_limits limits;
    /* Words, followed by NULL. A program without '/' is found in /usr/local/bin, /usr/bin,
     * /bin. */
    const char *const *command;
    const char *input; /* Its standard input. */
    size_t input_bytes;
    /* Executable files in the folder where the program starts, which is its HOME. */
    const lt_sandbox_file *files;
    int n_files;
    /* Further absolute paths, mounted read-only, followed by NULL; NULL: none. */
    const char *const *binds;
} lt_sandbox_job;

typedef struct {
    int status;        /* Exit status; -1: ended by a signal. */
    int signal;        /* 0: none. */
    const char *limit; /* The limit that ended it, by its name above; NULL: none. */
    double wall_s, cpu_s;
    int64_t peak_bytes; /* Largest resident memory of one process. */
    char *out, *err;    /* Followed by a 0. */
    size_t out_bytes, err_bytes;
} lt_sandbox_result;

/* Run a program to its end. *out is written on success; free it with lt_sandbox_result_free.
 * UNSUPPORTED: the kernel refuses the kind; the message names the step. NOT_FOUND: there is no such
 * program. ARG: an invalid limit, name or path. */
LT_MUST_USE lt_err lt_sandbox_run(lt_sandbox_result *out, const lt_sandbox_job *job);
void lt_sandbox_result_free(lt_sandbox_result *r); /* Accepts a zeroed one. */

#endif
