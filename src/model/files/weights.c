/* weights.c: lt_model_open: fills the flat buffers from a source, row by row.
 *
 * For each parameter, every name under which it (or a part of it: q of qkv, gate of up, one expert)
 * may be stored is looked up; the parts found must cover the parameter exactly. Shapes are checked
 * against the spec, values must be finite. First all parts are listed; then threads take chunks of
 * rows, whichever tensor is next. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/infer/generation.h"
#include "model/alloc.h"
#include "model/init.h"
#include "model/names.h"
#include "model/pass/score_ends.h"
#include "model/files/stored_weights.h"
#include "tensor/backend.h"
#include "tensor/block.h"

#define CHUNK_ELEMENTS    ((int64_t)1 << 18) /* For a host's caches; a device's chunk is a piece. */
#define CONSTANT_ROUNDING 0.01f              /* A BF16 holds a constant to 0.4 %. */
#define CONSTANT_STEP     0x1p-25f           /* Near 0 an F16 holds it to half of 2^-24. */

/* A foreign matrix of rows x cols (as ours; the file may keep it transposed) of which a box of the
 * parameter holds rows [row, row + n_rows) and columns [col, col + n_cols). These are contiguous in
 * the held part, from `local` on. */
typedef struct {
    lt_model *m;
    const lt_param *param;
    lt_weight w;
    char name[LT_FOREIGN_NAME_BYTES];
    const unsigned char *data;
    int64_t rows, cols;
    int64_t first, total; /* Its first element's index in the file's tensor of `total` elements. */
    int64_t row, n_rows, col, n_cols, local;
    int64_t row_bytes, rows_per_chunk;
    int64_t first_chunk; /* Index of the first chunk among those of all. */
    /* > 0: rows (of a vector, elements) come in pairs within groups of this many. */
    int64_t pair_rows;
    bool transposed; /* The file has (cols, rows). */
    float add;
    atomic_llong bad; /* Index of an element that is not finite, or -1. */
} transfer;

static bool all_finite(const float *x, int64_t n) {
    /* The largest exponent field, as bits: this is vectorised, while isfinite is not. */
    uint32_t worst = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7F800000u;
        worst = bits > worst ? bits : worst;
    }
    return worst != 0x7F800000u;
}

int64_t lt_weight_pair_rows(const lt_source *s, const lt_model_spec *spec, const lt_name_place *p) {
    const bool rotated = p->part == LT_PART_Q || p->part == LT_PART_K;
    return p->alternating ? p->rows : s->rope_interleaved && rotated ? spec->head_dim : 0;
}

int64_t lt_weight_target_row(int64_t head, int64_t r) {
    return head == 0 ? r : r / head * head + r % head / 2 + (r % 2) * (head / 2);
}

int64_t lt_weight_source_row(int64_t head, int64_t r) {
    const int64_t half = head / 2, inside = head == 0 ? 0 : r % head;
    return head == 0 ? r : r - inside + (inside < half ? 2 * inside : 2 * (inside - half) + 1);
}

/* Record an element that is not finite among values that begin at element `first` of the matrix. */
static void find_bad(transfer *t, const float *values, int64_t first, int64_t n) {
    int64_t at = 0;
    if (all_finite(values, n)) {
        return;
    }
    while (isfinite(values[at])) {
        at++;
    }
    atomic_store(&t->bad, t->first + first + at);
}

static bool takes_whole_rows(const transfer *t) {
    return t->n_cols == t->cols && t->pair_rows == 0 && !t->transposed && t->w.scales == NULL;
}

/* Whether the file's bits are the model's. */
static bool is_copy(const transfer *t) {
    return t->w.type == LT_BF16 && t->m->options.dtype == LT_BF16 && !lt_model_has_master(t->m) &&
           takes_whole_rows(t) && t->add == 0.0f;
}

/* Bytes of this many elements, whole blocks of them. */
static size_t bytes_of(const lt_weight *w, int64_t count) {
    return w->scales != NULL ? (size_t)count / 2 : lt_dtype_row_bytes(w->type, count);
}

/* Elements [from, from + n) of a row of a tensor. Blocks are decoded whole, in `room` (a row, and
 * two blocks more). */
