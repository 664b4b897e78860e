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
    size_t bytes;          /* Dynamic shared memory, or size of the copy or of the fill. */
    unsigned char *values; /* Arguments, one every 128 bytes. */
    void *dst;
    const void *src;
    uint32_t word;
} node;

extern __thread CUcontext emu_current __attribute__((tls_model("initial-exec")));

/* Do a piece of work: now; later, if the stream has earlier work that is not done; or record it,
 * if the stream is captured. */
CUresult emu_do(CUstream s, const node *n, void **args);
/* Wait until all streams of a context are empty. */
void emu_settle(CUcontext context);
void emu_guards_check(const char *after); /* In driver.c. */
/* In driver.c: find the allocation that begins at p. *base: where the guard before it begins;
 * *bytes: its size without guards. An allocation of at least EMU_SHARED_LEAST bytes shares its
 * pages with no other. */
#define EMU_PAGE         ((size_t)4096)
#define EMU_SHARED_LEAST ((size_t)1 << 20)
bool emu_memory_find(CUdeviceptr p, unsigned char **base, size_t *bytes, size_t *guard);

/* External work in a stream: it begins when all earlier work is done, and is over when `poll`
 * says so. Any thread may call both, never two at the same time, without locks; free_ctx is
 * called at the end. Later work waits for it. */
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
