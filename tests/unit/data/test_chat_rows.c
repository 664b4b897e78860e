/* Conversations become the ids and label masks of transformers (goldens by
 * tools/check_chat_rows.py); bad lines; conversations written into a shard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "data/chat_shape.h"
#include "data/chat_rows.h"
#include "data/json_line.h"
#include "data/tokenize.h"
#include "lateen/data.h"

#define GOLDENS   "tests/golden/data/chat_rows.jsonl"
#define TOKENIZER "tests/golden/data/demo_tokenizer.json"

static lt_tokenizer *tokenizer;
static lt_tokenizer_scratch *scratch;

static int set_up(void **state) {
    (void)state;
    return lt_tokenizer_open(&tokenizer, TOKENIZER, NULL) != LT_OK ||
           lt_tokenizer_scratch_open(&scratch, tokenizer) != LT_OK;
}

static int tear_down(void **state) {
    (void)state;
    lt_tokenizer_scratch_close(scratch);
    lt_tokenizer_close(tokenizer);
    return 0;
}

static lt_chat_rows rows_of(const lt_chat_template *t) {
    return (lt_chat_rows){.template = t, .tokenizer = tokenizer, .messages = "messages"};
}

static lt_err encode(const lt_chat_rows *c, const char *line, lt_ids *ids, unsigned char **mask) {
    size_t unused;
    return lt_chat_rows_encode(c, scratch, line, strlen(line), ids, mask, &unused);
}

static void equal_row(const json_t *want, const lt_ids *ids, const unsigned char *mask,
                      const char *line) {
    const json_t *want_ids = json_object_get(want, "ids"), *marks = json_object_get(want, "mask");
    if (ids->n != json_array_size(want_ids)) {
        fail_msg("%s: %zu ids, not %zu", line, ids->n, json_array_size(want_ids));
    }
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->data[i] != (uint32_t)json_integer_value(json_array_get(want_ids, i)) ||
            mask[i] != (unsigned char)json_integer_value(json_array_get(marks, i))) {
            fail_msg("%s: id %zu is %u, mask %u", line, i, ids->data[i], mask[i]);
        }
    }
}

static void equals_transformers(void **state) {
    FILE *f = fopen(GOLDENS, "r");
    char *text = NULL;
    size_t room = 0;
    int n = 0, errors = 0;
    lt_chat_template *t = NULL;
    (void)state;
    assert_non_null(f);
    while (getline(&text, &room, f) > 0) {
        json_t *row = json_loads(text, JSON_ALLOW_NUL, NULL);
        const json_t *want = json_object_get(row, "want");
        const char *source = json_string_value(json_object_get(row, "template"));
        lt_ids ids = {0};
        unsigned char *mask = NULL;
        assert_non_null(row);
        if (source != NULL) {
            lt_chat_template_close(t);
            assert_int_equal(lt_chat_template_open(&t, source, strlen(source), "t"), LT_OK);
        } else {
            const lt_chat_rows c = rows_of(t);
            char *line = json_dumps(json_object_get(row, "line"), 0);
            const lt_err err = encode(&c, line, &ids, &mask);
            assert_int_equal(err == LT_OK, !json_is_null(want));
            n++;
            errors += err != LT_OK;
            if (err == LT_OK) {
                equal_row(want, &ids, mask, line);
            }
            free(line);
        }
        free(mask);
        lt_ids_free(&ids);
        json_decref(row);
    }
    lt_chat_template_close(t);
    free(text);
    fclose(f);
    assert_true(n > 200 && errors > 0);
}

/* The text whose tokens have labels. */
static char *learnt(const lt_chat_rows *c, const char *line) {
    lt_ids ids = {0};
    unsigned char *mask = NULL;
    char *text = NULL;
    size_t bytes, n = 0;
    if (encode(c, line, &ids, &mask) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    for (size_t i = 0; i < ids.n; i++) {
        ids.data[n] = ids.data[i];
        n += mask[i];
    }
    assert_int_equal(lt_tokenizer_decode(tokenizer, ids.data, n, false, &text, &bytes), LT_OK);
    lt_ids_free(&ids);
    free(mask);
    return text;
}

static void expect_learnt(const lt_chat_rows *c, const char *line, const char *want) {
    char *text = learnt(c, line);
    assert_string_equal(text, want);
    free(text);
}

#define TWO_TURNS                                                                                  \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a?\"}, {\"role\": \"assistant\", "        \
    "\"content\": \"one\"}, {\"role\": \"user\", \"content\": \"b?\"}, {\"role\": "                \
    "\"assistant\", \"content\": \"two\"}]}"

static void turns_that_are_learnt(void **state) {
    static const char tagged[] = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' "
                                 "%}{% generation %}{{ m.content }};{% endgeneration %}{% else %}"
                                 "{{ m.content }}{% endif %}{% endfor %}";
    lt_chat_template *t = NULL;
    lt_chat_rows c;
    (void)state;
    assert_int_equal(lt_chat_template_open_format(&t, "chatml"), LT_OK);
    c = rows_of(t);
    expect_learnt(&c, TWO_TURNS, "one<|im_end|>\ntwo<|im_end|>\n");
    c.last_only = true;
    expect_learnt(&c, TWO_TURNS, "two<|im_end|>\n");
    c.prompt = "q";
    c.answer = "a";
    c.last_only = false;
    expect_learnt(&c, "{\"a\": \"yes\", \"q\": \"no?\"}", "yes<|im_end|>\n");
    lt_chat_template_close(t);
    assert_int_equal(lt_chat_template_open(&t, tagged, strlen(tagged), "t"), LT_OK);
    assert_true(lt_chat_template_marks_answers(t));
    c = rows_of(t);
    expect_learnt(&c, TWO_TURNS, "one;two;");
    c.last_only = true;
    expect_learnt(&c, TWO_TURNS, "two;");
    expect_learnt(&c, "{\"messages\": [{\"role\": \"user\", \"content\": \"a?\"}]}", "");
    lt_chat_template_close(t);
}

/* The other shapes in chat_shape.h: in each of them the answer is learnt, and what is only
 * context is not. */
static void other_shapes(void **state) {
    static const char *const cases[][2] = {
        {"{'conversations': [{'from': 'human', 'value': 'a'}, {'from': 'gpt', 'value': 'b'}]}",
         "b<|im_end|>\n"},
        {"{'conversations': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': "
         "'b'}]}",
         "b<|im_end|>\n"},
        {"{'instruction': 'a', 'input': 'b', 'output': 'c', 'history': [['d', 'e']]}",
         "e<|im_end|>\nc<|im_end|>\n"},
        {"{'prompt': 'a', 'completion': 'b'}", "b<|im_end|>\n"},
        {"{'prompt': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b'}, "
         "{'role': 'user', 'content': 'c'}], 'completion': [{'role': 'assistant', 'content': "
         "'d'}]}",
         "d<|im_end|>\n"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b', "
         "'weight': 0}, {'role': 'assistant', 'content': 'c', 'weight': 1}]}",
         "c<|im_end|>\n"},
        {"{'messages': [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b'}], "
         "'tools': '[]', 'instruction': 'not read', 'output': 'x'}",
         "b<|im_end|>\n"},
    };
    static const char *const wrong[][2] = {
        {"{'conversations': 3}", "'conversations' is not a list"},
        {"{'conversations': [{'from': 'cat', 'value': 'b'}]}", "[0]: unknown speaker 'cat'"},
        {"{'conversations': [{'value': 'b'}]}", "[0]: no member 'from'"},
        {"{'conversations': [{'from': 'gpt', 'value': 1}]}", "[0]: 'value' is not a string"},
        {"{'conversations': [{'from': 'function_call', 'value': 'x'}]}", "[0]: a function call"},
        {"{'instruction': 'a', 'input': 'b'}", "no member 'output'"},
        {"{'instruction': 1, 'output': 'b'}", "'instruction' is not a string"},
        {"{'instruction': 'a', 'output': 'b', 'history': [['q']]}", "'history'[0]"},
        {"{'instruction': 'a', 'output': 'b', 'history': 'q'}", "'history' is not a list"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'system': 3}",
         "'system' is not a string"},
        {"{'messages': [{'role': 'system', 'content': 'a'}], 'system': 'b'}",
         "'system' is another text"},
        {"{'prompt': 1, 'completion': 'b'}", "'prompt' is neither"},
        {"{'messages': [{'role': 'user', 'weight': 2}]}", "'weight' is neither 0 nor 1"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'tools': '3'}", "'tools' is neither"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'tools': {}}", "'tools' is neither"},
        {"{'messages': [{'role': 'user', 'content': 'a'}], 'tools': ['f']}",
         "tools[0] is not an object"},
    };
    lt_chat_template *t = NULL;
    lt_chat_rows c;
    (void)state;
    assert_int_equal(lt_chat_template_open_format(&t, "chatml"), LT_OK);
    c = rows_of(t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases + sizeof wrong / sizeof *wrong; i++) {
        const size_t n = sizeof cases / sizeof *cases;
        char *line = strdup(i < n ? cases[i][0] : wrong[i - n][0]);
        lt_ids ids = {0};
        unsigned char *mask = NULL;
        for (char *q = line; (q = strchr(q, '\'')) != NULL;) {
            *q = '"';
        }
        if (i < n) {
            expect_learnt(&c, line, cases[i][1]);
        } else {
            assert_int_not_equal(encode(&c, line, &ids, &mask), LT_OK);
            if (strstr(lt_error_message(), wrong[i - n][1]) == NULL) {
                fail_msg("%s: %s", line, lt_error_message());
            }
        }
        free(line);
    }
    lt_chat_template_close(t);
}

