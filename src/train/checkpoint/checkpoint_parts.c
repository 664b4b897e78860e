/* checkpoint_parts.c: see checkpoint_parts.h. */
#include "train/checkpoint/checkpoint_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/alloc.h"
#include "model/files/safetensors.h"
#include "tensor/backend.h"

#define FORMAT_NAME    "lateen-checkpoint-part"
#define PART_BYTES_MAX ((size_t)256 << 20) /* Enough for millions of boxes. */
#define NAME_BYTES     (LT_PARAM_NAME_BYTES + 16)

void lt_part_file(char name[LT_PART_NAME_BYTES], const char *stem, int part, int n_parts,
                  const char *ending) {
    if (n_parts == 1) {
        (void)snprintf(name, LT_PART_NAME_BYTES, "%s%s", stem, ending);
    } else {
        (void)snprintf(name, LT_PART_NAME_BYTES, "%s-%05d-of-%05d%s", stem, part, n_parts, ending);
    }
}

static bool is_whole(const lt_param *p, const lt_box *box) {
    return lt_box_count(box, p->n_dims) == p->count;
}

static void tensor_name(char name[NAME_BYTES], const lt_param *p, const lt_box *box, int index) {
    if (is_whole(p, box)) {
        (void)snprintf(name, NAME_BYTES, "%s", p->name);
    } else {
        (void)snprintf(name, NAME_BYTES, "%s#%d", p->name, index);
    }
}

/* Index of the first of n values that is not finite, or -1. It first finds the largest exponent
 * field as bits, a loop that the compiler vectorises. */
static int64_t first_not_finite(const void *values, lt_dtype dtype, int64_t n) {
    const uint16_t *low = values;
    const uint32_t *full = values;
    uint32_t worst = 0;

    LT_ASSERT(dtype == LT_F32 || dtype == LT_BF16);
    for (int64_t i = 0; dtype == LT_BF16 && i < n; i++) {
        const uint32_t exponent = low[i] & 0x7F80u;
        worst = exponent > worst ? exponent : worst;
    }
    for (int64_t i = 0; dtype == LT_F32 && i < n; i++) {
        const uint32_t exponent = full[i] & 0x7F800000u;
        worst = exponent > worst ? exponent : worst;
    }
    if (worst != (dtype == LT_F32 ? 0x7F800000u : 0x7F80u)) {
        return -1;
    }
    for (int64_t i = 0;; i++) {
        if ((dtype == LT_F32 ? full[i] & 0x7F800000u : low[i] & 0x7F80u) == worst) {
            return i;
        }
    }
}

static lt_err check_finite(const void *values, lt_dtype dtype, int64_t first, int64_t n,
                           const char *what, const char *param) {
    const int64_t at = first_not_finite(values, dtype, n);
    if (at >= 0) {
        LT_FAIL(LT_ERR_NUMERIC, "%s: element %lld of %s is not finite", what,
                (long long)(first + at), param);
    }
    return LT_OK;
}

/* ---- Files ---- */

typedef struct {
    const char *name, *xxh3;
    int64_t bytes;
} file_claim;

/* Read a manifest's entry of a file. It must be a plain name, because a path could lead
 * anywhere. */
static lt_err read_claim(file_claim *c, const json_t *entry, const char *what) {
    *c = (file_claim){0};
    LT_TRY(lt_json_str(entry, "name", &c->name, false, what));
    LT_TRY(lt_json_i64(entry, "bytes", &c->bytes, false, what));
    LT_TRY(lt_json_str(entry, "xxh3", &c->xxh3, false, what));
    if (strchr(c->name, '/') != NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: file name '%s' leads out of its folder", what, c->name);
    }
    return LT_OK;
}

lt_err lt_part_check_file(const char *folder, const json_t *entry) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], hex[24];
    file_claim claim;
    lt_file_map map = {0};

    LT_TRY(read_claim(&claim, entry, folder));
    LT_TRY(lt_path_join(path, folder, claim.name));
    LT_TRY(lt_file_map_open(&map, path));
    if ((int64_t)map.size_bytes != claim.bytes) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s has %zu bytes, its manifest says %lld", path,
                     map.size_bytes, (long long)claim.bytes);
    }
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits(map.data, map.size_bytes));
    if (strcmp(hex, claim.xxh3) != 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s has checksum %s, its manifest says %s", path, hex,
                     claim.xxh3);
    }
