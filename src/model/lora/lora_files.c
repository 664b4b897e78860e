/* lora_files.c: reads and writes adapters in PEFT's form: adapter_config.json and
 * adapter_model.safetensors.
 *
 *     tensors   base_model.model.<module>.lora_A.weight (r, in), .lora_B.weight (out, r)
 *               DoRA: base_model.model.<module>.lora_magnitude_vector (out)
 *               an embedding: .lora_embedding_A (r, V), which is transposed here, and
 *               .lora_embedding_B (C, r)
 *               <module>.base_layer.weight, of embedding and head, which PEFT adds: must equal
 *               the base's; not written
 *               base_model.model.score.weight, of a score head (modules_to_save)
 *     experts (target_parameters): <module>.experts.lora_A.weight (E r, in), .lora_B.weight
 *               (out, r E), where column k E + e is column k of expert e; if both kinds have
 *               adapters, those of gate_up_proj are .experts.base_layer.lora_A.weight, ...
 *
 * adapter_config.json is read in lora_config.c, and written here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "lateen/tensor.h"
#include "model/alloc.h"
#include "model/lora/dora.h"
#include "model/lora/lora.h"
#include "model/names.h"
#include "model/files/safetensors.h"

#define SCORE      "base_model.model.score.weight"
#define SCORE_BIAS "base_model.model.score.bias"

/* ---- The weights ---- */

/* Called with each tensor: A, B and magnitudes of each module. It is some rows of its parameter;
 * first: index of its first element there. cols 0: it has one dimension. */
typedef struct {
    char name[LT_LORA_TENSOR_BYTES];
    const lt_param *param;
    int64_t first, rows, cols;
    bool transposed;          /* Here (cols, rows). */
    char matrix;              /* 'A', 'B'; 0: another tensor. */
    const lt_lora_part *part; /* NULL: it belongs to no module of a layer, or to experts. */
    int64_t n_experts;        /* Above 0: here (n_experts, rows, cols / n_experts), see above. */
} tensor;

static int dims_of(const tensor *t) {
    return t->cols > 0 ? 2 : 1;
}

static int64_t count_of(const tensor *t) {
    return t->cols > 0 ? t->rows * t->cols : t->rows;
}

typedef lt_err (*tensor_fn)(void *ctx, const tensor *t);

static lt_err each_of_experts(const lt_lora *l, const lt_lora_site *s, tensor_fn fn, void *ctx) {
    const lt_param *a = &l->params->table.params[s->a], *b = &l->params->table.params[s->b];
    const int64_t columns = l->options.rank * s->n_experts;
    /* The wrapper of the first parameter is inside that of the second. */
    const bool inner = a->kind == LT_PARAM_UP &&
                       lt_lora_site_of(l->sites, LT_PARAM_DOWN, a->layer) != NULL;
    tensor t[2] = {{.param = a, .rows = columns, .cols = a->shape[2]},
                   {.param = b, .rows = b->shape[1], .cols = columns, .n_experts = s->n_experts}};
    char module[LT_FOREIGN_NAME_BYTES];
    lt_lora_module(module, &s->parts[0], a->layer);
    *strrchr(module, '.') = '\0';
    for (int i = 0; i < 2; i++) {
        (void)snprintf(t[i].name, sizeof t[i].name, "base_model.model.%s.%slora_%c.weight", module,
                       inner ? "base_layer." : "", "AB"[i]);
        LT_TRY(fn(ctx, &t[i]));
    }
    return LT_OK;
}

/* Convert B of experts between its order here, (E, rows, r), and the file's, (rows, r E). */
static lt_err turn_experts(float **out, const float *x, const tensor *t, bool to_file) {
    const int64_t n = t->n_experts, rank = t->cols / n;
    float *y = malloc((size_t)count_of(t) * sizeof *y);
    if (y == NULL) {
        LT_FAIL(LT_ERR_OOM, "an adapter's %lld numbers", (long long)count_of(t));
    }
    for (int64_t e = 0; e < n; e++) {
        for (int64_t i = 0; i < t->rows * rank; i++) {
            const int64_t here = e * t->rows * rank + i,
                          there = i / rank * t->cols + i % rank * n + e;
            y[to_file ? there : here] = x[to_file ? here : there];
        }
    }
    *out = y;
    return LT_OK;
}

