/* jinja/ops.c: Python's operators on values. Integers have 64 bits; overflow is an error, because
 * longer integers are not supported. */
#include "data/jinja/jinja.h"

#include <math.h>
#include <string.h>

static lt_err type_error(lt_jrun *r, const char *op, lt_jv a, lt_jv b) {
    LT_JFAIL(r, "unsupported operand type(s) for %s: '%s' and '%s'", op, lt_jv_type(a),
             lt_jv_type(b));
}

static const char *const op_text[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static int64_t whole(lt_jv v) {
    return v.kind == LT_JV_BOOL ? (int64_t)v.b : v.i;
}

static lt_err power(lt_jrun *r, int64_t base, int64_t exponent, lt_jv *out) {
    int64_t x = 1;
    if (exponent < 0) {
        if (base == 0) {
            LT_JFAIL(r, "0 cannot be raised to a negative power");
        }
        *out = (lt_jv){.kind = LT_JV_FLOAT, .f = pow((double)base, (double)exponent)};
        return LT_OK;
    }
    if (base >= -1 && base <= 1) {
        *out = LT_JV_OF_INT(base == -1 && exponent % 2 == 0 ? 1 : exponent == 0 ? 1 : base);
        return LT_OK;
    }
    for (int64_t i = 0; i < exponent; i++) { /* It overflows after at most 63 steps. */
        if (__builtin_mul_overflow(x, base, &x)) {
            LT_JFAIL(r, "a whole number over 63 bits");
        }
    }
    *out = LT_JV_OF_INT(x);
    return LT_OK;
}

static lt_err int_op(lt_jrun *r, lt_jop op, int64_t a, int64_t b, lt_jv *out) {
    int64_t x = 0;
    bool over = false;
    if (b == 0 && (op == LT_OP_DIV || op == LT_OP_FLOORDIV || op == LT_OP_MOD)) {
        LT_JFAIL(r, "division by zero");
    }
    switch (op) {
    case LT_OP_ADD:
        over = __builtin_add_overflow(a, b, &x);
        break;
    case LT_OP_SUB:
        over = __builtin_sub_overflow(a, b, &x);
        break;
    case LT_OP_MUL:
        over = __builtin_mul_overflow(a, b, &x);
        break;
    case LT_OP_DIV:
        *out = (lt_jv){.kind = LT_JV_FLOAT, .f = (double)a / (double)b};
        return LT_OK;
    case LT_OP_POW:
        return power(r, a, b, out);
    case LT_OP_FLOORDIV:
        over = a == INT64_MIN && b == -1;
        x = over ? 0 : a / b - (a % b != 0 && (a % b < 0) != (b < 0));
        break;
    default: /* LT_OP_MOD: the sign of b, as in Python. */
        x = b == -1 ? 0 : a % b;
        x += x != 0 && (x < 0) != (b < 0) ? b : 0;
        break;
    }
    if (over) {
        LT_JFAIL(r, "a whole number over 63 bits");
    }
    *out = LT_JV_OF_INT(x);
    return LT_OK;
}

/* Python's a // b, rounded as there. */
static double floor_divided(double a, double b) {
    const double rest = fmod(a, b);
    const double exact = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1.0 : 0.0);
    const double whole = floor(exact);
    return copysign(exact - whole > 0.5 ? whole + 1 : whole, a / b);
}

static lt_err float_op(lt_jrun *r, lt_jop op, double a, double b, lt_jv *out) {
    double x;
    if (b == 0 && (op == LT_OP_DIV || op == LT_OP_FLOORDIV || op == LT_OP_MOD)) {
        LT_JFAIL(r, "float division by zero");
    }
    switch (op) {
    case LT_OP_ADD:
        x = a + b;
        break;
    case LT_OP_SUB:
        x = a - b;
        break;
    case LT_OP_MUL:
        x = a * b;
        break;
    case LT_OP_DIV:
        x = a / b;
        break;
    case LT_OP_POW:
        x = pow(a, b);
        break;
    default:
        x = fmod(a, b); /* As in Python, 0 has the sign of b, and a quotient of 0 that of a / b. */
        x = x == 0 ? copysign(0, b) : (x < 0) != (b < 0) ? x + b : x;
        if (op == LT_OP_FLOORDIV) {
            x = floor_divided(a, b);
        }
        break;
    }
    *out = (lt_jv){.kind = LT_JV_FLOAT, .f = x};
    return LT_OK;
}

