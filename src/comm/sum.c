/* sum.c: reductions in the order of the members. For every element type, blocks of a few thousand
 * elements are summed in F32 in a buffer that stays in the cache. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "comm/call.h"

#define BLOCK 2048 /* Elements: 8 KiB of F32, half of a level-1 cache. */

int64_t lt_comm_shard(int64_t count, int n, int i) {
    const int64_t each = (count + n - 1) / n, at = each * i;
    return at < count ? at : count;
}

static void read_f32(float *to, const void *from, int64_t at, int64_t n, lt_dtype dtype) {
    const uint16_t *half = (const uint16_t *)from + at;
    if (dtype == LT_F32) {
        memcpy(to, (const float *)from + at, (size_t)n * sizeof *to);
    } else if (dtype == LT_BF16) {
        for (int64_t i = 0; i < n; i++) {
            to[i] = lt_bf16_to_f32(half[i]);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            to[i] = lt_f16_to_f32(half[i]);
        }
    }
}

static void write_f32(void *to, int64_t at, const float *from, int64_t n, lt_dtype dtype) {
    uint16_t *half = (uint16_t *)to + at;
    if (dtype == LT_F32) {
        memcpy((float *)to + at, from, (size_t)n * sizeof *from);
    } else if (dtype == LT_BF16) {
        for (int64_t i = 0; i < n; i++) {
            half[i] = lt_f32_to_bf16(from[i]);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            half[i] = lt_f32_to_f16(from[i]);
        }
    }
}

static void reduce_float(void *dst, const void *const *srcs, int n, int64_t count, lt_dtype dtype,
                         lt_reduce op) {
    float sum[BLOCK], next[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int64_t m = count - at < BLOCK ? count - at : BLOCK;
        read_f32(sum, srcs[0], at, m, dtype);
        for (int r = 1; r < n; r++) {
            read_f32(next, srcs[r], at, m, dtype);
            for (int64_t i = 0; op == LT_REDUCE_SUM && i < m; i++) {
                sum[i] += next[i];
            }
            for (int64_t i = 0; op == LT_REDUCE_MAX && i < m; i++) {
                sum[i] = next[i] > sum[i] || isnan(next[i]) ? next[i] : sum[i];
            }
            for (int64_t i = 0; op == LT_REDUCE_MIN && i < m; i++) {
                sum[i] = next[i] < sum[i] || isnan(next[i]) ? next[i] : sum[i];
            }
        }
        write_f32(dst, at, sum, m, dtype);
    }
}

/* The same for a type that is its own accumulator. `isnan` of an integer is false; a sum of
 * integers wraps around. */
#define REDUCE_OWN(name, type, sum_type, is_nan)                                                   \
    static void name(void *dst, const void *const *srcs, int n, int64_t count, lt_reduce op) {     \
        type *to = dst;                                                                            \
        for (int64_t i = 0; i < count; i++) {                                                      \
            type v = ((const type *)srcs[0])[i];                                                   \
            for (int r = 1; r < n; r++) {                                                          \
                const type x = ((const type *)srcs[r])[i];                                         \
                v = op == LT_REDUCE_SUM ? (type)((sum_type)v + (sum_type)x)                        \
                    : (op == LT_REDUCE_MAX ? x > v : x < v) || is_nan(x) ? x                       \
                                                                         : v;                      \
            }                                                                                      \
            to[i] = v;                                                                             \
        }                                                                                          \
    }
#define NEVER(x) false
REDUCE_OWN(reduce_f64, double, double, isnan)
REDUCE_OWN(reduce_i64, int64_t, uint64_t, NEVER)
REDUCE_OWN(reduce_i32, int32_t, uint32_t, NEVER)
REDUCE_OWN(reduce_u8, uint8_t, uint8_t, NEVER)

bool lt_comm_can_reduce(lt_dtype dtype) {
    return dtype == LT_F32 || dtype == LT_BF16 || dtype == LT_F16 || dtype == LT_F64 ||
           dtype == LT_I64 || dtype == LT_I32 || dtype == LT_U8;
}

void lt_comm_reduce(void *dst, const void *const *srcs, int n, int64_t count, lt_dtype dtype,
                    lt_reduce op) {
    LT_ASSERT(lt_comm_can_reduce(dtype) && n > 0);
    switch (dtype) {
    case LT_F64:
        reduce_f64(dst, srcs, n, count, op);
        break;
    case LT_I64:
        reduce_i64(dst, srcs, n, count, op);
        break;
    case LT_I32:
        reduce_i32(dst, srcs, n, count, op);
        break;
    case LT_U8:
        reduce_u8(dst, srcs, n, count, op);
        break;
    default:
        reduce_float(dst, srcs, n, count, dtype, op);
        break;
    }
}
