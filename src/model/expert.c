/* expert.c: see expert.h. */
#include "model/expert.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

int64_t lt_experts_room(int64_t own, int n, double room) {
    const int64_t most = own * n;
    const double wanted = ceil((double)own * room);
    return room > 0 && wanted < (double)most ? (int64_t)wanted : most;
}

lt_err lt_experts_check(const lt_model_spec *s, const lt_pass_options *o) {
    const int n = lt_pass_n_ep(o);
    if (n == 1) {
        return LT_OK;
    }
    if (o->on_device) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "expert parallelism over %d ranks on a GPU", n);
    }
    if (s->n_experts == 0 || s->n_experts % n != 0) {
        LT_FAIL(LT_ERR_ARG, "expert parallelism: %d ranks do not divide the model's %lld experts",
                n, (long long)s->n_experts);
    }
    return LT_OK;
}

void lt_experts_carve(lt_experts *x, const lt_model_spec *s, lt_dtype dtype,
                      const lt_pass_options *o, lt_arena *a) {
    const int64_t own = o->batch * o->seq * s->top_k,
                  room = lt_experts_room(own, lt_pass_n_ep(o), o->expert_room);
    const size_t row = (size_t)s->width * lt_dtype_bytes(dtype);
    if (lt_pass_n_ep(o) == 1) {
        return;
    }
    x->wire = lt_arena_take(a, (size_t)room * row, LT_ARENA_ALIGN);
    x->result = lt_arena_take(a, (size_t)room * row, LT_ARENA_ALIGN);
    x->home = lt_arena_take(a, (size_t)own * row, LT_ARENA_ALIGN);
    x->tell = lt_arena_take(a, (size_t)s->n_experts * sizeof(int32_t), LT_ARENA_ALIGN);
    x->counts = lt_arena_take(a, 2 * (size_t)lt_pass_n_ep(o) * sizeof(int64_t), LT_ARENA_ALIGN);
}

void lt_experts_set(lt_experts *x, const lt_pass_options *o) {
    x->group = o->experts;
    x->n = lt_group_size(x->group);
    x->rank = lt_group_rank(x->group);
    x->room = o->expert_room;
}

/* ---- How many rows ---- */

static int64_t n_here(const lt_layer_acts *t) {
    return t->here_start.shape[0] - 1; /* Experts. */
}

static int64_t came(const lt_layer_acts *t) {
    return ((const int32_t *)t->here_start.data)[n_here(t)];
}

/* Rows that rank `source` sent to expert e of this rank. */
static int64_t from(const lt_layer_acts *t, int source, int64_t e) {
    return ((const int32_t *)t->expert_count.data)[source * n_here(t) + e];
}

static lt_err meet(lt_exec *r, int layer, const lt_layer_acts *t) {
    lt_experts *x = r->experts;
    const int32_t *const start = t->expert_start.data;
    int32_t *const here = t->here_start.data;
    const int64_t E = n_here(t), room = t->up.shape[0];
    int64_t total = 0;

    LT_TRY(r->backend->sync(r->queue));
    for (int64_t e = 0; e < E * x->n; e++) {
        x->tell[e] = start[e + 1] - start[e];
    }
    for (int i = 0; i < x->n; i++) {
        x->counts[i] = E;
    }
    LT_TRY(
        lt_all_to_all(x->group, t->expert_count.data, x->counts, x->tell, x->counts, LT_I32, NULL));
    for (int64_t e = 0; e < E; e++) {
        here[e] = (int32_t)total;
        for (int i = 0; i < x->n; i++) {
            total += from(t, i, e);
        }
    }
    here[E] = (int32_t)total;
    if (total > room) {
        LT_FAIL(LT_ERR_LIMIT,
                "layer %d: %lld rows chose the %lld experts of rank %d, and there is room for %lld "
                "(mesh.expert_room = %g); %.3g would do, 0 is always enough",
                layer, (long long)total, (long long)E, x->rank, (long long)room, x->room,
                (double)total / (double)t->slot_row.shape[0]);
    }
    return LT_OK;
}

lt_err lt_experts_meet(lt_exec *r, int layer, const lt_layer_acts *t) {
    return r->experts == NULL ? LT_OK : meet(r, layer, t);
}

