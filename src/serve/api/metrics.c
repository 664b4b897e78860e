/* metrics.c: see metrics.h. Names, help texts and buckets are vLLM's (vllm/v1/metrics/loggers.py),
 * so that its dashboards work unchanged. */
#include "serve/api/metrics.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static const double ttft_s[] = {0.001, 0.005, 0.01, 0.02,  0.04,  0.06,  0.08, 0.1,
                                0.25,  0.5,   0.75, 1.0,   2.5,   5.0,   7.5,  10.0,
                                20.0,  40.0,  80.0, 160.0, 640.0, 2560.0};
static const double token_s[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                 0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
static const double request_s[] = {0.3,  0.5,   0.8,   1.0,   1.5,   2.0,    2.5,
                                   5.0,  10.0,  15.0,  20.0,  30.0,  40.0,   50.0,
                                   60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
static const double tokens[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
static const double iteration[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double choices[] = {1, 2, 5, 10, 20};

#define HIST(bounds, name, help)                                                                   \
    { name, help, bounds, (int)(sizeof bounds / sizeof *bounds), {0}, 0, 0 }

static const lt_histogram histograms[LT_HIST_COUNT] = {
    [LT_HIST_TTFT] = HIST(ttft_s, "vllm:time_to_first_token_seconds",
                          "Histogram of time to first token in seconds."),
    [LT_HIST_ITL] = HIST(token_s, "vllm:inter_token_latency_seconds",
                         "Histogram of inter-token latency in seconds."),
    [LT_HIST_TPOT] = HIST(token_s, "vllm:request_time_per_output_token_seconds",
                          "Histogram of time_per_output_token_seconds per request."),
    [LT_HIST_E2E] = HIST(request_s, "vllm:e2e_request_latency_seconds",
                         "Histogram of e2e request latency in seconds."),
    [LT_HIST_QUEUE] = HIST(request_s, "vllm:request_queue_time_seconds",
                           "Histogram of time spent in WAITING phase for request."),
    [LT_HIST_INFERENCE] = HIST(request_s, "vllm:request_inference_time_seconds",
                               "Histogram of time spent in RUNNING phase for request."),
    [LT_HIST_PREFILL] = HIST(request_s, "vllm:request_prefill_time_seconds",
                             "Histogram of time spent in PREFILL phase for request."),
    [LT_HIST_DECODE] = HIST(request_s, "vllm:request_decode_time_seconds",
                            "Histogram of time spent in DECODE phase for request."),
    [LT_HIST_PROMPT] = HIST(tokens, "vllm:request_prompt_tokens",
                            "Number of prefill tokens processed."),
    [LT_HIST_GENERATION] = HIST(tokens, "vllm:request_generation_tokens",
                                "Number of generation tokens processed."),
    [LT_HIST_MAX_GENERATION] = HIST(tokens, "vllm:request_max_num_generation_tokens",
                                    "Histogram of maximum number of requested generation tokens."),
    [LT_HIST_PARAMS_N] = HIST(choices, "vllm:request_params_n",
                              "Histogram of the n request parameter."),
    [LT_HIST_PARAMS_MAX] = HIST(tokens, "vllm:request_params_max_tokens",
                                "Histogram of the max_tokens request parameter."),
    [LT_HIST_ITERATION] = HIST(iteration, "vllm:iteration_tokens_total",
                               "Histogram of number of tokens per engine_step.")};

void lt_metrics_init(lt_metrics *m) {
    memset(m, 0, sizeof *m);
    memcpy(m->h, histograms, sizeof histograms);
}

void lt_metrics_observe(lt_metrics *m, lt_histogram_id id, double value) {
    lt_histogram *h = &m->h[id];
    int bucket = 0;
    LT_ASSERT(h->n_bounds < LT_METRIC_BUCKETS);
    while (bucket < h->n_bounds && value > h->bounds[bucket]) {
        bucket++;
    }
    h->counts[bucket]++;
    h->n++;
    h->sum += value;
}

/* The engine itself counts its steps by powers of two, which are the bounds here. */
static lt_histogram of_steps(const lt_histogram *empty, const lt_engine_stats *st) {
    lt_histogram h = *empty;
    int bucket = 0;
    for (int k = 0; k < LT_STEP_SIZES; k++) {
        while (bucket < h.n_bounds && (double)((int64_t)1 << k) > h.bounds[bucket]) {
            bucket++;
        }
        h.counts[bucket] += (uint64_t)st->steps_of[k];
        h.n += (uint64_t)st->steps_of[k];
    }
    h.sum = (double)st->steps_tokens;
    return h;
}

/* Write the samples of a family that has begun. */
static void write_histogram(const lt_metrics_model *model, lt_histogram_id id, lt_expo *out) {
    const lt_histogram *told = &model->counters->h[id];
    const lt_histogram h = id == LT_HIST_ITERATION ? of_steps(told, &model->st) : *told;
    lt_expo_buckets(out, model->labels, h.bounds, h.n_bounds, h.counts, h.sum);
}

static void write_done(const lt_metrics_model *models, int n, lt_expo *out) {
    static const char *const reasons[LT_DONE_COUNT] = {"stop", "length", "abort", "error"};
    lt_expo_family(out, LT_EXPO_COUNTER, "vllm:request_success_total",
                   "Count of successfully processed requests.");
    for (int i = 0; i < n * LT_DONE_COUNT; i++) {
        const lt_metrics_model *m = &models[i / LT_DONE_COUNT];
        const int reason = i % LT_DONE_COUNT;
        lt_expo_value(out, (double)m->counters->done[reason], "%s,finished_reason=\"%s\"",
                      m->labels, reasons[reason]);
    }
}

/* Tokens of candidates, by whether they were kept. */
static void write_groups(const lt_metrics_model *models, int n, lt_expo *out) {
    lt_expo_family(out, LT_EXPO_COUNTER, "lateen_alignment_tokens_total",
                   "Tokens of candidates, kept as the answer or dropped, of trials that control "
                   "reasoning, and those that the reward model or a judge read.");
    for (int i = 0; i < n; i++) {
        const lt_metrics *m = models[i].counters;
        const char *labels = models[i].labels;
        lt_expo_value(out, (double)m->group_kept, "%s,purpose=\"kept\"", labels);
        lt_expo_value(out, (double)m->group_dropped, "%s,purpose=\"dropped\"", labels);
        lt_expo_value(out, (double)m->trial_tokens, "%s,purpose=\"trial\"", labels);
        lt_expo_value(out, (double)m->reward_tokens, "%s,purpose=\"reward\"", labels);
        lt_expo_value(out, (double)m->judge_tokens, "%s,purpose=\"judge\"", labels);
    }
}

static double rate(double amount, double seconds) {
    return seconds > 0 ? amount / seconds : 0;
}

static void add_stats(lt_engine_stats *sum, const lt_engine_stats *st) {
    sum->prompt_tokens += st->prompt_tokens;
    sum->cached_tokens += st->cached_tokens;
    sum->new_tokens += st->new_tokens;
    sum->steps += st->steps;
    sum->running += st->running;
    sum->waiting += st->waiting;
    sum->pages += st->pages;
    sum->pages_used += st->pages_used;
}

/* llama-server's metrics have no labels: they are sums over the models. */
static void write_llama(const lt_metrics_model *models, int n, lt_expo *out) {
    static const char labels[] = "";
    lt_metrics sums = {.n_tokens_max = 0};
    lt_engine_stats totals = {0};
    for (int i = 0; i < n; i++) {
        add_stats(&totals, &models[i].st);
        sums.prompt_s += models[i].counters->prompt_s;
        sums.generation_s += models[i].counters->generation_s;
        if (models[i].counters->n_tokens_max > sums.n_tokens_max) {
            sums.n_tokens_max = models[i].counters->n_tokens_max;
        }
    }
    const lt_metrics *m = &sums;
    const lt_engine_stats *st = &totals;
    const double prompt = (double)(st->prompt_tokens - st->cached_tokens),
                 made = (double)st->new_tokens;
    lt_expo_one(out, LT_EXPO_COUNTER, "llamacpp:prompt_tokens_total", labels,
                "Number of prompt tokens processed.", prompt);
    lt_expo_one(out, LT_EXPO_COUNTER, "llamacpp:prompt_tokens_cached_total", labels,
                "Number of prompt tokens that the prefix cache held.", (double)st->cached_tokens);
    lt_expo_one(out, LT_EXPO_COUNTER, "llamacpp:prompt_seconds_total", labels,
                "Prompt process time.", m->prompt_s);
    lt_expo_one(out, LT_EXPO_COUNTER, "llamacpp:tokens_predicted_total", labels,
                "Number of generation tokens processed.", made);
    lt_expo_one(out, LT_EXPO_COUNTER, "llamacpp:tokens_predicted_seconds_total", labels,
                "Predict process time.", m->generation_s);
    lt_expo_one(out, LT_EXPO_COUNTER, "llamacpp:n_decode_total", labels, "Total number of steps.",
                (double)st->steps);
    lt_expo_one(out, LT_EXPO_COUNTER, "llamacpp:n_tokens_max", labels,
                "Longest sequence so far, in tokens.", (double)m->n_tokens_max);
    lt_expo_one(out, LT_EXPO_GAUGE, "llamacpp:n_busy_slots_per_decode", labels,
                "Average number of sequences that a step continues.",
                rate(made, (double)st->steps));
    lt_expo_one(out, LT_EXPO_GAUGE, "llamacpp:prompt_tokens_seconds", labels,
                "Average prompt throughput in tokens/s.", rate(prompt, m->prompt_s));
    lt_expo_one(out, LT_EXPO_GAUGE, "llamacpp:predicted_tokens_seconds", labels,
                "Average generation throughput in tokens/s.", rate(made, m->generation_s));
    lt_expo_one(out, LT_EXPO_GAUGE, "llamacpp:requests_processing", labels,
                "Number of requests processing.", (double)st->running);
    lt_expo_one(out, LT_EXPO_GAUGE, "llamacpp:requests_deferred", labels,
                "Number of requests deferred.", (double)st->waiting);
    lt_expo_one(out, LT_EXPO_GAUGE, "llamacpp:kv_cache_usage_ratio", labels,
                "KV-cache usage. 1 means 100 percent usage.",
                rate((double)st->pages_used, (double)st->pages));
}

/* Counters of the connections, which all models share. */
static void write_http(const lt_metrics_model *models, int n, const lt_metrics *m,
                       const lt_http_counts *http, lt_expo *out) {
    const char *labels = n == 1 ? models[0].labels : "engine=\"0\"";
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_http_requests_total", labels, "HTTP requests.",
                (double)m->http_requests);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_http_errors_total", labels,
                "HTTP requests that were refused or failed.", (double)m->http_errors);
    lt_expo_family(out, LT_EXPO_COUNTER, "lateen_queue_full_total",
                   "Requests refused because the queue was full.");
    for (int i = 0; i < n; i++) {
        lt_expo_value(out, (double)models[i].counters->refused, "%s", models[i].labels);
    }
    lt_expo_one(out, LT_EXPO_GAUGE, "lateen_connections", labels, "Open connections.",
                (double)http->connections);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_connections_refused_total", labels,
                "Connections answered 503 because all were in use.", (double)http->refused);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_connections_dropped_total", labels,
                "Idle connections closed to make room for others.", (double)http->dropped);
    lt_expo_one(out, LT_EXPO_GAUGE, "lateen_bodies_bytes", labels,
                "Memory of requests that are being read.", (double)http->bodies_bytes);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_bodies_refused_total", labels,
                "Requests answered 503 because the bodies of others took all memory for them.",
                (double)http->starved);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_requests_timed_out_total", labels,
                "Requests answered 408 because they did not come in time.",
                (double)http->timed_out);
}

