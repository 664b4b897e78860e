/* store_frame.h: the frames of the store's protocol (store.h) as bytes. */
#ifndef LT_COMM_STORE_FRAME_H
#define LT_COMM_STORE_FRAME_H

#include "comm/store.h"

#define LT_STORE_REQUEST_HEAD 36 /* Bytes before the key, including the length. */
#define LT_STORE_REPLY_HEAD   28
#define LT_STORE_REQUEST_MOST (LT_STORE_REQUEST_HEAD + LT_STORE_KEY + LT_STORE_VALUE)
#define LT_STORE_REPLY_MOST   (LT_STORE_REPLY_HEAD + LT_STORE_VALUE)
#define LT_STORE_GREETING     "lateen store 1"

typedef struct {
    lt_comm_store_op op;
    uint64_t epoch;
    int64_t number;
    uint32_t wait_ms;
    char key[LT_STORE_KEY + 1];
    const unsigned char *value; /* Points into the frame. */
    uint32_t value_bytes;
} lt_comm_store_request;

typedef struct {
    lt_comm_store_status status;
    uint64_t version;
    int64_t number;
    const unsigned char *value;
    uint32_t value_bytes;
} lt_comm_store_reply;

/* Length of the whole frame that the first `bytes` bytes begin, known from 4 bytes on and checked
 * against `most`; 0: not yet known; -1: this is not the start of a frame. */
int64_t lt_comm_store_frame_bytes(const unsigned char *data, size_t bytes, size_t most);

/* Read a whole frame. False: it violates the protocol. A key is text without zero bytes. */
bool lt_comm_store_request_read(lt_comm_store_request *out, const unsigned char *frame,
                                size_t bytes);
bool lt_comm_store_reply_read(lt_comm_store_reply *out, const unsigned char *frame, size_t bytes);

/* Write a frame into out, which has room for the head, key and value; returns its size in bytes. */
size_t lt_comm_store_request_write(unsigned char *out, const lt_comm_store_request *r);
size_t lt_comm_store_reply_write(unsigned char *out, const lt_comm_store_reply *r);

#endif
