/* bench_comm.c: `lateen bench comm`: times communication between ranks by size, with nccl-tests'
 * conventions: size is the bytes of the larger buffer, algbw = size / time, and busbw is algbw
 * times the share of those bytes that each rank must send, 2 (n - 1) / n for all_reduce, (n - 1) /
 * n for all_gather, reduce_scatter and all_to_all, 1 for broadcast and send with receive; so busbw
 * compares with the bandwidth of the wire. The time is that of the slowest rank, the median of the
 * rounds. Every result is checked after the last round.
 *
 *     lateen bench comm --ranks 4                          threads of one process
 *     lateen launch --ranks 4 bench comm                   processes of one machine
 *     mpirun -n 4 lateen bench comm                        processes, through MPI
 *     lateen launch --ranks 4 bench comm --device cuda     GPUs, beside NCCL's own verbs
 *
 * On GPUs a timing covers CALLS calls, queued one after the other as nccl-tests does, and each size
 * is measured twice in turn: with Lateen's transport, whose sums have a fixed order, and with NCCL
 * alone, whose sums have an order of NCCL's choice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/bench/bench.h"
#include "cli/verb.h"
#include "lateen/comm.h"
#include "lateen/device.h"
#include "tensor/backend.h"

#define CALLS 10

#define COMM_OPTIONS(X)                                                                            \
    X(I64, ranks, "ranks", "2", 1, 64, "ranks",                                                    \
      "ranks as threads; under launch and mpirun their ranks are measured instead")                \
    X(STR, device, "device", "cpu", 0, 0, "cpu|cuda", "where the buffers lie")                     \
    X(I64, min_bytes, "min-bytes", "1KiB", 4, 1e10, "bytes", "smallest size")                      \
    X(I64, max_bytes, "max-bytes", "64MiB", 4, 1e10, "bytes", "largest size")                      \
    X(I64, factor, "factor", "4", 2, 1024, "", "factor from one size to the next")                 \
    X(I64, rounds, "rounds", "11", 1, 10001, "rounds", "timings of each; the median counts")       \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")

typedef struct {
    COMM_OPTIONS(LT_OPTION_FIELD)
} comm_options;
#define LT_OPTION_STRUCT comm_options
static const lt_option rows[] = {COMM_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench comm", rows);

/* A transport under test. */
typedef struct {
    const char *name;
    lt_comm *comm;
    lt_group *group;
} world;

typedef struct {
    const world *w;
    lt_group *host;    /* All ranks, for numbers in host memory. */
    lt_device *device; /* NULL: the buffers lie in host memory. */
    lt_queue *queue;
    float *src, *dst;        /* (max_bytes / 4) each */
    int64_t *sends;          /* (n) */
    int64_t count;           /* Number of elements of the larger buffer; a multiple of n. */
    lt_comm_work work, sent; /* The last call; its send, if it is a ring. */
} job;

static lt_err run_all_reduce(job *j) {
    return lt_all_reduce(j->w->group, j->dst, j->src, j->count, LT_F32, LT_REDUCE_SUM, &j->work);
}

static lt_err run_reduce_scatter(job *j) {
    return lt_reduce_scatter(j->w->group, j->dst, j->src, j->count / lt_group_size(j->w->group),
                             LT_F32, LT_REDUCE_SUM, &j->work);
}

static lt_err run_all_gather(job *j) {
    return lt_all_gather(j->w->group, j->dst, j->src, j->count / lt_group_size(j->w->group), LT_F32,
                         &j->work);
}

static lt_err run_broadcast(job *j) {
    return lt_broadcast(j->w->group, lt_group_rank(j->w->group) == 0 ? j->src : j->dst, j->count,
                        LT_F32, 0, &j->work);
}

static lt_err run_all_to_all(job *j) {
    return lt_all_to_all(j->w->group, j->dst, j->sends, j->src, j->sends, LT_F32, &j->work);
}

/* Send to the next member of the ring and receive from the previous one. */
static lt_err run_ring(job *j) {
    const int n = lt_group_size(j->w->group), own = lt_group_rank(j->w->group);
    LT_TRY(lt_send(j->w->group, (own + 1) % n, j->src, j->count, LT_F32, &j->sent));
    return lt_recv(j->w->group, (own + n - 1) % n, j->dst, j->count, LT_F32, &j->work);
}

/* Every element of member r's src is r + 1. These functions give the expected first element of
 * dst. */
static double sum_of_all(int n, int own) {
    (void)own;
    return (double)n * (n + 1) / 2.0;
}

static double first_is_1(int n, int own) {
    (void)n, (void)own;
    return 1.0;
}

static double before_us(int n, int own) {
    return (own + n - 1) % n + 1;
}

static const struct {
    const char *name;
    lt_err (*run)(job *j);
    double (*expect)(int n, int own);
    int share; /* A link carries share * (n - 1) / n of the bytes; 0: all of them. */
} verbs[] = {{"all_reduce", run_all_reduce, sum_of_all, 2},
             {"reduce_scatter", run_reduce_scatter, sum_of_all, 1},
             {"all_gather", run_all_gather, first_is_1, 1},
             {"broadcast", run_broadcast, first_is_1, 0},
             {"all_to_all", run_all_to_all, first_is_1, 1},
             {"send_receive", run_ring, before_us, 0}};
