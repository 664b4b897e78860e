/* files.c: see files.h. Entries are in an array in the order of their creation, protected by a
 * mutex. File system calls are made without it, except to delete. */
#include "serve/api/files/files.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/option.h"
#include "platform/copy/digest.h"

#define MAX_ENTRY_BYTES ((size_t)64 << 10) /* Most bytes of the description of a file. */

typedef struct {
    lt_file_entry e;
    int64_t held;
} slot;

struct lt_files {
    lt_files_options o;
    char dir[LT_PATH_BYTES];
    pthread_mutex_t lock;
    slot *slots;
    size_t n, room;
};

bool lt_owner_name(const char *key, char out[LT_OWNER_NAME_BYTES]) {
    out[0] = '\0';
    return key[0] == '\0' || lt_digest_hex(out, LT_DIGEST_SHA256, key, strlen(key)) == LT_OK;
}

const char *lt_file_purpose_find(const char *name) {
    static const char *const purposes[] = {"batch", "batch_output", "fine-tune",
                                           "fine-tune-results"};
    const char *const *found = lt_name_find(name, purposes, sizeof *purposes,
                                            sizeof purposes / sizeof *purposes);
    return found != NULL ? *found : NULL;
}

lt_err lt_files_path(const lt_files *f, const char *id, char out[LT_PATH_BYTES]) {
    return lt_path_join(out, f->dir, id);
}

static lt_err description_path(const lt_files *f, const char *id, char out[LT_PATH_BYTES]) {
    char name[80];
    snprintf(name, sizeof name, "%s.json", id);
    return lt_path_join(out, f->dir, name);
}

/* ---- Under the lock ---- */

static slot *find(const lt_files *f, const char *id) {
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->slots[i].e.id, id) == 0) {
            return &f->slots[i];
        }
    }
    return NULL;
}

static bool insert(lt_files *f, const lt_file_entry *e) {
    size_t at = f->n;
    if (f->n == f->room) {
        const size_t room = f->room > 0 ? 2 * f->room : 64;
        slot *slots = realloc(f->slots, room * sizeof *slots);
        if (slots == NULL) {
            return false;
        }
        f->slots = slots;
        f->room = room;
    }
    while (at > 0 && f->slots[at - 1].e.order_us > e->order_us) {
        at--;
    }
    memmove(&f->slots[at + 1], &f->slots[at], (f->n - at) * sizeof *f->slots);
    f->slots[at] = (slot){.e = *e};
    f->n++;
    return true;
}

/* Remove a file from the disk. The description goes first: without it, the content is removed at
 * the next start. */
static void discard(const lt_files *f, const char *id) {
    char path[LT_PATH_BYTES];
    if (description_path(f, id, path) == LT_OK) {
        (void)unlink(path);
    }
    if (lt_files_path(f, id, path) == LT_OK) {
        (void)unlink(path);
    }
}

static void take_out(lt_files *f, slot *s) {
    discard(f, s->e.id);
    memmove(s, s + 1, (size_t)(f->slots + f->n - s - 1) * sizeof *s);
    f->n--;
}

static void forget_old(lt_files *f) {
    const int64_t now = (int64_t)lt_clock_unix_s();
    for (size_t i = f->n; i-- > 0;) {
        if (f->slots[i].e.expires > 0 && f->slots[i].e.expires <= now && f->slots[i].held == 0) {
            take_out(f, &f->slots[i]);
        }
    }
}

static bool may_add(lt_files *f, const lt_file_entry *e, size_t n, lt_api_error *why) {
    int64_t files = 0, bytes = 0;
    forget_old(f);
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->slots[i].e.owner, e->owner) == 0) {
            files++;
            bytes += f->slots[i].e.bytes;
        }
    }
    if (files < f->o.max_files && bytes + (int64_t)n <= f->o.max_bytes) {
        return true;
    }
    return lt_api_refuse(why, "file",
                         "%lld files of %lld bytes are kept; with this one of %zu bytes they would "
                         "be more than %lld files (--files) or %lld bytes (--files-bytes)",
                         (long long)files, (long long)bytes, n, (long long)f->o.max_files,
                         (long long)f->o.max_bytes);
}

/* ---- Descriptions ---- */

