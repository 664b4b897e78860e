/* Chat templates: equal to transformers on published templates, on random ones, and on small ones
 * for each filter, method and statement (goldens by tools/check_templates.py and
 * tools/make_jinja_expressions.py); the bounds of the sandbox; where a model's template is
 * found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "data/chat_template.h"

#define GOLDENS     "tests/golden/data/chat_templates.jsonl"
#define EXPRESSIONS "tests/golden/data/jinja_expressions.jsonl"

/* The text, malloc'ed, or NULL, with the message of the failure. */
static char *render(const char *template_text, size_t bytes, const json_t *context, lt_err *err) {
    lt_chat_template *t = NULL;
    char *text = NULL;
    size_t n = 0;
    *err = lt_chat_template_open(&t, template_text, bytes, "t");
    if (*err == LT_OK) {
        *err = lt_chat_template_render(t, context, &text, &n);
        if (*err == LT_OK) {
            assert_int_equal(strlen(text), n);
        }
    }
    lt_chat_template_close(t);
    return text;
}

static char *render_json(const char *template_text, const char *context, lt_err *err) {
    json_t *j = json_loads(context, 0, NULL);
    char *text;
    assert_non_null(j);
    text = render(template_text, strlen(template_text), j, err);
    json_decref(j);
    return text;
}

static void expect(const char *template_text, const char *context, const char *want) {
    lt_err err;
    char *text = render_json(template_text, context, &err);
    if (want == NULL) {
        assert_int_not_equal(err, LT_OK);
        return;
    }
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    assert_string_equal(text, want);
    free(text);
}

/* Integers beyond 64 bits are rendered with all their digits. The texts are Jinja2's for the same
 * context, except that arithmetic makes them floats. */
static void long_integers(void **state) {
    static const char context[] =
        "{\"x\": 18446744073709551615, \"y\": -9223372036854775809, "
        "\"tool\": {\"maximum\": 340282366920938463463374607431768211455}}";
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"{{ x }}", "18446744073709551615"},
        {"{{ y }} {{ [x] }}", "-9223372036854775809 [18446744073709551615]"},
        {"{{ tool | tojson }}", "{\"maximum\": 340282366920938463463374607431768211455}"},
        {"{{ 'id ' ~ x }}", "id 18446744073709551615"},
        {"{{ x is number }} {{ x is integer }} {{ x is string }} {{ x is float }} {{ x is mapping "
         "}}",
         "True True False False False"},
        {"{{ x > 1 }} {{ y < x }} {{ x == x }} {{ x == y }} {{ x == 1 }}",
         "True True True False False"},
        {"{{ x | int }} {{ x | string | length }} {{ x | float }}",
         "18446744073709551615 20 1.8446744073709552e+19"},
        {"{% if x %}yes{% endif %} {{ x | round }}", "yes 18446744073709551615"},
        {"{{ -y }} {{ y | abs }}", "9.223372036854776e+18 9.223372036854776e+18"},
        {"{{ '%d' % x }}", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *j = lt_json_loadb_exact(context, strlen(context), 0, NULL);
        lt_err err;
        char *text = render(rows[i].text, strlen(rows[i].text), j, &err);
        if (rows[i].want == NULL) {
            assert_int_not_equal(err, LT_OK);
        } else if (err != LT_OK) {
            fail_msg("%s: %s", rows[i].text, lt_error_message());
        } else {
            assert_string_equal(text, rows[i].want);
        }
        free(text);
        json_decref(j);
    }
}

/* Render every template of a file; at least so many must give a text. */
static void equal(const char *path, int least) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    json_t *templates = json_object(), *context = NULL;
    int texts = 0, errors = 0, bad = 0;
    assert_non_null(f);
    setenv("TZ", "UTC", 1);
    while (getline(&line, &room, f) > 0) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        const json_t *want = json_object_get(row, "want"), *name = json_object_get(row, "name");
        const json_t *text = json_object_get(row, "template"),
                     *own = json_object_get(row, "context");
        lt_err err;
        char *got;
        assert_non_null(row);
        /* A template that is to be added later, or the context of the random ones. */
        if (want == NULL) {
            if (text != NULL) {
                json_object_set(templates, json_string_value(name), (json_t *)(uintptr_t)text);
            } else {
                context = json_incref((json_t *)(uintptr_t)own);
            }
            json_decref(row);
            continue;
        }
        text = text != NULL ? text : json_object_get(templates, json_string_value(name));
        got = render(json_string_value(text), json_string_length(text), own != NULL ? own : context,
                     &err);
        texts += err == LT_OK;
        errors += err != LT_OK;
        if ((err == LT_OK) != json_is_string(want) ||
            (err == LT_OK && strcmp(got, json_string_value(want)) != 0)) {
            bad++;
            print_message("template %.300s\nwant %.300s\ngot  %.300s\n", json_string_value(text),
                          json_is_string(want) ? json_string_value(want) : "an error",
                          err == LT_OK ? got : lt_error_message());
        }
        free(got);
        json_decref(row);
    }
    print_message("%d texts, %d errors as transformers has them, %d differ\n", texts, errors, bad);
    assert_true(texts > least && bad == 0);
    json_decref(templates);
    json_decref(context);
    free(line);
    fclose(f);
}

static void equals_transformers(void **state) {
    (void)state;
    equal(GOLDENS, 500);
}

/* Each filter, method, test, operator and statement, with its options. */
static void expressions_equal_transformers(void **state) {
    (void)state;
    equal(EXPRESSIONS, 500);
}

