/* paged_forward.c: see paged_forward.h. The blocks are those of the pass; between q k v and the
 * output projection it runs kv_write and attention_paged.
 *
 *     pool       for each place of a group (page_groups.h) the pages of keys (n_pages, P, G, D)
 *                cache_dtype, then those of values, of value_dtype. Layers of several groups have
 *                the same place, and different pages there
 *     metadata   one block of I32, filled from the caller's arrays and uploaded once a call:
 *                paged_forward_side.c
 *     out        h_final of the wanted rows, gathered by an embedding lookup, unless they are all
 *                rows, in order; logits of out_rows of them at a time
 *     picks    of those rows, by the op choose: 12 bytes a row come to the host instead of its
 *                logits
 *
 * GRAPHS   Steps in which every sequence decodes one token have shapes that recur. On a backend
 *          with graphs such a step is padded up to a bucket of rows and of pages. The first time it
 *          runs without a graph (kernels are compiled, scratch grows); the next time on the same
 *          side it is recorded; and from then on it is one launch, from embedding to picks. A
 *          padding row is a sequence of one token whose key is dropped and whose result is not
 *          read. The same holds for steps in which each sequence has a few rows (options.few_rows),
 *          such as those that verify drafts. The number of their sequences is padded to a power of
 *          two, and the most rows of a sequence to 4 or few_rows, so that there are few shapes;
 *          some padding sequences then have several rows, others none.
 *
 * AHEAD    Calls are queued one after the other without a wait between them; the data that they
 *          exchange with the host alternates between two sides (paged_forward_side.c). The
 *          embedding reads ids that only the device knows where `choose` left them.
 *
 * SCORES   A model with a score head chooses no tokens, so its calls are not graphs.
 * STEERED  A call with rows that are steered (steering.h) is neither padded nor a graph, so that
 *          graphs hold nothing for what few requests use.
 * ADAPTERS (lora_pool.h) A step of single tokens, some of which have an adapter, has a separate
 * graph in which each row reads the adapter of its place; other calls with adapters are not padded.
 *
 * The code uses only the backend's contract, so it runs on the CPU and on a GPU alike. Nothing is
 * allocated after open. */
#include "model/lora/adapted.h"
#include "model/files/decoded.h"
#include "model/infer/draft_head.h"
#include "model/infer/packs.h"
#include "model/infer/paged_forward_impl.h"
#include "tensor/cached.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of one page of a layer's keys or values. */
static size_t page_bytes(const lt_model_spec *s, int64_t page_tokens, lt_dtype dtype) {
    return lt_dtype_row_bytes(dtype, page_tokens * s->n_kv_heads * s->head_dim);
}

size_t lt_paged_forward_layer_bytes(const lt_model_spec *s, int64_t page_tokens, lt_dtype keys,
                                    lt_dtype values) {
    return page_bytes(s, page_tokens, keys) + page_bytes(s, page_tokens, values);
}

size_t lt_paged_forward_page_bytes(const lt_model_spec *s, int64_t page_tokens, lt_dtype keys,
                                   lt_dtype values) {
    return lt_paged_forward_layer_bytes(s, page_tokens, keys, values) * (size_t)s->n_layers;
}

/* Carve what keeps its place whatever the shape of a call. */
static void fixed_carve(lt_paged_forward *f) {
    const lt_model_spec *s = f->exec.spec;
    const lt_paged_forward_options *o = &f->o;
    lt_arena *a = &f->fixed;
    f->h_out = lt_tensor_take(a, f->exec.dtype, o->max_out, s->width, 0);
    f->out_f32 = lt_tensor_take(a, LT_F32, o->out_rows, s->width, 0);
    f->logits = lt_arena_take(
        a, (size_t)(o->out_rows * lt_model_spec_outputs(s)) * sizeof *f->logits, LT_ARENA_ALIGN);
    lt_paged_forward_sides_carve(f, a);
}

static lt_acts_shape acts_shape(const lt_paged_forward *f, int64_t rows) {
    return (lt_acts_shape){
        .batch = rows, .seq = 1, .dtype = f->exec.dtype, .level = LT_KEEP_NOTHING};
}

static void see_layer(lt_paged_forward *f, int layer, int64_t rows) {
    const lt_acts_shape shape = acts_shape(f, rows);
    lt_acts_view(&f->layer, &f->room, f->exec.spec, layer, &shape);
    f->layer.lse = (lt_tensor){0}; /* Only a backward pass would read it. */
}

