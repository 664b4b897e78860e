/* source.c: see source.h. */
#include "platform/copy/source.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "platform/copy/target.h"

#define MOST_BYTES ((int64_t)1 << 50) /* No service stores a file of a pebibyte. */

static lt_err check_size(const char *shown, int64_t size_bytes) {
    if (size_bytes < 0 || size_bytes > MOST_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "%s is said to have %lld bytes; at most %lld", shown,
                (long long)size_bytes, (long long)MOST_BYTES);
    }
    return LT_OK;
}

static void item_free(lt_item *item) {
    free(item->from);
    free(item->name);
    free(item->shown);
    free(item->to);
}

lt_err lt_items_add(lt_items *l, const char *from, const char *name, const char *shown,
                    int64_t size_bytes, double modified_s) {
    lt_item item = {
        .size_bytes = size_bytes, .modified_s = modified_s, .check.kind = LT_DIGEST_NONE};
    if (l->n == LT_MOST_ITEMS) {
        LT_FAIL(LT_ERR_LIMIT, "more than %zu files", LT_MOST_ITEMS);
    }
    LT_TRY(check_size(shown, size_bytes));
    item.from = strdup(from);
    item.name = strdup(name);
    item.shown = strdup(shown);
    if (l->n == l->room) {
        const size_t room = l->room == 0 ? 64 : 2 * l->room;
        lt_item *grown = realloc(l->rows, room * sizeof *grown);
        if (grown != NULL) {
            l->rows = grown;
            l->room = room;
        }
    }
    if (l->n == l->room || item.from == NULL || item.name == NULL || item.shown == NULL) {
        item_free(&item);
        LT_FAIL(LT_ERR_OOM, "a list of %zu files", l->n);
    }
    l->rows[l->n++] = item;
    return LT_OK;
}

void lt_items_cut(lt_items *l, size_t n) {
    for (size_t i = n; i < l->n; i++) {
        item_free(&l->rows[i]);
    }
    l->n = n;
}

void lt_items_free(lt_items *l) {
    lt_items_cut(l, 0);
    free(l->rows);
    *l = (lt_items){0};
}

/* Files of a folder and of the folders below it, through symbolic links, without the files of
 * unfinished copies. */
static lt_err list_folder(const lt_copy_source *s, lt_items *out) {
    char path[LT_PATH_BYTES];
    char *roots[2] = {path, NULL};
    lt_err err = LT_OK;
    size_t n = strlen(s->at.path);
    FTS *tree;
    FTSENT *e;

    while (n > 1 && s->at.path[n - 1] == '/') {
        n--;
    }
    (void)snprintf(path, sizeof path, "%.*s", (int)n, s->at.path);
    tree = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL) {
        LT_FAIL(LT_ERR_IO, "folder %s: %s", path, strerror(errno));
    }
    while ((e = fts_read(tree)) != NULL) {
        const char *name = e->fts_path + n;
        if (e->fts_info == FTS_D || e->fts_info == FTS_DP ||
            lt_path_has_suffix(e->fts_path, LT_TARGET_DATA) ||
            lt_path_has_suffix(e->fts_path, LT_TARGET_STATE)) {
            continue;
        }
        if (e->fts_info != FTS_F) {
            LT_FAIL_DONE(LT_ERR_IO, "%s: %s", e->fts_path,
                         e->fts_info == FTS_DC       ? "the folder contains itself"
                         : e->fts_info == FTS_SLNONE ? "a symbolic link to nothing"
                         : e->fts_errno != 0         ? strerror(e->fts_errno)
                                                     : "not a regular file");
        }
        LT_TRY_DONE(lt_items_add(out, e->fts_path, name + strspn(name, "/"), e->fts_path,
                                 e->fts_statp->st_size, lt_clock_of(e->fts_statp->st_mtim)));
    }
done:
    (void)fts_close(tree);
    return err;
}

typedef struct {
    const lt_copy_source *source;
    lt_items *out;
    char commit[LT_HUB_COMMIT_BYTES];
} listing;

static lt_err found_object(void *ctx, const char *key, int64_t size_bytes, double modified_s) {
    listing *l = ctx;
    const lt_location *at = &l->source->at;
    const size_t n = strlen(at->path);
    char shown[LT_PATH_BYTES];
    if (strncmp(key, at->path, n) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "the list has '%.100s', which is not below it", key);
    }
    if (key[strlen(key) - 1] == '/' && size_bytes == 0) {
        return LT_OK; /* Some programs mark a folder in this way. */
    }
    (void)snprintf(shown, sizeof shown, "s3://%s/%s", at->place, key);
    return lt_items_add(l->out, key, key + n, shown, size_bytes, modified_s);
}

