/* Parameter counts against the published ones, FLOP conventions against each other, and files
 * that contradict themselves. */
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
        /* Exact, from the safetensors index on the hub. */
        {"llama3-8b", 8030261248.0, 8030261248.0, 0},
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
        {"mixtral-8x7b", 46702792704.0, 12879925248.0, 0},
        /* Active parameters: without 120 of 128 experts of each layer. */
        {"qwen3-30b-a3b", 30532122624.0, 30532122624.0 - 48.0 * 120 * 3 * 2048 * 768, 0},
        {"qwen3-235b-a22b", 235093634560.0, 235093634560.0 - 94.0 * 120 * 3 * 4096 * 1536, 0},
        {"gpt-oss-120b", 116.8e9, 5.7e9, 0.02},
        {"kimi-k2", 1026e9, 32.9e9, 0.02},
        {"nemotron3-nano", 31577937344.0, 31577937344.0 - 23.0 * 122 * 2 * 2688 * 1856, 0},
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

/* DeepSeek-V3 on the hub: 684,489,845,504. These include 256 corrections of the router's scores
 * in each layer with experts, and the MTP layer's copies of the embedding and the output matrix,
 * which the planner leaves out. Without the MTP layer: 671,026,419,200. */
static void deepseek_counts_are_those_on_the_hub(void **state) {
    lt_plan_model m;
    lt_plan_params with, without;
    (void)state;
    assert_int_equal(lt_plan_model_load(&m, "deepseek-v3"), LT_OK);
    with = lt_plan_model_params(&m);
    near(with.total + 59.0 * 256 + 2.0 * 129280 * 7168, 684489845504.0, 1e-15);
    near(with.active, with.total - 59.0 * 248 * 3 * 7168 * 2048, 1e-15);
    m.mtp = 0;
    without = lt_plan_model_params(&m);
    near(without.total + 58.0 * 256, 671026419200.0, 1e-15);
    near(without.active, without.total - 58.0 * 248 * 3 * 7168 * 2048, 1e-15);
    /* Attention is 187,107,328 per layer with a query of rank 1,536, norm included. */
    near(without.attention, 61.0 * (187107328 + 2 * 7168) + 7168, 1e-15);
    m.q_rank = 0; /* DeepSeek-V2-Lite has one matrix for queries: 128 heads of 192. */
    near(lt_plan_model_params(&m).attention - without.attention,
         61.0 * (7168.0 * 128 * 192 - 7168.0 * 1536 - 1536 - 1536.0 * 128 * 192), 1e-15);
}

/* Small blocks of width 8, counted by hand. */
static void blocks_are_counted_by_hand(void **state) {
    lt_plan_model m = {.n_layers = 1, .width = 8, .vocab_size = 10, .max_seq = 16, .tied = true};
    (void)state;
    m.n_moe = 1;
    m.n_experts = 3;
    m.top_k = 2;
    m.expert_ffn_width = 5;
    m.latent = 4; /* 3 experts of 2 x 4 x 5, a router of 8 x 3, 8 -> 4 and 4 -> 8. */
    near(lt_plan_model_params(&m).moe, 120 + 24 + 64, 1e-15);
    near(lt_plan_model_params(&m).active, 80 + 2 * 8 + 80 + 24 + 64, 1e-15); /* And two norms. */
    m.shared_ffn_width = 6; /* A shared expert from the full width: 2 x 8 x 6. */
    near(lt_plan_model_params(&m).moe, 120 + 24 + 64 + 96, 1e-15);
    m.latent = 0; /* 3 experts of 2 x 8 x 5. */
    near(lt_plan_model_params(&m).moe, 240 + 24 + 96, 1e-15);
    m.n_moe = m.n_experts = 0; /* Dense: gated, 3 x 8 x 16; and once more as an MTP layer. */
    m.n_dense = m.n_attn = 1;
    m.n_heads = m.n_kv_heads = 2;
    m.head_dim = 4;
    m.ffn_width = 16;
    m.gated = true;
    near(lt_plan_model_params(&m).total, 80 + 384 + 4 * 64 + 3 * 8, 1e-15);
    m.mtp = 1; /* Attention, 2 w -> w, the two norms of the block and three more. */
    near(lt_plan_model_params(&m).total, 80 + 2 * (384 + 4 * 64) + 3 * 8 + 128 + 5 * 8, 1e-15);
    near(lt_plan_model_params(&m).active, lt_plan_model_params(&m).total, 1e-15);
    m.mtp = 0;
    m.biases = true; /* q, k, v: 3 x 8; out 8; up and gate 2 x 16, down 8; LayerNorms of 2 w. */
    near(lt_plan_model_params(&m).total, 80 + 384 + 4 * 64 + 3 * 16 + 32 + 40, 1e-15);
}

