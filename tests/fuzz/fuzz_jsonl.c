/* One line of JSON: our scanner against jansson. If jansson reads an object with a string "text",
 * we must read the same string; what jansson refuses for another reason than its own limits (size
 * of numbers, depth) we must refuse, too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "data/json_line.h"
#include "data/text_utf8.h"

/* jansson stores everything, so it refuses large numbers, NUL in keys and lone surrogates
 * (\uD...) anywhere; in fields that we do not need we check only the grammar. */
static int only_its_limits(const json_error_t *why, const char *line, size_t size) {
    const enum json_error_code code = json_error_code(why);
    return code == json_error_numeric_overflow || code == json_error_stack_overflow ||
           code == json_error_null_byte_in_key || memmem(line, size, "\\ud", 3) != NULL ||
           memmem(line, size, "\\uD", 3) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *line = (const char *)data;
    lt_text_buffer ours = {0};
    lt_lone_escapes lone = {0};
    size_t bytes = 0;
    json_error_t why;
    json_t *root = json_loadb(line, size, JSON_ALLOW_NUL, &why);
    const json_t *wanted = json_is_object(root) ? json_object_get(root, "text") : NULL;
    const int utf8 = lt_utf8_valid_prefix(line, size) == size;
    const lt_err err = lt_json_line_string(&ours, &bytes, line, size, "text", NULL);

    if (json_is_string(wanted) && memchr(line, 0, size) != NULL) {
        (void)wanted; /* jansson accepts a raw NUL after a number, which is not JSON. */
    } else if (json_is_string(wanted)) {
        if (err != LT_ERR_LIMIT && (err != LT_OK || bytes != json_string_length(wanted) ||
                                    memcmp(ours.data, json_string_value(wanted), bytes) != 0)) {
            abort();
        }
    } else if (err == LT_OK && utf8 && !(root == NULL && only_its_limits(&why, line, size))) {
        abort();
    }
    if (lt_json_line_string(&ours, &bytes, line, size, "text", &lone) == LT_OK && utf8 &&
        (lt_utf8_valid_prefix(ours.data, bytes) != bytes ||
         lone.n > lt_json_line_lone(line, size).n || (err == LT_OK) != (lone.n == 0))) {
        abort();
    }
    json_decref(root);
    lt_text_buffer_free(&ours);
    return 0;
}
