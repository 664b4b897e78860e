/* filter.c: the system calls that a sandboxed program may use, as a BPF program for seccomp.
 *
 * The list names the allowed calls: those that CPython, shells, coreutils, GCC and most programs
 * without a network need. A call that the list does not name fails with EPERM, and the program
 * continues. A list of refused calls would have to include every call that a later kernel adds.
 * Calls that are newer than this file fail with ENOSYS, so that the C library uses an older one
 * instead; so does clone3, whose flags lie in memory, where a filter cannot read them.
 *
 * Among the calls that are not named, and so refused, are: ptrace, process_vm_*, kcmp, pidfd_*;
 * mount and its family, pivot_root, chroot, unshare, setns; bpf, perf_event_open, userfaultfd,
 * io_uring_*; keyctl, add_key, request_key; module, kexec, reboot, swap and clock calls;
 * name_to_handle_at, open_by_handle_at; fanotify_*; personality; setuid and its family, setgroups,
 * capset; mknod.
 *
 * Some are allowed for some arguments:
 *
 *     clone                          without a flag that makes a namespace
 *     prlimit64, sched_setaffinity   on the caller itself
 *     socketpair                     AF_UNIX
 *     socket                         AF_UNIX; not at all without namespaces, because servers of
 *                                    the machine listen on such sockets
 *     ioctl                          not TIOCSTI and TIOCLINUX, which type into a terminal
 *     kill, tgkill                   without namespaces: to itself
 *
 * Memory that neither RLIMIT_AS nor the size of a tmpfs bounds is refused: memfd_create and System
 * V's shared memory, whose segments would also outlive the run.
 *
 * PROGRAM, a chain: each entry is one comparison and one return, so no jump is longer than the
 * body of its entry. Kernels since 5.11 keep a bitmap of calls that are allowed whatever their
 * arguments are, and do not run the chain for them. ADR 10 says why no library is used. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/sandbox/inside.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#if LT_SANDBOX_HAS_FILTER

#define NEWEST SYS_futex_waitv /* Later calls are unknown to this file. */

#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)

static const int allowed[] = {
    /* Files. */
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_openat,
    SYS_openat2,
    SYS_close,
    SYS_close_range,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_lseek,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_getcwd,
    SYS_chdir,
    SYS_fchdir,
    SYS_mkdirat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_utimensat,
    SYS_truncate,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync_file_range,
    SYS_flock,
    SYS_umask,
    SYS_fadvise64,
    SYS_readahead,
    SYS_copy_file_range,
    SYS_sendfile,
    SYS_getxattr,
    SYS_lgetxattr,
    SYS_fgetxattr,
    SYS_listxattr,
    SYS_llistxattr,
    SYS_flistxattr,
    SYS_dup,
    SYS_dup3,
    SYS_fcntl,
    SYS_pipe2,
    SYS_inotify_init1,
    SYS_inotify_add_watch,
    SYS_inotify_rm_watch,
    /* Memory. */
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_msync,
    SYS_mincore,
    SYS_mlock,
    SYS_munlock,
    SYS_membarrier,
    /* Processes and threads. */
    SYS_execve,
    SYS_exit,
    SYS_exit_group,
    SYS_wait4,
    SYS_waitid,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getpgid,
    SYS_setpgid,
    SYS_getsid,
    SYS_setsid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getresuid,
    SYS_getresgid,
    SYS_getgroups,
    SYS_capget,
    SYS_prctl,
    SYS_set_tid_address,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_futex,
    SYS_futex_waitv,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_getpriority,
    SYS_getrusage,
    SYS_getrlimit,
    SYS_setrlimit,
    SYS_times,
    SYS_getcpu,
    SYS_seccomp,
    /* Signals, clocks, and waiting. */
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigsuspend,
    SYS_rt_sigpending,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_restart_syscall,
    SYS_signalfd4,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_getitimer,
    SYS_setitimer,
    SYS_timer_create,
    SYS_timer_settime,
    SYS_timer_gettime,
    SYS_timer_getoverrun,
    SYS_timer_delete,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_eventfd2,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_ppoll,
    SYS_pselect6,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
    /* Sockets between its own processes. */
    SYS_bind,
    SYS_connect,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_getsockname,
    SYS_getpeername,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_recvmmsg,
    SYS_shutdown,
    SYS_setsockopt,
    SYS_getsockopt,
#if defined(__x86_64__) /* Old calls that newer architectures do not have. */
    SYS_open,
    SYS_creat,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_mkdir,
    SYS_rmdir,
    SYS_unlink,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_dup2,
    SYS_pipe,
    SYS_poll,
    SYS_select,
    SYS_epoll_wait,
    SYS_epoll_create,
    SYS_eventfd,
    SYS_signalfd,
    SYS_inotify_init,
    SYS_fork,
    SYS_vfork,
    SYS_alarm,
    SYS_pause,
    SYS_time,
    SYS_getpgrp,
    SYS_arch_prctl,
#endif
};
#define N_ALLOWED (sizeof allowed / sizeof *allowed)

