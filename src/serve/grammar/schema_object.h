/* grammar/schema_object.h: the parts of the reader of objects: grammar/schema_members.c (listed
 * members and the schemas that apply to them), grammar/schema_others.c (members that are not
 * listed, and demands), grammar/schema_object.c (their order). */
#ifndef LT_SERVE_GRAMMAR_SCHEMA_OBJECT_H
#define LT_SERVE_GRAMMAR_SCHEMA_OBJECT_H

#include "serve/grammar/schema.h"

enum {
    LT_GPIECES = 64, /* Kinds of names that patterns tell apart. */
    LT_GDEMANDS = 3  /* "Some member is ..." that hold together. */
};

typedef struct {
    const char *name;
    bool required;
    int32_t term;
    lt_gid pair;
    unsigned meets; /* Demands that any value of it meets, as bits. */
    /* The pair with values that lt_gmember_meet this one; -1: none, or any. */
    lt_gid meeting[LT_GDEMANDS];
} lt_gmember;

typedef struct {
    lt_gmember *v;
    size_t n, room;
    json_t *index; /* Name to number. */
} lt_gmembers;

/* Names beside the properties that match the same patterns. */
typedef struct {
    lt_gid names;
    const json_t *matched[LT_GPIECES]; /* Patterns, by their texts. */
    size_t n_matched;
} lt_gpiece;

/* Members beside the listed ones. */
typedef struct {
    lt_gid all;                  /* -1: none. */
    lt_gid meeting[LT_GDEMANDS]; /* Those that lt_gmember_meet a demand; -1: none. */
    int64_t most;                /* Names that there are. */
} lt_gothers;

/* What the values of a member must satisfy: one of this name (LT_GTERM_NEVER where propertyNames
 * forbids it), or of a piece. */
LT_MUST_USE lt_err lt_gmember_named(lt_gschema_reader *r, const lt_gshape *s, const char *name,
                                    int32_t *out);
LT_MUST_USE lt_err lt_gmember_term(lt_gschema_reader *r, const lt_gshape *s, const char *name,
                                   const lt_gpiece *p, int32_t *out);
lt_gid lt_gmember_pair(lt_gschema_reader *r, lt_gid key, lt_gid value);
LT_MUST_USE lt_err lt_gmembers_add(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m,
                                   const char *name, bool required);
/* Those of properties and required, in order. */
LT_MUST_USE lt_err lt_gmembers_list(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m);
/* Members beside the listed ones; those of few names are added to the list. */
LT_MUST_USE lt_err lt_gmembers_others(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m,
                                      lt_gothers *out);
/* Which demands a listed member meets. */
LT_MUST_USE lt_err lt_gmember_meet(lt_gschema_reader *r, const lt_gshape *s, lt_gmember *m);

#endif
