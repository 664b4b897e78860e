/* block.c: where a half of a layer meets the residual stream, alike for attention and the MLP.
 *
 *     begin   x = stream + branch;  h = norm(x), in one op; without a pre-norm the half reads x
 *     end     branch = residual_scale * norm(y); without a post-norm y was written to branch */
#include "model/block.h"

static lt_err add(lt_exec *r, lt_tensor y, lt_tensor a, float alpha, lt_tensor b) {
    return lt_exec_add(
        r, &(lt_add_args){
               .y = y, .a = a, .b = b, .alpha = alpha, .beta = b.data != NULL ? 1.0f : 0.0f});
}

lt_err lt_block_begin_fwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm, lt_tensor h,
                          lt_tensor x, lt_tensor stream, lt_tensor branch) {
    const lt_tensor none = {0};
    if (!l->pre_norms) {
        return stream.data == NULL ? LT_OK : add(r, x, stream, 1.0f, branch);
    }
    if (stream.data == NULL) {
        return lt_norm_fwd(r, norm, h, x, none, none);
    }
    return lt_norm_fwd(r, norm, h, stream, branch, x);
}

lt_err lt_block_end_fwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *post, lt_tensor branch,
                        lt_tensor y) {
    const lt_tensor none = {0};
    if (l->post_norms) {
        LT_TRY(lt_norm_fwd(r, post, branch, y, none, none));
    }
    return l->residual_scale != 1.0f ? add(r, branch, branch, l->residual_scale, none) : LT_OK;
}

lt_err lt_block_end_bwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *post,
                        const lt_batch_acts *b, lt_tensor y, lt_tensor *dy) {
    const lt_tensor none = {0};
    *dy = b->dx;
    if (l->residual_scale != 1.0f) {
        LT_TRY(add(r, b->branch, b->dx, l->residual_scale, none));
        *dy = b->branch;
    }
    if (l->post_norms) {
        LT_TRY(lt_norm_bwd(r, post, b->branch, *dy, y, false));
        *dy = b->branch;
    }
    return LT_OK;
}

lt_err lt_block_begin_bwd(lt_exec *r, const lt_layer_spec *l, const lt_norm *norm,
                          const lt_batch_acts *b, lt_tensor x) {
    return l->pre_norms ? lt_norm_bwd(r, norm, b->dx, b->dh, x, true)
                        : add(r, b->dx, b->dx, 1.0f, b->dh);
}
