/* confidence.h: DeepConf (Fu et al. 2025, arXiv:2508.15260): the confidence of a token is minus the
 * mean log-probability of its 20 most likely alternatives; that of a text is the lowest mean over a
 * window of successive tokens, or the mean of all if the text is shorter.
 *
 * Online, the first `warmup` texts run to their ends. The confidence that the share eta of them
 * exceeds is the threshold: a later text is cut as soon as the mean of its last window falls below
 * it, and only texts that never did vote, each with its confidence as the weight. Sampling ends
 * when an answer has the share tau of the votes. (The paper's Algorithm 2; DeepConf-low is eta 0.1,
 * DeepConf-high 0.9.) */
#ifndef LT_SERVE_CONFIDENCE_H
#define LT_SERVE_CONFIDENCE_H

#include "lateen/serve.h"

typedef struct {
    float *values; /* (n): values of the tokens */
    int64_t n, room;
    /* Sum of the last tokens' values; the lowest mean, once a window was full. */
    double sum, lowest;
    bool full;
} lt_confidence;

void lt_confidence_add(lt_confidence *c, const lt_event *ev, int64_t window);
double lt_confidence_of(const lt_confidence *c);
/* Mean of the last window; INFINITY before the first is full. */
double lt_confidence_now(const lt_confidence *c, int64_t window);
/* The (1 - eta) quantile of n confidences, which it sorts, with linear interpolation. */
double lt_confidence_threshold(double *confidences, int64_t n, double eta);
void lt_confidence_free(lt_confidence *c);

#endif
