/* jinja/methods.c: the methods that a template may call on a string, dict or list, as in Python. */
#include "data/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

#include "data/tokenizer/unicode.h"

#define METHOD(name)                                                                               \
    static lt_err name(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out)
#define UNUSED() ((void)r, (void)self, (void)a, (void)args, (void)out)

static lt_err want_str(lt_jrun *r, const char *what, lt_jv v) {
    if (v.kind != LT_JV_STR) {
        LT_JFAIL(r, "%s: expected str, not %s", what, lt_jv_type(v));
    }
    return LT_OK;
}

/* ---- case, strip ---- */

static lt_err with_case(lt_jrun *r, lt_jv self, lt_jcase how, lt_jv *out) {
    lt_jbuf b = {.pool = &r->pool};
    LT_TRY(lt_jinja_steps(r, self.n / 8));
    LT_TRY(lt_jtext_case(&b, self.s, self.n, how));
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

METHOD(s_lower) {
    UNUSED();
    return with_case(r, self, LT_CASE_LOWER, out);
}
METHOD(s_upper) {
    UNUSED();
    return with_case(r, self, LT_CASE_UPPER, out);
}
METHOD(s_casefold) {
    UNUSED();
    return with_case(r, self, LT_CASE_FOLD, out);
}
METHOD(s_title) {
    UNUSED();
    return with_case(r, self, LT_CASE_TITLE, out);
}
METHOD(s_capitalize) {
    UNUSED();
    return with_case(r, self, LT_CASE_CAPITALIZE, out);
}
METHOD(s_swapcase) {
    UNUSED();
    return with_case(r, self, LT_CASE_SWAP, out);
}

/* Whether the character at p is in the set. */
static bool in_set(const char *p, size_t n, lt_jv set) {
    return memmem(set.s, set.n, p, n) != NULL;
}

static lt_err strip(lt_jrun *r, lt_jv self, lt_jv set, bool left, bool right, lt_jv *out) {
    const char *s = self.s;
    size_t n = self.n;
    LT_TRY(lt_jinja_steps(r, n / 16));
    if (set.kind == LT_JV_ABSENT || set.kind == LT_JV_NONE) {
        lt_jtext_strip(&s, &n, left, right);
        *out = LT_JV_OF_STR(s, n);
        return LT_OK;
    }
    LT_TRY(want_str(r, "strip", set));
    while (left && n > 0 && set.n > 0) {
        const size_t len = lt_jtext_offset(s, n, 1);
        if (!in_set(s, len, set)) {
            break;
        }
        s += len;
        n -= len;
    }
    while (right && n > 0 && set.n > 0) {
        size_t from = n - 1;
        while (from > 0 && ((unsigned char)s[from] & 0xC0) == 0x80) {
            from--;
        }
        if (!in_set(s + from, n - from, set)) {
            break;
        }
        n = from;
    }
    *out = LT_JV_OF_STR(s, n);
    return LT_OK;
}

METHOD(s_strip) {
    UNUSED();
    return strip(r, self, a[0], true, true, out);
}
METHOD(s_lstrip) {
    UNUSED();
    return strip(r, self, a[0], true, false, out);
}
METHOD(s_rstrip) {
    UNUSED();
    return strip(r, self, a[0], false, true, out);
}

/* ---- searching ---- */

static bool fixed_at(lt_jv self, lt_jv part, bool end) {
    return part.n <= self.n &&
           (part.n == 0 || memcmp(self.s + (end ? self.n - part.n : 0), part.s, part.n) == 0);
}

/* The part of self between a start and an end, as Python's slices count them. *from: the start in
 * characters; -1: it lies behind the end, where not even an empty text is found. */
static lt_err part_of(lt_jrun *r, lt_jv self, const lt_jv *bounds, int64_t *from, lt_jv *out) {
    const int64_t n = (int64_t)lt_jtext_count(self.s, self.n);
    int64_t at[2] = {0, n};
    for (int i = 0; i < 2; i++) {
        if (bounds[i].kind == LT_JV_ABSENT || bounds[i].kind == LT_JV_NONE) {
            continue;
        }
        if (bounds[i].kind != LT_JV_INT) {
            LT_JFAIL(r, "slice indices must be integers or None");
        }
        at[i] = bounds[i].i < 0 ? bounds[i].i + n : bounds[i].i;
        at[i] = at[i] < 0 ? 0 : at[i];
    }
    at[1] = at[1] > n ? n : at[1];
    *from = at[0] <= at[1] ? at[0] : -1;
    if (*from >= 0) {
        const size_t start = lt_jtext_offset(self.s, self.n, (size_t)at[0]),
                     end = lt_jtext_offset(self.s, self.n, (size_t)at[1]);
        *out = LT_JV_OF_STR(self.s + start, end - start);
    }
    return LT_OK;
}

static lt_err fixed(lt_jrun *r, lt_jv self, const lt_jv *a, bool end, lt_jv *out) {
    const lt_jv part = a[0];
    const bool tuple = part.kind == LT_JV_LIST && part.list->sub == LT_JLIST_TUPLE;
    int64_t from;
    lt_jv text = self;
    LT_TRY(part_of(r, self, a + 1, &from, &text));
    *out = LT_JV_OF_BOOL(false);
    for (size_t i = 0; i < (tuple ? part.list->n : 1) && !out->b; i++) {
        const lt_jv one = tuple ? part.list->v[i] : part;
        LT_TRY(want_str(r, end ? "endswith" : "startswith", one));
        out->b = from >= 0 && fixed_at(text, one, end);
    }
    return LT_OK;
}

METHOD(s_startswith) {
    UNUSED();
    return fixed(r, self, a, false, out);
}
METHOD(s_endswith) {
    UNUSED();
    return fixed(r, self, a, true, out);
}

/* Byte offset of the first (last: of the last) part in self, or SIZE_MAX. */
static size_t find_part(lt_jv self, lt_jv part, bool last) {
    size_t found = SIZE_MAX;
    for (size_t at = 0; at + part.n <= self.n;) {
        const char *p = part.n == 0 ? self.s + at
                                    : memmem(self.s + at, self.n - at, part.s, part.n);
        if (p == NULL) {
            break;
        }
        found = (size_t)(p - self.s);
        at = found + 1;
        if (!last) {
            break;
        }
    }
    return found;
}

static lt_err find(lt_jrun *r, lt_jv self, const lt_jv *a, bool last, bool must, lt_jv *out) {
    size_t at;
    int64_t from;
    lt_jv text = self;
    LT_TRY(want_str(r, "find", a[0]));
    LT_TRY(lt_jinja_steps(r, self.n / 16));
    LT_TRY(part_of(r, self, a + 1, &from, &text));
    at = from >= 0 ? find_part(text, a[0], last) : SIZE_MAX;
    if (at == SIZE_MAX && must) {
        LT_JFAIL(r, "substring not found");
    }
    *out = LT_JV_OF_INT(at == SIZE_MAX ? -1 : from + (int64_t)lt_jtext_count(text.s, at));
    return LT_OK;
}

#define FIND(name, last, must)                                                                     \
    METHOD(name) {                                                                                 \
        UNUSED();                                                                                  \
        return find(r, self, a, last, must, out);                                                  \
    }
FIND(s_find, false, false)
FIND(s_rfind, true, false)
FIND(s_index, false, true)

METHOD(s_count) {
    int64_t n = 0, from;
    lt_jv text = self;
    UNUSED();
    LT_TRY(want_str(r, "count", a[0]));
    LT_TRY(lt_jinja_steps(r, self.n));
    LT_TRY(part_of(r, self, a + 1, &from, &text));
    if (from >= 0 && a[0].n == 0) {
        n = (int64_t)lt_jtext_count(text.s, text.n) + 1;
    }
    while (from >= 0 && a[0].n > 0) {
        const size_t at = find_part(text, a[0], false);
        if (at == SIZE_MAX) {
            break;
        }
        text = LT_JV_OF_STR(text.s + at + a[0].n, text.n - at - a[0].n);
        n++;
    }
    *out = LT_JV_OF_INT(n);
    return LT_OK;
}

METHOD(s_replace) {
    lt_jbuf b = {.pool = &r->pool};
    int64_t left = INT64_MAX;
    size_t at = 0;
    UNUSED();
    LT_TRY(want_str(r, "replace", a[0]));
    LT_TRY(want_str(r, "replace", a[1]));
    LT_TRY(lt_jinja_steps(r, self.n / 8));
    if (a[2].kind == LT_JV_INT && a[2].i >= 0) {
        left = a[2].i;
    }
    while (at <= self.n && left > 0) {
        const char *p = a[0].n == 0             ? self.s + at
                        : self.n - at >= a[0].n ? memmem(self.s + at, self.n - at, a[0].s, a[0].n)
                                                : NULL;
        size_t next;
        if (p == NULL && a[0].n > 0) {
            break;
        }
        LT_TRY(lt_jinja_steps(r, 1));
        next = a[0].n == 0 ? at : (size_t)(p - self.s);
        LT_TRY(lt_jbuf_put(&b, self.s + at, next - at));
        LT_TRY(lt_jbuf_put(&b, a[1].s, a[1].n));
        at = next + a[0].n;
        if (a[0].n == 0) { /* An empty `old` occurs between all characters. */
            const size_t len = at < self.n ? lt_jtext_offset(self.s + at, self.n - at, 1) : 0;
            LT_TRY(lt_jbuf_put(&b, self.s + at, len));
            at = len == 0 ? self.n + 1 : at + len;
        }
        left--;
    }
    if (at < self.n) {
        LT_TRY(lt_jbuf_put(&b, self.s + at, self.n - at));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

/* ---- splitting ---- */

static lt_err push_str(lt_jrun *r, lt_jlist *l, const char *s, size_t n) {
    LT_TRY(lt_jinja_steps(r, 1));
    return lt_jv_push(&r->pool, l, LT_JV_OF_STR(s, n));
}

static lt_err split_space(lt_jrun *r, lt_jv self, int64_t most, lt_jlist *l) {
    const uint8_t *p = (const uint8_t *)self.s, *end = p + self.n;
    uint32_t cp;
    while (p < end) {
        const uint8_t *from;
        size_t len = lt_utf8_decode(p, end, &cp);
        if (lt_jtext_space(cp)) {
            p += len;
            continue;
        }
        from = p;
        if (most-- == 0) {
            const char *rest = (const char *)from;
            size_t n = (size_t)(end - from);
            lt_jtext_strip(&rest, &n, false, true);
            return push_str(r, l, rest, n);
        }
        while (p < end) {
            len = lt_utf8_decode(p, end, &cp);
            if (lt_jtext_space(cp)) {
                break;
            }
            p += len;
        }
        LT_TRY(push_str(r, l, (const char *)from, (size_t)(p - from)));
    }
    return LT_OK;
}

static void reverse_list(lt_jlist *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        const lt_jv v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static lt_err split(lt_jrun *r, lt_jv self, const lt_jv *a, bool right, lt_jv *out) {
    const int64_t most = a[1].kind == LT_JV_INT && a[1].i >= 0 ? a[1].i : INT64_MAX;
    lt_jv rest = self;
    LT_TRY(lt_jinja_steps(r, self.n / 16));
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_LIST, 0, out));
    if (a[0].kind == LT_JV_ABSENT || a[0].kind == LT_JV_NONE) {
        if (right && most != INT64_MAX) {
            LT_JFAIL(r, "rsplit() by white space with a count");
        }
        return split_space(r, self, most, out->list);
    }
    LT_TRY(want_str(r, "split", a[0]));
    if (a[0].n == 0) {
        LT_JFAIL(r, "empty separator");
    }
    for (int64_t n = 0; n < most; n++) {
        const size_t at = right && rest.n >= a[0].n ? SIZE_MAX : find_part(rest, a[0], false);
        size_t found = at;
        if (right) { /* rsplit begins at the end. */
            found = SIZE_MAX;
            for (size_t i = rest.n; i >= a[0].n && found == SIZE_MAX; i--) {
                found = memcmp(rest.s + i - a[0].n, a[0].s, a[0].n) == 0 ? i - a[0].n : SIZE_MAX;
            }
        }
        if (found == SIZE_MAX) {
            break;
        }
        if (right) {
            LT_TRY(push_str(r, out->list, rest.s + found + a[0].n, rest.n - found - a[0].n));
            rest = LT_JV_OF_STR(rest.s, found);
        } else {
            LT_TRY(push_str(r, out->list, rest.s, found));
            rest = LT_JV_OF_STR(rest.s + found + a[0].n, rest.n - found - a[0].n);
        }
    }
    LT_TRY(push_str(r, out->list, rest.s, rest.n));
    if (right) {
        reverse_list(out->list);
    }
    return LT_OK;
}

METHOD(s_split) {
    UNUSED();
    return split(r, self, a, false, out);
}
METHOD(s_rsplit) {
    UNUSED();
    return split(r, self, a, true, out);
}

/* Bytes of the line break, as defined by str.splitlines, at the beginning of a text; 0: none. */
static size_t line_break(const char *s, size_t n) {
    static const char *const breaks[] = {"\r\n",     "\n",           "\r",          "\v",
                                         "\f",       "\x1c",         "\x1d",        "\x1e",
                                         "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xa9"};
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++) {
        const size_t bytes = strlen(breaks[i]);
        if (bytes <= n && memcmp(s, breaks[i], bytes) == 0) {
            return bytes;
        }
    }
    return 0;
}

METHOD(s_splitlines) {
    size_t from = 0;
    const bool keep = a[0].kind != LT_JV_ABSENT && lt_jv_truth(a[0]);
    UNUSED();
    LT_TRY(lt_jinja_steps(r, self.n / 16));
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_LIST, 0, out));
    for (size_t i = 0; i < self.n;) {
        const size_t bytes = line_break(self.s + i, self.n - i);
        if (bytes > 0) {
            LT_TRY(push_str(r, out->list, self.s + from, (keep ? i + bytes : i) - from));
            from = i + bytes;
        }
        i += bytes > 0 ? bytes : 1;
    }
    return from < self.n ? push_str(r, out->list, self.s + from, self.n - from) : LT_OK;
}

