/* jinja/text.c: characters, and the text of values as in Python: str(), repr() and json.dumps(). */
#include "data/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode.h"

bool lt_jtext_space(uint32_t cp) {
    return (cp >= 0x1C && cp <= 0x1F) || (lt_unicode_flags(cp) & LT_UNICODE_SPACE) != 0;
}

size_t lt_jtext_count(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    }
    return count;
}

size_t lt_jtext_offset(const char *s, size_t n, size_t index) {
    size_t i = 0;
    while (i < n) {
        if (((unsigned char)s[i] & 0xC0) != 0x80) {
            if (index == 0) {
                return i;
            }
            index--;
        }
        i++;
    }
    return n;
}

void lt_jtext_strip(const char **s, size_t *n, bool left, bool right) {
    const uint8_t *p = (const uint8_t *)*s, *end = p + *n;
    uint32_t cp;
    while (left && p < end) {
        const size_t len = lt_utf8_decode(p, end, &cp);
        if (!lt_jtext_space(cp)) {
            break;
        }
        p += len;
    }
    while (right && p < end) {
        const uint8_t *q = end - 1;
        while (q > p && (*q & 0xC0) == 0x80) {
            q--;
        }
        lt_utf8_decode(q, end, &cp);
        if (!lt_jtext_space(cp)) {
            break;
        }
        end = q;
    }
    *s = (const char *)p;
    *n = (size_t)(end - p);
}

/* ---- case ---- */

static lt_err put_cp(lt_jbuf *b, uint32_t cp) {
    char text[4];
    return lt_jbuf_put(b, text, lt_utf8_encode(cp, text));
}

/* Title case: the upper case, but of a digraph only its first letter, and of Georgian none. */
static uint32_t title_cp(uint32_t cp) {
    static const uint32_t digraphs[] = {0x1C4, 0x1C7, 0x1CA, 0x1F1};
    for (size_t i = 0; i < sizeof digraphs / sizeof *digraphs; i++) {
        if (cp >= digraphs[i] && cp < digraphs[i] + 3) {
            return digraphs[i] + 1;
        }
    }
    return cp >= 0x10D0 && cp <= 0x10FF ? cp : lt_unicode_upper(cp);
}

static lt_err put_upper(lt_jbuf *b, uint32_t cp, bool title) {
    return cp == 0xDF ? lt_jbuf_puts(b, title ? "Ss" : "SS")
                      : put_cp(b, title ? title_cp(cp) : lt_unicode_upper(cp));
}

static lt_err put_lower(lt_jbuf *b, uint32_t cp) {
    size_t n;
    const uint32_t *lower = lt_unicode_lower(&cp, &n);
    for (size_t i = 0; i < n; i++) {
        LT_TRY(put_cp(b, lower[i]));
    }
    return LT_OK;
}

/* str.casefold(): the lower case of the upper case; Cherokee folds to its upper case, and a dotless
 * i is left. */
static lt_err put_folded(lt_jbuf *b, uint32_t cp) {
    const uint32_t upper = lt_unicode_upper(cp);
    if (cp == 0xDF || cp == 0x1E9E) {
        return lt_jbuf_puts(b, "ss");
    }
    if (cp == 0x131 || (upper >= 0x13A0 && upper <= 0x13F5)) {
        return put_cp(b, cp == 0x131 ? cp : upper);
    }
    return put_lower(b, upper);
}

static bool is_upper_cp(uint32_t cp) {
    size_t n;
    const uint32_t *lower = lt_unicode_lower(&cp, &n);
    return n != 1 || *lower != cp;
}

lt_err lt_jtext_case(lt_jbuf *b, const char *s, size_t n, lt_jcase how) {
    const uint8_t *p = (const uint8_t *)s, *end = p + n;
    const bool begins = how == LT_CASE_TITLE || how == LT_CASE_CAPITALIZE;
    bool first = true; /* The next letter begins a word (TITLE) or the text (CAPITALIZE). */
    while (p < end) {
        uint32_t cp;
        const bool cased = true;
        p += lt_utf8_decode(p, end, &cp);
        if (how == LT_CASE_FOLD) {
            LT_TRY(put_folded(b, cp));
            continue;
        }
        const bool upper = how == LT_CASE_UPPER || (first && how >= LT_CASE_TITLE && cased) ||
                           (how == LT_CASE_SWAP && !is_upper_cp(cp));
        const bool is_upper = how == LT_CASE_SWAP ? !is_upper_cp(cp) : upper;
        LT_TRY(is_upper && !(how == LT_CASE_TITLE && !first) ? put_upper(b, cp, first && begins)
                                                             : put_lower(b, cp));
        /* str.title(): a word is a run of cased characters, taken here as letters. */
        first = how == LT_CASE_TITLE && (lt_unicode_flags(cp) & LT_UNICODE_LETTER) == 0;
    }
    return LT_OK;
}

