/* fit.c: the three efficiencies of a (GPU kind, software stack) from a few anchor rows.
 *
 * Minimises, over (ln gemm, ln memory, ln network),
 *     sum of ln(predicted / measured)^2 / SIGMA^2  +  sum of ((ln e - ln e0) / PRIOR)^2
 * by Gauss-Newton: few rows determine three numbers poorly, so the prior (the GPU's default) fixes
 * those that the rows do not determine. Everything else in the model is fixed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/points.h"

#define SIGMA        0.04
#define PRIOR        0.10
#define MAX_FITS     128
#define MAX_ANCHORS  512 /* Most anchors in one fit. */
#define EFFICIENCIES 3
#define OUTLIER      3.0 /* In units of SIGMA. */
#define DELTA        0.01
/* Centre of launch_us for stacks that wait at each launch: Python, dispatch and a
 * synchronisation. */
#define BLOCKING_US 100.0

/* Where launches block, the host's time around a kernel counts in full and matters more than memory
 * bandwidth: it is fitted instead of `memory`, which keeps its default. So three efficiencies are
 * fitted in any case. */
static double *efficiency(lt_plan_stack *s, int i) {
    return i == 0                   ? &s->gemm
           : i == 2                 ? &s->network
           : s->launch_blocking > 0 ? &s->launch_us
                                    : &s->memory;
}

static double clamp_efficiency(const lt_plan_stack *s, int i, double x) {
    const bool us = i == 1 && s->launch_blocking > 0;
    return lt_plan_min(us ? 2000.0 : 1.0, lt_plan_max(us ? 1.0 : 0.05, x));
}

/* How far a value may deviate from its centre; the speed of a host is not known in advance. */
static double width(const lt_plan_stack *s, int i) {
    return i == 1 && s->launch_blocking > 0 ? 5.0 * PRIOR : PRIOR;
}

typedef struct {
    const lt_plan_fit *f;
    lt_point_job *jobs;
    const lt_plan_stack *centre;
} problem;

/* Beyond OUTLIER the residual counts linearly, not squared (Huber 1964), so that a row slowed down
 * by half by some fault has no more influence than one that is off by a tenth. */
static double huber(double z) {
    const double a = fabs(z);
    return a <= OUTLIER ? z : copysign(sqrt(2.0 * OUTLIER * a - OUTLIER * OUTLIER), z);
}

/* Residuals at s: one per anchor, ln(predicted / measured) / SIGMA, then one per efficiency, its
 * distance from the centre. Returns the sum of their squares. */
static double residuals(const problem *p, const lt_plan_stack *s, double *r, double *rms) {
    const size_t n = p->f->n_anchors;
    double sum = 0, errors = 0;
    char why[LT_PLAN_TEXT_BYTES];
    for (size_t i = 0; i < n; i++) {
        lt_plan_stack *own = &p->jobs[i].cluster.stack;
        double predicted;
        own->gemm = s->gemm;
        own->memory = s->memory;
        own->network = s->network;
        if (s->launch_blocking > 0) {
            own->launch_us = s->launch_us;
        }
        predicted = lt_point_predict(&p->jobs[i], why);
        r[i] = predicted > 0 ? log(predicted / p->jobs[i].measured_s) / SIGMA : 1.0 / SIGMA;
        errors += r[i] * r[i] * SIGMA * SIGMA;
        r[i] = huber(r[i]);
    }
    for (int e = 0; e < EFFICIENCIES; e++) {
        lt_plan_stack a = *s, b = *p->centre;
        r[n + (size_t)e] = log(*efficiency(&a, e) / *efficiency(&b, e)) / width(s, e);
    }
    for (size_t i = 0; i < n + EFFICIENCIES; i++) {
        sum += r[i] * r[i];
    }
    *rms = sqrt(errors / (double)n);
    return sum;
}

