/* The registry: order, refusals, failures; the backends' tables; CPU features. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/error.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/machine.h"
#include "kernels/registry.h"
#include "unit/device.h"

static const char *refuse_odd(const void *args, const lt_device *device) {
    (void)device;
    return ((const lt_sumsq_args *)args)->x.shape[0] % 2 != 0 ? "odd length" : NULL;
}

static const char *refuse_all(const void *args, const lt_device *device) {
    (void)args;
    (void)device;
    return "never";
}

static lt_err run_ok(lt_queue *q, const void *args) {
    (void)q;
    (void)args;
    return LT_OK;
}

static lt_err run_fail(lt_queue *q, const void *args) {
    (void)q;
    (void)args;
    return lt_error_set(LT_ERR_NUMERIC, "broken");
}

static const lt_op_impl impls[] = {
    {"first", refuse_all, run_ok}, {"even", refuse_odd, run_fail}, {"last", NULL, run_ok}};

static lt_sumsq_args of_length(int64_t n) {
    static float data[4];
    return (lt_sumsq_args){.x = lt_tensor_1d(data, LT_F32, n)};
}

static void the_first_that_accepts_serves(void **state) {
    const lt_op_list list = {impls, 3};
    const lt_sumsq_args even = of_length(2), odd = of_length(3);
    char why[64];
    (void)state;
    assert_string_equal(lt_registry_choose(list, &even, NULL, why, sizeof why)->name, "even");
    assert_string_equal(why, "first: never\n");
    assert_string_equal(lt_registry_choose(list, &odd, NULL, why, sizeof why)->name, "last");
    assert_string_equal(why, "first: never\neven: odd length\n");
    /* The buffer is too small, so the text is cut, not overrun. */
    assert_string_equal(lt_registry_choose(list, &odd, NULL, why, 9)->name, "last");
    assert_string_equal(why, "first: n");
    assert_string_equal(lt_registry_choose(list, &odd, NULL, NULL, 0)->name, "last");
}

static void failures_name_op_and_implementation(void **state) {
    const lt_op_list list = {impls, 3}, none = {impls, 1};
    const lt_sumsq_args even = of_length(2), odd = of_length(3);
    (void)state;
    assert_int_equal(lt_registry_run(&list, LT_OP_sumsq, NULL, &odd), LT_OK);
    assert_int_equal(lt_registry_run(&list, LT_OP_sumsq, NULL, &even), LT_ERR_NUMERIC);
    assert_string_equal(lt_error_message(), "sumsq/even: broken");
    assert_int_equal(lt_registry_run(&none, LT_OP_sumsq, NULL, &even), LT_ERR_UNSUPPORTED);
}

static void every_op_has_a_reference(void **state) {
    const lt_backend *const backends[] = {lt_backend_ref(), lt_backend_cpu()};
    (void)state;
    for (int op = 0; op < LT_OP_COUNT; op++) {
        for (size_t i = 0; i < 2; i++) {
            const lt_op_list list = lt_registry_list(backends[i], (lt_op)op);
            const lt_op_impl *last = &list.impls[list.n_impls - 1];
            assert_true(list.n_impls >= 1 && list.n_impls <= LT_REGISTRY_MAX_IMPLS);
            assert_string_equal(last->name, "ref");
            assert_null(last->refuse);
        }
    }
    assert_string_equal(lt_op_name(LT_OP_attention_bwd), "attention_bwd");
    assert_string_equal(lt_op_name(LT_OP_matmul), "matmul");
}

static void backends_compute_and_move_memory(void **state) {
    const lt_backend *const backends[] = {lt_backend_ref(), lt_backend_cpu()};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const lt_backend *b = backends[i];
        const float in[4] = {1, 2, 3, 4};
        float out[4] = {0};
        lt_queue *q = NULL;
        void *x = NULL, *y = NULL;
        assert_int_equal(b->queue_open(device_of(b), &q), LT_OK);
        assert_int_equal(b->alloc(device_of(b), &x, sizeof in, "x"), LT_OK);
        assert_int_equal(b->alloc(device_of(b), &y, sizeof in, "y"), LT_OK);
        assert_int_equal(((float *)y)[3] == 0.0f, 1); /* Zeroed. */
        assert_int_equal(b->upload(q, x, in, sizeof in), LT_OK);
        assert_int_equal(b->ops->add(q, &(lt_add_args){.y = lt_tensor_2d(y, LT_F32, 1, 4),
                                                       .a = lt_tensor_2d(x, LT_F32, 1, 4),
                                                       .alpha = 2.0f}),
                         LT_OK);
        assert_int_equal(b->download(q, out, y, sizeof out), LT_OK);
        assert_int_equal(b->sync(q), LT_OK);
        assert_true(out[0] == 2.0f && out[3] == 8.0f);
        assert_int_equal(b->zero(q, y, sizeof out), LT_OK);
        assert_int_equal(b->copy(q, x, y, sizeof out), LT_OK);
        assert_true(((float *)x)[3] == 0.0f);
        b->release(device_of(b), x, sizeof in);
        b->release(device_of(b), y, sizeof in);
        b->release(device_of(b), NULL, 0);
        b->queue_close(q);
    }
}

static void features_are_consistent(void **state) {
    const lt_cpu_features *f = lt_cpu_features_get();
    (void)state;
    assert_true(f->isa < LT_ISA_AVX2 || (f->avx2 && f->fma && f->f16c));
    assert_true(f->isa < LT_ISA_AVX512 || (f->avx512f && f->avx512bw && f->avx512_vnni));
    assert_true(!f->bf16_dot || (f->isa == LT_ISA_AVX512 && f->avx512_bf16));
    assert_string_equal(lt_isa_name(LT_ISA_PORTABLE), "portable");
    assert_string_equal(lt_isa_name(LT_ISA_AVX512), "avx512");
    assert_true(strlen(f->model) > 0);
#if defined(__x86_64__)
    if (f->isa == LT_ISA_AVX512) { /* GCC's own detection agrees. */
        assert_true(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni"));
        assert_true(f->avx512_bf16 == (__builtin_cpu_supports("avx512bf16") != 0));
    }
    if (f->avx2) {
        assert_true(__builtin_cpu_supports("avx2"));
    }
#endif
}

static void the_machine_has_cores_and_memory(void **state) {
    lt_machine m;
    (void)state;
    assert_int_equal(lt_machine_read(&m), LT_OK);
    assert_true(m.n_cores >= 1 && m.n_pus >= m.n_cores && m.n_numa >= 1);
    assert_true(m.limits.memory_bytes > (uint64_t)64 << 20);
    assert_true(m.limits.available_bytes <= m.limits.memory_bytes && m.limits.n_cpus >= 1);
    for (int i = 1; i < m.n_caches; i++) {
        assert_true(m.caches[i].level > m.caches[i - 1].level);
    }
}

/* A list of cores that this machine does not have. */
static void devices_that_do_not_exist_are_refused(void **state) {
    lt_device *d = NULL;
    (void)state;
    assert_int_not_equal(lt_device_open_cpu(&d, 1, "100000"), LT_OK);
    assert_null(d);
    assert_non_null(strstr(lt_error_message(), "device cpu"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_that_accepts_serves),
        cmocka_unit_test(failures_name_op_and_implementation),
        cmocka_unit_test(every_op_has_a_reference),
        cmocka_unit_test(backends_compute_and_move_memory),
        cmocka_unit_test(features_are_consistent),
        cmocka_unit_test(devices_that_do_not_exist_are_refused),
        cmocka_unit_test(the_machine_has_cores_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
