/* grammar/impl.h: the parts of an open grammar: the vocabulary's tries, the program (the automata
 * of all rules as one), and the cache of configurations that texts have reached.
 *
 *     configuration = a set of (state, stack) and whether the text may end here
 *     stack         = a list of return addresses, shared: node = (return state, loop, count, rest
 *                   of the stack)
 *
 * Stacks and configurations are interned, so each is a number, and the configuration after a byte
 * is cached in a row of transitions by byte class. For grammars without recursion this becomes a
 * plain automaton built as far as texts have gone. A mask is made by walking the trie along these
 * rows, once a configuration. */
#ifndef LT_SERVE_GRAMMAR_IMPL_H
#define LT_SERVE_GRAMMAR_IMPL_H

#include <pthread.h>

#include "serve/grammar/grammar.h"
#include "serve/grammar/dfa.h"
#include "serve/grammar/distinct.h"

/* ---- vocabulary ---- */

#define LT_GTOKEN_BYTES 256 /* Longer tokens are never allowed. */
#define LT_GPLAIN       32  /* There are masks of plain tokens of 1 to this many characters. */

/* A trie in depth-first order, so that a subtree that does not match is skipped in one step. */
typedef struct {
    uint8_t byte;
    uint16_t depth;          /* Position of the byte in its tokens. */
    int32_t skip;            /* The first node after this subtree. */
    int32_t token, n_tokens; /* Ids in `ids` of tokens that end here. */
} lt_gtrie_node;

typedef struct {
    lt_gtrie_node *nodes;
    size_t n_nodes, nodes_room;
    int32_t *ids;
    size_t n_ids, ids_room;
} lt_gtrie;

struct lt_grammar_vocab {
    int64_t n_ids;
    int64_t n_words; /* Words of a mask. */
    /* Tokens of characters that represent themselves in a JSON string: all but ", \ and
     * controls. */
    lt_gtrie plain;
    lt_gtrie rest;
    uint32_t *up_to[LT_GPLAIN + 1]; /* Masks: plain tokens of at most this many characters. */
    int64_t n_up_to[LT_GPLAIN + 1];
    int32_t *longer; /* Plain tokens of more than LT_GPLAIN characters, by length. */
    uint16_t *longer_chars;
    size_t n_longer;
    /* Mask of tokens that may contain a whole name or item: with two quotes, or a comma and
     * more. */
    uint32_t *several;
    int max_chars;  /* Most characters of a plain token. */
    int rest_reach; /* Bytes of the longest other token that a JSON string could contain. */
    unsigned char *bytes;
    /* Bytes of id i: [start[i], start[i + 1]); for special tokens 0xFF and the id. */
    size_t *start;
    int32_t *ends;
    size_t n_ends;
    char **special; /* Names of special tokens, NULL elsewhere; by id. */
};

/* Bytes that represent a special token in tries and automata: 0xFF occurs in no UTF-8 text. */
void lt_gvocab_special_bytes(int32_t id, unsigned char out[4]);
/* The special token of this name, or -1. */
int32_t lt_gvocab_find_special(const struct lt_grammar_vocab *v, const char *name, size_t n);

/* ---- program ---- */

typedef struct {
    lt_gdfa d;                    /* All rules; `to` and `callee` are numbered over all of them. */
    int32_t *loop_min, *loop_max; /* callee < 0: loop ~callee; its body starts at loop_start. */
    int32_t *loop_start;
    size_t n_loops;
    int32_t start;
    uint8_t classes[256]; /* Classes of bytes that no edge distinguishes. */
    int n_classes;
    uint8_t sample[256]; /* One byte of each class. */
    int32_t *plain; /* Per state: where any plain character leads; grammar/cache.c computes it. */
    uint8_t *marks; /* Per state: bits of LT_GMARK. */
    /* Per state of a rule of names: how many texts are still possible (LT_GMANY: or more);
     * otherwise -1. */
    int64_t *counts;
    bool has_names, few_names; /* Some rule spells names; and only a few of them. */
    bool *tail; /* Per state: it accepts, and nothing can follow: a call need not return here. */
} lt_gprogram;

