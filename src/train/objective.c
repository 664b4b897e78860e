/* objective.c: see objective.h. */
#include "train/objective.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/blocks/context.h"
#include "model/lora/dora.h"
#include "parallel/whole.h"
#include "train/adapters.h"
#include "train/run.h"

bool lt_objective_draws(const lt_recipe *r) {
    return lt_recipe_is_rl(r) ||
           (r->objective == LT_RECIPE_OBJECTIVE_distill && r->distill_on_policy > 0.0);
}

lt_err lt_objective_check(const lt_recipe *r, const lt_mesh_shape *mesh) {
    static const lt_mesh_shape one = {1, 1, 1, 1, 1};
    const lt_mesh_shape *s = mesh != NULL ? mesh : &one;
    const bool distills = r->objective == LT_RECIPE_OBJECTIVE_distill;
    const struct {
        const char *what;
        bool asked;
    } refused[] = {{"deterministic = mesh-invariant", r->deterministic != 0},
                   {"model.fp8", r->fp8 != LT_FP8_NONE},
                   {"loss.z", r->z_coef > 0.0},
                   {"pp (mesh)", s->pp > 1 && distills},
                   {"tp (mesh)", s->tp > 1 && distills}};
    if (r->objective == LT_RECIPE_OBJECTIVE_sft) {
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            char kind[LT_OPTION_STR_BYTES];
            lt_option_text(lt_option_find(&lt_recipe_table, "objective.kind"), r, kind,
                           sizeof kind);
            LT_FAIL(LT_ERR_UNSUPPORTED, "objective.kind = %s with %s: not supported", kind,
                    refused[i].what);
        }
    }
    if (r->init[0] == '\0') {
        LT_FAIL(
            LT_ERR_ARG,
            "objective.kind is given, but no model.init: it trains a model that can already write");
    }
    return LT_OK;
}

/* Rows whose tokens are held at once: those of a pass, or of a step of a pipeline. */
static int64_t rows_of_room(const lt_training *t) {
    return t->pipeline != NULL ? lt_recipe_largest_batch(&t->recipe) / lt_training_dp(t) *
                                     lt_recipe_together(&t->recipe)
                               : t->micro;
}

lt_err lt_objective_open(lt_training *t) {
    const lt_model_spec *s = &t->model->spec;
    const size_t one = (size_t)(t->micro * t->recipe.seq),
                 all = (size_t)(rows_of_room(t) * t->recipe.seq);
    lt_objective_room *o = &t->objective_room;
    if (s->n_experts > 0 && (s->moe_aux_coef > 0.0f || s->moe_z_coef > 0.0f)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "objective.kind with model.aux_coef = %g and model.router_z_coef = %g: losses of "
                "the router are not supported beside an objective; 0 leaves them out",
                (double)s->moe_aux_coef, (double)s->moe_z_coef);
    }
    o->tokens = malloc(all * sizeof *o->tokens);
    o->labels = malloc(all * sizeof *o->labels);
    o->positions = malloc(all * sizeof *o->positions);
    o->own_labels = malloc(all * sizeof *o->own_labels);
    o->values = malloc(one * sizeof *o->values);
    o->dvalues = malloc(one * sizeof *o->dvalues);
    o->own = malloc(one * sizeof *o->own);
    if (o->tokens == NULL || o->labels == NULL || o->positions == NULL || o->own_labels == NULL ||
        o->values == NULL || o->dvalues == NULL || o->own == NULL) {
        LT_FAIL(LT_ERR_OOM, "values of %lld rows", (long long)t->micro);
    }
    return LT_OK;
}

void lt_objective_close(lt_training *t) {
    lt_objective_room *o = &t->objective_room;
    if (t->objective != NULL && t->objective->close != NULL) {
        t->objective->close(t->objective->of);
    }
    lt_lora_close(t->whole_lora);
    lt_model_close(t->whole);
    t->whole_lora = NULL;
    t->whole = NULL;
    free(o->tokens);
    free(o->labels);
    free(o->positions);
    free(o->own_labels);
    free(o->values);
    free(o->dvalues);
    free(o->own);
    *o = (lt_objective_room){0};
}

