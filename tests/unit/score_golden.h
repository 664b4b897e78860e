/* score_golden.h: for tests, the golden model with a score head, and two texts with the values that
 * transformers gives them (tools/make_objective_goldens.py). Include it after cmocka.h. */
#ifndef TESTS_SCORE_GOLDEN_H
#define TESTS_SCORE_GOLDEN_H

#include "base/error.h"
#include "model/params.h"
#include "model/files/safetensors.h"

#define SCORE_ROOT "tests/golden/objective/llama3/"

typedef struct {
    lt_safetensors file;
    lt_model *model;
    const int32_t *tokens, *ends; /* (2, seq); (2): the last token that is not padding. */
    const double *values;         /* (2). */
    int64_t seq;
} score_golden;

static inline const void *score_golden_data(const score_golden *g, const char *name) {
    const lt_safetensor *t = lt_safetensors_find(&g->file, name);
    assert_non_null(t);
    return t->data;
}

static inline void score_golden_open(score_golden *g, const lt_model_options *o) {
    *g = (score_golden){.seq = 0};
    if (lt_safetensors_open(&g->file, SCORE_ROOT "score.safetensors") != LT_OK ||
        lt_model_open(&g->model, SCORE_ROOT "score", o) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    g->tokens = score_golden_data(g, "tokens");
    g->ends = score_golden_data(g, "ends");
    g->values = score_golden_data(g, "values");
    g->seq = lt_safetensors_find(&g->file, "tokens")->shape[1];
}

static inline void score_golden_close(score_golden *g) {
    lt_model_close(g->model);
    lt_safetensors_close(&g->file);
}

#endif
