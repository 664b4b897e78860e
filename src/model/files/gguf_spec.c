/* gguf_spec.c: GGUF's names: tensor names, and the metadata that describes a model spec.
 *
 * llama.cpp's converter permutes the rows of q and k for some architectures (so that its pairwise
 * rotation gives the same result) and adds 1 to gemma's norm gains; both are undone at load. The
 * rotary embedding: gguf_rope.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/files/gguf_rope.h"
#include "model/layer.h"
#include "model/lora/lora_gguf.h"
#include "model/files/source.h"
#include "tensor/ops.h"

const lt_name_row lt_gguf_names[] = {
    {LT_PARAM_EMBED, LT_PART_ALL, "token_embd.weight", 0},
    {LT_PARAM_POS_EMBED, LT_PART_ALL, "position_embd.weight", 0},
    {LT_PARAM_NORM1, LT_PART_ALL, "blk.%L.attn_norm.weight", 0},
    {LT_PARAM_NORM1_BIAS, LT_PART_ALL, "blk.%L.attn_norm.bias", 0},
    {LT_PARAM_QKV, LT_PART_ALL, "blk.%L.attn_qkv.weight", 0},
    {LT_PARAM_QKV, LT_PART_Q, "blk.%L.attn_q.weight", 0},
    {LT_PARAM_QKV, LT_PART_K, "blk.%L.attn_k.weight", 0},
    {LT_PARAM_QKV, LT_PART_V, "blk.%L.attn_v.weight", 0},
    {LT_PARAM_QKV_BIAS, LT_PART_ALL, "blk.%L.attn_qkv.bias", 0},
    {LT_PARAM_QKV_BIAS, LT_PART_Q, "blk.%L.attn_q.bias", 0},
    {LT_PARAM_QKV_BIAS, LT_PART_K, "blk.%L.attn_k.bias", 0},
    {LT_PARAM_QKV_BIAS, LT_PART_V, "blk.%L.attn_v.bias", 0},
    {LT_PARAM_Q_NORM, LT_PART_ALL, "blk.%L.attn_q_norm.weight", 0},
    {LT_PARAM_K_NORM, LT_PART_ALL, "blk.%L.attn_k_norm.weight", 0},
    {LT_PARAM_ATTN_OUT, LT_PART_ALL, "blk.%L.attn_output.weight", 0},
    {LT_PARAM_ATTN_OUT_BIAS, LT_PART_ALL, "blk.%L.attn_output.bias", 0},
    {LT_PARAM_POST_NORM1, LT_PART_ALL, "blk.%L.post_attention_norm.weight", 0},
    {LT_PARAM_NORM2, LT_PART_ALL, "blk.%L.ffn_norm.weight", 0},
    {LT_PARAM_NORM2, LT_PART_ALL, "blk.%L.post_attention_norm.weight", 0}, /* gpt-oss */
    {LT_PARAM_NORM2_BIAS, LT_PART_ALL, "blk.%L.ffn_norm.bias", 0},
    {LT_PARAM_SINKS, LT_PART_ALL, "blk.%L.attn_sinks.weight", 0},
    {LT_PARAM_ROUTER, LT_PART_ALL, "blk.%L.ffn_gate_inp.weight", 0},
    {LT_PARAM_ROUTER_BIAS, LT_PART_ALL, "blk.%L.ffn_gate_inp.bias", 0},
    {LT_PARAM_UP, LT_PART_GATE, "blk.%L.ffn_gate.weight", 0},
    {LT_PARAM_UP, LT_PART_UP, "blk.%L.ffn_up.weight", 0},
    {LT_PARAM_UP, LT_PART_ALL, "blk.%L.ffn_up.weight", 0}, /* phi3: see lt_name_applies. */
    {LT_PARAM_UP, LT_PART_GATE, "blk.%L.ffn_gate_exps.weight", 0},
    {LT_PARAM_UP, LT_PART_UP, "blk.%L.ffn_up_exps.weight", 0},
    {LT_PARAM_UP, LT_PART_GATE, "blk.%L.ffn_gate.%E.weight", 0},
    {LT_PARAM_UP, LT_PART_UP, "blk.%L.ffn_up.%E.weight", 0},
    {LT_PARAM_UP_BIAS, LT_PART_GATE, "blk.%L.ffn_gate.bias", 0},
    {LT_PARAM_UP_BIAS, LT_PART_UP, "blk.%L.ffn_up.bias", 0},
    {LT_PARAM_UP_BIAS, LT_PART_GATE, "blk.%L.ffn_gate_exps.bias", 0},
    {LT_PARAM_UP_BIAS, LT_PART_UP, "blk.%L.ffn_up_exps.bias", 0},
    {LT_PARAM_XIELU, LT_PART_XIELU_P, "blk.%L.xielu_p", 0}, /* Metadata: see read_xielu. */
    {LT_PARAM_XIELU, LT_PART_XIELU_N, "blk.%L.xielu_n", 0},
    {LT_PARAM_DOWN, LT_PART_ALL, "blk.%L.ffn_down.weight", 0},
    {LT_PARAM_DOWN, LT_PART_ALL, "blk.%L.ffn_down_exps.weight", 0},
    {LT_PARAM_DOWN, LT_PART_ALL, "blk.%L.ffn_down.%E.weight", 0},
    {LT_PARAM_DOWN_BIAS, LT_PART_ALL, "blk.%L.ffn_down.bias", 0},
    {LT_PARAM_DOWN_BIAS, LT_PART_ALL, "blk.%L.ffn_down_exps.bias", 0},
    {LT_PARAM_POST_NORM2, LT_PART_ALL, "blk.%L.post_ffw_norm.weight", 0},
    {LT_PARAM_FINAL_NORM, LT_PART_ALL, "output_norm.weight", 0},
    {LT_PARAM_FINAL_NORM_BIAS, LT_PART_ALL, "output_norm.bias", 0},
    {LT_PARAM_HEAD, LT_PART_ALL, "output.weight", 0},
};
const int lt_n_gguf_names = sizeof lt_gguf_names / sizeof *lt_gguf_names;

