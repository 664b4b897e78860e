/* jinja/eval.c: expressions and statements of a tree, evaluated by walking it; depth is bounded by
 * LT_JINJA_EVAL_DEPTH.
 *
 * SCOPES   a chain of small tables. The body of an `if` shares the surrounding scope. Loop bodies
 *          (each iteration), macros, blocks and `with` have their own, so that a variable set
 *          inside does not leak out, as in Jinja. A macro sees the scope it was defined in, in
 *          its state at the time of the call. */
#include "data/jinja/jinja.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void lt_jinja_fail(const lt_jrun *r, const char *fmt, ...) {
    char text[700];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    lt_error_set(LT_ERR_ARG, "%s:%d: %s", r->name, r->line, text);
}

lt_err lt_jinja_steps(lt_jrun *r, size_t n) {
    r->steps += (int64_t)n;
    if (r->steps > LT_JINJA_STEPS) {
        LT_FAIL(LT_ERR_LIMIT, "%s:%d: more than %d steps", r->name, r->line, LT_JINJA_STEPS);
    }
    return LT_OK;
}

lt_err lt_jinja_enter(lt_jrun *r) {
    if (r->depth >= LT_JINJA_EVAL_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "%s:%d: nested deeper than %d", r->name, r->line,
                LT_JINJA_EVAL_DEPTH);
    }
    r->depth++;
    return LT_OK;
}

/* ---- scopes ---- */

static lt_jv *scope_get(const lt_jscope *s, lt_jv name) {
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].name.n == name.n && memcmp(s->v[i].name.s, name.s, name.n) == 0) {
            return &s->v[i].value;
        }
    }
    return NULL;
}

lt_jv lt_jscope_find(const lt_jscope *s, lt_jv name) {
    for (; s != NULL; s = s->parent) {
        const lt_jv *v = scope_get(s, name);
        if (v != NULL) {
            return *v;
        }
    }
    return (lt_jv){.kind = LT_JV_UNDEF, .s = name.s, .n = name.n};
}

lt_err lt_jscope_set(lt_jrun *r, lt_jscope *s, lt_jv name, lt_jv value) {
    lt_jv *old = scope_get(s, name);
    if (old != NULL) {
        *old = value;
        return LT_OK;
    }
    if (s->n == s->room) {
        const size_t room = s->room == 0 ? 4 : s->room * 2;
        void *data = s->v;
        LT_TRY(lt_jpool_grow(&r->pool, &data, s->n * sizeof *s->v, room * sizeof *s->v));
        s->v = data;
        s->room = room;
    }
    s->v[s->n++] = (lt_jvar){name, value};
    return LT_OK;
}

lt_err lt_jscope_open(lt_jrun *r, lt_jscope *parent, lt_jscope **out) {
    void *data;
    LT_TRY(lt_jpool_take(&r->pool, sizeof(lt_jscope), &data));
    *out = data;
    (*out)->parent = parent;
    return LT_OK;
}

/* ---- expressions ---- */

static lt_err eval_list(lt_jrun *r, lt_jscope *s, const lt_jnode *items, lt_jlist_sub sub,
                        lt_jv *out) {
    lt_jv v;
    LT_TRY(lt_jv_new_list(&r->pool, sub, 0, out));
    for (; items != NULL; items = items->next) {
        LT_TRY(lt_jinja_eval(r, s, items, &v));
        LT_TRY(lt_jv_push(&r->pool, out->list, v));
    }
    return LT_OK;
}

static lt_err eval_dict(lt_jrun *r, lt_jscope *s, const lt_jnode *items, lt_jv *out) {
    lt_jv key, value;
    LT_TRY(lt_jv_new_dict(&r->pool, out));
    for (; items != NULL; items = items->next->next) {
        LT_TRY(lt_jinja_eval(r, s, items, &key));
        LT_TRY(lt_jinja_eval(r, s, items->next, &value));
        if (lt_jv_unhashable(key)) {
            LT_JFAIL(r, "unhashable type: '%s'", lt_jv_type(key));
        }
        LT_TRY(lt_jinja_steps(r, 1 + out->dict->n / 4));
        LT_TRY(lt_jv_set(&r->pool, out->dict, key, value));
    }
    return LT_OK;
}

