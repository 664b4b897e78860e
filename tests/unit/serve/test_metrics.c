/* The histograms of /metrics: vLLM's buckets (vllm/v1/metrics/loggers.py), and a value that equals
 * a bound is in that bound's bucket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
            assert_int_equal(h->counts[i], 2); /* A little over the bound before, and its own. */
        }
        assert_int_equal(h->counts[h->n_bounds], 1);
        assert_int_equal(h->n, 2 * h->n_bounds + 1);
        assert_true(h->sum > sum * 0.999999999 && h->sum < sum * 1.000000001);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(buckets),
                                       cmocka_unit_test(a_bound_is_in_its_bucket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
