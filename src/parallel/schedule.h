/* schedule.h: which rank computes what, and when, in a pipeline. A schedule is a table: for each
 * rank of the pipeline, its operations in order, what each receives and sends, and which set of
 * activations it uses. The trainer runs a row of it, the planner simulates it, and `lateen plan
 * schedule` prints and draws it.
 *
 *     F   forward of one micro-batch through one chunk of layers
 *     B   backward: gradient of the chunk's input, and of its weights unless W is separate
 *     W   gradient of the chunk's weights, where a schedule computes it separately
 *
 * The model is cut into ranks * chunks stages; each rank has one stage in each chunk:
 *
 *     most schedules   rank 0   stages 0, p, 2p, ...          rank 1   1, p + 1, ...
 *     V shapes         rank 0   stages 0 and 2p - 1           rank 1   1 and 2p - 2, ...
 *
 *     schedule     order on rank d of p, m micro-batches, v chunks        bubble          held
 *     gpipe        all F, then all B                                      (p-1)(F+B+W)    m
 *     1f1b         p-1-d F, then F and B in turn, then the B left         (p-1)(F+B+W)    p-d
 *     interleaved  2(p-1-d) + (v-1)p F, then F and B in turn; chunks in   (p-1)(F+B+W)/v  p+(p-1)/v
 *                  turn for p micro-batches each
 *     zb-h1        1f1b; W of micro-batch i-d after B of i                (p-1)(F+B-W)    p
 *     zbv          see below, at most 2p chunks held                      (p-1)/2         p
 *     v-half       see below, at most p + 2 chunks held                   simulated       p/2+1
 *
 * bubble: the step's time beyond m (F + B + W), for F, B, W of a whole rank, with equal ranks and
 * no time to send; for zbv with F = B = W = 1. held: activations on the fullest rank, in units of
 * one rank's layers for one micro-batch; a chunk's activations are held until its last operation.
 * The V shapes come from a rule: a free rank takes a B whose input is ready, otherwise the F of its
 * second chunk, otherwise an F of its first unless too many chunks are held, otherwise a W.
 * Interleaved chunks take turns for a few more micro-batches where p does not divide m.
 *
 * Micro-batches pass each stage in order, forward and backward, so every schedule adds gradients in
 * the order of the micro-batches.
 *
 * Messages between two ranks are received in the order in which they are sent. A receive is posted
 * no later than the start of the operation before the one that needs it, so the message travels
 * while its receiver computes. (GPipe: Huang et al. 2019, arXiv:1811.06965; 1F1B and interleaved:
 * Narayanan et al. 2021, arXiv:2104.04473; zero bubble: Qi et al. 2023, arXiv:2401.10241 and 2024,
 * arXiv:2405.15362.) */
#ifndef LT_PARALLEL_SCHEDULE_H
#define LT_PARALLEL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_SCHEDULE_MAP(X)                                                                         \
    X(GPIPE, "gpipe")                                                                              \
    X(ONE_F_ONE_B, "1f1b")                                                                         \
    X(INTERLEAVED, "interleaved") X(ZB_H1, "zb-h1") X(ZBV, "zbv") X(V_HALF, "v-half")
#define LT_SCHEDULE_CHOICES "gpipe|1f1b|interleaved|zb-h1|zbv|v-half"
typedef enum {
#define LT_SCHEDULE_ENUM(code, name) LT_SCHEDULE_##code,
    LT_SCHEDULE_MAP(LT_SCHEDULE_ENUM)
#undef LT_SCHEDULE_ENUM
        LT_SCHEDULE_COUNT
} lt_schedule_kind;

typedef enum { LT_OP_FORWARD, LT_OP_BACKWARD, LT_OP_WEIGHTS } lt_schedule_op_kind;
#define LT_SCHEDULE_LETTERS "FBW" /* Letters of the kinds of operation. */

typedef struct {
    lt_schedule_kind kind;
    int ranks, chunks; /* p, v. */
    int64_t micros;
} lt_schedule_shape;

typedef struct {
    lt_schedule_op_kind kind;
    int chunk;
    int32_t micro;
    int set; /* Which of the chunk's sets of activations it uses. */
    /* The rank whose message it needs, and the rank that gets its result; -1: none. */
    int from, to;
    /* Index among this rank's receives, and among those of the rank `to`; -1: none. */
    int32_t receive, posted;
} lt_schedule_op;

typedef struct {
    int from;        /* Rank. */
    int32_t op;      /* The operation that needs it. */
    int32_t post_at; /* It is posted before this operation begins. */
    int buffer;      /* The buffer that receives it, which is free again when `op` begins. */
} lt_schedule_receive;

typedef struct {
    lt_schedule_op *ops;
    /* first: the number of its first operation, counted over all rows. */
    int64_t n_ops, first;
    lt_schedule_receive *receives; /* In the order in which they are posted. */
    int64_t n_receives;
    int n_buffers; /* Buffers for received messages. */
    int held;      /* The most chunks whose activations are held at once. */
    int *n_sets;   /* (chunks): sets of activations of each chunk. */
} lt_schedule_row;

typedef struct {
    lt_schedule_shape shape;
    bool split_backward;
    lt_schedule_row *rows; /* (ranks) */
    int64_t n_ops;         /* The operations of all rows. */
} lt_schedule;

const char *lt_schedule_name(lt_schedule_kind kind);
bool lt_schedule_is_v(lt_schedule_kind kind);
/* Whether the backward pass has a separate W. */
bool lt_schedule_splits_backward(lt_schedule_kind kind);
int lt_schedule_fewest_chunks(lt_schedule_kind kind);
/* ARG: the numbers contradict each other; the message has the nearest that fit. LIMIT: too
 * large. */
LT_MUST_USE lt_err lt_schedule_check_shape(const lt_schedule_shape *s);
/* The table of a shape, checked (lt_schedule_check). Free with lt_schedule_close. */
LT_MUST_USE lt_err lt_schedule_open(lt_schedule *out, const lt_schedule_shape *s);
void lt_schedule_close(lt_schedule *t);

/* Stages are numbered in the order in which a micro-batch passes them. */
int lt_schedule_stage(const lt_schedule_shape *s, int rank, int chunk);
int lt_schedule_rank_of(const lt_schedule_shape *s, int stage);
int lt_schedule_chunk_of(const lt_schedule_shape *s, int stage);

/* Check that ranks which run their rows reach the end: each stage sees each micro-batch once, F
 * before B before W, in order; each message is sent and received once, in the same order on both
 * sides; and no rank waits for ever, even if a send is not done before its receive is posted and a
 * set of activations is not reused before the sends from it are done. STATE: the message names the
 * rank and the operation. */
LT_MUST_USE lt_err lt_schedule_check(const lt_schedule *t);

/* Seconds of each stage's operations, (ranks * chunks) each. backward_s includes W where W is not
 * separate. send_s: time of a message between ranks; neither rank is busy during it. */
typedef struct {
    const double *forward_s, *backward_s, *weights_s;
    double send_s;
} lt_schedule_costs;

typedef struct {
    double makespan_s;
    double *start_s, *end_s; /* (n_ops), row after row. */
    double *busy_s;          /* (ranks) */
} lt_schedule_times;

/* When each operation runs, if it starts as soon as its rank is free and its input has arrived.
 * Free with lt_schedule_times_close. */
LT_MUST_USE lt_err lt_schedule_simulate(lt_schedule_times *out, const lt_schedule *t,
                                        const lt_schedule_costs *c);
void lt_schedule_times_close(lt_schedule_times *times);

#endif
