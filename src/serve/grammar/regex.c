/* grammar/regex.c: regular expressions as trees. The dialect is what ECMAScript, Python and PCRE
 * agree on:
 *
 *   a|b  (a)  (?:a)  (?<n>a)  (?P<n>a)
 *   a* a+ a? a{m} a{m,} a{m,n}, lazy forms the same      .  (all but a newline)
 *   [abc] [^a-z] with \d \w \s \n \xHH inside           \d \w \s \D \W \S (of ASCII)
 *   \t \n \r \f \v \0 \xHH \uHHHH \u{H...} \p{L N P S M}
 *   ^ and $ anywhere
 *
 * Look-around, back-references, \b and flags describe more than a regular language or need what a
 * mask cannot see: UNSUPPORTED. As a grammar, the expression must match the whole text; as a
 * schema's pattern, it is searched anywhere, unless anchored, in text as written in JSON. */
#include <ctype.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode.h"
#include "serve/grammar/json.h"

#define MAX_COUNT 100000
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define PROPERTY_END 0x110000u
#else /* A small limit, because a fuzzer finds more with many small inputs. */
#define PROPERTY_END 0x1000u
#endif

typedef struct {
    lt_gast *g;
    const uint8_t *p, *start, *end;
    int depth;
    lt_gregex_options o;
    bool anchors; /* Anchors at any position, as bytes that are resolved later. */
    bool inner;   /* An anchor was found that needs this. */
} reader;

typedef struct {
    lt_grange *v;
    size_t n, room;
} ranges;

static lt_err refuse(const reader *r, const char *what) {
    LT_FAIL(LT_ERR_UNSUPPORTED, "regular expression: %s is not supported (offset %td)", what,
            r->p - r->start);
}

static lt_err wrong(const reader *r, const char *what) {
    LT_FAIL(LT_ERR_FORMAT, "regular expression: %s at offset %td", what, r->p - r->start);
}

static lt_err put(ranges *s, uint32_t lo, uint32_t hi) {
    if (s->n == s->room) {
        const size_t room = s->room == 0 ? 16 : s->room * 2;
        lt_grange *grown = realloc(s->v, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "regular expression: %zu ranges", room);
        }
        s->v = grown;
        s->room = room;
    }
    s->v[s->n++] = (lt_grange){lo, hi};
    return LT_OK;
}

static bool at(const reader *r, char c) {
    return r->p < r->end && *r->p == (uint8_t)c;
}

static bool skip(reader *r, char c) {
    const bool is = at(r, c);
    r->p += is;
    return is;
}

/* The properties and their characters, computed once by scanning all of Unicode, in some hundred
 * microseconds each. */
static const struct {
    char name;
    uint32_t flag;
} properties[] = {{'L', LT_UNICODE_LETTER},
                  {'N', LT_UNICODE_NUMBER},
                  {'P', LT_UNICODE_PUNCT},
                  {'S', LT_UNICODE_SYMBOL},
                  {'M', LT_UNICODE_MARK}};
#define N_PROPERTIES (int)(sizeof properties / sizeof *properties)

static struct {
    ranges of;
    lt_err err;
} found[sizeof properties / sizeof *properties];

static lt_err find_property(ranges *s, uint32_t flag) {
    uint32_t from = 0;
    bool inside = false, same = false;
    for (uint32_t block = 0; block < PROPERTY_END / LT_UNICODE_BLOCK; block++) {
        const uint32_t at = block * LT_UNICODE_BLOCK;
        if (block > 0 && same && lt_unicode_kind_index[block] == lt_unicode_kind_index[block - 1]) {
            continue; /* The block is uniform and like the previous one, as most are. */
        }
        same = true;
        for (uint32_t cp = at; cp < at + LT_UNICODE_BLOCK; cp++) {
            const bool is = (lt_unicode_flags(cp) & flag) != 0;
            if (is && !inside) {
                from = cp;
            } else if (!is && inside) {
                LT_TRY(put(s, from, cp - 1));
            }
            same = same && (is == inside || cp == at);
            inside = is;
        }
    }
    return inside ? put(s, from, PROPERTY_END - 1) : LT_OK;
}

static void find_properties(void) {
    for (int i = 0; i < N_PROPERTIES; i++) {
        found[i].err = find_property(&found[i].of, properties[i].flag);
    }
}

