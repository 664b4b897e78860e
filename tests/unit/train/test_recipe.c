/* The decisions of a recipe, against values computed elsewhere: rates by PyTorch's schedulers
 * (tests/golden/train/rates.tsv, tools/make_train_goldens.py), the batch of each step, AdEMAMix's
 * warm-up by its formula, the description of a mixture, contradictions, the shape of a model. */
#include "unit/model/golden.h"

#include <math.h>

#include "base/option.h"
#include "lateen/train.h"
#include "train/mixture.h"
#include "train/recipe/recipe.h"
#include "train/run.h"

static void set(lt_recipe *r, const char *name, const char *value) {
    must(lt_options_set(&lt_recipe_table, r, name, value, "test"), name);
}

#define FP32_FOLDER "tests/golden/model/llama3/grads"

static lt_recipe fresh(void) {
    lt_recipe r;
    lt_options_default(&lt_recipe_table, &r);
    return r;
}

/* The choices of model.family are the families in order, then auto. */
static void families(void **state) {
    char list[] = LT_RECIPE_FAMILIES, *save = NULL, *name = strtok_r(list, "|", &save);
    const lt_recipe r = fresh();
    (void)state;
    for (int i = 0; i < LT_FAMILY_COUNT; i++, name = strtok_r(NULL, "|", &save)) {
        const char *const type = lt_family_name((lt_family)i);
        assert_non_null(name);
        if (strcmp(type, name) != 0 &&
            (strncmp(type, name, strlen(name)) != 0 || strcmp(type + strlen(name), "_text") != 0)) {
            fail_msg("choice %d of model.family is %s, the family is %s", i, name, type);
        }
    }
    assert_string_equal(name, "auto");
    assert_int_equal(r.family, LT_FAMILY_COUNT);
}

/* model.dtype = auto: 16 bits on a GPU if the weights have no more, or will be in block types for
 * adapters; a CPU computes in fp32, and so does a run that begins without weights. An explicit
 * value stays. */
static void types(void **state) {
    static const struct {
        const char *init, *base, *dtype;
        bool on_device;
        lt_dtype want;
    } cases[] = {
        {"tests/golden/sft", "auto", "auto", true, LT_BF16},
        {"tests/golden/sft", "auto", "auto", false, LT_F32},
        {"tests/golden/sft", "auto", "fp32", true, LT_F32},
        {"tests/golden/sft", "auto", "bf16", false, LT_BF16},
        {"tests/golden/model/gpt_oss_mxfp4", "auto", "auto", true, LT_BF16},
        {"models/polyglot-46m.gguf", "auto", "auto", true, LT_BF16}, /* Norms are fp32. */
        {FP32_FOLDER, "auto", "auto", true, LT_F32},
        {FP32_FOLDER, "dtype", "auto", true, LT_F32},
        {FP32_FOLDER, "nf4", "auto", true, LT_BF16},
        {FP32_FOLDER, "nf4", "auto", false, LT_F32},
        {"", "auto", "auto", true, LT_F32},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_recipe r = fresh();
        set(&r, "model.init", cases[i].init);
        set(&r, "lora.base", cases[i].base);
        set(&r, "model.dtype", cases[i].dtype);
        must(lt_training_resolve_dtype(&r, cases[i].on_device), cases[i].init);
        if (lt_recipe_dtype(&r) != cases[i].want) {
            fail_msg("case %zu: %s", i, lt_dtype_name(lt_recipe_dtype(&r)));
        }
    }
}

/* Each family can be created from a recipe, and its effective recipe describes it. */
static void each_family(void **state) {
    char list[] = LT_RECIPE_FAMILIES, *save = NULL;
    (void)state;
    for (char *name = strtok_r(list, "|", &save); name != NULL; name = strtok_r(NULL, "|", &save)) {
        lt_recipe r = fresh();
        lt_model_spec spec, again;
        set(&r, "model.family", name);
        must(lt_recipe_spec(&spec, &r, 512, -1, 0, -1), name);
        lt_recipe_resolve(&r, &spec);
        must(lt_recipe_spec(&again, &r, 512, -1, 0, -1), name);
        assert_int_equal(again.family, spec.family);
        assert_int_equal(again.act, spec.act);
        assert_int_equal(again.n_experts, spec.n_experts);
    }
}