static lt_err found_file(void *ctx, const char *name, int64_t size_bytes,
                         const lt_checksum *check) {
    listing *l = ctx;
    const lt_location *at = &l->source->at;
    char shown[LT_PATH_BYTES + 600];
    if (!at->many && strcmp(name, at->path) != 0) {
        return LT_OK;
    }
    (void)snprintf(shown, sizeof shown, "hf://%s%s%s@%s/%s",
                   strcmp(at->kind, "models") == 0 ? "" : at->kind,
                   strcmp(at->kind, "models") == 0 ? "" : "/", at->place, at->revision, name);
    LT_TRY(lt_items_add(l->out, name, at->many ? name : lt_location_name(name), shown, size_bytes,
                        0.0));
    l->out->rows[l->out->n - 1].check = *check;
    return LT_OK;
}

lt_err lt_copy_source_list(lt_copy_source *s, lt_web *h, lt_items *out) {
    listing l = {.source = s, .out = out};
    struct stat st;
    switch (s->at.at) {
    case LT_AT_FILE:
        if (stat(s->at.path, &st) != 0) {
            LT_FAIL(errno == ENOENT ? LT_ERR_NOT_FOUND : LT_ERR_IO, "%s: %s", s->at.path,
                    strerror(errno));
        }
        s->at.many = S_ISDIR(st.st_mode);
        LT_TRY(s->at.many ? list_folder(s, out)
                          : lt_items_add(out, s->at.path, lt_location_name(s->at.path), s->at.path,
                                         st.st_size, lt_clock_of(st.st_mtim)));
        break;
    case LT_AT_S3:
        LT_TRY(s->at.many ? lt_s3_list(s->s3, h, s->at.place, s->at.path, found_object, &l)
                          : lt_items_add(out, s->at.path, lt_location_name(s->at.path), s->at.shown,
                                         0, 0.0));
        break;
    case LT_AT_WEB:
        LT_TRY(lt_items_add(out, s->at.path, lt_location_name(s->at.shown), s->at.shown, 0, 0.0));
        break;
    case LT_AT_HUB:
        LT_TRY(lt_hub_list(s->hub, h, &s->at, l.commit, found_file, &l));
        /* From here on the files are those of this commit, even if the branch changes. */
        (void)snprintf(s->at.revision, sizeof s->at.revision, "%s", l.commit);
        break;
    }
    if (out->n == 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: there is no file", s->at.shown);
    }
    return LT_OK;
}

lt_err lt_copy_source_doubt(const lt_opened_item *o, lt_web *h, bool *fits) {
    const lt_copy_source *s = o->source;
    *fits = true;
    return s->at.at == LT_AT_S3 && o->check.part_bytes > 0
               ? lt_s3_even(s->s3, h, s->at.place, o->item->from, &o->object, fits)
               : LT_OK;
}

