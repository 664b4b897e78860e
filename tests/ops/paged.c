/* paged.c: cases of kv_write and attention_paged. B sequences; sequence b has T, 1 or T / 2 new
 * rows (by b % 3) and S, S - 3, .. tokens; pages of P tokens, scattered; H query and G key heads
 * (0: H). y_f16, y_f32, y_f8, b_type: a cache of F16, F32, F8_E4M3 or that block type, whatever
 * the activations are; v_type: the type of the values. pack: this many neighbouring sequences
 * have their first `shared` tokens in the same pages. */
#include <math.h>

#include "ops/case.h"

static const lt_case write_cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .G = 1, .D = 1, .P = 16},
    {"scattered", LT_CASE_CHECK, .R = 37, .G = 3, .D = 20, .P = 16},
    {"F16 cache", LT_CASE_CHECK, .R = 9, .G = 2, .D = 24, .P = 32, .y_f16 = true},
    {"F32 cache", LT_CASE_CHECK, .R = 9, .G = 2, .D = 24, .P = 16, .y_f32 = true},
    {"F8 cache", LT_CASE_CHECK, .R = 21, .G = 3, .D = 20, .P = 16, .y_f8 = true},
    {"F8 cache, edges", LT_CASE_CHECK, .R = 9, .G = 2, .D = 64, .P = 16, .y_f8 = true,
     .extreme = true},
    {"F16 keys, F8 values", LT_CASE_CHECK, .R = 21, .G = 3, .D = 20, .P = 16, .y_f16 = true,
     .v_type = LT_F8_E4M3},
    {"Q8_0 cache", LT_CASE_CHECK, .R = 21, .G = 3, .D = 96, .P = 16, .b_type = LT_Q8_0},
    {"Q8_0 cache, edges", LT_CASE_CHECK, .R = 31, .G = 1, .D = 32, .P = 16, .b_type = LT_Q8_0,
     .extreme = true},
    {"Q4_0 cache", LT_CASE_CHECK, .R = 21, .G = 3, .D = 96, .P = 16, .b_type = LT_Q4_0},
    {"Q4_0 cache, edges", LT_CASE_CHECK, .R = 31, .G = 1, .D = 32, .P = 16, .b_type = LT_Q4_0,
     .extreme = true},
    {"Q8_0 keys, Q4_0 values", LT_CASE_CHECK, .R = 9, .G = 2, .D = 64, .P = 32, .b_type = LT_Q8_0,
     .v_type = LT_Q4_0},
    {"many rows", LT_CASE_CHECK, .R = 300, .G = 4, .D = 64, .P = 64},
    {"smollm2 prefill", LT_CASE_BENCH, .R = 512, .G = 3, .D = 64, .P = 16},
};

