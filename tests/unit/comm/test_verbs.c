/* Every verb on ranks as threads. The data that a member sends are a function of (member,
 * element), so each rank can compute, in the order of the members and to the bit, what it must
 * receive. A rank reports a mismatch through its error, because cmocka's assertions work only on
 * the main thread. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "mirror.h"
#include "mpirun.h"

#include "base/error.h"
#include "base/rng.h"
#include "comm/launched.h"
#include "platform/agent/launch.h"
#include "lateen/comm.h"
#include "tensor/backend.h"
#include "unit/device.h"

static lt_err all_reduce(lt_group *g, void *dst, const void *src, int64_t count, lt_dtype dtype,
                         lt_reduce op) {
    const size_t bytes = (size_t)count * lt_dtype_bytes(dtype);
    LT_TRY(up(src, bytes));
    LT_TRY(lt_all_reduce(g, on(dst), on(src), count, dtype, op, NULL));
    return down(dst, bytes);
}

static lt_err reduce_scatter(lt_group *g, void *dst, const void *src, int64_t count, lt_dtype dtype,
                             lt_reduce op) {
    const size_t bytes = (size_t)count * lt_dtype_bytes(dtype);
    LT_TRY(up(src, bytes * (size_t)lt_group_size(g)));
    LT_TRY(lt_reduce_scatter(g, on(dst), on(src), count, dtype, op, NULL));
    return down(dst, bytes);
}

static lt_err all_gather(lt_group *g, void *dst, const void *src, int64_t count, lt_dtype dtype) {
    const size_t bytes = (size_t)count * lt_dtype_bytes(dtype);
    LT_TRY(up(src, bytes));
    LT_TRY(lt_all_gather(g, on(dst), on(src), count, dtype, NULL));
    return down(dst, bytes * (size_t)lt_group_size(g));
}

static lt_err broadcast(lt_group *g, void *data, int64_t count, lt_dtype dtype, int root) {
    const size_t bytes = (size_t)count * lt_dtype_bytes(dtype);
    LT_TRY(up(data, bytes));
    LT_TRY(lt_broadcast(g, on(data), count, dtype, root, NULL));
    return down(data, bytes);
}

static lt_err all_to_all(lt_group *g, void *dst, const int64_t *receives, const void *src,
                         const int64_t *sends, lt_dtype dtype) {
    int64_t out = 0, in = 0;
    for (int i = 0; i < lt_group_size(g); i++) {
        out += sends[i];
        in += receives[i];
    }
    LT_TRY(up(src, (size_t)out * lt_dtype_bytes(dtype)));
    LT_TRY(lt_all_to_all(g, on(dst), receives, on(src), sends, dtype, NULL));
    return down(dst, (size_t)in * lt_dtype_bytes(dtype));
}

static const lt_dtype reduced[] = {LT_F32, LT_BF16, LT_F16, LT_F64, LT_I64, LT_I32, LT_U8};
static const int64_t counts[] = {0, 1, 2, 7, 64, 1000, 5003};

/* Element i of member r's data; some are negative; small whole numbers for integer types. */
static double value(int r, int64_t i) {
    return (double)(int64_t)(lt_rng_mix((uint64_t)i * 64 + (uint64_t)r) % 20011) / 16.0 - 600.0;
}

static void put(void *data, int64_t at, lt_dtype dtype, double v) {
    switch (dtype) {
    case LT_F32:
        ((float *)data)[at] = (float)v;
        break;
    case LT_BF16:
        ((uint16_t *)data)[at] = lt_f32_to_bf16((float)v);
        break;
    case LT_F16:
        ((uint16_t *)data)[at] = lt_f32_to_f16((float)v);
        break;
    case LT_F64:
        ((double *)data)[at] = v;
        break;
    case LT_I64:
        ((int64_t *)data)[at] = (int64_t)v;
        break;
    case LT_I32:
        ((int32_t *)data)[at] = (int32_t)v;
        break;
    default:
        ((uint8_t *)data)[at] = (uint8_t)((int)v & 255);
        break;
    }
}

