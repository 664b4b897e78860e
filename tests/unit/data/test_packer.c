/* The packer compared with the rules in its header: each label occurs once, whatever the windows;
 * best fit against a plain search; positions that belong to other data are refused. A token is
 * its position. */
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
#include "data/packer.h"
#include "lateen/data.h"
#include "unit/data/ascending.h"

enum { SEQ = 32, ROOM = 16, WIDEST = 200, MANY = 9000 };

static char folder[] = "/tmp/lateen-packer-XXXXXX", prefix[LT_PATH_BYTES];
static const lt_loader_source source = {prefix, 1};
static int32_t lengths[MANY];
static int64_t vocab_size = ASCENDING_VOCAB, n_epochs = 1;
static lt_arena arena;
static lt_batch batch;

static int set_up(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_path_join(prefix, folder, "shard"), LT_OK);
    lt_batch_carve(&batch, ROOM, WIDEST, &arena);
    assert_int_equal(lt_arena_open(&arena, "batch"), LT_OK);
    lt_batch_carve(&batch, ROOM, WIDEST, &arena);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    lt_arena_close(&arena);
    return lt_file_remove_tree(folder) != LT_OK;
}

static lt_loader *open_loader(lt_pack packing, lt_shuffle shuffle, int64_t seq) {
    lt_loader_options o = lt_loader_defaults();
    lt_loader *l = NULL;
    o.sources = &source;
    o.n_sources = 1;
    o.seq = batch.seq = seq;
    o.vocab_size = vocab_size;
    o.seed = 5;
    o.epochs = n_epochs;
    o.prefetch_rows = 0;
    o.packing = packing;
    o.shuffle = shuffle;
    if (lt_loader_open(&l, &o) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return l;
}

/* In a document tokens ascend by one, a label is the token plus one, and each token that is not
 * the first of its document is a label once. */
static void check_epoch(lt_pack packing, lt_shuffle shuffle, int64_t seq, int64_t wanted) {
    static bool seen[ASCENDING_VOCAB];
    lt_loader *l = open_loader(packing, shuffle, seq);
    int64_t got = 1, labels = 0;
    memset(seen, 0, sizeof seen);
    while (got > 0) {
        assert_int_equal(lt_loader_next(l, ROOM, &batch, &got), LT_OK);
        for (int64_t i = 0; i < got * seq; i++) {
            const int64_t first = i - i % seq + batch.doc_start[i];
            if (batch.labels[i] == LT_LABEL_IGNORED) {
                continue;
            }
            assert_int_equal(batch.positions[i], i - first);
            assert_int_equal(batch.tokens[i], batch.tokens[first] + (int32_t)(i - first));
            assert_int_equal(batch.labels[i], batch.tokens[i] + 1);
            assert_false(seen[batch.labels[i]]);
            seen[batch.labels[i]] = true;
            labels++;
        }
    }
    lt_loader_close(l);
    assert_int_equal(labels, wanted);
}

/* One document a row, unshuffled: the first tokens of the rows ascend, whatever the lengths. */
static void single_rows_keep_the_order(void **state) {
    int64_t got = 1, rows = 0;
    int32_t last = -1;
    (void)state;
    for (size_t d = 0; d < MANY; d++) {
        lengths[d] = (int32_t)(2 + lt_rng_mix(d) % 5);
    }
    write_ascending(prefix, lengths, MANY);
    lt_loader *l = open_loader(LT_PACK_SINGLE, LT_SHUFFLE_NONE, SEQ);
    while (got > 0) {
        assert_int_equal(lt_loader_next(l, ROOM, &batch, &got), LT_OK);
        for (int64_t i = 0; i < got; i++, rows++) {
            assert_true(batch.tokens[i * SEQ] > last);
            last = batch.tokens[i * SEQ];
        }
    }
    lt_loader_close(l);
    assert_int_equal(rows, MANY);
}

/* Documents that fill more than one window: each is cut into several rows, so that a window ends
 * within one; or they are shorter than a row, so that it ends between two. */
static void windows_follow_each_other(void **state) {
    (void)state;
    for (int brief = 0; brief < 2; brief++) {
        const size_t n = brief ? MANY : 60;
        int64_t wanted = 0;
        for (size_t d = 0; d < n; d++) {
            lengths[d] = brief ? (int32_t)(2 + d % 2) : (int32_t)(200 + lt_rng_mix(d) % 200);
            wanted += lengths[d] - 1;
        }
        write_ascending(prefix, lengths, n);
        assert_true(brief ? n > LT_PACK_WINDOW && wanted / SEQ < LT_PACK_WINDOW
                          : wanted / 3 > LT_PACK_WINDOW);
        for (int packing = LT_PACK_STREAM; packing <= LT_PACK_SINGLE; packing++) {
            for (int shuffle = LT_SHUFFLE_NONE; shuffle <= LT_SHUFFLE_DOCUMENTS; shuffle++) {
                check_epoch((lt_pack)packing, (lt_shuffle)shuffle, brief ? SEQ : 3, wanted);
            }
        }
    }
}

/* Documents of one token, which have nothing to predict, follow as many of two tokens as fill a
 * window of pieces, or one document whose rows fill a window of the stream. The epoch ends with
 * the window: a loader of one epoch gives no row of the next. A position of an older version,
 * past the window, continues with the next epoch. */
static void no_row_follows_the_last_window(void **state) {
    lt_loader_state s;
    (void)state;
    for (size_t d = 0; d < LT_PACK_WINDOW + 3; d++) {
        lengths[d] = d < LT_PACK_WINDOW ? 2 : 1;
    }
    write_ascending(prefix, lengths, LT_PACK_WINDOW + 3);
    for (int shuffle = LT_SHUFFLE_NONE; shuffle <= LT_SHUFFLE_ROWS; shuffle++) {
        check_epoch(LT_PACK_SINGLE, (lt_shuffle)shuffle, SEQ, LT_PACK_WINDOW);
        check_epoch(LT_PACK_BEST_FIT, (lt_shuffle)shuffle, 1, LT_PACK_WINDOW);
    }
    n_epochs = 0;
    lt_loader *l = open_loader(LT_PACK_SINGLE, LT_SHUFFLE_NONE, SEQ);
    n_epochs = 1;
    lt_loader_get_state(l, &s);
    s.sources[0] = (lt_loader_cursor){.document = LT_PACK_WINDOW};
    assert_int_equal(lt_loader_set_state(l, &s), LT_OK);
    assert_int_equal(lt_loader_next(l, 1, &batch, NULL), LT_OK);
    lt_loader_get_state(l, &s);
    assert_int_equal(s.sources[0].epoch, 1);
    assert_int_equal(s.sources[0].document, 0);
    assert_int_equal(s.sources[0].row, 1);
    lt_loader_close(l);
    for (size_t d = 0; d < LT_PACK_WINDOW; d++) {
        lengths[d] = 3; /* As long as a row. */
    }
    lengths[LT_PACK_WINDOW] = 1;
    write_ascending(prefix, lengths, LT_PACK_WINDOW + 1);
    check_epoch(LT_PACK_STREAM, LT_SHUFFLE_DOCUMENTS, 3, 2 * LT_PACK_WINDOW);
}

/* The longest first, each into the row with the least room that holds it (Ding et al. 2024,
 * arXiv:2404.10830), by a search over all rows. room[i]: free tokens in row i. */
static int64_t best_fit(int32_t *room, size_t n, int32_t seq) {
    static int32_t pieces[MANY];
    int64_t n_pieces = 0, n_rows = 0;
    for (size_t d = 0; d < n; d++) {
        for (int32_t left = lengths[d] - 1; left > 0; left -= seq) {
            pieces[n_pieces++] = left < seq ? left : seq;
        }
    }
    for (int32_t want = seq; want > 0; want--) {
        for (int64_t i = 0; i < n_pieces; i++) {
            int64_t best = -1;
            for (int64_t row = 0; pieces[i] == want && row < n_rows; row++) {
                if (room[row] >= want && (best < 0 || room[row] < room[best])) {
                    best = row;
                }
            }
            if (pieces[i] == want && best < 0) {
                best = n_rows++;
                room[best] = seq;
            }
            room[best >= 0 ? best : 0] -= pieces[i] == want ? want : 0;
        }
    }
    return n_rows;
}

/* Rows of 200 tokens, so that their free room takes more than one word of bits. */
static void rows_are_the_best_fit(void **state) {
    static int32_t room[MANY];
    int64_t wanted[WIDEST + 1] = {0}, got = 1, have[WIDEST + 1] = {0};
    const size_t n = 400;
    (void)state;
    for (size_t d = 0; d < n; d++) { /* Free room of 64, 128 and 192 occurs. */
        const uint64_t r = lt_rng_mix(d);
        lengths[d] = (int32_t)(r % 4 == 0 ? 9 + r / 4 % 3 * 64 : r / 4 % 300);
    }
    write_ascending(prefix, lengths, n);
    const int64_t n_rows = best_fit(room, n, WIDEST);
    for (int64_t i = 0; i < n_rows; i++) {
        wanted[room[i]]++;
    }
    lt_loader *l = open_loader(LT_PACK_BEST_FIT, LT_SHUFFLE_ROWS, WIDEST);
    while (got > 0) {
        assert_int_equal(lt_loader_next(l, ROOM, &batch, &got), LT_OK);
        for (int64_t i = 0; i < got; i++) {
            int free_tokens = 0;
            for (int64_t t = 0; t < WIDEST; t++) {
                free_tokens += batch.labels[i * WIDEST + t] == LT_LABEL_IGNORED;
            }
            have[free_tokens]++;
        }
    }
    lt_loader_close(l);
    assert_memory_equal(have, wanted, sizeof have);
}

static void expect(lt_loader *l, lt_err want, const char *says) {
    int64_t got;
    assert_int_equal(lt_loader_next(l, 1, &batch, &got), want);
    if (strstr(lt_error_message(), says) == NULL) {
        fail_msg("'%s' is not in: %s", says, lt_error_message());
    }
    lt_loader_close(l);
}

static void goes_on_at(lt_pack packing, lt_loader_cursor at, const char *says) {
    lt_loader *l = open_loader(packing, LT_SHUFFLE_ROWS, SEQ);
    lt_loader_state s;
    lt_loader_get_state(l, &s);
    s.sources[0] = at;
    assert_int_equal(lt_loader_set_state(l, &s), LT_OK);
    expect(l, LT_ERR_STATE, says);
}

/* 3 documents of 100 tokens: 10 rows of the stream; pieces of 32, 32, 32 and 3 tokens. */
static void what_cannot_be_packed_is_reported(void **state) {
    static const int32_t single[] = {1, 0, 1, 1}, hundreds[] = {100, 100, 100};
    (void)state;
    write_ascending(prefix, hundreds, 3);
    goes_on_at(LT_PACK_STREAM, (lt_loader_cursor){.row = 10}, "row 10 of an epoch of 10");
    goes_on_at(LT_PACK_BEST_FIT, (lt_loader_cursor){.row = 10}, "row 10 of a window of 10");
    goes_on_at(LT_PACK_SINGLE, (lt_loader_cursor){.row = 12}, "row 12 of a window of 12");
    goes_on_at(LT_PACK_SINGLE, (lt_loader_cursor){.document = 2, .offset = 100},
               "token 100 of document 2");
    goes_on_at(LT_PACK_SINGLE, (lt_loader_cursor){.document = 3, .offset = 1},
               "token 1 of document 3");
    /* Ids reach 299. */
    for (int packing = LT_PACK_STREAM; packing <= LT_PACK_SINGLE; packing++) {
        vocab_size = 299;
        lt_loader *l = open_loader((lt_pack)packing, LT_SHUFFLE_NONE, SEQ);
        lt_err err = LT_OK;
        int64_t got = 1;
        vocab_size = ASCENDING_VOCAB;
        while (err == LT_OK && got > 0) {
            err = lt_loader_next(l, 1, &batch, &got);
        }
        assert_int_equal(err, LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), "token 299 is id 299"));
        lt_loader_close(l);
    }
    write_ascending(prefix, single, 4);
    for (int packing = LT_PACK_BEST_FIT; packing <= LT_PACK_SINGLE; packing++) {
        expect(open_loader((lt_pack)packing, LT_SHUFFLE_NONE, SEQ), LT_ERR_FORMAT,
               "no document of two tokens");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_rows_keep_the_order),
        cmocka_unit_test(windows_follow_each_other),
        cmocka_unit_test(no_row_follows_the_last_window),
        cmocka_unit_test(rows_are_the_best_fit),
        cmocka_unit_test(what_cannot_be_packed_is_reported),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
