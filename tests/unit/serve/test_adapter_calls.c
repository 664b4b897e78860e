/* Adapters over HTTP: their names, scales and places, and how they are loaded and unloaded. What
 * they compute follows from LoRA's formula: W + scale * alpha / r * B A. So an adapter with twice
 * the alpha is the same with twice the scale, and the same as the sum of two equal ones. The shapes
 * and messages are those of vLLM's and llama-server's calls. */
#include <math.h>
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

#include "serve/api/adapters.h"
#include "unit/clock.h"
#include "unit/scratch_folder.h"
#include "unit/serve/served.h"

enum { WIDTH = 32, RANK = 2, TOKENS = 6 };

static served s, fixed;
static char paths[8][LT_PATH_BYTES], pairs[3][LT_PATH_BYTES + 8], answer[SERVED_REPLY_BYTES];
static const char *lora[3];

/* An adapter in PEFT's format: for the way down of the feed-forward, of rank 2. */
static void make_adapter(int i, const char *name, double alpha, unsigned seed) {
    static const char tensor[] = "base_model.model.model.layers.0.mlp.down_proj.lora_";
    float values[2 * WIDTH * RANK];
    char header[600], config[200], path[LT_PATH_BYTES];
    uint64_t n;
    for (int k = 0; k < 2 * WIDTH * RANK; k++) { /* Knuth's linear congruential generator. */
        seed = seed * 1664525u + 1013904223u;
        values[k] = (float)seed / 4294967296.0f - 0.5f;
    }
    assert_int_equal(lt_path_join(paths[i], folder, name), LT_OK);
    assert_int_equal(lt_file_make_dirs(paths[i]), LT_OK);
    n = (uint64_t)snprintf(header, sizeof header,
                           "{\"%sA.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":"
                           "[0,%d]},\"%sB.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                           "\"data_offsets\":[%d,%d]}}",
                           tensor, RANK, WIDTH, 4 * WIDTH * RANK, tensor, WIDTH, RANK,
                           4 * WIDTH * RANK, 8 * WIDTH * RANK);
    assert_int_equal(lt_path_join(path, paths[i], "adapter_model.safetensors"), LT_OK);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(&n, 8, 1, f), 1);
    assert_int_equal(fwrite(header, 1, n, f), n);
    assert_int_equal(fwrite(values, sizeof values, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    snprintf(
        config, sizeof config,
        "{\"peft_type\":\"LORA\",\"r\":%d,\"lora_alpha\":%g,\"target_modules\":[\"down_proj\"]}",
        RANK, alpha);
    assert_int_equal(lt_path_join(path, paths[i], "adapter_config.json"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, config, strlen(config)), LT_OK);
}

enum { RED, GREEN, BLUE, RED2, WIDE };

static void with_adapters(lt_server_options *o) {
    o->lora = lora;
    o->n_lora = 3;
    o->max_loras = 2;
    o->lora_updating = true;
    o->max_lora_rank = 8 * RANK;
}

static void with_one(lt_server_options *o) {
    o->lora = lora;
    o->n_lora = 2;
    o->max_loras = 1;
}

static int start(void **state) {
    if (make_folder(state) != 0) {
        return 1;
    }
    make_adapter(RED, "red", 2, 1);
    make_adapter(GREEN, "green", 2, 2);
    make_adapter(BLUE, "blue", 2, 3);
    make_adapter(RED2, "red2", 4, 1);
    for (int i = 0; i < 3; i++) {
        lora[i] = i == GREEN ? paths[i] : pairs[i];
    }
    snprintf(pairs[RED], sizeof pairs[RED], "red=%s", paths[RED]);
    snprintf(pairs[BLUE], sizeof pairs[BLUE], "blau=%s", paths[BLUE]);
    served_start_with(&s, "chatml", false, with_adapters);
    served_start_with(&fixed, "chatml", false, with_one);
    return 0;
}

static int end(void **state) {
    served_end(&s);
    served_end(&fixed);
    return remove_folder(state);
}

/* Log-probabilities of the most likely tokens. more: further members, such as lists of adapters. */
static void ask(const char *model, const char *more, double x[TOKENS]) {
    char body[400];
    snprintf(body, sizeof body,
             "{\"model\":\"%s\",\"prompt\":\"Hello\",\"max_tokens\":%d,\"temperature\":0,"
             "\"ignore_eos\":true,\"logprobs\":1%s}",
             model, TOKENS, more);
    const int status = served_ask(&s, "POST", "/v1/completions", body, answer);
    json_t *const tree = json_loads(answer, 0, NULL);
    const json_t *const list = json_object_get(
        json_object_get(json_array_get(json_object_get(tree, "choices"), 0), "logprobs"),
        "token_logprobs");
    if (status != 200 || json_array_size(list) != TOKENS) {
        fail_msg("%s: %d %s", body, status, answer);
    }
    for (size_t i = 0; i < TOKENS; i++) {
        x[i] = json_number_value(json_array_get(list, i));
    }
    json_decref(tree);
}

static double distance(const double x[TOKENS], const double y[TOKENS]) {
    double most = 0;
    for (int i = 0; i < TOKENS; i++) {
        most = fmax(most, fabs(x[i] - y[i]));
    }
    return most;
}

static void same(const double x[TOKENS], const double y[TOKENS]) {
    if (!(distance(x, y) < 0.02)) { /* Weights and activations have 16 bits. */
        fail_msg("%g %g ... and %g %g ...", x[0], x[1], y[0], y[1]);
    }
}

static void other(const double x[TOKENS], const double y[TOKENS]) {
    if (!(distance(x, y) > 0.06)) {
        fail_msg("%g %g ... and %g %g ...", x[0], x[1], y[0], y[1]);
    }
}

static void post(const char *path, const char *body, int status, const char *want) {
    served_check(&s, "POST", path, body, status, want);
}

static double metric(const char *name) {
    const char *at;
    assert_int_equal(served_ask(&s, "GET", "/metrics", "", answer), 200);
    at = strstr(answer, name);
    if (at == NULL) {
        fail_msg("no %s in %s", name, answer);
    }
    return strtod(at + strlen(name), NULL);
}

#define LOADS "\nlateen_adapter_loads_total{result=\"loaded\"} "
#define FAILS "\nlateen_adapter_loads_total{result=\"failed\"} "

/* ---- ---- */

static void what_is_told(void **state) {
    char want[3 * LT_PATH_BYTES];
    (void)state;
    snprintf(want, sizeof want,
             "[{'id': 0, 'name': 'red', 'path': '%s', 'scale': 0, 'task_name': '', "
             "'prompt_prefix': '', '#': 6}, {'id': 1, 'name': 'green'}, {'id': 2, 'name': 'blau', "
             "'path': '%s'}]",
             paths[RED], paths[BLUE]);
    served_check(&s, "GET", "/lora-adapters", "", 200, want);
    const int64_t now = clock_now();
    snprintf(want, sizeof want,
             "{'data': [{'id': 'letters'}, {'id': 'red', 'object': 'model', 'owned_by': 'lateen', "
             "'root': '%s', 'parent': 'letters', 'max_model_len': 512, 'created': '>0'}, {'id': "
             "'green'}, {'id': 'blau'}]}",
             paths[RED]);
    served_check(&s, "GET", "/v1/models", "", 200, want);
    served_check(&s, "GET", "/v1/models/green", "", 200, "{'id': 'green', 'parent': 'letters'}");
    assert_int_equal(served_ask(&s, "GET", "/v1/models/blau", "", answer), 200);
    json_t *const m = json_loads(answer, 0, NULL);
    const int64_t created = json_integer_value(json_object_get(m, "created"));
    assert_true(created <= now && created > now - 600);
    json_decref(m);
    served_check(&s, "GET", "/v1/models/blue", "", 404, "{'error': {'code': 'model_not_found'}}");
}

/* Two places, filled at the start with the first two; then the one that was not used longest goes.
 */
static void places(void **state) {
    static const struct {
        const char *model;
        int loads;
    } rows[] = {{"red", 0},   {"green", 0}, {"blau", 1},  {"green", 1}, {"red", 2},
                {"green", 2}, {"blau", 3},  {"green", 3}, {"red", 4},   {"letters", 4}};
    double x[TOKENS];
    (void)state;
    assert_int_equal((int)metric("\nlateen_adapters "), 3);
    assert_int_equal((int)metric("\nlateen_adapter_places "), 2);
    assert_int_equal((int)metric("\nlateen_adapter_places_filled "), 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ask(rows[i].model, "", x);
        assert_int_equal((int)metric(LOADS), rows[i].loads);
    }
    assert_int_equal((int)metric(FAILS), 0);
    assert_true(metric("max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} ") >
                1e9);
}

static void what_they_compute(void **state) {
    double base[TOKENS], red[TOKENS], twice[TOKENS], green[TOKENS], both[TOKENS], x[TOKENS];
    (void)state;
    post("/v1/load_lora_adapter", "{'lora_name': 'none', 'lora_path': '/nowhere'}", 404,
         "{'error': {'type': 'NotFoundError'}}");
    char body[LT_PATH_BYTES + 100];
    snprintf(body, sizeof body, "{'lora_name': 'red2', 'lora_path': '%s'}", paths[RED2]);
    post("/v1/load_lora_adapter", body, 200, "'~added successfully.'");
    snprintf(body, sizeof body, "{'lora_name': 'rot', 'lora_path': '%s'}", paths[RED]);
    post("/v1/load_lora_adapter", body, 200, "'~added successfully.'");
    ask("letters", "", base);
    ask("red", "", red);
    ask("red2", "", twice);
    ask("green", "", green);
    other(base, red);
    other(red, twice);
    other(red, green);
    ask("letters", ",\"lora\":[{\"id\":0,\"scale\":1}]", x);
    same(x, red);
    ask("letters", ",\"lora\":[{\"id\":\"red\",\"scale\":2}]", x);
    same(x, twice);
    ask("letters", ",\"lora\":[{\"id\":\"red2\",\"scale\":0.5}]", x);
    same(x, red);
    ask("letters", ",\"lora\":[{\"id\":0,\"scale\":1},{\"id\":\"rot\",\"scale\":1}]", x);
    same(x, twice);
    ask("letters", ",\"lora\":[{\"id\":\"red2\",\"scale\":1},{\"id\":0,\"scale\":-1}]", x);
    same(x, red);
    ask("letters", ",\"lora\":[{\"id\":\"red\",\"scale\":0},{\"id\":1,\"scale\":1}]", x);
    same(x, green);
    ask("letters", ",\"lora\":[{\"id\":1,\"scale\":1},{\"id\":0,\"scale\":1}]", both);
    ask("letters", ",\"lora\":[{\"id\":0,\"scale\":1},{\"id\":1,\"scale\":1}]", x);
    same(x, both);
    other(both, red);
    ask("letters", ",\"lora\":[{\"id\":0,\"scale\":1},{\"id\":1,\"scale\":0.25}]", x);
    other(both, x);
    ask("letters", ",\"lora\":[]", x);
    same(x, base);
}

/* The scales of requests that name no adapter. */
static void scales(void **state) {
    double base[TOKENS], twice[TOKENS], x[TOKENS];
    (void)state;
    ask("letters", "", base);
    ask("red2", "", twice);
    post("/lora-adapters", "[{'id': 1, 'scale': 3}]", 200, "{'success': true, '#': 1}");
    post("/lora-adapters", "[{'id': 'red', 'scale': 2}]", 200, "{'success': true}");
    served_check(&s, "GET", "/lora-adapters", "", 200,
                 "[{'name': 'red', 'scale': 2}, {'name': 'green', 'scale': 0}, '...']");
    ask("letters", "", x);
    same(x, twice);
    ask("letters", ",\"lora\":[]", x); /* It names its adapters: none. */
    same(x, base);
    post("/lora-adapters", "[]", 200, "{'success': true}");
    ask("letters", "", x);
    same(x, base);
}

/* llama-server's answers name the adapters that were used. */
static void what_was_used(void **state) {
    (void)state;
    post("/completion",
         "{'prompt': 'a', 'n_predict': 1, 'lora': [{'id': 2, 'scale': 0.5}, {'id': 0, "
         "'scale': 1}]}",
         200,
         "{'generation_settings': {'lora': [{'id': 0, 'scale': 1}, {'id': 2, 'scale': 0.5}]}}");
}

static void what_is_refused(void **state) {
    static const struct {
        const char *list, *message;
    } rows[] = {
        {"{\"id\":0,\"scale\":1}", "is not a list of {id, scale}"},
        {"[{\"id\":0}]", "an entry of 'lora' is {id, scale}"},
        {"[{\"id\":0.5,\"scale\":1}]", "an entry of 'lora' is {id, scale}"},
        {"[{\"id\":0,\"scale\":1,\"path\":\"x\"}]", "has a field 'path'"},
        {"[{\"id\":77,\"scale\":1}]", "invalid adapter id 77"},
        {"[{\"id\":-1,\"scale\":1}]", "invalid adapter id -1"},
        {"[{\"id\":\"violet\",\"scale\":1}]", "no adapter is named 'violet'"},
        {"[{\"id\":0,\"scale\":1},{\"id\":\"red\",\"scale\":2}]", "names the adapter 0 twice"},
        {"[{\"id\":0,\"scale\":1e30}]", "has the scale 1e+30"},
        {"[{\"id\":0,\"scale\":-1e30}]", "has the scale -1e+30"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[300];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":1,\"lora\":%s}",
                 rows[i].list);
        if (served_ask(&s, "POST", "/v1/completions", body, answer) != 400 ||
            strstr(answer, rows[i].message) == NULL ||
            strstr(answer, "\"param\":\"lora\"") == NULL) {
            fail_msg("%s: %s", rows[i].list, answer);
        }
        if (served_ask(&s, "POST", "/lora-adapters", rows[i].list, answer) != 400 ||
            strstr(answer, rows[i].message) == NULL) {
            fail_msg("%s: %s", rows[i].list, answer);
        }
    }
    assert_int_equal(served_ask(&s, "POST", "/lora-adapters", "[{]", answer), 400);
    assert_non_null(strstr(answer, "the body is not JSON"));
    post("/v1/completions", "{'model': 'red', 'prompt': 'a', 'max_tokens': 1, 'lora': []}", 400,
         "{'error': {'param': 'lora', 'message': '~the model is an adapter'}}");
    post("/v1/completions", "{'model': 'violet', 'prompt': 'a', 'max_tokens': 1}", 404,
         "{'error': {'param': 'model', 'code': 'model_not_found'}}");
}

static void at_most_eight(void **state) {
    char list[500] = "", one[60], body[LT_PATH_BYTES + 100];
    (void)state;
    for (int i = 1; i <= 9; i++) {
        snprintf(body, sizeof body, "{'lora_name': 'r%d', 'lora_path': '%s'}", i, paths[RED]);
        post("/v1/load_lora_adapter", body, 200, "'~added successfully'");
        snprintf(one, sizeof one, "%s{'id': 'r%d', 'scale': 0.125}", i > 1 ? ", " : "", i);
        strcat(list, one);
        snprintf(body, sizeof body, "{'prompt': 'a', 'max_tokens': 1, 'lora': [%s]}", list);
        post("/v1/completions", body, i <= 8 ? 200 : 400,
             i <= 8 ? "{'choices': '*'}" : "{'error': {'message': '~more than 8 adapters'}}");
    }
    for (int i = 1; i <= 9; i++) {
        snprintf(body, sizeof body, "{'lora_name': 'r%d'}", i);
        post("/v1/unload_lora_adapter", body, 200, "'~removed successfully.'");
    }
}

static void names_come_and_go(void **state) {
    double red[TOKENS], green[TOKENS], x[TOKENS];
    char body[LT_PATH_BYTES + 100];
    (void)state;
    ask("red", "", red);
    ask("green", "", green);
    snprintf(body, sizeof body, "{'lora_name': 'mine', 'lora_path': '%s'}", paths[GREEN]);
    post("/v1/load_lora_adapter", body, 200, "'~added successfully'");
    ask("mine", "", x);
    same(x, green);
    snprintf(body, sizeof body, "{'lora_name': 'mine', 'lora_path': '%s'}", paths[RED]);
    post("/v1/load_lora_adapter", body, 400,
         "{'error': {'type': 'InvalidUserInput', 'param': 'lora_name', 'message': '~has already "
         "been loaded'}}");
    ask("mine", "", x);
    same(x, green);
    snprintf(body, sizeof body, "{'lora_name': 'mine', 'lora_path': '%s', 'load_inplace': true}",
             paths[RED]);
    post("/v1/load_lora_adapter", body, 200, "'~added successfully'");
    ask("mine", "", x);
    same(x, red);
    assert_int_equal(
        served_ask(&s, "POST", "/v1/unload_lora_adapter", "{\"lora_name\":\"mine\"}", answer), 200);
    assert_string_equal(answer, "\"Success: LoRA adapter 'mine' removed successfully.\"");
    post("/v1/completions", "{'model': 'mine', 'prompt': 'a', 'max_tokens': 1}", 404,
         "{'error': {'code': 'model_not_found'}}");
    post("/v1/unload_lora_adapter", "{'lora_name': 'mine'}", 404,
         "{'error': {'type': 'NotFoundError', 'message': '~cannot be found.'}}");
    post("/v1/unload_lora_adapter", "{}", 400,
         "{'error': {'type': 'InvalidUserInput', 'message': '~needs to be provided'}}");
    post("/v1/load_lora_adapter", "{'lora_name': '', 'lora_path': 'x'}", 400,
         "{'error': {'message': '~must be provided'}}");
    post("/v1/load_lora_adapter", "{'lora_name': 'x'}", 400,
         "{'error': {'message': '~must be provided'}}");
    snprintf(body, sizeof body, "{'lora_name': 'letters', 'lora_path': '%s'}", paths[RED]);
    post("/v1/load_lora_adapter", body, 400, "{'error': {'message': '~is that of a model'}}");
    memset(body, 'n', 300);
    memcpy(body, "{'lora_name': '", 15);
    for (int n = 255; n <= 256; n++) { /* Its folder is missing, or its name is too long. */
        snprintf(body + 15 + n, 40, "', 'lora_path': '/nowhere'}");
        post("/v1/load_lora_adapter", body, n == 255 ? 404 : 400,
             n == 255 ? "{'error': {'type': 'NotFoundError'}}"
                      : "{'error': {'message': '~is too long'}}");
        memset(body + 15, 'n', 300);
    }
}

/* A folder that was there when its name was loaded, and is gone when a request needs it. */
static void a_folder_that_is_gone(void **state) {
    char body[LT_PATH_BYTES + 100];
    double x[TOKENS], y[TOKENS];
    (void)state;
    ask("green", "", y);
    make_adapter(WIDE, "gone", 2, 9);
    snprintf(body, sizeof body, "{'lora_name': 'gone', 'lora_path': '%s'}", paths[WIDE]);
    post("/v1/load_lora_adapter", body, 200, "'~added successfully'");
    assert_int_equal(lt_file_remove_tree(paths[WIDE]), LT_OK);
    const int failed = (int)metric(FAILS);
    for (int i = 1; i <= 2; i++) { /* Its place is not taken for filled. */
        post("/v1/completions", "{'model': 'gone', 'prompt': 'a', 'max_tokens': 1}", 400,
             "{'error': {'param': 'model'}}");
        assert_int_equal((int)metric(FAILS), failed + i);
    }
    /* The place that was emptied for it is empty. */
    assert_int_equal((int)metric("\nlateen_adapter_places_filled "), 1);
    ask("green", "", x);
    same(x, y);
    ask("red", "", x);
    assert_int_equal((int)metric("\nlateen_adapter_places_filled "), 2);
    post("/v1/unload_lora_adapter", "{'lora_name': 'gone'}", 200, "'~removed successfully'");
}

/* More adapters than places at once: requests wait, and each gets its own. */
typedef struct {
    const char *model;
    char answer[SERVED_REPLY_BYTES];
    int status;
} waiting_call;

static void *wait_for(void *arg) {
    waiting_call *c = arg;
    char body[200];
    snprintf(body, sizeof body,
             "{\"model\":\"%s\",\"prompt\":\"Hello\",\"max_tokens\":200,\"temperature\":0,"
             "\"ignore_eos\":true}",
             c->model);
    c->status = served_ask(&s, "POST", "/v1/completions", body, c->answer);
    return NULL;
}

static const char *text_in(const char *json) {
    const char *at = strstr(json, "\"text\":");
    assert_non_null(at);
    return at;
}

static void requests_wait(void **state) {
    static waiting_call calls[8], alone[4];
    static const char *const models[] = {"red", "green", "blau", "red2"};
    pthread_t threads[8];
    (void)state;
    for (int i = 0; i < 4; i++) {
        alone[i].model = models[i];
        wait_for(&alone[i]);
    }
    for (int i = 0; i < 8; i++) {
        calls[i].model = models[i % 4];
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for, &calls[i]), 0);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(calls[i].status, 200);
        const char *x = text_in(calls[i].answer), *y = text_in(alone[i % 4].answer);
        assert_int_equal(strncmp(x, y, 16), 0); /* Later ones may differ by rounding. */
    }
}

