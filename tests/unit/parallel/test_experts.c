/* Ranks that divide the experts of each layer (ep), alone, with the other axes and at every level
 * of ZeRO, train as one rank does: experts of Mixtral and of gpt_oss, which bring biases and a
 * clamped activation; every level of recomputation; experts that no token chooses; too little
 * capacity is refused by name. */
#include "unit/parallel/ranks.h"

static const ranks_model biases = {
    "gpt_oss", "model.layers=2 model.width=32 model.heads=4 model.kv_heads=2 model.ffn=32 "
               "model.family=gpt_oss model.experts=4 model.top_k=2 model.aux_coef=0"};
/* 8 experts for 64 tokens on 4 ranks: some get no row from one rank, or from any. */
static const ranks_model many = {
    "many", "model.layers=1 model.width=32 model.heads=4 model.ffn=16 model.family=qwen3_moe "
            "model.experts=8 model.top_k=1 model.aux_coef=0 batch.size=4 batch.micro=1 steps=3"};

static void experts_alone(void **state) {
    (void)state;
    ranks_compare(&ranks_moe, "", "dp=2,ep=2", 2, &ranks_f32);
    ranks_compare(&ranks_moe, "model.recompute=selective", "dp=4,ep=4", 4, &ranks_f32);
    ranks_compare(&ranks_moe, "model.recompute=full", "dp=4,ep=2", 4, &ranks_f32);
    ranks_compare(&biases, "", "dp=2,ep=2", 2, &ranks_f32);
    ranks_compare(&many, "", "dp=4,ep=4", 4, &ranks_f32);
    ranks_compare(&ranks_moe, "model.dtype=bf16", "dp=2,ep=2", 2, &ranks_bf16);
}

static void with_other_axes(void **state) {
    (void)state;
    ranks_compare(&ranks_moe, "", "cp=2,ep=2", 2, &ranks_f32);
    ranks_compare(&ranks_moe, "", "tp=2,dp=2,ep=2", 4, &ranks_f32);
    ranks_compare(&biases, "", "tp=2,cp=2,ep=2", 4, &ranks_f32);
    ranks_compare(&ranks_moe, "", "pp=2,dp=2,ep=2", 4, &ranks_f32);
}

/* Ranks with the same experts divide the optimiser's state (ZeRO); everything but the experts is
 * summed over the other ranks, too. */
static void with_zero(void **state) {
    char options[128];
    (void)state;
    for (int zero = 1; zero <= 3; zero++) {
        (void)snprintf(options, sizeof options, "mesh.zero=%d batch.micro=1", zero);
        ranks_compare(&ranks_moe, options, "dp=4,ep=2", 4, &ranks_f32);
    }
    ranks_compare(&biases, "mesh.zero=2", "dp=2,cp=2,ep=2", 4, &ranks_f32);
    ranks_compare(&ranks_moe, "mesh.zero=3 optim.kind=muon", "dp=4,ep=2", 4, &ranks_f32);
    ranks_compare(&ranks_moe, "mesh.zero=3 model.dtype=bf16", "dp=4,ep=2", 4, &ranks_bf16);
    ranks_compare(&ranks_moe, "mesh.zero=3 batch.size=8", "dp=4,tp=2,ep=2", 8, &ranks_f32);
    ranks_compare(&ranks_moe, "mesh.zero=1 batch.size=8", "pp=2,dp=4,ep=2", 8, &ranks_f32);
}

/* Parts that one mesh wrote are resumed on another. */
static void zero_resumes_on_another_mesh(void **state) {
    static const struct {
        const char *mesh;
        int n, zero, steps;
    } legs[] = {{"dp=4,ep=2", 4, 3, 2}, {NULL, 1, 0, 4}, {"dp=4,ep=2", 4, 1, 6}};
    ranks_result whole = {0}, parts = {0};
    char options[512];
    (void)state;
    (void)snprintf(options, sizeof options, "%s steps=6", ranks_moe.options);
    assert_int_equal(ranks_try(&whole, "zero-whole", options, NULL, 1, true), LT_OK);
    for (size_t i = 0; i < sizeof legs / sizeof *legs; i++) {
        ranks_result_free(&parts);
        (void)snprintf(options, sizeof options, "%s steps=%d mesh.zero=%d", ranks_moe.options,
                       legs[i].steps, legs[i].zero);
        assert_int_equal(ranks_try(&parts, "zero-legs", options, legs[i].mesh, legs[i].n, true),
                         LT_OK);
    }
    for (size_t i = 0; i < (size_t)whole.table.whole_elements; i++) {
        assert_true(fabsf(whole.weights[i] - parts.weights[i]) <= 2e-5f);
    }
    ranks_result_free(&whole);
    ranks_result_free(&parts);
}

static void too_little_capacity_is_refused(void **state) {
    ranks_result r = {0};
    const lt_err err = ranks_try(&r, "room", many.options, "dp=4,ep=4", 4, false);
    (void)state;
    assert_int_equal(err, LT_OK);
    ranks_result_free(&r);
    char options[512];
    (void)snprintf(options, sizeof options, "%s mesh.expert_room=0.5", many.options);
    assert_int_equal(ranks_try(&r, "narrow", options, "dp=4,ep=4", 4, false), LT_ERR_LIMIT);
    says("(mesh.expert_room = 0.5)");
    ranks_result_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_alone), cmocka_unit_test(with_other_axes),
        cmocka_unit_test(with_zero), cmocka_unit_test(zero_resumes_on_another_mesh),
        cmocka_unit_test(too_little_capacity_is_refused)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
