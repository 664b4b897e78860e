/* spec.c: checks a spec, and derives parameters and FLOPs from it.
 *
 * The limits are far above any model known and keep every product of two of them inside 64 bits. */
#include "lateen/model.h"

#include <math.h>
#include <stddef.h>

#include "base/error.h"
#include "model/family.h"
#include "model/blocks/exec.h"
#include "tensor/ops.h"

#define MAX_WIDTH    ((int64_t)1 << 20)
#define MAX_VOCAB    ((int64_t)1 << 24)
#define MAX_SEQ      ((int64_t)1 << 26)
#define MAX_ELEMENTS 0x1p46 /* 70 trillion parameters. */

static lt_err in_range(const lt_model_spec *s, const char *name, int64_t value, int64_t low,
                       int64_t high) {
    if (value < low || value > high) {
        LT_FAIL(LT_ERR_ARG, "%s model: %s is %lld, outside [%lld, %lld]", lt_family_name(s->family),
                name, (long long)value, (long long)low, (long long)high);
    }
    return LT_OK;
}

static lt_err real_in_range(const lt_model_spec *s, const char *name, double value, double low,
                            double high) {
    if (!(value >= low && value <= high)) { /* This also refuses NaN. */
        LT_FAIL(LT_ERR_ARG, "%s model: %s is %g, outside [%g, %g]", lt_family_name(s->family), name,
                value, low, high);
    }
    return LT_OK;
}

static lt_err check_sizes(const lt_model_spec *s) {
    LT_TRY(in_range(s, "n_layers", s->n_layers, 1, LT_MAX_LAYERS));
    LT_TRY(in_range(s, "width", s->width, 1, MAX_WIDTH));
    LT_TRY(in_range(s, "n_heads", s->n_heads, 1, MAX_WIDTH));
    LT_TRY(in_range(s, "n_kv_heads", s->n_kv_heads, 1, s->n_heads));
    LT_TRY(in_range(s, "head_dim", s->head_dim, 1, 4096));
    LT_TRY(in_range(s, "ffn_width", s->ffn_width, 1, MAX_WIDTH * 16));
    LT_TRY(in_range(s, "dense_ffn_width", s->dense_ffn_width, 0, MAX_WIDTH * 16));
    LT_TRY(in_range(s, "vocab_size", s->vocab_size, 1, MAX_VOCAB));
    LT_TRY(in_range(s, "n_scores", s->n_scores, 0, MAX_VOCAB));
    if (s->token_scores && lt_family_get(s->family)->own_token_head) {
        LT_FAIL(
            LT_ERR_UNSUPPORTED,
            "%s model: its class for token classification names the head otherwise; not supported",
            lt_family_name(s->family));
    }
    if (s->n_scores > 0 && s->tied) {
        LT_FAIL(LT_ERR_ARG, "%s model: a score head of %lld values cannot be the embedding's table",
                lt_family_name(s->family), (long long)s->n_scores);
    }
    LT_TRY(in_range(s, "max_seq", s->max_seq, 1, MAX_SEQ));
    LT_TRY(in_range(s, "window", s->window, 0, MAX_SEQ));
    LT_TRY(in_range(s, "window_every", s->window_every, 0, LT_MAX_LAYERS));
    LT_TRY(in_range(s, "n_heads * head_dim", s->n_heads * s->head_dim, 1, MAX_WIDTH * 4));
    if (s->n_heads % s->n_kv_heads != 0) {
        LT_FAIL(LT_ERR_ARG, "%s model: %lld heads are not a multiple of %lld key/value heads",
                lt_family_name(s->family), (long long)s->n_heads, (long long)s->n_kv_heads);
    }
    if (s->pos == LT_POS_ROPE && s->head_dim % 2 != 0) {
        LT_FAIL(LT_ERR_ARG, "%s model: head_dim %lld is odd; RoPE rotates pairs",
                lt_family_name(s->family), (long long)s->head_dim);
    }
    return LT_OK;
}

