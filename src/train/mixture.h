/* mixture.h: parses "a:0.7,b:0.3" into the loader's sources. */
#ifndef LT_TRAIN_MIXTURE_H
#define LT_TRAIN_MIXTURE_H

#include "base/option.h"
#include "lateen/data.h"

typedef struct {
    char text[LT_OPTION_STR_BYTES]; /* Holds the paths. */
    lt_loader_source sources[LT_LOADER_SOURCES_MAX];
    int64_t n_sources;
    char *made[LT_LOADER_SOURCES_MAX]; /* For conversations, the path of their shard; else NULL. */
} lt_mixture;

/* PATH[:WEIGHT],...; a missing weight is 1. option names the recipe's key in messages. */
LT_MUST_USE lt_err lt_mixture_parse(lt_mixture *out, const char *text, const char *option);
void lt_mixture_close(lt_mixture *m); /* Needed if paths were replaced (chat_data.h). */

#endif
