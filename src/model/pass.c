/* pass.c: the storyboard of a pass: batch in, embed, layers, final norm, loss, and back. The chapters are in block_*.c and loss.c; memory is in acts.c.
 *
 * Memory is carved three times with the same functions: by lt_pass_measure, by lt_pass_open to measure and to place, and again whenever a
 * batch of another shape comes, into the same arena. */
#include "model/pass.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/block.h"
#include "model/loss.h"

#define MAX_ELEMENTS 0x1p50 /* Of activations: keeps every size far from overflow. */

struct lt_pass {
    lt_run run;
    lt_model *model;
    lt_pass_options options;
    lt_arena activations, gradients, logits, scratch; /* Of the backend. */
    lt_layer_acts *layers;                            /* (L) */
    lt_batch_acts batch;
    lt_loss loss;
    float *rope, *rope_local, *xielu; /* Device tables, in scratch. */
    int32_t *host_ids;                /* (B * T): staging of what the caller left out. */
    float *host_loss;                 /* (B * T) */
    int32_t *host_best;
    int64_t carved_batch, carved_seq;
    int recomputed; /* Layer whose shared tensors hold its own values; -1: none. */
};

static int level_of(const lt_pass_options *o) {
    return o->train ? (int)o->recompute : LT_KEEP_NOTHING;
}

/* Tables that live as long as the pass. */
static void tables_carve(float **rope, float **rope_local, float **xielu, const lt_model_spec *s,
                         const lt_pass_options *o, lt_arena *a) {
    const size_t table = (size_t)(s->pos == LT_POS_ROPE ? o->seq * s->head_dim : 0) * sizeof(float);
    *rope = lt_arena_take(a, table, LT_ARENA_ALIGN);
    *rope_local = lt_arena_take(a, s->rope_theta_local > 0 ? table : 0, LT_ARENA_ALIGN);
    *xielu = lt_arena_take(a, s->act == LT_ACT_XIELU ? (size_t)s->n_layers * 2 * sizeof(float) : 0,
                           LT_ARENA_ALIGN);
}

typedef struct {
    lt_arena activations, gradients, logits, scratch;
} arenas;

/* Every byte of a pass. layers: (L) to place, or scratch memory of that size to measure. */
static void pass_carve(lt_pass *p, const lt_model_spec *s, lt_dtype dtype, int64_t n_elements,
                       const lt_pass_options *o, arenas *a) {
    const lt_acts_shape shape = {o->batch, o->seq, dtype, o->train, level_of(o)};
    lt_acts_carve(p->layers, s, &shape, &a->activations);
    lt_batch_carve(&p->batch, s, &shape, &a->activations);
    lt_loss_carve(&p->loss, s, dtype, o, &a->logits);
    tables_carve(&p->rope, &p->rope_local, &p->xielu, s, o, &a->scratch);
    p->run.gradients = o->train ? lt_arena_take(&a->gradients, (size_t)n_elements * sizeof(float),
                                                LT_ARENA_ALIGN)
                                : NULL;
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
    pass_carve(&p, spec, dtype, table.n_elements, o, &a);
    *out = (lt_pass_memory){a.activations.used_bytes, a.gradients.used_bytes, a.logits.used_bytes,
                            a.scratch.used_bytes};
done:
    free(p.layers);
    lt_param_table_close(&table);
    return err;
}

static lt_err upload_rope(lt_pass *p, float *device, bool local) {
    lt_err err = LT_OK;
    const size_t bytes = (size_t)(p->options.seq * p->run.spec->head_dim) * sizeof(float);
    float *host = malloc(bytes);
    if (host == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rotary table of %zu bytes", bytes);
    }
    lt_rope_table(host, p->run.spec, p->options.seq, local);
    LT_TRY_DONE(p->run.backend->upload(p->run.queue, device, host, bytes));
    LT_TRY_DONE(p->run.backend->sync(p->run.queue));
done:
    free(host);
    return err;
}