static void acts_carve(lt_paged_forward *f, int64_t rows) {
    const lt_acts_shape shape = acts_shape(f, rows);
    lt_arena_rewind(&f->activations);
    lt_acts_carve_one(&f->room, f->exec.spec, &shape, &f->activations);
    see_layer(f, 0, rows);
    lt_batch_carve(&f->batch, f->exec.spec, &shape, &f->activations);
    f->batch.aux = (lt_tensor){0}; /* Only a loss would read the balance of the experts. */
    if (f->exec.pieces > 1) {
        f->exec.piece = lt_tensor_take(&f->activations, f->exec.dtype, rows, f->exec.spec->width,
                                       0);
        f->exec.total = lt_tensor_take(&f->activations, LT_F32, rows, f->exec.spec->width, 0);
    }
    if (f->exec.model->options.decoded) {
        lt_decoded_carve(&f->exec, &f->exec.model->table, f->exec.dtype,
                         !f->exec.model->backend->host_memory, &f->activations);
    }
    if (f->exec.lora != NULL) {
        lt_lora_carve(&f->lora, &f->lora.lora->options, &f->lora.lora->sizes, rows, f->exec.dtype,
                      false, &f->activations);
    }
    if (f->lora_rows.pool != NULL) {
        const int64_t columns = lt_lora_pool_columns(f->lora_rows.pool);
        f->lora_rows.u = lt_tensor_take(&f->activations, f->exec.dtype, rows, columns, 0);
        f->lora_rows.us = lt_tensor_take(&f->activations, f->exec.dtype, rows, columns, 0);
        f->lora_rows.sums = lt_tensor_take(&f->activations, LT_F32, rows, LT_LORA_PARTS * columns,
                                           0);
    }
}

static lt_err place(lt_paged_forward *f) {
    lt_device *device = f->exec.device;
    const lt_model_spec *s = f->exec.spec;
    const size_t pool = (size_t)(f->o.n_pages * f->groups.n_places) *
                        lt_paged_forward_layer_bytes(s, f->o.page_tokens, f->o.cache_dtype,
                                                     f->o.value_dtype);
    (void)lt_arena_take(&f->cache, pool, LT_ARENA_ALIGN);
    LT_TRY(lt_arena_place(&f->cache, device, "key/value pages"));
    f->pool = lt_arena_take(&f->cache, pool, LT_ARENA_ALIGN);
    fixed_carve(f);
    LT_TRY(lt_arena_place(&f->fixed, device, "logits"));
    fixed_carve(f);
    acts_carve(f, f->o.max_rows);
    LT_TRY(lt_arena_place(&f->activations, device, "activations"));
    acts_carve(f, f->o.max_rows); /* What DoRA derives at opening needs scratch of them. */
    return lt_paged_forward_sides_open(f);
}

lt_err lt_paged_forward_check_types(const lt_model *m, lt_dtype keys, lt_dtype values) {
    const lt_dtype types[] = {keys, values};
    for (int i = 0; i < 2; i++) {
        const char *why = lt_cached_refusal(types[i], m->spec.head_dim);
        if (why != NULL) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s in %s, heads of %lld dimensions, on %s: %s",
                    i == 0 ? "keys" : "values", lt_dtype_name(types[i]),
                    (long long)m->spec.head_dim, m->backend->name, why);
        }
    }
    return LT_OK;
}

static lt_err check_options(const lt_model *m, const lt_paged_forward_options *o) {
    LT_TRY(lt_paged_forward_check_types(m, o->cache_dtype, o->value_dtype));
    if (o->max_rows < 1 || o->max_seqs < 1 || o->max_out < 1 || o->out_rows < 1 || o->n_pages < 1 ||
        o->page_tokens < 16 || o->page_tokens % 16 != 0 ||
        /* The number of a slot is an I32. */
        o->max_pages * o->page_tokens < o->max_seq || o->n_pages > INT32_MAX / o->page_tokens) {
        LT_FAIL(LT_ERR_ARG, "forward: %lld rows of %lld sequences, %lld pages of %lld tokens",
                (long long)o->max_rows, (long long)o->max_seqs, (long long)o->n_pages,
                (long long)o->page_tokens);
    }
    if (m->spec.pos == LT_POS_LEARNED && o->max_seq > m->spec.max_seq) {
        LT_FAIL(LT_ERR_ARG, "sequences of %lld tokens, but the model has %lld learned positions",
                (long long)o->max_seq, (long long)m->spec.max_seq);
    }
    if (m->spec.pos == LT_POS_ROPE && m->spec.rope_scaling == LT_ROPE_DYNAMIC &&
        o->max_seq > m->spec.max_seq) { /* Each would need a table of its own. */
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "sequences of %lld tokens: dynamic RoPE is served up to the %lld of the original "
                "context",
                (long long)o->max_seq, (long long)m->spec.max_seq);
    }
    return LT_OK;
}

