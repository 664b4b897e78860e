/* yaml.h: a YAML mapping read through libyaml into flat rows: nested keys are joined with dots, a
 * sequence of scalars becomes "a,b,c", a mapping without keys ({}) becomes an empty text. Aliases,
 * nesting deeper than 16 and a second document are refused. */
#ifndef LT_BASE_YAML_H
#define LT_BASE_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"

/* The kind of a value, where its text alone does not show it: a plain word that YAML reads as null,
 * or as true or false; a sequence of scalars; an empty mapping or sequence. */
typedef enum {
    LT_YAML_TEXT,
    LT_YAML_NULL,
    LT_YAML_BOOL,
    LT_YAML_LIST,
    LT_YAML_EMPTY_LIST,
    LT_YAML_EMPTY_MAP
} lt_yaml_kind;

typedef struct {
    char *key;   /* "optim.lr" */
    char *value; /* Text of the scalar. */
    int line;    /* 1-based, for messages. */
    lt_yaml_kind kind;
    bool holds_null; /* One of the elements of a list is null. */
} lt_yaml_entry;

/* Read the file (at most 16 MiB). A duplicate key is an error. Free with lt_yaml_free. */
LT_MUST_USE lt_err lt_yaml_load(lt_yaml_entry **out, size_t *n, const char *path);

/* The same from memory; name leads the messages. */
LT_MUST_USE lt_err lt_yaml_parse(lt_yaml_entry **out, size_t *n, const char *text, size_t bytes,
                                 const char *name);
void lt_yaml_free(lt_yaml_entry *entries, size_t n);

#endif