static void decode_span(float *dst, const lt_weight *w, const unsigned char *row, int64_t from,
                        int64_t n, float *room) {
    size_t bytes;
    const lt_dtype type = w->type;
    const int64_t block = lt_dtype_block(type, &bytes), lead = from % block;
    const int64_t count = (lead + n + block - 1) / block * block;
    const unsigned char *at = row + bytes_of(w, from - lead);
    if (w->scales != NULL) {
        const size_t first = (size_t)(row - w->data) * 2 + (size_t)from;
        lt_block_decode_mxfp4(dst, w->data, w->scales, first, (size_t)n);
        return;
    }
    if (count == n) {
        lt_block_decode(dst, type, at, (size_t)n);
        return;
    }
    lt_block_decode(room, type, at, (size_t)count);
    memcpy(dst, room + lead, (size_t)n * sizeof *dst);
}

/* Floats that decode_span, and decode_transposed, may need beside their result. */
static int64_t span_room(const transfer *t) {
    size_t bytes;
    return (t->cols > t->rows ? t->cols : t->rows) +
           2 * (int64_t)lt_dtype_block(t->w.type, &bytes) + (t->transposed ? t->rows : 0);
}

/* Rows [begin, end) of those that are held, one by one. */
static void decode_rows(transfer *t, int64_t begin, int64_t end, float *values, float *room) {
    for (int64_t r = begin; r < end; r++) {
        const int64_t from = lt_weight_source_row(t->pair_rows, t->row + r);
        float *row = values + (r - begin) * t->n_cols;
        decode_span(row, &t->w, t->data + from * t->row_bytes, t->col, t->n_cols, room);
        find_bad(t, row, from * t->cols + t->col, t->n_cols);
    }
}

/* Elements [t->col, t->col + n) of a vector whose elements come in pairs. */
static void decode_pairs(transfer *t, float *values, float *room, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t from = lt_weight_source_row(t->pair_rows, t->col + i);
        decode_span(&values[i], &t->w, t->data, from, 1, room);
        find_bad(t, &values[i], from, 1);
    }
}

/* Rows [begin, end) of a matrix that the file keeps as (cols, rows): a span of each column. */
static void decode_transposed(transfer *t, int64_t begin, int64_t end, float *values, float *room) {
    float *const line = room, *const blocks = room + t->rows;
    int64_t low = t->rows, high = 0;
    for (int64_t r = begin; r < end; r++) {
        const int64_t from = lt_weight_source_row(t->pair_rows, t->row + r);
        low = from < low ? from : low;
        high = from + 1 > high ? from + 1 : high;
    }
    for (int64_t c = 0; c < t->n_cols; c++) {
        decode_span(line, &t->w, t->data + (t->col + c) * t->row_bytes, low, high - low, blocks);
        find_bad(t, line, (t->col + c) * t->rows + low, high - low);
        for (int64_t r = begin; r < end; r++) {
            values[(r - begin) * t->n_cols + c] =
                line[lt_weight_source_row(t->pair_rows, t->row + r) - low];
        }
    }
}

static void transfer_chunk(transfer *t, int64_t chunk) {
    const int64_t begin = chunk * t->rows_per_chunk;
    const int64_t end = begin + t->rows_per_chunk < t->n_rows ? begin + t->rows_per_chunk
                                                              : t->n_rows;
    const int64_t n = (end - begin) * t->n_cols, first = (t->row + begin) * t->cols;
    const unsigned char *data = t->data + (t->row + begin) * t->row_bytes;
    const int64_t room = takes_whole_rows(t) ? 0 : span_room(t);
    float *values;

    if (is_copy(t) && lt_model_set_finite(t->m, t->param, t->local + begin * t->n_cols, data, n)) {
        return;
    }
    values = malloc((size_t)(n + room) * sizeof *values);
    if (values == NULL) {
        atomic_store(&t->bad, -2);
        return;
    }
    if (takes_whole_rows(t)) {
        lt_block_decode(values, t->w.type, data, (size_t)n);
        find_bad(t, values, first, n);
    } else if (t->transposed) {
        decode_transposed(t, begin, end, values, values + n);
    } else if (t->pair_rows > 0 && t->rows == 1) {
        decode_pairs(t, values, values + n, n);
    } else {
        decode_rows(t, begin, end, values, values + n);
    }
    for (int64_t i = 0; t->add != 0.0f && i < n; i++) {
        values[i] += t->add;
    }
    lt_model_set(t->m, t->param, t->local + begin * t->n_cols, values, LT_F32, n);
    free(values);
}

