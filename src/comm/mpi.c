/* mpi.c: ranks as processes that mpirun or srun started, with Open MPI, loaded at run time. MPI
 * only moves bytes between two ranks: the verbs are rounds of such messages (rounds.h).
 *
 * MPI makes progress only while it is called, so the worker polls while calls are in progress. MPI
 * does not report a dead or stopped rank; the deadline finds it. A failing rank tells the others
 * through a second communicator, on which each has a receive posted. After a failure MPI is not
 * finalised, because it would wait for the lost rank.
 *
 * The declarations are those of Open MPI's binary interface, 4 and 5: handles are pointers. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/rounds.h"

#define POLL_US     50
#define ANY_SOURCE  (-1)
#define SERIALIZED  2
#define CONTROL_TAG 1

typedef struct {
    int source, tag, error, cancelled;
    size_t bytes;
} mpi_status;

#define MPI_FUNCTIONS(X)                                                                           \
    X(Init_thread, (int *argc, char ***argv, int wanted, int *given))                              \
    X(Initialized, (int *flag))                                                                    \
    X(Finalize, (void))                                                                            \
    X(Comm_rank, (void *comm, int *rank))                                                          \
    X(Comm_size, (void *comm, int *size))                                                          \
    X(Comm_dup, (void *comm, void **out))                                                          \
    X(Comm_set_errhandler, (void *comm, void *handler))                                            \
    X(Get_library_version, (char *text, int *length))                                              \
    X(Error_string, (int err, char *text, int *length))                                            \
    X(Isend,                                                                                       \
      (const void *data, int count, void *type, int to, int tag, void *comm, void **request))      \
    X(Irecv, (void *data, int count, void *type, int from, int tag, void *comm, void **request))   \
    X(Test, (void **request, int *done, mpi_status *status))                                       \
    X(Cancel, (void **request))                                                                    \
    X(Wait, (void **request, mpi_status *status))

typedef struct {
    void *library;
    void *byte, *world, *return_errors; /* MPI_BYTE, MPI_COMM_WORLD, MPI_ERRORS_RETURN */
#define MPI_FIELD(name, args) int(*name) args;
    MPI_FUNCTIONS(MPI_FIELD)
#undef MPI_FIELD
} mpi_library;

typedef struct {
    mpi_library mpi;
    void *data, *control; /* Communicators. */
    lt_rounds rounds;
    void *notice_request; /* The receive of another rank's reason. */
    char notice[LT_COMM_WHY], reason[LT_COMM_WHY];
    bool told;
} mpi_world;

static lt_err mpi_try(const mpi_library *m, int err, const char *what) {
    char text[512] = "";
    int length = 0;
    if (err == 0) {
        return LT_OK;
    }
    (void)m->Error_string(err, text, &length);
    LT_FAIL(LT_ERR_REMOTE, "MPI: %s: %s", what, text);
}

/* ---- The link -------------------------------------------------------------------------------- */

static lt_err send_bytes(void *of, const void *data, size_t bytes, int rank, int tag,
                         void **request) {
    mpi_world *w = of;
    const mpi_library *m = &w->mpi;
    return mpi_try(m, m->Isend(data, (int)bytes, m->byte, rank, tag, w->data, request), "send");
}

static lt_err receive_bytes(void *of, void *data, size_t bytes, int rank, int tag, void **request) {
    mpi_world *w = of;
    const mpi_library *m = &w->mpi;
    return mpi_try(m, m->Irecv(data, (int)bytes, m->byte, rank, tag, w->data, request), "receive");
}

static lt_err test_request(void *of, void **request, size_t *bytes) {
    mpi_world *w = of;
    mpi_status status = {0};
    int there = 0;
    LT_TRY(mpi_try(&w->mpi, w->mpi.Test(request, &there, &status), "transfer"));
    if (there != 0) {
        *request = NULL;
        *bytes = status.bytes;
    }
    return LT_OK;
}

static const lt_link link_mpi = {send_bytes, receive_bytes, test_request};

/* ---- The worker's side ----------------------------------------------------------------------- */

static lt_err listen(mpi_world *w) {
    const mpi_library *m = &w->mpi;
    return mpi_try(m,
                   m->Irecv(w->notice, (int)sizeof w->notice, m->byte, ANY_SOURCE, CONTROL_TAG,
                            w->control, &w->notice_request),
                   "receive");
}

/* Fails with the reason of another rank that has ended the world. */
static lt_err heed(mpi_world *w) {
    int there = 0;
    LT_TRY(mpi_try(&w->mpi, w->mpi.Test(&w->notice_request, &there, NULL), "control"));
    if (there != 0) {
        w->notice[sizeof w->notice - 1] = '\0';
        w->told = true; /* The rank that sent the notice tells the other ranks, too. */
        LT_FAIL(LT_ERR_REMOTE, "%s", w->notice);
    }
    return LT_OK;
}

static lt_advance advance(lt_call *call) {
    mpi_world *w = call->group->comm->world;
    return heed(w) == LT_OK ? lt_rounds_advance(&w->rounds, call) : LT_ADVANCE_FAILED;
}

static void missing(const lt_call *call, char *out, size_t out_bytes) {
    const mpi_world *w = call->group->comm->world;
    lt_rounds_missing(&w->rounds, call, out, out_bytes);
}

