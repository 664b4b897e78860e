/* A request from its prompts to its answer: prompts that are cut for a context that shifts, by
 * llama-server's rule; the place of each token in the text, by OpenAI's; a full queue, and what
 * begins only when it may. Each character is a token (served.h), so that all of it is counted by
 * hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "unit/serve/served.h"

enum { CONTEXT = 64, LEFT = 4 /* Tokens that a shift leaves at least, as in llama-server. */ };

static served plain, begins;
static char answer[SERVED_REPLY_BYTES];

static void that_shifts(lt_server_options *o) {
    o->context_shift = true;
    o->engine.max_seq = CONTEXT;
    o->engine.max_running = 2;
    o->engine.max_waiting = 2;
}

static int start(void **state) {
    (void)state;
    served_start_with(&plain, "chatml", false, that_shifts);
    served_start_with(&begins, "chatml", true, that_shifts);
    return 0;
}

static int end(void **state) {
    (void)state;
    served_end(&plain);
    served_end(&begins);
    return 0;
}

static json_t *ask(const served *s, const char *path, json_t *body) {
    char *const text = json_dumps(body, 0);
    const int status = served_ask(s, "POST", path, text, answer);
    json_t *const tree = json_loads(answer, 0, NULL);
    if (status != 200 || tree == NULL) {
        fail_msg("%s %s: %d %s", path, text, status, answer);
    }
    free(text);
    json_decref(body);
    return tree;
}

/* ---- The end of the context ---- */

/* llama-server's rule: the first `keep` tokens stay; from the rest whole blocks, each half of what
 * they leave of the context, are dropped, so that between one and two blocks remain. */
static int kept_of(int n, int keep, int *from) {
    const int block = (CONTEXT - keep) / 2;
    int left = n - keep;
    *from = keep;
    while (n >= CONTEXT && left >= 2 * block) {
        left -= block;
        *from += block;
    }
    return keep + left;
}

static void prompts_are_cut(void **state) {
    static const struct {
        int n, keep, begin; /* keep: the request's; begin: 1 if a BOS is put in front. */
    } rows[] = {{10, 0, 0},  {63, 0, 0},   {64, 0, 0},  {65, 0, 0},   {100, 0, 0}, {100, 10, 0},
                {128, 5, 0}, {127, 11, 0}, {200, 1, 0}, {100, 70, 0}, {90, -1, 0}, {62, 0, 1},
                {63, 0, 1},  {100, 10, 1}, {150, 3, 1}, {95, -1, 1},  {80, 59, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256], want[256];
        const int n = rows[i].n + rows[i].begin;
        int keep = rows[i].keep < 0 ? n : rows[i].keep + rows[i].begin, from = 0;
        for (int k = 0; k < rows[i].n; k++) {
            text[k] = (char)('!' + k * 37 % 93);
        }
        text[rows[i].n] = '\0';
        keep = keep < CONTEXT - LEFT ? keep : CONTEXT - LEFT;
        const int left = n < CONTEXT ? n : kept_of(n, keep, &from);
        /* As text, without the BOS. */
        snprintf(want, sizeof want, "%.*s%s", keep - rows[i].begin, text,
                 text + (n < CONTEXT ? keep : from) - rows[i].begin);
        json_t *const r = ask(
            rows[i].begin ? &begins : &plain, "/completion",
            json_pack("{s:s, s:i, s:i}", "prompt", text, "n_predict", 1, "n_keep", rows[i].keep));
        if (json_integer_value(json_object_get(r, "tokens_evaluated")) != left ||
            json_is_true(json_object_get(r, "truncated")) != (n >= CONTEXT) ||
            strstr(json_string_value(json_object_get(r, "prompt")), want) == NULL) {
            fail_msg("%d of %d tokens: want %d, '%s'; got %s", rows[i].keep, n, left, want, answer);
        }
        json_decref(r);
    }
}

/* An answer of 40 tokens to a prompt of 30 leaves the context, to one of 24 just not. */
static void answers_are_marked(void **state) {
    (void)state;
    for (int n = 23; n <= 26; n++) {
        char text[64] = "";
        memset(text, 'a', (size_t)n);
        json_t *const r = ask(&plain, "/completion",
                              json_pack("{s:s, s:i, s:b, s:{s:i}}", "prompt", text, "n_predict", 40,
                                        "ignore_eos", 1, "logit_bias", "33", 100));
        assert_int_equal(strlen(json_string_value(json_object_get(r, "content"))), 40);
        if (json_is_true(json_object_get(r, "truncated")) != (n + 40 > CONTEXT)) {
            fail_msg("%d and 40 tokens: %s", n, answer);
        }
        json_decref(r);
    }
}

/* ---- Where tokens are ---- */