static lt_err check_transfer(const transfer *t, const char *path) {
    const long long bad = atomic_load(&t->bad);
    if (bad == -2) {
        LT_FAIL(LT_ERR_OOM, "%s: tensor %s", path, t->name);
    }
    if (bad >= 0) {
        LT_FAIL(LT_ERR_NUMERIC, "%s: tensor %s: element %lld of %lld is NaN or infinite", path,
                t->name, bad, (long long)t->total);
    }
    return LT_OK;
}

/* Rows of a chunk; returns how many chunks there are. */
static int64_t cut(transfer *t) {
    const int64_t elements = t->m->backend->host_memory ? CHUNK_ELEMENTS
                                                        : (int64_t)LT_MODEL_PIECE_BYTES / 2;
    t->row_bytes = (int64_t)bytes_of(&t->w, t->transposed ? t->rows : t->cols);
    t->rows_per_chunk = elements / t->n_cols > 0 ? elements / t->n_cols : 1;
    return (t->n_rows + t->rows_per_chunk - 1) / t->rows_per_chunk;
}

static lt_err wrong_shape(const char *path, const char *name, const lt_weight *w,
                          const lt_name_place *want) {
    char got[96] = "";
    for (int i = 0; i < w->n_dims; i++) {
        const size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s%lld", i > 0 ? ", " : "",
                 (long long)w->shape[i]);
    }
    LT_FAIL(LT_ERR_FORMAT,
            "%s: tensor %s has shape (%s), but the configuration asks for (%s%lld%s%lld)", path,
            name, got, want->stacked ? "experts, " : "",
            (long long)(want->transposed ? want->cols : want->rows), want->cols > 1 ? ", " : " x ",
            (long long)(want->transposed ? want->rows : want->cols));
}

/* Does the stored shape hold rows x cols (x experts when stacked)? Vectors and scalars may have any
 * shape of that many elements. */
static bool shape_fits(const lt_weight *w, const lt_name_place *p) {
    const int lead = p->stacked ? 1 : 0;
    int64_t count = 1;
    for (int i = 0; i < w->n_dims; i++) {
        count *= w->shape[i];
    }
    if (count != p->rows * p->cols * (p->stacked ? p->n_experts : 1)) {
        return false;
    }
    if (p->cols == 1 && !p->stacked) {
        return true;
    }
    if (p->cols == 1) {
        return w->n_dims == 2 && w->shape[0] == p->n_experts;
    }
    return w->n_dims == 2 + lead && (lead == 0 || w->shape[0] == p->n_experts) &&
           w->shape[lead] == (p->transposed ? p->cols : p->rows) &&
           w->shape[lead + 1] == (p->transposed ? p->rows : p->cols);
}

static lt_err check_tensor(const char *path, const char *name, const lt_weight *w,
                           const lt_name_place *p) {
    size_t bytes;
    const int64_t elems = lt_dtype_block(w->type, &bytes);
    if (!shape_fits(w, p)) {
        return wrong_shape(path, name, w, p);
    }
    if (elems > 1 && w->shape[w->n_dims - 1] % elems != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s: rows of %lld elements in blocks of %lld", path, name,
                (long long)w->shape[w->n_dims - 1], (long long)elems);
    }
    return LT_OK;
}

