/* grammar/keep.h: grammars that were made, by the text of what was asked for: a schema that comes
 * with every request is compiled once, and the masks that its texts have asked for so far are there
 * for all of them.
 *
 *     find(key) ─▶ a grammar, held for the caller, or NULL     any thread
 *     put(key, g)                                              one thread: the compiler's
 *
 * Keys are compared whole. Bounded by what the grammars have in memory, which grows as they are
 * used (it is measured again at each put), and in number; the one that was asked for longest ago
 * goes first. Whoever uses one holds it, so it goes when the last has closed it. */
#ifndef LT_SERVE_GRAMMAR_KEEP_H
#define LT_SERVE_GRAMMAR_KEEP_H

#include "serve/grammar/grammar.h"

typedef struct lt_grammar_keep lt_grammar_keep;

typedef struct {
    int64_t n, bytes;    /* Kept; bytes as of the last put. */
    int64_t made, found; /* Calls of put; calls of find that found one. */
} lt_grammar_keep_stats;

LT_MUST_USE lt_err lt_grammar_keep_open(lt_grammar_keep **out, size_t most_bytes);
void lt_grammar_keep_close(lt_grammar_keep *k); /* Accepts NULL. */

lt_grammar *lt_grammar_keep_find(lt_grammar_keep *k, const char *key, size_t key_bytes);
/* Held once more if it is kept: not if there is no memory, it alone is over the bound, or the key
 * is there. */
void lt_grammar_keep_put(lt_grammar_keep *k, const char *key, size_t key_bytes, lt_grammar *g);
void lt_grammar_keep_get_stats(lt_grammar_keep *k, lt_grammar_keep_stats *out);

#endif
