/* Adapters on meshes train as on one rank: with ZeRO, on ranks that share layers, divide
 * sequences or have some layers each; all ranks write the folder for PEFT together; runs resume
 * on another mesh. Models with separate and fused projections, fewer key heads than ranks, and
 * adapters of embeddings and heads. */
#include "unit/parallel/adapters.h"

#include "train/adapters.h"

/* One key head, so that several ranks of tp hold it; only q and v have adapters, as by PEFT's
 * default. */
static const ranks_model one_key = {
    "one-key", "model.layers=2 model.width=32 model.heads=4 model.kv_heads=1 model.ffn=64 "
               "model.family=qwen3"};
static const ranks_model four = {"dora", "model.layers=4 model.width=32 model.heads=4 "
                                         "model.kv_heads=2 model.ffn=64 model.family=qwen3"};
static const ranks_model tied = {
    "tied", "model.layers=4 model.width=32 model.heads=4 model.kv_heads=2 model.ffn=64 "
            "model.family=qwen3 model.tied=true"};

static const lt_lora_options linear = {.rank = 4, .alpha = 8, .targets = LT_LORA_ALL},
                             some = {.rank = 3, .alpha = 3, .targets = "q_proj,v_proj,up_proj"},
                             top = {.rank = 4,
                                    .alpha = 4,
                                    .scaling = LT_LORA_BY_ROOT,
                                    .targets = "all-linear,embed_tokens,lm_head"},
                             lengths = {
                                 .rank = 2, .alpha = 4, .dora = true, .targets = LT_LORA_ALL};

static ranks_adapted dense, gqa, few, tops, rows, experts;

static int make(void **state) {
    const int failed = run_root_make(state);
    ranks_adapt(&dense, &ranks_dense, "", &linear);
    ranks_adapt(&gqa, &ranks_gqa, "", &linear);
    ranks_adapt(&few, &one_key, "", &some);
    ranks_adapt(&tops, &tied, "", &top);
    ranks_adapt(&rows, &four, "", &lengths);
    ranks_adapt(&experts, &ranks_moe, "", &linear);
    return failed;
}

static void compare(const ranks_adapted *a, const char *mesh, int n, const char *options,
                    const ranks_bound *bound) {
    char all[256];
    (void)snprintf(all, sizeof all, "batch.size=8 %s", options);
    ranks_compare(&a->model, all, mesh, n, bound);
}

/* The gradients of an adapter are summed and divided as those of a model, so levels 1 to 3 have
 * the bits of plain data parallelism, whatever is gathered of the model at level 3. */
static void with_zero(void **state) {
    static const char *const options[] = {"batch.size=12", "batch.size=12 model.dtype=bf16"};
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        ranks_result plain = {0};
        char all[1024], out[32];
        for (int level = 0; level <= 3; level++) {
            ranks_result r = {0};
            (void)snprintf(all, sizeof all, "steps=6 %s %s mesh.zero=%d", tops.options, options[i],
                           level);
            (void)snprintf(out, sizeof out, "zero-%zu-%d", i, level);
            must(ranks_try(level == 0 ? &plain : &r, out, all, "dp=3", 3, false), all);
            if (level > 0) {
                ranks_equal(&r, &plain, &ranks_bits, all);
                ranks_result_free(&r);
            }
        }
        ranks_result_free(&plain);
    }
    for (int level = 1; level <= 3; level++) {
        char all[64];
        (void)snprintf(all, sizeof all, "batch.micro=1 mesh.shard=2 mesh.zero=%d", level);
        compare(&gqa, "dp=4", 4, all, &ranks_f32);
    }
    compare(&dense, "dp=2", 2, "batch.micro=2 mesh.zero=3 model.recompute=full", &ranks_f32);
}

