/* inside.h: shared by block.c, which runs threads; copies.c, the copy engine and barriers in
 * memory; and products.c, the products of warpgroups. */
#ifndef LT_EMU_INSIDE_H
#define LT_EMU_INSIDE_H

#include <stdbool.h>

#include "emu.h"

uint32_t emu_random(uint32_t below);
void emu_sleep(const void *at, const char *what); /* The thread waits until emu_wake(at). */
void emu_wake(const void *at);
void emu_give_way(void); /* With random orders, sometimes yield to other threads. */

/* ---- Shared memory of the cluster: an address names its block (mapa), or means the caller's
 * own. */
#define EMU_SHARED_BITS 24
#define EMU_SHARED_MASK ((1u << EMU_SHARED_BITS) - 1)
int emu_shared_rank(uint32_t address);
unsigned char *emu_shared_of(int rank, uint32_t address, size_t bytes);
bool emu_block_left(int rank); /* All of its threads have left: no thread may touch its memory. */
int emu_cluster_blocks(void);

/* ---- copies.c: copies in flight of the clusters of a worker. */
typedef struct emu_copies emu_copies;
emu_copies *emu_copies_open(void);
void emu_copies_close(emu_copies *c);
emu_copies *emu_copies_here(void);
bool emu_copies_under_way(const emu_copies *c);
void emu_copies_step(emu_copies *c);        /* Do some pieces of a random copy. */
void emu_copies_thread_ends(emu_copies *c); /* The calling thread has ended. */

/* ---- products.c: products that a warpgroup has requested and no warp of it has waited for. */
typedef struct {
    struct emu_product *list;
    int n, most, first;     /* first: the number of earlier ones, which are complete. */
    int asked[4], group[4]; /* Per warp: number of products requested and of groups closed. */
    /* Per warp: the group after that of its last product; the first group that it has not waited
     * for. */
    int last[4], waited[4];
} emu_products;
emu_products *emu_products_here(void); /* Those of the calling thread's warpgroup. */
void emu_products_begin(emu_products *all);
void emu_products_end(const emu_products *all); /* The warp of the calling thread has left. */
void emu_products_free(emu_products *all);

#endif
