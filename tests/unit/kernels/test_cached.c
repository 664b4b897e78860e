/* Keys and values of 8 and 4 bits in pages. kv_write must store what lt_block_encode and
 * lt_f32_to_f8 make of a row; their bytes are those of gguf-py and PyTorch (tests/unit/tensor).
 * Attention over such pages must have the bits of attention over F32 pages with the decoded
 * values. This tests the reference, and every implementation of the CPU backend that this machine
 * can run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/registry.h"
#include "tensor/block.h"
#include "tensor/cached.h"
#include "unit/device.h"

enum { R = 70, G = 2, H = 6, D = 64, P = 16, PAGES = 9, SLOTS = PAGES * P, ROW = G * D };

static const lt_dtype types[] = {LT_F32, LT_BF16, LT_F16, LT_F8_E4M3, LT_Q8_0, LT_Q4_0};
#define N_TYPES (sizeof types / sizeof *types)

static float uniform(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)((int32_t)*seed >> 8) * 0x1p-22f;
}

/* Rows with what rounding can get wrong: ties, equal extremes of both signs, zeros, values that
 * are too small for a scale or too large for 8 bits. */
static void fill(float *x, int64_t n) {
    uint32_t seed = 7;
    for (int64_t i = 0; i < n; i++) {
        x[i] = uniform(&seed);
        switch (i / 32 % 9) {
        case 1:
            x[i] = (float)((int)(x[i] * 64.0f)) * 0.5f;
            break;
        case 3:
            x[i] = i % 32 == 5 ? -2.5f : i % 32 == 20 ? 2.5f : x[i];
            break;
        case 4:
            x[i] = 0.0f;
            break;
        case 5:
            x[i] *= 0x1p-90f;
            break;
        case 7:
            x[i] *= 900.0f;
            break;
        default:
            break;
        }
    }
}

static size_t bytes_of(lt_dtype type, int64_t n) {
    return lt_dtype_row_bytes(type, n);
}

static void blocks_are_those_of_the_formats(void **state) {
    static float x[32 * 90];
    unsigned char got[32 * 90 * 4], want[32 * 90 * 4];
    (void)state;
    fill(x, 32 * 90);
    for (size_t t = 4; t < N_TYPES; t++) {
        size_t size;
        (void)lt_dtype_block(types[t], &size);
        lt_cached_encode(got, types[t], x, 32 * 90);
        lt_block_encode(want, types[t], x, 32 * 90);
        for (int64_t i = 0; i < 90; i++) {
            if (i % 9 != 5) { /* Too small for a scale. */
                assert_memory_equal(got + (size_t)i * size, want + (size_t)i * size, size);
            }
        }
        float values[32];
        lt_cached_decode(values, types[t], got + 5 * size, 32);
        assert_true(values[0] == 0.0f && values[31] == 0.0f);
    }
}

static void what_is_not_finite_is_nan(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t t = 4; t < N_TYPES; t++) {
        for (int i = 0; i < 3; i++) {
            unsigned char block[64];
            float x[32] = {1.0f}, y[32];
            x[7] = bad[i];
            lt_cached_encode(block, types[t], x, 32);
            lt_cached_decode(y, types[t], block, 32);
            for (int k = 0; k < 32; k++) {
                assert_true(isnan(y[k]));
            }
        }
    }
}

static void heads_that_do_not_fit_are_refused(void **state) {
    (void)state;
    assert_null(lt_cached_refusal(LT_Q8_0, 64));
    assert_non_null(lt_cached_refusal(LT_Q8_0, 80));
    assert_non_null(lt_cached_refusal(LT_Q4_0, 24));
    assert_null(lt_cached_refusal(LT_F8_E4M3, 24));
    assert_non_null(lt_cached_refusal(LT_F8_E5M2, 64));
    assert_non_null(lt_cached_refusal(LT_Q4_K, 256));
}

typedef struct {
    lt_dtype k, v;
    unsigned char *k_bytes, *v_bytes; /* (SLOTS, G, D). */
} pool;

static pool pool_open(lt_dtype k, lt_dtype v) {
    const pool p = {k, v, calloc(SLOTS * ROW, 4), calloc(SLOTS * ROW, 4)};
    assert_true(p.k_bytes != NULL && p.v_bytes != NULL);
    return p;
}

