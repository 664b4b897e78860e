/* parse.c: see parse.h.
 *
 * The text not yet given out waits in a buffer. In content or reasoning, everything before the first mark goes out, less a tail that could
 * still become a mark, and less white space, which belongs to a mark if one follows. In a call everything waits for its end; then it is read
 * as the format says, and if it cannot be read, it was content after all. */
#include "serve/parse.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/unicode.h"

typedef enum {
    IN_CONTENT,
    IN_REASONING,
    IN_CALL,
    IN_HEADER
} mode; /* HEADER: of harmony, up to <|message|>. */

typedef struct {
    const char *text;
    mode to;
} mark;

struct lt_parser {
    lt_parse_options o;
    mode at;
    lt_text buffer;
    const char *opened; /* The mark that began a call. */
    bool strip;         /* White space at the beginning of what comes is dropped. */
    bool said;          /* Some content was given out (llama3: a call alone must come first). */
    bool bare;          /* llama3: the content began with '{' and waits. */
    char channel[256];  /* harmony: the header. */
    int n_calls;
};

#define DS             "\xEF\xBD\x9C" /* ｜ */
#define SP             "\xE2\x96\x81" /* ▁ */
#define DS_CALLS_BEGIN "<" DS "tool" SP "calls" SP "begin" DS ">"
#define DS_CALLS_END   "<" DS "tool" SP "calls" SP "end" DS ">"
#define DS_CALL_BEGIN  "<" DS "tool" SP "call" SP "begin" DS ">"
#define DS_CALL_END    "<" DS "tool" SP "call" SP "end" DS ">"
#define DS_SEP         "<" DS "tool" SP "sep" DS ">"

lt_parse_format lt_parse_detect(const char *t) {
    static const struct {
        const char *mark;
        lt_parse_format format;
    } rows[] = {{"<|channel|>", LT_PARSE_HARMONY},   {DS_CALLS_BEGIN, LT_PARSE_DEEPSEEK},
                {"[TOOL_CALLS]", LT_PARSE_MISTRAL},  {"<tool_call>", LT_PARSE_HERMES},
                {"<|python_tag|>", LT_PARSE_LLAMA3}, {"\"parameters\": ", LT_PARSE_LLAMA3}};
    for (size_t i = 0; t != NULL && i < sizeof rows / sizeof *rows; i++) {
        if (strstr(t, rows[i].mark) != NULL &&
            (i < 5 || strstr(t, "<|start_header_id|>") != NULL)) {
            return rows[i].format;
        }
    }
    return LT_PARSE_PLAIN;
}

const char *lt_parse_format_name(lt_parse_format f) {
    static const char *const names[] = {"plain",   "hermes",   "llama3",
                                        "mistral", "deepseek", "harmony"};
    return names[f];
}

bool lt_parse_prompt_thinks(const char *prompt, size_t n) {
    static const char *const opens[] = {"<think>", "[THINK]"};
    while (n > 0 && strchr(" \n\t\r", prompt[n - 1]) != NULL && prompt[n - 1] != 0) {
        n--;
    }
    for (size_t i = 0; i < 2; i++) {
        const size_t len = strlen(opens[i]);
        if (n >= len && memcmp(prompt + n - len, opens[i], len) == 0) {
            return true;
        }
    }
    return false;
}

lt_err lt_parser_open(lt_parser **out, const lt_parse_options *o) {
    lt_parser *p = calloc(1, sizeof *p);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "parser");
    }
    p->o = *o;
    p->at = o->thinks && o->reasoning ? IN_REASONING : IN_CONTENT;
    p->strip = p->at == IN_REASONING;
    *out = p;
    return LT_OK;
}

void lt_parser_close(lt_parser *p) {
    if (p != NULL) {
        lt_text_free(&p->buffer);
        free(p);
    }
}

bool lt_parser_in_reasoning(const lt_parser *p) {
    return p->at == IN_REASONING;
}

int lt_parser_calls(const lt_parser *p) {
    return p->n_calls;
}

