/* lora_gguf.c: see lora_gguf.h. A module's name in the file is that of its weight in a GGUF of the
 * model: the row of lt_gguf_names with the same kind and part as the row of PEFT's name. */
#include "model/lora/lora_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "data/gguf_write.h"
#include "model/alloc.h"
#include "model/names.h"
#include "model/files/source.h"
#include "model/files/stored_weights.h"
#include "tensor/block.h"

/* ---- Names ---- */

/* The name of a module's weight in a GGUF; false: it is not a separate weight there. */
static bool weight_name(char out[LT_FOREIGN_NAME_BYTES], const lt_model_spec *spec,
                        const lt_param *param, const lt_name_row *module) {
    for (int i = 0; i < lt_n_gguf_names; i++) {
        const lt_name_row *row = &lt_gguf_names[i];
        if (row->part == module->part && !lt_name_has_expert(row) &&
            lt_name_applies(row, spec, param)) {
            lt_foreign_name(out, row->name, param->layer, 0);
            return true;
        }
    }
    return false;
}

/* The same for a part to whose matrix this parameter of the adapters belongs. */
static bool weight_of(char out[LT_FOREIGN_NAME_BYTES], const lt_model *base, const lt_param *param,
                      const lt_lora_part *p) {
    const int index = lt_param_index(&base->table, param->kind, param->layer);
    return index >= 0 && weight_name(out, &base->spec, &base->table.params[index], p->name);
}

bool lt_lora_gguf_name(char out[LT_LORA_GGUF_NAME_BYTES], const lt_model *base,
                       const lt_param *param, const lt_lora_part *p, char letter) {
    char weight[LT_FOREIGN_NAME_BYTES];
    const bool named = weight_of(weight, base, param, p);
    if (named) {
        (void)snprintf(out, LT_LORA_GGUF_NAME_BYTES, "%s.lora_%c", weight, letter);
    }
    return named;
}

static int64_t pair_rows(const lt_model_spec *spec, const lt_name_row *module) {
    const bool rotated = module->part == LT_PART_Q || module->part == LT_PART_K;
    return rotated && lt_family_get(spec->family)->gguf.pairs ? spec->head_dim : 0;
}

/* The number of rows of A. A of the embedding has a row for each token, in the file as here;
 * other A's have a row for each dimension of the rank. */
static int64_t rows_of_a(const lt_param *a, int64_t rank) {
    return a->kind == LT_PARAM_EMBED ? a->shape[0] : rank;
}

/* ---- Reading ---- */

bool lt_lora_is_gguf_path(const char *path) {
    return lt_path_has_suffix(path, ".gguf") && !lt_file_is_dir(path);
}

bool lt_lora_gguf_holds(const lt_gguf *g) {
    lt_gguf_str type;
    return lt_gguf_find(g, "general.type") != NULL &&
           lt_gguf_get_str(g, "general.type", &type) == LT_OK && lt_gguf_str_is(type, "adapter");
}

bool lt_lora_is_gguf(const char *path) {
    lt_gguf *g = NULL;
    bool is;
    if (!lt_lora_is_gguf_path(path) || lt_gguf_open(&g, path) != LT_OK) {
        return false;
    }
    is = lt_lora_gguf_holds(g);
    lt_gguf_close(g);
    return is;
}

static lt_err check_word(const lt_gguf *g, const char *key, const char *wanted) {
    lt_gguf_str value;
    LT_TRY(lt_gguf_get_str(g, key, &value));
    if (value.bytes != strlen(wanted) || memcmp(value.data, wanted, value.bytes) != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s is '%.*s' where '%s' is expected", g->name, key,
                (int)(value.bytes < 64 ? value.bytes : 64), value.data, wanted);
    }
    return LT_OK;
}

lt_err lt_lora_gguf_check(const lt_gguf *g, const lt_model_spec *spec) {
    const char *arch = lt_family_get(spec->family)->gguf.architecture;
    if (arch == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: GGUF has no architecture for family %s", g->name,
                lt_family_name(spec->family));
    }
    if (!lt_lora_gguf_holds(g)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s holds no adapters: its general.type is not 'adapter'",
                g->name);
    }
    LT_TRY(check_word(g, "adapter.type", "lora"));
    LT_TRY(check_word(g, "general.architecture", arch));
    if (lt_gguf_find(g, "adapter.alora.invocation_tokens") != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: adapter.alora.invocation_tokens is set, which is not supported", g->name);
    }
    return LT_OK;
}

