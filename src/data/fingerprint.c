/* fingerprint.c: see fingerprint.h. Files are read through a buffer, not mapped, so that they do
 * not count as memory of the run. */
#include "data/fingerprint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#define ALL_BYTES    ((int64_t)256 << 20)
#define ENTRIES_MAX  32768
#define FILE_MOST    ((int64_t)64 << 20)
#define FILE_LEAST   ((int64_t)64 << 10)
#define BLOCKS       64
#define BUFFER_BYTES ((size_t)64 << 10)
#define HEX_BYTES    LT_FINGERPRINT_HEX

/* The files of a shard. */
enum { BIN, IDX, MASK };
static const char *const suffixes[] = {[BIN] = ".bin", [IDX] = ".idx", [MASK] = ".mask"};
#define N_SUFFIXES (sizeof suffixes / sizeof *suffixes)

/* Path of file `which` of a shard: .bin, .idx or .mask. A shard with another suffix (llm.c's may
 * have one) is a single file. False: the shard has no such file. */
static bool shard_file(char out[LT_PATH_BYTES + 8], const char *shard, size_t which) {
    const bool suffixed = lt_path_has_suffix(shard, suffixes[BIN]);
    const size_t stem = strlen(shard) - (suffixed ? strlen(suffixes[BIN]) : 0);
    if (which == BIN) {
        snprintf(out, LT_PATH_BYTES + 8, "%s", shard);
        return true;
    }
    snprintf(out, LT_PATH_BYTES + 8, "%.*s%s", (int)stem, shard, suffixes[which]);
    return lt_file_exists(out);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static lt_err hash_range(XXH3_state_t *h, int fd, int64_t from, int64_t bytes, const char *path) {
    unsigned char buffer[BUFFER_BYTES];
    while (bytes > 0) {
        const size_t want = bytes < (int64_t)sizeof buffer ? (size_t)bytes : sizeof buffer;
        const ssize_t got = pread(fd, buffer, want, (off_t)from);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            LT_FAIL(LT_ERR_IO, "read %s at byte %lld: %s", path, (long long)from,
                    got < 0 ? strerror(errno) : "it ends there");
        }
        XXH3_64bits_update(h, buffer, (size_t)got);
        from += got;
        bytes -= got;
    }
    return LT_OK;
}

/* The number of bytes that are read of each of n files. */
static int64_t most_of(size_t n) {
    const int64_t most = ALL_BYTES / (int64_t)n;
    return most > FILE_MOST ? FILE_MOST : most < FILE_LEAST ? FILE_LEAST : most / BLOCKS * BLOCKS;
}

/* Checksum of `sampled` bytes of a file of `size`. */
static lt_err hash_file(char hex[HEX_BYTES], int fd, int64_t size, int64_t sampled,
                        const char *path) {
    lt_err err = LT_OK;
    XXH3_state_t *h = XXH3_createState();
    const int64_t block = sampled / BLOCKS;

    if (h == NULL || XXH3_64bits_reset(h) != XXH_OK) {
        LT_FAIL_DONE(LT_ERR_OOM, "checksum of %s", path);
    }
    if (sampled == size) {
        LT_TRY_DONE(hash_range(h, fd, 0, size, path));
    }
    /* In doubles, so that no product overflows. */
    for (int64_t i = 0; sampled < size && i < BLOCKS; i++) {
        const double at = (double)(size - block) * (double)i / (BLOCKS - 1);
        LT_TRY_DONE(hash_range(h, fd, (int64_t)at, block, path));
    }
    snprintf(hex, HEX_BYTES, "%016" PRIx64, (uint64_t)XXH3_64bits_digest(h));
done:
    XXH3_freeState(h);
    return err;
}

