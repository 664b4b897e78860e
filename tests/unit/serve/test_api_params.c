/* Tables of fields: each type is read, each refusal has the parameter's name; jansson reads back
 * what the JSON writer wrote. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/api/api_params.h"
#include "serve/api/formats/ollama.h"

static const lt_field fields[] = {LT_JSON("messages", messages),
                                  LT_STR("model", model),
                                  LT_I64("n", n, 1, 8),
                                  LT_BOOL("stream", stream),
                                  LT_REFUSED("audio", "no ears"),
                                  LT_ONLY("modalities", "[\"text\"]|null"),
                                  LT_NOTHING("user"),
                                  LT_FIELDS_SAMPLING};

static bool read(lt_api_params *a, const char *body, lt_api_error *e) {
    lt_api_params_defaults(a);
    *e = (lt_api_error){0};
    return lt_api_params_read(a, fields, sizeof fields / sizeof *fields, body, strlen(body), e);
}

static void valid_fields(void **state) {
    lt_api_error e;
    lt_api_params a;
    (void)state;
    assert_true(read(&a,
                     "{\"model\":\"m\",\"n\":2.0,\"stream\":true,\"temperature\":0,\"top_k\":5,"
                     "\"user\":{\"x\":1},\"modalities\":[\"text\"],\"seed\":null,\"min_p\":0.5,"
                     "\"messages\":[]}",
                     &e));
    assert_string_equal(a.model, "m");
    assert_int_equal(a.n, 2);
    assert_true(a.stream);
    assert_true(a.temperature == 0 && a.min_p == 0.5 && a.top_p == 1);
    assert_int_equal(a.top_k, 5);
    assert_int_equal(a.seed, -1); /* null counts as absent. */
    assert_non_null(a.messages);
    lt_api_params_free(&a);
}

static void refused(void **state) {
    static const struct {
        const char *body, *param, *said;
    } rows[] = {
        {"{\"n\":0}", "n", "between 1 and 8"},
        {"{\"n\":9}", "n", "is 9; it must be between 1 and 8"},
        {"{\"n\":9000000000000000000}", "n", "is 9000000000000000000;"},
        {"{\"n\":1e300}", "n", "is 1e+300;"},
        {"{\"model\":\"a\\u0000b\"}", "model", "holds a zero character"},
        {"{\"n\":1.5}", "n", "whole"},
        {"{\"n\":\"2\"}", "n", "a string"},
        {"{\"stream\":1}", "stream", "true or false"},
        {"{\"model\":[]}", "model", "a list"},
        {"{\"audio\":{}}", "audio", "no ears"},
        {"{\"modalities\":[\"audio\"]}", "modalities", "not supported"},
        {"{\"temprature\":1}", "temprature", "is 'temperature' meant"},
        {"{\"max_completion_tokens_x\":1}", "max_completion_tokens_x", "unknown"},
        {"{\"mirostat\":2}", "mirostat", "not supported"},
        {"{\"temperature\":1e999}", "", "not JSON"},
        {"[1]", "", "object"},
        {"", "", "not JSON"},
        {"{\"model\":\"\xff\"}", "", "not UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_api_error e;
        lt_api_params a;
        assert_false(read(&a, rows[i].body, &e));
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, rows[i].param);
        if (strstr(e.message, rows[i].said) == NULL) {
            fail_msg("%s: %s", rows[i].body, e.message);
        }
        lt_api_params_free(&a);
    }
}

/* A field that no row names: null counts as absent, anything else as configured. */
static void unknown_fields(void **state) {
    static const char body[] = "{\"no_such\":1,\"nor_this\":null,\"n\":3}";
    static const lt_unknown_fields kinds[] = {LT_UNKNOWN_REFUSE, LT_UNKNOWN_WARN,
                                              LT_UNKNOWN_IGNORE};
    lt_api_error e;
    lt_api_params a;
    (void)state;
    assert_true(read(&a, "{\"no_such\":null}", &e));
    lt_api_params_free(&a);
    for (int i = 0; i < 3; i++) {
        lt_api_params_defaults(&a);
        a.unknown = kinds[i];
        assert_int_equal(lt_api_params_read(&a, fields, sizeof fields / sizeof *fields, body,
                                            sizeof body - 1, &e),
                         i > 0);
        if (i > 0) {
            assert_int_equal(a.n, 3);
        } else {
            assert_string_equal(e.param, "no_such");
        }
        lt_api_params_free(&a);
    }
}

