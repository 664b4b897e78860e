/* rows.h: who supplies the rows of a step. Training asks for the next rows, notes the place behind
 * them for checkpoints, and seeks it when a run goes on; where the rows come from is the source's
 * affair: the loader over token shards, rows in memory, later rollouts.
 *
 * Rows are drawn one step ahead, while the device computes. */
#ifndef LT_TRAIN_ROWS_H
#define LT_TRAIN_ROWS_H

#include <jansson.h>

#include "lateen/data.h"
#include "model/pass.h"

/* A place in a source's rows; of fixed size, since each step notes one. */
typedef union {
    lt_loader_state loader;
    int64_t row;
} lt_row_place;

/* Where rows are written to. weights (batch * seq): NULL unless the source has them. */
typedef struct {
    lt_batch ids;
    float *weights;
} lt_row_batch;

typedef struct {
    void *of;
    bool weights; /* Its rows bring a weight a label. */
    /* n rows into the first places of *out, which has room for them. */
    lt_err (*next)(void *of, int64_t n, lt_row_batch *out);
    void (*place)(const void *of, lt_row_place *out); /* Behind the last of them. */
    /* A place as a checkpoint keeps it; NULL: no memory. */
    json_t *(*print)(const lt_row_place *place);
    /* Go on there. STATE: it is a place in other rows. */
    lt_err (*seek)(void *of, const json_t *place);
} lt_row_source;

lt_row_source lt_rows_of_loader(lt_loader *l);

/* Rows that lie in memory, again and again from the first on. The memory stays its owner's. */
typedef struct {
    lt_pass_batch rows; /* doc_start and positions may be NULL. */
    int64_t next;
} lt_rows_memory;
lt_row_source lt_rows_in_memory(lt_rows_memory *m);

#endif
