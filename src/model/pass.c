/* pass.c: the storyboard of a pass: batch in, embed, layers, final norm, loss, and back. The
 * chapters are in block_*.c and loss.c; memory is in acts.c.
 *
 * Memory is carved three times with the same functions: by lt_pass_measure, by lt_pass_open to
 * measure and to place, and again whenever a batch of another shape comes, into the same arena. */
#include "model/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/block.h"
#include "model/fp8.h"
#include "model/loss.h"
#include "model/stage.h"

#define MAX_ELEMENTS 0x1p50 /* Of activations: keeps every size far from overflow. */
#define MAX_GRAPHS   32     /* Shapes of a run, fresh and not: a ramp has a few. */

/* A training pass of one shape; recorded at its second use, when nothing compiles or grows any
 * more. */
typedef struct {
    int64_t batch, seq;
    bool has_documents, fresh;
    float grad_scale;
    lt_graph *graph;
} recorded;

struct lt_pass {
    lt_exec exec;
    lt_model *model;
    lt_pass_options options;
    lt_arena activations, gradients, logits, scratch, eight; /* Of the backend. */
    lt_fp8 fp8;
    lt_layer_acts *layers; /* (L) */
    lt_batch_acts batch;
    lt_loss loss;
    float *rope, *rope_local, *f32; /* Device tables, in scratch. */
    lt_stage stage;
    recorded graphs[MAX_GRAPHS];
    int n_shapes;
    int64_t n_graphs;
    int64_t carved_batch, carved_seq;
    bool fresh;     /* Nothing has been added to the gradients since they were to be zero. */
    int recomputed; /* Layer whose shared tensors hold its own values; -1: none. */
};

static int level_of(const lt_pass_options *o) {
    return o->train ? (int)o->recompute : LT_KEEP_NOTHING;
}

/* Tables that live as long as the pass. */
static void tables_carve(float **rope, float **rope_local, float **f32, const lt_model_spec *s,
                         const lt_pass_options *o, lt_arena *a) {
    const size_t table = (size_t)(s->pos == LT_POS_ROPE ? o->seq * lt_rope_columns(s) * 2 : 0) *
                         sizeof(float);
    *rope = lt_arena_take(a, table, LT_ARENA_ALIGN);
    *rope_local = lt_arena_take(a, s->rope_theta_local > 0 ? table : 0, LT_ARENA_ALIGN);
    *f32 = lt_arena_take(a, (size_t)(s->n_layers * lt_exec_f32_count(s)) * sizeof(float),
                         LT_ARENA_ALIGN);
}

typedef struct {
    lt_arena activations, gradients, logits, scratch, eight;
} arenas;

/* Every byte of a pass. layers: (L) to place, or scratch memory of that size to measure. */
static void pass_carve(lt_pass *p, const lt_model_spec *s, lt_dtype dtype, const lt_param_table *t,
                       const lt_pass_options *o, arenas *a) {
    const lt_acts_shape shape = {o->batch, o->seq, dtype, o->train, level_of(o)};
    lt_acts_carve(p->layers, s, &shape, &a->activations);
    lt_batch_carve(&p->batch, s, &shape, &a->activations);
    lt_loss_carve(&p->loss, s, dtype, o, &a->logits);
    tables_carve(&p->rope, &p->rope_local, &p->f32, s, o, &a->scratch);
    lt_stage_carve(&p->stage, o->batch * o->seq, &a->scratch);
    if (o->train) {
        void *flat = lt_arena_take(&a->gradients, lt_param_buffer_bytes(t, LT_F32), LT_ARENA_ALIGN);
        if (flat != NULL) {
            lt_param_buffer_place(&p->exec.gradients, t, flat);
        }
    }
    lt_fp8_carve(&p->fp8, t, o, &a->eight);
}

/* Layers whose auxiliary losses come back. */
static int64_t aux_layers(const lt_model_spec *s) {
    return s->n_experts > 0 ? s->n_layers : 0;
}

