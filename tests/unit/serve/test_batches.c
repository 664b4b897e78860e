/* Batches: every line of an input is answered exactly once, in one of two files, also when the
 * server ends meanwhile; what a batch reports, its window, its limits, its owner, and its end. The
 * answers are known: a bias leaves one letter. The shapes are those of OpenAI's description. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

/* A line of an input: four times the letter A, or something wrong. */
#define LINE(id, more)                                                                             \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":"          \
    "{\"prompt\":\"a\",\"max_tokens\":4,\"logit_bias\":{\"33\":100}" more "}}\n"

static int create(const char *key, const char *input, const char *endpoint, const char *window,
                  const char *more) {
    char body[600];
    snprintf(body, sizeof body,
             "{\"input_file_id\":\"%s\",\"endpoint\":\"%s\",\"completion_window\":\"%s\"%s}", input,
             endpoint, window, more);
    return call(key, "POST", "/v1/batches", body);
}

static json_t *begin(const char *key, const char *text, const char *more) {
    char id[64];
    upload(key, text, id);
    if (create(key, id, "/v1/completions", "24h", more) != 200) {
        fail_msg("%s", answer);
    }
    return json_loads(answer, 0, NULL);
}

/* Wait for its end. Takes b. */
static json_t *ended(const char *key, json_t *b) {
    static const char *const states[] = {"completed", "failed", "expired", "cancelled"};
    char path[128];
    snprintf(path, sizeof path, "/v1/batches/%s", text_of(b, "id"));
    for (;;) {
        json_decref(b);
        b = get(key, "GET", path, "");
        for (size_t i = 0; i < 4; i++) {
            if (strcmp(text_of(b, "status"), states[i]) == 0) {
                return b;
            }
        }
        usleep(2000);
    }
}

/* A file of results as a list; NULL: there is none. */
static json_t *results(const char *key, const json_t *b, const char *which) {
    const char *id = json_string_value(json_object_get(b, which));
    json_t *list = json_array();
    char path[160];
    if (id == NULL) {
        json_decref(list);
        return NULL;
    }
    snprintf(path, sizeof path, "/v1/files/%s/content", id);
    assert_int_equal(call(key, "GET", path, ""), 200);
    for (const char *p = answer, *at; (at = strchr(p, '\n')) != NULL; p = at + 1) {
        json_t *row = json_loadb(p, (size_t)(at - p), 0, NULL);
        assert_non_null(row);
        json_array_append_new(list, row);
    }
    return list;
}

static void like(const json_t *got, const char *want) {
    json_t *const expected = served_parse(want);
    if (!served_like(expected, got)) {
        char *text = got != NULL ? json_dumps(got, 0) : strdup("nothing");
        fail_msg("wants %s\n  got %s", want, text);
    }
    json_decref(expected);
}

static void drop(const char *key, const json_t *b) {
    static const char *const members[] = {"input_file_id", "output_file_id", "error_file_id"};
    for (int i = 0; i < 3; i++) {
        const char *id = json_string_value(json_object_get(b, members[i]));
        char path[160];
        if (id != NULL) {
            snprintf(path, sizeof path, "/v1/files/%s", id);
            assert_int_equal(call(key, "DELETE", path, ""), 200);
        }
    }
}

static int metric(const char *name) {
    assert_int_equal(call("one", "GET", "/metrics", ""), 200);
    const char *at = strstr(answer, name);
    assert_non_null(at);
    return atoi(at + strlen(name));
}

/* ---- What it does ---- */

