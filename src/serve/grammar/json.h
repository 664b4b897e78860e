/* grammar/json.h: JSON texts as trees: strings, numbers with bounds, any value; shared by schemas
 * and patterns. */
#ifndef LT_SERVE_GRAMMAR_JSON_H
#define LT_SERVE_GRAMMAR_JSON_H

#include "base/json.h"
#include "serve/grammar/ast.h"

/* One character inside a JSON string, in (negated: outside) the ranges: itself, or an escape if
 * JSON requires one. */
lt_gid lt_gjson_class(lt_gast *g, const lt_grange *ranges, size_t n, bool negated);
lt_gid lt_gjson_char(lt_gast *g); /* Any character in any spelling (also \u0041). */
/* Any character, spelt as lt_gjson_class and lt_gjson_content spell it. */
lt_gid lt_gjson_plain(lt_gast *g);
/* Names of members, between the quotes, or items of a list: no two in one container may be
 * equal. */
lt_gid lt_gjson_name(lt_gast *g, lt_gid content);
lt_gid lt_gjson_text(lt_gast *g, lt_gid value); /* A JSON text begins here. */
/* The members of an object, or the items of a list, that must be distinct: everything after the
 * bracket. */
lt_gid lt_gjson_unique(lt_gast *g, lt_gid items);
/* A text as it is between the quotes. */
lt_gid lt_gjson_content(lt_gast *g, const char *s, size_t n);
lt_gid lt_gjson_quoted(lt_gast *g, lt_gid content);
/* What is allowed between tokens: nothing, a blank, or a newline and its indentation. */
lt_gid lt_gjson_space(lt_gast *g);
lt_gid lt_gjson_value(lt_gast *g); /* Any value, recursive. */
lt_gid lt_gjson_object(lt_gast *g);
lt_gid lt_gjson_array(lt_gast *g);
lt_gid lt_gjson_number(lt_gast *g, bool whole);
/* Exactly this value, with any white space. */
lt_gid lt_gjson_literal(lt_gast *g, const json_t *value);

/* A bound of a number; text is its decimal notation without exponent ("-12.5"); NULL: no bound. */
typedef struct {
    const char *text;
    bool strict; /* The bound itself is excluded. */
} lt_gbound;

/* Numbers between two bounds, without exponents; whole: only integers. */
lt_gid lt_gjson_range(lt_gast *g, lt_gbound lo, lt_gbound hi, bool whole);

/* A schema within a document, as a tree; its references become rules of g. */
LT_MUST_USE lt_err lt_gschema_tree(lt_gast *g, const json_t *root, const json_t *schema,
                                   lt_gid *out);

#endif
