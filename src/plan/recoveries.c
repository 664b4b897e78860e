/* recoveries.c: see recoveries.h. */
#include "plan/recoveries.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/plan.h"

#define FILE_BYTES_MAX ((size_t)1 << 30)
#define TIE            1e-9 /* Far below 1 / (n m). */

/* The recovery that the lines so far belong to. */
typedef struct {
    lt_plan_recovery now;
    bool seen[LT_RECOVERY_PHASES];
    bool planned; /* The world grew; there was no fault. */
} reader;

/* ---- Reading --------------------------------------------------------------------------------- */

static lt_err read_phase(reader *r, const json_t *line, const char *what) {
    const char *name = "";
    double seconds = 0.0;
    LT_TRY(lt_json_str(line, "phase", &name, false, what));
    LT_TRY(lt_json_f64(line, "seconds", &seconds, false, what));
    for (int i = 0; i < LT_RECOVERY_PHASES; i++) {
        if (strcmp(name, lt_recovery_names[i]) != 0) {
            continue;
        }
        if (i == LT_RECOVERY_DETECT) {
            /* A new fault interrupted the recovery before it. */
            *r = (reader){0};
        }
        if (!(seconds >= 0.0) || !isfinite(seconds)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: phase '%s' of %g seconds", what, name, seconds);
        }
        r->seen[i] = true;
        r->now.phase_s[i] = seconds;
        r->now.seconds += seconds;
        return LT_OK;
    }
    LT_FAIL(LT_ERR_FORMAT, "%s: no phase of a recovery is called '%s'", what, name);
}

static lt_err end_recovery(lt_plan_recoveries *out, reader *r, const json_t *line,
                           const char *what) {
    LT_TRY(lt_json_i64(line, "steps_lost", &r->now.steps_lost, false, what));
    for (int i = 0; i < LT_RECOVERY_PHASES; i++) {
        if (!r->seen[i]) {
            LT_FAIL(LT_ERR_FORMAT, "%s: the recovery lacks phase '%s'", what, lt_recovery_names[i]);
        }
    }
    if (out->n == LT_PLAN_RECOVERIES_MOST) {
        LT_FAIL(LT_ERR_LIMIT, "%s: more than %d recoveries", what, LT_PLAN_RECOVERIES_MOST);
    }
    if (!r->planned) {
        out->all[out->n++] = r->now;
    }
    *r = (reader){0};
    return LT_OK;
}

static lt_err read_event(lt_plan_recoveries *out, reader *r, const json_t *line, const char *what) {
    const char *event = "", *kind = "";
    LT_TRY(lt_json_str(line, "event", &event, false, what));
    if (strcmp(event, "fault") == 0) {
        LT_TRY(lt_json_str(line, "kind", &kind, false, what));
        r->planned = strcmp(kind, "grow") == 0;
    }
    if (strcmp(event, "phase") == 0) {
        return read_phase(r, line, what);
    }
    return strcmp(event, "recovered") == 0 ? end_recovery(out, r, line, what) : LT_OK;
}

