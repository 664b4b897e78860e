/* Options of a run at their bounds, in combinations, and together with the files that give a
 * model's shape. Accepted and refused values are listed here one by one. */
#include <math.h>

#include "unit/train/run_folder.h"

#include "model/family.h"
#include "train/mixture.h"

typedef struct {
    const char *options;
    const char *refused; /* Part of the message; NULL: accepted. */
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
        {"checkpoint.keep_last=0", "outside [1, 1000000]"},
        {"guard.limit=0", "outside [1, 1000000000]"}, {"data.prefetch=65536", NULL},
        {"data.prefetch=65537", "outside [0, 65536]"}, {"steps=1.5", "is not a whole number"},
        {"steps=1.5K", NULL}, {"model.capacity=-1", NULL}, {"model.capacity=-0.5", "neither -1"},
        {"model.aux_coef=-0.001", "neither -1"}, {"model.router_z_coef=-0.9", "neither -1"},
        {"lora.dropout=-0.5", "neither -1 (that of lora.init)"}, {"rl.clip_low=-0.5", "neither -1"},
        {"rl.clip_high=-0.1", "neither -1"}, {"rl.cap=-0.5", "neither -1 (the method's)"},
        {"model.rope_theta=0", NULL}, {"model.rope_theta=1", NULL},
        {"model.rope_theta=0.99", "neither 0 (the family's) nor 1 or more"});
    { /* N stands for the value and is not a unit. */
        lt_recipe r = {0};
        assert_int_equal(lt_options_set(&lt_recipe_table, &r, "steps", "-1", "t"), LT_ERR_ARG);
        assert_string_equal(lt_error_message(), "t: steps = -1 is outside [0, 1000000000000]");
    }
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

/* Rounds of sites: fragments divide diloco.every, and a round ends before the next one of the
 * same parameters begins. */
static void rounds_of_sites(void **state) {
    (void)state;
    TRY({"diloco.sites=4 diloco.site=3", NULL},
        {"diloco.sites=4 diloco.site=4", "diloco.site = 4 of diloco.sites = 4: they count from 0"},
        {"diloco.site=1", "diloco.site = 1 of diloco.sites = 1"},
        {"diloco.sites=2 diloco.every=30 diloco.fragments=3", NULL},
        {"diloco.sites=2 diloco.every=31 diloco.fragments=3",
         "diloco.fragments = 3 does not divide diloco.every = 31"},
        {"diloco.sites=2 diloco.every=30 diloco.overlap=29", NULL},
        {"diloco.sites=2 diloco.every=30 diloco.overlap=30", "less than diloco.every = 30"},
        {"diloco.sites=2 diloco.every=30 diloco.fragments=3 diloco.overlap=29", NULL},
        {"diloco.sites=2 diloco.every=30 diloco.fragments=3 diloco.overlap=30",
         "less than diloco.every = 30"});
    assert_int_equal(check("diloco.sites=2 deterministic=mesh-invariant"), LT_ERR_UNSUPPORTED);
    says("diloco.sites = 2 with deterministic = mesh-invariant");
    assert_int_equal(check("diloco.sites=2 objective.kind=dpo"), LT_ERR_UNSUPPORTED);
    says("objective.kind other than sft");
    must(check("deterministic=mesh-invariant"), "one site");
    must(check("objective.kind=dpo"), "one site");
}

/* The rows of each step are divided by the dp of all sites, tokens by two pieces for each rank of
 * cp. */