done:
    lt_file_map_close(&map);
    return err;
}

lt_err lt_part_check_entry(const json_t *entry, const char *what) {
    file_claim claim;
    return read_claim(&claim, entry, what);
}

/* ---- Writing ---- */

lt_err lt_part_list_file(json_t *files, const char *folder, const char *name, uint64_t hash) {
    char path[LT_PATH_BYTES], hex[24];
    lt_file_map map;
    LT_TRY(lt_path_join(path, folder, name));
    LT_TRY(lt_file_map_open(&map, path));
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash);
    json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", name, "bytes",
                                           (json_int_t)map.size_bytes, "xxh3", hex));
    lt_file_map_close(&map);
    return LT_OK;
}

/* One box of a parameter, in a buffer of the model's backend. */
typedef struct {
    const lt_model *model;
    const char *first, *file, *param;
    lt_dtype dtype;
} held_box;

static lt_err fill_part(const void *ctx, void *dst, int64_t first, int64_t count) {
    const held_box *p = ctx;
    const size_t each = lt_dtype_bytes(p->dtype);
    const char *src = p->first + (size_t)first * each;
    if (p->model->backend->host_memory) {
        memcpy(dst, src, (size_t)count * each);
    } else {
        LT_TRY(lt_model_download(p->model, dst, src, (size_t)count * each));
    }
    return check_finite(dst, p->dtype, first, count, p->file, p->param);
}

bool lt_part_writes(const lt_part_boxes *w, const lt_param *p, const lt_box *box) {
    return w->layout == NULL || lt_layout_answers(w->layout, p, box);
}

lt_err lt_part_write_buffer(json_t *files, const char *folder, const char *name, const lt_model *m,
                            const lt_part_boxes *w, const lt_param_buffer *b) {
    const lt_param_table *t = w->table;
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    uint64_t hash = 0;
    size_t n = 0;
    lt_safetensor_out *outs = calloc((size_t)t->n_boxes + 1, sizeof *outs);
    held_box *held = calloc((size_t)t->n_boxes + 1, sizeof *held);
    char(*names)[NAME_BYTES] = calloc((size_t)t->n_boxes + 1, sizeof *names);

    if (outs == NULL || held == NULL || names == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s/%s", folder, name);
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const char *data = lt_param_data(b, p);
        for (int k = 0, written = 0; k < p->n_boxes; k++) {
            const lt_box *box = &lt_param_boxes(t, p)[k];
            if (lt_part_writes(w, p, box)) {
                tensor_name(names[n], p, box, written++);
                held[n] = (held_box){m, data, name, p->name, b->dtype};
                outs[n] = (lt_safetensor_out){.name = names[n],
                                              .dtype = b->dtype,
                                              .n_dims = p->n_dims,
                                              .fill = fill_part,
                                              .ctx = &held[n]};
                memcpy(outs[n++].shape, box->extent, sizeof box->extent);
            }
            data += (size_t)lt_box_count(box, p->n_dims) * lt_dtype_bytes(b->dtype);
        }
    }
    LT_ASSERT(n <= (size_t)t->n_boxes);
    LT_TRY_DONE(lt_path_join(path, folder, name));
    LT_TRY_DONE(lt_safetensors_write(path, outs, n, NULL, &hash));
    LT_TRY_DONE(lt_part_list_file(files, folder, name, hash));
done:
    free(outs);
    free(held);
    free(names);
    return err;
}

static json_t *integers(const int64_t *values, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(values[i]));
    }
    return list;
}

static json_t *boxes_json(const lt_part_boxes *w) {
    const lt_param_table *t = w->table;
    json_t *all = json_object();
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        json_t *boxes = json_array();
        for (int k = 0; k < p->n_boxes; k++) {
            const lt_box *box = &lt_param_boxes(t, p)[k];
            if (lt_part_writes(w, p, box)) {
                json_array_append_new(boxes, json_pack("[o, o]", integers(box->first, p->n_dims),
                                                       integers(box->extent, p->n_dims)));
            }
        }
        if (json_array_size(boxes) > 0) {
            json_object_set_new(
                all, p->name,
                json_pack("{s:o, s:o}", "shape", integers(p->shape, p->n_dims), "boxes", boxes));
        } else {
            json_decref(boxes);
        }
    }
    return all;
}