/* Scores and values of a token: heads x (q.k + v) x keys multiply-adds per layer, of which
 * training costs 6 (12 a d s in PaLM's equation) or, under the causal mask, half. */
static void flops_of_attention(void **state) {
    lt_plan_model m = {.n_layers = 2,
                       .width = 8,
                       .n_heads = 3,
                       .n_kv_heads = 3,
                       .head_dim = 4,
                       .ffn_width = 16,
                       .vocab_size = 10,
                       .max_seq = 100,
                       .n_attn = 2,
                       .n_dense = 2};
    double six_n;
    (void)state;
    six_n = lt_plan_model_flops(&m, LT_PLAN_FLOPS_SIX_N, 100);
    /* Four matrices of 8 x 12, two of 8 x 16, two norms per layer and one at the end; the
     * logits. */
    near(six_n, 6 * (2.0 * (384 + 256 + 16) + 8 + 80), 1e-15);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 100) - six_n, 6 * 2 * 3 * 8 * 100,
         1e-15);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_CAUSAL, 100) - six_n, 3 * 2 * 3 * 8 * 100,
         1e-15);
    m.window = 10, m.n_windowed = 1; /* One of the two layers sees 10 keys. */
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 100) - six_n, 6 * 3 * 8 * 110, 1e-15);
    m.window = 200;
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 100) - six_n, 6 * 2 * 3 * 8 * 100,
         1e-15);
    m.window = m.n_windowed = 0;
    m.mtp = 1; /* A third layer of attention, and the logits twice. */
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 100) -
             lt_plan_model_flops(&m, LT_PLAN_FLOPS_SIX_N, 100),
         6 * 3 * 3 * 8 * 100, 1e-15);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_SIX_N, 100) - six_n,
         6 * (384 + 256 + 2 * 64 + 5 * 8 + 80), 1e-15);
    m.mtp = 0;
    m.kv_rank = 7; /* MLA: scores of 5 + 6, values of 9. */
    m.nope_dim = 5;
    m.rope_dim = 6;
    m.v_dim = 9;
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 100) -
             lt_plan_model_flops(&m, LT_PLAN_FLOPS_SIX_N, 100),
         6 * 2 * 3 * 20 * 100, 1e-12);
    /* 72 l h^2 + 12 l h s + 6 V h, and 96 l h^2 + 16 l h s + 6 V h. */
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_MODEL, 100), 9216 + 19200 + 480, 1e-12);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_HARDWARE, 100), 12288 + 25600 + 480, 1e-12);
}

static void flop_conventions_agree_where_they_should(void **state) {
    lt_plan_model m;
    (void)state;
    /* Megatron-Bridge prints 744 TFLOP/s at 14,451 tokens/s per GPU for Llama 3 8B at 8,192
     * tokens: causal attention. */
    assert_int_equal(lt_plan_model_load(&m, "llama3-8b"), LT_OK);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_CAUSAL, 8192) * 14451, 744e12, 0.005);
    /* Apertus 70B: 4.4936e11 per token by 6 N + 12 l d s. */
    assert_int_equal(lt_plan_model_load(&m, "apertus-70b"), LT_OK);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 4096), 4.4936e11, 0.001);
    /* SC'21 eq. 3 counts full recompute: 4/3 of the model's FLOPs except for the head. */
    assert_int_equal(lt_plan_model_load(&m, "gpt3-175b"), LT_OK);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_HARDWARE, 2048) /
             lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_MODEL, 2048),
         4.0 / 3.0, 0.01);
    near(lt_plan_model_flops(&m, LT_PLAN_FLOPS_MEGATRON_MODEL, 2048),
         lt_plan_model_flops(&m, LT_PLAN_FLOPS_MODEL_FULL, 2048), 0.01);
}