/* Is this one label in the metrics? */
static bool is_told(const char *text) {
    (void)metric("max_lora=");
    return strstr(answer, text) != NULL;
}

/* A request whose answer nobody reads. A client that merely closes may be waiting for its answer
 * (RFC 9293, 3.6.1), so this one resets the connection when it is closed. */
static int begun(const char *model, int n) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)s.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char body[200], all[500];
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const int size = snprintf(body, sizeof body,
                              "{\"model\":\"%s\",\"prompt\":\"a\",\"max_tokens\":500,\"n\":%d,"
                              "\"ignore_eos\":true}",
                              model, n);
    const int whole = snprintf(all, sizeof all,
                               "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: "
                               "application/json\r\nContent-Length: %d\r\n\r\n%s",
                               size, body);
    assert_int_equal(
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(fd, all, (size_t)whole, 0), whole);
    return fd;
}

/* Two long requests, which hold both places. */
static int long_ones[2];

static void hold_both(void) {
    double x[TOKENS];
    ask("red", "", x); /* They are in the places before. */
    ask("green", "", x);
    ask("red", "", x);
    long_ones[0] = begun("red", 100);
    long_ones[1] = begun("green", 100);
    while (!is_told("running_lora_adapters=\"red,green\"") &&
           !is_told("running_lora_adapters=\"green,red\"")) {
        usleep(1000);
    }
}

