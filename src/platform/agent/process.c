/* process.c: see process.h. */
#include "platform/agent/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "platform/agent/controller.h"

/* How long to wait for output after the last rank has ended: other processes may keep the pipe
 * open. */
#define DRAIN_S     1.0
#define INPUT_BYTES (1 << 20) /* Default of the largest pipe that a user may have. */
/* Reads of a pipe whose process has ended: enough for the capacity of a pipe. */
#define MOST_PIECES 64

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

/* Keep the last lines of a rank. */
static void remember(lt_process *p, const char *line, size_t bytes) {
    bytes = bytes < sizeof p->words / 4 ? bytes : sizeof p->words / 4;
    while (p->n_words + bytes + 1 > sizeof p->words) { /* Drop the oldest line. */
        const char *end = memchr(p->words, '\n', p->n_words);
        const size_t gone = end != NULL ? (size_t)(end - p->words) + 1 : p->n_words;
        memmove(p->words, p->words + gone, p->n_words - gone);
        p->n_words -= gone;
    }
    memcpy(p->words + p->n_words, line, bytes);
    p->words[p->n_words + bytes] = '\n';
    p->n_words += bytes + 1;
}

static void put_line(lt_processes *p, lt_process_stream *s, int rank) {
    char text[LT_LINE_BYTES + 32];
    int n = 0;
    if (s->to == STDOUT_FILENO && p->takes != NULL) {
        (void)snprintf(text, sizeof text, "%.*s", (int)s->n, s->line);
        if (p->takes(p->ctx, rank, text)) {
            return;
        }
    }
    if (!p->plain) {
        n = snprintf(text, sizeof text, "[%s%d] ", p->label != NULL ? p->label : "", rank);
    }
    memcpy(text + n, s->line, s->n);
    text[(size_t)n + s->n] = '\n';
    write_all(s->to, text, (size_t)n + s->n + 1);
    if (s->to == STDERR_FILENO) {
        remember(&p->all[rank], s->line, s->n);
    }
}

/* Close a stream, and pass on the line that was left incomplete. */
static void close_stream(lt_processes *p, lt_process_stream *s, int rank) {
    if (s->fd >= 0) {
        if (s->n > 0) {
            put_line(p, s, rank);
        }
        (void)close(s->fd);
        *s = (lt_process_stream){.fd = -1};
    }
}

static void close_input(lt_process *p) {
    if (p->in > 0) {
        (void)close(p->in);
    }
    p->in = 0;
}

/* Pass on the contents of the pipe; lines that are too long are cut. */
static void pass_on(lt_processes *p, lt_process_stream *s, int rank) {
    char data[LT_LINE_BYTES];
    const ssize_t got = s->fd >= 0 ? read(s->fd, data, sizeof data) : 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    for (ssize_t i = 0; i < got; i++) {
        if (data[i] == '\n' || s->n == sizeof s->line) {
            put_line(p, s, rank);
            s->n = 0;
        }
        if (data[i] != '\n') {
            s->line[s->n++] = data[i];
        }
    }
    if (got <= 0) {
        close_stream(p, s, rank);
    }
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* A login command that asks for a password at the terminal would be stopped by the kernel, since it
 * is not in the foreground. Without a terminal it fails with a message. */
static void leave_terminal(void) {
    const int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0) {
        (void)ioctl(fd, TIOCNOTTY);
        (void)close(fd);
    }
}

/* Runs in the child, where only functions that are safe after a fork may be called. */
static void become_rank(const lt_processes *p, char *const *words, pid_t parent, int in, int out,
                        int err) {
    static const char failed[] = "lateen launch: the program cannot be run\n";
    const int null = in >= 0 ? in : open("/dev/null", O_RDONLY);
    (void)setpgid(0, 0);
    if (in >= 0) {
        leave_terminal();
    }
    (void)prctl(PR_SET_PDEATHSIG, p->dies_by != 0 ? p->dies_by : SIGKILL);
    if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 ||
        dup2(err, 2) < 0) {
        _exit(LT_RANK_CANNOT_RUN);
    }
    (void)sigprocmask(SIG_SETMASK, &p->mask, NULL);
    (void)execvpe(p->path, p->argv, words);
    (void)!write(2, failed, sizeof failed - 1);
    _exit(LT_RANK_CANNOT_RUN);
}

/* Make a pipe that contains the whole text, so that writing does not wait for the reader. */
static lt_err make_input(int in[2], const char *text) {
    const size_t bytes = strlen(text);
    if (pipe2(in, O_CLOEXEC) != 0) {
        LT_FAIL(LT_ERR_IO, "standard input: %s", strerror(errno));
    }
    (void)fcntl(in[1], F_SETPIPE_SZ, INPUT_BYTES);
    (void)fcntl(in[1], F_SETFL, O_NONBLOCK);
    if (write(in[1], text, bytes) != (ssize_t)bytes) {
        LT_FAIL(LT_ERR_LIMIT,
                "standard input of %zu bytes does not fit into a pipe: the "
                "environment and the command line are too large",
                bytes);
    }
    return LT_OK;
}

