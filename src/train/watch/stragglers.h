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

/* A window has at least this many steps, whatever its length. */
#define LT_STRAGGLERS_LEAST_STEPS 3

typedef struct {
    int n, peers; /* Number of ranks, and of ranks in a stage, which are neighbours. */
    double over, window_s;
    double *sums;   /* (n): seconds of computing in this window. */
    double *sorted; /* (n): memory for sorting. */
    double *means;  /* (n): seconds of computing per step in the last complete window. */
    /* (n): how much more that was than the median of the peers, as a fraction. */
    double *shares;
    bool *slow, *news; /* (n): slow in the last complete window; and whether that has changed. */
    double passed_s;   /* Seconds of this window so far. */
    int64_t steps;
} lt_stragglers;

/* over <= 0, or no peers: no rank counts as slow. */
LT_MUST_USE lt_err lt_stragglers_open(lt_stragglers *s, int n, int peers, double over,
                                      double window_s);
void lt_stragglers_close(lt_stragglers *s); /* Accepts a zeroed struct. */
/* After a measured step: the seconds that rank `rank` computed; then, after all ranks, the
 * seconds since the previous measured step. True: a window has ended, and `news` is set. */
void lt_stragglers_add(lt_stragglers *s, int rank, double compute_s);
bool lt_stragglers_pass(lt_stragglers *s, double passed_s);
/* The slow rank with the largest share; -1: none is slow. */
int lt_stragglers_slowest(const lt_stragglers *s);

#endif
