/* One optimiser step: the values of the schedules are computed once, and all decisions about the
 * step are read from one record. */
#include "unit/train/run_folder.h"

#include <malloc.h>
#include <math.h>

/* Two peaks, one schedule: half of each after 2 of 4 steps of warm-up. */
static void values_of_the_schedules(void **state) {
    lt_recipe *r = run_recipe("plan", "optim.lr=0 optim.muon_lr=0.02 lr.warmup=4 batch.size=9 "
                                      "batch.ramp=3@0,5@6");
    const lt_step_plan p = lt_recipe_plan(r, 2, 6);
    (void)state;
    assert_int_equal(p.step, 2);
    assert_int_equal(p.rows, 5);
    assert_int_equal(lt_recipe_plan(r, 2, 5).rows, 3);
    assert_int_equal(lt_recipe_largest_batch(r), 9);
    assert_true(p.lr == 0.0);
    assert_true(fabs(p.muon_lr - 0.01) < 1e-15);
    free(r);
}

/* A peak of 0 for AdamW says nothing about Muon's matrices: they are trained at their own rate;
 * the rest does not change, and nothing becomes NaN (Muon's rate here was once 0 / 0). */
static void muon_without_adamw(void **state) {
    lt_recipe *r = run_recipe("muon", "steps=3 optim.kind=muon optim.lr=0 optim.decay=0");
    lt_training *t = calloc(1, sizeof *t);
    float *before, *master;
    (void)state;
    assert_non_null(t);
    must(lt_training_open(t, r, device_of(lt_backend_cpu())), "open");
    const lt_param_table *table = &t->model->table;
    before = malloc((size_t)table->n_elements * sizeof *before);
    assert_non_null(before);
    master = lt_param_floats(&t->model->master);
    memcpy(before, master, (size_t)table->n_elements * sizeof *before);
    for (int step = 0; step < 3; step++) {
        lt_step_outcome out;
        must(lt_training_step(t, &out), "step");
        assert_true(isfinite(out.decision.loss) && out.decision.apply);
    }
    for (int i = 0; i < table->n_params; i++) {
        const lt_param *p = &table->params[i];
        double moved = 0.0;
        for (int64_t k = p->whole_at; k < p->whole_at + p->count; k++) {
            moved += fabs((double)master[k] - (double)before[k]);
        }
        assert_true(isfinite(moved));
        assert_int_equal(moved > 0.0, p->matrix);
    }
    free(before);
    lt_training_close(t);
    free(t);
    free(r);
}

/* Counts and sums are added; of waits, stops and errors the largest counts; a NaN stays. */
static void records_combine(void **state) {
    lt_step_record a = {.ranks = 1,
                        .labels = 10,
                        .weight_sum = 4,
                        .loss_sum = 20,
                        .sumsq = 1,
                        .wait_s = 0.5},
                   b = {.ranks = 1,
                        .labels = 6,
                        .weight_sum = 1,
                        .loss_sum = 5,
                        .sumsq = 3,
                        .wait_s = 0.2,
                        .stop = 15,
                        .error = LT_ERR_IO},
                   nan = {.loss_sum = NAN};
    (void)state;
    lt_step_record_combine(&a, &b);
    assert_true(a.ranks == 2 && a.labels == 16 && a.weight_sum == 5 && a.loss_sum == 25);
    assert_true(a.sumsq == 4 && a.wait_s == 0.5 && a.stop == 15 && a.error == LT_ERR_IO);
    lt_step_record_combine(&a, &nan);
    assert_true(isnan(a.loss_sum) && a.stop == 15);
}

static lt_err combine_in_ended_world(void *of, lt_step_record *record) {
    (void)of;
    (void)record;
    LT_FAIL(LT_ERR_REMOTE, "the world has ended");
}

/* A rank that fails returns its own reason, even if another rank has learnt of the failure first
 * and ended the world. */
static void a_rank_reports_its_own_failure(void **state) {
    const lt_ranks ranks = {0, NULL, combine_in_ended_world};
    lt_step_record record = {0};
    (void)state;
    assert_int_equal(lt_ranks_combine(&ranks, &record, lt_error_set(LT_ERR_ARG, "lr = -1")),
                     LT_ERR_ARG);
    assert_string_equal(lt_error_message(), "lr = -1");
    assert_int_equal(lt_ranks_combine(&ranks, &record, LT_OK), LT_ERR_REMOTE);
    assert_string_equal(lt_error_message(), "the world has ended");
}

