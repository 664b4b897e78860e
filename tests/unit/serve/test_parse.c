/* Output taken apart: every format's examples, cut at every place and byte by byte, give the same parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/parse.h"

typedef struct {
    char reasoning[1024], content[1024], calls[1024];
} heard;

static void put(char *to, const char *s, size_t n) {
    const size_t have = strlen(to);
    assert_true(have + n < 1024);
    memcpy(to + have, s, n);
    to[have + n] = 0;
}

static void hear(void *ctx, lt_part part, int call, const char *text, size_t n) {
    heard *h = ctx;
    char number[16];
    assert_true((call >= 0) == (part >= LT_PART_CALL_NAME));
    if (part == LT_PART_CALL_NAME) {
        snprintf(number, sizeof number, "#%d ", call);
        put(h->calls, number, strlen(number));
    }
    put(part == LT_PART_CONTENT     ? h->content
        : part == LT_PART_REASONING ? h->reasoning
                                    : h->calls,
        text, n);
}

static void check(const lt_parse_options *o, const char *text, size_t cut, size_t step,
                  const heard *want) {
    const size_t n = strlen(text);
    heard h = {0};
    lt_parser *p = NULL;
    assert_int_equal(lt_parser_open(&p, o), LT_OK);
    for (size_t at = 0; at < n;) {
        const size_t len = step > 0             ? (step < n - at ? step : n - at)
                           : at == 0 && cut > 0 ? cut
                                                : n - at;
        assert_int_equal(lt_parser_feed(p, text + at, len, hear, &h), LT_OK);
        at += len;
    }
    assert_int_equal(lt_parser_end(p, hear, &h), LT_OK);
    if (strcmp(h.reasoning, want->reasoning) != 0 || strcmp(h.content, want->content) != 0 ||
        strcmp(h.calls, want->calls) != 0) {
        fail_msg("%s of %s, cut at %zu, step %zu:\nreasoning '%s'\ncontent '%s'\ncalls '%s'",
                 lt_parse_format_name(o->format), text, cut, step, h.reasoning, h.content, h.calls);
    }
    lt_parser_close(p);
}

#define P "\xEF\xBD\x9C"
#define U "\xE2\x96\x81"
static const struct {
    lt_parse_options o;
    const char *text;
    heard want;
} rows[] = {
    {{LT_PARSE_PLAIN, true, true, false}, "Hello <b> world\n", {"", "Hello <b> world\n", ""}},
    {{LT_PARSE_PLAIN, true, true, false},
     "<think>\nhm\n</think>\n\nYes <thin> \n",
     {"hm", "Yes <thin> \n", ""}},
    {{LT_PARSE_PLAIN, true, true, true}, "hm </thin\n</think>\nYes", {"hm </thin", "Yes", ""}},
    {{LT_PARSE_PLAIN, true, true, true}, "cut off \n", {"cut off", "", ""}},
    {{LT_PARSE_PLAIN, true, false, false}, "<think>a</think>b", {"", "<think>a</think>b", ""}},
    {{LT_PARSE_HERMES, true, true, false},
     "<think>t</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, "
     "\"</x>\"]}}\n</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
     {"t", "Let me see.", "#0 f{\"a\": [1, \"</x>\"]}#1 g{}"}},
    {{LT_PARSE_HERMES, true, true, false},
     "a <tool_call>not json</tool_call> b",
     {"", "a<tool_call>not json</tool_call> b", ""}},
    {{LT_PARSE_HERMES, false, true, false},
     "a <tool_call>{}</tool_call>",
     {"", "a <tool_call>{}</tool_call>", ""}},
    {{LT_PARSE_HERMES, true, true, false},
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
     {"", "", "#0 f{\"x\": 1}"}},
    {{LT_PARSE_LLAMA3, true, true, false},
     "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}",
     {"", "", "#0 f{\"q\": \"x\"}"}},
    {{LT_PARSE_LLAMA3, true, true, false},
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     {"", "", "#0 f{}#1 g{}"}},
    {{LT_PARSE_LLAMA3, true, true, false},
     "{\"not\": \"a call\"} indeed",
     {"", "{\"not\": \"a call\"} indeed", ""}},
    {{LT_PARSE_LLAMA3, true, true, false},
     "Text first {\"name\": \"f\"}",
     {"", "Text first {\"name\": \"f\"}", ""}},
    {{LT_PARSE_LLAMA3, true, true, false},
     "<function=f>{\"a\": 1}</function>",
     {"", "", "#0 f{\"a\": 1}"}},
    {{LT_PARSE_MISTRAL, true, true, false},
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": "
     "{}}]",
     {"", "", "#0 f{\"a\": 1}#1 g{}"}},
    {{LT_PARSE_MISTRAL, true, true, false},
     "[THINK]hm[/THINK]ok[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
     {"hm", "ok", "#0 f{\"a\": 1}#1 g{}"}},
    {{LT_PARSE_DEEPSEEK, true, true, true},
     "why\n</think>\nok<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P
     ">function<" P "tool" U "sep" P ">f\n```json\n{\"a\": 1}\n```<" P "tool" U "call" U "end" P
     "><" P "tool" U "calls" U "end" P ">",
     {"why", "ok", "#0 f{\"a\": 1}"}},
    {{LT_PARSE_DEEPSEEK, true, true, false},
     "<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P ">f<" P "tool" U "sep" P
     ">{\"a\": 1}<" P "tool" U "call" U "end" P ">\n<" P "tool" U "call" U "begin" P ">g<" P
     "tool" U "sep" P ">{}<" P "tool" U "call" U "end" P "><" P "tool" U "calls" U "end" P ">",
     {"", "", "#0 f{\"a\": 1}#1 g{}"}},
    {{LT_PARSE_HARMONY, true, true, false},
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|"
     "return|>",
     {"hm", "Yes.", ""}},
    {{LT_PARSE_HARMONY, true, true, false},
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.get_time <|constrain|>json<|message|>{\"tz\": \"CET\"}<|call|>",
     {"hm", "", "#0 get_time{\"tz\": \"CET\"}"}},
};

static void any_cut_gives_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t cut = 0; cut < strlen(rows[i].text); cut++) {
            check(&rows[i].o, rows[i].text, cut, 0, &rows[i].want);
        }
        for (size_t step = 1; step < 8; step++) {
            check(&rows[i].o, rows[i].text, 0, step, &rows[i].want);
        }
    }
}

static void formats_are_detected(void **state) {
    (void)state;
    assert_int_equal(lt_parse_detect("... <tool_call> ..."), LT_PARSE_HERMES);
    assert_int_equal(lt_parse_detect("{{ '<|channel|>' }}"), LT_PARSE_HARMONY);
    assert_int_equal(lt_parse_detect("[TOOL_CALLS]"), LT_PARSE_MISTRAL);
    assert_int_equal(lt_parse_detect("<|python_tag|>"), LT_PARSE_LLAMA3);
    assert_int_equal(lt_parse_detect("<|im_start|>"), LT_PARSE_PLAIN);
    assert_int_equal(lt_parse_detect(NULL), LT_PARSE_PLAIN);
    assert_true(lt_parse_prompt_thinks("<|im_start|>assistant\n<think>\n", 30));
    assert_false(lt_parse_prompt_thinks("<think>\n\n</think>\n\n", 19));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_cut_gives_the_same),
                                       cmocka_unit_test(formats_are_detected)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