static void rates(void **state) {
    FILE *f = fopen("tests/golden/train/rates.tsv", "r");
    char line[2048];
    int lines = 0;
    (void)state;
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        char *words[7], *save = NULL, *numbers;
        static const char *const names[] = {"lr.schedule",      "steps",  "lr.warmup",
                                            "lr.warmup_from",   "lr.min", "lr.cooldown",
                                            "lr.cooldown_shape"};
        lt_recipe r = fresh();
        if (line[0] == '#') {
            continue;
        }
        numbers = strchr(line, '\t');
        assert_non_null(numbers);
        *numbers++ = '\0';
        for (int i = 0; i < 7; i++) {
            words[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
            assert_non_null(words[i]);
            set(&r, names[i], words[i]);
        }
        for (int64_t step = 1; step <= r.steps; step++) {
            const double want = strtod(numbers, &numbers), got = lt_recipe_lr(&r, step);
            if (fabs(got - want) > 1e-10) {
                fail_msg("%s of %lld steps, step %lld: %.12g, not %.12g", words[0],
                         (long long)r.steps, (long long)step, got, want);
            }
        }
        lines++;
    }
    fclose(f);
    assert_int_equal(lines, 30);
}

/* A run that is lengthened continues at the rate of its end. */
static void rates_beyond_the_end(void **state) {
    lt_recipe r = fresh();
    (void)state;
    set(&r, "steps", "10");
    set(&r, "lr.min", "0.25");
    assert_true(fabs(lt_recipe_lr(&r, 11) - 0.25) < 1e-12);
    set(&r, "lr.schedule", "linear");
    assert_true(fabs(lt_recipe_lr(&r, 40) - 0.25) < 1e-12);
    set(&r, "lr.schedule", "wsd");
    set(&r, "lr.cooldown", "4");
    assert_true(fabs(lt_recipe_lr(&r, 40) - 0.25) < 1e-12);
}

static void batch_of_each_step(void **state) {
    static const int64_t want[] = {1, 1, 1, 4, 4, 6, 6, 16, 16};
    lt_recipe r = fresh();
    uint64_t rows = 0;
    (void)state;
    set(&r, "batch.size", "16");
    assert_int_equal(lt_recipe_batch(&r, 0), 16);
    set(&r, "batch.ramp", "1@0,4@3,6@10,16@23");
    /* After 0 1 2 3 7 11 17 23 39 rows. */
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(lt_recipe_batch(&r, rows), want[i]);
        rows += (uint64_t)want[i];
    }
    assert_int_equal(lt_recipe_batch(&r, 2), 1);
    assert_int_equal(lt_recipe_batch(&r, 22), 6);
    assert_int_equal(lt_recipe_batch(&r, 1000000), 16);
}

static void refused(lt_recipe r, const char *name, const char *value, const char *says) {
    set(&r, name, value);
    assert_int_not_equal(lt_recipe_check(&r), LT_OK);
    if (strstr(lt_error_message(), says) == NULL) {
        fail_msg("%s = %s: '%s', not '%s'", name, value, lt_error_message(), says);
    }
}

static void accepted(lt_recipe r, const char *name, const char *value) {
    set(&r, name, value);
    must(lt_recipe_check(&r), name);
}

