/* command.c: see command.h. */
#include "platform/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define OUTPUT_MOST   ((size_t)64 << 20)
#define FIRST_ROOM    8192
#define LOOK_NS       5000000 /* Interval between two checks while waiting. */
#define MESSAGE_BYTES 300

extern char **environ;

/* Read to the end of the output; *late: the deadline passed first. */
static lt_err read_output(char **out, int from, double end_s, bool *late) {
    size_t used = 0, room = FIRST_ROOM;
    ssize_t n = 1;
    *out = malloc(room);
    while (*out != NULL && n > 0) {
        struct pollfd wait = {.fd = from, .events = POLLIN};
        const double left_s = end_s - lt_clock_s();
        *late = left_s <= 0.0 || poll(&wait, 1, (int)(left_s * 1e3) + 1) == 0;
        if (*late) {
            break;
        }
        if (used == OUTPUT_MOST - 1) {
            char more;
            n = read(from, &more, 1);
            if (n <= 0) {
                break;
            }
            LT_FAIL(LT_ERR_LIMIT, "more than %zu bytes of output", OUTPUT_MOST - 1);
        }
        if (used + 1 == room) {
            char *larger = realloc(*out, 2 * room);
            if (larger == NULL) {
                LT_FAIL(LT_ERR_OOM, "output of a program: %zu bytes", 2 * room);
            }
            *out = larger;
            room *= 2;
        }
        n = read(from, *out + used, room - 1 - used);
        used += n > 0 ? (size_t)n : 0;
    }
    if (*out == NULL) {
        LT_FAIL(LT_ERR_OOM, "output of a program");
    }
    (*out)[used] = '\0';
    return LT_OK;
}

/* Wait for the exit status. A program may close its output and continue, so the deadline applies
 * here, too. */
static int status_of(pid_t child, double end_s, bool *late) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (lt_clock_s() >= end_s) {
            *late = true;
            (void)kill(-child, SIGKILL);
            (void)waitpid(child, &status, 0);
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    return status;
}

/* Start a program that writes its output to `to` and its messages to `messages`. It has its own
 * process group, so that Ctrl-C reaches only this process, which may continue or save something
 * first. */
static int start(pid_t *child, const char *const *words, int to, int messages, bool silent) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t how;
    int failed;
    (void)posix_spawnattr_init(&how);
    (void)posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP);
    (void)posix_spawnattr_setpgroup(&how, 0);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, to, STDOUT_FILENO);
    (void)posix_spawn_file_actions_adddup2(&actions, messages, STDERR_FILENO);
    if (silent) {
        (void)posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    }
    failed = posix_spawnp(child, words[0], &actions, &how, (char *const *)(uintptr_t)words,
                          environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&how);
    return failed;
}

static char *output_of(int fd) {
    struct stat st;
    size_t bytes = fstat(fd, &st) == 0 ? (size_t)st.st_size : 0;
    char *text;
    bytes = bytes < OUTPUT_MOST ? bytes : OUTPUT_MOST;
    text = malloc(bytes + 1);
    if (text != NULL) {
        const ssize_t n = pread(fd, text, bytes, 0);
        text[n > 0 ? n : 0] = '\0';
    }
    return text;
}

/* The messages of a program in the form ": first; second", to be appended to a line; those that
 * do not fit are omitted. "": there are none. */
static void one_line(char out[MESSAGE_BYTES], const char *said) {
    size_t used = 0;
    out[0] = '\0';
    for (const char *line = said; *line != '\0' && used < MESSAGE_BYTES - 1;) {
        const size_t n = strcspn(line, "\r\n");
        if (n > 0) {
            used += (size_t)snprintf(out + used, MESSAGE_BYTES - used, "%s%.*s",
                                     used == 0 ? ": " : "; ", (int)n, line);
        }
        line += n;
        line += strspn(line, "\r\n");
    }
    lt_log_tame(out, false);
}

/* Pass on a program's messages: to our standard error if it succeeded, otherwise in why. */
static void tell(int messages, bool succeeded, char why[MESSAGE_BYTES]) {
    char *said = output_of(messages);
    why[0] = '\0';
    if (said != NULL && succeeded) {
        (void)fputs(said, stderr);
    } else if (said != NULL) {
        one_line(why, said);
    }
    free(said);
}

lt_err lt_command_run(char **out, const char *const *words, double deadline_s) {
    const double end_s = lt_clock_s() + deadline_s;
    lt_err err = LT_OK;
    int ends[2], failed, status = 0;
    const int messages = memfd_create("messages", MFD_CLOEXEC);
    bool late = false;
    pid_t child = 0;
    char *text = NULL, why[MESSAGE_BYTES];

    if (messages < 0 || pipe2(ends, O_CLOEXEC) != 0) {
        err = lt_error_set(LT_ERR_IO, "the output of %s: %s", words[0], strerror(errno));
        close(messages);
        return err;
    }
    failed = start(&child, words, ends[1], messages, false);
    close(ends[1]);
    if (failed != 0) {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s: %s", words[0], strerror(failed));
    }
    err = read_output(&text, ends[0], end_s, &late);
    if (late || err != LT_OK) {
        (void)kill(-child, SIGKILL);
        (void)waitpid(child, &status, 0);
    } else {
        status = status_of(child, end_s, &late);
    }
    if (err == LT_ERR_LIMIT) {
        err = lt_error_prefix(err, "%s %s", words[0], words[1] != NULL ? words[1] : "");
    }
    tell(messages, err == LT_OK && !late && WIFEXITED(status) && WEXITSTATUS(status) == 0, why);
    if (err == LT_OK && late) {
        LT_FAIL_DONE(LT_ERR_REMOTE, "%s has not ended after %g s%s", words[0], deadline_s, why);
    }
    if (err == LT_OK && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
        LT_FAIL_DONE(LT_ERR_REMOTE, "%s %s: exit status %d%s", words[0],
                     words[1] != NULL ? words[1] : "", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                     why);
    }
    if (err == LT_OK) {
        *out = text;
        text = NULL;
    }
done:
    close(ends[0]);
    close(messages);
    free(text);
    return err;
}

lt_err lt_command_begin(lt_command *c, const char *const *words, double deadline_s) {
    int failed;
    *c = (lt_command){.output = memfd_create("output", MFD_CLOEXEC)};
    if (c->output < 0) {
        LT_FAIL(LT_ERR_IO, "the output of %s: %s", words[0], strerror(errno));
    }
    failed = start(&c->pid, words, c->output, c->output, true);
    c->end_s = lt_clock_s() + deadline_s;
    if (failed != 0) {
        close(c->output);
        *c = (lt_command){.pid = 0};
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: %s", words[0], strerror(failed));
    }
    return LT_OK;
}

bool lt_command_has_ended(lt_command *c, char **said, int *status) {
    int how = 0;
    const pid_t ended = waitpid(c->pid, &how, WNOHANG);
    if (ended == 0) {
        if (lt_clock_s() > c->end_s) { /* It will have ended at one of the next checks. */
            (void)kill(-c->pid, SIGKILL);
        }
        return false;
    }
    *status = ended == c->pid && WIFEXITED(how) ? WEXITSTATUS(how) : -1;
    *said = output_of(c->output);
    lt_command_forget(c);
    return true;
}

void lt_command_wait(lt_command *c, char **said, int *status) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    while (!lt_command_has_ended(c, said, status)) {
        (void)nanosleep(&pause, NULL);
    }
}

void lt_command_forget(lt_command *c) {
    if (c->pid != 0) {
        close(c->output);
    }
    *c = (lt_command){.pid = 0};
}
