/* Parsing of model output: the examples of every format, cut at every place and byte by byte,
 * give the same parts. */
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

static void hear(void *ctx, lt_part_kind part, int call, const char *text, size_t n) {
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
#define WITH(open, close, name, calls, thoughts, inside)                                           \
    {                                                                                              \
        .format = (name), .tools = (calls), .reasoning = (thoughts), .thinks = (inside),           \
        .think_open = (open), .think_close = (close)                                               \
    }
#define OF(...)      WITH(NULL, NULL, __VA_ARGS__)
#define MISTRAL(...) WITH("[THINK]", "[/THINK]", LT_PARSE_MISTRAL, __VA_ARGS__)
#define APERTUS(...) WITH("<|inner_prefix|>", "<|inner_suffix|>", LT_PARSE_APERTUS, __VA_ARGS__)
static const struct {
    lt_parse_options o;
    const char *text;
    heard want;
} rows[] = {
    {OF(LT_PARSE_PLAIN, true, true, false), "Hello <b> world\n", {"", "Hello <b> world\n", ""}},
    {OF(LT_PARSE_PLAIN, true, true, false),
     "<think>\nhm\n</think>\n\nYes <thin> \n",
     {"hm", "Yes <thin> \n", ""}},
    {OF(LT_PARSE_PLAIN, true, true, true), "hm </thin\n</think>\nYes", {"hm </thin", "Yes", ""}},
    {OF(LT_PARSE_PLAIN, true, true, true), "cut off \n", {"cut off", "", ""}},
    {OF(LT_PARSE_PLAIN, true, false, false), "<think>a</think>b", {"", "<think>a</think>b", ""}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "<think>t</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, "
     "\"</x>\"]}}\n</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
     {"t", "Let me see.", "#0 f{\"a\": [1, \"</x>\"]}#1 g{}"}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "a <tool_call>not json</tool_call> b",
     {"", "a<tool_call>not json</tool_call> b", ""}},
    {OF(LT_PARSE_HERMES, false, true, false),
     "a <tool_call>{}</tool_call>",
     {"", "a <tool_call>{}</tool_call>", ""}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}",
     {"", "", "#0 f{\"x\": 1}"}},
    {OF(LT_PARSE_LLAMA3, true, true, false),
     "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}",
     {"", "", "#0 f{\"q\": \"x\"}"}},
    {OF(LT_PARSE_LLAMA3, true, true, false),
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     {"", "", "#0 f{}#1 g{}"}},
    {OF(LT_PARSE_LLAMA3, true, true, false),
     "{\"not\": \"a call\"} indeed",
     {"", "{\"not\": \"a call\"} indeed", ""}},
    {OF(LT_PARSE_LLAMA3, true, true, false),
     "Text first {\"name\": \"f\"}",
     {"", "Text first {\"name\": \"f\"}", ""}},
    {OF(LT_PARSE_LLAMA3, true, true, false),
     "<function=f>{\"a\": 1}</function>",
     {"", "", "#0 f{\"a\": 1}"}},
    {OF(LT_PARSE_MISTRAL, true, true, false),
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": "
     "{}}]",
     {"", "", "#0 f{\"a\": 1}#1 g{}"}},
    {WITH("<seed:think>", "</seed:think>", LT_PARSE_HERMES, true, true, true),
     "a</think>b</seed:think>\nYes",
     {"a</think>b", "Yes", ""}},
    {WITH("<seed:think>", "</seed:think>", LT_PARSE_PLAIN, true, true, false),
     "<seed:think>a</seed:think><think>b</think>",
     {"a", "<think>b</think>", ""}},
    {OF(LT_PARSE_HARMONY, true, true, true),
     "hm<|end|><|start|>assistant<|channel|>final<|message|>Yes",
     {"hm", "Yes", ""}},
    {MISTRAL(true, true, false),
     "[THINK]hm[/THINK]ok[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
     {"hm", "ok", "#0 f{\"a\": 1}#1 g{}"}},
    {OF(LT_PARSE_DEEPSEEK, true, true, true),
     "why\n</think>\nok<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P
     ">function<" P "tool" U "sep" P ">f\n```json\n{\"a\": 1}\n```<" P "tool" U "call" U "end" P
     "><" P "tool" U "calls" U "end" P ">",
     {"why", "ok", "#0 f{\"a\": 1}"}},
    {OF(LT_PARSE_DEEPSEEK, true, true, false),
     "<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P ">f<" P "tool" U "sep" P
     ">{\"a\": 1}<" P "tool" U "call" U "end" P ">\n<" P "tool" U "call" U "begin" P ">g<" P
     "tool" U "sep" P ">{}<" P "tool" U "call" U "end" P "><" P "tool" U "calls" U "end" P ">",
     {"", "", "#0 f{\"a\": 1}#1 g{}"}},
    {OF(LT_PARSE_DEEPSEEK31, true, true, false),
     "ok<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P ">f<" P "tool" U
     "sep" P ">{\"a\": \"}\"}<" P "tool" U "call" U "end" P "><" P "tool" U "call" U "begin" P
     ">g<" P "tool" U "sep" P ">{}<" P "tool" U "call" U "end" P "><" P "tool" U "calls" U "end" P
     ">\n",
     {"", "ok", "#0 f{\"a\": \"}\"}#1 g{}"}},
    {OF(LT_PARSE_MISTRAL_ARGS, true, true, false),
     "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}",
     {"", "", "#0 f{\"a\": 1}#1 g{}"}},
    {OF(LT_PARSE_MISTRAL, true, true, false),
     "[TOOL_CALLS] are a mark",
     {"", "[TOOL_CALLS] are a mark", ""}},
    {OF(LT_PARSE_MISTRAL, true, true, false),
     "[TOOL_CALLS][{\"arguments\": {\"a\": [1, 2]}, \"name\": \"f\", \"id\": \"x\"}, {\"name\": "
     "\"g\", \"arguments\": {}, \"id\": \"}\"}]",
     {"", "", "#0 f{\"a\": [1, 2]}#1 g{}"}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "<tool_call>{\"name\": \"f\"}</tool_call>done",
     {"", "done", "#0 f{}"}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
     {"", "", "#0 f{\"a\": 1}"}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>",
     {"", "", "#0 f{}"}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"cut off in the mid",
     {"", "", "#0 f{\"text\": \"cut off in the mid"}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "<tool_call>{\"name\": \"f",
     {"", "<tool_call>{\"name\": \"f", ""}},
    {OF(LT_PARSE_HERMES, true, true, false),
     "No <think>x</think>",
     {"", "No <think>x</think>", ""}},
    {OF(LT_PARSE_LLAMA3, true, true, false),
     "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"q\": 1}}}",
     {"", "", "#0 f{\"q\": 1}"}},
    {OF(LT_PARSE_PLAIN, true, true, false),
     "<think>hm</think> {\"name\": \"f\", \"arguments\": {\"q\": {}}}",
     {"hm", "", "#0 f{\"q\": {}}"}},
    {OF(LT_PARSE_PLAIN, true, true, false), "[1, 2] {", {"", "[1, 2] {", ""}},
    {APERTUS(true, true, false),
     "<|inner_prefix|>hm<|inner_suffix|>ok<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": "
     "{}}]<|tools_suffix|>",
     {"hm", "ok", "#0 f{\"a\": 1}#1 g{}"}},
    {APERTUS(true, true, true),
     "hm<|tools_prefix|>[{\"f\": {}}]<|tools_suffix|>done",
     {"hm", "done", "#0 f{}"}},
    {APERTUS(true, true, false), "<|tools_prefix|>none", {"", "<|tools_prefix|>none", ""}},
    {OF(LT_PARSE_PLAIN, false, true, false),
     "{\"name\": \"f\", \"arguments\": {}}",
     {"", "{\"name\": \"f\", \"arguments\": {}}", ""}},
    {OF(LT_PARSE_HARMONY, true, true, false),
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant "
     "to=functions.f<|channel|>commentary "
     "json<|message|>{\"a\": 1}",
     {"hm", "", "#0 f{\"a\": 1}"}},
    {OF(LT_PARSE_HARMONY, true, true, false),
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|"
     "return|>",
     {"hm", "Yes.", ""}},
    {OF(LT_PARSE_HARMONY, true, true, false),
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

typedef struct {
    char text[512];
    bool named;
    int n_pieces;
} pieces;

static void count(void *ctx, lt_part_kind part, int call, const char *text, size_t n) {
    pieces *p = ctx;
    (void)call;
    p->named = p->named || part == LT_PART_CALL_NAME;
    if (part == LT_PART_CALL_ARGS) {
        assert_true(p->named);
        p->n_pieces++;
        put(p->text, text, n);
    }
}

/* Arguments are returned as they arrive: nothing of a piece is held back. */
static void arguments_stream(void **state) {
    static const struct {
        lt_parse_format format;
        const char *head;
    } heads[] = {
        {LT_PARSE_HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": "},
        {LT_PARSE_LLAMA3, "{\"name\": \"f\", \"parameters\": "},
        {LT_PARSE_PLAIN, "{\"name\": \"f\", \"arguments\":"},
        {LT_PARSE_MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": "},
        {LT_PARSE_MISTRAL_ARGS, "[TOOL_CALLS]f[ARGS]"},
        {LT_PARSE_DEEPSEEK, "<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P
                            ">function<" P "tool" U "sep" P ">f\n```json\n"},
        {LT_PARSE_DEEPSEEK31, "<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P
                              ">f<" P "tool" U "sep" P ">"},
        {LT_PARSE_APERTUS, "<|tools_prefix|>[{\"f\": "},
        {LT_PARSE_HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"}};
    static const char args[] = "{\"city\":\"Bern\",\"days\":[1,2,{\"x\":null}]}";
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        pieces p = {0};
        lt_parser *parser = NULL;
        assert_int_equal(
            lt_parser_open(&parser, &(lt_parse_options){.format = heads[i].format, .tools = true}),
            LT_OK);
        assert_int_equal(lt_parser_feed(parser, heads[i].head, strlen(heads[i].head), count, &p),
                         LT_OK);
        for (size_t at = 0; at < strlen(args); at++) {
            assert_int_equal(lt_parser_feed(parser, args + at, 1, count, &p), LT_OK);
            if (p.n_pieces != (int)at + 1) {
                fail_msg("%s: %d pieces behind %zu bytes", lt_parse_format_name(heads[i].format),
                         p.n_pieces, at + 1);
            }
        }
        assert_string_equal(p.text, args);
        lt_parser_close(parser);
    }
}

/* A call that a limit cuts off, at every byte: no part of its spelling becomes content, its name
 * is complete or absent, its arguments are those that arrived, whether the text came in one piece
 * or in bytes. */
static void calls_cut_anywhere(void **state) {
    static const struct {
        lt_parse_format format;
        const char *text;
        size_t named; /* From this many bytes on the call exists. */
    } rows_cut[] = {
        {LT_PARSE_HERMES,
         "<tool_call>\n{\"name\": \"fun\", \"arguments\": {\"a\": 1}}\n</tool_call>", 26},
        {LT_PARSE_LLAMA3, "{\"name\": \"fun\", \"parameters\": {\"a\": 1}}", 14},
        {LT_PARSE_LLAMA3, "<|python_tag|>{\"name\": \"fun\", \"parameters\": {\"a\": 1}}", 28},
        {LT_PARSE_PLAIN, "{\"name\": \"fun\", \"arguments\": {\"a\": 1}}", 14},
        {LT_PARSE_MISTRAL, "[TOOL_CALLS] [{\"name\": \"fun\", \"arguments\": {\"a\": 1}}]", 28},
        {LT_PARSE_MISTRAL_ARGS, "[TOOL_CALLS]fun[ARGS]{\"a\": 1}", 16},
        {LT_PARSE_DEEPSEEK,
         "<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P ">function<" P
         "tool" U "sep" P ">fun\n```json\n{\"a\": 1}\n```<" P "tool" U "call" U "end" P "><" P
         "tool" U "calls" U "end" P ">",
         85},
        {LT_PARSE_DEEPSEEK31,
         "<" P "tool" U "calls" U "begin" P "><" P "tool" U "call" U "begin" P ">fun<" P "tool" U
         "sep" P ">{\"a\": 1}<" P "tool" U "call" U "end" P "><" P "tool" U "calls" U "end" P ">",
         59},
        {LT_PARSE_APERTUS, "<|tools_prefix|>[{\"fun\": {\"a\": 1}}]<|tools_suffix|>", 23},
        {LT_PARSE_HARMONY,
         "<|channel|>commentary to=functions.fun <|constrain|>json<|message|>{\"a\": 1}<|call|>",
         39}};
    (void)state;
    for (size_t i = 0; i < sizeof rows_cut / sizeof *rows_cut; i++) {
        const char *text = rows_cut[i].text;
        for (size_t n = 0; n <= strlen(text); n++) {
            const size_t args = n < strlen(text) ? n : strlen(text);
            for (size_t step = 1; step <= args + 1; step += args > 0 ? args : 1) {
                heard h = {0};
                lt_parser *p = NULL;
                assert_int_equal(
                    lt_parser_open(
                        &p, &(lt_parse_options){.format = rows_cut[i].format, .tools = true}),
                    LT_OK);
                for (size_t at = 0; at < n; at += step) {
                    assert_int_equal(
                        lt_parser_feed(p, text + at, n - at < step ? n - at : step, hear, &h),
                        LT_OK);
                }
                assert_int_equal(lt_parser_cut(p, NULL, true, hear, &h), LT_OK);
                if (h.content[0] != '\0' || (h.calls[0] != '\0') != (n >= rows_cut[i].named) ||
                    (n >= rows_cut[i].named &&
                     (strncmp(h.calls, "#0 fun", 6) != 0 ||
                      strncmp("{\"a\": 1}", h.calls + 6, strlen(h.calls + 6)) != 0))) {
                    fail_msg("%s, %zu bytes by %zu: content '%s', calls '%s'", text, n, step,
                             h.content, h.calls);
                }
                lt_parser_close(p);
            }
        }
    }
}

/* If a call is only possible: what is certain. */
static void texts_that_may_be_calls(void **state) {
    static const struct {
        lt_parse_format format;
        const char *text;
        heard want;
    } cuts[] = {
        {LT_PARSE_HERMES, "Let me see.\n<tool_call>\n{\"na", {"", "Let me see.", ""}},
        {LT_PARSE_HERMES, "Let me see.\n<tool_", {"", "Let me see.", ""}},
        {LT_PARSE_HERMES, "a <", {"", "a <", ""}},
        {LT_PARSE_HERMES, "<think>hm</thi", {"hm", "", ""}},
        {LT_PARSE_HERMES, "<tool_call>not json", {"", "<tool_call>not json", ""}},
        {LT_PARSE_HERMES,
         "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g",
         {"", "", "#0 f{}"}},
        {LT_PARSE_MISTRAL,
         "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arg",
         {"", "", "#0 f{}#1 g"}},
        {LT_PARSE_PLAIN, "{\"na", {"", "{\"na", ""}},
        {LT_PARSE_PLAIN, "{\"name\": \"get", {"", "", ""}},
        {LT_PARSE_PLAIN, "{\"name\": \"get_time\"", {"", "", "#0 get_time"}},
        {LT_PARSE_PLAIN, "{\"name\": \"get\"", {"", "{\"name\": \"get\"", ""}},
        {LT_PARSE_LLAMA3, "{\"name\": \"Bo", {"", "{\"name\": \"Bo", ""}},
        {LT_PARSE_HARMONY, "<|channel|>commentary to=functions.get_ti", {"", "", ""}},
        {LT_PARSE_HARMONY, "<|channel|>final<|message|>Yes", {"", "Yes", ""}}};
    json_t *tools = json_loads("[{\"function\": {\"name\": \"get_time\"}}]", 0, NULL);
    (void)state;
    assert_non_null(tools);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        heard h = {0};
        lt_parser *p = NULL;
        assert_int_equal(lt_parser_open(&p, &(lt_parse_options){.format = cuts[i].format,
                                                                .tools = true,
                                                                .reasoning = true}),
                         LT_OK);
        assert_int_equal(lt_parser_feed(p, cuts[i].text, strlen(cuts[i].text), hear, &h), LT_OK);
        assert_int_equal(lt_parser_cut(p, tools, false, hear, &h), LT_OK);
        if (strcmp(h.content, cuts[i].want.content) != 0 ||
            strcmp(h.calls, cuts[i].want.calls) != 0 ||
            strcmp(h.reasoning, cuts[i].want.reasoning) != 0) {
            fail_msg("%s: reasoning '%s', content '%s', calls '%s'", cuts[i].text, h.reasoning,
                     h.content, h.calls);
        }
        lt_parser_close(p);
    }
    json_decref(tools);
}

static void formats_are_detected(void **state) {
    static const struct {
        const char *text;
        lt_parse_format format;
        const char *think;
    } marks[] = {
        {"... <tool_call> ... </think>", LT_PARSE_HERMES, "<think>"},
        {"{{ '<|channel|>' }}", LT_PARSE_HARMONY, NULL},
        {"[TOOL_CALLS]", LT_PARSE_MISTRAL, NULL},
        {"[TOOL_CALLS] [ARGS] [THINK] [/THINK]", LT_PARSE_MISTRAL_ARGS, "[THINK]"},
        {"<" P "tool" U "calls" U "begin" P "> ```json </think>", LT_PARSE_DEEPSEEK, "<think>"},
        {"<" P "tool" U "calls" U "begin" P ">", LT_PARSE_DEEPSEEK31, NULL},
        {"<|tools_prefix|> <|inner_suffix|>", LT_PARSE_APERTUS, "<|inner_prefix|>"},
        {"<|python_tag|>", LT_PARSE_LLAMA3, NULL},
        {"<|im_start|>", LT_PARSE_PLAIN, NULL},
        {"[TOOL_CALLS] </think>", LT_PARSE_MISTRAL, "<think>"},
        {"<tool_call> </seed:think>", LT_PARSE_HERMES, "<seed:think>"},
        {"\xE2\x97\x81/think\xE2\x96\xB7", LT_PARSE_PLAIN, "\xE2\x97\x81think\xE2\x96\xB7"},
        {"<thought> </thought>", LT_PARSE_PLAIN, "<thought>"},
        {"<|channel|> </think>", LT_PARSE_HARMONY, NULL},
        {NULL, LT_PARSE_PLAIN, NULL}};
    const lt_parse_marks think = lt_parse_detect("</think>");
    const lt_parse_marks channels = lt_parse_detect("<|channel|>");
    (void)state;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        const lt_parse_marks m = lt_parse_detect(marks[i].text);
        assert_int_equal(m.format, marks[i].format);
        assert_true(marks[i].think == NULL ? m.think_open == NULL
                                           : strcmp(m.think_open, marks[i].think) == 0);
    }
    assert_true(lt_parse_prompt_thinks(&think, "<|im_start|>assistant\n<think>\n", 30));
    assert_false(lt_parse_prompt_thinks(&think, "<think>\n\n</think>\n\n", 19));
    assert_true(lt_parse_prompt_thinks(&channels, "<|channel|>analysis<|message|>", 30));
    assert_false(lt_parse_prompt_thinks(&channels, "<|channel|>final<|message|>", 27));
    assert_string_equal(lt_parse_closing(&think), "</think>");
    assert_string_equal(lt_parse_closing(&channels),
                        "<|end|><|start|>assistant<|channel|>final<|message|>");
    assert_null(lt_parse_closing(&(lt_parse_marks){.format = LT_PARSE_HERMES}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_the_same), cmocka_unit_test(arguments_stream),
        cmocka_unit_test(calls_cut_anywhere), cmocka_unit_test(texts_that_may_be_calls),
        cmocka_unit_test(formats_are_detected)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
