/* jinja/parse_expr.c: parses tokens and expressions by recursive descent.
 *
 * Precedence, loosest first, as in Jinja's parser: a if b else c · or · and · not ·
 * comparisons, in · + - · ~ · * / // % · ** · unary + - · .name [item] (call) · |filter, is
 * test. */
#include "data/jinja/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens ---- */

bool lt_jparse_tok_is(const lt_jtok *t, lt_jtok_kind kind, const char *text) {
    return t->kind == kind && t->n == strlen(text) && memcmp(t->s, text, t->n) == 0;
}

bool lt_jparse_at_op(const lt_jparser *p, const char *op) {
    return lt_jparse_tok_is(p->t, LT_TOK_OP, op);
}

bool lt_jparse_at_name(const lt_jparser *p, const char *name) {
    return lt_jparse_tok_is(p->t, LT_TOK_NAME, name);
}

bool lt_jparse_skip_op(lt_jparser *p, const char *op) {
    const bool is = lt_jparse_at_op(p, op);
    p->t += is;
    return is;
}

bool lt_jparse_skip_name(lt_jparser *p, const char *name) {
    const bool is = lt_jparse_at_name(p, name);
    p->t += is;
    return is;
}

lt_err lt_jparse_unexpected(const lt_jparser *p, const char *wanted) {
    static const char *const names[] = {"text",
                                        "'{{'",
                                        "'}}'",
                                        "'{%'",
                                        "'%}'",
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL,
                                        "the end of the template"};
    const char *found = names[p->t->kind];
    char text[48];
    if (found == NULL) {
        snprintf(text, sizeof text, "'%.*s'", (int)(p->t->n < 40 ? p->t->n : 40), p->t->s);
        found = text;
    }
    LT_FAIL(LT_ERR_FORMAT, "%s:%d: expected %s, found %s", p->name, p->t->line, wanted, found);
}

lt_err lt_jparse_expect_op(lt_jparser *p, const char *op) {
    char wanted[16];
    if (lt_jparse_skip_op(p, op)) {
        return LT_OK;
    }
    snprintf(wanted, sizeof wanted, "'%s'", op);
    return lt_jparse_unexpected(p, wanted);
}

lt_err lt_jparse_expect_kind(lt_jparser *p, lt_jtok_kind kind, const char *wanted) {
    if (p->t->kind != kind) {
        return lt_jparse_unexpected(p, wanted);
    }
    p->t++;
    return LT_OK;
}

lt_err lt_jparse_enter(lt_jparser *p) {
    if (++p->depth > LT_JINJA_PARSE_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "%s:%d: nested deeper than %d", p->name, p->t->line,
                LT_JINJA_PARSE_DEPTH);
    }
    return LT_OK;
}

lt_err lt_jparse_new_node(lt_jparser *p, lt_jnode_kind kind, lt_jnode **out) {
    void *data;
    LT_TRY(lt_jpool_take(p->pool, sizeof(lt_jnode), &data));
    *out = data;
    (*out)->kind = kind;
    (*out)->line = p->t->line;
    (*out)->value = LT_JV(NONE);
    return LT_OK;
}

lt_err lt_jparse_new_pair(lt_jparser *p, lt_jnode_kind kind, lt_jnode *a, lt_jnode *b,
                          lt_jnode **out) {
    lt_jnode *node = NULL;
    LT_TRY(lt_jparse_new_node(p, kind, &node));
    node->line = a != NULL ? a->line : node->line;
    node->a = a;
    node->b = b;
    *out = node;
    return LT_OK;
}

/* ---- expressions ---- */

static lt_err parse_unary(lt_jparser *p, bool with_filter, lt_jnode **out);

static bool tuple_end(const lt_jparser *p, unsigned how) {
    return p->t->kind == LT_TOK_VAR_END || p->t->kind == LT_TOK_BLOCK_END ||
           lt_jparse_at_op(p, ")") || ((how & TUPLE_UNTIL_IN) != 0 && lt_jparse_at_name(p, "in"));
}