/* The program under construction. */
typedef struct {
    struct sock_filter *out;
    unsigned short n;
} chain;

static void put(chain *c, unsigned code, unsigned jump_true, unsigned jump_false, uint32_t k) {
    LT_ASSERT(c->n < LT_SANDBOX_FILTER);
    c->out[c->n++] = (struct sock_filter){(uint16_t)code, (uint8_t)jump_true, (uint8_t)jump_false,
                                          k};
}

static void load(chain *c, size_t offset) {
    put(c, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

/* The lower half of an argument, on machines whose low bytes come first. */
static void load_argument(chain *c, int i) {
    load(c, offsetof(struct seccomp_data, args) + 8 * (size_t)i);
}

static void answer(chain *c, uint32_t what) {
    put(c, BPF_RET | BPF_K, 0, 0, what);
}

#define REFUSE  (SECCOMP_RET_ERRNO | EPERM)
#define UNKNOWN (SECCOMP_RET_ERRNO | ENOSYS)

/* Entry: the call `number` gets the action `what`. The accumulator holds the number, before and
 * after. */
static void entry(chain *c, int number, uint32_t what) {
    put(c, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)number);
    answer(c, what);
}

/* Entry: the call is allowed if its argument i, after AND with `mask`, is `value`. */
static void entry_if(chain *c, int number, int i, uint32_t mask, uint32_t value) {
    put(c, BPF_JMP | BPF_JEQ | BPF_K, 0, 5, (uint32_t)number);
    load_argument(c, i);
    put(c, BPF_ALU | BPF_AND | BPF_K, 0, 0, mask);
    put(c, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value);
    answer(c, SECCOMP_RET_ALLOW);
    answer(c, REFUSE);
}

/* ioctl has two requests that are refused. */
static void entry_ioctl(chain *c) {
    put(c, BPF_JMP | BPF_JEQ | BPF_K, 0, 5, SYS_ioctl);
    load_argument(c, 1);
    put(c, BPF_JMP | BPF_JEQ | BPF_K, 2, 0, TIOCSTI);
    put(c, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, TIOCLINUX);
    answer(c, SECCOMP_RET_ALLOW);
    answer(c, REFUSE);
}

/* Entries that depend on whether other processes of the machine can be reached. */
static void entries_reach(chain *c, bool isolated) {
    if (isolated) {
        entry(c, SYS_kill, SECCOMP_RET_ALLOW);
        entry(c, SYS_tkill, SECCOMP_RET_ALLOW);
        entry(c, SYS_tgkill, SECCOMP_RET_ALLOW);
        entry_if(c, SYS_socket, 0, UINT32_MAX, AF_UNIX);
    } else {
        entry_if(c, SYS_kill, 0, UINT32_MAX, (uint32_t)getpid());
        entry_if(c, SYS_tgkill, 0, UINT32_MAX, (uint32_t)getpid());
    }
}

unsigned short lt_sandbox_filter(struct sock_filter out[LT_SANDBOX_FILTER], bool isolated) {
    chain c = {.out = out};
    load(&c, offsetof(struct seccomp_data, arch));
    put(&c, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCH);
    answer(&c, SECCOMP_RET_KILL_PROCESS);
    load(&c, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < N_ALLOWED; i++) {
        entry(&c, allowed[i], SECCOMP_RET_ALLOW);
    }
    entry_if(&c, SYS_clone, 0, NAMESPACES, 0);
    entry_if(&c, SYS_prlimit64, 0, UINT32_MAX, 0);
    entry_if(&c, SYS_sched_setaffinity, 0, UINT32_MAX, 0);
    entry_if(&c, SYS_socketpair, 0, UINT32_MAX, AF_UNIX);
    entry_ioctl(&c);
    entries_reach(&c, isolated);
    entry(&c, SYS_clone3, UNKNOWN);
    /* The numbers of the x32 ABI are far above. */
    put(&c, BPF_JMP | BPF_JGT | BPF_K, 0, 1, NEWEST);
    answer(&c, UNKNOWN);
    answer(&c, REFUSE);
    return c.n;
}

#else /* It is never called, because lt_sandbox_run refuses first. */

unsigned short lt_sandbox_filter(struct sock_filter out[LT_SANDBOX_FILTER], bool isolated) {
    (void)out;
    (void)isolated;
    return 0;
}

#endif
