/* parse_impl.h: private declarations shared by parse.c (marks, text) and parse_call.c (inside a
 * call). */
#ifndef LT_SERVE_PARSE_IMPL_H
#define LT_SERVE_PARSE_IMPL_H

#include "data/tokenizer/unicode.h"
#include "serve/parse.h"

#define DS             "\xEF\xBD\x9C" /* ｜ */
#define SP             "\xE2\x96\x81" /* ▁ */
#define DS_CALLS_BEGIN "<" DS "tool" SP "calls" SP "begin" DS ">"
#define DS_CALLS_END   "<" DS "tool" SP "calls" SP "end" DS ">"
#define DS_CALL_BEGIN  "<" DS "tool" SP "call" SP "begin" DS ">"
#define DS_CALL_END    "<" DS "tool" SP "call" SP "end" DS ">"
#define DS_SEP         "<" DS "tool" SP "sep" DS ">"

typedef enum {
    LT_IN_CONTENT,
    LT_IN_REASONING,
    LT_IN_HEADER, /* harmony: up to <|message|>. */
    LT_IN_CALL,   /* A call is expected: its head, or the text between calls. */
    LT_IN_ARGS,   /* Its arguments, which are passed on as they arrive. */
    LT_IN_REST    /* The object around them, up to its closing brace. */
} lt_parse_mode;

/* Finds the end of a JSON value, by counting brackets outside strings. */
typedef struct {
    int depth;
    bool in_string, escaped;
} lt_parse_scan;

struct lt_parser {
    lt_parse_options o;
    lt_parse_mode at;
    lt_text buffer;     /* Not yet passed on. */
    const char *opened; /* The mark before a possible call; NULL: none, or a call was read. */
    bool strip;         /* Drop white space at the beginning of the following text. */
    bool said;          /* Some content was passed on. */
    bool wrapped;       /* The arguments are a member of an object. */
    lt_parse_scan scan;
    char channel[256]; /* harmony: the header. */
    int n_calls;
    /* Set by lt_parser_cut. */
    bool cut, forced;
    const json_t *callable;
};

void lt_parser_drop(lt_parser *p, size_t n); /* Drop n bytes from the buffer's beginning. */
bool lt_parse_blank(char c);

/* One step in a call; *more: another may follow. end: no more text follows. */
LT_MUST_USE lt_err lt_parser_call_step(lt_parser *p, bool end, lt_parse_fn on, void *ctx,
                                       bool *more);
void lt_parser_begin_call(lt_parser *p, const char *name, size_t n, lt_parse_fn on, void *ctx);
/* Pass on n bytes of the buffer as arguments. */
void lt_parser_give_args(lt_parser *p, size_t n, lt_parse_fn on, void *ctx);

#endif