static void layers_shared(void **state) {
    (void)state;
    compare(&dense, "tp=2", 2, "", &ranks_f32);
    compare(&gqa, "tp=4", 4, "model.recompute=selective", &ranks_f32);
    compare(&few, "tp=2", 2, "", &ranks_f32);
    compare(&few, "dp=2,tp=4", 8, "mesh.zero=1", &ranks_f32);
    compare(&tops, "tp=2", 2, "batch.micro=3", &ranks_f32);
    compare(&tops, "dp=2,tp=2", 4, "mesh.zero=2", &ranks_f32);
    compare(&tops, "dp=2,tp=2", 4, "mesh.zero=3 batch.micro=2", &ranks_f32);
    compare(&gqa, "dp=2,tp=2", 4, "model.dtype=bf16 mesh.zero=3", &ranks_bf16);
}

static void sequences_divided(void **state) {
    (void)state;
    compare(&gqa, "cp=2", 2, "", &ranks_f32);
    compare(&tops, "cp=2,tp=2", 4, "mesh.context=ulysses", &ranks_f32);
    compare(&tops, "dp=2,cp=2", 4, "mesh.zero=3 mesh.context=ring", &ranks_f32);
}

static void with_stages(void **state) {
    (void)state;
    compare(&tops, "pp=2", 2, "", &ranks_f32);
    compare(&dense, "pp=2,tp=2", 4, "batch.micro=2", &ranks_f32);
    compare(&gqa, "pp=2", 2, "batch.micro=1 mesh.schedule=zb-h1", &ranks_f32);
    compare(&tops, "pp=2,dp=2", 4, "batch.micro=1 mesh.schedule=zbv mesh.zero=1", &ranks_f32);
    compare(&tops, "pp=2,dp=2", 4, "batch.micro=1 mesh.schedule=interleaved mesh.zero=2",
            &ranks_f32);
    compare(&tops, "pp=2,dp=2", 4, "batch.micro=1 mesh.zero=3", &ranks_f32);
    compare(&gqa, "pp=2,cp=2", 4, "batch.micro=2", &ranks_f32);
}

/* Every expert has its own A and B, on the rank that has its weights. */
static void experts_divided(void **state) {
    (void)state;
    compare(&experts, "dp=2", 2, "mesh.zero=1", &ranks_f32);
    compare(&experts, "dp=2", 2, "mesh.zero=3 model.recompute=full batch.micro=2", &ranks_f32);
    compare(&experts, "tp=2", 2, "steps=20", &ranks_f32);
    compare(&experts, "dp=2,tp=2", 4, "mesh.zero=2 model.recompute=selective", &ranks_f32);
    compare(&experts, "pp=2", 2, "batch.micro=2", &ranks_f32);
    compare(&experts, "dp=2,ep=2", 2, "steps=20", &ranks_f32);
    compare(&experts, "dp=4,ep=2", 4, "mesh.zero=2 batch.micro=1", &ranks_f32);
    compare(&experts, "dp=2,ep=2,tp=2", 4, "mesh.expert_room=1.9", &ranks_f32);
    compare(&experts, "dp=4,ep=2", 4, "model.dtype=bf16 mesh.zero=3", &ranks_bf16);
}

/* Lengths of rows that are trained separately (DoRA): the norm of a row that ranks divide is that
 * of the whole row, whatever is gathered of the weights; biases are added once. */
static void magnitudes_of_dora(void **state) {
    static const ranks_model biased = {"dora-biased", "model.layers=2 model.width=32 model.heads=4 "
                                                      "model.ffn=64 model.family=gpt2"};
    ranks_adapted b;
    (void)state;
    ranks_adapt(&b, &biased, "", &lengths);
    compare(&rows, "dp=2,cp=2", 4, "", &ranks_f32);
    compare(&rows, "pp=2", 2, "", &ranks_f32);
    compare(&rows, "tp=4", 4, "batch.micro=2 steps=24", &ranks_f32);
    compare(&b, "tp=2", 2, "model.recompute=full", &ranks_f32);
    compare(&b, "dp=2,tp=2", 4, "mesh.zero=3", &ranks_f32);
    compare(&rows, "pp=2,tp=2", 4, "mesh.zero=1 batch.micro=2", &ranks_f32);
    compare(&rows, "pp=2,dp=2", 4, "mesh.zero=3 batch.micro=1", &ranks_f32);
    compare(&rows, "dp=2", 2, "mesh.zero=1 lora.base=q8_0", &ranks_f32);
    compare(&rows, "dp=2,tp=2", 4, "mesh.zero=2 model.dtype=bf16", &ranks_bf16);
}

