/* Fuzz target: a safetensors file in memory; on success every byte of every tensor is read. */
#include "model/files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lt_safetensors s;
    volatile unsigned sum = 0;
    if (lt_safetensors_parse(&s, data, size, "fuzz") == LT_OK) {
        for (size_t i = 0; i < s.n_tensors; i++) {
            for (size_t b = 0; b < s.tensors[i].bytes; b++) {
                sum += s.tensors[i].data[b];
            }
        }
        lt_safetensors_close(&s);
    }
    return 0;
}
