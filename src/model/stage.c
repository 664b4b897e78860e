/* stage.c: see stage.h. Two batches stand on the device at most: the one before must be taken
 * before its staging is written again, which `order` sees to: the copies' queue waits for the
 * moment behind each take, never for the computation that follows it. */
#include "model/stage.h"

#include <string.h>

#include "base/error.h"

void lt_stage_carve(lt_stage *s, int64_t rows, lt_arena *a) {
    for (int i = 0; i < 2; i++) {
        s->device_weight[i] = lt_arena_take(a, sizeof(float), LT_ARENA_ALIGN);
    }
    for (int i = 0; i < 2 * LT_STAGE_IDS; i++) {
        s->device[i / LT_STAGE_IDS][i % LT_STAGE_IDS] = lt_arena_take(
            a, (size_t)rows * sizeof(int32_t), LT_ARENA_ALIGN);
    }
}

static void host_carve(lt_stage *s, int64_t rows, int64_t n_layers, lt_arena *a) {
    const size_t bytes = (size_t)rows * sizeof(int32_t);
    for (int i = 0; i <= LT_STAGE_SLOTS; i++) {
        lt_stage_slot *slot = &s->slots[i];
        for (int k = 0; k < LT_STAGE_IDS; k++) {
            slot->ids[k] = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
        }
        slot->loss = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
        slot->best = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
        slot->weight = lt_arena_take(a, sizeof(float), LT_ARENA_ALIGN);
        slot->aux = lt_arena_take(a, (size_t)n_layers * 2 * sizeof(float), LT_ARENA_ALIGN);
    }
}

size_t lt_stage_host_bytes(int64_t rows, int64_t n_layers) {
    lt_stage s;
    lt_arena a = {0};
    host_carve(&s, rows, n_layers, &a);
    return a.used_bytes;
}

lt_err lt_stage_open(lt_stage *s, const lt_backend *backend, int64_t rows, int64_t n_layers) {
    void *base = NULL;
    const size_t bytes = lt_stage_host_bytes(rows, n_layers);
    s->backend = backend;
    s->rows = rows;
    s->n_layers = n_layers;
    LT_TRY(backend->queue_open(&s->queue));
    LT_TRY(backend->host_alloc(&base, bytes, "batches on the host"));
    s->host = (lt_arena){.base = base, .size_bytes = bytes, .name = "batches on the host"};
    host_carve(s, rows, n_layers, &s->host);
    return LT_OK;
}

void lt_stage_close(lt_stage *s) {
    if (s->queue != NULL) {
        (void)!s->backend->sync(s->queue);
        s->backend->queue_close(s->queue);
    }
    if (s->host.base != NULL) {
        s->backend->host_release(s->host.base, s->host.size_bytes);
    }
    *s = (lt_stage){0};
}

static void fill_slot(lt_stage_slot *slot, const lt_pass_batch *b) {
    const int64_t n = b->batch * b->seq;
    const size_t bytes = (size_t)n * sizeof(int32_t);

    slot->batch = b->batch;
    slot->seq = b->seq;
    slot->has_documents = b->doc_start != NULL;
    slot->n_labels = 0;
    memcpy(slot->ids[LT_STAGE_TOKENS], b->tokens, bytes);
    memcpy(slot->ids[LT_STAGE_LABELS], b->labels, bytes);
    for (int64_t i = 0; i < n; i++) {
        slot->n_labels += b->labels[i] >= 0;
    }
    *slot->weight = (float)slot->n_labels;
    if (b->positions != NULL) {
        memcpy(slot->ids[LT_STAGE_POSITIONS], b->positions, bytes);
    }
    for (int64_t i = 0; b->positions == NULL && i < n; i++) {
        slot->ids[LT_STAGE_POSITIONS][i] = (int32_t)(i % b->seq);
    }
    if (b->doc_start != NULL) {
        memcpy(slot->ids[LT_STAGE_DOC_START], b->doc_start, bytes);
    }
}

static void *tensor_of(const lt_batch_acts *b, int k) {
    return k == LT_STAGE_TOKENS      ? b->tokens.data
           : k == LT_STAGE_LABELS    ? b->labels.data
           : k == LT_STAGE_POSITIONS ? b->positions.data
                                     : b->doc_start.data;
}

static size_t id_bytes(const lt_stage_slot *slot) {
    return (size_t)(slot->batch * slot->seq) * sizeof(int32_t);
}

static int n_fields(const lt_stage_slot *slot) {
    return slot->has_documents ? LT_STAGE_IDS : LT_STAGE_DOC_START;
}

bool lt_stage_full(const lt_stage *s) {
    return s->n_put - s->n_collected == LT_STAGE_SLOTS || s->n_put - s->n_taken == 2;
}

