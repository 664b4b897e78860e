/* /metrics: vLLM's buckets (vllm/v1/metrics/loggers.py), a value that equals a bound is in that
 * bound's bucket, and the whole page for two models, sample by sample. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/api/metrics.h"

#define TTFT                                                                                       \
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560 "
#define TOKEN   "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80 "
#define REQUEST "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680 "
#define TOKENS  "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000 "
static const char *const bounds[LT_HIST_COUNT] = {
    [LT_HIST_TTFT] = TTFT,
    [LT_HIST_ITL] = TOKEN,
    [LT_HIST_TPOT] = TOKEN,
    [LT_HIST_E2E] = REQUEST,
    [LT_HIST_QUEUE] = REQUEST,
    [LT_HIST_INFERENCE] = REQUEST,
    [LT_HIST_PREFILL] = REQUEST,
    [LT_HIST_DECODE] = REQUEST,
    [LT_HIST_PROMPT] = TOKENS,
    [LT_HIST_GENERATION] = TOKENS,
    [LT_HIST_MAX_GENERATION] = TOKENS,
    [LT_HIST_PARAMS_N] = "1 2 5 10 20 ",
    [LT_HIST_PARAMS_MAX] = TOKENS,
    [LT_HIST_ITERATION] = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 ",
};

static void buckets(void **state) {
    static lt_metrics m;
    (void)state;
    lt_metrics_init(&m);
    for (int id = 0; id < LT_HIST_COUNT; id++) {
        char text[512] = "";
        for (int i = 0; i < m.h[id].n_bounds; i++) {
            (void)sprintf(text + strlen(text), "%g ", m.h[id].bounds[i]);
        }
        assert_string_equal(text, bounds[id]);
    }
}

static void a_bound_is_in_its_bucket(void **state) {
    static lt_metrics m;
    (void)state;
    for (int id = 0; id < LT_HIST_COUNT; id++) {
        lt_histogram *h = &m.h[id];
        double sum = 0.0;
        lt_metrics_init(&m);
        for (int i = 0; i < h->n_bounds; i++) {
            const double over = h->bounds[i] * 1.0001;
            lt_metrics_observe(&m, (lt_histogram_id)id, h->bounds[i]);
            lt_metrics_observe(&m, (lt_histogram_id)id, over);
            sum += h->bounds[i] + over;
        }
        lt_metrics_observe(&m, (lt_histogram_id)id, 0.0);
        assert_int_equal(h->counts[0], 2); /* Zero and the first bound. */
        for (int i = 1; i < h->n_bounds; i++) {
            /* A little above the previous bound, and its own bound. */
            assert_int_equal(h->counts[i], 2);
        }
        assert_int_equal(h->counts[h->n_bounds], 1);
        assert_int_equal(h->n, 2 * h->n_bounds + 1);
        assert_true(h->sum > sum * 0.999999999 && h->sum < sum * 1.000000001);
    }
}

/* ---- The page ---- */

/* Samples that each model has, with the values of the first and the second; more: further
 * labels. */
