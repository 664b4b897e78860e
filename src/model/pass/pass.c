/* pass.c: opens, measures and closes a pass, and checks its batches. The computation is in
 * pass_range.c and pass_train.c; the layers' tensors are in acts.c.
 *
 * Memory is carved three times with the same functions: by lt_pass_measure, by lt_pass_open to
 * measure and to place, and again whenever a batch of another shape comes, into the same arena:
 *
 *     activations   | shared by all sets | set 0's own | set 1's own | ... */
#include "model/lora/adapted.h"
#include "model/files/decoded.h"
#include "model/pass/pass_impl.h"
#include "model/blocks/tp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ELEMENTS 0x1p50 /* Most elements of activations: keeps every size far from overflow. */

static int level_of(const lt_pass_options *o) {
    return o->train ? (int)o->recompute : LT_KEEP_NOTHING;
}

/* Tables that live as long as the pass. */
static void tables_carve(float **rope, float **rope_local, float **f32, const lt_model_spec *s,
                         const lt_pass_options *o, lt_arena *a) {
    const size_t table =
        (size_t)(s->pos == LT_POS_ROPE ? lt_pass_whole_seq(o) * lt_rope_columns(s) * 2 : 0) *
        sizeof(float);
    *rope = lt_arena_take(a, table, LT_ARENA_ALIGN);
    *rope_local = lt_arena_take(a, s->rope_theta_local > 0 ? table : 0, LT_ARENA_ALIGN);
    *f32 = lt_arena_take(a, (size_t)(s->n_layers * lt_exec_f32_count(s)) * sizeof(float),
                         LT_ARENA_ALIGN);
}

int64_t lt_pass_whole_seq(const lt_pass_options *o) {
    return o->seq * (o->context.group != NULL ? lt_group_size(o->context.group) : 1);
}

typedef struct {
    lt_arena activations, gradients, logits, scratch, eight;
} arenas;

static int n_sets_of(const lt_pass_options *o) {
    return o->n_sets > 0 ? o->n_sets : 1;
}

static int end_of(const lt_pass_options *o, const lt_model_spec *s) {
    return o->end_layer > 0 ? o->end_layer : (int)s->n_layers;
}

/* Whether rows may be stored at other places of the batch. They may not with several adapters at
 * once, or with dropout, which identify rows by their places. */
static bool rows_move(const lt_pass_options *o, const lt_model_spec *s) {
    return o->masks && end_of(o, s) == s->n_layers && o->joins == 0 && o->lora.dropout == 0.0;
}

/* Whether batches may be packed. It would save nothing for a score head, and ranks of tp hold a
 * part of the rows each. */
static bool packs(const lt_pass_options *o, const lt_model_spec *s) {
    return rows_move(o, s) && s->n_scores == 0 && lt_pass_n_tp(o) == 1;
}

/* Whether they may have shared rows. */
static bool shares(const lt_pass_options *o, const lt_model_spec *s) {
    return rows_move(o, s) && lt_shared_possible(o, s);
}

static lt_acts_shape shape_of(const lt_pass_options *o, const lt_model_spec *s, lt_dtype dtype,
                              int64_t batch, int64_t seq) {
    return (lt_acts_shape){.batch = batch,
                           .seq = seq,
                           .dtype = dtype,
                           .backward = o->train,
                           .level = level_of(o),
                           .weights = o->weights,
                           .packs = o->masks,
                           .shares = shares(o, s),
                           .n_ep = lt_pass_n_ep(o),
                           .most_rows = o->batch * o->seq,
                           .expert_room = o->expert_room,
                           .n_tp = lt_pass_n_tp(o),
                           .tp_rank = o->tp != NULL ? lt_group_rank(o->tp) : 0};
}

/* A part of an arena, as large as `bytes`, as an arena; absent while measuring. */
static lt_arena part_of(lt_arena *a, size_t bytes) {
    unsigned char *base = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    return (lt_arena){.base = base, .size_bytes = bytes, .name = a->name};
}

