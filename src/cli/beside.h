/* beside.h: what is loaded beside a served model for the methods of alignment: other models whose
 * logits requests may blend with its own, a reward model, steering vectors. */
#ifndef LT_CLI_BESIDE_H
#define LT_CLI_BESIDE_H

#include "cli/opened.h"
#include "lateen/serve.h"
#include "model/infer/draft_head.h"

typedef struct {
    int n;
    char names[LT_ENGINE_BESIDE][64];
    char paths[LT_ENGINE_BESIDE][LT_PATH_BYTES];
    const char *name_list[LT_ENGINE_BESIDE];
    lt_opened opened[LT_ENGINE_BESIDE];
    const lt_model *models[LT_ENGINE_BESIDE];
} lt_beside;

/* The options of all of it, for serve, generate and eval. */
#define LT_BESIDE_OPTIONS(X)                                                                       \
    X(STR, steer, "steer", "", 0, 0, "NAME=FILE,...",                                              \
      "steering vectors that requests may name: safetensors with tensors direction.N, added "      \
      "after layer N")                                                                             \
    X(STR, second, "second", "", 0, 0, "NAME=MODEL,...",                                           \
      "models beside the served one, with its tokenizer, whose logits requests may blend into "    \
      "its own (contrastive decoding, DExperts, proxy tuning)")                                    \
    X(STR, reward, "reward", "", 0, 0, "MODEL",                                                    \
      "reward model beside the served one (a folder with a score head of one value, or one that "  \
      "judges steps): scores groups, and in a server answers /v1/score, /rerank, /classify and "   \
      "/pooling")                                                                                  \
    X(STR, reward_tokenizer, "reward-tokenizer", "", 0, 0, "FILE",                                 \
      "the reward model's tokenizer; empty: its own")

/* A model to be served, and what is loaded beside it. The caller owns the names and paths. */
typedef struct {
    const char *model, *lora, *tokenizer, *steer, *reward, *reward_tokenizer, *device;
    /* Path of the draft model or head, which may be `model`; NULL or "": none. */
    const char *draft;
    bool draft_is_head;
    lt_opened_dtype dtype;
    int64_t threads;
    lt_beside beside;
    lt_opened opened, reward_opened, draft_opened; /* Not closed by the server, once loaded. */
    const lt_model *draft_model;                   /* Once loaded: of lt_engine_options. */
    lt_draft_head *head;                           /* Likewise; a constant view for the options. */
    const lt_draft_head *draft_head;
} lt_served;

/* Fill it from the options of a verb that has LT_OPENED_OPTIONS and LT_BESIDE_OPTIONS. */
#define LT_SPECULATE_HELP                                                                          \
    "verify several drafted tokens in one step. ngram: draft what followed the newest words "      \
    "earlier in the text or its prompt; answers do not change. model: draft with the model "       \
    "--draft; answers keep their distribution, and are the same at temperature 0 and with a "      \
    "seed. head: the same, with the EAGLE-3 head at --draft, or without --draft with the model's " \
    "own layers of multi-token prediction"
#define LT_SPECULATE_CHOICES "none|ngram|model|head"
#define LT_DRAFT_HELP                                                                              \
    "for --speculate model: a smaller model with the same tokenizer; for --speculate head: the "   \
    "folder of an EAGLE-3 head of the served model, or empty for the model's own layers"

#define LT_DRAFT_BRANCHES_HELP                                                                     \
    "drafts of a text in one step that begin with different tokens; 0: as many as pay; 1: one. "   \
    "On a GPU only copied drafts can have branches"

#define LT_SERVED_OF(o, path, adapters)                                                            \
    (lt_served) {                                                                                  \
        .model = (path), .lora = (adapters), .tokenizer = (o)->tokenizer, .steer = (o)->steer,     \
        .reward = (o)->reward, .reward_tokenizer = (o)->reward_tokenizer, .device = (o)->device,   \
        .dtype = (lt_opened_dtype)(o)->dtype, .threads = (o)->threads                              \
    }

/* Read --second: "NAME=MODEL,...", or "MODEL", which gets the name "second". ARG: a name is
 * missing, too long or given twice; there are more than LT_ENGINE_BESIDE; or a tokenizer for the
 * reward model is given, but no reward model. */
LT_MUST_USE lt_err lt_served_read(lt_served *s, const char *second);

/* Set the engine's draft model or draft head, which lt_served_load opens. ARG: --draft is given
 * without --speculate model or head, or the reverse. */
LT_MUST_USE lt_err lt_served_draft(lt_served *s, lt_engine_options *engine, const char *path);

/* load, load_reward and unload of lt_server_options; served: an lt_served. UNSUPPORTED: a model
 * beside it has another tokenizer; the message names the token that differs. --tokenizer is also
 * used for models beside it that have no tokenizer. */
LT_MUST_USE lt_err lt_served_load(void *served, lt_model **model, lt_tokenizer **tokenizer);
LT_MUST_USE lt_err lt_served_load_reward(void *served, lt_model **model, lt_tokenizer **tokenizer);
void lt_served_unload(void *served);

#endif
