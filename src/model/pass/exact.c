/* exact.c: see exact.h. Token s of row b of a batch is in slot b * (pages per row) *
 * LT_EXACT_PAGE + s: the pages of a row are consecutive. */
#include "model/pass/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/blocks/context.h"
#include "model/infer/logits.h"

lt_err lt_exact_check(const lt_model *m, const lt_pass_options *o) {
    const struct {
        const char *what;
        bool asked;
    } refused[] = {
        {"model.dtype = bf16 on a CPU", m->backend->host_memory && m->options.dtype != LT_F32},
        {"model.capacity over 0, with which experts drop rows that depend on the others",
         o->train && m->spec.n_experts > 0 && m->spec.moe_capacity > 0.0},
        {"model.fp8", o->fp8 != LT_FP8_NONE},
        {"tp (mesh) and lora.dora, whose norms of rows are sums, too",
         lt_pass_n_tp(o) > 1 && m->lora != NULL && m->lora->options.dora},
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

static lt_tensor take_pages(const lt_model_spec *s, lt_dtype dtype, int64_t pages, lt_arena *a) {
    const int64_t numbers = pages * LT_EXACT_PAGE * s->n_kv_heads * s->head_dim;
    return lt_tensor_4d(lt_arena_take(a, (size_t)numbers * lt_dtype_bytes(dtype), LT_ARENA_ALIGN),
                        dtype, pages, LT_EXACT_PAGE, s->n_kv_heads, s->head_dim);
}

/* The number of sequences of a row: with ranks of cp that hold two pieces of it, two. */
static int parts_of(const lt_pass_options *o) {
    return lt_pass_whole_seq(o) != o->seq && o->context.kind != LT_CONTEXT_ULYSSES ? 2 : 1;
}

/* Number of words of slots, table, q_start and kv_len of a batch. whole: tokens of a row. */
static int64_t n_words(int64_t batch, int64_t whole, int parts) {
    const int64_t sequences = batch * parts;
    return batch * whole + sequences * row_pages(whole) + sequences + 1 + sequences;
}

static int64_t most_words(const lt_pass_options *o) {
    return n_words(o->batch, lt_pass_whole_seq(o), parts_of(o));
}

void lt_exact_carve(lt_exact *e, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                    lt_arena *a) {
    const int64_t pages = o->batch * row_pages(lt_pass_whole_seq(o)), rows = o->batch * o->seq;
    if (!o->exact) {
        return;
    }
    e->k_pages = take_pages(s, dtype, pages, a);
    e->v_pages = take_pages(s, dtype, pages, a);
    e->words = lt_tensor_take(a, LT_I32, most_words(o), 0, 0);
    if (o->on_device) {
        e->pick = lt_tensor_take(a, LT_I32, rows, 0, 0);
        e->how = lt_tensor_take(a, LT_F64, rows, LT_CHOOSE_HOW_COUNT, 0);
        e->id = lt_tensor_take(a, LT_I32, rows, 0, 0);
        e->rank = lt_tensor_take(a, LT_I32, rows, 0, 0);
        e->logprob = lt_tensor_take(a, LT_F32, rows, 0, 0);
        e->top_id = lt_tensor_take(a, LT_I32, rows, LT_CHOOSE_TOP, 0);
        e->top_logprob = lt_tensor_take(a, LT_F32, rows, LT_CHOOSE_TOP, 0);
    }
}

size_t lt_exact_host_bytes(const lt_pass_options *o) {
    const size_t rows = (size_t)(o->batch * o->seq),
                 words = (size_t)most_words(o) * sizeof(int32_t),
                 picks = rows * (sizeof(int32_t) + LT_CHOOSE_HOW_COUNT * sizeof(double));
    return !o->exact ? 0 : o->on_device ? words + picks : words;
}

lt_err lt_exact_open(lt_exact *e, const lt_pass_options *o) {
    const size_t rows = (size_t)(o->batch * o->seq);
    if (!o->exact) {
        return LT_OK;
    }
    e->host_words = calloc((size_t)most_words(o), sizeof *e->host_words);
    e->host_pick = o->on_device ? calloc(rows, sizeof *e->host_pick) : NULL;
    e->host_how = o->on_device ? calloc(rows * LT_CHOOSE_HOW_COUNT, sizeof *e->host_how) : NULL;
    if (e->host_words == NULL || (o->on_device && (e->host_pick == NULL || e->host_how == NULL))) {
        LT_FAIL(LT_ERR_OOM, "an exact pass over %zu rows", rows);
    }
    return LT_OK;
}

void lt_exact_close(lt_exact *e) {
    free(e->host_words);
    free(e->host_pick);
    free(e->host_how);
    e->host_words = e->host_pick = NULL;
    e->host_how = NULL;
}

/* The slot of token t of a whole row. */
static int32_t slot_of(int64_t row, int64_t whole, int64_t t) {
    return (int32_t)(row * row_pages(whole) * LT_EXACT_PAGE + t);
}

/* Slots of whole rows; with ring, those of each rank's tokens, one rank after the other. */
static void fill_slots(int32_t *slots, int64_t batch, int64_t whole, const lt_context *ring) {
    const int n = ring != NULL ? 2 * ring->n : 1;
    const int64_t piece = whole / n;
    for (int64_t i = 0; i < batch * n; i++) {
        const int rank = ring != NULL ? (int)(i / (2 * batch)) : 0, half = (int)(i % 2);
        const int64_t row = ring != NULL ? i / 2 % batch : i,
                      first = ring != NULL ? lt_context_piece(ring->n, rank, half) * piece : 0;
        for (int64_t t = 0; t < piece; t++) {
            *slots++ = slot_of(row, whole, first + t);
        }
    }
}

void lt_exact_shape(lt_exact *e, int64_t batch, int64_t seq, const lt_context *context) {
    const lt_context *pieces = context != NULL && context->kind != LT_CONTEXT_ULYSSES ? context
                                                                                      : NULL;
    const int parts = pieces != NULL ? 2 : 1;
    const int64_t whole = context != NULL ? context->n * seq : seq, pages = row_pages(whole),
                  sequences = batch * parts;
    int32_t *device = e->words.data, *slots = e->host_words, *table = slots + batch * whole,
            *start = table + sequences * pages, *length = start + sequences + 1;
    if (e->batch == batch && e->seq == seq) {
        return;
    }
    e->batch = batch;
    e->seq = seq;
    e->whole = whole;
    e->q_max = pieces != NULL ? seq / 2 : whole;
    e->sent = false;
    e->slots = lt_tensor_1d(device, LT_I32, batch * whole);
    e->table = lt_tensor_2d(device + (table - slots), LT_I32, sequences, pages);
    e->q_start = lt_tensor_1d(device + (start - slots), LT_I32, sequences + 1);
    e->kv_len = lt_tensor_1d(device + (length - slots), LT_I32, sequences);
    fill_slots(slots, batch, whole,
               pieces != NULL && pieces->kind == LT_CONTEXT_RING ? pieces : NULL);
    start[sequences] = (int32_t)(sequences * e->q_max);
    for (int64_t s = 0; s < sequences; s++) {
        start[s] = (int32_t)(s * e->q_max);
        length[s] = pieces != NULL
                        ? (int32_t)((lt_context_piece(pieces->n, pieces->rank, (int)(s % 2)) + 1) *
                                    e->q_max)
                        : (int32_t)whole;
        for (int64_t i = 0; i < pages; i++) {
            table[s * pages + i] = (int32_t)(s / parts * pages + i);
        }
    }
}

/* Send the words once for each shape. The host changes them for the next shape, which must not
 * happen during this transfer. */
static lt_err send_words(lt_exec *r, lt_exact *e) {
    if (e->sent) {
        return LT_OK;
    }
    const int parts = (int)(e->kv_len.shape[0] / e->batch);
    LT_TRY(r->backend->upload(r->queue, e->words.data, e->host_words,
                              (size_t)n_words(e->batch, e->whole, parts) * sizeof(int32_t)));
    LT_TRY(r->backend->sync(r->queue));
    e->sent = true;
    return LT_OK;
}

/* (B, T, heads, D) as rows, the form of the engine's ops. */
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

/* A view of the pages; with ranks of tp, of the key heads that are held here. */
static lt_tensor pages_of(const lt_tensor *pages, const lt_tensor *x) {
    return lt_tensor_4d(pages->data, pages->dtype, pages->shape[0], LT_EXACT_PAGE, x->shape[2],
                        pages->shape[3]);
}

lt_err lt_exact_write(lt_exec *r, lt_tensor k, lt_tensor v, int source) {
    lt_exact *e = r->exact;
    const int64_t n = k.shape[0] * k.shape[1];
    LT_TRY(send_words(r, e));
    return lt_exec_kv_write(r,
                            &(lt_kv_write_args){.k_pages = pages_of(&e->k_pages, &k),
                                                .v_pages = pages_of(&e->v_pages, &v),
                                                .k = rows_of(k),
                                                .v = rows_of(v),
                                                .slots = lt_tensor_rows(&e->slots, source * n, n)});
}

lt_err lt_exact_attend(lt_exec *r, const lt_attention_args *a) {
    lt_exact *e = r->exact;
    LT_ASSERT(a->doc_start.data == NULL); /* A row is one document. */
    return lt_exec_attention_paged(
        r, &(lt_attention_paged_args){.out = rows_of(a->out),
                                      .q = rows_of(a->q),
                                      .k_pages = pages_of(&e->k_pages, &a->k),
                                      .v_pages = pages_of(&e->v_pages, &a->v),
                                      .table = e->table,
                                      .q_start = e->q_start,
                                      .kv_len = e->kv_len,
                                      .sinks = a->sinks,
                                      .scale = a->scale,
                                      .softcap = a->softcap,
                                      .window = a->window,
                                      .q_max = e->q_max,
                                      .kv_max = e->whole,
                                      .fixed_order = true});
}

lt_err lt_exact_attention_fwd(lt_exec *r, const lt_attention_args *a) {
    LT_TRY(lt_exec_attention_fwd(r, a));
    if (r->exact == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_exact_write(r, a->k, a->v, 0));
    return lt_exact_attend(r, a);
}

static void losses_on_host(const lt_tensor *logits, float cap, const int32_t *labels, float *loss,
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

/* Set the pick of a row so that it chooses the row's label, if there is one. */
static void ask(lt_exact *e, int64_t row, int64_t place, int32_t label) {
    static const double plain[LT_CHOOSE_HOW_COUNT - LT_CHOOSE_TYPICAL] = {LT_CHOOSE_PLAIN};
    double *how = e->host_how + row * LT_CHOOSE_HOW_COUNT;
    memset(how, 0, LT_CHOOSE_HOW_COUNT * sizeof *how);
    memcpy(how + LT_CHOOSE_TYPICAL, plain, sizeof plain);
    how[LT_CHOOSE_TOP_P] = 1.0;
    how[LT_CHOOSE_FORCED] = (double)label;
    e->host_pick[row] = label >= 0 ? (int32_t)place : LT_CHOOSE_IDLE;
}

/* Compute losses with the op choose, as the engine does. The losses of xent, whose sums have
 * another order, are used to detect logits that are not finite. */
static lt_err losses_on_device(lt_exec *r, lt_tensor logits, int64_t first, const int32_t *labels,
                               lt_tensor loss) {
    lt_exact *e = r->exact;
    const int64_t n = logits.shape[0];
    const lt_tensor pick = lt_tensor_rows(&e->pick, first, n),
                    how = lt_tensor_rows(&e->how, first, n),
                    logprob = lt_tensor_rows(&e->logprob, first, n);
    for (int64_t i = 0; i < n; i++) {
        ask(e, first + i, i, labels[i]);
    }
    LT_TRY(r->backend->upload(r->queue, pick.data, e->host_pick + first,
                              (size_t)n * sizeof *e->host_pick));
    LT_TRY(r->backend->upload(r->queue, how.data, e->host_how + first * LT_CHOOSE_HOW_COUNT,
                              (size_t)n * LT_CHOOSE_HOW_COUNT * sizeof *e->host_how));
    LT_TRY(lt_exec_choose(
        r, &(lt_choose_args){.id = lt_tensor_rows(&e->id, first, n),
                             .logprob = logprob,
                             .rank = lt_tensor_rows(&e->rank, first, n),
                             .top_id = lt_tensor_rows(&e->top_id, first, n),
                             .top_logprob = lt_tensor_rows(&e->top_logprob, first, n),
                             .logits = logits,
                             .rows = pick,
                             .how = how,
                             .softcap = r->spec->final_softcap}));
    return lt_exec_add(
        r, &(lt_add_args){.y = loss, .a = loss, .b = logprob, .alpha = 0.0f, .beta = -1.0f});
}

lt_err lt_exact_losses(lt_exec *r, lt_tensor logits, int64_t first, const int32_t *labels,
                       lt_tensor loss, lt_tensor best) {
    if (r->backend->host_memory) {
        losses_on_host(&logits, r->spec->final_softcap, labels, loss.data, best.data);
        return LT_OK;
    }
    return losses_on_device(r, logits, first, labels, loss);
}
