/* Fuzz target: locations as users write them, and names of files. A web address is shown without
 * user and query; what is read and shown reads again as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/copy/location.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    static lt_location l, again;
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (lt_location_read(&l, text) == LT_OK) {
        if (l.at == LT_AT_WEB) {
            LT_ASSERT(strpbrk(l.shown, "?#") == NULL);
            LT_ASSERT(strcspn(strstr(l.shown, "://") + 3, "@") >=
                      strcspn(strstr(l.shown, "://") + 3, "/"));
        }
        LT_ASSERT(lt_location_read(&again, l.shown) == LT_OK && again.at == l.at);
        LT_ASSERT(l.at == LT_AT_WEB || strcmp(again.path, l.path) == 0);
        LT_ASSERT(l.at != LT_AT_HUB || lt_location_is_safe(l.revision));
    }
    if (lt_location_is_safe(text)) {
        LT_ASSERT(text[0] != '/' && strstr(text, "//") == NULL && strstr(text, "/../") == NULL);
    }
    if (lt_uri_decode(text, true)) {
        LT_ASSERT(strlen(text) <= size);
    }
    free(text);
    return 0;
}
