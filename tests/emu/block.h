/* block.h: run one cluster of a launch on the calling host thread; a block, where the launch has no
 * clusters. */
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
    emu_dim3 grid, block, cluster; /* cluster: of blocks; 1 x 1 x 1 is none. */
    size_t dynamic_bytes;
    uint64_t turn; /* Launches before: no two of a program meet the same chances. */
    /* Called when every thread of a cluster spins: another one must move. */
    void (*stuck)(void *context);
    void *context;
} emu_work;

emu_worker *emu_worker_open(void);
void emu_worker_close(emu_worker *w);
void emu_cluster_run(emu_worker *w, const emu_work *work, emu_dim3 first);
/* No more clusters for now: copies to global memory still under way are done. */
void emu_worker_rest(emu_worker *w);

#endif