lt_err lt_weight_each_part(const lt_source *s, const lt_model_spec *spec, const lt_param *param,
                           lt_weight_part_fn *fn, void *ctx) {
    char first_missing[LT_FOREIGN_NAME_BYTES] = "";
    int64_t covered = 0;

    for (int i = 0; i < s->n_names && covered < param->count; i++) {
        const lt_name_row *row = &s->names[i];
        const int64_t repeats = lt_name_has_expert(row) && param->experts ? param->shape[0] : 1;
        if (!lt_name_applies(row, spec, param)) {
            continue;
        }
        for (int64_t e = 0; e < repeats; e++) {
            char name[LT_FOREIGN_NAME_BYTES];
            lt_name_place place;
            lt_weight w;
            bool found = false;
            lt_foreign_name(name, row->name, param->layer, e);
            LT_TRY((row->form & LT_FORM_MXFP4) != 0 ? lt_source_find_mxfp4(s, name, &w, &found)
                                                    : lt_source_find(s, name, &w, &found));
            if (!found) {
                memcpy(first_missing, first_missing[0] == '\0' ? name : first_missing,
                       sizeof first_missing);
                break;
            }
            lt_name_place_of(&place, spec, param, row, e, w.n_dims);
            LT_TRY(check_tensor(s->path, name, &w, &place));
            LT_TRY(fn(ctx, name, &w, &place));
            covered += place.rows * place.cols * (place.stacked ? place.n_experts : 1);
        }
    }
    if (covered != param->count) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s is missing (%s: %lld of %lld elements found)",
                s->path, first_missing[0] != '\0' ? first_missing : param->name, param->name,
                (long long)covered, (long long)param->count);
    }
    return LT_OK;
}

/* The transfers to be made. */
typedef struct {
    lt_model *m;
    const lt_source *source;
    const lt_param *param; /* The parameter whose tensors are listed. */
    transfer *transfers;
    size_t n, room;
    int64_t n_chunks;
} loading;

static lt_err add_transfer(loading *l, const transfer *t) {
    if (l->n == l->room) {
        const size_t room = l->room == 0 ? 64 : 2 * l->room;
        transfer *grown = realloc(l->transfers, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: list of %zu tensors", l->source->path, room);
        }
        l->transfers = grown;
        l->room = room;
    }
    transfer *added = &l->transfers[l->n++];
    *added = *t;
    added->first_chunk = l->n_chunks;
    l->n_chunks += cut(added);
    return LT_OK;
}

/* The place of a foreign matrix in the whole parameter: some rows and all columns, or some elements
 * of a vector. */
static lt_box place_box(const lt_param *param, const lt_name_place *p, int64_t expert) {
    const int64_t stride = p->expert_stride, inside = stride > 0 ? p->first % stride : p->first;
    lt_box box = {.first = {0}};
    const int d = param->experts ? 1 : 0;
    if (param->experts) {
        box.first[0] = p->first / stride + expert;
        box.extent[0] = 1;
    }
    box.first[d] = inside / p->cols;
    box.extent[d] = p->rows;
    box.extent[d + 1] = d + 1 < param->n_dims ? p->cols : 0;
    return box;
}

/* List what the boxes of the parameter hold of one foreign matrix. */
static lt_err load_matrix(loading *l, transfer *t, const lt_box *place) {
    const lt_param *p = l->param;
    const lt_box *boxes = lt_param_boxes(&l->m->table, p);
    const int last = p->n_dims - 1;
    int64_t box_at = 0;
    for (int i = 0; i < p->n_boxes; i++) {
        const lt_box *box = &boxes[i];
        lt_box held;
        if (lt_box_intersect(&held, box, place, p->n_dims)) {
            const bool vector = t->rows == 1 && last == (p->experts ? 1 : 0);
            LT_ASSERT(vector || held.extent[last] == box->extent[last]);
            t->row = vector ? 0 : held.first[last - 1] - place->first[last - 1];
            t->n_rows = vector ? 1 : held.extent[last - 1];
            t->col = held.first[last] - place->first[last];
            t->n_cols = held.extent[last];
            t->local = box_at + lt_box_local_index(box, p->n_dims, held.first);
            LT_TRY(add_transfer(l, t));
        }
        box_at += lt_box_count(box, p->n_dims);
    }
    return LT_OK;
}

