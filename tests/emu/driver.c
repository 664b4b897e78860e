/* driver.c: libcuda.so.1 without a GPU: the functions of src/kernels/cuda/driver.h over the host's
 * memory and the emulated blocks (block.c).
 *
 * DEVICE    LATEEN_EMU_DEVICES (1) devices, each a reduced A100, like a MIG slice: compute
 *           capability 8.0, LATEEN_EMU_SMS (14) multiprocessors, LATEEN_EMU_MIB (4096) MiB. So
 *           the op lists choose as on sm_80, and kernels of sm_90 refuse.
 *           LATEEN_EMU_CAPABILITY=90: an H100, reduced in the same way.
 * MEMORY    device memory is the host's: filled with ones (NaN) when allocated, with guards
 *           before and after it that each launch checks; under AddressSanitizer, red zones of the
 *           allocator detect each invalid access at once.
 * STREAMS   see streams.c.
 * MODULES   a "cubin" is the shared library that nvrtc.c built: it is written to a temporary file
 *           and opened.
 * CONTEXTS  streams, kernels and memory belong to the GPU that was current when they were
 *           created; on another GPU, streams and kernels are refused, as the driver does.
 * PEERS     see peers.c; GPUs of one process reach each other's memory, which is the host's.
 * Tensor maps of other layouts than tiles are refused. */
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

#include "streams.h"

#define GUARD_BYTES 512 /* Before and after; keeps the driver's alignment of 512. */
#define GUARD       0xa5
#define MAX_DEVICES 8

__attribute__((weak)) void __asan_poison_memory_region(void const volatile *p, size_t bytes);

struct CUmod_st {
    void *lib;
    CUfunction functions;
};
typedef struct block_of_memory {
    unsigned char *base; /* Guards included. */
    size_t bytes;
    CUcontext context;
    struct block_of_memory *next;
} memory;

/* A GPU: objects that are created while its context is current belong to it, and do not work on
 * another. */
static struct CUctx_st { size_t used_bytes; } contexts[MAX_DEVICES];
static struct {
    pthread_mutex_t lock;
    memory *allocated; /* Of all devices. */
} gpu = {.lock = PTHREAD_MUTEX_INITIALIZER};
__thread CUcontext emu_current;

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
    *can = a != b;
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
    emu_current = context;
    return 0;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = emu_current;
    return 0;
}
EXPORT CUresult cuCtxSynchronize(void) {
    emu_settle(emu_current);
    return 0;
}
EXPORT int emu_current_device(void) {
    return emu_current != NULL ? (int)(emu_current - contexts) : -1;
}
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
}
EXPORT CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned int flags) {
    (void)flags;
    return context != emu_current ? 0 : INVALID_VALUE;
}

/* ---- Memory ---- */

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    pthread_mutex_lock(&gpu.lock);
    *total = memory_bytes();
    *free_bytes = emu_current != NULL ? *total - emu_current->used_bytes : 0;
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
    if (emu_current == NULL) {
        return INVALID_CONTEXT;
    }
    /* It gets pages of its own, so that peers.c can share it. */
    const bool pages = bytes >= EMU_SHARED_LEAST;
    const size_t align = pages ? EMU_PAGE : 512,
                 whole = (bytes + 2 * guard + align - 1) / align * align;
    pthread_mutex_lock(&gpu.lock);
    if (bytes == 0 || bytes > memory_bytes() - emu_current->used_bytes ||
        (m = calloc(1, sizeof *m)) == NULL ||
        posix_memalign((void **)&m->base, align, pages ? whole : bytes + 2 * guard) != 0) {
        free(m);
        r = bytes == 0 ? INVALID_VALUE : r;
        goto done;
    }
    memset(m->base, GUARD, guard);
    memset(m->base + guard, 0xff, bytes);
    memset(m->base + guard + bytes, GUARD, guard);
    m->bytes = bytes;
    m->context = emu_current;
    m->next = gpu.allocated;
    gpu.allocated = m;
    emu_current->used_bytes += bytes;
    *out = (CUdeviceptr)(uintptr_t)(m->base + guard);
    r = 0;
done:
    pthread_mutex_unlock(&gpu.lock);
    return r;
}

bool emu_memory_find(CUdeviceptr p, unsigned char **base, size_t *bytes, size_t *guard) {
    bool found = false;
    pthread_mutex_lock(&gpu.lock);
    for (const memory *m = gpu.allocated; m != NULL && !found; m = m->next) {
        found = m->base + guard_bytes() == (unsigned char *)(uintptr_t)p;
        *base = m->base;
        *bytes = m->bytes;
        *guard = guard_bytes();
    }
    pthread_mutex_unlock(&gpu.lock);
    return found;
}

