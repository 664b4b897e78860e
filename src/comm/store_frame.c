/* store_frame.c: see store_frame.h. */
#include "comm/store_frame.h"

#include <string.h>

#include "base/error.h"

static uint64_t get(const unsigned char *at, int bytes) {
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        v = v << 8 | at[i];
    }
    return v;
}

static void put(unsigned char *at, int bytes, uint64_t v) {
    for (int i = 0; i < bytes; i++) {
        at[i] = (unsigned char)(v >> (8 * i));
    }
}

int64_t lt_comm_store_frame_bytes(const unsigned char *data, size_t bytes, size_t most) {
    uint64_t n;
    if (bytes < 4) {
        return 0;
    }
    n = get(data, 4) + 4;
    return n < LT_STORE_REPLY_HEAD || n > most ? -1 : (int64_t)n;
}

bool lt_comm_store_request_read(lt_comm_store_request *out, const unsigned char *frame,
                                size_t bytes) {
    uint64_t key_bytes;
    if (bytes < LT_STORE_REQUEST_HEAD) {
        return false;
    }
    key_bytes = get(frame + 6, 2);
    *out = (lt_comm_store_request){.op = (lt_comm_store_op)frame[4],
                                   .value_bytes = (uint32_t)get(frame + 8, 4),
                                   .epoch = get(frame + 12, 8),
                                   .number = (int64_t)get(frame + 20, 8),
                                   .wait_ms = (uint32_t)get(frame + 28, 4)};
    if (frame[4] == 0 || frame[4] >= LT_STORE_OPS || frame[5] != 0 || get(frame + 32, 4) != 0 ||
        key_bytes > LT_STORE_KEY || out->value_bytes > LT_STORE_VALUE ||
        bytes != LT_STORE_REQUEST_HEAD + key_bytes + out->value_bytes) {
        return false;
    }
    memcpy(out->key, frame + LT_STORE_REQUEST_HEAD, key_bytes);
    out->key[key_bytes] = '\0';
    out->value = frame + LT_STORE_REQUEST_HEAD + key_bytes;
    return strlen(out->key) == key_bytes;
}

bool lt_comm_store_reply_read(lt_comm_store_reply *out, const unsigned char *frame, size_t bytes) {
    if (bytes < LT_STORE_REPLY_HEAD) {
        return false;
    }
    *out = (lt_comm_store_reply){.status = (lt_comm_store_status)frame[4],
                                 .value_bytes = (uint32_t)get(frame + 8, 4),
                                 .version = get(frame + 12, 8),
                                 .number = (int64_t)get(frame + 20, 8),
                                 .value = frame + LT_STORE_REPLY_HEAD};
    return frame[4] < LT_STORE_STATUSES && get(frame + 5, 3) == 0 &&
           out->value_bytes <= LT_STORE_VALUE && bytes == LT_STORE_REPLY_HEAD + out->value_bytes;
}

size_t lt_comm_store_request_write(unsigned char *out, const lt_comm_store_request *r) {
    const size_t key_bytes = strlen(r->key),
                 bytes = LT_STORE_REQUEST_HEAD + key_bytes + r->value_bytes;
    LT_ASSERT(key_bytes <= LT_STORE_KEY && r->value_bytes <= LT_STORE_VALUE);
    put(out, 4, bytes - 4);
    out[4] = (unsigned char)r->op;
    out[5] = 0;
    put(out + 6, 2, key_bytes);
    put(out + 8, 4, r->value_bytes);
    put(out + 12, 8, r->epoch);
    put(out + 20, 8, (uint64_t)r->number);
    put(out + 28, 4, r->wait_ms);
    put(out + 32, 4, 0);
    memcpy(out + LT_STORE_REQUEST_HEAD, r->key, key_bytes);
    if (r->value_bytes > 0) {
        memcpy(out + LT_STORE_REQUEST_HEAD + key_bytes, r->value, r->value_bytes);
    }
    return bytes;
}

size_t lt_comm_store_reply_write(unsigned char *out, const lt_comm_store_reply *r) {
    const size_t bytes = LT_STORE_REPLY_HEAD + (size_t)r->value_bytes;
    LT_ASSERT(r->value_bytes <= LT_STORE_VALUE);
    put(out, 4, bytes - 4);
    out[4] = (unsigned char)r->status;
    put(out + 5, 3, 0);
    put(out + 8, 4, r->value_bytes);
    put(out + 12, 8, r->version);
    put(out + 20, 8, (uint64_t)r->number);
    if (r->value_bytes > 0) {
        memcpy(out + LT_STORE_REPLY_HEAD, r->value, r->value_bytes);
    }
    return bytes;
}
