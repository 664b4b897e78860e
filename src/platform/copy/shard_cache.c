/* shard_cache.c: see shard_cache.h: reading, fetching and making room. shard_set.c finds the
 * shards of an address. */
#include "platform/copy/shard_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/copy/shard_set.h"
#include "platform/copy/target.h"

/* Tries of a fetch, which itself repeats its requests; there are waits of 1, 2 and 4 s between. */
#define TRIES  4
#define AHEAD  2 /* Number of shards that are prefetched. */
#define POLL_S 0.05
#define TELL_S 10.0

/* The bytes of KEY.use that are locked. */
enum { BYTE_USE, BYTE_MAKE };

static void nap(double seconds) {
    const struct timespec t = {.tv_sec = (time_t)seconds,
                               .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    (void)nanosleep(&t, NULL);
}

/* ---- Files of a shard ---- */

/* FOLDER/shards/KEY.END */
static lt_err file_of(const lt_shard_cache *c, const char *key, const char *end,
                      char out[LT_PATH_BYTES]) {
    if (snprintf(out, LT_PATH_BYTES, "%s/%s%s", c->shards, key, end) >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", c->shards);
    }
    return LT_OK;
}

static int lock_byte(int fd, int byte, int type, bool wait) {
    struct flock l = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int e;
    do {
        e = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &l);
    } while (e != 0 && errno == EINTR);
    return e;
}

/* Open KEY.use and lock it shared: from now on no process deletes the shard. */
static lt_err keep(const lt_shard_cache *c, const lt_set_shard *e, int *fd) {
    char path[LT_PATH_BYTES];
    LT_TRY(file_of(c, e->key, ".use", path));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0 || lock_byte(*fd, BYTE_USE, F_RDLCK, true) != 0) {
        const lt_err err = lt_error_set(LT_ERR_IO, "%s: %s", path, strerror(errno));
        if (*fd >= 0) {
            close(*fd);
        }
        return err;
    }
    return LT_OK;
}

static int64_t size_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

static bool has_size(const lt_shard_cache *c, const lt_set_shard *e, const char *end,
                     size_t bytes) {
    char path[LT_PATH_BYTES];
    return file_of(c, e->key, end, path) == LT_OK && size_of(path) == (int64_t)bytes;
}

/* The hash of both files, in the form of KEY.sum. */
static lt_err hash_files(const lt_shard_cache *c, const lt_set_shard *e, char hex[33]) {
    static const char *const ends[] = {".bin", ".mask"};
    uint64_t hash[2] = {0, 0};
    for (size_t i = 0; i < (e->mask != NULL ? 2 : 1); i++) {
        char path[LT_PATH_BYTES];
        lt_file_map map;
        LT_TRY(file_of(c, e->key, ends[i], path));
        LT_TRY(lt_file_map_open(&map, path));
        hash[i] = XXH3_64bits(map.data, map.size_bytes);
        lt_file_map_close(&map);
    }
    (void)snprintf(hex, 33, "%016llx%016llx", (unsigned long long)hash[0],
                   (unsigned long long)hash[1]);
    return LT_OK;
}

static void remove_files(const lt_shard_cache *c, const char *key) {
    static const char *const ends[] = {".bin",  ".bin" LT_TARGET_DATA,  ".bin" LT_TARGET_STATE,
                                       ".mask", ".mask" LT_TARGET_DATA, ".mask" LT_TARGET_STATE,
                                       ".sum"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char path[LT_PATH_BYTES];
        if (file_of(c, key, ends[i], path) == LT_OK) {
            (void)unlink(path);
        }
    }
}

/* Whether the content still has the hash that it had after the fetch. Each process checks it
 * once. */
static bool is_sound(const lt_shard_cache *c, const lt_set_shard *e) {
    char path[LT_PATH_BYTES], hex[33], *text = NULL;
    bool sound = false;
    if (file_of(c, e->key, ".sum", path) == LT_OK && lt_file_read(&text, NULL, path, 64) == LT_OK &&
        hash_files(c, e, hex) == LT_OK) {
        sound = strncmp(text, hex, 32) == 0;
    }
    free(text);
    return sound;
}

static bool has_sizes(const lt_shard_cache *c, const lt_set_shard *e) {
    return has_size(c, e, ".bin", e->far.bin_bytes) &&
           (e->mask == NULL || has_size(c, e, ".mask", e->far.mask_bytes));
}

/* Whether this process knows that the files are here. The caller keeps the shard. */
static bool is_here(const lt_shard_cache *c, const lt_set_shard *e) {
    return atomic_load(&e->checked) && has_sizes(c, e);
}

