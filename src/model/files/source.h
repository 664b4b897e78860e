/* source.h: sources of weights behind one interface: find the bytes of a tensor by name.
 *
 *   Hugging Face folder   model.safetensors; without it, the shards that
 *                         model.safetensors.index.json names
 *   GGUF                  one file
 *   llama2.c .bin         versions 0 and 1; shown under GGUF's tensor names
 */
#ifndef LT_MODEL_SOURCE_H
#define LT_MODEL_SOURCE_H

#include "data/gguf.h"
#include "model/family.h"
#include "model/files/safetensors.h"

/* One stored tensor, row-major: shape[0] is the slowest dimension. Its rows are whole numbers of
 * blocks. */
typedef struct {
    lt_dtype type;
    int n_dims;
    int64_t shape[LT_MAX_DIMS];
    const unsigned char *data;
    const unsigned char *scales; /* MXFP4 as transformers stores it (tensor/block.h), or NULL. */
} lt_weight;

typedef struct {
    char *name;
    lt_weight weight;
} lt_named_weight;

typedef struct lt_source {
    const char *path;       /* For messages; the caller keeps it. */
    lt_safetensors *shards; /* Hugging Face */
    size_t n_shards;
    lt_gguf *gguf;   /* GGUF */
    lt_file_map bin; /* llama2.c */
    lt_named_weight *bin_weights;
    size_t n_bin_weights;
    const lt_name_row *names; /* The source's names of our parameters. */
    int n_names;
    const char *embed_as_head;  /* The embedding's name, if the file has it under the head's. */
    const char *prefix;         /* Some files omit this prefix of the names; NULL: none do. */
    const char *wrapped_prefix; /* Some files have this before the names; NULL: none do. */
    /* Rows of q and k are in pairs (2i, 2i+1), which must be separated into halves. */
    bool rope_interleaved;
    bool norms_plus_one; /* GGUF keeps gemma's 1 + gain. */
    bool new_scores;     /* The model has a score head that the source has not. */
} lt_source;

/* Open a source and fill the spec from its metadata. Free with lt_weight_source_close. */
LT_MUST_USE lt_err lt_weight_source_open(lt_source *out, lt_model_spec *spec, const char *path);
void lt_weight_source_close(lt_source *s);
/* If the options (NULL: none) ask for a score head and the source has none, the spec gets one. */
void lt_weight_source_add_scores(lt_source *s, lt_model_spec *spec, const lt_model_options *o);
/* Bytes of the tensors in the mapped files, which become resident when all are read. */
size_t lt_weight_source_bytes(const lt_source *s);

/* Whether some tensors of a file have block types. Never for a folder. */
LT_MUST_USE lt_err lt_weight_source_has_blocks(bool *out, const char *path);

/* Whether most of its bytes are fp32 numbers. */
LT_MUST_USE lt_err lt_weight_source_is_fp32(bool *out, const char *path);

/* The file's mixture of types, "Q4_K_M", if it names one; otherwise the type with most bytes. */
#define LT_SOURCE_TYPE_BYTES 16
LT_MUST_USE lt_err lt_weight_source_type(char out[LT_SOURCE_TYPE_BYTES], const char *path);

/* False: there is no such tensor. UNSUPPORTED: its type cannot be decoded. */
LT_MUST_USE lt_err lt_source_find(const lt_source *s, const char *name, lt_weight *out,
                                  bool *found);

/* The tensor of exactly this name in the shards of a Hugging Face folder; NULL: there is none. */
const lt_safetensor *lt_source_shard_tensor(const lt_source *s, const char *name);

/* Blocks under `name`, which ends in _blocks, and their scales, as one matrix. */
LT_MUST_USE lt_err lt_source_find_mxfp4(const lt_source *s, const char *name, lt_weight *out,
                                        bool *found);

#define LT_MTP_LAYERS "model.mtp_layers." /* Tensors that only drafts need: draft_head.h. */
/* The number of tensors of a Hugging Face folder that fill no parameter of the model and are not
 * known to be ignored; *first: the first of them. */
size_t lt_source_unread(const lt_source *s, const lt_model_spec *spec, const lt_param_table *table,
                        const char **first);

/* The parts of lt_weight_source_open. */
LT_MUST_USE lt_err lt_gguf_read_spec(lt_model_spec *spec, const lt_gguf *g, lt_source *s);
#define LT_GGUF_ENDS "lateen.eos_token_ids" /* I32: lt_model_spec's eos, in order. */
/* The scale of attention that readers of GGUF use, which has no key for it: 1 / sqrt(D), except for
 * Gemma 3 27B, which is recognised by its 62 layers and has 1 / sqrt(width / heads). */
float lt_gguf_attn_scale(const lt_model_spec *spec);
LT_MUST_USE lt_err lt_llama2c_open(lt_source *s, lt_model_spec *spec, const char *path);
extern const lt_name_row lt_gguf_names[];
extern const int lt_n_gguf_names;

#endif
