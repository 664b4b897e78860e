/* stored_weights.c: see stored_weights.h. Every matrix whose tensors are all of a type that
 * products take stays as it is stored: its ranges point into the map until stored_pack.c has placed
 * them. Block types that are widened instead are reported. Values are not checked: NaN in a file
 * leads to NaN logits. */
#include "model/files/stored_weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "model/alloc.h"
#include "tensor/block.h"
#include "tensor/ops.h"

/* Block types that are widened: how many tensors for which reason; each is a line of the log. */
#define MAX_REASONS 16
typedef struct {
    lt_dtype type;
    const char *why;
    int64_t count;
    char first[LT_FOREIGN_NAME_BYTES];
} widened;
typedef struct {
    widened of[MAX_REASONS];
    int n;
} widened_list;

typedef struct {
    const lt_source *source;
    const lt_model *m;
    bool on_device; /* Where they will be. */
    const lt_param *param;
    widened_list *widened;
    lt_stored_weight stored;
    lt_stored_origin origins[LT_STORED_RANGES];
    const unsigned char **each; /* Room for the experts of every range (lt_model.stored_each). */
    bool holdable;
} finding;

bool lt_stored_weights_is_matrix(lt_param_kind kind) {
    return kind == LT_PARAM_EMBED || kind == LT_PARAM_QKV || kind == LT_PARAM_ATTN_OUT ||
           kind == LT_PARAM_UP || kind == LT_PARAM_DOWN || kind == LT_PARAM_HEAD;
}

/* Is a matrix of this kind to be encoded in options.stored_as? In NF4, embedding and output head
 * are not, as transformers leaves them with bitsandbytes. */
static bool is_encoded(const lt_model *m, lt_param_kind kind) {
    const lt_dtype type = m->options.stored_as;
    const bool top = kind == LT_PARAM_EMBED || kind == LT_PARAM_HEAD,
               nf4 = type == LT_NF4 || type == LT_NF4_DOUBLE;
    return type != LT_F32 && lt_stored_weights_is_matrix(kind) && !(top && nf4);
}

/* The type in which a matrix of the file is kept. Q5_0 has the values of MXFP4, and products. */
static lt_dtype kept_type(const lt_model *m, lt_param_kind kind, lt_dtype stored, int64_t cols) {
    const lt_dtype type = m->options.stored_as;
    size_t bytes;
    return is_encoded(m, kind) && cols % lt_dtype_block(type, &bytes) == 0 ? type
           : stored == LT_MXFP4                                            ? LT_Q5_0
                                                                           : stored;
}

/* A device packs the block types that it multiplies, or keeps those that it decodes, which are the
 * ones that can be encoded; all other types become BF16 there. */
static bool product_takes(const lt_model *m, bool on_device, const lt_tensor *w) {
    if (on_device && m->options.decoded) {
        return w->dtype == LT_NF4_DOUBLE ||
               (lt_dtype_is_block(w->dtype) && lt_block_encodes(w->dtype));
    }
    if (on_device) {
        return lt_dtype_is_block(w->dtype) && m->backend->matmul_pack_bytes(m->device, w, true) > 0;
    }
    return w->dtype == LT_F32 || w->dtype == LT_F16 || w->dtype == LT_BF16 ||
           lt_block_partner(w->dtype) != LT_PARTNER_NONE ||
           (m->options.decoded && (w->dtype == LT_NF4_DOUBLE || lt_block_decodes(w->dtype)));
}

