/* packer.h: the endless sequence of rows of one source. Each row is a pure function of a cursor of
 * a few numbers.
 *
 * STREAM with NONE or ROWS: row r of an epoch is found by arithmetic: shuffle the row's number
 * (lt_rng_permute, within windows of shuffle_rows rows), then search its first document. The cuts
 * move by a random shift each epoch.
 *
 * All other modes work in windows of up to LT_PACK_WINDOW rows (STREAM) or pieces. The
 * rows of a window are planned from the cursor's document on, in the order of the epoch, and handed
 * out in random order; the next window begins where this one ended. The plan depends only on the
 * beginning of the window, so the cursor remains a few numbers, and rows of one long novel are not
 * neighbours. The end of an epoch ends a window. */
#ifndef LT_DATA_PACKER_H
#define LT_DATA_PACKER_H

#include "base/arena.h"
#include "data/row.h"
#include "data/doc_stream.h"

#define LT_PACK_WINDOW 4096

/* Inputs [offset, offset + n) of a document; the token after them is the last label. */
typedef struct {
    uint64_t document; /* In the epoch's order. */
    uint64_t offset;
    int32_t n;
    int32_t next; /* Index of the next piece in the row, or in a list; -1: none. */
} lt_piece;

typedef struct {
    bool planned;
    uint64_t epoch, document, offset;  /* Where this window begins. */
    uint64_t end_document, end_offset; /* Where the next window begins, */
    bool ends_epoch;                   /* or that it begins the next epoch. */
    int64_t n_rows;
    lt_piece *pieces; /* (LT_PACK_WINDOW) STREAM: piece r is where row r begins. */
    /* (LT_PACK_WINDOW) BEST_FIT and SINGLE: first and last piece of a row; lists of rows. */
    int32_t *row_first, *row_last, *row_next;
    int32_t *by_length; /* (T + 1) the same: first piece of that length. */
    int32_t *by_room;   /* (T + 1) BEST_FIT: first row with that many free places. */
    uint64_t *rooms;    /* (T / 64 + 1) bits: by_room is not empty. */
} lt_window;

typedef struct {
    lt_doc_stream source;
    const lt_loader_options *options;
    uint64_t seed; /* Seed of this source. */
    lt_window window;
} lt_packer;

void lt_packer_carve(lt_packer *p, const lt_loader_options *o, lt_arena *a);

/* Number of rows in an epoch if it is known in advance, otherwise 0. */
uint64_t lt_packer_epoch_rows(const lt_packer *p, uint64_t epoch);

/* Write the row at the cursor to *row (NULL: skip it) and advance the cursor. */
LT_MUST_USE lt_err lt_packer_take(lt_packer *p, lt_loader_cursor *c, lt_row_builder *b,
                                  const lt_row *row);

#endif
