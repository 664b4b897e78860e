/* page_file.c: see page_file.h. */
#include "serve/page_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "tensor/cached.h"

#define MAGIC   "LTPAGES\n"
#define VERSION 2

/* Offsets in the head. */
enum {
    AT_VERSION = 8,
    AT_FINGERPRINT = 16,
    AT_KEYS = 24,
    AT_VALUES = 32,
    AT_PAGE_TOKENS = 40,
    AT_N_PAGES = 44,
    AT_PAGE_BYTES = 48,
    AT_CHECKSUM = 56,
    HEAD_BYTES = 64,
    CHAIN_BYTES = 16,
    NAME_BYTES = 8
};

#define MOST_PAGE_TOKENS 4096
#define SUM_BYTES        sizeof(uint64_t)

static size_t tokens_bytes(const lt_page_file_head *h) {
    return (size_t)(h->n_pages * h->page_tokens) * sizeof(int32_t);
}

static bool has_chain(const lt_page_file_head *h) {
    return h->chain.low != 0 || h->chain.high != 0;
}

static size_t chain_bytes(const lt_page_file_head *h) {
    return has_chain(h) ? CHAIN_BYTES : 0;
}

/* head: the HEAD_BYTES in the file. */
static uint64_t sum_of_head(const lt_page_file_head *h, const unsigned char *head,
                            const void *tokens) {
    uint64_t sum = XXH3_64bits(head, AT_CHECKSUM);
    if (has_chain(h)) {
        sum = XXH3_64bits_withSeed(&h->chain, CHAIN_BYTES, sum);
    }
    return XXH3_64bits_withSeed(tokens, tokens_bytes(h), sum);
}

int64_t lt_page_file_bytes(const lt_page_file_head *h) {
    return (int64_t)(HEAD_BYTES + chain_bytes(h) + tokens_bytes(h)) +
           h->n_pages * (h->page_bytes + (int64_t)SUM_BYTES);
}

/* ---- Writing ---- */

struct lt_page_file {
    FILE *file;
    lt_page_file_head head;
    int64_t n_put, bytes;
    char path[LT_PATH_BYTES], aside[LT_PATH_BYTES]; /* aside "": it has its final name. */
};

static void put_u32(unsigned char *at, int64_t x) {
    memcpy(at, &(uint32_t){(uint32_t)x}, sizeof(uint32_t));
}

static lt_err put(lt_page_file *f, const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, f->file) != bytes) {
        LT_FAIL(LT_ERR_IO, "write %s: %s", f->aside, strerror(errno));
    }
    f->bytes += (int64_t)bytes;
    return LT_OK;
}

static lt_err put_head(lt_page_file *f, const int32_t *tokens) {
    const lt_page_file_head *h = &f->head;
    unsigned char head[HEAD_BYTES] = MAGIC;
    const uint64_t page_bytes = (uint64_t)h->page_bytes;
    uint64_t sum;
    put_u32(head + AT_VERSION, has_chain(h) ? 2 : 1);
    memcpy(head + AT_FINGERPRINT, &h->fingerprint, sizeof h->fingerprint);
    memcpy(head + AT_KEYS, lt_dtype_name(h->keys), strlen(lt_dtype_name(h->keys)));
    memcpy(head + AT_VALUES, lt_dtype_name(h->values), strlen(lt_dtype_name(h->values)));
    put_u32(head + AT_PAGE_TOKENS, h->page_tokens);
    put_u32(head + AT_N_PAGES, h->n_pages);
    memcpy(head + AT_PAGE_BYTES, &page_bytes, sizeof page_bytes);
    sum = sum_of_head(h, head, tokens);
    memcpy(head + AT_CHECKSUM, &sum, sizeof sum);
    LT_TRY(put(f, head, sizeof head));
    LT_TRY(put(f, &h->chain, chain_bytes(h)));
    return put(f, tokens, tokens_bytes(h));
}

lt_err lt_page_file_create(lt_page_file **out, const char *path, const lt_page_file_head *head,
                           const int32_t *tokens) {
    lt_err err = LT_OK;
    lt_page_file *f = calloc(1, sizeof *f);
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", path);
    }
    f->head = *head;
    (void)snprintf(f->path, sizeof f->path, "%s", path);
    /* The address makes two names different. */
    if (snprintf(f->aside, sizeof f->aside, "%s.%p" LT_PAGE_FILE_SUFFIX, path, (void *)f) >=
        (int)sizeof f->aside) {
        f->aside[0] = '\0';
        LT_FAIL_DONE(LT_ERR_LIMIT, "the path %.100s... is too long", path);
    }
    f->file = fopen(f->aside, "we");
    if (f->file == NULL) {
        LT_FAIL_DONE(LT_ERR_IO, "create %s: %s", f->aside, strerror(errno));
    }
    LT_TRY_DONE(put_head(f, tokens));
    *out = f;
    f = NULL;
done:
    lt_page_file_close(f);
    return err;
}

lt_err lt_page_file_put(lt_page_file *f, const void *page) {
    const size_t bytes = (size_t)f->head.page_bytes;
    const uint64_t sum = XXH3_64bits_withSeed(page, bytes, (uint64_t)f->n_put);
    LT_ASSERT(f->n_put < f->head.n_pages);
    f->n_put++;
    LT_TRY(put(f, page, bytes));
    return put(f, &sum, sizeof sum);
}