/* The same for files that another process may have left. The caller holds the shard's lock. */
static bool was_left(const lt_shard_cache *c, lt_set_shard *e) {
    if (!has_sizes(c, e)) {
        return false;
    }
    if (!is_sound(c, e)) {
        lt_log_warn("data.cache: %s of %s is damaged: it is fetched again", e->key, e->bin);
        remove_files(c, e->key);
        return false;
    }
    atomic_store(&e->checked, true);
    return true;
}

/* ---- Making room ---- */

#define KEY_CHARS (LT_SET_KEY_BYTES - 1)

/* The files in the folder that belong to one key, together. */
typedef struct {
    char key[LT_SET_KEY_BYTES];
    int64_t bytes;
    double used_s;
    bool busy;
} held_key;

/* Sizes by key; names are sorted, so those of one key are neighbours. The caller frees *rows. */
static lt_err measure(const lt_shard_cache *c, held_key **rows, size_t *n) {
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n_names = 0;
    LT_TRY(lt_file_list(&names, &n_names, c->shards));
    *n = 0;
    *rows = calloc(n_names + 1, sizeof **rows);
    for (size_t i = 0; *rows != NULL && i < n_names; i++) {
        struct stat st;
        held_key *r = *n > 0 ? &(*rows)[*n - 1] : NULL;
        if (strlen(names[i]) <= KEY_CHARS || names[i][KEY_CHARS] != '.' ||
            lt_path_join(path, c->shards, names[i]) != LT_OK || stat(path, &st) != 0) {
            continue;
        }
        if (r == NULL || strncmp(r->key, names[i], KEY_CHARS) != 0) {
            r = &(*rows)[(*n)++];
            memcpy(r->key, names[i], KEY_CHARS);
        }
        if (strcmp(names[i] + KEY_CHARS, ".use") == 0) {
            r->used_s = lt_clock_of(st.st_mtim);
        } else if (!lt_path_has_suffix(names[i], ".sum") &&
                   !lt_path_has_suffix(names[i], LT_TARGET_STATE)) {
            r->bytes += (int64_t)st.st_size;
        }
    }
    lt_file_list_free(names, n_names);
    if (*rows == NULL) {
        LT_FAIL(LT_ERR_OOM, "files of %s", c->shards);
    }
    return LT_OK;
}

/* Delete the files of a key, unless a process reads or fetches them. */
static bool delete_key(lt_shard_cache *c, const char *key) {
    char path[LT_PATH_BYTES];
    bool alone;
    int fd;
    if (file_of(c, key, ".use", path) != LT_OK) {
        return false;
    }
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    alone = fd >= 0 && lock_byte(fd, BYTE_USE, F_WRLCK, false) == 0;
    if (alone) {
        remove_files(c, key);
        atomic_fetch_add(&c->n_deleted, 1);
    }
    if (fd >= 0) {
        close(fd);
    }
    return alone;
}

/* Whether `to` follows `from` with shards of fewer than near_bytes between them. */
static bool follows_soon(const lt_shard_cache *c, int64_t from, int64_t to) {
    const int64_t near_bytes = atomic_load(&c->near_bytes);
    int64_t at = c->entries[from]->next, between = 0;
    while (at != to && at != from && between < near_bytes) {
        const lt_far_shard *far = &c->entries[at]->far;
        between += (int64_t)(far->bin_bytes + far->mask_bytes);
        at = c->entries[at]->next;
    }
    return at == to && between < near_bytes;
}

/* Whether `to` is read before `end`, by a reader that is at `from` and reads in order. */
static bool comes_before(const lt_shard_cache *c, int64_t from, int64_t to, int64_t end) {
    int64_t at = from;
    while (at != to && at != end) {
        at = c->entries[at]->next;
    }
    return at == to && at != end;
}

/* Whether the shard is spared while room is made for `e`: it is the last one read from its source,
 * one that the window there may read, or, if `e` is prefetched, one that is read before `e`. */
static bool is_spared(const lt_shard_cache *c, const char *key, const lt_set_shard *e, bool ahead) {
    for (size_t i = 0; i < c->n; i++) {
        const lt_set_shard *s = c->entries[i];
        const int64_t at = atomic_load(&c->entries[s->first]->at);
        if (at >= 0 && strcmp(s->key, key) == 0 &&
            (at == s->index || follows_soon(c, s->index, at) || follows_soon(c, at, s->index) ||
             (ahead && s->first == e->first && comes_before(c, at, s->index, e->index)))) {
            return true;
        }
    }
    return false;
}

