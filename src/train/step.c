/* step.c: one optimiser step.
 *
 *   rows of the step ── source ──▶ micro-batches ── forward, backward ──▶ gradients
 *                                             (their sum over all labels / number of labels)
 *                                                                          │ norm, guard, clip
 *                                                                          ▼
 *                                                                      optimiser ──▶ weights
 * The loss is the mean over all counted labels of the step, whatever the micro-batches.
 *
 * The host waits once, after the last backward pass, for losses and the gradient norm. They come
 * with those of other ranks in one record (record.h), which decides whether and how the update is
 * applied. Before the host waits, it draws the next step's rows and sends off the first of them.
 *
 * Gradients are summed with a fixed scale, 1 / (rows of a micro-batch * seq), so that a recorded
 * graph holds no number that changes. The optimiser multiplies them by the rest, (rows of a
 * micro-batch * seq) / labels, together with the clip factor.
 *
 *   host     ··stage, launch··│draw k+1, stage│··wait··│judge│update, launch k+1··
 *   device   ───────────── forward, backward k ────────┤     ├─ update ─┬─ forward k+1
 */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "model/blocks/context.h"
#include "tensor/ops.h"
#include "train/norm.h"
#include "train/run.h"
#include "train/together.h"

#define STOP_LATE_S 1.0 /* How much later than a program of the run this process gets a signal. */

void lt_training_take_tokens(const lt_training *t, lt_row_batch *b, int64_t n) {
    const int cp = lt_training_cp(t);
    void *const fields[] = {b->ids.tokens, b->ids.labels, b->ids.doc_start, b->ids.positions,
                            b->weights};
    for (size_t i = 0; cp > 1 && i < sizeof fields / sizeof *fields; i++) {
        if (fields[i] != NULL) {
            lt_context_take(fields[i], n, b->ids.seq, cp, lt_group_rank(t->world->mesh.cp));
        }
    }
}

lt_pass_batch lt_training_slice(const lt_training *t, const lt_row_batch *rows, int64_t first,
                                int64_t n) {
    const lt_batch *b = &rows->ids;
    const int64_t own = b->seq / lt_training_cp(t), at = first * own;
    /* A row of one document may be mostly padding. On its own it is computed up to its last label,
     * except on a device, whose recorded steps have one shape. */
    const bool cut = t->recipe.packing == LT_RECIPE_PACK_SINGLE && n == 1 && own == b->seq &&
                     t->model->backend->host_memory && t->pipeline == NULL;
    const int64_t seq = cut ? lt_rows_used(b, first, 1, LT_ROWS_STEP) : own;
    return (lt_pass_batch){.batch = n,
                           .seq = seq,
                           .tokens = b->tokens + at,
                           .labels = b->labels + at,
                           .doc_start = t->recipe.mask_documents ? b->doc_start + at : NULL,
                           .positions = b->positions + at,
                           .weights = t->source.weights ? rows->weights + at : NULL};
}

/* Ranks take rows in turn, one row at a time (data/loader.c). */
void lt_training_number(const lt_training *t, lt_pass_batch *b, uint64_t seen, int64_t first) {
    b->row_step = (uint64_t)lt_training_shares(t);
    b->first_row = seen + (uint64_t)first * b->row_step + (uint64_t)lt_training_dp_rank(t);
}

/* Draw the same rows, one group after another. */
static lt_err draw_groups(lt_training *t, lt_draw *d) {
    const lt_row_batch *all = &d->rows.batch;
    for (int64_t i = 0; i < d->n_rows; i++) {
        const int64_t at = lt_invariant_row(&t->invariant, i, d->n_rows) * all->ids.seq;
        lt_row_batch one = *all;
        one.ids.tokens += at;
        one.ids.labels += at;
        one.ids.doc_start += at;
        one.ids.positions += at;
        one.weights = all->weights != NULL ? all->weights + at : NULL;
        LT_TRY(t->source.next(t->source.of, 1, &one));
    }
    return LT_OK;
}

