/* jinja/parse.c: parses statements, and the whole template to a tree. */
#include "data/jinja/parse.h"

#include <stdio.h>
#include <string.h>

/* ---- statements ---- */

static lt_err parse_body(lt_jparser *p, const char *const *ends, lt_jnode **out);

static lt_err end_tag(lt_jparser *p) {
    return lt_jparse_expect_kind(p, LT_TOK_BLOCK_END, "'%}'");
}

/* Parse a body up to {% one of ends %}. The name is skipped, and the caller parses the rest of
 * the tag. *which: index of the end. */
static lt_err parse_until(lt_jparser *p, const char *const *ends, lt_jnode **out, size_t *which) {
    LT_TRY(end_tag(p));
    LT_TRY(lt_jparse_enter(p));
    LT_TRY(parse_body(p, ends, out));
    p->depth--;
    for (*which = 0; ends[*which] != NULL; (*which)++) {
        if (lt_jparse_tok_is(p->t + 1, LT_TOK_NAME, ends[*which])) {
            p->t += 2;
            return LT_OK;
        }
    }
    {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "{%% %s %%}", ends[0]);
        return lt_jparse_unexpected(p, wanted);
    }
}

static lt_err parse_to_end(lt_jparser *p, const char *end, lt_jnode **out) {
    size_t which;
    LT_TRY(parse_until(p, (const char *const[]){end, NULL}, out, &which));
    return end_tag(p);
}

static lt_err parse_if(lt_jparser *p, lt_jnode *node) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    for (;;) {
        size_t which;
        LT_TRY(lt_jparse_tuple(p, TUPLE_NO_COND, &node->a));
        LT_TRY(parse_until(p, ends, &node->b, &which));
        if (which == 0) {
            return end_tag(p);
        }
        if (which == 2) {
            return parse_to_end(p, "endif", &node->c);
        }
        LT_TRY(lt_jparse_new_node(p, LT_NODE_IF, &node->c));
        node->c->flag = true; /* An elif: evaluated in the same loop as its if. */
        node = node->c;
    }
}

static lt_err parse_for(lt_jparser *p, lt_jnode *node) {
    static const char *const ends[] = {"endfor", "else", NULL};
    size_t which;
    LT_TRY(lt_jparse_tuple(p, TUPLE_TARGET | TUPLE_UNTIL_IN, &node->a));
    if (!lt_jparse_skip_name(p, "in")) {
        return lt_jparse_unexpected(p, "'in'");
    }
    LT_TRY(lt_jparse_tuple(p, TUPLE_NO_COND, &node->b));
    if (lt_jparse_skip_name(p, "if")) {
        LT_TRY(lt_jparse_expr(p, true, &node->e));
    }
    if (lt_jparse_at_name(p, "recursive")) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s:%d: recursive loops", p->name, p->t->line);
    }
    p->loops++;
    LT_TRY(parse_until(p, ends, &node->c, &which));
    p->loops--;
    return which == 0 ? end_tag(p) : parse_to_end(p, "endfor", &node->d);
}

static lt_err check_target(const lt_jparser *p, const lt_jnode *t) {
    if (t->kind == LT_NODE_TUPLE) {
        for (const lt_jnode *i = t->a; i != NULL; i = i->next) {
            LT_TRY(check_target(p, i));
        }
        return LT_OK;
    }
    if (t->kind != LT_NODE_NAME && t->kind != LT_NODE_NSREF) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: this cannot be assigned to", p->name, t->line);
    }
    return LT_OK;
}

static lt_err parse_set(lt_jparser *p, lt_jnode *node) {
    LT_TRY(lt_jparse_tuple(p, TUPLE_TARGET, &node->a));
    LT_TRY(check_target(p, node->a));
    if (lt_jparse_skip_op(p, "=")) {
        LT_TRY(lt_jparse_tuple(p, 0, &node->b));
        return end_tag(p);
    }
    node->kind = LT_NODE_SET_BLOCK;
    if (lt_jparse_skip_op(p, "|")) {
        LT_TRY(lt_jparse_filters(p, &node->c));
    }
    return parse_to_end(p, "endset", &node->b);
}

static lt_err parse_signature(lt_jparser *p, lt_jnode **out) {
    LT_TRY(lt_jparse_expect_op(p, "("));
    while (!lt_jparse_at_op(p, ")")) {
        LT_TRY(lt_jparse_new_node(p, LT_NODE_PARAM, out));
        LT_TRY(lt_jparse_dotted(p, &(*out)->value));
        if (lt_jparse_skip_op(p, "=")) {
            LT_TRY(lt_jparse_expr(p, true, &(*out)->a));
        }
        out = &(*out)->next;
        if (!lt_jparse_at_op(p, ")")) {
            LT_TRY(lt_jparse_expect_op(p, ","));
        }
    }
    return lt_jparse_expect_op(p, ")");
}

static lt_err parse_macro(lt_jparser *p, lt_jnode *node) {
    const int loops = p->loops;
    LT_TRY(lt_jparse_dotted(p, &node->value));
    LT_TRY(parse_signature(p, &node->a));
    p->loops = 0;
    LT_TRY(parse_to_end(p, "endmacro", &node->b));
    p->loops = loops;
    return LT_OK;
}

