/* inside.h: between block.c, which runs threads, copies.c, the copy engine and barriers in memory,
 * and products.c, the warpgroup's products. */
#ifndef LT_EMU_INSIDE_H
#define LT_EMU_INSIDE_H

#include <stdbool.h>

#include "emu.h"

uint32_t emu_random(uint32_t below);
void emu_sleep(const void *at, const char *what); /* Until emu_wake(at). */
void emu_wake(const void *at);
void emu_give_way(void); /* In random orders, now and then: others first. */

/* ---- The cluster's shared memory: an address says the block (mapa), or means the caller's own. */
#define EMU_SHARED_BITS 24
#define EMU_SHARED_MASK ((1u << EMU_SHARED_BITS) - 1)
int emu_shared_rank(uint32_t address);
unsigned char *emu_shared_of(int rank, uint32_t address, size_t bytes);
bool emu_block_left(int rank); /* All its threads have: nobody may touch its memory. */
int emu_cluster_blocks(void);

/* ---- copies.c: what is under way of a worker's clusters. */
typedef struct emu_copies emu_copies;
emu_copies *emu_copies_open(void);
void emu_copies_close(emu_copies *c);
emu_copies *emu_copies_here(void);
bool emu_copies_under_way(const emu_copies *c);
void emu_copies_step(emu_copies *c);        /* Some of one of them, chosen at random. */
void emu_copies_thread_ends(emu_copies *c); /* The calling thread. */

/* ---- products.c: what a warpgroup has asked for and no warp of it has waited for. */
typedef struct {
    struct emu_product *list;
    int n, most, first;     /* first: how many before are made. */
    int asked[4], group[4]; /* Of each warp: products and closed groups so far. */
    /* The group behind its last product's; the first that it has not waited for. */
    int last[4], waited[4];
} emu_products;
emu_products *emu_products_here(void); /* The calling thread's warpgroup's. */
void emu_products_begin(emu_products *all);
void emu_products_end(const emu_products *all); /* The calling thread's warp has left. */
void emu_products_free(emu_products *all);

#endif
