/* The memory that a run needs on a GPU if ranks divide its state: the table of bytes per
 * parameter in docs/parallel.md (BF16, AdamW), the buffers of units that are present temporarily,
 * and the memory in which ranks compute sums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "train/recipe/fit.h"
#include "train/recipe/shapes.h"

#define N 4 /* Ranks. */

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* Elements of the embeddings, the head and two layers. */
static double rooms(const lt_param_table *t) {
    return (double)(t->units[0].n_elements + t->units[t->n_units - 1].n_elements +
                    2 * t->units[1].n_elements);
}

static double needed(const lt_recipe *r, const lt_model_spec *spec, int level, double *room) {
    const lt_mesh_shape shape = {.pp = 1, .dp = N, .cp = 1, .tp = 1, .ep = 1};
    lt_world world = {.shape = shape};
    lt_pass_options o = lt_fit_pass_options(r, true);
    lt_shards shards;
    lt_partition full;
    size_t bytes;
    must(lt_layout_open(&world.layout, spec, &shape, 0));
    must(lt_shards_open(&shards, &world, level, 0));
    if (level > 0) {
        full = lt_shards_full(&shards);
        o.partition = &full;
        o.master_elsewhere = true;
        o.gradients_elsewhere = level > 1;
        *room = rooms(&shards.full);
    }
    must(lt_fit_bytes(&bytes, r, spec, LT_BF16, &o, &shards));
    lt_shards_close(&shards);
    return (double)bytes;
}

static void state_is_divided(void **state) {
    const double of_parameter[] = {18.0, 6.0 + 14.0 / N, 2.0 + 18.0 / N, 18.0 / N},
                 of_room[] = {0.0, 0.0, 4.0, 4.0 + 2.0};
    const lt_train_shape *shape = lt_train_shape_find("gpt2-124m");
    static lt_recipe r;
    lt_pass_options o;
    size_t alone;
    double room = 0.0;
    (void)state;
    lt_options_default(&lt_recipe_table, &r);
    r.dtype = 1;
    r.batch = 4;
    r.seq = 1024;
    assert_non_null(shape);
    const lt_model_spec spec = lt_train_shape_spec(shape, r.seq);
    const double params = (double)lt_model_spec_params(&spec);
    o = lt_fit_pass_options(&r, true);
    must(lt_fit_bytes(&alone, &r, &spec, LT_BF16, &o, NULL));
    for (int level = 0; level <= 3; level++) {
        const double sums = (double)lt_comm_device_measure(N).device_bytes;
        const double got = needed(&r, &spec, level, &room) - (double)alone - sums,
                     want = (of_parameter[level] - of_parameter[0]) * params +
                            of_room[level] * room;
        if (fabs(got - want) > 1e-3 * of_parameter[0] * params) {
            fail_msg("level %d: %.0f bytes more than one rank, expected %.0f", level, got, want);
        }
    }
}

/* For sums: 16 MiB for each rank and 16 more, up to 8 ranks; then 128 MiB in all and one piece;
 * at least 1 MiB per rank: 48, 144, 136, 257. For messages of neighbours (comm/peer.h): 4 KiB of
 * words, and a mailbox for each of at most 15 with 2 slots of 16 MiB and 6 of a quarter of that,
 * or less if 192 MiB for all mailboxes require it: 56, 191.4, 190.3. */
static void memory_for_sums(void **state) {
    const int ranks[] = {1, 2, 8, 16, 256};
    const size_t mib[] = {0, 104, 335, 326, 447};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        assert_int_equal(lt_comm_device_measure(ranks[i]).device_bytes >> 20, mib[i]);
    }
}

/* The logits of a batch are kept if they take at most half of what the run leaves free, which may
 * fit to the byte; not those of sft, which are not needed a second time, nor if the recipe
 * forbids it. */
