/* family.h: the definition of a family: its constants, its config.json keys and its tensor names.
 * Each family is a row in families.c; only a new kind of block needs new code.
 *
 *     preset     the spec from which a family starts: what config.json does not say (gated or not,
 *                which norm) and the defaults of optional keys, as in transformers' configuration
 *                classes
 *     keys       config.json key <-> spec field, read by lt_model_spec_read and lt_model_spec_write
 *                alike
 *     names      foreign tensor name <-> rows of a parameter, read by the loader and the exporter
 *                alike
 * What a plain key cannot express (rope_parameters, layer_types) is in config_read.c and
 * config_rope.c, controlled by the row's flags. */
#ifndef LT_MODEL_FAMILY_H
#define LT_MODEL_FAMILY_H

#include <jansson.h>

#include "model/params.h"

#define LT_FOREIGN_NAME_BYTES 160

/* The rows of Lateen's fused parameter that a foreign tensor fills. */
typedef enum {
    LT_PART_ALL,
    LT_PART_Q,
    LT_PART_K,
    LT_PART_V,
    LT_PART_GATE,    /* Rows [0, F) of a gated up; none when not gated. */
    LT_PART_UP,      /* Rows [F, 2F); [0, F) when not gated. */
    LT_PART_XIELU_P, /* Element 0 of the xIELU scalars, or 1: */
    LT_PART_XIELU_N,
} lt_param_part;

/* Flags: how a foreign tensor differs from Lateen's. */
enum {
    LT_FORM_TRANSPOSED = 1,  /* The file keeps (in, out) (GPT-2's Conv1D). */
    LT_FORM_ALTERNATING = 2, /* Rows of gate and up alternate. */
    LT_FORM_MXFP4 = 4        /* 4-bit blocks and their scales (source.h); read, never written. */
};

/* One foreign name. "%L" stands for the layer, "%E" for the expert. A row does not apply if the
 * spec lacks its parameter (a bias, a tied head) or its part covers no rows. */
typedef struct {
    lt_param_kind kind;
    lt_param_part part;
    const char *name;
    unsigned form; /* LT_FORM_ */
} lt_name_row;

/* A tensor that holds no parameter: compared with ours if `write`, else skipped, when read. On
 * export it is written as this scalar if `write` (Apertus' beta and eps, which transformers keeps
 * as buffers); tensors without `write` are masks and tables of old checkpoints. */
typedef struct {
    const char *name;
    bool write;
    float value;
} lt_constant_row;

typedef enum {
    LT_KEY_I64,
    LT_KEY_ID,  /* A token id: null is -1, of a list the first. */
    LT_KEY_IDS, /* lt_ends: null, a token id or a list of them. */
    LT_KEY_F32,
    LT_KEY_F64,
    LT_KEY_BOOL,
    LT_KEY_ACT,    /* lt_act_kind by name. */
    LT_KEY_FACTOR, /* F32 above 0. */
    LT_KEY_CAP,    /* F32 above 0; null: 0, none. */
    /* F32: 1 / sqrt(the number); absent: of 256 (gemma's query_pre_attn_scalar). */
    LT_KEY_INV_SQRT,
    LT_KEY_SCALED, /* F32: true, which is not written, leaves the field, false makes it 1. */
} lt_key_type;

typedef struct {
    const char *key;
    lt_key_type type;
    size_t offset; /* Offset of the field in lt_model_spec. */
    bool required;
    /* Another key for the same field, read if the file lacks the first; a file with both must not
     * contradict itself. NULL: none. */
    const char *alias;
} lt_config_key;

typedef enum {
    LT_WINDOW_NONE,     /* The family has no sliding windows. */
    LT_WINDOW_ALL,      /* sliding_window: every layer (mixtral, mistral, phi3). */
    LT_WINDOW_OPTIONAL, /* layer_types, if use_sliding_window (qwen). */
    LT_WINDOW_SWITCHED, /* sliding_window: every layer, if use_sliding_window (qwen3_moe). */
    /* layer_types, or every sliding_window_pattern-th layer is global (gemma). */
    LT_WINDOW_PATTERN,
} lt_window_keys;

/* Where config.json has the rotary embedding's parameters. */
typedef enum {
    LT_ROPE_KEYS_PLAIN,
    LT_ROPE_KEYS_BY_TYPE, /* An object for each type of layer (gemma3). */
    /* A part of a head may rotate; longrope or nothing; the original context is beside the
     * object. */
    LT_ROPE_KEYS_PHI3,
} lt_rope_keys;

/* The windows that an architecture of GGUF can express. */
typedef enum {
    LT_GGUF_WINDOW_ALL,    /* The same in every layer. */
    LT_GGUF_WINDOW_NONE,   /* None: the reader of that name has no windows. */
    LT_GGUF_WINDOW_PERIOD, /* Every n-th layer sees all. */
    LT_GGUF_WINDOW_KNOWN,  /* The preset's period, which the reader knows. */
} lt_gguf_window;

/* What llama.cpp does not read in files of an architecture (tools/diff_llama_cpp.py). */
enum {
    LT_GGUF_UNREAD_ROPE = 1, /* rope_freqs, rope_factors_*: of Llama-3's scaling and longrope. */
    LT_GGUF_UNREAD_OUT_BIAS = 2, /* The bias of attention's output. */
    LT_GGUF_UNREAD_MLP_BIAS = 4,
    LT_GGUF_UNREAD_OUTPUT = 8, /* An output head of its own. */
    LT_GGUF_UNREAD_HEAD = 16,  /* Heads whose sizes do not add up to the width. */
    LT_GGUF_UNREAD_WINDOW = 32
};