/* The decisions about one step, as a table: recipe, record, step; expected result. Gradients are
 * summed with scale 1/8; clip 1. */
static void decisions_about_a_step(void **state) {
    static const struct {
        const char *recipe;
        lt_step_record record;
        int64_t step, skipped;
        bool late;
        double loss, norm, scale;
        bool apply, dead, give_up, validate, sample, save;
        int stop;
    } rows[] = {
        /* 4 labels of 8 expected: loss 12 / 4, scale 8 / 4; |g| = 0.25 sums to 0.5. */
        {"",
         {.weight_sum = 4, .loss_sum = 12, .sumsq = 0.0625},
         3,
         0,
         false,
         3,
         0.5,
         2,
         true,
         false,
         false,
         false,
         false,
         false,
         0},
        /* |g| = 3, times two: 6, clipped to 1. */
        {"",
         {.weight_sum = 4, .loss_sum = 12, .sumsq = 9},
         3,
         0,
         false,
         3,
         6,
         2.0 / 6.0,
         true,
         false,
         false,
         false,
         false,
         false,
         0},
        {"optim.clip=0",
         {.weight_sum = 4, .loss_sum = 12, .sumsq = 9},
         3,
         0,
         false,
         3,
         6,
         2,
         true,
         false,
         false,
         false,
         false,
         false,
         0},
        /* No label: there is nothing to learn, and nothing is wrong. */
        {"", {.rows = 4}, 3, 0, false, 0, 0, 0, true, false, false, false, false, false, 0},
        /* A gradient of exactly 0. */
        {"",
         {.weight_sum = 8, .loss_sum = 8},
         3,
         0,
         false,
         1,
         0,
         1,
         true,
         true,
         false,
         false,
         false,
         false,
         0},
        {"",
         {.weight_sum = 8, .loss_sum = NAN, .sumsq = 1},
         3,
         0,
         false,
         NAN,
         1,
         1,
         false,
         false,
         false,
         false,
         false,
         false,
         0},
        {"guard.limit=3",
         {.weight_sum = 8, .loss_sum = 8, .sumsq = INFINITY},
         3,
         1,
         false,
         1,
         INFINITY,
         0,
         false,
         false,
         false,
         false,
         false,
         false,
         0},
        {"guard.limit=3",
         {.weight_sum = 8, .loss_sum = 8, .sumsq = INFINITY},
         3,
         2,
         false,
         1,
         INFINITY,
         0,
         false,
         false,
         true,
         false,
         false,
         false,
         0},
        /* Due at multiples; a late checkpoint at once; a stop, but not after the last step. */
        {"eval.every=2 sample.every=3 checkpoint.every=6",
         {.weight_sum = 8, .loss_sum = 8, .sumsq = 1},
         6,
         0,
         false,
         1,
         1,
         1,
         true,
         false,
         false,
         true,
         true,
         true,
         0},
        {"eval.every=2 sample.every=3 checkpoint.every=6",
         {.weight_sum = 8, .loss_sum = 8, .sumsq = 1, .stop = 15},
         3,
         0,
         true,
         1,
         1,
         1,
         true,
         false,
         false,
         false,
         true,
         true,
         15},
        {"steps=6",
         {.weight_sum = 8, .loss_sum = 8, .sumsq = 1, .stop = LT_STOP_FILE},
         6,
         0,
         false,
         1,
         1,
         1,
         true,
         false,
         false,
         false,
         false,
         false,
         0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_recipe *r = run_recipe("decide", rows[i].recipe);
        lt_guard *g = calloc(1, sizeof *g);
        lt_step_decision d;
        assert_non_null(g);
        lt_guard_open(g, r);
        g->skipped_in_a_row = rows[i].skipped;
        lt_step_decide(&d, &rows[i].record,
                       &(lt_step_facts){.recipe = r,
                                        .guard = g,
                                        .step = rows[i].step,
                                        .summed_scale = 0.125,
                                        .save_late = rows[i].late,
                                        .whole = true});
        const bool same_loss = d.loss == rows[i].loss || (isnan(d.loss) && isnan(rows[i].loss));
        if (!same_loss || d.grad_norm != rows[i].norm ||
            fabs(d.grad_scale - rows[i].scale) > 1e-15 || d.apply != rows[i].apply ||
            d.dead != rows[i].dead || d.give_up != rows[i].give_up ||
            d.validate != rows[i].validate || d.sample != rows[i].sample ||
            d.save != rows[i].save || d.stop != rows[i].stop) {
            fail_msg("row %zu: loss %g, norm %g, scale %g, apply %d, dead %d, give up %d, validate "
                     "%d, sample %d, save %d, stop %d",
                     i, d.loss, d.grad_norm, d.grad_scale, d.apply, d.dead, d.give_up, d.validate,
                     d.sample, d.save, d.stop);
        }
        assert_int_equal(d.why[0] == '\0', d.apply);
        free(g);
        free(r);
    }
}

/* If the run may not stop here, a checkpoint that is due and a stop both wait. */
static void a_part_of_a_draw_waits(void **state) {
    lt_recipe *r = run_recipe("wait", "checkpoint.every=2 steps=9");
    lt_guard *g = calloc(1, sizeof *g);
    const lt_step_record record = {.weight_sum = 1, .stop = 15};
    (void)state;
    assert_non_null(g);
    lt_guard_open(g, r);
    for (int i = 0; i < 4; i++) {
        const bool whole = i % 2 == 1, due = i < 2;
        lt_step_decision d;
        lt_step_decide(&d, &record,
                       &(lt_step_facts){.recipe = r,
                                        .guard = g,
                                        .step = due ? 4 : 5,
                                        .summed_scale = 1,
                                        .save_late = i == 3,
                                        .whole = whole});
        assert_int_equal(d.save, whole);
        assert_int_equal(d.save_late, due && !whole);
        assert_int_equal(d.stop, whole ? 15 : 0);
    }
    free(g);
    free(r);
}

/* A second rank that exists only in this test: it adds a stop, or an error. */
static lt_err other_rank(void *of, lt_step_record *record) {
    lt_step_record_combine(record, of);
    return LT_OK;
}

static void decisions_of_several_ranks(void **state) {
    lt_recipe *r = run_recipe("ranks", "steps=3");
    lt_training *t = calloc(1, sizeof *t);
    lt_step_record other = {.ranks = 1, .weight_sum = 64, .loss_sum = 6400, .stop = 10};
    lt_step_outcome out;
    (void)state;
    assert_non_null(t);
    must(lt_training_open_with(
             t, r, device_of(lt_backend_cpu()),
             &(lt_training_with){.ranks = {.rank = 1, .of = &other, .combine = other_rank}}),
         "open");
    assert_false(run_has("ranks", "metrics.jsonl") || run_has("ranks", "lock") ||
                 run_has("ranks", "log.txt"));
    must(lt_training_step(t, &out), "step");
    assert_true(out.record.ranks == 2 && out.record.weight_sum == 64 + 4 * 16);
    assert_true(out.decision.loss > 50 && out.decision.stop == 10); /* (4.2 + 100) / 2. */
    other.error = LT_ERR_DEVICE;
    assert_int_equal(lt_training_step(t, &out), LT_ERR_REMOTE);
    says("another rank failed: device failure");
    assert_int_equal(t->state.step, 1);
    lt_training_close(t);
    free(t);
    free(r);
}

/* Steps of a run whose rows are in memory; those with weight 0 do not count; resumed from a
 * checkpoint, it has the same losses as in one run. */
static void steps_of(const char *out, int64_t steps, bool weights, double losses[6]) {
    enum { ROWS = 5, SEQ = 16 };
    static int32_t tokens[ROWS * SEQ], labels[ROWS * SEQ];
    static float w[ROWS * SEQ];
    lt_recipe *r = run_recipe(out, "batch.micro=2 steps=6");
    lt_training *t = calloc(1, sizeof *t);
    assert_non_null(t);
    for (int i = 0; i < ROWS * SEQ; i++) {
        tokens[i] = (i * 7 + i / SEQ) % RUN_IDS;
        labels[i] = (tokens[i] + 1) % RUN_IDS;
        w[i] = i % 2 == 0 ? 3.0f : 0.0f;
        labels[i] = weights || i % 2 == 0 ? labels[i] : -1; /* The same, as a mask. */
    }
    lt_rows_memory memory = {.rows = {.batch = ROWS,
                                      .seq = SEQ,
                                      .tokens = tokens,
                                      .labels = labels,
                                      .weights = weights ? w : NULL}};
    const lt_row_source source = lt_rows_in_memory(&memory);
    must(lt_training_open_with(t, r, device_of(lt_backend_cpu()),
                               &(lt_training_with){.rows = &source}),
         "open");
    for (int64_t i = t->state.step; i < steps; i++) {
        lt_step_outcome step;
        must(lt_training_step(t, &step), "step");
        losses[i] = step.decision.loss;
        assert_true(step.record.weight_sum == 4 * 8 * (weights ? 3 : 1));
    }
    must(lt_training_save(t), "save");
    lt_training_close(t);
    free(t);
    free(r);
}

static void rows_in_memory(void **state) {
    double once[6], twice[6], masked[6];
    (void)state;
    steps_of("once", 6, true, once);
    steps_of("twice", 3, true, twice);
    /* 12 rows of 5 were drawn, so it continues at the third. */
    steps_of("twice", 6, true, twice);
    steps_of("masked", 6, false, masked);
    assert_memory_equal(once, twice, sizeof once);
    for (int i = 0; i < 6; i++) {
        assert_true(fabs(once[i] - masked[i]) < 1e-5);
    }
}

/* Tokens up to the last label of the requested rows, in whole pieces of 16, at most the row. In
 * brackets: the place of each row's last label. */
static void tokens_up_to_the_last_label(void **state) {
    enum { SEQ = 40, ROWS = 6 };
    static const int last[ROWS] = {9, 15, 16, 31, 39, -1};
    static const struct {
        int first, n;
        int64_t step, used;
    } rows[] = {{0, 1, 16, 16}, {1, 1, 16, 16}, {2, 1, 16, 32}, {3, 1, 16, 32}, {4, 1, 16, 40},
                {5, 1, 16, 16}, {0, 2, 16, 16}, {0, 3, 16, 32}, {0, 5, 16, 40}, {2, 2, 16, 32},
                {5, 1, 1, 1},   {0, 1, 1, 10},  {3, 3, 1, 40},  {0, 2, 7, 21},  {0, 0, 16, 16}};
    int32_t labels[ROWS * SEQ];
    lt_batch b = {.seq = SEQ, .labels = labels};
    (void)state;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < SEQ; i++) {
            labels[r * SEQ + i] = i == last[r] ? 0 : -1;
        }
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int64_t used = lt_rows_used(&b, rows[i].first, rows[i].n, rows[i].step);
        if (used != rows[i].used) {
            fail_msg("%d rows from %d: %lld tokens, not %lld", rows[i].n, rows[i].first,
                     (long long)used, (long long)rows[i].used);
        }
    }
}

