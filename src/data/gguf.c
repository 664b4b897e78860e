/* gguf.c: reads the GGUF container; see gguf.h.
 *
 * BYTE LAYOUT (little-endian, nothing aligned before the data section)
 *     "GGUF"  u32 version  u64 n_tensors  u64 n_kvs
 *     n_kvs times      str key, u32 type, value       str = u64 length, bytes; array = u32 type,
 *                                                     u64 n, values
 *     n_tensors times  str name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset
 *     padding to `general.alignment` (32 if absent), then the data section; offsets count from
 *     there
 *
 * INVARIANTS after open: every length was compared with what is left of the file before it was
 * used, so no sum can wrap; names are unique; tensors are aligned, inside the file and disjoint. A
 * file may end before its data section as long as no tensor needs it (vocabulary-only files have no
 * tensors).
 *
 * Lookups go through one open-addressing table over keys and one over tensor names, because a model
 * reader asks for hundreds of names. Arrays inside arrays are refused; the format allows them, but
 * no file uses them. */
#include "data/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"

#define MAX_ENTRIES   (1u << 20) /* Keys or tensors; DeepSeek-V3 has about 1,100 tensors. */
#define MAX_KEY_BYTES 65535      /* The specification's limit. */

struct lt_gguf_index {
    lt_file_map map;
    char *path;
    uint32_t *kv_slots, *tensor_slots; /* 0: empty; otherwise the index of the entry + 1. */
    size_t kv_mask, tensor_mask;
};

/* The position of the reader. Every take_ function checks the bytes that are left. */
typedef struct {
    const unsigned char *data;
    size_t at, bytes;
    const char *name;
} cursor;

static uint32_t load_u32(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load_u64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static lt_err take(cursor *c, size_t bytes, const unsigned char **out, const char *what) {
    if (bytes > c->bytes - c->at) {
        LT_FAIL(LT_ERR_FORMAT, "%s: truncated at byte %zu of %zu: %s needs %zu more bytes", c->name,
                c->at, c->bytes, what, bytes);
    }
    *out = c->data + c->at;
    c->at += bytes;
    return LT_OK;
}

static lt_err take_u32(cursor *c, uint32_t *out, const char *what) {
    const unsigned char *p;
    LT_TRY(take(c, 4, &p, what));
    *out = load_u32(p);
    return LT_OK;
}

static lt_err take_u64(cursor *c, uint64_t *out, const char *what) {
    const unsigned char *p;
    LT_TRY(take(c, 8, &p, what));
    *out = load_u64(p);
    return LT_OK;
}

static lt_err take_str(cursor *c, lt_gguf_str *out, const char *what) {
    const unsigned char *p;
    uint64_t bytes;
    LT_TRY(take_u64(c, &bytes, what));
    LT_TRY(take(c, bytes, &p, what));
    *out = (lt_gguf_str){(const char *)p, bytes};
    return LT_OK;
}

static lt_err take_name(cursor *c, lt_gguf_str *out, const char *what) {
    LT_TRY(take_str(c, out, what));
    if (out->bytes == 0 || out->bytes > MAX_KEY_BYTES) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s of %zu bytes", c->name, what, out->bytes);
    }
    return LT_OK;
}

/* Bytes of one value of a fixed-size type; 0 for STR, ARRAY and unknown numbers. */
static size_t type_bytes(uint32_t type) {
    static const unsigned char sizes[LT_GGUF_TYPE_COUNT] = {
        [LT_GGUF_U8] = 1,  [LT_GGUF_I8] = 1,  [LT_GGUF_U16] = 2, [LT_GGUF_I16] = 2,
        [LT_GGUF_U32] = 4, [LT_GGUF_I32] = 4, [LT_GGUF_F32] = 4, [LT_GGUF_BOOL] = 1,
        [LT_GGUF_U64] = 8, [LT_GGUF_I64] = 8, [LT_GGUF_F64] = 8,
    };
    return type < LT_GGUF_TYPE_COUNT ? sizes[type] : 0;
}

