/* acts.c: see acts.h. */
#include "model/acts.h"

#include "model/layer.h"

lt_tensor lt_tensor_take(lt_arena *a, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2) {
    const int64_t count = d0 * (d1 > 0 ? d1 : 1) * (d2 > 0 ? d2 : 1);
    void *data = lt_arena_take(a, (size_t)count * lt_dtype_bytes(dtype), LT_ARENA_ALIGN);
    return d1 == 0   ? lt_tensor_1d(data, dtype, d0)
           : d2 == 0 ? lt_tensor_2d(data, dtype, d0, d1)
                     : lt_tensor_3d(data, dtype, d0, d1, d2);
}

/* One set of layer tensors. shared NULL: take those that all layers share at this level; else the
 * others, and point at the shared ones. */
static void layer_carve(lt_layer_acts *t, const lt_layer_acts *shared, int64_t C,
                        const lt_layer_spec *l, const lt_acts_shape *p, lt_arena *a) {
    const int64_t B = p->batch, T = p->seq, R = B * T, H = l->n_heads, G = l->n_kv_heads;
    const int64_t F = l->ffn_width, E = l->n_experts, K = l->top_k, N = E > 0 ? R * K : R;
    const bool layer_norm = l->norm == LT_NORM_LAYER;
    const lt_dtype dtype = p->dtype;

#define TAKE(name, from_level, present, type, d0, d1, d2)                                          \
    if ((present) && (p->level >= (int)(from_level)) == (shared == NULL)) {                        \
        t->name = lt_tensor_take(a, type, d0, d1, d2);                                             \
    } else if (shared != NULL) {                                                                   \
        t->name = shared->name;                                                                    \
    }
    LT_LAYER_ACTS(TAKE)
#undef TAKE
}

void lt_acts_carve_one(lt_layer_acts *layer, const lt_model_spec *s, const lt_acts_shape *shape,
                       lt_arena *a) {
    LT_ASSERT(shape->level == LT_KEEP_NOTHING);
    const lt_layer_spec l = lt_model_layer(s, 0);
    *layer = (lt_layer_acts){0};
    layer_carve(layer, NULL, s->width, &l, shape, a);
}

static void own_carve(lt_batch_acts *t, const lt_model_spec *s, const lt_acts_shape *p,
                      lt_arena *a) {
    const int64_t R = p->batch * p->seq, C = s->width;
    const lt_layer_spec l = lt_model_layer(s, 0);

    t->tokens = lt_tensor_take(a, LT_I32, R, 0, 0);
    t->labels = lt_tensor_take(a, LT_I32, R, 0, 0);
    t->positions = lt_tensor_take(a, LT_I32, R, 0, 0);
    t->doc_start = lt_tensor_take(a, LT_I32, p->batch, p->seq, 0);
    if (p->weights) {
        t->weights = lt_tensor_take(a, LT_F32, R, 0, 0);
    }
    t->x_final = lt_tensor_take(a, p->dtype, R, C, 0);
    t->h_final = lt_tensor_take(a, p->dtype, R, C, 0);
    t->mean_final = lt_tensor_take(a, LT_F32, R, 0, 0);
    t->rstd_final = lt_tensor_take(a, LT_F32, R, 0, 0);
    t->loss_rows = lt_tensor_take(a, LT_F32, R, 0, 0);
    t->best = lt_tensor_take(a, LT_I32, R, 0, 0);
    if (l.n_experts > 0) {
        t->aux = lt_tensor_take(a, LT_F32, s->n_layers, 2, 0);
        t->n_labels = lt_tensor_take(a, LT_F32, 1, 0, 0);
    }
    if (p->backward) {
        t->dx = lt_tensor_take(a, p->dtype, R, C, 0);
    }
}

static void scratch_carve(lt_batch_acts *t, const lt_model_spec *s, const lt_acts_shape *p,
                          lt_arena *a) {
    const lt_layer_spec l = lt_model_layer(s, 0);
    const int64_t B = p->batch, T = p->seq, R = B * T, C = s->width, N = R * l.top_k;

    t->branch = lt_tensor_take(a, p->dtype, R, C, 0);
    if (!p->backward) {
        return;
    }
    t->dh = lt_tensor_take(a, p->dtype, R, C, 0);
    t->dqkv = lt_tensor_take(a, p->dtype, R, lt_layer_qkv_cols(&l), 0);
    t->datt = lt_tensor_take(a, p->dtype, R, lt_layer_att_cols(&l), 0);
    t->delta = lt_tensor_take(a, LT_F32, B, l.n_heads, T);
    if (l.n_experts > 0) {
        t->ddown = lt_tensor_take(a, p->dtype, N, C, 0);
        t->dweights = lt_tensor_take(a, LT_F32, R, l.top_k, 0);
        t->dlogits = lt_tensor_take(a, LT_F32, R, l.n_experts, 0);
        t->dlogits_cast = t->dlogits;
        if (p->dtype != LT_F32) {
            t->dlogits_cast = lt_tensor_take(a, p->dtype, R, l.n_experts, 0);
        }
    }
}

void lt_batch_carve(lt_batch_acts *t, const lt_model_spec *s, const lt_acts_shape *p, lt_arena *a) {
    *t = (lt_batch_acts){0};
    own_carve(t, s, p, a);
    scratch_carve(t, s, p, a);
}

void lt_acts_carve_shared(lt_layer_acts *layer, lt_batch_acts *batch, const lt_model_spec *s,
                          const lt_acts_shape *shape, lt_arena *a) {
    *layer = (lt_layer_acts){0};
    *batch = (lt_batch_acts){0};
    const lt_layer_spec l = lt_model_layer(s, 0);
    layer_carve(layer, NULL, s->width, &l, shape, a);
    scratch_carve(batch, s, shape, a);
}

void lt_acts_carve_own(lt_acts_set *set, const lt_layer_acts *shared_layer,
                       const lt_batch_acts *shared_batch, int64_t n_layers, const lt_model_spec *s,
                       const lt_acts_shape *shape, lt_arena *a) {
    const lt_layer_spec l = lt_model_layer(s, 0); /* All layers have these sizes. */
    for (int64_t i = 0; i < n_layers; i++) {
        set->layers[i] = (lt_layer_acts){0};
        layer_carve(&set->layers[i], shared_layer, s->width, &l, shape, a);
    }
    set->batch = *shared_batch;
    own_carve(&set->batch, s, shape, a);
    set->n_batch = shape->batch;
    set->seq = shape->seq;
}

lt_err lt_arena_place(lt_arena *a, lt_device *device, const char *name) {
    void *base = NULL;
    const size_t bytes = a->used_bytes > 0 ? a->used_bytes : 1;
    LT_ASSERT(a->base == NULL);
    LT_TRY(device->backend->alloc(device, &base, bytes, name));
    *a = (lt_arena){.base = base, .size_bytes = bytes, .name = name};
    return LT_OK;
}

void lt_arena_release(lt_arena *a, lt_device *device) {
    if (a->base != NULL) {
        device->backend->release(device, a->base, a->size_bytes);
    }
    *a = (lt_arena){0};
}