static const struct {
    const char *name, *more;
    double a, b;
} samples[] = {{"vllm:num_requests_running", "", 1, 101},
               {"vllm:num_requests_waiting", "", 2, 102},
               {"lateen_background_running", "", 3, 103},
               {"lateen_background_waiting", "", 4, 104},
               {"vllm:prefix_cache_queries_total", "", 50, 500},
               {"vllm:prefix_cache_hits_total", "", 20, 100},
               {"lateen_cache_host_pages", "", 5, 105},
               {"lateen_cache_host_written_pages_total", "", 6, 106},
               {"lateen_cache_host_read_pages_total", "", 7, 107},
               {"lateen_cache_host_hits_total", "", 8, 108},
               {"lateen_cache_disk_pages", "", 9, 109},
               {"lateen_cache_disk_bytes", "", 10, 110},
               {"lateen_cache_disk_written_pages_total", "", 11, 111},
               {"lateen_cache_disk_read_pages_total", "", 12, 112},
               {"lateen_cache_disk_failed_pages_total", "", 13, 113},
               {"lateen_cache_disk_unkept_pages_total", "", 14, 114},
               {"lateen_cache_disk_hits_total", "", 15, 115},
               {"vllm:spec_decode_num_drafts_total", "", 16, 116},
               {"vllm:spec_decode_num_draft_tokens_total", "", 17, 117},
               {"vllm:spec_decode_num_accepted_tokens_total", "", 18, 118},
               {"vllm:num_preemptions_total", "", 19, 119},
               {"vllm:prompt_tokens_total", "", 50, 500},
               {"vllm:generation_tokens_total", "", 90, 210},
               {"vllm:kv_cache_usage_perc", "", 0.25, 0},
               {"vllm:spec_decode_num_accepted_tokens_per_pos_total", "position=\"0\"", 21, 121},
               {"vllm:spec_decode_num_accepted_tokens_per_pos_total", "position=\"7\"", 28, 128},
               {"vllm:request_success_total", "finished_reason=\"stop\"", 31, 131},
               {"vllm:request_success_total", "finished_reason=\"length\"", 32, 132},
               {"vllm:request_success_total", "finished_reason=\"abort\"", 33, 133},
               {"vllm:request_success_total", "finished_reason=\"error\"", 34, 134},
               {"lateen_alignment_tokens_total", "purpose=\"kept\"", 41, 141},
               {"lateen_alignment_tokens_total", "purpose=\"dropped\"", 42, 142},
               {"lateen_alignment_tokens_total", "purpose=\"trial\"", 43, 143},
               {"lateen_alignment_tokens_total", "purpose=\"reward\"", 44, 144},
               {"lateen_alignment_tokens_total", "purpose=\"judge\"", 45, 145},
               {"lateen_queue_full_total", "", 46, 146},
               {"lateen_grammars_made_total", "", 47, 147},
               {"lateen_grammars_found_total", "", 48, 148},
               {"lateen_grammars_kept_bytes", "", 49, 149},
               /* Steps of up to 1, 2, 4, 8, 16, ... tokens: bounds 1, 8, 16, ..., 16384. */
               {"vllm:iteration_tokens_total_bucket", "le=\"1\"", 1, 0},
               {"vllm:iteration_tokens_total_bucket", "le=\"8\"", 4, 0},
               {"vllm:iteration_tokens_total_bucket", "le=\"16\"", 5, 0},
               {"vllm:iteration_tokens_total_bucket", "le=\"16384\"", 15, 0},
               {"vllm:iteration_tokens_total_bucket", "le=\"+Inf\"", 22, 0},
               {"vllm:iteration_tokens_total_count", "", 22, 0},
               {"vllm:iteration_tokens_total_sum", "", 777, 0},
               {"vllm:time_to_first_token_seconds_bucket", "le=\"0.25\"", 0, 0},
               {"vllm:time_to_first_token_seconds_bucket", "le=\"0.5\"", 1, 0},
               {"vllm:time_to_first_token_seconds_count", "", 1, 0},
               {"vllm:time_to_first_token_seconds_sum", "", 0.5, 0}};

/* For both models together: tokens that were not in the cache, 430 in 4 s; 300 new ones in 40
 * steps and 6 s; 16 of 64 pages. */
static const struct {
    const char *name;
    double value;
} sums[] = {{"llamacpp:prompt_tokens_total", 430},
            {"llamacpp:prompt_tokens_cached_total", 120},
            {"llamacpp:prompt_seconds_total", 4},
            {"llamacpp:tokens_predicted_total", 300},
            {"llamacpp:tokens_predicted_seconds_total", 6},
            {"llamacpp:n_decode_total", 40},
            {"llamacpp:n_tokens_max", 80},
            {"llamacpp:n_busy_slots_per_decode", 7.5},
            {"llamacpp:prompt_tokens_seconds", 107.5},
            {"llamacpp:predicted_tokens_seconds", 50},
            {"llamacpp:requests_processing", 102},
            {"llamacpp:requests_deferred", 104},
            {"llamacpp:kv_cache_usage_ratio", 0.25},
            {"lateen_http_requests_total{engine=\"0\"}", 61},
            {"lateen_http_errors_total{engine=\"0\"}", 62},
            {"lateen_connections{engine=\"0\"}", 63},
            {"lateen_connections_refused_total{engine=\"0\"}", 64},
            {"lateen_connections_dropped_total{engine=\"0\"}", 65},
            {"lateen_bodies_bytes{engine=\"0\"}", 66},
            {"lateen_bodies_refused_total{engine=\"0\"}", 67},
            {"lateen_requests_timed_out_total{engine=\"0\"}", 68},
            {"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"64\",enable_prefix_caching="
             "\"True\",engine=\"0\",model_name=\"a\"}",
             1},
            {"vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"0\",enable_prefix_caching="
             "\"False\",engine=\"0\",model_name=\"b \\\"2\\\"\"}",
             1}};

static void has(const char *page, const char *name, const char *labels, double value) {
    char line[256];
    const char *at;
    (void)snprintf(line, sizeof line, "\n%s%s%s%s ", name, labels[0] != '\0' ? "{" : "", labels,
                   labels[0] != '\0' ? "}" : "");
    at = strstr(page, line);
    if (at == NULL || strstr(at + 1, line) != NULL) {
        fail_msg("%s: %s", line + 1, at == NULL ? "is missing" : "comes twice");
    }
    if (strtod(at + strlen(line), NULL) != value) {
        fail_msg("%s: %.20s, not %g", line + 1, at + strlen(line), value);
    }
}

