/* stored_entry.h: the stored entry that a path names, for stored/stored.c (responses) and
 * stored/stored_chat.c (chat completions). An entry of another key is treated as missing. */
#ifndef LT_SERVE_STORED_ENTRY_H
#define LT_SERVE_STORED_ENTRY_H

#include "serve/api/server.h"

typedef struct {
    const char *prefix;  /* Prefix of ids. */
    const char *param;   /* In errors. */
    const char *noun;    /* Its name in a message. */
    const char *deleted; /* "object" of the answer to a deletion. */
} lt_stored_kind;

/* Answer 404: the first n bytes of the path's tail name no entry. */
void lt_stored_absent(lt_call *call, const lt_stored_kind *kind, size_t n);
/* The entry at the beginning of the path's tail, held; NULL: the call was answered. *rest: the path
 * after the id. */
lt_stored *lt_stored_find(lt_call *call, const lt_stored_kind *kind, const char **rest);
/* Delete the entry whose id is the whole tail, and answer. */
void lt_stored_delete(lt_call *call, const lt_stored_kind *kind);

#endif
