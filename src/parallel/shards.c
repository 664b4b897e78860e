/* shards.c: see shards.h. */
#include "parallel/shards.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/files/stored_weights.h"
#include "parallel/slice.h"

/* Ranks `from`, `from + step`, ... of this rank's dp x cp plane. */
static lt_err open_of_plane(lt_group **out, const lt_world *w, const char *name, int from, int step,
                            int n) {
    const lt_mesh_shape *m = &w->shape;
    const lt_layout *l = &w->layout;
    lt_err err;
    int *ranks = calloc((size_t)n, sizeof *ranks);
    if (ranks == NULL) {
        LT_FAIL(LT_ERR_OOM, "group of %d ranks", n);
    }
    for (int i = 0; i < n; i++) {
        ranks[i] = w->first + (l->pp * m->dp * m->cp + from + i * step) * m->tp + l->tp;
    }
    err = lt_group_open(out, w->comm, name, ranks, n);
    free(ranks);
    return err;
}

static lt_err open_groups(lt_shards *s, int per_group) {
    const lt_world *w = s->world;
    const int ep = w->shape.ep, all = w->shape.dp * w->shape.cp / ep;
    const int rank = ep > 1 ? w->layout.edp : w->layout.dp * w->shape.cp + w->layout.cp;
    if (ep > 1 && all == 1) {
        const int fewer = (int)lt_mesh_divisor(ep, ep / 2);
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "mesh.zero = %d with ep=%d on %d ranks of dp x cp: no two ranks have the same "
                "experts, so there is nothing to divide; ep=%d leaves %d of them",
                s->level, ep, ep, fewer, ep / fewer);
    }
    if (ep > 1 && per_group > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "mesh.shard = %d with ep=%d: the %d ranks with the same experts divide the state, "
                "and groups of them do not; leave mesh.shard out",
                per_group, ep, all);
    }
    s->n = per_group > 0 ? per_group : all;
    if (all % s->n != 0) {
        LT_FAIL(LT_ERR_ARG,
                "mesh.shard = %d does not divide the %d ranks of dp x cp; mesh.shard = %lld does",
                s->n, all, (long long)lt_mesh_divisor(all, s->n));
    }
    s->own = rank % s->n;
    if (w->comm == NULL) {
        return LT_OK;
    }
    if (ep > 1) {
        s->ranks = w->mesh.edp;
        s->replicas = w->mesh.ep;
        return LT_OK;
    }
    if (s->n == all) {
        s->ranks = w->mesh.grad;
        return LT_OK;
    }
    LT_TRY(open_of_plane(&s->ranks, w, "shard", rank - s->own, 1, s->n));
    return open_of_plane(&s->replicas, w, "replicas", s->own, s->n, all / s->n);
}

static int64_t full_room(const void *ctx, int unit, int64_t held) {
    const lt_shards *s = ctx;
    (void)unit;
    return s->n * lt_slice_size(held, s->n);
}

/* The boxes of the layout; q, k and v are one box if the rank holds all of them. */
static lt_err full_boxes(const void *ctx, const lt_param *p, lt_box_list *out) {
    const lt_shards *s = ctx;
    const lt_partition layout = lt_layout_partition(&s->world->layout);
    lt_box whole = {.first = {0}};
    lt_box_list list = {0};
    lt_err err = LT_OK;
    int64_t count = 0;
    LT_TRY_DONE(layout.boxes(layout.ctx, p, &list));
    for (int b = 0; b < list.n; b++) {
        count += lt_box_count(&list.boxes[b], p->n_dims);
    }
    memcpy(whole.extent, p->shape, sizeof p->shape);
    if (count == p->count) {
        LT_TRY_DONE(lt_box_add(out, &whole));
    }
    for (int b = 0; count < p->count && b < list.n; b++) {
        LT_TRY_DONE(lt_box_add(out, &list.boxes[b]));
    }
done:
    free(list.boxes);
    return err;
}

static int64_t own_room(const void *ctx, int unit, int64_t held) {
    const int64_t size = lt_shards_size(ctx, unit);
    LT_ASSERT(held <= size);
    return size;
}

void lt_shards_range(const lt_shards *s, const lt_param *p, int member, int64_t *from,
                     int64_t *to) {
    const lt_slice slice = lt_slice_of(s->full.units[p->unit].n_elements, s->n, member);
    *from = slice.first > p->at ? slice.first - p->at : 0;
    *to = slice.end - p->at < p->local_count ? slice.end - p->at : p->local_count;
}

