/* page_disk.c: see page_disk.h. */
#include "serve/page_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/page_index.h"

#define SUFFIX       ".page"
#define NAME_BYTES   (32 + sizeof SUFFIX)
#define SECRET       "secret"
#define HEAD_BYTES   128 /* Bytes read of each file; its head is shorter. */
#define NS_OF_SECOND 1000000000L

struct lt_page_disk {
    char folder[LT_PATH_BYTES];
    lt_page_file_head head;
    uint64_t seed;
    int lock_fd; /* The file with the seed, which is locked. */
    lt_arena arena;
    pthread_mutex_t lock; /* Of what follows. */
    lt_page_index index;
    int64_t written, read, failed;
};

static lt_err path_of(const lt_page_disk *d, lt_page_chain chain, char out[LT_PATH_BYTES]) {
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%016llx%016llx" SUFFIX, (unsigned long long)chain.high,
                   (unsigned long long)chain.low);
    return lt_path_join(out, d->folder, name);
}

/* ---- Opening ---- */

/* Lock the folder for this program, and read the seed of its files or, in a new folder, create
 * it. */
static lt_err open_secret(lt_page_disk *d) {
    char path[LT_PATH_BYTES];
    struct stat st;
    LT_TRY(lt_path_join(path, d->folder, SECRET));
    d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->lock_fd < 0 || fstat(d->lock_fd, &st) != 0) {
        LT_FAIL(LT_ERR_IO, "open %s: %s", path, strerror(errno));
    }
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        LT_FAIL(LT_ERR_STATE, "%s is the cache of another running program: %s is locked", d->folder,
                path);
    }
    if (st.st_size == sizeof d->seed) {
        if (pread(d->lock_fd, &d->seed, sizeof d->seed, 0) != (ssize_t)sizeof d->seed) {
            LT_FAIL(LT_ERR_IO, "read %s: %s", path, strerror(errno));
        }
        return LT_OK;
    }
    if (st.st_size != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s has %lld bytes, not %zu: %s is not a folder of cached pages",
                path, (long long)st.st_size, sizeof d->seed, d->folder);
    }
    if (getrandom(&d->seed, sizeof d->seed, 0) != (ssize_t)sizeof d->seed ||
        pwrite(d->lock_fd, &d->seed, sizeof d->seed, 0) != (ssize_t)sizeof d->seed) {
        LT_FAIL(LT_ERR_IO, "write %s: %s", path, strerror(errno));
    }
    return LT_OK;
}

/* A file that was found. */
typedef struct {
    struct timespec used;
    lt_page_chain chain;
} found;

static int by_use(const void *a, const void *b) {
    const struct timespec *x = &((const found *)a)->used, *y = &((const found *)b)->used;
    return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
                                  : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

static lt_err check_head(const lt_page_disk *d, const lt_page_file_head *h, int64_t bytes,
                         const char *path) {
    char want[LT_PATH_BYTES];
    LT_TRY(path_of(d, h->chain, want));
    if (h->fingerprint != d->head.fingerprint || h->keys != d->head.keys ||
        h->values != d->head.values || h->page_tokens != d->head.page_tokens ||
        h->page_bytes != d->head.page_bytes) {
        LT_FAIL(LT_ERR_STATE, "%s has a page of another model, compute type or type of cache",
                path);
    }
    if (bytes != lt_page_file_bytes(h) || strcmp(want, path) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s is damaged: it has %lld bytes, or another one's name", path,
                (long long)bytes);
    }
    return LT_OK;
}

/* Read the head of a page's file, and check that the page can be used. */
static lt_err look(const lt_page_disk *d, const char *path, found *out) {
    unsigned char data[HEAD_BYTES];
    lt_page_file_head head;
    struct stat st;
    ssize_t n = -1;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0) {
        n = read(fd, data, sizeof data);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (n < 0) {
        LT_FAIL(LT_ERR_IO, "read %s: %s", path, strerror(errno));
    }
    LT_TRY(lt_page_file_parse_head(&head, data, (size_t)n, path));
    LT_TRY(check_head(d, &head, st.st_size, path));
    *out = (found){st.st_mtim, head.chain};
    return LT_OK;
}

static void add(lt_page_disk *d, lt_page_chain chain) {
    char path[LT_PATH_BYTES];
    lt_page_chain gone;
    bool any_gone;
    pthread_mutex_lock(&d->lock);
    (void)lt_page_index_add(&d->index, chain, &gone, &any_gone);
    pthread_mutex_unlock(&d->lock);
    if (any_gone && path_of(d, gone, path) == LT_OK) {
        (void)unlink(path);
    }
}

