/* deterministic = mesh-invariant: the bits of a run on 1, 2, 4 and 8 ranks, and with changes of
 * their number, are the same: gradients, losses, norms, weights. Options that contradict it are
 * refused. */
#include "unit/parallel/ranks.h"

#include "train/invariant.h"

static void any_number_of_ranks(void **state) {
    static const ranks_model *const models[] = {&ranks_dense, &ranks_gqa, &ranks_moe};
    static const char *const options[] = {"batch.size=16", "batch.size=32 batch.micro=2",
                                          "batch.size=24 model.dtype=bf16 optim.clip=0.01"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        ranks_result one = {0};
        char all[512], out[48];
        (void)snprintf(all, sizeof all, "steps=5 deterministic=mesh-invariant %s %s",
                       models[i]->options, options[i]);
        (void)snprintf(out, sizeof out, "invariant-%d", i);
        must(ranks_try(&one, out, all, NULL, 1, false), all);
        for (int n = 2; n <= 8; n *= 2) {
            ranks_result many = {0};
            char mesh[16];
            (void)snprintf(mesh, sizeof mesh, "dp=%d", n);
            (void)snprintf(out, sizeof out, "invariant-%d-%d", i, n);
            must(ranks_try(&many, out, all, mesh, n, false), all);
            ranks_equal(&many, &one, &ranks_bits, mesh);
            ranks_result_free(&many);
        }
        ranks_result_free(&one);
    }
}

/* The sum must also be the one without groups, except for the order. */
static void equal_to_the_sum_without_groups(void **state) {
    ranks_result plain = {0}, grouped = {0};
    char all[512];
    (void)state;
    (void)snprintf(all, sizeof all, "steps=5 batch.size=16 %s", ranks_gqa.options);
    must(ranks_try(&plain, "plain", all, NULL, 1, false), all);
    (void)snprintf(all, sizeof all, "steps=5 batch.size=16 deterministic=mesh-invariant %s",
                   ranks_gqa.options);
    must(ranks_try(&grouped, "grouped", all, NULL, 1, false), all);
    for (int64_t i = 0; i < 5; i++) {
        ranks_close(grouped.losses[i], plain.losses[i], ranks_f32.loss, "a loss", "grouped");
        ranks_close(grouped.norms[i], plain.norms[i], ranks_f32.norm, "a norm", "grouped");
    }
    ranks_result_free(&plain);
    ranks_result_free(&grouped);
}

static void refusals(void **state) {
    static const struct {
        const char *options, *mesh;
        int n;
        const char *says;
    } rows[] = {
        {"batch.size=12", NULL, 1, "a step of 12 rows cannot be divided into batch.groups = 8; 16"},
        {"batch.size=16 batch.groups=6", NULL, 1, "batch.groups = 6 is not a power of two"},
        {"batch.size=24", "dp=3", 3, "batch.groups = 8 cannot be divided by dp=3"},
        {"batch.size=16 mesh.zero=1", "dp=2", 2, "with mesh.zero = 0; here"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ranks_result r = {0};
        char all[512];
        (void)snprintf(all, sizeof all, "steps=1 deterministic=mesh-invariant %s", rows[i].options);
        assert_int_not_equal(ranks_try(&r, "refused", all, rows[i].mesh, rows[i].n, false), LT_OK);
        if (rows[i].mesh == NULL) {
            says(rows[i].says);
        }
        ranks_result_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_number_of_ranks),
                                       cmocka_unit_test(equal_to_the_sum_without_groups),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