lt_err lt_part_write_manifest(const char *folder, json_t *files, int part, int n_parts,
                              const lt_part_boxes *w) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], name[LT_PART_NAME_BYTES], *text = NULL;
    json_t *root = json_pack("{s:s, s:i, s:i, s:O, s:o}", "format", FORMAT_NAME, "part", part,
                             "parts", n_parts, "files", files, "boxes", boxes_json(w));

    LT_ASSERT(part >= 0 && part < n_parts && n_parts <= LT_MAX_PARTS);
    text = root == NULL ? NULL : json_dumps(root, JSON_COMPACT);
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: manifest of part %d", folder, part);
    }
    lt_part_file(name, "part", part, n_parts, ".json");
    LT_TRY_DONE(lt_path_join(path, folder, name));
    LT_TRY_DONE(lt_file_write_atomic(path, text, strlen(text)));
done:
    json_decref(root);
    free(text);
    return err;
}

/* ---- Where everything is ---- */

/* Boxes in the order in which they are found, in which those of a parameter need not be
 * adjacent. */
typedef struct {
    lt_stored_box *boxes;
    int n, room;
} stored_list;

static lt_err list_add(stored_list *l, const lt_stored_box *box) {
    if (l->n == l->room) {
        const int room = l->room == 0 ? 64 : 2 * l->room;
        lt_stored_box *grown = realloc(l->boxes, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "list of %d boxes", room);
        }
        l->boxes = grown;
        l->room = room;
    }
    l->boxes[l->n++] = *box;
    return LT_OK;
}

static bool read_integers(int64_t *out, const json_t *list, int n) {
    for (int i = 0; i < n; i++) {
        if (!json_is_integer(json_array_get(list, (size_t)i))) {
            return false;
        }
        out[i] = (int64_t)json_integer_value(json_array_get(list, (size_t)i));
    }
    return json_array_size(list) == (size_t)n;
}

/* The boxes that a part has of one parameter. */
static lt_err read_boxes(stored_list *list, const lt_param_table *t, const char *name,
                         const json_t *entry, int part, const char *what) {
    const lt_param *p = lt_param_find(t, name);
    const json_t *boxes = json_object_get(entry, "boxes");
    int64_t shape[LT_PARAM_DIMS] = {0};
    if (p == NULL) {
        LT_FAIL(LT_ERR_STATE, "%s: parameter %s is not one of this model", what, name);
    }
    if (!read_integers(shape, json_object_get(entry, "shape"), p->n_dims) ||
        memcmp(shape, p->shape, (size_t)p->n_dims * sizeof *shape) != 0) {
        LT_FAIL(LT_ERR_STATE, "%s: parameter %s is of another shape in this model", what, name);
    }
    for (size_t k = 0; k < json_array_size(boxes); k++) {
        const json_t *pair = json_array_get(boxes, k);
        lt_stored_box b = {.param = (int)(p - t->params), .part = part, .index = (int)k};
        bool good = read_integers(b.box.first, json_array_get(pair, 0), p->n_dims) &&
                    read_integers(b.box.extent, json_array_get(pair, 1), p->n_dims);
        for (int d = 0; good && d < p->n_dims; d++) {
            good = b.box.first[d] >= 0 && b.box.extent[d] >= 1 &&
                   b.box.extent[d] <= p->shape[d] - b.box.first[d];
        }
        if (!good) {
            LT_FAIL(LT_ERR_FORMAT, "%s: box %zu of parameter %s lies outside it", what, k, name);
        }
        b.whole = is_whole(p, &b.box);
        LT_TRY(list_add(list, &b));
    }
    return LT_OK;
}