static void contradictions(void **state) {
    lt_recipe r = fresh();
    (void)state;
    set(&r, "steps", "10");
    set(&r, "batch.size", "8");
    set(&r, "data.train", "x");
    set(&r, "out", "x");
    must(lt_recipe_check(&r), "a plain recipe");
    refused(r, "batch.ramp", "4@1", "must begin at row 0");
    refused(r, "batch.ramp", "4@0,6@0", "row 0 does not come after row 0");
    refused(r, "batch.ramp", "4@0,6@9,7@8", "row 8 does not come after row 9");
    refused(r, "batch.ramp", "4@0,6", "is not SIZE@ROWS");
    refused(r, "batch.ramp", "4@0,6@", "is not SIZE@ROWS");
    refused(r, "batch.ramp", "0@0", "is not SIZE@ROWS");
    refused(r, "batch.ramp", "4@0;6@9", "is not SIZE@ROWS");
    accepted(r, "batch.ramp", "4@0,6@1");
    accepted(r, "batch.micro", "8");
    refused(r, "batch.micro", "9", "batch.micro = 9 is larger than batch.size = 8");
    accepted(r, "lr.warmup", "10");
    refused(r, "lr.warmup", "11", "lr.warmup = 11 steps is longer than the run of 10");
    set(&r, "lr.schedule", "wsd");
    set(&r, "lr.warmup", "4");
    accepted(r, "lr.cooldown", "6");
    refused(r, "lr.cooldown", "7", "lr.warmup = 4 and lr.cooldown = 7 together");
    refused(r, "model.fp8_wgrad", "true", "model.fp8 = none");
    refused(r, "data.goldfish_k", "1", "drops every label");
    accepted(r, "data.goldfish_k", "2");
    refused(r, "model.max_seq", "255", "data.seq = 256 is longer than model.max_seq = 255");
    accepted(r, "model.max_seq", "256");
    set(&r, "optim.moments", "bf16");
    accepted(r, "optim.kind", "adamw");
    accepted(r, "optim.kind", "ademamix");
    refused(r, "optim.kind", "muon", "optim.kind is muon");
    refused(r, "optim.kind", "lion", "optim.kind is lion");
}

/* Pagliardini et al. 2024: alpha grows linearly; beta3 grows so that the half-life of its weights
 * does. */
static void slow_moment(void **state) {
    lt_recipe r = fresh();
    (void)state;
    set(&r, "optim.beta1", "0.9");
    set(&r, "optim.beta3", "0.9999");
    set(&r, "optim.alpha", "6");
    set(&r, "optim.mix_warmup", "100");
    assert_true(fabs(lt_recipe_mix_alpha(&r, 1) - 0.06) < 1e-12);
    assert_true(fabs(lt_recipe_mix_alpha(&r, 50) - 3.0) < 1e-12);
    assert_true(fabs(lt_recipe_mix_alpha(&r, 100) - 6.0) < 1e-12);
    assert_true(fabs(lt_recipe_mix_alpha(&r, 1000) - 6.0) < 1e-12);
    for (int64_t step = 1; step < 100; step += 7) {
        const double a = (double)step / 100.0, from = log(0.5) / log(0.9 + 1e-8) - 1.0,
                     to = log(0.5) / log(0.9999 + 1e-8) - 1.0;
        const double half_life = log(0.5) / log(lt_recipe_mix_beta3(&r, step)) - 1.0;
        assert_true(fabs(half_life / ((1.0 - a) * from + a * to) - 1.0) < 1e-9);
    }
    assert_true(fabs(lt_recipe_mix_beta3(&r, 100) - 0.9999) < 1e-15);
    assert_true(fabs(lt_recipe_mix_beta3(&r, 5000) - 0.9999) < 1e-15);
    set(&r, "optim.beta1", "0");
    assert_true(fabs(lt_recipe_mix_beta3(&r, 1) - 0.9999) < 1e-15);
}

