/* bench_train_mesh.h: `lateen bench train --mesh`: a mesh of ranks of this CPU, each a thread of
 * this process, in turn with one rank that has as many threads as each of them.
 *
 * Each rank of dp has as many rows as the single rank, so `linear` is the single rank's tokens/s
 * times the number of ranks. The step is that of `lateen train`, whose record also says how long a
 * rank waited for transfers that its computation did not hide. */
#ifndef LT_CLI_BENCH_TRAIN_MESH_H
#define LT_CLI_BENCH_TRAIN_MESH_H

#include "cli/bench/bench_train_ours.h"

#define LT_BENCH_MESH_TURNS 64

typedef struct {
    int shape; /* Index into LT_TRAIN_SHAPES. */
    bool bf16;
    int64_t batch, seq; /* Of a step of the single rank; 0: the shape's own. */
    const char *mesh;   /* "dp=2,tp=2" */
    int64_t zero;
    int64_t steps, rounds; /* Steps per turn; turns of the mesh and of the single rank. */
    int threads;           /* Threads of a rank; 0: the cores divided by the ranks. */
} lt_bench_mesh_case;

typedef struct {
    int ranks, threads;
    int64_t batch, seq; /* Of a step of the mesh. */
    double step_s, tokens_per_s, one_step_s, one_tokens_per_s;
    /* Seconds per step that the rank with the longest wait waits for messages. */
    double exposed_s;
} lt_bench_mesh_result;

LT_MUST_USE lt_err lt_bench_mesh_run(lt_bench_mesh_result *out, const lt_bench_mesh_case *what);

#endif
