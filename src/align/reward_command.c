/* reward_command.c: see reward_command.h. Both pipes are read and written as they become ready, so
 * neither a program that answers at once nor one that reads everything first can block. */
#include "align/reward_command.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

#define LINE_BYTES   65536 /* Longest line that the command may write. */
#define READ_BYTES   4096
#define SAID_BYTES   80 /* What a message quotes. */
#define PATIENCE_S   2.0
#define LOOK_EACH_US 10000

struct lt_reward_command {
    const char *command;
    double limit_s;
    int to, from;
    pid_t pid;
    char line[LINE_BYTES]; /* Text that was read and is not yet a whole line. */
    size_t n_line;
};

/* One call of ask. */
typedef struct {
    const char *lines;
    size_t left;
    int64_t n, got;
    double *rewards;
    bool *given;
} asking;

static lt_err start(lt_reward_command *c, int in, int out) {
    char *const argv[] = {(char[]){"sh"}, (char[]){"-c"}, (char *)(uintptr_t)c->command, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t blocked;
    int failed;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    /* The program has its own process group, so that processes it starts can be ended with it, and
     * Ctrl-C reaches only the run. */
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&how, 0);
    /* Slurm's warning before a time limit goes to every process of a step. The run saves after it,
     * and needs the program until then. */
    (void)pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    (void)sigaddset(&blocked, SIGUSR1);
    (void)sigaddset(&blocked, SIGUSR2);
    posix_spawnattr_setsigmask(&how, &blocked);
    failed = posix_spawn(&c->pid, "/bin/sh", &files, &how, argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) {
        c->pid = 0;
        LT_FAIL(LT_ERR_IO, "reward command '%s' did not start: %s", c->command, strerror(failed));
    }
    return LT_OK;
}

lt_err lt_reward_command_open(lt_reward_command **out, const char *command, double limit_s) {
    int in[2] = {-1, -1}, answers[2] = {-1, -1};
    lt_err err = LT_OK;
    lt_reward_command *c = calloc(1, sizeof *c);

    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "reward command");
    }
    *c = (lt_reward_command){.command = command, .limit_s = limit_s, .to = -1, .from = -1};
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "reward command '%s': pipe: %s", command, strerror(errno));
    }
    LT_TRY_DONE(start(c, in[0], answers[1]));
    c->to = in[1];
    c->from = answers[0];
    in[1] = answers[0] = -1;
    (void)fcntl(c->to, F_SETFL, O_NONBLOCK);
    (void)fcntl(c->from, F_SETFL, O_NONBLOCK);
    /* A program that has ended must be reported as an error, and not end this process. */
    signal(SIGPIPE, SIG_IGN);
    *out = c;
    c = NULL;
done:
    for (int i = 0; i < 2; i++) {
        if (in[i] >= 0) {
            close(in[i]);
        }
        if (answers[i] >= 0) {
            close(answers[i]);
        }
    }
    lt_reward_command_close(c);
    return err;
}

/* Wait a short time for its end. */
static bool wait_for(lt_reward_command *c, double patience_s, int *status) {
    const double until_s = lt_clock_s() + patience_s;
    while (c->pid > 0) {
        const pid_t ended = waitpid(c->pid, status, WNOHANG);
        if (ended != 0) {
            c->pid = 0;
        } else if (lt_clock_s() > until_s) {
            return false;
        } else {
            (void)usleep(LOOK_EACH_US);
        }
    }
    return true;
}

void lt_reward_command_close(lt_reward_command *c) {
    int status;
    if (c == NULL) {
        return;
    }
    if (c->to >= 0) {
        close(c->to);
    }
    if (c->from >= 0) {
        close(c->from);
    }
    if (c->pid > 0 && !wait_for(c, PATIENCE_S, &status)) {
        (void)kill(-c->pid, SIGKILL);
        (void)waitpid(c->pid, &status, 0);
    }
    free(c);
}

static lt_err ended(lt_reward_command *c, const asking *a) {
    int status = 0;
    char how[64] = "";
    if (c->pid > 0 && wait_for(c, PATIENCE_S, &status)) {
        if (WIFSIGNALED(status)) {
            snprintf(how, sizeof how, " by signal %d", WTERMSIG(status));
        } else {
            snprintf(how, sizeof how, " with status %d", WEXITSTATUS(status));
        }
    }
    LT_FAIL(LT_ERR_IO, "reward command '%s' ended%s at answer %lld of %lld", c->command, how,
            (long long)a->got + 1, (long long)a->n);
}

