/* grammar_schema.h: what grammar_schema.c and grammar_merge.c share. */
#ifndef LT_SERVE_GRAMMAR_SCHEMA_H
#define LT_SERVE_GRAMMAR_SCHEMA_H

#include "serve/grammar_json.h"

/* What "#/$defs/x" points at in the document. */
LT_MUST_USE lt_err lt_gschema_resolve(const json_t *root, const char *ref, const json_t **out);
/* Put from's constraints, its allOf and $ref written in, into an object that holds constraints already. */
LT_MUST_USE lt_err lt_gschema_merge(const json_t *root, json_t *into, const json_t *from);
json_t *lt_gschema_types(const json_t *type);              /* "type" as a new array of names. */
bool lt_gschema_has(const json_t *list, const char *text); /* Is the string in the array? */
const char *
lt_gschema_format(const char *name); /* A pattern; NULL: a format that is not enforced. */

/* The types that a schema's texts have: its own, or those that its keywords speak of; a new array, empty: any. */
json_t *lt_gschema_produced(const json_t *schema);
bool lt_gschema_value_fits(const json_t *value, const json_t *type); /* The value is of a type. */
/* No text that a produces is valid under b: proven. depth: 0. */
bool lt_gschema_apart(const json_t *root, const json_t *a, const json_t *b, int depth);

#endif