/* ---- The rows of a pass ---- */

/* Whole rows; the pass computes this rank's tokens of them. */
typedef struct {
    lt_pass_batch own;
    int64_t n, seq;
    const int32_t *labels; /* (n, seq) */
} pass_rows;

/* Lengths of rows in a pass are multiples of this. A pipeline on GPUs loads the kernels for one
 * length before its first message. */
static int64_t step_of(const lt_training *t) {
    const int64_t pieces = 2 * lt_training_cp(t);
    int64_t step = LT_ROWS_STEP;
    while (lt_training_cp(t) > 1 && step % pieces != 0) {
        step += LT_ROWS_STEP;
    }
    return t->pipeline != NULL && !t->device->backend->host_memory ? t->recipe.seq : step;
}

static void take_own(const lt_training *t, void *rows, int64_t n, int64_t seq) {
    const int cp = lt_training_cp(t);
    if (cp > 1) {
        lt_context_take(rows, n, seq, cp, lt_group_rank(t->world->mesh.cp));
    }
}

/* Copy n rows starting at row `first`, up to their last label, to the room at row `at`. n 0: one
 * row without a label, for a pass of other ranks. */
static pass_rows cut(lt_training *t, const lt_row_batch *rows, int64_t first, int64_t n,
                     int64_t at) {
    const lt_objective_room *o = &t->objective_room;
    const int64_t used = n > 0 ? lt_rows_used(&rows->ids, first, n, step_of(t)) : step_of(t);
    const int64_t seq = used < t->recipe.seq ? used : t->recipe.seq, count = n > 0 ? n : 1,
                  from = at * t->recipe.seq;
    int32_t *tokens = o->tokens + from, *labels = o->labels + from,
            *positions = o->positions + from, *own_labels = o->own_labels + from;
    LT_ASSERT(n <= t->micro && at + count <= rows_of_room(t));
    for (int64_t i = 0; i < count * seq; i++) {
        const int64_t in = (first + i / seq) * t->recipe.seq + i % seq;
        tokens[i] = n > 0 ? rows->ids.tokens[in] : 0;
        labels[i] = n > 0 ? rows->ids.labels[in] : -1;
        positions[i] = (int32_t)(i % seq);
    }
    memcpy(own_labels, labels, (size_t)(count * seq) * sizeof *labels);
    take_own(t, tokens, count, seq);
    take_own(t, own_labels, count, seq);
    take_own(t, positions, count, seq);
    return (pass_rows){.own = {.batch = count,
                               .seq = seq / lt_training_cp(t),
                               .tokens = tokens,
                               .labels = own_labels,
                               .positions = lt_training_cp(t) > 1 ? positions : NULL},
                       .n = n,
                       .seq = seq,
                       .labels = labels};
}

static lt_err aim(lt_training *t, const pass_rows *p, const lt_row_batch *rows, int64_t first) {
    const lt_objective *o = t->objective;
    return o->aim != NULL && p->n > 0 ? o->aim(o->of, t, &p->own, rows->index + first) : LT_OK;
}

/* Where a pass writes its values: at their place among those of the ranks of cp. */
static float *own_values(const lt_training *t, const pass_rows *p) {
    const int cp = lt_training_cp(t), rank = cp > 1 ? lt_group_rank(t->world->mesh.cp) : 0;
    return cp > 1 ? t->objective_room.own + rank * p->own.batch * p->own.seq
                  : t->objective_room.values;
}

/* Join the values of whole rows from those of the ranks of cp. */
static lt_err join_values(const lt_training *t, const pass_rows *p) {
    const lt_objective_room *o = &t->objective_room;
    const int cp = lt_training_cp(t);
    if (cp > 1) {
        LT_TRY(lt_all_gather(t->world->mesh.cp, o->own, own_values(t, p), p->own.batch * p->own.seq,
                             LT_F32, NULL));
        lt_context_put(o->values, o->own, p->own.batch, p->seq, cp);
    }
    return LT_OK;
}

