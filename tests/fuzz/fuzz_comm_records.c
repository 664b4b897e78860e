/* Fuzz target: the records of two ranks, split at the first 0xff byte, as `lateen comm blame` reads
 * them. */
#include <string.h>

#include "fuzz_file.h"

#include "lateen/comm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fds[2] = {-1, -1};
    char text[1000];
    const uint8_t *cut = size > 0 ? memchr(data, 0xff, size) : NULL;
    const size_t first = cut != NULL ? (size_t)(cut - data) : size;
    if (fds[0] < 0) {
        fds[0] = fuzz_folder_file("rank-0.jsonl");
        fds[1] = fuzz_folder_file("rank-1.jsonl");
    }
    fuzz_write(fds[0], data, first);
    fuzz_write(fds[1], cut != NULL ? cut + 1 : data, cut != NULL ? size - first - 1 : 0);
    (void)!lt_comm_blame(fuzz_folder(), text, sizeof text);
    if (memchr(text, '\0', sizeof text) == NULL) {
        __builtin_trap();
    }
    return 0;
}
