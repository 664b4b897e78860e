/* shard.c: maps a token shard and reads ids from it (lateen/data.h; layout: shard_format.h).
 *
 * Open checks the header and the tables against the sizes of the files: each sequence begins where
 * the one before it ends, the last ends at the end of the file, and the document table ascends from
 * 0 to S. So a position < n_tokens needs no further check, and a document's place is read from the
 * mapped tables. Open allocates nothing that grows with the shard, except for llm.c's files, whose
 * documents are found by a scan. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "data/shard_format.h"
#include "lateen/data.h"

typedef enum { IDS_U8, IDS_I16, IDS_U16, IDS_I32, IDS_U32, IDS_I64 } id_kind;

struct lt_shard {
    char path[LT_PATH_BYTES];   /* The path of the .bin, for messages. */
    lt_file_map bin, idx, mask; /* bin and mask: only if all files are on this machine. */
    uint64_t bin_bytes;
    lt_shard_store *store;   /* Fetches bin and mask; NULL: they are on this machine. */
    const lt_far_shard *far; /* What the store knows of them. */
    lt_shard_info info;
    id_kind kind;
    const unsigned char *ids;       /* (n_tokens) */
    const unsigned char *pointers;  /* Megatron: (S) i64, byte offsets */
    const unsigned char *documents; /* Megatron: (D) i64, first sequence of each document */
    uint64_t n_sequences;
    uint64_t *starts; /* llm.c: (n_documents + 1) */
};

static uint64_t load_u64(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static int32_t load_i32(const unsigned char *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static lt_err check_header(lt_shard *s, const char *idx, uint64_t *n_entries) {
    static const struct {
        int code, bytes;
        id_kind kind;
    } kinds[] = {{LT_IDX_U8, 1, IDS_U8},
                 {LT_IDX_I16, 2, IDS_I16},
                 {LT_IDX_U16, 2, IDS_U16},
                 {LT_IDX_I32, 4, IDS_I32},
                 {LT_IDX_I64, 8, IDS_I64}};
    const unsigned char *p = s->idx.data;
    const uint64_t bytes = s->idx.size_bytes;
    uint64_t wanted;

    if (bytes < LT_IDX_HEADER_BYTES) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %llu bytes, the header alone has %d", idx,
                (unsigned long long)bytes, LT_IDX_HEADER_BYTES);
    }
    if (memcmp(p, LT_IDX_MAGIC, LT_IDX_MAGIC_BYTES) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: not a Megatron index: it does not begin with MMIDIDX", idx);
    }
    if (load_u64(p + 9) != LT_IDX_VERSION) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: version %llu, we read %d", idx,
                (unsigned long long)load_u64(p + 9), LT_IDX_VERSION);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (p[17] == kinds[i].code) {
            s->info.token_bytes = kinds[i].bytes;
            s->kind = kinds[i].kind;
        }
    }
    if (s->info.token_bytes == 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: element type %d holds no token ids", idx, p[17]);
    }
    s->n_sequences = load_u64(p + 18);
    *n_entries = load_u64(p + 26);
    /* So the sum below cannot overflow. */
    if (s->n_sequences > bytes / 12 || *n_entries > bytes / 8) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %llu sequences and %llu document entries do not fit in %llu bytes", idx,
                (unsigned long long)s->n_sequences, (unsigned long long)*n_entries,
                (unsigned long long)bytes);
    }
    wanted = LT_IDX_HEADER_BYTES + 12 * s->n_sequences + 8 * *n_entries;
    if (bytes != wanted && bytes != wanted + s->n_sequences) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %llu bytes, but %llu sequences and %llu document entries take %llu", idx,
                (unsigned long long)bytes, (unsigned long long)s->n_sequences,
                (unsigned long long)*n_entries, (unsigned long long)wanted);
    }
    return LT_OK;
}

