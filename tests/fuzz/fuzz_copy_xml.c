/* Fuzz target: answers of an object store: a page of a list, an error. Keys in a list are text,
 * sizes are not negative. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "platform/copy/s3.h"

static lt_err found(void *ctx, const char *key, int64_t size_bytes, double modified_s) {
    (void)ctx;
    LT_ASSERT(key[0] != '\0' && size_bytes >= 0 && modified_s == modified_s);
    return LT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char next[LT_S3_UPLOAD_BYTES], code[64], message[256];
    if (lt_s3_list_page((const char *)data, size, found, NULL, next) == LT_OK) {
        LT_ASSERT(strlen(next) < sizeof next);
    }
    lt_s3_error((const char *)data, size, code, message);
    LT_ASSERT(strlen(code) < sizeof code && strlen(message) < sizeof message);
    return 0;
}
