/* block.c: connects a half of a layer with the residual stream, in the same way for attention and
 * the MLP.
 *
 *     begin   x = stream + branch;  h = norm(x), in one op; without a pre-norm the half reads x
 *     end     branch = residual_scale * norm(y); without a post-norm y was written to branch
 *
 * With ranks of tp (tp.h) the stream has only this rank's rows; begin is followed by a gather of h,
 * or of x into h's place, and end begins by scattering all rows of what the last product wrote to
 * branch. */
#include "model/blocks/block.h"

#include "model/blocks/tp.h"

static lt_err add(lt_exec *r, lt_tensor y, lt_tensor a, float alpha, lt_tensor b) {
    return lt_exec_add(
        r, &(lt_add_args){
               .y = y, .a = a, .b = b, .alpha = alpha, .beta = b.data != NULL ? 1.0f : 0.0f});
}

lt_tensor lt_block_own_input(const lt_exec *r, const lt_layer_spec *l, lt_tensor h, lt_tensor x) {
    return l->pre_norms ? lt_tp_own_rows(r, h) : x;
}

lt_err lt_block_gather(lt_exec *r, const lt_layer_spec *l, lt_tensor h, lt_tensor x) {
    return r->n_tp == 1 ? LT_OK : lt_tp_gather(r, h, lt_block_own_input(r, l, h, x));
}

lt_err lt_block_begin_fwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm, lt_tensor h,
                          lt_tensor x, lt_tensor stream, lt_tensor branch) {
    const lt_tensor none = {0}, own_h = lt_tp_own_rows(r, h), own = lt_tp_own_rows(r, branch);
    if (!l->pre_norms) {
        return stream.data == NULL ? LT_OK : add(r, x, stream, 1.0f, own);
    }
    return stream.data == NULL ? lt_norm_fwd(r, norm, own_h, x, none, none)
                               : lt_norm_fwd(r, norm, own_h, stream, own, x);
}

lt_tensor lt_block_input(const lt_exec *r, const lt_layer_spec *l, lt_tensor h, lt_tensor x) {
    return l->pre_norms || r->n_tp > 1 ? h : x;
}

lt_tensor lt_block_output(const lt_exec *r, const lt_layer_spec *l, lt_tensor branch, lt_tensor y) {
    return l->post_norms && r->n_tp == 1 ? y : branch;
}

lt_err lt_block_end_fwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *post, lt_tensor branch,
                        lt_tensor y) {
    const lt_tensor none = {0}, own = lt_tp_own_rows(r, branch);
    if (r->n_tp > 1) {
        LT_TRY(lt_tp_scatter(r, l->post_norms ? y : own, branch));
    }
    if (l->post_norms) {
        LT_TRY(lt_norm_fwd(r, post, own, y, none, none));
    }
    return l->residual_scale != 1.0f ? add(r, own, own, l->residual_scale, none) : LT_OK;
}

lt_err lt_block_again(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm, lt_tensor h,
                      lt_tensor x) {
    const lt_tensor none = {0};
    LT_TRY(l->pre_norms ? lt_norm_fwd(r, norm, lt_tp_own_rows(r, h), x, none, none) : LT_OK);
    return lt_block_gather(r, l, h, x);
}

lt_err lt_block_end_bwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *post,
                        const lt_batch_acts *b, lt_tensor y, lt_tensor *dy) {
    const lt_tensor none = {0}, own = lt_tp_own_rows(r, b->branch);
    *dy = b->dx;
    if (l->residual_scale != 1.0f) {
        LT_TRY(add(r, own, b->dx, l->residual_scale, none));
        *dy = own;
    }
    if (l->post_norms) {
        LT_TRY(lt_norm_bwd(r, post, own, *dy, y, false));
        *dy = own;
    }
    return LT_OK;
}

lt_err lt_block_gather_bwd(lt_exec *r, const lt_batch_acts *b, lt_tensor *dy) {
    if (r->n_tp > 1) {
        LT_TRY(lt_tp_gather(r, b->branch, *dy));
        *dy = b->branch;
    }
    return LT_OK;
}

lt_err lt_block_begin_bwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm,
                          const lt_batch_acts *b, lt_tensor x) {
    const lt_tensor dh = lt_tp_own_rows(r, b->dh);
    return l->pre_norms ? lt_norm_bwd(r, norm, b->dx, dh, x, true) : add(r, b->dx, b->dx, 1.0f, dh);
}