static lt_err read_part(lt_stored *s, stored_list *list, const lt_param_table *t, int part) {
    char path[LT_PATH_BYTES], name[LT_PART_NAME_BYTES];
    const char *format = NULL, *param;
    int64_t index = -1, count = -1;
    json_t *entry;

    lt_part_file(name, "part", part, s->n_parts, ".json");
    LT_TRY(lt_path_join(path, s->folder, name));
    LT_TRY(lt_json_load(&s->manifests[part], path, PART_BYTES_MAX));
    LT_TRY(lt_json_str(s->manifests[part], "format", &format, false, path));
    LT_TRY(lt_json_i64(s->manifests[part], "part", &index, false, path));
    LT_TRY(lt_json_i64(s->manifests[part], "parts", &count, false, path));
    if (strcmp(format, FORMAT_NAME) != 0 || index != part || count != s->n_parts) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s %lld of %lld, wanted %s %d of %d", path, format,
                (long long)index, (long long)count, FORMAT_NAME, part, s->n_parts);
    }
    json_object_foreach(json_object_get(s->manifests[part], "boxes"), param, entry) {
        LT_TRY(read_boxes(list, t, param, entry, part, path));
    }
    return LT_OK;
}

static int by_param(const void *a_in, const void *b_in) {
    const lt_stored_box *a = a_in, *b = b_in;
    const int same = memcmp(&a->box, &b->box, sizeof a->box);
    return a->param != b->param ? (a->param > b->param) - (a->param < b->param)
           : same != 0          ? same
                                : (a->part > b->part) - (a->part < b->part);
}

/* Check that the boxes of a parameter cover it exactly once. */
static lt_err check_cover(const lt_stored *s, const lt_param *p, int param) {
    int64_t count = 0;
    lt_box both;
    for (int i = s->first[param]; i < s->first[param + 1]; i++) {
        count += lt_box_count(&s->boxes[i].box, p->n_dims);
        for (int j = s->first[param]; j < i; j++) {
            if (lt_box_intersect(&both, &s->boxes[i].box, &s->boxes[j].box, p->n_dims)) {
                LT_FAIL(LT_ERR_FORMAT, "%s: parameter %s: parts %d and %d overlap", s->folder,
                        p->name, s->boxes[j].part, s->boxes[i].part);
            }
        }
    }
    if (count != p->count) {
        LT_FAIL(count == 0 ? LT_ERR_STATE : LT_ERR_FORMAT,
                "%s: parameter %s: the parts hold %lld of %lld elements", s->folder, p->name,
                (long long)count, (long long)p->count);
    }
    return LT_OK;
}

/* Sort by parameter, drop replicas, and note which parts the table needs. */
static lt_err index_boxes(lt_stored *s, const lt_param_table *t) {
    int n = 0;
    if (s->n_boxes > 0) {
        qsort(s->boxes, (size_t)s->n_boxes, sizeof *s->boxes, by_param);
    }
    for (int i = 0; i < s->n_boxes; i++) {
        if (n == 0 || s->boxes[n - 1].param != s->boxes[i].param ||
            memcmp(&s->boxes[n - 1].box, &s->boxes[i].box, sizeof s->boxes[i].box) != 0) {
            s->boxes[n++] = s->boxes[i];
        }
    }
    s->n_boxes = n;
    for (int param = 0, i = 0; param <= t->n_params; param++) {
        while (i < n && s->boxes[i].param < param) {
            i++;
        }
        s->first[param] = i;
    }
    for (int param = 0; param < t->n_params; param++) {
        const lt_param *p = &t->params[param];
        lt_box both;
        LT_TRY(check_cover(s, p, param));
        for (int i = s->first[param]; i < s->first[param + 1]; i++) {
            for (int k = 0; k < p->n_boxes; k++) {
                if (lt_box_intersect(&both, &s->boxes[i].box, &lt_param_boxes(t, p)[k],
                                     p->n_dims)) {
                    s->needed[s->boxes[i].part] = true;
                }
            }
        }
    }
    return LT_OK;
}

/* One part without a manifest: every parameter is whole. */
static lt_err whole_boxes(stored_list *list, const lt_param_table *t) {
    for (int i = 0; i < t->n_params; i++) {
        lt_stored_box b = {.param = i, .whole = true};
        memcpy(b.box.extent, t->params[i].shape, sizeof b.box.extent);
        LT_TRY(list_add(list, &b));
    }
    return LT_OK;
}

