/* target.c: see target.h. */
#include "platform/copy/target.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

struct lt_landing {
    const lt_target *target;
    const lt_opened_item *opened;
    int64_t part_bytes, n_parts;
    lt_state *state;      /* It is also the lock; NULL: to S3 in one piece. */
    lt_state_part *known; /* To a file, (n_parts): the parts in the state. */
    int fd;               /* To a file. */
    bool ended;
    char data_path[LT_PATH_BYTES];
    char upload[LT_S3_UPLOAD_BYTES]; /* To S3, in parts. */
    lt_s3_part *parts;               /* To S3, (n_parts): the parts at the service. */
};

static bool same_second(double a, double b) {
    return a > 0.0 && fabs(a - b) < 1.0;
}

/* Find out whether a local file has this checksum. */
static lt_err has_check(const char *path, const lt_checksum *check, int64_t size_bytes,
                        bool *same) {
    enum { PIECE = 1 << 20 };
    lt_err err = LT_OK;
    lt_verifier *c = NULL;
    unsigned char *data = malloc(PIECE);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;

    if (data == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a checksum of %s", path);
    }
    LT_TRY_DONE(lt_verifier_open(&c, check, size_bytes));
    while (fd >= 0 && (n = read(fd, data, PIECE)) > 0) {
        lt_verifier_add(c, data, (size_t)n);
    }
    *same = n == 0 && lt_verifier_end(c, path) == LT_OK;
done:
    lt_verifier_close(c);
    free(data);
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

lt_err lt_target_has(const lt_target *t, lt_web *h, const lt_opened_item *o, bool *same) {
    const char *to = o->item->to;
    char state[LT_PATH_BYTES];
    *same = false;
    if (t->force) {
        return LT_OK;
    }
    if (t->at.at == LT_AT_S3) {
        lt_s3_object there;
        const lt_err err = lt_s3_head(t->s3, h, t->at.place, to, false, &there);
        *same = err == LT_OK && !there.denied && there.size_bytes == o->size_bytes &&
                same_second(o->modified_s, there.mtime_s);
        return err == LT_ERR_NOT_FOUND ? LT_OK : err;
    }
    struct stat st;
    if (stat(to, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == o->size_bytes) {
        if (o->modified_s > 0.0) {
            *same = same_second(o->modified_s, lt_clock_of(st.st_mtim));
        } else if (o->check.kind != LT_DIGEST_NONE) {
            LT_TRY(has_check(to, &o->check, o->size_bytes, same));
        }
    }
    /* A copy that was killed between the rename and its end has left its state. */
    if (*same && snprintf(state, sizeof state, "%s%s", to, LT_TARGET_STATE) < (int)sizeof state) {
        lt_state_forget(state);
    }
    return LT_OK;
}

/* Reserve room for the whole file, so that a full disk is noticed before hours of copying. */
static lt_err reserve(lt_landing *l) {
    const int64_t n = l->opened->size_bytes;
    if (n > 0 && fallocate(l->fd, 0, 0, n) != 0) {
        if (errno != EOPNOTSUPP && errno != ENOSYS) {
            LT_FAIL(LT_ERR_IO, "%s: no room for %lld bytes: %s", l->data_path, (long long)n,
                    strerror(errno));
        }
        struct statvfs v;
        if (fstatvfs(l->fd, &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize < (uint64_t)n) {
            LT_FAIL(LT_ERR_IO, "%s: no room for %lld bytes: the disk has %lld", l->data_path,
                    (long long)n, (long long)((uint64_t)v.f_bavail * v.f_frsize));
        }
    }
    if (ftruncate(l->fd, (off_t)n) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", l->data_path, strerror(errno));
    }
    return LT_OK;
}

static lt_err open_file(lt_landing *l, lt_web *h, const char *key) {
    const char *to = l->opened->item->to;
    char path[LT_PATH_BYTES], unused[LT_STATE_UPLOAD_BYTES];
    struct stat st;
    bool found = false;

    LT_TRY(lt_file_make_parent(to));
    LT_TRY(lt_file_may_replace(to));
    if (snprintf(path, sizeof path, "%s%s", to, LT_TARGET_STATE) >= (int)sizeof path ||
        snprintf(l->data_path, sizeof l->data_path, "%s%s", to, LT_TARGET_DATA) >=
            (int)sizeof l->data_path) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", to);
    }
    l->known = calloc((size_t)l->n_parts + 1, sizeof *l->known);
    if (l->known == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld parts", (long long)l->n_parts);
    }
    LT_TRY(lt_state_open(&l->state, path, key, l->target->wait ? lt_web_stop(h) : NULL, unused,
                         l->known, l->n_parts, &found));
    l->fd = open(l->data_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (l->fd < 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", l->data_path, strerror(errno));
    }
    if (found && (fstat(l->fd, &st) != 0 || st.st_size != l->opened->size_bytes)) {
        found = false;
        memset(l->known, 0, (size_t)l->n_parts * sizeof *l->known);
        LT_TRY(lt_state_begin(l->state));
    }
    return found ? LT_OK : reserve(l);
}

/* States of uploads are kept in the cache folder, because a store has no place for them beside the
 * object. */
static lt_err upload_state(char out[LT_PATH_BYTES], const lt_landing *l) {
    char folder[LT_PATH_BYTES], sub[LT_PATH_BYTES], name[LT_STATE_KEY_BYTES + 16];
    char key[LT_STATE_KEY_BYTES];
    LT_TRY(lt_cache_dir(folder));
    LT_TRY(lt_path_join(sub, folder, "copy"));
    LT_TRY(lt_file_make_dirs(sub));
    lt_state_key(key, l->target->at.place, "", l->opened->item->to, 0, 0);
    (void)snprintf(name, sizeof name, "%s%s", key, LT_TARGET_STATE);
    return lt_path_join(out, sub, name);
}

static lt_err open_s3(lt_landing *l, lt_web *h, const char *key) {
    const lt_target *t = l->target;
    const char *to = l->opened->item->to;
    char path[LT_PATH_BYTES];
    lt_state_part none[1];
    bool found = false;

    if (l->n_parts <= 1) {
        return LT_OK;
    }
    l->parts = calloc((size_t)l->n_parts, sizeof *l->parts);
    if (l->parts == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld parts", (long long)l->n_parts);
    }
    LT_TRY(upload_state(path, l));
    LT_TRY(lt_state_open(&l->state, path, key, t->wait ? lt_web_stop(h) : NULL, l->upload, none, 0,
                         &found));
    if (found && l->upload[0] != '\0') {
        const lt_err err = lt_s3_upload_parts(t->s3, h, t->at.place, to, l->upload, l->parts,
                                              l->n_parts);
        if (err == LT_OK) {
            return LT_OK;
        }
        if (err != LT_ERR_NOT_FOUND) {
            return err;
        }
        memset(l->parts, 0, (size_t)l->n_parts * sizeof *l->parts);
        LT_TRY(lt_state_begin(l->state)); /* The service no longer has the upload. */
    }
    l->upload[0] = '\0';
    LT_TRY(lt_s3_upload_begin(t->s3, h, t->at.place, to, l->opened->modified_s, l->upload));
    return lt_state_add_upload(l->state, l->upload);
}

lt_err lt_landing_open(lt_landing **out, const lt_target *t, lt_web *h, const lt_opened_item *o,
                       int64_t part_bytes, int64_t n_parts) {
    char key[LT_STATE_KEY_BYTES];
    lt_err err = LT_OK;
    lt_landing *l = calloc(1, sizeof *l);

    if (l == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", o->item->shown);
    }
    *l = (lt_landing){
        .target = t, .opened = o, .part_bytes = part_bytes, .n_parts = n_parts, .fd = -1};
    lt_state_key(key, o->item->shown, o->version, o->item->to, o->size_bytes, part_bytes);
    LT_TRY_DONE(t->at.at == LT_AT_S3 ? open_s3(l, h, key) : open_file(l, h, key));
    *out = l;
    return LT_OK;
done:
    /* Keep what an earlier copy has left, unless there is no room for the file. */
    lt_landing_close(l, h, err != LT_ERR_IO || l->fd < 0);
    return err;
}

bool lt_landing_compares(const lt_landing *l) {
    return l->target->at.at == LT_AT_S3;
}

lt_err lt_landing_recall(lt_landing *l, int64_t part, unsigned char *data, size_t bytes,
                         bool *have) {
    size_t got = 0;
    *have = false;
    if (l->parts != NULL && l->parts[part].md5[0] != '\0') {
        char md5[33];
        LT_TRY(lt_digest_hex(md5, LT_DIGEST_MD5, data, bytes));
        *have = strcmp(md5, l->parts[part].md5) == 0;
    }
    if (l->known == NULL || !l->known[part].has) {
        return LT_OK;
    }
    while (got < bytes) {
        const ssize_t n = pread(l->fd, data + got, bytes - got,
                                (off_t)(part * l->part_bytes + (int64_t)got));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return LT_OK; /* The part is copied again. */
        }
        got += (size_t)n;
    }
    *have = XXH3_64bits(data, bytes) == l->known[part].hash;
    return LT_OK;
}

static lt_err put_file(lt_landing *l, int64_t part, const unsigned char *data, size_t bytes) {
    for (size_t put = 0; put < bytes;) {
        const ssize_t n = pwrite(l->fd, data + put, bytes - put,
                                 (off_t)(part * l->part_bytes + (int64_t)put));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            LT_FAIL(LT_ERR_IO, "%s: %s", l->data_path, strerror(errno));
        }
        put += (size_t)n;
    }
    return l->n_parts > 1 ? lt_state_add_part(l->state, part, XXH3_64bits(data, bytes)) : LT_OK;
}

lt_err lt_landing_put(lt_landing *l, lt_web *h, int64_t part, const unsigned char *data,
                      size_t bytes) {
    const lt_target *t = l->target;
    const char *to = l->opened->item->to;
    if (t->at.at != LT_AT_S3) {
        return put_file(l, part, data, bytes);
    }
    if (l->parts == NULL) {
        return lt_s3_put(t->s3, h, t->at.place, to, data, bytes, l->opened->modified_s);
    }
    LT_TRY(lt_digest_hex(l->parts[part].md5, LT_DIGEST_MD5, data, bytes));
    return lt_s3_upload_part(t->s3, h, t->at.place, to, l->upload, part + 1, data, bytes,
                             &l->parts[part]);
}

static lt_err end_file(lt_landing *l) {
    const char *to = l->opened->item->to;
    const double at_s = l->opened->modified_s;
    const struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = (time_t)at_s, .tv_nsec = (long)((at_s - floor(at_s)) * 1e9)}};
    if (at_s > 0.0 && futimens(l->fd, times) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: date: %s", l->data_path, strerror(errno));
    }
    if (fsync(l->fd) != 0) {
        LT_FAIL(LT_ERR_IO, "sync of %s: %s", l->data_path, strerror(errno));
    }
    if (rename(l->data_path, to) != 0) {
        LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", l->data_path, to, strerror(errno));
    }
    l->ended = true;
    return lt_file_sync_parent(to);
}

