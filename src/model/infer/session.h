/* session.h: functions of a session for the command line and benches, besides lateen/model.h. */
#ifndef LT_MODEL_SESSION_H
#define LT_MODEL_SESSION_H

#include "lateen/model.h"

/* Bytes that a session would take: cache, activations, packed weights. */
typedef struct {
    size_t cache_bytes, activations_bytes, packed_bytes;
} lt_session_memory;
void lt_session_get_memory(const lt_session *s, lt_session_memory *out);

/* Open a session that is so short that packing the weights does not pay off: it reads them
 * unpacked, somewhat more slowly. The other function returns the memory that it will need. */
LT_MUST_USE lt_err lt_session_open_short(lt_session **out, const lt_model *m, int64_t n_seqs,
                                         int64_t max_seq);
void lt_session_measure_short(lt_session_memory *out, const lt_model *m, int64_t n_seqs,
                              int64_t max_seq);

/* Seconds and calls by op since open; arrays of LT_OP_COUNT. */
void lt_session_profile(const lt_session *s, double *seconds, int64_t *calls);

#endif
