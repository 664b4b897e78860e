/* jinja/value.c: the pool, and Python's values as templates see them. */
#include "data/jinja/jinja.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* ---- pool: chunks of at least 32 KiB, each after a header ---- */

#define CHUNK_BYTES ((size_t)32 << 10)

struct lt_jchunk {
    lt_jchunk *before;
    size_t used, room;
    _Alignas(16) unsigned char data[];
};

lt_err lt_jpool_take(lt_jpool *p, size_t bytes, void **out) {
    lt_jchunk *c = p->last;
    bytes = (bytes + 7) & ~(size_t)7;
    if (c == NULL || c->room - c->used < bytes) {
        const size_t room = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
        if (bytes > p->limit_bytes || p->used_bytes + room > p->limit_bytes) {
            LT_FAIL(LT_ERR_LIMIT, "template: needs more than %zu bytes", p->limit_bytes);
        }
        c = calloc(1, sizeof *c + room);
        if (c == NULL) {
            LT_FAIL(LT_ERR_OOM, "template: %zu bytes", room);
        }
        c->before = p->last;
        c->room = room;
        p->last = c;
        p->used_bytes += room;
    }
    *out = c->data + c->used;
    c->used += bytes;
    return LT_OK;
}

lt_err lt_jpool_grow(lt_jpool *p, void **data, size_t old_bytes, size_t new_bytes) {
    lt_jchunk *c = p->last;
    const size_t old = (old_bytes + 7) & ~(size_t)7, wanted = (new_bytes + 7) & ~(size_t)7;
    void *fresh;

    LT_ASSERT(new_bytes >= old_bytes);
    /* The last allocation can grow in place. */
    if (c != NULL && *data != NULL && (unsigned char *)*data + old == c->data + c->used &&
        c->room - c->used >= wanted - old) {
        c->used += wanted - old;
        return LT_OK;
    }
    LT_TRY(lt_jpool_take(p, new_bytes, &fresh));
    if (old_bytes > 0) {
        memcpy(fresh, *data, old_bytes);
    }
    *data = fresh;
    return LT_OK;
}

void lt_jpool_free(lt_jpool *p) {
    while (p->last != NULL) {
        lt_jchunk *before = p->last->before;
        free(p->last);
        p->last = before;
    }
    p->used_bytes = 0;
}

lt_err lt_jbuf_put(lt_jbuf *b, const char *s, size_t n) {
    if (n > b->room - b->n) {
        void *data = b->s;
        size_t room = b->room < 64 ? 64 : b->room * 2;
        room = room < b->n + n ? b->n + n : room;
        if (room > UINT32_MAX) {
            LT_FAIL(LT_ERR_LIMIT, "template: a text of %zu bytes", room);
        }
        LT_TRY(lt_jpool_grow(b->pool, &data, b->n, room));
        b->s = data;
        b->room = room;
    }
    if (n > 0) {
        memcpy(b->s + b->n, s, n);
        b->n += n;
    }
    return LT_OK;
}

lt_err lt_jbuf_puts(lt_jbuf *b, const char *s) {
    return lt_jbuf_put(b, s, strlen(s));
}

/* ---- properties ---- */

bool lt_jv_is_int(lt_jv v) {
    return v.kind == LT_JV_INT || v.kind == LT_JV_BOOL;
}

bool lt_jv_is_number(lt_jv v) {
    return lt_jv_is_int(v) || v.kind == LT_JV_FLOAT || v.kind == LT_JV_LONG;
}

double lt_jv_number(lt_jv v) {
    switch (v.kind) {
    case LT_JV_FLOAT:
        return v.f;
    case LT_JV_LONG:
        return strtod(v.s, NULL); /* The digits are a whole string of JSON, which ends with 0. */
    case LT_JV_BOOL:
        return v.b ? 1.0 : 0.0;
    default:
        return (double)v.i;
    }
}

bool lt_jv_is_iterable(lt_jv v) {
    return v.kind == LT_JV_STR || v.kind == LT_JV_LIST || v.kind == LT_JV_DICT ||
           v.kind == LT_JV_UNDEF || v.kind == LT_JV_LOOP;
}

bool lt_jv_str_is(lt_jv v, const char *text) {
    return v.kind == LT_JV_STR && v.n == strlen(text) && memcmp(v.s, text, v.n) == 0;
}

bool lt_jv_truth(lt_jv v) {
    switch (v.kind) {
    case LT_JV_BOOL:
        return v.b;
    case LT_JV_INT:
        return v.i != 0;
    case LT_JV_FLOAT:
        return v.f != 0.0;
    case LT_JV_STR:
        return v.n > 0;
    case LT_JV_LIST:
        return v.list->sub == LT_JLIST_ITER || v.list->n > 0;
    case LT_JV_DICT:
        return v.dict->n > 0;
    case LT_JV_ABSENT:
    case LT_JV_UNDEF:
    case LT_JV_NONE:
        return false;
    default:
        return true;
    }
}