static void every_line_is_answered(void **state) {
    static const char input[] = LINE("r0", "") "{not json\n"
                                               "\n"
                                               " \t\r\n" LINE("r1", ",\"seed\":7") LINE("r0", "")
                                                   LINE("r2", ",\"temperature\":-3")
                                                       LINE("r3", ",\"colour\":\"red\"");
    (void)state;
    const int64_t before = clock_now();
    clock_hurries = true;
    json_t *b = begin("one", input, ",\"metadata\":{\"k\":\"v\"}");
    clock_hurries = false;
    like(b, "{'object': 'batch', 'endpoint': '/v1/completions', 'completion_window': '24h', "
            "'status': 'validating', 'errors': null, 'output_file_id': null, 'error_file_id': "
            "null, 'in_progress_at': null, 'finalizing_at': null, 'completed_at': null, "
            "'failed_at': null, 'expired_at': null, 'cancelling_at': null, 'cancelled_at': null, "
            "'request_counts': {'total': 0, 'completed': 0, 'failed': 0, '#': 3}, "
            "'metadata': {'k': 'v', '#': 1}, '#': 20}");
    assert_true(number_of(b, "created_at") >= before);
    assert_int_equal(number_of(b, "expires_at") - number_of(b, "created_at"), 86400);
    b = ended("one", b);
    like(b, "{'status': 'completed', 'errors': null, 'failed_at': null, 'cancelled_at': null, "
            "'expired_at': null, 'cancelling_at': null, 'request_counts': {'total': 6, "
            "'completed': 2, 'failed': 4}}");
    static const char *const times[] = {"created_at", "in_progress_at", "finalizing_at",
                                        "completed_at"};
    for (int i = 1; i < 4; i++) {
        assert_true(number_of(b, times[i]) >= number_of(b, times[i - 1]) &&
                    number_of(b, times[i]) <= clock_now());
    }
    assert_int_equal(metric("\nlateen_batch_requests_total{result=\"completed\"} "), 2);
    assert_int_equal(metric("\nlateen_batch_requests_total{result=\"failed\"} "), 4);
    assert_int_equal(metric("\nlateen_files "), 3);
    json_t *const good = results("one", b, "output_file_id");
    json_t *const bad = results("one", b, "error_file_id");
    char id[2][160], path[2][160];
    assert_int_equal(json_array_size(good), 2);
    for (int i = 0; i < 2; i++) { /* They end in any order. */
        const json_t *row = json_array_get(good, (size_t)i);
        const bool second = strcmp(text_of(row, "custom_id"), "r1") == 0;
        snprintf(id[i], sizeof id[i], "batch_req_%s_%d", text_of(b, "id") + 6, second ? 5 : 1);
        assert_string_equal(text_of(row, "id"), id[i]);
        like(row, "{'error': null, 'response': {'status_code': 200, 'request_id': '*', 'body': "
                  "{'object': 'text_completion', 'choices': [{'text': 'AAAA'}]}}}");
        assert_true(strlen(text_of(json_object_get(row, "response"), "request_id")) > 8);
    }
    assert_string_not_equal(id[0], id[1]);
    like(bad, "[{'custom_id': null, 'response': null, 'error': {'code': 'invalid_json_line', "
              "'line': 2}}, {'custom_id': 'r0', 'error': {'code': 'duplicate_custom_id', 'line': "
              "6, 'message': '~earlier line'}}, '...']");
    assert_int_equal(json_array_size(bad), 4);
    for (size_t i = 2; i < 4; i++) {
        const json_t *row = json_array_get(bad, i);
        like(row, strcmp(text_of(row, "custom_id"), "r2") == 0
                      ? "{'error': null, 'response': {'status_code': 400, 'body': {'error': "
                        "{'param': 'temperature'}}}}"
                      : "{'error': null, 'custom_id': 'r3', 'response': {'status_code': 400, "
                        "'body': {'error': {'param': 'colour'}}}}");
    }
    static const char *const members[] = {"output_file_id", "error_file_id"};
    for (int i = 0; i < 2; i++) {
        char want[200];
        snprintf(path[i], sizeof path[i], "/v1/files/%s", text_of(b, members[i]));
        snprintf(want, sizeof want,
                 "{'purpose': 'batch_output', 'filename': '%s_%s.jsonl', 'expires_at': null}",
                 text_of(b, "id"), i == 0 ? "output" : "error");
        says("one", "GET", path[i], "", 200, want);
        says("two", "GET", path[i], "", 404, "{'error': {'param': 'file_id'}}");
    }
    drop("one", b);
    json_decref(good);
    json_decref(bad);
    json_decref(b);
}

static void the_results_may_expire(void **state) {
    static const struct {
        const char *more, *param;
    } rows[] = {
        {",\"output_expires_after\":{\"anchor\":\"created_at\",\"seconds\":3599}",
         "expires_after[seconds]"},
        {",\"output_expires_after\":{\"anchor\":\"created\",\"seconds\":3600}",
         "expires_after[anchor]"},
        {",\"output_expires_after\":{\"seconds\":3600}", "expires_after[anchor]"},
        {",\"metadata\":[1]", "metadata"},
    };
    char id[64], path[160];
    (void)state;
    upload("one", LINE("a", ""), id);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(create("one", id, "/v1/completions", "24h", rows[i].more), 400);
        assert_non_null(strstr(answer, rows[i].param));
    }
    snprintf(path, sizeof path, "/v1/files/%s", id);
    says("one", "DELETE", path, "", 200, "{'deleted': true}");
    json_t *b = ended("one", begin("one", LINE("a", ""),
                                   ",\"output_expires_after\":{\"anchor\":\"created_at\","
                                   "\"seconds\":3600}"));
    like(b, "{'error_file_id': null, 'metadata': null, 'request_counts': {'total': 1, "
            "'completed': 1, 'failed': 0}}");
    snprintf(path, sizeof path, "/v1/files/%s", text_of(b, "output_file_id"));
    json_t *const f = get("one", "GET", path, "");
    assert_int_equal(number_of(f, "expires_at") - number_of(f, "created_at"), 3600);
    drop("one", b);
    json_decref(f);
    json_decref(b);
}

