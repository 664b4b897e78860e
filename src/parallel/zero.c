/* zero.c: see zero.h. On GPUs the queue of the passes, and not the host, waits for transfers. */
#include "parallel/zero.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/pass/acts.h"
#include "model/blocks/exec.h"
#include "model/files/stored_weights.h"
#include "parallel/gradients.h"
#include "tensor/ops.h"

/* ---- Rooms ---- */

/* The room of a unit: embeddings and head each have one, and layers alternate between two. */
static int room_of(const lt_param_table *t, int unit) {
    return unit == 0 ? 0 : unit == t->n_units - 1 ? 1 : 2 + unit % 2;
}

/* Elements that room `room` needs. */
static int64_t room_elements(const lt_param_table *t, int room) {
    int64_t most = 0;
    for (int u = 0; u < t->n_units; u++) {
        const int64_t n = t->units[u].n_elements;
        most = room_of(t, u) == room && n > most ? n : most;
    }
    return most;
}

static void carve_rooms(lt_zero_room rooms[LT_ZERO_ROOMS], const lt_param_table *t, lt_dtype dtype,
                        lt_arena *a) {
    for (int i = 0; i < LT_ZERO_ROOMS; i++) {
        const size_t bytes = (size_t)room_elements(t, i) * lt_dtype_bytes(dtype);
        rooms[i] = (lt_zero_room){.data = lt_arena_take(a, bytes, LT_ARENA_ALIGN), .unit = -1};
    }
}

static void carve_gradients(lt_zero *z, const lt_shards *s, lt_arena *a) {
    if (s->level < 2) {
        return;
    }
    carve_rooms(z->gradient_rooms, &s->full, LT_F32, a);
    for (int u = 0; u < s->full.n_units; u++) {
        void *base = lt_arena_take(a, (size_t)lt_shards_size(s, u) * sizeof(float), LT_ARENA_ALIGN);
        if (z->gradients.base != NULL) {
            z->gradients.base[u] = lt_shards_size(s, u) > 0 ? base : NULL;
        }
    }
}

static void carve_blocks(lt_zero_room rooms[LT_ZERO_ROOMS], const lt_shards *s, lt_arena *a) {
    for (int i = 0; i < LT_ZERO_ROOMS; i++) {
        size_t most = 0;
        for (int u = 0; u < s->full.n_units; u++) {
            const bool larger = room_of(&s->full, u) == i && s->block_bytes[u] > most;
            most = larger ? s->block_bytes[u] : most;
        }
        rooms[i].blocks = lt_arena_take(a, most, LT_ARENA_ALIGN);
    }
}

static void carve_weights(lt_zero *z, const lt_shards *s, lt_dtype dtype, lt_arena *a) {
    const lt_shards *coming = lt_shards_of_weights(s);
    if (coming == NULL || s->beside) {
        return;
    }
    carve_rooms(z->weight_rooms, &coming->full, dtype, a);
    if (coming->block_bytes != NULL) {
        carve_blocks(z->weight_rooms, coming, a);
    }
}

void lt_zero_measure(lt_zero_memory *out, const lt_shards *s, lt_dtype dtype) {
    lt_zero z = {0};
    lt_arena gradients = {0}, weights = {0};
    carve_gradients(&z, s, &gradients);
    carve_weights(&z, s, dtype, &weights);
    *out = (lt_zero_memory){gradients.used_bytes, weights.used_bytes};
}

/* ---- Waiting ---- */

/* The ranks that keep the slices, for transfers between the passes' buffers. */
static lt_group *slice_ranks(const lt_zero *z) {
    return lt_world_twin(z->shards->world, z->shards->ranks);
}

static lt_err wait_for(lt_zero *z, lt_comm_work *work) {
    const lt_comm_work number = *work;
    *work = 0;
    return number != 0 ? lt_comm_order(lt_world_buffers(z->shards->world), number,
                                       lt_pass_queue(z->passes[0]))
                       : LT_OK;
}