/* ---- numbers ---- */

lt_err lt_jtext_float(lt_jbuf *b, double x) {
    char text[64], digits[32];
    int n = 0, exponent, at;

    if (isnan(x)) {
        return lt_jbuf_puts(b, "nan");
    }
    if (isinf(x)) {
        return lt_jbuf_puts(b, x < 0 ? "-inf" : "inf");
    }
    /* Find the fewest digits that read back as x. */
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        if (strtod(text, NULL) == x) {
            break;
        }
    }
    exponent = atoi(strchr(text, 'e') + 1);
    for (const char *p = text; *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9') {
            digits[n++] = *p;
        }
    }
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    if (signbit(x)) {
        LT_TRY(lt_jbuf_puts(b, "-"));
    }
    if (exponent < -4 || exponent >= 16) {
        LT_TRY(lt_jbuf_put(b, digits, 1));
        if (n > 1) {
            LT_TRY(lt_jbuf_puts(b, "."));
            LT_TRY(lt_jbuf_put(b, digits + 1, (size_t)n - 1));
        }
        snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return lt_jbuf_puts(b, text);
    }
    for (at = exponent < 0 ? exponent : 0; at < n || at <= exponent; at++) {
        if (at == exponent + 1 && at > 0) {
            LT_TRY(lt_jbuf_puts(b, "."));
        }
        LT_TRY(lt_jbuf_put(b, at >= 0 && at < n ? digits + at : "0", 1));
        if (at == exponent && exponent < 0) {
            LT_TRY(lt_jbuf_puts(b, "."));
        }
    }
    return n <= exponent + 1 ? lt_jbuf_puts(b, ".0") : LT_OK;
}

static lt_err put_int(lt_jbuf *b, int64_t i) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)i);
    return lt_jbuf_puts(b, text);
}

/* ---- repr ---- */

static lt_err repr_str(lt_jbuf *b, lt_jv v) {
    const bool has_single = v.n > 0 && memchr(v.s, '\'', v.n) != NULL;
    const bool has_double = v.n > 0 && memchr(v.s, '"', v.n) != NULL;
    const char quote = has_single && !has_double ? '"' : '\'';
    const uint8_t *p = (const uint8_t *)v.s, *end = p + v.n;
    char text[16];

    LT_TRY(lt_jbuf_put(b, &quote, 1));
    while (p < end) {
        uint32_t cp;
        const size_t len = lt_utf8_decode(p, end, &cp);
        if (cp == (uint32_t)quote || cp == '\\') {
            LT_TRY(lt_jbuf_puts(b, "\\"));
            LT_TRY(lt_jbuf_put(b, (const char *)p, 1));
        } else if (cp == '\n' || cp == '\t' || cp == '\r') {
            LT_TRY(lt_jbuf_puts(b, cp == '\n' ? "\\n" : cp == '\t' ? "\\t" : "\\r"));
        } else if (cp < 0x20 || (cp >= 0x7F && cp <= 0xA0) || cp == 0xAD) {
            snprintf(text, sizeof text, "\\x%02x", cp);
            LT_TRY(lt_jbuf_puts(b, text));
        } else if (cp != ' ' &&
                   ((cp >= 0x2000 && lt_jtext_space(cp)) || (cp >= 0x200B && cp <= 0x200F) ||
                    (cp >= 0x202A && cp <= 0x202E) || (cp >= 0x2060 && cp <= 0x206F) ||
                    cp == 0xFEFF || (cp >= 0xE000 && cp <= 0xF8FF) || cp == 0x1680)) {
            snprintf(text, sizeof text, "\\u%04x", cp); /* Not printable according to Python. */
            LT_TRY(lt_jbuf_puts(b, text));
        } else {
            LT_TRY(lt_jbuf_put(b, (const char *)p, len));
        }
        p += len;
    }
    return lt_jbuf_put(b, &quote, 1);
}

