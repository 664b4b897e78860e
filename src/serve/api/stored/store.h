/* store.h: objects to which clients may refer in later requests: responses of /v1/responses, chat
 * completions and threads of /v1/messages. The store is in memory and bounded.
 *
 *     put(A)            put(B, after A)           put(C, after A)
 *       A                 A <- B                    A <- B,  A <- C
 *
 * An entry is a JSON text with an id and an owner; a client with another API key does not find it.
 * An entry may follow an earlier one, so that each turn of a conversation is stored once. It then
 * holds the earlier entry, which remains readable through it even when it is no longer found by its
 * id.
 *
 * The number of entries that can be found, the bytes of all held entries, and the time since the
 * last use are bounded. The least recently used entry is removed first. An entry that a later turn
 * holds counts until that turn is removed, too; an entry that does not fit even alone is refused.
 * All functions may be called from any thread. */
#ifndef LT_SERVE_STORE_H
#define LT_SERVE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct lt_store lt_store;
typedef struct lt_stored lt_stored;

typedef struct {
    int64_t max_entries; /* 0: nothing is stored. */
    size_t max_bytes;
    double lifetime_s; /* Since the last use. */
} lt_store_options;

typedef struct {
    int64_t entries;
    size_t bytes;
} lt_store_stats;

LT_MUST_USE lt_err lt_store_open(lt_store **out, const lt_store_options *o);
/* Every hold must be released. Accepts NULL. */
void lt_store_close(lt_store *s);

/* Store a copy of the text. previous: a held entry, or NULL. False: it does not fit, or there is no
 * memory. now_s: lt_clock_s(). */
bool lt_store_put(lt_store *s, const char *id, const char *owner, lt_stored *previous,
                  const char *text, size_t n, double now_s);
/* The entry, held until lt_store_release; NULL: it does not exist, or belongs to another owner. */
lt_stored *lt_store_hold(lt_store *s, const char *id, const char *owner, double now_s);
/* The owner's entry, among those whose id has the prefix and whose text contains the words, that
 * was used last; held. NULL: there is none. */
lt_stored *lt_store_search(lt_store *s, const char *prefix, const char *words, const char *owner,
                           double now_s);
/* The owner's entries whose ids have the prefix, in the order in which they were put, each held;
 * malloc'ed. Listing does not count as use. NULL: out of memory. */
lt_stored **lt_store_list(lt_store *s, const char *prefix, const char *owner, double now_s,
                          size_t *n);
/* Replace the text of a held entry, which keeps its id and its place in lists. False: the entry is
 * no longer in the store, or the text does not fit; the entry is then unchanged. */
bool lt_store_replace(lt_store *s, lt_stored *entry, const char *text, size_t n, double now_s);
void lt_store_release(lt_store *s, lt_stored *entry); /* Accepts NULL. */
/* Remove the entry. False: there was none. */
bool lt_store_forget(lt_store *s, const char *id, const char *owner, double now_s);

/* The entry before this one, which the caller holds. */
const lt_stored *lt_stored_previous(const lt_stored *entry); /* NULL: the first. */
/* The entry and all entries before it, oldest first; malloc'ed. NULL: out of memory. */
const lt_stored **lt_stored_line(const lt_stored *last, size_t *n);
const char *lt_stored_text(const lt_stored *entry, size_t *n);
const char *lt_stored_id(const lt_stored *entry);

lt_store_stats lt_store_get_stats(lt_store *s);

#endif