/* ---- Gradients ---- */

/* The pass of a layer's gradients: either there is only one, or each layer belongs to one chunk. */
static lt_pass *pass_of(const lt_zero *z, int unit) {
    int i = z->n_passes - 1;
    while (i > 0 && !lt_pass_has_unit(z->passes[i], unit)) {
        i--;
    }
    return z->passes[i];
}

/* The gradients of a unit in the pass that uses its room. */
static const lt_param_buffer *gradients_of(const lt_zero *z, int unit) {
    const lt_pass *pass = z->gradient_rooms[room_of(&z->model->table, unit)].pass;
    return z->shards->level < 2 ? z->whole
           : z->joined >= 0     ? lt_pass_gradients_of(pass, z->joined)
                                : lt_pass_gradients(pass);
}

/* Whether the batch whose backward pass runs makes gradients of the unit. */
static bool has_rows(const lt_zero *z, int unit) {
    return z->joined < 0 || lt_pass_has_rows_of(pass_of(z, unit), z->joined);
}

static bool is_held(const lt_zero *z, int unit) {
    return z->model->table.units[unit].n_elements > 0;
}

/* If a sum of a batch's gradients is queued, wait for it and add its slice to the step's. */
static lt_err finish_room(lt_zero *z, lt_zero_room *room) {
    const lt_shards *s = z->shards;
    const lt_backend *be = z->model->backend;
    lt_queue *q = lt_pass_queue(z->passes[0]);
    const int unit = room->unit;
    if (room->work == 0) {
        return LT_OK;
    }
    LT_TRY(wait_for(z, &room->work));
    const int64_t size = lt_shards_size(s, unit);
    float *from = room->data + s->own * size, *to = z->gradients.base[unit];
    const lt_tensor sum = lt_tensor_1d(to, LT_F32, size);
    const lt_add_args add = {
        .y = sum, .a = sum, .b = lt_tensor_1d(from, LT_F32, size), .alpha = 1.0f, .beta = 1.0f};
    const bool first = !z->summed[unit];
    z->summed[unit] = true;
    return first ? be->copy(q, to, from, (size_t)size * sizeof *to) : be->ops->add(q, &add);
}

static lt_err give_memory(const lt_zero *z, lt_pass *pass, int unit, float *base, bool clear) {
    if (z->joined >= 0) {
        lt_pass_bring_gradients_of(pass, z->joined, unit, base);
        return LT_OK;
    }
    return lt_pass_bring_gradients(pass, unit, base, clear);
}

static lt_err bring_gradients(lt_zero *z, lt_pass *pass, int unit, bool clear) {
    lt_zero_room *room = &z->gradient_rooms[room_of(&z->model->table, unit)];
    LT_TRY(finish_room(z, room));
    if (room->unit >= 0 && room->unit != unit) {
        LT_TRY(give_memory(z, room->pass, room->unit, NULL, false));
    }
    room->unit = unit;
    room->pass = pass;
    return give_memory(z, pass, unit, room->data, clear);
}

/* base: all gradients of the unit; their slices are summed, this rank's slice in place. */
static lt_err scatter_sum(lt_zero *z, int unit, float *base, lt_comm_work *last) {
    const lt_shards *s = z->shards;
    const int64_t size = lt_shards_size(s, unit);
    LT_TRY(lt_gradients_sum_copies(s->world, &z->model->table, gradients_of(z, unit), unit,
                                   s->level < 2, last));
    return lt_reduce_scatter(slice_ranks(z), base + s->own * size, base, size, LT_F32,
                             LT_REDUCE_SUM, last);
}

/* Sum elements [first, end) of the slice, which other ranks keep too. */
static lt_err sum_run(lt_zero *z, const float *first, const float *end, lt_comm_work *last) {
    const lt_shards *s = z->shards;
    float *data = (float *)(uintptr_t)first;
    return first == end ? LT_OK
                        : lt_all_reduce(lt_world_twin(s->world, s->replicas), data, data,
                                        end - first, LT_F32, LT_REDUCE_SUM, last);
}

