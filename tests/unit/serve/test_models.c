/* Several models in one server: by which names and keys they are used, when they are loaded and
 * unloaded, what a model that cannot be loaded says, and Ollama's view of them. */
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

#include "base/error.h"
#include "unit/scratch_folder.h"
#include "unit/serve/served.h"

static served s;
static char answer[SERVED_REPLY_BYTES];
static int n_tries; /* Of the model that cannot be loaded. */
static lt_server_model models[4];

static lt_err broken(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    (void)ctx;
    (void)model;
    (void)tokenizer;
    n_tries++;
    LT_FAIL(LT_ERR_FORMAT, "/secret/folder/model.gguf: its header is wrong");
}

static void with_models(lt_server_options *o) {
    static const char *const names[] = {"one", "two", "three", "broken"};
    for (int i = 0; i < 4; i++) {
        models[i] = (lt_server_model){.name = names[i],
                                      .aliases = i == 1 ? "zwei, deux" : "",
                                      .model = folder,
                                      .template = "chatml",
                                      .engine = o->engine,
                                      .think_budget = -1,
                                      .idle_s = -1,
                                      .preload = i == 0,
                                      .load = i < 3 ? o->load : broken,
                                      .ctx = o->ctx};
        models[i].engine.max_seq = 64 << i;
    }
    o->models = models;
    o->n_models = 4;
    o->keys[0] = "all";
    o->keys[1] = "some";
    o->key_models[0] = NULL;
    o->key_models[1] = "zwei,broken";
    o->n_keys = 2;
}

static int start(void **state) {
    if (make_folder(state) != 0) {
        return 1;
    }
    served_start_with(&s, "chatml", false, with_models);
    return 0;
}

static int end(void **state) {
    served_end(&s);
    return remove_folder(state);
}

static void says(const char *key, const char *path, const char *body, int status,
                 const char *want) {
    char lines[200];
    json_t *const asked = body[0] != '\0' ? served_parse(body) : NULL;
    char *const text = asked != NULL ? json_dumps(asked, 0) : strdup("");
    snprintf(lines, sizeof lines, "Authorization: Bearer %s\r\nContent-Type: application/json\r\n",
             key);
    const int is = served_send(&s, asked != NULL ? "POST" : "GET", path, lines, text, strlen(text),
                               answer);
    served_behead(answer);
    json_t *const got = json_loads(answer, 0, NULL), *const expected = served_parse(want);
    if (is != status || !served_like(expected, got)) {
        fail_msg("%s %s\n  wants %d %s\n  got %d %s", path, text, status, want, is, answer);
    }
    json_decref(asked);
    json_decref(got);
    json_decref(expected);
    free(text);
}

#define ASK "'prompt': 'a', 'max_tokens': 2, 'logit_bias': {'33': 100}"

/* Wait until the model has this state. */
static void comes_to(const char *model, const char *value) {
    char path[64], want[64];
    snprintf(path, sizeof path, "/v1/models/%s", model);
    snprintf(want, sizeof want, "\"status\":{\"value\":\"%s\"", value);
    do {
        assert_int_equal(
            served_send(&s, "GET", path, "Authorization: Bearer all\r\n", "", 0, answer), 200);
    } while (strstr(answer, want) == NULL);
}

static void names(void **state) {
    (void)state;
    comes_to("one", "loaded");
    says("all", "/v1/models", "", 200,
         "{'data': [{'id': 'one', 'max_model_len': 64, 'status': {'value': 'loaded'}}, {'id': "
         "'two', "
         "'aliases': ['zwei', 'deux'], 'status': {'value': 'unloaded'}}, {'id': 'three'}, {'id': "
         "'broken'}]}");
    says("all", "/v1/completions", "{" ASK "}", 200,
         "{'model': 'one', 'choices': [{'text': 'AA'}]}");
    says("all", "/v1/completions", "{'model': 'deux', " ASK "}", 200, "{'model': 'two'}");
    says("all", "/v1/models/zwei", "", 200,
         "{'id': 'two', 'max_model_len': 128, 'status': {'value': 'loaded'}}");
    says("all", "/v1/completions", "{'model': 'four', " ASK "}", 404,
         "{'error': {'code': 'model_not_found', 'param': 'model'}}");
    assert_non_null(strstr(answer, "'one', 'two', 'three', 'broken' are"));
    says("all", "/props?model=two", "", 200, "{'model_alias': 'two'}");
    says("all", "/props?model=three", "", 503, "{'error': {'message': '~is not loaded'}}");
    says("all", "/props?model=four", "", 404, "{'error': {'message': '~is not served here'}}");
}

static void keys(void **state) {
    (void)state;
    says("some", "/v1/models", "", 200, "{'data': [{'id': 'two'}, {'id': 'broken'}]}");
    says("some", "/v1/completions", "{'model': 'two', " ASK "}", 200, "{'model': 'two'}");
    says("some", "/v1/completions", "{" ASK "}", 403, "{'error': {'code': 'model_not_allowed'}}");
    says("some", "/v1/completions", "{'model': 'three', " ASK "}", 403,
         "{'error': {'code': 'model_not_allowed'}}");
    says("some", "/models/load", "{'model': 'three'}", 403,
         "{'error': {'type': 'permission_error', 'code': 403}}");
    says("some", "/models/unload", "{'model': 'one'}", 403,
         "{'error': {'type': 'permission_error', 'code': 403}}");
    comes_to("one", "loaded");
    comes_to("three", "unloaded");
    says("some", "/v1/completions", "{'model': 'four', " ASK "}", 404, "{'error': {}}");
    assert_non_null(strstr(answer, "'two', 'broken' are"));
}

