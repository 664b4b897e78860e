/* Tables of pipelines: bubble and memory of each schedule equal the published formulas; tables
 * for random shapes let all ranks reach the end; a table with a changed entry is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "parallel/schedule.h"

static lt_schedule open_table(lt_schedule_kind kind, int p, int v, int64_t m) {
    const lt_schedule_shape s = {.kind = kind, .ranks = p, .chunks = v, .micros = m};
    lt_schedule t;
    if (lt_schedule_open(&t, &s) != LT_OK) {
        fail_msg("%s p %d, v %d, m %lld: %s", lt_schedule_name(kind), p, v, (long long)m,
                 lt_error_message());
    }
    return t;
}

/* Each rank's share of the layers takes f, b, w; a stage takes 1 / v of it. */
static double makespan(const lt_schedule *t, double f, double b, double w, double send) {
    const int v = t->shape.chunks, stages = t->shape.ranks * v;
    double *time = calloc(3 * (size_t)stages, sizeof *time), span;
    lt_schedule_times times;
    assert_non_null(time);
    for (int s = 0; s < stages; s++) {
        time[s] = f / v;
        time[stages + s] = (t->split_backward ? b : b + w) / v;
        time[2 * stages + s] = w / v;
    }
    const lt_schedule_costs c = {time, time + stages, time + 2 * stages, send};
    assert_int_equal(lt_schedule_simulate(&times, t, &c), LT_OK);
    span = times.makespan_s;
    lt_schedule_times_close(&times);
    free(time);
    return span;
}

static void near(const char *what, double got, double want) {
    if (fabs(got - want) > 1e-9 * (1.0 + fabs(want))) {
        fail_msg("%s: got %.12g, want %.12g", what, got, want);
    }
}

/* Chunks held by the fullest rank. */
static int held(const lt_schedule *t) {
    int most = 0;
    for (int r = 0; r < t->shape.ranks; r++) {
        most = t->rows[r].held > most ? t->rows[r].held : most;
    }
    return most;
}

/* One row of the table in schedule.h at (p, m), with times f, b, w. */
static void formula(lt_schedule_kind kind, int p, int v, int64_t m, double f, double b, double w,
                    double bubble, double want_held) {
    char what[128];
    lt_schedule t = open_table(kind, p, v, m);
    (void)snprintf(what, sizeof what, "%s, p %d, v %d, m %lld, F B W %g %g %g",
                   lt_schedule_name(kind), p, v, (long long)m, f, b, w);
    near(what, makespan(&t, f, b, w, 0.0) - (double)m * (f + b + w), bubble);
    near(what, held(&t), want_held * v);
    lt_schedule_close(&t);
}

static void bubbles_and_memory_are_the_published_ones(void **state) {
    static const int64_t sizes[][2] = {{4, 8}, {8, 16}, {8, 32}, {2, 6}, {1, 3}};
    static const double times[][3] = {{1, 1, 1}, {1, 1.2, 0.8}};
    (void)state;
    for (int i = 0; i < 5; i++) {
        const int p = (int)sizes[i][0];
        const int64_t m = sizes[i][1];
        for (int k = 0; k < 2; k++) {
            const double f = times[k][0], b = times[k][1], w = times[k][2], all = f + b + w;
            formula(LT_SCHEDULE_GPIPE, p, 1, m, f, b, w, (p - 1) * all, (double)m);
            formula(LT_SCHEDULE_ONE_F_ONE_B, p, 1, m, f, b, w, (p - 1) * all, p);
            for (int v = 2; v <= 4 && m % p == 0; v += 2) {
                formula(LT_SCHEDULE_INTERLEAVED, p, v, m, f, b, w, (p - 1) * all / v,
                        p + (p - 1.0) / v);
            }
            formula(LT_SCHEDULE_ZB_H1, p, 1, m, f, b, w, (p - 1) * (f + b - w), p);
        }
    }
    /* 1.5 and 3.5 times F + B + W = 3, while 1F1B has 9 and 21. */
    for (int64_t m = 8; m <= 32; m += 4) {
        formula(LT_SCHEDULE_ZBV, 4, 2, m, 1, 1, 1, 1.5, 4);
        if (m >= 16) {
            formula(LT_SCHEDULE_ZBV, 8, 2, m, 1, 1, 1, 3.5, 8);
        }
    }
}

