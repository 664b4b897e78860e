/* seal.c: see seal.h. The cipher is OpenSSL's. */
#include "serve/api/stored/seal.h"

#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define VERSION     1
#define NONCE_BYTES 12
#define TAG_BYTES   16
#define HEAD_BYTES  (1 + NONCE_BYTES + TAG_BYTES)
#define MOST_BYTES  ((size_t)1 << 30) /* OpenSSL's lengths have the type int. */

lt_err lt_seal_key_make(lt_seal_key *out, const char *owner) {
    static const char label[] = "lateen: texts sealed for the owner of a key\n";
    unsigned int n = 0;
    EVP_MD_CTX *digest;
    bool ok;

    if (owner[0] == '\0') {
        if (RAND_bytes(out->key, sizeof out->key) != 1) {
            LT_FAIL(LT_ERR_IO, "no random bytes for a key");
        }
        return LT_OK;
    }
    digest = EVP_MD_CTX_new();
    ok = digest != NULL && EVP_DigestInit_ex(digest, EVP_sha256(), NULL) == 1 &&
         EVP_DigestUpdate(digest, label, sizeof label) == 1 &&
         EVP_DigestUpdate(digest, owner, strlen(owner)) == 1 &&
         EVP_DigestFinal_ex(digest, out->key, &n) == 1;
    EVP_MD_CTX_free(digest);
    if (!ok) {
        LT_FAIL(LT_ERR_OOM, "a key for sealed texts");
    }
    return LT_OK;
}

/* head: version, nonce, space for the tag. */
static bool encrypt(const lt_seal_key *key, unsigned char *head, const char *text, size_t n) {
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    int done = 0;
    const bool ok =
        c != NULL &&
        EVP_EncryptInit_ex(c, EVP_chacha20_poly1305(), NULL, key->key, head + 1) == 1 &&
        EVP_EncryptUpdate(c, NULL, &done, head, 1) == 1 &&
        EVP_EncryptUpdate(c, head + HEAD_BYTES, &done, (const unsigned char *)text, (int)n) == 1 &&
        EVP_EncryptFinal_ex(c, head + HEAD_BYTES + n, &done) == 1 &&
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, head + 1 + NONCE_BYTES) == 1;
    EVP_CIPHER_CTX_free(c);
    return ok;
}

static bool decrypt(const lt_seal_key *key, unsigned char *head, char *text, size_t n) {
    EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
    int done = 0;
    const bool ok =
        c != NULL &&
        EVP_DecryptInit_ex(c, EVP_chacha20_poly1305(), NULL, key->key, head + 1) == 1 &&
        EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, TAG_BYTES, head + 1 + NONCE_BYTES) == 1 &&
        EVP_DecryptUpdate(c, NULL, &done, head, 1) == 1 &&
        EVP_DecryptUpdate(c, (unsigned char *)text, &done, head + HEAD_BYTES, (int)n) == 1 &&
        EVP_DecryptFinal_ex(c, (unsigned char *)text + n, &done) == 1;
    EVP_CIPHER_CTX_free(c);
    return ok;
}

char *lt_seal(const lt_seal_key *key, const char *text, size_t n) {
    const size_t bytes = HEAD_BYTES + n;
    unsigned char *head = n < MOST_BYTES ? malloc(bytes + 1) : NULL;
    char *out = NULL;

    if (head != NULL && RAND_bytes(head + 1, NONCE_BYTES) == 1) {
        head[0] = VERSION;
        out = encrypt(key, head, text, n) ? malloc(4 * ((bytes + 2) / 3) + 1) : NULL;
    }
    if (out != NULL) {
        EVP_EncodeBlock((unsigned char *)out, head, (int)bytes);
    }
    free(head);
    return out;
}

char *lt_unseal(const lt_seal_key *key, const char *sealed, size_t sealed_n, size_t *n) {
    const size_t pads =
        sealed_n < 2 ? 0 : (size_t)((sealed[sealed_n - 1] == '=') + (sealed[sealed_n - 2] == '='));
    const size_t bytes = sealed_n / 4 * 3 - pads;
    unsigned char *head;
    char *text = NULL;

    if (sealed_n % 4 != 0 || sealed_n < 4 || sealed_n >= MOST_BYTES || bytes < HEAD_BYTES) {
        return NULL;
    }
    head = malloc(sealed_n / 4 * 3);
    if (head != NULL &&
        EVP_DecodeBlock(head, (const unsigned char *)sealed, (int)sealed_n) >= (int)bytes &&
        head[0] == VERSION) {
        *n = bytes - HEAD_BYTES;
        text = malloc(*n + 1);
    }
    if (text != NULL && !decrypt(key, head, text, *n)) {
        free(text);
        text = NULL;
    }
    if (text != NULL) {
        text[*n] = '\0';
    }
    free(head);
    return text;
}