static lt_err check_options(const lt_pass_options *o, const lt_model_spec *s) {
    if (o->batch < 1 || o->seq < 1 || o->batch > INT32_MAX / o->seq) {
        LT_FAIL(LT_ERR_ARG, "pass: a batch of %lld x %lld tokens", (long long)o->batch,
                (long long)o->seq);
    }
    const double row = (double)(s->width * 8 + s->ffn_width * 3 +
                                (s->n_heads + s->n_kv_heads) * 4 * s->head_dim);
    if ((double)(o->batch * o->seq) * row * (double)(s->n_layers * (s->top_k > 0 ? s->top_k : 1)) >
        MAX_ELEMENTS) {
        LT_FAIL(LT_ERR_LIMIT,
                "pass: activations of %lld x %lld tokens through %lld layers exceed any memory",
                (long long)o->batch, (long long)o->seq, (long long)s->n_layers);
    }
    if (s->pos == LT_POS_LEARNED && o->seq > s->max_seq) {
        LT_FAIL(LT_ERR_ARG,
                "pass: %lld tokens a sequence, but the model has %lld learned positions",
                (long long)o->seq, (long long)s->max_seq);
    }
    return LT_OK;
}

lt_err lt_pass_measure(lt_pass_memory *out, const lt_model_spec *spec, lt_dtype dtype,
                       const lt_pass_options *o) {
    lt_err err = LT_OK;
    lt_param_table table = {0};
    lt_pass p = {0};
    arenas a = {0};

    LT_TRY(check_options(o, spec));
    LT_TRY(lt_param_table_open(&table, spec));
    p.layers = calloc((size_t)spec->n_layers, sizeof *p.layers);
    if (p.layers == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "pass: %lld layers", (long long)spec->n_layers);
    }
    pass_carve(&p, spec, dtype, &table, o, &a);
    *out = (lt_pass_memory){
        a.activations.used_bytes, a.gradients.used_bytes,
        a.logits.used_bytes,      a.scratch.used_bytes,
        a.eight.used_bytes,       lt_stage_host_bytes(o->batch * o->seq, aux_layers(spec))};
done:
    free(p.layers);
    lt_param_table_close(&table);
    return err;
}

static lt_err upload_rope(lt_pass *p, float *device, bool local) {
    lt_err err = LT_OK;
    const int64_t seq = p->options.seq; /* The text's length, where that decides. */
    const size_t bytes = (size_t)(seq * lt_rope_columns(p->exec.spec) * 2) * sizeof(float);
    float *host = malloc(bytes);
    if (host == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rotary table of %zu bytes", bytes);
    }
    LT_TRY_DONE(lt_rope_table(host, p->exec.spec, seq, local, seq));
    LT_TRY_DONE(p->exec.backend->upload(p->exec.queue, device, host, bytes));
    LT_TRY_DONE(p->exec.backend->sync(p->exec.queue));
done:
    free(host);
    return err;
}

/* Rotary tables, and what ops want in F32 when only BF16 weights exist. */
static lt_err fill_tables(lt_pass *p) {
    const lt_model_spec *s = p->exec.spec;
    if (s->pos == LT_POS_ROPE) {
        LT_TRY(upload_rope(p, p->rope, false));
        p->exec.rope = p->exec.rope_local = lt_tensor_3d(p->rope, LT_F32, p->options.seq,
                                                         lt_rope_columns(s), 2);
        if (s->rope_theta_local > 0) {
            LT_TRY(upload_rope(p, p->rope_local, true));
            p->exec.rope_local.data = p->rope_local;
        }
    }
    if (lt_exec_f32_count(s) > 0 && !lt_model_has_master(p->model)) {
        LT_TRY(lt_exec_copy_f32(&p->exec, p->f32));
    }
    return LT_OK;
}

static lt_err place(lt_pass *p) {
    const lt_backend *backend = p->exec.backend;
    const lt_param_table *t = &p->model->table;
    arenas a = {0};
    pass_carve(p, p->exec.spec, p->exec.dtype, t, &p->options, &a);
    LT_TRY(lt_arena_place(&a.activations, backend, "activations"));
    p->activations = a.activations;
    LT_TRY(lt_arena_place(&a.gradients, backend, "gradients"));
    p->gradients = a.gradients;
    LT_TRY(lt_arena_place(&a.logits, backend, "logits"));
    p->logits = a.logits;
    LT_TRY(lt_arena_place(&a.scratch, backend, "scratch"));
    p->scratch = a.scratch;
    if (p->options.fp8 != LT_FP8_NONE) {
        LT_TRY(lt_arena_place(&a.eight, backend, "8-bit weights"));
        p->eight = a.eight;
        p->exec.fp8 = &p->fp8;
    }
    pass_carve(p, p->exec.spec, p->exec.dtype, t, &p->options, &a);
    p->carved_batch = p->options.batch;
    p->carved_seq = p->options.seq;
    return LT_OK;
}

