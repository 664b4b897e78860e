/* arena.c: anonymous mappings, which the kernel zeroes at first touch, with huge pages if it grants
 * them. */
#include "base/arena.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

void *lt_arena_take(lt_arena *a, size_t bytes, size_t align) {
    size_t start;
    LT_ASSERT(align > 0 && (align & (align - 1)) == 0);
    start = (a->used_bytes + align - 1) & ~(align - 1);
    LT_ASSERT(bytes <= SIZE_MAX - start);
    a->used_bytes = start + bytes;
    if (a->base == NULL) {
        return NULL;
    }
    LT_ASSERT(a->used_bytes <= a->size_bytes);
    return a->base + start;
}

lt_err lt_arena_open(lt_arena *a, const char *name) {
    const size_t bytes = a->used_bytes > 0 ? a->used_bytes : 1;
    void *base;

    LT_ASSERT(a->base == NULL);
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    if (base == MAP_FAILED) {
        LT_FAIL(LT_ERR_OOM, "%s: no room for %.1f MiB: %s", name, (double)bytes / 1048576.0,
                strerror(errno));
    }
    if (bytes >= HUGE_PAGE_BYTES) {
        (void)madvise(base, bytes, MADV_HUGEPAGE); /* A hint; small pages work too. */
    }
    a->base = base;
    a->size_bytes = bytes;
    a->used_bytes = 0;
    a->name = name;
    return LT_OK;
}

void lt_arena_rewind(lt_arena *a) {
    a->used_bytes = 0;
}

void lt_arena_close(lt_arena *a) {
    if (a->base != NULL) {
        munmap(a->base, a->size_bytes);
    }
    *a = (lt_arena){0};
}
