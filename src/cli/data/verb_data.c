/* verb_data.c: `lateen data make KIND`: problems with worked steps, answers and checkers. `lateen
 * data check` (data_check.c) judges answers to them. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/data/data_check.h"
#include "cli/verb.h"
#include "data/make/kind.h"

#define DATA_OPTIONS(X)                                                                            \
    X(I64, count, "count", "10", 1, 1e15, "problems", "how many problems to make")                 \
    X(I64, first, "first", "0", 0, 1e15, "index",                                                  \
      "index of the first problem; ranges of one seed can be made apart and joined")               \
    X(I64, seed, "seed", "0", 0, 9e18, "", "seed of all problems")                                 \
    X(ENUM, split, "split", "train", 0, 0, "train|held-out",                                       \
      "which problems to make; no problem is in both parts, whatever the seeds; one in twenty is " \
      "held out")                                                                                  \
    X(STR, level, "level", "1-5", 0, 1, "N or N-M", "difficulty, 1 to 5")                          \
    X(ENUM, form, "form", "chat", 0, 0, "chat|text",                                               \
      "lines of messages for fine-tuning, or lines {\"text\": ...} for pretraining")               \
    X(ENUM, steps, "steps", "reasoning", 0, 0, "reasoning|think|plain|none",                       \
      "where the worked steps go: reasoning_content (in --form text as plain), between <think> "   \
      "and </think>, before the answer, or nowhere")                                               \
    X(ENUM, mark, "mark", "phrase", 0, 0, "phrase|boxed|hashes",                                   \
      "how the answer is marked: \"The answer is 42.\", \\boxed{42} or #### 42")                   \
    X(ENUM, repeats, "repeats", "count", 0, 0, "count|drop|ignore",                                \
      "problems whose parameters occurred before in this range: write and count, leave out, or "   \
      "do not look")                                                                               \
    X(I64, threads, "threads", "0", 0, 4096, "", "0: all cores")                                   \
    X(STR, out, "out", "", 0, 0, "path", "JSON lines; empty: standard output")

typedef struct {
    DATA_OPTIONS(LT_OPTION_FIELD)
} data_options;
#define LT_OPTION_STRUCT data_options
static const lt_option rows[] = {DATA_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_data_options = LT_OPTION_TABLE("data make", rows);

#define KIND_LINE(name, summary) "  " #name ": " summary "\n"
static const char prose[] =
    "Make problems with worked steps, a final answer and the checker that judges answers.\n"
    "KIND is one of these, or all:\n" LT_KIND_MAP(
        KIND_LINE) "Problem i of a seed is always the same, on any number of threads. "
                   "docs/data-make.md has\n"
                   "examples. `lateen data check --help` explains how answers are judged.";

static const char usage[] = "data make KIND|all [--count N] [--seed S] [--split train|held-out] "
                            "[--out FILE.jsonl]\n"
                            "       lateen data check FILE.jsonl|- [--marks NAME] [--k LIST]";

/* "3" or "2-4". */
static lt_err read_levels(const char *text, int *low, int *high) {
    int used = 0;
    const int n = sscanf(text, "%3d%n-%3d%n", low, &used, high, &used);
    if (n < 1 || text[used] != '\0' || strspn(text, "0123456789-") < strlen(text)) {
        LT_FAIL(LT_ERR_ARG, "level: \"%s\" is neither a level nor a range such as 2-4", text);
    }
    *high = n == 1 ? *low : *high;
    return LT_OK;
}

static void show(void *ctx, uint64_t done, uint64_t of) {
    lt_progress_show(ctx, "%llu of %llu problems", (unsigned long long)done,
                     (unsigned long long)of);
}

static lt_err make(const data_options *o, const char *kind) {
    lt_progress line = {.plain_every_s = 10, .next_plain_s = 0};
    lt_make_totals totals;
    lt_make_options how = {.kind = kind,
                           .seed = (uint64_t)o->seed,
                           .split = (lt_make_split)o->split,
                           .form = (lt_make_form)o->form,
                           .steps = (lt_make_steps)o->steps,
                           .mark = (lt_make_mark)o->mark};
    const bool file = o->out[0] != '\0';
    lt_err err;

    LT_TRY(read_levels(o->level, &how.level_min, &how.level_max));
    if (o->threads > 0) {
        lt_thread_set_count((int)o->threads);
    }
    err = lt_make_file(&how, (uint64_t)o->first, (uint64_t)o->count, (lt_make_repeats)o->repeats,
                       file ? o->out : NULL, file ? show : NULL, &line, &totals);
    if (file) {
        lt_progress_end(&line);
    }
    LT_TRY(err);
    if (file) {
        lt_log_info("%s: %llu problems, %.1f MB in %.2f s", o->out,
                    (unsigned long long)totals.written, (double)totals.bytes / 1e6, totals.seconds);
    }
    if (totals.repeats > 0) {
        lt_log_info("%llu of the %llu problems repeat an earlier one and were %s",
                    (unsigned long long)totals.repeats, (unsigned long long)o->count,
                    o->repeats == LT_MAKE_REPEATS_DROP ? "left out" : "written too");
    }
    return LT_OK;
}

int lt_verb_data(int argc, char **argv);
int lt_verb_data(int argc, char **argv) {
    data_options o;
    const char *words[3];
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (argc > 1 && strcmp(argv[1], "check") == 0) {
        return lt_data_check(argc - 1, argv + 1);
    }
    if (!lt_verb_parse(&lt_verb_data_options, &o, argc, argv, usage, prose, words, 3, &n,
                       &status)) {
        return status;
    }
    if (n != 2 || strcmp(words[0], "make") != 0) {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "data: usage: lateen %s", usage));
    }
    err = make(&o, words[1]);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
