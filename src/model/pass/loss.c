/* loss.c: see loss.h. With a vocabulary of 50,257 the logits of 4,096 rows take 824 MB, so they
 * are computed, and overwritten by their gradient, a chunk of rows at a time. Chunks run in order
 * and add to the head's gradient in order; each reads the head twice and its gradient once, and
 * its products pack the head again, which is expensive for few rows (GPT-2 124M, one thread, the
 * three products together: 160 rows 140 GFLOP/s, 512 rows 153).
 *
 * In a packed batch (stage.h) the rows whose label counts are first copied next to each other. The
 * copies use the memory of the residual branch, and their gradients that of dx, because neither
 * is in use at this point of a pass. Then the gradients are written to dh, each at its own row.
 *
 * An objective needs the log-probabilities before it can compute their derivatives, so the head
 * runs forward, and later backward. In between, the logits are either kept (keep_logits), rounded
 * to the activations' type, which the backward pass reads, or computed a second time: the bits
 * are the same, and it costs one product.
 *
 * Ranks of tp each have a part of the vocabulary, for all rows: xent computes the numbers that it
 * needs of each part, these are gathered, and from all of them each rank computes the losses and
 * the gradients of its own part.
 *
 * A head that judges tokens (token_scores) is treated as one with a vocabulary of n_scores: its
 * labels are 0 to n_scores - 1. Each rank of tp has the whole score head, and computes the losses
 * of all rows and the gradients of its own. */
#include "model/pass/loss.h"

#include <string.h>

#include "model/lora/adapted.h"
#include "model/pass/exact.h"
#include "model/blocks/tp.h"

#define CHUNK_BYTES ((int64_t)128 << 20)
#define CHUNK_STEP  ((int64_t)16) /* Rows of whole register tiles. */

/* On a device, products are efficient with many rows, in whole tiles. A pass that computes layers
 * again uses little memory otherwise, and takes smaller chunks. */
#define DEVICE_CHUNK_BYTES       ((int64_t)1 << 30)
#define DEVICE_SMALL_CHUNK_BYTES ((int64_t)1 << 28)
#define DEVICE_CHUNK_STEP        ((int64_t)128)

/* The rows of a chunk, in whole steps, for as few chunks of equal size as the memory allows. */
static int64_t equal_chunk(int64_t rows, int64_t row_bytes, int64_t chunk_bytes, int64_t step) {
    const int64_t most = chunk_bytes / row_bytes > 0 ? chunk_bytes / row_bytes : 1,
                  n = (rows + most - 1) / most, even = (rows + n - 1) / n;
    return (even + step - 1) / step * step;
}

void lt_loss_carve(lt_loss *l, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                   int64_t n_ids, lt_arena *a) {
    const lt_dtype logits = o->train ? dtype : LT_F32;
    const int n_tp = lt_pass_n_tp(o);
    const int64_t rows = o->batch * o->seq, most_ids = (lt_model_spec_outputs(s) + n_tp - 1) / n_tp,
                  row_bytes = most_ids * (int64_t)lt_dtype_bytes(logits),
                  device_bytes = o->recompute == LT_RECOMPUTE_FULL ? DEVICE_SMALL_CHUNK_BYTES
                                                                   : DEVICE_CHUNK_BYTES;
    const int64_t chunk = s->n_scores > 0          ? rows
                          : o->loss_chunk_rows > 0 ? o->loss_chunk_rows
                          : o->on_device
                              ? equal_chunk(rows, row_bytes, device_bytes, DEVICE_CHUNK_STEP)
                              : equal_chunk(rows, row_bytes, CHUNK_BYTES, CHUNK_STEP);

    l->chunk_rows = chunk < rows ? chunk : rows;
    /* At least two rows: an evaluation has half as many, in F32, in the memory of BF16 ones. */
    l->logits = lt_tensor_take(a, logits, l->chunk_rows > 2 ? l->chunk_rows : 2, n_ids, 0);
    if (n_tp > 1 && o->exact) {
        l->whole = lt_tensor_take(a, LT_F32, l->chunk_rows, lt_model_spec_outputs(s), 0);
    }
    if (n_tp > 1) {
        l->parts = lt_tensor_take(a, LT_F32, n_tp, l->chunk_rows, LT_XENT_PART);
    }
    if (lt_pass_keeps_logits(o, s)) {
        l->kept = lt_tensor_take(a, dtype, rows, n_ids, 0);
    }
}

static bool any_counted(const int32_t *labels, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (labels[i] >= 0) {
            return true;
        }
    }
    return false;
}

