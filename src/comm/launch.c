/* launch.c: see launch.h. */
#include "comm/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "comm/shm.h"

#define LINE_BYTES 4096
#define LOOK_MS    100 /* Interval between checks of the ranks' heartbeats. */
/* Time for output after the last rank's end: other processes may hold the pipe open. */
#define DRAIN_S    1.0
#define BACK_OFF_S 60.0
#define CANNOT_RUN 127
#define USAGE      2

extern char **environ;

/* A pipe of a rank's output, and its last line, which is incomplete. */
typedef struct {
    int fd, to;
    size_t n;
    char line[LINE_BYTES];
} stream;

typedef struct {
    pid_t pid;
    bool runs, failed, silent;
    int status; /* The status from waitpid, once the process has ended. */
    stream out, err;
} rank_process;

typedef struct {
    const lt_launch_options *o;
    const char *path;
    char *const *argv;
    lt_comm_store_server *store;
    char token[LT_STORE_TOKEN];
    int signals, segment;
    sigset_t before;
    uint64_t epoch;
    rank_process *ranks; /* (n) */
    struct pollfd *polls;
    int asked, own_status; /* The last stop signal; the status of the first rank that failed. */
    double failed_s;       /* When the first rank failed; 0: none has. */
    bool killed;
} launcher;

/* ---- Output ---------------------------------------------------------------------------------- */

static void write_all(int fd, const char *data, size_t bytes) {
    while (bytes > 0) {
        const ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return;
        }
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        }
    }
}

static void put_line(const launcher *l, const stream *s, int rank) {
    char text[LINE_BYTES + 32];
    int n = 0;
    if (!l->o->plain) {
        n = snprintf(text, sizeof text, "[%d] ", rank);
    }
    memcpy(text + n, s->line, s->n);
    text[(size_t)n + s->n] = '\n';
    write_all(s->to, text, (size_t)n + s->n + 1);
}

/* Pass on the contents of the pipe; lines that are too long are cut. */
static void pass_on(const launcher *l, stream *s, int rank) {
    char data[LINE_BYTES];
    const ssize_t got = s->fd >= 0 ? read(s->fd, data, sizeof data) : 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    for (ssize_t i = 0; i < got; i++) {
        if (data[i] == '\n' || s->n == sizeof s->line) {
            put_line(l, s, rank);
            s->n = 0;
        }
        if (data[i] != '\n') {
            s->line[s->n++] = data[i];
        }
    }
    if (got <= 0 && s->fd >= 0) {
        if (s->n > 0) {
            put_line(l, s, rank);
        }
        (void)close(s->fd);
        *s = (stream){.fd = -1};
    }
}

/* ---- Starting -------------------------------------------------------------------------------- */

static void free_words(char **words) {
    for (size_t i = 0; words != NULL && words[i] != NULL; i++) {
        free(words[i]);
    }
    free(words);
}

/* The environment of a rank: that of this process, without variables of an outer launcher. */
static char **environment(const launcher *l, int rank) {
    static const char *const names[] = {LT_ENV_RANK,  LT_ENV_RANKS, LT_ENV_SEGMENT, LT_ENV_STORE,
                                        LT_ENV_TOKEN, LT_ENV_EPOCH, LT_ENV_BEAT,    LT_ENV_SILENT};
    enum { N_NAMES = sizeof names / sizeof *names };
    char values[N_NAMES + 1][LT_STORE_ADDRESS + 64];
    char **words;
    size_t n = 0, used = 0;
    lt_limits limits;
    int each;

    lt_limits_read(&limits);
    each = limits.n_cpus / l->o->n_ranks;
    while (environ[n] != NULL) {
        n++;
    }
    (void)snprintf(values[0], sizeof *values, "%s=%d", names[0], rank);
    (void)snprintf(values[1], sizeof *values, "%s=%d", names[1], l->o->n_ranks);
    (void)snprintf(values[2], sizeof *values, "%s=%d", names[2], l->segment);
    (void)snprintf(values[3], sizeof *values, "%s=%s", names[3],
                   lt_comm_store_server_address(l->store));
    (void)snprintf(values[4], sizeof *values, "%s=%s", names[4], l->token);
    (void)snprintf(values[5], sizeof *values, "%s=%llu", names[5], (unsigned long long)l->epoch);
    (void)snprintf(values[6], sizeof *values, "%s=%.6g", names[6], l->o->beat_s);
    (void)snprintf(values[7], sizeof *values, "%s=%.6g", names[7], l->o->silent_s);
    /* Ranks divide the cores among them, unless the environment already says how. */
    (void)snprintf(values[N_NAMES], sizeof *values, "OMP_NUM_THREADS=%d", each > 0 ? each : 1);
    words = calloc(n + N_NAMES + 2, sizeof *words);
    for (size_t i = 0; words != NULL && i < n; i++) {
        bool ours = false;
        for (int k = 0; k < N_NAMES; k++) {
            const size_t length = strlen(names[k]);
            ours = ours ||
                   (strncmp(environ[i], names[k], length) == 0 && environ[i][length] == '=');
        }
        if (!ours && (words[used++] = strdup(environ[i])) == NULL) {
            free_words(words);
            return NULL;
        }
    }
    for (int k = 0; words != NULL && k < N_NAMES + (getenv("OMP_NUM_THREADS") == NULL); k++) {
        if ((words[used++] = strdup(values[k])) == NULL) {
            free_words(words);
            return NULL;
        }
    }
    return words;
}

