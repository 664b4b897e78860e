/* stage.c: see stage.h. At most two batches are in staging on the device: a batch must be taken
 * before its staging is overwritten. `order` ensures this: the queue of copies waits until each
 * take is done, never for the computation after it. */
#include "model/pass/stage.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/pass/shared.h"
#include "model/blocks/tp.h"

/* head_rows is a multiple of this many rows: on the host, of a register tile; on a device, of a
 * tile of a product. For batches that are put, each value of head_rows needs its own graph, so
 * the multiple is larger, and there are at most DEVICE_STEPS values. */
#define HOST_STEP    ((int64_t)16)
#define DEVICE_STEP  ((int64_t)128)
#define DEVICE_STEPS 32

static size_t field_bytes(int64_t rows, int k) {
    return (size_t)(rows + (k == LT_STAGE_ORDER)) * sizeof(int32_t);
}

/* Take memory for field k of the largest batch; NULL: no batch has it. */
static int32_t *take_field(const lt_stage_options *o, int k, lt_arena *a) {
    const bool has = k == LT_STAGE_ORDER ? o->packs : k == LT_STAGE_WEIGHTS ? o->weights : true;
    return has ? lt_arena_take(a, field_bytes(o->rows, k), LT_ARENA_ALIGN) : NULL;
}

void lt_stage_carve(lt_stage *s, const lt_stage_options *o, lt_arena *a) {
    for (int i = 0; i < 2; i++) {
        s->device_labels[i] = lt_arena_take(a, sizeof(float), LT_ARENA_ALIGN);
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < LT_STAGE_FIELDS; k++) {
            s->device[i][k] = take_field(o, k, a);
        }
    }
}

/* sent: it is a slot of a set. */
static void slot_carve(lt_stage_slot *slot, const lt_stage_options *o, bool sent, lt_arena *a) {
    const size_t bytes = (size_t)o->rows * sizeof(int32_t);
    for (int k = 0; k < LT_STAGE_FIELDS; k++) {
        slot->ids[k] = take_field(o, k, a);
    }
    slot->weights = (float *)(void *)slot->ids[LT_STAGE_WEIGHTS];
    slot->loss = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    slot->best = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    slot->n_labels = lt_arena_take(a, sizeof(float), LT_ARENA_ALIGN);
    slot->aux = lt_arena_take(a, (size_t)o->n_layers * 2 * sizeof(float), LT_ARENA_ALIGN);
    slot->rows_of = lt_arena_take(a, (size_t)o->joins * sizeof(int64_t), LT_ARENA_ALIGN);
    slot->places = o->packs ? lt_arena_take(a, bytes, LT_ARENA_ALIGN) : NULL;
    slot->shared = sent && o->shares
                       ? lt_arena_take(a, (size_t)lt_shared_room(o->rows) * sizeof(int32_t),
                                       LT_ARENA_ALIGN)
                       : NULL;
}

/* set_slots: (n_sets, 2), or NULL to measure. */
static void host_carve(lt_stage_slot *slots, lt_stage_slot *set_slots, const lt_stage_options *o,
                       lt_arena *a) {
    for (int i = 0; i < LT_STAGE_SLOTS; i++) {
        slot_carve(&slots[i], o, false, a);
    }
    for (int i = 0; i < 2 * o->n_sets; i++) {
        lt_stage_slot measured = {0};
        slot_carve(set_slots != NULL ? &set_slots[i] : &measured, o, true, a);
    }
}

size_t lt_stage_host_bytes(const lt_stage_options *o) {
    lt_stage_slot slots[LT_STAGE_SLOTS] = {0};
    lt_arena a = {0};
    host_carve(slots, NULL, o, &a);
    return a.used_bytes;
}

lt_err lt_stage_open(lt_stage *s, lt_device *device, const lt_stage_options *o) {
    void *base = NULL;
    const size_t bytes = lt_stage_host_bytes(o);
    s->backend = device->backend;
    s->options = *o;
    s->set_slots = calloc(2 * (size_t)o->n_sets, sizeof *s->set_slots);
    s->turns = calloc((size_t)o->n_sets, sizeof *s->turns);
    if (s->set_slots == NULL || s->turns == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d sets of activations", o->n_sets);
    }
    LT_TRY(s->backend->queue_open(device, &s->queue));
    for (int i = 0; s->backend->moment_open != NULL && i < 2 * o->n_sets; i++) {
        LT_TRY(s->backend->moment_open(device, &s->set_slots[i].sent, false));
    }
    LT_TRY(s->backend->host_alloc(device, &base, bytes, "batches on the host"));
    s->host = (lt_arena){.base = base, .size_bytes = bytes, .name = "batches on the host"};
    host_carve(s->slots, s->set_slots, o, &s->host);
    return LT_OK;
}

