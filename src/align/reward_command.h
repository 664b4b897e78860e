/* reward_command.h: rewards that a program of the user gives.
 *
 *     to it     {"id": 0, "completion": "...", ...}   see reward.h: one JSON object a line
 *     from it   0.5    or    {"reward": 0.5}    or    null     one line for each, in their order
 *
 * null says that the command has no opinion about this answer. The program is started once, by
 * /bin/sh, and must write each line out as soon as it has one (Python: print(x, flush=True)). Its
 * standard error is that of this process. SIGUSR1 and SIGUSR2 are blocked in it. It is an error if
 * the program ends, gives no line within the time limit, or gives any other line than the above;
 * the message names the command, the answer and the line. */
#ifndef LT_ALIGN_REWARD_COMMAND_H
#define LT_ALIGN_REWARD_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct lt_reward_command lt_reward_command;

/* limit_s: seconds that the program may take for one line. The string must outlive it. */
LT_MUST_USE lt_err lt_reward_command_open(lt_reward_command **out, const char *command,
                                          double limit_s);
/* Closes its input, and kills it and its children if it does not end soon. Accepts NULL. */
void lt_reward_command_close(lt_reward_command *c);

/* Send n lines, lines[0..bytes) with a line feed after each, and read as many answers: rewards (n)
 * and given (n), false for null. IO: the program ended or hangs; FORMAT: its line is not a reward;
 * NUMERIC: the reward is not finite. */
LT_MUST_USE lt_err lt_reward_command_ask(lt_reward_command *c, const char *lines, size_t bytes,
                                         int64_t n, double *rewards, bool *given);

#endif