lt_err lt_paged_forward_open(lt_paged_forward **out, const lt_model *m,
                             const lt_paged_forward_options *o) {
    lt_err err = LT_OK;
    lt_paged_forward *f = NULL;

    LT_TRY(check_options(m, o));
    f = calloc(1, sizeof *f);
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "forward");
    }
    f->o = *o;
    f->o.few_rows = o->few_rows > 1 ? o->few_rows : 1;
    f->o.groups = NULL;
    if (o->groups != NULL) {
        f->groups = *o->groups;
    } else {
        lt_page_groups_one(&f->groups, &m->spec, false);
    }
    LT_TRY_DONE(lt_exec_prepare(&f->exec, &f->prepared, m, o->max_seq, true));
    f->exec.fixed_order = o->fixed_order;
    f->exec.pieces = o->pieces;
    f->steering = m->steering;
    lt_lora_attach(&f->exec, &f->lora);
    LT_TRY_DONE(lt_lora_rows_open(&f->lora_rows, m->lora_pool));
    f->exec.lora_rows = m->lora_pool != NULL ? &f->lora_rows : NULL;
    f->alike = lt_layers_alike(&m->spec);
    f->host_packs = calloc((size_t)(f->groups.n_full * o->max_seqs + 1), 3 * sizeof *f->host_packs);
    if (f->host_packs == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "forward: %lld sequences", (long long)o->max_seqs);
    }
    LT_TRY_DONE(place(f));
    LT_TRY_DONE(lt_lora_refresh(&f->exec)); /* What DoRA derives, of the model's own adapters. */
    LT_TRY_DONE(o->listener != NULL ? lt_draft_pass_follow(o->listener, &f->exec) : LT_OK);
    *out = f;
    f = NULL;
done:
    lt_paged_forward_close(f);
    return err;
}

lt_err lt_paged_forward_refresh(lt_paged_forward *f, bool *changed) {
    LT_TRY(lt_paged_forward_sync(f));
    return lt_exec_refresh(&f->exec, &f->prepared, changed);
}

void lt_paged_forward_close(lt_paged_forward *f) {
    if (f == NULL) {
        return;
    }
    if (f->exec.backend != NULL) {
        lt_paged_forward_sides_close(f);
    }
    for (int i = 0; i < f->n_graphs; i++) {
        f->exec.backend->graph_close(f->exec.device, f->graphs[i].graph[0]);
        f->exec.backend->graph_close(f->exec.device, f->graphs[i].graph[1]);
    }
    lt_arena_release(&f->cache, f->exec.device);
    lt_arena_release(&f->fixed, f->exec.device);
    lt_arena_release(&f->activations, f->exec.device);
    lt_exec_release(&f->exec, &f->prepared);
    lt_lora_rows_close(&f->lora_rows);
    free(f->host_packs);
    free(f);
}

/* Pages of keys (values: which 1) of a place. */
static lt_tensor pool_view(const lt_paged_forward *f, int64_t place, int64_t which) {
    const lt_model_spec *s = f->exec.spec;
    const size_t keys = page_bytes(s, f->o.page_tokens, f->o.cache_dtype),
                 values = page_bytes(s, f->o.page_tokens, f->o.value_dtype);
    const size_t before = (size_t)place * (keys + values) + (which == 1 ? keys : 0);
    return lt_tensor_4d((char *)f->pool + before * (size_t)f->o.n_pages,
                        which == 1 ? f->o.value_dtype : f->o.cache_dtype, f->o.n_pages,
                        f->o.page_tokens, s->n_kv_heads, s->head_dim);
}

/* A page has two parts for each place: its keys and its values. Finds the address and the size of
 * part i. */
static void *page_part(const lt_paged_forward *f, int64_t page, int64_t i, size_t *bytes) {
    const lt_tensor pages = pool_view(f, i / 2, i % 2), one = lt_tensor_rows(&pages, page, 1);
    *bytes = lt_dtype_row_bytes(pages.dtype, lt_tensor_count(&one));
    return one.data;
}

static int64_t page_parts(const lt_paged_forward *f) {
    return 2 * f->groups.n_places;
}

lt_err lt_paged_forward_copy_page(lt_paged_forward *f, int64_t dst, int64_t src) {
    size_t bytes;
    LT_ASSERT(dst >= 0 && src >= 0 && dst < f->o.n_pages && src < f->o.n_pages);
    for (int64_t i = 0; i < page_parts(f); i++) {
        void *to = page_part(f, dst, i, &bytes);
        LT_TRY(f->exec.backend->copy(f->exec.queue, to, page_part(f, src, i, &bytes), bytes));
    }
    return LT_OK;
}

/* A set has two parts for each layer, likewise. */
static void *set_part(const lt_paged_forward *f, const int32_t *set, int64_t i, size_t *bytes) {
    const int64_t layer = i / 2;
    return page_part(f, set[f->groups.group[layer]], 2 * f->groups.place[layer] + i % 2, bytes);
}

