/* grammar_schema.h: what the reader of schemas consists of: grammar_schema.c (references, alternatives, values), _scalar, _object, grammar_merge.c
 * (allOf), grammar_oneof.c, grammar_format.c. */
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

/* ---- One document being read ---- */

typedef struct {
    lt_gast *g;
    const json_t *root;
    json_t *kept; /* Array: merged schemas, which live until the end. */
    int depth;
    /* $refs met, as rules, to be defined. */
    struct {
        int32_t rule;
        const json_t *schema;
    } * pending;
    size_t n_pending, pending_room;
} lt_gschema_reader;

LT_MUST_USE lt_err lt_gschema_refuse(const char *what);                 /* UNSUPPORTED, by name. */
LT_MUST_USE lt_err lt_gschema_wrong(const char *key, const char *what); /* FORMAT. */
/* Keywords whose value is of another kind than theirs would rule nothing, without a word: FORMAT. null is as if absent. */
LT_MUST_USE lt_err lt_gschema_shapes(const json_t *s);
/* A count; *out stays when absent. */
LT_MUST_USE lt_err lt_gschema_count(const json_t *s, const char *key, int64_t *out);
/* a with b's constraints (NULL: a with its own allOf and $ref written in), kept until the end. */
LT_MUST_USE lt_err lt_gschema_merged(lt_gschema_reader *r, const json_t *a, const json_t *b,
                                     const json_t **out);
LT_MUST_USE lt_err lt_gschema_any(lt_gschema_reader *r, const json_t *s, lt_gid *out);
LT_MUST_USE lt_err lt_gschema_string(lt_gschema_reader *r, const json_t *s, lt_gid *out);
/* Without the quotes. */
LT_MUST_USE lt_err lt_gschema_string_content(lt_gschema_reader *r, const json_t *s, lt_gid *out);
LT_MUST_USE lt_err lt_gschema_number(lt_gschema_reader *r, const json_t *s, bool whole,
                                     lt_gid *out);
LT_MUST_USE lt_err lt_gschema_array(lt_gschema_reader *r, const json_t *s, lt_gid *out);
LT_MUST_USE lt_err lt_gschema_object(lt_gschema_reader *r, const json_t *s, lt_gid *out);

/* The types that a schema's texts have: its own, or those that its keywords speak of; a new array, empty: any. */
json_t *lt_gschema_produced(const json_t *schema);
bool lt_gschema_value_fits(const json_t *value, const json_t *type); /* The value is of a type. */
/* No text that a produces is valid under b: proven. depth: 0. */
bool lt_gschema_apart(const json_t *root, const json_t *a, const json_t *b, int depth);

#endif
