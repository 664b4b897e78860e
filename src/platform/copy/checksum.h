/* checksum.h: the checksum that a service reports for an object, and the comparison of bytes with
 * it. */
#ifndef LT_PLATFORM_COPY_CHECKSUM_H
#define LT_PLATFORM_COPY_CHECKSUM_H

#include "platform/copy/digest.h"

typedef struct {
    lt_digest_kind kind; /* LT_DIGEST_NONE: only the length is known. */
    char hex[LT_DIGEST_TEXT_BYTES];
    /* 0: the digest of the content. Otherwise: the digest of the digests of its parts, each this
     * long, as S3 computes it for objects that were uploaded in parts. */
    int64_t part_bytes;
} lt_checksum;

typedef struct lt_verifier lt_verifier;

/* Open a verifier, to which bytes are added in order. */
LT_MUST_USE lt_err lt_verifier_open(lt_verifier **out, const lt_checksum *check,
                                    int64_t size_bytes);
void lt_verifier_add(lt_verifier *c, const unsigned char *data, size_t bytes);
/* Compare. FORMAT: the bytes added have another digest; the message has both. */
LT_MUST_USE lt_err lt_verifier_end(lt_verifier *c, const char *shown);
void lt_verifier_close(lt_verifier *c);

/* "SHA-256", "MD5 of its parts", "length": by which a copy was checked. */
void lt_checksum_text(const lt_checksum *check, char out[64]);

#endif