static const lt_case cases[] = {
    {"one", LT_CASE_CHECK, .B = 1, .T = 1, .S = 1, .H = 1, .D = 1, .P = 16},
    {"decode", LT_CASE_CHECK, .B = 1, .T = 1, .S = 77, .H = 4, .G = 2, .D = 32, .P = 16},
    {"decode, no group", LT_CASE_CHECK, .B = 5, .T = 1, .S = 90, .H = 3, .D = 40, .P = 32},
    {"group of three", LT_CASE_CHECK, .B = 4, .T = 1, .S = 300, .H = 9, .G = 3, .D = 64, .P = 16},
    {"group of eight", LT_CASE_CHECK, .B = 2, .T = 1, .S = 200, .H = 8, .G = 1, .D = 64, .P = 64},
    {"ragged", LT_CASE_CHECK, .B = 7, .T = 9, .S = 50, .H = 4, .G = 2, .D = 24, .P = 16},
    {"prefill", LT_CASE_CHECK, .B = 1, .T = 150, .S = 150, .H = 6, .G = 2, .D = 16, .P = 16},
    {"prefill behind a prefix", LT_CASE_CHECK, .B = 3, .T = 40, .S = 280, .H = 4, .G = 4, .D = 16,
     .P = 128},
    {"window", LT_CASE_CHECK, .B = 4, .T = 30, .S = 300, .H = 2, .G = 1, .D = 16, .P = 16,
     .window = 20},
    {"window of one", LT_CASE_CHECK, .B = 3, .T = 5, .S = 40, .H = 1, .D = 8, .P = 16, .window = 1},
    {"everything", LT_CASE_CHECK, .B = 5, .T = 12, .S = 160, .H = 4, .G = 2, .D = 20, .P = 16,
     .window = 70, .softcap = 5, .sinks = true, .alibi = true},
    {"large logits", LT_CASE_CHECK, .B = 1, .T = 40, .S = 40, .H = 2, .D = 16, .P = 16, .scale = 2},
    {"wide head", LT_CASE_CHECK, .B = 2, .T = 3, .S = 35, .H = 2, .G = 1, .D = 256, .P = 16},
    {"F16 cache", LT_CASE_CHECK, .B = 4, .T = 6, .S = 140, .H = 4, .G = 2, .D = 24, .P = 16,
     .y_f16 = true},
    {"F32 cache", LT_CASE_CHECK, .B = 4, .T = 6, .S = 40, .H = 4, .G = 2, .D = 24, .P = 16,
     .y_f32 = true},
    {"F8 cache", LT_CASE_CHECK, .B = 4, .T = 6, .S = 140, .H = 4, .G = 2, .D = 24, .P = 16,
     .y_f8 = true},
    {"F8 cache, decode", LT_CASE_CHECK, .B = 5, .T = 1, .S = 300, .H = 9, .G = 3, .D = 64, .P = 16,
     .y_f8 = true},
    {"F8 cache, splits", LT_CASE_CHECK, .B = 2, .T = 2, .S = 1200, .H = 4, .G = 2, .D = 128,
     .P = 16, .y_f8 = true},
    {"F8 cache, prompts", LT_CASE_CHECK, .B = 2, .T = 90, .S = 200, .H = 2, .G = 1, .D = 64,
     .P = 32, .aligned = true, .y_f8 = true},
    {"F8 cache, prompts and tokens", LT_CASE_CHECK, .B = 5, .T = 140, .S = 200, .H = 2, .G = 1,
     .D = 64, .P = 16, .aligned = true, .y_f8 = true},
    {"F8 cache, prompts, not told of their keys", LT_CASE_CHECK, .B = 4, .T = 64, .S = 300, .H = 1,
     .D = 128, .P = 32, .aligned = true, .y_f8 = true},
    {"F8 cache, prompts, window", LT_CASE_CHECK, .B = 3, .T = 70, .S = 500, .H = 2, .G = 1, .D = 64,
     .P = 16, .aligned = true, .window = 100, .y_f8 = true},
    {"F8 cache, prompts, everything", LT_CASE_CHECK, .B = 2, .T = 100, .S = 200, .H = 2, .G = 2,
     .D = 128, .P = 64, .aligned = true, .window = 150, .softcap = 5, .sinks = true, .alibi = true,
     .y_f8 = true},
    {"F8 cache, window", LT_CASE_CHECK, .B = 2, .T = 20, .S = 204, .H = 2, .G = 1, .D = 64, .P = 16,
     .window = 20, .y_f8 = true},
    {"F8 cache, heads of 192", LT_CASE_CHECK, .B = 3, .T = 9, .S = 100, .H = 2, .G = 1, .D = 192,
     .P = 16, .y_f8 = true},
    {"F8 cache, everything", LT_CASE_CHECK, .B = 2, .T = 20, .S = 200, .H = 2, .G = 1, .D = 256,
     .P = 64, .window = 150, .softcap = 5, .sinks = true, .alibi = true, .y_f8 = true},
    {"F8 cache, values that are not finite", LT_CASE_CHECK, .B = 1, .T = 1, .S = 208, .H = 4,
     .G = 2, .D = 128, .P = 16, .y_f8 = true, .extreme = true},
    {"Q8_0 cache", LT_CASE_CHECK, .B = 4, .T = 6, .S = 140, .H = 4, .G = 2, .D = 32, .P = 16,
     .b_type = LT_Q8_0},
    {"Q8_0 cache, decode", LT_CASE_CHECK, .B = 5, .T = 1, .S = 300, .H = 9, .G = 3, .D = 64,
     .P = 16, .b_type = LT_Q8_0},
    {"Q8_0 cache, splits", LT_CASE_CHECK, .B = 2, .T = 2, .S = 1200, .H = 4, .G = 2, .D = 128,
     .P = 16, .b_type = LT_Q8_0},
    {"Q8_0 cache, everything", LT_CASE_CHECK, .B = 2, .T = 20, .S = 200, .H = 2, .G = 1, .D = 256,
     .P = 64, .window = 150, .softcap = 5, .sinks = true, .alibi = true, .b_type = LT_Q8_0},
    {"Q8_0 cache, prompts", LT_CASE_CHECK, .B = 2, .T = 90, .S = 200, .H = 2, .G = 1, .D = 64,
     .P = 32, .aligned = true, .b_type = LT_Q8_0},
    {"Q4_0 cache", LT_CASE_CHECK, .B = 4, .T = 6, .S = 140, .H = 4, .G = 2, .D = 32, .P = 16,
     .b_type = LT_Q4_0},
    {"Q4_0 cache, decode", LT_CASE_CHECK, .B = 5, .T = 1, .S = 300, .H = 9, .G = 3, .D = 64,
     .P = 16, .b_type = LT_Q4_0},
    {"Q4_0 cache, splits", LT_CASE_CHECK, .B = 2, .T = 2, .S = 1200, .H = 4, .G = 2, .D = 128,
     .P = 16, .b_type = LT_Q4_0},
    {"Q4_0 cache, heads of 192", LT_CASE_CHECK, .B = 3, .T = 9, .S = 100, .H = 2, .G = 1, .D = 192,
     .P = 16, .b_type = LT_Q4_0},
    {"Q4_0 cache, prompts", LT_CASE_CHECK, .B = 2, .T = 90, .S = 200, .H = 2, .G = 1, .D = 64,
     .P = 32, .aligned = true, .b_type = LT_Q4_0},
    {"F8 keys, Q4_0 values, narrow", LT_CASE_CHECK, .B = 4, .T = 6, .S = 140, .H = 4, .G = 2,
     .D = 32, .P = 16, .y_f8 = true, .v_type = LT_Q4_0},
    {"F8 keys, Q4_0 values, decode", LT_CASE_CHECK, .B = 5, .T = 1, .S = 300, .H = 9, .G = 3,
     .D = 64, .P = 16, .y_f8 = true, .v_type = LT_Q4_0},
    {"Q8_0 keys, Q4_0 values, splits", LT_CASE_CHECK, .B = 2, .T = 2, .S = 1200, .H = 4, .G = 2,
     .D = 128, .P = 16, .b_type = LT_Q8_0, .v_type = LT_Q4_0},
    {"Q8_0 keys, Q4_0 values, everything", LT_CASE_CHECK, .B = 2, .T = 20, .S = 200, .H = 2, .G = 1,
     .D = 256, .P = 64, .window = 150, .softcap = 5, .sinks = true, .alibi = true,
     .b_type = LT_Q8_0, .v_type = LT_Q4_0},
    {"Q4_0 keys, F8 values, heads of 192", LT_CASE_CHECK, .B = 3, .T = 9, .S = 100, .H = 2, .G = 1,
     .D = 192, .P = 16, .b_type = LT_Q4_0, .v_type = LT_F8_E4M3},
    {"Q8_0 values alone", LT_CASE_CHECK, .B = 2, .T = 2, .S = 1200, .H = 4, .G = 2, .D = 64,
     .P = 16, .v_type = LT_Q8_0},
    {"F8 values alone, wide heads", LT_CASE_CHECK, .B = 3, .T = 3, .S = 90, .H = 2, .G = 1,
     .D = 256, .P = 16, .v_type = LT_F8_E4M3},
    {"Q4_0 keys alone", LT_CASE_CHECK, .B = 3, .T = 2, .S = 300, .H = 4, .G = 2, .D = 128, .P = 32,
     .b_type = LT_Q4_0, .v_type = LT_BF16},
    {"F8 keys, Q8_0 values, prompts", LT_CASE_CHECK, .B = 2, .T = 90, .S = 200, .H = 2, .G = 1,
     .D = 64, .P = 32, .aligned = true, .y_f8 = true, .v_type = LT_Q8_0},
    {"Q4_0 values alone, prompts", LT_CASE_CHECK, .B = 5, .T = 140, .S = 200, .H = 2, .G = 1,
     .D = 64, .P = 16, .aligned = true, .v_type = LT_Q4_0},
    {"prompts in fixed order", LT_CASE_CHECK, .B = 2, .T = 70, .S = 100, .H = 4, .G = 2, .D = 64,
     .P = 16},
    {"a prompt", LT_CASE_CHECK, .B = 1, .T = 200, .S = 200, .H = 2, .G = 1, .D = 64, .P = 16,
     .aligned = true},
    {"prompts and tokens", LT_CASE_CHECK, .B = 5, .T = 140, .S = 200, .H = 2, .G = 1, .D = 64,
     .P = 16, .aligned = true},
    {"prompts behind long prefixes", LT_CASE_CHECK, .B = 2, .T = 66, .S = 1100, .H = 1, .D = 64,
     .P = 32, .aligned = true},
    {"prompts, wide heads", LT_CASE_CHECK, .B = 2, .T = 129, .S = 200, .H = 2, .G = 2, .D = 128,
     .P = 16, .aligned = true},
    {"prompts, pages of 256", LT_CASE_CHECK, .B = 2, .T = 130, .S = 400, .H = 1, .D = 128, .P = 256,
     .aligned = true},
    {"prompts, widest heads", LT_CASE_CHECK, .B = 2, .T = 90, .S = 130, .H = 2, .G = 1, .D = 256,
     .P = 16, .aligned = true},
    {"prompts, heads of 192", LT_CASE_CHECK, .B = 1, .T = 100, .S = 100, .H = 1, .D = 192, .P = 16,
     .aligned = true},
    {"prompts, window", LT_CASE_CHECK, .B = 3, .T = 130, .S = 300, .H = 2, .G = 1, .D = 64, .P = 16,
     .aligned = true, .window = 100},
    {"prompts, everything", LT_CASE_CHECK, .B = 2, .T = 100, .S = 200, .H = 2, .G = 1, .D = 128,
     .P = 64, .aligned = true, .window = 150, .softcap = 5, .sinks = true, .alibi = true},
    {"twenty prompts", LT_CASE_CHECK, .B = 20, .T = 128, .S = 128, .H = 1, .D = 64, .P = 16,
     .aligned = true},
    {"packs", LT_CASE_CHECK, .B = 11, .T = 1, .S = 200, .H = 4, .G = 1, .D = 64, .P = 16, .pack = 7,
     .shared = 112},
    {"packs, all but a token shared", LT_CASE_CHECK, .B = 4, .T = 1, .S = 140, .H = 4, .G = 2,
     .D = 64, .P = 16, .pack = 4, .shared = 128},
    {"packs, splits", LT_CASE_CHECK, .B = 6, .T = 1, .S = 1300, .H = 8, .G = 2, .D = 128, .P = 16,
     .pack = 3, .shared = 720},
    {"packs, two splits a block", LT_CASE_CHECK, .B = 14, .T = 1, .S = 1300, .H = 4, .G = 1,
     .D = 64, .P = 16, .pack = 5, .shared = 736},
    {"packs, two splits a block, one of them common", LT_CASE_CHECK, .B = 14, .T = 1, .S = 1200,
     .H = 4, .G = 1, .D = 64, .P = 16, .pack = 5, .shared = 400},
    {"packs, no group, everything", LT_CASE_CHECK, .B = 18, .T = 1, .S = 600, .H = 1, .D = 64,
     .P = 32, .pack = 18, .shared = 512, .softcap = 5, .sinks = true, .alibi = true},
    {"packs, F8 cache", LT_CASE_CHECK, .B = 5, .T = 1, .S = 700, .H = 4, .G = 1, .D = 128, .P = 16,
     .pack = 5, .shared = 576, .y_f8 = true},
    {"packs, Q8_0 cache", LT_CASE_CHECK, .B = 3, .T = 1, .S = 300, .H = 4, .G = 2, .D = 64, .P = 16,
     .pack = 3, .shared = 48, .b_type = LT_Q8_0},
    {"packs, heads of 192", LT_CASE_CHECK, .B = 3, .T = 1, .S = 90, .H = 2, .G = 2, .D = 192,
     .P = 16, .pack = 3, .shared = 64},
    {"packs, window", LT_CASE_CHECK, .B = 4, .T = 1, .S = 200, .H = 2, .G = 1, .D = 64, .P = 16,
     .pack = 4, .shared = 96, .window = 70},
    {"smollm2 decode", LT_CASE_BENCH, .B = 1, .T = 1, .S = 1024, .H = 9, .G = 3, .D = 64, .P = 16},
    {"smollm2 decode, F8 cache", LT_CASE_BENCH, .B = 1, .T = 1, .S = 1024, .H = 9, .G = 3, .D = 64,
     .P = 16, .y_f8 = true},
    {"smollm2 decode of 32", LT_CASE_BENCH, .B = 32, .T = 1, .S = 512, .H = 9, .G = 3, .D = 64,
     .P = 16},
    {"smollm2 prefill", LT_CASE_BENCH, .B = 1, .T = 512, .S = 512, .H = 9, .G = 3, .D = 64,
     .P = 16},
};

