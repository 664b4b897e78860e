/* ggml's block formats, decoded against the values of the `gguf` package
 * (tools/make_dequant_goldens.py) and encoded against ggml itself (tools/make_quant_goldens.py),
 * bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "data/gguf.h"
#include "tensor/block.h"

static void every_format_is_exact(void **state) {
    lt_file_map map;
    size_t at = 0;
    int n_formats = 0;
    (void)state;
    assert_int_equal(lt_file_map_open(&map, "tests/golden/dequant.bin"), LT_OK);
    while (at < map.size_bytes) {
        uint32_t head[3];
        float got[2048], want[2048];
        memcpy(head, map.data + at, sizeof head);
        assert_true(head[2] <= 2048);
        lt_dtype type = LT_I8;
        assert_true(lt_ggml_type_dtype(head[0], &type));
        assert_true(lt_block_decodes(type));
        lt_block_decode(got, type, map.data + at + sizeof head, head[2]);
        memcpy(want, map.data + at + sizeof head + head[1], head[2] * sizeof(float));
        assert_memory_equal(got, want, head[2] * sizeof(float));
        at += sizeof head + head[1] + head[2] * sizeof(float);
        n_formats++;
    }
    assert_int_equal(n_formats, 13);
    lt_file_map_close(&map);
}

/* OCP's MX specification: codes 0 to 15 are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, the
 * scale is 2^(byte - 127); low nibbles are the first half of a block. */
static void mxfp4_is_exact(void **state) {
    static const float codes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned char block[17] = {127 + 3};
    float got[33];
    (void)state;
    for (int i = 0; i < 16; i++) {
        block[1 + i] = (unsigned char)(i | (15 - i) << 4);
    }
    got[32] = 7.0f;
    lt_block_decode(got, LT_MXFP4, block, 32);
    for (int i = 0; i < 32; i++) {
        const int code = i < 16 ? i : 31 - i;
        assert_true(got[i] == (code < 8 ? codes[code] : -codes[code - 8]) * 8.0f);
    }
    assert_true(got[32] == 7.0f);
}

/* Every code in every place, in both orders of nibbles, with every scale that an F16 can hold: the
 * block of Q5_0 has the values of the one of MXFP4; with a smaller scale they are rounded to
 * multiples of 2^-24. Larger scales and NaN are refused, and nothing is written. Blocks of zeros,
 * which ggml gives the smallest scale, are zeros with every scale. */
static void mxfp4_becomes_q5_0(void **state) {
    unsigned char block[17], wide[22];
    float expected[32], got[32];
    (void)state;
    for (int turn = 0; turn < 32 * 256; turn++) {
        const int e = turn / 32;
        const bool adjacent = turn % 2 == 1;
        block[0] = (unsigned char)e;
        for (int i = 0; i < 16; i++) {
            block[1 + i] = (unsigned char)((i + turn) % 16 | (i * 7 + turn / 2) % 16 << 4);
        }
        if (adjacent) {
            lt_block_decode_mxfp4(expected, block + 1, block, 0, 32);
        } else {
            lt_block_decode(expected, LT_MXFP4, block, 32);
        }
        memset(wide, 0xee, sizeof wide);
        const bool fits = lt_block_mxfp4_as_q5_0(wide, block + 1, e, adjacent);
        assert_int_equal(fits, e <= 143);
        if (fits) {
            lt_block_decode(got, LT_Q5_0, wide, 32);
        }
        for (int i = 0; i < 32; i++) {
            assert_true(fits ? fabsf(got[i] - expected[i]) <= (e < 104 ? 0x1p-25f : 0.0f)
                             : i >= 22 || wide[i] == 0xee);
        }
        memset(block + 1, turn % 3 == 0 ? 0x88 : 0, 16);
        assert_int_equal(lt_block_mxfp4_as_q5_0(wide, block + 1, e, adjacent), e < 255);
        lt_block_decode(got, LT_Q5_0, wide, 32);
        for (int i = 0; e < 255 && i < 32; i++) {
            assert_true(got[i] == 0.0f);
        }
    }
}

/* Codes, scales and values of NF4 are those of bitsandbytes (tools/make_nf4_goldens.py). */
static void nf4_is_exact(void **state) {
    lt_file_map map;
    uint32_t n;
    (void)state;
    assert_int_equal(lt_file_map_open(&map, "tests/golden/nf4.bin"), LT_OK);
    memcpy(&n, map.data, sizeof n);
    const unsigned char *values = map.data + 4, *codes = values + n * sizeof(float),
                        *scales = codes + n / 2, *decoded = scales + n / 64 * sizeof(float);
    assert_int_equal(map.size_bytes, 4 + n * 4 + n / 2 + n / 64 * 4 + n * 4);
    for (uint32_t b = 0; b < n / 64; b++) {
        float x[64], got[64];
        unsigned char block[36];
        memcpy(x, values + b * sizeof x, sizeof x);
        lt_block_encode(block, LT_NF4, x, 64);
        assert_memory_equal(block, scales + b * 4, 4);
        assert_memory_equal(block + 4, codes + b * 32, 32);
        lt_block_decode(got, LT_NF4, block, 64);
        assert_memory_equal(got, decoded + b * sizeof got, sizeof got);
    }
    lt_file_map_close(&map);
}

