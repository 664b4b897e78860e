/* uploads.c: see uploads.h. A mutex protects the list of uploads. Parts are written, and joined to
 * the file, without holding it. A part has an entry before it is written, with `there` false; if
 * the upload ends during the write, the writer deletes the part. */
#include "serve/api/files/uploads.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "platform/copy/digest.h"

#define COPY_BYTES ((size_t)1 << 20)
/* Clients send a part again if they do not learn that it arrived, so parts may take up to twice the
 * size of the file. */
#define SLACK 2
/* How long an upload that has ended is remembered, so that its state can be reported. */
#define TOLD_S 3600

typedef struct {
    char id[LT_FILE_ID_BYTES];
    int64_t bytes;
    bool there; /* It has been written. */
} part;

typedef struct upload {
    lt_upload public;
    part *parts; /* (n_parts) */
    int64_t n_parts, room, part_bytes, ended;
    bool busy;
    struct upload *next;
} upload;

struct lt_uploads {
    lt_uploads_options o;
    char dir[LT_PATH_BYTES];
    pthread_mutex_t lock;
    upload *newest;
};

static lt_err part_path(const lt_uploads *u, const char *id, char out[LT_PATH_BYTES]) {
    return lt_path_join(out, u->dir, id);
}

static void delete_part(const lt_uploads *u, const char *id) {
    char path[LT_PATH_BYTES];
    if (part_path(u, id, path) == LT_OK) {
        (void)unlink(path);
    }
}

static bool is_pending(const upload *t) {
    return t->public.state == LT_UPLOAD_PENDING;
}

static bool is_owned(const upload *t, const char *owner) {
    return strcmp(t->public.file.owner, owner) == 0;
}

/* ---- Under the lock ---- */

static void free_upload(upload *t) {
    free(t->parts);
    free(t);
}

static void end(const lt_uploads *u, upload *t, lt_upload_state state) {
    t->public.state = state;
    t->ended = (int64_t)lt_clock_unix_s();
    for (int64_t i = 0; i < t->n_parts; i++) {
        if (t->parts[i].there) {
            delete_part(u, t->parts[i].id);
        }
    }
    free(t->parts);
    t->parts = NULL;
    t->n_parts = t->room = 0;
}

/* End those whose time is over, and forget those that ended long ago. */
static void look_at_clock(lt_uploads *u) {
    const int64_t now = (int64_t)lt_clock_unix_s();
    upload **at = &u->newest;
    while (*at != NULL) {
        upload *t = *at;
        if (is_pending(t) && !t->busy && t->public.expires <= now) {
            end(u, t, LT_UPLOAD_EXPIRED);
        }
        if (!is_pending(t) && t->ended + TOLD_S <= now) {
            *at = t->next;
            free_upload(t);
        } else {
            at = &t->next;
        }
    }
}

/* Forget the owner's oldest upload that has ended. False: none has. */
static bool forget_one(lt_uploads *u, const char *owner) {
    upload **oldest = NULL;
    for (upload **at = &u->newest; *at != NULL; at = &(*at)->next) {
        oldest = !is_pending(*at) && is_owned(*at, owner) ? at : oldest;
    }
    if (oldest != NULL) {
        upload *t = *oldest;
        *oldest = t->next;
        free_upload(t);
    }
    return oldest != NULL;
}

static upload *find(lt_uploads *u, const char *id, const char *owner) {
    for (upload *t = u->newest; t != NULL; t = t->next) {
        if (strcmp(t->public.id, id) == 0 && is_owned(t, owner)) {
            return t;
        }
    }
    return NULL;
}

/* The upload, if it can be changed; else *e. */
static upload *find_pending(lt_uploads *u, const char *id, const char *owner, lt_api_error *e) {
    static const char *const ended[] = {
        [LT_UPLOAD_COMPLETED] = "is completed",
        [LT_UPLOAD_CANCELLED] = "was cancelled",
        [LT_UPLOAD_EXPIRED] = "has expired",
    };
    upload *t;
    look_at_clock(u);
    t = find(u, id, owner);
    if (t == NULL) {
        lt_api_refuse(e, "upload_id", "No such Upload object: %.80s", id);
        e->status = 404;
        return NULL;
    }
    if (!is_pending(t) || t->busy) {
        lt_api_refuse(e, "upload_id", "%s %s: it cannot be changed any more", id,
                      t->busy ? "is being completed" : ended[t->public.state]);
        return NULL;
    }
    return t;
}

