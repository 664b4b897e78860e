/* Lines of a batch: which lines are requests, what is wrong with others; and results that name
 * the line they answer, complete or cut off. The shapes are those of OpenAI's documentation of
 * batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "serve/api/files/batch_line.h"

#define CHAT   "/v1/chat/completions"
#define PREFIX "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"" CHAT "\", "

static void lines(void **state) {
    static const struct {
        const char *text, *code, *custom_id;
    } cases[] = {
        {PREFIX "\"body\": {\"messages\": []}}", NULL, "a"},
        {PREFIX "\"body\": {\"stream\": false}}", NULL, "a"},
        {PREFIX "\"body\": {\"stream\": true}}", "invalid_body", "a"},
        {PREFIX "\"body\": []}", "missing_body", "a"},
        {PREFIX "\"body\": {}, \"more\": 1}", "unknown_member", "a"},
        {"{\"custom_id\": \"a\", \"method\": \"GET\", \"url\": \"" CHAT "\", \"body\": {}}",
         "invalid_method", "a"},
        {"{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/x\", \"body\": {}}",
         "mismatched_url", "a"},
        {"{\"custom_id\": 7}", "missing_custom_id", NULL},
        {"{\"custom_id\": \"\"}", "missing_custom_id", NULL},
        {"{\"custom_id\": \"a\\u0000b\"}", "missing_custom_id", NULL},
        {"[]", "invalid_json_line", NULL},
        {"{\"custom_id\": \"\xff\"}", "invalid_json_line", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_batch_line l;
        const bool ok = lt_batch_line_read(&l, cases[i].text, strlen(cases[i].text), CHAT);
        assert_int_equal(ok, cases[i].code == NULL);
        if (!ok) {
            assert_string_equal(l.code, cases[i].code);
            assert_true(l.message[0] != '\0');
        }
        assert_int_equal(l.custom_id != NULL, cases[i].custom_id != NULL);
        assert_true(l.custom_id == NULL || strcmp(l.custom_id, cases[i].custom_id) == 0);
        lt_batch_line_free(&l);
    }
    assert_true(lt_batch_line_is_blank(" \t\r", 3));
    assert_true(lt_batch_line_is_blank("", 0));
    assert_false(lt_batch_line_is_blank(" x", 2));
}

static void results_name_their_line(void **state) {
    lt_json_out o = {0};
    json_t *tree, *response;
    (void)state;

    lt_batch_put_answer(&o, "batch_77", 12, "say \"hi\"", 200, "x-request-id: r1\r\nVary: x\r\n",
                        "{\"a\":1}", 7);
    assert_false(o.failed);
    assert_int_equal(o.data[o.n - 1], '\n');
    assert_null(memchr(o.data, '\n', o.n - 1));
    assert_int_equal(lt_batch_result_line(o.data, o.n - 1, "batch_77"), 12);
    assert_int_equal(lt_batch_result_line(o.data, o.n - 1, "batch_7"), 0);
    assert_int_equal(lt_batch_result_line(o.data, 10, "batch_77"), 0);
    tree = lt_json_loadb(o.data, o.n, 0, NULL);
    response = json_object_get(tree, "response");
    assert_string_equal(json_string_value(json_object_get(tree, "id")), "batch_req_77_12");
    assert_string_equal(json_string_value(json_object_get(tree, "custom_id")), "say \"hi\"");
    assert_string_equal(json_string_value(json_object_get(response, "request_id")), "r1");
    assert_int_equal(json_integer_value(json_object_get(response, "status_code")), 200);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(response, "body"), "a")),
                     1);
    assert_true(json_is_null(json_object_get(tree, "error")));
    json_decref(tree);

    lt_out_clear(&o);
    lt_batch_put_error(&o, "batch_77", 3, NULL, "invalid_json_line", "why");
    lt_batch_put_error(&o, "batch_77", 4, "b", "batch_expired", "late"); /* One after another. */
    tree = lt_json_loadb(o.data, (size_t)(strchr(o.data, '\n') - o.data), 0, NULL);
    assert_true(json_is_null(json_object_get(tree, "custom_id")));
    assert_true(json_is_null(json_object_get(tree, "response")));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(tree, "error"), "line")),
                     3);
    assert_int_equal(lt_batch_result_line(strchr(o.data, '\n') + 1,
                                          strlen(strchr(o.data, '\n') + 1), "batch_77"),
                     4);
    json_decref(tree);
    lt_out_clear(&o);
    lt_batch_put_error(&o, "batch_77", 12345678, "b", "c", "m");
    assert_int_equal(lt_batch_result_line(o.data, o.n, "batch_77"), 12345678);
    lt_out_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),
        cmocka_unit_test(results_name_their_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
