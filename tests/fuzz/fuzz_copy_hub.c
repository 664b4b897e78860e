/* Fuzz target: the hub's list of the files of a repository. Each accepted name stays below a
 * folder, and each accepted checksum can be the name of a file. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "platform/copy/hub.h"

static lt_err found(void *ctx, const char *name, int64_t size_bytes, const lt_checksum *check) {
    (void)ctx;
    LT_ASSERT(lt_location_is_safe(name) && size_bytes >= 0);
    LT_ASSERT(strlen(check->hex) == 2 * lt_digest_bytes(check->kind));
    LT_ASSERT(strspn(check->hex, "0123456789abcdef") == strlen(check->hex));
    return LT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char commit[LT_HUB_COMMIT_BYTES];
    if (lt_hub_list_read((const char *)data, size, commit, found, NULL) == LT_OK) {
        LT_ASSERT(strlen(commit) == LT_HUB_COMMIT_BYTES - 1);
    }
    return 0;
}