/* Three rows, drawn two at a time: 0 1, 2 0, 1 2. Without starts of documents and positions, a
 * row is one document from 0 on. */
static void rows_in_memory_repeat(void **state) {
    enum { SEQ = 2, ROWS = 3 };
    static const int32_t tokens[ROWS * SEQ] = {10, 11, 20, 21, 30, 31},
                                       labels[ROWS * SEQ] = {11, 12, 21, 22, 31, 32},
                                       starts[ROWS * SEQ] = {0, 1, 0, 0, 0, 1},
                                       places[] = {5, 0, 7, 8, 9, 0};
    static const float weights[ROWS * SEQ] = {1, 2, 3, 4, 5, 6};
    static const int drawn[3][2] = {{0, 1}, {2, 0}, {1, 2}};
    (void)state;
    for (int given = 0; given < 2; given++) {
        lt_rows_memory m = {.rows = {.tokens = tokens,
                                     .labels = labels,
                                     .doc_start = given ? starts : NULL,
                                     .positions = given ? places : NULL,
                                     .weights = given ? weights : NULL,
                                     .batch = ROWS,
                                     .seq = SEQ}};
        const lt_row_source source = lt_rows_in_memory(&m);
        int32_t got[4][2 * SEQ];
        float weight[2 * SEQ] = {0};
        lt_row_batch out = {.ids = {.seq = SEQ,
                                    .tokens = got[0],
                                    .labels = got[1],
                                    .doc_start = got[2],
                                    .positions = got[3]},
                            .weights = weight};
        json_t *place = NULL;
        assert_int_equal(source.weights, given);
        for (int k = 0; k < 3; k++) {
            lt_row_place at;
            must(source.next(source.of, 2, &out), "rows");
            for (int i = 0; i < 2 * SEQ; i++) {
                const int from = drawn[k][i / SEQ] * SEQ + i % SEQ;
                assert_int_equal(got[0][i], tokens[from]);
                assert_int_equal(got[1][i], labels[from]);
                assert_int_equal(got[2][i], given ? starts[from] : 0);
                assert_int_equal(got[3][i], given ? places[from] : i % SEQ);
                assert_true(weight[i] == (given ? weights[from] : 0.0F));
            }
            source.place(source.of, &at);
            assert_int_equal(at.row, (k + 1) * 2 % ROWS);
            json_decref(place);
            place = source.print(source.of, &at);
            assert_int_equal(json_integer_value(json_object_get(place, "row")), at.row);
        }
        json_object_set_new(place, "row", json_integer(2));
        must(source.seek(source.of, place), "seek");
        assert_int_equal(m.next, 2);
        json_object_set_new(place, "row", json_integer(0));
        must(source.seek(source.of, place), "the first row");
        assert_int_equal(m.next, 0);
        json_object_set_new(place, "row", json_integer(2));
        must(source.seek(source.of, place), "seek");
        for (int bad = -1; bad <= 3; bad += 4) {
            json_object_set_new(place, "row", json_integer(bad));
            assert_int_equal(source.seek(source.of, place), LT_ERR_STATE);
            assert_int_equal(m.next, 2);
        }
        json_object_del(place, "row");
        assert_int_not_equal(source.seek(source.of, place), LT_OK);
        json_decref(place);
        out.ids.seq = SEQ + 1;
        assert_int_equal(source.next(source.of, 1, &out), LT_ERR_ARG);
    }
}

