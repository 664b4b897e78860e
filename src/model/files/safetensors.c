/* safetensors.c: see safetensors.h for the format and what is checked. */
#include "model/files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/aside.h"
#include "base/error.h"
#include "base/json.h"

#define HEADER_BYTES_MAX ((uint64_t)100 << 20) /* The limit of the reference implementation. */
#define CHUNK_BYTES      ((size_t)4 << 20)
#define METADATA_KEY     "__metadata__"

static uint64_t read_u64(const unsigned char *p) {
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--) {
        x = x << 8 | p[i];
    }
    return x;
}

/* One header entry: {"dtype", "shape", "data_offsets"}; data_bytes is the length of the data
 * section. */
static lt_err parse_tensor(lt_safetensor *t, const char *key, const json_t *entry,
                           const unsigned char *data, uint64_t data_bytes, const char *file) {
    const json_t *shape = json_object_get(entry, "shape"),
                 *offsets = json_object_get(entry, "data_offsets");
    const char *dtype = NULL;
    int64_t begin, end;
    uint64_t want;

    LT_TRY(lt_json_str(entry, "dtype", &dtype, false, file));
    if (!lt_dtype_from_name(&t->dtype, dtype)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: tensor %s has type %s, which Lateen does not read", file,
                key, dtype);
    }
    if (!json_is_array(shape) || json_array_size(shape) > LT_MAX_DIMS) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s: shape is not a list of at most %d sizes", file, key,
                LT_MAX_DIMS);
    }
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1))) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s: data_offsets is not [begin, end]", file, key);
    }
    t->name = key;
    t->n_dims = (int)json_array_size(shape);
    want = lt_dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        const int64_t n = json_is_integer(size) ? (int64_t)json_integer_value(size) : -1;
        if (n < 0 || (n > 0 && want > UINT64_MAX / (uint64_t)n)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s: dimension %d is %lld", file, key, i,
                    (long long)n);
        }
        t->shape[i] = n;
        want *= (uint64_t)n;
    }
    begin = (int64_t)json_integer_value(json_array_get(offsets, 0));
    end = (int64_t)json_integer_value(json_array_get(offsets, 1));
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: tensor %s: bytes [%lld, %lld) lie outside the data section of %llu bytes",
                file, key, (long long)begin, (long long)end, (unsigned long long)data_bytes);
    }
    if ((uint64_t)(end - begin) != want) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: tensor %s: %lld bytes of data, but its shape and type need %llu", file, key,
                (long long)(end - begin), (unsigned long long)want);
    }
    t->data = data + begin;
    t->bytes = (size_t)want;
    return LT_OK;
}

static int compare_place(const void *a, const void *b) {
    const lt_safetensor *x = a, *y = b;
    if (x->data != y->data) {
        return x->data < y->data ? -1 : 1;
    }
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_name(const void *a, const void *b) {
    return strcmp(((const lt_safetensor *)a)->name, ((const lt_safetensor *)b)->name);
}

/* The tensors must tile the data section exactly. Leaves them sorted by name. */
static lt_err check_places(lt_safetensors *s, const unsigned char *data, uint64_t data_bytes,
                           const char *file) {
    const unsigned char *next = data;
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_place);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const lt_safetensor *t = &s->tensors[i];
        if (t->data != next) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: tensor %s begins at byte %td of the data, but the one before it ends at "
                    "%td (%s)",
                    file, t->name, t->data - data, next - data,
                    t->data < next ? "overlap" : "hole");
        }
        next += t->bytes;
    }
    if ((uint64_t)(next - data) != data_bytes) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %llu bytes of data, but the tensors cover %td", file,
                (unsigned long long)data_bytes, next - data);
    }
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_name);
    return LT_OK;
}

lt_err lt_safetensors_parse(lt_safetensors *out, const void *bytes_in, size_t bytes,
                            const char *name) {
    lt_err err = LT_OK;
    const unsigned char *bytes_at = bytes_in;
    lt_safetensors s = {0};
    uint64_t header_bytes, data_bytes;
    const char *key;
    json_t *entry;

    if (bytes < 8) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %zu bytes are too few for a safetensors file", name, bytes);
    }
    header_bytes = read_u64(bytes_at);
    if (header_bytes > bytes - 8 || header_bytes > HEADER_BYTES_MAX) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: header of %llu bytes does not fit the file of %zu bytes (not safetensors, or "
                "cut short)",
                name, (unsigned long long)header_bytes, bytes);
    }
    LT_TRY_DONE(lt_json_parse(&s.header, (const char *)bytes_at + 8, (size_t)header_bytes, name));
    if (!json_is_object(s.header)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: the header is not a JSON object", name);
    }
    data_bytes = bytes - 8 - header_bytes;
    s.tensors = calloc(json_object_size(s.header) + 1, sizeof *s.tensors);
    if (s.tensors == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %zu tensors", name, json_object_size(s.header));
    }
    json_object_foreach(s.header, key, entry) {
        if (strcmp(key, METADATA_KEY) != 0) {
            LT_TRY_DONE(parse_tensor(&s.tensors[s.n_tensors], key, entry,
                                     bytes_at + 8 + header_bytes, data_bytes, name));
            s.n_tensors++;
        }
    }
    LT_TRY_DONE(check_places(&s, bytes_at + 8 + header_bytes, data_bytes, name));
    *out = s;
    s = (lt_safetensors){0};
done:
    lt_safetensors_close(&s);
    return err;
}

