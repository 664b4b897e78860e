/* rows.h: the interface of row sources. Training asks for the next rows, records the position after
 * them for checkpoints, and seeks to it when a run resumes. The source decides where rows come
 * from: the loader over token shards, rows in memory, examples or answers of an objective.
 *
 * Rows are drawn one step ahead, while the device computes. */
#ifndef LT_TRAIN_ROWS_H
#define LT_TRAIN_ROWS_H

#include <jansson.h>

#include "lateen/data.h"
#include "model/pass/pass.h"

/* A position in a source's rows; of fixed size, because each step records one. */
typedef union {
    lt_loader_state loader;
    int64_t row;
} lt_row_place;

/* The destination of rows. weights (batch * seq): NULL unless the source has them. index (batch):
 * the number that identifies a row for an objective; the loader does not set it. */
typedef struct {
    lt_batch ids;
    float *weights;
    int64_t *index;
} lt_row_batch;

typedef struct {
    void *of;
    bool weights; /* Its rows have a weight for each label. */
    /* Write n rows to the beginning of *out, which is large enough. */
    lt_err (*next)(void *of, int64_t n, lt_row_batch *out);
    void (*place)(const void *of, lt_row_place *out); /* The position after the last row. */
    /* The newest position as stored in a checkpoint, with other state of the source; NULL: out of
     * memory. */
    json_t *(*print)(const void *of, const lt_row_place *place);
    /* Continue from a position. STATE: it belongs to other rows. */
    lt_err (*seek)(void *of, const json_t *place);
} lt_row_source;

/* Tokens up to the last label of n rows of a batch, rounded up to a multiple of `step`; at most
 * all. */
/* So that passes have few different shapes, and kernels have whole tiles. */
#define LT_ROWS_STEP 16
int64_t lt_rows_used(const lt_batch *b, int64_t first, int64_t n, int64_t step);

lt_row_source lt_rows_of_loader(lt_loader *l);

/* A source of rows in memory, repeated endlessly. The memory belongs to the caller. */
typedef struct {
    lt_pass_batch rows; /* doc_start and positions may be NULL. */
    int64_t next;
} lt_rows_memory;
lt_row_source lt_rows_in_memory(lt_rows_memory *m);

#endif