/* Read one line of the program. */
static lt_err read_reward(lt_reward_command *c, asking *a, const char *line, size_t n) {
    json_t *root = json_loadb(line, n, JSON_DECODE_ANY, NULL);
    const json_t *value = json_is_object(root) ? json_object_get(root, "reward") : root;
    const bool none = json_is_null(value), number = json_is_number(value);
    const double reward = number ? json_number_value(value) : 0.0;
    json_decref(root);
    if (!none && !number) {
        LT_FAIL(LT_ERR_FORMAT,
                "reward command '%s' said '%.*s' about answer %lld of %lld; a reward is a number, "
                "null, or an object with \"reward\"",
                c->command, n < SAID_BYTES ? (int)n : SAID_BYTES, line, (long long)a->got + 1,
                (long long)a->n);
    }
    if (!isfinite(reward)) {
        LT_FAIL(LT_ERR_NUMERIC, "reward command '%s': the reward of answer %lld of %lld is %g",
                c->command, (long long)a->got + 1, (long long)a->n, reward);
    }
    if (a->got == a->n) {
        LT_FAIL(LT_ERR_FORMAT, "reward command '%s' said '%.*s' after all %lld answers were judged",
                c->command, n < SAID_BYTES ? (int)n : SAID_BYTES, line, (long long)a->n);
    }
    a->rewards[a->got] = reward;
    a->given[a->got++] = !none;
    return LT_OK;
}

/* Process the whole lines among what was read. */
static lt_err take_lines(lt_reward_command *c, asking *a) {
    size_t from = 0;
    const char *end;
    while ((end = memchr(c->line + from, '\n', c->n_line - from)) != NULL) {
        const size_t n = (size_t)(end - (c->line + from));
        LT_TRY(read_reward(c, a, c->line + from, n));
        from += n + 1;
    }
    c->n_line -= from;
    memmove(c->line, c->line + from, c->n_line);
    if (c->n_line == sizeof c->line) {
        LT_FAIL(LT_ERR_FORMAT, "reward command '%s': a line of more than %d bytes", c->command,
                LINE_BYTES);
    }
    return LT_OK;
}

/* Output left over from an earlier call would count as an answer of this one. */
static lt_err check_silence(const lt_reward_command *c) {
    struct pollfd fd = {.fd = c->from, .events = POLLIN};
    if (c->n_line > 0 || (poll(&fd, 1, 0) > 0 && (fd.revents & POLLIN) != 0)) {
        LT_FAIL(LT_ERR_FORMAT, "reward command '%s' wrote more lines than it was asked for",
                c->command);
    }
    return LT_OK;
}

/* alive false: it has closed its output. */
static lt_err read_some(lt_reward_command *c, asking *a, bool *alive) {
    const size_t room = sizeof c->line - c->n_line;
    const ssize_t n = read(c->from, c->line + c->n_line, room < READ_BYTES ? room : READ_BYTES);
    *alive = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    if (n > 0) {
        c->n_line += (size_t)n;
        return take_lines(c, a);
    }
    return LT_OK;
}

static bool write_some(lt_reward_command *c, asking *a) {
    const ssize_t n = write(c->to, a->lines, a->left);
    if (n > 0) {
        a->lines += n;
        a->left -= (size_t)n;
    }
    return n > 0 || errno == EAGAIN || errno == EINTR;
}

lt_err lt_reward_command_ask(lt_reward_command *c, const char *lines, size_t bytes, int64_t n,
                             double *rewards, bool *given) {
    asking a = {.lines = lines, .left = bytes, .n = n, .rewards = rewards, .given = given};
    double since_s = lt_clock_s();
    bool alive = true;
    LT_TRY(check_silence(c));
    while (a.got < n && alive) {
        struct pollfd fds[2] = {{.fd = c->from, .events = POLLIN},
                                {.fd = a.left > 0 ? c->to : -1, .events = POLLOUT}};
        const double left_s = since_s + c->limit_s - lt_clock_s();
        const int64_t before = a.got;
        if (left_s <= 0.0) {
            LT_FAIL(LT_ERR_IO,
                    "reward command '%s' gave no line for %g s at answer %lld of %lld; does it "
                    "write its lines out at once?",
                    c->command, c->limit_s, (long long)a.got + 1, (long long)n);
        }
        if (poll(fds, 2, 1 + (int)(1e3 * fmin(left_s, 1e5))) < 0 && errno != EINTR) {
            LT_FAIL(LT_ERR_IO, "reward command '%s': poll: %s", c->command, strerror(errno));
        }
        if (fds[1].revents != 0) {
            alive = write_some(c, &a);
        }
        if (fds[0].revents != 0) {
            LT_TRY(read_some(c, &a, &alive));
        }
        since_s = a.got > before ? lt_clock_s() : since_s;
    }
    return alive || a.got == n ? LT_OK : ended(c, &a);
}