static const lt_gguf_tensor *tensor_of(const lt_gguf *g, const char *weight, char part) {
    char name[LT_LORA_GGUF_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.lora_%c", weight, part);
    return lt_gguf_tensor_find(g, name);
}

/* Add the adapters of one row of the family's names, if the file has them: their target, if all
 * layers have it, and their rank. */
static lt_err add_row(lt_lora_config *c, char *targets, const lt_gguf *g, const lt_model_spec *spec,
                      const lt_param_table *base, const lt_name_row *row) {
    char weight[LT_FOREIGN_NAME_BYTES], name[LT_FOREIGN_NAME_BYTES];
    const int n_layers = lt_lora_is_top(row) ? 1 : (int)spec->n_layers;
    int64_t n = 0;
    lt_lora_short_name(name, spec, row);
    for (int layer = 0; layer < n_layers; layer++) {
        const int index = lt_param_index(base, row->kind, layer);
        const lt_gguf_tensor *a = index >= 0 && weight_name(weight, spec, &base->params[index], row)
                                      ? tensor_of(g, weight, 'a')
                                      : NULL;
        const int64_t rank = a == NULL ? 0 : (int64_t)a->dims[row->kind == LT_PARAM_EMBED ? 0 : 1];
        n += a != NULL;
        if (a != NULL && c->options.rank == 0) {
            c->options.rank = rank;
        }
        if (a != NULL && rank != c->options.rank) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s.lora_a has rank %lld, another one %lld", g->name,
                    weight, (long long)rank, (long long)c->options.rank);
        }
    }
    if (n > 0 && n < n_layers) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s has adapters in %lld of %lld layers", g->name, name,
                (long long)n, (long long)spec->n_layers);
    }
    if (n > 0) {
        (void)snprintf(targets + strlen(targets), LT_LORA_TARGETS_BYTES - strlen(targets), "%s%s",
                       targets[0] != '\0' ? "," : "", name);
    }
    return LT_OK;
}

lt_err lt_lora_gguf_config_read(lt_lora_config *out, const char *path, const lt_model_spec *spec) {
    lt_err err = LT_OK;
    const lt_family_row *family = lt_family_get(spec->family);
    char targets[LT_LORA_TARGETS_BYTES] = "";
    lt_param_table base = {0};
    lt_gguf *g = NULL;
    lt_lora_config c = {.targets = NULL};

    LT_TRY_DONE(lt_gguf_open(&g, path));
    LT_TRY_DONE(lt_lora_gguf_check(g, spec));
    LT_TRY_DONE(lt_gguf_get_f64(g, "adapter.lora.alpha", &c.options.alpha));
    LT_TRY_DONE(lt_param_table_open(&base, spec));
    for (int i = 0; i < family->n_names; i++) {
        if (lt_lora_is_module(&family->names[i]) || lt_lora_is_top(&family->names[i])) {
            LT_TRY_DONE(add_row(&c, targets, g, spec, &base, &family->names[i]));
        }
    }
    if (c.options.rank < 1) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no linear layer of %s has an adapter in it", path,
                     lt_family_name(spec->family));
    }
    if (c.options.alpha == 0.0) { /* The factor is 1. */
        c.options.alpha = (double)c.options.rank;
    }
    c.targets = strdup(targets);
    if (c.targets == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    c.options.targets = c.targets;
    *out = c;
    c = (lt_lora_config){.targets = NULL};
done:
    lt_lora_config_close(&c);
    lt_param_table_close(&base);
    lt_gguf_close(g);
    return err;
}

