/* rollout.h: draws answers from the model that is being trained, with the serving engine in the
 * same process.
 *
 *     lt_rollouts_open(&r, model, &options)    an engine over the trainer's own weights, at rest
 *     lt_rollouts_draw(r, &asked, out, &stats) refresh what the engine derives from the weights,
 *                                              draw a group of answers to each question, rest
 *     ... the weights change in place ...
 *
 * Between two calls no step of the engine runs and no weight is read.
 *
 * REPRODUCIBLE   All questions of a draw are submitted while the engine is at rest, and no page
 *                outlives a draw. So the steps of the engine, and with them every bit of the
 *                answers, are a function of the weights, the questions and their seeds. Token p of
 *                answer c to a question is a function of (seed of the question, c, p).
 * NOT TRUNCATED  Answers are drawn from the model's whole distribution, at a temperature. Sampling
 *                that leaves tokens out (top-k, top-p, min-p), and penalties, draw from another
 *                distribution than the one whose probabilities the trainer computes, which biases
 *                every ratio. So there is no option for them, and those of the model's
 *                generation_config.json are not applied. */
#ifndef LT_ALIGN_ROLLOUT_H
#define LT_ALIGN_ROLLOUT_H

#include "lateen/serve.h"
#include "lateen/tokenizer.h"

/* An answer. Its tokens include the one that ended it. */
typedef struct {
    int32_t *ids; /* (n) */
    float *logp;  /* (n) natural logarithms of the engine's probabilities, at temperature 1. */
    int64_t n;
    bool ended; /* The model ended it; false: it reached the limit. */
} lt_answer;

/* The text of an answer without the token that ended it; free it. A model whose vocabulary is
 * larger than the tokenizer's can choose ids without a text: they are left out, as in transformers'
 * decode. */
LT_MUST_USE lt_err lt_answer_text(char **text, const lt_answer *a, const lt_tokenizer *t);

typedef struct {
    const int32_t *prompt; /* (n_prompt) */
    int64_t n_prompt;
    uint64_t seed;
} lt_question;

/* The arguments of one draw. */
typedef struct {
    const lt_question *questions; /* (n) */
    int64_t n, group;             /* Number of questions, and of answers to each. */
    bool greedy;                  /* Take the most likely tokens, for an evaluation. */
} lt_rollout_args;

typedef struct {
    int64_t max_tokens; /* Most tokens of an answer. */
    int64_t max_seq;    /* Most tokens of question and answer together. */
    int64_t questions;  /* Most questions of a call. */
    int64_t running;    /* Most answers that the engine draws at once. */
    double temperature; /* Temperature at which answers are drawn; above 0. */
    lt_ends ends;       /* Tokens that end an answer. */
    /* The bits of an answer do not depend on the other answers of the draw. */
    bool exact;
    int tp; /* exact: the bits are those of this many ranks of tp; 0 or 1: of one. */
} lt_rollout_options;

typedef struct {
    double refresh_s; /* Seconds until the engine ran with the new weights. */
    double draw_s;    /* Seconds of everything else. */
    int64_t prompt_tokens, new_tokens;
    uint64_t version; /* Version of the weights that drew the answers. */
} lt_rollout_stats;

typedef struct lt_rollouts lt_rollouts;

/* The model must outlive it. UNSUPPORTED: max_seq exceeds the length from which the model rotates
 * whole texts differently (longrope). Free with lt_rollouts_close, which accepts NULL. */
LT_MUST_USE lt_err lt_rollouts_open(lt_rollouts **out, const lt_model *m,
                                    const lt_rollout_options *o);
void lt_rollouts_close(lt_rollouts *r);

/* rollouts: an lt_rollouts. answers (n * group): those of question i begin at i * group; valid
 * until the next call. If a GPU computes the updates, the caller has waited for it. Fails with the
 * engine's error if an answer failed. */
LT_MUST_USE lt_err lt_rollouts_draw(void *rollouts, const lt_rollout_args *asked,
                                    lt_answer *answers, lt_rollout_stats *stats);

/* Bytes of the cache of keys and values. */
size_t lt_rollouts_cache_bytes(const lt_rollouts *r);

#endif