static bool may_begin(lt_uploads *u, const lt_upload *asked, lt_api_error *e) {
    const char *owner = asked->file.owner;
    int64_t pending = 0, bytes = 0, all = 0;
    for (const upload *t = u->newest; t != NULL; t = t->next) {
        if (is_owned(t, owner)) {
            all++;
            pending += is_pending(t);
            bytes += is_pending(t) ? t->public.bytes : 0;
        }
    }
    if (pending >= u->o.max_uploads || asked->bytes > u->o.max_bytes - bytes) {
        return lt_api_refuse(e, "bytes",
                             "%lld uploads of %lld bytes are pending; with this one of %lld bytes "
                             "they would be more than %lld (--files) or %lld bytes (--files-bytes)",
                             (long long)pending, (long long)bytes, (long long)asked->bytes,
                             (long long)u->o.max_uploads, (long long)u->o.max_bytes);
    }
    return all < u->o.max_uploads || forget_one(u, owner);
}

/* A place for the part, which has not arrived yet; *e: why there is none. */
static bool take_place(upload *t, const char *id, size_t n, lt_api_error *e) {
    const int64_t most = t->public.bytes > INT64_MAX / SLACK ? INT64_MAX : SLACK * t->public.bytes;
    if ((int64_t)n > most - t->part_bytes) {
        return lt_api_refuse(e, "data",
                             "%s: its parts have %lld bytes, and this one %zu; the upload was "
                             "created for %lld bytes, and its parts may have %d times as many",
                             t->public.id, (long long)t->part_bytes, n, (long long)t->public.bytes,
                             SLACK);
    }
    if (t->n_parts == LT_UPLOAD_PARTS) {
        return lt_api_refuse(e, "data", "%s has %d parts; more are not accepted", t->public.id,
                             LT_UPLOAD_PARTS);
    }
    if (t->n_parts == t->room) {
        const int64_t room = t->room > 0 ? 2 * t->room : 16;
        part *grown = realloc(t->parts, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return lt_api_refuse_oom(e);
        }
        t->parts = grown;
        t->room = room;
    }
    t->parts[t->n_parts] = (part){.bytes = (int64_t)n};
    snprintf(t->parts[t->n_parts].id, sizeof t->parts->id, "%s", id);
    t->part_bytes += (int64_t)n;
    t->n_parts++;
    return true;
}

static part *find_part(const upload *t, const char *id) {
    for (int64_t i = 0; i < t->n_parts; i++) {
        if (strcmp(t->parts[i].id, id) == 0) {
            return &t->parts[i];
        }
    }
    return NULL;
}

static void give_back(upload *t, part *p) {
    t->part_bytes -= p->bytes;
    *p = t->parts[--t->n_parts];
}

/* ---- The door ---- */

lt_err lt_uploads_open(lt_uploads **out, const lt_uploads_options *o) {
    lt_err err = LT_OK;
    lt_uploads *u = calloc(1, sizeof *u);
    if (u == NULL) {
        LT_FAIL(LT_ERR_OOM, "uploads");
    }
    u->o = *o;
    pthread_mutex_init(&u->lock, NULL);
    LT_TRY_DONE(lt_path_join(u->dir, o->dir, "uploads"));
    LT_TRY_DONE(lt_file_remove_tree(u->dir)); /* Parts of an earlier server's uploads. */
    LT_TRY_DONE(lt_file_make_dirs(u->dir));
    *out = u;
    u = NULL;
done:
    lt_uploads_close(u);
    return err;
}

void lt_uploads_close(lt_uploads *u) {
    upload *next;
    if (u == NULL) {
        return;
    }
    for (upload *t = u->newest; t != NULL; t = next) {
        next = t->next;
        free_upload(t);
    }
    pthread_mutex_destroy(&u->lock);
    free(u);
}

