/* grammar/lark.c: Lark's grammars as trees (lark-parser.readthedocs.io, "Grammar Reference").
 *
 *   start: greeting NAME ("," NAME)~0..3      // rules are small letters, terminals capitals; the
 *                                             first rule is "start"
 *   ?greeting: "hello"i | /hi+/ -> short      // ? and ! before a name, aliases and priorities do
 *                                             not change the language
 *   NAME: ("a".."z")+
 *   %import common.WS                         // any terminal of the common library
 *   %ignore WS                                // may stand before, between and after the terminals
 *                                             of rules
 *
 * The language is defined on characters: no lexer takes the longest terminal first, so where Lark
 * would read a keyword, a name is accepted as well. Ignored text is taken as long as possible, as
 * in Lark: nothing follows a comment on its line. A rule whose alternatives begin with itself,
 * common in LALR grammars, becomes a repetition; recursion on the left through other rules is
 * refused. Templates, %declare, %override, %extend, imports from elsewhere and flags of regular
 * expressions other than u are UNSUPPORTED. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode.h"
#include "serve/grammar/impl.h"
#include "serve/grammar/escape.h"

#define MAX_COUNT  100000
#define NAME_BYTES 128
#define SKIP       "%ignore" /* The rule of ignored text; no grammar can use this name. */
#define COMMON     "common."

/* The library of `%import common`; names as in Lark, quoted strings without look-behind. */
static const char common[] =
    "DIGIT: \"0\"..\"9\"\nHEXDIGIT: \"a\"..\"f\"|\"A\"..\"F\"|DIGIT\nINT: DIGIT+\n"
    "SIGNED_INT: [\"+\"|\"-\"] INT\nDECIMAL: INT \".\" INT? | \".\" INT\n"
    "_EXP: (\"e\"|\"E\") SIGNED_INT\nFLOAT: INT _EXP | DECIMAL _EXP?\n"
    "SIGNED_FLOAT: [\"+\"|\"-\"] FLOAT\nNUMBER: FLOAT | INT\nSIGNED_NUMBER: [\"+\"|\"-\"] NUMBER\n"
    "ESCAPED_STRING: /\"[^\"\\\\\\n]*(\\\\.[^\"\\\\\\n]*)*\"/\n"
    "LCASE_LETTER: \"a\"..\"z\"\nUCASE_LETTER: \"A\"..\"Z\"\nLETTER: UCASE_LETTER | LCASE_LETTER\n"
    "WORD: LETTER+\nCNAME: (\"_\"|LETTER) (\"_\"|LETTER|DIGIT)*\nWS_INLINE: (\" \"|/\\t/)+\n"
    "WS: /[ \\t\\f\\r\\n]/+\nCR: /\\r/\nLF: /\\n/\nNEWLINE: (CR? LF)+\nSH_COMMENT: /#[^\\n]*/\n"
    "CPP_COMMENT: /\\/\\/[^\\n]*/\nC_COMMENT: /\\/\\*([^*]|\\*+[^*\\/])*\\*+\\//\n"
    "SQL_COMMENT: /--[^\\n]*/\n";

typedef struct {
    lt_gast *g;
    const uint8_t *p, *start, *end;
    const char *prefix; /* Prefix of every name: COMMON while the library is read. */
    bool in_terminal;   /* Inside a terminal nothing is ignored. */
    bool imports;       /* The grammar imports from the library. */
    lt_gids ignored;
    int depth;
} reader;

static lt_err wrong(const reader *r, const char *what) {
    int line = 1;
    for (const uint8_t *p = r->start; p < r->p; p++) {
        line += *p == '\n';
    }
    LT_FAIL(LT_ERR_FORMAT, "Lark grammar:%d: %s", line, what);
}

static lt_err refuse(const reader *r, const char *what) {
    int line = 1;
    for (const uint8_t *p = r->start; p < r->p; p++) {
        line += *p == '\n';
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "Lark grammar:%d: %s is not supported", line, what);
}

static bool at(const reader *r, const char *text) {
    const size_t n = strlen(text);
    return (size_t)(r->end - r->p) >= n && memcmp(r->p, text, n) == 0;
}