/* Runs in the child, where only functions that are safe after a fork may be called. */
static void become_rank(const launcher *l, char **words, pid_t parent, int out, int err) {
    static const char failed[] = "lateen launch: the program cannot be run\n";
    const int null = open("/dev/null", O_RDONLY);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 ||
        dup2(err, 2) < 0) {
        _exit(CANNOT_RUN);
    }
    (void)sigprocmask(SIG_SETMASK, &l->before, NULL);
    (void)execve(l->path, l->argv, words);
    (void)!write(2, failed, sizeof failed - 1);
    _exit(CANNOT_RUN);
}

static lt_err start_rank(launcher *l, int rank) {
    lt_err err = LT_OK;
    int out[2] = {-1, -1}, errs[2] = {-1, -1};
    const pid_t parent = getpid();
    rank_process *p = &l->ranks[rank];
    char **words = environment(l, rank);
    pid_t pid;

    if (words == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "environment of rank %d", rank);
    }
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(errs, O_CLOEXEC) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "pipes of rank %d: %s", rank, strerror(errno));
    }
    pid = fork();
    if (pid == 0) {
        become_rank(l, words, parent, out[1], errs[1]);
    }
    if (pid < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "process of rank %d: %s", rank, strerror(errno));
    }
    /* Here, too: the child may be signalled before it has done so itself. */
    (void)setpgid(pid, pid);
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(errs[0], F_SETFL, O_NONBLOCK);
    *p = (rank_process){
        .pid = pid, .runs = true, .out = {.fd = out[0], .to = 1}, .err = {.fd = errs[0], .to = 2}};
    out[0] = errs[0] = -1;
done:
    free_words(words);
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0) {
            (void)close(out[i]);
        }
        if (errs[i] >= 0) {
            (void)close(errs[i]);
        }
    }
    return err;
}

/* ---- Watching -------------------------------------------------------------------------------- */

static void signal_all(const launcher *l, int number) {
    for (int r = 0; r < l->o->n_ranks; r++) {
        if (l->ranks[r].pid > 0 && (l->ranks[r].runs || number == SIGKILL)) {
            (void)kill(-l->ranks[r].pid, number);
        }
    }
}

static void describe(const rank_process *p, int rank, double silent_s, char *out, size_t bytes) {
    if (p->silent) {
        (void)snprintf(out, bytes, "rank %d has stopped answering: no heartbeat for %.3g s", rank,
                       silent_s);
    } else if (WIFSIGNALED(p->status)) {
        (void)snprintf(out, bytes, "rank %d was ended by signal %d (%s)", rank, WTERMSIG(p->status),
                       strsignal(WTERMSIG(p->status)));
    } else {
        (void)snprintf(out, bytes, "rank %d ended with status %d%s", rank, WEXITSTATUS(p->status),
                       WEXITSTATUS(p->status) == LT_LAUNCH_LOST ? ", because of another rank" : "");
    }
}

