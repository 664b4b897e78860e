/* live.h: numbers of a run while it trains, for Prometheus: `metrics.listen` of the recipe. The
 * training loop copies numbers into this object under a lock that is held for microseconds; a
 * thread of its own answers /metrics.
 *
 *   lateen_train_NAME, lateen_eval_NAME  the last line of metrics.jsonl, by the tables of
 *                                        metrics.h, with units spelt out: step_s is
 *                                        lateen_train_step_seconds
 *   lateen_train_seconds_total{kind}     where the time of this process went (goodput.h)
 *   lateen_train_steps_total, ...        counters of this process
 *
 * Each has the label `run`, the name of the run folder; lateen_train_info has the other labels. */
#ifndef LT_TRAIN_LIVE_H
#define LT_TRAIN_LIVE_H

#include "train/report/metrics.h"
#include "train/watch/goodput.h"

typedef struct lt_live lt_live;

/* at: "HOST:PORT". The last part of run_folder is the run's name. target: the run's last step. */
LT_MUST_USE lt_err lt_live_open(lt_live **out, const char *at, const char *run_folder,
                                const char *family, int64_t target);
const char *lt_live_address(const lt_live *l);
void lt_live_close(lt_live *l);

/* All of them accept NULL, for which they are no-ops. */
void lt_live_step(lt_live *l, int64_t step, bool applied, const lt_goodput *goodput);
void lt_live_goodput(lt_live *l, const lt_goodput *goodput);
void lt_live_saved(lt_live *l, int64_t step);
/* step: the newest in checkpoint.mirror, -1: none; failed: number of abandoned checkpoints. */
void lt_live_mirrored(lt_live *l, int64_t step, int64_t failed);
/* A lt_metrics_sink. */
lt_err lt_live_row(void *live, const char *kind, const lt_metric *table, int n,
                   const double *values, const bool *present);

#endif