/* Whether the packed matrices of experts have no padding between them. */
static bool packs_evenly(const lt_model *m, const lt_tensor *all, int64_t n_experts) {
    lt_tensor one = *all;
    one.shape[0] /= n_experts;
    return m->backend->matmul_pack_bytes(m->device, all, true) ==
           (size_t)n_experts * m->backend->matmul_pack_bytes(m->device, &one, true);
}
/* Experts are kept if each that is here is whole. */
static const char *refuse_experts(const finding *f, const lt_weight *w, const lt_tensor *rows) {
    const lt_param *p = f->param;
    const lt_box *box = lt_param_boxes(&f->m->table, p);
    const bool whole = p->n_boxes == 1 && box->extent[1] == p->shape[1] &&
                       box->extent[2] == p->shape[2],
               fits = w->scales == NULL || rows->dtype == LT_Q5_0;
    return !fits    ? "experts with scales in a tensor of their own"
           : !whole ? "experts whose rows or columns ranks divide"
           : !f->m->options.decoded && !packs_evenly(f->m, rows, p->shape[0])
               ? "experts of a number of rows that is not packed"
               : NULL;
}
/* NULL, or why this part cannot be kept as it is stored. */
static const char *refuse_part(const finding *f, const lt_weight *w, const lt_name_place *p,
                               const lt_tensor *rows) {
    const char *why = f->param->experts ? refuse_experts(f, w, rows) : NULL;
    return why != NULL                                    ? why
           : p->transposed || w->n_dims != 2 + p->stacked ? "not stored (rows, columns)"
           : !product_takes(f->m, f->on_device, rows)     ? "no kernel for this type"
                                                          : NULL;
}

static void note_widened(widened_list *l, lt_dtype type, const char *why, const char *name) {
    int i = 0;
    while (i < l->n && (l->of[i].type != type || strcmp(l->of[i].why, why) != 0)) {
        i++;
    }
    if (i == MAX_REASONS) {
        return;
    }
    if (i == l->n) {
        l->of[l->n++] = (widened){.type = type, .why = why};
        strncpy(l->of[i].first, name, sizeof l->of[i].first - 1);
    }
    l->of[i].count++;
}

static void tell_widened(const widened_list *l, const lt_model *m) {
    for (int i = 0; i < l->n; i++) {
        const widened *w = &l->of[i];
        lt_log_info("%lld tensor%s of %s, %s%s, become%s %s on %s: %s", (long long)w->count,
                    w->count == 1 ? "" : "s", lt_dtype_name(w->type), w->first,
                    w->count == 1 ? "" : " the first", w->count == 1 ? "s" : "",
                    lt_dtype_name(m->options.dtype), m->backend->name, w->why);
    }
}

/* Columns must be cut between whole blocks of both types: the file's, and the one in which they are
 * kept. */
static lt_err check_cut(const finding *f, lt_dtype kept, const lt_stored_origin *o, int64_t cols) {
    const lt_dtype types[] = {kept, o->type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t bytes;
        const int64_t block = lt_dtype_block(types[i], &bytes);
        if (cols < o->cols && (o->col % block != 0 || cols % block != 0)) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: ranks divide its rows of %lld numbers into %lld each, which are not whole "
                    "blocks of %lld (%s); fewer ranks of tp, or lora.base = dtype",
                    f->param->name, (long long)o->cols, (long long)cols, (long long)block,
                    lt_dtype_name(types[i]));
        }
    }
    return LT_OK;
}

/* The part of a matrix of the file that a box of the parameter holds becomes a range, which begins
 * at this row of the held part. */
static lt_err add_range(finding *f, lt_dtype type, lt_stored_origin o, const lt_box *held,
                        int64_t first_row) {
    const int64_t rows = held->extent[0], cols = held->extent[1];
    const bool part = rows < o.rows || cols < o.cols || f->m->options.elsewhere;
    LT_TRY(check_cut(f, type, &o, cols));
    LT_ASSERT(f->stored.n_ranges < LT_STORED_RANGES);
    o.doubled = part && type == LT_NF4_DOUBLE;
    f->origins[f->stored.n_ranges] = o;
    f->stored.ranges[f->stored.n_ranges++] = (lt_weight_range){
        .first_row = first_row,
        .w = lt_tensor_2d(
            (void *)(uintptr_t)(o.data + (size_t)o.row * lt_dtype_row_bytes(o.type, o.cols)),
            o.doubled ? LT_NF4 : type, rows, cols)};
    return LT_OK;
}