/* The same with double quantisation. */
static void nf4_double_is_exact(void **state) {
    lt_file_map map;
    uint32_t n;
    (void)state;
    assert_int_equal(lt_file_map_open(&map, "tests/golden/nf4_double.bin"), LT_OK);
    memcpy(&n, map.data, sizeof n);
    const size_t n_scales = (size_t)lt_nf4_scales_count(n), piece = 4 * 64 * sizeof(float);
    const unsigned char *values = map.data + 4, *wanted_scales = values + n * 64 * 2,
                        *codes = wanted_scales + n_scales * sizeof(float), *decoded = codes + n;
    float *x = malloc(n * 64 * sizeof *x), *scales = malloc(n_scales * sizeof *scales), got[4 * 64];
    unsigned char *nf4 = malloc((size_t)n * 36), *twice = malloc((size_t)n * 33);
    assert_int_equal(map.size_bytes, decoded + 2 * piece - map.data);
    for (uint32_t i = 0; i < n * 64; i++) {
        int16_t v;
        memcpy(&v, values + 2 * i, sizeof v);
        x[i] = (float)v / 4096.0f;
    }
    lt_block_encode(nf4, LT_NF4, x, n * 64);
    lt_nf4_double_encode(twice, scales, nf4, n);
    assert_memory_equal(scales, wanted_scales, n_scales * sizeof(float));
    for (uint32_t b = 0; b < n; b++) {
        assert_int_equal(twice[33 * b], codes[b]);
        assert_memory_equal(twice + 33 * b + 1, nf4 + 36 * b + 4, 32);
    }
    lt_nf4_double_decode(got, twice, scales, 0, 4);
    assert_memory_equal(got, decoded, piece);
    lt_nf4_double_decode(got, twice + 33 * (n - 4), scales, n - 4, 4);
    assert_memory_equal(got, decoded + piece, piece);
    memset(nf4, 0, 36); /* A matrix of zeros, and one whose scales are all equal. */
    lt_nf4_double_encode(twice, scales, nf4, 1);
    lt_nf4_double_decode(got, twice, scales, 0, 1);
    assert_true(got[0] == 0.0f && got[63] == 0.0f);
    free(x);
    free(scales);
    free(nf4);
    free(twice);
    lt_file_map_close(&map);
}

static void others_are_refused(void **state) {
    (void)state;
    lt_dtype type;
    assert_false(lt_ggml_type_dtype(LT_GGML_IQ2_XXS, &type));
    assert_false(lt_block_decodes(LT_I32));
    assert_false(lt_block_encodes(LT_Q2_K));
    assert_int_equal(lt_block_partner(LT_Q3_K), LT_PARTNER_NONE);
}

/* For every format: rows of blocks as ggml writes them, and whole numbers that decode to the same
 * values. */
static void every_encoder_is_exact(void **state) {
    lt_file_map map;
    uint32_t rows, cols, n_types = 0;
    (void)state;
    assert_int_equal(lt_file_map_open(&map, "tests/golden/quant.bin"), LT_OK);
    memcpy(&rows, map.data, 4);
    memcpy(&cols, map.data + 4, 4);
    const size_t values = (size_t)rows * cols * sizeof(float);
    float *x = malloc(values);
    memcpy(x, map.data + 8, values);
    for (size_t at = 8 + 2 * values; at < map.size_bytes; n_types++) {
        uint32_t head[2];
        unsigned char got[2048];
        lt_dtype type = LT_I8;
        memcpy(head, map.data + at, sizeof head);
        at += sizeof head;
        assert_true(lt_ggml_type_dtype(head[0], &type));
        assert_true(head[1] <= sizeof got);
        for (uint32_t r = 0; r < rows; r++, at += head[1]) {
            lt_block_encode(got, type, x + (size_t)r * cols, cols);
            if (memcmp(got, map.data + at, head[1]) != 0) {
                fail_msg("%s, row %u", lt_dtype_name(type), r);
            }
        }
        at += rows * sizeof(float);
    }
    assert_int_equal(n_types, 8);
    free(x);
    lt_file_map_close(&map);
}

static void whole_numbers_give_the_decoded_values(void **state) {
    static const lt_dtype types[] = {LT_Q4_0, LT_Q4_1, LT_Q5_0, LT_Q5_1,
                                     LT_Q8_0, LT_Q4_K, LT_Q5_K, LT_Q6_K};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        float x[LT_BLOCK_SUPER], want[LT_BLOCK_SUPER];
        unsigned char block[512];
        lt_block_ints v;
        for (int i = 0; i < LT_BLOCK_SUPER; i++) {
            x[i] = (float)((i * 7919) % 1000 - 400) * 0.01f;
        }
        size_t bytes;
        const size_t n = (size_t)lt_dtype_block(types[t], &bytes);
        lt_block_encode(block, types[t], x, n);
        lt_block_decode(want, types[t], block, n);
        lt_block_unpack(&v, types[t], block);
        assert_int_equal(v.n, n);
        for (int i = 0; i < v.n; i++) {
            const bool k_min = types[t] == LT_Q4_K || types[t] == LT_Q5_K;
            const float scaled = v.d * (float)v.scale[i / v.group] * (float)v.q[i];
            const float got = k_min ? scaled - v.m * (float)v.min[i / v.group] : scaled + v.m;
            assert_true(got == want[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_format_is_exact),
                                       cmocka_unit_test(every_encoder_is_exact),
                                       cmocka_unit_test(whole_numbers_give_the_decoded_values),
                                       cmocka_unit_test(mxfp4_is_exact),
                                       cmocka_unit_test(mxfp4_becomes_q5_0),
                                       cmocka_unit_test(nf4_is_exact),
                                       cmocka_unit_test(nf4_double_is_exact),
                                       cmocka_unit_test(others_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