static lt_err eval_compare(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv left, right;
    bool is = true;
    LT_TRY(lt_jinja_eval(r, s, e->a, &left));
    for (const lt_jnode *o = e->b; o != NULL && is; o = o->next) {
        LT_TRY(lt_jinja_eval(r, s, o->a, &right));
        LT_TRY(lt_jinja_compare(r, (lt_jop)o->op, left, right, &is));
        left = right;
    }
    *out = LT_JV_OF_BOOL(is);
    return LT_OK;
}

static lt_err eval_concat(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv text = LT_JV(NONE), v = LT_JV(NONE);
    lt_jbuf b = {.pool = &r->pool};
    LT_TRY(eval_list(r, s, e->a, LT_JLIST_LIST, &text));
    for (size_t i = 0; i < text.list->n; i++) {
        v = text.list->v[i];
        LT_TRY(lt_jtext_str(r, &b, v));
    }
    *out = LT_JV_OF_STR(b.s, b.n);
    return LT_OK;
}

static lt_err eval_sign(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv v;
    LT_TRY(lt_jinja_eval(r, s, e->a, &v));
    if (!lt_jv_is_number(v)) {
        LT_JFAIL(r, "bad operand type for unary %c: '%s'", e->kind == LT_NODE_NEG ? '-' : '+',
                 lt_jv_type(v));
    }
    if (!lt_jv_is_int(v)) {
        const double x = lt_jv_number(v);
        *out = (lt_jv){.kind = LT_JV_FLOAT, .f = e->kind == LT_NODE_NEG ? -x : x};
        return LT_OK;
    }
    return lt_jinja_binary(r, e->kind == LT_NODE_NEG ? LT_OP_SUB : LT_OP_ADD, LT_JV_OF_INT(0), v,
                           out);
}

static lt_err eval_item(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv object, part[3] = {LT_JV(NONE), LT_JV(NONE), LT_JV(NONE)};
    LT_TRY(lt_jinja_eval(r, s, e->a, &object));
    if (e->b->kind != LT_NODE_SLICE) {
        LT_TRY(lt_jinja_eval(r, s, e->b, &part[0]));
        r->line = e->line;
        return lt_jinja_item(r, object, part[0], out);
    }
    for (int i = 0; i < 3; i++) {
        const lt_jnode *p = i == 0 ? e->b->a : i == 1 ? e->b->b : e->b->c;
        if (p != NULL) {
            LT_TRY(lt_jinja_eval(r, s, p, &part[i]));
        }
    }
    return lt_jinja_slice(r, object, part, out);
}

static lt_err push_keywords(lt_jrun *r, lt_jv from, lt_jdict *to) {
    if (from.kind != LT_JV_DICT) {
        LT_JFAIL(r, "argument after ** must be a mapping, not %s", lt_jv_type(from));
    }
    for (size_t i = 0; i < from.dict->n; i++) {
        LT_TRY(lt_jv_set(&r->pool, to, from.dict->v[i].key, from.dict->v[i].value));
    }
    return LT_OK;
}

lt_err lt_jinja_eval_args(lt_jrun *r, lt_jscope *s, const lt_jnode *args, lt_jargs *out) {
    lt_jv pos = LT_JV(NONE), kw = LT_JV(NONE), v = LT_JV(NONE);
    lt_jlist *more = NULL;
    *out = (lt_jargs){0};
    if (args == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_LIST, 0, &pos));
    LT_TRY(lt_jv_new_dict(&r->pool, &kw));
    for (; args != NULL; args = args->next) {
        LT_TRY(lt_jinja_eval(r, s, args->a, &v));
        if (args->op == LT_ARG_POS) {
            LT_TRY(lt_jv_push(&r->pool, pos.list, v));
        } else if (args->op == LT_ARG_KEYWORD) {
            LT_TRY(lt_jv_set(&r->pool, kw.dict, args->value, v));
        } else if (args->op == LT_ARG_STARSTAR) {
            LT_TRY(push_keywords(r, v, kw.dict));
        } else {
            LT_TRY(lt_jinja_iterate(r, v, &more));
            for (size_t i = 0; i < more->n; i++) {
                LT_TRY(lt_jv_push(&r->pool, pos.list, more->v[i]));
            }
        }
    }
    *out = (lt_jargs){pos.list->v, pos.list->n, kw.dict->v, kw.dict->n};
    return LT_OK;
}

