/* digest.c: OpenSSL's digests, zlib's CRC-32, and two CRCs that neither has, by tables for eight
 * bytes at a time ("slicing by 8", Kounavis and Berry 2005), which process two bytes in about a
 * nanosecond. */
#include "platform/copy/digest.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <zlib.h>

#include "base/encoding.h"
#include "base/error.h"

/* Reflected polynomials: Castagnoli's; NVM Express Base Specification 2.0, section 5.2.1.3.4. */
#define POLY_CRC32C    0x82F63B78u
#define POLY_CRC64NVME 0x9A6C9329AC4BC9B5u

typedef struct {
    uint64_t t[8][256];
} crc_table;

static crc_table crc32c_table, crc64_table;
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void table_fill(crc_table *table, uint64_t poly) {
    for (unsigned i = 0; i < 256; i++) {
        uint64_t c = i;
        for (int bit = 0; bit < 8; bit++) {
            c = (c & 1) != 0 ? c >> 1 ^ poly : c >> 1;
        }
        table->t[0][i] = c;
    }
    for (unsigned i = 0; i < 256; i++) {
        for (int k = 1; k < 8; k++) {
            const uint64_t c = table->t[k - 1][i];
            table->t[k][i] = c >> 8 ^ table->t[0][c & 255];
        }
    }
}

static void tables_fill(void) {
    table_fill(&crc32c_table, POLY_CRC32C);
    table_fill(&crc64_table, POLY_CRC64NVME);
}

static uint64_t crc_add(const crc_table *table, uint64_t c, const unsigned char *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x = 0;
        for (int k = 7; k >= 0; k--) { /* Compilers turn this loop into one load. */
            x = x << 8 | p[k];
        }
        x ^= c;
        c = 0;
        for (int k = 0; k < 8; k++) {
            c ^= table->t[7 - k][x >> (8 * k) & 255];
        }
    }
    for (; n > 0; n--, p++) {
        c = c >> 8 ^ table->t[0][(c ^ *p) & 255];
    }
    return c;
}

struct lt_digest {
    lt_digest_kind kind;
    EVP_MD_CTX *evp; /* NULL: a CRC. */
    uint64_t crc;
    int64_t git_bytes;
};

static const struct {
    const char *text, *name;
    size_t bytes;
} kinds[LT_DIGEST_COUNT] = {
#define ROW(kind, text, name, bytes) [LT_DIGEST_##kind] = {text, name, bytes},
    LT_DIGEST_MAP(ROW)
#undef ROW
};

const char *lt_digest_text(lt_digest_kind kind) {
    LT_ASSERT(kind >= 0 && kind < LT_DIGEST_COUNT);
    return kinds[kind].text;
}

const char *lt_digest_name(lt_digest_kind kind) {
    LT_ASSERT(kind >= 0 && kind < LT_DIGEST_COUNT);
    return kinds[kind].name;
}

size_t lt_digest_bytes(lt_digest_kind kind) {
    LT_ASSERT(kind >= 0 && kind < LT_DIGEST_COUNT);
    return kinds[kind].bytes;
}

static const EVP_MD *evp_of(lt_digest_kind kind) {
    switch (kind) {
    case LT_DIGEST_MD5:
        return EVP_md5();
    case LT_DIGEST_SHA1:
    case LT_DIGEST_GIT:
        return EVP_sha1();
    case LT_DIGEST_SHA256:
        return EVP_sha256();
    default:
        return NULL;
    }
}

/* 0: OpenSSL refuses, e.g. MD5 on a machine in FIPS mode. */
static int begin(lt_digest *d) {
    char head[32];
    int n;
    d->crc = d->kind == LT_DIGEST_CRC64NVME ? UINT64_MAX : d->kind == LT_DIGEST_CRC32C ? ~0u : 0;
    if (d->evp == NULL) {
        return 1;
    }
    if (EVP_DigestInit_ex(d->evp, evp_of(d->kind), NULL) != 1) {
        return 0;
    }
    if (d->kind == LT_DIGEST_GIT) {
        n = snprintf(head, sizeof head, "blob %lld", (long long)d->git_bytes);
        return EVP_DigestUpdate(d->evp, head, (size_t)n + 1); /* Including the 0. */
    }
    return 1;
}

lt_err lt_digest_open(lt_digest **out, lt_digest_kind kind, int64_t git_bytes) {
    lt_err err = LT_OK;
    lt_digest *d = calloc(1, sizeof *d);

    LT_ASSERT(kind >= 0 && kind < LT_DIGEST_COUNT);
    (void)pthread_once(&tables_once, tables_fill);
    if (d == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a digest");
    }
    d->kind = kind;
    d->git_bytes = git_bytes;
    if (evp_of(kind) != NULL) {
        d->evp = EVP_MD_CTX_new();
        if (d->evp == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "a digest");
        }
    }
    if (begin(d) != 1) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "OpenSSL refuses to compute %s on this machine",
                     kinds[kind].text);
    }
    *out = d;
    d = NULL;
done:
    lt_digest_close(d);
    return err;
}

void lt_digest_add(lt_digest *d, const void *data, size_t bytes) {
    if (d->evp != NULL) {
        LT_ASSERT(EVP_DigestUpdate(d->evp, data, bytes) == 1);
    } else if (d->kind == LT_DIGEST_CRC32) {
        d->crc = crc32_z((uLong)d->crc, data, bytes);
    } else {
        d->crc = crc_add(d->kind == LT_DIGEST_CRC32C ? &crc32c_table : &crc64_table, d->crc, data,
                         bytes);
    }
}

size_t lt_digest_end(lt_digest *d, unsigned char out[LT_DIGEST_BYTES]) {
    const size_t n = kinds[d->kind].bytes;
    if (d->evp != NULL) {
        LT_ASSERT(EVP_DigestFinal_ex(d->evp, out, NULL) == 1);
    } else {
        const uint64_t c = d->kind == LT_DIGEST_CRC32 ? d->crc : ~d->crc;
        for (size_t i = 0; i < n; i++) {
            out[i] = (unsigned char)(c >> (8 * (n - 1 - i)));
        }
    }
    LT_ASSERT(begin(d) == 1); /* It has succeeded before. */
    return n;
}

void lt_digest_close(lt_digest *d) {
    if (d != NULL) {
        EVP_MD_CTX_free(d->evp);
        free(d);
    }
}

uint32_t lt_crc32c(const void *data, size_t bytes) {
    (void)pthread_once(&tables_once, tables_fill);
    return (uint32_t)~crc_add(&crc32c_table, UINT32_MAX, data, bytes);
}

lt_err lt_digest_hex(char *hex, lt_digest_kind kind, const void *data, size_t bytes) {
    unsigned char digest[LT_DIGEST_BYTES];
    lt_digest *d = NULL;
    LT_TRY(lt_digest_open(&d, kind, (int64_t)bytes));
    lt_digest_add(d, data, bytes);
    lt_hex_write(hex, digest, lt_digest_end(d, digest));
    lt_digest_close(d);
    return LT_OK;
}

void lt_base64(char *out, const unsigned char *data, size_t bytes) {
    (void)EVP_EncodeBlock((unsigned char *)out, data, (int)bytes);
}