/* The same for new adapters, which begin with the lengths of the model's rows: with tp, where no
 * rank has whole rows; and with ZeRO, with the bits of plain data parallelism, also in bf16,
 * where magnitudes stay in fp32. */
static void new_magnitudes_of_dora(void **state) {
    ranks_model fresh = {"new", NULL};
    char options[768];
    (void)state;
    (void)snprintf(options, sizeof options,
                   "model.vocab=0 model.layers=0 model.width=0 model.heads=0 optim.decay=0 "
                   "optim.lr=1e-2 model.init=%.240s lora.rank=2 lora.dora=true",
                   gqa.base);
    fresh.options = options;
    ranks_compare(&fresh, "batch.size=8 steps=20", "tp=2", 2, &ranks_f32);
    ranks_compare(&fresh, "batch.size=8", "pp=2,tp=2", 4, &ranks_f32);
    ranks_compare(&fresh, "batch.size=8 mesh.zero=3", "dp=2,tp=2", 4, &ranks_f32);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        ranks_result plain = {0}, r = {0};
        for (int level = 0; level <= 3; level++) {
            char all[1024], out[32];
            (void)snprintf(all, sizeof all, "%s steps=6 batch.size=8 mesh.zero=%d%s", options,
                           level, bf16 ? " model.dtype=bf16" : "");
            (void)snprintf(out, sizeof out, "new-%d-%d", bf16, level);
            must(ranks_try(level == 0 ? &plain : &r, out, all, "dp=2", 2, false), all);
            if (level > 0) {
                ranks_equal(&r, &plain, &ranks_bits, all);
                ranks_result_free(&r);
            }
        }
        ranks_result_free(&plain);
    }
}

/* The masks of dropout depend on the rows, not on the rank that has them, nor on when the run
 * began. */
