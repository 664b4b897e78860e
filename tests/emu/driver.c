/* driver.c: libcuda.so.1 without a GPU: the functions of src/kernels/cuda/driver.h over the host's
 * memory and the emulated blocks (block.c).
 *
 * DEVICE    LATEEN_EMU_DEVICES (1) of them, each an A100 cut down, as a slice of one is: compute
 * capability 8.0, LATEEN_EMU_SMS (14)
 *           multiprocessors, LATEEN_EMU_MIB (4096) MiB. So the op lists choose what they choose on
 *           sm_80, and kernels of sm_90 refuse by themselves. LATEEN_EMU_CAPABILITY=90: an H100,
 *           cut down alike.
 * MEMORY    device memory is the host's: filled with ones (NaN) when allocated, with guards before
 *           and after that each launch checks; under AddressSanitizer the allocator's own red zones
 *           do it, at the very access.
 * STREAMS   work is done when it is asked for. A stream that is captured records launches, copies
 *           and fills in order; streams that wait for an event of it are captured with it. A graph
 *           is that list, run again in its order, arguments copied.
 * MODULES   a "cubin" is the shared library that nvrtc.c made: written to a temporary file and
 *           opened.
 * CONTEXTS  streams, kernels and memory belong to the GPU that was current when they were made; on
 *           another, streams and kernels are refused as the driver refuses them.
 * Peers are refused with the driver's own code; of tensor maps, what only other layouts than tiles
 * need. */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/driver.h"
#include "launch.h"

enum {
    INVALID_VALUE = 1,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
};

#define EXPORT      __attribute__((visibility("default")))
#define GUARD_BYTES 512 /* Before and after: keeps the driver's alignment of 512. */
#define GUARD       0xa5
#define MAX_ARGS    64
#define MAX_DEVICES 8

__attribute__((weak)) void __asan_poison_memory_region(void const volatile *p, size_t bytes);

struct CUfunc_st {
    CUcontext context;
    char name[128];
    const emu_entry *entry;
    int dynamic_most;
    CUfunction next;
};
struct CUmod_st {
    void *lib;
    CUfunction functions;
};
typedef enum { NODE_LAUNCH, NODE_COPY, NODE_FILL } node_kind;
typedef struct {
    node_kind kind;
    CUfunction function;
    emu_dim3 grid, block, cluster;
    size_t bytes;          /* Dynamic shared, or of the copy or the fill. */
    unsigned char *values; /* Arguments one after the other, 16-byte steps. */
    void *dst;
    const void *src;
    uint32_t word;
} node;
struct CUgraph_st {
    node *nodes;
    int n_nodes, max_nodes, n_holders; /* Streams, events and executables that look at it. */
    bool whole;                        /* Its capture is over. */
};
struct CUgraphExec_st {
    CUgraph graph;
};
struct CUevent_st {
    double at_ms;
    CUgraph captured;
};
struct CUstream_st {
    CUcontext context;
    CUgraph captured;
    bool began; /* It, not one that joined. */
    CUstream next;
};
typedef struct block_of_memory {
    unsigned char *base; /* With its guards. */
    size_t bytes;
    CUcontext context;
    struct block_of_memory *next;
} memory;

/* A GPU: what is made while its context is current is its own, and of no use to another. */
static struct CUctx_st { size_t used_bytes; } contexts[MAX_DEVICES];
static struct {
    pthread_mutex_t lock;
    memory *allocated; /* On all of them. */
    CUstream streams;
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};
static __thread CUcontext current;

static long setting(const char *name, long otherwise) {
    const char *const text = getenv(name);
    return text != NULL && atol(text) > 0 ? atol(text) : otherwise;
}

/* ---- Device ---- */

static int n_devices(void) {
    const long n = setting("LATEEN_EMU_DEVICES", 1);
    return n < MAX_DEVICES ? (int)n : MAX_DEVICES;
}