/* A text that contains U+0000 is read completely, and a member `system` comes first, whatever the
 * shape. */
static void lines_are_read_completely(void **state) {
    static const struct {
        const char *line, *says;
        size_t bytes;
    } cases[] = {
        {"{\"instruction\": \"a\\u0000b\", \"output\": \"c\\u0000d\"}", "user:a\0b;assistant:c\0d;",
         23},
        {"{\"instruction\": \"\", \"input\": \"i\\u0000\", \"output\": \"\", \"system\": \"s\"}",
         "system:s;user:i\0;assistant:;", 28},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"system\": \"s\"}",
         "system:s;user:a;", 16},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}], \"system\": \"s\"}",
         "system:s;", 9},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}], \"system\": \"s\"}",
         "system:s;user:a;", 16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *line = json_loads(cases[i].line, JSON_ALLOW_NUL, NULL), *message;
        char text[64];
        size_t at, n = 0;
        assert_int_equal(lt_chat_shape(line, "messages"), LT_OK);
        json_array_foreach(json_object_get(line, "messages"), at, message) {
            const json_t *content = json_object_get(message, "content");
            n += (size_t)snprintf(text + n, sizeof text - n,
                                  "%s:", json_string_value(json_object_get(message, "role")));
            memcpy(text + n, json_string_value(content), json_string_length(content));
            n += json_string_length(content);
            text[n++] = ';';
        }
        assert_int_equal(n, cases[i].bytes);
        assert_memory_equal(text, cases[i].says, n);
        json_decref(line);
    }
}