static void pool_close(pool *p) {
    free(p->k_bytes);
    free(p->v_bytes);
}

static lt_tensor keys_of(const pool *p) {
    return lt_tensor_4d(p->k_bytes, p->k, PAGES, P, G, D);
}

static lt_tensor values_of(const pool *p) {
    return lt_tensor_4d(p->v_bytes, p->v, PAGES, P, G, D);
}

/* Only instructions that this machine lacks may be a reason to refuse. */
static bool runs_here(const lt_op_impl *impl, const void *args) {
    const char *why = impl->refuse != NULL ? impl->refuse(args, NULL) : NULL;
    if (why != NULL && strncmp(why, "needs AVX", 9) != 0) {
        fail_msg("%s: %s", impl->name, why);
    }
    return why == NULL;
}

/* Every second slot, with `bad` added to a key of row 3. */
static void write_all(const lt_op_impl *impl, const pool *p, float *k, float *v, bool odd,
                      float bad) {
    int32_t slots[R];
    for (int i = 0; i < R; i++) {
        slots[i] = i % 11 == 10 ? -1 : (i * 2 + odd) % SLOTS;
    }
    k[3 * ROW + 40] += bad;
    const lt_kv_write_args a = {.k_pages = keys_of(p),
                                .v_pages = values_of(p),
                                .k = lt_tensor_3d(k, LT_F32, R, G, D),
                                .v = lt_tensor_3d(v, LT_F32, R, G, D),
                                .slots = lt_tensor_1d(slots, LT_I32, R)};
    if (!runs_here(impl, &a)) {
        return;
    }
    assert_int_equal(impl->run(NULL, &a), LT_OK);
    for (int i = 0; i < R; i++) {
        unsigned char want[ROW * 4];
        if (slots[i] < 0) {
            continue;
        }
        lt_cached_encode(want, p->k, k + i * ROW, ROW);
        if (memcmp(want, p->k_bytes + bytes_of(p->k, slots[i] * ROW), bytes_of(p->k, ROW)) != 0 &&
            (i != 3 || !isnan(bad) || lt_dtype_is_block(p->k))) { /* NaN has many bit patterns. */
            fail_msg("%s: keys of row %d in %s", impl->name, i, lt_dtype_name(p->k));
        }
        lt_cached_encode(want, p->v, v + i * ROW, ROW);
        if (memcmp(want, p->v_bytes + bytes_of(p->v, slots[i] * ROW), bytes_of(p->v, ROW)) != 0) {
            fail_msg("%s: values of row %d in %s", impl->name, i, lt_dtype_name(p->v));
        }
    }
}

/* Three sequences: one token, a prompt, a piece after a prefix. */
static void attend(const lt_op_impl *impl, const pool *p, float *q, float *out, int64_t window) {
    int32_t q_start[] = {0, 1, 21, 30}, kv_len[] = {140, 20, 77};
    int32_t table[3][PAGES] = {/* Pages are shared, as those of a prefix are. */
                               {3, 1, 4, 0, 5, 8, 2, 6, 7},
                               {2, 6},
                               {7, 5, 3, 0, 8}};
    const lt_attention_paged_args a = {.out = lt_tensor_3d(out, LT_F32, 30, H, D),
                                       .q = lt_tensor_3d(q, LT_F32, 30, H, D),
                                       .k_pages = keys_of(p),
                                       .v_pages = values_of(p),
                                       .table = lt_tensor_2d(table, LT_I32, 3, PAGES),
                                       .q_start = lt_tensor_1d(q_start, LT_I32, 4),
                                       .kv_len = lt_tensor_1d(kv_len, LT_I32, 3),
                                       .scale = 0.125f,
                                       .window = window,
                                       .q_max = 20,
                                       .kv_max = 140,
                                       .fixed_order = true};
    if (runs_here(impl, &a)) {
        assert_int_equal(impl->run(NULL, &a), LT_OK);
    } else {
        memset(out, 0, (size_t)(30 * H * D) * sizeof *out);
    }
}

/* Compare attention over p with attention over F32 pages of its values, with the same
 * implementation. */
