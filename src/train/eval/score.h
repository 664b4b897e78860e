/* score.h: the log-probability of a continuation after a context. Every evaluation is based on
 * it. */
#ifndef LT_TRAIN_SCORE_H
#define LT_TRAIN_SCORE_H

#include "lateen/eval.h"

typedef struct {
    double log_prob; /* Sum over the continuation's tokens. */
    bool greedy;     /* Each of them was the most likely one. */
    int64_t n_tokens;
} lt_score;

typedef struct {
    const lt_eval_options *options;
    lt_session *session;
    lt_tokenizer_scratch *scratch;
    int64_t seq;
    int32_t first_id; /* The first token of an empty context: BOS, else EOS, else 0. */
    int32_t *cached;  /* (seq) tokens the session holds, so that a shared beginning is read once. */
    int64_t n_cached;
    lt_ids whole, context;
    float *loss;   /* (seq) */
    int32_t *best; /* (seq) */
} lt_scorer;

LT_MUST_USE lt_err lt_scorer_open(lt_scorer *s, const lt_eval_options *o);
void lt_scorer_close(lt_scorer *s);

/* Context and continuation are encoded together, with BOS if the tokenizer adds one, and cut where
 * the context's own encoding ends, as lm-evaluation-harness does (_encode_pair); spaces at the
 * context's end go to the continuation. A pair longer than seq loses its beginning. */
LT_MUST_USE lt_err lt_score_pair(lt_scorer *s, const char *context, const char *continuation,
                                 lt_score *out);

/* Score tokens [first, n) of ids (n), n <= seq and first > 0. */
LT_MUST_USE lt_err lt_score_tokens(lt_scorer *s, const int32_t *ids, int64_t n, int64_t first,
                                   lt_score *out);

#endif