static lt_err eval_call(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv callee;
    lt_jargs args;
    LT_TRY(lt_jinja_eval(r, s, e->a, &callee));
    LT_TRY(lt_jinja_eval_args(r, s, e->b, &args));
    r->line = e->line;
    return lt_jinja_call(r, callee, &args, out);
}

static lt_err eval_filter(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv self = r->block_text;
    lt_jargs args;
    if (e->kind == LT_NODE_TEST || e->a != NULL) {
        LT_TRY(lt_jinja_eval(r, s, e->a, &self));
    }
    LT_TRY(lt_jinja_eval_args(r, s, e->b, &args));
    r->line = e->line;
    if (e->kind == LT_NODE_TEST) {
        bool is = false;
        LT_TRY(lt_jinja_test(r, e->value, self, &args, &is));
        *out = LT_JV_OF_BOOL(is);
        return LT_OK;
    }
    return lt_jinja_filter(r, e->value, self, &args, out);
}

static lt_err eval_logic(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv v = LT_JV(NONE);
    LT_TRY(lt_jinja_eval(r, s, e->a, &v));
    switch (e->kind) {
    case LT_NODE_NOT:
        *out = LT_JV_OF_BOOL(!lt_jv_truth(v));
        return LT_OK;
    case LT_NODE_AND:
    case LT_NODE_OR:
        if (lt_jv_truth(v) == (e->kind == LT_NODE_OR)) {
            *out = v;
            return LT_OK;
        }
        return lt_jinja_eval(r, s, e->b, out);
    default: /* COND */
        if (lt_jv_truth(v)) {
            return lt_jinja_eval(r, s, e->b, out);
        }
        if (e->c != NULL) {
            return lt_jinja_eval(r, s, e->c, out);
        }
        *out = (lt_jv){.kind = LT_JV_UNDEF, .s = "the else of an inline if", .n = 24};
        return LT_OK;
    }
}

static lt_err eval_node(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_jv a, b;
    switch (e->kind) {
    case LT_NODE_CONST:
        *out = e->value;
        return LT_OK;
    case LT_NODE_NAME:
        *out = lt_jscope_find(s, e->value);
        if (out->kind == LT_JV_UNDEF && scope_get(r->globals, e->value) == NULL) {
            lt_jinja_find_global(e->value, out);
        }
        return LT_OK;
    case LT_NODE_TUPLE:
        return eval_list(r, s, e->a, LT_JLIST_TUPLE, out);
    case LT_NODE_LIST:
        return eval_list(r, s, e->a, LT_JLIST_LIST, out);
    case LT_NODE_DICT:
        return eval_dict(r, s, e->a, out);
    case LT_NODE_COND:
    case LT_NODE_AND:
    case LT_NODE_OR:
    case LT_NODE_NOT:
        return eval_logic(r, s, e, out);
    case LT_NODE_NEG:
    case LT_NODE_POS:
        return eval_sign(r, s, e, out);
    case LT_NODE_BINARY:
        LT_TRY(lt_jinja_eval(r, s, e->a, &a));
        LT_TRY(lt_jinja_eval(r, s, e->b, &b));
        r->line = e->line;
        return lt_jinja_binary(r, (lt_jop)e->op, a, b, out);
    case LT_NODE_CONCAT:
        return eval_concat(r, s, e, out);
    case LT_NODE_COMPARE:
        return eval_compare(r, s, e, out);
    case LT_NODE_ATTR:
        LT_TRY(lt_jinja_eval(r, s, e->a, &a));
        r->line = e->line;
        return lt_jinja_attr(r, a, e->value, out);
    case LT_NODE_ITEM:
        return eval_item(r, s, e, out);
    case LT_NODE_CALL:
        return eval_call(r, s, e, out);
    case LT_NODE_FILTER:
    case LT_NODE_TEST:
        return eval_filter(r, s, e, out);
    default:
        LT_JFAIL(r, "this is not an expression");
    }
}

