/* The cache on disk: the files of a folder keep what was put there, up to their limit, across
 * restarts, in the order of use; foreign files are ignored, damaged ones are not used. An engine
 * whose pool is too small for its texts finds their pages on disk, and so does the next engine,
 * with the bits of the first. Requests that wait for the disk may be cancelled at any time. */
#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "serve/page_disk.h"
#include "unit/serve/texts.h"

enum { BYTES = 40 };

static char root[] = "/tmp/lateen-test-disk-XXXXXX";

static const char *folder_of(const char *name) {
    static char path[LT_PATH_BYTES];
    must(lt_path_join(path, root, name), name);
    return path;
}

/* ---- Files ---- */

static const lt_page_file_head small_head = {.fingerprint = 7,
                                             .keys = LT_F32,
                                             .values = LT_F32,
                                             .page_tokens = 2,
                                             .page_bytes = BYTES,
                                             .n_pages = 1};

static lt_page_chain chain_of(uint64_t i) {
    return (lt_page_chain){lt_rng_mix(i), i};
}

static void put(lt_page_disk *d, uint64_t i) {
    const int32_t tokens[] = {(int32_t)i, 5};
    char page[BYTES] = {0};
    page[0] = (char)i;
    must(lt_page_disk_put(d, chain_of(i), tokens, page), "put");
}

static lt_err get(lt_page_disk *d, uint64_t i) {
    const int32_t tokens[] = {(int32_t)i, 5};
    char page[BYTES];
    LT_TRY(lt_page_disk_get(d, chain_of(i), tokens, page));
    assert_int_equal(page[0], (char)i);
    return LT_OK;
}

static int64_t file_bytes(void) {
    lt_page_file_head h = small_head;
    h.chain = chain_of(1);
    return lt_page_file_bytes(&h);
}

static lt_page_disk *open_disk(const char *name, int64_t pages) {
    lt_page_disk *d = NULL;
    must(lt_page_disk_open(&d, folder_of(name), pages * file_bytes() + file_bytes() / 2,
                           &small_head),
         name);
    return d;
}

static size_t files_in(const char *name) {
    char **names = NULL;
    size_t n = 0;
    must(lt_file_list(&names, &n, folder_of(name)), name);
    lt_file_list_free(names, n);
    return n;
}

static void what_is_put_is_found_up_to_the_bound(void **state) {
    lt_page_disk *d = open_disk("files", 3), *second = NULL;
    const uint64_t seed = lt_page_disk_seed(d);
    lt_page_disk_counts c;
    (void)state;
    assert_int_equal(lt_page_disk_open(&second, folder_of("files"), 1 << 20, &small_head),
                     LT_ERR_STATE); /* Two processes cannot limit one folder. */
    for (uint64_t i = 1; i <= 3; i++) {
        put(d, i);
    }
    put(d, 1); /* Used once more, not written. */
    put(d, 4);
    assert_int_equal(get(d, 1), LT_OK);
    assert_int_equal(get(d, 2), LT_ERR_NOT_FOUND);
    assert_int_equal(get(d, 4), LT_OK);
    lt_page_disk_touch(d, chain_of(3));
    lt_page_disk_get_counts(d, &c);
    assert_int_equal(c.pages, 3);
    assert_int_equal(c.most_pages, 3);
    assert_int_equal(c.written, 4);
    assert_int_equal(c.read, 2);
    assert_int_equal(files_in("files"), 4); /* With the secret. */
    lt_page_disk_close(d);

    d = open_disk("files", 3); /* The order of use was 1, 4, 3. */
    assert_true(lt_page_disk_seed(d) == seed);
    assert_int_equal(get(d, 1), LT_OK);
    put(d, 5);
    assert_int_equal(get(d, 1), LT_ERR_NOT_FOUND);
    assert_int_equal(get(d, 4), LT_OK);
    lt_page_disk_close(d);
    d = open_disk("files", 1); /* A smaller limit: only the newest. */
    assert_int_equal(get(d, 3), LT_ERR_NOT_FOUND);
    assert_int_equal(get(d, 5), LT_OK);
    assert_int_equal(files_in("files"), 2);
    lt_page_disk_close(d);
    assert_int_equal(lt_page_disk_open(&d, folder_of("files"), file_bytes() - 1, &small_head),
                     LT_ERR_LIMIT);
}

/* A page that cannot be written is not counted as written, and is not found. */
static void what_cannot_be_written_is_counted(void **state) {
    lt_page_disk *d = open_disk("gone", 3);
    const int32_t tokens[] = {1, 5};
    const char page[BYTES] = {1};
    lt_page_disk_counts c;
    (void)state;
    must(lt_file_remove_tree(folder_of("gone")), "gone");
    assert_int_equal(lt_page_disk_put(d, chain_of(1), tokens, page), LT_ERR_IO);
    assert_int_equal(get(d, 1), LT_ERR_NOT_FOUND);
    lt_page_disk_get_counts(d, &c);
    assert_int_equal(c.written, 0);
    assert_int_equal(c.failed, 1);
    assert_int_equal(c.pages, 0);
    lt_page_disk_close(d);
}

