/* gguf_write.c: see gguf_write.h. The file: header, metadata, tensor directory, padding to ALIGN,
 * then tensors, each at a multiple of ALIGN. */
#include "data/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aside.h"
#include "base/error.h"
#include "base/file.h"

#define ALIGN       32
#define NAME_BYTES  64 /* GGUF's limit, including the terminating 0. */
#define PIECE_BYTES ((uint64_t)16 << 20)

typedef struct {
    char name[NAME_BYTES];
    int n_dims;
    uint64_t dims[LT_GGUF_MAX_DIMS], row_bytes, n_rows, offset;
    lt_ggml_type type;
    lt_gguf_fill *fill;
    const void *ctx;
} out_tensor;

struct lt_gguf_out {
    unsigned char *data; /* The metadata, as it will be in the file. */
    size_t bytes, room;
    uint64_t n_kv;
    out_tensor *tensors;
    size_t n_tensors, tensor_room;
    bool oom;
};

lt_err lt_gguf_out_open(lt_gguf_out **out) {
    *out = calloc(1, sizeof **out);
    return *out != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "GGUF file");
}

void lt_gguf_out_close(lt_gguf_out *o) {
    if (o != NULL) {
        free(o->data);
        free(o->tensors);
        free(o);
    }
}

static void put(lt_gguf_out *o, const void *data, size_t bytes) {
    if (o->room - o->bytes < bytes && !o->oom) {
        const size_t room = 2 * o->room + bytes + 4096;
        unsigned char *grown = realloc(o->data, room);
        o->oom = grown == NULL;
        if (grown != NULL) {
            o->data = grown;
            o->room = room;
        }
    }
    if (!o->oom && bytes > 0) {
        memcpy(o->data + o->bytes, data, bytes);
        o->bytes += bytes;
    }
}

static void put_u32(lt_gguf_out *o, uint32_t x) {
    put(o, &x, sizeof x);
}

static void put_u64(lt_gguf_out *o, uint64_t x) {
    put(o, &x, sizeof x);
}

void lt_gguf_out_string(lt_gguf_out *o, const char *text, size_t bytes) {
    put_u64(o, bytes);
    put(o, text, bytes);
}

static void put_key(lt_gguf_out *o, const char *key, size_t bytes, lt_gguf_type type) {
    lt_gguf_out_string(o, key, bytes);
    put_u32(o, (uint32_t)type);
    o->n_kv++;
}

void lt_gguf_out_str(lt_gguf_out *o, const char *key, const char *value) {
    put_key(o, key, strlen(key), LT_GGUF_STR);
    lt_gguf_out_string(o, value, strlen(value));
}

void lt_gguf_out_u32(lt_gguf_out *o, const char *key, int64_t value) {
    LT_ASSERT(value >= 0 && value <= UINT32_MAX);
    put_key(o, key, strlen(key), LT_GGUF_U32);
    put_u32(o, (uint32_t)value);
}

void lt_gguf_out_i32(lt_gguf_out *o, const char *key, int64_t value) {
    LT_ASSERT(value >= INT32_MIN && value <= INT32_MAX);
    put_key(o, key, strlen(key), LT_GGUF_I32);
    put_u32(o, (uint32_t)(int32_t)value);
}

void lt_gguf_out_f32(lt_gguf_out *o, const char *key, double value) {
    const float x = (float)value;
    put_key(o, key, strlen(key), LT_GGUF_F32);
    put(o, &x, sizeof x);
}

void lt_gguf_out_bool(lt_gguf_out *o, const char *key, bool value) {
    const unsigned char x = value ? 1 : 0;
    put_key(o, key, strlen(key), LT_GGUF_BOOL);
    put(o, &x, 1);
}

void lt_gguf_out_copy(lt_gguf_out *o, const lt_gguf_kv *kv) {
    put_key(o, kv->key.data, kv->key.bytes, kv->type);
    if (kv->type == LT_GGUF_ARRAY) {
        put_u32(o, (uint32_t)kv->elem);
        put_u64(o, kv->n);
    }
    put(o, kv->data, kv->bytes);
}

void lt_gguf_out_array(lt_gguf_out *o, const char *key, lt_gguf_type elem, const void *values,
                       uint64_t n) {
    LT_ASSERT(elem == LT_GGUF_F32 || elem == LT_GGUF_I32);
    put_key(o, key, strlen(key), LT_GGUF_ARRAY);
    put_u32(o, (uint32_t)elem);
    put_u64(o, n);
    put(o, values, (size_t)n * 4);
}

void lt_gguf_out_strings(lt_gguf_out *o, const char *key, uint64_t n) {
    put_key(o, key, strlen(key), LT_GGUF_ARRAY);
    put_u32(o, LT_GGUF_STR);
    put_u64(o, n);
}

