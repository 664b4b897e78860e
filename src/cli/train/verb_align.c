/* verb_align.c: `lateen align hedge`: how strong a selection among candidates may be before its
 * score is hacked (lateen/select.h, HedgeTune). Parts with their own options: cli/train/align.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/train/align.h"
#include "cli/read_lines.h"
#include "cli/verb.h"
#include "lateen/select.h"

#define MOST_PARAMETERS 256

#define ALIGN_OPTIONS(X)                                                                           \
    X(STR, method, "method", "best_of_n", 0, 1, "NAME",                                            \
      "best_of_n, best_of_poisson or soft_best_of_n: what is tuned is n, mu or temperature")       \
    X(STR, parameters, "parameters", "", 0, 0, "list",                                             \
      "values to try, rising, e.g. 1,2,4,8; empty: powers of two up to the candidates that all "   \
      "prompts have, or 40 temperatures from a hundredth of the scores' range to the range")       \
    X(I64, resamples, "resamples", "1000", 0, 1e6, "N",                                            \
      "bootstrap resamples of the prompts for the interval of the best value; 0: none")            \
    X(I64, seed, "seed", "0", 0, 9e18, "", "seed of the resamples")                                \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    ALIGN_OPTIONS(LT_OPTION_FIELD)
} align_options;
#define LT_OPTION_STRUCT align_options
static const lt_option rows[] = {ALIGN_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_align_options = LT_OPTION_TABLE("align hedge", rows);

static const char usage[] =
    "align hedge FILE.jsonl [--method NAME] [--parameters LIST]\n"
    "       lateen align detect FILE --tokenizer PATH --key TEXT [--scheme NAME]\n"
    "       lateen align experiment FILE.yaml [--out DIR]\n"
    "       lateen align logprobs FILE.jsonl... --model TEACHER --out FOLDER\n"
    "       lateen align rewards FILE.jsonl... --model REFERENCE --reward-model MODEL --out "
    "FILE.jsonl";
static const char prose[] =
    "Find how strong a selection among candidates may be before it exploits errors of its score.\n"
    "A line of the file is one calibration prompt: {\"proxy\": [...], \"truth\": [...]} has, for "
    "each of\nits candidates, the score by which the server selects and the true reward. The "
    "table\nshows the expected true reward of the answer for each value, without resampling;\n"
    "docs/alignment.md explains the methods. `lateen align detect --help` explains watermarks,\n"
    "`lateen align experiment --help` measurements of methods on problems, `lateen align logprobs "
    "--help`\nlog-probabilities of a teacher, and `lateen align rewards --help` rewards for "
    "QRPO.\n\n"
    "A model is fine-tuned with an objective of `lateen train --objective.kind NAME`:\n"
    "  answers to imitate                         sft\n"
    "  answers, and a larger model as teacher     distill\n"
    "  pairs, of which one was preferred          dpo; ipo or ipo_norm if all annotators agree\n"
    "  pairs, some of them labelled wrong         dpo_robust, dpo with --objective.smoothing\n"
    "  pairs of very different lengths            dpo_norm, simpo\n"
    "  pairs, and a model not yet fine-tuned      orpo\n"
    "  pairs, for a model that judges             reward\n"
    "  steps, labelled, for a model that judges   prm\n"
    "  single completions, good or bad            kto, apo_zero\n"
    "  single completions with rewards            qrpo, qrpo_norm\n"
    "  problems whose answers can be checked      grpo, dr_grpo, dapo, gspo, cispo, luspo, rloo\n"
    "docs/post-training.md has their data and formulas.";

typedef struct {
    lt_hedge_prompt *prompts;
    int64_t n, room, least; /* least: number of candidates that every prompt has. */
    double low, high;       /* Lowest and highest of all scores. */
} calibration;

static void calibration_free(calibration *c) {
    for (int64_t i = 0; i < c->n; i++) {
        free((void *)(uintptr_t)c->prompts[i].proxy);
    }
    free(c->prompts);
}

/* ---- The file ---- */

static lt_err read_numbers(const json_t *line, const char *key, const char *where, double *out,
                           size_t n) {
    const json_t *list = json_object_get(line, key);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_number(x)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: \"%s\"[%zu] is not a number", where, key, i);
        }
        out[i] = json_number_value(x);
    }
    return LT_OK;
}

static lt_err add_prompt(calibration *c, const json_t *line, const char *where) {
    const size_t n = json_array_size(json_object_get(line, "proxy"));
    const size_t n_truth = json_array_size(json_object_get(line, "truth"));
    double *both;
    if (n == 0 || n != n_truth) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: \"proxy\" and \"truth\" must be lists of the same length, at least 1; they "
                "have %zu and %zu numbers",
                where, n, n_truth);
    }
    if (c->n == c->room) {
        const int64_t room = c->room > 0 ? 2 * c->room : 64;
        lt_hedge_prompt *more = realloc(c->prompts, (size_t)room * sizeof *more);
        if (more == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: %lld prompts", where, (long long)room);
        }
        c->prompts = more;
        c->room = room;
    }
    both = malloc(2 * n * sizeof *both);
    if (both == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu candidates", where, n);
    }
    c->prompts[c->n++] = (lt_hedge_prompt){both, both + n, (int64_t)n};
    LT_TRY(read_numbers(line, "proxy", where, both, n));
    LT_TRY(read_numbers(line, "truth", where, both + n, n));
    c->least = c->n == 1 || (int64_t)n < c->least ? (int64_t)n : c->least;
    for (size_t i = 0; i < n; i++) {
        const bool first = c->n == 1 && i == 0;
        c->low = first || both[i] < c->low ? both[i] : c->low;
        c->high = first || both[i] > c->high ? both[i] : c->high;
    }
    return LT_OK;
}

