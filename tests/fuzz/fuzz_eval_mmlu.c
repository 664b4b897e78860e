/* Fuzz target: MMLU's tar of CSV files. The input is a CSV that the tar holds as dev and as test
 * of one subject; if the first byte is odd, the input is the tar itself. */
#include <string.h>

#include "fuzz_file.h"
#include "train/eval/eval_items.h"

#define BLOCK 512

static size_t put_member(uint8_t *to, const char *name, const uint8_t *data, size_t size) {
    memset(to, 0, BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK);
    snprintf((char *)to, 100, "%s", name);
    snprintf((char *)to + 124, 12, "%011zo", size);
    to[156] = '0';
    memcpy(to + 257, "ustar", 5);
    memcpy(to + BLOCK, data, size);
    return BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t tar[1 << 15];
    lt_eval_items items = {0};
    lt_eval_metric metric;
    size_t n = 0;
    if (size == 0 || size > sizeof tar / 4) {
        return 0;
    }
    if ((data[0] & 1) == 0) {
        n += put_member(tar, "data/dev/birds_dev.csv", data + 1, size - 1);
        n += put_member(tar + n, "data/test/birds_test.csv", data + 1, size - 1);
    } else {
        memcpy(tar, data + 1, size - 1);
        n = size - 1;
    }
    (void)!lt_eval_items_read(&items, &metric, "mmlu", fuzz_file(tar, n), 16, 2);
    lt_eval_items_free(&items);
    return 0;
}
