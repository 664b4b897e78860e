/* grammar/schema_object.h: the parts of the reader of objects: grammar/schema_members.c (listed
 * members and the schemas that apply to them), grammar/schema_others.c (members that are not
 * listed, and demands), grammar/schema_object.c (their order). */
#ifndef LT_SERVE_GRAMMAR_SCHEMA_OBJECT_H
#define LT_SERVE_GRAMMAR_SCHEMA_OBJECT_H

#include "serve/grammar/schema.h"

enum {
    LT_GPIECES = 64, /* Kinds of names that the patterns distinguish. */
    LT_GDEMANDS = 3  /* Conditions "some member is ..." at the same time. */
};

typedef struct {
    const char *name;
    bool required;
    int32_t term;
    lt_gid pair;
    unsigned meets; /* Demands that any value of it meets, as bits. */
    /* The pair with values that meet this demand; -1: none, or any. */
    lt_gid meeting[LT_GDEMANDS];
} lt_gmember;

typedef struct {
    lt_gmember *v;
    size_t n, room;
    json_t *index; /* Name to number. */
} lt_gmembers;

/* Names that are not listed and match the same patterns. */
typedef struct {
    lt_gid names;
    const json_t *matched[LT_GPIECES]; /* The matching patterns, by their texts. */
    size_t n_matched;
} lt_gpiece;

/* Members that are not listed. */
typedef struct {
    lt_gid all;                  /* -1: none. */
    lt_gid meeting[LT_GDEMANDS]; /* Those that meet a demand; -1: none. */
    int64_t most;                /* Number of possible names. */
} lt_gothers;

/* The term for the values of a member with this name (LT_GTERM_NEVER if propertyNames forbids it),
 * or of a piece. */
LT_MUST_USE lt_err lt_gmember_named(lt_gschema_reader *r, const lt_gshape *s, const char *name,
                                    int32_t *out);
LT_MUST_USE lt_err lt_gmember_term(lt_gschema_reader *r, const lt_gshape *s, const char *name,
                                   const lt_gpiece *p, int32_t *out);
lt_gid lt_gmember_pair(lt_gschema_reader *r, lt_gid key, lt_gid value);
LT_MUST_USE lt_err lt_gmembers_add(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m,
                                   const char *name, bool required);
/* The members of properties and required, in order. */
LT_MUST_USE lt_err lt_gmembers_list(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m);
/* Members that are not listed; if only a few names are possible, these are added to the list. */
LT_MUST_USE lt_err lt_gmembers_others(lt_gschema_reader *r, const lt_gshape *s, lt_gmembers *m,
                                      lt_gothers *out);
/* The demands that a listed member meets. */
LT_MUST_USE lt_err lt_gmember_meet(lt_gschema_reader *r, const lt_gshape *s, lt_gmember *m);

#endif