/* A rank has failed. The first one ends the world. */
static void fail(launcher *l, int rank) {
    rank_process *p = &l->ranks[rank];
    char why[LT_STORE_NOTICE];
    const bool by_itself = !p->silent && WIFEXITED(p->status) &&
                           WEXITSTATUS(p->status) != LT_LAUNCH_LOST;
    p->failed = true;
    describe(p, rank, l->o->silent_s, why, sizeof why);
    if (l->own_status == 0 && by_itself) {
        l->own_status = WEXITSTATUS(p->status);
    }
    if (l->killed && !by_itself && !p->silent) {
        return; /* The launcher itself has killed it. */
    }
    lt_log_error("%s", why);
    if (l->failed_s == 0.0) {
        l->failed_s = lt_clock_s();
        lt_comm_store_server_notice(l->store, why);
    }
}

static bool is_stop(const launcher *l, int status) {
    return (WIFEXITED(status) &&
            (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == LT_LAUNCH_STOPPED)) ||
           (WIFSIGNALED(status) && l->asked != 0 && WTERMSIG(status) == l->asked);
}

static void reap(launcher *l) {
    for (int r = 0; r < l->o->n_ranks; r++) {
        rank_process *p = &l->ranks[r];
        if (p->runs && waitpid(p->pid, &p->status, WNOHANG) == p->pid) {
            p->runs = false;
            if (!p->failed && !is_stop(l, p->status)) {
                fail(l, r);
            }
        }
    }
}

static void look_at_hearts(launcher *l) {
    for (int r = 0; l->failed_s == 0.0 && r < l->o->n_ranks; r++) {
        rank_process *p = &l->ranks[r];
        if (p->runs && lt_comm_store_server_life(l->store, r) == LT_LIFE_SILENT) {
            p->silent = true;
            fail(l, r);
        }
    }
}

static void heed_signals(launcher *l) {
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        const int number = (int)info.ssi_signo;
        if (number == SIGTSTP) {
            signal_all(l, SIGSTOP);
            (void)raise(SIGSTOP);
            signal_all(l, SIGCONT);
        } else if (number != SIGCHLD && number != SIGCONT) {
            l->asked = number;
            signal_all(l, number);
        }
    }
}

static bool anybody_runs(const launcher *l) {
    for (int r = 0; r < l->o->n_ranks; r++) {
        if (l->ranks[r].runs) {
            return true;
        }
    }
    return false;
}

/* Wait for output, a signal or the next check, and pass on the output. False: no pipe is open. */
static bool wait_and_pass_on(launcher *l) {
    const int n = l->o->n_ranks;
    bool open = false;
    l->polls[0] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    for (int r = 0; r < n; r++) {
        l->polls[1 + 2 * r] = (struct pollfd){.fd = l->ranks[r].out.fd, .events = POLLIN};
        l->polls[2 + 2 * r] = (struct pollfd){.fd = l->ranks[r].err.fd, .events = POLLIN};
        open = open || l->ranks[r].out.fd >= 0 || l->ranks[r].err.fd >= 0;
    }
    (void)poll(l->polls, (nfds_t)(1 + 2 * n), LOOK_MS);
    for (int r = 0; r < n; r++) {
        if (l->polls[1 + 2 * r].revents != 0) {
            pass_on(l, &l->ranks[r].out, r);
        }
        if (l->polls[2 + 2 * r].revents != 0) {
            pass_on(l, &l->ranks[r].err, r);
        }
    }
    return open;
}

static void close_streams(launcher *l) {
    for (int r = 0; r < l->o->n_ranks; r++) {
        for (int i = 0; i < 2; i++) {
            stream *s = i == 0 ? &l->ranks[r].out : &l->ranks[r].err;
            if (s->fd >= 0) {
                if (s->n > 0) {
                    put_line(l, s, r);
                }
                (void)close(s->fd);
                *s = (stream){.fd = -1};
            }
        }
    }
}

