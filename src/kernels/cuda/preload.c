/* preload.c: see preload.h. */
#include "kernels/cuda/preload.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/source.h"

#define MAX_MISSING  1024 /* Kernels beyond this number are compiled when they are needed. */
#define MAX_CHILDREN 32
#define MAX_WAIT_S   120

typedef struct {
    char *file, *defines, *arch;
} missing_kernel;

static _Thread_local struct {
    const lt_cuda *gpu; /* The GPU whose launches are noted; NULL: none. */
    missing_kernel *of;
    int n;
} preload;

/* Memory that the children share with their parent. */
typedef struct {
    atomic_int next; /* Index of the first kernel that no child has taken. */
    atomic_bool tried[MAX_MISSING];
} batch_progress;

/* The kernels that children compile now, one batch at a time. of, n and progress change under the
 * lock, and not while children run. */
static struct {
    pthread_mutex_t lock;
    missing_kernel *of;
    int n, n_first; /* `end` waits for the first n_first. */
    batch_progress *progress;
} batch = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool lt_is_preloading(const lt_cuda *gpu) {
    return preload.gpu == gpu;
}

void lt_preload_begin(const lt_cuda *gpu) {
    LT_ASSERT(gpu != NULL && preload.gpu == NULL);
    preload.gpu = gpu;
}

int64_t lt_preload_missing(void) {
    return preload.n;
}

static bool kernel_is(const missing_kernel *k, const char *file, const char *defines,
                      const char *arch) {
    return strcmp(k->file, file) == 0 && strcmp(k->defines, defines) == 0 &&
           strcmp(k->arch, arch) == 0;
}

static void kernels_free(missing_kernel *of, int n) {
    for (int i = 0; of != NULL && i < n; i++) {
        free(of[i].file);
        free(of[i].defines);
        free(of[i].arch);
    }
    free(of);
}

static bool is_noted(const char *file, const char *defines, const char *arch) {
    for (int i = 0; i < preload.n; i++) {
        if (kernel_is(&preload.of[i], file, defines, arch)) {
            return true;
        }
    }
    return false;
}

lt_err lt_preload_note(bool *missing, const char *file, const char *defines, const char *arch) {
    missing_kernel *k;
    const bool noted = is_noted(file, defines, arch);
    *missing = noted || !lt_cubin_is_cached(file, defines, arch);
    if (noted || !*missing) {
        return LT_OK;
    }
    if (preload.of == NULL) {
        preload.of = calloc(MAX_MISSING, sizeof *preload.of);
    }
    if (preload.of == NULL) {
        LT_FAIL(LT_ERR_OOM, "kernels that are missing");
    }
    if (preload.n == MAX_MISSING) {
        return LT_OK;
    }
    k = &preload.of[preload.n++];
    *k = (missing_kernel){strdup(file), strdup(defines), strdup(arch)};
    if (k->file == NULL || k->defines == NULL || k->arch == NULL) {
        LT_FAIL(LT_ERR_OOM, "kernel %s", file);
    }
    return LT_OK;
}

/* In a child: compile the next kernel that no child has taken, until none is left. A child is
 * killed when its parent ends, because it may hold copies of the parent's sockets. */
static void compile_some(void) {
    int i;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    lt_log_set_level(LT_LOG_ERROR);
    while ((i = atomic_fetch_add(&batch.progress->next, 1)) < batch.n) {
        const missing_kernel *k = &batch.of[i];
        lt_cubin c = {0};
        if (i == batch.n_first) {
            (void)setpriority(PRIO_PROCESS, 0, 10); /* By now the parent serves requests. */
        }
        if (lt_cubin_get(&c, k->file, k->defines, k->arch) == LT_OK) {
            lt_cubin_close(&c);
        }
        atomic_store(&batch.progress->tried[i], true);
    }
    _exit(0);
}

/* Children that do not end in time are killed: the kernels that they leave are compiled when they
 * are needed. */
static void await_children(const pid_t *children, int n) {
    const double until = lt_clock_s() + MAX_WAIT_S;
    for (int i = 0; i < n; i++) {
        while (children[i] > 0) {
            const pid_t ended = waitpid(children[i], NULL, WNOHANG);
            if (ended > 0 || (ended < 0 && errno != EINTR)) {
                break;
            }
            if (lt_clock_s() >= until) {
                (void)kill(children[i], SIGKILL);
            }
            (void)usleep(2000);
        }
    }
}