static void let_go(void) {
    close(long_ones[0]);
    close(long_ones[1]);
    while (is_told("running_lora_adapters=\"red") || is_told("running_lora_adapters=\"green")) {
        usleep(1000);
    }
}

static void it_is_unloaded_while_requests_wait(void **state) {
    static waiting_call calls[3] = {{.model = "mine"}, {.model = "blau"}, {.model = "blau"}};
    pthread_t threads[3];
    char body[LT_PATH_BYTES + 100];
    (void)state;
    snprintf(body, sizeof body, "{'lora_name': 'mine', 'lora_path': '%s'}", paths[GREEN]);
    post("/v1/load_lora_adapter", body, 200, "'~added successfully'");
    hold_both();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for, &calls[i]), 0);
    }
    while (!is_told("waiting_lora_adapters=\"mine,blau\"") && /* Each once. */
           !is_told("waiting_lora_adapters=\"blau,mine\"")) {
        usleep(1000);
    }
    post("/v1/unload_lora_adapter", "{'lora_name': 'mine'}", 200, "'~removed successfully'");
    let_go();
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(calls[i].status, i == 0 ? 404 : 200);
        assert_true(i > 0 || strstr(calls[i].answer, "was unloaded before the request began"));
    }
}

/* While a request waits and both places are held, the one that was filled first takes no new
 * requests; the other still does. */
