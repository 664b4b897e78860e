/* backend_cpu.c: the CPU backend. Its list for an op has the kernels of kernels/cpu/, best first,
 * then the reference. The joined table is made at the first call, and only read afterwards. */
#include <pthread.h>

#include "base/error.h"
#include "kernels/cpu/lists.h"
#include "kernels/host.h"
#include "kernels/ref/ref.h"

static lt_op_impl joined[LT_OP_COUNT][LT_REGISTRY_MAX_IMPLS];
static lt_op_list lists[LT_OP_COUNT];

static void join_lists(void) {
    for (int op = 0; op < LT_OP_COUNT; op++) {
        const lt_op_list own = lt_cpu_lists[op];
        LT_ASSERT(own.n_impls < LT_REGISTRY_MAX_IMPLS);
        for (int i = 0; i < own.n_impls; i++) {
            joined[op][i] = own.impls[i];
        }
        joined[op][own.n_impls] = lt_ref_lists[op].impls[0];
        lists[op] = (lt_op_list){joined[op], own.n_impls + 1};
    }
}

#define LT_REGISTRY_LISTS lists
LT_OP_MAP(LT_HOST_TRAMPOLINE)
static const lt_ops ops = {LT_OP_MAP(LT_REGISTRY_FIELD)};

static size_t pack_bytes(const lt_device *d, const lt_tensor *b, bool trans_b) {
    (void)d;
    return lt_cpu_matmul_pack_bytes(b, trans_b);
}

const lt_backend *lt_backend_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const lt_backend backend = {.name = "cpu",
                                       .ops = &ops,
                                       .lists = lists,
                                       .matmul_pack_bytes = pack_bytes,
                                       LT_HOST_BACKEND_FIELDS};
    (void)pthread_once(&once, join_lists);
    return &backend;
}
