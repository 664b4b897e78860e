/* shard_set.c: see shard_set.h. The sizes and dates of all files come from one list of the folder;
 * a web server has no lists, so there is a request for each file. */
#include "platform/copy/shard_set.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "platform/copy/location.h"

typedef enum { BIN, IDX, MASK, JSON, N_ENDS } end_kind;
static const char *const ends[N_ENDS] = {".bin", ".idx", ".mask", ".json"};

/* A file in the list. */
typedef struct {
    char *address;
    int64_t bytes;
    double modified_s;
} far_file;

typedef struct {
    char *name; /* Without its suffix. */
    far_file files[N_ENDS];
} found_shard;

typedef struct {
    char folder[LT_PATH_BYTES], pattern[LT_PATH_BYTES];
    size_t skip;       /* Characters of a name before those of the pattern. */
    found_shard *rows; /* Sorted by name, once the list is complete. */
    size_t n, room;
} search;

bool lt_shard_cache_takes(const char *text) {
    const char *last = strrchr(text, '/');
    return lt_location_is_remote(text) &&
           (last == NULL || strchr(last, '.') == NULL || lt_path_has_suffix(text, ends[BIN]));
}

void lt_set_shard_free(lt_set_shard *e) {
    if (e != NULL) {
        free(e->bin);
        free(e->mask);
        free(e->prefix);
        free(e);
    }
}

static void search_free(search *s) {
    for (size_t i = 0; i < s->n; i++) {
        free(s->rows[i].name);
        for (int k = 0; k < N_ENDS; k++) {
            free(s->rows[i].files[k].address);
        }
    }
    free(s->rows);
}