/* The activations that 1F1B holds fall by one from rank to rank; those of ZB-H1 and ZBV are the
 * same on all. */
static void memory_of_each_rank(void **state) {
    lt_schedule t = open_table(LT_SCHEDULE_ONE_F_ONE_B, 6, 1, 20),
                z = open_table(LT_SCHEDULE_ZB_H1, 6, 1, 20),
                v = open_table(LT_SCHEDULE_ZBV, 6, 2, 20),
                h = open_table(LT_SCHEDULE_V_HALF, 6, 2, 20);
    (void)state;
    for (int r = 0; r < 6; r++) {
        assert_int_equal(t.rows[r].held, 6 - r);
        assert_int_equal(t.rows[r].n_sets[0], 6 - r);
        assert_int_equal(z.rows[r].held, 6);
        assert_int_equal(v.rows[r].held, 12);
        assert_in_range(h.rows[r].held, 6, 8);
    }
    lt_schedule_close(&t);
    lt_schedule_close(&z);
    lt_schedule_close(&v);
    lt_schedule_close(&h);
}

/* What lt_schedule_check checks, once more and separately: message k from a to b is the k-th that
 * b posts from a, for the same result; a buffer holds one message at a time; a receive is posted
 * early. */
static void check_messages(const lt_schedule *t) {
    for (int a = 0; a < t->shape.ranks; a++) {
        for (int b = 0; b < t->shape.ranks; b++) {
            int64_t next = 0;
            for (int64_t i = 0; i < t->rows[a].n_ops; i++) {
                const lt_schedule_op *op = &t->rows[a].ops[i], *need;
                if (op->to != b) {
                    continue;
                }
                while (next < t->rows[b].n_receives && t->rows[b].receives[next].from != a) {
                    next++;
                }
                assert_true(next < t->rows[b].n_receives && next == op->posted);
                need = &t->rows[b].ops[t->rows[b].receives[next].op];
                assert_int_equal(need->kind, op->kind);
                assert_int_equal(need->micro, op->micro);
                assert_int_equal(lt_schedule_stage(&t->shape, b, need->chunk),
                                 lt_schedule_stage(&t->shape, a, op->chunk) +
                                     (op->kind == LT_OP_FORWARD ? 1 : -1));
                next++;
            }
        }
    }
    for (int r = 0; r < t->shape.ranks; r++) {
        const lt_schedule_row *row = &t->rows[r];
        for (int64_t i = 0; i < row->n_receives; i++) {
            const lt_schedule_receive *x = &row->receives[i];
            assert_true(x->post_at <= (x->op > 0 ? x->op - 1 : 0));
            assert_in_range(x->buffer, 0, row->n_buffers - 1);
            for (int64_t k = 0; k < i; k++) {
                const lt_schedule_receive *y = &row->receives[k];
                assert_true(y->post_at <= x->post_at);
                assert_true(y->buffer != x->buffer || y->op <= x->post_at);
            }
        }
        assert_in_range(row->n_buffers, 0, 2 * t->shape.chunks + 4);
    }
}