/* The file of page i, named as documented. */
static void path_of(char out[LT_PATH_BYTES], const char *name, uint64_t i) {
    const lt_page_chain c = chain_of(i);
    char file[64];
    (void)snprintf(file, sizeof file, "%016llx%016llx.page", (unsigned long long)c.high,
                   (unsigned long long)c.low);
    must(lt_path_join(out, folder_of(name), file), file);
}

static void change_byte(const char *path, off_t at) {
    char byte;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void foreign_and_damaged_files_are_not_used(void **state) {
    char a[LT_PATH_BYTES], b[LT_PATH_BYTES];
    lt_page_file_head other = small_head;
    lt_page_disk *d = open_disk("foreign", 8);
    lt_page_disk_counts c;
    (void)state;
    for (uint64_t i = 1; i <= 5; i++) {
        put(d, i);
    }
    path_of(a, "foreign", 1);
    change_byte(a, file_bytes() - 20); /* In the page: noticed when it is read. */
    path_of(a, "foreign", 2);
    assert_int_equal(truncate(a, file_bytes() - 1), 0);
    assert_int_equal(get(d, 1), LT_ERR_FORMAT);
    assert_int_equal(get(d, 1), LT_ERR_NOT_FOUND);
    lt_page_disk_get_counts(d, &c);
    assert_int_equal(c.failed, 1);
    put(d, 1);
    assert_int_equal(get(d, 1), LT_OK);
    lt_page_disk_close(d);

    path_of(a, "foreign", 4);
    path_of(b, "foreign", 6);
    assert_int_equal(rename(a, b), 0); /* The name of another page. */
    must(lt_file_write_atomic(folder_of("foreign/x.page"), "no page", 7), "x");
    must(lt_file_write_atomic(folder_of("foreign/0.page.0x1.tmp"), "rest", 4), "rest");
    must(lt_file_write_atomic(folder_of("foreign/notes.txt"), "mine", 4), "notes");
    d = open_disk("foreign", 8);
    lt_page_disk_get_counts(d, &c);
    assert_int_equal(c.pages, 3); /* 1, 3, 5. */
    assert_int_equal(get(d, 2), LT_ERR_NOT_FOUND);
    assert_int_equal(get(d, 4), LT_ERR_NOT_FOUND);
    assert_int_equal(get(d, 6), LT_ERR_NOT_FOUND);
    assert_int_equal(get(d, 5), LT_OK);
    lt_page_disk_close(d);
    assert_false(lt_file_exists(folder_of("foreign/0.page.0x1.tmp")));
    assert_true(lt_file_exists(folder_of("foreign/notes.txt")));

    other.fingerprint++; /* Another model has no pages here, and leaves the existing ones. */
    must(lt_page_disk_open(&d, folder_of("foreign"), 1 << 20, &other), "another model");
    lt_page_disk_get_counts(d, &c);
    assert_int_equal(c.pages, 0);
    lt_page_disk_close(d);
    d = open_disk("foreign", 8);
    assert_int_equal(get(d, 3), LT_OK);
    lt_page_disk_close(d);
    must(lt_file_write_atomic(folder_of("foreign/secret"), "12345", 5), "secret");
    assert_int_equal(lt_page_disk_open(&d, folder_of("foreign"), 1 << 20, &small_head),
                     LT_ERR_FORMAT);
}

/* ---- Engines ---- */

/* Its pool has 14 pages. */
static lt_engine *engine_of(const lt_model *m, const char *folder, lt_dtype cache) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.deterministic = true;
    o.max_running = 8;
    o.max_seq = SEQ;
    o.cache_dtype = cache;
    o.cache_bytes = bytes_of_pages(m, &o, 14);
    o.disk = folder;
    o.disk_bytes = 64 << 20;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

/* Pages that are evicted while the disk is busy are not kept, so wait until it is not. */
static void wait_for_pages(lt_engine *e, int64_t n) {
    lt_engine_stats st;
    for (int i = 0; i < 60000; i++) {
        lt_engine_get_stats(e, &st);
        if (st.disk_pages >= n) {
            return;
        }
        usleep(1000);
    }
    fail_msg("%lld pages are on disk after a minute, not %lld", (long long)st.disk_pages,
             (long long)n);
}

static void evicted_pages_come_back(void **state) {
    static const lt_dtype caches[] = {LT_DTYPE_COUNT, LT_F16, LT_F8_E4M3};
    static answer first, again, other;
    (void)state;
    for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
        char folder[LT_PATH_BYTES];
        lt_model *m = random_model(V, SEQ, LT_F32);
        lt_engine_stats st;
        lt_engine *e;
        (void)snprintf(folder, sizeof folder, "%s/engine%zu", root, c);
        e = engine_of(m, folder, caches[c]);
        assert_int_equal(ask(e, 1, 0, &first), 0);
        for (uint64_t text = 2; text < 6; text++) {
            assert_int_equal(ask(e, text, 0, &other), 0);
        }
        wait_for_pages(e, 12); /* The pages of the first texts. */
        assert_int_equal(ask(e, 1, 0, &again), PROMPT / P * P);
        assert_equal(&again.choices[0], &first.choices[0], "from the disk");
        assert_int_equal(ask(e, 1, 0, &again), PROMPT / P * P); /* From the pool. */
        assert_int_equal(ask(e, 1, 99, &other), 0);             /* Another salt. */
        lt_engine_get_stats(e, &st);
        assert_int_equal(st.disk_read, PROMPT / P);
        assert_int_equal(st.disk_tokens, PROMPT / P * P);
        assert_int_equal(st.disk_failed, 0);
        assert_no_page_held(e);
        lt_engine_close(e);
        lt_model_close(m);

        m = random_model(V, SEQ, LT_F32);
        e = engine_of(m, folder, caches[c]);
        assert_int_equal(ask(e, 1, 0, &again), PROMPT / P * P);
        assert_equal(&again.choices[0], &first.choices[0], "from the disk of the engine before");
        assert_int_equal(ask(e, 5, 0, &again), PROMPT / P * P); /* It had never left the pool. */
        lt_engine_close(e);
        lt_model_close(m);
    }
}

