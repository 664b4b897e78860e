/* Documents of several shards as one stream, and where it is split, beside closed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "data/doc_stream.h"
#include "unit/data/ascending.h"
#include "unit/scratch_folder.h"

/* Of 1,000 tokens a tenth is held out: from 900 on, or from the nearer end of the document there,
 * unless less than half of a tenth would be left. */
static void splits_at_the_nearer_end(void **state) {
    static const struct {
        int32_t lengths[4];
        double fraction;
        uint64_t cut;
    } cases[] = {{{1000}, 0.1, 900},         /* Nothing would be left. */
                 {{900, 100}, 0.1, 900},     /* A document ends there. */
                 {{850, 150}, 0.1, 850},     /* Both ends are 50 away: the earlier one. */
                 {{848, 103, 49}, 0.1, 900}, /* 951 is nearer, but leaves 49. */
                 {{840, 110, 50}, 0.1, 950}, /* 950 is nearer, and leaves 50. */
                 {{899, 101}, 0.1, 899},
                 {{780, 121, 99}, 0.1, 901},
                 {{800, 200}, 0.1, 800}, /* As far away, and twice as much. */
                 {{799, 201}, 0.1, 900}, /* 1000 is nearer. */
                 {{400, 600}, 0.5, 400},
                 {{1000}, 0.75, 250},              /* Held out: 0.4 tokens, rounded. */
                 {{333, 333, 334}, 0.0004, 1000}}; /* Held out: 0.4 tokens, rounded. */
    char prefix[LT_PATH_BYTES];
    (void)state;
    assert_int_equal(lt_path_join(prefix, folder, "split"), LT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_loader_options o = lt_loader_defaults();
        size_t n = 0;
        while (n < 4 && cases[i].lengths[n] > 0) {
            n++;
        }
        write_ascending(prefix, cases[i].lengths, n);
        o.vocab_size = ASCENDING_VOCAB;
        o.val_fraction = cases[i].fraction;
        for (int side = LT_SPLIT_TRAIN; side <= LT_SPLIT_VAL; side++) {
            lt_doc_stream s = {0};
            o.split = (lt_split)side;
            const lt_err err = lt_doc_stream_open(&s, prefix, &o);
            const uint64_t lo = side == LT_SPLIT_TRAIN ? 0 : cases[i].cut,
                           hi = side == LT_SPLIT_TRAIN ? cases[i].cut : 1000;
            assert_int_equal(err, hi - lo < 2 ? LT_ERR_ARG : LT_OK);
            if (err == LT_OK && (s.lo != lo || s.hi != hi)) {
                fail_msg("case %zu: [%llu, %llu), not [%llu, %llu)", i, (unsigned long long)s.lo,
                         (unsigned long long)s.hi, (unsigned long long)lo, (unsigned long long)hi);
            }
            lt_doc_stream_close(&s);
        }
    }
}

/* Three shards, the middle one empty, with a BOS before and an EOD after each document: positions
 * count both. */
static void shards_follow_each_other(void **state) {
    static const int32_t first[] = {3, 0, 2}, last[] = {1, 4};
    static const int32_t wanted[] = {7, 0, 1, 2, 8, 7, 8, 7, 3, 4, 8, 7, 0, 8, 7, 1, 2, 3, 4, 8};
    static const uint64_t begins[] = {0, 5, 7, 11, 14, 20};
    char prefix[LT_PATH_BYTES];
    lt_loader_options o = lt_loader_defaults();
    lt_doc_stream s;
    (void)state;
    assert_int_equal(lt_path_join(prefix, folder, "part-0"), LT_OK);
    write_ascending(prefix, first, 3);
    assert_int_equal(lt_path_join(prefix, folder, "part-1"), LT_OK);
    write_ascending(prefix, first, 0);
    assert_int_equal(lt_path_join(prefix, folder, "part-2"), LT_OK);
    write_ascending(prefix, last, 2);
    assert_int_equal(lt_path_join(prefix, folder, "part-*"), LT_OK);
    o.vocab_size = ASCENDING_VOCAB;
    o.add_bos = o.add_eod = true;
    o.bos_id = 7;
    o.eod_id = 8;
    assert_int_equal(lt_doc_stream_open(&s, prefix, &o), LT_OK);
    assert_int_equal(s.n_shards, 2);
    /* .bin: 2 bytes per token. .idx: 34 bytes, 12 per sequence, and 8 for each of its documents
     * and the end. */
    assert_int_equal(lt_doc_stream_mapped_bytes(&s), 2 * (5 + 5) + 2 * 34 + 12 * 5 + 8 * (4 + 3));
    assert_int_equal(s.doc_lo, 0);
    assert_int_equal(s.doc_hi, 5);
    assert_int_equal(s.hi, 20);
    for (uint64_t d = 0; d < 5; d++) {
        uint64_t at, n;
        lt_doc_stream_document(&s, d, &at, &n);
        assert_int_equal(at, begins[d]);
        assert_int_equal(n, begins[d + 1] - begins[d]);
        for (uint64_t from = at; from < at + n; from++) {
            assert_int_equal(lt_doc_stream_find(&s, from), d);
            for (uint64_t to = from + 1; to <= at + n; to++) { /* Every part of it. */
                int32_t ids[9] = {-1, -1, -1, -1, -1, -1, -1, -1, -1};
                assert_int_equal(lt_doc_stream_read(&s, d, from, to - from, ids, NULL), LT_OK);
                for (uint64_t i = 0; i < 9; i++) {
                    assert_int_equal(ids[i], i < to - from ? wanted[from + i] : -1);
                }
            }
        }
    }
    lt_doc_stream_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_at_the_nearer_end),
        cmocka_unit_test(shards_follow_each_other),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
