/* work.c: tiers 2 and 3 of the host: known products on every single core, copies of memory,
 * patterns in memory. A core that computes wrongly is found only by work on that core, so each core
 * gets its own thread and device. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/rng.h"
#include "base/thread.h"
#include "kernels/cpu/probe.h"
#include "kernels/host.h"
#include "platform/health/facts.h"
#include "platform/health/known.h"
#include "platform/health/work.h"
#include "tensor/ops.h"

/* Tier 2: seconds of products on every core at the same time. */
#define CORE_S 0.5

typedef struct {
    pthread_t thread;
    int cpu;
    double seconds;  /* How long to multiply. */
    double products; /* Number of products computed. */
    double wrong;    /* Number of sums with wrong bits. */
    lt_failure failure;
} core_work;

lt_err lt_known_run(lt_device *device, lt_dtype dtype, int64_t side, double seconds,
                    double *products, double *wrong) {
    lt_err err = LT_OK;
    const lt_backend *be = device->backend;
    const size_t in_bytes = (size_t)(side * LT_KNOWN_K) * lt_dtype_bytes(dtype),
                 out_bytes = (size_t)(side * side) * sizeof(float);
    const double end = lt_clock_s() + seconds;
    void *in[2] = {NULL}, *y = NULL;
    float *host = malloc(out_bytes > in_bytes ? out_bytes : in_bytes);
    lt_queue *q = NULL;

    if (host == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "known product");
    }
    LT_TRY_DONE(be->queue_open(device, &q));
    for (int i = 0; i < 2; i++) {
        LT_TRY_DONE(be->alloc(device, &in[i], in_bytes, "known product"));
        lt_known_fill(host, dtype, side, i == 1);
        LT_TRY_DONE(be->upload(q, in[i], host, in_bytes));
        LT_TRY_DONE(be->sync(q));
    }
    LT_TRY_DONE(be->alloc(device, &y, out_bytes, "known product"));
    do {
        const int rounds = seconds > 0.0 ? LT_KNOWN_ROUNDS : 1;
        bool holds = false;
        LT_TRY_DONE(be->zero(q, y, out_bytes));
        for (int round = 0; round < rounds; round++) {
            const lt_matmul_args a = {.y = lt_tensor_2d(y, LT_F32, side, side),
                                      .a = lt_tensor_2d(in[0], dtype, side, LT_KNOWN_K),
                                      .b = lt_tensor_2d(in[1], dtype, side, LT_KNOWN_K),
                                      .trans_b = true,
                                      .accumulate = true};
            LT_TRY_DONE(be->ops->matmul(q, &a));
        }
        LT_TRY_DONE(be->download(q, host, y, out_bytes));
        LT_TRY_DONE(be->sync(q));
        LT_TRY_DONE(lt_known_check(&holds, host, side, rounds));
        *products += rounds;
        *wrong += !holds;
    } while (lt_clock_s() < end);
done:
    for (int i = 0; i < 2; i++) {
        if (in[i] != NULL) {
            be->release(device, in[i], in_bytes);
        }
    }
    if (y != NULL) {
        be->release(device, y, out_bytes);
    }
    if (q != NULL) {
        be->queue_close(q);
    }
    free(host);
    return err;
}

static lt_err run_core(core_work *w) {
    lt_err err = LT_OK;
    lt_device *device = NULL;
    char cores[16];

    snprintf(cores, sizeof cores, "%d", w->cpu);
    LT_TRY_DONE(lt_device_open_cpu(&device, 1, cores));
    lt_host_drive(device);
    for (int half = 0; half < 2; half++) { /* F32 and BF16 use different execution units. */
        LT_TRY_DONE(lt_known_run(device, half == 0 ? LT_F32 : LT_BF16, LT_KNOWN_PERIOD,
                                 0.5 * w->seconds, &w->products, &w->wrong));
    }
done:
    lt_device_close(device);
    return err;
}

static void *core_thread(void *arg) {
    core_work *w = arg;
    lt_failure_keep(&w->failure, run_core(w));
    return NULL;
}