static lt_err repr_range(lt_jbuf *b, const lt_jlist *l) {
    char text[96];
    snprintf(text, sizeof text, l->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
             (long long)l->start, (long long)l->stop, (long long)l->step);
    return lt_jbuf_puts(b, text);
}

static lt_err repr_list(lt_jrun *r, lt_jbuf *b, const lt_jlist *l) {
    if (l->sub == LT_JLIST_RANGE) {
        return repr_range(b, l);
    }
    if (l->sub == LT_JLIST_ITER) { /* Python prints an address here. */
        LT_TRY(lt_jbuf_puts(b, "<"));
        LT_TRY(lt_jbuf_puts(b, l->what));
        return lt_jbuf_puts(b, " object>");
    }
    if (l->sub == LT_JLIST_VIEW) {
        LT_TRY(lt_jbuf_puts(b, l->what));
    }
    LT_TRY(lt_jbuf_puts(b, l->sub == LT_JLIST_LIST ? "[" : l->sub == LT_JLIST_VIEW ? "([" : "("));
    for (size_t i = 0; i < l->n; i++) {
        LT_TRY(i > 0 ? lt_jbuf_puts(b, ", ") : LT_OK);
        LT_TRY(lt_jtext_repr(r, b, l->v[i]));
    }
    return lt_jbuf_puts(b, l->sub == LT_JLIST_LIST   ? "]"
                           : l->sub == LT_JLIST_VIEW ? "])"
                           : l->n == 1               ? ",)"
                                                     : ")");
}

