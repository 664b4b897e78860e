/* jinja/lex.c: splits the text of a template into tokens. Text outside tags becomes DATA, with
 * Jinja's rules for white space.
 *
 *   {%- -%} {{- -}} {#- -#}   remove all white space before / after the tag
 *   {%+ +%}                   keep it, despite the two rules that follow
 *   lstrip_blocks             removes blanks between the start of a line and {% or {#
 *   trim_blocks               removes one newline directly after %} or #} Both are on, as
 * transformers sets them. Newlines are normalised to \n, and one at the very end of the text is
 * dropped. */
#include "data/jinja/jinja.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode.h"

typedef struct {
    lt_jpool *pool;
    const char *name, *s;
    size_t n, at;
    int line;
    /* The text consumed last ended with a newline, or nothing was consumed. */
    bool line_starting;
    lt_jtok *tokens;
    size_t n_tokens, room;
    char stack[LT_JINJA_PARSE_DEPTH]; /* Open brackets within a tag. */
    int open;
} lexer;

static lt_err push(lexer *l, lt_jtok_kind kind, const char *s, size_t n, int line) {
    if (l->n_tokens == l->room) {
        const size_t room = l->room == 0 ? 256 : l->room * 2;
        void *data = l->tokens;
        LT_TRY(lt_jpool_grow(l->pool, &data, l->n_tokens * sizeof *l->tokens,
                             room * sizeof *l->tokens));
        l->tokens = data;
        l->room = room;
    }
    l->tokens[l->n_tokens++] = (lt_jtok){kind, line, s, n};
    return LT_OK;
}

static void advance(lexer *l, size_t to) {
    for (size_t i = l->at; i < to; i++) {
        l->line += l->s[i] == '\n';
    }
    l->line_starting = to > l->at ? l->s[to - 1] == '\n' : l->line_starting;
    l->at = to;
}

static size_t skip_space(const lexer *l, size_t at) {
    const char *s = l->s + at;
    size_t n = l->n - at;
    lt_jtext_strip(&s, &n, true, false);
    return l->n - n;
}

static bool has(const lexer *l, size_t at, const char *text) {
    while (*text != '\0' && at < l->n && l->s[at] == *text) {
        at++;
        text++;
    }
    return *text == '\0';
}

/* The text from l->at to `to`, before a tag with this sign ('-', '+' or another), which may be a
 * block or comment. */
static lt_err put_data(lexer *l, size_t to, char sign, bool block) {
    const char *s = l->s + l->at;
    size_t n = to - l->at;
    if (sign == '-') {
        lt_jtext_strip(&s, &n, false, true);
    } else if (sign != '+' && block) {
        size_t from = n;
        while (from > 0 && s[from - 1] != '\n') {
            from--;
        }
        if (from > 0 || l->line_starting) {
            const char *tail = s + from;
            size_t rest = n - from;
            lt_jtext_strip(&tail, &rest, true, false);
            n = rest == 0 ? from : n;
        }
    }
    return n > 0 ? push(l, LT_TOK_DATA, s, n, l->line) : LT_OK;
}

/* If a tag ends here (such as "%}"), the position after it and the white space that it removes;
 * otherwise 0. */
static size_t match_end(const lexer *l, size_t at, const char *close, bool trims) {
    if (has(l, at, "-") && has(l, at + 1, close)) {
        return skip_space(l, at + 3);
    }
    if (trims && has(l, at, "+") && has(l, at + 1, close)) {
        return at + 3;
    }
    if (has(l, at, close)) {
        return at + 2 + (trims && at + 2 < l->n && l->s[at + 2] == '\n');
    }
    return 0;
}

static lt_err lex_comment(lexer *l) {
    size_t end = 0, at = l->at + 2;
    const int line = l->line;
    at += at < l->n && (l->s[at] == '-' || l->s[at] == '+');
    while (at < l->n && (end = match_end(l, at, "#}", true)) == 0) {
        at++;
    }
    if (end == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: a comment is not closed", l->name, line);
    }
    advance(l, end);
    return LT_OK;
}

/* If {% raw %} is at l->at, where its content starts; otherwise 0. */
static size_t match_raw(const lexer *l, size_t at, const char *word) {
    at += 2;
    at += at < l->n && (l->s[at] == '-' || l->s[at] == '+');
    at = skip_space(l, at);
    if (!has(l, at, word)) {
        return 0;
    }
    return skip_space(l, at + strlen(word));
}

static lt_err lex_raw(lexer *l, size_t content) {
    const int line = l->line;
    advance(l, content);
    for (size_t at = l->at; at < l->n; at++) {
        size_t after, end;
        if (!has(l, at, "{%") || (after = match_raw(l, at, "endraw")) == 0 ||
            (end = match_end(l, after, "%}", true)) == 0) {
            continue;
        }
        LT_TRY(put_data(l, at, l->s[at + 2], true));
        advance(l, end);
        return LT_OK;
    }
    LT_FAIL(LT_ERR_FORMAT, "%s:%d: {%% raw %%} is not closed", l->name, line);
}