static void dropout_masks(void **state) {
    static const char *const meshes[] = {NULL, "dp=2,tp=2"};
    static const ranks_model columns = {"odd", "model.layers=2 model.width=32 model.heads=4 "
                                               "model.kv_heads=2 model.ffn=62 model.family=qwen3"};
    ranks_adapted odd;
    ranks_result one = {0}, without = {0}, r = {0};
    char all[1024];
    (void)state;
    compare(&gqa, "dp=2", 2, "lora.dropout=0.5 batch.micro=1", &ranks_f32);
    compare(&gqa, "dp=4", 4, "lora.dropout=0.5 mesh.zero=3 model.recompute=full", &ranks_f32);
    ranks_adapt(&odd, &columns, "", &linear); /* 31 columns of down on each rank. */
    compare(&odd, "tp=2", 2, "lora.dropout=0.5 steps=20", &ranks_f32);
    compare(&gqa, "dp=2,tp=4", 8, "lora.dropout=0.5 mesh.zero=1", &ranks_f32);
    compare(&gqa, "cp=2", 2, "lora.dropout=0.5 mesh.context=ring batch.micro=2", &ranks_f32);
    compare(&gqa, "cp=2,tp=2", 4, "lora.dropout=0.5 mesh.context=ulysses", &ranks_f32);
    compare(&gqa, "pp=2,dp=2", 4,
            "lora.dropout=0.5 mesh.schedule=interleaved batch.micro=1 model.recompute=full "
            "mesh.zero=2",
            &ranks_f32);
    compare(&gqa, "pp=2,tp=2", 4, "lora.dropout=0.5 mesh.schedule=zbv batch.micro=2", &ranks_f32);
    (void)snprintf(all, sizeof all, "steps=6 batch.size=8 %s", gqa.options);
    must(ranks_try(&without, "without", all, NULL, 1, false), all);
    (void)snprintf(all, sizeof all, "steps=6 batch.size=8 lora.dropout=0.5 %s", gqa.options);
    must(ranks_try(&one, "dropped", all, NULL, 1, false), all);
    if (fabs(one.losses[5] - without.losses[5]) < 10 * ranks_f32.loss) {
        fail_msg("loss %.9f with dropout, %.9f without", one.losses[5], without.losses[5]);
    }
    for (int half = 0; half < 2; half++) {
        ranks_result_free(&r);
        (void)snprintf(all, sizeof all, "steps=%d batch.size=8 lora.dropout=0.5 %s",
                       half == 0 ? 3 : 6, gqa.options);
        must(ranks_try(&r, "dropped-2", all, meshes[half], half == 0 ? 1 : 4, true), all);
    }
    assert_int_equal(r.steps, 3);
    ranks_tensors(&r, &one, false, ranks_f32.weights, "dropped");
    for (int step = 0; step < 3; step++) {
        ranks_close(r.losses[step], one.losses[3 + step], ranks_f32.loss, "loss", "dropped");
    }
    ranks_result_free(&r);
    ranks_result_free(&one);
    ranks_result_free(&without);
    /* Two steps have the masks of one step with the rows of both. */
    for (int steps = 1; steps <= 2; steps++) {
        (void)snprintf(all, sizeof all, "%s steps=%d batch.size=%d lora.dropout=0.9 optim.lr=1e-9",
                       gqa.options, steps, 16 / steps);
        must(ranks_try(steps == 1 ? &one : &r, steps == 1 ? "once" : "twice", all, NULL, 1, false),
             all);
    }
    ranks_close((r.losses[0] + r.losses[1]) / 2, one.losses[0], 2e-6, "loss", "once");
    ranks_result_free(&r);
    ranks_result_free(&one);
}

/* The value of lora.dropout, or, without it, that of the folder. */
static void dropout_is_resolved(void **state) {
    static const ranks_model model = {"drop", "model.layers=1 model.width=32 model.heads=4 "
                                              "model.kv_heads=2 model.ffn=64 model.family=qwen3"};
    static const lt_lora_options options = {
        .rank = 2, .alpha = 2, .dropout = 0.25, .targets = LT_LORA_ALL};
    static const struct {
        const char *given;
        double is;
    } cases[] = {{"", 0.25}, {"lora.dropout=0", 0.0}, {"lora.dropout=0.5", 0.5}};
    ranks_adapted a;
    (void)state;
    ranks_adapt(&a, &model, "", &options);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char all[1024];
        lt_model_spec spec;
        (void)snprintf(all, sizeof all, "%s %s", a.options, cases[i].given);
        for (int on_device = 0; on_device < 2; on_device++) {
            lt_recipe *r = run_recipe("drop", all);
            must(lt_training_spec(&spec, r), all);
            must(lt_training_resolve_dtype(r, on_device != 0), all);
            must(lt_adapters_resolve(r, &spec, on_device != 0), all);
            assert_true(r->lora_dropout == cases[i].is);
            free(r);
        }
    }
}

/* The folder for PEFT has the numbers that the ranks hold. */
static void check_folder(const ranks_adapted *a, const ranks_result *r, const char *out) {
    char path[LT_PATH_BYTES], name[64];
    lt_lora_config c;
    lt_model *base = NULL;
    lt_lora *l = NULL;
    (void)snprintf(name, sizeof name, "%s/adapter", out);
    run_path(path, name);
    must(lt_model_open(&base, a->base, NULL), a->base);
    must(lt_lora_config_read(&c, path, &base->spec), path);
    must(lt_lora_open(&l, base, &c.options, 1), path);
    must(lt_lora_load(l, path), path);
    for (int i = 0; i < r->table.n_params; i++) {
        const lt_param *p = &r->table.params[i];
        assert_memory_equal(lt_param_data(&l->params->master, &l->params->table.params[i]),
                            r->weights + p->whole_at, (size_t)p->count * sizeof(float));
    }
    lt_lora_config_close(&c);
    lt_lora_close(l);
    lt_model_close(base);
}

