/* outer.c: see outer.h. Blocks are independent, so threads take pieces of whole blocks, and the
 * bits are the same for any number of threads. */
#include "parallel/outer.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"

#define PIECE (512 * LT_OUTER_BLOCK) /* Elements that a thread takes at a time. */

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t n_blocks(int64_t n) {
    return (n + LT_OUTER_BLOCK - 1) / LT_OUTER_BLOCK;
}

size_t lt_outer_bytes(lt_outer_bits bits, int64_t n) {
    const size_t scales = (size_t)n_blocks(n) * sizeof(float), all = (size_t)n;
    switch (bits) {
    case LT_OUTER_8:
        return scales + (all + 3) / 4 * 4;
    case LT_OUTER_4:
        return scales + (all + 7) / 8 * 4;
    default:
        return all * sizeof(float);
    }
}

/* ---- Codes of a block ---- */

static float encode_8(uint8_t *codes, const float *delta, int64_t n, float most) {
    const float scale = most / 127.0f;
    for (int64_t i = 0; i < n; i++) {
        codes[i] = (uint8_t)(int8_t)(scale > 0.0f ? lrintf(delta[i] / scale) : 0);
    }
    return scale;
}

/* The nearest of 0, 2^-6, 2^-5, ... 1: the result is the number of midpoints between neighbours
 * that are at or below x. */
static uint8_t exponent_code(float x) {
    static const float half_way[] = {0x1p-7f,   0x1.8p-6f, 0x1.8p-5f, 0x1.8p-4f,
                                     0x1.8p-3f, 0x1.8p-2f, 0x1.8p-1f};
    uint8_t code = 0;
    for (size_t i = 0; i < sizeof half_way / sizeof *half_way; i++) {
        code = (uint8_t)(code + (x >= half_way[i]));
    }
    return code;
}

static float encode_4(uint8_t *codes, const float *delta, int64_t n, float most) {
    memset(codes, 0, (size_t)(n + 1) / 2);
    for (int64_t i = 0; most > 0.0f && i < n; i++) {
        const uint8_t sign = delta[i] < 0.0f ? 8 : 0,
                      code = exponent_code(fabsf(delta[i]) / most) | sign;
        codes[i / 2] = (uint8_t)(codes[i / 2] | code << 4 * (i % 2));
    }
    return most;
}

static float decode_4(uint8_t code) {
    static const float values[16] = {0.0f,     0x1p-6f,  0x1p-5f,  0x1p-4f,  0x1p-3f,  0x1p-2f,
                                     0x1p-1f,  1.0f,     -0.0f,    -0x1p-6f, -0x1p-5f, -0x1p-4f,
                                     -0x1p-3f, -0x1p-2f, -0x1p-1f, -1.0f};
    return values[code & 15];
}

/* ---- Encoding ---- */

typedef struct {
    lt_outer_bits bits;
    void *out;
    const float *outer, *own;
    int64_t n;
    atomic_bool not_finite;
} encoding;

static void encode_block(encoding *e, int64_t block) {
    const int64_t at = block * LT_OUTER_BLOCK, n = least(e->n - at, LT_OUTER_BLOCK);
    float delta[LT_OUTER_BLOCK], most = 0.0f, *scales = e->out;
    uint8_t *codes = (uint8_t *)(scales + n_blocks(e->n));
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        delta[i] = e->outer[at + i] - e->own[at + i];
        finite = finite && isfinite(delta[i]);
        most = fmaxf(most, fabsf(delta[i]));
    }
    if (!finite) {
        atomic_store(&e->not_finite, true);
    }
    if (e->bits == LT_OUTER_32) {
        memcpy(scales + at, delta, (size_t)n * sizeof *delta);
        return;
    }
    most = most < 127.0f * FLT_MIN ? 0.0f : most; /* So that the scale is a normal number. */
    scales[block] = e->bits == LT_OUTER_8 ? encode_8(codes + at, delta, n, most)
                                          : encode_4(codes + at / 2, delta, n, most);
}

