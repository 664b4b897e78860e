/* pass_train.c: training batches that are staged, queued and collected (pass.h), each as a recorded
 * graph from its second time on.
 *
 * No graph contains a transfer between ranks, because each has its deadline and its record, and
 * other processes take part in it. So a verb inside the blocks ends a piece, and so does a
 * callback, which may queue transfers:
 *
 *     begin ─ ops ─ end, launch ─ callback ─ begin ─ ops ─ end, launch ─ verb ─ ...
 *
 * Recording runs the pass, too, because each piece is launched before what follows it. From then
 * on the pass is a list of graphs, callbacks and verbs. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "model/pass/pass_impl.h"

lt_err lt_pass_stage(lt_pass *p, const lt_pass_batch *b) {
    LT_ASSERT(p->options.train);
    LT_TRY(lt_pass_check_batch(p, b));
    return lt_stage_put(&p->stage, b);
}

int lt_pass_staged(const lt_pass *p) {
    return (int)(p->stage.n_put - p->stage.n_taken);
}

bool lt_pass_full(const lt_pass *p) {
    return lt_stage_full(&p->stage);
}

/* Whether the pass has verbs outside lt_exec_run_verb: the counts of experts' rows differ from
 * batch to batch, and the messages of a ring are in transfer beside its kernels. */
static bool has_other_verbs(const lt_pass *p) {
    const lt_context_options *c = &p->options.context;
    const bool ring = c->group != NULL && lt_group_size(c->group) > 1 && c->kind == LT_CONTEXT_RING;
    return lt_pass_n_ep(&p->options) > 1 || ring;
}

/* A recorded pass either stores all gradients or adds to all. It cannot contain masks of dropout,
 * which differ from batch to batch. */
static bool can_record(const lt_pass *p) {
    bool same = true;
    for (int i = 0; i <= p->exec.spec->n_layers; i++) {
        same = same && p->stored[i] == !p->zero_due;
    }
    return same && p->exec.backend->graph_begin != NULL && !p->options.eager && !p->lora.drop.on &&
           p->exec.watch == NULL && p->timeline == NULL && !has_other_verbs(p);
}

/* The entry of this shape; *is_new: it is seen for the first time. NULL: there is no room for
 * another. */
static lt_pass_recorded *find_shape(lt_pass *p, const lt_pass_recorded *shape, bool *is_new) {
    *is_new = false;
    for (int i = 0; i < p->n_shapes; i++) {
        lt_pass_recorded *r = &p->graphs[i];
        if (r->batch == shape->batch && r->seq == shape->seq &&
            r->has_documents == shape->has_documents && r->has_weights == shape->has_weights &&
            r->fresh == shape->fresh && r->grad_scale == shape->grad_scale &&
            r->division == shape->division && r->head_rows == shape->head_rows) {
            return r;
        }
    }
    *is_new = true;
    if (p->n_shapes == LT_PASS_MAX_GRAPHS) {
        return NULL;
    }
    p->graphs[p->n_shapes] = *shape;
    return &p->graphs[p->n_shapes++];
}

void lt_pass_recorded_close(lt_pass *p, lt_pass_recorded *r) {
    for (int i = 0; i < r->n_pieces; i++) {
        p->exec.backend->graph_close(p->exec.device, r->pieces[i].graph);
    }
    free(r->pieces);
    r->pieces = NULL;
    r->n_pieces = r->room = 0;
}

/* Add a piece, whose graph the caller sets. */
static lt_err add_piece(lt_pass_recorded *shape, lt_pass_piece **out) {
    if (shape->n_pieces == shape->room) {
        const int room = 2 * shape->room + 8;
        lt_pass_piece *grown = realloc(shape->pieces, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "recording of %d pieces", room);
        }
        shape->pieces = grown;
        shape->room = room;
    }
    *out = &shape->pieces[shape->n_pieces];
    return LT_OK;
}

static lt_err run_piece(lt_pass *p, const lt_pass_piece *piece) {
    lt_exec *r = &p->exec;
    LT_TRY(r->backend->graph_launch(r->queue, piece->graph));
    LT_TRY(piece->verb.group != NULL ? lt_exec_run_verb_now(r, &piece->verb) : LT_OK);
    return piece->tell != NULL ? piece->tell(p->units->of, piece->unit, piece->what) : LT_OK;
}

/* End the piece that is being recorded. */
static lt_err end_piece(lt_pass *p, lt_pass_piece how) {
    const lt_exec *r = &p->exec;
    lt_pass_recorded *shape = p->recording;
    lt_pass_piece *piece = NULL;
    const lt_err err = add_piece(shape, &piece);
    LT_TRY(r->backend->graph_end(r->queue, &how.graph));
    if (err != LT_OK) {
        r->backend->graph_close(r->device, how.graph);
        return err;
    }
    *piece = how;
    shape->n_pieces++;
    p->n_graphs += how.graph != NULL;
    return run_piece(p, piece);
}

/* End a piece in this way, and begin the next one. */
static lt_err cut(lt_pass *p, lt_pass_piece how) {
    lt_pass_recorded *shape = p->recording;
    const lt_err err = end_piece(p, how);
    p->recording = NULL; /* No further piece begins. */
    LT_TRY(err);
    LT_TRY(p->exec.backend->graph_begin(p->exec.queue));
    p->recording = shape;
    return LT_OK;
}