/* These rows have no label that counts: loss 0, gradient 0. */
static lt_err skip_chunk(lt_exec *r, const lt_batch_acts *b, int64_t first, int64_t n,
                         const lt_tensor *all_dh) {
    const lt_tensor loss = lt_tensor_rows(&b->loss_rows, first, n);
    LT_TRY(r->backend->zero(r->queue, loss.data, (size_t)n * sizeof(float)));
    if (all_dh != NULL) {
        const lt_tensor dh = lt_tensor_rows(all_dh, first, n);
        LT_TRY(r->backend->zero(r->queue, dh.data,
                                (size_t)lt_tensor_count(&dh) * lt_dtype_bytes(dh.dtype)));
    }
    return LT_OK;
}

/* Losses and gradients of n rows: in two calls if other ranks have other parts of the
 * vocabulary. */
static lt_err xent(lt_exec *r, const lt_loss *l, lt_xent_args *args) {
    const int64_t n = args->logits.shape[0];
    if (r->n_tp == 1 || r->spec->n_scores > 0 || args->logits.data == l->whole.data) {
        return lt_exec_xent(r, args);
    }
    float *const parts = l->parts.data, *own = parts + r->tp_rank * n * LT_XENT_PART;
    const lt_tensor all = lt_tensor_3d(parts, LT_F32, r->n_tp, n, LT_XENT_PART);
    args->first = r->first_id;
    args->part = lt_tensor_2d(own, LT_F32, n, LT_XENT_PART);
    LT_TRY(lt_exec_xent(r, args));
    LT_TRY(lt_tp_share(r, all));
    args->part = (lt_tensor){0};
    args->parts = all;
    return lt_exec_xent(r, args);
}

/* Logits of the rows h, in F32 or, if gradients follow, in the activations' type. */
static lt_err logits_of(lt_exec *r, const lt_loss *l, lt_tensor h, bool backward,
                        lt_tensor *logits) {
    const int64_t n = h.shape[0];
    *logits = backward ? lt_tensor_rows(&l->logits, 0, n)
                       : lt_tensor_2d(l->logits.data, LT_F32, n, l->logits.shape[1]);
    return lt_linear_fwd(r, *logits, h, lt_param_head(r->spec), lt_param_head_bias(r->spec), 0);
}

/* The same for rows [first, first + n) of the head's input; `how` says whether they were kept
 * before, or are to be kept. */
static lt_err logits_for(lt_exec *r, const lt_loss *l, lt_tensor h, int64_t first,
                         const lt_loss_how *how, lt_tensor *logits) {
    const int64_t n = h.shape[0];
    if (how->kept) {
        *logits = lt_tensor_rows(&l->kept, first, n);
        return LT_OK;
    }
    LT_TRY(logits_of(r, l, h, how->grad_scale != 0, logits));
    return how->keep ? lt_exec_cast(r, &(lt_cast_args){.y = lt_tensor_rows(&l->kept, first, n),
                                                       .x = *logits})
                     : LT_OK;
}

lt_err lt_loss_logits(lt_exec *r, const lt_loss *l, const lt_batch_acts *b, int64_t first,
                      int64_t n, lt_tensor *logits) {
    return logits_of(r, l, lt_tensor_rows(&b->h_final, first, n), false, logits);
}

/* Evaluation in a training pass: F32 logits, fewer rows. */
int64_t lt_loss_eval_rows(const lt_loss *l) {
    return l->logits.dtype == LT_F32 ? l->chunk_rows : l->chunk_rows > 1 ? l->chunk_rows / 2 : 1;
}

/* Divergences of n rows from a teacher, and their gradients. */
static lt_err distill(lt_exec *r, const lt_batch_acts *b, lt_tensor logits, int64_t first,
                      const lt_loss_how *how) {
    const lt_loss_target *t = how->target;
    const int64_t n = logits.shape[0];
    const lt_tensor best = lt_tensor_rows(&b->best, first, n);
    lt_distill_args args = {.logits = logits,
                            .labels = lt_tensor_rows(&b->labels, first, n),
                            .loss = lt_tensor_rows(&b->loss_rows, first, n),
                            .grad_scale = how->grad_scale,
                            .softcap = r->spec->final_softcap,
                            .temperature = t->temperature,
                            .beta = t->beta,
                            .label_share = t->label_share,
                            .rest = t->rest};
    if (how->weights) {
        args.weights = lt_tensor_rows(&b->weights, first, n);
    }
    if (t->teacher != NULL) {
        args.teacher_softcap = t->teacher->spec->final_softcap;
        LT_TRY(lt_loss_logits(t->teacher, t->loss, t->of, first, n, &args.teacher));
    } else {
        args.ids = lt_tensor_rows(&t->ids, first, n);
        args.logp = lt_tensor_rows(&t->logp, first, n);
    }
    LT_TRY(r->backend->zero(r->queue, best.data, (size_t)n * sizeof(int32_t)));
    return lt_exec_distill(r, &args);
}

