/* checksum.c: see checksum.h. */
#include "platform/copy/checksum.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"

struct lt_verifier {
    lt_checksum check;
    lt_digest *inner, *outer; /* outer: over the digests of parts, or NULL. */
    int64_t in_part;
};

lt_err lt_verifier_open(lt_verifier **out, const lt_checksum *check, int64_t size_bytes) {
    lt_err err = LT_OK;
    lt_verifier *c = calloc(1, sizeof *c);

    if (c == NULL) {
        LT_FAIL(LT_ERR_OOM, "a check");
    }
    c->check = *check;
    LT_TRY_DONE(lt_digest_open(&c->inner, check->kind, size_bytes));
    if (check->part_bytes > 0) {
        LT_TRY_DONE(lt_digest_open(&c->outer, check->kind, size_bytes));
    }
    *out = c;
    c = NULL;
done:
    lt_verifier_close(c);
    return err;
}

static void end_part(lt_verifier *c) {
    unsigned char digest[LT_DIGEST_BYTES];
    lt_digest_add(c->outer, digest, lt_digest_end(c->inner, digest));
    c->in_part = 0;
}

void lt_verifier_add(lt_verifier *c, const unsigned char *data, size_t bytes) {
    while (c->outer != NULL && bytes > 0) {
        const int64_t left = c->check.part_bytes - c->in_part;
        const size_t n = (int64_t)bytes < left ? bytes : (size_t)left;
        lt_digest_add(c->inner, data, n);
        c->in_part += (int64_t)n;
        data += n;
        bytes -= n;
        if (c->in_part == c->check.part_bytes) {
            end_part(c);
        }
    }
    if (c->outer == NULL) {
        lt_digest_add(c->inner, data, bytes);
    }
}

lt_err lt_verifier_end(lt_verifier *c, const char *shown) {
    unsigned char digest[LT_DIGEST_BYTES];
    char hex[LT_DIGEST_TEXT_BYTES], by[64];
    size_t n;

    if (c->outer != NULL && c->in_part > 0) {
        end_part(c);
    }
    n = lt_digest_end(c->outer != NULL ? c->outer : c->inner, digest);
    lt_hex_write(hex, digest, n);
    if (strcmp(hex, c->check.hex) != 0) {
        lt_checksum_text(&c->check, by);
        LT_FAIL(LT_ERR_FORMAT, "%s: the bytes received have the %s %s, but the source has %s",
                shown, by, hex, c->check.hex);
    }
    return LT_OK;
}

void lt_verifier_close(lt_verifier *c) {
    if (c != NULL) {
        lt_digest_close(c->inner);
        lt_digest_close(c->outer);
        free(c);
    }
}

void lt_checksum_text(const lt_checksum *check, char out[64]) {
    (void)snprintf(out, 64, "%s%s",
                   check->kind == LT_DIGEST_NONE ? "length" : lt_digest_text(check->kind),
                   check->kind != LT_DIGEST_NONE && check->part_bytes > 0 ? " of its parts" : "");
}
