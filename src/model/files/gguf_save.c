/* gguf_save.c: see gguf_save.h. Metadata from the spec, tensors from the flat layout through the
 * names of gguf_spec.c, encoded row by row in parallel while they are written. What the loader
 * undoes is done here: q and k of "llama" in pairs of rows, gemma's norms plus one, xIELU's scalars
 * as metadata, rotary factors as tensors (gguf_rope.c). */
#include "model/files/gguf_save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/tokenizer/gguf_tokenizer.h"
#include "lateen/generate.h"
#include "model/infer/generation.h"
#include "model/files/gguf_rope.h"
#include "model/files/stored_weights.h"
#include "model/blocks/exec.h"
#include "model/layer.h"
#include "tensor/block.h"
#include "tensor/ops.h"

typedef struct {
    const lt_model *m;
    const lt_param *param;
    lt_name_place place;
    lt_dtype type;
    int64_t pair_rows;
    float add;
} out_part;

typedef struct {
    const float *data;
    size_t bytes;
} rope_tensor;

typedef struct {
    const lt_model *m;
    const char *arch;
    lt_gguf_out *o;
    out_part *parts;
    size_t n_parts, room;
    float rope[2][LT_MAX_ROPE_FACTORS];
    rope_tensor rope_tensor[2];
} saving;

/* ---- metadata ---- */

static void put_u32(const saving *s, const char *suffix, int64_t value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", s->arch, suffix);
    lt_gguf_out_u32(s->o, key, value);
}

static void put_f32(const saving *s, const char *suffix, double value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", s->arch, suffix);
    lt_gguf_out_f32(s->o, key, value);
}

/* xIELU's scalars of all layers. */
static void put_xielu(const saving *s) {
    const lt_model_spec *spec = &s->m->spec;
    float p[LT_MAX_LAYERS], n[LT_MAX_LAYERS], beta[LT_MAX_LAYERS], eps[LT_MAX_LAYERS];
    static const char *const names[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta",
                                        "xielu.eps"};
    const float *const values[] = {p, n, beta, eps};
    for (int64_t i = 0; i < spec->n_layers; i++) {
        const lt_tensor t = lt_param_view(&s->m->table, LT_PARAM_XIELU, (int)i, &s->m->master);
        p[i] = ((const float *)t.data)[0];
        n[i] = ((const float *)t.data)[1];
        beta[i] = LT_XIELU_BETA;
        eps[i] = LT_XIELU_EPS;
    }
    for (int i = 0; i < 4; i++) { /* llama.cpp's keys are not preceded by the architecture. */
        lt_gguf_out_array(s->o, names[i], LT_GGUF_F32, values[i], (uint64_t)spec->n_layers);
    }
}