static lt_err fingerprint_file(json_t *all, const char *path, int64_t most, bool whole) {
    lt_err err = LT_OK;
    char hex[HEX_BYTES];
    struct stat st;
    json_t *entry = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    int64_t sampled;

    if (fd < 0 || fstat(fd, &st) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "open %s: %s", path, strerror(errno));
    }
    sampled = (int64_t)st.st_size < most ? (int64_t)st.st_size : most;
    LT_TRY_DONE(hash_file(hex, fd, (int64_t)st.st_size, sampled, path));
    entry = json_pack("{s:s, s:I, s:I, s:I, s:s}", "file", base_name(path), "bytes",
                      (json_int_t)st.st_size, "mtime_ns",
                      (json_int_t)st.st_mtim.tv_sec * 1000000000 + (json_int_t)st.st_mtim.tv_nsec,
                      "sampled", (json_int_t)sampled, "xxh3", hex);
    if (entry == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "fingerprint of %s", path);
    }
    if (whole) {
        LT_TRY_DONE(hash_file(hex, fd, (int64_t)st.st_size, (int64_t)st.st_size, path));
        json_object_set_new(entry, "whole", json_string(hex));
    }
    json_array_append(all, entry);
done:
    json_decref(entry);
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

/* Add the entry of a file that is not on this machine: a checksum of its size and date replaces
 * that of its bytes. */
static lt_err fingerprint_far(json_t *all, const char *path, size_t bytes, double modified_s) {
    char text[64], hex[HEX_BYTES];
    json_t *entry;
    (void)snprintf(text, sizeof text, "%zu %.0f", bytes, modified_s);
    (void)snprintf(hex, sizeof hex, "%016" PRIx64, (uint64_t)XXH3_64bits(text, strlen(text)));
    entry = json_pack("{s:s, s:I, s:I, s:I, s:s}", "file", base_name(path), "bytes",
                      (json_int_t)bytes, "mtime_ns", (json_int_t)(modified_s * 1e9), "sampled",
                      (json_int_t)0, "xxh3", hex);
    if (entry == NULL) {
        LT_FAIL(LT_ERR_OOM, "fingerprint of %s", path);
    }
    json_array_append_new(all, entry);
    return LT_OK;
}

/* Add the entries of one shard's files. */
static lt_err fingerprint_shard(json_t *all, const lt_loader *l, int64_t source, size_t shard,
                                int64_t most, bool whole) {
    const lt_far_shard *far = lt_loader_far_shard(l, source, shard);
    char path[LT_PATH_BYTES + 8];
    for (size_t k = 0; k < N_SUFFIXES; k++) {
        const bool here = shard_file(path, lt_loader_shard_path(l, source, shard), k);
        if (far == NULL || k == IDX) { /* The index is always here. */
            LT_TRY(here ? fingerprint_file(all, path, most, whole) : LT_OK);
        } else if (k == BIN || far->mask_bytes > 0) {
            LT_TRY(fingerprint_far(all, path, k == BIN ? far->bin_bytes : far->mask_bytes,
                                   far->modified_s));
        }
    }
    return LT_OK;
}

/* Merge all entries into one: the sum of sizes, the newest time, checksums of the checksums. */
static lt_err fold(json_t **all, bool whole) {
    json_int_t bytes = 0, sampled = 0, newest = 0;
    char name[64], hex[HEX_BYTES];
    uint64_t hash = 0, whole_hash = 0;
    json_t *entry, *one = json_array();
    size_t i;

    json_array_foreach(*all, i, entry) {
        const char *part = json_string_value(json_object_get(entry, "xxh3"));
        const char *every = json_string_value(json_object_get(entry, "whole"));
        const json_int_t mtime = json_integer_value(json_object_get(entry, "mtime_ns"));
        bytes += json_integer_value(json_object_get(entry, "bytes"));
        sampled += json_integer_value(json_object_get(entry, "sampled"));
        newest = mtime > newest ? mtime : newest;
        hash = XXH3_64bits_withSeed(part, strlen(part), hash);
        whole_hash = every != NULL ? XXH3_64bits_withSeed(every, strlen(every), whole_hash) : 0;
    }
    (void)snprintf(name, sizeof name, "%zu files", json_array_size(*all));
    (void)snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    entry = json_pack("{s:s, s:I, s:I, s:I, s:s}", "file", name, "bytes", bytes, "mtime_ns", newest,
                      "sampled", sampled, "xxh3", hex);
    if (one == NULL || entry == NULL) {
        json_decref(one);
        json_decref(entry);
        LT_FAIL(LT_ERR_OOM, "fingerprint of %s", name);
    }
    if (whole) {
        (void)snprintf(hex, sizeof hex, "%016" PRIx64, whole_hash);
        json_object_set_new(entry, "whole", json_string(hex));
    }
    json_array_append_new(one, entry);
    json_decref(*all);
    *all = one;
    return LT_OK;
}

