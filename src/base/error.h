/* error.h: how a function fails. See include/lateen/base.h for the codes.
 *
 * A function that holds nothing uses LT_TRY and LT_FAIL, which return. A function that holds
 * resources declares `lt_err err = LT_OK;`, uses LT_TRY_DONE and LT_FAIL_DONE, and releases at the
 * label `done:`. LT_ASSERT checks what the caller must guarantee, in every build mode. */
#ifndef LT_BASE_ERROR_H
#define LT_BASE_ERROR_H

#include "lateen/base.h"

/* Record the message of a failure on this thread and return err. */
lt_err lt_error_set(lt_err err, const char *fmt, ...) LT_PRINTF(2, 3);

/* Put "context: " before the current message (which file, which rank, which layer); returns err. */
lt_err lt_error_prefix(lt_err err, const char *fmt, ...) LT_PRINTF(2, 3);

_Noreturn void lt_assert_fail(const char *expr, const char *file, int line);

#define LT_ASSERT(expr) ((expr) ? (void)0 : lt_assert_fail(#expr, __FILE__, __LINE__))

/* The comma shows the compiler that the result is the (constant, non-zero) code. */
#define LT_FAIL(code, ...) return (lt_error_set((code), __VA_ARGS__), (code))

#define LT_FAIL_DONE(code, ...)                                                                    \
    do {                                                                                           \
        err = lt_error_set((code), __VA_ARGS__);                                                   \
        goto done;                                                                                 \
    } while (0)

#define LT_TRY(call)                                                                               \
    do {                                                                                           \
        const lt_err lt_try_err_ = (call);                                                         \
        if (lt_try_err_ != LT_OK) {                                                                \
            return lt_try_err_;                                                                    \
        }                                                                                          \
    } while (0)

#define LT_TRY_DONE(call)                                                                          \
    do {                                                                                           \
        err = (call);                                                                              \
        if (err != LT_OK) {                                                                        \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

#endif
