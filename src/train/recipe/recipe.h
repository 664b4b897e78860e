/* recipe.h: everything that determines a training run, as one option table (base/option.h): a YAML
 * recipe, flags that override it, and the effective configuration in the run folder. */
#ifndef LT_TRAIN_RECIPE_H
#define LT_TRAIN_RECIPE_H

#include "base/option.h"
#include "data/conversations.h"
#include "lateen/align.h"
#include "lateen/model.h"
#include "tensor/ops.h"
#include "model/pass/pass.h"
#include "parallel/schedule.h"
#include "parallel/sites.h"
#include "platform/sandbox/sandbox.h"

/* Choices that index these must keep their order. */
/* lt_family; last: LT_FAMILY_COUNT */
#define LT_RECIPE_FAMILIES                                                                         \
    "gpt2|llama|qwen2|qwen3|gemma2|gemma3|apertus|mixtral|mistral|phi3|olmo2|smollm3|granite|"     \
    "qwen3_moe|gpt_oss|switch|auto"
#define LT_RECIPE_ACT(name, text) "|" text
#define LT_RECIPE_ACTS            "family" LT_ACT_MAP(LT_RECIPE_ACT) /* 1 + lt_act_kind */
typedef enum { LT_SWITCH_FAMILY, LT_SWITCH_ON, LT_SWITCH_OFF } lt_recipe_switch;
/* In the order of model.dtype. */
enum { LT_RECIPE_DTYPE_FP32, LT_RECIPE_DTYPE_BF16, LT_RECIPE_DTYPE_AUTO };
#define LT_RECIPE_SWITCH "family|true|false"
/* AUTO, then the values of lt_pack. */
typedef enum {
    LT_RECIPE_PACK_AUTO,
    LT_RECIPE_PACK_STREAM,
    LT_RECIPE_PACK_BEST_FIT,
    LT_RECIPE_PACK_SINGLE
} lt_recipe_pack;
#define LT_RECIPE_PACKS "auto|stream|best-fit|single"
typedef enum { LT_OPTIM_ADAMW, LT_OPTIM_ADEMAMIX, LT_OPTIM_MUON, LT_OPTIM_LION } lt_optim_kind;
#define LT_RECIPE_OPTIMS "adamw|ademamix|muon|lion"
typedef enum {
    LT_MUON_PRODUCTS_MODEL,
    LT_MUON_PRODUCTS_FP32,
    LT_MUON_PRODUCTS_BF16
} lt_muon_products_kind;
#define LT_RECIPE_MUON_PRODUCTS "model|fp32|bf16"
typedef enum { LT_LR_CONSTANT, LT_LR_LINEAR, LT_LR_COSINE, LT_LR_WSD } lt_lr_kind;
#define LT_RECIPE_LRS "constant|linear|cosine|wsd"
typedef enum { LT_COOLDOWN_SQRT, LT_COOLDOWN_LINEAR, LT_COOLDOWN_COSINE } lt_cooldown_kind;
#define LT_RECIPE_COOLDOWNS "1-sqrt|linear|cosine"

/* sft and distill, then the rows of lateen/align.h's table, then its methods of reinforcement
 * learning. */
#define LT_RECIPE_OBJECTIVE_ENUM(name, of) LT_RECIPE_OBJECTIVE_##name,
typedef enum {
    LT_RECIPE_OBJECTIVE_sft,
    LT_RECIPE_OBJECTIVE_distill,
    LT_ALIGN_OBJECTIVE_MAP(LT_RECIPE_OBJECTIVE_ENUM) LT_ALIGN_METHOD_MAP(LT_RECIPE_OBJECTIVE_ENUM)
        LT_RECIPE_OBJECTIVE_COUNT
} lt_recipe_objective;
#define LT_RECIPE_OBJECTIVE_TEXT(name, of) "|" #name
#define LT_RECIPE_OBJECTIVES                                                                       \
    "sft|distill" LT_ALIGN_OBJECTIVE_MAP(LT_RECIPE_OBJECTIVE_TEXT)                                 \
        LT_ALIGN_METHOD_MAP(LT_RECIPE_OBJECTIVE_TEXT)
#define LT_RECIPE_METHODS_FROM LT_RECIPE_OBJECTIVE_grpo

typedef enum { LT_LAYOUT_MESH, LT_LAYOUT_AUTO } lt_recipe_layout;

/* Flags of a row about resuming (lt_option.flags). An option without MAY_CHANGE determines the
 * model, the arithmetic, the data or the state: a value that differs from the checkpoint's is
 * refused by name, unless allow_change lists it. ONCE: concerns this start only and is not part of
 * the effective recipe. */
#define LT_RECIPE_MAY_CHANGE LT_OPTION_OWNER
#define LT_RECIPE_ONCE       (2 * LT_OPTION_OWNER)

/* Options of distillation. */
#define LT_RECIPE_DISTILL_OPTIONS(X)                                                               \
    X(STR, distill_teacher, "distill.teacher", "", 0, 0, "PATH",                                   \
      "distillation: the model to imitate, which runs beside the training; given as model.init "   \
      "is")                                                                                        \
    X(STR, distill_words, "distill.logprobs", "", 0, 0, "FOLDER",                                  \
      "instead of distill.teacher: the teacher's log-probabilities for data.train, written by "    \
      "`lateen align logprobs`")                                                                   \
    X(STR, distill_valid, "distill.valid_logprobs", "", 0, 0, "FOLDER",                            \
      "with distill.logprobs: the same for data.valid")                                            \
    X(F64, distill_beta, "distill.beta", "0", 0, 1, "",                                            \
      "0: forward divergence KL(teacher, student); 1: reverse, KL(student, teacher); between: "    \
      "GKD's generalised Jensen-Shannon divergence")                                               \
    X(F64, distill_temperature, "distill.temperature", "1", 0, 1e3, "",                            \
      "temperature of both distributions in the divergence", LT_OPTION_ABOVE_MIN)                  \
    X(F64, distill_labels, "distill.labels", "0", 0, 1, "",                                        \
      "share of the labels' cross-entropy in the loss; the divergence has the rest",               \
      LT_OPTION_BELOW_MAX)                                                                         \
    X(ENUM, distill_rest, "distill.rest", "bucket", 0, 0, "bucket|renormalise",                    \
      "distill.logprobs: words that are not stored count together as one word, or are left "       \
      "out, and both distributions are normalised over the stored ones")                           \
    X(F64, distill_on_policy, "distill.on_policy", "0", 0, 1, "",                                  \
      "share of the conversations whose last answer is drawn from the student (GKD's lambda)")     \
    X(I64, distill_tokens, "distill.tokens", "256", 1, 1e6, "N",                                   \
      "most tokens of an answer that is drawn from the student")                                   \
    X(F64, distill_sampling, "distill.sampling_temperature", "1", 0, 100, "",                      \
      "temperature at which such answers are drawn", LT_OPTION_ABOVE_MIN)