/* A valid model, without its closing brace. */
#define SMALL                                                                                      \
    "{\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"                       \
    "\"intermediate_size\":8,\"vocab_size\":9,\"max_position_embeddings\":16"

/* Write the file DIRECTORY/NAME with that text; its path is kept until the next call. */
static const char *written(const char *text, const char *name) {
    static char folder[64], path[128];
    FILE *f;
    snprintf(folder, sizeof folder, "/tmp/lateen_planXXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static lt_plan_model loaded(const char *text, const char *name) {
    const char *path = written(text, name);
    char folder[128];
    lt_plan_model m;
    if (lt_plan_model_load(&m, path) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    unlink(path);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    rmdir(folder);
    return m;
}

/* A model has the name of its file without .json, or else up to its first dot; a config.json has
 * the name of its folder. */
static void a_model_is_named_by_its_file(void **state) {
    static const struct {
        const char *file, *name;
    } rows[] = {{"a.json", "a"},
                {"qwen2.5-7b.json", "qwen2.5-7b"},
                {"qwen2.5-7b.txt", "qwen2"},
                {".json", ""},
                {"config.json", "lateen_plan"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_plan_model m = loaded(SMALL "}", rows[i].file);
        if (strncmp(rows[i].file, "config", 6) == 0) {
            assert_memory_equal(m.name, rows[i].name, strlen(rows[i].name));
            assert_int_equal(strlen(m.name), strlen("lateen_planXXXXXX"));
        } else {
            assert_string_equal(m.name, rows[i].name);
        }
    }
}

/* Each key sets its field, also under the names of older families. */
static void keys_fill_their_fields(void **state) {
    const lt_plan_model m = loaded(
        "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":3,\"hidden_size\":64,"
        "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,"
        "\"intermediate_size\":96,\"vocab_size\":100,\"max_position_embeddings\":128,"
        "\"n_routed_experts\":12,\"num_experts_per_tok\":5,\"n_group\":6,\"topk_group\":2,"
        "\"moe_intermediate_size\":24,\"n_shared_experts\":2,\"moe_latent_size\":32,"
        "\"num_nextn_predict_layers\":1,\"q_lora_rank\":20,\"kv_lora_rank\":21,"
        "\"qk_rope_head_dim\":22,\"qk_nope_head_dim\":23,\"v_head_dim\":25,"
        "\"mamba_num_heads\":26,\"mamba_head_dim\":27,\"ssm_state_size\":28,\"n_groups\":29,"
        "\"first_k_dense_replace\":1}",
        "x.json");
    const lt_plan_model old = loaded("{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,"
                                     "\"n_head\":4,\"vocab_size\":9,\"n_positions\":16}",
                                     "x.json");
    const lt_plan_model mpt = loaded("{\"model_type\":\"mpt\",\"n_layers\":2,\"d_model\":64,"
                                     "\"n_heads\":4,\"vocab_size\":9,\"max_seq_len\":17}",
                                     "x.json");
    const struct {
        int64_t got, want;
    } rows[] = {{m.n_layers, 3},
                {m.width, 64},
                {m.n_heads, 8},
                {m.n_kv_heads, 4},
                {m.head_dim, 16},
                {m.ffn_width, 96},
                {m.vocab_size, 100},
                {m.max_seq, 128},
                {m.n_experts, 12},
                {m.top_k, 5},
                {m.route_groups, 6},
                {m.route_limit, 2},
                {m.expert_ffn_width, 24},
                {m.shared_ffn_width, 48},
                {m.latent, 32},
                {m.mtp, 1},
                {m.q_rank, 20},
                {m.kv_rank, 21},
                {m.rope_dim, 22},
                {m.nope_dim, 23},
                {m.v_dim, 25},
                {m.mamba_heads, 26},
                {m.mamba_dim, 27},
                {m.mamba_state, 28},
                {m.mamba_groups, 29},
                {m.n_attn, 3},
                {m.n_dense, 1},
                {m.n_moe, 2},
                {m.positions, 0},
                {m.window, 0},
                {old.n_layers, 2},
                {old.width, 64},
                {old.n_kv_heads, 4},
                {old.head_dim, 16},
                {old.ffn_width, 256},
                {old.max_seq, 16},
                {old.positions, 16},
                {old.n_moe, 0},
                {mpt.n_layers, 2},
                {mpt.width, 64},
                {mpt.n_heads, 4},
                {mpt.max_seq, 17},
                {mpt.positions, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].got != rows[i].want) {
            fail_msg("row %zu: %lld, not %lld", i, (long long)rows[i].got, (long long)rows[i].want);
        }
    }
    assert_true(m.gated && !m.tied && !m.biases);
    assert_true(!old.gated && old.tied && old.biases);
}

/* What a family's code assumes if the file does not say (transformers). */
static void families_supply_what_files_lack(void **state) {
    static const struct {
        const char *more;
        bool gated, tied;
        int64_t n_kv_heads, ffn, n_windowed, shared, expert;
    } rows[] = {
        {"", true, false, 4, 8, 0, 0, 0},
        {",\"tie_word_embeddings\":true", true, true, 4, 8, 0, 0, 0},
        {",\"model_type\":\"gemma\"", true, true, 4, 8, 0, 0, 0},
        /* An activation without a gate: two matrices. */
        {",\"hidden_act\":\"relu2\"", false, false, 4, 8, 0, 0, 0},
        {",\"hidden_act\":\"xielu\"", false, false, 4, 8, 0, 0, 0},
        {",\"hidden_act\":\"gelu_new\"", false, false, 4, 8, 0, 0, 0},
        {",\"mlp_hidden_act\":\"relu2\"", false, false, 4, 8, 0, 0, 0},
        {",\"hidden_act\":\"silu\",\"mlp_hidden_act\":\"relu2\"", true, false, 4, 8, 0, 0, 0},
        /* The file requests one key head, in a key that only two families have. */
        {",\"multi_query\":true", true, false, 4, 8, 0, 0, 0},
        {",\"model_type\":\"falcon\",\"multi_query\":true", false, true, 1, 8, 0, 0, 0},
        {",\"model_type\":\"falcon\"", false, true, 4, 8, 0, 0, 0},
        /* Which layers have a window: those of layer_types, or of the family's pattern. */
        {",\"sliding_window\":6", true, false, 4, 8, 0, 0, 0},
        {",\"model_type\":\"gpt_oss\",\"sliding_window\":6", true, false, 4, 8, 1, 0, 0},
        {",\"model_type\":\"mistral\",\"sliding_window\":6", true, false, 4, 8, 2, 0, 0},
        {",\"model_type\":\"mistral\",\"sliding_window\":null", true, false, 4, 8, 0, 0, 0},
        {",\"model_type\":\"gemma3\",\"sliding_window\":6", true, true, 4, 8, 2, 0, 0},
        {",\"model_type\":\"gemma3\",\"sliding_window\":6,\"sliding_window_pattern\":2", true, true,
         4, 8, 1, 0, 0},
        {",\"model_type\":\"qwen3\",\"sliding_window\":6,\"use_sliding_window\":false,"
         "\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
         true, false, 4, 8, 0, 0, 0},
        {",\"model_type\":\"qwen3\",\"sliding_window\":6,\"use_sliding_window\":true,"
         "\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         true, false, 4, 8, 1, 0, 0},
        {",\"model_type\":\"mistral\",\"sliding_window\":6,"
         "\"layer_types\":[\"full_attention\",\"full_attention\"]",
         true, false, 4, 8, 0, 0, 0},
        /* Experts are as wide as the feed-forward part, unless the file says otherwise. */
        {",\"num_experts\":4,\"num_experts_per_tok\":4", true, false, 4, 8, 0, 0, 8},
        {",\"num_experts\":1,\"num_experts_per_tok\":1", true, false, 4, 8, 0, 0, 8},
        {",\"num_experts\":4,\"num_experts_per_tok\":1,\"moe_intermediate_size\":3", true, false, 4,
         8, 0, 0, 3},
        {",\"num_experts\":4,\"num_experts_per_tok\":1,\"n_shared_experts\":1", true, false, 4, 8,
         0, 8, 8},
        {",\"num_experts\":4,\"num_experts_per_tok\":1,\"n_shared_experts\":2,"
         "\"shared_expert_intermediate_size\":5",
         true, false, 4, 8, 0, 5, 8}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        lt_plan_model m;
        snprintf(text, sizeof text, SMALL "%s}", rows[i].more);
        m = loaded(text, "x.json");
        if (m.gated != rows[i].gated || m.tied != rows[i].tied ||
            m.n_kv_heads != rows[i].n_kv_heads || m.ffn_width != rows[i].ffn ||
            m.n_windowed != rows[i].n_windowed || m.shared_ffn_width != rows[i].shared ||
            m.expert_ffn_width != rows[i].expert) {
            fail_msg("%s: gated %d tied %d kv_heads %lld ffn %lld windowed %lld shared %lld expert "
                     "%lld",
                     rows[i].more, m.gated, m.tied, (long long)m.n_kv_heads, (long long)m.ffn_width,
                     (long long)m.n_windowed, (long long)m.shared_ffn_width,
                     (long long)m.expert_ffn_width);
        }
    }
}

/* For a multimodal model the language part counts; a text_config beside sizes is ignored. */
static void the_language_part_counts(void **state) {
    lt_plan_model m = loaded("{\"model_type\":\"gemma3\",\"text_config\":" SMALL "}}", "x.json");
    (void)state;
    assert_int_equal(m.width, 64);
    m = loaded(SMALL ",\"text_config\":{\"hidden_size\":32}}", "x.json");
    assert_int_equal(m.width, 64);
    assert_int_equal(m.n_layers, 2);
}

/* Every size that a kind of block needs is checked; the message has the name of the size. */
static void missing_sizes_are_named(void **state) {
    const lt_plan_model good = {.name = "m",
                                .n_layers = 4,
                                .width = 8,
                                .vocab_size = 10,
                                .max_seq = 16,
                                .n_attn = 1,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 4,
                                .n_dense = 1,
                                .ffn_width = 16,
                                .n_moe = 1,
                                .n_experts = 3,
                                .expert_ffn_width = 5,
                                .top_k = 3,
                                .n_mamba = 1,
                                .mamba_heads = 2,
                                .mamba_dim = 4};
    static const struct {
        size_t field;
        int64_t value;
        const char *word; /* NULL: accepted. */
    } rows[] = {{offsetof(lt_plan_model, n_layers), 0, "layers (num_hidden_layers) is 0"},
                {offsetof(lt_plan_model, width), 0, "width (hidden_size) is 0"},
                {offsetof(lt_plan_model, vocab_size), 0, "vocab_size is 0"},
                {offsetof(lt_plan_model, vocab_size), 1, NULL},
                {offsetof(lt_plan_model, vocab_size), (int64_t)1 << 40, NULL},
                {offsetof(lt_plan_model, vocab_size), ((int64_t)1 << 40) + 1, "1099511627777"},
                {offsetof(lt_plan_model, max_seq), -1, "sequence length is -1"},
                {offsetof(lt_plan_model, n_heads), 0, "heads (num_attention_heads) is 0"},
                {offsetof(lt_plan_model, n_heads), 5, "5 heads are not a multiple of 2"},
                {offsetof(lt_plan_model, n_kv_heads), 0, "kv_heads is 0"},
                {offsetof(lt_plan_model, head_dim), 0, "head_dim is 0"},
                {offsetof(lt_plan_model, ffn_width), 0, "ffn (intermediate_size) is 0"},
                {offsetof(lt_plan_model, n_experts), 0, ": experts is 0"},
                {offsetof(lt_plan_model, n_experts), 2, "goes to 3 experts but there are 2"},
                {offsetof(lt_plan_model, top_k), 0, "goes to 0 experts"},
                {offsetof(lt_plan_model, top_k), 1, NULL},
                {offsetof(lt_plan_model, expert_ffn_width), 0, "expert_ffn"},
                {offsetof(lt_plan_model, mamba_heads), 0, "mamba_heads is 0"},
                {offsetof(lt_plan_model, mamba_dim), 0, "mamba_dim is 0"}};
    lt_plan_model m = good;
    (void)state;
    assert_int_equal(lt_plan_model_check(&m), LT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        m = good;
        memcpy((char *)&m + rows[i].field, &rows[i].value, sizeof rows[i].value);
        if (lt_plan_model_check(&m) != (rows[i].word == NULL ? LT_OK : LT_ERR_ARG) ||
            (rows[i].word != NULL && strstr(lt_error_message(), rows[i].word) == NULL)) {
            fail_msg("row %zu: %s", i, lt_error_message());
        }
    }
    /* A model without a kind of block needs none of its sizes. */
    m = (lt_plan_model){.n_layers = 1, .width = 8, .vocab_size = 10, .max_seq = 16};
    assert_int_equal(lt_plan_model_check(&m), LT_OK);
}

/* Falcon 7B has one key head (multi_query): 6,921,720,704 parameters, with a tied head. */
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
    refuses(SMALL ",\"num_experts\":4,\"num_experts_per_tok\":1,\"first_k_dense_replace\":3}",
            "first_k_dense_replace 3 of num_hidden_layers 2");
    refuses(SMALL ",\"num_experts\":4,\"num_experts_per_tok\":1,\"first_k_dense_replace\":-1}",
            "first_k_dense_replace -1");
    refuses(SMALL ",\"hybrid_override_pattern\":3}", "'hybrid_override_pattern' is not");
    refuses(SMALL ",\"first_k_dense_replace\":\"x\"}", "first_k_dense_replace");
    refuses(SMALL ",\"n_shared_experts\":1000000001}", "n_shared_experts = 1000000001");
    refuses(SMALL ",\"n_shared_experts\":-1000000001}", "n_shared_experts = -1000000001");
    refuses(SMALL ",\"mlp_hidden_act\":3}", "'mlp_hidden_act' is not");
    refuses(SMALL ",\"model_type\":\"gpt_oss\",\"sliding_window\":\"x\"}", "sliding_window");
    refuses("{\"model_type\":\"bert\"}", "'bert' is not a decoder");
    refuses("{\"model_type\":\"modernbert\"}", "'modernbert' is not a decoder");
    assert_int_equal(lt_plan_model_load(&m, "lama3-70b"), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "llama3-70b"));
}

static void trainer_and_planner_count_the_same(void **state) {
    /* GPT-2 124M and SmolLM2-135M as specs: the trainer and the planner count the same. */
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
        assert_string_equal(m.name, "spec");
        assert_int_equal(lt_plan_model_check(&m), LT_OK);
        assert_int_equal((int64_t)lt_plan_model_params(&m).total, lt_model_spec_params(specs[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_are_the_published_ones),
                                       cmocka_unit_test(deepseek_counts_are_those_on_the_hub),
                                       cmocka_unit_test(blocks_are_counted_by_hand),
                                       cmocka_unit_test(flops_of_attention),
                                       cmocka_unit_test(flop_conventions_agree_where_they_should),
                                       cmocka_unit_test(trainer_and_planner_count_the_same),
                                       cmocka_unit_test(a_model_is_named_by_its_file),
                                       cmocka_unit_test(keys_fill_their_fields),
                                       cmocka_unit_test(families_supply_what_files_lack),
                                       cmocka_unit_test(the_language_part_counts),
                                       cmocka_unit_test(missing_sizes_are_named),
                                       cmocka_unit_test(one_key_head),
                                       cmocka_unit_test(contradictions_are_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
