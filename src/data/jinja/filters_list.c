/* jinja/filters_list.c: the filters that iterate over their input: length, join, map, select, sort,
 * ... */
#include "data/jinja/jinja.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static lt_err name(lt_jrun *r, lt_jv self, const lt_jv *a, const lt_jargs *args, lt_jv *out)
#define UNUSED() ((void)r, (void)self, (void)a, (void)args, (void)out)

static lt_err new_list(lt_jrun *r, lt_jlist_sub sub, lt_jv *out) {
    return lt_jv_new_list(&r->pool, sub, 0, out);
}

/* x.a.0.b: attribute is a dotted path or an index. If a part is missing, the result is the
 * default or, without one, undefined. */
static lt_err attribute_of(lt_jrun *r, lt_jv v, lt_jv path, lt_jv fallback, lt_jv *out) {
    size_t from = 0;
    *out = v;
    if (path.kind == LT_JV_INT) {
        LT_TRY(lt_jinja_item(r, v, path, out));
    } else if (path.kind != LT_JV_STR) {
        LT_JFAIL(r, "an attribute must be a name or an index, not %s", lt_jv_type(path));
    }
    while (path.kind == LT_JV_STR && from <= path.n) {
        const char *dot = path.n > from ? memchr(path.s + from, '.', path.n - from) : NULL;
        const size_t to = dot != NULL ? (size_t)(dot - path.s) : path.n;
        lt_jv part = LT_JV_OF_STR(path.s + from, to - from);
        int64_t index = 0;
        bool digits = part.n > 0 && part.n < 10;
        for (size_t i = 0; i < part.n && digits; i++) {
            digits = part.s[i] >= '0' && part.s[i] <= '9';
            index = index * 10 + part.s[i] - '0';
        }
        LT_TRY(lt_jinja_item(r, *out, digits ? LT_JV_OF_INT(index) : part, out));
        if (out->kind == LT_JV_UNDEF && fallback.kind != LT_JV_ABSENT) {
            *out = fallback;
        }
        from = to + 1;
    }
    return LT_OK;
}

FILTER(f_length) {
    UNUSED();
    switch (self.kind) {
    case LT_JV_STR:
        LT_TRY(lt_jinja_steps(r, self.n / 16));
        *out = LT_JV_OF_INT((int64_t)lt_jtext_count(self.s, self.n));
        return LT_OK;
    case LT_JV_UNDEF:
        *out = LT_JV_OF_INT(0);
        return LT_OK;
    case LT_JV_DICT:
        *out = LT_JV_OF_INT((int64_t)self.dict->n);
        return LT_OK;
    case LT_JV_LOOP:
        *out = LT_JV_OF_INT((int64_t)self.loop->items->n);
        return LT_OK;
    case LT_JV_LIST:
        if (self.list->sub != LT_JLIST_ITER) {
            *out = LT_JV_OF_INT((int64_t)self.list->n);
            return LT_OK;
        }
        break;
    default:
        break;
    }
    LT_JFAIL(r, "object of type '%s' has no len()", lt_jv_type(self));
}

FILTER(f_list) {
    lt_jlist *items = NULL;
    UNUSED();
    LT_TRY(lt_jinja_iterate(r, self, &items));
    LT_TRY(new_list(r, LT_JLIST_LIST, out));
    for (size_t i = 0; i < items->n; i++) {
        LT_TRY(lt_jv_push(&r->pool, out->list, items->v[i]));
    }
    return LT_OK;
}