static void a_damaged_page_is_computed_again(void **state) {
    static answer first, again;
    char folder[LT_PATH_BYTES], path[LT_PATH_BYTES], **names = NULL;
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e;
    lt_engine_stats st;
    size_t n = 0;
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/damaged", root);
    e = engine_of(m, folder, LT_F32);
    (void)ask(e, 1, 0, &first);
    lt_engine_close(e);
    must(lt_file_list(&names, &n, folder), folder);
    for (size_t i = 0; i < n; i++) { /* The end of every page. */
        must(lt_path_join(path, folder, names[i]), path);
        if (lt_path_has_suffix(path, ".page")) {
            change_byte(path, 200);
        }
    }
    lt_file_list_free(names, n);
    e = engine_of(m, folder, LT_F32);
    assert_int_equal(ask(e, 1, 0, &again), 0);
    assert_equal(&again.choices[0], &first.choices[0], "computed again");
    lt_engine_get_stats(e, &st);
    assert_int_equal(st.disk_failed, 1); /* What follows a missing page is not read. */
    assert_no_page_held(e);
    lt_engine_close(e);
    lt_model_close(m);
}

/* Texts that recur, more than the pool can hold; some of them are cancelled at once, some while
 * they wait or run. */
static void cancellations_are_harmless(void **state) {
    enum { TEXTS = 8, AT_ONCE = 12, ROUNDS = 30 };
    static answer want[TEXTS], got[AT_ONCE];
    static int32_t prompts[TEXTS][PROMPT];
    char folder[LT_PATH_BYTES];
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine *e;
    lt_engine_stats st;
    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/cancelled", root);
    e = engine_of(m, folder, LT_F32);
    for (uint64_t text = 0; text < TEXTS; text++) {
        (void)ask(e, text, 0, &want[text]);
        fill_prompt(prompts[text], PROMPT, V, text);
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t i = 0; i < AT_ONCE; i++) {
            const uint64_t text = lt_rng_mix(round * 100 + i) % TEXTS;
            const lt_request r = text_request(prompts[text]);
            send(e, &r, &got[i]);
            if (i % 3 == 1) {
                lt_engine_cancel(e, got[i].id);
            }
        }
        for (uint64_t i = 2; i < AT_ONCE; i += 3) {
            lt_engine_cancel(e, got[i].id);
        }
        receive_all(e, AT_ONCE, 0);
        for (uint64_t i = 0; i < AT_ONCE; i += 3) {
            const uint64_t text = lt_rng_mix(round * 100 + i) % TEXTS;
            assert_equal(&got[i].choices[0], &want[text].choices[0], "beside cancelled ones");
        }
    }
    assert_no_page_held(e);
    lt_engine_get_stats(e, &st);
    assert_true(st.disk_read > 0);
    assert_int_equal(st.disk_failed, 0);
    lt_engine_close(e);
    lt_model_close(m);
}

static void unsupported_engines_are_refused(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    (void)state;
    o.disk = folder_of("refused");
    o.disk_bytes = 1 << 20;
    o.prefix_cache = false;
    assert_int_equal(lt_engine_open(&e, m, &o), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "the prefix cache is off"));
    o.prefix_cache = true;
    o.disk_bytes = 100;
    assert_int_equal(lt_engine_open(&e, m, &o), LT_ERR_LIMIT);
    o.disk_bytes = 1 << 20;
    must(lt_engine_open(&e, m, &o), "engine");
    assert_int_equal(lt_engine_hold(e, LT_HOLD_FINISH), LT_ERR_UNSUPPORTED);
    lt_engine_close(e);
    lt_model_close(m);
}

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state) {
    (void)state;
    return lt_file_remove_tree(root) != LT_OK;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_put_is_found_up_to_the_bound),
                                       cmocka_unit_test(what_cannot_be_written_is_counted),
                                       cmocka_unit_test(foreign_and_damaged_files_are_not_used),
                                       cmocka_unit_test(evicted_pages_come_back),
                                       cmocka_unit_test(a_damaged_page_is_computed_again),
                                       cmocka_unit_test(cancellations_are_harmless),
                                       cmocka_unit_test(unsupported_engines_are_refused)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
