/* deferred.c: see deferred.h. */
#include "model/blocks/deferred.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/layer.h"

static const lt_param_kind kinds[LT_DEFERRED_COUNT] = {LT_PARAM_QKV, LT_PARAM_ATTN_OUT, LT_PARAM_UP,
                                                       LT_PARAM_DOWN};

lt_err lt_deferred_open(lt_deferred *a, int n_sets, int first, int end, bool apart) {
    const size_t n_layers = (size_t)(end - first);
    *a = (lt_deferred){.n_sets = n_sets, .first = first, .n_layers = end - first, .set = -1};
    a->products = calloc((size_t)n_sets * n_layers * LT_DEFERRED_COUNT, sizeof *a->products);
    a->stored = calloc(n_layers, sizeof *a->stored);
    a->apart = apart ? calloc(n_layers, sizeof *a->apart) : NULL;
    if (a->products == NULL || a->stored == NULL || (apart && a->apart == NULL)) {
        LT_FAIL(LT_ERR_OOM, "operands of %d sets of %zu layers", n_sets, n_layers);
    }
    return LT_OK;
}

void lt_deferred_close(lt_deferred *a) {
    free(a->products);
    free(a->stored);
    free(a->apart);
    *a = (lt_deferred){0};
}

bool lt_deferred_has(const lt_deferred *a, const lt_model_spec *s, int layer) {
    const bool own = layer >= a->first && layer < a->first + a->n_layers;
    return own && (a->apart == NULL || lt_layer_part(s, layer, 1).n_experts == 0);
}

static lt_deferred_product *product_of(const lt_deferred *a, int set, int layer, int which) {
    LT_ASSERT(set >= 0 && set < a->n_sets && layer >= a->first && layer < a->first + a->n_layers);
    return &a->products[((size_t)set * (size_t)a->n_layers + (size_t)(layer - a->first)) *
                            LT_DEFERRED_COUNT +
                        (size_t)which];
}

/* Columns of a product's x and dy that must be copied; 0: they stay valid. A tensor must be copied
 * if all layers share it (acts.h says from which level of recompute on), or if the backward pass
 * overwrites it: act becomes d(act), and the residual stream's gradient is updated in place. */
static void copied(const lt_layer_spec *l, int64_t width, const lt_acts_shape *shape, int which,
                   int64_t *x, int64_t *dy) {
    const bool cheap = shape->level >= LT_CHEAP, costly = shape->level >= LT_COSTLY;
    const bool gathered = l->pre_norms || shape->n_tp > 1; /* h, not the stream, is read. */
    *x = *dy = 0;
    switch (which) {
    case LT_DEFERRED_QKV:
        *x = gathered && cheap ? width : 0;
        *dy = lt_layer_qkv_cols(l);
        break;
    case LT_DEFERRED_ATTN_OUT:
        *x = costly ? lt_layer_att_cols(l) : 0;
        *dy = width;
        break;
    case LT_DEFERRED_UP:
        *x = (gathered ? cheap : costly) ? width : 0;
        *dy = cheap ? lt_layer_up_rows(l) : 0;
        break;
    default:
        *x = l->ffn_width;
        *dy = width;
    }
}

void lt_deferred_carve(lt_deferred *a, const lt_model_spec *s, const lt_acts_shape *shape,
                       lt_arena *arena) {
    const size_t row = (size_t)(shape->batch * shape->seq) * lt_dtype_bytes(shape->dtype);
    for (int set = 0; set < a->n_sets; set++) {
        for (int layer = a->first; layer < a->first + a->n_layers; layer++) {
            const lt_layer_spec l = lt_layer_part(s, layer, shape->n_tp > 0 ? shape->n_tp : 1);
            const int n = !lt_deferred_has(a, s, layer) ? 0
                          : l.n_experts > 0             ? LT_DEFERRED_UP
                                                        : LT_DEFERRED_COUNT;
            for (int which = 0; which < n; which++) {
                lt_deferred_product *p = product_of(a, set, layer, which);
                int64_t x, dy;
                copied(&l, s->width, shape, which, &x, &dy);
                p->x_room = x > 0 ? lt_arena_take(arena, (size_t)x * row, LT_ARENA_ALIGN) : NULL;
                p->dy_room = dy > 0 ? lt_arena_take(arena, (size_t)dy * row, LT_ARENA_ALIGN) : NULL;
            }
        }
    }
}

/* ---- Apart ---- */

static bool is_deferred(lt_param_kind kind) {
    bool is = false;
    for (int which = 0; which < LT_DEFERRED_COUNT; which++) {
        is = is || kinds[which] == kind;
    }
    return is;
}