/* ---- inside a tag ---- */

static size_t put_escape_cp(char *out, uint32_t cp) {
    return cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000) ? lt_utf8_encode(0xFFFD, out)
                                                          : lt_utf8_encode(cp, out);
}

/* Decode the backslash sequence of a Python string at s[0] == '\\', and write the character to out.
 * Returns the bytes read. */
static size_t unescape(const char *s, size_t n, char *out, size_t *written) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = n > 1 && s[1] != 0 ? strchr(from, s[1]) : NULL;
    size_t digits = 0, base = 16, at = 2, most = 0;
    uint32_t cp = 0;

    *written = 1;
    if (known != NULL) {
        *out = to[known - from];
        return 2;
    }
    if (n > 1 && s[1] == '\n') {
        *written = 0;
        return 2;
    }
    if (n > 1 && s[1] >= '0' && s[1] <= '7') {
        base = 8;
        most = 3;
        at = 1;
    } else if (n > 1 && (s[1] == 'x' || s[1] == 'u' || s[1] == 'U')) {
        most = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : 8;
    }
    while (digits < most && at < n && isxdigit((unsigned char)s[at]) &&
           (base == 16 || (s[at] >= '0' && s[at] <= '7'))) {
        const char c = s[at++];
        cp = cp * (uint32_t)base + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
        digits++;
    }
    if (digits == 0 || (base == 16 && digits < most)) {
        *out = '\\'; /* An unknown sequence: both characters are kept. */
        return 1;
    }
    *written = put_escape_cp(out, cp);
    return at;
}

static lt_err lex_string(lexer *l) {
    const char quote = l->s[l->at];
    const int line = l->line;
    size_t end = l->at + 1, n = 0;
    char *text;
    void *data;

    while (end < l->n && l->s[end] != quote) {
        end += l->s[end] == '\\' ? 2 : 1;
    }
    if (end >= l->n) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: a string is not closed", l->name, line);
    }
    LT_TRY(lt_jpool_take(l->pool, end - l->at + 4, &data));
    text = data;
    for (size_t at = l->at + 1; at < end;) {
        if (l->s[at] == '\\') {
            size_t written;
            at += unescape(l->s + at, end - at, text + n, &written);
            n += written;
        } else {
            text[n++] = l->s[at++];
        }
    }
    LT_TRY(push(l, LT_TOK_STRING, text, n, line));
    advance(l, end + 1);
    return LT_OK;
}

static bool name_byte(char c) {
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static size_t skip_digits(const lexer *l, size_t at) {
    while (at < l->n &&
           (isdigit((unsigned char)l->s[at]) ||
            (l->s[at] == '_' && at + 1 < l->n && isdigit((unsigned char)l->s[at + 1])))) {
        at++;
    }
    return at;
}

static lt_err lex_number(lexer *l) {
    size_t end = l->at;
    bool real = false;
    if (l->s[end] == '0' && end + 1 < l->n && strchr("xXoObB", l->s[end + 1]) != NULL &&
        l->s[end + 1] != 0) {
        end += 2;
        while (end < l->n && (isxdigit((unsigned char)l->s[end]) || l->s[end] == '_')) {
            end++;
        }
    } else {
        end = skip_digits(l, end);
        if (end + 1 < l->n && l->s[end] == '.' && isdigit((unsigned char)l->s[end + 1])) {
            end = skip_digits(l, end + 1);
            real = true;
        }
        if (end < l->n && (l->s[end] | 32) == 'e') {
            const size_t sign = end + 1 +
                                (end + 1 < l->n && (l->s[end + 1] == '+' || l->s[end + 1] == '-'));
            if (sign < l->n && isdigit((unsigned char)l->s[sign])) {
                end = skip_digits(l, sign);
                real = true;
            }
        }
    }
    LT_TRY(push(l, real ? LT_TOK_FLOAT : LT_TOK_INT, l->s + l->at, end - l->at, l->line));
    advance(l, end);
    return LT_OK;
}

static lt_err lex_operator(lexer *l) {
    static const char *const two[] = {"//", "**", "==", "!=", "<=", ">="};
    const char c = l->s[l->at];
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        n = has(l, l->at, two[i]) ? 2 : n;
    }
    if (n == 1 && (c == 0 || strchr("+-*/%~()[]{}<>=.:|,;", c) == NULL)) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: unexpected character '%c'", l->name, l->line,
                isprint((unsigned char)c) ? c : '?');
    }
    if (n == 1 && strchr("([{", c) != NULL) {
        if (l->open == LT_JINJA_PARSE_DEPTH) {
            LT_FAIL(LT_ERR_LIMIT, "%s:%d: brackets nested deeper than %d", l->name, l->line,
                    LT_JINJA_PARSE_DEPTH);
        }
        l->stack[l->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (n == 1 && strchr(")]}", c) != NULL) {
        if (l->open == 0 || l->stack[l->open - 1] != c) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: unexpected '%c'", l->name, l->line, c);
        }
        l->open--;
    }
    LT_TRY(push(l, LT_TOK_OP, l->s + l->at, n, l->line));
    advance(l, l->at + n);
    return LT_OK;
}