static lt_err check_sequences(const lt_shard *s, const char *idx) {
    const unsigned char *sizes = s->idx.data + LT_IDX_HEADER_BYTES;
    const uint64_t token_bytes = (uint64_t)s->info.token_bytes;
    uint64_t at = 0;
    for (uint64_t i = 0; i < s->n_sequences; i++) {
        const int32_t n = load_i32(sizes + 4 * i);
        if (n < 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s: sequence %llu has %d tokens", idx, (unsigned long long)i,
                    n);
        }
        if (load_u64(s->pointers + 8 * i) != at) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: sequence %llu begins at byte %lld, the one before it ends at %llu", idx,
                    (unsigned long long)i, (long long)load_u64(s->pointers + 8 * i),
                    (unsigned long long)at);
        }
        /* It does not overflow: the sequence before ended within the file. */
        at += (uint64_t)n * token_bytes;
        if (at > s->bin_bytes) {
            LT_FAIL(LT_ERR_FORMAT, "%s: sequence %llu ends at byte %llu of %s, which has %zu", idx,
                    (unsigned long long)i, (unsigned long long)at, s->path, (size_t)s->bin_bytes);
        }
    }
    if (at != s->bin_bytes) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %zu bytes, but its index describes %llu", s->path,
                (size_t)s->bin_bytes, (unsigned long long)at);
    }
    return LT_OK;
}

static lt_err check_documents(const lt_shard *s, const char *idx, uint64_t n_entries) {
    uint64_t before = 0;
    for (uint64_t d = 0; d < n_entries; d++) {
        const uint64_t first = load_u64(s->documents + 8 * d);
        if (first < before || first > s->n_sequences || (d == 0 && first != 0)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: document entry %llu is %lld, expected %llu to %llu", idx,
                    (unsigned long long)d, (long long)first, (unsigned long long)before,
                    (unsigned long long)(d == 0 ? 0 : s->n_sequences));
        }
        before = first;
    }
    if (before != s->n_sequences) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the document table ends at sequence %llu of %llu", idx,
                (unsigned long long)before, (unsigned long long)s->n_sequences);
    }
    return LT_OK;
}

static lt_err open_megatron(lt_shard *s, const char *prefix) {
    char idx[LT_PATH_BYTES];
    uint64_t n_entries;

    if (snprintf(idx, sizeof idx, "%s.idx", prefix) >= (int)sizeof idx ||
        snprintf(s->path, sizeof s->path, "%s.bin", prefix) >= (int)sizeof s->path) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", prefix);
    }
    LT_TRY(lt_file_map_open(&s->idx, idx));
    s->far = s->store != NULL ? s->store->find(s->store, prefix) : NULL;
    LT_TRY(s->far == NULL ? lt_file_map_open(&s->bin, s->path) : LT_OK);
    s->bin_bytes = s->far != NULL ? s->far->bin_bytes : s->bin.size_bytes;
    LT_TRY(check_header(s, idx, &n_entries));
    s->pointers = s->idx.data + LT_IDX_HEADER_BYTES + 4 * s->n_sequences;
    s->documents = s->pointers + 8 * s->n_sequences;
    LT_TRY(check_sequences(s, idx));
    LT_TRY(check_documents(s, idx, n_entries));
    s->ids = s->bin.data;
    s->info.format = LT_SHARD_MEGATRON;
    s->info.n_tokens = s->bin_bytes / (uint64_t)s->info.token_bytes;
    s->info.n_documents = n_entries > 0 ? n_entries - 1 : 0;
    return LT_OK;
}

