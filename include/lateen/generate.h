/* generate.h: generate text with a model, streaming each piece as soon as it is final.
 *
 *     lt_generate_options o = lt_generate_defaults();
 *     o.max_tokens = 100;
 *     lt_generate(session, tokenizer, "Once upon a time", &o, on_text, NULL, &stats);
 */
#ifndef LATEEN_GENERATE_H
#define LATEEN_GENERATE_H

#include "lateen/model.h"
#include "lateen/sampling.h"
#include "lateen/tokenizer.h"

/* ---- What the files of a model specify ---- */

/* Tokens that end a text of this model: those of generation_config.json, else of config.json (or of
 * the GGUF), and those of its tokenizer (t may be NULL). */
void lt_model_ends(const lt_model *m, const lt_tokenizer *t, lt_ends *out);

/* Sampling parameters for users who give none, from generation_config.json or a GGUF's
 * general.sampling.*. Their names are those of options and requests: temperature, top_k, top_p,
 * min_p, typical_p, repetition_penalty, max_tokens. Faulty parameters, and those that Lateen does
 * not apply, are reported in the log. */
#define LT_MAX_GENERATION_DEFAULTS 8
typedef struct {
    struct {
        const char *name;
        double value;
    } rows[LT_MAX_GENERATION_DEFAULTS];
    int n;
    const char *from; /* Path of the file; lives as long as the model. */
} lt_generation_defaults;
lt_generation_defaults lt_model_generation(const lt_model *m);

/* ---- Generating ---- */

typedef struct {
    lt_sampling sampling;
    int64_t max_tokens;    /* Most new tokens; the space left in the session is a limit, too. */
    bool ignore_eos;       /* Continue after the end-of-text and end-of-turn tokens. */
    unsigned encode_flags; /* LT_ENCODE_*: how the prompt becomes ids. */
    /* A chat template wrote the prompt: BOS is added unless the template has written it. */
    bool is_chat;
    bool keep_special; /* The text includes special tokens. */
    /* NULL: the prompt is appended to sequence 0 of the session, whose earlier tokens are unknown,
     * so penalties do not count them. Else the tokens that sequence 0 holds, perhaps with more
     * after them: the prompt is then the whole text so far, the session keeps the common beginning
     * of both, and *tokens becomes the prompt and the new tokens (without an ending token). */
    lt_ids *tokens;
} lt_generate_options;

/* Greedy, 128 tokens, LT_ENCODE_DEFAULT. */
lt_generate_options lt_generate_defaults(void);

typedef enum { LT_STOP_EOS, LT_STOP_LENGTH, LT_STOP_CALLER } lt_stop_reason;

typedef struct {
    int64_t prompt_tokens, new_tokens;
    double prompt_s, new_s; /* Time to the first logits; time of all tokens after the first. */
    lt_stop_reason stop;
} lt_generate_stats;

/* Called with each piece of text (valid UTF-8, not 0-terminated); false stops the generation. */
typedef bool (*lt_text_fn)(void *ctx, const char *text, size_t bytes);

/* Append the prompt to sequence 0 of the session (or see o->tokens) and generate. An empty sequence
 * with an empty prompt starts from BOS (or, if there is none, EOS). stats may be NULL. */
LT_MUST_USE lt_err lt_generate(lt_session *s, const lt_model *m, const lt_tokenizer *t,
                               const char *prompt, const lt_generate_options *o, lt_text_fn on_text,
                               void *ctx, lt_generate_stats *stats);

#endif
