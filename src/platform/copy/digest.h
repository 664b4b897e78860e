/* digest.h: the checksums by which services name and check their content, computed in one pass over
 * the bytes.
 *
 *     MD5       ETag of an object written in one piece, and of each part; Content-MD5
 *     SHA1, SHA256, CRC32, CRC32C, CRC64NVME   x-amz-checksum-*
 *     SHA256    ETag of a large file on Hugging Face's hub
 *     GIT       ETag of its small files: SHA-1 of "blob SIZE\0" and the content */
#ifndef LT_PLATFORM_COPY_DIGEST_H
#define LT_PLATFORM_COPY_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

/* Kind, name for users, name in x-amz-checksum-*, bytes. */
#define LT_DIGEST_MAP(X)                                                                           \
    X(MD5, "MD5", "md5", 16)                                                                       \
    X(SHA1, "SHA-1", "sha1", 20)                                                                   \
    X(SHA256, "SHA-256", "sha256", 32)                                                             \
    X(CRC32, "CRC-32", "crc32", 4)                                                                 \
    X(CRC32C, "CRC-32C", "crc32c", 4)                                                              \
    X(CRC64NVME, "CRC-64/NVME", "crc64nvme", 8)                                                    \
    X(GIT, "git's SHA-1", "git", 20)

typedef enum {
#define LT_DIGEST_ENUM(kind, text, name, bytes) LT_DIGEST_##kind,
    LT_DIGEST_MAP(LT_DIGEST_ENUM)
#undef LT_DIGEST_ENUM
        LT_DIGEST_COUNT,
    LT_DIGEST_NONE = LT_DIGEST_COUNT
} lt_digest_kind;

#define LT_DIGEST_BYTES      32
#define LT_DIGEST_TEXT_BYTES 65 /* Hex; base64 is shorter. */

typedef struct lt_digest lt_digest;

/* git_bytes: the size of the whole content, with which GIT's digest begins; ignored for other
 * kinds. */
LT_MUST_USE lt_err lt_digest_open(lt_digest **out, lt_digest_kind kind, int64_t git_bytes);
void lt_digest_add(lt_digest *d, const void *data, size_t bytes);
/* The digest of everything that was added, big-endian as services write it; then a new digest
 * begins. Returns its length. */
size_t lt_digest_end(lt_digest *d, unsigned char out[LT_DIGEST_BYTES]);
void lt_digest_close(lt_digest *d);

/* The CRC-32C of one buffer. */
uint32_t lt_crc32c(const void *data, size_t bytes);
/* The digest of one buffer in hexadecimal: 2 * lt_digest_bytes(kind) digits and a 0. */
LT_MUST_USE lt_err lt_digest_hex(char *hex, lt_digest_kind kind, const void *data, size_t bytes);

const char *lt_digest_text(lt_digest_kind kind); /* "SHA-256" */
const char *lt_digest_name(lt_digest_kind kind); /* "sha256" */
size_t lt_digest_bytes(lt_digest_kind kind);

void lt_base64(char *out, const unsigned char *data, size_t bytes); /* 4 * ceil(bytes / 3) + 1 */

#endif
