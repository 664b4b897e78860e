/* block.h: runs one cluster of a launch (one block, if the launch has no clusters) on the calling
 * host thread. */
#ifndef LT_EMU_BLOCK_H
#define LT_EMU_BLOCK_H

#include <stdbool.h>

#include "emu.h"

/* What a host thread needs to run clusters: stacks, threads, shared memory. */
typedef struct emu_worker emu_worker;

typedef struct {
    const char *name;
    const emu_entry *entry;
    void **args;
    emu_dim3 grid, block, cluster; /* cluster: size in blocks; 1 x 1 x 1: no clusters. */
    size_t dynamic_bytes;
    /* Number of earlier launches, so that each launch of a program gets its own random
     * sequence. */
    uint64_t turn;
    /* Called when every thread of a cluster spins, so that another cluster can run. */
    void (*stuck)(void *context);
    void *context;
} emu_work;

emu_worker *emu_worker_open(void);
void emu_worker_close(emu_worker *w);
void emu_cluster_run(emu_worker *w, const emu_work *work, emu_dim3 first);
/* There are no more clusters for now: copies to global memory in flight are completed. */
void emu_worker_rest(emu_worker *w);

#endif