static void strings(void **state) {
    const char *texts[3];
    size_t lengths[3];
    lt_api_error e;
    int n;
    json_t *v = json_pack("[s, s]", "a", "bc"), *bad = json_pack("[s, i]", "a", 1);
    json_t *many = json_pack("[s, s, s, s]", "a", "a", "a", "a"), *one = json_string("x");
    (void)state;
    assert_true(lt_api_params_strings(v, "stop", texts, lengths, 3, &n, &e) && n == 2 &&
                lengths[1] == 2);
    assert_true(lt_api_params_strings(one, "stop", texts, lengths, 3, &n, &e) && n == 1);
    assert_true(lt_api_params_strings(NULL, "stop", texts, lengths, 3, &n, &e) && n == 0);
    assert_false(lt_api_params_strings(bad, "stop", texts, lengths, 3, &n, &e));
    assert_false(lt_api_params_strings(many, "stop", texts, lengths, 3, &n, &e));
    json_decref(v);
    json_decref(bad);
    json_decref(many);
    json_decref(one);
}

static void json_read_back(void **state) {
    static const char text[] = "a\"b\\c\n\t\x01\x7f\xe2\x82\xac";
    lt_json_out o = {0};
    json_t *v;
    (void)state;
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "s", text);
    lt_out_key_int(&o, "i", -9223372036854775807LL - 1);
    lt_out_key_real(&o, "r", 0.1F);
    lt_out_key_real(&o, "nan", (double)NAN);
    lt_out_key_bool(&o, "b", true);
    lt_out_key_null(&o, "z");
    lt_out_key_open(&o, "l", '[');
    lt_out_int(&o, 1);
    lt_out_open(&o, '[');
    lt_out_shut(&o, ']');
    lt_out_str(&o, "x\0y", 3);
    lt_out_shut(&o, ']');
    lt_out_shut(&o, '}');
    v = json_loadb(o.data, o.n, JSON_ALLOW_NUL, NULL);
    assert_non_null(v);
    assert_string_equal(json_string_value(json_object_get(v, "s")), text);
    assert_true(json_integer_value(json_object_get(v, "i")) == INT64_MIN);
    assert_true((float)json_real_value(json_object_get(v, "r")) == 0.1F);
    assert_true(json_is_null(json_object_get(v, "nan")) && json_is_null(json_object_get(v, "z")));
    assert_int_equal(json_array_size(json_object_get(v, "l")), 3);
    assert_int_equal(json_string_length(json_array_get(json_object_get(v, "l"), 2)), 3);
    json_decref(v);
    lt_out_free(&o);
}

/* Whole numbers beyond 64 bits are valid JSON; those that fit stay whole, and strings stay
 * unchanged. */
static void wide_integers(void **state) {
    static const char text[] = "{\"u64\": 18446744073709551615, \"-\": -99999999999999999999,"
                               " \"s\": \"18446744073709551615 \\\" 1\", \"i\": [7, 1234],"
                               " \"r\": 1.18446744073709551615e3}";
    json_t *v = lt_json_loadb(text, sizeof text - 1, 0, NULL);
    (void)state;
    assert_non_null(v);
    assert_true(json_real_value(json_object_get(v, "u64")) == 18446744073709551616.0);
    assert_true(json_real_value(json_object_get(v, "-")) == -1e20);
    assert_string_equal(json_string_value(json_object_get(v, "s")), "18446744073709551615 \" 1");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(v, "i"), 1)), 1234);
    assert_true(json_real_value(json_object_get(v, "r")) == 1184.4674407370955);
    json_decref(v);
    assert_null(lt_json_loadb("[18446744073709551615", 21, 0, NULL));
    assert_null(lt_json_loadb("18446744073709551615x", 21, JSON_DECODE_ANY, NULL));
}

/* Ollama's keep_alive is a number of seconds or a duration as Go's time.ParseDuration reads
 * it. */
