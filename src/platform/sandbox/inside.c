/* inside.c: the code of init, and of the program until its start (sandbox.h). After the fork of a
 * process that may have threads, only system calls are safe: nothing here allocates memory or
 * writes to a FILE, and the C library's fork and setresuid, which handle threads that do not
 * exist here, are not used.
 *
 * init:     standard files and socket in their places, all others closed
 *           a message from the caller: the user's ids are mapped
 *           namespaces: mounts of the machine opened, new root, mounts attached, old root left
 *           rlimits:    become reaper of all descendants; under root, another user
 *           write the files of the job
 *           fork ─▶ program: limits, no capabilities, no_new_privs, filter, execve
 *           wait for it; kind rlimits: kill what it left
 *           report, end
 */
#include "platform/sandbox/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOCKET    3 /* The descriptor of the socket in init. */
#define MOST_LEFT 64
#define CHILDREN  "/proc/thread-self/children"

/* Defined here because <sys/mount.h> conflicts with <linux/mount.h>. */
#define MNT_DETACH 2
int mount(const char *, const char *, const char *, unsigned long, const void *);
int umount2(const char *, int);

/* ---- Reports ---- */

static void report(const lt_sandbox_report *r) {
    (void)!write(SOCKET, r, sizeof *r);
}

_Noreturn static void give_up(const char *step, const char *of, bool of_job) {
    lt_sandbox_report r = {.error = errno, .of_job = of_job};
    (void)snprintf(r.failed, sizeof r.failed, "%s%s%s", step, of[0] != '\0' ? " " : "", of);
    report(&r);
    _exit(1);
}

static void must(bool ok, const char *step, const char *of) {
    if (!ok) {
        give_up(step, of, false);
    }
}

/* ---- The new root ---- */

/* A path of the machine that the program sees, too. */
typedef struct {
    const char *path;
    bool device;
    int tree; /* Its mount, which is not yet attached; -1: none. */
    bool folder;
    char link[256]; /* The target, if it is a symbolic link; otherwise "". */
} place;

static const char *const shown[] = {"/usr",
                                    "/bin",
                                    "/sbin",
                                    "/lib",
                                    "/lib32",
                                    "/lib64",
                                    "/libx32",
                                    "/etc/alternatives",
                                    "/etc/ld.so.cache"};
static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                      "/dev/urandom"};
#define N_SHOWN   (sizeof shown / sizeof *shown)
#define N_DEVICES (sizeof devices / sizeof *devices)
#define N_PLACES  (N_SHOWN + N_DEVICES + LT_SANDBOX_BINDS)

/* Open a path in the machine's root, before that is left. */
static void take(place *p, bool required) {
    struct stat s;
    struct mount_attr how = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_RDONLY};
    p->tree = -1;
    if (lstat(p->path, &s) != 0) {
        must(!required, "find", p->path);
        return;
    }
    if (S_ISLNK(s.st_mode) && !required) {
        const ssize_t n = readlink(p->path, p->link, sizeof p->link - 1);
        must(n > 0, "readlink", p->path);
        return;
    }
    must(stat(p->path, &s) == 0, "find", p->path);
    p->folder = S_ISDIR(s.st_mode);
    p->tree = (int)syscall(SYS_open_tree, AT_FDCWD, p->path,
                           OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    must(p->tree >= 0, "open_tree", p->path);
    how.attr_set |= p->device ? 0 : MOUNT_ATTR_NODEV;
    must(syscall(SYS_mount_setattr, p->tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &how, sizeof how) ==
             0,
         "mount_setattr", p->path);
}

/* Make the folders above a path, in the new root, which is the working folder. */
static void make_parents(const char *path) {
    char at[PATH_MAX];
    for (size_t i = 0; path[i] != '\0' && i + 1 < sizeof at; i++) {
        at[i] = path[i];
        at[i + 1] = '\0';
        if (path[i + 1] == '/') {
            must(mkdir(at, 0755) == 0 || errno == EEXIST, "mkdir", path);
        }
    }
}

