/* sse.h: parses server-sent events from bytes that arrive in any portions (the stream of the HTML
 * standard, 9.2.6): fields "event" and "data"; comments, other fields and a byte order mark are
 * skipped. */
#ifndef LT_SERVE_SSE_H
#define LT_SERVE_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "serve/api/json_out.h"

#define LT_SSE_MAX_BYTES ((size_t)16 << 20) /* Most bytes of one event. */

typedef struct {
    lt_json_out line, data; /* Owned. */
    char event[64];
    /* failed: an event exceeds the limit, or memory is exhausted. */
    bool after_cr, started, failed;
    /* data is 0-terminated; event "" if it has no name. */
    void (*on_event)(void *ctx, const char *event, const char *data, size_t n);
    void *ctx;
} lt_sse;

void lt_sse_feed(lt_sse *s, const char *bytes, size_t n);
void lt_sse_reset(lt_sse *s); /* For the next stream; the memory is kept. */
void lt_sse_free(lt_sse *s);

#endif