void lt_stage_close(lt_stage *s) {
    lt_device *device = lt_queue_device(s->queue);
    if (s->queue != NULL) {
        (void)!s->backend->sync(s->queue);
        s->backend->queue_close(s->queue);
    }
    if (s->host.base != NULL) {
        s->backend->host_release(device, s->host.base, s->host.size_bytes);
    }
    for (int i = 0; s->set_slots != NULL && device != NULL && i < 2 * s->options.n_sets; i++) {
        if (s->set_slots[i].sent != NULL) {
            s->backend->moment_close(device, s->set_slots[i].sent);
        }
    }
    free(s->set_slots);
    free(s->turns);
    *s = (lt_stage){0};
}

static double weight_of(const lt_stage_slot *slot, int64_t i) {
    return slot->has_weights ? (double)slot->weights[i] : 1.0;
}

static int64_t rows_of(const lt_stage_slot *slot) {
    return slot->batch * slot->seq;
}

static size_t id_bytes(const lt_stage_slot *slot) {
    return (size_t)rows_of(slot) * sizeof(int32_t);
}

static int64_t tokens_of(const lt_stage_slot *slot) {
    return slot->given_batch * slot->given_seq;
}

static bool is_packed(const lt_stage_slot *slot) {
    return slot->head_rows < rows_of(slot);
}

static int64_t round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}

/* Number of rows for which the head runs in a batch of n rows, of which `counted` have a label
 * that counts. */
static int64_t head_rows_of(const lt_stage *s, int64_t n, int64_t counted, bool has_graph) {
    const int64_t even = has_graph ? n / DEVICE_STEPS : 0,
                  step = !s->options.on_device ? HOST_STEP : (even / DEVICE_STEP + 1) * DEVICE_STEP,
                  rows = round_up(counted, step);
    return s->options.packs && !s->in_order && rows < n ? rows : n;
}

/* Plan the sharing of rows of a batch that is sent; returns their number, 0: none is shared. */
static int64_t share(const lt_stage *s, lt_stage_slot *slot, const lt_pass_batch *b) {
    const int n_tp = s->options.n_tp;
    int64_t rows;
    if (slot->shared == NULL || s->in_order || b->positions != NULL || b->doc_start != NULL) {
        return 0;
    }
    rows = lt_shared_plan(slot->shared, b, s->options.on_device ? DEVICE_STEP : HOST_STEP);
    return lt_tp_run_of(rows, n_tp, n_tp - 1).count > 0 ? rows : 0;
}

static lt_shared_tables tables_of(const lt_stage_slot *slot) {
    return lt_shared_tables_in(slot->shared, tokens_of(slot), rows_of(slot));
}

/* The token of each row; for shared rows the first one, or -1. NULL: row i has token i. */
static const int32_t *tokens_of_rows(const lt_stage_slot *slot) {
    return slot->shares ? tables_of(slot).place : NULL;
}

/* The token of the batch whose label, weight and loss are stored at each place, or -1. NULL: place
 * i has token i. */
static const int32_t *tokens_of_places(const lt_stage_slot *slot) {
    return is_packed(slot) ? slot->places : tokens_of_rows(slot);
}

static int64_t token_of(const int32_t *tokens, int64_t i) {
    return tokens != NULL ? tokens[i] : i;
}

/* The order of a packed batch: rows that count, and then the others. */
static void pack(lt_stage_slot *slot, const lt_pass_batch *b) {
    const int64_t n = rows_of(slot);
    const int32_t *const of_rows = tokens_of_rows(slot);
    int32_t *order = slot->ids[LT_STAGE_ORDER];
    int64_t at = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t token = token_of(of_rows, i);
            if ((token >= 0 && b->labels[token] >= 0) == (pass == 0)) {
                order[at] = (int32_t)i;
                slot->places[at++] = (int32_t)token;
            }
        }
    }
    order[n] = (int32_t)slot->head_rows;
}

/* Write labels and weights in the device's order. */
static void fill_labels(lt_stage_slot *slot, const lt_pass_batch *b) {
    const int32_t *const tokens = tokens_of_places(slot);
    const size_t bytes = id_bytes(slot);
    if (tokens == NULL) {
        memcpy(slot->ids[LT_STAGE_LABELS], b->labels, bytes);
        if (slot->has_weights) {
            memcpy(slot->weights, b->weights, bytes);
        }
        return;
    }
    for (int64_t i = 0; i < rows_of(slot); i++) {
        slot->ids[LT_STAGE_LABELS][i] = tokens[i] >= 0 ? b->labels[tokens[i]] : -1;
        if (slot->has_weights) {
            slot->weights[i] = tokens[i] >= 0 ? b->weights[tokens[i]] : 0.0f;
        }
    }
}