/* Inputs with a mark of UTF-8, without a last line end, without a line, and with too many. */
static void inputs(void **state) {
    char many[42 * 3], id[64], path[128];
    (void)state;
    json_t *b = ended("one", begin("one", "\xef\xbb\xbf" LINE("a", "") "[]", ""));
    like(b, "{'status': 'completed', 'request_counts': {'total': 2, 'completed': 1, 'failed': 1}}");
    json_t *bad = results("one", b, "error_file_id");
    like(bad, "[{'error': {'line': 2, 'code': 'invalid_json_line'}}]");
    drop("one", b);
    json_decref(bad);
    json_decref(b);
    b = ended("one", begin("one", "\n\r\n \n", ""));
    like(b, "{'status': 'failed', 'errors': {'object': 'list', 'data': [{'code': 'failed', "
            "'message': 'the input has no line', 'param': null, 'line': null}]}, "
            "'output_file_id': null, 'error_file_id': null, 'completed_at': null, "
            "'failed_at': '>0'}");
    drop("one", b);
    json_decref(b);
    for (int n = 40; n <= 41; n++) { /* Of which 40 are allowed. */
        for (int i = 0; i < n; i++) {
            memcpy(many + 3 * i, "{}\n", 4);
        }
        upload("one", many, id);
        if (n == 40) {
            assert_int_equal(create("one", id, "/v1/completions", "1h", ""), 200);
            b = ended("one", json_loads(answer, 0, NULL));
            like(b, "{'status': 'completed', 'output_file_id': null, 'request_counts': {'total': "
                    "40, 'completed': 0, 'failed': 40}}");
            drop("one", b);
            json_decref(b);
        } else {
            assert_int_equal(create("one", id, "/v1/completions", "1h", ""), 400);
            assert_non_null(strstr(answer, "41 lines; a batch has at most 40 (--batch-lines)"));
            snprintf(path, sizeof path, "/v1/files/%s", id);
            says("one", "DELETE", path, "", 200, "{'deleted': true}"); /* Nothing holds it. */
        }
    }
}

static void windows(void **state) {
    static const struct {
        const char *text;
        int64_t seconds; /* 0: refused. */
    } rows[] = {
        {"7s", 7},       {"90m", 5400},    {"24h", 86400}, {"30d", 2592000}, {"2592000s", 2592000},
        {"2592001s", 0}, {"31d", 0},       {"721h", 0},    {"43201m", 0},    {"0h", 0},
        {"h", 0},        {"24", 0},        {"24hh", 0},    {"1w", 0},        {"", 0},
        {"-1h", 0},      {"10000000s", 0}, {"1 h", 0}};
    char id[64], path[128];
    (void)state;
    upload("one", "[]\n", id);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int status = create("one", id, "/v1/embeddings", rows[i].text, "");
        json_t *b = json_loads(answer, 0, NULL);
        assert_int_equal(status, rows[i].seconds > 0 ? 200 : 400);
        if (status == 200) {
            assert_int_equal(number_of(b, "expires_at") - number_of(b, "created_at"),
                             rows[i].seconds);
            assert_string_equal(text_of(b, "completion_window"), rows[i].text);
            b = ended("one", b);
            snprintf(path, sizeof path, "/v1/files/%s", text_of(b, "error_file_id"));
            says("one", "DELETE", path, "", 200, "{'deleted': true}");
        } else {
            like(b, "{'error': {'param': 'completion_window', 'message': '~up to 30d'}}");
        }
        json_decref(b);
    }
    snprintf(path, sizeof path, "/v1/files/%s", id);
    says("one", "DELETE", path, "", 200, "{'deleted': true}");
}