/* ---- Values ---- */

static lt_err eval(lt_training *t, const pass_rows *p) {
    const bool scores = lt_model_spec_gives_values(&t->model->spec);
    const int64_t n = p->own.batch * p->own.seq;
    float *v = own_values(t, p);
    lt_pass_result unused;
    if (t->pipeline != NULL) {
        lt_group *pp = t->world->mesh.pp;
        LT_TRY(lt_pipeline_eval(t->pipeline, &p->own, &unused, v));
        LT_TRY(lt_broadcast(pp, v, n, LT_F32, lt_pipeline_head_rank(t->pipeline), NULL));
    } else {
        LT_TRY(lt_pass_eval(t->pass, &p->own, &unused, v));
    }
    for (int64_t i = 0; i < n; i++) {
        v[i] = p->own.labels[i] < 0 ? 0.0f : scores ? v[i] : -v[i];
    }
    return join_values(t, p);
}

lt_err lt_objective_values(lt_training *t, const lt_row_batch *rows, int64_t first, int64_t n,
                           const float **values, int64_t *seq) {
    const pass_rows p = cut(t, rows, first, n, 0);
    LT_TRY(aim(t, &p, rows, first));
    LT_TRY(eval(t, &p));
    *values = t->objective_room.values;
    *seq = p.seq;
    return LT_OK;
}

lt_err lt_objective_passes(lt_training *t, int64_t n, lt_objective_some some, void *of) {
    bool more = true;
    for (int64_t i = 0;; i++) {
        more = i < n;
        LT_TRY(lt_training_any_rows(t, &more));
        if (!more) {
            return LT_OK;
        }
        LT_TRY(some(of, i < n ? i : -1));
    }
}

/* ---- A step ---- */

static lt_err begin(lt_training *t, const lt_row_batch *rows, int64_t n, bool held_out) {
    const lt_objective *o = t->objective;
    return o->begin != NULL ? o->begin(o->of, t, rows, n, held_out) : LT_OK;
}

/* A micro-batch whose forward pass has run in a set: its loss, and the head's backward pass. */
typedef struct {
    lt_training *t;
    const lt_row_batch *rows;
    lt_step_record *sum;
    const pass_rows *parts; /* The rows of each micro-batch, */
    const int64_t *first;   /* and where its rows begin. */
} judging;

static lt_err judge(void *of, lt_pass *pass, int set, int64_t micro, float grad_scale) {
    const judging *j = of;
    lt_training *t = j->t;
    const pass_rows *p = &j->parts[micro];
    const lt_objective *o = t->objective;
    const lt_objective_room *room = &t->objective_room;
    const lt_objective_part part = {.n = p->n,
                                    .seq = p->seq,
                                    .index = j->rows->index + j->first[micro],
                                    .labels = p->labels,
                                    .values = room->values,
                                    .dvalues = room->dvalues};
    LT_TRY(lt_pass_logprobs_of(pass, set, p->own.labels, own_values(t, p)));
    LT_TRY(join_values(t, p));
    memset(room->dvalues, 0, (size_t)(p->n * p->seq) * sizeof *room->dvalues);
    LT_TRY(o->loss(o->of, &part, false, j->sum));
    take_own(t, room->dvalues, p->n, p->seq);
    return lt_pass_objective(pass, set, room->dvalues, grad_scale);
}