const char *lt_jv_type(lt_jv v) {
    static const char *const names[] = {
        [LT_JV_ABSENT] = "nothing",  [LT_JV_UNDEF] = "Undefined",  [LT_JV_NONE] = "NoneType",
        [LT_JV_BOOL] = "bool",       [LT_JV_INT] = "int",          [LT_JV_FLOAT] = "float",
        [LT_JV_LONG] = "int",        [LT_JV_STR] = "str",          [LT_JV_LIST] = "list",
        [LT_JV_DICT] = "dict",       [LT_JV_MACRO] = "Macro",      [LT_JV_METHOD] = "method",
        [LT_JV_GLOBAL] = "function", [LT_JV_LOOP] = "LoopContext", [LT_JV_NAMESPACE] = "Namespace",
        [LT_JV_CYCLER] = "Cycler",   [LT_JV_JOINER] = "Joiner"};
    if (v.kind == LT_JV_LIST) {
        switch (v.list->sub) {
        case LT_JLIST_LIST:
            break;
        case LT_JLIST_TUPLE:
            return "tuple";
        case LT_JLIST_RANGE:
            return "range";
        case LT_JLIST_ITER:
        case LT_JLIST_VIEW:
            return v.list->what;
        }
    }
    return names[v.kind];
}

bool lt_jv_unhashable(lt_jv v) {
    if (v.kind == LT_JV_LIST && v.list->sub == LT_JLIST_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++) {
            if (lt_jv_unhashable(v.list->v[i])) {
                return true;
            }
        }
        return false;
    }
    return v.kind == LT_JV_DICT || (v.kind == LT_JV_LIST && v.list->sub == LT_JLIST_LIST);
}

static bool numbers_equal(lt_jv a, lt_jv b) {
    if (a.kind == LT_JV_LONG && b.kind == LT_JV_LONG) {
        return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    }
    if (lt_jv_is_int(a) && lt_jv_is_int(b)) {
        return (a.kind == LT_JV_BOOL ? (int64_t)a.b : a.i) ==
               (b.kind == LT_JV_BOOL ? (int64_t)b.b : b.i);
    }
    return lt_jv_number(a) == lt_jv_number(b);
}

static bool dicts_equal(const lt_jdict *a, const lt_jdict *b) {
    if (a->n != b->n) {
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        const lt_jv *other = lt_jv_get(b, a->v[i].key);
        if (other == NULL || !lt_jv_equal(a->v[i].value, *other)) {
            return false;
        }
    }
    return true;
}

/* It ends, because values have no cycles and are not deeper than the JSON or tree they come
 * from. */
bool lt_jv_equal(lt_jv a, lt_jv b) {
    if (lt_jv_is_number(a) && lt_jv_is_number(b)) {
        return numbers_equal(a, b);
    }
    if (a.kind != b.kind) {
        return false;
    }
    switch (a.kind) {
    case LT_JV_ABSENT:
    case LT_JV_UNDEF:
    case LT_JV_NONE:
        return true;
    case LT_JV_STR:
        return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
    case LT_JV_LIST:
        if (a.list == b.list) {
            return true;
        }
        if (a.list->sub != b.list->sub || a.list->n != b.list->n || a.list->sub == LT_JLIST_ITER) {
            return false;
        }
        for (size_t i = 0; i < a.list->n; i++) {
            if (!lt_jv_equal(a.list->v[i], b.list->v[i])) {
                return false;
            }
        }
        return true;
    case LT_JV_DICT:
        return a.dict == b.dict || dicts_equal(a.dict, b.dict);
    case LT_JV_METHOD:
        return a.method->n == b.method->n && a.method->name == b.method->name &&
               lt_jv_equal(a.method->self, b.method->self);
    case LT_JV_GLOBAL:
        return a.global == b.global;
    default:
        return a.s == b.s; /* They are equal only if they are the same object. */
    }
}

/* ---- constructors ---- */

lt_err lt_jv_copy_str(lt_jpool *p, const char *s, size_t n, lt_jv *out) {
    void *data;
    LT_ASSERT(n <= UINT32_MAX);
    LT_TRY(lt_jpool_take(p, n + 1, &data));
    if (n > 0) {
        memcpy(data, s, n);
    }
    *out = LT_JV_OF_STR(data, n);
    return LT_OK;
}

lt_err lt_jv_new_list(lt_jpool *p, lt_jlist_sub sub, size_t room, lt_jv *out) {
    void *l, *v = NULL;
    LT_TRY(lt_jpool_take(p, sizeof(lt_jlist), &l));
    if (room > 0) {
        LT_TRY(lt_jpool_take(p, room * sizeof(lt_jv), &v));
    }
    *(lt_jlist *)l = (lt_jlist){.v = v, .room = room, .sub = sub, .what = "generator"};
    *out = (lt_jv){.kind = LT_JV_LIST, .list = l};
    return LT_OK;
}