/* The part of the parameter that lies in this rank's slice. */
static lt_err own_boxes(const void *ctx, const lt_param *p, lt_box_list *out) {
    const lt_shards *s = ctx;
    const lt_param_table *t = &s->full;
    const lt_param *q = &t->params[p->number];
    int64_t from, to;
    if (q->at < 0) { /* It is kept in blocks. */
        return LT_OK;
    }
    lt_shards_range(s, q, s->own, &from, &to);
    return from < to ? lt_box_cut(out, lt_param_boxes(t, q), q->n_boxes, q->n_dims, from, to)
                     : LT_OK;
}

lt_partition lt_shards_full(const lt_shards *s) {
    return (lt_partition){full_boxes, s, full_room};
}

lt_partition lt_shards_own(const lt_shards *s) {
    return (lt_partition){own_boxes, s, own_room};
}

int64_t lt_shards_size(const lt_shards *s, int unit) {
    return s->full.units[unit].n_elements / s->n;
}

lt_err lt_shards_open(lt_shards *s, const lt_world *w, int level, int per_group) {
    *s = (lt_shards){.world = w, .level = level, .n = 1};
    if (level == 0) {
        return LT_OK;
    }
    LT_TRY(open_groups(s, per_group));
    const lt_partition full = lt_shards_full(s);
    return lt_param_table_open_part(&s->full, w->layout.spec, &full);
}

/* Open the shards of the model beside adapters, whose slices the same ranks keep. */
static lt_err open_frozen(lt_shards *s) {
    lt_shards *of = calloc(1, sizeof *of);
    if (of == NULL) {
        LT_FAIL(LT_ERR_OOM, "shards");
    }
    *of = *s;
    of->level = 3;
    s->frozen = of;
    const lt_partition full = lt_shards_full(of);
    return lt_param_table_open_part(&of->full, s->world->layout.spec, &full);
}

static lt_err open_full(lt_shards *s, const lt_lora_options *adapters) {
    const lt_partition full = lt_shards_full(s);
    lt_lora_plan plan;
    LT_TRY(lt_lora_plan_open(&plan, s->world->layout.spec, adapters, NULL, &full));
    s->full = plan.table;
    plan.table = (lt_param_table){0};
    lt_lora_plan_close(&plan);
    return LT_OK;
}

lt_err lt_shards_open_adapters(lt_shards *s, const lt_world *w, int level, int per_group,
                               const lt_lora_options *adapters) {
    *s = (lt_shards){.world = w, .level = level < 2 ? level : 2, .n = 1};
    if (level == 0) {
        return LT_OK;
    }
    LT_TRY(open_groups(s, per_group));
    LT_TRY(level == 3 ? open_frozen(s) : LT_OK);
    return open_full(s, adapters);
}

lt_err lt_shards_open_beside(lt_shards *s, const lt_shards *of, const lt_lora_options *adapters) {
    *s = *of;
    s->beside = true;
    s->full = (lt_param_table){0};
    return s->level == 0 ? LT_OK : open_full(s, adapters);
}

void lt_shards_keep_blocks(lt_shards *s, const lt_stored_weight *stored, size_t *bytes) {
    const lt_partition full = lt_shards_full(s);
    s->block_bytes = bytes;
    s->numbered_rows = lt_stored_most_rows(&s->full, stored);
    lt_param_table_skip_stored(&s->full, stored, &full);
}

void lt_shards_close(lt_shards *s) {
    if (s->frozen != NULL && !s->beside) {
        free(s->frozen->block_bytes);
        lt_param_table_close(&s->frozen->full);
        free(s->frozen);
    }
    lt_param_table_close(&s->full);
    *s = (lt_shards){0};
}

const lt_shards *lt_shards_of_weights(const lt_shards *s) {
    return s->level == 3 ? s : s->frozen;
}

int lt_shards_part(const lt_shards *s, int *n_parts) {
    const lt_layout *l = &s->world->layout;
    if (s->level == 0) {
        return lt_world_part(s->world, n_parts);
    }
    *n_parts = l->shape.pp * s->n * l->shape.ep * l->shape.tp;
    if (l->shape.ep == 1 && s->replicas != NULL && lt_group_rank(s->replicas) > 0) {
        return -1;
    }
    return ((l->pp * s->n + s->own) * l->shape.ep + l->ep) * l->shape.tp + l->tp;
}
