/* bench_comm.c: `lateen bench comm`: times communication between ranks by size, with nccl-tests'
 * conventions: size is the bytes of the larger buffer, algbw = size / time, and busbw is algbw
 * times the share of those bytes that each rank must send, 2 (n - 1) / n for all_reduce, (n - 1) /
 * n for all_gather, reduce_scatter and all_to_all, 1 for broadcast and send with receive; so busbw
 * compares with the bandwidth of the wire. The time is that of the slowest rank, the median of the
 * rounds. Every result is checked after the last round.
 *
 *     lateen bench comm --ranks 4            threads of one process
 *     lateen launch --ranks 4 bench comm     processes of one machine
 *     mpirun -n 4 lateen bench comm          processes, through MPI
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/bench.h"
#include "cli/verb.h"
#include "lateen/comm.h"

#define COMM_OPTIONS(X)                                                                            \
    X(I64, ranks, "ranks", "2", 1, 64, "ranks",                                                    \
      "ranks as threads; under launch and mpirun their ranks are measured instead")                \
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

typedef struct {
    lt_group *group;
    float *src, *dst; /* (max_bytes / 4) each */
    int64_t *sends;   /* (n) */
    int64_t count;    /* Elements of the larger buffer; a multiple of n. */
} job;

static lt_err run_all_reduce(const job *j) {
    return lt_all_reduce(j->group, j->dst, j->src, j->count, LT_F32, LT_REDUCE_SUM, NULL);
}

static lt_err run_reduce_scatter(const job *j) {
    return lt_reduce_scatter(j->group, j->dst, j->src, j->count / lt_group_size(j->group), LT_F32,
                             LT_REDUCE_SUM, NULL);
}

static lt_err run_all_gather(const job *j) {
    return lt_all_gather(j->group, j->dst, j->src, j->count / lt_group_size(j->group), LT_F32,
                         NULL);
}

static lt_err run_broadcast(const job *j) {
    return lt_broadcast(j->group, lt_group_rank(j->group) == 0 ? j->src : j->dst, j->count, LT_F32,
                        0, NULL);
}

static lt_err run_all_to_all(const job *j) {
    return lt_all_to_all(j->group, j->dst, j->sends, j->src, j->sends, LT_F32, NULL);
}

/* Send to the next member of the ring and receive from the one before. */
static lt_err run_ring(const job *j) {
    const int n = lt_group_size(j->group), own = lt_group_rank(j->group);
    lt_comm_work sent;
    LT_TRY(lt_send(j->group, (own + 1) % n, j->src, j->count, LT_F32, &sent));
    LT_TRY(lt_recv(j->group, (own + n - 1) % n, j->dst, j->count, LT_F32, NULL));
    return lt_comm_wait(lt_group_comm(j->group), sent);
}

/* Every element of member r's src is r + 1. These give the expected first element of dst. */
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
    lt_err (*run)(const job *j);
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

/* The median over the rounds of the slowest rank's time. */
static lt_err measure(const job *j, size_t verb, int64_t rounds, double *times, double *seconds) {
    for (int64_t i = -1; i < rounds; i++) { /* The first round is a warm-up. */
        double took;
        LT_TRY(lt_barrier(j->group));
        const double start_s = lt_clock_s();
        LT_TRY(verbs[verb].run(j));
        took = lt_clock_s() - start_s;
        LT_TRY(lt_all_reduce(j->group, &took, &took, 1, LT_F64, LT_REDUCE_MAX, NULL));
        times[i < 0 ? 0 : i] = took;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_value);
    *seconds = times[rounds / 2];
    return LT_OK;
}

static lt_err check(const job *j, size_t verb) {
    const int n = lt_group_size(j->group), own = lt_group_rank(j->group);
    const float want = (float)verbs[verb].expect(n, own);
    const bool root = verbs[verb].run == run_broadcast && own == 0;
    if (!root && j->dst[0] != want) {
        LT_FAIL(LT_ERR_NUMERIC, "%s of %lld elements: rank %d has %g, not %g", verbs[verb].name,
                (long long)j->count, own, (double)j->dst[0], (double)want);
    }
    return LT_OK;
}

static void print_row(const comm_options *o, const lt_comm *c, size_t verb, int64_t count,
                      double seconds, bool first) {
    const int n = lt_comm_size(c);
    const double bytes = (double)count * 4.0, gbps = bytes / seconds * 1e-9;
    const double share = verbs[verb].share == 0 ? 1.0 : verbs[verb].share * (n - 1.0) / n;
    if (o->json) {
        printf("%s{\"verb\": \"%s\", \"transport\": \"%s\", \"ranks\": %d, \"bytes\": %.0f, "
               "\"us\": %.2f, \"algbw_gbps\": %.4f, \"busbw_gbps\": %.4f}",
               first ? "[" : ",\n ", verbs[verb].name, lt_comm_transport(c), n, bytes,
               seconds * 1e6, gbps, gbps * share);
        return;
    }
    if (first) {
        printf("%d ranks, transport %s; GB/s by nccl-tests' conventions\n%-16s %12s %12s %10s "
               "%10s\n",
               n, lt_comm_transport(c), "verb", "bytes", "us", "algbw", "busbw");
    }
    printf("%-16s %12.0f %12.1f %10.3f %10.3f\n", verbs[verb].name, bytes, seconds * 1e6, gbps,
           gbps * share);
}

static lt_err rank_main(lt_comm *c, void *ctx) {
    const comm_options *o = ctx;
    const int n = lt_comm_size(c), own = lt_comm_rank(c);
    const int64_t most = (o->max_bytes / 4 + n - 1) / n * n;
    lt_err err = LT_OK;
    job j = {0};
    double *times = NULL;
    int *ranks = NULL;
    bool first = true;

    j.src = malloc((size_t)most * sizeof *j.src);
    j.dst = calloc((size_t)most, sizeof *j.dst);
    j.sends = calloc((size_t)n, sizeof *j.sends);
    ranks = calloc((size_t)n, sizeof *ranks);
    times = calloc((size_t)o->rounds, sizeof *times);
    if (j.src == NULL || j.dst == NULL || j.sends == NULL || ranks == NULL || times == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "two buffers of %lld bytes", (long long)most * 4);
    }
    for (int64_t i = 0; i < most; i++) {
        j.src[i] = (float)(own + 1);
    }
    for (int i = 0; i < n; i++) {
        ranks[i] = i;
    }
    LT_TRY_DONE(lt_group_open(&j.group, c, "bench", ranks, n));
    for (size_t v = 0; v < N_VERBS; v++) {
        for (int64_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes *= o->factor) {
            double seconds;
            j.count = (bytes / 4 + n - 1) / n * n;
            for (int i = 0; i < n; i++) {
                j.sends[i] = j.count / n;
            }
            if (n == 1 && verbs[v].run == run_ring) {
                continue;
            }
            LT_TRY_DONE(measure(&j, v, o->rounds, times, &seconds));
            LT_TRY_DONE(check(&j, v));
            if (own == 0) {
                print_row(o, c, v, j.count, seconds, first);
            }
            first = false;
        }
    }
    if (own == 0 && o->json) {
        printf("]\n");
    }
done:
    free(j.src);
    free(j.dst);
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