lt_err lt_jv_push(lt_jpool *p, lt_jlist *l, lt_jv v) {
    if (l->n == l->room) {
        const size_t room = l->room < 4 ? 4 : l->room * 2;
        void *data = l->v;
        LT_TRY(lt_jpool_grow(p, &data, l->n * sizeof *l->v, room * sizeof *l->v));
        l->v = data;
        l->room = room;
    }
    l->v[l->n++] = v;
    return LT_OK;
}

lt_err lt_jv_new_pair(lt_jpool *p, lt_jv a, lt_jv b, lt_jv *out) {
    LT_TRY(lt_jv_new_list(p, LT_JLIST_TUPLE, 2, out));
    LT_TRY(lt_jv_push(p, out->list, a));
    return lt_jv_push(p, out->list, b);
}

lt_err lt_jv_new_dict(lt_jpool *p, lt_jv *out) {
    void *d;
    LT_TRY(lt_jpool_take(p, sizeof(lt_jdict), &d));
    *out = (lt_jv){.kind = LT_JV_DICT, .dict = d};
    return LT_OK;
}

lt_err lt_jv_set(lt_jpool *p, lt_jdict *d, lt_jv key, lt_jv value) {
    lt_jv *old = (lt_jv *)(uintptr_t)lt_jv_get(d, key);
    if (old != NULL) {
        *old = value;
        return LT_OK;
    }
    if (d->n == d->room) {
        const size_t room = d->room < 4 ? 4 : d->room * 2;
        void *data = d->v;
        LT_TRY(lt_jpool_grow(p, &data, d->n * sizeof *d->v, room * sizeof *d->v));
        d->v = data;
        d->room = room;
    }
    d->v[d->n++] = (lt_jpair){key, value};
    return LT_OK;
}

const lt_jv *lt_jv_get(const lt_jdict *d, lt_jv key) {
    for (size_t i = 0; i < d->n; i++) {
        if (lt_jv_equal(d->v[i].key, key)) {
            return &d->v[i].value;
        }
    }
    return NULL;
}

const lt_jv *lt_jv_get_str(const lt_jdict *d, const char *key) {
    return lt_jv_get(d, LT_JV_OF_STR(key, strlen(key)));
}

/* Strings point into the JSON value, which outlives the render. The recursion is as deep as
 * jansson's parser allows. */
lt_err lt_jv_from_json(lt_jpool *p, const json_t *j, lt_jv *out) {
    const char *key, *text;
    const json_t *value;
    lt_jv item;

    switch (json_typeof(j)) {
    case JSON_OBJECT:
        LT_TRY(lt_jv_new_dict(p, out));
        json_object_foreach((json_t *)(uintptr_t)j, key, value) {
            LT_TRY(lt_jv_from_json(p, value, &item));
            /* Keys of an object are distinct, so no search is needed. */
            if (out->dict->n == out->dict->room) {
                const size_t room = out->dict->room < 4 ? 4 : out->dict->room * 2;
                void *data = out->dict->v;
                LT_TRY(lt_jpool_grow(p, &data, out->dict->n * sizeof(lt_jpair),
                                     room * sizeof(lt_jpair)));
                out->dict->v = data;
                out->dict->room = room;
            }
            out->dict->v[out->dict->n++] = (lt_jpair){LT_JV_OF_STR(key, strlen(key)), item};
        }
        return LT_OK;
    case JSON_ARRAY:
        LT_TRY(lt_jv_new_list(p, LT_JLIST_LIST, json_array_size(j), out));
        for (size_t i = 0; i < json_array_size(j); i++) {
            LT_TRY(lt_jv_from_json(p, json_array_get(j, i), &item));
            LT_TRY(lt_jv_push(p, out->list, item));
        }
        return LT_OK;
    case JSON_STRING:
        text = lt_json_long(j);
        if (text != NULL) {
            *out = (lt_jv){.kind = LT_JV_LONG, .s = text, .n = (uint32_t)strlen(text)};
            return LT_OK;
        }
        if (json_string_length(j) > UINT32_MAX) {
            LT_FAIL(LT_ERR_LIMIT, "template: a text of %zu bytes", json_string_length(j));
        }
        *out = LT_JV_OF_STR(json_string_value(j), json_string_length(j));
        return LT_OK;
    case JSON_INTEGER:
        *out = LT_JV_OF_INT(json_integer_value(j));
        return LT_OK;
    case JSON_REAL:
        *out = (lt_jv){.kind = LT_JV_FLOAT, .f = json_real_value(j)};
        return LT_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = LT_JV_OF_BOOL(json_is_true(j));
        return LT_OK;
    case JSON_NULL:
        break;
    }
    *out = LT_JV(NONE);
    return LT_OK;
}