lt_err lt_jinja_eval(lt_jrun *r, lt_jscope *s, const lt_jnode *e, lt_jv *out) {
    lt_err err;
    LT_TRY(lt_jinja_enter(r));
    err = lt_jinja_steps(r, 1);
    if (err == LT_OK) {
        r->line = e->line;
        err = eval_node(r, s, e, out);
    }
    r->depth--;
    return err;
}

/* ---- calls ---- */

lt_err lt_jinja_call(lt_jrun *r, lt_jv callee, const lt_jargs *args, lt_jv *out) {
    switch (callee.kind) {
    case LT_JV_MACRO:
        return lt_jinja_call_macro(r, callee.macro, args, out);
    case LT_JV_METHOD:
        return lt_jinja_call_method(r, callee.method, args, out);
    case LT_JV_GLOBAL:
        return lt_jinja_call_global(r, callee.global, args, out);
    case LT_JV_JOINER:
        *out = callee.cycler->pos++ == 0 ? LT_JV_OF_STR("", 0) : callee.cycler->items->v[0];
        return LT_OK;
    case LT_JV_UNDEF:
        LT_JFAIL(r, "'%.*s' is undefined", (int)callee.n, callee.s);
    default:
        LT_JFAIL(r, "'%s' object is not callable", lt_jv_type(callee));
    }
}

static const lt_jv *find_keyword(const lt_jargs *args, lt_jv name) {
    for (size_t i = 0; i < args->n_kw; i++) {
        if (lt_jv_equal(args->kw[i].key, name)) {
            return &args->kw[i].value;
        }
    }
    return NULL;
}

/* Whether the nodes read a variable. */
static bool mentions(const lt_jnode *n, const char *name) {
    for (; n != NULL; n = n->next) {
        if ((n->kind == LT_NODE_NAME && lt_jv_str_is(n->value, name)) || mentions(n->a, name) ||
            mentions(n->b, name) || mentions(n->c, name) || mentions(n->d, name) ||
            mentions(n->e, name)) {
            return true;
        }
    }
    return false;
}

/* Arguments become variables of the macro's scope; the remaining ones become varargs, kwargs and
 * caller, and are errors if the macro does not read these. */
static lt_err bind_macro(lt_jrun *r, const lt_jmacro *m, const lt_jargs *args, lt_jscope *s) {
    lt_jv varargs = LT_JV(NONE), kwargs = LT_JV(NONE);
    size_t n = 0;
    for (const lt_jnode *p = m->node->a; p != NULL; p = p->next, n++) {
        const lt_jv *given = n < args->n_pos ? &args->pos[n] : find_keyword(args, p->value);
        lt_jv v = {.kind = LT_JV_UNDEF, .s = p->value.s, .n = p->value.n};
        if (given != NULL) {
            v = *given;
        } else if (p->a != NULL) {
            LT_TRY(lt_jinja_eval(r, s, p->a, &v));
        }
        LT_TRY(lt_jscope_set(r, s, p->value, v));
    }
    if (args->n_pos > n && !mentions(m->node->b, "varargs")) {
        LT_JFAIL(r, "macro '%.*s' takes not more than %zu argument(s)", (int)m->node->value.n,
                 m->node->value.s, n);
    }
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_TUPLE, 0, &varargs));
    for (size_t i = n; i < args->n_pos; i++) {
        LT_TRY(lt_jv_push(&r->pool, varargs.list, args->pos[i]));
    }
    LT_TRY(lt_jv_new_dict(&r->pool, &kwargs));
    for (size_t i = 0; i < args->n_kw; i++) {
        const bool caller = lt_jv_str_is(args->kw[i].key, "caller");
        if ((caller || scope_get(s, args->kw[i].key) == NULL) &&
            !mentions(m->node->b, caller ? "caller" : "kwargs")) {
            LT_JFAIL(r, "macro '%.*s' takes no keyword argument '%.*s'", (int)m->node->value.n,
                     m->node->value.s, (int)args->kw[i].key.n, args->kw[i].key.s);
        }
        if (caller) {
            LT_TRY(lt_jscope_set(r, s, args->kw[i].key, args->kw[i].value));
        } else if (scope_get(s, args->kw[i].key) == NULL) {
            LT_TRY(lt_jv_set(&r->pool, kwargs.dict, args->kw[i].key, args->kw[i].value));
        }
    }
    LT_TRY(lt_jscope_set(r, s, LT_JV_OF_STR("varargs", 7), varargs));
    if (find_keyword(args, LT_JV_OF_STR("caller", 6)) == NULL &&
        mentions(m->node->b, "caller")) { /* That of a macro around this one is not its own. */
        LT_TRY(lt_jscope_set(r, s, LT_JV_OF_STR("caller", 6),
                             (lt_jv){.kind = LT_JV_UNDEF, .s = "caller", .n = 6}));
    }
    return lt_jscope_set(r, s, LT_JV_OF_STR("kwargs", 6), kwargs);
}

