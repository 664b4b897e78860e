/* cublas.c: cuBLASLt by dlopen. See cublas.h.
 *
 * cuBLAS is column-major. Row-major D = A B is column-major D^T = B^T A^T: the operands change
 * places, the leading dimensions stay. */
#include "kernels/cuda/cublas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "kernels/cuda/preload.h"

#define WORKSPACE_BYTES ((size_t)64 << 20)
#define MAX_SHAPES      256
#define TRIES           5 /* Runs of each algorithm at a shape's first call; the median counts. */

enum { /* Numbers of cublasLt's and CUDA's enums. */
       OP_N = 0,
       OP_T = 1,
       DESC_TRANSA = 3,
       DESC_TRANSB = 4,
       DESC_EPILOGUE = 7,
       DESC_BIAS_POINTER = 8,
       DESC_AUX_POINTER = 11,
       DESC_AUX_LD = 12,
       DESC_A_SCALE = 17, /* Pointers to one F32 each, on the device. */
       DESC_B_SCALE = 18,
       DESC_FAST_ACCUM = 25,
       EPILOGUE_BIAS = 4,
       EPILOGUE_DGELU = 192,
       PREF_WORKSPACE = 1,
       PREF_ALIGN_A = 5, /* Then B, C, D. */
       R_32F = 0,
       R_16F = 2,
       R_16BF = 14,
       R_8F_E4M3 = 28,
       COMPUTE_32F = 68,
};

typedef struct { /* cublasLtMatmulAlgo_t */
    uint64_t data[8];
} lt_algo;
typedef struct { /* cublasLtMatmulHeuristicResult_t */
    lt_algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} algo_result;

#define CUBLAS_MAP(X)                                                                              \
    X(create, "cublasLtCreate", (void **))                                                         \
    X(destroy, "cublasLtDestroy", (void *))                                                        \
    X(desc_create, "cublasLtMatmulDescCreate", (void **, int, int))                                \
    X(desc_set, "cublasLtMatmulDescSetAttribute", (void *, int, const void *, size_t))             \
    X(desc_destroy, "cublasLtMatmulDescDestroy", (void *))                                         \
    X(layout_create, "cublasLtMatrixLayoutCreate", (void **, int, uint64_t, uint64_t, int64_t))    \
    X(layout_destroy, "cublasLtMatrixLayoutDestroy", (void *))                                     \
    X(pref_create, "cublasLtMatmulPreferenceCreate", (void **))                                    \
    X(pref_set, "cublasLtMatmulPreferenceSetAttribute", (void *, int, const void *, size_t))       \
    X(pref_destroy, "cublasLtMatmulPreferenceDestroy", (void *))                                   \
    X(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                                 \
      (void *, void *, void *, void *, void *, void *, void *, int, algo_result *, int *))         \
    X(matmul, "cublasLtMatmul",                                                                    \
      (void *, void *, const void *, const void *, void *, const void *, void *, const void *,     \
       const void *, void *, void *, void *, const lt_algo *, void *, size_t, CUstream))

static struct {
#define CUBLAS_FIELD(field, symbol, params) int(*field) params;
    CUBLAS_MAP(CUBLAS_FIELD)
#undef CUBLAS_FIELD
    size_t (*version)(void);
    bool ready;
} lib;
static pthread_once_t lib_once = PTHREAD_ONCE_INIT;

static const char is_there; /* Represents any bias, or any x, in a key. */

/* One shape: descriptors and the algorithm that won. */
typedef struct {
    lt_cublas_args key; /* Pointers and scalars zeroed; bias, gelu_x: NULL or &is_there. */
    void *desc, *first, *second, *d;
    algo_result best;
} plan;

struct lt_cublas {
    lt_cuda *gpu;
    void *handle, *workspace;
    int64_t n_made; /* Order of creation: the oldest plan is replaced by the newest. */
    plan plans[MAX_SHAPES];
};

