/* grammar/gbnf.c: llama.cpp's GBNF as trees.
 *
 *   root ::= "yes" | "no" reason?        # a comment
 *   reason ::= " " [^\n]{1,80}
 *
 * Literals and classes know \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH; . is any character; * + ?
 * {m} {m,} {m,n} repeat; parentheses may span lines. <name> is the special token of this name,
 * <[id]> that of this id. Refused, unlike in llama.cpp: !<name>, tokens that are not special, a
 * rule that is defined twice, and a range that runs backwards. */
#include "serve/grammar/impl.h"
#include "serve/grammar/escape.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode.h"

#define MAX_COUNT 100000

typedef struct {
    lt_gast *g;
    const lt_grammar_vocab *v;
    const uint8_t *p, *start, *end;
    int depth;
} reader;

static lt_err wrong(const reader *r, const char *what) {
    int line = 1;
    for (const uint8_t *p = r->start; p < r->p; p++) {
        line += *p == '\n';
    }
    LT_FAIL(LT_ERR_FORMAT, "grammar:%d: %s", line, what);
}

static void skip_space(reader *r, bool newlines) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '#' ||
                             (newlines && (*r->p == '\n' || *r->p == '\r')))) {
        if (*r->p == '#') {
            while (r->p < r->end && *r->p != '\n' && *r->p != '\r') {
                r->p++;
            }
        } else {
            r->p++;
        }
    }
}

static bool at(const reader *r, char c) {
    return r->p < r->end && *r->p == (uint8_t)c;
}

static bool skip(reader *r, char c) {
    const bool is = at(r, c);
    r->p += is;
    return is;
}

static bool name_byte(uint8_t c) {
    return isalnum(c) || c == '-' || c == '_';
}

static size_t name_length(const reader *r) {
    size_t n = 0;
    while (r->p + n < r->end && name_byte(r->p[n])) {
        n++;
    }
    return n;
}

/* One character of a literal or class. */
static lt_err read_char(reader *r, uint32_t *cp) {
    const char *why = lt_gescape_read(&r->p, r->end, "nrt\\\"[]-^/'", "\n\r\t\\\"[]-^/'", cp);
    return why == NULL ? LT_OK : wrong(r, why);
}

static lt_err read_literal(reader *r, lt_gid *out) {
    lt_text text = {0};
    lt_err err = LT_OK;
    uint32_t cp;
    while (r->p < r->end && !at(r, '"')) { /* A line feed stands for itself, as in llama.cpp. */
        LT_TRY_DONE(read_char(r, &cp));
        LT_TRY_DONE(lt_text_put_cp(&text, cp));
    }
    if (!skip(r, '"')) {
        err = wrong(r, "a literal that is not closed");
        goto done;
    }
    *out = lt_gast_bytes(r->g, text.data, text.n);
done:
    lt_text_free(&text);
    return err;
}

static lt_err read_class(reader *r, lt_gid *out) {
    const bool negated = skip(r, '^');
    lt_grange *v = NULL;
    size_t n = 0, room = 0;
    lt_err err = LT_OK;
    while (r->p < r->end && !at(r, ']')) {
        lt_grange one;
        LT_TRY_DONE(read_char(r, &one.lo));
        one.hi = one.lo;
        if (at(r, '-') && r->p + 1 < r->end && r->p[1] != ']') {
            r->p++;
            LT_TRY_DONE(read_char(r, &one.hi));
            if (one.hi < one.lo) {
                err = wrong(r, "a range that runs backwards");
                goto done;
            }
        }
        if (!lt_grow((void **)&v, n, &room, sizeof *v)) {
            err = LT_ERR_OOM;
            goto done;
        }
        v[n++] = one;
    }
    if (!skip(r, ']')) {
        err = wrong(r, "a class that is not closed");
        goto done;
    }
    *out = lt_gast_chars(r->g, v, n, negated);
done:
    free(v);
    return err;
}

/* After "<": a special token. */
static lt_err read_token(reader *r, lt_gid *out) {
    const uint8_t *from = r->p;
    unsigned char code[4];
    int64_t id = -1;
    size_t n;
    while (r->p < r->end && !at(r, '>') && !at(r, '\n')) {
        r->p++;
    }
    if (!skip(r, '>')) {
        return wrong(r, "a token that is not closed");
    }
    n = (size_t)(r->p - from);
    if (n >= 4 && from[0] == '[' && from[n - 2] == ']') {
        id = 0;
        for (size_t i = 1; i + 2 < n && id < INT32_MAX; i++) {
            id = from[i] >= '0' && from[i] <= '9' ? id * 10 + from[i] - '0' : INT32_MAX;
        }
        id = id < r->v->n_ids && r->v->special[id] != NULL ? id : -1;
    } else {
        id = lt_gvocab_find_special(r->v, (const char *)from - 1, n + 1);
    }
    if (id < 0) {
        return wrong(r, "no special token of this name");
    }
    for (size_t i = 0; i < r->v->n_ends; i++) {
        if (r->v->ends[i] == id) { /* Otherwise the text could neither continue nor end. */
            return wrong(r, "a token that ends the text; it may follow wherever the grammar ends");
        }
    }
    lt_gvocab_special_bytes((int32_t)id, code);
    *out = lt_gast_bytes(r->g, (const char *)code, 4);
    return LT_OK;
}

static lt_err read_alternatives(reader *r, bool nested, lt_gid *out);

