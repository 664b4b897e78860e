/* ZeRO 1, 2 and 3 with ranks as threads: the bits of plain data parallelism, for each family,
 * type and optimiser. Except for the order of sums, the same holds for accumulated gradients at
 * levels 2 and 3, which are summed batch by batch, and for groups that shard separately. */
#include "unit/parallel/ranks.h"

/* The scalars of xIELU are read in F32 while weights are BF16. */
static const ranks_model apertus = {
    "apertus", "model.layers=3 model.width=32 model.heads=4 model.ffn=64 model.family=apertus"};

static ranks_result run(const ranks_model *m, const char *out, const char *options, int zero,
                        const char *mesh, int n) {
    char all[512], who[600];
    ranks_result r = {0};
    (void)snprintf(all, sizeof all, "steps=6 %s %s mesh.zero=%d", m->options, options, zero);
    (void)snprintf(who, sizeof who, "%s on %s", all, mesh);
    must(ranks_try(&r, out, all, mesh, n, false), who);
    return r;
}

/* Compare every level with plain data parallelism on the same ranks. */
static void levels(const ranks_model *m, const char *options, const char *mesh, int n,
                   const ranks_bound *bound) {
    static int n_runs;
    char out[32];
    (void)snprintf(out, sizeof out, "plain-%d", n_runs);
    ranks_result plain = run(m, out, options, 0, mesh, n);
    for (int zero = 1; zero <= 3; zero++) {
        char who[256];
        (void)snprintf(who, sizeof who, "%s %s, mesh %s, zero %d", m->name, options, mesh, zero);
        (void)snprintf(out, sizeof out, "zero-%d-%d", n_runs, zero);
        ranks_result r = run(m, out, options, zero, mesh, n);
        ranks_equal(&r, &plain, zero == 1 ? &ranks_bits : bound, who);
        ranks_result_free(&r);
    }
    ranks_result_free(&plain);
    n_runs++;
}

static void families_and_types(void **state) {
    (void)state;
    levels(&ranks_dense, "batch.size=12", "dp=3", 3, &ranks_bits);
    levels(&ranks_gqa, "batch.size=12", "dp=4", 4, &ranks_bits);
    levels(&ranks_moe, "batch.size=12", "dp=2", 2, &ranks_bits);
    levels(&ranks_dense, "batch.size=12 model.dtype=bf16", "dp=2", 2, &ranks_bits);
    levels(&ranks_moe, "batch.size=12 model.dtype=bf16", "dp=4", 4, &ranks_bits);
    levels(&apertus, "batch.size=12 model.dtype=bf16", "dp=3", 3, &ranks_bits);
    levels(&apertus, "batch.size=12 model.recompute=full", "dp=2", 2, &ranks_bits);
}

static void optimisers(void **state) {
    static const char *const kinds[] = {"adamw", "ademamix", "lion"};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char options[128];
        (void)snprintf(options, sizeof options, "batch.size=12 optim.kind=%s", kinds[i]);
        levels(&ranks_gqa, options, "dp=3", 3, &ranks_bits);
    }
    levels(&ranks_moe, "batch.size=12 optim.kind=muon", "dp=3", 3, &ranks_bits);
    levels(&ranks_gqa, "batch.size=12 optim.kind=muon model.dtype=bf16", "dp=4", 4, &ranks_bits);
    levels(&ranks_gqa, "batch.size=12 optim.moments=bf16 model.dtype=bf16", "dp=3", 3, &ranks_bits);
}

static void accumulated_gradients(void **state) {
    (void)state;
    levels(&ranks_gqa, "batch.size=12 batch.micro=1 optim.clip=0.01", "dp=3", 3, &ranks_f32);
    levels(&ranks_dense, "batch.size=12 batch.micro=2", "dp=2", 2, &ranks_f32);
}

/* Two groups of two ranks: the sum is a sum of sums. */
static void groups_that_shard_separately(void **state) {
    (void)state;
    for (int zero = 1; zero <= 3; zero++) {
        char options[64];
        (void)snprintf(options, sizeof options, "batch.size=12 mesh.shard=2 mesh.zero=%d", zero);
        ranks_compare(&ranks_gqa, options, "dp=4", 4, &ranks_f32);
    }
}

