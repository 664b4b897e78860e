/* peers.c: see peers.h. */
#include "kernels/cuda/peers.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"

/* The contents of an lt_memory_handle. */
typedef struct {
    char machine[40]; /* The boot id of Linux. */
    /* A random number per process, because different containers may use the same pid. */
    uint64_t process;
    uint64_t data;       /* The address in that process. */
    int device;          /* The driver's number of the GPU there. */
    CUipcMemHandle name; /* For other processes. */
} handle;
_Static_assert(sizeof(handle) <= sizeof(lt_memory_handle), "a handle fits");

static struct {
    char machine[40];
    uint64_t process;
} here;

static void find_here(void) {
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!read(fd, here.machine, sizeof here.machine - 1);
        (void)close(fd);
    }
    (void)!getrandom(&here.process, sizeof here.process, 0);
}

static void know_here(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, find_here);
}

lt_err lt_cuda_memory_share(lt_cuda *c, void *data, lt_memory_handle *out) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    handle h = {.data = (uint64_t)(uintptr_t)data, .device = info->index};
    know_here();
    memcpy(h.machine, here.machine, sizeof h.machine);
    h.process = here.process;
    LT_TRY(lt_cuda_make_current(c));
    LT_TRY(lt_cu_check(lt_cuda_api(c)->cuIpcGetMemHandle(&h.name, (CUdeviceptr)(uintptr_t)data),
                       "GPU %d: name its memory to other processes", info->index));
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &h, sizeof h);
    return LT_OK;
}

/* Another device of this process: its addresses are valid here once access is enabled. */
static lt_err reach_device(lt_cuda *c, const handle *h) {
    const lt_cu_api *cu = lt_cuda_api(c);
    CUcontext other = NULL;
    CUdevice device;
    CUresult r;
    LT_TRY(lt_cu_check(cu->cuDeviceGet(&device, h->device), "GPU %d", h->device));
    LT_TRY(lt_cu_check(cu->cuDevicePrimaryCtxRetain(&other, device), "GPU %d", h->device));
    r = cu->cuCtxEnablePeerAccess(other, 0);
    (void)cu->cuDevicePrimaryCtxRelease(device); /* Its owner holds another reference. */
    return r == LT_CU_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? LT_OK
               : lt_cu_check(r, "GPU %d: access to GPU %d", lt_cuda_get_info(c)->index, h->device);
}

lt_err lt_cuda_memory_reach(lt_cuda *c, const lt_memory_handle *memory, void **out) {
    const lt_cuda_info *info = lt_cuda_get_info(c);
    CUdeviceptr mapped = 0;
    handle h;
    know_here();
    memcpy(&h, memory->bytes, sizeof h);
    if (here.machine[0] == '\0' || memcmp(h.machine, here.machine, sizeof h.machine) != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "GPU %d: the memory of a GPU of another machine", info->index);
    }
    LT_TRY(lt_cuda_make_current(c));
    if (h.process == here.process) {
        *out = (void *)(uintptr_t)h.data;
        return h.device != info->index ? reach_device(c, &h) : LT_OK;
    }
    LT_TRY(
        lt_cu_check(lt_cuda_api(c)->cuIpcOpenMemHandle(&mapped, h.name, LT_CU_IPC_LAZY_PEER_ACCESS),
                    "GPU %d: map the memory of another process's GPU", info->index));
    *out = (void *)(uintptr_t)mapped;
    return LT_OK;
}

void lt_cuda_memory_leave(lt_cuda *c, const lt_memory_handle *memory, void *data) {
    handle h;
    memcpy(&h, memory->bytes, sizeof h);
    if (data != NULL && h.process != here.process && lt_cuda_make_current(c) == LT_OK) {
        (void)lt_cuda_api(c)->cuIpcCloseMemHandle((CUdeviceptr)(uintptr_t)data);
    }
}

lt_err lt_cuda_flag_set(lt_cuda *c, CUstream s, uint32_t *word, uint32_t value) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(
        lt_cuda_api(c)->cuStreamWriteValue32(s, (CUdeviceptr)(uintptr_t)word, value, 0),
        "GPU %d: set a flag", lt_cuda_get_info(c)->index);
}

lt_err lt_cuda_flag_wait(lt_cuda *c, CUstream s, uint32_t *word, uint32_t value) {
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(lt_cuda_api(c)->cuStreamWaitValue32(s, (CUdeviceptr)(uintptr_t)word, value,
                                                           LT_CU_STREAM_WAIT_VALUE_GEQ),
                       "GPU %d: wait for a flag", lt_cuda_get_info(c)->index);
}
