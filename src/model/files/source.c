/* source.c: opens a source by what the path is: a folder, a file that begins with "GGUF", or else
 * llama2.c's. */
#include "model/files/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/files/gguf_types.h"
#include "model/names.h"
#include "tensor/block.h"

#define INDEX_BYTES_MAX ((size_t)64 << 20)
#define MAX_SHARDS      4096

/* A tensor in several shards must be the same in each, because nothing says which one counts. */
static lt_err check_repeated(const lt_source *s, const char *folder, const char *file) {
    const lt_safetensors *last = &s->shards[s->n_shards - 1];
    for (size_t i = 0; i < last->n_tensors; i++) {
        const lt_safetensor *t = &last->tensors[i];
        for (size_t k = 0; k + 1 < s->n_shards; k++) {
            const lt_safetensor *other = lt_safetensors_find(&s->shards[k], t->name);
            if (other != NULL && (other->dtype != t->dtype || other->bytes != t->bytes ||
                                  memcmp(other->data, t->data, t->bytes) != 0)) {
                LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s of shard '%s' differs from that of another",
                        folder, t->name, file);
            }
        }
    }
    return LT_OK;
}

static lt_err add_shard(lt_source *s, const char *folder, const char *file) {
    char path[LT_PATH_BYTES];
    lt_safetensors *grown;
    if (strchr(file, '/') != NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s/%s: shard '%s' lies outside the folder", folder,
                LT_SAFETENSORS_INDEX, file);
    }
    if (s->n_shards == MAX_SHARDS) {
        LT_FAIL(LT_ERR_LIMIT, "%s: more than %d shards", folder, MAX_SHARDS);
    }
    LT_TRY(lt_path_join(path, folder, file));
    grown = realloc(s->shards, (s->n_shards + 1) * sizeof *grown);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu shards", folder, s->n_shards + 1);
    }
    s->shards = grown;
    LT_TRY(lt_safetensors_open(&s->shards[s->n_shards], path));
    s->n_shards++;
    return check_repeated(s, folder, file);
}

/* Add each file that the index names once. */
static lt_err add_indexed_shards(lt_source *s, const char *folder, const char *index_path) {
    lt_err err = LT_OK;
    json_t *root = NULL, *seen = json_object(), *file;
    const char *tensor;

    LT_TRY_DONE(lt_json_load(&root, index_path, INDEX_BYTES_MAX));
    if (!json_is_object(json_object_get(root, "weight_map"))) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: key 'weight_map' is missing", index_path);
    }
    json_object_foreach(json_object_get(root, "weight_map"), tensor, file) {
        if (!json_is_string(file)) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: tensor %s: the shard's name is not a string",
                         index_path, tensor);
        }
        if (json_object_get(seen, json_string_value(file)) == NULL) {
            json_object_set_new(seen, json_string_value(file), json_true());
            LT_TRY_DONE(add_shard(s, folder, json_string_value(file)));
        }
    }
done:
    json_decref(root);
    json_decref(seen);
    return err;
}

static lt_err open_folder(lt_source *s, lt_model_spec *spec, const char *folder) {
    char path[LT_PATH_BYTES];
    const lt_family_row *family;

    LT_TRY(lt_path_join(path, folder, "config.json"));
    if (!lt_file_has_name(path)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s is not a model: it has no config.json", folder);
    }
    LT_TRY(lt_model_spec_read(spec, path));
    family = lt_family_get(spec->family);
    s->names = family->names;
    s->n_names = family->n_names;
    s->prefix = family->prefix;
    s->wrapped_prefix = family->wrapped_prefix;
    LT_TRY(lt_path_join(path, folder, LT_SAFETENSORS_SINGLE));
    const bool has_single = lt_file_has_name(path);
    LT_TRY(lt_path_join(path, folder, LT_SAFETENSORS_INDEX));
    const bool has_index = lt_file_has_name(path);
    if (has_single && has_index) {
        lt_log_warn("%s: " LT_SAFETENSORS_SINGLE
                    " is read, as by transformers, and not the shards of %s",
                    folder, LT_SAFETENSORS_INDEX);
    }
    if (!has_single && !has_index) {
        LT_FAIL(LT_ERR_NOT_FOUND,
                "%s: neither " LT_SAFETENSORS_SINGLE " nor %s (pickled .bin weights are not read)",
                folder, LT_SAFETENSORS_INDEX);
    }
    return has_single ? add_shard(s, folder, LT_SAFETENSORS_SINGLE)
                      : add_indexed_shards(s, folder, path);
}

