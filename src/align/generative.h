/* generative.h: tasks that a model answers with a text, scored by the rules of
 * lm-evaluation-harness:
 *
 *     gsm8k    problems of arithmetic (data/check/gsm8k.h): exact_match by two filters
 *     ifeval   instructions (data/check/ifeval.h): strict and loose accuracy of prompts and of
 *              instructions
 *     humaneval, mbpp
 *              programs (code_tasks.h): pass@k of `samples` responses to each question, the
 *              estimator of Chen et al. 2021 (data/check/score.h)
 *     problems of `lateen data make` (problem_task.h): pass@k and maj@k, by our own rules
 *
 * Prompts, solved examples, stop strings and limits are the harness's, too. Answers are greedy
 * unless the request says otherwise. A file of responses may take the place of the model, so that
 * Lateen and the harness can score the same texts. */
#ifndef LT_ALIGN_GENERATIVE_H
#define LT_ALIGN_GENERATIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "align/local_requests.h"
#include "align/unit_tests.h"

#define LT_GENERATIVE_TASKS  "gsm8k, ifeval, humaneval, mbpp, problems"
#define LT_GENERATIVE_SHOTS  64
#define LT_GENERATIVE_K      4
#define LT_GENERATIVE_SCORES 8

typedef struct {
    const char *task;
    const char *data;     /* Lines of the task, plain, .gz or .zst. */
    const char *examples; /* gsm8k and mbpp with shots: solved problems. */
    /* Lines with "response" (for code also "completion"), `samples` of them per question; NULL: ask
     * the model. */
    const char *responses;
    const char *outputs;  /* Write each question's response and scores to this file; NULL: none. */
    int64_t shots, limit; /* limit 0: all questions. */
    const char *nltk;     /* ifeval: NLTK's data folder; NULL: not present. */
    bool chat;            /* Use the model's chat template. */
    int64_t max_tokens;   /* Most tokens of a response; 0: as many as the harness allows. */
    int64_t max_running;
    int64_t samples;        /* Tasks with pass@k: responses per question; else 1. */
    int k[LT_GENERATIVE_K]; /* Sizes for pass@k and maj@k, (n_k), each at most samples. */
    int n_k;
    lt_unit_tests_options tests;
    /* Fields that every request has beside its prompt; NULL: none. With a temperature among them
     * answers are sampled instead of greedy, and also with "alignment", whose candidates are drawn
     * at temperature 1. */
    const json_t *request;
    const char *model; /* Its path. The following members are as in lt_local_requests. */
    lt_err (*load)(void *ctx, lt_model **model, lt_tokenizer **tokenizer);
    lt_err (*load_reward)(void *ctx, lt_model **model, lt_tokenizer **tokenizer);
    const char *reward;
    const lt_model *const *beside;
    const char *const *second;
    int n_beside;
    void (*progress)(void *ctx, int64_t done, int64_t of); /* May be NULL. */
    void *ctx;
} lt_generative_options;

typedef struct {
    const char *task;
    int64_t questions;
    /* Mean tokens of an answer, including everything that was written for it; 0: the model was not
     * asked. */
    double tokens;
    int n; /* Scores: name, mean, standard error of the mean, and number of values. */
    struct {
        char name[40];
        double mean, error;
        int64_t of;
    } scores[LT_GENERATIVE_SCORES];
    int64_t unscored; /* ifeval: instructions that need missing data. */
} lt_generative_result;

/* Whether it is one of these tasks. */
bool lt_generative_has(const char *task);
/* Whether it takes several responses per question, and runs programs. */
bool lt_generative_samples(const char *task);
bool lt_generative_runs(const char *task);
LT_MUST_USE lt_err lt_generative_run(lt_generative_result *out, const lt_generative_options *o);

#endif
