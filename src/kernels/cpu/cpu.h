/* cpu.h: every kernel of isa/, in its three builds: lt_cpu_<op>_portable, _avx2, _avx512. They take
 * the op's argument struct (tensor/ops.h); lists.c decides which of them runs. */
#ifndef LT_CPU_CPU_H
#define LT_CPU_CPU_H

#include "tensor/ops.h"

#define LT_CPU_DECLARE(op, args)                                                                   \
    lt_err lt_cpu_##op##_portable(lt_queue *q, const void *args_);                                 \
    lt_err lt_cpu_##op##_avx2(lt_queue *q, const void *args_);                                     \
    lt_err lt_cpu_##op##_avx512(lt_queue *q, const void *args_);
/* isa/gemv.c: few rows, b stored (N, K) */
LT_OP_MAP(LT_CPU_DECLARE)
LT_CPU_DECLARE(matmul_rows, lt_matmul_args)
LT_CPU_DECLARE(matmul_narrow, lt_matmul_args)
LT_CPU_DECLARE(attention_decode, lt_attention_args) /* isa/decode.c: few queries, many keys */

/* isa/gemm_pairs.c: BF16 by dot products */
lt_err lt_cpu_matmul_pairs_avx512(lt_queue *q, const void *args);
LT_CPU_DECLARE(matmul_quant, lt_matmul_args) /* isa/quant.c: b of a block type, packed */

/* onednn.c: F32 products by oneDNN's SGEMM. */
lt_err lt_cpu_matmul_onednn(lt_queue *q, const void *args);

#endif
