/* The sandbox. This program also runs in it: `test_sandbox escape NAME ...` tries one way out and
 * ends with status 0 if it was refused, else with the line of this file that got through. Each
 * way is tried with both kinds of sandbox. What a kind does not refuse (rlimits: files that the
 * user may read) is not tried with it. If the kernel refuses namespaces, those parts are skipped
 * by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "platform/sandbox/jobs.h"
#include "unit/sandbox_program.h"

#if defined(__SANITIZE_ADDRESS__)
#define MEMORY INT64_MAX /* Its shadow memory needs terabytes of addresses. */
#else
#define MEMORY ((int64_t)256 << 20)
#endif
#define DISK      ((int64_t)48 << 20) /* The size of this program, and as much again. */
#define PROCESSES 12

static bool namespaces; /* Does this machine allow them? */
static char refusal[LT_ERROR_MESSAGE_BYTES];
static char *program;
static size_t program_bytes;

/* ---- Ways out ---- */

static int way_failed;
#define REFUSED(expression)                                                                        \
    do {                                                                                           \
        if (!(expression)) {                                                                       \
            way_failed = __LINE__;                                                                 \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* A system call that must fail. */
#define CALL(...) REFUSED(syscall(__VA_ARGS__) == -1)

/* outside: a file of the machine that every user may read, in a folder where every user may
 * write. */
static void read_outside(const char *outside) {
    static const char *const paths[] = {"/etc/passwd",
                                        "/etc/hostname",
                                        "/proc/self/status",
                                        "/proc/1/environ",
                                        "/sys/kernel",
                                        "/root",
                                        "/home",
                                        "/var",
                                        "/run",
                                        "/opt",
                                        "/dev/shm/../../proc",
                                        "/boot"};
    REFUSED(open(outside, O_RDONLY) < 0);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        REFUSED(access(paths[i], F_OK) != 0);
    }
    REFUSED(chdir("../../../..") == 0 && access("root", F_OK) != 0);
}

static void write_outside(const char *outside) {
    REFUSED(open(outside, O_WRONLY) < 0);
    REFUSED(unlink(outside) != 0);
}

static void write_system(const char *outside) {
    (void)outside;
    REFUSED(open("/usr/lateen-escape", O_CREAT | O_WRONLY, 0644) < 0);
    REFUSED(open("/usr/bin/env", O_WRONLY) < 0);
    REFUSED(chmod("/usr/bin/env", 0777) != 0);
    REFUSED(rename("/usr/bin/env", "/usr/bin/env2") != 0);
    REFUSED(mkdir("/usr/lib/x", 0755) != 0);
}

static void symlinks(const char *outside) {
    REFUSED(symlink(outside, "out") == 0 && open("out", O_RDONLY) < 0 && open("out", O_WRONLY) < 0);
    REFUSED(symlink("/", "root") == 0 && access("root/etc/passwd", F_OK) != 0);
    REFUSED(link("/usr/bin/env", "env") != 0 || open("env", O_WRONLY) < 0);
}

static void network(const char *outside) {
    (void)outside;
    for (int family = 2; family < 46; family++) { /* Every family except AF_UNIX. */
        REFUSED(socket(family, SOCK_STREAM, 0) < 0);
        REFUSED(socket(family, SOCK_DGRAM, 0) < 0);
        REFUSED(socket(family, SOCK_RAW, 0) < 0);
    }
}

static void other_processes(const char *outside) {
    char byte;
    struct iovec local = {&byte, 1}, remote = {&byte, 1};
    (void)outside;
    REFUSED(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == -1);
    REFUSED(ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) == -1);
    REFUSED(process_vm_readv(getppid(), &local, 1, &remote, 1, 0) == -1);
    REFUSED(process_vm_writev(getppid(), &local, 1, &remote, 1, 0) == -1);
    CALL(SYS_kcmp, getpid(), getppid(), 0, 0, 0);
    CALL(SYS_pidfd_open, getppid(), 0);
    CALL(SYS_prlimit64, getppid(), RLIMIT_CPU, NULL, &(struct rlimit){0});
    CALL(SYS_setpriority, PRIO_PROCESS, getppid(), 19);
    CALL(SYS_sched_setaffinity, getppid(), 8, &(uint64_t){1});
}

