/* expert.c: see expert.h. */
#include "model/blocks/expert.h"

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
}

/* ---- On the host ---- */

static void host_carve(lt_experts *x, const lt_model_spec *s, int most, bool on_device,
                       lt_arena *a) {
    const size_t n = (size_t)x->n, E = (size_t)s->n_experts, word = sizeof(int32_t);
    x->tell = lt_arena_take(a, E * word, LT_ARENA_ALIGN);
    x->counts = lt_arena_take(a, 2 * n * sizeof *x->counts, LT_ARENA_ALIGN);
    for (int i = 0; on_device && i < most; i++) {
        lt_experts_counts counts = {
            .start = lt_arena_take(a, (E + 1) * word, LT_ARENA_ALIGN),
            .count = lt_arena_take(a, E * word, LT_ARENA_ALIGN), /* n ranks, E / n experts. */
            .here = lt_arena_take(a, (E / n + 1) * word, LT_ARENA_ALIGN),
        };
        if (x->met != NULL) {
            x->met[i] = counts;
        }
    }
}

lt_err lt_experts_open(lt_experts *x, const lt_model_spec *s, const lt_pass_options *o, int most,
                       lt_device *device) {
    const lt_backend *be = device->backend;
    lt_arena a = {0};
    void *base = NULL;
    x->group = o->experts;
    x->host = o->experts_host != NULL ? o->experts_host : o->experts;
    x->n = lt_group_size(x->group);
    x->rank = lt_group_rank(x->group);
    x->room = o->expert_room;
    x->most_met = be->host_memory ? 0 : most;
    host_carve(x, s, most, !be->host_memory, &a);
    LT_TRY(be->host_alloc(device, &base, a.used_bytes, "counts of experts"));
    x->memory = (lt_arena){.base = base, .size_bytes = a.used_bytes, .name = "counts of experts"};
    x->met = calloc((size_t)most, sizeof *x->met);
    if (x->met == NULL) {
        LT_FAIL(LT_ERR_OOM, "counts of experts of %d layers", most);
    }
    host_carve(x, s, most, !be->host_memory, &x->memory);
    return LT_OK;
}

void lt_experts_close(lt_experts *x, lt_device *device) {
    if (x->memory.base != NULL) {
        device->backend->host_release(device, x->memory.base, x->memory.size_bytes);
    }
    free(x->met);
    *x = (lt_experts){0};
}

/* ---- How many rows ---- */

static int64_t n_here(const lt_layer_acts *t) {
    return t->here_start.shape[0] - 1; /* Experts. */
}

/* A layer's counts from its last exchange. */
static lt_experts_counts counts_at(const lt_exec *r, const lt_layer_acts *t) {
    const lt_experts *x = r->experts;
    for (int i = 0; i < x->n_met; i++) {
        if (x->met[i].of == t->here_start.data) {
            return x->met[i];
        }
    }
    LT_ASSERT(r->backend->host_memory);
    return (lt_experts_counts){
        .start = t->expert_start.data, .count = t->expert_count.data, .here = t->here_start.data};
}

static int64_t came(const lt_exec *r, const lt_layer_acts *t) {
    return counts_at(r, t).here[n_here(t)];
}

/* Rows that rank `source` sent to expert e of this rank. */
static int64_t from(const lt_experts_counts *k, const lt_layer_acts *t, int source, int64_t e) {
    return k->count[source * n_here(t) + e];
}

/* The place for a layer's counts: its own, an empty one, or the one that was used longest ago,
 * which is no longer needed: a batch of another shape has its tensors elsewhere, so it takes
 * another place. */
static lt_experts_counts *place_for(lt_experts *x, const lt_layer_acts *t) {
    lt_experts_counts *oldest = &x->met[0];
    for (int i = 0; i < x->n_met; i++) {
        if (x->met[i].of == t->here_start.data) {
            return &x->met[i];
        }
        oldest = x->met[i].meeting < oldest->meeting ? &x->met[i] : oldest;
    }
    return x->n_met < x->most_met ? &x->met[x->n_met++] : oldest;
}

/* Bring the layer's routes to the host. */
static lt_err fetch_start(lt_exec *r, const lt_layer_acts *t, lt_experts_counts *out) {
    lt_experts *x = r->experts;
    lt_experts_counts *place;
    if (r->backend->host_memory) {
        *out = counts_at(r, t);
        return LT_OK;
    }
    place = place_for(x, t);
    place->of = t->here_start.data;
    place->meeting = ++x->n_meetings;
    *out = *place;
    LT_TRY(r->backend->download(r->queue, out->start, t->expert_start.data,
                                (size_t)t->expert_start.shape[0] * sizeof *out->start));
    return r->backend->sync(r->queue);
}