lt_err lt_safetensors_open(lt_safetensors *out, const char *path) {
    lt_err err;
    lt_file_map map = {0};
    LT_TRY(lt_file_map_open(&map, path));
    err = lt_safetensors_parse(out, map.data, map.size_bytes, path);
    if (err != LT_OK) {
        lt_file_map_close(&map);
        return err;
    }
    out->map = map;
    return LT_OK;
}

void lt_safetensors_close(lt_safetensors *s) {
    free(s->tensors);
    json_decref(s->header);
    lt_file_map_close(&s->map);
    *s = (lt_safetensors){0};
}

const lt_safetensor *lt_safetensors_find(const lt_safetensors *s, const char *name) {
    const lt_safetensor key = {.name = name};
    return s->n_tensors == 0 ? NULL
                             : bsearch(&key, s->tensors, s->n_tensors, sizeof key, compare_name);
}

const char *lt_safetensors_metadata(const lt_safetensors *s, const char *key) {
    return json_string_value(json_object_get(json_object_get(s->header, METADATA_KEY), key));
}

lt_err lt_safetensor_fill_memory(const void *ctx, void *dst, int64_t first, int64_t count) {
    const lt_safetensor_memory *m = ctx;
    memcpy(dst, (const char *)m->data + (size_t)first * m->elem_bytes,
           (size_t)count * m->elem_bytes);
    return LT_OK;
}

static int64_t element_count(const lt_safetensor_out *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        n *= t->shape[i];
    }
    return n;
}

/* The header text, padded with spaces so that the data begins at a multiple of 8 (as the reference
 * writer does). */
static lt_err make_header(char **text, size_t *bytes, const lt_safetensor_out *tensors, size_t n,
                          const json_t *metadata, const char *path) {
    json_t *root = json_object();
    int64_t at = 0;
    size_t len;
    char *dumped;

    if (metadata != NULL) {
        json_object_set_new(root, METADATA_KEY, json_deep_copy(metadata));
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t size = element_count(&tensors[i]) * (int64_t)lt_dtype_bytes(tensors[i].dtype);
        json_t *shape = json_array();
        for (int d = 0; d < tensors[i].n_dims; d++) {
            json_array_append_new(shape, json_integer(tensors[i].shape[d]));
        }
        json_object_set_new(root, tensors[i].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                      lt_dtype_name(tensors[i].dtype), "shape", shape,
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + size)));
        at += size;
    }
    dumped = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (dumped == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: header of %zu tensors", path, n);
    }
    len = strlen(dumped);
    *bytes = (len + 7) / 8 * 8;
    *text = malloc(*bytes + 1);
    if (*text == NULL) {
        free(dumped);
        LT_FAIL(LT_ERR_OOM, "%s: header of %zu bytes", path, len);
    }
    memcpy(*text, dumped, len);
    memset(*text + len, ' ', *bytes - len);
    free(dumped);
    return LT_OK;
}

static lt_err put(int fd, XXH3_state_t *hash, const void *data, size_t bytes, const char *path) {
    const unsigned char *p = data;
    XXH3_64bits_update(hash, data, bytes);
    while (bytes > 0) {
        const ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            LT_FAIL(LT_ERR_IO, "write %s: %s", path, strerror(errno));
        }
        p += n;
        bytes -= (size_t)n;
    }
    return LT_OK;
}

static lt_err put_tensor(int fd, XXH3_state_t *hash, const lt_safetensor_out *t, void *chunk,
                         const char *path) {
    const size_t elem_bytes = lt_dtype_bytes(t->dtype);
    const int64_t total = element_count(t), step = (int64_t)(CHUNK_BYTES / elem_bytes);
    for (int64_t first = 0; first < total; first += step) {
        const int64_t count = total - first < step ? total - first : step;
        LT_TRY(t->fill(t->ctx, chunk, first, count));
        LT_TRY(put(fd, hash, chunk, (size_t)count * elem_bytes, path));
    }
    return LT_OK;
}

static lt_err write_file(const lt_aside *aside, const lt_safetensor_out *tensors, size_t n,
                         const json_t *metadata, XXH3_state_t *hash) {
    lt_err err = LT_OK;
    unsigned char length[8];
    size_t header_bytes = 0;
    char *header = NULL;
    void *chunk = malloc(CHUNK_BYTES);
    const int fd = fileno(aside->file); /* Chunks are large enough: no other buffer helps. */

    if (chunk == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: %zu bytes", aside->path, CHUNK_BYTES);
    }
    LT_TRY_DONE(make_header(&header, &header_bytes, tensors, n, metadata, aside->path));
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)(header_bytes >> (8 * i));
    }
    LT_TRY_DONE(put(fd, hash, length, sizeof length, aside->path));
    LT_TRY_DONE(put(fd, hash, header, header_bytes, aside->path));
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(put_tensor(fd, hash, &tensors[i], chunk, aside->path));
    }
done:
    free(header);
    free(chunk);
    return err;
}

lt_err lt_safetensors_write(const char *path, const lt_safetensor_out *tensors, size_t n_tensors,
                            const json_t *metadata, uint64_t *xxh64) {
    lt_err err = LT_OK;
    lt_aside aside = {.slot = 0};
    XXH3_state_t *hash = XXH3_createState();

    if (hash == NULL || XXH3_64bits_reset(hash) != XXH_OK) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: checksum state", path);
    }
    LT_TRY_DONE(lt_aside_open(&aside, path));
    LT_TRY_DONE(write_file(&aside, tensors, n_tensors, metadata, hash));
    LT_TRY_DONE(lt_aside_publish(&aside));
    if (xxh64 != NULL) {
        *xxh64 = XXH3_64bits_digest(hash);
    }
done:
    lt_aside_close(&aside);
    XXH3_freeState(hash);
    return err;
}
