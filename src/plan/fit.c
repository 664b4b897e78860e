/* fit.c: the three efficiencies of a (GPU kind, software stack) from a few anchor rows.
 *
 * Minimises, over (ln gemm, ln memory, ln network),
 *     sum of ln(predicted / measured)^2 / SIGMA^2  +  sum of ((ln e - ln e0) / PRIOR)^2
 * by pattern search: so few rows say little about three numbers, and the prior (the GPU's default) holds those they do not
 * speak about. Everything else in the model stays as it is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/points.h"

#define SIGMA    0.03
#define PRIOR    0.12
#define MAX_FITS 128
#define BLOCKING_US                                                                                \
    100.0 /* Centre of launch_us where every launch waits: Python, dispatch and a synchronisation. */

/* Where launches block, the host's time around a kernel counts in full and says more than memory bandwidth: it is fitted in
 * place of `memory`, which keeps its default. The number of fitted efficiencies stays three. */
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

/* How far a value may leave its centre: nobody knows beforehand how slow a host is. */
static double width(const lt_plan_stack *s, int i) {
    return i == 1 && s->launch_blocking > 0 ? 5.0 * PRIOR : PRIOR;
}

static double cost_of(const lt_plan_fit *f, lt_point_job *jobs, const lt_plan_stack *s,
                      const lt_plan_stack *centre, double *rms) {
    double sum = 0, penalty = 0;
    char why[LT_PLAN_TEXT_BYTES];
    for (size_t i = 0; i < f->n_anchors; i++) {
        double predicted;
        jobs[i].cluster.stack.gemm = s->gemm;
        jobs[i].cluster.stack.memory = s->memory;
        jobs[i].cluster.stack.network = s->network;
        jobs[i].cluster.stack.launch_us = s->launch_us;
        predicted = lt_point_predict(&jobs[i], why);
        sum += predicted > 0 ? pow(log(predicted / jobs[i].measured_s), 2) : 1.0;
    }
    for (int e = 0; e < 3; e++) {
        lt_plan_stack a = *s, b = *centre;
        penalty += pow(log(*efficiency(&a, e) / *efficiency(&b, e)) / width(s, e), 2);
    }
    *rms = sqrt(sum / (double)f->n_anchors);
    return sum / (SIGMA * SIGMA) + penalty;
}

/* Pattern search from f's own efficiencies. What the rows do not print of their layout is chosen once, at the start. */
static void descend(lt_plan_fit *f, lt_point_job *jobs, const lt_plan_stack *centre) {
    lt_plan_stack best = f->stack;
    double step = 0.16, cost;
    for (size_t i = 0; i < f->n_anchors; i++) {
        jobs[i].layout_known = false;
    }
    cost = cost_of(f, jobs, &best, centre, &f->rms);
    for (int round = 0; round < 60 && step > 0.002; round++) {
        bool moved = false;
        for (int e = 0; e < 6; e++) {
            lt_plan_stack t = best;
            const double factor = exp(e % 2 == 0 ? step : -step);
            double rms, c;
            *efficiency(&t, e / 2) = clamp_efficiency(&t, e / 2, *efficiency(&t, e / 2) * factor);
            c = cost_of(f, jobs, &t, centre, &rms);
            if (c < cost) {
                cost = c;
                best = t;
                f->rms = rms;
                moved = true;
            }
        }
        step *= moved ? 1.0 : 0.5;
    }
    f->stack = best;
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

/* A stack with releases is fitted as a whole too, on all their anchors: it serves releases nobody measured. */
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
    lt_point_job *jobs = calloc(128, sizeof *jobs);
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
            LT_FAIL_DONE(LT_ERR_ARG, "fit: row %s can not be an anchor: %s", ids[i], why);
        }
        f = fit_for(list, &n, &jobs[0].cluster.stack);
        if (f == NULL || f->n_anchors == sizeof f->anchor / sizeof *f->anchor) {
            LT_FAIL_DONE(LT_ERR_LIMIT, "fit: too many stacks or anchors at row %s", ids[i]);
        }
        f->anchor[f->n_anchors++] = row;
    }
    LT_TRY_DONE(add_families(list, &n));
    for (int pass = 0; pass < 2;
         pass++) { /* Families first: they are the centre of their releases. */
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
