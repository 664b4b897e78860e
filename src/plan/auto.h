/* auto.h: the mesh and the level of ZeRO for a run of Lateen on several ranks (`layout: auto`).
 *
 * Every mesh that training accepts for the recipe is measured and priced:
 *
 *     memory   the bytes that each stage's fullest rank announces, from the carve functions that
 *              training calls, with the partition of that rank
 *     time     the computing of one rank (own.h; on CPUs the model's arithmetic / a rate), divided
 *              over pp, cp and tp; plus what each axis sends, by collective.c
 *
 *       dp       sums of gradients and gathers of weights (docs/parallel.md has the bytes), hidden
 *                behind up to a share of the passes that run beside them; the embedding's are not
 *                hidden
 *       tp       8 gathers or scatters of a micro-batch's stream a layer; on GPUs hidden behind
 *                products of a rank's own rows
 *       cp       gathers of keys and values a layer, not hidden; by `ring` mostly hidden
 *       ep       4 exchanges of the chosen rows a layer, not hidden
 *       pp       the sends of each micro-batch, and the schedule's bubble, by its closed form
 *
 * The fastest layout that fits the memory is chosen. The choice is a pure function of the recipe,
 * the number of ranks and the kind of machine, so all ranks of a run make the same one. */
#ifndef LT_PLAN_AUTO_H
#define LT_PLAN_AUTO_H

#include "lateen/comm.h"
#include "plan/own.h"

typedef struct {
    bool on_device;
    double memory_bytes;     /* Of one rank; 0: unlimited. */
    lt_plan_cluster cluster; /* Kind of GPU, links. */
    lt_own_rates rates;      /* Rates on a device. */
    double flops_per_s;      /* Rate of a rank on CPUs. */
} lt_auto_machine;

/* A machine of GPUs: from a cluster file or kind (lt_plan_cluster_load), or from the name that a
 * driver gives. memory_bytes is the kind's memory without what the driver and NCCL need. */
LT_MUST_USE lt_err lt_auto_machine_gpu(lt_auto_machine *out, const char *name, int n_ranks);
/* CPU ranks of one machine with this many cores. */
void lt_auto_machine_cpu(lt_auto_machine *out, int n_cores, int n_ranks);

typedef struct {
    lt_mesh_shape mesh;
    int zero;
    int64_t micro; /* Rows of a micro-batch. */
    double bytes;  /* Bytes that the fullest rank announces: on the device, or in total. */
    bool fits;
    /* Seconds of a step: a rank's compute, its waits for others, by axis, and its pipeline
     * bubble. */
    double compute_s, dp_s, tp_s, cp_s, ep_s, pp_s, bubble_s, step_s;
} lt_auto_layout;

/* All layouts: those that fit, the fastest first, then the others by memory; free *out. ARG: the
 * recipe cannot be trained on this many ranks at all. */
LT_MUST_USE lt_err lt_auto_find(lt_auto_layout **out, size_t *n, const lt_recipe *r, int n_ranks,
                                const lt_auto_machine *m);
/* The same for one mesh, with the recipe's mesh.zero. ARG: training does not accept the mesh. */
LT_MUST_USE lt_err lt_auto_price(lt_auto_layout *out, const lt_recipe *r, const lt_mesh_shape *mesh,
                                 const lt_auto_machine *m);
/* "dp=4,tp=2"; "dp=1" for a single rank. */
#define LT_AUTO_MESH_BYTES 64
char *lt_auto_mesh_text(char out[LT_AUTO_MESH_BYTES], const lt_mesh_shape *mesh);
/* Seconds that a layout waits: on all axes and in the bubble. */
double lt_auto_exposed_s(const lt_auto_layout *l);

#endif
