/* verb_eval.c: `lateen eval`: evaluates a model on text or on a task. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/eval_generative.h"
#include "cli/opened.h"
#include "cli/read_lines.h"
#include "cli/verb.h"
#include "lateen/eval.h"

#define MAX_FILES 256

#define EVAL_OPTIONS(X)                                                                            \
    LT_OPENED_OPTIONS(X)                                                                           \
    LT_OPENED_LORA_OPTION(X)                                                                       \
    X(STR, task, "task", "", 0, 0, "NAME",                                                         \
      LT_EVAL_TASKS ", " LT_GENERATIVE_TASKS "; empty: loss on text files")                        \
    X(I64, seq, "seq", "0", 0, 1e9, "N",                                                           \
      "tokens of one sequence; 0: the model's longest, at most 2048")                              \
    X(I64, limit, "limit", "0", 0, 1e12, "N", "most questions or documents to read; 0: all")       \
    X(I64, shots, "shots", "0", 0, 64, "N",                                                        \
      "mmlu, at most 5, gsm8k, mbpp: solved examples before each question")                        \
    X(STR, examples, "examples", "", 0, 0, "FILE", "gsm8k, mbpp with shots: solved problems")      \
    X(STR, responses, "responses", "", 0, 0, "FILE",                                               \
      "tasks that generate: score these, JSON lines with `response` (for code also "               \
      "`completion`), without a model")                                                            \
    X(STR, outputs, "outputs", "", 0, 0, "FILE",                                                   \
      "tasks that generate: write each response with its scores, as JSON lines")                   \
    X(STR, nltk, "nltk", "", 0, 0, "DIR",                                                          \
      "ifeval: NLTK's data folder, with tokenizers/punkt_tab/english; empty: instructions that "   \
      "need it are not scored")                                                                    \
    X(BOOL, chat, "chat", "false", 0, 0, "",                                                       \
      "tasks that generate: the prompt is a message in the model's chat template")                 \
    X(I64, max_tokens, "max-tokens", "0", 0, 1e9, "N",                                             \
      "tasks that generate: most tokens of a response; 0: the harness's, 256 to 1280")             \
    X(I64, max_running, "max-running", "64", 1, 65536, "N",                                        \
      "tasks that generate: responses at once")                                                    \
    X(TEXT, align, "align", "", 0, 0, "JSON",                                                      \
      "tasks that generate: answer by a method of alignment, as the server's field `alignment`: "  \
      "{\"method\": \"best_of_n\", \"n\": 8}")                                                     \
    X(TEXT, request, "request", "", 0, 0, "JSON",                                                  \
      "tasks that generate: fields of every request, such as {\"temperature\": 0.6}")              \
    X(I64, samples, "samples", "1", 1, 512, "N",                                                   \
      "humaneval, mbpp, problems: responses to each question, with a temperature in --request")    \
    X(STR, k, "k", "1", 0, 1, "list",                                                              \
      "humaneval, mbpp, problems: sizes of samples for pass@k (and maj@k), e.g. 1,10")             \
    X(ENUM, sandbox, "sandbox", "namespaces", 0, 0, LT_SANDBOX_KINDS,                              \
      "humaneval, mbpp: how code is isolated; rlimits is weaker")                                  \
    X(F64, test_limit, "test-limit", "10", 0, 1e6, "s",                                            \
      "humaneval, mbpp: seconds for the tests of a response", LT_OPTION_ABOVE_MIN)                 \
    LT_BESIDE_OPTIONS(X)                                                                           \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    EVAL_OPTIONS(LT_OPTION_FIELD)
} eval_options;
#define LT_OPTION_STRUCT eval_options
static const lt_option rows[] = {EVAL_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_eval_options = LT_OPTION_TABLE("eval", rows);

static void show(void *ctx, int64_t done, int64_t all) {
    if (all > 0) {
        lt_progress_show(ctx, "%lld of %lld", (long long)done, (long long)all);
    } else {
        lt_progress_show(ctx, "%lld tokens", (long long)done);
    }
}

static void print_json(json_t *o) {
    json_dumpf(o, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    putchar('\n');
    json_decref(o);
}

static void set_number(json_t *o, const char *key, double x) {
    if (!isnan(x)) {
        json_object_set_new(o, key, json_real(x));
    }
}

/* The types with which it was computed. */
typedef struct {
    const char *name; /* As named by --dtype. */
    char types[LT_OPENED_TYPES_BYTES];
    bool blocks;
} precision;

static precision precision_of(const lt_model *m, lt_opened_dtype dtype) {
    static const char *const names[] = {"stored", "fp32", "bf16"};
    precision p = {.name = names[dtype]};
    lt_opened_types(m, p.types, &p.blocks);
    return p;
}