static lt_err meet(lt_exec *r, int layer, const lt_layer_acts *t) {
    lt_experts *x = r->experts;
    const int64_t E = n_here(t), room = t->up.shape[0];
    int64_t total = 0;
    lt_experts_counts k;

    LT_TRY(fetch_start(r, t, &k));
    for (int64_t e = 0; e < E * x->n; e++) {
        x->tell[e] = k.start[e + 1] - k.start[e];
    }
    for (int i = 0; i < x->n; i++) {
        x->counts[i] = E;
    }
    LT_TRY(lt_all_to_all(x->host, k.count, x->counts, x->tell, x->counts, LT_I32, NULL));
    for (int64_t e = 0; e < E; e++) {
        k.here[e] = (int32_t)total;
        for (int i = 0; i < x->n; i++) {
            total += from(&k, t, i, e);
        }
    }
    k.here[E] = (int32_t)total;
    if (total > room) {
        LT_FAIL(LT_ERR_LIMIT,
                "layer %d: %lld rows chose the %lld experts of rank %d, and there is room for %lld "
                "(mesh.expert_room = %g); %.3g would do, 0 is always enough",
                layer, (long long)total, (long long)E, x->rank, (long long)room, x->room,
                (double)total / (double)t->slot_row.shape[0]);
    }
    return r->backend->host_memory ? LT_OK
                                   : r->backend->upload(r->queue, t->here_start.data, k.here,
                                                        (size_t)(E + 1) * sizeof *k.here);
}

lt_err lt_experts_meet(lt_exec *r, int layer, const lt_layer_acts *t) {
    return r->experts == NULL ? LT_OK : meet(r, layer, t);
}

lt_layer_acts lt_experts_here(const lt_exec *r, const lt_layer_acts *t) {
    lt_layer_acts here = *t;
    if (r->experts != NULL) {
        /* At least one row, which is never read, so that no tensor is empty. */
        const int64_t rows = came(r, t) > 0 ? came(r, t) : 1;
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
    const int64_t rows = r->experts != NULL && came(r, t) > 0 ? came(r, t) : 1;
    return r->experts == NULL ? own
                              : lt_tensor_2d(r->experts->result, r->dtype, rows, own.shape[1]);
}

/* ---- Rows on their way ---- */

/* Elements of rows of C columns that are sent to and received from each rank. */
static void counts_of(const lt_exec *r, const lt_layer_acts *t, int64_t C, int64_t *to,
                      int64_t *back) {
    const lt_experts_counts k = counts_at(r, t);
    const int64_t E = n_here(t);
    for (int i = 0; i < r->experts->n; i++) {
        to[i] = (k.start[(i + 1) * E] - k.start[i * E]) * C;
        back[i] = 0;
        for (int64_t e = 0; e < E; e++) {
            back[i] += from(&k, t, i, e) * C;
        }
    }
}

/* Convert between the order of transfers (source, expert, row) and that of the experts (expert,
 * source, row). */
static lt_err reorder(lt_exec *r, const lt_layer_acts *t, lt_tensor rows, bool from_wire) {
    const lt_experts *x = r->experts;
    const lt_experts_counts k = counts_at(r, t);
    const lt_tensor wire = lt_tensor_2d(x->wire, r->dtype, rows.shape[0], rows.shape[1]);
    int64_t at = 0; /* On the wire. */
    for (int i = 0; i < x->n; i++) {
        for (int64_t e = 0; e < n_here(t); e++) {
            int64_t to = k.here[e];
            const int64_t n = from(&k, t, i, e);
            for (int before = 0; before < i; before++) {
                to += from(&k, t, before, e);
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
    LT_ASSERT(at == came(r, t));
    return LT_OK;
}

lt_err lt_experts_send(lt_exec *r, const lt_layer_acts *t, lt_tensor there, lt_tensor own) {
    lt_experts *x = r->experts;
    if (x == NULL) {
        return LT_OK;
    }
    int64_t *const to = x->counts, *const back = x->counts + x->n;
    lt_comm_work work;
    counts_of(r, t, own.shape[1], to, back);
    lt_exec_verb_begin(r, x->group);
    LT_TRY(lt_all_to_all(x->group, x->wire, back, own.data, to, r->dtype, &work));
    LT_TRY(lt_exec_verb_end(r, x->group, work));
    return reorder(r, t, there, true);
}

lt_err lt_experts_return(lt_exec *r, const lt_layer_acts *t, lt_tensor own, lt_tensor there) {
    lt_experts *x = r->experts;
    if (x == NULL) {
        return LT_OK;
    }
    int64_t *const to = x->counts, *const back = x->counts + x->n;
    lt_comm_work work;
    LT_TRY(reorder(r, t, there, false));
    counts_of(r, t, own.shape[1], to, back);
    lt_exec_verb_begin(r, x->group);
    LT_TRY(lt_all_to_all(x->group, own.data, to, x->wire, back, r->dtype, &work));
    return lt_exec_verb_end(r, x->group, work);
}
