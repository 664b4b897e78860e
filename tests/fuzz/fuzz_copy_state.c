/* Fuzz target: the text in which a copy records a file in transfer. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "platform/copy/state.h"

#define N_PARTS 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char upload[LT_STATE_UPLOAD_BYTES];
    lt_state_part parts[N_PARTS];
    size_t kept = 0;
    if (lt_state_read((const char *)data, size, "0123456789abcdef0123456789abcdef", upload, parts,
                      N_PARTS, &kept)) {
        LT_ASSERT(kept > 0 && kept <= size && data[kept - 1] == '\n');
        LT_ASSERT(strlen(upload) < sizeof upload);
        for (int i = 0; i < N_PARTS; i++) {
            LT_ASSERT(parts[i].has || parts[i].hash == 0);
        }
    }
    return 0;
}
