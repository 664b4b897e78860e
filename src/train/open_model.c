/* open_model.c: the model of a run: its shape, from the recipe or from the weights that it begins
 * with; the part of it that this rank holds and the part that it trains; their memory and first
 * values. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "model/alloc.h"
#include "model/files/source.h"
#include "model/files/stored_weights.h"
#include "train/adapters.h"
#include "train/checkpoint/checksum.h"
#include "train/recipe/fit.h"
#include "train/run.h"

lt_err lt_training_about(const char *option, lt_err err) {
    return err != LT_OK ? lt_error_prefix(err, "%s", option) : LT_OK;
}

const lt_tokenizer_info lt_training_no_tokenizer = {
    .bos = LT_TOKEN_NONE, .eos = LT_TOKEN_NONE, .pad = LT_TOKEN_NONE};

static int64_t id_or_none(uint32_t id) {
    return id == LT_TOKEN_NONE ? -1 : (int64_t)id;
}

/* Decide whether the logits of a batch are kept for its backward pass. */
static lt_err decide_logits(lt_training *t, const lt_model_spec *spec, lt_dtype dtype,
                            size_t left) {
    const bool pipeline = lt_training_has_pipeline(t);
    lt_pass_options o = lt_training_pass_options(t);
    lt_pass_memory stages[2];
    if (!lt_fit_asks_logits(&t->recipe)) {
        return LT_OK;
    }
    for (int with = 0; with < 2 && pipeline; with++) {
        o.keep_logits = with == 1;
        LT_TRY(lt_training_measure_pipeline(t, dtype, &o));
        stages[with] = t->pass_memory;
    }
    LT_TRY(lt_fit_keep_logits(&o, &t->recipe, spec, dtype, pipeline ? stages : NULL, &t->shards,
                              left));
    t->keep_logits = o.keep_logits;
    o.keep_logits = true;
    if (!t->keep_logits && !pipeline && lt_pass_keeps_logits(&o, spec)) {
        lt_log_info("objective.keep_logits: no memory for it; the logits of a batch are computed "
                    "twice");
    }
    return LT_OK;
}

/* If the device reports its free memory, check it before anything is allocated. */
static lt_err check_fit(lt_training *t, const lt_model_spec *spec, lt_dtype dtype) {
    const lt_pass_options o = lt_training_pass_options(t);
    size_t left = 0;
    if (lt_training_host(t) != t) {
        return LT_OK;
    }
    if (t->device->backend->memory_left == NULL) {
        return decide_logits(t, spec, dtype, lt_fit_host_left());
    }
    LT_TRY(t->device->backend->memory_left(t->device, &left));
    if (lt_training_has_pipeline(t)) {
        LT_TRY(lt_training_measure_pipeline(t, dtype, &o));
        LT_TRY(lt_fit_check_stages(&t->recipe, spec, dtype, &o, &t->pass_memory, &t->shards, left));
    } else {
        LT_TRY(lt_fit_check(&t->recipe, spec, dtype, &o, &t->shards, left));
    }
    return decide_logits(t, spec, dtype, left);
}

/* A reward model has one score, and a process reward model two per token; a model without such a
 * head gets one. */
static int64_t n_scores_of(const lt_recipe *r) {
    const lt_align_objective *o = lt_recipe_align(r);
    return o == NULL ? 0 : o->given == LT_ALIGN_SCORES ? 1 : o->given == LT_ALIGN_STEPS ? 2 : 0;
}

static bool has_token_scores(const lt_recipe *r) {
    return n_scores_of(r) > 1;
}

/* The head of model.init must be of the objective's kind. */
static lt_err check_head(const lt_model_spec *spec, const lt_recipe *r) {
    if (spec->n_scores == n_scores_of(r) && spec->token_scores == has_token_scores(r)) {
        return LT_OK;
    }
    LT_FAIL(LT_ERR_UNSUPPORTED,
            "model.init %s: a score head of %lld value%s for each %s; objective.kind = %s trains "
            "%lld for each %s",
            r->init, (long long)spec->n_scores, spec->n_scores == 1 ? "" : "s",
            spec->token_scores ? "token" : "text", lt_recipe_align(r)->name,
            (long long)n_scores_of(r), has_token_scores(r) ? "token" : "text");
}

/* Read the shape of the initial weights, so that contradictions are found before the weights are
 * read. */
static lt_err read_init_spec(lt_model_spec *spec, const lt_recipe *r) {
    lt_source source = {0};
    LT_TRY(lt_training_about("model.init", lt_weight_source_open(&source, spec, r->init)));
    lt_weight_source_close(&source);
    if (n_scores_of(r) > 0 && spec->n_scores == 0) {
        lt_model_spec_add_scores(spec, n_scores_of(r), has_token_scores(r));
    }
    LT_TRY(n_scores_of(r) == 0 ? lt_model_spec_writes(spec, "model.init") : check_head(spec, r));
    LT_TRY(lt_recipe_adopt(spec, r, r->init));
    return lt_model_spec_writable(spec);
}

