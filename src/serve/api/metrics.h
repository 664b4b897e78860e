/* metrics.h: the counters of /metrics, with vLLM's names and buckets where they exist, and also
 * llama-server's. Written and read on the loop's thread. */
#ifndef LT_SERVE_METRICS_H
#define LT_SERVE_METRICS_H

#include <stdint.h>

#include "lateen/serve.h"
#include "serve/grammar/keep.h"
#include "serve/http/http.h"
#include "platform/telemetry/exposition.h"

#define LT_METRIC_BUCKETS 32

typedef struct {
    const char *name, *help;
    const double *bounds; /* In ascending order; a last bucket +Inf follows. */
    int n_bounds;
    uint64_t counts[LT_METRIC_BUCKETS];
    uint64_t n;
    double sum;
} lt_histogram;

typedef enum {
    LT_HIST_TTFT,
    LT_HIST_ITL,
    LT_HIST_TPOT,
    LT_HIST_E2E,
    LT_HIST_QUEUE,
    LT_HIST_INFERENCE,
    LT_HIST_PREFILL,
    LT_HIST_DECODE,
    LT_HIST_PROMPT,
    LT_HIST_GENERATION,
    LT_HIST_MAX_GENERATION,
    LT_HIST_PARAMS_N,
    LT_HIST_PARAMS_MAX,
    LT_HIST_ITERATION,
    LT_HIST_COUNT
} lt_histogram_id;

typedef enum { LT_DONE_STOP, LT_DONE_LENGTH, LT_DONE_ABORT, LT_DONE_ERROR, LT_DONE_COUNT } lt_done;

typedef struct {
    lt_histogram h[LT_HIST_COUNT];
    uint64_t done[LT_DONE_COUNT];       /* Choices by their end. */
    uint64_t group_kept, group_dropped; /* Tokens of groups of candidates. */
    /* Tokens of candidates' texts that the reward model has read, */
    uint64_t reward_tokens;
    uint64_t judge_tokens; /* and that the served model has read as a judge. */
    uint64_t trial_tokens; /* Tokens of trials that control reasoning. */
    uint64_t http_requests, http_errors, refused;
    double prompt_s, generation_s;  /* llama-server's sums. */
    int64_t n_tokens_max;           /* Most tokens of one sequence, with prompt and answer. */
    lt_grammar_keep_stats grammars; /* As they are when the page is written. */
} lt_metrics;

/* A model on the page. */
typedef struct {
    const lt_metrics *counters;
    const char *name;
    int64_t page_tokens;
    bool prefix_cache;
    lt_engine_stats st;           /* Zeros while it is not loaded. */
    char label[560], labels[600]; /* Set by lt_metrics_write: its name; and the engine's. */
} lt_metrics_model;

void lt_metrics_init(lt_metrics *m);
void lt_metrics_observe(lt_metrics *m, lt_histogram_id id, double value);
/* Write the page in the format of out. Other families may follow, then lt_expo_end. of_server: with
 * the HTTP counters. */
void lt_metrics_write(lt_metrics_model *models, int n, const lt_metrics *of_server,
                      const lt_http_counts *http, lt_expo *out);

#endif
