/* A call of the device that fails ends a training step with its error. The calls of passes are
 * those of model/test_failing_ops; here the norm, clipping and the update of each optimiser are
 * made to fail in turn. */
#include "unit/train/run_folder.h"

#include "unit/failing_ops.h"

static const char *options;

/* Open a run and take two steps, the second of which counts. */
static lt_err second_step(void *of) {
    lt_recipe *r;
    lt_training *t = calloc(1, sizeof *t);
    lt_step_outcome out;
    lt_err err;
    char path[LT_PATH_BYTES];
    (void)of;
    assert_non_null(t);
    failing.paused = true;
    run_path(path, "step");
    (void)!lt_file_remove_tree(path);
    r = run_recipe("step", options);
    must(lt_training_open(t, r, device_of(failing_backend())), options);
    must(lt_training_step(t, &out), "first");
    failing.paused = false;
    err = lt_training_step(t, &out);
    failing.paused = true;
    lt_training_close(t);
    failing.paused = false;
    free(t);
    free(r);
    return err;
}

static void steps(void **state) {
    static const char *const cases[] = {
        "optim.kind=adamw optim.clip=0.1", "optim.kind=muon batch.micro=2",
        "optim.kind=lion model.family=llama", "optim.kind=ademamix model.recompute=full"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        options = cases[i];
        failing_last(second_step, NULL, cases[i], 30);
    }
}

static int make(void **state) {
    /* The peak rate of the device is not measured at each start. */
    return setenv("LATEEN_PEAK_GFLOPS", "100", 1) != 0 || run_root_make(state) != 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps)};
    return cmocka_run_group_tests(tests, make, run_root_remove);
}
