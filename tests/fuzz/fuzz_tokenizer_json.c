/* tokenizer.json (and tekken.json) from arbitrary bytes; what opens must encode and decode without
 * a crash. */
#include <stddef.h>
#include <stdint.h>

#include "fuzz_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_tokenizer(data, size, "tokenizer.json");
    return 0;
}
