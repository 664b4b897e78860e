/* world.h: the ranks of a run, laid out as a mesh, and the part of the model that this rank holds.
 *
 *     lt_world_open(&w, "dp=2,tp=2", ...)    the ranks, and the groups of the mesh
 *     lt_world_open_device(&w, device)       where it is a GPU: the groups for buffers on it
 *     lt_world_divide(&w, &spec)             w.layout, as soon as the model's shape is known
 *     lt_world_connect(&w, queue)            the GPUs, as soon as passes are open
 */
#ifndef LT_PARALLEL_WORLD_H
#define LT_PARALLEL_WORLD_H

#include "comm/board.h"
#include "lateen/comm.h"
#include "parallel/layout.h"

#define LT_WORLD_TWINS 16 /* At most this many groups have a twin for GPU buffers. */

typedef struct {
    lt_comm *comm; /* NULL: this process is alone, and the fields below are zero. */
    /* On which this rank shows its launcher its progress; NULL: there is no launcher. */
    lt_board *board;
    bool owns_comm;
    lt_mesh mesh;
    lt_mesh_shape shape;
    int full_dp;      /* dp when no rank is missing: a launcher may have fewer for a while. */
    int first;        /* Rank of comm at which the mesh begins: 0, or the first rank of a site. */
    int rank;         /* Rank among the ranks of the mesh. */
    int dp;           /* Number of ranks that share the rows of a step, */
    int dp_rank;      /* and which of them this one is. Ranks of cp, tp and pp see the same rows. */
    lt_layout layout; /* Set by lt_world_divide. */
    /* The ranks with the same key heads, and the two stages with a tied embedding; NULL: only this
     * rank. */
    lt_group *kv, *stages;
    /* If the ranks train on GPUs, a world of the same ranks whose buffers are in GPU memory, with
     * groups parallel to those of comm; NULL: buffers are in host memory. */
    lt_comm *device;
    struct {
        lt_group *host, *device;
    } twins[LT_WORLD_TWINS];
    int n_twins;
} lt_world;

/* mesh: "dp=4"; "": all ranks divide the rows (dp). A process that was not started as one of
 * several ranks is alone. sites: the ranks are divided into this many meshes of equal size, and the
 * mesh of this rank is opened; 1: one mesh has all ranks. ARG: the mesh does not fit the number of
 * ranks. threads: ranks of one machine divide its cores, unless the environment sets the number of
 * threads of a rank's kernels. If nodes are lost and the launcher has fewer ranks than the mesh, dp
 * is reduced in proportion. */
LT_MUST_USE lt_err lt_world_open(lt_world *w, const char *mesh, int sites, double deadline_s,
                                 const char *record_dir);
/* The same for an open world, e.g. of lt_comm_run_threads, and for any axes; the caller keeps
 * comm. */
LT_MUST_USE lt_err lt_world_open_on(lt_world *w, lt_comm *comm, const char *mesh);
/* If this rank trains on a GPU, open w->device, and in it the groups of the mesh for verbs on
 * buffers of the GPU; before lt_world_divide. It waits for no other rank. The device outlives the
 * world. */
LT_MUST_USE lt_err lt_world_open_device(lt_world *w, lt_device *device);
/* Open the twin of another group in w->device; call it before lt_world_connect. No-op for NULL, a
 * group of one, or a world without GPUs. */
LT_MUST_USE lt_err lt_world_add_twin(lt_world *w, lt_group *g);
/* A collective call of all ranks when all groups are open: connects the GPUs. queue: the one whose
 * work produces what is sent and uses what is received. ARG: some ranks are on GPUs and some are
 * not. */
LT_MUST_USE lt_err lt_world_connect(lt_world *w, lt_queue *queue);
/* The group for verbs on the buffers of passes: the twin of g, and the world that it belongs to; g
 * itself if the buffers are in host memory. */
lt_group *lt_world_twin(const lt_world *w, lt_group *g);
lt_comm *lt_world_buffers(const lt_world *w);
/* This rank's number among those of its machine. */
int lt_world_local_rank(const lt_world *w);
/* If err is a failure, tell the other ranks that this one has ended; then close. */
void lt_world_close(lt_world *w, lt_err err);

/* A collective call: sets the part of the model that this rank holds, and opens the groups of ranks
 * that hold the same. stages: the layers of each rank of pp; NULL: even pieces. spec outlives the
 * world. ARG: the model cannot be divided like this. */
LT_MUST_USE lt_err lt_world_divide(lt_world *w, const lt_model_spec *spec, const lt_stages *stages);

/* A collective call: the ranks of pp x cp x tp around this one, which see the same rows, as a group
 * for host memory. NULL: this rank alone. */
LT_MUST_USE lt_err lt_world_open_rows(lt_world *w, lt_group **out);

/* Whether any rank holds only a part of the model. */
bool lt_world_is_divided(const lt_world *w);

/* Each rank of a replica (pp x tp) has seen the same rows. Does this one report them: the rows
 * themselves; the losses of labels, which ranks of cp divide; the sums that each stage forms in its
 * layers? */
bool lt_world_tells_rows(const lt_world *w);
bool lt_world_tells_losses(const lt_world *w);
bool lt_world_tells_layers(const lt_world *w);

/* Which of *n_parts parts of a checkpoint this rank writes; -1: none, because other ranks hold the
 * same. */
int lt_world_part(const lt_world *w, int *n_parts);

/* A collective call: the least and the largest of the ranks' numbers. */
LT_MUST_USE lt_err lt_world_range(const lt_world *w, double own, double *least, double *most);

#endif
