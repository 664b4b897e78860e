/* parse_call.c: inside a call of a tool.
 *
 *     IN_CALL ── head: {"name": "f", "arguments": {  or  name[ARGS]{ ──▶ IN_ARGS ── value ends ─┐
 *        ▲ └── an object with its members in another order: read when it is whole              │
 *        └── , ; ] fences and marks between calls are skipped ◀── IN_REST (the object's own }) ◀┘
 *     neither ──▶ IN_CONTENT; and if no call came after the mark, the mark was text.
 *
 * A head is matched from the beginning of the buffer each time text arrives, as heads are short. If
 * a head is cut off, only its name counts. */
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/parse_impl.h"

/* ---- Giving out ---- */

void lt_parser_begin_call(lt_parser *p, const char *name, size_t n, lt_parse_fn on, void *ctx) {
    on(ctx, LT_PART_CALL_NAME, p->n_calls++, name, n);
    p->opened = NULL;
    p->scan = (lt_parse_scan){0};
    p->at = LT_IN_ARGS;
}

void lt_parser_give_args(lt_parser *p, size_t n, lt_parse_fn on, void *ctx) {
    if (n > 0) {
        on(ctx, LT_PART_CALL_ARGS, p->n_calls - 1, p->buffer.data, n);
        lt_parser_drop(p, n);
    }
}

/* Whether the tree is a complete call: {"name", "arguments" or "parameters"}, perhaps inside
 * "function". */
static bool is_call(const json_t *j) {
    const json_t *inner = json_object_get(j, "function");
    return json_is_string(json_object_get(json_is_object(inner) ? inner : j, "name"));
}

static lt_err give_tree(lt_parser *p, const json_t *j, lt_parse_fn on, void *ctx) {
    const json_t *inner = json_object_get(j, "function"), *from = json_is_object(inner) ? inner : j;
    const json_t *name = json_object_get(from, "name"), *args = json_object_get(from, "arguments");
    const char *string;
    char *text;

    args = args != NULL ? args : json_object_get(from, "parameters");
    string = json_string_value(args); /* Some models write the arguments' JSON as a string. */
    if (args == NULL || json_is_null(args) || (string != NULL && string[0] == '\0')) {
        text = strdup("{}");
    } else {
        text = string != NULL ? strdup(string) : lt_json_dumps_exact(args, JSON_ENCODE_ANY);
    }
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "a call's arguments");
    }
    lt_parser_begin_call(p, json_string_value(name), json_string_length(name), on, ctx);
    on(ctx, LT_PART_CALL_ARGS, p->n_calls - 1, text, strlen(text));
    p->at = LT_IN_CALL;
    free(text);
    return LT_OK;
}

/* ---- Matching heads ---- */

typedef enum { NO, MORE, YES } match;

/* A position in the buffer; at the end of the text, its state becomes MORE. */
typedef struct {
    const char *s;
    size_t n, at;
    match m;
} cursor;

static void skip_blank(cursor *c) {
    while (c->at < c->n && lt_parse_blank(c->s[c->at])) {
        c->at++;
    }
}

/* Skip the text if it is here; c->m becomes MORE if it may still arrive. */
static bool take(cursor *c, const char *text) {
    const size_t len = strlen(text), left = c->n - c->at;
    if (c->m != YES || memcmp(c->s + c->at, text, len < left ? len : left) != 0) {
        return false;
    }
    if (left < len) {
        c->m = MORE;
        return false;
    }
    c->at += len;
    return true;
}

static void need(cursor *c, const char *text) {
    skip_blank(c);
    if (!take(c, text) && c->m == YES) {
        c->m = NO;
    }
}

/* The parts of a head so far, as positions in the buffer. */
typedef struct {
    size_t name, name_n; /* name 0: it has not begun. */
    size_t args;
    bool named; /* The name is complete. */
} head;

