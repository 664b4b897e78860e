/* Lines of a batch: an accepted line is complete, a refused one has a reason, and a result names
 * its line. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/files/batch_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    lt_batch_line l;
    lt_json_out o = {0};
    const bool ok = lt_batch_line_read(&l, text, size, "/v1/completions");

    LT_ASSERT(ok == (l.code == NULL));
    LT_ASSERT(ok || l.message[0] != '\0');
    LT_ASSERT(!ok || (l.custom_id != NULL && json_is_object(l.body)));
    (void)lt_batch_line_is_blank(text, size);
    LT_ASSERT(lt_batch_result_line(text, size, "batch_1") >= 0);
    if (ok) {
        lt_batch_put_answer(&o, "batch_1", 7, l.custom_id, 200, "x-request-id: r\r\n", "{}", 2);
    } else {
        lt_batch_put_error(&o, "batch_1", 7, l.custom_id, l.code, l.message);
    }
    LT_ASSERT(o.failed || lt_batch_result_line(o.data, o.n - 1, "batch_1") == 7);
    LT_ASSERT(o.failed || memchr(o.data, '\n', o.n) == o.data + o.n - 1);
    lt_out_free(&o);
    lt_batch_line_free(&l);
    return 0;
}