void lt_gguf_out_tensor(lt_gguf_out *o, const char *name, int n_dims, const uint64_t *dims,
                        lt_ggml_type type, lt_gguf_fill *fill, const void *ctx) {
    uint32_t elems = 1, bytes = 1;
    out_tensor *t;
    LT_ASSERT(n_dims >= 1 && n_dims <= LT_GGUF_MAX_DIMS && strlen(name) < NAME_BYTES);
    const bool known = lt_ggml_type_block(type, &elems, &bytes);
    LT_ASSERT(known && dims[0] % elems == 0);
    if (o->n_tensors == o->tensor_room) {
        const size_t room = 2 * o->tensor_room + 64;
        out_tensor *grown = realloc(o->tensors, room * sizeof *grown);
        if (grown == NULL) {
            o->oom = true;
            return;
        }
        o->tensors = grown;
        o->tensor_room = room;
    }
    t = &o->tensors[o->n_tensors++];
    *t = (out_tensor){.n_dims = n_dims, .type = type, .fill = fill, .ctx = ctx, .n_rows = 1};
    memcpy(t->name, name, strlen(name) + 1);
    memcpy(t->dims, dims, (size_t)n_dims * sizeof *dims);
    t->row_bytes = dims[0] / elems * bytes;
    for (int i = 1; i < n_dims; i++) {
        t->n_rows *= dims[i];
    }
}

static uint64_t aligned(uint64_t x) {
    return (x + ALIGN - 1) / ALIGN * ALIGN;
}

/* Append the tensor directory to the metadata. */
static void put_directory(lt_gguf_out *o) {
    uint64_t offset = 0;
    for (size_t i = 0; i < o->n_tensors; i++) {
        const out_tensor *t = &o->tensors[i];
        lt_gguf_out_string(o, t->name, strlen(t->name));
        put_u32(o, (uint32_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++) {
            put_u64(o, t->dims[d]);
        }
        put_u32(o, (uint32_t)t->type);
        put_u64(o, offset);
        offset = aligned(offset + t->row_bytes * t->n_rows);
    }
}

static lt_err write_bytes(FILE *f, const void *data, size_t bytes, const char *path) {
    if (fwrite(data, 1, bytes, f) != bytes) {
        LT_FAIL(LT_ERR_IO, "%s: writing %zu bytes: %s", path, bytes, strerror(errno));
    }
    return LT_OK;
}

static lt_err write_padding(FILE *f, uint64_t written, const char *path) {
    static const unsigned char zeros[ALIGN];
    return write_bytes(f, zeros, (size_t)(aligned(written) - written), path);
}

static lt_err write_tensor(FILE *f, const out_tensor *t, const char *path) {
    lt_err err = LT_OK;
    const uint64_t fit = PIECE_BYTES / t->row_bytes, step = fit > 0 ? fit : 1;
    unsigned char *piece = malloc((size_t)((step < t->n_rows ? step : t->n_rows) * t->row_bytes));

    if (piece == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: tensor %s", path, t->name);
    }
    for (uint64_t row = 0; row < t->n_rows; row += step) {
        const uint64_t n = t->n_rows - row < step ? t->n_rows - row : step;
        LT_TRY_DONE(t->fill(t->ctx, piece, row, n));
        LT_TRY_DONE(write_bytes(f, piece, (size_t)(n * t->row_bytes), path));
    }
    LT_TRY_DONE(write_padding(f, t->row_bytes * t->n_rows, path));
done:
    free(piece);
    return err;
}

static lt_err write_all(lt_gguf_out *o, FILE *f, const char *path) {
    const uint32_t version = 3;
    const uint64_t counts[2] = {o->n_tensors, o->n_kv};
    LT_TRY(write_bytes(f, "GGUF", 4, path));
    LT_TRY(write_bytes(f, &version, sizeof version, path));
    LT_TRY(write_bytes(f, counts, sizeof counts, path));
    LT_TRY(write_bytes(f, o->data, o->bytes, path));
    LT_TRY(write_padding(f, 24 + o->bytes, path));
    for (size_t i = 0; i < o->n_tensors; i++) {
        LT_TRY(write_tensor(f, &o->tensors[i], path));
    }
    return LT_OK;
}

lt_err lt_gguf_out_write(lt_gguf_out *o, const char *path) {
    lt_err err = LT_OK;
    lt_aside a;

    put_directory(o);
    if (o->oom) {
        LT_FAIL(LT_ERR_OOM, "%s: metadata of %zu bytes", path, o->bytes);
    }
    LT_TRY(lt_aside_open(&a, path));
    LT_TRY_DONE(write_all(o, a.file, path));
    LT_TRY_DONE(lt_aside_publish(&a));
done:
    lt_aside_close(&a);
    return err;
}
