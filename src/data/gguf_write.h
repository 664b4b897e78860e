/* gguf_write.h: writes a GGUF file (version 3): metadata is collected in memory, and a callback
 * supplies each tensor in pieces while the file is written.
 *
 *     lt_gguf_out *o = NULL;
 *     LT_TRY(lt_gguf_out_open(&o));
 *     lt_gguf_out_str(o, "general.architecture", "llama");
 *     lt_gguf_out_tensor(o, "token_embd.weight", 2, dims, LT_GGML_Q8_0, fill, ctx);
 *     err = lt_gguf_out_write(o, path);             path.tmp, synced, renamed
 *     lt_gguf_out_close(o);
 *
 * A failure to allocate in the calls before is returned by lt_gguf_out_write. */
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
/* Copy an entry of another file unchanged. */
void lt_gguf_out_copy(lt_gguf_out *o, const lt_gguf_kv *kv);
/* Arrays: n values of F32 or I32 in one call; for STR call begin, then add n times. */
void lt_gguf_out_array(lt_gguf_out *o, const char *key, lt_gguf_type elem, const void *values,
                       uint64_t n);
void lt_gguf_out_strings(lt_gguf_out *o, const char *key, uint64_t n);
void lt_gguf_out_string(lt_gguf_out *o, const char *text, size_t bytes);

/* Write the encoded rows [first, first + n) of the tensor to dst; a row is dims[0] elements. */
typedef lt_err lt_gguf_fill(const void *ctx, void *dst, uint64_t first, uint64_t n);
/* dims[0] is the fastest. name is copied, ctx must live until write. */
void lt_gguf_out_tensor(lt_gguf_out *o, const char *name, int n_dims, const uint64_t *dims,
                        lt_ggml_type type, lt_gguf_fill *fill, const void *ctx);

LT_MUST_USE lt_err lt_gguf_out_write(lt_gguf_out *o, const char *path);

#endif
