/* pipeline.c: see pipeline.h. All passes of a rank compute on one queue, which waits for messages;
 * its work runs in order, so a buffer is written only after everything before has read it. The
 * host queues at most AHEAD operations ahead of the device, so that a transfer is not called so
 * early that its deadline passes while it waits for its data. On a device whose memory is the
 * host's, work runs at once. */
#include "parallel/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/pass/acts.h"
#include "tensor/backend.h"
#include "tensor/ops.h"
#include "tensor/timeline.h"

#define MAX_WARM 64
#define AHEAD    2

/* A set of activations of a chunk, and the sends from it that may be under way; 0: none. */
typedef struct {
    lt_comm_work sent[2]; /* Forward, backward. */
} set_state;

typedef struct {
    lt_pass *pass;
    int first, end, n_sets;
    set_state *sets;   /* (n_sets) */
    int *set_of;       /* (largest number of micro-batches): the set of a micro-batch. */
    double seconds[3]; /* Total time of its F, B and W, and their numbers. */
    int64_t n_ops[3];
} chunk_state;

/* A queued operation. */
typedef struct {
    lt_moment *began, *ended; /* NULL: work runs at once, */
    double start_s;           /* and this is the time when it began. */
    lt_open_span span;
    const lt_schedule_op *op;
    lt_pass_fetched *fetched; /* Its results, if it has any. */
} queued_op;

struct lt_pipeline {
    lt_model *model;
    lt_stages stages;
    lt_group *group;
    int rank;
    chunk_state *chunks; /* (stages.chunks) */
    lt_schedule *tables; /* (n_tables): one for each number of micro-batches. */
    int n_tables;
    lt_arena arena;       /* Backend memory for the buffers of messages. */
    size_t message_bytes; /* Of the longest message. */
    unsigned char *messages;
    lt_comm_work *receives;  /* The receives of the current row. */
    queued_op queued[AHEAD]; /* The last operations, in a ring. */
    int64_t n_queued, n_done;
    lt_param_buffer gradients;
    lt_param_buffer *joined; /* (n_joins): gradients of adapters, of which n_joined have joined. */
    int n_joins, n_joined;
    lt_pipeline_times times;
    int64_t warm[MAX_WARM]; /* Rows of micro-batches whose kernels are loaded. */
    int n_warm;
    lt_timeline *timeline; /* NULL: no spans. */
    lt_pipeline_begins begins;
    lt_pipeline_head head;
};

/* The state of a walk along a row. */
typedef struct {
    lt_pipeline *p;
    const lt_schedule *table;
    const lt_schedule_row *row;
    const lt_pass_batch *batches;
    float grad_scale;
    lt_pass_result *sum;
    int64_t next_receive;
} walk;

static bool is_last(const lt_pipeline *p, const lt_schedule_shape *s, int chunk) {
    return lt_schedule_stage(s, p->rank, chunk) == s->ranks * s->chunks - 1;
}

/* ---- Opening ---- */

static lt_schedule_shape shape_of(const lt_stages *s, int64_t micros) {
    return (lt_schedule_shape){s->schedule, s->ranks, s->chunks, micros};
}

/* The most sets per chunk, receives per step and buffers that the tables need on a rank. */
typedef struct {
    int n_sets[LT_MAX_LAYERS];
    int n_buffers;
    int64_t n_receives, micros;
} need;

static void add_need(need *n, const lt_schedule *t, int rank) {
    const lt_schedule_row *row = &t->rows[rank];
    for (int c = 0; c < t->shape.chunks; c++) {
        n->n_sets[c] = row->n_sets[c] > n->n_sets[c] ? row->n_sets[c] : n->n_sets[c];
    }
    n->n_buffers = row->n_buffers > n->n_buffers ? row->n_buffers : n->n_buffers;
    n->n_receives = row->n_receives > n->n_receives ? row->n_receives : n->n_receives;
    n->micros = t->shape.micros > n->micros ? t->shape.micros : n->micros;
}

static lt_pass_options chunk_options(const lt_pass_options *o, const lt_stages *s, int rank,
                                     int chunk, const need *n) {
    lt_pass_options out = *o;
    lt_stages_layers(s, rank, chunk, &out.first_layer, &out.end_layer);
    out.split_backward = o->train && lt_schedule_splits_backward(s->schedule);
    out.n_sets = n->n_sets[chunk];
    return out;
}