void lt_paged_forward_get_set(const lt_paged_forward *f, const int32_t *set, void *to) {
    char *at = to;
    size_t bytes;
    for (int64_t i = 0; i < 2 * f->exec.spec->n_layers; i++, at += bytes) {
        const void *part = set_part(f, set, i, &bytes);
        memcpy(at, part, bytes);
    }
}

void lt_paged_forward_put_set(lt_paged_forward *f, const int32_t *set, const void *from) {
    const char *at = from;
    size_t bytes;
    for (int64_t i = 0; i < 2 * f->exec.spec->n_layers; i++, at += bytes) {
        void *part = set_part(f, set, i, &bytes);
        memcpy(part, at, bytes);
    }
}

lt_err lt_paged_forward_send_page(lt_paged_forward *f, int64_t page, void *to) {
    char *at = to;
    size_t bytes;
    LT_ASSERT(lt_page_groups_count(&f->groups) == 1);
    for (int64_t i = 0; i < page_parts(f); i++, at += bytes) {
        const void *part = page_part(f, page, i, &bytes);
        LT_TRY(f->exec.backend->download(f->exec.queue, at, part, bytes));
    }
    return LT_OK;
}

static lt_err upload_page(lt_paged_forward *f, lt_queue *queue, int64_t page, const void *from) {
    const char *at = from;
    size_t bytes;
    LT_ASSERT(lt_page_groups_count(&f->groups) == 1);
    for (int64_t i = 0; i < page_parts(f); i++, at += bytes) {
        void *part = page_part(f, page, i, &bytes);
        LT_TRY(f->exec.backend->upload(queue, part, at, bytes));
    }
    return LT_OK;
}

lt_err lt_paged_forward_fetch_page(lt_paged_forward *f, int64_t page, const void *from) {
    return upload_page(f, f->exec.queue, page, from);
}

lt_err lt_paged_forward_load_page(lt_paged_forward *f, lt_queue *queue, int64_t page,
                                  const void *from) {
    LT_TRY(upload_page(f, queue, page, from));
    return f->exec.backend->sync(queue);
}

int64_t lt_paged_forward_next(const lt_paged_forward *f) {
    return f->n_calls + 1;
}

