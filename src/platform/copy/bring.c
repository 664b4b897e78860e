/* bring.c: lt_copy_bring of lateen/copy.h: copies models from elsewhere into caches on this
 * machine.
 *
 * The hub's cache is filled in the order blobs, links, reference, so a program that stops in
 * between leaves nothing that looks complete but is not; a blob gets its name when it is complete.
 * Several processes may fetch the same model: for each file, one copies it and the others wait. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/log.h"
#include "platform/copy/session.h"

/* The files of a model's repository that a program needs. All are in its root. */
#define MODEL_FILES                                                                                \
    "*.json,*.safetensors,*.jinja,tokenizer.model,*.tiktoken,merges.txt,vocab.txt,vocab.bpe"

/* Keep only the files of a model, or those that the options name. */
static lt_err choose_model(lt_items *items, const lt_copy_options *o, const char *shown) {
    size_t n_safetensors = 0, n_gguf = 0;
    lt_copy_options how = *o;
    if (o->include[0] != '\0' || o->exclude[0] != '\0') {
        lt_copy_choose(items, o);
        return LT_OK;
    }
    for (size_t i = 0; i < items->n; i++) {
        n_safetensors += lt_path_has_suffix(items->rows[i].name, ".safetensors");
        n_gguf += lt_path_has_suffix(items->rows[i].name, ".gguf");
    }
    if (n_safetensors == 0 && n_gguf > 0) {
        LT_FAIL(LT_ERR_ARG, "%s has %zu GGUF files and no safetensors: name one, as in %s/FILE",
                shown, n_gguf, shown);
    }
    how.include = MODEL_FILES;
    how.exclude = "*/*,consolidated*";
    lt_copy_choose(items, &how);
    return LT_OK;
}

/* snapshot/NAME -> blobs/CHECKSUM, with as many ".." as NAME has folders. */
static lt_err link_blob(const char *snapshot, const lt_item *item) {
    char path[LT_PATH_BYTES], blob[LT_PATH_BYTES] = "../..", there[8];
    size_t n = strlen(blob);
    LT_TRY(lt_path_join(path, snapshot, item->from));
    for (const char *p = item->from; *p != '\0'; p++) {
        n += (size_t)snprintf(blob + n, sizeof blob - n, "%s", *p == '/' ? "/.." : "");
    }
    (void)snprintf(blob + n, sizeof blob - n, "/blobs/%s", item->check.hex);
    LT_TRY(lt_file_make_parent(path));
    if (readlink(path, there, sizeof there) < 0 && symlink(blob, path) != 0 && errno != EEXIST) {
        LT_FAIL(LT_ERR_IO, "link %s to %s: %s", path, blob, strerror(errno));
    }
    return LT_OK;
}

/* Find the snapshot of this revision in the cache. NOT_FOUND: there is none. */
static lt_err cached_snapshot(char snapshot[LT_PATH_BYTES], const char *cache,
                              const lt_location *at) {
    char path[LT_PATH_BYTES], name[300], *commit = NULL;
    lt_err err;
    (void)snprintf(name, sizeof name, "refs/%s", at->revision);
    LT_TRY(lt_path_join(path, cache, name));
    err = lt_file_read(&commit, NULL, path, 256);
    (void)snprintf(name, sizeof name, "snapshots/%.*s",
                   err == LT_OK ? (int)strcspn(commit, " \r\n") : 200,
                   err == LT_OK ? commit : at->revision);
    free(commit);
    LT_TRY(lt_path_join(snapshot, cache, name));
    LT_TRY(lt_path_join(path, snapshot, at->path));
    if (!lt_file_exists(path)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s is not in the cache %s", at->shown, cache);
    }
    return LT_OK;
}

/* Write the commit to refs/REVISION. Several processes may do so at the same time, each with a
 * separate temporary file. */
static lt_err write_reference(const char *cache, const char *revision, const char *commit) {
    char path[LT_PATH_BYTES], aside[LT_PATH_BYTES], name[300];
    (void)snprintf(name, sizeof name, "refs/%s", revision);
    LT_TRY(lt_path_join(path, cache, name));
    (void)snprintf(name, sizeof name, "refs/%s.%lld", revision, (long long)getpid());
    LT_TRY(lt_path_join(aside, cache, name));
    LT_TRY(lt_file_make_parent(path));
    LT_TRY(lt_file_write_atomic(aside, commit, strlen(commit)));
    if (rename(aside, path) != 0) {
        const lt_err err = lt_error_set(LT_ERR_IO, "rename %s to %s: %s", aside, path,
                                        strerror(errno));
        (void)unlink(aside);
        return err;
    }
    return LT_OK;
}

