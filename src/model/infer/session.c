/* session.c: runs growing sequences with a key/value cache: prefill in chunks, decoding of one
 * token for many sequences at once.
 *
 * The blocks are those of the pass; between q k v and the output projection, attention reads the
 * cache instead of the batch:
 *
 *     cache  (L, 2, n_seqs, max_seq, G, D), act dtype, or F16 if weights are held as stored: keys
 *            of a layer, then its values
 *
 * A prompt runs in chunks of CHUNK_ROWS rows of one sequence (B = 1, T = rows). A step runs one row
 * of each of n sequences (B = n, T = 1), and sequences that are neighbours in the cache share one
 * attention call. A row's arithmetic does not depend on which other rows run with it, except
 * through the order in which a product's kernel sums, which may depend on its shape.
 *
 * Scores are losses against given labels: the logits of a chunk of rows are computed and used on
 * the device and then overwritten, so that they never exist all at once and none is transferred.
 *
 * If the length of a text decides its rotation (rope.c), keys stay in the cache as they were
 * rotated by the call that appended them, as in transformers. Only Phi-3 differs: the call with
 * which a text outgrows the original context evaluates all of its tokens again, so that all are
 * rotated in the same way.
 *
 * A failed call leaves every sequence as long as it was: rows above the length are never read. */
#include "model/infer/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/blocks/block.h"
#include "model/lora/adapted.h"
#include "model/files/decoded.h"
#include "model/pass/prepare.h"

/* The weights are read once for each chunk, which takes a few per cent of the products' time at
 * 512 rows. */
#define CHUNK_ROWS 512

#define MAX_CACHE 0x1p48 /* Most elements: it keeps every size far from overflow. */

#define SCORE_LOGITS_BYTES (64 << 20)

struct lt_session {
    lt_exec exec;
    int64_t n_seqs, max_seq, chunk_rows;
    lt_prepared prepared;
    lt_arena cache, activations; /* Arenas in the backend's memory. */
    /* One set of activations, in the view of the current layer: nothing is kept for a backward
     * pass. */
    lt_layer_acts room, layer;
    lt_acts_shape shape; /* Shape of the last call. */
    bool alike;          /* All layers have the same view of it. */
    lt_batch_acts batch;
    lt_lora_run lora;  /* The adapters of a model that has some. */
    void *kv;          /* The cache. */
    lt_dtype kv_dtype; /* Its type. */
    lt_tensor kv_len;  /* (n_seqs) I32 */
    /* (rows, V) on a device whose memory the host cannot read; otherwise NULL. */
    float *logits;
    int64_t *length; /* (n_seqs), host */
    /* (n_seqs, max_seq), host: their tokens, if they may run again; otherwise NULL. */
    int32_t *history;
    /* (2 * rows): positions or key counts that are being transferred to the device. */
    int32_t *host_ids;
    lt_arena score; /* In the backend's memory; placed by the first call that scores: */
    lt_tensor score_logits, labels, loss, best; /* (score rows, V), then (chunk_rows) each. */
};

/* A cache of 16 bits takes half the memory and half the time to read. */
static lt_dtype cache_dtype(const lt_model *m) {
    return m->options.stored && m->backend->host_memory ? LT_F16 : m->options.dtype;
}

static int64_t max_rows(const lt_session *s) {
    return s->chunk_rows > s->n_seqs ? s->chunk_rows : s->n_seqs;
}

static lt_acts_shape acts_shape(const lt_session *s, int64_t batch, int64_t seq) {
    return (lt_acts_shape){
        .batch = batch, .seq = seq, .dtype = s->exec.dtype, .level = LT_KEEP_NOTHING};
}

static void see_layer(lt_session *s, int layer) {
    lt_acts_view(&s->layer, &s->room, s->exec.spec, layer, &s->shape);
    s->layer.lse = (lt_tensor){0}; /* Only a backward pass would read it. */
}

/* Activations of a call of this shape. Memory that lives longer comes first, so it stays in its
 * place. */
