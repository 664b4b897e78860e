/* Fuzz target: llama2.c's model .bin; every weight that a source offers lies inside the file. */
#include <string.h>

#include "fuzz_file.h"
#include "model/files/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lt_source s;
    lt_model_spec spec;
    volatile unsigned sum = 0;
    if (size < 4 || memcmp(data, "GGUF", 4) == 0) {
        return 0;
    }
    if (lt_weight_source_open(&s, &spec, fuzz_file(data, size)) == LT_OK) {
        for (size_t i = 0; i < s.n_bin_weights; i++) {
            const lt_weight *w = &s.bin_weights[i].weight;
            const size_t bytes = (size_t)(w->shape[0] * (w->n_dims > 1 ? w->shape[1] : 1)) * 4;
            if (w->data < s.bin.data || w->data + bytes > s.bin.data + s.bin.size_bytes) {
                abort();
            }
            sum += w->data[0] + w->data[bytes - 1];
        }
        lt_weight_source_close(&s);
    }
    return 0;
}
