/* generate.h: text from a model: choose tokens from logits, stream the text as it becomes certain.
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

/* ---- What a model's own files say ---- */

/* Tokens that end a text of this model: generation_config.json's, else config.json's (or GGUF's),
 * and those that its tokenizer knows (t may be NULL). */
void lt_model_ends(const lt_model *m, const lt_tokenizer *t, lt_ends *out);

/* How tokens are chosen where nobody says: generation_config.json, or a GGUF's general.sampling.*.
 * Names are those of options and requests: temperature, top_k, top_p, min_p, typical_p,
 * repetition_penalty, max_tokens. What is faulty, or not applied here, is told in the log. */
#define LT_MAX_GENERATION_DEFAULTS 8
typedef struct {
    struct {
        const char *name;
        double value;
    } rows[LT_MAX_GENERATION_DEFAULTS];
    int n;
    const char *from; /* The file; lives as long as the model. */
} lt_generation_defaults;
lt_generation_defaults lt_model_generation(const lt_model *m);

/* ---- Generating ---- */

typedef struct {
    lt_sampling sampling;
    int64_t max_tokens; /* New tokens at most; what is left of the session's room bounds it too. */
    bool ignore_eos;    /* Go on behind the end-of-text and end-of-turn tokens. */
    unsigned encode_flags; /* LT_ENCODE_*: how the prompt becomes ids. */
    bool is_chat;          /* The prompt is a template's: BOS in front unless it wrote one. */
    bool keep_special;     /* Special tokens in the text too. */
    /* What sequence 0 of the session holds, and perhaps more; then the prompt is the whole text so
     * far, the session keeps what both begin with, and *tokens becomes the prompt and the new
     * tokens (but no ending one). NULL: the prompt is appended to the sequence, whose tokens before
     * it are not known here: penalties do not see them. */
    lt_ids *tokens;
} lt_generate_options;

/* Greedy, 128 tokens, LT_ENCODE_DEFAULT. */
lt_generate_options lt_generate_defaults(void);

typedef enum { LT_STOP_EOS, LT_STOP_LENGTH, LT_STOP_CALLER } lt_stop_reason;

typedef struct {
    int64_t prompt_tokens, new_tokens;
    double prompt_s, new_s; /* Time until the first logits; time of all tokens behind the first. */
    lt_stop_reason stop;
} lt_generate_stats;

/* Called with each piece of text (valid UTF-8, not 0-terminated); false stops the generation. */
typedef bool (*lt_text_fn)(void *ctx, const char *text, size_t bytes);

/* Append the prompt to sequence 0 of the session (or see o->tokens) and generate. An empty sequence
 * and an empty prompt start from BOS (or, where there is none, EOS). stats may be NULL. */
LT_MUST_USE lt_err lt_generate(lt_session *s, const lt_model *m, const lt_tokenizer *t,
                               const char *prompt, const lt_generate_options *o, lt_text_fn on_text,
                               void *ctx, lt_generate_stats *stats);

#endif