/* Parse one expression, or several with commas, which are a tuple. */
lt_err lt_jparse_tuple(lt_jparser *p, unsigned how, lt_jnode **out) {
    lt_jnode *first = NULL, **last = &first;
    const int line = p->t->line;
    bool is_tuple = false;

    for (;;) {
        if (tuple_end(p, how)) {
            break;
        }
        LT_TRY((how & TUPLE_TARGET) != 0 ? lt_jparse_primary(p, true, last)
                                         : lt_jparse_expr(p, (how & TUPLE_NO_COND) == 0, last));
        last = &(*last)->next;
        if (!lt_jparse_skip_op(p, ",")) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && first != NULL) {
        *out = first;
        return LT_OK;
    }
    if (!is_tuple && (how & TUPLE_PARENS) == 0) {
        return lt_jparse_unexpected(p, "an expression");
    }
    LT_TRY(lt_jparse_new_pair(p, LT_NODE_TUPLE, first, NULL, out));
    (*out)->line = line;
    return LT_OK;
}

static lt_err parse_items(lt_jparser *p, const char *close, bool pairs, lt_jnode *node) {
    lt_jnode **last = &node->a;
    p->t++;
    while (!lt_jparse_at_op(p, close)) {
        LT_TRY(node->a != NULL ? lt_jparse_expect_op(p, ",") : LT_OK);
        if (lt_jparse_at_op(p, close)) {
            break;
        }
        LT_TRY(lt_jparse_expr(p, true, last));
        last = &(*last)->next;
        if (pairs) {
            LT_TRY(lt_jparse_expect_op(p, ":"));
            LT_TRY(lt_jparse_expr(p, true, last));
            last = &(*last)->next;
        }
    }
    return lt_jparse_expect_op(p, close);
}

static lt_err parse_number(lt_jparser *p, lt_jnode *node) {
    char text[128];
    size_t n = 0;
    int base = 10;
    const char *digits = text;
    for (size_t i = 0; i < p->t->n && n + 1 < sizeof text; i++) {
        if (p->t->s[i] != '_') {
            text[n++] = p->t->s[i];
        }
    }
    text[n] = 0;
    if (p->t->kind == LT_TOK_FLOAT) {
        node->value = (lt_jv){.kind = LT_JV_FLOAT, .f = strtod(text, NULL)};
    } else {
        if (text[0] == '0' && n > 1 && (text[1] | 32) >= 'b') {
            base = (text[1] | 32) == 'x' ? 16 : (text[1] | 32) == 'o' ? 8 : 2;
            digits = text + 2;
        }
        errno = 0;
        node->value = LT_JV_OF_INT(strtoll(digits, NULL, base));
        if (errno != 0 || n + 1 >= sizeof text) {
            LT_FAIL(LT_ERR_LIMIT, "%s:%d: %s is over 63 bits", p->name, p->t->line, text);
        }
    }
    p->t++;
    return LT_OK;
}

static lt_err parse_string(lt_jparser *p, lt_jnode *node) {
    lt_jbuf b = {.pool = p->pool};
    node->value = LT_JV_OF_STR(p->t->s, p->t->n);
    if (p->t[1].kind == LT_TOK_STRING) { /* "a" "b" */
        while (p->t->kind == LT_TOK_STRING) {
            LT_TRY(lt_jbuf_put(&b, p->t->s, p->t->n));
            p->t++;
        }
        node->value = LT_JV_OF_STR(b.s, b.n);
        return LT_OK;
    }
    p->t++;
    return LT_OK;
}