static bool skip(reader *r, const char *text) {
    const bool is = at(r, text);
    r->p += is ? strlen(text) : 0;
    return is;
}

static void skip_space(reader *r, bool newlines) {
    for (;;) {
        if (at(r, " ") || at(r, "\t") || (newlines && (at(r, "\n") || at(r, "\r")))) {
            r->p++;
        } else if (at(r, "\\\n")) {
            r->p += 2;
        } else if (at(r, "//") || at(r, "#")) {
            while (r->p < r->end && *r->p != '\n') {
                r->p++;
            }
        } else {
            return;
        }
    }
}

/* A line that begins with a bar continues the previous definition. */
static void skip_to_bar(reader *r) {
    const uint8_t *before = r->p;
    skip_space(r, true);
    if (!at(r, "|")) {
        r->p = before;
    }
}

static size_t name_length(const reader *r) {
    size_t n = 0;
    while (r->p + n < r->end && (isalnum(r->p[n]) || r->p[n] == '_') &&
           (n > 0 || !isdigit(r->p[0]))) {
        n++;
    }
    return n;
}

static bool is_terminal(const uint8_t *name, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (isalpha(name[i])) {
            return isupper(name[i]) != 0;
        }
    }
    return false;
}

/* The rule of a name, found or created; -1: *err. */
static int32_t rule_of(const reader *r, const char *prefix, const uint8_t *name, size_t n) {
    char full[NAME_BYTES + sizeof COMMON];
    const int width = snprintf(full, sizeof full, "%s%.*s", prefix,
                               (int)(n < NAME_BYTES ? n : NAME_BYTES), (const char *)name);
    return lt_gast_rule(r->g, full, (size_t)width);
}

/* In a rule, a terminal is followed by ignored text. */
static lt_gid terminal(const reader *r, lt_gid id) {
    return r->in_terminal
               ? id
               : lt_gast_seq2(r->g, id,
                              lt_gast_ref(r->g, lt_gast_rule(r->g, SKIP, sizeof SKIP - 1)));
}

/* ---- Strings and regular expressions ---- */

static lt_err read_char(reader *r, uint32_t *cp) {
    const char *why = lt_gescape_read(&r->p, r->end, "nrtfvb0\\\"'/", "\n\r\t\f\v\b\0\\\"'/", cp);
    return why == NULL ? LT_OK : wrong(r, why);
}

/* After the quote: its characters, each as a node, because "..."i has two of each. */
static lt_err read_string(reader *r, uint32_t *only, lt_gid *out) {
    const uint8_t *from = r->p;
    lt_gids chars = {0};
    lt_err err = LT_OK;
    bool either;
    size_t n = 0;

    while (r->p < r->end && *r->p != '"' && *r->p != '\n') { /* Move to the flag after it. */
        r->p += *r->p == '\\' && r->p + 1 < r->end ? 2 : 1;
    }
    if (!at(r, "\"")) {
        return wrong(r, "a string that is not closed");
    }
    either = r->end - r->p > 1 && r->p[1] == 'i' &&
             !(r->end - r->p > 2 && (isalnum(r->p[2]) || r->p[2] == '_'));
    r->p = from;
    while (!at(r, "\"")) {
        uint32_t cp;
        LT_TRY_DONE(read_char(r, &cp));
        lt_grange both[2] = {{cp, cp}, {cp, cp}};
        if (either && cp < 128 && isalpha((int)cp)) {
            both[1].lo = both[1].hi = cp ^ 32;
        }
        lt_gids_push(r->g, &chars, lt_gast_chars(r->g, both, 2, false));
        *only = cp;
        n++;
    }
    r->p += 1 + either;
    *only = n == 1 && !either ? *only : UINT32_MAX;
    *out = n > 0 ? lt_gast_list(r->g, LT_GNODE_SEQ, chars.v, chars.n) : lt_gast_empty(r->g);
done:
    free(chars.v);
    return err;
}

