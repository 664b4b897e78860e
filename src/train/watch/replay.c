/* replay.c: see replay.h. In the exchange of rows each rank sends to one rank and receives from
 * one. The passes are run in parts (pass.h), so that rows of the next step that are already staged
 * stay where they are. */
#include "train/watch/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "train/run.h"

/* ---- Verdicts -------------------------------------------------------------------------------- */

/* The sign of the rank `ahead` slots behind this one in its own set. */
static const lt_replay_sign *peer_of(const lt_replay_sign *signs, int n, int i, int64_t ahead) {
    int64_t slots = 0;
    for (int k = 0; k < n; k++) {
        slots += signs[k].set == signs[i].set;
    }
    for (int k = 0; k < n; k++) {
        if (signs[k].set == signs[i].set && signs[k].slot == (signs[i].slot + ahead) % slots) {
            return &signs[k];
        }
    }
    LT_ASSERT(false);
    return NULL;
}

static bool rank_differs(const lt_replay_sign *signs, int n, int i) {
    return signs[i].own != peer_of(signs, n, i, 1)->other;
}

bool lt_replay_differs(const lt_replay_sign *signs, int n) {
    for (int i = 0; i < n; i++) {
        if (rank_differs(signs, n, i)) {
            return true;
        }
    }
    return false;
}

/* All ranks of a slot get a verdict, unless they already have a worse one. */
static void judge_slot(lt_replica_verdict *verdicts, const lt_replay_sign *signs, int n,
                       int64_t slot, lt_replica_verdict verdict) {
    for (int i = 0; i < n; i++) {
        if (signs[i].slot == slot && verdicts[i] != LT_REPLICA_WRONG) {
            verdicts[i] = verdict;
        }
    }
}

void lt_replay_judge(lt_replica_verdict *verdicts, const lt_replay_sign *signs, int n) {
    for (int i = 0; i < n; i++) {
        verdicts[i] = LT_REPLICA_RIGHT;
    }
    for (int i = 0; i < n; i++) {
        const lt_replay_sign *next = peer_of(signs, n, i, 1), *last = peer_of(signs, n, i, 2);
        if (signs[i].own == next->other) {
            continue;
        }
        if (last->third == next->other) {
            judge_slot(verdicts, signs, n, signs[i].slot, LT_REPLICA_WRONG);
        } else if (last->third == signs[i].own && last != &signs[i]) {
            judge_slot(verdicts, signs, n, next->slot, LT_REPLICA_WRONG);
        } else {
            judge_slot(verdicts, signs, n, signs[i].slot, LT_REPLICA_UNKNOWN);
            judge_slot(verdicts, signs, n, next->slot, LT_REPLICA_UNKNOWN);
        }
    }
}

/* ---- Open and close -------------------------------------------------------------------------- */

/* The mesh of as many ranks without pp and ep: its pipeline stages become replicas. */
static const char *name_nearest(const lt_mesh_shape *s, char out[96]) {
    int n = snprintf(out, 96, "mesh: dp=%d", s->dp * s->pp);
    n += s->cp > 1 ? snprintf(out + n, 96 - (size_t)n, ",cp=%d", s->cp) : 0;
    n += s->tp > 1 ? snprintf(out + n, 96 - (size_t)n, ",tp=%d", s->tp) : 0;
    (void)snprintf(out + n, 96 - (size_t)n, " works on these ranks");
    return out;
}

static lt_err check(const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_mesh_shape *s = &t->world->shape;
    char nearest[96];
    const struct {
        bool refused;
        const char *why, *works;
    } rows[] = {{s->pp > 1, "in a pipeline (pp)", name_nearest(s, nearest)},
                {s->ep > 1, "with divided experts (ep)", nearest},
                {t->shards.level > 1, "with mesh.zero 2 and 3, which keep no rank's own gradients",
                 "mesh.zero: 1 works"},
                {t->invariant.n_groups > 0, "with deterministic: mesh-invariant",
                 "deterministic: run works"},
                {r->sites > 1, "with several sites", "diloco.sites: 1 works"},
                {t->objective != NULL, "with an objective other than the mean loss",
                 "guard.replicas compares what the ranks hold"},
                {t->together != NULL, "with several adapters at once",
                 "guard.replicas compares what the ranks hold"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].refused) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "guard.replay = %lld: a step's rows are not computed again %s; %s",
                    (long long)r->guard_replay, rows[i].why, rows[i].works);
        }
    }
    return LT_OK;
}

