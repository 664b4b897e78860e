/* gguf_write.h: writing a GGUF file (version 3): metadata is collected in memory, tensors are asked
 * for a piece at a time while the file is written.
 *
 *     lt_gguf_out *o = NULL;
 *     LT_TRY(lt_gguf_out_open(&o));
 *     lt_gguf_out_str(o, "general.architecture", "llama"); a failure (out of memory) is kept and
 *     comes with write lt_gguf_out_tensor(o, "token_embd.weight", 2, dims, LT_GGML_Q8_0, fill,
 *     ctx);
 *     err = lt_gguf_out_write(o, path);                           path.tmp, synced, renamed
 *     lt_gguf_out_close(o); */
#ifndef LT_DATA_GGUF_WRITE_H
#define LT_DATA_GGUF_WRITE_H

#include "data/gguf.h"

typedef struct lt_gguf_out lt_gguf_out;

LT_MUST_USE lt_err lt_gguf_out_open(lt_gguf_out **out);
void lt_gguf_out_close(lt_gguf_out *o);

void lt_gguf_out_str(lt_gguf_out *o, const char *key, const char *value);
void lt_gguf_out_u32(lt_gguf_out *o, const char *key, int64_t value);
void lt_gguf_out_i32(lt_gguf_out *o, const char *key, int64_t value);
void lt_gguf_out_f32(lt_gguf_out *o, const char *key, double value);
void lt_gguf_out_bool(lt_gguf_out *o, const char *key, bool value);
/* An entry of another file, as it is. */
void lt_gguf_out_copy(lt_gguf_out *o, const lt_gguf_kv *kv);
/* An array of F32, I32: n values; of STR: begin, then n times add. */
void lt_gguf_out_array(lt_gguf_out *o, const char *key, lt_gguf_type elem, const void *values,
                       uint64_t n);
void lt_gguf_out_strings(lt_gguf_out *o, const char *key, uint64_t n);
void lt_gguf_out_string(lt_gguf_out *o, const char *text, size_t bytes);

/* Rows [first, first + n) of the tensor, encoded, to dst; a row is dims[0] elements. */
typedef lt_err lt_gguf_fill(const void *ctx, void *dst, uint64_t first, uint64_t n);
/* dims[0] is the fastest. name is copied, ctx must live until write. */
void lt_gguf_out_tensor(lt_gguf_out *o, const char *name, int n_dims, const uint64_t *dims,
                        lt_ggml_type type, lt_gguf_fill *fill, const void *ctx);

LT_MUST_USE lt_err lt_gguf_out_write(lt_gguf_out *o, const char *path);

#endif