static void acts_carve(lt_session *s, int64_t batch, int64_t seq) {
    const lt_model_spec *spec = s->exec.spec;
    const lt_acts_shape shape = acts_shape(s, batch, seq);
    const size_t logits = s->exec.backend->host_memory
                              ? 0
                              : (size_t)(s->n_seqs * lt_model_spec_outputs(spec)) * sizeof(float);
    lt_arena *a = &s->activations;

    lt_arena_rewind(a);
    s->kv_len = lt_tensor_take(a, LT_I32, s->n_seqs, 0, 0);
    s->logits = lt_arena_take(a, logits, LT_ARENA_ALIGN);
    lt_acts_carve_one(&s->room, spec, &shape, a);
    s->shape = shape;
    see_layer(s, 0);
    lt_batch_carve(&s->batch, spec, &shape, a);
    if (s->exec.model->options.decoded) {
        lt_decoded_carve(&s->exec, &s->exec.model->table, s->exec.dtype,
                         !s->exec.model->backend->host_memory, a);
    }
    if (s->exec.model->lora != NULL) {
        const lt_lora *l = s->exec.model->lora;
        lt_lora_carve(&s->lora, &l->options, &l->sizes, batch * seq, s->exec.dtype, false, a);
    }
}

static size_t cache_layer_elements(const lt_session *s) {
    return (size_t)(s->n_seqs * s->max_seq * s->exec.spec->n_kv_heads * s->exec.spec->head_dim);
}

/* Keys (values: which 1) of a layer: sequences [seq, seq + n), their first `count` tokens: (n,
 * count, G, D). */
static lt_tensor cache_view(const lt_session *s, int layer, int which, int64_t seq, int64_t n,
                            int64_t count) {
    const int64_t G = s->exec.spec->n_kv_heads, D = s->exec.spec->head_dim, row = G * D;
    const size_t at = cache_layer_elements(s) * (size_t)(2 * layer + which) +
                      (size_t)(seq * s->max_seq * row);
    return (lt_tensor){.data = (char *)s->kv + at * lt_dtype_bytes(s->kv_dtype),
                       .n_dims = 4,
                       .dtype = s->kv_dtype,
                       .shape = {n, count, G, D},
                       .stride = {s->max_seq * row, row, D, 1}};
}

/* Measure the memory that place takes, in arenas that only count. */
static void measure(lt_session *s) {
    size_t prefill;
    (void)lt_arena_take(&s->cache,
                        cache_layer_elements(s) * (size_t)(2 * s->exec.spec->n_layers) *
                            lt_dtype_bytes(s->kv_dtype),
                        LT_ARENA_ALIGN);
    acts_carve(s, 1, s->chunk_rows);
    prefill = s->activations.used_bytes;
    acts_carve(s, s->n_seqs, 1);
    s->activations.used_bytes = s->activations.used_bytes > prefill ? s->activations.used_bytes
                                                                    : prefill;
}

static lt_err place(lt_session *s) {
    lt_device *device = s->exec.device;
    measure(s);
    LT_TRY(lt_arena_place(&s->cache, device, "key/value cache"));
    s->kv = s->cache.base;
    LT_TRY(lt_arena_place(&s->activations, device, "activations"));
    acts_carve(s, 1, 1);
    return LT_OK;
}

static bool runs_again(const lt_session *s) {
    return s->exec.spec->rope_runs_again && lt_rope_switch(s->exec.spec) > 0 &&
           lt_rope_switch(s->exec.spec) < s->max_seq;
}

