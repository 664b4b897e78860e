/* verbs.c: the verbs, in the order a newcomer meets them. */
#include "cli/verbs.h"

#define VERB_MAP(X) /* X(function suffix, name, summary) */                                        \
    X(tokenize, "tokenize", "text to token ids and back")                                          \
    X(tokenizer, "tokenizer", "train a tokenizer on text")                                         \
    X(train, "train", "train a model by a recipe")                                                 \
    X(generate, "generate", "write on from a prompt")                                              \
    X(chat, "chat", "talk to a model")                                                             \
    X(serve, "serve", "a model for many users: OpenAI-compatible HTTP server")                     \
    X(eval, "eval", "measure a model on text or on a task")                                        \
    X(convert, "convert", "weights into a Hugging Face folder or a GGUF file")                     \
    X(quantize, "quantize", "weights into fewer bits, as a GGUF file")                             \
    X(plan, "plan",                                                                                \
      "predict a run before paying for it: layout, time, price, failures; or a server")            \
    X(simulate, "simulate", "play months of a run with failures, restarts, repairs and spares")    \
    X(comm, "comm", "say which rank ended a run of several")                                       \
    X(doctor, "doctor", "tell what this machine is and can do")                                    \
    X(bench, "bench", "measure kernels: ours, the vendor's, the limit")                            \
    X(completion, "completion", "words for the shell's completion")                                \
    X(tune, "tune", "find the fastest specialisation of a GPU kernel")

#define VERB_DECLARE(fn, name, summary)                                                            \
    int lt_verb_##fn(int argc, char **argv);                                                       \
    extern const lt_option_table lt_verb_##fn##_options;
VERB_MAP(VERB_DECLARE)

#define VERB_ROW(fn, name, summary) {name, summary, lt_verb_##fn, &lt_verb_##fn##_options},
const lt_verb lt_verbs[] = {VERB_MAP(VERB_ROW)};
const size_t lt_n_verbs = sizeof lt_verbs / sizeof *lt_verbs;
