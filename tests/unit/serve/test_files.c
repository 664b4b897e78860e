/* Files of /v1/files: what is kept, for whom, up to which limits and until when, and what is left
 * of a folder after a crash. The shapes and bounds are those of OpenAI's description of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/api/files/files.h"
#include "unit/clock.h"
#include "unit/serve/files.h"

static int start(void **state) {
    if (make_folder(state) != 0) {
        return 1;
    }
    served_start_with(&s, "chatml", false, with_keys);
    return 0;
}

static int end(void **state) {
    served_end(&s);
    return remove_folder(state);
}

/* ---- Over HTTP ---- */

static void an_upload_is_described(void **state) {
    static const char data[] = "a\r\nb\0c\n--edge"; /* Bytes of any value, and a false edge. */
    char id[64], path[128];
    (void)state;
    const int64_t before = clock_now();
    assert_int_equal(post_form("one", "/v1/files",
                               (form_part[]){{"purpose", NULL, "fine-tune", 0},
                                             {"file", "a b.jsonl", data, sizeof data - 1}},
                               2),
                     200);
    json_t *const f = json_loads(answer, 0, NULL);
    json_t *const want = served_parse("{'object': 'file', 'bytes': 13, 'filename': 'a b.jsonl', "
                                      "'purpose': 'fine-tune', 'status': 'processed', "
                                      "'status_details': null, 'expires_at': null, '#': 9}");
    assert_true(served_like(want, f));
    assert_true(number_of(f, "created_at") >= before && number_of(f, "created_at") <= clock_now());
    snprintf(id, sizeof id, "%s", text_of(f, "id"));
    assert_int_equal(strncmp(id, "file-", 5), 0);
    snprintf(path, sizeof path, "/v1/files/%s", id);
    json_t *const again = get("one", "GET", path, "");
    assert_true(json_equal(f, again));
    snprintf(path, sizeof path, "/v1/files/%s/content", id);
    assert_int_equal(call("one", "GET", path, ""), 200);
    assert_memory_equal(answer, data, sizeof data - 1);
    snprintf(path, sizeof path, "/v1/files/%s/contents", id);
    says("one", "GET", path, "", 404, "{'error': {'message': '~No such File object: file-'}}");
    snprintf(path, sizeof path, "/v1/files/%s/content", id);
    says("two", "GET", path, "", 404, "{'error': {'param': 'file_id'}}");
    snprintf(path, sizeof path, "/v1/files/%s", id);
    says("two", "GET", path, "", 404, "{'error': {'param': 'file_id'}}");
    says("two", "DELETE", path, "", 404, "{'error': {'param': 'file_id'}}");
    char want_deleted[160];
    snprintf(want_deleted, sizeof want_deleted,
             "{'id': '%s', 'object': 'file', 'deleted': true, '#': 3}", id);
    says("one", "DELETE", path, "", 200, want_deleted);
    says("one", "DELETE", path, "", 404, "{'error': {'param': 'file_id'}}");
    says("one", "GET", path, "", 404, "{'error': {'param': 'file_id'}}");
    assert_false(is_on_disk("files", id));
    json_decref(again);
    json_decref(want);
    json_decref(f);
}

static void no_path_is_an_id(void **state) {
    (void)state;
    says("one", "GET", "/v1/files/", "", 404, "{'error': {'message': 'No such File object: '}}");
    says("one", "GET", "/v1/files/..", "", 404, "{'error': {'param': 'file_id'}}");
    says("one", "GET", "/v1/files/none/content", "", 404,
         "{'error': {'message': 'No such File object: none'}}");
    char path[128] = "/v1/files/", want[200];
    memset(path + 10, 'x', 90);
    snprintf(want, sizeof want, "{'error': {'message': 'No such File object: %.80s'}}", path + 10);
    says("one", "GET", path, "", 404, want);
}