/* The thread of a batch: children end when the thread that made them ends, so it stays until they
 * are done. */
static void *batch_run(void *unused) {
    const int threads = lt_thread_count(), most = threads < MAX_CHILDREN ? threads : MAX_CHILDREN,
              n = most < batch.n ? most : batch.n;
    pid_t children[MAX_CHILDREN];
    (void)unused;
    for (int i = 0; i < n; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            compile_some();
        }
    }
    await_children(children, n);
    pthread_mutex_lock(&batch.lock);
    kernels_free(batch.of, batch.n);
    (void)munmap(batch.progress, sizeof *batch.progress);
    batch.of = NULL, batch.n = 0, batch.progress = NULL;
    pthread_mutex_unlock(&batch.lock);
    return NULL;
}

bool lt_preload_compiling(void) {
    bool running;
    pthread_mutex_lock(&batch.lock);
    running = batch.of != NULL;
    pthread_mutex_unlock(&batch.lock);
    return running;
}

/* Do children still have to try one of the first n (file NULL), or this kernel? */
static bool is_pending(int n, const char *file, const char *defines, const char *arch) {
    bool pending = false;
    pthread_mutex_lock(&batch.lock);
    for (int i = 0; i < batch.n && i < n && !pending; i++) {
        const bool same = file == NULL || kernel_is(&batch.of[i], file, defines, arch);
        pending = same && !atomic_load(&batch.progress->tried[i]);
    }
    pthread_mutex_unlock(&batch.lock);
    return pending;
}

void lt_preload_await(const char *file, const char *defines, const char *arch) {
    while (is_pending(MAX_MISSING, file, defines, arch)) {
        (void)usleep(1000);
    }
}

/* Bytes of the text that a kernel is compiled from, which tell roughly how long that takes. */
static int64_t text_bytes(const missing_kernel *k) {
    lt_source s = {0};
    int64_t bytes = 0;
    if (lt_source_open(&s, k->file) == LT_OK) {
        for (int i = 0; i < s.n_parts; i++) {
            bytes += (int64_t)strlen(s.text[i]);
        }
    }
    lt_source_close(&s);
    return bytes;
}

static int compare_longest_first(const void *a, const void *b) {
    const int64_t x = text_bytes(a), y = text_bytes(b);
    return (x < y) - (x > y);
}

/* Make the kernels that the calling thread noted the current batch. False: they are compiled when
 * they are needed. */
static bool batch_begin(int64_t n_first) {
    pthread_t thread;
    void *const shared = mmap(NULL, sizeof(batch_progress), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return false;
    }
    pthread_mutex_lock(&batch.lock);
    while (batch.of != NULL) { /* Wait for the batch of another thread. */
        pthread_mutex_unlock(&batch.lock);
        (void)usleep(1000);
        pthread_mutex_lock(&batch.lock);
    }
    batch.of = preload.of, batch.n = preload.n, batch.progress = shared;
    batch.n_first = n_first < batch.n ? (int)n_first : batch.n;
    /* If a long compilation began last, the start would wait for it alone. */
    qsort(batch.of, (size_t)batch.n_first, sizeof *batch.of, compare_longest_first);
    preload.of = NULL;
    pthread_mutex_unlock(&batch.lock);
    if (pthread_create(&thread, NULL, batch_run, NULL) != 0) {
        (void)munmap(shared, sizeof(batch_progress));
        pthread_mutex_lock(&batch.lock);
        preload.of = batch.of;
        batch.of = NULL, batch.n = 0, batch.progress = NULL;
        pthread_mutex_unlock(&batch.lock);
        return false;
    }
    (void)pthread_detach(thread);
    return true;
}

void lt_preload_end(int64_t n_first) {
    LT_ASSERT(preload.gpu != NULL);
    preload.gpu = NULL;
    if (preload.n > 1) { /* A single kernel is compiled when it is needed. */
        lt_cubin_tell(preload.of[0].arch, preload.n);
        if (batch_begin(n_first)) {
            while (is_pending((int)(n_first < MAX_MISSING ? n_first : MAX_MISSING), NULL, NULL,
                              NULL)) {
                (void)usleep(1000);
            }
        }
    }
    kernels_free(preload.of, preload.n);
    preload.of = NULL;
    preload.n = 0;
}