static lt_err add_lists(lt_jrun *r, const lt_jlist *a, const lt_jlist *b, lt_jv *out) {
    LT_TRY(lt_jinja_steps(r, a->n + b->n));
    LT_TRY(lt_jv_new_list(&r->pool, a->sub, a->n + b->n, out));
    for (size_t i = 0; i < a->n; i++) {
        LT_TRY(lt_jv_push(&r->pool, out->list, a->v[i]));
    }
    for (size_t i = 0; i < b->n; i++) {
        LT_TRY(lt_jv_push(&r->pool, out->list, b->v[i]));
    }
    return LT_OK;
}

static lt_err repeat(lt_jrun *r, lt_jv v, int64_t times, lt_jv *out) {
    lt_jbuf b = {.pool = &r->pool};
    const size_t n = v.kind == LT_JV_STR ? v.n : v.list->n;
    times = times < 0 || n == 0 ? 0 : times;
    if (v.kind == LT_JV_STR) {
        for (int64_t i = 0; i < times; i++) {
            LT_TRY(lt_jinja_steps(r, 1 + n / 64));
            LT_TRY(lt_jbuf_put(&b, v.s, v.n));
        }
        *out = LT_JV_OF_STR(b.s, b.n);
        return LT_OK;
    }
    LT_TRY(lt_jv_new_list(&r->pool, v.list->sub, 0, out));
    for (int64_t i = 0; i < times; i++) {
        LT_TRY(lt_jinja_steps(r, n));
        for (size_t k = 0; k < n; k++) {
            LT_TRY(lt_jv_push(&r->pool, out->list, v.list->v[k]));
        }
    }
    return LT_OK;
}

static bool is_sequence(lt_jv v) {
    return v.kind == LT_JV_STR || (v.kind == LT_JV_LIST && v.list->sub <= LT_JLIST_TUPLE);
}

lt_err lt_jinja_binary(lt_jrun *r, lt_jop op, lt_jv a, lt_jv b, lt_jv *out) {
    if (a.kind == LT_JV_UNDEF || b.kind == LT_JV_UNDEF) {
        const lt_jv u = a.kind == LT_JV_UNDEF ? a : b;
        if (!(op == LT_OP_MOD && a.kind == LT_JV_STR)) {
            LT_JFAIL(r, "'%.*s' is undefined", (int)u.n, u.s);
        }
    }
    if (op == LT_OP_MOD && a.kind == LT_JV_STR) {
        return lt_jinja_percent(r, a, b, out);
    }
    if (lt_jv_is_int(a) && lt_jv_is_int(b)) {
        return int_op(r, op, whole(a), whole(b), out);
    }
    if (lt_jv_is_number(a) && lt_jv_is_number(b)) {
        return float_op(r, op, lt_jv_number(a), lt_jv_number(b), out);
    }
    if (op == LT_OP_ADD && a.kind == LT_JV_STR && b.kind == LT_JV_STR) {
        lt_jbuf text = {.pool = &r->pool};
        const bool markup = a.markup || b.markup;
        if (markup) {
            LT_TRY(lt_jinja_escape(r, a, &a));
            LT_TRY(lt_jinja_escape(r, b, &b));
        }
        LT_TRY(lt_jinja_steps(r, (a.n + b.n) / 64));
        LT_TRY(lt_jbuf_put(&text, a.s, a.n));
        LT_TRY(lt_jbuf_put(&text, b.s, b.n));
        *out = LT_JV_OF_STR(text.s, text.n);
        out->markup = markup;
        return LT_OK;
    }
    if (op == LT_OP_ADD && a.kind == LT_JV_LIST && b.kind == LT_JV_LIST && is_sequence(a) &&
        is_sequence(b) && a.list->sub == b.list->sub) {
        return add_lists(r, a.list, b.list, out);
    }
    if (op == LT_OP_MUL && is_sequence(a) && lt_jv_is_int(b)) {
        return repeat(r, a, whole(b), out);
    }
    if (op == LT_OP_MUL && is_sequence(b) && lt_jv_is_int(a)) {
        return repeat(r, b, whole(a), out);
    }
    return type_error(r, op_text[op], a, b);
}

