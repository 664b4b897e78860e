/* paged_forward_side.c: transfers between the host and a call: its metadata, its picks, penalty
 * states of sequences, and the queues for them.
 *
 *     host meta 0 ─up─▶ meta 0 ┐                                 ┌▶ chosen 0 ─down─▶ host chosen 0
 *                              ├ queue: call 1 │ call 2 │ call 3 ┤
 *     host meta 1 ─up─▶ meta 1 ┘         (0)      (1)      (0)   └▶ chosen 1 ─down─▶ host chosen 1
 *
 * SIDES    Every buffer exists twice, on the host and on the device, and calls use the two by
 *          turns. So the next call's metadata is on the device before this call ends, and this
 *          call's picks are transferred while the next runs: consecutive calls run without a gap. A
 *          call reads ids that the one before it chose on the other side (late ids). Graphs are
 *          recorded for each side.
 * ORDER    A call waits for its metadata (queue after up), and its picks wait for the call (down
 *          after queue), but no call waits for a transfer of another one. A side is written again
 *          only after the host has waited for the previous call that used it (busy).
 * PENALTY  States of sequences go through the call's own queue, so that they are set after all
 *          picks of the row's previous sequence and before those of its next.
 * ALONE    If no other call runs, the metadata goes through the call's own queue, and so do picks
 *          for which the host waits anyway (paged_forward_out.c). */
#include <stdlib.h>
#include <string.h>

#include "model/infer/paged_forward_impl.h"

static size_t meta_bytes(const lt_paged_forward *f) {
    return (size_t)lt_paged_forward_words(f) * sizeof(int32_t);
}

static size_t logits_bytes(const lt_paged_forward *f) {
    return (size_t)(f->o.out_rows * lt_model_spec_outputs(f->exec.spec)) * sizeof(float);
}

/* Allocated on first use: logits are rarely copied to the host, and 33 MB of such memory, for 64
 * rows of 128k ids, take 15 ms at the start. */
lt_err lt_paged_forward_host_logits(lt_paged_forward *f) {
    return f->host_logits != NULL
               ? LT_OK
               : f->exec.backend->host_alloc(f->exec.device, (void **)&f->host_logits,
                                             logits_bytes(f), "logits");
}

static int64_t mask_words(const lt_paged_forward *f) {
    return (f->exec.spec->vocab_size + 31) / 32;
}

static size_t masks_bytes(const lt_paged_forward *f) {
    return (size_t)(f->o.out_rows * mask_words(f)) * sizeof(uint32_t);
}

/* At most all words of a row at once. */
int64_t lt_paged_forward_max_edits(const lt_paged_forward *f) {
    return f->exec.spec->vocab_size + LT_PENALTY_BIASES;
}

/* Bytes of slots, starts and edits. */
static size_t state_call_bytes(const lt_paged_forward *f) {
    return (size_t)(2 * (f->o.max_seqs + 1) + 2 * lt_paged_forward_max_edits(f)) * sizeof(int32_t);
}

static void carve_penalty_states(lt_paged_forward *f, lt_arena *a) {
    const int64_t V = f->exec.spec->vocab_size;
    if (f->exec.backend->host_memory) {
        return;
    }
    f->masks = lt_tensor_take(a, LT_I32, f->o.out_rows, mask_words(f), 0);
    if (f->o.n_penalty_states > 0) {
        f->penalty_states = lt_tensor_take(a, LT_I32, f->o.n_penalty_states, V + LT_PENALTY_BIASES,
                                           0);
    }
    for (int i = 0; i < LT_PAGED_FORWARD_STATE_CALLS && f->o.n_penalty_states > 0; i++) {
        f->state_calls[i].words = lt_arena_take(a, state_call_bytes(f), LT_ARENA_ALIGN);
    }
}

void lt_paged_forward_sides_carve(lt_paged_forward *f, lt_arena *a) {
    carve_penalty_states(f, a);
    for (int i = 0; i < 2; i++) {
        f->sides[i].meta = lt_arena_take(a, meta_bytes(f), LT_ARENA_ALIGN);
        f->sides[i].chosen = lt_arena_take(a, lt_paged_forward_chosen_bytes(&f->o, true),
                                           LT_ARENA_ALIGN);
    }
}

/* Do each wait between queues once, so that everything that it needs exists before the first
 * call. */
static lt_err open_queues(lt_paged_forward *f) {
    const lt_backend *b = f->exec.backend;
    LT_TRY(b->queue_open(f->exec.device, &f->up));
    LT_TRY(b->queue_open(f->exec.device, &f->down));
    LT_TRY(b->order(f->exec.queue, f->up));
    LT_TRY(b->order(f->down, f->exec.queue));
    for (int i = 0; i < 2 && b->mark != NULL; i++) {
        LT_TRY(b->mark(f->down, i));
    }
    return LT_OK;
}

