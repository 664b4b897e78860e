/* model.c: a model spec for planning, its exact parameter count, and its FLOPs by every convention.
 *
 * The planner reads the Hugging Face config.json of any decoder, including families that Lateen
 * does not train (MLA, hybrids), so its spec is wider than lt_model_spec and holds only sizes.
 *
 *     parameters of a block   attention  w (H D) + 2 w (G D) + (H D) w,  or MLA's low-rank products
 *                             dense      2 or 3 w f
 *                             moe        experts * (2 or 3) w f_e + shared + router
 *                             mamba-2    w (2 d + 2 g n + heads) + d w + 5 (d + 2 g n)
 *                                        + 3 heads + d,  d = heads * head_dim */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "plan/plan.h"

#define CONFIG_BYTES ((size_t)4 << 20)

static lt_err positive(const char *what, int64_t value, const char *name) {
    if (value < 1 || value > ((int64_t)1 << 40)) {
        LT_FAIL(LT_ERR_ARG, "model %s: %s is %lld", name, what, (long long)value);
    }
    return LT_OK;
}

lt_err lt_plan_model_check(const lt_plan_model *m) {
    LT_ASSERT(m != NULL);
    LT_TRY(positive("layers (num_hidden_layers)", m->n_layers, m->name));
    LT_TRY(positive("width (hidden_size)", m->width, m->name));
    LT_TRY(positive("vocab_size", m->vocab_size, m->name));
    LT_TRY(positive("sequence length", m->max_seq, m->name));
    if (m->n_attn > 0) {
        LT_TRY(positive("heads (num_attention_heads)", m->n_heads, m->name));
        LT_TRY(positive("kv_heads", m->n_kv_heads, m->name));
        LT_TRY(positive("head_dim", m->head_dim, m->name));
        if (m->n_heads % m->n_kv_heads != 0) {
            LT_FAIL(LT_ERR_ARG, "model %s: %lld heads are not a multiple of %lld key/value heads",
                    m->name, (long long)m->n_heads, (long long)m->n_kv_heads);
        }
    }
    if (m->n_dense > 0) {
        LT_TRY(positive("ffn (intermediate_size)", m->ffn_width, m->name));
    }
    if (m->n_moe > 0) {
        LT_TRY(positive("experts", m->n_experts, m->name));
        LT_TRY(positive("expert_ffn (moe_intermediate_size)", m->expert_ffn_width, m->name));
        if (m->top_k < 1 || m->top_k > m->n_experts) {
            LT_FAIL(LT_ERR_ARG, "model %s: a token goes to %lld experts but there are %lld",
                    m->name, (long long)m->top_k, (long long)m->n_experts);
        }
    }
    if (m->n_mamba > 0) {
        LT_TRY(positive("mamba_heads", m->mamba_heads, m->name));
        LT_TRY(positive("mamba_dim", m->mamba_dim, m->name));
    }
    return LT_OK;
}

static double attention_params(const lt_plan_model *m) {
    const double w = (double)m->width, h = (double)m->n_heads, d = (double)m->head_dim,
                 g = (double)m->n_kv_heads;
    if (m->kv_rank > 0) {
        const double qk = (double)(m->nope_dim + m->rope_dim), r = (double)m->kv_rank,
                     q = (double)m->q_rank;
        const double query = m->q_rank > 0 ? w * q + q + q * h * qk : w * h * qk;
        return query + w * (r + (double)m->rope_dim) + r +
               r * h * (double)(m->nope_dim + m->v_dim) + h * (double)m->v_dim * w;
    }
    return w * h * d + 2.0 * w * g * d + h * d * w +
           (m->biases || m->qkv_bias ? (h + 2.0 * g) * d : 0.0) + (m->biases ? w : 0.0) +
           (m->qk_norm ? 2.0 * d : 0.0);
}

static double ffn_params(const lt_plan_model *m, double width, double f) {
    return (m->gated ? 3.0 : 2.0) * width * f +
           (m->biases ? f * (m->gated ? 2.0 : 1.0) + width : 0.0);
}