/* The shard of this name, which is added if it is new. NULL: out of memory. */
static found_shard *shard_of(search *s, const char *name, size_t n) {
    /* The files of a shard are near each other in the list. */
    for (size_t i = s->n; i > 0; i--) {
        if (strlen(s->rows[i - 1].name) == n && memcmp(s->rows[i - 1].name, name, n) == 0) {
            return &s->rows[i - 1];
        }
    }
    if (s->n == s->room) {
        const size_t room = s->room == 0 ? 16 : 2 * s->room;
        found_shard *grown = realloc(s->rows, room * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        s->rows = grown;
        s->room = room;
    }
    s->rows[s->n] = (found_shard){.name = strndup(name, n)};
    return s->rows[s->n].name != NULL ? &s->rows[s->n++] : NULL;
}

static lt_err add_file(search *s, const char *name, end_kind end, const char *address,
                       const lt_copy_file *file) {
    found_shard *row = shard_of(s, name, strlen(name) - strlen(ends[end]));
    char *copy = strdup(address);
    if (row == NULL || copy == NULL) {
        free(copy);
        LT_FAIL(LT_ERR_OOM, "a list of %zu shards", s->n);
    }
    free(row->files[end].address);
    row->files[end] = (far_file){copy, file->size_bytes, file->modified_s};
    return LT_OK;
}

static lt_err found(void *ctx, const lt_copy_file *file) {
    search *s = ctx;
    char name[LT_PATH_BYTES];
    if (strlen(file->name) <= s->skip) {
        return LT_OK;
    }
    for (int k = 0; k < N_ENDS; k++) {
        const char *base = file->name + s->skip;
        if (lt_path_has_suffix(base, ends[k])) {
            (void)snprintf(name, sizeof name, "%.*s", (int)(strlen(base) - strlen(ends[k])), base);
            return fnmatch(s->pattern, name, FNM_PATHNAME) == 0
                       ? add_file(s, base, (end_kind)k, file->shown, file)
                       : LT_OK;
        }
    }
    return LT_OK;
}

typedef struct {
    search *s;
    const char *name, *address; /* At a web server; `shown` has no query. */
    end_kind end;
} asked_file;

static lt_err found_asked(void *ctx, const lt_copy_file *file) {
    const asked_file *a = ctx;
    return add_file(a->s, a->name, a->end, a->address, file);
}

/* Request each file of the shard by its address. */
static lt_err ask_web(search *s) {
    if (strpbrk(s->pattern, "*?[") != NULL) {
        LT_FAIL(LT_ERR_ARG, "%s%s: a web server has no list of files: name one shard", s->folder,
                s->pattern);
    }
    for (int k = 0; k < N_ENDS; k++) {
        char name[LT_PATH_BYTES], address[2 * LT_PATH_BYTES];
        lt_err err;
        (void)snprintf(name, sizeof name, "%.*s%s", (int)sizeof name - 16, s->pattern, ends[k]);
        (void)snprintf(address, sizeof address, "%s%s", s->folder, name);
        err = lt_copy_list(address, NULL, found_asked, &(asked_file){s, name, address, k});
        if (err != LT_ERR_NOT_FOUND || k == BIN || k == IDX) {
            LT_TRY(err);
        }
    }
    return LT_OK;
}

/* Divide the address into the folder that is listed and the pattern of names. */
static void divide(search *s, const lt_location *at, const char *text) {
    const size_t n = strlen(text);
    const char *slash = strrchr(text, '/');
    size_t path = slash != NULL ? (size_t)(slash + 1 - text) : 0;
    (void)snprintf(s->pattern, sizeof s->pattern, "%s", text + path);
    if (lt_path_has_suffix(s->pattern, ends[BIN])) {
        s->pattern[strlen(s->pattern) - strlen(ends[BIN])] = '\0';
    }
    if (s->pattern[0] == '\0') {
        (void)snprintf(s->pattern, sizeof s->pattern, "*");
    }
    if (at->at == LT_AT_HUB) { /* Only a whole repository can be listed. */
        const size_t before = n - strlen(at->path);
        s->skip = path > before ? path - before : 0;
        path = before > 0 && text[before - 1] == '/' ? before - 1 : before;
    }
    (void)snprintf(s->folder, sizeof s->folder, "%.*s", (int)path, text);
}

static int by_name(const void *a, const void *b) {
    const found_shard *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static lt_err find_shards(search *s, const char *text) {
    lt_location at;
    LT_TRY(lt_location_read(&at, text));
    divide(s, &at, text);
    LT_TRY(at.at == LT_AT_WEB ? ask_web(s) : lt_copy_list(s->folder, NULL, found, s));
    if (s->n == 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: there is no such shard", at.shown);
    }
    qsort(s->rows, s->n, sizeof *s->rows, by_name);
    for (size_t i = 0; i < s->n; i++) {
        const far_file *f = s->rows[i].files;
        if (f[BIN].address == NULL || f[IDX].address == NULL) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: the shard %s has no %s; data.cache takes pairs of .bin and .idx", at.shown,
                    s->rows[i].name, f[BIN].address == NULL ? ".bin" : ".idx");
        }
    }
    return LT_OK;
}

static void hash_text(char out[LT_SET_KEY_BYTES], XXH3_state_t *h) {
    const XXH128_hash_t hash = XXH3_128bits_digest(h);
    (void)snprintf(out, LT_SET_KEY_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
                   (unsigned long long)hash.low64);
}

static void add_to_hash(XXH3_state_t *h, const found_shard *f) {
    char numbers[96];
    for (int k = 0; k < JSON; k++) {
        if (f->files[k].address != NULL) {
            (void)snprintf(numbers, sizeof numbers, " %lld %.0f ", (long long)f->files[k].bytes,
                           f->files[k].modified_s);
            (void)XXH3_128bits_update(h, f->files[k].address, strlen(f->files[k].address));
            (void)XXH3_128bits_update(h, numbers, strlen(numbers));
        }
    }
}

