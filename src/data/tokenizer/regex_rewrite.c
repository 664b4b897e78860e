/* regex_rewrite.c: see regex_rewrite.h.
 *
 * Oniguruma's Ruby dialect, Rust's and PCRE2's Perl dialect look alike, and a pattern of one
 * usually compiles as one of another, with another meaning. So every element is read here and
 * written again:
 *
 *     in Oniguruma                          written as
 *     \w \d \s \h \p{..} [[:..:]]           a bracket with the items of regex_classes.c
 *     [a\W], a complement inside a bracket  (?:[a]|[^items of \w])
 *     [^a\W]                                (?:(?!(?:[a]|[^items of \w]))(?s:.))
 *     a{,3}                                 a{0,3}
 *     a{2}?  optional, not lazy             (?:a{2})?
 *     a{2,3}+  repeated, not possessive     (?:a{2,3})+
 *     a(?i)b|c  up to the group's end       a(?i:b|c)
 *     (?m:.)                                (?s:.)
 *     (?x) a b #c                           ab
 *     (?i)ss  also one letter               (?:ss|U+00DF|U+1E9E)
 *     \v \u0041 \O                          U+000B, U+0041, any character
 *
 * In Rust ^ and $ are the text's ends unless (?m) is set, a{2}? is lazy, a{2,3}+ possessive, and
 * (?i) compares single letters. What is rare is refused by name: intersections and nested brackets,
 * \y, \g, numbers of two digits behind a backslash, absent groups, conditions, and under (?i) what
 * Oniguruma would also compare with several letters. */
#include "data/tokenizer/regex_rewrite.h"

#include <string.h>

#include "base/error.h"
#include "data/tokenizer/regex_classes.h"

#define MAX_GROUPS 200 /* PCRE2 accepts 250 levels. */
#define SHOWN      80  /* Bytes of a pattern in a message. */

typedef struct {
    size_t begin; /* Where the group begins in the output, for a quantifier behind it. */
    unsigned closes;
    bool fold, extended, lines; /* The options outside of the group. */
} group;

typedef struct {
    const char *p, *end;
    const char *pattern, *name;
    size_t n;
    lt_text *out;
    size_t atom; /* Where the last element begins in the output. */
    bool rust;
    bool fold, extended, lines; /* (?i), (?x), (?m) of Rust. */
    group groups[MAX_GROUPS];
    size_t depth;
} reader;

#define REFUSE(r, what, ...)                                                                       \
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: pattern '%.*s' with " what, (r)->name,                        \
            (int)((r)->n < SHOWN ? (r)->n : SHOWN), (r)->pattern, __VA_ARGS__)
#define REFUSE_PLAIN(r, what) REFUSE(r, "%s", what)

static lt_err put(lt_text *out, const char *s) {
    return lt_text_put(out, s, strlen(s));
}

static lt_err put_literal(lt_text *out, uint32_t cp) {
    static const char hex[] = "0123456789abcdef";
    const bool plain = cp >= 0x80 || (cp >= '0' && cp <= '9') || (cp >= 'a' && cp <= 'z') ||
                       (cp >= 'A' && cp <= 'Z') || cp == ' ' || cp == '\'' || cp == '_';
    if (plain) {
        return lt_text_put_cp(out, cp);
    }
    const char code[] = {'\\', 'x', '{', hex[cp >> 4], hex[cp & 15], '}', 0};
    return put(out, code);
}

static bool peek(const reader *r, const char *s) {
    const size_t n = strlen(s);
    return (size_t)(r->end - r->p) >= n && memcmp(r->p, s, n) == 0;
}

static bool take(reader *r, const char *s) {
    const bool here = peek(r, s);
    r->p += here ? strlen(s) : 0;
    return here;
}

static uint32_t next(reader *r) {
    uint32_t cp;
    r->p += lt_utf8_decode((const uint8_t *)r->p, (const uint8_t *)r->end, &cp);
    return cp;
}