/* Lines have the bytes of jansson's, and allocate no memory. */
static void metrics_rows(void **state) {
    const double values[] = {7, 0.5, NAN, 1e-5, 123456789012.0, 1.0 / 3.0, 9007199254740991.0};
    bool present[LT_TRAIN_METRIC_COUNT] = {true, true, true, true, true, false, true};
    double all[LT_TRAIN_METRIC_COUNT] = {0};
    char path[LT_PATH_BYTES], *text = NULL;
    lt_metrics m;
    size_t before;
    (void)state;
    memcpy(all, values, sizeof values);
    run_path(path, "rows.jsonl");
    must(lt_metrics_open(&m, path, &(lt_metrics_from){0}, NULL), path);
    must(lt_metrics_row(&m, "train", lt_train_metrics, LT_TRAIN_METRIC_COUNT, all, present), path);
    before = mallinfo2().uordblks;
    for (int i = 0; i < 100; i++) {
        must(lt_metrics_row(&m, "train", lt_train_metrics, LT_TRAIN_METRIC_COUNT, all, present),
             path);
    }
    assert_int_equal(mallinfo2().uordblks, before);
    lt_metrics_close(&m);
    must(lt_file_read(&text, NULL, path, 1 << 20), path);
    *strchr(text, '\n') = '\0';
    assert_string_equal(text,
                        "{\"kind\":\"train\",\"step\":7,\"time_s\":0.5,\"loss\":null,"
                        "\"lr\":1e-5,\"grad_norm\":1.23456789e11,\"tokens\":9007199254740991}");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_of_the_schedules),
                                       cmocka_unit_test(muon_without_adamw),
                                       cmocka_unit_test(records_combine),
                                       cmocka_unit_test(a_rank_reports_its_own_failure),
                                       cmocka_unit_test(decisions_about_a_step),
                                       cmocka_unit_test(a_part_of_a_draw_waits),
                                       cmocka_unit_test(decisions_of_several_ranks),
                                       cmocka_unit_test(rows_in_memory),
                                       cmocka_unit_test(tokens_up_to_the_last_label),
                                       cmocka_unit_test(rows_in_memory_repeat),
                                       cmocka_unit_test(metrics_rows)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