static void durations(void **state) {
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"5m", 300},    {"1h30m", 5400}, {"1.5h", 5400},    {"300ms", 0.3},
                {"20us", 2e-5}, {"7ns", 7e-9},   {"2s10ms", 2.01},  {"-1", -1},
                {"300", 300},   {"-1m", -60},    {"-1h30m", -5400}, {"0", 0}};
    static const char *const bad[] = {"", "m", "5x", "5 m", "1h30", "h1"};
    lt_api_error e = {0};
    double seconds = 0.0;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        json_t *value = json_string(good[i].text);
        assert_true(lt_ollama_keep_alive(value, &seconds, &e));
        if (fabs(seconds - good[i].seconds) > 1e-12 * fabs(good[i].seconds)) {
            fail_msg("%s: %.12g s", good[i].text, seconds);
        }
        json_decref(value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *value = json_string(bad[i]);
        if (lt_ollama_keep_alive(value, &seconds, &e)) {
            fail_msg("%s: %.12g s", bad[i], seconds);
        }
        json_decref(value);
    }
    json_t *number = json_real(12.5);
    assert_true(lt_ollama_keep_alive(number, &seconds, &e));
    assert_true(seconds == 12.5);
    json_decref(number);
}

/* Of several spellings the one in the request counts; null counts as absent. */
static void spellings(void **state) {
    static const char *const names[] = {"seed", "n", "min_p", NULL};
    static const struct {
        const char *body, *said;
    } rows[] = {{"{}", "seed"},
                {"{\"n\":2}", "n"},
                {"{\"seed\":null,\"min_p\":0}", "min_p"},
                {"{\"seed\":1,\"n\":2}", "seed"}};
    lt_api_error e;
    lt_api_params a;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(read(&a, rows[i].body, &e));
        assert_string_equal(lt_api_params_said(&a, names), rows[i].said);
        lt_api_params_free(&a);
    }
}

/* The defaults of a request without options: those that docs/serve.md and docs/alignment.md
 * print, and -1 if the model or the server decides. */
static void defaults(void **state) {
    lt_api_params a;
    (void)state;
    lt_api_params_defaults(&a);
    const struct {
        const char *name;
        double got, want;
    } rows[] = {{"n", (double)a.n, 1},
                {"best_of", (double)a.best_of, -1},
                {"temperature", a.temperature, 1},
                {"top_p", a.top_p, 1},
                {"top_k", (double)a.top_k, 0},
                {"min_p", a.min_p, 0},
                {"typical_p", a.typical_p, 1},
                {"repetition", a.repetition, 1},
                {"seed", (double)a.seed, -1},
                {"max_tokens", (double)a.max_tokens, -1},
                {"max_completion_tokens", (double)a.max_completion_tokens, -1},
                {"top_logprobs", (double)a.top_logprobs, -1},
                {"prompt_logprobs", (double)a.prompt_logprobs, -1},
                {"n_probs", (double)a.n_probs, -1},
                {"skip_special", a.skip_special, 1},
                {"parallel_tools", a.parallel_tools, 1},
                {"thinking_budget", (double)a.thinking_budget, -1},
                {"add_generation_prompt", a.add_generation_prompt, 1},
                {"include_reasoning", a.include_reasoning, 1},
                {"dimensions", (double)a.dimensions, -1},
                {"truncate_prompt", (double)a.truncate_prompt, -2},
                {"parse_special", a.parse_special, 1},
                {"repeat_last_n", (double)a.repeat_last_n, -2},
                {"dry_base", a.dry_base, 1.75},
                {"dry_allowed", (double)a.dry_allowed, 2},
                {"dry_last_n", (double)a.dry_last_n, -1},
                {"xtc_threshold", a.xtc_threshold, 0.1},
                {"length_penalty", a.length_penalty, 1},
                {"speculate", a.speculate, 1},
                {"most_drafts", (double)a.most_drafts, 8},
                {"group.n", (double)a.group.n, 1},
                {"group.tail", a.group.tail, 0.25},
                {"group.half_tail", a.group.half_tail, 1},
                {"group.keep", a.group.keep, 0.5},
                {"group.every", (double)a.group.every, 64},
                {"group.window", (double)a.group.window, 2048},
                {"group.warmup", (double)a.group.warmup, 16},
                {"group.eta", a.group.eta, 0.1},
                {"group.tau", a.group.tau, 0.95},
                {"group.seed", (double)a.group.seed, -1},
                {"scale", a.scale, 1},
                {"judge.activate", a.judge.activate, 1},
                {"judge.with_documents", a.judge.with_documents, 1},
                {"mark.gamma", a.mark.gamma, -1},
                {"mark.delta", a.mark.delta, -1},
                {"control.threshold", a.control.threshold, 0.95},
                {"control.budget", (double)a.control.budget, -1},
                {"control.every", (double)a.control.every, 64},
                {"control.agree", (double)a.control.agree, 3},
                {"control.probe_tokens", (double)a.control.probe_tokens, 20},
                {"control.alpha", a.control.alpha, 0.2},
                {"control.delta", a.control.delta, 1e-3},
                {"control.repetition", a.control.repetition, 0.5},
                {"control.window", (double)a.control.window, 256},
                {"control.folds", (double)a.control.folds, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].got != rows[i].want) {
            fail_msg("%s is %g, not %g", rows[i].name, rows[i].got, rows[i].want);
        }
    }
    assert_true(a.group.round == INT64_MAX);
}

