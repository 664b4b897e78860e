/* launched.h: what a rank that `lateen launch` started does with any transport (shm.c, tcp.c): it
 * reads which rank it is, meets the others at the store, and sends heartbeats. */
#ifndef LT_COMM_LAUNCHED_H
#define LT_COMM_LAUNCHED_H

#include "comm/call.h"
#include "comm/store.h"

typedef struct {
    int rank, n;
    int segment; /* Descriptor of the memory segment; -1: ranks are on several machines. */
    uint64_t epoch;
    const char *address, *token; /* Address and token of the store. */
} lt_launched;

/* Seconds to wait for all ranks at the start. */
double lt_launched_open_s(const lt_launched *l);
/* Another rank that is silent for this many seconds counts as failed; 0: never. */
double lt_launched_silent_s(void);
bool lt_launched_apart(void); /* Whether the ranks are on several machines. */
/* ARG: the environment is not the one that the launcher sets for a rank. */
LT_MUST_USE lt_err lt_launched_read(lt_launched *l);
LT_MUST_USE lt_err lt_launched_join(lt_comm_store **out, const lt_launched *l);
/* From now on the rank sends heartbeats, and c is aborted when the launcher asks for it. Waits
 * until all ranks have made this call. */
LT_MUST_USE lt_err lt_launched_begin(lt_comm_store *store, const lt_launched *l, lt_comm *c);

#endif
