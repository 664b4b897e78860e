/* doc_stream.c: see doc_stream.h. Positions and documents are found by binary search over the
 * shards, then within one. */
#include "data/doc_stream.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

/* Last i in [0, n) with starts[i] <= x; starts ascends and starts[0] <= x. */
static size_t last_at_or_before(const uint64_t *starts, size_t n, uint64_t x) {
    size_t low = 0, high = n;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (starts[middle] <= x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Document `local` of a shard without the clipping of the view. */
static void whole_document(const lt_doc_stream *s, size_t shard, uint64_t local, uint64_t *first,
                           uint64_t *n) {
    lt_shard_document(s->shards[shard], local, first, n);
    *first += s->first_position[shard] + local * s->extra;
    *n += s->extra;
}

static uint64_t find(const lt_doc_stream *s, uint64_t position) {
    const size_t shard = last_at_or_before(s->first_position, s->n_shards, position);
    uint64_t low = 0, high = s->first_document[shard + 1] - s->first_document[shard], first, n;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        whole_document(s, shard, middle, &first, &n);
        if (first <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return s->first_document[shard] + low;
}

uint64_t lt_doc_stream_find(const lt_doc_stream *s, uint64_t position) {
    LT_ASSERT(position >= s->lo && position < s->hi);
    return find(s, position);
}

void lt_doc_stream_document(const lt_doc_stream *s, uint64_t d, uint64_t *first, uint64_t *n) {
    const size_t shard = last_at_or_before(s->first_document, s->n_shards, d);
    uint64_t end;
    LT_ASSERT(d >= s->doc_lo && d < s->doc_hi);
    whole_document(s, shard, d - s->first_document[shard], first, n);
    end = *first + *n < s->hi ? *first + *n : s->hi;
    *first = *first > s->lo ? *first : s->lo;
    *n = end > *first ? end - *first : 0;
}

lt_err lt_doc_stream_read(const lt_doc_stream *s, uint64_t d, uint64_t position, size_t n,
                          int32_t *ids, bool *silent) {
    const size_t shard = last_at_or_before(s->first_document, s->n_shards, d);
    const uint64_t local = d - s->first_document[shard];
    const bool masked = lt_shard_get_info(s->shards[shard]).masked;
    uint64_t first, stored, offset;

    lt_shard_document(s->shards[shard], local, &first, &stored);
    offset = position - (s->first_position[shard] + first + local * s->extra);
    LT_ASSERT(offset + n <= stored + s->extra);
    if (s->bos_id >= 0 && n > 0) {
        if (offset == 0) {
            *ids++ = (int32_t)s->bos_id;
            n--;
            if (silent != NULL) {
                *silent++ = masked;
            }
        } else {
            offset--;
        }
    }
    if (s->eod_id >= 0 && n > 0 && offset + n > stored) {
        ids[--n] = (int32_t)s->eod_id;
        if (silent != NULL) {
            silent[n] = false;
            LT_TRY(stored > 0
                       ? lt_shard_read_mask(s->shards[shard], first + stored - 1, 1, &silent[n])
                       : LT_OK);
        }
    }
    if (silent != NULL) {
        LT_TRY(lt_shard_read_mask(s->shards[shard], first + offset, n, silent));
    }
    return lt_shard_read(s->shards[shard], first + offset, n, ids, s->vocab_size);
}

/* Expand to the paths of the shards. When both files of a pair match a pattern, only the .bin
 * counts. */
static lt_err expand(glob_t *found, const char *path) {
    const int status = glob(path, GLOB_NOCHECK, NULL, found);
    if (status != 0) {
        LT_FAIL(status == GLOB_NOSPACE ? LT_ERR_OOM : LT_ERR_IO,
                "shards %s: cannot list the folder", path);
    }
    if (strpbrk(path, "*?[") != NULL && found->gl_pathc == 1 &&
        strcmp(found->gl_pathv[0], path) == 0 && !lt_file_exists(path)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "shards %s: no file matches", path);
    }
    return LT_OK;
}

/* Whether it is the .idx of a pair whose .bin is here, too. */
static bool has_bin(const char *name) {
    char bin[LT_PATH_BYTES];
    if (!lt_path_has_suffix(name, ".idx") || strlen(name) >= sizeof bin) {
        return false;
    }
    (void)snprintf(bin, sizeof bin, "%.*s.bin", (int)strlen(name) - 4, name);
    return lt_file_exists(bin);
}

static lt_err open_shards(lt_doc_stream *s, const char *path, const lt_loader_options *o) {
    lt_err err = LT_OK;
    glob_t found = {0};

    LT_TRY_DONE(expand(&found, path));
    s->shards = calloc(found.gl_pathc, sizeof *s->shards);
    s->first_document = calloc(found.gl_pathc + 1, sizeof *s->first_document);
    s->first_position = calloc(found.gl_pathc + 1, sizeof *s->first_position);
    if (s->shards == NULL || s->first_document == NULL || s->first_position == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu shards of %s", found.gl_pathc, path);
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *name = found.gl_pathv[i];
        lt_shard_info info;
        if (found.gl_pathc > 1 && has_bin(name)) {
            continue;
        }
        LT_TRY_DONE(
            lt_shard_open_far(&s->shards[s->n_shards], name, o->llmc_document_id, o->store));
        info = lt_shard_get_info(s->shards[s->n_shards]);
        if (info.n_documents == 0) { /* Empty shards are left out of the search. */
            lt_shard_close(s->shards[s->n_shards]);
            s->shards[s->n_shards] = NULL;
            continue;
        }
        s->masked |= info.masked;
        s->n_shards++;
        s->first_document[s->n_shards] = s->first_document[s->n_shards - 1] + info.n_documents;
        s->first_position[s->n_shards] = s->first_position[s->n_shards - 1] + info.n_tokens +
                                         info.n_documents * s->extra;
    }
done:
    globfree(&found);
    return err;
}

/* Position where validation begins: (1 - fraction) of the tokens, moved to the nearer end of the
 * document there unless that leaves less than half of the validation part, or nothing before it. An
 * earlier end is at most as far away as the end of the stream, so the validation part at most
 * doubles. */
static uint64_t split_position(const lt_doc_stream *s, double fraction) {
    const uint64_t end = s->first_position[s->n_shards];
    const uint64_t held = (uint64_t)((double)end * fraction + 0.5);
    const uint64_t cut = end - held;
    uint64_t d, first, n, near;
    size_t shard;

    if (held == 0 || cut == 0) {
        return cut;
    }
    d = find(s, cut);
    shard = last_at_or_before(s->first_document, s->n_shards, d);
    whole_document(s, shard, d - s->first_document[shard], &first, &n);
    near = cut - first <= first + n - cut ? first : first + n;
    return near > 0 && end - near >= held / 2 ? near : cut;
}

lt_err lt_doc_stream_open(lt_doc_stream *s, const char *path, const lt_loader_options *o) {
    uint64_t end, cut;

    *s = (lt_doc_stream){.path = path, .vocab_size = o->vocab_size};
    s->bos_id = o->add_bos ? o->bos_id : -1;
    s->eod_id = o->add_eod ? o->eod_id : -1;
    s->extra = (uint64_t)(o->add_bos + o->add_eod);
    LT_TRY(open_shards(s, path, o));
    end = s->first_position[s->n_shards];
    if (end < 2) {
        LT_FAIL(LT_ERR_FORMAT, "shards %s: %llu tokens, training needs at least 2", path,
                (unsigned long long)end);
    }
    cut = o->split == LT_SPLIT_ALL ? end : split_position(s, o->val_fraction);
    s->lo = o->split == LT_SPLIT_VAL ? cut : 0;
    s->hi = o->split == LT_SPLIT_TRAIN ? cut : end;
    if (s->hi - s->lo < 2) {
        LT_FAIL(LT_ERR_ARG,
                "shards %s: a validation fraction of %g leaves %llu of %llu tokens on this side",
                path, o->val_fraction, (unsigned long long)(s->hi - s->lo),
                (unsigned long long)end);
    }
    s->doc_lo = find(s, s->lo);
    s->doc_hi = find(s, s->hi - 1) + 1;
    return LT_OK;
}

size_t lt_doc_stream_mapped_bytes(const lt_doc_stream *s) {
    size_t bytes = 0;
    for (size_t i = 0; i < s->n_shards; i++) {
        bytes += lt_shard_mapped_bytes(s->shards[i]);
    }
    return bytes;
}

void lt_doc_stream_forget(const lt_doc_stream *s) {
    for (size_t i = 0; i < s->n_shards; i++) {
        lt_shard_forget(s->shards[i]);
    }
}

void lt_doc_stream_close(lt_doc_stream *s) {
    for (size_t i = 0; s->shards != NULL && i < s->n_shards; i++) {
        lt_shard_close(s->shards[i]);
    }
    free(s->shards);
    free(s->first_document);
    free(s->first_position);
    *s = (lt_doc_stream){0};
}