typedef struct {
    const lt_gguf *g;
    const char *arch;
} keys;

static const char *full_key(const keys *k, char out[128], const char *suffix) {
    snprintf(out, 128, "%s.%s", k->arch, suffix);
    return out;
}

/* A whole number under "<arch>.<suffix>"; absent: *out stays when optional. */
static lt_err whole(const keys *k, const char *suffix, int64_t *out, bool optional) {
    char key[128];
    const lt_err err = lt_gguf_get_i64(k->g, full_key(k, key, suffix), out);
    return err == LT_ERR_NOT_FOUND && optional ? LT_OK : err;
}

static lt_err real(const keys *k, const char *suffix, double *out) {
    char key[128];
    const lt_err err = lt_gguf_get_f64(k->g, full_key(k, key, suffix), out);
    return err == LT_ERR_NOT_FOUND ? LT_OK : err;
}

static lt_err token_id(const lt_gguf *g, const char *key, int64_t *out) {
    const lt_err err = lt_gguf_get_i64(g, key, out);
    return err == LT_ERR_NOT_FOUND ? LT_OK : err;
}

float lt_gguf_attn_scale(const lt_model_spec *spec) {
    const bool by_width = spec->n_layers == lt_family_get(spec->family)->gguf.by_width_layers;
    const int64_t n = by_width ? spec->width / spec->n_heads : spec->head_dim;
    return (float)(1 / sqrt((double)n)); /* As config.json gives it, bit for bit. */
}