lt_err lt_fingerprint_source(json_t **out, const lt_loader *l, int64_t source, bool whole) {
    lt_err err = LT_OK;
    const int64_t n = (int64_t)lt_loader_n_shards(l, source);
    const int64_t n_sources = lt_loader_n_sources(l);
    const int64_t most = most_of((size_t)(n * n_sources) * N_SUFFIXES);
    json_t *all = json_array();

    if (all == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "fingerprint of %lld shards", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        LT_TRY_DONE(fingerprint_shard(all, l, source, (size_t)i, most, whole));
    }
    if ((int64_t)json_array_size(all) > ENTRIES_MAX / n_sources) {
        LT_TRY_DONE(fold(&all, whole));
    }
    *out = all;
    all = NULL;
done:
    json_decref(all);
    return err;
}

/* ---- Models ---- */

static bool is_of_model(const char *name) {
    return lt_path_has_suffix(name, ".safetensors") || strcmp(name, "config.json") == 0 ||
           strcmp(name, "tokenizer.json") == 0;
}

static lt_err fingerprint_folder(json_t *all, const char *path) {
    lt_err err = LT_OK;
    char **names = NULL;
    size_t n = 0, n_files = 0;
    LT_TRY(lt_file_list(&names, &n, path));
    for (size_t i = 0; i < n; i++) {
        n_files += is_of_model(names[i]);
    }
    for (size_t i = 0; i < n; i++) {
        char file[LT_PATH_BYTES];
        if (is_of_model(names[i])) {
            LT_TRY_DONE(lt_path_join(file, path, names[i]));
            LT_TRY_DONE(fingerprint_file(all, file, most_of(n_files), false));
        }
    }
done:
    lt_file_list_free(names, n);
    return err;
}

lt_err lt_fingerprint_model(char hex[LT_FINGERPRINT_HEX], const char *path) {
    lt_err err = LT_OK;
    json_t *all = json_array(), *entry;
    uint64_t hash = 0;
    size_t i;
    LT_TRY_DONE(lt_file_is_dir(path) ? fingerprint_folder(all, path)
                                     : fingerprint_file(all, path, most_of(1), false));
    json_array_foreach(all, i, entry) {
        static const char *const parts[] = {"file", "xxh3"};
        const json_int_t bytes = json_integer_value(json_object_get(entry, "bytes"));
        hash = XXH3_64bits_withSeed(&bytes, sizeof bytes, hash);
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            const char *part = json_string_value(json_object_get(entry, parts[k]));
            hash = XXH3_64bits_withSeed(part, strlen(part), hash);
        }
    }
    (void)snprintf(hex, LT_FINGERPRINT_HEX, "%016" PRIx64, hash);
done:
    json_decref(all);
    return err;
}

/* ---- Comparison ---- */

typedef struct {
    const char *file, *xxh3, *whole;
    int64_t bytes, mtime_ns, sampled;
} fingerprint;

static lt_err read_fingerprint(fingerprint *s, const json_t *entry, const char *what) {
    *s = (fingerprint){0};
    LT_TRY(lt_json_str(entry, "file", &s->file, false, what));
    LT_TRY(lt_json_str(entry, "xxh3", &s->xxh3, false, what));
    LT_TRY(lt_json_str(entry, "whole", &s->whole, true, what));
    LT_TRY(lt_json_i64(entry, "bytes", &s->bytes, false, what));
    LT_TRY(lt_json_i64(entry, "mtime_ns", &s->mtime_ns, false, what));
    return lt_json_i64(entry, "sampled", &s->sampled, false, what);
}

/* The first file of `a` that `b` does not name, or NULL. */
static const char *missing(const json_t *a, const json_t *b) {
    for (size_t i = 0; i < json_array_size(a); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(a, i), "file"));
        bool found = false;
        for (size_t k = 0; k < json_array_size(b) && !found; k++) {
            const char *other = json_string_value(json_object_get(json_array_get(b, k), "file"));
            found = name != NULL && other != NULL && strcmp(name, other) == 0;
        }
        if (!found) {
            return name;
        }
    }
    return NULL;
}

