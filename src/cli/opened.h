/* opened.h: opens a model and its tokenizer, for generate, chat, eval and serve. */
#ifndef LT_CLI_OPENED_H
#define LT_CLI_OPENED_H

#include "base/file.h"
#include "base/option.h"
#include "lateen/generate.h"
#include "lateen/model.h"
#include "lateen/sampling.h"
#include "lateen/tokenizer.h"

typedef struct {
    lt_device *device; /* Device of the model. */
    lt_model *model;
    struct lt_lora *adapters; /* Adapters beside the model; NULL: none. */
    lt_tokenizer *tokenizer;
    char path[LT_PATH_BYTES]; /* Path of the model, or of adapters that have a tokenizer. */
} lt_opened;

/* How weights are held, in the order of the option's choices. STORED: in the types of the file,
 * with activations in F32. On a GPU GGUF's blocks stay as stored; all other weights and the
 * activations are BF16. */
typedef enum { LT_OPENED_STORED, LT_OPENED_F32, LT_OPENED_BF16 } lt_opened_dtype;

/* The task for which a model that comes with Lateen is best (models/README.md). */
typedef enum { LT_DEFAULT_WRITES, LT_DEFAULT_TALKS } lt_default_use;

/* The model that comes with Lateen for this use, or another one if that is missing: a GGUF in
 * models/ beside the binary or its parent folder, or in PREFIX/share/lateen/models. ARG: there is
 * none. */
LT_MUST_USE lt_err lt_opened_default_model(char out[LT_PATH_BYTES], lt_default_use use);

/* model_path: a Hugging Face folder, a GGUF, llama2.c's .bin, adapters (a PEFT folder, whose model
 * is opened too; STORED is then F32 for DoRA and score heads, and BF16 on a GPU), or the address of
 * one of these (hf://, s3://, https://); "": the model for text that comes with Lateen. lora:
 * adapters to open beside the model, in the same ways; they need not name this model; "": none.
 * tokenizer_path "": the model's own. device: its name (lateen/device.h). threads 0: all cores.
 * Free with lt_opened_close. */
LT_MUST_USE lt_err lt_opened_open(lt_opened *out, const char *model_path, const char *lora,
                                  const char *tokenizer_path, lt_opened_dtype dtype,
                                  const char *device, int64_t threads);
/* The same, but on a GPU the weights may still be loading when it returns: see lt_model_wait. */
LT_MUST_USE lt_err lt_opened_begin(lt_opened *out, const char *model_path, const char *lora,
                                   const char *tokenizer_path, lt_opened_dtype dtype,
                                   const char *device, int64_t threads);
/* The same for a server, which closes the model and the tokenizer itself. *out has the rest; close
 * it with lt_opened_close after the server. */
LT_MUST_USE lt_err lt_opened_give(lt_opened *out, lt_model **model, lt_tokenizer **tokenizer,
                                  const char *model_path, const char *lora,
                                  const char *tokenizer_path, lt_opened_dtype dtype,
                                  const char *device, int64_t threads);
void lt_opened_close(lt_opened *o);

/* Load the adapters of a PEFT folder or a GGUF file beside a model. Free with lt_lora_close, before
 * the model. merging: the model is F32 on the host, and weights that the folder holds completely
 * replace the model's. */
LT_MUST_USE lt_err lt_opened_adapters(struct lt_lora **out, lt_model *m, const char *path,
                                      bool merging);

/* The options with which this choice opens a model. */
lt_model_options lt_opened_options(lt_opened_dtype dtype, lt_device *device);

/* The types of the model's matrices, each once: "Q5_K, Q6_K". *blocks: some are GGUF's block types,
 * whose products round activations to 8 bits. */
#define LT_OPENED_TYPES_BYTES 160
void lt_opened_types(const lt_model *m, char out[LT_OPENED_TYPES_BYTES], bool *blocks);

/* Tokens per second after the first one; 0 if there is no second. */
double lt_generate_rate(const lt_generate_stats *st);
/* Tokens that a session needs for a prompt of prompt_bytes (a token has at least a byte) and
 * max_tokens more; at most the model's longest sequence. */
int64_t lt_generate_room(const lt_model *m, size_t prompt_bytes, int64_t max_tokens);

/* Fill obj again: the table's defaults, overridden by the generation defaults of the model's files,
 * overridden by the flags. Call it after the flags have been read once, because they name the model
 * and say whether its defaults are wanted. */
LT_MUST_USE lt_err lt_opened_defaults(const lt_model *m, const lt_option_table *t, void *obj,
                                      int argc, char **argv);

/* A prompt from a file, or from standard input if path is "-". Free with lt_prompt_free. */
LT_MUST_USE lt_err lt_prompt_read(char **out, const char *path);
void lt_prompt_free(char *prompt);

/* --logit-bias: "ID=BIAS,ID=BIAS" into s->bias, which the caller frees as *owned. ARG names the
 * entry and the error. */
LT_MUST_USE lt_err lt_bias_read(lt_sampling *s, lt_logit_bias **owned, const char *text);