/* Check the numbers by which the formulas of rope.c divide, or of which they take logarithms. */
static lt_err check_rope(const lt_model_spec *s) {
    const lt_rope_scaling kind = s->rope_scaling;
    LT_TRY(in_range(s, "rope_scaling", kind, 0, LT_ROPE_COUNT - 1));
    LT_TRY(in_range(s, "rope_dim", s->rope_dim, 0, s->head_dim));
    LT_TRY(in_range(s, "rope_dim % 2", s->rope_dim % 2, 0, 0));
    LT_TRY(real_in_range(s, "rope_attention_factor", s->rope_attention_factor, 0.0, 1e3));
    if (kind != LT_ROPE_PLAIN) {
        LT_TRY(real_in_range(s, "rope_factor", s->rope_factor, 1e-3, 1e6));
    }
    if (kind == LT_ROPE_LLAMA3 || kind == LT_ROPE_YARN || kind == LT_ROPE_LONGROPE) {
        LT_TRY(real_in_range(s, "rope_original_seq", s->rope_original_seq, 1.0, 1e9));
    }
    if (kind == LT_ROPE_LLAMA3) {
        LT_TRY(real_in_range(s, "rope_low_freq", s->rope_low_freq, 1e-6, 1e6));
        if (!(s->rope_high_freq > s->rope_low_freq)) {
            LT_FAIL(LT_ERR_ARG,
                    "%s model: RoPE's high frequency factor %g is not above the low one %g",
                    lt_family_name(s->family), s->rope_high_freq, s->rope_low_freq);
        }
    }
    if (kind == LT_ROPE_YARN) {
        LT_TRY(real_in_range(s, "rope_theta", s->rope_theta, 1.0 + 1e-6, 1e12));
        LT_TRY(real_in_range(s, "rope_beta_slow", s->rope_beta_slow, 1e-6, 1e6));
        LT_TRY(real_in_range(s, "rope_beta_fast", s->rope_beta_fast, s->rope_beta_slow, 1e6));
    }
    if (kind == LT_ROPE_DYNAMIC) { /* The exponent is N / (N - 2). */
        LT_TRY(in_range(s, "columns of a head that rotate", lt_rope_dim(s), 4, s->head_dim));
        LT_TRY(real_in_range(s, "rope_factor", s->rope_factor, 1.0, 1e6));
    }
    if (kind == LT_ROPE_LONGROPE) {
        LT_TRY(in_range(s, "pairs that rotate", lt_rope_columns(s), 1, LT_MAX_ROPE_FACTORS));
        for (int64_t i = 0; i < lt_rope_columns(s); i++) {
            LT_TRY(real_in_range(s, "rope_short", (double)s->rope_short[i], 1e-6, 1e6));
            LT_TRY(real_in_range(s, "rope_long", (double)s->rope_long[i], 1e-6, 1e6));
        }
    }
    return LT_OK;
}

static lt_err check_numbers(const lt_model_spec *s) {
    LT_TRY(real_in_range(s, "norm_eps", (double)s->norm_eps, 0.0, 1.0));
    LT_TRY(real_in_range(s, "embed_scale", (double)s->embed_scale, 1e-6, 1e6));
    LT_TRY(real_in_range(s, "attn_scale", (double)s->attn_scale, 0.0, 1e3));
    LT_TRY(real_in_range(s, "attn_softcap", (double)s->attn_softcap, 0.0, 1e6));
    LT_TRY(real_in_range(s, "final_softcap", (double)s->final_softcap, 0.0, 1e6));
    LT_TRY(real_in_range(s, "init_std", (double)s->init_std, 0.0, 10.0));
    if (s->pos == LT_POS_ROPE) {
        LT_TRY(real_in_range(s, "rope_theta", s->rope_theta, 1.0, 1e12));
        LT_TRY(real_in_range(s, "rope_theta_local", s->rope_theta_local, 0.0, 1e12));
    }
    return s->pos == LT_POS_ROPE ? check_rope(s) : LT_OK;
}

