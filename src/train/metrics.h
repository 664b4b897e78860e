/* metrics.h: metrics.jsonl of a run: one JSON object a line, appended and flushed.
 *
 *   {"kind": "train", "step", "time_s", "loss", "lr", "grad_norm", "batch", "tokens",
 *   "tokens_per_s", "mfu", "wait_s", "memory_bytes", ...}
 *   {"kind": "skip", "step", "why"}                        an update that was not applied
 *   {"kind": "eval", "step", "loss", "perplexity", "bits_per_byte", "accuracy", "tokens"}   null:
 *                                                                                           not
 *                                                                                           finite
 *   {"kind": "sample", "step", "prompt", "text"}
 *   {"kind": "start", "step", "version", "parameters", ...}  each start of the program
 *   {"kind": "change", "step", "name", "from", "to", "allowed"}  an option that this start changed;
 *                                                                allowed: it needed allow_change
 *   {"kind": "diverged", "step", "why", "go_on_from"}      the run gave up; the step of the
 *                                                          checkpoint to go on from, -1: there is
 *                                                          none
 */
#ifndef LT_TRAIN_METRICS_H
#define LT_TRAIN_METRICS_H

#include <stdio.h>

#include <jansson.h>

#include "lateen/base.h"

typedef struct {
    FILE *file;
    const char *path;
} lt_metrics;

/* Open path (kept by the caller) for appending, after dropping lines of steps beyond last_step (a
 * resumed run repeats them) and a last line cut short by a crash. */
LT_MUST_USE lt_err lt_metrics_open(lt_metrics *m, const char *path, int64_t last_step);
void lt_metrics_close(lt_metrics *m);

/* A number, or null when it is not finite: JSON has no word for that. */
json_t *lt_metrics_real(double x);

/* Append one line; takes the reference to `line`. */
LT_MUST_USE lt_err lt_metrics_put(lt_metrics *m, json_t *line);

#endif