EXPORT CUresult cuInit(unsigned int flags) {
    return flags == 0 ? 0 : INVALID_VALUE;
}
EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = 12040;
    return 0;
}
EXPORT CUresult cuGetErrorString(CUresult r, const char **text) {
    *text = r == 0                           ? "no error"
            : r == INVALID_VALUE             ? "invalid argument"
            : r == LT_CU_ERROR_OUT_OF_MEMORY ? "out of memory"
            : r == INVALID_IMAGE             ? "device kernel image is invalid"
            : r == INVALID_CONTEXT           ? "invalid device context"
            : r == INVALID_HANDLE            ? "invalid resource handle"
            : r == NOT_FOUND                 ? "named symbol not found"
            : r == NOT_READY                 ? "device not ready"
            : r == NOT_SUPPORTED             ? "operation not supported by the emulated GPU"
            : r == CAPTURE_UNSUPPORTED       ? "operation not permitted when stream is capturing"
                                             : "unknown error";
    return 0;
}
EXPORT CUresult cuGetErrorName(CUresult r, const char **text) {
    *text = r == 0                           ? "CUDA_SUCCESS"
            : r == INVALID_VALUE             ? "CUDA_ERROR_INVALID_VALUE"
            : r == LT_CU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : r == NOT_SUPPORTED             ? "CUDA_ERROR_NOT_SUPPORTED"
                                             : "CUDA_ERROR";
    return 0;
}
EXPORT CUresult cuDeviceGetCount(int *n) {
    *n = n_devices();
    return 0;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < n_devices() ? 0 : 101;
}
EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
    (void)device;
    (void)snprintf(name, (size_t)bytes, "emulated %s (tests/emu)",
                   emu_capability() == 90 ? "H100" : "A100");
    return 0;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    switch (attribute) {
    case LT_CU_ATTR_MAX_SHARED_PER_BLOCK:
        *value = 48 << 10;
        break;
    case LT_CU_ATTR_MAX_SHARED_OPTIN:
        *value = (int)emu_shared_most();
        break;
    case LT_CU_ATTR_CLOCK_KHZ:
        *value = 1410000;
        break;
    case LT_CU_ATTR_N_SMS:
        *value = (int)setting("LATEEN_EMU_SMS", 14);
        break;
    case LT_CU_ATTR_ECC:
        *value = 1;
        break;
    case LT_CU_ATTR_MEM_CLOCK_KHZ:
        *value = 1215000;
        break;
    case LT_CU_ATTR_MEM_BUS_BITS:
        *value = 5120;
        break;
    case LT_CU_ATTR_L2_BYTES:
        *value = 5 << 20;
        break;
    case LT_CU_ATTR_CC_MAJOR:
        *value = emu_capability() / 10;
        break;
    case LT_CU_ATTR_CC_MINOR:
        *value = 0;
        break;
    default:
        *value = 0;
        return INVALID_VALUE;
    }
    return 0;
}
static size_t memory_bytes(void) {
    return (size_t)setting("LATEEN_EMU_MIB", 4096) << 20;
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = memory_bytes();
    return 0;
}
EXPORT CUresult cuDeviceGetPCIBusId(char *id, int bytes, CUdevice device) {
    (void)snprintf(id, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return 0;
}
EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b) {
    (void)a;
    (void)b;
    *can = 0;
    return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = &contexts[device];
    return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    return 0;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return 0;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return 0;
}
EXPORT CUresult cuCtxSynchronize(void) {
    return 0;
}
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
}
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned int flags) {
    (void)context;
    (void)flags;
    return NOT_SUPPORTED;
}

/* ---- Memory ---- */

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    pthread_mutex_lock(&gpu.lock);
    *total = memory_bytes();
    *free_bytes = current != NULL ? *total - current->used_bytes : 0;
    pthread_mutex_unlock(&gpu.lock);
    return 0;
}

static size_t guard_bytes(void) {
    return __asan_poison_memory_region != NULL ? 0 : GUARD_BYTES;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    const size_t guard = guard_bytes();
    memory *m = NULL;
    CUresult r = LT_CU_ERROR_OUT_OF_MEMORY;
    if (current == NULL) {
        return INVALID_CONTEXT;
    }
    pthread_mutex_lock(&gpu.lock);
    if (bytes == 0 || bytes > memory_bytes() - current->used_bytes ||
        (m = calloc(1, sizeof *m)) == NULL ||
        posix_memalign((void **)&m->base, 512, bytes + 2 * guard) != 0) {
        free(m);
        r = bytes == 0 ? INVALID_VALUE : r;
        goto done;
    }
    memset(m->base, GUARD, guard);
    memset(m->base + guard, 0xff, bytes);
    memset(m->base + guard + bytes, GUARD, guard);
    m->bytes = bytes;
    m->context = current;
    m->next = gpu.allocated;
    gpu.allocated = m;
    current->used_bytes += bytes;
    *out = (CUdeviceptr)(uintptr_t)(m->base + guard);
    r = 0;
done:
    pthread_mutex_unlock(&gpu.lock);
    return r;
}

