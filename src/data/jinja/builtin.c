/* jinja/builtin.c: how builtins get their arguments; the tests (`x is defined`); the functions of
 * the environment (range, namespace, ...); Python's "%s" formatting. */
#include "data/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "data/tokenizer/unicode.h"

/* ---- binding ---- */

/* Length of the i-th word of a list separated by blanks; 0: there is none. */
static size_t word_at(const char *words, size_t i, const char **out) {
    while (i > 0 && *words != 0) {
        words += strcspn(words, " ");
        words += *words == ' ';
        i--;
    }
    *out = words;
    return strcspn(words, " ");
}

lt_err lt_jinja_call_builtin(lt_jrun *r, const lt_jbuiltin *f, lt_jv self, const lt_jargs *args,
                             lt_jv *out) {
    lt_jv a[LT_JINJA_PARAMS];
    const char *word;
    size_t n_params = 0;

    LT_TRY(lt_jinja_steps(r, 1));
    if (f->params == NULL) {
        return f->call(r, self, NULL, args, out);
    }
    for (size_t i = 0; i < LT_JINJA_PARAMS; i++) {
        a[i] = LT_JV(ABSENT);
        n_params += word_at(f->params, i, &word) > 0;
    }
    if (args->n_pos > n_params) {
        LT_JFAIL(r, "%s() takes at most %zu arguments (%zu given)", f->name, n_params, args->n_pos);
    }
    for (size_t i = 0; i < args->n_pos; i++) {
        a[i] = args->pos[i];
    }
    for (size_t k = 0; k < args->n_kw; k++) {
        const lt_jv key = args->kw[k].key;
        size_t i = 0, len = 0;
        while ((len = word_at(f->params, i, &word)) > 0 &&
               !(key.kind == LT_JV_STR && key.n == len && memcmp(key.s, word, len) == 0)) {
            i++;
        }
        if (len == 0 || a[i].kind != LT_JV_ABSENT) {
            LT_JFAIL(r, "%s() got an unexpected argument '%.*s'", f->name,
                     key.kind == LT_JV_STR ? (int)key.n : 0, key.s);
        }
        a[i] = args->kw[k].value;
    }
    for (size_t i = 0; i < f->required; i++) {
        if (a[i].kind == LT_JV_ABSENT) {
            const size_t len = word_at(f->params, i, &word);
            LT_JFAIL(r, "%s() missing argument '%.*s'", f->name, (int)len, word);
        }
    }
    return f->call(r, self, a, args, out);
}

/* ---- tests ---- */

static lt_err is_divisible(lt_jrun *r, lt_jv v, lt_jv by, bool *out) {
    lt_jv rest;
    LT_TRY(lt_jinja_binary(r, LT_OP_MOD, v, by, &rest));
    *out = !lt_jv_truth(rest);
    return LT_OK;
}

static bool all_case(lt_jv v, lt_jcase how, lt_jrun *r, lt_err *err) {
    lt_jbuf same = {.pool = &r->pool}, other = {.pool = &r->pool};
    lt_jv text = LT_JV(NONE);
    *err = lt_jtext_of(r, v, &text);
    if (*err == LT_OK) {
        *err = lt_jtext_case(&same, text.s, text.n, how);
    }
    if (*err == LT_OK) {
        *err = lt_jtext_case(&other, text.s, text.n,
                             how == LT_CASE_LOWER ? LT_CASE_UPPER : LT_CASE_LOWER);
    }
    return *err == LT_OK && lt_jv_equal(text, LT_JV_OF_STR(same.s, same.n)) &&
           !lt_jv_equal(text, LT_JV_OF_STR(other.s, other.n));
}