/* The whole matrix of a part of a parameter, of which a range will be some rows. */
static lt_stored_origin origin_of(const finding *f, const lt_weight *w, const lt_name_place *p) {
    return (lt_stored_origin){.name = f->param->name,
                              .data = w->data,
                              .scales = w->scales,
                              .rows = p->rows,
                              .cols = p->cols,
                              .pair_rows = lt_weight_pair_rows(f->source, &f->m->spec, p),
                              .type = w->type,
                              .copied = f->m->options.stored_as != LT_F32};
}

/* The range of a part of experts, of those that are here. */
static lt_err add_experts(finding *f, const lt_weight *w, const lt_name_place *p, lt_dtype type) {
    const lt_box *box = lt_param_boxes(&f->m->table, f->param);
    const lt_box held = {.extent = {box->extent[0] * p->rows, p->cols}};
    const int i = f->stored.n_ranges;
    lt_stored_origin all = origin_of(f, w, p);
    LT_ASSERT(i < 2); /* Gate and up. */
    all.rows *= f->param->shape[0];
    all.row = box->first[0] * p->rows;
    if (!p->stacked) {
        all.each = f->each + (size_t)i * (size_t)f->param->shape[0];
        all.each_rows = p->rows;
        all.copied = all.copied || lt_dtype_is_block(type); /* Blocks are packed as one matrix. */
    }
    LT_TRY(add_range(f, type, all, &held, p->first / p->cols));
    f->stored.ranges[i].n_experts = box->extent[0];
    f->stored.ranges[i].each = all.each != NULL ? all.each + box->first[0] : NULL;
    return LT_OK;
}

/* A tensor that has the matrices of all experts, or that of one: the first one adds the range. */
static lt_err find_experts(finding *f, const lt_weight *w, const lt_name_place *p, lt_dtype type) {
    const int64_t at = p->first / p->cols, rows = f->param->shape[1], expert = at / rows;
    int i = 0;
    if (p->stacked || expert == 0) {
        LT_TRY(add_experts(f, w, p, type));
    }
    while (f->stored.ranges[i].first_row != at % rows) {
        i++;
        LT_ASSERT(i < f->stored.n_ranges);
    }
    if (f->origins[i].type != w->type) {
        note_widened(f->widened, w->type, "experts of several types", f->param->name);
        f->holdable = false;
    } else if (!p->stacked) {
        f->each[i * f->param->shape[0] + expert] = w->data;
    }
    return LT_OK;
}

static lt_err find_part(void *ctx, const char *name, const lt_weight *w, const lt_name_place *p) {
    finding *f = ctx;
    const lt_box *boxes = lt_param_boxes(&f->m->table, f->param);
    const int64_t n_experts = f->param->experts ? f->param->shape[0] : 1;
    const lt_tensor rows = lt_tensor_2d((void *)(uintptr_t)w->data,
                                        kept_type(f->m, p->kind, w->type, p->cols),
                                        p->rows * n_experts, p->cols);
    const char *why = refuse_part(f, w, p, &rows);
    int64_t box_row = 0;
    if (why != NULL) {
        if (lt_dtype_is_block(w->type) ||
            (f->m->options.decoded && w->type != f->m->options.dtype)) {
            note_widened(f->widened, w->type, why, name);
        }
        f->holdable = false;
    }
    if (!f->holdable) {
        return LT_OK;
    }
    if (f->param->experts) {
        return find_experts(f, w, p, rows.dtype);
    }
    const lt_box place = {.first = {p->first / p->cols}, .extent = {rows.shape[0], p->cols}};
    for (int i = 0; i < f->param->n_boxes; i++) {
        lt_box held;
        if (lt_box_intersect(&held, &boxes[i], &place, 2)) {
            lt_stored_origin origin = origin_of(f, w, p);
            origin.row = held.first[0] - place.first[0];
            origin.col = held.first[1];
            LT_TRY(add_range(f, rows.dtype, origin, &held,
                             box_row + held.first[0] - boxes[i].first[0]));
        }
        box_row += boxes[i].extent[0];
    }
    return LT_OK;
}

