/* cross.c: the planner's error on rows that its fits have not seen.
 *
 * Every row is predicted again with efficiencies fitted without it: for each row the named anchors
 * of its GPU kind and stack family, less the row itself (LT_PLAN_UNSEEN_ROW) or less every row of
 * its group or of its source (LT_PLAN_UNSEEN_GROUP, _SOURCE), are fitted again. The efficiencies
 * come from the first of these that still exists: the fit of the row's own stack, the fit of the
 * stack's family, the defaults of the GPU kind. So no row counts as an anchor, and leaving out
 * groups shows the error for a user whose software has not been measured. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "plan/points.h"

typedef struct {
    const lt_points *p;
    lt_point_result *r;
    lt_plan_unseen mode;
} cross;

static bool same_family(const lt_plan_stack *a, const lt_plan_stack *b) {
    char x[LT_PLAN_NAME_BYTES], y[LT_PLAN_NAME_BYTES];
    lt_plan_stack_family(x, a->name);
    lt_plan_stack_family(y, b->name);
    return strcmp(x, y) == 0 && strcmp(a->gpu, b->gpu) == 0;
}

static const char *field(const lt_point_result *r, lt_point_column column) {
    return r->row->field[column];
}

/* Whether row i may not learn from row k. */
static bool hidden(const cross *x, size_t i, size_t k) {
    const lt_point_column column = x->mode == LT_PLAN_UNSEEN_GROUP ? LT_POINT_group
                                                                   : LT_POINT_source;
    switch (x->mode) {
    case LT_PLAN_UNSEEN_ROW:
        return k == i;
    case LT_PLAN_UNSEEN_THIRD:
        return lt_point_held_out(x->r[k].row);
    case LT_PLAN_UNSEEN_GROUP:
    case LT_PLAN_UNSEEN_SOURCE:
        break;
    }
    return strcmp(field(&x->r[i], column), field(&x->r[k], column)) == 0;
}

/* Anchors that row i may learn from; returns how many. */
static size_t anchors_for(const cross *x, size_t i, const char **ids) {
    const lt_point_result *own = &x->r[i];
    size_t n = 0;
    for (size_t k = 0; k < x->p->n; k++) {
        const lt_point_result *other = &x->r[k];
        if (other->anchor && !hidden(x, i, k) &&
            same_family(&own->job.cluster.stack, &other->job.cluster.stack)) {
            ids[n++] = field(other, LT_POINT_id);
        }
    }
    return n;
}

static void take(lt_plan_stack *to, const lt_plan_stack *from) {
    to->gemm = from->gemm;
    to->memory = from->memory;
    to->network = from->network;
    if (to->launch_blocking > 0 && from->launch_blocking > 0) {
        to->launch_us = from->launch_us;
    }
}

static lt_err refit(const cross *x, size_t i) {
    lt_err err = LT_OK;
    lt_plan_stack *own = &x->r[i].job.cluster.stack;
    const char **ids = calloc(x->p->n, sizeof *ids);
    char family[LT_PLAN_NAME_BYTES];
    lt_plan_fit *fits = NULL;
    lt_plan_stack base;
    size_t n_ids, n = 0;

    if (ids == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu rows", x->p->n);
    }
    LT_TRY_DONE(lt_plan_stack_find(&base, own->gpu, "default"));
    take(own, &base);
    n_ids = anchors_for(x, i, ids);
    if (n_ids > 0) {
        LT_TRY_DONE(lt_plan_fit_rows(x->p, ids, n_ids, &fits, &n));
    }
    lt_plan_stack_family(family, own->name);
    for (int pass = 0; pass < 2;
         pass++) { /* The family's fit first; the stack's own overrides it. */
        for (size_t k = 0; k < n; k++) {
            if (strcmp(fits[k].stack.name, pass == 0 ? family : own->name) == 0) {
                take(own, &fits[k].stack);
            }
        }
    }
done:
    free(fits);
    free(ids);
    return err;
}

static void one(void *ctx, size_t i) {
    const cross *x = ctx;
    lt_point_result *r = &x->r[i];
    if (!r->used || (x->mode == LT_PLAN_UNSEEN_ROW && !r->anchor) ||
        (x->mode == LT_PLAN_UNSEEN_THIRD && !lt_point_held_out(r->row))) {
        return; /* Its fit has not seen it, or it belongs to the fit part. */
    }
    if (refit(x, i) != LT_OK) {
        snprintf(r->why, sizeof r->why, "%.240s", lt_error_message());
        r->used = false;
        return;
    }
    r->job.layout_known = false;
    lt_point_result_predict(r);
}

lt_err lt_plan_cross_validate(const lt_points *p, lt_plan_unseen mode, lt_point_result **out) {
    cross x = {.p = p, .mode = mode};
    LT_TRY(lt_plan_validate(p, &x.r));
    lt_parallel_for(p->n, one, &x);
    for (size_t i = 0; i < p->n; i++) {
        x.r[i].anchor = mode == LT_PLAN_UNSEEN_THIRD && x.r[i].anchor &&
                        !lt_point_held_out(&p->rows[i]);
    }
    *out = x.r;
    return LT_OK;
}
