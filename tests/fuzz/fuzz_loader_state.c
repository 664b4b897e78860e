/* The loader's position from arbitrary text; a position that parses is printed and parses again
 * to the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lateen/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_loader_state one, two;
    static char text[64 * 256];
    if (lt_loader_state_parse(&one, (const char *)data, size) != LT_OK) {
        return 0;
    }
    if (lt_loader_state_print(&one, text, sizeof text) != LT_OK ||
        lt_loader_state_parse(&two, text, strlen(text)) != LT_OK ||
        memcmp(&one, &two, sizeof one) != 0) {
        abort();
    }
    return 0;
}
