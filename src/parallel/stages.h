/* stages.h: which layers belong to which stage of a pipeline, and which stages to which rank.
 *
 * Stages are consecutive layers, numbered in the order in which a micro-batch passes them; the
 * first one also has the embeddings, the last one the final norm and the head. Unless the recipe
 * lists the layers of each stage, the cuts make the costliest stage as cheap as possible, in
 * multiplications per token. The head counts, so with a large vocabulary the last stage gets fewer
 * layers. */
#ifndef LT_PARALLEL_STAGES_H
#define LT_PARALLEL_STAGES_H

#include "lateen/model.h"
#include "parallel/schedule.h"

typedef struct {
    lt_schedule_kind schedule;
    int ranks, chunks;
    int first[LT_MAX_LAYERS + 1]; /* Stage s has layers [first[s], first[s + 1]). */
} lt_stages;

/* Multiplications per token, forward: of a layer, and of the head. seq: tokens of a sequence. */
double lt_layer_work(const lt_model_spec *spec, int64_t layer, int64_t seq);
double lt_head_work(const lt_model_spec *spec);

/* chunks 0: the fewest that the schedule allows. list: layers of each stage, "7,8,8,7"; "": by
 * cost. ARG: fewer layers than stages, or a list that does not add up; the message names the
 * numbers and the nearest that fit. */
LT_MUST_USE lt_err lt_stages_open(lt_stages *out, const lt_model_spec *spec,
                                  lt_schedule_kind schedule, int ranks, int chunks, int64_t seq,
                                  const char *list);

/* Layers [*first, *end) of a rank's chunk. */
void lt_stages_layers(const lt_stages *s, int rank, int chunk, int *first, int *end);
/* Each stage's fraction of the total work, (ranks * chunks). */
void lt_stages_shares(double *out, const lt_stages *s, const lt_model_spec *spec, int64_t seq);

#endif