static lt_err take_values(cursor *c, lt_gguf_kv *kv) {
    const size_t start = c->at, size = type_bytes(kv->elem);
    const unsigned char *p;
    lt_gguf_str s;

    kv->data = c->data + c->at;
    if (kv->elem == LT_GGUF_STR) {
        for (uint64_t i = 0; i < kv->n;
             /* Each iteration reads 8 bytes, so the loop ends at the end of the file at the
              * latest. */
             i++) {
            LT_TRY(take_str(c, &s, "string"));
        }
    } else if (size == 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: key '%.*s' holds values of type %d", c->name,
                (int)kv->key.bytes, kv->key.data, (int)kv->elem);
    } else if (kv->n > (c->bytes - c->at) / size) {
        LT_FAIL(LT_ERR_FORMAT, "%s: key '%.*s' announces %llu values, %zu bytes are left", c->name,
                (int)kv->key.bytes, kv->key.data, (unsigned long long)kv->n, c->bytes - c->at);
    } else {
        LT_TRY(take(c, (size_t)kv->n * size, &p, "array"));
    }
    kv->bytes = c->at - start;
    return LT_OK;
}

static lt_err take_kv(cursor *c, lt_gguf_kv *kv) {
    uint32_t type, elem;

    LT_TRY(take_name(c, &kv->key, "metadata key"));
    LT_TRY(take_u32(c, &type, "value type"));
    elem = type;
    kv->n = 1;
    if (type == LT_GGUF_ARRAY) {
        LT_TRY(take_u32(c, &elem, "array type"));
        LT_TRY(take_u64(c, &kv->n, "array length"));
    }
    if (type >= LT_GGUF_TYPE_COUNT || elem >= LT_GGUF_TYPE_COUNT) {
        LT_FAIL(LT_ERR_FORMAT, "%s: key '%.*s' has unknown value type %u", c->name,
                (int)kv->key.bytes, kv->key.data, type >= LT_GGUF_TYPE_COUNT ? type : elem);
    }
    kv->type = (lt_gguf_type)type;
    kv->elem = (lt_gguf_type)elem;
    return take_values(c, kv);
}

/* Shape, type and size of one tensor; its offset is left in *offset until the data section's start
 * is known. */
static lt_err take_tensor(cursor *c, lt_gguf_tensor *t, uint64_t *offset) {
    uint32_t n_dims, type, block_elems, block_bytes;

    LT_TRY(take_name(c, &t->name, "tensor name"));
    LT_TRY(take_u32(c, &n_dims, "tensor rank"));
    if (n_dims > LT_GGUF_MAX_DIMS) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor '%.*s' has %u dimensions, at most %d are allowed",
                c->name, (int)t->name.bytes, t->name.data, n_dims, LT_GGUF_MAX_DIMS);
    }
    t->n_dims = (int)n_dims;
    t->n_elems = 1;
    for (uint32_t d = 0; d < LT_GGUF_MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d < n_dims) {
            LT_TRY(take_u64(c, &t->dims[d], "tensor shape"));
        }
        if (__builtin_mul_overflow(t->n_elems, t->dims[d], &t->n_elems) || t->n_elems >> 60 != 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s: shape of tensor '%.*s' overflows", c->name,
                    (int)t->name.bytes, t->name.data);
        }
    }
    LT_TRY(take_u32(c, &type, "tensor type"));
    LT_TRY(take_u64(c, offset, "tensor offset"));
    if (!lt_ggml_type_block(type, &block_elems, &block_bytes)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: tensor '%.*s' has unknown storage type %u", c->name,
                (int)t->name.bytes, t->name.data, type);
    }
    if (t->dims[0] % block_elems != 0) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: tensor '%.*s' (%s) has rows of %llu elements, not a multiple of %u", c->name,
                (int)t->name.bytes, t->name.data, lt_ggml_type_name(type),
                (unsigned long long)t->dims[0], block_elems);
    }
    t->type = (lt_ggml_type)type;
    if (__builtin_mul_overflow(t->n_elems / block_elems, (uint64_t)block_bytes, &t->bytes)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: size of tensor '%.*s' overflows", c->name, (int)t->name.bytes,
                t->name.data);
    }
    return LT_OK;
}

/* Add a name by open addressing, with a load of at most 1/2. Returns the existing entry of that
 * name, or n. */
static size_t index_add(uint32_t *slots, size_t mask, lt_gguf_str name, size_t entry,
                        const lt_gguf_str *names, size_t stride, size_t none) {
    size_t at = XXH3_64bits(name.data, name.bytes) & mask;
    while (slots[at] != 0) {
        const lt_gguf_str *seen = (const lt_gguf_str *)((const char *)names +
                                                        (slots[at] - 1) * stride);
        if (seen->bytes == name.bytes && memcmp(seen->data, name.data, name.bytes) == 0) {
            return slots[at] - 1;
        }
        at = (at + 1) & mask;
    }
    slots[at] = (uint32_t)entry + 1;
    return none;
}