static uint64_t llmc_id(const lt_shard *s, uint64_t position) {
    uint16_t narrow;
    uint32_t wide;
    if (s->kind == IDS_U16) {
        memcpy(&narrow, s->ids + 2 * position, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, s->ids + 4 * position, sizeof wide);
    return wide;
}

/* A document begins at position 0 and at every document_id. Two passes: count, then fill. */
static lt_err find_documents(lt_shard *s, int64_t document_id) {
    const uint64_t end = document_id < 0 && s->info.n_tokens > 0 ? 1 : s->info.n_tokens;
    for (int pass = 0; pass < 2; pass++) {
        uint64_t n = 0;
        for (uint64_t i = 0; i < end; i++) {
            if (i == 0 || llmc_id(s, i) == (uint64_t)document_id) {
                if (pass == 1) {
                    s->starts[n] = i;
                }
                n++;
            }
        }
        if (pass == 0) {
            s->info.n_documents = n;
            s->starts = malloc((n + 1) * sizeof *s->starts);
            if (s->starts == NULL) {
                LT_FAIL(LT_ERR_OOM, "%s: table of %llu documents", s->path, (unsigned long long)n);
            }
        }
        s->starts[n] = s->info.n_tokens;
    }
    return LT_OK;
}

static lt_err open_llmc(lt_shard *s, const char *path, int64_t document_id) {
    int32_t magic, version;
    uint32_t n_tokens;

    if (strlen(path) >= sizeof s->path) {
        LT_FAIL(LT_ERR_LIMIT, "path of %zu characters", strlen(path));
    }
    memcpy(s->path, path, strlen(path) + 1);
    LT_TRY(lt_file_map_open(&s->bin, path));
    if (s->bin.size_bytes < LT_LLMC_HEADER_BYTES) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %zu bytes, llm.c's header alone has %d (and there is no .idx beside it)", path,
                s->bin.size_bytes, LT_LLMC_HEADER_BYTES);
    }
    magic = load_i32(s->bin.data);
    version = load_i32(s->bin.data + 4);
    n_tokens = (uint32_t)load_i32(s->bin.data + 8);
    if (magic != LT_LLMC_MAGIC_U16 && magic != LT_LLMC_MAGIC_U32) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: magic %d: neither llm.c's %d nor %d, and there is no .idx beside it", path,
                magic, LT_LLMC_MAGIC_U16, LT_LLMC_MAGIC_U32);
    }
    if (version != (magic == LT_LLMC_MAGIC_U16 ? LT_LLMC_VERSION_U16 : LT_LLMC_VERSION_U32)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: version %d of llm.c's format %d", path, version, magic);
    }
    s->kind = magic == LT_LLMC_MAGIC_U16 ? IDS_U16 : IDS_U32;
    s->info.format = LT_SHARD_LLMC;
    s->info.token_bytes = s->kind == IDS_U16 ? 2 : 4;
    s->info.n_tokens = n_tokens;
    if (s->bin.size_bytes - LT_LLMC_HEADER_BYTES !=
        (uint64_t)n_tokens * (uint64_t)s->info.token_bytes) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: the header announces %u tokens of %d bytes, but %zu bytes follow", path,
                n_tokens, s->info.token_bytes, s->bin.size_bytes - LT_LLMC_HEADER_BYTES);
    }
    s->ids = s->bin.data + LT_LLMC_HEADER_BYTES;
    return find_documents(s, document_id);
}

static lt_err check_mask(lt_shard *s, const char *path, size_t bytes) {
    if (bytes != s->info.n_tokens) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %zu bytes, but a mask of %s has one for each of its %llu tokens", path, bytes,
                s->path, (unsigned long long)s->info.n_tokens);
    }
    s->info.masked = true;
    return LT_OK;
}

/* Open the mask beside the .bin, if there is one: it must hold one byte per token. */
static lt_err open_mask(lt_shard *s) {
    char path[LT_PATH_BYTES + 8];
    const bool suffixed = lt_path_has_suffix(s->path, ".bin");
    const size_t len = strlen(s->path) - (suffixed ? 4 : 0);

    memcpy(path, s->path, len);
    memcpy(path + len, ".mask", 6);
    if (s->far != NULL) {
        return s->far->mask_bytes > 0 ? check_mask(s, path, s->far->mask_bytes) : LT_OK;
    }
    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY(lt_file_map_open(&s->mask, path));
    return check_mask(s, path, s->mask.size_bytes);
}

