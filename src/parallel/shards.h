/* shards.h: which rank keeps which slice of each unit (ZeRO).
 *
 * The elements of a unit that this rank of pp x tp holds are contiguous. The n ranks that hold the
 * same elements divide them into n slices of equal size; the unit has room for all n, so that
 * slices are gathered and summed in place:
 *
 *     unit   | norm1 | qkv ...                  ... down | gap |      n * size elements
 *     slices |     0     |     1     |     2     |     3     |
 *
 * Two tables describe this to all code that reads parameters by boxes: `full`, the units with room
 * for all slices, and `own`, slice `own` of each. The bytes are laid out in the same way, so a
 * gather is a copy.
 *
 * Where adapters are trained (model/lora/lora.h), units are those of the adapters. Level 3 divides
 * them as level 2 does: they are small, and each rank has all that it computes with. The weights of
 * the model beside them are divided too, and have shards of their own.
 *
 * If experts are divided over ranks (ep), the ranks that hold the same elements are those with the
 * same experts: each such group slices all that it holds. */
#ifndef LT_PARALLEL_SHARDS_H
#define LT_PARALLEL_SHARDS_H

#include "model/lora/lora.h"
#include "parallel/world.h"

typedef struct lt_shards {
    const lt_world *world; /* It has already been divided, and outlives the shards. */
    /* mesh.zero: which tensors are divided: 0 none, 1 the optimiser's state, 2 also gradients, 3
     * also weights. */
    int level;
    int n, own;      /* Number of slices, and this rank's slice; 1 and 0 at level 0. */
    lt_group *ranks; /* The ranks that keep the slices. */
    /* The ranks that keep the same slice; NULL: only this one. With ep: the ranks that differ only
     * in their experts, and keep the same slice of everything else. */
    lt_group *replicas;
    lt_param_table full; /* Level 0: empty. */
    /* For adapters: the model beside them, whose weights are divided but not trained; NULL: each
     * rank has all the weights that it computes with. */
    struct lt_shards *frozen;
    /* (n_units): bytes of the blocks that a unit of a frozen model has beside the elements of
     * `full` (model/files/stored_weights.h), which are divided too; NULL: there are none. */
    size_t *block_bytes;
    int64_t numbered_rows; /* lt_stored_most_rows of these blocks. */
    /* The groups and `frozen` belong to other shards (lt_shards_open_beside). */
    bool beside;
} lt_shards;

/* per_group: mesh.shard, how many ranks divide a model among them; 0: all that hold the same. A
 * collective call after lt_world_divide; or, of a world without ranks whose shape and layout are
 * filled in, to plan what one of them would keep. Free with lt_shards_close. ARG: per_group does
 * not divide the ranks. UNSUPPORTED: with ep, per_group, or no two ranks with the same experts. */
LT_MUST_USE lt_err lt_shards_open(lt_shards *s, const lt_world *w, int level, int per_group);
/* The same for the parameters of adapters. */
LT_MUST_USE lt_err lt_shards_open_adapters(lt_shards *s, const lt_world *w, int level,
                                           int per_group, const lt_lora_options *adapters);
/* The same for further adapters of the model of `of`, whose groups of ranks and shards of the model
 * they share; `of` outlives them. */
LT_MUST_USE lt_err lt_shards_open_beside(lt_shards *s, const lt_shards *of,
                                         const lt_lora_options *adapters);
/* Exclude matrices that are kept in blocks (stored) from the elements that are divided. bytes
 * (n_units), the size of each unit's blocks, becomes s->block_bytes, freed by lt_shards_close. */
void lt_shards_keep_blocks(lt_shards *s, const lt_stored_weight *stored, size_t *bytes);
void lt_shards_close(lt_shards *s);

/* The part of the model on which passes run, and the part that this rank keeps; both point to the
 * shards. */
lt_partition lt_shards_full(const lt_shards *s);
lt_partition lt_shards_own(const lt_shards *s);
/* Elements [*from, *to) of the held part of a parameter of `full` that lie in a member's slice;
 * from >= to: none. */
void lt_shards_range(const lt_shards *s, const lt_param *p, int member, int64_t *from, int64_t *to);
/* Elements of a slice of a unit. */
int64_t lt_shards_size(const lt_shards *s, int unit);

/* The shards of the weights that no rank has whole, and that are gathered when they are used
 * (level 3): s, or those of the model beside adapters. NULL: each rank has all that it computes
 * with. */
const lt_shards *lt_shards_of_weights(const lt_shards *s);

/* Which of *n_parts parts of a checkpoint this rank writes; -1: none. */
int lt_shards_part(const lt_shards *s, int *n_parts);

#endif