lt_err lt_pass_open(lt_pass **out, lt_model *m, const lt_pass_options *o) {
    lt_err err = LT_OK;
    lt_pass *p = NULL;

    LT_TRY(check_options(o, &m->spec));
    if (o->train && !lt_model_has_master(m)) {
        LT_FAIL(LT_ERR_STATE,
                "pass: the model was opened in %s without an F32 master; it can not be trained",
                lt_dtype_name(m->options.dtype));
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "pass");
    }
    p->model = m;
    p->options = *o;
    p->options.on_device = !m->backend->host_memory;
    LT_TRY_DONE(lt_exec_open(&p->exec, m));
    p->layers = calloc((size_t)m->spec.n_layers, sizeof *p->layers);
    if (p->layers == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "pass: %lld layers", (long long)m->spec.n_layers);
    }
    if (o->fp8 != LT_FP8_NONE) {
        p->fp8.weights = calloc((size_t)m->table.n_params, sizeof *p->fp8.weights);
        if (p->fp8.weights == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "pass: %d parameters", m->table.n_params);
        }
    }
    if (o->train) {
        LT_TRY_DONE(lt_param_buffer_open(&p->exec.gradients, &m->table, LT_F32));
    }
    LT_TRY_DONE(place(p));
    LT_TRY_DONE(lt_stage_open(&p->stage, m->backend, o->batch * o->seq, aux_layers(&m->spec)));
    LT_TRY_DONE(fill_tables(p));
    *out = p;
    p = NULL;
done:
    lt_pass_close(p);
    return err;
}

void lt_pass_close(lt_pass *p) {
    if (p == NULL) {
        return;
    }
    if (p->exec.queue != NULL) {
        (void)!p->exec.backend->sync(p->exec.queue);
    }
    for (int i = 0; i < p->n_shapes; i++) {
        if (p->graphs[i].graph != NULL) {
            p->exec.backend->graph_close(p->graphs[i].graph);
        }
    }
    lt_stage_close(&p->stage);
    lt_arena_release(&p->activations, p->exec.backend);
    lt_arena_release(&p->gradients, p->exec.backend);
    lt_arena_release(&p->logits, p->exec.backend);
    lt_arena_release(&p->scratch, p->exec.backend);
    lt_arena_release(&p->eight, p->exec.backend);
    lt_param_buffer_close(&p->exec.gradients);
    lt_exec_close(&p->exec);
    free(p->fp8.weights);
    free(p->layers);
    free(p);
}

/* Every id of a (B, T) field inside [low, high). */
static lt_err check_ids(const lt_pass_batch *b, const int32_t *ids, int64_t low, int64_t high,
                        const char *what) {
    for (int64_t i = 0; ids != NULL && i < b->batch * b->seq; i++) {
        if (ids[i] < low || ids[i] >= high) {
            LT_FAIL(LT_ERR_ARG, "batch: %s %d of row %lld, column %lld is outside [%lld, %lld)",
                    what, (int)ids[i], (long long)(i / b->seq), (long long)(i % b->seq),
                    (long long)low, (long long)high);
        }
    }
    return LT_OK;
}

static lt_err check_batch(const lt_pass *p, const lt_pass_batch *b) {
    const lt_model_spec *s = p->exec.spec;
    LT_ASSERT(b->tokens != NULL && b->labels != NULL);
    if (b->batch < 1 || b->seq < 1 || b->batch > p->options.batch || b->seq > p->options.seq) {
        LT_FAIL(LT_ERR_ARG, "batch of %lld x %lld tokens in a pass opened for %lld x %lld",
                (long long)b->batch, (long long)b->seq, (long long)p->options.batch,
                (long long)p->options.seq);
    }
    LT_TRY(check_ids(b, b->tokens, 0, s->vocab_size, "token"));
    LT_TRY(check_ids(b, b->labels, -1, s->vocab_size, "label"));
    LT_TRY(check_ids(b, b->positions, 0, p->options.seq, "position"));
    return check_ids(b, b->doc_start, 0, b->seq, "document start");
}