/* Index of the first family with that architecture; -1: none. */
static int find_architecture(const char *name) {
    for (int i = 0; i < LT_FAMILY_COUNT; i++) {
        const char *own = lt_family_get((lt_family)i)->gguf.architecture;
        if (own != NULL && strcmp(own, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Adapters have the architecture of their model, and nothing of its sizes. */
static lt_err check_holds_model(const lt_gguf *g) {
    if (lt_lora_gguf_holds(g)) {
        LT_FAIL(LT_ERR_ARG,
                "%s holds adapters (general.type is 'adapter'), not a model: chat, generate, eval "
                "and serve take it with --lora beside --model BASE",
                g->name);
    }
    return LT_OK;
}

/* The first family of that name; family_traits finds the others that share it. */
static lt_err find_family(lt_model_spec *spec, keys *k) {
    lt_gguf_str arch;
    char known[256] = "";
    LT_TRY(check_holds_model(k->g));
    LT_TRY(lt_gguf_get_str(k->g, "general.architecture", &arch));
    for (int i = 0; i < LT_FAMILY_COUNT; i++) {
        const char *name = lt_family_get((lt_family)i)->gguf.architecture;
        const size_t used = strlen(known);
        if (name == NULL) {
            continue;
        }
        if (lt_gguf_str_is(arch, name)) {
            spec->family = (lt_family)i;
            k->arch = name;
            return LT_OK;
        }
        if (find_architecture(name) == i) { /* Each name once. */
            (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", name);
        }
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: architecture '%.*s' is not one of %s", k->g->name,
            (int)arch.bytes, arch.data, known);
}

static lt_err read_sizes(lt_model_spec *spec, const keys *k) {
    const lt_gguf_tensor *embed = lt_gguf_tensor_find(k->g, "token_embd.weight");
    if (embed == NULL || embed->n_dims != 2) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor token_embd.weight is missing or not a matrix",
                k->g->name);
    }
    LT_TRY(whole(k, "block_count", &spec->n_layers, false));
    LT_TRY(whole(k, "embedding_length", &spec->width, false));
    LT_TRY(whole(k, "context_length", &spec->max_seq, false));
    LT_TRY(whole(k, "feed_forward_length", &spec->ffn_width, false));
    LT_TRY(whole(k, "attention.head_count", &spec->n_heads, false));
    spec->n_kv_heads = spec->n_heads;
    LT_TRY(whole(k, "attention.head_count_kv", &spec->n_kv_heads, true));
    if (spec->n_heads <= 0 || spec->width <= 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %lld heads of a model %lld wide", k->g->name,
                (long long)spec->n_heads, (long long)spec->width);
    }
    spec->head_dim = spec->width / spec->n_heads;
    LT_TRY(whole(k, "attention.key_length", &spec->head_dim, true));
    LT_TRY(whole(k, "expert_count", &spec->n_experts, true));
    LT_TRY(whole(k, "expert_used_count", &spec->top_k, true));
    LT_TRY(whole(k, "expert_feed_forward_length", &spec->ffn_width, true));
    spec->vocab_size = (int64_t)embed->dims[1];
    spec->tied = lt_gguf_tensor_find(k->g, "output.weight") == NULL;
    spec->attn_out_bias = lt_gguf_tensor_find(k->g, "blk.0.attn_output.bias") != NULL;
    spec->mlp_bias = lt_gguf_tensor_find(k->g, "blk.0.ffn_down.bias") != NULL ||
                     lt_gguf_tensor_find(k->g, "blk.0.ffn_down_exps.bias") != NULL;
    spec->router_bias = lt_gguf_tensor_find(k->g, "blk.0.ffn_gate_inp.bias") != NULL;
    spec->qkv_bias = lt_gguf_tensor_find(k->g, "blk.0.attn_q.bias") != NULL ||
                     lt_gguf_tensor_find(k->g, "blk.0.attn_qkv.bias") != NULL;
    return LT_OK;
}

/* Apertus' two scalars of a layer are metadata in GGUF; they are added to the tensors under names
 * of ours. */
static lt_err read_xielu(const lt_model_spec *spec, const lt_gguf *g, lt_source *s) {
    static const char *const keys_of[] = {"xielu.alpha_p", "xielu.alpha_n"};
    const size_t n = 2 * (size_t)spec->n_layers;
    s->bin_weights = calloc(n, sizeof *s->bin_weights);
    if (s->bin_weights == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu scalars", g->name, n);
    }
    for (int which = 0; which < 2; which++) {
        const lt_gguf_kv *kv = lt_gguf_find(g, keys_of[which]);
        if (kv == NULL || kv->elem != LT_GGUF_F32 || kv->n != (uint64_t)spec->n_layers) {
            LT_FAIL(LT_ERR_FORMAT, "%s: %s is not one F32 for each of %lld layers", g->name,
                    keys_of[which], (long long)spec->n_layers);
        }
        for (int64_t layer = 0; layer < spec->n_layers; layer++) {
            lt_named_weight *w = &s->bin_weights[s->n_bin_weights];
            char name[64];
            (void)snprintf(name, sizeof name, "blk.%lld.xielu_%c", (long long)layer, "pn"[which]);
            w->name = strdup(name);
            if (w->name == NULL) {
                LT_FAIL(LT_ERR_OOM, "%s: %zu scalars", g->name, n);
            }
            w->weight = (lt_weight){.type = LT_F32,
                                    .n_dims = 1,
                                    .shape = {1},
                                    .data = kv->data + (size_t)layer * sizeof(float)};
            s->n_bin_weights++;
        }
    }
    return LT_OK;
}

/* What the loader must do for GGUF's form of a family. With experts or a window, the name may mean
 * another family. */
static void family_traits(lt_model_spec *spec, lt_source *s) {
    const lt_gguf_traits *traits = &lt_family_get(spec->family)->gguf;
    s->rope_interleaved = traits->pairs;
    s->norms_plus_one = spec->norm_gain_offset == 1.0f;
    if (traits->with_experts > 0 && spec->n_experts > 0) {
        spec->family = traits->with_experts;
        spec->moe_normalise = lt_family_get(spec->family)->preset.moe_normalise;
    }
    spec->moe_normalise |= traits->normalised;
    for (int64_t i = 0; traits->no_rope_every > 0 && i < LT_MAX_LAYERS; i++) {
        spec->no_rope[i] = (i + 1) % traits->no_rope_every == 0;
    }
    if (spec->embed_scale == 0.0f) {
        spec->embed_scale = sqrtf((float)spec->width);
        spec->attn_scale = lt_gguf_attn_scale(spec);
    }
}

/* A flag or a number for each layer: not 0 where it has a window. */
static lt_err read_window_flags(lt_model_spec *spec, const keys *k, const char *key,
                                const lt_gguf_kv *kv) {
    bool local[LT_MAX_LAYERS];
    const bool whole_numbers = kv->elem != LT_GGUF_F32 && kv->elem != LT_GGUF_F64 &&
                               kv->elem != LT_GGUF_STR && kv->elem != LT_GGUF_ARRAY;

    if (!whole_numbers || kv->n != (uint64_t)spec->n_layers || kv->n > LT_MAX_LAYERS) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s is not a flag for each of %lld layers", k->g->name, key,
                (long long)spec->n_layers);
    }
    for (uint64_t i = 0; i < kv->n; i++) {
        local[i] = lt_gguf_elem_i64(kv, i) != 0;
    }
    if (spec->window > 0) {
        lt_layers_set_windows(spec, local);
    }
    return LT_OK;
}

