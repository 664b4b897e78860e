/* metrics.h: metrics.jsonl of a run: one JSON object a line, appended and flushed.
 *
 *   {"kind": "train", "step", ...}                         LT_TRAIN_METRICS, every log.every steps
 *   {"kind": "skip", "step", "why"}                        an update that was not applied
 *   {"kind": "eval", "step", ...}                          LT_EVAL_METRICS; null: not finite
 *   {"kind": KIND, "step", ...}, {"kind": KIND "_eval", ...}  an objective's numbers of a step and
 *                                                          of a validation (objective.h)
 *   {"kind": "sample", "step", "prompt", "text"}
 *   {"kind": "rl", "step", ...}                            LT_RL_METRICS, with a line of "train"
 *                                                          of a step of reinforcement learning
 *   {"kind": "distill", "step", ...}                       LT_DISTILL_METRICS, the same
 *   {"kind": "rl_eval", "step", ...}                       of greedy answers to problems held out
 *   {"kind": "answers", "step", "file", "line", "rewards": {...}, "answers": [{"text", "reward"}]}
 *                                                          a group of its answers, as often as
 *                                                          samples, with the means of the step's
 *                                                          rewards before their weights
 *   {"kind": "start", "step", "version", "parameters", ...}  each start of the program
 *   {"kind": "change", "step", "name", "from", "to", "allowed"}  an option that this start changed;
 *                                                                allowed: it needed allow_change
 *   {"kind": "plan", "step", "mesh", "zero", "step_s", "compute_s", "comm_s", "bytes", ...}
 *                                                          what lateen plan predicts of the mesh
 *   {"kind": "ranks", "step", "steps", "slowest", "ranks": [{"rank", "compute_s", "comm_s",
 *     "transfer_s", "announced_bytes", "peak_bytes"}, ...]}  means of the steps measured so far
 *   {"kind": "goodput", "step", ...}                       seconds of this start of the program, by
 *                                                          the names of goodput.h, at its end
 *   {"kind": "snapshot", "step", "stall_s", "next"}      a snapshot in memory: how long the step
 *                                                        waited for it, and the step of the next
 *   {"kind": "mirror", "step", "whole", "seconds", "bytes", "retries", "failed"}  a checkpoint was
 *                                                        copied to checkpoint.mirror, or given up;
 *                                                        bytes and repeated requests of the leading
 *                                                        rank; failed: given up so far
 *   {"kind": "corrupt", "step", "replayed", "wrong": [RANK, ...], "unknown": [RANK, ...]}
 *                                                          ranks whose state differs (replicas.h);
 *                                                          replayed: a repeated step found it
 *   {"kind": "replay", "step", "verdict", "wrong", "unknown"}  rows of a step were computed again:
 *                                                          "hardware", "once" or "data" (replay.h)
 *   {"kind": "straggler", "step", "rank", "slow", "share", "compute_s"}  a rank has become slow, or
 *                                                          is no longer (stragglers.h): how much
 *                                                          longer than the others it computes
 *   {"kind": "replicas", "step", "compared", "seconds"}  how often states were compared by this
 *                                                          start of the program, and what it cost
 *   {"kind": "diverged", "step", "why", "go_on_from"}      the run gave up; the step of the
 *                                                          checkpoint to resume from, -1: there is
 *                                                          none */
#ifndef LT_TRAIN_METRICS_H
#define LT_TRAIN_METRICS_H

#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "platform/agent/lease.h"

/* The numbers of a line, in order: name, kind, unit, description. metrics.jsonl, the report and
 * Prometheus (live.h) use these tables. */