static lt_err each_part(const lt_lora *l, const lt_lora_site *s, int i, tensor_fn fn, void *ctx) {
    const lt_param *params = l->params->table.params;
    const lt_lora_part *p = &s->parts[i];
    const int64_t rank = l->options.rank, cols = params[s->a].shape[1];
    char module[LT_FOREIGN_NAME_BYTES];
    tensor a = {.param = &params[s->a],
                .first = i * rank * cols,
                .rows = rank,
                .cols = cols,
                .matrix = 'A',
                .part = p},
           b = {.param = &params[s->b],
                .first = p->b_row * rank,
                .rows = p->n_rows,
                .cols = rank,
                .matrix = 'B',
                .part = p};
    lt_lora_module(module, p, a.param->layer);
    snprintf(a.name, sizeof a.name, LT_LORA_TENSOR, module, 'A');
    snprintf(b.name, sizeof b.name, LT_LORA_TENSOR, module, 'B');
    if (a.param->kind == LT_PARAM_EMBED) {
        a.cols = a.param->shape[0];
        a.transposed = true;
        snprintf(a.name, sizeof a.name, LT_LORA_EMBEDDING, module, 'A');
        snprintf(b.name, sizeof b.name, LT_LORA_EMBEDDING, module, 'B');
    }
    LT_TRY(fn(ctx, &a));
    LT_TRY(fn(ctx, &b));
    if (s->m < 0) {
        return LT_OK;
    }
    tensor m = {.param = &params[s->m], .first = p->b_row, .rows = p->n_rows, .part = p};
    snprintf(m.name, sizeof m.name, LT_DORA_TENSOR, module);
    return fn(ctx, &m);
}

static lt_err each_tensor(const lt_lora *l, tensor_fn fn, void *ctx) {
    const int n_sites = lt_lora_n_sites(&l->base->spec);
    for (int i = 0; i < n_sites; i++) {
        if (l->sites[i].n_experts > 0) {
            LT_TRY(each_of_experts(l, &l->sites[i], fn, ctx));
            continue;
        }
        for (int k = 0; k < l->sites[i].n_parts; k++) {
            LT_TRY(each_part(l, &l->sites[i], k, fn, ctx));
        }
    }
    for (int kind = LT_PARAM_SCORE; kind <= LT_PARAM_SCORE_BIAS; kind++) {
        const int at = lt_param_index(&l->params->table, (lt_param_kind)kind, 0);
        const lt_param *param = at >= 0 ? &l->params->table.params[at] : NULL;
        tensor t = {.param = param};
        if (param == NULL) {
            continue;
        }
        (void)snprintf(t.name, sizeof t.name, "%s", kind == LT_PARAM_SCORE ? SCORE : SCORE_BIAS);
        t.rows = param->shape[0];
        t.cols = param->n_dims > 1 ? param->shape[1] : 0;
        LT_TRY(fn(ctx, &t));
    }
    return LT_OK;
}

typedef struct {
    lt_lora *l;
    const lt_safetensors *file;
    const char *path;
    size_t n_read;
    const json_t *config; /* For uneven adapters; otherwise NULL. */
    /* For uneven adapters: the scale is alpha divided by the root of the rank. */
    bool by_root;
} reading;

/* Write a shape such as "(4, 24)" or "(24)". */
static void shape_text(char out[64], int n_dims, int64_t d0, int64_t d1) {
    if (n_dims == 2) {
        snprintf(out, 64, "(%lld, %lld)", (long long)d0, (long long)d1);
    } else {
        snprintf(out, 64, "(%lld%s)", (long long)d0, n_dims > 2 ? ", ..." : "");
    }
}

static lt_err check_shape(const lt_safetensor *s, int64_t rows, int64_t cols, const char *path) {
    const int n_dims = cols > 0 ? 2 : 1;
    char is[64], wanted[64];
    if (s->n_dims == n_dims && s->shape[0] == rows && (cols == 0 || s->shape[1] == cols)) {
        return LT_OK;
    }
    shape_text(is, s->n_dims, s->n_dims > 0 ? s->shape[0] : 1, s->n_dims > 1 ? s->shape[1] : 1);
    shape_text(wanted, n_dims, rows, cols);
    LT_FAIL(LT_ERR_FORMAT, "%s: %s is %s where %s is expected", path, s->name, is, wanted);
}