static void wrong_forms(void **state) {
    static const struct {
        form_part parts[4];
        int n;
        const char *param, *message;
    } rows[] = {
        {{{"purpose", NULL, "batch", 0}}, 1, "file", "no 'file'"},
        {{{"purpose", NULL, "batch", 0}, {"file", "x", "", 0}}, 2, "file", "an empty one"},
        {{{"file", "x", "y", 0}}, 1, "purpose", "no 'purpose'"},
        {{{"purpose", NULL, "batches", 0}, {"file", "x", "y", 0}}, 2, "purpose", "batch or fine"},
        {{{"purpose", NULL, "batc", 0}, {"file", "x", "y", 0}}, 2, "purpose", "batch or fine"},
        {{{"purpose", NULL, "batch", 0}, {"file", "x", "y", 0}, {"colour", NULL, "z", 0}},
         3,
         "colour",
         "'colour' is not known"},
        {{{"purpose", NULL, "batch", 0}, {"file", "\xff", "y", 0}}, 2, "file", "UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char param[64];
        assert_int_equal(post_form("one", "/v1/files", rows[i].parts, rows[i].n), 400);
        snprintf(param, sizeof param, "\"param\":\"%s\"", rows[i].param);
        if (strstr(answer, param) == NULL || strstr(answer, rows[i].message) == NULL) {
            fail_msg("row %zu: %s", i, answer);
        }
    }
    says("one", "GET", "/v1/files", "", 200, "{'data': []}");
}

/* 3,600 to 2,592,000 seconds after its creation. */
static void the_time_until_it_expires(void **state) {
    static const struct {
        const char *seconds, *anchor;
        int64_t want; /* 0: refused. */
        const char *param;
    } rows[] = {
        {"3600", "created_at", 3600, ""},
        {"2592000", "created_at", 2592000, ""},
        {"3599", "created_at", 0, "expires_after[seconds]"},
        {"2592001", "created_at", 0, "expires_after[seconds]"},
        {"3600.5", "created_at", 0, "expires_after[seconds]"},
        {"99999999999999999999999", "created_at", 0, "expires_after[seconds]"},
        {"000000000000000000000003600", "created_at", 0, "expires_after[seconds]"},
        {"3600", "now", 0, "expires_after[anchor]"},
        {"3600", NULL, 0, "expires_after[anchor]"},
        {NULL, "created_at", 0, "expires_after[seconds]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        form_part parts[4] = {{"purpose", NULL, "batch", 0}, {"file", NULL, "y", 0}};
        int n = 2;
        if (rows[i].seconds != NULL) {
            parts[n++] = (form_part){"expires_after[seconds]", NULL, rows[i].seconds, 0};
        }
        if (rows[i].anchor != NULL) {
            parts[n++] = (form_part){"expires_after[anchor]", NULL, rows[i].anchor, 0};
        }
        const int status = post_form("two", "/v1/files", parts, n);
        json_t *const f = json_loads(answer, 0, NULL);
        if (rows[i].want == 0) {
            assert_int_equal(status, 400);
            assert_string_equal(text_of(json_object_get(f, "error"), "param"), rows[i].param);
        } else {
            assert_int_equal(status, 200);
            assert_int_equal(number_of(f, "expires_at") - number_of(f, "created_at"), rows[i].want);
            assert_string_equal(text_of(f, "filename"), "upload");
        }
        json_decref(f);
    }
}

static void lists_and_limits(void **state) {
    char ids[6][64], path[200], want[600];
    (void)state;
    for (int i = 0; i < 6; i++) {
        const char *purpose = i % 2 == 0 ? "batch" : "fine-tune";
        assert_int_equal(
            post_form("one", "/v1/files",
                      (form_part[]){{"purpose", NULL, purpose, 0}, {"file", "x", "abc", 0}}, 2),
            200);
        json_t *const f = json_loads(answer, 0, NULL);
        snprintf(ids[i], sizeof ids[i], "%s", text_of(f, "id"));
        json_decref(f);
    }
    assert_int_equal(post_form("one", "/v1/files",
                               (form_part[]){{"purpose", NULL, "batch", 0}, {"file", "x", "d", 0}},
                               2),
                     400);
    assert_non_null(strstr(answer, "6 files of 18 bytes are kept; with this one of 1 bytes"));
    snprintf(want, sizeof want, /* The newest first. */
             "{'object': 'list', 'data': [{'id': '%s'}, {'id': '%s'}, '...', {'id': '%s'}], "
             "'first_id': '%s', 'last_id': '%s', 'has_more': false}",
             ids[5], ids[4], ids[0], ids[5], ids[0]);
    says("one", "GET", "/v1/files", "", 200, want);
    snprintf(want, sizeof want, "{'data': [{'id': '%s'}, {'id': '%s'}, {'id': '%s'}]}", ids[1],
             ids[3], ids[5]);
    says("one", "GET", "/v1/files?purpose=fine-tune&order=asc", "", 200, want);
    snprintf(path, sizeof path, "/v1/files?order=asc&limit=2&after=%s", ids[1]);
    snprintf(want, sizeof want, "{'data': [{'id': '%s'}, {'id': '%s'}], 'has_more': true}", ids[2],
             ids[3]);
    says("one", "GET", path, "", 200, want);
    says("one", "GET", "/v1/files?limit=10000", "", 200, "{'has_more': false}");
    says("one", "GET", "/v1/files?limit=10001", "", 400, "{'error': {'param': 'limit'}}");
    says("two", "GET", "/v1/files?purpose=fine-tune", "", 200, "{'data': [], 'last_id': null}");
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "/v1/files/%s", ids[i]);
        says("one", "DELETE", path, "", 200, "{'deleted': true}");
    }
}

