/* Fuzz target: frames of the store's protocol, as the server and as a client read them. What is
 * accepted is written and read again. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "comm/store_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned char again[LT_STORE_REQUEST_MOST];
    lt_comm_store_request q;
    lt_comm_store_reply r;
    const int64_t n = lt_comm_store_frame_bytes(data, size, LT_STORE_REQUEST_MOST);
    if (n <= 0 || (size_t)n > size) {
        return 0;
    }
    if (lt_comm_store_request_read(&q, data, (size_t)n)) {
        LT_ASSERT(strlen(q.key) <= LT_STORE_KEY && q.value + q.value_bytes == data + n);
        LT_ASSERT(lt_comm_store_request_write(again, &q) == (size_t)n &&
                  memcmp(again, data, (size_t)n) == 0);
    }
    if (lt_comm_store_reply_read(&r, data, (size_t)n)) {
        LT_ASSERT(r.value + r.value_bytes == data + n);
        LT_ASSERT(lt_comm_store_reply_write(again, &r) == (size_t)n &&
                  memcmp(again, data, (size_t)n) == 0);
    }
    return 0;
}