static void raise_is_an_error(void **state) {
    lt_err err;
    (void)state;
    render_json("{{ raise_exception('no ' ~ role) }}", "{\"role\": \"tool\"}", &err);
    assert_int_equal(err, LT_ERR_ARG);
    assert_string_equal(lt_error_message(), "no tool");
    render_json("a\n{{ x.y.z }}", "{}", &err);
    assert_int_equal(err, LT_ERR_ARG);
    assert_string_equal(lt_error_message(), "t:2: 'x' is undefined");
    render_json("\n{% if x %}", "{}", &err);
    assert_int_equal(err, LT_ERR_FORMAT);
    assert_string_equal(lt_error_message(),
                        "t:2: expected {% endif %}, found the end of the template");
    expect("{% include 'x' %}", "{}", NULL);
    expect("{{ [].append(1) }}", "{}", NULL);
    expect("{% for x in [1] if %}{{ x }}{% endfor %}", "{}", NULL);
    expect("{{ {}.update({}) }}|{{ {}.update() }}", "{}", NULL);
    expect("{{ ''.__class__ }}|{{ ().__class__.__mro__ }}", "{}", NULL);
}

static void bounds_hold(void **state) {
    char deep[2048];
    lt_err err;
    (void)state;
    render_json("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "{}", &err);
    assert_int_equal(err, LT_ERR_LIMIT);
    render_json("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{}", &err);
    assert_int_equal(err, LT_ERR_LIMIT);
    render_json("{{ ('a' * 99999999) * 99999999 }}", "{}", &err);
    assert_int_equal(err, LT_ERR_LIMIT);
    render_json("{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s "
                "%}{% endfor %}",
                "{}", &err);
    assert_int_equal(err, LT_ERR_LIMIT);
    memset(deep, '(', sizeof deep);
    memcpy(deep, "{{", 2);
    deep[sizeof deep - 1] = 0;
    render_json(deep, "{}", &err);
    assert_int_equal(err, LT_ERR_LIMIT);
    render_json("{{ 99999999999999999999 }}", "{}", &err);
    assert_int_equal(err, LT_ERR_LIMIT);
}

/* As in Python's integers. */
static void powers(void **state) {
    (void)state;
    expect("{{ (-1) ** 2 }} {{ (-1) ** 3 }} {{ 0 ** 0 }} {{ 0 ** 3 }} {{ 1 ** 9 }} {{ (-1) ** 0 }} "
           "{{ (-3) ** 3 }} {{ 2 ** 62 }} {{ 2 ** -1 }}",
           "{}", "1 -1 1 0 1 1 -27 4611686018427387904 0.5");
    expect("{{ 2 ** 63 }}", "{}", NULL);
    expect("{{ 0 ** -1 }}", "{}", NULL);
}

static void clock_can_be_set(void **state) {
    (void)state;
    setenv("TZ", "UTC", 1);
    expect("{{ strftime_now('%Y-%m-%d %H:%M') }}", "{\"lateen_now\": 1753000000}",
           "2025-07-20 08:26");
}

static void formats_are_templates(void **state) {
    lt_chat_template *t = NULL;
    json_t *context = json_loads("{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
                                 "{\"role\": \"user\", \"content\": \"U\"}],"
                                 " \"add_generation_prompt\": true}",
                                 0, NULL);
    char *text = NULL;
    size_t n;
    (void)state;
    assert_int_equal(lt_chat_template_open_format(&t, "chatml"), LT_OK);
    assert_int_equal(lt_chat_template_render(t, context, &text, &n), LT_OK);
    assert_string_equal(
        text,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    lt_chat_template_close(t);
    json_decref(context);
    assert_int_equal(lt_chat_template_open_format(&t, "nothing"), LT_ERR_NOT_FOUND);
}

static void write_file(const char *folder, const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
}

static void models_have_templates(void **state) {
    char folder[] = "build/test_chat_template_XXXXXX", path[LT_PATH_BYTES];
    lt_chat_template *t = NULL;
    json_t *context = json_object();
    char *text = NULL;
    size_t n;
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(lt_chat_template_open_model(&t, folder, NULL, NULL), LT_ERR_NOT_FOUND);
    write_file(
        folder, "tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": \"<e>\", \"chat_template\": ["
        "{\"name\": \"default\", \"template\": \"{{ bos_token }}D{{ eos_token }}\"}, {\"name\": "
        "\"tool_use\", \"template\": \"T\"}]}");
    assert_int_equal(lt_chat_template_open_model(&t, folder, NULL, NULL), LT_OK);
    assert_int_equal(lt_chat_template_render(t, context, &text, &n), LT_OK);
    assert_string_equal(text, "<b>D<e>");
    free(text);
    lt_chat_template_close(t);
    assert_int_equal(lt_chat_template_open_model(&t, folder, NULL, "tool_use"), LT_OK);
    assert_string_equal(lt_chat_template_text(t), "T");
    lt_chat_template_close(t);
    assert_int_equal(lt_chat_template_open_model(&t, folder, NULL, "rag"), LT_ERR_NOT_FOUND);
    write_file(folder, "chat_template.jinja", "J");
    /* A file in the folder may be named instead. */
    assert_int_equal(lt_path_join(path, folder, "model.safetensors"), LT_OK);
    assert_int_equal(lt_chat_template_open_model(&t, path, NULL, NULL), LT_OK);
    assert_string_equal(lt_chat_template_text(t), "J");
    lt_chat_template_close(t);
    json_decref(context);
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_transformers),
                                       cmocka_unit_test(expressions_equal_transformers),
                                       cmocka_unit_test(raise_is_an_error),
                                       cmocka_unit_test(bounds_hold),
                                       cmocka_unit_test(powers),
                                       cmocka_unit_test(long_integers),
                                       cmocka_unit_test(clock_can_be_set),
                                       cmocka_unit_test(formats_are_templates),
                                       cmocka_unit_test(models_have_templates)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