static lt_err load_part(void *ctx, const char *name, const lt_weight *w, const lt_name_place *p) {
    loading *l = ctx;
    const lt_source *s = l->source;
    const int64_t experts = p->stacked ? p->n_experts : 1;
    const bool vector = p->cols == 1 && l->param->n_dims == (l->param->experts ? 2 : 1);
    const bool is_norm = p->cols == 1 && s->norms_plus_one && lt_param_kind_is_norm(p->kind);

    for (int64_t e = 0; e < experts; e++) {
        const lt_box place = place_box(l->param, p, e);
        transfer t = {.m = l->m,
                      .param = l->param,
                      .w = *w,
                      .rows = vector ? 1 : p->rows,
                      .cols = vector ? p->rows : p->cols,
                      .first = e * p->rows * p->cols,
                      .total = experts * p->rows * p->cols,
                      .bad = -1};
        (void)snprintf(t.name, sizeof t.name, "%s", name);
        t.data = w->data + (size_t)e * bytes_of(w, p->rows * p->cols);
        t.pair_rows = lt_weight_pair_rows(s, &l->m->spec, p);
        t.transposed = p->transposed && !vector;
        t.add = is_norm ? -1.0f : 0.0f;
        LT_TRY(load_matrix(l, &t, &place));
    }
    return LT_OK;
}

static void load_chunk(void *ctx, size_t chunk) {
    const loading *l = ctx;
    size_t low = 0, high = l->n; /* The last transfer that begins at this chunk or before. */
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        *(l->transfers[middle].first_chunk <= (int64_t)chunk ? &low : &high) = middle;
    }
    transfer_chunk(&l->transfers[low], (int64_t)chunk - l->transfers[low].first_chunk);
}

/* Check stored values that are constants in our code (xIELU's beta): a model with another value is
 * refused. */
static lt_err check_constants(const lt_model *m, const lt_source *s) {
    const lt_family_row *family = lt_family_get(m->spec.family);
    for (int64_t i = 0; s->shards != NULL && i < family->n_constants * m->spec.n_layers; i++) {
        const lt_constant_row *row = &family->constants[i % family->n_constants];
        const int layer = (int)(i / family->n_constants);
        char name[LT_FOREIGN_NAME_BYTES];
        float value = 0.0f;
        lt_weight w;
        bool found = false;
        lt_foreign_name(name, row->name, layer, 0);
        if (row->write) {
            LT_TRY(lt_source_find(s, name, &w, &found));
        }
        if (!found) {
            continue;
        }
        lt_convert(&value, LT_F32, w.data, w.type, 1);
        if (!(fabsf(value - row->value) <=
              fmaxf(fabsf(row->value) * CONSTANT_ROUNDING, w.type == LT_F16 ? CONSTANT_STEP : 0))) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: tensor %s is %g; we compute with %g", s->path, name,
                    (double)value, (double)row->value);
        }
    }
    return LT_OK;
}

/* Parameters that are to come first, or all others. */
static lt_err load_params(lt_model *m, const lt_source *source, bool first) {
    lt_err err = LT_OK;
    loading l = {.m = m, .source = source};
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        if ((p->kind == LT_PARAM_SCORE || p->kind == LT_PARAM_SCORE_BIAS) && source->new_scores) {
            continue;
        }
        /* lt_exec_prepare reads xIELU's scalars and sinks. */
        if ((p->kind == LT_PARAM_XIELU || p->kind == LT_PARAM_SINKS) == first && p->n_boxes > 0 &&
            (m->stored == NULL || m->stored[i].n_ranges == 0)) {
            l.param = p;
            LT_TRY_DONE(lt_weight_each_part(source, &m->spec, p, load_part, &l));
        }
    }
    lt_parallel_for((size_t)l.n_chunks, load_chunk, &l);
    for (size_t i = 0; i < l.n; i++) {
        LT_TRY_DONE(check_transfer(&l.transfers[i], source->path));
    }
done:
    free(l.transfers);
    return err;
}

/* Warn as transformers does, e.g. of a bias that config.json does not mention. */
static void tell_unread(const lt_model *m, const lt_source *s) {
    const char *first;
    const size_t n = lt_source_unread(s, &m->spec, &m->table, &first);
    if (n > 0) {
        lt_log_warn("%s: %zu tensor%s no part of the %s that config.json describes, and not read: "
                    "%s%s",
                    s->path, n, n == 1 ? " is" : "s are", lt_family_name(m->spec.family), first,
                    n == 1 ? "" : ", ...");
    }
}

