/* acts.c: see acts.h. */
#include "model/pass/acts.h"

#include "model/blocks/expert.h"
#include "model/layer.h"
#include "model/pass/shared.h"
#include "model/blocks/tp.h"

/* A layer's tensors, in the order of the table. */
enum {
#define ACT_INDEX(name, level, present, dtype, d0, d1, d2) ACT_##name,
    LT_LAYER_ACTS(ACT_INDEX)
#undef ACT_INDEX
        N_ACTS
};

static size_t bytes_of(lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2) {
    return (size_t)(d0 * (d1 > 0 ? d1 : 1) * (d2 > 0 ? d2 : 1)) * lt_dtype_bytes(dtype);
}

static lt_tensor view_of(void *data, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2) {
    return d1 == 0   ? lt_tensor_1d(data, dtype, d0)
           : d2 == 0 ? lt_tensor_2d(data, dtype, d0, d1)
                     : lt_tensor_3d(data, dtype, d0, d1, d2);
}

lt_tensor lt_tensor_take(lt_arena *a, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2) {
    return view_of(lt_arena_take(a, bytes_of(dtype, d0, d1, d2), LT_ARENA_ALIGN), dtype, d0, d1,
                   d2);
}

/* Rows of a batch, and their division among the ranks of tp. */
typedef struct {
    int64_t all, own, room; /* R, S, P of acts.h. */
} rows;

/* B and T of attention. */
static int64_t batch_of(const lt_acts_shape *p) {
    return p->given_batch > 0 ? p->given_batch : p->batch;
}

static int64_t seq_of(const lt_acts_shape *p) {
    return p->given_batch > 0 ? p->given_seq : p->seq;
}

static int n_tp_of(const lt_acts_shape *p) {
    return p->n_tp > 0 ? p->n_tp : 1;
}

/* The most rows that another rank's batch may have. */
static int64_t most_rows_of(const lt_acts_shape *p) {
    return p->most_rows > 0 ? p->most_rows : p->batch * p->seq;
}

static rows rows_of(const lt_acts_shape *p) {
    const int64_t R = p->batch * p->seq;
    const lt_tp_run run = lt_tp_run_of(R, n_tp_of(p), p->tp_rank);
    return (rows){R, run.count, run.each * n_tp_of(p)};
}

static lt_tensor take_rows(lt_arena *a, const rows *n, lt_dtype dtype, int64_t width) {
    lt_tensor t = lt_tensor_take(a, dtype, n->room, width, 0);
    t.shape[0] = n->all;
    return t;
}

static lt_layer_spec layer_of(const lt_model_spec *s, int64_t layer, const lt_acts_shape *p) {
    return lt_layer_part(s, layer, n_tp_of(p));
}

/* What the rows of the table refer to. */
#define TABLE_NAMES                                                                                \
    const rows n = rows_of(p);                                                                     \
    const int64_t B = batch_of(p), T = seq_of(p), R = n.all, H = l->n_heads, G = l->n_kv_heads;    \
    const int64_t F = l->ffn_width, E = l->n_experts, K = l->top_k, N = E > 0 ? R * K : R;         \
    const int64_t S = n.own, P = n.room;                                                           \
    const int n_ep = E > 0 && p->n_ep > 0 ? p->n_ep : 1;                                           \
    const int64_t M = n_ep > 1 ? lt_experts_room(most_rows_of(p) * K, n_ep, p->expert_room) : N;   \
    const bool layer_norm = l->norm == LT_NORM_LAYER, divided = n_tp_of(p) > 1;                    \
    const lt_dtype dtype = p->dtype

