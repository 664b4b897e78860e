/* lists.h: the implementations of this folder for each op, best first, without the reference, which
 * backend_cpu.c appends. An entry that needs instructions which this CPU lacks refuses. An op
 * without an entry is served by ref. */
#ifndef LT_KERNELS_CPU_LISTS_H
#define LT_KERNELS_CPU_LISTS_H

#include "kernels/registry.h"

extern const lt_op_list lt_cpu_lists[LT_OP_COUNT];

/* lt_backend.matmul_pack_bytes, which is the same on all CPU devices. */
size_t lt_cpu_matmul_pack_bytes(const lt_tensor *b, bool trans_b);

#endif
