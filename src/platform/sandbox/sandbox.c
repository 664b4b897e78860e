/* sandbox.c: see sandbox.h. The caller's side of the fork: pipes, ids, the clock, and the
 * result. */
#include "platform/sandbox/sandbox.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "platform/sandbox/inside.h"

#define FIRST_ROOM 4096
#define READ_BYTES 65536

#define NAMESPACES                                                                                 \
    (CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

/* One of the program's outputs. */
typedef struct {
    int from;
    char *text;
    size_t n, room;
} output;

typedef struct {
    const lt_sandbox_job *job;
    lt_sandbox_inside inside; /* Its files are this process's copies, closed after the fork. */
    int socket;
    output outputs[2];
    pid_t init;
    char work[PATH_MAX]; /* Kind rlimits: the folder; "" before it is made. */
    lt_sandbox_report report;
    bool reported;
    const char *limit;
} running;

/* ---- The job ---- */

static lt_err check(const lt_sandbox_job *job) {
    const lt_sandbox_limits *l = &job->limits;
    if (!LT_SANDBOX_HAS_FILTER) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "sandbox: no list of system calls for this architecture");
    }
    if (job->command == NULL || job->command[0] == NULL) {
        LT_FAIL(LT_ERR_ARG, "sandbox: no program");
    }
    if (!(l->wall_s > 0.0) || !(l->cpu_s > 0.0) || l->memory_bytes <= 0 || l->disk_bytes <= 0 ||
        l->output_bytes <= 0 || l->processes <= 0 || l->files <= 0) {
        LT_FAIL(LT_ERR_ARG,
                "sandbox: every limit is over 0: wall %g s, CPU %g s, memory %lld, disk %lld, "
                "output %lld bytes, %lld processes, %lld files",
                l->wall_s, l->cpu_s, (long long)l->memory_bytes, (long long)l->disk_bytes,
                (long long)l->output_bytes, (long long)l->processes, (long long)l->files);
    }
    for (int i = 0; i < job->n_files; i++) {
        const char *name = job->files[i].name;
        if (name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, ".") == 0 ||
            strcmp(name, "..") == 0) {
            LT_FAIL(LT_ERR_ARG, "sandbox: '%s' is not the name of a file in one folder", name);
        }
    }
    for (int i = 0; job->binds != NULL && job->binds[i] != NULL; i++) {
        if (job->kind == LT_SANDBOX_RLIMITS || i == LT_SANDBOX_BINDS || job->binds[i][0] != '/') {
            LT_FAIL(LT_ERR_ARG,
                    "sandbox: bind %d, '%s': at most %d absolute paths, and only with namespaces",
                    i + 1, job->binds[i], LT_SANDBOX_BINDS);
        }
        if (access(job->binds[i], F_OK) != 0) {
            LT_FAIL(LT_ERR_NOT_FOUND, "sandbox: bind %s: %s", job->binds[i], strerror(errno));
        }
    }
    return LT_OK;
}

/* ---- Files ---- */

static void shut(int *fd) {
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

/* Open standard input as a read-only file in memory. */
static lt_err open_input(running *r) {
    const lt_sandbox_job *job = r->job;
    char path[64];
    size_t done = 0;
    int fd = memfd_create("input", MFD_CLOEXEC);
    while (fd >= 0 && done < job->input_bytes) {
        const ssize_t n = write(fd, job->input + done, job->input_bytes - done);
        if (n <= 0) {
            shut(&fd);
        }
        done += (size_t)(n > 0 ? n : 0);
    }
    if (fd >= 0) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        r->inside.files[0] = open(path, O_RDONLY | O_CLOEXEC);
    }
    shut(&fd);
    if (r->inside.files[0] < 0) {
        LT_FAIL(LT_ERR_IO, "sandbox: %zu bytes of input: %s", job->input_bytes, strerror(errno));
    }
    return LT_OK;
}

