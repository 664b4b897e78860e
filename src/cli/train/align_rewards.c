/* align_rewards.c: `lateen align rewards FILE.jsonl --out FILE.jsonl`: rewards of a reference
 * model's completions, for QRPO (align/reference_rewards.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "align/reference_rewards.h"
#include "align/reward_options.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/train/align.h"
#include "cli/platform/copying.h"
#include "cli/opened.h"
#include "cli/verb.h"
#include "lateen/generate.h"
#include "tensor/backend.h"
#include "train/checkpoint/checksum.h"

#define MOST_FILES 64

#define REWARDS_OPTIONS(X)                                                                         \
    LT_OPENED_OPTIONS(X)                                                                           \
    X(STR, out, "out", "", 0, 1, "FILE.jsonl", "where the lines go, for data.train")               \
    X(I64, n, "n", "8", 1, 512, "N", "completions of each prompt")                                 \
    X(I64, tokens, "tokens", "256", 1, 1e6, "N", "tokens of a completion, at most")                \
    X(I64, seq, "seq", "1024", 2, 1e7, "N", "tokens of a prompt and its completion, at most")      \
    X(F64, temperature, "temperature", "1", 0, 100, "",                                            \
      "temperature at which completions are drawn", LT_OPTION_ABOVE_MIN)                           \
    X(I64, seed, "seed", "1234", 0, 9e18, "N", "seed of the completions")                          \
    X(I64, prompts, "prompts", "16", 1, 65536, "N",                                                \
      "prompts whose completions are drawn, and then written, together")                           \
    X(I64, running, "running", "64", 1, 65536, "N", "completions that are drawn at once")          \
    X(STR, rewards, "rewards", "model", 0, 1, "NAME[:WEIGHT],...", "a sum of: " LT_REWARD_NAMES)   \
    X(STR, reward_model, "reward-model", "", 0, 0, "PATH",                                         \
      "reward model: a folder with a score head of one value, or one that judges steps")           \
    X(STR, command, "reward-command", "", 0, 0, "COMMAND",                                         \
      "reward command: a program that reads a JSON line for each completion and writes a number")  \
    X(F64, command_limit, "reward-command-limit", "60", 0, 1e6, "S",                               \
      "seconds that the command may take for one line", LT_OPTION_ABOVE_MIN)                       \
    X(I64, soft, "soft", "0", 0, 1e6, "N",                                                         \
      "reward overlong: tokens before the limit at which the penalty for length begins")           \
    X(STR, chat_template, "chat-template", "", 0, 0, "NAME|FILE",                                  \
      "template of the prompts; empty: the model's own")                                           \
    X(ENUM, bad_rows, "bad-rows", "skip", 0, 0, LT_BAD_ROWS_CHOICES,                               \
      "lines that are not a prompt, or that the template refuses")                                 \
    X(ENUM, too_long, "too-long", "skip", 0, 0, LT_TOO_LONG_CHOICES,                               \
      "prompts of more than --seq less --tokens tokens; cut means skip")                           \
    X(BOOL, quiet, "quiet", "false", 0, 0, "", "print errors only")

typedef struct {
    REWARDS_OPTIONS(LT_OPTION_FIELD)
} rewards_options;
#define LT_OPTION_STRUCT rewards_options
static const lt_option rows[] = {REWARDS_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("align rewards", rows);

static const char usage[] =
    "align rewards FILE.jsonl... --model REFERENCE --reward-model MODEL --out FILE.jsonl";
static const char prose[] =
    "Draw completions of each prompt from the reference model, and write their rewards, which "
    "QRPO reads:\n`lateen train --objective.kind qrpo --data.train FILE.jsonl`. A line with a "
    "completion of its own\nbecomes one line with its reward and those of the completions; one "
    "without becomes a line for each\ncompletion. An interrupted command continues where it "
    "stopped.";

typedef struct {
    const rewards_options *o;
    lt_opened opened;
    lt_chat_source chat;
    lt_problems problems;
    lt_rewards *rewards;
    lt_rollouts *rollouts;
    lt_progress line;
} job;

static lt_err open_prompts(job *j, const char **files, int n) {
    const rewards_options *o = j->o;
    const lt_problems_options how = {.source = &j->chat,
                                     .longest = o->seq - o->tokens,
                                     .bad_rows = (lt_bad_rows)o->bad_rows,
                                     .too_long = (lt_too_long)o->too_long};
    if (o->tokens >= o->seq) {
        LT_FAIL(LT_ERR_ARG, "--tokens %" PRId64 " leaves no room for a prompt in --seq %" PRId64,
                o->tokens, o->seq);
    }
    LT_TRY(lt_align_open_chat(&j->chat, &j->opened, o->tokenizer, o->chat_template, false));
    for (int i = 0; i < n; i++) {
        LT_TRY(lt_problems_read(&j->problems, files[i], &how));
    }
    return LT_OK;
}

static lt_err open_rewards(job *j, const char *reward_model) {
    const rewards_options *o = j->o;
    const lt_err err = lt_rewards_open(&j->rewards,
                                       &(lt_reward_options){.sum = o->rewards,
                                                            .command = o->command,
                                                            .command_limit_s = o->command_limit,
                                                            .model = reward_model,
                                                            .device = j->opened.device,
                                                            .longest = 2 * o->seq,
                                                            .max_tokens = o->tokens,
                                                            .soft_tokens = o->soft,
                                                            .tokenizer = j->opened.tokenizer});
    return err != LT_OK ? lt_error_prefix(err, "--rewards")
                        : lt_rewards_check(j->rewards, &j->problems);
}

static lt_err open_all(job *j, const char **files, int n) {
    const rewards_options *o = j->o;
    char reward_model[LT_PATH_BYTES] = "";
    lt_rollout_options how = {.max_tokens = o->tokens,
                              .max_seq = o->seq,
                              .questions = o->prompts,
                              .running = o->running,
                              .temperature = o->temperature};
    LT_TRY(o->reward_model[0] != '\0' ? lt_cli_bring(reward_model, o->reward_model) : LT_OK);
    LT_TRY(lt_opened_open(&j->opened, o->model, "", o->tokenizer, (lt_opened_dtype)o->dtype,
                          o->device, o->threads));
    LT_TRY(lt_align_check_model(j->opened.model, "align rewards", o->seq));
    for (int i = 0; i < n; i++) {
        LT_TRY(lt_file_spare(o->out, files[i]));
    }
    LT_TRY(open_prompts(j, files, n));
    LT_TRY(open_rewards(j, reward_model));
    lt_model_ends(j->opened.model, j->opened.tokenizer, &how.ends);
    return lt_rollouts_open(&j->rollouts, j->opened.model, &how);
}

/* Everything that determines the output, besides the prompts. */
static lt_err identity_of(uint64_t *out, const job *j) {
    const rewards_options *o = j->o;
    char text[4 * LT_OPTION_STR_BYTES];
    uint64_t weights;
    LT_TRY(lt_weights_checksum(&weights, j->opened.model, NULL, NULL));
    (void)snprintf(text, sizeof text,
                   "%016" PRIx64 " %" PRId64 " %" PRId64 " %.17g %" PRId64 " %s|%s|%s", weights,
                   o->tokens, o->seq, o->temperature, o->soft, o->rewards, o->reward_model,
                   o->command);
    *out = XXH3_64bits(text, strlen(text));
    return LT_OK;
}

