/* launch.c: the clusters of a grid (each of one block, if it has none) are given in rising order
 * to workers, one for each core of the host (or LATEEN_EMU_WORKERS). See launch.h.
 *
 * Blocks that wait for each other (a barrier over the grid, flags in memory) must be alive at the
 * same time: a worker whose cluster can only spin starts one more worker, until every cluster of
 * the grid has its own. */
#include "launch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "block.h"

#define MAX_WORKERS 2048

typedef struct {
    emu_work work;
    uint64_t n_clusters, next; /* next: atomic. */
} grid;

static struct {
    pthread_mutex_t launching; /* Held by one grid at a time. */
    pthread_mutex_t lock;      /* Protects everything below. */
    pthread_cond_t wake, idle;
    grid *now;
    uint64_t turn; /* Number of grids so far. */
    int n_workers, n_busy, n_wanted;
} pool = {.launching = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER};

static void clusters_run(emu_worker *w, grid *g) {
    const emu_dim3 c = g->work.cluster, n = {g->work.grid.x / c.x, g->work.grid.y / c.y, 0};
    for (uint64_t b; (b = __atomic_fetch_add(&g->next, 1, __ATOMIC_RELAXED)) < g->n_clusters;) {
        emu_cluster_run(w, &g->work,
                        (emu_dim3){c.x * (unsigned)(b % n.x), c.y * (unsigned)(b / n.x % n.y),
                                   c.z * (unsigned)(b / n.x / n.y)});
    }
    emu_worker_rest(w);
}

/* A worker takes part in every grid that begins while it is alive. */
static void *worker_main(void *at) {
    emu_worker *const w = emu_worker_open();
    uint64_t seen = (uint64_t)(uintptr_t)at;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.turn == seen || pool.now == NULL) {
            pthread_cond_wait(&pool.wake, &pool.lock);
        }
        seen = pool.turn;
        grid *const g = pool.now;
        pool.n_busy++;
        pthread_mutex_unlock(&pool.lock);
        clusters_run(w, g);
        pthread_mutex_lock(&pool.lock);
        if (--pool.n_busy == 0) {
            pthread_cond_signal(&pool.idle);
        }
    }
    return NULL;
}

/* The caller holds the lock. */
static void worker_add(uint64_t seen) {
    pthread_t id;
    if (pool.n_workers == MAX_WORKERS ||
        pthread_create(&id, NULL, worker_main, (void *)(uintptr_t)seen) != 0) {
        emu_trap("no more than %d clusters can be alive at once here", pool.n_workers + 1);
    }
    pthread_detach(id);
    pool.n_workers++;
}

static void one_more(void *context) {
    grid *const g = context;
    pthread_mutex_lock(&pool.lock);
    if (__atomic_load_n(&g->next, __ATOMIC_RELAXED) < g->n_clusters &&
        pool.n_busy + 1 >= pool.n_workers + 1) {
        worker_add(pool.turn - 1);
    }
    pthread_mutex_unlock(&pool.lock);
}

static int workers_wanted(void) {
    const char *const wish = getenv("LATEEN_EMU_WORKERS");
    const long n = wish != NULL ? atol(wish) : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 64 ? 64 : (int)n;
}

void emu_launch(const char *name, const emu_entry *entry, void **args, emu_dim3 dims,
                emu_dim3 block, emu_dim3 cluster, size_t dynamic_bytes) {
    static emu_worker *own; /* The caller's own worker: only one thread launches at a time. */
    static uint64_t launches;
    grid g = {.work = {.name = name,
                       .entry = entry,
                       .args = args,
                       .grid = dims,
                       .block = block,
                       .cluster = cluster,
                       .dynamic_bytes = dynamic_bytes,
                       .stuck = one_more},
              .n_clusters = (uint64_t)dims.x * dims.y * dims.z / cluster.x / cluster.y / cluster.z};
    g.work.context = &g;
    pthread_mutex_lock(&pool.launching);
    pthread_mutex_lock(&pool.lock);
    g.work.turn = ++launches;
    if (own == NULL) {
        own = emu_worker_open();
        pool.n_wanted = workers_wanted();
    }
    while (pool.n_workers + 1 < pool.n_wanted && g.n_clusters > 1) {
        worker_add(pool.turn);
    }
    if (g.n_clusters > 1) {
        pool.turn++;
        pool.now = &g;
        pthread_cond_broadcast(&pool.wake);
    }
    pthread_mutex_unlock(&pool.lock);
    clusters_run(own, &g);
    pthread_mutex_lock(&pool.lock);
    pool.now = NULL;
    while (pool.n_busy > 0) {
        pthread_cond_wait(&pool.idle, &pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.launching);
}
