/* metrics.c: see metrics.h. Names, help texts and buckets as vLLM's (vllm/v1/metrics/loggers.py),
 * so that its dashboards work unchanged. */
#include "serve/api/metrics.h"

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

static void write_histogram(const lt_histogram *h, const char *labels, lt_expo *out) {
    lt_expo_family(out, LT_EXPO_HISTOGRAM, h->name, h->help);
    lt_expo_buckets(out, labels, h->bounds, h->n_bounds, h->counts, h->sum);
}

/* The engine counts its steps itself, by powers of two; the bounds are such. */
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

static void write_done(const lt_metrics *m, const char *labels, lt_expo *out) {
    static const char *const reasons[LT_DONE_COUNT] = {"stop", "length", "abort", "error"};
    lt_expo_family(out, LT_EXPO_COUNTER, "vllm:request_success_total",
                   "Count of successfully processed requests.");
    for (int i = 0; i < LT_DONE_COUNT; i++) {
        lt_expo_value(out, (double)m->done[i], "%s,finished_reason=\"%s\"", labels, reasons[i]);
    }
}

/* Tokens that were chosen from, by what became of them. */
static void write_groups(const lt_metrics *m, const char *labels, lt_expo *out) {
    lt_expo_family(out, LT_EXPO_COUNTER, "lateen_alignment_tokens_total",
                   "Tokens of candidates, kept as the answer or dropped, of trials that control "
                   "reasoning, and those that the reward model or a judge read.");
    lt_expo_value(out, (double)m->group_kept, "%s,purpose=\"kept\"", labels);
    lt_expo_value(out, (double)m->group_dropped, "%s,purpose=\"dropped\"", labels);
    lt_expo_value(out, (double)m->trial_tokens, "%s,purpose=\"trial\"", labels);
    lt_expo_value(out, (double)m->reward_tokens, "%s,purpose=\"reward\"", labels);
    lt_expo_value(out, (double)m->judge_tokens, "%s,purpose=\"judge\"", labels);
}

static double rate(double amount, double seconds) {
    return seconds > 0 ? amount / seconds : 0;
}

/* llama-server's have no labels. */
static void write_llama(const lt_metrics *m, const lt_engine_stats *st, lt_expo *out) {
    static const char labels[] = "";
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

static void write_http(const lt_metrics *m, const lt_http_counts *http, const char *labels,
                       lt_expo *out) {
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_http_requests_total", labels, "HTTP requests.",
                (double)m->http_requests);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_http_errors_total", labels,
                "HTTP requests that were refused or failed.", (double)m->http_errors);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_queue_full_total", labels,
                "Requests refused because the queue was full.", (double)m->refused);
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

void lt_metrics_write(const lt_metrics *m, const lt_engine_stats *st, const lt_engine_options *o,
                      const char *model_name, const lt_http_counts *http, int64_t started_unix_s,
                      lt_expo *out) {
    char labels[640], name[512];
    snprintf(labels, sizeof labels, "model_name=\"%s\",engine=\"0\"",
             lt_expo_label(name, sizeof name, model_name));
    lt_expo_one(out, LT_EXPO_GAUGE, "vllm:num_requests_running", labels,
                "Number of requests in model execution batches.", (double)st->running);
    lt_expo_one(out, LT_EXPO_GAUGE, "vllm:num_requests_waiting", labels,
                "Number of requests waiting to be processed.", (double)st->waiting);
    lt_expo_one(out, LT_EXPO_GAUGE, "lateen_background_running", labels,
                "Of the running requests, those of batches.", (double)st->background_running);
    lt_expo_one(out, LT_EXPO_GAUGE, "lateen_background_waiting", labels,
                "Of the waiting requests, those of batches.", (double)st->background_waiting);
    lt_expo_one(out, LT_EXPO_GAUGE, "vllm:kv_cache_usage_perc", labels,
                "KV-cache usage. 1 means 100 percent usage.",
                rate((double)st->pages_used, (double)st->pages));
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:prefix_cache_queries_total", labels,
                "Prefix cache queries, in terms of number of queried tokens.",
                (double)st->prompt_tokens);
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:prefix_cache_hits_total", labels,
                "Prefix cache hits, in terms of number of cached tokens.",
                (double)st->cached_tokens);
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:spec_decode_num_drafts_total", labels,
                "Number of spec decoding drafts.", (double)st->drafts);
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:spec_decode_num_draft_tokens_total", labels,
                "Number of draft tokens.", (double)st->drafted);
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:spec_decode_num_accepted_tokens_total", labels,
                "Number of accepted tokens.", (double)st->accepted);
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:num_preemptions_total", labels,
                "Cumulative number of preemption from the engine.", (double)st->preemptions);
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:prompt_tokens_total", labels,
                "Number of prefill tokens processed.", (double)st->prompt_tokens);
    lt_expo_one(out, LT_EXPO_COUNTER, "vllm:generation_tokens_total", labels,
                "Number of generation tokens processed.", (double)st->new_tokens);
    write_done(m, labels, out);
    write_groups(m, labels, out);
    for (int i = 0; i < LT_HIST_COUNT; i++) {
        const lt_histogram h = i == LT_HIST_ITERATION ? of_steps(&m->h[i], st) : m->h[i];
        write_histogram(&h, labels, out);
    }
    lt_expo_family(out, LT_EXPO_GAUGE, "vllm:cache_config_info",
                   "Information of the LLMEngine CacheConfig");
    lt_expo_value(out, 1.0,
                  "block_size=\"%lld\",num_gpu_blocks=\"%lld\",enable_prefix_caching=\"%s\","
                  "engine=\"0\"",
                  (long long)o->page_tokens, (long long)st->pages,
                  o->prefix_cache ? "True" : "False");
    write_llama(m, st, out);
    write_http(m, http, labels, out);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_grammars_made_total", labels,
                "Grammars and schemas that were compiled.", (double)m->grammars.made);
    lt_expo_one(out, LT_EXPO_COUNTER, "lateen_grammars_found_total", labels,
                "Grammars and schemas that were there from a request before.",
                (double)m->grammars.found);
    lt_expo_one(out, LT_EXPO_GAUGE, "lateen_grammars_kept_bytes", labels,
                "Memory of compiled grammars that are kept.", (double)m->grammars.bytes);
    lt_expo_process(out, (double)started_unix_s);
}