lt_err lt_stage_put(lt_stage *s, const lt_pass_batch *b) {
    lt_stage_slot *slot = &s->slots[s->n_put % LT_STAGE_SLOTS];
    LT_ASSERT(!lt_stage_full(s));
    LT_ASSERT(b->batch * b->seq <= s->rows);
    fill_slot(slot, b);
    for (int k = 0; k < n_fields(slot); k++) {
        LT_TRY(
            s->backend->upload(s->queue, s->device[s->n_put % 2][k], slot->ids[k], id_bytes(slot)));
    }
    if (s->n_layers > 0) {
        LT_TRY(s->backend->upload(s->queue, s->device_weight[s->n_put % 2], slot->weight,
                                  sizeof *slot->weight));
    }
    s->n_put++;
    return LT_OK;
}

const lt_stage_slot *lt_stage_next(const lt_stage *s) {
    return s->n_taken < s->n_put ? &s->slots[s->n_taken % LT_STAGE_SLOTS] : NULL;
}

lt_err lt_stage_take(lt_stage *s, lt_exec *r, const lt_batch_acts *to) {
    const lt_stage_slot *slot = lt_stage_next(s);
    LT_ASSERT(slot != NULL);
    LT_TRY(s->backend->order(r->queue, s->queue));
    for (int k = 0; k < n_fields(slot); k++) {
        LT_TRY(s->backend->copy(r->queue, tensor_of(to, k), s->device[s->n_taken % 2][k],
                                id_bytes(slot)));
    }
    if (s->n_layers > 0) {
        LT_TRY(s->backend->copy(r->queue, to->n_labels.data, s->device_weight[s->n_taken % 2],
                                sizeof *slot->weight));
    }
    s->n_taken++;
    return s->backend->order(s->queue, r->queue);
}

static lt_err fetch_slot(const lt_stage *s, const lt_stage_slot *slot, lt_exec *r,
                         const lt_batch_acts *from) {
    LT_TRY(s->backend->download(r->queue, slot->loss, from->loss_rows.data, id_bytes(slot)));
    LT_TRY(s->backend->download(r->queue, slot->best, from->best.data, id_bytes(slot)));
    return s->n_layers == 0 ? LT_OK
                            : s->backend->download(r->queue, slot->aux, from->aux.data,
                                                   (size_t)s->n_layers * 2 * sizeof *slot->aux);
}

static void add_slot(const lt_stage *s, const lt_stage_slot *slot, lt_pass_result *sum) {
    const int32_t *labels = slot->ids[LT_STAGE_LABELS];
    double loss = 0.0, aux[2] = {0.0, 0.0};
    for (int64_t i = 0; i < slot->batch * slot->seq; i++) {
        if (labels[i] >= 0) {
            loss += (double)slot->loss[i];
            sum->n_labels++;
            sum->n_correct += slot->best[i] == labels[i];
        }
    }
    for (int64_t layer = 0; layer < s->n_layers; layer++) {
        aux[0] += (double)slot->aux[2 * layer];
        aux[1] += (double)slot->aux[2 * layer + 1];
    }
    sum->loss_sum += loss;
    sum->aux_sum += aux[0];
    sum->z_sum += aux[1];
}

lt_err lt_stage_fetch(lt_stage *s, lt_exec *r, const lt_batch_acts *from) {
    LT_ASSERT(s->n_taken > s->n_collected);
    return fetch_slot(s, &s->slots[(s->n_taken - 1) % LT_STAGE_SLOTS], r, from);
}

lt_err lt_stage_collect(lt_stage *s, lt_exec *r, lt_pass_result *sum) {
    LT_TRY(s->backend->sync(r->queue));
    for (; s->n_collected < s->n_taken; s->n_collected++) {
        add_slot(s, &s->slots[s->n_collected % LT_STAGE_SLOTS], sum);
    }
    return LT_OK;
}

lt_err lt_stage_send(lt_stage *s, lt_exec *r, const lt_pass_batch *b, const lt_batch_acts *to) {
    lt_stage_slot *slot = &s->slots[LT_STAGE_SLOTS];
    fill_slot(slot, b);
    for (int k = 0; k < n_fields(slot); k++) {
        LT_TRY(s->backend->upload(r->queue, tensor_of(to, k), slot->ids[k], id_bytes(slot)));
    }
    return LT_OK;
}

lt_err lt_stage_receive(lt_stage *s, lt_exec *r, const lt_batch_acts *from, lt_pass_result *sum,
                        float *loss_rows) {
    const lt_stage_slot *slot = &s->slots[LT_STAGE_SLOTS];
    LT_TRY(fetch_slot(s, slot, r, from));
    LT_TRY(s->backend->sync(r->queue));
    add_slot(s, slot, sum);
    if (loss_rows != NULL) {
        memcpy(loss_rows, slot->loss, id_bytes(slot));
    }
    return LT_OK;
}