static lt_err open_session(lt_session **out, const lt_model *m, int64_t n_seqs, int64_t max_seq,
                           bool pack) {
    lt_err err = LT_OK;
    lt_session *s = NULL;

    if (n_seqs < 1 || max_seq < 1 || n_seqs > INT32_MAX || max_seq > INT32_MAX) {
        LT_FAIL(LT_ERR_ARG, "session: %lld sequences of %lld tokens", (long long)n_seqs,
                (long long)max_seq);
    }
    if ((double)n_seqs * (double)max_seq *
            (double)(m->spec.n_kv_heads * m->spec.head_dim * m->spec.n_layers) >
        MAX_CACHE) {
        LT_FAIL(LT_ERR_LIMIT,
                "session: keys and values of %lld sequences of %lld tokens exceed any memory",
                (long long)n_seqs, (long long)max_seq);
    }
    if (m->spec.pos == LT_POS_LEARNED && max_seq > m->spec.max_seq) {
        LT_FAIL(LT_ERR_ARG, "session: %lld tokens, but the model has %lld learned positions",
                (long long)max_seq, (long long)m->spec.max_seq);
    }
    s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "session");
    }
    s->n_seqs = n_seqs;
    s->max_seq = max_seq;
    s->kv_dtype = cache_dtype(m);
    s->chunk_rows = max_seq < CHUNK_ROWS ? max_seq : CHUNK_ROWS;
    LT_TRY_DONE(lt_exec_prepare(&s->exec, &s->prepared, m, max_seq, pack));
    lt_lora_attach(&s->exec, &s->lora);
    s->alike = lt_layers_alike(&m->spec);
    s->length = calloc((size_t)n_seqs, sizeof *s->length);
    s->host_ids = calloc((size_t)max_rows(s) * 2, sizeof *s->host_ids);
    if (runs_again(s)) {
        s->history = calloc((size_t)(n_seqs * max_seq), sizeof *s->history);
    }
    if (s->length == NULL || s->host_ids == NULL || (runs_again(s) && s->history == NULL)) {
        LT_FAIL_DONE(LT_ERR_OOM, "session of %lld sequences", (long long)n_seqs);
    }
    LT_TRY_DONE(place(s));
    *out = s;
    s = NULL;
done:
    lt_session_close(s);
    return err;
}

lt_err lt_session_open(lt_session **out, const lt_model *m, int64_t n_seqs, int64_t max_seq) {
    return open_session(out, m, n_seqs, max_seq, true);
}

lt_err lt_session_open_short(lt_session **out, const lt_model *m, int64_t n_seqs, int64_t max_seq) {
    return open_session(out, m, n_seqs, max_seq, false);
}

void lt_session_measure_short(lt_session_memory *out, const lt_model *m, int64_t n_seqs,
                              int64_t max_seq) {
    lt_session s = {.n_seqs = n_seqs, .max_seq = max_seq, .kv_dtype = cache_dtype(m)};
    s.exec = (lt_exec){
        .model = m, .spec = &m->spec, .backend = m->backend, .dtype = m->options.dtype};
    s.chunk_rows = max_seq < CHUNK_ROWS ? max_seq : CHUNK_ROWS;
    measure(&s);
    *out = (lt_session_memory){
        s.cache.used_bytes, s.activations.used_bytes + lt_exec_tables_bytes(&m->spec, max_seq), 0};
}

void lt_session_close(lt_session *s) {
    if (s == NULL) {
        return;
    }
    lt_arena_release(&s->score, s->exec.device);
    lt_arena_release(&s->cache, s->exec.device);
    lt_arena_release(&s->activations, s->exec.device);
    lt_exec_release(&s->exec, &s->prepared);
    free(s->length);
    free(s->history);
    free(s->host_ids);
    free(s);
}

/* Row i of this call is token `position` of sequence `seq`. */
typedef struct {
    const int64_t *seqs; /* (n) for a step; NULL: all rows are of sequence `seq`. */
    int64_t seq, n;
    int64_t first; /* Position of row 0, if the rows are of one sequence. */
    int64_t rope;  /* Offset from positions to rotary rows. */
} rows;

static int64_t row_seq(const rows *w, int64_t i) {
    return w->seqs != NULL ? w->seqs[i] : w->seq;
}

/* Store the new rows' keys and values in the cache. */
static lt_err store_kv(lt_session *s, int layer, const rows *w) {
    lt_exec *r = &s->exec;
    const lt_layer_spec l = lt_model_layer(r->spec, layer);
    const lt_tensor *from[2] = {lt_attention_qk(&l, &s->layer), &s->layer.qkv};
    const int64_t column[2] = {lt_layer_q_cols(&l), lt_layer_qk_cols(&l)},
                  width = lt_layer_k_cols(&l);
    const int64_t at_once = w->seqs != NULL ? 1 : w->n;

    for (int which = 0; which < 2; which++) {
        const lt_tensor x = lt_tensor_cols(from[which], column[which], width);
        for (int64_t i = 0; i < w->n; i += at_once) {
            const int64_t seq = row_seq(w, i), at = w->seqs != NULL ? s->length[seq] : w->first;
            lt_tensor cache = cache_view(s, layer, which, seq, 1, at + at_once);
            cache = lt_tensor_2d((char *)cache.data +
                                     (size_t)(at * width) * lt_dtype_bytes(s->kv_dtype),
                                 s->kv_dtype, at_once, width);
            LT_TRY(
                lt_exec_cast(r, &(lt_cast_args){.y = cache, .x = lt_tensor_rows(&x, i, at_once)}));
        }
    }
    return LT_OK;
}