/* Families of one number per model, in the order of the page. */
static const struct {
    lt_expo_type type;
    const char *name, *help;
    size_t offset; /* In lt_engine_stats, an int64_t. */
} numbers[] = {
#define STAT(type, name, help, field)                                                              \
    { LT_EXPO_##type, name, help, offsetof(lt_engine_stats, field) }
    STAT(GAUGE, "vllm:num_requests_running", "Number of requests in model execution batches.",
         running),
    STAT(GAUGE, "vllm:num_requests_waiting", "Number of requests waiting to be processed.",
         waiting),
    STAT(GAUGE, "lateen_background_running", "Of the running requests, those of batches.",
         background_running),
    STAT(GAUGE, "lateen_background_waiting", "Of the waiting requests, those of batches.",
         background_waiting),
    STAT(COUNTER, "vllm:prefix_cache_queries_total",
         "Prefix cache queries, in terms of number of queried tokens.", prompt_tokens),
    STAT(COUNTER, "vllm:prefix_cache_hits_total",
         "Prefix cache hits, in terms of number of cached tokens.", cached_tokens),
    STAT(GAUGE, "lateen_cache_host_pages", "Pages of a GPU's cache in host memory.", host_pages),
    STAT(COUNTER, "lateen_cache_host_written_pages_total", "Pages copied to host memory.",
         host_written),
    STAT(COUNTER, "lateen_cache_host_read_pages_total", "Pages copied back from host memory.",
         host_read),
    STAT(COUNTER, "lateen_cache_host_hits_total",
         "Tokens of prompts that came from host memory; the prefix cache's hits have them, too.",
         host_tokens),
    STAT(GAUGE, "lateen_cache_disk_pages", "Pages in the cache on disk.", disk_pages),
    STAT(GAUGE, "lateen_cache_disk_bytes", "Bytes of the files of the cache on disk.", disk_bytes),
    STAT(COUNTER, "lateen_cache_disk_written_pages_total", "Pages written to the cache on disk.",
         disk_written),
    STAT(COUNTER, "lateen_cache_disk_read_pages_total", "Pages read from the cache on disk.",
         disk_read),
    STAT(COUNTER, "lateen_cache_disk_failed_pages_total",
         "Pages that could not be written to the cache on disk, or were damaged there.",
         disk_failed),
    STAT(COUNTER, "lateen_cache_disk_unkept_pages_total",
         "Pages that were evicted faster than the cache on disk could be written.", disk_unkept),
    STAT(COUNTER, "lateen_cache_disk_hits_total",
         "Tokens of prompts that came from the cache on disk; the prefix cache's hits have them, "
         "too.",
         disk_tokens),
    STAT(COUNTER, "vllm:spec_decode_num_drafts_total", "Number of spec decoding drafts.", drafts),
    STAT(COUNTER, "vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens.", drafted),
    STAT(COUNTER, "vllm:spec_decode_num_accepted_tokens_total", "Number of accepted tokens.",
         accepted),
    STAT(COUNTER, "lateen_draft_branches_total",
         "Drafts that a step verified beside another draft of the same text.", branches),
    STAT(COUNTER, "lateen_draft_branch_tokens_total",
         "Their tokens, which vllm:spec_decode_num_draft_tokens_total has, too.", branch_drafted),
    STAT(COUNTER, "lateen_draft_branch_accepted_tokens_total", "Those of them that were accepted.",
         branch_accepted),
    STAT(COUNTER, "vllm:num_preemptions_total", "Cumulative number of preemption from the engine.",
         preemptions),
    STAT(COUNTER, "vllm:prompt_tokens_total", "Number of prefill tokens processed.", prompt_tokens),
    STAT(COUNTER, "vllm:generation_tokens_total", "Number of generation tokens processed.",
         new_tokens)};
#undef STAT

static void write_numbers(const lt_metrics_model *models, int n, lt_expo *out) {
    for (size_t row = 0; row < sizeof numbers / sizeof *numbers; row++) {
        lt_expo_family(out, numbers[row].type, numbers[row].name, numbers[row].help);
        for (int i = 0; i < n; i++) {
            const char *at = (const char *)&models[i].st + numbers[row].offset;
            lt_expo_value(out, (double)*(const int64_t *)at, "%s", models[i].labels);
        }
    }
    lt_expo_family(out, LT_EXPO_GAUGE, "vllm:kv_cache_usage_perc",
                   "KV-cache usage. 1 means 100 percent usage.");
    for (int i = 0; i < n; i++) {
        lt_expo_value(out, rate((double)models[i].st.pages_used, (double)models[i].st.pages), "%s",
                      models[i].labels);
    }
}

/* How many draft tokens were accepted at each position. */
static void write_places(const lt_metrics_model *models, int n, lt_expo *out) {
    lt_expo_family(out, LT_EXPO_COUNTER, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                   "Accepted tokens per draft position.");
    for (int i = 0; i < n; i++) {
        for (int place = 0; place < LT_DRAFT_MOST; place++) {
            lt_expo_value(out, (double)models[i].st.accepted_at[place], "%s,position=\"%d\"",
                          models[i].labels, place);
        }
    }
}

static void write_cache(const lt_metrics_model *models, int n, lt_expo *out) {
    lt_expo_family(out, LT_EXPO_GAUGE, "vllm:cache_config_info",
                   "Information of the LLMEngine CacheConfig");
    for (int i = 0; i < n; i++) {
        const lt_metrics_model *m = &models[i];
        lt_expo_value(out, 1.0,
                      "block_size=\"%lld\",num_gpu_blocks=\"%lld\",enable_prefix_caching=\"%s\","
                      "engine=\"0\"%s%s",
                      (long long)m->page_tokens, (long long)m->st.pages,
                      m->prefix_cache ? "True" : "False", n > 1 ? "," : "", n > 1 ? m->label : "");
    }
}

static void write_grammars(const lt_metrics_model *models, int n, lt_expo *out) {
    lt_expo_family(out, LT_EXPO_COUNTER, "lateen_grammars_made_total",
                   "Grammars and schemas that were compiled.");
    for (int i = 0; i < n; i++) {
        lt_expo_value(out, (double)models[i].counters->grammars.made, "%s", models[i].labels);
    }
    lt_expo_family(out, LT_EXPO_COUNTER, "lateen_grammars_found_total",
                   "Grammars and schemas that were there from a request before.");
    for (int i = 0; i < n; i++) {
        lt_expo_value(out, (double)models[i].counters->grammars.found, "%s", models[i].labels);
    }
    lt_expo_family(out, LT_EXPO_GAUGE, "lateen_grammars_kept_bytes",
                   "Memory of compiled grammars that are kept.");
    for (int i = 0; i < n; i++) {
        lt_expo_value(out, (double)models[i].counters->grammars.bytes, "%s", models[i].labels);
    }
}

void lt_metrics_write(lt_metrics_model *models, int n, const lt_metrics *of_server,
                      const lt_http_counts *http, lt_expo *out) {
    char name[512];
    for (int i = 0; i < n; i++) {
        snprintf(models[i].label, sizeof models[i].label, "model_name=\"%s\"",
                 lt_expo_label(name, sizeof name, models[i].name));
        snprintf(models[i].labels, sizeof models[i].labels, "%s,engine=\"0\"", models[i].label);
    }
    write_numbers(models, n, out);
    write_places(models, n, out);
    write_done(models, n, out);
    write_groups(models, n, out);
    for (int id = 0; id < LT_HIST_COUNT; id++) {
        lt_expo_family(out, LT_EXPO_HISTOGRAM, histograms[id].name, histograms[id].help);
        for (int i = 0; i < n; i++) {
            write_histogram(&models[i], (lt_histogram_id)id, out);
        }
    }
    write_cache(models, n, out);
    write_llama(models, n, out);
    write_http(models, n, of_server, http, out);
    write_grammars(models, n, out);
}
