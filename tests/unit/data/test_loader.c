/* The loader: rows equal Megatron's, every label is seen once per epoch, several ranks and
 * resumed runs see the rows of one uninterrupted run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/batch.h"
#include "data/shard_format.h"
#include "data/shard_writer.h"
#include "lateen/data.h"

/* ---- Allocations are counted: malloc and related functions are wrapped, except under a
 * sanitizer, which wraps them itself. ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const long *const allocations = NULL;
#else
static long n_allocations;
static const long *const allocations = &n_allocations;
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *malloc(size_t n) {
    __atomic_add_fetch(&n_allocations, 1, __ATOMIC_RELAXED);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    __atomic_add_fetch(&n_allocations, 1, __ATOMIC_RELAXED);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    __atomic_add_fetch(&n_allocations, 1, __ATOMIC_RELAXED);
    return __libc_realloc(p, n);
}
#endif

enum { SEQ = 32, N_TOKENS = 20000, VOCAB = 60000, ROOM = 64 };

static char folder[] = "/tmp/lateen-loader-XXXXXX", corpus[LT_PATH_BYTES], other[LT_PATH_BYTES],
            masked[LT_PATH_BYTES];
static lt_arena arena;
static lt_batch batch;
static lt_loader_source sources[2];

/* Is a token a label? Runs of about six tokens, so that they cross documents and rows at any
 * place. */
static bool is_label(int32_t id) {
    return lt_rng_mix((uint64_t)id / 6) % 3 != 0;
}

/* Ids 0, 1, 2, ... so that a token is its position; documents of 0 to 199 tokens. */
static void write_corpus(const char *prefix, int32_t from, bool with_mask) {
    static int32_t ids[N_TOKENS];
    static unsigned char mask[N_TOKENS];
    lt_shard_writer *w = NULL;
    for (int32_t i = 0; i < N_TOKENS; i++) {
        ids[i] = from + i;
        mask[i] = is_label(from + i) ? LT_MASK_LABEL : LT_MASK_SILENT;
    }
    assert_int_equal(lt_shard_writer_open(&w, prefix, VOCAB, NULL), LT_OK);
    assert_int_equal(with_mask ? lt_shard_writer_add_mask(w) : LT_OK, LT_OK);
    for (size_t at = 0, d = 0; at < N_TOKENS; d++) {
        size_t n = lt_rng_mix(d) % 200;
        n = d % 11 == 3 ? 0 : d % 13 == 5 ? 1 : n;
        n = n < N_TOKENS - at ? n : N_TOKENS - at;
        assert_int_equal(
            lt_shard_writer_append_masked(w, ids + at, with_mask ? mask + at : NULL, n), LT_OK);
        at += n;
    }
    assert_int_equal(lt_shard_writer_finish(w), LT_OK);
    lt_shard_writer_close(w);
}

static int set_up(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(corpus, folder, "corpus"), LT_OK);
    assert_int_equal(lt_path_join(other, folder, "other"), LT_OK);
    assert_int_equal(lt_path_join(masked, folder, "masked"), LT_OK);
    write_corpus(corpus, 0, false);
    write_corpus(other, 20000, false);
    write_corpus(masked, 0, true);
    lt_batch_carve(&batch, ROOM, 256, &arena);
    assert_int_equal(lt_arena_open(&arena, "batch"), LT_OK);
    lt_batch_carve(&batch, ROOM, 256, &arena);
    batch.seq = SEQ;
    sources[0] = (lt_loader_source){corpus, 1};
    sources[1] = (lt_loader_source){other, 1};
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    lt_arena_close(&arena);
    return lt_file_remove_tree(folder) != LT_OK;
}

static lt_loader_options small(void) {
    lt_loader_options o = lt_loader_defaults();
    o.sources = sources;
    o.n_sources = 1;
    o.seq = SEQ;
    o.vocab_size = VOCAB;
    o.seed = 5;
    o.prefetch_rows = 3;
    return o;
}

