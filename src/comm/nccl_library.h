/* nccl_library.h: the part of NCCL's C interface that Lateen calls, opened with dlopen. The
 * interface is stable since 2.18, so the few types and numbers needed are declared here. */
#ifndef LT_COMM_NCCL_LIBRARY_H
#define LT_COMM_NCCL_LIBRARY_H

#include <stddef.h>

#include "lateen/tensor.h"

#define LT_NCCL_MAGIC 0xcafebeefu
/* The first version with non-blocking communicators in the form used here. */
#define LT_NCCL_OLDEST 21800

typedef struct ncclComm *lt_nccl_comm;
typedef struct {
    char bytes[128];
} lt_nccl_id;

enum {
    LT_NCCL_SUCCESS = 0,
    LT_NCCL_IN_PROGRESS = 7,
    LT_NCCL_INT8 = 0,
    LT_NCCL_UINT8 = 1,
    LT_NCCL_INT32 = 2,
    LT_NCCL_INT64 = 4,
    LT_NCCL_FLOAT16 = 6,
    LT_NCCL_FLOAT32 = 7,
    LT_NCCL_FLOAT64 = 8,
    LT_NCCL_BFLOAT16 = 9,
    LT_NCCL_SUM = 0,
    LT_NCCL_MAX = 2,
    LT_NCCL_MIN = 3,

};

/* As of 2.27. A library reads `size` bytes of it, and takes its defaults for fields newer than
 * `version`, so this struct serves every later version; older ones get the size and version of
 * 2.18. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas;
} lt_nccl_config;

#define LT_NCCL_MAP(X)                                                                             \
    X(GetVersion, (int *version))                                                                  \
    X(GetUniqueId, (lt_nccl_id * id))                                                              \
    X(CommInitRankConfig,                                                                          \
      (lt_nccl_comm * comm, int n, lt_nccl_id id, int rank, lt_nccl_config *config))               \
    X(CommFinalize, (lt_nccl_comm comm))                                                           \
    X(CommDestroy, (lt_nccl_comm comm))                                                            \
    X(CommAbort, (lt_nccl_comm comm))                                                              \
    X(CommGetAsyncError, (lt_nccl_comm comm, int *state))                                          \
    X(GroupStart, (void))                                                                          \
    X(GroupEnd, (void))                                                                            \
    X(AllReduce, (const void *src, void *dst, size_t count, int type, int op, lt_nccl_comm comm,   \
                  void *stream))                                                                   \
    X(AllGather,                                                                                   \
      (const void *src, void *dst, size_t count, int type, lt_nccl_comm comm, void *stream))       \
    X(ReduceScatter, (const void *src, void *dst, size_t count, int type, int op,                  \
                      lt_nccl_comm comm, void *stream))                                            \
    X(Broadcast, (const void *src, void *dst, size_t count, int type, int root, lt_nccl_comm comm, \
                  void *stream))                                                                   \
    X(Send, (const void *src, size_t count, int type, int peer, lt_nccl_comm comm, void *stream))  \
    X(Recv, (void *dst, size_t count, int type, int peer, lt_nccl_comm comm, void *stream))

typedef struct {
    int version; /* 22703 is 2.27.3. */
    const char *(*GetErrorString)(int result);
    const char *(*GetLastError)(lt_nccl_comm comm);
#define LT_NCCL_FIELD(name, params) int(*name) params;
    LT_NCCL_MAP(LT_NCCL_FIELD)
#undef LT_NCCL_FIELD
} lt_nccl_library;

/* Open libnccl.so.2, or the library that LATEEN_NCCL names, once per process. UNSUPPORTED: it is
 * missing or too old. */
LT_MUST_USE lt_err lt_nccl_load(const lt_nccl_library **out);
/* REMOTE, with NCCL's own message after `what`, unless the result is a success or IN_PROGRESS. */
LT_MUST_USE lt_err lt_nccl_check(const lt_nccl_library *n, int result, const char *what);
lt_nccl_config lt_nccl_config_make(const lt_nccl_library *n, const char *name);
/* NCCL's number for a type; -1: it has none. */
int lt_nccl_type(lt_dtype dtype);

#endif
