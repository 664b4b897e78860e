/* timing.c: see timing.h. */
#include "kernels/cuda/timing.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

#define WARM_RUNS 3
#define MAX_INNER 400

static int compare_double(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double lt_timing_median(double *ms, int n) {
    qsort(ms, (size_t)n, sizeof *ms, compare_double);
    return ms[n / 2];
}

/* Queue `inner` runs between the events and return the time of one. */
static lt_err time_once(lt_cuda *c, CUstream s, lt_timing *t, int inner, int *set, int n_sets,
                        CUevent from, CUevent to, double *ms) {
    LT_TRY(lt_cuda_event_record(c, from, s));
    if (t->graph != NULL) {
        LT_TRY(lt_cuda_graph_launch(c, t->graph, s));
    }
    for (int i = 0; i < inner && t->graph == NULL; i++) {
        LT_TRY(t->queue(t->ctx, s, *set));
        *set = (*set + 1) % n_sets;
    }
    LT_TRY(lt_cuda_event_record(c, to, s));
    LT_TRY(lt_cuda_event_elapsed(c, ms, from, to));
    *ms /= inner;
    return LT_OK;
}

/* Record one round's runs as a graph, every set equally often, and launch it once, so that its
 * first launch is not timed. */
static lt_err record(lt_cuda *c, CUstream s, lt_timing *t, int n_sets) {
    lt_err err = LT_OK;
    t->inner = (t->inner + n_sets - 1) / n_sets * n_sets;
    LT_TRY(lt_cuda_capture_begin(c, s));
    for (int i = 0; i < t->inner && err == LT_OK; i++) {
        err = t->queue(t->ctx, s, i % n_sets);
    }
    const lt_err ended = lt_cuda_capture_end(c, s, &t->graph);
    LT_TRY(err != LT_OK ? err : ended);
    return lt_cuda_graph_launch(c, t->graph, s);
}

/* The first run compiles and loads; then find how many runs fill inner_ms. */
static lt_err warm(lt_cuda *c, CUstream s, lt_timing *t, const lt_timing_plan *plan, CUevent from,
                   CUevent to) {
    double ms = 0.0;
    int set = 0;
    for (int i = 0; i < WARM_RUNS; i++) {
        LT_TRY(time_once(c, s, t, 1, &set, plan->n_sets, from, to, &ms));
    }
    t->inner = ms * MAX_INNER < plan->inner_ms ? MAX_INNER : (int)(plan->inner_ms / ms) + 1;
    return plan->graph ? record(c, s, t, plan->n_sets) : LT_OK;
}

lt_err lt_timing_run(lt_cuda *c, CUstream s, lt_timing *t, int n, const lt_timing_plan *plan) {
    lt_err err = LT_OK;
    CUevent from = NULL, to = NULL;
    double(*times)[LT_TIMING_MAX_ROUNDS] = calloc((size_t)n, sizeof *times);
    LT_ASSERT(n <= LT_TIMING_MAX_CANDIDATES && plan->rounds <= LT_TIMING_MAX_ROUNDS &&
              plan->rounds > 0);
    if (times == NULL) {
        LT_FAIL(LT_ERR_OOM, "timing");
    }
    LT_TRY_DONE(lt_cuda_event_open(c, &from, true));
    LT_TRY_DONE(lt_cuda_event_open(c, &to, true));
    for (int i = 0; i < n; i++) {
        t[i].graph = NULL;
        t[i].err = warm(c, s, &t[i], plan, from, to);
        if (t[i].err != LT_OK) {
            snprintf(t[i].error, sizeof t[i].error, "%s", lt_error_message());
        }
    }
    for (int round = 0; round < plan->rounds; round++) {
        for (int i = 0; i < n; i++) {
            int set = round % plan->n_sets;
            if (t[i].err == LT_OK) {
                LT_TRY_DONE(time_once(c, s, &t[i], t[i].inner, &set, plan->n_sets, from, to,
                                      &times[i][round]));
            }
        }
    }
    for (int i = 0; i < n; i++) {
        lt_cuda_graph_close(c, t[i].graph);
        t[i].graph = NULL;
        t[i].ms = lt_timing_median(times[i], plan->rounds);
        t[i].ms_best = times[i][0];
    }
done:
    lt_cuda_event_close(c, from);
    lt_cuda_event_close(c, to);
    free(times);
    return err;
}

lt_err lt_timing_sustained(lt_cuda *c, CUstream s, lt_timing *t, int n_sets, double seconds,
                           double *ms, lt_nvml_reading *reading) {
    lt_err err = LT_OK;
    CUevent from = NULL, to = NULL;
    int set = 0, n = 0;
    bool read = false;
    double start_s, one;
    LT_TRY_DONE(lt_cuda_event_open(c, &from, true));
    LT_TRY_DONE(lt_cuda_event_open(c, &to, true));
    LT_TRY_DONE(time_once(c, s, t, 2, &set, n_sets, from, to, &one));
    start_s = lt_clock_s();
    LT_TRY_DONE(lt_cuda_event_record(c, from, s));
    /* Bursts of about 20 ms, so that the queue never runs empty, and never gets far ahead. */
    while (lt_clock_s() - start_s < seconds) {
        for (double queued = 0.0; queued < 20.0; queued += one) {
            LT_TRY_DONE(t->queue(t->ctx, s, set));
            set = (set + 1) % n_sets;
            n++;
        }
        if (!read && lt_clock_s() - start_s > 0.6 * seconds) {
            read = lt_nvml_read(reading, lt_cuda_get_info(c)->pci) == LT_OK;
        }
        LT_TRY_DONE(lt_cuda_event_record(c, to, s));
        if (n > 2) {
            LT_TRY_DONE(lt_cu_check(lt_cuda_api(c)->cuEventSynchronize(to),
                                    "sustained timing of %s", t->name));
        }
    }
    LT_TRY_DONE(lt_cuda_event_elapsed(c, ms, from, to));
    *ms /= n;
done:
    lt_cuda_event_close(c, from);
    lt_cuda_event_close(c, to);
    return err;
}