/* Do this for all parameters of the slice but experts, with neighbouring ones in one call. */
static lt_err sum_all_but_experts(lt_zero *z, int unit, lt_comm_work *last) {
    const lt_param_table *t = &z->trained->table;
    const lt_unit *u = &t->units[unit];
    const float *first = NULL, *end = NULL;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const lt_param *p = &t->params[i];
        const float *data = lt_param_data(lt_zero_gradients(z), p);
        if (data != NULL && lt_layout_expert(&z->shards->world->layout, p)) {
            LT_TRY(sum_run(z, first, end, last));
            first = end = NULL;
        } else if (data != NULL) {
            first = first != NULL ? first : data;
            end = data + p->local_count;
        }
    }
    return sum_run(z, first, end, last);
}

/* Sum over the ranks that keep the same slice. */
static lt_err sum_replicas(lt_zero *z, int unit, lt_comm_work *last) {
    const lt_shards *s = z->shards;
    float *slice = lt_zero_gradients(z)->base[unit];
    if (s->replicas == NULL || slice == NULL) {
        return LT_OK;
    }
    if (s->world->shape.ep > 1) {
        return sum_all_but_experts(z, unit, last);
    }
    return lt_all_reduce(lt_world_twin(s->world, s->replicas), slice, slice,
                         lt_shards_size(s, unit), LT_F32, LT_REDUCE_SUM, last);
}

/* Levels 0 and 1: queue the sum of a unit whose gradients are complete. */
static lt_err sum_unit(lt_zero *z, int unit) {
    const lt_shards *s = z->shards;
    if (s->level == 0) {
        return lt_gradients_sum_unit(s->world, &z->model->table, z->whole, unit, &z->last_sum);
    }
    LT_TRY(scatter_sum(z, unit, z->whole->base[unit], &z->last_sum));
    return sum_replicas(z, unit, &z->last_sum);
}

/* Does the other end of the pipeline hold the same embedding? Then its sum is queued when the
 * step's backward passes are done: collectives run in the order of their calls, and this one waits
 * for the first stage, which waits for the last one's ranks of tp. Or does this rank have both ends
 * of a V-shaped pipeline? They are in two passes, and added when the last batch is done. Of
 * adapters, the embedding and a tied head have one each, which no sum over stages joins. */
static bool waits_for_stages(const lt_zero *z, int unit) {
    const lt_layout *l = &z->shards->world->layout;
    const bool both = z->n_passes > 1 && l->spec->tied && l->embeds && l->heads;
    return unit == 0 && z->lora == NULL && (both || z->shards->world->stages != NULL);
}

/* Queue the sums of the unit that waits, if there is one. */
static lt_err sum_waiting(lt_zero *z) {
    const int unit = z->waiting;
    z->waiting = -1;
    return unit >= 0 ? sum_unit(z, unit) : LT_OK;
}

static lt_err sum_all_waiting(void *first) {
    for (lt_zero *z = first; z != NULL; z = z->next) {
        LT_TRY(sum_waiting(z));
    }
    return LT_OK;
}

static lt_err leave_gradients(lt_zero *z, int unit) {
    const lt_shards *s = z->shards;
    if (!is_held(z, unit)) {
        return LT_OK;
    }
    if (s->level >= 2 && !has_rows(z, unit)) {
        return LT_OK;
    }
    if (s->level >= 2) {
        lt_zero_room *room = &z->gradient_rooms[room_of(&z->model->table, unit)];
        LT_ASSERT(room->unit == unit && gradients_of(z, unit)->base[unit] == room->data);
        return scatter_sum(z, unit, room->data, &room->work);
    }
    if (++z->left[unit] != z->n_batches || waits_for_stages(z, unit)) {
        return LT_OK;
    }
    LT_TRY(sum_waiting(z));
    z->waiting = unit;
    return z->shards->world->shape.tp > 1 ? LT_OK : sum_waiting(z);
}