/* A batch of another shape: the same carve, smaller, in the same memory. */
static void reshape(lt_pass *p, int64_t batch, int64_t seq) {
    const lt_acts_shape shape = {batch, seq, p->exec.dtype, p->options.train,
                                 level_of(&p->options)};
    if (batch != p->carved_batch || seq != p->carved_seq) {
        lt_arena_rewind(&p->activations);
        lt_acts_carve(p->layers, p->exec.spec, &shape, &p->activations);
        lt_batch_carve(&p->batch, p->exec.spec, &shape, &p->activations);
        p->carved_batch = batch;
        p->carved_seq = seq;
    }
}

/* The batch's tensors in this shape; what they hold comes from the stage. */
static void shape_batch(lt_pass *p, int64_t batch, int64_t seq, bool has_documents) {
    lt_exec *r = &p->exec;
    reshape(p, batch, seq);
    r->batch = batch;
    r->seq = seq;
    r->positions = p->batch.positions;
    r->doc_start = has_documents ? p->batch.doc_start : (lt_tensor){0};
}

static int64_t capacity(const lt_exec *r, bool train) {
    const lt_model_spec *s = r->spec;
    const double rows = (double)(r->batch * r->seq);
    if (!train || s->n_experts == 0 || s->moe_capacity == 0) {
        return 0;
    }
    return (int64_t)ceil(s->moe_capacity * rows * (double)s->top_k / (double)s->n_experts);
}

static lt_err layer_fwd(lt_pass *p, int layer, lt_tensor stream, bool train) {
    lt_exec *r = &p->exec;
    LT_TRY(lt_attention_block_fwd(r, layer, &p->layers[layer], &p->batch, stream));
    LT_TRY(lt_mlp_block_fwd(r, layer, &p->layers[layer], &p->batch, capacity(r, train)));
    p->recomputed = layer;
    return LT_OK;
}

/* Tokens to h_final. */
static lt_err forward(lt_pass *p, bool train) {
    lt_exec *r = &p->exec;
    const lt_batch_acts *b = &p->batch;
    const lt_norm norm = {LT_PARAM_FINAL_NORM, LT_PARAM_FINAL_NORM_BIAS, 0, b->mean_final,
                          b->rstd_final};
    lt_tensor stream = {0};

    LT_TRY(lt_embedding_fwd(r, p->layers[0].x_in, b->tokens));
    for (int layer = 0; layer < r->spec->n_layers; layer++) {
        LT_TRY(layer_fwd(p, layer, stream, train));
        stream = p->layers[layer].x_mid;
    }
    return lt_final_norm_fwd(r, &norm, b->h_final, stream, b->branch, b->x_final);
}

/* dh of h_final to the gradients. */
static lt_err backward(lt_pass *p, float aux_scale) {
    lt_exec *r = &p->exec;
    const lt_batch_acts *b = &p->batch;
    const lt_norm norm = {LT_PARAM_FINAL_NORM, LT_PARAM_FINAL_NORM_BIAS, 0, b->mean_final,
                          b->rstd_final};
    const lt_recompute level = p->options.recompute;

    LT_TRY(lt_final_norm_bwd(r, &norm, b->dx, b->dh, b->x_final));
    for (int layer = (int)r->spec->n_layers - 1; layer >= 0; layer--) {
        if (level == LT_RECOMPUTE_FULL && p->recomputed != layer) {
            LT_TRY(layer_fwd(p, layer, (lt_tensor){0}, true));
        }
        LT_TRY(lt_mlp_block_bwd(r, layer, &p->layers[layer], b, level, aux_scale));
        LT_TRY(lt_attention_block_bwd(r, layer, &p->layers[layer], b, level));
    }
    return lt_exec_embed_bwd(
        r, &(lt_embed_bwd_args){.dtable = lt_exec_gradient(r, LT_PARAM_EMBED, 0),
                                .dpos_table = lt_exec_gradient(r, LT_PARAM_POS_EMBED, 0),
                                .dy = b->dx,
                                .ids = b->tokens,
                                .positions = r->positions,
                                .scale = lt_embedding_scale(r)});
}