/* The characters with a property, by its letter. */
static lt_err property_ranges(ranges *s, char name) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int which = -1;
    for (int i = 0; i < N_PROPERTIES; i++) {
        which = properties[i].name == name ? i : which;
    }
    LT_ASSERT(which >= 0);
    pthread_once(&once, find_properties);
    if (found[which].err != LT_OK) {
        LT_FAIL(LT_ERR_OOM, "regular expression: ranges of a character property");
    }
    for (size_t i = 0; i < found[which].of.n; i++) {
        LT_TRY(put(s, found[which].of.v[i].lo, found[which].of.v[i].hi));
    }
    return LT_OK;
}

/* The characters of \d, \w and \s: ECMAScript's, and those that Python adds (its letters and digits
 * are properties). */
static const lt_grange digit[] = {{'0', '9'}},
                       word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                       ascii_space[] = {{'\t', '\r'}, {' ', ' '}},
                       space[] = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},
                                  {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                  {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}},
                       more_space[] = {{0x1C, 0x1F}, {0x85, 0x85}, {0xFEFF, 0xFEFF}};

static lt_err put_all(ranges *s, const lt_grange *v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        LT_TRY(put(s, v[i].lo, v[i].hi));
    }
    return LT_OK;
}
#define PUT_ALL(s, v) put_all((s), (v), sizeof(v) / sizeof *(v))

static int by_first(const void *a, const void *b) {
    const lt_grange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Replace the ranges from `first` on by their complement. */
static lt_err opposite(ranges *s, size_t first) {
    ranges in = {0};
    uint32_t next = 0;
    lt_err err = LT_OK;
    LT_TRY_DONE(put_all(&in, s->v + first, s->n - first));
    s->n = first;
    if (in.n > 1) {
        qsort(in.v, in.n, sizeof *in.v, by_first);
    }
    for (size_t i = 0; i < in.n; i++) {
        LT_TRY_DONE(in.v[i].lo > next ? put(s, next, in.v[i].lo - 1) : LT_OK);
        next = in.v[i].hi >= next ? in.v[i].hi + 1 : next;
    }
    LT_TRY_DONE(next <= 0x10FFFF ? put(s, next, 0x10FFFF) : LT_OK);
done:
    free(in.v);
    return err;
}

/* \d \w \s and their complements; *known false: c is none of them. all: what either ECMAScript or
 * Python matches, otherwise what both match. */
static lt_err class_escape(const reader *r, ranges *s, char c, bool all, bool *known) {
    const char lower = (char)(c | 32);
    const size_t first = s->n;
    *known = lower == 'd' || lower == 'w' || lower == 's';
    if (!*known) {
        return LT_OK;
    }
    /* The complement of what either matches is what neither matches. */
    all = r->o.search && all != (c != lower);
    LT_TRY(lower == 'd'   ? PUT_ALL(s, digit)
           : lower == 'w' ? PUT_ALL(s, word)
           : r->o.search  ? PUT_ALL(s, space)
                          : PUT_ALL(s, ascii_space));
    if (all && lower == 's') {
        LT_TRY(PUT_ALL(s, more_space));
    } else if (all) {
        LT_TRY(property_ranges(s, 'N'));
        LT_TRY(lower == 'w' ? property_ranges(s, 'L') : LT_OK);
        LT_TRY(lower == 'w' ? property_ranges(s, 'M') : LT_OK);
    }
    return c != lower ? opposite(s, first) : LT_OK;
}

/* \p{L}, \p{Letter} and similar, after "\p" or "\P". */
static lt_err property(reader *r, ranges *s, bool negated) {
    static const char *const names[] = {"L",           "Letter", "N",      "Number", "P",
                                        "Punctuation", "S",      "Symbol", "M",      "Mark"};
    const uint8_t *end = r->p < r->end && *r->p == '{' ? memchr(r->p, '}', (size_t)(r->end - r->p))
                                                       : NULL;
    const size_t first = s->n;
    char name = 0;
    for (size_t i = 0; end != NULL && i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i]);
        if ((size_t)(end - r->p) == n + 1 && memcmp(r->p + 1, names[i], n) == 0) {
            name = names[i][0];
        }
    }
    if (name == 0) {
        return refuse(r, "a character property other than \\p{L}, N, P, S, M");
    }
    r->p = end + 1;
    LT_TRY(lt_gast_check(r->g)); /* There are many ranges: stop if they do not fit. */
    LT_TRY(property_ranges(s, name));
    return negated ? opposite(s, first) : LT_OK;
}