static double mamba_params(const lt_plan_model *m) {
    const double w = (double)m->width, d = (double)(m->mamba_heads * m->mamba_dim),
                 heads = (double)m->mamba_heads;
    const double bc = 2.0 * (double)(m->mamba_groups * m->mamba_state);
    /* The convolution has 4 taps and a bias per channel; A, D and the time step's bias are per
     * head. */
    return w * (2.0 * d + bc + heads) + 5.0 * (d + bc) + d * w + 3.0 * heads + d;
}

static double moe_params(const lt_plan_model *m, double experts) {
    const double w = (double)m->width, in = m->latent > 0 ? (double)m->latent : w;
    double p = experts * ffn_params(m, in, (double)m->expert_ffn_width) + w * (double)m->n_experts;
    if (m->latent > 0) {
        p += 2.0 * w * in;
    }
    return p + (m->shared_ffn_width > 0 ? ffn_params(m, w, (double)m->shared_ffn_width) : 0.0);
}

lt_plan_params lt_plan_model_params(const lt_plan_model *m) {
    lt_plan_params p = {0};
    const double w = (double)m->width, norm = m->biases ? 2.0 * w : w;
    const double blocks = (double)(m->n_attn + m->n_mamba + m->n_dense + m->n_moe);
    const double mtp = (double)m->mtp;
    double active_moe;

    p.embedding = (double)(m->vocab_size + m->positions) * w;
    p.head = m->tied ? 0.0 : (double)m->vocab_size * w;
    p.attention = (double)m->n_attn * attention_params(m) + (double)m->n_mamba * mamba_params(m) +
                  blocks * norm + norm;
    p.dense = (double)m->n_dense * ffn_params(m, w, (double)m->ffn_width);
    p.moe = (double)m->n_moe * moe_params(m, (double)m->n_experts);
    p.routed = p.moe - (double)m->n_moe * moe_params(m, 0);
    active_moe = (double)m->n_moe * moe_params(m, (double)m->top_k);
    if (m->mtp > 0) { /* Each has one more block, three norms and the 2 w -> w projection. */
        const double extra = attention_params(m) + 2.0 * w * w + 5.0 * norm;
        p.attention += mtp * extra;
        p.moe += m->n_moe > 0 ? mtp * moe_params(m, (double)m->n_experts)
                              : mtp * ffn_params(m, w, (double)m->ffn_width);
        p.routed *= m->n_moe > 0 ? 1.0 + mtp / (double)m->n_moe : 1.0;
        active_moe += m->n_moe > 0 ? mtp * moe_params(m, (double)m->top_k)
                                   : mtp * ffn_params(m, w, (double)m->ffn_width);
    }
    p.total = p.embedding + p.head + p.attention + p.dense + p.moe;
    p.active = p.embedding + p.head + p.attention + p.dense + active_moe;
    return p;
}

/* Multiply-adds of scores and values per token against a full sequence, over all attention layers:
 * H (Dqk + Dv) keys. */
static double attention_pairs(const lt_plan_model *m, double keys) {
    const double qk = m->kv_rank > 0 ? (double)(m->nope_dim + m->rope_dim) : (double)m->head_dim;
    const double v = m->kv_rank > 0 ? (double)m->v_dim : (double)m->head_dim;
    const double near = lt_plan_min((double)m->window, keys);
    return ((double)(m->n_attn + m->mtp - m->n_windowed) * keys + (double)m->n_windowed * near) *
           (double)m->n_heads * (qk + v);
}

double lt_plan_model_flops(const lt_plan_model *m, lt_plan_flops_kind kind, int64_t seq) {
    const lt_plan_params p = lt_plan_model_params(m);
    const double s = (double)seq, h = (double)m->width, l = (double)m->n_layers,
                 v = (double)m->vocab_size;
    /* The output matrix multiplies every token (once more per MTP layer), even if it is tied to the
     * embedding. */
    const double n = p.active - p.embedding - p.head + (1.0 + (double)m->mtp) * v * h;
    switch (kind) {
    case LT_PLAN_FLOPS_SIX_N:
        return 6.0 * n;
    case LT_PLAN_FLOPS_MODEL_CAUSAL:
        return 6.0 * n + 3.0 * attention_pairs(m, s);
    case LT_PLAN_FLOPS_MODEL_FULL:
        return 6.0 * n + 6.0 * attention_pairs(m, s);
    case LT_PLAN_FLOPS_MEGATRON_MODEL:
        return 72.0 * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
    case LT_PLAN_FLOPS_MEGATRON_HARDWARE:
        return 96.0 * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h));
    case LT_PLAN_FLOPS_COUNT:
        break;
    }
    return 0.0;
}