static void print_precision(const precision *p) {
    const bool stored = strcmp(p->name, "stored") == 0;
    printf("computed in %s (%s)%s\n", p->name, p->types,
           !stored     ? ", while serve computes as stored"
           : p->blocks ? " as serve does: 8-bit activations in products with blocks"
                       : " as serve does");
}

static void set_precision(json_t *o, const precision *p) {
    json_object_set_new(o, "dtype", json_string(p->name));
    json_object_set_new(o, "weights", json_string(p->types));
}

static void print_task(const lt_eval_task_result *r, const precision *p, bool json) {
    if (json) {
        json_t *o = json_pack("{s:s, s:I, s:f, s:f}", "task", r->task, "items",
                              (json_int_t)r->items, "acc", r->accuracy, "acc_stderr",
                              r->accuracy_stderr);
        set_number(o, "acc_norm", r->accuracy_normalised);
        set_number(o, "perplexity", r->perplexity);
        set_precision(o, p);
        print_json(o);
        return;
    }
    printf("%-14s %lld questions\n  acc        %.4f ± %.4f\n", r->task, (long long)r->items,
           r->accuracy, r->accuracy_stderr);
    if (!isnan(r->accuracy_normalised)) {
        printf("  acc_norm   %.4f\n", r->accuracy_normalised);
    }
    if (!isnan(r->perplexity)) {
        printf("  perplexity %.3f\n", r->perplexity);
    }
    print_precision(p);
}

static void print_text(const lt_eval_text_result *r, const precision *p, bool json) {
    if (json) {
        json_t *o = json_pack("{s:f, s:f, s:f, s:I, s:I, s:I}", "loss", r->loss, "perplexity",
                              r->perplexity, "bits_per_byte", r->bits_per_byte, "tokens",
                              (json_int_t)r->tokens, "bytes", (json_int_t)r->bytes, "documents",
                              (json_int_t)r->documents);
        set_precision(o, p);
        print_json(o);
        return;
    }
    printf("loss           %.4f nats a token\nperplexity     %.3f\nbits per byte  %.4f\n%lld "
           "tokens, %lld bytes, %lld documents\n",
           r->loss, r->perplexity, r->bits_per_byte, (long long)r->tokens, (long long)r->bytes,
           (long long)r->documents);
    print_precision(p);
}

static lt_err run(const eval_options *o, const char **files, int n_files) {
    lt_err err = LT_OK;
    lt_opened m = {0};
    lt_progress progress = {.plain_every_s = 10.0};
    precision p;
    lt_eval_options e = {
        .seq = o->seq, .limit = o->limit, .shots = o->shots, .progress = show, .ctx = &progress};

    if (n_files == 0 || (o->task[0] != '\0' && n_files != 1)) {
        LT_FAIL(LT_ERR_ARG,
                o->task[0] != '\0' ? "--task takes one data file; %d were given"
                                   : "eval needs a text file to evaluate; %d were given",
                n_files);
    }
    LT_TRY_DONE(lt_opened_open(&m, o->model, o->lora, o->tokenizer, (lt_opened_dtype)o->dtype,
                               o->device, o->threads));
    e.model = m.model;
    e.tokenizer = m.tokenizer;
    p = precision_of(m.model, (lt_opened_dtype)o->dtype);
    if (o->task[0] != '\0') {
        lt_eval_task_result r;
        LT_TRY_DONE(lt_eval_task(&r, &e, o->task, files[0]));
        lt_progress_end(&progress);
        print_task(&r, &p, o->json);
    } else {
        lt_eval_text_result r;
        LT_TRY_DONE(lt_eval_text(&r, &e, files, n_files));
        lt_progress_end(&progress);
        print_text(&r, &p, o->json);
    }
done:
    lt_opened_close(&m);
    return err;
}

static const char *or_null(const char *text) {
    return text[0] != '\0' ? text : NULL;
}

/* The sizes for pass@k, each of which `samples` must hold. */
static lt_err read_k(lt_generative_options *how, const char *text) {
    for (const char *at = text; *at != '\0';) {
        long long k;
        if (!lt_cli_next_number(&at, &k) || k < 1 || k > how->samples ||
            how->n_k == LT_GENERATIVE_K) {
            LT_FAIL(LT_ERR_ARG,
                    "--k %s is not a list of at most %d numbers from 1 to the %lld samples", text,
                    LT_GENERATIVE_K, (long long)how->samples);
        }
        how->k[how->n_k++] = (int)k;
    }
    return LT_OK;
}

/* Whether there are options that have no effect on other tasks. */
static bool has_sample_options(const eval_options *o) {
    return o->samples != 1 || strcmp(o->k, "1") != 0;
}

static bool has_code_options(const eval_options *o) {
    return o->sandbox != 0 || o->test_limit != 10.0;
}