/* Rotary tables, and xIELU's scalars in F32 when only BF16 weights exist. */
static lt_err fill_tables(lt_pass *p) {
    const lt_model_spec *s = p->run.spec;
    if (s->pos == LT_POS_ROPE) {
        const int64_t half = s->head_dim / 2;
        LT_TRY(upload_rope(p, p->rope, false));
        p->run.rope = p->run.rope_local = lt_tensor_3d(p->rope, LT_F32, p->options.seq, half, 2);
        if (s->rope_theta_local > 0) {
            LT_TRY(upload_rope(p, p->rope_local, true));
            p->run.rope_local.data = p->rope_local;
        }
    }
    if (s->act == LT_ACT_XIELU && p->model->master == NULL) {
        LT_TRY(lt_run_copy_xielu(&p->run, p->xielu));
    }
    return LT_OK;
}

static lt_err place(lt_pass *p) {
    const lt_backend *backend = p->run.backend;
    const int64_t n = p->model->table.n_elements;
    arenas a = {0};
    pass_carve(p, p->run.spec, p->run.dtype, n, &p->options, &a);
    LT_TRY(lt_arena_place(&a.activations, backend, "activations"));
    p->activations = a.activations;
    LT_TRY(lt_arena_place(&a.gradients, backend, "gradients"));
    p->gradients = a.gradients;
    LT_TRY(lt_arena_place(&a.logits, backend, "logits"));
    p->logits = a.logits;
    LT_TRY(lt_arena_place(&a.scratch, backend, "scratch"));
    p->scratch = a.scratch;
    pass_carve(p, p->run.spec, p->run.dtype, n, &p->options, &a);
    p->carved_batch = p->options.batch;
    p->carved_seq = p->options.seq;
    return LT_OK;
}

lt_err lt_pass_open(lt_pass **out, lt_model *m, const lt_pass_options *o) {
    lt_err err = LT_OK;
    const size_t rows = (size_t)(o->batch * o->seq);
    lt_pass *p = NULL;

    LT_TRY(check_options(o, &m->spec));
    if (o->train && m->master == NULL) {
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
    LT_TRY_DONE(lt_run_open(&p->run, m));
    p->layers = calloc((size_t)m->spec.n_layers, sizeof *p->layers);
    p->host_ids = calloc(rows, sizeof *p->host_ids);
    p->host_loss = calloc(rows, sizeof *p->host_loss);
    p->host_best = calloc(rows, sizeof *p->host_best);
    if (p->layers == NULL || p->host_ids == NULL || p->host_loss == NULL || p->host_best == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "pass: staging of %zu rows", rows);
    }
    LT_TRY_DONE(place(p));
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
    lt_arena_release(&p->activations, p->run.backend);
    lt_arena_release(&p->gradients, p->run.backend);
    lt_arena_release(&p->logits, p->run.backend);
    lt_arena_release(&p->scratch, p->run.backend);
    if (p->run.queue != NULL) {
        p->run.backend->queue_close(p->run.queue);
    }
    free(p->layers);
    free(p->host_ids);
    free(p->host_loss);
    free(p->host_best);
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
    const lt_model_spec *s = p->run.spec;
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
    const lt_acts_shape shape = {batch, seq, p->run.dtype, p->options.train, level_of(&p->options)};
    if (batch != p->carved_batch || seq != p->carved_seq) {
        lt_arena_rewind(&p->activations);
        lt_acts_carve(p->layers, p->run.spec, &shape, &p->activations);
        lt_batch_carve(&p->batch, p->run.spec, &shape, &p->activations);
        p->carved_batch = batch;
        p->carved_seq = seq;
    }
}