static lt_err parse_name(lt_jparser *p, bool target, lt_jnode *node) {
    static const struct {
        const char *name;
        lt_jv value;
    } constants[] = {{"true", {.kind = LT_JV_BOOL, .b = true}},
                     {"True", {.kind = LT_JV_BOOL, .b = true}},
                     {"false", {.kind = LT_JV_BOOL}},
                     {"False", {.kind = LT_JV_BOOL}},
                     {"none", {.kind = LT_JV_NONE}},
                     {"None", {.kind = LT_JV_NONE}}};
    const lt_jtok *t = p->t++;
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (lt_jparse_tok_is(t, LT_TOK_NAME, constants[i].name)) {
            node->kind = LT_NODE_CONST;
            node->value = constants[i].value;
            return LT_OK;
        }
    }
    node->kind = LT_NODE_NAME;
    node->value = LT_JV_OF_STR(t->s, t->n);
    if (target && lt_jparse_skip_op(p, ".")) { /* ns.attribute = ... */
        lt_jnode *object = NULL;
        LT_TRY(lt_jparse_new_node(p, LT_NODE_NAME, &object));
        object->value = node->value;
        node->kind = LT_NODE_NSREF;
        node->a = object;
        node->value = LT_JV_OF_STR(p->t->s, p->t->n);
        return lt_jparse_expect_kind(p, LT_TOK_NAME, "a name");
    }
    return LT_OK;
}

lt_err lt_jparse_primary(lt_jparser *p, bool target, lt_jnode **out) {
    lt_jnode *node = NULL;
    LT_TRY(lt_jparse_new_node(p, LT_NODE_CONST, &node));
    *out = node;
    switch (p->t->kind) {
    case LT_TOK_NAME:
        return parse_name(p, target, node);
    case LT_TOK_STRING:
        return parse_string(p, node);
    case LT_TOK_INT:
    case LT_TOK_FLOAT:
        return parse_number(p, node);
    default:
        break;
    }
    if (lt_jparse_skip_op(p, "(")) {
        LT_TRY(lt_jparse_enter(p));
        LT_TRY(lt_jparse_tuple(p, TUPLE_PARENS, out));
        p->depth--;
        return lt_jparse_expect_op(p, ")");
    }
    if (lt_jparse_at_op(p, "[") || lt_jparse_at_op(p, "{")) {
        const bool dict = lt_jparse_at_op(p, "{");
        node->kind = dict ? LT_NODE_DICT : LT_NODE_LIST;
        LT_TRY(lt_jparse_enter(p));
        LT_TRY(parse_items(p, dict ? "}" : "]", dict, node));
        p->depth--;
        return LT_OK;
    }
    return lt_jparse_unexpected(p, "an expression");
}

static lt_err parse_args(lt_jparser *p, lt_jnode **out) {
    /* Kind of the last argument: positional, keyword, *, **, in this order. */
    int seen = LT_ARG_POS;
    LT_TRY(lt_jparse_expect_op(p, "("));
    LT_TRY(lt_jparse_enter(p));
    while (!lt_jparse_at_op(p, ")")) {
        lt_jnode *arg = NULL;
        int op = LT_ARG_POS;
        LT_TRY(lt_jparse_new_node(p, LT_NODE_ARG, &arg));
        if (lt_jparse_skip_op(p, "*")) {
            op = LT_ARG_STAR;
        } else if (lt_jparse_skip_op(p, "**")) {
            op = LT_ARG_STARSTAR;
        } else if (p->t->kind == LT_TOK_NAME && lt_jparse_tok_is(p->t + 1, LT_TOK_OP, "=")) {
            op = LT_ARG_KEYWORD;
            arg->value = LT_JV_OF_STR(p->t->s, p->t->n);
            p->t += 2;
        }
        if (op < seen && !(op == LT_ARG_KEYWORD && seen == LT_ARG_STAR)) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: invalid order of arguments", p->name, p->t->line);
        }
        seen = op;
        arg->op = op;
        LT_TRY(lt_jparse_expr(p, true, &arg->a));
        *out = arg;
        out = &arg->next;
        if (!lt_jparse_at_op(p, ")")) {
            LT_TRY(lt_jparse_expect_op(p, ","));
        }
    }
    p->depth--;
    return lt_jparse_expect_op(p, ")");
}