static void loading_and_unloading(void **state) {
    (void)state;
    says("all", "/models/load", "{'model': 'three'}", 200, "{'success': true}");
    comes_to("three", "loaded");
    says("all", "/models/load", "{'model': 'three'}", 200, "{'success': true}");
    says("all", "/models/unload", "{'model': 'three'}", 200, "{'success': true}");
    comes_to("three", "unloaded");
    says("all", "/models/load", "{'model': 'four'}", 404, "{'error': {'type': 'not_found_error'}}");
    says("all", "/models/load", "{'colour': 4}", 400, "{'error': {'param': 'colour'}}");
    says("all", "/models/load", "{'model': null}", 404, "{'error': {}}");
    says("all", "/v1/completions", "{'model': 'three', " ASK "}", 200, "{'model': 'three'}");
    assert_int_equal(
        served_send(&s, "GET", "/metrics", "Authorization: Bearer all\r\n", "", 0, answer), 200);
    static const char *const lines[] = {"loads_total{model_name=\"three\",engine=\"0\"} 2\n",
                                        "unloads_total{model_name=\"three\",engine=\"0\"} 1\n",
                                        "unloads_total{model_name=\"one\",engine=\"0\"} 0\n",
                                        "loaded{model_name=\"three\",engine=\"0\"} 1\n",
                                        "loaded{model_name=\"broken\",engine=\"0\"} 0\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[100];
        snprintf(line, sizeof line, "\nlateen_model_%s", lines[i]);
        if (strstr(answer, line) == NULL) {
            fail_msg("no %s", line);
        }
    }
}

static void it_cannot_be_loaded(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) { /* It is tried again after 5 seconds. */
        says("all", "/v1/completions", "{'model': 'broken', " ASK "}", 500,
             "{'error': {'code': 'model_load_failed', 'param': 'model', 'type': 'server_error'}}");
        assert_non_null(strstr(answer, "its header is wrong; the first request after 5 s tries"));
        assert_null(strstr(answer, "/secret/"));
    }
    assert_int_equal(n_tries, 1);
    says("all", "/v1/models/broken", "", 200, "{'status': {'failed': true}}");
}

/* Bodies of 256 KiB and more are read elsewhere; their model is found all the same. */
static void large_bodies(void **state) {
    enum { LARGE = 300000 };
    static char text[LARGE + 400];
    (void)state;
    says("all", "/models/unload", "{'model': 'three'}", 200, "{'success': true}");
    comes_to("three", "unloaded");
    static const struct {
        const char *begin, *part;
        int status;
    } rows[] = {
        {"{\"model\":\"three\",\"prompt\":\"a\",\"max_tokens\":1", "\"model\":\"three\"", 200},
        {"{\"model\":\"three\",\"prompt\":\"a\",\"max_tokens\":1", "\"model\":\"three\"", 200},
        {"{\"model\":\"four\",\"prompt\":\"a\"", "model_not_found", 404},
        {"{\"model\":\"three\" \"prompt\"", "not valid JSON", 400},
        {"{\"model\":\"broken\",\"prompt\":\"a\"", "model_load_failed", 500},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = strlen(rows[i].begin);
        memcpy(text, rows[i].begin, n);
        memset(text + n, ' ', LARGE);
        text[n + LARGE] = '}';
        const int status = served_send(&s, "POST", "/v1/completions",
                                       "Authorization: Bearer all\r\nContent-Type: "
                                       "application/json\r\n",
                                       text, n + LARGE + 1, answer);
        if (status != rows[i].status || (status != 400 && strstr(answer, rows[i].part) == NULL)) {
            fail_msg("row %zu: %d %.500s", i, status, answer);
        }
    }
}

static void of_ollama(void **state) {
    struct tm when = {0};
    int offset = 0;
    (void)state;
    says("all", "/api/generate", "{'prompt': 'a'}", 400, "{'error': 'model is required'}");
    says("all", "/api/generate",
         "{'model': 'two:latest', 'prompt': 'a', 'stream': false, 'keep_alive': '2h', 'options': "
         "{'num_predict': 1}}",
         200, "{'model': 'two:latest', 'done': true}");
    says("all", "/api/ps", "", 200, "{'models': ['...', '*']}");
    const char *at = strstr(answer, "\"name\":\"two:latest\"");
    assert_non_null(at);
    at = strstr(at, "\"expires_at\":\"");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "\"expires_at\":\"%d-%d-%dT%d:%d:%d%n", &when.tm_year, &when.tm_mon,
                            &when.tm_mday, &when.tm_hour, &when.tm_min, &when.tm_sec, &offset),
                     6);
    when.tm_year -= 1900;
    when.tm_mon -= 1;
    const double left_s = difftime(timegm(&when), time(NULL));
    assert_true(left_s > 7000 && left_s < 7300);
    says("all", "/api/generate", "{'model': 'two', 'keep_alive': 0}", 200,
         "{'done_reason': 'unload', 'done': true}");
    comes_to("two", "unloaded");
    says("all", "/api/generate", "{'model': 'two'}", 200, "{'done_reason': 'load'}");
    comes_to("two", "loaded");
    says("all", "/api/chat", "{'model': 'two', 'messages': [], 'keep_alive': 'soon'}", 400,
         "{'error': '~keep_alive'}");
    says("all", "/api/tags", "", 200,
         "{'models': [{'name': 'one:latest'}, {'name': 'two:latest'}, '...']}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(keys),
        cmocka_unit_test(loading_and_unloading),
        cmocka_unit_test(it_cannot_be_loaded),
        cmocka_unit_test(large_bodies),
        cmocka_unit_test(of_ollama),
    };
    return cmocka_run_group_tests(tests, start, end);
}