static lt_err add_line(void *ctx, const char *where, const char *text, size_t n) {
    json_t *root = NULL;
    lt_err err = lt_json_parse(&root, text, n, where);
    err = err == LT_OK ? add_prompt(ctx, root, where) : err;
    json_decref(root);
    return err;
}

static lt_err read_file(calibration *c, const char *path) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    lt_err err;
    if (f == NULL) {
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    err = lt_cli_each_line(f, path, add_line, c);
    if (err == LT_OK && c->n == 0) {
        err = lt_error_set(LT_ERR_FORMAT, "%s has no line", path);
    }
    if (f != stdin) {
        (void)fclose(f);
    }
    return err;
}

/* ---- Values to try ---- */

static lt_err read_list(const char *text, double *out, int64_t *n) {
    for (const char *at = text; *at != '\0';) {
        char *end;
        const double x = strtod(at, &end);
        if (end == at || (*end != ',' && *end != '\0') || *n == MOST_PARAMETERS ||
            (*n > 0 && !(x > out[*n - 1]))) {
            LT_FAIL(LT_ERR_ARG, "parameters: \"%s\" is not a list of at most %d rising numbers",
                    text, MOST_PARAMETERS);
        }
        out[(*n)++] = x;
        at = *end == ',' ? end + 1 : end;
    }
    return LT_OK;
}

static void usual_values(const calibration *c, bool temperatures, double *out, int64_t *n) {
    const double range = c->high > c->low ? c->high - c->low : 1;
    if (!temperatures) {
        for (int64_t x = 1; x <= c->least; x *= 2) {
            out[(*n)++] = (double)x;
        }
        return;
    }
    /* From a hundredth of the range to the range, evenly spaced in the logarithm. */
    for (int i = 0; i < 40; i++) {
        out[(*n)++] = range * 0.01 * exp(i * 4.605170185988092 / 39);
    }
}

/* ---- The table ---- */

static void print_row(double parameter, double value, const lt_hedge *best, bool json, bool first) {
    if (json) {
        printf("%s{\"parameter\":%.9g,\"value\":%.9g}", first ? "" : ",", parameter, value);
    } else {
        printf("%12.6g  %12.6f%s\n", parameter, value,
               parameter == best->parameter ? "  best" : "");
    }
}

static lt_err hedge(const align_options *o, const char *path, calibration *c) {
    const lt_select_rule *rule;
    double parameters[MOST_PARAMETERS], values[MOST_PARAMETERS];
    int64_t n = 0;
    lt_hedge best;
    LT_TRY(lt_select_find(&rule, o->method));
    LT_TRY(read_file(c, path));
    LT_TRY(read_list(o->parameters, parameters, &n));
    if (n == 0) {
        usual_values(c, (rule->reads & LT_SELECT_TEMPERATURE) != 0, parameters, &n);
    }
    LT_TRY(lt_hedge_tune(rule, c->prompts, c->n, parameters, n, o->resamples, (uint64_t)o->seed,
                         &best, values));
    if (o->json) {
        printf("{\"method\":\"%s\",\"prompts\":%lld,\"best\":%.9g,\"value\":%.9g,\"low\":%.9g,"
               "\"high\":%.9g,\"at_edge\":%s,\"values\":[",
               rule->name, (long long)c->n, best.parameter, best.value, best.low, best.high,
               best.at_edge ? "true" : "false");
    } else {
        printf("%s, %lld prompts\n%12s  %12s\n", rule->name, (long long)c->n,
               rule->reads & LT_SELECT_TEMPERATURE ? "temperature"
               : rule->reads & LT_SELECT_MU        ? "mu"
                                                   : "n",
               "true reward");
    }
    for (int64_t i = 0; i < n; i++) {
        print_row(parameters[i], values[i], &best, o->json, i == 0);
    }
    if (o->json) {
        printf("]}\n");
        return LT_OK;
    }
    printf("90 %% of resamples have their best between %g and %g\n", best.low, best.high);
    if (best.at_edge) {
        printf("the best is the %s value that was tried: more may lie beyond\n",
               best.parameter == parameters[0] ? "first" : "last");
    }
    return LT_OK;
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} parts[] = {{"detect", lt_align_detect},
             {"experiment", lt_align_experiment},
             {"logprobs", lt_align_logprobs},
             {"rewards", lt_align_rewards}};

int lt_verb_align(int argc, char **argv);
int lt_verb_align(int argc, char **argv) {
    align_options o;
    calibration c = {0};
    const char *words[3];
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    for (size_t i = 0; argc > 1 && i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(argv[1], parts[i].name) == 0) {
            return parts[i].run(argc - 1, argv + 1);
        }
    }
    if (!lt_verb_parse(&lt_verb_align_options, &o, argc, argv, usage, prose, words, 3, &n,
                       &status)) {
        return status;
    }
    if (n != 2 || strcmp(words[0], "hedge") != 0) {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "align: usage: lateen %s", usage));
    }
    err = hedge(&o, words[1], &c);
    calibration_free(&c);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
