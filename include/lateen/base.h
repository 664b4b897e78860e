/* base.h: error codes and the version; every other public header includes it.
 *
 * Every fallible function of Lateen returns lt_err. The code says what kind of failure it was; the
 * thread-local message of lt_error_message() names the object and the numbers. Example:
 *
 *     if (lt_shard_open(&s, path) != LT_OK) { fprintf(stderr, "%s\n", lt_error_message()); }
 *
 * Errors never print and never exit: only the command line does. */
#ifndef LATEEN_BASE_H
#define LATEEN_BASE_H

#include <stddef.h>
#include <stdint.h>

#define LT_MUST_USE          __attribute__((warn_unused_result))
#define LT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* The one error map: code, text. These are failures that the outside world can cause; programmer
 * errors are assertions. */
#define LT_ERR_MAP(X)                                                                              \
    X(OK, "ok")                                                                                    \
    X(ARG, "invalid argument")      /* An option or parameter out of its range. */                 \
    X(IO, "input/output error")     /* open, read, write, mmap, rename failed. */                  \
    X(OOM, "out of memory")         /* The host or the device has no memory left. */               \
    X(FORMAT, "malformed input")    /* A file or message contradicts its format. */                \
    X(LIMIT, "limit exceeded")      /* Well-formed, but over a limit. */                           \
    X(NOT_FOUND, "not found")       /* A named thing does not exist. */                            \
    X(UNSUPPORTED, "unsupported")   /* Valid, but not supported here. */                           \
    X(STATE, "wrong state")         /* E.g. a busy run folder, a checkpoint of another run. */     \
    X(NUMERIC, "numerical failure") /* NaN or Inf where a number is needed. */                     \
    X(INTERRUPTED, "interrupted")   /* A signal or a stop file requested a stop. */                \
    X(DEVICE, "device failure")     /* Driver, GPU, NVRTC. */                                      \
    X(REMOTE, "remote failure")     /* Another rank or server failed. */                           \
    X(REPLACED, "replaced")         /* A later attempt of the run has taken this one's place. */   \
    X(CORRUPT, "silent corruption") /* Ranks that must hold the same bits do not. */

typedef enum {
#define LT_ERR_ENUM(code, text) LT_ERR_##code,
    LT_ERR_MAP(LT_ERR_ENUM)
#undef LT_ERR_ENUM
        LT_ERR_COUNT,
    LT_OK = LT_ERR_OK
} lt_err;

/* Short text of a code, e.g. "malformed input". */
const char *lt_err_text(lt_err err);

/* Message of the last failure on this thread: what, which object, which numbers. Never NULL. */
const char *lt_error_message(void);

/* The trace of that failure, one line a level: where it was raised, then each caller that passed it
 * on, outermost last, e.g. "  at src/base/file.c:61 in lt_file_read\n". Writes into `out`,
 * allocates nothing, and returns `out`; "" when nothing has failed on this thread. */
#define LT_ERROR_TRACE_BYTES 3072
const char *lt_error_trace_text(char out[LT_ERROR_TRACE_BYTES]);

/* "0.1.0". */
const char *lt_version(void);

#endif