/* The activations of all sets: measured in arenas without memory, then taken as parts. */
static void sets_carve(lt_pass *p, const lt_model_spec *s, lt_dtype dtype, const lt_pass_options *o,
                       lt_arena *a) {
    const lt_acts_shape shape = shape_of(o, s, dtype, o->batch, o->seq);
    const int64_t n_layers = end_of(o, s) - o->first_layer;
    lt_arena shared = {0}, own = {0};
    lt_layer_acts layer;
    lt_batch_acts batch;

    lt_acts_carve_shared(&layer, &batch, s, &shape, &shared);
    lt_acts_carve_own(&p->sets[0], &layer, &batch, o->first_layer, n_layers, s, &shape, &own);
    p->shared_acts = part_of(a, shared.used_bytes);
    for (int set = 0; set < n_sets_of(o); set++) {
        p->sets[set].own = part_of(a, own.used_bytes);
        p->sets[set].n_batch = 0; /* A set is carved at its first batch. */
    }
    lt_deferred_carve(&p->deferred, s, &shape, a);
}

static lt_stage_options stage_options(const lt_pass_options *o, const lt_model_spec *s) {
    const int end = end_of(o, s);
    return (lt_stage_options){.spec = s,
                              .rows = o->batch * o->seq,
                              .first_layer = o->first_layer,
                              .n_layers = s->n_experts > 0 ? end - o->first_layer : 0,
                              .loss = end == s->n_layers,
                              .n_sets = n_sets_of(o),
                              .joins = o->joins,
                              .weights = o->weights,
                              .packs = packs(o, s),
                              .shares = shares(o, s),
                              .n_tp = lt_pass_n_tp(o),
                              .on_device = o->on_device};
}

static bool trains_adapters(const lt_pass_options *o) {
    return o->lora.rank > 0 || o->joins > 0;
}

/* A stage has a unit's gradients if it has its layer, the embedding, or the head, which may be
 * the embedding's table; the head's adapter is separate. */
static bool has_unit(const lt_pass_options *o, const lt_model_spec *s, const lt_param_table *t,
                     int unit) {
    const int layer = t->units[unit].layer;
    const bool head = end_of(o, s) == s->n_layers;
    return layer >= 0  ? layer >= o->first_layer && layer < end_of(o, s)
           : unit == 0 ? o->first_layer == 0 || (head && s->tied && !trains_adapters(o))
                       : head;
}

void lt_pass_carve_gradients(lt_param_buffer *g, const lt_model_spec *s, const lt_param_table *t,
                             const lt_pass_options *o, lt_arena *a) {
    if (o->first_layer == 0 && end_of(o, s) == s->n_layers) {
        void *flat = lt_arena_take(a, lt_param_buffer_bytes(t, LT_F32), LT_ARENA_ALIGN);
        if (flat != NULL) {
            lt_param_buffer_place(g, t, flat);
        }
        return;
    }
    for (int unit = 0; unit < t->n_units; unit++) {
        const size_t bytes = (size_t)t->units[unit].n_elements * sizeof(float);
        void *base = has_unit(o, s, t, unit) ? lt_arena_take(a, bytes, LT_ARENA_ALIGN) : NULL;
        if (g->base != NULL) {
            g->base[unit] = base;
        }
    }
}

bool lt_pass_keeps_logits(const lt_pass_options *o, const lt_model_spec *s) {
    return o->keep_logits && o->train && s->n_scores == 0 && end_of(o, s) == s->n_layers;
}

/* Rows of the head that are held here; for a stage without the head, a number that fits its
 * memory. */
static int64_t head_rows_of(const lt_model_spec *s, const lt_param_table *t) {
    const int head = lt_param_index(t, lt_param_head(s), 0);
    return t->params[head].local_count > 0 ? t->params[head].local_shape[0]
                                           : lt_model_spec_outputs(s);
}

