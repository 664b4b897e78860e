/* Options of a run at their bounds, together with others, and together with the files that give a
 * model's shape. Accepted and refused values are listed here one by one. */
#include <math.h>

#include "unit/train/run_folder.h"

#include "model/family.h"
#include "train/mixture.h"

typedef struct {
    const char *options;
    const char *refused; /* A piece of the message; NULL: accepted. */
} choice;

static lt_err check(const char *options) {
    lt_recipe *r = calloc(1, sizeof *r);
    char *copy = strdup(options), *next = NULL;
    lt_err err = LT_OK;
    assert_true(r != NULL && copy != NULL);
    lt_options_default(&lt_recipe_table, r);
    for (char *w = strtok_r(copy, " ", &next); err == LT_OK && w != NULL;
         w = strtok_r(NULL, " ", &next)) {
        char *equals = strchr(w, '=');
        *equals = '\0';
        err = lt_options_set(&lt_recipe_table, r, w, equals + 1, "test");
    }
    err = err == LT_OK ? lt_recipe_check(r) : err;
    free(copy);
    free(r);
    return err;
}

static void try_all(const choice *choices, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const lt_err err = check(choices[i].options);
        if (choices[i].refused == NULL && err != LT_OK) {
            fail_msg("%s: %s", choices[i].options, lt_error_message());
        }
        if (choices[i].refused != NULL) {
            if (err != LT_ERR_ARG) {
                fail_msg("%s is accepted", choices[i].options);
            }
            says(choices[i].refused);
        }
    }
}

#define TRY(...)                                                                                   \
    do {                                                                                           \
        static const choice choices[] = {__VA_ARGS__};                                             \
        try_all(choices, sizeof choices / sizeof *choices);                                        \
    } while (0)

/* 1 - 2^-24 is the float below 1; 1 - 2^-26 rounds to 1. */
static void bounds(void **state) {
    (void)state;
    TRY({"optim.beta1=0", NULL}, {"optim.beta1=0.9999999", NULL},
        {"optim.beta1=1", "optim.beta1 = 1 is outside [0, 1)"},
        {"optim.beta1=0.99999999", "optim.beta1 = 0.99999999 is 1 in F32"},
        {"optim.beta1=-1e-9", "outside [0, 1)"}, {"optim.beta1=nan", "is not a number"},
        {"optim.beta1=inf", "outside"}, {"optim.beta1=", "is not a number"},
        {"optim.beta2=1", "outside [0, 1)"}, {"optim.beta2=0", NULL},
        {"optim.beta3=1", "outside [0, 1)"}, {"optim.muon_momentum=1", "outside [0, 1)"},
        {"optim.muon_momentum=0", NULL}, {"optim.eps=0", "outside (0, 1]"}, {"optim.eps=1", NULL},
        {"optim.eps=1e-38", "too small for F32"}, {"optim.eps=1.2e-38", NULL}, {"optim.lr=0", NULL},
        {"optim.lr=-1e-9", "outside [0, 100]"}, {"optim.lr=101", "outside [0, 100]"},
        {"lr.min=1", NULL}, {"lr.min=1.01", "outside [0, 1]"}, {"data.val_fraction=0.5", NULL},
        {"data.val_fraction=0.51", "outside [0, 0.5]"},
        {"checkpoint.keep_last=0", "outside [1, 1e+06]"}, {"guard.limit=0", "outside [1, 1e+09]"},
        {"data.prefetch=65536", NULL}, {"data.prefetch=65537", "outside [0, 65536]"},
        {"steps=1.5", "is not a whole number"}, {"steps=1.5K", NULL}, {"model.capacity=-1", NULL},
        {"model.capacity=-0.5", "neither -1"}, {"model.aux_coef=-0.001", "neither -1"},
        {"model.router_z_coef=-0.9", "neither -1"}, {"model.rope_theta=0", NULL},
        {"model.rope_theta=1", NULL},
        {"model.rope_theta=0.99", "neither 0 (the family's) nor 1 or more"});
}

