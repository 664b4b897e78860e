/* launch.c: see launch.h. */
#include "kernels/cuda/ops/launch.h"

#include <stdio.h>

#include "base/error.h"

lt_err lt_cuda_scratch_counted(lt_queue *q, size_t bytes, void **out) {
    size_t whole = bytes + LT_CUDA_COUNTER_BYTES;
    /* At least twice the last size, so that all former buffers together are smaller. */
    if (whole > q->scratch_bytes) {
        whole = whole > 2 * q->scratch_bytes ? whole : 2 * q->scratch_bytes;
        if (q->scratch != NULL) {
            LT_ASSERT(q->n_outgrown < (int)(sizeof q->outgrown / sizeof *q->outgrown));
            q->outgrown[q->n_outgrown++] = q->scratch;
        }
        q->scratch = NULL;
        q->scratch_bytes = 0;
        LT_TRY(lt_cuda_alloc(q->gpu, &q->scratch, whole, "scratch"));
        q->scratch_bytes = whole;
        LT_TRY(lt_cuda_fill(q->gpu, q->stream, q->scratch, 0, LT_CUDA_COUNTER_BYTES));
    }
    *out = q->scratch;
    return LT_OK;
}

lt_err lt_cuda_scratch(lt_queue *q, size_t bytes, void **out) {
    LT_TRY(lt_cuda_scratch_counted(q, bytes, out));
    *out = (unsigned char *)*out + LT_CUDA_COUNTER_BYTES;
    return LT_OK;
}

lt_err lt_cuda_wide(lt_queue *q, size_t bytes, void **out) {
    if (q->wide_bytes < bytes) {
        if (q->wide != NULL) {
            LT_ASSERT(q->n_outgrown < (int)(sizeof q->outgrown / sizeof *q->outgrown));
            q->outgrown[q->n_outgrown++] = q->wide;
        }
        bytes = bytes > 2 * q->wide_bytes ? bytes : 2 * q->wide_bytes;
        q->wide = NULL;
        q->wide_bytes = 0;
        LT_TRY(lt_cuda_alloc(q->gpu, &q->wide, bytes, "widened operands"));
        q->wide_bytes = bytes;
    }
    *out = q->wide;
    return LT_OK;
}

const char *lt_cuda_dtype_word(lt_dtype dtype) {
    return dtype == LT_F32 ? "fp32" : dtype == LT_BF16 ? "bf16" : dtype == LT_F16 ? "fp16" : NULL;
}

const char *lt_cuda_refuse_rows(const lt_tensor *const *tensors, int n, lt_dtype act) {
    if (lt_cuda_dtype_word(act) == NULL) {
        return "activations are not F32, BF16 or F16";
    }
    for (int i = 0; i < n; i++) {
        if (tensors[i]->data != NULL && tensors[i]->dtype != act) {
            return "activations of different types";
        }
        if (tensors[i]->data != NULL && lt_cuda_width(tensors[i]) > 1 &&
            tensors[i]->stride[tensors[i]->n_dims - 1] != 1) {
            return "columns not contiguous";
        }
    }
    return NULL;
}

int lt_cuda_piece(const lt_tensor *const *tensors, int n, lt_dtype act, int64_t width) {
    const int vec = 16 / (int)lt_dtype_bytes(act);
    uintptr_t bits = 0, strides = 0;
    for (int i = 0; i < n; i++) {
        bits |= (uintptr_t)tensors[i]->data;
        for (int d = 0; tensors[i]->data != NULL && d < tensors[i]->n_dims - 1; d++) {
            strides |= (uintptr_t)tensors[i]->stride[d];
        }
    }
    return (bits & 15) == 0 && (strides & (uintptr_t)(vec - 1)) == 0 && width % vec == 0 ? vec : 1;
}

lt_cuda_row_shape lt_cuda_row_shape_of(const lt_tensor *t) {
    return (lt_cuda_row_shape){t->n_dims > 2 ? (int)t->shape[1] : 1,
                               t->n_dims > 3 ? (int)t->shape[2] : 1};
}

lt_cuda_view lt_cuda_view_of(const lt_tensor *t) {
    lt_cuda_view v = {{0, 0, 0}};
    for (int i = 0; t->data != NULL && i < t->n_dims - 1; i++) {
        v.s[i] = t->stride[i];
    }
    return v;
}

bool lt_cuda_all_contiguous(const lt_tensor *const *tensors, int n) {
    for (int i = 0; i < n; i++) {
        if (tensors[i]->data != NULL && !lt_tensor_contiguous(tensors[i])) {
            return false;
        }
    }
    return true;
}

int64_t lt_cuda_width(const lt_tensor *t) {
    return t->shape[t->n_dims - 1];
}

void lt_cuda_team_defines(char out[LT_CUDA_DEFINES_BYTES], const lt_tensor *const *rows, int n,
                          int64_t count, int64_t *blocks) {
    const int64_t width = lt_cuda_width(rows[0]);
    const int w = lt_cuda_piece(rows, n, rows[0]->dtype, width);
    const int team = width <= (int64_t)w * 32 * 4 ? 32 : LT_CUDA_TEAM_THREADS;
    *blocks = LT_CUDA_DIV_UP(count, LT_CUDA_TEAM_THREADS / team);
    snprintf(out, LT_CUDA_DEFINES_BYTES, LT_CUDA_TEAM_WORDS, lt_cuda_dtype_word(rows[0]->dtype), w,
             team);
}

int64_t lt_cuda_rows(const lt_tensor *t) {
    return lt_cuda_width(t) > 0 ? lt_tensor_count(t) / lt_cuda_width(t) : 0;
}

static lt_err run(lt_queue *q, const char *file, const char *entry, const char *defines,
                  int64_t blocks, int blocks_y, int threads, bool early, void **args) {
    const lt_cuda_kernel *k;
    if (blocks <= 0) {
        return LT_OK; /* Nothing to launch. */
    }
    LT_ASSERT(blocks < (int64_t)1 << 31);
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, file, entry, defines));
    return lt_cuda_launch(q->gpu, q->stream, k,
                          &(lt_cuda_dims){.grid = {(unsigned)blocks, (unsigned)blocks_y},
                                          .block = {(unsigned)threads},
                                          .overlap_previous = early},
                          args);
}

lt_err lt_cuda_run(lt_queue *q, const char *file, const char *entry, const char *defines,
                   int64_t blocks, int blocks_y, int threads, void **args) {
    return run(q, file, entry, defines, blocks, blocks_y, threads, false, args);
}

lt_err lt_cuda_run_early(lt_queue *q, const char *file, const char *entry, const char *defines,
                         int64_t blocks, int blocks_y, int threads, void **args) {
    return run(q, file, entry, defines, blocks, blocks_y, threads,
               lt_cuda_get_info(q->gpu)->cc >= 90, args);
}
