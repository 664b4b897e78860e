/* runtime.c: device, memory, streams, events, graphs, tensor maps; kernels and launches are in
 * kernel.c. See runtime.h. */
#include "kernels/cuda/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "kernels/cuda/runtime_private.h"
#include "kernels/host.h"

lt_err lt_cuda_count(int *n) {
    const lt_cu_api *cu;
    LT_TRY(lt_cu_load(&cu));
    return lt_cu_check(cu->cuDeviceGetCount(n), "count GPUs");
}

static lt_err info_read(const lt_cu_api *cu, lt_cuda_info *info, CUdevice dev) {
    int major = 0, minor = 0, l2 = 0, shared = 0, khz = 0, mem_khz = 0, ecc = 0;
    const struct {
        int attr, *to;
    } reads[] = {{LT_CU_ATTR_CC_MAJOR, &major},
                 {LT_CU_ATTR_CC_MINOR, &minor},
                 {LT_CU_ATTR_N_SMS, &info->n_sms},
                 {LT_CU_ATTR_L2_BYTES, &l2},
                 {LT_CU_ATTR_MAX_SHARED_OPTIN, &shared},
                 {LT_CU_ATTR_CLOCK_KHZ, &khz},
                 {LT_CU_ATTR_MEM_CLOCK_KHZ, &mem_khz},
                 {LT_CU_ATTR_MEM_BUS_BITS, &info->memory_bus_bits},
                 {LT_CU_ATTR_ECC, &ecc}};
    LT_TRY(lt_cu_check(cu->cuDeviceGetName(info->name, sizeof info->name, dev), "GPU %d: name",
                       info->index));
    LT_TRY(
        lt_cu_check(cu->cuDeviceTotalMem(&info->memory_bytes, dev), "GPU %d: memory", info->index));
    LT_TRY(lt_cu_check(cu->cuDeviceGetPCIBusId(info->pci, sizeof info->pci, dev), "GPU %d: PCI id",
                       info->index));
    LT_TRY(lt_cu_check(cu->cuDriverGetVersion(&info->driver_version), "driver version"));
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        LT_TRY(lt_cu_check(cu->cuDeviceGetAttribute(reads[i].to, reads[i].attr, dev),
                           "GPU %d: attribute %d", info->index, reads[i].attr));
    }
    info->cc = 10 * major + minor;
    info->l2_bytes = (size_t)l2;
    info->shared_optin_bytes = (size_t)shared;
    info->clock_mhz = khz / 1000;
    info->memory_clock_mhz = mem_khz / 1000;
    info->ecc = ecc != 0;
    /* The "a" targets unlock wgmma and setmaxnreg; their code runs on exactly that capability. */
    snprintf(info->arch, sizeof info->arch, "sm_%d%s", info->cc, info->cc >= 90 ? "a" : "");
    if (info->cc < 80) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "GPU %d (%s) has compute capability %d.%d; Lateen's kernels need 8.0 or newer",
                info->index, info->name, major, minor);
    }
    return LT_OK;
}

lt_err lt_cuda_describe(lt_cuda_info *out, int device) {
    const lt_cu_api *cu;
    CUdevice dev;
    *out = (lt_cuda_info){.index = device};
    LT_TRY(lt_cu_load(&cu));
    LT_TRY(lt_cu_check(cu->cuDeviceGet(&dev, device), "GPU %d", device));
    return info_read(cu, out, dev);
}

lt_err lt_cuda_open(lt_cuda **out, int device) {
    lt_err err = LT_OK;
    const char *sync = getenv("LATEEN_CUDA_SYNC");
    lt_cuda *c = NULL;
    int n = 0;

    LT_ASSERT(out != NULL);
    LT_TRY(lt_cuda_count(&n));
    if (device < 0 || device >= n) {
        LT_FAIL(LT_ERR_NOT_FOUND, "GPU %d of %d (CUDA_VISIBLE_DEVICES narrows the list)", device,
                n);
    }
    c = calloc(1, sizeof *c);
    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "GPU %d", device);
    }
    pthread_mutex_init(&c->lock, NULL);
    c->sync_each = sync != NULL && sync[0] == '1';
    c->info.index = device;
    LT_TRY_DONE(lt_cu_load(&c->cu));
    LT_TRY_DONE(lt_cu_check(c->cu->cuDeviceGet(&c->device, device), "GPU %d", device));
    LT_TRY_DONE(info_read(c->cu, &c->info, c->device));
    LT_TRY_DONE(lt_cu_check(c->cu->cuDevicePrimaryCtxRetain(&c->context, c->device),
                            "GPU %d: context", device));
    LT_TRY_DONE(lt_cuda_make_current(c));
    *out = c;
    c = NULL;