static void lib_load(void) {
    static const char *const names[] = {"libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so.12"};
    void *so = NULL;
    for (size_t i = 0; so == NULL && i < sizeof names / sizeof *names; i++) {
        so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (so == NULL) {
        return;
    }
#define LOAD(field, symbol, params)                                                                \
    *(void **)&lib.field = dlsym(so, symbol);                                                      \
    if (lib.field == NULL) {                                                                       \
        return;                                                                                    \
    }
    CUBLAS_MAP(LOAD)
#undef LOAD
    *(void **)&lib.version = dlsym(so, "cublasLtGetVersion");
    lib.ready = lib.version != NULL;
}

bool lt_cublas_available(void) {
    pthread_once(&lib_once, lib_load);
    return lib.ready;
}

/* Tested once per process, with a trial handle. */
bool lt_cublas_works(lt_cuda *c) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static enum { UNKNOWN, WORKS, FAILS } state;
    void *handle = NULL;
    if (!lt_cublas_available()) {
        return false;
    }
    pthread_mutex_lock(&lock);
    if (state == UNKNOWN) {
        state = lt_cuda_make_current(c) == LT_OK && lib.create(&handle) == 0 ? WORKS : FAILS;
        if (state == WORKS) {
            (void)lib.destroy(handle);
        } else {
            lt_log_warn(
                "libcublasLt %zu does not work with this driver: our kernels compute its products",
                lib.version());
        }
    }
    const bool works = state == WORKS;
    pthread_mutex_unlock(&lock);
    return works;
}

lt_err lt_cublas_open(lt_cublas **out, lt_cuda *c) {
    lt_err err = LT_OK;
    lt_cublas *b = NULL;
    if (!lt_cublas_available()) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "libcublasLt is not there");
    }
    LT_TRY(lt_cuda_make_current(c));
    b = calloc(1, sizeof *b);
    if (b == NULL) {
        LT_FAIL(LT_ERR_OOM, "cuBLASLt");
    }
    b->gpu = c;
    LT_TRY_DONE(lt_cuda_alloc(c, &b->workspace, WORKSPACE_BYTES, "cuBLASLt workspace"));
    if (lib.create(&b->handle) != 0) {
        LT_FAIL_DONE(LT_ERR_DEVICE, "cublasLtCreate fails");
    }
    *out = b;
    b = NULL;
done:
    lt_cublas_close(b);
    return err;
}

/* Accepts a plan that was never made, or only partly. */
static void plan_clear(plan *p) {
    void *const layouts[] = {p->first, p->second, p->d};
    if (p->desc != NULL) {
        (void)lib.desc_destroy(p->desc);
    }
    for (int i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            (void)lib.layout_destroy(layouts[i]);
        }
    }
    memset(p, 0, sizeof *p);
}

void lt_cublas_close(lt_cublas *b) {
    if (b == NULL) {
        return;
    }
    for (int i = 0; i < MAX_SHAPES; i++) {
        plan_clear(&b->plans[i]);
    }
    if (b->handle != NULL) {
        (void)lib.destroy(b->handle);
    }
    lt_cuda_free(b->gpu, b->workspace);
    free(b);
}

int lt_cublas_version(void) {
    return lt_cublas_available() ? (int)lib.version() : 0;
}

static int cuda_type(lt_cublas_type t) {
    return t == LT_CUBLAS_F32    ? R_32F
           : t == LT_CUBLAS_BF16 ? R_16BF
           : t == LT_CUBLAS_E4M3 ? R_8F_E4M3
                                 : R_16F;
}