lt_err lt_lora_values(float **out, const lt_safetensors *file, const char *path, const char *name,
                      int64_t rows, int64_t cols) {
    const lt_safetensor *s = lt_safetensors_find(file, name);
    const int64_t count = cols > 0 ? rows * cols : rows;
    float *values;
    if (s == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: no tensor %s", path, name);
    }
    LT_TRY(check_shape(s, rows, cols, path));
    if (s->dtype != LT_F32 && s->dtype != LT_BF16 && s->dtype != LT_F16 && s->dtype != LT_F64) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s has type %s: F64, F32, F16 and BF16 are read", path,
                name, lt_dtype_name(s->dtype));
    }
    values = malloc((size_t)count * sizeof *values);
    if (values == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %lld numbers", name, (long long)count);
    }
    lt_convert(values, LT_F32, s->data, s->dtype, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            free(values);
            LT_FAIL(LT_ERR_FORMAT, "%s: %s: element %lld is not finite", path, name, (long long)i);
        }
    }
    *out = values;
    return LT_OK;
}

lt_err lt_lora_transpose(float **out, const float *x, int64_t rows, int64_t cols, float factor) {
    float *y = malloc((size_t)(rows * cols) * sizeof *y);
    if (y == NULL) {
        LT_FAIL(LT_ERR_OOM, "an adapter's %lld numbers", (long long)(rows * cols));
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++) {
            y[c * rows + r] = factor * x[r * cols + c];
        }
    }
    *out = y;
    return LT_OK;
}

/* Read A or B of a module, (rows, cols), from one of a smaller rank in the file, padded with
 * zeros. */
static lt_err read_widened(float **out, const reading *r, const tensor *t,
                           const lt_lora_module_config *module) {
    const bool a = t->matrix == 'A';
    const int64_t rows = a ? module->rank : t->rows, cols = a ? t->cols : module->rank;
    const double scale = module->alpha /
                         (r->by_root ? sqrt((double)module->rank) : (double)module->rank);
    const float factor = a ? 1.0f : (float)(scale / (double)r->l->scale);
    float *values = NULL, *wide = NULL;
    lt_err err = LT_OK;
    LT_TRY(lt_lora_values(&values, r->file, r->path, t->name, rows, cols));
    wide = calloc((size_t)count_of(t), sizeof *wide);
    if (wide == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %lld numbers", t->name, (long long)count_of(t));
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < cols; k++) {
            wide[i * t->cols + k] = factor * values[i * cols + k];
        }
    }
    *out = wide;
done:
    free(values);
    return err;
}

/* Find out whether the file must have this tensor, and the rank of its module. If all adapters
 * have the same rank and layers, the file must have every tensor. */
static lt_err module_of(lt_lora_module_config *out, const reading *r, const tensor *t) {
    char module[LT_FOREIGN_NAME_BYTES];
    *out = (lt_lora_module_config){.has = true, .rank = r->l->options.rank};
    if (r->config == NULL || t->part == NULL) {
        return LT_OK;
    }
    lt_lora_module(module, t->part, t->param->layer);
    LT_TRY(
        lt_lora_config_module(out, r->config, module, lt_lora_is_module(t->part->name), r->path));
    if (!out->has && lt_safetensors_find(r->file, t->name) != NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s has %s, but " LT_LORA_CONFIG " has no adapter for %s", r->path,
                t->name, module);
    }
    return LT_OK;
}

static lt_err read_tensor(void *ctx, const tensor *t) {
    reading *r = ctx;
    lt_err err = LT_OK;
    float *values = NULL, *turned = NULL;
    lt_lora_module_config module;
    LT_TRY(module_of(&module, r, t));
    if (!module.has) {
        return LT_OK;
    }
    LT_TRY_DONE(r->config != NULL && t->matrix != 0
                    ? read_widened(&values, r, t, &module)
                    : lt_lora_values(&values, r->file, r->path, t->name, t->rows, t->cols));
    LT_TRY_DONE(t->transposed      ? lt_lora_transpose(&turned, values, t->rows, t->cols, 1.0f)
                : t->n_experts > 0 ? turn_experts(&turned, values, t, false)
                                   : LT_OK);
    lt_lora_set(r->l->trained, t->param, t->first, turned != NULL ? turned : values, count_of(t));
    r->n_read++;
done:
    free(values);
    free(turned);
    return err;
}

typedef struct {
    const char *name;
    bool known;
} looking;

static lt_err look(void *ctx, const tensor *t) {
    looking *l = ctx;
    l->known = l->known || strcmp(l->name, t->name) == 0;
    return LT_OK;
}