/* The status, type and code that clients act on, for each kind of error. */
static void errors(void **state) {
    static const struct {
        lt_err err;
        int status, retry_after_s;
        const char *type, *code;
    } rows[] = {{LT_ERR_LIMIT, 429, 1, "rate_limit_error", "queue_full"},
                {LT_ERR_ARG, 400, 0, "invalid_request_error", NULL},
                {LT_ERR_FORMAT, 400, 0, "invalid_request_error", NULL},
                {LT_ERR_UNSUPPORTED, 400, 0, "invalid_request_error", NULL},
                {LT_ERR_NOT_FOUND, 400, 0, "invalid_request_error", NULL},
                {LT_ERR_IO, 500, 0, "server_error", NULL},
                {LT_ERR_OOM, 500, 0, "server_error", NULL}};
    static const struct {
        const char *body, *code;
    } codes[] = {{"{\"n\":\"2\"}", "invalid_type"},
                 {"{\"n\":1.5}", "invalid_type"},
                 {"{\"n\":0}", "invalid_value"},
                 {"{\"stream\":1}", "invalid_type"},
                 {"{\"model\":[]}", "invalid_type"},
                 {"{\"audio\":{}}", "unsupported_parameter"},
                 {"{\"no_such\":1}", "unknown_parameter"},
                 {"{\"modalities\":[\"audio\"]}", "unsupported_value"}};
    /* Errors that mention files, and what a client gets to see. */
    static const char *const paths[][2] = {
        {"write /srv/lateen/files/file-1.jsonl: No space left on device",
         "write file-1.jsonl: No space left on device"},
        {"/srv/my data/a b.bin cannot be written", "a b.bin cannot be written"},
        {"open '/a/b' (from /c/d/e): no", "open 'b' (from e): no"},
        {"rename /a/b/, then fail", "rename b/, then fail"},
        {"a/b of 1/2 and /think", "a/b of 1/2 and /think"},
        {"", ""}};
    lt_api_error e;
    lt_api_params a;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_error_set(rows[i].err, "why"), rows[i].err);
        assert_false(lt_api_refuse_error(&e, "field", rows[i].err));
        assert_int_equal(e.status, rows[i].status);
        assert_int_equal(e.retry_after_s, rows[i].retry_after_s);
        assert_string_equal(e.type, rows[i].type);
        assert_true((e.code == NULL) == (rows[i].code == NULL));
        assert_true(e.code == NULL || strcmp(e.code, rows[i].code) == 0);
        assert_string_equal(e.param, "field");
        assert_non_null(strstr(e.message, "why"));
    }
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[200];
        snprintf(text, sizeof text, "%s", paths[i][0]);
        lt_api_hide_paths(text);
        assert_string_equal(text, paths[i][1]);
        (void)lt_error_set(LT_ERR_IO, "%s", paths[i][0]);
        assert_false(lt_api_refuse_error(&e, NULL, LT_ERR_IO));
        assert_string_equal(e.message, paths[i][1]);
    }
    assert_false(lt_api_refuse_oom(&e));
    assert_true(e.status == 503 && e.retry_after_s == 1 && strcmp(e.type, "server_error") == 0);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        assert_false(read(&a, codes[i].body, &e));
        if (e.code == NULL || strcmp(e.code, codes[i].code) != 0) {
            fail_msg("%s: code %s", codes[i].body, e.code != NULL ? e.code : "none");
        }
        lt_api_params_free(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_fields),   cmocka_unit_test(refused),
        cmocka_unit_test(unknown_fields), cmocka_unit_test(strings),
        cmocka_unit_test(json_read_back), cmocka_unit_test(wide_integers),
        cmocka_unit_test(durations),      cmocka_unit_test(spellings),
        cmocka_unit_test(defaults),       cmocka_unit_test(errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