static size_t index_find(const uint32_t *slots, size_t mask, const char *name,
                         const lt_gguf_str *names, size_t stride, size_t none) {
    const size_t bytes = strlen(name);
    size_t at = XXH3_64bits(name, bytes) & mask;
    while (slots != NULL && slots[at] != 0) {
        const lt_gguf_str *seen = (const lt_gguf_str *)((const char *)names +
                                                        (slots[at] - 1) * stride);
        if (seen->bytes == bytes && memcmp(seen->data, name, bytes) == 0) {
            return slots[at] - 1;
        }
        at = (at + 1) & mask;
    }
    return none;
}

static lt_err index_open(uint32_t **slots, size_t *mask, size_t n) {
    size_t room = 16;
    while (room < 2 * n) {
        room *= 2;
    }
    *slots = calloc(room, sizeof **slots);
    *mask = room - 1;
    if (*slots == NULL) {
        LT_FAIL(LT_ERR_OOM, "index of %zu GGUF names", n);
    }
    return LT_OK;
}

static lt_err build_index(lt_gguf *g) {
    LT_TRY(index_open(&g->index->kv_slots, &g->index->kv_mask, g->n_kvs));
    LT_TRY(index_open(&g->index->tensor_slots, &g->index->tensor_mask, g->n_tensors));
    for (size_t i = 0; i < g->n_kvs; i++) {
        const lt_gguf_str key = g->kvs[i].key;
        if (index_add(g->index->kv_slots, g->index->kv_mask, key, i, &g->kvs[0].key, sizeof *g->kvs,
                      g->n_kvs) != g->n_kvs) {
            LT_FAIL(LT_ERR_FORMAT, "%s: key '%.*s' occurs twice", g->name, (int)key.bytes,
                    key.data);
        }
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const lt_gguf_str key = g->tensors[i].name;
        if (index_add(g->index->tensor_slots, g->index->tensor_mask, key, i, &g->tensors[0].name,
                      sizeof *g->tensors, g->n_tensors) != g->n_tensors) {
            LT_FAIL(LT_ERR_FORMAT, "%s: tensor '%.*s' occurs twice", g->name, (int)key.bytes,
                    key.data);
        }
    }
    return LT_OK;
}

static int compare_data(const void *a, const void *b) {
    const lt_gguf_tensor *x = *(const lt_gguf_tensor *const *)a,
                         *y = *(const lt_gguf_tensor *const *)b;
    return x->data < y->data     ? -1
           : x->data > y->data   ? 1
           : x->bytes < y->bytes ? -1
                                 : x->bytes > y->bytes;
}

static lt_err check_overlap(const lt_gguf *g) {
    lt_err err = LT_OK;
    const lt_gguf_tensor **order = malloc((g->n_tensors + 1) * sizeof(const lt_gguf_tensor *));
    if (order == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: order of %zu tensors", g->name, g->n_tensors);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        order[i] = &g->tensors[i];
    }
    qsort(order, g->n_tensors, sizeof *order, compare_data);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const lt_gguf_tensor *a = order[i - 1], *b = order[i];
        if (a->data + a->bytes > b->data && a->bytes > 0 && b->bytes > 0) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: tensors '%.*s' and '%.*s' overlap", g->name,
                         (int)a->name.bytes, a->name.data, (int)b->name.bytes, b->name.data);
        }
    }
done:
    free(order);
    return err;
}

/* The data section starts at the next multiple of the alignment after the directory. */
static lt_err place_tensors(lt_gguf *g, const cursor *c, const uint64_t *offsets) {
    const size_t align = g->alignment;
    const size_t start = c->at + (align - c->at % align) % align;
    const size_t room = start <= c->bytes ? c->bytes - start : 0;

    for (size_t i = 0; i < g->n_tensors; i++) {
        lt_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] % align != 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s: tensor '%.*s' at offset %llu is not aligned to %zu",
                    g->name, (int)t->name.bytes, t->name.data, (unsigned long long)offsets[i],
                    align);
        }
        if (offsets[i] > room || t->bytes > room - offsets[i]) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: tensor '%.*s' needs bytes %llu to %llu of a data section of %zu", g->name,
                    (int)t->name.bytes, t->name.data, (unsigned long long)offsets[i],
                    (unsigned long long)(offsets[i] + t->bytes), room);
        }
        t->data = c->data + (start <= c->bytes ? start : c->bytes) + offsets[i];
    }
    return check_overlap(g);
}

