/* The loader's position: what it belongs to, how it is written and read, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/error.h"
#include "data/batch.h"
#include "lateen/data.h"

enum { SEQ = 32, VOCAB = 60000, BOS = 50001, EOD = 50000, ROOM = 16 };

#define GOLDEN "tests/golden/data/megatron_u16" /* 9,389 tokens in 40 documents. */

static const lt_loader_source sources[2] = {{GOLDEN, 1}, {GOLDEN, 1}};
static lt_arena arena;
static lt_batch batch;

static int set_up(void **state) {
    (void)state;
    lt_batch_carve(&batch, ROOM, SEQ, &arena);
    assert_int_equal(lt_arena_open(&arena, "batch"), LT_OK);
    lt_batch_carve(&batch, ROOM, SEQ, &arena);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    lt_arena_close(&arena);
    return 0;
}

static lt_loader_options small(void) {
    lt_loader_options o = lt_loader_defaults();
    o.sources = sources;
    o.n_sources = 1;
    o.seq = SEQ;
    o.vocab_size = VOCAB;
    o.seed = 5;
    o.prefetch_rows = 0;
    return o;
}

static lt_loader *open_loader(const lt_loader_options *o) {
    lt_loader *l = NULL;
    if (lt_loader_open(&l, o) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return l;
}

/* A position can be resumed only if it would give the same rows. Everything that decides which
 * tokens are in a row is compared, and nothing else is. */
static void a_position_belongs_to_its_rows(void **state) {
    static const lt_loader_source other_weights[2] = {{GOLDEN, 1}, {GOLDEN, 2}},
                                  shorter[2] = {{GOLDEN, 1}, {"tests/golden/data/megatron_i32", 1}};
    lt_loader_options o = small(), c[17];
    lt_loader_state s;
    enum { OTHERS = 12, SAME = 5 };
    lt_loader *l;
    (void)state;
    o.n_sources = 2;
    o.bos_id = BOS;
    o.eod_id = EOD;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        c[i] = o;
    }
    c[0].seq = SEQ - 1;
    c[1].seed++;
    c[2].packing = LT_PACK_BEST_FIT;
    c[3].shuffle = LT_SHUFFLE_NONE;
    c[4].epochs = 1;
    c[5].add_bos = true;
    c[6].add_eod = true;
    c[7].n_sources = 1;
    c[8].sources = other_weights;
    c[9].sources = shorter;
    c[10].shuffle_rows = 8;
    c[11].split = LT_SPLIT_TRAIN;
    c[11].val_fraction = 0.1;
    c[OTHERS].rank = 1;
    c[OTHERS].world = 2;
    c[OTHERS + 1].prefetch_rows = 9;
    c[OTHERS + 2].bos_id = c[OTHERS + 2].eod_id = 3; /* Neither is inserted. */
    c[OTHERS + 3].mask_documents = c[OTHERS + 3].reset_positions = false;
    c[OTHERS + 4].goldfish_k = 4;
    l = open_loader(&o);
    assert_int_equal(lt_loader_next(l, 3, &batch, NULL), LT_OK);
    lt_loader_get_state(l, &s);
    lt_loader_close(l);
    for (size_t i = 0; i < OTHERS + SAME; i++) {
        l = open_loader(&c[i]);
        const lt_err err = lt_loader_set_state(l, &s);
        if (err != (i < OTHERS ? LT_ERR_STATE : LT_OK)) {
            fail_msg("case %zu: %d: %s", i, (int)err, lt_error_message());
        }
        lt_loader_close(l);
    }
}

/* The number by which a position is recognised must be the same in all versions, or no run could
 * be resumed by a newer one. Python computed these numbers from the formula of splitmix64. */
static void positions_outlive_versions(void **state) {
    lt_loader_options o = small();
    lt_loader_state s;
    (void)state;
    o.epochs = 2;
    for (int windows = 0; windows < 2; windows++) {
        o.shuffle_rows = 7 * windows;
        lt_loader *l = open_loader(&o);
        lt_loader_get_state(l, &s);
        assert_true(s.fingerprint == (windows ? 0x949FECF97384384Du : 0xFA931AD2A83DA302u));
        lt_loader_close(l);
    }
    /* A third of 2^32 parts is 1431655765; the other source has what is left. */
    const lt_loader_source thirds[2] = {{GOLDEN, 1}, {GOLDEN, 2}};
    o.sources = thirds;
    o.n_sources = 2;
    o.epochs = o.shuffle_rows = 0;
    lt_loader *l = open_loader(&o);
    lt_loader_get_state(l, &s);
    assert_true(s.fingerprint == 0x7750047C936884BAu);
    lt_loader_close(l);
}