/* Largest size of a model in any dimension: products of two such sizes still fit. */
#define MAX_SIZE 1000000000

static lt_err read_size(const json_t *o, const char *key, int64_t *out, const char *what) {
    LT_TRY(lt_json_i64(o, key, out, true, what));
    if (*out > MAX_SIZE || *out < -MAX_SIZE) {
        LT_FAIL(LT_ERR_ARG, "%s: %s = %lld, but no size of a model exceeds %d", what, key,
                (long long)*out, MAX_SIZE);
    }
    return LT_OK;
}

/* The first of several spellings of a key that is present. */
static lt_err any_i64(const json_t *o, const char *const *keys, int64_t *out, const char *what) {
    for (int i = 0; keys[i] != NULL; i++) {
        const json_t *v = json_object_get(o, keys[i]);
        if (v != NULL && !json_is_null(v) && !json_is_array(v)) {
            return read_size(o, keys[i], out, what);
        }
    }
    return LT_OK;
}

#define ANY(field, ...)                                                                            \
    LT_TRY(any_i64(o, (const char *const[]){__VA_ARGS__, NULL}, &m->field, what))

static lt_err read_sizes(lt_plan_model *m, const json_t *o, const char *what) {
    ANY(n_layers, "num_hidden_layers", "n_layer", "n_layers");
    ANY(width, "hidden_size", "n_embd", "d_model");
    ANY(n_heads, "num_attention_heads", "n_head", "n_heads");
    m->n_kv_heads = m->n_heads;
    ANY(n_kv_heads, "num_key_value_heads", "num_kv_heads");
    ANY(head_dim, "head_dim");
    ANY(ffn_width, "intermediate_size", "n_inner", "ffn_dim");
    ANY(vocab_size, "vocab_size");
    ANY(max_seq, "max_position_embeddings", "n_positions", "max_seq_len");
    ANY(n_experts, "num_local_experts", "n_routed_experts", "num_experts");
    ANY(top_k, "num_experts_per_tok", "num_experts_per_token");
    ANY(route_groups, "n_group");
    ANY(route_limit, "topk_group");
    ANY(expert_ffn_width, "moe_intermediate_size");
    ANY(shared_ffn_width, "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size");
    ANY(latent, "moe_latent_size");
    ANY(mtp, "num_nextn_predict_layers");
    ANY(q_rank, "q_lora_rank");
    ANY(kv_rank, "kv_lora_rank");
    ANY(rope_dim, "qk_rope_head_dim");
    ANY(nope_dim, "qk_nope_head_dim");
    ANY(v_dim, "v_head_dim");
    ANY(mamba_heads, "mamba_num_heads");
    ANY(mamba_dim, "mamba_head_dim");
    ANY(mamba_state, "ssm_state_size");
    ANY(mamba_groups, "n_groups");
    return LT_OK;
}

/* What a config.json leaves to its family's code (transformers, models/<type>/configuration_*.py).
 * The default is a Llama: SwiGLU, RMSNorm, rotary positions, a separate output matrix, no
 * biases. */
typedef struct {
    const char *type;
    bool gated, biases, tied, qkv_bias, qk_norm, learned;
    bool ffn4;        /* intermediate_size defaults to 4 hidden_size. */
    bool multi;       /* multi_query: one key/value head. */
    bool unfused_act; /* There is no fused kernel. */
    /* Without layer_types: one of this many layers sees all tokens, while the others look back
     * sliding_window tokens; 1: all have the window, 0: none. */
    int64_t full_every;
} family;

