/* One optimiser step: what the schedules say of it is computed once, and what is decided of it is
 * read from one record. */
#include "unit/train/run_folder.h"

#include <math.h>

/* Two peaks, one schedule: half of each after 2 of 4 steps of warm-up. */
static void plan(void **state) {
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

/* A peak of 0 for what AdamW updates says nothing of Muon's matrices: they learn, at their own
 * rate; the rest stands still, and nothing becomes NaN (0 / 0 once was Muon's rate here). */
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
        lt_step_report report;
        must(lt_training_step(t, &report), "step");
        assert_true(isfinite(report.loss) && report.skipped == NULL);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plan),
                                       cmocka_unit_test(muon_without_adamw)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