static void drop(lt_parser *p, size_t n) {
    memmove(p->buffer.data, p->buffer.data + n, p->buffer.n - n);
    p->buffer.n -= n;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void say(lt_parser *p, const char *s, size_t n, lt_parse_fn on, void *ctx) {
    while (p->strip && n > 0 && is_blank(*s)) {
        s++;
        n--;
    }
    if (n > 0) {
        p->strip = false;
        p->said = p->said || p->at == IN_CONTENT;
        on(ctx, p->at == IN_REASONING ? LT_PART_REASONING : LT_PART_CONTENT, -1, s, n);
    }
}

/* The marks that may come now; ended by a NULL text. */
static void marks_of(const lt_parser *p, mark out[8]) {
    static const mark calls[][2] = {
        [LT_PARSE_HERMES] = {{"<tool_call>", IN_CALL}},
        [LT_PARSE_LLAMA3] = {{"<|python_tag|>", IN_CALL}, {"<function=", IN_CALL}},
        [LT_PARSE_MISTRAL] = {{"[TOOL_CALLS]", IN_CALL}},
        [LT_PARSE_DEEPSEEK] = {{DS_CALLS_BEGIN, IN_CALL}, {DS_CALL_BEGIN, IN_CALL}},
        [LT_PARSE_HARMONY] = {{NULL, IN_CALL}}};
    const bool mistral = p->o.format == LT_PARSE_MISTRAL;
    int n = 0;
    if (p->o.format == LT_PARSE_HARMONY) {
        static const mark harmony[] = {{"<|channel|>", IN_HEADER},
                                       {"<|start|>", IN_HEADER},
                                       {"<|end|>", IN_CONTENT},
                                       {"<|return|>", IN_CONTENT},
                                       {"<|call|>", IN_CONTENT}};
        memcpy(out, harmony, sizeof harmony);
        n = 5;
    } else if (p->at == IN_REASONING) {
        out[n++] = (mark){mistral ? "[/THINK]" : "</think>", IN_CONTENT};
    } else {
        if (p->o.reasoning) {
            out[n++] = (mark){mistral ? "[THINK]" : "<think>", IN_REASONING};
        }
        for (int i = 0; p->o.tools && p->o.format != LT_PARSE_PLAIN && i < 2 &&
                        calls[p->o.format][i].text != NULL;
             i++) {
            out[n++] = calls[p->o.format][i];
        }
    }
    out[n].text = NULL;
}

/* The first mark in the buffer: where, and which (the longest there); SIZE_MAX: none. *hold: where a tail begins that could become one. */
static size_t find_mark(const lt_text *b, const mark *marks, mark *which, size_t *hold) {
    *hold = b->n;
    for (size_t i = 0; i < b->n; i++) {
        size_t best = 0;
        for (const mark *m = marks; m->text != NULL; m++) {
            const size_t len = strlen(m->text), left = b->n - i;
            if (memcmp(b->data + i, m->text, len < left ? len : left) != 0) {
                continue;
            }
            if (len > left) {
                *hold = *hold < i ? *hold : i;
            } else if (len > best) {
                best = len;
                *which = *m;
            }
        }
        if (best > 0 && *hold >= i) {
            return i;
        }
        if (*hold < b->n && *hold <= i) {
            return SIZE_MAX; /* What starts here may yet become a mark that comes first. */
        }
    }
    return SIZE_MAX;
}

/* ---- calls ---- */

static lt_err give_call(lt_parser *p, const char *name, size_t n, const json_t *args,
                        lt_parse_fn on, void *ctx) {
    char *text = json_is_string(args) ? strdup(json_string_value(args))
                 : args == NULL       ? strdup("{}")
                                      : json_dumps(args, JSON_ENCODE_ANY);
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "a call's arguments");
    }
    on(ctx, LT_PART_CALL_NAME, p->n_calls, name, n);
    on(ctx, LT_PART_CALL_ARGS, p->n_calls, text, strlen(text));
    p->n_calls++;
    free(text);
    return LT_OK;
}