/* Whether it is the weight to which an adapter of the embedding or of the head belongs. */
static bool is_base_layer(const lt_lora *l, const char *name, lt_param_kind *kind) {
    const int n = lt_lora_n_sites(&l->base->spec);
    for (int i = n - LT_LORA_TOP_KINDS; i < n; i++) {
        const lt_lora_site *s = &l->sites[i];
        char module[LT_FOREIGN_NAME_BYTES], expected[LT_LORA_TENSOR_BYTES];
        if (s->n_parts == 0) {
            continue;
        }
        lt_lora_module(module, &s->parts[0], 0);
        snprintf(expected, sizeof expected, "base_model.model.%s.base_layer.weight", module);
        *kind = l->params->table.params[s->a].kind;
        if (strcmp(name, expected) == 0) {
            return true;
        }
    }
    return false;
}

/* Check that n elements equal the base's, up to rounding to 16 bits. own: the base's, in its
 * type. */
static lt_err compare_run(const float *values, const void *own, lt_dtype type, int64_t first,
                          int64_t n, const char *path, const char *name) {
    float wide[256];
    for (int64_t at = 0; at < n; at += 256) {
        const int64_t count = n - at < 256 ? n - at : 256;
        lt_convert(wide, LT_F32, (const char *)own + (size_t)at * lt_dtype_bytes(type), type,
                   (size_t)count);
        for (int64_t i = 0; i < count; i++) {
            const double value = (double)values[at + i], base = (double)wide[i];
            if (fabs(value - base) > 0x1p-7 * fabs(base)) {
                LT_FAIL(LT_ERR_UNSUPPORTED,
                        "%s: %s is not the base's: element %lld is %g, not %g. A matrix that was "
                        "changed beside adapters is not read",
                        path, name, (long long)(first + at + i), value, base);
            }
        }
    }
    return LT_OK;
}

/* PEFT would replace the base's matrix by this one, so it is compared with the part of the base
 * that is here. It is not compared with a quantised base, because the two are the same weights in
 * different types. */
static lt_err check_base_layer(const lt_lora *l, lt_param_kind kind, const lt_safetensors *file,
                               const char *path, const char *name) {
    const lt_model *m = l->weights;
    const lt_dtype type = m->weights.dtype;
    lt_err err = LT_OK;
    const lt_param_kind held = kind == LT_PARAM_HEAD && m->spec.tied ? LT_PARAM_EMBED : kind;
    const int index = lt_param_index(&m->table, held, 0);
    const lt_param *p = &m->table.params[index];
    const bool stored = m->stored != NULL && m->stored[index].n_ranges > 0;
    const size_t bytes = (size_t)p->local_count * lt_dtype_bytes(type);
    float *values = NULL;
    char *own = NULL;
    LT_TRY(lt_lora_values(&values, file, path, name, m->spec.vocab_size, m->spec.width));
    if (stored || bytes == 0) {
        goto done;
    }
    own = malloc(bytes);
    if (own == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %zu bytes", name, bytes);
    }
    LT_TRY_DONE(lt_model_download(m, own, lt_param_data(&m->weights, p), bytes));
    for (int64_t at = 0, run; at < p->local_count; at += run) {
        const int64_t whole = lt_param_whole_index(&m->table, p, at, &run);
        LT_TRY_DONE(compare_run(values + whole, own + (size_t)at * lt_dtype_bytes(type), type,
                                whole, run, path, name));
    }
done:
    free(values);
    free(own);
    return err;
}

/* Handle tensors that belong to no adapter: weights that were trained whole replace the base's;
 * others are errors. */
static lt_err name_other(const lt_lora *l, const lt_safetensors *file, const char *path) {
    for (size_t i = 0; i < file->n_tensors; i++) {
        looking one = {.name = file->tensors[i].name};
        lt_param_kind kind;
        LT_TRY(each_tensor(l, look, &one));
        if (is_base_layer(l, one.name, &kind)) {
            LT_TRY(check_base_layer(l, kind, file, path, one.name));
        } else if (!one.known && l->options.whole) {
            LT_TRY(lt_lora_replace(l, file, path, one.name));
        } else if (!one.known) {
            LT_FAIL(LT_ERR_FORMAT, "%s: %s belongs to no adapter of this model", path, one.name);
        }
    }
    return LT_OK;
}