static lt_err parse_call_block(lt_jparser *p, lt_jnode *node) {
    const int loops = p->loops;
    LT_TRY(lt_jparse_new_node(p, LT_NODE_MACRO, &node->b));
    node->b->value = LT_JV_OF_STR("caller", 6);
    if (lt_jparse_at_op(p, "(")) {
        LT_TRY(parse_signature(p, &node->b->a));
    }
    LT_TRY(lt_jparse_expr(p, true, &node->a));
    if (node->a->kind != LT_NODE_CALL) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: expected a call", p->name, node->line);
    }
    p->loops = 0;
    LT_TRY(parse_to_end(p, "endcall", &node->b->b));
    p->loops = loops;
    return LT_OK;
}

static lt_err parse_with(lt_jparser *p, lt_jnode *node) {
    lt_jnode **target = &node->a, **value = &node->b;
    while (p->t->kind != LT_TOK_BLOCK_END) {
        LT_TRY(node->a != NULL ? lt_jparse_expect_op(p, ",") : LT_OK);
        LT_TRY(lt_jparse_primary(p, false, target));
        LT_TRY(check_target(p, *target));
        target = &(*target)->next;
        LT_TRY(lt_jparse_expect_op(p, "="));
        LT_TRY(lt_jparse_expr(p, true, value));
        value = &(*value)->next;
    }
    return parse_to_end(p, "endwith", &node->c);
}

static lt_err parse_jump(lt_jparser *p, lt_jnode *node) {
    if (p->loops == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: '%s' outside of a loop", p->name, node->line,
                node->kind == LT_NODE_BREAK ? "break" : "continue");
    }
    return end_tag(p);
}

static lt_err parse_filter_block(lt_jparser *p, lt_jnode *node) {
    LT_TRY(lt_jparse_filters(p, &node->a));
    return parse_to_end(p, "endfilter", &node->b);
}

static lt_err parse_generation(lt_jparser *p, lt_jnode *node) {
    return parse_to_end(p, "endgeneration", &node->a);
}

/* Parse a statement with its end, from after "{%". */
static lt_err parse_statement(lt_jparser *p, lt_jnode **out) {
    static const struct {
        const char *name;
        lt_jnode_kind kind;
        lt_err (*parse)(lt_jparser *p, lt_jnode *node);
    } rows[] = {{"if", LT_NODE_IF, parse_if},
                {"for", LT_NODE_FOR, parse_for},
                {"set", LT_NODE_SET, parse_set},
                {"macro", LT_NODE_MACRO, parse_macro},
                {"call", LT_NODE_CALL_BLOCK, parse_call_block},
                {"with", LT_NODE_WITH, parse_with},
                {"filter", LT_NODE_FILTER_BLOCK, parse_filter_block},
                {"generation", LT_NODE_SCOPE, parse_generation},
                {"break", LT_NODE_BREAK, parse_jump},
                {"continue", LT_NODE_CONTINUE, parse_jump}};
    static const char *const refused[] = {"include", "import",     "from",  "extends", "block",
                                          "do",      "autoescape", "trans", "debug",   "print"};
    lt_jnode *node = NULL;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (lt_jparse_at_name(p, rows[i].name)) {
            LT_TRY(lt_jparse_new_node(p, rows[i].kind, &node));
            p->t++;
            *out = node;
            LT_TRY(rows[i].parse(p, node));
            return node->kind == LT_NODE_FOR ? check_target(p, node->a) : LT_OK;
        }
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (lt_jparse_at_name(p, refused[i])) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s:%d: the statement '%s'", p->name, p->t->line,
                    refused[i]);
        }
    }
    return lt_jparse_unexpected(p, "a statement");
}

static bool at_any(const lt_jtok *t, const char *const *names) {
    for (; names != NULL && *names != NULL; names++) {
        if (lt_jparse_tok_is(t, LT_TOK_NAME, *names)) {
            return true;
        }
    }
    return false;
}

/* Parse statements up to {% one of ends %}, which is not skipped, or the end of the template. */
static lt_err parse_body(lt_jparser *p, const char *const *ends, lt_jnode **out) {
    for (;; out = *out != NULL ? &(*out)->next : out) {
        switch (p->t->kind) {
        case LT_TOK_DATA:
            LT_TRY(lt_jparse_new_node(p, LT_NODE_DATA, out));
            (*out)->value = LT_JV_OF_STR(p->t->s, p->t->n);
            p->t++;
            break;
        case LT_TOK_VAR_BEGIN:
            p->t++;
            LT_TRY(lt_jparse_new_node(p, LT_NODE_PRINT, out));
            LT_TRY(lt_jparse_tuple(p, 0, &(*out)->a));
            LT_TRY(lt_jparse_expect_kind(p, LT_TOK_VAR_END, "'}}'"));
            break;
        case LT_TOK_BLOCK_BEGIN:
            if (at_any(p->t + 1, ends)) {
                return LT_OK;
            }
            p->t++;
            LT_TRY(parse_statement(p, out));
            break;
        default:
            return LT_OK;
        }
    }
}

lt_err lt_jinja_parse(lt_jpool *pool, const lt_jtok *tokens, size_t n, const char *name,
                      lt_jnode **out) {
    lt_jparser p = {.pool = pool, .name = name, .t = tokens};
    LT_ASSERT(n > 0 && tokens[n - 1].kind == LT_TOK_END);
    *out = NULL;
    LT_TRY(parse_body(&p, NULL, out));
    return p.t->kind == LT_TOK_END ? LT_OK : lt_jparse_unexpected(&p, "a statement");
}