/* Run the micro-batches one after another. */
static lt_err run_passes(lt_training *t, const lt_row_batch *rows, int64_t n, float grad_scale,
                         lt_step_record *sum) {
    const int layers = (int)t->model->spec.n_layers;
    LT_TRY(lt_pass_zero_gradients(t->pass));
    for (int64_t first = 0; first < n; first += t->micro) {
        const int64_t count = n - first < t->micro ? n - first : t->micro;
        const pass_rows p = cut(t, rows, first, count, 0);
        judging j = {.t = t, .rows = rows, .sum = sum, .parts = &p, .first = &first};
        LT_TRY(aim(t, &p, rows, first));
        LT_TRY(lt_training_has_ranks(t) ? lt_zero_begin_batch(&t->zero, 0) : LT_OK);
        LT_TRY(lt_pass_load(t->pass, 0, &p.own));
        LT_TRY(lt_pass_forward(t->pass, 0, 0, layers));
        LT_TRY(judge(&j, t->pass, 0, 0, grad_scale));
        LT_TRY(lt_pass_backward(t->pass, 0, 0, layers, grad_scale));
        sum->tokens += (double)(count * p.seq);
    }
    return LT_OK;
}

/* Run all micro-batches through a pipeline. */
static lt_err run_pipeline(lt_training *t, const lt_row_batch *rows, int64_t n, float grad_scale,
                           lt_step_record *sum) {
    const size_t n_micros = (size_t)((n + t->micro - 1) / t->micro);
    pass_rows *parts = calloc(n_micros, sizeof *parts);
    int64_t *firsts = calloc(n_micros, sizeof *firsts);
    judging j = {.t = t, .rows = rows, .sum = sum, .parts = parts, .first = firsts};
    lt_pass_result unused = {0};
    lt_err err = LT_OK;
    if (parts == NULL || firsts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu micro-batches", n_micros);
    }
    for (size_t i = 0; i < n_micros; i++) {
        const int64_t first = (int64_t)i * t->micro, left = n - first;
        firsts[i] = first;
        parts[i] = cut(t, rows, first, left < t->micro ? left : t->micro, first);
        t->batches[i] = parts[i].own;
        sum->tokens += (double)(parts[i].n * parts[i].seq);
    }
    lt_pipeline_set_head(t->pipeline, (lt_pipeline_head){judge, &j});
    err = lt_training_run_batches(t, (int64_t)n_micros, grad_scale, &unused);
    lt_pipeline_set_head(t->pipeline, (lt_pipeline_head){NULL, NULL});
done:
    free(parts);
    free(firsts);
    return err;
}

lt_err lt_objective_run(lt_training *t, const lt_row_batch *rows, int64_t n, float grad_scale,
                        lt_step_record *sum) {
    sum->tokens = 0.0; /* Tokens that passes computed. */
    LT_TRY(begin(t, rows, n, false));
    return t->pipeline != NULL ? run_pipeline(t, rows, n, grad_scale, sum)
                               : run_passes(t, rows, n, grad_scale, sum);
}

/* ---- Losses without gradients ---- */

/* The loss of rows [first, first + n) of a batch. */
static lt_err losses(lt_training *t, const lt_row_batch *rows, int64_t first, int64_t n,
                     bool held_out, lt_step_record *sum) {
    const lt_objective *o = t->objective;
    lt_objective_part part = {.n = n, .labels = t->objective_room.labels};
    LT_TRY(lt_objective_values(t, rows, first, n, &part.values, &part.seq));
    if (n == 0) {
        return LT_OK;
    }
    part.index = rows->index + first;
    return o->loss(o->of, &part, held_out, sum);
}

lt_err lt_objective_probe(lt_training *t, const lt_row_batch *rows, int64_t n,
                          lt_step_record *sum) {
    return losses(t, rows, 0, n, false, sum);
}

/* This rank's share of the validation rows, in examples. */
static int64_t held_out_share(const lt_training *t) {
    const int64_t dp = lt_training_dp(t), rank = lt_training_dp_rank(t);
    const int64_t all = t->recipe.eval_rows > 0 && t->recipe.eval_rows < t->n_held_out
                            ? t->recipe.eval_rows
                            : t->n_held_out;
    return all > rank ? (all - rank + dp - 1) / dp : 0;
}