/* Whether the list, such as "|a|b|", has the name. */
static bool in_list(const char *list, const char *name) {
    const size_t n = strlen(name);
    const char *at = n > 0 ? strstr(list, name) : NULL;
    while (at != NULL && (at == list || at[-1] != '|' || at[n] != '|')) {
        at = strstr(at + 1, name);
    }
    return at != NULL;
}

static bool is_one_of(char c, const char *set) {
    return c != 0 && strchr(set, c) != NULL;
}

static bool is_digit(const reader *r) {
    return r->p < r->end && *r->p >= '0' && *r->p <= '9';
}

/* ---- Classes ---- */

static const lt_regex_class *find_class(const char *name) {
    for (size_t i = 0; i < lt_regex_n_classes; i++) {
        const lt_regex_class *c = &lt_regex_classes[i];
        if (strcmp(c->name, name) == 0 || (c->alias != NULL && strcmp(c->alias, name) == 0)) {
            return c;
        }
    }
    return NULL;
}

/* A named class, or what it leaves out. */
typedef struct {
    const lt_regex_class *c;
    bool left_out;
} class_use;

/* \s and others of one letter; c stays NULL for another letter. */
static class_use escaped_class(const reader *r, char e, bool bracket) {
    static const struct {
        char letter;
        const char *name, *in_bracket, *rust;
    } letters[] = {{'s', "space", "space", "space"},
                   {'d', "nd", "nd", "nd"},
                   {'h', "xdigit", "xdigit", "xdigit"},
                   {'w', "word", "[word]", "rust word"}};
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        if ((e | 0x20) == letters[i].letter) {
            return (class_use){find_class(r->rust   ? letters[i].rust
                                          : bracket ? letters[i].in_bracket
                                                    : letters[i].name),
                               (e & 0x20) == 0};
        }
    }
    return (class_use){NULL, false};
}