static lt_err write_description(const lt_files *f, const lt_file_entry *e) {
    char path[LT_PATH_BYTES];
    lt_json_out o = {0};
    lt_err err;

    LT_TRY(description_path(f, e->id, path));
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "id", e->id);
    lt_out_key_str(&o, "owner", e->owner);
    lt_out_key_str(&o, "filename", e->name);
    lt_out_key_str(&o, "purpose", e->purpose);
    lt_out_key_int(&o, "created_at", e->created);
    lt_out_key_int(&o, "order_us", e->order_us);
    lt_out_key_int(&o, "expires_at", e->expires);
    lt_out_shut(&o, '}');
    if (o.failed) {
        lt_out_free(&o);
        LT_FAIL(LT_ERR_OOM, "file %s", e->id);
    }
    err = lt_file_write_atomic(path, o.data, o.n);
    lt_out_free(&o);
    return err;
}

static lt_err read_description(const lt_files *f, const char *name, lt_file_entry *e) {
    char path[LT_PATH_BYTES];
    const char *id = NULL, *owner = NULL, *filename = NULL, *purpose = NULL;
    struct stat st;
    json_t *tree = NULL;
    lt_err err = LT_OK;

    LT_TRY(lt_path_join(path, f->dir, name));
    LT_TRY(lt_json_load(&tree, path, MAX_ENTRY_BYTES));
    LT_TRY_DONE(lt_json_str(tree, "id", &id, false, path));
    LT_TRY_DONE(lt_json_str(tree, "owner", &owner, false, path));
    LT_TRY_DONE(lt_json_str(tree, "filename", &filename, false, path));
    LT_TRY_DONE(lt_json_str(tree, "purpose", &purpose, false, path));
    *e = (lt_file_entry){.purpose = lt_file_purpose_find(purpose)};
    LT_TRY_DONE(lt_json_i64(tree, "created_at", &e->created, false, path));
    LT_TRY_DONE(lt_json_i64(tree, "order_us", &e->order_us, false, path));
    LT_TRY_DONE(lt_json_i64(tree, "expires_at", &e->expires, false, path));
    if (e->purpose == NULL) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: purpose %s", path, purpose);
    }
    if (strlen(id) >= sizeof e->id || strlen(owner) >= sizeof e->owner ||
        strlen(filename) >= sizeof e->name || strncmp(id, name, strlen(id)) != 0 ||
        strcmp(name + strlen(id), ".json") != 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: a name is too long, or not the file's", path);
    }
    memcpy(e->id, id, strlen(id) + 1);
    memcpy(e->owner, owner, strlen(owner) + 1);
    memcpy(e->name, filename, strlen(filename) + 1);
    LT_TRY_DONE(lt_files_path(f, e->id, path));
    if (stat(path, &st) != 0) {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s: the content of the file is missing", path);
    }
    e->bytes = (int64_t)st.st_size;
done:
    json_decref(tree);
    return err;
}

/* Uploads interrupted by a crash have left contents without a description, or with ".tmp". Outputs
 * of batches are such contents until their batch has ended; their names have a second dash. */
static void remove_rest(const lt_files *f, const char *name) {
    char path[LT_PATH_BYTES];
    const bool output = strchr(name, '-') != strrchr(name, '-');
    if ((lt_path_has_suffix(name, ".tmp") || (!output && find(f, name) == NULL)) &&
        lt_path_join(path, f->dir, name) == LT_OK) {
        (void)unlink(path);
    }
}

static lt_err read_folder(lt_files *f) {
    char **names = NULL;
    size_t n = 0;
    lt_err err = LT_OK;

    LT_TRY(lt_file_list(&names, &n, f->dir));
    for (size_t i = 0; i < n; i++) {
        lt_file_entry e;
        if (!lt_path_has_suffix(names[i], ".json")) {
            continue;
        }
        if (read_description(f, names[i], &e) != LT_OK) {
            lt_log_warn("serve: %s", lt_error_message());
        } else if (!insert(f, &e)) {
            LT_FAIL_DONE(LT_ERR_OOM, "%s: %zu files", f->dir, n);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (!lt_path_has_suffix(names[i], ".json")) {
            remove_rest(f, names[i]);
        }
    }
done:
    lt_file_list_free(names, n);
    return err;
}

/* ---- The door ---- */

lt_err lt_files_open(lt_files **out, const lt_files_options *o) {
    lt_err err = LT_OK;
    lt_files *f = calloc(1, sizeof *f);
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "files");
    }
    f->o = *o;
    pthread_mutex_init(&f->lock, NULL);
    LT_TRY_DONE(lt_path_join(f->dir, o->dir, "files"));
    LT_TRY_DONE(lt_file_make_dirs(f->dir));
    LT_TRY_DONE(read_folder(f));
    *out = f;
    f = NULL;