done:
    lt_cuda_close(c);
    return err;
}

static void side_close(lt_cuda *c, lt_cuda_side *b) {
    for (int i = 0; i < LT_CUDA_SIDE_STREAMS; i++) {
        if (b->streams[i] != NULL) {
            (void)c->cu->cuStreamDestroy(b->streams[i]);
        }
    }
    free(b);
}

void lt_cuda_close(lt_cuda *c) {
    if (c == NULL) {
        return;
    }
    if (c->context != NULL && lt_cuda_make_current(c) == LT_OK) {
        (void)c->cu->cuCtxSynchronize();
        lt_cuda_kernels_unload(c);
        while (c->sides != NULL) {
            lt_cuda_side *b = c->sides;
            c->sides = b->next;
            side_close(c, b);
        }
        (void)c->cu->cuDevicePrimaryCtxRelease(c->device);
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
}

const lt_cuda_info *lt_cuda_get_info(const lt_cuda *c) {
    return &c->info;
}

void lt_cuda_share(lt_cuda *c) {
    c->shared = true;
}

bool lt_cuda_is_shared(const lt_cuda *c) {
    return c->shared;
}

const lt_cu_api *lt_cuda_api(const lt_cuda *c) {
    return c->cu;
}

lt_err lt_cuda_make_current(lt_cuda *c) {
    CUcontext now = NULL;
    if (c->cu->cuCtxGetCurrent(&now) == LT_CU_SUCCESS && now == c->context) {
        return LT_OK;
    }
    return lt_cu_check(c->cu->cuCtxSetCurrent(c->context), "GPU %d: make current", c->info.index);
}

/* ---- Memory ---- */

static CUdeviceptr address(const void *p) {
    return (CUdeviceptr)(uintptr_t)p;
}

lt_err lt_cuda_alloc(lt_cuda *c, void **out, size_t bytes, const char *what) {
    CUdeviceptr p = 0;
    size_t left = 0;
    LT_TRY(lt_cuda_make_current(c));
    LT_TRY(lt_cuda_memory_left(c, &left));
    LT_TRY(lt_cu_check(c->cu->cuMemAlloc(&p, bytes > 0 ? bytes : 1),
                       "GPU %d: %s: %.1f MiB, %.1f MiB left", c->info.index, what,
                       (double)bytes / 1048576.0, (double)left / 1048576.0));
    *out = (void *)(uintptr_t)p;
    return LT_OK;
}

void lt_cuda_free(lt_cuda *c, void *p) {
    if (p != NULL && lt_cuda_make_current(c) == LT_OK) {
        (void)c->cu->cuMemFree(address(p));
    }
}

#define PORTABLE 1 /* CU_MEMHOSTREGISTER_PORTABLE. */

/* Our own memory in huge pages, which is then registered: memory that the driver allocates, in
 * small pages, takes three times as long (docs/speed/start-up.md). Forked children (preload.h) do
 * not inherit it: a shared page would be copied when written to, and the device would go on
 * reading the old one. */
lt_err lt_cuda_alloc_pinned(lt_cuda *c, void **out, size_t bytes, const char *what) {
    lt_err err;
    void *p = NULL;
    LT_TRY(lt_cuda_make_current(c));
    LT_TRY(lt_host_map(&p, bytes, what));
    (void)madvise(p, bytes, MADV_DONTFORK);
    /* By this thread, not by the driver under its lock. */
    (void)madvise(p, bytes, MADV_POPULATE_WRITE);
    err = lt_cu_check(c->cu->cuMemHostRegister(p, bytes > 0 ? bytes : 1, PORTABLE),
                      "pinned memory: %s: %.1f MiB", what, (double)bytes / 1048576.0);
    if (err != LT_OK) {
        lt_host_unmap(p, bytes);
        return err;
    }
    *out = p;
    return LT_OK;
}

void lt_cuda_free_pinned(lt_cuda *c, void *p, size_t bytes) {
    if (p != NULL && lt_cuda_make_current(c) == LT_OK) {
        (void)c->cu->cuMemHostUnregister(p);
        lt_host_unmap(p, bytes);
    }
}

lt_err lt_cuda_upload(lt_cuda *c, CUstream s, void *dst, const void *src, size_t bytes) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuMemcpyHtoDAsync(address(dst), src, bytes, s), "upload %zu bytes",
                       bytes);
}

lt_err lt_cuda_download(lt_cuda *c, CUstream s, void *dst, const void *src, size_t bytes) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuMemcpyDtoHAsync(dst, address(src), bytes, s), "download %zu bytes",
                       bytes);
}

lt_err lt_cuda_copy(lt_cuda *c, CUstream s, void *dst, const void *src, size_t bytes) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuMemcpyAsync(address(dst), address(src), bytes, s), "copy %zu bytes",
                       bytes);
}