static lt_dtype cache_dtype(const lt_setup *s) {
    return s->c->b_type != 0 ? (lt_dtype)s->c->b_type
           : s->c->y_f16     ? LT_F16
           : s->c->y_f32     ? LT_F32
           : s->c->y_f8      ? LT_F8_E4M3
                             : s->act;
}

static lt_dtype value_dtype(const lt_setup *s) {
    return s->c->v_type != 0 ? (lt_dtype)s->c->v_type : cache_dtype(s);
}

/* Distinct slots, every fourth row dropped. */
static void fill_slots(double *values, const lt_case_tensor *t, lt_rng *r) {
    const uint64_t seed = lt_rng_u64(r);
    const uint64_t room = (uint64_t)(t->count / t->c->P + 2) * (uint64_t)t->c->P;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = i % 4 == 2 ? -1.0 : (double)lt_rng_permute((uint64_t)i, room, seed, 0);
    }
}

/* Values at the limits of F8_E4M3: ties, subnormals, values that saturate, values that are not
 * finite. */
static void fill_edges(double *values, const lt_case_tensor *t, lt_rng *r) {
    static const double list[] = {0.0,      -0.0,     INFINITY, -INFINITY, NAN,  448.0,
                                  -464.0,   465.0,    1e5,      0x1p-9,    0.75, 0x1p-10,
                                  0x3p-11,  0x1p-11,  0x1p-6,   -0x7p-9,   17.0, 0x1.fp-7,
                                  -0x1p-20, 0x1.18p3, 0x1.28p3};
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = list[i % (int64_t)(sizeof list / sizeof *list)];
    }
}

