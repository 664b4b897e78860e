/* world.h: the ranks of a run: those that mpirun or srun started, laid out as a mesh. */
#ifndef LT_PARALLEL_WORLD_H
#define LT_PARALLEL_WORLD_H

#include "lateen/comm.h"

typedef struct {
    lt_comm *comm; /* NULL: this process is alone, and the fields below are zero. */
    lt_mesh mesh;
    int rank;    /* Of all. */
    int dp;      /* Ranks that share the rows of a step, */
    int dp_rank; /* and which of them this one is. */
} lt_world;

/* mesh: "dp=4"; "": all ranks divide the rows (dp). A process that nobody started as one of several
 * ranks is alone. ARG: the mesh does not fit the number of ranks; UNSUPPORTED: an axis that is not
 * served. threads: where the environment does not say how many threads a rank's kernels have, ranks
 * of one machine divide its cores. */
LT_MUST_USE lt_err lt_world_open(lt_world *w, const char *mesh, double deadline_s,
                                 const char *record_dir);
/* Tell the other ranks that this one goes on no more, if err is a failure; then close. */
void lt_world_close(lt_world *w, lt_err err);

#endif