static lt_err read_item(reader *r, lt_gid *out) {
    const size_t n = name_length(r);
    if (n > 0) {
        *out = lt_gast_ref(r->g, lt_gast_rule(r->g, (const char *)r->p, n));
        r->p += n;
        return LT_OK;
    }
    if (skip(r, '"')) {
        return read_literal(r, out);
    }
    if (skip(r, '[')) {
        return read_class(r, out);
    }
    if (skip(r, '.')) {
        *out = lt_gast_char_range(r->g, 0, 0x10FFFF);
        return LT_OK;
    }
    if (skip(r, '<')) {
        return read_token(r, out);
    }
    if (skip(r, '(')) {
        if (++r->depth > LT_GRAMMAR_DEPTH) {
            LT_FAIL(LT_ERR_LIMIT, "grammar: nested deeper than %d", LT_GRAMMAR_DEPTH);
        }
        LT_TRY(read_alternatives(r, true, out));
        r->depth--;
        return skip(r, ')') ? LT_OK : wrong(r, "a group that is not closed");
    }
    return wrong(r, "expected a literal, class, rule or group");
}

static bool read_number(reader *r, int64_t *out) {
    const uint8_t *from = r->p;
    *out = 0;
    while (r->p < r->end && isdigit(*r->p) && *out <= MAX_COUNT) {
        *out = *out * 10 + (*r->p++ - '0');
    }
    return r->p > from;
}

/* After an item: as many repetitions as there are. Space may stand inside the braces. */
static lt_err read_repeats(reader *r, bool nested, lt_gid *item) {
    for (;;) {
        int64_t min = 0, max = LT_GINF;
        if (skip(r, '*')) {
        } else if (skip(r, '+')) {
            min = 1;
        } else if (skip(r, '?')) {
            max = 1;
        } else if (skip(r, '{')) {
            skip_space(r, nested);
            if (!read_number(r, &min)) {
                return wrong(r, "expected a number of repetitions");
            }
            max = min;
            skip_space(r, nested);
            if (skip(r, ',')) {
                skip_space(r, nested);
                max = read_number(r, &max) ? max : LT_GINF;
                skip_space(r, nested);
            }
            if (!skip(r, '}') || max < min) {
                return wrong(r, "a malformed repetition");
            }
        } else {
            return LT_OK;
        }
        if (min > MAX_COUNT || (max > MAX_COUNT && max != LT_GINF)) {
            LT_FAIL(LT_ERR_LIMIT, "grammar: a repetition of more than %d", MAX_COUNT);
        }
        *item = lt_gast_repeat(r->g, *item, (int32_t)min, (int32_t)max);
        skip_space(r, nested);
    }
}

static lt_err read_sequence(reader *r, bool nested, lt_gid *out) {
    lt_gids kids = {0};
    lt_err err = LT_OK;
    for (;;) {
        lt_gid item = -1;
        skip_space(r, nested);
        if (r->p == r->end || at(r, '|') || at(r, ')') || at(r, '\n') || at(r, '\r')) {
            break;
        }
        LT_TRY_DONE(read_item(r, &item));
        skip_space(r, nested);
        LT_TRY_DONE(read_repeats(r, nested, &item));
        lt_gids_push(r->g, &kids, item);
    }
    *out = lt_gast_list(r->g, LT_GNODE_SEQ, kids.v, kids.n);
done:
    free(kids.v);
    return err;
}

static lt_err read_alternatives(reader *r, bool nested, lt_gid *out) {
    lt_gids alts = {0};
    lt_err err = LT_OK;
    do {
        lt_gid one = -1;
        skip_space(r, true); /* A line may end after a bar. */
        LT_TRY_DONE(read_sequence(r, nested, &one));
        lt_gids_push(r->g, &alts, one);
        skip_space(r, nested);
    } while (skip(r, '|'));
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    return err;
}

lt_err lt_gbnf_read(lt_gast *g, const struct lt_grammar_vocab *v, const char *text, size_t bytes) {
    const uint8_t *p = (const uint8_t *)text;
    reader r = {.g = g, .v = v, .p = p, .start = p, .end = p + bytes};
    for (skip_space(&r, true); r.p < r.end; skip_space(&r, true)) {
        const size_t n = name_length(&r);
        int32_t rule;
        lt_gid body = -1;
        if (n == 0) {
            return wrong(&r, "expected the name of a rule");
        }
        rule = lt_gast_rule(g, (const char *)r.p, n);
        r.p += n;
        skip_space(&r, false);
        if (r.end - r.p < 3 || memcmp(r.p, "::=", 3) != 0) {
            return wrong(&r, "expected ::=");
        }
        r.p += 3;
        LT_TRY(read_alternatives(&r, false, &body));
        LT_TRY(lt_gast_check(g));
        if (at(&r, ')')) {
            return wrong(&r, "a ')' without its '('");
        }
        if (g->rules[rule].body >= 0) {
            LT_FAIL(LT_ERR_FORMAT, "grammar: rule '%s' is defined twice", g->rules[rule].name);
        }
        g->rules[rule].body = body;
    }
    g->root = lt_gast_rule(g, "root", 4);
    LT_TRY(lt_gast_check(g));
    if (g->rules[g->root].body < 0) {
        LT_FAIL(LT_ERR_FORMAT, "grammar: there is no rule 'root'");
    }
    return LT_OK;
}
