/* Runs whose numbers become wrong at a step that the test chooses: which checkpoints are left,
 * what the failure names, and where the next start resumes. The lists are worked out by hand from
 * checkpoint.every, keep_last, guard.limit and the step. */
#include <math.h>

#include "unit/train/run_folder.h"

#include "tensor/backend.h"
#include "tensor/ops.h"

/* The CPU, with faults: gradients of NaN in steps [nan_from, nan_to), and an update that ends
 * with a change of the weights. */
static struct {
    int64_t step; /* Counted by the sums of squares, one per step. */
    int64_t nan_from, nan_to;
    int64_t spoil_step;
    enum { SPOIL_ONE_UNUSED, SPOIL_ALL, BLOW_UP, FORGET } how;
} fault;
static lt_ops faulty_ops;
static lt_backend faulty;

static lt_err sumsq(lt_queue *q, const lt_sumsq_args *a) {
    fault.step++;
    LT_TRY(lt_backend_cpu()->ops->sumsq(q, a));
    if (fault.step >= fault.nan_from && fault.step < fault.nan_to) {
        *(double *)a->out.data = NAN;
    }
    return LT_OK;
}

/* Row 63 of the embedding belongs to an id that the data do not contain, so NaN there reaches no
 * loss. */
static lt_err adamw(lt_queue *q, const lt_adamw_args *a) {
    float *p = a->p.data;
    const bool embedding = a->first == 0; /* The first parameter of the model. */
    LT_TRY(lt_backend_cpu()->ops->adamw(q, a));
    if (fault.step != fault.spoil_step) {
        return LT_OK;
    }
    for (int64_t i = 0; i < a->p.shape[0]; i++) {
        if (fault.how == SPOIL_ALL ||
            (fault.how == SPOIL_ONE_UNUSED && embedding && i == 63 * 16)) {
            p[i] = NAN;
        } else if (fault.how == BLOW_UP) {
            p[i] = sinf((float)i) * 40.0f;
        } else if (fault.how == FORGET) {
            p[i] = sinf((float)i) * 0.02f;
        }
    }
    return LT_OK;
}

static const lt_backend *broken(int64_t nan_from, int64_t nan_to, int64_t spoil_step, int how) {
    faulty_ops = *lt_backend_cpu()->ops;
    faulty_ops.sumsq = sumsq;
    faulty_ops.adamw = adamw;
    faulty = *lt_backend_cpu();
    faulty.ops = &faulty_ops;
    fault.step = 0;
    fault.nan_from = nan_from;
    fault.nan_to = nan_to;
    fault.spoil_step = spoil_step;
    fault.how = how;
    return &faulty;
}

#define FOREVER INT64_MAX
#define NEVER   INT64_MAX, SPOIL_ALL

/* A save every 4 steps, NaN from step 17 on, limit 16: saves at 20, 24, 28 and 32 are due and not
 * made; the failure comes at step 32. */
static void nan_from_17(void **state) {
    json_t *end;
    (void)state;
    assert_int_equal(run_train("a", "steps=40 checkpoint.every=4", broken(17, FOREVER, NEVER)),
                     LT_ERR_NUMERIC);
    says("step 32: 16 updates in a row were skipped (loss ");
    says("/a/checkpoints/step-000000012"); /* 16 holds the weights that failed. */
    says("smaller --optim.lr");
    run_holds("a", "12 16");
    assert_true(run_has("a", "report.html"));
    end = run_lines("a", "diverged");
    assert_int_equal(json_array_size(end), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(end, 0), "go_on_from")), 12);
    json_decref(end);
    must(run_train("a", "steps=20 checkpoint.every=4 optim.lr=1e-4", NULL), "goes on");
    run_holds("a", "16 20");
    assert_true(run_has("a", "checkpoints/step-000000016.left"));
    assert_false(run_has("a", "diverged.json"));
    assert_true(run_has("a", "history/recipe-000.yaml"));
    assert_true(run_has("a", "history/metrics-000.jsonl"));
}

/* 18 is the first bad step: update 17 changed the weights after 16, so the run resumes from
 * 16. */
