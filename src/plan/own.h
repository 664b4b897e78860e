/* own.h: predicts training with Lateen on one GPU: the bytes that `lateen train` announces, and the
 * time of a step.
 *
 * Bytes come from the carve functions that training calls (train/recipe/memory.h). Time comes from
 * the ops that training queues (dry.h), each from its minimum work (tensor/cost.h) and three
 * efficiencies, which are fitted for a GPU kind on bench/results:
 *
 *     products    flops / (peak * gemm * k / (k + 684)), or bytes / memory where that is longer
 *     attention   flops / (peak * attention * a share by head size and length)
 *     the rest    bytes / (memory bandwidth * memory)
 *     each op     3 us from the end of the one before to its own first bytes */
#ifndef LT_PLAN_OWN_H
#define LT_PLAN_OWN_H

#include "lateen/plan.h"
#include "plan/dry.h"
#include "train/recipe/memory.h"

typedef struct {
    double gemm, attention, memory;
    bool measured; /* Measured on this GPU kind; otherwise those of the nearest kind are used. */
} lt_own_rates;

/* A training run of Lateen: its model and settings. */
typedef struct {
    lt_recipe recipe;
    lt_model_spec spec;
    lt_dtype dtype;
    lt_pass_options pass;
    int64_t micros; /* Micro-batches of the largest step. */
} lt_own_run;

/* Open a recipe's run. The tokenizer or model.init that it names is read for sizes. */
LT_MUST_USE lt_err lt_own_run_open(lt_own_run *out, const lt_recipe *r, bool on_device);

/* Find the rates under `own` in recipes/clusters/stacks.yaml. */
LT_MUST_USE lt_err lt_own_rates_find(lt_own_rates *out, const char *gpu);

LT_MUST_USE lt_err lt_own_step(lt_dry_step *out, const lt_own_run *run, const lt_plan_gpu *gpu,
                               const lt_own_rates *rates);

/* Measured steps on one GPU kind, and the efficiencies that fit them best: least squares of the
 * relative errors, with the usual values as a prior. */
typedef struct {
    const lt_own_run *run;
    double step_s;
} lt_own_point;
LT_MUST_USE lt_err lt_own_fit(lt_own_rates *out, const lt_plan_gpu *gpu, const lt_own_point *points,
                              size_t n);

#endif