static void progress(void *ctx, int64_t done, int64_t all) {
    job *j = ctx;
    if (!j->o->quiet) {
        lt_progress_show(&j->line, "%" PRId64 " of %" PRId64 " prompts", done, all);
    }
}

static lt_err run(job *j, const char **files, int n) {
    const rewards_options *o = j->o;
    lt_reference_rewards_options how;
    lt_reference_rewards_stats stats;
    LT_TRY(open_all(j, files, n));
    how = (lt_reference_rewards_options){.out = o->out,
                                         .problems = &j->problems,
                                         .rewards = j->rewards,
                                         .rollouts = j->rollouts,
                                         .tokenizer = j->opened.tokenizer,
                                         .n = o->n,
                                         .prompts = o->prompts,
                                         .seed = (uint64_t)o->seed,
                                         .progress = progress,
                                         .ctx = j};
    LT_TRY(identity_of(&how.identity, j));
    LT_TRY(lt_reference_rewards_run(&how, &stats));
    if (!o->quiet) {
        lt_progress_end(&j->line);
        lt_log_info("%s: %" PRId64 " lines of %" PRId64 " prompts, %" PRId64
                    " of these from an earlier start; %" PRId64
                    " completions of the reference model, mean reward %.4f",
                    o->out, stats.lines, stats.prompts, stats.kept, stats.drawn,
                    stats.drawn > 0 ? stats.reward_sum / (double)stats.drawn : 0.0);
    }
    return LT_OK;
}

int lt_align_rewards(int argc, char **argv) {
    rewards_options o;
    job j = {.o = &o, .line = {.plain_every_s = 10}};
    const char *files[MOST_FILES];
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(&table, &o, argc, argv, usage, prose, files, MOST_FILES, &n, &status)) {
        return status;
    }
    if (n == 0 || o.out[0] == '\0') {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "align: usage: lateen %s", usage));
    }
    err = run(&j, files, n);
    lt_rollouts_close(j.rollouts);
    lt_rewards_close(j.rewards);
    lt_problems_close(&j.problems);
    lt_chat_source_close(&j.chat);
    lt_opened_close(&j.opened);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