typedef struct {
    const char *mesh, *options;
    int n;
} half_run;

/* Train half of a run on each of two meshes. */
static void resume(const ranks_adapted *a, const half_run halves[2], const ranks_result *one,
                   const char *out) {
    ranks_result r = {0};
    char all[1024], folder[LT_PATH_BYTES], path[LT_PATH_BYTES];
    bool writes = false;
    for (int half = 0; half < 2; half++) {
        ranks_result_free(&r);
        writes = writes || strstr(halves[half].options, "checkpoint.adapters=true") != NULL;
        (void)snprintf(all, sizeof all, "steps=%d batch.size=8 %s %s", half == 0 ? 4 : 8,
                       a->options, halves[half].options);
        must(ranks_try(&r, out, all, halves[half].mesh, halves[half].n, true), all);
    }
    assert_int_equal(r.steps, 4);
    ranks_tensors(&r, one, false, ranks_f32.weights, out);
    for (int step = 0; step < 4; step++) {
        ranks_close(r.losses[step], one->losses[4 + step], ranks_f32.loss, "loss", out);
    }
    check_folder(a, &r, out);
    (void)snprintf(all, sizeof all, "%s/adapters", out);
    run_path(folder, all);
    must(lt_checkpoint_path(path, folder, 8), folder);
    assert_int_equal(lt_lora_is_folder(path), writes);
    ranks_result_free(&r);
}

static void resumed_on_another_mesh(void **state) {
    static const half_run halves[][2] = {
        {{"dp=2,tp=2", "mesh.zero=2", 4}, {"pp=2", "", 2}},
        {{"pp=2,dp=2", "mesh.zero=3 batch.micro=1", 4}, {"tp=4", "", 4}},
        {{NULL, "", 1}, {"dp=2,tp=2", "mesh.zero=3 checkpoint.adapters=true", 4}}};
    const ranks_adapted *const models[] = {&tops, &rows, &experts};
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        ranks_result one = {0};
        char all[1024];
        (void)snprintf(all, sizeof all, "steps=8 batch.size=8 %s", models[m]->options);
        must(ranks_try(&one, "whole", all, NULL, 1, false), all);
        for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
            char out[32];
            (void)snprintf(out, sizeof out, "resumed-%zu-%zu", m, i);
            resume(models[m], halves[i], &one, out);
        }
        ranks_result_free(&one);
    }
}

/* Ranks with different experts hold the same values of everything else, which one of them
 * writes. */
static void experts_resumed(void **state) {
    static const half_run halves[][2] = {{{"dp=2,ep=2", "", 2}, {"dp=2,ep=2", "", 2}},
                                         {{"dp=2", "", 2}, {"dp=4,ep=2", "mesh.zero=2", 4}}};
    ranks_result one = {0};
    char all[1024];
    (void)state;
    (void)snprintf(all, sizeof all, "steps=8 batch.size=8 %s", experts.options);
    must(ranks_try(&one, "whole-experts", all, NULL, 1, false), all);
    resume(&experts, halves[0], &one, "resumed-ep");
    resume(&experts, halves[1], &one, "resumed-ep-zero");
    ranks_result_free(&one);
}