/* "a".."z" */
static lt_err read_range(reader *r, lt_gid *out) {
    uint32_t low, high;
    LT_TRY(read_string(r, &low, out));
    skip_space(r, false);
    if (!at(r, "..") || low == UINT32_MAX) {
        return LT_OK;
    }
    r->p += 2;
    skip_space(r, false);
    if (!skip(r, "\"")) {
        return wrong(r, "expected the end of a range, a string");
    }
    LT_TRY(read_string(r, &high, out));
    if (high == UINT32_MAX || high < low) {
        return wrong(r, "a range is of two characters, the smaller first");
    }
    *out = lt_gast_char_range(r->g, low, high);
    return LT_OK;
}

/* After the slash. */
static lt_err read_regex(reader *r, lt_gid *out) {
    const uint8_t *from = r->p;
    char *text;
    size_t n = 0;
    lt_err err;
    bool in_class = false;

    while (r->p < r->end && *r->p != '\n' && (in_class || *r->p != '/')) {
        in_class = *r->p == '[' || (in_class && *r->p != ']');
        r->p += *r->p == '\\' && r->p + 1 < r->end ? 2 : 1;
    }
    text = malloc((size_t)(r->p - from) + 1);
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "Lark grammar");
    }
    for (const uint8_t *p = from; p < r->p; p++) { /* \/ is a slash. */
        if (*p == '\\' && p + 1 < r->p && p[1] == '/') {
            p++;
        } else if (*p == '\\' && p + 1 < r->p) {
            text[n++] = (char)*p++;
        }
        text[n++] = (char)*p;
    }
    err = skip(r, "/") ? lt_gregex_read(r->g, text, n, (lt_gregex_options){0}, out)
                       : wrong(r, "a regular expression that is not closed");
    free(text);
    LT_TRY(err);
    (void)skip(r, "u");
    return r->p < r->end && (isalnum(*r->p) || *r->p == '_')
               ? refuse(r, "a flag of a regular expression other than u")
               : LT_OK;
}

/* ---- Expressions ---- */

static lt_err read_alternatives(reader *r, bool nested, lt_gid *out);

static lt_err read_name(reader *r, size_t n, lt_gid *out) {
    const bool is = is_terminal(r->p, n);
    if (r->in_terminal && !is) {
        return wrong(r, "a terminal is made of terminals, not of rules");
    }
    *out = lt_gast_ref(r->g, rule_of(r, r->prefix, r->p, n));
    *out = is ? terminal(r, *out) : *out;
    r->p += n;
    return at(r, "{") ? refuse(r, "a template") : LT_OK;
}

static lt_err read_group(reader *r, const char *close, lt_gid *out) {
    if (++r->depth > LT_GRAMMAR_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "Lark grammar: nested deeper than %d", LT_GRAMMAR_DEPTH);
    }
    LT_TRY(read_alternatives(r, true, out));
    r->depth--;
    return skip(r, close) ? LT_OK : wrong(r, "a group that is not closed");
}

static lt_err read_item(reader *r, lt_gid *out) {
    const size_t n = name_length(r);
    if (n > 0) {
        return read_name(r, n, out);
    }
    if (skip(r, "(")) {
        return read_group(r, ")", out);
    }
    if (skip(r, "[")) {
        LT_TRY(read_group(r, "]", out));
        *out = lt_gast_repeat(r->g, *out, 0, 1);
        return LT_OK;
    }
    if (skip(r, "\"")) {
        LT_TRY(read_range(r, out));
    } else if (skip(r, "/")) {
        LT_TRY(read_regex(r, out));
    } else {
        return wrong(r, "expected a string, a regular expression, a name or a group");
    }
    *out = terminal(r, *out);
    return LT_OK;
}

static bool read_number(reader *r, int64_t *out) {
    const uint8_t *from = r->p;
    *out = 0;
    while (r->p < r->end && isdigit(*r->p) && *out <= MAX_COUNT) {
        *out = *out * 10 + (*r->p++ - '0');
    }
    return r->p > from;
}