lt_err lt_pass_eval(lt_pass *p, const lt_pass_batch *b, lt_pass_result *result, float *loss_rows) {
    *result = (lt_pass_result){0};
    LT_TRY(check_batch(p, b));
    shape_batch(p, b->batch, b->seq, b->doc_start != NULL);
    LT_TRY(lt_stage_send(&p->stage, &p->exec, b, &p->batch));
    LT_TRY(lt_fp8_refresh(&p->exec, &p->fp8));
    LT_TRY(forward(p, false));
    LT_TRY(lt_loss_run(&p->exec, &p->loss, &p->batch, b->labels, 0));
    return lt_stage_receive(&p->stage, &p->exec, &p->batch, result, loss_rows);
}

lt_err lt_pass_stage(lt_pass *p, const lt_pass_batch *b) {
    LT_ASSERT(p->options.train);
    LT_TRY(check_batch(p, b));
    return lt_stage_put(&p->stage, b);
}

int lt_pass_staged(const lt_pass *p) {
    return (int)(p->stage.n_put - p->stage.n_taken);
}

bool lt_pass_full(const lt_pass *p) {
    return lt_stage_full(&p->stage);
}

/* Whether lt_linear_bwd makes this gradient, so that it may be stored the first time. Experts' are
 * added to: on a GPU, storing the zeros of an expert that nobody chose takes the product's
 * registers. */
static bool made_by_product(const lt_model_spec *s, const lt_param *p) {
    const bool experts = s->n_experts > 0 && (p->kind == LT_PARAM_UP || p->kind == LT_PARAM_DOWN);
    return (p->matrix && !experts) || p->kind == LT_PARAM_ROUTER || p->kind == LT_PARAM_HEAD ||
           (p->kind == LT_PARAM_EMBED && s->tied);
}

/* Layers that have the same parameters at the same places, and whose gradients lie equally far
 * apart, so that one call zeroes a piece of each: their number from layer 0 on; *stride: in
 * elements. */
static int even_layers(const lt_param_table *t, const lt_param_buffer *g, int64_t *stride) {
    const lt_unit *first = &t->units[1];
    const int n_layers = t->n_units - 2;
    *stride = n_layers > 1 ? (float *)g->base[2] - (float *)g->base[1] : 0;
    for (int layer = 1; layer < n_layers; layer++) {
        const lt_unit *unit = &t->units[1 + layer];
        const float *const base = g->base[1 + layer], *const before = g->base[layer];
        if (unit->n_params != first->n_params || base == NULL || before == NULL ||
            base - before != *stride) {
            return 1;
        }
        for (int i = 0; i < unit->n_params; i++) {
            const lt_param *a = &t->params[first->first_param + i],
                           *b = &t->params[unit->first_param + i];
            if (a->kind != b->kind || a->at != b->at || a->local_count != b->local_count) {
                return 1;
            }
        }
    }
    return n_layers;
}

/* All gradients of a unit that no product makes to zero, neighbours in one go; and those of the
 * n - 1 units behind it, stride elements apart. */
static lt_err zero_unit(lt_pass *p, int unit, int n, int64_t stride) {
    const lt_exec *r = &p->exec;
    const lt_param_table *t = &p->model->table;
    const int last_param = t->units[unit].first_param + t->units[unit].n_params;
    for (int i = t->units[unit].first_param, end; i < last_param; i = end) {
        const lt_param *first = &t->params[i];
        const bool skip = made_by_product(r->spec, first);
        float *const data = lt_param_data(&r->gradients, first);
        for (end = i + 1; end < last_param && !skip && !made_by_product(r->spec, &t->params[end]);
             end++) {}
        if (!skip && data != NULL) {
            const lt_param *last = &t->params[end - 1];
            const int64_t count = last->at + last->local_count - first->at;
            LT_TRY(r->backend->zero_pieces(r->queue, data, (size_t)count * sizeof(float),
                                           (size_t)(n > 1 ? stride : count) * sizeof(float), n));
        }
    }
    return LT_OK;
}

static lt_err zero_others(lt_pass *p) {
    const lt_param_table *t = &p->model->table;
    int64_t stride;
    const int n_even = even_layers(t, &p->exec.gradients, &stride);
    for (int unit = 0; unit < t->n_units; unit++) {
        const bool layer = t->units[unit].layer >= 0;
        if (!layer || unit == 1 || n_even == 1) {
            LT_TRY(zero_unit(p, unit, unit == 1 ? n_even : 1, stride));
        }
    }
    return LT_OK;
}

