/* fingerprint.h: a number that identifies a model, for data of the model that is kept between
 * runs. */
#ifndef LT_MODEL_FINGERPRINT_H
#define LT_MODEL_FINGERPRINT_H

#include "lateen/model.h"

/* A hash of everything in the spec that decides keys and values, of the compute type, and of
 * samples of every weight: at most 64 KiB of each range in host memory. For a model on a device it
 * also covers the kind of the device, and its samples are at most 8 KiB, which are copied from
 * there. All weights must have been loaded before (lt_model_wait). */
LT_MUST_USE lt_err lt_model_fingerprint(uint64_t *out, const lt_model *m);

#endif