typedef struct {
    lt_training *t;
    int64_t n;
    lt_step_record *sum;
} validation;

/* The next pass of validation rows. */
static lt_err add_held_out(void *of, int64_t pass) {
    const validation *v = of;
    lt_training *t = v->t;
    lt_row_batch *rows = &t->valid_rows.batch;
    const int64_t left = v->n - pass * t->micro;
    const int64_t count = pass < 0 ? 0 : left < t->micro ? left : t->micro;
    LT_TRY(count > 0 ? t->held_out.next(t->held_out.of, count, rows) : LT_OK);
    return losses(t, rows, 0, count, true, v->sum);
}

/* Number the validation rows, starting with the first. */
static lt_err number_held_out(lt_training *t, int64_t n, int64_t *index) {
    const lt_row_source *source = &t->held_out;
    lt_row_batch *rows = &t->valid_rows.batch;
    LT_TRY(source->seek(source->of, NULL));
    for (int64_t first = 0; first < n; first += t->micro) {
        const int64_t count = n - first < t->micro ? n - first : t->micro;
        LT_TRY(source->next(source->of, count, rows));
        memcpy(index + first, rows->index, (size_t)count * sizeof *index);
    }
    return LT_OK;
}

static lt_err evaluate_rows(lt_training *t, lt_step_record *sum) {
    lt_err err = LT_OK;
    const int64_t together = lt_recipe_together(&t->recipe), n = held_out_share(t) * together;
    int64_t *index = NULL;
    if (t->objective->begin != NULL) {
        index = malloc((size_t)(n > 0 ? n : 1) * sizeof *index);
        if (index == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "numbers of %lld rows", (long long)n);
        }
        LT_TRY_DONE(number_held_out(t, n, index));
        LT_TRY_DONE(begin(t, &(lt_row_batch){.index = index}, n, true));
    }
    LT_TRY_DONE(t->held_out.seek(t->held_out.of, NULL));
    LT_TRY_DONE(lt_objective_passes(t, (n + t->micro - 1) / t->micro, add_held_out,
                                    &(validation){t, n, sum}));
    sum->rows = (double)(n / together);
done:
    free(index);
    return err;
}