/* Execute a body with its output captured in a string. */
static lt_err exec_caught(lt_jrun *r, lt_jscope *s, const lt_jnode *body, lt_jv *out) {
    lt_jbuf b = {.pool = &r->pool}, *const outer = r->out;
    lt_jflow flow = LT_FLOW_NEXT;
    lt_err err;
    r->out = &b;
    err = lt_jinja_exec(r, s, body, &flow);
    r->out = outer;
    *out = LT_JV_OF_STR(b.s, b.n);
    return err;
}

lt_err lt_jinja_call_macro(lt_jrun *r, const lt_jmacro *m, const lt_jargs *args, lt_jv *out) {
    lt_jscope *s = NULL;
    lt_err err;
    const int line = r->line;
    LT_TRY(lt_jinja_enter(r));
    err = lt_jscope_open(r, m->scope, &s);
    if (err == LT_OK) {
        err = bind_macro(r, m, args, s);
    }
    if (err == LT_OK) {
        err = exec_caught(r, s, m->node->b, out);
        r->line = err == LT_OK ? line : r->line;
    }
    r->depth--;
    return err;
}

/* ---- statements ---- */

static lt_err assign(lt_jrun *r, lt_jscope *s, const lt_jnode *target, lt_jv v) {
    lt_jlist *items = NULL;
    size_t i = 0;
    if (target->kind == LT_NODE_NAME) {
        return lt_jscope_set(r, s, target->value, v);
    }
    if (target->kind == LT_NODE_NSREF) {
        const lt_jv ns = lt_jscope_find(s, target->a->value);
        if (ns.kind != LT_JV_NAMESPACE) {
            LT_JFAIL(r, "cannot assign attribute on non-namespace object");
        }
        return lt_jv_set(&r->pool, ns.dict, target->value, v);
    }
    LT_TRY(lt_jinja_iterate(r, v, &items));
    for (const lt_jnode *t = target->a; t != NULL; t = t->next, i++) {
        if (i >= items->n) {
            LT_JFAIL(r, "not enough values to unpack (got %zu)", items->n);
        }
        LT_TRY(assign(r, s, t, items->v[i]));
    }
    if (i != items->n) {
        LT_JFAIL(r, "too many values to unpack (expected %zu)", i);
    }
    return LT_OK;
}