void lt_zero_begin_step(lt_zero *z, int64_t n_batches) {
    const size_t n_units = (size_t)z->model->table.n_units;
    z->n_batches = n_batches;
    memset(z->summed, 0, n_units * sizeof *z->summed);
    memset(z->left, 0, n_units * sizeof *z->left);
}

lt_err lt_zero_drop(lt_zero *first) {
    for (lt_zero *z = first; z != NULL; z = z->next) {
        LT_ASSERT(z->shards->level >= 2);
        for (int i = 0; i < LT_ZERO_ROOMS; i++) {
            LT_TRY(wait_for(z, &z->gradient_rooms[i].work));
        }
        lt_zero_begin_step(z, z->n_batches);
    }
    return LT_OK;
}

lt_err lt_zero_sum_step(lt_zero *z) {
    LT_ASSERT(z->shards->level < 2 && z->n_batches == INT64_MAX);
    for (int u = 0; u < z->model->table.n_units; u++) {
        LT_TRY(is_held(z, u) && !waits_for_stages(z, u) ? sum_unit(z, u) : LT_OK);
    }
    return LT_OK;
}

static lt_err begin_batch(lt_zero *z, lt_pass *p) {
    const int ends[] = {0, z->model->table.n_units - 1};
    /* A room whose gradients are still being sent must not be zeroed. */
    for (int i = 2; i < LT_ZERO_ROOMS; i++) {
        const lt_zero_room *room = &z->gradient_rooms[i];
        LT_TRY(room->unit >= 0 ? give_memory(z, room->pass, room->unit, NULL, false) : LT_OK);
    }
    for (int i = 0; i < 2; i++) {
        const bool has = is_held(z, ends[i]) && lt_pass_has_unit(p, ends[i]);
        LT_TRY(has ? bring_gradients(z, p, ends[i], false) : LT_OK);
    }
    return LT_OK;
}

lt_err lt_zero_begin_batch(lt_zero *first, int pass) {
    lt_pass *p = first->passes[pass];
    if (first->shards->level < 2) {
        return LT_OK;
    }
    for (lt_zero *z = first; z != NULL; z = z->next) {
        LT_TRY(begin_batch(z, p));
    }
    return lt_pass_zero_gradients(p);
}

/* Level 2 and above: sum the slices of a tied embedding, which both of its stages keep. */
static lt_err sum_stages(lt_zero *z) {
    const lt_shards *s = z->shards;
    lt_group *stages = s->world->stages;
    float *slice = z->gradients.base[0];
    return stages == NULL || !is_held(z, 0) || z->lora != NULL
               ? LT_OK
               : lt_all_reduce(lt_world_twin(s->world, stages), slice, slice, lt_shards_size(s, 0),
                               LT_F32, LT_REDUCE_SUM, &z->last_sum);
}

lt_err lt_zero_end_step(lt_zero *z) {
    if (z->shards->level < 2) {
        LT_TRY(sum_waiting(z));
        LT_TRY(waits_for_stages(z, 0) && is_held(z, 0) ? sum_unit(z, 0) : LT_OK);
        return wait_for(z, &z->last_sum);
    }
    for (int i = 0; i < LT_ZERO_ROOMS; i++) {
        LT_TRY(finish_room(z, &z->gradient_rooms[i]));
    }
    LT_TRY(sum_stages(z));
    for (int u = 0; u < z->model->table.n_units; u++) {
        LT_TRY(sum_replicas(z, u, &z->last_sum));
    }
    return wait_for(z, &z->last_sum);
}

const lt_param_buffer *lt_zero_gradients(const lt_zero *z) {
    return z->shards->level == 0 ? z->whole : &z->gradients;
}

/* ---- Weights ---- */