lt_err lt_jinja_less(lt_jrun *r, lt_jv a, lt_jv b, bool *out) {
    LT_TRY(lt_jinja_steps(r, 1));
    if (lt_jv_is_number(a) && lt_jv_is_number(b)) {
        *out = lt_jv_is_int(a) && lt_jv_is_int(b) ? whole(a) < whole(b)
                                                  : lt_jv_number(a) < lt_jv_number(b);
        return LT_OK;
    }
    /* The order of UTF-8 bytes is that of the code points. */
    if (a.kind == LT_JV_STR && b.kind == LT_JV_STR) {
        const size_t n = a.n < b.n ? a.n : b.n;
        const int order = n > 0 ? memcmp(a.s, b.s, n) : 0;
        *out = order < 0 || (order == 0 && a.n < b.n);
        return LT_OK;
    }
    if (a.kind == LT_JV_LIST && b.kind == LT_JV_LIST && is_sequence(a) &&
        a.list->sub == b.list->sub) {
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++) {
            if (!lt_jv_equal(a.list->v[i], b.list->v[i])) {
                return lt_jinja_less(r, a.list->v[i], b.list->v[i], out);
            }
        }
        *out = a.list->n < b.list->n;
        return LT_OK;
    }
    if (a.kind == LT_JV_UNDEF || b.kind == LT_JV_UNDEF) {
        const lt_jv u = a.kind == LT_JV_UNDEF ? a : b;
        LT_JFAIL(r, "'%.*s' is undefined", (int)u.n, u.s);
    }
    LT_JFAIL(r, "'<' not supported between instances of '%s' and '%s'", lt_jv_type(a),
             lt_jv_type(b));
}

static lt_err contains(lt_jrun *r, lt_jv item, lt_jv in, bool *out) {
    lt_jlist *l = NULL;
    if (in.kind == LT_JV_STR) {
        if (item.kind != LT_JV_STR) {
            LT_JFAIL(r, "'in <string>' requires string as left operand, not %s", lt_jv_type(item));
        }
        LT_TRY(lt_jinja_steps(r, in.n / 16));
        *out = item.n == 0 || (in.n > 0 && memmem(in.s, in.n, item.s, item.n) != NULL);
        return LT_OK;
    }
    if (in.kind == LT_JV_DICT) {
        if (lt_jv_unhashable(item)) {
            LT_JFAIL(r, "unhashable type: '%s'", lt_jv_type(item));
        }
        LT_TRY(lt_jinja_steps(r, 1 + in.dict->n / 4));
        *out = lt_jv_get(in.dict, item) != NULL;
        return LT_OK;
    }
    LT_TRY(lt_jinja_iterate(r, in, &l));
    *out = false;
    for (size_t i = 0; i < l->n && !*out; i++) {
        *out = lt_jv_equal(l->v[i], item);
    }
    return LT_OK;
}

lt_err lt_jinja_compare(lt_jrun *r, lt_jop op, lt_jv a, lt_jv b, bool *out) {
    switch (op) {
    case LT_OP_EQ:
    case LT_OP_NE:
        *out = lt_jv_equal(a, b) == (op == LT_OP_EQ);
        return LT_OK;
    case LT_OP_LT:
        return lt_jinja_less(r, a, b, out);
    case LT_OP_GT:
        return lt_jinja_less(r, b, a, out);
    case LT_OP_LE:
    case LT_OP_GE:
        LT_TRY(op == LT_OP_LE ? lt_jinja_less(r, a, b, out) : lt_jinja_less(r, b, a, out));
        *out = *out || lt_jv_equal(a, b);
        return LT_OK;
    default:
        LT_TRY(contains(r, a, b, out));
        *out = *out == (op == LT_OP_IN);
        return LT_OK;
    }
}

