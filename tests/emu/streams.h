/* streams.h: inside the emulated driver: nodes, streams, events and graphs (streams.c), for
 * driver.c; and what the emulated NCCL puts into a stream. */
#ifndef LT_EMU_STREAMS_H
#define LT_EMU_STREAMS_H

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

#define EXPORT   __attribute__((visibility("default")))
#define MAX_ARGS 64

struct CUfunc_st {
    CUcontext context;
    char name[128];
    const emu_entry *entry;
    int dynamic_most;
    CUfunction next;
};

typedef enum { NODE_LAUNCH, NODE_COPY, NODE_FILL } node_kind;
typedef struct {
    node_kind kind;
    CUfunction function;
    emu_dim3 grid, block, cluster;
    size_t bytes;          /* Dynamic shared, or of the copy or the fill. */
    unsigned char *values; /* Arguments one after the other, 128-byte steps. */
    void *dst;
    const void *src;
    uint32_t word;
} node;

extern __thread CUcontext emu_current __attribute__((tls_model("initial-exec")));

/* A piece of work: run now; later, where the stream has work before it that is not done; or kept,
 * where the stream is captured. */
CUresult emu_do(CUstream s, const node *n, void **args);
/* Until all streams of a context are empty. */
void emu_settle(CUcontext context);
void emu_guards_check(const char *after); /* driver.c */
/* driver.c: find the allocation that begins at p. *base: where the guard before it begins; *bytes:
 * its size without guards. From EMU_SHARED_LEAST bytes on it shares its pages with no other. */
#define EMU_PAGE         ((size_t)4096)
#define EMU_SHARED_LEAST ((size_t)1 << 20)
bool emu_memory_find(CUdeviceptr p, unsigned char **base, size_t *bytes, size_t *guard);

/* Work of somebody else in a stream: begins when all before it is done, and is over when `poll`
 * says so. Both are called by any thread, never at the same time, without locks; free_ctx at the
 * end. What stands behind it waits. */
typedef struct {
    void (*begin)(void *ctx);
    bool (*poll)(void *ctx);
    void (*free_ctx)(void *ctx);
    void *ctx;
} emu_external;
/* False: the stream is being captured. */
EXPORT bool emu_stream_external(CUstream s, const emu_external *x);
EXPORT int emu_current_device(void); /* -1: none. */

#endif
