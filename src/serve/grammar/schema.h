/* grammar/schema.h: the parts of the reader of schemas.
 *
 *     schema ──▶ term = a set of literals that all hold (a schema, or the opposite of one):
 *                  │     grammar/terms.c
 *                  │ expanded once: grammar/expand.c (what holds), grammar/negate.c (what does not)
 *                  ▼
 *                shapes, one of which holds: for each type what its values must satisfy
 *                  │ grammar/schema.c, _object, _array, _scalar
 *                  ▼
 *                a rule of the tree (grammar/ast.h)
 *
 * Members and items of a shape are terms again. Each term is a separate rule, made once, so
 * recursion through $ref ends. A shape without a value (two types, an enum with no value left, a
 * required member that cannot exist) is dropped. */
#ifndef LT_SERVE_GRAMMAR_SCHEMA_H
#define LT_SERVE_GRAMMAR_SCHEMA_H

#include "serve/grammar/doc.h"
#include "serve/grammar/json.h"

/* ---- Memory that lives as long as a document is read ---- */

typedef struct lt_gblock lt_gblock;
typedef struct {
    lt_gblock *blocks;
} lt_gpool;
/* Zeroed; NULL: there is no memory, and the error is set. */
void *lt_gpool_take(lt_gpool *p, size_t bytes);
void lt_gpool_close(lt_gpool *p);

/* ---- Shapes ---- */

/* Types of values. A number is an integer or has a fraction. */
enum {
    LT_GTYPE_NULL = 1,
    LT_GTYPE_FALSE = 2,
    LT_GTYPE_TRUE = 4,
    LT_GTYPE_WHOLE = 8,
    LT_GTYPE_FRACTION = 16,
    LT_GTYPE_STRING = 32,
    LT_GTYPE_ARRAY = 64,
    LT_GTYPE_OBJECT = 128,
    LT_GTYPE_NUMBER = 24,
    LT_GTYPE_ANY = 255
};

typedef struct {
    const json_t *s;
    bool not ; /* The schema does not hold. */
} lt_glit;

/* A condition in a list that only grows at its head, so that branching shapes share the rest. */
typedef struct lt_gpart lt_gpart;
struct lt_gpart {
    const lt_gpart *next;
    const json_t *v;     /* The keyword's value. */
    const json_t *owner; /* The schema that contains it. */
    bool not, quiet;     /* quiet: from a schema that does not hold, so it declares nothing. */
    int32_t lit;         /* Index of the literal that introduced it: lt_gdone. */
    int64_t min, max;    /* Limits of contains. */
};

/* The literals that were added to a shape, each with the one that led to it (-1: none). */
typedef struct lt_gdone lt_gdone;
struct lt_gdone {
    const lt_gdone *next;
    lt_glit lit;
    int32_t index, parent;
};

typedef struct {
    const json_t *v; /* NULL: none. */
    bool strict;
} lt_gshape_bound;

typedef struct lt_gshape lt_gshape;
struct lt_gshape {
    const lt_gshape *next;
    unsigned types;       /* Bits of LT_GTYPE. */
    unsigned spoken;      /* Types that some keyword constrains. */
    bool typed;           /* type, enum or const gives the types. */
    const json_t *values; /* An array of the only values; NULL: no such list. */
    lt_gshape_bound low, high;
    int64_t min_length, max_length, min_items, max_items, min_members, max_members;
    /* unevaluated: both keywords; `not` marks items. */
    const lt_gpart *multiples, *strings, *excluded, *lists, *contains, *unique, *objects, *required,
        *names, *some, *unevaluated;
    const lt_gdone *done;
};

/* ---- One document being read ---- */

typedef struct {
    lt_glit *lits; /* Sorted. */
    size_t n;
    int32_t rule;            /* -1: none yet. */
    bool expanded, open;     /* open: under examination. */
    const lt_gshape *shapes; /* In order. */
    int8_t possible;         /* 1: yes; -1: no; 0: not known. */
} lt_gterm;

typedef struct {
    lt_gast *g;
    const json_t *root;
    lt_gdoc *doc;
    lt_gpool pool;
    json_t *kept;     /* Array of schemas made during reading. */
    json_t *known;    /* The same, by their texts. */
    const json_t *at; /* The schema being read, for messages. */
    lt_gterm *terms;
    size_t n_terms, terms_room;
    int32_t *table; /* Hash table of terms, with open addressing. */
    size_t cells;
    size_t n_defined; /* Terms [0, n_defined) have had their rules defined. */
    int32_t *todo;    /* Terms whose rules wait for their bodies. */
    size_t n_todo, todo_room;
    uint64_t work; /* Number of literals added to shapes: it bounds the time spent on schemas. */
    int depth;
} lt_gschema_reader;

/* UNSUPPORTED and FORMAT errors that name the keyword and its location. */
LT_MUST_USE lt_err lt_gschema_refuse(const lt_gschema_reader *r, const char *key, const char *why);
LT_MUST_USE lt_err lt_gschema_wrong(const lt_gschema_reader *r, const char *key, const char *what);
/* FORMAT: the value of a keyword has the wrong type, so the keyword would silently have no effect.
 * null counts as absent. */