lt_layer_acts lt_experts_here(const lt_exec *r, const lt_layer_acts *t) {
    lt_layer_acts here = *t;
    if (r->experts != NULL) {
        /* One row at least: nobody reads it, and no tensor is empty. */
        const int64_t rows = came(t) > 0 ? came(t) : 1;
        here.xg = lt_tensor_rows(&t->xg, 0, rows);
        here.up = lt_tensor_rows(&t->up, 0, rows);
        here.act = lt_tensor_rows(&t->act, 0, rows);
        here.down = lt_experts_results(r, t, t->down);
        here.expert_start = t->here_start;
    }
    return here;
}

lt_tensor lt_experts_own_rows(const lt_exec *r, const lt_layer_acts *t) {
    return r->experts == NULL
               ? t->xg
               : lt_tensor_2d(r->experts->home, r->dtype, t->slot_row.shape[0], t->xg.shape[1]);
}

lt_tensor lt_experts_results(const lt_exec *r, const lt_layer_acts *t, lt_tensor own) {
    const int64_t rows = r->experts != NULL && came(t) > 0 ? came(t) : 1;
    return r->experts == NULL ? own
                              : lt_tensor_2d(r->experts->result, r->dtype, rows, own.shape[1]);
}

/* ---- Rows on their way ---- */

/* Elements of rows of C columns that go to and come from each rank. */
static void counts_of(const lt_experts *x, const lt_layer_acts *t, int64_t C, int64_t *to,
                      int64_t *back) {
    const int32_t *const start = t->expert_start.data;
    const int64_t E = n_here(t);
    for (int i = 0; i < x->n; i++) {
        to[i] = (start[(i + 1) * E] - start[i * E]) * C;
        back[i] = 0;
        for (int64_t e = 0; e < E; e++) {
            back[i] += from(t, i, e) * C;
        }
    }
}

/* Between the wire's order (source, expert, row) and that of the experts (expert, source, row). */
static lt_err reorder(lt_exec *r, const lt_layer_acts *t, lt_tensor rows, bool from_wire) {
    const lt_experts *x = r->experts;
    const lt_tensor wire = lt_tensor_2d(x->wire, r->dtype, rows.shape[0], rows.shape[1]);
    int64_t at = 0; /* On the wire. */
    for (int i = 0; i < x->n; i++) {
        for (int64_t e = 0; e < n_here(t); e++) {
            int64_t to = ((const int32_t *)t->here_start.data)[e];
            const int64_t n = from(t, i, e);
            for (int before = 0; before < i; before++) {
                to += from(t, before, e);
            }
            if (n > 0) {
                const lt_tensor there = lt_tensor_rows(&rows, to, n),
                                here = lt_tensor_rows(&wire, at, n);
                LT_TRY(lt_exec_cast(r, &(lt_cast_args){.y = from_wire ? there : here,
                                                       .x = from_wire ? here : there}));
            }
            at += n;
        }
    }
    LT_ASSERT(at == came(t));
    return LT_OK;
}

lt_err lt_experts_send(lt_exec *r, const lt_layer_acts *t, lt_tensor there, lt_tensor own) {
    lt_experts *x = r->experts;
    if (x == NULL) {
        return LT_OK;
    }
    int64_t *const to = x->counts, *const back = x->counts + x->n;
    counts_of(x, t, own.shape[1], to, back);
    LT_TRY(r->backend->sync(r->queue));
    LT_TRY(lt_all_to_all(x->group, x->wire, back, own.data, to, r->dtype, NULL));
    return reorder(r, t, there, true);
}

lt_err lt_experts_return(lt_exec *r, const lt_layer_acts *t, lt_tensor own, lt_tensor there) {
    lt_experts *x = r->experts;
    if (x == NULL) {
        return LT_OK;
    }
    int64_t *const to = x->counts, *const back = x->counts + x->n;
    LT_TRY(reorder(r, t, there, false));
    counts_of(x, t, own.shape[1], to, back);
    LT_TRY(r->backend->sync(r->queue));
    return lt_all_to_all(x->group, own.data, to, x->wire, back, r->dtype, NULL);
}