/* Run a test without arguments; *known: name is one of them. */
static lt_err plain_test(lt_jrun *r, lt_jv name, lt_jv v, bool *out, bool *known) {
    lt_err err = LT_OK;
    const struct {
        const char *name;
        bool is;
    } rows[] = {
        {"defined", v.kind != LT_JV_UNDEF},
        {"undefined", v.kind == LT_JV_UNDEF},
        {"none", v.kind == LT_JV_NONE},
        {"boolean", v.kind == LT_JV_BOOL},
        {"true", v.kind == LT_JV_BOOL && v.b},
        {"false", v.kind == LT_JV_BOOL && !v.b},
        {"integer", v.kind == LT_JV_INT || v.kind == LT_JV_LONG},
        {"float", v.kind == LT_JV_FLOAT},
        {"number", lt_jv_is_number(v)},
        {"string", v.kind == LT_JV_STR},
        {"mapping", v.kind == LT_JV_DICT},
        {"iterable", lt_jv_is_iterable(v)},
        {"sequence", v.kind == LT_JV_STR || v.kind == LT_JV_DICT || v.kind == LT_JV_UNDEF ||
                         (v.kind == LT_JV_LIST && v.list->sub <= LT_JLIST_RANGE)},
        {"callable", v.kind == LT_JV_UNDEF || (v.kind >= LT_JV_MACRO && v.kind != LT_JV_CYCLER)},
        {"escaped", v.kind == LT_JV_STR && v.markup}};
    *known = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (lt_jv_str_is(name, rows[i].name)) {
            *out = rows[i].is;
            return LT_OK;
        }
    }
    if (lt_jv_str_is(name, "even") || lt_jv_str_is(name, "odd")) { /* 1.5 is neither. */
        lt_jv rest = LT_JV(NONE);
        LT_TRY(lt_jinja_binary(r, LT_OP_MOD, v, LT_JV_OF_INT(2), &rest));
        *out = lt_jv_equal(rest, LT_JV_OF_INT(lt_jv_str_is(name, "odd")));
        return LT_OK;
    }
    if (lt_jv_str_is(name, "lower") || lt_jv_str_is(name, "upper")) {
        *out = all_case(v, lt_jv_str_is(name, "lower") ? LT_CASE_LOWER : LT_CASE_UPPER, r, &err);
        return err;
    }
    *known = false;
    return LT_OK;
}

static bool same_object(lt_jv a, lt_jv b) {
    return a.kind == b.kind &&
           (a.kind == LT_JV_LIST || a.kind == LT_JV_DICT ? a.s == b.s : lt_jv_equal(a, b));
}

lt_err lt_jinja_test(lt_jrun *r, lt_jv name, lt_jv self, const lt_jargs *args, bool *out) {
    static const struct {
        const char *name;
        lt_jop op;
    } compares[] = {
        {"eq", LT_OP_EQ}, {"equalto", LT_OP_EQ}, {"==", LT_OP_EQ},       {"ne", LT_OP_NE},
        {"!=", LT_OP_NE}, {"lt", LT_OP_LT},      {"lessthan", LT_OP_LT}, {"<", LT_OP_LT},
        {"le", LT_OP_LE}, {"<=", LT_OP_LE},      {"gt", LT_OP_GT},       {"greaterthan", LT_OP_GT},
        {">", LT_OP_GT},  {"ge", LT_OP_GE},      {">=", LT_OP_GE},       {"in", LT_OP_IN}};
    bool known = false;
    LT_TRY(plain_test(r, name, self, out, &known));
    if (known) {
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof compares / sizeof *compares; i++) {
        if (lt_jv_str_is(name, compares[i].name)) {
            if (args->n_pos != 1) {
                LT_JFAIL(r, "test '%s' takes one argument", compares[i].name);
            }
            return lt_jinja_compare(r, compares[i].op, self, args->pos[0], out);
        }
    }
    if (args->n_pos == 1 && lt_jv_str_is(name, "divisibleby")) {
        return is_divisible(r, self, args->pos[0], out);
    }
    if (args->n_pos == 1 && lt_jv_str_is(name, "sameas")) {
        *out = same_object(self, args->pos[0]);
        return LT_OK;
    }
    LT_JFAIL(r, "no test named '%.*s'", (int)name.n, name.s);
}

/* ---- "..." % x ---- */

/* Bytes of a text that are left with a precision, the most characters of it: "%.3s". */
static size_t precise(const char *s, size_t n, const char *spec, size_t n_spec) {
    const char *dot = memchr(spec, '.', n_spec);
    size_t most = 0, at = 0;
    if (dot == NULL) {
        return n;
    }
    for (const char *p = dot + 1; p + 1 < spec + n_spec && most < n; p++) {
        most = *p >= '0' && *p <= '9' ? most * 10 + (size_t)(*p - '0') : most;
    }
    for (size_t i = 0; i < most && at < n; i++) {
        uint32_t cp;
        at += lt_utf8_decode((const uint8_t *)s + at, (const uint8_t *)s + n, &cp);
    }
    return at;
}