static size_t message_bytes(const lt_model_spec *spec, lt_dtype dtype, const lt_pass_options *o) {
    const size_t bytes = (size_t)(o->batch * o->seq * spec->width) * lt_dtype_bytes(dtype);
    return (bytes + LT_ARENA_ALIGN - 1) / LT_ARENA_ALIGN * LT_ARENA_ALIGN;
}

/* At least one, because evaluation also receives into a buffer. */
static size_t buffers_bytes(const need *n, size_t each) {
    return (size_t)(n->n_buffers > 0 ? n->n_buffers : 1) * each;
}

lt_err lt_pipeline_measure(lt_pass_memory *out, const lt_model_spec *spec, lt_dtype dtype,
                           const lt_pass_options *options, const lt_stages *stages, int rank,
                           const int64_t *micros, int n_micros) {
    need n = {.micros = 0};
    lt_pass_memory sum = {0};
    for (int i = 0; i < n_micros; i++) {
        const lt_schedule_shape shape = shape_of(stages, micros[i]);
        lt_schedule t;
        LT_TRY(lt_schedule_open(&t, &shape));
        add_need(&n, &t, rank);
        lt_schedule_close(&t);
    }
    for (int c = 0; c < stages->chunks; c++) {
        const lt_pass_options o = chunk_options(options, stages, rank, c, &n);
        lt_pass_memory m;
        LT_TRY(lt_pass_measure(&m, spec, dtype, &o));
        sum.activations_bytes += m.activations_bytes;
        sum.gradients_bytes += m.gradients_bytes;
        sum.logits_bytes += m.logits_bytes;
        sum.scratch_bytes += m.scratch_bytes;
        sum.fp8_bytes += m.fp8_bytes;
        sum.host_bytes += m.host_bytes;
    }
    sum.scratch_bytes += buffers_bytes(&n, message_bytes(spec, dtype, options));
    *out = sum;
    return LT_OK;
}

static lt_err open_tables(lt_pipeline *p, need *n, const int64_t *micros, int n_micros) {
    p->tables = calloc((size_t)n_micros, sizeof *p->tables);
    if (p->tables == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d tables of a pipeline", n_micros);
    }
    for (int i = 0; i < n_micros; i++) {
        const lt_schedule_shape shape = shape_of(&p->stages, micros[i]);
        LT_TRY(lt_schedule_open(&p->tables[i], &shape));
        p->n_tables++;
        add_need(n, &p->tables[i], p->rank);
    }
    return LT_OK;
}

static lt_err open_chunks(lt_pipeline *p, const lt_pass_options *options, const need *n) {
    const int v = p->stages.chunks;
    p->chunks = calloc((size_t)v, sizeof *p->chunks);
    p->receives = calloc((size_t)n->n_receives + 1, sizeof *p->receives);
    if (p->chunks == NULL || p->receives == NULL) {
        LT_FAIL(LT_ERR_OOM, "a pipeline of %d chunks", v);
    }
    for (int c = 0; c < v; c++) {
        lt_pass_options o = chunk_options(options, &p->stages, p->rank, c, n);
        chunk_state *chunk = &p->chunks[c];
        o.queue = c > 0 ? lt_pass_queue(p->chunks[0].pass) : o.queue;
        chunk->first = o.first_layer;
        chunk->end = o.end_layer;
        chunk->n_sets = o.n_sets;
        chunk->sets = calloc((size_t)o.n_sets, sizeof *chunk->sets);
        chunk->set_of = calloc((size_t)n->micros, sizeof *chunk->set_of);
        if (chunk->sets == NULL || chunk->set_of == NULL) {
            LT_FAIL(LT_ERR_OOM, "a pipeline of %d sets", o.n_sets);
        }
        LT_TRY(lt_pass_open(&chunk->pass, p->model, &o));
    }
    return LT_OK;
}

static lt_err open_messages(lt_pipeline *p, const lt_pass_options *o, const need *n) {
    lt_arena a = {0};
    size_t bytes;
    p->message_bytes = message_bytes(&p->model->spec, p->model->options.dtype, o);
    bytes = buffers_bytes(n, p->message_bytes);
    (void)lt_arena_take(&a, bytes, LT_ARENA_ALIGN);
    LT_TRY(lt_arena_place(&a, p->model->device, "messages of a pipeline"));
    p->arena = a;
    p->messages = lt_arena_take(&p->arena, bytes, LT_ARENA_ALIGN);
    return LT_OK;
}

/* Each unit's gradients are in the pass that holds the unit; if this rank has both stages, those of
 * a tied embedding are in the pass of the first one. */
