/* fit.c: see fit.h. The search only calls carve functions and allocates nothing. */
#include "train/recipe/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "model/files/stored_weights.h"
#include "parallel/schedule.h"
#include "train/adapters.h"
#include "train/chat_data.h"
#include "train/recipe/memory.h"

#define GIB 1073741824.0
/* For kernels' scratch, graphs and code, which grow at first use. */
#define RESERVE ((size_t)512 << 20)

static const char *const levels[] = {"none", "selective", "full"};

/* Not for a student, whose rows are beside its teacher's, nor for a run that has the same bits on
 * any number of ranks, since the number of rows of a product may determine its order of sums. */
static bool shares_prompts(const lt_recipe *r) {
    return r->share_prompts && r->objective != LT_RECIPE_OBJECTIVE_sft &&
           r->objective != LT_RECIPE_OBJECTIVE_distill && r->deterministic == 0;
}

lt_pass_options lt_fit_pass_options(const lt_recipe *r, bool on_device) {
    return (lt_pass_options){
        .batch = lt_recipe_together(r) * (r->micro > 0 ? r->micro : lt_recipe_largest_batch(r)),
        .seq = r->seq,
        .train = true,
        .exact = r->rl_exact && lt_recipe_is_rl(r),
        .recompute = (lt_recompute)r->recompute,
        .on_device = on_device,
        .z_coef = (float)r->z_coef,
        .fp8 = (lt_fp8_recipe)r->fp8,
        .fp8_wgrad = r->fp8_wgrad,
        /* Whether the values have derivatives (objective.h). */
        .weights = r->objective != LT_RECIPE_OBJECTIVE_sft,
        .masks = r->objective != LT_RECIPE_OBJECTIVE_sft || lt_recipe_has_chats(r),
        .shares = shares_prompts(r),
        .lora = lt_recipe_lora(r),
        .decoded = lt_adapters_decode(r)};
}

/* Find which matrices of model.init are kept in blocks, and their sizes. */
static lt_err divide_blocks(lt_shards *frozen, const lt_recipe *r) {
    const lt_partition full = lt_shards_full(frozen);
    lt_model_options o = {.partition = &full, .elsewhere = true};
    lt_stored_weight *stored = NULL;
    size_t *bytes = calloc((size_t)frozen->full.n_units, sizeof *bytes);
    if (bytes == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d units", frozen->full.n_units);
    }
    lt_adapters_base(&o, r);
    const lt_err err = lt_stored_slices_plan(&stored, bytes, r->init, &o,
                                             lt_recipe_dtype(r) != LT_F32, frozen->n);
    if (err != LT_OK) {
        free(bytes);
        return err;
    }
    lt_shards_keep_blocks(frozen, stored, bytes);
    free(stored);
    return LT_OK;
}

lt_err lt_fit_shards_open(lt_shards *s, const lt_world *w, const lt_recipe *r) {
    const lt_lora_options lora = lt_recipe_lora(r);
    if (lora.rank == 0) {
        return lt_shards_open(s, w, (int)r->zero, (int)r->shard);
    }
    LT_TRY(lt_shards_open_adapters(s, w, (int)r->zero, (int)r->shard, &lora));
    return s->frozen != NULL && lt_adapters_decode(r) ? divide_blocks(s->frozen, r) : LT_OK;
}

lt_rank_parts lt_fit_parts(const lt_shards *s, bool adapters) {
    const lt_shards *model = adapters ? s->frozen : s;
    const lt_partition all = lt_layout_partition(&s->world->layout);
    lt_rank_parts p = {all, all, all, all};
    if (model != NULL && model->level > 0) {
        p.model = lt_shards_full(model);
        p.own_model = lt_shards_own(model);
    }
    if (s->level > 0) {
        p.lora = lt_shards_full(s);
        p.own_lora = lt_shards_own(s);
    }
    return p;
}

void lt_fit_divide(lt_pass_options *o, const lt_shards *s, const lt_rank_parts *parts,
                   bool divided) {
    o->partition = divided ? &parts->model : NULL;
    o->lora_partition = divided ? &parts->lora : NULL;
    o->master_elsewhere = o->lora.rank > 0 ? s->frozen != NULL : s->level > 0;
    o->gradients_elsewhere = s->level > 1;
}

lt_err lt_fit_bytes(size_t *out, const lt_recipe *r, const lt_model_spec *spec, lt_dtype dtype,
                    const lt_pass_options *o, const lt_shards *shards) {
    lt_memory_plan plan;
    LT_TRY(lt_memory_buffers(&plan, r, spec, dtype, o, NULL, shards));
    *out = plan.device_bytes + RESERVE;
    return LT_OK;
}

bool lt_fit_asks_logits(const lt_recipe *r) {
    return r->keep_logits && r->objective != LT_RECIPE_OBJECTIVE_sft &&
           (lt_recompute)r->recompute != LT_RECOMPUTE_FULL;
}

