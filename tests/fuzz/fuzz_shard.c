/* Megatron's index and llm.c's file from arbitrary bytes. The first byte says which; for an index, the .bin beside it has the size that the next
 * two bytes say. A shard that opens must hand out every document and every token without a fault. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lateen/data.h"

static char folder[] =
    "/dev/shm/lateen-fuzz-shard-XXXXXX"; /* Memory: thousands of runs a second. */

static void remove_folder(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/s.bin", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/s.idx", folder);
    unlink(path);
    rmdir(folder);
}

static void put(const char *name, const uint8_t *data, size_t size) {
    char path[128];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        abort();
    }
}

static void walk(const lt_shard *s) {
    const lt_shard_info info = lt_shard_get_info(s);
    int32_t ids[64];
    uint64_t at = 0;
    for (uint64_t d = 0; d < info.n_documents; d++) {
        uint64_t first, n;
        lt_shard_document(s, d, &first, &n);
        if (first != at || (n > 0 && lt_shard_find(s, first + n - 1) != d)) {
            abort();
        }
        at += n;
    }
    if (at != info.n_tokens) {
        abort();
    }
    for (at = 0; at < info.n_tokens; at += 64) {
        (void)!lt_shard_read(s, at, info.n_tokens - at < 64 ? (size_t)(info.n_tokens - at) : 64,
                             ids, 50000);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t zeros[65536];
    static int made;
    char path[128];
    lt_shard *s = NULL;

    if (!made) {
        made = mkdtemp(folder) != NULL;
        atexit(remove_folder);
    }
    if (!made || size < 3) {
        return 0;
    }
    snprintf(path, sizeof path, "%s/s.idx", folder);
    unlink(path);
    if ((data[0] & 1) != 0) {
        put("s.bin", data + 1, size - 1);
    } else {
        put("s.bin", zeros, (size_t)data[1] | (size_t)data[2] << 8);
        put("s.idx", data + 3, size - 3);
    }
    snprintf(path, sizeof path, "%s/s.bin", folder);
    if (lt_shard_open(&s, path, (data[0] & 2) != 0 ? 7 : -1) == LT_OK) {
        walk(s);
        lt_shard_close(s);
    }
    return 0;
}
