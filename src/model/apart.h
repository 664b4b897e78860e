/* apart.h: gradients of weights that are computed separately from those of activations, as
 * zero-bubble pipelines need it. The operands of the products of a layer's matrices are kept from
 * one to the other.
 *
 *     backward            dx = dy w           x and dy are kept; they are copied if their buffer is
 *                                             reused before the batch's activations are released
 *     backward of weights dw += dy^T x
 *
 * The matrices are qkv, attn_out, up and down of layers without experts, and qkv and attn_out of
 * layers with experts; everything else (biases, norms, routers, experts, head, 8-bit products) is
 * computed with the activations' gradients. The same products in the same order of batches: the
 * bits are those of one backward pass. */
#ifndef LT_MODEL_APART_H
#define LT_MODEL_APART_H

#include "model/acts.h"

enum { LT_APART_QKV, LT_APART_ATTN_OUT, LT_APART_UP, LT_APART_DOWN, LT_APART_COUNT };

typedef struct {
    void *x_room, *dy_room; /* NULL: the tensor is not copied. */
    lt_tensor x, dy;        /* Of the last backward pass; absent: none was kept. */
} lt_apart_product;

typedef struct lt_apart {
    int n_sets, first, n_layers;
    lt_apart_product *products; /* (n_sets, n_layers, LT_APART_COUNT); NULL: not apart. */
    bool *stored;               /* (n_layers): products of this step are added to. */
    int set;                    /* The set whose backward pass runs; -1: none. */
} lt_apart;

LT_MUST_USE lt_err lt_apart_open(lt_apart *a, int n_sets, int first, int end);
void lt_apart_close(lt_apart *a);
/* Room for the largest batch. */
void lt_apart_carve(lt_apart *a, const lt_model_spec *s, const lt_acts_shape *shape,
                    lt_arena *arena);

/* A set's backward pass of layers [first, end) begins: forget what was kept of them. */
void lt_apart_begin(lt_apart *a, int set, int first, int end);
/* Keep the operands of a matrix' gradient; *kept false: it is not one that is computed apart. */
LT_MUST_USE lt_err lt_apart_keep(lt_exec *r, lt_param_kind kind, int layer, lt_tensor dy,
                                 lt_tensor x, bool *kept);
/* The gradients of a layer's matrices, for the batch in a set. */
LT_MUST_USE lt_err lt_apart_run(lt_exec *r, lt_apart *a, int set, int layer);

#endif