/* The name up to `close`, after \p{ or [:, with ^ for the complement. */
static lt_err named_class(reader *r, const char *close, bool posix, class_use *out) {
    char name[32];
    size_t n = 0;
    out->left_out ^= take(r, "^");
    while (r->p < r->end && *r->p != 0 && !peek(r, close) && n + 2 < sizeof name) {
        const char c = *r->p++;
        if (posix || (c != ' ' && c != '-' && c != '_')) {
            name[n++] = (char)(!posix && c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
        }
    }
    name[n] = 0;
    if (!take(r, close)) {
        REFUSE_PLAIN(r, "a class without a known name");
    }
    if (posix) {
        if (r->rust) {
            REFUSE(r, "[:%s:]", name);
        }
        const char *known = "|alpha|upper|lower|alnum|space|blank|cntrl|digit|xdigit|ascii|graph|"
                            "print|word|punct|";
        if (!in_list(known, name)) {
            REFUSE(r, "[:%s:], which is not known", name);
        }
    }
    out->c = find_class(!posix                       ? name
                        : strcmp(name, "word") == 0  ? "[word]"
                        : strcmp(name, "punct") == 0 ? "[punct]"
                                                     : name);
    if (out->c == NULL) {
        REFUSE(r, "\\p{%s}, which is not known", name);
    }
    return LT_OK;
}

/* Whether (?i) changes nothing: the class has both cases of each letter or no letter. In a bracket
 * of Oniguruma it must have none that is equal to several letters, unless the bracket is
 * negated. */
static bool keeps_case(const reader *r, class_use use, bool negated) {
    return (!use.left_out && in_list("|nd|n|space|p|z|zs|s|blank|digit|xdigit|", use.c->name)) ||
           ((negated || r->rust) &&
            in_list("|nd|n|space|p|z|zs|s|l|[word]|rust word|alpha|alnum|", use.c->name));
}

/* \p{..} after the letter p or P; in Rust also \pL. c stays NULL if it is no property. */
static lt_err property(reader *r, uint32_t e, class_use *use) {
    *use = (class_use){NULL, e == 'P'};
    if (e != 'p' && e != 'P') {
        return LT_OK;
    }
    if (take(r, "{")) {
        return named_class(r, "}", false, use);
    }
    if (r->rust && r->p < r->end) {
        const char name[] = {(char)(*r->p++ | 0x20), 0};
        use->c = find_class(name);
        if (use->c == NULL) {
            REFUSE(r, "\\p%s, which is not known", name);
        }
    }
    return LT_OK;
}

static lt_err put_class(reader *r, class_use use) {
    if (r->rust && r->fold && !keeps_case(r, use, true)) {
        REFUSE(r, "the class %s under (?i)", use.c->name);
    }
    /* Oniguruma does not fold the case of a class outside of a bracket. */
    LT_TRY(put(r->out, r->fold ? "(?-i:[" : "["));
    LT_TRY(put(r->out, use.c->complement != use.left_out ? "^" : ""));
    LT_TRY(put(r->out, use.c->items));
    return put(r->out, r->fold ? "])" : "]");
}

/* ---- Escapes of one character ---- */

static lt_err hex_digits(reader *r, size_t least, size_t most, uint32_t *cp) {
    size_t n = 0;
    *cp = 0;
    for (; n < most && r->p < r->end; n++, r->p++) {
        const char c = *r->p, low = (char)(c | 0x20);
        if (c >= '0' && c <= '9') {
            *cp = *cp * 16 + (uint32_t)(c - '0');
        } else if (low >= 'a' && low <= 'f') {
            *cp = *cp * 16 + (uint32_t)(low - 'a' + 10);
        } else {
            break;
        }
    }
    if (n < least || *cp > 0x10FFFF || (*cp >= 0xD800 && *cp < 0xE000)) {
        REFUSE_PLAIN(r, "a number that is no character");
    }
    return LT_OK;
}

/* The character that a backslash and `e` stand for, inside and outside of brackets. */
static lt_err escaped_literal(reader *r, uint32_t e, uint32_t *cp) {
    static const char from[] = "ntrfaev", to[] = "\n\t\r\f\a\x1b\v";
    *cp = e;
    if (e < 0x80 && is_one_of((char)e, from)) {
        *cp = (uint32_t)to[strchr(from, (int)e) - from];
    } else if (e == 'u') {
        return hex_digits(r, 4, 4, cp);
    } else if (e == 'x' && take(r, "{")) {
        LT_TRY(hex_digits(r, 1, 8, cp));
        if (!take(r, "}")) {
            REFUSE_PLAIN(r, "\\x{ that is not closed");
        }
    } else if (e == 'x') {
        LT_TRY(hex_digits(r, 1, 2, cp));
        if (*cp >= 0x80) {
            REFUSE_PLAIN(r, "\\x of a byte that is no character");
        }
    } else if (e == '0' && !is_digit(r)) {
        *cp = 0;
    } else if ((e >= '0' && e <= '9') || e == 'c' || e == 'C' || e == 'M' || e == 'o') {
        REFUSE(r, "\\%c", (int)e);
    }
    return LT_OK;
}

/* Letters that are equal to several when their case is folded; the runs contain a few others. */
static bool folds_to_many(uint32_t first, uint32_t last) {
    static const uint32_t runs[][2] = {
        {0xDF, 0xDF},     {0x130, 0x130},   {0x149, 0x149},   {0x1F0, 0x1F0},
        {0x390, 0x390},   {0x3B0, 0x3B0},   {0x587, 0x587},   {0x1E96, 0x1E9E},
        {0x1F50, 0x1F57}, {0x1F80, 0x1FFC}, {0xFB00, 0xFB17},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        if (first <= runs[i][1] && last >= runs[i][0]) {
            return true;
        }
    }
    return false;
}

/* ---- Brackets ---- */

/* One item between brackets: a class, or a character. */
static lt_err bracket_item(reader *r, class_use *use, uint32_t *cp) {
    *use = (class_use){NULL, false};
    if (take(r, "[:")) {
        return named_class(r, ":]", true, use);
    }
    if (peek(r, "[") || peek(r, "&&") || (r->rust && (peek(r, "--") || peek(r, "~~")))) {
        REFUSE_PLAIN(r, "a class intersection (&&) or a bracket in brackets");
    }
    *cp = next(r);
    if (*cp != '\\') {
        return LT_OK;
    }
    if (r->p == r->end) {
        REFUSE_PLAIN(r, "a backslash at its end");
    }
    const uint32_t e = next(r);
    LT_TRY(property(r, e, use));
    if (use->c == NULL && e < 0x80) {
        *use = escaped_class(r, (char)e, true);
    }
    if (use->c != NULL) {
        return LT_OK;
    }
    if (e == 'b') {
        *cp = '\b';
        return LT_OK;
    }
    return escaped_literal(r, e, cp);
}

/* The items up to ], those that can stand in one bracket in *in, complements as alternatives in
 * *others. */
static lt_err read_bracket(reader *r, bool negated, lt_text *in, lt_text *others) {
    bool first = true;
    while (first || !peek(r, "]")) {
        class_use use;
        uint32_t cp = 0, last;
        if (r->p == r->end) {
            REFUSE_PLAIN(r, "a bracket that is not closed");
        }
        first = false;
        LT_TRY(bracket_item(r, &use, &cp));
        if (use.c != NULL) {
            if (r->fold && !keeps_case(r, use, negated)) {
                REFUSE(r, "the class %s in a bracket under (?i)", use.c->name);
            }
            if (r->fold && strcmp(use.c->name, "l") == 0) {
                LT_TRY(put(in, "\\x{345}")); /* A mark whose upper case is a letter. */
            }
            if (use.c->complement == use.left_out) {
                LT_TRY(put(in, use.c->items));
            } else {
                LT_TRY(put(others, "|[^"));
                LT_TRY(put(others, use.c->items));
                LT_TRY(put(others, "]"));
            }
            if (r->p + 1 < r->end && r->p[0] == '-' && r->p[1] != ']') {
                REFUSE_PLAIN(r, "a range that begins with a class");
            }
            continue;
        }
        last = cp;
        if (r->p + 1 < r->end && r->p[0] == '-' && r->p[1] != ']') {
            r->p++;
            LT_TRY(bracket_item(r, &use, &last));
            if (use.c != NULL || last < cp) {
                REFUSE_PLAIN(r, "a range that ends before it begins");
            }
        }
        if (r->fold && !r->rust && !negated && folds_to_many(cp, last)) {
            REFUSE_PLAIN(r, "a bracket under (?i) with letters that are equal to several letters");
        }
        LT_TRY(put_literal(in, cp));
        if (last != cp) {
            LT_TRY(put(in, "-"));
            LT_TRY(put_literal(in, last));
        }
    }
    r->p++;
    return LT_OK;
}

static lt_err bracket(reader *r) {
    lt_err err = LT_OK;
    lt_text in = {0}, others = {0};
    const bool negated = take(r, "^");
    LT_TRY_DONE(read_bracket(r, negated, &in, &others));
    const bool plain = others.n == 0; /* One bracket says all. */
    LT_TRY_DONE(put(r->out, plain ? "" : negated ? "(?:(?!(?:" : "(?:"));
    if (in.n > 0) {
        LT_TRY_DONE(put(r->out, plain && negated ? "[^" : "["));
        LT_TRY_DONE(lt_text_put(r->out, in.data, in.n));
        LT_TRY_DONE(put(r->out, "]"));
    }
    if (!plain) {
        LT_TRY_DONE(lt_text_put(r->out, others.data + (in.n == 0), others.n - (in.n == 0)));
        LT_TRY_DONE(put(r->out, negated ? "))(?s:.))" : ")"));
    }
done:
    lt_text_free(&in);
    lt_text_free(&others);
    return err;
}

/* ---- Literals ---- */

/* {n}, {n,}, {n,m} or {,m} at p: its end, or NULL if it is text. */
static const char *interval(const char *p, const char *end, bool *from, bool *comma) {
    const char *low = ++p;
    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }
    *from = p > low;
    *comma = p < end && *p == ',';
    const char *high = p += *comma;
    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }
    return p < end && *p == '}' && (*from || (*comma && p > high)) ? p + 1 : NULL;
}

