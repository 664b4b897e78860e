/* Fingerprints of shards: comparisons after the content, size, number, time or place has changed;
 * files smaller and larger than the part that is read. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "data/fingerprint.h"

#define LARGE_TOKENS 40000000 /* 80 MB: more than the 64 MiB that are read of a file. */

static char folder[] = "/tmp/lateen-fingerprint-XXXXXX";

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static const char *place(const char *name) {
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* An llm.c shard of zeros: a sparse file except for its header. */
static void shard(const char *name, int32_t n) {
    const int32_t header[256] = {20240520, 1, n};
    const int fd = open(place(name), O_RDWR | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, header, sizeof header), sizeof header);
    assert_int_equal(ftruncate(fd, (off_t)sizeof header + 2 * (off_t)n), 0);
    close(fd);
}

/* Write one token at position `at`; with keep_time, do not change the time of the file. */
static void poke(const char *name, int64_t at, bool keep_time) {
    const uint16_t id = 7;
    struct stat st;
    const int fd = open(place(name), O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pwrite(fd, &id, sizeof id, 1024 + 2 * at), sizeof id);
    if (keep_time) {
        const struct timespec times[2] = {st.st_atim, st.st_mtim};
        assert_int_equal(futimens(fd, times), 0);
    }
    close(fd);
}

static void set_time(const char *name, int64_t seconds, long ns) {
    const struct timespec times[2] = {{seconds, ns}, {seconds, ns}};
    assert_int_equal(utimensat(AT_FDCWD, place(name), times, 0), 0);
}

static lt_loader *open_loader(const char *pattern) {
    const lt_loader_source source = {.path = place(pattern), .weight = 1};
    lt_loader_options o = lt_loader_defaults();
    lt_loader *l = NULL;
    o.sources = &source;
    o.n_sources = 1;
    o.seq = 16;
    o.vocab_size = 64;
    o.prefetch_rows = 0;
    must(lt_loader_open(&l, &o));
    return l;
}

static json_t *fingerprint(const char *pattern, bool whole) {
    lt_loader *l = open_loader(pattern);
    json_t *s = NULL;
    must(lt_fingerprint_source(&s, l, 0, whole));
    lt_loader_close(l);
    return s;
}

/* Compare what `then` records with the current files; message NULL: they are the same. */
static void compare(const json_t *then, const char *pattern, bool whole, const char *message) {
    lt_loader *l = open_loader(pattern);
    json_t *now = NULL;
    lt_err err;
    must(lt_fingerprint_source(&now, l, 0, whole));
    err = lt_fingerprint_compare(then, now, l, 0, "data.train");
    if (message == NULL) {
        must(err);
    } else {
        assert_int_equal(err, LT_ERR_STATE);
        if (strstr(lt_error_message(), message) == NULL) {
            fail_msg("'%s' is not in: %s", message, lt_error_message());
        }
    }
    json_decref(now);
    lt_loader_close(l);
}

static json_int_t number(const json_t *s, size_t i, const char *key) {
    return json_integer_value(json_object_get(json_array_get(s, i), key));
}

/* In a small file every byte counts, whatever its time. */
static void small_files_are_read_completely(void **state) {
    json_t *s;
    (void)state;
    shard("small.bin", 1000);
    s = fingerprint("small.bin", false);
    assert_int_equal(json_array_size(s), 1);
    assert_int_equal(number(s, 0, "bytes"), 3024);
    assert_int_equal(number(s, 0, "sampled"), 3024);
    compare(s, "small.bin", false, NULL);
    set_time("small.bin", 1000000000, 987654321);
    compare(s, "small.bin", false, NULL);
    json_decref(s);
    s = fingerprint("small.bin", false);
    assert_true(number(s, 0, "mtime_ns") == 1000000000987654321);
    shard("other.bin", 1000); /* Another name and another time. */
    compare(s, "other.bin", false, NULL);
    for (int64_t at = 0; at < 1000; at += 333) {
        shard("other.bin", 1000);
        poke("other.bin", at, true);
        compare(s, "other.bin", false, "other.bin has changed since the checkpoint: the checksum");
    }
    shard("other.bin", 1001);
    compare(s, "other.bin", false, "it had 3024 bytes, now 3026");
    json_decref(s);
    assert_int_equal(unlink(place("other.bin")), 0);
}

static void number_of_files(void **state) {
    json_t *s;
    (void)state;
    shard("n-0.bin", 100);
    shard("n-1.bin", 100);
    s = fingerprint("n-*.bin", false);
    assert_int_equal(json_array_size(s), 2);
    shard("n-2.bin", 100);
    compare(s, "n-*.bin", false, "had 2 files at the checkpoint, now 3; new: n-2.bin");
    assert_int_equal(unlink(place("n-2.bin")), 0);
    assert_int_equal(unlink(place("n-0.bin")), 0);
    compare(s, "n-*.bin", false, "had 2 files at the checkpoint, now 1; gone: n-0.bin");
    shard("n-0.bin", 100);
    compare(s, "n-*.bin", false, NULL);
    poke("n-1.bin", 50, false);
    compare(s, "n-*.bin", false, "n-1.bin has changed"); /* That file, and not the first one. */
    json_decref(s);
}

/* 64 sources, one of which has more than 32,768 / 64 files: one entry for all of them, with their
 * total size and their newest date. */