static void put_metadata(const saving *s, const char *name, lt_gguf_mix mix) {
    const lt_model_spec *spec = &s->m->spec;
    const lt_gguf_traits *traits = &lt_family_get(spec->family)->gguf;
    const char *slash = strrchr(name, '/');

    lt_gguf_out_str(s->o, "general.architecture", s->arch);
    lt_gguf_out_str(s->o, "general.name", slash != NULL ? slash + 1 : name);
    lt_gguf_out_u32(s->o, "general.file_type", lt_gguf_mix_number(mix));
    lt_gguf_out_u32(s->o, "general.quantization_version", 2);
    put_u32(s, "block_count", spec->n_layers);
    put_u32(s, "context_length", spec->max_seq);
    put_u32(s, "embedding_length", spec->width);
    put_u32(s, "feed_forward_length", spec->ffn_width);
    put_u32(s, "attention.head_count", spec->n_heads);
    put_u32(s, "attention.head_count_kv", spec->n_kv_heads);
    put_u32(s, "attention.key_length", spec->head_dim);
    put_u32(s, "attention.value_length", spec->head_dim);
    put_u32(s, "vocab_size", spec->vocab_size);
    put_f32(s,
            spec->norm == LT_NORM_LAYER ? "attention.layer_norm_epsilon"
                                        : "attention.layer_norm_rms_epsilon",
            (double)spec->norm_eps);
    if (spec->pos == LT_POS_ROPE) {
        lt_gguf_put_rope(spec, s->arch, s->o);
    }
    if (spec->n_experts > 0) {
        put_u32(s, "expert_count", spec->n_experts);
        put_u32(s, "expert_used_count", spec->top_k);
        if (traits->expert_ffn) {
            put_u32(s, "expert_feed_forward_length", spec->ffn_width);
        }
    }
    if (spec->window > 0) {
        put_u32(s, "attention.sliding_window", spec->window);
        if (spec->window_every > 0 &&
            lt_family_get(spec->family)->gguf.window != LT_GGUF_WINDOW_KNOWN) {
            put_u32(s, "attention.sliding_window_pattern", spec->window_every);
        }
    }
    if (traits->scales) {
        put_f32(s, "embedding_scale", (double)spec->embed_scale);
        put_f32(s, "residual_scale", (double)lt_model_layer(spec, 0).residual_scale);
        put_f32(s, "logit_scale", (double)lt_model_logit_divisor(spec));
        put_f32(s, "attention.scale", (double)lt_model_layer(spec, 0).attn_scale);
    }
    if (spec->attn_softcap > 0) {
        put_f32(s, "attn_logit_softcapping", (double)spec->attn_softcap);
    }
    if (spec->final_softcap > 0) {
        put_f32(s, "final_logit_softcapping", (double)spec->final_softcap);
    }
    if (spec->act == LT_ACT_XIELU) {
        put_xielu(s);
    }
}

/* Why a window cannot be written; NULL: it can. Windows without a period are refused: GGUF also has
 * a flag for each layer, but for the architectures of our families llama.cpp reads only a period,
 * and uses a built-in one if it finds flags. */
static const char *window_inexpressible(const lt_model_spec *s, lt_gguf_window window) {
    const lt_model_spec *own = &lt_family_get(s->family)->preset;
    const bool period = window == LT_GGUF_WINDOW_PERIOD || window == LT_GGUF_WINDOW_KNOWN;

    for (int64_t i = 0; i < s->n_layers; i++) {
        if (s->window > 0 && s->no_window[i]) {
            return "sliding windows in layers that do not repeat with a period";
        }
    }
    if (window == LT_GGUF_WINDOW_KNOWN &&
        (s->window == 0 || s->window_every != own->window_every)) {
        return "sliding windows that do not repeat every two layers";
    }
    if (period && s->window > 0 && s->window_every == 0) {
        return "a sliding window in every layer";
    }
    if (!period && s->window > 0 && s->window_every > 0) {
        return "a sliding window in some layers only";
    }
    if (window == LT_GGUF_WINDOW_NONE && s->window > 0) {
        return "a sliding window";
    }
    return s->moe_capacity > 0 ? "an expert capacity" : lt_gguf_rope_inexpressible(s);
}

/* What the family's architecture in GGUF cannot express, so that a reader would assume the family's
 * default. NULL: nothing. */
static const char *inexpressible(const lt_model_spec *s) {
    const lt_model_spec *own = &lt_family_get(s->family)->preset;
    const lt_gguf_traits *traits = &lt_family_get(s->family)->gguf;

    if (s->act != own->act) {
        return "an activation function other than the one that such files imply";
    }
    if (s->swiglu_alpha != own->swiglu_alpha || s->swiglu_limit != own->swiglu_limit) {
        return "another alpha or limit of its activation than such files imply";
    }
    if (s->sinks != own->sinks || s->router_bias != own->router_bias) {
        return s->sinks != own->sinks ? "sinks" : "biases of the router";
    }
    if (s->gated != own->gated) {
        return s->gated ? "a gated feed-forward" : "a feed-forward without a gate";
    }
    if (!lt_layers_alike(s)) {
        return "layers without experts beside layers with experts";
    }
    if (s->qk_norm != own->qk_norm) {
        return s->qk_norm ? "norms of queries and keys" : "no norms of queries and keys";
    }
    if (s->moe_normalise != (own->moe_normalise || traits->normalised) && s->n_experts > 0) {
        return "weights of experts that are not divided by their sum";
    }
    if ((s->attn_softcap > 0 && !traits->attn_cap) ||
        (s->final_softcap > 0 && !traits->final_cap)) {
        return "a softcap of logits";
    }
    if (traits->attn_cap && (s->attn_softcap == 0 || s->final_softcap == 0)) {
        return "no softcaps of logits, which such files imply";
    }
    for (int64_t i = 0; i < s->n_layers; i++) {
        if (!traits->scales &&
            fabsf(lt_model_layer(s, i).attn_scale / lt_gguf_attn_scale(s) - 1.0f) > 1e-5f) {
            return "another attention scale than the one that such files imply";
        }
        if (s->no_rope[i] != (traits->no_rope_every > 0 && (i + 1) % traits->no_rope_every == 0)) {
            return "layers without rotary embedding other than such files imply";
        }
    }
    return window_inexpressible(s, traits->window);
}

