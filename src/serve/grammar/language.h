/* grammar/language.h: answers questions about the texts of a small regular tree: how many there
 * are, and which they are. */
#ifndef LT_SERVE_GRAMMAR_LANGUAGE_H
#define LT_SERVE_GRAMMAR_LANGUAGE_H

#include "serve/grammar/dfa.h"
#include "serve/grammar/json.h"

LT_MUST_USE lt_err lt_glanguage_has(lt_gast *g, lt_gid node, const char *text, size_t bytes,
                                    bool *out);
/* How many texts there are, at most `most`. */
LT_MUST_USE lt_err lt_glanguage_count(lt_gast *g, lt_gid node, int64_t most, size_t *out);
/* All of them, at most `most`, as they are spelt between the quotes of JSON: a new array of
 * strings. */
LT_MUST_USE lt_err lt_glanguage_list(lt_gast *g, lt_gid node, size_t most, json_t **out);

/* For each state of an automaton without calls, how many texts lead from it to an end, at most
 * `most`. out: d->n_states counts. */
LT_MUST_USE lt_err lt_gdfa_counts(const lt_gdfa *d, int64_t most, int64_t *out);

#endif