/* ? * + ~n ~n..m */
static lt_err read_repeat(reader *r, lt_gid *item) {
    int64_t min = 0, max = LT_GINF;
    skip_space(r, false);
    if (skip(r, "?")) {
        max = 1;
    } else if (skip(r, "+")) {
        min = 1;
    } else if (skip(r, "~")) {
        skip_space(r, false);
        if (!read_number(r, &min)) {
            return wrong(r, "expected a number of repetitions");
        }
        max = min;
        if (skip(r, "..") && (!read_number(r, &max) || max < min)) {
            return wrong(r, "a malformed repetition");
        }
    } else if (!skip(r, "*")) {
        return LT_OK;
    }
    if (min > MAX_COUNT || (max > MAX_COUNT && max != LT_GINF)) {
        LT_FAIL(LT_ERR_LIMIT, "Lark grammar: a repetition of more than %d", MAX_COUNT);
    }
    *item = lt_gast_repeat(r->g, *item, (int32_t)min, (int32_t)max);
    return LT_OK;
}

static lt_err read_sequence(reader *r, bool nested, lt_gid *out) {
    lt_gids kids = {0};
    lt_err err = LT_OK;
    for (;;) {
        lt_gid item = -1;
        skip_space(r, nested);
        if (r->p == r->end || strchr("|)]\n\r", *r->p) != NULL || at(r, "->")) {
            break;
        }
        LT_TRY_DONE(read_item(r, &item));
        LT_TRY_DONE(read_repeat(r, &item));
        lt_gids_push(r->g, &kids, item);
    }
    if (skip(r, "->")) {
        skip_space(r, false);
        r->p += name_length(r);
        skip_space(r, nested);
    }
    *out = kids.n > 0 ? lt_gast_list(r->g, LT_GNODE_SEQ, kids.v, kids.n) : lt_gast_empty(r->g);
done:
    free(kids.v);
    return err;
}

static lt_err read_alternatives(reader *r, bool nested, lt_gid *out) {
    lt_gids alts = {0};
    lt_err err = LT_OK;
    do {
        lt_gid one = -1;
        LT_TRY_DONE(read_sequence(r, nested, &one));
        lt_gids_push(r->g, &alts, one);
        if (!nested) {
            skip_to_bar(r);
        }
    } while (skip(r, "|"));
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    return err;
}

/* ---- Left recursion: a: a x | y  is  a: y x* ---- */

/* What follows if the alternative begins with the rule itself; -1: it does not. */
static lt_gid behind_self(lt_gast *g, lt_gid id, int32_t rule) {
    const lt_gnode node = g->nodes[id];
    if (node.kind == LT_GNODE_RULE && node.a == rule) {
        return lt_gast_empty(g);
    }
    if (node.kind != LT_GNODE_SEQ || node.n < 1) {
        return -1;
    }
    const lt_gnode first = g->nodes[g->kids[node.a]];
    if (first.kind != LT_GNODE_RULE || first.a != rule) {
        return -1;
    }
    lt_gids rest = {0};
    lt_gid out;
    for (int32_t i = 1; i < node.n; i++) {
        lt_gids_push(g, &rest, g->kids[node.a + i]);
    }
    out = rest.n > 0 ? lt_gast_list(g, LT_GNODE_SEQ, rest.v, rest.n) : lt_gast_empty(g);
    free(rest.v);
    return out;
}

static lt_gid without_left_recursion(lt_gast *g, lt_gid body, int32_t rule) {
    lt_gids more = {0}, others = {0};
    const lt_gnode node = body >= 0 ? g->nodes[body] : (lt_gnode){0};
    const int32_t n = node.kind == LT_GNODE_ALT ? node.n : 1;

    for (int32_t i = 0; body >= 0 && i < n; i++) {
        const lt_gid one = node.kind == LT_GNODE_ALT ? g->kids[node.a + i] : body;
        const lt_gid rest = behind_self(g, one, rule);
        lt_gids_push(g, rest >= 0 ? &more : &others, rest >= 0 ? rest : one);
    }
    if (more.n > 0) {
        const lt_gid tail = lt_gast_list(g, LT_GNODE_ALT, more.v, more.n);
        body = others.n > 0 ? lt_gast_seq2(g, lt_gast_list(g, LT_GNODE_ALT, others.v, others.n),
                                           lt_gast_repeat(g, tail, 0, LT_GINF))
                            : lt_gast_never(g);
    }
    free(more.v);
    free(others.v);
    return body;
}

