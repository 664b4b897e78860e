/* side.h: a small model with gradients and an optimiser, whole or a part of it. */
#ifndef TESTS_TRAIN_SIDE_H
#define TESTS_TRAIN_SIDE_H

#include "unit/model/parts.h"

#include <string.h>

#include "base/option.h"
#include "model/alloc.h"
#include "tensor/ops.h"
#include "train/optimiser.h"

#define N_STEPS 3

static inline void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* Two layers with experts or without, and dimensions that are not multiples of each other. */
static inline lt_model_spec spec_of(bool experts, int64_t vocab) {
    lt_model_spec s = {.family = experts ? LT_FAMILY_MIXTRAL : LT_FAMILY_LLAMA,
                       .n_layers = 2,
                       .width = 20,
                       .n_heads = 2,
                       .n_kv_heads = 1,
                       .head_dim = 10,
                       .ffn_width = 26,
                       .vocab_size = vocab,
                       .max_seq = 8,
                       .norm = LT_NORM_RMS,
                       .norm_eps = 1e-5f,
                       .act = LT_ACT_SILU,
                       .gated = true,
                       .embed_scale = 1,
                       .pos = LT_POS_ROPE,
                       .rope_theta = 10000,
                       .bos_id = -1,
                       .pad_id = -1,
                       .init_std = 0.08f};
    if (experts) {
        s.n_experts = 4;
        s.top_k = 2;
        s.moe_normalise = true;
    }
    return s;
}

/* A model with gradients and an optimiser. */
typedef struct {
    lt_model *model;
    lt_queue *queue;
    lt_param_buffer gradients;
    lt_optimiser optimiser;
} side;

static inline lt_err side_open(side *s, const lt_recipe *r, const lt_model_spec *spec,
                               lt_dtype dtype, const lt_partition *partition) {
    void *flat;
    const lt_model_options o = {.dtype = dtype, .trainable = true, .partition = partition};
    *s = (side){.model = NULL};
    must(lt_model_create(&s->model, spec, &o, 5), "model");
    must(s->model->backend->queue_open(s->model->device, &s->queue), "queue");
    must(lt_param_buffer_open(&s->gradients, &s->model->table, LT_F32), "gradients");
    flat = calloc(1, lt_param_buffer_bytes(&s->model->table, LT_F32) + 1);
    assert_non_null(flat);
    lt_param_buffer_place(&s->gradients, &s->model->table, flat);
    return lt_optimiser_open(&s->optimiser, r, s->model, s->queue);
}

static inline void side_close(side *s) {
    lt_optimiser_close(&s->optimiser);
    s->model->backend->queue_close(s->queue);
    free(s->gradients.flat);
    lt_param_buffer_close(&s->gradients);
    lt_model_close(s->model);
}

/* Gradients that are a function of the place in the whole and of the step. */
static inline void fill_gradients(side *s, int step) {
    const lt_param_table *t = &s->model->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        float *g = lt_param_data(&s->gradients, p);
        for (int64_t local = 0, run; local < p->local_count; local++) {
            const int64_t at = p->whole_at + lt_param_whole_index(t, p, local, &run);
            const uint64_t r = lt_rng_mix((uint64_t)at * 31 + (uint64_t)step);
            g[local] = ((float)(r >> 40) * 0x1p-24f - 0.5f) * (1.0f + (float)(at % 7));
        }
    }
}

static inline void take_steps(side *s, const lt_recipe *r) {
    for (int step = 1; step <= N_STEPS; step++) {
        const lt_step_plan plan = lt_recipe_plan(r, step, 0);
        fill_gradients(s, step);
        must(lt_optimiser_step(&s->optimiser, &s->gradients, 0.7f, &plan), "step");
    }
}

static inline lt_recipe *recipe_of(const char *kind, const char *moments) {
    lt_recipe *r = calloc(1, sizeof *r);
    assert_non_null(r);
    lt_options_default(&lt_recipe_table, r);
    must(lt_options_set(&lt_recipe_table, r, "optim.kind", kind, "test"), kind);
    must(lt_options_set(&lt_recipe_table, r, "optim.moments", moments, "test"), moments);
    r->steps = 100;
    return r;
}

#endif