static lt_err hex_number(reader *r, int digits, uint32_t *out) {
    const bool braces = digits == 4 && skip(r, '{');
    int n = 0;
    *out = 0;
    for (; r->p < r->end && n < (braces ? 6 : digits); n++, r->p++) {
        const uint8_t c = *r->p;
        if (!((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'))) {
            break;
        }
        *out = *out * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if ((!braces && n != digits) || (braces && !skip(r, '}')) || n == 0 || *out > 0x10FFFF) {
        return wrong(r, "a malformed hexadecimal escape");
    }
    if (*out >= 0xD800 && *out < 0xDC00 && r->end - r->p >= 6 && r->p[0] == '\\' &&
        r->p[1] == 'u') { /* A surrogate pair. */
        uint32_t low;
        r->p += 2;
        LT_TRY(hex_number(r, 4, &low));
        *out = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00)
                                             : 0xFFFD;
    }
    return LT_OK;
}

/* After a backslash: a class into s, or one character into *cp (s is unchanged). */
static lt_err escape(reader *r, ranges *s, uint32_t *cp, bool *single, bool in_class, bool all) {
    static const char from[] = "tnrfv0", to[] = "\t\n\r\f\v";
    const char *simple;
    bool known;
    char c;
    if (r->p == r->end) {
        return wrong(r, "a backslash without a character");
    }
    c = (char)*r->p;
    *single = false;
    LT_TRY(class_escape(r, s, c, all, &known));
    if (known) {
        r->p++;
        return LT_OK;
    }
    if (c == 'p' || c == 'P') {
        r->p++;
        return property(r, s, c == 'P');
    }
    *single = true;
    if (c == 'x' || c == 'u') {
        r->p++;
        return hex_number(r, c == 'x' ? 2 : 4, cp);
    }
    if (c == 'b' && in_class) {
        r->p++;
        *cp = 8;
        return LT_OK;
    }
    if (c == 'c' && r->end - r->p > 1) {
        *cp = r->p[1] & 31;
        r->p += 2;
        return LT_OK;
    }
    simple = c != 0 ? strchr(from, c) : NULL;
    if (simple != NULL) {
        *cp = (uint32_t)(unsigned char)to[simple - from];
        r->p++;
        return LT_OK;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        return refuse(r, c >= '1' && c <= '9' ? "a back-reference" : "this escape");
    }
    r->p += lt_utf8_decode(r->p, r->end, cp);
    return LT_OK;
}

static lt_gid emit(reader *r, const ranges *s, bool negated) {
    return r->o.json ? lt_gjson_class(r->g, s->v, s->n, negated)
                     : lt_gast_chars(r->g, s->v, s->n, negated);
}

static lt_err class_item(reader *r, ranges *s, uint32_t *cp, bool *single, bool all) {
    if (skip(r, '\\')) {
        return escape(r, s, cp, single, true, all);
    }
    *single = true;
    r->p += lt_utf8_decode(r->p, r->end, cp);
    return LT_OK;
}

/* After "[". */
static lt_err read_class(reader *r, lt_gid *out) {
    ranges s = {0};
    const bool negated = skip(r, '^'), all = r->o.wide != negated;
    bool single;
    uint32_t lo, hi;
    lt_err err = LT_OK;
    if (!r->o.search && at(r, ']')) { /* A schema's patterns are ECMAScript's. */
        return refuse(r, "a class that begins with ], which ends it in ECMAScript and is a member "
                         "in Python (write \\])");
    }
    while (r->p < r->end && !at(r, ']')) {
        LT_TRY_DONE(class_item(r, &s, &lo, &single, all));
        hi = lo;
        if (single && at(r, '-') && r->p + 1 < r->end && r->p[1] != ']') {
            r->p++;
            LT_TRY_DONE(class_item(r, &s, &hi, &single, all));
            if (!single) { /* [a-\d]: the characters a, - and digits. */
                LT_TRY_DONE(put(&s, '-', '-'));
                hi = lo;
            }
            if (hi < lo) {
                err = wrong(r, "a range that runs backwards");
                goto done;
            }
            single = true;
        }
        LT_TRY_DONE(single ? put(&s, lo, hi) : LT_OK);
    }
    if (!skip(r, ']')) {
        err = wrong(r, "a class that is not closed");
        goto done;
    }
    *out = emit(r, &s, negated);
done:
    free(s.v);
    return err;
}

static lt_err read_alternatives(reader *r, bool top, lt_gid *out);

/* After "(". */
static lt_err read_group(reader *r, lt_gid *out) {
    if (skip(r, '?')) {
        skip(r, 'P');
        if (at(r, '<') && r->p + 1 < r->end && r->p[1] != '=' && r->p[1] != '!') {
            while (r->p < r->end && !at(r, '>')) {
                r->p++;
            }
            if (!skip(r, '>')) {
                return wrong(r, "a group name that is not closed");
            }
        } else if (!skip(r, ':')) {
            return refuse(r, "look-around, a flag or another special group");
        }
    }
    if (++r->depth > LT_GRAMMAR_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "regular expression: nested deeper than %d", LT_GRAMMAR_DEPTH);
    }
    LT_TRY(read_alternatives(r, false, out));
    r->depth--;
    return skip(r, ')') ? LT_OK : wrong(r, "a group that is not closed");
}

static lt_err read_atom(reader *r, lt_gid *out) {
    ranges s = {0};
    uint32_t cp = 0;
    bool single = true;
    lt_err err = LT_OK;
    const uint8_t c = *r->p;
    if (c == '(' || c == '[') {
        r->p++;
        return c == '(' ? read_group(r, out) : read_class(r, out);
    }
    if (c == '^' || c == '$') {
        const int byte = c == '^' ? LT_GANCHOR_START : LT_GANCHOR_END;
        r->p++;
        r->inner = true;
        *out = lt_gast_byte(r->g, byte, byte);
        return LT_OK;
    }
    if (c == '*' || c == '+' || c == '?') {
        return wrong(r, "a repetition of nothing");
    }
    if (c == '.') {
        r->p++;
        LT_TRY_DONE(put(&s, '\n', '\n'));
        if (r->o.search && !r->o.wide) { /* ECMAScript's other line ends. */
            LT_TRY_DONE(put(&s, '\r', '\r'));
            LT_TRY_DONE(put(&s, 0x2028, 0x2029));
        }
        *out = emit(r, &s, true);
        goto done;
    }
    if (skip(r, '\\')) {
        LT_TRY_DONE(escape(r, &s, &cp, &single, false, r->o.wide));
    } else {
        r->p += lt_utf8_decode(r->p, r->end, &cp);
    }
    LT_TRY_DONE(single ? put(&s, cp, cp) : LT_OK);
    *out = emit(r, &s, false);
done:
    free(s.v);
    return err;
}

static bool number(reader *r, int64_t *out) {
    const uint8_t *from = r->p;
    *out = 0;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && *out <= MAX_COUNT) {
        *out = *out * 10 + (*r->p++ - '0');
    }
    return r->p > from;
}

