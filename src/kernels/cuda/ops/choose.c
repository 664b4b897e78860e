/* choose.c: launchers of penalty_set.cu and choose.cu: how many blocks share a row, and how they
 * synchronise.
 *
 * Blocks that share a row must run at the same time. Blocks of a cluster do; without clusters,
 * blocks do if all of a launch fit the GPU at once: then at most 64 picks share the counters of the
 * queue's scratch memory, and with more picks each gets one block. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/choose_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/penalty_set_args.h"
#include "kernels/cuda/specs.h"

/* The -D constants of the kernels, for launches and for lt_specs_choose. */
#define CHOOSE_WORDS "PARTS=%d CHUNKS=%d HELD=%d CLUSTER=%d W=%d SOFTCAP=%d"

enum { PENALTY_THREADS = 1024 };
enum {
    THREADS = 512,
    CHUNK = LT_CHOOSE_CHUNK,
    WORDS = 768,
    HELD_CHUNKS = 8,
    FEW_CHUNKS = 4,
    MAX_CHUNKS = 256
};

/* ---- penalty_set ---- */

static const char *penalty_set_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_penalty_set_args *a = args;
    const lt_tensor *const whole[] = {&a->slots, &a->starts, &a->edits};
    return !lt_cuda_all_contiguous(whole, 3) ? "slots or edits not contiguous"
           : a->penalties.stride[1] != 1     ? "a row of penalties not contiguous"
                                             : NULL;
}

static lt_err penalty_set_run(lt_queue *q, const void *args) {
    lt_penalty_set_args a = *(const lt_penalty_set_args *)args;
    int width = (int)a.penalties.shape[1];
    lt_cuda_penalty_set_args call = {.penalties = a.penalties.data,
                                     .slots = a.slots.data,
                                     .starts = a.starts.data,
                                     .edits = a.edits.data,
                                     .width = width,
                                     .ld = a.penalties.stride[0]};
    void *list[] = {&call};
    return lt_cuda_run_early(q, "ops/penalty_set.cu", "penalty_set", "", a.slots.shape[0], 1,
                             PENALTY_THREADS, list);
}

const lt_op_impl lt_cuda_penalty_set_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"rows", penalty_set_refuse, penalty_set_run}};

/* ---- choose ---- */

static const char *choose_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_choose_args *a = args;
    const lt_tensor *const rows[] = {&a->logits};
    const lt_tensor *const whole[] = {&a->how, &a->top_id, &a->top_logprob,
                                      &a->id,  &a->rank,   &a->logprob};
    if (a->logits.shape[1] > (int64_t)MAX_CHUNKS * CHUNK) {
        return "more than 524288 ids";
    }
    if ((a->penalties.data != NULL && a->penalties.stride[1] != 1) ||
        (a->masks.data != NULL && a->masks.stride[1] != 1)) {
        return "a row of penalties or masks not contiguous";
    }
    if (a->rows.shape[0] > 65535) {
        return "more than 65535 picks";
    }
    return !lt_cuda_all_contiguous(whole, 6) ? "results or options not contiguous"
                                             : lt_cuda_refuse_rows(rows, 1, LT_F32);
}

typedef struct {
    int parts, chunks;
    bool held, cluster;
} division;

/* The fewest blocks per row that hold it in shared memory or, if there are SMs for all, as many as
 * are worthwhile; one if they could not all run at once. */
static division divide(const lt_cuda_info *gpu, int64_t picks, int64_t cols) {
    const int all = (int)LT_CUDA_DIV_UP(cols, CHUNK);
    const int most = gpu->cc >= 90 ? 16 : 8;
    division d = {.parts = 1};
    while (d.parts < most && LT_CUDA_DIV_UP(all, d.parts) > HELD_CHUNKS) {
        d.parts *= 2;
    }
    while (gpu->cc >= 90 && d.parts < most && 2 * d.parts * picks <= gpu->n_sms &&
           LT_CUDA_DIV_UP(all, d.parts) > FEW_CHUNKS) { /* SMs that would be idle. */
        d.parts *= 2;
    }
    d.cluster = d.parts > 1 && gpu->cc >= 90;
    if (!d.cluster &&
        (picks * d.parts > gpu->n_sms || picks * (int64_t)sizeof(int) > LT_CUDA_COUNTER_BYTES)) {
        d.parts = 1;
    }
    d.chunks = LT_CUDA_DIV_UP(all, d.parts);
    d.held = d.chunks <= HELD_CHUNKS;
    return d;
}

