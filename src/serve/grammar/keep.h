/* grammar/keep.h: a cache of compiled grammars, keyed by their source: a schema that comes with
 * every request is compiled once, and the masks computed so far serve all its requests.
 *
 *     find(key) ─▶ a grammar, held for the caller, or NULL     any thread
 *     put(key, g)                                              one thread: the compiler's
 *
 * Keys are compared completely. The cache is bounded by the memory of its grammars, which grows as
 * they are used (it is measured again at each put), and by their number; the least recently used
 * one is evicted first. Users of a grammar hold it, so it is freed when the last has closed it. */
#ifndef LT_SERVE_GRAMMAR_KEEP_H
#define LT_SERVE_GRAMMAR_KEEP_H

#include "serve/grammar/grammar.h"

typedef struct lt_grammar_keep lt_grammar_keep;

typedef struct {
    int64_t n, bytes;    /* Number of grammars, and their bytes at the last put. */
    int64_t made, found; /* Number of calls of put, and of successful calls of find. */
} lt_grammar_keep_stats;

LT_MUST_USE lt_err lt_grammar_keep_open(lt_grammar_keep **out, size_t most_bytes);
void lt_grammar_keep_close(lt_grammar_keep *k); /* Accepts NULL. */

lt_grammar *lt_grammar_keep_find(lt_grammar_keep *k, const char *key, size_t key_bytes);
/* Add a grammar and hold it, unless memory is exhausted, it alone exceeds the bound, or the key
 * exists. */
void lt_grammar_keep_put(lt_grammar_keep *k, const char *key, size_t key_bytes, lt_grammar *g);
void lt_grammar_keep_get_stats(lt_grammar_keep *k, lt_grammar_keep_stats *out);

#endif