lt_err lt_stored_open(lt_stored *s, const char *folder, int n_parts, const lt_param_table *t) {
    lt_err err = LT_OK;
    stored_list list = {0};
    const int n = n_parts > 0 ? n_parts : 1;

    LT_ASSERT(n_parts >= 0 && n_parts <= LT_MAX_PARTS);
    *s = (lt_stored){.folder = folder, .n_parts = n};
    s->needed = calloc((size_t)n, sizeof *s->needed);
    s->first = calloc((size_t)t->n_params + 1, sizeof *s->first);
    s->manifests = n_parts > 0 ? calloc((size_t)n, sizeof(json_t *)) : NULL;
    if (s->needed == NULL || s->first == NULL || (n_parts > 0 && s->manifests == NULL)) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %d parts", folder, n);
    }
    for (int part = 0; part < n_parts && err == LT_OK; part++) {
        err = read_part(s, &list, t, part);
    }
    LT_TRY_DONE(err);
    LT_TRY_DONE(n_parts == 0 ? whole_boxes(&list, t) : LT_OK);
    s->boxes = list.boxes;
    s->n_boxes = list.n;
    list.boxes = NULL;
    LT_TRY_DONE(index_boxes(s, t));
done:
    free(list.boxes);
    if (err != LT_OK) {
        lt_stored_close(s);
    }
    return err;
}

void lt_stored_close(lt_stored *s) {
    for (int i = 0; s->manifests != NULL && i < s->n_parts; i++) {
        json_decref(s->manifests[i]);
    }
    free(s->manifests);
    free(s->needed);
    free(s->boxes);
    free(s->first);
    *s = (lt_stored){0};
}

lt_err lt_stored_verify(const lt_stored *s) {
    for (int part = 0; s->manifests != NULL && part < s->n_parts; part++) {
        const json_t *files = json_object_get(s->manifests[part], "files");
        for (size_t i = 0; s->needed[part] && i < json_array_size(files); i++) {
            LT_TRY(lt_part_check_file(s->folder, json_array_get(files, i)));
        }
    }
    return LT_OK;
}

/* ---- Reading ---- */

/* Find the tensor of a stored box, and check its shape and type. */
static lt_err find_tensor(const lt_safetensor **out, const lt_safetensors *file,
                          const lt_stored_box *b, const lt_param *p, lt_dtype dtype,
                          const char *path) {
    char name[NAME_BYTES];
    const lt_safetensor *found;
    tensor_name(name, p, &b->box, b->index);
    found = lt_safetensors_find(file, name);
    if (found != NULL && found->dtype != dtype) {
        LT_FAIL(LT_ERR_STATE, "%s: parameter %s is stored as %s, this run keeps it as %s", path,
                p->name, lt_dtype_name(found->dtype), lt_dtype_name(dtype));
    }
    if (found == NULL || found->n_dims != p->n_dims ||
        memcmp(found->shape, b->box.extent, (size_t)p->n_dims * sizeof *found->shape) != 0) {
        LT_FAIL(LT_ERR_STATE, "%s: parameter %s is %s in this model", path, p->name,
                found == NULL ? "not there, but" : "of another shape");
    }
    *out = found;
    return LT_OK;
}

/* Copy the elements that two boxes share, one run of the last dimension at a time. */
static void copy_shared(unsigned char *dst, const lt_box *to, const unsigned char *src,
                        const lt_box *from, const lt_box *both, int n_dims, size_t each) {
    const int last = n_dims - 1;
    const int64_t rows = lt_box_count(both, n_dims) / both->extent[last];
    for (int64_t row = 0; row < rows; row++) {
        int64_t at[LT_PARAM_DIMS], rest = row;
        at[last] = both->first[last];
        for (int d = last - 1; d >= 0; d--) {
            at[d] = both->first[d] + rest % both->extent[d];
            rest /= both->extent[d];
        }
        memcpy(dst + (size_t)lt_box_local_index(to, n_dims, at) * each,
               src + (size_t)lt_box_local_index(from, n_dims, at) * each,
               (size_t)both->extent[last] * each);
    }
}

/* The files of one buffer, opened when they are needed. */
typedef struct {
    const lt_stored *stored;
    const lt_model *m;
    const lt_param_table *table;
    const lt_param_buffer *buffer;
    lt_safetensors *files; /* (n_parts) */
    char (*paths)[LT_PATH_BYTES];
} loading;

