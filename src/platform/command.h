/* command.h: runs a program of the machine, such as Slurm's scontrol, and reads what it prints:
 * either waits for its end, or checks from time to time whether it has ended. */
#ifndef LT_PLATFORM_COMMAND_H
#define LT_PLATFORM_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lateen/base.h"

/* Run words[0], found in PATH, without a shell; words ends with NULL. *out: its standard output, of
 * at most 64 MiB with the 0 that follows it; free it. Its messages on standard error go to ours
 * if it succeeded, otherwise into our error message, so that a caller that calls repeatedly
 * decides whether they are shown. NOT_FOUND: there is no such program; REMOTE: it ended with
 * another status than 0, or has not ended after deadline_s; LIMIT: it prints more. In the last
 * two cases it was killed, with the processes that it started. It has its own process group. */
LT_MUST_USE lt_err lt_command_run(char **out, const char *const *words, double deadline_s);

/* A program that runs in the background; {0}: none. */
typedef struct {
    pid_t pid; /* 0: none runs. */
    int output;
    double end_s;
} lt_command;

/* Start words[0] as above; its output and its messages are read together. NOT_FOUND: there is no
 * such program. */
LT_MUST_USE lt_err lt_command_begin(lt_command *c, const char *const *words, double deadline_s);
/* Whether it has ended. Then *said is its output, of at most 64 MiB, followed by a 0: free it;
 * NULL: out of memory. *status is its exit status; -1: a signal ended it, or the deadline did. */
LT_MUST_USE bool lt_command_has_ended(lt_command *c, char **said, int *status);
/* Wait until it has ended. */
void lt_command_wait(lt_command *c, char **said, int *status);
/* Forget a program that still runs and may continue. Accepts {0}. */
void lt_command_forget(lt_command *c);

#endif