/* The host memory is of a kind for which transfers are fastest. */
lt_err lt_paged_forward_sides_open(lt_paged_forward *f) {
    const lt_backend *b = f->exec.backend;
    for (int i = 0; i < 2; i++) {
        lt_paged_forward_side *side = &f->sides[i];
        LT_TRY(b->host_alloc(f->exec.device, (void **)&side->host_meta, meta_bytes(f), "metadata"));
        LT_TRY(b->host_alloc(f->exec.device, (void **)&side->host_chosen,
                             lt_paged_forward_chosen_bytes(&f->o, true), "picks"));
    }
    if (!b->host_memory) {
        LT_TRY(b->host_alloc(f->exec.device, (void **)&f->host_masks, masks_bytes(f), "masks"));
    }
    for (int i = 0; i < LT_PAGED_FORWARD_STATE_CALLS && f->penalty_states.data != NULL; i++) {
        LT_TRY(b->host_alloc(f->exec.device, (void **)&f->state_calls[i].host_words,
                             state_call_bytes(f), "penalty states"));
    }
    f->host_rows = calloc((size_t)f->o.out_rows, sizeof *f->host_rows);
    if (f->host_rows == NULL) {
        LT_FAIL(LT_ERR_OOM, "forward: %lld rows", (long long)f->o.out_rows);
    }
    return open_queues(f);
}

void lt_paged_forward_sides_close(lt_paged_forward *f) {
    const lt_backend *b = f->exec.backend;
    /* Wait until nothing reads or writes the memory that is released. */
    lt_paged_forward_drop(f);
    for (int i = 0; i < 2; i++) {
        b->host_release(f->exec.device, f->sides[i].host_meta, meta_bytes(f));
        b->host_release(f->exec.device, f->sides[i].host_chosen,
                        lt_paged_forward_chosen_bytes(&f->o, true));
    }
    if (f->host_logits != NULL) {
        b->host_release(f->exec.device, f->host_logits, logits_bytes(f));
    }
    b->host_release(f->exec.device, f->host_masks, masks_bytes(f));
    for (int i = 0; i < LT_PAGED_FORWARD_STATE_CALLS; i++) {
        b->host_release(f->exec.device, f->state_calls[i].host_words, state_call_bytes(f));
    }
    free(f->host_rows);
    if (f->up != NULL) {
        b->queue_close(f->up);
    }
    if (f->down != NULL) {
        b->queue_close(f->down);
    }
}

static void free_state_calls(lt_paged_forward *f) {
    for (int i = 0; i < LT_PAGED_FORWARD_STATE_CALLS; i++) {
        f->state_calls[i].call = 0;
    }
}

lt_err lt_paged_forward_sync(lt_paged_forward *f) {
    const lt_err err = f->exec.backend->sync(f->exec.queue);
    f->sides[0].busy = f->sides[1].busy = false;
    free_state_calls(f);
    return err;
}