static int plan_run(const lt_cublas *b, const plan *p, const algo_result *r, CUstream s,
                    const lt_cublas_args *a) {
    if (a->bias != NULL &&
        lib.desc_set(p->desc, DESC_BIAS_POINTER, &a->bias, sizeof a->bias) != 0) {
        return 1;
    }
    if (a->gelu_x != NULL &&
        lib.desc_set(p->desc, DESC_AUX_POINTER, &a->gelu_x, sizeof a->gelu_x) != 0) {
        return 1;
    }
    if (a->in == LT_CUBLAS_E4M3 && /* The operands are swapped. */
        (lib.desc_set(p->desc, DESC_A_SCALE, &a->b_scale, sizeof a->b_scale) != 0 ||
         lib.desc_set(p->desc, DESC_B_SCALE, &a->a_scale, sizeof a->a_scale) != 0)) {
        return 1;
    }
    return lib.matmul(b->handle, p->desc, &a->alpha, a->b, p->first, a->a, p->second, &a->beta,
                      a->d, p->d, a->d, p->d, &r->algo, b->workspace, WORKSPACE_BYTES, s);
}

/* Time the heuristic's proposals on the caller's own operands. With beta != 0 the result is only
 * right once, so d is not the caller's until the choice is made: the tries use beta 0 and the
 * caller's call comes last. */
static lt_err plan_choose(lt_cublas *b, plan *p, CUstream s, const lt_cublas_args *a,
                          algo_result *found, int n_found) {
    lt_err err = LT_OK;
    lt_cublas_args trial = *a;
    CUevent from = NULL, to = NULL;
    void *scratch = NULL;
    const size_t d_bytes = (size_t)(a->m * a->ldd) * (a->out == LT_CUBLAS_F32 ? 4 : 2);
    double best_ms = 1e30;
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &scratch, d_bytes, "cuBLASLt trial output"));
    LT_TRY_DONE(lt_cuda_event_open(b->gpu, &from, true));
    LT_TRY_DONE(lt_cuda_event_open(b->gpu, &to, true));
    trial.d = scratch;
    trial.beta = 0.0f;
    for (int i = 0; i < n_found; i++) {
        double ms_min = 1e30, ms;
        for (int t = 0; t < TRIES; t++) {
            LT_TRY_DONE(lt_cuda_event_record(b->gpu, from, s));
            if (plan_run(b, p, &found[i], s, &trial) != 0) {
                break;
            }
            LT_TRY_DONE(lt_cuda_event_record(b->gpu, to, s));
            LT_TRY_DONE(lt_cuda_event_elapsed(b->gpu, &ms, from, to));
            ms_min = ms < ms_min ? ms : ms_min;
        }
        if (ms_min < best_ms) {
            best_ms = ms_min;
            p->best = found[i];
        }
    }
done:
    lt_cuda_event_close(b->gpu, from);
    lt_cuda_event_close(b->gpu, to);
    lt_cuda_free(b->gpu, scratch);
    return err;
}