lt_err lt_page_file_commit(lt_page_file *f, bool sync, int64_t *bytes) {
    LT_ASSERT(f->n_put == f->head.n_pages);
    if (fflush(f->file) != 0 || (sync && fsync(fileno(f->file)) != 0)) {
        LT_FAIL(LT_ERR_IO, "write %s: %s", f->aside, strerror(errno));
    }
    if (rename(f->aside, f->path) != 0) {
        LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", f->aside, f->path, strerror(errno));
    }
    f->aside[0] = '\0';
    *bytes = f->bytes;
    return sync ? lt_file_sync_parent(f->path) : LT_OK;
}

void lt_page_file_close(lt_page_file *f) {
    if (f == NULL) {
        return;
    }
    if (f->file != NULL) {
        (void)fclose(f->file);
    }
    if (f->file != NULL && f->aside[0] != '\0') {
        (void)unlink(f->aside);
    }
    free(f);
}

/* ---- Reading ---- */

static uint32_t u32_at(const unsigned char *p) {
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint64_t u64_at(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static bool read_type(lt_dtype *out, const unsigned char *name) {
    for (int i = 0; i < LT_DTYPE_COUNT; i++) {
        char want[NAME_BYTES + 1] = {0};
        (void)snprintf(want, sizeof want, "%s", lt_dtype_name((lt_dtype)i));
        if (lt_cached_refusal((lt_dtype)i, 0) == NULL && memcmp(want, name, NAME_BYTES) == 0) {
            *out = (lt_dtype)i;
            return true;
        }
    }
    return false;
}

lt_err lt_page_file_parse_head(lt_page_file_head *h, const void *data, size_t bytes,
                               const char *name) {
    const unsigned char *p = data;
    uint32_t version;
    if (bytes < HEAD_BYTES || memcmp(p, MAGIC, strlen(MAGIC)) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s is not a file of pages", name);
    }
    version = u32_at(p + AT_VERSION);
    if (version < 1 || version > VERSION) {
        LT_FAIL(LT_ERR_FORMAT, "%s: version %u of the format; this program reads up to version %d",
                name, version, VERSION);
    }
    h->chain = (lt_page_chain){0};
    if (version > 1 && bytes >= HEAD_BYTES + CHAIN_BYTES) {
        memcpy(&h->chain, p + HEAD_BYTES, CHAIN_BYTES);
    }
    h->fingerprint = u64_at(p + AT_FINGERPRINT);
    h->page_tokens = u32_at(p + AT_PAGE_TOKENS);
    h->n_pages = u32_at(p + AT_N_PAGES);
    h->page_bytes = (int64_t)u64_at(p + AT_PAGE_BYTES);
    if (!read_type(&h->keys, p + AT_KEYS) || !read_type(&h->values, p + AT_VALUES) ||
        h->page_tokens < 1 || h->page_tokens > MOST_PAGE_TOKENS || h->n_pages < 1 ||
        h->page_bytes < 1 || h->page_bytes > INT64_MAX / UINT32_MAX / 2 ||
        (version > 1) != has_chain(h) || (version > 1 && h->n_pages != 1)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s is damaged: its head has %lld pages of %lld tokens and %lld bytes", name,
                (long long)h->n_pages, (long long)h->page_tokens, (long long)h->page_bytes);
    }
    return LT_OK;
}

lt_err lt_page_file_parse(lt_page_file_view *out, const void *data, size_t bytes,
                          const char *name) {
    const unsigned char *p = data;
    lt_page_file_view v = {.name = name};
    int64_t want;
    LT_TRY(lt_page_file_parse_head(&v.head, p, bytes, name));
    want = lt_page_file_bytes(&v.head);
    if (bytes != (size_t)want) {
        LT_FAIL(LT_ERR_FORMAT, "%s is damaged: %zu bytes, where its head promises %lld", name,
                bytes, (long long)want);
    }
    v.tokens = p + HEAD_BYTES + chain_bytes(&v.head);
    v.pages = v.tokens + tokens_bytes(&v.head);
    if (u64_at(p + AT_CHECKSUM) != sum_of_head(&v.head, p, v.tokens)) {
        LT_FAIL(LT_ERR_FORMAT, "%s is damaged: the checksum of its head is wrong", name);
    }
    *out = v;
    return LT_OK;
}

lt_err lt_page_file_page(const lt_page_file_view *v, int64_t i, const void **page) {
    const size_t bytes = (size_t)v->head.page_bytes;
    const unsigned char *at = v->pages + (size_t)i * (bytes + SUM_BYTES);
    LT_ASSERT(i >= 0 && i < v->head.n_pages);
    if (u64_at(at + bytes) != XXH3_64bits_withSeed(at, bytes, (uint64_t)i)) {
        LT_FAIL(LT_ERR_FORMAT, "%s is damaged: the checksum of page %lld of %lld is wrong", v->name,
                (long long)i + 1, (long long)v->head.n_pages);
    }
    *page = at;
    return LT_OK;
}
