/* Token shards: written data are read back; invalid headers or tables are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "data/shard_writer.h"
#include "lateen/data.h"
#include "unit/scratch_folder.h"

static const char *at(const char *file) {
    static char path[4][LT_PATH_BYTES];
    static int turn;
    turn = (turn + 1) % 4;
    assert_int_equal(lt_path_join(path[turn], folder, file), LT_OK);
    return path[turn];
}

/* Documents of 3, 0, 5 and 1 tokens. */
static const int32_t ids[] = {7, 8, 9, 100, 101, 102, 103, 60000, 5};
static const size_t sizes[] = {3, 0, 5, 1};

static void write_four(const char *prefix, int64_t vocab_size) {
    lt_shard_writer *w = NULL;
    size_t first = 0;
    assert_int_equal(lt_shard_writer_open(&w, prefix, vocab_size, NULL), LT_OK);
    for (int d = 0; d < 4; first += sizes[d++]) {
        assert_int_equal(lt_shard_writer_append(w, ids + first, sizes[d]), LT_OK);
    }
    assert_int_equal(lt_shard_writer_finish(w), LT_OK);
    lt_shard_writer_close(w);
}

static void check_four(const char *path, int token_bytes) {
    lt_shard *s = NULL;
    int32_t back[9];
    uint64_t first, n, wanted = 0;
    assert_int_equal(lt_shard_open(&s, path, -1), LT_OK);
    assert_int_equal(lt_shard_get_info(s).n_tokens, 9);
    assert_int_equal(lt_shard_get_info(s).n_documents, 4);
    assert_int_equal(lt_shard_get_info(s).token_bytes, token_bytes);
    for (uint64_t d = 0; d < 4; d++) {
        lt_shard_document(s, d, &first, &n);
        assert_int_equal(first, wanted);
        assert_int_equal(n, sizes[d]);
        for (uint64_t i = 0; i < n; i++) {
            assert_int_equal(lt_shard_find(s, first + i), d);
        }
        wanted += n;
    }
    assert_int_equal(lt_shard_read(s, 0, 9, back, 65536), LT_OK);
    assert_memory_equal(back, ids, sizeof ids);
    assert_int_equal(lt_shard_read(s, 2, 7, back, 60000), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "token 7 is id 60000, the vocabulary has 60000"));
    lt_shard_close(s);
}

static void written_is_read_back(void **state) {
    (void)state;
    write_four(at("narrow"), 65000);
    check_four(at("narrow"), 2);
    check_four(at("narrow.bin"), 2);
    check_four(at("narrow.idx"), 2);
    write_four(at("wide"), 65536);
    check_four(at("wide"), 4);
    assert_false(lt_file_exists(at("wide.sizes.part")));
    write_four(at("wide"), 65000); /* Replaces an older one. */
    check_four(at("wide"), 2);
}

/* Documents of about 4,096 tokens, the number that is narrowed at a time, and of about the buffer
 * of 2^20 bytes. */
static void long_documents_are_whole(void **state) {
    static const size_t lengths[] = {4095, 4096, 4097, 8193, 300000, 1};
    enum { LONGEST = 300000 };
    static int32_t all[LONGEST], back[LONGEST];
    (void)state;
    for (int32_t i = 0; i < LONGEST; i++) {
        all[i] = (i * 31 + i / 4096) % 60000;
    }
    for (int64_t vocab_size = 65000; vocab_size <= 70000; vocab_size += 5000) {
        lt_shard_writer *w = NULL;
        lt_shard *s = NULL;
        assert_int_equal(lt_shard_writer_open(&w, at("long"), vocab_size, NULL), LT_OK);
        for (size_t d = 0; d < sizeof lengths / sizeof *lengths; d++) {
            assert_int_equal(lt_shard_writer_append(w, all, lengths[d]), LT_OK);
        }
        assert_int_equal(lt_shard_writer_finish(w), LT_OK);
        lt_shard_writer_close(w);
        assert_int_equal(lt_shard_open(&s, at("long"), -1), LT_OK);
        assert_int_equal(lt_shard_get_info(s).token_bytes, vocab_size == 65000 ? 2 : 4);
        for (size_t d = 0; d < sizeof lengths / sizeof *lengths; d++) {
            uint64_t first, n;
            lt_shard_document(s, d, &first, &n);
            assert_int_equal(n, lengths[d]);
            assert_int_equal(lt_shard_read(s, first, n, back, 60000), LT_OK);
            assert_memory_equal(back, all, n * sizeof *all);
        }
        lt_shard_close(s);
    }
}