static lt_err read_alignment(lt_gguf *g) {
    uint64_t align = 32;
    const lt_err err = lt_gguf_get_u64(g, "general.alignment", &align);
    if (err != LT_OK && err != LT_ERR_NOT_FOUND) {
        return err;
    }
    if (align == 0 || align % 8 != 0 || align > 1u << 20) {
        LT_FAIL(LT_ERR_FORMAT, "%s: general.alignment is %llu", g->name, (unsigned long long)align);
    }
    g->alignment = (uint32_t)align;
    return LT_OK;
}

static lt_err read_header(cursor *c, lt_gguf *g) {
    const unsigned char *magic;
    uint64_t n_tensors, n_kvs;

    LT_TRY(take(c, 4, &magic, "magic"));
    if (memcmp(magic, "GGUF", 4) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: not a GGUF file (it starts with %02x %02x %02x %02x)", c->name,
                magic[0], magic[1], magic[2], magic[3]);
    }
    LT_TRY(take_u32(c, &g->version, "version"));
    if (g->version < 2 || g->version > 3) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: GGUF version %u%s; 2 and 3 are read", c->name, g->version,
                (g->version & 0xffff) == 0 ? " (big-endian?)" : "");
    }
    LT_TRY(take_u64(c, &n_tensors, "tensor count"));
    LT_TRY(take_u64(c, &n_kvs, "metadata count"));
    if (n_tensors > MAX_ENTRIES || n_kvs > MAX_ENTRIES || n_tensors > c->bytes / 24 ||
        n_kvs > c->bytes / 12) { /* The smallest size of an entry. */
        LT_FAIL(LT_ERR_FORMAT, "%s: announces %llu tensors and %llu metadata entries in %zu bytes",
                c->name, (unsigned long long)n_tensors, (unsigned long long)n_kvs, c->bytes);
    }
    g->n_tensors = (size_t)n_tensors;
    g->n_kvs = (size_t)n_kvs;
    return LT_OK;
}

static lt_err read_all(lt_gguf *g, cursor *c) {
    lt_err err = LT_OK;
    uint64_t *offsets = NULL;

    LT_TRY_DONE(read_header(c, g));
    g->kvs = calloc(g->n_kvs + 1, sizeof *g->kvs);
    g->tensors = calloc(g->n_tensors + 1, sizeof *g->tensors);
    offsets = calloc(g->n_tensors + 1, sizeof *offsets);
    if (g->kvs == NULL || g->tensors == NULL || offsets == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: directory of %zu tensors", c->name, g->n_tensors);
    }
    for (size_t i = 0; i < g->n_kvs; i++) {
        LT_TRY_DONE(take_kv(c, &g->kvs[i]));
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        LT_TRY_DONE(take_tensor(c, &g->tensors[i], &offsets[i]));
    }
    LT_TRY_DONE(build_index(g));
    LT_TRY_DONE(read_alignment(g));
    LT_TRY_DONE(place_tensors(g, c, offsets));
done:
    free(offsets);
    return err;
}

static lt_err parse_into(lt_gguf **out, lt_file_map map, bool owned, const char *name) {
    lt_err err = LT_OK;
    cursor c = {.data = map.data, .bytes = map.size_bytes, .name = name};
    lt_gguf *g = calloc(1, sizeof *g);

    if (g == NULL || (g->index = calloc(1, sizeof *g->index)) == NULL ||
        (g->index->path = strdup(name)) == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: GGUF directory", name);
    }
    g->name = g->index->path;
    LT_TRY_DONE(read_all(g, &c));
    if (owned) {
        g->index->map = map;
    }
    *out = g;
    g = NULL;
done:
    lt_gguf_close(g);
    return err;
}

lt_err lt_gguf_open(lt_gguf **out, const char *path) {
    lt_file_map map = {0};
    lt_err err;

    LT_ASSERT(out != NULL);
    LT_TRY(lt_file_map_open(&map, path));
    err = parse_into(out, map, true, path);
    if (err != LT_OK) {
        lt_file_map_close(&map);
    }
    return err;
}

lt_err lt_gguf_parse(lt_gguf **out, const void *data, size_t bytes, const char *name) {
    LT_ASSERT(out != NULL);
    LT_ASSERT(data != NULL || bytes == 0);
    return parse_into(out, (lt_file_map){.data = data, .size_bytes = bytes}, false, name);
}