static void relations(void **state) {
    (void)state;
    TRY({"model.width=33 model.heads=2", "model.width = 33 is not a multiple of model.heads = 2"},
        {"model.width=33 model.heads=2 model.head_dim=16", NULL},
        {"model.width=33 model.heads=3", NULL},
        {"model.width=6", "= 6 is not a multiple of model.heads = 4"},
        {"model.width=6 model.init=a", NULL},
        {"model.heads=3", "model.width = 256 is not a multiple of model.heads = 3"},
        {"batch.size=4 batch.micro=5", "batch.micro = 5 is larger than batch.size = 4"},
        {"batch.size=4 batch.micro=4", NULL},
        {"lr.warmup=1001", "longer than the run of 1000 steps"}, {"lr.warmup=1000", NULL},
        {"lr.schedule=wsd lr.warmup=600 lr.cooldown=401", "together are longer than steps = 1000"},
        {"lr.schedule=wsd lr.warmup=600 lr.cooldown=400", NULL},
        {"model.max_seq=255", "data.seq = 256 is longer than model.max_seq = 255"},
        {"model.max_seq=256", NULL}, {"data.goldfish_k=1", "drops every label"},
        {"data.goldfish_k=2 data.goldfish_h=256", NULL},
        {"data.goldfish_k=2 data.goldfish_h=257", "no label would be dropped"},
        {"data.valid=x data.val_fraction=0.1", "choose one"},
        {"model.init=a model.config=b", "weights bring their own shape"},
        {"model.fp8_wgrad=true", "choose how to scale"},
        {"optim.kind=muon optim.moments=bf16", "optim.kind is muon"},
        {"optim.kind=ademamix optim.moments=bf16", NULL});
}

static void ramps(void **state) {
    (void)state;
    TRY({"batch.ramp=8@0", NULL}, {"batch.ramp=8@0,16@20000", NULL},
        {"batch.ramp=10000000@0", NULL}, {"batch.ramp=10000001@0", "is not SIZE@ROWS"},
        {"batch.ramp=0@0", "is not SIZE@ROWS"}, {"batch.ramp=-8@0", "is not SIZE@ROWS"},
        {"batch.ramp=8@-5", "is not SIZE@ROWS"}, {"batch.ramp=8@0,", "is not SIZE@ROWS"},
        {"batch.ramp=,8@0", "is not SIZE@ROWS"}, {"batch.ramp=8@0,,16@9", "is not SIZE@ROWS"},
        {"batch.ramp=8@0;16@9", "is not SIZE@ROWS"}, {"batch.ramp=8", "is not SIZE@ROWS"},
        {"batch.ramp=8@", "is not SIZE@ROWS"},
        {"batch.ramp=18446744073709551617@0", "is not SIZE@ROWS"},
        {"batch.ramp=8@0,16@18446744073709551616", "is not SIZE@ROWS"},
        {"batch.ramp=8@1", "must begin at row 0"}, {"batch.ramp=8@0,16@0", "does not come after"},
        {"batch.ramp=8@0,16@9,4@9", "does not come after row 9"});
}

static void mixtures(void **state) {
    static const choice texts[] = {{"a", NULL},
                                   {"a:1,b:2", NULL},
                                   {"a:x", NULL}, /* A path with a colon. */
                                   {"", "a mixture is"},
                                   {",", "a mixture is"},
                                   {"a,,b", "a mixture is"},
                                   {"a,", "a mixture is"},
                                   {"a:0", "weight 0"},
                                   {"a:-1", "weight -1"},
                                   {"a:nan", "weight nan"},
                                   {"a:inf", "weight inf"},
                                   {"a:1e308,b:1e308", "at most 1e+100"},
                                   {"a:1e-10,b:1", "gives it no row"},
                                   {"a:1e-9,b:1", NULL}};
    lt_mixture *m = calloc(1, sizeof *m);
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const lt_err err = lt_mixture_parse(m, texts[i].options, "data.train");
        assert_int_equal(err == LT_OK, texts[i].refused == NULL);
        if (texts[i].refused != NULL) {
            says(texts[i].refused);
        }
    }
    free(m);
}

