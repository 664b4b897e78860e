/* store.h: what clients may come back to: responses of /v1/responses, and threads of /v1/messages.
 * It lives in memory, within a bound.
 *
 *     put(A)            put(B, behind A)          put(C, behind A)
 *       A                 A <- B                    A <- B,  A <- C
 *
 * An entry is a JSON text under an id and an owner: whoever has another API key does not find it.
 * An entry may stand behind a former one, so that a conversation's turns are kept once each; it
 * then holds the former one, which stays readable to it when nobody finds it by its id any more.
 *
 * Bounds: entries that can be found, bytes of all that is held, and a time since the last use. The
 * longest unused entry goes first. What is held by a later turn is counted until that goes, too; an
 * entry that does not fit even alone is refused. All functions may be called from any thread. */
#ifndef LT_SERVE_STORE_H
#define LT_SERVE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct lt_store lt_store;
typedef struct lt_stored lt_stored;

typedef struct {
    int64_t max_entries; /* 0: nothing is kept. */
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

/* Keeps a copy of the text. previous: an entry that is held, or NULL. False: it does not fit, or
 * there is no memory. now_s: lt_clock_s(). */
bool lt_store_put(lt_store *s, const char *id, const char *owner, lt_stored *previous,
                  const char *text, size_t n, double now_s);
/* The entry, held until lt_store_release; NULL: there is none, or it is another owner's. */
lt_stored *lt_store_hold(lt_store *s, const char *id, const char *owner, double now_s);
/* The newest of the owner's entries whose text holds the words, held; NULL: none does. */
lt_stored *lt_store_search(lt_store *s, const char *words, const char *owner, double now_s);
void lt_store_release(lt_store *s, lt_stored *entry); /* Accepts NULL. */
/* It can not be found any more. False: there was none. */
bool lt_store_forget(lt_store *s, const char *id, const char *owner, double now_s);

/* Of an entry that is held. */
const lt_stored *lt_stored_previous(const lt_stored *entry); /* NULL: the first. */
/* The entry and all before it, oldest first: malloc'ed. NULL: out of memory. */
const lt_stored **lt_stored_line(const lt_stored *last, size_t *n);
const char *lt_stored_text(const lt_stored *entry, size_t *n);

lt_store_stats lt_store_get_stats(lt_store *s);

#endif