lt_err lt_cuda_fill(lt_cuda *c, CUstream s, void *dst, unsigned char byte, size_t bytes) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuMemsetD8Async(address(dst), byte, bytes, s), "fill %zu bytes",
                       bytes);
}

lt_err lt_cuda_memory_left(lt_cuda *c, size_t *free_bytes) {
    size_t total;
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuMemGetInfo(free_bytes, &total), "GPU %d: memory left",
                       c->info.index);
}

lt_err lt_cuda_arena_open(lt_cuda *c, lt_arena *a, const char *name) {
    const size_t bytes = a->used_bytes > 0 ? a->used_bytes : 1;
    void *base = NULL;
    LT_ASSERT(a->base == NULL);
    LT_TRY(lt_cuda_alloc(c, &base, bytes, name));
    a->base = base;
    a->size_bytes = bytes;
    a->used_bytes = 0;
    a->name = name;
    LT_TRY(lt_cuda_fill(c, NULL, base, 0, bytes));
    return lt_cuda_sync(c, NULL);
}

void lt_cuda_arena_close(lt_cuda *c, lt_arena *a) {
    lt_cuda_free(c, a->base);
    *a = (lt_arena){0};
}

/* ---- Streams, events, graphs ---- */

lt_err lt_cuda_stream_open(lt_cuda *c, CUstream *out, bool first) {
    int least = 0, greatest = 0;
    LT_TRY(lt_cuda_make_current(c));
    LT_TRY(lt_cu_check(c->cu->cuCtxGetStreamPriorityRange(&least, &greatest),
                       "GPU %d: priorities of streams", c->info.index));
    return lt_cu_check(
        c->cu->cuStreamCreateWithPriority(out, LT_CU_STREAM_NON_BLOCKING, first ? greatest : least),
        "GPU %d: stream", c->info.index);
}

void lt_cuda_stream_close(lt_cuda *c, CUstream s) {
    if (s == NULL || lt_cuda_make_current(c) != LT_OK) {
        return;
    }
    pthread_mutex_lock(&c->lock);
    for (lt_cuda_side **b = &c->sides; *b != NULL; b = &(*b)->next) {
        if ((*b)->of == s) {
            lt_cuda_side *gone = *b;
            *b = gone->next;
            side_close(c, gone);
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
    (void)c->cu->cuStreamDestroy(s);
}

static lt_err side_open(lt_cuda *c, lt_cuda_side **out, CUstream s) {
    int least = 0, greatest = 0;
    lt_cuda_side *b = calloc(1, sizeof *b);
    if (b == NULL) {
        LT_FAIL(LT_ERR_OOM, "GPU %d: side streams", c->info.index);
    }
    b->of = s;
    CUresult r = c->cu->cuCtxGetStreamPriorityRange(&least, &greatest);
    for (int i = 0; r == LT_CU_SUCCESS && i < LT_CUDA_SIDE_STREAMS; i++) {
        r = c->cu->cuStreamCreateWithPriority(&b->streams[i], LT_CU_STREAM_NON_BLOCKING, greatest);
    }
    if (r != LT_CU_SUCCESS) {
        side_close(c, b);
        return lt_cu_check(r, "GPU %d: side streams", c->info.index);
    }
    *out = b;
    return LT_OK;
}

lt_err lt_cuda_side_stream(lt_cuda *c, CUstream *out, CUstream s, int i) {
    lt_err err = LT_OK;
    LT_ASSERT(i >= 0 && i < LT_CUDA_SIDE_STREAMS);
    LT_TRY(lt_cuda_make_current(c));
    pthread_mutex_lock(&c->lock);
    lt_cuda_side *b = c->sides;
    while (b != NULL && b->of != s) {
        b = b->next;
    }
    if (b == NULL) {
        LT_TRY_DONE(side_open(c, &b, s));
        b->next = c->sides;
        c->sides = b;
    }
    *out = b->streams[i];
done:
    pthread_mutex_unlock(&c->lock);
    return err;
}

lt_err lt_cuda_stream_follow(lt_cuda *c, CUstream later, CUstream earlier) {
    CUevent mark = NULL;
    lt_err err = lt_cuda_event_open(c, &mark, false);
    if (err == LT_OK) {
        err = lt_cuda_event_record(c, mark, earlier);
    }
    if (err == LT_OK) {
        err = lt_cuda_event_wait(c, later, mark);
    }
    lt_cuda_event_close(c, mark); /* What waits for the event goes on waiting. */
    return err;
}

lt_err lt_cuda_sync(lt_cuda *c, CUstream s) {
    const lt_cuda_kernel *last = c->last_launch;
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuStreamSynchronize(s),
                       "GPU %d: waiting for its work (last launch: %s %s [%s])", c->info.index,
                       last ? last->file : "none", last ? last->entry : "",
                       last ? last->defines : "");
}

lt_err lt_cuda_event_open(lt_cuda *c, CUevent *out, bool timing) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(
        c->cu->cuEventCreate(out, timing ? LT_CU_EVENT_DEFAULT : LT_CU_EVENT_DISABLE_TIMING),
        "GPU %d: event", c->info.index);
}