static held_key *oldest(const lt_shard_cache *c, held_key *rows, size_t n, const lt_set_shard *e,
                        bool spare, bool ahead) {
    held_key *found = NULL;
    for (size_t i = 0; i < n; i++) {
        held_key *r = &rows[i];
        if (r->bytes > 0 && !r->busy && strcmp(r->key, e->key) != 0 &&
            (found == NULL || r->used_s < found->used_s) &&
            !(spare && is_spared(c, r->key, e, ahead))) {
            found = r;
        }
    }
    return found;
}

/* Make a file of this size with the temporary name that a copy uses, so that the budget counts it
 * from now on. */
static lt_err reserve(const lt_shard_cache *c, const lt_set_shard *e, const char *end,
                      size_t bytes) {
    char path[LT_PATH_BYTES];
    int fd;
    lt_err err = LT_OK;
    LT_TRY(file_of(c, e->key, end, path));
    if (size_of(path) >= 0 || strlen(path) + sizeof LT_TARGET_DATA > sizeof path) {
        return LT_OK;
    }
    strcat(path, LT_TARGET_DATA);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || (size_of(path) != (int64_t)bytes && ftruncate(fd, (off_t)bytes) != 0)) {
        err = lt_error_set(LT_ERR_IO, "%s: no room for %zu bytes: %s", path, bytes,
                           strerror(errno));
        (void)unlink(path);
    }
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

/* Called with FOLDER/lock held. *room becomes false if shards that others are reading leave too
 * little of the budget. */
static lt_err make_room_locked(lt_shard_cache *c, const lt_set_shard *e, bool ahead, bool *room) {
    const int64_t need = (int64_t)(e->far.bin_bytes + e->far.mask_bytes);
    held_key *rows = NULL, *old;
    int64_t total = 0;
    size_t n = 0;

    LT_TRY(measure(c, &rows, &n));
    for (size_t i = 0; i < n; i++) {
        total += strcmp(rows[i].key, e->key) != 0 ? rows[i].bytes : 0;
    }
    while (total + need > c->budget_bytes && (!ahead || c->in_order) &&
           ((old = oldest(c, rows, n, e, true, ahead)) != NULL ||
            (!ahead && (old = oldest(c, rows, n, e, false, ahead)) != NULL))) {
        old->busy = true;
        if (delete_key(c, old->key)) {
            total -= old->bytes;
        }
    }
    *room = total + need <= c->budget_bytes;
    free(rows);
    if (!*room) {
        return LT_OK;
    }
    LT_TRY(reserve(c, e, ".bin", e->far.bin_bytes));
    return e->mask != NULL ? reserve(c, e, ".mask", e->far.mask_bytes) : LT_OK;
}

static lt_err make_room(lt_shard_cache *c, const lt_set_shard *e, bool ahead, bool *room) {
    const int fd = open(c->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    lt_err err;
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        err = lt_error_set(LT_ERR_IO, "%s: %s", c->lock_path, strerror(errno));
    } else {
        err = make_room_locked(c, e, ahead, room);
    }
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

/* ---- Fetching ---- */

static bool is_stopped(void *ctx) {
    const lt_shard_cache *c = ctx;
    return atomic_load(&c->stop);
}

/* Fetch a file. modified_s: its date in the list; 0: the date is not compared. */
static lt_err fetch_file(lt_shard_cache *c, const lt_set_shard *e, const char *from,
                         const char *end, size_t bytes, double modified_s) {
    lt_copy_options o = lt_copy_defaults();
    lt_copy_report r = {0};
    char to[LT_PATH_BYTES];
    struct stat st;
    o.n_connections = LT_SHARD_CACHE_CONNECTIONS;
    o.part_bytes = LT_SHARD_CACHE_PART_BYTES;
    o.wait = true;
    o.stop = is_stopped;
    o.ctx = c;
    LT_TRY(file_of(c, e->key, end, to));
    LT_TRY(lt_copy(from, to, &o, &r));
    atomic_fetch_add(&c->fetched_bytes, r.moved_bytes);
    if (stat(to, &st) != 0 || (size_t)st.st_size != bytes ||
        (modified_s > 0.0 && fabs(lt_clock_of(st.st_mtim) - modified_s) >= 1.0)) {
        (void)unlink(to);
        LT_FAIL(LT_ERR_STATE, "%s has changed since the run began: it had %zu bytes", from, bytes);
    }
    return LT_OK;
}

/* Other processes may write the same file, so each writes its own temporary file and renames it. */
static lt_err write_sum(const lt_shard_cache *c, const lt_set_shard *e) {
    char path[LT_PATH_BYTES], aside[LT_PATH_BYTES], hex[33];
    LT_TRY(hash_files(c, e, hex));
    LT_TRY(file_of(c, e->key, ".sum", path));
    if (snprintf(aside, sizeof aside, "%s.%lld.%p", path, (long long)getpid(), (void *)&hex) >=
        (int)sizeof aside) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", path);
    }
    return lt_file_write_by(path, aside, hex, strlen(hex), NULL, NULL);
}