static void what_is_refused(void **state) {
    char id[64], path[128];
    (void)state;
    upload("one", LINE("a", ""), id);
    assert_int_equal(create("one", id, "/v1/responses", "24h", ""), 400);
    assert_non_null(strstr(answer, "\"param\":\"endpoint\""));
    assert_int_equal(create("two", id, "/v1/completions", "24h", ""), 400);
    assert_non_null(strstr(answer, "\"param\":\"input_file_id\""));
    assert_int_equal(create("one", "file-none", "/v1/completions", "24h", ""), 400);
    assert_non_null(strstr(answer, "there is no file file-none whose purpose is batch"));
    says("one", "POST", "/v1/batches", "{'endpoint': '/v1/completions'}", 400,
         "{'error': {'message': '~are required'}}");
    assert_int_equal(
        post_form("one", "/v1/files",
                  (form_part[]){{"purpose", NULL, "fine-tune", 0}, {"file", "x", LINE("a", ""), 0}},
                  2),
        200);
    json_t *const other = json_loads(answer, 0, NULL);
    assert_int_equal(create("one", text_of(other, "id"), "/v1/completions", "24h", ""), 400);
    assert_non_null(strstr(answer, "whose purpose is batch"));
    says("one", "GET", "/v1/batches/batch_none", "", 404,
         "{'error': {'message': '~No batch found with id'}}");
    snprintf(path, sizeof path, "/v1/files/%s", text_of(other, "id"));
    says("one", "DELETE", path, "", 200, "{'deleted': true}");
    snprintf(path, sizeof path, "/v1/files/%s", id);
    says("one", "DELETE", path, "", 200, "{'deleted': true}");
    json_decref(other);
}

/* ---- Its end ---- */

/* Lines of 400 tokens, of which eight run at once. */
static const char *long_lines(int n) {
    static char text[40 * 256];
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "{\"custom_id\":\"l%d\",\"method\":\"POST\",\"url\":"
                               "\"/v1/completions\",\"body\":{\"prompt\":\"a\",\"max_tokens\":400,"
                               "\"logit_bias\":{\"33\":100}}}\n",
                               i);
    }
    return text;
}

/* Each line is in one of the two files, and the numbers are those of the batch. */
static void all_lines_once(const char *key, const json_t *b, int n, const char *code) {
    json_t *const good = results(key, b, "output_file_id");
    json_t *const bad = results(key, b, "error_file_id");
    bool seen[40] = {false};
    char want[200];
    for (size_t i = 0; i < json_array_size(good) + json_array_size(bad); i++) {
        const bool is_good = i < json_array_size(good);
        const json_t *row = is_good ? json_array_get(good, i)
                                    : json_array_get(bad, i - json_array_size(good));
        const int line = atoi(text_of(row, "custom_id") + 1);
        assert_true(line >= 0 && line < n && !seen[line]);
        seen[line] = true;
        if (!is_good) {
            assert_string_equal(text_of(json_object_get(row, "error"), "code"), code);
            assert_int_equal(number_of(json_object_get(row, "error"), "line"), line + 1);
        }
    }
    for (int i = 0; i < n; i++) {
        assert_true(seen[i]);
    }
    snprintf(want, sizeof want,
             "{'request_counts': {'total': %d, 'completed': %zu, 'failed': %zu}}", n,
             json_array_size(good), json_array_size(bad));
    like(b, want);
    json_decref(good);
    json_decref(bad);
}

static void it_is_cancelled(void **state) {
    char path[160], input[160], list[400];
    (void)state;
    json_t *b = begin("one", long_lines(40), ""), *second;
    snprintf(input, sizeof input, "/v1/files/%s", text_of(b, "input_file_id"));
    says("one", "DELETE", input, "", 400, "{'error': {'message': '~has not ended'}}");
    second = begin("one", long_lines(1), "");
    assert_int_equal(create("one", text_of(b, "input_file_id"), "/v1/completions", "1h", ""), 429);
    assert_non_null(strstr(answer, "2 batches have not ended yet (--batches)"));
    assert_non_null(strstr(answer, "\"code\":\"batch_limit\""));
    snprintf(list, sizeof list, "{'data': [{'id': '%s'}, {'id': '%s'}, '...'], 'first_id': '%s'}",
             text_of(second, "id"), text_of(b, "id"), text_of(second, "id"));
    says("one", "GET", "/v1/batches", "", 200, list);
    says("two", "GET", "/v1/batches", "", 200, "{'data': []}");
    assert_int_equal(metric("\nlateen_batches_unfinished "), 2);
    assert_true(metric("\nlateen_batch_requests_left ") <= 41);
    snprintf(path, sizeof path, "/v1/batches/%s/cancel", text_of(b, "id"));
    says("two", "POST", path, "", 404, "{'error': {'param': 'batch_id'}}");
    says("one", "POST", path, "", 200, "{'status': 'finalizing', 'cancelling_at': '>0'}");
    b = ended("one", b);
    like(b, "{'status': 'cancelled', 'cancelled_at': '>0', 'completed_at': null}");
    all_lines_once("one", b, 40, "batch_cancelled");
    says("one", "POST", path, "", 400, "{'error': {'param': 'batch_id', 'message': '~has ended'}}");
    second = ended("one", second);
    like(second, "{'status': 'completed', 'request_counts': {'completed': 1}}");
    assert_int_equal(metric("\nlateen_batches_unfinished "), 0);
    assert_int_equal(metric("\nlateen_batch_requests_left "), 0);
    snprintf(path, sizeof path, "/v1/batches/%s/cancelled", text_of(b, "id"));
    says("one", "POST", path, "", 404, "{'error': {'param': 'batch_id'}}");
    drop("one", b);
    drop("one", second);
    json_decref(b);
    json_decref(second);
}