/* Options of reinforcement learning. "method": the default of the objective's method. */
#define LT_RECIPE_RL_OPTIONS(X)                                                                    \
    X(I64, rl_group, "rl.group", "8", 2, 512, "N",                                                 \
      "reinforcement learning: answers to each question; batch.size counts answers")               \
    X(I64, rl_tokens, "rl.tokens", "256", 1, 1e6, "N",                                             \
      "most tokens of an answer; questions have the rest of data.seq")                             \
    X(STR, rl_rewards, "rl.rewards", "answer", 0, 1, "NAME[:WEIGHT],...",                          \
      "reward of an answer, a sum of: answer, found, think, schema, ended, length, overlong, "     \
      "model, command, unit_tests, unit_tests_share")                                              \
    X(STR, rl_reward_model, "rl.reward_model", "", 0, 0, "PATH",                                   \
      "reward model: a folder with a score head of one value, and its own template")               \
    X(STR, rl_command, "rl.command", "", 0, 0, "COMMAND",                                          \
      "reward command: a program that reads a JSON line for each answer and writes a number")      \
    X(F64, rl_command_limit, "rl.command_limit", "60", 0, 1e6, "S",                                \
      "seconds that the command may take for one line", LT_OPTION_ABOVE_MIN)                       \
    X(ENUM, rl_sandbox, "rl.sandbox", "namespaces", 0, 0, LT_SANDBOX_KINDS,                        \
      "unit_tests: how code is isolated; rlimits is weaker, for machines that refuse namespaces",  \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, rl_test_limit, "rl.test_limit", "10", 0, 1e6, "S",                                      \
      "unit_tests: seconds for all tests of an answer", LT_OPTION_ABOVE_MIN)                       \
    X(I64, rl_test_memory, "rl.test_memory", "1024", 1, 1e9, "MiB",                                \
      "unit_tests: address space of a process")                                                    \
    X(I64, rl_test_parallel, "rl.test_parallel", "0", 0, 4096, "N",                                \
      "unit_tests: answers that are tested at once; 0: as many as cores", LT_RECIPE_MAY_CHANGE)    \
    X(F64, rl_temperature, "rl.temperature", "1", 0, 100, "",                                      \
      "answers are drawn, and their log-probabilities computed, at this temperature",              \
      LT_OPTION_ABOVE_MIN)                                                                         \
    X(I64, rl_soft, "rl.soft", "0", 0, 1e6, "N",                                                   \
      "reward overlong: tokens before the limit at which the penalty for length begins")           \
    X(I64, rl_running, "rl.running", "0", 0, 65536, "N",                                           \
      "answers that are drawn at once; 0: those of a step, at most 256 on a CPU and 1,024 on a "   \
      "GPU",                                                                                       \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, rl_updates, "rl.updates", "1", 1, 1024, "N",                                            \
      "steps whose answers are drawn together: all but the first are off policy")                  \
    X(I64, rl_passes, "rl.passes", "1", 1, 1024, "N", "how often each answer is learnt from")      \
    X(I64, rl_resample, "rl.resample", "0", 0, 1024, "N",                                          \
      "dynamic sampling: further draws, at most, to replace groups whose rewards are all equal")   \
    X(STR, rl_curriculum, "rl.curriculum", "", 0, 0, "[-]NAME",                                    \
      "curriculum: the member of a problem that is its difficulty, a number; easy problems are "   \
      "asked first. -NAME: large numbers are easy")                                                \
    X(F64, rl_curriculum_start, "rl.curriculum_start", "0.1", 0, 1, "",                            \
      "share of the problems, the easiest, that the first step may ask", LT_OPTION_ABOVE_MIN)      \
    X(I64, rl_curriculum_steps, "rl.curriculum_steps", "0", 0, 1e12, "N",                          \
      "steps after which all problems may be asked; 0: half of the run's")                         \
    X(ENUM, rl_prefer, "rl.prefer", "none", 0, 0, "none|failed|learnable",                         \
      "curriculum by the pass rate s of earlier answers to a problem: it is asked with a "         \
      "probability in proportion to 1 - s, or s (1 - s)")                                          \
    X(F64, rl_pass, "rl.pass", "1", -1e6, 1e6, "", "smallest reward of an answer that passes")     \
    X(BOOL, rl_drop_cut, "rl.drop_cut", "false", 0, 0, "",                                         \
      "do not learn from answers that were cut off at rl.tokens")                                  \
    X(ENUM, rl_advantage, "rl.advantage", "method", 0, 0, "method|grpo|dr_grpo|rloo",              \
      "advantages: divided by the standard deviation, centred, or against the mean of the others") \
    X(ENUM, rl_reduction, "rl.reduction", "method", 0, 0,                                          \
      "method|sequence-mean|fixed-length|token-mean|sequence-sum",                                 \
      "how the losses of tokens become one number")                                                \
    X(F64, rl_clip_low, "rl.clip_low", "-1", -1, 1, "",                                            \
      "the ratio is clipped at 1 minus this; -1: the objective's value")                           \
    X(F64, rl_clip_high, "rl.clip_high", "-1", -1, 1e6, "",                                        \
      "the ratio is clipped at 1 plus this (DAPO: 0.28); -1: the objective's value")               \
    X(F64, rl_dual, "rl.dual", "0", 0, 1e6, "",                                                    \
      "largest ratio where the advantage is negative; 0: none")                                    \
    X(F64, rl_cap, "rl.cap", "-1", -1, 1e6, "", "cispo: largest weight; -1: 5")                    \
    X(F64, rl_kl, "rl.kl", "0", 0, 1e3, "",                                                        \
      "weight of the divergence from the model with which the run began")                          \
    X(ENUM, rl_kl_kind, "rl.kl_kind", "k3", 0, 0, "k1|k2|k3",                                      \
      "estimator of the divergence of rl.kl")                                                      \
    X(BOOL, rl_kl_ratio, "rl.kl_ratio", "false", 0, 0, "",                                         \
      "multiply the estimate of rl.kl by the ratio, which makes its gradient unbiased")            \
    X(ENUM, rl_correction, "rl.correction", "none", 0, 0,                                          \
      "none|token-truncate|sequence-truncate|token-mask|sequence-mask",                            \
      "weights for answers that the engine drew with probabilities other than the trainer's")      \
    X(F64, rl_weight_low, "rl.weight_low", "0", 0, 1e6, "", "smallest weight of rl.correction")    \
    X(F64, rl_weight_high, "rl.weight_high", "2", 0, 1e6, "", "largest weight of rl.correction",   \
      LT_OPTION_ABOVE_MIN)                                                                         \
    X(I64, rl_staleness, "rl.staleness", "0", 0, 1, "N",                                           \
      "1: draw the answers of the next step while this one learns, with the weights before its "   \
      "update; needs rl.correction and checkpoint.every")                                          \
    X(BOOL, rl_exact, "rl.exact", "false", 0, 0, "",                                               \
      "engine and trainer compute the log-probability of a token with the same bits")

