/* sm80.c: attention on GPUs before Hopper, and on Hopper where its kernels refuse a call: chooses
 * the specialisation of fwd_sm80.cu and bwd_sm80.cu, and launches it.
 *
 * A block's shared memory stays under the 99 KB that a GPU of compute capability 8.6 or 8.9 gives
 * to one. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/attention/attention_private.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_attention_sm80. */
#define FORWARD_WORDS  "WIDTH=%d TILES=%d STEP=%d SINKS=%d "
#define BACKWARD_WORDS "WIDTH=%d TILES=%d STEP=%d GIVES=%d "

#define THREADS    128
#define WIDTH_MOST 256

/* A specialisation: TILES, STEP and, for a backward pass, GIVES of the kernels for heads up to
 * `width`: the fastest of those that fit and were tried (docs/speed/attention.md). */
typedef struct {
    int width, tiles, step, gives;
} shape;
static const shape forward_shapes[] = {{64, 2, 64, 0}, {128, 2, 32, 0}, {WIDTH_MOST, 1, 64, 0}};
static const shape backward_shapes[] = {
    {64, 2, 32, 1},         {64, 2, 32, 6},         {128, 2, 32, 1},       {128, 1, 32, 6},
    {WIDTH_MOST, 1, 16, 1}, {WIDTH_MOST, 1, 16, 2}, {WIDTH_MOST, 1, 16, 4}};
#define N_BACKWARD (int)(sizeof backward_shapes / sizeof *backward_shapes)

static int width_of(const lt_attention_args *a) {
    return (int)a->q.shape[3];
}
/* WIDTH: the padded width of a head. */
static int padded_of(const lt_attention_args *a) {
    const int width = width_of(a);
    return width <= 64 ? 64 : width <= 96 ? 96 : width <= 128 ? 128 : width <= 192 ? 192 : 256;
}
static shape forward_shape(const lt_attention_args *a) {
    const shape *s = forward_shapes;
    shape found;
    while (s->width < width_of(a)) {
        s++;
    }
    found = *s;
    if (a->q.shape[1] <= 64) { /* For few queries, half as many rows are enough. */
        found.tiles = 1;
    }
    return found;
}
/* The first of the backward launches; the others have the same width. */
static int backward_first(const lt_attention_args *a) {
    int i = 0;
    while (backward_shapes[i].width < width_of(a)) {
        i++;
    }
    return i;
}
static int rows_of(const shape *s) {
    return 64 * s->tiles;
}
static size_t forward_shared(const lt_attention_args *a, const shape *s) {
    return (size_t)LT_ATTN_SM80_FORWARD_BYTES(rows_of(s), s->step, padded_of(a));
}
static size_t backward_shared(const lt_attention_args *a, const shape *s) {
    return (size_t)LT_ATTN_SM80_BACKWARD_BYTES(rows_of(s), s->step, padded_of(a));
}

/* In a tile, the distance between rows is a 32-bit number. */
static const char *tensor_refusal(const lt_tensor *t, lt_dtype act) {
    const char *why = lt_attn_tensor_refusal(t);
    if (why == NULL && t->dtype != act) {
        why = "tensors of different types";
    }
    return why == NULL && t->stride[1] >= 1 << 23 ? "tokens far apart" : why;
}
const char *lt_cuda_attention_sm80_refusal(const lt_attention_args *a, const lt_cuda_info *info) {
    const lt_tensor *tensors[] = {&a->q, &a->k, &a->v, &a->out};
    for (int i = 0; i < 4; i++) {
        const char *why = tensor_refusal(tensors[i], a->q.dtype);
        if (why != NULL) {
            return why;
        }
    }
    if (a->q.shape[3] % 8 != 0 || a->q.shape[3] > WIDTH_MOST) {
        return "head width not a multiple of 8 up to 256";
    }
    if (a->doc_start.data != NULL && !lt_tensor_contiguous(&a->doc_start)) {
        return "doc_start not contiguous";
    }
    if (a->q.shape[0] < 1 || a->q.shape[1] < 1 || a->k.shape[1] < 1 || a->scale <= 0.0f) {
        return "no queries, no keys or no scale";
    }
    const shape s = forward_shape(a);
    return info->cc < 80                                      ? "needs compute capability 8.0"
           : forward_shared(a, &s) > info->shared_optin_bytes ? "shared memory"
                                                              : NULL;
}
const char *lt_cuda_attention_bwd_sm80_refusal(const lt_attention_bwd_args *a,
                                               const lt_cuda_info *info) {
    const lt_tensor *tensors[] = {&a->dq, &a->dk, &a->dv, &a->dout};
    const char *why = lt_cuda_attention_sm80_refusal(&a->fwd, info);
    for (int i = 0; why == NULL && i < 4; i++) {
        why = tensor_refusal(tensors[i], a->fwd.q.dtype);
    }
    if (why == NULL) {
        /* The later launches have no more rows. */
        const shape *s = &backward_shapes[backward_first(&a->fwd)];
        why = a->fwd.lse.data == NULL || a->delta.data == NULL         ? "no lse or delta"
              : backward_shared(&a->fwd, s) > info->shared_optin_bytes ? "shared memory"
                                                                       : NULL;
    }
    return why;
}