static const family families[] = {
    {.type = "llama", .gated = true},
    {.type = "mistral", .gated = true, .full_every = 1},
    {.type = "mixtral", .gated = true, .full_every = 1},
    {.type = "qwen2", .gated = true, .qkv_bias = true},
    {.type = "qwen2_moe", .gated = true, .qkv_bias = true},
    {.type = "qwen3", .gated = true, .qk_norm = true},
    {.type = "qwen3_moe", .gated = true, .qk_norm = true},
    {.type = "apertus", .qk_norm = true},
    {.type = "deepseek_v2", .gated = true},
    {.type = "deepseek_v3", .gated = true},
    {.type = "kimi_k2", .gated = true},
    {.type = "gpt_oss", .gated = true, .qkv_bias = true, .unfused_act = true, .full_every = 2},
    {.type = "gemma", .gated = true, .tied = true},
    {.type = "gemma2", .gated = true, .tied = true, .full_every = 2},
    {.type = "gemma3", .gated = true, .tied = true, .qk_norm = true, .full_every = 6},
    {.type = "gemma3_text", .gated = true, .tied = true, .qk_norm = true, .full_every = 6},
    {.type = "llama4_text", .gated = true},
    {.type = "olmo2", .gated = true, .qk_norm = true},
    {.type = "olmoe", .gated = true, .qk_norm = true},
    {.type = "phi3", .gated = true, .full_every = 1},
    {.type = "cohere", .gated = true, .tied = true},
    {.type = "smollm3", .gated = true, .tied = true},
    {.type = "nemotron"},
    {.type = "nemotron_h"},
    {.type = "gpt2", .biases = true, .tied = true, .learned = true, .ffn4 = true},
    {.type = "gpt_bigcode",
     .biases = true,
     .tied = true,
     .learned = true,
     .ffn4 = true,
     .multi = true},
    {.type = "megatron", .biases = true, .tied = true, .learned = true, .ffn4 = true},
    {.type = "gpt_neox", .biases = true, .ffn4 = true},
    {.type = "gptj", .biases = true, .ffn4 = true},
    {.type = "phi", .biases = true, .ffn4 = true},
    {.type = "bloom", .biases = true, .tied = true, .ffn4 = true},
    {.type = "opt", .biases = true, .tied = true, .learned = true, .ffn4 = true},
    {.type = "falcon", .tied = true, .ffn4 = true, .multi = true},
    {.type = "mpt", .tied = true, .ffn4 = true},
    {.type = "starcoder2", .biases = true, .tied = true, .full_every = 1},
};

static const family *family_of(const char *type, const char *what) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].type, type) == 0) {
            return &families[i];
        }
    }
    if (type[0] != 0) {
        lt_log_warn(
            "%s: model_type '%s' is not known to the planner: counted as a Llama (SwiGLU, no "
            "biases); compare the parameters",
            what, type);
    }
    return &families[0];
}

/* Number of layers that look back only `window` tokens: by layer_types, or by the family's
 * pattern. */
static lt_err read_windows(lt_plan_model *m, const json_t *o, int64_t full_every,
                           const char *what) {
    const json_t *types = json_object_get(o, "layer_types"), *type;
    bool used = true;
    size_t i;
    LT_TRY(lt_json_bool(o, "use_sliding_window", &used, true, what));
    if (!used || json_is_null(json_object_get(o, "sliding_window"))) {
        return LT_OK;
    }
    LT_TRY(read_size(o, "sliding_window", &m->window, what));
    LT_TRY(read_size(o, "sliding_window_pattern", &full_every, what));
    if (m->window < 0 || full_every < 0) {
        LT_FAIL(LT_ERR_ARG, "%s: sliding_window %lld with a pattern of %lld layers", what,
                (long long)m->window, (long long)full_every);
    }
    json_array_foreach(types, i, type) {
        const char *name = json_string_value(type);
        m->n_windowed += name != NULL && strcmp(name, "sliding_attention") == 0;
    }
    if (!json_is_array(types) && m->window > 0 && full_every > 0) {
        m->n_windowed = full_every == 1 ? m->n_layers : m->n_layers - m->n_layers / full_every;
    }
    if (m->n_windowed > m->n_layers) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %lld layers of layer_types slide, num_hidden_layers is %lld",
                what, (long long)m->n_windowed, (long long)m->n_layers);
    }
    m->window = m->n_windowed > 0 ? m->window : 0;
    return LT_OK;
}

