/* bench_train_ours.c: see bench_train_ours.h. */
#include "cli/bench/bench_train_ours.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "train/adapters.h"
#include "train/recipe/memory.h"
#include "train/recipe/shapes.h"

#define WATCHED_STEPS 3

static size_t memory_left(lt_device *d) {
    size_t bytes = 0;
    return d->backend->memory_left != NULL && d->backend->memory_left(d, &bytes) == LT_OK ? bytes
                                                                                          : 0;
}

static lt_err open_model(lt_train_ours *b) {
    const lt_train_case *w = &b->what;
    lt_model_options options = {.dtype = w->bf16 ? LT_BF16 : LT_F32, .device = w->device};
    const lt_model_spec s = lt_train_shape_spec(&lt_train_shapes[w->shape], w->seq);
    lt_pass_options p = {.batch = w->batch,
                         .seq = w->seq,
                         .train = true,
                         .recompute = w->recompute,
                         .fp8 = w->fp8,
                         .fp8_wgrad = w->fp8_wgrad,
                         .on_device = !w->device->backend->host_memory};
    lt_memory_plan plan;

    lt_options_default(&lt_recipe_table, &b->recipe);
    b->recipe.optim = w->optim;
    b->recipe.moments = w->bf16_moments;
    LT_TRY(lt_recipe_check(&b->recipe));
    b->recipe.lora_rank = w->lora_rank;
    p.lora = lt_recipe_lora(&b->recipe);
    lt_adapters_base(&options, &b->recipe);
    LT_TRY(lt_model_create(&b->model, &s, &options, 1));
    if (w->lora_rank > 0) {
        LT_TRY(lt_adapters_open(&b->lora, b->model, &b->recipe, &(lt_lora_parts){.held = NULL}));
    }
    LT_TRY(lt_pass_open(&b->pass, b->model, &p));
    LT_TRY(lt_optimiser_open(&b->optimiser, &b->recipe,
                             b->lora != NULL ? b->lora->params : b->model, lt_pass_queue(b->pass)));
    b->flops_per_token = b->lora != NULL ? lt_adapters_train_flops(b->lora, &s, w->seq)
                                         : lt_model_spec_train_flops(&s, w->seq);
    LT_TRY(lt_memory_buffers(&plan, &b->recipe, &s, options.dtype, &p, NULL, NULL));
    b->announced_bytes = plan.device_bytes;
    return LT_OK;
}

/* Fill the arrays with random rows and send them to the device. */
static lt_err stage(lt_train_ours *b) {
    const int64_t n = b->what.batch * b->what.seq;
    const lt_pass_batch rows = {
        .batch = b->what.batch, .seq = b->what.seq, .tokens = b->tokens, .labels = b->labels};
    for (int64_t i = 0; i < n; i++) {
        b->tokens[i] = (int32_t)lt_rng_below(&b->rng, (uint64_t)b->model->spec.vocab_size);
        b->labels[i] = (int32_t)lt_rng_below(&b->rng, (uint64_t)b->model->spec.vocab_size);
    }
    return lt_pass_stage(b->pass, &rows);
}

lt_err lt_train_ours_open(lt_train_ours *b, const lt_train_case *what) {
    const double start = lt_clock_s();
    const lt_backend *backend = what->device->backend;
    size_t left, bytes;

    *b = (lt_train_ours){.what = *what, .name = lt_train_shapes[what->shape].name};
    if (b->what.batch == 0) {
        b->what.batch = backend->host_memory ? lt_train_shapes[what->shape].batch
                                             : lt_train_shapes[what->shape].device_batch;
    }
    if (b->what.seq == 0) {
        b->what.seq = backend->host_memory ? lt_train_shapes[what->shape].seq
                                           : lt_train_shapes[what->shape].device_seq;
    }
    bytes = (size_t)(b->what.batch * b->what.seq) * sizeof(int32_t);
    b->tokens = malloc(bytes);
    b->labels = malloc(bytes);
    if (b->tokens == NULL || b->labels == NULL) {
        LT_FAIL(LT_ERR_OOM, "rows of tokens");
    }
    left = memory_left(what->device);
    LT_TRY(open_model(b));
    LT_TRY(stage(b));
    b->open_s = lt_clock_s() - start;
    LT_TRY(lt_train_ours_step(b, &b->first_step_s));
    LT_TRY(lt_train_ours_step(b, &(double){0.0}));
    b->taken_bytes = left > 0 ? left - memory_left(what->device) : 0;
    b->wait_s = b->steps_s = 0.0;
    return LT_OK;
}

void lt_train_ours_close(lt_train_ours *b) {
    if (b->model != NULL) {
        lt_optimiser_close(&b->optimiser);
    }
    lt_pass_close(b->pass);
    lt_lora_close(b->lora);
    lt_model_close(b->model);
    free(b->tokens);
    free(b->labels);
    *b = (lt_train_ours){0};
}

static lt_err update(lt_train_ours *b) {
    const lt_step_plan plan = lt_recipe_plan(b->optimiser.recipe, ++b->step, 0);
    return lt_optimiser_step(&b->optimiser, lt_pass_gradients(b->pass), 1.0f, &plan);
}

lt_err lt_train_ours_step(lt_train_ours *b, double *seconds) {
    const double start = lt_clock_s();
    const float scale = 1.0f / (float)(b->what.batch * b->what.seq);
    lt_pass_result r = {0};
    double before;

    LT_TRY(lt_pass_zero_gradients(b->pass));
    LT_TRY(lt_pass_train_staged(b->pass, scale));
    LT_TRY(lt_optimiser_sumsq(&b->optimiser, lt_pass_gradients(b->pass)));
    LT_TRY(stage(b));
    before = lt_clock_s();
    LT_TRY(lt_pass_collect(b->pass, &r));
    b->wait_s += lt_clock_s() - before;
    LT_TRY(update(b));
    if (b->model->backend->host_memory || b->step == 1) {
        LT_TRY(b->model->backend->sync(lt_pass_queue(b->pass)));
    }
    *seconds = lt_clock_s() - start;
    b->steps_s += *seconds;
    return LT_OK;
}

lt_err lt_train_ours_shares(lt_train_ours *b, lt_train_shares *out) {
    const lt_backend *be = b->model->backend;
    lt_queue *q = lt_pass_queue(b->pass);
    const float scale = 1.0f / (float)(b->what.batch * b->what.seq);
    lt_pass_result r = {0};

    *out = (lt_train_shares){0};
    LT_TRY(lt_pass_watch(b->pass, true));
    for (int i = 0; i < WATCHED_STEPS; i++) {
        double start;
        LT_TRY(lt_pass_zero_gradients(b->pass));
        LT_TRY(lt_pass_train_staged(b->pass, scale));
        LT_TRY(stage(b));
        LT_TRY(lt_pass_collect(b->pass, &r));
        LT_TRY(be->sync(q));
        start = lt_clock_s();
        LT_TRY(lt_optimiser_sumsq(&b->optimiser, lt_pass_gradients(b->pass)));
        LT_TRY(update(b));
        LT_TRY(be->sync(q));
        out->optimiser_s += (lt_clock_s() - start) / WATCHED_STEPS;
    }
    LT_TRY(lt_pass_profile(b->pass, out->ops));
    for (int op = 0; op < LT_TIMED_COUNT; op++) {
        out->ops[op].seconds /= WATCHED_STEPS;
        out->ops[op].flops /= WATCHED_STEPS;
        out->ops[op].bytes /= WATCHED_STEPS;
        out->ops[op].calls /= WATCHED_STEPS;
    }
    return lt_pass_watch(b->pass, false);
}