static void one_entry_for_many_files(void **state) {
    enum { FILES = 513, TOKENS = 20, SOURCES = LT_LOADER_SOURCES_MAX };
    lt_loader_source sources[SOURCES];
    char many[256], small[256], name[32];
    lt_loader_options o = lt_loader_defaults();
    lt_loader *l = NULL;
    json_t *then = NULL, *now = NULL;
    (void)state;
    (void)snprintf(many, sizeof many, "%s", place("m-*.bin"));
    (void)snprintf(small, sizeof small, "%s", place("m-000.bin"));
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(name, sizeof name, "m-%03d.bin", i);
        shard(name, TOKENS);
        set_time(name, i == 7 ? 2000000000 : 1000000000, 1);
    }
    for (int i = 0; i < SOURCES; i++) {
        sources[i] = (lt_loader_source){i == 0 ? many : small, 1};
    }
    o.sources = sources;
    o.n_sources = SOURCES;
    o.seq = 16;
    o.vocab_size = 64;
    o.prefetch_rows = 0;
    must(lt_loader_open(&l, &o));
    must(lt_fingerprint_source(&then, l, 0, true));
    assert_int_equal(json_array_size(then), 1);
    assert_int_equal(number(then, 0, "bytes"), FILES * (1024 + 2 * TOKENS));
    assert_int_equal(number(then, 0, "sampled"), FILES * (1024 + 2 * TOKENS));
    assert_true(number(then, 0, "mtime_ns") == 2000000000000000001);
    assert_string_equal(json_string_value(json_object_get(json_array_get(then, 0), "file")),
                        "513 files");
    must(lt_fingerprint_source(&now, l, 0, true));
    must(lt_fingerprint_compare(then, now, l, 0, "data.train"));
    json_decref(now);
    for (int i = 0; i < FILES; i += FILES - 1) { /* The first and the last of them. */
        (void)snprintf(name, sizeof name, "m-%03d.bin", i);
        poke(name, 5, true);
        must(lt_fingerprint_source(&now, l, 0, true));
        assert_int_equal(lt_fingerprint_compare(then, now, l, 0, "data.train"), LT_ERR_STATE);
        json_decref(now);
        shard(name, TOKENS);
        set_time(name, 1000000000, 1);
    }
    lt_loader_close(l);
    json_decref(then);
}

/* A missing file, and entries of a damaged manifest, are reported. */
static void what_cannot_be_compared(void **state) {
    static const char *const members[] = {"file", "xxh3", "bytes", "mtime_ns", "sampled"};
    lt_loader *l;
    json_t *s, *none = NULL;
    (void)state;
    shard("gone.bin", 100);
    s = fingerprint("gone.bin", false);
    l = open_loader("gone.bin");
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *damaged = json_deep_copy(s);
        json_object_del(json_array_get(damaged, 0), members[i]);
        assert_int_equal(lt_fingerprint_compare(damaged, s, l, 0, "x"), LT_ERR_NOT_FOUND);
        json_decref(damaged);
    }
    assert_int_equal(unlink(place("gone.bin")), 0);
    assert_int_equal(lt_fingerprint_source(&none, l, 0, false), LT_ERR_IO);
    assert_non_null(strstr(lt_error_message(), "gone.bin"));
    assert_null(none);
    lt_loader_close(l);
    json_decref(s);
}

/* 64 blocks of 1 MiB in 80,001,024 bytes: the first ends at 1,048,576, the second begins at
 * (80,001,024 - 1,048,576) / 63 = 1,253,213. Token 590,000 is at byte 1,181,024, between them. */
static void large_files_are_sampled(void **state) {
    json_t *s, *w;
    (void)state;
    shard("large.bin", LARGE_TOKENS);
    s = fingerprint("large.bin", false);
    w = fingerprint("large.bin", true);
    assert_int_equal(number(s, 0, "bytes"), 80001024);
    assert_int_equal(number(s, 0, "sampled"), 64 << 20);
    assert_null(json_object_get(json_array_get(s, 0), "whole"));
    poke("large.bin", 590000, false);
    compare(s, "large.bin", false, NULL); /* Only its time differs: a warning. */
    /* The checksum is known, and the time is new. */
    compare(w, "large.bin", false, "its whole checksum was");
    compare(w, "large.bin", true, "its whole checksum was");
    shard("large.bin", LARGE_TOKENS);
    compare(w, "large.bin", true, NULL);
    poke("large.bin", 590000, true);
    compare(w, "large.bin", true, "its whole checksum was"); /* The time is the old one. */
    shard("large.bin", LARGE_TOKENS);
    poke("large.bin", 0, true);
    compare(s, "large.bin", false,
            "large.bin has changed since the checkpoint: the checksum of 67108864");
    shard("large.bin", LARGE_TOKENS);
    poke("large.bin", LARGE_TOKENS - 1, true);
    compare(s, "large.bin", false, "has changed");
    shard("large.bin", LARGE_TOKENS);
    poke("large.bin", 626700, true); /* Byte 1,254,424: in the second block. */
    compare(s, "large.bin", false, "has changed");
    json_decref(s);
    json_decref(w);
    assert_int_equal(unlink(place("large.bin")), 0);
}

static int make(void **state) {
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int drop(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) == LT_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_files_are_read_completely), cmocka_unit_test(number_of_files),
        cmocka_unit_test(large_files_are_sampled), cmocka_unit_test(one_entry_for_many_files),
        cmocka_unit_test(what_cannot_be_compared)};
    return cmocka_run_group_tests(tests, make, drop);
}
