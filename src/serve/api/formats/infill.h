/* infill.h: prompts that ask a model for what stands between two texts, for llama-server's /infill
 * and the suffix of completions.
 *
 *   [REPOSITORY]myproject\n  [FILE]name\n extra text ...  [FILE]filename\n     /infill only, and
 *                                                           the tokens that the model has
 *   [BOS] [PREFIX] prefix prompt  [SUFFIX] suffix  [MIDDLE]
 *
 * This is llama-server's layout (arXiv:2409.12186, section 3.1). An answer also ends at tokens that
 * begin another file. */
#ifndef LT_SERVE_INFILL_H
#define LT_SERVE_INFILL_H

#include "serve/api/reply.h"

typedef struct {
    const char *prefix, *suffix;
    const json_t *prompt; /* The beginning of the answer, which is continued; NULL: none. */
    const json_t *extra;  /* [{filename, text}, ...] */
    bool files;           /* Name the repository and the file. */
    /* Long texts are cut to what is near the gap. As llama-server does, of a window of 2048 tokens,
     * or of the context if that is less, three quarters are for the end of the prefix and one for
     * the beginning of the suffix; extra texts have the rest of the context but for the answer. */
    bool cut;
} lt_infill;

/* Whether the text before the field 'suffix' is to be continued up to it. */
static inline bool lt_infill_is_asked(const lt_api_params *a) {
    return a->suffix != NULL && a->suffix[0] != '\0';
}

/* Add the prompt to the reply. If the model has no such tokens, fail with their names: 501, or 400
 * with param. */
bool lt_infill_add(lt_reply *j, const lt_infill *f, const char *param, lt_api_error *e);

#endif
