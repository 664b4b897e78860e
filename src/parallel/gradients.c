/* gradients.c: see gradients.h. The sum of a box over tp is complete before the sum of its unit
 * over dp x cp reads it. */
#include "parallel/gradients.h"

#include "base/error.h"

typedef struct {
    const lt_world *world;
    const lt_param_table *table;
    const lt_param_buffer *gradients;
    bool stages;       /* Also sum the copies on both stages. */
    lt_comm_work last; /* 0: nothing was queued. */
} summing;

static lt_err sum(summing *s, lt_group *g, float *data, int64_t count) {
    if (g == NULL || lt_group_size(g) == 1 || count == 0) {
        return LT_OK;
    }
    return lt_all_reduce(lt_world_twin(s->world, g), data, data, count, LT_F32, LT_REDUCE_SUM,
                         &s->last);
}

/* The boxes of a parameter, over the ranks of tp and of both stages that hold copies. */
static lt_err sum_copies(summing *s, const lt_param *p) {
    const lt_world *w = s->world;
    float *data = lt_param_data(s->gradients, p);
    for (int b = 0; data != NULL && b < p->n_boxes; b++) {
        const lt_box *box = &lt_param_boxes(s->table, p)[b];
        const int64_t count = lt_box_count(box, p->n_dims);
        const unsigned copies = lt_layout_copies(&w->layout, p, box);
        LT_TRY((copies & LT_COPIES_TP) != 0 ? sum(s, w->mesh.tp, data, count) : LT_OK);
        LT_TRY((copies & LT_COPIES_KV) != 0 ? sum(s, w->kv, data, count) : LT_OK);
        LT_TRY(s->stages && (copies & LT_COPIES_STAGES) != 0 ? sum(s, w->stages, data, count)
                                                             : LT_OK);
        data += count;
    }
    return LT_OK;
}

lt_err lt_gradients_sum_copies(const lt_world *w, const lt_param_table *t,
                               const lt_param_buffer *gradients, int unit, bool stages,
                               lt_comm_work *last) {
    summing s = {.world = w, .table = t, .gradients = gradients, .stages = stages, .last = *last};
    const lt_unit *u = &t->units[unit];
    for (int i = 0; i < u->n_params; i++) {
        LT_TRY(sum_copies(&s, &t->params[u->first_param + i]));
    }
    *last = s.last;
    return LT_OK;
}

lt_err lt_gradients_sum_unit(const lt_world *w, const lt_param_table *t,
                             const lt_param_buffer *gradients, int unit, lt_comm_work *last) {
    summing s = {.world = w, .table = t, .gradients = gradients};
    const lt_unit *u = &t->units[unit];
    if (gradients->base[unit] == NULL) {
        return LT_OK;
    }
    s.last = *last;
    LT_TRY(lt_gradients_sum_copies(w, t, gradients, unit, true, &s.last));
    if (w->shape.ep == 1) {
        LT_TRY(sum(&s, w->mesh.grad, gradients->base[unit], u->n_elements));
    }
    for (int i = 0; w->shape.ep > 1 && i < u->n_params; i++) {
        const lt_param *p = &t->params[u->first_param + i];
        lt_group *g = lt_layout_expert(&w->layout, p) ? w->mesh.edp : w->mesh.grad;
        LT_TRY(sum(&s, g, lt_param_data(gradients, p), p->local_count));
    }
    *last = s.last;
    return LT_OK;
}

lt_err lt_gradients_sum(const lt_world *w, const lt_param_table *t,
                        const lt_param_buffer *gradients) {
    lt_comm_work last = 0;
    for (int u = 0; u < t->n_units; u++) {
        LT_TRY(lt_gradients_sum_unit(w, t, gradients, u, &last));
    }
    return last > 0 ? lt_comm_wait(lt_world_buffers(w), last) : LT_OK;
}