/* Read the values of a tensor of this shape into *out; free it. */
static lt_err values_of(float **out, const lt_gguf *g, const char *weight, char part, int64_t rows,
                        int64_t cols) {
    const lt_gguf_tensor *t = tensor_of(g, weight, part);
    const int64_t count = rows * cols;
    lt_dtype type;
    float *values;
    if (t == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: no tensor %s.lora_%c", g->name, weight, part);
    }
    if (t->n_dims != 2 || (int64_t)t->dims[0] != cols || (int64_t)t->dims[1] != rows) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s.lora_%c is {%llu, %llu} where {%lld, %lld} is expected",
                g->name, weight, part, (unsigned long long)t->dims[0],
                (unsigned long long)t->dims[1], (long long)cols, (long long)rows);
    }
    if (!lt_ggml_type_dtype((uint32_t)t->type, &type) || !lt_block_decodes(type)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %s.lora_%c is of type %d", g->name, weight, part,
                (int)t->type);
    }
    values = malloc((size_t)count * sizeof *values);
    if (values == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %lld numbers", weight, (long long)count);
    }
    lt_block_decode(values, type, t->data, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            free(values);
            LT_FAIL(LT_ERR_FORMAT, "%s: %s.lora_%c: element %lld is not finite", g->name, weight,
                    part, (long long)i);
        }
    }
    *out = values;
    return LT_OK;
}

lt_err lt_lora_gguf_values(float **a, float **b, const lt_gguf *g, const lt_model *base,
                           const lt_param *param, const lt_lora_part *p, int64_t rank) {
    const int64_t pairs = pair_rows(&base->spec, p->name);
    char weight[LT_FOREIGN_NAME_BYTES];
    const bool named = weight_of(weight, base, param, p);
    lt_err err = LT_OK;
    float *in_file = NULL;
    LT_ASSERT(named); /* Otherwise it is not a target. */
    LT_TRY_DONE(values_of(a, g, weight, 'a', rows_of_a(param, rank), param->shape[1]));
    LT_TRY_DONE(values_of(&in_file, g, weight, 'b', p->n_rows, rank));
    *b = malloc((size_t)(p->n_rows * rank) * sizeof **b);
    if (*b == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %lld numbers", weight, (long long)(p->n_rows * rank));
    }
    for (int64_t r = 0; r < p->n_rows; r++) {
        memcpy(*b + lt_weight_target_row(pairs, r) * rank, in_file + r * rank,
               (size_t)rank * sizeof **b);
    }
done:
    free(in_file);
    return err;
}

static lt_err load_part(lt_lora *l, const lt_gguf *g, const lt_lora_site *s, int index) {
    const lt_param *pa = &l->params->table.params[s->a], *pb = &l->params->table.params[s->b];
    const lt_lora_part *p = &s->parts[index];
    const int64_t rank = l->options.rank, n = rows_of_a(pa, rank) * pa->shape[1];
    float *a = NULL, *b = NULL;
    const lt_err err = lt_lora_gguf_values(&a, &b, g, l->base, pa, p, rank);
    if (err == LT_OK) {
        lt_model_set(l->params, pa, index * n, a, LT_F32, n);
        lt_model_set(l->params, pb, p->b_row * rank, b, LT_F32, p->n_rows * rank);
    }
    free(a);
    free(b);
    return err;
}

lt_err lt_lora_gguf_load(lt_lora *l, const char *path) {
    lt_err err = LT_OK;
    lt_gguf *g = NULL;
    LT_TRY(lt_gguf_open(&g, path));
    for (int i = 0; i < lt_lora_n_sites(&l->base->spec); i++) {
        for (int k = 0; k < l->sites[i].n_parts; k++) {
            LT_TRY_DONE(load_part(l, g, &l->sites[i], k));
        }
    }
    if (g->n_tensors != 2 * (size_t)l->n_modules) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                     "%s: %zu tensors, of which %d are those of linear layers, of the embedding "
                     "and of the output head: adapters of experts are not supported",
                     path, g->n_tensors, 2 * l->n_modules);
    }
    LT_TRY_DONE(lt_model_settle(l->params));
    l->params->version++;
done:
    lt_gguf_close(g);
    return err;
}

/* ---- Writing ---- */

/* Rows of a parameter of the adapters, in the form of the file. */
typedef struct {
    const float *first;
    int64_t cols, pair_rows;
} out_rows;

