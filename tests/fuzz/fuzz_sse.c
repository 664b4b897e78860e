/* Server-sent events: a stream cut anywhere must give the same events as the whole. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/http/sse.h"

static void on_event(void *ctx, const char *event, const char *data, size_t n) {
    LT_ASSERT(data[n] == '\0');
    lt_out_raw(ctx, event, strlen(event));
    lt_out_raw(ctx, "\x01", 1);
    lt_out_raw(ctx, data, n);
    lt_out_raw(ctx, "\x02", 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lt_json_out a = {0}, b = {0};
    lt_sse whole = {.on_event = on_event, .ctx = &a}, cut = {.on_event = on_event, .ctx = &b};
    size_t step;
    if (size < 1) {
        return 0;
    }
    step = 1 + data[0] % 8;
    lt_sse_feed(&whole, (const char *)data + 1, size - 1);
    for (size_t at = 1; at < size; at += step) {
        lt_sse_feed(&cut, (const char *)data + at, size - at < step ? size - at : step);
    }
    LT_ASSERT(a.n == b.n && (a.n == 0 || memcmp(a.data, b.data, a.n) == 0));
    lt_sse_free(&whole);
    lt_sse_free(&cut);
    lt_out_free(&a);
    lt_out_free(&b);
    return 0;
}
