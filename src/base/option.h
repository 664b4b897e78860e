/* option.h: one table row per option. The row yields the struct's field, the command-line flag, the
 * YAML key, the line of --help, the range check and the line of the dumped configuration.
 *
 *     #define DEMO_OPTIONS(X)                                                       \
 *         X(I64, steps, "steps", "100", 1, 1e12, "steps", "how long to train")      \
 *         X(F64, lr, "optim.lr", "3e-4", 0, 10, "", "peak learning rate")           \
 *         X(STR, out, "out", "runs/demo", 0, 0, "path", "run folder")               \
 *         X(ENUM, dtype, "dtype", "fp32", 0, 0, "fp32|bf16", "storage type")
 *     typedef struct { DEMO_OPTIONS(LT_OPTION_FIELD) } demo_options;
 *     #define LT_OPTION_STRUCT demo_options
 *     static const lt_option demo_rows[] = {DEMO_OPTIONS(LT_OPTION_ROW)};
 *     static const lt_option_table demo_table = LT_OPTION_TABLE("demo", demo_rows);
 *
 * Name: a dotted YAML path; the flag is "--" + the same name ('_' and '-' are equal). Type: BOOL,
 * I64 (accepts K M G T B and KiB MiB GiB suffixes, 1e9), F64, STR (at most LT_OPTION_STR_BYTES -
 * 1), TEXT (a const char * to the given text, of any length: for the command line only, whose words
 * outlive the struct), ENUM (int index into the choices listed under `unit`). A recipe may give a
 * STR whose unit has a comma ("NAME,...") as a YAML list; every other option takes one value. min
 * and max apply to numbers and are inclusive, unless a ninth column says otherwise; for STR, max 1
 * means "must not be empty". The ninth column is optional: an OR of lt_option_flag, whose upper
 * bits are free for the owner of the table. A flag overrides the recipe, which overrides the
 * default. */
#ifndef LT_BASE_OPTION_H
#define LT_BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/yaml.h"
#include "lateen/base.h"

#define LT_OPTION_STR_BYTES 1024

typedef enum {
    LT_OPTION_BOOL,
    LT_OPTION_I64,
    LT_OPTION_F64,
    LT_OPTION_STR,
    LT_OPTION_TEXT,
    LT_OPTION_ENUM
} lt_option_type;

typedef enum {
    LT_OPTION_ABOVE_MIN = 1, /* min itself is excluded. */
    LT_OPTION_BELOW_MAX = 2, /* max itself is excluded. */
    /* "--name" as the last word, or before another flag, means the default. */
    LT_OPTION_BARE = 4,
    LT_OPTION_OWNER = 256 /* The first bit whose meaning the owner of the table defines. */
} lt_option_flag;

typedef struct {
    lt_option_type type;
    size_t offset;
    const char *name;
    const char *fallback; /* The default, as text. */
    double min, max;
    const char *unit; /* Unit of a number; the choices "a|b|c" of an ENUM. */
    const char *help;
    unsigned flags; /* lt_option_flag */
} lt_option;

/* A second, shorter name of an option. */
typedef struct {
    const char *name, *of;
} lt_option_short;

typedef struct {
    const char *title; /* For messages: "recipe", "generate". */
    const lt_option *rows;
    size_t n_rows;
    const lt_option_short *shorts; /* NULL: none. */
    size_t n_shorts;
} lt_option_table;

#define LT_OPTION_CTYPE_BOOL(field) bool field;
#define LT_OPTION_CTYPE_I64(field)  int64_t field;
#define LT_OPTION_CTYPE_F64(field)  double field;
#define LT_OPTION_CTYPE_STR(field)  char field[LT_OPTION_STR_BYTES];
#define LT_OPTION_CTYPE_TEXT(field) const char *field;
#define LT_OPTION_CTYPE_ENUM(field) int field;
#define LT_OPTION_FIELD(type, field, name, fallback, min, max, unit, ...)                          \
    LT_OPTION_CTYPE_##type(field)
#define LT_OPTION_ROW(type_, field_, name_, fallback_, min_, max_, unit_, ...)                     \
    {.type = LT_OPTION_##type_,                                                                    \
     .offset = offsetof(LT_OPTION_STRUCT, field_),                                                 \
     .name = name_,                                                                                \
     .fallback = fallback_,                                                                        \
     .min = min_,                                                                                  \
     .max = max_,                                                                                  \
     .unit = unit_,                                                                                \
     .help = __VA_ARGS__}, /* help, or help and flags */