/* The adapters of a pass: the sizes of their scratch, and their table; NULL: none. */
typedef struct {
    const lt_lora_sizes *sizes;
    const lt_param_table *table;
} adapters;

/* With ranks of ep, the experts of this rank may receive rows of all of these ranks. */
static lt_lora_sizes sizes_here(const lt_lora_sizes *of, const lt_pass_options *o) {
    const int64_t rows = o->batch * o->seq;
    lt_lora_sizes z = *of;
    if (lt_pass_n_ep(o) > 1) {
        const int64_t room = lt_experts_room(rows * z.places, lt_pass_n_ep(o), o->expert_room);
        z.places = (room + rows - 1) / rows;
    }
    return z;
}

/* Carve all memory of a pass. */
static void pass_carve(lt_pass *p, const lt_model_spec *s, lt_dtype dtype, const lt_param_table *t,
                       const adapters *beside, const lt_pass_options *o, arenas *a) {
    const lt_stage_options stage = stage_options(o, s);
    sets_carve(p, s, dtype, o, &a->activations);
    lt_loss_carve(&p->loss, s, dtype, o, head_rows_of(s, t), &a->logits);
    tables_carve(&p->rope, &p->rope_local, &p->f32, s, o, &a->scratch);
    lt_stage_carve(&p->stage, &stage, &a->scratch);
    lt_context_carve(&p->context, s, dtype, o, &a->scratch);
    if (shares(o, s)) {
        lt_shared_carve(&p->shared, s, dtype, o, &a->scratch);
    }
    lt_experts_carve(&p->experts, s, dtype, o, &a->scratch);
    lt_exact_carve(&p->exact, s, dtype, o, &a->scratch);
    if (o->decoded) {
        lt_decoded_carve(&p->exec, t, dtype, o->on_device, &a->scratch);
    }
    if (o->lora.rank > 0 && o->joins == 0) {
        const lt_lora_sizes sizes = sizes_here(beside->sizes, o);
        lt_lora_carve(&p->lora, &o->lora, &sizes, o->batch * o->seq, dtype, o->train, &a->scratch);
    }
    if (o->train && o->gradients_elsewhere) {
        lt_deferred_carve_apart(&p->deferred, s, t, &a->gradients);
    } else if (o->train && o->joins == 0 && o->lora.rank > 0) {
        lt_pass_carve_gradients(&p->lora.gradients, s, beside->table, o, &a->gradients);
    } else if (o->train && o->joins == 0) {
        lt_pass_carve_gradients(&p->exec.gradients, s, t, o, &a->gradients);
    }
    lt_fp8_carve(&p->fp8, t, o, &a->eight);
}

/* Whether gradients of weights are deferred. Those of adapters are not. */
static bool splits(const lt_pass_options *o) {
    /* They are in one product. */
    const bool eight = o->fp8 != LT_FP8_NONE && o->gradients_elsewhere;
    return o->split_backward && !trains_adapters(o) && !eight;
}

/* Allocate the lists of a pass, which contain no activations themselves. */
static lt_err open_sets(lt_pass *p, const lt_model_spec *s, const lt_pass_options *o) {
    const int n_layers = end_of(o, s) - o->first_layer, n_sets = n_sets_of(o);
    p->sets = calloc((size_t)n_sets, sizeof *p->sets);
    p->layers = calloc((size_t)(n_sets * n_layers), sizeof *p->layers);
    p->stored = calloc((size_t)s->n_layers + 1, sizeof *p->stored);
    p->joined = calloc((size_t)o->joins + 1, sizeof *p->joined);
    p->drops = calloc((size_t)n_sets, sizeof *p->drops);
    if (p->sets == NULL || p->layers == NULL || p->stored == NULL || p->joined == NULL ||
        p->drops == NULL) {
        LT_FAIL(LT_ERR_OOM, "pass: %d sets of %d layers", n_sets, n_layers);
    }
    for (int set = 0; set < n_sets; set++) {
        p->sets[set].layers = p->layers + set * n_layers;
    }
    p->first = o->first_layer;
    p->end = end_of(o, s);
    LT_TRY(splits(o)
               ? lt_deferred_open(&p->deferred, n_sets, p->first, p->end, o->gradients_elsewhere)
               : LT_OK);
    p->recomputed = p->recomputed_set = p->kept_set = -1;
    for (int64_t i = 0; i <= s->n_layers; i++) {
        p->stored[i] = true; /* Gradients begin as zeros, to which products are added. */
    }
    for (int i = 0; i < p->deferred.n_layers; i++) {
        p->deferred.stored[i] = true;
    }
    return LT_OK;
}