void lt_paged_forward_drop(lt_paged_forward *f) {
    lt_queue *const queues[] = {f->up, f->exec.queue, f->down};
    for (int i = 0; i < 3; i++) {
        if (queues[i] != NULL) {
            (void)f->exec.backend->sync(queues[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        f->sides[i].busy = f->sides[i].sent = false;
    }
    free_state_calls(f);
}

lt_err lt_paged_forward_turn(lt_paged_forward *f) {
    f->turn = 1 - f->turn;
    f->sides[f->turn].call = ++f->n_calls;
    LT_ASSERT(!f->sides[f->turn].sent);
    return f->sides[f->turn].busy ? lt_paged_forward_sync(f) : LT_OK;
}

/* Append n values to the metadata block, padded with `fill` to the size in the call's shape. The
 * returned tensor is the same values on the device. */
static lt_tensor put(lt_paged_forward *f, int64_t *at, const int32_t *values, int64_t n,
                     int64_t all, int32_t fill) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const lt_tensor t = lt_tensor_1d(side->meta + *at, LT_I32, all);
    int32_t *host = side->host_meta + *at;
    memcpy(host, values, (size_t)n * sizeof *values);
    for (int64_t i = n; i < all; i++) {
        host[i] = fill;
    }
    *at += all;
    return t;
}

/* Divide the padding rows among the padding sequences, as many to each as a sequence may have; the
 * last sequences may get none. */
static void pad_sequences(lt_paged_forward *f, const lt_paged_forward_rows *w) {
    const lt_paged_forward_shape *c = &f->shape;
    int32_t *q_start = lt_paged_forward_side_of_call(f)->host_meta +
                       (2 + lt_page_groups_count(&f->groups)) * c->rows,
            *kv_len = q_start + c->seqs + 1;
    for (int64_t n = w->n_seqs; n < c->seqs; n++) {
        const int64_t left = c->rows - q_start[n], rows = left < c->q_max ? left : c->q_max;
        q_start[n + 1] = (int32_t)(q_start[n] + rows);
        kv_len[n] = rows > 0 ? (int32_t)rows : 1;
    }
}

/* Page tables. Padding sequences have page 0, and read whatever it contains. */
static lt_tensor put_table(lt_paged_forward *f, int64_t *at, const lt_paged_forward_rows *w,
                           int64_t group) {
    const lt_paged_forward_shape *c = &f->shape;
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const int32_t *table = w->table + group * w->n_seqs * w->max_pages;
    int32_t *host = side->host_meta + *at;
    const lt_tensor t = lt_tensor_2d(side->meta + *at, LT_I32, c->seqs, c->max_pages);
    memset(host, 0, (size_t)(c->seqs * c->max_pages) * sizeof *host);
    for (int64_t n = 0; n < w->n_seqs; n++) {
        memcpy(host + n * c->max_pages, table + n * w->max_pages,
               (size_t)w->max_pages * sizeof *host);
    }
    *at += c->seqs * c->max_pages;
    return t;
}

/* Packs. A padding sequence is alone. */
static lt_tensor put_packs(lt_paged_forward *f, int64_t *at, int64_t n_seqs, int64_t group) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const int64_t seqs = f->shape.seqs;
    int32_t *host = side->host_meta + *at;
    const lt_tensor t = lt_tensor_2d(side->meta + *at, LT_I32, seqs, 3);
    memcpy(host, f->host_packs + group * f->o.max_seqs * 3, (size_t)(3 * n_seqs) * sizeof *host);
    for (int64_t n = n_seqs; n < seqs; n++) {
        host[3 * n] = (int32_t)n, host[3 * n + 1] = 1, host[3 * n + 2] = 0;
    }
    *at += 3 * seqs;
    return t;
}

/* Start the transfer of the metadata, in parallel with the previous call if that is still
 * running. */
static lt_err start(lt_paged_forward *f, size_t bytes) {
    const lt_exec *r = &f->exec;
    lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const bool beside = f->sides[1 - f->turn].busy;
    side->busy = true;
    LT_TRY(r->backend->upload(beside ? f->up : r->queue, side->meta, side->host_meta, bytes));
    return beside ? r->backend->order(r->queue, f->up) : LT_OK;
}

/* S (steering.h) of the rows, after the other metadata; absent if no row is steered. */
static lt_tensor put_steer(lt_paged_forward *f, int64_t *at, const lt_paged_forward_rows *w) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const int64_t K = lt_steering_columns(f->steering), align = LT_PAGED_FORWARD_STEER_ALIGN;
    lt_tensor t;
    if (w->steer == NULL) {
        return (lt_tensor){0};
    }
    LT_ASSERT(f->shape.rows == w->n_rows);
    *at = (*at + align - 1) / align * align;
    t = lt_tensor_2d(side->meta + *at, f->exec.dtype, w->n_rows, K);
    lt_steering_fill(f->steering, side->host_meta + *at, w->steer, w->steer_scale, w->n_rows);
    *at += w->n_rows * K;
    return t;
}

/* The adapter place of each row. */
static void put_places(lt_paged_forward *f, int64_t *at, const lt_paged_forward_rows *w) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const int64_t rows = f->shape.rows;
    int32_t *place = side->host_meta + *at;
    f->lora_rows.place = lt_tensor_1d(side->meta + *at, LT_I32, rows);
    *at += rows;
    for (int64_t i = 0; i < rows; i++) {
        place[i] = -1;
    }
    for (int32_t p = 0; p < lt_lora_pool_places(f->lora_rows.pool); p++) {
        for (int32_t i = w->adapter_start[p]; i < w->adapter_start[p + 1]; i++) {
            place[i] = p;
        }
    }
}

/* The adapter scale of each row. */
static void put_scales(lt_paged_forward *f, int64_t *at, const lt_paged_forward_rows *w) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const int64_t rows = f->shape.rows;
    float *scale = (float *)(side->host_meta + *at);
    f->lora_rows.scale = lt_tensor_1d(side->meta + *at, LT_F32, rows);
    *at += rows;
    for (int64_t i = 0; i < rows; i++) {
        scale[i] = i < w->n_adapted && w->adapter_scale != NULL ? w->adapter_scale[i] : 1.0f;
    }
}

