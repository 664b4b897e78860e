/* A session gives the logits of the pass, one token at a time, in pieces, beside other sessions
 * and after a truncation. */
#include "unit/model/golden.h"

#include <malloc.h>

#include "lateen/model.h"
#include "model/blocks/exec.h"

#define V 64

static const lt_backend *(*const backends[])(void) = {lt_backend_ref, lt_backend_cpu};
#define N_BACKENDS 2

static void near(const float *a, const float *b, int64_t n, double tolerance, const char *what) {
    const double d = distance(a, b, n);
    if (!(d <= tolerance)) {
        fail_msg("%s: logits differ by %.3g", what, d);
    }
}

/* The rotation depends on the length of the text, so a text in pieces is rotated differently
 * (test_rope.c). */
static bool by_length(const golden *g) {
    return lt_rope_switch(&g->model->spec) > 0;
}

static void decode_is_the_forward_pass(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES * N_BACKENDS * 2; i++) {
        const lt_dtype dtype = i % 2 != 0 ? LT_BF16 : LT_F32;
        const double tolerance = dtype == LT_BF16 ? 0.03 : 1e-5;
        static float all[24 * V], one[V];
        golden g;
        lt_session *s = NULL;
        const int32_t *ids;
        golden_open(&g, golden_cases[i / 4], backends[i / 2 % 2](), dtype);
        /* Rounding may choose another expert. */
        if ((dtype == LT_BF16 && g.model->spec.n_experts > 0) || by_length(&g)) {
            golden_close(&g);
            continue;
        }
        ids = g.batch.tokens;
        must(lt_session_open(&s, g.model, 2, 24), g.name);
        must(lt_session_eval_all(s, 1, ids, 24, all), g.name);
        must(lt_session_eval(s, 0, ids, 5, one), g.name);
        near(one, all + 4 * V, V, tolerance, g.name);
        for (int64_t t = 5; t < 24; t++) {
            must(t % 2 != 0 ? lt_session_step(s, (int64_t[]){0}, ids + t, 1, one)
                            : lt_session_eval(s, 0, ids + t, 1, one),
                 g.name);
            near(one, all + t * V, V, tolerance, g.name);
        }
        assert_int_equal(lt_session_length(s, 0), 24);
        lt_session_truncate(s, 0, 7);
        must(lt_session_eval(s, 0, ids + 7, 3, one), g.name);
        near(one, all + 9 * V, V, tolerance, "after a truncation");
        lt_session_close(s);
        golden_close(&g);
    }
}

/* -log softmax(logits)[label] in double, and the first of the largest logits. */
static double loss_of(const float *logits, int32_t label, int32_t *best) {
    double sum = 0.0;
    *best = 0;
    for (int32_t i = 0; i < V; i++) {
        *best = logits[i] > logits[*best] ? i : *best;
    }
    for (int i = 0; i < V; i++) {
        sum += exp((double)logits[i] - (double)logits[*best]);
    }
    return log(sum) - ((double)logits[label] - (double)logits[*best]);
}

/* In two calls, the second of which continues after the first. */
static void scores_are_those_of_the_logits(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES * N_BACKENDS; i++) {
        static float all[24 * V];
        float loss[23];
        int32_t best[23], outside[2] = {1, V};
        golden g;
        lt_session *s = NULL;
        golden_open(&g, golden_cases[i / N_BACKENDS], backends[i % N_BACKENDS](), LT_F32);
        const int32_t *ids = g.batch.tokens;
        if (by_length(&g)) {
            golden_close(&g);
            continue;
        }
        must(lt_session_open(&s, g.model, 2, 24), g.name);
        must(lt_session_eval_all(s, 1, ids, 24, all), g.name);
        must(lt_session_score(s, 0, ids, 9, ids + 1, loss, best), g.name);
        must(lt_session_score(s, 0, ids + 9, 14, ids + 10, loss + 9, best + 9), g.name);
        assert_int_equal(lt_session_length(s, 0), 23);
        for (int t = 0; t < 23; t++) {
            int32_t top;
            const double want = loss_of(all + t * V, ids[t + 1], &top);
            assert_true(fabs((double)loss[t] - want) < 1e-5 * (1.0 + want));
            assert_int_equal(best[t], top);
        }
        assert_int_equal(lt_session_score(s, 0, ids, 1, outside + 1, loss, best), LT_ERR_ARG);
        assert_int_equal(lt_session_score(s, 0, ids, 2, ids, loss, best), LT_ERR_LIMIT);
        assert_int_equal(lt_session_length(s, 0), 23);
        lt_session_close(s);
        golden_close(&g);
    }
}