static lt_err fetch_once(lt_shard_cache *c, lt_set_shard *e) {
    LT_TRY(fetch_file(c, e, e->bin, ".bin", e->far.bin_bytes, e->far.modified_s));
    if (e->mask != NULL) {
        LT_TRY(fetch_file(c, e, e->mask, ".mask", e->far.mask_bytes, 0.0));
    }
    LT_TRY(write_sum(c, e));
    atomic_store(&e->checked, true);
    atomic_fetch_add(&c->n_fetched, 1);
    return LT_OK;
}

/* Wait until there is room for the shard. ahead: fail with STATE instead of waiting. */
static lt_err wait_for_room(lt_shard_cache *c, const lt_set_shard *e, bool ahead) {
    double tell_s = lt_clock_s() + TELL_S;
    bool room = false;
    for (;;) {
        LT_TRY(make_room(c, e, ahead, &room));
        if (room) {
            return LT_OK;
        }
        if (ahead || atomic_load(&c->stop)) {
            LT_FAIL(LT_ERR_STATE, "data.cache: no room for %s", e->bin);
        }
        if (lt_clock_s() >= tell_s) {
            tell_s = INFINITY;
            lt_log_warn(
                "data.cache: %s waits for room: shards that others read fill the %lld bytes of %s",
                e->bin, (long long)c->budget_bytes, c->folder);
        }
        nap(POLL_S);
    }
}

/* Fetch a shard, which the caller keeps. */
static lt_err fetch(lt_shard_cache *c, lt_set_shard *e, bool ahead) {
    lt_err err = LT_OK;
    for (int n = 1; n <= TRIES; n++) {
        LT_TRY(wait_for_room(c, e, ahead));
        err = fetch_once(c, e);
        if (err == LT_OK || err != LT_ERR_REMOTE || ahead || atomic_load(&c->stop)) {
            break;
        }
        if (n < TRIES) {
            lt_log_warn("data.cache: %s; the run waits, and tries again in %d s",
                        lt_error_message(), 1 << (n - 1));
            nap((double)(1 << (n - 1)));
        }
    }
    return err;
}

/* The same, by one thread or process at a time: others wait until it is done, and then use the
 * result. */
static lt_err make(lt_shard_cache *c, lt_set_shard *e, int fd, bool ahead) {
    lt_err err = LT_OK;
    if (lock_byte(fd, BYTE_MAKE, F_WRLCK, true) != 0) {
        LT_FAIL(LT_ERR_IO, "%s.use: %s", e->key, strerror(errno));
    }
    if (!was_left(c, e)) {
        err = fetch(c, e, ahead);
    }
    (void)lock_byte(fd, BYTE_MAKE, F_UNLCK, true);
    return err;
}

/* ---- The thread ---- */

/* Fetch the shards after `from` that are not here. False: there was no room. */
static bool fetch_ahead(lt_shard_cache *c, int64_t from) {
    int64_t at = c->entries[from]->next;
    for (int i = 0; i < AHEAD && at != from && !atomic_load(&c->stop); i++) {
        lt_set_shard *e = c->entries[at];
        lt_err err = LT_OK;
        int fd;
        if (keep(c, e, &fd) != LT_OK) {
            return false;
        }
        if (!is_here(c, e)) {
            err = make(c, e, fd, true);
        }
        close(fd);
        if (err != LT_OK) {
            lt_log_debug("data.cache: ahead: %s", lt_error_message());
            return false;
        }
        at = e->next;
    }
    return true;
}

static void *work(void *arg) {
    lt_shard_cache *c = arg;
    int64_t done = -1;
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->stop)) {
        const int64_t last = atomic_load(&c->last);
        bool room;
        if (!atomic_load(&c->reading) || last == done) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        room = fetch_ahead(c, last);
        done = last;
        if (!room) {
            nap(POLL_S);
        }
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- Reading ---- */

static const lt_far_shard *find(lt_shard_store *store, const char *prefix) {
    const lt_shard_cache *c = (const lt_shard_cache *)store;
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->entries[i]->prefix, prefix) == 0) {
            return &c->entries[i]->far;
        }
    }
    return NULL;
}