/* Whether content with this checksum is in the list. Two names may have the same content. */
static bool lists_blob(const lt_items *l, const char *checksum) {
    for (size_t i = 0; i < l->n; i++) {
        if (strcmp(l->rows[i].check.hex, checksum) == 0) {
            return true;
        }
    }
    return false;
}

/* Fetch the files of the repository's commit that the cache lacks. */
static lt_err fill_cache(lt_copying *c, const char *cache, char snapshot[LT_PATH_BYTES],
                         const lt_copy_options *o) {
    const lt_location asked = c->source.at;
    char path[LT_PATH_BYTES], name[300];
    lt_items items = {0}, lacking = {0};
    lt_copy_report r;
    lt_err err = LT_OK;

    LT_TRY_DONE(lt_copy_source_list(&c->source, c->http, &items));
    if (asked.many) {
        LT_TRY_DONE(choose_model(&items, o, asked.shown));
        if (items.n == 0) {
            LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s has no file that a model needs", asked.shown);
        }
    }
    for (size_t i = 0; i < items.n; i++) {
        lt_item *item = &items.rows[i];
        struct stat st;
        (void)snprintf(name, sizeof name, "blobs/%s", item->check.hex);
        LT_TRY_DONE(lt_path_join(path, cache, name));
        if ((stat(path, &st) == 0 && st.st_size == item->size_bytes) ||
            lists_blob(&lacking, item->check.hex)) {
            continue;
        }
        LT_TRY_DONE(
            lt_items_add(&lacking, item->from, item->name, item->shown, item->size_bytes, 0.0));
        lacking.rows[lacking.n - 1].check = item->check;
        lacking.rows[lacking.n - 1].to = strdup(path);
        if (lacking.rows[lacking.n - 1].to == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "a list of %zu files", items.n);
        }
    }
    if (lacking.n > 0) {
        LT_TRY_DONE(lt_engine_run(&(lt_engine_work){.source = &c->source,
                                                    .target = &c->target,
                                                    .items = &lacking,
                                                    .options = o,
                                                    .shared = &c->shared},
                                  &r));
    }
    (void)snprintf(name, sizeof name, "snapshots/%s", c->source.at.revision);
    LT_TRY_DONE(lt_path_join(snapshot, cache, name));
    for (size_t i = 0; i < items.n; i++) {
        LT_TRY_DONE(link_blob(snapshot, &items.rows[i]));
    }
    if (strcmp(asked.revision, c->source.at.revision) != 0) {
        LT_TRY_DONE(write_reference(cache, asked.revision, c->source.at.revision));
    }
done:
    lt_items_free(&items);
    lt_items_free(&lacking);
    return err;
}

static lt_err bring_from_hub(char out[LT_COPY_PATH_BYTES], const lt_location *at,
                             const lt_copy_options *o) {
    char cache[LT_PATH_BYTES], snapshot[LT_PATH_BYTES];
    lt_copying c = {.source.at = *at, .target = {.at.at = LT_AT_FILE, .wait = true}};
    lt_err err;

    LT_TRY(lt_hub_cache(cache, at));
    if (lt_hub_is_offline()) {
        err = cached_snapshot(snapshot, cache, at);
    } else {
        err = lt_copying_open(&c, o);
        err = err == LT_OK ? fill_cache(&c, cache, snapshot, o) : err;
        lt_copying_close(&c);
        if (err == LT_ERR_REMOTE) { /* Without the hub, use the files that were fetched before. */
            lt_failure why;
            lt_failure_keep(&why, err);
            if (cached_snapshot(snapshot, cache, at) == LT_OK) {
                lt_log_warn("%s; %s is taken from the cache, as it was", why.message, at->shown);
                err = LT_OK;
            } else {
                err = lt_failure_raise(&why);
            }
        }
    }
    LT_TRY(err);
    if (at->many) {
        memcpy(out, snapshot, LT_COPY_PATH_BYTES);
        return LT_OK;
    }
    return lt_path_join(out, snapshot, at->path);
}

/* CACHE/models/HASH/NAME, or for many files CACHE/models/HASH/. */
static lt_err store_path(char out[LT_COPY_PATH_BYTES], const lt_location *at) {
    const XXH128_hash_t hash = XXH3_128bits(at->shown, strlen(at->shown));
    char cache[LT_PATH_BYTES], name[LT_PATH_BYTES];
    LT_TRY(lt_cache_dir(cache));
    if (snprintf(name, sizeof name, "models/%016llx%016llx/%s", (unsigned long long)hash.high64,
                 (unsigned long long)hash.low64,
                 at->many ? "" : lt_location_name(at->at == LT_AT_WEB ? at->shown : at->path)) >=
        (int)sizeof name) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", at->shown);
    }
    return lt_path_join(out, cache, name);
}