/* The family in llama.cpp. */
typedef struct {
    const char *architecture; /* NULL: llama.cpp does not have it. */
    unsigned unread;          /* LT_GGUF_UNREAD_*; it opens no file with any but a window. */
    /* The family that the same name means if there are experts, or a window; 0: none. */
    lt_family with_experts, with_window;
    lt_gguf_window window;
    bool pairs;               /* Rows of q and k are ordered for a rotation of neighbours. */
    bool fused_qkv, fused_up; /* One tensor of q, k and v; of gate and up, under up's name. */
    bool expert_ffn;          /* expert_feed_forward_length gives the width of an expert. */
    bool normalised;          /* Experts' weights are always divided by their sum. */
    bool scales;              /* Embedding, residual, attention and logit scales. */
    bool needs_output;        /* output.weight is present even if the head is tied. */
    bool needs_out_bias;      /* The bias of attention's output is present. */
    bool norm2_is_post;       /* The MLP's norm has the name of the norm after attention. */
    int64_t no_rope_every;    /* Every n-th layer does not rotate, which the reader knows. */
    bool final_cap, attn_cap; /* It has these softcaps; the second always. */
    int64_t by_width_layers;  /* With this many layers, attention's scale is 1 / sqrt(C / H). */
} lt_gguf_traits;

typedef struct {
    const char *model_type, *architecture;
    const char *alias; /* A model_type whose models are these; NULL: none. */
    /* A model_type for texts and pictures, whose text_config is of this family, without what the
     * preset has; its files put wrapped_prefix before each name. NULL: none. */
    const char *wrapper, *wrapped_prefix;
    /* Start of the name of the class with a score head; NULL: that of architecture. */
    const char *score_start;
    lt_model_spec preset;
    const lt_config_key *keys;
    int n_keys;
    const lt_name_row *names;
    int n_names;
    const lt_constant_row *constants;
    int n_constants;
    /* Some files omit this prefix of the names ("transformer.", "model."). */
    const char *prefix;
    lt_window_keys window_keys;
    /* What transformers assumes of a file that uses a window, but lacks sliding_window or
     * max_window_layers: its size, and how many of the first layers see all tokens. */
    int64_t used_window, used_after;
    bool window_pattern_key; /* sliding_window_pattern is read if there are no layer_types. */
    lt_rope_keys rope_keys;
    bool dense_keys;      /* mlp_only_layers, decoder_sparse_step and intermediate_size are read. */
    bool no_rope_keys;    /* no_rope_layers and no_rope_layer_interval are read. */
    bool gelu_new;        /* The name of gelu_pytorch_tanh. */
    bool ffn_four_widths; /* intermediate_size is 4 C unless it is given. */
    bool own_token_head;  /* Its class for token classification has other names; not read. */
    bool mtp_layers;      /* Layers of multi-token prediction are read, as MiMo has them. */
    bool lora_experts;    /* Adapters name all experts at once: mlp.experts.gate_up_proj. */
    lt_gguf_traits gguf;
} lt_family_row;

const lt_family_row *lt_family_get(lt_family family);

/* Fill a spec from a parsed config.json; `what` names the file in messages. */
LT_MUST_USE lt_err lt_config_read(lt_model_spec *out, const json_t *config, const char *what);

/* Treatment of a key (config_keys.c): read, ignored because it has no effect, or refused unless it
 * has the value that stands for "no". */
typedef enum {
    LT_CONFIG_UNKNOWN,
    LT_CONFIG_READ,
    LT_CONFIG_PASSED,
    LT_CONFIG_REFUSED
} lt_config_use;
lt_config_use lt_config_key_use(lt_family family, const char *key);
/* Refuse values that Lateen does not support; warn of unknown keys. */
LT_MUST_USE lt_err lt_config_check_keys(lt_family family, const json_t *config, const char *what);

/* Read and write the rotary embedding (config_rope.c); head and context are known by then. lost:
 * the first field in which b, which was read back, differs from a. */
LT_MUST_USE lt_err lt_config_read_rope(lt_model_spec *spec, const json_t *config, const char *what);
void lt_config_write_rope(const lt_model_spec *spec, json_t *config);
const char *lt_config_rope_lost(const lt_model_spec *a, const lt_model_spec *b);

/* The ids under a key, a number or a list; *out is unchanged if it is absent. */
LT_MUST_USE lt_err lt_config_ends(lt_ends *out, const json_t *config, const char *key,
                                  const char *what);
/* The shortest decimal that reads back as the same float. */
json_t *lt_config_float(float x);
/* null, the id, or the list of them. */
json_t *lt_config_ends_json(const lt_ends *e);

/* Rows [*from, *from + *count) of a parameter's first non-expert dimension that a part covers;
 * count 0: it does not apply. */
void lt_part_rows(const lt_model_spec *spec, const lt_param *param, lt_param_part part,
                  int64_t *from, int64_t *count);

/* The foreign name with layer and expert put in, into out. */
void lt_foreign_name(char out[LT_FOREIGN_NAME_BYTES], const char *pattern, int64_t layer,
                     int64_t expert);

/* The architecture of a model with a score head ends in one of these instead of ForCausalLM: the
 * first for scores of a text, the second for scores of each token. */
#define LT_SCORE_ARCHITECTURE       "ForSequenceClassification"
#define LT_TOKEN_SCORE_ARCHITECTURE "ForTokenClassification"

/* Derive what a config may leave out: head_dim, n_kv_heads, GPT-2's ffn_width. */
void lt_model_spec_derive(lt_model_spec *spec);

#endif