#define N_VERBS (sizeof verbs / sizeof *verbs)

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static lt_err time_calls(job *j, size_t verb, double *took) {
    lt_comm *c = j->w->comm;
    LT_TRY(lt_barrier(j->host));
    const int n = j->device != NULL ? CALLS : 1;
    const double start_s = lt_clock_s();
    for (int i = 0; i < n; i++) {
        LT_TRY(verbs[verb].run(j));
    }
    LT_TRY(lt_comm_wait(c, j->work));
    LT_TRY(j->sent != 0 ? lt_comm_wait(c, j->sent) : LT_OK);
    *took = (lt_clock_s() - start_s) / n;
    return lt_all_reduce(j->host, took, took, 1, LT_F64, LT_REDUCE_MAX, NULL);
}

/* For each world, the median over rounds of the slowest rank's time. times: (worlds, rounds) */
static lt_err measure(job *j, size_t verb, const world *worlds, int n_worlds, int64_t rounds,
                      double *times, double *seconds) {
    for (int64_t i = -1; i < rounds; i++) { /* The first round is a warm-up. */
        for (int k = 0; k < n_worlds; k++) {
            j->w = &worlds[k];
            j->sent = 0;
            LT_TRY(time_calls(j, verb, &times[k * rounds + (i < 0 ? 0 : i)]));
        }
    }
    for (int k = 0; k < n_worlds; k++) {
        qsort(times + k * rounds, (size_t)rounds, sizeof *times, by_value);
        seconds[k] = times[k * rounds + rounds / 2];
    }
    return LT_OK;
}

static lt_err check(const job *j, size_t verb) {
    const int n = lt_group_size(j->host), own = lt_group_rank(j->host);
    const float want = (float)verbs[verb].expect(n, own);
    const bool root = verbs[verb].run == run_broadcast && own == 0;
    float got = want;
    if (j->device != NULL && !root) {
        LT_TRY(j->device->backend->download(j->queue, &got, j->dst, sizeof got));
        LT_TRY(j->device->backend->sync(j->queue));
    } else if (!root) {
        got = j->dst[0];
    }
    if (got != want) {
        LT_FAIL(LT_ERR_NUMERIC, "%s of %lld elements: rank %d has %g, not %g", verbs[verb].name,
                (long long)j->count, own, (double)got, (double)want);
    }
    return LT_OK;
}

static void print_row(const comm_options *o, const world *w, size_t verb, int64_t count,
                      double seconds, bool first) {
    const int n = lt_comm_size(w->comm);
    const double bytes = (double)count * 4.0, gbps = bytes / seconds * 1e-9;
    const double share = verbs[verb].share == 0 ? 1.0 : verbs[verb].share * (n - 1.0) / n;
    if (o->json) {
        printf("%s{\"verb\": \"%s\", \"transport\": \"%s\", \"ranks\": %d, \"bytes\": %.0f, "
               "\"us\": %.2f, \"algbw_gbps\": %.4f, \"busbw_gbps\": %.4f}",
               first ? "[" : ",\n ", verbs[verb].name, w->name, n, bytes, seconds * 1e6, gbps,
               gbps * share);
        return;
    }
    if (first) {
        printf("%d ranks; GB/s by nccl-tests' conventions\n%-16s %-10s %12s %12s %10s %10s\n", n,
               "verb", "transport", "bytes", "us", "algbw", "busbw");
    }
    printf("%-16s %-10s %12.0f %12.1f %10.3f %10.3f\n", verbs[verb].name, w->name, bytes,
           seconds * 1e6, gbps, gbps * share);
}

/* Open buffers of `most` elements: src filled with `value`, dst with zeros. */
static lt_err buffers_open(job *j, int64_t most, float value) {
    const size_t bytes = (size_t)most * sizeof value;
    float *src = malloc(bytes);
    void *data = NULL;
    if (src == NULL) {
        LT_FAIL(LT_ERR_OOM, "a buffer of %zu bytes", bytes);
    }
    for (int64_t i = 0; i < most; i++) {
        src[i] = value;
    }
    if (j->device == NULL) {
        j->src = src;
        j->dst = calloc((size_t)most, sizeof *j->dst);
        return j->dst != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "a buffer of %zu bytes", bytes);
    }
    const lt_backend *b = j->device->backend;
    lt_err err = LT_OK;
    LT_TRY_DONE(b->queue_open(j->device, &j->queue));
    LT_TRY_DONE(b->alloc(j->device, &data, bytes, "src"));
    j->src = data;
    LT_TRY_DONE(b->alloc(j->device, &data, bytes, "dst"));
    j->dst = data;
    LT_TRY_DONE(b->upload(j->queue, j->src, src, bytes));
    LT_TRY_DONE(b->sync(j->queue));
done:
    free(src);
    return err;
}