static lt_err multiply(lt_exec *r, lt_tensor logits, float factor) {
    return factor == 1.0f
               ? LT_OK
               : lt_exec_add(r, &(lt_add_args){.y = logits, .a = logits, .alpha = factor});
}

/* Losses of n rows against their labels, and their gradients. A temperature divides logits and cap,
 * so that capped logits are divided by it; and the gradient again. */
static lt_err against_labels(lt_exec *r, const lt_loss *l, const lt_batch_acts *b, lt_tensor logits,
                             int64_t first, const lt_loss_how *how) {
    const float factor = how->temperature > 0.0f ? 1.0f / how->temperature : 1.0f;
    const int64_t n = logits.shape[0];
    lt_xent_args args = {.logits = logits,
                         .labels = lt_tensor_rows(&b->labels, first, n),
                         .loss = lt_tensor_rows(&b->loss_rows, first, n),
                         .best = lt_tensor_rows(&b->best, first, n),
                         .grad_scale = how->grad_scale,
                         .softcap = r->spec->n_scores > 0 ? 0.0f : r->spec->final_softcap * factor,
                         .z_coef = how->z_coef};
    if (how->weights) {
        args.weights = lt_tensor_rows(&b->weights, first, n);
    }
    LT_TRY(multiply(r, logits, factor));
    LT_TRY(xent(r, l, &args));
    return how->grad_scale != 0 ? multiply(r, logits, factor) : LT_OK;
}

/* Gradients of the head and of its input from those of logits. */
static lt_err head_backward(lt_exec *r, lt_tensor dh, lt_tensor dlogits, lt_tensor h) {
    const lt_tp_run own = lt_tp_run_of(h.shape[0], r->n_tp, r->tp_rank);
    const bool divided = r->n_tp > 1 && r->spec->n_scores > 0;
    if (divided) {
        LT_TRY(r->backend->zero(r->queue, dh.data,
                                (size_t)lt_tensor_count(&dh) * lt_dtype_bytes(dh.dtype)));
        dh = lt_tensor_rows(&dh, own.first, own.count);
        dlogits = lt_tensor_rows(&dlogits, own.first, own.count);
        h = lt_tensor_rows(&h, own.first, own.count);
    }
    return lt_linear_bwd(r, dh, dlogits, h, lt_param_head(r->spec), lt_param_head_bias(r->spec), 0,
                         false);
}

/* Logits of the whole vocabulary, from the parts of the ranks of tp: a sum in which each rank has
 * zeros for the other parts. */
static lt_err whole_logits(lt_exec *r, const lt_loss *l, lt_tensor *logits) {
    const int64_t n = logits->shape[0];
    const lt_tensor whole = lt_tensor_2d(l->whole.data, LT_F32, n, l->whole.shape[1]);
    if (r->n_tp == 1) {
        return LT_OK;
    }
    LT_TRY(r->backend->zero(r->queue, whole.data, (size_t)lt_tensor_count(&whole) * sizeof(float)));
    LT_TRY(lt_exec_add(r, &(lt_add_args){.y = lt_tensor_cols(&whole, r->first_id, logits->shape[1]),
                                         .a = *logits,
                                         .alpha = 1.0f}));
    *logits = whole;
    return lt_tp_sum(r, whole);
}

/* all_h, all_dh: the head's input, and its gradient, which is absent without backward. */
static lt_err run_chunk(lt_exec *r, const lt_loss *l, const lt_batch_acts *b,
                        const lt_tensor *all_h, const lt_tensor *all_dh, int64_t first, int64_t n,
                        const lt_loss_how *how) {
    const lt_tensor h = lt_tensor_rows(all_h, first, n);
    lt_tensor logits;

    LT_TRY(logits_for(r, l, h, first, how, &logits));
    if (r->exact != NULL && how->grad_scale == 0) {
        LT_ASSERT(how->host_labels != NULL);
        LT_TRY(whole_logits(r, l, &logits));
        LT_TRY(r->backend->host_memory ? LT_OK : against_labels(r, l, b, logits, first, how));
        return lt_exact_losses(r, logits, first, how->host_labels + first,
                               lt_tensor_rows(&b->loss_rows, first, n),
                               lt_tensor_rows(&b->best, first, n));
    }
    LT_TRY(how->target != NULL ? distill(r, b, logits, first, how)
                               : against_labels(r, l, b, logits, first, how));
    if (how->grad_scale == 0) {
        return LT_OK;
    }
    return head_backward(r, lt_tensor_rows(all_dh, first, n), logits, h);
}