/* Write tokens and their positions. */
static void fill_tokens(lt_stage_slot *slot, const lt_pass_batch *b) {
    const int32_t *const tokens = tokens_of_rows(slot);
    int32_t *const ids = slot->ids[LT_STAGE_TOKENS], *const at = slot->ids[LT_STAGE_POSITIONS];
    if (tokens == NULL) {
        memcpy(ids, b->tokens, id_bytes(slot));
    }
    if (b->positions != NULL) { /* Batches with positions are not shared. */
        memcpy(at, b->positions, id_bytes(slot));
    }
    for (int64_t i = 0; tokens != NULL && i < rows_of(slot); i++) {
        ids[i] = tokens[i] >= 0 ? b->tokens[tokens[i]] : 0;
    }
    for (int64_t i = 0; b->positions == NULL && i < rows_of(slot); i++) {
        const int64_t token = token_of(tokens, i);
        at[i] = token >= 0 ? (int32_t)(token % b->seq) : 0;
    }
}

/* has_graph: the batch is put, not sent. */
static void fill_slot(const lt_stage *s, lt_stage_slot *slot, const lt_pass_batch *b,
                      bool has_graph) {
    const int64_t n = b->batch * b->seq, joins = s->options.joins;
    int64_t n_counted = 0, n_shared;
    const size_t bytes = (size_t)n * sizeof(int32_t);
    double counted = 0.0;

    slot->given_batch = b->batch;
    slot->given_seq = b->seq;
    slot->has_documents = b->doc_start != NULL;
    if (joins > 0) {
        memcpy(slot->rows_of, b->rows_of, (size_t)joins * sizeof *b->rows_of);
    }
    slot->has_weights = b->weights != NULL;
    slot->first_row = b->first_row;
    slot->row_step = b->row_step;
    for (int64_t i = 0; i < n; i++) {
        const double weight = b->weights != NULL ? (double)b->weights[i] : 1.0;
        counted += b->labels[i] >= 0 ? weight : 0.0;
        n_counted += b->labels[i] >= 0;
    }
    *slot->n_labels = (float)counted;
    n_shared = share(s, slot, b);
    slot->shares = n_shared > 0;
    slot->batch = slot->shares ? 1 : b->batch;
    slot->seq = slot->shares ? n_shared : b->seq;
    slot->needed = slot->shares ? tables_of(slot).start[n_shared] : n;
    slot->head_rows = head_rows_of(s, rows_of(slot), n_counted, has_graph);
    fill_tokens(slot, b);
    if (is_packed(slot)) {
        pack(slot, b);
    }
    fill_labels(slot, b);
    if (b->doc_start != NULL) {
        memcpy(slot->ids[LT_STAGE_DOC_START], b->doc_start, bytes);
    }
}

static void *tensor_of(const lt_batch_acts *b, int k) {
    return k == LT_STAGE_TOKENS      ? b->tokens.data
           : k == LT_STAGE_LABELS    ? b->labels.data
           : k == LT_STAGE_POSITIONS ? b->positions.data
           : k == LT_STAGE_DOC_START ? b->doc_start.data
           : k == LT_STAGE_ORDER     ? b->order.data
                                     : b->weights.data;
}

static bool has_field(const lt_stage_slot *slot, int k) {
    return k == LT_STAGE_DOC_START ? slot->has_documents
           : k == LT_STAGE_ORDER   ? is_packed(slot)
           : k == LT_STAGE_WEIGHTS ? slot->has_weights
                                   : true;
}

bool lt_stage_full(const lt_stage *s) {
    return s->n_put - s->n_collected == LT_STAGE_SLOTS || s->n_put - s->n_taken == 2;
}