static void merge(lt_param_buffer *into, const lt_param_buffer *of_chunk, int n_units) {
    for (int u = 0; u < n_units; u++) {
        into->base[u] = of_chunk->base[u] != NULL ? of_chunk->base[u] : into->base[u];
    }
}

static lt_err merge_gradients(lt_pipeline *p) {
    LT_TRY(lt_param_buffer_open(&p->gradients, &p->model->table, LT_F32));
    for (int c = p->stages.chunks - 1; c >= 0; c--) {
        merge(&p->gradients, lt_pass_gradients(p->chunks[c].pass), p->model->table.n_units);
    }
    return LT_OK;
}

lt_err lt_pipeline_join(lt_pipeline *p, lt_lora *l, int64_t max_rows) {
    const int which = p->n_joined++;
    LT_ASSERT(which < p->n_joins);
    LT_TRY(lt_param_buffer_open(&p->joined[which], &l->params->table, LT_F32));
    for (int c = p->stages.chunks - 1; c >= 0; c--) {
        lt_pass *pass = p->chunks[c].pass;
        LT_TRY(lt_pass_join(pass, l, max_rows));
        merge(&p->joined[which], lt_pass_gradients_of(pass, which), l->params->table.n_units);
    }
    return LT_OK;
}

size_t lt_pipeline_join_bytes(const lt_pipeline *p, int which) {
    size_t bytes = 0;
    for (int c = 0; c < p->stages.chunks; c++) {
        bytes += lt_pass_join_bytes(p->chunks[c].pass, which);
    }
    return bytes;
}

/* Adapters that join bring their own gradients. */
static lt_err open_gradients(lt_pipeline *p, const lt_pass_options *o) {
    p->n_joins = o->joins;
    p->joined = calloc((size_t)o->joins + 1, sizeof *p->joined);
    if (p->joined == NULL) {
        LT_FAIL(LT_ERR_OOM, "gradients of %d adapters", o->joins);
    }
    return o->train && o->joins == 0 ? merge_gradients(p) : LT_OK;
}

static lt_err open_queued(lt_pipeline *p) {
    const lt_backend *b = p->model->backend;
    for (int i = 0; b->moment_open != NULL && i < AHEAD; i++) {
        LT_TRY(b->moment_open(p->model->device, &p->queued[i].began, true));
        LT_TRY(b->moment_open(p->model->device, &p->queued[i].ended, true));
    }
    return LT_OK;
}

lt_err lt_pipeline_open(lt_pipeline **out, lt_model *m, const lt_pass_options *options,
                        const lt_stages *stages, lt_group *group, const int64_t *micros,
                        int n_micros) {
    lt_err err = LT_OK;
    need n = {.micros = 0};
    lt_pipeline *p = calloc(1, sizeof *p);

    LT_ASSERT(lt_group_size(group) == stages->ranks && n_micros > 0);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "pipeline");
    }
    p->model = m;
    p->stages = *stages;
    p->group = group;
    p->rank = lt_group_rank(group);
    LT_TRY_DONE(open_tables(p, &n, micros, n_micros));
    LT_TRY_DONE(open_chunks(p, options, &n));
    LT_TRY_DONE(open_messages(p, options, &n));
    LT_TRY_DONE(open_queued(p));
    LT_TRY_DONE(open_gradients(p, options));
    *out = p;
    p = NULL;
done:
    lt_pipeline_close(p);
    return err;
}

void lt_pipeline_close(lt_pipeline *p) {
    if (p == NULL) {
        return;
    }
    /* The pass that owns the queue is closed last. */
    for (int c = p->stages.chunks - 1; p->chunks != NULL && c >= 0; c--) {
        lt_pass_close(p->chunks[c].pass);
        free(p->chunks[c].sets);
        free(p->chunks[c].set_of);
    }
    for (int i = 0; p->model->backend->moment_open != NULL && i < AHEAD; i++) {
        p->model->backend->moment_close(p->model->device, p->queued[i].began);
        p->model->backend->moment_close(p->model->device, p->queued[i].ended);
    }
    for (int i = 0; i < p->n_tables; i++) {
        lt_schedule_close(&p->tables[i]);
    }
    lt_param_buffer_close(&p->gradients);
    for (int i = 0; i < p->n_joined; i++) {
        lt_param_buffer_close(&p->joined[i]);
    }
    free(p->joined);
    lt_arena_release(&p->arena, p->model->device);
    free(p->tables);
    free(p->chunks);
    free(p->receives);
    free(p);
}

/* ---- Messages ---- */