lt_err lt_process_start(lt_processes *p, int rank, char *const *environment, const char *input) {
    lt_err err = LT_OK;
    int out[2] = {-1, -1}, errs[2] = {-1, -1}, in[2] = {-1, -1};
    const pid_t parent = getpid();
    pid_t pid;

    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(errs, O_CLOEXEC) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "pipes of rank %d: %s", rank, strerror(errno));
    }
    LT_TRY_DONE(input != NULL ? make_input(in, input) : LT_OK);
    pid = fork();
    if (pid == 0) {
        become_rank(p, environment, parent, in[0], out[1], errs[1]);
    }
    if (pid < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "process of rank %d: %s", rank, strerror(errno));
    }
    /* The child does this, too, but it may be signalled before. */
    (void)setpgid(pid, pid);
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(errs[0], F_SETFL, O_NONBLOCK);
    close_input(&p->all[rank]);
    p->all[rank] = (lt_process){.pid = pid,
                                .runs = true,
                                .in = in[1] > 0 ? in[1] : 0,
                                .out = {.fd = out[0], .to = 1},
                                .err = {.fd = errs[0], .to = 2}};
    out[0] = errs[0] = in[1] = -1;
done:
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0) {
            (void)close(out[i]);
        }
        if (errs[i] >= 0) {
            (void)close(errs[i]);
        }
        if (in[i] >= 0) {
            (void)close(in[i]);
        }
    }
    return err;
}

/* ---- All processes --------------------------------------------------------------------------- */

lt_err lt_processes_open(lt_processes *p, int n) {
    p->n = n;
    p->all = calloc((size_t)n, sizeof *p->all);
    p->polls = calloc(1 + 2 * (size_t)n, sizeof *p->polls);
    if (p->all == NULL || p->polls == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d ranks", n);
    }
    lt_processes_clear(p);
    return LT_OK;
}

void lt_processes_close(lt_processes *p) {
    for (int r = 0; p->all != NULL && r < p->n; r++) {
        close_input(&p->all[r]);
    }
    free(p->all);
    free(p->polls);
    p->all = NULL;
    p->polls = NULL;
}

void lt_processes_clear(lt_processes *p) {
    for (int r = 0; r < p->n; r++) {
        p->all[r] = (lt_process){.out = {.fd = -1}, .err = {.fd = -1}};
    }
}

void lt_processes_signal(const lt_processes *p, int number) {
    for (int r = 0; r < p->n; r++) {
        const lt_process *one = &p->all[r];
        if (one->in > 0 && number != SIGKILL) {
            (void)dprintf(one->in, "signal %d\n", number);
        } else if (one->pid > 0 && (one->runs || number == SIGKILL)) {
            (void)kill(-one->pid, number);
        }
    }
}

int lt_processes_ended_by(const lt_processes *p, const sigset_t *set) {
    for (int r = 0; r < p->n; r++) {
        const int s = p->all[r].status;
        if (WIFSIGNALED(s) && sigismember(set, WTERMSIG(s)) == 1) {
            return WTERMSIG(s);
        }
    }
    return 0;
}

int lt_processes_status(const lt_processes *p) {
    int status = 0;
    for (int r = 0; r < p->n; r++) {
        const int s = p->all[r].status;
        if (WIFSIGNALED(s)) {
            return 128 + WTERMSIG(s);
        }
        status = WEXITSTATUS(s) != 0 ? WEXITSTATUS(s) : status;
    }
    return status;
}

bool lt_processes_run(const lt_processes *p) {
    for (int r = 0; r < p->n; r++) {
        if (p->all[r].runs) {
            return true;
        }
    }
    return false;
}

bool lt_processes_wait(lt_processes *p, int ms) {
    bool open = false;
    p->polls[0] = (struct pollfd){.fd = p->signals, .events = POLLIN};
    for (int r = 0; r < p->n; r++) {
        p->polls[1 + 2 * r] = (struct pollfd){.fd = p->all[r].out.fd, .events = POLLIN};
        p->polls[2 + 2 * r] = (struct pollfd){.fd = p->all[r].err.fd, .events = POLLIN};
        open = open || p->all[r].out.fd >= 0 || p->all[r].err.fd >= 0;
    }
    (void)poll(p->polls, (nfds_t)(1 + 2 * p->n), ms);
    for (int r = 0; r < p->n; r++) {
        if (p->polls[1 + 2 * r].revents != 0) {
            pass_on(p, &p->all[r].out, r);
        }
        if (p->polls[2 + 2 * r].revents != 0) {
            pass_on(p, &p->all[r].err, r);
        }
    }
    return open;
}

void lt_processes_drain(lt_processes *p) {
    const double end_s = lt_clock_s() + DRAIN_S;
    const int signals = p->signals;
    p->signals = -1; /* Signals are read later. */
    while (lt_clock_s() < end_s && lt_processes_wait(p, 100)) {}
    p->signals = signals;
    for (int r = 0; r < p->n; r++) {
        close_input(&p->all[r]);
        close_stream(p, &p->all[r].out, r);
        close_stream(p, &p->all[r].err, r);
    }
}

/* Pass on what an ended process has left in the pipe; then close it. */
static void pass_on_rest(lt_processes *p, lt_process_stream *s, int rank) {
    for (int i = 0; i < MOST_PIECES && s->fd >= 0; i++) {
        pass_on(p, s, rank);
    }
    close_stream(p, s, rank);
}

void lt_process_kill(const lt_processes *p, int rank) {
    if (p->all[rank].pid > 0) {
        (void)kill(-p->all[rank].pid, SIGKILL);
    }
}

void lt_process_end(lt_processes *p, int rank) {
    lt_process *one = &p->all[rank];
    lt_process_kill(p, rank);
    if (one->runs) {
        one->runs = waitpid(one->pid, &one->status, 0) != one->pid;
    }
    pass_on_rest(p, &one->out, rank);
    pass_on_rest(p, &one->err, rank);
    close_input(one);
}