static void mounts(const char *outside) {
    (void)outside;
    CALL(SYS_mount, "tmpfs", "/tmp", "tmpfs", 0, NULL);
    CALL(SYS_mount, "proc", "/tmp", "proc", 0, NULL);
    CALL(SYS_mount, NULL, "/usr", NULL, 32 /* MS_REMOUNT */, NULL);
    CALL(SYS_umount2, "/usr", 2);
    CALL(SYS_pivot_root, ".", ".");
    CALL(SYS_chroot, ".");
    CALL(SYS_open_tree, AT_FDCWD, "/", 1);
    CALL(SYS_fsopen, "tmpfs", 0);
    CALL(SYS_move_mount, AT_FDCWD, "/usr", AT_FDCWD, "/tmp", 0);
    CALL(SYS_name_to_handle_at, AT_FDCWD, "/", &(uint64_t[32]){0}, &(int){0}, 0);
    CALL(SYS_open_by_handle_at, AT_FDCWD, &(uint64_t[32]){0}, O_RDONLY);
}

static void new_namespaces(const char *outside) {
    static const int kinds[] = {CLONE_NEWUSER, CLONE_NEWNS,  CLONE_NEWPID,   CLONE_NEWNET,
                                CLONE_NEWIPC,  CLONE_NEWUTS, CLONE_NEWCGROUP};
    struct {
        uint64_t flags, rest[10];
    } args = {.flags = CLONE_NEWUSER, .rest = {[3] = SIGCHLD}};
    (void)outside;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        CALL(SYS_unshare, kinds[i]);
        CALL(SYS_clone, kinds[i] | SIGCHLD, NULL, NULL, NULL, NULL);
    }
    CALL(SYS_clone3, &args, sizeof args);
    CALL(SYS_setns, 0, 0);
}

static void privileges(const char *outside) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct have[2] = {{0}};
    (void)outside;
    REFUSED(getuid() != 0 && geteuid() == getuid() && getgid() != 0);
    REFUSED(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    REFUSED(syscall(SYS_capget, &head, have) == 0);
    for (int i = 0; i < 2; i++) {
        REFUSED(have[i].effective == 0 && have[i].permitted == 0 && have[i].inheritable == 0);
    }
    CALL(SYS_setuid, 0);
    CALL(SYS_setresuid, 0, 0, 0);
    CALL(SYS_setgid, 0);
    CALL(SYS_setgroups, 0, NULL);
    CALL(SYS_capset, &head, have);
    CALL(SYS_mknod, "device", S_IFCHR | 0666, 0x103);
    CALL(SYS_mknodat, AT_FDCWD, "device", S_IFBLK | 0666, 0x800);
}

static void kernel_surface(const char *outside) {
    (void)outside;
    CALL(SYS_io_uring_setup, 1, &(uint64_t[32]){0});
    CALL(SYS_bpf, 0, NULL, 0);
    CALL(SYS_perf_event_open, &(uint64_t[32]){0}, 0, -1, -1, 0);
    CALL(SYS_userfaultfd, 0);
    CALL(SYS_keyctl, 0, -3, 0, 0, 0);
    CALL(SYS_add_key, "user", "x", "x", 1, -3);
    CALL(SYS_request_key, "user", "x", NULL, -3);
    CALL(SYS_personality, ADDR_NO_RANDOMIZE);
    CALL(SYS_memfd_create, "x", 0);
    CALL(SYS_shmget, 0, 4096, 0600);
    CALL(SYS_syslog, 3, NULL, 0);
    CALL(SYS_init_module, NULL, 0, "");
    CALL(SYS_kexec_load, 0, 0, NULL, 0);
    CALL(SYS_reboot, 0, 0, 0, NULL);
    CALL(SYS_sethostname, "x", 1);
    CALL(SYS_clock_settime, CLOCK_REALTIME, &(struct timespec){0});
    CALL(SYS_fanotify_init, 0, 0);
    CALL(SYS_quotactl, 0, NULL, 0, NULL);
    REFUSED(ioctl(0, TIOCSTI, "x") == -1 && errno == EPERM);
    REFUSED(ioctl(0, TIOCLINUX, "x") == -1 && errno == EPERM);
    REFUSED(syscall(0x40000000 | SYS_getpid) == -1); /* The x32 ABI. */
    REFUSED(syscall(4000) == -1 && errno == ENOSYS);
}