/* Read {m}, {m,}, {m,n} at r->p; in any other text the brace represents itself. */
static bool counts(reader *r, int64_t *min, int64_t *max) {
    const uint8_t *from = r->p;
    r->p++;
    if (number(r, min)) {
        *max = *min;
        if (skip(r, ',') && !number(r, max)) {
            *max = LT_GINF;
        }
        if (skip(r, '}')) {
            return true;
        }
    }
    r->p = from;
    return false;
}

static lt_err read_repeats(reader *r, lt_gid *item) {
    for (;;) {
        int64_t min = 0, max = LT_GINF;
        if (skip(r, '*')) {
        } else if (skip(r, '+')) {
            min = 1;
        } else if (skip(r, '?')) {
            max = 1;
            /* Python counts from 0; ECMAScript reads five letters. */
        } else if (!r->o.search && r->end - r->p >= 3 && memcmp(r->p, "{,", 2) == 0 &&
                   isdigit(r->p[2])) {
            return refuse(r, "a repetition without its least number ({0,n} is clear)");
        } else if (!at(r, '{') || !counts(r, &min, &max)) {
            return LT_OK;
        }
        if (min > MAX_COUNT || (max > MAX_COUNT && max != LT_GINF)) {
            LT_FAIL(LT_ERR_LIMIT, "regular expression: a repetition of more than %d", MAX_COUNT);
        }
        if (max < min) {
            return wrong(r, "a repetition whose bounds run backwards");
        }
        if (at(r, '+')) {
            return refuse(r, "a possessive repetition");
        }
        skip(r, '?');
        *item = lt_gast_repeat(r->g, *item, (int32_t)min, (int32_t)max);
    }
}