static void mixtures(void **state) {
    lt_mixture m;
    char many[4096] = "";
    (void)state;
    must(lt_mixture_parse(&m, "a/b:3, c:0.5,d:e,f:1:2", "data.train"), "mixture");
    assert_int_equal(m.n_sources, 4);
    assert_string_equal(m.sources[0].path, "a/b");
    assert_true(m.sources[0].weight == 3.0);
    assert_string_equal(m.sources[1].path, "c");
    assert_true(m.sources[1].weight == 0.5);
    assert_string_equal(m.sources[2].path, "d:e"); /* Not a number, so it is part of the name. */
    assert_true(m.sources[2].weight == 1.0);
    assert_string_equal(m.sources[3].path, "f:1");
    assert_true(m.sources[3].weight == 2.0);
    must(lt_mixture_parse(&m, "x:", "data.train"), "a colon at the end");
    assert_string_equal(m.sources[0].path, "x:");
    assert_int_not_equal(lt_mixture_parse(&m, "a:0", "data.train"), LT_OK);
    assert_int_not_equal(lt_mixture_parse(&m, "a:-1", "data.train"), LT_OK);
    assert_int_not_equal(lt_mixture_parse(&m, ":1", "data.train"), LT_OK);
    assert_int_not_equal(lt_mixture_parse(&m, "", "data.train"), LT_OK);
    assert_non_null(strstr(lt_error_message(), "data.train"));
    /* A share is at least 2^-32: one of 2^32 is accepted, of more it is refused. */
    must(lt_mixture_parse(&m, "a:1,b:4294967295", "data.train"), "the smallest share");
    assert_int_equal(lt_mixture_parse(&m, "a:1,b:4294967296", "data.train"), LT_ERR_ARG);
    for (int i = 0; i < LT_LOADER_SOURCES_MAX; i++) {
        strcat(many, i > 0 ? ",s" : "s");
    }
    must(lt_mixture_parse(&m, many, "data.train"), "as many as fit");
    assert_int_equal(m.n_sources, LT_LOADER_SOURCES_MAX);
    strcat(many, ",s");
    assert_int_not_equal(lt_mixture_parse(&m, many, "data.train"), LT_OK);
}

static void shapes(void **state) {
    lt_recipe r = fresh();
    lt_model_spec s;
    (void)state;
    set(&r, "model.family", "llama");
    set(&r, "model.layers", "3");
    set(&r, "model.width", "96");
    set(&r, "model.heads", "6");
    set(&r, "model.kv_heads", "2");
    set(&r, "data.seq", "40");
    must(lt_recipe_spec(&s, &r, 130, 1, 2, -1), "spec");
    assert_int_equal(s.n_layers, 3);
    assert_int_equal(s.width, 96);
    assert_int_equal(s.n_heads, 6);
    assert_int_equal(s.n_kv_heads, 2);
    assert_int_equal(s.head_dim, 16);
    assert_int_equal(s.max_seq, 40);
    assert_int_equal(s.vocab_size, 192); /* For 130, the next multiple of 64. */
    assert_int_equal(s.ffn_width, 256);  /* 8/3 of 96. */
    assert_int_equal(s.bos_id, 1);
    set(&r, "model.vocab", "130");
    set(&r, "model.ffn", "7");
    set(&r, "model.max_seq", "41");
    set(&r, "model.rope_theta", "777");
    set(&r, "model.kv_heads", "0");
    set(&r, "model.head_dim", "2");
    must(lt_recipe_spec(&s, &r, 130, 1, 2, -1), "spec");
    assert_int_equal(s.head_dim, 2);
    assert_int_equal(s.vocab_size, 130);
    assert_int_equal(s.ffn_width, 7);
    assert_int_equal(s.max_seq, 41);
    assert_int_equal(s.n_kv_heads, 6);
    assert_true(s.rope_theta == 777.0);
    assert_int_not_equal(lt_recipe_spec(&s, &r, 131, 1, 2, -1), LT_OK); /* A larger tokenizer. */
    assert_non_null(strstr(lt_error_message(), "131"));
}

/* What a recipe says about a family's blocks and about experts counts, and the family decides the
 * rest. The effective recipe has the numbers as a person would write them. */