static void nan_after_a_good_step(void **state) {
    (void)state;
    assert_int_equal(
        run_train("b", "steps=40 checkpoint.every=4 guard.limit=5", broken(18, FOREVER, NEVER)),
        LT_ERR_NUMERIC);
    says("step 22: 5 updates in a row");
    says("/b/checkpoints/step-000000016");
    run_holds("b", "12 16");
    must(run_train("b", "steps=20 checkpoint.every=4", NULL), "goes on");
    run_holds("b", "16 20");
    assert_false(run_has("b", "checkpoints/step-000000016.left"));
    assert_false(run_has("b", "history/metrics-000.jsonl")); /* Nothing was left. */
}

static void keep_one(void **state) {
    (void)state;
    assert_int_equal(run_train("c", "steps=40 checkpoint.every=4 checkpoint.keep_last=1",
                               broken(10, FOREVER, NEVER)),
                     LT_ERR_NUMERIC);
    run_holds("c", "8");
    says("/c/checkpoints/step-000000008");
}

static void keep_every(void **state) {
    (void)state;
    assert_int_equal(
        run_train("d", "steps=40 checkpoint.every=4 checkpoint.keep_last=1 checkpoint.keep_every=8",
                  broken(22, FOREVER, NEVER)),
        LT_ERR_NUMERIC);
    run_holds("d", "8 16 20");
}

/* One bad step at which a save is due: the next step saves. */
static void a_save_waits_for_a_good_step(void **state) {
    json_t *skips;
    (void)state;
    must(run_train("e", "steps=13 checkpoint.every=4 checkpoint.keep_last=9", broken(8, 9, NEVER)),
         "one bad step");
    run_holds("e", "4 9 12 13");
    skips = run_lines("e", "skip");
    assert_int_equal(json_array_size(skips), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(skips, 0), "step")), 8);
    json_decref(skips);
}

/* A weight that no loss depends on is NaN from update 10 on: 12 is not published, and the run
 * ends there. */
static void unseen_weight(void **state) {
    (void)state;
    assert_int_equal(run_train("f", "steps=40 checkpoint.every=4",
                               broken(FOREVER, FOREVER, 10, SPOIL_ONE_UNUSED)),
                     LT_ERR_NUMERIC);
    says("checkpoint of step 12 not saved: weights.safetensors: element 1008 of ");
    says("is not finite");
    says("/f/checkpoints/step-000000008");
    run_holds("f", "4 8");
    must(run_train("f", "steps=12 checkpoint.every=4", NULL), "goes on");
    run_holds("f", "8 12");
}

/* Update 16 ruins the weights, and a save at 16 is due: the loss of that save shows it, before
 * the next step does. */
static void bad_weights_at_a_save(void **state) {
    (void)state;
    assert_int_equal(run_train("g", "steps=40 checkpoint.every=4 checkpoint.keep_last=1",
                               broken(FOREVER, FOREVER, 16, SPOIL_ALL)),
                     LT_ERR_NUMERIC);
    run_holds("g", "12");
    says("/g/checkpoints/step-000000012");
    says("step 32: 16 updates");
}

/* The last update ruins the weights: no checkpoint, no model. */
static void bad_weights_at_the_end(void **state) {
    (void)state;
    assert_int_equal(run_train("h", "steps=10 checkpoint.every=4 export=true",
                               broken(FOREVER, FOREVER, 10, SPOIL_ALL)),
                     LT_ERR_NUMERIC);
    says("step 10, the last one");
    run_holds("h", "4 8");
    assert_false(run_has("h", "model"));
}

/* Losses that are finite, but far too high: 16 and 20 are published and do not displace 12. A
 * stopped run resumes from the newest, bit for bit; only after a divergence it goes back. */