/* A name up to its closing quote. Names have no escapes. */
static void quoted_name(cursor *c, head *h) {
    if (c->m != YES) {
        return;
    }
    h->name = c->at;
    while (c->at < c->n && c->s[c->at] != '"' && c->s[c->at] != '\\') {
        c->at++;
    }
    h->name_n = c->at - h->name;
    if (c->at == c->n) {
        c->m = MORE;
    } else {
        h->named = take(c, "\"");
        c->m = h->named ? YES : NO;
    }
}

/* {"name": "f", "arguments": followed by an object. */
static match json_head(const lt_text *b, head *h) {
    cursor c = {.s = b->data, .n = b->n, .m = YES};
    need(&c, "{");
    need(&c, "\"name\"");
    need(&c, ":");
    need(&c, "\"");
    quoted_name(&c, h);
    need(&c, ",");
    skip_blank(&c);
    if (!take(&c, "\"arguments\"") && !take(&c, "\"parameters\"") && c.m == YES) {
        return NO;
    }
    need(&c, ":");
    skip_blank(&c);
    h->args = c.at;
    need(&c, "{");
    return c.m;
}

/* {"f": followed by an object. */
static match apertus_head(const lt_text *b, head *h) {
    cursor c = {.s = b->data, .n = b->n, .m = YES};
    need(&c, "{");
    need(&c, "\"");
    quoted_name(&c, h);
    need(&c, ":");
    skip_blank(&c);
    h->args = c.at;
    need(&c, "{");
    return c.m;
}

static bool name_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '-' || c == '.';
}

static size_t word(cursor *c, size_t *at) {
    skip_blank(c);
    *at = c->at;
    while (c->at < c->n && name_char(c->s[c->at])) {
        c->at++;
    }
    if (c->at == c->n) {
        c->m = MORE;
    }
    return c->at - *at;
}

/* name{, with what formats put between: <｜tool▁sep｜> and a fence, [CALL_ID]id, [ARGS], >.
 * DeepSeek V3 writes the type first. */
static match named_head(const lt_text *b, bool typed, head *h) {
    cursor c = {.s = b->data, .n = b->n, .m = YES};
    size_t other;
    h->name_n = word(&c, &h->name);
    if (c.m == YES && h->name_n == 0) {
        return NO;
    }
    h->named = c.m == YES && !typed;
    if (take(&c, DS_SEP)) {
        skip_blank(&c);
        if (c.at < c.n && c.s[c.at] != '{') {
            h->name_n = word(&c, &h->name);
            h->named = c.m == YES;
        }
    }
    if (take(&c, "[CALL_ID]")) {
        (void)word(&c, &other);
    }
    (void)(take(&c, "[ARGS]") || take(&c, ">"));
    skip_blank(&c);
    (void)take(&c, "```json");
    skip_blank(&c);
    h->args = c.at;
    need(&c, "{");
    return c.m;
}

/* ---- Scanning ---- */

/* Number of bytes up to the end of the value, all of them while it continues; *done: it has
 * ended. */
static size_t scan_value(lt_parse_scan *s, const char *text, size_t n, bool *done) {
    *done = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (s->in_string) {
            s->in_string = s->escaped || c != '"';
            s->escaped = !s->escaped && c == '\\';
        } else if (c == '"') {
            s->in_string = true;
        } else if (c == '{' || c == '[') {
            s->depth++;
        } else if ((c == '}' || c == ']') && --s->depth <= 0) {
            *done = true;
            return i + 1;
        }
    }
    return n;
}

/* A call whose object has its members in another order. *m is MORE if the object is incomplete. */
static lt_err whole_object(lt_parser *p, size_t at, lt_parse_fn on, void *ctx, match *m) {
    lt_parse_scan scan = {0};
    bool done;
    const size_t n = scan_value(&scan, p->buffer.data + at, p->buffer.n - at, &done);
    json_t *j = done ? lt_json_loadb_exact(p->buffer.data + at, n, JSON_ALLOW_NUL, NULL) : NULL;
    lt_err err = LT_OK;

    *m = !done ? MORE : is_call(j) ? YES : NO;
    if (*m == YES) {
        err = give_tree(p, j, on, ctx);
        lt_parser_drop(p, at + n);
    }
    json_decref(j);
    return err;
}

