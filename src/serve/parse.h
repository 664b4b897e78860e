/* parse.h: what a chat model wrote, taken apart as it streams in: reasoning, content, calls of
 * tools.
 *
 *     lt_parser_open(&p, &(lt_parse_options){.format = marks.format, .tools = true, .reasoning =
 *     true});
 *     for each piece: lt_parser_feed(p, text, n, on_part, ctx); lt_parser_end(p, on_part, ctx) or
 *     lt_parser_cut(...);
 *
 * However the text is cut into pieces, the parts add up to the same; no part of a mark such as
 * <tool_call> is ever given out as text. A call's name is told as soon as it is known and its
 * arguments as they come; what looks like a call and is none is content. The text must hold the
 * special tokens that the formats use ([TOOL_CALLS], <|python_tag|>, <|channel|>, ...): decode with
 * skip_special false, without the ending token. */
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

/* By the marks that a chat template's text contains. */
lt_parse_marks lt_parse_detect(const char *template_text);
const char *lt_parse_format_name(lt_parse_format f);
bool lt_parse_reasons(const lt_parse_marks *m); /* The format tells reasoning from content. */
/* The texts of which the format's calls are made up to be recognised; ended by NULL. */
const char *const *lt_parse_call_marks(lt_parse_format f);
/* Does a rendered prompt end behind the mark that opens the reasoning? Then the answer begins
 * inside. */
bool lt_parse_prompt_thinks(const lt_parse_marks *m, const char *prompt, size_t n);

typedef enum {
    LT_PART_CONTENT,
    LT_PART_REASONING,
    LT_PART_CALL_NAME, /* A call begins; all of its name. */
    LT_PART_CALL_ARGS  /* A piece of its arguments, which add up to a JSON text. */
} lt_part_kind;

/* call: the index of the call, from 0; -1 for text. */
typedef void (*lt_parse_fn)(void *ctx, lt_part_kind part, int call, const char *text, size_t n);

typedef struct {
    lt_parse_format format;
    bool tools;     /* Look for calls; else their text is content. */
    bool reasoning; /* Take reasoning apart; else its text is content, marks and all. */
    bool thinks;    /* The text begins inside the reasoning. */
} lt_parse_options;

typedef struct lt_parser lt_parser;
LT_MUST_USE lt_err lt_parser_open(lt_parser **out, const lt_parse_options *o);
LT_MUST_USE lt_err lt_parser_feed(lt_parser *p, const char *text, size_t n, lt_parse_fn on,
                                  void *ctx);
LT_MUST_USE lt_err lt_parser_end(lt_parser *p, lt_parse_fn on, void *ctx);
/* The same where the model was cut off, at a limit or a stop string. A call that had begun stays
 * one: with its name whole it is given out with the arguments so far, else nothing of it is; nor is
 * the beginning of a mark. Bare JSON is a call when it names one of the tools (OpenAI's list; NULL:
 * any name will do), or when nothing but a call was possible. */
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
    bool forced;      /* Nothing but calls; else free text (or the form) until a call's mark. */
    const char *name; /* Only this tool; NULL: any. */
    bool parallel;    /* Several calls, where the format can. */
    /* The form of the content. */
    bool has_form;
    lt_grammar_kind kind;
    const char *form;
    size_t form_bytes;
    const atomic_bool *stop; /* As lt_grammar_open_until's; NULL: none. */
} lt_parse_grammar_options;

/* Where calls are possible, their arguments follow the tools' schemas. A tool of which neither
 * `strict` nor `forced` is said and whose schema the grammar cannot honour gets any JSON object.
 * UNSUPPORTED, FORMAT: as lt_grammar_open. */
LT_MUST_USE lt_err lt_parse_grammar(lt_grammar **out, const lt_grammar_vocab *v,
                                    const lt_parse_grammar_options *o);

#endif
