/* quant_pack.c: packs ggml's rows of blocks into groups of 16 rows (quant.h). Simple formats move
 * 32-bit words; the K formats are unpacked to integers first. Groups are independent, so they are
 * packed in one parallel loop. */
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/quant.h"

#define ROWS LT_QUANT_ROWS

bool lt_quant_layout_of(lt_quant_layout *out, lt_dtype type, int64_t n, int64_t k) {
    static const struct {
        int16_t head, body;
    } sizes[LT_DTYPE_COUNT] = {
        [LT_Q4_0] = {32, 256},   [LT_Q4_1] = {64, 256},   [LT_Q5_0] = {32, 320},
        [LT_Q5_1] = {64, 320},   [LT_Q8_0] = {32, 512},   [LT_Q4_K] = {320, 2048},
        [LT_Q5_K] = {320, 2560}, [LT_Q6_K] = {288, 3072},
    };
    size_t bytes;
    const int64_t block = lt_dtype_block(type, &bytes);
    if (lt_block_partner(type) == LT_PARTNER_NONE || k % block != 0) {
        return false;
    }
    *out = (lt_quant_layout){.n_groups = (n + ROWS - 1) / ROWS,
                             .n_blocks = k / block,
                             .head = sizes[type].head,
                             .body = sizes[type].body};
    out->bodies_at = (out->n_blocks * out->head + 63) / 64 * 64;
    out->group_bytes = out->bodies_at + out->n_blocks * out->body;
    return true;
}

/* Places a block of row r in the group's block. */
typedef void place_fn(unsigned char *head, unsigned char *body, const unsigned char *src, int r);

static void put_words(unsigned char *body, const unsigned char *src, int n_words, int r) {
    for (int i = 0; i < n_words; i++) {
        memcpy(body + 64 * i + 4 * r, src + 4 * i, 4);
    }
}

static void put_fifths(unsigned char *fifth, const unsigned char *src, int r) {
    uint32_t bits;
    memcpy(&bits, src, sizeof bits);
    for (int i = 0; i < 8; i++) {
        unsigned char *at = fifth + 8 * i + r / 2;
        *at = (unsigned char)(*at | (bits >> (4 * i) & 15u) << (4 * (r % 2)));
    }
}

static void place_q4_0(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    memcpy(head + 2 * r, src, 2);
    put_words(body, src + 2, 4, r);
}

static void place_q4_1(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    memcpy(head + 2 * r, src, 2);
    memcpy(head + 32 + 2 * r, src + 2, 2);
    put_words(body, src + 4, 4, r);
}

static void place_q5_0(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    memcpy(head + 2 * r, src, 2);
    put_fifths(body + 256, src + 2, r);
    put_words(body, src + 6, 4, r);
}

static void place_q5_1(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    memcpy(head + 2 * r, src, 2);
    memcpy(head + 32 + 2 * r, src + 2, 2);
    put_fifths(body + 256, src + 4, r);
    put_words(body, src + 8, 4, r);
}

static void place_q8_0(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    memcpy(head + 2 * r, src, 2);
    for (int i = 0; i < 8; i++) {
        uint32_t word;
        memcpy(&word, src + 2 + 4 * i, 4);
        word ^= 0x80808080u;
        memcpy(body + 64 * i + 4 * r, &word, 4);
    }
}