static void limits_rise(const char *outside) {
    static const __rlimit_resource_t all[] = {RLIMIT_CPU,    RLIMIT_FSIZE, RLIMIT_NPROC,
                                              RLIMIT_NOFILE, RLIMIT_CORE,  RLIMIT_MEMLOCK};
    (void)outside;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct rlimit r;
        REFUSED(getrlimit(all[i], &r) == 0 && r.rlim_max != RLIM_INFINITY);
        r.rlim_cur = r.rlim_max = r.rlim_max + 1;
        REFUSED(setrlimit(all[i], &r) != 0);
    }
}

static void inherited(const char *outside) {
    (void)outside;
    for (int fd = 3; fd < 1024; fd++) {
        REFUSED(fcntl(fd, F_GETFD) == -1);
    }
    REFUSED(getenv("LATEEN_TEST_SECRET") == NULL);
    REFUSED(open("/dev/tty", O_RDWR) < 0);
    REFUSED(write(STDIN_FILENO, "x", 1) == -1);
}

/* All of them wait, so that none makes room for another. */
static void fork_bomb(const char *outside) {
    int made = 0;
    (void)outside;
    for (; made < 10 * PROCESSES; made++) {
        const pid_t pid = fork();
        if (pid < 0) {
            break;
        }
        if (pid == 0) {
            (void)pause();
            _exit(0);
        }
    }
    REFUSED(made < PROCESSES);
}

static void memory_bomb(const char *outside) {
    size_t taken = 0;
    (void)outside;
    if (MEMORY == INT64_MAX) {
        return;
    }
    while (taken < 4 * (size_t)MEMORY) {
        void *more = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                          0);
        if (more == MAP_FAILED) {
            break;
        }
        memset(more, 1, 1 << 20);
        taken += 1 << 20;
    }
    REFUSED(taken < (size_t)MEMORY);
}

/* Into separate files, none of which exceeds the limit of one file. */
static void disk_bomb(const char *outside) {
    static char block[1 << 20];
    int64_t written = 0;
    char name[32];
    (void)outside;
    for (int i = 0; i < 64; i++) {
        (void)snprintf(name, sizeof name, "%s%d", i % 2 != 0 ? "/tmp/" : "/dev/shm/", i);
        const int fd = open(name, O_CREAT | O_WRONLY, 0644);
        for (int k = 0; k < 4 && fd >= 0; k++) {
            const ssize_t n = write(fd, block, sizeof block);
            written += n > 0 ? n : 0;
        }
        close(fd);
    }
    REFUSED(written > 0 && written <= DISK);
}

static void one_large_file(const char *outside) {
    static char block[1 << 20];
    int64_t written = 0;
    ssize_t n;
    const int fd = open("large", O_CREAT | O_WRONLY, 0644);
    (void)outside;
    (void)signal(SIGXFSZ, SIG_IGN);
    while (fd >= 0 && written <= 2 * DISK && (n = write(fd, block, sizeof block)) > 0) {
        written += n;
    }
    REFUSED(written > 0 && written <= DISK);
}