/* Batch to gradients. labels: of the host, to skip what has none; NULL: skip nothing. */
static lt_err compute(lt_pass *p, const int32_t *labels, float grad_scale) {
    p->exec.fresh = p->fresh;
    p->exec.head_stored = false;
    if (p->fresh) {
        LT_TRY(zero_others(p));
    }
    LT_TRY(forward(p, true));
    LT_TRY(lt_loss_run(&p->exec, &p->loss, &p->batch, labels, grad_scale));
    return backward(p, grad_scale);
}

static bool can_record(const lt_pass *p) {
    return p->exec.backend->graph_begin != NULL && !p->options.eager && p->exec.watch == NULL;
}

/* The entry of this shape; *is_new: seen for the first time. NULL: no room for more. */
static recorded *find_shape(lt_pass *p, const recorded *shape, bool *is_new) {
    *is_new = false;
    for (int i = 0; i < p->n_shapes; i++) {
        recorded *r = &p->graphs[i];
        if (r->batch == shape->batch && r->seq == shape->seq &&
            r->has_documents == shape->has_documents && r->fresh == shape->fresh &&
            r->grad_scale == shape->grad_scale) {
            return r;
        }
    }
    *is_new = true;
    if (p->n_shapes == MAX_GRAPHS) {
        return NULL;
    }
    p->graphs[p->n_shapes] = *shape;
    return &p->graphs[p->n_shapes++];
}

static lt_err record(lt_pass *p, recorded *shape) {
    const lt_exec *r = &p->exec;
    lt_err err, ended;
    LT_TRY(r->backend->graph_begin(r->queue));
    err = compute(p, NULL, shape->grad_scale);
    ended = r->backend->graph_end(r->queue, &shape->graph);
    p->n_graphs += err == LT_OK && ended == LT_OK;
    return err != LT_OK ? err : ended;
}

lt_err lt_pass_train_staged(lt_pass *p, float grad_scale) {
    const lt_stage_slot *slot = lt_stage_next(&p->stage);
    lt_exec *r = &p->exec;
    recorded *shape = NULL;
    bool is_new = true;

    LT_ASSERT(p->options.train && grad_scale != 0 && slot != NULL);
    shape_batch(p, slot->batch, slot->seq, slot->has_documents);
    LT_TRY(lt_stage_take(&p->stage, r, &p->batch));
    LT_TRY(lt_fp8_refresh(r, &p->fp8));
    if (can_record(p)) {
        shape = find_shape(
            p, &(recorded){slot->batch, slot->seq, slot->has_documents, p->fresh, grad_scale, NULL},
            &is_new);
    }
    if (shape == NULL || is_new) {
        LT_TRY(compute(p, r->backend->graph_begin != NULL ? NULL : slot->ids[LT_STAGE_LABELS],
                       grad_scale));
    } else {
        if (shape->graph == NULL) {
            LT_TRY(record(p, shape));
        }
        LT_TRY(r->backend->graph_launch(r->queue, shape->graph));
    }
    p->fresh = false;
    return lt_stage_fetch(&p->stage, r, &p->batch);
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

const lt_param_buffer *lt_pass_gradients(const lt_pass *p) {
    return &p->exec.gradients;
}

lt_err lt_pass_zero_gradients(lt_pass *p) {
    LT_ASSERT(p->exec.gradients.base != NULL);
    p->fresh = true;
    return LT_OK;
}

lt_queue *lt_pass_queue(const lt_pass *p) {
    return p->exec.queue;
}

int64_t lt_pass_graphs(const lt_pass *p) {
    return p->n_graphs;
}

lt_err lt_pass_watch(lt_pass *p, bool on) {
    return lt_exec_watch(&p->exec, on);
}

lt_err lt_pass_profile(lt_pass *p, lt_pass_op_time *times) {
    LT_TRY(lt_exec_times(&p->exec));
    for (int op = 0; op < LT_OP_COUNT; op++) {
        const lt_cost least = p->exec.least[op];
        times[op] = (lt_pass_op_time){p->exec.seconds[op], least.flops, least.bytes,
                                      p->exec.calls[op]};
    }
    return LT_OK;
}

const lt_layer_acts *lt_pass_layer_acts(const lt_pass *p, int layer) {
    LT_ASSERT(layer >= 0 && layer < p->exec.spec->n_layers);
    return &p->layers[layer];
}

const lt_batch_acts *lt_pass_batch_acts(const lt_pass *p) {
    return &p->batch;
}
