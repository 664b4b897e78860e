/* Runs whose ranks divide the tokens of a sequence (cp) equal those of one rank, with each of the
 * three ways of attention; F32 and BF16, also combined with data parallelism. */
#include "unit/parallel/ranks.h"

static const char *const kinds[] = {"mesh.context=gather", "mesh.context=ulysses",
                                    "mesh.context=ring"};

static void two_ranks(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        ranks_compare(&ranks_dense, kinds[i], "cp=2", 2, &ranks_f32);
        ranks_compare(&ranks_gqa, kinds[i], "cp=2", 2, &ranks_f32);
    }
}

static void four_ranks(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        ranks_compare(&ranks_gqa, kinds[i], "cp=4", 4, &ranks_f32);
        ranks_compare(&ranks_moe, kinds[i], "dp=2,cp=2", 4, &ranks_f32);
        ranks_compare(&ranks_gqa, kinds[i], "pp=2,cp=2", 4, &ranks_f32);
    }
}

static void in_16_bits(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        char more[128];
        (void)snprintf(more, sizeof more, "model.dtype=bf16 %s", kinds[i]);
        ranks_compare(&ranks_gqa, more, "cp=2", 2, &ranks_bf16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(two_ranks), cmocka_unit_test(four_ranks), cmocka_unit_test(in_16_bits)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
