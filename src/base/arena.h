/* arena.h: one block of memory for one lifetime (weights, gradients, activations, ...).
 *
 * A carve function takes every buffer of a set from an arena. It is called twice with the same
 * arguments: first on a measuring arena (base NULL), where it only sums sizes, then on a real one,
 * where the same calls place the buffers. So sizes and pointers cannot disagree:
 *
 *     lt_arena a = {0};
 *     acts_carve(&acts, spec, &a);                 measure
 *     LT_TRY(lt_arena_open(&a, "activations"));    one allocation of the measured size
 *     acts_carve(&acts, spec, &a);                 place
 */
#ifndef LT_BASE_ARENA_H
#define LT_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"

#define LT_ARENA_ALIGN 64 /* A cache line and the widest vector register. */

typedef struct {
    unsigned char *base; /* NULL while measuring. */
    size_t size_bytes;
    size_t used_bytes;
    const char *name; /* For messages; a string that outlives the arena. */
} lt_arena;

/* Take bytes at an alignment that is a power of two (usually LT_ARENA_ALIGN). Returns NULL while
 * measuring. On a real arena, asking for more than was measured is a bug and asserts. */
void *lt_arena_take(lt_arena *a, size_t bytes, size_t align);

/* Allocate the measured size (used_bytes), zeroed, and rewind so that the carve can run again. */
LT_MUST_USE lt_err lt_arena_open(lt_arena *a, const char *name);

void lt_arena_rewind(lt_arena *a); /* Forget all that was taken; the memory stays allocated. */
void lt_arena_close(lt_arena *a);  /* Accepts an arena that was never opened. */

#endif