/* ---- iteration, subscripts ---- */

static lt_err iterate_str(lt_jrun *r, lt_jv v, lt_jlist *l) {
    for (size_t i = 0; i < v.n;) {
        size_t end = i + 1;
        while (end < v.n && ((unsigned char)v.s[end] & 0xC0) == 0x80) {
            end++;
        }
        LT_TRY(lt_jv_push(&r->pool, l, LT_JV_OF_STR(v.s + i, end - i)));
        i = end;
    }
    return LT_OK;
}

lt_err lt_jinja_iterate(lt_jrun *r, lt_jv v, lt_jlist **out) {
    lt_jv list = LT_JV(NONE);
    if (v.kind == LT_JV_LIST && !(v.list->sub == LT_JLIST_ITER && v.list->spent)) {
        LT_TRY(lt_jinja_steps(r, v.list->n));
        v.list->spent = true;
        *out = v.list;
        return LT_OK;
    }
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_LIST, 0, &list));
    *out = list.list;
    switch (v.kind) {
    case LT_JV_LIST: /* An exhausted generator. */
    case LT_JV_UNDEF:
        return LT_OK;
    case LT_JV_STR:
        LT_TRY(lt_jinja_steps(r, v.n));
        return iterate_str(r, v, list.list);
    case LT_JV_DICT:
        LT_TRY(lt_jinja_steps(r, v.dict->n));
        for (size_t i = 0; i < v.dict->n; i++) {
            LT_TRY(lt_jv_push(&r->pool, list.list, v.dict->v[i].key));
        }
        return LT_OK;
    default:
        LT_JFAIL(r, "'%s' object is not iterable", lt_jv_type(v));
    }
}

static lt_err undefined_of(lt_jrun *r, lt_jv v, lt_jv name, lt_jv *out) {
    lt_jbuf b = {.pool = &r->pool};
    LT_TRY(lt_jbuf_puts(&b, lt_jv_type(v)));
    LT_TRY(lt_jbuf_puts(&b, " object."));
    LT_TRY(lt_jtext_str(r, &b, name));
    *out = (lt_jv){.kind = LT_JV_UNDEF, .s = b.s, .n = (uint32_t)b.n};
    return LT_OK;
}

static lt_err method_of(lt_jrun *r, lt_jv v, lt_jv name, lt_jv *out) {
    void *data;
    LT_TRY(lt_jpool_take(&r->pool, sizeof(lt_jmethod), &data));
    *(lt_jmethod *)data = (lt_jmethod){.self = v, .name = name.s, .n = name.n};
    *out = (lt_jv){.kind = LT_JV_METHOD, .method = data};
    return LT_OK;
}

static lt_err loop_attr(lt_jrun *r, lt_jv v, lt_jv name, lt_jv *out) {
    const lt_jloop *l = v.loop;
    const int64_t at = (int64_t)l->index, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        lt_jv value;
    } rows[] = {{"index", LT_JV_OF_INT(at + 1)},       {"index0", LT_JV_OF_INT(at)},
                {"revindex", LT_JV_OF_INT(n - at)},    {"revindex0", LT_JV_OF_INT(n - at - 1)},
                {"first", LT_JV_OF_BOOL(at == 0)},     {"last", LT_JV_OF_BOOL(at == n - 1)},
                {"length", LT_JV_OF_INT(n)},           {"depth", LT_JV_OF_INT(l->depth)},
                {"depth0", LT_JV_OF_INT(l->depth - 1)}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (lt_jv_str_is(name, rows[i].name)) {
            *out = rows[i].value;
            return LT_OK;
        }
    }
    if ((lt_jv_str_is(name, "previtem") && at > 0) ||
        (lt_jv_str_is(name, "nextitem") && at + 1 < n)) {
        *out = l->items->v[lt_jv_str_is(name, "previtem") ? at - 1 : at + 1];
        return LT_OK;
    }
    if (lt_jv_str_is(name, "cycle") || lt_jv_str_is(name, "changed")) {
        return method_of(r, v, name, out);
    }
    return undefined_of(r, v, name, out);
}