/* The first foreign name of a parameter that stands outside layers. */
static const char *name_of(const lt_source *s, lt_param_kind kind) {
    for (int i = 0; i < s->n_names; i++) {
        if (s->names[i].kind == kind) {
            return s->names[i].name;
        }
    }
    LT_ASSERT(false);
    return NULL;
}

/* If config.json says that the head is tied, do as transformers 5: a head in the file that differs
 * from the embedding is used; if the file has only one of the two, it is both. */
static lt_err settle_tying(lt_source *s, lt_model_spec *spec) {
    const char *embed_name = name_of(s, LT_PARAM_EMBED), *head_name = name_of(s, LT_PARAM_HEAD);
    lt_weight embed, head;
    bool has_embed, has_head;
    if (!spec->tied) {
        return LT_OK;
    }
    LT_TRY(lt_source_find(s, embed_name, &embed, &has_embed));
    LT_TRY(lt_source_find(s, head_name, &head, &has_head));
    if (has_head && !has_embed) {
        s->embed_as_head = embed_name;
    }
    if (!has_head || !has_embed) {
        return LT_OK;
    }
    const bool alike = embed.type == head.type && embed.n_dims == 2 && head.n_dims == 2 &&
                       embed.shape[0] == head.shape[0] && embed.shape[1] == head.shape[1];
    const size_t bytes =
        alike ? (size_t)embed.shape[0] * lt_dtype_row_bytes(embed.type, embed.shape[1]) : 0;
    if (!alike || memcmp(embed.data, head.data, bytes) != 0) {
        lt_log_info(
            "%s: config.json ties head and embedding, but %s has other values: they are used",
            s->path, head_name);
        spec->tied = false;
    }
    return LT_OK;
}

static lt_err file_is_gguf(bool *yes, const char *path) {
    lt_file_map map;
    LT_TRY(lt_file_map_open(&map, path));
    *yes = map.size_bytes >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    lt_file_map_close(&map);
    return LT_OK;
}

static lt_err open_any(lt_source *s, lt_model_spec *spec, const char *path) {
    bool gguf = false;
    if (lt_file_is_dir(path)) {
        LT_TRY(open_folder(s, spec, path));
        return settle_tying(s, spec);
    }
    LT_TRY(file_is_gguf(&gguf, path));
    if (gguf) {
        s->names = lt_gguf_names;
        s->n_names = lt_n_gguf_names;
        LT_TRY(lt_gguf_open(&s->gguf, path));
        return lt_gguf_read_spec(spec, s->gguf, s);
    }
    s->names = lt_gguf_names;
    s->n_names = lt_n_gguf_names;
    return lt_llama2c_open(s, spec, path);
}

lt_err lt_weight_source_open(lt_source *out, lt_model_spec *spec, const char *path) {
    lt_source s = {.path = path};
    const lt_err err = open_any(&s, spec, path);
    if (err != LT_OK) {
        lt_weight_source_close(&s);
        return err;
    }
    *out = s;
    return LT_OK;
}

void lt_weight_source_add_scores(lt_source *s, lt_model_spec *spec, const lt_model_options *o) {
    if (o != NULL && o->n_scores > 0 && spec->n_scores == 0) {
        lt_model_spec_add_scores(spec, o->n_scores, o->token_scores);
        s->new_scores = true;
    }
}

void lt_weight_source_close(lt_source *s) {
    for (size_t i = 0; i < s->n_shards; i++) {
        lt_safetensors_close(&s->shards[i]);
    }
    for (size_t i = 0; i < s->n_bin_weights; i++) {
        free(s->bin_weights[i].name);
    }
    free(s->shards);
    free(s->bin_weights);
    lt_gguf_close(s->gguf);
    lt_file_map_close(&s->bin);
    *s = (lt_source){0};
}

size_t lt_weight_source_bytes(const lt_source *s) {
    size_t bytes = s->bin.size_bytes;
    for (size_t i = 0; i < s->n_shards; i++) {
        bytes += s->shards[i].map.size_bytes;
    }
    for (size_t i = 0; s->gguf != NULL && i < s->gguf->n_tensors; i++) {
        bytes += (size_t)s->gguf->tensors[i].bytes;
    }
    return bytes;
}

lt_err lt_weight_source_has_blocks(bool *out, const char *path) {
    lt_source s = {0};
    lt_model_spec spec;
    *out = false;
    if (lt_file_is_dir(path)) {
        return LT_OK;
    }
    LT_TRY(lt_weight_source_open(&s, &spec, path));
    for (size_t i = 0; s.gguf != NULL && i < s.gguf->n_tensors; i++) {
        lt_dtype type;
        *out = *out ||
               (lt_ggml_type_dtype(s.gguf->tensors[i].type, &type) && lt_dtype_is_block(type));
    }
    lt_weight_source_close(&s);
    return LT_OK;
}