static lt_err check_moe(const lt_model_spec *s) {
    LT_TRY(in_range(s, "n_experts", s->n_experts, 0, LT_MOE_MAX_EXPERTS));
    if (s->n_experts == 0) {
        return LT_OK;
    }
    LT_TRY(in_range(s, "top_k", s->top_k, 1,
                    s->n_experts < LT_MOE_MAX_TOP_K ? s->n_experts : LT_MOE_MAX_TOP_K));
    LT_TRY(real_in_range(s, "moe_capacity", s->moe_capacity, 0.0, 1e6));
    LT_TRY(real_in_range(s, "moe_aux_coef", (double)s->moe_aux_coef, 0.0, 1e3));
    LT_TRY(real_in_range(s, "moe_z_coef", (double)s->moe_z_coef, 0.0, 1e3));
    if (s->moe_capacity > 0 && s->act == LT_ACT_XIELU) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s model: xielu in experts of capacity %g: dropped rows would reach its gradient",
                lt_family_name(s->family), s->moe_capacity);
    }
    return LT_OK;
}

/* Number of elements of one kind of parameter in one layer. */
static double elements_of(const lt_model_spec *s, lt_param_kind kind, int64_t layer) {
    int64_t shape[3];
    const int n_dims = lt_param_shape(s, kind, layer, shape);
    double count = n_dims == 0 ? 0 : 1;
    for (int i = 0; i < n_dims; i++) {
        count *= (double)shape[i];
    }
    return count;
}

lt_err lt_model_spec_check(const lt_model_spec *s) {
    double elements = 0;
    if (s->family < 0 || s->family >= LT_FAMILY_COUNT) {
        LT_FAIL(LT_ERR_ARG, "model family %d is outside [0, %d)", (int)s->family,
                (int)LT_FAMILY_COUNT);
    }
    LT_TRY(in_range(s, "activation", s->act, 0, LT_ACT_COUNT - 1));
    if (s->act == LT_ACT_XIELU && s->gated) {
        LT_FAIL(LT_ERR_ARG, "%s model: xIELU has no gated form", lt_family_name(s->family));
    }
    if (s->act == LT_ACT_SWIGLU_CLAMPED) {
        if (!s->gated) {
            LT_FAIL(LT_ERR_ARG, "%s model: swiglu_clamped without a gate",
                    lt_family_name(s->family));
        }
        LT_TRY(real_in_range(s, "swiglu_alpha", (double)s->swiglu_alpha, 1e-6, 1e6));
        LT_TRY(real_in_range(s, "swiglu_limit", (double)s->swiglu_limit, 1e-6, 1e6));
    }
    LT_TRY(check_sizes(s));
    LT_TRY(check_numbers(s));
    LT_TRY(check_moe(s));
    for (int kind = 0; kind < LT_PARAM_KIND_COUNT; kind++) {
        const int64_t n = lt_param_in_layer((lt_param_kind)kind) ? s->n_layers : 1;
        for (int64_t layer = 0; layer < n; layer++) {
            elements += elements_of(s, (lt_param_kind)kind, layer);
        }
    }
    if (elements > MAX_ELEMENTS) {
        LT_FAIL(LT_ERR_LIMIT, "%s model: %.3g parameters, more than %.3g",
                lt_family_name(s->family), elements, MAX_ELEMENTS);
    }
    return LT_OK;
}

/* Number of elements of one kind in all layers. */
static int64_t kind_count(const lt_model_spec *s, lt_param_kind kind) {
    const int64_t n = lt_param_in_layer(kind) ? s->n_layers : 1;
    double count = 0; /* It is below 2^53: lt_model_spec_check. */
    for (int64_t layer = 0; layer < n; layer++) {
        count += elements_of(s, kind, layer);
    }
    return (int64_t)count;
}