static void show(const place *p) {
    const char *to = p->path + 1;
    if (p->link[0] != '\0') {
        make_parents(to);
        must(symlink(p->link, to) == 0, "symlink", p->path);
        return;
    }
    if (p->tree < 0) {
        return;
    }
    make_parents(to);
    if (p->folder) {
        must(mkdir(to, 0755) == 0 || errno == EEXIST, "mkdir", p->path);
    } else {
        const int fd = open(to, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        must(fd >= 0, "create", p->path);
        close(fd);
    }
    must(syscall(SYS_move_mount, p->tree, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH) == 0,
         "move_mount", p->path);
    close(p->tree);
}

static int take_all(const lt_sandbox_job *job, place places[N_PLACES]) {
    int n = 0;
    for (size_t i = 0; i < N_SHOWN; i++) {
        places[n].path = shown[i];
        take(&places[n++], false);
    }
    for (size_t i = 0; i < N_DEVICES; i++) {
        places[n] = (place){.path = devices[i], .device = true};
        take(&places[n++], false);
    }
    for (int i = 0; job->binds != NULL && job->binds[i] != NULL; i++) {
        places[n].path = job->binds[i];
        take(&places[n++], true);
    }
    return n;
}

static void folder(const char *path, mode_t mode) {
    make_parents(path);
    must((mkdir(path, mode) == 0 || errno == EEXIST) && chmod(path, mode) == 0, "mkdir", path);
}

static void change_root(const lt_sandbox_job *job) {
    /* Any folder could be used: its own tree is already open. */
    static const char new_root[] = "/usr";
    place places[N_PLACES] = {0};
    char size[96];
    int n;
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "make private", "/");
    n = take_all(job, places);
    (void)snprintf(size, sizeof size, "mode=755,size=%lld,nr_inodes=%lld",
                   (long long)job->limits.disk_bytes,
                   (long long)(job->limits.disk_bytes / 4096 + 1024));
    must(mount("tmpfs", new_root, "tmpfs", MS_NOSUID | MS_NODEV, size) == 0, "mount", "a tmpfs");
    must(chdir(new_root) == 0, "enter", "the new root");
    for (int i = 0; i < n; i++) {
        show(&places[i]);
    }
    folder("tmp", 01777);
    folder("dev/shm", 01777);
    folder("work", 0777);
    must(syscall(SYS_pivot_root, ".", ".") == 0, "pivot_root", "");
    must(umount2(".", MNT_DETACH) == 0, "unmount", "the old root");
    must(chdir("/work") == 0, "enter", "/work");
    (void)!sethostname("sandbox", 7);
}

/* ---- Users and processes ---- */

static pid_t fork_here(void) {
    return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
}

static bool set_ids(uid_t id) {
    return syscall(SYS_setresgid, id, id, id) == 0 && syscall(SYS_setresuid, id, id, id) == 0;
}

/* Root becomes a user without groups. */
static bool become(uid_t user) {
    return syscall(SYS_setgroups, 0, NULL) == 0 && set_ids(user);
}

/* ---- The program ---- */

static void limit(int what, int64_t soft, int64_t hard, const char *name) {
    struct rlimit now, r = {.rlim_cur = (rlim_t)soft, .rlim_max = (rlim_t)hard};
    must(getrlimit((__rlimit_resource_t)what, &now) == 0, "getrlimit", name);
    if (r.rlim_max > now.rlim_max) { /* The program's limit cannot be above our own. */
        r.rlim_max = now.rlim_max;
        r.rlim_cur = r.rlim_cur < r.rlim_max ? r.rlim_cur : r.rlim_max;
    }
    must(setrlimit((__rlimit_resource_t)what, &r) == 0, "setrlimit", name);
}

static void limit_all(const lt_sandbox_inside *in) {
    const lt_sandbox_limits *l = &in->job->limits;
    const int64_t cpu_s = (int64_t)ceil(l->cpu_s);
    /* The limit counts all processes of the user: also init, and in kind rlimits whatever else the
     * caller's user runs. */
    const int64_t processes = l->processes +
                              (in->own_user || in->user == getuid() ? 1 + in->beside : 0);
    limit(RLIMIT_CPU, cpu_s, cpu_s + 1, "RLIMIT_CPU");
    limit(RLIMIT_AS, l->memory_bytes, l->memory_bytes, "RLIMIT_AS");
    limit(RLIMIT_FSIZE, l->disk_bytes, l->disk_bytes, "RLIMIT_FSIZE");
    limit(RLIMIT_NOFILE, l->files, l->files, "RLIMIT_NOFILE");
    limit(RLIMIT_CORE, 0, 0, "RLIMIT_CORE");
    limit(RLIMIT_MEMLOCK, 0, 0, "RLIMIT_MEMLOCK");
    limit(RLIMIT_MSGQUEUE, 0, 0, "RLIMIT_MSGQUEUE");
    limit(RLIMIT_NPROC, processes, processes, "RLIMIT_NPROC");
}

