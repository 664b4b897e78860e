/* copying.h: how the command line makes copies: with a progress line, and so that SIGINT, SIGTERM
 * and SIGHUP stop a copy, which the same command then continues. It also fetches the models that
 * other verbs name by hf://, s3:// or https://. */
#ifndef LT_CLI_COPYING_H
#define LT_CLI_COPYING_H

#include "base/file.h"
#include "base/option.h"
#include "lateen/copy.h"

/* Show the progress of a copy made with these options; `json`: as lines of JSON on standard
 * output; `alone`: SIGINT, SIGTERM and SIGHUP stop the copy only; else they stop the copy, and
 * then have the effect that they had before. Ends with lt_copying_shown. */
void lt_copying_show(lt_copy_options *o, bool json, bool alone);
void lt_copying_shown(void);

/* The local path of a model or tokenizer, which is fetched if it is remote (lt_copy_bring). */
LT_MUST_USE lt_err lt_cli_bring(char out[LT_PATH_BYTES], const char *text);
/* The same for an option's value, in place. */
LT_MUST_USE lt_err lt_cli_bring_option(char value[LT_OPTION_STR_BYTES]);
/* The same for a mixture of data, PATH:WEIGHT,... (lt_copy_bring_data). streams: shards keep their
 * address, because they are fetched when they are read (data.cache). */
LT_MUST_USE lt_err lt_cli_bring_data(char value[LT_OPTION_STR_BYTES], bool streams);

#endif
