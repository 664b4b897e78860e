/* stragglers.h: tells a rank that computes longer than its peers from the ranks that wait for it.
 *
 * The step of all ranks takes as long as that of the slowest one; the others wait for it in their
 * transfers, so only computing (times.h) shows which one it is. Peers are the ranks that hold the
 * same stage of a pipeline, because stages differ by design. The computing of all measured steps is
 * summed over windows of guard.slow_s seconds; at the end of a window a rank is slow if it computed
 * more than 1 + guard.slow times the median of its peers. All ranks add up the same records, so
 * they agree. Of the machines of a large cluster about 0.5 % were found about 10 % slow (MegaScale,
 * arXiv:2402.15627). */
#ifndef LT_TRAIN_STRAGGLERS_H
#define LT_TRAIN_STRAGGLERS_H

#include <stdbool.h>

#include "lateen/base.h"

#define LT_STRAGGLERS_LEAST_STEPS 3 /* Least steps of a window, whatever its length. */

typedef struct {
    int n, peers; /* Ranks, and those of a stage, which are neighbours. */
    double over, window_s;
    double *sums;      /* (n): seconds of computing in this window; */
    double *sorted;    /* (n): room to sort. */
    double *means;     /* (n): seconds of computing in a step of the last whole window; */
    double *shares;    /* (n): how much more that was than the median of the peers, as a share. */
    bool *slow, *news; /* (n): slow in the last whole window; and whether that has changed. */
    double passed_s;   /* Seconds that have passed in this window. */
    int64_t steps;
} lt_stragglers;

/* over 0, or no peers: no rank counts as slow. */
LT_MUST_USE lt_err lt_stragglers_open(lt_stragglers *s, int n, int peers, double over,
                                      double window_s);
void lt_stragglers_close(lt_stragglers *s); /* Accepts zeros. */
/* Of a measured step: the seconds that rank `rank` computed; then, after all ranks, the seconds
 * since the measured step before. True: a window has ended, and `news` is new. */
void lt_stragglers_add(lt_stragglers *s, int rank, double compute_s);
bool lt_stragglers_pass(lt_stragglers *s, double passed_s);
/* The slow rank with the largest share; -1: none is slow. */
int lt_stragglers_slowest(const lt_stragglers *s);

#endif