static bool quantified(const char *p, const char *end) {
    bool from, comma;
    return p < end && (is_one_of(*p, "*+?") || (*p == '{' && interval(p, end, &from, &comma)));
}

/* Under (?i): whether the letters at r->p complete one of the ligatures with `cp`. */
static lt_err folded(reader *r, uint32_t cp, bool *done) {
    static const struct {
        const char *letters, *pattern;
    } rows[] = {
        {"ffi", "(?:ffi|\xEF\xAC\x83|\xEF\xAC\x80i|f\xEF\xAC\x81)"},
        {"ffl", "(?:ffl|\xEF\xAC\x84|\xEF\xAC\x80l|f\xEF\xAC\x82)"},
        {"ff", "(?:ff|\xEF\xAC\x80)"},
        {"fi", "(?:fi|\xEF\xAC\x81)"},
        {"fl", "(?:fl|\xEF\xAC\x82)"},
        {"st", "(?:st|\xEF\xAC\x85|\xEF\xAC\x86)"},
        {"ss", "(?:ss|\xC3\x9F|\xE1\xBA\x9E)"},
    };
    *done = false;
    if (folds_to_many(cp, cp) || (cp >= 0x300 && cp <= 0x345) || cp == 0x3B9 || cp == 0x399 ||
        cp == 0x2BC || cp == 0x2BE || (cp >= 0x531 && cp <= 0x587)) {
        REFUSE_PLAIN(r, "a letter under (?i) that may be equal to a part of another");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows && cp < 0x80; i++) {
        const char *s = rows[i].letters;
        const size_t n = strlen(s);
        bool same = (cp | 0x20) == (uint32_t)s[0] && (size_t)(r->end - r->p) >= n - 1;
        for (size_t k = 1; same && k < n; k++) {
            same = (r->p[k - 1] | 0x20) == s[k];
        }
        if (!same) {
            continue;
        }
        const char *after = r->p + n - 1;
        const bool repeated = quantified(after, r->end);
        const char last = s[n - 1], then = after < r->end ? (char)(*after | 0x20) : 0;
        if ((last == 's' && (then == 's' || then == 't')) ||
            (last == 'f' && is_one_of(then, "fil"))) {
            REFUSE_PLAIN(r, "letters under (?i) that several ligatures can replace");
        }
        if (repeated && n > 2) {
            REFUSE_PLAIN(r, "a quantifier behind letters under (?i) that a ligature can replace");
        }
        if (!repeated) {
            r->p = after;
            *done = true;
            return put(r->out, rows[i].pattern);
        }
    }
    return LT_OK;
}