static void place_weights(lt_zero *z, int unit, void *base, unsigned char *blocks) {
    lt_model *m = z->coming.model;
    m->weights.base[unit] = base;
    if (m->weights.dtype == LT_F32) {
        m->master.base[unit] = base;
    }
    if (m->slices != NULL) {
        lt_stored_slices_use(m, unit, blocks);
    }
}

static lt_err gather(lt_zero *z, const lt_shards *s, const lt_model *from, int unit, void *dst,
                     lt_comm_work *work) {
    return lt_all_gather(slice_ranks(z), dst, from->weights.base[unit], lt_shards_size(s, unit),
                         from->weights.dtype, work);
}

static lt_err gather_coming(lt_zero *z, int unit, void *dst, lt_comm_work *work) {
    return gather(z, z->coming.shards, z->coming.kept, unit, dst, work);
}

/* Gather the matrices that are kept in blocks. */
static lt_err gather_blocks(lt_zero *z, int unit, unsigned char *dst, lt_comm_work *work) {
    const lt_stored_slices *s = z->coming.model->slices;
    return s == NULL || s->bytes[unit] == 0
               ? LT_OK
               : lt_all_gather(slice_ranks(z), dst, s->base[unit],
                               (int64_t)(s->bytes[unit] / sizeof(int32_t)), LT_I32, work);
}

/* Whether this rank gathers the unit's weights when they are used. */
static bool comes(const lt_zero *z, int unit) {
    return z->coming.model->table.units[unit].n_elements > 0;
}

/* Begin to gather a unit into its room, unless it is already there. False: the room is in use. */
static lt_err begin_room(lt_zero *z, int unit, bool *begun) {
    lt_zero_room *room = &z->weight_rooms[room_of(&z->coming.model->table, unit)];
    *begun = room->unit == unit || !room->in_use;
    if (room->unit == unit || room->in_use) {
        return LT_OK;
    }
    LT_TRY(wait_for(z, &room->work)); /* Wait for a unit that was gathered but not used. */
    if (room->unit >= 0) {
        place_weights(z, room->unit, NULL, NULL);
    }
    room->unit = unit;
    place_weights(z, unit, room->data, room->blocks);
    LT_TRY(gather_coming(z, unit, room->data, &room->work));
    return gather_blocks(z, unit, room->blocks, &room->work);
}

/* Gather the unit, and begin to gather the next one: the unit above in a forward pass, the one
 * below in a backward pass. */
static lt_err bring_weights(lt_zero *z, int unit, bool backward) {
    const lt_param_table *t = &z->coming.model->table;
    lt_zero_room *room = &z->weight_rooms[room_of(t, unit)];
    const int next = backward ? unit - 1 : unit + 1;
    bool begun;
    LT_TRY(begin_room(z, unit, &begun));
    LT_ASSERT(begun);
    LT_TRY(wait_for(z, &room->work));
    room->in_use = true;
    if (next >= (backward ? 1 : 0) && next < t->n_units && comes(z, next)) {
        LT_TRY(begin_room(z, next, &begun));
    }
    return LT_OK;
}

static lt_err enter_one(lt_zero *z, int unit, unsigned what) {
    const int level = z->shards->level;
    const bool weights = (what & LT_UNIT_WEIGHTS) != 0, gradients = (what & LT_UNIT_GRADIENTS) != 0;
    const int head = z->model->table.n_units - 1;
    if (weights && level > 0) {
        LT_TRY(wait_for(z, &z->gathers[unit]));
    }
    if (weights && z->coming.shards != NULL) {
        LT_TRY(bring_weights(z, unit, gradients));
    }
    LT_TRY(weights && level > 0 ? lt_pass_derive(pass_of(z, unit), unit) : LT_OK);
    if (!gradients || level < 2 || unit == 0 || unit == head || !has_rows(z, unit)) {
        return LT_OK;
    }
    /* A layer that defers gradients gets their memory later, at an entry without weights, and
     * stores all of them then. */
    lt_pass *pass = pass_of(z, unit);
    return weights && lt_pass_defers(pass, unit) ? LT_OK : bring_gradients(z, pass, unit, weights);
}

