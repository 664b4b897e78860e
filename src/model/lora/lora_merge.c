/* lora_merge.c: merges adapters into the weights of their base: W + s B A, a row at a time; with
 * DoRA scaled to the length m (dora.h); for an embedding W + s A B^T. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/lora/adapted.h"
#include "model/alloc.h"
#include "model/lora/lora.h"

typedef struct {
    float *w; /* (rows, cols) of the base: those of a part. */
    /* s times the product of the two is added to w: B A, or A B^T for an embedding. */
    const float *left;  /* (rows, r) */
    const float *right; /* (r, cols), with these strides: */
    int64_t next_rank, next_col;
    float *m; /* DoRA: (rows); otherwise NULL. */
    int64_t cols, rank;
    float scale;
} merging;

/* Scale the row to the length m; then m becomes the length of the result. */
static void merge_magnitude(float *w, int64_t cols, float *m) {
    double squares = 0.0;
    for (int64_t c = 0; c < cols; c++) {
        squares += (double)w[c] * (double)w[c];
    }
    const float factor = squares > 0.0 ? (float)((double)*m / sqrt(squares)) : 0.0f;
    for (int64_t c = 0; c < cols; c++) {
        w[c] *= factor;
    }
    *m = fabsf(*m);
}

static void merge_row(void *ctx, size_t row) {
    const merging *m = ctx;
    float *w = m->w + (int64_t)row * m->cols;
    const float *left = m->left + (int64_t)row * m->rank;
    for (int64_t c = 0; c < m->cols; c++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < m->rank; k++) {
            sum += left[k] * m->right[k * m->next_rank + c * m->next_col];
        }
        w[c] += m->scale * sum;
    }
    if (m->m != NULL) {
        merge_magnitude(w, m->cols, m->m + row);
    }
}

static void merge_embedding(lt_lora *l, const lt_lora_site *s) {
    const lt_param_table *own = &l->params->table, *base = &l->base->table;
    const lt_param *a = &own->params[s->a];
    float *const a_data = lt_param_data(&l->params->master, a);
    merging m = {.w = lt_param_data(&l->base->master,
                                    &base->params[lt_param_index(base, LT_PARAM_EMBED, 0)]),
                 .left = a_data,
                 .right = lt_param_data(&l->params->master, &own->params[s->b]),
                 .next_rank = 1,
                 .next_col = l->options.rank,
                 .cols = l->base->spec.width,
                 .rank = l->options.rank,
                 .scale = l->scale};
    lt_parallel_for((size_t)a->shape[0], merge_row, &m);
    memset(a_data, 0, (size_t)a->count * sizeof(float));
}

static void merge_experts(lt_lora *l, const lt_lora_site *s) {
    const lt_param_table *own = &l->params->table, *base = &l->base->table;
    const lt_param *a = &own->params[s->a], *b = &own->params[s->b],
                   *w = &base->params[lt_param_index(base, a->kind, a->layer)];
    const float *const a_data = lt_param_data(&l->params->master, a);
    float *const b_data = lt_param_data(&l->params->master, b), *const w_data = lt_param_data(
                                                                    &l->base->master, w);
    const int64_t rows = b->shape[1], cols = a->shape[2], rank = l->options.rank;
    for (int64_t e = 0; e < s->n_experts; e++) {
        merging m = {.w = w_data + e * rows * cols,
                     .left = b_data + e * rows * rank,
                     .right = a_data + e * rank * cols,
                     .next_rank = cols,
                     .next_col = 1,
                     .cols = cols,
                     .rank = rank,
                     .scale = l->scale};
        lt_parallel_for((size_t)rows, merge_row, &m);
    }
    memset(b_data, 0, (size_t)b->count * sizeof(float));
}

static void merge_site(lt_lora *l, const lt_lora_site *s) {
    const lt_param_table *own = &l->params->table, *base = &l->base->table;
    const lt_param *a = &own->params[s->a], *b = &own->params[s->b],
                   *w = &base->params[lt_param_index(base, a->kind, a->layer)];
    const float *const a_data = lt_param_data(&l->params->master, a);
    float *const b_data = lt_param_data(&l->params->master, b),
                 *const w_data = lt_param_data(&l->base->master, w),
                 *const m_data = s->m >= 0 ? lt_param_data(&l->params->master, &own->params[s->m])
                                           : NULL;
    for (int k = 0; k < s->n_parts; k++) {
        const lt_lora_part *p = &s->parts[k];
        merging m = {.w = w_data + p->first_row * a->shape[1],
                     .left = b_data + p->b_row * l->options.rank,
                     .right = a_data + k * l->options.rank * a->shape[1],
                     .next_rank = a->shape[1],
                     .next_col = 1,
                     .m = m_data != NULL ? m_data + p->b_row : NULL,
                     .cols = a->shape[1],
                     .rank = l->options.rank,
                     .scale = l->scale};
        lt_parallel_for((size_t)p->n_rows, merge_row, &m);
    }
    memset(b_data, 0, (size_t)b->count * sizeof(float));
}

lt_err lt_lora_merge(lt_lora *l) {
    const lt_param_table *base = &l->base->table;
    const lt_model_spec *spec = &l->base->spec;
    const lt_lora_site *embed = lt_lora_top_of(l->sites, spec, LT_PARAM_EMBED);
    if (spec->tied &&
        (embed->n_parts > 0 || lt_lora_top_of(l->sites, spec, LT_PARAM_HEAD)->n_parts > 0)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "merging adapters of the embedding or of the output head, which are one matrix in "
                "this model (tie_word_embeddings): it would change both");
    }
    if (!l->base->backend->host_memory || l->base->options.dtype != LT_F32) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "adapters are merged into F32 weights on the host");
    }
    if (embed->n_parts > 0) {
        merge_embedding(l, embed);
    }
    for (int i = 0; i < lt_lora_n_sites(spec); i++) {
        const lt_lora_site *s = &l->sites[i];
        if (s->n_experts > 0) {
            merge_experts(l, s);
        } else if (s->n_parts > 0 && s != embed) {
            merge_site(l, s);
        }
    }
    for (int kind = LT_PARAM_SCORE; kind <= LT_PARAM_SCORE_BIAS; kind++) {
        if (lt_param_index(base, (lt_param_kind)kind, 0) >= 0) {
            const lt_tensor from = lt_lora_score(l, (lt_param_kind)kind, &l->params->master),
                            to = lt_param_view(base, (lt_param_kind)kind, 0, &l->base->master);
            memcpy(to.data, from.data, (size_t)lt_tensor_count(&to) * sizeof(float));
        }
    }
    l->base->version++;
    l->params->version++;
    return LT_OK;
}
