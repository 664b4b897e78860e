/* Tensor and sequence parallelism in training runs on rank threads: dense, GQA and MoE models on 2,
 * 3 and 4 ranks, with data parallelism, equal the run on one rank except for the order of sums. */
#include "unit/parallel/ranks.h"

static void families(void **state) {
    const ranks_model *const models[] = {&ranks_dense, &ranks_gqa, &ranks_moe};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        ranks_compare(models[i], "", "tp=2", 2, &ranks_f32);
        ranks_compare(models[i], "", "tp=4", 4, &ranks_f32);
        ranks_compare(models[i], "batch.size=4", "dp=2,tp=2", 4, &ranks_f32);
    }
    ranks_compare(&ranks_gqa, "steps=50 model.vocab=301", "tp=2", 2, &ranks_f32);
    ranks_compare(&ranks_gqa, "model.dtype=bf16", "tp=2", 2, &ranks_bf16);
    ranks_compare(&ranks_moe, "model.dtype=bf16", "tp=4", 4, &ranks_bf16);
}

/* Stages whose layers are divided among ranks. */
static void with_stages(void **state) {
    (void)state;
    ranks_compare(&ranks_gqa, "batch.micro=1", "pp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_dense, "batch.size=4 batch.micro=1", "pp=2,dp=2,tp=2", 8, &ranks_f32);
}

/* Together with divided optimiser states, gradients and weights, divided tokens, zero-bubble
 * pipelines. */
static void with_other_axes(void **state) {
    (void)state;
    ranks_compare(&ranks_gqa, "batch.size=4 mesh.zero=1", "dp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_dense, "batch.size=4 mesh.zero=3", "dp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_moe, "batch.size=4 mesh.zero=2", "dp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_gqa, "mesh.context=ring", "cp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_dense, "mesh.context=ulysses", "cp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_gqa, "mesh.context=gather", "cp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_gqa, "batch.micro=1 mesh.schedule=zb-h1", "pp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&ranks_gqa, "batch.micro=1 mesh.schedule=zb-h1 model.recompute=selective",
                  "pp=2,tp=2", 4, &ranks_f32);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(families), cmocka_unit_test(with_stages),
                                       cmocka_unit_test(with_other_axes)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
