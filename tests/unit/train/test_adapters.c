/* What a recipe of adapters stands for: values that lora.init gives and values that contradict it,
 * how the base is kept, what is refused, and the FLOPs of a token. The sizes are those of
 * tests/golden/model/llama3. */
#include "unit/train/run_folder.h"

#include <sys/stat.h>

#include "train/adapters.h"

#define BASE "tests/golden/model/llama3"

/* A folder as PEFT writes it, of rank 2, alpha 6 and rsLoRA. */
static const char config[] =
    "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": 2, \"lora_alpha\": 6, "
    "\"use_rslora\": true, \"use_dora\": false, \"lora_dropout\": 0.25, \"bias\": \"none\", "
    "\"target_modules\": [\"q_proj\", \"v_proj\"]}";
static const char dora[] =
    "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": 3, \"lora_alpha\": 3, "
    "\"use_rslora\": false, \"use_dora\": true, \"lora_dropout\": 0.0, \"bias\": \"none\", "
    "\"target_modules\": [\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", "
    "\"up_proj\", \"down_proj\"]}";

static void folder(const char *name, const char *text) {
    char path[LT_PATH_BYTES], file[64];
    run_path(path, name);
    assert_int_equal(mkdir(path, 0755), 0);
    (void)snprintf(file, sizeof file, "%s/adapter_config.json", name);
    run_path(path, file);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
}

static int make(void **state) {
    const int failed = run_root_make(state);
    folder("roots", config);
    folder("lengths", dora);
    return failed;
}

/* Resolve a recipe over the base with adapters of a folder (NULL: new ones). */
static lt_err resolve(lt_recipe **out, const char *init, const char *options, bool on_device) {
    char path[LT_PATH_BYTES], all[LT_PATH_BYTES + 512];
    lt_model_spec spec;
    run_path(path, init != NULL ? init : "");
    (void)snprintf(all, sizeof all,
                   "model.init=" BASE " model.vocab=0 model.layers=0 model.width=0 model.heads=0 "
                   "%s%s %s",
                   init != NULL ? "lora.init=" : "", init != NULL ? path : "", options);
    *out = run_recipe("resolved", all);
    must(lt_training_spec(&spec, *out), all);
    must(lt_training_resolve_dtype(*out, on_device), all);
    return lt_adapters_resolve(*out, &spec, on_device);
}

static void a_folder_gives_its_values(void **state) {
    lt_recipe *r;
    (void)state;
    must(resolve(&r, "roots", "", false), "roots");
    assert_int_equal(r->lora_rank, 2);
    assert_true(r->lora_alpha == 6.0);
    assert_int_equal(r->lora_scale, LT_LORA_BY_ROOT);
    assert_false(r->lora_dora);
    assert_true(r->lora_dropout == 0.25);
    assert_string_equal(r->lora_targets, "q_proj,v_proj");
    free(r);
    must(resolve(&r, "lengths", "", false), "lengths");
    assert_int_equal(r->lora_rank, 3);
    assert_true(r->lora_alpha == 3.0);
    assert_int_equal(r->lora_scale, LT_LORA_BY_RANK);
    assert_true(r->lora_dora);
    assert_true(lt_recipe_lora(r).dropout == 0.0);
    free(r);
}