/* Draw the rows of `step`, which begins when `seen` rows of the run have been drawn. */
static lt_err draw(lt_training *t, lt_draw *d, int64_t step, uint64_t seen) {
    const double start_s = lt_clock_s();
    d->plan = lt_recipe_plan(&t->recipe, step, seen);
    d->seen = seen;
    d->n_rows = d->plan.rows / lt_training_shares(t) * lt_recipe_together(&t->recipe);
    d->staged = 0;
    LT_TRY(t->invariant.n_groups > 0 ? draw_groups(t, d)
                                     : t->source.next(t->source.of, d->n_rows, &d->rows.batch));
    if (t->objective == NULL) { /* An objective divides the rows itself, pass by pass. */
        lt_training_take_tokens(t, &d->rows.batch, d->n_rows);
    }
    t->source.place(t->source.of, &d->place);
    d->wait_s = lt_clock_s() - start_s;
    d->drawn = true;
    return LT_OK;
}

/* Stage the draw's next micro-batch. */
static lt_err stage(lt_training *t, lt_draw *d) {
    const int64_t group = t->invariant.n_groups > 0 ? d->n_rows / t->invariant.n_own : d->n_rows;
    const int64_t left = group - d->staged % group, count = left < t->micro ? left : t->micro;
    lt_pass_batch b = lt_training_slice(t, &d->rows.batch, d->staged, count);
    lt_training_number(t, &b, d->seen, d->staged);
    d->staged += count;
    return lt_pass_stage(t->pass, &b);
}

double lt_training_gradient_scale(const lt_training *t) {
    const lt_training *host = lt_training_host(t);
    return 1.0 / (double)(host->micro * host->recipe.seq);
}

/* Queue the micro-batches before row `end` of a draw, with gradients that start from zero. If the
 * results would not fit, they are collected on the way. */
static lt_err accumulate_rows(lt_training *t, lt_draw *d, int64_t end, lt_pass_result *sum) {
    LT_TRY(lt_pass_zero_gradients(t->pass));
    while (d->staged < end || lt_pass_staged(t->pass) > 0) {
        if (lt_pass_staged(t->pass) == 0) {
            if (lt_pass_full(t->pass)) {
                LT_TRY(lt_pass_collect(t->pass, sum));
            }
            LT_TRY(stage(t, d));
        }
        LT_TRY(lt_training_has_ranks(t) ? lt_zero_begin_batch(&t->zero, 0) : LT_OK);
        LT_TRY(lt_pass_train_staged(t->pass, (float)lt_training_gradient_scale(t)));
        if (d->staged < end && !lt_pass_full(t->pass)) {
            LT_TRY(stage(t, d));
        }
    }
    return LT_OK;
}

/* One group after another, and their gradients added as a tree (invariant.h). */
static lt_err accumulate_groups(lt_training *t, lt_draw *d, lt_pass_result *sum) {
    lt_invariant *v = &t->invariant;
    float *gradients = lt_param_floats(lt_pass_gradients(t->pass));
    for (int s = 0; s < v->n_own; s++) {
        lt_pass_result of_group = {0};
        LT_TRY(accumulate_rows(t, d, (s + 1) * (d->n_rows / v->n_own), &of_group));
        LT_TRY(lt_pass_collect(t->pass, &of_group));
        LT_TRY(lt_invariant_add(v, s, t->model->backend, lt_pass_queue(t->pass), gradients));
        lt_invariant_round(&of_group);
        sum->loss_sum += of_group.loss_sum;
        sum->weight_sum += of_group.weight_sum;
        sum->n_labels += of_group.n_labels;
        sum->n_correct += of_group.n_correct;
        sum->aux_sum += of_group.aux_sum;
        sum->z_sum += of_group.z_sum;
    }
    return LT_OK;
}