#define LT_GMANY 1000000
enum { LT_GMARK_NAMES = 1, LT_GMARK_JSON = 2, LT_GMARK_UNIQUE = 4 }; /* The last two: starts. */

LT_MUST_USE lt_err lt_gprogram_compile(lt_gprogram *out, lt_gast *ast);
void lt_gprogram_free(lt_gprogram *p);

/* ---- cache ---- */

typedef struct {
    int32_t ret, loop, count, parent; /* loop -1: an ordinary call. Node 0 is the bottom. */
} lt_gframe;

typedef struct {
    int32_t state, stack;
} lt_gitem;

/* A cell of the table of the work list's items; a cell of another list is free. */
typedef struct {
    uint32_t list;
    int32_t item;
} lt_gcell;

typedef struct {
    size_t item;
    int32_t n_items;
    bool accept;
    bool in_names, starts_json, starts_unique; /* For grammar/distinct.h. */
    /* sure: plain -1 means that none can follow, not that they differ. */
    bool plain_known, plain_sure;
    int32_t plain;  /* The single configuration after any plain character; -1: there is none. */
    int32_t row;    /* Row of transitions; -1: none yet. */
    int32_t n_mask; /* Ids allowed; -1: no mask yet. */
    void *mask;     /* n_mask ids if there are few, otherwise words. */
    uint32_t *rest; /* Mask of the second trie alone, shared by configurations like this one. */
    int32_t n_rest;
} lt_gconfig;

typedef struct {
    lt_gframe *frames;
    size_t n_frames, frames_room;
    int32_t *frame_table;
    size_t frame_cells;
    lt_gitem *items;
    size_t n_items, items_room;
    lt_gconfig *configs;
    size_t n_configs, configs_room;
    int32_t *config_table;
    size_t config_cells;
    int32_t *rows; /* (n_rows, n_classes): configuration, -1 none, -2 not known yet. */
    size_t n_rows, rows_room;
    size_t mask_bytes;
    int32_t start;
    /* The configuration under construction. */
    lt_gitem *work;
    size_t n_work, work_room;
    lt_gcell *cells; /* Hash table of the items, if there are more than a few. */
    uint32_t n_lists;
    bool work_accept;
    uint8_t work_marks;
} lt_gcache;

struct lt_grammar {
    const lt_grammar_vocab *vocab;
    atomic_int n_owners;
    lt_gprogram program;
    pthread_mutex_t lock;
    lt_gcache cache;
    lt_grammar_state *states; /* All open states, which are updated when the cache is emptied. */
    uint32_t *scratch;        /* Words of one mask. */
    lt_gdistinct trial;       /* For trying a token. */
};

struct lt_grammar_state {
    lt_grammar *g;
    int32_t config;
    bool ended;
    lt_gdistinct distinct;
    lt_grammar_state *before, *next;
};

/* Read a text of any kind: g->root becomes its start. */
LT_MUST_USE lt_err lt_grammar_read(lt_gast *g, const lt_grammar_vocab *v, lt_grammar_kind kind,
                                   const char *text, size_t bytes);
/* The part of lt_grammar_open after reading the tree. */
LT_MUST_USE lt_err lt_grammar_open_tree(lt_grammar **out, const lt_grammar_vocab *v, lt_gast *ast);

LT_MUST_USE lt_err lt_gcache_open(lt_grammar *g);
void lt_gcache_free(lt_gcache *c);
/* *out: the configuration after the byte, -1 if there is none. */
LT_MUST_USE lt_err lt_gcache_step(lt_grammar *g, int32_t config, uint8_t byte, int32_t *out);
LT_MUST_USE lt_err lt_gcache_mask(lt_grammar *g, int32_t config);
/* Start again with an empty cache if it has grown too large. */
LT_MUST_USE lt_err lt_gcache_trim(lt_grammar *g);

#endif
