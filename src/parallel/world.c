/* world.c: see world.h. */
#include "parallel/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "comm/record.h"
#include "comm/shm.h"
#include "tensor/backend.h"

/* Number of ranks on this machine according to mpirun; 1 if unknown. */
static int ranks_here(void) {
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const int n = text != NULL ? atoi(text) : 1;
    return n > 0 ? n : 1;
}

/* Under launch without --hosts, and when ranks are threads, all ranks are on this machine. */
int lt_world_local_rank(const lt_world *w) {
    static const char *const names[] = {LT_ENV_LOCAL_RANK, "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = i == 0 || lt_comm_under_mpi() ? getenv(names[i]) : NULL;
        if (text != NULL) {
            return atoi(text);
        }
    }
    return w->first + w->rank;
}

static void divide_cores(void) {
    const int here = ranks_here();
    if (getenv("OMP_NUM_THREADS") == NULL && here > 1) {
        const int each = lt_thread_count() / here;
        lt_thread_set_count(each > 0 ? each : 1);
    }
}

/* The launcher's number of ranks when none is missing. */
static int full_ranks(const lt_world *w) {
    const int all = lt_comm_size(w->comm);
    const char *text = w->board != NULL ? getenv(LT_ENV_FULL) : NULL;
    return text != NULL && atoi(text) > all ? atoi(text) : all;
}

static lt_err place(lt_world *w, const char *mesh, int sites) {
    lt_mesh_shape *s = &w->shape;
    const int all = lt_comm_size(w->comm), each = all / sites, full = full_ranks(w);
    if (all % sites != 0) {
        LT_FAIL(LT_ERR_ARG, "%d ranks cannot be divided into %d sites of equal size; %d can", all,
                sites, (all + sites - 1) / sites * sites);
    }
    LT_TRY(lt_mesh_parse(s, mesh));
    if (mesh[0] == '\0') {
        s->dp = each;
    } else if (full > all && s->pp * s->dp * s->cp * s->tp == full && s->dp * all % full == 0) {
        s->dp = s->dp * all / full;
    }
    w->full_dp = s->dp * full / all;
    const lt_err err = lt_mesh_check(s, each);
    if (err != LT_OK) {
        return sites > 1 ? lt_error_prefix(err, "each of %d sites", sites) : err;
    }
    w->first = lt_comm_rank(w->comm) / each * each;
    LT_TRY(lt_mesh_open(&w->mesh, w->comm, s, w->first));
    w->rank = lt_comm_rank(w->comm) - w->first;
    w->dp = lt_group_size(w->mesh.dp);
    w->dp_rank = lt_group_rank(w->mesh.dp);
    return LT_OK;
}

lt_err lt_world_open(lt_world *w, const char *mesh, int sites, double deadline_s,
                     const char *record_dir) {
    const lt_comm_options o = {.deadline_s = deadline_s, .record_dir = record_dir, .check = true};
    lt_err err;
    int rank, n_ranks;
    *w = (lt_world){0};
    if (!lt_comm_is_rank()) {
        lt_mesh_shape s;
        LT_TRY(lt_mesh_parse(&s, mesh));
        return lt_mesh_check(&s, 1);
    }
    if (record_dir != NULL && lt_comm_started_as(&rank, &n_ranks) == LT_OK && rank == 0) {
        LT_TRY(lt_records_put_aside(record_dir));
    }
    w->board = lt_board_of_rank();
    lt_board_phase(w->board, LT_PHASE_STARTED);
    err = lt_comm_open(&w->comm, &o);
    if (err == LT_OK) {
        w->owns_comm = true;
        err = place(w, mesh, sites);
    }
    if (err != LT_OK) {
        lt_world_close(w, err);
        return err;
    }
    lt_board_phase(w->board, LT_PHASE_CONNECTED);
    divide_cores();
    return LT_OK;
}

lt_err lt_world_open_on(lt_world *w, lt_comm *comm, const char *mesh) {
    *w = (lt_world){.comm = comm};
    return place(w, mesh, 1);
}

/* ---- GPUs ---- */

static lt_group *find_twin(const lt_world *w, const lt_group *g) {
    for (int i = 0; i < w->n_twins; i++) {
        if (w->twins[i].host == g) {
            return w->twins[i].device;
        }
    }
    return NULL;
}

static bool same_members(const lt_group *a, const lt_group *b) {
    const size_t n = (size_t)lt_group_size(a);
    return lt_group_size(b) == lt_group_size(a) &&
           memcmp(lt_group_ranks(a), lt_group_ranks(b), n * sizeof(int)) == 0;
}

/* A group of the device with the members of g. Ranks that are members of several such groups share
 * one communicator, since each takes GPU memory. */
static lt_group *of_members(const lt_world *w, const lt_group *g) {
    for (int i = 0; i < w->n_twins; i++) {
        if (same_members(w->twins[i].host, g)) {
            return w->twins[i].device;
        }
    }
    return NULL;
}

lt_err lt_world_add_twin(lt_world *w, lt_group *g) {
    lt_group *twin;
    if (w->device == NULL || g == NULL || lt_group_size(g) == 1 || find_twin(w, g) != NULL) {
        return LT_OK;
    }
    LT_ASSERT(w->n_twins < LT_WORLD_TWINS);
    twin = of_members(w, g);
    LT_TRY(twin == NULL ? lt_group_open(&twin, w->device, lt_group_name(g), lt_group_ranks(g),
                                        lt_group_size(g))
                        : LT_OK);
    w->twins[w->n_twins].host = g;
    w->twins[w->n_twins++].device = twin;
    return LT_OK;
}