static void encode_piece(void *ctx, size_t piece) {
    encoding *e = ctx;
    const int64_t first = (int64_t)piece * (PIECE / LT_OUTER_BLOCK),
                  end = least(first + PIECE / LT_OUTER_BLOCK, n_blocks(e->n));
    for (int64_t block = first; block < end; block++) {
        encode_block(e, block);
    }
}

static size_t n_pieces(int64_t n) {
    return (size_t)((n + PIECE - 1) / PIECE);
}

lt_err lt_outer_encode(void *out, lt_outer_bits bits, const float *outer, const float *own,
                       int64_t n) {
    encoding e = {.bits = bits, .out = out, .outer = outer, .own = own, .n = n};
    if (n == 0) {
        return LT_OK;
    }
    /* Zero the padding at the end. */
    memset((char *)out + lt_outer_bytes(bits, n) - sizeof(float), 0, sizeof(float));
    lt_parallel_for(n_pieces(n), encode_piece, &e);
    if (atomic_load(&e.not_finite)) {
        LT_FAIL(LT_ERR_NUMERIC, "a difference between parameters and outer parameters is not "
                                "finite");
    }
    return LT_OK;
}

/* ---- Sums ---- */

typedef struct {
    lt_outer_bits bits;
    float *sum;
    const void *in;
    int64_t n;
} addition;

static void add_piece(void *ctx, size_t piece) {
    const addition *a = ctx;
    const float *scales = a->in;
    const uint8_t *codes = (const uint8_t *)(scales + n_blocks(a->n));
    const int64_t first = (int64_t)piece * PIECE, end = least(first + PIECE, a->n);
    for (int64_t i = first; i < end; i++) {
        a->sum[i] += a->bits == LT_OUTER_32  ? scales[i]
                     : a->bits == LT_OUTER_8 ? scales[i / LT_OUTER_BLOCK] * (float)(int8_t)codes[i]
                                             : scales[i / LT_OUTER_BLOCK] *
                                                   decode_4((uint8_t)(codes[i / 2] >> 4 * (i % 2)));
    }
}

void lt_outer_add(float *sum, lt_outer_bits bits, const void *in, int64_t n) {
    addition a = {bits, sum, in, n};
    lt_parallel_for(n_pieces(n), add_piece, &a);
}

/* ---- The step ---- */

typedef struct {
    float *outer, *momentum;
    const float *sum;
    float n_sites, lr, mu;
    int64_t n;
} stepping;

static void step_piece(void *ctx, size_t piece) {
    const stepping *s = ctx;
    const int64_t first = (int64_t)piece * PIECE, end = least(first + PIECE, s->n);
    for (int64_t i = first; i < end; i++) {
        const float mean = s->sum[i] / s->n_sites, m = s->mu * s->momentum[i] + mean;
        s->momentum[i] = m;
        s->outer[i] -= s->lr * (mean + s->mu * m);
    }
}

void lt_outer_step(float *outer, float *momentum, const float *sum, int n_sites, float lr, float mu,
                   int64_t n) {
    stepping s = {outer, momentum, sum, (float)n_sites, lr, mu, n};
    lt_parallel_for(n_pieces(n), step_piece, &s);
}

typedef struct {
    float *own;
    const float *outer;
    float share;
    int64_t n;
} merging;

static void merge_piece(void *ctx, size_t piece) {
    const merging *m = ctx;
    const int64_t first = (int64_t)piece * PIECE, end = least(first + PIECE, m->n);
    for (int64_t i = first; i < end; i++) {
        m->own[i] = m->share * m->own[i] + (1.0f - m->share) * m->outer[i];
    }
}

void lt_outer_merge(float *own, const float *outer, float share, int64_t n) {
    merging m = {own, outer, share, n};
    if (share == 0.0f) {
        memcpy(own, outer, (size_t)n * sizeof *own);
    } else {
        lt_parallel_for(n_pieces(n), merge_piece, &m);
    }
}