static void places_of_tokens(void **state) {
    (void)state;
    json_t *const r = ask(&plain, "/v1/completions",
                          json_pack("{s:s, s:i, s:{s:i}, s:i, s:b}", "prompt", "abcd", "max_tokens",
                                    40, "logit_bias", "33", 100, "logprobs", 2, "echo", 1));
    const json_t *const choice = json_array_get(json_object_get(r, "choices"), 0);
    const json_t *const logs = json_object_get(choice, "logprobs");
    const json_t *const offsets = json_object_get(logs, "text_offset");
    const char *const text = json_string_value(json_object_get(choice, "text"));
    assert_int_equal(json_array_size(offsets), 44);
    for (size_t i = 0; i < 44; i++) {
        const char *const token = json_string_value(
            json_array_get(json_object_get(logs, "tokens"), i));
        assert_int_equal(json_integer_value(json_array_get(offsets, i)), i);
        assert_int_equal(text[i], i < 4 ? "abcd"[i] : 'A');
        assert_true(token[0] == text[i] && token[1] == '\0');
        /* The most likely ones, of which the token is one; none for the first. */
        const json_t *const top = json_array_get(json_object_get(logs, "top_logprobs"), i);
        assert_true(i == 0 ? json_is_null(top)
                           : json_object_size(top) >= 2 && json_object_get(top, token) != NULL);
    }
    json_decref(r);
}

/* A special token is in the list of tokens, but not in the text, unless the request shows it. A
 * grammar names it by its text or its id. */
static void special_tokens_have_no_text(void **state) {
    static const char *const grammars[] = {"root ::= \"A\" <x> \"B\"",
                                           "root ::= \"A\" <[97]> \"B\""};
    static const char *const tokens[] = {"A", "<x>", "B"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool shown = i % 2 == 1;
        json_t *const r = ask(&begins, "/v1/completions",
                              json_pack("{s:s, s:i, s:i, s:s, s:b}", "prompt", "ab", "max_tokens",
                                        3, "logprobs", 0, "grammar", grammars[i / 2],
                                        "skip_special_tokens", !shown));
        const json_t *const choice = json_array_get(json_object_get(r, "choices"), 0);
        const json_t *const logs = json_object_get(choice, "logprobs");
        int64_t at = 0;
        assert_string_equal(json_string_value(json_object_get(choice, "text")),
                            shown ? "A<x>B" : "AB");
        assert_int_equal(json_array_size(json_object_get(logs, "tokens")), 3);
        for (size_t k = 0; k < 3; k++) {
            assert_string_equal(
                json_string_value(json_array_get(json_object_get(logs, "tokens"), k)), tokens[k]);
            assert_int_equal(
                json_integer_value(json_array_get(json_object_get(logs, "text_offset"), k)), at);
            at += k == 1 && !shown ? 0 : (int64_t)strlen(tokens[k]);
        }
        json_decref(r);
    }
    served_check(&begins, "POST", "/v1/completions",
                 "{'prompt': 'a', 'max_tokens': 3, 'grammar': 'root ::= <[95]>'}", 400,
                 "{'error': {'param': 'grammar', 'message': '~no special token of this name'}}");
    served_check(&begins, "POST", "/v1/completions",
                 "{'prompt': 'a', 'max_tokens': 3, 'grammar': 'root ::= <[98]>'}", 400,
                 "{'error': {'message': '~no special token of this name'}}");
}

/* ---- What is refused, and when ---- */

static void salts_are_not_empty(void **state) {
    (void)state;
    served_check(&plain, "POST", "/v1/completions",
                 "{'prompt': 'a', 'max_tokens': 1, 'cache_salt': ''}", 400,
                 "{'error': {'param': 'cache_salt'}}");
    served_check(&plain, "POST", "/v1/completions",
                 "{'prompt': 'a', 'max_tokens': 1, 'cache_salt': 's'}", 200, "{'choices': ['*']}");
}

static double metric(const char *name) {
    assert_int_equal(served_ask(&plain, "GET", "/metrics", "", answer), 200);
    const char *at = strstr(answer, name);
    if (at == NULL) {
        fail_msg("no %s in %s", name, answer);
    }
    return strtod(strchr(at + 1, ' ') + 1, NULL);
}

/* The histograms of vLLM and the sums of llama-server, from the numbers of two requests: 3 tokens
 * after a prompt of 2, and twice 5 after a prompt of 4. */