/* A file that cannot grow: the document that does not fit is refused, and so is the shard. */
static void a_full_disk_is_reported(void **state) {
    static int32_t many[1 << 18];
    struct rlimit limit, before;
    lt_shard_writer *w = NULL;
    lt_err err;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 1 << 20;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(lt_shard_writer_open(&w, at("full"), 70000, NULL), LT_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    err = lt_shard_writer_append(w, many, 1 << 18); /* Exactly what the file can hold. */
    assert_int_equal(err, LT_OK);
    err = lt_shard_writer_append(w, many, 1 << 18);
    assert_int_equal(err, LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "full.bin.part: File too large"));
    assert_int_equal(lt_shard_writer_finish(w), LT_ERR_IO);
    lt_shard_writer_close(w);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_false(lt_file_exists(at("full.bin")));
}

/* A file that Megatron's own preprocessing wrote (tools/golden_megatron.py). */
static void a_file_of_megatron_is_read(void **state) {
    lt_shard *s = NULL;
    int32_t back[8];
    uint64_t first, n;
    (void)state;
    assert_int_equal(lt_shard_open(&s, "tests/golden/data/megatron_i32", -1), LT_OK);
    assert_int_equal(lt_shard_get_info(s).n_documents, 3);
    lt_shard_document(s, 1, &first, &n); /* It has two sequences. */
    assert_int_equal(first, 3);
    assert_int_equal(n, 5);
    assert_int_equal(lt_shard_read(s, first, 5, back, 131072), LT_OK);
    assert_int_equal(back[0], 131071);
    assert_int_equal(back[4], 24);
    lt_shard_close(s);
}

static void the_writer_resumes_from_a_mark(void **state) {
    lt_shard_writer *w = NULL;
    lt_shard_mark mark;
    char *straight, *resumed;
    size_t straight_bytes, resumed_bytes;
    (void)state;
    write_four(at("straight"), 65000);
    assert_int_equal(lt_shard_writer_open(&w, at("resumed"), 65000, NULL), LT_OK);
    assert_int_equal(lt_shard_writer_append(w, ids, 3), LT_OK);
    assert_int_equal(lt_shard_writer_append(w, ids, 0), LT_OK);
    assert_int_equal(lt_shard_writer_sync(w, &mark), LT_OK);
    assert_int_equal(lt_shard_writer_append(w, ids, 9), LT_OK); /* Lost in the crash. */
    assert_int_equal(lt_shard_writer_sync(w, &(lt_shard_mark){0}), LT_OK);
    lt_shard_writer_close(w);
    assert_int_equal(lt_shard_writer_open(&w, at("resumed"), 65000, &mark), LT_OK);
    assert_int_equal(lt_shard_writer_append(w, ids + 3, 5), LT_OK);
    assert_int_equal(lt_shard_writer_append(w, ids + 8, 1), LT_OK);
    assert_int_equal(lt_shard_writer_finish(w), LT_OK);
    lt_shard_writer_close(w);
    for (int i = 0; i < 2; i++) {
        const char *suffix = i == 0 ? "straight.idx" : "straight.bin",
                   *other = i == 0 ? "resumed.idx" : "resumed.bin";
        assert_int_equal(lt_file_read(&straight, &straight_bytes, at(suffix), 1 << 20), LT_OK);
        assert_int_equal(lt_file_read(&resumed, &resumed_bytes, at(other), 1 << 20), LT_OK);
        assert_int_equal(straight_bytes, resumed_bytes);
        assert_memory_equal(straight, resumed, straight_bytes);
        free(straight);
        free(resumed);
    }
    /* Less than the mark requires. */
    assert_int_equal(rename(at("resumed.bin"), at("resumed.bin.part")), 0);
    mark.n_tokens = 1000;
    assert_int_equal(lt_shard_writer_open(&w, at("resumed"), 65000, &mark), LT_ERR_STATE);
}

static void a_crash_between_the_renames_is_repaired(void **state) {
    lt_shard_writer *w = NULL;
    const lt_shard_mark mark = {4, 9};
    char *idx;
    size_t bytes;
    (void)state;
    write_four(at("half"), 65000);
    assert_int_equal(lt_file_read(&idx, &bytes, at("half.idx"), 1 << 20), LT_OK);
    assert_int_equal(lt_file_write_atomic(at("half.sizes.part"), idx + 34, 16), LT_OK);
    free(idx);
    assert_int_equal(remove(at("half.idx")), 0);
    assert_int_equal(lt_shard_writer_open(&w, at("half"), 65000, &mark), LT_OK);
    assert_int_equal(lt_shard_writer_finish(w), LT_OK);
    lt_shard_writer_close(w);
    check_four(at("half"), 2);
}

