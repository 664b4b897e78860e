/* paged_forward_impl.h: the internals of the paged forward pass: the call itself (paged_forward.c:
 * layers, graphs), its transfers (paged_forward_side.c: metadata, queues) and its results
 * (paged_forward_out.c: logits, picks, hidden states). */
#ifndef LT_MODEL_PAGED_FORWARD_IMPL_H
#define LT_MODEL_PAGED_FORWARD_IMPL_H

#include "model/blocks/block.h"
#include "model/lora/lora_pool.h"
#include "model/infer/paged_forward.h"
#include "model/pass/prepare.h"
#include "model/infer/steering.h"

#define LT_PAGED_FORWARD_MAX_GRAPHS  512 /* Buckets of rows and pages, with packs and without. */
#define LT_PAGED_FORWARD_STATE_CALLS 4   /* Calls of penalty_set in flight at once, of two steps. */
#define LT_PAGED_FORWARD_PADDING     8   /* Sequences that pad a call of few rows per sequence. */

/* The shape with which a call runs: at least the caller's. */
typedef struct {
    int64_t rows, seqs, out, q_max, kv_max, max_pages;
    /* lt_lora_rows.growths if the call is padded and a row has an adapter; otherwise 0. */
    int64_t adapters;
    bool packed; /* Some sequences begin with the same pages (packs.h). */
} lt_paged_forward_shape;

typedef struct {
    lt_paged_forward_shape shape;
    lt_graph *graph[2]; /* By side; NULL: not recorded. */
} lt_paged_forward_graph;

/* The data that a call exchanges with the host. Two of these alternate: see
 * paged_forward_side.c. */
typedef struct {
    int32_t *meta, *chosen; /* On the device; chosen: see pick_at. */
    int32_t *host_meta, *host_chosen;
    int64_t call; /* Its number among all calls. */
    bool busy;    /* The host has not waited for the call. */
    bool sent;    /* Its picks are sent to host_chosen, and were not yet used. */
} lt_paged_forward_side;

/* Buffers of a call of penalty_set: slots, starts, edits, on the device and on the host. `call` is
 * the call of run that must be waited for before they are free; 0: free. */
typedef struct {
    int32_t *words, *host_words;
    int64_t call;
} lt_paged_forward_state_call;

struct lt_paged_forward {
    lt_exec exec;
    lt_paged_forward_options o;
    lt_prepared prepared;
    lt_arena cache, fixed, activations; /* Arenas in the backend's memory. */
    /* One set of activations, in the view of the current layer: nothing is kept for a backward
     * pass. */
    lt_layer_acts room, layer;
    bool alike; /* All layers have the same view of it. */
    lt_batch_acts batch;
    lt_lora_run lora; /* The adapters of a model that has some. */
    void *pool;
    lt_page_groups groups;
    lt_tensor q_start, kv_len, out_rows; /* I32, views of the metadata */
    lt_tensor slots[LT_MAX_PAGE_GROUPS], table[LT_MAX_PAGE_GROUPS];
    /* The same for packs, absent if there are none; host_packs: (groups that keep all, max_seqs,
     * 3). */
    lt_tensor packs[LT_MAX_PAGE_GROUPS];
    int32_t *host_packs;
    lt_lora_rows lora_rows;      /* pool NULL: requests choose no adapters. */
    const lt_steering *steering; /* Steering of the model; NULL: none. */
    lt_tensor steer; /* S of steering.h, a view of the metadata; absent: no row is steered. */
    lt_paged_forward_side sides[2];
    int turn;            /* The side of the last call. */
    int64_t prompt_keys; /* An argument of the call (lt_attention_paged_args). */
    /* Number of calls of run so far; the host has waited for the first n_waited. */
    int64_t n_calls, n_waited;
    lt_queue *up, *down; /* Queues for transfers, beside exec.queue. */
    /* (n_penalty_states, V + LT_PENALTY_BIASES), (out_rows, ceil(V / 32)) I32 */
    lt_tensor penalty_states, masks;
    uint32_t *host_masks; /* The same. */
    lt_paged_forward_state_call state_calls[LT_PAGED_FORWARD_STATE_CALLS];
    int state_call;           /* Index of the next one. */
    lt_tensor h_out, out_f32; /* (max_out, C) act dtype; (out_rows, C) F32 */
    float *logits,
        /* (out_rows, V). host_logits: allocated on first use, if the host cannot read the device's
         * memory. */
        *host_logits;
    float **host_rows;            /* (out_rows) of those */
    lt_tensor choose_rows, how;   /* The same, for all wanted rows. */
    bool any_top;                 /* A pick of this call asks for the most likely ids, too. */
    lt_paged_forward_shape shape; /* Shape of the last call. */
    int64_t at_hand,
        /* The wanted row whose logits are the first of `logits`, and the first row of the chunk
         * whose picks were made; -1: none. */
        chosen_first;
    lt_paged_forward_graph graphs[LT_PAGED_FORWARD_MAX_GRAPHS];
    int n_graphs;
    bool usual; /* The last call was the launch of a graph, or there are none. */
};