/* ---- The folder ---- */

static char dir[LT_PATH_BYTES];

static lt_files *open_files(int64_t max_files, int64_t max_bytes) {
    lt_files *f = NULL;
    assert_int_equal(lt_path_join(dir, folder, "own"), LT_OK);
    assert_int_equal(lt_files_open(&f, &(lt_files_options){dir, max_files, max_bytes}), LT_OK);
    return f;
}

static bool put(lt_files *f, const char *id, const char *owner, const char *text, int64_t expires,
                lt_api_error *e) {
    lt_file_entry entry = {.purpose = "batch", .created = clock_now(), .expires = expires};
    snprintf(entry.id, sizeof entry.id, "%s", id);
    snprintf(entry.owner, sizeof entry.owner, "%s", owner);
    snprintf(entry.name, sizeof entry.name, "name of %s", id);
    return lt_files_put(f, &entry, text, strlen(text), e);
}

static bool has(lt_files *f, const char *id, const char *owner) {
    lt_file_entry e;
    return lt_files_get(f, id, owner, false, &e);
}

static void limits_are_per_owner(void **state) {
    lt_files *f = open_files(2, 10);
    lt_api_error e = {0};
    (void)state;
    assert_true(put(f, "file-a", "x", "1234567890", 0, &e)); /* All bytes, but not more. */
    assert_false(put(f, "file-b", "x", "1", 0, &e));
    assert_non_null(strstr(e.message, "1 files of 10 bytes are kept; with this one of 1 bytes"));
    assert_non_null(strstr(e.message, "more than 2 files (--files) or 10 bytes (--files-bytes)"));
    assert_false(is_on_disk("own/files", "file-b"));
    assert_false(put(f, "file-c", "y", "12345678901", 0, &e));
    assert_true(put(f, "file-d", "y", "1", 0, &e));
    assert_true(put(f, "file-e", "y", "2", 0, &e));
    assert_false(put(f, "file-f", "y", "3", 0, &e));
    assert_int_equal(lt_files_get_stats(f).files, 3);
    assert_int_equal(lt_files_get_stats(f).bytes, 12);
    assert_true(lt_files_delete(f, "file-d", "y", &e));
    assert_true(put(f, "file-f", "y", "3", 0, &e));
    for (const char *id = "adef"; *id != '\0'; id++) {
        char name[] = "file-?";
        name[5] = *id;
        (void)lt_files_delete(f, name, *id == 'a' ? "x" : "y", &e);
    }
    assert_int_equal(lt_files_get_stats(f).files, 0);
    lt_files_close(f);
}

