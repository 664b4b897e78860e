/* specs.h: which specialisations of the kernels ship, as told by their launchers.
 *
 * A launcher makes a kernel's -D words with a format. Beside it stands a function, the teller, that
 * goes through the launcher's tables, or through values of real models, with the same format. So
 * each word is named in one place only, and the specialisations compiled here are those that
 * launches request. `lateen bench kernels --compile` (inventory.h), and through it CI, read them.
 *
 * A new kernel needs a teller in LT_SPEC_TELLERS. */
#ifndef LT_KERNELS_CUDA_SPECS_H
#define LT_KERNELS_CUDA_SPECS_H

#include "lateen/base.h"

/* The collector of specialisations. */
typedef struct lt_specs lt_specs;

/* Architectures that a specialisation is made for. */
enum { LT_SM80 = 1, LT_SM90 = 2, LT_SM_ALL = LT_SM80 | LT_SM90 };

/* One specialisation of a text, its words by a launcher's format. */
void lt_spec(lt_specs *l, int archs, const char *file, const char *format, ...) LT_PRINTF(4, 5);

#define LT_SPEC_TELLERS(X)                                                                         \
    X(attention)                                                                                   \
    X(attention_bwd)                                                                               \
    X(attention_plain)                                                                             \
    X(attention_sm80)                                                                              \
    X(bench)                                                                                       \
    X(bench_attention)                                                                             \
    X(bench_thesis)                                                                                \
    X(choose)                                                                                      \
    X(decode)                                                                                      \
    X(decode_q)                                                                                    \
    X(distill)                                                                                     \
    X(drop)                                                                                        \
    X(lora)                                                                                        \
    X(few)                                                                                         \
    X(gemm)                                                                                        \
    X(gemm_ladder)                                                                                 \
    X(gemm_q)                                                                                      \
    X(gemm_scaled)                                                                                 \
    X(gemv)                                                                                        \
    X(gemv_ring)                                                                                   \
    X(grouped)                                                                                     \
    X(matmul)                                                                                      \
    X(matmul_q)                                                                                    \
    X(moe)                                                                                         \
    X(muon)                                                                                        \
    X(norm)                                                                                        \
    X(optim)                                                                                       \
    X(paged)                                                                                       \
    X(pointwise)                                                                                   \
    X(qk_norm)                                                                                     \
    X(rows)                                                                                        \
    X(gather_rows)                                                                                 \
    X(hash)                                                                                        \
    X(scaled)                                                                                      \
    X(sgemm)                                                                                       \
    X(sum)                                                                                         \
    X(sgemm_ladder)
#define LT_SPEC_DECLARE(name) void lt_specs_##name(lt_specs *l);
LT_SPEC_TELLERS(LT_SPEC_DECLARE)
#undef LT_SPEC_DECLARE

#endif