static double get(const void *data, int64_t at, lt_dtype dtype) {
    switch (dtype) {
    case LT_F32:
        return ((const float *)data)[at];
    case LT_BF16:
        return lt_bf16_to_f32(((const uint16_t *)data)[at]);
    case LT_F16:
        return lt_f16_to_f32(((const uint16_t *)data)[at]);
    case LT_F64:
        return ((const double *)data)[at];
    case LT_I64:
        return (double)((const int64_t *)data)[at];
    case LT_I32:
        return ((const int32_t *)data)[at];
    default:
        return ((const uint8_t *)data)[at];
    }
}

/* The reduction of element i over n members, by the rule of lateen/comm.h. */
static double reduction(int n, int64_t i, lt_dtype dtype, lt_reduce op) {
    unsigned char one[8], total[8];
    double sum = 0.0;
    for (int r = 0; r < n; r++) {
        put(one, 0, dtype, value(r, i));
        const double x = get(one, 0, dtype);
        if (r == 0) {
            sum = x;
        } else if (op == LT_REDUCE_SUM) {
            sum = dtype == LT_F32 || dtype == LT_BF16 || dtype == LT_F16
                      ? (double)((float)sum + (float)x)
                      : sum + x;
        } else {
            sum = op == LT_REDUCE_MAX ? fmax(sum, x) : fmin(sum, x);
        }
    }
    put(total, 0, dtype, sum);
    return get(total, 0, dtype);
}

static void fill(void *data, int r, int64_t first, int64_t count, lt_dtype dtype) {
    for (int64_t i = 0; i < count; i++) {
        put(data, i, dtype, value(r, first + i));
    }
}

static lt_err same(const void *data, int64_t at, lt_dtype dtype, double want, const char *what) {
    if (memcmp(&(double){get(data, at, dtype)}, &want, sizeof want) != 0) {
        LT_FAIL(LT_ERR_STATE, "%s of %s: element %lld is %.9g, not %.9g", what,
                lt_dtype_name(dtype), (long long)at, get(data, at, dtype), want);
    }
    return LT_OK;
}

static lt_err open_all(lt_group **g, lt_comm *c) {
    static const int ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
    return lt_group_open(g, c, "all", ranks, lt_comm_size(c));
}

/* ---- Reductions ------------------------------------------------------------------------------ */

static lt_err reduce_case(lt_group *g, int64_t count, lt_dtype dtype, lt_reduce op, bool in_place) {
    const int n = lt_group_size(g), own = lt_group_rank(g);
    const size_t bytes = (size_t)count * lt_dtype_bytes(dtype);
    char *src = take((size_t)n * bytes + 1), *other = take((size_t)n * bytes + 1);
    lt_err err = LT_OK;

    /* all_reduce */
    fill(src, own, 0, count, dtype);
    char *dst = in_place ? src : other;
    LT_TRY_DONE(all_reduce(g, dst, src, count, dtype, op));
    for (int64_t i = 0; i < count; i++) {
        LT_TRY_DONE(same(dst, i, dtype, reduction(n, i, dtype, op), "all_reduce"));
    }
    /* reduce_scatter: rows of `count`; this member's is own. */
    fill(src, own, 0, n * count, dtype);
    dst = in_place ? src + (size_t)own * bytes : other;
    LT_TRY_DONE(reduce_scatter(g, dst, src, count, dtype, op));
    for (int64_t i = 0; i < count; i++) {
        LT_TRY_DONE(
            same(dst, i, dtype, reduction(n, own * count + i, dtype, op), "reduce_scatter"));
    }
done:
    give(src);
    give(other);
    return err;
}

static lt_err reduce_rank(lt_comm *c, void *ctx) {
    lt_group *g;
    (void)ctx;
    LT_TRY(open_all(&g, c));
    for (size_t t = 0; t < sizeof reduced / sizeof *reduced; t++) {
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            for (int op = LT_REDUCE_SUM; op <= LT_REDUCE_MIN; op++) {
                /* The sum of U8 wraps around, which `reduction` does not. */
                if (reduced[t] != LT_U8 || op != LT_REDUCE_SUM) {
                    LT_TRY(reduce_case(g, counts[k], reduced[t], (lt_reduce)op, (k + t) % 2 == 0));
                }
            }
        }
    }
    return LT_OK;
}

static void reductions(void **state) {
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (lt_comm_run_threads(sizes[i], NULL, reduce_rank, NULL) != LT_OK) {
            fail_msg("%d ranks: %s", sizes[i], lt_error_message());
        }
    }
}

