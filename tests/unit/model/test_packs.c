/* Packs: which neighbouring sequences begin with the same pages; and, on a GPU, that sequences
 * with shared pages get the logits that they get from copies of these pages, bit for bit, as long
 * as the call has packs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "model/infer/packs.h"
#include "model/infer/paged_forward_impl.h"
#include "unit/device.h"

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* ---- Choosing packs ---- */

enum { SEQS = 6, PAGES = 20, PAGE = 16 };

typedef struct {
    const char *name;
    int32_t rows[SEQS], keys[SEQS];
    int32_t same[SEQS];   /* Number of pages that sequence n shares with sequence n - 1. */
    int32_t first[SEQS];  /* First sequence of the pack of each sequence. */
    int32_t common[SEQS]; /* Shared tokens. */
    bool any;
} find_case;

static void packs_are_found(void **state) {
    static const find_case cases[] = {
        {"answers to one prompt",
         {1, 1, 1, 1, 1, 1},
         {200, 201, 230, 200, 300, 260},
         {0, 12, 12, 12, 12, 12},
         {0, 0, 0, 0, 0, 0},
         {192, 192, 192, 192, 192, 192},
         true},
        {"two prompts",
         {1, 1, 1, 1, 1, 1},
         {200, 200, 200, 200, 200, 200},
         {0, 9, 9, 0, 10, 10},
         {0, 0, 0, 3, 3, 3},
         {144, 144, 144, 160, 160, 160},
         true},
        {"the page of the new token is never common",
         {1, 1, 1, 1, 1, 1},
         {160, 160, 161, 161, 200, 200},
         {0, 10, 0, 10, 0, 12},
         {0, 0, 2, 2, 4, 4},
         {144, 144, 160, 160, 192, 192},
         true},
        {"fewer than 128 tokens",
         {1, 1, 1, 1, 1, 1},
         {130, 130, 130, 130, 130, 130},
         {0, 7, 8, 0, 7, 7},
         {0, 1, 1, 3, 4, 5},
         {0, 128, 128, 0, 0, 0},
         true},
        {"less than a quarter of the longest",
         {1, 1, 1, 1, 1, 1},
         {200, 320, 200, 200, 200, 200},
         {0, 8, 0, 8, 0, 0},
         {0, 0, 2, 2, 4, 5},
         {128, 128, 128, 128, 0, 0},
         true},
        {"less than half of what the pack has",
         {1, 1, 1, 1, 1, 1},
         {320, 320, 320, 320, 320, 320},
         {0, 18, 8, 18, 9, 9},
         {0, 0, 2, 2, 2, 2},
         {288, 288, 144, 144, 144, 144},
         true},
        {"sequences of several rows",
         {1, 1, 2, 1, 1, 3},
         {200, 200, 200, 200, 200, 200},
         {0, 12, 12, 12, 12, 12},
         {0, 0, 2, 3, 3, 5},
         {192, 192, 0, 192, 192, 0},
         true},
        {"none",
         {1, 1, 1, 1, 1, 1},
         {300, 300, 300, 300, 300, 300},
         {0},
         {0, 1, 2, 3, 4, 5},
         {0},
         false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const find_case *c = &cases[i];
        int32_t table[SEQS * PAGES], q_start[SEQS + 1] = {0}, packs[3 * SEQS];
        for (int n = 0; n < SEQS; n++) {
            q_start[n + 1] = q_start[n] + c->rows[n];
            for (int p = 0; p < PAGES; p++) {
                table[n * PAGES + p] = p < c->same[n] ? table[(n - 1) * PAGES + p] : n * PAGES + p;
            }
        }
        const bool any = lt_packs_find(packs, SEQS, q_start, c->keys, table, PAGES, PAGE, true);
        for (int n = 0; n < SEQS; n++) {
            int32_t count = 0;
            for (int k = 0; k < SEQS; k++) {
                count += c->first[k] == c->first[n];
            }
            if (packs[3 * n] != c->first[n] || packs[3 * n + 1] != count ||
                packs[3 * n + 2] != c->common[n]) {
                fail_msg("%s: sequence %d has pack %d of %d with %d tokens, should be %d of %d "
                         "with %d",
                         c->name, n, packs[3 * n], packs[3 * n + 1], packs[3 * n + 2], c->first[n],
                         count, c->common[n]);
            }
        }
        assert_int_equal(any, c->any);
        assert_false(lt_packs_find(packs, SEQS, q_start, c->keys, table, PAGES, PAGE, false));
    }
}

/* Sequences that all share `shared` of their keys, and whether packs made attention faster on an
 * H200: b sequences of this many keys, 32 heads and 8 key heads of 64. Cases within 6 % may be
 * judged either way and are left out. */
static void packs_are_used_where_they_were_faster(void **state) {
    static const struct {
        int32_t n, keys, shared;
        bool faster;
    } measured[] = {
        {1024, 512, 256, true}, {1024, 768, 256, true}, {128, 1280, 1024, true},
        {64, 2304, 2048, true}, {32, 2304, 2048, true}, {32, 8192, 4096, true},
        {16, 2304, 2048, true}, {16, 4352, 4096, true}, {12, 5120, 4608, true},
        {8, 8192, 7680, true},  {8, 1280, 1024, false}, {16, 1280, 1024, false},
        {64, 1280, 512, false}, {128, 768, 256, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        const int64_t pages = measured[i].keys / PAGE, n = measured[i].n;
        int32_t *table = malloc((size_t)(n * pages) * sizeof *table),
                *words = malloc((size_t)(5 * n + 1) * sizeof *words);
        for (int64_t b = 0; b <= n; b++) {
            words[b] = (int32_t)b;
        }
        for (int64_t b = 0; b < n; b++) {
            words[n + 1 + b] = measured[i].keys;
            for (int64_t p = 0; p < pages; p++) {
                table[b * pages + p] = (int32_t)(p < measured[i].shared / PAGE ? p : b * pages + p);
            }
        }
        if (lt_packs_find(words + 2 * n + 1, n, words, words + n + 1, table, pages, PAGE, false) !=
            measured[i].faster) {
            fail_msg("%d sequences of %d keys, %d of them common, %s packs", measured[i].n,
                     measured[i].keys, measured[i].shared, measured[i].faster ? "have no" : "have");
        }
        free(table);
        free(words);
    }
}

/* Sequences with the same first page are put together, at the place of the first of them. */
static void sequences_are_ordered_by_first_pages(void **state) {
    static const struct {
        int32_t page[8], order[8];
        int n;
    } cases[] = {
        {{5, 9, 5, 9}, {0, 2, 1, 3}, 4},
        {{7, 7, 7}, {0, 1, 2}, 3},
        {{4, 3, 2, 1}, {0, 1, 2, 3}, 4},
        {{1, 2, 3, 2, 1, 2, 8, 1}, {0, 4, 7, 1, 3, 5, 2, 6}, 8},
        /* Without pages no sequence is put beside another. */
        {{-1, 6, -1, 6, -1}, {0, 1, 3, 2, 4}, 5},
        {{0}, {0}, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t order[8], scratch[LT_PACKS_ORDER_WORDS(8)];
        lt_packs_order(order, cases[i].page, cases[i].n, scratch);
        assert_memory_equal(order, cases[i].order, (size_t)cases[i].n * sizeof *order);
    }
    /* Many pages, whose hashes collide: each occurs once, with all of its sequences in their
     * order. */
    enum { MANY = 1000, DISTINCT = 333 };
    static int32_t page[MANY], order[MANY], scratch[LT_PACKS_ORDER_WORDS(MANY)];
    for (int i = 0; i < MANY; i++) {
        page[i] = i % DISTINCT * 4096;
    }
    lt_packs_order(order, page, MANY, scratch);
    for (int i = 0, at = 0; i < DISTINCT; i++) {
        for (int k = i; k < MANY; k += DISTINCT) {
            assert_int_equal(order[at++], k);
        }
    }
}

/* ---- On a GPU ---- */

enum { N = 7, PROMPT = 170, SHARED = PROMPT / PAGE, OWN = 4, STEPS = 3, VOCAB = 96 };
#define ALL_PAGES     (2 * N * (SHARED + OWN))
#define SINGLE_TOKENS 8 /* Steps of the warm-up: up to those of N tokens, also with packs. */

typedef struct {
    lt_paged_forward *f;
    int32_t table[N * (SHARED + OWN)];
    int64_t keys[N];
    bool packed; /* Some call had packs. */
} texts;

static lt_model *model(void) {
    const lt_model_spec s = {.family = LT_FAMILY_LLAMA,
                             .n_layers = 2,
                             .width = 128,
                             .n_heads = 4,
                             .n_kv_heads = 1,
                             .head_dim = 64,
                             .ffn_width = 128,
                             .vocab_size = VOCAB,
                             .max_seq = 512,
                             .norm = LT_NORM_RMS,
                             .norm_eps = 1e-5f,
                             .act = LT_ACT_SILU,
                             .gated = true,
                             .embed_scale = 1,
                             .pos = LT_POS_ROPE,
                             .rope_theta = 10000,
                             .bos_id = -1,
                             .pad_id = -1,
                             .init_std = 0.08f};
    lt_model *m = NULL;
    must(lt_model_create(
        &m, &s, &(lt_model_options){.dtype = LT_BF16, .device = device_of(gpu_backend())}, 3));
    return m;
}

/* rows[n] more tokens of each sequence, from `first` on; returns the logits of the last one of
 * each. */
static void step(texts *t, int first, int n_seqs, const int *rows, float *logits) {
    int32_t ids[N * PROMPT], positions[N * PROMPT], slots[N * PROMPT],
        q_start[N + 1] = {0}, kv_len[N], out_rows[N];
    float *const *found;
    int64_t at = 0, longest = 0, most = 0;
    for (int i = 0; i < n_seqs; i++) {
        const int n = first + i;
        for (int k = 0; k < rows[i]; k++, at++) {
            const int64_t p = t->keys[n]++;
            ids[at] = (int32_t)((p * 31 + (p >= SHARED * PAGE ? n * 7 : 0) + 5) % VOCAB);
            positions[at] = (int32_t)p;
            slots[at] = t->table[n * (SHARED + OWN) + p / PAGE] * PAGE + (int32_t)(p % PAGE);
        }
        q_start[i + 1] = (int32_t)at;
        kv_len[i] = (int32_t)t->keys[n];
        out_rows[i] = (int32_t)at - 1;
        longest = kv_len[i] > longest ? kv_len[i] : longest;
        most = rows[i] > most ? rows[i] : most;
    }
    must(lt_paged_forward_run(t->f,
                              &(lt_paged_forward_rows){.n_rows = at,
                                                       .n_seqs = n_seqs,
                                                       .n_out = n_seqs,
                                                       .q_max = most,
                                                       .kv_max = longest,
                                                       .max_pages = SHARED + OWN,
                                                       .ids = ids,
                                                       .positions = positions,
                                                       .slots = slots,
                                                       .q_start = q_start,
                                                       .kv_len = kv_len,
                                                       .table = t->table + first * (SHARED + OWN),
                                                       .out_rows = out_rows}));
    t->packed |= t->f->packs[0].data != NULL;
    must(lt_paged_forward_logits(t->f, 0, n_seqs, NULL, &found));
    for (int i = 0; i < n_seqs; i++) {
        memcpy(logits + (first + i) * VOCAB, found[i], VOCAB * sizeof *logits);
    }
}

/* The prompt, read once, then what each sequence has of its own, then steps of one token of all:
 * their logits. copies: each has a copy of the pages of the prompt. */
static void run_texts(texts *t, bool copies, float logits[STEPS][N * VOCAB]) {
    float unused[N * VOCAB];
    int64_t n_kernels;
    bool more = true;
    for (int64_t i = 0; more && i < SINGLE_TOKENS; i++) {
        must(lt_paged_forward_warm(t->f, i, &more));
    }
    for (int n = 0; n < N; n++) {
        for (int p = 0; p < SHARED + OWN; p++) {
            t->table[n * (SHARED + OWN) + p] = p < SHARED && !copies ? p : n * (SHARED + OWN) + p;
        }
        t->keys[n] = n == 0 ? 0 : SHARED * PAGE;
    }
    step(t, 0, 1, (int[]){SHARED * PAGE}, unused);
    for (int n = 1; n < N && copies; n++) {
        for (int p = 0; p < SHARED; p++) {
            must(lt_paged_forward_copy_page(t->f, n * (SHARED + OWN) + p, p));
        }
    }
    for (int n = 0; n < N; n++) {
        step(t, n, 1, (int[]){5 + 3 * n}, unused);
    }
    n_kernels = gpu_backend()->n_kernels(gpu_device());
    for (int k = 0; k < STEPS; k++) {
        step(t, 0, N, (int[]){1, 1, 1, 1, 1, 1, 1}, logits[k]);
    }
    /* The warm-up compiled them. */
    assert_int_equal(gpu_backend()->n_kernels(gpu_device()), n_kernels);
}

static void shared_pages_give_the_bits_of_copies(void **state) {
    static float logits[2][STEPS][N * VOCAB];
    lt_model *m;
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    m = model();
    for (int copies = 0; copies < 2; copies++) {
        texts t = {0};
        must(lt_paged_forward_open(&t.f, m,
                                   &(lt_paged_forward_options){.max_rows = N * PROMPT,
                                                               .max_seqs = N,
                                                               .max_out = N,
                                                               .out_rows = N,
                                                               .max_seq = (SHARED + OWN) * PAGE,
                                                               .n_pages = ALL_PAGES,
                                                               .max_pages = SHARED + OWN,
                                                               .page_tokens = PAGE,
                                                               .cache_dtype = LT_BF16,
                                                               .value_dtype = LT_BF16,
                                                               .packs = true}));
        run_texts(&t, copies, logits[copies]);
        assert_int_equal(t.packed, !copies);
        lt_paged_forward_close(t.f);
    }
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < N * VOCAB; i++) {
            if (logits[0][k][i] != logits[1][k][i]) {
                fail_msg("step %d, sequence %d, logit %d: %g from shared pages, %g from copies", k,
                         i / VOCAB, i % VOCAB, (double)logits[0][k][i], (double)logits[1][k][i]);
            }
        }
    }
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(packs_are_found),
                                       cmocka_unit_test(packs_are_used_where_they_were_faster),
                                       cmocka_unit_test(sequences_are_ordered_by_first_pages),
                                       cmocka_unit_test(shared_pages_give_the_bits_of_copies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
