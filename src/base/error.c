/* error.c: one fixed record per thread holds its last failure: the message and the trace. Recording
 * a failure never allocates, so running out of memory can be reported like any other failure.
 * Code that finds no memory names only what the memory was for: "out of memory: " is put before it
 * here. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES LT_ERROR_MESSAGE_BYTES

static _Thread_local lt_failure last;

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
    return last.message;
}

/* Level 0, the origin, keeps its place; the other levels use the rest of the array as a ring. */
static size_t slot_of(int64_t level) {
    return level == 0 ? 0 : (size_t)(1 + (level - 1) % (LT_ERROR_LEVELS - 1));
}

void lt_error_pass(const lt_error_place *place) {
    last.places[slot_of(last.n_places)] = *place;
    last.n_places++;
}

lt_err lt_error_set_at(const lt_error_place *place, lt_err err, const char *fmt, ...) {
    const char *missing = lt_err_text(LT_ERR_OOM);
    va_list args;
    LT_ASSERT(err != LT_OK);
    va_start(args, fmt);
    vsnprintf(last.message, sizeof last.message, fmt, args);
    va_end(args);
    if (err == LT_ERR_OOM && strstr(last.message, missing) == NULL) {
        char what[MESSAGE_BYTES];
        memcpy(what, last.message, sizeof what);
        snprintf(last.message, sizeof last.message, "%s: %.*s", missing,
                 (int)(MESSAGE_BYTES - strlen(missing) - 3), what);
    }
    last.err = err;
    last.n_places = 0;
    lt_error_pass(place);
    return err;
}

lt_err lt_error_prefix_at(const lt_error_place *place, lt_err err, const char *fmt, ...) {
    char old[MESSAGE_BYTES];
    va_list args;
    size_t used;

    LT_ASSERT(err != LT_OK);
    memcpy(old, last.message, sizeof old);
    va_start(args, fmt);
    vsnprintf(last.message, sizeof last.message, fmt, args);
    va_end(args);
    used = strlen(last.message);
    snprintf(last.message + used, sizeof last.message - used, ": %.*s", (int)(MESSAGE_BYTES - used),
             old);
    last.err = err;
    lt_error_pass(place);
    return err;
}

void lt_failure_keep(lt_failure *out, lt_err err) {
    if (err != LT_OK) {
        *out = last;
    }
    out->err = err;
}

lt_err lt_failure_raise(const lt_failure *f) {
    if (f->err != LT_OK) {
        last = *f;
    }
    return f->err;
}

const char *lt_error_trace_text(char out[LT_ERROR_TRACE_BYTES]) {
    const int64_t kept = LT_ERROR_LEVELS - 1; /* Levels that are kept in addition to the origin. */
    const int64_t newest = last.n_places > kept ? last.n_places - kept : 1;
    size_t used = 0;

    out[0] = '\0';
    for (int64_t level = 0; level < last.n_places; level++) {
        const lt_error_place *p = &last.places[slot_of(level)];
        int n = 0;
        if (level == 1 && newest > 1) {
            n = snprintf(out + used, LT_ERROR_TRACE_BYTES - used, "  ... %lld levels\n",
                         (long long)(newest - level));
            level = newest - 1; /* The loop continues with `newest`. */
        } else {
            n = snprintf(out + used, LT_ERROR_TRACE_BYTES - used, "  at %s:%d in %s\n", p->file,
                         p->line, p->function);
        }
        if (n < 0 || (size_t)n >= LT_ERROR_TRACE_BYTES - used) {
            out[used] = '\0'; /* A line that does not fit is omitted. */
            break;
        }
        used += (size_t)n;
    }
    return out;
}

_Noreturn void lt_assert_fail(const char *expr, const char *file, int line) {
    char trace[LT_ERROR_TRACE_BYTES];
    fprintf(stderr, "lateen: assertion failed: %s (%s:%d); this is a bug in Lateen\n", expr, file,
            line);
    if (last.n_places > 0) {
        fprintf(stderr, "the last error of this thread, which may have been handled: %s\n%s",
                last.message, lt_error_trace_text(trace));
    }
    abort();
}

#ifndef LT_VERSION
#define LT_VERSION "0.1.0"
#endif

const char *lt_version(void) {
    return LT_VERSION;
}
