/* shm.h: what `lateen launch` gives its ranks: a memory segment for their messages, and environment
 * variables that identify them. */
#ifndef LT_COMM_SHM_H
#define LT_COMM_SHM_H

#include "comm/store.h"

#define LT_SHM_MOST_RANKS 256
/* The most transfers that a rank has in progress: one for each call, and those of a collective to
 * and from every rank. */
#define LT_SHM_MOST_TRANSFERS (LT_COMM_AHEAD + 2 * LT_SHM_MOST_RANKS)

#define LT_ENV_RANK    "LATEEN_RANK"    /* This rank, 0 to n - 1. */
#define LT_ENV_RANKS   "LATEEN_RANKS"   /* n, the number of ranks. */
#define LT_ENV_FULL    "LATEEN_FULL"    /* n if no rank were missing: the run may have shrunk. */
#define LT_ENV_SEGMENT "LATEEN_SEGMENT" /* Descriptor of the segment, which the rank inherits, */
#define LT_SEGMENT_TCP "tcp"            /* or this if the ranks are on several machines (tcp.c). */
#define LT_ENV_STORE   "LATEEN_STORE"   /* Address of the store. */
#define LT_ENV_TOKEN   "LATEEN_TOKEN"
#define LT_ENV_EPOCH   "LATEEN_EPOCH"  /* Job attempt << 32 | generation. */
#define LT_ENV_BEAT    "LATEEN_BEAT"   /* Seconds between heartbeats; 0: none. */
#define LT_ENV_SILENT  "LATEEN_SILENT" /* A rank that is silent for this many seconds has failed. */
/* If the ranks are on several machines: this rank's number on its machine, and how many are
 * there. */
#define LT_ENV_LOCAL_RANK  "LATEEN_LOCAL_RANK"
#define LT_ENV_LOCAL_RANKS "LATEEN_LOCAL_RANKS"

/* An unnamed segment for n ranks, which vanishes with its last descriptor and mapping. *fd -1: make
 * a new one; otherwise reset that one for the next world, once no rank maps it. */
LT_MUST_USE lt_err lt_shm_make(int *fd, int n, uint64_t epoch);

#endif