/* Which layers see all: every n-th, or a flag for each layer. A file without a window has none,
 * unless readers know the windows of its architecture. */
static lt_err read_window(lt_model_spec *spec, const keys *k) {
    char key[128];
    const lt_gguf_kv *kv = lt_gguf_find(k->g, full_key(k, key, "attention.sliding_window"));
    if (kv == NULL && lt_family_get(spec->family)->gguf.window != LT_GGUF_WINDOW_KNOWN) {
        spec->window = spec->window_every = 0;
        return LT_OK;
    }
    kv = lt_gguf_find(k->g, full_key(k, key, "attention.sliding_window_pattern"));
    LT_TRY(whole(k, "attention.sliding_window", &spec->window, true));
    if (kv == NULL || lt_family_get(spec->family)->gguf.window != LT_GGUF_WINDOW_PERIOD) {
        return LT_OK;
    }
    if (kv->type != LT_GGUF_ARRAY) {
        return whole(k, "attention.sliding_window_pattern", &spec->window_every, false);
    }
    return read_window_flags(spec, k, key, kv);
}

/* Granite's scales. A missing one is the preset's, except for attention's, which is then 1 /
 * sqrt(D). */
static lt_err read_scales(lt_model_spec *spec, const keys *k) {
    double embed = (double)spec->embed_scale, residual = (double)spec->residual_scale,
           logits = (double)spec->logit_divisor, attention = 0;
    if (!lt_family_get(spec->family)->gguf.scales) {
        return LT_OK;
    }
    LT_TRY(real(k, "embedding_scale", &embed));
    LT_TRY(real(k, "residual_scale", &residual));
    LT_TRY(real(k, "logit_scale", &logits));
    LT_TRY(real(k, "attention.scale", &attention));
    spec->embed_scale = embed > 0 ? (float)embed : 1.0f; /* As llama.cpp, 0 stands for none. */
    spec->residual_scale = residual > 0 ? (float)residual : 1.0f;
    spec->logit_divisor = logits > 0 ? (float)logits : 1.0f;
    spec->attn_scale = (float)attention;
    return LT_OK;
}

