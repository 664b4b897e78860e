/* Moments in BF16 with stochastic rounding: the rounding itself; every implementation has the
 * reference's bits; a part of a buffer has the bits of the whole; and the purpose: an average that
 * moves by less than half a unit per step still reaches its value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/registry.h"
#include "unit/device.h"

enum { COUNT = 4096, SPLIT_ODD = 1003, SPLIT_EVEN = 1008, MOMENTS = 3 };

typedef struct {
    _Alignas(16) float p[COUNT], g[COUNT];
    uint16_t m[MOMENTS][COUNT], copy[COUNT];
} buffers;

static void rounding(void **state) {
    static const float values[] = {1.0f, -3.14159274f, 1e-30f, 1e-40f, 12345.678f, 0.0f, -0.0f};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double sum = 0.0;
        for (uint32_t bits = 0; bits < 65536; bits++) {
            sum += (double)lt_bf16_to_f32(lt_f32_to_bf16_drawn(values[i], bits));
        }
        assert_true(fabs(sum / 65536.0 - (double)values[i]) <= 1e-12 * fabs((double)values[i]));
    }
    assert_int_equal(lt_f32_to_bf16_drawn(INFINITY, 0xFFFF), 0x7F80);
    assert_int_equal(lt_f32_to_bf16_drawn(-INFINITY, 0xFFFF), 0xFF80);
    assert_true(isnan(lt_bf16_to_f32(lt_f32_to_bf16_drawn(NAN, 0xFFFF))));
    assert_int_equal(lt_f32_to_bf16_drawn(1.0f, 0xFFFF), 0x3F80);
}

static void fill(buffers *b) {
    lt_rng r = {.seed = 7};
    memset(b, 0, sizeof *b);
    for (int i = 0; i < COUNT; i++) {
        b->p[i] = (float)lt_rng_normal(&r);
        b->g[i] = (float)lt_rng_normal(&r);
        b->m[0][i] = lt_f32_to_bf16((float)lt_rng_normal(&r));
        b->m[1][i] = lt_f32_to_bf16((float)lt_rng_uniform(&r));
        b->m[2][i] = lt_f32_to_bf16((float)lt_rng_normal(&r));
    }
}

/* One update of device buffers by an implementation, or by the backend's choice if that is NULL
 * or does not run here. */
typedef struct {
    const lt_backend *backend;
    const lt_op_impl *impl;
    lt_op op;
    lt_queue *queue;
    int64_t step;
    uint64_t seed;
} update;

static lt_err call(const update *u, const void *args) {
    const bool here = u->impl != NULL && (u->impl->refuse == NULL ||
                                          u->impl->refuse(args, device_of(u->backend)) == NULL);
    if (here) {
        return u->impl->run(u->queue, args);
    }
    return u->op == LT_OP_adamw ? u->backend->ops->adamw(u->queue, args)
                                : u->backend->ops->ademamix(u->queue, args);
}

static void apply(const update *u, buffers *b, int64_t from, int64_t to) {
    const int64_t n = to - from;
    lt_err err;
    if (u->op == LT_OP_adamw) {
        const lt_adamw_args a = {.p = lt_tensor_1d(b->p + from, LT_F32, n),
                                 .g = lt_tensor_1d(b->g + from, LT_F32, n),
                                 .m = lt_tensor_1d(b->m[0] + from, LT_BF16, n),
                                 .v = lt_tensor_1d(b->m[1] + from, LT_BF16, n),
                                 .copy = lt_tensor_1d(b->copy + from, LT_BF16, n),
                                 .lr = 0.01f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.999f,
                                 .eps = 1e-8f,
                                 .decay = 0.1f,
                                 .grad_scale = 0.5f,
                                 .step = u->step,
                                 .first = 100 + from,
                                 .seed = u->seed};
        err = call(u, &a);
    } else {
        const lt_ademamix_args a = {.p = lt_tensor_1d(b->p + from, LT_F32, n),
                                    .g = lt_tensor_1d(b->g + from, LT_F32, n),
                                    .m1 = lt_tensor_1d(b->m[0] + from, LT_BF16, n),
                                    .v = lt_tensor_1d(b->m[1] + from, LT_BF16, n),
                                    .m2 = lt_tensor_1d(b->m[2] + from, LT_BF16, n),
                                    .copy = lt_tensor_1d(b->copy + from, LT_BF16, n),
                                    .lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.999f,
                                    .beta3 = 0.9999f,
                                    .alpha = 4.0f,
                                    .eps = 1e-8f,
                                    .decay = 0.1f,
                                    .grad_scale = 0.5f,
                                    .step = u->step,
                                    .first = 100 + from,
                                    .seed = u->seed};
        err = call(u, &a);
    }
    assert_int_equal(err, LT_OK);
}