bool lt_paged_forward_passed(const lt_paged_forward *f, int64_t number) {
    return f->n_waited >= number;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: the first of them that is at least n. */
static int64_t bucket_of(int64_t n) {
    int64_t b = 1;
    while (b < n) {
        b = b < 2 ? 2 : (b & (b - 1)) == 0 ? b + b / 2 : b / 3 * 4;
    }
    return b;
}

/* Whether each sequence of the call has few rows, and the logits of all rows are needed, in
 * order. */
static bool decodes(const lt_paged_forward *f, const lt_paged_forward_rows *w) {
    bool in_order = w->q_max <= f->o.few_rows && w->n_out == w->n_rows;
    for (int64_t i = 0; in_order && i < w->n_out; i++) {
        in_order = w->out_rows[i] == i;
    }
    return in_order;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Tokens of a sequence in the smallest bucket: up to 512 a GPU's kernels are the same, and a stream
 * that outgrows its bucket pays for a step that is not recorded and two recordings, 0.5 % of its
 * first 256 tokens (docs/speed/decoding.md). */
#define LEAST_TOKENS 512

/* The shape of the bucket of a call of few rows a sequence. False: it is too large for one. */
static bool shape_padded(const lt_paged_forward *f, const lt_paged_forward_rows *w,
                         lt_paged_forward_shape *out) {
    const int64_t few = least(f->o.out_rows, f->o.max_rows),
                  most = w->q_max > 1 ? few : least(few, f->o.max_seqs),
                  rows = least(bucket_of(w->n_rows), most);
    const int64_t q = w->q_max == 1                      ? 1
                      : w->q_max <= LT_PAGED_FORWARD_FEW ? LT_PAGED_FORWARD_FEW
                                                         : f->o.few_rows;
    /* At least one sequence is padding, so that calls with and without padding rows have the same
     * shape. */
    const int64_t padding = (rows - w->n_rows + q - 1) / q,
                  needed = w->n_seqs + (q > 1 && padding == 0 ? 1 : padding);
    int64_t pages = 1, seqs = 1;
    while (seqs < needed) {
        seqs *= 2;
    }
    seqs = q == 1 ? rows : least(seqs, f->o.max_seqs + LT_PAGED_FORWARD_PADDING);
    while (pages < w->max_pages || pages * f->o.page_tokens < LEAST_TOKENS) {
        pages *= 2;
    }
    pages = least(pages, f->o.max_pages);
    *out = (lt_paged_forward_shape){rows, seqs, rows, q, pages * f->o.page_tokens, pages, 0, false};
    return rows >= w->n_rows && seqs >= needed;
}

static lt_err attend(lt_paged_forward *f, int layer) {
    lt_exec *r = &f->exec;
    const lt_layer_spec l = lt_model_layer(r->spec, layer);
    const int64_t H = l.n_heads, G = l.n_kv_heads, D = l.head_dim, Dv = l.value_dim;
    const lt_tensor *qk = lt_attention_qk(&l, &f->layer);
    const int64_t group = f->groups.group[layer], place = f->groups.place[layer];
    const lt_tensor k_pages = pool_view(f, place, 0), v_pages = pool_view(f, place, 1);
    LT_TRY(lt_exec_kv_write(
        r, &(lt_kv_write_args){.k_pages = k_pages,
                               .v_pages = v_pages,
                               .k = lt_row_heads(qk, H * D, G, D),
                               .v = lt_row_heads(&f->layer.qkv, (H + G) * D, G, Dv),
                               .slots = f->slots[group]}));
    return lt_exec_attention_paged(
        r, &(lt_attention_paged_args){.out = lt_row_heads(&f->layer.att, 0, H, Dv),
                                      .q = lt_row_heads(qk, 0, H, D),
                                      .k_pages = k_pages,
                                      .v_pages = v_pages,
                                      .table = f->table[group],
                                      .q_start = f->q_start,
                                      .kv_len = f->kv_len,
                                      .sinks = lt_exec_sinks(r, layer),
                                      .packs = f->packs[group],
                                      .scale = l.attn_scale,
                                      .softcap = l.attn_softcap,
                                      .window = l.window,
                                      .q_max = f->shape.q_max,
                                      .kv_max = f->shape.kv_max,
                                      .prompt_keys = f->prompt_keys,
                                      .fixed_order = f->o.fixed_order});
}

/* The final norm of all rows, then the wanted ones gathered; in_order: all rows as they are, so
 * that the norm and the head can be one kernel. */
static lt_err gather(lt_paged_forward *f, int64_t n_out, bool in_order) {
    lt_exec *r = &f->exec;
    const lt_batch_acts *b = &f->batch;
    const lt_norm norm = {LT_PARAM_FINAL_NORM, LT_PARAM_FINAL_NORM_BIAS, 0, b->mean_final,
                          b->rstd_final};
    const lt_tensor out = lt_tensor_rows(&f->h_out, 0, n_out), h = in_order ? out : b->h_final;
    LT_TRY(lt_final_norm_fwd(r, &norm, h, f->layer.x_mid, b->branch, b->x_final));
    LT_TRY(f->o.listener != NULL
               ? lt_draft_pass_listen(f->o.listener, (int)r->spec->n_layers, h, *f->slots)
               : LT_OK);
    if (in_order || n_out == 0) {
        return LT_OK;
    }
    return lt_exec_embed_fwd(
        r, &(lt_embed_args){.y = out, .table = h, .ids = f->out_rows, .scale = 1.0f});
}

/* What the layer's vectors add to the stream is added to what its block adds. */
static lt_err steer(lt_paged_forward *f, int layer) {
    const lt_tensor v = f->steer.data != NULL ? lt_steering_of_layer(f->steering, layer)
                                              : (lt_tensor){0};
    return v.data == NULL
               ? LT_OK
               : lt_exec_matmul(&f->exec, &(lt_matmul_args){.y = f->batch.branch,
                                                            .a = f->steer,
                                                            .b = v,
                                                            .trans_b = true,
                                                            .accumulate = true,
                                                            .fixed_order = f->exec.fixed_order});
}

/* Embedding to h_out. in_order: all rows are wanted, as they stand. */
static lt_err run_layers(lt_paged_forward *f, bool in_order) {
    lt_exec *r = &f->exec;
    lt_tensor stream = {0};

    LT_TRY(lt_embedding_fwd(r, f->layer.x_in, f->batch.tokens));
    for (int layer = 0; layer < r->spec->n_layers; layer++) {
        if (!f->alike) {
            see_layer(f, layer, f->shape.rows);
        }
        LT_TRY(lt_attention_qkv_fwd(r, layer, &f->layer, &f->batch, stream));
        LT_TRY(f->o.listener != NULL
                   ? lt_draft_pass_listen(f->o.listener, layer, f->layer.x_in, *f->slots)
                   : LT_OK);
        LT_TRY(attend(f, layer));
        LT_TRY(lt_attention_out_fwd(r, layer, &f->layer, &f->batch));
        LT_TRY(lt_mlp_block_fwd(r, layer, &f->layer, &f->batch, 0));
        LT_TRY(steer(f, layer));
        stream = f->layer.x_mid;
    }
    return f->shape.out > 0 || f->o.listener != NULL ? gather(f, f->shape.out, in_order) : LT_OK;
}

/* If a graph may be made, it includes picks even if this call has none, because it serves all calls
 * of its shape. */
static lt_err run_decode(lt_paged_forward *f) {
    LT_TRY(run_layers(f, true));
    LT_TRY(lt_paged_forward_head(f, 0, f->shape.out));
    return f->exec.backend->graph_begin != NULL
               ? lt_paged_forward_choose(f, 0, f->shape.out, f->shape.out)
               : LT_OK;
}

/* The record of this shape; *is_new: the shape occurs for the first time. NULL: no room for
 * more. */
static lt_paged_forward_graph *find_graph(lt_paged_forward *f, bool *is_new) {
    for (int i = 0; i < f->n_graphs; i++) {
        const lt_paged_forward_shape *c = &f->graphs[i].shape;
        if (c->rows == f->shape.rows && c->seqs == f->shape.seqs && c->q_max == f->shape.q_max &&
            c->max_pages == f->shape.max_pages && c->adapters == f->shape.adapters &&
            c->packed == f->shape.packed) {
            *is_new = false;
            return &f->graphs[i];
        }
    }
    *is_new = true;
    if (f->n_graphs == LT_PAGED_FORWARD_MAX_GRAPHS) {
        return NULL;
    }
    f->graphs[f->n_graphs] = (lt_paged_forward_graph){.shape = f->shape};
    return &f->graphs[f->n_graphs++];
}

static lt_err record(lt_paged_forward *f, lt_graph **out) {
    const lt_exec *r = &f->exec;
    lt_err err, ended;
    LT_TRY(r->backend->graph_begin(r->queue));
    err = run_decode(f);
    ended = r->backend->graph_end(r->queue, out);
    return err != LT_OK ? err : ended;
}

/* Run it as a graph if possible. */
static lt_err run_padded(lt_paged_forward *f) {
    bool is_new = true;
    lt_paged_forward_graph *g = f->exec.backend->graph_begin != NULL ? find_graph(f, &is_new)
                                                                     : NULL;
    if (is_new) {
        return run_decode(f);
    }
    f->usual = g->graph[f->turn] != NULL;
    if (!f->usual) {
        LT_TRY(record(f, &g->graph[f->turn]));
    }
    return f->exec.backend->graph_launch(f->exec.queue, g->graph[f->turn]);
}

bool lt_paged_forward_usual(const lt_paged_forward *f) {
    return f->usual;
}

int64_t lt_paged_forward_rope_rows(const lt_paged_forward *f, int64_t n) {
    return lt_exec_rope_rows(f->exec.spec, f->o.max_seq, n, n);
}

static int64_t prompt_keys(const lt_paged_forward_rows *w) {
    int64_t n = 0;
    for (int64_t i = 0; i < w->n_seqs; i++) {
        n += w->q_start[i + 1] - w->q_start[i] >= LT_PROMPT_ROWS ? w->kv_len[i] : 0;
    }
    return n;
}

/* Find the packs of each group whose pages are kept, and whether they pay off in any. Not on a
 * host, which reads the keys of each sequence anyway. */
static bool find_packs(lt_paged_forward *f, const lt_paged_forward_rows *w) {
    bool any = w->packed;
    for (int64_t g = 0; g < f->groups.n_full && !f->exec.backend->host_memory; g++) {
        any |= lt_packs_find(f->host_packs + g * f->o.max_seqs * 3, w->n_seqs, w->q_start,
                             w->kv_len, w->table + g * w->n_seqs * w->max_pages, w->max_pages,
                             f->o.page_tokens, f->o.packs);
    }
    return any;
}

lt_err lt_paged_forward_run(lt_paged_forward *f, const lt_paged_forward_rows *w) {
    lt_exec *r = &f->exec;
    const bool graphs = r->backend->graph_begin != NULL;
    bool pad = (graphs || f->o.pad) && w->steer == NULL && (graphs || w->n_adapted == 0) &&
               r->spec->n_scores == 0 && decodes(f, w);

    LT_ASSERT(w->n_rows > 0 && w->n_rows <= f->o.max_rows && w->n_seqs <= f->o.max_seqs &&
              w->n_out <= f->o.max_out && w->max_pages <= f->o.max_pages);
    pad = pad && shape_padded(f, w, &f->shape);
    if (!pad) {
        f->shape = (lt_paged_forward_shape){w->n_rows, w->n_seqs,    w->n_out, w->q_max,
                                            w->kv_max, w->max_pages, 0,        false};
    }
    f->shape.packed = find_packs(f, w);
    if (w->n_adapted > 0) {
        lt_lora_rows_choose(&f->lora_rows, w->adapter_start);
        /* A host's grouped products have bits that no other row changes: no second path. */
        f->lora_rows.by_place = graphs ? pad || r->fixed_order : w->q_max == 1 && !r->fixed_order;
        f->shape.adapters = pad ? f->lora_rows.growths : 0;
    }
    f->prompt_keys = pad ? 0 : prompt_keys(w);
    f->usual = !graphs;
    f->at_hand = pad ? 0 : -1;
    f->chosen_first = pad && graphs ? 0 : -1;
    r->batch = f->shape.rows;
    r->seq = 1;
    acts_carve(f, f->shape.rows);
    LT_TRY(lt_paged_forward_turn(f));
    LT_TRY(lt_paged_forward_upload(f, w));
    return pad ? run_padded(f) : run_layers(f, false);
}

/* A warm-up step: n sequences of `each` rows; the last n_out of these are wanted. rows > 0: only so
 * many rows in all, at least one of each sequence. */
typedef struct {
    int64_t n, each, n_out, rows;
    bool packed;
} idle_shape;

static int64_t idle_rows(const idle_shape *s) {
    return s->rows > 0 ? s->rows : s->n * s->each;
}

/* It has no effect: no keys are written (slots -1), all sequences read page 0, and nothing is
 * chosen. */
static lt_err run_idle(lt_paged_forward *f, int32_t *words, const idle_shape *s) {
    const int64_t rows = idle_rows(s), pages = (s->each + f->o.page_tokens - 1) / f->o.page_tokens;
    const int64_t groups = lt_page_groups_count(&f->groups);
    int32_t *const ids = words, *const positions = ids + rows, *const slots = positions + rows,
                   *const q_start = slots + groups * rows, *const kv_len = q_start + s->n + 1,
                   *const out_rows = kv_len + s->n, *const table = out_rows + s->n_out;
    lt_paged_forward_picks nothing;
    memset(words, 0, (size_t)(table + groups * s->n * pages - words) * sizeof *words);
    for (int64_t i = 0, row = 0; i < s->n; i++) {
        const int64_t own = least(s->each, rows - row - (s->n - i - 1));
        for (int64_t k = 0; k < own; k++, row++) {
            positions[row] = (int32_t)k;
        }
        q_start[i + 1] = (int32_t)row;
        kv_len[i] = (int32_t)own;
    }
    for (int64_t i = 0; i < groups * rows; i++) {
        slots[i] = -1;
    }
    for (int64_t i = 0; i < s->n_out; i++) {
        out_rows[i] = (int32_t)(rows - s->n_out + i);
    }
    LT_TRY(lt_paged_forward_run(f, &(lt_paged_forward_rows){.n_rows = rows,
                                                            .n_seqs = s->n,
                                                            .n_out = s->n_out,
                                                            .q_max = s->each,
                                                            .kv_max = s->each,
                                                            .max_pages = pages,
                                                            .ids = ids,
                                                            .positions = positions,
                                                            .slots = slots,
                                                            .q_start = q_start,
                                                            .kv_len = kv_len,
                                                            .table = table,
                                                            .out_rows = out_rows,
                                                            .packed = s->packed}));
    return lt_paged_forward_read_picks(f, 0, s->n_out, &nothing);
}

#define FIRST_PROMPT 16
/* Up to this limit each number of rows can have separate kernels, in the layers and in the head:
 * kernels for few rows are compiled for exactly this number, or their tiles were chosen for it by
 * measurement. */
#define OWN_ROWS 64
/* Beyond it, the best tiles of a product change every 64 rows, and depend on whether the last 64
 * are full: after a first start that warmed up only 128, 256, 512, .. rows, the first requests
 * waited for five more kernels. */
#define ROWS_STEP 32

/* The i-th step of few rows a sequence. The shape of its bucket depends on the rows, on the least
 * power of two that exceeds the sequences, and on whether one has more rows than
 * LT_PAGED_FORWARD_FEW. */
static bool idle_few(const lt_paged_forward *f, int64_t i, idle_shape *s) {
    const int64_t most = least(f->o.few_most, least(f->o.out_rows, f->o.max_rows));
    for (int64_t n = 1; n <= f->o.max_seqs && n < most; n *= 2) {
        const int64_t n_most = least(2 * n - 1, f->o.max_seqs);
        for (int longer = 0; longer <= (f->o.few_rows > LT_PAGED_FORWARD_FEW); longer++) {
            const int64_t each = longer ? f->o.few_rows
                                        : least(f->o.few_rows, LT_PAGED_FORWARD_FEW);
            int64_t last = 0;
            for (int64_t rows = bucket_of(n + (longer ? LT_PAGED_FORWARD_FEW : 1));
                 each > 1 && last < least(n_most * each, most); rows = bucket_of(rows + 1)) {
                last = least(rows, least(n_most * each, most));
                if (i-- == 0) {
                    const int64_t seqs = (last + each - 1) / each;
                    *s = (idle_shape){
                        .n = seqs > n ? seqs : n, .each = each, .n_out = last, .rows = last};
                    return true;
                }
            }
        }
    }
    return false;
}

/* The i-th warm-up step. First one token and a short prompt; then more and more tokens, the largest
 * number also with packs; then each length of a prompt with all rows wanted, as can happen beside
 * single tokens; then longer and longer prompts; then steps of few rows a sequence. cuBLASLt, which
 * takes 0.2 s to load, is not needed before the long ones. False: there is none. */
static bool idle_step(const lt_paged_forward *f, int64_t i, idle_shape *s) {
    const int64_t most = least(f->o.out_rows, least(f->o.max_seqs, f->o.max_rows)),
                  prompt = least(f->o.max_rows, f->o.max_seq);
    *s = (idle_shape){1, i == 1 ? least(FIRST_PROMPT, prompt) : 1, 1, 0, false};
    if (i < 2) {
        return true;
    }
    for (i -= 2; s->n < most; i--) {
        s->n = s->n_out = least(bucket_of(s->n + 1), most);
        if (i == 0) {
            return true;
        }
    }
    if (i-- == 0) {
        s->packed = true;
        return true;
    }
    for (s->n = 1; s->each < prompt; i--) {
        s->each = least(s->each + (s->each < OWN_ROWS ? 1 : ROWS_STEP), prompt);
        s->n_out = s->each <= OWN_ROWS ? least(s->each, f->o.out_rows) : 1;
        s->n_out -= s->each <= f->o.few_rows; /* If all rows were wanted, it would be padded. */
        if (i == 0) {
            return true;
        }
    }
    return idle_few(f, i, s);
}

/* The i-th of them, this many times over. */
static lt_err run_step(lt_paged_forward *f, int64_t i, const idle_shape *s, int times) {
    lt_err err = LT_OK;
    const int64_t groups = lt_page_groups_count(&f->groups);
    int32_t *const words = malloc((size_t)((2 + groups) * idle_rows(s) + 2 * s->n + 1 + s->n_out +
                                           groups * s->n * f->o.max_pages) *
                                  sizeof *words);
    if (words == NULL) {
        LT_FAIL(LT_ERR_OOM, "metadata of idle steps");
    }
    if (i == 0 && f->o.n_penalty_states > 0) { /* Idle steps begin the penalties of no sequence. */
        LT_TRY_DONE(lt_paged_forward_begin_penalties(f, 1, (int32_t[]){0}, (int32_t[]){0, 0},
                                                     (int32_t[]){0, 0}));
    }
    for (; times > 0; times--) {
        LT_TRY_DONE(run_idle(f, words, s));
    }
done:
    free(words);
    return err;
}

lt_err lt_paged_forward_preload(lt_paged_forward *f, int64_t first) {
    const lt_backend *b = f->exec.backend;
    lt_err err = LT_OK;
    int64_t n_first = 0;
    idle_shape s;

    if (b->preload == NULL) {
        return LT_OK;
    }
    b->preload(f->exec.device);
    for (int64_t i = 0; err == LT_OK && (i < first || n_first > 0) && idle_step(f, i, &s); i++) {
        err = run_step(f, i, &s, 1);
        n_first = i < first ? b->missing(f->exec.device) : n_first;
    }
    f->n_graphs = 0; /* Shapes that have occurred still count as new. */
    b->preloaded(f->exec.device, n_first);
    return err;
}

bool lt_paged_forward_compiling(const lt_paged_forward *f) {
    return f->exec.backend->compiling != NULL && f->exec.backend->compiling(f->exec.device);
}

lt_err lt_paged_forward_warm(lt_paged_forward *f, int64_t i, bool *more) {
    idle_shape s, after;
    bool recorded;

    *more = f->exec.backend->graph_begin != NULL && idle_step(f, i, &s);
    if (!*more) {
        return LT_OK;
    }
    *more = idle_step(f, i + 1, &after);
    /* For a call that is recorded, the first run compiles the kernels, the second records one side,
     * and the third records the other. */
    recorded = s.each == 1 || (s.each <= f->o.few_rows && s.n_out == idle_rows(&s));
    return run_step(f, i, &s, recorded ? 3 : 1);
}

void lt_paged_forward_get_memory(const lt_paged_forward *f, lt_paged_forward_memory *out) {
    *out = (lt_paged_forward_memory){f->cache.size_bytes,
                                     f->activations.size_bytes + f->fixed.size_bytes +
                                         f->prepared.tables.size_bytes,
                                     f->prepared.packed.size_bytes};
}

void lt_paged_forward_profile(const lt_paged_forward *f, double *seconds, int64_t *calls) {
    memcpy(seconds, f->exec.seconds, sizeof f->exec.seconds);
    memcpy(calls, f->exec.calls, sizeof f->exec.calls);
}
