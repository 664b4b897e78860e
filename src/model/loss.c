/* loss.c: see loss.h. With a vocabulary of 50,257 the logits of 4,096 rows take 824 MB, so they are
 * made, and overwritten by their gradient, a chunk of rows at a time. Chunks run in order and add
 * to the head's gradient in order; each reads the head twice and its gradient once, and its
 * products pack the head anew: few rows make that dear (GPT-2 124M, one thread, the three products
 * together: 160 rows 140 GFLOP/s, 512 rows 153). */
#include "model/loss.h"

#define CHUNK_BYTES ((int64_t)128 << 20)
#define CHUNK_STEP  ((int64_t)16) /* Whole register tiles of rows. */

/* On a device the products want many rows, whole tiles of them. */
#define DEVICE_CHUNK_BYTES ((int64_t)1 << 30)
#define DEVICE_CHUNK_STEP  ((int64_t)128)

/* As few chunks of equal size as the memory allows, in whole steps. */
static int64_t equal_chunk(int64_t rows, int64_t row_bytes, int64_t chunk_bytes, int64_t step) {
    const int64_t most = chunk_bytes / row_bytes > 0 ? chunk_bytes / row_bytes : 1,
                  n = (rows + most - 1) / most, even = (rows + n - 1) / n;
    return (even + step - 1) / step * step;
}

void lt_loss_carve(lt_loss *l, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                   lt_arena *a) {
    const lt_dtype logits = o->train ? dtype : LT_F32;
    const int64_t rows = o->batch * o->seq,
                  row_bytes = s->vocab_size * (int64_t)lt_dtype_bytes(logits);
    const int64_t chunk = o->loss_chunk_rows > 0 ? o->loss_chunk_rows
                          : o->on_device
                              ? equal_chunk(rows, row_bytes, DEVICE_CHUNK_BYTES, DEVICE_CHUNK_STEP)
                              : equal_chunk(rows, row_bytes, CHUNK_BYTES, CHUNK_STEP);

    l->chunk_rows = chunk < rows ? chunk : rows;
    /* At least two rows: an evaluation keeps half as many, in F32, in the place of BF16 ones. */
    l->logits = lt_tensor_take(a, logits, l->chunk_rows > 2 ? l->chunk_rows : 2, s->vocab_size, 0);
}

static lt_param_kind head_kind(const lt_model_spec *s) {
    return s->tied ? LT_PARAM_EMBED : LT_PARAM_HEAD;
}

static bool any_counted(const int32_t *labels, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (labels[i] >= 0) {
            return true;
        }
    }
    return false;
}

/* Nothing to learn from these rows: loss 0, gradient 0. */
static lt_err skip_chunk(lt_exec *r, const lt_batch_acts *b, int64_t first, int64_t n,
                         bool backward) {
    const lt_tensor loss = lt_tensor_rows(&b->loss_rows, first, n);
    LT_TRY(r->backend->zero(r->queue, loss.data, (size_t)n * sizeof(float)));
    if (backward) {
        const lt_tensor dh = lt_tensor_rows(&b->dh, first, n);
        LT_TRY(r->backend->zero(r->queue, dh.data,
                                (size_t)lt_tensor_count(&dh) * lt_dtype_bytes(dh.dtype)));
    }
    return LT_OK;
}

static lt_err run_chunk(lt_exec *r, const lt_loss *l, const lt_batch_acts *b, int64_t first,
                        int64_t n, const lt_loss_how *how) {
    const lt_tensor none = {0};
    const lt_param_kind head = head_kind(r->spec);
    const lt_tensor h = lt_tensor_rows(&b->h_final, first, n);
    lt_tensor logits = lt_tensor_rows(&l->logits, 0, n);

    if (how->grad_scale == 0) {
        logits = lt_tensor_2d(l->logits.data, LT_F32, n, r->spec->vocab_size);
    }
    LT_TRY(lt_linear_fwd(r, logits, h, head, LT_PARAM_KIND_COUNT, 0));
    LT_TRY(lt_exec_xent(
        r, &(lt_xent_args){.logits = logits,
                           .labels = lt_tensor_rows(&b->labels, first, n),
                           .loss = lt_tensor_rows(&b->loss_rows, first, n),
                           .best = lt_tensor_rows(&b->best, first, n),
                           .weights = how->weights ? lt_tensor_rows(&b->weights, first, n) : none,
                           .grad_scale = how->grad_scale,
                           .softcap = r->spec->final_softcap,
                           .z_coef = how->z_coef}));
    if (how->grad_scale == 0) {
        return LT_OK;
    }
    return lt_linear_bwd(r, lt_tensor_rows(&b->dh, first, n), logits, h, head, LT_PARAM_KIND_COUNT,
                         0, false);
}

lt_err lt_loss_run(lt_exec *r, const lt_loss *l, const lt_batch_acts *b, const lt_loss_how *how) {
    const bool backward = how->grad_scale != 0;
    const int64_t rows = r->batch * r->seq;
    int64_t chunk = l->chunk_rows;

    /* Evaluation in a training pass: F32 logits, fewer rows. */
    if (!backward && l->logits.dtype != LT_F32) {
        chunk = chunk > 1 ? chunk / 2 : 1;
    }
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t n = rows - first < chunk ? rows - first : chunk;
        if (how->host_labels == NULL || any_counted(how->host_labels + first, n)) {
            LT_TRY(run_chunk(r, l, b, first, n, how));
        } else {
            LT_TRY(skip_chunk(r, b, first, n, backward));
        }
    }
    if (backward && r->fresh && !r->head_stored) { /* No chunk made it. */
        const lt_tensor dw = lt_exec_gradient(r, head_kind(r->spec), 0);
        LT_TRY(r->backend->zero(r->queue, dw.data, (size_t)lt_tensor_count(&dw) * sizeof(float)));
        r->head_stored = true;
    }
    return LT_OK;
}
