/* eval.h: evaluation of a model: loss, perplexity and bits per byte on text; multiple choice and
 * last-word prediction on the usual tasks, by the method of lm-evaluation-harness, so that the
 * numbers are comparable. */
#ifndef LATEEN_EVAL_H
#define LATEEN_EVAL_H

#include "lateen/model.h"
#include "lateen/tokenizer.h"

/* Called from time to time with the items done and their total (0: unknown). May be NULL. */
typedef void (*lt_eval_progress)(void *ctx, int64_t done, int64_t all);

typedef struct {
    const lt_model *model;
    const lt_tokenizer *tokenizer;
    /* Tokens in the model's context; 0: as many as the model allows, at most 2048. */
    int64_t seq;
    int64_t limit; /* Items to evaluate at most; 0: all. */
    int64_t shots; /* MMLU: worked examples before each question. */
    lt_eval_progress progress;
    void *ctx;
} lt_eval_options;

/* ---- Text ----
 * Every token is predicted once, in windows of `seq` tokens. A window's context begins with the
 * last token of the window before it (the first with BOS or EOS); the last window begins early
 * enough to be as long as the others. This is what the harness's loglikelihood_rolling does when
 * the tokenizer adds no BOS. */
typedef struct {
    double loss;          /* Nats per token. */
    double perplexity;    /* exp(loss) */
    double bits_per_byte; /* Total nats / ln 2 / bytes of text. */
    int64_t tokens, bytes, documents;
} lt_eval_text_result;

LT_MUST_USE lt_err lt_eval_text(lt_eval_text_result *out, const lt_eval_options *o,
                                const char *const *paths, int n_paths);

/* ---- Tasks ---- */
#define LT_EVAL_TASKS "arc_easy, arc_challenge, piqa, winogrande, openbookqa, mmlu, lambada"

typedef struct {
    const char *task;
    int64_t items;
    /* Fraction of items whose right choice has the highest sum of log-probabilities; lambada: whose
     * target is the greedy text. */
    double accuracy;
    double accuracy_stderr; /* Standard error of a mean of n draws: sqrt(p (1 - p) / (n - 1)). */
    /* The same with the sum divided by the choice's characters; NaN where the harness reports
     * none. */
    double accuracy_normalised;
    double perplexity; /* lambada: exp(-mean log-probability of the target); else NaN. */
} lt_eval_task_result;

/* data: the task's file (MosaicML's JSON lines; MMLU: a folder or tar with dev/ and test/), plain,
 * .gz or .zst. */
LT_MUST_USE lt_err lt_eval_task(lt_eval_task_result *out, const lt_eval_options *o,
                                const char *task, const char *data);

#endif