/* Together with the other axes, whose ranks hold other parts or see other tokens. */
static void with_other_axes(void **state) {
    static const struct {
        const char *mesh;
        int n, zero;
    } meshes[] = {{"pp=2,dp=2", 4, 1}, {"dp=2,cp=2", 4, 2}, {"cp=2,dp=2", 4, 3},
                  {"dp=2,tp=2", 4, 1}, {"dp=2,tp=2", 4, 2}, {"dp=2,tp=2", 4, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        char options[64];
        (void)snprintf(options, sizeof options, "batch.size=4 mesh.zero=%d", meshes[i].zero);
        ranks_compare(&ranks_gqa, options, meshes[i].mesh, meshes[i].n, &ranks_f32);
    }
    for (int zero = 0; zero < 2; zero++) { /* Both ends of a tied embedding are on one rank. */
        char options[128];
        (void)snprintf(options, sizeof options,
                       "batch.size=8 batch.micro=1 model.tied=true mesh.schedule=zbv mesh.zero=%d",
                       zero);
        ranks_compare(&ranks_gqa, options, "pp=2,dp=2", 4, &ranks_f32);
    }
}

/* Schedules that defer gradients of weights, at levels 2 and 3: a layer's biases and norms come
 * before its matrices. Layers with experts and 8-bit layers defer nothing; in a V one rank has
 * both ends of a tied model, also with learned positions. */
static void deferred_gradients(void **state) {
    static const struct {
        const ranks_model *model;
        const char *options, *mesh;
        int n;
        const ranks_bound *bound;
        int most; /* The highest level. */
    } runs[] = {
        {&ranks_gqa, "batch.micro=1 mesh.schedule=zb-h1", "pp=2,dp=2", 4, &ranks_f32, 3},
        {&ranks_gqa, "batch.micro=2 mesh.schedule=zb-h1 model.tied=true model.recompute=full",
         "pp=2,cp=2", 4, &ranks_f32, 3},
        {&ranks_dense, "batch.micro=1 mesh.schedule=zbv model.layers=6", "pp=2,dp=2", 4, &ranks_f32,
         3},
        {&ranks_gqa, "batch.micro=1 mesh.schedule=v-half model.tied=true optim.kind=muon",
         "pp=2,dp=2", 4, &ranks_f32, 3},
        {&apertus, "batch.micro=2 mesh.schedule=zb-h1 model.dtype=bf16", "pp=3,dp=2", 6,
         &ranks_bf16, 3},
        {&ranks_gqa, "batch.micro=1 mesh.schedule=zbv model.recompute=selective", "pp=2,dp=2,tp=2",
         8, &ranks_f32, 3},
        {&ranks_moe, "batch.micro=1 mesh.schedule=zb-h1", "pp=2,dp=4,ep=2", 8, &ranks_f32, 3},
        {&ranks_gqa, "batch.micro=2 mesh.schedule=zbv model.dtype=bf16 model.fp8=tensorwise",
         "pp=2,dp=2", 4, &ranks_bf16, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        for (int zero = 2; zero <= runs[i].most; zero++) {
            char options[256];
            (void)snprintf(options, sizeof options, "batch.size=8 mesh.zero=%d %s", zero,
                           runs[i].options);
            ranks_compare(runs[i].model, options, runs[i].mesh, runs[i].n, runs[i].bound);
        }
    }
}

/* Levels 2 and 3 in pipelines: a tied embedding at two stages, chunks of layers, F32 copies of
 * small parameters, matrices with owners; what is refused. */
static void with_stages(void **state) {
    static const struct {
        const char *options, *mesh;
    } runs[] = {{"model.tied=true batch.micro=1", "pp=2,dp=2"},
                {"mesh.schedule=interleaved batch.micro=2 model.recompute=full", "pp=2,dp=2"},
                {"mesh.schedule=gpipe batch.micro=2 optim.kind=muon model.tied=true", "pp=2,cp=2"}};
    /* Learned positions and a tied embedding. */
    const char *const refused = ranks_dense.options;
    (void)state;
    for (int zero = 2; zero <= 3; zero++) {
        char options[256];
        ranks_result r = {0};
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
            (void)snprintf(options, sizeof options, "batch.size=8 mesh.zero=%d %s", zero,
                           runs[i].options);
            ranks_compare(&ranks_gqa, options, runs[i].mesh, 4, &ranks_f32);
        }
        (void)snprintf(options, sizeof options,
                       "batch.size=8 batch.micro=2 model.dtype=bf16 mesh.zero=%d", zero);
        ranks_compare(&apertus, options, "pp=2,dp=2", 4, &ranks_bf16);
        (void)snprintf(options, sizeof options, "batch.size=8 steps=1 mesh.zero=%d %s", zero,
                       refused);
        assert_int_not_equal(ranks_try(&r, "refused", options, "pp=2,dp=2", 4, false), LT_OK);
    }
}

/* Saved on one number of ranks at one level, resumed with others: the result is that of an
 * uninterrupted run. */
static void resumes_with_other_ranks_and_levels(void **state) {
    static const struct {
        int n, zero, steps;
    } legs[] = {{3, 1, 2}, {2, 3, 4}, {1, 0, 5}, {4, 2, 7}, {2, 0, 8}};
    static const char all[] = "batch.size=12 optim.kind=ademamix optim.mix_warmup=8";
    ranks_result one = {0}, legged = {0};
    char options[256];
    (void)state;
    (void)snprintf(options, sizeof options, "%s %s steps=8", ranks_gqa.options, all);
    must(ranks_try(&one, "legs-one", options, NULL, 1, false), "one rank");
    for (size_t i = 0; i < sizeof legs / sizeof *legs; i++) {
        char mesh[16];
        ranks_result leg = {0};
        (void)snprintf(options, sizeof options, "%s %s steps=%d mesh.zero=%d", ranks_gqa.options,
                       all, legs[i].steps, legs[i].zero);
        (void)snprintf(mesh, sizeof mesh, "dp=%d", legs[i].n);
        must(ranks_try(&leg, "legs", options, legs[i].n > 1 ? mesh : NULL, legs[i].n, true),
             options);
        for (int64_t k = 0; k < leg.steps; k++) {
            char what[32];
            (void)snprintf(what, sizeof what, "loss %lld", (long long)(legged.steps + 1));
            ranks_close(leg.losses[k], one.losses[legged.steps++], ranks_f32.loss, what, options);
        }
        ranks_result_free(&leg);
    }
    assert_int_equal(legged.steps, 8);
    ranks_result_free(&one);
}

/* Ranks have different numbers of held-out rows; one has none. */
static void validation(void **state) {
    double losses[3] = {0};
    (void)state;
    for (int i = 0; i < 3; i++) { /* The last one in a pipeline. */
        const int zero = i > 0 ? 3 : 0;
        char out[32], options[256];
        ranks_result r = {0};
        (void)snprintf(out, sizeof out, "valid-%d", i);
        (void)snprintf(options, sizeof options,
                       "%s batch.size=12 batch.micro=1 data.val_fraction=0.03 steps=2 mesh.zero=%d",
                       ranks_gqa.options, zero);
        must(ranks_try(&r, out, options, i < 2 ? "dp=4" : "pp=2,dp=2", 4, true), options);
        json_t *rows = run_lines(out, "eval");
        assert_true(json_array_size(rows) > 0);
        losses[i] = json_real_value(json_object_get(json_array_get(rows, 0), "loss"));
        json_decref(rows);
        ranks_result_free(&r);
    }
    assert_true(losses[0] > 0 && fabs(losses[0] - losses[1]) < 1e-5 * losses[0]);
    assert_true(fabs(losses[0] - losses[2]) < 1e-5 * losses[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_and_types),
        cmocka_unit_test(optimisers),
        cmocka_unit_test(accumulated_gradients),
        cmocka_unit_test(groups_that_shard_separately),
        cmocka_unit_test(with_other_axes),
        cmocka_unit_test(deferred_gradients),
        cmocka_unit_test(with_stages),
        cmocka_unit_test(resumes_with_other_ranks_and_levels),
        cmocka_unit_test(validation),
    };
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
