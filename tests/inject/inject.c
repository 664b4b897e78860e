/* inject.c: a library to be preloaded that makes calls of Lateen (but not of the libraries it
 * uses) fail on demand, and logs them.
 *
 *     INJECT_LOG=FILE one line for each call that changes files: "open PATH", "write PATH",
 *     "fsync
 *                          PATH", "rename A B", "unlink PATH", "mkdir PATH"
 *     INJECT_FILES=N       the Nth of these calls (from 1) fails: no space for open, write and
 *                          mkdir, an I/O error for fsync and rename
 *     INJECT_MEMORY=N      the Nth allocation fails
 *     INJECT_SYNC_MS=N every fsync takes this much longer, as on a slow disk INJECT_COUNT=FILE at
 *     the end: the number of calls of both kinds
 * Built and driven by tests/e2e/inject.py and train_async.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long n_files, n_memory;
static long fail_file, fail_memory, sync_ms;
static int log_fd = -1;
static char count_path[PATH_MAX];
static _Thread_local bool inside;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALLER     __builtin_return_address(0)

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("INJECT_LOG"), *file = getenv("INJECT_FILES"),
               *memory = getenv("INJECT_MEMORY"), *count = getenv("INJECT_COUNT"),
               *sync = getenv("INJECT_SYNC_MS");
    inside = true;
    if (log != NULL) {
        log_fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    }
    fail_file = file != NULL ? atol(file) : 0;
    fail_memory = memory != NULL ? atol(memory) : 0;
    sync_ms = sync != NULL ? atol(sync) : 0;
    snprintf(count_path, sizeof count_path, "%s", count != NULL ? count : "");
    inside = false;
}

__attribute__((destructor)) static void end(void) {
    inside = true;
    if (count_path[0] != '\0') {
        FILE *f = REAL(fopen)(count_path, "w");
        if (f != NULL) {
            fprintf(f, "%ld %ld\n", atomic_load(&n_files), atomic_load(&n_memory));
            REAL(fclose)(f);
        }
    }
}

/* Is this an address in Lateen: in the program, or in its library if there is one? */
static bool is_ours(const void *caller) {
    Dl_info info;
    return !inside && dladdr(caller, &info) != 0 && info.dli_fname != NULL &&
           (strstr(info.dli_fname, "lateen") != NULL || strstr(info.dli_fname, "mutant") != NULL) &&
           strstr(info.dli_fname, "inject") == NULL;
}

static const char *path_of(int fd, char *path) {
    char link[64];
    ssize_t n;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = '\0';
    return path;
}

/* Count and log a call about files; true: it must fail. */
static bool file_call(const char *what, const char *path, const char *second) {
    const long n = atomic_fetch_add(&n_files, 1) + 1;
    if (log_fd >= 0) {
        inside = true;
        dprintf(log_fd, "%s%s %s%s%s\n", n == fail_file ? "FAILS " : "", what, path,
                second[0] != '\0' ? "\t" : "", second);
        inside = false;
    }
    return n == fail_file;
}

static bool memory_fails(const void *caller) {
    return is_ours(caller) && atomic_fetch_add(&n_memory, 1) + 1 == fail_memory;
}

static int opened(const void *caller, const char *path, int flags, mode_t mode) {
    if (is_ours(caller) && (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0 &&
        strncmp(path, "/dev", 4) != 0 && file_call("open", path, "")) {
        errno = ENOSPC;
        return -1;
    }
    return REAL(open)(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list args;
    mode_t mode;
    va_start(args, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    return opened(CALLER, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list args;
    mode_t mode;
    va_start(args, flags);
    mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    return opened(CALLER, path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    if (is_ours(CALLER) && strpbrk(mode, "wa+") != NULL && file_call("open", path, "")) {
        errno = ENOSPC;
        return NULL;
    }
    return REAL(fopen)(path, mode);
}

ssize_t write(int fd, const void *data, size_t n) {
    char path[PATH_MAX];
    if (fd > 2 && is_ours(CALLER) && path_of(fd, path)[0] == '/' && file_call("write", path, "")) {
        errno = ENOSPC;
        return -1;
    }
    return REAL(write)(fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    char path[PATH_MAX];
    if (fd > 2 && is_ours(CALLER) && file_call("write", path_of(fd, path), "")) {
        errno = ENOSPC;
        return -1;
    }
    return REAL(pwrite)(fd, data, n, at);
}

size_t fwrite(const void *data, size_t size, size_t n, FILE *f) {
    char path[PATH_MAX];
    if (size * n > 0 && f != stdout && f != stderr && is_ours(CALLER) &&
        path_of(fileno(f), path)[0] == '/' && file_call("write", path, "")) {
        f->_flags |= 0x20; /* _IO_ERR_SEEN of glibc, which ferror reports. */
        errno = ENOSPC;
        return 0;
    }
    return REAL(fwrite)(data, size, n, f);
}

int fsync(int fd) {
    char path[PATH_MAX];
    if (sync_ms > 0 && is_ours(CALLER)) {
        (void)usleep((useconds_t)sync_ms * 1000);
    }
    if (is_ours(CALLER) && file_call("fsync", path_of(fd, path), "")) {
        errno = EIO;
        return -1;
    }
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    char path[PATH_MAX];
    if (is_ours(CALLER) && file_call("fsync", path_of(fd, path), "")) {
        errno = EIO;
        return -1;
    }
    return REAL(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
    if (is_ours(CALLER) && file_call("rename", from, to)) {
        errno = EIO;
        return -1;
    }
    return REAL(rename)(from, to);
}

int mkdir(const char *path, mode_t mode) {
    if (is_ours(CALLER) && access(path, F_OK) != 0 && file_call("mkdir", path, "")) {
        errno = ENOSPC;
        return -1;
    }
    return REAL(mkdir)(path, mode);
}

/* Logged, but never made to fail: removal during cleanup is best effort. */
int unlink(const char *path) {
    if (is_ours(CALLER) && log_fd >= 0) {
        inside = true;
        dprintf(log_fd, "unlink %s\n", path);
        inside = false;
    }
    return REAL(unlink)(path);
}

/* dlsym may allocate, so the allocator's own entry points are used. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t n) {
    return memory_fails(CALLER) ? no_memory() : __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    return memory_fails(CALLER) ? no_memory() : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    return memory_fails(CALLER) ? no_memory() : __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n) {
    return memory_fails(CALLER) ? no_memory() : __libc_memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n) {
    *out = memory_fails(CALLER) ? NULL : __libc_memalign(alignment, n);
    return *out != NULL ? 0 : ENOMEM;
}

char *strdup(const char *text) {
    const size_t n = strlen(text) + 1;
    char *copy = memory_fails(CALLER) ? no_memory() : __libc_malloc(n);
    return copy != NULL ? memcpy(copy, text, n) : NULL;
}