/* Attention of rows [i, i + n) of the call, sequences [seq, seq + n) of the cache, up to n_keys of
 * them. */
static lt_err attend(lt_session *s, int layer, int64_t i, int64_t seq, int64_t n, int64_t n_keys) {
    lt_exec *r = &s->exec;
    const lt_layer_spec l = lt_model_layer(r->spec, layer);
    const lt_tensor q = lt_heads(r, lt_attention_qk(&l, &s->layer), 0, l.n_heads, l.head_dim),
                    out = lt_heads(r, &s->layer.att, 0, l.n_heads, l.value_dim);
    return lt_exec_attention_fwd(r,
                                 &(lt_attention_args){.out = lt_tensor_rows(&out, i, n),
                                                      .q = lt_tensor_rows(&q, i, n),
                                                      .k = cache_view(s, layer, 0, seq, n, n_keys),
                                                      .v = cache_view(s, layer, 1, seq, n, n_keys),
                                                      .kv_len = lt_tensor_rows(&s->kv_len, i, n),
                                                      .sinks = lt_exec_sinks(r, layer),
                                                      .scale = l.attn_scale,
                                                      .softcap = l.attn_softcap,
                                                      .window = l.window,
                                                      .causal = true});
}

static lt_err attend_all(lt_session *s, int layer, const rows *w) {
    if (w->seqs == NULL) {
        return attend(s, layer, 0, w->seq, 1, w->first + w->n);
    }
    /* Runs of sequences that are consecutive in the cache. */
    for (int64_t i = 0, n; i < w->n; i += n) {
        int64_t n_keys = s->length[w->seqs[i]] + 1;
        for (n = 1; i + n < w->n && w->seqs[i + n] == w->seqs[i] + n; n++) {
            const int64_t more = s->length[w->seqs[i + n]] + 1;
            n_keys = more > n_keys ? more : n_keys;
        }
        LT_TRY(attend(s, layer, i, w->seqs[i], n, n_keys));
    }
    return LT_OK;
}

/* Transfer positions and key counts of the rows to the device. */
static lt_err upload_rows(lt_session *s, const rows *w, const int32_t *ids) {
    lt_exec *r = &s->exec;
    int32_t *positions = s->host_ids, *kv_len = s->host_ids + max_rows(s);
    const int64_t n_lens = w->seqs != NULL ? w->n : 1;

    LT_TRY(r->backend->sync(r->queue)); /* The last call's ids may still be in transfer. */
    for (int64_t i = 0; i < w->n; i++) {
        positions[i] = (int32_t)(w->seqs != NULL ? s->length[w->seqs[i]] : w->first + w->rope + i);
    }
    for (int64_t i = 0; i < n_lens; i++) {
        kv_len[i] = w->seqs != NULL ? positions[i] + 1 : (int32_t)(w->first + w->n);
    }
    LT_TRY(r->backend->upload(r->queue, s->batch.tokens.data, ids, (size_t)w->n * sizeof *ids));
    LT_TRY(r->backend->upload(r->queue, s->batch.positions.data, positions,
                              (size_t)w->n * sizeof *positions));
    LT_TRY(r->backend->upload(r->queue, s->kv_len.data, kv_len, (size_t)n_lens * sizeof *kv_len));
    r->positions = s->batch.positions;
    return LT_OK;
}

/* Run the rows through all layers; the last addition is left to the final norm. */
static lt_err run_layers(lt_session *s, const rows *w, const int32_t *ids) {
    lt_exec *r = &s->exec;
    lt_tensor stream = {0};

    r->batch = w->seqs != NULL ? w->n : 1;
    r->seq = w->seqs != NULL ? 1 : w->n;
    acts_carve(s, r->batch, r->seq);
    LT_TRY(upload_rows(s, w, ids));
    LT_TRY(lt_embedding_fwd(r, s->layer.x_in, s->batch.tokens));
    for (int layer = 0; layer < r->spec->n_layers; layer++) {
        if (!s->alike) {
            see_layer(s, layer);
        }
        LT_TRY(lt_attention_qkv_fwd(r, layer, &s->layer, &s->batch, stream));
        LT_TRY(store_kv(s, layer, w));
        LT_TRY(attend_all(s, layer, w));
        LT_TRY(lt_attention_out_fwd(r, layer, &s->layer, &s->batch));
        LT_TRY(lt_mlp_block_fwd(r, layer, &s->layer, &s->batch, 0));
        stream = s->layer.x_mid;
    }
    return LT_OK;
}

