/* The rotary embedding of a GGUF file, as llama.cpp understands it: each key and tensor that
 * gguf_rope.c lists, in files that this test writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "data/gguf_write.h"
#include "model/family.h"
#include "model/files/gguf_rope.h"

enum { PAIRS = 8, KEYS = 4, CONTEXT = 128 }; /* A head of 16 columns. */

/* A key without "llama.", and its value: a text, or a number, which may be whole. */
typedef struct {
    const char *name, *text;
    double number;
    bool whole;
} key;

typedef struct {
    key keys[KEYS];
    const float *divisors, *shorts, *longs; /* NULL: the file has none. */
    /* What is read. */
    lt_rope_scaling scaling;
    double factor, original, attention;
    const char *says; /* Not NULL: the file is refused with these words. */
} example;

static lt_err fill(const void *ctx, void *dst, uint64_t first, uint64_t n) {
    assert_true(first == 0 && n == 1);
    memcpy(dst, ctx, PAIRS * sizeof(float));
    return LT_OK;
}

static void put_numbers(lt_gguf_out *o, const char *name, const float *numbers, uint64_t n) {
    if (numbers != NULL) {
        lt_gguf_out_tensor(o, name, 1, &n, LT_GGML_F32, fill, numbers);
    }
}

static lt_gguf *write_file(const example *e) {
    static const char path[] = "/tmp/lateen-test-gguf-rope.gguf";
    lt_gguf_out *o = NULL;
    lt_gguf *g = NULL;
    assert_int_equal(lt_gguf_out_open(&o), LT_OK);
    lt_gguf_out_str(o, "general.architecture", "llama");
    for (int i = 0; i < KEYS && e->keys[i].name != NULL; i++) {
        char name[96];
        (void)snprintf(name, sizeof name, "llama.%s", e->keys[i].name);
        if (e->keys[i].text != NULL) {
            lt_gguf_out_str(o, name, e->keys[i].text);
        } else if (e->keys[i].whole) {
            lt_gguf_out_u32(o, name, (int64_t)e->keys[i].number);
        } else {
            lt_gguf_out_f32(o, name, e->keys[i].number);
        }
    }
    put_numbers(o, "rope_freqs.weight", e->divisors, PAIRS);
    put_numbers(o, "rope_factors_short.weight", e->shorts, PAIRS);
    put_numbers(o, "rope_factors_long.weight", e->longs, PAIRS);
    assert_int_equal(lt_gguf_out_write(o, path), LT_OK);
    lt_gguf_out_close(o);
    assert_int_equal(lt_gguf_open(&g, path), LT_OK);
    (void)unlink(path);
    return g;
}

static lt_model_spec spec_of(lt_family family) {
    lt_model_spec s = lt_family_get(family)->preset;
    s.width = 32;
    s.n_heads = s.n_kv_heads = 2;
    s.head_dim = 2 * PAIRS;
    s.max_seq = CONTEXT;
    s.rope_theta = 1e4;
    return s;
}

static void check(const example *all, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const example *e = &all[i];
        lt_model_spec s = spec_of(LT_FAMILY_LLAMA);
        lt_gguf *g = write_file(e);
        const lt_err err = lt_gguf_read_rope(&s, g, "llama");
        if (e->says != NULL) {
            if (err == LT_OK || strstr(lt_error_message(), e->says) == NULL) {
                fail_msg("file %zu: '%s' is not in: %s", i, e->says, lt_error_message());
            }
        } else if (err != LT_OK) {
            fail_msg("file %zu: %s", i, lt_error_message());
        } else if (s.rope_scaling != e->scaling || fabs(s.rope_factor - e->factor) > 1e-6 ||
                   s.rope_original_seq != e->original ||
                   fabs(s.rope_attention_factor - e->attention) > 1e-6) {
            fail_msg("file %zu: scaling %d by %g, original %g, attention %g", i,
                     (int)s.rope_scaling, s.rope_factor, s.rope_original_seq,
                     s.rope_attention_factor);
        }
        lt_gguf_close(g);
    }
}

#define TYPE(kind)                                                                                 \
    { .name = "rope.scaling.type", .text = kind }
#define FACTOR(x)                                                                                  \
    { .name = "rope.scaling.factor", .number = x }