static lt_err choose_run(lt_queue *q, const void *args) {
    lt_choose_args a = *(const lt_choose_args *)args;
    const lt_tensor *const rows[] = {&a.logits, &a.penalties};
    const lt_cuda_info *gpu = lt_cuda_get_info(q->gpu);
    const int64_t picks = a.rows.shape[0];
    int cols = (int)a.logits.shape[1];
    const division d = divide(gpu, picks, cols);
    const lt_cuda_kernel *k;
    char defines[LT_CUDA_DEFINES_BYTES];
    void *met, *words;

    if (picks == 0) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_scratch_counted(
        q, d.parts > 1 ? (size_t)picks * 2 * (size_t)d.parts * WORDS * sizeof(unsigned) : 0, &met));
    words = (unsigned char *)met + LT_CUDA_COUNTER_BYTES;
    snprintf(defines, sizeof defines, CHOOSE_WORDS, d.parts, d.chunks, d.held, d.cluster,
             lt_cuda_piece(rows, 2, LT_F32, cols), a.softcap > 0.0f);
    lt_cuda_choose_args call = {.ids = a.id.data,
                                .logprobs = a.logprob.data,
                                .ranks = a.rank.data,
                                .top_ids = a.top_id.data,
                                .top_logprobs = a.top_logprob.data,
                                .logits = a.logits.data,
                                .rows = a.rows.data,
                                .hows = a.how.data,
                                .penalties = a.penalties.data,
                                .masks = a.masks.data,
                                .late = a.late.data,
                                .words = words,
                                .met = met,
                                .cols = cols,
                                .softcap = a.softcap,
                                .ld = a.logits.stride[0],
                                .ld_penalties = a.penalties.stride[0],
                                .ld_masks = a.masks.stride[0]};
    void *list[] = {&call};
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, "ops/choose.cu", "choose", defines));
    return lt_cuda_launch(
        q->gpu, q->stream, k,
        &(lt_cuda_dims){.grid = {(unsigned)d.parts, (unsigned)picks},
                        .block = {THREADS},
                        .cluster = {d.cluster ? (unsigned)d.parts : 0, d.cluster, d.cluster},
                        .dynamic_shared_bytes = d.held ? (size_t)LT_CHOOSE_HELD_BYTES(d.chunks) : 0,
                        .overlap_previous = gpu->cc >= 90},
        list);
}

const lt_op_impl lt_cuda_choose_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"slices", choose_refuse, choose_run}};

void lt_specs_choose(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/choose.cu", CHOOSE_WORDS, 1, 8, 1, 0, 4, 0);
    lt_spec(l, LT_SM_ALL, "ops/choose.cu", CHOOSE_WORDS, 1, 63, 0, 0, 1, 1);
    lt_spec(l, LT_SM80, "ops/choose.cu", CHOOSE_WORDS, 8, 8, 1, 0, 4, 0);
    lt_spec(l, LT_SM90, "ops/choose.cu", CHOOSE_WORDS, 8, 8, 1, 1, 4, 0);
    lt_spec(l, LT_SM90, "ops/choose.cu", CHOOSE_WORDS, 16, 4, 1, 1, 4, 0);
    lt_spec(l, LT_SM90, "ops/choose.cu", CHOOSE_WORDS, 16, 8, 1, 1, 4, 1);
    lt_spec(l, LT_SM_ALL, "ops/penalty_set.cu", "%s", "");
}