static void compare(const lt_op_impl *impl, const pool *p, float *q) {
    static float got[30 * H * D], want[30 * H * D];
    pool plain = pool_open(LT_F32, LT_F32);
    lt_cached_decode((float *)plain.k_bytes, p->k, p->k_bytes, SLOTS * ROW);
    lt_cached_decode((float *)plain.v_bytes, p->v, p->v_bytes, SLOTS * ROW);
    for (int64_t window = 0; window <= 37; window += 37) {
        attend(impl, p, q, got, window);
        attend(impl, &plain, q, want, window);
        if (memcmp(got, want, sizeof got) != 0) {
            fail_msg("%s: keys in %s, values in %s: other bits", impl->name, lt_dtype_name(p->k),
                     lt_dtype_name(p->v));
        }
    }
    pool_close(&plain);
}

static void pages_hold_the_formats_and_are_read_as_their_values(void **state) {
    const lt_backend *backends[] = {lt_backend_ref(), lt_backend_cpu()};
    float *k = malloc(R * ROW * sizeof *k), *v = malloc(R * ROW * sizeof *v),
          *q = malloc(30 * H * D * sizeof *q);
    uint32_t seed = 3;
    (void)state;
    for (int i = 0; i < 30 * H * D; i++) {
        q[i] = uniform(&seed);
    }
    for (size_t b = 0; b < 2; b++) {
        const lt_op_list write = lt_registry_list(backends[b], LT_OP_kv_write),
                         read = lt_registry_list(backends[b], LT_OP_attention_paged);
        for (size_t t = 0; t < N_TYPES * N_TYPES; t++) {
            pool p = pool_open(types[t / N_TYPES], types[t % N_TYPES]);
            for (int i = 0; i < write.n_impls; i++) {
                fill(k, R * ROW);
                fill(v, R * ROW);
                write_all(&write.impls[i], &p, k, v, true, NAN);
                fill(k, R * ROW);
                write_all(&write.impls[i], &p, k, v, true, 0.0f);
                write_all(&write.impls[i], &p, k, v, false, 0.0f);
            }
            for (int i = 0; i < read.n_impls; i++) {
                compare(&read.impls[i], &p, q);
            }
            pool_close(&p);
        }
    }
    free(k);
    free(v);
    free(q);
}

/* Attention reads keys and values in F16 beside F32 queries, but only the reference has gradients
 * for them. */
static void gradients_of_a_cache_are_refused(void **state) {
    float x[D] = {0.0f}, grad[D], stat[1] = {0.0f};
    uint16_t cache[D] = {0};
    const lt_tensor rows = lt_tensor_4d(x, LT_F32, 1, 1, 1, D),
                    kept = lt_tensor_4d(cache, LT_F16, 1, 1, 1, D),
                    to = lt_tensor_4d(grad, LT_F32, 1, 1, 1, D),
                    per_row = lt_tensor_3d(stat, LT_F32, 1, 1, 1);
    lt_attention_bwd_args a = {
        .fwd = {.q = rows, .k = rows, .v = rows, .out = rows, .lse = per_row, .scale = 0.125f},
        .dq = to,
        .dk = to,
        .dv = to,
        .dout = rows,
        .delta = per_row};
    const lt_op_list list = lt_registry_list(lt_backend_cpu(), LT_OP_attention_bwd);
    int n_run = 0;
    (void)state;
    for (int i = 0; i < list.n_impls; i++) {
        n_run += list.impls[i].refuse == NULL || list.impls[i].refuse(&a, NULL) == NULL;
    }
    assert_true(n_run > 1);
    a.fwd.k = a.fwd.v = kept;
    for (int i = 0; i < list.n_impls; i++) {
        const lt_op_impl *impl = &list.impls[i];
        assert_true(strcmp(impl->name, "ref") == 0 ||
                    (impl->refuse != NULL && impl->refuse(&a, NULL) != NULL));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_a_cache_are_refused),
        cmocka_unit_test(blocks_are_those_of_the_formats),
        cmocka_unit_test(what_is_not_finite_is_nan),
        cmocka_unit_test(heads_that_do_not_fit_are_refused),
        cmocka_unit_test(pages_hold_the_formats_and_are_read_as_their_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