static lt_err open_files(running *r) {
    int ends[2];
    LT_TRY(open_input(r));
    for (int i = 0; i < 2; i++) {
        if (pipe2(ends, O_CLOEXEC) != 0) {
            LT_FAIL(LT_ERR_IO, "sandbox: pipe: %s", strerror(errno));
        }
        r->outputs[i].from = ends[0];
        r->inside.files[1 + i] = ends[1];
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        LT_FAIL(LT_ERR_IO, "sandbox: socketpair: %s", strerror(errno));
    }
    r->socket = ends[0];
    r->inside.files[3] = ends[1];
    return LT_OK;
}

static lt_err make_work(running *r) {
    const char *temporary = getenv("TMPDIR");
    if (r->job->kind != LT_SANDBOX_RLIMITS) {
        return LT_OK;
    }
    snprintf(r->work, sizeof r->work, "%s/lateen-sandbox-XXXXXX",
             temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
    if (mkdtemp(r->work) == NULL) {
        LT_FAIL(LT_ERR_IO, "sandbox: create the folder %s: %s", r->work, strerror(errno));
    }
    r->inside.work = r->work;
    return LT_OK;
}

/* Count the threads of the caller's user. */
static lt_err count_threads(int64_t *out) {
    char **names = NULL, path[64];
    size_t n = 0;
    LT_TRY(lt_file_list(&names, &n, "/proc"));
    for (size_t i = 0; i < n; i++) {
        struct stat s;
        snprintf(path, sizeof path, "/proc/%.20s/task", names[i]);
        if (isdigit((unsigned char)names[i][0]) != 0 && stat(path, &s) == 0 &&
            s.st_uid == geteuid()) {
            *out += (int64_t)s.st_nlink - 2; /* Each thread has a folder. */
        }
    }
    lt_file_list_free(names, n);
    return LT_OK;
}

/* ---- The start ---- */

static pid_t clone_init(const running *r, int flags) {
    const pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD | flags, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        lt_sandbox_init(&r->inside);
    }
    return pid;
}

/* Start the first process of the sandbox. If the kernel refuses user namespaces, root can still
 * make the other namespaces without one. */
static lt_err start(running *r) {
    if (r->job->kind == LT_SANDBOX_RLIMITS) {
        if (geteuid() != 0) {
            LT_TRY(count_threads(&r->inside.beside));
        }
        r->init = clone_init(r, 0);
        if (r->init < 0) {
            LT_FAIL(LT_ERR_IO, "sandbox: fork: %s", strerror(errno));
        }
        return LT_OK;
    }
    r->inside.own_user = true;
    r->init = clone_init(r, NAMESPACES | CLONE_NEWUSER);
    if (r->init < 0 && geteuid() == 0) {
        r->inside.own_user = false;
        r->init = clone_init(r, NAMESPACES);
    }
    if (r->init < 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "sandbox: namespaces are refused here: clone: %s (user.max_user_namespaces, "
                "kernel.unprivileged_userns_clone, or the container's seccomp profile). The kind "
                "'rlimits' needs none, and protects less",
                strerror(errno));
    }
    return LT_OK;
}

static bool write_proc(pid_t pid, const char *name, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? write(fd, text, strlen(text)) : -1;
    if (fd >= 0) {
        close(fd);
    }
    return n == (ssize_t)strlen(text);
}

/* A user id that no other process has, for a process that will have this pid: far above those of
 * accounts or, if a container has only 65,536 ids, in a range that Debian leaves free. If there are
 * fewer ids, or we are not root: our own. */
static uid_t spare_user(pid_t pid) {
    unsigned inside = 0, outside = 0, count = 0;
    FILE *map = geteuid() == 0 ? fopen("/proc/self/uid_map", "re") : NULL;
    const bool known = map != NULL && fscanf(map, "%u %u %u", &inside, &outside, &count) == 3;
    if (map != NULL) {
        fclose(map);
    }
    return !known || count < 65536 ? geteuid()
           : count < UINT32_MAX    ? 30000 + (uid_t)pid % 30000
                                   : 0x70000000 + (uid_t)pid;
}

/* Map one id of the namespace to this user of the machine. */
static bool map_ids(const running *r, uid_t user, gid_t group) {
    char text[64];
    bool mapped;
    snprintf(text, sizeof text, "%d %u 1", LT_SANDBOX_UID, (unsigned)user);
    mapped = write_proc(r->init, "uid_map", text);
    snprintf(text, sizeof text, "%d %u 1", LT_SANDBOX_UID, (unsigned)group);
    return mapped && write_proc(r->init, "gid_map", text);
}

