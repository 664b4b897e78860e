/* The GGUF container from arbitrary bytes; every string and tensor byte is then touched. */
#include <stddef.h>
#include <stdint.h>

#include "data/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lt_gguf *g = NULL;
    volatile unsigned sum = 0;
    if (lt_gguf_parse(&g, data, size, "fuzz") != LT_OK) {
        return 0;
    }
    for (size_t i = 0; i < g->n_kvs; i++) {
        const lt_gguf_kv *kv = &g->kvs[i];
        size_t at = 0;
        for (uint64_t k = 0; k < kv->n; k++) {
            if (kv->elem == LT_GGUF_STR) {
                const lt_gguf_str s = lt_gguf_str_next(kv, &at);
                sum += s.bytes > 0 ? (unsigned)s.data[s.bytes - 1] : 0;
            } else {
                sum += lt_gguf_elem_f64(kv, k) > 0;
            }
        }
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        sum += g->tensors[i].bytes > 0 ? g->tensors[i].data[g->tensors[i].bytes - 1] : 0;
    }
    lt_gguf_close(g);
    return 0;
}
