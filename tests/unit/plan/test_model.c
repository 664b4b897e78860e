/* Parameter counts against the published ones, FLOP conventions against each other, and files that
 * contradict themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lateen/plan.h"

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want) + 1e-300)) {
        fail_msg("got %.8g, want %.8g within %.2g", got, want, share);
    }
}

static void counts_are_the_published_ones(void **state) {
    static const struct {
        const char *name;
        double total, active, share;
    } known[] = {
        {"llama3-8b", 8030261248.0, 8030261248.0, 0}, /* Exact: the safetensors index on the hub. */
        {"llama3-70b", 70553706496.0, 70553706496.0, 0},
        {"llama3-405b", 405853388800.0, 405853388800.0, 0},
        {"smollm2-135m", 134515008.0, 134515008.0, 0},
        {"gpt2-124m", 124439808.0, 124439808.0, 0},
        {"qwen3-8b", 8190735360.0, 8190735360.0, 0},
        {"gpt3-175b", 174.6e9, 174.6e9, 0.003},
        {"mt-nlg-530b", 529.6e9, 529.6e9, 0.003},
        {"gpt-1t", 1008.0e9, 1008.0e9, 0.003},
        {"bloom-176b", 176.247e9, 176.247e9, 0.001},
        {"apertus-70b", 70.599e9, 70.599e9, 0.001},
        {"mixtral-8x7b", 46.703e9, 12.879e9, 0.002},
        {"qwen3-30b-a3b", 30.532e9, 3.345e9, 0.01},
        {"qwen3-235b-a22b", 235.09e9, 22.14e9, 0.01},
        {"gpt-oss-120b", 116.8e9, 5.7e9, 0.02},
        {"deepseek-v3", 684.5e9, 0, 0.01}, /* With the MTP layer, as on the hub. */
        {"kimi-k2", 1026e9, 32.9e9, 0.02},
        {"nemotron3-nano", 31.6e9, 3.5e9, 0.03},
        {"nemotron3-super", 120.6e9, 12.7e9, 0.06}};
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        lt_plan_model m;
        lt_plan_params p;
        if (lt_plan_model_load(&m, known[i].name) != LT_OK) {
            fail_msg("%s", lt_error_message());
        }
        p = lt_plan_model_params(&m);
        near(p.total, known[i].total, known[i].share + 1e-12);
        if (known[i].active > 0) {
            near(p.active, known[i].active, known[i].share + 1e-12);
        }
    }
}

static void flop_conventions_agree_where_they_should(void **state) {
    lt_plan_model m;
    (void)state;
    /* Megatron-Bridge prints 744 TFLOP/s at 14,451 tokens/s a GPU for Llama 3 8B at 8,192 tokens:
     * causal attention. */
    assert_int_equal(lt_plan_model_load(&m, "llama3-8b"), LT_OK);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_CAUSAL, 8192) * 14451, 744e12, 0.005);
    /* Apertus 70B: 4.4936e11 a token by 6 N + 12 l d s. */
    assert_int_equal(lt_plan_model_load(&m, "apertus-70b"), LT_OK);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 4096), 4.4936e11, 0.001);
    /* SC'21 eq. 3 counts full recompute: 4/3 of the model's FLOPs but for the head. */
    assert_int_equal(lt_plan_model_load(&m, "gpt3-175b"), LT_OK);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_HARDWARE, 2048) /
             lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_MODEL, 2048),
         4.0 / 3.0, 0.01);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_MODEL, 2048),
         lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 2048), 0.01);
}

/* A model that is read, without its closing brace. */
#define SMALL                                                                                      \
    "{\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"                       \
    "\"intermediate_size\":8,\"vocab_size\":9,\"max_position_embeddings\":16"

/* Falcon 7B has one key head (multi_query): 6,921,720,704 parameters, its head tied. */
static void one_key_head(void **state) {
    static const char text[] =
        "{\"model_type\":\"falcon\",\"num_hidden_layers\":32,\"hidden_size\":4544,"
        "\"num_attention_heads\":71,\"vocab_size\":65024,\"multi_query\":true,"
        "\"max_position_embeddings\":2048}";
    char path[] = "/tmp/lateen_planXXXXXX";
    lt_plan_model m;
    const int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(lt_plan_model_load(&m, path), LT_OK);
    near(lt_plan_model_params(&m).total, 6921720704.0, 1e-3);
    unlink(path);
}

static void refuses(const char *text, const char *word) {
    char path[] = "/tmp/lateen_planXXXXXX";
    lt_plan_model m;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    assert_int_not_equal(lt_plan_model_load(&m, path), LT_OK);
    if (strstr(lt_error_message(), word) == NULL) {
        fail_msg("'%s' does not name '%s'", lt_error_message(), word);
    }
    unlink(path);
}