/* Raise `most` to the bytes of the tensors that layers share. */
static void widen(size_t most[N_ACTS], int64_t C, const lt_layer_spec *l, const lt_acts_shape *p) {
    TABLE_NAMES;
#define WIDEN(name, from_level, present, type, d0, d1, d2)                                         \
    if ((present) && p->level >= (int)(from_level)) {                                              \
        const size_t bytes = bytes_of(type, d0, d1, d2);                                           \
        most[ACT_##name] = bytes > most[ACT_##name] ? bytes : most[ACT_##name];                    \
    }
    LT_LAYER_ACTS(WIDEN)
#undef WIDEN
}

/* Take memory for each tensor that layers share, large enough for any layer. */
static void shared_carve(lt_layer_acts *t, const lt_model_spec *s, const lt_acts_shape *p,
                         lt_arena *a) {
    const int64_t n_layers = lt_layers_alike(s) ? 1 : s->n_layers;
    size_t most[N_ACTS] = {0};
    *t = (lt_layer_acts){0};
    for (int64_t i = 0; i < n_layers; i++) {
        const lt_layer_spec l = layer_of(s, i, p);
        widen(most, s->width, &l, p);
    }
#define TAKE(name, from_level, present, type, d0, d1, d2)                                          \
    if (most[ACT_##name] > 0) {                                                                    \
        t->name.data = lt_arena_take(a, most[ACT_##name], LT_ARENA_ALIGN);                         \
    }
    LT_LAYER_ACTS(TAKE)
#undef TAKE
}

/* Set a layer's tensors: those that it keeps are taken from the arena, the others are those of
 * `shared`. */
static void layer_carve(lt_layer_acts *t, const lt_layer_acts *shared, int64_t C,
                        const lt_layer_spec *l, const lt_acts_shape *p, lt_arena *a) {
    TABLE_NAMES;
    *t = (lt_layer_acts){0};
#define TAKE(name, from_level, present, type, d0, d1, d2)                                          \
    if (present) {                                                                                 \
        t->name = p->level >= (int)(from_level) ? view_of(shared->name.data, type, d0, d1, d2)     \
                                                : lt_tensor_take(a, type, d0, d1, d2);             \
    }
    LT_LAYER_ACTS(TAKE)
#undef TAKE
    t->h1.shape[0] = t->h2.shape[0] = t->logits.shape[0] = R; /* In memory for P rows. */
}

void lt_acts_carve_one(lt_layer_acts *room, const lt_model_spec *s, const lt_acts_shape *shape,
                       lt_arena *a) {
    LT_ASSERT(shape->level == LT_KEEP_NOTHING);
    shared_carve(room, s, shape, a);
}

void lt_acts_view(lt_layer_acts *layer, const lt_layer_acts *room, const lt_model_spec *s,
                  int64_t index, const lt_acts_shape *shape) {
    const lt_layer_spec l = layer_of(s, index, shape);
    LT_ASSERT(shape->level == LT_KEEP_NOTHING);
    layer_carve(layer, room, s->width, &l, shape, NULL);
}

/* The layer whose scratch is the largest: one with experts, if there is one. */
static lt_layer_spec widest(const lt_model_spec *s, const lt_acts_shape *p) {
    int64_t i = 0;
    while (s->n_experts > 0 && s->dense[i] && i + 1 < s->n_layers) {
        i++;
    }
    return layer_of(s, i, p);
}

static void own_carve(lt_batch_acts *t, const lt_model_spec *s, const lt_acts_shape *p,
                      lt_arena *a) {
    const rows n = rows_of(p);
    const int64_t R = n.all, S = n.own, C = s->width;

    t->tokens = lt_tensor_take(a, LT_I32, R, 0, 0);
    t->labels = lt_tensor_take(a, LT_I32, R, 0, 0);
    t->positions = lt_tensor_take(a, LT_I32, R, 0, 0);
    t->doc_start = lt_tensor_take(a, LT_I32, p->batch, p->seq, 0);
    if (p->packs) {
        t->order = lt_tensor_take(a, LT_I32, R + 1, 0, 0);
    }
    if (p->weights) {
        t->weights = lt_tensor_take(a, LT_F32, R, 0, 0);
    }
    if (p->shares) {
        t->shared = lt_tensor_take(a, LT_I32, lt_shared_room(batch_of(p) * seq_of(p)), 0, 0);
    }
    t->x_final = lt_tensor_take(a, p->dtype, S, C, 0);
    t->h_final = take_rows(a, &n, p->dtype, C);
    t->mean_final = lt_tensor_take(a, LT_F32, S, 0, 0);
    t->rstd_final = lt_tensor_take(a, LT_F32, S, 0, 0);
    t->loss_rows = lt_tensor_take(a, LT_F32, R, 0, 0);
    t->best = lt_tensor_take(a, LT_I32, R, 0, 0);
    if (s->n_experts > 0) {
        t->aux = lt_tensor_take(a, LT_F32, s->n_layers, 2, 0);
        t->n_labels = lt_tensor_take(a, LT_F32, 1, 0, 0);
    }
    if (p->backward) {
        t->dx = lt_tensor_take(a, p->dtype, S, C, 0);
    }
}

static void scratch_carve(lt_batch_acts *t, const lt_model_spec *s, const lt_acts_shape *p,
                          lt_arena *a) {
    const lt_layer_spec l = widest(s, p);
    const rows n = rows_of(p);
    const int64_t B = batch_of(p), T = seq_of(p), R = n.all, C = s->width, N = R * l.top_k;

    t->branch = take_rows(a, &n, p->dtype, C);
    if (!p->backward) {
        return;
    }
    t->dh = take_rows(a, &n, p->dtype, C);
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
    *batch = (lt_batch_acts){0};
    shared_carve(layer, s, shape, a);
    scratch_carve(batch, s, shape, a);
}

void lt_acts_carve_own(lt_acts_set *set, const lt_layer_acts *shared_layer,
                       const lt_batch_acts *shared_batch, int64_t first_layer, int64_t n_layers,
                       const lt_model_spec *s, const lt_acts_shape *shape, lt_arena *a) {
    for (int64_t i = 0; i < n_layers; i++) {
        const lt_layer_spec l = layer_of(s, first_layer + i, shape);
        layer_carve(&set->layers[i], shared_layer, s->width, &l, shape, a);
    }
    set->batch = *shared_batch;
    own_carve(&set->batch, s, shape, a);
    set->n_batch = shape->batch;
    set->seq = shape->seq;
    set->given_batch = shape->given_batch;
    set->given_seq = shape->given_seq;
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