/* Queue all micro-batches of a draw. An objective's results are known at once, in the record. */
static lt_err accumulate(lt_training *t, lt_draw *d, lt_pass_result *sum, lt_step_record *r) {
    const bool ranks = lt_training_has_ranks(t);
    if (ranks) {
        /* The sum over ranks waits for all batches of the step if the order of groups is fixed, or
         * if a replay hashes this rank's gradients before they are summed.
         */
        const bool later = t->invariant.n_groups > 0 || lt_replay_is_due(t, d->plan.step);
        const int64_t n = later ? INT64_MAX : (d->n_rows + t->micro - 1) / t->micro;
        lt_zero_begin_step(&t->zero, n);
    }
    if (t->objective != NULL) {
        return lt_objective_run(t, &d->rows.batch, d->n_rows, (float)lt_training_gradient_scale(t),
                                r);
    }
    if (t->pipeline != NULL) {
        d->staged = d->n_rows;
        return lt_training_run_pipeline(t, &d->rows.batch, d->seen, d->n_rows,
                                        (float)lt_training_gradient_scale(t), sum);
    }
    return t->invariant.n_groups > 0 ? accumulate_groups(t, d, sum)
                                     : accumulate_rows(t, d, d->n_rows, sum);
}

static void add_result(lt_step_record *r, const lt_pass_result *sum) {
    r->labels += (double)sum->n_labels;
    r->weight_sum += sum->weight_sum;
    r->loss_sum += sum->loss_sum;
    r->correct += (double)sum->n_correct;
    r->aux_sum += sum->aux_sum;
    r->router_z_sum += sum->z_sum;
}

/* While the device computes, draw the rows of the next step, and stage the first of them. */
static lt_err look_ahead(lt_training *t, lt_draw *next, uint64_t seen) {
    if (t->state.step + 1 >= t->recipe.steps || lt_diloco_is_due(t, t->state.step + 1) ||
        (t->objective != NULL && t->objective->draws_late)) {
        return LT_OK;
    }
    lt_open_span span;
    LT_TRY(lt_times_phase(t, &span, LT_SPAN_ROWS));
    LT_TRY(draw(t, next, t->state.step + 2, seen));
    LT_TRY(lt_timeline_end(&t->times.line, &span));
    return t->objective != NULL || t->pipeline != NULL || t->together != NULL ||
                   lt_pass_full(t->pass)
               ? LT_OK
               : stage(t, next);
}

const lt_param_buffer *lt_training_pass_gradients(const lt_training *t) {
    if (t->pipeline != NULL) {
        return t->together != NULL ? lt_pipeline_gradients_of(t->pipeline, t->member)
                                   : lt_pipeline_gradients(t->pipeline);
    }
    return t->together != NULL ? lt_pass_gradients_of(t->pass, t->member)
                               : lt_pass_gradients(t->pass);
}

const lt_param_buffer *lt_training_gradients(const lt_training *t) {
    return lt_training_has_ranks(t) ? lt_zero_gradients(&t->zero) : lt_training_pass_gradients(t);
}

/* Sum the gradients of all ranks' rows. On a GPU the sum is queued. */
static lt_err sum_over_ranks(lt_training *t, int64_t step) {
    LT_TRY(t->world->device == NULL ? t->model->backend->sync(lt_training_queue(t)) : LT_OK);
    if (t->invariant.n_groups > 0) {
        return lt_invariant_sum(&t->invariant, lt_training_queue(t),
                                lt_param_floats(lt_pass_gradients(t->pass)));
    }
    LT_TRY(lt_replay_is_due(t, step) ? lt_replay_own(t) : LT_OK);
    return lt_zero_end_step(&t->zero);
}

/* Queue this rank's part of the squared norm of all gradients. It is in *optimiser.host_sumsq
 * after a sync. */