/* Assemble one parameter on the host. */
static lt_err gather(const loading *l, int param, unsigned char *host) {
    const lt_stored *s = l->stored;
    const lt_param *p = &l->table->params[param];
    const size_t each = lt_dtype_bytes(l->buffer->dtype);
    int64_t at = 0, copied = 0;
    for (int k = 0; k < p->n_boxes; k++) {
        const lt_box *to = &lt_param_boxes(l->table, p)[k];
        for (int i = s->first[param]; i < s->first[param + 1]; i++) {
            const lt_stored_box *b = &s->boxes[i];
            const lt_safetensor *t;
            lt_box both;
            if (!lt_box_intersect(&both, to, &b->box, p->n_dims)) {
                continue;
            }
            LT_TRY(find_tensor(&t, &l->files[b->part], b, p, l->buffer->dtype, l->paths[b->part]));
            copy_shared(host + (size_t)at * each, to, t->data, &b->box, &both, p->n_dims, each);
            copied += lt_box_count(&both, p->n_dims);
        }
        at += lt_box_count(to, p->n_dims);
    }
    LT_ASSERT(at == p->local_count && copied == at); /* check_cover has checked this. */
    return LT_OK;
}

static lt_err load_param(const loading *l, int param) {
    const lt_stored *s = l->stored;
    const lt_param *p = &l->table->params[param];
    const size_t bytes = (size_t)p->local_count * lt_dtype_bytes(l->buffer->dtype);
    const lt_stored_box *b = &s->boxes[s->first[param]];
    const char *path = l->paths[b->part];
    const lt_safetensor *t;
    unsigned char *host;
    lt_err err;

    if (p->local_count == 0) {
        return LT_OK;
    }
    /* The parameter can be used as it is in the file. */
    if (b->whole && p->n_boxes == 1 && p->local_count == p->count) {
        LT_TRY(find_tensor(&t, &l->files[b->part], b, p, l->buffer->dtype, path));
        LT_TRY(check_finite(t->data, l->buffer->dtype, 0, p->count, path, p->name));
        return lt_model_upload(l->m, lt_param_data(l->buffer, p), t->data, bytes);
    }
    host = malloc(bytes);
    if (host == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu bytes of %s", path, bytes, p->name);
    }
    err = gather(l, param, host);
    err = err == LT_OK ? check_finite(host, l->buffer->dtype, 0, p->local_count, s->folder, p->name)
                       : err;
    err = err == LT_OK ? lt_model_upload(l->m, lt_param_data(l->buffer, p), host, bytes) : err;
    free(host);
    return err;
}

lt_err lt_stored_load(const lt_stored *s, const char *stem, const lt_model *m,
                      const lt_param_table *t, const lt_param_buffer *b) {
    lt_err err = LT_OK;
    loading l = {.stored = s, .m = m, .table = t, .buffer = b};

    l.files = calloc((size_t)s->n_parts, sizeof *l.files);
    l.paths = calloc((size_t)s->n_parts, sizeof *l.paths);
    if (l.files == NULL || l.paths == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %d parts", s->folder, s->n_parts);
    }
    for (int part = 0; part < s->n_parts; part++) {
        char name[LT_PART_NAME_BYTES];
        lt_part_file(name, stem, part, s->n_parts, ".safetensors");
        LT_TRY_DONE(lt_path_join(l.paths[part], s->folder, name));
        if (s->needed[part]) {
            LT_TRY_DONE(lt_safetensors_open(&l.files[part], l.paths[part]));
        }
    }
    if (s->manifests == NULL && s->needed[0] && l.files[0].n_tensors != (size_t)t->n_params) {
        LT_FAIL_DONE(LT_ERR_STATE, "%s holds %zu parameters, this model has %d", l.paths[0],
                     l.files[0].n_tensors, t->n_params);
    }
    for (int i = 0; i < t->n_params; i++) {
        LT_TRY_DONE(load_param(&l, i));
    }
done:
    for (int part = 0; l.files != NULL && part < s->n_parts; part++) {
        lt_safetensors_close(&l.files[part]);
    }
    free(l.files);
    free(l.paths);
    return err;
}
