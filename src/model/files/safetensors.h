/* safetensors.h: the safetensors container, read and written.
 *
 * Format: u64 little-endian header length H; H bytes of JSON {"name": {"dtype": "F32", "shape":
 * [..], "data_offsets": [begin, end]}, "__metadata__": {"k": "v"}}; then the data, offsets relative
 * to its start. Checked at open, so that every tensor below may be read over its length: H and all
 * offsets inside the file, end - begin = elements * element size, no overlap, no hole (the format
 * forbids both), unique names, at most LT_MAX_DIMS dimensions. Data is not aligned: read it with
 * memcpy or lt_convert. */
#ifndef LT_MODEL_SAFETENSORS_H
#define LT_MODEL_SAFETENSORS_H

#include <jansson.h>

/* Weights of a Hugging Face folder: one file, or the index of several. */
#define LT_SAFETENSORS_SINGLE "model.safetensors"
#define LT_SAFETENSORS_INDEX  "model.safetensors.index.json"

#include "base/file.h"
#include "lateen/tensor.h"

typedef struct {
    const char *name;
    lt_dtype dtype;
    int n_dims;
    int64_t shape[LT_MAX_DIMS];
    const unsigned char *data; /* It points into the map. */
    size_t bytes;
} lt_safetensor;

typedef struct {
    lt_file_map map;
    json_t *header;         /* Owns the names. */
    lt_safetensor *tensors; /* Sorted by name. */
    size_t n_tensors;
} lt_safetensors;

LT_MUST_USE lt_err lt_safetensors_open(lt_safetensors *out, const char *path);
/* From memory that the caller keeps; messages begin with name. */
LT_MUST_USE lt_err lt_safetensors_parse(lt_safetensors *out, const void *data, size_t bytes,
                                        const char *name);
void lt_safetensors_close(lt_safetensors *s);
const lt_safetensor *lt_safetensors_find(const lt_safetensors *s, const char *name);
const char *lt_safetensors_metadata(const lt_safetensors *s, const char *key); /* NULL: none. */

/* One tensor to write. fill(ctx, dst, first, count) puts elements [first, first + count)
 * (row-major, in dtype) at dst. */
typedef struct {
    const char *name;
    lt_dtype dtype;
    int n_dims;
    int64_t shape[LT_MAX_DIMS];
    lt_err (*fill)(const void *ctx, void *dst, int64_t first, int64_t count);
    const void *ctx;
} lt_safetensor_out;

/* fill for tensors that lie contiguous in memory in the same dtype: ctx is a
 * lt_safetensor_memory. */
typedef struct {
    const void *data;
    size_t elem_bytes;
} lt_safetensor_memory;
lt_err lt_safetensor_fill_memory(const void *ctx, void *dst, int64_t first, int64_t count);

/* Write path aside, sync, rename. metadata: JSON object of strings, or NULL. *xxh64 (optional) gets
 * XXH3-64 of the whole file. */
LT_MUST_USE lt_err lt_safetensors_write(const char *path, const lt_safetensor_out *tensors,
                                        size_t n_tensors, const json_t *metadata, uint64_t *xxh64);

#endif
