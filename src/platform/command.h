/* command.h: run a program of the machine, such as Slurm's scontrol, and read what it prints:
 * either wait for its end, or check from time to time whether it has ended. */
#ifndef LT_PLATFORM_COMMAND_H
#define LT_PLATFORM_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lateen/base.h"

/* Run words[0], found in PATH, without a shell; words ends with NULL. *out: its standard output, of
 * at most 64 MiB with the 0 that follows it; free it. Its other messages go to our standard error
 * if it succeeded, else into our error message, so that a caller that calls repeatedly decides
 * whether they are shown. NOT_FOUND: there is no such program; REMOTE: it ended with another status
 * than 0, or has not ended after deadline_s; LIMIT: it prints more. In the last two cases it was
 * killed, with the processes that it started. It has its own process group. */
LT_MUST_USE lt_err lt_command_run(char **out, const char *const *words, double deadline_s);

/* A program that runs while its caller does something else; {0}: none. */
typedef struct {
    pid_t pid; /* 0: none runs. */
    int output;
    double end_s;
} lt_command;

/* Start words[0] as above; its output and its messages are kept together. NOT_FOUND: there is no
 * such program. */
LT_MUST_USE lt_err lt_command_begin(lt_command *c, const char *const *words, double deadline_s);
/* Has it ended? Then *said is what it printed, of at most 64 MiB, followed by a 0: free it; NULL:
 * out of memory. *status is its exit status; -1: a signal ended it, or the deadline did. */
LT_MUST_USE bool lt_command_has_ended(lt_command *c, char **said, int *status);
/* Wait for that. */
void lt_command_wait(lt_command *c, char **said, int *status);
/* Forget one that still runs, and goes on. Accepts none. */
void lt_command_forget(lt_command *c);

#endif
