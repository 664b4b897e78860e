/* ranks.h: compares a run of several ranks, each a thread of this process, with the same run on one
 * rank: gradients of every tensor after the first step, losses and norms of every step, weights
 * after the last. For any mesh:
 *
 *     static const ranks_model gqa = {"gqa", "model.heads=4 model.kv_heads=2 ..."};
 *     ranks_compare(&gqa, "model.dtype=bf16", "dp=2,tp=2", 4, &ranks_bf16);
 *
 * What several ranks hold must have the same bits on each. Options are words "name=value" over the
 * small recipe of run_folder.h; the program's main calls run_root_make and run_root_remove. */
#ifndef TESTS_PARALLEL_RANKS_H
#define TESTS_PARALLEL_RANKS_H

#include "unit/train/run_folder.h"

#include <math.h>
#include <pthread.h>

#include "base/thread.h"

#define RANKS_MAX_STEPS 64

typedef struct {
    const char *name, *options;
} ranks_model;

/* Heads, key heads, columns, experts and words that 2 and 4 ranks can divide. */
static const ranks_model ranks_dense = {
    "dense", "model.layers=2 model.width=32 model.heads=4 model.ffn=64 model.family=gpt2"};
static const ranks_model ranks_gqa = {
    "gqa", "model.layers=4 model.width=32 model.heads=4 model.kv_heads=2 model.ffn=64 "
           "model.family=qwen3"};
/* The load-balancing loss depends on the rows of a pass: with it, passes must have the same rows
 * on any mesh. */
static const ranks_model ranks_moe = {
    "moe", "model.layers=2 model.width=32 model.heads=4 model.kv_heads=2 model.ffn=32 "
           "model.family=mixtral model.experts=4 model.top_k=2 model.aux_coef=0"};

/* Largest relative differences: of a tensor's gradient (L2), of a loss, of a norm, of a tensor's
 * weights. All zero: the same bits. */
typedef struct {
    double gradient, loss, norm, weights;
} ranks_bound;
static const ranks_bound ranks_bits = {0, 0, 0, 0};
/* Sums in F32 in another order. */
static const ranks_bound ranks_f32 = {2e-5, 1e-5, 2e-5, 2e-4};
/* Activations in BF16 (8 bits) that are summed in another order: the bound for losses from the
 * literature. */
static const ranks_bound ranks_bf16 = {3e-2, 5e-3, 3e-2, 3e-2};

typedef struct {
    int64_t steps;
    double losses[RANKS_MAX_STEPS], norms[RANKS_MAX_STEPS];
    double rows, labels;            /* Of the last step. */
    double most[LT_OBJECTIVE_MOST]; /* Of all steps (train/record.h). */
    /* (whole_elements): gradients of the first step, as a sum over labels; weights after the
     * last. */
    float *gradients, *weights;
    bool *has_gradient, *has_weight;
    lt_param_table table; /* Of the whole model, or of the adapters that are trained. */
} ranks_result;

/* The objective of runs: state of this many bytes for each rank, and the objective that uses
 * it. */
typedef struct {
    size_t bytes;
    lt_objective (*open)(void *state, const lt_recipe *r);
} ranks_objective;
static const ranks_objective *ranks_trained_for; /* NULL: the mean loss of the labels. */
static void (*ranks_prepare)(lt_comm *c);        /* Called by each rank first, unless NULL. */

/* What the ranks of a run share. */
typedef struct {
    const lt_recipe *recipe;
    const char *mesh; /* NULL: one rank, no world. */
    bool save;
    pthread_mutex_t lock;
    ranks_result *result;
} ranks_run;

static inline void ranks_result_free(ranks_result *r) {
    free(r->gradients);
    free(r->weights);
    free(r->has_gradient);
    free(r->has_weight);
    lt_param_table_close(&r->table);
    *r = (ranks_result){0};
}

static inline lt_err ranks_table(lt_param_table *out, const lt_training *t) {
    lt_lora_plan plan;
    if (t->lora == NULL) {
        return lt_param_table_open(out, &t->model->spec);
    }
    LT_TRY(lt_lora_plan_open(&plan, &t->model->spec, &t->lora->options, NULL, NULL));
    *out = plan.table;
    plan.table = (lt_param_table){0};
    lt_lora_plan_close(&plan);
    return LT_OK;
}

static inline lt_err ranks_result_open(ranks_result *r, const lt_training *t) {
    if (r->gradients != NULL) {
        return LT_OK;
    }
    LT_TRY(ranks_table(&r->table, t));
    const size_t n = (size_t)r->table.whole_elements;
    r->gradients = calloc(n, sizeof *r->gradients);
    r->weights = calloc(n, sizeof *r->weights);
    r->has_gradient = calloc(n, sizeof *r->has_gradient);
    r->has_weight = calloc(n, sizeof *r->has_weight);
    LT_ASSERT(r->gradients != NULL && r->weights != NULL && r->has_gradient != NULL &&
              r->has_weight != NULL);
    return LT_OK;
}

