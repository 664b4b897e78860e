/* parse.h: separates the output of a chat model, as it streams in, into reasoning, content and tool
 * calls.
 *
 *     lt_parser_open(&p, &(lt_parse_options){.format = marks.format, .tools = true, .reasoning =
 *     true});
 *     for each piece: lt_parser_feed(p, text, n, on_part, ctx); lt_parser_end(p, on_part, ctx) or
 *     lt_parser_cut(...);
 *
 * The result does not depend on how the text is cut into pieces, and no part of a mark such as
 * <tool_call> is ever reported as text. The name of a call is reported as soon as it is known, its
 * arguments as they arrive; text that looks like a call but is not one is content. The text must
 * contain the special tokens that the formats use ([TOOL_CALLS], <|python_tag|>, <|channel|>, ...),
 * but not the ending token. */
#ifndef LT_SERVE_PARSE_H
#define LT_SERVE_PARSE_H

#include "base/json.h"
#include "serve/grammar/grammar.h"

typedef enum {
    LT_PARSE_PLAIN,   /* No marks known: a call is {"name": ..., "arguments": {...}} alone. */
    LT_PARSE_HERMES,  /* <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen. */
    LT_PARSE_LLAMA3,  /* <|python_tag|>{"name": ..., "parameters": {...}}, or that JSON alone. */
    LT_PARSE_MISTRAL, /* [TOOL_CALLS][{"name": ..., "arguments": {...}}] */
    LT_PARSE_MISTRAL_ARGS, /* [TOOL_CALLS]name[ARGS]{...}: from tokenizer v11 on. */
    LT_PARSE_DEEPSEEK, /* <｜tool▁calls▁begin｜> ... function<｜tool▁sep｜>name and a fence: V3, R1. */
    LT_PARSE_DEEPSEEK31, /* The same marks, name<｜tool▁sep｜>{...}: V3.1. */
    LT_PARSE_APERTUS,    /* <|tools_prefix|>[{"name": {...}}]<|tools_suffix|>; <|inner_prefix|>. */
    LT_PARSE_HARMONY     /* <|channel|>analysis<|message|>...: gpt-oss. */
} lt_parse_format;

typedef struct {
    lt_parse_format format;
    const char *think_open, *think_close; /* NULL: no marks around reasoning (harmony: channels). */
} lt_parse_marks;

/* The text that ends the reasoning if the model does not end it: the closing mark; in harmony it
 * also opens the channel of the answer. NULL: there is no reasoning. */
const char *lt_parse_closing(const lt_parse_marks *m);

/* Detect the format by the marks in the text of a chat template. */
lt_parse_marks lt_parse_detect(const char *template_text);
const char *lt_parse_format_name(lt_parse_format f);
bool lt_parse_reasons(const lt_parse_marks *m); /* Whether the format marks reasoning. */
/* The marks that identify the format's calls, ended by NULL. The second: all marks around and
 * inside calls. */
const char *const *lt_parse_call_marks(lt_parse_format f);
const char *const *lt_parse_all_call_marks(lt_parse_format f);
/* Whether a rendered prompt ends with the mark that opens the reasoning, so that the answer begins
 * inside it. */
bool lt_parse_prompt_thinks(const lt_parse_marks *m, const char *prompt, size_t n);

typedef enum {
    LT_PART_CONTENT,
    LT_PART_REASONING,
    LT_PART_CALL_NAME, /* A call begins; this is its complete name. */
    LT_PART_CALL_ARGS  /* A piece of its arguments, which together are a JSON text. */
} lt_part_kind;

/* call: the index of the call, from 0; -1 for text. */
typedef void (*lt_parse_fn)(void *ctx, lt_part_kind part, int call, const char *text, size_t n);

typedef struct {
    lt_parse_format format;
    bool tools;     /* Look for calls; otherwise their text is content. */
    bool reasoning; /* Separate reasoning; otherwise it is content, including its marks. */
    bool thinks;    /* The text begins inside the reasoning. */
    const char *think_open, *think_close; /* Its marks; NULL: <think> and </think>. */
} lt_parse_options;

typedef struct lt_parser lt_parser;
LT_MUST_USE lt_err lt_parser_open(lt_parser **out, const lt_parse_options *o);
LT_MUST_USE lt_err lt_parser_feed(lt_parser *p, const char *text, size_t n, lt_parse_fn on,
                                  void *ctx);
LT_MUST_USE lt_err lt_parser_end(lt_parser *p, lt_parse_fn on, void *ctx);
/* The same when the model was cut off, at a limit or a stop string. A call that has begun remains a
 * call: if its name is complete, it is reported with the arguments so far, otherwise it is dropped.
 * The beginning of a mark is dropped. Bare JSON is a call when it names one of the tools (OpenAI's
 * list; NULL: any name), or when only a call was possible. */
LT_MUST_USE lt_err lt_parser_cut(lt_parser *p, const json_t *tools, bool forced, lt_parse_fn on,
                                 void *ctx);
bool lt_parser_in_reasoning(const lt_parser *p);
void lt_parser_close(lt_parser *p); /* Accepts NULL. */

/* ---- The grammar of a whole answer: reasoning, then the form asked for, or calls of tools in the
 * format's own spelling ---- */

typedef struct {
    lt_parse_marks marks;
    bool reasoning; /* Reasoning may come first. */
    bool thinks;    /* The answer begins inside it. */
    /* Calls: OpenAI's list of tools, NULL for none. */
    const json_t *tools;
    bool forced;      /* Only calls; otherwise free text (or the form) up to a call's mark. */
    const char *name; /* Only this tool; NULL: any. */
    bool parallel;    /* Several calls, if the format allows them. */
    /* The form of the content. */
    bool has_form;
    lt_grammar_kind kind;
    const char *form;
    size_t form_bytes;
    const atomic_bool *stop; /* As lt_grammar_open_until's; NULL: none. */
} lt_parse_grammar_options;

/* Where calls are possible, their arguments follow the tools' schemas. If the grammar does not
 * support the schema of a tool, and neither `strict` nor `forced` is set, any JSON object is
 * accepted for it. UNSUPPORTED, FORMAT: as for lt_grammar_open. */
LT_MUST_USE lt_err lt_parse_grammar(lt_grammar **out, const lt_grammar_vocab *v,
                                    const lt_parse_grammar_options *o);

#endif
