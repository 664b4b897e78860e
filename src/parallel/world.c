/* world.c: see world.h. */
#include "parallel/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"

/* mpirun's count of ranks on this machine; 1 where it is not known. */
static int ranks_here(void) {
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const int n = text != NULL ? atoi(text) : 1;
    return n > 0 ? n : 1;
}

static void divide_cores(void) {
    const int here = ranks_here();
    if (getenv("OMP_NUM_THREADS") == NULL && here > 1) {
        const int each = lt_thread_count() / here;
        lt_thread_set_count(each > 0 ? each : 1);
    }
}

static lt_err check_axes(const lt_mesh_shape *s, const char *mesh) {
    if (s->pp > 1 || s->cp > 1 || s->tp > 1 || s->ep > 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "mesh '%s': training divides rows (dp) and nothing else yet",
                mesh);
    }
    return LT_OK;
}

static lt_err place(lt_world *w, const char *mesh) {
    lt_mesh_shape s;
    LT_TRY(lt_mesh_parse(&s, mesh));
    LT_TRY(check_axes(&s, mesh));
    if (mesh[0] == '\0') {
        s.dp = lt_comm_size(w->comm);
    }
    LT_TRY(lt_mesh_check(&s, lt_comm_size(w->comm)));
    LT_TRY(lt_mesh_open(&w->mesh, w->comm, &s));
    w->rank = lt_comm_rank(w->comm);
    w->dp = lt_group_size(w->mesh.grad);
    w->dp_rank = lt_group_rank(w->mesh.grad);
    return LT_OK;
}

lt_err lt_world_open(lt_world *w, const char *mesh, double deadline_s, const char *record_dir) {
    const lt_comm_options o = {.deadline_s = deadline_s, .record_dir = record_dir, .check = true};
    lt_err err;
    *w = (lt_world){0};
    if (!lt_comm_under_mpi()) {
        lt_mesh_shape s;
        LT_TRY(lt_mesh_parse(&s, mesh));
        LT_TRY(check_axes(&s, mesh));
        return lt_mesh_check(&s, 1);
    }
    LT_TRY(lt_comm_open(&w->comm, &o));
    err = place(w, mesh);
    if (err != LT_OK) {
        lt_world_close(w, err);
        return err;
    }
    divide_cores();
    return LT_OK;
}

void lt_world_close(lt_world *w, lt_err err) {
    if (w->comm != NULL && err != LT_OK && err != LT_ERR_INTERRUPTED) {
        char reason[512];
        (void)snprintf(reason, sizeof reason, "rank %d: %s", lt_comm_rank(w->comm),
                       lt_error_message());
        lt_comm_abort(w->comm, reason);
    }
    if (w->comm != NULL && err == LT_ERR_REMOTE) {
        (void)sleep(1); /* mpirun ends all when one ends: the rank that failed speaks first. */
    }
    lt_comm_close(w->comm);
    *w = (lt_world){0};
}