/* Whether it was left by a writer that was killed. */
static bool is_rest(const char *name) {
    return strstr(name, SUFFIX ".") != NULL && lt_path_has_suffix(name, LT_PAGE_FILE_SUFFIX);
}

/* Add the files that can be used, the oldest first, and remove incomplete ones. */
static lt_err take_in(lt_page_disk *d, char **names, size_t n) {
    char path[LT_PATH_BYTES], why[300] = "";
    found *all = calloc(n + 1, sizeof *all);
    size_t n_found = 0, n_ignored = 0;
    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "a list of %zu files", n);
    }
    for (size_t i = 0; i < n; i++) {
        const bool ours = lt_path_has_suffix(names[i], SUFFIX);
        if (lt_path_join(path, d->folder, names[i]) != LT_OK) {
            continue;
        }
        if (is_rest(names[i])) {
            (void)unlink(path);
        } else if (ours && look(d, path, &all[n_found]) == LT_OK) {
            n_found++;
        } else if (ours && n_ignored++ == 0) {
            (void)snprintf(why, sizeof why, "%s", lt_error_message());
        }
    }
    if (n_ignored > 0) {
        lt_log_warn("cache on disk: %zu files of %s are ignored; the first: %s", n_ignored,
                    d->folder, why);
    }
    qsort(all, n_found, sizeof *all, by_use);
    for (size_t i = 0; i < n_found; i++) {
        add(d, all[i].chain);
    }
    free(all);
    return LT_OK;
}

lt_err lt_page_disk_open(lt_page_disk **out, const char *folder, int64_t most_bytes,
                         const lt_page_file_head *head) {
    lt_err err = LT_OK;
    lt_page_disk *d = calloc(1, sizeof *d);
    char **names = NULL;
    size_t n = 0;
    int64_t file_bytes;
    if (d == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", folder);
    }
    d->lock_fd = -1;
    d->head = *head;
    d->head.n_pages = 1;
    d->head.chain.low = 1; /* The head includes a chain, which counts in the size of files. */
    file_bytes = lt_page_file_bytes(&d->head);
    pthread_mutex_init(&d->lock, NULL);
    (void)snprintf(d->folder, sizeof d->folder, "%s", folder);
    d->index.n_slots = most_bytes / file_bytes < INT32_MAX - 1 ? most_bytes / file_bytes
                                                               : INT32_MAX - 1;
    if (d->index.n_slots < 1) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "a cache of %lld bytes in %s: a page has %lld",
                     (long long)most_bytes, folder, (long long)file_bytes);
    }
    LT_TRY_DONE(lt_file_make_dirs(folder));
    LT_TRY_DONE(open_secret(d));
    lt_page_index_carve(&d->index, &d->arena);
    LT_TRY_DONE(lt_arena_open(&d->arena, "index of the cache on disk"));
    lt_page_index_carve(&d->index, &d->arena);
    lt_page_index_reset(&d->index);
    LT_TRY_DONE(lt_file_list(&names, &n, folder));
    LT_TRY_DONE(take_in(d, names, n));
    *out = d;
    d = NULL;
done:
    lt_file_list_free(names, n);
    lt_page_disk_close(d);
    return err;
}

/* Store the order of use in the times of the files, a nanosecond apart, since their clock is
 * coarse. */
static void keep_order(const lt_page_disk *d) {
    char path[LT_PATH_BYTES];
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    for (int32_t slot = d->index.oldest; slot != LT_NO_SLOT; slot = d->index.slots[slot].next) {
        const struct timespec times[] = {now, now};
        if (path_of(d, d->index.slots[slot].chain, path) == LT_OK) {
            (void)utimensat(AT_FDCWD, path, times, 0);
        }
        now.tv_nsec++;
        if (now.tv_nsec == NS_OF_SECOND) {
            now = (struct timespec){now.tv_sec + 1, 0};
        }
    }
}

void lt_page_disk_close(lt_page_disk *d) {
    if (d == NULL) {
        return;
    }
    if (d->index.n_used > 0) {
        keep_order(d);
    }
    if (d->lock_fd >= 0) {
        (void)close(d->lock_fd);
    }
    pthread_mutex_destroy(&d->lock);
    lt_arena_close(&d->arena);
    free(d);
}

