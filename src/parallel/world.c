/* world.c: see world.h. */
#include "parallel/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "tensor/backend.h"

/* The number of ranks on this machine according to mpirun; 1 if unknown. */
static int ranks_here(void) {
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const int n = text != NULL ? atoi(text) : 1;
    return n > 0 ? n : 1;
}

/* Under launch, and where ranks are threads, all ranks are on this machine. */
int lt_world_local_rank(const lt_world *w) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
    for (size_t i = 0; lt_comm_under_mpi() && i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL) {
            return atoi(text);
        }
    }
    return w->rank;
}

static void divide_cores(void) {
    const int here = ranks_here();
    if (getenv("OMP_NUM_THREADS") == NULL && here > 1) {
        const int each = lt_thread_count() / here;
        lt_thread_set_count(each > 0 ? each : 1);
    }
}

static lt_err place(lt_world *w, const char *mesh) {
    lt_mesh_shape *s = &w->shape;
    LT_TRY(lt_mesh_parse(s, mesh));
    if (mesh[0] == '\0') {
        s->dp = lt_comm_size(w->comm);
    }
    LT_TRY(lt_mesh_check(s, lt_comm_size(w->comm)));
    LT_TRY(lt_mesh_open(&w->mesh, w->comm, s));
    w->rank = lt_comm_rank(w->comm);
    w->dp = lt_group_size(w->mesh.dp);
    w->dp_rank = lt_group_rank(w->mesh.dp);
    return LT_OK;
}

lt_err lt_world_open(lt_world *w, const char *mesh, double deadline_s, const char *record_dir) {
    const lt_comm_options o = {.deadline_s = deadline_s, .record_dir = record_dir, .check = true};
    lt_err err;
    *w = (lt_world){0};
    if (!lt_comm_is_rank()) {
        lt_mesh_shape s;
        LT_TRY(lt_mesh_parse(&s, mesh));
        return lt_mesh_check(&s, 1);
    }
    LT_TRY(lt_comm_open(&w->comm, &o));
    w->owns_comm = true;
    err = place(w, mesh);
    if (err != LT_OK) {
        lt_world_close(w, err);
        return err;
    }
    divide_cores();
    return LT_OK;
}

lt_err lt_world_open_on(lt_world *w, lt_comm *comm, const char *mesh) {
    *w = (lt_world){.comm = comm};
    return place(w, mesh);
}

lt_err lt_world_open_device(lt_world *w, lt_device *device, lt_queue *queue) {
    const int n = w->comm != NULL ? lt_comm_size(w->comm) : 1;
    const bool gpu = !device->backend->host_memory;
    int32_t n_gpus = gpu ? 1 : 0;
    lt_err err;
    int *ranks;
    if (n == 1) {
        return LT_OK;
    }
    LT_TRY(lt_all_reduce(w->mesh.world, &n_gpus, &n_gpus, 1, LT_I32, LT_REDUCE_SUM, NULL));
    if (n_gpus != 0 && n_gpus != n) {
        LT_FAIL(LT_ERR_ARG, "%d of %d ranks are on GPUs, the others on CPUs; rank %d is on %s",
                (int)n_gpus, n, w->rank, device->backend->name);
    }
    if (!gpu) {
        return LT_OK;
    }
    LT_ASSERT(w->shape.dp == n);
    ranks = calloc((size_t)n, sizeof *ranks);
    if (ranks == NULL) {
        LT_FAIL(LT_ERR_OOM, "group of %d ranks", n);
    }
    for (int i = 0; i < n; i++) {
        ranks[i] = i;
    }
    err = lt_comm_open_device(&w->device, w->comm, device, NULL);
    err = err == LT_OK ? lt_group_open(&w->device_grad, w->device, "grad", ranks, n) : err;
    free(ranks);
    LT_TRY(err);
    lt_comm_follow(w->device, queue);
    return LT_OK;
}

