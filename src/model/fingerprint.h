/* fingerprint.h: a number that tells models apart, for what is kept of one between runs. */
#ifndef LT_MODEL_FINGERPRINT_H
#define LT_MODEL_FINGERPRINT_H

#include "lateen/model.h"

/* A hash of the shapes, the rotary embedding, the windows, the compute type and samples of every
 * weight that the host sees. Reads at most 64 KiB of each range of a weight. */
uint64_t lt_model_fingerprint(const lt_model *m);

#endif
