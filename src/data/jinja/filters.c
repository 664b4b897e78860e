/* jinja/filters.c: the filters that turn one value into text or a number (`x | trim`); those on
 * lists are in jinja/filters_list.c. */
#include "data/jinja/jinja.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/unicode.h"

#define FILTER(name)                                                                               \
    static lt_err name(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out)
#define UNUSED() ((void)r, (void)self, (void)a, (void)args, (void)out)

/* Jinja's text filters first convert their input to a string. */
static lt_err call_str_method(lt_jrun *r, const char *name, lt_jv self, const lt_jargs *args,
                              lt_jv *out) {
    const lt_jmethod m = {.self = self, .name = name, .n = strlen(name)};
    lt_jmethod text = m;
    LT_TRY(lt_jtext_of(r, self, &text.self));
    return lt_jinja_call_method(r, &text, args, out);
}

FILTER(f_upper) {
    UNUSED();
    return call_str_method(r, "upper", self, args, out);
}
FILTER(f_lower) {
    UNUSED();
    return call_str_method(r, "lower", self, args, out);
}
FILTER(f_capitalize) {
    UNUSED();
    return call_str_method(r, "capitalize", self, args, out);
}
FILTER(f_trim) {
    UNUSED();
    return call_str_method(r, "strip", self, args, out);
}
FILTER(f_replace) {
    UNUSED();
    return call_str_method(r, "replace", self, args, out);
}
FILTER(f_center) {
    const lt_jv width = a[0].kind == LT_JV_ABSENT ? LT_JV_OF_INT(80) : a[0];
    const lt_jargs one = {(lt_jv *)(uintptr_t)&width, 1, NULL, 0};
    UNUSED();
    return call_str_method(r, "center", self, &one, out);
}
FILTER(f_string) {
    UNUSED();
    return lt_jtext_of(r, self, out);
}
FILTER(f_safe) {
    UNUSED();
    LT_TRY(lt_jtext_of(r, self, out));
    out->markup = true;
    return LT_OK;
}