static void metadata(void **state) {
    static const example all[] = {
        {.scaling = LT_ROPE_PLAIN, .factor = 1},
        {.keys = {TYPE("linear"), FACTOR(4)}, .scaling = LT_ROPE_LINEAR, .factor = 4},
        {.keys = {FACTOR(4)}, .scaling = LT_ROPE_LINEAR, .factor = 4}, /* linear is the default. */
        {.keys = {{.name = "rope.scale_linear", .number = 4}},
         .scaling = LT_ROPE_LINEAR,
         .factor = 4},
        {.keys = {{.name = "rope.scaling.factor", .number = 4, .whole = true}},
         .scaling = LT_ROPE_LINEAR,
         .factor = 4},
        {.keys = {FACTOR(0)}, .scaling = LT_ROPE_PLAIN, .factor = 1},
        {.keys = {TYPE("linear"), FACTOR(1)}, .scaling = LT_ROPE_PLAIN, .factor = 1},
        {.keys = {TYPE("none"), FACTOR(4)}, .scaling = LT_ROPE_PLAIN, .factor = 1},
        /* 1 + 0.1 ln 4. The context stands for the original one. */
        {.keys = {TYPE("yarn"), FACTOR(4)},
         .scaling = LT_ROPE_YARN,
         .factor = 4,
         .original = CONTEXT,
         .attention = 1.1386294361},
        {.keys = {TYPE("yarn"),
                  FACTOR(4),
                  {.name = LT_GGUF_ROPE_ORIGINAL, .number = 32, .whole = true},
                  {.name = "rope.scaling.attn_factor", .number = 2}},
         .scaling = LT_ROPE_YARN,
         .factor = 4,
         .original = 32,
         .attention = 2 * 1.1386294361},
        /* (1 + 0.1 ln 4) / (1 + 0.05 ln 4) */
        {.keys = {TYPE("yarn"),
                  FACTOR(4),
                  {.name = "rope.scaling.yarn_log_multiplier", .number = 0.5}},
         .scaling = LT_ROPE_YARN,
         .factor = 4,
         .original = CONTEXT,
         .attention = 1.1386294361 / 1.0693147181},
        {.keys = {TYPE("yarn"), FACTOR(4), {.name = "rope.scaling.yarn_ext_factor", .number = 0.5}},
         .says = "yarn_ext_factor 0.5 and yarn_attn_factor 1 are not 1"},
        {.keys = {TYPE("yarn"),
                  FACTOR(4),
                  {.name = "rope.scaling.yarn_attn_factor", .number = 0.5}},
         .says = "yarn_ext_factor 1 and yarn_attn_factor 0.5 are not 1"},
        {.keys = {TYPE("su")},
         .says = "RoPE scaling 'su' is not supported; these are: none, linear, yarn, longrope"},
        {.keys = {{.name = "rope.scaling.factor", .text = "4"}}, .says = "rope.scaling.factor"},
        {.keys = {{.name = "rope.dimension_count", .number = 7, .whole = true}},
         .says = "rope.dimension_count 7 of heads of 16"},
        {.keys = {{.name = "rope.dimension_count", .number = 0, .whole = true}},
         .says = "rope.dimension_count 0 of heads of 16"},
        {.keys = {{.name = "rope.dimension_count", .number = 18, .whole = true}},
         .says = "rope.dimension_count 18 of heads of 16"},
        {.keys = {{.name = "rope.dimension_count", .number = 16, .whole = true}},
         .scaling = LT_ROPE_PLAIN,
         .factor = 1},
        {.keys = {{.name = "rope.dimension_count", .number = 8, .whole = true}},
         .says = "8 of 16 columns of a head rotate; llama rotates all"},
    };
    (void)state;
    check(all, sizeof all / sizeof *all);
}