/* Types of keys and values; the last four are names that vLLM and llama.cpp use for some of
 * them. */
#define LT_OPENED_CACHE_TYPES "model|fp32|bf16|fp16|fp8|q8_0|q4_0|auto|f32|f16|fp8_e4m3"
#define LT_OPENED_CACHE_DTYPE(choice)                                                              \
    ((const lt_dtype[]){LT_DTYPE_COUNT, LT_F32, LT_BF16, LT_F16, LT_F8_E4M3, LT_Q8_0, LT_Q4_0,     \
                        LT_DTYPE_COUNT, LT_F32, LT_F16, LT_F8_E4M3}[choice])
/* The same for keys or values alone. The first choice, "cache-dtype", means the value of that
 * option. */
#define LT_OPENED_CACHE_PART(choice, both)                                                         \
    ((choice) == 0 ? LT_OPENED_CACHE_DTYPE(both) : LT_OPENED_CACHE_DTYPE((choice)-1))

/* The options that all these verbs share. */
#define LT_OPENED_OPTIONS(X)                                                                       \
    LT_OPENED_MODEL_OPTIONS(X)                                                                     \
    X(ENUM, dtype, "dtype", "stored", 0, 0, "stored|fp32|bf16", LT_OPENED_DTYPE_HELP)
#define LT_OPENED_DTYPE_HELP                                                                       \
    "weights: as the file has them (on a GPU GGUF's blocks, the rest as BF16), or all in one type"
#define LT_OPENED_MODEL_OPTIONS(X)                                                                 \
    X(STR, model, "model", "", 0, 0, "PATH",                                                       \
      "Hugging Face folder, GGUF, llama2.c .bin, or PEFT folder of adapters; also "                \
      "hf://ORG/NAME, s3://, https://; empty: the model that comes with Lateen")                   \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "FILE", "tokenizer; empty: the model's own")          \
    X(STR, device, "device", "auto", 0, 1, LT_DEVICE_NAMES,                                        \
      "where to compute; cuda:N is GPU N; auto: the GPU if there is one")                          \
    X(I64, threads, "threads", "0", 0, 4096, "N", "threads; 0: all cores of this process")

#define LT_OPENED_LORA_OPTION(X)                                                                   \
    X(STR, lora, "lora", "", 0, 0, "PATH",                                                         \
      "adapters beside the model: a PEFT folder, a GGUF of adapters, or where to fetch one; "      \
      "empty: none")

#define LT_GENERATION_CONFIG_OPTION(X)                                                             \
    X(ENUM, generation_config, "generation-config", "auto", 0, 0, "auto|none",                     \
      "where sampling defaults come from; auto: the model's generation_config.json (a GGUF's "     \
      "general.sampling); none: that file is not read")
/* All options except the biases, which lt_bias_read reads. */
#define LT_SAMPLING_OF(o)                                                                          \
    (lt_sampling) {                                                                                \
        .temperature = (o)->temperature, .top_k = (o)->top_k, .top_p = (o)->top_p,                 \
        .min_p = (o)->min_p, .typical_p = (o)->typical_p, .repetition = (o)->repetition_penalty,   \
        .frequency = (o)->frequency_penalty, .presence = (o)->presence_penalty,                    \
        .seed = (uint64_t)(o)->seed                                                                \
    }
#define LT_SAMPLING_OPTIONS(X)                                                                     \
    LT_GENERATION_CONFIG_OPTION(X)                                                                 \
    X(F64, temperature, "temperature", "0.8", 0, 100, "", "0: always the most likely token")       \
    X(I64, top_k, "top-k", "0", 0, 1e9, "K", "choose among the K most likely; 0: all")             \
    X(F64, top_p, "top-p", "1", 0, 1, "P",                                                         \
      "choose among the most likely tokens whose probabilities sum to this")                       \
    X(F64, min_p, "min-p", "0", 0, 1, "P",                                                         \
      "drop tokens less than P times as likely as the most likely one")                            \
    X(F64, typical_p, "typical-p", "1", 0, 1, "P",                                                 \
      "choose among the most typical tokens whose probabilities sum to this; 1: all")              \
    X(F64, repetition_penalty, "repetition-penalty", "1", 0.001, 100, "X",                         \
      "divide the positive logits of tokens seen before by X, and multiply the negative ones; 1: " \
      "none")                                                                                      \
    X(F64, frequency_penalty, "frequency-penalty", "0", -1000, 1000, "X",                          \
      "subtract X from a token's logit for each time that it was generated")                       \
    X(F64, presence_penalty, "presence-penalty", "0", -1000, 1000, "X",                            \
      "subtract X from a token's logit if it was generated before")                                \
    X(STR, logit_bias, "logit-bias", "", 0, 0, "ID=BIAS,...",                                      \
      "add these numbers to the logits of these token ids")                                        \
    X(I64, seed, "seed", "0", 0, 9e18, "N",                                                        \
      "seed of the draws; the same seed gives the same text from generate, chat and serve")

#endif