/* With {% generation %}, too, an answer of weight 0 is read and not learnt; if spans and answers
 * differ in number, which one to leave out is not guessed. */
static void silent_answers(void **state) {
    static const char line[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
        "\"assistant\", \"content\": \"b\", \"weight\": 0}, {\"role\": \"assistant\", "
        "\"content\": \"c\"}]}";
    static const char *const texts[] = {
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% "
        "endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"};
    lt_chat_template *t = NULL;
    lt_chat_rows c;
    lt_ids ids = {0};
    unsigned char *mask = NULL;
    (void)state;
    assert_int_equal(lt_chat_template_open(&t, texts[0], strlen(texts[0]), "t"), LT_OK);
    c = rows_of(t);
    expect_learnt(&c, line, "c;");
    lt_chat_template_close(t);
    assert_int_equal(lt_chat_template_open(&t, texts[1], strlen(texts[1]), "t"), LT_OK);
    c = rows_of(t);
    assert_int_equal(encode(&c, line, &ids, &mask), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "1 spans for 2 answers"));
    lt_chat_template_close(t);
}

static void bad_lines_are_named(void **state) {
    static const struct {
        const char *line, *says;
        lt_err err;
    } cases[] = {
        {"", "column", LT_ERR_FORMAT},
        {"[1]", "a JSON object was expected", LT_ERR_FORMAT},
        {"{\"messages\": [", "column", LT_ERR_FORMAT},
        {"{\"messages\": [], \"messages\": []}", "duplicate object key", LT_ERR_FORMAT},
        {"{}", "no member 'messages'", LT_ERR_NOT_FOUND},
        {"{\"messages\": null}", "no member 'messages'", LT_ERR_NOT_FOUND},
        {"{\"messages\": \"x\"}", "not a list of messages", LT_ERR_FORMAT},
        {"{\"messages\": []}", "it is empty", LT_ERR_FORMAT},
        {"{\"messages\": [1]}", "messages[0]: not an object with a role", LT_ERR_FORMAT},
        {"{\"messages\": [{\"content\": \"x\"}]}", "messages[0]: not an object with a role",
         LT_ERR_FORMAT},
        {"{\"messages\": [{\"role\": 1}]}", "messages[0]: not an object with a role",
         LT_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}", "column",
         LT_ERR_FORMAT},
        {"{\"messages\": [{\"role\": \"user\"}], \"chat_template_kwargs\": 3}", "not an object",
         LT_ERR_FORMAT},
    };
    static const char strips[] = "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last "
                                 "else 'gone' }}{% endfor %}";
    lt_chat_template *t = NULL;
    lt_chat_rows c;
    lt_ids ids = {0};
    unsigned char *mask = NULL;
    (void)state;
    assert_int_equal(lt_chat_template_open_format(&t, "chatml"), LT_OK);
    c = rows_of(t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(encode(&c, cases[i].line, &ids, &mask), cases[i].err);
        if (strstr(lt_error_message(), cases[i].says) == NULL) {
            fail_msg("%s: %s", cases[i].line, lt_error_message());
        }
    }
    lt_chat_template_close(t);
    assert_int_equal(lt_chat_template_open(&t, strips, strlen(strips), "t"), LT_OK);
    c = rows_of(t);
    assert_int_equal(encode(&c, TWO_TURNS, &ids, &mask), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "messages["));
    lt_chat_template_close(t);
    lt_ids_free(&ids);
}