/* A head's values are a block. Largest of blocks in turn: 2^-60, which is the least that has a
 * scale (tensor/cached.h), half of that, 0, infinite, not a number, so small that the scale is
 * subnormal in F16, 1, so large that it is infinite. Some are negative. */
static void fill_edge_blocks(double *values, const lt_case_tensor *t, lt_rng *r) {
    static const double largest[] = {0x1p-60,  0x1p-61, 0.0,  -INFINITY, NAN,    -0x1p-60,
                                     -0x1p-18, 0x1p-16, -1.0, 1.0,       0x1p24, INFINITY};
    enum { BLOCK = 32, N = sizeof largest / sizeof *largest };
    for (int64_t i = 0; i < t->count; i++) {
        const double most = largest[i / BLOCK % N];
        const int part = (int)lt_rng_below(r, 17) - 8;
        values[i] = i % BLOCK == 7 ? most : isfinite(most) ? most * part / 9.0 : part;
    }
}

static void write_build(lt_setup *s) {
    const lt_case *c = s->c;
    const int64_t n_pages = c->R / c->P + 2;
    lt_kv_write_args *a = (lt_kv_write_args *)s->args;
    lt_case_tensor *k = lt_setup_in(s, "k", &a->k, s->act, LT_SHAPE(c->R, c->G, c->D));
    k->fill = !c->extreme ? k->fill : c->b_type != 0 ? fill_edge_blocks : fill_edges;
    lt_setup_in(s, "v", &a->v, s->act, LT_SHAPE(c->R, c->G, c->D));
    lt_setup_in(s, "slots", &a->slots, LT_I32, LT_SHAPE(c->R))->fill = fill_slots;
    lt_case_tensor *pages = lt_setup_inout(s, "k_pages", &a->k_pages, cache_dtype(s),
                                           LT_SHAPE(n_pages, c->P, c->G, c->D));
    pages->contiguous = true;
    pages->may_be_nan = c->extreme;
    lt_setup_inout(s, "v_pages", &a->v_pages, value_dtype(s), LT_SHAPE(n_pages, c->P, c->G, c->D))
        ->contiguous = true;
}