static lt_err plan_make(lt_cublas *b, plan *p, CUstream s, const lt_cublas_args *a) {
    const int op_first = a->trans_b ? OP_T : OP_N, op_second = a->trans_a ? OP_T : OP_N;
    const size_t workspace = WORKSPACE_BYTES;
    algo_result found[LT_CUBLAS_PROPOSALS];
    void *pref = NULL;
    int n_found = 0, bad;
    /* Column-major shapes of the operands as stored. */
    const uint64_t first_rows = (uint64_t)(a->trans_b ? a->k : a->n),
                   first_cols = (uint64_t)(a->trans_b ? a->n : a->k);
    const uint64_t second_rows = (uint64_t)(a->trans_a ? a->m : a->k),
                   second_cols = (uint64_t)(a->trans_a ? a->k : a->m);
    memset(found, 0, sizeof found);
    bad = lib.desc_create(&p->desc, COMPUTE_32F, R_32F) ||
          lib.desc_set(p->desc, DESC_TRANSA, &op_first, sizeof op_first) ||
          lib.desc_set(p->desc, DESC_TRANSB, &op_second, sizeof op_second) ||
          lib.layout_create(&p->first, cuda_type(a->in), first_rows, first_cols, a->ldb) ||
          lib.layout_create(&p->second, cuda_type(a->in), second_rows, second_cols, a->lda) ||
          lib.layout_create(&p->d, cuda_type(a->out), (uint64_t)a->n, (uint64_t)a->m, a->ldd) ||
          lib.pref_create(&pref) ||
          lib.pref_set(pref, PREF_WORKSPACE, &workspace, sizeof workspace);
    if (!bad && a->bias != NULL) {
        const int epilogue = EPILOGUE_BIAS;
        bad = lib.desc_set(p->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
              lib.desc_set(p->desc, DESC_BIAS_POINTER, &a->bias, sizeof a->bias);
    }
    if (!bad && a->gelu_x != NULL) {
        const int epilogue = EPILOGUE_DGELU;
        bad = lib.desc_set(p->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
              lib.desc_set(p->desc, DESC_AUX_POINTER, &a->gelu_x, sizeof a->gelu_x) ||
              lib.desc_set(p->desc, DESC_AUX_LD, &a->ld_x, sizeof a->ld_x);
    }
    if (!bad && a->in == LT_CUBLAS_E4M3) {
        const int8_t fast = a->fast;
        bad = lib.desc_set(p->desc, DESC_FAST_ACCUM, &fast, sizeof fast) ||
              lib.desc_set(p->desc, DESC_A_SCALE, &a->b_scale, sizeof a->b_scale) ||
              lib.desc_set(p->desc, DESC_B_SCALE, &a->a_scale, sizeof a->a_scale);
    }
    for (int i = 0; !bad && a->choice > 0 && i < 4; i++) {
        const uint32_t align = 16;
        bad = lib.pref_set(pref, PREF_ALIGN_A + i, &align, sizeof align);
    }
    bad = bad ||
          lib.heuristic(b->handle, p->desc, p->first, p->second, p->d, p->d, pref,
                        LT_CUBLAS_PROPOSALS, found, &n_found) ||
          n_found == 0;
    if (pref != NULL) {
        (void)lib.pref_destroy(pref);
    }
    if (bad) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "cuBLASLt does not take %lld x %lld x %lld", (long long)a->m,
                (long long)a->n, (long long)a->k);
    }
    p->best = found[a->choice <= 0 ? 0 : a->choice <= n_found ? a->choice - 1 : n_found - 1];
    return a->choice > 0 ? LT_OK : plan_choose(b, p, s, a, found, n_found);
}

lt_err lt_cublas_matmul(lt_cublas *b, CUstream s, const lt_cublas_args *a) {
    lt_cublas_args key;
    plan *p = NULL;
    if (lt_is_preloading(b->gpu)) {
        return LT_OK;
    }
    memset(&key, 0, sizeof key);
    key.m = a->m, key.n = a->n, key.k = a->k, key.lda = a->lda, key.ldb = a->ldb, key.ldd = a->ldd;
    key.trans_a = a->trans_a, key.trans_b = a->trans_b, key.in = a->in, key.out = a->out;
    key.choice = a->choice, key.fast = a->fast;
    key.bias = a->bias != NULL ? &is_there : NULL;
    key.gelu_x = a->gelu_x != NULL ? &is_there : NULL;
    key.ld_x = a->ld_x;
    for (int i = 0; i < MAX_SHAPES && p == NULL; i++) {
        p = memcmp(&b->plans[i].key, &key, sizeof key) == 0 ? &b->plans[i] : NULL;
    }
    LT_TRY(lt_cuda_make_current(b->gpu));
    if (p == NULL) {
        p = &b->plans[b->n_made % MAX_SHAPES];
        plan_clear(p);
        LT_TRY(plan_make(b, p, s, a));
        memcpy(&p->key, &key, sizeof key);
        b->n_made++;
    }
    if (plan_run(b, p, &p->best, s, a) != 0) {
        LT_FAIL(LT_ERR_DEVICE, "cublasLtMatmul of %lld x %lld x %lld fails", (long long)a->m,
                (long long)a->n, (long long)a->k);
    }
    return LT_OK;
}
