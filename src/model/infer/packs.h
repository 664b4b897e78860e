/* packs.h: finds the sequences of a call that begin with the same pages, so that a device may
 * read the keys of these pages once for several sequences (lt_attention_paged_args.packs):
 * answers to one prompt, or requests with the same system prompt.
 *
 * A pack is a run of consecutive sequences of one row each. A further sequence joins if it begins
 * with most of the pages that the pack has in common, and if these are a large part of its keys.
 * The common keys are read once, but the keys that only one sequence has are then read one sequence
 * after the other instead of in parallel. So packs pay off if most keys are common, or if there are
 * enough sequences to keep the device busy. */
#ifndef LT_MODEL_PACKS_H
#define LT_MODEL_PACKS_H

#include <stdbool.h>
#include <stdint.h>

#define LT_PACK_LEAST_TOKENS 128 /* The least number of tokens that a pack has in common. */
#define LT_PACK_PART         4   /* They are at least 1 / 4 of each sequence's keys. */

/* Sequences of a call: rows [q_start[n], q_start[n + 1]) and kv_len[n] tokens of sequence n, whose
 * pages of page_tokens tokens are row n of table (n_seqs, max_pages). packs (n_seqs, 3): see the
 * op. Returns whether packs make the call faster; with `always`, whether there are any. */
bool lt_packs_find(int32_t *packs, int64_t n_seqs, const int32_t *q_start, const int32_t *kv_len,
                   const int32_t *table, int64_t max_pages, int64_t page_tokens, bool always);

/* Find an order in which sequences that begin with the same page are consecutive: the sequences
 * of a page keep their order and take the position of the first of them. Sequence order[i] is the
 * i-th one.
 * first_page (n), negative: none. scratch: LT_PACKS_ORDER_WORDS(n). */
#define LT_PACKS_ORDER_WORDS(n) (6 * (n) + 1)
void lt_packs_order(int32_t *order, const int32_t *first_page, int64_t n, int32_t *scratch);

#endif
