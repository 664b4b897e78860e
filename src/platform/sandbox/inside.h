/* inside.h: the code after the fork, in init and in the program before it starts (sandbox.h). */
#ifndef LT_PLATFORM_SANDBOX_INSIDE_H
#define LT_PLATFORM_SANDBOX_INSIDE_H

#include <limits.h>
#include <linux/filter.h>
#include <stdbool.h>
#include <sys/types.h>

#include "platform/sandbox/sandbox.h"

#define LT_SANDBOX_UID 1000 /* The program's id in a user namespace. */

/* Written once by init: how the program ended; or, by init or the program, which step failed. */
typedef struct {
    char failed[PATH_MAX]; /* "": none. */
    int error;             /* errno of that step. */
    int of_job;            /* The step depends on the job, and not on what the kernel allows. */
    int status;            /* As waitpid returns it. */
    int64_t peak_bytes;
} lt_sandbox_report;

typedef struct {
    const lt_sandbox_job *job;
    int files[4];     /* The program's standard files, and the socket. */
    const char *work; /* Kind rlimits: the folder of the run. */
    bool own_user;    /* The program has a user namespace. */
    /* Otherwise: the user that the program becomes or already is. The caller sends it. */
    uid_t user;
    int64_t beside; /* Threads of its user outside the run, which RLIMIT_NPROC counts, too. */
} lt_sandbox_inside;

/* The main function of init. It continues when the caller has sent a uid_t over the socket. */
_Noreturn void lt_sandbox_init(const lt_sandbox_inside *in);

/* Other architectures have other calls, for which there is no sandbox. */
#if defined(__x86_64__) || defined(__aarch64__)
#define LT_SANDBOX_HAS_FILTER 1
#else
#define LT_SANDBOX_HAS_FILTER 0
#endif

/* filter.c: the system calls that the calling process may use from now on. isolated: it has
 * namespaces. Returns the number of instructions. */
#define LT_SANDBOX_FILTER 1024
unsigned short lt_sandbox_filter(struct sock_filter out[LT_SANDBOX_FILTER], bool isolated);

#endif