static void close_sets(lt_pass *p) {
    free(p->sets);
    free(p->layers);
    free(p->stored);
    free(p->joined);
    free(p->drops);
    lt_deferred_close(&p->deferred);
}

static lt_err check_options(const lt_pass_options *o, const lt_model_spec *s) {
    if (o->batch < 1 || o->seq < 1 || o->batch > INT32_MAX / o->seq) {
        LT_FAIL(LT_ERR_ARG, "pass: a batch of %lld x %lld tokens", (long long)o->batch,
                (long long)o->seq);
    }
    if (o->n_sets < 0 || o->first_layer < 0 || o->first_layer >= end_of(o, s) ||
        end_of(o, s) > s->n_layers) {
        LT_FAIL(LT_ERR_ARG, "pass: layers [%d, %d) of %lld, %d sets", o->first_layer, end_of(o, s),
                (long long)s->n_layers, o->n_sets);
    }
    const int64_t ffn = s->ffn_width > s->dense_ffn_width ? s->ffn_width : s->dense_ffn_width;
    const double row = (double)(s->width * 8 + ffn * 3 +
                                (s->n_heads + s->n_kv_heads) * 4 * s->head_dim);
    if ((double)(o->batch * o->seq) * row * (double)n_sets_of(o) *
            (double)(s->n_layers * (s->top_k > 0 ? s->top_k : 1)) >
        MAX_ELEMENTS) {
        LT_FAIL(LT_ERR_LIMIT,
                "pass: activations of %lld x %lld tokens through %lld layers exceed any memory",
                (long long)o->batch, (long long)o->seq, (long long)s->n_layers);
    }
    if (s->pos == LT_POS_LEARNED && lt_pass_whole_seq(o) > s->max_seq) {
        LT_FAIL(LT_ERR_ARG,
                "pass: %lld tokens a sequence, but the model has %lld learned positions",
                (long long)lt_pass_whole_seq(o), (long long)s->max_seq);
    }
    if (s->n_scores > 1 && lt_model_spec_gives_values(s)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "pass: a score head of %lld values; one value is built",
                (long long)s->n_scores);
    }
    LT_TRY(lt_experts_check(s, o));
    return lt_context_check(s, o);
}

lt_err lt_pass_measure(lt_pass_memory *out, const lt_model_spec *spec, lt_dtype dtype,
                       const lt_pass_options *o) {
    lt_err err = LT_OK;
    lt_param_table table = {0};
    const lt_stage_options stage = stage_options(o, spec);
    lt_lora_plan lora = {.n_modules = 0};
    lt_pass p = {0};
    arenas a = {0};

    LT_TRY(check_options(o, spec));
    LT_TRY_DONE(o->lora.rank > 0
                    ? lt_lora_plan_open(&lora, spec, &o->lora, o->partition, o->lora_partition)
                    : LT_OK);
    LT_TRY_DONE(lt_param_table_open_part(&table, spec, o->partition));
    LT_TRY_DONE(open_sets(&p, spec, o));
    pass_carve(&p, spec, dtype, &table, &(adapters){&lora.sizes, &lora.table}, o, &a);
    *out = (lt_pass_memory){
        a.activations.used_bytes, a.gradients.used_bytes,
        a.logits.used_bytes,      a.scratch.used_bytes,
        a.eight.used_bytes,       lt_stage_host_bytes(&stage) + lt_exact_host_bytes(o)};
done:
    close_sets(&p);
    lt_lora_plan_close(&lora);
    lt_param_table_close(&table);
    return err;
}