lt_err lt_replay_meet(const lt_training *t) {
    double least, most;
    if (t->replay.every == 0) {
        return LT_OK;
    }
    LT_TRY(lt_world_range(t->world, lt_thread_count(), &least, &most));
    if (least != most) {
        LT_FAIL(LT_ERR_ARG,
                "guard.replay needs ranks that are alike, and some compute with %.0f threads, "
                "others with %.0f: set `threads`",
                least, most);
    }
    return LT_OK;
}

/* Pieces of gradients, with one span per unit. */
static lt_err open_pieces(lt_training *t, lt_pieces *p, const lt_param_table *table,
                          const lt_param_buffer *b) {
    lt_piece_span *spans = calloc((size_t)table->n_units, sizeof *spans);
    lt_err err = LT_OK;
    if (spans == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "guard.replay: %d units", table->n_units);
    }
    for (int u = 0; u < table->n_units; u++) {
        spans[u] = (lt_piece_span){b->base[u],
                                   (size_t)table->units[u].n_elements * lt_dtype_bytes(b->dtype)};
    }
    LT_TRY_DONE(lt_pieces_open(p, t->device, lt_training_queue(t), spans, table->n_units));
done:
    free(spans);
    return err;
}

lt_err lt_replay_open(lt_training *t) {
    lt_replay *x = &t->replay;
    const lt_recipe *r = &t->recipe;
    *x = (lt_replay){0};
    if (r->guard_replay == 0) {
        return LT_OK;
    }
    if (!lt_training_has_ranks(t) || t->world->shape.dp == 1) {
        lt_log_warn("guard.replay has no effect: there is one replica of the model");
        return LT_OK;
    }
    LT_TRY(check(t));
    const size_t ranks = (size_t)lt_group_size(t->world->mesh.world),
                 dp = (size_t)t->world->shape.dp;
    x->dp = t->world->mesh.dp;
    x->set = lt_group_ranks(x->dp)[0] - t->world->first;
    x->rows = calloc(1, sizeof *x->rows);
    x->signs = calloc(ranks, sizeof *x->signs);
    x->verdicts = calloc(ranks, sizeof *x->verdicts);
    x->send = calloc(dp, sizeof *x->send);
    x->recv = calloc(dp, sizeof *x->recv);
    if (x->rows == NULL || x->signs == NULL || x->verdicts == NULL || x->send == NULL ||
        x->recv == NULL) {
        LT_FAIL(LT_ERR_OOM, "guard.replay");
    }
    LT_TRY(open_pieces(t, &x->gradients, &t->zero.model->table, t->zero.whole));
    LT_TRY(open_pieces(t, &x->sum, t->optimiser.share.table, lt_training_gradients(t)));
    LT_TRY(lt_step_rows_open(x->rows, lt_recipe_largest_batch(r), r->seq,
                             lt_training_pass_options(t).weights));
    x->every = r->guard_replay;
    return LT_OK;
}

void lt_replay_close(lt_training *t) {
    lt_replay *x = &t->replay;
    if (x->rows != NULL) {
        lt_arena_close(&x->rows->arena);
    }
    free(x->rows);
    free(x->signs);
    free(x->verdicts);
    free(x->send);
    free(x->recv);
    lt_pieces_close(&x->gradients);
    lt_pieces_close(&x->sum);
    *x = (lt_replay){0};
}

bool lt_replay_is_due(const lt_training *t, int64_t step) {
    return t->replay.every > 0 && step % t->replay.every == 0;
}

/* ---- Computing again ------------------------------------------------------------------------- */

/* Fetch the rows of the slot `before` places before this one into x->rows. */
static lt_err fetch(lt_training *t, const lt_draw *now, int before) {
    lt_replay *x = &t->replay;
    const lt_row_batch *own = &now->rows.batch, *rows = &x->rows->batch;
    const int n = lt_group_size(x->dp), slot = lt_group_rank(x->dp);
    const int64_t count = now->n_rows * own->ids.seq / lt_training_cp(t);
    const struct {
        void *to, *from;
    } fields[] = {{rows->ids.tokens, own->ids.tokens},
                  {rows->ids.labels, own->ids.labels},
                  {rows->ids.doc_start, own->ids.doc_start},
                  {rows->ids.positions, own->ids.positions},
                  /* F32 values, of the same size. */
                  {t->source.weights ? rows->weights : NULL, own->weights}};
    memset(x->send, 0, (size_t)n * sizeof *x->send);
    memset(x->recv, 0, (size_t)n * sizeof *x->recv);
    x->send[(slot + before) % n] = count;
    x->recv[(slot + n - before % n) % n] = count;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        LT_TRY(fields[i].to != NULL ? lt_all_to_all(x->dp, fields[i].to, x->recv, fields[i].from,
                                                    x->send, LT_I32, NULL)
                                    : LT_OK);
    }
    return LT_OK;
}

