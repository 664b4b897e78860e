/* generate_aligned.h: `lateen generate --align JSON`: continues a prompt with a method of
 * alignment, in this process, with the server's code and table of methods
 * (serve/api/align/group_read.c). */
#ifndef LT_CLI_GENERATE_ALIGNED_H
#define LT_CLI_GENERATE_ALIGNED_H

#include "cli/beside.h"

typedef struct {
    lt_served served;
    const char *prompt, *align, *logit_bias; /* align: JSON, the field "alignment". */
    lt_engine_options engine;                /* Only its draft options have an effect. */
    int64_t max_tokens;
    bool ignore_eos, keep_special, own_defaults, echo, stats, json;
    /* The options of sampling: rows of this table for the struct obj, which was parsed from the
     * command line. An option that was not given has the model's own default, or else the
     * table's. */
    const lt_option_table *table;
    void *obj, *own; /* own: of the same type, to be filled with these defaults. */
    int argc;
    char **argv;
} lt_generate_aligned;

/* Print the answer's text; json: print the server's whole answer. */
LT_MUST_USE lt_err lt_generate_aligned_run(lt_generate_aligned *g);

#endif