/* Solve A x = b for a symmetric positive A of three rows. */
static void solve(double a[EFFICIENCIES][EFFICIENCIES], double *b) {
    for (int i = 0; i < EFFICIENCIES; i++) {
        for (int k = i + 1; k < EFFICIENCIES; k++) {
            const double f = a[k][i] / a[i][i];
            for (int c = i; c < EFFICIENCIES; c++) {
                a[k][c] -= f * a[i][c];
            }
            b[k] -= f * b[i];
        }
    }
    for (int i = EFFICIENCIES - 1; i >= 0; i--) {
        for (int c = i + 1; c < EFFICIENCIES; c++) {
            b[i] -= a[i][c] * b[c];
        }
        b[i] /= a[i][i];
    }
}

/* The step of Gauss and Newton, in logarithms of the efficiencies, by differences of DELTA. */
static void gauss_newton(const problem *p, const lt_plan_stack *at, const double *r, double *step) {
    double a[EFFICIENCIES][EFFICIENCIES] = {{0}}, moved[EFFICIENCIES][MAX_ANCHORS + EFFICIENCIES];
    const size_t n = p->f->n_anchors + EFFICIENCIES;
    double rms;
    for (int e = 0; e < EFFICIENCIES; e++) {
        lt_plan_stack s = *at;
        *efficiency(&s, e) *= exp(DELTA);
        (void)residuals(p, &s, moved[e], &rms);
        step[e] = 0;
        for (size_t i = 0; i < n; i++) {
            moved[e][i] = (moved[e][i] - r[i]) / DELTA;
            step[e] -= moved[e][i] * r[i];
        }
    }
    for (int e = 0; e < EFFICIENCIES; e++) {
        for (int k = 0; k < EFFICIENCIES; k++) {
            for (size_t i = 0; i < n; i++) {
                a[e][k] += moved[e][i] * moved[k][i];
            }
        }
    }
    solve(a, step);
}

/* Descend from f's own efficiencies. Missing facts of the rows' layouts are chosen once, at the
 * start. */
static void descend(lt_plan_fit *f, lt_point_job *jobs, const lt_plan_stack *centre) {
    const problem p = {f, jobs, centre};
    double r[MAX_ANCHORS + EFFICIENCIES], cost, step[EFFICIENCIES];
    for (size_t i = 0; i < f->n_anchors; i++) {
        jobs[i].layout_known = false;
    }
    cost = residuals(&p, &f->stack, r, &f->rms);
    for (int round = 0; round < 20; round++) {
        double scale = 1, gained = 0;
        gauss_newton(&p, &f->stack, r, step);
        for (; scale > 0.01 && gained <= 0; scale *= 0.5) {
            lt_plan_stack t = f->stack;
            double rms, c;
            for (int e = 0; e < EFFICIENCIES; e++) {
                *efficiency(&t, e) = clamp_efficiency(&t, e,
                                                      *efficiency(&t, e) * exp(scale * step[e]));
            }
            c = residuals(&p, &t, r, &rms);
            if (c < cost) {
                gained = cost - c;
                cost = c;
                f->stack = t;
                f->rms = rms;
            }
        }
        if (gained < 1e-4 * cost) {
            break;
        }
    }
}

static void fit_one(lt_plan_fit *f, lt_point_job *jobs, const lt_plan_stack *centre) {
    for (int e = 0; e < 3; e++) {
        lt_plan_stack from = *centre;
        *efficiency(&f->stack, e) = *efficiency(&from, e);
    }
    descend(f, jobs, centre);
    descend(f, jobs, centre); /* Other efficiencies may prefer other layouts. */
}

static lt_plan_fit *fit_for(lt_plan_fit *list, size_t *n, const lt_plan_stack *s) {
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(list[i].stack.gpu, s->gpu) == 0 && strcmp(list[i].stack.name, s->name) == 0) {
            return &list[i];
        }
    }
    if (*n == MAX_FITS) {
        return NULL;
    }
    list[*n] = (lt_plan_fit){.stack = *s};
    return &list[(*n)++];
}

static bool is_release(const lt_plan_stack *s) {
    char family[LT_PLAN_NAME_BYTES];
    lt_plan_stack_family(family, s->name);
    return strcmp(family, s->name) != 0;
}

/* Fit each stack that has releases also as a whole, on all their anchors, for releases without
 * measurements. */