bool lt_uploads_create(lt_uploads *u, lt_upload *asked, lt_api_error *e) {
    upload *t = calloc(1, sizeof *t);
    bool ok;
    if (t == NULL) {
        return lt_api_refuse_oom(e);
    }
    asked->state = LT_UPLOAD_PENDING;
    asked->created = (int64_t)lt_clock_unix_s();
    asked->expires = asked->created + u->o.pending_s;
    t->public = *asked;
    pthread_mutex_lock(&u->lock);
    look_at_clock(u);
    ok = may_begin(u, asked, e);
    if (ok) {
        t->next = u->newest;
        u->newest = t;
        t = NULL;
    }
    pthread_mutex_unlock(&u->lock);
    free(t);
    return ok;
}

bool lt_uploads_add(lt_uploads *u, const char *id, const char *owner, const char *part_id,
                    const void *data, size_t n, lt_api_error *e) {
    char path[LT_PATH_BYTES];
    lt_err err = part_path(u, part_id, path);
    upload *t;
    part *p;
    bool ok;

    if (err != LT_OK) {
        return lt_api_refuse_error(e, NULL, err);
    }
    pthread_mutex_lock(&u->lock);
    t = find_pending(u, id, owner, e);
    ok = t != NULL && take_place(t, part_id, n, e);
    pthread_mutex_unlock(&u->lock);
    if (!ok) {
        return false;
    }
    err = lt_file_write_atomic(path, data, n);
    ok = err == LT_OK || lt_api_refuse_error(e, NULL, err);
    pthread_mutex_lock(&u->lock);
    ok = ok && find_pending(u, id, owner, e) != NULL;
    t = find(u, id, owner);
    p = t != NULL ? find_part(t, part_id) : NULL;
    if (ok) {
        p->there = true;
    } else if (p != NULL) {
        give_back(t, p);
    }
    pthread_mutex_unlock(&u->lock);
    if (!ok) {
        delete_part(u, part_id);
    }
    return ok;
}

/* ---- Its end ---- */

/* Whether these are the upload's parts, each once, and all of its bytes. */
static bool check_parts(const upload *t, const json_t *ids, lt_api_error *e) {
    int64_t bytes = 0;
    if (!json_is_array(ids) || json_array_size(ids) == 0) {
        return lt_api_refuse(e, "part_ids", "'part_ids' must be a list of the parts' ids");
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const char *id = json_string_value(json_array_get(ids, i));
        const part *p = id != NULL ? find_part(t, id) : NULL;
        if (p == NULL || !p->there) {
            return lt_api_refuse(e, "part_ids", "'part_ids'[%zu]: %s has no part %.80s", i,
                                 t->public.id, id != NULL ? id : "that is not a string");
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(json_string_value(json_array_get(ids, k)), id) == 0) {
                return lt_api_refuse(e, "part_ids", "'part_ids' names %.80s twice", id);
            }
        }
        bytes += p->bytes;
    }
    return bytes == t->public.bytes ||
           lt_api_refuse(e, "part_ids",
                         "the parts have %lld bytes; the upload was created for %lld",
                         (long long)bytes, (long long)t->public.bytes);
}

/* Append a file to fd; d NULL: no digest is needed. */
static lt_err append_file(int fd, const char *to, const char *from, char *buffer, lt_digest *d) {
    lt_err err = LT_OK;
    const int part_fd = open(from, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;
    if (part_fd < 0) {
        LT_FAIL(LT_ERR_IO, "open %s", from);
    }
    while ((n = read(part_fd, buffer, COPY_BYTES)) > 0) {
        for (ssize_t done = 0, w; done < n; done += w) {
            w = write(fd, buffer + done, (size_t)(n - done));
            if (w < 0) {
                LT_FAIL_DONE(LT_ERR_IO, "write %s: %s", to, strerror(errno));
            }
        }
        if (d != NULL) {
            lt_digest_add(d, buffer, (size_t)n);
        }
    }
    if (n < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "read %s: %s", from, strerror(errno));
    }
done:
    close(part_fd);
    return err;
}

