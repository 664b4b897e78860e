/* gguf_types.c: the mixtures of llama.cpp's llama-quantize without an importance matrix:
 *
 *   vectors, router, positions   F32
 *   head, or a tied embedding    Q6_K where the others are less than 8 bits (F16, BF16, F32, Q8_0:
 *                                the same)
 *   attn_v, ffn_down             *_K_M: Q6_K in the first and last eighth of the layers and every
 *                                third between
 *   attn_qkv (fused: gpt2)       Q4_K_M: Q5_K; Q5_K_M: Q6_K
 *   8 experts                    attn_k and attn_v Q8_0; attn_output of Q4_K_M Q5_K
 *   80 layers, 8 key heads       (70B) attn_v Q5_K where it would be Q4_K
 * Rows that are not whole blocks of 256 fall back to 32: Q4_K -> Q5_0, Q5_K -> Q5_1, Q6_K -> Q8_0;
 * rows not of 32: F16. */
#include "model/files/gguf_types.h"

#include "base/error.h"

static const struct {
    lt_dtype type;
    int number;
    const char *shown;
} mixes[LT_GGUF_MIX_COUNT] = {
#define MIX_ROW(name, text, type, number) [LT_GGUF_MIX_##name] = {LT_##type, number, #name},
    LT_GGUF_MIX_MAP(MIX_ROW)
#undef MIX_ROW
};

int64_t lt_gguf_mix_number(lt_gguf_mix mix) {
    LT_ASSERT(mix < LT_GGUF_MIX_COUNT);
    return mixes[mix].number;
}

const char *lt_gguf_mix_of_number(int64_t number) {
    for (size_t i = 0; i < LT_GGUF_MIX_COUNT; i++) {
        if (mixes[i].number == number) {
            return mixes[i].shown;
        }
    }
    return NULL;
}

static bool more_bits(int64_t layer, int64_t n_layers) {
    return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

static lt_dtype head_type(lt_dtype type, int64_t cols) {
    size_t bytes;
    if (cols % lt_dtype_block(type, &bytes) != 0) {
        return LT_Q8_0;
    }
    return type == LT_Q8_0 ? LT_Q8_0 : LT_Q6_K;
}

/* What a matrix inside the layers gets beyond the type of most. */
static lt_dtype layer_type(lt_gguf_mix mix, const lt_model_spec *s, const lt_param *p,
                           lt_param_part part) {
    const bool k_m = mix == LT_GGUF_MIX_Q4_K_M || mix == LT_GGUF_MIX_Q5_K_M;
    const bool more = k_m && more_bits(p->layer, s->n_layers);
    const lt_dtype most = mixes[mix].type;

    if (p->kind == LT_PARAM_QKV && part == LT_PART_ALL && k_m) {
        return mix == LT_GGUF_MIX_Q4_K_M ? LT_Q5_K : LT_Q6_K;
    }
    if (p->kind == LT_PARAM_QKV && s->n_experts == 8 && part != LT_PART_Q) {
        return LT_Q8_0;
    }
    if (p->kind == LT_PARAM_QKV && part == LT_PART_V) {
        const lt_dtype type = more ? LT_Q6_K : most;
        return type == LT_Q4_K && s->n_layers == 80 && s->n_heads != s->n_kv_heads ? LT_Q5_K : type;
    }
    if (p->kind == LT_PARAM_DOWN && more) {
        return LT_Q6_K;
    }
    return p->kind == LT_PARAM_ATTN_OUT && s->n_experts == 8 && mix == LT_GGUF_MIX_Q4_K_M ? LT_Q5_K
                                                                                          : most;
}

static lt_dtype fall_back(lt_dtype type, int64_t cols) {
    size_t bytes;
    if (cols % lt_dtype_block(type, &bytes) == 0) {
        return type;
    }
    if (cols % 32 != 0) {
        return LT_F16;
    }
    return type == LT_Q4_K ? LT_Q5_0 : type == LT_Q5_K ? LT_Q5_1 : LT_Q8_0;
}

lt_dtype lt_gguf_type_of(lt_gguf_mix mix, const lt_model_spec *spec, const lt_param *param,
                         lt_param_part part, int64_t cols) {
    const lt_dtype most = mixes[mix].type;
    const bool head = param->kind == LT_PARAM_HEAD || (param->kind == LT_PARAM_EMBED && spec->tied);

    const bool vectors = param->n_dims == (param->experts ? 2 : 1);
    if (vectors || param->kind == LT_PARAM_ROUTER || param->kind == LT_PARAM_POS_EMBED) {
        return LT_F32;
    }
    if (!lt_dtype_is_block(most)) {
        return most;
    }
    if (head) {
        return fall_back(head_type(most, cols), cols);
    }
    return fall_back(param->kind == LT_PARAM_EMBED ? most : layer_type(mix, spec, param, part),
                     cols);
}