/* A NaN of one member reaches all, whatever the reduction. */
static lt_err nan_rank(lt_comm *c, void *ctx) {
    float *x = take(sizeof *x), *y = take(sizeof *y);
    double *d = take(sizeof *d), *e = take(sizeof *e);
    lt_err err = LT_OK;
    lt_group *g;
    (void)ctx;
    LT_TRY_DONE(open_all(&g, c));
    for (int op = LT_REDUCE_SUM; op <= LT_REDUCE_MIN; op++) {
        for (int who = 0; who < lt_comm_size(c); who++) {
            *x = lt_comm_rank(c) == who ? NAN : (float)lt_comm_rank(c);
            *d = *x;
            LT_TRY_DONE(all_reduce(g, y, x, 1, LT_F32, (lt_reduce)op));
            LT_TRY_DONE(all_reduce(g, e, d, 1, LT_F64, (lt_reduce)op));
            if (!isnan(*y) || !isnan(*e)) {
                LT_FAIL_DONE(LT_ERR_STATE, "NaN of rank %d is lost: %g %g", who, (double)*y, *e);
            }
        }
    }
done:
    give(x);
    give(y);
    give(d);
    give(e);
    return err;
}

static void nan_is_kept(void **state) {
    (void)state;
    assert_int_equal(lt_comm_run_threads(3, NULL, nan_rank, NULL), LT_OK);
}

/* ---- Data movement --------------------------------------------------------------------------- */

static lt_err move_case(lt_group *g, int64_t count, lt_dtype dtype, lt_rng *rng) {
    const int n = lt_group_size(g), own = lt_group_rank(g);
    const size_t bytes = (size_t)count * lt_dtype_bytes(dtype);
    char *src = take((size_t)(4 * n) * (bytes + 8)), *dst = take((size_t)(4 * n) * (bytes + 8));
    int64_t sends[8], receives[8], table[8][8], at = 0;
    lt_err err = LT_OK;

    /* all_gather, in place every other time */
    const bool in_place = count % 2 == 0;
    char *row = in_place ? dst + (size_t)own * bytes : src;
    fill(row, own, 0, count, dtype);
    LT_TRY_DONE(all_gather(g, dst, row, count, dtype));
    for (int64_t i = 0; i < n * count; i++) {
        char want[8];
        put(want, 0, dtype, value((int)(i / count), i % count));
        LT_TRY_DONE(same(dst, i, dtype, get(want, 0, dtype), "all_gather"));
    }
    for (int root = 0; root < n; root++) {
        fill(dst, own, root, count, dtype);
        LT_TRY_DONE(broadcast(g, dst, count, dtype, root));
        for (int64_t i = 0; i < count; i++) {
            char want[8];
            put(want, 0, dtype, value(root, root + i));
            LT_TRY_DONE(same(dst, i, dtype, get(want, 0, dtype), "broadcast"));
        }
    }
    /* all_to_all: the same table of counts on every rank; some are 0. */
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            table[i][j] = (int64_t)lt_rng_below(rng, (uint64_t)count + 1) *
                          (lt_rng_below(rng, 3) > 0);
        }
    }
    for (int i = 0; i < n; i++) {
        sends[i] = table[own][i];
        receives[i] = table[i][own];
        fill(src + (size_t)at * lt_dtype_bytes(dtype), own, 1000 * i, sends[i], dtype);
        at += sends[i];
    }
    LT_TRY_DONE(all_to_all(g, dst, receives, src, sends, dtype));
    at = 0;
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < receives[i]; k++, at++) {
            char want[8];
            put(want, 0, dtype, value(i, 1000 * own + k));
            LT_TRY_DONE(same(dst, at, dtype, get(want, 0, dtype), "all_to_all"));
        }
    }
done:
    give(src);
    give(dst);
    return err;
}

static lt_err move_rank(lt_comm *c, void *ctx) {
    lt_rng rng = {.seed = 7};
    lt_group *g;
    (void)ctx;
    LT_TRY(open_all(&g, c));
    for (size_t t = 0; t < sizeof reduced / sizeof *reduced; t++) {
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            LT_TRY(move_case(g, counts[k], reduced[t], &rng));
        }
    }
    return lt_barrier(g);
}

static void data_moves_to_the_right_ranks(void **state) {
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (lt_comm_run_threads(sizes[i], NULL, move_rank, NULL) != LT_OK) {
            fail_msg("%d ranks: %s", sizes[i], lt_error_message());
        }
    }
}

