/* eval.h: how good is a model? Loss, perplexity and bits per byte on text; multiple choice and
 * last-word prediction on the field's tasks, by lm-evaluation-harness's method, so that the numbers
 * compare. */
#ifndef LATEEN_EVAL_H
#define LATEEN_EVAL_H

#include "lateen/model.h"
#include "lateen/tokenizer.h"

/* Called now and then with items done and in all (0: unknown). May be NULL. */
typedef void (*lt_eval_progress)(void *ctx, int64_t done, int64_t all);

typedef struct {
    const lt_model *model;
    const lt_tokenizer *tokenizer;
    int64_t seq;   /* Tokens the model sees at once; 0: the model's longest, at most 2048. */
    int64_t limit; /* Items at most; 0: all. */
    int64_t shots; /* MMLU: worked examples before each question. */
    lt_eval_progress progress;
    void *ctx;
} lt_eval_options;

/* ---- Text ----
 * Every token is predicted once, in windows of `seq` tokens, each begun by the last token of the
 * one before (the first by BOS or EOS); the last window begins so early that it is as long as the
 * others. As loglikelihood_rolling does without BOS of the tokenizer's. */
typedef struct {
    double loss;          /* Nats a token. */
    double perplexity;    /* exp(loss) */
    double bits_per_byte; /* Nats in all / ln 2 / bytes of text. */
    int64_t tokens, bytes, documents;
} lt_eval_text_result;

LT_MUST_USE lt_err lt_eval_text(lt_eval_text_result *out, const lt_eval_options *o,
                                const char *const *paths, int n_paths);

/* ---- Tasks ---- */
#define LT_EVAL_TASKS "arc_easy, arc_challenge, piqa, winogrande, openbookqa, mmlu, lambada"

typedef struct {
    const char *task;
    int64_t items;
    double accuracy; /* Highest sum of log-probabilities; lambada: the greedy text is the target. */
    double accuracy_stderr; /* Of a mean of n draws: sqrt(p (1 - p) / (n - 1)). */
    /* Highest sum divided by the characters of the choice; NaN where the harness has none. */
    double accuracy_normalised;
    double perplexity; /* lambada: exp(-mean log-probability of the target); else NaN. */
} lt_eval_task_result;

/* data: the task's file (MosaicML's JSON lines; MMLU: a folder or tar with dev/ and test/), plain,
 * .gz or .zst. */
LT_MUST_USE lt_err lt_eval_task(lt_eval_task_result *out, const lt_eval_options *o,
                                const char *task, const char *data);

#endif
