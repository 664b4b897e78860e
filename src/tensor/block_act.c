/* block_act.c: rounds activations to 8 bits per block (see block.h). The fast versions in kernels/
 * must equal it bit for bit. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "tensor/block.h"

int64_t lt_partner_block(lt_partner partner) {
    LT_ASSERT(partner != LT_PARTNER_NONE);
    return partner == LT_PARTNER_Q8_K ? LT_BLOCK_SUPER : LT_BLOCK_SMALL;
}

static void encode_small(lt_q8 *dst, const float *x) {
    float most = 0.0f;
    int sum = 0;
    for (int i = 0; i < LT_BLOCK_SMALL; i++) {
        most = fmaxf(most, fabsf(x[i]));
    }
    const float d = most / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < LT_BLOCK_SMALL; i++) {
        dst->q[i] = (int8_t)roundf(x[i] * inverse);
        sum += dst->q[i];
    }
    dst->sums[0] = (int16_t)sum;
    dst->d = lt_f16_to_f32(lt_f32_to_f16(d));
    dst->s = lt_f16_to_f32(lt_f32_to_f16((float)sum * d));
}

static void encode_super(lt_q8 *dst, const float *x) {
    float most = 0.0f, extreme = 0.0f;
    for (int i = 0; i < LT_BLOCK_SUPER; i++) {
        if (fabsf(x[i]) > most) { /* Of equal elements the first counts. */
            most = fabsf(x[i]);
            extreme = x[i];
        }
    }
    memset(dst, 0, sizeof *dst);
    if (most == 0.0f) {
        return;
    }
    const float scale = -127.0f / extreme;
    for (int i = 0; i < LT_BLOCK_SUPER; i++) {
        const int q = (int)nearbyintf(scale * x[i]);
        dst->q[i] = (int8_t)(q < 127 ? q : 127);
        dst->sums[i / 16] = (int16_t)(dst->sums[i / 16] + dst->q[i]);
    }
    dst->d = 1.0f / scale;
}

void lt_q8_encode(lt_q8 *dst, lt_partner partner, const float *x) {
    if (partner == LT_PARTNER_Q8_K) {
        encode_super(dst, x);
    } else {
        encode_small(dst, x);
    }
}
