/* reward_options.h: the names of reward.h that need no sandbox, for the help of options that take a
 * sum of them. */
#ifndef LT_ALIGN_REWARD_OPTIONS_H
#define LT_ALIGN_REWARD_OPTIONS_H

#define LT_REWARD_NAMES "answer, found, think, schema, ended, length, overlong, model, command"

#endif
