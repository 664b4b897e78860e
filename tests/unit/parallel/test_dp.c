/* Data parallelism on ranks as threads: dense, GQA and MoE models, F32 and BF16, on 2, 3 and 4
 * ranks, equal the run on one rank except for the order of sums; micro-batches; all ranks hold
 * the same bits. */
#include "unit/parallel/ranks.h"

static void families(void **state) {
    const ranks_model *const models[] = {&ranks_dense, &ranks_gqa, &ranks_moe};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        ranks_compare(models[i], "batch.size=12", "dp=3", 3, &ranks_f32);
        ranks_compare(models[i], "batch.size=12 model.dtype=bf16", "dp=2", 2, &ranks_bf16);
    }
}

static void micro_batches(void **state) {
    (void)state;
    ranks_compare(&ranks_gqa, "batch.size=12 batch.micro=1 optim.clip=0.01", "dp=4", 4, &ranks_f32);
    ranks_compare(&ranks_moe, "batch.size=4 batch.micro=1 model.aux_coef=0.1", "dp=2", 2,
                  &ranks_f32);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(families), cmocka_unit_test(micro_batches)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