/* Every guard is as it was laid; `after`: who ran last. */
static void guards_check(const char *after) {
    const size_t guard = guard_bytes();
    pthread_mutex_lock(&gpu.lock);
    for (const memory *m = gpu.allocated; m != NULL; m = m->next) {
        for (size_t i = 0; i < guard; i++) {
            if (m->base[guard + m->bytes + i] != GUARD) {
                emu_trap("%s wrote %zu bytes behind an allocation of %zu", after, i, m->bytes);
            }
            if (m->base[i] != GUARD) {
                emu_trap("%s wrote %zu bytes before an allocation of %zu", after, guard - i,
                         m->bytes);
            }
        }
    }
    pthread_mutex_unlock(&gpu.lock);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p) {
    CUresult r = INVALID_VALUE;
    guards_check("somebody");
    pthread_mutex_lock(&gpu.lock);
    for (memory **at = &gpu.allocated; *at != NULL; at = &(*at)->next) {
        memory *const m = *at;
        if (m->base + guard_bytes() == (unsigned char *)(uintptr_t)p) {
            *at = m->next;
            m->context->used_bytes -= m->bytes;
            memset(m->base, 0xff, m->bytes < (1 << 20) ? m->bytes : 1 << 20); /* For late users. */
            free(m->base);
            free(m);
            r = 0;
            break;
        }
    }
    pthread_mutex_unlock(&gpu.lock);
    return r;
}
EXPORT CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
    (void)flags;
    return p != NULL && bytes > 0 ? 0 : INVALID_VALUE;
}
EXPORT CUresult cuMemHostUnregister(void *p) {
    return p != NULL ? 0 : INVALID_VALUE;
}

/* ---- Nodes: a piece of work, now or when a graph runs ---- */

static void node_run(const node *n, void **args) {
    void *own[MAX_ARGS];
    switch (n->kind) {
    case NODE_LAUNCH:
        for (int i = 0, at = 0; args == NULL && i < n->function->entry->n_args; i++) {
            own[i] = n->values + at;
            at += (int)(n->function->entry->arg_bytes[i] + 127) / 128 * 128;
        }
        emu_launch(n->function->name, n->function->entry, args != NULL ? args : own, n->grid,
                   n->block, n->cluster, n->bytes);
        guards_check(n->function->name);
        break;
    case NODE_COPY:
        memmove(n->dst, n->src, n->bytes);
        break;
    case NODE_FILL:
        for (size_t i = 0; i < n->bytes / 4; i++) {
            ((uint32_t *)n->dst)[i] = n->word;
        }
        memset((char *)n->dst + n->bytes / 4 * 4, (int)(n->word & 0xff), n->bytes % 4);
        break;
    }
}

static CUresult node_keep(CUgraph g, const node *n, void **args) {
    const emu_entry *const e = n->kind == NODE_LAUNCH ? n->function->entry : NULL;
    node *kept;
    size_t bytes = 0;
    if (g->n_nodes == g->max_nodes) {
        const int most = 2 * g->max_nodes + 64;
        node *const more = realloc(g->nodes, (size_t)most * sizeof *more);
        if (more == NULL) {
            return LT_CU_ERROR_OUT_OF_MEMORY;
        }
        g->nodes = more;
        g->max_nodes = most;
    }
    kept = &g->nodes[g->n_nodes];
    *kept = *n;
    for (int i = 0; e != NULL && i < e->n_args; i++) {
        bytes += (e->arg_bytes[i] + 127) / 128 * 128;
    }
    if (bytes > 0) {
        if (posix_memalign((void **)&kept->values, 128, bytes) != 0) {
            return LT_CU_ERROR_OUT_OF_MEMORY;
        }
        bytes = 0;
        for (int i = 0; i < e->n_args; i++) {
            memcpy(kept->values + bytes, args[i], e->arg_bytes[i]);
            bytes += (e->arg_bytes[i] + 127) / 128 * 128;
        }
    }
    g->n_nodes++;
    return 0;
}