static lt_attn_strides strides_of(const lt_tensor *t) {
    return (lt_attn_strides){t->stride[1], t->stride[2], t->stride[0]};
}
static lt_attn_sm80_args args_of(const lt_attention_args *a) {
    return (lt_attn_sm80_args){.a = lt_attn_args_of(a, (lt_scratch){0}),
                               .q = a->q.data,
                               .k = a->k.data,
                               .v = a->v.data,
                               .o = a->out.data,
                               .sq = strides_of(&a->q),
                               .sk = strides_of(&a->k),
                               .sv = strides_of(&a->v),
                               .so = strides_of(&a->out),
                               .width = (int)a->q.shape[3]};
}

static lt_err launch(lt_cuda *c, CUstream s, const char *file, const char *entry, const char *words,
                     int64_t blocks, size_t shared, lt_attn_sm80_args *w) {
    const lt_cuda_kernel *k;
    void *args[] = {w};
    LT_ASSERT(blocks < (int64_t)1 << 31);
    LT_TRY(lt_cuda_kernel_get(c, &k, file, entry, words));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)blocks},
                                          .block = {THREADS},
                                          .dynamic_shared_bytes = shared},
                          args);
}

lt_err lt_cuda_attention_sm80(lt_cuda *c, CUstream s, const lt_attention_args *a) {
    const shape m = forward_shape(a);
    lt_attn_sm80_args w = args_of(a);
    char flags[128], words[256];

    lt_attn_flags(flags, sizeof flags, a);
    snprintf(words, sizeof words, FORWARD_WORDS "%s", padded_of(a), m.tiles, m.step,
             a->sinks.data != NULL, flags);
    return launch(c, s, "attention/fwd_sm80.cu", "attn_fwd_sm80", words,
                  lt_cuda_div_up(w.a.q_tokens, rows_of(&m)) * w.a.q_heads * w.a.batch,
                  forward_shared(a, &m), &w);
}

lt_err lt_cuda_attention_bwd_sm80(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a) {
    const int first = backward_first(&a->fwd), padded = padded_of(&a->fwd),
              lanes = padded <= 64 ? 8 : (padded <= 128 ? 16 : 32); /* LANES */
    lt_attn_sm80_args w = args_of(&a->fwd);
    char flags[128], words[256];

    w.d_o = a->dout.data, w.dq = a->dq.data, w.dk = a->dk.data, w.dv = a->dv.data;
    w.delta = a->delta.data;
    w.sdo = strides_of(&a->dout), w.sdq = strides_of(&a->dq);
    w.sdk = strides_of(&a->dk), w.sdv = strides_of(&a->dv);
    lt_attn_flags(flags, sizeof flags, &a->fwd);
    for (int i = first; i < N_BACKWARD && backward_shapes[i].width == backward_shapes[first].width;
         i++) {
        const shape *m = &backward_shapes[i];
        const int64_t pairs = (int64_t)w.a.batch * (m->gives == 1 ? w.a.q_heads : w.a.kv_heads),
                      rows = m->gives == 1 ? w.a.q_tokens : w.a.kv_tokens;
        snprintf(words, sizeof words, BACKWARD_WORDS "%s", padded, m->tiles, m->step, m->gives,
                 flags);
        if (m->gives == 1) { /* The first launch follows the deltas, which all launches read. */
            LT_TRY(launch(c, s, "attention/bwd_sm80.cu", "attn_bwd_sm80_delta", words,
                          lt_cuda_div_up(pairs * rows, THREADS / lanes), 0, &w));
        }
        LT_TRY(launch(c, s, "attention/bwd_sm80.cu", "attn_bwd_sm80", words,
                      lt_cuda_div_up(rows, rows_of(m)) * pairs, backward_shared(&a->fwd, m), &w));
    }
    return LT_OK;
}

