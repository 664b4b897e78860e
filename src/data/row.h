/* row.h: one training row: T inputs, their labels, and the masks of attention and loss. The packer
 * gathers token ids and records where documents begin; lt_row_finish derives the rest. */
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
    bool *dropped;  /* (T) labels that Goldfish drops. */
    bool masked;    /* Some source has label masks; if not, the next two are absent. */
    bool *silent;   /* (T + 1) for gathered tokens: never a label. */
    bool *unlearnt; /* (T) for the row's labels: silent ones. */
    int64_t n_starts;
} lt_row_builder;

/* The four arrays (T) of one row. */
typedef struct {
    int32_t *tokens, *labels, *doc_start, *positions;
} lt_row;

void lt_row_builder_carve(lt_row_builder *b, int64_t seq, lt_arena *a);
void lt_row_carve(lt_row *row, int64_t seq, lt_arena *a);

/* Pad a row, set doc_start and positions, and mark labels to be ignored. The caller has filled
 * tokens[0..n_real), labels[0..n_real) and, if masked, unlearnt. If starts[i] > 0,
 * labels[starts[i] - 1] is the first token of the next document, unless `joined` is false
 * (BEST_FIT: labels never cross documents). */
void lt_row_finish(lt_row_builder *b, const lt_row *row, int64_t n_real, bool joined);

/* Make a row of padding only. */
void lt_row_blank(lt_row_builder *b, const lt_row *row);

#endif