/* Lex from after "{%" or "{{" (and its sign) to after the end of the tag. */
static lt_err lex_tag(lexer *l, bool block) {
    const char *close = block ? "%}" : "}}";
    const int line = l->line;
    l->open = 0;
    for (;;) {
        size_t end;
        if (l->open == 0 && l->at < l->n && (end = match_end(l, l->at, close, block)) != 0) {
            LT_TRY(push(l, block ? LT_TOK_BLOCK_END : LT_TOK_VAR_END, l->s + l->at, 2, l->line));
            advance(l, end);
            return LT_OK;
        }
        end = skip_space(l, l->at);
        if (end >= l->n) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: a tag is not closed by %s", l->name, line, close);
        }
        if (end > l->at) {
            advance(l, end);
        } else if (isdigit((unsigned char)l->s[l->at])) {
            LT_TRY(lex_number(l));
        } else if (name_byte(l->s[l->at])) {
            while (end < l->n && name_byte(l->s[end])) {
                end++;
            }
            LT_TRY(push(l, LT_TOK_NAME, l->s + l->at, end - l->at, l->line));
            advance(l, end);
        } else if (l->s[l->at] == '"' || l->s[l->at] == '\'') {
            LT_TRY(lex_string(l));
        } else {
            LT_TRY(lex_operator(l));
        }
    }
}

static lt_err lex_text(lexer *l) {
    while (l->at < l->n) {
        size_t to = l->at, raw = 0, raw_end;
        char sign;
        bool block;
        while (to < l->n &&
               !(l->s[to] == '{' && to + 1 < l->n &&
                 (l->s[to + 1] == '{' || l->s[to + 1] == '%' || l->s[to + 1] == '#'))) {
            to++;
        }
        sign = to + 2 < l->n ? l->s[to + 2] : 0;
        block = to < l->n && l->s[to + 1] != '{';
        if (to == l->n) {
            LT_TRY(push(l, LT_TOK_DATA, l->s + l->at, to - l->at, l->line));
            return LT_OK;
        }
        LT_TRY(put_data(l, to, sign, block));
        advance(l, to);
        if (l->s[to + 1] == '#') {
            LT_TRY(lex_comment(l));
            continue;
        }
        if (block && (raw = match_raw(l, to, "raw")) != 0 &&
            (raw_end = has(l, raw, "-%}")  ? skip_space(l, raw + 3)
                       : has(l, raw, "%}") ? raw + 2
                                           : 0) != 0) {
            LT_TRY(lex_raw(l, raw_end));
            continue;
        }
        LT_TRY(push(l, block ? LT_TOK_BLOCK_BEGIN : LT_TOK_VAR_BEGIN, l->s + to, 2, l->line));
        /* The "-" of "{{-1}}" belongs to the tag, so the expression is 1, as in Jinja. */
        advance(l, to + 2 + (sign == '-' || sign == '+'));
        LT_TRY(lex_tag(l, block));
    }
    return LT_OK;
}

/* Replace \r\n and \r by \n, and remove one newline at the end. */
static lt_err normalise(lexer *l, const char *text, size_t bytes) {
    void *data;
    char *s;
    LT_TRY(lt_jpool_take(l->pool, bytes + 1, &data));
    s = data;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\r') {
            i += i + 1 < bytes && text[i + 1] == '\n';
            s[l->n++] = '\n';
        } else {
            s[l->n++] = text[i];
        }
    }
    l->n -= l->n > 0 && s[l->n - 1] == '\n';
    l->s = s;
    return LT_OK;
}

lt_err lt_jinja_lex(lt_jpool *pool, const char *text, size_t bytes, const char *name, lt_jtok **out,
                    size_t *n) {
    lexer l = {.pool = pool, .name = name, .line = 1, .line_starting = true};
    if (bytes >= UINT32_MAX / 2) {
        LT_FAIL(LT_ERR_LIMIT, "%s: a template of %zu bytes", name, bytes);
    }
    LT_TRY(normalise(&l, text, bytes));
    LT_TRY(lex_text(&l));
    LT_TRY(push(&l, LT_TOK_END, "", 0, l.line));
    *out = l.tokens;
    *n = l.n_tokens;
    return LT_OK;
}