static void no_place_is_held_for_ever(void **state) {
    static waiting_call calls[2] = {{.model = "red"}, {.model = "green"}};
    pthread_t threads[2];
    (void)state;
    hold_both();
    const int fd = begun("blau", 1);
    while (!is_told("waiting_lora_adapters=\"blau\"")) {
        usleep(1000);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for, &calls[i]), 0);
    }
    while (!is_told("waiting_lora_adapters=\"blau,red\"") &&
           !is_told("waiting_lora_adapters=\"blau,green\"")) {
        usleep(1000);
    }
    assert_false(is_told("waiting_lora_adapters=\"blau,red,green\"") ||
                 is_told("waiting_lora_adapters=\"blau,green,red\""));
    let_go();
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(calls[i].status, 200);
    }
    close(fd);
}

/* A request that waits for a place, and whose client goes: the place that was to leave for it
 * serves its own adapter again. */
static void a_client_goes_while_it_waits(void **state) {
    double x[TOKENS];
    (void)state;
    hold_both();
    const int fd = begun("blau", 1);
    while (!is_told("waiting_lora_adapters=\"blau\"")) {
        usleep(1000);
    }
    close(fd);
    while (!is_told("waiting_lora_adapters=\"\"")) {
        usleep(1000);
    }
    let_go();
    ask("red", "", x);
    ask("green", "", x);
}