static void again(void) {
    served_end(&s);
    served_start_with(&s, "chatml", false, with_keys);
}

/* The server ends while a batch runs, and leaves a half line, as a crash of the machine does. */
static void it_outlives_the_server(void **state) {
    char name[128], path[LT_PATH_BYTES];
    (void)state;
    json_t *b = begin("one", long_lines(24), ",\"metadata\":{\"a\":\"b\"}"), *now;
    snprintf(path, sizeof path, "/v1/batches/%s", text_of(b, "id"));
    for (;;) {
        now = get("one", "GET", path, "");
        const int64_t n = number_of(json_object_get(now, "request_counts"), "completed");
        json_decref(now);
        if (n > 0) {
            break;
        }
        usleep(2000);
    }
    served_end(&s);
    snprintf(name, sizeof name, "file-%s-output", text_of(b, "id"));
    path_of(path, "files", name);
    FILE *out = fopen(path, "ab");
    assert_non_null(out);
    fputs("{\"id\":\"batch_req_", out);
    fclose(out);
    served_start_with(&s, "chatml", false, with_keys);
    b = ended("one", b);
    like(b, "{'status': 'completed', 'metadata': {'a': 'b'}}");
    all_lines_once("one", b, 24, "");
    again();
    snprintf(path, sizeof path, "/v1/batches/%s", text_of(b, "id"));
    now = get("one", "GET", path, "");
    assert_true(json_equal(b, now)); /* As it was. */
    drop("one", b);
    json_decref(now);
    json_decref(b);
}

/* The order of batches is their time in microseconds, which their files have. */
static void its_order(void **state) {
    char path[LT_PATH_BYTES], name[100];
    json_error_t why;
    (void)state;
    json_t *b = ended("one", begin("one", "[]\n", ""));
    snprintf(name, sizeof name, "%s.json", text_of(b, "id"));
    path_of(path, "batches", name);
    json_t *const file = json_load_file(path, 0, &why);
    const int64_t us = number_of(file, "order_us"), s_of = number_of(b, "created_at");
    assert_true(us >= s_of * 1000000 && us < (s_of + 2) * 1000000);
    drop("one", b);
    json_decref(file);
    json_decref(b);
}

/* Batches as a server that has ended may leave them: counts are those of the results, and what was
 * being cancelled is cancelled. */