#define LT_OPTION_TABLE(title_, rows_)                                                             \
    { .title = title_, .rows = rows_, .n_rows = sizeof(rows_) / sizeof((rows_)[0]) }
#define LT_OPTION_TABLE_SHORT(title_, rows_, shorts_)                                              \
    {                                                                                              \
        .title = title_, .rows = rows_, .n_rows = sizeof(rows_) / sizeof((rows_)[0]),              \
        .shorts = shorts_, .n_shorts = sizeof(shorts_) / sizeof((shorts_)[0])                      \
    }

/* Fill *obj with the defaults. A default that does not parse is a bug and asserts. */
void lt_options_default(const lt_option_table *t, void *obj);

/* Set one option by name from text. Messages begin with origin ("flag", "recipe.yaml:12"). An
 * unknown name fails with ARG; the message suggests the nearest one. */
LT_MUST_USE lt_err lt_options_set(const lt_option_table *t, void *obj, const char *name,
                                  const char *value, const char *origin);

/* The same for a recipe, whose values have kinds: a list, a null, a plain true or false, or an
 * empty mapping is refused if the option does not take it. */
LT_MUST_USE lt_err lt_options_set_yaml(const lt_option_table *t, void *obj, const char *name,
                                       const lt_yaml_entry *e, const char *origin);

/* Read a YAML mapping (nested keys joined with dots; a sequence of scalars joined with commas). */
LT_MUST_USE lt_err lt_options_load_yaml(const lt_option_table *t, void *obj, const char *path);

/* Parse argv[1..]: "--name value", "--name=value", "--flag", "--flag true|false" and "--no-flag"
 * for BOOL. Words that are not flags go to positional[0 .. *n_positional), at most max_positional;
 * "--" ends the flags. "--help" sets *help and ends parsing. "--verbose" enables messages of level
 * DEBUG and the trace of an error (log.h), "--log-json" makes messages lines of JSON, unless the
 * table has a row of that name. */
LT_MUST_USE lt_err lt_options_parse(const lt_option_table *t, void *obj, int argc, char **argv,
                                    const char **positional, int max_positional, int *n_positional,
                                    bool *help);

/* Write the effective configuration as YAML that lt_options_load_yaml reads back to the same
 * values. */
void lt_options_dump_yaml(const lt_option_table *t, const void *obj, FILE *to);

/* One value as text, in the shortest form that reads back equal. */
void lt_option_text(const lt_option *row, const void *obj, char *out, size_t out_bytes);

/* The row of that name or short name ('_' and '-' are equal), or NULL. The second function fails
 * instead and suggests the nearest name. */
const lt_option *lt_option_find(const lt_option_table *t, const char *name);
LT_MUST_USE lt_err lt_option_need(const lt_option **out, const lt_option_table *t, const char *name,
                                  const char *origin);

void lt_options_help(const lt_option_table *t, FILE *to);

/* The entry of names[0..n) nearest to `name` by edit distance, or NULL if none is near. One edit is
 * allowed for every three characters; for names of one group ('optim.lrr') only the characters of
 * the last part count. */
const char *lt_name_nearest(const char *name, const char *const *names, size_t n);
/* Whether `name` is in the list, which NULL ends. */
bool lt_name_is_one_of(const char *name, const char *const *names);

/* ---- Tables whose rows, of row_bytes each, begin with their name (const char *) ---- */

/* The row of that name; NULL: there is none. */
const void *lt_name_find(const char *name, const void *rows, size_t row_bytes, size_t n);
/* The end of a message about an unknown name: "; is 'NEAREST' meant?", or "" if no name is near.
 * Returns out. */
#define LT_NAME_HINT_BYTES 96
const char *lt_name_hint(char out[LT_NAME_HINT_BYTES], const char *name, const void *rows,
                         size_t row_bytes, size_t n);
/* Write all names to out, with a space before each. Returns out. */
const char *lt_name_list(char *out, size_t out_bytes, const void *rows, size_t row_bytes, size_t n);

#endif