static lt_err parse_slice_part(lt_jparser *p, lt_jnode **out) {
    if (lt_jparse_at_op(p, ":") || lt_jparse_at_op(p, "]") || lt_jparse_at_op(p, ",")) {
        return LT_OK;
    }
    return lt_jparse_expr(p, true, out);
}

static lt_err parse_subscript(lt_jparser *p, lt_jnode **node) {
    lt_jnode *item = NULL, *slice = NULL;
    if (lt_jparse_skip_op(p, ".")) {
        LT_TRY(lt_jparse_new_pair(p, LT_NODE_ATTR, *node, NULL, &item));
        *node = item;
        if (p->t->kind == LT_TOK_INT) {
            item->kind = LT_NODE_ITEM;
            return lt_jparse_primary(p, false, &item->b);
        }
        item->value = LT_JV_OF_STR(p->t->s, p->t->n);
        return lt_jparse_expect_kind(p, LT_TOK_NAME, "a name or number");
    }
    LT_TRY(lt_jparse_expect_op(p, "["));
    LT_TRY(lt_jparse_enter(p));
    LT_TRY(lt_jparse_new_pair(p, LT_NODE_ITEM, *node, NULL, &item));
    LT_TRY(lt_jparse_new_node(p, LT_NODE_SLICE, &slice));
    LT_TRY(parse_slice_part(p, &slice->a));
    if (lt_jparse_skip_op(p, ":")) {
        LT_TRY(parse_slice_part(p, &slice->b));
        if (lt_jparse_skip_op(p, ":")) {
            LT_TRY(parse_slice_part(p, &slice->c));
        }
        item->b = slice;
    } else if (slice->a != NULL) {
        item->b = slice->a;
    } else {
        return lt_jparse_unexpected(p, "an index");
    }
    *node = item;
    p->depth--;
    return lt_jparse_expect_op(p, "]");
}

static lt_err parse_call(lt_jparser *p, lt_jnode **node) {
    lt_jnode *call = NULL;
    LT_TRY(lt_jparse_new_pair(p, LT_NODE_CALL, *node, NULL, &call));
    call->line = p->t->line;
    *node = call;
    return parse_args(p, &call->b);
}

static lt_err parse_postfix(lt_jparser *p, lt_jnode **node) {
    for (;;) {
        if (lt_jparse_at_op(p, ".") || lt_jparse_at_op(p, "[")) {
            LT_TRY(parse_subscript(p, node));
        } else if (lt_jparse_at_op(p, "(")) {
            LT_TRY(parse_call(p, node));
        } else {
            return LT_OK;
        }
    }
}

lt_err lt_jparse_dotted(lt_jparser *p, lt_jv *out) {
    const lt_jtok *first = p->t;
    LT_TRY(lt_jparse_expect_kind(p, LT_TOK_NAME, "a name"));
    while (lt_jparse_skip_op(p, ".")) { /* The dots are part of the name. */
        LT_TRY(lt_jparse_expect_kind(p, LT_TOK_NAME, "a name"));
    }
    *out = LT_JV_OF_STR(first->s, (size_t)(p->t[-1].s + p->t[-1].n - first->s));
    return LT_OK;
}

/* Parse name(args)|name(args)...; *node is the input (NULL in filter blocks). The first bar has
 * been skipped already. */
lt_err lt_jparse_filters(lt_jparser *p, lt_jnode **node) {
    do {
        lt_jnode *filter = NULL;
        LT_TRY(lt_jparse_new_pair(p, LT_NODE_FILTER, *node, NULL, &filter));
        filter->line = p->t->line;
        LT_TRY(lt_jparse_dotted(p, &filter->value));
        if (lt_jparse_at_op(p, "(")) {
            LT_TRY(parse_args(p, &filter->b));
        }
        *node = filter;
    } while (lt_jparse_skip_op(p, "|"));
    return LT_OK;
}