/* Bytes of the tensors of each type. */
static void count_types(const lt_source *s, size_t bytes[LT_DTYPE_COUNT]) {
    memset(bytes, 0, LT_DTYPE_COUNT * sizeof *bytes);
    for (size_t i = 0; i < s->n_shards; i++) {
        for (size_t k = 0; k < s->shards[i].n_tensors; k++) {
            const lt_safetensor *t = &s->shards[i].tensors[k];
            bytes[t->dtype] += t->bytes;
        }
    }
    for (size_t i = 0; s->gguf != NULL && i < s->gguf->n_tensors; i++) {
        const lt_gguf_tensor *t = &s->gguf->tensors[i];
        lt_dtype type;
        if (lt_ggml_type_dtype(t->type, &type)) {
            bytes[type] += (size_t)t->bytes;
        }
    }
    for (size_t i = 0; i < s->n_bin_weights; i++) { /* Version 1; version 2 has blocks. */
        bytes[s->bin_weights[i].weight.type] = s->bin.size_bytes;
    }
}

lt_err lt_weight_source_is_fp32(bool *out, const char *path) {
    lt_source s = {0};
    lt_model_spec spec;
    size_t bytes[LT_DTYPE_COUNT];
    LT_TRY(lt_weight_source_open(&s, &spec, path));
    count_types(&s, bytes);
    *out = bytes[LT_F32] > lt_weight_source_bytes(&s) / 2;
    lt_weight_source_close(&s);
    return LT_OK;
}

lt_err lt_weight_source_type(char out[LT_SOURCE_TYPE_BYTES], const char *path) {
    lt_source s = {0};
    lt_model_spec spec;
    size_t bytes[LT_DTYPE_COUNT];
    int64_t number = -1;
    int most = 0;
    const char *mix;
    LT_TRY(lt_weight_source_open(&s, &spec, path));
    count_types(&s, bytes);
    for (int type = 0; type < (int)LT_DTYPE_COUNT; type++) {
        most = bytes[type] > bytes[most] ? type : most;
    }
    if (s.gguf != NULL && lt_gguf_get_i64(s.gguf, "general.file_type", &number) != LT_OK) {
        number = -1;
    }
    mix = lt_gguf_mix_of_number(number);
    snprintf(out, LT_SOURCE_TYPE_BYTES, "%s", mix != NULL ? mix : lt_dtype_name((lt_dtype)most));
    lt_weight_source_close(&s);
    return LT_OK;
}

static lt_err from_safetensor(const lt_source *s, const lt_safetensor *t, lt_weight *out) {
    if (!lt_block_decodes(t->dtype)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: tensor %s has type %s; weights are floating point",
                s->path, t->name, lt_dtype_name(t->dtype));
    }
    *out = (lt_weight){.type = t->dtype, .n_dims = t->n_dims, .data = t->data};
    memcpy(out->shape, t->shape, sizeof out->shape);
    return LT_OK;
}

static lt_err from_gguf(const lt_source *s, const lt_gguf_tensor *t, const char *name,
                        lt_weight *out) {
    lt_dtype type;
    size_t bytes;
    if (!lt_ggml_type_dtype(t->type, &type)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: tensor %s has type %s, which Lateen does not decode",
                s->path, name, lt_ggml_type_name(t->type));
    }
    if (t->dims[0] % (uint64_t)lt_dtype_block(type, &bytes) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s: rows of %llu elements are not whole blocks of %s",
                s->path, name, (unsigned long long)t->dims[0], lt_dtype_name(type));
    }
    *out = (lt_weight){.type = type, .n_dims = t->n_dims, .data = t->data};
    for (int i = 0; i < t->n_dims; i++) {
        out->shape[i] = (int64_t)t->dims[t->n_dims - 1 - i];
    }
    return LT_OK;
}

const lt_safetensor *lt_source_shard_tensor(const lt_source *s, const char *name) {
    const lt_safetensor *t = NULL;
    for (size_t i = 0; i < s->n_shards && t == NULL; i++) {
        t = lt_safetensors_find(&s->shards[i], name);
    }
    return t;
}

static lt_err find_exact(const lt_source *s, const char *name, lt_weight *out, bool *found) {
    const lt_safetensor *stored = lt_source_shard_tensor(s, name);
    *found = true;
    if (stored != NULL) {
        return from_safetensor(s, stored, out);
    }
    if (s->gguf != NULL) {
        const lt_gguf_tensor *t = lt_gguf_tensor_find(s->gguf, name);
        if (t != NULL) {
            return from_gguf(s, t, name, out);
        }
    }
    for (size_t i = 0; i < s->n_bin_weights; i++) {
        if (strcmp(s->bin_weights[i].name, name) == 0) {
            *out = s->bin_weights[i].weight;
            return LT_OK;
        }
    }
    *found = false;
    return LT_OK;
}