static lt_err leave_one(lt_zero *z, int unit, unsigned what) {
    if ((what & LT_UNIT_WEIGHTS) != 0 && z->coming.shards != NULL) {
        z->weight_rooms[room_of(&z->model->table, unit)].in_use = false;
    }
    return (what & LT_UNIT_GRADIENTS) != 0 ? leave_gradients(z, unit) : LT_OK;
}

static lt_err enter(void *first, int unit, unsigned what) {
    for (lt_zero *z = first; z != NULL; z = z->next) {
        LT_TRY(enter_one(z, unit, what));
    }
    return LT_OK;
}

static lt_err leave(void *first, int unit, unsigned what) {
    for (lt_zero *z = first; z != NULL; z = z->next) {
        LT_TRY(leave_one(z, unit, what));
    }
    return LT_OK;
}

/* Copy this rank's part of a small parameter to dst as F32: its master, or its weights if the model
 * is not trained and has no master. */
static lt_err copy_small(lt_queue *q, float *dst, const lt_model *from, const lt_param *p) {
    const lt_backend *be = from->backend;
    float *master = lt_param_data(&from->master, p);
    if (master != NULL) {
        return be->copy(q, dst, master, (size_t)p->local_count * sizeof *dst);
    }
    return be->ops->cast(q,
                         &(lt_cast_args){.y = lt_tensor_1d(dst, LT_F32, p->local_count),
                                         .x = lt_tensor_1d(lt_param_data(&from->weights, p),
                                                           from->weights.dtype, p->local_count)});
}

/* Sum a layer's small parameters over all ranks: each adds its own values to zeros. */
static lt_err sum_f32(lt_zero *z, float *f32, const lt_shards *s, const lt_model *kept) {
    const lt_model_spec *spec = &kept->spec;
    const lt_backend *be = kept->backend;
    lt_queue *q = lt_pass_queue(z->passes[0]);
    const int64_t n = spec->n_layers * lt_exec_f32_count(spec);
    lt_comm_work work = 0;
    LT_TRY(be->zero(q, f32, (size_t)n * sizeof *f32));
    for (int i = 0; i < kept->table.n_params; i++) {
        const lt_param *p = &kept->table.params[i];
        const int64_t at = lt_exec_f32_at(spec, p->kind, p->layer);
        if (at >= 0 && p->local_count > 0) {
            const int64_t slice = s->own * lt_shards_size(s, p->unit);
            const int64_t from = slice + p->at - s->full.params[i].at;
            LT_TRY(copy_small(q, f32 + at + from, kept, p));
        }
    }
    LT_TRY(lt_all_reduce(slice_ranks(z), f32, f32, n, LT_F32, LT_REDUCE_SUM, &work));
    LT_TRY(wait_for(z, &work));
    for (int i = 1; i < z->n_passes; i++) {
        LT_TRY(be->copy(q, lt_pass_f32(z->passes[i]), f32, (size_t)n * sizeof *f32));
    }
    return LT_OK;
}

/* The small parameters of a model beside adapters do not change, so they are summed only once. */
static lt_err gather_f32(lt_zero *z) {
    float *f32 = lt_pass_f32(z->passes[0]);
    const bool frozen = z->shards->frozen != NULL;
    if (f32 == NULL || (frozen && (z->has_small || z->shards->beside))) {
        return LT_OK;
    }
    z->has_small = true;
    return frozen ? sum_f32(z, f32, z->coming.shards, z->coming.kept)
                  : sum_f32(z, f32, z->shards, z->trained);
}

/* The magnitudes of adapters (model/lora/dora.h), in F32 whatever the weights' type: each rank adds
 * its own to zeros. */