static bool is_call(const json_t *j) {
    return json_is_string(json_object_get(j, "name")) ||
           json_is_string(json_object_get(json_object_get(j, "function"), "name"));
}

static lt_err give_json(lt_parser *p, const json_t *j, lt_parse_fn on, void *ctx) {
    const json_t *inner = json_object_get(j, "function"), *from = json_is_object(inner) ? inner : j;
    const json_t *name = json_object_get(from, "name"), *args = json_object_get(from, "arguments");
    args = args != NULL ? args : json_object_get(from, "parameters");
    return give_call(p, json_string_value(name), json_string_length(name), args, on, ctx);
}

/* JSON calls, one after the other, as an array or separated by ; or white space. *given: all of it could be read. */
static lt_err give_list(lt_parser *p, const char *s, size_t n, lt_parse_fn on, void *ctx,
                        bool *given) {
    json_t *all = json_array(), *j, *item;
    size_t i;
    lt_err err = LT_OK;
    *given = true;
    while (n > 0 && *given) {
        json_error_t why;
        if (is_blank(*s) || *s == ';' || *s == ',') {
            s++;
            n--;
            continue;
        }
        j = json_loadb(s, n, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &why);
        *given = j != NULL && (is_call(j) || (json_is_array(j) && json_array_size(j) > 0));
        json_array_foreach(j, i, item) {
            *given = *given && is_call(item);
        }
        if (*given) {
            json_is_array(j) ? json_array_extend(all, j) : json_array_append(all, j);
            s += why.position;
            n -= (size_t)why.position;
        }
        json_decref(j);
    }
    *given = *given && json_array_size(all) > 0;
    for (i = 0; *given && err == LT_OK && i < json_array_size(all); i++) {
        err = give_json(p, json_array_get(all, i), on, ctx);
    }
    json_decref(all);
    return err;
}

static bool name_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.';
}

/* name{...}, with what stands between them (mistral's [CALL_ID]..[ARGS], deepseek's sep and ```json, llama's >) skipped. */
static lt_err give_named(lt_parser *p, const char *s, size_t n, lt_parse_fn on, void *ctx,
                         bool *given) {
    const char *brace;
    size_t name = 0, from = 0;
    json_error_t why;
    json_t *args;
    lt_err err = LT_OK;
    *given = false;
    while (from < n && is_blank(s[from])) {
        from++;
    }
    if (n - from > 8 && memcmp(s + from, "function" DS_SEP, 8 + strlen(DS_SEP)) == 0) {
        from += 8 + strlen(DS_SEP); /* deepseek V3, R1: the type, then the name. */
    }
    while (from + name < n && name_char(s[from + name])) {
        name++;
    }
    brace = n > from + name ? memchr(s + from + name, '{', n - from - name) : NULL;
    if (name == 0 || brace == NULL) {
        return LT_OK;
    }
    args = json_loadb(brace, n - (size_t)(brace - s), JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL,
                      &why);
    if (json_is_object(args)) {
        *given = true;
        err = give_call(p, s + from, name, args, on, ctx);
    }
    json_decref(args);
    return err;
}

