/* The fingerprints that decide whether a shard, or a loader's position, can be resumed: a change of
 * any single field changes the fingerprint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenize_journal.h"
#include "lateen/data.h"

static char folder[] = "/tmp/lateen-print-XXXXXX", one[64], two[64];

static void put(const char *path, const char *text, int64_t s, long ns) {
    const struct timespec times[2] = {{.tv_sec = s, .tv_nsec = ns}, {.tv_sec = s, .tv_nsec = ns}};
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static int make(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(one, sizeof one, "%s/one", folder);
    (void)snprintf(two, sizeof two, "%s/two", folder);
    put(one, "some text", 1000, 5);
    put(two, "more", 2000, 5);
    return 0;
}

static int unmake(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) == LT_OK ? 0 : 1;
}

static lt_err encode_record(void) {
    return LT_OK;
}

static uint64_t print_of(const lt_tokenize_options *o, uint64_t total) {
    uint64_t h = 0, bytes = 1;
    assert_int_equal(lt_tokenize_fingerprint(&h, &bytes, o), LT_OK);
    assert_int_equal(bytes, total);
    return h;
}

static void fingerprints_of_a_shard(void **state) {
    const char *inputs[] = {one, two}, *turned[] = {two, one};
    const lt_tokenize_options base = {.inputs = inputs,
                                      .n_inputs = 2,
                                      .text = {.field = "text", .split_on = "line"},
                                      .out_prefix = "x",
                                      .vocab_size = 300,
                                      .bos_id = -1,
                                      .eod_id = 2,
                                      .tokenizer_hash = 77};
    const uint64_t want = print_of(&base, 13);
    lt_tokenize_options o;
    (void)state;
    assert_int_equal(print_of(&base, 13), want);
#define OTHER(change)                                                                              \
    o = base;                                                                                      \
    change;                                                                                        \
    assert_int_not_equal(print_of(&o, 13), want)
#define SAME(change)                                                                               \
    o = base;                                                                                      \
    change;                                                                                        \
    assert_int_equal(print_of(&o, 13), want)
    OTHER(o.tokenizer_hash = 78);
    OTHER(o.vocab_size = 301);
    OTHER(o.bos_id = 0);
    OTHER(o.eod_id = 3);
    OTHER(o.eod_id = -1);
    OTHER(o.text.format = LT_TEXT_JSONL);
    OTHER(o.text.utf8 = LT_UTF8_REPLACE);
    OTHER(o.text.field = "body");
    OTHER(o.text.split_on = "blank");
    OTHER(o.prompt_field = "prompt");
    OTHER(o.inputs = turned);
    o = base;
    o.n_inputs = 1;
    assert_int_not_equal(print_of(&o, 9), want);
    o = base;
    o.encode_record = (lt_encode_record_fn)(uintptr_t)encode_record;
    const uint64_t records = print_of(&o, 13);
    assert_int_not_equal(records, want);
    o.record_hash = 1;
    assert_int_not_equal(print_of(&o, 13), records);
    SAME(o.n_threads = 9); /* These do not change the shard. */
    SAME(o.commit_every_s = 9.0);
    SAME(o.out_prefix = "y");

    /* Another time, later by a nanosecond; other bytes; and then everything as before. */
    put(two, "more", 2001, 5);
    assert_int_not_equal(print_of(&base, 13), want);
    put(two, "more", 2000, 6);
    assert_int_not_equal(print_of(&base, 13), want);
    put(two, "moar!", 2000, 5);
    assert_int_not_equal(print_of(&base, 14), want);
    put(two, "more", 2000, 5);
    assert_int_equal(print_of(&base, 13), want);
}

static void fingerprints_of_unknown_input(void **state) {
    const char *pipe[] = {"-", one}, *folder_in[] = {folder}, *none[] = {one, "/no/such/file"};
    lt_tokenize_options o = {.inputs = pipe, .n_inputs = 2};
    uint64_t h, bytes;
    (void)state;
    assert_int_not_equal(print_of(&o, 0), print_of(&o, 0)); /* Never the same twice. */
    o.inputs = folder_in;
    o.n_inputs = 1;
    assert_int_not_equal(print_of(&o, 0), print_of(&o, 0));
    o.inputs = none;
    o.n_inputs = 2;
    assert_int_equal(lt_tokenize_fingerprint(&h, &bytes, &o), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "/no/such/file"));
}

static uint64_t loader_print(const lt_loader_options *o) {
    lt_loader *l = NULL;
    lt_loader_state s;
    if (lt_loader_open(&l, o) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    lt_loader_get_state(l, &s);
    lt_loader_close(l);
    return s.fingerprint;
}

static void fingerprints_of_a_loader(void **state) {
    const lt_loader_source sources[] = {{"tests/golden/train/tokens", 1.0},
                                        {"tests/golden/train/valid", 1.0}},
                           weighed[] = {{"tests/golden/train/tokens", 1.0},
                                        {"tests/golden/train/valid", 2.0}},
                           turned[] = {{"tests/golden/train/valid", 1.0},
                                       {"tests/golden/train/tokens", 1.0}};
    lt_loader_options base = lt_loader_defaults(), o;
    lt_loader_state at;
    lt_loader *l = NULL;
    uint64_t want;
    (void)state;
    base.sources = sources;
    base.n_sources = 2;
    base.seq = 16;
    base.vocab_size = 64;
    base.seed = 5;
    base.bos_id = 1;
    base.eod_id = 2;
    base.pad_id = 0;
    base.prefetch_rows = 0;
    want = loader_print(&base);
    assert_int_equal(loader_print(&base), want);
#define OTHER_ROWS(change)                                                                         \
    o = base;                                                                                      \
    change;                                                                                        \
    assert_int_not_equal(loader_print(&o), want)
    OTHER_ROWS(o.seed = 6);
    OTHER_ROWS(o.seq = 17);
    OTHER_ROWS(o.packing = LT_PACK_BEST_FIT);
    OTHER_ROWS(o.shuffle = LT_SHUFFLE_NONE);
    OTHER_ROWS(o.shuffle = LT_SHUFFLE_DOCUMENTS);
    OTHER_ROWS(o.epochs = 1);
    OTHER_ROWS(o.add_bos = true);
    OTHER_ROWS(o.add_eod = true);
    OTHER_ROWS(o.n_sources = 1);
    OTHER_ROWS(o.sources = weighed);
    OTHER_ROWS(o.sources = turned);
    OTHER_ROWS(o.split = LT_SPLIT_TRAIN; o.val_fraction = 0.1);
    o = base;
    o.world = 2; /* These do not change the rows. */
    o.rank = 1;
    o.prefetch_rows = 8;
    assert_int_equal(loader_print(&o), want);

    assert_int_equal(lt_loader_open(&l, &base), LT_OK);
    lt_loader_get_state(l, &at);
    assert_int_equal(lt_loader_set_state(l, &at), LT_OK);
    at.fingerprint++;
    assert_int_equal(lt_loader_set_state(l, &at), LT_ERR_STATE);
    at.fingerprint--;
    at.n_sources = 1;
    assert_int_equal(lt_loader_set_state(l, &at), LT_ERR_STATE);
    lt_loader_close(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fingerprints_of_a_shard),
                                       cmocka_unit_test(fingerprints_of_unknown_input),
                                       cmocka_unit_test(fingerprints_of_a_loader)};
    return cmocka_run_group_tests(tests, make, unmake);
}
