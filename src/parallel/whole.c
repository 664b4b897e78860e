/* whole.c: see whole.h. */
#include "parallel/whole.h"

#include "base/error.h"
#include "model/lora/dora.h"
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

/* Send this rank's boxes of a parameter, from `held` (NULL if it has none) to `whole`. */
static lt_err put(const bringing *b, int index, lt_dtype dtype, const char *held, void *whole) {
    const lt_param *p = &b->from->table.params[index];
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

/* Sum 32-bit words that are zero on all ranks but one. */
static lt_err join(const bringing *b, void *words, size_t bytes) {
    lt_group *all = lt_world_twin(b->world, b->world->mesh.world);
    lt_comm_work work;
    LT_ASSERT(bytes % sizeof(int32_t) == 0);
    LT_TRY(lt_all_reduce(all, words, words, (int64_t)(bytes / sizeof(int32_t)), LT_I32,
                         LT_REDUCE_SUM, &work));
    return lt_comm_order(lt_world_buffers(b->world), work, b->queue);
}

static lt_err bring_unit(const bringing *b, int u) {
    const lt_unit *unit = &b->to->table.units[u];
    const size_t bytes = (size_t)unit->n_elements * lt_dtype_bytes(b->to->weights.dtype);
    void *data = b->to->weights.base[u];
    LT_TRY(b->to->backend->zero(b->queue, data, bytes));
    for (int i = unit->first_param; i < unit->first_param + unit->n_params; i++) {
        LT_TRY(put(b, i, b->from->weights.dtype,
                   lt_param_data(&b->from->weights, &b->from->table.params[i]),
                   lt_param_data(&b->to->weights, &b->to->table.params[i])));
    }
    return join(b, data, bytes);
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

/* Call a function with each adapted matrix that has magnitudes, of both adapters. */
static lt_err each_matrix(const bringing *b, const lt_lora *from, lt_lora *to,
                          lt_err (*call)(const bringing *b, const lt_lora *from,
                                         const lt_lora_site *s, lt_lora *to,
                                         const lt_lora_site *whole)) {
    for (int i = 0; i < lt_lora_n_sites(&to->params->spec); i++) {
        if (lt_lora_has_magnitudes(&to->sites[i])) {
            LT_TRY(call(b, from, &from->sites[i], to, &to->sites[i]));
        }
    }
    return LT_OK;
}

/* Where the magnitudes of a matrix arrive; those of all matrices are one piece. */
static float *coming(const lt_lora *to, const lt_lora_site *whole) {
    return (float *)to->dora.magnitudes.data + whole->m_at;
}

static lt_err put_magnitudes(const bringing *b, const lt_lora *from, const lt_lora_site *s,
                             lt_lora *to, const lt_lora_site *whole) {
    const bool here = from->params->table.params[s->m].local_count > 0;
    return here ? put(b, s->m, LT_F32, lt_dora_magnitudes(from, s).data, coming(to, whole)) : LT_OK;
}

static lt_err take_magnitudes(const bringing *b, const lt_lora *from, const lt_lora_site *s,
                              lt_lora *to, const lt_lora_site *whole) {
    const lt_tensor m = lt_dora_magnitudes(to, whole);
    const lt_cast_args copy = {.y = m, .x = lt_tensor_2d(coming(to, whole), LT_F32, m.shape[0], 1)};
    (void)from;
    (void)s;
    return b->to->backend->ops->cast(b->queue, &copy);
}

lt_err lt_whole_bring_adapters(const lt_world *w, const lt_lora *from, lt_lora *to,
                               lt_queue *queue) {
    const bringing b = {w, NULL, from->params, to->params, queue};
    void *magnitudes = to->dora.magnitudes.data;
    const size_t bytes = (size_t)to->sizes.n_magnitudes * sizeof(float);
    LT_TRY(lt_whole_bring(w, NULL, from->params, to->params, queue));
    if (!to->options.dora) {
        return LT_OK;
    }
    LT_TRY(to->params->backend->zero(queue, magnitudes, bytes));
    LT_TRY(each_matrix(&b, from, to, put_magnitudes));
    LT_TRY(join(&b, magnitudes, bytes));
    return each_matrix(&b, from, to, take_magnitudes);
}