/* Metadata of the adapters of rows. */
static void put_adapters(lt_paged_forward *f, int64_t *at, const lt_paged_forward_rows *w) {
    const lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    lt_lora_rows *rows = &f->lora_rows;
    const int64_t n = w->n_adapted;
    rows->n = n;
    rows->scale = (lt_tensor){0};
    if (n == 0) {
        return;
    }
    const int64_t n_start = lt_lora_pool_places(rows->pool) + 1;
    LT_ASSERT(n <= w->n_rows && w->adapter_start[n_start - 1] == n);
    if (rows->by_place || rows->dora) {
        put_places(f, at, w);
    }
    if (rows->by_place) {
        put_scales(f, at, w);
        return;
    }
    rows->start = put(f, at, w->adapter_start, n_start, n_start, 0);
    if (w->adapter_scale == NULL) {
        return;
    }
    rows->number = lt_tensor_1d(side->meta + *at, LT_I32, n);
    for (int64_t i = 0; i < n; i++) {
        side->host_meta[*at + i] = (int32_t)i;
    }
    *at += n;
    rows->scale = lt_tensor_1d(side->meta + *at, LT_F32, n);
    memcpy(side->host_meta + *at, w->adapter_scale, (size_t)n * sizeof *w->adapter_scale);
    *at += n;
}

lt_err lt_paged_forward_upload(lt_paged_forward *f, const lt_paged_forward_rows *w) {
    lt_exec *r = &f->exec;
    lt_paged_forward_side *side = lt_paged_forward_side_of_call(f);
    const lt_paged_forward_shape *c = &f->shape;
    const int64_t groups = lt_page_groups_count(&f->groups);
    int64_t at = 0;
    f->batch.tokens = put(f, &at, w->ids, w->n_rows, c->rows, 0);
    f->batch.positions = put(f, &at, w->positions, w->n_rows, c->rows, 0);
    for (int64_t g = 0; g < groups; g++) {
        f->slots[g] = put(f, &at, w->slots + g * w->n_rows, w->n_rows, c->rows, -1);
    }
    f->q_start = put(f, &at, w->q_start, w->n_seqs + 1, c->seqs + 1, 0);
    f->kv_len = put(f, &at, w->kv_len, w->n_seqs, c->seqs, 1);
    f->out_rows = put(f, &at, w->out_rows, w->n_out, c->out, 0);
    pad_sequences(f, w);
    for (int64_t g = 0; g < groups; g++) {
        f->table[g] = put_table(f, &at, w, g);
        f->packs[g] = f->shape.packed && g < f->groups.n_full ? put_packs(f, &at, w->n_seqs, g)
                                                              : (lt_tensor){0};
    }
    f->any_top = false;
    lt_paged_forward_put_picks(f, &at, w->n_choose, c->out, NULL, w->choose, LT_CHOOSE_IDLE,
                               w->how);
    f->steer = put_steer(f, &at, w);
    put_adapters(f, &at, w);
    r->positions = f->batch.positions;
    r->late = lt_tensor_1d(f->sides[1 - f->turn].chosen, LT_I32, f->o.out_rows);
    return start(f, (size_t)at * sizeof *side->meta);
}

lt_err lt_paged_forward_begin_penalties(lt_paged_forward *f, int64_t n, const int32_t *slots,
                                        const int32_t *starts, const int32_t *edits) {
    const lt_exec *r = &f->exec;
    const int64_t n_edits = starts[n], from_starts = n, from_edits = (2 * n + 2) / 2 * 2;
    lt_paged_forward_state_call *t = &f->state_calls[f->state_call];
    int32_t *host = t->host_words;
    LT_ASSERT(n > 0 && n <= f->o.max_seqs && n_edits <= lt_paged_forward_max_edits(f));
    if (t->call > f->n_waited) {
        LT_TRY(lt_paged_forward_sync(f));
    }
    memcpy(host, slots, (size_t)n * sizeof *host);
    memcpy(host + from_starts, starts, (size_t)(n + 1) * sizeof *host);
    memcpy(host + from_edits, edits, (size_t)(2 * n_edits) * sizeof *host);
    LT_TRY(r->backend->upload(r->queue, t->words, host,
                              (size_t)(from_edits + 2 * n_edits) * sizeof *host));
    t->call = f->n_calls + 1;
    f->state_call = (f->state_call + 1) % LT_PAGED_FORWARD_STATE_CALLS;
    return lt_exec_penalty_set(
        &f->exec,
        &(lt_penalty_set_args){.penalties = f->penalty_states,
                               .slots = lt_tensor_1d(t->words, LT_I32, n),
                               .starts = lt_tensor_1d(t->words + from_starts, LT_I32, n + 1),
                               .edits = lt_tensor_2d(t->words + from_edits, LT_I32, n_edits, 2)});
}