lt_err lt_world_open_device(lt_world *w, lt_device *device) {
    lt_group *const groups[] = {w->mesh.grad, w->mesh.tp, w->mesh.pp,
                                w->mesh.cp,   w->mesh.ep, w->mesh.edp};
    lt_comm_options o = lt_comm_options_of(w->comm);
    if (lt_group_size(w->mesh.world) == 1 || device->backend->host_memory) {
        return LT_OK;
    }
    o.connect_late = true;
    LT_TRY(lt_comm_open_device(&w->device, w->comm, device, &o));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        LT_TRY(lt_world_add_twin(w, groups[i]));
    }
    return LT_OK;
}

lt_err lt_world_connect(lt_world *w, lt_queue *queue) {
    const int n = w->comm != NULL ? lt_group_size(w->mesh.world) : 1;
    int32_t n_gpus = w->device != NULL ? 1 : 0;
    if (n == 1) {
        return LT_OK;
    }
    LT_TRY(lt_all_reduce(w->mesh.world, &n_gpus, &n_gpus, 1, LT_I32, LT_REDUCE_SUM, NULL));
    if (n_gpus != 0 && n_gpus != n) {
        LT_FAIL(LT_ERR_ARG, "%d of %d ranks are on GPUs, the others on CPUs; rank %d is on a %s",
                (int)n_gpus, n, w->rank, w->device != NULL ? "GPU" : "CPU");
    }
    if (w->device == NULL) {
        return LT_OK;
    }
    lt_comm_follow(w->device, queue);
    return lt_comm_connect(w->device);
}

lt_group *lt_world_twin(const lt_world *w, lt_group *g) {
    lt_group *twin = g != NULL && w->device != NULL ? find_twin(w, g) : NULL;
    LT_ASSERT(twin != NULL || w->device == NULL || g == NULL || lt_group_size(g) == 1);
    return twin != NULL ? twin : g;
}

lt_comm *lt_world_buffers(const lt_world *w) {
    return w->device != NULL ? w->device : w->comm;
}

void lt_world_close(lt_world *w, lt_err err) {
    if (w->comm != NULL && err != LT_OK && err != LT_ERR_INTERRUPTED) {
        char reason[512];
        (void)snprintf(reason, sizeof reason, "rank %d: %s", lt_comm_rank(w->comm),
                       lt_error_message());
        lt_comm_abort(lt_world_buffers(w), reason); /* The device's world also aborts w->comm. */
    }
    lt_comm_close(w->device);
    if (w->owns_comm && err == LT_ERR_REMOTE && lt_comm_under_mpi()) {
        /* mpirun ends all ranks when one ends; the rank that failed gets time to print its
         * message first. */
        (void)sleep(1);
    }
    if (w->owns_comm) {
        lt_comm_close(w->comm);
    }
    lt_board_close(w->board);
    *w = (lt_world){0};
}

/* ---- The model ---- */

static int rank_at(const lt_world *w, int pp, int tp) {
    const lt_layout *l = &w->layout;
    const lt_mesh_shape *s = &l->shape;
    return w->first + ((pp * s->dp + l->dp) * s->cp + l->cp) * s->tp + tp;
}

/* Open the group of tp neighbours with the same key heads. */
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
        ranks[i] = rank_at(w, l->pp, first + i);
    }
    err = lt_group_open(&w->kv, w->comm, "kv", ranks, n);
    free(ranks);
    return err == LT_OK ? lt_world_add_twin(w, w->kv) : err;
}

/* Open the group of the first and last stage, if both hold a tied embedding. */
static lt_err open_stages(lt_world *w) {
    const lt_layout *l = &w->layout;
    const int last = l->shape.pp - 1, both[2] = {rank_at(w, 0, l->tp), rank_at(w, last, l->tp)};
    if (!l->ends_apart || !l->spec->tied || !(l->embeds || l->heads)) {
        return LT_OK;
    }
    LT_TRY(lt_group_open(&w->stages, w->comm, "stages", both, 2));
    return lt_world_add_twin(w, w->stages);
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

lt_err lt_world_open_rows(lt_world *w, lt_group **out) {
    const lt_mesh_shape *s = &w->shape;
    const int n = s->pp * s->cp * s->tp;
    lt_err err = LT_OK;
    int *ranks, at;
    *out = NULL;
    if (w->comm == NULL || n == 1) { /* Without ranks the shape is all zeros. */
        return LT_OK;
    }
    at = w->rank / (s->cp * s->tp) % s->dp;
    ranks = calloc((size_t)n, sizeof *ranks);
    if (ranks == NULL) {
        LT_FAIL(LT_ERR_OOM, "group of %d ranks", n);
    }
    for (int i = 0; i < n; i++) {
        const int pp = i / (s->cp * s->tp), within = i % (s->cp * s->tp);
        ranks[i] = w->first + (pp * s->dp + at) * s->cp * s->tp + within;
    }
    err = lt_group_open(out, w->comm, "rows", ranks, n);
    free(ranks);
    return err;
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

lt_err lt_world_range(const lt_world *w, double own, double *least, double *most) {
    LT_TRY(lt_all_reduce(w->mesh.world, least, &own, 1, LT_F64, LT_REDUCE_MIN, NULL));
    return lt_all_reduce(w->mesh.world, most, &own, 1, LT_F64, LT_REDUCE_MAX, NULL);
}