static lt_err bring_from_store(char out[LT_COPY_PATH_BYTES], const char *text,
                               const lt_location *at, const lt_copy_options *o) {
    lt_copy_options how = *o;
    how.wait = true;
    LT_TRY(store_path(out, at));
    return lt_copy(text, out, &how, NULL);
}

lt_err lt_copy_brought(char out[LT_COPY_PATH_BYTES], const char *text) {
    lt_location at;
    char cache[LT_PATH_BYTES], snapshot[LT_PATH_BYTES];
    LT_TRY(lt_location_read(&at, text));
    if (at.at == LT_AT_HUB) {
        LT_TRY(lt_hub_cache(cache, &at));
        LT_TRY(cached_snapshot(snapshot, cache, &at));
        return lt_path_join(out, snapshot, at.path);
    }
    if (at.at == LT_AT_FILE) {
        (void)snprintf(out, LT_COPY_PATH_BYTES, "%s", at.path);
    } else {
        LT_TRY(store_path(out, &at));
    }
    if (!lt_file_exists(out)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: there is no %s", at.shown, out);
    }
    return LT_OK;
}

lt_err lt_copy_bring(char out[LT_COPY_PATH_BYTES], const char *text,
                     const lt_copy_options *options) {
    lt_copy_options o = options != NULL ? *options : lt_copy_defaults();
    lt_location at;
    if (!lt_location_is_remote(text)) {
        if (snprintf(out, LT_COPY_PATH_BYTES, "%s", text) >= LT_COPY_PATH_BYTES) {
            LT_FAIL(LT_ERR_LIMIT, "path too long: %.60s...", text);
        }
        return LT_OK;
    }
    LT_TRY(lt_copy_check_options(&o));
    LT_TRY(lt_location_read(&at, text));
    o.wait = true;
    switch (at.at) {
    case LT_AT_FILE:
        return lt_copy_bring(out, at.path, &o);
    case LT_AT_HUB:
        return bring_from_hub(out, &at, &o);
    default:
        return bring_from_store(out, text, &at, &o);
    }
}

/* ---- Data ---- */

/* CACHE/data/HASH/, where the files of a shard lie. */
static lt_err shard_folder(char out[LT_PATH_BYTES], const char *prefix) {
    const XXH128_hash_t hash = XXH3_128bits(prefix, strlen(prefix));
    char cache[LT_PATH_BYTES], name[64];
    LT_TRY(lt_cache_dir(cache));
    (void)snprintf(name, sizeof name, "data/%016llx%016llx", (unsigned long long)hash.high64,
                   (unsigned long long)hash.low64);
    return lt_path_join(out, cache, name);
}

lt_err lt_copy_bring_data(char out[LT_COPY_PATH_BYTES], const char *text,
                          const lt_copy_options *options) {
    static const char *const ends[] = {".bin", ".idx", ".mask", ".json"};
    const bool has_end = lt_path_has_suffix(text, ends[0]);
    const int n = (int)(strlen(text) - (has_end ? strlen(ends[0]) : 0));
    const char *last = strrchr(text, '/');
    lt_copy_options how = options != NULL ? *options : lt_copy_defaults();
    char prefix[LT_PATH_BYTES], folder[LT_PATH_BYTES], from[LT_PATH_BYTES], to[LT_PATH_BYTES];

    if (!lt_location_is_remote(text) || (last != NULL && strchr(last, '.') != NULL && !has_end)) {
        return lt_copy_bring(out, text, options);
    }
    if (n + 8 >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %.60s...", text);
    }
    (void)snprintf(prefix, sizeof prefix, "%.*s", n, text);
    LT_TRY(shard_folder(folder, prefix));
    LT_TRY(lt_path_join(out, folder, strrchr(prefix, '/') + 1));
    how.wait = true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (snprintf(from, sizeof from, "%s%s", prefix, ends[i]) >= (int)sizeof from ||
            snprintf(to, sizeof to, "%s%s", out, ends[i]) >= (int)sizeof to) {
            LT_FAIL(LT_ERR_LIMIT, "path too long: %.60s...", text);
        }
        const lt_err err = lt_copy(from, to, &how, NULL);
        if (err == LT_ERR_NOT_FOUND && i > 0) { /* Not every shard has this file. */
            (void)unlink(to);                   /* It may have had one before. */
        } else {
            LT_TRY(err);
        }
    }
    if (has_end) {
        strcat(out, ends[0]); /* `to` had room for more. */
    }
    return LT_OK;
}