static void buffers_close(job *j, int64_t most) {
    const size_t bytes = (size_t)most * sizeof(float);
    if (j->device == NULL) {
        free(j->src);
        free(j->dst);
        return;
    }
    if (j->src != NULL) {
        j->device->backend->release(j->device, j->src, bytes);
    }
    if (j->dst != NULL) {
        j->device->backend->release(j->device, j->dst, bytes);
    }
    if (j->queue != NULL) {
        j->device->backend->queue_close(j->queue);
    }
}

static lt_err all_sizes(const comm_options *o, job *j, const world *worlds, int n_worlds,
                        double *times) {
    const int n = lt_group_size(j->host), own = lt_group_rank(j->host);
    double seconds[2];
    bool first = true;
    for (size_t v = 0; v < N_VERBS; v++) {
        for (int64_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes *= o->factor) {
            j->count = (bytes / 4 + n - 1) / n * n;
            for (int i = 0; i < n; i++) {
                j->sends[i] = j->count / n;
            }
            if (n == 1 && verbs[v].run == run_ring) {
                continue;
            }
            LT_TRY(measure(j, v, worlds, n_worlds, o->rounds, times, seconds));
            LT_TRY(check(j, v));
            for (int k = 0; own == 0 && k < n_worlds; k++) {
                print_row(o, &worlds[k], v, j->count, seconds[k], first);
                first = false;
            }
        }
    }
    if (own == 0 && o->json) {
        printf("]\n");
    }
    return LT_OK;
}

static lt_err rank_main(lt_comm *c, void *ctx) {
    const comm_options *o = ctx;
    const int n = lt_comm_size(c), own = lt_comm_rank(c);
    const bool on_gpu = strcmp(o->device, "cuda") == 0;
    const int64_t most = (o->max_bytes / 4 + n - 1) / n * n;
    const lt_comm_options options[2] = {{0}, {.any_order = true, .nccl_only = true}};
    world worlds[2] = {{.name = lt_comm_transport(c), .comm = c}, {.name = "nccl"}};
    const int n_worlds = on_gpu ? 2 : 1;
    lt_err err = LT_OK;
    job j = {0};
    int *ranks = calloc((size_t)n, sizeof *ranks);
    double *times = calloc(2 * (size_t)o->rounds, sizeof *times);

    j.sends = calloc((size_t)n, sizeof *j.sends);
    if (j.sends == NULL || ranks == NULL || times == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%d ranks", n);
    }
    for (int i = 0; i < n; i++) {
        ranks[i] = i;
    }
    LT_TRY_DONE(lt_group_open(&j.host, c, "host", ranks, n));
    if (on_gpu) {
        LT_TRY_DONE(lt_device_open_rank(&j.device, o->device, own));
        worlds[0].name = "lateen";
    }
    LT_TRY_DONE(buffers_open(&j, most, (float)(own + 1)));
    for (int k = 0; k < n_worlds; k++) {
        LT_TRY_DONE(on_gpu ? lt_comm_open_device(&worlds[k].comm, c, j.device, &options[k])
                           : LT_OK);
        LT_TRY_DONE(lt_group_open(&worlds[k].group, worlds[k].comm, "bench", ranks, n));
    }
    LT_TRY_DONE(all_sizes(o, &j, worlds, n_worlds, times));
done:
    for (int k = 0; on_gpu && k < n_worlds; k++) {
        lt_comm_close(worlds[k].comm != c ? worlds[k].comm : NULL);
    }
    buffers_close(&j, most);
    lt_device_close(j.device);
    free(j.sends);
    free(ranks);
    free(times);
    return err;
}

int lt_bench_comm(int argc, char **argv) {
    comm_options o;
    lt_comm *c = NULL;
    int status, n = 0;
    lt_err err;

    if (!lt_verb_parse(&table, &o, argc, argv,
                       "bench comm [--ranks N] | mpirun -n N lateen bench "
                       "comm",
                       "Measure the verbs between ranks by size, and check their results.", NULL, 0,
                       &n, &status)) {
        return status;
    }
    if (o.min_bytes > o.max_bytes) {
        fprintf(stderr, "lateen: --min-bytes %lld is more than --max-bytes %lld\n",
                (long long)o.min_bytes, (long long)o.max_bytes);
        return LT_EXIT_USAGE;
    }
    if (strcmp(o.device, "cpu") != 0 && (strcmp(o.device, "cuda") != 0 || !lt_comm_is_rank())) {
        fprintf(stderr,
                "lateen: --device %s: it is cpu, or cuda for ranks that are processes with a GPU "
                "each (lateen launch --ranks N bench comm --device cuda)\n",
                o.device);
        return LT_EXIT_USAGE;
    }
    if (lt_comm_is_rank()) {
        err = lt_comm_open(&c, NULL);
        err = err == LT_OK ? rank_main(c, &o) : err;
    } else {
        err = lt_comm_run_threads((int)o.ranks, NULL, rank_main, &o);
    }
    status = err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
    status = err == LT_ERR_REMOTE ? LT_EXIT_LOST : status;
    lt_comm_close(c);
    return status;
}
