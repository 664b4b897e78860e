/* shard_writer.c: see shard_writer.h; layout: shard_format.h.
 *
 * Crash cases of finish, in order:
 * (1) before the rename of .bin: both .part files exist, and open continues with them.
 * (2) between the renames: .bin exists, .bin.part and .idx do not: open renames .bin back to
 *     .bin.part, and add_mask does the same with .mask.
 * (3) after the rename of .idx: the shard is complete; discard removes a leftover .sizes.part.
 * An older .idx is removed before the new .bin takes its place, and so is an older .mask unless a
 * new one replaces it, so that old and new files never mix. */
#include "data/shard_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "data/shard_format.h"

#define PREFIX_BYTES_MAX (LT_PATH_BYTES - 16) /* Room for the longest suffix. */
#define BUFFER_BYTES     ((size_t)1 << 20)

/* A file written through a buffer. */
typedef struct {
    char path[LT_PATH_BYTES];
    int fd;
    size_t used;
    unsigned char *buffer; /* (BUFFER_BYTES) */
} part_file;

struct lt_shard_writer {
    char prefix[LT_PATH_BYTES];
    int64_t vocab_size;
    int token_bytes;
    lt_shard_mark mark;
    part_file bin, sizes;
    part_file mask; /* fd -1: the shard has none. */
};

static void name(char out[LT_PATH_BYTES], const char *prefix, const char *suffix) {
    const size_t len = strlen(prefix);
    LT_ASSERT(len < PREFIX_BYTES_MAX && strlen(suffix) < LT_PATH_BYTES - PREFIX_BYTES_MAX);
    memcpy(out, prefix, len);
    strcpy(out + len, suffix);
}

static lt_err part_flush(part_file *f) {
    size_t put = 0;
    while (put < f->used) {
        const ssize_t n = write(f->fd, f->buffer + put, f->used - put);
        if (n < 0 && errno != EINTR) {
            memmove(f->buffer, f->buffer + put, f->used - put);
            f->used -= put;
            LT_FAIL(LT_ERR_IO, "%s: %s", f->path, strerror(errno));
        }
        put += n > 0 ? (size_t)n : 0;
    }
    f->used = 0;
    return LT_OK;
}

static lt_err part_put(part_file *f, const void *data, size_t bytes) {
    const unsigned char *from = data;
    while (bytes > 0) {
        const size_t room = BUFFER_BYTES - f->used, n = bytes < room ? bytes : room;
        memcpy(f->buffer + f->used, from, n);
        f->used += n;
        from += n;
        bytes -= n;
        if (f->used == BUFFER_BYTES) {
            LT_TRY(part_flush(f));
        }
    }
    return LT_OK;
}

static lt_err part_sync(part_file *f) {
    LT_TRY(part_flush(f));
    if (fdatasync(f->fd) != 0) {
        LT_FAIL(LT_ERR_IO, "sync of %s: %s", f->path, strerror(errno));
    }
    return LT_OK;
}

/* Open for appending after keep_bytes; the rest of the file is truncated. */
static lt_err part_open(part_file *f, const char *prefix, const char *suffix, uint64_t keep_bytes) {
    struct stat st;
    name(f->path, prefix, suffix);
    f->buffer = malloc(BUFFER_BYTES);
    if (f->buffer == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: write buffer", f->path);
    }
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", f->path, strerror(errno));
    }
    if ((uint64_t)st.st_size < keep_bytes) {
        LT_FAIL(LT_ERR_STATE, "%s: %lld bytes, but %llu were written: it cannot be resumed",
                f->path, (long long)st.st_size, (unsigned long long)keep_bytes);
    }
    if (ftruncate(f->fd, (off_t)keep_bytes) != 0 || lseek(f->fd, 0, SEEK_END) < 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", f->path, strerror(errno));
    }
    return LT_OK;
}

static void part_close(part_file *f) {
    if (f->fd >= 0) {
        close(f->fd);
    }
    free(f->buffer);
    f->fd = -1;
    f->buffer = NULL;
}

static lt_err rename_file(const char *from, const char *to) {
    if (rename(from, to) != 0) {
        LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", from, to, strerror(errno));
    }
    return LT_OK;
}