/* A daemon: another session, none of our files, and it ignores signals. */
static void daemon_stays(const char *outside) {
    (void)outside;
    for (int i = 0; i < 4; i++) {
        if (fork() == 0) {
            (void)setsid();
            if (fork() == 0) {
                for (int s = 1; s < 32; s++) {
                    (void)signal(s, SIG_IGN);
                }
                for (int fd = 0; fd < 8; fd++) {
                    close(fd);
                }
                (void)sleep(600);
            }
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
}

/* Whether a signal is refused or lost, it only matters that the other processes live. */
static void signals(const char *outside) {
    (void)outside;
    (void)kill(getppid(), SIGKILL);
    (void)kill(getppid(), SIGSTOP);
    (void)kill(getppid(), SIGTERM);
    (void)kill(1, SIGKILL);
    (void)kill(-1, SIGKILL);
    (void)kill(0, SIGURG);
    CALL(SYS_rt_sigqueueinfo, getppid(), SIGKILL, &(siginfo_t){.si_code = SI_QUEUE});
    CALL(SYS_pidfd_send_signal, 0, SIGKILL, NULL, 0);
}

typedef struct {
    const char *name;
    void (*way)(const char *outside);
    bool isolation; /* Only namespaces refuse it. */
} escape;
static const escape escapes[] = {{"read_outside", read_outside, true},
                                 {"write_outside", write_outside, true},
                                 {"write_system", write_system, false},
                                 {"symlinks", symlinks, true},
                                 {"network", network, false},
                                 {"other_processes", other_processes, false},
                                 {"mounts", mounts, false},
                                 {"new_namespaces", new_namespaces, false},
                                 {"privileges", privileges, false},
                                 {"kernel_surface", kernel_surface, false},
                                 {"limits_rise", limits_rise, false},
                                 {"inherited", inherited, false},
                                 {"fork_bomb", fork_bomb, false},
                                 {"memory_bomb", memory_bomb, false},
                                 {"disk_bomb", disk_bomb, true},
                                 {"one_large_file", one_large_file, false},
                                 {"daemon_stays", daemon_stays, false},
                                 {"signals", signals, false}};
#define N_ESCAPES (sizeof escapes / sizeof *escapes)

_Noreturn static void try_escape(const char *name, const char *outside) {
    way_failed = 255;
    for (size_t i = 0; i < N_ESCAPES; i++) {
        if (strcmp(escapes[i].name, name) == 0) {
            way_failed = 0;
            escapes[i].way(outside);
        }
    }
    (void)fprintf(stdout, "line %d, errno %d", way_failed, errno);
    (void)fflush(stdout);
    _exit(way_failed != 0);
}

/* ---- Outside ---- */

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void fails(lt_err got, lt_err want, const char *says) {
    if (got != want || strstr(lt_error_message(), says) == NULL) {
        fail_msg("got %d, wanted %d; '%s' in: %s", (int)got, (int)want, says, lt_error_message());
    }
}

/* A job with this program as a file; its limits leave time on a slow machine. */
static lt_sandbox_job job_of(lt_sandbox_kind kind, const char *const *command) {
    static lt_sandbox_file files[1];
    files[0] = (lt_sandbox_file){"test", program, program_bytes};
    return (lt_sandbox_job){.kind = kind,
                            .limits = {.wall_s = 240,
                                       .cpu_s = 240,
                                       .memory_bytes = MEMORY,
                                       .disk_bytes = DISK,
                                       .output_bytes = 65536,
                                       .processes = PROCESSES,
                                       .files = 64},
                            .command = command,
                            .files = files,
                            .n_files = 1};
}

/* The kind of sandbox that a test uses. */
static lt_sandbox_kind kind_of(void **state) {
    const lt_sandbox_kind kind = **(const lt_sandbox_kind **)state;
    if (kind == LT_SANDBOX_NAMESPACES && !namespaces) {
        print_message("%s\n", refusal);
        skip();
    }
    return kind;
}

/* Number of processes on this machine whose command line contains the mark. */
static int alive(const char *mark) {
    char **names = NULL, path[64], line[512];
    size_t n = 0, bytes;
    int count = 0;
    must(lt_file_list(&names, &n, "/proc"));
    for (size_t i = 0; i < n; i++) {
        FILE *f;
        if (isdigit((unsigned char)names[i][0]) == 0) {
            continue;
        }
        (void)snprintf(path, sizeof path, "/proc/%.20s/cmdline", names[i]);
        f = fopen(path, "r");
        bytes = f != NULL ? fread(line, 1, sizeof line, f) : 0;
        count += memmem(line, bytes, mark, strlen(mark)) != NULL;
        if (f != NULL) {
            (void)fclose(f);
        }
    }
    lt_file_list_free(names, n);
    return count;
}

static void run_escape(lt_sandbox_kind kind, const escape *e) {
    char outside[] = "/tmp/lateen-outside-XXXXXX", mark[64], text[8];
    const int fd = mkstemp(outside);
    const char *const command[] = {"./test", "escape", e->name, outside, mark, NULL};
    lt_sandbox_job job = job_of(kind, command);
    lt_sandbox_result r = {0};
    struct stat s;

    assert_true(fd >= 0 && write(fd, "canary", 6) == 6 && fchmod(fd, 0666) == 0);
    (void)snprintf(mark, sizeof mark, "mark-%d-%s", (int)getpid(), e->name);
    must(lt_sandbox_run(&r, &job));
    if (r.status != 0 || r.limit != NULL) {
        fail_msg("%s: status %d, signal %d, limit %s: %s %s", e->name, r.status, r.signal,
                 r.limit != NULL ? r.limit : "none", r.out, r.err);
    }
    assert_int_equal(alive(mark), 0);
    assert_true(pread(fd, text, sizeof text, 0) == 6 && memcmp(text, "canary", 6) == 0);
    assert_true(stat(outside, &s) == 0);
    assert_true(access("/usr/lateen-escape", F_OK) != 0);
    lt_sandbox_result_free(&r);
    close(fd);
    (void)unlink(outside);
}

static void escapes_are_refused(void **state) {
    const lt_sandbox_kind kind = kind_of(state);
    assert_int_equal(setenv("LATEEN_TEST_SECRET", "x", 1), 0);
    for (size_t i = 0; i < N_ESCAPES; i++) {
        if (kind == LT_SANDBOX_NAMESPACES || !escapes[i].isolation) {
            run_escape(kind, &escapes[i]);
        }
    }
}

/* ---- Results ---- */

/* Run a shell command, with limits that one case changes. */
static void sh(lt_sandbox_result *r, lt_sandbox_kind kind, const char *text,
               const lt_sandbox_limits *limits) {
    const char *const command[] = {"sh", "-c", text, NULL};
    lt_sandbox_job job = job_of(kind, command);
    job.n_files = 0;
    job.limits = limits != NULL ? *limits : job.limits;
    job.input = "two\nlines\n";
    job.input_bytes = strlen(job.input);
    *r = (lt_sandbox_result){0};
    must(lt_sandbox_run(r, &job));
}

static void ends_are_reported(void **state) {
    static const struct {
        const char *text;
        int status, signal;
        const char *out, *err;
    } rows[] = {
        {"cat; echo e >&2; exit 3", 3, 0, "two\nlines\n", "e\n"},
        {"kill -9 $$", -1, SIGKILL, "", ""},
        {"kill -ABRT $$", -1, SIGABRT, "", ""},
        {"exec >&- 2>&-; exit 4", 4, 0, "", ""},
        {"umask; ulimit -c", 0, 0, "0022\n0\n", ""},
        {"mkdir a && echo x >a/b && ln -s a/b c && cat c && rm -r a", 0, 0, "x\n", ""},
        {"(sleep 600 & sleep 600 &) >/dev/null 2>&1; echo done", 0, 0, "done\n", ""},
        {"for i in 1 2 3 4 5 6 7 8; do echo $i | cat; done | wc -l", 0, 0, "8\n", ""},
    };
    const lt_sandbox_kind kind = kind_of(state);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_sandbox_result r;
        sh(&r, kind, rows[i].text, NULL);
        if (r.status != rows[i].status || r.signal != rows[i].signal || r.limit != NULL ||
            strcmp(r.out, rows[i].out) != 0 || strcmp(r.err, rows[i].err) != 0) {
            fail_msg("'%s': status %d, signal %d, out '%s', err '%s'", rows[i].text, r.status,
                     r.signal, r.out, r.err);
        }
        assert_true(r.peak_bytes > 0 && r.wall_s > 0);
        lt_sandbox_result_free(&r);
    }
}

static void limits_end_a_job(void **state) {
    static const struct {
        const char *text, *limit;
        double wall_s, cpu_s;
        int signal, kind; /* For this kind only; 2: for both. */
    } rows[] = {
        {"sleep 600", "wall", 0.2, 100, SIGKILL, 2},
        {"trap '' TERM INT XCPU; while :; do :; done", "wall", 0.2, 100, SIGKILL, 2},
        {"while :; do :; done", "cpu", 240, 1, SIGXCPU, LT_SANDBOX_NAMESPACES},
        {"trap '' XCPU; while :; do :; done", "cpu", 240, 1, SIGKILL, LT_SANDBOX_RLIMITS},
        {"while :; do echo flood; done", "output", 240, 240, SIGKILL, 2},
        {"while :; do echo flood >&2; done", "output", 240, 240, SIGKILL, 2},
        {"exec dd if=/dev/zero of=x bs=1M count=100", "disk", 240, 240, SIGXFSZ, 2},
    };
    const lt_sandbox_kind kind = kind_of(state);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_sandbox_limits l = job_of(kind, NULL).limits;
        lt_sandbox_result r;
        if (rows[i].kind != 2 && rows[i].kind != (int)kind) {
            continue;
        }
        l.wall_s = rows[i].wall_s;
        l.cpu_s = rows[i].cpu_s;
        l.output_bytes = 1000;
        l.disk_bytes = 1 << 20;
        sh(&r, kind, rows[i].text, &l);
        if (r.limit == NULL || strcmp(r.limit, rows[i].limit) != 0 || r.signal != rows[i].signal ||
            r.status != -1) {
            fail_msg("'%s': limit %s, status %d, signal %d: %s", rows[i].text,
                     r.limit != NULL ? r.limit : "none", r.status, r.signal, r.err);
        }
        if (strcmp(r.limit, "output") == 0) {
            assert_int_equal(r.out_bytes + r.err_bytes, 1000);
        }
        assert_true(r.peak_bytes > 100000); /* No process is smaller. */
        lt_sandbox_result_free(&r);
    }
}

