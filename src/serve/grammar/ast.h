/* grammar/ast.h: a grammar as a set of rules over a small tree, before it becomes an automaton.
 * GBNF, regular expressions, JSON schemas and choices are all translated to this; grammar/compile.c
 * continues from it.
 *
 * Nodes are numbers into one growing table, so that readers need no cleanup of their own. A failed
 * allocation is remembered and reported once, by lt_gast_check. */
#ifndef LT_SERVE_GRAMMAR_AST_H
#define LT_SERVE_GRAMMAR_AST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Deepest nesting that the readers accept, because they are recursive. */
#define LT_GRAMMAR_DEPTH  100
#define LT_GRAMMAR_NODES  2000000 /* Most nodes of one grammar. */
#define LT_GRAMMAR_RANGES 500000  /* Most ranges of characters: \p{L} alone has 650. */
#define LT_GINF           INT32_MAX

typedef int32_t lt_gid; /* A node; negative: no node. */

typedef enum {
    LT_GNODE_EMPTY,  /* The empty text. */
    LT_GNODE_NEVER,  /* No text at all. */
    LT_GNODE_CHARS,  /* One character of ranges [a, a + n). */
    LT_GNODE_BYTES,  /* The bytes [a, a + n). */
    LT_GNODE_BYTE,   /* One byte from a to n, both included. */
    LT_GNODE_SEQ,    /* Kids [a, a + n), one after another. */
    LT_GNODE_ALT,    /* One of the kids. */
    LT_GNODE_REPEAT, /* Kid a, min to max times. */
    LT_GNODE_RULE,   /* Rule a. */
    LT_GNODE_AND,    /* The texts that match both kids a and n; regular only. */
    LT_GNODE_MINUS,  /* The texts that match kid a but not kid n; regular only. */
    /* An explicit automaton: arcs [a, a + n) between max states, starting in 0. */
    LT_GNODE_GRAPH,
    /* The texts that match kid a and have min to max characters, each spelt as in kid n; regular
     * only. */
    LT_GNODE_LENGTH,
    /* The texts that match kid a, after removal of the anchors (bytes LT_GANCHOR_...); regular
     * only. */
    LT_GNODE_ERASE
} lt_gkind;

typedef struct {
    lt_gkind kind;
    int32_t a, n, min, max;
} lt_gnode;

typedef struct {
    uint32_t lo, hi; /* Code points, both included. */
} lt_grange;

/* Bytes that occur in no text; they mark its beginning and end until the anchors of a pattern are
 * resolved. */
#define LT_GANCHOR_START 0xF8
#define LT_GANCHOR_END   0xF9

typedef struct {
    int32_t from, to; /* to -1: `from` accepts. */
    uint8_t lo, hi;
} lt_garc;

typedef struct {
    lt_gid body; /* -1: not (yet) defined. */
    char *name;
    bool keep; /* It is not inlined into its callers. */
    /* For grammar/distinct.h; such rules are kept. names: its texts are entries (names of members,
     * items of a list) that must differ within a container, and it is regular. json: a JSON text
     * begins with it. unique: it is the items of a list that must differ. */
    bool names, json, unique;
} lt_grule;

typedef struct {
    lt_gnode *nodes;
    size_t n_nodes, nodes_room;
    lt_gid *kids;
    size_t n_kids, kids_room;
    lt_grange *ranges;
    size_t n_ranges, ranges_room;
    lt_garc *arcs;
    size_t n_arcs, arcs_room;
    unsigned char *bytes;
    size_t n_bytes, bytes_room;
    lt_grule *rules;
    size_t n_rules, rules_room;
    int32_t *named; /* (named_room, a power of two): rules by the hash of their names; -1: free. */
    size_t n_named, named_room;
    int32_t root;  /* The start rule. */
    uint64_t work; /* Work spent on automata during reading: see lt_gplan. */
    bool failed;
    const atomic_bool *stop; /* Another thread sets it to abandon the work (STATE). NULL: never. */
} lt_gast;

