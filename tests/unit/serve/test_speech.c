/* Reasoning and calls out of a chat model's text: however it is cut into pieces, the same items come out, and no mark leaks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "serve/speech.h"

typedef struct {
    const char *marks; /* A text as a template would hold it. */
    lt_listen listen;
    const char *text;
    const char *want; /* Items: c: content, r: reasoning, f: name(arguments); '|' between. */
} row;

static const row rows[] = {
    {"</think>", {.think = true}, "<think>\nhm</think>\n\nYes", "r:hm|c:Yes"},
    {"</think>", {.think = true}, "  <think>a < b </thin </think>c", "r:a < b </thin |c:c"},
    {"</think>", {.think = true}, "No <think>x</think>", "c:No <think>x</think>"},
    {"</think>", {.think = true}, "<thing>", "c:<thing>"},
    {"</think>", {.think = true, .opened = true}, "deep</think>\n\nA", "r:deep|c:A"},
    {"</think>", {.think = true, .opened = true}, "cut off </thi", "r:cut off </thi"},
    {"</think>", {.think = false}, "<think>x</think>", "c:<think>x</think>"},
    {"[/THINK]", {.think = true}, "[THINK]m[/THINK]A", "r:m|c:A"},
    {"<tool_call>",
     {.tools = true},
     "Hi <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
     "1}}\n</tool_call>\n<tool_call>{\"name\":\"g\","
     "\"arguments\":{}}</tool_call>\n",
     "c:Hi |f:f({\"a\":1})|f:g({})"},
    {"<tool_call></think>",
     {.tools = true, .think = true},
     "<think>r</think><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>done",
     "r:r|f:f({})|c:done"},
    {"<tool_call>",
     {.tools = true},
     "<tool_call>nonsense</tool_call>",
     "c:<tool_call>nonsense</tool_call>"},
    {"<tool_call>", {.tools = true}, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "f:f({})"},
    {"<tool_call>", {.tools = false}, "<tool_call>{}</tool_call>", "c:<tool_call>{}</tool_call>"},
    {"[TOOL_CALLS]",
     {.tools = true},
     "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"x\":\"]\"}},{\"name\":\"g\",\"arguments\":{}}]",
     "f:f({\"x\":\"]\"})|f:g({})"},
    {"[TOOL_CALLS]", {.tools = true}, "[TOOL_CALLS]f[ARGS]{\"x\": 2}", "f:f({\"x\":2})"},
    {"",
     {.tools = true, .bare = true},
     " {\"name\":\"f\",\"parameters\":{\"q\":[1]}}",
     "f:f({\"q\":[1]})"},
    {"", {.tools = true, .bare = true}, "{\"no\": 1}", "c:{\"no\": 1}"},
    {"", {.tools = true, .bare = true}, "Plain {\"name\":\"f\"}", "c:Plain {\"name\":\"f\"}"},
    {"", {0}, "Nothing to hear", "c:Nothing to hear"},
};

static void on(lt_strand *c, int item, bool fresh, const char *text, size_t n) {
    lt_json_out *heard = c->reply->face_state;
    const lt_speech_item *i = &((const lt_speech *)c->face)->items[item];
    if (fresh) {
        if (heard->n > 0) {
            lt_out_raw(heard, "|", 1);
        }
        lt_out_rawf(heard, i->kind == LT_SPEECH_CALL ? "f:%s(" : "%s",
                    i->kind == LT_SPEECH_CALL      ? i->name
                    : i->kind == LT_SPEECH_CONTENT ? "c:"
                                                   : "r:");
    }
    lt_out_raw(heard, text, n);
    if (i->kind == LT_SPEECH_CALL && n > 0) {
        lt_out_raw(heard, ")", 1);
    }
}

static void any_cut(void **state) {
    static lt_server s;
    static lt_reply r;
    lt_rng rng = {.seed = 3};
    (void)state;
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const size_t n = strlen(rows[i].text);
            lt_json_out heard = {0};
            lt_strand c = {.reply = &r};
            s.marks = lt_speech_detect(rows[i].marks);
            r.server = &s;
            r.listen = rows[i].listen;
            r.face_state = &heard;
            assert_true(lt_speech_open(&c));
            for (size_t at = 0; at < n;) {
                const size_t most = round == 0 ? n : 7;
                const size_t part = 1 + lt_rng_below(&rng, n - at < most ? n - at : most);
                lt_speech_feed(&c, rows[i].text + at, part, on);
                at += part;
            }
            lt_speech_end(&c, on);
            assert_string_equal(heard.data != NULL ? heard.data : "", rows[i].want);
            lt_speech_close(&c);
            lt_out_free(&heard);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