lt_err lt_source_find(const lt_source *s, const char *name, lt_weight *out, bool *found) {
    const size_t n = s->prefix != NULL ? strlen(s->prefix) : 0;
    LT_TRY(find_exact(s, name, out, found));
    if (!*found && n > 0 && strncmp(name, s->prefix, n) == 0) {
        LT_TRY(find_exact(s, name + n, out, found));
    }
    if (!*found && s->wrapped_prefix != NULL) {
        char whole[2 * LT_FOREIGN_NAME_BYTES];
        (void)snprintf(whole, sizeof whole, "%s%s", s->wrapped_prefix, name);
        LT_TRY(find_exact(s, whole, out, found));
    }
    if (!*found && s->embed_as_head != NULL && strcmp(name, s->embed_as_head) == 0) {
        LT_TRY(find_exact(s, name_of(s, LT_PARAM_HEAD), out, found));
    }
    return LT_OK;
}

/* Find a tensor of a Hugging Face folder, under its name or without the prefix. */
static const lt_safetensor *find_safetensor(const lt_source *s, const char *name) {
    const size_t n = s->prefix != NULL ? strlen(s->prefix) : 0;
    const lt_safetensor *t = lt_source_shard_tensor(s, name);
    return t == NULL && n > 0 && strncmp(name, s->prefix, n) == 0
               ? lt_source_shard_tensor(s, name + n)
               : t;
}

lt_err lt_source_find_mxfp4(const lt_source *s, const char *name, lt_weight *out, bool *found) {
    static const char end[] = "_blocks";
    const size_t stem = strlen(name) - (sizeof end - 1);
    const lt_safetensor *blocks = find_safetensor(s, name), *scales;
    char other[LT_FOREIGN_NAME_BYTES];

    LT_ASSERT(strlen(name) >= sizeof end && strcmp(name + stem, end) == 0);
    *found = blocks != NULL;
    if (!*found) {
        return LT_OK;
    }
    (void)snprintf(other, sizeof other, "%.*s_scales", (int)stem, name);
    scales = find_safetensor(s, other);
    if (scales == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s is missing beside %s", s->path, other, name);
    }
    bool fits = blocks->dtype == LT_U8 && scales->dtype == LT_U8 && blocks->n_dims == 4 &&
                scales->n_dims == 3 && blocks->shape[3] == 16;
    for (int i = 0; fits && i < 3; i++) {
        fits = blocks->shape[i] == scales->shape[i];
    }
    if (!fits) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: tensors %s and %s are not U8 of (E, rows, n, 16) and (E, rows, n)", s->path,
                name, other);
    }
    *out = (lt_weight){.type = LT_MXFP4,
                       .n_dims = 3,
                       .shape = {blocks->shape[0], blocks->shape[1], blocks->shape[2] * 32},
                       .data = blocks->data,
                       .scales = scales->data};
    return LT_OK;
}

/* Tensors that the text part of a model does not need: those of drafts and, in a file of a model
 * for texts and pictures, of pictures. */
static bool not_of_text(const lt_source *s, const char *name) {
    static const char *const parts[] = {LT_MTP_LAYERS, "vision_tower.", "multi_modal_projector."};
    const size_t n = s->wrapped_prefix != NULL ? sizeof parts / sizeof *parts : 1;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(name, parts[i], strlen(parts[i])) == 0) {
            return true;
        }
    }
    return false;
}

size_t lt_source_unread(const lt_source *s, const lt_model_spec *spec, const lt_param_table *table,
                        const char **first) {
    const size_t wrapped = s->wrapped_prefix != NULL ? strlen(s->wrapped_prefix) : 0;
    size_t n = 0;
    char whole[512];
    *first = NULL;
    for (size_t i = 0; i < s->n_shards; i++) {
        for (size_t k = 0; k < s->shards[i].n_tensors; k++) {
            const char *name = s->shards[i].tensors[k].name;
            if (not_of_text(s, name)) {
                continue;
            }
            name += wrapped > 0 && strncmp(name, s->wrapped_prefix, wrapped) == 0 ? wrapped : 0;
            (void)snprintf(whole, sizeof whole, "%s%s", s->prefix != NULL ? s->prefix : "", name);
            if (!lt_name_is_read(s->names, s->n_names, spec, table, name) &&
                !lt_name_is_read(s->names, s->n_names, spec, table, whole)) {
                *first = n++ == 0 ? name : *first;
            }
        }
    }
    return n;
}