/* Check that every guard is intact; `after`: the last kernel that ran. */
void emu_guards_check(const char *after) {
    const size_t guard = guard_bytes();
    pthread_mutex_lock(&gpu.lock);
    for (const memory *m = gpu.allocated; m != NULL; m = m->next) {
        for (size_t i = 0; i < guard; i++) {
            if (m->base[guard + m->bytes + i] != GUARD) {
                emu_trap("%s wrote %zu bytes past the end of an allocation of %zu", after, i,
                         m->bytes);
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
    emu_settle(emu_current); /* The driver waits for the device, too. */
    emu_guards_check("somebody");
    pthread_mutex_lock(&gpu.lock);
    for (memory **at = &gpu.allocated; *at != NULL; at = &(*at)->next) {
        memory *const m = *at;
        if (m->base + guard_bytes() == (unsigned char *)(uintptr_t)p) {
            *at = m->next;
            m->context->used_bytes -= m->bytes;
            /* So that use after free is seen. */
            memset(m->base, 0xff, m->bytes < (1 << 20) ? m->bytes : 1 << 20);
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

/* ---- Copies and fills ---- */

static CUresult copy(void *dst, const void *src, size_t bytes, CUstream s) {
    return emu_do(s, &(node){.kind = NODE_COPY, .dst = dst, .src = src, .bytes = bytes}, NULL);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream s) {
    return copy((void *)(uintptr_t)dst, src, bytes, s);
}
/* LATEEN_EMU_LATE_DOWNLOADS_MS: a copy to the host is made this much later, and later work in its
 * stream waits. A program that changes the source before then, or reads the destination, is
 * wrong. */
typedef struct {
    void *dst;
    const void *src;
    size_t bytes;
    long late_ms;
    struct timespec begun;
} late_copy;
static void late_begin(void *ctx) {
    (void)clock_gettime(CLOCK_MONOTONIC, &((late_copy *)ctx)->begun);
}
static bool late_poll(void *ctx) {
    const late_copy *const c = ctx;
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if ((now.tv_sec - c->begun.tv_sec) * 1000 + (now.tv_nsec - c->begun.tv_nsec) / 1000000 <
        c->late_ms) {
        return false;
    }
    memmove(c->dst, c->src, c->bytes);
    return true;
}
static bool copy_late(void *dst, const void *src, size_t bytes, CUstream s, long late_ms) {
    late_copy *const c = malloc(sizeof *c);
    if (c == NULL) {
        return false;
    }
    *c = (late_copy){.dst = dst, .src = src, .bytes = bytes, .late_ms = late_ms};
    if (!emu_stream_external(s, &(emu_external){late_begin, late_poll, free, c})) {
        free(c);
        return false;
    }
    return true;
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream s) {
    const long late_ms = setting("LATEEN_EMU_LATE_DOWNLOADS_MS", 0);
    if (late_ms > 0 && s != NULL &&
        copy_late(dst, (const void *)(uintptr_t)src, bytes, s, late_ms)) {
        return 0;
    }
    return copy(dst, (const void *)(uintptr_t)src, bytes, s);
}
EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s) {
    return copy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, s);
}
EXPORT CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s) {
    return copy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes, s);
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char byte, size_t bytes, CUstream s) {
    return emu_do(s,
                  &(node){.kind = NODE_FILL,
                          .dst = (void *)(uintptr_t)dst,
                          .word = 0x01010101u * byte,
                          .bytes = bytes},
                  NULL);
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int word, size_t n, CUstream s) {
    return emu_do(
        s, &(node){.kind = NODE_FILL, .dst = (void *)(uintptr_t)dst, .word = word, .bytes = 4 * n},
        NULL);
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
    /* The linker writes this part last. */
    bytes = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
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
        (void)fprintf(stderr, "emulated GPU: %s\n", whole ? dlerror() : "cannot write the module");
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
    f->context = emu_current;
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
    (void)f; /* 64 registers per thread, so that 1024 threads fit. */
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
    if (f->context != emu_current) {
        return INVALID_HANDLE;
    }
    if (extra != NULL || c->gridDimX == 0 || c->gridDimX > 0x7fffffffu || c->gridDimY - 1 > 65534 ||
        c->gridDimZ - 1 > 65534 || threads == 0 || threads > (unsigned)f->entry->threads_max ||
        (int)c->sharedMemBytes > f->dynamic_most) {
        return INVALID_VALUE;
    }
    return emu_do(c->hStream,
                  &(node){.kind = NODE_LAUNCH,
                          .function = f,
                          .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
                          .block = {c->blockDimX, c->blockDimY, c->blockDimZ},
                          .cluster = cluster,
                          .bytes = c->sharedMemBytes},
                  args);
}
/* Check what the driver's manual demands of each argument, and refuse the maps that the driver
 * would refuse. */
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int type, uint32_t rank, void *p,
                                       const uint64_t *size, const uint64_t *stride,
                                       const uint32_t *box, const uint32_t *steps, int interleave,
                                       int swizzle, int l2, int fill) {
    const int bytes = type == LT_CU_TMAP_UINT8                               ? 1
                      : type == LT_CU_TMAP_FP16 || type == LT_CU_TMAP_BF16   ? 2
                      : type == LT_CU_TMAP_UINT32 || type == LT_CU_TMAP_FP32 ? 4
                                                                             : 0;
    static const uint32_t widest[] = {256 * 4, 32, 64, 128}; /* Widest box for each swizzle. */
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