void lt_gguf_close(lt_gguf *g) {
    if (g == NULL) {
        return;
    }
    if (g->index != NULL) {
        lt_file_map_close(&g->index->map);
        free(g->index->path);
        free(g->index->kv_slots);
        free(g->index->tensor_slots);
        free(g->index);
    }
    free(g->kvs);
    free(g->tensors);
    free(g);
}

const lt_gguf_kv *lt_gguf_find(const lt_gguf *g, const char *key) {
    const size_t i = index_find(g->index->kv_slots, g->index->kv_mask, key, &g->kvs[0].key,
                                sizeof *g->kvs, g->n_kvs);
    return i == g->n_kvs ? NULL : &g->kvs[i];
}

const lt_gguf_tensor *lt_gguf_tensor_find(const lt_gguf *g, const char *name) {
    const size_t i = index_find(g->index->tensor_slots, g->index->tensor_mask, name,
                                &g->tensors[0].name, sizeof *g->tensors, g->n_tensors);
    return i == g->n_tensors ? NULL : &g->tensors[i];
}

static bool is_integer(lt_gguf_type type) {
    return type_bytes(type) != 0 && type != LT_GGUF_F32 && type != LT_GGUF_F64 &&
           type != LT_GGUF_BOOL;
}

static lt_err find_scalar(const lt_gguf *g, const char *key, const lt_gguf_kv **out) {
    const lt_gguf_kv *kv = lt_gguf_find(g, key);
    if (kv == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: metadata key '%s' is missing", g->name, key);
    }
    *out = kv;
    return LT_OK;
}

static lt_err wrong_type(const lt_gguf *g, const char *key, const lt_gguf_kv *kv,
                         const char *wanted) {
    LT_FAIL(LT_ERR_FORMAT, "%s: metadata key '%s' (type %d) is not %s", g->name, key, (int)kv->type,
            wanted);
}

lt_err lt_gguf_get_i64(const lt_gguf *g, const char *key, int64_t *out) {
    const lt_gguf_kv *kv = NULL;
    LT_TRY(find_scalar(g, key, &kv));
    if (!is_integer(kv->type) || (kv->type == LT_GGUF_U64 && load_u64(kv->data) >> 63 != 0)) {
        return wrong_type(g, key, kv, "a whole number of 63 bits");
    }
    *out = lt_gguf_elem_i64(kv, 0);
    return LT_OK;
}

lt_err lt_gguf_get_u64(const lt_gguf *g, const char *key, uint64_t *out) {
    const lt_gguf_kv *kv = NULL;
    LT_TRY(find_scalar(g, key, &kv));
    if (kv->type == LT_GGUF_U64) {
        *out = load_u64(kv->data);
        return LT_OK;
    }
    if (!is_integer(kv->type) || lt_gguf_elem_i64(kv, 0) < 0) {
        return wrong_type(g, key, kv, "a whole number from 0");
    }
    *out = (uint64_t)lt_gguf_elem_i64(kv, 0);
    return LT_OK;
}

lt_err lt_gguf_get_f64(const lt_gguf *g, const char *key, double *out) {
    const lt_gguf_kv *kv = NULL;
    LT_TRY(find_scalar(g, key, &kv));
    if (type_bytes(kv->type) == 0 || kv->type == LT_GGUF_BOOL) {
        return wrong_type(g, key, kv, "a number");
    }
    *out = lt_gguf_elem_f64(kv, 0);
    return LT_OK;
}

lt_err lt_gguf_get_bool(const lt_gguf *g, const char *key, bool *out) {
    const lt_gguf_kv *kv = NULL;
    LT_TRY(find_scalar(g, key, &kv));
    if (kv->type != LT_GGUF_BOOL) {
        return wrong_type(g, key, kv, "true or false");
    }
    *out = kv->data[0] != 0;
    return LT_OK;
}

lt_err lt_gguf_get_str(const lt_gguf *g, const char *key, lt_gguf_str *out) {
    const lt_gguf_kv *kv = NULL;
    size_t at = 0;
    LT_TRY(find_scalar(g, key, &kv));
    if (kv->type != LT_GGUF_STR) {
        return wrong_type(g, key, kv, "a string");
    }
    *out = lt_gguf_str_next(kv, &at);
    return LT_OK;
}