void lt_cuda_event_close(lt_cuda *c, CUevent e) {
    if (e != NULL && lt_cuda_make_current(c) == LT_OK) {
        (void)c->cu->cuEventDestroy(e);
    }
}

lt_err lt_cuda_event_record(lt_cuda *c, CUevent e, CUstream s) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuEventRecord(e, s), "GPU %d: record event", c->info.index);
}

lt_err lt_cuda_event_wait(lt_cuda *c, CUstream s, CUevent e) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuStreamWaitEvent(s, e, 0), "GPU %d: wait for event", c->info.index);
}

lt_err lt_cuda_event_reach(lt_cuda *c, CUevent e) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuEventSynchronize(e),
                       "GPU %d: waiting for an event (last launch: %s)", c->info.index,
                       c->last_launch ? c->last_launch->entry : "none");
}

lt_err lt_cuda_event_passed(lt_cuda *c, CUevent e, bool *passed) {
    CUresult r;
    LT_TRY(lt_cuda_make_current(c));
    r = c->cu->cuEventQuery(e);
    *passed = r == LT_CU_SUCCESS;
    return r == LT_CU_ERROR_NOT_READY ? LT_OK : lt_cu_check(r, "GPU %d: event", c->info.index);
}

lt_err lt_cuda_event_elapsed(lt_cuda *c, double *ms, CUevent from, CUevent to) {
    float value = 0.0f;
    LT_TRY(lt_cuda_event_reach(c, to));
    LT_TRY(lt_cu_check(c->cu->cuEventElapsedTime(&value, from, to), "GPU %d: event time",
                       c->info.index));
    *ms = (double)value;
    return LT_OK;
}

lt_err lt_cuda_capture_begin(lt_cuda *c, CUstream s) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuStreamBeginCapture(s, LT_CU_CAPTURE_THREAD_LOCAL),
                       "GPU %d: begin capture", c->info.index);
}

lt_err lt_cuda_capture_end(lt_cuda *c, CUstream s, CUgraphExec *out) {
    CUgraph g = NULL;
    size_t n_nodes = 0;
    lt_err err;
    *out = NULL;
    LT_TRY(lt_cuda_make_current(c));
    LT_TRY(lt_cu_check(c->cu->cuStreamEndCapture(s, &g), "GPU %d: end capture", c->info.index));
    err = lt_cu_check(c->cu->cuGraphGetNodes(g, NULL, &n_nodes), "GPU %d: size of graph",
                      c->info.index);
    if (err == LT_OK && n_nodes > 0) {
        err = lt_cu_check(c->cu->cuGraphInstantiate(out, g, 0), "GPU %d: instantiate graph",
                          c->info.index);
    }
    (void)c->cu->cuGraphDestroy(g);
    return err;
}

lt_err lt_cuda_graph_launch(lt_cuda *c, CUgraphExec g, CUstream s) {
    if (g == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuGraphLaunch(g, s), "GPU %d: launch graph", c->info.index);
}

void lt_cuda_graph_close(lt_cuda *c, CUgraphExec g) {
    if (g != NULL && lt_cuda_make_current(c) == LT_OK) {
        (void)c->cu->cuGraphExecDestroy(g);
    }
}

lt_err lt_cuda_tensor_map(lt_cuda *c, CUtensorMap *out, void *ptr, const lt_tensor_map_spec *spec) {
    static const uint32_t ones[5] = {1, 1, 1, 1, 1};
    LT_ASSERT(spec->rank >= 1 && spec->rank <= 5);
    LT_ASSERT(((uintptr_t)ptr & 15) == 0);
    return lt_cu_check(
        c->cu->cuTensorMapEncodeTiled(out, spec->type, (uint32_t)spec->rank, ptr, spec->size,
                                      spec->stride_bytes + 1, spec->box, ones, 0, spec->swizzle,
                                      spec->l2_promotion, 0),
        "tensor map: rank %d, size %llu x %llu, row stride %llu bytes, box %u x %u, swizzle %d",
        spec->rank, (unsigned long long)spec->size[0], (unsigned long long)spec->size[1],
        (unsigned long long)spec->stride_bytes[1], spec->box[0], spec->box[1], spec->swizzle);
}