/* PREFIX of the Megatron pair that path names, or "". */
static lt_err megatron_prefix(char prefix[LT_PATH_BYTES], const char *path) {
    const bool suffixed = lt_path_has_suffix(path, ".idx") || lt_path_has_suffix(path, ".bin");
    const size_t len = strlen(path) - (suffixed ? 4 : 0);
    if (len + 5 > LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path of %zu characters", strlen(path));
    }
    memcpy(prefix, path, len);
    memcpy(prefix + len, ".idx", 5);
    if (!lt_file_exists(prefix) && !(suffixed && lt_path_has_suffix(path, ".idx"))) {
        if (!suffixed && lt_file_is_dir(path)) {
            LT_FAIL(LT_ERR_ARG,
                    "%s is a folder. Name a shard in it without its ending, as tokens for "
                    "tokens.bin and tokens.idx, or all of them by a pattern, %s%s*.bin",
                    path, path, path[strlen(path) - 1] == '/' ? "" : "/");
        }
        if (!suffixed) {
            LT_FAIL(LT_ERR_NOT_FOUND, "shard %s: there is no %s (`lateen tokenize` writes shards)",
                    path, prefix);
        }
        prefix[0] = '\0';
        return LT_OK;
    }
    prefix[len] = '\0';
    return LT_OK;
}

lt_err lt_shard_open(lt_shard **out, const char *path, int64_t llmc_document_id) {
    return lt_shard_open_far(out, path, llmc_document_id, NULL);
}

const lt_far_shard *lt_shard_far(const lt_shard *s) {
    return s->far;
}

lt_err lt_shard_open_far(lt_shard **out, const char *path, int64_t llmc_document_id,
                         lt_shard_store *store) {
    lt_err err = LT_OK;
    char prefix[LT_PATH_BYTES];
    lt_shard *s = calloc(1, sizeof *s);

    LT_ASSERT(out != NULL && path != NULL);
    if (s == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "shard %s", path);
    }
    s->store = store;
    LT_TRY_DONE(megatron_prefix(prefix, path));
    LT_TRY_DONE(prefix[0] != '\0' ? open_megatron(s, prefix)
                                  : open_llmc(s, path, llmc_document_id));
    LT_TRY_DONE(open_mask(s));
    *out = s;
    s = NULL;
done:
    lt_shard_close(s);
    return err;
}

void lt_shard_close(lt_shard *s) {
    if (s == NULL) {
        return;
    }
    lt_file_map_close(&s->bin);
    lt_file_map_close(&s->idx);
    lt_file_map_close(&s->mask);
    free(s->starts);
    free(s);
}

void lt_shard_forget(const lt_shard *s) {
    lt_file_map_forget(&s->bin);
    lt_file_map_forget(&s->idx);
    lt_file_map_forget(&s->mask);
}

size_t lt_shard_mapped_bytes(const lt_shard *s) {
    return s->bin.size_bytes + s->idx.size_bytes + s->mask.size_bytes;
}

lt_shard_info lt_shard_get_info(const lt_shard *s) {
    return s->info;
}

const char *lt_shard_path(const lt_shard *s) {
    return s->path;
}

/* First token of document d, also for d == n_documents. */
static uint64_t document_start(const lt_shard *s, uint64_t d) {
    uint64_t sequence;
    if (s->info.format == LT_SHARD_LLMC) {
        return s->starts[d];
    }
    sequence = load_u64(s->documents + 8 * d);
    return sequence == s->n_sequences
               ? s->info.n_tokens
               : load_u64(s->pointers + 8 * sequence) / (uint64_t)s->info.token_bytes;
}

void lt_shard_document(const lt_shard *s, uint64_t d, uint64_t *first, uint64_t *n) {
    LT_ASSERT(d < s->info.n_documents);
    *first = document_start(s, d);
    *n = document_start(s, d + 1) - *first;
}