/* Write the parts, one after another, to a file. md5: the digest of what was written; NULL: not
 * needed. */
static lt_err join(const lt_uploads *u, const json_t *ids, const char *to, char *md5) {
    unsigned char digest[LT_DIGEST_BYTES];
    char path[LT_PATH_BYTES];
    lt_err err = LT_OK;
    lt_digest *d = NULL;
    char *buffer = malloc(COPY_BYTES);
    const int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (buffer == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", to);
    }
    if (fd < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "open %s: %s", to, strerror(errno));
    }
    if (md5 != NULL) {
        LT_TRY_DONE(lt_digest_open(&d, LT_DIGEST_MD5, 0));
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        LT_TRY_DONE(part_path(u, json_string_value(json_array_get(ids, i)), path));
        LT_TRY_DONE(append_file(fd, to, path, buffer, d));
    }
    if (fsync(fd) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "fsync %s: %s", to, strerror(errno));
    }
    for (size_t i = 0, n = md5 != NULL ? lt_digest_end(d, digest) : 0; i < n; i++) {
        snprintf(md5 + 2 * i, 3, "%02x", digest[i]);
    }
done:
    if (fd >= 0) {
        close(fd);
    }
    lt_digest_close(d);
    free(buffer);
    return err;
}

/* Make the upload's file; false: *e, and nothing of it is left. */
static bool make_file(const lt_uploads *u, const lt_upload *of, const json_t *ids,
                      const char *wanted, lt_file_entry *file, lt_api_error *e) {
    char to[LT_PATH_BYTES], md5[LT_DIGEST_TEXT_BYTES] = "";
    lt_err err;
    bool ok;
    file->created = (int64_t)lt_clock_unix_s();
    file->expires = of->keep_s > 0 ? file->created + of->keep_s : 0;
    err = lt_files_path(u->o.files, file->id, to);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, NULL, err);
    }
    err = join(u, ids, to, wanted != NULL ? md5 : NULL);
    ok = err == LT_OK || lt_api_refuse_error(e, NULL, err);
    if (ok && wanted != NULL && strcasecmp(md5, wanted) != 0) {
        ok = lt_api_refuse(e, "md5", "'md5' = %.40s; that of the file is %s", wanted, md5);
    }
    if (ok) {
        return lt_files_put(u->o.files, file, NULL, (size_t)of->bytes, e);
    }
    (void)unlink(to);
    return false;
}

bool lt_uploads_complete(lt_uploads *u, const char *id, const char *owner, const json_t *parts,
                         const char *md5, const char *file_id, lt_upload *out, lt_api_error *e) {
    lt_file_entry file;
    upload *t;
    bool ok;

    pthread_mutex_lock(&u->lock);
    t = find_pending(u, id, owner, e);
    ok = t != NULL && check_parts(t, parts, e);
    if (ok) {
        t->busy = true;
        *out = t->public;
    }
    pthread_mutex_unlock(&u->lock);
    if (!ok) {
        return false;
    }
    file = out->file;
    snprintf(file.id, sizeof file.id, "%s", file_id);
    ok = make_file(u, out, parts, md5, &file, e);
    pthread_mutex_lock(&u->lock);
    /* It is still in the list, because a busy one is neither ended nor forgotten. */
    t->busy = false;
    if (ok) {
        t->public.file = file;
        end(u, t, LT_UPLOAD_COMPLETED);
        *out = t->public;
    }
    pthread_mutex_unlock(&u->lock);
    return ok;
}

bool lt_uploads_cancel(lt_uploads *u, const char *id, const char *owner, lt_upload *out,
                       lt_api_error *e) {
    upload *t;
    pthread_mutex_lock(&u->lock);
    t = find_pending(u, id, owner, e);
    if (t != NULL) {
        end(u, t, LT_UPLOAD_CANCELLED);
        *out = t->public;
    }
    pthread_mutex_unlock(&u->lock);
    return t != NULL;
}