static void what_had_begun(void **state) {
    static const char input[] = LINE("r0", "") "\n" LINE("r1", "") "{\n" LINE("r2", "");
    static const char *const ids[] = {"batch_ran", "batch_stops"};
    char file[64], owner[65] = "";
    (void)state;
    upload("one", input, file);
    assert_true(lt_owner_name("one", owner));
    served_end(&s);
    for (size_t i = 0; i < 2; i++) {
        char name[64], text[900];
        snprintf(name, sizeof name, "%s.json", ids[i]);
        snprintf(text, sizeof text,
                 "{\"owner\":\"%s\",\"output_s\":0,\"order_us\":%zu,\"batch\":{\"id\":\"%s\","
                 "\"endpoint\":\"/v1/completions\",\"input_file_id\":\"%s\","
                 "\"completion_window\":\"24h\",\"status\":\"%s\",\"output_file_id\":null,"
                 "\"created_at\":5,\"expires_at\":9999999999,"
                 "\"request_counts\":{\"total\":4,\"completed\":2,\"failed\":1}}}",
                 owner, i, ids[i], file, i == 0 ? "validating" : "cancelling");
        put_on_disk("batches", name, text);
        snprintf(name, sizeof name, "file-%s-output", ids[i]);
        snprintf(text, sizeof text,
                 "{\"id\":\"batch_req_%s_3\",\"custom_id\":\"r1\",\"response\":null,\"error\":"
                 "null}\n",
                 ids[i] + 6);
        put_on_disk("files", name, text);
    }
    served_start_with(&s, "chatml", false, with_keys);
    json_t *b = ended("one", get("one", "GET", "/v1/batches/batch_ran", ""));
    like(b, "{'status': 'completed', 'request_counts': {'total': 4, 'completed': 3, 'failed': 1}}");
    json_t *rows = results("one", b, "output_file_id");
    like(rows, "[{'custom_id': 'r1'}, '...', '*']");
    assert_int_equal(json_array_size(rows), 3);
    json_decref(rows);
    json_decref(b);
    b = ended("one", get("one", "GET", "/v1/batches/batch_stops", ""));
    like(b, "{'status': 'cancelled', 'request_counts': {'total': 4, 'completed': 1, 'failed': 3}}");
    rows = results("one", b, "error_file_id");
    like(rows,
         "[{'custom_id': 'r0', 'error': {'line': 1, 'code': 'batch_cancelled'}}, {'custom_id':"
         " null, 'error': {'line': 4}}, {'custom_id': 'r2', 'error': {'line': 5, 'code': "
         "'batch_cancelled'}}]");
    json_decref(rows);
    json_decref(b);
}

/* 30 days after its end a batch is forgotten; one whose input is gone has failed. */
static void what_a_folder_may_hold(void **state) {
    static const struct {
        const char *id;
        int64_t before_s;
        const char *status, *want; /* want NULL: it is not there. */
    } rows[] = {
        {"batch_young", 30 * 86400 - 60, "completed", "{'status': 'completed'}"},
        {"batch_old", 30 * 86400 + 60, "completed", NULL},
        {"batch_lost", 60, "in_progress",
         "{'status': 'failed', 'errors': {'data': [{'message': '~the input file-gone does not "
         "exist'}]}}"},
        {"batch_odd", 60, "sleeping", NULL},
        {"other_1", 60, "completed", NULL},
    };
    (void)state;
    served_end(&s);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64], text[900], owner[65] = "";
        assert_true(lt_owner_name("one", owner));
        snprintf(name, sizeof name, "%s.json", rows[i].id);
        snprintf(text, sizeof text,
                 "{\"owner\":\"%s\",\"output_s\":0,\"order_us\":%zu,\"batch\":{\"id\":\"%s\","
                 "\"endpoint\":\"/v1/embeddings\",\"input_file_id\":\"file-gone\","
                 "\"completion_window\":\"24h\",\"status\":\"%s\",\"output_file_id\":null,"
                 "\"created_at\":5,\"completed_at\":%lld,\"expires_at\":9,"
                 "\"request_counts\":{\"total\":3,\"completed\":2,\"failed\":1}}}",
                 owner, i, rows[i].id, rows[i].status, (long long)(clock_now() - rows[i].before_s));
        put_on_disk("batches", name, text);
    }
    served_start_with(&s, "chatml", false, with_keys);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[128];
        snprintf(path, sizeof path, "/v1/batches/%s", rows[i].id);
        says("one", "GET", path, "", rows[i].want != NULL ? 200 : 404,
             rows[i].want != NULL ? rows[i].want : "{'error': {'param': 'batch_id'}}");
    }
    says("one", "GET", "/v1/batches?order=asc", "", 200,
         "{'data': [{'id': 'batch_young', 'created_at': 5, 'expires_at': 9, 'request_counts': "
         "{'total': 3, 'completed': 2, 'failed': 1}}, {'id': 'batch_lost'}, '...']}");
    assert_false(is_on_disk("batches", "batch_old.json"));
    assert_true(is_on_disk("batches", "batch_young.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_is_answered),
        cmocka_unit_test(the_results_may_expire),
        cmocka_unit_test(inputs),
        cmocka_unit_test(windows),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(it_is_cancelled),
        cmocka_unit_test(it_outlives_the_server),
        cmocka_unit_test(its_order),
        cmocka_unit_test(what_a_folder_may_hold),
        cmocka_unit_test(what_had_begun),
    };
    return cmocka_run_group_tests(tests, start, end);
}