static lt_err literal(reader *r, uint32_t cp) {
    bool done = false;
    if (r->fold && !r->rust && !quantified(r->p, r->end)) {
        LT_TRY(folded(r, cp, &done));
    }
    return done ? LT_OK : put_literal(r->out, cp);
}

static lt_err word_border(reader *r, bool border) {
    const char *w = find_class(r->rust ? "rust word" : "word")->items;
    const char *const parts[] = {"(?:(?<=[", w, border ? "])(?![" : "])(?=[", w,
                                 "])|(?<![", w, border ? "])(?=[" : "])(?![", w,
                                 "]))"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        LT_TRY(put(r->out, parts[i]));
    }
    return LT_OK;
}

/* <name> or 'name', as it is. */
static lt_err copy_name(reader *r) {
    const char *begin = r->p++, close = *begin == '<' ? '>' : '\'';
    while (r->p < r->end && *r->p != close) {
        r->p++;
    }
    if (r->p == r->end) {
        REFUSE_PLAIN(r, "a name that is not closed");
    }
    r->p++;
    return lt_text_put(r->out, begin, (size_t)(r->p - begin));
}

static lt_err escape(reader *r) {
    uint32_t cp;
    if (r->p == r->end) {
        REFUSE_PLAIN(r, "a backslash at its end");
    }
    const uint32_t e = next(r);
    class_use use;
    LT_TRY(property(r, e, &use));
    if (use.c == NULL && e < 0x80) {
        use = escaped_class(r, (char)e, false);
    }
    if (use.c != NULL) {
        return put_class(r, use);
    }
    if (e == 'b' || e == 'B') {
        return word_border(r, e == 'b');
    }
    if (e == 'O') {
        return put(r->out, "(?s:.)");
    }
    if ((e < 0x80 && is_one_of((char)e, "AzZGKRXN")) || (e >= '1' && e <= '9' && !is_digit(r))) {
        const char same[] = {'\\', (char)e, 0};
        return put(r->out, same);
    }
    if (e == 'k' && (peek(r, "<") || peek(r, "'"))) {
        LT_TRY(put(r->out, "\\k"));
        return copy_name(r);
    }
    if (e == 'y' || e == 'Y' || e == 'g' || e == 'k') {
        REFUSE(r, "\\%c", (int)e);
    }
    LT_TRY(escaped_literal(r, e, &cp));
    return literal(r, cp);
}