lt_err lt_jinja_attr(lt_jrun *r, lt_jv v, lt_jv name, lt_jv *out) {
    const lt_jv *found = NULL;
    LT_TRY(lt_jinja_steps(r, 1));
    if (v.kind == LT_JV_UNDEF) {
        LT_JFAIL(r, "'%.*s' is undefined", (int)v.n, v.s);
    }
    if (v.kind == LT_JV_LOOP) {
        return loop_attr(r, v, name, out);
    }
    if (v.kind == LT_JV_CYCLER && lt_jv_str_is(name, "current")) {
        *out = v.cycler->items->v[v.cycler->pos % v.cycler->items->n];
        return LT_OK;
    }
    if (v.kind == LT_JV_MACRO && lt_jv_str_is(name, "name")) {
        *out = v.macro->node->value;
        return LT_OK;
    }
    if (v.kind == LT_JV_MACRO && lt_jv_str_is(name, "arguments")) {
        LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_TUPLE, 0, out));
        for (const lt_jnode *p = v.macro->node->a; p != NULL; p = p->next) {
            LT_TRY(lt_jv_push(&r->pool, out->list, p->value));
        }
        return LT_OK;
    }
    if (v.kind == LT_JV_LIST && v.list->group &&
        (lt_jv_str_is(name, "grouper") || lt_jv_str_is(name, "list"))) {
        *out = v.list->v[lt_jv_str_is(name, "list") ? 1 : 0];
        return LT_OK;
    }
    if (lt_jinja_has_method(v, name)) {
        return method_of(r, v, name, out);
    }
    if (v.kind == LT_JV_DICT || v.kind == LT_JV_NAMESPACE) {
        found = lt_jv_get(v.dict, name);
    }
    if (found != NULL) {
        *out = *found;
        return LT_OK;
    }
    return undefined_of(r, v, name, out);
}

lt_err lt_jinja_item(lt_jrun *r, lt_jv v, lt_jv index, lt_jv *out) {
    LT_TRY(lt_jinja_steps(r, 1));
    if (v.kind == LT_JV_DICT) {
        const lt_jv *found = lt_jv_get(v.dict, index);
        if (found != NULL) {
            *out = *found;
            return LT_OK;
        }
    }
    if ((v.kind == LT_JV_STR || (v.kind == LT_JV_LIST && v.list->sub <= LT_JLIST_RANGE)) &&
        lt_jv_is_int(index)) {
        const size_t n = v.kind == LT_JV_STR ? lt_jtext_count(v.s, v.n) : v.list->n;
        int64_t at = whole(index);
        LT_TRY(lt_jinja_steps(r, v.kind == LT_JV_STR ? v.n / 16 : 0));
        at += at < 0 ? (int64_t)n : 0;
        if (at < 0 || at >= (int64_t)n) {
            return undefined_of(r, v, index, out);
        }
        if (v.kind == LT_JV_LIST) {
            *out = v.list->v[at];
        } else {
            const size_t from = lt_jtext_offset(v.s, v.n, (size_t)at);
            *out = LT_JV_OF_STR(v.s + from, lt_jtext_offset(v.s + from, v.n - from, 1));
        }
        return LT_OK;
    }
    if (index.kind == LT_JV_STR || v.kind == LT_JV_UNDEF) {
        return lt_jinja_attr(r, v, index, out);
    }
    return undefined_of(r, v, index, out);
}

/* Python's slice.indices(n). */
static lt_err slice_bounds(lt_jrun *r, const lt_jv part[3], int64_t n, int64_t *start,
                           int64_t *stop, int64_t *step) {
    int64_t low, high;
    for (int i = 0; i < 3; i++) {
        if (part[i].kind != LT_JV_NONE && !lt_jv_is_int(part[i])) {
            LT_JFAIL(r, "slice indices must be integers or None, not %s", lt_jv_type(part[i]));
        }
    }
    *step = part[2].kind == LT_JV_NONE ? 1 : whole(part[2]);
    if (*step == 0) {
        LT_JFAIL(r, "slice step cannot be zero");
    }
    *step = *step < -n - 1 ? -n - 1 : *step > n + 1 ? n + 1 : *step;
    low = *step < 0 ? -1 : 0;
    high = *step < 0 ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        int64_t x = i == 0 ? (*step < 0 ? high : low) : (*step < 0 ? low : high);
        if (part[i].kind != LT_JV_NONE) {
            x = whole(part[i]);
            x = x < 0 ? (x < -n ? -n - 1 : x) + n : x;
            x = x < low ? low : x > high ? high : x;
        }
        *(i == 0 ? start : stop) = x;
    }
    return LT_OK;
}