static lt_err fill(const void *ctx, void *dst, uint64_t first, uint64_t n) {
    const out_rows *o = ctx;
    const size_t bytes = (size_t)o->cols * sizeof(float);
    for (uint64_t i = 0; i < n; i++) {
        const int64_t row = lt_weight_target_row(o->pair_rows, (int64_t)(first + i));
        memcpy((char *)dst + i * bytes, o->first + row * o->cols, bytes);
    }
    return LT_OK;
}

static void add_tensor(lt_gguf_out *o, const char *weight, char part, const out_rows *rows,
                       int64_t n) {
    const uint64_t dims[2] = {(uint64_t)rows->cols, (uint64_t)n};
    char name[LT_LORA_GGUF_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.lora_%c", weight, part);
    lt_gguf_out_tensor(o, name, 2, dims, LT_GGML_F32, fill, rows);
}

/* rows: two elements, which are needed until the file is written. */
static lt_err add_part(lt_gguf_out *o, const lt_lora *l, const lt_lora_site *s, int index,
                       out_rows *rows) {
    const lt_model_spec *spec = &l->base->spec;
    const lt_param *a = &l->params->table.params[s->a], *b = &l->params->table.params[s->b];
    const lt_lora_part *p = &s->parts[index];
    const int64_t rank = l->options.rank;
    const float *const a_data = lt_param_data(&l->params->master, a), *const b_data = lt_param_data(
                                                                          &l->params->master, b);
    char weight[LT_FOREIGN_NAME_BYTES], module[LT_FOREIGN_NAME_BYTES];
    if (!weight_of(weight, l->base, a, p)) {
        lt_lora_module(module, p, a->layer);
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: a GGUF of %s has no weight of its own for it", module,
                lt_family_name(spec->family));
    }
    rows[0] = (out_rows){a_data + index * rank * a->shape[1], a->shape[1], 0};
    rows[1] = (out_rows){b_data + p->b_row * rank, rank, pair_rows(spec, p->name)};
    add_tensor(o, weight, 'a', &rows[0], rows_of_a(a, rank));
    add_tensor(o, weight, 'b', &rows[1], p->n_rows);
    return LT_OK;
}

static lt_err check_expressible(const lt_lora *l, const char *path) {
    if (lt_family_get(l->base->spec.family)->gguf.architecture == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: GGUF has no architecture for family %s", path,
                lt_family_name(l->base->spec.family));
    }
    if (l->options.dora || l->base->spec.n_scores > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: a GGUF of adapters has no place for %s", path,
                l->options.dora ? "the magnitudes of DoRA: merge them into their model"
                                : "a score head");
    }
    if (!l->params->backend->host_memory) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: a GGUF of adapters is written on the host", path);
    }
    return LT_OK;
}

lt_err lt_lora_gguf_save(const lt_lora *l, const char *path) {
    lt_err err = LT_OK;
    lt_gguf_out *o = NULL;
    const char *slash = strrchr(path, '/');
    out_rows *rows = NULL, *next;

    LT_TRY(check_expressible(l, path));
    LT_TRY_DONE(lt_gguf_out_open(&o));
    next = rows = calloc(2 * (size_t)l->n_modules, sizeof *rows);
    if (rows == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %d modules", path, l->n_modules);
    }
    lt_gguf_out_str(o, "general.architecture",
                    lt_family_get(l->base->spec.family)->gguf.architecture);
    lt_gguf_out_str(o, "general.type", "adapter");
    lt_gguf_out_str(o, "general.name", slash != NULL ? slash + 1 : path);
    lt_gguf_out_u32(o, "general.file_type", 0);
    lt_gguf_out_u32(o, "general.quantization_version", 2);
    lt_gguf_out_str(o, "adapter.type", "lora");
    lt_gguf_out_f32(o, "adapter.lora.alpha", (double)l->scale * (double)l->options.rank);
    for (int i = 0; i < lt_lora_n_sites(&l->base->spec); i++) {
        for (int k = 0; k < l->sites[i].n_parts; k++, next += 2) {
            LT_TRY_DONE(add_part(o, l, &l->sites[i], k, next));
        }
    }
    LT_TRY_DONE(lt_gguf_out_write(o, path));
done:
    lt_gguf_out_close(o);
    free(rows);
    return err;
}
