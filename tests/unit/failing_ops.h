/* failing_ops.h: a backend of host memory of which one call fails: the n-th of all ops, transfers
 * and fills. So a test finds out whether each caller passes on the failure of each call:
 *
 *     failing_at(0)   count the calls, of which none fails
 *     failing_at(n)   call n fails, and all others run
 *
 * Include it after cmocka.h. Not for several threads that queue work. */
#ifndef TESTS_FAILING_OPS_H
#define TESTS_FAILING_OPS_H

#include "base/error.h"
#include "tensor/backend.h"
#include "tensor/ops.h"

static struct {
    int64_t calls, fails_at;
    bool paused;      /* Calls do not count, and none fails. */
    const char *name; /* Of the call that failed; NULL: none has. */
} failing;

static inline void failing_at(int64_t n) {
    failing.calls = 0;
    failing.fails_at = n;
    failing.name = NULL;
}

static inline bool failing_now(const char *name) {
    failing.calls += !failing.paused;
    const bool now = !failing.paused && failing.calls == failing.fails_at;
    failing.name = now ? name : failing.name;
    return now;
}
#define FAILING_OR(name, call)                                                                     \
    failing_now(name) ? lt_error_set(LT_ERR_NUMERIC, "a test lets %s fail", name) : (call)

#define FAILING_OP(name, args)                                                                     \
    static lt_err failing_##name(lt_queue *q, const args *a) {                                     \
        return FAILING_OR(#name, lt_backend_cpu()->ops->name(q, a));                               \
    }
LT_OP_MAP(FAILING_OP)
#undef FAILING_OP

static inline lt_err failing_upload(lt_queue *q, void *dst, const void *src, size_t bytes) {
    return FAILING_OR("upload", lt_backend_cpu()->upload(q, dst, src, bytes));
}

static inline lt_err failing_download(lt_queue *q, void *dst, const void *src, size_t bytes) {
    return FAILING_OR("download", lt_backend_cpu()->download(q, dst, src, bytes));
}

static inline lt_err failing_zero(lt_queue *q, void *dst, size_t bytes) {
    return FAILING_OR("zero", lt_backend_cpu()->zero(q, dst, bytes));
}

static inline lt_err failing_copy(lt_queue *q, void *dst, const void *src, size_t bytes) {
    return FAILING_OR("copy", lt_backend_cpu()->copy(q, dst, src, bytes));
}

static inline lt_err failing_sync(lt_queue *q) {
    return FAILING_OR("sync", lt_backend_cpu()->sync(q));
}

static inline const lt_backend *failing_backend(void) {
    static lt_ops ops;
    static lt_backend b;
    b = *lt_backend_cpu();
#define FAILING_FIELD(name, args) ops.name = lt_backend_cpu()->ops->name ? failing_##name : NULL;
    LT_OP_MAP(FAILING_FIELD)
#undef FAILING_FIELD
    b.ops = &ops;
    b.upload = failing_upload;
    b.download = failing_download;
    b.zero = failing_zero;
    b.copy = failing_copy;
    b.sync = failing_sync;
    return &b;
}

/* Let each of the last `most` calls of `run` fail in turn: it must then fail by the same error. It
 * is run once without a failure before, so that calls of a first run alone, which make packed
 * copies, are left out. */
static inline void failing_last(lt_err (*run)(void *of), void *of, const char *what, int64_t most) {
    failing_at(0);
    if (run(of) != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
    assert_true(failing.calls > 0);
    const int64_t first = failing.calls > most ? failing.calls - most + 1 : 1;
    for (int64_t i = first; i == first || failing.name != NULL; i++) {
        char says[64];
        failing_at(i);
        const lt_err err = run(of);
        if (failing.name == NULL) { /* There are fewer calls. */
            assert_int_equal(err, LT_OK);
            break;
        }
        (void)snprintf(says, sizeof says, "a test lets %s fail", failing.name);
        if (err != LT_ERR_NUMERIC || strstr(lt_error_message(), says) == NULL) {
            fail_msg("%s: call %lld (%s) fails, but the result is %d: %s", what, (long long)i,
                     failing.name, (int)err, lt_error_message());
        }
    }
    failing_at(0);
}

static inline void failing_each(lt_err (*run)(void *of), void *of, const char *what) {
    failing_last(run, of, what, INT64_MAX);
}

#endif