static lt_err collect(lt_facts *f, core_work *all, int n, double took_s) {
    const double flop = 2.0 * LT_KNOWN_PERIOD * LT_KNOWN_PERIOD * (double)LT_KNOWN_K;
    double products = 0.0;
    for (int i = 0; i < n; i++) {
        char object[16];
        LT_TRY(lt_failure_raise(&all[i].failure));
        snprintf(object, sizeof object, "cpu%d", all[i].cpu);
        lt_facts_add(f, LT_CHECK_CPU_PRODUCTS, object, all[i].wrong);
        products += all[i].products;
    }
    lt_facts_add(f, LT_CHECK_CPU_FLOPS, "", products * flop / took_s * 1e-9);
    return LT_OK;
}

static lt_err multiply_on_cores(lt_facts *f, double seconds) {
    lt_err err = LT_OK;
    const double start = lt_clock_s();
    int n = 0, n_started = 0;
    cpu_set_t allowed;
    core_work *all = calloc(CPU_SETSIZE, sizeof *all);

    if (all == NULL || sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "products on the cores");
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, &allowed)) {
            all[n++] = (core_work){.cpu = cpu, .seconds = seconds};
        }
    }
    for (; n_started < n; n_started++) {
        if (pthread_create(&all[n_started].thread, NULL, core_thread, &all[n_started]) != 0) {
            break;
        }
    }
    for (int i = 0; i < n_started; i++) {
        pthread_join(all[i].thread, NULL);
    }
    if (n_started < n) {
        LT_FAIL_DONE(LT_ERR_OOM, "thread %d of %d, one for each core", n_started, n);
    }
    LT_TRY_DONE(collect(f, all, n, lt_clock_s() - start));
done:
    free(all);
    return err;
}

/* ---- Memory ---- */

uint64_t lt_pattern_word(int pattern, uint64_t index) {
    static const uint64_t fixed[] = {0, UINT64_MAX, 0x5555555555555555u, 0xAAAAAAAAAAAAAAAAu};
    const int n = (int)(sizeof fixed / sizeof *fixed);
    return pattern < n ? fixed[pattern] : lt_rng_mix(index + (uint64_t)pattern);
}

#define PIECE_WORDS ((size_t)1 << 20)

typedef struct {
    uint64_t *words;
    size_t n;
    int pattern;
    bool checks; /* It compares instead of writing. */
    atomic_llong wrong;
} pattern_run;

static void pattern_piece(void *ctx, size_t piece) {
    pattern_run *r = ctx;
    const size_t from = piece * PIECE_WORDS, left = r->n - from;
    const size_t to = from + (left < PIECE_WORDS ? left : PIECE_WORDS);
    long long wrong = 0;
    for (size_t i = from; i < to; i++) {
        const uint64_t word = lt_pattern_word(r->pattern, i);
        if (r->checks) {
            wrong += r->words[i] != word;
        } else {
            r->words[i] = word;
        }
    }
    atomic_fetch_add(&r->wrong, wrong);
}

static lt_err keep_patterns(lt_facts *f, double memory_share) {
    lt_limits l;
    pattern_run r = {.n = 0};
    void *memory = NULL;
    size_t pieces;

    lt_limits_read(&l);
    if (l.available_bytes == LT_LIMIT_UNKNOWN) {
        lt_facts_skip(f, "mem.pattern_errors", "how much memory is available is not known");
        return LT_OK;
    }
    r.n = (size_t)((double)l.available_bytes * memory_share) / sizeof *r.words;
    LT_TRY(lt_host_map(&memory, r.n * sizeof *r.words, "memory patterns"));
    r.words = memory;
    pieces = (r.n + PIECE_WORDS - 1) / PIECE_WORDS;
    for (r.pattern = 0; r.pattern < LT_PATTERNS; r.pattern++) {
        r.checks = false;
        lt_parallel_for(pieces, pattern_piece, &r);
        r.checks = true;
        lt_parallel_for(pieces, pattern_piece, &r);
    }
    lt_host_unmap(memory, r.n * sizeof *r.words);
    lt_facts_add(f, LT_CHECK_MEM_PATTERNS, "", (double)r.wrong);
    return LT_OK;
}

lt_err lt_facts_of_cores(lt_facts *f, const lt_work_plan *p) {
    lt_cpu_probe probe = {.n_threads = 0};
    LT_TRY(lt_cpu_probe_memory(&probe));
    lt_facts_add(f, LT_CHECK_CPU_COPY, "", probe.copy_gbps);
    LT_TRY(multiply_on_cores(f, p->burn_s > 0.0 ? p->burn_s : CORE_S));
    return p->burn_s > 0.0 ? keep_patterns(f, p->memory_share) : LT_OK;
}