static lt_err upload_rope(lt_pass *p, float *device, bool local) {
    lt_err err = LT_OK;
    if (p->exec.backend->dry) {
        return LT_OK;
    }
    /* The length of the text, if it determines the rotation. */
    const int64_t seq = lt_pass_whole_seq(&p->options);
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

/* Fill the rotary tables, and the parameters that ops need in F32 if there are only BF16
 * weights. */
static lt_err fill_tables(lt_pass *p) {
    const lt_model_spec *s = p->exec.spec;
    if (s->pos == LT_POS_ROPE) {
        LT_TRY(upload_rope(p, p->rope, false));
        p->exec.rope = p->exec.rope_local = lt_tensor_3d(
            p->rope, LT_F32, lt_pass_whole_seq(&p->options), lt_rope_columns(s), 2);
        if (s->rope_theta_local > 0) {
            LT_TRY(upload_rope(p, p->rope_local, true));
            p->exec.rope_local.data = p->rope_local;
        }
    }
    if (p->options.master_elsewhere) {
        p->exec.f32 = lt_pass_f32(p);
    } else if (lt_exec_f32_count(s) > 0 && !lt_model_has_master(p->model)) {
        LT_TRY(lt_exec_copy_f32(&p->exec, p->f32));
    }
    return LT_OK;
}

static lt_err place(lt_pass *p) {
    lt_device *device = p->exec.device;
    const lt_param_table *t = &p->model->table;
    const lt_lora *lora = p->model->lora;
    const adapters beside = {lora != NULL ? &lora->sizes : NULL,
                             lora != NULL ? &lora->params->table : NULL};
    arenas a = {0};
    pass_carve(p, p->exec.spec, p->exec.dtype, t, &beside, &p->options, &a);
    LT_TRY(lt_arena_place(&a.activations, device, "activations"));
    p->activations = a.activations;
    LT_TRY(lt_arena_place(&a.gradients, device, "gradients"));
    p->gradients = a.gradients;
    LT_TRY(lt_arena_place(&a.logits, device, "logits"));
    p->logits = a.logits;
    LT_TRY(lt_arena_place(&a.scratch, device, "scratch"));
    p->scratch = a.scratch;
    if (p->options.fp8 != LT_FP8_NONE) {
        LT_TRY(lt_arena_place(&a.eight, device, "8-bit weights"));
        p->eight = a.eight;
        p->exec.fp8 = &p->fp8;
    }
    pass_carve(p, p->exec.spec, p->exec.dtype, t, &beside, &p->options, &a);
    return LT_OK;
}

/* Whether adapters are trained, and not the model. */
static bool has_adapters(const lt_model *m, const lt_pass_options *o) {
    LT_ASSERT(m->lora == NULL || o->joins == 0);
    return m->lora != NULL || o->joins > 0;
}

/* Whether the head or experts have adapters. Their rows are not those of the batch. */
static bool has_undroppable(const lt_lora *l) {
    const lt_model_spec *spec = &l->base->spec;
    bool has = lt_lora_top_of(l->sites, spec, LT_PARAM_HEAD)->n_parts > 0;
    for (int i = 0; i < lt_lora_n_sites(spec); i++) {
        has = has || l->sites[i].n_experts > 0;
    }
    return has;
}

/* Refuse options that a pass over adapters does not support. */
static lt_err check_adapters(const lt_model *m, const lt_pass_options *o) {
    const bool drops = o->train && m->lora != NULL && m->lora->options.dropout > 0.0;
    const struct {
        const char *what;
        bool asked;
    } refused[] = {
        {"8-bit linear layers (fp8)", o->fp8 != LT_FP8_NONE},
        {"lora.dropout and lora.dora", drops && m->lora->options.dora},
        {"lora.dropout of the output head or of experts", drops && has_undroppable(m->lora)},
        {"products of 8 bits, in training", o->train && m->stored != NULL && !m->options.decoded},
    };
    for (size_t i = 0; has_adapters(m, o) && i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "adapters (lora) with %s: not supported", refused[i].what);
        }
    }
    return LT_OK;
}