/* The queue waits for this call. */
static lt_err wait_for(lt_pipeline *p, lt_comm_work *work) {
    const lt_comm_work number = *work;
    *work = 0;
    return number != 0
               ? lt_comm_order(lt_group_comm(p->group), number, lt_pass_queue(p->chunks[0].pass))
               : LT_OK;
}

/* The residual stream in the shape of the loaded batch: the tensor that is received or sent. */
static lt_err send(lt_pipeline *p, lt_tensor x, int to, lt_comm_work *work) {
    const int64_t count = lt_tensor_count(&x);
    p->times.sent_bytes += count * (int64_t)lt_dtype_bytes(x.dtype);
    return lt_send(p->group, to, x.data, count, x.dtype, work);
}

static lt_err copy(const lt_pipeline *p, lt_pass *pass, lt_tensor to, const void *from) {
    const size_t bytes = (size_t)lt_tensor_count(&to) * lt_dtype_bytes(to.dtype);
    return p->model->backend->copy(lt_pass_queue(pass), to.data, from, bytes);
}

/* Elements of a batch's stream between two stages: only this rank's rows if ranks of tp divide
 * them. */
static int64_t message_count(const lt_pipeline *p, const lt_pass_batch *b) {
    return lt_pass_stream_rows(p->chunks[0].pass, b->batch, b->seq) * p->model->spec.width;
}

/* The length of each message depends on its micro-batch. */
static lt_err post_receives(walk *w, int64_t before) {
    lt_pipeline *p = w->p;
    for (; w->next_receive < w->row->n_receives &&
           w->row->receives[w->next_receive].post_at <= before;
         w->next_receive++) {
        const lt_schedule_receive *r = &w->row->receives[w->next_receive];
        const lt_pass_batch *b = &w->batches[w->row->ops[r->op].micro];
        void *buffer = p->messages + (size_t)r->buffer * p->message_bytes;
        LT_TRY(lt_recv(p->group, r->from, buffer, message_count(p, b), p->model->options.dtype,
                       &p->receives[w->next_receive]));
    }
    return LT_OK;
}

/* The input of an operation: a message, or the result of the rank's own other chunk. */
static lt_err take_input(walk *w, const lt_schedule_op *op, lt_pass *pass, lt_tensor to) {
    lt_pipeline *p = w->p;
    const lt_schedule_shape *s = &w->table->shape;
    if (op->receive >= 0) {
        const lt_schedule_receive *r = &w->row->receives[op->receive];
        LT_TRY(wait_for(p, &p->receives[op->receive]));
        return copy(p, pass, to, p->messages + (size_t)r->buffer * p->message_bytes);
    }
    const int stage = lt_schedule_stage(s, p->rank, op->chunk);
    const bool forward = op->kind == LT_OP_FORWARD;
    const chunk_state *other = &p->chunks[lt_schedule_chunk_of(s, forward ? stage - 1 : stage + 1)];
    const int set = other->set_of[op->micro];
    return copy(p, pass, to,
                forward ? lt_pass_stream(other->pass, set, other->end).data
                        : lt_pass_stream_gradient(other->pass, set).data);
}

/* ---- Operations ---- */

/* Wait until the oldest operation has ended. */
static lt_err retire(walk *w) {
    lt_pipeline *p = w->p;
    const lt_backend *b = p->model->backend;
    queued_op *q = &p->queued[p->n_done++ % AHEAD];
    chunk_state *c = &p->chunks[q->op->chunk];
    double seconds = 0.0;
    if (q->ended != NULL) {
        LT_TRY(b->moment_reach(p->model->device, q->ended));
        LT_TRY(b->moment_between(p->model->device, q->began, q->ended, &seconds));
    } else {
        seconds = lt_clock_s() - q->start_s;
    }
    if (q->fetched != NULL) {
        lt_pass_add_fetched(c->pass, q->fetched, w->sum);
    }
    p->times.busy_s += seconds;
    c->seconds[q->op->kind] += seconds;
    c->n_ops[q->op->kind]++;
    return LT_OK;
}

/* Called when the operation has its input. */
static lt_err begin(lt_pipeline *p, const lt_schedule_op *op) {
    const lt_span_kind kind = op->kind == LT_OP_FORWARD    ? LT_SPAN_STAGE_FORWARD
                              : op->kind == LT_OP_BACKWARD ? LT_SPAN_STAGE_BACKWARD
                                                           : LT_SPAN_STAGE_WEIGHTS;
    queued_op *q = &p->queued[p->n_queued++ % AHEAD];
    LT_ASSERT(p->n_queued - p->n_done <= AHEAD);
    q->op = op;
    q->fetched = NULL;
    q->start_s = lt_clock_s();
    LT_TRY(q->began != NULL
               ? p->model->backend->moment_mark(lt_pass_queue(p->chunks[0].pass), q->began)
               : LT_OK);
    return lt_timeline_begin(p->timeline, &q->span, kind, op->chunk, op->micro);
}