/* The body of a call is whole: s[0..n), without its marks. */
static lt_err read_call(lt_parser *p, const char *s, size_t n, lt_parse_fn on, void *ctx,
                        bool *given) {
    size_t from = 0;
    switch (p->o.format) {
    case LT_PARSE_HARMONY: {
        const char *to = strstr(p->channel, "to="), *end;
        json_t *args = json_loadb(s, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL), *text;
        lt_err err = LT_ERR_OOM;
        to = to == NULL ? p->channel : strncmp(to + 3, "functions.", 10) == 0 ? to + 13 : to + 3;
        for (end = to; name_char(*end);) {
            end++;
        }
        text = args != NULL ? json_incref(args)
                            : json_stringn(s, n); /* Code for a builtin tool is no JSON. */
        *given = true;
        if (text != NULL) {
            err = give_call(p, to, (size_t)(end - to), text, on, ctx);
        }
        json_decref(text);
        json_decref(args);
        return err;
    }
    case LT_PARSE_DEEPSEEK: /* One call after the other, each between its own marks. */
        *given = false;
        while (from < n) {
            const char *begin = memmem(s + from, n - from, DS_CALL_BEGIN, strlen(DS_CALL_BEGIN)),
                       *end;
            bool one = false;
            const char *body = begin != NULL ? begin + strlen(DS_CALL_BEGIN) : s + from;
            end = memmem(body, n - (size_t)(body - s), DS_CALL_END, strlen(DS_CALL_END));
            end = end != NULL ? end : s + n;
            LT_TRY(give_named(p, body, (size_t)(end - body), on, ctx, &one));
            *given = *given || one;
            from = end < s + n ? (size_t)(end - s) + strlen(DS_CALL_END) : n;
        }
        return LT_OK;
    case LT_PARSE_MISTRAL:
        while (from < n && is_blank(s[from])) {
            from++;
        }
        if (from < n && (s[from] == '[' || s[from] == '{')) {
            return give_list(p, s, n, on, ctx, given);
        }
        *given = false;
        while (n > 0) { /* name{...}[TOOL_CALLS]name{...} */
            const char *next = memmem(s, n, "[TOOL_CALLS]", 12);
            const size_t len = next != NULL ? (size_t)(next - s) : n;
            bool one = false;
            LT_TRY(give_named(p, s, len, on, ctx, &one));
            *given = *given || one;
            s += next != NULL ? len + 12 : n;
            n -= next != NULL ? len + 12 : n;
        }
        return LT_OK;
    default:
        if (p->opened != NULL && strcmp(p->opened, "<function=") == 0) {
            return give_named(p, s, n, on, ctx, given);
        }
        return give_list(p, s, n, on, ctx, given);
    }
}

/* What ends a call; NULL: the end of the text. */
static const char *call_end(const lt_parser *p) {
    switch (p->o.format) {
    case LT_PARSE_HERMES:
        return "</tool_call>";
    case LT_PARSE_DEEPSEEK:
        return DS_CALLS_END;
    case LT_PARSE_LLAMA3:
        return p->opened != NULL && strcmp(p->opened, "<function=") == 0 ? "</function>" : NULL;
    default:
        return NULL;
    }
}

/* The first n bytes of the buffer are a call's body, `whole` bytes with its end. */
static lt_err finish_call(lt_parser *p, size_t n, size_t whole, lt_parse_fn on, void *ctx) {
    bool given = false;
    LT_TRY(read_call(p, p->buffer.data, n, on, ctx, &given));
    p->at = IN_CONTENT;
    if (!given) { /* It was no call: the marks were text. */
        if (p->opened != NULL) {
            say(p, p->opened, strlen(p->opened), on, ctx);
        }
        say(p, p->buffer.data, whole, on, ctx);
    } else {
        p->strip = true;
    }
    p->opened = NULL;
    p->bare = false;
    drop(p, whole);
    return LT_OK;
}

/* ---- the machine ---- */

/* harmony: the header up to <|message|> says what the text is. */
static bool read_header(lt_parser *p) {
    const char *end = p->buffer.n > 0 ? memmem(p->buffer.data, p->buffer.n, "<|message|>", 11)
                                      : NULL;
    size_t n;
    if (end == NULL) {
        return false;
    }
    n = (size_t)(end - p->buffer.data);
    n = n < sizeof p->channel - 1 ? n : sizeof p->channel - 1;
    memcpy(p->channel, p->buffer.data, n);
    p->channel[n] = 0;
    p->at = strstr(p->channel, "to=") != NULL && p->o.tools            ? IN_CALL
            : strstr(p->channel, "analysis") != NULL && p->o.reasoning ? IN_REASONING
                                                                       : IN_CONTENT;
    drop(p, (size_t)(end - p->buffer.data) + 11);
    return true;
}