/* Allocate gradients of the model, or of its adapters. */
static lt_err open_gradients(lt_pass *p) {
    if (p->model->lora != NULL) {
        return lt_param_buffer_open(&p->lora.gradients, &p->model->lora->params->table, LT_F32);
    }
    return lt_param_buffer_open(&p->exec.gradients, &p->model->table, LT_F32);
}

lt_err lt_pass_open(lt_pass **out, lt_model *m, const lt_pass_options *o) {
    lt_err err = LT_OK;
    lt_pass *p = NULL;

    LT_TRY(check_options(o, &m->spec));
    LT_TRY(lt_tp_check_rows(o->batch, o->seq, lt_pass_n_tp(o)));
    LT_TRY(lt_pass_n_tp(o) > 1 ? lt_fp8_check(&m->table, o->fp8) : LT_OK);
    LT_TRY(check_adapters(m, o));
    LT_TRY(lt_exact_check(m, o));
    if (o->train && m->stored != NULL && !has_adapters(m, o)) {
        LT_FAIL(LT_ERR_STATE, "pass: weights as they are stored cannot be trained");
    }
    if (o->train && !o->master_elsewhere && !lt_model_has_master(m) && !has_adapters(m, o)) {
        LT_FAIL(LT_ERR_STATE,
                "pass: the model was opened in %s without an F32 master; it cannot be trained",
                lt_dtype_name(m->options.dtype));
    }
    p = calloc(1, sizeof *p);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "pass");
    }
    p->model = m;
    p->options = *o;
    p->options.on_device = !m->backend->host_memory;
    p->options.decoded = m->options.decoded;
    p->options.lora = m->lora != NULL ? m->lora->options : (lt_lora_options){.rank = 0};
    LT_TRY_DONE(lt_exec_open(&p->exec, m, o->queue));
    lt_lora_attach(&p->exec, &p->lora);
    if (lt_pass_n_ep(o) > 1) {
        LT_TRY_DONE(lt_experts_open(&p->experts, &m->spec, o,
                                    n_sets_of(o) * (end_of(o, &m->spec) - o->first_layer),
                                    m->device));
        p->exec.experts = &p->experts;
    }
    LT_TRY_DONE(lt_tp_join(&p->exec, o->tp));
    LT_TRY_DONE(open_sets(p, &m->spec, o));
    if (o->fp8 != LT_FP8_NONE) {
        p->fp8.weights = calloc((size_t)m->table.n_params, sizeof *p->fp8.weights);
        if (p->fp8.weights == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "pass: %d parameters", m->table.n_params);
        }
    }
    if (o->train && o->joins == 0) {
        LT_TRY_DONE(open_gradients(p));
    }
    LT_TRY_DONE(place(p));
    if (lt_pass_whole_seq(o) != o->seq) {
        lt_context_set(&p->context, o);
        p->exec.context = &p->context;
    }
    LT_TRY_DONE(lt_exact_open(&p->exact, &p->options));
    p->exec.exact = o->exact ? &p->exact : NULL;
    p->exec.fixed_order = o->exact;
    const lt_stage_options stage = stage_options(&p->options, &m->spec);
    LT_TRY_DONE(lt_stage_open(&p->stage, m->device, &stage));
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
        lt_pass_recorded_close(p, &p->graphs[i]);
    }
    lt_stage_close(&p->stage);
    lt_exact_close(&p->exact);
    lt_arena_release(&p->activations, p->exec.device);
    lt_arena_release(&p->gradients, p->exec.device);
    lt_arena_release(&p->logits, p->exec.device);
    lt_arena_release(&p->scratch, p->exec.device);
    lt_arena_release(&p->eight, p->exec.device);
    lt_param_buffer_close(&p->exec.gradients);
    lt_param_buffer_close(&p->lora.gradients);
    for (int i = 0; i < p->n_joined; i++) {
        lt_arena_release(&p->joined[i].arena, p->exec.device);
        lt_param_buffer_close(&p->joined[i].run.gradients);
    }
    lt_experts_close(&p->experts, p->exec.device);
    lt_exec_close(&p->exec);
    free(p->fp8.weights);
    close_sets(p);
    free(p);
}

