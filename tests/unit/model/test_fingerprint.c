/* The fingerprint of a model, under which keys and values are kept between runs: it is the same for
 * the same model, and differs if a number of the spec that decides keys and values differs, or a
 * weight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/fingerprint.h"
#include "unit/device.h"

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static uint64_t of(const lt_model *m) {
    uint64_t hash = 0;
    must(lt_model_fingerprint(&hash, m));
    return hash;
}

static lt_model *open_model(const char *path, lt_dtype dtype) {
    lt_model *m = NULL;
    must(lt_model_open(&m, path,
                       &(lt_model_options){.dtype = dtype, .device = device_of(lt_backend_cpu())}));
    return m;
}

/* Each of these numbers changes keys or values while all weights keep their shapes. */
static void numbers_of_the_spec(void **state) {
#define AT(member)                                                                                 \
    { #member, offsetof(lt_model_spec, member), sizeof(((lt_model_spec *)0)->member) }
    static const struct {
        const char *name;
        size_t at, bytes;
    } members[] = {
        AT(norm),
        AT(norm_eps),
        AT(norm_gain_offset),
        AT(act),
        AT(swiglu_alpha),
        AT(swiglu_limit),
        AT(embed_scale),
        AT(embed_scale_rounded),
        AT(residual_scale),
        AT(attn_scale),
        AT(attn_scale_by_layer),
        AT(attn_softcap),
        AT(pos),
        AT(rope_theta),
        AT(rope_theta_local),
        AT(rope_scaling),
        AT(rope_factor),
        AT(rope_low_freq),
        AT(rope_high_freq),
        AT(rope_original_seq),
        AT(rope_beta_fast),
        AT(rope_beta_slow),
        AT(rope_truncate),
        AT(rope_attention_factor),
        AT(rope_dim),
        AT(rope_short),
        AT(rope_long),
        AT(no_rope),
        AT(window),
        AT(window_every),
        AT(no_window),
        AT(top_k),
        AT(moe_normalise),
        AT(moe_capacity),
        AT(n_heads),
        AT(n_kv_heads),
    };
    lt_model *m = open_model("tests/golden/model/llama3", LT_F32);
    const lt_model_spec own = m->spec;
    const uint64_t want = of(m);
    (void)state;
    assert_int_equal(of(m), want);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        /* In each number the highest byte but one: a float of another size, another count. In a
         * list, the first and the last element. */
        unsigned char *member = (unsigned char *)&m->spec + members[i].at;
        const size_t last = members[i].bytes - (members[i].bytes > 2 ? 2 : 1);
        member[last] ^= 1;
        if (of(m) == want) {
            fail_msg("%s has no effect", members[i].name);
        }
        m->spec = own;
        member[0] ^= 1;
        if (of(m) == want) {
            fail_msg("%s has no effect", members[i].name);
        }
        m->spec = own;
    }
    m->spec.eos.ids[0] ^= 1; /* What ends a text has no keys. */
    assert_int_equal(of(m), want);
    lt_model_close(m);
}

/* The same file opened twice, in another type, and with one weight changed; random weights of
 * another seed. */
static void weights(void **state) {
    lt_model *m = open_model("tests/golden/model/llama3", LT_F32), *again, *other = NULL;
    const uint64_t want = of(m);
    (void)state;
    again = open_model("tests/golden/model/llama3", LT_F32);
    assert_int_equal(of(again), want);
    for (int i = 0; i < again->table.n_params; i++) { /* The first and the last of each. */
        const lt_param *p = &again->table.params[i];
        float *data = lt_param_data(&again->weights, p);
        for (int k = 0; k < 2; k++) {
            float *one = &data[k == 0 ? 0 : p->count - 1];
            const float was = *one;
            *one += 1.0f;
            if (of(again) == want) {
                fail_msg("%s", p->name);
            }
            *one = was;
        }
    }
    assert_int_equal(of(again), want);
    lt_model_close(again);
    again = open_model("tests/golden/model/llama3", LT_BF16);
    assert_true(of(again) != want);
    lt_model_close(again);
    for (uint64_t seed = 1; seed < 3; seed++) {
        must(lt_model_create(&other, &m->spec, NULL, seed));
        assert_true(of(other) != want);
        must(lt_model_create(&again, &m->spec, NULL, 1));
        assert_true((of(other) == of(again)) == (seed == 1));
        lt_model_close(other);
        lt_model_close(again);
    }
    lt_model_close(m);
}

/* Of a large array, both ends and places between them are read. */
static void large_arrays(void **state) {
    lt_model *m = open_model("tests/golden/model/llama3", LT_F32), *large = NULL;
    lt_model_spec spec = m->spec;
    (void)state;
    spec.vocab_size = 40000;
    must(lt_model_create(&large, &spec, NULL, 1));
    const uint64_t want = of(large);
    const lt_param *p = &large->table.params[0];
    assert_true((size_t)p->count * sizeof(float) > (size_t)1 << 20);
    float *data = lt_param_data(&large->weights, p);
    for (int k = 0; k < 2; k++) {
        data[k == 0 ? 0 : p->count - 1] += 1.0f;
        assert_true(of(large) != want);
        data[k == 0 ? 0 : p->count - 1] -= 1.0f;
    }
    for (int64_t i = p->count / 3; i < p->count / 3 + p->count / 60; i++) {
        data[i] += 1.0f; /* A sixtieth of it cannot lie between 64 samples. */
    }
    assert_true(of(large) != want);
    lt_model_close(large);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_the_spec),
        cmocka_unit_test(weights),
        cmocka_unit_test(large_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