/* Where one expert's rows of a range are in the file. */
static const unsigned char *expert_of(const lt_stored_origin *o, int64_t n_experts, int64_t e) {
    const int64_t rows = o->rows / n_experts;
    return o->each != NULL ? o->each[e]
                           : o->data + (size_t)(e * rows) * lt_dtype_row_bytes(o->type, o->cols);
}

/* Gate and up, which are copied in any case, become one range with the rows of each expert in our
 * order, so that they are decoded at once. */
static void join_experts(finding *f) {
    const lt_param *p = f->param;
    lt_weight_range *range = f->stored.ranges;
    lt_stored_origin *o = f->origins;
    const unsigned char **both = f->each + 2 * p->shape[0];
    for (int i = 0; i < 2; i++) {
        if (!f->m->options.decoded || !p->experts || f->stored.n_ranges != 2 ||
            range[i].w.dtype != range[0].w.dtype || o[i].type != o[0].type ||
            o[i].rows != o[0].rows || o[i].pair_rows > 0 ||
            !(f->on_device || lt_stored_range_moves(&range[i], &o[i]))) {
            return;
        }
    }
    LT_ASSERT(range[0].first_row == 0 && o[0].scales == NULL && o[1].scales == NULL);
    for (int64_t e = 0; e < p->shape[0]; e++) {
        both[2 * e] = expert_of(&o[0], p->shape[0], e);
        both[2 * e + 1] = expert_of(&o[1], p->shape[0], e);
    }
    o->each = both;
    o->each_rows = o->rows / p->shape[0];
    o->rows *= 2;
    o->row *= 2;
    o->copied = true;
    range->each = NULL;
    range->w.shape[0] *= 2;
    f->stored.n_ranges = 1;
}

static lt_err alloc_held(lt_model *m) {
    m->stored = calloc((size_t)m->table.n_params, sizeof *m->stored);
    if (m->stored == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d weights", m->table.n_params);
    }
    return LT_OK;
}

lt_err lt_stored_weights_make(lt_model *m, uint64_t seed) {
    const lt_dtype type = m->options.stored_as;
    int n = 0;
    if (type != LT_NF4_DOUBLE && !lt_block_encodes(type)) {
        LT_FAIL(LT_ERR_ARG, "random weights as %s: not a block type", lt_dtype_name(type));
    }
    LT_ASSERT(m->options.partition == NULL);
    LT_TRY(alloc_held(m));
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        const int64_t experts = p->experts ? p->shape[0] : 0, cols = p->shape[p->n_dims - 1];
        const lt_tensor w = lt_tensor_2d(NULL, type, p->count / cols, cols);
        size_t bytes;
        if (is_encoded(m, p->kind) && cols % (int64_t)lt_dtype_block(type, &bytes) == 0 &&
            product_takes(m, !m->backend->host_memory, &w) &&
            (experts == 0 || packs_evenly(m, &w, experts))) {
            m->stored[i] = (lt_stored_weight){.n_ranges = 1,
                                              .ranges = {{.w = w, .n_experts = experts}}};
            n++;
        }
    }
    if (n == 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "no matrix of this model can be of %s on %s",
                lt_dtype_name(type), m->backend->name);
    }
    return lt_stored_weights_place(m, NULL, seed);
}

/* On a device, a model that holds nothing runs like any other in BF16. */
static void drop_empty(lt_model *m) {
    bool any = m->backend->host_memory;
    for (int i = 0; i < m->table.n_params; i++) {
        any = any || m->stored[i].n_ranges > 0;
    }
    if (!any) {
        free(m->stored);
        m->stored = NULL;
        m->options.stored = m->options.decoded = false;
    }
}