static lt_err percent_one(lt_jrun *r, lt_jbuf *b, const char *spec, size_t n, lt_jv v) {
    char format[32], text[400];
    lt_jbuf plain = {.pool = &r->pool};
    const char kind = spec[n - 1];
    int64_t width = 0;
    size_t pad;

    if (n > 16) {
        LT_JFAIL(r, "format '%.*s' is too long", (int)n, spec);
    }
    if (kind == 'o' && memchr(spec, '#', n) != NULL) {
        LT_JFAIL(r, "format '%.*s' is not supported", (int)n, spec); /* C writes another prefix. */
    }
    if (strchr("dixXofFeEgGc", kind) != NULL) {
        if (!lt_jv_is_number(v)) {
            LT_JFAIL(r, "%%%c format: a real number is required, not %s", kind, lt_jv_type(v));
        }
        const bool whole = strchr("dixXoc", kind) != NULL;
        snprintf(format, sizeof format, whole ? "%.*sll%c" : "%.*s%c", (int)n - 1, spec,
                 kind == 'i' ? 'd' : kind);
        for (size_t i = 1; i + 1 < n; i++) { /* Check that the width fits our buffer. */
            width = spec[i] >= '0' && spec[i] <= '9' ? width * 10 + spec[i] - '0' : 0;
            if (width > 60) {
                LT_JFAIL(r, "format '%.*s' is too wide", (int)n, spec);
            }
        }
        if (whole && !(fabs(lt_jv_number(v)) < 0x1p63)) {
            LT_JFAIL(r, "%%%c format: the number does not fit in 63 bits", kind);
        }
        if (whole) {
            snprintf(text, sizeof text, format, (long long)lt_jv_number(v));
        } else {
            snprintf(text, sizeof text, format, lt_jv_number(v));
        }
        return lt_jbuf_puts(b, text);
    }
    if (kind != 's' && kind != 'r') {
        LT_JFAIL(r, "unsupported format character '%c'", kind);
    }
    LT_TRY(kind == 's' ? lt_jtext_str(r, &plain, v) : lt_jtext_repr(r, &plain, v));
    for (size_t i = 1; i + 1 < n && spec[i] != '.'; i++) {
        width = spec[i] >= '0' && spec[i] <= '9' ? width * 10 + spec[i] - '0' : width;
    }
    width = width > 100000 ? 100000 : width;
    plain.n = precise(plain.s, plain.n, spec, n);
    pad = lt_jtext_count(plain.s, plain.n);
    pad = (size_t)width > pad ? (size_t)width - pad : 0;
    LT_TRY(lt_jinja_steps(r, pad));
    for (size_t i = 0; spec[1] != '-' && i < pad; i++) {
        LT_TRY(lt_jbuf_puts(b, " "));
    }
    LT_TRY(lt_jbuf_put(b, plain.s, plain.n));
    for (size_t i = 0; spec[1] == '-' && i < pad; i++) {
        LT_TRY(lt_jbuf_puts(b, " "));
    }
    return LT_OK;
}