static CUresult node_do(CUstream s, const node *n, void **args) {
    if (s != NULL && s->context != current) {
        return INVALID_HANDLE;
    }
    if (s != NULL && s->captured != NULL) {
        return node_keep(s->captured, n, args);
    }
    node_run(n, args);
    return 0;
}

static CUresult copy(void *dst, const void *src, size_t bytes, CUstream s) {
    return node_do(s, &(node){.kind = NODE_COPY, .dst = dst, .src = src, .bytes = bytes}, NULL);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream s) {
    return copy((void *)(uintptr_t)dst, src, bytes, s);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream s) {
    return copy(dst, (const void *)(uintptr_t)src, bytes, s);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s) {
    return copy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, s);
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s) {
    return copy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, s);
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char byte, size_t bytes, CUstream s) {
    return node_do(s,
                   &(node){.kind = NODE_FILL,
                           .dst = (void *)(uintptr_t)dst,
                           .word = 0x01010101u * byte,
                           .bytes = bytes},
                   NULL);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int word, size_t n, CUstream s) {
    return node_do(
        s, &(node){.kind = NODE_FILL, .dst = (void *)(uintptr_t)dst, .word = word, .bytes = 4 * n},
        NULL);
}

/* ---- Streams, events, graphs ---- */

static void graph_leave(CUgraph g) {
    if (g == NULL || --g->n_holders > 0) {
        return;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        free(g->nodes[i].values);
    }
    free(g->nodes);
    free(g);
}

static CUgraph graph_hold(CUgraph g) {
    if (g != NULL) {
        g->n_holders++;
    }
    return g;
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    const CUstream s = current != NULL ? calloc(1, sizeof *s) : NULL;
    (void)flags;
    if (current == NULL) {
        return INVALID_CONTEXT;
    }
    if (s == NULL) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    s->context = current;
    pthread_mutex_lock(&gpu.lock);
    s->next = gpu.streams;
    gpu.streams = s;
    pthread_mutex_unlock(&gpu.lock);
    *out = s;
    return 0;
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    (void)priority; /* Work is done when it is asked for. */
    return cuStreamCreate(out, flags);
}
EXPORT CUresult cuStreamDestroy_v2(CUstream s) {
    pthread_mutex_lock(&gpu.lock);
    for (CUstream *at = &gpu.streams; *at != NULL; at = &(*at)->next) {
        if (*at == s) {
            *at = s->next;
            break;
        }
    }
    pthread_mutex_unlock(&gpu.lock);
    graph_leave(s->captured);
    free(s);
    return 0;
}
EXPORT CUresult cuStreamSynchronize(CUstream s) {
    return s != NULL && s->captured != NULL ? CAPTURE_UNSUPPORTED : 0;
}
EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags) {
    (void)flags;
    if (e->captured != NULL && e->captured->whole) {
        return CAPTURE_UNSUPPORTED; /* Recorded in a graph: nothing outside can wait for it. */
    }
    if (s != NULL && e->captured != NULL && s->captured == NULL) {
        s->captured = graph_hold(e->captured);
    }
    return 0;
}
EXPORT CUresult cuStreamBeginCapture_v2(CUstream s, int mode) {
    (void)mode;
    if (s == NULL || s->captured != NULL) {
        return CAPTURE_UNSUPPORTED;
    }
    s->captured = calloc(1, sizeof *s->captured);
    s->began = true;
    return graph_hold(s->captured) != NULL ? 0 : LT_CU_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *out) {
    if (s == NULL || !s->began) {
        return CAPTURE_UNSUPPORTED;
    }
    *out = s->captured; /* The stream's hold becomes the caller's. */
    s->captured->whole = true;
    s->captured = NULL;
    s->began = false;
    pthread_mutex_lock(&gpu.lock);
    for (CUstream o = gpu.streams; o != NULL; o = o->next) {
        if (o->captured == *out) { /* One that joined. */
            graph_leave(o->captured);
            o->captured = NULL;
        }
    }
    pthread_mutex_unlock(&gpu.lock);
    return 0;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) {
    const CUgraphExec e = calloc(1, sizeof *e);
    (void)flags;
    if (e == NULL) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    e->graph = graph_hold(g);
    *out = e;
    return 0;
}
EXPORT CUresult cuGraphDestroy(CUgraph g) {
    graph_leave(g);
    return 0;
}
EXPORT CUresult cuGraphExecDestroy(CUgraphExec e) {
    graph_leave(e->graph);
    free(e);
    return 0;
}
EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream s) {
    if (s != NULL && s->captured != NULL) {
        return CAPTURE_UNSUPPORTED;
    }
    for (int i = 0; i < e->graph->n_nodes; i++) {
        node_run(&e->graph->nodes[i], NULL);
    }
    return 0;
}
static double now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? 0 : LT_CU_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuEventDestroy_v2(CUevent e) {
    graph_leave(e->captured);
    free(e);
    return 0;
}
EXPORT CUresult cuEventRecord(CUevent e, CUstream s) {
    graph_leave(e->captured);
    e->captured = graph_hold(s != NULL ? s->captured : NULL);
    e->at_ms = now_ms();
    return 0;
}
EXPORT CUresult cuEventQuery(CUevent e) {
    (void)e;
    return 0;
}
EXPORT CUresult cuEventSynchronize(CUevent e) {
    (void)e;
    return 0;
}
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
    *ms = (float)(to->at_ms - from->at_ms);
    return 0;
}