/* The same for a shard with a mask: both files have their final names, but the index does not. */
static void a_mask_survives_a_crash(void **state) {
    static const unsigned char mask[] = {1, 0, 1, 1, 0, 0, 1, 0, 1};
    const lt_shard_mark mark = {4, 9};
    lt_shard_writer *w = NULL;
    char *idx;
    size_t bytes;
    (void)state;
    for (int crashed = 0; crashed < 2; crashed++) {
        lt_shard *s = NULL;
        bool silent[9];
        size_t first = 0;
        assert_int_equal(lt_shard_writer_open(&w, at("masked"), 65000, crashed ? &mark : NULL),
                         LT_OK);
        assert_int_equal(lt_shard_writer_add_mask(w), LT_OK);
        for (int d = 0; d < 4 && !crashed; first += sizes[d++]) {
            assert_int_equal(lt_shard_writer_append_masked(w, ids + first, mask + first, sizes[d]),
                             LT_OK);
        }
        assert_int_equal(lt_shard_writer_finish(w), LT_OK);
        lt_shard_writer_close(w);
        check_four(at("masked"), 2);
        assert_int_equal(lt_shard_open(&s, at("masked"), -1), LT_OK);
        assert_int_equal(lt_shard_read_mask(s, 0, 9, silent), LT_OK);
        for (int i = 0; i < 9; i++) {
            assert_int_equal(silent[i], !mask[i]);
        }
        lt_shard_close(s);
        assert_int_equal(lt_file_read(&idx, &bytes, at("masked.idx"), 1 << 20), LT_OK);
        assert_int_equal(lt_file_write_atomic(at("masked.sizes.part"), idx + 34, 16), LT_OK);
        free(idx);
        assert_int_equal(remove(at("masked.idx")), 0);
    }
}

/* A folder has the name of the index: the shard is not finished, and nothing of it is lost. */
static void an_index_that_cannot_be_written(void **state) {
    lt_shard_writer *w = NULL;
    (void)state;
    assert_int_equal(lt_shard_writer_open(&w, at("blocked"), 65000, NULL), LT_OK);
    assert_int_equal(lt_shard_writer_append(w, ids, 9), LT_OK);
    assert_int_equal(lt_file_make_dirs(at("blocked.idx.part")), LT_OK);
    assert_int_equal(lt_shard_writer_finish(w), LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "blocked.idx.part"));
    lt_shard_writer_close(w);
    assert_false(lt_file_exists(at("blocked.bin")));
    assert_true(lt_file_exists(at("blocked.bin.part")));
}

static void the_writer_refuses_ids_outside_the_vocabulary(void **state) {
    lt_shard_writer *w = NULL;
    const int32_t bad[] = {1, 300}, negative[] = {-1};
    (void)state;
    assert_int_equal(lt_shard_writer_open(&w, at("refused"), 300, NULL), LT_OK);
    assert_int_equal(lt_shard_writer_append(w, bad, 2), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "document 0: token 1 is id 300"));
    assert_int_equal(lt_shard_writer_append(w, negative, 1), LT_ERR_FORMAT);
    lt_shard_writer_close(w);
    assert_int_equal(lt_shard_writer_discard(at("refused")), LT_OK);
    assert_false(lt_file_exists(at("refused.bin.part")));
}

/* Overwrite some bytes of a valid index, and expect a message. */
static void false_tables_are_refused(void **state) {
    static const struct {
        size_t offset;
        int64_t value;
        size_t bytes;
        const char *why;
    } lies[] = {
        {0, 0, 1, "does not begin with MMIDIDX"},
        {9, 2, 8, "version 2"},
        {17, 7, 1, "element type 7"},
        {17, 4, 1, "begins at byte 6, the one before it ends at 12"},
        {18, 5, 8, "5 sequences and 5 document entries take"},
        {18, -1, 8, "do not fit"},
        {26, INT64_MAX, 8, "do not fit"},
        {34, -3, 4, "sequence 0 has -3 tokens"},
        {34, 4, 4, "sequence 1 begins at byte 6, the one before it ends at 8"},
        {34 + 12, 0, 4, "18 bytes, but its index describes 16"},
        {34 + 8, 500, 4, "ends at byte 1006"},
        {34 + 16 + 16, 4, 8, "sequence 2 begins at byte 4"},
        {34 + 16 + 32, 1, 8, "document entry 0 is 1"},
        {34 + 16 + 32 + 16, 4, 8, "document entry 3 is 3, expected 4 to 4"},
        {34 + 16 + 32 + 32, 3, 8, "ends at sequence 3 of 4"},
    };
    char *idx;
    size_t bytes;
    lt_shard *s = NULL;
    (void)state;
    write_four(at("lies"), 65000);
    assert_int_equal(lt_file_read(&idx, &bytes, at("lies.idx"), 1 << 20), LT_OK);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char kept[8];
        memcpy(kept, idx + lies[i].offset, 8);
        memcpy(idx + lies[i].offset, &lies[i].value, lies[i].bytes);
        assert_int_equal(lt_file_write_atomic(at("lies.idx"), idx, bytes), LT_OK);
        assert_int_not_equal(lt_shard_open(&s, at("lies"), -1), LT_OK);
        if (strstr(lt_error_message(), lies[i].why) == NULL) {
            fail_msg("lie %zu: %s", i, lt_error_message());
        }
        memcpy(idx + lies[i].offset, kept, 8);
    }
    for (size_t cut = 0; cut < bytes; cut++) {
        assert_int_equal(lt_file_write_atomic(at("lies.idx"), idx, cut), LT_OK);
        assert_int_equal(lt_shard_open(&s, at("lies"), -1), LT_ERR_FORMAT);
    }
    free(idx);
    assert_int_equal(lt_shard_open(&s, at("nothing"), -1), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_shard_open(&s, at("nothing.bin"), -1), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_shard_open(&s, "/", -1), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "/ is a folder. Name a shard"));
    assert_non_null(strstr(lt_error_message(), "pattern, /*.bin"));
}