static void given_values_must_be_those_of_the_folder(void **state) {
    static const struct {
        const char *init, *options, *refused; /* NULL: accepted. */
    } cases[] = {
        {"roots", "lora.rank=2 lora.alpha=6 lora.scale=sqrt", NULL},
        {"roots", "lora.rank=3", "lora.rank = 3 was given"},
        {"roots", "lora.alpha=7", "lora.alpha = 7 was given"},
        {"roots", "lora.dora=true", "lora.dora = true was given"},
        {"lengths", "lora.scale=sqrt", "lora.scale = sqrt was given"},
        {"roots", "lora.targets=v_proj,q_proj", NULL},
        {"roots", "lora.targets=q_proj", "lora.targets = q_proj was given"},
        {"roots", "lora.targets=q_proj,k_proj", "lora.targets = q_proj,k_proj was given"},
        {"roots", "lora.targets=q_proj,v_proj,o_proj", "was given, but lora.init"},
        {"lengths",
         "lora.targets=down_proj,up_proj,gate_proj,o_proj,v_proj,k_proj,q_proj lora.dora=true",
         NULL},
        {"lengths", "lora.targets=down_proj,up_proj,gate_proj,o_proj,v_proj,k_proj",
         "was given, but lora.init"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_recipe *r;
        const lt_err err = resolve(&r, cases[i].init, cases[i].options, false);
        if (cases[i].refused == NULL) {
            must(err, cases[i].options);
        } else {
            assert_int_equal(err, LT_ERR_ARG);
            says(cases[i].refused);
        }
        free(r);
    }
}

/* New adapters have an alpha of their rank, so that their product is not scaled. */
static void new_adapters(void **state) {
    lt_recipe *r;
    (void)state;
    must(resolve(&r, NULL, "lora.rank=5", false), "new");
    assert_true(r->lora_alpha == 5.0 && lt_recipe_lora(r).alpha == 5.0);
    assert_int_equal(lt_recipe_lora(r).rank, 5);
    assert_true(lt_recipe_lora(r).dropout == 0.0);
    free(r);
    must(resolve(&r, NULL, "lora.rank=5 lora.alpha=2.5", false), "new");
    assert_true(r->lora_alpha == 2.5);
    free(r);
}

static void adapters_need_a_model(void **state) {
    static const struct {
        const char *options, *refused;
    } cases[] = {{"lora.rank=2", "lora.rank is given, but no model.init"},
                 {"lora.init=/some/folder", "lora.init is given, but no model.init"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_recipe *r = run_recipe("none", cases[i].options);
        assert_int_equal(lt_adapters_check(r, 0), LT_ERR_ARG);
        says(cases[i].refused);
        free(r);
    }
    lt_recipe *r = run_recipe("none", "model.fp8=tensorwise optim.kind=muon");
    must(lt_adapters_check(r, 3), "no adapters"); /* What adapters refuse. */
    free(r);
}

static void what_adapters_refuse(void **state) {
    static const struct {
        const char *options, *refused;
    } cases[] = {{"model.fp8=tensorwise", "lora.rank with model.fp8"},
                 {"deterministic=mesh-invariant", "lora.rank with deterministic = mesh-invariant"},
                 {"optim.kind=muon", "lora.rank with optim.kind = muon"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char all[256];
        (void)snprintf(all, sizeof all, "model.init=" BASE " lora.rank=2 %s", cases[i].options);
        lt_recipe *r = run_recipe("refuse", all);
        assert_int_equal(lt_adapters_check(r, 0), LT_ERR_UNSUPPORTED);
        says(cases[i].refused);
        free(r);
    }
}

/* A CPU decodes to fp32 and a GPU to bf16. The base is frozen, and kept in the named type. */
static void how_the_base_is_kept(void **state) {
    static const struct {
        const char *options;
        bool on_device;
        const char *refused;
        bool decodes;
        lt_dtype as;
    } cases[] = {
        {"lora.base=nf4 model.dtype=fp32", false, NULL, true, LT_NF4},
        {"lora.base=nf4_double model.dtype=fp32", false, NULL, true, LT_NF4_DOUBLE},
        {"lora.base=q4_0 model.dtype=bf16", true, NULL, true, LT_Q4_0},
        {"lora.base=q6_k model.dtype=bf16", true, NULL, true, LT_Q6_K},
        {"lora.base=as_stored model.dtype=fp32", false, NULL, true, LT_F32},
        {"lora.base=auto model.dtype=fp32", false, NULL, false, LT_F32},
        {"lora.base=dtype model.dtype=bf16", false, NULL, false, LT_F32},
        {"lora.base=nf4 model.dtype=bf16", false,
         "lora.base = nf4 with model.dtype = bf16 on a CPU: not supported; with fp32", false, 0},
        {"lora.base=nf4 model.dtype=fp32", true,
         "lora.base = nf4 with model.dtype = fp32 on a GPU: not supported; with bf16", false, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char all[256];
        lt_recipe *r;
        (void)snprintf(all, sizeof all, "lora.rank=2 %s", cases[i].options);
        const lt_err err = resolve(&r, NULL, all, cases[i].on_device);
        if (cases[i].refused != NULL) {
            assert_int_equal(err, LT_ERR_UNSUPPORTED);
            says(cases[i].refused);
        } else {
            lt_model_options o = {.trainable = true, .stored_as = LT_F32};
            must(err, all);
            assert_int_equal(lt_adapters_decode(r), cases[i].decodes);
            lt_adapters_base(&o, r);
            assert_false(o.trainable);
            assert_int_equal(o.stored, cases[i].decodes);
            assert_int_equal(o.decoded, cases[i].decodes);
            assert_int_equal(o.stored_as, cases[i].as);
        }
        free(r);
    }
    lt_recipe *r = run_recipe("whole", "lora.base=nf4");
    lt_model_options o = {.trainable = false, .stored_as = LT_F32};
    assert_false(lt_adapters_decode(r)); /* Without adapters the model trains, in its own type. */
    lt_adapters_base(&o, r);
    assert_true(o.trainable && !o.stored && !o.decoded);
    free(r);
}

/* Two layers of width 32, 4 query heads of 8, 2 key heads, 40 hidden units, a head of 64 rows and
 * norms. A product with the base's weights is done forward and for the gradient of its input: 4
 * operations a weight; one of an adapter also for that of its weights: 6. Attention: 12 H D T. */
static void operations_of_a_token(void **state) {
    enum { Q = 32 * 32, KV = 32 * 16, FFN = 32 * 40, LAYER = 2 * Q + 2 * KV + 3 * FFN + 64 };
    static const lt_lora_options options = {.rank = 2, .alpha = 2, .targets = "q_proj,v_proj"};
    const double adapters = 2.0 * 2 * ((32 + 32) + (32 + 16)), base = 2 * LAYER + 32 + 64 * 32;
    lt_model *m = NULL;
    lt_lora *l = NULL;
    (void)state;
    must(lt_model_open(&m, BASE, NULL), BASE);
    must(lt_lora_open(&l, m, &options, 1), "adapters");
    assert_int_equal(l->params->table.whole_elements, adapters);
    assert_true(lt_adapters_train_flops(l, &m->spec, 10) ==
                4.0 * base + 6.0 * adapters + 12.0 * 2 * 32 * 10);
    lt_lora_close(l);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_gives_its_values),
        cmocka_unit_test(given_values_must_be_those_of_the_folder),
        cmocka_unit_test(new_adapters),
        cmocka_unit_test(adapters_need_a_model),
        cmocka_unit_test(what_adapters_refuse),
        cmocka_unit_test(how_the_base_is_kept),
        cmocka_unit_test(operations_of_a_token),
    };
    return cmocka_run_group_tests(tests, make, run_root_remove);
}