/* ---- Modules and launches ---- */

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    const Elf64_Ehdr *const head = image;
    const char *const dir = getenv("TMPDIR");
    char path[512];
    CUmodule m;
    size_t bytes;
    int fd;
    bool whole;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) {
        return INVALID_IMAGE;
    }
    bytes = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize; /* The linker's last part. */
    m = calloc(1, sizeof *m);
    (void)snprintf(path, sizeof path, "%s/lateen-emu-XXXXXX", dir != NULL ? dir : "/tmp");
    fd = mkstemp(path);
    if (m == NULL || fd < 0) {
        free(m);
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    whole = write(fd, image, bytes) == (ssize_t)bytes;
    (void)close(fd);
    m->lib = whole ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (m->lib == NULL) {
        (void)fprintf(stderr, "emulated GPU: %s\n", whole ? dlerror() : "can not write the module");
        free(m);
        m = NULL;
    }
    if (getenv("LATEEN_EMU_KEEP") == NULL) {
        (void)unlink(path);
    }
    *out = m;
    return m != NULL ? 0 : INVALID_IMAGE;
}
EXPORT CUresult cuModuleUnload(CUmodule m) {
    while (m->functions != NULL) {
        const CUfunction f = m->functions;
        m->functions = f->next;
        free(f);
    }
    (void)dlclose(m->lib);
    free(m);
    return 0;
}
EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    const CUfunction f = calloc(1, sizeof *f);
    char symbol[160];
    if (f == NULL) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    (void)snprintf(symbol, sizeof symbol, "emu_entry_%s", name);
    (void)snprintf(f->name, sizeof f->name, "%s", name);
    f->entry = dlsym(m->lib, symbol);
    if (f->entry == NULL || f->entry->n_args > MAX_ARGS) {
        free(f);
        return NOT_FOUND;
    }
    f->context = current;
    f->dynamic_most = 48 << 10;
    f->next = m->functions;
    m->functions = f;
    *out = f;
    return 0;
}
EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *bytes, CUmodule m, const char *name) {
    void *const at = dlsym(m->lib, name);
    const Elf64_Sym *symbol = NULL;
    Dl_info info;
    if (at == NULL || dladdr1(at, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0) {
        return NOT_FOUND;
    }
    *p = (CUdeviceptr)(uintptr_t)at;
    *bytes = symbol != NULL ? symbol->st_size : 0;
    return 0;
}
EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f) {
    *value = attribute == LT_CU_FUNC_N_REGS               ? 64
             : attribute == LT_CU_FUNC_MAX_DYNAMIC_SHARED ? f->dynamic_most
                                                          : 0;
    return 0;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value) {
    if (attribute == LT_CU_FUNC_MAX_DYNAMIC_SHARED) {
        if (value > (int)emu_shared_most()) {
            return INVALID_VALUE;
        }
        f->dynamic_most = value;
    }
    return 0;
}
EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads,
                                                            size_t dynamic) {
    const int by_threads = 1024 / threads,
              by_shared = (int)((emu_shared_most() + 1024) / (dynamic + 1024));
    (void)f; /* 64 registers a thread: 1024 threads. */
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return 0;
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
    const unsigned threads = c->blockDimX * c->blockDimY * c->blockDimZ;
    emu_dim3 cluster = {1, 1, 1};
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == LT_CU_LAUNCH_CLUSTER) {
            cluster = (emu_dim3){c->attrs[i].value.clusterDim.x, c->attrs[i].value.clusterDim.y,
                                 c->attrs[i].value.clusterDim.z};
        }
    }
    const unsigned blocks = cluster.x * cluster.y * cluster.z;
    if (blocks != 1 && emu_capability() < 90) {
        return NOT_SUPPORTED;
    }
    if (blocks < 1 || blocks > 16 || c->gridDimX % cluster.x != 0 || c->gridDimY % cluster.y != 0 ||
        c->gridDimZ % cluster.z != 0) {
        return INVALID_VALUE;
    }
    if (f->context != current) {
        return INVALID_HANDLE;
    }
    if (extra != NULL || c->gridDimX == 0 || c->gridDimX > 0x7fffffffu || c->gridDimY - 1 > 65534 ||
        c->gridDimZ - 1 > 65534 || threads == 0 || threads > (unsigned)f->entry->threads_max ||
        (int)c->sharedMemBytes > f->dynamic_most) {
        return INVALID_VALUE;
    }
    return node_do(c->hStream,
                   &(node){.kind = NODE_LAUNCH,
                           .function = f,
                           .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
                           .block = {c->blockDimX, c->blockDimY, c->blockDimZ},
                           .cluster = cluster,
                           .bytes = c->sharedMemBytes},
                   args);
}
/* What the driver's manual asks of each argument; a map that it would refuse is refused. */
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int type, uint32_t rank, void *p,
                                       const uint64_t *size, const uint64_t *stride,
                                       const uint32_t *box, const uint32_t *steps, int interleave,
                                       int swizzle, int l2, int fill) {
    const int bytes = type == LT_CU_TMAP_UINT8                               ? 1
                      : type == LT_CU_TMAP_FP16 || type == LT_CU_TMAP_BF16   ? 2
                      : type == LT_CU_TMAP_UINT32 || type == LT_CU_TMAP_FP32 ? 4
                                                                             : 0;
    static const uint32_t widest[] = {256 * 4, 32, 64, 128}; /* Of a box, by swizzle. */
    emu_tensor t = {.mark = EMU_TENSOR_MARK,
                    .type = (uint8_t)type,
                    .rank = (uint8_t)rank,
                    .swizzle = (uint8_t)swizzle,
                    .element_bytes = (uint8_t)bytes,
                    .base = p};
    (void)l2;
    if (emu_capability() < 90 || bytes == 0 || interleave != 0 || fill != 0 || swizzle < 0 ||
        swizzle > 3) {
        return NOT_SUPPORTED;
    }
    if (rank < 1 || rank > 5 || ((uintptr_t)p & 15) != 0 || box[0] * (uint32_t)bytes % 16 != 0 ||
        box[0] * (uint32_t)bytes > widest[swizzle]) {
        return INVALID_VALUE;
    }
    for (uint32_t d = 0; d < rank; d++) {
        t.size[d] = size[d];
        t.stride[d] = d > 0 ? stride[d - 1] : (uint64_t)bytes;
        t.box[d] = (uint16_t)box[d];
        if (size[d] < 1 || size[d] > 1ull << 32 || box[d] < 1 || box[d] > 256 || steps[d] != 1 ||
            (d > 0 && (t.stride[d] % 16 != 0 || t.stride[d] >= 1ull << 40))) {
            return INVALID_VALUE;
        }
    }
    _Static_assert(sizeof t <= sizeof *map, "a map of 128 bytes");
    memset(map, 0, sizeof *map);
    memcpy(map, &t, sizeof t);
    return 0;
}
