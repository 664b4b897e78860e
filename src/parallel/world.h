/* world.h: the ranks of a run, laid out as a mesh, and the part of the model that this rank holds.
 *
 *     lt_world_open(&w, "dp=2,tp=2", ...)    the ranks, and the groups of the mesh
 *     lt_world_divide(&w, &spec)             w.layout, as soon as the model's shape is known
 */
#ifndef LT_PARALLEL_WORLD_H
#define LT_PARALLEL_WORLD_H

#include "lateen/comm.h"
#include "parallel/layout.h"

typedef struct {
    lt_comm *comm; /* NULL: this process is alone, and the fields below are zero. */
    bool owns_comm;
    lt_mesh mesh;
    lt_mesh_shape shape;
    int rank;         /* Among all ranks. */
    int dp;           /* Ranks that share the rows of a step, */
    int dp_rank;      /* and which of them this one is. Ranks of cp, tp and pp see the same rows. */
    lt_layout layout; /* Set by lt_world_divide. */
    /* The ranks with the same key heads, and the two stages with a tied embedding; NULL: only this
     * rank. */
    lt_group *kv, *stages;
    /* Where the ranks train on GPUs: a world of the same ranks whose buffers are in GPU memory, and
     * mesh.grad in it; NULL: buffers are in host memory. */
    lt_comm *device;
    lt_group *device_grad;
} lt_world;

/* mesh: "dp=4"; "": all ranks divide the rows (dp). A process that was not started as one of
 * several ranks is alone. ARG: the mesh does not fit the number of ranks. threads: ranks of one
 * machine divide its cores, unless the environment sets the number of threads of a rank's
 * kernels. */
LT_MUST_USE lt_err lt_world_open(lt_world *w, const char *mesh, double deadline_s,
                                 const char *record_dir);
/* The same for a world that is already open, e.g. by lt_comm_run_threads, for any axes; the caller
 * keeps comm. */
LT_MUST_USE lt_err lt_world_open_on(lt_world *w, lt_comm *comm, const char *mesh);
/* A collective call of all ranks, each with the device that it trains on; queue: of the work that
 * produces what is sent and uses what is received. Opens w->device if these are GPUs; for meshes of
 * dp alone. The device outlives the world. ARG: some ranks are on GPUs and some are not. */
LT_MUST_USE lt_err lt_world_open_device(lt_world *w, lt_device *device, lt_queue *queue);
/* For verbs on buffers of the device: mesh.grad, and the world that it belongs to. */
lt_group *lt_world_grad(const lt_world *w);
lt_comm *lt_world_buffers(const lt_world *w);
/* This rank's number among those of its machine. */
int lt_world_local_rank(const lt_world *w);
/* If err is a failure, tell the other ranks that this one has ended; then close. */
void lt_world_close(lt_world *w, lt_err err);

/* A collective call: sets the part of the model that this rank holds, and opens the groups of ranks
 * that hold the same. stages: the layers of each rank of pp; NULL: even pieces. spec outlives the
 * world. ARG: the model cannot be divided like this. */
LT_MUST_USE lt_err lt_world_divide(lt_world *w, const lt_model_spec *spec, const lt_stages *stages);

/* Does any rank hold only a part of the model? */
bool lt_world_is_divided(const lt_world *w);

/* Each rank of a replica (pp x tp) has seen the same rows. Does this one report them: the rows
 * themselves; the losses of labels, which ranks of cp divide; the sums that each stage forms in its
 * layers? */
bool lt_world_tells_rows(const lt_world *w);
bool lt_world_tells_losses(const lt_world *w);
bool lt_world_tells_layers(const lt_world *w);

/* Which of *n_parts parts of a checkpoint this rank writes; -1: none, because others hold the
 * same. */
int lt_world_part(const lt_world *w, int *n_parts);

#endif