/* Such a model is refused rather than written incompletely. */
static lt_err check_expressible(const lt_model_spec *s, const char *path) {
    const char *what = inexpressible(s);
    if (what != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: a GGUF file of family %s cannot describe this model: it has %s", path,
                lt_family_name(s->family), what);
    }
    return LT_OK;
}

/* What llama.cpp misses in such a file, which Lateen reads: it cannot open the file, or computes
 * other logits. */
static void tell_unread(const lt_model_spec *s, const char *path) {
    const lt_gguf_traits *t = &lt_family_get(s->family)->gguf;
    float factors[LT_MAX_ROPE_FACTORS];
    const struct {
        bool is;
        const char *what;
    } rows[] = {
        {(t->unread & LT_GGUF_UNREAD_ROPE) != 0 && lt_gguf_rope_tensor(s, 0, factors) != NULL,
         "cannot open it: it does not read the tensors of Llama-3's RoPE scaling and of longrope"},
        {(t->unread & LT_GGUF_UNREAD_OUT_BIAS) != 0 && s->attn_out_bias,
         "cannot open it: it does not read a bias of attention's output"},
        {t->needs_out_bias && !s->attn_out_bias,
         "cannot open it: it needs a bias of attention's output"},
        {(t->unread & LT_GGUF_UNREAD_MLP_BIAS) != 0 && s->mlp_bias,
         "cannot open it: it does not read biases of the MLP"},
        {(t->unread & LT_GGUF_UNREAD_OUTPUT) != 0 && !s->tied,
         "cannot open it: it does not read an output head of its own"},
        {(t->unread & LT_GGUF_UNREAD_HEAD) != 0 && s->n_heads * s->head_dim != s->width,
         "cannot open it: it does not read heads whose sizes do not add up to the width"},
        {(t->unread & LT_GGUF_UNREAD_WINDOW) != 0 && s->window > 0 && s->window < s->max_seq,
         "computes other logits for texts longer than the sliding window, which it does not read"},
        {lt_gguf_rope_has_other_betas(s),
         "computes other logits: it takes yarn's beta_fast for 32 and beta_slow for 1"},
        {lt_gguf_rope_factor_spreads(s),
         "computes other logits: it applies yarn's attention factor to layers with a window, too"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].is) {
            lt_log_warn("%s: llama.cpp %s (%s)", path, rows[i].what, t->architecture);
        }
    }
}

/* ---- tensors ---- */

typedef struct {
    const out_part *part;
    unsigned char *dst;
    uint64_t first;
    size_t row_bytes;
    int64_t cols;
} row_job;

/* A bias of q or k, in pairs of elements. */
static void encode_pairs(const row_job *j) {
    const out_part *part = j->part;
    const float *values = lt_param_data(&part->m->master, part->param);
    LT_ASSERT(part->type == LT_F32 && part->add == 0.0f);
    for (int64_t c = 0; c < j->cols; c++) {
        const float *src = values + part->place.first + lt_weight_target_row(part->pair_rows, c);
        memcpy(j->dst + (size_t)c * sizeof(float), src, sizeof(float));
    }
}

