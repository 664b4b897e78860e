/* encode_workers.h: the memory that an encoder for lt_tokenize_files needs for each of its
 * threads: the tokenizer's scratch, and an array for the ids of one record. */
#ifndef LT_DATA_ENCODE_WORKERS_H
#define LT_DATA_ENCODE_WORKERS_H

#include "data/tokenize.h"

typedef struct {
    lt_tokenizer_scratch **scratch; /* (n) */
    lt_ids *ids;                    /* (n) */
    int n;
} lt_encode_workers;

/* Close it also after a failure; a zeroed one may be closed. */
LT_MUST_USE lt_err lt_encode_workers_open(lt_encode_workers *w, const lt_tokenizer *t, int n);
void lt_encode_workers_close(lt_encode_workers *w);

/* Append ids[0..n) to *out and, unless mask is NULL, their marks to *mask, at the same indices. */
LT_MUST_USE lt_err lt_encode_put(lt_id_buffer *out, lt_text_buffer *mask, const uint32_t *ids,
                                 const unsigned char *marks, size_t n);

#endif