/* i: of data.tokenizer; n_ids 0: none. */
static lt_err make_spec(lt_model_spec *spec, const lt_recipe *r, const lt_tokenizer_info *i) {
    if (r->init[0] != '\0') {
        return read_init_spec(spec, r);
    }
    LT_TRY(lt_recipe_spec(spec, r, (int64_t)i->n_ids, id_or_none(i->bos), id_or_none(i->eos),
                          id_or_none(i->pad)));
    return lt_model_spec_writable(spec);
}

lt_err lt_training_open_tokenizer(lt_tokenizer **out, const lt_recipe *r) {
    const char *option = strcmp(r->tokenizer, r->init) == 0 ? "model.init" : "data.tokenizer";
    return lt_training_about(option, lt_tokenizer_open(out, r->tokenizer, NULL));
}

lt_err lt_training_spec(lt_model_spec *out, const lt_recipe *r) {
    lt_tokenizer *tokenizer = NULL;
    lt_tokenizer_info info = lt_training_no_tokenizer;
    lt_err err;
    if (r->tokenizer[0] != '\0') {
        LT_TRY(lt_training_open_tokenizer(&tokenizer, r));
        info = lt_tokenizer_describe(tokenizer);
    }
    err = make_spec(out, r, &info);
    lt_tokenizer_close(tokenizer);
    return err;
}

const char *lt_training_zero_refused(const lt_recipe *r, const lt_model_spec *spec) {
    return spec->tied && spec->pos == LT_POS_LEARNED &&
                   !lt_schedule_is_v((lt_schedule_kind)r->schedule)
               ? "with a tied embedding beside learned positions, which one of its stages has"
               : NULL;
}

static lt_err check_zero_stages(const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const char *why = lt_training_zero_refused(r, &t->spec);
    if (r->zero >= 2 && lt_training_has_pipeline(t) && why != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "mesh.zero = %lld with pp=%d does not work %s; mesh.zero = 1 does",
                (long long)r->zero, t->world->shape.pp, why);
    }
    return LT_OK;
}

/* Find what this rank holds and what it trains. */
static lt_err divide_model(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_training *host = lt_training_host(t);
    if (host != t) { /* The parts of the model are known. */
        const lt_lora_options lora = lt_recipe_lora(r);
        t->stages = host->stages;
        LT_TRY(lt_shards_open_beside(&t->shards, &host->shards, &lora));
        t->parts = lt_fit_parts(&t->shards, true);
        return LT_OK;
    }
    LT_TRY(lt_training_place_stages(t));
    LT_TRY(lt_world_divide(t->world, &t->spec, lt_training_has_pipeline(t) ? &t->stages : NULL));
    if (r->zero == 3 && r->fp8 != LT_FP8_NONE) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "mesh.zero = 3 with model.fp8: weights in 8 bits are kept whole on each rank; "
                "mesh.zero = 2 can");
    }
    LT_TRY(check_zero_stages(t));
    LT_TRY(lt_fit_shards_open(&t->shards, t->world, r));
    LT_TRY(lt_world_add_twin(t->world, t->shards.ranks));
    LT_TRY(lt_world_add_twin(t->world, t->shards.replicas));
    if (lt_objective_draws(r) && (r->zero == 3 || lt_world_is_divided(t->world))) {
        LT_TRY(lt_world_add_twin(t->world, t->world->mesh.world));
    }
    t->parts = lt_fit_parts(&t->shards, r->lora_rank > 0);
    return LT_OK;
}

/* Open adapters beside the opened model, which at mesh.zero = 3 is this rank's slices. */
static lt_err open_adapters(lt_training *t, const lt_model_options *opened) {
    const lt_training *host = lt_training_host(t);
    const bool divided = lt_training_is_divided(t);
    lt_lora_parts parts = {divided ? &t->parts.model : NULL, divided ? &t->parts.lora : NULL,
                           t->shards.level > 0 ? &t->parts.own_lora : NULL, NULL};
    lt_model_options all = *opened;
    all.partition = &t->parts.model;
    all.elsewhere = true;
    if (host != t) {
        t->model = host->model;
        t->trained = host->kept;
    } else if (t->shards.frozen == NULL) {
        t->model = t->trained;
    } else if (all.decoded) {
        LT_TRY(lt_stored_slices_open(&t->model, t->recipe.init, &t->trained->spec, &all,
                                     t->shards.n, t->shards.own));
    } else {
        LT_TRY(lt_model_alloc(&t->model, &t->trained->spec, &all));
    }
    if (t->shards.frozen != NULL) {
        parts.weights = t->kept = t->trained;
    }
    LT_TRY(lt_adapters_open(&t->lora, t->model, &t->recipe, &parts));
    t->trained = t->lora->trained;
    if (t->together != NULL) { /* Each call chooses which adapters compute. */
        lt_lora_use(t->model, NULL);
    }
    return LT_OK;
}

