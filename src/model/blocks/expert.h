/* expert.h: expert parallelism: the ranks of a group divide the experts of each layer, and rows
 * travel to the ranks that hold the experts they chose, and back.
 *
 *     rows of this rank, in expert order ─ all-to-all ─▶ rows of all ranks for the experts that are
 *         here ─ up, activation, down ─▶ their results ─ all-to-all ─▶ back in the places they left
 *
 * Rank j of n holds experts [j E/n, (j + 1) E/n). Rows in expert order (block_moe.c) are also in
 * the order of the ranks, so they are sent from where they lie. They arrive ordered by source, and
 * are put in the order (expert, source, row), so that results do not depend on the order of
 * arrival. How many rows come is known only after the ranks have exchanged a number for each
 * expert. (Lepikhin et al. 2020, arXiv:2006.16668; dropless: Gale et al. 2022, arXiv:2211.15841)
 *
 * On a GPU the routes are computed on the device, and the host needs their counts for the
 * all-to-all, so it waits for them once for each layer of a forward pass. Counts travel between
 * hosts, rows between GPUs.
 *
 * Room: in the worst case every row of every rank chooses the experts of one rank, n times the rows
 * of one rank. With `room` > 0 there is memory for that many times the even share; a step that
 * needs more fails, and the message says how much. */
#ifndef LT_MODEL_EXPERT_H
#define LT_MODEL_EXPERT_H

#include "base/arena.h"
#include "model/pass/acts.h"

/* The host's copy of the counts of a layer: t->expert_start (E + 1); how many rows came from each
 * rank for each expert that is here, t->expert_count (n, E / n); and t->here_start (E / n + 1). */
typedef struct {
    const void *of; /* t->here_start.data */
    uint64_t meeting;
    int32_t *start, *count, *here;
} lt_experts_counts;

typedef struct lt_experts {
    lt_group *group, *host; /* host: of verbs on host memory. */
    int n, rank;
    double room; /* As the options say. */
    /* (room, C): rows in the order of transfers; results of the local experts. */
    void *wire, *result;
    void *home;      /* (R * K, C): this rank's own rows in expert order. */
    int32_t *tell;   /* (E): rows for each expert; on the host, as what follows. */
    int64_t *counts; /* (2 n) */
    /* On a device: the counts of the layers and sets that were used last, as many as there can be.
     * With host memory the counts are in the layer's own tensors. */
    lt_experts_counts *met;
    int n_met, most_met;
    uint64_t n_meetings;
    lt_arena memory;
} lt_experts;

/* Rows that may arrive at a rank's experts from `own` rows of each of n ranks. */
int64_t lt_experts_room(int64_t own, int n, double room);
LT_MUST_USE lt_err lt_experts_check(const lt_model_spec *s, const lt_pass_options *o);
void lt_experts_carve(lt_experts *x, const lt_model_spec *s, lt_dtype dtype,
                      const lt_pass_options *o, lt_arena *a);
/* Open the memory for a pass with `most` layers in all its sets. close accepts a struct that was
 * never opened. */
LT_MUST_USE lt_err lt_experts_open(lt_experts *x, const lt_model_spec *s, const lt_pass_options *o,
                                   int most, lt_device *device);
void lt_experts_close(lt_experts *x, lt_device *device);

/* Without a group (r->experts NULL) all these functions do nothing, and return the layer's own
 * tensors.
 *
 * Exchange how many rows go where, and store it in t->expert_count and t->here_start; once for each
 * layer of a forward pass. LIMIT: more rows than there is room for. */
LT_MUST_USE lt_err lt_experts_meet(lt_exec *r, int layer, const lt_layer_acts *t);
/* The layer's tensors for the local experts: xg, up, act and down with as many rows as were
 * received, and expert_start of these experts. */
lt_layer_acts lt_experts_here(const lt_exec *r, const lt_layer_acts *t);
/* Place for this rank's own rows in expert order; without a group xg. */
lt_tensor lt_experts_own_rows(const lt_exec *r, const lt_layer_acts *t);
/* Memory for the results of the received rows, or for their gradients; without a group `own`. */
lt_tensor lt_experts_results(const lt_exec *r, const lt_layer_acts *t, lt_tensor own);
/* Send this rank's rows, in expert order, to the ranks of their experts; and the results back. */
LT_MUST_USE lt_err lt_experts_send(lt_exec *r, const lt_layer_acts *t, lt_tensor there,
                                   lt_tensor own);
LT_MUST_USE lt_err lt_experts_return(lt_exec *r, const lt_layer_acts *t, lt_tensor own,
                                     lt_tensor there);

#endif