/* ---- Where the operator did not allow it; what a start refuses ---- */

static void only_where_it_is_allowed(void **state) {
    (void)state;
    served_check(&fixed, "POST", "/v1/load_lora_adapter", "{'lora_name': 'x', 'lora_path': '/'}",
                 404, "{'error': {'type': 'NotFoundError', 'message': '~--lora-updating'}}");
    served_check(&fixed, "POST", "/v1/unload_lora_adapter", "{'lora_name': 'red'}", 404,
                 "{'error': {'type': 'NotFoundError', 'message': '~--lora-updating'}}");
    served_check(&fixed, "GET", "/lora-adapters", "", 200, "[{'name': 'red'}, {'name': 'green'}]");
    assert_int_equal(served_ask(&fixed, "GET", "/metrics", "", answer), 200);
    assert_non_null(strstr(answer, "\nlateen_adapter_places 1\n"));
}

static lt_err never(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    (void)ctx;
    (void)model;
    (void)tokenizer;
    return LT_ERR_ARG;
}

static lt_err opened(lt_server **server, const char *const *names, int n) {
    lt_server_options o = lt_server_defaults();
    o.port = 0;
    o.model = o.name = "letters";
    o.load = never;
    o.quiet = true;
    o.lora = names;
    o.n_lora = n;
    return lt_server_open(server, &o);
}

