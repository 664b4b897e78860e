/* seal.h: encrypts texts that a client stores and returns without reading or changing them: the
 * `encrypted_content` of reasoning, the signature of thinking.
 *
 * A seal is base64 of  version (1) | nonce (12) | tag (16) | ciphertext  under ChaCha20-Poly1305.
 * Its key belongs to the owner and is derived from the owner's API key, so another owner cannot
 * open the seal, while a restarted server and its replicas can. Without API keys the key is random,
 * and a restart makes seals unreadable. */
#ifndef LT_SERVE_SEAL_H
#define LT_SERVE_SEAL_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"

#define LT_SEAL_KEY_BYTES 32

typedef struct {
    unsigned char key[LT_SEAL_KEY_BYTES];
} lt_seal_key;

/* owner "": a random key. */
LT_MUST_USE lt_err lt_seal_key_make(lt_seal_key *out, const char *owner);
/* malloc'ed, 0-terminated; NULL: out of memory. */
char *lt_seal(const lt_seal_key *key, const char *text, size_t n);
/* The text, malloc'ed and 0-terminated; NULL: the seal was made with another key, or was
 * changed. */
char *lt_unseal(const lt_seal_key *key, const char *sealed, size_t sealed_n, size_t *n);

#endif