static void note_read(lt_shard_cache *c, lt_set_shard *e, int fd) {
    const long long now_s = (long long)lt_clock_s();
    if (atomic_exchange(&e->touched_s, now_s) != now_s) { /* Once a second. */
        (void)futimens(fd, NULL);
    }
    atomic_store(&c->entries[e->first]->at, e->index);
    if (atomic_load(&c->last) != e->index || !atomic_load(&c->reading)) {
        pthread_mutex_lock(&c->lock);
        atomic_store(&c->last, e->index);
        atomic_store(&c->reading, true);
        pthread_cond_signal(&c->changed);
        pthread_mutex_unlock(&c->lock);
    }
}

static lt_err wait_for(lt_shard_cache *c, lt_set_shard *e, int fd) {
    const double begin_s = lt_clock_s();
    const lt_err err = make(c, e, fd, false);
    pthread_mutex_lock(&c->lock);
    c->n_waits++;
    c->wait_s += lt_clock_s() - begin_s;
    pthread_mutex_unlock(&c->lock);
    return err;
}

static lt_err hold(lt_shard_store *store, const lt_far_shard *far, lt_held_shard *out) {
    lt_shard_cache *c = (lt_shard_cache *)store;
    lt_set_shard *e = (lt_set_shard *)(uintptr_t)far; /* far is its first member. */
    lt_err err;
    LT_TRY(keep(c, e, &out->lock));
    err = is_here(c, e) ? LT_OK : wait_for(c, e, out->lock);
    err = err == LT_OK ? file_of(c, e->key, "", out->prefix) : err;
    if (err != LT_OK) {
        close(out->lock);
        return lt_error_prefix(err, "data.cache");
    }
    note_read(c, e, out->lock);
    return LT_OK;
}

static void let_go(lt_shard_store *store, lt_held_shard *held) {
    (void)store;
    close(held->lock); /* This releases its lock. */
}

/* ---- Opening ---- */

void lt_shard_cache_spare(lt_shard_cache *c, size_t near_bytes) {
    atomic_store(&c->near_bytes, (long long)near_bytes);
}

lt_shard_store *lt_shard_cache_store(lt_shard_cache *c) {
    return &c->store;
}

void lt_shard_cache_tell(lt_shard_cache *c, lt_shard_cache_report *out) {
    pthread_mutex_lock(&c->lock);
    *out = (lt_shard_cache_report){.fetched_bytes = atomic_load(&c->fetched_bytes),
                                   .n_fetched = atomic_load(&c->n_fetched),
                                   .n_deleted = atomic_load(&c->n_deleted),
                                   .n_waits = c->n_waits,
                                   .wait_s = c->wait_s};
    pthread_mutex_unlock(&c->lock);
}

lt_err lt_shard_cache_open(lt_shard_cache **out, const char *folder, int64_t budget_bytes,
                           bool in_order) {
    lt_err err = LT_OK;
    int e;
    lt_shard_cache *c = calloc(1, sizeof *c);
    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "data.cache");
    }
    c->store = (lt_shard_store){.find = find, .hold = hold, .let_go = let_go};
    c->budget_bytes = budget_bytes;
    c->in_order = in_order;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->changed, NULL);
    LT_TRY_DONE(lt_path_join(c->folder, folder, ""));
    c->folder[strlen(c->folder) - 1] = '\0';
    LT_TRY_DONE(lt_path_join(c->shards, c->folder, "shards"));
    LT_TRY_DONE(lt_path_join(c->lock_path, c->folder, "lock"));
    LT_TRY_DONE(lt_file_make_dirs(c->shards));
    e = pthread_create(&c->thread, NULL, work, c);
    if (e != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "thread of data.cache: %s", strerror(e));
    }
    c->has_thread = true;
    *out = c;
    return LT_OK;
done:
    lt_shard_cache_close(c);
    return err;
}

void lt_shard_cache_close(lt_shard_cache *c) {
    if (c == NULL) {
        return;
    }
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->stop, true);
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (c->has_thread) {
        (void)pthread_join(c->thread, NULL);
    }
    for (size_t i = 0; i < c->n; i++) {
        lt_set_shard_free(c->entries[i]);
    }
    free(c->entries);
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}
