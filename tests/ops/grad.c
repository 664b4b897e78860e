/* grad.c: optest --grad. For every backward op and case, in F64: the gradient ref/ computes against
 * central differences of the objective,
 *     (f(x + h) - f(x - h)) / 2h,  h = 1e-5 max(1, |x|)
 * whose own error is about h^2 plus 1e-16 / h: 1e-10. Tolerance 1e-7 of the largest gradient: a
 * wrong formula is off by far more. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ops/optest.h"

static const double H = 1e-5, TOLERANCE = 1e-7;
/* Elements that are probed in a tensor; all of them if it has no more. */
enum { MAX_PROBES = 40 };

typedef struct {
    const lt_op_cases *o, *f;
    lt_world forward, backward;
    lt_values inputs, given; /* Of the forward op and of the backward op. */
} pair;

/* Sum over the forward op's outputs y, and the backward op's inputs dy, of <dy, y>. Rows that
 * were never written are NaN and do not count. */
static double inner_products(const lt_setup *f, const lt_setup *b) {
    double sum = 0.0;
    for (int i = 0; i < f->n_tensors; i++) {
        char name[32];
        const lt_case_tensor *y = &f->tensors[i], *dy;
        snprintf(name, sizeof name, "d%s", y->name);
        dy = lt_setup_find(b, name);
        if (y->role != LT_ROLE_OUT || dy == NULL || dy->role != LT_ROLE_IN) {
            continue;
        }
        for (int64_t e = 0; e < y->count; e++) {
            const double v = ((const double *)y->slot->data)[e];
            sum += isnan(v) ? 0.0 : v * ((const double *)dy->slot->data)[e];
        }
    }
    return sum;
}

/* The objective after a forward run in which element e of an input was moved. */
static lt_err objective(pair *p, int input, int64_t e, double moved, double *out) {
    const double kept = p->inputs.values[input][e];
    lt_err err;
    p->inputs.values[input][e] = moved;
    lt_world_fill(&p->forward, &p->inputs);
    err = lt_world_run(&p->forward, lt_registry_list(lt_backend_ref(), p->f->op).impls);
    p->inputs.values[input][e] = kept;
    *out = p->o->objective != NULL ? p->o->objective(&p->forward.setup, &p->backward.setup)
                                   : inner_products(&p->forward.setup, &p->backward.setup);
    return err;
}

/* The gradient of one tensor: what the op added or wrote. */
static double *gradient(const pair *p, int tensor) {
    const lt_case_tensor *t = &p->backward.setup.tensors[tensor];
    double *g = malloc((size_t)t->count * sizeof *g);
    LT_ASSERT(g != NULL);
    lt_world_get(&p->backward, tensor, g);
    for (int64_t e = 0; t->adds && e < t->count; e++) {
        g[e] -= p->given.values[tensor][e];
    }
    return g;
}

static lt_err probe_tensor(pair *p, int tensor, int input, double *worst, char *why,
                           size_t why_bytes) {
    const lt_case_tensor *t = &p->backward.setup.tensors[tensor];
    const int64_t step = t->count > MAX_PROBES ? t->count / MAX_PROBES : 1;
    double *g = gradient(p, tensor), largest = 1e-3;
    lt_err err = LT_OK;

    for (int64_t e = 0; e < t->count; e++) {
        largest = isnan(g[e]) ? largest : fmax(largest, fabs(g[e]));
    }
    for (int64_t e = 0; e < t->count; e += step) {
        const double x = p->inputs.values[input][e], h = H * fmax(1.0, fabs(x));
        double above, below, error;
        if (isnan(g[e]) && t->partial) {
            continue;
        }
        LT_TRY_DONE(objective(p, input, e, x + h, &above));
        LT_TRY_DONE(objective(p, input, e, x - h, &below));
        error = fabs((above - below) / (2.0 * h) - g[e]) / (TOLERANCE * largest);
        if (!(error <= *worst)) {
            *worst = error;
            snprintf(why, why_bytes, "%s[%lld]: gradient %.12g, difference quotient %.12g", t->name,
                     (long long)e, g[e], (above - below) / (2.0 * h));
        }
    }
done:
    free(g);
    return err;
}

static lt_err run_pair(pair *p, const lt_case *c, int *n_probed, double *worst, char *why,
                       size_t why_bytes) {
    LT_TRY(lt_world_open(&p->forward, lt_world_ref(), p->f, c, LT_F64, true, false));
    LT_TRY(lt_world_open(&p->backward, lt_world_ref(), p->o, c, LT_F64, false, false));
    LT_TRY(lt_values_make(&p->inputs, &p->forward.setup, p->f, lt_values_fill, NULL));
    LT_TRY(lt_values_make(&p->given, &p->backward.setup, p->o, lt_values_fill, NULL));
    lt_world_fill(&p->backward, &p->given);
    LT_TRY(lt_world_run(&p->backward, lt_registry_list(lt_backend_ref(), p->o->op).impls));
    for (int i = 0; i < p->backward.setup.n_tensors; i++) {
        const lt_case_tensor *t = &p->backward.setup.tensors[i];
        const lt_case_tensor *x = t->grad_of != NULL && t->role != LT_ROLE_SCRATCH
                                      ? lt_setup_find(&p->forward.setup, t->grad_of)
                                      : NULL;
        if (x != NULL && x->dtype == LT_F64) {
            LT_TRY(probe_tensor(p, i, (int)(x - p->forward.setup.tensors), worst, why, why_bytes));
            (*n_probed)++;
        }
    }
    return LT_OK;
}

static void grad_case(optest *t, const lt_op_cases *o, const lt_case *c) {
    static pair p; /* It holds two worlds, too large for the stack. */
    char why[256] = "", name[160], detail[400];
    double worst = 0.0;
    int n_probed = 0;
    lt_err err;

    p = (pair){.o = o, .f = lt_all_op_cases[o->forward]};
    err = run_pair(&p, c, &n_probed, &worst, why, sizeof why);
    snprintf(name, sizeof name, "grad %s: %s", lt_op_name(o->op), c->name);
    if (err != LT_OK) {
        snprintf(detail, sizeof detail, "%s", lt_error_message());
    } else if (n_probed == 0) {
        snprintf(detail, sizeof detail, "no gradient found to compare");
    } else {
        snprintf(detail, sizeof detail, "%d gradients, worst %.2g of the tolerance; %s", n_probed,
                 worst, why);
    }
    optest_report(t, err == LT_OK && n_probed > 0 && worst <= 1.0, name, detail);
    lt_world_close(&p.forward);
    lt_world_close(&p.backward);
    lt_values_free(&p.inputs);
    lt_values_free(&p.given);
}

/* Is this case, built for this op, a backward pass? (xent and rope are their own backward
 * ops.) */
static bool is_backward(const lt_op_cases *o, const lt_case *c) {
    static lt_setup s;
    lt_setup_build(&s, o, c, LT_F64, false);
    for (int i = 0; i < s.n_tensors; i++) {
        if (s.tensors[i].grad_of != NULL) {
            return true;
        }
    }
    return false;
}

void optest_grad(optest *t) {
    for (int op = 0; op < LT_OP_COUNT; op++) {
        const lt_op_cases *o = lt_all_op_cases[op];
        for (int i = 0; o->forward != LT_OP_COUNT && i < o->n_cases; i++) {
            if (optest_wants(t, o, &o->cases[i], LT_CASE_GRAD) && is_backward(o, &o->cases[i])) {
                grad_case(t, o, &o->cases[i]);
            }
        }
    }
}