static void encode_row(void *ctx, size_t i) {
    const row_job *j = ctx;
    const lt_name_place *p = &j->part->place;
    const int64_t rows = p->cols == 1 ? 1 : p->rows, row = (int64_t)(j->first + i);
    const int64_t expert = row / rows, from = lt_weight_target_row(j->part->pair_rows, row % rows);
    const float *values = lt_param_data(&j->part->m->master, j->part->param);
    const float *src = values + p->first + expert * p->expert_stride + from * j->cols;
    float moved[1024];
    if (p->cols == 1 && j->part->pair_rows > 0) {
        encode_pairs(j);
        return;
    }
    if (j->part->add == 0.0f) {
        lt_block_encode(j->dst + i * j->row_bytes, j->part->type, src, (size_t)j->cols);
        return;
    }
    LT_ASSERT(j->part->type == LT_F32); /* Norms. */
    for (int64_t c = 0, n; c < j->cols; c += n) {
        n = j->cols - c < 1024 ? j->cols - c : 1024;
        for (int64_t k = 0; k < n; k++) {
            moved[k] = src[c + k] + j->part->add;
        }
        memcpy(j->dst + i * j->row_bytes + (size_t)c * sizeof(float), moved,
               (size_t)n * sizeof(float));
    }
}

static lt_err fill(const void *ctx, void *dst, uint64_t first, uint64_t n) {
    const out_part *part = ctx;
    const int64_t cols = part->place.cols == 1 ? part->place.rows : part->place.cols;
    row_job j = {part, dst, first, lt_dtype_row_bytes(part->type, cols), cols};
    lt_parallel_for((size_t)n, encode_row, &j);
    return LT_OK;
}

static lt_err fill_rope(const void *ctx, void *dst, uint64_t first, uint64_t n) {
    const rope_tensor *t = ctx;
    LT_ASSERT(first == 0 && n == 1);
    memcpy(dst, t->data, t->bytes);
    return LT_OK;
}

/* If a tensor has several names, the one that llama.cpp's converter writes is used. */
static bool row_is_written(const lt_model_spec *spec, const lt_name_row *row) {
    const bool fused = row->part == LT_PART_ALL;
    if (row->kind == LT_PARAM_QKV || row->kind == LT_PARAM_QKV_BIAS) {
        return fused == lt_family_get(spec->family)->gguf.fused_qkv;
    }
    if (row->kind == LT_PARAM_UP || row->kind == LT_PARAM_DOWN || row->kind == LT_PARAM_UP_BIAS ||
        row->kind == LT_PARAM_DOWN_BIAS) {
        return !lt_name_has_expert(row);
    }
    return row->kind != LT_PARAM_XIELU;
}

static void add_part(saving *s, const lt_param *param, const lt_name_row *row, lt_gguf_mix mix) {
    const lt_model_spec *spec = &s->m->spec;
    char name[LT_FOREIGN_NAME_BYTES];
    out_part *part = &s->parts[s->n_parts++];
    lt_name_place *p = &part->place;
    const bool in_pairs = (row->part == LT_PART_Q || row->part == LT_PART_K) &&
                          lt_family_get(spec->family)->gguf.pairs;
    lt_ggml_type type;
    uint64_t dims[3];

    *part = (out_part){.m = s->m, .param = param};
    lt_name_place_of(p, spec, param, row, 0, 0);
    lt_foreign_name(name, row->name, param->layer, 0);
    part->pair_rows = in_pairs ? spec->head_dim : 0;
    part->add = lt_param_kind_is_norm(param->kind) ? spec->norm_gain_offset : 0.0f;
    part->type = lt_gguf_type_of(mix, spec, param, row->part, p->cols);
    const bool known = lt_ggml_type_of(part->type, &type);
    LT_ASSERT(known);
    dims[0] = (uint64_t)(p->cols == 1 ? p->rows : p->cols);
    dims[1] = (uint64_t)p->rows;
    dims[2] = (uint64_t)p->n_experts;
    if (p->cols == 1) {
        dims[1] = (uint64_t)p->n_experts;
    }
    lt_gguf_out_tensor(s->o, name, (p->stacked ? 1 : 0) + (p->cols == 1 ? 1 : 2), dims, type, fill,
                       part);
    if (param->kind == LT_PARAM_EMBED && spec->tied &&
        lt_family_get(spec->family)->gguf.needs_output) {
        lt_gguf_out_tensor(s->o, "output.weight", 2, dims, type, fill, part);
    }
}

