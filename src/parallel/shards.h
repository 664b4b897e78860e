/* shards.h: who keeps which slice of each unit (ZeRO).
 *
 * The elements of a unit that this rank of pp x tp holds lie in one piece. n ranks that hold the
 * same divide them into n slices of one size; the unit has room for n such, so that slices are
 * gathered into it and summed out of it where they lie:
 *
 *     unit   | norm1 | qkv ...                  ... down | gap |      n * size elements
 *     slices |     0     |     1     |     2     |     3     |
 *
 * Two tables describe this to everything that reads parameters by boxes: `full`, the units with
 * their room, and `own`, slice `own` of each. Their bytes are the same, so a gather is a copy. */
#ifndef LT_PARALLEL_SHARDS_H
#define LT_PARALLEL_SHARDS_H

#include "parallel/world.h"

typedef struct {
    const lt_world *world; /* Divided; outlives the shards. */
    int level;             /* mesh.zero: 0 nothing, 1 optimiser, 2 and gradients, 3 and weights. */
    int n, own;            /* Slices, and which of them is this rank's; level 0: 1, 0. */
    lt_group *ranks;       /* Those that keep the slices. */
    lt_group *replicas;    /* Those that keep the same slice; NULL: only this one. */
    lt_param_table full;   /* Level 0: empty. */
} lt_shards;

/* per_group: mesh.shard, how many ranks divide a model between them; 0: all that hold the same. A
 * collective call behind lt_world_divide. Free with lt_shards_close. ARG: per_group does not divide
 * the ranks; UNSUPPORTED: with experts spread over ranks. */
LT_MUST_USE lt_err lt_shards_open(lt_shards *s, const lt_world *w, int level, int per_group);
void lt_shards_close(lt_shards *s);

/* What the model that passes run on holds, and what this rank keeps; they point to the shards. */
lt_partition lt_shards_full(const lt_shards *s);
lt_partition lt_shards_own(const lt_shards *s);
/* Elements [*from, *to) of what is held of a parameter of `full` that lie in a member's slice;
 * none: from >= to. */
void lt_shards_range(const lt_shards *s, const lt_param *p, int member, int64_t *from, int64_t *to);
/* Elements of a slice of a unit. */
int64_t lt_shards_size(const lt_shards *s, int unit);

/* Which part of a checkpoint this rank writes, of *n_parts; -1: none. */
int lt_shards_part(const lt_shards *s, int *n_parts);

#endif
