/* The text reader on arbitrary files: the first byte chooses the rules, the rest is the file
 * (plain, gzip or zstd by its own first bytes). The text must be valid UTF-8, and (for half of
 * the inputs) reading must give the same if it is interrupted and continued. */

#include "base/rng.h"
#include "data/text_reader.h"
#include "data/text_utf8.h"
#include "fuzz_file.h"

/* A hash of at most n_max documents from (offset, line) on, and where reading stopped. -1: an
 * error. */
static int64_t read_on(const char *path, const lt_text_options *o, uint64_t *offset, uint64_t *line,
                       int n_max, uint64_t *hash) {
    lt_text_reader *r = NULL;
    int64_t n = 0;
    if (lt_text_reader_open(&r, path, o) != LT_OK) {
        return -1;
    }
    if (*offset > 0 && lt_text_reader_resume(r, *offset, *line) != LT_OK) {
        n = -1;
    }
    while (n >= 0 && n < n_max) {
        lt_text_record doc;
        bool more;
        if (lt_text_reader_document(r, &doc, &more) != LT_OK) {
            n = -1;
        } else if (!more) {
            break;
        } else {
            if (lt_utf8_valid_prefix(doc.data, doc.bytes) != doc.bytes) {
                abort();
            }
            for (size_t i = 0; i < doc.bytes; i++) {
                *hash = lt_rng_mix(*hash ^ (unsigned char)doc.data[i]);
            }
            *hash = lt_rng_mix(*hash ^ doc.bytes);
            n++;
        }
    }
    lt_text_reader_tell(r, offset, line);
    lt_text_reader_close(r);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const cuts[] = {"file", "line", "blank", "--"};
    lt_text_options o = {.record_bytes_max = 1 << 16};
    uint64_t at = 0, line = 1, at2 = 0, line2 = 1, whole = 0, parts = 0;
    int64_t n, first;

    const char *path;

    if (size == 0) {
        return 0;
    }
    path = fuzz_file(data + 1, size - 1);
    o.format = (data[0] & 1) != 0 ? LT_TEXT_JSONL : LT_TEXT_PLAIN;
    o.utf8 = (data[0] & 2) != 0 ? LT_UTF8_REPLACE : LT_UTF8_FAIL;
    o.split_on = cuts[data[0] >> 2 & 3];
    n = read_on(path, &o, &at, &line, 1 << 20, &whole);
    first = n > 0 && (data[0] & 16) != 0 ? read_on(path, &o, &at2, &line2, 1, &parts) : 0;
    if (first == 1 && (read_on(path, &o, &at2, &line2, 1 << 20, &parts) != n - 1 ||
                       parts != whole || at2 != at)) {
        abort();
    }
    return 0;
}