/* What is not supported is refused by the names of its options. */
static void what_is_not_supported_is_refused(void **state) {
    char text[1024];
    (void)state;
    (void)snprintf(text, sizeof text, "model.init=%.240s lora.rank=2 objective.kind=reward",
                   gqa.base);
    lt_recipe *scores = run_recipe("refused", text);
    assert_int_equal(lt_adapters_check(scores, 3), LT_ERR_UNSUPPORTED);
    says("a score head and mesh.zero = 3");
    assert_int_equal(lt_adapters_check(scores, 2), LT_OK);
    free(scores);
    static const char *const alone[][2] = {
        {"lora.dora=true", "lora.dropout and lora.dora"},
        {"objective.kind=dpo", "lora.dropout and another objective.kind"},
        {"guard.replay=3", "lora.dropout and guard.replay"},
        {"diloco.sites=2", "lora.dropout and diloco.sites"}};
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        char all[1024];
        (void)snprintf(all, sizeof all, "model.init=%.240s lora.rank=2 lora.dropout=0.5 %s",
                       gqa.base, alone[i][0]);
        lt_recipe *r = run_recipe("refused", all);
        assert_int_equal(lt_adapters_check(r, 0), LT_ERR_UNSUPPORTED);
        says(alone[i][1]);
        r->lora_dropout = 0.0;
        assert_int_equal(lt_adapters_check(r, 0), LT_OK);
        free(r);
    }
}

/* A base in block types: whole on each rank, by rows and columns, by layers, by bytes. A part has
 * the numbers of the whole, also for NF4_DOUBLE, whose scales cover a whole matrix; at a resume
 * the checksum of the base does not depend on the mesh. */
static void quantised_bases(void **state) {
    static const half_run halves[][2] = {
        {{"dp=2,tp=2", "lora.base=nf4_double mesh.zero=2 batch.size=10", 4},
         {"pp=2", "lora.base=nf4_double batch.micro=2 batch.size=10", 2}},
        /* Slices of five ranks are cut inside rows. */
        {{"dp=5", "lora.base=nf4_double mesh.zero=3 batch.size=10", 5},
         {"dp=2,tp=2", "lora.base=nf4_double mesh.zero=3 batch.size=10", 4}}};
    static const ranks_model wide = {"wide", "model.layers=2 model.width=128 model.heads=4 "
                                             "model.kv_heads=2 model.ffn=256 model.family=qwen3"};
    ranks_adapted blocks;
    ranks_result one = {0};
    char all[1024];
    (void)state;
    ranks_adapt(&blocks, &wide, "", &linear);
    compare(&gqa, "dp=2", 2, "lora.base=nf4 mesh.zero=2", &ranks_f32);
    compare(&gqa, "dp=2,cp=2", 4, "lora.base=q8_0 mesh.zero=1", &ranks_f32);
    compare(&blocks, "tp=2", 2, "lora.base=nf4 steps=20", &ranks_f32);
    compare(&blocks, "tp=4", 4, "lora.base=q8_0 lora.init= lora.rank=2 lora.dora=true", &ranks_f32);
    compare(&blocks, "pp=2,tp=2", 4, "lora.base=q4_0 batch.micro=2 mesh.schedule=zb-h1",
            &ranks_f32);
    (void)snprintf(all, sizeof all, "steps=8 batch.size=10 %s lora.base=nf4_double",
                   blocks.options);
    must(ranks_try(&one, "whole-blocks", all, NULL, 1, false), all);
    resume(&blocks, halves[0], &one, "resumed-blocks");
    resume(&blocks, halves[1], &one, "resumed-slices");
    ranks_result_free(&one);
    compare(&blocks, "pp=2,dp=2", 4, "lora.base=q4_0 batch.micro=1 mesh.zero=3", &ranks_f32);
    compare(&rows, "dp=2", 2, "lora.base=q8_0 mesh.zero=3 model.recompute=full", &ranks_f32);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(with_zero),
                                       cmocka_unit_test(layers_shared),
                                       cmocka_unit_test(sequences_divided),
                                       cmocka_unit_test(with_stages),
                                       cmocka_unit_test(dropout_masks),
                                       cmocka_unit_test(dropout_is_resolved),
                                       cmocka_unit_test(magnitudes_of_dora),
                                       cmocka_unit_test(experts_divided),
                                       cmocka_unit_test(new_magnitudes_of_dora),
                                       cmocka_unit_test(resumed_on_another_mesh),
                                       cmocka_unit_test(experts_resumed),
                                       cmocka_unit_test(what_is_not_supported_is_refused),
                                       cmocka_unit_test(quantised_bases)};
    return cmocka_run_group_tests(tests, make, run_root_remove);
}
