/* Fuzz target: a generation_config.json beside weights. Each field is read or ignored, and what
 * is read is written again. */
#include <stdlib.h>

#include "base/log.h"
#include "fuzz_file.h"
#include "model/infer/generation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    lt_model *m = calloc(1, sizeof *m);
    if (fd < 0) {
        lt_log_set_level(LT_LOG_ERROR);
        fd = fuzz_folder_file("generation_config.json");
    }
    fuzz_write(fd, data, size);
    m->spec.vocab_size = 1000;
    if (lt_generation_read(m, fuzz_folder()) != LT_OK) {
        abort();
    }
    lt_generation_close(m);
    free(m);
    return 0;
}