static void drop_capabilities(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    for (unsigned long c = 0; prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; c++) {
        (void)prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
    }
    must(syscall(SYS_capset, &head, none) == 0, "capset", "");
}

static void start_filter(bool isolated) {
    struct sock_filter code[LT_SANDBOX_FILTER];
    struct sock_fprog filter = {.filter = code};
    filter.len = lt_sandbox_filter(code, isolated);
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs", "");
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0, "seccomp", "");
}

static void reset_signals(void) {
    sigset_t none;
    for (int i = 1; i < NSIG; i++) {
        (void)signal(i, SIG_DFL);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void execute(const char *const *words, char *const *environment) {
    static const char *const folders[] = {"/usr/local/bin", "/usr/bin", "/bin"};
    char *const *argv = (char *const *)(uintptr_t)words;
    char path[PATH_MAX];
    if (strchr(words[0], '/') != NULL) {
        (void)execve(words[0], argv, environment);
        return;
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folders[i], words[0]);
        (void)execve(path, argv, environment);
        if (errno != ENOENT) {
            return;
        }
    }
}

_Noreturn static void be_program(const lt_sandbox_inside *in) {
    const bool isolated = in->job->kind == LT_SANDBOX_NAMESPACES;
    char home[PATH_MAX + 8], temporary[PATH_MAX + 8];
    char *const environment[] = {home, temporary, (char[]){"PATH=/usr/local/bin:/usr/bin:/bin"},
                                 (char[]){"LANG=C.UTF-8"}, (char[]){"OMP_NUM_THREADS=1"},
                                 (char[]){"OPENBLAS_NUM_THREADS=1"},
                                 (char[]){"PYTHONDONTWRITEBYTECODE=1"},
                                 /* Repeated runs give the same results. */
                                 (char[]){"PYTHONHASHSEED=0"}, NULL};
    (void)snprintf(home, sizeof home, "HOME=%s", isolated ? "/work" : in->work);
    (void)snprintf(temporary, sizeof temporary, "TMPDIR=%s", isolated ? "/tmp" : in->work);
    reset_signals();
    (void)setsid();
    limit_all(in);
    must(in->own_user || in->user == getuid() || become(in->user), "become another user", "");
    drop_capabilities();
    start_filter(isolated);
    execute(in->job->command, environment);
    give_up("start", in->job->command[0], true);
}

/* ---- The end ---- */

/* Under root: kill all processes of the program's user. The process that does this is one of
 * them. */
static void kill_user(uid_t user) {
    const pid_t killer = fork_here();
    if (killer == 0) {
        if (become(user)) {
            (void)kill(-1, SIGKILL);
        }
        _exit(0);
    }
    if (killer > 0) {
        (void)waitpid(killer, NULL, 0);
    }
}

/* The children of this process, among them orphans of its descendants. */
static int children(pid_t out[MOST_LEFT]) {
    char text[MOST_LEFT * 12];
    const int fd = open(CHILDREN, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    int count = 0;
    if (fd >= 0) {
        close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    for (char *at = text, *end; count < MOST_LEFT; at = end) {
        const long pid = strtol(at, &end, 10);
        if (end == at) {
            break;
        }
        out[count++] = (pid_t)pid;
    }
    return count;
}

/* Kind rlimits: repeat until no descendant is alive, because the children of a killed process
 * become ours. */
static void kill_left(const lt_sandbox_inside *in) {
    const struct timespec pause = {.tv_nsec = 1000000};
    pid_t left[MOST_LEFT];
    for (;;) {
        pid_t ended;
        if (in->user != getuid()) {
            kill_user(in->user);
        } else {
            for (int i = children(left) - 1; i >= 0; i--) {
                (void)kill(left[i], SIGKILL);
            }
        }
        do {
            ended = waitpid(-1, NULL, WNOHANG);
        } while (ended > 0);
        if (ended < 0) {
            return;
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* Wait until the program has ended or, in kind rlimits, until the caller ends the run by
 * SIGTERM. */
static int wait_for(pid_t program, const sigset_t *waited) {
    int status = 0;
    for (;;) {
        pid_t ended;
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
            if (ended == program) {
                return status;
            }
        }
        if (sigwaitinfo(waited, NULL) == SIGTERM) {
            return SIGKILL; /* As waitpid returns it. */
        }
    }
}

/* ---- init ---- */

static void place_files(const int files[4]) {
    int high[4];
    for (int i = 0; i < 4; i++) {
        high[i] = fcntl(files[i], F_DUPFD, 16);
    }
    for (int i = 0; i < 4; i++) {
        (void)dup2(high[i], i);
    }
    (void)fcntl(SOCKET, F_SETFD, FD_CLOEXEC);
    must(syscall(SYS_close_range, SOCKET + 1, ~0U, 0) == 0, "close_range", "");
}

static void write_files(const lt_sandbox_job *job) {
    for (int i = 0; i < job->n_files; i++) {
        const lt_sandbox_file *f = &job->files[i];
        const int fd = open(f->name, O_CREAT | O_WRONLY | O_EXCL | O_CLOEXEC, 0755);
        size_t done = 0;
        while (fd >= 0 && done < f->bytes) {
            const ssize_t n = write(fd, f->data + done, f->bytes - done);
            if (n <= 0) {
                break;
            }
            done += (size_t)n;
        }
        if (fd < 0 || done < f->bytes) {
            give_up("write file", f->name, true);
        }
        close(fd);
    }
}

/* The caller sends the user that the program becomes if it has no user namespace. */
static uid_t wait_for_caller(void) {
    uid_t user;
    if (read(SOCKET, &user, sizeof user) != sizeof user) {
        _exit(1); /* The caller is gone, or could not map the ids. */
    }
    return user;
}

/* The kernel clears the signal when a process changes its user, so this comes afterwards. The
 * caller may have died before; if so, its end of the socket is closed. */
static void end_with_caller(bool isolated) {
    char byte;
    must(prctl(PR_SET_PDEATHSIG, isolated ? SIGKILL : SIGTERM, 0, 0, 0) == 0, "prctl", "");
    if (recv(SOCKET, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0) {
        _exit(1);
    }
}

static void prepare(const lt_sandbox_inside *in) {
    if (in->job->kind == LT_SANDBOX_RLIMITS) {
        must(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0, "become a reaper", "");
        must(in->user != getuid() || access(CHILDREN, R_OK) == 0, "read", CHILDREN);
        must(chdir(in->work) == 0, "enter", in->work);
    } else {
        must(!in->own_user || set_ids(LT_SANDBOX_UID), "become a user of the namespace", "");
        change_root(in->job);
    }
    end_with_caller(in->job->kind == LT_SANDBOX_NAMESPACES);
    write_files(in->job);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

/* All signals are blocked. init waits for SIGCHLD, and in kind rlimits for SIGTERM, by which the
 * caller ends the run. */
static void hold_signals(sigset_t *waited, bool isolated) {
    sigset_t all;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
    (void)sigemptyset(waited);
    (void)sigaddset(waited, SIGCHLD);
    if (!isolated) {
        (void)sigaddset(waited, SIGTERM);
    }
}

_Noreturn void lt_sandbox_init(const lt_sandbox_inside *outside) {
    lt_sandbox_inside in = *outside;
    const bool isolated = in.job->kind == LT_SANDBOX_NAMESPACES;
    lt_sandbox_report r = {0};
    struct rusage used;
    sigset_t waited;
    pid_t program;

    (void)umask(022);
    (void)setsid(); /* The signals of a terminal go to the caller alone. */
    hold_signals(&waited, isolated);
    place_files(in.files);
    in.user = wait_for_caller();
    prepare(&in);
    program = fork_here();
    must(program >= 0, "fork", "");
    if (program == 0) {
        be_program(&in);
    }
    r.status = wait_for(program, &waited);
    if (!isolated) {
        kill_left(&in);
    }
    (void)getrusage(RUSAGE_CHILDREN, &used);
    r.peak_bytes = (int64_t)used.ru_maxrss * 1024;
    report(&r);
    _exit(0);
}