static lt_err parse_test(lt_jparser *p, lt_jnode **node) {
    const bool negated = lt_jparse_skip_name(p, "not");
    const lt_jtok *t;
    lt_jnode *test = NULL, *arg = NULL;

    LT_TRY(lt_jparse_new_pair(p, LT_NODE_TEST, *node, NULL, &test));
    test->line = p->t->line;
    LT_TRY(lt_jparse_dotted(p, &test->value));
    t = p->t;
    if (lt_jparse_at_op(p, "(")) {
        LT_TRY(parse_args(p, &test->b));
    } else if ((t->kind >= LT_TOK_NAME && t->kind <= LT_TOK_FLOAT &&
                !lt_jparse_at_name(p, "else") && !lt_jparse_at_name(p, "or") &&
                !lt_jparse_at_name(p, "and")) ||
               lt_jparse_at_op(p, "[") || lt_jparse_at_op(p, "{")) {
        if (lt_jparse_at_name(p, "is")) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: tests with 'is' cannot be chained", p->name, t->line);
        }
        LT_TRY(lt_jparse_new_node(p, LT_NODE_ARG, &arg));
        LT_TRY(lt_jparse_primary(p, false, &arg->a));
        LT_TRY(parse_postfix(p, &arg->a));
        test->b = arg;
    }
    *node = test;
    return negated ? lt_jparse_new_pair(p, LT_NODE_NOT, test, NULL, node) : LT_OK;
}

static lt_err parse_unary(lt_jparser *p, bool with_filter, lt_jnode **out) {
    if (lt_jparse_at_op(p, "-") || lt_jparse_at_op(p, "+")) {
        lt_jnode *node = NULL;
        LT_TRY(lt_jparse_new_node(p, lt_jparse_at_op(p, "-") ? LT_NODE_NEG : LT_NODE_POS, &node));
        p->t++;
        LT_TRY(lt_jparse_enter(p));
        LT_TRY(parse_unary(p, false, &node->a));
        p->depth--;
        *out = node;
    } else {
        LT_TRY(lt_jparse_primary(p, false, out));
    }
    LT_TRY(parse_postfix(p, out));
    while (with_filter) {
        if (lt_jparse_skip_op(p, "|")) {
            LT_TRY(lt_jparse_filters(p, out));
        } else if (lt_jparse_skip_name(p, "is")) {
            LT_TRY(parse_test(p, out));
        } else if (lt_jparse_at_op(p, "(")) {
            LT_TRY(parse_call(p, out));
        } else {
            break;
        }
    }
    return LT_OK;
}

/* Left-associative levels: 0: + -   1: ~   2: * / // %   3: ** */
static const struct {
    const char *text;
    lt_jop op;
    int level;
} binary_ops[] = {{"+", LT_OP_ADD, 0}, {"-", LT_OP_SUB, 0},       {"*", LT_OP_MUL, 2},
                  {"/", LT_OP_DIV, 2}, {"//", LT_OP_FLOORDIV, 2}, {"%", LT_OP_MOD, 2},
                  {"**", LT_OP_POW, 3}};

static lt_err parse_binary(lt_jparser *p, int level, lt_jnode **out) {
    if (level == 4) {
        return parse_unary(p, true, out);
    }
    LT_TRY(parse_binary(p, level + 1, out));
    if (level == 1) {
        lt_jnode *concat = NULL, **last = &(*out)->next;
        if (!lt_jparse_at_op(p, "~")) {
            return LT_OK;
        }
        LT_TRY(lt_jparse_new_pair(p, LT_NODE_CONCAT, *out, NULL, &concat));
        while (lt_jparse_skip_op(p, "~")) {
            LT_TRY(parse_binary(p, level + 1, last));
            last = &(*last)->next;
        }
        *out = concat;
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof binary_ops / sizeof *binary_ops; i++) {
        lt_jnode *node = NULL;
        if (binary_ops[i].level != level || !lt_jparse_skip_op(p, binary_ops[i].text)) {
            continue;
        }
        LT_TRY(lt_jparse_new_pair(p, LT_NODE_BINARY, *out, NULL, &node));
        node->op = binary_ops[i].op;
        LT_TRY(parse_binary(p, level + 1, &node->b));
        *out = node;
        i = SIZE_MAX; /* Start again from the first one. */
    }
    return LT_OK;
}