uint64_t lt_shard_find(const lt_shard *s, uint64_t position) {
    /* The last document that begins at or before position. */
    uint64_t low = 0, high = s->info.n_documents;
    LT_ASSERT(position < s->info.n_tokens);
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (document_start(s, middle) <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Widen n stored ids; anything outside [0, 2^31) becomes -1, so that one range check afterwards
 * sees it. */
static void widen(int32_t *ids, const unsigned char *p, size_t n, id_kind kind) {
    for (size_t i = 0; kind == IDS_U8 && i < n; i++) {
        ids[i] = p[i];
    }
    for (size_t i = 0; kind == IDS_U16 && i < n; i++) {
        uint16_t x;
        memcpy(&x, p + 2 * i, sizeof x);
        ids[i] = x;
    }
    for (size_t i = 0; kind == IDS_I16 && i < n; i++) {
        int16_t x;
        memcpy(&x, p + 2 * i, sizeof x);
        ids[i] = x;
    }
    if (kind == IDS_I32 || kind == IDS_U32) { /* A u32 from 2^31 on becomes negative. */
        memcpy(ids, p, 4 * n);
    }
    for (size_t i = 0; kind == IDS_I64 && i < n; i++) {
        int64_t x;
        memcpy(&x, p + 8 * i, sizeof x);
        ids[i] = x >= 0 && x <= INT32_MAX ? (int32_t)x : -1;
    }
}

/* A file of a remote shard, mapped for one read. Between reads the cache may evict it. */
typedef struct {
    lt_held_shard held;
    lt_file_map map;
} borrowed;

static void give_back(const lt_shard *s, borrowed *b) {
    lt_file_map_close(&b->map);
    s->store->let_go(s->store, &b->held);
}

static lt_err borrow(const lt_shard *s, const char *end, size_t bytes, borrowed *b) {
    char path[LT_PATH_BYTES + 8];
    lt_err err;
    b->map = (lt_file_map){.data = NULL};
    LT_TRY(s->store->hold(s->store, s->far, &b->held));
    (void)snprintf(path, sizeof path, "%s%s", b->held.prefix, end);
    err = lt_file_map_open(&b->map, path);
    if (err == LT_OK && b->map.size_bytes != bytes) {
        err = lt_error_set(LT_ERR_FORMAT, "%s: %zu bytes, not %zu", path, b->map.size_bytes, bytes);
    }
    if (err != LT_OK) {
        give_back(s, b);
    }
    return err;
}

lt_err lt_shard_read(const lt_shard *s, uint64_t position, size_t n, int32_t *ids, int64_t id_end) {
    const uint32_t end = id_end > INT32_MAX ? (uint32_t)INT32_MAX + 1 : (uint32_t)id_end;
    const unsigned char *from = s->ids;
    uint32_t bad = 0;
    borrowed b;

    LT_ASSERT(position <= s->info.n_tokens && n <= s->info.n_tokens - position);
    LT_ASSERT(id_end >= 0);
    if (s->far != NULL) {
        LT_TRY(borrow(s, ".bin", s->bin_bytes, &b));
        from = b.map.data;
    }
    widen(ids, from + position * (uint64_t)s->info.token_bytes, n, s->kind);
    if (s->far != NULL) {
        give_back(s, &b);
    }
    for (size_t i = 0; i < n; i++) {
        bad |= (uint32_t)ids[i] >= end;
    }
    for (size_t i = 0; bad != 0 && i < n; i++) {
        if ((uint32_t)ids[i] >= end) {
            LT_FAIL(LT_ERR_FORMAT, "%s: token %llu is id %d, the vocabulary has %lld", s->path,
                    (unsigned long long)(position + i), ids[i], (long long)id_end);
        }
    }
    return LT_OK;
}

static lt_err read_mask(const lt_shard *s, const unsigned char *from, uint64_t position, size_t n,
                        bool *silent) {
    unsigned char bad = 0;
    for (size_t i = 0; i < n; i++) {
        silent[i] = from[i] == LT_MASK_SILENT;
        bad |= from[i] & (unsigned char)~LT_MASK_LABEL;
    }
    for (size_t i = 0; bad != 0 && i < n; i++) {
        if (from[i] > LT_MASK_LABEL) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: the mask has the value %d for token %llu; only 0 and 1 are valid", s->path,
                    from[i], (unsigned long long)(position + i));
        }
    }
    return LT_OK;
}

lt_err lt_shard_read_mask(const lt_shard *s, uint64_t position, size_t n, bool *silent) {
    borrowed b;
    lt_err err;

    LT_ASSERT(position <= s->info.n_tokens && n <= s->info.n_tokens - position);
    if (!s->info.masked) {
        memset(silent, 0, n * sizeof *silent);
        return LT_OK;
    }
    if (s->far == NULL) {
        return read_mask(s, s->mask.data + position, position, n, silent);
    }
    LT_TRY(borrow(s, ".mask", s->far->mask_bytes, &b));
    err = read_mask(s, b.map.data + position, position, n, silent);
    give_back(s, &b);
    return err;
}
