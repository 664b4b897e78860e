/* error.c: one fixed buffer a thread holds the message of the last failure; setting it never
 * allocates, so running out of memory can be reported like anything else. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES 1024 /* A path (at most 4096, shortened here) and a sentence. */

static _Thread_local char message[MESSAGE_BYTES];

const char *lt_err_text(lt_err err) {
    static const char *const texts[LT_ERR_COUNT] = {
#define LT_ERR_TEXT(code, text) [LT_ERR_##code] = text,
        LT_ERR_MAP(LT_ERR_TEXT)
#undef LT_ERR_TEXT
    };
    LT_ASSERT(err >= 0 && err < LT_ERR_COUNT);
    return texts[err];
}

const char *lt_error_message(void) {
    return message;
}

lt_err lt_error_set(lt_err err, const char *fmt, ...) {
    va_list args;
    LT_ASSERT(err != LT_OK);
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return err;
}

lt_err lt_error_prefix(lt_err err, const char *fmt, ...) {
    char old[MESSAGE_BYTES];
    va_list args;
    size_t used;

    LT_ASSERT(err != LT_OK);
    memcpy(old, message, sizeof old);
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    used = strlen(message);
    snprintf(message + used, sizeof message - used, ": %.*s", (int)(MESSAGE_BYTES - used), old);
    return err;
}

_Noreturn void lt_assert_fail(const char *expr, const char *file, int line) {
    fprintf(stderr, "lateen: assertion failed: %s (%s:%d); this is a bug in Lateen\n", expr, file,
            line);
    abort();
}

#ifndef LT_VERSION
#define LT_VERSION "0.1.0"
#endif

const char *lt_version(void) {
    return LT_VERSION;
}
