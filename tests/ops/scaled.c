/* scaled.c: cases of cast_scaled and matmul_scaled: matrices of 8-bit floats with scales. */
#include <math.h>

#include "ops/case.h"

enum { T = LT_SCALE_TENSOR, ROW = LT_SCALE_ROW, BLOCK = LT_SCALE_BLOCK };

/* S: how y is scaled, G: how t is; -1: that result is absent. E 1: F8_E5M2. */
static const lt_case cast_cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .C = 1, .S = ROW, .G = -1},
    {"rows", LT_CASE_CHECK, .R = 7, .C = 300, .S = ROW, .G = -1},
    {"rows, whole blocks", LT_CASE_CHECK, .R = 40, .C = 512, .S = ROW, .G = -1, .aligned = true},
    {"rows in E5M2", LT_CASE_CHECK, .R = 9, .C = 144, .S = ROW, .G = -1, .E = 1, .aligned = true},
    {"edges", LT_CASE_CHECK, .R = 16, .C = 384, .S = ROW, .G = -1, .extreme = true},
    {"edges in E5M2", LT_CASE_CHECK, .R = 16, .C = 384, .S = ROW, .G = -1, .E = 1, .extreme = true},
    {"edges, blocks both ways", LT_CASE_CHECK, .R = 40, .C = 384, .S = BLOCK, .G = BLOCK,
     .extreme = true},
    {"blocks", LT_CASE_CHECK, .R = 130, .C = 257, .S = BLOCK, .G = -1},
    {"weights, both ways", LT_CASE_CHECK, .R = 272, .C = 400, .S = BLOCK, .G = BLOCK,
     .aligned = true},
    {"odd, both ways", LT_CASE_CHECK, .R = 131, .C = 77, .S = BLOCK, .G = BLOCK},
    {"gradients, both ways", LT_CASE_CHECK, .R = 200, .C = 144, .S = ROW, .G = ROW},
    {"transposed rows", LT_CASE_CHECK, .R = 256, .C = 128, .S = -1, .G = ROW, .aligned = true},
    {"transposed blocks", LT_CASE_CHECK, .R = 144, .C = 272, .S = -1, .G = BLOCK, .aligned = true},
    {"rows and transposed blocks", LT_CASE_CHECK, .R = 129, .C = 130, .S = ROW, .G = BLOCK},
    {"tensor", LT_CASE_CHECK, .R = 33, .C = 70, .S = T, .G = -1},
    {"tensor, both ways", LT_CASE_CHECK, .R = 144, .C = 272, .S = T, .G = T, .E = 1,
     .aligned = true},
    /* P: the scale is given as 2^-P. */
    {"tensor, the scale is given", LT_CASE_CHECK, .R = 33, .C = 70, .S = T, .G = T, .P = 3},
    {"llama-1b activations", LT_CASE_BENCH, .R = 4096, .C = 2048, .S = ROW, .G = -1},
    {"llama-1b weights", LT_CASE_BENCH, .R = 2048, .C = 2048, .S = BLOCK, .G = BLOCK},
};

/* Magnitudes over many powers of two; zeros, ties and values beyond the least and the largest;
 * NaN and infinities in some blocks. */
static void fill_edges(double *values, const lt_case_tensor *t, lt_rng *r) {
    static const double list[] = {0.0,      -0.0,    448.0,   464.0,   -449.0,  1.0625,
                                  1.1875,   -1.3125, 0x1p-9,  0x1p-10, 0x3p-10, 0x1p-17,
                                  -0x3p-17, 57344.0, 61439.0, 3.5};
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t block = i / 128;
        values[i] = block % 5 == 0   ? list[i % 16]
                    : block % 5 == 1 ? 0.0
                    : block % 5 == 2 ? ldexp(lt_rng_normal(r), (int)(i % 60) - 30)
                    : block % 5 == 3 ? ldexp((double)(i % 97), -100)
                                     : ldexp((double)(i % 31) - 15.0, 100);
        if (block % 25 == 24 && i % 128 == 77) {
            values[i] = block % 2 == 0 ? NAN : -INFINITY;
        }
    }
}

static void fill_given(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    values[0] = ldexp(1.0, -(int)t->c->P);
}

static void cast_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_cast_scaled_args *a = (lt_cast_scaled_args *)s->args;
    const lt_dtype type = c->E ? LT_F8_E5M2 : LT_F8_E4M3;
    lt_case_tensor *t = lt_setup_in(s, "x", &a->x, s->act, LT_SHAPE(c->R, c->C));
    t->fill = c->extreme ? fill_edges : lt_fill_normal;
    a->given = c->P > 0;
    for (int transposed = 0; transposed < 2; transposed++) {
        const int64_t kind = transposed ? c->G : c->S, rows = transposed ? c->C : c->R,
                      cols = transposed ? c->R : c->C;
        const lt_tensor scale = lt_scale_tensor(NULL, (lt_scale_kind)kind, rows, cols);
        if (kind < 0) {
            continue;
        }
        *(transposed ? &a->t_kind : &a->kind) = (lt_scale_kind)kind;
        t = lt_setup_out(s, transposed ? "t" : "y", transposed ? &a->t : &a->y, type,
                         LT_SHAPE(rows, cols));
        t->may_be_nan = true;
        t = (a->given ? lt_setup_in : lt_setup_out)(s, transposed ? "t_scale" : "scale",
                                                    transposed ? &a->t_scale : &a->scale, LT_F32,
                                                    scale.n_dims, scale.shape);
        t->fill = a->given ? fill_given : t->fill;
        t->contiguous = t->may_be_nan = true;
    }
}