/* The text around a pattern that may match anywhere. */
static lt_gid anything(reader *r) {
    return lt_gast_repeat(
        r->g, r->o.json ? lt_gjson_char(r->g) : lt_gast_char_range(r->g, 0, 0x10FFFF), 0, LT_GINF);
}

static lt_err read_sequence(reader *r, bool top, lt_gid *out) {
    lt_gids kids = {0};
    lt_err err = LT_OK;
    const bool from_start = top && !r->anchors && skip(r, '^');
    bool to_end = false;
    if (top && r->o.search && !r->anchors && !from_start) {
        lt_gids_push(r->g, &kids, anything(r));
    }
    while (r->p < r->end && !at(r, '|') && !at(r, ')')) {
        lt_gid item = -1;
        if (top && !r->anchors && at(r, '$') && (r->p + 1 == r->end || r->p[1] == '|')) {
            r->p++;
            to_end = true;
            break;
        }
        LT_TRY_DONE(read_atom(r, &item));
        LT_TRY_DONE(read_repeats(r, &item));
        lt_gids_push(r->g, &kids, item);
    }
    if (top && r->o.search && !r->anchors && !to_end) {
        lt_gids_push(r->g, &kids, anything(r));
    }
    *out = lt_gast_list(r->g, LT_GNODE_SEQ, kids.v, kids.n);
done:
    free(kids.v);
    return err;
}

static lt_err read_alternatives(reader *r, bool top, lt_gid *out) {
    lt_gids alts = {0};
    lt_err err = LT_OK;
    do {
        lt_gid one = -1;
        LT_TRY_DONE(read_sequence(r, top, &one));
        lt_gids_push(r->g, &alts, one);
    } while (skip(r, '|'));
    *out = lt_gast_list(r->g, LT_GNODE_ALT, alts.v, alts.n);
done:
    free(alts.v);
    return err;
}

/* With anchors at any position: take texts with marks at their beginning and end, keep those that
 * the expression matches with its anchors as marks, and then remove the marks. */
static lt_gid sort_out_anchors(reader *r, lt_gid body) {
    lt_gast *g = r->g;
    const lt_gid start = lt_gast_byte(g, LT_GANCHOR_START, LT_GANCHOR_START),
                 end = lt_gast_byte(g, LT_GANCHOR_END, LT_GANCHOR_END);
    const lt_gid one = r->o.json ? lt_gjson_char(g) : lt_gast_char_range(g, 0, 0x10FFFF);
    const lt_gid any = lt_gast_repeat(
        g, lt_gast_list(g, LT_GNODE_ALT, (const lt_gid[]){one, start, end}, 3), 0, LT_GINF);
    const lt_gid around = lt_gast_repeat(g, lt_gast_alt2(g, start, end), 0, LT_GINF);
    /* The empty text begins and ends at the same place. */
    const lt_gid marked = lt_gast_alt2(g, around,
                                       lt_gast_seq3(g, lt_gast_repeat(g, start, 0, LT_GINF),
                                                    anything(r),
                                                    lt_gast_repeat(g, end, 0, LT_GINF)));
    if (r->o.search) {
        body = lt_gast_seq3(g, any, body, any);
    }
    return lt_gast_erase(g, lt_gast_pair(g, LT_GNODE_AND, body, marked));
}

lt_err lt_gregex_read(lt_gast *g, const char *text, size_t bytes, lt_gregex_options o,
                      lt_gid *out) {
    const uint8_t *p = (const uint8_t *)text;
    reader r = {.g = g, .p = p, .start = p, .end = p + bytes, .o = o};
    LT_TRY(read_alternatives(&r, true, out));
    if (r.inner && r.p == r.end) {
        r = (reader){.g = g, .p = p, .start = p, .end = p + bytes, .o = o, .anchors = true};
        LT_TRY(read_alternatives(&r, true, out));
        *out = sort_out_anchors(&r, *out);
    }
    if (r.p < r.end) {
        return wrong(&r, "a ')' without its '('");
    }
    return lt_gast_check(g);
}