static lt_err read_lines(lt_plan_recoveries *out, const char *text, size_t bytes,
                         const char *path) {
    lt_err err = LT_OK;
    const char *at = text, *end = text + bytes;
    reader r = {0};
    for (int64_t number = 1; at < end; number++) {
        char what[LT_PATH_BYTES + 32];
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((stop != NULL ? stop : end) - at);
        json_t *line = NULL;
        (void)snprintf(what, sizeof what, "%s, line %lld", path, (long long)number);
        if (n > 0) {
            LT_TRY(lt_json_parse(&line, at, n, what));
            err = read_event(out, &r, line, what);
            json_decref(line);
            LT_TRY(err);
        }
        at += n + 1;
    }
    return LT_OK;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* The median slope of `recompute` over the steps that were lost. */
static lt_err find_step(lt_plan_recoveries *r) {
    double *slopes = malloc((size_t)(r->n * (r->n - 1) / 2 + 1) * sizeof *slopes);
    int64_t n = 0;
    if (slopes == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld recoveries", (long long)r->n);
    }
    for (int64_t i = 0; i < r->n; i++) {
        for (int64_t k = 0; k < i; k++) {
            const lt_plan_recovery *a = &r->all[i], *b = &r->all[k];
            if (a->steps_lost != b->steps_lost) {
                slopes[n++] = (a->phase_s[LT_RECOVERY_RECOMPUTE] -
                               b->phase_s[LT_RECOVERY_RECOMPUTE]) /
                              (double)(a->steps_lost - b->steps_lost);
            }
        }
    }
    lt_plan_sort(slopes, n);
    r->step_s = n > 0 ? lt_plan_max(0.0, lt_plan_quantile(slopes, (size_t)n, 0.5)) : 0.0;
    free(slopes);
    return LT_OK;
}

lt_err lt_plan_recoveries_load(lt_plan_recoveries *out, const char *path) {
    lt_err err = LT_OK;
    char *text = NULL;
    size_t bytes = 0;
    *out = (lt_plan_recoveries){.all = calloc(LT_PLAN_RECOVERIES_MOST, sizeof *out->all)};
    if (out->all == NULL) {
        LT_FAIL(LT_ERR_OOM, "recoveries of %s", path);
    }
    LT_TRY_DONE(lt_file_read(&text, &bytes, path, FILE_BYTES_MAX));
    LT_TRY_DONE(read_lines(out, text, bytes, path));
    if (out->n == 0) {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s holds no recovery from a fault that came to its end",
                     path);
    }
    LT_TRY_DONE(find_step(out));
    for (int64_t i = 0; i < out->n; i++) {
        lt_plan_recovery *one = &out->all[i];
        one->restart_s = lt_plan_max(0.0,
                                     one->seconds - (double)(one->steps_lost + 1) * out->step_s);
        out->restart_s += one->restart_s / (double)out->n;
    }
done:
    free(text);
    return err;
}

void lt_plan_recoveries_close(lt_plan_recoveries *r) {
    free(r->all);
    *r = (lt_plan_recoveries){0};
}

void lt_plan_recoveries_sorted(double *values, const lt_plan_recoveries *r, int phase) {
    for (int64_t i = 0; i < r->n; i++) {
        values[i] = phase < LT_RECOVERY_PHASES ? r->all[i].phase_s[phase] : r->all[i].seconds;
    }
    lt_plan_sort(values, r->n);
}

/* ---- Two samples ----------------------------------------------------------------------------- */

double lt_plan_ks(const double *a, int64_t n, const double *b, int64_t m) {
    double d = 0.0;
    int64_t i = 0, k = 0;
    while (i < n && k < m) {
        const double at = lt_plan_min(a[i], b[k]);
        while (i < n && a[i] <= at) {
            i++;
        }
        while (k < m && b[k] <= at) {
            k++;
        }
        d = lt_plan_max(d, fabs((double)i / (double)n - (double)k / (double)m));
    }
    return d;
}

lt_err lt_plan_ks_p(double *p, double d, int64_t n, int64_t m) {
    double *inside = NULL; /* (m + 1): the share of the paths to (i, k) that stay in the strip. */
    LT_ASSERT(n > 0 && m > 0 && n <= LT_PLAN_RECOVERIES_MOST && m <= LT_PLAN_RECOVERIES_MOST);
    inside = calloc((size_t)m + 1, sizeof *inside);
    if (inside == NULL) {
        LT_FAIL(LT_ERR_OOM, "a test of %lld and %lld values", (long long)n, (long long)m);
    }
    for (int64_t i = 0; i <= n; i++) {
        for (int64_t k = 0; k <= m; k++) {
            const double x = (double)i, y = (double)k,
                         from_left = k > 0 ? y / (x + y) * inside[k - 1] : 0.0,
                         from_below = i > 0 ? x / (x + y) * inside[k] : 0.0;
            const bool stays = fabs(x / (double)n - y / (double)m) < d - TIE;
            inside[k] = !stays ? 0.0 : i + k == 0 ? 1.0 : from_left + from_below;
        }
    }
    *p = lt_plan_min(1.0, lt_plan_max(0.0, 1.0 - inside[m]));
    free(inside);
    return LT_OK;
}
