/* beam.h: beam search over the choices of one request: the texts that are followed, those that have
 * ended, and when the search is done. A plain struct; step_beam.c moves the engine's sequences.
 *
 *     the n_top likeliest next tokens of each beam ─▶ all ordered by their sums
 *         an ending among the first `width` ─▶ a text, scored; the `width` best texts are kept
 *         the first `width` that are not endings ─▶ the beams of the next step
 *
 * If n_endings tokens end a text, width + n_endings candidates of a beam suffice: at least `width`
 * of them go on. The rules are those of transformers' generate (5.24, _beam_search). The score of
 * a text is sum / n^length_penalty, where n counts its tokens with the ending. The search is done
 * when `width` texts have ended and the best beam, scored as if it ended now (NEVER, with a
 * positive penalty: as if it ended at max_tokens), is no better than the worst of them; with FIRST,
 * when `width` texts have ended; and at max_tokens in any case. */
#ifndef LT_SERVE_BEAM_H
#define LT_SERVE_BEAM_H

#include "lateen/serve.h"
#include "model/infer/sampler.h"

/* Log-probabilities of a row of tokens: (n), (n, n_top). NULL where not requested. */
typedef struct {
    float *logprob, *entropy; /* (n) */
    lt_candidate *top;
    int32_t *n_top, *rank; /* rank: number of more likely ids. */
} lt_logprobs;

/* The output of a choice: (max_tokens) tokens, their log-probabilities, and the weights that chose
 * each. */
typedef struct {
    int32_t *tokens;
    lt_logprobs logprobs;
    uint64_t *versions;
} lt_output;

void lt_logprobs_carve(lt_logprobs *l, int64_t n, int n_top, bool entropy, lt_arena *a);
/* Report those of token `at`, of up to n_top alternatives, if there are any. */
void lt_logprobs_tell(const lt_logprobs *l, int64_t at, int n_top, lt_event *e);
/* Write token `at`. n_top: number of alternatives to keep. */
void lt_output_put(lt_output *o, int64_t at, int n_top, const lt_pick *pick, uint64_t version);
/* Copy the first n tokens. */
void lt_output_copy(lt_output *to, const lt_output *from, int64_t n, int n_top);

/* A beam's text with one more token. */
typedef struct {
    double sum; /* Sum of log-probabilities. */
    int32_t beam, id;
    float logprob;
} lt_beam_next;

typedef struct {
    double score;
    int64_t n;
    lt_finish finish;
    lt_output output;
} lt_beam_text;

typedef struct {
    lt_beam_search how;
    int width, n_top, n_all, n_next, n_texts;
    bool *live, *ready;  /* (width): the beam runs; its candidates of this step are known */
    double *sums;        /* (width) */
    lt_pick *picks;      /* (width) candidates: top */
    lt_beam_next *all;   /* (width * n_top) in order */
    lt_beam_next *next;  /* (width) */
    lt_beam_text *texts; /* (width) ended, the best first */
    int32_t *places;     /* (width), of `next`: the choice that each becomes */
} lt_beam;

/* Number of candidates per beam. */
int lt_beam_candidates(const lt_request *r, int64_t n_endings);
/* b is zeroed at both calls. */
void lt_beam_carve(lt_beam *b, const lt_request *r, int64_t n_endings, lt_arena *a);
/* All beams are ready: sort their candidates. */
void lt_beam_order(lt_beam *b);
/* Where to write a text of n tokens with this sum of log-probabilities; NULL: it is worse than the
 * `width` existing texts. */
lt_beam_text *lt_beam_add_text(lt_beam *b, double sum, int64_t n);
/* Whether the search is done after n tokens of at most max_tokens. */
bool lt_beam_done(const lt_beam *b, int64_t n, int64_t max_tokens);

#endif