static lt_err partition(lt_jrun *r, lt_jv self, lt_jv sep, bool last, lt_jv *out) {
    size_t at;
    LT_TRY(want_str(r, "partition", sep));
    if (sep.n == 0) {
        LT_JFAIL(r, "empty separator");
    }
    at = find_part(self, sep, last);
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_TUPLE, 3, out));
    if (at == SIZE_MAX) {
        LT_TRY(push_str(r, out->list, self.s, last ? 0 : self.n));
        LT_TRY(push_str(r, out->list, "", 0));
        return push_str(r, out->list, self.s, last ? self.n : 0);
    }
    LT_TRY(push_str(r, out->list, self.s, at));
    LT_TRY(push_str(r, out->list, sep.s, sep.n));
    return push_str(r, out->list, self.s + at + sep.n, self.n - at - sep.n);
}

METHOD(s_partition) {
    UNUSED();
    return partition(r, self, a[0], false, out);
}
METHOD(s_rpartition) {
    UNUSED();
    return partition(r, self, a[0], true, out);
}
METHOD(s_removeprefix) {
    UNUSED();
    LT_TRY(want_str(r, "removeprefix", a[0]));
    *out = fixed_at(self, a[0], false) ? LT_JV_OF_STR(self.s + a[0].n, self.n - a[0].n) : self;
    return LT_OK;
}
METHOD(s_removesuffix) {
    UNUSED();
    LT_TRY(want_str(r, "removesuffix", a[0]));
    *out = fixed_at(self, a[0], true) ? LT_JV_OF_STR(self.s, self.n - a[0].n) : self;
    return LT_OK;
}