int64_t lt_model_spec_context(const lt_model_spec *s) {
    const bool grows = s->pos == LT_POS_ROPE && s->rope_scaling == LT_ROPE_DYNAMIC;
    return grows ? (int64_t)((double)s->max_seq * s->rope_factor) : s->max_seq;
}

int64_t lt_model_spec_params(const lt_model_spec *s) {
    int64_t sum = 0;
    for (int kind = 0; kind < LT_PARAM_KIND_COUNT; kind++) {
        sum += kind_count(s, (lt_param_kind)kind);
    }
    return sum;
}

int64_t lt_model_spec_active_params(const lt_model_spec *s) {
    int64_t sum = lt_model_spec_params(s) - kind_count(s, LT_PARAM_POS_EMBED);
    if (!s->tied) {
        sum -= kind_count(s, LT_PARAM_EMBED);
    }
    for (int64_t layer = 0; layer < s->n_layers; layer++) {
        const lt_layer_spec l = lt_model_layer(s, layer);
        const double experts = elements_of(s, LT_PARAM_UP, layer) +
                               elements_of(s, LT_PARAM_DOWN, layer);
        if (l.n_experts > 0) {
            sum -= (int64_t)experts / l.n_experts * (l.n_experts - l.top_k);
        }
    }
    return sum;
}

double lt_model_spec_train_flops(const lt_model_spec *s, int64_t seq) {
    double columns = 0; /* Columns of queries in all layers. */
    for (int64_t layer = 0; layer < s->n_layers; layer++) {
        const lt_layer_spec l = lt_model_layer(s, layer);
        columns += (double)(l.n_heads * l.head_dim);
    }
    return 6.0 * (double)lt_model_spec_active_params(s) + 12.0 * columns * (double)seq;
}

int64_t lt_model_spec_outputs(const lt_model_spec *s) {
    return s->n_scores > 0 ? s->n_scores : s->vocab_size;
}

void lt_model_spec_add_scores(lt_model_spec *s, int64_t n, bool token_scores) {
    s->n_scores = n;
    s->token_scores = s->score_bias = token_scores;
    s->tied = false;
}

bool lt_model_spec_gives_values(const lt_model_spec *s) {
    return s->n_scores > 0 && !s->token_scores;
}

int64_t lt_model_spec_says(const lt_model_spec *s) {
    return s->score_ends > 0 ? s->score_ends : s->n_scores;
}

bool lt_model_spec_is_process(const lt_model_spec *s) {
    return lt_model_spec_says(s) == 2 && s->token_scores;
}

lt_err lt_model_spec_writes(const lt_model_spec *s, const char *what) {
    if (s->n_scores > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: this %s model has a score head of %lld value%s: it judges texts and writes "
                "none",
                what, lt_family_name(s->family), (long long)lt_model_spec_says(s),
                lt_model_spec_says(s) == 1 ? "" : "s");
    }
    return LT_OK;
}

int64_t lt_model_score_at(const lt_model_spec *s, const int32_t *ids, int64_t n) {
    int64_t at = n - 1;
    while (at > 0 && ids[at] == s->pad_id) {
        at--;
    }
    return at;
}

int64_t lt_model_spec_eos(const lt_model_spec *s) {
    return s->eos.n > 0 ? s->eos.ids[0] : -1;
}

void lt_model_spec_derive(lt_model_spec *s) {
    if (s->head_dim == 0 && s->n_heads > 0) {
        s->head_dim = s->width / s->n_heads;
    }
    if (s->n_kv_heads == 0) {
        s->n_kv_heads = s->n_heads;
    }
    if (s->ffn_width == 0 && lt_family_get(s->family)->ffn_four_widths) {
        s->ffn_width = 4 * s->width;
    }
    if (s->embed_scale == 0) { /* Gemma's value, which its config does not have. */
        s->embed_scale = (float)sqrt((double)s->width);
    }
}
