/* Fuzz target: the configuration files of the AWS command line. The first line is a name; if a
 * section with that name is put in front of the rest, its value is found, unless the rest has
 * another. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/copy/aws_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char head[] = "[own section]\nown = value\n";
    char *text = malloc(sizeof head + size), out[64];
    bool found = false, rest = false;
    if (text == NULL || memchr(data, '\0', size) != NULL) {
        free(text);
        return 0;
    }
    memcpy(text, head, sizeof head - 1);
    memcpy(text + sizeof head - 1, data, size);
    text[sizeof head - 1 + size] = '\0';
    const lt_err whole = lt_ini_get(text, "own section", "own", out, sizeof out, &found);
    if (whole == LT_OK) {
        LT_ASSERT(found && strlen(out) < sizeof out);
        if (strcasestr(text + sizeof head - 1, "own") == NULL) { /* Names have no case. */
            LT_ASSERT(strcmp(out, "value") == 0);
        }
    }
    (void)lt_ini_get(text + sizeof head - 1, "default", "s3.endpoint_url", out, 8, &rest);
    LT_ASSERT(!rest || strlen(out) < 8);
    free(text);
    return 0;
}