lt_err lt_jinja_percent(lt_jrun *r, lt_jv format, lt_jv args, lt_jv *out) {
    const bool tuple = args.kind == LT_JV_LIST && args.list->sub == LT_JLIST_TUPLE;
    const size_t n_args = tuple ? args.list->n : 1;
    lt_jbuf b = {.pool = &r->pool};
    size_t used = 0;

    for (size_t i = 0; i < format.n; i++) {
        size_t end = i + 1;
        lt_jv v = args;
        if (format.s[i] != '%') {
            LT_TRY(lt_jbuf_put(&b, format.s + i, 1));
            continue;
        }
        if (end < format.n && format.s[end] == '(') { /* %(name)s of a mapping. */
            const char *close = memchr(format.s + end, ')', format.n - end);
            const lt_jv *found = NULL;
            if (close != NULL && args.kind == LT_JV_DICT) {
                found = lt_jv_get(args.dict, LT_JV_OF_STR(format.s + end + 1,
                                                          (size_t)(close - format.s) - end - 1));
            }
            if (found == NULL || close + 1 >= format.s + format.n ||
                strchr("sdr", close[1]) == NULL) {
                LT_JFAIL(r, "format requires a mapping with this key");
            }
            LT_TRY(percent_one(r, &b,
                               close[1] == 's'   ? "%s"
                               : close[1] == 'd' ? "%d"
                                                 : "%r",
                               2, *found));
            i = (size_t)(close - format.s) + 1;
            used = n_args;
            continue;
        }
        while (end < format.n && memchr("0123456789.-+ #", format.s[end], 15) != NULL) {
            end++;
        }
        if (end >= format.n) {
            LT_JFAIL(r, "incomplete format");
        }
        if (format.s[end] == '%') {
            LT_TRY(lt_jbuf_puts(&b, "%"));
        } else {
            if (used >= n_args) {
                LT_JFAIL(r, "not enough arguments for format string");
            }
            v = tuple ? args.list->v[used] : args;
            used++;
            LT_TRY(percent_one(r, &b, format.s + i, end - i + 1, v));
        }
        i = end;
    }
    /* Python does not check arguments that may be read by key; jinja2's Undefined is among them. */
    if (used < n_args && args.kind != LT_JV_DICT && args.kind != LT_JV_UNDEF &&
        (tuple || args.kind != LT_JV_LIST)) {
        LT_JFAIL(r, "not all arguments converted during string formatting");
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

/* ---- functions of the environment ---- */

static lt_err g_range(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out) {
    int64_t start = 0, stop, step = 1, n;
    (void)self;
    (void)args;
    for (int i = 0; i < 3; i++) {
        if (a[i].kind != LT_JV_ABSENT && !lt_jv_is_int(a[i])) {
            LT_JFAIL(r, "'%s' object cannot be interpreted as an integer", lt_jv_type(a[i]));
        }
    }
    stop = (int64_t)lt_jv_number(a[0]);
    if (a[1].kind != LT_JV_ABSENT) {
        start = stop;
        stop = a[1].kind == LT_JV_INT ? a[1].i : a[1].b;
    }
    if (a[2].kind != LT_JV_ABSENT) {
        step = a[2].kind == LT_JV_INT ? a[2].i : a[2].b;
    }
    if (step == 0) {
        LT_JFAIL(r, "range() arg 3 must not be zero");
    }
    if (start < -(INT64_C(1) << 60) || start > INT64_C(1) << 60 || stop < -(INT64_C(1) << 60) ||
        stop > INT64_C(1) << 60 || step < -(INT64_C(1) << 60) || step > INT64_C(1) << 60) {
        LT_JFAIL(r, "Range too big");
    }
    n = step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
    n = n < 0 ? 0 : n;
    if (n > LT_JINJA_RANGE) {
        LT_JFAIL(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                 LT_JINJA_RANGE);
    }
    LT_TRY(lt_jinja_steps(r, (size_t)n));
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_RANGE, (size_t)n, out));
    out->list->start = start;
    out->list->stop = stop;
    out->list->step = step;
    for (int64_t i = 0; i < n; i++) {
        LT_TRY(lt_jv_push(&r->pool, out->list, LT_JV_OF_INT(start + i * step)));
    }
    return LT_OK;
}