static lt_loader *open_loader(const lt_loader_options *o) {
    lt_loader *l = NULL;
    if (lt_loader_open(&l, o) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return l;
}

static void next(lt_loader *l, int64_t n) {
    if (lt_loader_next(l, n, &batch, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* A hash of the first n rows of the batch, over every array. */
static uint64_t batch_hash(int64_t n, uint64_t h) {
    for (int64_t i = 0; i < n * batch.seq; i++) {
        h = lt_rng_mix(h ^ (uint32_t)batch.tokens[i]);
        h = lt_rng_mix(h ^ (uint32_t)batch.labels[i]);
        h = lt_rng_mix(h ^ (uint32_t)batch.doc_start[i]);
        h = lt_rng_mix(h ^ (uint32_t)batch.positions[i]);
    }
    return h;
}

static void rows_equal_those_of_megatron(void **state) {
    static const struct {
        int64_t k, h;
        const char *path;
    } goldens[] = {{50, 50, "tests/golden/data/rows_50_50.i32"},
                   {3, 13, "tests/golden/data/rows_3_13.i32"}};
    const lt_loader_source golden_source = {"tests/golden/data/megatron_u16", 1};
    lt_loader_options o = small();
    (void)state;
    o.sources = &golden_source;
    o.seq = batch.seq = 256;
    o.vocab_size = 1000;
    o.shuffle = LT_SHUFFLE_NONE;
    o.eod_id = 2;
    o.mask_eod = true;
    for (size_t g = 0; g < 2; g++) {
        char *text = NULL;
        size_t bytes;
        assert_int_equal(lt_file_read(&text, &bytes, goldens[g].path, 1 << 20), LT_OK);
        o.goldfish_k = goldens[g].k;
        o.goldfish_h = goldens[g].h;
        lt_loader *l = open_loader(&o);
        const int32_t *wanted = (const int32_t *)(void *)text;
        for (size_t row = 0; row < bytes / (5 * 256 * 4); row++, wanted += 5 * 256) {
            next(l, 1);
            assert_memory_equal(batch.tokens, wanted, 1024);
            for (int t = 0; t < 256; t++) {
                assert_int_equal(batch.labels[t],
                                 wanted[512 + t] != 0 ? wanted[256 + t] : LT_LABEL_IGNORED);
            }
            assert_memory_equal(batch.positions, wanted + 768, 1024);
            assert_memory_equal(batch.doc_start, wanted + 1024, 1024);
        }
        lt_loader_close(l);
        free(text);
    }
    batch.seq = SEQ;
}

/* Token ids are positions, so a row can be checked by itself: in a document tokens ascend by one,
 * a label is the token plus one, and over an epoch each label occurs exactly once. */
static void check_epoch(lt_loader_options o) {
    static int seen[2 * N_TOKENS];
    lt_loader *l;
    lt_shard *s = NULL;
    int64_t got = 1, labels = 0, wanted = 0;

    memset(seen, 0, sizeof seen);
    o.epochs = 1;
    l = open_loader(&o);
    while (got > 0) {
        assert_int_equal(lt_loader_next(l, 7, &batch, &got), LT_OK);
        for (int64_t i = 0; i < got * SEQ; i++) {
            const int64_t t = i % SEQ, first = i - t + batch.doc_start[i];
            assert_true(batch.doc_start[i] >= 0 && batch.doc_start[i] <= t);
            assert_int_equal(batch.doc_start[first], batch.doc_start[i]);
            assert_int_equal(batch.positions[i], t - batch.doc_start[i]);
            if (batch.labels[i] == LT_LABEL_IGNORED) {
                continue;
            }
            assert_int_equal(batch.tokens[i], batch.tokens[first] + (int32_t)(i - first));
            assert_int_equal(batch.labels[i], batch.tokens[i] + 1);
            assert_int_equal(seen[batch.labels[i]]++, 0);
            labels++;
        }
    }
    assert_int_equal(lt_loader_next(l, 1, &batch, &got), LT_OK);
    assert_int_equal(got, 0);
    assert_int_equal(batch.labels[0], LT_LABEL_IGNORED);
    lt_loader_close(l);
    assert_int_equal(lt_shard_open(&s, corpus, -1), LT_OK);
    for (uint64_t d = 0; d < lt_shard_get_info(s).n_documents; d++) {
        uint64_t first, n;
        lt_shard_document(s, d, &first, &n);
        wanted += n > 0 ? (int64_t)n - 1 : 0;
    }
    lt_shard_close(s);
    assert_int_equal(labels, wanted * o.n_sources);
}

static void an_epoch_is_every_label_once(void **state) {
    (void)state;
    for (int packing = LT_PACK_STREAM; packing <= LT_PACK_SINGLE; packing++) {
        for (int shuffle = LT_SHUFFLE_NONE; shuffle <= LT_SHUFFLE_DOCUMENTS; shuffle++) {
            lt_loader_options o = small();
            o.packing = (lt_pack)packing;
            o.shuffle = (lt_shuffle)shuffle;
            check_epoch(o);
            o.n_sources = 2;
            check_epoch(o);
            o.seq = SEQ;
        }
    }
}

/* Later epochs, which are cut at other places, are complete, too: in three of them each label
 * occurs three times. */
static void later_epochs_are_whole(void **state) {
    static int seen[N_TOKENS];
    lt_loader_options o = small();
    lt_loader *l;
    int64_t got = 1;
    (void)state;
    o.epochs = 3;
    l = open_loader(&o);
    while (got > 0) {
        assert_int_equal(lt_loader_next(l, 5, &batch, &got), LT_OK);
        for (int64_t i = 0; i < got * SEQ; i++) {
            seen[batch.labels[i] >= 0 ? batch.labels[i] : 0] += batch.labels[i] >= 0;
        }
    }
    for (int i = 1; i < N_TOKENS; i++) {
        assert_true(seen[i] == 3 || seen[i] == 0); /* 0: the first token of a document. */
    }
    lt_loader_close(l);
}

static void best_fit_wastes_little(void **state) {
    lt_loader_options o = small();
    lt_loader *l;
    int64_t padding = 0, all = 0;
    (void)state;
    o.packing = LT_PACK_BEST_FIT;
    o.shuffle = LT_SHUFFLE_DOCUMENTS;
    l = open_loader(&o);
    for (int i = 0; i < 60; i++) {
        next(l, 10);
        for (int64_t t = 0; t < 10 * SEQ; t++, all++) {
            padding += batch.labels[t] == LT_LABEL_IGNORED;
        }
    }
    assert_true(padding * 50 < all); /* Under 2 %. */
    lt_loader_close(l);
}

/* A row begins with a document and holds no other: an epoch has one row for each document of at
 * most seq tokens, and one more for each further seq tokens of a longer one. */
static void single_rows_hold_one_document(void **state) {
    lt_loader_options o = small();
    lt_shard *s;
    int64_t wanted = 0, rows = 0, got = 1;
    (void)state;
    o.packing = LT_PACK_SINGLE;
    o.shuffle = LT_SHUFFLE_DOCUMENTS;
    o.epochs = 2;
    assert_int_equal(lt_shard_open(&s, corpus, -1), LT_OK);
    for (uint64_t d = 0; d < lt_shard_get_info(s).n_documents; d++) {
        uint64_t first, n;
        lt_shard_document(s, d, &first, &n);
        wanted += n > 1 ? ((int64_t)n - 2) / SEQ + 1 : 0;
    }
    lt_shard_close(s);
    lt_loader *l = open_loader(&o);
    while (got > 0) {
        assert_int_equal(lt_loader_next(l, 5, &batch, &got), LT_OK);
        for (int64_t i = 0; i < got; i++, rows++) {
            int64_t used = SEQ;
            while (used > 0 && batch.labels[i * SEQ + used - 1] == LT_LABEL_IGNORED) {
                used--;
            }
            for (int64_t t = 0; t < used; t++) {
                assert_int_equal(batch.doc_start[i * SEQ + t], 0);
            }
        }
    }
    assert_int_equal(rows, 2 * wanted);
    lt_loader_close(l);
}

/* A token is its position, so a row of the first epoch tells where it lies. */
static void rows_stay_in_their_window(void **state) {
    enum { WINDOW = 50, ROWS = 625 };
    static int64_t at[2][ROWS];
    lt_loader_options o = small();
    lt_loader_state s;
    bool seen[ROWS] = {false};
    int moved = 0, other_order = 0;
    (void)state;
    o.shuffle_rows = WINDOW;
    lt_loader *l = open_loader(&o);
    assert_int_equal(lt_loader_get_info(l).rows, ROWS);
    for (int64_t i = 0; i < 2 * ROWS; i++) {
        next(l, 1);
        at[i / ROWS][i % ROWS] = (batch.tokens[0] + SEQ / 2) / SEQ;
    }
    for (int64_t i = 0; i < ROWS; i++) {
        const int64_t row = at[0][i];
        assert_in_range(row, 0, ROWS - 1);
        assert_int_equal(row / WINDOW, i / WINDOW);
        assert_false(seen[row]);
        seen[row] = true;
        moved += row != i;
        other_order += at[1][i] != row;
    }
    assert_in_range(moved, ROWS * 9 / 10, ROWS);
    /* The order of the next epoch differs, */
    assert_in_range(other_order, ROWS * 9 / 10, ROWS);
    /* and so does that of the next window. */
    assert_int_not_equal(at[0][0] + WINDOW, at[0][WINDOW]);
    lt_loader_get_state(l, &s);
    lt_loader_close(l);
    o.shuffle_rows = WINDOW + 1;
    l = open_loader(&o);
    assert_int_equal(lt_loader_set_state(l, &s), LT_ERR_STATE);
    lt_loader_close(l);
    o.shuffle = LT_SHUFFLE_DOCUMENTS;
    assert_int_equal(lt_loader_open(&l, &o), LT_ERR_ARG);
}

static void ranks_together_see_one_sequence(void **state) {
    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        uint64_t alone[60], h;
        lt_loader_options o = small();
        lt_loader_state state_after = {0}, mid = {0};
        o.n_sources = 2;
        o.packing = mode == 2 ? LT_PACK_BEST_FIT : LT_PACK_STREAM;
        o.shuffle = mode == 0 ? LT_SHUFFLE_ROWS : LT_SHUFFLE_DOCUMENTS;
        lt_loader *l = open_loader(&o);
        for (int i = 0; i < 60; i++) {
            next(l, 1);
            alone[i] = batch_hash(1, 0);
            if (i == 29) {
                lt_loader_get_state(l, &mid);
            }
        }
        lt_loader_get_state(l, &state_after);
        lt_loader_close(l);
        o.world = 3;
        for (o.rank = 0; o.rank < 3; o.rank++) {
            lt_loader_state s;
            l = open_loader(&o);
            for (int64_t i = o.rank; i < 60; i += 3) {
                next(l, 1);
                h = batch_hash(1, 0);
                assert_int_equal(h, alone[i]);
            }
            lt_loader_get_state(l, &s);
            assert_memory_equal(&s, &state_after, sizeof s);
            lt_loader_close(l);
        }
        o.world = 2; /* The state of one rank is resumed by two. */
        for (o.rank = 0; o.rank < 2; o.rank++) {
            l = open_loader(&o);
            assert_int_equal(lt_loader_set_state(l, &mid), LT_OK);
            for (int64_t i = 30 + o.rank; i < 60; i += 2) {
                next(l, 1);
                assert_int_equal(batch_hash(1, 0), alone[i]);
            }
            lt_loader_close(l);
        }
    }
}

/* Batches of changing size, over several epochs, stopped after every batch: the state passes
 * through JSON, with and without a thread. */
static void resumed_equals_uninterrupted(void **state) {
    const lt_loader_source with_mask[2] = {{masked, 1}, {other, 1}};
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        uint64_t straight[40];
        char text[40][1024];
        lt_loader_options o = small();
        lt_loader_state s;
        o.n_sources = 2;
        o.packing = mode >= 2 ? LT_PACK_BEST_FIT : LT_PACK_STREAM;
        o.shuffle = mode % 2 == 0 ? LT_SHUFFLE_ROWS : LT_SHUFFLE_DOCUMENTS;
        o.goldfish_k = 4;
        o.goldfish_h = 5;
        o.sources = with_mask;
        lt_loader *l = open_loader(&o);
        for (int i = 0; i < 40; i++) {
            lt_loader_get_state(l, &s);
            assert_int_equal(lt_loader_state_print(&s, text[i], 20), LT_ERR_LIMIT);
            assert_int_equal(lt_loader_state_print(&s, text[i], sizeof text[i]), LT_OK);
            next(l, 20 + i);
            straight[i] = batch_hash(20 + i, 0);
        }
        lt_loader_close(l);
        o.prefetch_rows = 0;
        l = open_loader(&o);
        for (int i = 39; i >= 0; i -= 3) {
            assert_int_equal(lt_loader_state_parse(&s, text[i], strlen(text[i])), LT_OK);
            assert_int_equal(lt_loader_set_state(l, &s), LT_OK);
            for (int j = i; j < 40 && j < i + 2; j++) {
                next(l, 20 + j);
                assert_int_equal(batch_hash(20 + j, 0), straight[j]);
            }
        }
        lt_loader_close(l);
    }
}

enum { BOS = 50001, EOD = 50000 };

/* The label that a mask leaves. An inserted EOD counts with the token before it; an inserted BOS
 * has no label. */
static int32_t masked_label(int32_t token, int32_t label) {
    const bool kept = label == EOD   ? token == BOS || is_label(token)
                      : label == BOS ? false
                                     : is_label(label);
    return label >= 0 && kept ? label : LT_LABEL_IGNORED;
}

/* A masked shard gives the rows of the same shard without a mask, except for the labels that are
 * left out; in every packing and order, with documents cut over rows or not, and beside a shard
 * without a mask. */
static void masked_tokens_are_not_labels(void **state) {
    static int32_t tokens[ROOM * SEQ], labels[ROOM * SEQ], wanted[ROOM * SEQ];
    const lt_loader_source with_mask[2] = {{masked, 1}, {other, 1}};
    (void)state;
    for (int mode = 0; mode < 24; mode++) {
        int64_t silent = 0, learnt = 0;
        lt_loader_options o = small();
        o.packing = mode % 2 == 0 ? LT_PACK_STREAM : LT_PACK_BEST_FIT;
        o.shuffle = (lt_shuffle)(mode / 2 % 3);
        o.mask_documents = mode / 6 % 2 == 0;
        o.add_bos = o.add_eod = mode / 12 == 1;
        o.bos_id = BOS;
        o.eod_id = EOD;
        o.n_sources = mode % 3 == 0 ? 2 : 1;
        o.goldfish_k = mode % 4 == 0 ? 5 : 0;
        o.goldfish_h = 4;
        lt_loader *plain = open_loader(&o);
        o.sources = with_mask;
        lt_loader *l = open_loader(&o);
        for (int i = 0; i < 40; i++) { /* Beyond the end of the epoch. */
            next(plain, ROOM);
            memcpy(tokens, batch.tokens, sizeof tokens);
            memcpy(labels, batch.labels, sizeof labels);
            const int32_t start = batch.doc_start[77], position = batch.positions[99];
            next(l, ROOM);
            assert_memory_equal(tokens, batch.tokens, sizeof tokens);
            assert_true(start == batch.doc_start[77] && position == batch.positions[99]);
            for (int t = 0; t < ROOM * SEQ; t++) {
                const bool from_other = (tokens[t] >= 20000 && tokens[t] < 40000) ||
                                        (labels[t] >= 20000 && labels[t] < 40000);
                wanted[t] = from_other ? labels[t] : masked_label(tokens[t], labels[t]);
                silent += wanted[t] != labels[t];
                learnt += wanted[t] >= 0;
            }
            /* If a row starts with a BOS, the document before it is unknown. */
            if (o.n_sources == 1 || !o.add_eod) {
                assert_memory_equal(wanted, batch.labels, sizeof wanted);
            }
        }
        assert_true(silent > 10000 && learnt > 10000);
        lt_loader_close(plain);
        lt_loader_close(l);
    }
}

static void put_mask(const char *prefix, const void *bytes, size_t n) {
    char path[LT_PATH_BYTES + 8];
    snprintf(path, sizeof path, "%s.mask", prefix);
    assert_int_equal(lt_file_write_atomic(path, bytes, n), LT_OK);
}

static void a_mask_must_fit_its_shard(void **state) {
    static unsigned char mask[N_TOKENS + 1];
    char prefix[LT_PATH_BYTES];
    lt_loader_options o = small();
    const lt_loader_source source = {prefix, 1};
    lt_loader *l = NULL, *plain;
    lt_err err = LT_OK;
    (void)state;
    assert_int_equal(lt_path_join(prefix, folder, "broken"), LT_OK);
    write_corpus(prefix, 0, false);
    memset(mask, LT_MASK_LABEL, sizeof mask);
    o.epochs = 0;
    for (size_t n = 0; n <= N_TOKENS + 1; n += n == 0 ? N_TOKENS - 1 : 2) {
        put_mask(prefix, mask, n);
        o.sources = &source;
        assert_int_equal(lt_loader_open(&l, &o), LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), "one for each of its 20000 tokens"));
    }
    put_mask(prefix, mask, N_TOKENS); /* Everything is a label, as if there were no mask. */
    l = open_loader(&o);
    o.sources = sources;
    plain = open_loader(&o);
    for (int i = 0; i < 40; i++) {
        next(plain, ROOM);
        const uint64_t hash = batch_hash(ROOM, 0);
        next(l, ROOM);
        assert_int_equal(batch_hash(ROOM, 0), hash);
    }
    lt_loader_close(plain);
    lt_loader_close(l);
    mask[12345] = 2;
    put_mask(prefix, mask, N_TOKENS);
    o.sources = &source;
    l = open_loader(&o);
    for (int i = 0; i < 1000 && err == LT_OK; i++) {
        err = lt_loader_next(l, 1, &batch, NULL);
    }
    assert_int_equal(err, LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "the mask has the value 2 for token 12345"));
    lt_loader_close(l);
}