static lt_err read_caps(lt_model_spec *spec, const keys *k) {
    const lt_gguf_traits *traits = &lt_family_get(spec->family)->gguf;
    double attn_cap = (double)spec->attn_softcap, cap = (double)spec->final_softcap;
    LT_TRY(traits->final_cap ? real(k, "final_logit_softcapping", &cap) : LT_OK);
    LT_TRY(traits->attn_cap ? real(k, "attn_logit_softcapping", &attn_cap) : LT_OK);
    spec->final_softcap = (float)cap;
    spec->attn_softcap = (float)attn_cap;
    return LT_OK;
}

/* llama.cpp's three keys, or the list that Lateen writes beside them. Without any of these, the
 * family's own value stays. */
static lt_err read_ends(lt_ends *out, const lt_gguf *g) {
    static const char *const names[] = {"tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    const lt_gguf_kv *list = lt_gguf_find(g, LT_GGUF_ENDS);
    lt_ends ends = {.n = 0};
    bool named = list != NULL;

    if (list != NULL && (list->elem != LT_GGUF_I32 || list->n > LT_MAX_ENDS)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s is not a list of at most %d I32", g->name, LT_GGUF_ENDS,
                LT_MAX_ENDS);
    }
    for (uint64_t i = 0; list != NULL && i < list->n; i++) {
        (void)lt_ends_add(&ends, lt_gguf_elem_i64(list, i));
    }
    for (size_t i = 0; list == NULL && i < sizeof names / sizeof *names; i++) {
        int64_t id = -1;
        LT_TRY(token_id(g, names[i], &id));
        named |= lt_gguf_find(g, names[i]) != NULL;
        (void)lt_ends_add(&ends, id);
    }
    *out = named ? ends : *out;
    return LT_OK;
}

/* If the file names no ids, the family's own ones stay, as far as they are in the vocabulary. */
static void forget_ids_outside(lt_model_spec *spec) {
    const lt_ends ends = spec->eos;
    spec->bos_id = spec->bos_id < spec->vocab_size ? spec->bos_id : -1;
    spec->pad_id = spec->pad_id < spec->vocab_size ? spec->pad_id : -1;
    spec->eos.n = 0;
    for (int i = 0; i < ends.n; i++) {
        if (ends.ids[i] < spec->vocab_size) {
            (void)lt_ends_add(&spec->eos, ends.ids[i]);
        }
    }
}

lt_err lt_gguf_read_spec(lt_model_spec *spec, const lt_gguf *g, lt_source *s) {
    keys k = {.g = g};
    double eps = 1e-5;

    LT_TRY(find_family(spec, &k));
    *spec = lt_family_get(spec->family)->preset;
    LT_TRY(read_sizes(spec, &k));
    if (spec->pos == LT_POS_ROPE) {
        LT_TRY(lt_gguf_read_rope(spec, g, k.arch));
    }
    LT_TRY(real(&k, "attention.layer_norm_rms_epsilon", &eps));
    LT_TRY(real(&k, "attention.layer_norm_epsilon", &eps));
    spec->norm_eps = (float)eps;
    family_traits(spec, s);
    LT_TRY(read_window(spec, &k));
    if (lt_family_get(spec->family)->gguf.with_window > 0 && spec->window > 0) {
        spec->family = lt_family_get(spec->family)->gguf.with_window;
    }
    LT_TRY(read_caps(spec, &k));
    LT_TRY(read_scales(spec, &k));
    LT_TRY(token_id(g, "tokenizer.ggml.bos_token_id", &spec->bos_id));
    LT_TRY(read_ends(&spec->eos, g));
    LT_TRY(token_id(g, "tokenizer.ggml.padding_token_id", &spec->pad_id));
    forget_ids_outside(spec);
    if (spec->act == LT_ACT_XIELU && spec->n_layers > 0 && spec->n_layers <= LT_MAX_LAYERS) {
        LT_TRY(read_xielu(spec, g, s));
    }
    return lt_model_spec_check(spec) == LT_OK ? LT_OK
                                              : lt_error_prefix(LT_ERR_FORMAT, "%s", g->name);
}
