/* jinja/parse.h: the interface between the two halves of the parser: tokens (jinja/parse_expr.c),
 * expressions (there) and statements (jinja/parse.c). The parser is recursive; its depth is bounded
 * by LT_JINJA_PARSE_DEPTH. */
#ifndef LT_DATA_JINJA_PARSE_H
#define LT_DATA_JINJA_PARSE_H

#include "data/jinja/jinja.h"

typedef struct {
    lt_jpool *pool;
    const char *name;
    const lt_jtok *t; /* The current token; LT_TOK_END is never passed. */
    int depth, loops;
} lt_jparser;

enum { TUPLE_TARGET = 1, TUPLE_NO_COND = 2, TUPLE_PARENS = 4, TUPLE_UNTIL_IN = 8 };

bool lt_jparse_tok_is(const lt_jtok *t, lt_jtok_kind kind, const char *text);
bool lt_jparse_at_op(const lt_jparser *p, const char *op);
bool lt_jparse_at_name(const lt_jparser *p, const char *name);
bool lt_jparse_skip_op(lt_jparser *p, const char *op);
bool lt_jparse_skip_name(lt_jparser *p, const char *name);
LT_MUST_USE lt_err lt_jparse_unexpected(const lt_jparser *p, const char *wanted);
LT_MUST_USE lt_err lt_jparse_expect_op(lt_jparser *p, const char *op);
LT_MUST_USE lt_err lt_jparse_expect_kind(lt_jparser *p, lt_jtok_kind kind, const char *wanted);
LT_MUST_USE lt_err lt_jparse_enter(lt_jparser *p);
LT_MUST_USE lt_err lt_jparse_new_node(lt_jparser *p, lt_jnode_kind kind, lt_jnode **out);
LT_MUST_USE lt_err lt_jparse_new_pair(lt_jparser *p, lt_jnode_kind kind, lt_jnode *a, lt_jnode *b,
                                      lt_jnode **out);
LT_MUST_USE lt_err lt_jparse_tuple(lt_jparser *p, unsigned how, lt_jnode **out);
LT_MUST_USE lt_err lt_jparse_primary(lt_jparser *p, bool target, lt_jnode **out);
LT_MUST_USE lt_err lt_jparse_dotted(lt_jparser *p, lt_jv *out);
LT_MUST_USE lt_err lt_jparse_filters(lt_jparser *p, lt_jnode **node);
LT_MUST_USE lt_err lt_jparse_expr(lt_jparser *p, bool with_cond, lt_jnode **out);

#endif