static int64_t rows_of(const lt_case *c, int64_t b) {
    return b % 3 == 0 ? c->T : b % 3 == 1 ? 1 : (c->T + 1) / 2;
}

static int64_t keys_of(const lt_case *c, int64_t b) {
    const int64_t n = c->S - 3 * b;
    return n > rows_of(c, b) ? n : rows_of(c, b);
}

static int64_t most_pages(const lt_case *c) {
    return (c->S + c->P - 1) / c->P;
}

static void fill_q_start(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    values[0] = 0.0;
    for (int64_t b = 0; b + 1 < t->count; b++) {
        values[b + 1] = values[b] + (double)rows_of(t->c, b);
    }
}

static void fill_kv_len(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t b = 0; b < t->count; b++) {
        values[b] = (double)keys_of(t->c, b);
    }
}

/* Every sequence has its own pages, in any order, except for those that its pack shares. */
static void fill_table(double *values, const lt_case_tensor *t, lt_rng *r) {
    const uint64_t seed = lt_rng_u64(r);
    const int64_t pages = most_pages(t->c);
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t b = i / pages, page = i % pages,
                      of = t->c->pack > 0 && page < t->c->shared / t->c->P
                               ? b / t->c->pack * t->c->pack * pages + page
                               : i;
        values[i] = (double)lt_rng_permute((uint64_t)of, (uint64_t)t->count, seed, 0);
    }
}