static lt_err read_family(lt_plan_model *m, const json_t *o, const char *what) {
    const char *type = "", *act = "";
    const family *f;
    bool encoder = false, multi_query = false;
    int64_t n_shared = 0;
    LT_TRY(lt_json_str(o, "model_type", &type, true, what));
    LT_TRY(lt_json_bool(o, "is_encoder_decoder", &encoder, true, what));
    if (encoder || strcmp(type, "bert") == 0 || strcmp(type, "roberta") == 0 ||
        strcmp(type, "modernbert") == 0) {
        LT_FAIL(LT_ERR_ARG, "%s: '%s' is not a decoder; the planner supports decoders only", what,
                type);
    }
    LT_TRY(lt_json_str(o, "hidden_act", &act, true, what));
    if (act[0] == 0) {
        LT_TRY(lt_json_str(o, "mlp_hidden_act", &act, true, what));
    }
    f = family_of(type, what);
    m->gated = f->gated && strncmp(act, "relu2", 5) != 0 && strncmp(act, "xielu", 5) != 0 &&
               strncmp(act, "gelu_new", 8) != 0;
    m->biases = f->biases;
    m->tied = f->tied;
    LT_TRY(lt_json_bool(o, "tie_word_embeddings", &m->tied, true, what));
    m->qkv_bias = f->qkv_bias;
    m->qk_norm = f->qk_norm;
    LT_TRY(lt_json_bool(o, "multi_query", &multi_query, true, what));
    if (f->multi && multi_query) {
        m->n_kv_heads = 1;
    }
    LT_TRY(lt_json_bool(o, "dropout", &m->dropout, true, what));
    if (f->ffn4 && m->ffn_width == 0) {
        m->ffn_width = 4 * m->width;
    }
    m->positions = f->learned ? m->max_seq : 0;
    m->unfused_act = f->unfused_act;
    LT_TRY(read_windows(m, o, f->full_every, what));
    if (m->n_experts > 0 && m->expert_ffn_width == 0) {
        m->expert_ffn_width = m->ffn_width;
    }
    LT_TRY(read_size(o, "n_shared_experts", &n_shared, what));
    if (n_shared > 0 && m->shared_ffn_width == 0) {
        m->shared_ffn_width = n_shared * m->expert_ffn_width;
    }
    return LT_OK;
}

static lt_err read_blocks(lt_plan_model *m, const json_t *o, const char *what) {
    const char *pattern = NULL;
    int64_t dense_first = 0;
    LT_TRY(lt_json_str(o, "hybrid_override_pattern", &pattern, true, what));
    LT_TRY(read_size(o, "first_k_dense_replace", &dense_first, what));
    if (pattern == NULL) {
        m->n_attn = m->n_layers;
        m->n_moe = m->n_experts > 0 ? m->n_layers - dense_first : 0;
        m->n_dense = m->n_layers - m->n_moe;
        if (m->n_moe < 0 || dense_first < 0) {
            LT_FAIL(LT_ERR_ARG, "%s: first_k_dense_replace %lld of num_hidden_layers %lld", what,
                    (long long)dense_first, (long long)m->n_layers);
        }
        return LT_OK;
    }
    for (const char *p = pattern; *p != 0; p++) {
        m->n_mamba += *p == 'M';
        m->n_attn += *p == '*';
        m->n_moe += *p == 'E';
        m->n_dense += *p == '-';
    }
    if ((int64_t)strlen(pattern) != m->n_layers ||
        m->n_mamba + m->n_attn + m->n_moe + m->n_dense != m->n_layers) {
        LT_FAIL(
            LT_ERR_FORMAT,
            "%s: hybrid_override_pattern has %zu blocks (%lld known), num_hidden_layers is %lld",
            what, strlen(pattern), (long long)(m->n_mamba + m->n_attn + m->n_moe + m->n_dense),
            (long long)m->n_layers);
    }
    return LT_OK;
}

