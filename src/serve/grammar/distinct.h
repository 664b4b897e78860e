/* grammar/distinct.h: what a grammar cannot express: no two members of an object have the same
 * name, and no two items of a list are equal.
 *
 * Beside the grammar's configuration a state follows its text as JSON: which objects and lists are
 * open, and the names and items that each has so far ("entries"). A token that would complete an
 * entry for a second time is removed from the mask; so is one after which only existing entries
 * could be written. The grammar's rules for such entries (lt_grule.names) say where this applies:
 * they have no calls, a single notation, and texts that can be counted.
 *
 *     open      a list that shares its tail with the states it was copied from: entries of the
 *               innermost container up to its mark, then those around it
 *
 * Tracking begins where the grammar begins a JSON text (lt_grule.json), so free text may precede
 * it. */
#ifndef LT_SERVE_GRAMMAR_DISTINCT_H
#define LT_SERVE_GRAMMAR_DISTINCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct lt_gentry lt_gentry;

typedef struct {
    lt_gentry *open;
    bool active;    /* Within a JSON text. */
    bool in_string; /* Between quotes, */
    bool escaped;   /* after a backslash. */
    bool expects;   /* The next value is an entry. */
    bool collects;  /* An entry is being written; this is its text so far. */
    bool failed;    /* Out of memory: the next mask reports it. */
    bool repeats;   /* The last byte completed an entry that already exists. */
    char *text;
    size_t n, room;
} lt_gdistinct;

struct lt_grammar;
void lt_gdistinct_close(lt_gdistinct *d);
void lt_gdistinct_copy(lt_gdistinct *dst, const lt_gdistinct *src);
void lt_gdistinct_reset(lt_gdistinct *d);
/* A byte was read; the grammar's configuration was `from`, and is now `to`. */
void lt_gdistinct_step(const struct lt_grammar *g, lt_gdistinct *d, int32_t from, uint8_t byte,
                       int32_t to);
/* Remove tokens from a mask of n_ids ids that belongs to this configuration. */
LT_MUST_USE lt_err lt_gdistinct_mask(struct lt_grammar *g, lt_gdistinct *d, int32_t config,
                                     uint32_t *bits, int64_t n_ids);
/* Try a token's bytes on a copy: whether they are allowed. *to: the configuration after them. */
LT_MUST_USE lt_err lt_gdistinct_allows(struct lt_grammar *g, const lt_gdistinct *d, int32_t config,
                                       const uint8_t *bytes, size_t n, bool *out);

#endif
