/* peers.c: memory of the emulated driver that processes share, and streams that wait for words in
 * it.
 *
 * SHARING   cuIpcGetMemHandle moves the pages of an allocation into a file in memory without
 *           changing their addresses; the handle names the process and its file descriptor, which
 *           another process maps. As with the driver, a process cannot open its own handle.
 * WORDS     cuStreamWriteValue32 is a fill of 4 bytes. cuStreamWaitValue32 is external work
 *           (streams.h), which ends a random time after the word is there. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "streams.h"

#define LATE_US 400

typedef struct {
    pid_t process;
    int fd;
    size_t whole, guard;
} name;

/* Shared allocations, and mappings of those of other processes, by address. */
typedef struct known {
    struct known *next;
    unsigned char *base;
    size_t whole, guard;
    int fd;
} known;
static known *shared, *mapped;

static known *know(known **list, unsigned char *base, size_t whole, size_t guard, int fd) {
    known *const k = malloc(sizeof *k);
    if (k != NULL) {
        *k = (known){*list, base, whole, guard, fd};
        *list = k;
    }
    return k;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p) {
    unsigned char *base;
    size_t bytes, guard, whole;
    known *k = shared;
    name n;
    if (!emu_memory_find(p, &base, &bytes, &guard) || bytes < EMU_SHARED_LEAST) {
        return INVALID_VALUE;
    }
    whole = (bytes + 2 * guard + EMU_PAGE - 1) / EMU_PAGE * EMU_PAGE;
    while (k != NULL && k->base != base) {
        k = k->next;
    }
    const int fd = memfd_create("emulated GPU", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)whole) != 0) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    for (size_t at = 0; at < whole;) {
        const ssize_t wrote = pwrite(fd, base + at, whole - at, (off_t)at);
        if (wrote <= 0) {
            return LT_CU_ERROR_OUT_OF_MEMORY;
        }
        at += (size_t)wrote;
    }
    if (mmap(base, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    if (k == NULL) {
        (void)know(&shared, base, whole, guard, fd);
    } else { /* An earlier allocation at this address was freed. */
        (void)close(k->fd);
        *k = (known){k->next, base, whole, guard, fd};
    }
    n = (name){getpid(), fd, whole, guard};
    memset(out, 0, sizeof *out);
    memcpy(out, &n, sizeof n);
    return 0;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
    char path[64];
    name n;
    (void)flags;
    memcpy(&n, &handle, sizeof n);
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)n.process, n.fd);
    const int fd = n.process != getpid() ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) {
        return INVALID_VALUE;
    }
    unsigned char *const base = mmap(NULL, n.whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (base == MAP_FAILED) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUdeviceptr)(uintptr_t)(base + n.guard);
    return know(&mapped, base, n.whole, n.guard, -1) != NULL ? 0 : LT_CU_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p) {
    for (known **at = &mapped; *at != NULL; at = &(*at)->next) {
        known *const k = *at;
        if (k->base + k->guard == (unsigned char *)(uintptr_t)p) {
            *at = k->next;
            (void)munmap(k->base, k->whole);
            free(k);
            return 0;
        }
    }
    return INVALID_VALUE;
}

/* ---- Words ---- */

EXPORT CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr p, uint32_t value, unsigned flags) {
    (void)flags;
    return emu_do(
        s, &(node){.kind = NODE_FILL, .dst = (void *)(uintptr_t)p, .bytes = 4, .word = value},
        NULL);
}

typedef struct {
    _Atomic uint32_t *word;
    uint32_t value;
    bool there;
    struct timespec until;
} wait_for;

static void wait_begin(void *ctx) {
    (void)ctx;
}

static bool wait_poll(void *ctx) {
    wait_for *const w = ctx;
    struct timespec now;
    if (!w->there && (int32_t)(atomic_load(w->word) - w->value) < 0) {
        return false;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (!w->there) {
        w->there = true;
        w->until = now;
        w->until.tv_nsec += rand() % LATE_US * 1000;
    }
    return (now.tv_sec - w->until.tv_sec) * 1000000000 + now.tv_nsec - w->until.tv_nsec >= 0;
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream s, CUdeviceptr p, uint32_t value, unsigned flags) {
    wait_for *const w = malloc(sizeof *w);
    if (flags != LT_CU_STREAM_WAIT_VALUE_GEQ) {
        free(w);
        return NOT_SUPPORTED;
    }
    if (w == NULL) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    *w = (wait_for){.word = (_Atomic uint32_t *)(uintptr_t)p, .value = value};
    if (!emu_stream_external(s, &(emu_external){wait_begin, wait_poll, free, w})) {
        free(w);
        return CAPTURE_UNSUPPORTED;
    }
    return 0;
}
