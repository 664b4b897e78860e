/* validate.c: the planner against published runs: every row that can be read is predicted, and the
 * errors are summed up by group.
 *
 * Rows that were used to fit (the anchors named in recipes/clusters/stacks.yaml) are predicted and
 * shown, but count in no statistic. Error = |predicted / measured - 1| of the step time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "plan/points.h"

void lt_point_result_predict(lt_point_result *r) {
    r->used = false;
    r->memory_error = NAN;
    r->predicted_s = lt_point_predict(&r->job, r->why);
    if (!(r->predicted_s > 0) || !isfinite(r->predicted_s)) {
        if (r->why[0] == 0) {
            strcpy(r->why, "no estimate");
        }
        return;
    }
    r->used = true;
    r->error = r->predicted_s / r->job.measured_s - 1.0;
    if (r->job.memory_bytes > 0) {
        const lt_plan_memory m = lt_plan_memory_estimate(&r->job.model, &r->job.cluster,
                                                         &r->job.layout);
        r->memory_error = lt_plan_memory_shown(&m, &r->job.layout, r->job.memory_figure) /
                              r->job.memory_bytes -
                          1.0;
    }
}

static void one(void *ctx, size_t i) {
    lt_point_result *r = (lt_point_result *)ctx + i;
    const char *id = r->row->field[LT_POINT_id];
    if (lt_point_job_make(&r->job, r->row, r->why)) {
        lt_point_result_predict(r);
        r->anchor = r->used && id[0] != 0 && lt_plan_is_anchor(id);
    }
}

lt_err lt_plan_validate(const lt_points *p, lt_point_result **out) {
    lt_plan_gpu any;
    lt_point_result *r;
    /* Without the shipped tables every row would be excluded silently. */
    LT_TRY(lt_plan_gpu_find(&any, "h100-sxm"));
    r = calloc(p->n > 0 ? p->n : 1, sizeof *r);
    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu rows", p->n);
    }
    for (size_t i = 0; i < p->n; i++) {
        r[i].row = &p->rows[i];
    }
    lt_parallel_for(p->n, one, r);
    *out = r;
    return LT_OK;
}

double lt_plan_kendall_tau(const double *a, const double *b, size_t n) {
    double agree = 0, ties_a = 0, ties_b = 0, pairs = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = i + 1; k < n; k++) {
            const double x = a[i] - a[k], y = b[i] - b[k];
            pairs += 1;
            ties_a += x == 0;
            ties_b += y == 0;
            agree += x * y > 0 ? 1 : x * y < 0 ? -1 : 0;
        }
    }
    return pairs > 0 ? agree / sqrt((pairs - ties_a) * (pairs - ties_b)) : NAN;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void lt_plan_sort(double *values, int64_t n) {
    if (n > 0) {
        qsort(values, (size_t)n, sizeof *values, ascending);
    }
}

double lt_plan_quantile(const double *sorted, size_t n, double q) {
    const double at = q * (double)(n - 1);
    const size_t low = (size_t)at;
    return n == 0        ? NAN
           : low + 1 < n ? sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low])
                         : sorted[n - 1];
}

/* Whether a result belongs to the group. */
typedef bool chosen(const lt_point_result *r, const void *what);

static void stats_of(lt_plan_group_stats *out, const lt_point_result *r, size_t n, chosen *is,
                     const void *what) {
    double *e = calloc(4 * n + 4, sizeof *e), *mem = e + n, *a = mem + n, *b = a + n;
    size_t used = 0;
    LT_ASSERT(e != NULL);
    for (size_t i = 0; i < n; i++) {
        if (!is(&r[i], what)) {
            continue;
        }
        out->rows++;
        out->left_out += !r[i].used;
        out->anchors += r[i].anchor;
        if (!r[i].used) {
            continue;
        }
        if (isfinite(r[i].memory_error)) {
            mem[out->memory_rows++] = fabs(r[i].memory_error);
        }
        if (r[i].anchor) {
            continue;
        }
        e[used] = fabs(r[i].error);
        a[used] = r[i].predicted_s;
        b[used] = r[i].job.measured_s;
        out->bias += r[i].error;
        used++;
    }
    out->used = used;
    if (used > 0) {
        out->bias /= (double)used;
        lt_plan_sort(e, (int64_t)used);
        out->median = lt_plan_quantile(e, used, 0.5);
        out->p90 = lt_plan_quantile(e, used, 0.9);
        out->worst = e[used - 1];
        out->tau = used >= 8 ? lt_plan_kendall_tau(a, b, used) : NAN;
    }
    if (out->memory_rows > 0) {
        lt_plan_sort(mem, (int64_t)out->memory_rows);
        out->memory_median = lt_plan_quantile(mem, out->memory_rows, 0.5);
    }
    free(e);
}

static bool in_group(const lt_point_result *r, const void *what) {
    return what == NULL || strcmp(r->row->field[LT_POINT_group], what) == 0;
}

static bool of_kind(const lt_point_result *r, const void *what) {
    const lt_plan_kind kind = *(const lt_plan_kind *)what;
    const bool narrow = r->job.query.precision > LT_PLAN_BF16, moe = r->job.model.n_experts > 0;
    return r->job.measured_s > 0 && (kind == LT_PLAN_KIND_DENSE  ? !moe
                                     : kind == LT_PLAN_KIND_MOE  ? moe
                                     : kind == LT_PLAN_KIND_WIDE ? !narrow
                                                                 : narrow);
}

void lt_plan_group_stats_of(lt_plan_group_stats *out, const lt_point_result *r, size_t n,
                            const char *name) {
    *out = (lt_plan_group_stats){.tau = NAN, .memory_median = NAN};
    snprintf(out->name, sizeof out->name, "%.60s", name != NULL ? name : "overall");
    stats_of(out, r, n, in_group, name);
}

void lt_plan_kind_stats_of(lt_plan_group_stats *out, const lt_point_result *r, size_t n,
                           lt_plan_kind kind) {
    static const char *const names[] = {
#define KIND_NAME(code, text) text,
        LT_PLAN_KIND_MAP(KIND_NAME)};
    *out = (lt_plan_group_stats){.tau = NAN, .memory_median = NAN};
    snprintf(out->name, sizeof out->name, "%s", names[kind]);
    stats_of(out, r, n, of_kind, &kind);
}
