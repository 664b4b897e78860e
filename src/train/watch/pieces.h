/* pieces.h: hashes of what a rank holds in its device's memory, by which ranks are compared
 * (replicas.h, replay.h).
 *
 *     open     spans of memory are cut into pieces of 256 KB; their table goes to the device
 *     queue    the op hash of some pieces: one kernel on a GPU; 8 bytes a piece come back
 *     sync     the caller syncs, and may wait for other work as well
 *     sum      one hash of all these hashes (XXH3); the hash of a piece tells where memory differs
 *
 * A block of a GPU reads a piece in about 70 us. That is short compared with the whole kernel, so
 * few blocks run alone at its end; and 8 bytes are little compared with a piece. */
#ifndef LT_TRAIN_PIECES_H
#define LT_TRAIN_PIECES_H

#include "tensor/backend.h"

/* Memory at `data`; bytes 0: none. */
typedef struct {
    const void *data;
    size_t bytes;
} lt_piece_span;

typedef struct {
    lt_device *device; /* NULL: it is not open. */
    lt_queue *queue;
    int n, first, end;        /* Pieces of the last call of queue: [first, end). */
    int *span;                /* (n): the span that a piece is part of. */
    const void *base;         /* Places are distances from this address. */
    int64_t *places;          /* (n, 2), on the device: place and bytes of each piece. */
    int64_t *results;         /* (n), on the device. */
    int64_t *hashes;          /* (n), on the host after a sync. */
    lt_moment *began, *ended; /* NULL: the work of the queue runs at once. */
    double seconds;           /* Duration of the last call of queue, if it ran at once. */
} lt_pieces;

/* The memory and the queue must outlive it. Pieces are in the order of their spans. */
LT_MUST_USE lt_err lt_pieces_open(lt_pieces *p, lt_device *device, lt_queue *queue,
                                  const lt_piece_span *spans, int n_spans);
void lt_pieces_close(lt_pieces *p); /* Accepts a zeroed struct. */
/* Queue the hashes of pieces [first, end). */
LT_MUST_USE lt_err lt_pieces_queue(lt_pieces *p, int first, int end);
/* After a sync of the queue: one hash of these hashes, and the device's time for them. */
int64_t lt_pieces_sum(const lt_pieces *p);
LT_MUST_USE lt_err lt_pieces_seconds(const lt_pieces *p, double *seconds);

#endif