static void tensors(void **state) {
    /* transformers' llama3 for theta 1e4, factor 8, low 1, high 4 and original 8192: the wavelength
     * of pair 6 lies between 2,048 and 8,192. */
    static const float llama3[PAIRS] = {1, 1, 1, 1, 1, 1, 4.681483F, 8},
                       other[PAIRS] = {1, 1, 1, 1, 1, 1, 4.73F, 8},
                       rounded[PAIRS] = {1, 1, 1, 1, 1, 1, 4.68F, 8},
                       fours[PAIRS] = {4, 4, 4, 4, 4, 4, 4, 4},
                       still[PAIRS] = {2, 2, 2, 1e30F, 1e30F, 1e30F, 1e30F, 1e30F},
                       all_still[PAIRS] = {1e30F, 1e30F, 1e30F, 1e30F, 1e30F, 1e30F, 1e30F, 1e30F},
                       shorts[PAIRS] = {1, 1, 1, 1, 1, 1, 1.5F, 2},
                       longs[PAIRS] = {1, 1, 2, 2, 3, 3, 4, 5};
    static const example all[] = {
        {.divisors = llama3, .scaling = LT_ROPE_LLAMA3, .factor = 8, .original = 8192},
        {.divisors = rounded, .scaling = LT_ROPE_LLAMA3, .factor = 8, .original = 8192},
        {.divisors = other, .says = "rope_freqs.weight[6] = 4.73 is not Llama-3 scaling by 8"},
        {.divisors = fours, .scaling = LT_ROPE_LINEAR, .factor = 4},
        {.divisors = still, .scaling = LT_ROPE_PROPORTIONAL, .factor = 2},
        {.divisors = all_still, .says = "rope_freqs.weight[0]"},
        {.shorts = shorts,
         .longs = longs,
         .keys = {TYPE("longrope"), FACTOR(4), {.name = "rope.scaling.attn_factor", .number = 1.2}},
         .scaling = LT_ROPE_LONGROPE,
         .factor = 4,
         .original = CONTEXT,
         .attention = 1.2},
        /* llama.cpp's converter writes no type beside the tensors. */
        {.shorts = shorts,
         .longs = longs,
         .keys = {{.name = LT_GGUF_ROPE_ORIGINAL, .number = 32, .whole = true}},
         .scaling = LT_ROPE_LONGROPE,
         .factor = 1,
         .original = 32,
         .attention = 1},
        {.shorts = shorts, .says = "longrope without rope_factors_long.weight"},
        {.longs = longs, .says = "longrope without rope_factors_short.weight"},
        {.keys = {TYPE("longrope")}, .says = "longrope without rope_factors_short.weight"},
        {.divisors = llama3,
         .keys = {TYPE("linear"), FACTOR(4)},
         .says = "RoPE is scaled by metadata and by a tensor"},
        {.shorts = shorts,
         .longs = longs,
         .keys = {TYPE("yarn"), FACTOR(4)},
         .says = "RoPE is scaled by metadata and by a tensor"},
    };
    (void)state;
    check(all, sizeof all / sizeof *all);
    lt_model_spec s = spec_of(LT_FAMILY_LLAMA);
    lt_gguf *g = write_file(&all[4]);
    assert_int_equal(lt_gguf_read_rope(&s, g, "llama"), LT_OK);
    assert_int_equal(s.rope_dim, 6); /* Of three pairs. */
    lt_gguf_close(g);
    s = spec_of(LT_FAMILY_LLAMA);
    g = write_file(&all[6]);
    assert_int_equal(lt_gguf_read_rope(&s, g, "llama"), LT_OK);
    assert_memory_equal(s.rope_short, shorts, sizeof shorts);
    assert_memory_equal(s.rope_long, longs, sizeof longs);
    lt_gguf_close(g);
}

/* What the file says replaces what the family has; without a key the family's theta stays. */
static void a_base_and_a_part_of_a_head(void **state) {
    static const example base = {.keys = {{.name = "rope.freq_base", .number = 5e5}}},
                         part = {.keys = {{.name = "rope.dimension_count", .number = 8}}};
    lt_model_spec s = spec_of(LT_FAMILY_APERTUS);
    lt_gguf *g = write_file(&base);
    (void)state;
    assert_int_equal(lt_gguf_read_rope(&s, g, "llama"), LT_OK);
    assert_true(s.rope_theta == 5e5 && s.rope_scaling == LT_ROPE_PLAIN && s.rope_factor == 1);
    assert_true(s.rope_low_freq == 0 && s.rope_high_freq == 0 && s.rope_dim == 0);
    lt_gguf_close(g);
    g = write_file(&part);
    s = spec_of(LT_FAMILY_PHI3);
    assert_int_equal(lt_gguf_read_rope(&s, g, "llama"), LT_OK);
    assert_true(s.rope_dim == 8 && s.rope_theta == 1e4);
    lt_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata),
        cmocka_unit_test(tensors),
        cmocka_unit_test(a_base_and_a_part_of_a_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