/* Results of a batch lie at their path already, count towards no limit, and may be put twice. */
static void results_have_no_limit(void **state) {
    lt_files *f = open_files(1, 3);
    lt_api_error e = {0};
    lt_file_entry entry = {.id = "file-batch_1-output", .name = "n", .purpose = "batch_output"};
    lt_file_entry got;
    (void)state;
    assert_true(put(f, "file-a", "", "abc", 0, &e));
    put_on_disk("own/files", entry.id, "12345");
    assert_true(lt_files_put(f, &entry, NULL, 0, &e));
    assert_true(lt_files_put(f, &entry, NULL, 0, &e));
    assert_int_equal(lt_files_get_stats(f).files, 2);
    assert_true(lt_files_get(f, entry.id, "", false, &got));
    assert_int_equal(got.bytes, 5);
    snprintf(entry.id, sizeof entry.id, "file-batch_2-output"); /* It does not lie there. */
    assert_false(lt_files_put(f, &entry, NULL, 0, &e));
    assert_true(lt_files_delete(f, "file-a", "", &e));
    assert_true(lt_files_delete(f, "file-batch_1-output", "", &e));
    lt_files_close(f);
}

static void what_is_held_stays(void **state) {
    lt_files *f = open_files(10, 1000);
    lt_api_error e = {0};
    lt_file_entry got;
    const int64_t soon = clock_now() + 100;
    size_t n = 0;
    (void)state;
    assert_true(put(f, "file-old", "", "x", soon - 100, &e));
    assert_false(has(f, "file-old", "")); /* Its time is over already. */
    assert_false(is_on_disk("own/files", "file-old"));
    assert_false(is_on_disk("own/files", "file-old.json"));
    assert_true(put(f, "file-held", "", "x", soon, &e));
    assert_true(put(f, "file-later", "", "x", soon + 1000, &e));
    assert_true(lt_files_get(f, "file-held", "", true, &got));
    assert_true(lt_files_get(f, "file-held", "", true, &got));
    assert_false(lt_files_get(f, "file-held", "other", true, &got)); /* And does not hold it. */
    assert_false(lt_files_delete(f, "file-held", "", &e));
    assert_non_null(strstr(e.message, "file-held is the input of a batch or a job"));
    clock_ahead_s += 100;
    assert_true(has(f, "file-held", ""));
    lt_files_release(f, "file-held");
    assert_true(has(f, "file-held", ""));
    lt_files_release(f, "file-held");
    lt_file_entry *list = lt_files_list(f, "", &n);
    assert_int_equal(n, 1);
    assert_string_equal(list[0].id, "file-later");
    free(list);
    lt_files_release(f, "file-later"); /* Nobody holds it: nothing changes. */
    assert_true(lt_files_delete(f, "file-later", "", &e));
    lt_files_close(f);
}

#define DESCRIBED(id, order, more)                                                                 \
    "{\"id\":\"" id "\",\"owner\":\"o\",\"filename\":\"n\",\"purpose\":\"batch\",\"created_at\":5" \
    ",\"order_us\":" order ",\"expires_at\":0" more "}"