/* Crash case (2): rename a file (".bin", ".mask") back. */
static lt_err undo_half_finish(const char *prefix, const char *suffix, const char *part_suffix) {
    char whole[LT_PATH_BYTES], part[LT_PATH_BYTES], idx[LT_PATH_BYTES];
    name(whole, prefix, suffix);
    name(part, prefix, part_suffix);
    name(idx, prefix, ".idx");
    if (!lt_file_exists(part) && lt_file_exists(whole) && !lt_file_exists(idx)) {
        return rename_file(whole, part);
    }
    return LT_OK;
}

lt_err lt_shard_writer_open(lt_shard_writer **out, const char *prefix, int64_t vocab_size,
                            const lt_shard_mark *mark) {
    lt_err err = LT_OK;
    lt_shard_writer *w = calloc(1, sizeof *w);

    LT_ASSERT(vocab_size > 0 && vocab_size <= (int64_t)INT32_MAX + 1);
    if (w == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "writer of %s", prefix);
    }
    w->bin.fd = w->sizes.fd = w->mask.fd = -1;
    if (strlen(prefix) >= PREFIX_BYTES_MAX) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "path of %zu characters", strlen(prefix));
    }
    name(w->prefix, prefix, "");
    w->vocab_size = vocab_size;
    w->token_bytes = vocab_size < LT_IDX_U16_VOCAB_END ? 2 : 4;
    if (mark != NULL) {
        w->mark = *mark;
        LT_TRY_DONE(undo_half_finish(prefix, ".bin", ".bin.part"));
    }
    LT_TRY_DONE(
        part_open(&w->bin, prefix, ".bin.part", w->mark.n_tokens * (uint64_t)w->token_bytes));
    LT_TRY_DONE(part_open(&w->sizes, prefix, ".sizes.part", w->mark.n_documents * sizeof(int32_t)));
    *out = w;
    w = NULL;
done:
    lt_shard_writer_close(w);
    return err;
}

lt_err lt_shard_writer_add_mask(lt_shard_writer *w) {
    LT_ASSERT(w->mask.fd < 0);
    if (w->mark.n_tokens > 0) {
        LT_TRY(undo_half_finish(w->prefix, ".mask", ".mask.part"));
    }
    return part_open(&w->mask, w->prefix, ".mask.part", w->mark.n_tokens);
}

void lt_shard_writer_close(lt_shard_writer *w) {
    if (w == NULL) {
        return;
    }
    part_close(&w->bin);
    part_close(&w->sizes);
    part_close(&w->mask);
    free(w);
}

lt_err lt_shard_writer_append(lt_shard_writer *w, const int32_t *ids, size_t n) {
    return lt_shard_writer_append_masked(w, ids, NULL, n);
}

lt_err lt_shard_writer_append_masked(lt_shard_writer *w, const int32_t *ids,
                                     const unsigned char *mask, size_t n) {
    uint16_t narrow[4096];
    int32_t size;

    LT_ASSERT((mask != NULL) == (w->mask.fd >= 0));
    if (n > INT32_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "%s: document %llu has %zu tokens, the format ends at %d", w->prefix,
                (unsigned long long)w->mark.n_documents, n, INT32_MAX);
    }
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= w->vocab_size) {
            LT_FAIL(LT_ERR_FORMAT, "%s: document %llu: token %zu is id %d, the vocabulary has %lld",
                    w->prefix, (unsigned long long)w->mark.n_documents, i, ids[i],
                    (long long)w->vocab_size);
        }
    }
    size = (int32_t)n;
    LT_TRY(part_put(&w->sizes, &size, sizeof size));
    for (size_t at = 0; w->token_bytes == 2 && at < n; at += sizeof narrow / sizeof *narrow) {
        const size_t left = n - at, some = left < sizeof narrow / sizeof *narrow
                                               ? left
                                               : sizeof narrow / sizeof *narrow;
        for (size_t i = 0; i < some; i++) {
            narrow[i] = (uint16_t)ids[at + i];
        }
        LT_TRY(part_put(&w->bin, narrow, some * sizeof *narrow));
    }
    if (w->token_bytes == 4) {
        LT_TRY(part_put(&w->bin, ids, n * sizeof *ids));
    }
    if (mask != NULL) {
        LT_TRY(part_put(&w->mask, mask, n));
    }
    w->mark.n_documents++;
    w->mark.n_tokens += n;
    return LT_OK;
}

