/* grammar/nfa.h: automata with empty edges, from which those of grammar/dfa.h are made; used by
 * grammar/dfa.c and grammar/product.c. */
#ifndef LT_SERVE_GRAMMAR_NFA_H
#define LT_SERVE_GRAMMAR_NFA_H

#include "serve/grammar/dfa.h"

enum { LT_GEDGE_EMPTY, LT_GEDGE_BYTES, LT_GEDGE_CALL };

typedef struct {
    uint8_t kind, lo, hi;
    int32_t callee, to, next;
} lt_gnedge;

typedef struct {
    int32_t *head; /* First edge of each state; -1: none. */
    size_t n_head, head_room;
    lt_gnedge *edges;
    size_t n_edges, edges_room;
} lt_gnfa;

/* State of a build: the plan, the automaton. regular: calls are not possible (inside AND,
 * MINUS). */
typedef struct {
    lt_gplan *p;
    lt_gnfa *n;
    bool regular;
    int depth;
} lt_gbuilder;

LT_MUST_USE lt_err lt_gnfa_state(lt_gnfa *n, int32_t *out);
LT_MUST_USE lt_err lt_gnfa_bytes(lt_gnfa *n, int32_t from, int lo, int hi, int32_t to);
LT_MUST_USE lt_err lt_gnfa_empty(lt_gnfa *n, int32_t from, int32_t to);
/* A separate automaton of a regular tree. */
LT_MUST_USE lt_err lt_gbuild_apart(lt_gbuilder *b, lt_gid id, lt_gdfa *out);

/* Build nodes that consist of whole automata, between two states. */
LT_MUST_USE lt_err lt_gbuild_pair(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to);
LT_MUST_USE lt_err lt_gbuild_length(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to);
LT_MUST_USE lt_err lt_gbuild_erased(lt_gbuilder *b, lt_gid kid, int32_t from, int32_t to);
LT_MUST_USE lt_err lt_gbuild_graph(lt_gbuilder *b, const lt_gnode *n, int32_t from, int32_t to);

#endif