static void fill_packs(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t b = 0; b < t->count / 3; b++) {
        const int64_t first = b / t->c->pack * t->c->pack, left = t->c->B - first;
        values[3 * b] = (double)first;
        values[3 * b + 1] = (double)(left < t->c->pack ? left : t->c->pack);
        values[3 * b + 2] = (double)t->c->shared;
    }
}

/* A few values of keys that all rows see are not numbers. */
static void fill_not_a_number(double *values, const lt_case_tensor *t, lt_rng *r) {
    lt_fill_normal(values, t, r);
    for (int64_t i = 5; i < t->count; i += 10007) {
        values[i] = NAN;
    }
}

static void paged_build(lt_setup *s) {
    const lt_case *c = s->c;
    const int64_t g = c->G > 0 ? c->G : c->H, n_pages = c->B * most_pages(c);
    lt_attention_paged_args *a = (lt_attention_paged_args *)s->args;
    int64_t rows = 0;

    for (int64_t b = 0; b < c->B; b++) {
        rows += rows_of(c, b);
        /* Left unknown if the number of heads is odd. */
        a->prompt_keys += c->H % 2 == 0 && rows_of(c, b) >= LT_PROMPT_ROWS ? keys_of(c, b) : 0;
    }
    a->window = c->window;
    a->softcap = c->softcap;
    a->scale = c->scale != 0.0f ? c->scale : 1.0f / sqrtf((float)c->D);
    a->q_max = c->T;
    a->kv_max = c->S;
    /* Prompts that the copy engine can read may take another kernel than single tokens. */
    a->fixed_order = !c->aligned;
    lt_setup_in(s, "q", &a->q, s->act, LT_SHAPE(rows, c->H, c->D));
    lt_setup_in(s, "k_pages", &a->k_pages, cache_dtype(s), LT_SHAPE(n_pages, c->P, g, c->D))
        ->contiguous = true;
    lt_case_tensor *values = lt_setup_in(s, "v_pages", &a->v_pages, value_dtype(s),
                                         LT_SHAPE(n_pages, c->P, g, c->D));
    values->contiguous = true;
    values->fill = c->extreme ? fill_not_a_number : values->fill;
    lt_setup_in(s, "table", &a->table, LT_I32, LT_SHAPE(c->B, most_pages(c)))->fill = fill_table;
    lt_setup_in(s, "q_start", &a->q_start, LT_I32, LT_SHAPE(c->B + 1))->fill = fill_q_start;
    lt_setup_in(s, "kv_len", &a->kv_len, LT_I32, LT_SHAPE(c->B))->fill = fill_kv_len;
    if (c->pack > 0) {
        lt_setup_in(s, "packs", &a->packs, LT_I32, LT_SHAPE(c->B, 3))->fill = fill_packs;
    }
    if (c->alibi) {
        lt_case_tensor *t = lt_setup_in(s, "alibi", &a->alibi, LT_F32, LT_SHAPE(c->H));
        t->fill = lt_fill_uniform;
        t->fill_b = 0.5;
    }
    if (c->sinks) {
        lt_setup_in(s, "sinks", &a->sinks, LT_F32, LT_SHAPE(c->H));
    }
    lt_setup_out(s, "out", &a->out, s->act, LT_SHAPE(rows, c->H, c->D))->may_be_nan = c->extreme;
}

const lt_op_cases lt_cases_kv_write = {.op = LT_OP_kv_write,
                                       .forward = LT_OP_COUNT,
                                       LT_CASES(write_cases),
                                       .build = write_build,
                                       .exact = true,
                                       .why = "one rounding to the cache's type"};
const lt_op_cases lt_cases_attention_paged = {
    .op = LT_OP_attention_paged,
    .forward = LT_OP_COUNT,
    LT_CASES(cases),
    .build = paged_build,
    .f32 = {0x1p-18, 0x1p-18},
    .bf16 = {0x1p-7, 0x1p-8},
    .why = "F32 logits up to 40: exp carries 40 * 2^-24; sums of 300. BF16: probabilities may be "
           "rounded to BF16 before the second product, the result rounds once"};