static void meshes_divide(void **state) {
    static const struct {
        const char *options, *refused;
        lt_mesh_shape mesh;
    } rows[] = {
        {"batch.size=12", NULL, {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=12",
         "12 rows cannot be divided by 8 ranks; 16 rows can",
         {.pp = 1, .dp = 8, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=12 diloco.sites=3", NULL, {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=12 diloco.sites=2",
         "12 rows cannot be divided by 8 ranks",
         {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=16 batch.ramp=4@0,8@9,16@99",
         NULL,
         {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=16 batch.ramp=8@0,6@9,16@99",
         "6 rows cannot be divided by 4 ranks; 8 rows can",
         {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=4 data.seq=24", NULL, {.pp = 1, .dp = 1, .cp = 4, .tp = 1, .ep = 1}},
        {"batch.size=4 data.seq=28",
         "28 tokens cannot be divided into 8 pieces, two for each of "
         "cp=4 ranks; 32 tokens can",
         {.pp = 1, .dp = 1, .cp = 4, .tp = 1, .ep = 1}},
        {"batch.size=9 data.seq=16",
         "batch.size = 9 rows cannot be divided by 4 ranks; 8 rows can",
         {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=4 data.seq=33",
         "33 tokens cannot be divided into 2 pieces, two for each of cp=1 ranks; 34 tokens can",
         {.pp = 1, .dp = 1, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=12 deterministic=mesh-invariant batch.groups=4",
         NULL,
         {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=12 deterministic=mesh-invariant batch.groups=6",
         "batch.groups = 6 cannot be divided by dp=4; 8 can",
         {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=12 batch.groups=6", NULL, {.pp = 1, .dp = 4, .cp = 1, .tp = 1, .ep = 1}},
        {"batch.size=12 mesh.zero=1 mesh.shard=6",
         NULL,
         {.pp = 1, .dp = 3, .cp = 2, .tp = 1, .ep = 1}},
        {"batch.size=12 mesh.zero=1 mesh.shard=4",
         "does not divide the 6 ranks of dp x cp; mesh.shard = 3 does",
         {.pp = 1, .dp = 3, .cp = 2, .tp = 1, .ep = 1}},
        {"batch.size=12 mesh.shard=4", NULL, {.pp = 1, .dp = 3, .cp = 2, .tp = 1, .ep = 1}},
        {"batch.size=12 mesh.zero=1", NULL, {.pp = 1, .dp = 3, .cp = 2, .tp = 1, .ep = 1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_recipe *r = run_recipe("divides", rows[i].options);
        const lt_err err = lt_recipe_divides(r, &rows[i].mesh);
        if (err != (rows[i].refused == NULL ? LT_OK : LT_ERR_ARG)) {
            fail_msg("%s: %d, %s", rows[i].options, (int)err, lt_error_message());
        }
        if (rows[i].refused != NULL) {
            says(rows[i].refused);
        }
        free(r);
    }
}

/* The largest number that divides the rows of every step, and the largest step. */
static void rows_in_common(void **state) {
    static const struct {
        const char *options;
        int64_t common, largest;
    } rows[] = {
        {"batch.size=12", 12, 12},
        {"batch.size=12 batch.ramp=4@0,6@9", 2, 12},
        {"batch.size=8 batch.ramp=16@0,24@9", 8, 24},
        {"batch.size=12 batch.groups=8", 12, 12},
        {"batch.size=12 batch.groups=8 deterministic=mesh-invariant", 4, 12},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_recipe *r = run_recipe("common", rows[i].options);
        assert_int_equal(lt_recipe_common_rows(r), rows[i].common);
        assert_int_equal(lt_recipe_largest_batch(r), rows[i].largest);
        free(r);
    }
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

/* Options that have no effect, and what they would need. */
static void options_without_effect_are_refused(void **state) {
    static const struct {
        const char *set, *beside, *needs;
    } cases[] = {
        {"optim.beta3=0.5", "", "optim.kind = ademamix"},
        {"optim.beta3=0.5", "optim.kind=ademamix", NULL},
        {"optim.beta3=0.9999", "", NULL}, /* The default was not set explicitly. */
        {"optim.alpha=4", "optim.kind=muon", "optim.kind = ademamix"},
        {"optim.mix_warmup=5", "", "optim.kind = ademamix"},
        {"optim.muon_lr=0.1", "", "optim.kind = muon"},
        {"optim.muon_steps=3", "optim.kind=muon", NULL},
        {"optim.muon_products=fp32", "", "optim.kind = muon"},
        {"optim.muon_products=fp32", "optim.kind=muon", NULL},
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
        {"optim.beta2=0.5", "optim.kind=lion", NULL},
        {"diloco.every=5", "", "diloco.sites"},
        {"diloco.every=5", "diloco.sites=2", NULL},
        {"diloco.merge=0.25", "diloco.sites=2", "diloco.overlap"},
        {"diloco.merge=0.25", "diloco.sites=2 diloco.overlap=1", NULL},
        {"batch.groups=4", "", "deterministic = mesh-invariant"},
        {"batch.groups=4", "deterministic=mesh-invariant", NULL},
        {"lora.alpha=3", "", "lora.rank"},
        {"lora.alpha=3", "lora.rank=2", NULL},
        {"lora.alpha=3", "lora.init=x", NULL},
        {"checkpoint.mirror_keep=3", "", "checkpoint.mirror"},
        {"checkpoint.mirror_keep=3", "checkpoint.mirror=x", NULL},
        {"data.bad_rows=fail", "", "a .jsonl file in data.train or data.valid"},
        {"data.bad_rows=fail", "data.train=x.jsonl", NULL},
        {"objective.beta=3", "", "an objective.kind with a beta"},
        {"objective.beta=3", "objective.kind=dpo", NULL},
        {"objective.smoothing=0.2", "objective.kind=simpo",
         "objective.kind = dpo, dpo_robust or dpo_norm"},
        {"objective.smoothing=0.2", "objective.kind=dpo", NULL},
        {"objective.margin=3", "objective.kind=simpo", NULL},
        {"objective.margin=3", "objective.kind=reward",
         "objective.kind = simpo (a reward model's margins are members of its lines)"},
        {"objective.center=0.1", "objective.kind=reward", NULL},
        {"objective.center=0.1", "objective.kind=dpo", "objective.kind = reward"},
        {"objective.good=2", "objective.kind=kto", NULL},
        {"objective.bad=2", "objective.kind=dpo", "objective.kind = kto or apo_zero"},
        {"objective.separator=x", "objective.kind=prm", NULL},
        {"objective.separator=x", "objective.kind=dpo", "objective.kind = prm"},
        {"data.val_fraction=0.1", "objective.kind=dpo", "objective.kind = sft"},
        {"data.cache=x", "", "shards with an address in data.train"},
        {"data.cache=x", "data.train=s3://a/b", NULL},
        {"data.cache_bytes=4G", "data.train=s3://a/b", "data.cache"},
        {"data.cache_bytes=4G", "data.train=s3://a/b data.cache=x", NULL},
        {"guard.window=64", "guard.loss_z=3", NULL},
        {"guard.slow_s=9", "guard.slow=0", "guard.slow"},
        {"guard.slow_s=9", "guard.slow=2", NULL},
        {"eval.rows=5", "data.valid=x", NULL},
        {"rl.group=4", "", "an objective.kind of reinforcement learning"},
        {"rl.group=4", "objective.kind=grpo", NULL},
        {"rl.cap=3", "objective.kind=grpo", "objective.kind = cispo"},
        {"rl.cap=3", "objective.kind=cispo", NULL},
        {"rl.clip_low=0.1", "objective.kind=cispo", "an objective.kind other than cispo"},
        {"rl.clip_low=0.1", "objective.kind=grpo", NULL},
        {"rl.kl_kind=k2", "objective.kind=grpo", "rl.kl"},
        {"rl.kl_kind=k2", "objective.kind=grpo rl.kl=0.1", NULL},
        {"rl.weight_low=0.1", "objective.kind=grpo", "rl.correction"},
        {"rl.weight_low=0.1", "objective.kind=grpo rl.correction=token-mask", NULL},
        {"rl.pass=0.5", "objective.kind=grpo", "rl.curriculum or rl.prefer"},
        {"rl.pass=0.5", "objective.kind=grpo rl.prefer=failed", NULL},
        {"rl.pass=0.5", "objective.kind=grpo rl.curriculum=x", NULL},
        {"rl.curriculum_steps=5", "objective.kind=grpo rl.prefer=failed", "rl.curriculum"},
        {"rl.test_limit=5", "objective.kind=grpo rl.rewards=length", "a reward unit_tests"},
        {"rl.test_limit=5", "objective.kind=grpo rl.rewards=unit_tests", NULL},
        {"distill.rest=renormalise", "", "objective.kind = distill"},
        {"distill.tokens=5", "objective.kind=distill", "distill.on_policy"},
        {"distill.tokens=5", "objective.kind=distill distill.on_policy=0.5", NULL},
        {"rl.clip_high=0.3", "objective.kind=cispo", "an objective.kind other than cispo"},
        {"rl.clip_high=0.3", "objective.kind=grpo", NULL},
        {"rl.dual=3", "objective.kind=cispo", "an objective.kind other than cispo"},
        {"rl.dual=3", "objective.kind=grpo", NULL},
        {"rl.weight_high=3", "objective.kind=grpo", "rl.correction"},
        {"rl.kl_ratio=true", "objective.kind=grpo", "rl.kl"},
        {"rl.command_limit=3", "objective.kind=grpo", "rl.command"},
        {"mesh.chunks=2", "mesh=pp=2", NULL},
        {"mesh.chunks=2", "layout=auto", NULL},
        {"mesh.schedule=zbv", "layout=auto", NULL},
        {"mesh.context=ring", "layout=auto", NULL},
        {"mesh.expert_room=2", "layout=auto", NULL},
        {"sample.every=5", "objective.kind=grpo", NULL}};
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
    /* 256 is the default of other families. */
    adopt(&s, "model.width=256", "model.width = 256 was given, but FILE has 64");
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

/* Weights of one run start another; the recipe that is kept is the one that ran. */
static void weights_of_another_run(void **state) {
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
    r = calloc(1, sizeof *r); /* It runs again without changes. */
    lt_options_default(&lt_recipe_table, r);
    must(lt_options_load_yaml(&lt_recipe_table, r, path), path);
    run_path(path, "third");
    run_set(r, "out", path);
    must(lt_run_training(r, device_of(lt_backend_cpu())), "recipe.yaml of the second");
    free(r);
}

/* Found before the first step, not at the first checkpoint. */
static void models_that_no_file_can_hold(void **state) {
    (void)state;
    assert_int_equal(run_train("unsaid", "steps=2 model.family=llama model.qk_norm=true", NULL),
                     LT_ERR_UNSUPPORTED);
    says("this model cannot be saved: config.json of family llama cannot express this model's "
         "qk_norm");
    assert_int_equal(run_train("unsaid", "steps=2 model.family=gpt2 model.head_dim=4", NULL),
                     LT_ERR_UNSUPPORTED);
    says("head_dim");
    assert_false(run_has("unsaid", "metrics.jsonl"));
}

/* Muon's matrices have a rate of their own: with optim.lr 0 only they are trained, and nothing
 * becomes NaN. */
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

/* Help texts that an edit of the table once moved to the option after their own. */
static void each_option_has_its_own_help(void **state) {
    static const char *const said[][2] = {
        {"seed", "seed of initial weights"}, {"diloco.keep", "keep the outer parameters"},
        {"model.init", "weights to start"},  {"mesh.zero", "1 optimiser state"},
        {"data.train", "training mixture"},  {"objective.share_prompts", "the prompt of a pair"}};
    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        const lt_option *row = lt_option_find(&lt_recipe_table, said[i][0]);
        if (row == NULL || strstr(row->help, said[i][1]) == NULL) {
            fail_msg("the help of %s is '%s'", said[i][0], row != NULL ? row->help : "(none)");
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bounds),
                                       cmocka_unit_test(relations),
                                       cmocka_unit_test(rounds_of_sites),
                                       cmocka_unit_test(meshes_divide),
                                       cmocka_unit_test(rows_in_common),
                                       cmocka_unit_test(ramps),
                                       cmocka_unit_test(mixtures),
                                       cmocka_unit_test(options_without_effect_are_refused),
                                       cmocka_unit_test(contradictions),
                                       cmocka_unit_test(weights_of_another_run),
                                       cmocka_unit_test(models_that_no_file_can_hold),
                                       cmocka_unit_test(muon_without_a_rate),
                                       cmocka_unit_test(each_option_has_its_own_help)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