static void name_of_path(char out[LT_PLAN_NAME_BYTES], const char *path) {
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    /* The folder's name is the better name. */
    if (slash != NULL && strcmp(base, "config.json") == 0) {
        const char *start = slash;
        while (start > path && start[-1] != '/') {
            start--;
        }
        snprintf(out, LT_PLAN_NAME_BYTES, "%.*s",
                 (int)lt_plan_min((double)(slash - start), LT_PLAN_NAME_BYTES - 1), start);
    } else {
        const size_t stem = lt_path_has_suffix(base, ".json") ? strlen(base) - strlen(".json")
                                                              : strcspn(base, ".");
        snprintf(out, LT_PLAN_NAME_BYTES, "%.*s", (int)stem, base);
    }
}

static lt_err read_model(lt_plan_model *m, const json_t *o, const char *what) {
    const json_t *text;
    if (!json_is_object(o)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: not a JSON object", what);
    }
    text = json_object_get(o, "text_config"); /* Of a multimodal model, use the language part. */
    if (json_is_object(text) && json_object_get(o, "hidden_size") == NULL) {
        o = text;
    }
    LT_TRY(read_sizes(m, o, what));
    LT_TRY(read_family(m, o, what));
    if (m->head_dim == 0 && m->n_heads > 0) {
        m->head_dim = m->width / m->n_heads;
    }
    LT_TRY(read_blocks(m, o, what));
    return lt_plan_model_check(m);
}

lt_err lt_plan_model_load(lt_plan_model *out, const char *path) {
    lt_err err = LT_OK;
    json_t *root = NULL;
    char found[LT_PATH_BYTES];
    lt_plan_model m = {0};

    LT_ASSERT(out != NULL && path != NULL);
    LT_TRY(lt_plan_recipe_find(found, sizeof found, "models", path, ".json"));
    LT_TRY(lt_json_load(&root, found, CONFIG_BYTES));
    name_of_path(m.name, found);
    LT_TRY_DONE(read_model(&m, root, found));
    *out = m;
done:
    json_decref(root);
    return err;
}

void lt_plan_model_from_spec(lt_plan_model *out, const lt_model_spec *spec, const char *name) {
    int64_t n_moe = 0, n_windowed = 0, dense_width = spec->ffn_width;
    LT_ASSERT(out != NULL && spec != NULL && name != NULL);
    for (int64_t i = 0; i < spec->n_layers; i++) {
        const lt_layer_spec l = lt_model_layer(spec, i);
        n_moe += l.n_experts > 0;
        n_windowed += l.window > 0;
        dense_width = l.n_experts > 0 ? dense_width : l.ffn_width;
    }
    *out = (lt_plan_model){.n_layers = spec->n_layers,
                           .width = spec->width,
                           .n_heads = spec->n_heads,
                           .n_kv_heads = spec->n_kv_heads,
                           .head_dim = spec->head_dim,
                           .ffn_width = dense_width,
                           .vocab_size = spec->vocab_size,
                           .max_seq = spec->max_seq,
                           .n_attn = spec->n_layers,
                           .n_dense = spec->n_layers - n_moe,
                           .n_moe = n_moe,
                           .n_experts = spec->n_experts,
                           .top_k = spec->top_k,
                           .expert_ffn_width = spec->n_experts > 0 ? spec->ffn_width : 0,
                           .window = spec->window,
                           .n_windowed = n_windowed,
                           .positions = spec->pos == LT_POS_LEARNED ? spec->max_seq : 0,
                           .gated = spec->gated,
                           .tied = spec->tied,
                           .biases = spec->norm == LT_NORM_LAYER && spec->mlp_bias,
                           .qkv_bias = spec->qkv_bias,
                           .qk_norm = spec->qk_norm};
    snprintf(out->name, sizeof out->name, "%s", name);
}