/* Check that every id of a (B, T) field is in [low, high). */
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

lt_err lt_pass_check_batch(const lt_pass *p, const lt_pass_batch *b) {
    const lt_model_spec *s = p->exec.spec;
    LT_ASSERT(b->tokens != NULL && b->labels != NULL);
    lt_pass_check_division(p, b);
    if (b->batch < 1 || b->seq < 1 || b->batch > p->options.batch || b->seq > p->options.seq) {
        LT_FAIL(LT_ERR_ARG, "batch of %lld x %lld tokens in a pass opened for %lld x %lld",
                (long long)b->batch, (long long)b->seq, (long long)p->options.batch,
                (long long)p->options.seq);
    }
    LT_TRY(lt_tp_check_rows(b->batch, b->seq, p->exec.n_tp));
    if (b->weights != NULL && !p->options.weights) {
        LT_FAIL(LT_ERR_ARG, "batch with weights in a pass that was opened without them");
    }
    for (int64_t i = 0; b->weights != NULL && i < b->batch * b->seq; i++) {
        if (!isfinite(b->weights[i])) {
            LT_FAIL(LT_ERR_ARG, "batch: weight %g of row %lld, column %lld", (double)b->weights[i],
                    (long long)(i / b->seq), (long long)(i % b->seq));
        }
    }
    LT_TRY(check_ids(b, b->tokens, 0, s->vocab_size, "token"));
    LT_TRY(check_ids(b, b->labels, -1, s->vocab_size, "label"));
    if (p->exec.context != NULL && (b->positions == NULL || b->seq % 2 != 0)) {
        LT_FAIL(LT_ERR_ARG,
                "batch of a divided sequence: %lld tokens here%s; their number is even, and they "
                "have positions",
                (long long)b->seq, b->positions == NULL ? " without positions" : "");
    }
    LT_TRY(check_ids(b, b->positions, 0, lt_pass_whole_seq(&p->options), "position"));
    return check_ids(b, b->doc_start, 0, b->seq * (p->exec.context != NULL ? p->context.n : 1),
                     "document start");
}

/* Carve for a batch of another shape, in the same memory. Other sets keep their own views of the
 * shared part, in which nothing is kept between calls. */
static void reshape(lt_pass *p, lt_acts_set *set, const lt_pass_shape *to) {
    lt_acts_shape shape = shape_of(&p->options, p->exec.spec, p->exec.dtype, to->batch, to->seq);
    lt_layer_acts layer;
    lt_batch_acts shared;
    if (to->batch != set->n_batch || to->seq != set->seq || to->given_batch != set->given_batch ||
        to->given_seq != set->given_seq) {
        shape.given_batch = to->given_batch;
        shape.given_seq = to->given_seq;
        lt_arena_rewind(&p->shared_acts);
        lt_arena_rewind(&set->own);
        lt_acts_carve_shared(&layer, &shared, p->exec.spec, &shape, &p->shared_acts);
        lt_acts_carve_own(set, &layer, &shared, p->first, p->end - p->first, p->exec.spec, &shape,
                          &set->own);
        p->recomputed = -1;
    }
}