#define LT_TRAIN_METRICS(X)                                                                        \
    X(step, COUNT, "", "optimiser step")                                                           \
    X(time_s, GAUGE, "s", "since the program began")                                               \
    X(loss, GAUGE, "nats", "mean cross-entropy of the step's counted labels")                      \
    X(lr, GAUGE, "", "learning rate")                                                              \
    X(grad_norm, GAUGE, "", "length of the gradient, before clipping")                             \
    X(batch, COUNT, "rows", "rows of the step")                                                    \
    X(tokens, TOTAL, "", "tokens seen since the first step")                                       \
    X(tokens_per_s, GAUGE, "1/s", "tokens of the step by its time")                                \
    X(mfu, GAUGE, "", "share of the device's measured peak that the model's arithmetic used")      \
    X(step_s, GAUGE, "s", "the step")                                                              \
    X(wait_s, GAUGE, "s", "of it, waiting for rows")                                               \
    X(comm_s, GAUGE, "s", "of it, the longest that a rank waited for transfers between ranks")     \
    X(transfer_s, GAUGE, "s", "the longest that transfers of a rank were under way")               \
    X(slowest_rank, COUNT, "", "the rank that computed longest")                                   \
    X(straggler, COUNT, "", "the rank that is slow, while one is (guard.slow)")                    \
    X(straggler_share, GAUGE, "", "how much longer it computes than the others, as a share")       \
    X(memory_bytes, COUNT, "B", "memory of the process on the host")                               \
    X(load_balance, GAUGE, "", "experts: load-balancing loss, summed over layers")                 \
    X(router_z, GAUGE, "", "experts: router z-loss, summed over layers")                           \
    X(energy_j, GAUGE, "J", "used by the device since the program began")                          \
    X(fetched_bytes, TOTAL, "B", "of shards that the leading rank fetched into data.cache")        \
    X(fetch_waits, TOTAL, "", "its reads that had to wait for a shard")                            \
    X(fetch_wait_s, GAUGE, "s", "time of these waits together")
#define LT_EVAL_METRICS(X)                                                                         \
    X(step, COUNT, "", "optimiser step")                                                           \
    X(loss, GAUGE, "nats", "mean cross-entropy of held-out labels")                                \
    X(perplexity, GAUGE, "", "exp(loss)")                                                          \
    X(accuracy, GAUGE, "", "share of labels that had the largest logit")                           \
    X(tokens, COUNT, "", "held-out labels")                                                        \
    X(bits_per_byte, GAUGE, "bit/B", "loss by the text's bytes")

#define LT_RL_METRICS(X)                                                                           \
    X(step, COUNT, "", "optimiser step")                                                           \
    X(reward, GAUGE, "", "mean reward of the answers of the newest draw")                          \
    X(reward_std, GAUGE, "", "its standard deviation over all of them")                            \
    X(equal_groups, GAUGE, "", "share of the groups whose rewards are all equal")                  \
    X(answer_tokens, GAUGE, "", "tokens of an answer, mean")                                       \
    X(ended, GAUGE, "", "share of the answers that the model ended before the limit")              \
    X(entropy, GAUGE, "nats", "of a token, estimated by the drawn ones")                           \
    X(clipped_low, GAUGE, "", "share of the tokens whose gradient the lower clip removed")         \
    X(clipped_high, GAUGE, "", "share of the tokens whose gradient the upper clip removed")        \
    X(off_policy, GAUGE, "", "share of the tokens whose ratio is not exactly 1")                   \
    X(ratio_most, GAUGE, "", "largest ratio of a token")                                           \
    X(kl, GAUGE, "nats", "divergence from the reference, estimated, mean of a token")              \
    X(mismatch, GAUGE, "nats",                                                                     \
      "largest difference of a token's log-probability between engine and trainer, same weights")  \
    X(rollout_s, GAUGE, "s", "drawing the answers")                                                \
    X(refresh_s, GAUGE, "s", "until the engine ran on the new weights")                            \
    X(reward_s, GAUGE, "s", "judging the answers")                                                 \
    X(rollout_tokens_per_s, GAUGE, "1/s", "tokens drawn by the time of drawing")                   \
    X(questions, COUNT, "", "questions of the newest draw")                                        \
    X(passed, GAUGE, "", "curriculum: share of its answers that passed (rl.pass)")                 \
    X(open, COUNT, "", "curriculum: problems that may be asked")

/* Metrics of distillation; the loss is in the line of "train". */
#define LT_DISTILL_METRICS(X)                                                                      \
    X(step, COUNT, "", "optimiser steps done")                                                     \
    X(labels, COUNT, "tokens", "places that were compared with the teacher")                       \
    X(on_policy, GAUGE, "", "share of the answers that the student drew")                          \
    X(answer_tokens, GAUGE, "tokens", "mean length of these")                                      \
    X(ended, GAUGE, "", "share of these that the model ended before the limit")                    \
    X(rollout_s, GAUGE, "s", "time in which they were drawn")

/* With TRL's names and meaning: id, kind, unit, description, name. */
#define LT_PREFERENCE_METRICS(X)                                                                   \
    X(step, COUNT, "", "optimiser step", "step")                                                   \
    X(chosen, GAUGE, "",                                                                           \
      "mean reward of chosen (good) completions or steps: beta times the log-ratio, or the score", \
      "rewards/chosen")                                                                            \
    X(rejected, GAUGE, "", "the same of rejected (bad) completions", "rewards/rejected")           \
    X(margins, GAUGE, "", "their difference", "rewards/margins")                                   \
    X(accuracies, GAUGE, "", "share of pairs whose chosen reward is larger", "rewards/accuracies") \
    X(logps_chosen, GAUGE, "nats",                                                                 \
      "log-probability of chosen completions: summed over tokens; without a reference the mean",   \
      "logps/chosen")                                                                              \
    X(logps_rejected, GAUGE, "nats", "the same of rejected completions", "logps/rejected")         \
    X(kl, GAUGE, "nats", "KTO's reference point", "kl")

