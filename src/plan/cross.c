/* cross.c: the planner's error on rows that its fits have not seen.
 *
 * Every row is predicted again with efficiencies fitted without it: for each row the named anchors
 * of its GPU kind and stack family, less the row itself (LT_PLAN_UNSEEN_ROW) or less every row of
 * its group or of its source (LT_PLAN_UNSEEN_GROUP, _SOURCE), are fitted again. The efficiencies
 * come from the first of these that still exists: the fit of the row's own stack, the fit of the
 * stack's family, the defaults of the GPU kind. So no row counts as an anchor, and leaving out
 * groups shows the error for a user whose software has not been measured. Rows that learn from the
 * same anchors share one fit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "plan/points.h"

/* The rows from which a row is predicted. */
typedef struct {
    const char **ids;    /* Its anchors; NULL: it is not predicted again. */
    size_t n_ids, first; /* first: the first row with the same anchors, which has their fits. */
    lt_plan_fit *fits;
    size_t n_fits;
    lt_err err; /* Result of the fit. */
    char why[LT_PLAN_TEXT_BYTES];
} lesson;

typedef struct {
    const lt_points *p;
    lt_point_result *r;
    lt_plan_unseen mode;
    lesson *of; /* (p->n) */
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

/* Whether a row is predicted again: others are seen by no fit, or belong to the fit part. */
static bool predicted(const cross *x, size_t i) {
    const lt_point_result *r = &x->r[i];
    return r->used && (x->mode != LT_PLAN_UNSEEN_ROW || r->anchor) &&
           (x->mode != LT_PLAN_UNSEEN_THIRD || lt_point_held_out(r->row));
}

/* Anchors from which row i may be fitted; returns their number. */
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

/* Find the anchors of each row, and the rows that have the same. */
static lt_err find_lessons(cross *x) {
    for (size_t i = 0; i < x->p->n; i++) {
        lesson *l = &x->of[i];
        l->first = i;
        if (!predicted(x, i)) {
            continue;
        }
        l->ids = calloc(x->p->n, sizeof *l->ids);
        if (l->ids == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu rows", x->p->n);
        }
        l->n_ids = anchors_for(x, i, l->ids);
        for (size_t k = 0; k < i && l->first == i; k++) {
            const lesson *o = &x->of[k];
            if (o->ids != NULL && o->n_ids == l->n_ids &&
                memcmp(o->ids, l->ids, l->n_ids * sizeof *l->ids) == 0) {
                l->first = k;
            }
        }
    }
    return LT_OK;
}

static void fit(void *ctx, size_t i) {
    const cross *x = ctx;
    lesson *l = &x->of[i];
    if (l->n_ids > 0 && l->first == i) {
        l->err = lt_plan_fit_rows(x->p, l->ids, l->n_ids, &l->fits, &l->n_fits);
        if (l->err != LT_OK) {
            snprintf(l->why, sizeof l->why, "%.240s", lt_error_message());
        }
    }
}

/* Give a row the efficiencies of its stack: from the fits of `l`, else the defaults. */
static lt_err apply(lt_point_result *r, const lesson *l) {
    lt_plan_stack *own = &r->job.cluster.stack, base;
    char family[LT_PLAN_NAME_BYTES];
    LT_TRY(lt_plan_stack_find(&base, own->gpu, "default"));
    take(own, &base);
    lt_plan_stack_family(family, own->name);
    /* The family's fit comes first, and the stack's own overrides it. */
    for (int pass = 0; pass < 2; pass++) {
        for (size_t k = 0; k < l->n_fits; k++) {
            if (strcmp(l->fits[k].stack.name, pass == 0 ? family : own->name) == 0) {
                take(own, &l->fits[k].stack);
            }
        }
    }
    return LT_OK;
}

static void predict(void *ctx, size_t i) {
    const cross *x = ctx;
    lt_point_result *r = &x->r[i];
    const lesson *l = &x->of[x->of[i].first];
    if (x->of[i].ids == NULL) {
        return;
    }
    if (l->err == LT_OK && apply(r, l) == LT_OK) {
        r->job.layout_known = false;
        lt_point_result_predict(r);
        return;
    }
    snprintf(r->why, sizeof r->why, "%.240s", l->err != LT_OK ? l->why : lt_error_message());
    r->used = false;
}

lt_err lt_plan_cross_validate(const lt_points *p, lt_plan_unseen mode, lt_point_result **out) {
    lt_err err = LT_OK;
    cross x = {.p = p, .mode = mode, .of = calloc(p->n + 1, sizeof *x.of)};
    if (x.of == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu rows", p->n);
    }
    LT_TRY_DONE(lt_plan_validate(p, &x.r));
    LT_TRY_DONE(find_lessons(&x));
    lt_parallel_for(p->n, fit, &x);
    lt_parallel_for(p->n, predict, &x);
    for (size_t i = 0; i < p->n; i++) {
        x.r[i].anchor = mode == LT_PLAN_UNSEEN_THIRD && x.r[i].anchor &&
                        !lt_point_held_out(&p->rows[i]);
    }
    *out = x.r;
    x.r = NULL;
done:
    for (size_t i = 0; i < p->n && x.of != NULL; i++) {
        free(x.of[i].fits);
        free(x.of[i].ids);
    }
    free(x.of);
    free(x.r);
    return err;
}