static void mixture_keeps_its_weights(void **state) {
    lt_loader_options o = small();
    lt_loader_state s;
    const double share = 0.7 / (0.7 + 0.11);
    (void)state;
    sources[0].weight = 0.7;
    sources[1].weight = 0.11;
    o.n_sources = 2;
    lt_loader *l = open_loader(&o);
    for (int n = 1; n <= 5000; n++) {
        int64_t from_first;
        next(l, 1);
        lt_loader_get_state(l, &s);
        from_first = (int64_t)s.sources[0].rows;
        assert_true((double)from_first - share * n > -1.0 && (double)from_first - share * n < 1.0);
        assert_int_equal(s.sources[0].rows + s.sources[1].rows, n);
        assert_true((batch.tokens[0] >= 20000) ==
                    (s.sources[1].rows > 0 && batch.tokens[0] >= 20000));
    }
    lt_loader_close(l);
    sources[0].weight = sources[1].weight = 1;
}

static void splits_divide_the_documents(void **state) {
    static int side[N_TOKENS];
    (void)state;
    for (int split = LT_SPLIT_TRAIN; split <= LT_SPLIT_VAL; split++) {
        lt_loader_options o = small();
        int64_t got = 1;
        o.split = (lt_split)split;
        o.val_fraction = 0.1;
        o.epochs = 1;
        o.mask_documents = false;
        lt_loader *l = open_loader(&o);
        const uint64_t tokens = lt_loader_get_info(l).tokens;
        assert_true(split == LT_SPLIT_VAL ? tokens > 1800 && tokens < 2200
                                          : tokens > 17800 && tokens < 18200);
        while (got > 0) {
            assert_int_equal(lt_loader_next(l, 1, &batch, &got), LT_OK);
            for (int t = 0; got > 0 && t < SEQ; t++) {
                if (batch.labels[t] >= 0) {
                    side[batch.labels[t]] |= split;
                    side[batch.tokens[t]] |= split;
                }
            }
        }
        lt_loader_close(l);
    }
    for (int i = 0; i < N_TOKENS; i++) {
        assert_int_equal(side[i], side[i] & 1 ? LT_SPLIT_TRAIN : LT_SPLIT_VAL);
        assert_true(i == 0 || side[i] >= side[i - 1]);
    }
}

