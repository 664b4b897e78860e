/* whole.c: see whole.h. */
#include "parallel/whole.h"

#include "base/error.h"
#include "tensor/ops.h"

bool lt_whole_sends(const lt_world *w, const lt_shards *shards, const lt_param *p,
                    const lt_box *box) {
    const lt_layout *l = &w->layout;
    int n_parts;
    const int part = shards != NULL ? lt_shards_part(shards, &n_parts) : lt_world_part(w, &n_parts);
    return part >= 0 && lt_layout_answers(l, p, box) && (l->ep == 0 || lt_layout_expert(l, p));
}

/* The box as a view of the whole parameter at `data`. */
static lt_tensor view(void *data, lt_dtype dtype, const lt_param *p, const lt_box *box) {
    lt_tensor t = {.n_dims = p->n_dims, .dtype = dtype};
    int64_t at = 0, stride = 1;
    for (int d = p->n_dims - 1; d >= 0; d--) {
        t.shape[d] = box->extent[d];
        t.stride[d] = stride;
        at += box->first[d] * stride;
        stride *= p->shape[d];
    }
    t.data = (char *)data + (size_t)at * lt_dtype_bytes(dtype);
    return t;
}

static lt_tensor packed(const void *data, lt_dtype dtype, int n_dims, const lt_box *box) {
    const int64_t *e = box->extent;
    void *from = (void *)(uintptr_t)data;
    return n_dims == 1   ? lt_tensor_1d(from, dtype, e[0])
           : n_dims == 2 ? lt_tensor_2d(from, dtype, e[0], e[1])
                         : lt_tensor_3d(from, dtype, e[0], e[1], e[2]);
}

typedef struct {
    const lt_world *world;
    const lt_shards *shards;
    const lt_model *from;
    lt_model *to;
    lt_queue *queue;
} bringing;

/* The boxes of a parameter that this rank sends. */
static lt_err put(const bringing *b, int index) {
    const lt_param *p = &b->from->table.params[index];
    const lt_dtype dtype = b->from->weights.dtype;
    const char *held = lt_param_data(&b->from->weights, p);
    void *whole = lt_param_data(&b->to->weights, &b->to->table.params[index]);
    for (int i = 0; held != NULL && i < p->n_boxes; i++) {
        const lt_box *box = &lt_param_boxes(&b->from->table, p)[i];
        if (lt_whole_sends(b->world, b->shards, p, box)) {
            const lt_cast_args copy = {.y = view(whole, dtype, p, box),
                                       .x = packed(held, dtype, p->n_dims, box)};
            LT_TRY(b->to->backend->ops->cast(b->queue, &copy));
        }
        held += (size_t)lt_box_count(box, p->n_dims) * lt_dtype_bytes(dtype);
    }
    return LT_OK;
}

static lt_err bring_unit(const bringing *b, int u) {
    const lt_unit *unit = &b->to->table.units[u];
    const size_t bytes = (size_t)unit->n_elements * lt_dtype_bytes(b->to->weights.dtype);
    void *data = b->to->weights.base[u];
    lt_group *all = lt_world_twin(b->world, b->world->mesh.world);
    lt_comm_work work;
    LT_ASSERT(bytes % sizeof(int32_t) == 0);
    LT_TRY(b->to->backend->zero(b->queue, data, bytes));
    for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
        LT_TRY(put(b, i));
    }
    LT_TRY(lt_all_reduce(all, data, data, (int64_t)(bytes / sizeof(int32_t)), LT_I32, LT_REDUCE_SUM,
                         &work));
    return lt_comm_order(lt_world_buffers(b->world), work, b->queue);
}

lt_err lt_whole_bring(const lt_world *w, const lt_shards *shards, const lt_model *from,
                      lt_model *to, lt_queue *queue) {
    const bringing b = {w, shards, from, to, queue};
    LT_ASSERT(to->table.n_params == from->table.n_params && to->weights.flat != NULL);
    LT_ASSERT(to->weights.dtype == from->weights.dtype);
    for (int u = 0; u < to->table.n_units; u++) {
        LT_TRY(to->table.units[u].n_elements > 0 ? bring_unit(&b, u) : LT_OK);
    }
    to->version = from->version;
    return LT_OK;
}