static void add_all(saving *s, lt_gguf_mix mix) {
    const lt_model_spec *spec = &s->m->spec;
    for (int i = 0; i < 2; i++) {
        const uint64_t n = (uint64_t)lt_rope_columns(spec);
        const char *name = lt_gguf_rope_tensor(spec, i, s->rope[i]);
        if (name != NULL) {
            s->rope_tensor[i] = (rope_tensor){s->rope[i], (size_t)n * sizeof(float)};
            lt_gguf_out_tensor(s->o, name, 1, &n, LT_GGML_F32, fill_rope, &s->rope_tensor[i]);
        }
    }
    for (int i = 0; i < s->m->table.n_params; i++) {
        for (int r = 0; r < lt_n_gguf_names; r++) {
            const lt_name_row *row = &lt_gguf_names[r];
            const lt_param *param = &s->m->table.params[i];
            if (lt_name_applies(row, spec, param) && row_is_written(spec, row)) {
                add_part(s, param, row, mix);
            }
        }
    }
}

static void put_id(lt_gguf_out *o, const char *key, int64_t id) {
    if (id >= 0) {
        lt_gguf_out_u32(o, key, id);
    }
}

/* Without a tokenizer, write the ids that the spec knows, so that they can be read back. */
static lt_err put_tokenizer(const saving *s, const char *tokenizer) {
    const lt_model_spec *spec = &s->m->spec;
    lt_ends ends;
    if (tokenizer[0] == '\0') {
        put_id(s->o, "tokenizer.ggml.bos_token_id", spec->bos_id);
        put_id(s->o, "tokenizer.ggml.eos_token_id", lt_model_spec_eos(spec));
        put_id(s->o, "tokenizer.ggml.padding_token_id", spec->pad_id);
        return LT_OK;
    }
    lt_model_ends(s->m, NULL, &ends);
    return lt_gguf_put_tokenizer(s->o, tokenizer, spec->vocab_size, ends.ids, ends.n);
}

lt_err lt_model_save_gguf(const lt_model *m, const char *path, const char *tokenizer,
                          lt_gguf_mix mix) {
    lt_err err = LT_OK;
    saving *s = calloc(1, sizeof *s);

    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", path);
    }
    s->m = m;
    s->arch = lt_family_get(m->spec.family)->gguf.architecture;
    if (s->arch == NULL) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "%s: GGUF has no architecture for family %s", path,
                     lt_family_name(m->spec.family));
    }
    LT_TRY_DONE(lt_model_spec_writes(&m->spec, path)); /* GGUF has no name for the head. */
    LT_TRY_DONE(check_expressible(&m->spec, path));
    if (m->stored != NULL || !lt_model_has_master(m) || !m->backend->host_memory) {
        LT_FAIL_DONE(LT_ERR_ARG, "%s: a model is saved from F32 weights on the host", path);
    }
    if (!lt_param_table_is_whole(&m->table)) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "%s: only a part of the model is held here", path);
    }
    s->room = (size_t)m->table.n_params * 3;
    s->parts = calloc(s->room, sizeof *s->parts);
    if (s->parts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    LT_TRY_DONE(lt_gguf_out_open(&s->o));
    put_metadata(s, path, mix);
    LT_TRY_DONE(put_tokenizer(s, tokenizer));
    LT_TRY_DONE(lt_generation_put_gguf(m, s->o));
    add_all(s, mix);
    LT_TRY_DONE(lt_gguf_out_write(s->o, path));
    tell_unread(&m->spec, path);
done:
    lt_gguf_out_close(s->o);
    free(s->parts);
    free(s);
    return err;
}