static lt_err repr_dict(lt_jrun *r, lt_jbuf *b, const lt_jdict *d) {
    LT_TRY(lt_jbuf_puts(b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        LT_TRY(i > 0 ? lt_jbuf_puts(b, ", ") : LT_OK);
        LT_TRY(lt_jtext_repr(r, b, d->v[i].key));
        LT_TRY(lt_jbuf_puts(b, ": "));
        LT_TRY(lt_jtext_repr(r, b, d->v[i].value));
    }
    return lt_jbuf_puts(b, "}");
}

static lt_err repr_nested(lt_jrun *r, lt_jbuf *b, lt_jv v) {
    switch (v.kind) {
    case LT_JV_LIST:
        return repr_list(r, b, v.list);
    case LT_JV_DICT:
        return repr_dict(r, b, v.dict);
    case LT_JV_NAMESPACE:
        LT_TRY(lt_jbuf_puts(b, "<Namespace "));
        LT_TRY(repr_dict(r, b, v.dict));
        return lt_jbuf_puts(b, ">");
    case LT_JV_MACRO:
        LT_TRY(lt_jbuf_puts(b, "<Macro "));
        LT_TRY(repr_str(b, v.macro->node->value));
        return lt_jbuf_puts(b, ">");
    default:
        LT_TRY(lt_jbuf_puts(b, "<"));
        LT_TRY(lt_jbuf_puts(b, lt_jv_type(v)));
        return lt_jbuf_puts(b, " object>");
    }
}

lt_err lt_jtext_repr(lt_jrun *r, lt_jbuf *b, lt_jv v) {
    lt_err err;
    LT_TRY(lt_jinja_steps(r, 1 + (v.kind == LT_JV_STR ? v.n / 64 : 0)));
    switch (v.kind) {
    case LT_JV_ABSENT:
    case LT_JV_UNDEF:
        return lt_jbuf_puts(b, "Undefined");
    case LT_JV_NONE:
        return lt_jbuf_puts(b, "None");
    case LT_JV_BOOL:
        return lt_jbuf_puts(b, v.b ? "True" : "False");
    case LT_JV_INT:
        return put_int(b, v.i);
    case LT_JV_FLOAT:
        return lt_jtext_float(b, v.f);
    case LT_JV_LONG:
        return lt_jbuf_put(b, v.s, v.n);
    case LT_JV_STR:
        LT_TRY(v.markup ? lt_jbuf_puts(b, "Markup(") : LT_OK);
        LT_TRY(repr_str(b, v));
        return v.markup ? lt_jbuf_puts(b, ")") : LT_OK;
    default:
        LT_TRY(lt_jinja_enter(r));
        err = repr_nested(r, b, v);
        r->depth--;
        return err;
    }
}

lt_err lt_jtext_str(lt_jrun *r, lt_jbuf *b, lt_jv v) {
    if (v.kind == LT_JV_STR) {
        LT_TRY(lt_jinja_steps(r, v.n / 64));
        return lt_jbuf_put(b, v.s, v.n);
    }
    return v.kind == LT_JV_UNDEF ? LT_OK : lt_jtext_repr(r, b, v);
}

lt_err lt_jtext_of(lt_jrun *r, lt_jv v, lt_jv *out) {
    lt_jbuf b = {.pool = &r->pool};
    if (v.kind == LT_JV_STR) {
        *out = v;
        return LT_OK;
    }
    LT_TRY(lt_jtext_str(r, &b, v));
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

/* ---- JSON ---- */

static lt_err json_str(lt_jbuf *b, lt_jv v, bool ascii) {
    const uint8_t *p = (const uint8_t *)v.s, *end = p + v.n, *from = p;
    char text[16];
    static const char short_for[32] = {
        ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};

    LT_TRY(lt_jbuf_puts(b, "\""));
    while (p < end) {
        uint32_t cp = *p;
        const size_t len = cp < 0x80 ? 1 : lt_utf8_decode(p, end, &cp);
        if (cp >= 0x20 && cp != '"' && cp != '\\' && !(ascii && cp > 0x7E)) {
            p += len;
            continue;
        }
        LT_TRY(lt_jbuf_put(b, (const char *)from, (size_t)(p - from)));
        if (cp == '"' || cp == '\\') {
            snprintf(text, sizeof text, "\\%c", (char)cp);
        } else if (cp < 0x20 && short_for[cp] != 0) {
            snprintf(text, sizeof text, "\\%c", short_for[cp]);
        } else if (cp >= 0x10000) {
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                     0xDC00 + ((cp - 0x10000) & 0x3FF));
        } else if (cp == 0x7F) {
            snprintf(text, sizeof text, "\x7F");
        } else {
            snprintf(text, sizeof text, "\\u%04x", cp);
        }
        LT_TRY(lt_jbuf_puts(b, text));
        p += len;
        from = p;
    }
    LT_TRY(lt_jbuf_put(b, (const char *)from, (size_t)(p - from)));
    return lt_jbuf_puts(b, "\"");
}

static lt_err json_float(lt_jbuf *b, double x) {
    if (isnan(x) || isinf(x)) {
        return lt_jbuf_puts(b, isnan(x) ? "NaN" : x < 0 ? "-Infinity" : "Infinity");
    }
    return lt_jtext_float(b, x);
}

static lt_err json_newline(lt_jrun *r, lt_jbuf *b, const lt_jtext_json_options *o, int level) {
    if (o->indent.kind == LT_JV_NONE) {
        return LT_OK;
    }
    LT_TRY(lt_jbuf_puts(b, "\n"));
    for (int i = 0; i < level; i++) {
        if (o->indent.kind == LT_JV_STR) {
            LT_TRY(lt_jbuf_put(b, o->indent.s, o->indent.n));
        } else {
            const int64_t width = lt_jv_is_int(o->indent) ? (int64_t)lt_jv_number(o->indent) : 0;
            LT_TRY(lt_jinja_steps(r, width > 0 ? (size_t)width : 0));
            for (int64_t k = 0; k < width; k++) {
                LT_TRY(lt_jbuf_puts(b, " "));
            }
        }
    }
    return LT_OK;
}

static lt_err json_key(lt_jrun *r, lt_jbuf *b, lt_jv key, bool ascii) {
    lt_jbuf text = {.pool = &r->pool};
    switch (key.kind) {
    case LT_JV_STR:
        return json_str(b, key, ascii);
    case LT_JV_NONE:
        return lt_jbuf_puts(b, "\"null\"");
    case LT_JV_BOOL:
        return lt_jbuf_puts(b, key.b ? "\"true\"" : "\"false\"");
    case LT_JV_INT:
    case LT_JV_FLOAT:
        LT_TRY(key.kind == LT_JV_INT ? put_int(&text, key.i) : json_float(&text, key.f));
        return json_str(b, LT_JV_OF_STR(text.s, text.n), ascii);
    default:
        LT_JFAIL(r, "keys must be str, int, float, bool or None, not %s", lt_jv_type(key));
    }
}

static int by_key(const void *a, const void *b) {
    const lt_jv x = ((const lt_jpair *)a)->key, y = ((const lt_jpair *)b)->key;
    const size_t n = x.n < y.n ? x.n : y.n;
    const int order = n > 0 ? memcmp(x.s, y.s, n) : 0;
    return order != 0 ? order : (x.n > y.n) - (x.n < y.n);
}

static lt_err json_value(lt_jrun *r, lt_jbuf *b, lt_jv v, const lt_jtext_json_options *o,
                         int level);

static lt_err json_dict(lt_jrun *r, lt_jbuf *b, const lt_jdict *d, const lt_jtext_json_options *o,
                        int level) {
    lt_jpair *pairs = d->v;
    if (d->n == 0) {
        return lt_jbuf_puts(b, "{}");
    }
    if (o->sort) {
        void *copy;
        for (size_t i = 0; i < d->n; i++) {
            if (d->v[i].key.kind != LT_JV_STR) {
                LT_JFAIL(r, "tojson(sort_keys=true) of a key that is %s", lt_jv_type(d->v[i].key));
            }
        }
        LT_TRY(lt_jpool_take(&r->pool, d->n * sizeof *pairs, &copy));
        memcpy(copy, d->v, d->n * sizeof *pairs);
        pairs = copy;
        qsort(pairs, d->n, sizeof *pairs, by_key);
    }
    LT_TRY(lt_jbuf_puts(b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        LT_TRY(i > 0 ? lt_jbuf_put(b, o->item_sep.s, o->item_sep.n) : LT_OK);
        LT_TRY(json_newline(r, b, o, level + 1));
        LT_TRY(json_key(r, b, pairs[i].key, o->ascii));
        LT_TRY(lt_jbuf_put(b, o->key_sep.s, o->key_sep.n));
        LT_TRY(json_value(r, b, pairs[i].value, o, level + 1));
    }
    LT_TRY(json_newline(r, b, o, level));
    return lt_jbuf_puts(b, "}");
}

static lt_err json_list(lt_jrun *r, lt_jbuf *b, const lt_jlist *l, const lt_jtext_json_options *o,
                        int level) {
    if (l->n == 0) {
        return lt_jbuf_puts(b, "[]");
    }
    LT_TRY(lt_jbuf_puts(b, "["));
    for (size_t i = 0; i < l->n; i++) {
        LT_TRY(i > 0 ? lt_jbuf_put(b, o->item_sep.s, o->item_sep.n) : LT_OK);
        LT_TRY(json_newline(r, b, o, level + 1));
        LT_TRY(json_value(r, b, l->v[i], o, level + 1));
    }
    LT_TRY(json_newline(r, b, o, level));
    return lt_jbuf_puts(b, "]");
}

static lt_err json_value(lt_jrun *r, lt_jbuf *b, lt_jv v, const lt_jtext_json_options *o,
                         int level) {
    lt_err err;
    LT_TRY(lt_jinja_steps(r, 1 + (v.kind == LT_JV_STR ? v.n / 64 : 0)));
    switch (v.kind) {
    case LT_JV_NONE:
        return lt_jbuf_puts(b, "null");
    case LT_JV_BOOL:
        return lt_jbuf_puts(b, v.b ? "true" : "false");
    case LT_JV_INT:
        return put_int(b, v.i);
    case LT_JV_FLOAT:
        return json_float(b, v.f);
    case LT_JV_LONG:
        return lt_jbuf_put(b, v.s, v.n);
    case LT_JV_STR:
        return json_str(b, v, o->ascii);
    default:
        break;
    }
    if (v.kind != LT_JV_DICT && !(v.kind == LT_JV_LIST && v.list->sub <= LT_JLIST_TUPLE)) {
        LT_JFAIL(r, "Object of type %s is not JSON serializable", lt_jv_type(v));
    }
    LT_TRY(lt_jinja_enter(r));
    err = v.kind == LT_JV_DICT ? json_dict(r, b, v.dict, o, level)
                               : json_list(r, b, v.list, o, level);
    r->depth--;
    return err;
}

lt_err lt_jtext_json(lt_jrun *r, lt_jbuf *b, lt_jv v, const lt_jtext_json_options *o) {
    return json_value(r, b, v, o, 0);
}
