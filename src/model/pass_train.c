/* pass_train.c: training batches that are staged, queued and collected (pass.h), each as a recorded
 * graph from its second time on. */
#include <string.h>

#include "model/pass_impl.h"

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

/* A recorded pass either stores all gradients or adds to all. */
static bool can_record(const lt_pass *p) {
    bool same = true;
    for (int i = 0; i <= p->exec.spec->n_layers; i++) {
        same = same && p->stored[i] == !p->zero_due;
    }
    return same && p->exec.backend->graph_begin != NULL && !p->options.eager &&
           p->exec.watch == NULL && p->units == NULL;
}

/* The entry of this shape; *is_new: seen for the first time. NULL: no room for more. */
static lt_pass_recorded *find_shape(lt_pass *p, const lt_pass_recorded *shape, bool *is_new) {
    *is_new = false;
    for (int i = 0; i < p->n_shapes; i++) {
        lt_pass_recorded *r = &p->graphs[i];
        if (r->batch == shape->batch && r->seq == shape->seq &&
            r->has_documents == shape->has_documents && r->has_weights == shape->has_weights &&
            r->fresh == shape->fresh && r->grad_scale == shape->grad_scale) {
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

static lt_err record(lt_pass *p, lt_pass_recorded *shape) {
    const lt_exec *r = &p->exec;
    lt_err err, ended;
    LT_TRY(r->backend->graph_begin(r->queue));
    err = lt_pass_compute(p, NULL, shape->grad_scale);
    ended = r->backend->graph_end(r->queue, &shape->graph);
    p->n_graphs += err == LT_OK && ended == LT_OK;
    return err != LT_OK ? err : ended;
}

/* What lt_pass_compute leaves, when a graph has done it. */
static void mark_stored(lt_pass *p) {
    p->zero_due = false;
    for (int i = 0; i <= p->exec.spec->n_layers; i++) {
        p->stored[i] = true;
    }
}

lt_err lt_pass_train_staged(lt_pass *p, float grad_scale) {
    const lt_stage_slot *slot = lt_stage_next(&p->stage);
    lt_exec *r = &p->exec;
    lt_pass_recorded *shape = NULL;
    bool is_new = true;

    LT_ASSERT(p->options.train && grad_scale != 0 && slot != NULL);
    lt_pass_shape_set(p, 0, slot->batch, slot->seq, slot->has_documents);
    p->sets[0].has_weights = slot->has_weights;
    LT_TRY(lt_stage_take(&p->stage, r, &p->sets[0].batch));
    LT_TRY(lt_fp8_refresh(r, &p->fp8));
    if (can_record(p)) {
        shape = find_shape(p,
                           &(lt_pass_recorded){.batch = slot->batch,
                                               .seq = slot->seq,
                                               .has_documents = slot->has_documents,
                                               .has_weights = slot->has_weights,
                                               .fresh = p->zero_due,
                                               .grad_scale = grad_scale},
                           &is_new);
    }
    if (shape == NULL || is_new) {
        LT_TRY(lt_pass_compute(
            p, r->backend->graph_begin != NULL ? NULL : slot->ids[LT_STAGE_LABELS], grad_scale));
    } else {
        if (shape->graph == NULL) {
            LT_TRY(record(p, shape));
        }
        LT_TRY(r->backend->graph_launch(r->queue, shape->graph));
        mark_stored(p);
    }
    return lt_stage_fetch(&p->stage, r, &p->sets[0].batch);
}

lt_err lt_pass_collect(lt_pass *p, lt_pass_result *result) {
    return lt_stage_collect(&p->stage, &p->exec, result);
}

lt_err lt_pass_train(lt_pass *p, const lt_pass_batch *b, float grad_scale, lt_pass_result *result) {
    *result = (lt_pass_result){0};
    LT_ASSERT(lt_pass_staged(p) == 0);
    LT_TRY(lt_pass_stage(p, b));
    LT_TRY(lt_pass_train_staged(p, grad_scale));
    return lt_pass_collect(p, result);
}
