/* error.h: how a function fails. See include/lateen/base.h for the codes.
 *
 * A function that holds nothing uses LT_TRY and LT_FAIL, which return. A function that holds
 * resources declares `lt_err err = LT_OK;`, uses LT_TRY_DONE and LT_FAIL_DONE, and releases at the
 * label `done:`. LT_ASSERT checks what the caller must guarantee, in every build mode.
 *
 * Every thread keeps the trace of its last failure: LT_FAIL and lt_error_set start it with their
 * own file and line; LT_TRY, LT_TRY_DONE and lt_error_prefix each add a level when they pass a
 * failure on. The trace holds LT_ERROR_LEVELS levels in static memory; of a longer one, the origin
 * and the newest levels stay. A call that succeeds records nothing. `--verbose`, the log of a run
 * and a failed assertion print the trace (lt_error_trace_text). */
#ifndef LT_BASE_ERROR_H
#define LT_BASE_ERROR_H

#include "lateen/base.h"

#define LT_ERROR_MESSAGE_BYTES 1024 /* A path (at most 4096, shortened here) and a sentence. */
#define LT_ERROR_LEVELS        16

#define LT_COLD __attribute__((cold, noinline))

typedef struct {
    const char *file, *function; /* Constants of the program: __FILE__ and __func__. */
    int line;
} lt_error_place;

#define LT_HERE (&(const lt_error_place){__FILE__, __func__, __LINE__})

/* lt_err lt_error_set(lt_err err, const char *fmt, ...): record a failure and its message on this
 * thread; returns err. */
#define lt_error_set(err, ...) lt_error_set_at(LT_HERE, (err), __VA_ARGS__)
LT_COLD lt_err lt_error_set_at(const lt_error_place *place, lt_err err, const char *fmt, ...)
    LT_PRINTF(3, 4);

/* lt_err lt_error_prefix(lt_err err, const char *fmt, ...): put "context: " before the current
 * message (which file, which rank, which layer); returns err. */
#define lt_error_prefix(err, ...) lt_error_prefix_at(LT_HERE, (err), __VA_ARGS__)
LT_COLD lt_err lt_error_prefix_at(const lt_error_place *place, lt_err err, const char *fmt, ...)
    LT_PRINTF(3, 4);

/* Add a level to the trace of the current failure, as LT_TRY does. */
LT_COLD void lt_error_pass(const lt_error_place *place);

/* A copy of a failure, to be raised later: after a clean-up that may fail too, or on another
 * thread. */
typedef struct {
    lt_err err; /* LT_OK: nothing failed. */
    char message[LT_ERROR_MESSAGE_BYTES];
    lt_error_place places[LT_ERROR_LEVELS];
    int64_t n_places; /* All levels recorded; beyond LT_ERROR_LEVELS, the middle ones are lost. */
} lt_failure;

/* Copy this thread's last failure, whose code is err. */
void lt_failure_keep(lt_failure *out, lt_err err);

/* Make it this thread's last failure, with its message and its trace. Returns its code, which may
 * be LT_OK. */
lt_err lt_failure_raise(const lt_failure *f);

_Noreturn void lt_assert_fail(const char *expr, const char *file, int line);

#define LT_ASSERT(expr) ((expr) ? (void)0 : lt_assert_fail(#expr, __FILE__, __LINE__))

/* The comma lets the compiler see that the result is the (constant, non-zero) code. */
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
            lt_error_pass(LT_HERE);                                                                \
            return lt_try_err_;                                                                    \
        }                                                                                          \
    } while (0)

#define LT_TRY_DONE(call)                                                                          \
    do {                                                                                           \
        err = (call);                                                                              \
        if (err != LT_OK) {                                                                        \
            lt_error_pass(LT_HERE);                                                                \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

#endif
