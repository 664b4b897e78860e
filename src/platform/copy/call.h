/* call.h: repeats a request until there is an answer, for every kind of service: the service
 * determines how a request is addressed and signed, and which answers are accepted.
 *
 *     lt_call        any request; the answer may be an error of the service
 *     lt_call_range  bytes [at, at + n) of something whose size is known. After a broken connection
 *                    it continues with the next byte; an answer with another range, size or length
 *                    is not accepted. */
#ifndef LT_PLATFORM_COPY_CALL_H
#define LT_PLATFORM_COPY_CALL_H

#include "platform/copy/web.h"

#define LT_CALL_TEXT_BYTES    400
#define LT_CALL_VERSION_BYTES 256

typedef struct lt_caller lt_caller;

struct lt_caller {
    const char *shown; /* Name of the object in messages, without secrets. */
    void *ctx;
    /* Complete the request (address, signature) and send it once: lt_web_send. */
    lt_err (*send)(void *ctx, lt_web *h, const lt_web_request *r, lt_web_reply *reply);
    /* Whether the same request may succeed after this answer, in addition to the answers of
     * lt_retry_may_help. NULL: after no others. */
    bool (*passes)(void *ctx, const lt_web_reply *reply);
    /* lt_call_range does not continue after a cut, because the rest may be of another version. */
    bool in_one;
    /* Write the service's own text of an error; NULL: errors have only a status. */
    void (*explain)(const lt_web_reply *reply, char out[LT_CALL_TEXT_BYTES]);
};

/* *reply is filled on success and must be freed then. REMOTE: no answer after all tries. */
LT_MUST_USE lt_err lt_call(const lt_caller *c, lt_web *h, const lt_web_request *r,
                           lt_web_reply *reply);

/* Fail with the answer of a call: NOT_FOUND for 404, STATE for 412 (it changed since its size was
 * read), otherwise REMOTE. `doing` is e.g. "GET". */
lt_err lt_call_refused(const lt_caller *c, const char *doing, const lt_web_reply *reply);

/* version: the ETag, which may be weak, or the date "Last-Modified" of the answer that had the
 * size; "": the service reports neither. STATE: an answer is of another version. */
LT_MUST_USE lt_err lt_call_range(const lt_caller *c, lt_web *h, const char *version,
                                 int64_t size_bytes, int64_t at, int64_t n, unsigned char *into);

#endif