static lt_err add_families(lt_plan_fit *list, size_t *n) {
    const size_t releases = *n;
    for (size_t i = 0; i < releases; i++) {
        lt_plan_fit *f;
        lt_plan_stack s = list[i].stack;
        if (!is_release(&s)) {
            continue;
        }
        lt_plan_stack_family(s.name, list[i].stack.name);
        f = fit_for(list, n, &s);
        for (size_t a = 0; f != NULL && a < list[i].n_anchors; a++) {
            if (f->n_anchors == sizeof f->anchor / sizeof *f->anchor) {
                LT_FAIL(LT_ERR_LIMIT, "fit: more than %zu anchors of %s on %s", f->n_anchors,
                        f->stack.name, f->stack.gpu);
            }
            f->anchor[f->n_anchors++] = list[i].anchor[a];
        }
    }
    return LT_OK;
}

static lt_err fit_with_centre(lt_plan_fit *list, size_t n, lt_plan_fit *f, lt_point_job *jobs) {
    lt_plan_stack centre;
    char family[LT_PLAN_NAME_BYTES], why[LT_PLAN_TEXT_BYTES];
    LT_TRY(lt_plan_stack_find(&centre, f->stack.gpu, "default"));
    if (f->stack.launch_blocking > 0) {
        centre.launch_blocking = f->stack.launch_blocking;
        centre.launch_us = BLOCKING_US;
    }
    lt_plan_stack_family(family, f->stack.name);
    for (size_t i = 0; i < n && is_release(&f->stack); i++) {
        if (strcmp(list[i].stack.name, family) == 0 &&
            strcmp(list[i].stack.gpu, f->stack.gpu) == 0) {
            centre = list[i].stack;
        }
    }
    for (size_t a = 0; a < f->n_anchors; a++) {
        if (!lt_point_job_make(&jobs[a], f->anchor[a], why)) {
            LT_FAIL(LT_ERR_ARG, "fit: %s", why);
        }
    }
    fit_one(f, jobs, &centre);
    return LT_OK;
}

static const lt_point *row_of(const lt_points *p, const char *id) {
    for (size_t i = 0; i < p->n; i++) {
        if (strcmp(p->rows[i].field[LT_POINT_id], id) == 0) {
            return &p->rows[i];
        }
    }
    return NULL;
}

lt_err lt_plan_fit_rows(const lt_points *p, const char *const *ids, size_t n_ids, lt_plan_fit **out,
                        size_t *n_out) {
    lt_err err = LT_OK;
    lt_plan_fit *list = calloc(MAX_FITS, sizeof *list);
    lt_point_job *jobs = calloc(MAX_ANCHORS, sizeof *jobs);
    size_t n = 0;

    if (list == NULL || jobs == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "fit of %zu rows", n_ids);
    }
    for (size_t i = 0; i < n_ids; i++) {
        const lt_point *row = row_of(p, ids[i]);
        char why[LT_PLAN_TEXT_BYTES];
        lt_plan_fit *f;
        if (row == NULL) {
            LT_FAIL_DONE(LT_ERR_NOT_FOUND, "fit: no row has the id '%s'", ids[i]);
        }
        if (!lt_point_job_make(&jobs[0], row, why)) {
            LT_FAIL_DONE(LT_ERR_ARG, "fit: row %s cannot be an anchor: %s", ids[i], why);
        }
        f = fit_for(list, &n, &jobs[0].cluster.stack);
        if (f == NULL || f->n_anchors == sizeof f->anchor / sizeof *f->anchor) {
            LT_FAIL_DONE(LT_ERR_LIMIT, "fit: too many stacks or anchors at row %s", ids[i]);
        }
        f->anchor[f->n_anchors++] = row;
    }
    LT_TRY_DONE(add_families(list, &n));
    /* Families are fitted first, because they are the centre of their releases. */
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < n; i++) {
            if (is_release(&list[i].stack) == (pass == 1)) {
                LT_TRY_DONE(fit_with_centre(list, n, &list[i], jobs));
            }
        }
    }
    *out = list;
    *n_out = n;
    list = NULL;
done:
    free(list);
    free(jobs);
    return err;
}