/* Called when the operation has been queued. */
static lt_err end(walk *w) {
    lt_pipeline *p = w->p;
    queued_op *q = &p->queued[(p->n_queued - 1) % AHEAD];
    LT_TRY(lt_timeline_end(p->timeline, &q->span));
    return q->ended != NULL
               ? p->model->backend->moment_mark(lt_pass_queue(p->chunks[0].pass), q->ended)
               : retire(w);
}

/* Queue the operation's results, if it has any, to be added. */
static lt_err fetch(walk *w, lt_pass *pass, int set) {
    lt_pipeline *p = w->p;
    return lt_pass_fetch_of(pass, set, &p->queued[(p->n_queued - 1) % AHEAD].fetched);
}

static lt_err forward(walk *w, const lt_schedule_op *op) {
    lt_pipeline *p = w->p;
    chunk_state *c = &p->chunks[op->chunk];
    set_state *set = &c->sets[op->set];
    LT_TRY(wait_for(p, &set->sent[0]));
    LT_TRY(wait_for(p, &set->sent[1]));
    LT_TRY(lt_pass_load(c->pass, op->set, &w->batches[op->micro]));
    c->set_of[op->micro] = op->set;
    if (c->first > 0) {
        LT_TRY(take_input(w, op, c->pass, lt_pass_stream(c->pass, op->set, c->first)));
    }
    LT_TRY(begin(p, op));
    LT_TRY(lt_pass_forward(c->pass, op->set, c->first, c->end));
    LT_TRY(end(w));
    return op->to < 0 ? LT_OK
                      : send(p, lt_pass_stream(c->pass, op->set, c->end), op->to, &set->sent[0]);
}

static lt_err backward(walk *w, const lt_schedule_op *op) {
    lt_pipeline *p = w->p;
    chunk_state *c = &p->chunks[op->chunk];
    const bool last = is_last(p, &w->table->shape, op->chunk);
    if (!last) {
        LT_TRY(take_input(w, op, c->pass, lt_pass_stream_gradient(c->pass, op->set)));
    }
    LT_TRY(begin(p, op));
    LT_TRY(p->begins.call != NULL ? p->begins.call(p->begins.of, op->chunk) : LT_OK);
    if (last) {
        LT_TRY(p->head.call != NULL
                   ? p->head.call(p->head.of, c->pass, op->set, op->micro, w->grad_scale)
                   : lt_pass_loss(c->pass, op->set, w->grad_scale));
    }
    LT_TRY(lt_pass_backward(c->pass, op->set, c->first, c->end, w->grad_scale));
    LT_TRY(last || p->model->spec.n_experts > 0 ? fetch(w, c->pass, op->set) : LT_OK);
    LT_TRY(end(w));
    return op->to < 0 ? LT_OK
                      : send(p, lt_pass_stream_gradient(c->pass, op->set), op->to,
                             &c->sets[op->set].sent[1]);
}

static lt_err weights(walk *w, const lt_schedule_op *op) {
    lt_pipeline *p = w->p;
    const chunk_state *c = &p->chunks[op->chunk];
    LT_TRY(begin(p, op));
    LT_TRY(lt_pass_backward_weights(c->pass, op->set, c->first, c->end));
    return end(w);
}

/* If this rank has both stages of a tied embedding, add the head's gradients to the embedding's.
 * Adapters keep the two apart. */
static lt_err add_tied(lt_pipeline *p) {
    const lt_param_table *t = &p->model->table;
    const lt_param *embed = &t->params[lt_param_index(t, LT_PARAM_EMBED, -1)];
    float *to;
    const float *from = NULL;
    if (!p->model->spec.tied || p->model->lora != NULL) {
        return LT_OK;
    }
    to = lt_param_data(&p->gradients, embed);
    for (int c = 1; c < p->stages.chunks; c++) {
        const lt_param_buffer *g = lt_pass_gradients(p->chunks[c].pass);
        from = lt_param_data(g, embed) != NULL ? lt_param_data(g, embed) : from;
    }
    if (from == NULL || to == NULL || from == to) {
        return LT_OK;
    }
    const lt_tensor sum = lt_tensor_1d(to, LT_F32, embed->local_count),
                    head = lt_tensor_1d((void *)(uintptr_t)from, LT_F32, embed->local_count);
    return p->model->backend->ops->add(
        lt_pipeline_queue(p),
        &(lt_add_args){.y = sum, .a = sum, .b = head, .alpha = 1.0f, .beta = 1.0f});
}

