/* lists.c: the reference's table: one implementation per op, which refuses nothing. It is
 * generated from LT_OP_MAP, so an op without a reference does not link. */
#include "kernels/ref/ref.h"

#define REF_RUN(name, args)                                                                        \
    static lt_err run_##name(lt_queue *q, const void *a) {                                         \
        return lt_ref_##name(q, (const args *)a);                                                  \
    }
LT_OP_MAP(REF_RUN)

#define REF_IMPL(name, args) static const lt_op_impl impl_##name = {"ref", NULL, run_##name};
LT_OP_MAP(REF_IMPL)

#define REF_LIST(name, args) [LT_OP_##name] = {&impl_##name, 1},
const lt_op_list lt_ref_lists[LT_OP_COUNT] = {LT_OP_MAP(REF_LIST)};