METHOD(s_join) {
    lt_jlist *items = NULL;
    lt_jbuf b = {.pool = &r->pool};
    UNUSED();
    LT_TRY(lt_jinja_iterate(r, a[0], &items));
    for (size_t i = 0; i < items->n; i++) {
        if (items->v[i].kind != LT_JV_STR) {
            LT_JFAIL(r, "sequence item %zu: expected str instance, %s found", i,
                     lt_jv_type(items->v[i]));
        }
        LT_TRY(i > 0 ? lt_jbuf_put(&b, self.s, self.n) : LT_OK);
        LT_TRY(lt_jtext_str(r, &b, items->v[i]));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

/* ---- kinds of characters ---- */

/* Whether the string is not empty and each character has one of these properties. */
static bool all_of(lt_jv self, uint32_t flags) {
    const uint8_t *p = (const uint8_t *)self.s, *end = p + self.n;
    uint32_t cp;
    while (p < end) {
        p += lt_utf8_decode(p, end, &cp);
        if ((lt_unicode_flags(cp) & flags) == 0) {
            return false;
        }
    }
    return self.n > 0;
}

METHOD(s_isalpha) {
    UNUSED();
    *out = LT_JV_OF_BOOL(all_of(self, LT_UNICODE_LETTER));
    return LT_OK;
}
METHOD(s_isdigit) {
    UNUSED();
    *out = LT_JV_OF_BOOL(all_of(self, LT_UNICODE_NUMBER));
    return LT_OK;
}
METHOD(s_isalnum) {
    UNUSED();
    *out = LT_JV_OF_BOOL(all_of(self, LT_UNICODE_LETTER | LT_UNICODE_NUMBER));
    return LT_OK;
}
METHOD(s_isspace) {
    UNUSED();
    *out = LT_JV_OF_BOOL(all_of(self, LT_UNICODE_SPACE));
    return LT_OK;
}
static lt_err is_cased(lt_jrun *r, lt_jv self, const char *test, lt_jv *out) {
    const lt_jargs none = {0};
    *out = LT_JV_OF_BOOL(false);
    return lt_jinja_test(r, LT_JV_OF_STR(test, strlen(test)), self, &none, &out->b);
}
METHOD(s_islower) {
    UNUSED();
    return is_cased(r, self, "lower", out);
}
METHOD(s_isupper) {
    UNUSED();
    return is_cased(r, self, "upper", out);
}

/* ---- padding ---- */

static lt_err pad(lt_jrun *r, lt_jv self, lt_jv width, lt_jv fill, int where, lt_jv *out) {
    lt_jbuf b = {.pool = &r->pool};
    const lt_jv with = fill.kind == LT_JV_STR ? fill : LT_JV_OF_STR(" ", 1);
    const int64_t n = (int64_t)lt_jtext_count(self.s, self.n);
    int64_t total, left;
    if (width.kind != LT_JV_INT || lt_jtext_count(with.s, with.n) != 1) {
        LT_JFAIL(r, "a width must be an integer and a fill a single character");
    }
    total = width.i > n ? width.i - n : 0;
    LT_TRY(lt_jinja_steps(r, (size_t)(total > LT_JINJA_STEPS ? LT_JINJA_STEPS : total)));
    left = where < 0 ? 0 : where > 0 ? total : total / 2 + (total & width.i & 1);
    for (int64_t i = 0; i < left; i++) {
        LT_TRY(lt_jbuf_put(&b, with.s, with.n));
    }
    LT_TRY(lt_jbuf_put(&b, self.s, self.n));
    for (int64_t i = left; i < total; i++) {
        LT_TRY(lt_jbuf_put(&b, with.s, with.n));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

METHOD(s_ljust) {
    UNUSED();
    return pad(r, self, a[0], a[1], -1, out);
}
METHOD(s_rjust) {
    UNUSED();
    return pad(r, self, a[0], a[1], 1, out);
}
METHOD(s_center) {
    UNUSED();
    return pad(r, self, a[0], a[1], 0, out);
}
METHOD(s_zfill) {
    const bool sign = self.n > 0 && (self.s[0] == '-' || self.s[0] == '+');
    lt_jv digits = sign ? LT_JV_OF_STR(self.s + 1, self.n - 1) : self;
    lt_jbuf b = {.pool = &r->pool};
    UNUSED();
    if (a[0].kind != LT_JV_INT) {
        LT_JFAIL(r, "zfill() takes an integer");
    }
    LT_TRY(pad(r, digits, LT_JV_OF_INT(a[0].i - sign), LT_JV_OF_STR("0", 1), 1, &digits));
    LT_TRY(lt_jbuf_put(&b, self.s, sign));
    LT_TRY(lt_jbuf_put(&b, digits.s, digits.n));
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

/* str.format: {} {0} {name}, without attributes or format specifications (the sandbox would refuse
 * most of those). */
METHOD(s_format) {
    lt_jbuf b = {.pool = &r->pool};
    size_t automatic = 0;
    UNUSED();
    for (size_t i = 0; i < self.n; i++) {
        const char c = self.s[i];
        const char *close;
        const lt_jv *found = NULL;
        size_t n, index = 0;
        if (c != '{' && c != '}') {
            LT_TRY(lt_jbuf_put(&b, &c, 1));
            continue;
        }
        if (i + 1 < self.n && self.s[i + 1] == c) {
            LT_TRY(lt_jbuf_put(&b, &c, 1));
            i++;
            continue;
        }
        close = c == '{' ? memchr(self.s + i, '}', self.n - i) : NULL;
        if (close == NULL) {
            LT_JFAIL(r, "Single '%c' encountered in format string", c);
        }
        n = (size_t)(close - self.s) - i - 1;
        for (size_t k = 0; k < n && index < 1000; k++) {
            const char d = self.s[i + 1 + k];
            index = d >= '0' && d <= '9' ? index * 10 + (size_t)(d - '0') : SIZE_MAX;
        }
        index = n == 0 ? automatic++ : index;
        if (index < args->n_pos) {
            found = &args->pos[index];
        }
        for (size_t k = 0; k < args->n_kw && found == NULL; k++) {
            found = lt_jv_equal(args->kw[k].key, LT_JV_OF_STR(self.s + i + 1, n))
                        ? &args->kw[k].value
                        : NULL;
        }
        if (found == NULL) {
            LT_JFAIL(r, "format(): nothing for '{%.*s}'", (int)(n < 40 ? n : 40), self.s + i + 1);
        }
        LT_TRY(lt_jtext_str(r, &b, *found));
        i += n + 1;
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

const lt_jbuiltin lt_jinja_str_methods[] = {{"capitalize", s_capitalize, "", 0},
                                            {"center", s_center, "width fillchar", 1},
                                            {"count", s_count, "sub start end", 1},
                                            {"endswith", s_endswith, "suffix start end", 1},
                                            {"find", s_find, "sub start end", 1},
                                            {"format", s_format, NULL, 0},
                                            {"index", s_index, "sub start end", 1},
                                            {"isalnum", s_isalnum, "", 0},
                                            {"isalpha", s_isalpha, "", 0},
                                            {"isdecimal", s_isdigit, "", 0},
                                            {"isdigit", s_isdigit, "", 0},
                                            {"islower", s_islower, "", 0},
                                            {"isnumeric", s_isdigit, "", 0},
                                            {"isspace", s_isspace, "", 0},
                                            {"isupper", s_isupper, "", 0},
                                            {"join", s_join, "iterable", 1},
                                            {"ljust", s_ljust, "width fillchar", 1},
                                            {"lower", s_lower, "", 0},
                                            {"casefold", s_casefold, "", 0},
                                            {"lstrip", s_lstrip, "chars", 0},
                                            {"partition", s_partition, "sep", 1},
                                            {"removeprefix", s_removeprefix, "prefix", 1},
                                            {"removesuffix", s_removesuffix, "suffix", 1},
                                            {"replace", s_replace, "old new count", 2},
                                            {"rfind", s_rfind, "sub start end", 1},
                                            {"rjust", s_rjust, "width fillchar", 1},
                                            {"rpartition", s_rpartition, "sep", 1},
                                            {"rsplit", s_rsplit, "sep maxsplit", 0},
                                            {"rstrip", s_rstrip, "chars", 0},
                                            {"split", s_split, "sep maxsplit", 0},
                                            {"splitlines", s_splitlines, "keepends", 0},
                                            {"startswith", s_startswith, "prefix start end", 1},
                                            {"strip", s_strip, "chars", 0},
                                            {"swapcase", s_swapcase, "", 0},
                                            {"title", s_title, "", 0},
                                            {"upper", s_upper, "", 0},
                                            {"zfill", s_zfill, "width", 1},
                                            {NULL, NULL, NULL, 0}};

/* ---- dicts ---- */

static lt_err view(lt_jrun *r, lt_jv self, int what, lt_jv *out) {
    static const char *const names[] = {"dict_keys", "dict_values", "dict_items"};
    const lt_jdict *d = self.dict;
    lt_jv v;
    LT_TRY(lt_jinja_steps(r, d->n));
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_VIEW, d->n, out));
    out->list->what = names[what];
    for (size_t i = 0; i < d->n; i++) {
        v = what == 0 ? d->v[i].key : d->v[i].value;
        if (what == 2) {
            LT_TRY(lt_jv_new_pair(&r->pool, d->v[i].key, d->v[i].value, &v));
        }
        LT_TRY(lt_jv_push(&r->pool, out->list, v));
    }
    return LT_OK;
}

METHOD(d_keys) {
    UNUSED();
    return view(r, self, 0, out);
}
METHOD(d_values) {
    UNUSED();
    return view(r, self, 1, out);
}
METHOD(d_items) {
    UNUSED();
    return view(r, self, 2, out);
}
METHOD(d_get) {
    const lt_jv *found = lt_jv_get(self.dict, a[0]);
    UNUSED();
    *out = found != NULL ? *found : a[1].kind == LT_JV_ABSENT ? LT_JV(NONE) : a[1];
    return LT_OK;
}
METHOD(d_copy) {
    UNUSED();
    LT_TRY(lt_jv_new_dict(&r->pool, out));
    for (size_t i = 0; i < self.dict->n; i++) {
        LT_TRY(lt_jv_set(&r->pool, out->dict, self.dict->v[i].key, self.dict->v[i].value));
    }
    return LT_OK;
}

/* Methods that would change a list or dict. */
METHOD(refuse) {
    UNUSED();
    LT_JFAIL(r, "access to a method that changes a %s is unsafe", lt_jv_type(self));
}

const lt_jbuiltin lt_jinja_dict_methods[] = {
    {"get", d_get, "key default", 1}, {"items", d_items, "", 0},    {"keys", d_keys, "", 0},
    {"values", d_values, "", 0},      {"copy", d_copy, "", 0},      {"update", refuse, NULL, 0},
    {"pop", refuse, NULL, 0},         {"popitem", refuse, NULL, 0}, {"setdefault", refuse, NULL, 0},
    {"clear", refuse, NULL, 0},       {NULL, NULL, NULL, 0}};

/* ---- lists ---- */

METHOD(l_index) {
    UNUSED();
    for (size_t i = 0; i < self.list->n; i++) {
        if (lt_jv_equal(self.list->v[i], a[0])) {
            *out = LT_JV_OF_INT((int64_t)i);
            return LT_OK;
        }
    }
    LT_JFAIL(r, "list.index(x): x not in list");
}
METHOD(l_count) {
    UNUSED();
    *out = LT_JV_OF_INT(0);
    for (size_t i = 0; i < self.list->n; i++) {
        out->i += lt_jv_equal(self.list->v[i], a[0]);
    }
    return LT_OK;
}
METHOD(l_copy) {
    UNUSED();
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_LIST, self.list->n, out));
    for (size_t i = 0; i < self.list->n; i++) {
        LT_TRY(lt_jv_push(&r->pool, out->list, self.list->v[i]));
    }
    return LT_OK;
}

const lt_jbuiltin lt_jinja_list_methods[] = {
    {"index", l_index, "value", 1}, {"count", l_count, "value", 1}, {"copy", l_copy, "", 0},
    {"append", refuse, NULL, 0},    {"extend", refuse, NULL, 0},    {"insert", refuse, NULL, 0},
    {"remove", refuse, NULL, 0},    {"pop", refuse, NULL, 0},       {"clear", refuse, NULL, 0},
    {"sort", refuse, NULL, 0},      {"reverse", refuse, NULL, 0},   {NULL, NULL, NULL, 0}};

/* ---- loop, cycler ---- */

METHOD(loop_cycle) {
    UNUSED();
    if (args->n_pos == 0) {
        LT_JFAIL(r, "no items for cycling given");
    }
    *out = args->pos[self.loop->index % args->n_pos];
    return LT_OK;
}
METHOD(loop_changed) {
    lt_jv now;
    UNUSED();
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_TUPLE, args->n_pos, &now));
    for (size_t i = 0; i < args->n_pos; i++) {
        LT_TRY(lt_jv_push(&r->pool, now.list, args->pos[i]));
    }
    *out = LT_JV_OF_BOOL(!lt_jv_equal(now, self.loop->changed));
    self.loop->changed = now;
    return LT_OK;
}
METHOD(cycler_next) {
    UNUSED();
    *out = self.cycler->items->v[self.cycler->pos++ % self.cycler->items->n];
    return LT_OK;
}
METHOD(cycler_reset) {
    UNUSED();
    self.cycler->pos = 0;
    *out = LT_JV(NONE);
    return LT_OK;
}

static const lt_jbuiltin loop_methods[] = {
    {"cycle", loop_cycle, NULL, 0}, {"changed", loop_changed, NULL, 0}, {NULL, NULL, NULL, 0}};
static const lt_jbuiltin cycler_methods[] = {
    {"next", cycler_next, "", 0}, {"reset", cycler_reset, "", 0}, {NULL, NULL, NULL, 0}};

static const lt_jbuiltin *find_method(lt_jv self, const char *name, size_t n) {
    const lt_jbuiltin *m = NULL;
    switch (self.kind) {
    case LT_JV_STR:
        m = lt_jinja_str_methods;
        break;
    case LT_JV_DICT:
        m = lt_jinja_dict_methods;
        break;
    case LT_JV_LIST:
        m = self.list->sub <= LT_JLIST_RANGE ? lt_jinja_list_methods : NULL;
        break;
    case LT_JV_LOOP:
        m = loop_methods;
        break;
    case LT_JV_CYCLER:
        m = cycler_methods;
        break;
    default:
        break;
    }
    for (; m != NULL && m->name != NULL; m++) {
        if (strlen(m->name) == n && memcmp(m->name, name, n) == 0) {
            return m;
        }
    }
    return NULL;
}

bool lt_jinja_has_method(lt_jv self, lt_jv name) {
    return name.kind == LT_JV_STR && find_method(self, name.s, name.n) != NULL;
}

lt_err lt_jinja_call_method(lt_jrun *r, const lt_jmethod *m, const lt_jargs *args, lt_jv *out) {
    const lt_jbuiltin *f = find_method(m->self, m->name, m->n);
    LT_ASSERT(f != NULL);
    return lt_jinja_call_builtin(r, f, m->self, args, out);
}