/* Collect the items that pass the loop's own `if`. */
static lt_err filter_items(lt_jrun *r, lt_jscope *s, const lt_jnode *f, lt_jlist **items) {
    lt_jv kept = LT_JV(NONE), is = LT_JV(NONE);
    LT_TRY(lt_jv_new_list(&r->pool, LT_JLIST_LIST, 0, &kept));
    for (size_t i = 0; i < (*items)->n; i++) {
        lt_jscope *inner = NULL;
        LT_TRY(lt_jscope_open(r, s, &inner));
        LT_TRY(assign(r, inner, f->a, (*items)->v[i]));
        LT_TRY(lt_jinja_eval(r, inner, f->e, &is));
        if (lt_jv_truth(is)) {
            LT_TRY(lt_jv_push(&r->pool, kept.list, (*items)->v[i]));
        }
    }
    *items = kept.list;
    return LT_OK;
}

static lt_err exec_for(lt_jrun *r, lt_jscope *s, const lt_jnode *f) {
    lt_jv over = LT_JV(NONE);
    lt_jlist *items = NULL;
    lt_jloop *loop;
    void *data;
    lt_jflow flow = LT_FLOW_NEXT;
    bool completed = false;

    LT_TRY(lt_jinja_eval(r, s, f->b, &over));
    LT_TRY(lt_jinja_iterate(r, over, &items));
    if (f->e != NULL) {
        LT_TRY(filter_items(r, s, f, &items));
    }
    LT_TRY(lt_jpool_take(&r->pool, sizeof *loop, &data));
    loop = data;
    *loop = (lt_jloop){.items = items, .depth = 1};
    for (; loop->index < items->n && flow != LT_FLOW_BREAK; loop->index++) {
        lt_jscope *inner = NULL;
        LT_TRY(lt_jinja_steps(r, 1));
        LT_TRY(lt_jscope_open(r, s, &inner));
        LT_TRY(lt_jscope_set(r, inner, LT_JV_OF_STR("loop", 4),
                             (lt_jv){.kind = LT_JV_LOOP, .loop = loop}));
        LT_TRY(assign(r, inner, f->a, items->v[loop->index]));
        LT_TRY(lt_jinja_exec(r, inner, f->c, &flow));
        completed = completed || flow == LT_FLOW_NEXT;
    }
    if (!completed && f->d != NULL) { /* As in Jinja: no iteration completed. */
        lt_jscope *inner = NULL;
        LT_TRY(lt_jscope_open(r, s, &inner));
        return lt_jinja_exec(r, inner, f->d, &flow);
    }
    return LT_OK;
}

static lt_err exec_if(lt_jrun *r, lt_jscope *s, const lt_jnode *n, lt_jflow *flow) {
    lt_jv is = LT_JV(NONE);
    for (;;) {
        LT_TRY(lt_jinja_eval(r, s, n->a, &is));
        if (lt_jv_truth(is)) {
            return lt_jinja_exec(r, s, n->b, flow);
        }
        if (n->c == NULL || n->c->kind != LT_NODE_IF || !n->c->flag) {
            return lt_jinja_exec(r, s, n->c, flow);
        }
        n = n->c;
    }
}

static lt_err new_macro(lt_jrun *r, lt_jscope *s, const lt_jnode *node, lt_jv *out) {
    void *data;
    LT_TRY(lt_jpool_take(&r->pool, sizeof(lt_jmacro), &data));
    *(lt_jmacro *)data = (lt_jmacro){node, s};
    *out = (lt_jv){.kind = LT_JV_MACRO, .macro = data};
    return LT_OK;
}

static lt_err exec_call_block(lt_jrun *r, lt_jscope *s, const lt_jnode *n) {
    lt_jv caller, callee, out = LT_JV(NONE), kw = LT_JV(NONE);
    lt_jargs args;
    LT_TRY(new_macro(r, s, n->b, &caller));
    LT_TRY(lt_jinja_eval(r, s, n->a->a, &callee));
    LT_TRY(lt_jinja_eval_args(r, s, n->a->b, &args));
    LT_TRY(lt_jv_new_dict(&r->pool, &kw));
    for (size_t i = 0; i < args.n_kw; i++) {
        LT_TRY(lt_jv_set(&r->pool, kw.dict, args.kw[i].key, args.kw[i].value));
    }
    LT_TRY(lt_jv_set(&r->pool, kw.dict, LT_JV_OF_STR("caller", 6), caller));
    args.kw = kw.dict->v;
    args.n_kw = kw.dict->n;
    LT_TRY(lt_jinja_call(r, callee, &args, &out));
    return lt_jtext_str(r, r->out, out);
}