/* config: that of uneven adapters. */
static lt_err load(lt_lora *l, const char *folder, const json_t *config) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    lt_safetensors file = {0};
    reading r = {.l = l,
                 .file = &file,
                 .path = path,
                 .config = config,
                 .by_root = l->options.scaling == LT_LORA_BY_ROOT};
    LT_TRY(lt_path_join(path, folder, LT_LORA_WEIGHTS));
    LT_TRY(lt_safetensors_open(&file, path));
    /* This comes first, because DoRA's magnitudes depend on the weights that are used. */
    if (l->options.whole) {
        LT_TRY_DONE(name_other(l, &file, path));
        LT_TRY_DONE(l->options.dora ? lt_dora_begin_all(l, l->base) : LT_OK);
    }
    LT_TRY_DONE(each_tensor(l, read_tensor, &r));
    LT_TRY_DONE(r.n_read < file.n_tensors && !l->options.whole ? name_other(l, &file, path)
                                                               : LT_OK);
    LT_TRY_DONE(lt_model_settle(l->trained));
    l->params->version++;
done:
    lt_safetensors_close(&file);
    return err;
}

lt_err lt_lora_load(lt_lora *l, const char *folder) {
    return load(l, folder, NULL);
}

lt_err lt_lora_load_uneven(lt_lora *l, const char *folder) {
    json_t *config = NULL;
    lt_err err;
    LT_TRY(lt_lora_config_load(&config, folder, &l->base->spec, l->options.whole));
    err = load(l, folder, config);
    json_decref(config);
    return err;
}

lt_err lt_lora_scores_of(lt_model_options *out, const char *folder) {
    char path[LT_PATH_BYTES];
    lt_safetensors file;
    const lt_safetensor *score;
    LT_TRY(lt_path_join(path, folder, LT_LORA_WEIGHTS));
    LT_TRY(lt_safetensors_open(&file, path));
    score = lt_safetensors_find(&file, SCORE);
    out->n_scores = score != NULL && score->n_dims == 2 ? score->shape[0] : 0;
    out->token_scores = out->n_scores > 0 && lt_safetensors_find(&file, SCORE_BIAS) != NULL;
    lt_safetensors_close(&file);
    return LT_OK;
}

/* ---- Writing ---- */

typedef struct {
    const float *flat; /* All adapters, in host memory, in the order of lt_param.whole_at. */
    const lt_lora *l;
    lt_safetensor_out *tensors;
    lt_safetensor_memory *memory;
    char (*names)[LT_LORA_TENSOR_BYTES];
    size_t n;
    float **turned; /* Copies of those whose order in the file differs; NULL for the others. */
} writing;

static lt_err list_tensor(void *ctx, const tensor *t) {
    writing *w = ctx;
    const float *values = w->flat + t->param->whole_at + t->first;
    float **turned = &w->turned[w->n];
    snprintf(w->names[w->n], LT_LORA_TENSOR_BYTES, "%s", t->name);
    if (t->transposed) {
        LT_TRY(lt_lora_transpose(turned, values, t->cols, t->rows, 1.0f));
    } else if (t->n_experts > 0) {
        LT_TRY(turn_experts(turned, values, t, true));
    }
    w->memory[w->n] = (lt_safetensor_memory){*turned != NULL ? *turned : values, sizeof(float)};
    w->tensors[w->n] = (lt_safetensor_out){.name = w->names[w->n],
                                           .dtype = LT_F32,
                                           .n_dims = dims_of(t),
                                           .shape = {t->rows, t->cols},
                                           .fill = lt_safetensor_fill_memory,
                                           .ctx = &w->memory[w->n]};
    w->n++;
    return LT_OK;
}

/* The adapters' F32 weights on the host; *copy: to free, or NULL. */
static lt_err find_flat(const float **flat, float **copy, const lt_model *m) {
    const size_t bytes = lt_param_buffer_bytes(&m->table, LT_F32);
    *copy = NULL;
    *flat = m->master.flat;
    if (m->backend->host_memory) {
        return LT_OK;
    }
    *flat = *copy = malloc(bytes);
    if (*copy == NULL) {
        LT_FAIL(LT_ERR_OOM, "copy of the adapters, %zu bytes", bytes);
    }
    return lt_model_download(m, *copy, m->master.flat, bytes);
}

