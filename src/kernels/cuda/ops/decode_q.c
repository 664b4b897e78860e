/* decode_q.c: launcher of decode_q.cu. */
#include "kernels/cuda/ops/decode_q.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/ops/decode_q_args.h"
#include "kernels/cuda/specs.h"
#include "tensor/block.h"

#define BLOCKS_WORDS "TYPE=%s DTYPE=%s" /* TYPE: one of those in blocks.cuh. */
#define NF4_WORDS    "NF4=%d DTYPE=%s"  /* NF4=2: NF4_DOUBLE. */
#define GROUP        32                 /* As in decode_q.cu. */
#define THREADS      128

static bool is_nf4(lt_dtype type) {
    return type == LT_NF4 || type == LT_NF4_DOUBLE;
}

static bool begins_at_16(const lt_tensor *t) {
    return t->data == NULL || ((uintptr_t)t->data % 16 == 0 &&
                               t->stride[0] * (int64_t)lt_dtype_bytes(t->dtype) % 16 == 0);
}

static bool takes(lt_dtype type) {
    return is_nf4(type) || lt_block_partner(type) != LT_PARTNER_NONE;
}

const char *lt_cuda_decode_q_refuse(const void *args, const lt_device *device) {
    const lt_embed_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->pos_table};
    (void)device;
    if (!takes(a->table.dtype) || a->table.data == NULL) {
        return "table is not of blocks";
    }
    return !begins_at_16(&a->y) || !begins_at_16(&a->pos_table)
               ? "rows not 16-byte aligned"
               : lt_cuda_refuse_rows(rows, 2, a->y.dtype);
}

lt_err lt_cuda_decode_q_run(lt_queue *q, const void *args) {
    lt_embed_args a = *(const lt_embed_args *)args;
    const int64_t rows = a.y.shape[0], cols = a.table.shape[1];
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_decode_q_args call = {.y = a.y.data,
                                  .table = a.table.data,
                                  .ids = a.ids.data,
                                  .pos_table = a.pos_table.data,
                                  .positions = a.positions.data,
                                  .late = a.late.data,
                                  .scales = a.table_scales.data,
                                  .rows = rows,
                                  .row_bytes = (int64_t)lt_dtype_row_bytes(a.table.dtype, cols),
                                  .groups = (int)(cols / GROUP),
                                  .first = a.part ? (int)a.first : 0,
                                  .n_ids = (int)a.table.shape[0],
                                  .scale = a.scale,
                                  .ldy = a.y.stride[0],
                                  .ld_pos = a.pos_table.stride[0]};
    void *list[] = {&call};
    memcpy(call.values, lt_nf4_values, sizeof call.values);
    if (is_nf4(a.table.dtype)) {
        snprintf(defines, sizeof defines, NF4_WORDS, a.table.dtype == LT_NF4 ? 1 : 2,
                 lt_cuda_dtype_word(a.y.dtype));
    } else {
        snprintf(defines, sizeof defines, BLOCKS_WORDS, lt_dtype_name(a.table.dtype),
                 lt_cuda_dtype_word(a.y.dtype));
    }
    return lt_cuda_run_early(q, "ops/decode_q.cu", "decode_q", defines,
                             LT_CUDA_DIV_UP(rows * call.groups, THREADS), 1, THREADS, list);
}

void lt_specs_decode_q(lt_specs *l) {
    for (int type = LT_DTYPE_PLAIN_COUNT; type < LT_DTYPE_COUNT; type++) {
        if (lt_block_partner((lt_dtype)type) != LT_PARTNER_NONE) {
            lt_spec(l, LT_SM_ALL, "ops/decode_q.cu", BLOCKS_WORDS, lt_dtype_name((lt_dtype)type),
                    "bf16");
        }
    }
    lt_spec(l, LT_SM_ALL, "ops/decode_q.cu", NF4_WORDS, 1, "bf16");
    lt_spec(l, LT_SM_ALL, "ops/decode_q.cu", NF4_WORDS, 2, "bf16");
}