/* What has no effect, and what it would need. */
static void idle(void **state) {
    static const struct {
        const char *set, *beside, *needs;
    } cases[] = {
        {"optim.beta3=0.5", "", "optim.kind = ademamix"},
        {"optim.beta3=0.5", "optim.kind=ademamix", NULL},
        {"optim.beta3=0.9999", "", NULL}, /* The default was not set. */
        {"optim.alpha=4", "optim.kind=muon", "optim.kind = ademamix"},
        {"optim.mix_warmup=5", "", "optim.kind = ademamix"},
        {"optim.muon_lr=0.1", "", "optim.kind = muon"},
        {"optim.muon_steps=3", "optim.kind=muon", NULL},
        {"optim.eps=1e-6", "optim.kind=lion", "an optim.kind other than lion"},
        {"lr.cooldown=5", "", "lr.schedule = wsd"},
        {"lr.cooldown=5", "lr.schedule=wsd", NULL},
        {"lr.cooldown_shape=linear", "lr.schedule=wsd", "lr.schedule = wsd with lr.cooldown"},
        {"lr.min=0.5", "lr.schedule=constant", "an lr.schedule that decays"},
        {"lr.min=0.5", "lr.schedule=wsd", "an lr.schedule that decays"},
        {"lr.min=0.5", "lr.schedule=wsd lr.cooldown=5", NULL},
        {"lr.min=0.5", "lr.schedule=linear", NULL},
        {"lr.warmup_from=0.5", "", "lr.warmup"},
        {"lr.warmup_from=0.5", "lr.warmup=5", NULL},
        {"guard.window=64", "", "guard.loss_z or guard.grad_z"},
        {"guard.window=64", "guard.grad_z=3", NULL},
        {"data.goldfish_h=5", "", "data.goldfish_k"},
        {"eval.every=5", "", "data.valid or data.val_fraction"},
        {"eval.rows=5", "data.val_fraction=0.1", NULL},
        {"sample.every=5", "", "data.tokenizer and sample.tokens"},
        {"sample.every=5", "data.tokenizer=x", NULL},
        {"sample.prompt=Hello", "data.tokenizer=x sample.tokens=0",
         "data.tokenizer and sample.tokens"},
        {"sample.tokens=5", "", "data.tokenizer"},
        {"model.init_std=0.1", "model.init=x", "model.init empty"},
        {"mesh.schedule=zbv", "", "pp in mesh"},
        {"mesh.chunks=2", "mesh=dp=2,pp=1", "pp in mesh"},
        {"mesh.stages=1,1", "mesh=pp=2", NULL},
        {"mesh.stages=1,1", "layout=auto", NULL},
        {"mesh.context=ring", "mesh=dp=2", "cp in mesh"},
        {"mesh.context=ring", "mesh=cp=2", NULL},
        {"mesh.expert_room=2", "mesh=tp=2", "ep in mesh"},
        {"mesh.expert_room=2", "mesh=dp=2,ep=2", NULL},
        {"mesh.shard=2", "", "mesh.zero"},
        {"mesh.shard=2", "mesh.zero=1", NULL},
        {"optim.beta2=0.5", "optim.kind=lion", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[256], name[64];
        lt_recipe *r;
        const char *needs;
        (void)snprintf(options, sizeof options, "%s %s", cases[i].set, cases[i].beside);
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(cases[i].set, "="), cases[i].set);
        r = run_recipe("idle", options);
        if (strncmp(name, "lr.", 3) == 0 && strstr(cases[i].beside, "lr.schedule") == NULL) {
            run_set(r, "lr.schedule", "cosine");
        }
        needs = lt_recipe_idle(r, lt_option_find(&lt_recipe_table, name));
        if ((needs == NULL) != (cases[i].needs == NULL) ||
            (needs != NULL && strcmp(needs, cases[i].needs) != 0)) {
            fail_msg("%s: %s, not %s", options, needs, cases[i].needs);
        }
        free(r);
    }
}

