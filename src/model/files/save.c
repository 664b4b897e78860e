/* save.c: lt_model_save: a Hugging Face folder from the flat layout, through the family's names.
 * Shards are filled in the order of the parameters. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "model/infer/generation.h"
#include "model/alloc.h"
#include "model/names.h"
#include "model/files/safetensors.h"
#include "tensor/backend.h"

#define SHARD_BYTES_DEFAULT ((int64_t)5000000000) /* transformers' own default until 2026. */

typedef struct {
    const char *values; /* The parameter's values, in host memory, in this type: */
    lt_dtype from;
    lt_name_place place;
    lt_dtype dtype;
    float constant; /* Value of a tensor that holds no parameter. */
} out_ctx;

typedef struct {
    lt_safetensor_out *tensors;
    out_ctx *ctxs;
    char (*names)[LT_FOREIGN_NAME_BYTES];
    size_t n, room;
    const char *flat; /* What is written, in host memory, in this type: */
    lt_dtype from;
    void *copy; /* Copy of a device's memory; NULL: flat is the model's own. */
} out_list;

/* The index in Lateen's parameter of element i of the foreign tensor. */
static int64_t index_in_param(const lt_name_place *p, int64_t i) {
    const int64_t per_expert = p->rows * p->cols, inside = i % per_expert;
    int64_t row = p->transposed ? inside % p->rows : inside / p->cols;
    const int64_t col = p->transposed ? inside / p->rows : inside % p->cols;
    row = p->alternating ? row / 2 + row % 2 * (p->rows / 2) : row;
    const int64_t at = row * p->cols + col;
    return p->first + i / per_expert * p->expert_stride + at;
}

static lt_err fill(const void *ctx_in, void *dst, int64_t first, int64_t count) {
    const out_ctx *c = ctx_in;
    /* Contiguous in both. */
    const int64_t unit = c->place.transposed    ? 1
                         : c->place.alternating ? c->place.cols
                                                : c->place.rows * c->place.cols;
    char *to = dst;

    for (int64_t i = first; i < first + count;) {
        const int64_t left = unit - i % unit,
                      run = left < first + count - i ? left : first + count - i;
        lt_convert(to, c->dtype,
                   c->values + index_in_param(&c->place, i) * (int64_t)lt_dtype_bytes(c->from),
                   c->from, (size_t)run);
        to += (size_t)run * lt_dtype_bytes(c->dtype);
        i += run;
    }
    return LT_OK;
}

static lt_err fill_constant(const void *ctx_in, void *dst, int64_t first, int64_t count) {
    const out_ctx *c = ctx_in;
    (void)first;
    for (int64_t i = 0; i < count; i++) {
        lt_convert((char *)dst + (size_t)i * lt_dtype_bytes(c->dtype), c->dtype, &c->constant,
                   LT_F32, 1);
    }
    return LT_OK;
}

/* Where the flat layout can be read; a device's is copied. */
static lt_err find_flat(out_list *l, const lt_model *m) {
    const lt_param_buffer *b = lt_model_has_master(m) ? &m->master : &m->weights;
    const void *flat = b->flat;
    size_t bytes;

    l->from = b->dtype;
    l->flat = flat;
    if (m->backend->host_memory) {
        return LT_OK;
    }
    bytes = (size_t)m->table.n_elements * lt_dtype_bytes(l->from);
    l->copy = malloc(bytes);
    if (l->copy == NULL) {
        LT_FAIL(LT_ERR_OOM, "copy of the weights, %zu bytes", bytes);
    }
    l->flat = l->copy;
    return lt_model_download(m, l->copy, flat, bytes);
}

static lt_err list_grow(out_list *l) {
    const size_t room = l->room == 0 ? 64 : 2 * l->room;
    lt_safetensor_out *tensors = realloc(l->tensors, room * sizeof *tensors);
    out_ctx *ctxs;
    char(*names)[LT_FOREIGN_NAME_BYTES];
    if (tensors != NULL) {
        l->tensors = tensors;
    }
    ctxs = realloc(l->ctxs, room * sizeof *ctxs);
    if (ctxs != NULL) {
        l->ctxs = ctxs;
    }
    names = realloc(l->names, room * sizeof *names);
    if (names != NULL) {
        l->names = names;
    }
    if (tensors == NULL || ctxs == NULL || names == NULL) {
        LT_FAIL(LT_ERR_OOM, "list of %zu tensors", room);
    }
    l->room = room;
    return LT_OK;
}

static lt_err list_add(out_list *l, const lt_model *m, const lt_param *param,
                       const lt_name_row *row, int64_t expert, lt_dtype dtype) {
    lt_safetensor_out *t;
    lt_name_place *p;
    if (l->n == l->room) {
        LT_TRY(list_grow(l));
    }
    l->ctxs[l->n] = (out_ctx){.values = l->flat +
                                        param->whole_at * (int64_t)lt_dtype_bytes(l->from),
                              .from = l->from,
                              .dtype = dtype};
    p = &l->ctxs[l->n].place;
    lt_name_place_of(p, &m->spec, param, row, expert, 0);
    lt_foreign_name(l->names[l->n], row->name, param->layer, expert);
    t = &l->tensors[l->n];
    *t = (lt_safetensor_out){.dtype = dtype, .fill = fill};
    if (p->stacked) {
        t->shape[t->n_dims++] = p->n_experts;
    }
    t->shape[t->n_dims++] = p->transposed ? p->cols : p->rows;
    if (p->cols > 1) {
        t->shape[t->n_dims++] = p->transposed ? p->rows : p->cols;
    }
    l->n++;
    return LT_OK;
}