/* If unshare (util-linux) gets namespaces on this machine, so does the sandbox. */
static void available_namespaces_are_used(void **state) {
    static const char unshare[] =
        "unshare --user --map-root-user --mount --pid --net --ipc --uts --mount-proc --fork "
        "mount -t tmpfs x /mnt 2>/dev/null";
    (void)state;
    if (system(unshare) == 0 && !namespaces) {
        fail_msg("unshare has them, but: %s", refusal);
    }
}

/* If a hard limit of the caller is below what the job requests, it is the job's limit. */
static void limits_of_the_caller_stay(void **state) {
    const lt_sandbox_kind kind = kind_of(state);
    const struct rlimit low = {1 << 20, 1 << 20};
    const pid_t caller = fork();
    int status = -1;
    if (caller == 0) {
        static const char *const command[] = {"sh", "-c", "ulimit -f", NULL};
        lt_sandbox_job job = job_of(kind, command);
        lt_sandbox_result r = {0};
        job.n_files = 0;
        job.limits.disk_bytes = 4 << 20;
        _exit(setrlimit(RLIMIT_FSIZE, &low) != 0 || lt_sandbox_run(&r, &job) != LT_OK ||
              strcmp(r.out, "2048\n") != 0); /* Blocks of 512 bytes. */
    }
    assert_int_equal(waitpid(caller, &status, 0), caller);
    assert_int_equal(status, 0);
}