/* ---- The shape comes from a file ---- */

static void adopt(const lt_model_spec *s, const char *options, const char *refused) {
    lt_recipe *r = calloc(1, sizeof *r);
    lt_model_spec spec = *s;
    char *copy = strdup(options), *next = NULL;
    lt_options_default(&lt_recipe_table, r);
    for (char *w = strtok_r(copy, " ", &next); w != NULL; w = strtok_r(NULL, " ", &next)) {
        char *equals = strchr(w, '=');
        *equals = '\0';
        run_set(r, w, equals + 1);
    }
    if ((lt_recipe_adopt(&spec, r, "FILE") == LT_OK) != (refused == NULL)) {
        fail_msg("%s: %s", options, lt_error_message());
    }
    if (refused != NULL) {
        says(refused);
    }
    free(copy);
    free(r);
}

static void contradictions(void **state) {
    lt_model_spec s = lt_family_get(LT_FAMILY_LLAMA)->preset;
    (void)state;
    s.n_layers = 5;
    s.width = 64;
    s.n_heads = 8;
    s.n_kv_heads = 4;
    s.head_dim = 8;
    s.ffn_width = 172;
    s.vocab_size = 512;
    s.max_seq = 512;
    s.tied = true;
    s.init_std = 0.02f;
    s.rope_theta = 10000.0;
    adopt(&s, "", NULL);
    adopt(&s, "model.layers=5 model.width=64 model.heads=8 model.kv_heads=4 model.head_dim=8",
          NULL);
    adopt(&s, "model.ffn=172 model.vocab=512 model.max_seq=512 model.tied=true model.family=llama",
          NULL);
    adopt(&s, "model.rope_theta=1e4 model.init_std=0.02 model.gated=true model.act=silu", NULL);
    adopt(&s, "model.width=128", "model.width = 128 was given, but FILE has 64");
    adopt(&s, "model.width=256",
          "model.width = 256 was given, but FILE has 64"); /* The default of others. */
    adopt(&s, "model.layers=6", "model.layers = 6 was given, but FILE has 5");
    adopt(&s, "model.heads=4", "model.heads = 4 was given, but FILE has 8");
    adopt(&s, "model.kv_heads=8", "model.kv_heads = 8 was given, but FILE has 4");
    adopt(&s, "model.head_dim=16", "model.head_dim = 16 was given, but FILE has 8");
    adopt(&s, "model.ffn=256", "model.ffn = 256 was given, but FILE has 172");
    adopt(&s, "model.vocab=1024", "model.vocab = 1024 was given, but FILE has 512");
    adopt(&s, "model.max_seq=256", "model.max_seq = 256 was given, but FILE has 512");
    adopt(&s, "model.tied=false", "model.tied = false was given, but FILE has true");
    adopt(&s, "model.act=gelu", "model.act = gelu was given, but FILE has silu");
    adopt(&s, "model.gated=false", "model.gated = false was given, but FILE has true");
    adopt(&s, "model.qk_norm=true", "model.qk_norm = true was given, but FILE has false");
    adopt(&s, "model.rope_theta=5e5", "model.rope_theta = 500000 was given, but FILE has 10000");
    adopt(&s, "model.init_std=0.03", "model.init_std = 0.03 was given, but FILE has 0.02");
    adopt(&s, "model.family=apertus", "model.family = apertus was given, but FILE has llama");
    adopt(&s, "model.experts=4", "model.experts = 4 was given, but FILE has 0");
    adopt(&s, "model.top_k=2", "model.top_k = 2 was given, but FILE has 0");
    adopt(&s, "model.aux_coef=0.1", "FILE has no experts");
}