static lt_err hash_of(const lt_training *t, lt_pieces *p, int64_t *out) {
    LT_TRY(lt_pieces_queue(p, 0, p->n));
    LT_TRY(t->device->backend->sync(p->queue));
    *out = lt_pieces_sum(p);
    return LT_OK;
}

/* Forward and backward passes of n rows; the gradients stay on this rank, without a sum. */
static lt_err compute_alone(lt_training *t, const lt_row_batch *rows, int64_t n, double *loss) {
    const int layers = (int)t->model->spec.n_layers;
    const float scale = (float)lt_training_gradient_scale(t);
    lt_pass_result sum = {0};
    lt_zero_begin_step(&t->zero, INT64_MAX);
    LT_TRY(lt_pass_zero_gradients(t->pass));
    for (int64_t first = 0; first < n; first += t->micro) {
        const int64_t count = n - first < t->micro ? n - first : t->micro;
        const lt_pass_batch b = lt_training_slice(t, rows, first, count);
        LT_TRY(lt_pass_load(t->pass, 0, &b));
        LT_TRY(lt_pass_forward(t->pass, 0, 0, layers));
        LT_TRY(lt_pass_loss(t->pass, 0, scale));
        LT_TRY(lt_pass_backward(t->pass, 0, 0, layers, scale));
        LT_TRY(lt_pass_result_of(t->pass, 0, &sum, NULL));
    }
    *loss = sum.loss_sum;
    return LT_OK;
}

static lt_err replay(lt_training *t, const lt_draw *now, int before, int64_t *hash) {
    double loss;
    LT_TRY(fetch(t, now, before));
    LT_TRY(compute_alone(t, &t->replay.rows->batch, now->n_rows, &loss));
    return hash_of(t, &t->replay.gradients, hash);
}

static lt_err gather(lt_training *t) {
    lt_replay *x = &t->replay;
    return lt_all_gather(t->world->mesh.world, x->signs, &x->sign, sizeof x->sign / sizeof(int64_t),
                         LT_I64, NULL);
}

/* ---- What follows from a verdict ----------------------------------------------------------- */

static lt_err put(lt_training *t, int64_t step, const char *verdict) {
    const lt_replay *x = &t->replay;
    const int n = lt_group_size(t->world->mesh.world);
    return lt_metrics_put(&t->metrics,
                          json_pack("{s:s, s:I, s:s, s:o, s:o}", "kind", "replay", "step",
                                    (json_int_t)step, "verdict", verdict, "wrong",
                                    lt_replicas_json(x->verdicts, n, LT_REPLICA_WRONG), "unknown",
                                    lt_replicas_json(x->verdicts, n, LT_REPLICA_UNKNOWN)));
}

/* A rank was wrong, or it is unknown which one was: the run ends. */
static lt_err end_run(lt_training *t, int64_t step) {
    const lt_replay *x = &t->replay;
    const int n = lt_group_size(t->world->mesh.world);
    const lt_replica_verdict own = x->verdicts[t->ranks.rank];
    char wrong[LT_REPLICAS_LIST], unknown[LT_REPLICAS_LIST];
    (void)lt_replicas_list(wrong, x->verdicts, n, LT_REPLICA_WRONG);
    (void)lt_replicas_list(unknown, x->verdicts, n, LT_REPLICA_UNKNOWN);
    if (own == LT_REPLICA_WRONG) {
        lt_board_suspect(lt_training_board(t), step);
    }
    /* The first rank that fails ends the world; before that, all must have received the results. */
    if (lt_barrier(t->world->mesh.world) != LT_OK) {
        lt_log_debug("%s", lt_error_message());
    }
    LT_TRY(lt_ranks_lead(&t->ranks) ? put(t, step, "hardware") : LT_OK);
    if (own == LT_REPLICA_WRONG) {
        LT_FAIL(LT_ERR_CORRUPT,
                "step %lld: rank %d has computed other gradients than other ranks from the same "
                "rows: its memory or arithmetic has failed without an error; no update was made of "
                "them",
                (long long)step, t->ranks.rank);
    }
    if (own == LT_REPLICA_UNKNOWN) {
        LT_FAIL(LT_ERR_CORRUPT,
                "step %lld: ranks %s compute different gradients from the same rows, and it cannot "
                "be told which is right; no update was made of them",
                (long long)step, unknown);
    }
    LT_FAIL(LT_ERR_REMOTE, "step %lld: rank %s computes other gradients from the same rows",
            (long long)step, wrong[0] != '\0' ? wrong : unknown);
}