static lt_err cut_at_verb(void *pass, const lt_exec_verb *v) {
    return cut(pass, (lt_pass_piece){.verb = *v});
}

static lt_err tell(lt_pass *p, lt_err (*call)(void *, int, unsigned), int unit, unsigned what) {
    return p->recording != NULL ? cut(p, (lt_pass_piece){.tell = call, .unit = unit, .what = what})
                                : call(p->units->of, unit, what);
}

lt_err lt_pass_enter(lt_pass *p, int unit, unsigned what) {
    return p->units != NULL && !p->mute && (what & p->units->enters) != 0
               ? tell(p, p->units->enter, unit, what)
               : LT_OK;
}

lt_err lt_pass_leave(lt_pass *p, int unit, unsigned what) {
    return p->units != NULL && !p->mute && (what & p->units->leaves) != 0
               ? tell(p, p->units->leave, unit, what)
               : LT_OK;
}

/* Run the pass and keep its pieces. */
static lt_err record(lt_pass *p, lt_pass_recorded *shape) {
    lt_exec *r = &p->exec;
    lt_graph *unfinished = NULL;
    lt_err err;
    LT_TRY(r->backend->graph_begin(r->queue));
    p->recording = shape;
    r->between_pieces = cut_at_verb;
    r->pass = p;
    err = lt_pass_compute(p, NULL, shape->grad_scale);
    r->between_pieces = NULL;
    if (err == LT_OK) {
        err = end_piece(p, (lt_pass_piece){.tell = NULL});
    } else if (p->recording != NULL) {
        (void)!r->backend->graph_end(r->queue, &unfinished);
        r->backend->graph_close(r->device, unfinished);
    }
    p->recording = NULL;
    if (err != LT_OK) {
        lt_pass_recorded_close(p, shape);
    }
    return err;
}

static lt_err replay(lt_pass *p, const lt_pass_recorded *shape) {
    for (int i = 0; i < shape->n_pieces; i++) {
        LT_TRY(run_piece(p, &shape->pieces[i]));
    }
    return LT_OK;
}

/* Set the state that lt_pass_compute would leave, after a graph has run. */
static void mark_stored(lt_pass *p) {
    p->zero_due = false;
    for (int i = 0; i <= p->exec.spec->n_layers; i++) {
        p->stored[i] = true;
    }
}

static uint64_t division_of(const lt_pass *p, const lt_stage_slot *slot) {
    const size_t n = (size_t)p->n_joined;
    return n > 0 ? XXH3_64bits(slot->rows_of, n * sizeof *slot->rows_of) : 0;
}

lt_err lt_pass_train_staged(lt_pass *p, float grad_scale) {
    const lt_stage_slot *slot = lt_stage_next(&p->stage);
    lt_exec *r = &p->exec;
    lt_pass_recorded *shape = NULL;
    bool is_new = true;

    LT_ASSERT(p->options.train && grad_scale != 0 && slot != NULL);
    lt_pass_shape_set(p, 0,
                      &(lt_pass_shape){.batch = slot->batch,
                                       .seq = slot->seq,
                                       .has_documents = slot->has_documents});
    lt_pass_divide(p, slot->rows_of, slot->seq);
    p->sets[0].has_weights = slot->has_weights;
    p->sets[0].head_rows = slot->head_rows;
    LT_TRY(lt_stage_take(&p->stage, r, &p->sets[0].batch));
    LT_TRY(lt_pass_refresh(p));
    p->lora.drop = (lt_lora_dropping){p->options.lora.dropout > 0.0, slot->first_row,
                                      slot->row_step};
    if (can_record(p)) {
        shape = find_shape(p,
                           &(lt_pass_recorded){.batch = slot->batch,
                                               .seq = slot->seq,
                                               .has_documents = slot->has_documents,
                                               .has_weights = slot->has_weights,
                                               .fresh = p->zero_due,
                                               .grad_scale = grad_scale,
                                               .division = division_of(p, slot),
                                               .head_rows = slot->head_rows},
                           &is_new);
    }
    if (shape == NULL || is_new) {
        LT_TRY(lt_pass_compute(
            p, r->backend->graph_begin != NULL ? NULL : slot->ids[LT_STAGE_LABELS], grad_scale));
    } else {
        LT_TRY(shape->n_pieces == 0 ? record(p, shape) : replay(p, shape));
        mark_stored(p);
    }
    p->lora.drop.on = false;
    return lt_stage_fetch(&p->stage, r, &p->sets[0].batch);
}

lt_err lt_pass_collect(lt_pass *p, lt_pass_result *result) {
    return lt_stage_collect(&p->stage, &p->exec, result);
}

lt_err lt_pass_collect_each(lt_pass *p, lt_pass_result *sums) {
    LT_ASSERT(p->n_joined > 0);
    return lt_stage_collect(&p->stage, &p->exec, sums);
}

lt_err lt_pass_train(lt_pass *p, const lt_pass_batch *b, float grad_scale, lt_pass_result *result) {
    *result = (lt_pass_result){0};
    LT_ASSERT(lt_pass_staged(p) == 0);
    LT_TRY(lt_pass_stage(p, b));
    LT_TRY(lt_pass_train_staged(p, grad_scale));
    return lt_pass_collect(p, result);
}
