/* timing.h: how kernels are timed: candidates interleaved, inputs rotated past the L2 cache,
 * medians, clocks and power beside them.
 *
 * A candidate is a function that queues one run on input set `set` (0 .. n_sets-1). One round times
 * every candidate once, in order, so a drifting clock hits all alike; a candidate's figure is the
 * median over rounds. Short kernels are queued several times between two events (`inner`) so that
 * the events' own cost (about 2 us) does not count. */
#ifndef LT_KERNELS_CUDA_TIMING_H
#define LT_KERNELS_CUDA_TIMING_H

#include "kernels/cuda/nvml.h"
#include "kernels/cuda/runtime.h"

#define LT_TIMING_MAX_CANDIDATES 64
#define LT_TIMING_MAX_ROUNDS     101

typedef struct {
    const char *name;
    lt_err (*queue)(void *ctx, CUstream s, int set);
    void *ctx;
    lt_err err;         /* Out: the error that excluded it, else LT_OK. */
    char error[256];    /* Out: its message. */
    double ms, ms_best; /* Out: median and minimum time of one run. */
    int inner;          /* Out: runs between two events. */
    CUgraphExec graph;  /* Those runs, with plan.graph; NULL afterwards. */
} lt_timing;

typedef struct {
    int n_sets;      /* Input sets to rotate through. */
    int rounds;      /* At most LT_TIMING_MAX_ROUNDS. */
    double inner_ms; /* Queue enough runs between two events to last this long; 0.3 is usual. */
    /* Record the runs once and launch the recording, as serving does: the host is not waited
     * for. */
    bool graph;
} lt_timing_plan;

/* Times all n candidates. A candidate that fails is left out (err, error) and does not fail the
 * call. */
LT_MUST_USE lt_err lt_timing_run(lt_cuda *c, CUstream s, lt_timing *t, int n,
                                 const lt_timing_plan *plan);

/* Sort n timings and return their median (of an even number, the upper of the middle two). */
double lt_timing_median(double *ms, int n);

/* Run one candidate without pause for `seconds`: mean ms per run, and clocks and power read in
 * the middle. */
LT_MUST_USE lt_err lt_timing_sustained(lt_cuda *c, CUstream s, lt_timing *t, int n_sets,
                                       double seconds, double *ms, lt_nvml_reading *reading);

#endif