/* One generation, from its start to the end of its last rank. */
static lt_err run_once(launcher *l) {
    lt_err err = LT_OK;
    double end_s = 0.0;
    l->failed_s = 0.0;
    l->own_status = 0;
    l->killed = false;
    for (int r = 0; r < l->o->n_ranks; r++) {
        l->ranks[r] = (rank_process){.out = {.fd = -1}, .err = {.fd = -1}};
    }
    LT_TRY(lt_shm_make(&l->segment, l->o->n_ranks, l->epoch));
    for (int r = 0; r < l->o->n_ranks; r++) {
        LT_TRY_DONE(start_rank(l, r));
    }
    while (anybody_runs(l)) {
        (void)wait_and_pass_on(l);
        heed_signals(l);
        reap(l);
        look_at_hearts(l);
        if (l->failed_s > 0.0 && !l->killed && lt_clock_s() - l->failed_s > l->o->grace_s) {
            l->killed = true;
            signal_all(l, SIGKILL);
        }
    }
    end_s = lt_clock_s();
    while (lt_clock_s() - end_s < DRAIN_S && wait_and_pass_on(l)) {}
done:
    signal_all(l, SIGKILL); /* Processes that ranks have left in their process groups. */
    for (int r = 0; r < l->o->n_ranks; r++) {
        if (l->ranks[r].runs) {
            (void)waitpid(l->ranks[r].pid, &l->ranks[r].status, 0);
        }
    }
    close_streams(l);
    (void)close(l->segment);
    return err;
}

/* ---- Storyboard ------------------------------------------------------------------------------ */

static int status_of(const launcher *l) {
    int status = 0;
    if (l->failed_s > 0.0) {
        return l->own_status != 0 ? l->own_status : LT_LAUNCH_LOST;
    }
    for (int r = 0; r < l->o->n_ranks; r++) {
        const int s = l->ranks[r].status;
        if (WIFSIGNALED(s)) {
            return 128 + WTERMSIG(s);
        }
        status = WEXITSTATUS(s) != 0 ? WEXITSTATUS(s) : status;
    }
    return status;
}

/* False: a stop was requested meanwhile. */
static bool back_off(launcher *l, int restart) {
    double wait_s = 1.0;
    for (int i = 1; i < restart && wait_s < BACK_OFF_S; i++) {
        wait_s *= 2.0;
    }
    wait_s = wait_s < BACK_OFF_S ? wait_s : BACK_OFF_S;
    lt_log_info("restart %d of %d in %.0f s", restart, l->o->restarts, wait_s);
    for (const double until_s = lt_clock_s() + wait_s; lt_clock_s() < until_s && l->asked == 0;) {
        struct pollfd p = {.fd = l->signals, .events = POLLIN};
        (void)poll(&p, 1, LOOK_MS);
        heed_signals(l);
    }
    return l->asked == 0;
}

static lt_err open_launcher(launcher *l) {
    const int n = l->o->n_ranks;
    const int numbers[] = {SIGCHLD, SIGTERM, SIGINT,  SIGHUP, SIGUSR1,
                           SIGUSR2, SIGXCPU, SIGTSTP, SIGCONT};
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (void)sigaddset(&set, numbers[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &set, &l->before); /* Before the store's thread starts. */
    (void)signal(SIGPIPE, SIG_IGN);
    l->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    l->ranks = calloc((size_t)n, sizeof *l->ranks);
    l->polls = calloc(1 + 2 * (size_t)n, sizeof *l->polls);
    if (l->signals < 0 || l->ranks == NULL || l->polls == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d ranks", n);
    }
    LT_TRY(lt_comm_store_token(l->token));
    return lt_comm_store_server_open(&l->store, "127.0.0.1", 0, n, l->token, l->epoch);
}

lt_err lt_launch(const lt_launch_options *o, const char *path, char *const *argv, int *status) {
    lt_err err = LT_OK;
    launcher l = {
        .o = o, .path = path, .argv = argv, .signals = -1, .epoch = (uint64_t)o->attempt << 32 | 1};

    if (o->n_ranks < 1 || o->n_ranks > LT_SHM_MOST_RANKS) {
        LT_FAIL(LT_ERR_ARG, "%d ranks on one machine; 1 to %d are possible", o->n_ranks,
                LT_SHM_MOST_RANKS);
    }
    LT_TRY_DONE(open_launcher(&l));
    for (int restart = 1;; restart++) {
        LT_TRY_DONE(run_once(&l));
        *status = status_of(&l);
        if (l.failed_s == 0.0 || *status == USAGE || *status == CANNOT_RUN || l.asked != 0 ||
            restart > o->restarts || !back_off(&l, restart)) {
            break;
        }
        lt_comm_store_server_begin(l.store, ++l.epoch);
    }
done:
    lt_comm_store_server_close(l.store);
    if (l.signals >= 0) {
        (void)close(l.signals);
    }
    (void)sigprocmask(SIG_SETMASK, &l.before, NULL);
    free(l.ranks);
    free(l.polls);
    return err;
}