/* Set blocks, filter blocks and `with` have their own scopes. */
static lt_err exec_scoped(lt_jrun *r, lt_jscope *s, const lt_jnode *n, lt_jflow *flow) {
    lt_jscope *inner = NULL;
    lt_jv v = LT_JV(NONE), out = LT_JV(NONE);
    const lt_jnode *filters = n->kind == LT_NODE_FILTER_BLOCK ? n->a : n->c;

    LT_TRY(lt_jscope_open(r, s, &inner));
    if (n->kind == LT_NODE_SCOPE) {
        LT_TRY(exec_caught(r, inner, n->a, &v));
        /* Inside a macro the position is that of its call, as in transformers. */
        if (r->generated != NULL && v.n > 0) {
            const size_t from = r->top->n;
            LT_TRY(lt_jv_push(&r->pool, r->generated, LT_JV_OF_INT((int64_t)from)));
            LT_TRY(lt_jv_push(&r->pool, r->generated, LT_JV_OF_INT((int64_t)(from + v.n))));
        }
        return lt_jbuf_put(r->out, v.s, v.n);
    }
    if (n->kind == LT_NODE_WITH) {
        const lt_jnode *value = n->b;
        for (const lt_jnode *t = n->a; t != NULL; t = t->next, value = value->next) {
            LT_TRY(lt_jinja_eval(r, s, value, &v));
            LT_TRY(assign(r, inner, t, v));
        }
        return lt_jinja_exec(r, inner, n->c, flow);
    }
    LT_TRY(exec_caught(r, inner, n->b, &out));
    if (filters != NULL) {
        const lt_jv outer = r->block_text;
        r->block_text = out;
        LT_TRY(lt_jinja_eval(r, s, filters, &out));
        r->block_text = outer;
    }
    return n->kind == LT_NODE_FILTER_BLOCK ? lt_jtext_str(r, r->out, out) : assign(r, s, n->a, out);
}

static lt_err exec_node(lt_jrun *r, lt_jscope *s, const lt_jnode *n, lt_jflow *flow) {
    lt_jv v = LT_JV(NONE);
    switch (n->kind) {
    case LT_NODE_DATA:
        return lt_jbuf_put(r->out, n->value.s, n->value.n);
    case LT_NODE_PRINT:
        LT_TRY(lt_jinja_eval(r, s, n->a, &v));
        return lt_jtext_str(r, r->out, v);
    case LT_NODE_IF:
        return exec_if(r, s, n, flow);
    case LT_NODE_FOR:
        return exec_for(r, s, n);
    case LT_NODE_SET:
        LT_TRY(lt_jinja_eval(r, s, n->b, &v));
        return assign(r, s, n->a, v);
    case LT_NODE_MACRO:
        LT_TRY(new_macro(r, s, n, &v));
        return lt_jscope_set(r, s, n->value, v);
    case LT_NODE_CALL_BLOCK:
        return exec_call_block(r, s, n);
    case LT_NODE_BREAK:
    case LT_NODE_CONTINUE:
        *flow = n->kind == LT_NODE_BREAK ? LT_FLOW_BREAK : LT_FLOW_CONTINUE;
        return LT_OK;
    default:
        return exec_scoped(r, s, n, flow);
    }
}

lt_err lt_jinja_exec(lt_jrun *r, lt_jscope *s, const lt_jnode *body, lt_jflow *flow) {
    lt_err err;
    *flow = LT_FLOW_NEXT;
    LT_TRY(lt_jinja_enter(r));
    err = LT_OK;
    for (; body != NULL && err == LT_OK && *flow == LT_FLOW_NEXT; body = body->next) {
        r->line = body->line;
        err = lt_jinja_steps(r, 1);
        if (err == LT_OK) {
            err = exec_node(r, s, body, flow);
        }
    }
    r->depth--;
    return err;
}