static lt_err write_weights(const lt_lora *l, const float *values, const char *path) {
    const size_t most = (l->options.dora ? 3 : 2) * (size_t)l->n_modules +
                        (l->base->spec.n_scores > 0 ? 1 : 0) + (l->base->spec.score_bias ? 1 : 0);
    lt_err err = LT_OK;
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    writing w = {.flat = values, .l = l};

    w.tensors = calloc(most, sizeof *w.tensors);
    w.memory = calloc(most, sizeof *w.memory);
    w.names = calloc(most, sizeof *w.names);
    w.turned = calloc(most, sizeof *w.turned);
    if (w.tensors == NULL || w.memory == NULL || w.names == NULL || w.turned == NULL ||
        metadata == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "list of %zu tensors", most);
    }
    LT_TRY_DONE(each_tensor(l, list_tensor, &w));
    LT_ASSERT(w.n == most);
    LT_TRY_DONE(lt_safetensors_write(path, w.tensors, w.n, metadata, NULL));
done:
    json_decref(metadata);
    free(w.tensors);
    free(w.memory);
    free(w.names);
    for (size_t i = 0; w.turned != NULL && i < most; i++) {
        free(w.turned[i]);
    }
    free(w.turned);
    return err;
}

static bool has_name(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0) {
            return true;
        }
    }
    return false;
}

/* The short names of all modules that have adapters; of_experts: only those of experts, otherwise
 * the others. */
static json_t *target_list(const lt_lora *l, bool of_experts, bool *transposed) {
    const lt_model_spec *spec = &l->base->spec;
    json_t *list = json_array();
    for (int k = 0; k < lt_lora_n_sites(spec); k++) {
        const lt_lora_site *s = &l->sites[k];
        for (int i = 0; i < s->n_parts && (s->n_experts > 0) == of_experts; i++) {
            char name[LT_FOREIGN_NAME_BYTES];
            lt_lora_short_name(name, spec, s->parts[i].name);
            if (!has_name(list, name)) {
                json_array_append_new(list, json_string(name));
            }
            *transposed = *transposed || (s->parts[i].name->form & LT_FORM_TRANSPOSED) != 0;
        }
    }
    return list;
}

static lt_err write_config(const lt_lora *l, const char *path, const char *base) {
    const lt_lora_options *o = &l->options;
    const bool whole_alpha = o->alpha == floor(o->alpha) && fabs(o->alpha) < 1e15;
    lt_err err = LT_OK;
    bool transposed = false;
    char *text = NULL;
    json_t *list = target_list(l, false, &transposed), *experts = target_list(l, true, &transposed);
    json_t *config = json_pack(
        "{s:s, s:s, s:s, s:I, s:o, s:f, s:s, s:b, s:b, s:b, s:b, s:b, s:o}", "peft_type", "LORA",
        "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", (json_int_t)o->rank,
        "lora_alpha", whole_alpha ? json_integer((json_int_t)o->alpha) : json_real(o->alpha),
        "lora_dropout", o->dropout, "bias", "none", "fan_in_fan_out", transposed, "use_rslora",
        o->scaling == LT_LORA_BY_ROOT, "use_dora", o->dora, "init_lora_weights", true,
        "inference_mode", true, "target_modules", list);
    if (json_array_size(experts) > 0 &&
        json_object_set(config, "target_parameters", experts) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    if (l->base->spec.n_scores > 0 &&
        (json_object_set_new(config, "task_type",
                             json_string(l->base->spec.token_scores ? "TOKEN_CLS" : "SEQ_CLS")) !=
             0 ||
         json_object_set_new(config, "modules_to_save",
                             json_pack("[s, s]", "classifier", "score")) != 0)) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    text = config != NULL ? json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: the base's name is not UTF-8", path);
    }
    LT_TRY_DONE(lt_file_write_atomic(path, text, strlen(text)));
done:
    json_decref(config);
    json_decref(experts);
    free(text);
    return err;
}

lt_err lt_lora_write(const lt_lora *l, const float *values, const char *folder, const char *base) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_file_make_dirs(folder));
    LT_TRY(lt_path_join(path, folder, LT_LORA_WEIGHTS));
    LT_TRY(write_weights(l, values, path));
    LT_TRY(lt_path_join(path, folder, LT_LORA_CONFIG));
    return write_config(l, path, base);
}

lt_err lt_lora_save(const lt_lora *l, const char *folder, const char *base) {
    const float *values;
    float *copy;
    lt_err err;
    LT_ASSERT(lt_param_table_is_whole(&l->params->table));
    LT_TRY(find_flat(&values, &copy, l->params));
    err = lt_lora_write(l, values, folder, base);
    free(copy);
    return err;
}