static lt_err upload_batch(lt_pass *p, const lt_pass_batch *b) {
    const size_t bytes = (size_t)(b->batch * b->seq) * sizeof(int32_t);
    lt_run *r = &p->run;
    const int32_t *positions = b->positions;

    reshape(p, b->batch, b->seq);
    r->batch = b->batch;
    r->seq = b->seq;
    if (positions == NULL) {
        for (int64_t i = 0; i < b->batch * b->seq; i++) {
            p->host_ids[i] = (int32_t)(i % b->seq);
        }
        positions = p->host_ids;
    }
    LT_TRY(r->backend->upload(r->queue, p->batch.tokens.data, b->tokens, bytes));
    LT_TRY(r->backend->upload(r->queue, p->batch.labels.data, b->labels, bytes));
    LT_TRY(r->backend->upload(r->queue, p->batch.positions.data, positions, bytes));
    r->positions = p->batch.positions;
    r->doc_start = (lt_tensor){0};
    if (b->doc_start != NULL) {
        LT_TRY(r->backend->upload(r->queue, p->batch.doc_start.data, b->doc_start, bytes));
        r->doc_start = p->batch.doc_start;
    }
    return LT_OK;
}

/* gemma's factor is rounded to the weights' type, as transformers multiplies by it. */
static float embed_scale(const lt_run *r) {
    const float scale = r->spec->embed_scale;
    return r->dtype == LT_BF16 ? lt_bf16_to_f32(lt_f32_to_bf16(scale)) : scale;
}

static int64_t capacity(const lt_run *r, bool train) {
    const lt_model_spec *s = r->spec;
    const double rows = (double)(r->batch * r->seq);
    if (!train || s->n_experts == 0 || s->moe_capacity == 0) {
        return 0;
    }
    return (int64_t)ceil(s->moe_capacity * rows * (double)s->top_k / (double)s->n_experts);
}

static lt_err layer_fwd(lt_pass *p, int layer, lt_tensor stream, bool train) {
    lt_run *r = &p->run;
    LT_TRY(lt_attention_block_fwd(r, layer, &p->layers[layer], &p->batch, stream));
    LT_TRY(lt_mlp_block_fwd(r, layer, &p->layers[layer], &p->batch, capacity(r, train)));
    p->recomputed = layer;
    return LT_OK;
}

static lt_err add_aux(lt_pass *p, lt_pass_result *result) {
    float aux[2] = {0};
    if (p->run.spec->n_experts == 0) {
        return LT_OK;
    }
    LT_TRY(p->run.backend->download(p->run.queue, aux, p->batch.aux.data, sizeof aux));
    LT_TRY(p->run.backend->sync(p->run.queue));
    result->aux_sum += (double)aux[0];
    result->z_sum += (double)aux[1];
    return LT_OK;
}

/* Tokens to h_final. */
static lt_err forward(lt_pass *p, lt_pass_result *result, bool train) {
    lt_run *r = &p->run;
    const lt_batch_acts *b = &p->batch;
    const lt_norm norm = {LT_PARAM_FINAL_NORM, LT_PARAM_FINAL_NORM_BIAS, 0, b->mean_final,
                          b->rstd_final};
    lt_tensor stream = {0};

    LT_TRY(
        lt_run_embed_fwd(r, &(lt_embed_args){.y = p->layers[0].x_in,
                                             .table = lt_run_weight(r, LT_PARAM_EMBED, 0),
                                             .ids = b->tokens,
                                             .pos_table = lt_run_weight(r, LT_PARAM_POS_EMBED, 0),
                                             .positions = r->positions,
                                             .scale = embed_scale(r)}));
    for (int layer = 0; layer < r->spec->n_layers; layer++) {
        LT_TRY(layer_fwd(p, layer, stream, train));
        LT_TRY(add_aux(p, result));
        stream = p->layers[layer].x_mid;
    }
    return lt_norm_fwd(r, &norm, b->h_final, stream, b->branch, b->x_final);
}