static void losses_far_above_the_best(void **state) {
    lt_run_state s = {0};
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    (void)state;
    must(run_train("i", "steps=20 checkpoint.every=4 checkpoint.keep_last=1 optim.lr=1e-5",
                   broken(FOREVER, FOREVER, 14, BLOW_UP)),
         "finite");
    run_holds("i", "12 20");
    run_path(path, "i/checkpoints/step-000000020/manifest.json");
    must(lt_file_read(&text, &bytes, path, 1 << 20), path);
    must(lt_checkpoint_parse(&s, text, bytes, path), path);
    assert_true(s.suspect);
    assert_true(s.loss > 6.0); /* ln 64 = 4.16, and more than a nat above that. */
    lt_run_state_clear(&s);
    free(text);
    assert_int_equal(run_train("i",
                               "steps=40 checkpoint.every=4 checkpoint.keep_last=1 optim.lr=1e-5 "
                               "guard.limit=2",
                               broken(2, FOREVER, NEVER)),
                     LT_ERR_NUMERIC); /* Step 21 is good, 22 and 23 are not. */
    says("/i/checkpoints/step-000000012");
    run_holds("i", "12 20");
    must(run_train("i", "steps=16 checkpoint.every=4 checkpoint.keep_last=1 optim.lr=1e-5", NULL),
         "goes back");
    run_holds("i", "16");
    assert_true(run_has("i", "checkpoints/step-000000020.left"));
}

/* A run has learnt its data to less than half a nat, and then has weights as bad as at the
 * beginning: ln 64 = 4.16 is no more than its first loss, but far above its best. */
static void losses_as_at_the_beginning(void **state) {
    char path[LT_PATH_BYTES], *text = NULL, options[LT_PATH_BYTES + 128];
    int32_t header[256] = {20240520, 1, RUN_TOKENS};
    lt_run_state s = {0};
    size_t bytes = 0;
    FILE *f;
    (void)state;
    run_path(path, "cycle.bin");
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, sizeof header, 1, f), 1);
    for (int i = 0; i < RUN_TOKENS; i++) {
        const uint16_t id = (uint16_t)(i % 3);
        assert_int_equal(fwrite(&id, sizeof id, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
    (void)snprintf(options, sizeof options,
                   "steps=120 checkpoint.every=4 checkpoint.keep_last=1 optim.lr=0.02 "
                   "data.train=%s",
                   path);
    must(run_train("l", options, broken(FOREVER, FOREVER, 118, FORGET)), "finite");
    run_holds("l", "116 120");
    run_path(path, "l/checkpoints/step-000000120/manifest.json");
    must(lt_file_read(&text, &bytes, path, 1 << 20), path);
    must(lt_checkpoint_parse(&s, text, bytes, path), path);
    assert_true(s.suspect && s.loss > 3.5 && s.loss < 5.0);
    lt_run_state_clear(&s);
    free(text);
}

/* Bad from the first step on: there is nothing to resume from, and nothing is lost by starting
 * again. */
static void never_good(void **state) {
    (void)state;
    assert_int_equal(run_train("j", "steps=40 checkpoint.every=4", broken(1, FOREVER, NEVER)),
                     LT_ERR_NUMERIC);
    says("There is no earlier checkpoint");
    run_holds("j", "");
    must(run_train("j", "steps=4", NULL), "anew");
    run_holds("j", "4");
}

/* The only checkpoint holds the weights that failed: it is not silently used again. */
static void the_only_checkpoint_has_failed(void **state) {
    char path[LT_PATH_BYTES], options[LT_PATH_BYTES + 64];
    (void)state;
    assert_int_equal(
        run_train("k", "steps=40 checkpoint.every=4 guard.limit=3", broken(5, FOREVER, NEVER)),
        LT_ERR_NUMERIC);
    run_holds("k", "4");
    assert_int_equal(run_train("k", "steps=8", NULL), LT_ERR_STATE);
    says("hold the failed weights");
    run_path(path, "k/checkpoints/step-000000004");
    (void)snprintf(options, sizeof options, "steps=8 resume=%s", path);
    must(run_train("k", options, NULL), "chosen");
    run_holds("k", "4 8");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nan_from_17),
                                       cmocka_unit_test(nan_after_a_good_step),
                                       cmocka_unit_test(keep_one),
                                       cmocka_unit_test(keep_every),
                                       cmocka_unit_test(a_save_waits_for_a_good_step),
                                       cmocka_unit_test(unseen_weight),
                                       cmocka_unit_test(bad_weights_at_a_save),
                                       cmocka_unit_test(bad_weights_at_the_end),
                                       cmocka_unit_test(losses_far_above_the_best),
                                       cmocka_unit_test(losses_as_at_the_beginning),
                                       cmocka_unit_test(never_good),
                                       cmocka_unit_test(the_only_checkpoint_has_failed)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
