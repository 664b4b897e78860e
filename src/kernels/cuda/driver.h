/* driver.h: the part of the CUDA driver's C interface that Lateen calls, opened with dlopen.
 *
 * The driver's ABI is stable, so the few types and numbers needed are declared here, and the build
 * needs no header of the toolkit: every build of Lateen can use a GPU. If cuda.h is found at build
 * time, driver_abi_check.c proves that these declarations agree with it (LT_HAVE_CUDA).
 *
 *     const lt_cu_api *cu;
 *     LT_TRY(lt_cu_load(&cu));                                     libcuda.so.1, once a process
 *     LT_TRY(lt_cu_check(cu->cuInit(0), "cuInit")); driver's code -> lt_err with a message
 */
#ifndef LT_KERNELS_CUDA_DRIVER_H
#define LT_KERNELS_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#ifndef __cuda_cuda_h__ /* Defined by the toolkit's cuda.h. */
typedef int CUresult;   /* An enum of the same width. */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUtensorMap_st {
    _Alignas(128) uint64_t opaque[16];
} CUtensorMap;
typedef struct CUlaunchAttribute_st {
    unsigned int id;
    char pad[4];
    union {
        char pad[64];
        struct {
            unsigned int x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed;
        uint64_t align;
    } value;
} CUlaunchAttribute;
typedef struct CUipcMemHandle_st {
    char reserved[64];
} CUipcMemHandle;
typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;
#endif

/* Numbers of the driver's enums. */
enum {
    LT_CU_SUCCESS = 0,
    LT_CU_ERROR_OUT_OF_MEMORY = 2,
    LT_CU_ERROR_NO_DEVICE = 100,
    LT_CU_ERROR_NO_BINARY_FOR_GPU = 209,
    LT_CU_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    LT_CU_ERROR_NOT_READY = 600,
    LT_CU_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,

    LT_CU_ATTR_MAX_SHARED_PER_BLOCK = 8,
    LT_CU_ATTR_CLOCK_KHZ = 13,
    LT_CU_ATTR_N_SMS = 16,
    LT_CU_ATTR_ECC = 32,
    LT_CU_ATTR_MEM_CLOCK_KHZ = 36,
    LT_CU_ATTR_MEM_BUS_BITS = 37,
    LT_CU_ATTR_L2_BYTES = 38,
    LT_CU_ATTR_CC_MAJOR = 75,
    LT_CU_ATTR_CC_MINOR = 76,
    LT_CU_ATTR_MAX_SHARED_OPTIN = 97,

    LT_CU_FUNC_SHARED_BYTES = 1,
    LT_CU_FUNC_LOCAL_BYTES = 3,
    LT_CU_FUNC_N_REGS = 4,
    LT_CU_FUNC_MAX_DYNAMIC_SHARED = 8,
    LT_CU_FUNC_CARVEOUT = 9, /* Percent of the SM's memory that shall be shared. */
    LT_CU_FUNC_NON_PORTABLE_CLUSTER = 14,

    LT_CU_LAUNCH_CLUSTER = 4,
    LT_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,

    LT_CU_STREAM_NON_BLOCKING = 1,
    LT_CU_EVENT_DEFAULT = 0,
    LT_CU_EVENT_DISABLE_TIMING = 2,
    LT_CU_CAPTURE_THREAD_LOCAL = 1,
    LT_CU_STREAM_WAIT_VALUE_GEQ = 0, /* (int32_t)(word - value) >= 0 */
    LT_CU_IPC_LAZY_PEER_ACCESS = 1,

    LT_CU_TMAP_UINT8 = 0,
    LT_CU_TMAP_UINT32 = 2,
    LT_CU_TMAP_FP16 = 6,
    LT_CU_TMAP_FP32 = 7,
    LT_CU_TMAP_BF16 = 9,
    LT_CU_TMAP_SWIZZLE_NONE = 0,
    LT_CU_TMAP_SWIZZLE_32B = 1,
    LT_CU_TMAP_SWIZZLE_64B = 2,
    LT_CU_TMAP_SWIZZLE_128B = 3,
    LT_CU_TMAP_L2_NONE = 0,
    LT_CU_TMAP_L2_128B = 2,
    LT_CU_TMAP_L2_256B = 3,
};

/* X(field, exported symbol, parameters): the symbol carries the ABI version. */
#define LT_CU_MAP(X)                                                                               \
    X(cuInit, "cuInit", (unsigned int))                                                            \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                           \
    X(cuGetErrorName, "cuGetErrorName", (CUresult, const char **))                                 \
    X(cuGetErrorString, "cuGetErrorString", (CUresult, const char **))                             \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                               \
    X(cuDeviceGet, "cuDeviceGet", (CUdevice *, int))                                               \
    X(cuDeviceGetName, "cuDeviceGetName", (char *, int, CUdevice))                                 \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, CUdevice))                        \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, CUdevice))                               \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *, int, CUdevice))                         \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *, CUdevice, CUdevice))                 \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))               \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                       \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                             \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext *))                                           \
    X(cuCtxSynchronize, "cuCtxSynchronize", (void))                                                \
    X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *, int *))                  \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", (CUcontext, unsigned int))                   \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                       \
    X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                        \
    X(cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                                    \
    X(cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned int))                   \
    X(cuMemHostUnregister, "cuMemHostUnregister", (void *))                                        \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream))    \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream))          \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream))     \
    X(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                \
    X(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))          \
    X(cuMemsetD32Async, "cuMemsetD32Async", (CUdeviceptr, unsigned int, size_t, CUstream))         \
    X(cuStreamCreate, "cuStreamCreate", (CUstream *, unsigned int))                                \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (CUstream *, unsigned int, int))   \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream))                                           \
    X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                      \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream, CUevent, unsigned int))                   \
    X(cuStreamWaitValue32, "cuStreamWaitValue32_v2",                                               \
      (CUstream, CUdeviceptr, uint32_t, unsigned int))                                             \
    X(cuStreamWriteValue32, "cuStreamWriteValue32_v2",                                             \
      (CUstream, CUdeviceptr, uint32_t, unsigned int))                                             \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle *, CUdeviceptr))                     \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (CUdeviceptr *, CUipcMemHandle, unsigned int))  \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr))                                   \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream, int))                            \
    X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph *))                             \
    X(cuEventCreate, "cuEventCreate", (CUevent *, unsigned int))                                   \
    X(cuEventDestroy, "cuEventDestroy_v2", (CUevent))                                              \
    X(cuEventRecord, "cuEventRecord", (CUevent, CUstream))                                         \
    X(cuEventQuery, "cuEventQuery", (CUevent))                                                     \
    X(cuEventSynchronize, "cuEventSynchronize", (CUevent))                                         \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *, CUevent, CUevent))                       \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags",                                           \
      (CUgraphExec *, CUgraph, unsigned long long))                                                \
    X(cuGraphGetNodes, "cuGraphGetNodes", (CUgraph, CUgraphNode *, size_t *))                      \
    X(cuGraphDestroy, "cuGraphDestroy", (CUgraph))                                                 \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec))                                     \
    X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                     \
    X(cuModuleLoadData, "cuModuleLoadData", (CUmodule *, const void *))                            \
    X(cuModuleUnload, "cuModuleUnload", (CUmodule))                                                \
    X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))          \
    X(cuModuleGetGlobal, "cuModuleGetGlobal_v2",                                                   \
      (CUdeviceptr *, size_t *, CUmodule, const char *))                                           \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *, int, CUfunction))                          \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction, int, int))                            \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor",  \
      (int *, CUfunction, int, size_t))                                                            \
    X(cuLaunchKernelEx, "cuLaunchKernelEx",                                                        \
      (const CUlaunchConfig *, CUfunction, void **, void **))                                      \
    X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                            \
      (CUtensorMap *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, \
       const uint32_t *, int, int, int, int))

typedef struct {
#define LT_CU_FIELD(field, symbol, params) CUresult(*field) params;
    LT_CU_MAP(LT_CU_FIELD)
#undef LT_CU_FIELD
} lt_cu_api;

/* Open libcuda.so.1 and find every symbol above; later calls return the same table. UNSUPPORTED
 * with a clear message when there is no driver, or one older than CUDA 12.0 (driver 525). Safe from
 * several threads. */
LT_MUST_USE lt_err lt_cu_load(const lt_cu_api **out);

/* DEVICE (or OOM) with the driver's name and text of the failure after the printf-style context;
 * LT_OK for success. */
LT_MUST_USE lt_err lt_cu_check(CUresult r, const char *fmt, ...) LT_PRINTF(2, 3);

#endif