static void ignore_signal(int number) {
    (void)number;
}

/* A signal that interrupts the caller's poll leaves EINTR in errno, which the end of the output
 * does not change. */
static void signals_to_the_caller_do_not_delay_the_end(void **state) {
    const struct sigaction handler = {.sa_handler = ignore_signal};
    const struct itimerval soon = {.it_value = {.tv_usec = 100000}};
    struct sigaction before;
    lt_sandbox_result r;
    assert_int_equal(sigaction(SIGALRM, &handler, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
    sh(&r, kind_of(state), "sleep 1; echo done", NULL);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "done\n");
    lt_sandbox_result_free(&r);
}

/* When the caller is killed, the program in the sandbox is killed, too. */
static void jobs_end_with_their_caller(void **state) {
    const lt_sandbox_kind kind = kind_of(state);
    char mark[64];
    const double until_s = lt_clock_s() + 120;
    pid_t caller;
    (void)snprintf(mark, sizeof mark, "mark-%d-caller-%d", (int)getpid(), (int)kind);
    caller = fork();
    assert_true(caller >= 0);
    if (caller == 0) {
        const char *const busy[] = {"sh", "-c", "./test escape daemon_stays '' $0; sleep 600", mark,
                                    NULL};
        lt_sandbox_job job = job_of(kind, busy);
        lt_sandbox_result r = {0};
        _exit(lt_sandbox_run(&r, &job) == LT_OK);
    }
    while (alive(mark) < 5 && lt_clock_s() < until_s) { /* Four daemons, and the shell. */
        (void)usleep(20000);
    }
    assert_int_equal(kill(caller, SIGKILL), 0);
    assert_int_equal(waitpid(caller, NULL, 0), caller);
    while (alive(mark) > 0 && lt_clock_s() < until_s) {
        (void)usleep(20000);
    }
    assert_int_equal(alive(mark), 0);
}

/* What the caller adds is visible, but read-only. */
static void binds_are_read_only(void **state) {
    char folder[] = "/tmp/lateen-bind-XXXXXX", path[64], text[256];
    const char *const command[] = {"sh", "-c", text, NULL}, *const binds[] = {folder, NULL};
    lt_sandbox_job job = job_of(LT_SANDBOX_NAMESPACES, command);
    lt_sandbox_result r = {0};
    job.binds = binds;
    job.kind = LT_SANDBOX_RLIMITS;
    fails(lt_sandbox_run(&r, &job), LT_ERR_ARG, "only with namespaces");
    job.kind = kind_of(state);
    fails(lt_sandbox_run(&r, &job), LT_ERR_NOT_FOUND, "bind /tmp/lateen-bind-XXXXXX: No such");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chmod(folder, 0777), 0);
    (void)snprintf(path, sizeof path, "%s/f", folder);
    must(lt_file_write_atomic(path, "seen", 4));
    assert_int_equal(chmod(path, 0666), 0);
    (void)snprintf(text, sizeof text, "cat %s; echo x 2>/dev/null >%s && echo changed; ls /tmp",
                   path, path);
    must(lt_sandbox_run(&r, &job));
    (void)snprintf(text, sizeof text, "seen%s\n", folder + strlen("/tmp/"));
    assert_string_equal(r.out, text);
    lt_sandbox_result_free(&r);
    must(lt_file_remove_tree(folder));
}

