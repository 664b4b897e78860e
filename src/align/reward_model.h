/* reward_model.h: scores answers with a reward model: a model with a score head of one value
 * (transformers' AutoModelForSequenceClassification), run by the serving engine as in `lateen serve
 * --reward`.
 *
 *     messages of the problem and the answer ──its own template──▶ tokens ──engine──▶ score
 *
 * The score is the head's value, without an activation, at the last token that is not padding. For
 * a process reward model it is the lowest probability of any step to be good; steps are divided and
 * read as `lateen serve --reward` does by default (serve/api/align/judge.h). The reward model has a
 * tokenizer and a template of its own, which need not be the judged model's.
 *
 * REPRODUCIBLE   Texts are submitted while the engine is at rest, and no page outlives a call, so
 *                the bits of the scores are a function of the texts. The cache has the size that
 *                the steps need, or half of the free memory if that is less. */
#ifndef LT_ALIGN_REWARD_MODEL_H
#define LT_ALIGN_REWARD_MODEL_H

#include <jansson.h>

#include "lateen/device.h"
#include "lateen/serve.h"

typedef struct lt_reward_model lt_reward_model;

/* longest: the most tokens of a text, lowered to the model's number of positions. UNSUPPORTED: the
 * model has neither a score head of one value nor one that judges steps. NOT_FOUND: it has no chat
 * template. It runs in F32, and on a GPU in BF16. Free with lt_reward_model_close, which accepts
 * NULL. */
LT_MUST_USE lt_err lt_reward_model_open(lt_reward_model **out, const char *path, lt_device *device,
                                        int64_t longest);
void lt_reward_model_close(lt_reward_model *m);

/* Scores (n) of answers: conversations[i] is a list of messages, and texts[i] the assistant's
 * answer to it. LIMIT: a text is too long; ARG: the template refuses the conversation. */
LT_MUST_USE lt_err lt_reward_model_judge(lt_reward_model *m, const json_t *const *conversations,
                                         const char *const *texts, int64_t n, double *scores);

/* Host memory that it takes: weights and cache. */
size_t lt_reward_model_bytes(const lt_reward_model *m);

#endif