static void when_logits_are_kept(void **state) {
    const lt_train_shape *shape = lt_train_shape_find("gpt2-124m");
    static lt_recipe r;
    size_t need;
    (void)state;
    lt_options_default(&lt_recipe_table, &r);
    r.dtype = 1;
    r.batch = 4;
    r.seq = 1024;
    r.objective = LT_RECIPE_OBJECTIVE_dpo;
    assert_non_null(shape);
    const lt_model_spec spec = lt_train_shape_spec(shape, r.seq);
    lt_pass_options o = lt_fit_pass_options(&r, true);
    const size_t kept = (size_t)(o.batch * r.seq * spec.vocab_size) * 2;
    assert_int_equal(o.batch, 8); /* Pairs. */
    must(lt_fit_bytes(&need, &r, &spec, LT_BF16, &o, NULL));
    const struct {
        size_t left;
        int64_t objective, recompute;
        bool asked, stay;
    } cases[] = {
        {need + 2 * kept, LT_RECIPE_OBJECTIVE_dpo, LT_RECOMPUTE_NONE, true, true},
        {need + 2 * kept, LT_RECIPE_OBJECTIVE_dpo, LT_RECOMPUTE_NONE, false, false},
        {need + 2 * kept - 1, LT_RECIPE_OBJECTIVE_dpo, LT_RECOMPUTE_NONE, true, false},
        {need - 1, LT_RECIPE_OBJECTIVE_dpo, LT_RECOMPUTE_NONE, true, false},
        {SIZE_MAX, LT_RECIPE_OBJECTIVE_dpo, LT_RECOMPUTE_SELECTIVE, true, true},
        {SIZE_MAX, LT_RECIPE_OBJECTIVE_dpo, LT_RECOMPUTE_FULL, true, false},
        {SIZE_MAX, LT_RECIPE_OBJECTIVE_grpo, LT_RECOMPUTE_NONE, true, true},
        {SIZE_MAX, LT_RECIPE_OBJECTIVE_sft, LT_RECOMPUTE_NONE, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t with;
        r.objective = (int)cases[i].objective;
        r.recompute = (int)cases[i].recompute;
        r.keep_logits = cases[i].asked;
        must(lt_fit_keep_logits(&o, &r, &spec, LT_BF16, NULL, NULL, cases[i].left));
        if (o.keep_logits != cases[i].stay) {
            fail_msg("case %zu: the logits %s", i, o.keep_logits ? "stay" : "do not stay");
        }
        must(lt_fit_bytes(&with, &r, &spec, LT_BF16, &o, NULL));
        assert_true(i > 0 || with == need + kept);
    }
}

/* Prompts are shared if rows are judged by their values: not for plain texts, not for a student,
 * whose rows are compared with its teacher's, and not if any number of ranks must give the same
 * bits. */
static void when_prompts_are_shared(void **state) {
    static const struct {
        int64_t objective, deterministic;
        bool asked, shared;
    } cases[] = {
        {LT_RECIPE_OBJECTIVE_dpo, 0, true, true},      {LT_RECIPE_OBJECTIVE_dpo, 0, false, false},
        {LT_RECIPE_OBJECTIVE_dpo, 1, true, false},     {LT_RECIPE_OBJECTIVE_grpo, 0, true, true},
        {LT_RECIPE_OBJECTIVE_sft, 0, true, false},     {LT_RECIPE_OBJECTIVE_reward, 0, true, true},
        {LT_RECIPE_OBJECTIVE_distill, 0, true, false},
    };
    lt_recipe r;
    (void)state;
    lt_options_default(&lt_recipe_table, &r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        r.objective = (int)cases[i].objective;
        r.deterministic = (int)cases[i].deterministic;
        r.share_prompts = cases[i].asked;
        if (lt_fit_pass_options(&r, false).shares != cases[i].shared) {
            fail_msg("case %zu: prompts are%s shared", i, cases[i].shared ? " not" : "");
        }
    }
}

/* Parameters as published: of llm.c's GPT-2 with a padded vocabulary, of Llama 3.2 1B and Llama 3
 * 8B; the others by the sums of their shapes. */
static void shapes_have_their_sizes(void **state) {
    static const struct {
        const char *name;
        int64_t params, active, positions;
    } cases[] = {{"gpt2-124m", 124475904, 0, 1024},
                 {"llama-1b", 1235814400, 0, 4096},
                 {"llama-8b", 8030261248, 0, 4096},
                 {"moe-8x125m", 0, 2, 2048}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const lt_train_shape *shape = lt_train_shape_find(cases[i].name);
        assert_non_null(shape);
        assert_string_equal(shape->name, cases[i].name);
        const lt_model_spec spec = lt_train_shape_spec(shape, cases[i].positions);
        assert_true(cases[i].params == 0 || lt_model_spec_params(&spec) == cases[i].params);
        assert_int_equal(spec.top_k, cases[i].active);
        assert_int_equal(spec.n_experts, shape->experts);
        assert_int_equal(spec.max_seq, cases[i].positions);
        assert_int_equal(lt_train_shape_spec(shape, 16).max_seq, 1024);
    }
    for (int i = 0; i < LT_TRAIN_N_SHAPES;
         i++) { /* Heads divide the width, and groups the heads. */
        const lt_model_spec spec = lt_train_shape_spec(&lt_train_shapes[i], 1);
        assert_int_equal(spec.head_dim * spec.n_heads, spec.width);
        assert_int_equal(spec.n_heads % spec.n_kv_heads, 0);
    }
    assert_null(lt_train_shape_find("gpt2"));
    assert_null(lt_train_shape_find("llama-8b-instruct"));
}

/* Rows of the largest micro-batch of at most `batch` rows for which the device has memory, found by
 * trying each. */
static int64_t rows_that_fit(const lt_recipe *r, const lt_model_spec *spec, lt_pass_options o,
                             lt_recompute level, size_t left) {
    const int64_t batch = o.batch;
    int64_t rows = 0;
    o.recompute = level;
    for (o.batch = 1; o.batch <= batch; o.batch++) {
        size_t bytes;
        must(lt_fit_bytes(&bytes, r, spec, LT_BF16, &o, NULL));
        rows = bytes <= left ? o.batch : rows;
    }
    return rows;
}

/* A device without enough memory is refused with what would fit at each level of recomputation, or
 * with what one row needs. Exactly enough is enough. */
static void what_does_not_fit_is_told(void **state) {
    static const char *const names[] = {"none", "selective", "full"};
    const lt_train_shape *shape = lt_train_shape_find("gpt2-124m");
    const double gib = 1073741824.0;
    static lt_recipe r;
    size_t need, one_row;
    (void)state;
    lt_options_default(&lt_recipe_table, &r);
    r.dtype = 1;
    r.batch = 6;
    r.seq = 1024;
    assert_non_null(shape);
    const lt_model_spec spec = lt_train_shape_spec(shape, r.seq);
    const lt_pass_options o = lt_fit_pass_options(&r, true);
    lt_pass_options one = o;
    one.batch = 1;
    one.recompute = LT_RECOMPUTE_FULL;
    must(lt_fit_bytes(&need, &r, &spec, LT_BF16, &o, NULL));
    must(lt_fit_bytes(&one_row, &r, &spec, LT_BF16, &one, NULL));
    must(lt_fit_check(&r, &spec, LT_BF16, &o, NULL, need));
    const size_t lefts[] = {need - 1, need - (need - one_row) / 3, need - (need - one_row) / 2,
                            one_row + (need - one_row) / 8, one_row};
    for (size_t i = 0; i < sizeof lefts / sizeof *lefts; i++) {
        char want[512];
        int n = snprintf(want, sizeof want,
                         "out of memory: batch.micro = 6 with model.recompute = none needs %.2f "
                         "GiB of the device "
                         "and %.2f GiB are left, %.2f GiB too few; what fits:",
                         (double)need / gib, (double)lefts[i] / gib,
                         (double)(need - lefts[i]) / gib);
        const char *before = "";
        for (int level = LT_RECOMPUTE_NONE; level <= LT_RECOMPUTE_FULL; level++) {
            const int64_t rows = rows_that_fit(&r, &spec, o, (lt_recompute)level, lefts[i]);
            if (rows > 0) {
                n += snprintf(want + n, sizeof want - (size_t)n,
                              "%s batch.micro = %lld with model.recompute = %s", before,
                              (long long)rows, names[level]);
                before = ", or";
            }
        }
        assert_int_equal(lt_fit_check(&r, &spec, LT_BF16, &o, NULL, lefts[i]), LT_ERR_OOM);
        assert_string_equal(lt_error_message(), want);
    }
    char want[256];
    assert_int_equal(lt_fit_check(&r, &spec, LT_BF16, &o, NULL, one_row - 1), LT_ERR_OOM);
    (void)snprintf(
        want, sizeof want,
        "out of memory: one row of 1024 tokens with model.recompute = full needs %.2f GiB of the "
        "device, mostly weights, gradients and moments, and %.2f GiB are left: ",
        (double)one_row / gib, (double)(one_row - 1) / gib);
    assert_memory_equal(lt_error_message(), want, strlen(want));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_have_their_sizes), cmocka_unit_test(state_is_divided),
        cmocka_unit_test(memory_for_sums),         cmocka_unit_test(when_logits_are_kept),
        cmocka_unit_test(when_prompts_are_shared), cmocka_unit_test(what_does_not_fit_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
