/* fingerprint.c: see fingerprint.h. */
#include "model/fingerprint.h"

#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/params.h"
#include "tensor/backend.h"

#define SAMPLES        64
#define DEVICE_SAMPLES 8
#define SAMPLE_BYTES   1024

static uint64_t add(uint64_t hash, const void *data, size_t bytes) {
    return XXH3_64bits_withSeed(data, bytes, hash);
}

/* Add a piece of the model's weights: `bytes` from `data` on, on the host or the device. */
static lt_err add_piece(uint64_t *hash, const lt_model *m, const void *data, size_t bytes) {
    char copy[SAMPLE_BYTES];
    if (m->backend->host_memory) {
        *hash = add(*hash, data, bytes);
        return LT_OK;
    }
    for (size_t at = 0; at < bytes; at += SAMPLE_BYTES) {
        const size_t n = bytes - at < SAMPLE_BYTES ? bytes - at : SAMPLE_BYTES;
        LT_TRY(lt_model_download(m, copy, (const char *)data + at, n));
        *hash = add(*hash, copy, n);
    }
    return LT_OK;
}

/* Add a small array completely; of a large one, samples at equal distances that include both
 * ends. */
static lt_err add_sampled(uint64_t *hash, const lt_model *m, const void *data, size_t bytes) {
    const size_t samples = m->backend->host_memory ? SAMPLES : DEVICE_SAMPLES;
    if (data == NULL || bytes <= samples * SAMPLE_BYTES) {
        return add_piece(hash, m, data, data != NULL ? bytes : 0);
    }
    for (size_t i = 0; i < samples; i++) {
        const size_t at = (bytes - SAMPLE_BYTES) / (samples - 1) * i;
        LT_TRY(add_piece(hash, m, (const char *)data + at, SAMPLE_BYTES));
    }
    return add_piece(hash, m, (const char *)data + bytes - SAMPLE_BYTES, SAMPLE_BYTES);
}

/* Add experts that lie apart: of each, an equal share of the bytes of one array's samples, from a
 * place that moves from its beginning to its end. */
static lt_err add_each(uint64_t *hash, const lt_model *m, const lt_weight_range *range) {
    const size_t n = (size_t)range->n_experts,
                 bytes = lt_dtype_row_bytes(range->w.dtype, lt_tensor_count(&range->w)) / n,
                 share = SAMPLES * SAMPLE_BYTES / n + 1, most = share < bytes ? share : bytes;
    for (size_t e = 0; e < n; e++) {
        LT_TRY(add_piece(hash, m, range->each[e] + (bytes - most) / n * e, most));
    }
    return LT_OK;
}

/* Add a range of rows in the file's own type, or as the device has packed it. */
static lt_err add_range(uint64_t *hash, const lt_model *m, const lt_weight_range *range) {
    const lt_tensor *w = &range->w;
    *hash ^= (uint64_t)w->dtype;
    if (range->each != NULL) {
        return add_each(hash, m, range);
    }
    if (m->backend->host_memory || range->packed == NULL) {
        return add_sampled(hash, m, w->data, lt_dtype_row_bytes(w->dtype, lt_tensor_count(w)));
    }
    return add_sampled(hash, m, range->packed, m->backend->matmul_pack_bytes(m->device, w, true));
}

static lt_err add_param(uint64_t *hash, const lt_model *m, int i) {
    const lt_param *p = &m->table.params[i];
    const lt_stored_weight *stored = m->stored != NULL ? &m->stored[i] : NULL;
    *hash = add(*hash, p->name, strlen(p->name));
    *hash = add(*hash, p->shape, (size_t)p->n_dims * sizeof *p->shape);
    for (int k = 0; stored != NULL && k < stored->n_ranges; k++) {
        LT_TRY(add_range(hash, m, &stored->ranges[k]));
    }
    return stored == NULL || stored->n_ranges == 0
               ? add_sampled(hash, m, lt_param_data(&m->weights, p),
                             (size_t)p->count * lt_dtype_bytes(m->weights.dtype))
               : LT_OK;
}

/* Add the numbers of a spec that decide keys and values. The shapes of parameters are hashed with
 * these. */
static uint64_t add_spec(uint64_t hash, const lt_model_spec *s) {
    const double numbers[] = {(double)s->n_layers,
                              (double)s->n_heads,
                              (double)s->n_kv_heads,
                              (double)s->head_dim,
                              (double)s->norm,
                              (double)s->norm_eps,
                              (double)s->norm_gain_offset,
                              (double)s->act,
                              (double)s->swiglu_alpha,
                              (double)s->swiglu_limit,
                              (double)s->embed_scale,
                              s->embed_scale_rounded,
                              (double)s->residual_scale,
                              (double)s->attn_scale,
                              s->attn_scale_by_layer,
                              (double)s->attn_softcap,
                              (double)s->pos,
                              s->rope_theta,
                              s->rope_theta_local,
                              (double)s->rope_scaling,
                              s->rope_factor,
                              s->rope_low_freq,
                              s->rope_high_freq,
                              s->rope_original_seq,
                              s->rope_beta_fast,
                              s->rope_beta_slow,
                              s->rope_truncate,
                              s->rope_attention_factor,
                              (double)s->rope_dim,
                              (double)s->window,
                              (double)s->window_every,
                              (double)s->top_k,
                              s->moe_normalise,
                              s->moe_capacity};
    hash = add(hash, numbers, sizeof numbers);
    hash = add(hash, s->rope_short, sizeof s->rope_short);
    hash = add(hash, s->rope_long, sizeof s->rope_long);
    hash = add(hash, s->no_rope, sizeof s->no_rope);
    return add(hash, s->no_window, sizeof s->no_window);
}

lt_err lt_model_fingerprint(uint64_t *out, const lt_model *m) {
    const int64_t dtype = (int64_t)m->options.dtype;
    uint64_t hash = add_spec(add(0, &dtype, sizeof dtype), &m->spec);
    LT_TRY(lt_model_wait((lt_model *)(uintptr_t)m)); /* Wait until all weights are loaded. */
    /* The keys and values of a device differ in their last bits. */
    if (!m->backend->host_memory) {
        hash = add(hash, m->backend->name, strlen(m->backend->name));
    }
    for (int i = 0; i < m->table.n_params; i++) {
        LT_TRY(add_param(&hash, m, i));
    }
    *out = hash;
    return LT_OK;
}