static lt_err let_begin(running *r) {
    const uid_t user = spare_user(r->init);
    const gid_t group = user != geteuid() ? user : getegid();
    if (r->inside.own_user) {
        (void)write_proc(r->init, "setgroups", "deny");
        if (!map_ids(r, user, group)) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "sandbox: namespaces are refused here: map user %u into the namespace: %s. The "
                    "kind 'rlimits' needs none, and protects less",
                    (unsigned)user, strerror(errno));
        }
    }
    if (r->work[0] != '\0' && user != geteuid() && chown(r->work, user, group) != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "sandbox: give %s to user %u: %s", r->work, (unsigned)user,
                strerror(errno));
    }
    if (send(r->socket, &user, sizeof user, MSG_NOSIGNAL) != sizeof user) {
        LT_FAIL(LT_ERR_IO, "sandbox: init ended: %s", strerror(errno));
    }
    return LT_OK;
}

/* ---- The run ---- */

static void end(const running *r) {
    (void)kill(r->init, r->job->kind == LT_SANDBOX_NAMESPACES ? SIGKILL : SIGTERM);
}

static void over(running *r, const char *limit) {
    if (r->limit == NULL) {
        r->limit = limit;
        end(r);
    }
}

/* Read an output: keep as much as the limit allows, and discard the rest, so that the program
 * does not block. */
static lt_err take_output(running *r, output *o) {
    static _Thread_local char text[READ_BYTES];
    const size_t before = r->outputs[0].n + r->outputs[1].n;
    const size_t left = (size_t)r->job->limits.output_bytes - before;
    const ssize_t n = read(o->from, text, sizeof text);
    const size_t keep = n <= 0 ? 0 : (size_t)n < left ? (size_t)n : left;
    if (n == 0 || (n < 0 && errno != EINTR)) {
        shut(&o->from);
    }
    if (n > 0 && (size_t)n > left) {
        over(r, "output");
    }
    if (o->n + keep + 1 > o->room) {
        const size_t room = 2 * (o->n + keep) + FIRST_ROOM;
        char *grown = realloc(o->text, room);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "sandbox: output of %zu bytes", room);
        }
        o->text = grown;
        o->room = room;
    }
    memcpy(o->text + o->n, text, keep);
    o->n += keep;
    o->text[o->n] = '\0';
    return LT_OK;
}

/* Read a report. The first one counts, because that of a failed step comes before that of the
 * end. */
static void take_report(running *r) {
    lt_sandbox_report report;
    const ssize_t n = read(r->socket, &report, sizeof report);
    if (n <= 0) {
        shut(&r->socket);
    } else if (!r->reported && n == (ssize_t)sizeof report) {
        r->report = report;
        r->reported = true;
    }
}

/* Run until init and both outputs have ended. A limit ends init, and the end of init ends all other
 * processes. */
static lt_err follow(running *r, double until_s) {
    while (r->socket >= 0 || r->outputs[0].from >= 0 || r->outputs[1].from >= 0) {
        struct pollfd fds[3] = {{.fd = r->socket, .events = POLLIN},
                                {.fd = r->outputs[0].from, .events = POLLIN},
                                {.fd = r->outputs[1].from, .events = POLLIN}};
        const double left_s = until_s - lt_clock_s();
        if (left_s <= 0.0) {
            over(r, "wall");
        }
        const int wait_ms = r->limit != NULL ? -1 : left_s < 1e6 ? (int)(left_s * 1e3) + 1 : -1;
        if (poll(fds, 3, wait_ms) < 0 && errno != EINTR) {
            LT_FAIL(LT_ERR_IO, "sandbox: poll: %s", strerror(errno));
        }
        for (int i = 0; i < 2; i++) {
            if (fds[1 + i].revents != 0) {
                LT_TRY(take_output(r, &r->outputs[i]));
            }
        }
        if (fds[0].revents != 0) {
            take_report(r);
        }
    }
    return LT_OK;
}

/* ---- The end ---- */