/* ---- Groups and quantifiers ---- */

static lt_err enter_group(reader *r, const group *g) {
    if (r->depth == MAX_GROUPS) {
        REFUSE(r, "more than %d nested groups", MAX_GROUPS - 1);
    }
    r->groups[r->depth++] = *g;
    return LT_OK;
}

/* (?imx-imx) and (?imx-imx: after "(?"; isx and m in Rust, where m is about lines. */
static lt_err options(reader *r, const group *g) {
    const char any = r->rust ? 's' : 'm'; /* The dot matches all characters. */
    const char *known = r->rust ? "isxm" : "imx";
    bool on = true;
    LT_TRY(put(r->out, "(?"));
    while (r->p < r->end && *r->p != ')' && *r->p != ':') {
        const char c = *r->p++;
        if (c == '-' && on) {
            on = false;
            LT_TRY(put(r->out, "-"));
        } else if (is_one_of(c, known)) {
            r->fold = c == 'i' ? on : r->fold;
            r->extended = c == 'x' ? on : r->extended;
            r->lines = c == 'm' ? on : r->lines;
            LT_TRY(put(r->out, c == 'i' ? "i" : c == any ? "s" : ""));
        } else {
            REFUSE(r, "(?%c", c);
        }
    }
    if (r->p == r->end) {
        REFUSE_PLAIN(r, "a group that is not closed");
    }
    if (*r->p++ == ')') { /* They hold up to the end of the group around them; in Oniguruma this
                           * is a group of its own. */
        r->groups[r->depth - 1].closes += !r->rust;
        return put(r->out, r->rust ? ")" : ":");
    }
    LT_TRY(enter_group(r, g));
    return put(r->out, ":");
}