lt_err lt_training_checksum(uint64_t *out, const lt_training *t) {
    const lt_model *held = t->lora == NULL ? t->trained : t->kept != NULL ? t->kept : t->model;
    uint64_t blocks = 0;
    if (t->model->slices != NULL) {
        LT_TRY(lt_weights_checksum(&blocks, t->model, t->world, t->shards.frozen));
    }
    LT_TRY(
        lt_weights_checksum(out, held, t->world, t->lora != NULL ? t->shards.frozen : &t->shards));
    *out += blocks;
    return LT_OK;
}

lt_err lt_training_resolve_dtype(lt_recipe *r, bool on_device) {
    bool wide = true;
    if (r->dtype != LT_RECIPE_DTYPE_AUTO) {
        return LT_OK;
    }
    if (on_device && r->init[0] != '\0') {
        LT_TRY(lt_training_about("model.init", lt_weight_source_is_fp32(&wide, r->init)));
        wide = wide && r->lora_base <= LT_LORA_BASE_AS_STORED;
    }
    r->dtype = wide ? LT_RECIPE_DTYPE_FP32 : LT_RECIPE_DTYPE_BF16;
    return LT_OK;
}

/* Report the choice of model.dtype = auto, and the alternative. */
static void tell_dtype(const lt_training *t, bool was_auto) {
    const bool wide = t->recipe.dtype == LT_RECIPE_DTYPE_FP32,
               on_device = !t->device->backend->host_memory;
    if (on_device && wide) {
        lt_log_info("model.dtype = fp32: on a GPU, training in bf16 is several times as fast");
    } else if (on_device && was_auto) {
        lt_log_info("model.dtype = bf16, because most of model.init %s is not fp32 and this is a "
                    "GPU; --model.dtype fp32 is slower and exact",
                    t->recipe.init);
    }
}

lt_err lt_training_open_model(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_tokenizer_info *i = &t->tokenizer_info;
    const bool ranks = lt_training_has_ranks(t), on_device = !t->device->backend->host_memory,
               was_auto = r->dtype == LT_RECIPE_DTYPE_AUTO;
    lt_model_options options = {.trainable = true,
                                .device = t->device,
                                .n_scores = n_scores_of(r),
                                .token_scores = has_token_scores(r),
                                .score_seed = (uint64_t)r->seed};

    t->micro = lt_fit_pass_options(r, false).batch;
    LT_TRY(make_spec(&t->spec, r, i));
    LT_TRY(lt_training_resolve_dtype(&t->recipe, on_device));
    tell_dtype(t, was_auto);
    options.dtype = lt_recipe_dtype(r);
    LT_TRY(lt_adapters_resolve(&t->recipe, &t->spec, on_device));
    LT_TRY(ranks ? divide_model(t) : LT_OK);
    lt_adapters_base(&options, r);
    options.partition = lt_training_is_divided(t) ? &t->parts.own_model : NULL;
    LT_TRY(check_fit(t, &t->spec, options.dtype));
    if (lt_training_host(t) != t) {
        return open_adapters(t, &options);
    }
    if (r->init[0] != '\0') {
        lt_model_options own = options;
        if (t->shards.frozen != NULL) { /* Blocks are kept separately. */
            own.stored = own.decoded = false;
        }
        LT_TRY(lt_model_open(&t->trained, r->init, &own));
        LT_TRY(lt_recipe_adopt(&t->trained->spec, r, r->init));
        if (t->tokenizer != NULL && (int64_t)i->n_ids > t->trained->spec.vocab_size) {
            LT_FAIL(LT_ERR_ARG,
                    "data.tokenizer %s has %u entries, model.init %s a vocabulary of %lld",
                    r->tokenizer, i->n_ids, r->init, (long long)t->trained->spec.vocab_size);
        }
    } else {
        LT_TRY(lt_model_create(&t->trained, &t->spec, &options, (uint64_t)r->seed));
    }
    if (r->lora_rank > 0) {
        return open_adapters(t, &options);
    }
    if (t->shards.level == 0) {
        t->model = t->trained;
        return LT_OK;
    }
    options.partition = &t->parts.model;
    options.trainable = false;
    options.elsewhere = t->shards.level == 3;
    return lt_model_alloc(&t->model, &t->trained->spec, &options);
}