static void bad_jobs(void **state) {
    static const char *const none[] = {NULL}, *const absent[] = {"no-such-program", NULL};
    const lt_sandbox_kind kind = kind_of(state);
    lt_sandbox_job job = job_of(kind, none);
    lt_sandbox_file file = {"../x", "", 0};
    lt_sandbox_result r = {0};
    fails(lt_sandbox_run(&r, &job), LT_ERR_ARG, "no program");
    job.command = absent;
    fails(lt_sandbox_run(&r, &job), LT_ERR_NOT_FOUND, "start no-such-program: No such file");
    job.limits.wall_s = 0;
    fails(lt_sandbox_run(&r, &job), LT_ERR_ARG, "wall 0 s");
    job = job_of(kind, absent);
    job.files = &file;
    fails(lt_sandbox_run(&r, &job), LT_ERR_ARG, "'../x' is not the name of a file");
    file = (lt_sandbox_file){"large", program, program_bytes};
    job.limits.disk_bytes = 4096;
    if (kind == LT_SANDBOX_NAMESPACES) {
        fails(lt_sandbox_run(&r, &job), LT_ERR_ARG, "write file large: No space left");
    }
    assert_null(r.out);
}

/* ---- Many jobs, in this process and in a separate one ---- */

static json_t *parse(const char *text) {
    json_t *root = NULL;
    must(lt_json_parse(&root, text, strlen(text), "test"));
    return root;
}

static void check_results(const json_t *results, size_t n) {
    char want[32];
    assert_int_equal(json_array_size(results), n);
    for (size_t i = 0; i + 1 < n; i++) {
        const json_t *r = json_array_get(results, i);
        (void)snprintf(want, sizeof want, "<%zu>\n", i);
        assert_string_equal(json_string_value(json_object_get(r, "stdout")), want);
        assert_int_equal(json_integer_value(json_object_get(r, "status")), (int)i);
        assert_true(json_is_null(json_object_get(r, "limit")));
    }
    assert_non_null(
        strstr(json_string_value(json_object_get(json_array_get(results, n - 1), "error")),
               "start no-such-program"));
}

static void many_jobs_at_once(void **state) {
    const lt_sandbox_kind kind = kind_of(state);
    const lt_sandbox_job base = {.kind = kind, .limits = LT_SANDBOX_LIMITS};
    json_t *jobs = json_array(), *results = NULL;
    for (int i = 0; i < 12; i++) {
        char status[16], text[16];
        (void)snprintf(status, sizeof status, "%d", i);
        (void)snprintf(text, sizeof text, "<%d>\n", i);
        json_array_append_new(jobs, json_pack("{s:[s, s, s], s:s, s:{s:s}, s:f}", "command", "sh",
                                              "-c", "cat; exit $(cat end)", "stdin", text, "files",
                                              "end", status, "wall_s", 240.0));
    }
    json_array_append_new(jobs, json_pack("{s:[s], s:n, s:n, s:n}", "command", "no-such-program",
                                          "stdin", "files", "wall_s"));
    must(lt_sandbox_jobs_run(&results, jobs, &base, 4));
    check_results(results, 13);
    json_decref(results);
    must(lt_sandbox_jobs_ask(&results, jobs, "/proc/self/exe", kind, 4));
    check_results(results, 13);
    json_decref(results);
    json_decref(jobs);
}