static void page_of_two_models(void **state) {
    static lt_metrics a, b, server = {.http_requests = 61, .http_errors = 62};
    static const lt_http_counts http = {.connections = 63,
                                        .bodies_bytes = 66,
                                        .refused = 64,
                                        .dropped = 65,
                                        .starved = 67,
                                        .timed_out = 68};
    lt_metrics_model models[3] = {
        {.counters = &a, .name = "a", .page_tokens = 16, .prefix_cache = true},
        {.counters = &b, .name = "b \"2\"", .page_tokens = 32}};
    lt_expo e = {.format = LT_EXPO_TEXT};
    lt_metrics *counters[2] = {&a, &b};
    (void)state;
    for (int k = 0; k < 2; k++) {
        const int64_t d = 100 * k;
        const uint64_t u = (uint64_t)d;
        lt_engine_stats *st = &models[k].st;
        lt_metrics *m = counters[k];
        memset(m, 0xff, sizeof *m);
        lt_metrics_init(m);
        *st = (lt_engine_stats){.running = 1 + d,
                                .waiting = 2 + d,
                                .background_running = 3 + d,
                                .background_waiting = 4 + d,
                                .prompt_tokens = k == 0 ? 50 : 500,
                                .cached_tokens = k == 0 ? 20 : 100,
                                .host_pages = 5 + d,
                                .host_written = 6 + d,
                                .host_read = 7 + d,
                                .host_tokens = 8 + d,
                                .disk_pages = 9 + d,
                                .disk_bytes = 10 + d,
                                .disk_written = 11 + d,
                                .disk_read = 12 + d,
                                .disk_failed = 13 + d,
                                .disk_unkept = 14 + d,
                                .disk_tokens = 15 + d,
                                .drafts = 16 + d,
                                .drafted = 17 + d,
                                .accepted = 18 + d,
                                .preemptions = 19 + d,
                                .new_tokens = k == 0 ? 90 : 210,
                                .steps = k == 0 ? 30 : 10,
                                .pages = k == 0 ? 64 : 0,
                                .pages_used = k == 0 ? 16 : 0,
                                .steps_tokens = k == 0 ? 777 : 0};
        for (int i = 0; i < LT_DRAFT_MOST; i++) {
            st->accepted_at[i] = 21 + i + d;
        }
        for (int i = 0; k == 0 && i < LT_STEP_SIZES; i++) {
            st->steps_of[i] = 1;
        }
        for (int i = 0; i < LT_DONE_COUNT; i++) {
            m->done[i] = 31 + (uint64_t)i + u;
        }
        m->group_kept = 41 + u;
        m->group_dropped = 42 + u;
        m->trial_tokens = 43 + u;
        m->reward_tokens = 44 + u;
        m->judge_tokens = 45 + u;
        m->refused = 46 + u;
        m->grammars = (lt_grammar_keep_stats){.made = 47 + d, .found = 48 + d, .bytes = 49 + d};
        m->prompt_s = k == 0 ? 1.5 : 2.5;
        m->generation_s = k == 0 ? 2 : 4;
        m->n_tokens_max = k == 0 ? 80 : 70;
    }
    lt_metrics_observe(&a, LT_HIST_TTFT, 0.5);
    models[2] = models[0]; /* It is not among the models that are reported. */
    (void)strcpy(models[2].label, "model_name=\"c\"");
    (void)strcpy(models[2].labels, "model_name=\"c\"");
    models[2].st.prompt_tokens = models[2].st.new_tokens = 1000000;
    lt_metrics_write(models, 2, &server, &http, &e);
    lt_expo_end(&e);
    assert_null(strstr(e.data, "model_name=\"c\""));
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        static const char *const names[] = {"model_name=\"a\"", "model_name=\"b \\\"2\\\"\""};
        for (int k = 0; k < 2; k++) {
            char labels[128];
            (void)snprintf(labels, sizeof labels, "%s,engine=\"0\"%s%s", names[k],
                           samples[i].more[0] != '\0' ? "," : "", samples[i].more);
            has(e.data, samples[i].name, labels, k == 0 ? samples[i].a : samples[i].b);
        }
    }
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        has(e.data, sums[i].name, "", sums[i].value);
    }
    lt_expo_free(&e);
    /* The longer text of the two models; with one model, its labels are also those of the
     * connections. */
    b.n_tokens_max = 90;
    e = (lt_expo){.format = LT_EXPO_TEXT};
    lt_metrics_write(models, 2, &server, &http, &e);
    lt_expo_end(&e);
    has(e.data, "llamacpp:n_tokens_max", "", 90);
    lt_expo_free(&e);
    e = (lt_expo){.format = LT_EXPO_TEXT};
    a.prompt_s = 0.25; /* 30 tokens. */
    a.generation_s = 0;
    lt_metrics_write(models, 1, &server, &http, &e);
    lt_expo_end(&e);
    has(e.data, "llamacpp:prompt_tokens_seconds", "", 120);
    has(e.data, "llamacpp:predicted_tokens_seconds", "", 0);
    has(e.data, "lateen_http_requests_total", "model_name=\"a\",engine=\"0\"", 61);
    has(e.data, "vllm:cache_config_info",
        "block_size=\"16\",num_gpu_blocks=\"64\",enable_prefix_caching=\"True\",engine=\"0\"", 1);
    lt_expo_free(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(buckets),
                                       cmocka_unit_test(a_bound_is_in_its_bucket),
                                       cmocka_unit_test(page_of_two_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
