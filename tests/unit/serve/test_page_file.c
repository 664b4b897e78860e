/* Pages of a text in a file: the format detects every change of a byte and every other length; a
 * new engine continues with the bits of the one that saved; files of other models, types and page
 * sizes are refused; nothing stays held. */
#include <unistd.h>

#include "base/file.h"
#include "serve/page_file.h"
#include "unit/serve/fleet.h"

enum { V = 300, SEQ = 160, P = 16, PROMPT = 75 };

static char folder[] = "/tmp/lateen-test-pages-XXXXXX";

static const char *in_folder(const char *name) {
    static char path[LT_PATH_BYTES];
    must(lt_path_join(path, folder, name), name);
    return path;
}

/* ---- The format ---- */

/* Read all of it, as restore does. */
static lt_err read_all(const void *data, size_t bytes) {
    lt_page_file_view v;
    LT_TRY(lt_page_file_parse(&v, data, bytes, "test"));
    for (int64_t i = 0; i < v.head.n_pages; i++) {
        const void *page;
        LT_TRY(lt_page_file_page(&v, i, &page));
    }
    return LT_OK;
}

static void every_byte_counts(void **state) {
    const lt_page_file_head head = {.fingerprint = UINT64_C(0x1122334455667788),
                                    .keys = LT_Q8_0,
                                    .values = LT_F8_E4M3,
                                    .page_tokens = 3,
                                    .page_bytes = 40,
                                    .n_pages = 2};
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    const char pages[2][40] = {"keys and values", "others"};
    const char *path = in_folder("small");
    lt_page_file *f = NULL;
    lt_page_file_view v;
    int64_t written = 0;
    size_t size = 0;
    char *data = NULL;
    (void)state;
    must(lt_page_file_create(&f, path, &head, tokens), path);
    must(lt_page_file_put(f, pages[0]), path);
    must(lt_page_file_put(f, pages[1]), path);
    assert_false(lt_file_exists(path)); /* Not before it is complete. */
    must(lt_page_file_commit(f, true, &written), path);
    lt_page_file_close(f);
    must(lt_file_read(&data, &size, path, 1 << 20), path);
    assert_int_equal(size, 64 + 4 * 6 + 2 * (40 + 8));
    assert_int_equal(size, written);
    assert_memory_equal(data,
                        "LTPAGES\n\1\0\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11Q8_0\0\0\0\0"
                        "F8_E4M3\0\3\0\0\0\2\0\0\0\x28\0\0\0\0\0\0\0",
                        56);
    must(lt_page_file_parse(&v, data, size, "test"), "parse");
    assert_memory_equal(v.tokens, tokens, sizeof tokens);
    assert_true(v.head.keys == LT_Q8_0 && v.head.values == LT_F8_E4M3);
    for (size_t i = 0; i < size; i++) {
        data[i] ^= 0x10;
        assert_int_equal(read_all(data, size), LT_ERR_FORMAT);
        data[i] ^= 0x10;
        assert_int_equal(read_all(data, i), LT_ERR_FORMAT);
    }
    assert_int_equal(read_all(data, size + 1), LT_ERR_FORMAT); /* One byte longer. */
    must(read_all(data, size), "whole");
    free(data);
}

static void what_is_not_committed_is_removed(void **state) {
    const lt_page_file_head head = {
        .keys = LT_F32, .values = LT_F32, .page_tokens = 1, .page_bytes = 8, .n_pages = 1};
    char **names = NULL;
    size_t before, after;
    lt_page_file *f = NULL;
    (void)state;
    must(lt_file_list(&names, &before, folder), folder);
    lt_file_list_free(names, before);
    must(lt_page_file_create(&f, in_folder("given up"), &head, (int32_t[]){7}), "create");
    lt_page_file_close(f);
    must(lt_file_list(&names, &after, folder), folder);
    lt_file_list_free(names, after);
    assert_int_equal(before, after);
    assert_int_equal(lt_page_file_create(&f, in_folder("none/file"), &head, (int32_t[]){7}),
                     LT_ERR_IO);
}