/* dict(...) and namespace(...) take one mapping or list of pairs, then keywords. */
static lt_err g_dict(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out) {
    (void)self;
    (void)a;
    LT_TRY(lt_jv_new_dict(&r->pool, out));
    if (args->n_pos > 1) {
        LT_JFAIL(r, "dict expected at most 1 argument, got %zu", args->n_pos);
    }
    if (args->n_pos == 1 && args->pos[0].kind == LT_JV_DICT) {
        for (size_t i = 0; i < args->pos[0].dict->n; i++) {
            LT_TRY(lt_jv_set(&r->pool, out->dict, args->pos[0].dict->v[i].key,
                             args->pos[0].dict->v[i].value));
        }
    } else if (args->n_pos == 1) {
        lt_jlist *items = NULL, *pair = NULL;
        LT_TRY(lt_jinja_iterate(r, args->pos[0], &items));
        for (size_t i = 0; i < items->n; i++) {
            LT_TRY(lt_jinja_iterate(r, items->v[i], &pair));
            if (pair->n != 2) {
                LT_JFAIL(r, "dictionary update sequence element #%zu has length %zu; 2 is required",
                         i, pair->n);
            }
            LT_TRY(lt_jv_set(&r->pool, out->dict, pair->v[0], pair->v[1]));
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        LT_TRY(lt_jv_set(&r->pool, out->dict, args->kw[i].key, args->kw[i].value));
    }
    return LT_OK;
}

static lt_err g_namespace(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args,
                          lt_jv *out) {
    LT_TRY(g_dict(r, self, a, args, out));
    out->kind = LT_JV_NAMESPACE;
    return LT_OK;
}

static lt_err g_raise(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out) {
    lt_jv text = LT_JV(NONE);
    (void)self;
    (void)args;
    (void)out;
    LT_TRY(lt_jtext_of(r, a[0], &text));
    LT_FAIL(LT_ERR_ARG, "%.*s", (int)(text.n < 900 ? text.n : 900), text.n > 0 ? text.s : "");
}

static lt_err g_strftime(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out) {
    char format[256], text[1024];
    struct tm when;
    time_t now = r->now_s >= 0 ? (time_t)r->now_s : time(NULL);
    size_t n;
    (void)self;
    (void)args;
    if (a[0].kind != LT_JV_STR || a[0].n >= sizeof format) {
        LT_JFAIL(r, "strftime_now() takes a format of at most %zu bytes", sizeof format - 1);
    }
    snprintf(format, sizeof format, "%.*s", (int)a[0].n, a[0].n > 0 ? a[0].s : "");
    if (localtime_r(&now, &when) == NULL) {
        LT_JFAIL(r, "strftime_now(): the clock is out of range");
    }
    n = strftime(text, sizeof text, format, &when);
    return lt_jv_copy_str(&r->pool, text, n, out);
}

static lt_err new_cycler(lt_jrun *r, lt_jkind kind, const lt_jv *v, size_t n, lt_jv *out) {
    lt_jv items = LT_JV(NONE);
    void *data;
    LT_TRY(lt_jpool_take(&r->pool, sizeof(lt_jcycler), &data));
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_LIST, n, &items));
    for (size_t i = 0; i < n; i++) {
        LT_TRY(lt_jv_push(&r->pool, items.list, v[i]));
    }
    ((lt_jcycler *)data)->items = items.list;
    *out = (lt_jv){.kind = kind, .cycler = data};
    return LT_OK;
}

static lt_err g_cycler(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out) {
    (void)self;
    (void)a;
    if (args->n_pos == 0) {
        LT_JFAIL(r, "cycler() needs at least one item");
    }
    return new_cycler(r, LT_JV_CYCLER, args->pos, args->n_pos, out);
}

static lt_err g_joiner(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out) {
    const lt_jv sep = a[0].kind == LT_JV_ABSENT ? LT_JV_OF_STR(", ", 2) : a[0];
    (void)self;
    (void)args;
    return new_cycler(r, LT_JV_JOINER, &sep, 1, out);
}

static const lt_jbuiltin globals[] = {{"range", g_range, "start stop step", 1},
                                      {"dict", g_dict, NULL, 0},
                                      {"namespace", g_namespace, NULL, 0},
                                      {"raise_exception", g_raise, "message", 1},
                                      {"strftime_now", g_strftime, "format", 1},
                                      {"cycler", g_cycler, NULL, 0},
                                      {"joiner", g_joiner, "sep", 0}};

bool lt_jinja_find_global(lt_jv name, lt_jv *out) {
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        if (lt_jv_str_is((lt_jv){.kind = LT_JV_STR, .s = name.s, .n = name.n}, globals[i].name)) {
            *out = (lt_jv){.kind = LT_JV_GLOBAL, .global = (int64_t)i};
            return true;
        }
    }
    return false;
}

lt_err lt_jinja_call_global(lt_jrun *r, int64_t global, const lt_jargs *args, lt_jv *out) {
    LT_ASSERT(global >= 0 && (size_t)global < sizeof globals / sizeof *globals);
    return lt_jinja_call_builtin(r, &globals[global], LT_JV(NONE), args, out);
}