/* Weights of one run begin another; the recipe that is kept is what ran. */
static void init_runs(void **state) {
    char init[LT_PATH_BYTES], options[LT_PATH_BYTES + 128], path[LT_PATH_BYTES], *text = NULL;
    size_t bytes;
    lt_recipe *r;
    (void)state;
    must(run_train("first", "steps=2 export=true", NULL), "first");
    run_path(init, "first/model");
    (void)snprintf(options, sizeof options, "steps=2 model.width=32 model.init=%s", init);
    assert_int_equal(run_train("second", options, NULL), LT_ERR_ARG);
    says("model.width = 32 was given, but ");
    says("has 16");
    assert_false(run_has("second", "recipe.yaml"));
    r = run_recipe("second", "steps=2 model.vocab=0 model.layers=0 model.width=0 model.heads=0");
    run_set(r, "model.init", init);
    must(lt_run_training(r, device_of(lt_backend_cpu())), "sizes not given");
    free(r);
    run_path(path, "second/recipe.yaml");
    must(lt_file_read(&text, &bytes, path, 1 << 20), path);
    assert_non_null(strstr(text, "  width: 16\n"));
    assert_non_null(strstr(text, "  layers: 1\n"));
    assert_non_null(strstr(text, "  vocab: 64\n"));
    assert_non_null(strstr(text, "  family: apertus\n"));
    assert_non_null(strstr(text, "  ffn: 64\n"));
    free(text);
    r = calloc(1, sizeof *r); /* And it runs again as it is. */
    lt_options_default(&lt_recipe_table, r);
    must(lt_options_load_yaml(&lt_recipe_table, r, path), path);
    run_path(path, "third");
    run_set(r, "out", path);
    must(lt_run_training(r, device_of(lt_backend_cpu())), "recipe.yaml of the second");
    free(r);
}

/* Found before the first step, not at the first checkpoint. */
static void models_that_no_file_can_say(void **state) {
    (void)state;
    assert_int_equal(run_train("unsaid", "steps=2 model.family=llama model.qk_norm=true", NULL),
                     LT_ERR_UNSUPPORTED);
    says("this model can not be saved: config.json of family llama can not say this model's "
         "qk_norm");
    assert_int_equal(run_train("unsaid", "steps=2 model.family=gpt2 model.head_dim=4", NULL),
                     LT_ERR_UNSUPPORTED);
    says("head_dim");
    assert_false(run_has("unsaid", "metrics.jsonl"));
}

/* Muon's matrices have a rate of their own: with optim.lr 0 they alone learn, and nothing is not a
 * number. */
static void muon_without_a_rate(void **state) {
    json_t *lines, *skips;
    double first, last;
    (void)state;
    must(run_train("muon", "steps=30 optim.kind=muon optim.lr=0", NULL), "muon, lr 0");
    lines = run_lines("muon", "train");
    skips = run_lines("muon", "skip");
    assert_int_equal(json_array_size(lines), 30);
    assert_int_equal(json_array_size(skips), 0);
    first = json_real_value(json_object_get(json_array_get(lines, 0), "loss"));
    last = json_real_value(json_object_get(json_array_get(lines, 29), "loss"));
    assert_true(last < first);
    json_decref(lines);
    json_decref(skips);
    must(run_train("still", "steps=3 optim.kind=muon optim.lr=0 optim.muon_lr=0", NULL),
         "nothing learns");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounds),
                                       cmocka_unit_test(relations),
                                       cmocka_unit_test(ramps),
                                       cmocka_unit_test(mixtures),
                                       cmocka_unit_test(idle),
                                       cmocka_unit_test(contradictions),
                                       cmocka_unit_test(init_runs),
                                       cmocka_unit_test(models_that_no_file_can_say),
                                       cmocka_unit_test(muon_without_a_rate)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