static bool compare_op(lt_jparser *p, int *op) {
    static const struct {
        const char *text;
        lt_jop op;
    } ops[] = {{"==", LT_OP_EQ}, {"!=", LT_OP_NE}, {"<", LT_OP_LT},
               {"<=", LT_OP_LE}, {">", LT_OP_GT},  {">=", LT_OP_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (lt_jparse_skip_op(p, ops[i].text)) {
            *op = ops[i].op;
            return true;
        }
    }
    if (lt_jparse_skip_name(p, "in")) {
        *op = LT_OP_IN;
        return true;
    }
    if (lt_jparse_at_name(p, "not") && lt_jparse_tok_is(p->t + 1, LT_TOK_NAME, "in")) {
        p->t += 2;
        *op = LT_OP_NOT_IN;
        return true;
    }
    return false;
}

static lt_err parse_compare(lt_jparser *p, lt_jnode **out) {
    lt_jnode *node = NULL, **last;
    int op = 0;
    LT_TRY(parse_binary(p, 0, out));
    if (!compare_op(p, &op)) {
        return LT_OK;
    }
    LT_TRY(lt_jparse_new_pair(p, LT_NODE_COMPARE, *out, NULL, &node));
    last = &node->b;
    do {
        LT_TRY(lt_jparse_new_node(p, LT_NODE_OPERAND, last));
        (*last)->op = op;
        LT_TRY(parse_binary(p, 0, &(*last)->a));
        last = &(*last)->next;
    } while (compare_op(p, &op));
    *out = node;
    return LT_OK;
}

static lt_err parse_not(lt_jparser *p, lt_jnode **out) {
    lt_jnode *node = NULL;
    if (!lt_jparse_at_name(p, "not")) {
        return parse_compare(p, out);
    }
    LT_TRY(lt_jparse_new_node(p, LT_NODE_NOT, &node));
    p->t++;
    LT_TRY(lt_jparse_enter(p));
    LT_TRY(parse_not(p, &node->a));
    p->depth--;
    *out = node;
    return LT_OK;
}

static lt_err parse_and(lt_jparser *p, lt_jnode **out) {
    LT_TRY(parse_not(p, out));
    while (lt_jparse_skip_name(p, "and")) {
        lt_jnode *node = NULL;
        LT_TRY(lt_jparse_new_pair(p, LT_NODE_AND, *out, NULL, &node));
        LT_TRY(parse_not(p, &node->b));
        *out = node;
    }
    return LT_OK;
}

static lt_err parse_or(lt_jparser *p, lt_jnode **out) {
    LT_TRY(parse_and(p, out));
    while (lt_jparse_skip_name(p, "or")) {
        lt_jnode *node = NULL;
        LT_TRY(lt_jparse_new_pair(p, LT_NODE_OR, *out, NULL, &node));
        LT_TRY(parse_and(p, &node->b));
        *out = node;
    }
    return LT_OK;
}

lt_err lt_jparse_expr(lt_jparser *p, bool with_cond, lt_jnode **out) {
    LT_TRY(lt_jparse_enter(p));
    LT_TRY(parse_or(p, out));
    while (with_cond && lt_jparse_skip_name(p, "if")) {
        lt_jnode *node = NULL;
        LT_TRY(lt_jparse_new_node(p, LT_NODE_COND, &node));
        node->b = *out;
        LT_TRY(parse_or(p, &node->a));
        if (lt_jparse_skip_name(p, "else")) {
            LT_TRY(lt_jparse_expr(p, true, &node->c));
        }
        *out = node;
    }
    p->depth--;
    return LT_OK;
}