static lt_err gather_magnitudes(lt_zero *z) {
    const lt_lora *l = z->lora;
    const lt_backend *be = z->trained->backend;
    lt_queue *q = lt_pass_queue(z->passes[0]);
    lt_comm_work work = 0;
    if (l == NULL || !l->options.dora) {
        return LT_OK;
    }
    float *all = l->dora.magnitudes.data;
    LT_TRY(be->zero(q, all, (size_t)l->sizes.n_magnitudes * sizeof *all));
    for (int i = 0; i < lt_lora_n_sites(&z->trained->spec); i++) {
        const int index = l->sites[i].n_parts > 0 ? l->sites[i].m : -1;
        const lt_param *p = index >= 0 ? &z->trained->table.params[index] : NULL;
        if (p != NULL && p->local_count > 0) {
            const int64_t slice = z->shards->own * lt_shards_size(z->shards, p->unit);
            const int64_t from = slice + p->at - z->shards->full.params[index].at;
            LT_TRY(copy_small(q, all + l->sites[i].m_at + from, z->trained, p));
        }
    }
    LT_TRY(lt_all_reduce(slice_ranks(z), all, all, l->sizes.n_magnitudes, LT_F32, LT_REDUCE_SUM,
                         &work));
    return wait_for(z, &work);
}

/* Levels 1 and 2: gather a unit's weights into its place in the model. */
static lt_err gather_unit(lt_zero *z, int unit) {
    if (!is_held(z, unit)) {
        return LT_OK;
    }
    LT_TRY(wait_for(z, &z->gathers[unit]));
    return gather(z, z->shards, z->trained, unit, z->model->weights.base[unit], &z->gathers[unit]);
}

/* The sums of gather_f32 come first: transfers run in the order of their calls, and the passes need
 * these sums before their first unit. */
lt_err lt_zero_updated(lt_zero *z, int unit) {
    const int level = z->shards->level;
    const bool sums = lt_pass_f32(z->passes[0]) != NULL && z->shards->frozen == NULL;
    if (level == 0 || level == 3 || sums) {
        return LT_OK;
    }
    z->begun[unit] = true;
    return gather_unit(z, unit);
}

/* Release all rooms of weights. */
static lt_err settle_rooms(lt_zero *z) {
    for (int i = 0; i < LT_ZERO_ROOMS; i++) {
        lt_zero_room *room = &z->weight_rooms[i];
        LT_TRY(wait_for(z, &room->work));
        if (room->unit >= 0) {
            place_weights(z, room->unit, NULL, NULL);
        }
        room->unit = -1;
    }
    return LT_OK;
}

lt_err lt_zero_gather(lt_zero *z) {
    if (z->shards->level == 0) {
        return LT_OK;
    }
    LT_TRY(z->shards->level == 3 ? settle_rooms(z) : LT_OK);
    z->model->version++;
    LT_TRY(gather_f32(z));
    LT_TRY(gather_magnitudes(z));
    for (int u = 0; u < z->model->table.n_units && z->shards->level < 3; u++) {
        LT_TRY(z->begun[u] ? LT_OK : gather_unit(z, u));
        z->begun[u] = false;
    }
    return LT_OK;
}

lt_err lt_zero_settle(lt_zero *z) {
    for (int u = 0; z->gathers != NULL && u < z->model->table.n_units; u++) {
        LT_TRY(wait_for(z, &z->gathers[u]));
    }
    return z->coming.shards != NULL ? settle_rooms(z) : LT_OK;
}

lt_err lt_zero_copy_whole(lt_zero *z, lt_model *to) {
    LT_ASSERT(z->coming.shards != NULL && to->table.n_units == z->coming.model->table.n_units);
    LT_TRY(lt_zero_settle(z));
    for (int u = 0; u < to->table.n_units; u++) {
        lt_comm_work work = 0;
        LT_TRY(comes(z, u) ? gather_coming(z, u, to->weights.base[u], &work) : LT_OK);
        LT_TRY(wait_for(z, &work));
    }
    to->version = z->coming.model->version;
    return LT_OK;
}

