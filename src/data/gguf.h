/* gguf.h: the GGUF container (versions 2 and 3, little-endian): metadata and tensor directory.
 *
 *     lt_gguf *g = NULL;
 *     LT_TRY(lt_gguf_open(&g, path));                       maps the file read-only
 *     LT_TRY(lt_gguf_get_u64(g, "llama.block_count", &n));  typed metadata
 *     const lt_gguf_tensor *t = lt_gguf_tensor_find(g, "token_embd.weight");
 *     ... t->data, t->bytes, t->type, t->dims ...           points into the map
 *     lt_gguf_close(g);
 *
 * Everything is checked at open: each string, array and tensor lies inside the file, tensors are
 * aligned and do not overlap, keys and tensor names are unique. After open every pointer below is
 * safe to read over its stated length. The content of quantised blocks is not interpreted here. */
#ifndef LT_DATA_GGUF_H
#define LT_DATA_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"
#include "lateen/tensor.h"

#define LT_GGUF_MAX_DIMS 4

typedef enum {
    LT_GGUF_U8,
    LT_GGUF_I8,
    LT_GGUF_U16,
    LT_GGUF_I16,
    LT_GGUF_U32,
    LT_GGUF_I32,
    LT_GGUF_F32,
    LT_GGUF_BOOL,
    LT_GGUF_STR,
    LT_GGUF_ARRAY,
    LT_GGUF_U64,
    LT_GGUF_I64,
    LT_GGUF_F64,
    LT_GGUF_TYPE_COUNT
} lt_gguf_type;

/* Storage types of tensors: X(name, number in the file, elements per block, bytes per block).
 * Numbers 4, 5, 31 to 33 and 36 to 38 were withdrawn by ggml and are refused. */
#define LT_GGML_TYPE_MAP(X)                                                                        \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q5_1, 7, 32, 24)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q8_1, 9, 32, 36)                                                                             \
    X(Q2_K, 10, 256, 84)                                                                           \
    X(Q3_K, 11, 256, 110)                                                                          \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(Q8_K, 15, 256, 292)                                                                          \
    X(IQ2_XXS, 16, 256, 66)                                                                        \
    X(IQ2_XS, 17, 256, 74)                                                                         \
    X(IQ3_XXS, 18, 256, 98)                                                                        \
    X(IQ1_S, 19, 256, 50)                                                                          \
    X(IQ4_NL, 20, 32, 18)                                                                          \
    X(IQ3_S, 21, 256, 110)                                                                         \
    X(IQ2_S, 22, 256, 82)                                                                          \
    X(IQ4_XS, 23, 256, 136)                                                                        \
    X(I8, 24, 1, 1)                                                                                \
    X(I16, 25, 1, 2)                                                                               \
    X(I32, 26, 1, 4)                                                                               \
    X(I64, 27, 1, 8)                                                                               \
    X(F64, 28, 1, 8)                                                                               \
    X(IQ1_M, 29, 256, 56)                                                                          \
    X(BF16, 30, 1, 2)                                                                              \
    X(TQ1_0, 34, 256, 54)                                                                          \
    X(TQ2_0, 35, 256, 66)                                                                          \
    X(MXFP4, 39, 32, 17)

typedef enum {
#define LT_GGML_ENUM(name, number, elems, bytes) LT_GGML_##name = number,
    LT_GGML_TYPE_MAP(LT_GGML_ENUM)
#undef LT_GGML_ENUM
} lt_ggml_type;

/* A range of bytes inside the map. It is not 0-terminated and may contain any byte. */
typedef struct {
    const char *data;
    size_t bytes;
} lt_gguf_str;

/* One metadata entry. Scalars have n 1; arrays have n elements of type elem (STR elements are
 * walked with lt_gguf_str_next). data points to the first value and is not aligned. */
typedef struct {
    lt_gguf_str key;
    lt_gguf_type type;
    lt_gguf_type elem; /* Element type of an ARRAY; equals type otherwise. */
    uint64_t n;
    const unsigned char *data;
    size_t bytes; /* Bytes of all values together, string lengths included. */
} lt_gguf_kv;