lt_err lt_objective_evaluate(lt_training *t) {
    lt_step_record sum = {0};
    double values[LT_EVAL_METRIC_COUNT] = {0};
    bool present[LT_EVAL_METRIC_COUNT] = {false};
    lt_err err;
    if (t->n_held_out == 0 || t->evaluated_step == t->state.step) {
        return LT_OK;
    }
    LT_TRY(lt_training_settle(t));
    err = evaluate_rows(t, &sum);
    lt_training_tell_once(t, &sum);
    LT_TRY(lt_ranks_combine(&t->ranks, &sum, err));
    t->evaluated_step = t->state.step;
    if (!lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    values[LT_EVAL_step] = (double)t->state.step;
    values[LT_EVAL_loss] = sum.loss_sum / sum.weight_sum;
    present[LT_EVAL_step] = present[LT_EVAL_loss] = true;
    lt_log_info("step %lld: validation: loss %.4f over %.0f examples", (long long)t->state.step,
                values[LT_EVAL_loss], sum.rows);
    LT_TRY(lt_metrics_row(&t->metrics, "eval", lt_eval_metrics, LT_EVAL_METRIC_COUNT, values,
                          present));
    return lt_objective_tell(t, &sum, true);
}

lt_err lt_objective_tell(lt_training *t, const lt_step_record *sum, bool eval) {
    const lt_objective *o = t->objective;
    double values[LT_OBJECTIVE_METRICS] = {0};
    bool present[LT_OBJECTIVE_METRICS] = {false};
    char kind[64];
    LT_ASSERT(o->n_metrics <= LT_OBJECTIVE_METRICS);
    values[0] = (double)t->state.step;
    present[0] = true;
    o->report(o->of, sum, values, present);
    (void)snprintf(kind, sizeof kind, "%s%s", o->kind, eval ? "_eval" : "");
    return lt_metrics_row(&t->metrics, kind, o->metrics, o->n_metrics, values, present);
}

/* Sum numbers over the ranks; of ranks with the same rows, one adds its numbers. */
lt_err lt_objective_sum(const lt_training *t, double *numbers, int64_t n) {
    if (!lt_training_has_ranks(t)) {
        return LT_OK;
    }
    if (!lt_world_tells_rows(t->world)) {
        memset(numbers, 0, (size_t)n * sizeof *numbers);
    }
    return lt_all_reduce(t->world->mesh.world, numbers, numbers, n, LT_F64, LT_REDUCE_SUM, NULL);
}

lt_err lt_objective_open_sharers(const lt_training *t, lt_group **out) {
    *out = NULL;
    return lt_training_has_ranks(t) ? lt_world_open_rows(t->world, out) : LT_OK;
}

lt_err lt_objective_all(const lt_training *t, bool *yes) {
    int32_t no = *yes ? 0 : 1;
    if (lt_training_has_ranks(t)) {
        LT_TRY(lt_all_reduce(t->world->mesh.world, &no, &no, 1, LT_I32, LT_REDUCE_SUM, NULL));
    }
    *yes = no == 0;
    return LT_OK;
}

/* ---- Other models, and all weights at once ---- */

lt_err lt_objective_open_beside(lt_training *t, lt_pass **out, lt_model *m, bool alone) {
    lt_pass_options o = lt_training_pass_options(t);
    lt_pass_memory memory;
    if (alone) {
        o.seq = lt_pass_whole_seq(&o);
        o.context = (lt_context_options){NULL, LT_CONTEXT_GATHER};
        o.tp = NULL;
    }
    o.train = o.weights = o.master_elsewhere = o.gradients_elsewhere = false;
    o.recompute = LT_RECOMPUTE_NONE;
    o.lora = (lt_lora_options){0};
    o.partition = NULL;
    o.experts = o.experts_host = NULL;
    o.queue = lt_training_queue(t);
    o.loss_chunk_rows = t->pass != NULL ? lt_pass_chunk_rows(t->pass) : 0;
    LT_TRY(lt_pass_measure(&memory, &m->spec, m->options.dtype, &o));
    t->objective_bytes += memory.host_bytes + lt_model_host_bytes(m);
    if (t->device->backend->host_memory) {
        t->objective_bytes += memory.activations_bytes + memory.logits_bytes + memory.scratch_bytes;
    }
    return lt_pass_open(out, m, &o);
}

#define NO_VERSION UINT64_MAX /* No weights have this version. */

/* No rank has all layers, heads or experts, or, beside adapters, all weights. */
static bool brings_boxes(const lt_training *t) {
    return lt_training_has_ranks(t) &&
           (lt_world_is_divided(t->world) ||
            (t->lora != NULL && lt_shards_of_weights(&t->shards) != NULL));
}

/* Open adapters beside the second model, whose weights are brought to it as the model's are. */
static lt_err open_adapters_of_whole(lt_training *t) {
    if (t->lora == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_lora_open(&t->whole_lora, t->whole, &t->lora->options, t->lora->seed));
    t->whole_lora->params->version = NO_VERSION;
    t->objective_bytes += lt_model_host_bytes(t->whole_lora->params);
    return LT_OK;
}

/* Open a base in blocks from its file: it does not change, and ranks do not send blocks. */
static lt_err open_stored_whole(lt_training *t) {
    lt_model_options o = {.device = t->device,
                          .dtype = t->model->options.dtype,
                          .n_scores = t->model->options.n_scores,
                          .token_scores = t->model->options.token_scores};
    lt_adapters_base(&o, &t->recipe);
    return lt_model_open(&t->whole, t->recipe.init, &o);
}

/* Open a second set of adapters beside the model itself, whose weights do not change. */
static lt_err open_adapters_apart(lt_training *t) {
    lt_lora_use(t->model, NULL);
    LT_TRY(lt_lora_open(&t->whole_lora, t->model, &t->lora->options, t->lora->seed));
    t->whole_lora->params->version = NO_VERSION;
    t->objective_bytes += lt_model_host_bytes(t->whole_lora->params);
    return LT_OK;
}

lt_err lt_objective_open_whole(lt_training *t, bool apart, const lt_model **out) {
    const bool boxes = brings_boxes(t), slices = lt_shards_of_weights(&t->shards) != NULL;
    const lt_model_options options = {.dtype = t->model->options.dtype,
                                      .device = t->device,
                                      .n_scores = t->model->options.n_scores,
                                      .token_scores = t->model->options.token_scores,
                                      .partition = slices && !boxes ? &t->parts.model : NULL};
    if (slices || boxes || (apart && t->lora == NULL)) {
        const bool stored = lt_adapters_decode(&t->recipe);
        LT_TRY(stored ? open_stored_whole(t)
                      : lt_model_alloc(&t->whole, &t->model->spec, &options));
        t->whole->version = stored ? t->model->version : NO_VERSION;
        t->objective_bytes += lt_model_host_bytes(t->whole);
        LT_TRY(open_adapters_of_whole(t));
    } else if (apart) {
        LT_TRY(open_adapters_apart(t));
    }
    *out = t->whole != NULL ? t->whole : t->model;
    return LT_OK;
}

void lt_objective_opened_whole(lt_training *t) {
    lt_lora_use(t->model, t->lora);
}

/* Copy the weights of the model, whose version differs from the second one's. */
static lt_err bring_model(lt_training *t) {
    const lt_shards *slices = lt_shards_of_weights(&t->shards);
    lt_model *to = t->whole, *from = t->model;
    lt_queue *queue = lt_training_queue(t);
    if (brings_boxes(t)) {
        const lt_model *kept = t->kept != NULL ? t->kept : t->trained;
        LT_TRY(lt_whole_bring(t->world, slices, slices != NULL ? kept : from, to, queue));
    } else if (slices != NULL) {
        return lt_zero_copy_whole(&t->zero, to);
    } else {
        LT_TRY(from->backend->copy(queue, to->weights.flat, from->weights.flat,
                                   lt_param_buffer_bytes(&from->table, from->weights.dtype)));
    }
    to->version = from->version;
    return LT_OK;
}

/* Copy the adapters beside the same model, whose version differs from the second ones'. */
static lt_err copy_adapters(lt_training *t) {
    const lt_lora *from = t->lora;
    const lt_model *params = from->params;
    lt_lora *to = t->whole_lora;
    lt_queue *queue = lt_training_queue(t);
    LT_TRY(params->backend->copy(queue, to->params->weights.flat, params->weights.flat,
                                 lt_param_buffer_bytes(&params->table, params->weights.dtype)));
    for (int i = 0; from->options.dora && i < lt_lora_n_sites(&params->spec); i++) {
        if (lt_lora_has_magnitudes(&from->sites[i])) {
            const lt_tensor m = lt_dora_magnitudes(from, &from->sites[i]);
            LT_TRY(params->backend->copy(queue, lt_dora_magnitudes(to, &to->sites[i]).data, m.data,
                                         (size_t)m.shape[0] * sizeof(float)));
        }
    }
    to->params->version = params->version;
    return LT_OK;
}

lt_err lt_objective_bring_whole(lt_training *t) {
    lt_lora *to = t->whole_lora;
    LT_TRY(lt_training_settle(t));
    if (t->whole != NULL && t->whole->version != t->model->version) {
        LT_TRY(bring_model(t));
    }
    if (to != NULL && to->params->version != t->lora->params->version) {
        LT_TRY(t->whole != NULL
                   ? lt_whole_bring_adapters(t->world, t->lora, to, lt_training_queue(t))
                   : copy_adapters(t));
    }
    return lt_training_settle(t);
}