lt_err lt_shard_writer_sync(lt_shard_writer *w, lt_shard_mark *mark) {
    LT_TRY(part_sync(&w->bin));
    LT_TRY(part_sync(&w->sizes));
    if (w->mask.fd >= 0) {
        LT_TRY(part_sync(&w->mask));
    }
    *mark = w->mark;
    return LT_OK;
}

static lt_err put_u64(part_file *f, uint64_t x) {
    return part_put(f, &x, sizeof x);
}

/* Header, sizes, pointers and document table; each document is one sequence. */
static lt_err write_index(part_file *f, const lt_shard_writer *w, const int32_t *sizes) {
    const uint64_t n = w->mark.n_documents;
    const unsigned char code = w->token_bytes == 2 ? LT_IDX_U16 : LT_IDX_I32;
    uint64_t at = 0;

    LT_TRY(part_put(f, LT_IDX_MAGIC, LT_IDX_MAGIC_BYTES));
    LT_TRY(put_u64(f, LT_IDX_VERSION));
    LT_TRY(part_put(f, &code, sizeof code));
    LT_TRY(put_u64(f, n));
    LT_TRY(put_u64(f, n + 1));
    LT_TRY(part_put(f, sizes, n * sizeof *sizes));
    for (uint64_t i = 0; i < n; i++) {
        LT_TRY(put_u64(f, at));
        at += (uint64_t)sizes[i] * (uint64_t)w->token_bytes;
    }
    for (uint64_t i = 0; i <= n; i++) {
        LT_TRY(put_u64(f, i));
    }
    return part_sync(f);
}

static lt_err remove_file(const char *path) {
    if (unlink(path) != 0 && errno != ENOENT) {
        LT_FAIL(LT_ERR_IO, "remove %s: %s", path, strerror(errno));
    }
    return LT_OK;
}

lt_err lt_shard_writer_finish(lt_shard_writer *w) {
    lt_err err = LT_OK;
    char bin[LT_PATH_BYTES], mask[LT_PATH_BYTES], idx[LT_PATH_BYTES];
    lt_shard_mark mark;
    lt_file_map sizes = {0};
    part_file index = {.fd = -1};

    name(bin, w->prefix, ".bin");
    name(mask, w->prefix, ".mask");
    name(idx, w->prefix, ".idx");
    LT_TRY_DONE(lt_shard_writer_sync(w, &mark));
    LT_TRY_DONE(lt_file_map_open(&sizes, w->sizes.path));
    LT_ASSERT(sizes.size_bytes == mark.n_documents * sizeof(int32_t));
    LT_TRY_DONE(part_open(&index, w->prefix, ".idx.part", 0));
    LT_TRY_DONE(write_index(&index, w, (const int32_t *)(const void *)sizes.data));
    LT_TRY_DONE(remove_file(idx));
    LT_TRY_DONE(lt_file_sync_parent(idx));
    LT_TRY_DONE(w->mask.fd < 0 ? remove_file(mask) : LT_OK);
    LT_TRY_DONE(rename_file(w->bin.path, bin));
    LT_TRY_DONE(w->mask.fd >= 0 ? rename_file(w->mask.path, mask) : LT_OK);
    LT_TRY_DONE(rename_file(index.path, idx));
    LT_TRY_DONE(lt_file_sync_parent(idx));
    LT_TRY_DONE(remove_file(w->sizes.path));
done:
    part_close(&index);
    lt_file_map_close(&sizes);
    return err;
}

lt_shard_mark lt_shard_writer_mark(const lt_shard_writer *w) {
    return w->mark;
}

int lt_shard_writer_token_bytes(const lt_shard_writer *w) {
    return w->token_bytes;
}

lt_err lt_shard_writer_discard(const char *prefix) {
    static const char *const suffixes[] = {".bin.part", ".sizes.part", ".mask.part", ".idx.part"};
    char path[LT_PATH_BYTES];
    if (strlen(prefix) >= PREFIX_BYTES_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "path of %zu characters", strlen(prefix));
    }
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        name(path, prefix, suffixes[i]);
        LT_TRY(remove_file(path));
    }
    return LT_OK;
}