/* Sites that train separately (train/diloco.h). Options that must not change are the same at all
 * sites. */
#define LT_RECIPE_DILOCO_OPTIONS(X)                                                                \
    X(I64, sites, "diloco.sites", "1", 1, LT_SITES_MAX, "N",                                       \
      "sites that train apart and average what they have learnt (DiLoCo), each with a mesh and a " \
      "run folder OUT/site-K of its own")                                                          \
    X(I64, site, "diloco.site", "-1", -1, LT_SITES_MAX - 1, "K",                                   \
      "number of this run's site, from 0; -1: the ranks of one launch form all sites",             \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(STR, meet, "diloco.meet", "", 0, 0, "FOLDER",                                                \
      "folder that all sites can reach, through which they exchange their rounds; empty: "         \
      "OUT/rounds",                                                                                \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, every, "diloco.every", "100", 1, 1e9, "STEPS",                                          \
      "inner steps between two rounds of the same parameters")                                     \
    X(I64, fragments, "diloco.fragments", "1", 1, LT_MAX_LAYERS, "N",                              \
      "parts of the model, by layers, each with rounds of its own, evenly spread over the steps "  \
      "of diloco.every (Streaming DiLoCo)")                                                        \
    X(F64, outer_lr, "diloco.outer_lr", "0.7", 0, 100, "",                                         \
      "learning rate of the outer step, SGD with Nesterov's momentum", LT_OPTION_ABOVE_MIN)        \
    X(F64, outer_momentum, "diloco.outer_momentum", "0.9", 0, 1, "", "momentum of the outer step", \
      LT_OPTION_BELOW_MAX)                                                                         \
    X(ENUM, outer_bits, "diloco.bits", "8", 0, 0, LT_OUTER_BITS_CHOICES,                           \
      "bits of each number that is sent; with 8 and 4, every 128 numbers also have a scale of 32 " \
      "bits")                                                                                      \
    X(I64, overlap, "diloco.overlap", "0", 0, 1e9, "STEPS",                                        \
      "inner steps that run while a round is sent; 0: none")                                       \
    X(F64, merge, "diloco.merge", "0.5", 0, 1, "",                                                 \
      "share of the site's own parameters when the steps of diloco.overlap are done; the outer "   \
      "parameters have the rest",                                                                  \
      LT_OPTION_BELOW_MAX)                                                                         \
    X(F64, site_deadline, "diloco.deadline", "600", 0, 1e7, "s",                                   \
      "seconds after which a round continues without the sites that have not arrived",             \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, keep_rounds, "diloco.keep", "16", 2, 1e6, "ROUNDS",                                     \
      "keep the outer parameters once in this many rounds, for sites that join later; rounds "     \
      "older than the second-newest of these are removed",                                         \
      LT_RECIPE_MAY_CHANGE)

#define LT_RECIPE_OPTIONS(X)                                                                       \
    X(STR, out, "out", "", 0, 1, "FOLDER",                                                         \
      "run folder: effective recipe, metrics, log, checkpoints, report, model",                    \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, seed, "seed", "1234", 0, 9e18, "N", "seed of initial weights, data order and samples")  \
    X(I64, steps, "steps", "1000", 0, 1e12, "N", "optimiser steps", LT_RECIPE_MAY_CHANGE)          \
    X(STR, stage, "stage", "", 0, 0, "NAME",                                                       \
      "of a recipe with `stages`: train this one alone, once those before it are finished",        \
      LT_RECIPE_MAY_CHANGE | LT_RECIPE_ONCE)                                                       \
    X(STR, resume, "resume", "auto", 0, 1, "auto|none|FOLDER",                                     \
      "continue from the newest complete checkpoint, or from this one",                            \
      LT_RECIPE_MAY_CHANGE | LT_OPTION_BARE)                                                       \
    X(STR, allow_change, "allow_change", "", 0, 0, "NAME,...",                                     \
      "further options that a resumed run may change", LT_RECIPE_MAY_CHANGE | LT_RECIPE_ONCE)      \
    X(BOOL, verify, "verify", "false", 0, 0, "",                                                   \
      "keep whole checksums of the shards, and compare them at resume", LT_RECIPE_MAY_CHANGE)      \
    X(STR, device, "device", "auto", 0, 1, LT_DEVICE_NAMES,                                        \
      "where to compute; cuda:N is GPU N; auto: the GPU if there is one", LT_RECIPE_MAY_CHANGE)    \
    X(I64, threads, "threads", "0", 0, 4096, "N",                                                  \
      "threads of the kernels; 0: all cores of this process", LT_RECIPE_MAY_CHANGE)                \
    X(I64, trace_step, "trace_step", "0", 0, 1e12, "STEP",                                         \
      "write OUT/trace-step-STEP.json, a trace of this step on all ranks for Perfetto; 0: none",   \
      LT_RECIPE_MAY_CHANGE | LT_RECIPE_ONCE)                                                       \
    X(ENUM, deterministic, "deterministic", "run", 0, 0, "run|mesh-invariant",                     \
      "what has the same bits: a run that is repeated, or a run on any number of ranks (dp) that " \
      "divides batch.groups")                                                                      \
    X(ENUM, layout, "layout", "mesh", 0, 0, "mesh|auto",                                           \
      "how ranks divide the work: as `mesh` and `mesh.zero` say; auto: as `lateen plan` predicts " \
      "to be fastest",                                                                             \
      LT_RECIPE_MAY_CHANGE | LT_RECIPE_ONCE)                                                       \
    X(STR, mesh, "mesh", "", 0, 0, "AXIS=N,...",                                                   \
      "how ranks divide the work: dp=4 divides the rows of a step, pp=4 the layers, cp=4 the "     \
      "tokens of a row; empty: the rows",                                                          \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(ENUM, context, "mesh.context", "gather", 0, 0, LT_CONTEXT_CHOICES,                           \
      "how ranks that divide sequences (cp) attend to each other's keys: gather all keys of a "    \
      "layer, give each rank whole sequences of some heads, or pass keys round a ring",            \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, zero, "mesh.zero", "0", 0, 3, "0|1|2|3",                                                \
      "what ranks divide that would otherwise hold the same state: 1 optimiser state, 2 "          \
      "gradients too, 3 weights too",                                                              \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, shard, "mesh.shard", "0", 0, 4096, "RANKS",                                             \
      "ranks among which mesh.zero divides, in groups of neighbours; 0: all",                      \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, expert_room, "mesh.expert_room", "0", 0, 4096, "X",                                     \
      "room for the rows that choose a rank's experts (ep), as a multiple of its own rows; 0: "    \
      "for all "                                                                                   \
      "rows of all ranks",                                                                         \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, deadline, "mesh.deadline", "600", 1, 1e6, "s",                                          \
      "seconds after which a rank that does not respond to the others counts as failed",           \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(ENUM, schedule, "mesh.schedule", "1f1b", 0, 0, LT_SCHEDULE_CHOICES,                          \
      "order of work of a pipeline (pp)", LT_RECIPE_MAY_CHANGE)                                    \
    X(I64, chunks, "mesh.chunks", "0", 0, LT_MAX_LAYERS, "",                                       \
      "chunks of layers of each rank of pp; 0: the schedule's fewest", LT_RECIPE_MAY_CHANGE)       \
    X(STR, stages, "mesh.stages", "", 0, 0, "N,...",                                               \
      "layers of each stage of a pipeline; empty: placed by cost", LT_RECIPE_MAY_CHANGE)           \
    LT_RECIPE_DILOCO_OPTIONS(X)                                                                    \
    X(I64, page, "page", "0", 0, 65535, "PORT",                                                    \
      "serve the live report on 127.0.0.1:PORT; 0: do not", LT_RECIPE_MAY_CHANGE)                  \
    X(STR, metrics_listen, "metrics.listen", "", 0, 0, "HOST:PORT",                                \
      "serve numbers of the run at /metrics, for Prometheus; empty: do not", LT_RECIPE_MAY_CHANGE) \
    X(STR, init, "model.init", "", 0, 0, "PATH",                                                   \
      "weights to start from: Hugging Face folder, GGUF, llama2.c; also hf://ORG/NAME, s3://, "    \
      "https://; empty: random")                                                                   \
    X(STR, config, "model.config", "", 0, 0, "PATH",                                               \
      "config.json that gives the shape; empty: the sizes below")                                  \
    X(ENUM, family, "model.family", "auto", 0, 0, LT_RECIPE_FAMILIES,                              \
      "model family; auto: that of model.init or model.config, else apertus")                      \
    X(I64, layers, "model.layers", "0", 0, LT_MAX_LAYERS, "N",                                     \
      "layers; 0: 6, or as in model.init or model.config")                                         \
    X(I64, width, "model.width", "0", 0, 1e6, "N",                                                 \
      "width of the residual stream; 0: 256, or as in model.init or model.config")                 \
    X(I64, heads, "model.heads", "0", 0, 4096, "N",                                                \
      "query heads; 0: 4, or as in model.init or model.config")                                    \
    X(I64, kv_heads, "model.kv_heads", "0", 0, 4096, "N",                                          \
      "key/value heads; 0: as many as query heads")                                                \
    X(I64, head_dim, "model.head_dim", "0", 0, 1024, "N", "width of a head; 0: width / heads")     \
    X(I64, ffn, "model.ffn", "0", 0, 1e7, "N",                                                     \
      "feed-forward width (of one expert); 0: 4 x width, gated 8/3 x width")                       \
    X(I64, vocab, "model.vocab", "0", 0, 1e8, "N",                                                 \
      "vocabulary; 0: the tokenizer's, rounded up to a multiple of 64")                            \
    X(ENUM, act, "model.act", "family", 0, 0, LT_RECIPE_ACTS, "activation")                        \
    X(ENUM, gated, "model.gated", "family", 0, 0, LT_RECIPE_SWITCH,                                \
      "gated feed-forward layer, as in SwiGLU")                                                    \
    X(ENUM, tied, "model.tied", "family", 0, 0, LT_RECIPE_SWITCH,                                  \
      "the output head shares the embedding's weights")                                            \
    X(ENUM, qk_norm, "model.qk_norm", "family", 0, 0, LT_RECIPE_SWITCH,                            \
      "normalise queries and keys per head")                                                       \
    X(F64, rope_theta, "model.rope_theta", "0", 0, 1e12, "", "RoPE base; 0: the family's")         \
    X(I64, max_seq, "model.max_seq", "0", 0, 1e9, "N",                                             \
      "longest sequence that the model accepts; 0: data.seq")                                      \
    X(F64, init_std, "model.init_std", "0", 0, 10, "",                                             \
      "standard deviation of initial weights; 0: the family's")                                    \
    X(I64, experts, "model.experts", "0", 0, 4096, "N",                                            \
      "experts of a mixture; 0: the family's, dense if it has none")                               \
    X(I64, top_k, "model.top_k", "0", 0, 64, "N", "experts for each token; 0: the family's")       \
    X(F64, capacity, "model.capacity", "-1", -1, 100, "",                                          \
      "expert capacity factor; 0: dropless; -1: the family's")                                     \
    X(F64, aux_coef, "model.aux_coef", "-1", -1, 10, "",                                           \
      "weight of the load-balancing loss; -1: the family's")                                       \
    X(F64, router_z_coef, "model.router_z_coef", "-1", -1, 10, "",                                 \
      "weight of the router z-loss; -1: the family's")                                             \
    X(ENUM, dtype, "model.dtype", "auto", 0, 0, "fp32|bf16|auto",                                  \
      "storage of weights and activations (master weights are fp32); auto: bf16 on a GPU if "      \
      "most of model.init is not fp32 or lora.base names a block type, else fp32")                 \
    X(ENUM, fp8, "model.fp8", "none", 0, 0, LT_FP8_CHOICES,                                        \
      "linear layers multiply 8-bit floats, with one scale for 128 numbers or one for a tensor")   \
    X(BOOL, fp8_wgrad, "model.fp8_wgrad", "false", 0, 0, "",                                       \
      "compute the gradients of weights in 8-bit floats too")                                      \
    X(ENUM, recompute, "model.recompute", "none", 0, 0, "none|selective|full",                     \
      "what the backward pass computes again to save memory", LT_RECIPE_MAY_CHANGE)                \
    X(I64, lora_rank, "lora.rank", "0", 0, 4096, "R",                                              \
      "train adapters of this rank beside the linear layers of model.init, and leave it as it is " \
      "(LoRA); 0: train the model")                                                                \
    X(F64, lora_alpha, "lora.alpha", "0", 0, 1e6, "",                                              \
      "the output of an adapter is multiplied by this, divided by the rank; 0: the rank")          \
    X(ENUM, lora_scale, "lora.scale", "rank", 0, 0, LT_LORA_SCALINGS,                              \
      "lora.alpha is divided by the rank, or by its square root (rsLoRA)")                         \
    X(BOOL, lora_dora, "lora.dora", "false", 0, 0, "",                                             \
      "the length of each row of a weight is trained apart from its direction (DoRA)")             \
    X(F64, lora_dropout, "lora.dropout", "-1", -1, 0.99, "P",                                      \
      "this share of what adapters read is 0 in training, drawn anew for each token and module; "  \
      "-1: what lora.init was trained with, or 0")                                                 \
    X(STR, lora_targets, "lora.targets", LT_LORA_ALL, 0, 1, "NAME,...",                            \
      "modules that get adapters, by PEFT's names, e.g. q_proj,v_proj; all-linear: every linear "  \
      "layer but the output head; embed_tokens and lm_head can be added")                          \
    X(ENUM, lora_base, "lora.base", "auto", 0, 0, LT_LORA_BASES,                                   \
      "how model.init is kept beside adapters: in model.dtype, in the types of its file, or in a " \
      "block type, decoded for each product (QLoRA); auto: a quantised GGUF as it is stored")      \
    X(STR, lora_init, "lora.init", "", 0, 0, "FOLDER",                                             \
      "adapters to start from, a PEFT folder; empty: new ones")                                    \
    X(ENUM, objective, "objective.kind", "sft", 0, 0, LT_RECIPE_OBJECTIVES,                        \
      "what is learnt: texts and answers (sft); answers as a teacher would give them "             \
      "(distill); preferences, of pairs, scores or single completions; what is rewarded "          \
      "(grpo and those after it). docs/post-training.md describes each")                           \
    X(F64, align_beta, "objective.beta", "0.1", 0, 1e6, "",                                        \
      "preferences: strength of the preference against what the reference model does",             \
      LT_OPTION_ABOVE_MIN)                                                                         \
    X(F64, align_smoothing, "objective.smoothing", "0", 0, 0.5, "",                                \
      "dpo, dpo_robust, dpo_norm: probability that a pair's label is wrong", LT_OPTION_BELOW_MAX)  \
    X(F64, align_margin, "objective.margin", "0", 0, 1e6, "", "simpo: target margin, its gamma")   \
    X(F64, align_center, "objective.center", "0", 0, 1e6, "",                                      \
      "reward: weight of the squared sum of a pair's scores, which holds them around 0")           \
    X(F64, align_good, "objective.good", "1", 0, 1e6, "",                                          \
      "kto, apo_zero: weight of good completions")                                                 \
    X(F64, align_bad, "objective.bad", "1", 0, 1e6, "",                                            \
      "kto, apo_zero: weight of bad completions")                                                  \
    X(STR, align_separator, "objective.separator", "", 0, 0, "TEXT",                               \
      "prm: the text after each step, at whose last token the step is judged; empty: that of "     \
      "model.init, else a line break")                                                             \
    X(BOOL, keep_logits, "objective.keep_logits", "true", 0, 0, "",                                \
      "logits of a batch stay for its backward pass if they take at most half of the memory that " \
      "is left, and model.recompute is not full; else they are computed twice",                    \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(BOOL, share_prompts, "objective.share_prompts", "true", 0, 0, "",                            \
      "compute the common beginning of neighbouring rows of a micro-batch only once, such as the " \
      "prompt of a pair or of a group of answers, and nothing after a row's last label",           \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    LT_RECIPE_DISTILL_OPTIONS(X)                                                                   \
    LT_RECIPE_RL_OPTIONS(X)                                                                        \
    X(STR, train, "data.train", "", 0, 1, "SHARD|FILE.jsonl[:WEIGHT],...",                         \
      "training mixture: shards of tokens; files of conversations, of which the assistant's "      \
      "turns are learnt; what objective.kind learns from: preferences, problems; also s3://, "     \
      "hf://, https://, fetched first")                                                            \
    X(STR, cache, "data.cache", "", 0, 0, "FOLDER",                                                \
      "shards of data.train and data.valid that have an address are fetched through this folder "  \
      "while they are read; several runs may share it; empty: they are fetched completely before " \
      "the run",                                                                                   \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, cache_bytes, "data.cache_bytes", "50000000000", 1, 1e18, "BYTES",                       \
      "most bytes of shards in data.cache: the least recently read ones are deleted",              \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(STR, valid, "data.valid", "", 0, 0, "SHARD|FILE.jsonl[:WEIGHT],...",                         \
      "held-out data, as in data.train; empty: none, or see val_fraction", LT_RECIPE_MAY_CHANGE)   \
    X(F64, val_fraction, "data.val_fraction", "0", 0, 0.5, "",                                     \
      "share of data.train held out when data.valid is empty")                                     \
    X(STR, tokenizer, "data.tokenizer", "", 0, 0, "FILE",                                          \
      "tokenizer: gives the vocabulary size and special tokens, counts bytes, writes samples; of " \
      "conversations, empty: that of model.init")                                                  \
    X(STR, chat_template, "data.chat_template", "", 0, 0, "NAME|FILE",                             \
      "conversations: their template; empty: the model's own")                                     \
    X(ENUM, chat_turns, "data.chat_turns", "all", 0, 0, "all|last",                                \
      "conversations: which of the assistant's turns are learnt")                                  \
    X(ENUM, bad_rows, "data.bad_rows", "skip", 0, 0, LT_BAD_ROWS_CHOICES,                          \
      "conversations that the template refuses, or that have nothing to learn: skip them, or "     \
      "fail")                                                                                      \
    X(ENUM, too_long, "data.too_long", "cut", 0, 0, LT_TOO_LONG_CHOICES,                           \
      "conversations of more than data.seq tokens: cut off their end, skip them, or fail")         \
    X(I64, seq, "data.seq", "256", 1, 1e7, "N", "tokens in a row")                                 \
    X(ENUM, packing, "data.packing", "auto", 0, 0, LT_RECIPE_PACKS,                                \
      "how documents become rows: one stream that is cut into rows, several whole documents "      \
      "in a row, or one in a row, so that batch.size counts examples; auto: best-fit for "         \
      "conversations, else stream")                                                                \
    X(ENUM, shuffle, "data.shuffle", "rows", 0, 0, "none|rows|documents",                          \
      "order of the data; none: that of the files, but best-fit rows with long documents first")   \
    X(I64, shuffle_rows, "data.shuffle_rows", "0", 0, 1e12, "N",                                   \
      "shuffle rows within windows of N rows, which follow each other as in the files, so that "   \
      "data.cache needs room for a window alone; 0: the rows of the whole epoch")                  \
    X(BOOL, mask_documents, "data.mask_documents", "true", 0, 0, "",                               \
      "attention stays inside a document")                                                         \
    X(BOOL, reset_positions, "data.reset_positions", "true", 0, 0, "",                             \
      "positions begin at 0 in each document")                                                     \
    X(BOOL, mask_eod, "data.mask_eod", "true", 0, 0, "",                                           \
      "do not learn the token that follows an end of document")                                    \
    X(BOOL, add_bos, "data.add_bos", "false", 0, 0, "", "put the BOS token before each document")  \
    X(BOOL, add_eod, "data.add_eod", "false", 0, 0, "", "put the EOS token after each document")   \
    X(I64, goldfish_k, "data.goldfish_k", "0", 0, 1e6, "K",                                        \
      "Goldfish loss: drop one label in K; 0: off")                                                \
    X(I64, goldfish_h, "data.goldfish_h", "50", 1, 1e4, "H",                                       \
      "labels that the Goldfish hash covers")                                                      \
    X(I64, prefetch, "data.prefetch", "64", 0, 65536, "ROWS",                                      \
      "rows prepared ahead by a thread; 0: no thread", LT_RECIPE_MAY_CHANGE)                       \
    X(I64, batch, "batch.size", "16", 1, 1e7, "ROWS", "rows of an optimiser step")                 \
    X(I64, micro, "batch.micro", "0", 0, 1e7, "ROWS",                                              \
      "rows of one forward and backward pass; 0: batch.size", LT_RECIPE_MAY_CHANGE)                \
    X(I64, groups, "batch.groups", "8", 1, 4096, "N",                                              \
      "groups of a step's rows that are summed apart; a power of two")                             \
    X(STR, ramp, "batch.ramp", "", 0, 0, "SIZE@ROWS,...",                                          \
      "step size from this many rows on, e.g. 8@0,16@20000; then batch.size")                      \
    X(ENUM, optim, "optim.kind", "adamw", 0, 0, LT_RECIPE_OPTIMS,                                  \
      "optimiser (muon updates the matrices, adamw the rest)")                                     \
    X(ENUM, moments, "optim.moments", "fp32", 0, 0, "fp32|bf16",                                   \
      "storage of the moments; bf16 uses stochastic rounding (adamw, ademamix)")                   \
    X(F64, lr, "optim.lr", "3e-4", 0, 100, "", "peak learning rate", LT_RECIPE_MAY_CHANGE)         \
    X(F64, beta1, "optim.beta1", "0.9", 0, 1, "", "first moment", LT_OPTION_BELOW_MAX)             \
    X(F64, beta2, "optim.beta2", "0.95", 0, 1, "", "second moment", LT_OPTION_BELOW_MAX)           \
    X(F64, beta3, "optim.beta3", "0.9999", 0, 1, "", "AdEMAMix: slow moment", LT_OPTION_BELOW_MAX) \
    X(F64, alpha, "optim.alpha", "8", 0, 1000, "", "AdEMAMix: weight of the slow moment")          \
    X(I64, mix_warmup, "optim.mix_warmup", "0", 0, 1e12, "STEPS",                                  \
      "AdEMAMix: steps of the warm-up of alpha and beta3; 0: all steps")                           \
    X(F64, eps, "optim.eps", "1e-8", 0, 1, "", "added to the root of the second moment",           \
      LT_OPTION_ABOVE_MIN)                                                                         \
    X(F64, decay, "optim.decay", "0.1", 0, 10, "",                                                 \
      "decoupled weight decay of matrices and embeddings")                                         \
    X(F64, clip, "optim.clip", "1", 0, 1e9, "", "largest gradient norm; 0: no clipping",           \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, muon_lr, "optim.muon_lr", "0.02", 0, 100, "", "Muon: peak learning rate of matrices",   \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, muon_momentum, "optim.muon_momentum", "0.95", 0, 1, "", "Muon: momentum",               \
      LT_OPTION_BELOW_MAX)                                                                         \
    X(I64, muon_steps, "optim.muon_steps", "5", 1, 20, "N", "Muon: Newton-Schulz iterations")      \
    X(ENUM, muon_products, "optim.muon_products", "model", 0, 0, LT_RECIPE_MUON_PRODUCTS,          \
      "Muon: type of the operands of the iterations' products; model: that of model.dtype")        \
    X(ENUM, lr_kind, "lr.schedule", "cosine", 0, 0, LT_RECIPE_LRS, "after the warm-up",            \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, warmup, "lr.warmup", "0", 0, 1e12, "STEPS", "linear warm-up", LT_RECIPE_MAY_CHANGE)     \
    X(F64, warmup_from, "lr.warmup_from", "0", 0, 1, "",                                           \
      "fraction of the peak at which the warm-up begins", LT_RECIPE_MAY_CHANGE)                    \
    X(F64, lr_min, "lr.min", "0.1", 0, 1, "", "fraction of the peak at the end",                   \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, cooldown, "lr.cooldown", "0", 0, 1e12, "STEPS",                                         \
      "wsd: length of the cooldown at the end", LT_RECIPE_MAY_CHANGE)                              \
    X(ENUM, cooldown_kind, "lr.cooldown_shape", "1-sqrt", 0, 0, LT_RECIPE_COOLDOWNS,               \
      "wsd: shape of the cooldown", LT_RECIPE_MAY_CHANGE)                                          \
    X(F64, z_coef, "loss.z", "0", 0, 1, "", "weight of the z-loss on the output logits")           \
    X(F64, guard_loss, "guard.loss_z", "0", 0, 1000, "SIGMA",                                      \
      "skip a step whose loss lies this many standard deviations above the recent mean; 0: off",   \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, guard_grad, "guard.grad_z", "0", 0, 1000, "SIGMA", "the same for the gradient norm",    \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, guard_window, "guard.window", "128", 8, 4096, "STEPS",                                  \
      "steps over which the recent mean is taken", LT_RECIPE_MAY_CHANGE)                           \
    X(I64, guard_limit, "guard.limit", "16", 1, 1e9, "STEPS",                                      \
      "give up after this many skipped steps in a row", LT_RECIPE_MAY_CHANGE)                      \
    X(I64, guard_replicas, "guard.replicas", "0", 0, 1e9, "STEPS",                                 \
      "compare, this often and before each save, the state of which several ranks hold copies "    \
      "(dp, cp); a difference means that memory or arithmetic failed without an error, and ends "  \
      "the run; 0: do not",                                                                        \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, guard_replicas_parts, "guard.replicas_parts", "1", 1, 4096, "N",                        \
      "compare one of this many equal parts of that state at a time, so that all of it has been "  \
      "compared after N times; before a save all",                                                 \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, guard_replay, "guard.replay", "0", 0, 1e9, "STEPS",                                     \
      "this often, and when an update is skipped, compute the rows of a step on a second rank "    \
      "too (dp), to tell arithmetic that failed without an error from bad data; 0: do not",        \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, guard_slow, "guard.slow", "0.1", 0, 1000, "",                                           \
      "report a rank that computes longer than the others by this share; 0: do not",               \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, guard_slow_s, "guard.slow_s", "60", 0.001, 1e6, "s",                                    \
      "seconds over which a rank must be slow before it is reported", LT_RECIPE_MAY_CHANGE)        \
    X(I64, eval_every, "eval.every", "0", 0, 1e12, "STEPS",                                        \
      "validate this often; 0: at the end only", LT_RECIPE_MAY_CHANGE)                             \
    X(I64, eval_rows, "eval.rows", "0", 0, 1e12, "ROWS", "rows of a validation; 0: all",           \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, save_every, "checkpoint.every", "0", 0, 1e12, "STEPS",                                  \
      "save this often; 0: at the end only", LT_RECIPE_MAY_CHANGE)                                 \
    X(BOOL, save_async, "checkpoint.async", "false", 0, 0, "",                                     \
      "copy the state to host memory, and write it while the run continues", LT_RECIPE_MAY_CHANGE) \
    X(I64, keep_last, "checkpoint.keep_last", "2", 1, 1e6, "N", "newest checkpoints to keep",      \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, keep_every, "checkpoint.keep_every", "0", 0, 1e12, "STEPS",                             \
      "keep the checkpoints at multiples of this forever; 0: none", LT_RECIPE_MAY_CHANGE)          \
    X(STR, mirror, "checkpoint.mirror", "", 0, 0, "PLACE",                                         \
      "copy checkpoints to s3://BUCKET/PREFIX or a folder while the run continues; a run whose "   \
      "folder has no checkpoint, or only older ones, begins from there",                           \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, mirror_keep, "checkpoint.mirror_keep", "0", 0, 1e6, "N",                                \
      "newest checkpoints to keep there; 0: as checkpoint.keep_last", LT_RECIPE_MAY_CHANGE)        \
    X(I64, mirror_rate, "checkpoint.mirror_rate", "0", 0, 1e15, "BYTES/S",                         \
      "most bytes a second that a rank sends there; 0: no limit", LT_RECIPE_MAY_CHANGE)            \
    X(BOOL, save_adapters, "checkpoint.adapters", "false", 0, 0, "",                               \
      "lora.rank: write the adapters of each checkpoint to OUT/adapters/step-N too, for PEFT; "    \
      "as many are kept as checkpoints",                                                           \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, log_every, "log.every", "1", 1, 1e9, "STEPS", "write a line of metrics this often",     \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, plain_every, "log.plain_every", "10", 0, 1e6, "S",                                      \
      "seconds between progress lines when not on a terminal", LT_RECIPE_MAY_CHANGE)               \
    X(BOOL, tensorboard, "log.tensorboard", "false", 0, 0, "",                                     \
      "write the numbers of metrics.jsonl as event files of TensorBoard, too",                     \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, sample_every, "sample.every", "0", 0, 1e12, "STEPS",                                    \
      "write a sample this often; 0: at the end only", LT_RECIPE_MAY_CHANGE)                       \
    X(STR, sample_prompt, "sample.prompt", "", 0, 0, "TEXT", "what the sample begins with",        \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(I64, sample_tokens, "sample.tokens", "64", 0, 1e6, "N", "length of a sample",                \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(F64, sample_temperature, "sample.temperature", "0.8", 0, 10, "", "temperature of a sample",  \
      LT_RECIPE_MAY_CHANGE)                                                                        \
    X(BOOL, export_model, "export", "true", 0, 0, "",                                              \
      "write OUT/model, a Hugging Face folder, at the end", LT_RECIPE_MAY_CHANGE)

/* The names that other verbs have for the model and the data. */
#define LT_RECIPE_SHORTS                                                                           \
    {"model", "model.init"}, {                                                                     \
        "data", "data.train"                                                                       \
    }

typedef struct {
    LT_RECIPE_OPTIONS(LT_OPTION_FIELD)
} lt_recipe;

extern const lt_option_table lt_recipe_table;

#define LT_RECIPE_BATCH_MAX 10000000

/* recipe_check.c. Refuse options that contradict each other, and values that F32 cannot represent;
 * the message names the options and their values. */
LT_MUST_USE lt_err lt_recipe_check(const lt_recipe *r);

/* What a row that differs from its default would need in order to have an effect; NULL: it has an
 * effect, or its default. */
const char *lt_recipe_idle(const lt_recipe *r, const lt_option *row);
/* Whether the row has its default value, whose text is written to `value`. */
bool lt_recipe_is_default(const lt_recipe *r, const lt_option *row,
                          char value[LT_OPTION_STR_BYTES]);

/* The model that a recipe describes. vocab_size is the tokenizer's (0: none). Not for model.init,
 * whose weights determine the shape. */
LT_MUST_USE lt_err lt_recipe_spec(lt_model_spec *out, const lt_recipe *r, int64_t vocab_size,
                                  int64_t bos_id, int64_t eos_id, int64_t pad_id);

/* Copy into the spec the recipe's options on which no shape depends (capacity and losses of
 * experts), and refuse given options that contradict it; the message names `from` (a file, or
 * NULL). */
LT_MUST_USE lt_err lt_recipe_adopt(lt_model_spec *spec, const lt_recipe *r, const char *from);

/* Replace the recipe's 0, "family" and "auto" by the model's actual values: the effective
 * recipe. */
void lt_recipe_resolve(lt_recipe *r, const lt_model_spec *spec);
int64_t lt_recipe_width(const lt_recipe *r);
int64_t lt_recipe_heads(const lt_recipe *r);

/* The next "SIZE@ROWS" of batch.ramp; *p advances past it. False at the end; *ok: the text is well
 * formed. */
bool lt_recipe_next_ramp(const char **p, int64_t *size, uint64_t *from_rows, bool *ok);

/* Rows of the step that begins after `rows` rows: from batch.ramp, then batch.size. */
int64_t lt_recipe_batch(const lt_recipe *r, uint64_t rows);
int64_t lt_recipe_largest_batch(const lt_recipe *r); /* The largest batch of any step. */
/* The largest number that divides the rows of every step (and batch.groups, if they count): each
 * step can be divided by any number of replicas that divides it. */
int64_t lt_recipe_common_rows(const lt_recipe *r);
/* recipe_check.c. Check that the ranks of a mesh (of each site) can divide every step equally: rows
 * by dp, tokens by cp, batch.groups and mesh.shard. ARG: they cannot; the message names the
 * numbers. */
LT_MUST_USE lt_err lt_recipe_divides(const lt_recipe *r, const lt_mesh_shape *s);

/* Number of rows that belong together: 2 for a pair, which batch.size counts once, else 1. */
int64_t lt_recipe_together(const lt_recipe *r);
/* The objective's row; NULL for sft, distill, and methods of reinforcement learning. */
const lt_align_objective *lt_recipe_align(const lt_recipe *r);
/* The type in model.dtype, after auto is resolved (lt_training_resolve_dtype). */
lt_dtype lt_recipe_dtype(const lt_recipe *r);
bool lt_recipe_is_rl(const lt_recipe *r);

/* Learning rate of a step (from 1) as a fraction of the peak. */
double lt_recipe_lr(const lt_recipe *r, int64_t step);

/* AdEMAMix's warmed-up alpha and beta3 at step (from 1): Pagliardini et al., appendix; swiss-ai's
 * ademamix.py. */
double lt_recipe_mix_alpha(const lt_recipe *r, int64_t step);
double lt_recipe_mix_beta3(const lt_recipe *r, int64_t step);

/* The scheduled values of one step, computed once, before its rows are drawn. */
typedef struct {
    int64_t step;       /* From 1. */
    int64_t rows;       /* Rows of the optimiser step. */
    double lr, muon_lr; /* muon_lr: for the matrices that Muon updates. */
    double mix_alpha, mix_beta3;
} lt_step_plan;
/* rows_seen: before the step. */
lt_step_plan lt_recipe_plan(const lt_recipe *r, int64_t step, uint64_t rows_seen);

#endif