lt_err lt_stage_put(lt_stage *s, const lt_pass_batch *b) {
    lt_stage_slot *slot = &s->slots[s->n_put % LT_STAGE_SLOTS];
    LT_ASSERT(!lt_stage_full(s));
    LT_ASSERT(b->batch * b->seq <= s->options.rows);
    fill_slot(s, slot, b, true);
    for (int k = 0; k < LT_STAGE_FIELDS; k++) {
        if (has_field(slot, k)) {
            LT_TRY(s->backend->upload(s->queue, s->device[s->n_put % 2][k], slot->ids[k],
                                      field_bytes(rows_of(slot), k)));
        }
    }
    if (s->options.n_layers > 0) {
        LT_TRY(s->backend->upload(s->queue, s->device_labels[s->n_put % 2], slot->n_labels,
                                  sizeof *slot->n_labels));
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
    for (int k = 0; k < LT_STAGE_FIELDS; k++) {
        if (has_field(slot, k)) {
            LT_TRY(s->backend->copy(r->queue, tensor_of(to, k), s->device[s->n_taken % 2][k],
                                    field_bytes(rows_of(slot), k)));
        }
    }
    if (s->options.n_layers > 0) {
        LT_TRY(s->backend->copy(r->queue, to->n_labels.data, s->device_labels[s->n_taken % 2],
                                sizeof *slot->n_labels));
    }
    s->n_taken++;
    return s->backend->order(s->queue, r->queue);
}

static lt_err fetch_slot(const lt_stage *s, const lt_stage_slot *slot, lt_exec *r,
                         const lt_batch_acts *from) {
    if (s->options.loss) {
        LT_TRY(s->backend->download(r->queue, slot->loss, from->loss_rows.data, id_bytes(slot)));
        LT_TRY(s->backend->download(r->queue, slot->best, from->best.data, id_bytes(slot)));
    }
    return s->options.n_layers == 0
               ? LT_OK
               : s->backend->download(r->queue, slot->aux,
                                      (const float *)from->aux.data + 2 * s->options.first_layer,
                                      (size_t)s->options.n_layers * 2 * sizeof *slot->aux);
}

/* Add the results of rows [first, first + n) of a batch. */
static void add_rows(const lt_stage *s, const lt_stage_slot *slot, int64_t first, int64_t n,
                     lt_pass_result *sum) {
    const int32_t *labels = slot->ids[LT_STAGE_LABELS];
    double loss = 0.0;
    for (int64_t i = first * slot->seq; s->options.loss && i < (first + n) * slot->seq; i++) {
        if (labels[i] >= 0) {
            loss += weight_of(slot, i) * (double)slot->loss[i];
            sum->weight_sum += weight_of(slot, i);
            sum->n_labels++;
            sum->n_correct += slot->best[i] == labels[i];
        }
    }
    sum->loss_sum += loss;
}

static void add_slot(const lt_stage *s, const lt_stage_slot *slot, lt_pass_result *sum) {
    double aux[2] = {0.0, 0.0};
    add_rows(s, slot, 0, slot->batch, sum);
    for (int64_t layer = 0; layer < s->options.n_layers; layer++) {
        if (lt_model_layer(s->options.spec, s->options.first_layer + layer).n_experts == 0) {
            continue; /* The head did not run for this row. */
        }
        aux[0] += (double)slot->aux[2 * layer];
        aux[1] += (double)slot->aux[2 * layer + 1];
    }
    sum->aux_sum += aux[0];
    sum->z_sum += aux[1];
}

static void add_each(const lt_stage *s, const lt_stage_slot *slot, lt_pass_result *sums) {
    int64_t at = 0;
    for (int i = 0; i < s->options.joins; i++) {
        add_rows(s, slot, at, slot->rows_of[i], &sums[i]);
        at += slot->rows_of[i];
    }
}

lt_err lt_stage_fetch(lt_stage *s, lt_exec *r, const lt_batch_acts *from) {
    LT_ASSERT(s->n_taken > s->n_collected);
    return fetch_slot(s, &s->slots[(s->n_taken - 1) % LT_STAGE_SLOTS], r, from);
}

lt_err lt_stage_collect(lt_stage *s, lt_exec *r, lt_pass_result *sum) {
    LT_TRY(s->backend->sync(r->queue));
    for (; s->n_collected < s->n_taken; s->n_collected++) {
        const lt_stage_slot *slot = &s->slots[s->n_collected % LT_STAGE_SLOTS];
        if (s->options.joins > 0) {
            add_each(s, slot, sum);
        } else {
            add_slot(s, slot, sum);
        }
    }
    return LT_OK;
}

static lt_stage_slot *slot_of(const lt_stage *s, int set) {
    return &s->set_slots[2 * set + s->turns[set]];
}

/* Wait until the device has read what was sent from the slot, before the host writes to it. */
static lt_err wait_for_sent(const lt_stage *s, lt_exec *r, lt_stage_slot *slot) {
    if (slot->is_sent && slot->sent != NULL) {
        LT_TRY(s->backend->moment_reach(r->device, slot->sent));
    }
    slot->is_sent = false;
    return LT_OK;
}

static lt_err mark_sent(const lt_stage *s, lt_exec *r, lt_stage_slot *slot) {
    slot->is_sent = true;
    return slot->sent != NULL ? s->backend->moment_mark(r->queue, slot->sent) : LT_OK;
}

lt_err lt_stage_fill(lt_stage *s, lt_exec *r, int set, const lt_pass_batch *b,
                     const lt_stage_slot **slot) {
    s->turns[set] ^= 1;
    lt_stage_slot *next = slot_of(s, set);
    LT_ASSERT(!next->fetched);
    LT_TRY(wait_for_sent(s, r, next));
    fill_slot(s, next, b, false);
    *slot = next;
    return LT_OK;
}

lt_err lt_stage_send(lt_stage *s, lt_exec *r, int set, const lt_batch_acts *to) {
    lt_stage_slot *slot = slot_of(s, set);
    for (int k = 0; k < LT_STAGE_FIELDS; k++) {
        if (has_field(slot, k)) {
            LT_TRY(s->backend->upload(r->queue, tensor_of(to, k), slot->ids[k],
                                      field_bytes(rows_of(slot), k)));
        }
    }
    if (slot->shares) {
        const int64_t n = lt_shared_elements(tokens_of(slot), rows_of(slot));
        LT_TRY(s->backend->upload(r->queue, to->shared.data, slot->shared,
                                  (size_t)n * sizeof *slot->shared));
    }
    if (s->options.n_layers > 0) {
        LT_TRY(s->backend->upload(r->queue, to->n_labels.data, slot->n_labels,
                                  sizeof *slot->n_labels));
    }
    return mark_sent(s, r, slot);
}

const int32_t *lt_stage_labels(const lt_stage *s, int set) {
    return slot_of(s, set)->ids[LT_STAGE_LABELS];
}

int64_t lt_stage_tokens(const lt_stage *s, int set) {
    return tokens_of(slot_of(s, set));
}

int64_t lt_stage_seq(const lt_stage *s, int set) {
    return slot_of(s, set)->given_seq;
}

const int64_t *lt_stage_rows_of(const lt_stage *s, int set) {
    return slot_of(s, set)->rows_of;
}

lt_err lt_stage_send_weights(lt_stage *s, lt_exec *r, int set, const float *weights, float factor,
                             const lt_batch_acts *to) {
    lt_stage_slot *slot = slot_of(s, set);
    const int32_t *const tokens = tokens_of_places(slot);
    LT_ASSERT(s->options.weights);
    LT_TRY(wait_for_sent(s, r, slot));
    for (int64_t i = 0; i < rows_of(slot); i++) {
        const int64_t token = token_of(tokens, i);
        slot->weights[i] = token >= 0 ? factor * weights[token] : 0.0f;
    }
    LT_TRY(s->backend->upload(r->queue, to->weights.data, slot->weights, id_bytes(slot)));
    return mark_sent(s, r, slot);
}

lt_err lt_stage_fetch_set(lt_stage *s, lt_exec *r, int set, const lt_batch_acts *from,
                          lt_stage_slot **slot) {
    *slot = slot_of(s, set);
    (*slot)->fetched = true;
    return fetch_slot(s, *slot, r, from);
}

void lt_stage_add_set(const lt_stage *s, lt_stage_slot *slot, lt_pass_result *sum) {
    LT_ASSERT(slot->fetched);
    slot->fetched = false;
    add_slot(s, slot, sum);
}

void lt_stage_add_each(const lt_stage *s, lt_stage_slot *slot, lt_pass_result *sums) {
    LT_ASSERT(slot->fetched);
    slot->fetched = false;
    add_each(s, slot, sums);
}

lt_err lt_stage_receive(lt_stage *s, lt_exec *r, int set, const lt_batch_acts *from,
                        lt_pass_result *sum, float *losses) {
    lt_stage_slot *slot;
    LT_TRY(lt_stage_fetch_set(s, r, set, from, &slot));
    LT_TRY(s->backend->sync(r->queue));
    lt_stage_add_set(s, slot, sum);
    if (losses == NULL) {
        return LT_OK;
    }
    memset(losses, 0, (size_t)tokens_of(slot) * sizeof *losses);
    const int32_t *const tokens = tokens_of_places(slot);
    for (int64_t i = 0; i < slot->head_rows; i++) {
        const int64_t token = token_of(tokens, i);
        if (token >= 0) {
            losses[token] = slot->loss[i];
        }
    }
    return LT_OK;
}