static lt_err end_walk(walk *w) {
    lt_pipeline *p = w->p;
    while (p->n_done < p->n_queued) {
        LT_TRY(retire(w));
    }
    for (int c = 0; c < p->stages.chunks; c++) {
        for (int set = 0; set < p->chunks[c].n_sets; set++) {
            LT_TRY(wait_for(p, &p->chunks[c].sets[set].sent[0]));
            LT_TRY(wait_for(p, &p->chunks[c].sets[set].sent[1]));
        }
    }
    return p->model->backend->sync(lt_pass_queue(p->chunks[0].pass));
}

static const lt_schedule *table_of(const lt_pipeline *p, int64_t micros) {
    for (int i = 0; i < p->n_tables; i++) {
        if (p->tables[i].shape.micros == micros) {
            return &p->tables[i];
        }
    }
    return NULL;
}

/* Fill a missing message with random numbers: with equal ones, routers would choose the same
 * experts for all rows. */
static lt_err fill(const lt_pipeline *p, lt_pass *pass, lt_tensor x) {
    const int64_t n = lt_tensor_count(&x);
    const size_t bytes = (size_t)n * lt_dtype_bytes(x.dtype);
    lt_rng rng = {.seed = 1};
    lt_err err = LT_OK;
    void *host = malloc(bytes);
    if (host == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu bytes of a message", bytes);
    }
    for (int64_t i = 0; i < n; i++) {
        const float value = (float)lt_rng_normal(&rng);
        lt_convert((char *)host + (size_t)i * lt_dtype_bytes(x.dtype), x.dtype, &value, LT_F32, 1);
    }
    err = p->model->backend->upload(lt_pass_queue(pass), x.data, host, bytes);
    err = err == LT_OK ? p->model->backend->sync(lt_pass_queue(pass)) : err;
    free(host);
    return err;
}

/* Run the head as an objective does, with all derivatives 0. */
static lt_err run_head(const chunk_state *c, const lt_pass_batch *batch, float grad_scale) {
    float *numbers = calloc((size_t)(batch->batch * batch->seq), sizeof *numbers);
    lt_err err;
    if (numbers == NULL) {
        LT_FAIL(LT_ERR_OOM, "derivatives of %lld rows", (long long)batch->batch);
    }
    err = lt_pass_logprobs_of(c->pass, 0, batch->labels, numbers);
    memset(numbers, 0, (size_t)(batch->batch * batch->seq) * sizeof *numbers);
    err = err == LT_OK ? lt_pass_objective(c->pass, 0, numbers, grad_scale) : err;
    free(numbers);
    return err;
}

/* Run a chunk forward and backward twice: gradients are first stored, then added to. */
static lt_err run_twice(lt_pipeline *p, int chunk, bool last, const lt_pass_batch *batch,
                        float grad_scale) {
    const chunk_state *c = &p->chunks[chunk];
    LT_TRY(lt_pass_zero_gradients(c->pass));
    for (int again = 0; again < 2; again++) {
        LT_TRY(lt_pass_load(c->pass, 0, batch));
        LT_TRY(c->first > 0 ? fill(p, c->pass, lt_pass_stream(c->pass, 0, c->first)) : LT_OK);
        LT_TRY(lt_pass_forward(c->pass, 0, c->first, c->end));
        LT_TRY(p->begins.call != NULL ? p->begins.call(p->begins.of, chunk) : LT_OK);
        LT_TRY(!last                  ? LT_OK
               : p->head.call != NULL ? run_head(c, batch, grad_scale)
                                      : lt_pass_loss(c->pass, 0, grad_scale));
        LT_TRY(lt_pass_backward(c->pass, 0, c->first, c->end, grad_scale));
        if (lt_schedule_splits_backward(p->stages.schedule)) {
            LT_TRY(lt_pass_backward_weights(c->pass, 0, c->first, c->end));
        }
        LT_TRY(p->model->backend->sync(lt_pass_queue(c->pass)));
    }
    return LT_OK;
}