/* ---- Open and close ---- */

/* Level 1: the slices lie within the pass's own gradients. */
static void point_into_pass(lt_zero *z) {
    const lt_shards *s = z->shards;
    for (int u = 0; u < s->full.n_units; u++) {
        float *base = z->whole->base[u];
        z->gradients.base[u] = base != NULL ? base + s->own * lt_shards_size(s, u) : NULL;
    }
}

static void set_coming(lt_zero *z, const lt_shards *s, const lt_zero_args *a) {
    z->coming.shards = s->beside ? NULL : lt_shards_of_weights(s);
    z->coming.model = s->frozen != NULL ? a->base : a->model;
    z->coming.kept = s->frozen != NULL ? a->kept : a->trained;
}

/* Set the callbacks of the passes, only those that do something. The callbacks of the first of
 * several adapters serve all of them. */
static void tell_passes(lt_zero *z, const lt_zero_args *a) {
    const unsigned all = LT_UNIT_WEIGHTS | LT_UNIT_GRADIENTS;
    const int level = z->shards->level;
    z->units = (lt_pass_units){z,
                               enter,
                               leave,
                               sum_all_waiting,
                               level > 1   ? all
                               : level > 0 ? LT_UNIT_WEIGHTS
                                           : 0,
                               z->coming.shards != NULL ? all : LT_UNIT_GRADIENTS};
    z->n_passes = a->n_passes;
    for (int i = 0; i < a->n_passes; i++) {
        z->passes[i] = a->passes[i];
        if (a->before == NULL) {
            lt_pass_tell_units(a->passes[i], &z->units);
        }
    }
}

static void join(lt_zero *z, const lt_zero_args *a) {
    z->joined = !a->joins ? -1 : a->before == NULL ? 0 : a->before->joined + 1;
    if (a->before != NULL) {
        a->before->next = z;
    }
}

lt_err lt_zero_open(lt_zero *z, const lt_shards *s, const lt_zero_args *args) {
    lt_model *model = args->model;
    const size_t n_units = (size_t)model->table.n_units;
    lt_arena a = {0};
    LT_ASSERT(args->n_passes >= 1 && args->n_passes <= LT_MAX_LAYERS);
    *z = (lt_zero){.shards = s,
                   .model = model,
                   .trained = args->trained,
                   .lora = args->lora,
                   .waiting = -1,
                   .whole = args->gradients};
    set_coming(z, s, args);
    tell_passes(z, args);
    join(z, args);
    z->gathers = calloc(n_units, sizeof *z->gathers);
    z->begun = calloc(n_units, sizeof *z->begun);
    z->summed = calloc(n_units, sizeof *z->summed);
    z->left = calloc(n_units, sizeof *z->left);
    if (z->gathers == NULL || z->begun == NULL || z->summed == NULL || z->left == NULL) {
        LT_FAIL(LT_ERR_OOM, "places of %zu units", n_units);
    }
    if (s->level == 0) {
        return LT_OK;
    }
    LT_TRY(lt_param_buffer_open(&z->gradients, &z->trained->table, LT_F32));
    if (s->level == 1) {
        point_into_pass(z);
        return LT_OK;
    }
    carve_gradients(z, s, &a);
    carve_weights(z, s, model->options.dtype, &a);
    LT_TRY(lt_arena_place(&a, model->device, "shards"));
    z->arena = a;
    carve_gradients(z, s, &z->arena);
    carve_weights(z, s, model->options.dtype, &z->arena);
    return LT_OK;
}

void lt_zero_close(lt_zero *z) {
    if (z->model != NULL) {
        lt_arena_release(&z->arena, z->model->device);
    }
    lt_param_buffer_close(&z->gradients);
    free(z->gathers);
    free(z->begun);
    free(z->summed);
    free(z->left);
    *z = (lt_zero){0};
}
