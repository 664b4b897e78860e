/* piece.c: see piece.h. */
#include "comm/piece.h"

#include "base/error.h"
#include "tensor/ops.h"

char *lt_piece_element(const void *data, int64_t i, lt_dtype dtype) {
    return (char *)(uintptr_t)data + (size_t)i * lt_dtype_bytes(dtype);
}

lt_piece lt_piece_of(const lt_call *call, int member, int64_t k, int64_t each) {
    const int n = call->group->n;
    const bool all = call->kind == LT_CALL_ALL_REDUCE;
    const int64_t begin = all ? lt_comm_shard(call->count, n, member) : member * call->count,
                  end = all ? lt_comm_shard(call->count, n, member + 1) : begin + call->count,
                  first = begin + k * each < end ? begin + k * each : end;
    return (lt_piece){first, end - first < each ? end - first : each};
}

lt_err lt_piece_add(const lt_backend *b, lt_queue *q, const lt_call *call, lt_piece piece,
                    void *const *terms, float *sum) {
    const int n = call->group->n, own = call->group->rank;
    const bool all = call->kind == LT_CALL_ALL_REDUCE;
    void *dst = lt_piece_element(call->dst, all ? piece.first : piece.first - own * call->count,
                                 call->dtype);
    for (int i = 0; i < n; i += LT_SUM_MOST) {
        const bool last = i + LT_SUM_MOST >= n;
        lt_sum_args a = {.n = last ? n - i : LT_SUM_MOST};
        a.y = last ? lt_tensor_1d(dst, call->dtype, piece.count)
                   : lt_tensor_1d(sum, LT_F32, piece.count);
        if (i > 0) {
            a.part = lt_tensor_1d(sum, LT_F32, piece.count);
        }
        for (int k = 0; k < a.n; k++) {
            a.x[k] = lt_tensor_1d(terms[i + k], call->dtype, piece.count);
        }
        LT_TRY(b->ops->sum(q, &a));
    }
    return LT_OK;
}