static void times_and_numbers(void **state) {
    static const struct {
        const char *name;
        double added; /* NAN: any; not read if the row names others, whose sum it is. */
        const char *equal, *other;
    } rows[] = {
        {"\nvllm:request_prompt_tokens_sum{", 6, NULL, NULL},
        {"\nvllm:request_prompt_tokens_count{", 2, NULL, NULL},
        {"\nvllm:request_generation_tokens_sum{", 13, NULL, NULL},
        {"\nvllm:request_max_num_generation_tokens_sum{", 8, NULL, NULL},
        {"\nvllm:request_params_n_sum{", 3, NULL, NULL},
        {"\nvllm:request_params_max_tokens_sum{", 8, NULL, NULL},
        {"\nvllm:e2e_request_latency_seconds_count{", 2, NULL, NULL},
        {"\nvllm:request_time_per_output_token_seconds_count{", 1, NULL, NULL},
        {"\nvllm:inter_token_latency_seconds_count{", 2, NULL, NULL},
        {"\nvllm:request_inference_time_seconds_sum{", -1,
         "\nvllm:request_prefill_time_seconds_sum{", "\nvllm:request_decode_time_seconds_sum{"},
        {"\nllamacpp:prompt_seconds_total", -1, "\nvllm:request_prefill_time_seconds_sum{", NULL},
        {"\nllamacpp:tokens_predicted_seconds_total", -1, "\nvllm:request_decode_time_seconds_sum{",
         NULL},
        {"\nllamacpp:prompt_tokens_total", 6, NULL, NULL},
        {"\nllamacpp:tokens_predicted_total", 13, NULL, NULL},
        {"\nvllm:inter_token_latency_seconds_sum{", NAN, NULL, NULL},
        {"\nvllm:request_time_per_output_token_seconds_sum{", NAN, NULL, NULL},
    };
    enum { N = sizeof rows / sizeof *rows };
    double before[3][sizeof rows / sizeof *rows];
    (void)state;
    for (int after = 0; after < 2; after++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const double is = metric(rows[i].name) - (after ? before[0][i] : 0);
            const double x = rows[i].equal != NULL
                                 ? metric(rows[i].equal) - (after ? before[1][i] : 0)
                                 : 0;
            const double y = rows[i].other != NULL
                                 ? metric(rows[i].other) - (after ? before[2][i] : 0)
                                 : 0;
            const double want = rows[i].equal != NULL ? x + y : rows[i].added;
            if (after && !isnan(want) && !(fabs(is - want) < 1e-6 && is > 0)) {
                fail_msg("%s: %.9g more, not %.9g", rows[i].name + 1, is, want);
            }
            before[0][i] = is;
            before[1][i] = x;
            before[2][i] = y;
        }
        if (!after) {
            json_decref(ask(&plain, "/v1/completions",
                            json_pack("{s:s, s:i, s:{s:i}, s:b}", "prompt", "ab", "max_tokens", 3,
                                      "logit_bias", "33", 100, "ignore_eos", 1)));
            json_decref(
                ask(&plain, "/v1/completions",
                    json_pack("{s:s, s:i, s:i, s:{s:i}, s:b}", "prompt", "abcd", "max_tokens", 5,
                              "n", 2, "logit_bias", "33", 100, "ignore_eos", 1)));
        }
    }
}

/* Two run and two wait, or three while the text of one is computed again after a shift. So at least
 * three of eight are refused, and counted. */
static void a_full_queue(void **state) {
    enum { N = 8, LEAST = 3 };
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)plain.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":900000,\"ignore_eos\":true}";
    char request[400];
    int fds[N];
    const double refused = metric("\nlateen_queue_full_total");
    (void)state;
    const int n = snprintf(request, sizeof request,
                           "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: "
                           "application/json\r\nContent-Length: %zu\r\n\r\n%s",
                           sizeof body - 1, body);
    for (int i = 0; i < N; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0},
                                    sizeof(struct linger)),
                         0);
        assert_int_equal(connect(fds[i], (const struct sockaddr *)&to, sizeof to), 0);
        assert_int_equal(send(fds[i], request, (size_t)n, 0), n);
    }
    while (metric("\nlateen_queue_full_total") < refused + LEAST) {
        usleep(1000);
    }
    served_check(&plain, "POST", "/v1/completions", "{'prompt': 'a', 'max_tokens': 1}", 429,
                 "{'error': {'code': 'queue_full', 'type': 'rate_limit_error', 'message': "
                 "'~requests wait'}}");
    assert_true(metric("\nlateen_queue_full_total") >= refused + LEAST + 1);
    for (int i = 0; i < N; i++) {
        close(fds[i]); /* Resets the connection, which ends the request. */
    }
    while (metric("\nvllm:num_requests_running{") + metric("\nvllm:num_requests_waiting{") > 0) {
        usleep(1000);
    }
    served_check(&plain, "POST", "/v1/completions", "{'prompt': 'a', 'max_tokens': 1}", 200,
                 "{'choices': ['*']}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_cut),     cmocka_unit_test(answers_are_marked),
        cmocka_unit_test(places_of_tokens),    cmocka_unit_test(special_tokens_have_no_text),
        cmocka_unit_test(a_full_queue),        cmocka_unit_test(times_and_numbers),
        cmocka_unit_test(salts_are_not_empty),
    };
    return cmocka_run_group_tests(tests, start, end);
}
