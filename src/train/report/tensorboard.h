/* tensorboard.h: the numbers of metrics.jsonl as event files that TensorBoard reads, beside it in
 * the run folder: `log.tensorboard` of the recipe.
 *
 * Each start of the program writes a file of its own, events.out.tfevents.TIME.HOST.PID, a sequence
 * of TFRecords (tensorflow/core/lib/io/record_writer.h):
 *
 *     length (8 bytes, little-endian)  its masked CRC-32C  data  masked CRC-32C of the data
 *
 * where masked(c) = (c >> 15 | c << 17) + 0xa282ead8, and data is a message Event of protocol
 * buffers (tensorflow/core/util/event.proto):
 *
 *     Event    wall_time = 1 (double)  step = 2 (int64)  file_version = 3 (string)
 *              summary = 5 (Summary)   session_log = 7 (SessionLog)
 *     Summary  value = 1 (Value, repeated);  Value  tag = 1 (string)  simple_value = 2 (float)
 *     SessionLog  status = 1 (START = 1)
 *
 * The first record holds the version, "brain.Event:2"; the second says at which step the run
 * starts, so TensorBoard drops what an earlier file has of later steps. Then comes a record for
 * each line of numbers, with tags KIND/NAME, such as train/loss. */
#ifndef LT_TRAIN_TENSORBOARD_H
#define LT_TRAIN_TENSORBOARD_H

#include "train/report/metrics.h"

typedef struct lt_tensorboard lt_tensorboard;

/* step: the last one kept of an earlier start; 0: a new run. */
LT_MUST_USE lt_err lt_tensorboard_open(lt_tensorboard **out, const char *run_folder, int64_t step);
void lt_tensorboard_close(lt_tensorboard *b); /* Accepts NULL. */
/* A lt_metrics_sink. The table's row named "step" gives the step; other rows are values. */
lt_err lt_tensorboard_row(void *tensorboard, const char *kind, const lt_metric *table, int n,
                          const double *values, const bool *present);

#endif
