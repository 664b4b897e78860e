/* model.h: a transformer, described by a spec. A family (gpt2, llama, qwen2, qwen3, gemma2, gemma3,
 * apertus, mixtral, mistral, phi3, olmo2, smollm3, granite, qwen3_moe, gpt_oss, switch) is one row
 * of a table. Open weights or create random ones, run them, save them as a Hugging Face folder.
 *
 *     lt_model *m = NULL;
 *     lt_session *s = NULL;
 *     lt_model_open(&m, "SmolLM2.gguf", NULL);
 *     lt_session_open(&s, m, 1, 2048);
 *     lt_session_eval(s, 0, ids, n_ids, logits);     logits of the last position
 */
#ifndef LATEEN_MODEL_H
#define LATEEN_MODEL_H

#include <stdio.h>

#include "lateen/device.h"
#include "lateen/tensor.h"

typedef struct lt_model lt_model;
typedef struct lt_session lt_session;

#define LT_FAMILY_MAP(X) /* our name, model_type and architecture in config.json */                \
    X(GPT2, "gpt2", "GPT2LMHeadModel")                                                             \
    X(LLAMA, "llama", "LlamaForCausalLM")                                                          \
    X(QWEN2, "qwen2", "Qwen2ForCausalLM")                                                          \
    X(QWEN3, "qwen3", "Qwen3ForCausalLM")                                                          \
    X(GEMMA2, "gemma2", "Gemma2ForCausalLM")                                                       \
    X(GEMMA3, "gemma3_text", "Gemma3ForCausalLM")                                                  \
    X(APERTUS, "apertus", "ApertusForCausalLM")                                                    \
    X(MIXTRAL, "mixtral", "MixtralForCausalLM")                                                    \
    X(MISTRAL, "mistral", "MistralForCausalLM")                                                    \
    X(PHI3, "phi3", "Phi3ForCausalLM")                                                             \
    X(OLMO2, "olmo2", "Olmo2ForCausalLM")                                                          \
    X(SMOLLM3, "smollm3", "SmolLM3ForCausalLM")                                                    \
    X(GRANITE, "granite", "GraniteForCausalLM")                                                    \
    X(QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM")                                               \
    X(GPT_OSS, "gpt_oss", "GptOssForCausalLM")                                                     \
    X(SWITCH, "switch",                                                                            \
      "LateenSwitchForCausalLM") /* decoder-only top-1 Switch; transformers has no such class */

typedef enum {
#define LT_FAMILY_ENUM(name, type, arch) LT_FAMILY_##name,
    LT_FAMILY_MAP(LT_FAMILY_ENUM)
#undef LT_FAMILY_ENUM
        LT_FAMILY_COUNT
} lt_family;

typedef enum { LT_NORM_RMS, LT_NORM_LAYER } lt_norm_kind;
typedef enum { LT_POS_LEARNED, LT_POS_ROPE } lt_pos_kind;
/* How rotary frequencies are stretched, by transformers' rope_type; rope.c has the formulas. */
#define LT_ROPE_MAP(X)                                                                             \
    X(PLAIN, "default")                                                                            \
    X(LINEAR, "linear")                                                                            \
    X(LLAMA3, "llama3")                                                                            \
    X(YARN, "yarn")                                                                                \
    X(DYNAMIC, "dynamic") /* By the length of the text: NTK scaling beyond max_seq. */             \
    X(LONGROPE,                                                                                    \
      "longrope") /* By the length: rope_short up to rope_original_seq, else rope_long */          \
    X(PROPORTIONAL, "proportional")
typedef enum {
#define LT_ROPE_ENUM(name, type) LT_ROPE_##name,
    LT_ROPE_MAP(LT_ROPE_ENUM)
#undef LT_ROPE_ENUM
        LT_ROPE_COUNT
} lt_rope_scaling;
#define LT_MAX_ROPE_FACTORS 256 /* longrope has a factor for each rotating pair of a head. */

#define LT_MAX_LAYERS      256
#define LT_SEPARATOR_BYTES 64 /* Of the text after a step, including the terminating 0. */

/* Tokens that end a text, each once; models list one to a few. */
#define LT_MAX_ENDS 32
typedef struct {
    int32_t ids[LT_MAX_ENDS];
    int n;
} lt_ends;

bool lt_ends_has(const lt_ends *e, int64_t id);
bool lt_ends_add(lt_ends *e, int64_t id); /* False if the list is full. */

/* Everything that determines the computation. Filled from config.json, GGUF metadata or a recipe;
 * checked by lt_model_spec_check. */
typedef struct {
    lt_family family;
    int64_t n_layers, width;                /* L, C */
    int64_t n_heads, n_kv_heads, head_dim;  /* H, G, D; H * D need not be C */
    int64_t ffn_width, vocab_size, max_seq; /* F (of one expert when MoE), V */
    lt_norm_kind norm;
    float norm_eps;
    float norm_gain_offset; /* 1 for gemma: y = (1 + gain) x^ */
    bool no_pre_norms;      /* olmo2: no norm before attention or before the MLP. */
    bool post_norms;        /* gemma, olmo2: a norm after attention and after the MLP. */
    bool qk_norm;           /* RMSNorm of each head of q and k, before RoPE. */
    bool qk_norm_whole;     /* RMSNorm spans all heads of q, and all heads of k (olmo2). */
    int act;                /* lt_act_kind of tensor/ops.h */
    bool gated;
    float swiglu_alpha, swiglu_limit; /* Numbers of the clamped SwiGLU (gpt_oss). */
    bool qkv_bias, attn_out_bias, mlp_bias;
    bool tied; /* Output head = embedding. */
    /* Values that a score head gives for each token instead of logits: num_labels of transformers'
     * *ForSequenceClassification. 0: a language model. */
    int64_t n_scores;
    /* True: the head judges each token (*ForTokenClassification), or, in a process reward model,
     * each end of a step; false: the text as a whole, at its last token. A head of tokens has a
     * bias unless token_classification_bias is false. */
    bool token_scores, score_bias;
    /* A head of two layers (*ForProcessRewardModel): n_scores is the width of the first, and the
     * head gives score_ends values for a token, W ReLU(n_scores values) + b. Such a model is only
     * served. 0: a head of one layer. */
    int64_t score_ends;
    /* Of a process reward model: the text after each step, at whose last token the step's score is
     * read; config.json's step_separator, a key of Lateen's. "": "\n", as in TRL's PRMTrainer. */
    char step_separator[LT_SEPARATOR_BYTES];
    float embed_scale;        /* gemma: sqrt(C), else 1. */
    bool embed_scale_rounded; /* gemma: the factor is rounded to the weights' type. */
    float residual_scale; /* Factor for a block's output in the residual stream (granite); 0: 1. */
    float logit_divisor;  /* Logits are divided by it, before the softcap (granite); 0: 1. */
    /* Each head has a learned logit in the softmax's denominator (gpt_oss). */
    bool sinks;
    float attn_scale;                  /* 0: 1 / sqrt(D). */
    bool attn_scale_by_layer;          /* gpt2: it is divided by the layer's number, from 1. */
    float attn_softcap, final_softcap; /* 0: none. */
    lt_pos_kind pos;
    /* rope_theta_local: of sliding-window layers (gemma3); 0: the same. */
    double rope_theta, rope_theta_local;
    lt_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq, rope_high_freq, rope_original_seq;
    double rope_beta_fast, rope_beta_slow; /* yarn */
    /* yarn: the correction range is rounded to whole dimensions. */
    bool rope_truncate;
    double rope_attention_factor; /* Factor of cosines and sines; 0: 1. */
    /* Dimensions of a head that rotate, from the first; 0: all. */
    int64_t rope_dim;
    float rope_short[LT_MAX_ROPE_FACTORS], rope_long[LT_MAX_ROPE_FACTORS]; /* longrope */
    /* longrope: when a text grows beyond rope_original_seq token by token, it is evaluated again
     * from its start, as transformers' Phi-3 does. */
    bool rope_runs_again;
    bool no_rope[LT_MAX_LAYERS]; /* Layers without RoPE (smollm3). */
    int64_t window;              /* Sliding window of local layers; 0: none. */
    /* Layer i is global when (i + 1) % window_every == 0, else local; 0: all local when window >
     * 0. */
    int64_t window_every;
    bool no_window[LT_MAX_LAYERS]; /* Layers that see all tokens, if no period gives them. */
    int64_t n_experts, top_k;      /* 0: dense. */
    bool dense[LT_MAX_LAYERS];     /* Layers without experts in a model with experts (qwen3_moe), */
    int64_t dense_ffn_width;       /* and the width of their MLP; 0: ffn_width. */
    bool moe_normalise;            /* Divide the K probabilities by their sum (mixtral). */
    bool router_bias;              /* The router has a bias; mlp_bias is for the experts. */
    /* 0: dropless; else an expert takes at most ceil(capacity * R * K / E) rows. */
    double moe_capacity;
    float moe_aux_coef, moe_z_coef;
    int64_t bos_id, pad_id; /* -1: none. */
    /* eos_token_id, a number or a list: each of them ends a text. Training appends the first to
     * documents. */
    lt_ends eos;
    float init_std; /* 0: 0.02 */
} lt_model_spec;

/* What mixes the tokens of a layer. */
typedef enum { LT_MIXER_ATTENTION } lt_mixer;

/* The rotary table that a layer reads. LOCAL: that of rope_theta_local, if it is set. */
typedef enum { LT_LAYER_ROPE_NONE, LT_LAYER_ROPE_MAIN, LT_LAYER_ROPE_LOCAL } lt_layer_rope;

/* One layer, fully resolved. The model, the engine, the planner and the converters read this
 * record, which is the only place with differences between layers. */
typedef struct {
    lt_mixer mixer;
    int64_t n_heads, n_kv_heads;
    int64_t head_dim, value_dim; /* Size of a head of q and k; of a head of v. */
    float attn_scale, attn_softcap;
    int64_t window; /* 0: a token attends to all tokens before it. */
    lt_layer_rope rope;
    bool sinks, qkv_bias, attn_out_bias;
    lt_norm_kind norm; /* Kind of the pre- and post-norms; the norms of q and k are RMSNorm. */
    float norm_eps, norm_gain_offset;
    bool pre_norms, post_norms, qk_norm, qk_norm_whole;
    int act; /* lt_act_kind */
    bool gated, mlp_bias;
    float swiglu_alpha, swiglu_limit;
    int64_t ffn_width;        /* Width of one expert in an MoE layer. */
    int64_t n_experts, top_k; /* 0: dense. */
    bool moe_normalise, router_bias;
    double moe_capacity;
    float residual_scale; /* Factor for a block's output in the residual stream. */
} lt_layer_spec;
/* The record of layer `layer`, in [0, n_layers). */
lt_layer_spec lt_model_layer(const lt_model_spec *spec, int64_t layer);

const char *lt_family_name(lt_family family);
/* Numbers that the output head gives for a token: n_scores, or vocab_size logits. */
int64_t lt_model_spec_outputs(const lt_model_spec *spec);
/* Number of values of a score head per token: score_ends, or n_scores. */
int64_t lt_model_spec_says(const lt_model_spec *spec);
/* Replace the output head of a spec by a score head of n values, for texts or for tokens. */
void lt_model_spec_add_scores(lt_model_spec *spec, int64_t n, bool token_scores);
/* Whether a pass gives the value of the head at a label (a reward model) instead of the label's
 * log-probability. */
bool lt_model_spec_gives_values(const lt_model_spec *spec);
/* Whether it is a process reward model, with two values per token, the second for "good". */
bool lt_model_spec_is_process(const lt_model_spec *spec);
/* Refuse (UNSUPPORTED) to write text, or to compute its probability, with a model that has a score
 * head; `what` begins the message. */
LT_MUST_USE lt_err lt_model_spec_writes(const lt_model_spec *spec, const char *what);
/* Index of the token of ids (n) at which a score head is read, as transformers does: the last one
 * that is not pad_id; 0 if all are. */
int64_t lt_model_score_at(const lt_model_spec *spec, const int32_t *ids, int64_t n);
int64_t lt_model_spec_eos(const lt_model_spec *spec); /* The first of eos; -1: none. */

/* Refuse a spec that contradicts itself; the message names the two numbers. */
LT_MUST_USE lt_err lt_model_spec_check(const lt_model_spec *spec);

/* Read and write config.json of a Hugging Face folder. An unknown model_type is UNSUPPORTED; the
 * message lists the known ones. */
LT_MUST_USE lt_err lt_model_spec_read(lt_model_spec *out, const char *config_path);
LT_MUST_USE lt_err lt_model_spec_write(const lt_model_spec *spec, lt_dtype dtype,
                                       const char *config_path);

/* Tokens of the longest text for which the model is made: max_seq, or its factor times that with
 * dynamic RoPE. */
int64_t lt_model_spec_context(const lt_model_spec *spec);
/* Fails if lt_model_spec_write would, so that a caller can check this before training. */
LT_MUST_USE lt_err lt_model_spec_writable(const lt_model_spec *spec);

int64_t lt_model_spec_params(const lt_model_spec *spec); /* All parameters, a tied head once. */
/* Parameters that one token uses: top_k experts, no input embedding. */
int64_t lt_model_spec_active_params(const lt_model_spec *spec);
/* Training FLOPs per token: 6 * active + 12 * L * H * D * seq (convention "6N + 12LHDT", full
 * attention). */
double lt_model_spec_train_flops(const lt_model_spec *spec, int64_t seq);

/* How to hold the weights. */
typedef struct {
    lt_dtype dtype; /* Compute type: F32 (default) or BF16 (with an F32 master when trainable). */
    bool trainable; /* Keep the F32 master. */
    /* The device that holds the weights and computes. It belongs to the caller and must outlive the
     * model. NULL: the model opens its own CPU device. */
    lt_device *device;
    /* Matrices stay in the types of their file (GGUF's blocks, BF16, F16, F32), mapped where
     * possible: for inference, not for training or saving. dtype becomes F32. On a GPU it becomes
     * BF16, and only block types stay as stored. */
    bool stored;
    /* With `stored`: products use the decoded weights, some rows at a time, instead of numbers of
     * 8 bits, so adapters can be trained beside them. On the host, any type that is decoded stays
     * as it is. */
    bool decoded;
    /* On a GPU, lt_model_open returns once memory for the weights is assigned, and they are copied
     * in the background; call lt_model_wait before using them. */
    bool load_async;
    /* Block type of the matrices of a model that is created with `stored`, or opened with
     * `decoded`: they are encoded in it where their rows are whole blocks. F32: opened, they stay
     * as they are stored. */
    lt_dtype stored_as;
    /* The part of the model to hold (model/params.h); NULL: all of it. Only that part is
     * initialised or read. Must live until the model is open. */
    const struct lt_partition *partition;
    /* For lt_model_alloc: weights have no memory; the caller provides it, unit by unit. */
    bool elsewhere;
    /* For lt_model_open: a model without a score head gets one of this many values instead of its
     * output head, drawn from N(0, init_std) with score_seed. 0: the model is unchanged. */
    int64_t n_scores;
    bool token_scores; /* The new head gives values per token, with a bias of 0. */
    uint64_t score_seed;
} lt_model_options;

/* Open a Hugging Face folder, a .gguf, or a llama2.c .bin. options NULL: F32, not trainable. Free
 * with lt_model_close. */
LT_MUST_USE lt_err lt_model_open(lt_model **out, const char *path, const lt_model_options *options);
/* Wait until all weights are loaded. A failure to load them is returned once. */
LT_MUST_USE lt_err lt_model_wait(lt_model *m);

/* Random weights from a seed: N(0, init_std), output projections divided by sqrt(2 L), norms 1,
 * biases 0. */
LT_MUST_USE lt_err lt_model_create(lt_model **out, const lt_model_spec *spec,
                                   const lt_model_options *options, uint64_t seed);

/* Write config.json, generation_config.json and model.safetensors (several files above shard_bytes;
 * 0: 5 GB), for transformers to load. */
LT_MUST_USE lt_err lt_model_save(const lt_model *m, const char *folder, lt_dtype dtype,
                                 int64_t shard_bytes);
void lt_model_close(lt_model *m);
/* The local path of its tokenizer and template, if the caller of open gave it; else NULL. */
const char *lt_model_files(const lt_model *m);
const lt_model_spec *lt_model_get_spec(const lt_model *m);
/* Grows whenever training or a checkpoint changes the weights. */
uint64_t lt_model_version(const lt_model *m);

/* A set of n_seqs sequences of at most max_seq tokens with their key/value cache. Nothing is
 * allocated after open, except by lt_session_score and for the rotary table of a long call of a
 * model with dynamic RoPE. If the weights have changed since the last call, packed copies of them
 * are made anew; the keys and values of earlier tokens stay those of the old weights (truncate to
 * drop them). */
LT_MUST_USE lt_err lt_session_open(lt_session **out, const lt_model *m, int64_t n_seqs,
                                   int64_t max_seq);
void lt_session_close(lt_session *s);

/* Append n tokens to sequence seq and evaluate them. logits (V) F32 are those of the last position,
 * all_logits (n, V) those of each; either may be NULL. With a score head V is n_scores, and they
 * are the values of the head. An id outside [0, V) or a sequence over
 * max_seq is an error and leaves the sequence unchanged. */
LT_MUST_USE lt_err lt_session_eval(lt_session *s, int64_t seq, const int32_t *ids, int64_t n,
                                   float *logits);
LT_MUST_USE lt_err lt_session_eval_all(lt_session *s, int64_t seq, const int32_t *ids, int64_t n,
                                       float *all_logits);
/* The same, and score labels (n), one a position: loss (n) = -log softmax(logits)[label] in nats,
 * best (n) is the most likely id (the lowest of ties). The logits stay on the device; the first
 * call allocates a buffer for some rows of them. */
LT_MUST_USE lt_err lt_session_score(lt_session *s, int64_t seq, const int32_t *ids, int64_t n,
                                    const int32_t *labels, float *loss, int32_t *best);
/* One token for each of n sequences at once: ids[i] goes to seqs[i]; logits (n, V). */
LT_MUST_USE lt_err lt_session_step(lt_session *s, const int64_t *seqs, const int32_t *ids,
                                   int64_t n, float *logits);
int64_t lt_session_length(const lt_session *s, int64_t seq);
/* Keep the first `length` tokens. */
void lt_session_truncate(lt_session *s, int64_t seq, int64_t length);

#endif
