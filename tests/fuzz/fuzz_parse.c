/* The text of a chat model: in every format, cutting it anywhere gives the same parts once the
 * pieces of a part are joined. First byte: format and options; second: length of the pieces. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/json_out.h"
#include "serve/parse.h"

typedef struct {
    lt_json_out out;
    int last;
} heard;

static void hear(void *ctx, lt_part_kind part, int call, const char *text, size_t n) {
    heard *h = ctx;
    LT_ASSERT((call >= 0) == (part >= LT_PART_CALL_NAME));
    LT_ASSERT(n > 0 || part == LT_PART_CALL_NAME);
    if ((int)part != h->last || part == LT_PART_CALL_NAME) {
        lt_out_rawf(&h->out, "\x01%d,%d:", (int)part, call);
    }
    h->last = (int)part;
    lt_out_raw(&h->out, text, n);
}

static void parse(const lt_parse_options *o, const char *text, size_t n, size_t step, bool cut,
                  heard *h) {
    lt_parser *p = NULL;
    h->last = -1;
    if (lt_parser_open(&p, o) != LT_OK) {
        return;
    }
    for (size_t at = 0; at < n; at += step) {
        if (lt_parser_feed(p, text + at, n - at < step ? n - at : step, hear, h) != LT_OK) {
            break;
        }
    }
    if ((cut ? lt_parser_cut(p, NULL, false, hear, h) : lt_parser_end(p, hear, h)) != LT_OK) {
        lt_out_raw(&h->out, "!", 1);
    }
    lt_parser_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    heard a = {0}, b = {0};
    lt_parse_options o;
    bool cut;
    if (size < 3) {
        return 0;
    }
    o = (lt_parse_options){.format = data[0] % (LT_PARSE_HARMONY + 1),
                           .tools = (data[0] & 0x40) == 0,
                           .reasoning = (data[0] & 0x20) == 0,
                           .thinks = (data[0] & 0x80) != 0};
    if ((data[1] & 0x40) != 0) {
        o.think_open = "[THINK]";
        o.think_close = "[/THINK]";
    }
    cut = (data[1] & 0x80) != 0;
    parse(&o, (const char *)data + 2, size - 2, size - 2, cut, &a);
    parse(&o, (const char *)data + 2, size - 2, 1 + data[1] % 9, cut, &b);
    LT_ASSERT(a.out.n == b.out.n && (a.out.n == 0 || memcmp(a.out.data, b.out.data, a.out.n) == 0));
    lt_out_free(&a.out);
    lt_out_free(&b.out);
    return 0;
}
