/* world.h: the ranks of a run, laid out as a mesh, and what this one holds of the model.
 *
 *     lt_world_open(&w, "dp=2,tp=2", ...)    who is there, and the groups of the mesh
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
    int rank;         /* Of all. */
    int dp;           /* Ranks that share the rows of a step, */
    int dp_rank;      /* and which of them this one is. Ranks of cp, tp and pp see the same rows. */
    lt_layout layout; /* By lt_world_divide. */
    /* Ranks that hold the same key heads, and both stages of a tied embedding; NULL: no others. */
    lt_group *kv, *stages;
} lt_world;

/* mesh: "dp=4"; "": all ranks divide the rows (dp). A process that nobody started as one of several
 * ranks is alone. ARG: the mesh does not fit the number of ranks. threads: where the environment
 * does not say how many threads a rank's kernels have, ranks of one machine divide its cores. */
LT_MUST_USE lt_err lt_world_open(lt_world *w, const char *mesh, double deadline_s,
                                 const char *record_dir);
/* The same over a world that is open already, e.g. of lt_comm_run_threads, for any axes; comm stays
 * the caller's. */
LT_MUST_USE lt_err lt_world_open_on(lt_world *w, lt_comm *comm, const char *mesh);
/* Tell the other ranks that this one goes on no more, if err is a failure; then close. */
void lt_world_close(lt_world *w, lt_err err);

/* What this rank holds of the model, and the groups of those that hold the same: a collective
 * call. stages: which layers each rank of pp has; NULL: even runs. spec outlives the world. ARG:
 * the model does not divide so. */
LT_MUST_USE lt_err lt_world_divide(lt_world *w, const lt_model_spec *spec, const lt_stages *stages);

/* Does some rank hold a part of the model only? */
bool lt_world_is_divided(const lt_world *w);

/* Each rank of a replica (pp x tp) has seen the same rows. Does this one tell of them: of the rows
 * themselves; of the labels' losses, which ranks of cp divide; of what each stage adds up in its
 * layers? */
bool lt_world_tells_rows(const lt_world *w);
bool lt_world_tells_losses(const lt_world *w);
bool lt_world_tells_layers(const lt_world *w);

/* Which part of a checkpoint this rank writes, of *n_parts; -1: none, others hold the same. */
int lt_world_part(const lt_world *w, int *n_parts);

#endif