/* harmony: a call's body goes to the next mark. */
static lt_err harmony_call(lt_parser *p, bool end, lt_parse_fn on, void *ctx, bool *more) {
    mark marks[8], which = {NULL, IN_CONTENT};
    size_t hold, at;
    marks_of(p, marks);
    at = find_mark(&p->buffer, marks, &which, &hold);
    *more = at != SIZE_MAX || end;
    if (at != SIZE_MAX) {
        const size_t whole = at + strlen(which.text);
        LT_TRY(finish_call(p, at, whole, on, ctx));
        p->at = which.to;
        return LT_OK;
    }
    return end ? finish_call(p, p->buffer.n, p->buffer.n, on, ctx) : LT_OK;
}

/* One step in content or reasoning; *more: there may be another. */
static lt_err text_step(lt_parser *p, bool end, lt_parse_fn on, void *ctx, bool *more) {
    mark marks[8], which = {NULL, IN_CONTENT};
    size_t hold, at, n;
    marks_of(p, marks);
    if (p->o.format == LT_PARSE_LLAMA3 && p->o.tools && p->at == IN_CONTENT &&
        !p->said) { /* JSON alone? */
        size_t i = 0;
        while (i < p->buffer.n && is_blank(p->buffer.data[i])) {
            i++;
        }
        if (i < p->buffer.n && p->buffer.data[i] == '{') {
            p->at = IN_CALL;
            p->bare = true;
            *more = true;
            return LT_OK;
        }
    }
    at = find_mark(&p->buffer, marks, &which, &hold);
    if (at != SIZE_MAX) {
        for (n = at; n > 0 && is_blank(p->buffer.data[n - 1]); n--) {}
        say(p, p->buffer.data, n, on, ctx);
        drop(p, at + strlen(which.text));
        p->at = which.to;
        p->opened = which.to == IN_CALL ? which.text : NULL;
        p->strip = true;
        *more = true;
        return LT_OK;
    }
    n = end ? p->buffer.n : hold;
    while (!end && marks[0].text != NULL && n > 0 && is_blank(p->buffer.data[n - 1])) {
        n--;
    }
    while (end && p->at == IN_REASONING && n > 0 && is_blank(p->buffer.data[n - 1])) {
        n--; /* Reasoning is stripped at both ends, cut off or not. */
    }
    say(p, p->buffer.data, n, on, ctx);
    drop(p, end ? p->buffer.n : n);
    *more = false;
    return LT_OK;
}

static lt_err run(lt_parser *p, bool end, lt_parse_fn on, void *ctx) {
    bool more = true;
    while (more && (p->buffer.n > 0 || (end && p->at == IN_CALL))) {
        if (p->at == IN_HEADER) {
            more = read_header(p);
        } else if (p->at == IN_CALL && p->o.format == LT_PARSE_HARMONY) {
            LT_TRY(harmony_call(p, end, on, ctx, &more));
        } else if (p->at == IN_CALL) {
            const char *close = call_end(p);
            const char *at = close != NULL && p->buffer.n > 0
                                 ? memmem(p->buffer.data, p->buffer.n, close, strlen(close))
                                 : NULL;
            more = at != NULL || end;
            if (at != NULL) {
                const size_t n = (size_t)(at - p->buffer.data);
                LT_TRY(finish_call(p, n, n + strlen(close), on, ctx));
            } else if (end) {
                LT_TRY(finish_call(p, p->buffer.n, p->buffer.n, on, ctx));
                more = false;
            }
        } else {
            LT_TRY(text_step(p, end, on, ctx, &more));
        }
    }
    return LT_OK;
}

lt_err lt_parser_feed(lt_parser *p, const char *text, size_t n, lt_parse_fn on, void *ctx) {
    LT_TRY(lt_text_put(&p->buffer, text, n));
    return run(p, false, on, ctx);
}

lt_err lt_parser_end(lt_parser *p, lt_parse_fn on, void *ctx) {
    LT_TRY(run(p, true, on, ctx));
    p->buffer.n = 0;
    return LT_OK;
}