/* Compute the final norm of rows [first, first + n) of the call, which the head reads. */
static lt_err final_norm(lt_session *s, int64_t first, int64_t n, lt_tensor *h) {
    const lt_batch_acts *b = &s->batch;
    const lt_norm norm = {LT_PARAM_FINAL_NORM, LT_PARAM_FINAL_NORM_BIAS, 0,
                          lt_tensor_rows(&b->mean_final, first, n),
                          lt_tensor_rows(&b->rstd_final, first, n)};
    *h = lt_tensor_rows(&b->h_final, first, n);
    return lt_final_norm_fwd(&s->exec, &norm, *h, lt_tensor_rows(&s->layer.x_mid, first, n),
                             lt_tensor_rows(&b->branch, first, n),
                             lt_tensor_rows(&b->x_final, first, n));
}

/* Logits of some rows of h, without the cap. */
static lt_err make_logits(lt_session *s, lt_tensor logits, lt_tensor h) {
    return lt_linear_fwd(&s->exec, logits, h, lt_param_head(s->exec.spec),
                         lt_param_head_bias(s->exec.spec), 0);
}

/* Copy logits of rows [first, first + n) of the call to host memory, out (n, V). */
static lt_err head(lt_session *s, int64_t first, int64_t n, float *out) {
    lt_exec *r = &s->exec;
    const int64_t V = lt_model_spec_outputs(r->spec);
    const int64_t at_once = r->backend->host_memory ? n : s->n_seqs;
    const float cap = r->spec->n_scores == 0 ? r->spec->final_softcap : 0.0f;
    lt_tensor h;

    LT_TRY(final_norm(s, first, n, &h));
    for (int64_t i = 0; i < n; i += at_once) {
        const int64_t count = n - i < at_once ? n - i : at_once;
        float *to = r->backend->host_memory ? out + i * V : s->logits;
        LT_TRY(make_logits(s, lt_tensor_2d(to, LT_F32, count, V), lt_tensor_rows(&h, i, count)));
        if (!r->backend->host_memory) {
            LT_TRY(
                r->backend->download(r->queue, out + i * V, to, (size_t)(count * V) * sizeof *out));
        }
    }
    LT_TRY(r->backend->sync(r->queue));
    for (int64_t i = 0; cap > 0 && i < n * V; i++) {
        out[i] = cap * tanhf(out[i] / cap);
    }
    return LT_OK;
}

static void score_carve(lt_session *s) {
    const int64_t V = s->exec.spec->vocab_size, fit = SCORE_LOGITS_BYTES / 4 / V,
                  wanted = fit < 16 ? 16 : fit;
    s->score_logits = lt_tensor_take(&s->score, LT_F32,
                                     wanted < s->chunk_rows ? wanted : s->chunk_rows, V, 0);
    s->labels = lt_tensor_take(&s->score, LT_I32, s->chunk_rows, 0, 0);
    s->loss = lt_tensor_take(&s->score, LT_F32, s->chunk_rows, 0, 0);
    s->best = lt_tensor_take(&s->score, LT_I32, s->chunk_rows, 0, 0);
}

static lt_err score_place(lt_session *s) {
    if (s->score.base != NULL) {
        return LT_OK;
    }
    score_carve(s);
    LT_TRY(lt_arena_place(&s->score, s->exec.device, "scores"));
    score_carve(s);
    return LT_OK;
}