/* COUNT: an integer; TOTAL: one that only grows during a run. */
typedef enum { LT_METRIC_COUNT, LT_METRIC_TOTAL, LT_METRIC_GAUGE } lt_metric_kind;
typedef struct {
    const char *name;
    lt_metric_kind kind;
    const char *unit, *help;
} lt_metric;

#define LT_METRIC_TRAIN_ENUM(name, kind, unit, help)          LT_TRAIN_##name,
#define LT_METRIC_EVAL_ENUM(name, kind, unit, help)           LT_EVAL_##name,
#define LT_METRIC_RL_ENUM(name, kind, unit, help)             LT_RL_##name,
#define LT_METRIC_DISTILL_ENUM(name, kind, unit, help)        LT_DISTILL_##name,
#define LT_METRIC_PREFERENCE_ENUM(id, kind, unit, help, name) LT_PREFERENCE_##id,
enum { LT_TRAIN_METRICS(LT_METRIC_TRAIN_ENUM) LT_TRAIN_METRIC_COUNT };
enum { LT_EVAL_METRICS(LT_METRIC_EVAL_ENUM) LT_EVAL_METRIC_COUNT };
enum { LT_RL_METRICS(LT_METRIC_RL_ENUM) LT_RL_METRIC_COUNT };
enum { LT_DISTILL_METRICS(LT_METRIC_DISTILL_ENUM) LT_DISTILL_METRIC_COUNT };
enum { LT_PREFERENCE_METRICS(LT_METRIC_PREFERENCE_ENUM) LT_PREFERENCE_METRIC_COUNT };
extern const lt_metric lt_train_metrics[LT_TRAIN_METRIC_COUNT],
    lt_eval_metrics[LT_EVAL_METRIC_COUNT], lt_rl_metrics[LT_RL_METRIC_COUNT],
    lt_distill_metrics[LT_DISTILL_METRIC_COUNT], lt_preference_metrics[LT_PREFERENCE_METRIC_COUNT];

/* Further receivers of the tables' rows: Prometheus (live.h), TensorBoard (tensorboard.h). */
typedef struct {
    lt_err (*row)(void *of, const char *kind, const lt_metric *table, int n, const double *values,
                  const bool *present);
    void *of;
} lt_metrics_sink;
#define LT_METRICS_SINKS 2

typedef struct {
    FILE *file;
    const char *path;
    lt_metrics_sink sinks[LT_METRICS_SINKS];
    int n_sinks;
    /* From the existing file: the last step that an earlier attempt wrote, -1: none; when it was
     * last written, in Unix seconds, 0: never. */
    int64_t step_told;
    double written_unix_s;
    const lt_lease *lease; /* Lines are written only while this process holds it. */
} lt_metrics;

/* Where a run goes on. */
typedef struct {
    int64_t step;
    bool evaluates; /* It samples and evaluates here: before its first step or after its last. */
} lt_metrics_from;

/* Open path for appending, after dropping the lines that a run which goes on from here repeats, and
 * a last line cut short by a crash. The file is always a new one, so what a process writes that
 * still has the old one open is lost. path and lease (NULL: none) are kept. */
LT_MUST_USE lt_err lt_metrics_open(lt_metrics *m, const char *path, const lt_metrics_from *from,
                                   const lt_lease *lease);
void lt_metrics_close(lt_metrics *m);
void lt_metrics_add_sink(lt_metrics *m, lt_metrics_sink sink);

/* Append a line with a table's numbers, without those whose `present` is false. It allocates
 * nothing. An lt_metrics that was never opened, as on ranks that do not lead, drops all lines. */
LT_MUST_USE lt_err lt_metrics_row(lt_metrics *m, const char *kind, const lt_metric *table, int n,
                                  const double *values, const bool *present);

/* Append any other line; takes the reference to `line`. */
LT_MUST_USE lt_err lt_metrics_put(lt_metrics *m, json_t *line);

/* [{"name", "unit", "help"}, ...] of all tables, each name once; NULL: out of memory. */
json_t *lt_metrics_described(void);

#endif