static void bos_and_eod_are_inserted(void **state) {
    lt_loader_options o = small();
    lt_loader *l;
    const lt_loader_source two = {"tests/golden/data/megatron_i32", 1};
    static const int32_t stream[] = {5, 1, 2, 3, 6, 5, 131071, 21, 22, 23, 24, 6, 5, 9, 6};
    (void)state;
    o.sources = &two;
    o.vocab_size = 131072;
    o.shuffle = LT_SHUFFLE_NONE;
    o.bos_id = 5;
    o.eod_id = 6;
    o.pad_id = 7;
    o.add_bos = o.add_eod = true;
    l = open_loader(&o);
    next(l, 1);
    assert_memory_equal(batch.tokens, stream, 14 * sizeof *stream);
    assert_int_equal(batch.tokens[14], 7);
    assert_int_equal(batch.labels[13], 6);
    assert_int_equal(batch.labels[4], LT_LABEL_IGNORED);
    assert_int_equal(batch.labels[3], 6);
    assert_int_equal(batch.doc_start[11], 5);
    assert_int_equal(batch.positions[12], 0);
    assert_int_equal(batch.doc_start[14], 14);
    lt_loader_close(l);
    o.mask_documents = o.reset_positions = false;
    l = open_loader(&o);
    next(l, 1);
    assert_int_equal(batch.labels[4], 5);
    assert_int_equal(batch.doc_start[11], 0);
    assert_int_equal(batch.positions[12], 12);
    lt_loader_close(l);
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    if (allocations == NULL) {
        skip();
    }
    for (int packing = LT_PACK_STREAM; packing <= LT_PACK_SINGLE; packing++) {
        lt_loader_options o = small();
        o.n_sources = 2;
        o.packing = (lt_pack)packing;
        o.shuffle = LT_SHUFFLE_DOCUMENTS;
        o.goldfish_k = 50;
        lt_loader *l = open_loader(&o);
        const long before = *allocations;
        for (int i = 0; i < 300; i++) {
            next(l, 16);
        }
        assert_int_equal(*allocations, before);
        lt_loader_close(l);
    }
}

