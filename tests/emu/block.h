/* block.h: run one block of a launch on the calling host thread. */
#ifndef LT_EMU_BLOCK_H
#define LT_EMU_BLOCK_H

#include <stdbool.h>

#include "emu.h"

typedef struct emu_worker
    emu_worker; /* What a host thread needs to run blocks: stacks, threads, shared memory. */

typedef struct {
    const char *name;
    const emu_entry *entry;
    void **args;
    emu_dim3 grid, block;
    size_t dynamic_bytes;
    /* Called when every thread of a block spins: another block must move. */
    void (*stuck)(void *context);
    void *context;
} emu_work;

emu_worker *emu_worker_open(void);
void emu_worker_close(emu_worker *w);
void emu_block_run(emu_worker *w, const emu_work *work, emu_dim3 index);

#endif