/* All ranks know own and other; where these differ, a third computation decides. */
static lt_err judge(lt_training *t, const lt_draw *now, int64_t step, bool *right) {
    lt_replay *x = &t->replay;
    const int n = lt_group_size(t->world->mesh.world);
    LT_TRY(gather(t));
    *right = !lt_replay_differs(x->signs, n);
    if (!*right) {
        LT_TRY(replay(t, now, 2, &x->sign.third));
        LT_TRY(gather(t));
        lt_replay_judge(x->verdicts, x->signs, n);
        return end_run(t, step);
    }
    /* At first every rank counts as right. */
    memset(x->verdicts, 0, (size_t)n * sizeof *x->verdicts);
    return LT_OK;
}

/* The update was skipped, and all ranks compute the same gradients now. Does the step itself
 * differ? */
static lt_err explain(lt_training *t, int64_t step, const char *why) {
    lt_replay *x = &t->replay;
    const int n = lt_group_size(t->world->mesh.world);
    bool changed = false, known = false;
    for (int i = 0; i < n; i++) {
        x->verdicts[i] = x->signs[i].loss_changed ? LT_REPLICA_WRONG : LT_REPLICA_RIGHT;
        changed = changed || x->signs[i].sum_changed;
        known = known || x->signs[i].loss_changed;
    }
    if (known) {
        return end_run(t, step);
    }
    if (!lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    if (changed) {
        lt_log_warn("step %lld (%s): computed again, the gradients are others now: arithmetic or "
                    "memory of some rank has failed once, and it cannot be told which; the update "
                    "was not made",
                    (long long)step, why);
    } else {
        lt_log_warn("step %lld (%s): the same rows give the same gradients again, on the same rank "
                    "and on another one: the reason is the data or the recipe, not a machine",
                    (long long)step, why);
    }
    return put(t, step, changed ? "once" : "data");
}

/* After a skipped update. */
static lt_err replay_skipped(lt_training *t, const lt_draw *now, const char *why) {
    lt_replay *x = &t->replay;
    const int64_t step = now->plan.step;
    int64_t before, after;
    double loss;
    bool right;
    LT_TRY(hash_of(t, &x->sum, &before));
    LT_TRY(compute_alone(t, &now->rows.batch, now->n_rows, &loss));
    LT_TRY(hash_of(t, &x->gradients, &x->sign.own));
    LT_TRY(lt_zero_sum_step(&t->zero));
    LT_TRY(lt_zero_end_step(&t->zero));
    LT_TRY(hash_of(t, &x->sum, &after));
    x->sign.sum_changed = after != before;
    x->sign.loss_changed = memcmp(&loss, &x->loss, sizeof loss) != 0;
    LT_TRY(replay(t, now, 1, &x->sign.other));
    LT_TRY(judge(t, now, step, &right));
    return right ? explain(t, step, why) : LT_OK;
}

lt_err lt_replay_before(lt_training *t, const lt_draw *now) {
    lt_replay *x = &t->replay;
    const double start_s = lt_clock_s();
    x->sign = (lt_replay_sign){.set = x->set};
    if (x->every == 0) {
        return LT_OK;
    }
    x->sign.slot = lt_group_rank(x->dp);
    if (lt_replay_is_due(t, now->plan.step)) {
        LT_TRY(replay(t, now, 1, &x->sign.other));
        x->n_replayed++;
        x->spent_s += lt_clock_s() - start_s;
    }
    return LT_OK;
}

lt_err lt_replay_own(lt_training *t) {
    LT_TRY(hash_of(t, &t->replay.gradients, &t->replay.sign.own));
    return lt_zero_sum_step(&t->zero);
}

lt_err lt_replay_after(lt_training *t, const lt_draw *now, const lt_step_decision *d) {
    bool right;
    if (t->replay.every == 0) {
        return LT_OK;
    }
    LT_TRY(lt_replay_is_due(t, now->plan.step) ? judge(t, now, now->plan.step, &right) : LT_OK);
    return d->apply ? LT_OK : replay_skipped(t, now, d->why);
}

lt_err lt_replay_tell(lt_training *t) {
    const lt_replay *x = &t->replay;
    const double run_s = lt_clock_s() - t->start_s;
    if (x->every == 0 || !lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    lt_log_info("the rows of %lld steps were computed on another rank, too, in %.3f s: %.2f %% of "
                "the run",
                (long long)x->n_replayed, x->spent_s,
                run_s > 0.0 ? 100.0 * x->spent_s / run_s : 0.0);
    return LT_OK;
}