/* Words of metadata for each pick: its row, and how to choose. */
#define LT_PAGED_FORWARD_PICK_WORDS (1 + 2 * LT_CHOOSE_HOW_COUNT)

/* In words: alignment of S for the products that read it. */
#define LT_PAGED_FORWARD_STEER_ALIGN 16

/* Words of the call's metadata; those of choose_more follow. */
static inline int64_t lt_paged_forward_call_words(const lt_paged_forward *f) {
    const lt_paged_forward_options *o = &f->o;
    const int64_t steer = o->max_rows * lt_steering_columns(f->steering);
    const int64_t seqs = o->max_seqs + (o->few_rows > 1 ? LT_PAGED_FORWARD_PADDING : 0);
    const int64_t groups = lt_page_groups_count(&f->groups);
    const int64_t n = (2 + groups) * o->max_rows + seqs * (2 + groups * (o->max_pages + 3)) + 1 +
                      o->max_out * (1 + LT_PAGED_FORWARD_PICK_WORDS) +
                      (steer > 0 ? steer + LT_PAGED_FORWARD_STEER_ALIGN : 0) +
                      (f->lora_rows.pool != NULL
                           ? lt_lora_pool_places(f->lora_rows.pool) + 1 + 3 * o->max_rows
                           : 0);
    return (n + 3) / 2 * 2; /* `how` has doubles. */
}

static inline int64_t lt_paged_forward_words(const lt_paged_forward *f) {
    const int64_t turns = f->o.few_rows - 1; /* Turns after the first one. */
    return lt_paged_forward_call_words(f) + f->o.out_rows * (LT_PAGED_FORWARD_PICK_WORDS + turns) +
           1;
}

static inline lt_paged_forward_side *lt_paged_forward_side_of_call(lt_paged_forward *f) {
    return &f->sides[f->turn];
}

/* Bytes of the results of out_rows picks: ids, ranks, log-probabilities, then the most likely ids
 * of each. */
static inline size_t lt_paged_forward_chosen_bytes(const lt_paged_forward_options *o, bool top) {
    return (size_t)(o->out_rows * (3 + (top ? 2 * LT_CHOOSE_TOP : 0))) * sizeof(int32_t);
}

/* paged_forward_side.c: memory in the fixed arena and on the host, and queues. */
void lt_paged_forward_sides_carve(lt_paged_forward *f, lt_arena *a);
LT_MUST_USE lt_err lt_paged_forward_sides_open(lt_paged_forward *f);
void lt_paged_forward_sides_close(lt_paged_forward *f);
LT_MUST_USE lt_err lt_paged_forward_host_logits(lt_paged_forward *f);
/* Begin a call: it gets the other side, when that is no longer read. */
LT_MUST_USE lt_err lt_paged_forward_turn(lt_paged_forward *f);
/* Upload its metadata, padded to f->shape, and set the tensors that view it. */
LT_MUST_USE lt_err lt_paged_forward_upload(lt_paged_forward *f, const lt_paged_forward_rows *w);

/* paged_forward_out.c. Put rows and options of n picks, and of idle ones up to `all`, into the
 * metadata at *at. rows NULL: wanted row i, counted from the first of its chunk. choose: which
 * picks the device makes, NULL: all; the others get the row `idle`. */
void lt_paged_forward_put_picks(lt_paged_forward *f, int64_t *at, int64_t n, int64_t all,
                                const int32_t *rows, const bool *choose, int32_t idle,
                                const double *how);
/* Compute logits of wanted rows [first, first + n). */
LT_MUST_USE lt_err lt_paged_forward_head(lt_paged_forward *f, int64_t first, int64_t n);
/* Make picks [first, first + n) of those in the metadata, from the n_logits current rows. */
LT_MUST_USE lt_err lt_paged_forward_choose(lt_paged_forward *f, int64_t first, int64_t n,
                                           int64_t n_logits);

#endif
