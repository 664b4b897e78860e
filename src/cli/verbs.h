/* verbs.h: the table of verbs; a new verb is a row in verbs.c and a file. */
#ifndef LT_CLI_VERBS_H
#define LT_CLI_VERBS_H

#include <stddef.h>

#include "cli/verb.h"

#define LT_MAX_VERBS 32

extern const lt_verb lt_verbs[];
extern const size_t lt_n_verbs;

#endif
