/* grammar/dfa.h: from trees to automata over bytes: Thompson's construction, then the subset
 * construction, rule by rule.
 *
 * An automaton's edges are byte ranges; besides them a state may have calls: "match rule r, then
 * continue at `to`". Rules that call nothing recursive and are small are written into their
 * callers, so most schemas become few, plain automata. Counted repetitions that would be long to
 * write out become calls of a loop, which counts on the stack instead. */
#ifndef LT_SERVE_GRAMMAR_DFA_H
#define LT_SERVE_GRAMMAR_DFA_H

#include "serve/grammar/ast.h"

typedef struct {
    uint8_t lo, hi;
    int32_t to;
} lt_gedge;

typedef struct {
    int32_t callee; /* A rule; ~loop for a loop. */
    int32_t to;
} lt_gcall;

typedef struct {
    int32_t edge, n_edges; /* Sorted by lo, disjoint. */
    int32_t call, n_calls;
    bool accept;
} lt_gstate;

typedef struct {
    lt_gstate *states; /* 0: the start. */
    size_t n_states, states_room;
    lt_gedge *edges;
    size_t n_edges, edges_room;
    lt_gcall *calls;
    size_t n_calls, calls_room;
} lt_gdfa;

/* A counted repetition that is not written out. */
typedef struct {
    lt_gid body;
    int32_t min, max;
    int32_t rule; /* The body as a rule. */
} lt_gloop;

typedef struct {
    lt_gast *ast;
    bool *inlined;  /* Per rule: inline it into its callers. */
    int32_t *sizes; /* Per rule: estimated number of states; INT32_MAX if it is recursive. */
    lt_gloop *loops;
    size_t n_loops, loops_room;
    uint64_t work; /* Members of subsets examined so far: it bounds the time spent on automata. */
} lt_gplan;

/* Estimated number of states of a node; INT32_MAX: it reaches a recursive rule. */
int32_t lt_gplan_size(const lt_gplan *p, lt_gid node, int depth);

LT_MUST_USE lt_err lt_gdfa_build(lt_gdfa *out, lt_gplan *p, lt_gid node);
/* The same for a tree that must be regular: its rules are inlined. */
LT_MUST_USE lt_err lt_gdfa_regular(lt_gdfa *out, lt_gplan *p, lt_gid node);
void lt_gdfa_free(lt_gdfa *d);

/* Make room for one more; false: out of memory. */
bool lt_grow(void **data, size_t n, size_t *room, size_t each);
#define LT_GROW(o, what)                                                                           \
    lt_grow((void **)&(o)->what, (o)->n_##what, &(o)->what##_room, sizeof *(o)->what)

#endif
