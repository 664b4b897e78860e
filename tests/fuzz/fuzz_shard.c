/* Megatron's index and llm.c's file from arbitrary bytes. The first byte chooses; for an index,
 * the next two bytes are the size of the .bin beside it. If a shard opens, every document and
 * every token must be readable without a fault. */
#include <string.h>

#include "fuzz_file.h"
#include "lateen/data.h"

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
    static int bin = -1, idx = -1, llmc = -1;
    char path[128];
    lt_shard *s = NULL;

    if (bin < 0) {
        bin = fuzz_folder_file("s.bin");
        idx = fuzz_folder_file("s.idx");
        llmc = fuzz_folder_file("l.bin");
    }
    if (size < 3) {
        return 0;
    }
    if ((data[0] & 1) != 0) {
        fuzz_write(llmc, data + 1, size - 1);
    } else {
        if (ftruncate(bin, (off_t)data[1] | (off_t)data[2] << 8) != 0) {
            abort();
        }
        fuzz_write(idx, data + 3, size - 3);
    }
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), (data[0] & 1) != 0 ? "l.bin" : "s.bin");
    if (lt_shard_open(&s, path, (data[0] & 2) != 0 ? 7 : -1) == LT_OK) {
        walk(s);
        lt_shard_close(s);
    }
    return 0;
}