static void a_folder_after_a_crash(void **state) {
    lt_files *f = open_files(100, 1000);
    lt_api_error e = {0};
    lt_file_entry got, *list;
    size_t n = 0;
    (void)state;
    assert_true(put(f, "file-kept", "o", "four", 0, &e));
    lt_files_close(f);
    put_on_disk("own/files", "file-2", "22");
    put_on_disk("own/files", "file-2.json", DESCRIBED("file-2", "1", ""));
    put_on_disk("own/files", "file-1", "1");
    put_on_disk("own/files", "file-1.json", DESCRIBED("file-1", "2", ""));
    put_on_disk("own/files", "file-12.json", DESCRIBED("file-1", "2", "")); /* Another's id. */
    put_on_disk("own/files", "file-cut", "no description");
    put_on_disk("own/files", "file-kept.json.1.tmp", "a description that was not finished");
    put_on_disk("own/files", "file-batch_7-output", "of a batch that goes on");
    put_on_disk("own/files", "file-batch_7-output.tmp", "");
    put_on_disk("own/files", "file-bare.json", DESCRIBED("file-bare", "3", ""));
    put_on_disk("own/files", "file-x", "x");
    put_on_disk("own/files", "file-x.json", DESCRIBED("file-y", "4", ""));
    put_on_disk("own/files", "file-z", "z");
    put_on_disk("own/files", "file-z.json", "{\"id\": \"file-z\"}");
    f = open_files(100, 1000);
    list = lt_files_list(f, "o", &n);
    assert_int_equal(n, 3); /* By their order_us. */
    assert_string_equal(list[0].id, "file-2");
    assert_string_equal(list[1].id, "file-1");
    assert_string_equal(list[2].id, "file-kept");
    assert_int_equal(list[0].bytes, 2);
    assert_int_equal(list[1].created, 5);
    assert_string_equal(list[2].name, "name of file-kept");
    assert_true(list[2].order_us >= list[2].created * 1000000);
    free(list);
    assert_false(is_on_disk("own/files", "file-cut"));
    assert_false(is_on_disk("own/files", "file-kept.json.1.tmp"));
    assert_false(is_on_disk("own/files", "file-batch_7-output.tmp"));
    assert_true(is_on_disk("own/files", "file-batch_7-output"));
    assert_true(is_on_disk("own/files", "file-kept"));
    assert_false(lt_files_get(f, "file-1", "", false, &got));
    lt_files_close(f);
}

/* The longest names that a description may have, and those that are one longer. */
static void lengths_of_a_description(void **state) {
    static const int most[3] = {LT_FILE_ID_BYTES - 1, LT_OWNER_NAME_BYTES - 1,
                                LT_FILE_NAME_BYTES - 1};
    (void)state;
    for (int longer = -1; longer < 3; longer++) {
        char names[3][300], file[320], text[1200];
        lt_file_entry e;
        for (int i = 0; i < 3; i++) {
            memset(names[i], 'x', sizeof names[i]);
            names[i][most[i] + (i == longer)] = '\0';
        }
        snprintf(file, sizeof file, "%s.json", names[0]);
        snprintf(text, sizeof text,
                 "{\"id\":\"%s\",\"owner\":\"%s\",\"filename\":\"%s\",\"purpose\":\"batch\","
                 "\"created_at\":5,\"order_us\":6,\"expires_at\":0}",
                 names[0], names[1], names[2]);
        put_on_disk("own/files", names[0], "x");
        put_on_disk("own/files", file, text);
        lt_files *f = open_files(100, 1000);
        const bool found = lt_files_get(f, names[0], names[1], false, &e);
        assert_int_equal(found, longer < 0);
        assert_true(!found || strcmp(e.name, names[2]) == 0);
        lt_files_close(f);
    }
}

static void owners_are_digests(void **state) {
    char name[LT_OWNER_NAME_BYTES] = "?";
    (void)state;
    assert_true(lt_owner_name("", name));
    assert_string_equal(name, "");
    assert_true(lt_owner_name("abc", name)); /* FIPS 180-2, B.1. */
    assert_string_equal(name, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_upload_is_described),
        cmocka_unit_test(no_path_is_an_id),
        cmocka_unit_test(wrong_forms),
        cmocka_unit_test(the_time_until_it_expires),
        cmocka_unit_test(lists_and_limits),
        cmocka_unit_test(limits_are_per_owner),
        cmocka_unit_test(results_have_no_limit),
        cmocka_unit_test(what_is_held_stays),
        cmocka_unit_test(a_folder_after_a_crash),
        cmocka_unit_test(owners_are_digests),
        cmocka_unit_test(lengths_of_a_description),
    };
    return cmocka_run_group_tests(tests, start, end);
}