lt_group *lt_world_grad(const lt_world *w) {
    return w->device_grad != NULL ? w->device_grad : w->mesh.grad;
}

lt_comm *lt_world_buffers(const lt_world *w) {
    return w->device != NULL ? w->device : w->comm;
}

void lt_world_close(lt_world *w, lt_err err) {
    if (w->comm != NULL && err != LT_OK && err != LT_ERR_INTERRUPTED) {
        char reason[512];
        (void)snprintf(reason, sizeof reason, "rank %d: %s", lt_comm_rank(w->comm),
                       lt_error_message());
        lt_comm_abort(lt_world_buffers(w), reason); /* The device's world aborts w->comm. */
    }
    lt_comm_close(w->device);
    if (w->owns_comm && err == LT_ERR_REMOTE) {
        /* mpirun ends all ranks when one ends; the rank that failed gets time to print its
         * message first. */
        (void)sleep(1);
    }
    if (w->owns_comm) {
        lt_comm_close(w->comm);
    }
    *w = (lt_world){0};
}

/* ---- The model ---- */

static int rank_at(const lt_layout *l, int pp, int tp) {
    const lt_mesh_shape *s = &l->shape;
    return ((pp * s->dp + l->dp) * s->cp + l->cp) * s->tp + tp;
}

/* The group of tp neighbours with the same key heads. */
static lt_err open_kv(lt_world *w) {
    const lt_layout *l = &w->layout;
    const int n = l->kv_copies, first = l->tp / n * n;
    lt_err err = LT_OK;
    int *ranks;
    if (n <= 1) {
        return LT_OK;
    }
    ranks = calloc((size_t)n, sizeof *ranks);
    if (ranks == NULL) {
        LT_FAIL(LT_ERR_OOM, "group of %d ranks", n);
    }
    for (int i = 0; i < n; i++) {
        ranks[i] = rank_at(l, l->pp, first + i);
    }
    err = lt_group_open(&w->kv, w->comm, "kv", ranks, n);
    free(ranks);
    return err;
}

/* The group of the first and last stage, if both hold a tied embedding. */
static lt_err open_stages(lt_world *w) {
    const lt_layout *l = &w->layout;
    const int last = l->shape.pp - 1, both[2] = {rank_at(l, 0, l->tp), rank_at(l, last, l->tp)};
    if (!l->ends_apart || !l->spec->tied || !(l->embeds || l->heads)) {
        return LT_OK;
    }
    return lt_group_open(&w->stages, w->comm, "stages", both, 2);
}

lt_err lt_world_divide(lt_world *w, const lt_model_spec *spec, const lt_stages *stages) {
    if (w->comm == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_layout_open(&w->layout, spec, &w->shape, w->rank));
    if (stages != NULL) {
        lt_layout_place(&w->layout, stages);
    }
    LT_TRY(open_kv(w));
    return open_stages(w);
}

bool lt_world_is_divided(const lt_world *w) {
    return w->comm != NULL && (w->shape.pp > 1 || w->shape.tp > 1 || w->shape.ep > 1);
}

bool lt_world_tells_layers(const lt_world *w) {
    return w->comm == NULL || lt_group_rank(w->mesh.tp) == 0;
}

bool lt_world_tells_losses(const lt_world *w) {
    return lt_world_tells_layers(w) && (w->comm == NULL || w->layout.heads);
}

bool lt_world_tells_rows(const lt_world *w) {
    return lt_world_tells_losses(w) && (w->comm == NULL || lt_group_rank(w->mesh.cp) == 0);
}

int lt_world_part(const lt_world *w, int *n_parts) {
    const lt_layout *l = &w->layout;
    if (w->comm == NULL) {
        *n_parts = 1;
        return 0;
    }
    *n_parts = l->shape.pp * l->shape.ep * l->shape.tp;
    return l->edp == 0 ? (l->pp * l->shape.ep + l->ep) * l->shape.tp + l->tp : -1;
}