size_t lt_fit_host_left(void) {
    lt_limits limits;
    lt_limits_read(&limits);
    return limits.available_bytes < SIZE_MAX ? (size_t)limits.available_bytes : SIZE_MAX;
}

lt_err lt_fit_keep_logits(lt_pass_options *o, const lt_recipe *r, const lt_model_spec *spec,
                          lt_dtype dtype, const lt_pass_memory passes[2], const lt_shards *shards,
                          size_t left) {
    lt_pass_memory own[2];
    lt_memory_plan plan;
    o->keep_logits = false;
    if (!lt_fit_asks_logits(r)) {
        return LT_OK;
    }
    for (int with = 0; with < 2 && passes == NULL; with++) {
        lt_pass_options tried = *o;
        tried.keep_logits = with == 1;
        LT_TRY(lt_pass_measure(&own[with], spec, dtype, &tried));
    }
    passes = passes != NULL ? passes : own;
    LT_TRY(lt_memory_buffers(&plan, r, spec, dtype, o, &passes[0], shards));
    const size_t kept = passes[1].logits_bytes - passes[0].logits_bytes,
                 need = o->on_device ? plan.device_bytes + RESERVE : plan.buffers_bytes;
    o->keep_logits = kept > 0 && need < left && kept <= (left - need) / 2;
    return LT_OK;
}

/* Rows of the largest micro-batch that fits at a level of recompute; 0: not even one row fits. */
static lt_err largest_micro(int64_t *rows, const lt_recipe *r, const lt_model_spec *spec,
                            lt_dtype dtype, lt_pass_options o, const lt_shards *shards,
                            size_t left) {
    int64_t low = 0, high = o.batch + 1; /* low fits, and high does not. */
    while (high - low > 1) {
        size_t bytes;
        o.batch = low + (high - low) / 2;
        LT_TRY(lt_fit_bytes(&bytes, r, spec, dtype, &o, shards));
        *(bytes <= left ? &low : &high) = o.batch;
    }
    *rows = low;
    return LT_OK;
}

lt_err lt_fit_check(const lt_recipe *r, const lt_model_spec *spec, lt_dtype dtype,
                    const lt_pass_options *o, const lt_shards *shards, size_t left) {
    char way[256] = "";
    lt_pass_options one = *o;
    size_t need, least;

    LT_TRY(lt_fit_bytes(&need, r, spec, dtype, o, shards));
    if (need <= left) {
        return LT_OK;
    }
    for (int level = (int)o->recompute; level <= LT_RECOMPUTE_FULL; level++) {
        const size_t used = strlen(way);
        lt_pass_options tried = *o;
        int64_t rows;
        tried.recompute = (lt_recompute)level;
        LT_TRY(largest_micro(&rows, r, spec, dtype, tried, shards, left));
        if (rows > 0) {
            snprintf(way + used, sizeof way - used,
                     "%s batch.micro = %lld with model.recompute = %s", used > 0 ? ", or" : "",
                     (long long)rows, levels[level]);
        }
    }
    if (way[0] != '\0') {
        LT_FAIL(LT_ERR_OOM,
                "batch.micro = %lld with model.recompute = %s needs %.2f GiB of the device and "
                "%.2f GiB are left, %.2f GiB too few; what fits:%s",
                (long long)o->batch, levels[o->recompute], (double)need / GIB, (double)left / GIB,
                (double)(need - left) / GIB, way);
    }
    one.batch = 1;
    one.recompute = LT_RECOMPUTE_FULL;
    LT_TRY(lt_fit_bytes(&least, r, spec, dtype, &one, shards));
    LT_FAIL(LT_ERR_OOM,
            "one row of %lld tokens with model.recompute = full needs %.2f GiB of the device, "
            "mostly weights, gradients and moments, and %.2f GiB are left: a shorter data.seq, an "
            "optimiser of fewer moments (lion) or a smaller model",
            (long long)o->seq, (double)least / GIB, (double)left / GIB);
}

lt_err lt_fit_check_stages(const lt_recipe *r, const lt_model_spec *spec, lt_dtype dtype,
                           const lt_pass_options *o, const lt_pass_memory *passes,
                           const lt_shards *shards, size_t left) {
    lt_memory_plan plan;
    LT_TRY(lt_memory_buffers(&plan, r, spec, dtype, o, passes, shards));
    const size_t need = plan.device_bytes + RESERVE;
    if (need > left) {
        LT_FAIL(LT_ERR_OOM,
                "batch.micro = %lld with mesh.schedule = %s needs %.2f GiB of the device for this "
                "rank's stages, %.2f GiB of it activations, and %.2f GiB are left: a smaller "
                "batch.micro, more recomputation or more stages",
                (long long)o->batch, lt_schedule_name((lt_schedule_kind)r->schedule),
                (double)need / GIB, (double)passes->activations_bytes / GIB, (double)left / GIB);
    }
    return LT_OK;
}
