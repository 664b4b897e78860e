/* The cache in host memory for a GPU: an engine whose pool is too small for its texts finds their
 * pages there, with the same bits; the least recently used make room. Without a GPU it is
 * refused. With a cache on disk as well, pages that leave host memory go there, also for the next
 * engine with the same weights. */
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "model/alloc.h"
#include "serve/page_index.h"
#include "unit/serve/texts.h"

static void the_oldest_slot_makes_room(void **state) {
    lt_page_index x = {.n_slots = 3};
    lt_arena arena = {0};
    lt_page_chain gone;
    bool any;
    (void)state;
    lt_page_index_carve(&x, &arena);
    must(lt_arena_open(&arena, "index"), "index");
    lt_page_index_carve(&x, &arena);
    lt_page_index_reset(&x);
    for (uint64_t i = 1; i <= 3; i++) {
        (void)lt_page_index_add(&x, (lt_page_chain){i, i}, &gone, &any);
        assert_false(any);
    }
    lt_page_index_touch(&x, lt_page_index_find(&x, (lt_page_chain){1, 1}));
    (void)lt_page_index_add(&x, (lt_page_chain){4, 4}, &gone, &any);
    assert_true(any && gone.low == 2);
    assert_int_equal(lt_page_index_find(&x, (lt_page_chain){2, 2}), LT_NO_SLOT);
    assert_int_equal(lt_page_index_find(&x, (lt_page_chain){1, 2}), LT_NO_SLOT);
    lt_page_index_remove(&x, lt_page_index_find(&x, (lt_page_chain){3, 3}));
    assert_int_equal(x.n_used, 2);
    (void)lt_page_index_add(&x, (lt_page_chain){5, 5}, &gone, &any);
    assert_false(any);
    (void)lt_page_index_add(&x, (lt_page_chain){6, 6}, &gone, &any);
    assert_true(any && gone.low == 1);
    lt_arena_close(&arena);
}

/* Its pool has 14 pages, its host memory `slots`; disk: a folder, or NULL. */
static lt_engine *engine_of(const lt_model *m, lt_dtype cache, int64_t slots, const char *disk) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.deterministic = true;
    o.max_running = 8;
    o.max_seq = SEQ;
    o.cache_dtype = cache;
    o.cache_bytes = bytes_of_pages(m, &o, 14);
    o.host_bytes = bytes_of_pages(m, &o, slots);
    o.disk = disk;
    o.disk_bytes = 1 << 30;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

static void come_back(const lt_model *m, lt_dtype cache) {
    static answer first, again, other;
    lt_engine_stats st;
    lt_engine *e = engine_of(m, cache, 64, NULL);
    assert_int_equal(ask(e, 1, 0, &first), 0);
    for (uint64_t text = 2; text < 6; text++) {
        assert_int_equal(ask(e, text, 0, &other), 0);
    }
    assert_int_equal(ask(e, 1, 0, &again), PROMPT / P * P);
    assert_equal(&again.choices[0], &first.choices[0], "from the host");
    assert_int_equal(ask(e, 1, 0, &again), PROMPT / P * P); /* From the pool. */
    assert_int_equal(ask(e, 1, 99, &other), 0);             /* Another salt. */
    assert_no_page_held(e);
    lt_engine_get_stats(e, &st);
    assert_int_equal(st.host_read, PROMPT / P);
    assert_int_equal(st.host_tokens, PROMPT / P * P);
    assert_true(st.host_pages == st.host_written && st.host_pages > 12);
    lt_engine_close(e);

    /* With few slots the first texts are gone, the newer ones in part. */
    e = engine_of(m, cache, 4, NULL);
    for (uint64_t text = 1; text < 6; text++) {
        assert_int_equal(ask(e, text, 0, &other), 0);
    }
    assert_int_equal(ask(e, 1, 0, &again), 0);
    assert_equal(&again.choices[0], &first.choices[0], "computed again");
    lt_engine_get_stats(e, &st);
    assert_in_range(st.host_pages, 1, 4);
    lt_engine_close(e);
}