static lt_err fill(lt_model *m, const lt_source *source) {
    const double start_s = lt_clock_s();
    tell_unread(m, source);
    LT_TRY(load_params(m, source, false));
    if (source->new_scores) {
        lt_init_param(m, &m->table.params[lt_param_index(&m->table, LT_PARAM_SCORE, 0)],
                      m->options.score_seed);
    }
    LT_TRY(check_constants(m, source));
    LT_TRY(lt_model_settle(m));
    lt_log_debug("%s: weights came in %.3f s", source->path, lt_clock_s() - start_s);
    return LT_OK;
}

/* Weights on their way, on a thread of their own. */
struct lt_filling {
    pthread_t thread;
    lt_model *m;
    lt_source source;
    char *path; /* The source's. */
    int n_threads;
    lt_failure failure;
};

static void *fill_async(void *arg) {
    struct lt_filling *f = arg;
    lt_thread_set_count(f->n_threads); /* As in the thread that opened the model. */
    lt_failure_keep(&f->failure, fill(f->m, &f->source));
    lt_weight_source_close(&f->source);
    return NULL;
}

static void filling_free(struct lt_filling *f) {
    free(f->path);
    free(f);
}

/* Takes the source. */
static lt_err filling_begin(lt_model *m, lt_source *source) {
    struct lt_filling *f = calloc(1, sizeof *f);
    char *path = strdup(source->path);
    if (f == NULL || path == NULL) {
        free(f);
        free(path);
        LT_FAIL(LT_ERR_OOM, "model");
    }
    *f = (struct lt_filling){
        .m = m, .source = *source, .path = path, .n_threads = lt_thread_count()};
    f->source.path = path;
    *source = (lt_source){0};
    if (pthread_create(&f->thread, NULL, fill_async, f) != 0) {
        lt_weight_source_close(&f->source);
        filling_free(f);
        LT_FAIL(LT_ERR_OOM, "model: no thread can be made");
    }
    m->filling = f;
    return LT_OK;
}

lt_err lt_model_wait(lt_model *m) {
    struct lt_filling *f = m->filling;
    lt_err err = LT_OK;
    if (f != NULL) {
        pthread_join(f->thread, NULL);
        err = lt_failure_raise(&f->failure);
        filling_free(f);
        m->filling = NULL;
    }
    return err;
}

lt_err lt_model_open(lt_model **out, const char *path, const lt_model_options *options) {
    lt_err err = LT_OK;
    lt_source source = {0};
    lt_model_spec spec;
    lt_model *m = NULL;
    double start_s;

    LT_ASSERT(out != NULL && path != NULL);
    LT_TRY(lt_weight_source_open(&source, &spec, path));
    lt_weight_source_add_scores(&source, &spec, options);
    LT_TRY_DONE(lt_model_begin(&m, &spec, options));
    start_s = lt_clock_s();
    if (source.gguf != NULL) {
        LT_TRY_DONE(lt_generation_read_gguf(m, source.gguf));
    } else if (source.shards != NULL) {
        LT_TRY_DONE(lt_generation_read(m, path));
    }
    if (m->options.stored) {
        LT_TRY_DONE(lt_stored_weights_open(m, &source));
    }
    LT_TRY_DONE(lt_model_place(m));
    LT_TRY_DONE(load_params(m, &source, true));
    LT_TRY_DONE(spec.score_ends > 0 ? lt_score_ends_read(m, &source) : LT_OK);
    if (m->options.load_async && !m->backend->host_memory) {
        LT_TRY_DONE(filling_begin(m, &source));
    } else {
        LT_TRY_DONE(fill(m, &source));
        LT_TRY_DONE(m->stored != NULL ? lt_stored_weights_keep(m, &source) : LT_OK);
    }
    lt_log_debug("%s: opened in %.3f s", path, lt_clock_s() - start_s);
    *out = m;
    m = NULL;
done:
    lt_model_close(m);
    lt_weight_source_close(&source);
    return err;
}