static void bad_input_is_reported(void **state) {
    lt_loader_options o = small();
    lt_loader *l = NULL;
    lt_loader_state s;
    (void)state;
    /* Ids reach 19999: the thread finds this, and the caller gets the error, again and again. */
    o.vocab_size = 10000;
    o.shuffle = LT_SHUFFLE_NONE;
    l = open_loader(&o);
    lt_err err = LT_OK;
    for (int i = 0; i < 1000 && err == LT_OK; i++) {
        err = lt_loader_next(l, 1, &batch, NULL);
    }
    assert_int_equal(err, LT_ERR_FORMAT);
    assert_non_null(
        strstr(lt_error_message(), "token 10000 is id 10000, the vocabulary has 10000"));
    assert_int_equal(lt_loader_next(l, 1, &batch, NULL), LT_ERR_FORMAT);
    lt_loader_get_state(l, &s);
    lt_loader_close(l);

    o = small();
    o.seed = 6;
    l = open_loader(&o);
    assert_int_equal(lt_loader_set_state(l, &s), LT_ERR_STATE);
    lt_loader_close(l);
    o.n_sources = 0;
    assert_int_equal(lt_loader_open(&l, &o), LT_ERR_ARG);
    o = small();
    o.add_eod = true;
    assert_int_equal(lt_loader_open(&l, &o), LT_ERR_ARG);
    o = small();
    o.split = LT_SPLIT_VAL;
    assert_int_equal(lt_loader_open(&l, &o), LT_ERR_ARG);
    for (size_t i = 0; i < 14; i++) {
        lt_loader_options c[14];
        for (size_t k = 0; k < 14; k++) {
            c[k] = small();
        }
        c[0].rank = 1;
        c[1].rank = -1;
        c[2].seq = 0;
        c[3].seq = ((int64_t)1 << 24) + 1;
        c[4].vocab_size = 0;
        c[5].epochs = -1;
        c[6].shuffle_rows = -1;
        c[7].goldfish_k = -1;
        c[8].goldfish_k = 2;
        c[8].goldfish_h = 0;
        c[9].world = 0;
        c[10].prefetch_rows = -1;
        c[11].bos_id = VOCAB;
        c[12].mask_eod = true; /* There is no EOD id. */
        c[13].pad_id = -2;
        if (lt_loader_open(&l, &c[i]) != LT_ERR_ARG) {
            fail_msg("options %zu are not refused", i);
        }
    }
    o = small();
    o.sources = &(lt_loader_source){"/nonexistent/*.bin", 1};
    assert_int_equal(lt_loader_open(&l, &o), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "no file matches"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_those_of_megatron),
        cmocka_unit_test(an_epoch_is_every_label_once),
        cmocka_unit_test(later_epochs_are_whole),
        cmocka_unit_test(best_fit_wastes_little),
        cmocka_unit_test(single_rows_hold_one_document),
        cmocka_unit_test(rows_stay_in_their_window),
        cmocka_unit_test(ranks_together_see_one_sequence),
        cmocka_unit_test(resumed_equals_uninterrupted),
        cmocka_unit_test(masked_tokens_are_not_labels),
        cmocka_unit_test(a_mask_must_fit_its_shard),
        cmocka_unit_test(mixture_keeps_its_weights),
        cmocka_unit_test(splits_divide_the_documents),
        cmocka_unit_test(bos_and_eod_are_inserted),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(bad_input_is_reported),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