/* Put a rank's part of a buffer into the whole; copies on several ranks must be equal. */
static inline lt_err ranks_put(float *whole, bool *has, lt_queue *q, const lt_param_table *t,
                               const lt_param_buffer *b, double factor, const char *what) {
    const lt_backend *be = lt_queue_device(q)->backend;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const float *held = lt_param_data(b, p);
        float *data = held != NULL ? calloc((size_t)p->local_count + 1, sizeof *data) : NULL;
        if (data != NULL) {
            LT_TRY(be->download(q, data, held, (size_t)p->local_count * sizeof *data));
            LT_TRY(be->sync(q));
        }
        for (int64_t local = 0, run; data != NULL && local < p->local_count; local++) {
            const int64_t at = p->whole_at + lt_param_whole_index(t, p, local, &run);
            const float value = (float)((double)data[local] * factor);
            if (has[at] && memcmp(&whole[at], &value, sizeof value) != 0) {
                LT_FAIL(LT_ERR_STATE, "%s of %s: ranks hold %.9g and %.9g of element %lld", what,
                        p->name, (double)whole[at], (double)value, (long long)(at - p->whole_at));
            }
            whole[at] = value;
            has[at] = true;
        }
        free(data);
    }
    return LT_OK;
}

/* Gradients of the first step, summed, without the scale that depends on a rank's rows. */
static inline lt_err ranks_put_gradients(ranks_run *run, lt_training *t) {
    const double factor = (double)(t->micro * t->recipe.seq);
    lt_err err;
    pthread_mutex_lock(&run->lock);
    err = ranks_result_open(run->result, t);
    if (err == LT_OK) {
        err = ranks_put(run->result->gradients, run->result->has_gradient, lt_training_queue(t),
                        t->optimiser.share.table, lt_training_gradients(t), factor, "gradient");
    }
    pthread_mutex_unlock(&run->lock);
    return err;
}

static inline lt_err ranks_put_weights(ranks_run *run, lt_training *t) {
    lt_err err;
    pthread_mutex_lock(&run->lock);
    err = ranks_put(run->result->weights, run->result->has_weight, lt_training_queue(t),
                    t->optimiser.share.table, t->optimiser.share.master, 1.0, "weights");
    pthread_mutex_unlock(&run->lock);
    return err;
}

static inline lt_err ranks_steps(ranks_run *run, lt_training *t) {
    ranks_result *r = run->result;
    const int64_t first = t->state.step;
    while (t->state.step < t->recipe.steps) {
        lt_step_outcome o;
        LT_TRY(lt_training_step(t, &o));
        if (t->state.step == first + 1) {
            LT_TRY(lt_training_settle(t));
            LT_TRY(ranks_put_gradients(run, t));
        }
        if (lt_ranks_lead(&t->ranks)) {
            LT_ASSERT(r->steps < RANKS_MAX_STEPS);
            r->losses[r->steps] = o.decision.loss;
            r->norms[r->steps++] = o.decision.grad_norm;
            r->rows = o.record.rows;
            r->labels = o.record.labels;
            for (int i = 0; i < LT_OBJECTIVE_MOST; i++) {
                r->most[i] = fmax(r->most[i], o.record.most[i]);
            }
        }
    }
    LT_TRY(lt_training_settle(t));
    LT_TRY(run->save ? lt_training_save(t) : LT_OK);
    LT_TRY(run->save ? lt_training_evaluate(t) : LT_OK); /* If there is validation. */
    LT_TRY(run->save && t->lora != NULL ? lt_training_export(t) : LT_OK);
    LT_TRY(lt_training_settle(t));
    return ranks_put_weights(run, t);
}

static inline lt_err ranks_main(lt_comm *c, void *ctx) {
    ranks_run *run = ctx;
    const ranks_objective *with = ranks_trained_for;
    lt_world world = {0};
    lt_training *t = calloc(1, sizeof *t);
    void *state = with != NULL ? calloc(1, with->bytes) : NULL;
    lt_objective objective;
    lt_err err = t == NULL ? lt_error_set(LT_ERR_OOM, "training") : LT_OK;
    if (with != NULL) {
        LT_ASSERT(state != NULL);
        objective = with->open(state, run->recipe);
    }
    if (c != NULL && ranks_prepare != NULL) {
        ranks_prepare(c);
    }
    if (err == LT_OK && c != NULL) {
        err = lt_world_open_on(&world, c, run->mesh);
    }
    if (err == LT_OK) {
        err = lt_training_open_ranks(t, run->recipe, NULL, &world,
                                     with != NULL ? &objective : NULL);
        err = err == LT_OK ? ranks_steps(run, t) : err;
        lt_world_close(&world, err);
        lt_training_close(t);
    }
    free(t);
    free(state);
    return err;
}