static lt_err square_gradients(lt_training *t) {
    const lt_param_buffer *gradients = lt_training_gradients(t);
    const lt_backend *be = t->model->backend;
    lt_optimiser *o = &t->optimiser;
    /* No other rank has a part of the sum. */
    if (!lt_training_has_ranks(t) || t->invariant.n_groups > 0) {
        return lt_optimiser_sumsq(o, gradients);
    }
    LT_TRY(lt_norm_share(o->sumsq, be, o->queue, &t->shards, &t->zero.model->table, gradients));
    return be->download(o->queue, o->host_sumsq, o->sumsq, sizeof *o->sumsq);
}

void lt_training_tell_once(const lt_training *t, lt_step_record *r) {
    if (!lt_training_has_ranks(t)) {
        return;
    }
    if (!lt_world_tells_rows(t->world)) {
        r->rows = r->tokens = 0.0;
    }
    /* Each rank of cp computes an objective's loss for whole rows. */
    if (!(t->objective != NULL ? lt_world_tells_rows(t->world) : lt_world_tells_losses(t->world))) {
        memset(r->objective, 0, sizeof r->objective);
        r->labels = r->weight_sum = r->loss_sum = r->correct = r->bytes = 0.0;
    }
    if (!lt_world_tells_layers(t->world)) {
        r->aux_sum = r->router_z_sum = 0.0;
    }
}

/* Forward and backward passes of the step's rows, and their results. */
static lt_err compute(lt_training *t, lt_step_record *r, double start_s) {
    const int64_t step = t->state.step + 1;
    lt_draw *now = &t->draws[step % 2], *next = &t->draws[(step + 1) % 2];
    lt_pass_result sum = {0};
    lt_open_span span;
    LT_TRY(lt_times_phase(t, &span, LT_SPAN_PASSES));
    LT_TRY(lt_replay_before(t, now));
    LT_TRY(accumulate(t, now, &sum, r));
    LT_TRY(lt_timeline_end(&t->times.line, &span));
    LT_TRY(lt_times_phase(t, &span, LT_SPAN_SUMS));
    LT_TRY(lt_training_has_ranks(t) ? sum_over_ranks(t, now->plan.step) : LT_OK);
    LT_TRY(square_gradients(t));
    LT_TRY(lt_timeline_end(&t->times.line, &span));
    LT_TRY(look_ahead(t, next, t->state.rows + (uint64_t)now->plan.rows));
    LT_TRY(lt_replicas_hash_gradients(t));
    LT_TRY(t->pipeline != NULL ? t->model->backend->sync(lt_training_queue(t))
                               : lt_pass_collect(t->pass, &sum));
    add_result(r, &sum);
    t->replay.loss = sum.loss_sum;
    r->sumsq = t->invariant.n_groups > 0 && !lt_ranks_lead(&t->ranks) ? 0.0
                                                                      : *t->optimiser.host_sumsq;
    return lt_times_note(t, r, start_s);
}

lt_err lt_training_gather(lt_training *t) {
    if (!lt_training_has_ranks(t)) {
        return LT_OK;
    }
    LT_TRY(lt_zero_gather(&t->zero));
    /* All weights are cast to 8 bits before the first layer runs. */
    return t->recipe.fp8 != LT_FP8_NONE ? lt_zero_settle(&t->zero) : LT_OK;
}

bool lt_training_is_whole(const lt_training *t) {
    const lt_objective *o = t->objective;
    return o == NULL || o->whole == NULL || o->whole(o->of);
}

/* Move the run's position to the end of a step. */
static void go_behind(lt_training *t, lt_draw *d, uint64_t tokens) {
    d->drawn = false;
    t->place = d->place;
    t->state.step = d->plan.step;
    t->state.rows += (uint64_t)d->plan.rows;
    t->state.tokens += tokens;
}

