/* call.h: requests that are repeated until they have an answer, for every kind of service: it says
 * how a request is addressed and signed, and which of its answers pass.
 *
 *     lt_call        any request; the answer may be an error of the service
 *     lt_call_range  bytes [at, at + n) of something whose size is known. A connection that breaks
 *                    goes on behind the last byte that came; an answer with another range, another
 *                    size or another length does not count. */
#ifndef LT_PLATFORM_COPY_CALL_H
#define LT_PLATFORM_COPY_CALL_H

#include "platform/copy/web.h"

#define LT_CALL_TEXT_BYTES    400
#define LT_CALL_VERSION_BYTES 256

typedef struct lt_caller lt_caller;

struct lt_caller {
    const char *shown; /* The thing, as messages name it; without secrets. */
    void *ctx;
    /* Complete the request (address, signature) and send it once: lt_web_send. */
    lt_err (*send)(void *ctx, lt_web *h, const lt_web_request *r, lt_web_reply *reply);
    /* Is this an answer after which the same request may succeed, besides those of
     * lt_retry_may_help? NULL: none. */
    bool (*passes)(void *ctx, const lt_web_reply *reply);
    /* lt_call_range does not go on behind a cut: nothing says that the rest would be of the same
     * version. */
    bool in_one;
    /* The service's words for an error; NULL: the status alone. */
    void (*explain)(const lt_web_reply *reply, char out[LT_CALL_TEXT_BYTES]);
};

/* *reply is filled on success and must be freed then. REMOTE: no answer after all tries. */
LT_MUST_USE lt_err lt_call(const lt_caller *c, lt_web *h, const lt_web_request *r,
                           lt_web_reply *reply);

/* Fail with the answer of a call: NOT_FOUND for 404, STATE for 412 (it changed since its size was
 * read), else REMOTE. `doing` is e.g. "GET". */
lt_err lt_call_refused(const lt_caller *c, const char *doing, const lt_web_reply *reply);

/* version: the ETag, which may be weak, or the date "Last-Modified" of the answer that told the
 * size; "": the service says neither. STATE: an answer is of another version. */
LT_MUST_USE lt_err lt_call_range(const lt_caller *c, lt_web *h, const char *version,
                                 int64_t size_bytes, int64_t at, int64_t n, unsigned char *into);

#endif