done:
    lt_files_close(f);
    return err;
}

void lt_files_close(lt_files *f) {
    if (f != NULL) {
        pthread_mutex_destroy(&f->lock);
        free(f->slots);
        free(f);
    }
}

static lt_err write_file(const lt_files *f, lt_file_entry *e, const void *data, size_t n) {
    char path[LT_PATH_BYTES];
    struct stat st;
    LT_TRY(lt_files_path(f, e->id, path));
    if (data != NULL) {
        LT_TRY(lt_file_write_atomic(path, data, n));
    }
    if (stat(path, &st) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: it does not exist", path);
    }
    e->bytes = (int64_t)st.st_size;
    e->order_us = (int64_t)(lt_clock_unix_s() * 1e6);
    return write_description(f, e);
}

/* The limits are checked before and after the content is written, so that two uploads at once do
 * not exceed them together. */
bool lt_files_put(lt_files *f, lt_file_entry *entry, const void *data, size_t n, lt_api_error *e) {
    lt_err err;
    bool ok;

    pthread_mutex_lock(&f->lock);
    ok = n == 0 || may_add(f, entry, n, e);
    pthread_mutex_unlock(&f->lock);
    if (!ok) {
        discard(f, entry->id);
        return false;
    }
    err = write_file(f, entry, data, n);
    if (err != LT_OK) {
        if (n > 0) { /* Results of a batch are kept, because its end may be tried again. */
            discard(f, entry->id);
        }
        return lt_api_refuse_error(e, NULL, err);
    }
    pthread_mutex_lock(&f->lock);
    /* It already exists if the end of a batch is written again. */
    if (find(f, entry->id) == NULL) {
        ok = n == 0 || may_add(f, entry, n, e);
        ok = ok && (insert(f, entry) || lt_api_refuse_oom(e));
    }
    if (!ok && n > 0) {
        discard(f, entry->id);
    }
    pthread_mutex_unlock(&f->lock);
    return ok;
}

bool lt_files_get(lt_files *f, const char *id, const char *owner, bool hold, lt_file_entry *out) {
    slot *s;
    bool found;
    pthread_mutex_lock(&f->lock);
    forget_old(f);
    s = find(f, id);
    found = s != NULL && strcmp(s->e.owner, owner) == 0;
    if (found) {
        s->held += hold;
        *out = s->e;
    }
    pthread_mutex_unlock(&f->lock);
    return found;
}

void lt_files_release(lt_files *f, const char *id) {
    slot *s;
    pthread_mutex_lock(&f->lock);
    s = find(f, id);
    if (s != NULL && s->held > 0) {
        s->held--;
    }
    pthread_mutex_unlock(&f->lock);
}

bool lt_files_delete(lt_files *f, const char *id, const char *owner, lt_api_error *e) {
    slot *s;
    bool ok = false;
    pthread_mutex_lock(&f->lock);
    forget_old(f);
    s = find(f, id);
    if (s == NULL || strcmp(s->e.owner, owner) != 0) {
        lt_api_refuse(e, "file_id", "No such File object: %.80s", id);
        e->status = 404;
    } else if (s->held > 0) {
        lt_api_refuse(e, "file_id",
                      "%s is the input of a batch or a job that has not ended: cancel it first",
                      id);
    } else {
        take_out(f, s);
        ok = true;
    }
    pthread_mutex_unlock(&f->lock);
    return ok;
}

lt_file_entry *lt_files_list(lt_files *f, const char *owner, size_t *n) {
    lt_file_entry *list;
    *n = 0;
    pthread_mutex_lock(&f->lock);
    forget_old(f);
    list = malloc((f->n + 1) * sizeof *list);
    for (size_t i = 0; list != NULL && i < f->n; i++) {
        if (strcmp(f->slots[i].e.owner, owner) == 0) {
            list[(*n)++] = f->slots[i].e;
        }
    }
    pthread_mutex_unlock(&f->lock);
    return list;
}

lt_files_stats lt_files_get_stats(lt_files *f) {
    lt_files_stats stats = {0};
    pthread_mutex_lock(&f->lock);
    stats.files = (int64_t)f->n;
    for (size_t i = 0; i < f->n; i++) {
        stats.bytes += f->slots[i].e.bytes;
    }
    pthread_mutex_unlock(&f->lock);
    return stats;
}
