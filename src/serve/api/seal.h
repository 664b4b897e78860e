/* seal.h: texts that go to a client and come back unread and unchanged: the `encrypted_content` of
 * reasoning, the signature of thinking.
 *
 * A seal is base64 of  version (1) | nonce (12) | tag (16) | ciphertext  under ChaCha20-Poly1305.
 * Its key belongs to the owner, an API key: another owner's seal is not opened. It is derived from
 * the API key, so that a restarted server and its replicas open each other's; where no keys are
 * asked for it is random, and a restart makes seals unreadable. */
#ifndef LT_SERVE_SEAL_H
#define LT_SERVE_SEAL_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"

#define LT_SEAL_KEY_BYTES 32

typedef struct {
    unsigned char key[LT_SEAL_KEY_BYTES];
} lt_seal_key;

/* owner "": random. */
LT_MUST_USE lt_err lt_seal_key_make(lt_seal_key *out, const char *owner);
/* malloc'ed, 0-terminated; NULL: out of memory. */
char *lt_seal(const lt_seal_key *key, const char *text, size_t n);
/* The text, malloc'ed, 0-terminated; NULL: it was not sealed with this key, or was changed. */
char *lt_unseal(const lt_seal_key *key, const char *sealed, size_t sealed_n, size_t *n);

#endif