/* ---- Many calls in flight
 * -------------------------------------------------------------------- */

#define N_WAVES 40
#define N_WORDS 300
#define N_CROWD 4

/* Every rank sends to every other before it receives, with collectives of two groups in between,
 * and waits for everything at the end: more calls than the ring holds, in an order that would
 * deadlock if a send waited for its receive. */
typedef struct {
    int32_t out[N_CROWD][N_WORDS], in[N_CROWD][N_WORDS];
    float sums[2];
} wave;

static lt_err crowd_check(const wave *waves, int own, const int *half) {
    for (int w = 0; w < N_WAVES; w++) {
        if (waves[w].sums[0] != (float)(6 + 4 * w) ||
            waves[w].sums[1] != (float)(w * (half[0] + half[1]))) {
            LT_FAIL(LT_ERR_STATE, "wave %d: sums %g %g", w, (double)waves[w].sums[0],
                    (double)waves[w].sums[1]);
        }
        for (int from = 0; from < N_CROWD; from++) {
            for (int i = 0; from != own && i < N_WORDS; i++) {
                if (waves[w].in[from][i] != from * 1000003 + w * 10007 + own * 101 + i) {
                    LT_FAIL(LT_ERR_STATE, "wave %d from %d: word %d", w, from, i);
                }
            }
        }
    }
    return LT_OK;
}

static lt_err crowd_rank(lt_comm *c, void *ctx) {
    const int own = lt_comm_rank(c), half[2] = {own / 2 * 2, own / 2 * 2 + 1};
    wave *waves = take(N_WAVES * sizeof *waves);
    lt_comm_work last = 0;
    lt_group *all, *pair;
    lt_err err = LT_OK;
    (void)ctx;
    LT_TRY_DONE(open_all(&all, c));
    LT_TRY_DONE(lt_group_open(&pair, c, "pair", half, 2));
    for (int w = 0; w < N_WAVES; w++) {
        waves[w].sums[0] = (float)(own + w);
        waves[w].sums[1] = (float)(own * w);
        for (int to = 0; to < N_CROWD; to++) {
            for (int i = 0; i < N_WORDS; i++) {
                waves[w].out[to][i] = own * 1000003 + w * 10007 + to * 101 + i;
            }
        }
    }
    LT_TRY_DONE(up(waves, N_WAVES * sizeof *waves));
    for (int w = 0; w < N_WAVES; w++) {
        float *sums = on(waves[w].sums);
        for (int to = 0; to < N_CROWD; to++) {
            if (to != own) {
                LT_TRY_DONE(lt_send(all, to, on(waves[w].out[to]), N_WORDS, LT_I32, &last));
            }
        }
        LT_TRY_DONE(lt_all_reduce(all, sums, sums, 1, LT_F32, LT_REDUCE_SUM, &last));
        LT_TRY_DONE(lt_all_reduce(pair, sums + 1, sums + 1, 1, LT_F32, LT_REDUCE_SUM, &last));
        for (int from = N_CROWD - 1; from >= 0; from--) {
            if (from != own) {
                LT_TRY_DONE(lt_recv(all, from, on(waves[w].in[from]), N_WORDS, LT_I32, &last));
            }
        }
    }
    for (lt_comm_work k = 1; k <= last; k++) {
        LT_TRY_DONE(lt_comm_wait(c, k));
        if (!lt_comm_done(c, k)) {
            LT_FAIL_DONE(LT_ERR_STATE, "call %llu is waited for and not done",
                         (unsigned long long)k);
        }
    }
    LT_TRY_DONE(down(waves, N_WAVES * sizeof *waves));
    LT_TRY_DONE(crowd_check(waves, own, half));
done:
    give(waves);
    return err;
}

