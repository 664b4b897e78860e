/* Fuzz target: a file of pages of keys and values (serve/page_file.h). */
#include "base/error.h"
#include "serve/page_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lt_page_file_view v;
    if (lt_page_file_parse(&v, data, size, "fuzz") == LT_OK) {
        for (int64_t i = 0; i < v.head.n_pages && i < 64; i++) {
            const void *page;
            (void)!lt_page_file_page(&v, i, &page);
        }
    }
    return 0;
}