void lt_gast_free(lt_gast *g);
LT_MUST_USE lt_err lt_gast_check(const lt_gast *g); /* OOM or LIMIT if a node could not be made. */

lt_gid lt_gast_empty(lt_gast *g);
lt_gid lt_gast_never(lt_gast *g);
lt_gid lt_gast_bytes(lt_gast *g, const char *s, size_t n);
lt_gid lt_gast_text(lt_gast *g, const char *s); /* 0-terminated. */
lt_gid lt_gast_byte(lt_gast *g, int lo, int hi);
/* One character in (negated: outside) the ranges, which are sorted and merged here. Surrogates
 * never match. */
lt_gid lt_gast_chars(lt_gast *g, const lt_grange *ranges, size_t n, bool negated);
lt_gid lt_gast_char_range(lt_gast *g, uint32_t lo, uint32_t hi);
lt_gid lt_gast_list(lt_gast *g, lt_gkind kind, const lt_gid *kids, size_t n); /* SEQ or ALT */
lt_gid lt_gast_seq2(lt_gast *g, lt_gid a, lt_gid b);
lt_gid lt_gast_seq3(lt_gast *g, lt_gid a, lt_gid b, lt_gid c);
lt_gid lt_gast_alt2(lt_gast *g, lt_gid a, lt_gid b);
/* max LT_GINF: no limit. */
lt_gid lt_gast_repeat(lt_gast *g, lt_gid kid, int32_t min, int32_t max);
lt_gid lt_gast_pair(lt_gast *g, lt_gkind kind, lt_gid a, lt_gid b); /* AND, MINUS */
lt_gid lt_gast_ref(lt_gast *g, int32_t rule);
/* The arcs of a graph, one after another, then the graph; `first` is g->n_arcs before the first
 * arc. */
void lt_gast_arc(lt_gast *g, int32_t from, int lo, int hi, int32_t to);
void lt_gast_accept(lt_gast *g, int32_t state);
lt_gid lt_gast_graph(lt_gast *g, int32_t first, int32_t n_states);
lt_gid lt_gast_length(lt_gast *g, lt_gid kid, lt_gid character, int32_t min, int32_t max);
lt_gid lt_gast_erase(lt_gast *g, lt_gid kid);
/* Found, or created without a body. */
int32_t lt_gast_rule(lt_gast *g, const char *name, size_t n);
void lt_gast_define(lt_gast *g, int32_t rule, lt_gid body);
int32_t lt_gast_new_rule(lt_gast *g, lt_gid body); /* Without a name. */

/* A growing list of nodes, for readers; freed by the caller. */
typedef struct {
    lt_gid *v;
    size_t n, room;
} lt_gids;
void lt_gids_push(lt_gast *g, lt_gids *l, lt_gid id);

/* The readers. Each defines g's rules and g->root. */
struct lt_grammar_vocab;
LT_MUST_USE lt_err lt_gbnf_read(lt_gast *g, const struct lt_grammar_vocab *v, const char *text,
                                size_t bytes);
typedef struct {
    /* A match anywhere in the text is sought, unless anchored; otherwise the whole text must
     * match. */
    bool search;
    bool json; /* Spelt as between the quotes of a JSON string. */
    /* Where ECMAScript and Python differ, match what either of them matches; otherwise only what
     * both match. */
    bool wide;
} lt_gregex_options;
LT_MUST_USE lt_err lt_gregex_read(lt_gast *g, const char *text, size_t bytes, lt_gregex_options o,
                                  lt_gid *out);
/* Lark's notation (grammar/lark.c); lt_glark_is: whether the text is in it rather than in GBNF. */
bool lt_glark_is(const char *text, size_t bytes);
LT_MUST_USE lt_err lt_glark_read(lt_gast *g, const char *text, size_t bytes);
LT_MUST_USE lt_err lt_gschema_read(lt_gast *g, const char *text, size_t bytes);
LT_MUST_USE lt_err lt_gjson_read(lt_gast *g);
LT_MUST_USE lt_err lt_gchoice_read(lt_gast *g, const char *text, size_t bytes);

#endif