lt_err lt_landing_end(lt_landing *l, lt_web *h) {
    const lt_target *t = l->target;
    const char *to = l->opened->item->to;
    if (t->at.at != LT_AT_S3) {
        return end_file(l);
    }
    if (l->n_parts == 0) {
        LT_TRY(lt_landing_put(l, h, 0, (const unsigned char *)"", 0));
    } else if (l->parts != NULL) {
        LT_TRY(lt_s3_upload_end(t->s3, h, t->at.place, to, l->upload, l->parts, l->n_parts));
    }
    l->ended = true;
    return LT_OK;
}

void lt_landing_close(lt_landing *l, lt_web *h, bool keep) {
    if (l == NULL) {
        return;
    }
    /* A single part, and an upload that never began, leave nothing to resume. */
    keep = keep && !l->ended && l->n_parts > 1 &&
           (l->target->at.at != LT_AT_S3 || l->upload[0] != '\0');
    if (!l->ended && !keep) {
        if (l->fd >= 0) {
            (void)unlink(l->data_path);
        }
        if (l->upload[0] != '\0' && lt_s3_upload_abort(l->target->s3, h, l->target->at.place,
                                                       l->opened->item->to, l->upload) != LT_OK) {
            lt_log_warn("%s; the service keeps the parts until its rules remove them",
                        lt_error_message());
        }
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    lt_state_close(l->state, keep);
    free(l->known);
    free(l->parts);
    free(l);
}