/* Whether an object that begins like this may be a call. Its first key decides, so that other JSON
 * is not held back. */
static match first_key(const lt_text *b) {
    static const char *const keys[] = {"\"name\"",      "\"type\"",       "\"function\"", "\"id\"",
                                       "\"arguments\"", "\"parameters\"", "\"tool\""};
    cursor c = {.s = b->data, .n = b->n, .m = YES};
    match best = NO;
    need(&c, "{");
    skip_blank(&c);
    if (c.m != YES || c.at == c.n) {
        return c.m == NO ? NO : MORE;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        cursor one = c;
        if (take(&one, keys[i])) {
            return YES;
        }
        best = one.m == MORE ? MORE : best;
    }
    return best;
}

/* ---- Steps ---- */

static bool is_mistral(const lt_parser *p) {
    return p->o.format == LT_PARSE_MISTRAL || p->o.format == LT_PARSE_MISTRAL_ARGS;
}

static bool is_deepseek(const lt_parser *p) {
    return p->o.format == LT_PARSE_DEEPSEEK || p->o.format == LT_PARSE_DEEPSEEK31;
}

/* Marks between calls, and the mark after the last; NULL: none. */
static bool take_between(const lt_parser *p, cursor *c, bool first) {
    if (is_deepseek(p)) {
        return take(c, DS_CALL_BEGIN) || (!first && (take(c, "```") || take(c, DS_CALL_END)));
    }
    return !first && is_mistral(p) && take(c, "[TOOL_CALLS]");
}

static bool take_end(const lt_parser *p, cursor *c) {
    return take(c, p->o.format == LT_PARSE_HERMES    ? "</tool_call>"
                   : p->o.format == LT_PARSE_APERTUS ? "<|tools_suffix|>"
                   : is_deepseek(p)                  ? DS_CALLS_END
                                                     : "</function>");
}

/* Skip the text before a call, from the buffer's beginning; c->at moves past it. *over: the mark
 * after the last call was there. first: there was no call yet since the mark that announced one. */
static void between(const lt_parser *p, cursor *c, bool first, bool *over) {
    const char *skipped = first ? "[" : ",;]";
    *over = false;
    do {
        while (c->at < c->n && c->s[c->at] != '\0' &&
               (lt_parse_blank(c->s[c->at]) || strchr(skipped, c->s[c->at]) != NULL)) {
            c->at++;
        }
        c->m = c->at == c->n ? MORE : YES;
        *over = !first && take_end(p, c);
    } while (!*over && take_between(p, c, first));
}

/* This is not a call: it is content, and so is the mark that announced one. */
static void no_call(lt_parser *p, lt_parse_fn on, void *ctx) {
    p->at = LT_IN_CONTENT;
    p->strip = p->opened == NULL && p->n_calls > 0;
    p->said = true; /* Bare JSON that is not a call is not examined again. */
    if (p->opened != NULL) {
        on(ctx, LT_PART_CONTENT, -1, p->opened, strlen(p->opened));
        p->opened = NULL;
    }
}

