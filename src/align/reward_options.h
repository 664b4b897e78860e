/* reward_options.h: the names of the rewards (reward.h) that need no sandbox, for the help texts of
 * options. */
#ifndef LT_ALIGN_REWARD_OPTIONS_H
#define LT_ALIGN_REWARD_OPTIONS_H

#define LT_REWARD_NAMES "answer, found, think, schema, ended, length, overlong, model, command"

#endif