/* ---- Definitions ---- */

static lt_err define(reader *r, int32_t rule, lt_gid body) {
    LT_TRY(lt_gast_check(r->g));
    if (r->g->rules[rule].body >= 0) {
        LT_FAIL(LT_ERR_FORMAT, "Lark grammar: '%s' is defined twice", r->g->rules[rule].name);
    }
    r->g->rules[rule].body = without_left_recursion(r->g, body, rule);
    return lt_gast_check(r->g);
}

static lt_err import_one(reader *r, const uint8_t *name, size_t n, const uint8_t *as, size_t as_n) {
    char line[NAME_BYTES + 4];
    const int width = snprintf(line, sizeof line, "\n%.*s:", (int)(n < NAME_BYTES ? n : NAME_BYTES),
                               (const char *)name);
    const bool first = strncmp(common, line + 1, (size_t)width - 1) == 0;
    if (n == 0 || (!first && strstr(common, line) == NULL)) {
        return refuse(r, "an import that is none of common's texts");
    }
    r->imports = true;
    return define(r, rule_of(r, "", as, as_n), lt_gast_ref(r->g, rule_of(r, COMMON, name, n)));
}

/* %import common.NAME [-> OTHER], %import common (A, B) */
static lt_err read_import(reader *r) {
    const uint8_t *name, *as;
    size_t n, as_n;
    skip_space(r, false);
    if (!skip(r, "common")) {
        return refuse(r, "an import from elsewhere than common");
    }
    if (skip(r, ".")) {
        name = as = r->p;
        r->p += n = as_n = name_length(r);
        skip_space(r, false);
        if (skip(r, "->")) {
            skip_space(r, false);
            as = r->p;
            r->p += as_n = name_length(r);
        }
        return import_one(r, name, n, as, as_n);
    }
    skip_space(r, false);
    if (!skip(r, "(")) {
        return wrong(r, "expected common.NAME or common (NAME, ...)");
    }
    do {
        skip_space(r, true);
        name = r->p;
        r->p += n = name_length(r);
        LT_TRY(import_one(r, name, n, name, n));
        skip_space(r, true);
    } while (skip(r, ","));
    return skip(r, ")") ? LT_OK : wrong(r, "a list that is not closed");
}

static lt_err read_directive(reader *r) {
    lt_gid body = -1;
    if (skip(r, "%import")) {
        return read_import(r);
    }
    if (!skip(r, "%ignore")) {
        return refuse(r, "a directive other than %import and %ignore");
    }
    r->in_terminal = true;
    LT_TRY(read_alternatives(r, false, &body));
    lt_gids_push(r->g, &r->ignored, body);
    return LT_OK;
}

static lt_err read_definition(reader *r) {
    int64_t priority;
    int32_t rule;
    size_t n;
    lt_gid body = -1;

    while (skip(r, "?") || skip(r, "!")) {}
    n = name_length(r);
    if (n == 0 || n > NAME_BYTES) {
        return wrong(r, "expected the name of a rule or terminal");
    }
    r->in_terminal = is_terminal(r->p, n);
    rule = rule_of(r, r->prefix, r->p, n);
    r->p += n;
    if (at(r, "{")) {
        return refuse(r, "a template");
    }
    if (skip(r, ".")) {
        (void)skip(r, "-");
        (void)read_number(r, &priority);
    }
    skip_space(r, false);
    if (!skip(r, ":")) {
        return wrong(r, "expected a colon");
    }
    /* With ignored text, inlining everything would make large automata. */
    r->g->rules[rule].keep = !r->in_terminal;
    skip_to_bar(r);
    LT_TRY(read_alternatives(r, false, &body));
    if (r->p < r->end && *r->p != '\n' && *r->p != '\r') {
        return wrong(r, "a bracket without its beginning");
    }
    return define(r, rule, body);
}

static lt_err read_all(reader *r) {
    for (skip_space(r, true); r->p < r->end; skip_space(r, true)) {
        LT_TRY(at(r, "%") ? read_directive(r) : read_definition(r));
    }
    return LT_OK;
}