static void contradictions_are_named(void **state) {
    lt_plan_model m;
    (void)state;
    refuses("[]", "object");
    refuses("{\"num_hidden_layers\": 4", "");
    refuses(SMALL ",\"tie_word_embeddings\":3}", "'tie_word_embeddings' is not");
    refuses(SMALL ",\"is_encoder_decoder\":1}", "'is_encoder_decoder' is not");
    refuses(SMALL ",\"multi_query\":\"no\"}", "'multi_query' is not");
    refuses(SMALL ",\"dropout\":\"no\"}", "'dropout' is not");
    refuses(SMALL ",\"hidden_act\":3}", "'hidden_act' is not");
    refuses(SMALL ",\"model_type\":3}", "'model_type' is not");
    refuses(SMALL ",\"num_local_experts\":4,\"num_experts_per_tok\":2,"
                  "\"moe_intermediate_size\":-8}",
            "expert_ffn (moe_intermediate_size) is -8");
    refuses(SMALL ",\"is_encoder_decoder\":true}", "decoders only");
    refuses("{\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"
            "\"intermediate_size\":8,\"max_position_embeddings\":16}",
            "vocab_size is 0");
    refuses(SMALL ",\"model_type\":\"roberta\"}", "'roberta' is not a decoder");
    refuses("{\"num_hidden_layers\": 4}", "width");
    refuses("{\"num_hidden_layers\": \"four\"}", "num_hidden_layers");
    refuses("{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_embd\": 7720368541775808257}",
            "n_embd = 7720368541775808257");
    refuses("{\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_"
            "heads\":3,\"intermediate_size\":8,"
            "\"vocab_size\":9,\"max_position_embeddings\":16}",
            "4 heads are not a multiple of 3");
    refuses("{\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_"
            "size\":8,\"num_local_experts\":4,"
            "\"num_experts_per_tok\":5,\"vocab_size\":9,\"max_position_embeddings\":16}",
            "5 experts but there are 4");
    refuses("{\"num_hidden_layers\":3,\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_"
            "size\":8,"
            "\"hybrid_override_pattern\":\"M*\",\"mamba_num_heads\":2,\"mamba_head_dim\":32,"
            "\"vocab_size\":9,\"max_position_embeddings\":16}",
            "num_hidden_layers is 3");
    refuses("{\"num_hidden_layers\":3,\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_"
            "size\":8,"
            "\"hybrid_override_pattern\":\"M*X\",\"mamba_num_heads\":2,\"mamba_head_dim\":32,"
            "\"vocab_size\":9,\"max_position_embeddings\":16}",
            "has 3 blocks (2 known)");
    assert_int_equal(lt_plan_model_load(&m, "lama3-70b"), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "llama3-70b"));
}

static void specs_we_train_count_alike(void **state) {
    /* GPT-2 124M and SmolLM2-135M as specs: the trainer's count and the planner's are one
     * number. */
    const lt_model_spec gpt2 = {.family = LT_FAMILY_GPT2,
                                .n_layers = 12,
                                .width = 768,
                                .n_heads = 12,
                                .n_kv_heads = 12,
                                .head_dim = 64,
                                .ffn_width = 3072,
                                .vocab_size = 50257,
                                .max_seq = 1024,
                                .norm = LT_NORM_LAYER,
                                .norm_eps = 1e-5f,
                                .qkv_bias = true,
                                .attn_out_bias = true,
                                .mlp_bias = true,
                                .tied = true,
                                .embed_scale = 1,
                                .pos = LT_POS_LEARNED};
    const lt_model_spec smol = {.family = LT_FAMILY_LLAMA,
                                .n_layers = 30,
                                .width = 576,
                                .n_heads = 9,
                                .n_kv_heads = 3,
                                .head_dim = 64,
                                .ffn_width = 1536,
                                .vocab_size = 49152,
                                .max_seq = 2048,
                                .norm = LT_NORM_RMS,
                                .norm_eps = 1e-5f,
                                .gated = true,
                                .tied = true,
                                .embed_scale = 1,
                                .pos = LT_POS_ROPE,
                                .rope_theta = 1e5};
    const lt_model_spec *specs[] = {&gpt2, &smol};
    (void)state;
    for (int i = 0; i < 2; i++) {
        lt_plan_model m;
        lt_plan_model_from_spec(&m, specs[i], "spec");
        assert_int_equal(lt_plan_model_check(&m), LT_OK);
        assert_int_equal((int64_t)lt_plan_model_params(&m).total, lt_model_spec_params(specs[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_are_the_published_ones),
                                       cmocka_unit_test(flop_conventions_agree_where_they_should),
                                       cmocka_unit_test(specs_we_train_count_alike),
                                       cmocka_unit_test(one_key_head),
                                       cmocka_unit_test(contradictions_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
