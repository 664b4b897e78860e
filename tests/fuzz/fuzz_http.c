/* HTTP messages, requests and responses, cut where the input says: read in any two pieces they
 * must give the same result. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/http/parse.h"

static void read_all(lt_http_parser *p, const char *data, size_t n, size_t step) {
    size_t used = 0;
    while (used < n) {
        const size_t part = n - used < step ? n - used : step;
        const size_t took = lt_http_parser_feed(p, data + used, part);
        used += took;
        if (took < part) {
            return;
        }
    }
    lt_http_parser_end(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const lt_http_parse_options o = {
        .response = size > 0 && (data[0] & 1) != 0, .max_head_bytes = 2000, .max_body_bytes = 5000};
    lt_http_parser whole, cut;
    if (size < 2) {
        return 0;
    }
    lt_http_parser_init(&whole, &o);
    lt_http_parser_init(&cut, &o);
    read_all(&whole, (const char *)data + 2, size - 2, size);
    read_all(&cut, (const char *)data + 2, size - 2, 1 + data[1] % 16);
    LT_ASSERT(whole.stage == cut.stage && whole.status == cut.status);
    LT_ASSERT(whole.stage != LT_HTTP_BAD || whole.why != NULL);
    if (whole.stage == LT_HTTP_READY) {
        LT_ASSERT(whole.body_n == cut.body_n && whole.n_headers == cut.n_headers);
        LT_ASSERT(whole.body_n == 0 || memcmp(whole.body, cut.body, whole.body_n) == 0);
        LT_ASSERT(whole.body_n <= o.max_body_bytes && whole.head_n <= o.max_head_bytes);
    }
    lt_http_parser_free(&whole);
    lt_http_parser_free(&cut);
    return 0;
}