static void lone_surrogates(void **state) {
    static const struct {
        const char *line, *replaced;
        lt_lone_escapes lone;
    } cases[] = {
        {"\\ud800", "\\ufffd", {1, 0}},
        {"\\ud83d\\ude00\\ude00", "\\ud83d\\ude00\\ufffd", {1, 12}},
        {"\\\\ud800 \\n\\udfff", "\\\\ud800 \\n\\ufffd", {1, 10}},
        {"\\ud800\\ud83d\\ude00", "\\ufffd\\ud83d\\ude00", {1, 0}},
        {"a\\ud800\\udbff\\udc00\\ud800", "a\\ufffd\\udbff\\udc00\\ufffd", {2, 1}},
        {"\\ud7ff\\ue000\\udfff", "\\ud7ff\\ue000\\ufffd", {1, 12}},
        {"\\u12", "\\u12", {0}},
        {"x\\", "x\\", {0}},
        {"\\ud8", "\\ud8", {0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = strlen(cases[i].line);
        lt_lone_escapes lone;
        /* Of exactly its size, so that a sanitizer sees a read past its end. */
        char *line = malloc(n + 1);
        assert_non_null(line);
        memcpy(line, cases[i].line, n);
        lone = lt_json_line_lone(line, n);
        assert_int_equal(lone.n, cases[i].lone.n);
        assert_int_equal(lone.first, cases[i].lone.first);
        lt_json_line_replace_lone(line, n);
        assert_memory_equal(line, cases[i].replaced, n);
        assert_int_equal(lt_json_line_lone(line, n).n, 0);
        free(line);
    }
}

static lt_err encode_row(void *ctx, int worker, const lt_record_line *line, lt_id_buffer *out,
                         lt_text_buffer *mask, size_t *text_bytes) {
    lt_ids ids = {0};
    unsigned char *marks = NULL;
    lt_err err = LT_OK;
    (void)worker;
    LT_TRY_DONE(
        lt_chat_rows_encode(ctx, scratch, line->text, line->bytes, &ids, &marks, text_bytes));
    LT_TRY_DONE(lt_id_buffer_reserve(out, out->n + ids.n));
    LT_TRY_DONE(lt_text_buffer_reserve(mask, out->n + ids.n));
    for (size_t i = 0; i < ids.n; i++, out->n++) {
        out->ids[out->n] = (int32_t)ids.data[i];
        mask->data[out->n] = (char)marks[i];
    }
done:
    free(marks);
    lt_ids_free(&ids);
    return err;
}

/* BOS once, EOD without a label, a bad line reported by its number, and the lines before it
 * kept. */
static void conversations_become_a_shard(void **state) {
    static const char lines[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                                "{\"role\": \"assistant\", \"content\": \"b\\ud800\"}]}\n";
    static const char template_text[] =
        "<|endoftext|>{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ "
        "m.content }}{% endgeneration %}{% else %}{{ m.content }}:{% endif %}{% endfor %}";
    const uint32_t end = lt_tokenizer_find(tokenizer, "<|endoftext|>", 13);
    char folder[] = "/tmp/lateen-chat-XXXXXX", file[64], prefix[64], path[70], *mask = NULL;
    const char *const input = file;
    lt_chat_template *t = NULL;
    lt_chat_rows c;
    lt_tokenize_stats stats;
    lt_tokenize_options o = {.inputs = &input,
                             .n_inputs = 1,
                             .text.utf8 = LT_UTF8_REPLACE,
                             .out_prefix = prefix,
                             .vocab_size = lt_tokenizer_describe(tokenizer).n_ids,
                             .bos_id = end,
                             .eod_id = end,
                             .n_threads = 1,
                             .encode_record = encode_row,
                             .encode_ctx = &c};
    size_t n;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/x.jsonl", folder);
    snprintf(prefix, sizeof prefix, "%s/x", folder);
    snprintf(path, sizeof path, "%s.mask", prefix);
    assert_int_equal(lt_chat_template_open(&t, template_text, strlen(template_text), "t"), LT_OK);
    c = rows_of(t);
    assert_int_equal(lt_file_write_atomic(file, lines, strlen(lines)), LT_OK);
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_OK);
    assert_int_equal(stats.documents, 1);
    assert_int_equal(lt_file_read(&mask, &n, path, 1000), LT_OK);
    assert_int_equal(n, stats.tokens);
    assert_memory_equal(mask, "\0\0\0\1", 4); /* BOS a : b. */
    assert_int_equal(mask[n - 1], 0);
    assert_int_equal(stats.labels, n - 4);
    free(mask);
    o.text.utf8 = LT_UTF8_FAIL;
    o.overwrite = true;
    assert_int_equal(lt_tokenize_files(&o, &stats), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "x.jsonl:1: column"));
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    lt_chat_template_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),          cmocka_unit_test(turns_that_are_learnt),
        cmocka_unit_test(bad_lines_are_named),          cmocka_unit_test(lone_surrogates),
        cmocka_unit_test(conversations_become_a_shard), cmocka_unit_test(other_shapes),
        cmocka_unit_test(lines_are_read_completely),    cmocka_unit_test(silent_answers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