/* Warm up all chunks of this rank. */
static lt_err warm_chunks(lt_pipeline *p, const lt_schedule_shape *shape,
                          const lt_pass_batch *batch, float grad_scale) {
    for (int i = 0; i < p->stages.chunks; i++) {
        lt_pass *pass = p->chunks[i].pass;
        lt_err err;
        lt_pass_mute(pass, p->begins.call == NULL);
        err = run_twice(p, i, is_last(p, shape, i), batch, grad_scale);
        lt_pass_mute(pass, false);
        LT_TRY(err);
    }
    return p->begins.call != NULL ? p->begins.drop(p->begins.of) : LT_OK;
}

static bool sends_to(const lt_schedule_row *row, int to) {
    for (int64_t i = 0; i < row->n_ops; i++) {
        if (row->ops[i].to == to) {
            return true;
        }
    }
    return false;
}

/* Each rank sends an element to each rank that it will send to, one pair after the other, in an
 * order that all ranks have. The first message of a pair opens its communicator, which allocates
 * memory of the GPU, and an allocation may have to wait for a receive that runs. */
static lt_err open_links(lt_pipeline *p, const lt_schedule *table) {
    const lt_dtype dtype = p->model->options.dtype;
    for (int from = 0; from < table->shape.ranks; from++) {
        for (int to = 0; to < table->shape.ranks; to++) {
            if (from == to || !sends_to(&table->rows[from], to)) {
                continue;
            }
            LT_TRY(from == p->rank ? lt_send(p->group, to, p->messages, 1, dtype, NULL) : LT_OK);
            LT_TRY(to == p->rank ? lt_recv(p->group, from, p->messages, 1, dtype, NULL) : LT_OK);
        }
    }
    return LT_OK;
}

static bool is_warm(const lt_pipeline *p, int64_t rows) {
    for (int i = 0; i < p->n_warm; i++) {
        if (p->warm[i] == rows) {
            return true;
        }
    }
    return false;
}

/* On a device, before the first message that depends on micro-batches of a size: run each chunk
 * with one. A GPU loads a kernel's module, and frees memory, only when nothing runs on it, and a
 * receive runs until its message comes: if two ranks wait for each other's message and each has
 * kernels to load, neither goes on. This happened with three micro-batches on two ranks: rank 0
 * loads the kernels of its first backward while it receives for the second, and rank 1 those that
 * add to gradients while it receives for the third. What the chunks compute here is dropped. The
 * passes make no callbacks, unless weights and gradients come and go with them (ZeRO 2 and 3): then
 * all ranks that hold the same make the same calls here in the same order, and none of them waits
 * for a message of a neighbour. */
static lt_err warm_up(lt_pipeline *p, const lt_schedule *table, const lt_pass_batch *batches,
                      float grad_scale) {
    if (p->model->backend->host_memory) {
        return LT_OK;
    }
    LT_TRY(p->n_warm == 0 ? open_links(p, table) : LT_OK);
    for (int64_t m = 0; m < table->shape.micros; m++) {
        if (!is_warm(p, batches[m].batch)) {
            LT_TRY(warm_chunks(p, &table->shape, &batches[m], grad_scale));
            p->warm[p->n_warm % MAX_WARM] = batches[m].batch;
            p->n_warm += p->n_warm < MAX_WARM;
        }
    }
    return LT_OK;
}

lt_err lt_pipeline_train(lt_pipeline *p, const lt_pass_batch *batches, int64_t n, float grad_scale,
                         lt_pass_result *sum) {
    double start_s;
    walk w = {
        .p = p, .table = table_of(p, n), .batches = batches, .grad_scale = grad_scale, .sum = sum};
    if (w.table == NULL) {
        LT_FAIL(LT_ERR_STATE, "pipeline: no table for %lld micro-batches", (long long)n);
    }
    p->times = (lt_pipeline_times){.micros = n};
    p->n_queued = p->n_done = 0;
    w.row = &w.table->rows[p->rank];
    LT_TRY(warm_up(p, w.table, batches, grad_scale));
    start_s = lt_clock_s();
    for (int c = 0; c < p->stages.chunks; c++) {
        LT_TRY(lt_pass_zero_gradients(p->chunks[c].pass));
    }
    for (int64_t i = 0; i < w.row->n_ops; i++) {
        const lt_schedule_op *op = &w.row->ops[i];
        LT_TRY(p->n_queued - p->n_done == AHEAD ? retire(&w) : LT_OK);
        LT_TRY(post_receives(&w, i));
        if (op->kind == LT_OP_FORWARD) {
            LT_TRY(forward(&w, op));
        } else if (op->kind == LT_OP_BACKWARD) {
            LT_TRY(backward(&w, op));
        } else {
            LT_TRY(weights(&w, op));
        }
    }
    LT_TRY(end_walk(&w));
    LT_TRY(add_tied(p));
    p->times.step_s = lt_clock_s() - start_s;
    return LT_OK;
}