/* Copy the rows of a packed batch that the head runs for next to each other. */
static lt_err gather(lt_exec *r, const lt_batch_acts *b, lt_tensor to, lt_tensor order,
                     lt_tensor count) {
    return lt_exec_moe_gather_fwd(
        r, &(lt_moe_gather_args){.y = to,
                                 .x = lt_tensor_rows(&b->h_final, 0, r->batch * r->seq),
                                 .slot_row = order,
                                 .expert_start = count,
                                 .top_k = 1});
}

/* Write the gradients of these copies to the rows that they came from, and 0 to the other rows. */
static lt_err spread(lt_exec *r, const lt_batch_acts *b, lt_tensor from, lt_tensor order,
                     lt_tensor count) {
    return lt_exec_moe_gather_bwd(
        r, &(lt_moe_gather_bwd_args){.dx = lt_tensor_rows(&b->dh, 0, r->batch * r->seq),
                                     .dy = from,
                                     .slot_row = order,
                                     .expert_start = count,
                                     .top_k = 1});
}

/* A score head of texts: the value of each row, in F32, is stored as its loss; in backward, a
 * row's weight is the derivative by its value. There are few numbers, so all rows run at once. */
static lt_err run_scores(lt_exec *r, const lt_loss *l, const lt_batch_acts *b,
                         const lt_loss_how *how) {
    const int64_t rows = r->batch * r->seq;
    const lt_tensor h = lt_tensor_rows(&b->h_final, 0, rows);
    const lt_tensor dh = lt_tensor_rows(&b->dh, 0, rows);
    const lt_tensor dscore = lt_tensor_2d(l->logits.data, r->dtype, rows, 1);
    const lt_tensor weights = lt_tensor_2d(b->weights.data, LT_F32, rows, 1);
    LT_ASSERT(r->spec->n_scores == 1 && l->chunk_rows >= rows);
    if (how->grad_scale == 0) {
        LT_TRY(r->backend->zero(r->queue, b->best.data, (size_t)rows * sizeof(int32_t)));
        return lt_linear_fwd(r, lt_tensor_2d(b->loss_rows.data, LT_F32, rows, 1), h, LT_PARAM_SCORE,
                             LT_PARAM_KIND_COUNT, 0);
    }
    LT_ASSERT(how->weights);
    LT_TRY(lt_exec_add(r, &(lt_add_args){.y = dscore, .a = weights, .alpha = how->grad_scale}));
    return head_backward(r, dh, dscore, h);
}

lt_err lt_loss_run(lt_exec *r, const lt_loss *l, const lt_batch_acts *b, const lt_loss_how *how) {
    const bool backward = how->grad_scale != 0;
    const int64_t rows = how->head_rows, all_rows = r->batch * r->seq,
                  chunk = backward ? l->chunk_rows : lt_loss_eval_rows(l);
    const bool packed = rows < all_rows;
    const lt_tensor h = packed ? b->branch : b->h_final, dh = packed ? b->dx : b->dh,
                    order = packed ? lt_tensor_rows(&b->order, 0, all_rows) : (lt_tensor){0},
                    count = packed ? lt_tensor_rows(&b->order, all_rows, 1) : (lt_tensor){0};

    if (lt_model_spec_gives_values(r->spec)) {
        return run_scores(r, l, b, how);
    }
    LT_ASSERT(!packed || how->target == NULL);
    LT_ASSERT((!how->keep || !backward) && (!how->kept || backward));
    LT_TRY(packed && rows > 0 ? gather(r, b, h, order, count) : LT_OK);
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t n = rows - first < chunk ? rows - first : chunk;
        if (how->host_labels == NULL || any_counted(how->host_labels + first, n)) {
            LT_TRY(run_chunk(r, l, b, &h, &dh, first, n, how));
        } else {
            LT_TRY(skip_chunk(r, b, first, n, backward ? &dh : NULL));
        }
    }
    LT_TRY(packed && backward ? spread(r, b, dh, order, count) : LT_OK);
    if (backward && r->fresh && !r->head_stored) { /* No chunk has computed it. */
        const lt_tensor dw = lt_exec_gradient(r, lt_param_head(r->spec), 0);
        if (dw.data != NULL) {
            LT_TRY(
                r->backend->zero(r->queue, dw.data, (size_t)lt_tensor_count(&dw) * sizeof(float)));
        }
        LT_TRY(lt_lora_zero_head(r));
        r->head_stored = true;
    }
    return LT_OK;
}