static void blocks_and_experts(void **state) {
    lt_recipe r = fresh();
    lt_model_spec s;
    (void)state;
    set(&r, "model.family", "llama");
    set(&r, "model.width", "96");
    must(lt_recipe_spec(&s, &r, 130, 1, 2, -1), "the family's");
    assert_true(s.gated && !s.tied && !s.qk_norm && s.act == LT_ACT_SILU);
    set(&r, "model.gated", "false");
    set(&r, "model.tied", "true");
    set(&r, "model.qk_norm", "true");
    must(lt_recipe_spec(&s, &r, 130, 1, 2, -1), "the recipe's");
    assert_true(!s.gated && s.tied && s.qk_norm);
    assert_int_equal(s.ffn_width, 4 * 96);
    set(&r, "model.aux_coef", "0.01");
    assert_int_equal(lt_recipe_spec(&s, &r, 130, 1, 2, -1), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "has no experts"));

    r = fresh();
    set(&r, "model.family", "mixtral");
    set(&r, "model.experts", "4");
    set(&r, "model.top_k", "2");
    set(&r, "model.capacity", "1.25");
    set(&r, "model.aux_coef", "0.02");
    set(&r, "model.router_z_coef", "0.003");
    set(&r, "model.init_std", "0.05");
    must(lt_recipe_spec(&s, &r, 130, 1, 2, -1), "experts");
    assert_true(s.n_experts == 4 && s.top_k == 2 && s.moe_capacity == 1.25);
    assert_true(s.moe_aux_coef == 0.02f && s.moe_z_coef == 0.003f && s.init_std == 0.05f);
    r = fresh();
    set(&r, "model.family", "mixtral");
    lt_recipe_resolve(&r, &s);
    assert_true(r.experts == 4 && r.top_k == 2 && r.capacity == 1.25);
    assert_true(r.aux_coef == 0.02 && r.router_z_coef == 0.003 && r.init_std == 0.05);
    assert_true(r.layers == s.n_layers && r.width == s.width && r.heads == s.n_heads &&
                r.kv_heads == s.n_kv_heads && r.head_dim == s.head_dim && r.ffn == s.ffn_width &&
                r.vocab == 192 && r.max_seq == s.max_seq && r.rope_theta == s.rope_theta &&
                r.act == 1 + s.act && r.gated == LT_SWITCH_ON && r.tied == LT_SWITCH_OFF &&
                r.qk_norm == LT_SWITCH_OFF);
}

/* lt_train, called as by programs that embed Lateen: each override counts, from the first. */
static void overrides(void **state) {
    static const struct {
        const char *list[2], *says;
    } rows[] = {{{"nosuch=1", "steps=1"}, "nosuch"},
                {{"steps=1", "nosuch=1"}, "nosuch"},
                {{"steps", "seed=1"}, "override 'steps' is not name=value"},
                {{"seed=1", "=2"}, "''"},
                {{"steps=many", "seed=1"}, "'many' is not a number"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_not_equal(lt_train(NULL, rows[i].list, 2), LT_OK);
        if (strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("%s %s: %s", rows[i].list[0], rows[i].list[1], lt_error_message());
        }
    }
    assert_int_equal(lt_train("nosuch.yaml", NULL, 0), LT_ERR_NOT_FOUND);
}

/* `lateen train RECIPE --model X --data FILE` */
static void short_names(void **state) {
    static char *words[] = {"train", "--model", "X", "--data=chat.jsonl", "--data.seq", "64"};
    static lt_recipe r;
    int n = 0;
    bool help = false;
    (void)state;
    lt_options_default(&lt_recipe_table, &r);
    must(lt_options_parse(&lt_recipe_table, &r, 6, words, NULL, 0, &n, &help), "flags");
    assert_string_equal(r.init, "X");
    assert_string_equal(r.train, "chat.jsonl");
    assert_int_equal(r.seq, 64);
    assert_ptr_equal(lt_option_find(&lt_recipe_table, "model"),
                     lt_option_find(&lt_recipe_table, "model.init"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(types),
        cmocka_unit_test(each_family),
        cmocka_unit_test(rates),
        cmocka_unit_test(rates_beyond_the_end),
        cmocka_unit_test(batch_of_each_step),
        cmocka_unit_test(contradictions),
        cmocka_unit_test(slow_moment),
        cmocka_unit_test(mixtures),
        cmocka_unit_test(shapes),
        cmocka_unit_test(blocks_and_experts),
        cmocka_unit_test(overrides),
        cmocka_unit_test(short_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