lt_err lt_gguf_get_array(const lt_gguf *g, const char *key, lt_gguf_type elem,
                         const lt_gguf_kv **out) {
    const lt_gguf_kv *kv = NULL;
    LT_TRY(find_scalar(g, key, &kv));
    if (kv->type != LT_GGUF_ARRAY || kv->elem != elem) {
        LT_FAIL(LT_ERR_FORMAT, "%s: metadata key '%s' is not an array of type %d", g->name, key,
                (int)elem);
    }
    *out = kv;
    return LT_OK;
}

int64_t lt_gguf_elem_i64(const lt_gguf_kv *kv, uint64_t i) {
    const unsigned char *p = kv->data + i * type_bytes(kv->elem);
    LT_ASSERT(i < kv->n);
    switch (kv->elem) {
    case LT_GGUF_U8:
        return p[0];
    case LT_GGUF_BOOL:
        return p[0] != 0;
    case LT_GGUF_I8:
        return (int8_t)p[0];
    case LT_GGUF_U16:
        return (uint16_t)(p[0] | p[1] << 8);
    case LT_GGUF_I16:
        return (int16_t)(uint16_t)(p[0] | p[1] << 8);
    case LT_GGUF_U32:
        return load_u32(p);
    case LT_GGUF_I32:
        return (int32_t)load_u32(p);
    case LT_GGUF_I64:
        return (int64_t)load_u64(p);
    case LT_GGUF_U64:
        return load_u64(p) >> 63 != 0 ? INT64_MAX : (int64_t)load_u64(p);
    case LT_GGUF_F32:
    case LT_GGUF_F64:
        return (int64_t)lt_gguf_elem_f64(kv, i);
    default:
        LT_ASSERT(!"numeric element");
        return 0;
    }
}

double lt_gguf_elem_f64(const lt_gguf_kv *kv, uint64_t i) {
    const unsigned char *p = kv->data + i * type_bytes(kv->elem);
    LT_ASSERT(i < kv->n);
    if (kv->elem == LT_GGUF_F32) {
        float v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    if (kv->elem == LT_GGUF_F64) {
        double v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    if (kv->elem == LT_GGUF_U64) {
        return (double)load_u64(p);
    }
    return (double)lt_gguf_elem_i64(kv, i);
}

lt_gguf_str lt_gguf_str_next(const lt_gguf_kv *kv, size_t *at) {
    lt_gguf_str s;
    LT_ASSERT(kv->elem == LT_GGUF_STR && *at < kv->bytes);
    s.bytes = (size_t)load_u64(kv->data + *at);
    s.data = (const char *)kv->data + *at + 8;
    *at += 8 + s.bytes;
    return s;
}

bool lt_gguf_str_is(lt_gguf_str s, const char *text) {
    return s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0;
}

const char *lt_ggml_type_name(uint32_t type) {
    switch (type) {
#define GGML_NAME(name, number, elems, bytes)                                                      \
    case number:                                                                                   \
        return #name;
        LT_GGML_TYPE_MAP(GGML_NAME)
#undef GGML_NAME
    default:
        return NULL;
    }
}

bool lt_ggml_type_block(uint32_t type, uint32_t *elems, uint32_t *bytes) {
    switch (type) {
#define GGML_BLOCK(name, number, elems_, bytes_)                                                   \
    case number:                                                                                   \
        *elems = elems_;                                                                           \
        *bytes = bytes_;                                                                           \
        return true;
        LT_GGML_TYPE_MAP(GGML_BLOCK)
#undef GGML_BLOCK
    default:
        return false;
    }
}

/* Types that exist in lt_dtype and in GGUF under the same name. */
#define SHARED_TYPES(X)                                                                            \
    X(F32)                                                                                         \
    X(F16)                                                                                         \
    X(BF16)                                                                                        \
    X(F64) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(MXFP4)
static const struct {
    lt_ggml_type type;
    lt_dtype dtype;
} shared_types[] = {
#define SHARED_ROW(name) {LT_GGML_##name, LT_##name},
    SHARED_TYPES(SHARED_ROW)
#undef SHARED_ROW
};

bool lt_ggml_type_dtype(uint32_t type, lt_dtype *out) {
    for (size_t i = 0; i < sizeof shared_types / sizeof *shared_types; i++) {
        if (shared_types[i].type == type) {
            *out = shared_types[i].dtype;
            return true;
        }
    }
    return false;
}

bool lt_ggml_type_of(lt_dtype dtype, lt_ggml_type *out) {
    for (size_t i = 0; i < sizeof shared_types / sizeof *shared_types; i++) {
        if (shared_types[i].dtype == dtype) {
            *out = shared_types[i].type;
            return true;
        }
    }
    return false;
}