FILTER(f_join) {
    lt_jlist *items = NULL;
    lt_jbuf b = {.pool = &r->pool};
    lt_jv v, sep = LT_JV_OF_STR("", 0);
    UNUSED();
    LT_TRY(a[0].kind != LT_JV_ABSENT ? lt_jtext_of(r, a[0], &sep) : LT_OK);
    LT_TRY(lt_jinja_iterate(r, self, &items));
    for (size_t i = 0; i < items->n; i++) {
        v = items->v[i];
        if (a[1].kind != LT_JV_ABSENT && a[1].kind != LT_JV_NONE) {
            LT_TRY(attribute_of(r, items->v[i], a[1], LT_JV(ABSENT), &v));
        }
        LT_TRY(i > 0 ? lt_jtext_str(r, &b, sep) : LT_OK);
        LT_TRY(lt_jtext_str(r, &b, v));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

static lt_err first_last(lt_jrun *r, lt_jv self, bool last, lt_jv *out) {
    lt_jlist *items = NULL;
    if (last && self.kind == LT_JV_LIST && self.list->sub == LT_JLIST_ITER) {
        LT_JFAIL(r, "'%s' object is not reversible", lt_jv_type(self));
    }
    LT_TRY(lt_jinja_iterate(r, self, &items));
    *out = (lt_jv){.kind = LT_JV_UNDEF, .s = "an item of an empty sequence", .n = 28};
    if (items->n > 0) {
        *out = items->v[last ? items->n - 1 : 0];
    }
    return LT_OK;
}

FILTER(f_first) {
    UNUSED();
    return first_last(r, self, false, out);
}
FILTER(f_last) {
    UNUSED();
    return first_last(r, self, true, out);
}

FILTER(f_reverse) {
    lt_jlist *items = NULL;
    lt_jbuf b = {.pool = &r->pool};
    UNUSED();
    LT_TRY(lt_jinja_iterate(r, self, &items));
    LT_TRY(new_list(r, LT_JLIST_ITER, out));
    out->list->what = "list_reverseiterator";
    for (size_t i = items->n; i > 0; i--) {
        if (self.kind == LT_JV_STR) {
            LT_TRY(lt_jbuf_put(&b, items->v[i - 1].s, items->v[i - 1].n));
        } else {
            LT_TRY(lt_jv_push(&r->pool, out->list, items->v[i - 1]));
        }
    }
    *out = self.kind == LT_JV_STR ? LT_JV_OF_STR(b.s, b.n) : *out;
    return LT_OK;
}

FILTER(f_items) {
    UNUSED();
    LT_TRY(new_list(r, LT_JLIST_ITER, out));
    if (self.kind == LT_JV_UNDEF) {
        return LT_OK;
    }
    if (self.kind != LT_JV_DICT) {
        LT_JFAIL(r, "Can only get item pairs from a mapping.");
    }
    for (size_t i = 0; i < self.dict->n; i++) {
        lt_jv pair = LT_JV(NONE);
        LT_TRY(lt_jv_new_pair(&r->pool, self.dict->v[i].key, self.dict->v[i].value, &pair));
        LT_TRY(lt_jv_push(&r->pool, out->list, pair));
    }
    return LT_OK;
}

/* ---- map, select and similar filters ---- */

static lt_jargs rest_of(const lt_jargs *args, size_t from) {
    lt_jargs rest = *args;
    from = from < args->n_pos ? from : args->n_pos;
    rest.pos = from > 0 ? rest.pos + from : rest.pos;
    rest.n_pos -= from;
    return rest;
}

static const lt_jv *keyword(const lt_jargs *args, const char *name) {
    for (size_t i = 0; i < args->n_kw; i++) {
        if (lt_jv_str_is(args->kw[i].key, name)) {
            return &args->kw[i].value;
        }
    }
    return NULL;
}

FILTER(f_map) {
    lt_jlist *items = NULL;
    const lt_jv *attribute = keyword(args, "attribute"), *fallback = keyword(args, "default");
    const lt_jargs rest = rest_of(args, 1);
    UNUSED();
    if (attribute == NULL && (args->n_pos == 0 || args->pos[0].kind != LT_JV_STR)) {
        LT_JFAIL(r, "map requires a filter argument");
    }
    LT_TRY(new_list(r, LT_JLIST_ITER, out));
    if (!lt_jv_truth(self)) {
        return LT_OK; /* Also of none, as Jinja has it. */
    }
    LT_TRY(lt_jinja_iterate(r, self, &items));
    for (size_t i = 0; i < items->n; i++) {
        lt_jv v = LT_JV(NONE);
        LT_TRY(attribute != NULL ? attribute_of(r, items->v[i], *attribute,
                                                fallback != NULL ? *fallback : LT_JV(ABSENT), &v)
                                 : lt_jinja_filter(r, args->pos[0], items->v[i], &rest, &v));
        LT_TRY(lt_jv_push(&r->pool, out->list, v));
    }
    return LT_OK;
}

static lt_err select_by(lt_jrun *r, lt_jv self, const lt_jargs *args, bool attribute, bool keep,
                        lt_jv *out) {
    lt_jlist *items = NULL;
    const size_t at = attribute ? 1 : 0; /* Index of the argument that names the test. */
    const lt_jargs rest = rest_of(args, at + 1);
    if (args->n_pos < at) {
        LT_JFAIL(r, "Missing parameter for attribute name");
    }
    LT_TRY(new_list(r, LT_JLIST_ITER, out));
    if (!lt_jv_truth(self)) {
        return LT_OK; /* Also of none, as Jinja has it. */
    }
    LT_TRY(lt_jinja_iterate(r, self, &items));
    for (size_t i = 0; i < items->n; i++) {
        lt_jv v = items->v[i];
        bool is;
        if (attribute) {
            LT_TRY(attribute_of(r, items->v[i], args->pos[0], LT_JV(ABSENT), &v));
        }
        is = lt_jv_truth(v);
        if (args->n_pos > at) {
            LT_TRY(lt_jinja_test(r, args->pos[at], v, &rest, &is));
        }
        if (is == keep) {
            LT_TRY(lt_jv_push(&r->pool, out->list, items->v[i]));
        }
    }
    return LT_OK;
}

FILTER(f_select) {
    UNUSED();
    return select_by(r, self, args, false, true, out);
}
FILTER(f_reject) {
    UNUSED();
    return select_by(r, self, args, false, false, out);
}
FILTER(f_selectattr) {
    UNUSED();
    return select_by(r, self, args, true, true, out);
}
FILTER(f_rejectattr) {
    UNUSED();
    return select_by(r, self, args, true, false, out);
}

/* ---- order ---- */

/* The key to sort by: an attribute if one is named, in lower case unless the sort is
 * case-sensitive. */
static lt_err sort_key(lt_jrun *r, lt_jv v, lt_jv attribute, lt_jv fallback, bool cased,
                       lt_jv *out) {
    lt_jbuf b = {.pool = &r->pool};
    *out = v;
    if (attribute.kind != LT_JV_ABSENT && attribute.kind != LT_JV_NONE) {
        LT_TRY(attribute_of(r, v, attribute, fallback, out));
    }
    if (out->kind == LT_JV_STR && !cased) {
        LT_TRY(lt_jtext_case(&b, out->s, out->n, LT_CASE_LOWER));
        *out = LT_JV_OF_STR(b.s, b.n);
    }
    return LT_OK;
}

static lt_err keys_of(lt_jrun *r, const lt_jlist *items, lt_jv attribute, lt_jv fallback,
                      bool cased, lt_jv **out) {
    void *data;
    LT_TRY(lt_jpool_take(&r->pool, (items->n + 1) * sizeof **out, &data));
    *out = data;
    for (size_t i = 0; i < items->n; i++) {
        LT_TRY(sort_key(r, items->v[i], attribute, fallback, cased, &(*out)[i]));
    }
    return LT_OK;
}

/* The same for sort, which takes several attributes, "age,name": the first one counts most. */
static lt_err keys_of_all(lt_jrun *r, const lt_jlist *items, lt_jv attributes, bool cased,
                          lt_jv **out) {
    size_t from = 0;
    if (attributes.kind != LT_JV_STR || memchr(attributes.s, ',', attributes.n) == NULL) {
        return keys_of(r, items, attributes, LT_JV(ABSENT), cased, out);
    }
    LT_TRY(keys_of(r, items, LT_JV(ABSENT), LT_JV(ABSENT), true, out)); /* Room for the keys. */
    for (size_t i = 0; i < items->n; i++) {
        LT_TRY(new_list(r, LT_JLIST_LIST, &(*out)[i]));
    }
    while (from <= attributes.n) {
        const char *comma = attributes.n > from
                                ? memchr(attributes.s + from, ',', attributes.n - from)
                                : NULL;
        const size_t to = comma != NULL ? (size_t)(comma - attributes.s) : attributes.n;
        const lt_jv one = LT_JV_OF_STR(attributes.s + from, to - from);
        for (size_t i = 0; i < items->n; i++) {
            lt_jv key;
            LT_TRY(sort_key(r, items->v[i], one, LT_JV(ABSENT), cased, &key));
            LT_TRY(lt_jv_push(&r->pool, (*out)[i].list, key));
        }
        from = to + 1;
    }
    return LT_OK;
}

static bool given(lt_jv v) {
    return v.kind != LT_JV_ABSENT && lt_jv_truth(v);
}

FILTER(f_sort) {
    lt_jv *keys = NULL;
    UNUSED();
    LT_TRY(f_list(r, self, a, args, out));
    LT_TRY(keys_of_all(r, out->list, a[2], given(a[1]), &keys));
    return lt_jinja_sort(r, out->list, keys, given(a[0]));
}

FILTER(f_dictsort) {
    lt_jv *keys = NULL;
    const bool by_value = lt_jv_str_is(a[1], "value");
    UNUSED();
    if (self.kind != LT_JV_DICT) {
        LT_JFAIL(r, "dictsort does not take a %s", lt_jv_type(self));
    }
    LT_TRY(f_items(r, self, a, args, out));
    out->list->sub = LT_JLIST_LIST;
    LT_TRY(
        keys_of(r, out->list, LT_JV_OF_INT(by_value ? 1 : 0), LT_JV(ABSENT), given(a[0]), &keys));
    return lt_jinja_sort(r, out->list, keys, given(a[2]));
}

FILTER(f_unique) {
    lt_jlist *items = NULL;
    lt_jv *keys = NULL;
    UNUSED();
    LT_TRY(lt_jinja_iterate(r, self, &items));
    LT_TRY(keys_of(r, items, a[1], LT_JV(ABSENT), given(a[0]), &keys));
    LT_TRY(new_list(r, LT_JLIST_ITER, out));
    for (size_t i = 0; i < items->n; i++) {
        bool seen = false;
        LT_TRY(lt_jinja_steps(r, 1 + i / 8));
        if (lt_jv_unhashable(keys[i])) {
            LT_JFAIL(r, "unhashable type: '%s'", lt_jv_type(keys[i]));
        }
        for (size_t k = 0; k < i && !seen; k++) {
            seen = lt_jv_equal(keys[k], keys[i]);
        }
        if (!seen) {
            LT_TRY(lt_jv_push(&r->pool, out->list, items->v[i]));
        }
    }
    return LT_OK;
}

static lt_err extreme(lt_jrun *r, lt_jv self, const lt_jv *a, bool max, lt_jv *out) {
    lt_jlist *items = NULL;
    lt_jv *keys = NULL;
    size_t best = 0;
    LT_TRY(lt_jinja_iterate(r, self, &items));
    LT_TRY(keys_of(r, items, a[1], LT_JV(ABSENT), given(a[0]), &keys));
    *out = (lt_jv){.kind = LT_JV_UNDEF, .s = "an item of an empty sequence", .n = 28};
    for (size_t i = 1; i < items->n; i++) {
        bool better = false;
        LT_TRY(max ? lt_jinja_less(r, keys[best], keys[i], &better)
                   : lt_jinja_less(r, keys[i], keys[best], &better));
        best = better ? i : best;
    }
    if (items->n > 0) {
        *out = items->v[best];
    }
    return LT_OK;
}

FILTER(f_min) {
    UNUSED();
    return extreme(r, self, a, false, out);
}
FILTER(f_max) {
    UNUSED();
    return extreme(r, self, a, true, out);
}

FILTER(f_sum) {
    lt_jlist *items = NULL;
    UNUSED();
    LT_TRY(lt_jinja_iterate(r, self, &items));
    *out = a[1].kind == LT_JV_ABSENT ? LT_JV_OF_INT(0) : a[1];
    for (size_t i = 0; i < items->n; i++) {
        lt_jv v = items->v[i];
        if (a[0].kind != LT_JV_ABSENT && a[0].kind != LT_JV_NONE) {
            LT_TRY(attribute_of(r, items->v[i], a[0], LT_JV(ABSENT), &v));
        }
        LT_TRY(lt_jinja_binary(r, LT_OP_ADD, *out, v, out));
    }
    return LT_OK;
}

FILTER(f_batch) {
    lt_jlist *items = NULL;
    lt_jv row = LT_JV(NONE);
    UNUSED();
    if (a[0].kind != LT_JV_INT || a[0].i < 1) {
        LT_JFAIL(r, "batch() takes a positive number of items");
    }
    LT_TRY(lt_jinja_iterate(r, self, &items));
    LT_TRY(new_list(r, LT_JLIST_ITER, out));
    for (size_t i = 0; i < items->n; i++) {
        if (i % (size_t)a[0].i == 0) {
            LT_TRY(new_list(r, LT_JLIST_LIST, &row));
            LT_TRY(lt_jv_push(&r->pool, out->list, row));
        }
        LT_TRY(lt_jv_push(&r->pool, row.list, items->v[i]));
    }
    while (row.kind == LT_JV_LIST && a[1].kind != LT_JV_ABSENT && a[1].kind != LT_JV_NONE &&
           row.list->n < (size_t)a[0].i) {
        LT_TRY(lt_jinja_steps(r, 1));
        LT_TRY(lt_jv_push(&r->pool, row.list, a[1]));
    }
    return LT_OK;
}

FILTER(f_attr) {
    UNUSED();
    if (self.kind == LT_JV_UNDEF ||
        !(self.kind == LT_JV_NAMESPACE || lt_jinja_has_method(self, a[0]))) {
        *out = (lt_jv){.kind = LT_JV_UNDEF, .s = "an attribute", .n = 12};
        return LT_OK;
    }
    return lt_jinja_attr(r, self, a[0], out);
}

FILTER(f_groupby) {
    lt_jv sorted, *keys = NULL;
    UNUSED();
    LT_TRY(f_list(r, self, a, args, &sorted));
    LT_TRY(keys_of(r, sorted.list, a[0], a[1], given(a[2]), &keys));
    LT_TRY(lt_jinja_sort(r, sorted.list, keys, false));
    LT_TRY(keys_of(r, sorted.list, a[0], a[1], given(a[2]), &keys));
    LT_TRY(new_list(r, LT_JLIST_LIST, out));
    for (size_t i = 0; i < sorted.list->n; i++) {
        if (i == 0 || !lt_jv_equal(keys[i - 1], keys[i])) {
            lt_jv members = LT_JV(NONE), key = LT_JV(NONE), pair = LT_JV(NONE);
            LT_TRY(attribute_of(r, sorted.list->v[i], a[0], a[1], &key));
            LT_TRY(new_list(r, LT_JLIST_LIST, &members));
            LT_TRY(lt_jv_new_pair(&r->pool, key, members, &pair));
            pair.list->group = true;
            LT_TRY(lt_jv_push(&r->pool, out->list, pair));
        }
        LT_TRY(lt_jv_push(&r->pool, out->list->v[out->list->n - 1].list->v[1].list,
                          sorted.list->v[i]));
    }
    return LT_OK;
}

const lt_jbuiltin lt_jinja_list_filters[] = {
    {"attr", f_attr, "name", 1},
    {"batch", f_batch, "linecount fill_with", 1},
    {"count", f_length, "", 0},
    {"dictsort", f_dictsort, "case_sensitive by reverse", 0},
    {"first", f_first, "", 0},
    {"groupby", f_groupby, "attribute default case_sensitive", 1},
    {"items", f_items, "", 0},
    {"join", f_join, "d attribute", 0},
    {"last", f_last, "", 0},
    {"length", f_length, "", 0},
    {"list", f_list, "", 0},
    {"map", f_map, NULL, 0},
    {"max", f_max, "case_sensitive attribute", 0},
    {"min", f_min, "case_sensitive attribute", 0},
    {"reject", f_reject, NULL, 0},
    {"rejectattr", f_rejectattr, NULL, 0},
    {"reverse", f_reverse, "", 0},
    {"select", f_select, NULL, 0},
    {"selectattr", f_selectattr, NULL, 0},
    {"sort", f_sort, "reverse case_sensitive attribute", 0},
    {"sum", f_sum, "attribute start", 0},
    {"unique", f_unique, "case_sensitive attribute", 0},
    {NULL, NULL, NULL, 0}};