/* Copy losses and most likely ids of the call's n rows to the host. */
static lt_err score_rows(lt_session *s, int64_t n, const int32_t *labels, float *loss,
                         int32_t *best) {
    lt_exec *r = &s->exec;
    lt_tensor h;

    LT_TRY(r->backend->upload(r->queue, s->labels.data, labels, (size_t)n * sizeof *labels));
    LT_TRY(final_norm(s, 0, n, &h));
    for (int64_t i = 0, count; i < n; i += count) {
        count = n - i < s->score_logits.shape[0] ? n - i : s->score_logits.shape[0];
        const lt_tensor logits = lt_tensor_rows(&s->score_logits, 0, count);
        LT_TRY(make_logits(s, logits, lt_tensor_rows(&h, i, count)));
        LT_TRY(lt_exec_xent(r, &(lt_xent_args){.logits = logits,
                                               .labels = lt_tensor_rows(&s->labels, i, count),
                                               .loss = lt_tensor_rows(&s->loss, i, count),
                                               .best = lt_tensor_rows(&s->best, i, count),
                                               .softcap = r->spec->final_softcap}));
    }
    LT_TRY(r->backend->download(r->queue, loss, s->loss.data, (size_t)n * sizeof *loss));
    LT_TRY(r->backend->download(r->queue, best, s->best.data, (size_t)n * sizeof *best));
    return r->backend->sync(r->queue);
}

static lt_err check_ids(const lt_session *s, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= s->exec.spec->vocab_size) {
            LT_FAIL(LT_ERR_ARG, "session: token %d is outside [0, %lld)", (int)ids[i],
                    (long long)s->exec.spec->vocab_size);
        }
    }
    return LT_OK;
}

static lt_err check_room(const lt_session *s, int64_t seq, int64_t n) {
    if (seq < 0 || seq >= s->n_seqs) {
        LT_FAIL(LT_ERR_ARG, "session: sequence %lld is outside [0, %lld)", (long long)seq,
                (long long)s->n_seqs);
    }
    if (n > s->max_seq - s->length[seq]) {
        LT_FAIL(LT_ERR_LIMIT, "session: sequence %lld of %lld tokens and %lld more exceed its %lld",
                (long long)seq, (long long)s->length[seq], (long long)n, (long long)s->max_seq);
    }
    return LT_OK;
}

/* Prepare a call of n more tokens: the rotary rows for the length of the whole call, not of its
 * chunks; and compute all earlier tokens again if they were rotated as those of a short text. */
static lt_err begin_call(lt_session *s, int64_t seq, const int32_t *ids, int64_t n, int64_t *rope) {
    const int64_t past = s->length[seq], end = past + n, limit = lt_rope_switch(s->exec.spec);
    int32_t *history = s->history != NULL ? s->history + seq * s->max_seq : NULL;
    const bool again = history != NULL && past > 0 && past <= limit && end > limit;
    bool changed;

    LT_TRY(lt_exec_refresh(&s->exec, &s->prepared, &changed));
    *rope = lt_exec_rope_rows(s->exec.spec, s->max_seq, again ? end : n, end);
    LT_TRY(*rope > 0 ? lt_exec_rope_fill(&s->exec, s->max_seq, end) : LT_OK);
    for (int64_t i = 0, count; again && i < past; i += count) {
        count = past - i < s->chunk_rows ? past - i : s->chunk_rows;
        const rows w = {.seq = seq, .n = count, .first = i, .rope = *rope};
        LT_TRY(run_layers(s, &w, history + i));
    }
    if (history != NULL) {
        memcpy(history + past, ids, (size_t)n * sizeof *ids);
    }
    return LT_OK;
}

static lt_err eval(lt_session *s, int64_t seq, const int32_t *ids, int64_t n, float *logits,
                   bool all) {
    const int64_t V = lt_model_spec_outputs(s->exec.spec);
    int64_t rope;
    LT_ASSERT(n > 0);
    LT_TRY(check_room(s, seq, n));
    LT_TRY(check_ids(s, ids, n));
    LT_TRY(begin_call(s, seq, ids, n, &rope));
    for (int64_t i = 0, count; i < n; i += count) {
        count = n - i < s->chunk_rows ? n - i : s->chunk_rows;
        const rows w = {.seq = seq, .n = count, .first = s->length[seq] + i, .rope = rope};
        LT_TRY(run_layers(s, &w, ids + i));
        if (logits != NULL && all) {
            LT_TRY(head(s, 0, count, logits + i * V));
        } else if (logits != NULL && i + count == n) {
            LT_TRY(head(s, count - 1, 1, logits));
        }
    }
    LT_TRY(s->exec.backend->sync(s->exec.queue));
    s->length[seq] += n;
    return LT_OK;
}