/* Path of the file `name` of a source. */
static bool find_path(char path[LT_PATH_BYTES + 8], const lt_loader *l, int64_t source,
                      const char *name) {
    for (size_t i = 0; i < lt_loader_n_shards(l, source); i++) {
        for (size_t k = 0; k < N_SUFFIXES; k++) {
            if (shard_file(path, lt_loader_shard_path(l, source, i), k) &&
                strcmp(base_name(path), name) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* Compare every byte of a file whose time has changed, if its whole checksum is known. */
static lt_err compare_whole(const fingerprint *a, const fingerprint *b, const char *path,
                            const char *option) {
    lt_err err = LT_OK;
    char hex[HEX_BYTES];
    const int fd = b->whole == NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (b->whole != NULL) {
        snprintf(hex, sizeof hex, "%s", b->whole);
    } else if (fd < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "open %s: %s", path, strerror(errno));
    } else {
        LT_TRY_DONE(hash_file(hex, fd, b->bytes, b->bytes, path));
    }
    if (strcmp(a->whole, hex) != 0) {
        LT_FAIL_DONE(LT_ERR_STATE,
                     "%s: %s has changed since the checkpoint: its whole checksum was %s, now %s",
                     option, path, a->whole, hex);
    }
done:
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

static lt_err compare_file(const fingerprint *a, const fingerprint *b, const lt_loader *l,
                           int64_t source, const char *option) {
    char path[LT_PATH_BYTES + 8];
    const bool found = find_path(path, l, source, b->file);
    const char *shown = found ? path : b->file;

    if (a->bytes != b->bytes) {
        LT_FAIL(LT_ERR_STATE,
                "%s: %s has changed since the checkpoint: it had %lld bytes, now %lld", option,
                shown, (long long)a->bytes, (long long)b->bytes);
    }
    if (a->sampled == b->sampled && strcmp(a->xxh3, b->xxh3) != 0) {
        LT_FAIL(LT_ERR_STATE,
                "%s: %s has changed since the checkpoint: the checksum of %lld of its %lld bytes "
                "was %s, now %s",
                option, shown, (long long)a->sampled, (long long)a->bytes, a->xxh3, b->xxh3);
    }
    if (a->whole != NULL && (b->whole != NULL || (found && a->mtime_ns != b->mtime_ns))) {
        return compare_whole(a, b, shown, option);
    }
    /* If the file was on this machine at one time and elsewhere at the other, the dates are those
     * of two copies and may differ. */
    if (a->mtime_ns != b->mtime_ns && a->sampled < a->bytes && a->sampled == b->sampled) {
        lt_log_warn(
            "%s: %s was rewritten since the checkpoint; %lld of its %lld bytes were "
            "compared and are the same (--verify, from the start of a run on, compares all)",
            option, shown, (long long)a->sampled, (long long)a->bytes);
    }
    return LT_OK;
}

lt_err lt_fingerprint_compare(const json_t *then, const json_t *now, const lt_loader *l,
                              int64_t source, const char *option) {
    const size_t n_then = json_array_size(then), n_now = json_array_size(now);

    if (n_then != n_now) {
        const char *added = missing(now, then), *lost = missing(then, now);
        LT_FAIL(LT_ERR_STATE, "%s: source %lld had %zu files at the checkpoint, now %zu%s%s%s%s",
                option, (long long)source + 1, n_then, n_now, added != NULL ? "; new: " : "",
                added != NULL ? added : "", lost != NULL ? "; gone: " : "",
                lost != NULL ? lost : "");
    }
    for (size_t i = 0; i < n_now; i++) {
        fingerprint a, b;
        LT_TRY(read_fingerprint(&a, json_array_get(then, i), "the checkpoint's data"));
        LT_TRY(read_fingerprint(&b, json_array_get(now, i), option));
        LT_TRY(compare_file(&a, &b, l, source, option));
    }
    return LT_OK;
}
