/* exact.c: see exact.h. Token s of row b of a batch lies in slot b * pages of a row * LT_EXACT_PAGE
 * + s: each row is a sequence whose pages follow each other. */
#include "model/pass/exact.h"

#include <math.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/infer/logits.h"

lt_err lt_exact_check(const lt_model *m, const lt_pass_options *o) {
    const struct {
        const char *what;
        bool asked;
    } refused[] = {{"a device other than the CPU", !m->backend->host_memory},
                   {"model.dtype = bf16", m->options.dtype != LT_F32},
                   {"experts", m->spec.n_experts > 0},
                   {"model.fp8", o->fp8 != LT_FP8_NONE},
                   {"cp (mesh), whose sums have another order than the engine's",
                    lt_pass_whole_seq(o) != o->seq},
                   {"tp (mesh) and adapters", lt_pass_n_tp(o) > 1 && m->lora != NULL},
                   {"tp (mesh) and norms of q and k over all heads",
                    lt_pass_n_tp(o) > 1 && m->spec.qk_norm_whole}};
    for (size_t i = 0; o->exact && i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "rl.exact with %s: not supported", refused[i].what);
        }
    }
    return LT_OK;
}

static int64_t row_pages(int64_t seq) {
    return (seq + LT_EXACT_PAGE - 1) / LT_EXACT_PAGE;
}

static lt_tensor take_pages(const lt_model_spec *s, int64_t pages, lt_arena *a) {
    const int64_t numbers = pages * LT_EXACT_PAGE * s->n_kv_heads * s->head_dim;
    return lt_tensor_4d(lt_arena_take(a, (size_t)numbers * sizeof(float), LT_ARENA_ALIGN), LT_F32,
                        pages, LT_EXACT_PAGE, s->n_kv_heads, s->head_dim);
}

void lt_exact_carve(lt_exact *e, const lt_model_spec *s, const lt_pass_options *o, lt_arena *a) {
    const int64_t pages = o->batch * row_pages(o->seq);
    if (!o->exact) {
        return;
    }
    e->k_pages = take_pages(s, pages, a);
    e->v_pages = take_pages(s, pages, a);
    e->slots = lt_tensor_take(a, LT_I32, o->batch * o->seq, 0, 0);
    e->table = lt_tensor_take(a, LT_I32, o->batch, row_pages(o->seq), 0);
    e->q_start = lt_tensor_take(a, LT_I32, o->batch + 1, 0, 0);
    e->kv_len = lt_tensor_take(a, LT_I32, o->batch, 0, 0);
}

void lt_exact_shape(lt_exact *e, int64_t batch, int64_t seq) {
    const int64_t pages = row_pages(seq);
    int32_t *slots = e->slots.data, *table = e->table.data, *start = e->q_start.data,
            *length = e->kv_len.data;
    e->seq = seq;
    e->slots = lt_tensor_1d(slots, LT_I32, batch * seq);
    e->table = lt_tensor_2d(table, LT_I32, batch, pages);
    e->q_start = lt_tensor_1d(start, LT_I32, batch + 1);
    e->kv_len = lt_tensor_1d(length, LT_I32, batch);
    start[batch] = (int32_t)(batch * seq);
    for (int64_t b = 0; b < batch; b++) {
        start[b] = (int32_t)(b * seq);
        length[b] = (int32_t)seq;
        for (int64_t i = 0; i < pages; i++) {
            table[b * pages + i] = (int32_t)(b * pages + i);
        }
        for (int64_t t = 0; t < seq; t++) {
            slots[b * seq + t] = (int32_t)(b * pages * LT_EXACT_PAGE + t);
        }
    }
}

/* (B, T, heads, D) as the rows that the engine's ops have. */
static lt_tensor rows_of(lt_tensor x) {
    lt_tensor rows = x;
    LT_ASSERT(x.n_dims == 4 && x.stride[0] == x.shape[1] * x.stride[1]);
    rows.n_dims = 3;
    rows.shape[0] = x.shape[0] * x.shape[1];
    for (int i = 0; i < 3; i++) {
        rows.shape[i] = i > 0 ? x.shape[i + 1] : rows.shape[0];
        rows.stride[i] = x.stride[i + 1];
    }
    return rows;
}

/* With ranks of tp, pages of the key heads that are here. */
static lt_tensor pages_of(const lt_tensor *pages, const lt_tensor *x) {
    return lt_tensor_4d(pages->data, LT_F32, pages->shape[0], LT_EXACT_PAGE, x->shape[2],
                        pages->shape[3]);
}

lt_err lt_exact_attention(lt_exec *r, const lt_attention_args *a) {
    const lt_exact *e = r->exact;
    const lt_tensor k_pages = pages_of(&e->k_pages, &a->k), v_pages = pages_of(&e->v_pages, &a->v);
    LT_ASSERT(a->doc_start.data == NULL); /* A row is one document. */
    LT_TRY(lt_exec_kv_write(r, &(lt_kv_write_args){.k_pages = k_pages,
                                                   .v_pages = v_pages,
                                                   .k = rows_of(a->k),
                                                   .v = rows_of(a->v),
                                                   .slots = e->slots}));
    return lt_exec_attention_paged(r, &(lt_attention_paged_args){.out = rows_of(a->out),
                                                                 .q = rows_of(a->q),
                                                                 .k_pages = k_pages,
                                                                 .v_pages = v_pages,
                                                                 .table = e->table,
                                                                 .q_start = e->q_start,
                                                                 .kv_len = e->kv_len,
                                                                 .sinks = a->sinks,
                                                                 .scale = a->scale,
                                                                 .softcap = a->softcap,
                                                                 .window = a->window,
                                                                 .q_max = e->seq,
                                                                 .kv_max = e->seq,
                                                                 .fixed_order = true});
}

void lt_exact_losses(const lt_tensor *logits, float cap, const int32_t *labels, float *loss,
                     int32_t *best) {
    const int64_t n = logits->shape[0], V = logits->shape[1];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        float *row = (float *)logits->data + i * V;
        int32_t high = 0;
        for (int64_t v = 0; cap > 0.0f && v < V; v++) {
            row[v] = cap * tanhf(row[v] / cap);
        }
        loss[i] = 0.0f;
        if (!lt_logits_best(row, V, &high)) {
            loss[i] = NAN;
        } else if (labels[i] >= 0) {
            loss[i] = -(float)((double)row[labels[i]] - lt_logits_lse(row, V, row[high]));
        }
        best[i] = high;
    }
}