/* Make the entry of one shard, whose index is stored in `folder`. */
static lt_err make_entry(lt_shard_cache *c, lt_set_shard **out, const found_shard *f,
                         const char *folder, XXH3_state_t *h) {
    lt_err err = LT_OK;
    char prefix[LT_PATH_BYTES];
    const int64_t bytes = f->files[BIN].bytes + f->files[MASK].bytes;
    lt_set_shard *e = calloc(1, sizeof *e);

    if (bytes > c->budget_bytes) {
        LT_FAIL_DONE(LT_ERR_ARG, "data.cache_bytes = %lld, but the shard %s has %lld bytes",
                     (long long)c->budget_bytes, f->files[BIN].address, (long long)bytes);
    }
    LT_TRY_DONE(lt_path_join(prefix, folder, f->name));
    if (e == NULL || XXH3_128bits_reset(h) != XXH_OK) {
        LT_FAIL_DONE(LT_ERR_OOM, "shard %s", f->name);
    }
    add_to_hash(h, f);
    hash_text(e->key, h);
    e->far = (lt_far_shard){(size_t)f->files[BIN].bytes, (size_t)f->files[MASK].bytes,
                            f->files[BIN].modified_s};
    e->bin = strdup(f->files[BIN].address);
    e->mask = f->files[MASK].address != NULL ? strdup(f->files[MASK].address) : NULL;
    e->prefix = strdup(prefix);
    if (e->bin == NULL || e->prefix == NULL ||
        (f->files[MASK].address != NULL && e->mask == NULL)) {
        LT_FAIL_DONE(LT_ERR_OOM, "shard %s", f->name);
    }
    *out = e;
    e = NULL;
done:
    lt_set_shard_free(e);
    return err;
}

/* Fetch index and description; all processes of a node may do so at the same time. */
static lt_err bring_index(const found_shard *f, const char *prefix) {
    lt_copy_options o = lt_copy_defaults();
    o.n_connections = 1;
    o.wait = true;
    for (int k = IDX; k < N_ENDS; k++) {
        char to[LT_PATH_BYTES];
        if (f->files[k].address == NULL || k == MASK) {
            continue;
        }
        if (snprintf(to, sizeof to, "%s%s", prefix, ends[k]) >= (int)sizeof to) {
            LT_FAIL(LT_ERR_LIMIT, "path too long: %s", prefix);
        }
        LT_TRY(lt_copy(f->files[k].address, to, &o, NULL));
    }
    return LT_OK;
}

static lt_err add_all(lt_shard_cache *c, const search *s, const char *folder, XXH3_state_t *h) {
    const size_t first = c->n;
    lt_set_shard **grown = realloc(c->entries, (c->n + s->n) * sizeof(lt_set_shard *));
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu shards", s->n);
    }
    c->entries = grown;
    for (size_t i = 0; i < s->n; i++) {
        lt_set_shard *e = NULL;
        LT_TRY(make_entry(c, &e, &s->rows[i], folder, h));
        e->index = (int64_t)c->n;
        e->next = (int64_t)(i + 1 < s->n ? c->n + 1 : first);
        e->first = (int64_t)first;
        atomic_store(&e->at, -1);
        c->entries[c->n++] = e;
        LT_TRY(bring_index(&s->rows[i], e->prefix));
    }
    return LT_OK;
}

lt_err lt_shard_cache_add(lt_shard_cache *c, char path[LT_PATH_BYTES], const char *text) {
    lt_err err = LT_OK;
    search s = {.n = 0};
    char folder[LT_PATH_BYTES], set[LT_PATH_BYTES], key[LT_SET_KEY_BYTES];
    XXH3_state_t *h = XXH3_createState();

    LT_ASSERT(!atomic_load(&c->reading)); /* From then on, the thread reads the entries. */
    if (h == NULL || XXH3_128bits_reset(h) != XXH_OK) {
        LT_FAIL_DONE(LT_ERR_OOM, "a list of shards");
    }
    LT_TRY_DONE(find_shards(&s, text));
    for (size_t i = 0; i < s.n; i++) {
        add_to_hash(h, &s.rows[i]);
    }
    hash_text(key, h);
    LT_TRY_DONE(lt_path_join(folder, c->folder, "sets"));
    LT_TRY_DONE(lt_path_join(set, folder, key));
    LT_TRY_DONE(lt_file_make_dirs(set));
    LT_TRY_DONE(add_all(c, &s, set, h));
    LT_TRY_DONE(lt_path_join(path, set, s.n == 1 ? s.rows[0].name : "*.idx"));
done:
    XXH3_freeState(h);
    search_free(&s);
    return err;
}