/* Matrices that are not in the type that was asked for. */
static lt_err check_type(const lt_model *m) {
    const lt_dtype type = m->options.stored_as;
    int64_t n = 0, cols = 0;
    size_t bytes;
    bool any = false;
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        const lt_dtype kept = m->stored[i].n_ranges > 0 ? m->stored[i].ranges[0].w.dtype : LT_F32;
        const bool is = kept == type || (kept == LT_NF4 && type == LT_NF4_DOUBLE);
        any = any || is;
        if (is_encoded(m, p->kind) && p->n_boxes > 0 && !is) {
            cols = n == 0 ? p->shape[p->n_dims - 1] : cols;
            n++;
        }
    }
    if (type != LT_F32 && !any && n > 0) {
        LT_FAIL(
            LT_ERR_UNSUPPORTED,
            "no matrix of this model can be of %s: rows of %lld numbers are not whole blocks of "
            "%lld, or are not stored as rows",
            lt_dtype_name(type), (long long)cols, (long long)lt_dtype_block(type, &bytes));
    }
    if (n > 0) {
        lt_log_info("%lld matrices stay in the type of their file, not in %s: rows of %lld numbers",
                    (long long)n, lt_dtype_name(type), (long long)cols);
    }
    return LT_OK;
}

/* Pointers to a parameter's experts: for each of its ranges, or for two and their join. */
static size_t experts_room(const lt_param *p) {
    return p->experts ? (size_t)p->shape[0] * 4 : 0;
}

/* Fills m->stored with ranges that point into the source, and origins, (n_params). */
static lt_err find_all(lt_model *m, bool on_device, const lt_source *source,
                       lt_stored_origin (*origins)[LT_STORED_RANGES], widened_list *told) {
    size_t each = 0;
    LT_TRY(alloc_held(m));
    for (int i = 0; i < m->table.n_params; i++) {
        each += experts_room(&m->table.params[i]);
    }
    m->stored_each = calloc(each + 1, sizeof *m->stored_each);
    if (m->stored_each == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu matrices of experts", each);
    }
    each = 0;
    for (int i = 0; i < m->table.n_params; i++) {
        finding f = {.source = source,
                     .m = m,
                     .on_device = on_device,
                     .param = &m->table.params[i],
                     .widened = told,
                     .each = m->stored_each + each,
                     .holdable = true};
        each += experts_room(f.param);
        if (!lt_stored_weights_is_matrix(f.param->kind) || f.param->n_boxes == 0) {
            continue;
        }
        LT_TRY(lt_weight_each_part(source, &m->spec, f.param, find_part, &f));
        join_experts(&f);
        if (f.holdable) {
            m->stored[i] = f.stored;
            memcpy(origins[i], f.origins, sizeof f.origins);
        }
    }
    return LT_OK;
}

lt_err lt_stored_weights_open(lt_model *m, const lt_source *source) {
    lt_err err = LT_OK;
    widened_list told = {.n = 0};
    lt_stored_origin(*origins)[LT_STORED_RANGES] = calloc((size_t)m->table.n_params,
                                                          sizeof *origins);

    if (origins == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%d weights", m->table.n_params);
    }
    LT_TRY_DONE(find_all(m, !m->backend->host_memory, source, origins, &told));
    LT_TRY_DONE(check_type(m));
    tell_widened(&told, m);
    LT_TRY_DONE(
        lt_stored_weights_place(m, (const lt_stored_origin(*)[LT_STORED_RANGES])origins, 0));
    drop_empty(m);
done:
    free(origins);
    return err;
}

void lt_stored_weights_found_close(lt_stored_found *f) {
    free(f->origins);
    lt_model_close(f->m);
    lt_weight_source_close(&f->source);
}