static void llmc_files_are_read(void **state) {
    int32_t header[256] = {20240520, 1, 6};
    const uint16_t narrow[] = {50256, 1, 2, 50256, 3, 65535};
    const uint32_t wide[] = {1, 2, 128000, 3, 4, 0x80000000u};
    char file[1024 + 24];
    lt_shard *s = NULL;
    int32_t back[6];
    uint64_t first, n;
    (void)state;
    memcpy(file, header, 1024);
    memcpy(file + 1024, narrow, 12);
    assert_int_equal(lt_file_write_atomic(at("a.bin"), file, 1036), LT_OK);
    assert_int_equal(lt_shard_open(&s, at("a.bin"), 50256), LT_OK);
    assert_int_equal(lt_shard_get_info(s).n_documents, 2);
    lt_shard_document(s, 1, &first, &n);
    assert_int_equal(first, 3);
    assert_int_equal(n, 3);
    assert_int_equal(lt_shard_find(s, 2), 0);
    assert_int_equal(lt_shard_read(s, 3, 3, back, 65536), LT_OK);
    assert_int_equal(back[2], 65535);
    lt_shard_close(s);

    header[0] = 20240801;
    header[1] = 7;
    memcpy(file, header, 1024);
    memcpy(file + 1024, wide, 24);
    assert_int_equal(lt_file_write_atomic(at("b.bin"), file, 1048), LT_OK);
    assert_int_equal(lt_shard_open(&s, at("b.bin"), -1), LT_OK);
    assert_int_equal(lt_shard_get_info(s).n_documents, 1);
    assert_int_equal(lt_shard_read(s, 0, 5, back, 128256), LT_OK);
    assert_int_equal(back[2], 128000);
    assert_int_equal(lt_shard_read(s, 0, 6, back, INT64_MAX), LT_ERR_FORMAT);
    lt_shard_close(s);
    assert_int_equal(lt_file_write_atomic(at("b.bin"), file, 1047), LT_OK);
    assert_int_equal(lt_shard_open(&s, at("b.bin"), -1), LT_ERR_FORMAT);
    header[1] = 1;
    assert_int_equal(lt_file_write_atomic(at("b.bin"), header, 1024), LT_OK);
    assert_int_equal(lt_shard_open(&s, at("b.bin"), -1), LT_ERR_UNSUPPORTED);
    header[0] = 1;
    assert_int_equal(lt_file_write_atomic(at("b.bin"), header, 1024), LT_OK);
    assert_int_equal(lt_shard_open(&s, at("b.bin"), -1), LT_ERR_FORMAT);
    assert_int_equal(lt_file_write_atomic(at("b.bin"), header, 10), LT_OK);
    assert_int_equal(lt_shard_open(&s, at("b.bin"), -1), LT_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read_back),
        cmocka_unit_test(long_documents_are_whole),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(a_file_of_megatron_is_read),
        cmocka_unit_test(the_writer_resumes_from_a_mark),
        cmocka_unit_test(a_crash_between_the_renames_is_repaired),
        cmocka_unit_test(a_mask_survives_a_crash),
        cmocka_unit_test(an_index_that_cannot_be_written),
        cmocka_unit_test(the_writer_refuses_ids_outside_the_vocabulary),
        cmocka_unit_test(false_tables_are_refused),
        cmocka_unit_test(llmc_files_are_read),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