lt_err lt_training_skip(lt_training *t, int64_t step) {
    while (t->state.step < step) {
        lt_draw *d = &t->draws[0];
        LT_ASSERT(!d->drawn && !t->draws[1].drawn);
        LT_TRY(draw(t, d, t->state.step + 1, t->state.rows));
        go_behind(t, d, (uint64_t)(d->plan.rows * t->recipe.seq));
    }
    return LT_OK;
}

/* Carry out the step as it was decided, and move the run's position past it. */
static lt_err carry_out(lt_training *t, lt_draw *now, lt_step_decision *d,
                        const lt_step_record *r) {
    /* If an outer step may change the weights, they are gathered after it, and not unit by unit
     * before. */
    const bool ends = lt_diloco_is_due(t, now->plan.step);
    bool changed = false;
    int stop = 0;
    lt_guard_note(&t->guard, d->apply, d->loss, d->grad_norm);
    t->dead = d->dead;
    if (d->give_up) {
        LT_FAIL(LT_ERR_NUMERIC, "step %lld: %lld updates in a row were skipped (%s)",
                (long long)now->plan.step, (long long)t->guard.skipped_in_a_row, d->why);
    }
    if (d->apply) {
        LT_TRY(lt_saver_before_update(t));
        t->optimiser.gathers_late = ends;
        LT_TRY(lt_optimiser_step(&t->optimiser, lt_training_gradients(t), (float)d->grad_scale,
                                 &now->plan));
        t->applied_step = now->plan.step;
    }
    LT_TRY(lt_diloco_follow(t, now->plan.step, &changed, &stop));
    LT_TRY(d->apply || changed ? lt_training_gather(t) : LT_OK);
    d->stop = stop != 0 ? stop : d->stop;
    go_behind(t, now,
              t->objective != NULL ? (uint64_t)r->tokens
                                   : (uint64_t)(now->plan.rows * t->recipe.seq));
    return LT_OK;
}

/* A signal to all processes of a job also ends programs on which rows depend, such as a reward
 * command, and this process may be the last to get it. */
static void wait_for_stop(const lt_training *t) {
    const double until_s = lt_clock_s() + STOP_LATE_S;
    while (lt_training_stop_asked(t) == 0 && lt_clock_s() < until_s) {
        (void)usleep(10000);
    }
}

lt_err lt_training_step_begin(lt_training *t, lt_step_outcome *out) {
    const int64_t step = t->state.step + 1;
    const int64_t together = lt_recipe_together(&t->recipe);
    lt_draw *now = &t->draws[step % 2];
    lt_err err = LT_OK;

    *out = (lt_step_outcome){.start_s = lt_clock_s()};
    LT_TRY(lt_times_begin(t, step));
    LT_TRY(lt_timeline_begin(&t->times.line, &out->span, LT_SPAN_STEP, step, 0));
    if (!now->drawn) {
        err = draw(t, now, step, t->state.rows);
        t->undrawn = err != LT_OK;
        if (t->undrawn) {
            wait_for_stop(t);
        }
    }
    out->plan = now->plan;
    out->record = (lt_step_record){.rows = (double)(now->n_rows / together),
                                   .tokens = (double)(now->n_rows * t->recipe.seq),
                                   .wait_s = now->wait_s};
    return err;
}

lt_err lt_training_step_ahead(lt_training *t) {
    const int64_t step = t->state.step + 1;
    LT_TRY(lt_training_has_ranks(t) ? sum_over_ranks(t, step) : LT_OK);
    LT_TRY(square_gradients(t));
    LT_TRY(look_ahead(t, &t->draws[(step + 1) % 2],
                      t->state.rows + (uint64_t)t->draws[step % 2].plan.rows));
    return lt_replicas_hash_gradients(t);
}

lt_err lt_training_step_add(lt_training *t, lt_step_outcome *out, const lt_pass_result *r) {
    add_result(&out->record, r);
    out->record.sumsq = *t->optimiser.host_sumsq;
    return lt_times_note(t, &out->record, out->start_s);
}