/* Train in run folder `out`. mesh NULL: one rank alone. */
static inline lt_err ranks_try(ranks_result *r, const char *out, const char *options,
                               const char *mesh, int n_ranks, bool save) {
    const lt_comm_options o = {.deadline_s = 240, .check = true};
    lt_recipe *recipe = run_recipe(out, "threads=0 device=cpu");
    ranks_run run = {.recipe = recipe, .mesh = mesh, .save = save, .result = r};
    char *copy = strdup(options), *next = NULL;
    lt_err err;
    assert_non_null(copy);
    for (char *w = strtok_r(copy, " ", &next); w != NULL; w = strtok_r(NULL, " ", &next)) {
        char *equals = strchr(w, '=');
        assert_non_null(equals);
        *equals = '\0';
        run_set(recipe, w, equals + 1);
    }
    if (mesh != NULL) {
        run_set(recipe, "mesh", mesh);
    }
    lt_thread_set_count(1);
    lt_log_set_level(LT_LOG_ERROR);
    pthread_mutex_init(&run.lock, NULL);
    err = mesh == NULL ? ranks_main(NULL, &run)
                       : lt_comm_run_threads(n_ranks, &o, ranks_main, &run);
    pthread_mutex_destroy(&run.lock);
    free(copy);
    free(recipe);
    return err;
}

/* ---- Comparison ---- */

static inline void ranks_close(double got, double want, double bound, const char *what,
                               const char *who) {
    const bool same = bound == 0 ? got == want : fabs(got - want) <= bound * fabs(want) + 1e-30;
    if (!same) {
        fail_msg("%s: %s is %.17g, on one rank %.17g", who, what, got, want);
    }
}

/* For each tensor: |got - want| / |want|, or equality of its bits. */
static inline void ranks_tensors(const ranks_result *got, const ranks_result *want, bool gradients,
                                 double bound, const char *who) {
    const float *a = gradients ? got->gradients : got->weights,
                *b = gradients ? want->gradients : want->weights;
    const bool *has = gradients ? got->has_gradient : got->has_weight;
    for (int i = 0; i < want->table.n_params; i++) {
        const lt_param *p = &want->table.params[i];
        double off = 0.0, size = 0.0;
        for (int64_t k = p->whole_at; k < p->whole_at + p->count; k++) {
            if (!has[k]) {
                fail_msg("%s: no rank holds element %lld of %s", who, (long long)(k - p->whole_at),
                         p->name);
            }
            if (bound == 0 && memcmp(&a[k], &b[k], sizeof *a) != 0) {
                fail_msg("%s: %s of %s, element %lld: %.9g, wanted %.9g", who,
                         gradients ? "gradient" : "weight", p->name, (long long)(k - p->whole_at),
                         (double)a[k], (double)b[k]);
            }
            off += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
            size += (double)b[k] * (double)b[k];
        }
        if (sqrt(off) > bound * sqrt(size) + 1e-9) {
            fail_msg("%s: %s of %s differs by %.3g of its size", who,
                     gradients ? "gradient" : "weights", p->name, sqrt(off / size));
        }
    }
}

static inline void ranks_equal(const ranks_result *got, const ranks_result *want,
                               const ranks_bound *bound, const char *who) {
    assert_int_equal(got->steps, want->steps);
    assert_true(got->rows == want->rows && got->labels == want->labels);
    ranks_tensors(got, want, true, bound->gradient, who);
    for (int64_t i = 0; i < want->steps; i++) {
        char what[32];
        (void)snprintf(what, sizeof what, "loss %lld", (long long)i + 1);
        ranks_close(got->losses[i], want->losses[i], bound->loss, what, who);
        (void)snprintf(what, sizeof what, "norm %lld", (long long)i + 1);
        ranks_close(got->norms[i], want->norms[i], bound->norm, what, who);
    }
    ranks_tensors(got, want, false, bound->weights, who);
}

/* The run on `mesh` must equal the run on one rank. */
static inline void ranks_compare(const ranks_model *m, const char *options, const char *mesh,
                                 int n_ranks, const ranks_bound *bound) {
    static int n_runs;
    ranks_result one = {0}, many = {0};
    char all[1024], out[32], who[640];
    (void)snprintf(all, sizeof all, "steps=8 %s %s", m->options, options);
    (void)snprintf(who, sizeof who, "%s %s, mesh %s", m->name, options, mesh);
    (void)snprintf(out, sizeof out, "one-%d", n_runs);
    must(ranks_try(&one, out, all, NULL, 1, false), who);
    (void)snprintf(out, sizeof out, "many-%d", n_runs++);
    must(ranks_try(&many, out, all, mesh, n_ranks, false), who);
    ranks_equal(&many, &one, bound, who);
    ranks_result_free(&one);
    ranks_result_free(&many);
}

#endif
