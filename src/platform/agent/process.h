/* process.h: the processes of an attempt. Each has its own process group and an empty standard
 * input, and the kernel kills it when the launcher ends. Their output is passed on line by line,
 * with "[rank] " before each; the last lines of a rank's standard error are kept for the report of
 * a fault.
 *
 * A process with input stands for a rank of another machine (hosts.h): signals other than SIGKILL
 * are written to its standard input as lines "signal N", and are not sent to the process itself. It
 * has no terminal, so it cannot ask for a password. */
#ifndef LT_PLATFORM_PROCESS_H
#define LT_PLATFORM_PROCESS_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "lateen/base.h"

#define LT_LINE_BYTES 4096
#define LT_LAST_WORDS 2048

/* A pipe of a rank's output, and its last line, which is incomplete. */
typedef struct {
    int fd, to;
    size_t n;
    char line[LT_LINE_BYTES];
} lt_process_stream;

typedef struct {
    pid_t pid;
    bool runs;
    bool failed, silent, suspect, slow; /* The launcher's findings. */
    bool lost;  /* It was ended by a signal that the launcher did not send, or is silent. */
    int status; /* As returned by waitpid, after the process has ended. */
    bool cut;   /* The connection to its machine was lost; it is not known how it has ended. */
    bool late;  /* Its machine has not started it in time. */
    int in;     /* Its standard input; 0: it has none. */
    lt_process_stream out, err;
    char words[LT_LAST_WORDS]; /* Whole lines. */
    size_t n_words;
} lt_process;

typedef struct {
    int n;
    bool plain;        /* Lines of output are passed on without their rank. */
    const char *label; /* Text before the rank in "[rank] "; NULL: none. */
    int dies_by;       /* The signal that a process gets when the launcher ends; 0: SIGKILL. */
    const char *path;
    char *const *argv;
    sigset_t mask; /* Signals that a rank blocks. */
    int signals;   /* A descriptor that ends a wait, too; -1: none. */
    /* Whether a line of a process's standard output is for the launcher itself, which then does
     * not pass it on. NULL: no line is. */
    bool (*takes)(void *ctx, int rank, const char *line);
    void *ctx;
    lt_process *all; /* (n) */
    struct pollfd *polls;
} lt_processes;

/* The caller sets the other fields. */
LT_MUST_USE lt_err lt_processes_open(lt_processes *p, int n);
void lt_processes_close(lt_processes *p);
/* Reset: no process runs, and no output of an earlier attempt is left. */
void lt_processes_clear(lt_processes *p);
/* Start a process. input: its standard input begins with this text, and stays open; NULL: it is
 * empty. */
LT_MUST_USE lt_err lt_process_start(lt_processes *p, int rank, char *const *environment,
                                    const char *input);
/* Send a signal to the process groups of all ranks that run; SIGKILL also to processes that ended
 * ranks have left behind. */
void lt_processes_signal(const lt_processes *p, int number);
/* Wait at most ms for output or a signal, and pass on output. False: no pipe is open any more. */
bool lt_processes_wait(lt_processes *p, int ms);
bool lt_processes_run(const lt_processes *p); /* Whether any runs. */
/* The signal of this set that has ended one of them; 0: none. */
int lt_processes_ended_by(const lt_processes *p, const sigset_t *set);
/* The status of those that have ended: 128 + N if signal N ended one, else the last one that is not
 * 0. */
int lt_processes_status(const lt_processes *p);
/* Send SIGKILL to its group, including processes that it has left behind, without waiting for its
 * end. */
void lt_process_kill(const lt_processes *p, int rank);
/* End a running process, and pass on the rest of its output. */
void lt_process_end(lt_processes *p, int rank);
/* Pass on the output that has arrived, then close all pipes. */
void lt_processes_drain(lt_processes *p);

#endif