/* The world has ended: take the callers' buffers back from MPI and tell the other ranks. */
static void end_world(lt_comm *c) {
    mpi_world *w = c->world;
    void *request;
    for (int i = 0; i < w->rounds.n_transfers; i++) {
        if (w->rounds.transfers[i].request != NULL && w->rounds.transfers[i].is_recv) {
            (void)w->mpi.Cancel(&w->rounds.transfers[i].request);
        }
    }
    for (int i = 0; i < LT_COMM_AHEAD; i++) {
        if (w->rounds.pairs[i].request != NULL && w->rounds.pairs[i].is_recv) {
            (void)w->mpi.Cancel(&w->rounds.pairs[i].request);
        }
    }
    if (!w->told) {
        w->told = true;
        memcpy(w->reason, c->why, sizeof w->reason);
        for (int r = 0; r < c->size; r++) {
            if (r != c->rank) {
                (void)w->mpi.Isend(w->reason, (int)sizeof w->reason, w->mpi.byte, r, CONTROL_TAG,
                                   w->control, &request);
            }
        }
    }
}

static void close_world(lt_comm *c) {
    mpi_world *w = c->world;
    if (c->failed == LT_OK && w->notice_request != NULL) {
        (void)w->mpi.Cancel(&w->notice_request);
        (void)w->mpi.Wait(&w->notice_request, NULL);
        (void)w->mpi.Finalize();
    }
    lt_rounds_close(&w->rounds);
    free(w);
}

const lt_transport lt_transport_mpi = {.name = "mpi",
                                       .poll_us = POLL_US,
                                       .group_open = lt_rounds_group_open,
                                       .advance = advance,
                                       .missing = missing,
                                       .abort = end_world,
                                       .close = close_world};

/* ---- Opening --------------------------------------------------------------------------------- */

static lt_err load(mpi_library *m) {
    static const char *const names[] = {"libmpi.so.40", "libmpi.so.80", "libmpi.so"};
    const char *missing_name = NULL;
    for (size_t i = 0; m->library == NULL && i < sizeof names / sizeof *names; i++) {
        m->library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
    }
    if (m->library == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "MPI: no libmpi of Open MPI here (%s); on Debian: apt-get "
                "install openmpi-bin",
                dlerror());
    }
#define MPI_LOAD(name, args)                                                                       \
    *(void **)&m->name = dlsym(m->library, "MPI_" #name);                                          \
    missing_name = m->name == NULL ? "MPI_" #name : missing_name;
    MPI_FUNCTIONS(MPI_LOAD)
#undef MPI_LOAD
    m->byte = dlsym(m->library, "ompi_mpi_byte");
    m->world = dlsym(m->library, "ompi_mpi_comm_world");
    m->return_errors = dlsym(m->library, "ompi_mpi_errors_return");
    if (missing_name != NULL || m->byte == NULL || m->world == NULL || m->return_errors == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "MPI: the libmpi found is not Open MPI's: it has no %s",
                missing_name != NULL ? missing_name : "ompi_mpi_comm_world");
    }
    return LT_OK;
}

static lt_err start(mpi_world *w, int *rank, int *size) {
    const mpi_library *m = &w->mpi;
    int given = 0, before = 0;
    LT_TRY(mpi_try(m, m->Initialized(&before), "start"));
    if (before != 0) {
        LT_FAIL(LT_ERR_STATE, "MPI: this process has started it already");
    }
    LT_TRY(mpi_try(m, m->Init_thread(NULL, NULL, SERIALIZED, &given), "start"));
    if (given < SERIALIZED) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "MPI: its threads are of level %d, and %d is needed", given,
                SERIALIZED);
    }
    LT_TRY(mpi_try(m, m->Comm_set_errhandler(m->world, m->return_errors), "start"));
    LT_TRY(mpi_try(m, m->Comm_dup(m->world, &w->data), "start"));
    LT_TRY(mpi_try(m, m->Comm_dup(m->world, &w->control), "start"));
    LT_TRY(mpi_try(m, m->Comm_rank(m->world, rank), "rank"));
    return mpi_try(m, m->Comm_size(m->world, size), "size");
}

lt_err lt_comm_open_mpi(lt_comm **out, const lt_comm_options *o) {
    lt_err err = LT_OK;
    mpi_world *w = calloc(1, sizeof *w);
    int rank = 0, size = 0;

    if (w == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "MPI");
    }
    LT_TRY_DONE(load(&w->mpi));
    LT_TRY_DONE(start(w, &rank, &size));
    if (size > LT_COMM_MAX_RANKS) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "MPI: %d ranks; at most %d", size, LT_COMM_MAX_RANKS);
    }
    LT_TRY_DONE(lt_rounds_open(&w->rounds, &link_mpi, w, size));
    LT_TRY_DONE(listen(w));
    LT_TRY_DONE(lt_comm_begin(out, &lt_transport_mpi, w, rank, size, o, NULL, NULL));
    w = NULL;
done:
    if (w != NULL) {
        lt_rounds_close(&w->rounds);
        free(w);
    }
    return err;
}

bool lt_comm_under_mpi(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL;
}
