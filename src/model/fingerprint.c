/* fingerprint.c: see fingerprint.h. */
#include "model/fingerprint.h"

#include <string.h>
#include <xxhash.h>

#include "model/params.h"
#include "tensor/backend.h"

#define SAMPLES      64
#define SAMPLE_BYTES 1024

static uint64_t add(uint64_t hash, const void *data, size_t bytes) {
    return XXH3_64bits_withSeed(data, bytes, hash);
}

/* All of a small array; of a large one, samples at equal distances that include both ends. */
static uint64_t add_sampled(uint64_t hash, const void *data, size_t bytes) {
    if (data == NULL || bytes <= SAMPLES * SAMPLE_BYTES) {
        return add(hash, data, data != NULL ? bytes : 0);
    }
    for (size_t i = 0; i < SAMPLES; i++) {
        const size_t at = (bytes - SAMPLE_BYTES) / (SAMPLES - 1) * i;
        hash = add(hash, (const char *)data + at, SAMPLE_BYTES);
    }
    return add(hash, (const char *)data + bytes - SAMPLE_BYTES, SAMPLE_BYTES);
}

static uint64_t add_param(uint64_t hash, const lt_model *m, int i) {
    const lt_param *p = &m->table.params[i];
    const lt_stored_weight *stored = m->stored != NULL ? &m->stored[i] : NULL;
    hash = add(hash, p->name, strlen(p->name));
    hash = add(hash, p->shape, (size_t)p->n_dims * sizeof *p->shape);
    for (int k = 0; stored != NULL && k < stored->n_ranges; k++) {
        const lt_tensor *w = &stored->ranges[k].w;
        hash = add_sampled(hash ^ (uint64_t)w->dtype, w->data,
                           lt_dtype_row_bytes(w->dtype, lt_tensor_count(w)));
    }
    if (stored == NULL || stored->n_ranges == 0) {
        hash = add_sampled(hash, lt_param_data(&m->weights, p),
                           (size_t)p->count * lt_dtype_bytes(m->weights.dtype));
    }
    return hash;
}

uint64_t lt_model_fingerprint(const lt_model *m) {
    const lt_model_spec *s = &m->spec;
    const double numbers[] = {(double)m->options.dtype, (double)s->n_layers,     (double)s->n_heads,
                              (double)s->n_kv_heads,    (double)s->head_dim,     (double)s->window,
                              (double)s->window_every,  (double)s->rope_scaling, s->rope_theta,
                              s->rope_theta_local,      s->rope_factor,          s->rope_low_freq,
                              s->rope_high_freq,        s->rope_original_seq,    s->rope_beta_fast,
                              s->rope_beta_slow,        s->rope_attention_factor};
    uint64_t hash = add(0, numbers, sizeof numbers);
    for (int i = 0; m->backend->host_memory && i < m->table.n_params; i++) {
        hash = add_param(hash, m, i);
    }
    return hash;
}
