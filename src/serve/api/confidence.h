/* confidence.h: DeepConf (Fu et al. 2025, arXiv:2508.15260): the confidence of a token is minus the
 * mean log-probability of its 20 most likely alternatives; that of a text is the lowest mean over a
 * window of successive tokens, or the mean of all if the text is shorter. */
#ifndef LT_SERVE_CONFIDENCE_H
#define LT_SERVE_CONFIDENCE_H

#include "lateen/serve.h"

typedef struct {
    float *values; /* (n) of the tokens */
    int64_t n, room;
    double sum, lowest; /* Of the last tokens' values; the lowest mean, if any window was full. */
    bool full;
} lt_confidence;

void lt_confidence_add(lt_confidence *c, const lt_event *ev, int64_t window);
double lt_confidence_of(const lt_confidence *c);
void lt_confidence_free(lt_confidence *c);

#endif