/* Flags of a call: causal, window, documents, softcap, ALiBi. */
#define PLAIN_CAUSAL "bf16", 1, 0, 0, 0, 0

/* Every shape with its widths, and each flag once. */
void lt_specs_attention_sm80(lt_specs *l) {
    static const char forward[] = "attention/fwd_sm80.cu", backward[] = "attention/bwd_sm80.cu";
    static const int padded[] = {64, 96, 128, 192, 256};
    for (size_t k = 0; k < sizeof padded / sizeof *padded; k++) {
        const int w = padded[k];
        const shape *f = forward_shapes;
        int b = 0;
        while (f->width < w) {
            f++;
        }
        while (backward_shapes[b].width < w) {
            b++;
        }
        lt_spec(l, LT_SM_ALL, forward, FORWARD_WORDS LT_ATTN_FLAGS, w, f->tiles, f->step, 0,
                PLAIN_CAUSAL);
        for (const int width = backward_shapes[b].width;
             b < N_BACKWARD && backward_shapes[b].width == width; b++) {
            const shape *s = &backward_shapes[b];
            lt_spec(l, LT_SM_ALL, backward, BACKWARD_WORDS LT_ATTN_FLAGS, w, s->tiles, s->step,
                    s->gives, PLAIN_CAUSAL);
        }
    }
    lt_spec(l, LT_SM_ALL, forward, FORWARD_WORDS LT_ATTN_FLAGS, 64, 1, 64, 0, "bf16", 1, 1, 1, 0,
            0);
    lt_spec(l, LT_SM_ALL, forward, FORWARD_WORDS LT_ATTN_FLAGS, 128, 2, 32, 0, "bf16", 0, 0, 0, 0,
            0);
    lt_spec(l, LT_SM_ALL, forward, FORWARD_WORDS LT_ATTN_FLAGS, 128, 2, 32, 0, "fp16", 1, 0, 0, 0,
            0);
    lt_spec(l, LT_SM_ALL, forward, FORWARD_WORDS LT_ATTN_FLAGS, 128, 2, 32, 1, "bf16", 1, 0, 0, 0,
            1);
    lt_spec(l, LT_SM_ALL, forward, FORWARD_WORDS LT_ATTN_FLAGS, 256, 1, 64, 0, "bf16", 1, 1, 0, 1,
            0);
    lt_spec(l, LT_SM_ALL, backward, BACKWARD_WORDS LT_ATTN_FLAGS, 96, 1, 32, 6, "bf16", 1, 1, 1, 0,
            0);
    lt_spec(l, LT_SM_ALL, backward, BACKWARD_WORDS LT_ATTN_FLAGS, 128, 2, 32, 1, "bf16", 0, 0, 0, 0,
            0);
    lt_spec(l, LT_SM_ALL, backward, BACKWARD_WORDS LT_ATTN_FLAGS, 128, 1, 32, 6, "bf16", 0, 0, 0, 0,
            0);
    lt_spec(l, LT_SM_ALL, backward, BACKWARD_WORDS LT_ATTN_FLAGS, 128, 2, 32, 1, "bf16", 1, 0, 0, 0,
            1);
    lt_spec(l, LT_SM_ALL, backward, BACKWARD_WORDS LT_ATTN_FLAGS, 128, 1, 32, 6, "fp16", 1, 0, 0, 1,
            0);
}
