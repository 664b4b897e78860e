/* row.h: one training row: T inputs, their labels, and what attention and the loss may see of them.
 * The packer gathers token ids and notes where documents begin; finishing derives the rest. */
#ifndef LT_DATA_ROW_H
#define LT_DATA_ROW_H

#include <stdint.h>

#include "base/arena.h"
#include "data/goldfish.h"
#include "lateen/data.h"

/* Rows under construction share one builder. */
typedef struct {
    const lt_loader_options *options;
    lt_goldfish *goldfish; /* NULL: off. */
    int32_t *ids;          /* (T + 1) gathered tokens. */
    /* (T + 2) indexes in the row where a document, or a piece of one, begins; ascending. */
    int32_t *starts;
    bool *dropped;  /* (T) by Goldfish. */
    bool masked;    /* Some source has label masks; without, the next two are not there. */
    bool *silent;   /* (T + 1) of the gathered tokens: never a label. */
    bool *unlearnt; /* (T) of the row's labels: silent ones. */
    int64_t n_starts;
} lt_row_builder;

/* The four arrays (T) of one row. */
typedef struct {
    int32_t *tokens, *labels, *doc_start, *positions;
} lt_row;

void lt_row_builder_carve(lt_row_builder *b, int64_t seq, lt_arena *a);
void lt_row_carve(lt_row *row, int64_t seq, lt_arena *a);

/* tokens[0..n_real) and labels[0..n_real) are filled, so is unlearnt when masked; pad the rest, set
 * doc_start and positions, ignore labels. A label that is the first token of the next document
 * stands where starts[i] > 0 says so: labels[starts[i] - 1], unless `joined` is false (BEST_FIT:
 * labels never cross). */
void lt_row_finish(lt_row_builder *b, const lt_row *row, int64_t n_real, bool joined);

/* A row of nothing but padding. */
void lt_row_blank(lt_row_builder *b, const lt_row *row);

#endif