/* Words are separated by -, white space, ( { [ <. */
FILTER(f_title) {
    lt_jv text = LT_JV(NONE);
    lt_jbuf b = {.pool = &r->pool};
    const uint8_t *p, *end;
    bool first = true;
    UNUSED();
    LT_TRY(lt_jtext_of(r, self, &text));
    LT_TRY(lt_jinja_steps(r, text.n));
    p = (const uint8_t *)text.s;
    end = p + text.n;
    while (p < end) {
        uint32_t cp;
        const size_t n = lt_utf8_decode(p, end, &cp);
        LT_TRY(lt_jtext_case(&b, (const char *)p, n, first ? LT_CASE_UPPER : LT_CASE_LOWER));
        first = lt_jtext_space(cp) || (cp < 0x80 && strchr("-({[<", (int)cp) != NULL);
        p += n;
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

lt_err lt_jinja_escape(lt_jrun *r, lt_jv v, lt_jv *out) {
    static const struct {
        char c;
        const char *text;
    } rows[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
    lt_jv text = LT_JV(NONE);
    lt_jbuf b = {.pool = &r->pool};
    if (v.markup) {
        *out = v;
        return LT_OK;
    }
    LT_TRY(lt_jtext_of(r, v, &text));
    LT_TRY(lt_jinja_steps(r, text.n / 8));
    for (size_t i = 0; i < text.n; i++) {
        const char *to = NULL;
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            to = text.s[i] == rows[k].c ? rows[k].text : to;
        }
        LT_TRY(to != NULL ? lt_jbuf_puts(&b, to) : lt_jbuf_put(&b, text.s + i, 1));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    out->markup = true;
    return LT_OK;
}

FILTER(f_escape) {
    UNUSED();
    return lt_jinja_escape(r, self, out);
}

FILTER(f_urlencode) {
    static const char hex[] = "0123456789ABCDEF";
    lt_jv text = LT_JV(NONE);
    lt_jbuf b = {.pool = &r->pool};
    UNUSED();
    if (self.kind == LT_JV_DICT || self.kind == LT_JV_LIST) {
        LT_JFAIL(r, "urlencode does not take a %s", lt_jv_type(self));
    }
    LT_TRY(lt_jtext_of(r, self, &text));
    for (size_t i = 0; i < text.n; i++) {
        const unsigned char c = (unsigned char)text.s[i];
        const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                           (c >= 'a' && c <= 'z') || (c != 0 && strchr("_.-~/", c) != NULL);
        const char code[3] = {'%', hex[c >> 4], hex[c & 15]};
        LT_TRY(lt_jbuf_put(&b, plain ? text.s + i : code, plain ? 1 : 3));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

FILTER(f_indent) {
    lt_jbuf b = {.pool = &r->pool}, with = {.pool = &r->pool};
    lt_jv text = self, lines = LT_JV(NONE);
    const lt_jargs none = {0};
    const bool first = a[1].kind != LT_JV_ABSENT && lt_jv_truth(a[1]);
    const bool blank = a[2].kind != LT_JV_ABSENT && lt_jv_truth(a[2]);
    UNUSED();
    if (a[0].kind == LT_JV_STR) {
        LT_TRY(lt_jbuf_put(&with, a[0].s, a[0].n));
    }
    for (int64_t i = 0; a[0].kind != LT_JV_STR &&
                        i < (a[0].kind == LT_JV_ABSENT ? 4 : (int64_t)lt_jv_number(a[0]));
         i++) {
        LT_TRY(lt_jinja_steps(r, 1));
        LT_TRY(lt_jbuf_puts(&with, " "));
    }
    if (self.kind == LT_JV_UNDEF || self.kind == LT_JV_NONE) {
        LT_JFAIL(r, "indent does not take a %s", lt_jv_type(self));
    }
    LT_TRY(lt_jinja_binary(r, LT_OP_ADD, text, LT_JV_OF_STR("\n", 1), &text));
    LT_TRY(call_str_method(r, "splitlines", text, &none, &lines));
    LT_TRY(first ? lt_jbuf_put(&b, with.s, with.n) : LT_OK);
    for (size_t i = 0; i < lines.list->n; i++) {
        const lt_jv line = lines.list->v[i];
        LT_TRY(i > 0 ? lt_jbuf_puts(&b, "\n") : LT_OK);
        if (i > 0 && (blank || line.n > 0)) {
            LT_TRY(lt_jinja_steps(r, 1 + with.n / 64));
            LT_TRY(lt_jbuf_put(&b, with.s, with.n));
        }
        LT_TRY(lt_jbuf_put(&b, line.s, line.n));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

FILTER(f_truncate) {
    lt_jv text = LT_JV(NONE);
    const int64_t most = a[0].kind == LT_JV_INT ? a[0].i : 255,
                  leeway = a[3].kind == LT_JV_INT ? a[3].i : 5;
    const bool kill = a[1].kind != LT_JV_ABSENT && lt_jv_truth(a[1]);
    const lt_jv end = a[2].kind == LT_JV_STR ? a[2] : LT_JV_OF_STR("...", 3);
    const int64_t tail = (int64_t)lt_jtext_count(end.s, end.n);
    lt_jbuf b = {.pool = &r->pool};
    size_t n;
    UNUSED();
    LT_TRY(lt_jtext_of(r, self, &text));
    if (most < tail) {
        LT_JFAIL(r, "expected length >= %lld, got %lld", (long long)tail, (long long)most);
    }
    if ((int64_t)lt_jtext_count(text.s, text.n) <= most + leeway) {
        *out = text;
        return LT_OK;
    }
    n = lt_jtext_offset(text.s, text.n, (size_t)(most - tail));
    while (!kill && n > 0 && memchr(text.s, ' ', n) != NULL && text.s[n - 1] != ' ') {
        n--; /* s.rsplit(" ", 1)[0] */
    }
    n -= !kill && n > 0 && text.s[n - 1] == ' ';
    LT_TRY(lt_jbuf_put(&b, text.s, n));
    LT_TRY(lt_jbuf_put(&b, end.s, end.n));
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

/* A word is a run of letters, digits and underscores. */
FILTER(f_wordcount) {
    lt_jv text = LT_JV(NONE);
    const uint8_t *p, *end;
    bool inside = false;
    UNUSED();
    LT_TRY(lt_jtext_of(r, self, &text));
    LT_TRY(lt_jinja_steps(r, text.n / 16));
    *out = LT_JV_OF_INT(0);
    p = (const uint8_t *)text.s;
    end = p + text.n;
    while (p < end) {
        uint32_t cp;
        bool word;
        p += lt_utf8_decode(p, end, &cp);
        word = (lt_unicode_flags(cp) & (LT_UNICODE_LETTER | LT_UNICODE_NUMBER)) != 0 || cp == '_';
        out->i += word && !inside;
        inside = word;
    }
    return LT_OK;
}

FILTER(f_format) {
    lt_jv list = LT_JV(NONE), text = LT_JV(NONE);
    UNUSED();
    LT_TRY(lt_jtext_of(r, self, &text));
    if (args->n_kw > 0) {
        LT_TRY(lt_jv_new_dict(&r->pool, &list));
        for (size_t i = 0; i < args->n_kw; i++) {
            LT_TRY(lt_jv_set(&r->pool, list.dict, args->kw[i].key, args->kw[i].value));
        }
        return lt_jinja_percent(r, text, list, out);
    }
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_TUPLE, args->n_pos, &list));
    for (size_t i = 0; i < args->n_pos; i++) {
        LT_TRY(lt_jv_push(&r->pool, list.list, args->pos[i]));
    }
    return lt_jinja_percent(r, text, list, out);
}

FILTER(f_tojson) {
    lt_jtext_json_options o = {.ascii = a[0].kind != LT_JV_ABSENT && lt_jv_truth(a[0]),
                               .sort = a[3].kind != LT_JV_ABSENT && lt_jv_truth(a[3]),
                               .indent = a[1].kind == LT_JV_ABSENT ? LT_JV(NONE) : a[1],
                               .item_sep = LT_JV_OF_STR(", ", 2),
                               .key_sep = LT_JV_OF_STR(": ", 2)};
    lt_jbuf b = {.pool = &r->pool};
    UNUSED();
    if (o.indent.kind != LT_JV_NONE) {
        o.item_sep.n = 1;
    }
    if (a[2].kind == LT_JV_LIST && a[2].list->n == 2 && a[2].list->v[0].kind == LT_JV_STR &&
        a[2].list->v[1].kind == LT_JV_STR) {
        o.item_sep = a[2].list->v[0];
        o.key_sep = a[2].list->v[1];
    } else if (a[2].kind != LT_JV_ABSENT && a[2].kind != LT_JV_NONE) {
        LT_JFAIL(r, "tojson(separators=...) takes a pair of strings");
    }
    LT_TRY(lt_jtext_json(r, &b, self, &o));
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

/* ---- numbers ---- */

/* Read a whole text as a number, as Python's int() and float() do; false: it is not a number. */
static bool read_number(lt_jv v, int base, bool whole, lt_jv *out) {
    char text[80], *end;
    const char *s = v.s;
    size_t n = v.n, kept = 0;
    lt_jtext_strip(&s, &n, true, true);
    if (n == 0 || n >= sizeof text) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_' && i > 0 && i + 1 < n && s[i - 1] != '_') {
            continue;
        }
        text[kept++] = s[i];
    }
    text[kept] = 0;
    errno = 0;
    if (strchr(text, '_') != NULL || (unsigned char)text[0] <= ' ') {
        return false;
    }
    if (whole) {
        out->kind = LT_JV_INT;
        out->i = strtoll(text, &end, base);
    } else {
        if (strpbrk(text, "xXpP(") != NULL) {
            return false; /* strtod accepts texts that Python does not. */
        }
        out->kind = LT_JV_FLOAT;
        out->f = strtod(text, &end);
        errno = 0;
    }
    return errno == 0 && *end == 0 && end != text;
}

FILTER(f_int) {
    lt_jv v = LT_JV(NONE);
    const int base = a[1].kind == LT_JV_INT && a[1].i >= 2 && a[1].i <= 36 ? (int)a[1].i : 10;
    UNUSED();
    *out = a[0].kind == LT_JV_ABSENT ? LT_JV_OF_INT(0) : a[0];
    if (self.kind == LT_JV_UNDEF) {
        LT_JFAIL(r, "'%.*s' is undefined", (int)self.n, self.s);
    }
    if (self.kind == LT_JV_LONG) {
        *out = self;
        return LT_OK;
    }
    if (lt_jv_is_int(self)) {
        *out = LT_JV_OF_INT(self.kind == LT_JV_BOOL ? (int64_t)self.b : self.i);
        return LT_OK;
    }
    if (self.kind == LT_JV_STR && read_number(self, base, true, &v)) {
        *out = v;
        return LT_OK;
    }
    if (self.kind == LT_JV_FLOAT ||
        (self.kind == LT_JV_STR && read_number(self, base, false, &v))) {
        const double x = self.kind == LT_JV_FLOAT ? self.f : v.f;
        if (isnan(x) || isinf(x)) {
            return LT_OK;
        }
        if (fabs(x) >= 0x1p63) {
            LT_JFAIL(r, "the integer does not fit in 63 bits");
        }
        *out = LT_JV_OF_INT((int64_t)x);
    }
    return LT_OK;
}

FILTER(f_float) {
    lt_jv v = LT_JV(NONE);
    UNUSED();
    *out = a[0].kind == LT_JV_ABSENT ? (lt_jv){.kind = LT_JV_FLOAT} : a[0];
    if (self.kind == LT_JV_UNDEF) {
        LT_JFAIL(r, "'%.*s' is undefined", (int)self.n, self.s);
    }
    if (lt_jv_is_number(self)) {
        *out = (lt_jv){.kind = LT_JV_FLOAT, .f = lt_jv_number(self)};
    } else if (self.kind == LT_JV_STR && read_number(self, 10, false, &v)) {
        *out = v;
    }
    return LT_OK;
}

FILTER(f_abs) {
    UNUSED();
    if (!lt_jv_is_number(self)) {
        LT_JFAIL(r, "bad operand type for abs(): '%s'", lt_jv_type(self));
    }
    if (!lt_jv_is_int(self)) {
        *out = (lt_jv){.kind = LT_JV_FLOAT, .f = fabs(lt_jv_number(self))};
        return LT_OK;
    }
    return lt_jinja_binary(r, lt_jv_number(self) < 0 ? LT_OP_SUB : LT_OP_ADD, LT_JV_OF_INT(0), self,
                           out);
}

FILTER(f_round) {
    const int64_t digits = a[0].kind == LT_JV_INT ? a[0].i : 0;
    const double scale = pow(10, (double)digits), x = lt_jv_number(self);
    UNUSED();
    if (self.kind == LT_JV_LONG && digits >= 0) {
        *out = self;
        return LT_OK;
    }
    if (!lt_jv_is_number(self) || digits < -300 || digits > 300) {
        LT_JFAIL(r, "round does not take a %s", lt_jv_type(self));
    }
    /* Ties of the decimal value go to even, as in Python. */
    if (a[1].kind == LT_JV_ABSENT || lt_jv_str_is(a[1], "common")) {
        char text[700];
        if (digits >= 0) {
            snprintf(text, sizeof text, "%.*f", (int)digits, x);
            *out = (lt_jv){.kind = LT_JV_FLOAT, .f = strtod(text, NULL)};
        } else {
            *out = (lt_jv){.kind = LT_JV_FLOAT, .f = nearbyint(x * scale) / scale};
        }
    } else if (lt_jv_str_is(a[1], "ceil") || lt_jv_str_is(a[1], "floor")) {
        const double whole = lt_jv_str_is(a[1], "ceil") ? ceil(x * scale) : floor(x * scale);
        /* Python's ceil and floor give an int, which has no negative zero. */
        *out = (lt_jv){.kind = LT_JV_FLOAT, .f = (whole + 0.0) / scale};
    } else {
        LT_JFAIL(r, "method must be common, ceil or floor");
    }
    if (lt_jv_is_int(self) && (a[1].kind == LT_JV_ABSENT || lt_jv_str_is(a[1], "common"))) {
        *out = LT_JV_OF_INT((int64_t)out->f); /* round() of an int is an int. */
    }
    return LT_OK;
}

FILTER(f_default) {
    const bool boolean = a[1].kind != LT_JV_ABSENT && lt_jv_truth(a[1]);
    UNUSED();
    *out = self;
    if (self.kind == LT_JV_UNDEF || (boolean && !lt_jv_truth(self))) {
        *out = a[0].kind == LT_JV_ABSENT ? LT_JV_OF_STR("", 0) : a[0];
    }
    return LT_OK;
}

const lt_jbuiltin lt_jinja_text_filters[] = {
    {"abs", f_abs, "", 0},
    {"capitalize", f_capitalize, "", 0},
    {"center", f_center, "width", 0},
    {"d", f_default, "default_value boolean", 0},
    {"default", f_default, "default_value boolean", 0},
    {"e", f_escape, "", 0},
    {"escape", f_escape, "", 0},
    {"float", f_float, "default", 0},
    {"forceescape", f_escape, "", 0},
    {"format", f_format, NULL, 0},
    {"indent", f_indent, "width first blank", 0},
    {"int", f_int, "default base", 0},
    {"lower", f_lower, "", 0},
    {"replace", f_replace, NULL, 0},
    {"round", f_round, "precision method", 0},
    {"safe", f_safe, "", 0},
    {"string", f_string, "", 0},
    {"title", f_title, "", 0},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0},
    {"trim", f_trim, NULL, 0},
    {"truncate", f_truncate, "length killwords end leeway", 0},
    {"upper", f_upper, "", 0},
    {"urlencode", f_urlencode, "", 0},
    {"wordcount", f_wordcount, "", 0},
    {NULL, NULL, NULL, 0}};

lt_err lt_jinja_filter(lt_jrun *r, lt_jv name, lt_jv self, const lt_jargs *args, lt_jv *out) {
    const lt_jbuiltin *const tables[] = {lt_jinja_text_filters, lt_jinja_list_filters};
    for (size_t t = 0; t < 2; t++) {
        for (const lt_jbuiltin *f = tables[t]; f->name != NULL; f++) {
            if (lt_jv_str_is(name, f->name)) {
                return lt_jinja_call_builtin(r, f, self, args, out);
            }
        }
    }
    LT_JFAIL(r, "No filter named '%.*s'.", (int)name.n, name.s);
}
