/* deferred.h: computes gradients of weights later than those of activations: zero-bubble pipelines
 * split the backward pass in this way (Qi et al. 2023, arXiv:2401.10241). The operands of the
 * products of a layer's matrices are kept between the two parts.
 *
 *     backward            dx = dy w           x and dy are kept; they are copied if their buffer is
 *                                             reused before the batch's activations are released
 *     backward of weights dw += dy^T x
 *
 * The matrices are qkv, attn_out, up and down of layers without experts, and qkv and attn_out of
 * layers with experts; everything else (biases, norms, routers, experts, head, 8-bit products) is
 * computed with the activations' gradients. The products and the order of batches are the same, so
 * the bits are those of a single backward pass.
 *
 * APART    If the memory of a layer's gradients comes and goes (gradients_elsewhere), it is here
 *          only while the matrices' gradients are computed. Until then the gradients that the first
 *          part computes, of biases and norms, are added up in a small separate place:
 *
 *     backward, micro-batch i      place += biases, norms
 *     backward of weights, i       memory = dy^T x of the matrices, and the place, which is zeroed
 *
 *          Layers with experts defer nothing in this case, because the place would be as large as
 *          the experts. */
#ifndef LT_MODEL_DEFERRED_H
#define LT_MODEL_DEFERRED_H

#include "model/pass/acts.h"

enum { LT_DEFERRED_QKV, LT_DEFERRED_ATTN_OUT, LT_DEFERRED_UP, LT_DEFERRED_DOWN, LT_DEFERRED_COUNT };

typedef struct {
    void *x_room, *dy_room; /* NULL: the tensor is not copied. */
    lt_tensor x, dy;        /* Inputs of the last backward pass; absent: none were kept. */
} lt_deferred_product;

typedef struct lt_deferred {
    int n_sets, first, n_layers;
    lt_deferred_product *products; /* (n_sets, n_layers, LT_DEFERRED_COUNT); NULL: none. */
    bool *stored;                  /* (n_layers): products of this step are added to. */
    int set;                       /* The set whose backward pass runs; -1: none. */
    float **apart;                 /* (n_layers): their places; NULL: there are none. */
} lt_deferred;

LT_MUST_USE lt_err lt_deferred_open(lt_deferred *a, int n_sets, int first, int end, bool apart);
void lt_deferred_close(lt_deferred *a);
/* Whether anything of the layer is deferred. False for a zeroed struct. */
bool lt_deferred_has(const lt_deferred *a, const lt_model_spec *s, int layer);
/* Take the memory for the operands of the largest batch, and for the places of APART. */
void lt_deferred_carve(lt_deferred *a, const lt_model_spec *s, const lt_acts_shape *shape,
                       lt_arena *arena);
void lt_deferred_carve_apart(lt_deferred *a, const lt_model_spec *s, const lt_param_table *t,
                             lt_arena *arena);

/* Call it when the backward pass of layers [first, end) of a set begins: discards what was kept for
 * them. */
void lt_deferred_begin(lt_deferred *a, int set, int first, int end);
/* Keep the operands of a matrix' gradient; *kept false: it is computed at once. */
LT_MUST_USE lt_err lt_deferred_keep(lt_exec *r, lt_param_kind kind, int layer, lt_tensor dy,
                                    lt_tensor x, bool *kept);
/* The separate place for the first part's gradient of a parameter; absent: it is with the
 * others. */
lt_tensor lt_deferred_gradient(const lt_exec *r, lt_param_kind kind, int layer);
/* Compute the gradients of a layer's matrices for the batch in a set. With APART: store all
 * gradients of the layer. */
LT_MUST_USE lt_err lt_deferred_run(lt_exec *r, lt_deferred *a, int set, int layer);

#endif