/* d, m, scales and minima of Q4_K and Q5_K; nibbles and fifth bits of their elements. */
static void place_k(unsigned char *head, unsigned char *body, const unsigned char *src, int r,
                    lt_dtype type) {
    lt_block_ints v;
    lt_block_unpack(&v, type, src);
    memcpy(head + 2 * r, src, 2);
    memcpy(head + 32 + 2 * r, src + 2, 2);
    for (int j = 0; j < 8; j++) {
        const int8_t *q = v.q + 32 * j;
        head[64 + 16 * j + r] = (unsigned char)v.scale[j];
        head[192 + 32 * (j / 2) + 2 * r + j % 2] = v.min[j];
        for (int i = 0; i < 16; i++) {
            const int l = i / 2, low = q[l + 8 * (i % 2)], high = q[l + 8 * (i % 2) + 16];
            body[256 * j + 32 * l + 2 * r + i % 2] = (unsigned char)((low & 15) | (high & 15) << 4);
            if (type == LT_Q5_K) {
                unsigned char *fifth = body + 2048 + 64 * j + 4 * l + r / 4;
                const int bit = 2 * (r % 4) + i % 2;
                fifth[0] = (unsigned char)(fifth[0] | (low >> 4) << bit);
                fifth[32] = (unsigned char)(fifth[32] | (high >> 4) << bit);
            }
        }
    }
}

static void place_q4_k(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    place_k(head, body, src, r, LT_Q4_K);
}

static void place_q5_k(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    place_k(head, body, src, r, LT_Q5_K);
}

static void place_q6_k(unsigned char *head, unsigned char *body, const unsigned char *src, int r) {
    lt_block_ints v;
    lt_block_unpack(&v, LT_Q6_K, src);
    memcpy(head + 2 * r, src + 208, 2);
    for (int j = 0; j < 16; j++) {
        head[32 + 16 * j + r] = (unsigned char)v.scale[j];
    }
    for (int i = 0; i < LT_BLOCK_SUPER / 2; i++) {
        const int j = i / 16, l = i % 16 / 2, e = i % 2;
        const int low = v.q[32 * j + l + 8 * e] + 32, high = v.q[32 * j + l + 8 * e + 16] + 32;
        unsigned char *at = body + 384 * j + 96 * (l / 2) + 2 * r + e;
        at[32 * (l % 2)] = (unsigned char)((low & 15) | (high & 15) << 4);
        at[64] = (unsigned char)(at[64] | (low >> 4 | high >> 4 << 2) << (4 * (l % 2)));
    }
}

static place_fn *const places[LT_DTYPE_COUNT] = {
    [LT_Q4_0] = place_q4_0, [LT_Q4_1] = place_q4_1, [LT_Q5_0] = place_q5_0, [LT_Q5_1] = place_q5_1,
    [LT_Q8_0] = place_q8_0, [LT_Q4_K] = place_q4_k, [LT_Q5_K] = place_q5_k, [LT_Q6_K] = place_q6_k,
};

/* Whether bits of several rows share a byte of the group's block. If so, the block must start as
 * zeros. */
static bool shares_bytes(lt_dtype type) {
    return type == LT_Q5_0 || type == LT_Q5_1 || type == LT_Q5_K || type == LT_Q6_K;
}

lt_err lt_cpu_matmul_pack_quant(lt_queue *q, const void *args) {
    const lt_matmul_pack_args *a = args;
    const lt_dtype type = a->b.dtype;
    const int64_t n = a->b.shape[0], k = a->b.shape[1];
    lt_quant_layout l;
    size_t bytes;
    (void)q;
    LT_ASSERT(a->trans_b && a->dst != NULL && a->b.data != NULL);
    const bool served = lt_quant_layout_of(&l, type, n, k);
    LT_ASSERT(served);
    (void)lt_dtype_block(type, &bytes);
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < l.n_groups; g++) {
        unsigned char *group = (unsigned char *)a->dst + g * l.group_bytes;
        const int64_t rows = n - g * ROWS < ROWS ? n - g * ROWS : ROWS;
        if (rows < ROWS || shares_bytes(type)) {
            memset(group, 0, (size_t)l.group_bytes);
        }
        for (int r = 0; r < rows; r++) {
            const lt_tensor row = lt_tensor_rows(&a->b, g * ROWS + r, 1);
            for (int64_t block = 0; block < l.n_blocks; block++) {
                places[type](group + block * l.head, group + l.bodies_at + block * l.body,
                             (const unsigned char *)row.data + (size_t)block * bytes, r);
            }
        }
    }
    return LT_OK;
}