lt_err lt_session_eval(lt_session *s, int64_t seq, const int32_t *ids, int64_t n, float *logits) {
    return eval(s, seq, ids, n, logits, false);
}

lt_err lt_session_eval_all(lt_session *s, int64_t seq, const int32_t *ids, int64_t n,
                           float *all_logits) {
    return eval(s, seq, ids, n, all_logits, true);
}

lt_err lt_session_score(lt_session *s, int64_t seq, const int32_t *ids, int64_t n,
                        const int32_t *labels, float *loss, int32_t *best) {
    int64_t rope;
    LT_ASSERT(n > 0);
    LT_TRY(lt_model_spec_writes(s->exec.spec, "losses of tokens"));
    LT_TRY(check_room(s, seq, n));
    LT_TRY(check_ids(s, ids, n));
    LT_TRY(begin_call(s, seq, ids, n, &rope));
    LT_TRY(check_ids(s, labels, n));
    LT_TRY(score_place(s));
    for (int64_t i = 0, count; i < n; i += count) {
        count = n - i < s->chunk_rows ? n - i : s->chunk_rows;
        const rows w = {.seq = seq, .n = count, .first = s->length[seq] + i, .rope = rope};
        LT_TRY(run_layers(s, &w, ids + i));
        LT_TRY(score_rows(s, count, labels + i, loss + i, best + i));
    }
    s->length[seq] += n;
    return LT_OK;
}

/* Step sequences whose tokens are kept one by one, because each may have to run its tokens
 * again. */
static lt_err step_alone(lt_session *s, const int64_t *seqs, const int32_t *ids, int64_t n,
                         float *logits) {
    const int64_t V = lt_model_spec_outputs(s->exec.spec);
    lt_err err = LT_OK;
    int64_t done = 0;
    for (; done < n && err == LT_OK; done += err == LT_OK) {
        err = eval(s, seqs[done], ids + done, 1, logits != NULL ? logits + done * V : NULL, false);
    }
    for (int64_t i = 0; i < done && err != LT_OK; i++) {
        s->length[seqs[i]]--;
    }
    return err;
}

lt_err lt_session_step(lt_session *s, const int64_t *seqs, const int32_t *ids, int64_t n,
                       float *logits) {
    const rows w = {.seqs = seqs, .n = n};
    bool changed;
    LT_ASSERT(n > 0 && n <= s->n_seqs);
    LT_TRY(check_ids(s, ids, n));
    for (int64_t i = 0; i < n; i++) {
        LT_TRY(check_room(s, seqs[i], 1));
        for (int64_t j = 0; j < i; j++) {
            if (seqs[j] == seqs[i]) {
                LT_FAIL(LT_ERR_ARG, "session: sequence %lld twice in one step", (long long)seqs[i]);
            }
        }
    }
    if (s->history != NULL) {
        return step_alone(s, seqs, ids, n, logits);
    }
    LT_TRY(lt_exec_refresh(&s->exec, &s->prepared, &changed));
    LT_TRY(run_layers(s, &w, ids));
    if (logits != NULL) {
        LT_TRY(head(s, 0, n, logits));
    }
    LT_TRY(s->exec.backend->sync(s->exec.queue));
    for (int64_t i = 0; i < n; i++) {
        s->length[seqs[i]]++;
    }
    return LT_OK;
}

int64_t lt_session_length(const lt_session *s, int64_t seq) {
    LT_ASSERT(seq >= 0 && seq < s->n_seqs);
    return s->length[seq];
}

void lt_session_truncate(lt_session *s, int64_t seq, int64_t length) {
    LT_ASSERT(seq >= 0 && seq < s->n_seqs && length >= 0 && length <= s->length[seq]);
    s->length[seq] = length;
}

void lt_session_get_memory(const lt_session *s, lt_session_memory *out) {
    *out = (lt_session_memory){s->cache.size_bytes,
                               s->activations.size_bytes + s->prepared.tables.size_bytes,
                               s->prepared.packed.size_bytes};
}

void lt_session_profile(const lt_session *s, double *seconds, int64_t *calls) {
    memcpy(seconds, s->exec.seconds, sizeof s->exec.seconds);
    memcpy(calls, s->exec.calls, sizeof s->exec.calls);
}
