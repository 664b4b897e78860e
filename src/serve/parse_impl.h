/* parse_impl.h: what parse.c (marks, text) and parse_call.c (inside a call) share. */
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
    LT_IN_CALL,   /* A call is expected: its head, or what stands between calls. */
    LT_IN_ARGS,   /* Its arguments, given out as they come. */
    LT_IN_REST    /* The object around them goes on to its closing brace. */
} lt_parse_mode;

/* Where a JSON value ends: brackets counted outside of strings. */
typedef struct {
    int depth;
    bool in_string, escaped;
} lt_parse_scan;

struct lt_parser {
    lt_parse_options o;
    lt_parse_mode at;
    lt_text buffer;     /* Not given out yet. */
    const char *opened; /* The mark before what may be a call; NULL: none, or a call was read. */
    bool strip;         /* White space at the beginning of what comes is dropped. */
    bool said;          /* Some content was given out. */
    bool wrapped;       /* The arguments are a member of an object. */
    lt_parse_scan scan;
    char channel[256]; /* harmony: the header. */
    int n_calls;
    /* lt_parser_cut's. */
    bool cut, forced;
    const json_t *callable;
};

void lt_parser_drop(lt_parser *p, size_t n); /* From the buffer's beginning. */
bool lt_parse_blank(char c);

/* One step in a call; *more: there may be another. end: no text will come. */
LT_MUST_USE lt_err lt_parser_call_step(lt_parser *p, bool end, lt_parse_fn on, void *ctx,
                                       bool *more);
void lt_parser_begin_call(lt_parser *p, const char *name, size_t n, lt_parse_fn on, void *ctx);
/* Give out n bytes of the buffer as arguments. */
void lt_parser_give_args(lt_parser *p, size_t n, lt_parse_fn on, void *ctx);

#endif