uint64_t lt_page_disk_seed(const lt_page_disk *d) {
    return d->seed;
}

/* ---- Use ---- */

bool lt_page_disk_has(lt_page_disk *d, lt_page_chain chain) {
    bool has;
    pthread_mutex_lock(&d->lock);
    has = lt_page_index_find(&d->index, chain) != LT_NO_SLOT;
    pthread_mutex_unlock(&d->lock);
    return has;
}

bool lt_page_disk_touch(lt_page_disk *d, lt_page_chain chain) {
    int32_t slot;
    pthread_mutex_lock(&d->lock);
    slot = lt_page_index_find(&d->index, chain);
    if (slot != LT_NO_SLOT) {
        lt_page_index_touch(&d->index, slot);
    }
    pthread_mutex_unlock(&d->lock);
    return slot != LT_NO_SLOT;
}

static void forget(lt_page_disk *d, lt_page_chain chain) {
    int32_t slot;
    pthread_mutex_lock(&d->lock);
    slot = lt_page_index_find(&d->index, chain);
    if (slot != LT_NO_SLOT) {
        lt_page_index_remove(&d->index, slot);
    }
    pthread_mutex_unlock(&d->lock);
}

static lt_err counted(lt_page_disk *d, int64_t *count, lt_err err) {
    pthread_mutex_lock(&d->lock);
    *(err == LT_OK ? count : &d->failed) += 1;
    pthread_mutex_unlock(&d->lock);
    return err;
}

static lt_err write_file(const lt_page_disk *d, lt_page_chain chain, const int32_t *tokens,
                         const void *page) {
    lt_err err = LT_OK;
    lt_page_file_head head = d->head;
    lt_page_file *f = NULL;
    char path[LT_PATH_BYTES];
    int64_t bytes;
    head.chain = chain;
    LT_TRY(path_of(d, chain, path));
    LT_TRY(lt_page_file_create(&f, path, &head, tokens));
    LT_TRY_DONE(lt_page_file_put(f, page));
    LT_TRY_DONE(lt_page_file_commit(f, false, &bytes));
done:
    lt_page_file_close(f);
    return err;
}

lt_err lt_page_disk_put(lt_page_disk *d, lt_page_chain chain, const int32_t *tokens,
                        const void *page) {
    if (lt_page_disk_touch(d, chain)) {
        return LT_OK;
    }
    LT_TRY(counted(d, &d->written, write_file(d, chain, tokens, page)));
    add(d, chain);
    return LT_OK;
}

static lt_err read_file(const lt_page_disk *d, lt_page_chain chain, const int32_t *tokens,
                        void *page, const char *path) {
    lt_err err = LT_OK;
    lt_file_map map = {0};
    lt_page_file_view v;
    const void *data;
    LT_TRY(lt_file_map_open(&map, path));
    LT_TRY_DONE(lt_page_file_parse(&v, map.data, map.size_bytes, path));
    LT_TRY_DONE(check_head(d, &v.head, (int64_t)map.size_bytes, path));
    LT_TRY_DONE(lt_page_file_page(&v, 0, &data));
    if (!lt_page_chain_same(v.head.chain, chain) ||
        memcmp(v.tokens, tokens, (size_t)d->head.page_tokens * sizeof *tokens) != 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s is damaged: it has other tokens", path);
    }
    memcpy(page, data, (size_t)d->head.page_bytes);
done:
    lt_file_map_close(&map);
    return err;
}

lt_err lt_page_disk_get(lt_page_disk *d, lt_page_chain chain, const int32_t *tokens, void *page) {
    char path[LT_PATH_BYTES];
    lt_err err;
    if (!lt_page_disk_has(d, chain)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "the cache in %s does not have the page", d->folder);
    }
    LT_TRY(path_of(d, chain, path));
    err = counted(d, &d->read, read_file(d, chain, tokens, page, path));
    if (err != LT_OK) {
        forget(d, chain);
        (void)unlink(path);
        return err;
    }
    return LT_OK;
}

void lt_page_disk_get_counts(lt_page_disk *d, lt_page_disk_counts *out) {
    pthread_mutex_lock(&d->lock);
    *out = (lt_page_disk_counts){.pages = d->index.n_used,
                                 .most_pages = d->index.n_slots,
                                 .file_bytes = lt_page_file_bytes(&d->head),
                                 .written = d->written,
                                 .read = d->read,
                                 .failed = d->failed};
    pthread_mutex_unlock(&d->lock);
}
