/* score_ends.h: the second layer of a score head of two (lt_model_spec.score_ends): Linear, ReLU,
 * Linear, as in Qwen2ForProcessRewardModel.
 *
 *     model ──▶ n_scores values of a token (SCORE, SCORE_BIAS) ──ReLU──▶ W x + b: score_ends values
 *
 * The first layer is the model's output head. The second has a few thousand products for each token
 * whose score is wanted, so it is computed on the host, in F32. */
#ifndef LT_MODEL_SCORE_ENDS_H
#define LT_MODEL_SCORE_ENDS_H

#include "model/params.h"
#include "model/files/source.h"

/* Read score.2.weight and score.2.bias into m->score_ends. */
LT_MUST_USE lt_err lt_score_ends_read(lt_model *m, const lt_source *s);
/* Compute out (lt_model_spec_says) from the values of the first layer for a token. For a head of
 * one layer, copy them. */
void lt_score_ends_of(const lt_model *m, const float *values, float *out);

#endif