lt_err lt_training_step_end(lt_training *t, lt_step_outcome *out, lt_err err) {
    const int64_t step = t->state.step + 1;
    lt_open_span part;
    bool saving = false;

    err = err == LT_OK ? lt_saver_look(t, &saving) : err;
    out->record.saving = saving;
    out->record.mirror = lt_mirror_look(t);
    out->record.stop = (double)lt_training_stop_asked(t);
    lt_training_tell_once(t, &out->record);
    LT_TRY(lt_times_phase(t, &part, LT_SPAN_RECORD));
    LT_TRY(lt_ranks_combine(&t->ranks, &out->record, err));
    LT_TRY(lt_saver_advance(t, out->record.saving > 0.0));
    LT_TRY(lt_mirror_advance(t, (lt_mirror_news)out->record.mirror));
    /* Exchanging the record is not part of a step's communication time. */
    t->times.line.waited_s = 0.0;
    LT_TRY(lt_timeline_end(&t->times.line, &part));
    lt_step_decide(&out->decision, &out->record,
                   &(lt_step_facts){.recipe = &t->recipe,
                                    .guard = &t->guard,
                                    .step = step,
                                    .whole = lt_training_is_whole(t),
                                    .summed_scale = lt_training_gradient_scale(t),
                                    .save_late = t->save_late});
    LT_TRY(lt_replicas_compare_gradients(t));
    LT_TRY(lt_replay_after(t, &t->draws[step % 2], &out->decision));
    LT_TRY(lt_times_phase(t, &part, LT_SPAN_UPDATE));
    t->save_late = t->save_late || out->decision.save_late;
    LT_TRY(carry_out(t, &t->draws[step % 2], &out->decision, &out->record));
    LT_TRY(lt_timeline_end(&t->times.line, &part));
    LT_TRY(lt_timeline_end(&t->times.line, &out->span));
    out->step_s = lt_clock_s() - out->start_s;
    return lt_times_end(t, step);
}

lt_err lt_training_step(lt_training *t, lt_step_outcome *out) {
    lt_err err = lt_training_step_begin(t, out);
    if (err == LT_OK) {
        err = compute(t, &out->record, out->start_s);
    }
    return lt_training_step_end(t, out, err);
}

/* Evaluate a batch of this run alone. */
static lt_err eval_own(const lt_training *t, lt_pass_batch b, lt_pass_result *r) {
    int64_t rows_of[LT_TOGETHER_MAX] = {0};
    rows_of[t->member] = b.batch;
    b.rows_of = rows_of;
    return t->pipeline != NULL ? lt_pipeline_eval(t->pipeline, &b, r, NULL)
                               : lt_pass_eval(t->pass, &b, r, NULL);
}

lt_err lt_training_eval(lt_training *t, const lt_pass_batch *b, lt_pass_result *r) {
    return t->together != NULL   ? eval_own(t, *b, r)
           : t->pipeline != NULL ? lt_pipeline_eval(t->pipeline, b, r, NULL)
                                 : lt_pass_eval(t->pass, b, r, NULL);
}

lt_err lt_training_probe(lt_training *t, lt_step_record *record) {
    const lt_draw *d = &t->draws[t->state.step % 2];
    const int64_t rows = d->n_rows < t->micro ? d->n_rows : t->micro;
    lt_pass_result r = {0};
    lt_err err = LT_OK;

    *record = (lt_step_record){.rows = (double)rows};
    if (rows > 0 && t->objective != NULL) {
        err = lt_objective_probe(t, &d->rows.batch, rows, record);
    } else if (rows > 0) {
        const lt_pass_batch b = lt_training_slice(t, &d->rows.batch, 0, rows);
        err = lt_training_eval(t, &b, &r);
        add_result(record, &r);
    }
    lt_training_tell_once(t, record);
    return lt_ranks_combine(&t->ranks, record, err);
}