lt_err lt_stored_weights_find(lt_stored_found *f, const char *path, const lt_model_spec *spec,
                              const lt_model_options *o, bool on_device) {
    widened_list told = {.n = 0};
    lt_model_spec read;
    *f = (lt_stored_found){.m = NULL};
    LT_TRY(lt_weight_source_open(&f->source, &read, path));
    lt_weight_source_add_scores(&f->source, &read, o);
    LT_TRY(lt_model_begin(&f->m, spec != NULL ? spec : &read, o));
    f->m->options.dtype = on_device ? LT_BF16 : LT_F32;
    f->origins = calloc((size_t)f->m->table.n_params, sizeof *f->origins);
    if (f->origins == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d weights", f->m->table.n_params);
    }
    LT_TRY(find_all(f->m, on_device, &f->source, f->origins, &told));
    if (spec != NULL) { /* To be opened. */
        LT_TRY(check_type(f->m));
        tell_widened(&told, f->m);
    }
    return LT_OK;
}

lt_err lt_stored_weights_measure(size_t *out, const char *path, const lt_model_options *o,
                                 bool on_device) {
    lt_err err = LT_OK;
    lt_stored_found f;
    lt_model *m;
    size_t copied = 0, numbers;
    bool mapped = false;

    LT_TRY_DONE(lt_stored_weights_find(&f, path, NULL, o, on_device));
    m = f.m;
    for (int i = 0; i < m->table.n_params; i++) {
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            const lt_weight_range *range = &m->stored[i].ranges[j];
            const bool moves = on_device || lt_stored_range_moves(range, &f.origins[i][j]);
            copied += moves ? lt_stored_range_bytes(range) : 0;
            mapped = mapped || !moves;
        }
    }
    numbers = o->decoded ? (size_t)lt_stored_most_rows(&m->table, m->stored) : 0;
    lt_param_table_skip_stored(&m->table, m->stored, NULL);
    *out = lt_model_weights_bytes(&m->table, &m->options) + copied + numbers * sizeof(int32_t) +
           (mapped ? lt_stored_mapped_bytes(&f.source, &m->table) : 0);
done:
    lt_stored_weights_found_close(&f);
    return err;
}

size_t lt_stored_mapped_bytes(const lt_source *source, const lt_param_table *t) {
    int64_t held = 0, all = 0;
    for (int i = 0; i < t->n_params; i++) {
        held += t->params[i].local_count;
        all += t->params[i].count;
    }
    return (size_t)((double)lt_weight_source_bytes(source) * ((double)held / (double)all));
}

/* Whether any ranges are still in the mapped files. */
static bool reads_source(const lt_model *m) {
    const char *const first = m->stored_copies, *const end = first + m->stored_copies_bytes;
    for (int i = 0; i < m->table.n_params; i++) {
        for (int j = 0; j < m->stored[i].n_ranges; j++) {
            const char *at = m->stored[i].ranges[j].w.data;
            if (at != NULL && (first == NULL || at < first || at >= end)) {
                return true;
            }
        }
    }
    return false;
}

lt_err lt_stored_weights_keep(lt_model *m, lt_source *source) {
    if (!m->backend->host_memory || (m->options.decoded && !reads_source(m))) {
        return LT_OK;
    }
    m->stored_source = malloc(sizeof *m->stored_source);
    if (m->stored_source == NULL) {
        LT_FAIL(LT_ERR_OOM, "model");
    }
    *m->stored_source = *source;
    m->stored_source->path = NULL; /* It belongs to the caller. */
    *source = (lt_source){0};
    return LT_OK;
}

void lt_stored_weights_close(lt_model *m) {
    if (m->stored_copies != NULL) {
        m->backend->release(m->device, m->stored_copies, m->stored_copies_bytes);
    }
    if (m->row_numbers != NULL) {
        m->backend->release(m->device, m->row_numbers, m->row_numbers_bytes);
    }
    if (m->stored_packed != NULL) {
        m->backend->release(m->device, m->stored_packed, m->stored_packed_bytes);
    }
    if (m->stored_source != NULL) {
        lt_weight_source_close(m->stored_source);
    }
    free(m->stored_source);
    free(m->stored_each);
    free(m->stored);
    lt_stored_slices_close(m->slices);
}