const lt_op_cases lt_cases_cast_scaled = {
    .op = LT_OP_cast_scaled,
    .forward = LT_OP_COUNT,
    LT_CASES(cast_cases),
    .build = cast_build,
    .f32 = {0.0, 0.0},
    .bf16 = {0.0, 0.0},
    .why =
        "scales are powers of two, so nothing rounds but the conversion: the same bits everywhere"};

/* S and G: how a and b are scaled. */
static const lt_case matmul_cases[] = {
    {"one by one", LT_CASE_CHECK, .M = 1, .N = 1, .K = 1, .S = ROW, .G = BLOCK},
    {"odd sizes", LT_CASE_CHECK, .M = 7, .N = 13, .K = 37, .S = ROW, .G = BLOCK},
    {"odd blocks, bias", LT_CASE_CHECK, .M = 33, .N = 150, .K = 333, .S = ROW, .G = BLOCK,
     .bias = true},
    {"tensor", LT_CASE_CHECK, .M = 40, .N = 50, .K = 200, .S = T, .G = T},
    {"aligned tile", LT_CASE_CHECK, .M = 128, .N = 128, .K = 128, .S = ROW, .G = BLOCK,
     .aligned = true},
    {"aligned, edges of tiles", LT_CASE_CHECK, .M = 136, .N = 200, .K = 272, .S = ROW, .G = BLOCK,
     .aligned = true},
    {"aligned, deep", LT_CASE_CHECK, .M = 40, .N = 144, .K = 2064, .S = ROW, .G = BLOCK,
     .aligned = true},
    {"aligned, many tiles, bias", LT_CASE_CHECK, .M = 400, .N = 464, .K = 144, .S = ROW, .G = BLOCK,
     .bias = true, .aligned = true},
    {"aligned weight gradient", LT_CASE_CHECK, .M = 272, .N = 144, .K = 400, .S = ROW, .G = BLOCK,
     .accumulate = true, .y_f32 = true, .aligned = true},
    {"aligned, accumulate", LT_CASE_CHECK, .M = 136, .N = 72, .K = 144, .S = ROW, .G = BLOCK,
     .accumulate = true, .aligned = true},
    {"aligned tensor", LT_CASE_CHECK, .M = 136, .N = 392, .K = 528, .S = T, .G = T,
     .aligned = true},
    {"aligned tensor, E5M2, weight gradient", LT_CASE_CHECK, .M = 264, .N = 200, .K = 272, .S = T,
     .G = T, .E = 1, .accumulate = true, .y_f32 = true, .aligned = true},
    {"aligned E5M2", LT_CASE_CHECK, .M = 136, .N = 256, .K = 256, .S = ROW, .G = BLOCK, .E = 1,
     .aligned = true},
    {"llama-1b qkv", LT_CASE_BENCH, .M = 4096, .N = 3072, .K = 2048, .S = ROW, .G = BLOCK},
};

static void fill_scale(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = ldexp(1.0, (int)lt_rng_below(r, 7) - 9);
    }
}

static void matmul_build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_matmul_scaled_args *a = (lt_matmul_scaled_args *)s->args;
    const lt_dtype y = c->y_f32 ? LT_F32 : s->act;
    const lt_tensor a_scale = lt_scale_tensor(NULL, (lt_scale_kind)c->S, c->M, c->K),
                    b_scale = lt_scale_tensor(NULL, (lt_scale_kind)c->G, c->N, c->K);
    lt_case_tensor *t;

    a->a_kind = (lt_scale_kind)c->S;
    a->b_kind = (lt_scale_kind)c->G;
    a->accumulate = c->accumulate;
    lt_setup_in(s, "a", &a->a, c->E ? LT_F8_E5M2 : LT_F8_E4M3, LT_SHAPE(c->M, c->K));
    lt_setup_in(s, "b", &a->b, LT_F8_E4M3, LT_SHAPE(c->N, c->K));
    t = lt_setup_in(s, "a_scale", &a->a_scale, LT_F32, a_scale.n_dims, a_scale.shape);
    t->fill = fill_scale, t->contiguous = true;
    t = lt_setup_in(s, "b_scale", &a->b_scale, LT_F32, b_scale.n_dims, b_scale.shape);
    t->fill = fill_scale, t->contiguous = true;
    if (c->bias) {
        lt_setup_in(s, "bias", &a->bias, s->act, LT_SHAPE(c->N));
    }
    t = c->accumulate ? lt_setup_grad(s, "y", &a->y, y, LT_SHAPE(c->M, c->N))
                      : lt_setup_out(s, "y", &a->y, y, LT_SHAPE(c->M, c->N));
    /* With one scale, the tensor cores sum over all of K: each instruction, for 32 values of k,
     * truncates the sum once more, while a promoted sum is truncated 4 times. Truncation is
     * one-sided, so errors of promoted blocks add up where their values cancel: relative to the
     * largest y they grow as the square root of the number of blocks. */
    t->slack = c->S == T ? fmax(1.0, (double)(c->K + 31) / 32.0 / 4.0)
                         : fmax(1.0, sqrt((double)(c->K + 127) / 128.0) / 2.0);
}

const lt_op_cases lt_cases_matmul_scaled = {
    .op = LT_OP_matmul_scaled,
    .forward = LT_OP_COUNT,
    LT_CASES(matmul_cases),
    .build = matmul_build,
    .f32 = {0x1p-13, 0x1p-12},
    .bf16 = {0x1p-8, 0x1p-12},
    .why =
        "Hopper's tensor cores align the products of an instruction to their largest and keep 14 "
        "bits: 2^-13 of the largest, of either sign, summed over 32 and added up 4 times in 128; "
        "the blocks of 128 in F32; BF16 one rounding"};