/* Sequences of different lengths, some of them neighbours in the cache, step together. */
static void sequences_do_not_see_each_other(void **state) {
    (void)state;
    for (int i = 0; i < N_BACKENDS; i++) {
        const int64_t seqs[] = {3, 0, 1, 4}, length[] = {9, 2, 5, 14};
        static float together[4 * V], alone[V];
        int32_t ids[4];
        golden g;
        lt_session *s = NULL, *lone = NULL;
        golden_open(&g, "gemma3", backends[i](), LT_F32);
        must(lt_session_open(&s, g.model, 5, 24), g.name);
        must(lt_session_open(&lone, g.model, 1, 24), g.name);
        for (int j = 0; j < 4; j++) {
            must(lt_session_eval(s, seqs[j], g.batch.tokens + j, length[j], NULL), g.name);
            ids[j] = g.batch.tokens[j + length[j]];
        }
        must(lt_session_step(s, seqs, ids, 4, together), g.name);
        for (int j = 0; j < 4; j++) {
            lt_session_truncate(lone, 0, 0);
            must(lt_session_eval(lone, 0, g.batch.tokens + j, length[j] + 1, alone), g.name);
            near(together + j * V, alone, V, 1e-5, "together and alone");
        }
        lt_session_close(s);
        lt_session_close(lone);
        golden_close(&g);
    }
}

/* Longer than one chunk of prefill; positions beyond the original length of the rotary scaling. */
static void long_prompts_run_in_chunks(void **state) {
    enum { LONG = 700 };
    static int32_t ids[LONG];
    static float logits[V], pieces[V];
    golden g;
    lt_session *s = NULL;
    (void)state;
    golden_open(&g, "llama3", lt_backend_cpu(), LT_F32);
    for (int i = 0; i < LONG; i++) {
        ids[i] = (i * 37 + i / 7) % V;
    }
    must(lt_session_open(&s, g.model, 2, LONG), g.name);
    must(lt_session_eval(s, 0, ids, LONG, logits), g.name);
    must(lt_session_eval(s, 1, ids, 123, NULL), g.name);
    must(lt_session_eval(s, 1, ids + 123, LONG - 123, pieces), g.name);
    near(pieces, logits, V, 1e-5, "pieces");
    lt_session_close(s);
    golden_close(&g);
}

static void nothing_is_allocated_after_open(void **state) {
    static float logits[2 * V];
    golden g;
    lt_session *s = NULL;
    size_t before;
    (void)state;
    golden_open(&g, "qwen3", lt_backend_cpu(), LT_F32);
    must(lt_session_open(&s, g.model, 2, 60), g.name);
    for (int i = 0; i < 2; i++) { /* The kernels' libraries may allocate for a new shape. */
        must(lt_session_eval(s, i, g.batch.tokens, 10, logits), g.name);
        must(lt_session_step(s, (int64_t[]){0, 1}, g.batch.tokens, 2 - i, logits), g.name);
    }
    before = mallinfo2().uordblks;
    for (int i = 0; i < 40; i++) {
        must(lt_session_step(s, (int64_t[]){0, 1}, g.batch.tokens + i % 20, 2, logits), g.name);
    }
    assert_int_equal(mallinfo2().uordblks, before);
    lt_session_close(s);
    golden_close(&g);
}

static void bad_calls_change_nothing(void **state) {
    golden g;
    lt_session *s = NULL;
    static float logits[V];
    (void)state;
    golden_open(&g, "llama3", lt_backend_cpu(), LT_F32);
    must(lt_session_open(&s, g.model, 2, 10), g.name);
    must(lt_session_eval(s, 0, g.batch.tokens, 8, logits), g.name);
    assert_int_equal(lt_session_eval(s, 0, g.batch.tokens, 3, logits), LT_ERR_LIMIT);
    assert_int_equal(lt_session_eval(s, 2, g.batch.tokens, 1, logits), LT_ERR_ARG);
    assert_int_equal(lt_session_eval(s, 1, (int32_t[]){V}, 1, logits), LT_ERR_ARG);
    assert_int_equal(lt_session_step(s, (int64_t[]){1, 1}, g.batch.tokens, 2, NULL), LT_ERR_ARG);
    assert_int_equal(lt_session_length(s, 0), 8);
    assert_int_equal(lt_session_length(s, 1), 0);
    lt_session_close(s);
    assert_int_equal(lt_session_open(&s, g.model, 0, 10), LT_ERR_ARG);
    assert_int_equal(lt_session_open(&s, g.model, INT32_MAX, INT32_MAX), LT_ERR_LIMIT);
    golden_close(&g);
    golden_open(&g, "gpt2", lt_backend_cpu(), LT_F32);
    assert_int_equal(lt_session_open(&s, g.model, 1, 33), LT_ERR_ARG); /* 32 learned positions. */
    golden_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_is_the_forward_pass),
        cmocka_unit_test(scores_are_those_of_the_logits),
        cmocka_unit_test(sequences_do_not_see_each_other),
        cmocka_unit_test(long_prompts_run_in_chunks),
        cmocka_unit_test(nothing_is_allocated_after_open),
        cmocka_unit_test(bad_calls_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