static lt_err open_group(reader *r) {
    static const char *const same[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
    group g = {.begin = r->out->n,
               .closes = 1,
               .fold = r->fold,
               .extended = r->extended,
               .lines = r->lines};
    const char *head = "";
    bool named = false;
    if (take(r, "?#")) {
        while (r->p < r->end && *r->p != ')') {
            r->p += *r->p == '\\' && r->p + 1 < r->end ? 2 : 1;
        }
        r->p += r->p < r->end;
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof same / sizeof *same && *head == 0; i++) {
        head = take(r, same[i]) ? same[i] : "";
    }
    if (*head == 0 && (peek(r, "?<") || peek(r, "?'") || (r->rust && peek(r, "?P<")))) {
        named = take(r, "?P") || take(r, "?");
        head = "?";
    } else if (*head == 0 && take(r, "?")) {
        return options(r, &g);
    } else if (peek(r, "*")) {
        REFUSE_PLAIN(r, "(*");
    }
    LT_TRY(enter_group(r, &g));
    LT_TRY(put(r->out, "("));
    LT_TRY(put(r->out, head));
    return named ? copy_name(r) : LT_OK;
}

static lt_err close_group(reader *r) {
    const group g = r->groups[--r->depth];
    for (unsigned i = 0; i < g.closes; i++) {
        LT_TRY(put(r->out, ")"));
    }
    r->fold = g.fold;
    r->extended = g.extended;
    r->lines = g.lines;
    r->atom = g.begin;
    return LT_OK;
}

/* Put what has been written since the last element began into a group. */
static lt_err wrap_atom(reader *r) {
    const size_t n = r->out->n - r->atom;
    LT_TRY(put(r->out, "(?:)"));
    memmove(r->out->data + r->atom + 3, r->out->data + r->atom, n);
    memcpy(r->out->data + r->atom, "(?:", 3);
    return LT_OK;
}

static lt_err quantifier(reader *r, const char *interval_end, bool from, bool comma) {
    const char *begin = r->p;
    r->p = interval_end != NULL ? interval_end : r->p + 1;
    if (interval_end != NULL && !from) {
        LT_TRY(put(r->out, "{0"));
        begin++;
    }
    LT_TRY(lt_text_put(r->out, begin, (size_t)(r->p - begin)));
    if (interval_end == NULL || r->rust || (comma && peek(r, "?"))) {
        const bool more = peek(r, "?") || peek(r, "+");
        LT_TRY(lt_text_put(r->out, r->p, more));
        r->p += more;
    } else if (peek(r, "?") || peek(r, "+")) {
        LT_TRY(wrap_atom(r));
        LT_TRY(lt_text_put(r->out, r->p++, 1));
    }
    if (quantified(r->p, r->end)) {
        REFUSE_PLAIN(r, "two quantifiers behind each other");
    }
    return LT_OK;
}

static lt_err element(reader *r) {
    bool from = false, comma = false;
    const char *end = *r->p == '{' ? interval(r->p, r->end, &from, &comma) : NULL;
    if (is_one_of(*r->p, "*+?") || end != NULL) {
        return quantifier(r, end, from, comma);
    }
    const uint32_t cp = next(r);
    if (cp == ')') {
        if (r->depth == 1) {
            REFUSE_PLAIN(r, "a ) too many");
        }
        return close_group(r);
    }
    if (!(cp == '(' && peek(r, "?#"))) {
        r->atom = r->out->n;
    }
    switch (cp) {
    case '\\':
        return escape(r);
    case '[':
        return bracket(r);
    case '(':
        return open_group(r);
    case '^':
    case '$':
        if (r->rust && !r->lines) {
            return put(r->out, cp == '^' ? "\\A" : "\\z");
        }
        return lt_text_put_cp(r->out, cp);
    case '|':
    case '.':
        return lt_text_put_cp(r->out, cp);
    default:
        return literal(r, cp);
    }
}

lt_err lt_regex_rewrite(const char *pattern, size_t n, lt_regex_dialect dialect, const char *name,
                        lt_text *out) {
    reader r = {.rust = dialect == LT_REGEX_RUST,
                .p = pattern,
                .end = pattern + n,
                .pattern = pattern,
                .name = name,
                .n = n,
                .out = out};
    r.depth = 1; /* The whole pattern; nothing closes it but inline options. */
    while (r.p < r.end) {
        if (r.extended && is_one_of(*r.p, " \t\n\v\f\r")) {
            r.p++;
        } else if (r.extended && *r.p == '#') {
            while (r.p < r.end && *r.p != '\n') {
                r.p++;
            }
        } else {
            LT_TRY(element(&r));
        }
    }
    if (r.depth != 1) {
        REFUSE_PLAIN(&r, "a group that is not closed");
    }
    for (unsigned i = 0; i < r.groups[0].closes; i++) {
        LT_TRY(put(out, ")"));
    }
    return LT_OK;
}