static void bad_lists_of_jobs(void **state) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"{}", "jobs are not a list"},
        {"[5]", "job 1: not an object"},
        {"[{\"command\": []}]", "job 1: \"command\" is not a list of 1 to"},
        {"[{\"command\": [\"true\", 5]}]", "\"command\"[1] is not a text"},
        {"[{\"command\": [\"echo\", \"a\\u0000b\"]}]", "\"command\"[1] is not a text that"},
        {"[{\"command\": [\"true\"], \"stdin\": 5}]", "\"stdin\" is not a text"},
        {"[{\"command\": [\"true\"], \"files\": {\"a\": 5}}]", "file \"a\" is not a text"},
        {"[{\"command\": [\"true\"], \"memory\": 5}]", "a job has no member \"memory\""},
        {"[{\"command\": [\"true\"], \"wall_s\": \"5\"}]", "wall_s"},
    };
    const lt_sandbox_job base = {.limits = LT_SANDBOX_LIMITS};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *jobs = parse(rows[i].text), *results = NULL;
        fails(lt_sandbox_jobs_run(&results, jobs, &base, 2), LT_ERR_FORMAT, rows[i].says);
        assert_null(results);
        json_decref(jobs);
    }
}

static int prepare(void **state) {
    static const char *const command[] = {"true", NULL};
    const lt_sandbox_job job = {
        .kind = LT_SANDBOX_NAMESPACES, .limits = LT_SANDBOX_LIMITS, .command = command};
    lt_sandbox_result r = {0};
    (void)state;
    must(lt_file_read(&program, &program_bytes, "/proc/self/exe", (size_t)DISK / 2));
    namespaces = lt_sandbox_run(&r, &job) == LT_OK;
    if (!namespaces) {
        (void)snprintf(refusal, sizeof refusal, "%s", lt_error_message());
    }
    lt_sandbox_result_free(&r);
    return 0;
}

static int clear(void **state) {
    (void)state;
    free(program);
    return 0;
}

int main(int argc, char **argv) {
    static lt_sandbox_kind both[] = {LT_SANDBOX_NAMESPACES, LT_SANDBOX_RLIMITS};
#define WITH(test, kind)                                                                           \
    { #test " with " #kind, test, NULL, NULL, &both[LT_SANDBOX_##kind] }
    const struct CMUnitTest tests[] = {
        WITH(escapes_are_refused, NAMESPACES),
        WITH(escapes_are_refused, RLIMITS),
        WITH(ends_are_reported, NAMESPACES),
        WITH(ends_are_reported, RLIMITS),
        WITH(limits_end_a_job, NAMESPACES),
        WITH(limits_end_a_job, RLIMITS),
        cmocka_unit_test(available_namespaces_are_used),
        WITH(limits_of_the_caller_stay, NAMESPACES),
        WITH(limits_of_the_caller_stay, RLIMITS),
        WITH(signals_to_the_caller_do_not_delay_the_end, NAMESPACES),
        WITH(signals_to_the_caller_do_not_delay_the_end, RLIMITS),
        WITH(jobs_end_with_their_caller, NAMESPACES),
        WITH(jobs_end_with_their_caller, RLIMITS),
        WITH(binds_are_read_only, NAMESPACES),
        WITH(bad_jobs, NAMESPACES),
        WITH(bad_jobs, RLIMITS),
        WITH(many_jobs_at_once, NAMESPACES),
        WITH(many_jobs_at_once, RLIMITS),
        cmocka_unit_test(bad_lists_of_jobs),
    };
    if (argc == 5 && strcmp(argv[1], "escape") == 0) {
        try_escape(argv[2], argv[3]);
    }
    if (is_sandbox_program(argc, argv)) {
        return be_sandbox_program(argv);
    }
    return cmocka_run_group_tests(tests, prepare, clear);
}