/* Elements of a layer's place before parameter `end` of the table. */
static int64_t apart_before(const lt_param_table *t, int layer, int end) {
    int64_t n = 0;
    for (int i = t->units[1 + layer].first_param; i < end; i++) {
        const lt_param *p = &t->params[i];
        n += is_deferred(p->kind)
                 ? 0
                 : (p->local_count + LT_PARAM_ALIGN - 1) / LT_PARAM_ALIGN * LT_PARAM_ALIGN;
    }
    return n;
}

static int64_t apart_count(const lt_param_table *t, int layer) {
    const lt_unit *u = &t->units[1 + layer];
    return apart_before(t, layer, u->first_param + u->n_params);
}

void lt_deferred_carve_apart(lt_deferred *a, const lt_model_spec *s, const lt_param_table *t,
                             lt_arena *arena) {
    for (int i = 0; a->apart != NULL && i < a->n_layers; i++) {
        const int layer = a->first + i;
        if (lt_deferred_has(a, s, layer)) {
            a->apart[i] = lt_arena_take(arena, (size_t)apart_count(t, layer) * sizeof(float),
                                        LT_ARENA_ALIGN);
        }
    }
}

lt_tensor lt_deferred_gradient(const lt_exec *r, lt_param_kind kind, int layer) {
    const lt_deferred *a = r->deferred;
    const lt_param_table *t = &r->model->table;
    const int index = a != NULL && a->apart != NULL ? lt_param_index(t, kind, layer) : -1;
    if (index < 0 || is_deferred(kind) || t->params[index].local_count == 0) {
        return (lt_tensor){0};
    }
    LT_ASSERT(t->params[index].local_dims == 1); /* A bias, a norm's gain, scalars. */
    return lt_tensor_1d(a->apart[layer - a->first] + apart_before(t, layer, index), LT_F32,
                        t->params[index].local_count);
}

/* Copy a layer's place to the memory that its gradients have now, and zero it. */
static lt_err take_apart(lt_exec *r, const lt_deferred *a, int layer) {
    const lt_param_table *t = &r->model->table;
    const lt_unit *u = &t->units[1 + layer];
    float *place = a->apart[layer - a->first];
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const lt_param *p = &t->params[i];
        if (!is_deferred(p->kind) && p->local_count > 0) {
            LT_TRY(r->backend->copy(r->queue, lt_param_data(&r->gradients, p),
                                    place + apart_before(t, layer, i),
                                    (size_t)p->local_count * sizeof(float)));
        }
    }
    return r->backend->zero(r->queue, place, (size_t)apart_count(t, layer) * sizeof(float));
}

/* ---- The two parts ---- */

void lt_deferred_begin(lt_deferred *a, int set, int first, int end) {
    a->set = set;
    for (int layer = first; layer < end; layer++) {
        for (int which = 0; which < LT_DEFERRED_COUNT; which++) {
            lt_deferred_product *p = product_of(a, set, layer, which);
            p->x = p->dy = (lt_tensor){0};
        }
    }
}

static lt_err keep_one(lt_exec *r, lt_tensor *kept, lt_tensor from, void *room) {
    *kept = from;
    if (room == NULL) {
        return LT_OK;
    }
    kept->data = room;
    return r->backend->copy(r->queue, room, from.data,
                            (size_t)lt_tensor_count(&from) * lt_dtype_bytes(from.dtype));
}

lt_err lt_deferred_keep(lt_exec *r, lt_param_kind kind, int layer, lt_tensor dy, lt_tensor x,
                        bool *kept) {
    *kept = false;
    for (int which = 0; r->deferred != NULL && which < LT_DEFERRED_COUNT; which++) {
        if (kinds[which] == kind) {
            lt_deferred_product *p = product_of(r->deferred, r->deferred->set, layer, which);
            *kept = true;
            LT_TRY(keep_one(r, &p->x, x, p->x_room));
            return keep_one(r, &p->dy, dy, p->dy_room);
        }
    }
    return LT_OK;
}

lt_err lt_deferred_run(lt_exec *r, lt_deferred *a, int set, int layer) {
    bool *stored = &a->stored[layer - a->first];
    *stored = *stored && a->apart == NULL;
    for (int which = 0; which < LT_DEFERRED_COUNT; which++) {
        const lt_deferred_product *p = product_of(a, set, layer, which);
        if (p->dy.data != NULL) {
            LT_TRY(
                lt_exec_matmul(r, &(lt_matmul_args){.y = lt_exec_gradient(r, kinds[which], layer),
                                                    .a = p->dy,
                                                    .b = p->x,
                                                    .trans_a = true,
                                                    .accumulate = *stored}));
        }
    }
    *stored = true;
    return a->apart != NULL ? take_apart(r, a, layer) : LT_OK;
}