static void file_version(char version[256], const struct stat *st) {
    (void)snprintf(version, 256, "%lld %lld.%09ld %llu", (long long)st->st_size,
                   (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
                   (unsigned long long)st->st_ino);
}

lt_err lt_copy_source_check(const lt_opened_item *o) {
    struct stat st;
    char version[256];
    if (o->fd < 0) {
        return LT_OK;
    }
    if (fstat(o->fd, &st) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", o->item->from, strerror(errno));
    }
    file_version(version, &st);
    if (strcmp(version, o->version) != 0) {
        LT_FAIL(LT_ERR_STATE, "%s changed while it was copied", o->item->from);
    }
    return LT_OK;
}

static lt_err open_file(const lt_item *item, lt_opened_item *o) {
    struct stat st;
    o->fd = open(item->from, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* Opening a pipe would wait. */
    if (o->fd < 0 || fstat(o->fd, &st) != 0) {
        LT_FAIL(errno == ENOENT ? LT_ERR_NOT_FOUND : LT_ERR_IO, "%s: %s", item->from,
                strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        LT_FAIL(LT_ERR_ARG, "%s: not a regular file", item->from);
    }
    o->size_bytes = st.st_size;
    o->modified_s = lt_clock_of(st.st_mtim);
    file_version(o->version, &st);
    return LT_OK;
}

/* Read a web server's headers for a file, of which the first byte is requested. */
static lt_err open_web(lt_opened_item *o, lt_web *h) {
    const char *shown = o->item->shown;
    lt_web_reply reply;
    char text[200];
    long long total = -1;
    lt_err err = LT_OK;

    LT_TRY(lt_hub_file_open(&o->hub_file, NULL, o->item->from, shown));
    LT_TRY(lt_hub_file_probe(o->hub_file, h, &reply));
    o->ranges = reply.status == 206;
    if (reply.status == 206 || reply.status == 416) { /* 416: there is no first byte. */
        if (lt_web_header(&reply, "content-range", text, sizeof text)) {
            const char *slash = strrchr(text, '/');
            total = slash != NULL && slash[1] >= '0' && slash[1] <= '9' ? atoll(slash + 1) : -1;
        }
        total = reply.status == 416 && total != 0 ? -1 : total;
    } else if (reply.status == 200) {
        total = lt_web_header(&reply, "content-length", text, sizeof text) ? atoll(text) : -1;
    } else {
        LT_FAIL_DONE(reply.status == 404 || reply.status == 410 ? LT_ERR_NOT_FOUND : LT_ERR_REMOTE,
                     "%s: status %d", shown, reply.status);
    }
    if (total < 0) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "%s: the server does not say how long it is", shown);
    }
    o->size_bytes = total;
    if (lt_web_header(&reply, "last-modified", text, sizeof text)) {
        o->modified_s = lt_s3_time(text);
    }
    if (!lt_web_header(&reply, "etag", o->version, sizeof o->version)) {
        (void)lt_web_header(&reply, "last-modified", o->version, sizeof o->version);
    }
done:
    lt_web_reply_free(&reply);
    return err;
}

static lt_err open_hub(lt_opened_item *o) {
    const lt_copy_source *s = o->source;
    char *url = NULL;
    lt_err err;
    LT_TRY(lt_hub_url(&url, s->hub, &s->at, s->at.revision, o->item->from));
    err = lt_hub_file_open(&o->hub_file, s->hub, url, o->item->shown);
    free(url);
    o->size_bytes = o->item->size_bytes;
    o->check = o->item->check;
    (void)snprintf(o->version, sizeof o->version, "%s", o->check.hex);
    return err;
}

lt_err lt_copy_source_open(const lt_copy_source *s, lt_web *h, const lt_item *item,
                           lt_opened_item *out) {
    lt_opened_item o = {.source = s,
                        .item = item,
                        .fd = -1,
                        .ranges = true,
                        .check.kind = LT_DIGEST_NONE,
                        .modified_s = item->modified_s};
    lt_err err = LT_OK;
    switch (s->at.at) {
    case LT_AT_FILE:
        LT_TRY_DONE(open_file(item, &o));
        break;
    case LT_AT_S3:
        LT_TRY_DONE(lt_s3_head(s->s3, h, s->at.place, item->from, true, &o.object));
        o.size_bytes = o.object.size_bytes;
        o.modified_s = o.object.modified_s;
        o.check = o.object.check;
        (void)snprintf(o.version, sizeof o.version, "%s", o.object.etag);
        break;
    case LT_AT_WEB:
        LT_TRY_DONE(open_web(&o, h));
        break;
    case LT_AT_HUB:
        LT_TRY_DONE(open_hub(&o));
        break;
    }
    LT_TRY_DONE(check_size(item->shown, o.size_bytes));
    *out = o;
    return LT_OK;
done:
    lt_copy_source_close(&o);
    if (err == LT_ERR_NOT_FOUND && s->at.at == LT_AT_S3 && !s->at.many) {
        LT_FAIL(err,
                "%s: there is no such object, or no such bucket (%s/ would mean all objects "
                "below it)",
                item->shown, item->shown);
    }
    return err;
}

static lt_err read_file(const lt_opened_item *o, lt_web *h, int64_t at, int64_t n,
                        unsigned char *into) {
    for (int64_t got = 0; got < n;) {
        const ssize_t more = pread(o->fd, into + got, (size_t)(n - got), (off_t)(at + got));
        if (more < 0 && errno == EINTR) {
            continue;
        }
        if (more < 0) {
            LT_FAIL(LT_ERR_IO, "%s: %s", o->item->from, strerror(errno));
        }
        if (more == 0) {
            LT_FAIL(LT_ERR_STATE, "%s became shorter while it was copied: %lld of %lld bytes",
                    o->item->from, (long long)(at + got), (long long)o->size_bytes);
        }
        got += more;
        lt_web_read_locally(h, more);
    }
    return LT_OK;
}

lt_err lt_copy_source_read(const lt_opened_item *o, lt_web *h, int64_t at, int64_t n,
                           unsigned char *into) {
    const lt_copy_source *s = o->source;
    switch (s->at.at) {
    case LT_AT_FILE:
        return read_file(o, h, at, n, into);
    case LT_AT_S3:
        return lt_s3_read(s->s3, h, s->at.place, o->item->from, &o->object, at, n, into);
    case LT_AT_WEB:
        return lt_hub_file_read(o->hub_file, h, o->version, o->in_one, o->size_bytes, at, n, into);
    case LT_AT_HUB:
        return lt_hub_file_read(o->hub_file, h, "", false, o->size_bytes, at, n, into);
    }
    return LT_OK;
}

void lt_copy_source_close(lt_opened_item *o) {
    if (o->fd >= 0) {
        close(o->fd);
    }
    o->fd = -1;
    lt_hub_file_close(o->hub_file);
    o->hub_file = NULL;
}