static lt_err run_generative(const eval_options *o, const char **files, int n_files) {
    char found[LT_PATH_BYTES];
    const char *model = o->model;
    if (n_files != 1) {
        LT_FAIL(LT_ERR_ARG, "a task takes one data file, %d given", n_files);
    }
    if (o->seq != 0) {
        LT_FAIL(LT_ERR_ARG, "--seq has no effect on tasks that generate");
    }
    if (o->responses[0] != '\0' &&
        (o->align[0] != '\0' || o->request[0] != '\0' || o->lora[0] != '\0' ||
         o->steer[0] != '\0' || o->second[0] != '\0' || o->reward[0] != '\0')) {
        LT_FAIL(LT_ERR_ARG, "--align, --request, --lora, --steer, --second and --reward have no "
                            "effect with --responses, which asks no model");
    }
    if (has_sample_options(o) && !lt_generative_samples(o->task)) {
        LT_FAIL(LT_ERR_ARG, "--samples and --k are for humaneval, mbpp and problems");
    }
    if (has_code_options(o) && !lt_generative_runs(o->task)) {
        LT_FAIL(LT_ERR_ARG, "--sandbox and --test-limit are for humaneval and mbpp");
    }
    if (model[0] == '\0' && o->responses[0] == '\0') {
        LT_TRY(lt_opened_default_model(found, LT_DEFAULT_WRITES));
        model = found;
    }
    lt_served served = LT_SERVED_OF(o, model, o->lora);
    LT_TRY(lt_served_read(&served, o->second));
    lt_generative_options how = {.task = o->task,
                                 .data = files[0],
                                 .examples = or_null(o->examples),
                                 .responses = or_null(o->responses),
                                 .outputs = or_null(o->outputs),
                                 .nltk = or_null(o->nltk),
                                 .shots = o->shots,
                                 .limit = o->limit,
                                 .chat = o->chat,
                                 .max_tokens = o->max_tokens,
                                 .max_running = o->max_running,
                                 .samples = o->samples,
                                 .tests = {.kind = (lt_sandbox_kind)o->sandbox,
                                           .limit_s = o->test_limit,
                                           .memory_bytes = LT_SANDBOX_LIMITS.memory_bytes,
                                           .parallel = lt_thread_count(),
                                           .program = "/proc/self/exe"}};
    LT_TRY(read_k(&how, o->k));
    return lt_eval_generative(how, &served, o->align, o->request, o->json);
}

/* Refuse options of the other tasks, which would have no effect. */
static lt_err check_plain(const eval_options *o) {
    if (o->examples[0] != '\0' || o->responses[0] != '\0' || o->outputs[0] != '\0' ||
        o->nltk[0] != '\0' || o->chat || o->max_tokens != 0 || o->max_running != 64 ||
        o->align[0] != '\0' || o->request[0] != '\0' || o->steer[0] != '\0' ||
        o->second[0] != '\0' || o->reward[0] != '\0' || o->reward_tokenizer[0] != '\0' ||
        has_sample_options(o) || has_code_options(o)) {
        LT_FAIL(LT_ERR_ARG, "--examples, --responses, --outputs, --nltk, --chat, --max-tokens, "
                            "--max-running, --align, --request, --steer, --second, --reward, "
                            "--reward-tokenizer, --samples, --k, "
                            "--sandbox and --test-limit are for " LT_GENERATIVE_TASKS);
    }
    if (o->shots > 0 && strcmp(o->task, "mmlu") != 0) {
        LT_FAIL(LT_ERR_ARG, "--shots %lld: %s has no examples; mmlu, gsm8k and mbpp have",
                (long long)o->shots, o->task[0] != '\0' ? o->task : "a text without --task");
    }
    if (o->shots > 5) {
        LT_FAIL(LT_ERR_ARG, "--shots %lld: mmlu has at most 5", (long long)o->shots);
    }
    return LT_OK;
}

int lt_verb_eval(int argc, char **argv);
int lt_verb_eval(int argc, char **argv) {
    static const char prose[] =
        "Without --task: loss, perplexity and bits per byte on text files (.txt, .jsonl; plain, "
        ".gz, .zst).\n"
        "With --task: accuracy on the task's data, by lm-evaluation-harness's method; gsm8k, "
        "ifeval,\nhumaneval, mbpp and problems (of `lateen data make`) are answered by generating.";
    const char *files[MAX_FILES];
    eval_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_eval_options, &o, argc, argv,
                       "eval --model M [--task T] DATA... [--json]", prose, files, MAX_FILES, &n,
                       &status)) {
        return status;
    }
    if (lt_generative_has(o.task)) {
        err = run_generative(&o, files, n);
    } else {
        err = check_plain(&o);
        err = err == LT_OK ? run(&o, files, n) : err;
    }
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