/* A scalar that the family writes for each layer. */
static lt_err list_add_constant(out_list *l, const lt_constant_row *row, int64_t layer,
                                lt_dtype dtype) {
    if (l->n == l->room) {
        LT_TRY(list_grow(l));
    }
    l->ctxs[l->n] = (out_ctx){.dtype = dtype, .constant = row->value};
    lt_foreign_name(l->names[l->n], row->name, layer, 0);
    l->tensors[l->n] = (lt_safetensor_out){.dtype = dtype, .fill = fill_constant};
    l->n++;
    return LT_OK;
}

static lt_err list_all(out_list *l, const lt_model *m, lt_dtype dtype) {
    const lt_family_row *family = lt_family_get(m->spec.family);
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *param = &m->table.params[i];
        for (int r = 0; r < family->n_names; r++) {
            const lt_name_row *row = &family->names[r];
            const bool of_experts = lt_name_has_expert(row) && param->experts;
            const int64_t repeats = (row->form & LT_FORM_MXFP4) != 0 ? 0
                                    : of_experts                     ? param->shape[0]
                                                                     : 1;
            for (int64_t e = 0; lt_name_applies(row, &m->spec, param) && e < repeats; e++) {
                LT_TRY(list_add(l, m, param, row, e, dtype));
            }
        }
    }
    for (int c = 0; c < family->n_constants; c++) {
        for (int64_t layer = 0; family->constants[c].write && layer < m->spec.n_layers; layer++) {
            LT_TRY(list_add_constant(l, &family->constants[c], layer, dtype));
        }
    }
    for (size_t i = 0; i < l->n; i++) { /* Only now do the lists no longer move. */
        l->tensors[i].name = l->names[i];
        l->tensors[i].ctx = &l->ctxs[i];
    }
    return LT_OK;
}

static int64_t out_bytes(const lt_safetensor_out *t) {
    int64_t bytes = (int64_t)lt_dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++) {
        bytes *= t->shape[i];
    }
    return bytes;
}

/* First tensor after the shard that begins at `from`. */
static size_t shard_end(const out_list *l, size_t from, int64_t limit) {
    int64_t bytes = 0;
    size_t i = from;
    while (i < l->n && (i == from || bytes + out_bytes(&l->tensors[i]) <= limit)) {
        bytes += out_bytes(&l->tensors[i]);
        i++;
    }
    return i;
}

static lt_err write_index(const out_list *l, const char *folder, json_t *weight_map) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], *text = NULL;
    int64_t total = 0;
    json_t *root;

    for (size_t i = 0; i < l->n; i++) {
        total += out_bytes(&l->tensors[i]);
    }
    root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map",
                     weight_map);
    text = json_dumps(root, JSON_INDENT(2));
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: index", folder);
    }
    LT_TRY_DONE(lt_path_join(path, folder, LT_SAFETENSORS_INDEX));
    LT_TRY_DONE(lt_file_write_atomic(path, text, strlen(text)));
done:
    json_decref(root);
    free(text);
    return err;
}

static lt_err write_shards(const out_list *l, const char *folder, int64_t limit) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], name[64];
    json_t *metadata = json_pack("{s:s}", "format", "pt"), *weight_map = json_object();
    int n_shards = 0, shard = 0;

    for (size_t from = 0; from < l->n; from = shard_end(l, from, limit)) {
        n_shards++;
    }
    for (size_t from = 0, to; from < l->n; from = to) {
        to = shard_end(l, from, limit);
        shard++;
        if (n_shards == 1) {
            snprintf(name, sizeof name, LT_SAFETENSORS_SINGLE);
        } else {
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", shard, n_shards);
        }
        LT_TRY_DONE(lt_path_join(path, folder, name));
        LT_TRY_DONE(lt_safetensors_write(path, l->tensors + from, to - from, metadata, NULL));
        for (size_t i = from; i < to; i++) {
            json_object_set_new(weight_map, l->tensors[i].name, json_string(name));
        }
    }
    /* Otherwise a reader would use files that an earlier model has left in the folder. */
    LT_TRY_DONE(
        lt_path_join(path, folder, n_shards > 1 ? LT_SAFETENSORS_SINGLE : LT_SAFETENSORS_INDEX));
    if (unlink(path) != 0 && errno != ENOENT) {
        LT_FAIL_DONE(LT_ERR_IO, "remove %s: %s", path, strerror(errno));
    }
    if (n_shards > 1) {
        LT_TRY_DONE(write_index(l, folder, weight_map));
    }
done:
    json_decref(metadata);
    json_decref(weight_map);
    return err;
}

lt_err lt_model_save(const lt_model *m, const char *folder, lt_dtype dtype, int64_t shard_bytes) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    out_list list = {0};

    if (m->stored != NULL) {
        LT_FAIL(LT_ERR_ARG, "save to %s: the model was opened with its weights as stored", folder);
    }
    if (dtype != LT_F32 && dtype != LT_BF16 && dtype != LT_F16) {
        LT_FAIL(LT_ERR_ARG, "save to %s: type %s is not one of F32, BF16, F16", folder,
                lt_dtype_name(dtype));
    }
    if (!lt_param_table_is_whole(&m->table)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "save to %s: only a part of the model is held here", folder);
    }
    LT_TRY_DONE(lt_file_make_dirs(folder));
    LT_TRY_DONE(find_flat(&list, m));
    LT_TRY_DONE(list_all(&list, m, dtype));
    LT_TRY_DONE(write_shards(&list, folder, shard_bytes > 0 ? shard_bytes : SHARD_BYTES_DEFAULT));
    LT_TRY_DONE(lt_path_join(path, folder, "config.json"));
    LT_TRY_DONE(lt_model_spec_write(&m->spec, dtype, path));
    LT_TRY_DONE(lt_generation_write(m, folder));
done:
    free(list.tensors);
    free(list.ctxs);
    free(list.names);
    free(list.copy);
    return err;
}
