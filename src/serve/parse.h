/* parse.h: what a chat model wrote, taken apart as it streams in: reasoning, content, calls of tools.
 *
 *     lt_parser_open(&p, &(lt_parse_options){.format = lt_parse_detect(template_text), .tools = true, .reasoning = true});
 *     for each piece: lt_parser_feed(p, text, n, on_part, ctx);         lt_parser_end(p, on_part, ctx);
 *
 * However the text is cut into pieces, the parts add up to the same; no part of a mark such as <tool_call> is ever given out as text.
 * The text must hold the special tokens that the formats use ([TOOL_CALLS], <|python_tag|>, <|channel|>, ...): decode with
 * skip_special false, without the ending token. */
#ifndef LT_SERVE_PARSE_H
#define LT_SERVE_PARSE_H

#include "base/json.h"
#include "serve/grammar.h"

typedef enum {
    LT_PARSE_PLAIN,  /* <think>...</think>, then text. */
    LT_PARSE_HERMES, /* <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen. */
    LT_PARSE_LLAMA3, /* <|python_tag|>{"name": ..., "parameters": {...}}, or that JSON alone. */
    LT_PARSE_MISTRAL, /* [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name{...}; [THINK]. */
    LT_PARSE_DEEPSEEK, /* <｜tool▁calls▁begin｜>...: V3, R1, V3.1. */
    LT_PARSE_HARMONY   /* <|channel|>analysis<|message|>...: gpt-oss. */
} lt_parse_format;

/* By the marks that a chat template's text contains. */
lt_parse_format lt_parse_detect(const char *template_text);
const char *lt_parse_format_name(lt_parse_format f);
/* Does a rendered prompt end inside an open <think>? Then the answer begins with reasoning. */
bool lt_parse_prompt_thinks(const char *prompt, size_t n);

typedef enum {
    LT_PART_CONTENT,
    LT_PART_REASONING,
    LT_PART_CALL_NAME, /* A call begins; all of its name. */
    LT_PART_CALL_ARGS  /* All of its arguments, a JSON text. */
} lt_part;

/* call: the how-manieth call, from 0; -1 for text. */
typedef void (*lt_parse_fn)(void *ctx, lt_part part, int call, const char *text, size_t n);

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
bool lt_parser_in_reasoning(const lt_parser *p);
int lt_parser_calls(const lt_parser *p);
void lt_parser_close(lt_parser *p); /* Accepts NULL. */

/* A grammar that makes the model call a tool, in the format's own spelling: one of tools (OpenAI's list), or the one of this name; several
 * calls where the format and `parallel` allow it. thinks: reasoning up to </think> may come first. */
LT_MUST_USE lt_err lt_parse_grammar(lt_grammar **out, const lt_grammar_vocab *v,
                                    lt_parse_format format, const json_t *tools, const char *name,
                                    bool parallel, bool thinks);

#endif
