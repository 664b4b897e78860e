/* lists.h: what the CPU backend offers: per op the implementations of this folder, best first,
 * without the reference (backend_cpu.c puts it at the end). An entry that needs instructions this
 * CPU lacks says so in its refuse function. An op without an entry is served by ref. */
#ifndef LT_KERNELS_CPU_LISTS_H
#define LT_KERNELS_CPU_LISTS_H

#include "kernels/registry.h"

extern const lt_op_list lt_cpu_lists[LT_OP_COUNT];

/* lt_backend.matmul_pack_bytes, the same on all CPU devices. */
size_t lt_cpu_matmul_pack_bytes(const lt_tensor *b, bool trans_b);

#endif