/* Fill the buffers, update them as a whole (split 0) or in two parts, and fetch them. */
static void run(const update *u, buffers *out, int64_t split) {
    update here = *u;
    void *device = NULL;
    fill(out);
    assert_int_equal(here.backend->queue_open(device_of(here.backend), &here.queue), LT_OK);
    assert_int_equal(here.backend->alloc(device_of(here.backend), &device, sizeof *out, "moments"),
                     LT_OK);
    assert_int_equal(here.backend->upload(here.queue, device, out, sizeof *out), LT_OK);
    if (split > 0) {
        apply(&here, device, 0, split);
    }
    apply(&here, device, split, COUNT);
    assert_int_equal(here.backend->download(here.queue, out, device, sizeof *out), LT_OK);
    assert_int_equal(here.backend->sync(here.queue), LT_OK);
    here.backend->release(device_of(here.backend), device, sizeof *out);
    here.backend->queue_close(here.queue);
}

static int different(const uint16_t *a, const uint16_t *b) {
    int n = 0;
    for (int i = 0; i < COUNT; i++) {
        n += a[i] != b[i];
    }
    return n;
}

/* The random draws are the same; two values that differ in the last bit of F32 fall to different
 * sides of a draw once in some ten thousand. */
static void check(const update *u, const char *name) {
    static buffers want, got, parts, later;
    update other = *u;
    const update ref = {.backend = lt_backend_ref(), .op = u->op, .step = u->step, .seed = u->seed};
    run(&ref, &want, 0);
    run(u, &got, 0);
    /* A GPU updates pieces of 4. */
    run(u, &parts, u->backend->host_memory ? SPLIT_ODD : SPLIT_EVEN);
    other.step++;
    run(&other, &later, 0);
    for (int k = 0; k < (u->op == LT_OP_adamw ? 2 : 3); k++) {
        const int off = different(want.m[k], got.m[k]), moved = different(later.m[k], got.m[k]);
        if (off > 4 || moved < COUNT / 50) {
            fail_msg("%s: moment %d: %d of %d differ from the reference's, %d from another step's",
                     name, k, off, COUNT, moved);
        }
    }
    assert_memory_equal(&got, &parts, sizeof got);
    for (int i = 0; i < COUNT; i++) {
        assert_true(fabsf(got.p[i] - want.p[i]) <= 0x1p-20f * (1.0f + fabsf(want.p[i])));
        assert_int_equal(got.copy[i], lt_f32_to_bf16(got.p[i]));
    }
}

static void implementations(void **state) {
    static const lt_op ops[] = {LT_OP_adamw, LT_OP_ademamix};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const lt_op_list list = lt_registry_list(lt_backend_cpu(), ops[i]);
        for (int k = 0; k < list.n_impls; k++) {
            const update u = {.backend = lt_backend_cpu(),
                              .impl = &list.impls[k],
                              .op = ops[i],
                              .step = 17,
                              .seed = 3};
            check(&u, list.impls[k].name);
        }
        if (gpu_backend() != NULL) {
            const update u = {.backend = gpu_backend(), .op = ops[i], .step = 17, .seed = 3};
            check(&u, "cuda");
        }
    }
}

/* The second moment goes from 1 to 1.21, by a thousandth of the remaining distance per step: less
 * than a sixteenth of BF16's unit. Rounded to nearest it would not move. */
static void slow_averages_reach_their_value(void **state) {
    static buffers b;
    const update u = {.backend = lt_backend_cpu(), .op = LT_OP_adamw, .seed = 1};
    double sum = 0.0;
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        b.g[i] = 2.2f; /* Halved by grad_scale. */
        b.m[1][i] = lt_f32_to_bf16(1.0f);
    }
    for (int step = 1; step <= 3000; step++) {
        update now = u;
        now.step = step;
        apply(&now, &b, 0, COUNT);
    }
    for (int i = 0; i < COUNT; i++) {
        sum += (double)lt_bf16_to_f32(b.m[1][i]);
    }
    assert_true(fabs(sum / COUNT - (1.21 - 0.21 * pow(0.999, 3000))) < 0.002);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounding),
                                       cmocka_unit_test(implementations),
                                       cmocka_unit_test(slow_averages_reach_their_value)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