LT_MUST_USE lt_err lt_gschema_check(const lt_gschema_reader *r, const json_t *s);
/* Read a count; *out is unchanged if it is absent. */
LT_MUST_USE lt_err lt_gschema_count(const lt_gschema_reader *r, const json_t *s, const char *key,
                                    int64_t *out);
/* The member, unless it is null. */
const json_t *lt_gschema_get(const json_t *s, const char *key);

/* A schema made during reading, kept until the end, and shared by equal texts. Takes the reference;
 * NULL: out of memory. */
LT_MUST_USE lt_err lt_gschema_make(lt_gschema_reader *r, json_t *made, const json_t **out);
/* The term of these literals; 0: any value, 1: none. */
LT_MUST_USE lt_err lt_gterm_of(lt_gschema_reader *r, const lt_glit *lits, size_t n, int32_t *out);
LT_MUST_USE lt_err lt_gterm_shapes(lt_gschema_reader *r, int32_t term, const lt_gshape **out);
/* Whether some value can satisfy it; true means perhaps. */
LT_MUST_USE lt_err lt_gterm_possible(lt_gschema_reader *r, int32_t term, int depth, bool *out);
/* Its rule, defined later. */
LT_MUST_USE lt_err lt_gterm_rule(lt_gschema_reader *r, int32_t term, lt_gid *out);
enum { LT_GTERM_ANY, LT_GTERM_NEVER };

/* ---- Expansion ---- */

/* A shape of a term under construction, literals still to be added to it, and choices still to be
 * made. */
typedef struct lt_gtodo lt_gtodo;
struct lt_gtodo {
    const lt_gtodo *next;
    lt_glit lit;
    int32_t parent;
    bool quiet;
};

typedef struct lt_gchoice lt_gchoice;
struct lt_gchoice {
    const lt_gchoice *next;
    const lt_gtodo **alternatives;
    size_t n;
};

typedef struct {
    lt_gshape shape;
    const lt_gtodo *todo;
    const lt_gchoice *choices;
    bool dead; /* No value satisfies it. */
} lt_gpending;

LT_MUST_USE lt_err lt_gexpand(lt_gschema_reader *r, const lt_glit *lits, size_t n,
                              const lt_gshape **out);
/* Alternatives, at least one of which holds if the schema does not. index: of its literal. */
LT_MUST_USE lt_err lt_gnegate(lt_gschema_reader *r, lt_gpending *p, const json_t *s, int32_t index);
/* For both: a list of alternatives, each a list of literals, and the choice between them. */
typedef struct {
    const lt_gtodo **v;
    size_t n, room;
    bool dropped; /* One alternative could not be expressed as a schema. */
} lt_galternatives;
LT_MUST_USE lt_err lt_galternative(lt_gschema_reader *r, lt_galternatives *a, const lt_glit *lits,
                                   size_t n, int32_t parent, bool quiet);
LT_MUST_USE lt_err lt_gchoose(lt_gschema_reader *r, lt_gpending *p, lt_galternatives *a);

/* 1: the value satisfies the schema; 0: it does not; -1: not known. */
int lt_gschema_valid(lt_gschema_reader *r, const json_t *schema, const json_t *value, int depth);
bool lt_gschema_equal(const json_t *a, const json_t *b); /* Numbers are compared by value. */
unsigned lt_gschema_type_of(const json_t *value);
/* Whether the pattern matches anywhere in the text. */
LT_MUST_USE lt_err lt_gschema_matches(const json_t *pattern, const char *text, size_t bytes,
                                      bool *out);
/* The patterns of a format, one of which matches, ended by NULL; NULL: no draft lists the
 * format. */
const char *const *lt_gschema_format(const char *name);

/* ---- Types ---- */

LT_MUST_USE lt_err lt_gschema_string(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out);
/* Texts between the quotes; plain: in only one spelling. */
LT_MUST_USE lt_err lt_gschema_content(lt_gschema_reader *r, const lt_gshape *s, bool plain,
                                      lt_gid *out);
/* A shape of scalars, each with one spelling, as one regular tree; *out -1: it may be an object or
 * a list. */
LT_MUST_USE lt_err lt_gschema_scalar(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out);
LT_MUST_USE lt_err lt_gschema_number(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out);
LT_MUST_USE lt_err lt_gschema_array(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out);
LT_MUST_USE lt_err lt_gschema_object(lt_gschema_reader *r, const lt_gshape *s, lt_gid *out);

/* For objects and lists: a rule with its own body. */
lt_gid lt_gschema_named(lt_gschema_reader *r, lt_gid body);
lt_gid lt_gschema_comma(lt_gschema_reader *r);
/* More elements of one kind after n of them: min to max in total. */
lt_gid lt_gschema_more(lt_gschema_reader *r, lt_gid item, int64_t n, int64_t min, int64_t max);
/* Whether the literal `inner` comes from `outer`, or is `outer`. */
bool lt_gschema_within(const lt_gshape *s, int32_t inner, int32_t outer);

#endif