/* ---- Engines ---- */

static lt_engine_options options(void) {
    lt_engine_options o = lt_engine_defaults();
    o.deterministic = true;
    o.max_running = 8;
    o.max_seq = SEQ;
    return o;
}

static lt_request request_of(const int32_t *prompt, uint64_t salt) {
    lt_request r = lt_request_defaults();
    r.prompt = prompt;
    r.n_prompt = PROMPT;
    r.max_tokens = 30;
    r.logprobs = 5;
    r.ignore_eos = true;
    r.cache_salt = salt;
    r.sampling.seed = 11;
    return r;
}

static void ask(lt_engine *e, const lt_request *r, answer *a) {
    send(e, r, a);
    receive_all(e, 1, 0);
}

static int64_t pages_used(const lt_engine *e) {
    lt_engine_stats st;
    lt_engine_get_stats(e, &st);
    return st.pages_used;
}

static void a_new_engine_continues_with_the_same_bits(void **state) {
    static const lt_dtype caches[] = {LT_DTYPE_COUNT, LT_F16, LT_F8_E4M3};
    static answer before, again, other[6];
    int32_t prompt[PROMPT], others[6][64];
    (void)state;
    fill_prompt(prompt, PROMPT, V, 1);
    for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
        lt_model *m = random_model(V, SEQ, LT_F32);
        lt_engine_options o = options();
        const lt_request r = request_of(prompt, 0);
        lt_engine_kept saved, restored;
        lt_engine *e = NULL;
        o.cache_dtype = caches[c];
        must(lt_engine_open(&e, m, &o), "engine");
        ask(e, &r, &before);
        assert_int_equal(before.cached_tokens, 0);
        for (int i = 0; i < 6; i++) { /* Others run meanwhile. */
            lt_request busy = lt_request_defaults();
            fill_prompt(others[i], 40, V, (uint64_t)i + 9);
            busy.prompt = others[i];
            busy.n_prompt = 40;
            busy.max_tokens = 60;
            send(e, &busy, &other[i]);
        }
        must(lt_engine_save(e, in_folder("text"), 0, prompt, PROMPT, &saved), "save");
        receive_all(e, 6, 0);
        assert_int_equal(saved.tokens, PROMPT / P * P);
        assert_int_equal(pages_used(e), 0);
        lt_engine_close(e);
        lt_model_close(m);

        m = random_model(V, SEQ, LT_F32);
        must(lt_engine_open(&e, m, &o), "engine");
        must(lt_engine_restore(e, in_folder("text"), 0, &restored), "restore");
        assert_int_equal(restored.tokens, saved.tokens);
        ask(e, &r, &again);
        assert_int_equal(again.cached_tokens, saved.tokens);
        assert_equal(&again.choices[0], &before.choices[0], "restored");
        must(lt_engine_restore(e, in_folder("text"), 0, &restored), "what is there");
        assert_int_equal(restored.tokens, saved.tokens);
        assert_int_equal(pages_used(e), 0);
        lt_engine_close(e);
        lt_model_close(m);
    }
}

static void salts_separate_and_erasing_forgets(void **state) {
    static answer a;
    int32_t prompt[PROMPT];
    lt_model *m = random_model(V, SEQ, LT_F32);
    const lt_engine_options o = options();
    const lt_request plain = request_of(prompt, 0), salted = request_of(prompt, 5);
    lt_engine_kept kept;
    lt_engine *e = NULL;
    (void)state;
    fill_prompt(prompt, PROMPT, V, 1);
    must(lt_engine_open(&e, m, &o), "engine");
    ask(e, &plain, &a);
    assert_int_equal(lt_engine_save(e, in_folder("none"), 5, prompt, PROMPT, &kept),
                     LT_ERR_NOT_FOUND);
    assert_false(lt_file_exists(in_folder("none")));
    must(lt_engine_save(e, in_folder("text"), 0, prompt, PROMPT, &kept), "save");
    must(lt_engine_restore(e, in_folder("text"), 5, &kept), "restore");
    ask(e, &salted, &a);
    assert_int_equal(a.cached_tokens, PROMPT / P * P);
    must(lt_engine_erase(e, 0, prompt, 2 * P, &kept), "erase"); /* A longer text needs them. */
    assert_int_equal(kept.tokens, 0);
    /* The pages of the answer follow those of the prompt. */
    {
        int32_t text[PROMPT + 30];
        memcpy(text, prompt, sizeof prompt);
        memcpy(text + PROMPT, a.choices[0].ids, 30 * sizeof *text);
        must(lt_engine_erase(e, 0, text, PROMPT + 30, &kept), "erase");
        assert_int_equal(kept.tokens, (PROMPT + 29) / P * P);
    }
    ask(e, &plain, &a);
    assert_int_equal(a.cached_tokens, 0);
    assert_int_equal(pages_used(e), 0);
    lt_engine_close(e);
    lt_model_close(m);
}

