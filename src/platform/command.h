/* command.h: run a program of the machine, such as Slurm's scontrol, and read what it prints. */
#ifndef LT_PLATFORM_COMMAND_H
#define LT_PLATFORM_COMMAND_H

#include <stddef.h>

#include "lateen/base.h"

/* Run words[0], found in PATH, without a shell; words ends with NULL. *out: its standard output, of
 * at most 64 MiB, followed by a 0; free it. Its other messages go to our standard error. NOT_FOUND:
 * there is no such program; REMOTE: it ended with another status than 0, or has not ended after
 * deadline_s, and was killed with what it started. It has a process group of its own. */
LT_MUST_USE lt_err lt_command_run(char **out, const char *const *words, double deadline_s);

#endif
