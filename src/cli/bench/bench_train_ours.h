/* bench_train_ours.h: Lateen's side of `lateen bench train`: a model, a step, and where its time
 * goes. */
#ifndef LT_CLI_BENCH_TRAIN_OURS_H
#define LT_CLI_BENCH_TRAIN_OURS_H

#include "base/rng.h"
#include "model/blocks/exec.h"
#include "model/pass/pass.h"
#include "tensor/ops.h"
#include "train/optimiser.h"
#include "train/recipe/shapes.h"

typedef struct {
    int shape; /* Index into LT_TRAIN_SHAPES. */
    bool bf16;
    lt_device *device;  /* Belongs to the caller. */
    int64_t batch, seq; /* 0: the shape's own for the device. */
    lt_recompute recompute;
    lt_fp8_recipe fp8;
    bool fp8_wgrad;
    lt_optim_kind optim;
    bool bf16_moments;
    /* Rank of the adapters of all linear layers, which alone are trained; 0: none. */
    int64_t lora_rank;
} lt_train_case;

typedef struct {
    lt_train_case what;
    const char *name;
    lt_recipe recipe;
    lt_model *model;
    lt_lora *lora; /* NULL: the model is trained. */
    lt_pass *pass;
    lt_optimiser optimiser;
    int32_t *tokens, *labels;
    lt_rng rng;
    int64_t step;
    double flops_per_token;
    /* Time to open; time of the first step, which compiles the kernels that are not cached. */
    double open_s, first_step_s;
    /* Since the last reset: time that the host waited for the device, and total time of the
     * steps. */
    double wait_s, steps_s;
    /* Memory by the carve functions; memory taken from the device, 0: unknown. */
    size_t announced_bytes, taken_bytes;
} lt_train_ours;

LT_MUST_USE lt_err lt_train_ours_open(lt_train_ours *b, const lt_train_case *what);
void lt_train_ours_close(lt_train_ours *b);

/* One step as in training: forward, backward, norm, update. The next batch is prepared while the
 * device works. */
LT_MUST_USE lt_err lt_train_ours_step(lt_train_ours *b, double *seconds);

/* Where the time of a step goes, from a few profiled steps. ops: seconds, minimum work and calls of
 * one step; optimiser_s: norm and update. */
typedef struct {
    lt_pass_op_time ops[LT_TIMED_COUNT];
    double optimiser_s;
} lt_train_shares;
LT_MUST_USE lt_err lt_train_ours_shares(lt_train_ours *b, lt_train_shares *out);

#endif