static void many_calls_under_way(void **state) {
    (void)state;
    if (lt_comm_run_threads(4, NULL, crowd_rank, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* ---- Messages of several pieces -------------------------------------------------------------- */

/* Sizes near the pieces into which mpi.c cuts messages: 512 KiB for reductions. */
static lt_err large_rank(lt_comm *c, void *ctx) {
    static const int64_t sizes[] = {131072, 131073, 400001, 1000003};
    const int n = lt_comm_size(c), own = lt_comm_rank(c);
    lt_err err = LT_OK;
    lt_group *g;
    float *x = take(1000003 * sizeof(double)), *y = take(1000003 * sizeof(double));
    (void)ctx;
    LT_TRY_DONE(open_all(&g, c));
    /* Twice the bytes, and a type that GPUs leave to the host: several pieces there, too. */
    fill(x, own, 0, 1000003, LT_F64);
    LT_TRY_DONE(all_reduce(g, y, x, 1000003, LT_F64, LT_REDUCE_SUM));
    for (int64_t i = 0; i < 1000003; i++) {
        LT_TRY_DONE(same(y, i, LT_F64, reduction(n, i, LT_F64, LT_REDUCE_SUM), "all_reduce"));
    }
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        lt_comm_work last = 0;
        fill(x, own, 0, sizes[k], LT_F32);
        LT_TRY_DONE(all_reduce(g, y, x, sizes[k], LT_F32, LT_REDUCE_SUM));
        for (int64_t i = 0; i < sizes[k]; i++) {
            LT_TRY_DONE(same(y, i, LT_F32, reduction(n, i, LT_F32, LT_REDUCE_SUM), "all_reduce"));
        }
        if (n > 1) {
            LT_TRY_DONE(up(x, (size_t)sizes[k] * sizeof *x));
            LT_TRY_DONE(lt_send(g, (own + 1) % n, on(x), sizes[k], LT_F32, &last));
            LT_TRY_DONE(lt_recv(g, (own + n - 1) % n, on(y), sizes[k], LT_F32, NULL));
            LT_TRY_DONE(lt_comm_wait(c, last));
            LT_TRY_DONE(down(y, (size_t)sizes[k] * sizeof *y));
            for (int64_t i = 0; i < sizes[k]; i++) {
                LT_TRY_DONE(
                    same(y, i, LT_F32, (float)value((own + n - 1) % n, i), "send and receive"));
            }
        }
    }
done:
    give(x);
    give(y);
    return err;
}

/* ---- One rank, and refusals
 * ------------------------------------------------------------------ */

/* A verb in a group of one member is done in its turn, too: waiting for it means that all earlier
 * collectives are done. Rank 1 makes rank 0 wait for the first. */
static lt_err in_turn(lt_comm *c, void *ctx) {
    static const int both[] = {0, 1};
    const int rank = lt_comm_rank(c);
    lt_group *world, *self;
    float sum = 1.0f, own = 5.0f, mine = 0.0f;
    lt_comm_work first, last;
    (void)ctx;
    LT_TRY(lt_group_open(&world, c, "both", both, 2));
    LT_TRY(lt_group_open(&self, c, "self", &rank, 1));
    if (rank == 1) {
        (void)usleep(200000);
    }
    LT_TRY(lt_all_reduce(world, &sum, &sum, 1, LT_F32, LT_REDUCE_SUM, &first));
    LT_TRY(lt_all_reduce(self, &mine, &own, 1, LT_F32, LT_REDUCE_SUM, &last));
    LT_TRY(lt_comm_wait(c, last));
    if (!lt_comm_done(c, first) || sum != 2.0f || mine != 5.0f) {
        LT_FAIL(LT_ERR_STATE, "the second verb was done before the first: %g, %g", (double)sum,
                (double)mine);
    }
    return LT_OK;
}

static void one_member_has_its_turn(void **state) {
    const lt_comm_options o = {.deadline_s = 30};
    (void)state;
    if (lt_comm_run_threads(2, &o, in_turn, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void one_rank_alone(void **state) {
    const int zero[] = {0, 0}, one[] = {1};
    float x = 3.0f, y = 0.0f;
    lt_comm_work w;
    lt_comm *c;
    lt_group *g;
    (void)state;
    assert_int_equal(lt_comm_open_self(&c, NULL), LT_OK);
    assert_string_equal(lt_comm_transport(c), "self");
    assert_int_equal(lt_group_open(&g, c, "all", zero, 1), LT_OK);
    assert_int_equal(lt_all_reduce(g, &y, &x, 1, LT_F32, LT_REDUCE_SUM, &w), LT_OK);
    assert_true(lt_comm_done(c, w) && y == 3.0f);
    assert_int_equal(lt_comm_wait(c, w), LT_OK);
    assert_int_equal(lt_group_open(&g, c, "two", zero, 2), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "2 members in a world of 1"));
    assert_int_equal(lt_group_open(&g, c, "far", one, 1), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "rank 1 in a world of 1"));
    assert_int_equal(lt_group_open(&g, c, "", zero, 1), LT_ERR_ARG);
    assert_int_equal(lt_all_reduce(g, &y, &x, 1, LT_F8_E4M3, LT_REDUCE_SUM, NULL),
                     LT_ERR_UNSUPPORTED);
    assert_int_equal(lt_broadcast(g, &y, 1, LT_F32, 1, NULL), LT_ERR_ARG);
    assert_int_equal(lt_send(g, 0, &y, 1, LT_F32, NULL), LT_ERR_ARG);
    lt_comm_close(c);
    lt_comm_close(NULL);
    assert_int_equal(lt_comm_run_threads(0, NULL, nan_rank, NULL), LT_ERR_ARG);
}

/* ---- The same between GPUs: one per rank, real or emulated
 * ----------------------------------- */

static lt_err (*const verb_ranks[])(lt_comm *, void *) = {reduce_rank, move_rank, nan_rank,
                                                          crowd_rank, large_rank};
#define N_VERB_RANKS (sizeof verb_ranks / sizeof *verb_ranks)

/* The verbs of all ranks at once, with queue and call in both orders. */
static lt_err queue_rank(lt_comm *c, lt_queue *q) {
    const int64_t count = 100000;
    const size_t bytes = (size_t)count * sizeof(float);
    float *x = take(bytes), *y = take(bytes), *z = take(bytes);
    lt_comm_work work;
    lt_err err = LT_OK;
    lt_group *g;
    LT_TRY_DONE(open_all(&g, c));
    lt_comm_follow(c, q);
    fill(x, lt_comm_rank(c), 0, count, LT_F32);
    for (int i = 0; i < 8; i++) {
        memset(z, 0, bytes);
        LT_TRY_DONE(up(z, bytes));
        /* The host waits for nothing: upload, sum, copy, sum of the copies, in their order. */
        LT_TRY_DONE(mirror.device->backend->upload(q, on(x), x, bytes));
        LT_TRY_DONE(lt_all_reduce(g, on(y), on(x), count, LT_F32, LT_REDUCE_SUM, &work));
        LT_TRY_DONE(lt_comm_order(c, work, q));
        LT_TRY_DONE(mirror.device->backend->copy(q, on(z), on(y), bytes));
        LT_TRY_DONE(lt_all_reduce(g, on(z), on(z), count, LT_F32, LT_REDUCE_SUM, &work));
        LT_TRY_DONE(lt_comm_order(c, work, q));
        LT_TRY_DONE(mirror.device->backend->sync(q));
        LT_TRY_DONE(down(z, bytes));
        for (int64_t k = 0; k < count; k += 37) {
            const float once = (float)reduction(lt_comm_size(c), k, LT_F32, LT_REDUCE_SUM);
            float twice = once;
            for (int r = 1; r < lt_comm_size(c); r++) {
                twice += once;
            }
            LT_TRY_DONE(same(z, k, LT_F32, (double)twice, "ordered all_reduce"));
        }
    }
done:
    lt_comm_follow(c, NULL);
    give(x);
    give(y);
    give(z);
    return err;
}

/* Rows of a reduce_scatter that are sent as soon as they are complete. They are complete a while
 * later, when `release` is set; this rank's own row is completed while the others are in flight.
 * Rows of some members are sent early, the rest with the call. */
static lt_err early_case(lt_group *g, lt_queue *q, int64_t count, lt_dtype dtype) {
    const int n = lt_group_size(g), own = lt_group_rank(g);
    const size_t bytes = (size_t)count * lt_dtype_bytes(dtype);
    const lt_backend *b = mirror.device->backend;
    char *ready = take((size_t)n * bytes), *src = take((size_t)n * bytes), *dst = take(bytes);
    uint32_t *release = take(sizeof *release);
    lt_comm_work work;
    lt_err err = LT_OK;
    *release = 0;
    LT_TRY_DONE(up(release, sizeof *release));
    memset(src, 0, (size_t)n * bytes);
    LT_TRY_DONE(up(src, (size_t)n * bytes));
    fill(ready, own, 0, n * count, dtype);
    LT_TRY_DONE(up(ready, (size_t)n * bytes));
    LT_TRY_DONE(b->flag_wait(q, on(release), 1));
    for (int i = 1; i <= n; i++) {
        const int member = (own + i) % n;
        const size_t row = (size_t)member * bytes;
        LT_TRY_DONE(b->copy(q, on(src + row), on(ready + row), bytes));
        if (member == own || (own + member + (int)count) % 4 != 0) {
            LT_TRY_DONE(lt_reduce_scatter_early(g, member, on(src), count, dtype));
        }
    }
    LT_TRY_DONE(lt_reduce_scatter(g, on(dst), on(src), count, dtype, LT_REDUCE_SUM, &work));
    LT_TRY_DONE(lt_comm_order(lt_group_comm(g), work, q));
    (void)usleep(5000);
    LT_TRY_DONE(b->flag_set(mirror.queue, on(release), 1));
    LT_TRY_DONE(b->sync(q));
    LT_TRY_DONE(down(dst, bytes));
    for (int64_t i = 0; i < count; i++) {
        LT_TRY_DONE(same(dst, i, dtype, reduction(n, own * count + i, dtype, LT_REDUCE_SUM),
                         "early reduce_scatter"));
    }
done:
    give(ready);
    give(src);
    give(dst);
    give(release);
    return err;
}

static lt_err early_rank(lt_comm *c, lt_queue *q) {
    static const int64_t sizes[] = {1, 1000, 300001, 600001};
    lt_err err = LT_OK;
    lt_group *g;
    LT_TRY(open_all(&g, c));
    lt_comm_follow(c, q);
    for (size_t k = 0; k < 2 * sizeof sizes / sizeof *sizes && err == LT_OK; k++) {
        err = early_case(g, q, sizes[k / 2], k % 2 == 0 ? LT_F32 : LT_BF16);
    }
    lt_comm_follow(c, NULL);
    return err;
}

/* Run every function above on the GPU whose number is that of this rank. */
static lt_err gpu_rank(lt_comm *host, void *ctx) {
    const lt_comm_options o = {.check = *(const bool *)ctx, .deadline_s = 60.0};
    lt_err err = LT_OK;
    lt_queue *q = NULL;
    lt_comm *c = NULL;
    LT_TRY_DONE(lt_device_open(&mirror.device, LT_DEVICE_CUDA, lt_comm_rank(host)));
    LT_TRY_DONE(mirror.device->backend->queue_open(mirror.device, &mirror.queue));
    LT_TRY_DONE(mirror.device->backend->queue_open(mirror.device, &q));
    LT_TRY_DONE(mirror.device->backend->alloc(mirror.device, &mirror.data, MIRROR_BYTES, "mirror"));
    mirror.host = malloc(MIRROR_BYTES);
    LT_TRY_DONE(lt_comm_open_device(&c, host, mirror.device, &o));
    for (size_t i = 0; i < N_VERB_RANKS; i++) {
        if ((verb_ranks[i] != crowd_rank && verb_ranks[i] != nan_rank) || lt_comm_size(c) == 4) {
            LT_TRY_DONE(verb_ranks[i](c, NULL));
        }
    }
    LT_TRY_DONE(queue_rank(c, q));
    LT_TRY_DONE(early_rank(c, q));
done:
    lt_comm_close(c);
    if (mirror.device != NULL) {
        mirror.device->backend->queue_close(q);
        mirror.device->backend->queue_close(mirror.queue);
        mirror.device->backend->release(mirror.device, mirror.data, MIRROR_BYTES);
        lt_device_close(mirror.device);
    }
    free(mirror.host);
    memset(&mirror, 0, sizeof mirror);
    return err;
}

static bool has_gpus(int n) {
    lt_device *d = NULL;
    const bool has = lt_device_open(&d, LT_DEVICE_CUDA, n - 1) == LT_OK;
    lt_device_close(d);
    return has;
}

static void reductions_and_movements_on_gpus(void **state) {
    static const int sizes[] = {2, 3, 4};
    int n = 0;
    (void)state;
    /* Core: gpus_by_launch covers two ranks. */
    for (size_t i = core_only() ? 1 : 0; i < sizeof sizes / sizeof *sizes && has_gpus(sizes[i]);
         i++, n++) {
        bool check = i % 2 == 0;
        if (lt_comm_run_threads(sizes[i], NULL, gpu_rank, &check) != LT_OK) {
            fail_msg("%d GPUs: %s", sizes[i], lt_error_message());
        }
    }
    if (n == 0) {
        skip();
    }
}

/* ---- The same between processes -------------------------------------------------------------- */

/* A rank of mpirun or launch runs every function above, with the check of calls or without it. */
static int as_process(bool check, bool on_gpu) {
    const lt_comm_options o = {.check = check};
    const bool apart = lt_launched_apart();
    const char *want = apart ? "tcp" : lt_comm_under_launch() ? "shm" : "mpi";
    lt_comm *c = NULL;
    lt_err err = lt_comm_open(&c, &o);
    for (size_t i = 0; err == LT_OK && i < N_VERB_RANKS && !on_gpu; i++) {
        if ((verb_ranks[i] != crowd_rank && verb_ranks[i] != nan_rank) || lt_comm_size(c) == 4) {
            err = verb_ranks[i](c, NULL);
        }
    }
    if (err == LT_OK && on_gpu) {
        err = gpu_rank(c, &check);
    }
    if (err == LT_OK && strcmp(lt_comm_transport(c), want) != 0) {
        err = lt_error_set(LT_ERR_STATE, "transport %s", lt_comm_transport(c));
    }
    if (err != LT_OK) {
        (void)fprintf(stderr, "%s\n", lt_error_message());
    }
    lt_comm_close(c);
    return err != LT_OK;
}

static void processes(void **state) {
    static const int sizes[] = {1, 2, 3, 4};
    (void)state;
    if (!mpirun_is_there()) {
        skip();
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(mpirun(sizes[i], i % 2 == 0 ? "check" : ""), 0);
    }
}

static void processes_of_launch(void **state) {
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char word[] = "test_verbs", check[] = "check";
        char *const argv[] = {word, i % 2 == 0 ? check : NULL, NULL};
        const lt_launch_options o = {.n_ranks = sizes[i], .grace_s = 10.0};
        int status = -1;
        assert_int_equal(lt_launch(&o, "/proc/self/exe", argv, &status), LT_OK);
        assert_int_equal(status, 0);
    }
}

/* By TCP, as between several machines, which here are all this one. */
static void hosts_of_launch(void **state) {
    static const char *const hosts[] = {"localhost",   "localhost:2", "localhost:3",
                                        "localhost:4", "localhost:5", "localhost:8"};
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        char word[] = "test_verbs", check[] = "check";
        char *const argv[] = {word, i % 2 == 0 ? check : NULL, NULL};
        const lt_launch_options o = {.hosts = hosts[i], .grace_s = 10.0};
        int status = -1;
        assert_int_equal(lt_launch(&o, "/proc/self/exe", argv, &status), LT_OK);
        assert_int_equal(status, 0);
    }
}

static void gpus_by_launch(void **state) {
    char word[] = "test_verbs", gpu[] = "gpu";
    char *const argv[] = {word, gpu, NULL};
    const lt_launch_options o = {.n_ranks = 2, .grace_s = 10.0};
    int status = -1;
    (void)state;
    if (!has_gpus(2)) {
        skip();
    }
    assert_int_equal(lt_launch(&o, "/proc/self/exe", argv, &status), LT_OK);
    assert_int_equal(status, 0);
}

static void large_messages(void **state) {
    (void)state;
    if (lt_comm_run_threads(3, NULL, large_rank, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

int main(int argc, char **argv) {
    if (lt_comm_is_rank()) {
        return as_process(argc > 1 && strcmp(argv[1], "check") == 0,
                          argc > 1 && strcmp(argv[1], "gpu") == 0);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions),
        cmocka_unit_test(nan_is_kept),
        cmocka_unit_test(data_moves_to_the_right_ranks),
        cmocka_unit_test(many_calls_under_way),
        cmocka_unit_test(large_messages),
        cmocka_unit_test(one_member_has_its_turn),
        cmocka_unit_test(one_rank_alone),
        cmocka_unit_test(processes),
        cmocka_unit_test(processes_of_launch),
        cmocka_unit_test(reductions_and_movements_on_gpus),
        cmocka_unit_test(gpus_by_launch),
        cmocka_unit_test(hosts_of_launch),
    };
    if (core_only()) { /* With an emulated GPU; the unit program on the CPU runs the others. */
        cmocka_set_test_filter("*gpus*");
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