/* Read the head at position `at` of the buffer; YES: its call has begun. */
static lt_err read_head(lt_parser *p, size_t at, lt_parse_fn on, void *ctx, match *m, head *h) {
    const lt_text b = {.data = p->buffer.data + at, .n = p->buffer.n - at};
    const bool named = is_mistral(p) || is_deepseek(p) ||
                       (p->opened != NULL && strcmp(p->opened, "<function=") == 0);

    p->wrapped = b.data[0] == '{';
    *m = p->o.format == LT_PARSE_APERTUS ? apertus_head(&b, h)
         : p->wrapped                    ? json_head(&b, h)
         : named                         ? named_head(&b, p->o.format == LT_PARSE_DEEPSEEK, h)
                                         : NO;
    if (*m == NO && p->wrapped && p->o.format != LT_PARSE_APERTUS) {
        *m = first_key(&b);
        return *m == YES ? whole_object(p, at, on, ctx, m) : LT_OK;
    }
    if (*m == YES) {
        lt_parser_begin_call(p, b.data + h->name, h->name_n, on, ctx);
        lt_parser_drop(p, at + h->args);
    }
    return LT_OK;
}

/* Whether a tool has this name, or one that begins with it. */
static bool names_tool(const lt_parser *p, const char *name, const head *h) {
    size_t i;
    const json_t *tool;
    json_array_foreach(p->callable, i, tool) {
        const char *own = json_string_value(
            json_object_get(json_object_get(tool, "function"), "name"));
        if (own != NULL && strncmp(own, name, h->name_n) == 0 &&
            (!h->named || own[h->name_n] == '\0')) {
            return true;
        }
    }
    return p->callable == NULL;
}

/* The text is cut off in a head at position `at` of the buffer. True: it was a call's, and its
 * available part was passed on. */
static bool cut_head(lt_parser *p, size_t at, const head *h, lt_parse_fn on, void *ctx) {
    const bool marked = p->opened != NULL || p->n_calls > 0;
    const size_t name = at + h->name;
    if (!marked && !p->forced && !(h->name > 0 && names_tool(p, p->buffer.data + name, h))) {
        return false;
    }
    if (h->named) {
        lt_parser_begin_call(p, p->buffer.data + name, h->name_n, on, ctx);
    }
    lt_parser_drop(p, p->buffer.n);
    p->at = LT_IN_ARGS; /* No more text follows. */
    return true;
}

static lt_err head_step(lt_parser *p, bool end, lt_parse_fn on, void *ctx, bool *more) {
    const bool first = p->opened != NULL || p->n_calls == 0;
    cursor c = {.s = p->buffer.data, .n = p->buffer.n, .m = YES};
    head h = {0};
    match m;
    bool over;

    between(p, &c, first, &over);
    *more = true;
    if (over) {
        lt_parser_drop(p, c.at);
        p->at = LT_IN_CONTENT;
        p->strip = true;
        return LT_OK;
    }
    m = c.m;
    if (m == YES) {
        LT_TRY(read_head(p, c.at, on, ctx, &m, &h));
    } else if (end && !first) {
        lt_parser_drop(p, p->buffer.n); /* It is part of the mark after the last call. */
    }
    if (m == MORE && end && p->cut && cut_head(p, c.at, &h, on, ctx)) {
        *more = false;
        return LT_OK;
    }
    if (m == NO || (m == MORE && end)) {
        no_call(p, on, ctx);
    }
    *more = m != MORE || (end && p->buffer.n > 0);
    return LT_OK;
}

lt_err lt_parser_call_step(lt_parser *p, bool end, lt_parse_fn on, void *ctx, bool *more) {
    bool done;
    size_t n;
    if (p->at == LT_IN_CALL) {
        return head_step(p, end, on, ctx, more);
    }
    if (p->at == LT_IN_ARGS) {
        n = scan_value(&p->scan, p->buffer.data, p->buffer.n, &done);
        lt_parser_give_args(p, n, on, ctx);
        if (done) {
            p->at = p->wrapped ? LT_IN_REST : LT_IN_CALL;
            p->scan = (lt_parse_scan){.depth = 1};
        }
    } else {
        n = scan_value(&p->scan, p->buffer.data, p->buffer.n, &done);
        lt_parser_drop(p, n);
        p->at = done ? LT_IN_CALL : LT_IN_REST;
    }
    *more = p->buffer.n > 0;
    return LT_OK;
}
