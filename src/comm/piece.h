/* piece.h: a sum over GPUs, piece by piece. Pieces arrive through NCCL's sends and receives
 * (nccl_collective.c) or as copies (peer_verbs.c); both add them here. A member's shard is cut into
 * pieces, and for each piece the member adds what all members hold of it, in the order of the
 * members, in F32, and rounds once. */
#ifndef LT_COMM_PIECE_H
#define LT_COMM_PIECE_H

#include "comm/call.h"
#include "tensor/backend.h"

/* A range of elements in src, and in dst if dst is whole. */
typedef struct {
    int64_t first, count;
} lt_piece;

char *lt_piece_element(const void *data, int64_t i, lt_dtype dtype);
/* Piece k, in pieces of `each` elements, of a member's shard of an all_reduce or reduce_scatter. */
lt_piece lt_piece_of(const lt_call *call, int member, int64_t k, int64_t each);
/* This rank's piece, at its place in dst, becomes the sum of terms[0], terms[1], ..., one for each
 * member. sum: device memory for the piece in F32, for groups of more than LT_SUM_MOST. */
LT_MUST_USE lt_err lt_piece_add(const lt_backend *b, lt_queue *q, const lt_call *call,
                                lt_piece piece, void *const *terms, float *sum);

#endif