static void random_tables_reach_the_end(void **state) {
    lt_rng rng = {.seed = 26, .stream = 1};
    (void)state;
    for (int i = 0; i < 1500; i++) {
        const lt_schedule_kind kind = (lt_schedule_kind)(lt_rng_u64(&rng) % LT_SCHEDULE_COUNT);
        const int p = 1 + (int)(lt_rng_u64(&rng) % 9);
        const int v = lt_schedule_is_v(kind)            ? 2
                      : kind == LT_SCHEDULE_INTERLEAVED ? 2 + (int)(lt_rng_u64(&rng) % 4)
                                                        : 1;
        const int64_t m = 1 + (int64_t)(lt_rng_u64(&rng) % 25);
        const double f = 0.5 + lt_rng_uniform(&rng), b = 0.5 + lt_rng_uniform(&rng),
                     w = 0.5 + lt_rng_uniform(&rng), send = 0.3 * lt_rng_uniform(&rng);
        lt_schedule t = open_table(kind, p, v, m);
        check_messages(&t);
        assert_true(makespan(&t, f, b, w, send) >= (double)m * (f + b + w) - 1e-9);
        if (kind == LT_SCHEDULE_ZBV) {
            assert_in_range(held(&t), 1, 2 * p);
        }
        lt_schedule_close(&t);
    }
}

static void refused(lt_schedule *t, const char *text) {
    assert_int_equal(lt_schedule_check(t), LT_ERR_STATE);
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' does not say '%s'", lt_error_message(), text);
    }
}

static void changed_tables_are_refused(void **state) {
    lt_schedule t = open_table(LT_SCHEDULE_ONE_F_ONE_B, 4, 1, 8);
    lt_schedule_op op;
    lt_schedule_receive *r = t.rows[1].receives;
    int32_t post_at;
    (void)state;
    /* Rank 0 delays the F whose B it waits for: two operations of a row are swapped. */
    op = t.rows[0].ops[0];
    t.rows[0].ops[0] = t.rows[0].ops[1];
    t.rows[0].ops[1] = op;
    refused(&t, "rank 0, operation 0 (F of micro-batch 1, chunk 0): not the next micro-batch");
    t.rows[0].ops[1] = t.rows[0].ops[0];
    t.rows[0].ops[0] = op;
    assert_int_equal(lt_schedule_check(&t), LT_OK);
    /* A result that is received out of order. */
    t.rows[0].ops[0].posted = t.rows[0].ops[1].posted;
    refused(&t, "rank 0, operation 1 (F of micro-batch 1, chunk 0): its result is received out");
    t.rows[0].ops[0].posted = -1;
    refused(&t, "never received");
    t.rows[0].ops[0].posted = 0;
    assert_int_equal(lt_schedule_check(&t), LT_OK);
    /* B before F. */
    t.rows[3].ops[0].kind = LT_OP_BACKWARD;
    refused(&t, "rank 3, operation 0 (B of micro-batch 0, chunk 0): before the operation");
    t.rows[3].ops[0].kind = LT_OP_FORWARD;
    /* One rank does all its F first, while its neighbour follows 1F1B: they disagree. */
    post_at = r[0].post_at;
    r[0].post_at = (int32_t)t.rows[1].n_ops;
    assert_int_equal(lt_schedule_check(&t), LT_ERR_STATE);
    assert_non_null(strstr(lt_error_message(), "waits for ever"));
    r[0].post_at = post_at;
    lt_schedule_close(&t);
}

static void bad_shapes_are_refused(void **state) {
    static const lt_schedule_shape bad[] = {{LT_SCHEDULE_GPIPE, 0, 1, 4},
                                            {LT_SCHEDULE_ONE_F_ONE_B, 4, 2, 4},
                                            {LT_SCHEDULE_INTERLEAVED, 4, 1, 4},
                                            {LT_SCHEDULE_ZBV, 4, 3, 4},
                                            {LT_SCHEDULE_ZB_H1, 4, 1, 0}};
    lt_schedule t;
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(lt_schedule_open(&t, &bad[i]), LT_ERR_ARG);
    }
    assert_int_equal(
        lt_schedule_open(&t, &(lt_schedule_shape){LT_SCHEDULE_GPIPE, 100000, 1, 100000}),
        LT_ERR_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_and_memory_are_the_published_ones),
        cmocka_unit_test(memory_of_each_rank), cmocka_unit_test(random_tables_reach_the_end),
        cmocka_unit_test(changed_tables_are_refused), cmocka_unit_test(bad_shapes_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