/* dh of h_final to the gradients. */
static lt_err backward(lt_pass *p, float aux_scale) {
    lt_run *r = &p->run;
    const lt_batch_acts *b = &p->batch;
    const lt_norm norm = {LT_PARAM_FINAL_NORM, LT_PARAM_FINAL_NORM_BIAS, 0, b->mean_final,
                          b->rstd_final};
    const lt_recompute level = p->options.recompute;

    LT_TRY(lt_norm_bwd(r, &norm, b->dx, b->dh, b->x_final, false));
    for (int layer = (int)r->spec->n_layers - 1; layer >= 0; layer--) {
        if (level == LT_RECOMPUTE_FULL && p->recomputed != layer) {
            LT_TRY(layer_fwd(p, layer, (lt_tensor){0}, true));
        }
        LT_TRY(lt_mlp_block_bwd(r, layer, &p->layers[layer], b, level, aux_scale));
        LT_TRY(lt_attention_block_bwd(r, layer, &p->layers[layer], b, level));
    }
    return lt_run_embed_bwd(
        r, &(lt_embed_bwd_args){.dtable = lt_run_gradient(r, LT_PARAM_EMBED, 0),
                                .dpos_table = lt_run_gradient(r, LT_PARAM_POS_EMBED, 0),
                                .dy = b->dx,
                                .ids = b->tokens,
                                .positions = r->positions,
                                .scale = embed_scale(r)});
}

/* Losses to the host, summed in order in double. */
static lt_err collect(lt_pass *p, const lt_pass_batch *b, lt_pass_result *result,
                      float *loss_rows) {
    const size_t rows = (size_t)(b->batch * b->seq);
    lt_run *r = &p->run;
    LT_TRY(r->backend->download(r->queue, p->host_loss, p->batch.loss_rows.data,
                                rows * sizeof(float)));
    LT_TRY(
        r->backend->download(r->queue, p->host_best, p->batch.best.data, rows * sizeof(int32_t)));
    LT_TRY(r->backend->sync(r->queue));
    for (size_t i = 0; i < rows; i++) {
        if (b->labels[i] >= 0) {
            result->loss_sum += (double)p->host_loss[i];
            result->n_labels++;
            result->n_correct += p->host_best[i] == b->labels[i];
        }
    }
    if (loss_rows != NULL) {
        memcpy(loss_rows, p->host_loss, rows * sizeof(float));
    }
    return LT_OK;
}

lt_err lt_pass_eval(lt_pass *p, const lt_pass_batch *b, lt_pass_result *result, float *loss_rows) {
    *result = (lt_pass_result){0};
    LT_TRY(check_batch(p, b));
    LT_TRY(upload_batch(p, b));
    LT_TRY(forward(p, result, false));
    LT_TRY(lt_loss_run(&p->run, &p->loss, &p->batch, b->labels, 0));
    return collect(p, b, result, loss_rows);
}

lt_err lt_pass_train(lt_pass *p, const lt_pass_batch *b, float grad_scale, lt_pass_result *result) {
    int64_t n_labels = 0;
    *result = (lt_pass_result){0};
    LT_ASSERT(p->options.train && grad_scale != 0);
    LT_TRY(check_batch(p, b));
    for (int64_t i = 0; i < b->batch * b->seq; i++) {
        n_labels += b->labels[i] >= 0;
    }
    LT_TRY(upload_batch(p, b));
    LT_TRY(forward(p, result, true));
    LT_TRY(lt_loss_run(&p->run, &p->loss, &p->batch, b->labels, grad_scale));
    LT_TRY(backward(p, grad_scale * (float)n_labels));
    return collect(p, b, result, NULL);
}

float *lt_pass_gradients(lt_pass *p) {
    return p->run.gradients;
}

lt_err lt_pass_zero_gradients(lt_pass *p) {
    LT_ASSERT(p->run.gradients != NULL);
    return p->run.backend->zero(p->run.queue, p->run.gradients, p->gradients.size_bytes);
}

void lt_pass_profile(const lt_pass *p, double *seconds, int64_t *calls) {
    memcpy(seconds, p->run.seconds, sizeof p->run.seconds);
    memcpy(calls, p->run.calls, sizeof p->run.calls);
}

const lt_layer_acts *lt_pass_layer_acts(const lt_pass *p, int layer) {
    LT_ASSERT(layer >= 0 && layer < p->run.spec->n_layers);
    return &p->layers[layer];
}

const lt_batch_acts *lt_pass_batch_acts(const lt_pass *p) {
    return &p->batch;
}