lt_err lt_jinja_slice(lt_jrun *r, lt_jv v, const lt_jv part[3], lt_jv *out) {
    lt_jlist *items = NULL;
    lt_jv list;
    lt_jbuf text = {.pool = &r->pool};
    int64_t start, stop, step;

    if (v.kind == LT_JV_UNDEF) {
        LT_JFAIL(r, "'%.*s' is undefined", (int)v.n, v.s);
    }
    if (v.kind != LT_JV_STR && !(v.kind == LT_JV_LIST && v.list->sub <= LT_JLIST_RANGE)) {
        LT_JFAIL(r, "'%s' object is not subscriptable", lt_jv_type(v));
    }
    /* The common case without a list of characters. */
    if (v.kind == LT_JV_STR && part[2].kind == LT_JV_NONE) {
        size_t from, to;
        LT_TRY(lt_jinja_steps(r, v.n / 16));
        LT_TRY(slice_bounds(r, part, (int64_t)lt_jtext_count(v.s, v.n), &start, &stop, &step));
        from = lt_jtext_offset(v.s, v.n, (size_t)start);
        to = stop <= start ? from : lt_jtext_offset(v.s, v.n, (size_t)stop);
        *out = LT_JV_OF_STR(v.s + from, to - from);
        return LT_OK;
    }
    LT_TRY(lt_jinja_iterate(r, v, &items));
    LT_TRY(slice_bounds(r, part, (int64_t)items->n, &start, &stop, &step));
    LT_TRY(lt_jv_new_list(&r->pool,
                          v.kind == LT_JV_LIST && v.list->sub == LT_JLIST_TUPLE ? LT_JLIST_TUPLE
                                                                                : LT_JLIST_LIST,
                          0, &list));
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
        if (v.kind == LT_JV_STR) {
            LT_TRY(lt_jbuf_put(&text, items->v[i].s, items->v[i].n));
        } else {
            LT_TRY(lt_jv_push(&r->pool, list.list, items->v[i]));
        }
    }
    *out = v.kind == LT_JV_STR ? LT_JV_OF_STR(text.s, text.n) : list;
    return LT_OK;
}

/* Sort items by keys (NULL: by themselves) with a stable merge sort; equal items keep their order
 * even if reversed, as in Python. */
lt_err lt_jinja_sort(lt_jrun *r, lt_jlist *items, const lt_jv *keys, bool reverse) {
    const size_t n = items->n;
    lt_jpair *a, *b;
    void *data;
    LT_TRY(lt_jpool_take(&r->pool, (2 * n + 1) * sizeof *a, &data));
    a = data;
    b = a + n;
    for (size_t i = 0; i < n; i++) {
        a[i] = (lt_jpair){keys != NULL ? keys[i] : items->v[i], items->v[i]};
    }
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t from = 0; from < n; from += 2 * width) {
            const size_t mid = from + width < n ? from + width : n;
            const size_t end = mid + width < n ? mid + width : n;
            size_t i = from, j = mid;
            for (size_t k = from; k < end; k++) {
                bool second = i == mid;
                if (i < mid && j < end) {
                    LT_TRY(reverse ? lt_jinja_less(r, a[i].key, a[j].key, &second)
                                   : lt_jinja_less(r, a[j].key, a[i].key, &second));
                }
                b[k] = second ? a[j++] : a[i++];
            }
        }
        lt_jpair *swap = a;
        a = b;
        b = swap;
    }
    for (size_t i = 0; i < n; i++) {
        items->v[i] = a[i].value;
    }
    return LT_OK;
}