static lt_err read_common(lt_gast *g) {
    const uint8_t *p = (const uint8_t *)common;
    reader r = {.g = g, .p = p, .start = p, .end = p + sizeof common - 1, .prefix = COMMON};
    return read_all(&r);
}

/* ---- What is ignored ---- */

/* Whether it ends in any number of nearly any characters, as a comment up to the end of its line
 * does: following text would belong to it. */
static bool is_open(const lt_gast *g, lt_gid id) {
    for (int depth = 0; depth < LT_GRAMMAR_DEPTH && id >= 0; depth++) {
        const lt_gnode node = g->nodes[id];
        if (node.kind == LT_GNODE_RULE) {
            id = g->rules[node.a].body;
        } else if (node.kind == LT_GNODE_SEQ && node.n > 0) {
            id = g->kids[node.a + node.n - 1];
        } else if (node.kind == LT_GNODE_REPEAT && node.max == LT_GINF) {
            const lt_gnode kid = g->nodes[node.a];
            for (int32_t i = 0; kid.kind == LT_GNODE_CHARS && i < kid.n; i++) {
                if (g->ranges[kid.a + i].lo <= 'a' && g->ranges[kid.a + i].hi >= 'z') {
                    return true;
                }
            }
            return false;
        } else {
            return false;
        }
    }
    return false;
}

/* Texts to ignore between terminals; *last: what may be ignored once more at the very end. */
static lt_gid ignored_of(const reader *r, lt_gid *last) {
    lt_gast *g = r->g;
    lt_gids open = {0};
    lt_gid all, any;

    *last = lt_gast_empty(g);
    if (r->ignored.n == 0) {
        return *last;
    }
    for (size_t i = 0; i < r->ignored.n; i++) {
        if (is_open(g, r->ignored.v[i])) {
            lt_gids_push(g, &open, r->ignored.v[i]);
        }
    }
    any = lt_gast_list(g, LT_GNODE_ALT, r->ignored.v, r->ignored.n);
    all = lt_gast_repeat(g, any, 0, LT_GINF);
    if (open.n > 0) {
        const lt_gid comment = lt_gast_list(g, LT_GNODE_ALT, open.v, open.n);
        all = lt_gast_pair(g, LT_GNODE_MINUS, all, lt_gast_seq2(g, all, comment));
        *last = lt_gast_repeat(g, comment, 0, 1);
    }
    free(open.v);
    return all;
}

lt_err lt_glark_read(lt_gast *g, const char *text, size_t bytes) {
    const uint8_t *p = (const uint8_t *)text;
    reader r = {.g = g, .p = p, .start = p, .end = p + bytes, .prefix = ""};
    lt_err err = LT_OK;
    int32_t start, ignored;
    lt_gid last;

    LT_TRY_DONE(read_all(&r));
    if (r.imports) {
        LT_TRY_DONE(read_common(g));
    }
    start = lt_gast_rule(g, "start", 5);
    ignored = lt_gast_rule(g, SKIP, sizeof SKIP - 1);
    LT_TRY_DONE(lt_gast_check(g));
    if (g->rules[start].body < 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "Lark grammar: there is no rule 'start'");
    }
    g->rules[ignored].body = ignored_of(&r, &last);
    g->root = lt_gast_new_rule(
        g, lt_gast_seq3(g, lt_gast_ref(g, ignored), lt_gast_ref(g, start), last));
    err = lt_gast_check(g);
done:
    free(r.ignored.v);
    return err;
}

/* A colon after its name distinguishes a definition from GBNF's; a line that begins with a percent
 * sign can only be Lark's. */
bool lt_glark_is(const char *text, size_t bytes) {
    const uint8_t *p = (const uint8_t *)text;
    reader r = {.p = p, .start = p, .end = p + bytes};
    size_t n;

    skip_space(&r, true);
    if (at(&r, "%") || at(&r, "?") || at(&r, "!")) {
        return true;
    }
    n = name_length(&r);
    r.p += n;
    if (n == 0 || at(&r, "{")) {
        return n > 0;
    }
    if (skip(&r, ".")) {
        return true;
    }
    skip_space(&r, false);
    return at(&r, ":") && !at(&r, "::=");
}