/* A state is written completely or not at all, and nothing is written past the buffer. */
static void a_state_stays_within_its_buffer(void **state) {
    static const char text[] = "{\"rows\": 7, \"fingerprint\": \"00000000000000ff\", \"sources\": "
                               "[[1, 2, 3, 4, 5, -6], [7, 8, 9, 10, 11, 12]]}";
    const lt_loader_state s = {
        .rows = 7,
        .fingerprint = 255,
        .n_sources = 2,
        .sources = {{.rows = 1, .epoch = 2, .document = 3, .offset = 4, .row = 5, .credit = -6},
                    {.rows = 7, .epoch = 8, .document = 9, .offset = 10, .row = 11, .credit = 12}}};
    lt_loader_state back;
    (void)state;
    for (size_t room = 1; room <= sizeof text; room++) {
        char out[sizeof text + 200];
        memset(out, '#', sizeof out);
        const lt_err err = lt_loader_state_print(&s, out, room);
        assert_int_equal(err, room < sizeof text ? LT_ERR_LIMIT : LT_OK);
        assert_int_equal(out[room], '#');
        if (err == LT_OK) {
            assert_string_equal(out, text);
            assert_int_equal(lt_loader_state_parse(&back, out, strlen(out)), LT_OK);
            assert_memory_equal(&back.sources, &s.sources, sizeof s.sources);
            assert_true(back.rows == 7 && back.fingerprint == 255 && back.n_sources == 2);
        }
    }
}

static void bad_states_are_refused(void **state) {
    static const char *const states[] = {
        "{\"rows\":1,\"fingerprint\":\"0123456789abcdef\",\"sources\":[[1,2,3]]}",
        "{\"rows\":1,\"fingerprint\":\"0123456789abcdef\",\"sources\":[]}",
        "{\"rows\":-1,\"fingerprint\":\"0123456789abcdef\",\"sources\":[[1,2,3,4,5,6]]}",
        "{\"rows\":1,\"fingerprint\":\"0123456789abcde\",\"sources\":[[1,2,3,4,5,6]]}",
        "{\"rows\":1,\"fingerprint\":\"0123456789abcdeg\",\"sources\":[[1,2,3,4,5,6]]}",
        "{\"rows\":1,\"fingerprint\":\"0123456789abcdef\",\"sources\":[[1,2,3,4,-5,6]]}",
        "{\"rows\":1,\"fingerprint\":\"0123456789abcdef\",\"sources\":[[1,2,3,4,5,6.5]]}"};
    lt_loader_state s;
    (void)state;
    assert_int_equal(lt_loader_state_parse(&s, "{\"rows\": 1}", 11), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_loader_state_parse(&s, "{\"rows\": 1", 10), LT_ERR_FORMAT);
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        assert_int_equal(lt_loader_state_parse(&s, states[i], strlen(states[i])), LT_ERR_FORMAT);
    }
}

/* The golden shard has 40 documents; if it is split, one of them may be on both sides. */
static void information_about_a_loader(void **state) {
    static const struct {
        lt_pack packing;
        lt_shuffle shuffle;
        int64_t rows;
        bool in_order;
    } orders[] = {{LT_PACK_STREAM, LT_SHUFFLE_NONE, 0, true},
                  {LT_PACK_STREAM, LT_SHUFFLE_ROWS, 0, false},
                  {LT_PACK_STREAM, LT_SHUFFLE_ROWS, 8, true},
                  {LT_PACK_BEST_FIT, LT_SHUFFLE_ROWS, 0, true},
                  {LT_PACK_BEST_FIT, LT_SHUFFLE_DOCUMENTS, 0, false},
                  {LT_PACK_SINGLE, LT_SHUFFLE_NONE, 0, true}};
    lt_loader_options o = small();
    lt_loader_info sides[2];
    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        o.packing = orders[i].packing;
        o.shuffle = orders[i].shuffle;
        o.shuffle_rows = orders[i].rows;
        assert_int_equal(lt_loader_in_order(&o), orders[i].in_order);
    }
    o = small();
    o.val_fraction = 0.3;
    for (int side = 0; side < 2; side++) {
        o.split = side == 0 ? LT_SPLIT_TRAIN : LT_SPLIT_VAL;
        lt_loader *l = open_loader(&o);
        sides[side] = lt_loader_get_info(l);
        lt_loader_close(l);
        assert_int_equal(sides[side].rows, (sides[side].tokens - 1 + SEQ - 1) / SEQ);
    }
    assert_int_equal(sides[0].tokens + sides[1].tokens, 9389);
    assert_in_range(sides[1].tokens, 9389 * 3 / 20, 9389 * 3 / 5);
    assert_in_range(sides[0].documents + sides[1].documents, 40, 41);
    assert_in_range(sides[1].documents, 1, 39);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_position_belongs_to_its_rows),
        cmocka_unit_test(positions_outlive_versions),
        cmocka_unit_test(a_state_stays_within_its_buffer),
        cmocka_unit_test(bad_states_are_refused),
        cmocka_unit_test(information_about_a_loader),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