void lt_pass_shape_set(lt_pass *p, int set, const lt_pass_shape *shape) {
    lt_exec *r = &p->exec;
    lt_acts_set *acts = &p->sets[set];
    reshape(p, acts, shape);
    acts->has_documents = shape->has_documents;
    if (r->exact != NULL) {
        const bool shares = shape->given_batch > 0;
        lt_exact_shape(r->exact, shares ? shape->given_batch : shape->batch,
                       shares ? shape->given_seq : shape->seq, r->context);
    }
    r->batch = shape->batch;
    r->seq = shape->seq;
    r->positions = acts->batch.positions;
    r->doc_start = shape->has_documents ? acts->batch.doc_start : (lt_tensor){0};
    p->shared.batch = shape->given_batch;
    p->shared.seq = shape->given_seq;
    p->shared.rows = shape->given_batch > 0 ? shape->seq : 0;
    p->shared.memory = acts->batch.shared.data;
    r->shared = p->shared.rows > 0 ? &p->shared : NULL;
}

const lt_param_buffer *lt_pass_gradients(const lt_pass *p) {
    return p->exec.lora != NULL ? &p->lora.gradients : &p->exec.gradients;
}

bool lt_pass_has_unit(const lt_pass *p, int unit) {
    return has_unit(&p->options, &p->model->spec, &p->model->table, unit);
}

bool lt_pass_defers(const lt_pass *p, int unit) {
    return lt_deferred_has(&p->deferred, &p->model->spec, p->model->table.units[unit].layer);
}

lt_err lt_pass_zero_gradients(lt_pass *p) {
    LT_ASSERT(p->n_joined > 0 || lt_pass_gradients(p)->base != NULL);
    p->zero_due = true;
    memset(p->stored, 0, (size_t)p->exec.spec->n_layers + 1);
    if (p->deferred.n_layers > 0) {
        memset(p->deferred.stored, 0, (size_t)p->deferred.n_layers);
    }
    return LT_OK;
}

void lt_pass_use_adapters(lt_pass *p, bool on) {
    lt_lora_run *first = p->n_joined > 0 ? &p->joined[0].run : &p->lora;
    p->exec.lora = on && first->lora != NULL ? first : NULL;
}

void lt_pass_mute(lt_pass *p, bool on) {
    p->mute = on;
}

void lt_pass_tell_units(lt_pass *p, const lt_pass_units *units) {
    p->units = units;
    p->exec.beside = units->beside;
    p->exec.beside_of = units->of;
}

void lt_pass_trace(lt_pass *p, lt_timeline *t) {
    p->timeline = t;
}

float *lt_pass_f32(lt_pass *p) {
    const bool copies = p->exec.dtype != LT_F32 && lt_exec_f32_count(p->exec.spec) > 0;
    return p->options.master_elsewhere && copies ? p->f32 : NULL;
}

lt_queue *lt_pass_queue(const lt_pass *p) {
    return p->exec.queue;
}

lt_pass_shares lt_pass_shared(const lt_pass *p) {
    return p->shares;
}

int64_t lt_pass_graphs(const lt_pass *p) {
    return p->n_graphs;
}

lt_err lt_pass_watch(lt_pass *p, bool on) {
    return lt_exec_watch(&p->exec, on);
}

lt_err lt_pass_profile(lt_pass *p, lt_pass_op_time *times) {
    LT_TRY(lt_exec_times(&p->exec));
    for (int op = 0; op < LT_TIMED_COUNT; op++) {
        const lt_cost least = p->exec.least[op];
        times[op] = (lt_pass_op_time){p->exec.seconds[op], least.flops, least.bytes,
                                      p->exec.calls[op]};
    }
    return LT_OK;
}

const lt_layer_acts *lt_pass_layer_acts(const lt_pass *p, int layer) {
    return lt_pass_layer(p, 0, layer);
}

const lt_batch_acts *lt_pass_batch_acts(const lt_pass *p) {
    return &p->sets[0].batch;
}