/* ---- Evaluation ---- */

/* Compute one stage of a batch in set 0 of its chunk. */
static lt_err eval_stage(lt_pipeline *p, int chunk, const lt_pass_batch *b) {
    const lt_schedule_shape s = shape_of(&p->stages, 1);
    const int stage = lt_schedule_stage(&s, p->rank, chunk), n_stages = s.ranks * s.chunks;
    const int from = stage > 0 ? lt_schedule_rank_of(&s, stage - 1) : -1,
              to = stage < n_stages - 1 ? lt_schedule_rank_of(&s, stage + 1) : -1;
    chunk_state *c = &p->chunks[chunk];
    LT_TRY(wait_for(p, &c->sets[0].sent[0]));
    LT_TRY(lt_pass_load(c->pass, 0, b));
    if (from >= 0 && from != p->rank) {
        LT_TRY(lt_recv(p->group, from, p->messages, message_count(p, b), p->model->options.dtype,
                       NULL));
        LT_TRY(copy(p, c->pass, lt_pass_stream(c->pass, 0, c->first), p->messages));
    } else if (from >= 0) {
        const chunk_state *other = &p->chunks[lt_schedule_chunk_of(&s, stage - 1)];
        LT_TRY(copy(p, c->pass, lt_pass_stream(c->pass, 0, c->first),
                    lt_pass_stream(other->pass, 0, other->end).data));
    }
    LT_TRY(lt_pass_forward_eval(c->pass, 0, c->first, c->end));
    LT_TRY(p->model->backend->sync(lt_pass_queue(c->pass)));
    return to >= 0 && to != p->rank
               ? send(p, lt_pass_stream(c->pass, 0, c->end), to, &c->sets[0].sent[0])
               : LT_OK;
}

lt_err lt_pipeline_eval(lt_pipeline *p, const lt_pass_batch *b, lt_pass_result *r,
                        float *loss_rows) {
    const lt_schedule_shape s = shape_of(&p->stages, 1);
    *r = (lt_pass_result){0};
    for (int c = 0; c < s.chunks; c++) {
        LT_TRY(eval_stage(p, c, b));
        if (is_last(p, &s, c)) {
            LT_TRY(lt_pass_loss(p->chunks[c].pass, 0, 0.0f));
            LT_TRY(lt_pass_result_of(p->chunks[c].pass, 0, r, loss_rows));
        }
    }
    return LT_OK;
}

/* ---- Accessors ---- */

void lt_pipeline_tell_begins(lt_pipeline *p, lt_pipeline_begins begins) {
    p->begins = begins;
}

void lt_pipeline_set_head(lt_pipeline *p, lt_pipeline_head head) {
    p->head = head;
}

int lt_pipeline_head_rank(const lt_pipeline *p) {
    const lt_schedule_shape s = shape_of(&p->stages, 1);
    return lt_schedule_rank_of(&s, s.ranks * s.chunks - 1);
}

void lt_pipeline_trace(lt_pipeline *p, lt_timeline *t) {
    p->timeline = t;
    for (int c = 0; c < p->stages.chunks; c++) {
        lt_pass_trace(p->chunks[c].pass, t);
    }
}

const lt_param_buffer *lt_pipeline_gradients(const lt_pipeline *p) {
    return &p->gradients;
}

const lt_param_buffer *lt_pipeline_gradients_of(const lt_pipeline *p, int which) {
    return &p->joined[which];
}

int lt_pipeline_passes(const lt_pipeline *p, lt_pass *passes[LT_MAX_LAYERS]) {
    LT_ASSERT(p->stages.chunks <= LT_MAX_LAYERS);
    for (int c = 0; c < p->stages.chunks; c++) {
        passes[c] = p->chunks[c].pass;
    }
    return p->stages.chunks;
}

lt_queue *lt_pipeline_queue(const lt_pipeline *p) {
    return lt_pass_queue(p->chunks[0].pass);
}

lt_pipeline_times lt_pipeline_last(const lt_pipeline *p) {
    return p->times;
}

double lt_pipeline_op_s(const lt_pipeline *p, int chunk, lt_schedule_op_kind kind) {
    const chunk_state *c = &p->chunks[chunk];
    return c->n_ops[kind] > 0 ? c->seconds[kind] / (double)c->n_ops[kind] : 0.0;
}