static void what_does_not_fit_is_refused(void **state) {
    static answer a;
    int32_t prompt[PROMPT];
    lt_model *m = random_model(V, SEQ, LT_F32), *other = NULL;
    lt_engine_options o = options();
    const lt_request r = request_of(prompt, 0);
    lt_engine_kept kept;
    lt_engine *e = NULL;
    size_t size = 0;
    char *data = NULL;
    (void)state;
    fill_prompt(prompt, PROMPT, V, 1);
    must(lt_engine_open(&e, m, &o), "engine");
    ask(e, &r, &a);
    must(lt_engine_save(e, in_folder("text"), 0, prompt, PROMPT, &kept), "save");
    lt_engine_close(e);

    must(lt_file_read(&data, &size, in_folder("text"), 1 << 24), "read");
    data[size - 100] ^= 1; /* In the last page. */
    must(lt_file_write_atomic(in_folder("damaged"), data, size), "write");
    free(data);
    must(lt_engine_open(&e, m, &o), "engine");
    assert_int_equal(lt_engine_restore(e, in_folder("damaged"), 0, &kept), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "checksum of page 4 of 4"));
    assert_int_equal(pages_used(e), 0);
    ask(e, &r, &a);
    assert_int_equal(a.cached_tokens, 0);
    assert_int_equal(lt_engine_restore(e, in_folder("absent"), 0, &kept), LT_ERR_NOT_FOUND);
    lt_engine_close(e);

    must(lt_model_create(&other, lt_model_get_spec(m), &(lt_model_options){.dtype = LT_F32}, 8),
         "another model");
    must(lt_engine_open(&e, other, &o), "engine");
    assert_int_equal(lt_engine_restore(e, in_folder("text"), 0, &kept), LT_ERR_STATE);
    lt_engine_close(e);
    lt_model_close(other);

    o.value_dtype = LT_F16;
    must(lt_engine_open(&e, m, &o), "engine");
    assert_int_equal(lt_engine_restore(e, in_folder("text"), 0, &kept), LT_ERR_STATE);
    assert_non_null(strstr(lt_error_message(), "F16"));
    lt_engine_close(e);

    o = options();
    o.prefix_cache = false;
    must(lt_engine_open(&e, m, &o), "engine");
    assert_int_equal(lt_engine_restore(e, in_folder("text"), 0, &kept), LT_ERR_UNSUPPORTED);
    lt_engine_close(e);

    o = options(); /* Room for three of the four pages. */
    o.max_seq = 48;
    o.cache_bytes = 3 * 2 * 2 * 2 * 16 * 4 * P;
    must(lt_engine_open(&e, m, &o), "engine");
    must(lt_engine_restore(e, in_folder("text"), 0, &kept), "in part");
    assert_int_equal(kept.tokens, 3 * P);
    assert_int_equal(pages_used(e), 0);
    lt_engine_close(e);
    lt_model_close(m);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) == LT_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_counts),
                                       cmocka_unit_test(what_is_not_committed_is_removed),
                                       cmocka_unit_test(a_new_engine_continues_with_the_same_bits),
                                       cmocka_unit_test(salts_separate_and_erasing_forgets),
                                       cmocka_unit_test(what_does_not_fit_is_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