/* One tensor. dims[0] is the fastest (ggml's ne[0]): a PyTorch weight (out, in) has dims {in, out}.
 * Unused dims are 1. */
typedef struct {
    lt_gguf_str name;
    int n_dims;
    uint64_t dims[LT_GGUF_MAX_DIMS];
    lt_ggml_type type;
    uint64_t n_elems;
    /* NULL if the file was opened without its tensor data (vocabulary only). */
    const unsigned char *data;
    uint64_t bytes;
} lt_gguf_tensor;

typedef struct lt_gguf {
    const char *name; /* The path, for messages. */
    uint32_t version;
    uint32_t alignment;
    size_t n_kvs, n_tensors;
    lt_gguf_kv *kvs;         /* In file order. */
    lt_gguf_tensor *tensors; /* In file order. */
    struct lt_gguf_index *index;
} lt_gguf;

/* Map and check a file. *out is written only on success; free with lt_gguf_close, which accepts
 * NULL. */
LT_MUST_USE lt_err lt_gguf_open(lt_gguf **out, const char *path);

/* The same for memory that the caller keeps alive; error texts begin with name. */
LT_MUST_USE lt_err lt_gguf_parse(lt_gguf **out, const void *data, size_t bytes, const char *name);
void lt_gguf_close(lt_gguf *g);

const lt_gguf_kv *lt_gguf_find(const lt_gguf *g, const char *key);             /* NULL if absent. */
const lt_gguf_tensor *lt_gguf_tensor_find(const lt_gguf *g, const char *name); /* NULL if absent. */

/* Typed scalars. Absent: NOT_FOUND, *out untouched. Another type, or a value outside the target's
 * range: FORMAT. Any integer type converts to another that holds the value; F32 and integers
 * convert to f64. */
LT_MUST_USE lt_err lt_gguf_get_u64(const lt_gguf *g, const char *key, uint64_t *out);
LT_MUST_USE lt_err lt_gguf_get_i64(const lt_gguf *g, const char *key, int64_t *out);
LT_MUST_USE lt_err lt_gguf_get_f64(const lt_gguf *g, const char *key, double *out);
LT_MUST_USE lt_err lt_gguf_get_bool(const lt_gguf *g, const char *key, bool *out);
LT_MUST_USE lt_err lt_gguf_get_str(const lt_gguf *g, const char *key, lt_gguf_str *out);

/* An array of exactly this element type (any length); NOT_FOUND or FORMAT as above. */
LT_MUST_USE lt_err lt_gguf_get_array(const lt_gguf *g, const char *key, lt_gguf_type elem,
                                     const lt_gguf_kv **out);

/* Element i of a numeric array (or a scalar, i = 0) as a double or an int64. The caller ensures i <
 * n and a numeric or BOOL element type; U64 above 2^63 - 1 is clamped. */
double lt_gguf_elem_f64(const lt_gguf_kv *kv, uint64_t i);
int64_t lt_gguf_elem_i64(const lt_gguf_kv *kv, uint64_t i);

/* Walk an array of strings: start with cursor 0, call n times. */
lt_gguf_str lt_gguf_str_next(const lt_gguf_kv *kv, size_t *cursor);

bool lt_gguf_str_is(lt_gguf_str s, const char *text);

/* "Q4_K", or NULL for an unknown number. */
const char *lt_ggml_type_name(uint32_t type);

/* Conversion to lt_dtype; false: there is no equivalent. The other direction succeeds for all
 * floating and block types. */
bool lt_ggml_type_dtype(uint32_t type, lt_dtype *out);
bool lt_ggml_type_of(lt_dtype dtype, lt_ggml_type *out);

/* Elements and bytes of one block; false for an unknown number. */
bool lt_ggml_type_block(uint32_t type, uint32_t *elems, uint32_t *bytes);

#endif