static void names_of_paths(void **state) {
    static const struct {
        const char *text, *name; /* name NULL: refused. */
    } rows[] = {{"a=/x/b", "a"},      {"/x/b", "b"},      {"/x/b/", "b"},       {"/x/b//", "b"},
                {"b", "b"},           {"/x/b.gguf", "b"}, {"c=/x/b.gguf", "c"}, {"x/=y", "x/"},
                {"=/x", NULL},        {"a=", NULL},       {"", NULL},           {"/", NULL},
                {"letters=/x", NULL}, {"a=b=c", "a"}};
    static char longest[300];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_server *server = NULL;
        const lt_err err = opened(&server, &rows[i].text, 1);
        if ((err == LT_OK) != (rows[i].name != NULL) ||
            (err == LT_OK && !lt_adapter_set_know(server->adapters, rows[i].name))) {
            fail_msg("--lora %s: %s", rows[i].text, lt_error_message());
        }
        lt_server_close(server);
    }
    for (int n = 255; n <= 256; n++) {
        lt_server *server = NULL;
        const char *text = longest;
        memset(longest, 'n', sizeof longest);
        snprintf(longest + n, sizeof longest - (size_t)n, "=/x");
        assert_int_equal(opened(&server, &text, 1), n == 255 ? LT_OK : LT_ERR_ARG);
        lt_server_close(server);
    }
    static const char *const twice[] = {"/x/a", "a=/y"};
    lt_server *server = NULL;
    assert_int_equal(opened(&server, twice, 2), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "already that of another adapter"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_told),
        cmocka_unit_test(places),
        cmocka_unit_test(what_they_compute),
        cmocka_unit_test(scales),
        cmocka_unit_test(what_was_used),
        cmocka_unit_test(it_is_unloaded_while_requests_wait),
        cmocka_unit_test(a_client_goes_while_it_waits),
        cmocka_unit_test(no_place_is_held_for_ever),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(at_most_eight),
        cmocka_unit_test(names_come_and_go),
        cmocka_unit_test(a_folder_that_is_gone),
        cmocka_unit_test(requests_wait),
        cmocka_unit_test(only_where_it_is_allowed),
        cmocka_unit_test(names_of_paths),
    };
    return cmocka_run_group_tests(tests, start, end);
}