static lt_err check_report(const running *r) {
    const lt_sandbox_report *report = &r->report;
    if (report->failed[0] == '\0') {
        return r->reported || r->limit != NULL
                   ? LT_OK
                   : lt_error_set(LT_ERR_IO, "sandbox: init was killed");
    }
    if (report->of_job) {
        LT_FAIL(report->error == ENOENT ? LT_ERR_NOT_FOUND : LT_ERR_ARG, "sandbox: %.300s: %s",
                report->failed, strerror(report->error));
    }
    LT_FAIL(
        LT_ERR_UNSUPPORTED, "sandbox: %s: %.300s: %s%s",
        r->job->kind == LT_SANDBOX_NAMESPACES ? "namespaces are refused here" : "kind 'rlimits'",
        report->failed, strerror(report->error),
        r->job->kind == LT_SANDBOX_NAMESPACES ? ". The kind 'rlimits' needs none, and protects less"
                                              : "");
}

static const char *limit_of(const running *r, int signal, double cpu_s) {
    const bool cpu = signal == SIGXCPU || (signal == SIGKILL && cpu_s > r->job->limits.cpu_s);
    return r->limit != NULL ? r->limit : cpu ? "cpu" : signal == SIGXFSZ ? "disk" : NULL;
}

static void fill(lt_sandbox_result *out, running *r, const struct rusage *used, double wall_s) {
    const int status = r->limit != NULL ? SIGKILL : r->report.status;
    const double cpu_s = (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) +
                         1e-6 * (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec);
    *out = (lt_sandbox_result){.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                               .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                               .wall_s = wall_s,
                               .cpu_s = cpu_s,
                               .peak_bytes = r->reported ? r->report.peak_bytes
                                                         : (int64_t)used->ru_maxrss * 1024,
                               .out = r->outputs[0].text,
                               .err = r->outputs[1].text,
                               .out_bytes = r->outputs[0].n,
                               .err_bytes = r->outputs[1].n};
    out->limit = limit_of(r, out->signal, cpu_s);
    r->outputs[0].text = r->outputs[1].text = NULL;
}

/* Remove the folder. A failure is only a warning, which does not hide why the run failed. */
static void remove_work(const char *work, lt_err err) {
    lt_failure failure;
    lt_failure_keep(&failure, err);
    if (lt_file_remove_tree(work) != LT_OK) {
        lt_log_warn("sandbox: %s", lt_error_message());
    }
    (void)lt_failure_raise(&failure);
}

static void run_close(running *r, lt_err err) {
    for (int i = 0; i < 4; i++) {
        shut(&r->inside.files[i]);
    }
    for (int i = 0; i < 2; i++) {
        shut(&r->outputs[i].from);
        free(r->outputs[i].text);
    }
    shut(&r->socket);
    if (r->init > 0) {
        end(r);
        (void)waitpid(r->init, NULL, 0);
    }
    if (r->work[0] != '\0') {
        remove_work(r->work, err);
    }
}

lt_err lt_sandbox_run(lt_sandbox_result *out, const lt_sandbox_job *job) {
    running r = {.job = job,
                 .inside = {.job = job, .files = {-1, -1, -1, -1}},
                 .socket = -1,
                 .outputs = {{.from = -1}, {.from = -1}}};
    const double since_s = lt_clock_s();
    struct rusage used = {0};
    lt_err err = LT_OK;

    LT_TRY(check(job));
    LT_TRY_DONE(open_files(&r));
    LT_TRY_DONE(make_work(&r));
    LT_TRY_DONE(start(&r));
    for (int i = 0; i < 4; i++) {
        shut(&r.inside.files[i]);
    }
    LT_TRY_DONE(let_begin(&r));
    LT_TRY_DONE(follow(&r, since_s + job->limits.wall_s));
    (void)wait4(r.init, NULL, 0, &used);
    r.init = 0;
    LT_TRY_DONE(check_report(&r));
    fill(out, &r, &used, lt_clock_s() - since_s);
done:
    run_close(&r, err);
    return err;
}

void lt_sandbox_result_free(lt_sandbox_result *r) {
    free(r->out);
    free(r->err);
    *r = (lt_sandbox_result){0};
}