static void evicted_pages_come_back(void **state) {
    lt_model *m;
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    m = random_model_of(V, SEQ, 64, LT_BF16, 0.0f, gpu_backend());
    come_back(m, LT_BF16);
    come_back(m, LT_F8_E4M3);
    come_back(m, LT_Q8_0);
    come_back(m, LT_Q4_0);
    lt_model_close(m);
}

/* Wait until the disk holds n pages. */
static void wait_for_pages(const lt_engine *e, int64_t n) {
    const double start_s = lt_clock_s();
    lt_engine_stats st;
    do {
        lt_engine_get_stats(e, &st);
        assert_true(lt_clock_s() - start_s < 60.0);
        usleep(1000);
    } while (st.disk_pages < n);
}

static void by_way_of_the_disk(lt_model *m, lt_dtype cache) {
    enum { TEXTS = 6, PAGES = PROMPT / P };
    static answer first[TEXTS], again;
    char folder[] = "/tmp/lateen-test-disk-XXXXXX";
    lt_engine_stats st;
    assert_non_null(mkdtemp(folder));
    lt_engine *e = engine_of(m, cache, 4, folder);
    for (uint64_t text = 0; text < TEXTS; text++) {
        assert_int_equal(ask(e, text, 0, &first[text]), 0);
    }
    wait_for_pages(e, 2 * PAGES);
    assert_int_equal(ask(e, 0, 0, &again), PAGES * P);
    assert_equal(&again.choices[0], &first[0].choices[0], "from the disk");
    assert_no_page_held(e);
    lt_engine_get_stats(e, &st);
    assert_int_equal(st.disk_tokens, PAGES * P);
    assert_true(st.host_written > 4 && st.host_pages == 4 && st.disk_unkept == 0);
    lt_engine_close(e);

    e = engine_of(m, cache, 4, folder); /* The disk also has what was in memory at the end. */
    for (uint64_t text = 0; text < TEXTS; text++) {
        assert_int_equal(ask(e, text, 0, &again), PAGES * P);
        assert_equal(&again.choices[0], &first[text].choices[0], "after a restart");
    }
    lt_engine_get_stats(e, &st);
    assert_int_equal(st.disk_tokens, TEXTS * PAGES * P);
    lt_engine_close(e);

    const float one = 1.0f; /* Other weights of the same shape: nothing is found. */
    lt_model_set(m, &m->table.params[0], 0, &one, LT_F32, 1);
    must(lt_model_settle(m), "settle");
    e = engine_of(m, cache, 4, folder);
    assert_int_equal(ask(e, 0, 0, &again), 0);
    lt_engine_close(e);
    must(lt_file_remove_tree(folder), folder);
}

static void the_disk_takes_what_leaves_the_host(void **state) {
    static const lt_dtype caches[] = {LT_BF16, LT_Q4_0};
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        lt_model *m = random_model_of(V, SEQ, 64, LT_BF16, 0.0f, gpu_backend());
        lt_engine_options o = lt_engine_defaults();
        lt_engine *e = NULL;
        by_way_of_the_disk(m, caches[i]);
        o.disk = "/tmp";
        assert_int_equal(lt_engine_open(&e, m, &o), LT_ERR_UNSUPPORTED);
        assert_non_null(
            strstr(lt_error_message(), "by way of a cache in host memory (--cache-host)"));
        lt_model_close(m);
    }
}

static void refused_on_a_cpu(void **state) {
    lt_model *m = random_model(V, SEQ, LT_F32);
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    (void)state;
    o.host_bytes = 1 << 20;
    assert_int_equal(lt_engine_open(&e, m, &o), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "in host memory already"));
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_slot_makes_room), cmocka_unit_test(evicted_pages_come_back),
        cmocka_unit_test(the_disk_takes_what_leaves_the_host), cmocka_unit_test(refused_on_a_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
