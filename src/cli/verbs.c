/* verbs.c: the verbs, in the order in which a new user meets them. */
#include "cli/verbs.h"

#define VERB_MAP(X) /* X(function suffix, name, summary) */                                        \
    X(tokenize, "tokenize", "turn text into token ids, and back")                                  \
    X(tokenizer, "tokenizer", "train a tokenizer on text")                                         \
    X(data, "data", "make problems with worked steps, and check answers")                          \
    X(train, "train", "train a model from a recipe")                                               \
    X(generate, "generate", "continue a prompt")                                                   \
    X(chat, "chat", "talk to a model")                                                             \
    X(serve, "serve", "serve a model to many users over HTTP, by OpenAI's API and others")         \
    X(eval, "eval", "evaluate a model on text or on a benchmark task")                             \
    X(convert, "convert", "write a model as a Hugging Face folder or a GGUF file")                 \
    X(quantize, "quantize", "write a model with quantised weights, as a GGUF file")                \
    X(copy, "copy", "copy files between folders, object stores and the model hub")                 \
    X(sandbox, "sandbox", "run an untrusted program, without files and network")                   \
    X(align, "align", "tune selections of answers, find watermarks, compare methods")              \
    X(plan, "plan", "predict layout, time, price and failures of a run, or of a server")           \
    X(simulate, "simulate",                                                                        \
      "simulate months of a run with failures, restarts, repairs and spares")                      \
    X(launch, "launch", "start a verb as several ranks, on this machine or on several")            \
    X(submit, "submit",                                                                            \
      "submit a training run to Slurm, for a tenant, with as many GPUs as are free")               \
    X(agent, "agent", "keep snapshots of a run on a node; launch starts it")                       \
    X(comm, "comm", "explain why a run of several ranks failed")                                   \
    X(health, "health", "check whether this machine is fit to run on")                             \
    X(cluster, "cluster", "show nodes, jobs, runs and alerts of a cluster in the browser")         \
    X(doctor, "doctor", "report what this machine is and can do")                                  \
    X(bench, "bench", "time kernels, training and serving, beside other programs")                 \
    X(completion, "completion", "print words for shell completion")                                \
    X(tune, "tune", "find the fastest specialisation of a GPU kernel")

#define VERB_DECLARE(fn, name, summary)                                                            \
    int lt_verb_##fn(int argc, char **argv);                                                       \
    extern const lt_option_table lt_verb_##fn##_options;
VERB_MAP(VERB_DECLARE)

#define VERB_ROW(fn, name, summary) {name, summary, lt_verb_##fn, &lt_verb_##fn##_options},
const lt_verb lt_verbs[] = {VERB_MAP(VERB_ROW)};
const size_t lt_n_verbs = sizeof lt_verbs / sizeof *lt_verbs;
