/* bench_serve.c: `lateen bench serve URL|MODEL`: latency and throughput of any OpenAI-compatible
 * server: ours, a peer's, or one that is started for the measurement.
 *
 * Requests come from a trace (Azure's CSV, Mooncake's JSON lines with shared prefixes), or have
 * fixed lengths; they arrive at once, at a Poisson rate, or at the trace's times, and at most a
 * given number are in flight. The figures are those that a client sees:
 *
 *     TTFT     from sending to the first token
 *     TPOT     (last - first token) / (tokens - 1), of one request
 *     ITL      each gap between two tokens
 *     goodput  requests a second within both limits */
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "cli/bench/bench.h"
#include "cli/verb.h"
#include "data/text_reader.h"
#include "serve/load.h"

#define MAX_BLOCKS 512 /* Blocks have 512 tokens, so prompts have at most 262,144. */

#define BENCH_SERVE_OPTIONS(X)                                                                     \
    X(STR, tokenizer, "tokenizer", "", 0, 0, "FILE", "with MODEL: its tokenizer")                  \
    X(STR, serve, "serve", "", 0, 0, "FLAGS", "with MODEL: more flags for `lateen serve`")         \
    X(STR, model, "model", "", 0, 0, "NAME",                                                       \
      "the model's name in requests; several, with commas between: in turn; empty: none")          \
    X(STR, api_key, "api-key", "", 0, 0, "KEY", "key that is sent with each request")              \
    X(STR, trace, "trace", "", 0, 0, "FILE",                                                       \
      "arrivals and lengths: Azure's .csv or Mooncake's .jsonl, also .zst")                        \
    X(F64, time_scale, "time-scale", "1", 0, 1e6, "X",                                             \
      "multiply the trace's times by this; 0: all at once")                                        \
    X(I64, requests, "requests", "200", 1, 1e6, "N",                                               \
      "number of requests; of a trace, its first N")                                               \
    X(I64, prompt_tokens, "prompt-tokens", "128", 1, 1e6, "N",                                     \
      "without a trace: tokens of each prompt")                                                    \
    X(I64, max_tokens, "max-tokens", "128", 1, 1e6, "N", "without a trace: tokens of each answer") \
    X(I64, limit_tokens, "limit-tokens", "0", 0, 1e7, "N",                                         \
      "with a trace: cut each prompt and its answer to this many tokens together; 0: do not")      \
    X(F64, rate, "rate", "0", 0, 1e6, "1/s", "Poisson arrivals a second; 0: as fast as possible")  \
    X(I64, concurrency, "concurrency", "32", 1, 20000, "N", "most requests in flight")             \
    X(ENUM, endpoint, "endpoint", "completions", 0, 0, "completions|text|chat",                    \
      "completions: prompts are ids, of exact length; text, chat: prompts are words")              \
    X(I64, vocab, "vocab", "500", 64, 1e7, "N", "ids of prompts are drawn below this")             \
    X(F64, temperature, "temperature", "0", 0, 10, "", "temperature of the requests")              \
    X(F64, ttft_limit, "ttft-limit", "0.5", 0, 1e6, "s",                                           \
      "goodput: limit on the time to the first token")                                             \
    X(F64, tpot_limit, "tpot-limit", "0.05", 0, 1e6, "s",                                          \
      "goodput: limit on the time for each further token")                                         \
    X(F64, timeout, "timeout", "600", 0.1, 1e6, "s",                                               \
      "time after which a request counts as failed")                                               \
    X(F64, drop, "drop", "0", 0, 1, "SHARE", "share of clients that disconnect during the answer") \
    X(I64, seed, "seed", "1", 0, 9e18, "N", "seed of prompts and arrivals")                        \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    BENCH_SERVE_OPTIONS(LT_OPTION_FIELD)
} bench_serve_options;
#define LT_OPTION_STRUCT bench_serve_options
static const lt_option rows[] = {BENCH_SERVE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench serve", rows);

typedef struct {
    double *data;
    size_t n, room;
} numbers;

typedef struct {
    const bench_serve_options *o;
    lt_load_request *requests;
    int64_t n;
    lt_load_result *results;
    numbers gaps;
    lt_progress progress;
    char url[256];
    pid_t child;
    double took_s, ready_s;
    char why[300]; /* Error of the first request that failed. */
} bench;

static void push(numbers *v, double x) {
    if (v->n == v->room) {
        const size_t room = v->room > 0 ? 2 * v->room : 4096;
        double *grown = realloc(v->data, room * sizeof *grown);
        if (grown == NULL) {
            return;
        }
        v->data = grown;
        v->room = room;
    }
    v->data[v->n++] = x;
}

/* ---- Requests ---- */

/* "2023-11-16 18:15:46.6805900,374,44": seconds of the day, prompt, answer. */
static bool parse_csv(const char *line, double *at_s, int64_t *prompt, int64_t *answer) {
    int hour, minute;
    double seconds;
    long long p, a;
    if (sscanf(line, "%*d-%*d-%*d %d:%d:%lf,%lld,%lld", &hour, &minute, &seconds, &p, &a) != 5) {
        return false;
    }
    *at_s = 3600.0 * hour + 60.0 * minute + seconds;
    *prompt = p;
    *answer = a;
    return true;
}

static bool parse_mooncake(const char *line, size_t n, double *at_s, lt_load_request *r) {
    json_t *v = json_loadb(line, n, 0, NULL);
    const json_t *ids = json_object_get(v, "hash_ids");
    const size_t n_ids = json_array_size(ids) < MAX_BLOCKS ? json_array_size(ids) : MAX_BLOCKS;
    int64_t *blocks = malloc((n_ids + 1) * sizeof *blocks);

    if (v == NULL || blocks == NULL || !json_is_integer(json_object_get(v, "input_length"))) {
        json_decref(v);
        free(blocks);
        return false;
    }
    for (size_t i = 0; i < n_ids; i++) {
        blocks[i] = json_integer_value(json_array_get(ids, i));
    }
    *at_s = json_number_value(json_object_get(v, "timestamp")) / 1000;
    r->prompt_tokens = json_integer_value(json_object_get(v, "input_length"));
    r->max_tokens = json_integer_value(json_object_get(v, "output_length"));
    r->blocks = blocks;
    r->n_blocks = (int64_t)n_ids;
    json_decref(v);
    return true;
}

static void cut_lengths(lt_load_request *r, int64_t limit) {
    r->max_tokens = r->max_tokens < 1 ? 1 : r->max_tokens;
    r->prompt_tokens = r->prompt_tokens < 1 ? 1 : r->prompt_tokens;
    if (limit > 0 && r->max_tokens > limit / 2) {
        r->max_tokens = limit / 2;
    }
    if (limit > 0 && r->prompt_tokens + r->max_tokens > limit) {
        r->prompt_tokens = limit - r->max_tokens;
    }
}

static lt_err read_trace(bench *b) {
    const bool lines_of_json = strstr(b->o->trace, ".jsonl") != NULL;
    lt_err err = LT_OK;
    lt_text_reader *reader = NULL;
    lt_text_record record;
    bool more = true;
    double first_s = -1;

    LT_TRY(lt_text_reader_open(&reader, b->o->trace,
                               &(lt_text_options){.format = LT_TEXT_PLAIN, .split_on = "line"}));
    while (b->n < b->o->requests) {
        lt_load_request *r = &b->requests[b->n];
        double at_s = 0;
        char line[256];
        LT_TRY_DONE(lt_text_reader_next(reader, &record, &more));
        if (!more) {
            break;
        }
        snprintf(line, sizeof line, "%.*s", (int)(record.bytes < 255 ? record.bytes : 255),
                 record.data);
        if (lines_of_json ? !parse_mooncake(record.data, record.bytes, &at_s, r)
                          : !parse_csv(line, &at_s, &r->prompt_tokens, &r->max_tokens)) {
            if (record.line == 1) {
                continue; /* The heading. */
            }
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s:%llu: neither Azure's CSV nor Mooncake's JSON lines",
                         b->o->trace, (unsigned long long)record.line);
        }
        first_s = first_s < 0 ? at_s : first_s;
        r->at_s = (at_s - first_s) * b->o->time_scale;
        r->prompt_seed = lt_rng_mix((uint64_t)b->o->seed + (uint64_t)b->n);
        cut_lengths(r, b->o->limit_tokens);
        b->n++;
    }
    if (b->n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s holds no request", b->o->trace);
    }
done:
    lt_text_reader_close(reader);
    return err;
}

static void make_requests(bench *b) {
    lt_rng r = {.seed = (uint64_t)b->o->seed, .stream = 3};
    double at_s = 0;
    for (b->n = 0; b->n < b->o->requests; b->n++) {
        b->requests[b->n] = (lt_load_request){
            .at_s = at_s,
            .prompt_tokens = b->o->prompt_tokens,
            .max_tokens = b->o->max_tokens,
            .prompt_seed = lt_rng_mix((uint64_t)(b->o->seed + b->n))};
        if (b->o->rate > 0) {
            at_s += -log(1 - lt_rng_uniform(&r)) / b->o->rate;
        }
    }
}

/* ---- A server of our own ---- */

static lt_err spawn(bench *b, const char *model) {
    char self[LT_PATH_BYTES], flags[LT_OPTION_STR_BYTES], *argv[64], *rest = NULL;
    int out[2], n = 0;
    const ssize_t self_n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (self_n < 0 || pipe(out) != 0) {
        LT_FAIL(LT_ERR_IO, "no server can be started");
    }
    self[self_n] = '\0';
    snprintf(flags, sizeof flags, "%s", b->o->serve);
    argv[n++] = self;
    argv[n++] = "serve";
    argv[n++] = (char *)(uintptr_t)model;
    argv[n++] = "--port=0";
    argv[n++] = "--quiet";
    if (b->o->tokenizer[0] != '\0') {
        argv[n++] = "--tokenizer";
        argv[n++] = (char *)(uintptr_t)b->o->tokenizer;
    }
    for (char *w = strtok_r(flags, " ", &rest); w != NULL && n < 63;
         w = strtok_r(NULL, " ", &rest)) {
        argv[n++] = w;
    }
    argv[n] = NULL;
    b->child = fork();
    if (b->child == 0) {
        dup2(out[1], STDOUT_FILENO);
        close(out[0]);
        execv(self, argv);
        _exit(127);
    }
    close(out[1]);
    FILE *from = fdopen(out[0], "r");
    if (b->child < 0 || from == NULL || fgets(b->url, sizeof b->url, from) == NULL) {
        LT_FAIL(LT_ERR_REMOTE, "lateen serve %s did not start", model);
    }
    fclose(from);
    b->url[strcspn(b->url, "\r\n")] = '\0';
    return LT_OK;
}

/* Send one short request at a time until one is answered: then the server is ready and warm. */
static lt_err wait_ready(bench *b, const lt_load_options *load) {
    const double start = lt_clock_s();
    const lt_load_request hello = {.prompt_tokens = 4, .max_tokens = 2, .prompt_seed = 1};
    lt_load_options one = *load;
    double took;
    one.concurrency = 1;
    one.drop = 0;
    one.on_gap = NULL;
    one.on_progress = NULL;
    for (;;) {
        lt_load_result r;
        const lt_err err = lt_load_run(&one, &hello, 1, &r, &took);
        if (err == LT_OK && r.status == 200 && r.first_s > 0) {
            b->ready_s = lt_clock_s() - start;
            return LT_OK;
        }
        if (err == LT_OK && r.status != 0 && r.status != 503) {
            LT_FAIL(LT_ERR_REMOTE, "%s refuses a completion: %s", b->url, b->why);
        }
        if (b->child > 0 && waitpid(b->child, NULL, WNOHANG) == b->child) {
            b->child = 0;
            LT_FAIL(LT_ERR_REMOTE, "lateen serve ended before it was ready");
        }
        if (b->child <= 0 || lt_clock_s() - start > 600) {
            LT_FAIL(LT_ERR_REMOTE, "%s does not answer", b->url);
        }
        usleep(5000);
    }
}

/* ---- Figures ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const numbers *v, double q) {
    return v->n == 0 ? 0 : v->data[(size_t)(q * (double)(v->n - 1) + 0.5)];
}

static json_t *spread(numbers *v) {
    double sum = 0;
    if (v->n > 0) {
        qsort(v->data, v->n, sizeof *v->data, by_value);
    }
    for (size_t i = 0; i < v->n; i++) {
        sum += v->data[i];
    }
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "mean", v->n > 0 ? sum / (double)v->n : 0, "p50",
                     quantile(v, 0.5), "p90", quantile(v, 0.9), "p99", quantile(v, 0.99), "max",
                     quantile(v, 1));
}

static json_t *report(bench *b) {
    numbers ttft = {0}, tpot = {0}, e2e = {0};
    int64_t good = 0, done = 0, refused = 0, dropped = 0, failed = 0, in = 0, cached = 0, out = 0;
    json_t *r;

    for (int64_t i = 0; i < b->n; i++) {
        const lt_load_result *x = &b->results[i];
        const double first = x->first_s - x->sent_s;
        const double per = x->new_tokens > 1
                               ? (x->last_s - x->first_s) / (double)(x->new_tokens - 1)
                               : 0;
        out += x->new_tokens;
        if (!x->done) {
            refused += x->status == 429;
            dropped += x->dropped;
            failed += x->status != 429 && !x->dropped;
            continue;
        }
        done++;
        in += x->prompt_tokens;
        cached += x->cached_tokens;
        push(&ttft, first);
        push(&e2e, x->end_s - x->sent_s);
        if (x->new_tokens > 1) {
            push(&tpot, per);
        }
        good += first <= b->o->ttft_limit && per <= b->o->tpot_limit;
    }
    r = json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:I, s:I, s:I}", "requests",
                  (json_int_t)b->n, "completed", (json_int_t)done, "refused_429",
                  (json_int_t)refused, "dropped", (json_int_t)dropped, "failed", (json_int_t)failed,
                  "first_failure", b->why, "seconds", b->took_s, "requests_per_s",
                  (double)done / b->took_s, "output_tokens_per_s", (double)out / b->took_s,
                  "total_tokens_per_s", (double)(in + out) / b->took_s, "prompt_tokens",
                  (json_int_t)in, "cached_tokens", (json_int_t)cached, "output_tokens",
                  (json_int_t)out);
    json_object_set_new(r, "goodput_per_s", json_real((double)good / b->took_s));
    json_object_set_new(r, "ready_s", json_real(b->ready_s));
    json_object_set_new(r, "ttft_s", spread(&ttft));
    json_object_set_new(r, "tpot_s", spread(&tpot));
    json_object_set_new(r, "itl_s", spread(&b->gaps));
    json_object_set_new(r, "e2e_s", spread(&e2e));
    free(ttft.data);
    free(tpot.data);
    free(e2e.data);
    return r;
}

static double f64(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static void print_spread(const json_t *r, const char *key, const char *name, double scale) {
    const json_t *s = json_object_get(r, key);
    printf("%-22s %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, scale * f64(s, "mean"),
           scale * f64(s, "p50"), scale * f64(s, "p90"), scale * f64(s, "p99"),
           scale * f64(s, "max"));
}

static void print_report(const bench *b, const json_t *r) {
    printf("%s: %.0f of %.0f requests completed in %.2f s (%.0f refused with 429, %.0f dropped, "
           "%.0f failed)\n",
           b->url, f64(r, "completed"), f64(r, "requests"), f64(r, "seconds"),
           f64(r, "refused_429"), f64(r, "dropped"), f64(r, "failed"));
    if (b->why[0] != '\0') {
        printf("the first failure: %s\n", b->why);
    }
    printf("%.2f requests/s, %.0f output tokens/s, %.0f tokens/s with prompts (%.0f of %.0f prompt "
           "tokens cached)\n",
           f64(r, "requests_per_s"), f64(r, "output_tokens_per_s"), f64(r, "total_tokens_per_s"),
           f64(r, "cached_tokens"), f64(r, "prompt_tokens"));
    printf("goodput %.2f requests/s (first token within %g s, then %g s a token)\n\n",
           f64(r, "goodput_per_s"), b->o->ttft_limit, b->o->tpot_limit);
    printf("%-22s %9s %9s %9s %9s %9s\n", "", "mean", "p50", "p90", "p99", "max");
    print_spread(r, "ttft_s", "first token, ms", 1000);
    print_spread(r, "tpot_s", "time a token, ms", 1000);
    print_spread(r, "itl_s", "between tokens, ms", 1000);
    print_spread(r, "e2e_s", "whole request, s", 1);
}

/* ---- */

static void on_gap(void *ctx, double seconds) {
    push(&((bench *)ctx)->gaps, seconds);
}

static void on_progress(void *ctx, int64_t finished, int64_t running, double elapsed_s) {
    bench *b = ctx;
    const double left = finished > 0 ? elapsed_s * (double)(b->n - finished) / (double)finished : 0;
    char eta[LT_CLOCK_TEXT_BYTES];
    lt_progress_show(&b->progress, "%lld of %lld requests, %lld on their way%s%s%s",
                     (long long)finished, (long long)b->n, (long long)running,
                     finished > 0 ? ", " : "", finished > 0 ? lt_duration_text(eta, left) : "",
                     finished > 0 ? " left" : "");
}

static lt_err run(bench *b, const char *where) {
    const bench_serve_options *o = b->o;
    char host[200], prefix[100];
    json_t *r;
    lt_load_options load = {.host = host,
                            .path_prefix = prefix,
                            .model = o->model,
                            .key = o->api_key,
                            .chat = o->endpoint == 2,
                            .text_prompt = o->endpoint == 1,
                            .vocab = o->vocab,
                            .temperature = o->temperature,
                            .concurrency = o->concurrency,
                            .timeout_s = o->timeout,
                            .drop = o->drop,
                            .seed = (uint64_t)o->seed,
                            .on_gap = on_gap,
                            .on_progress = on_progress,
                            .ctx = b,
                            .why = b->why,
                            .why_n = sizeof b->why};
    bool answered;

    if (strstr(where, "://") != NULL) {
        snprintf(b->url, sizeof b->url, "%s", where);
    } else if (where[0] != '\0' && access(where, F_OK) != 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: no such model; a server is given as http://host:port",
                where);
    } else {
        LT_TRY(spawn(b, where));
    }
    LT_TRY(lt_load_url(b->url, host, sizeof host, &load.port, prefix, sizeof prefix));
    b->requests = calloc((size_t)o->requests, sizeof *b->requests);
    b->results = calloc((size_t)o->requests, sizeof *b->results);
    if (b->requests == NULL || b->results == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld requests", (long long)o->requests);
    }
    if (o->trace[0] != '\0') {
        LT_TRY(read_trace(b));
    } else {
        make_requests(b);
    }
    LT_TRY(wait_ready(b, &load));
    LT_TRY(lt_load_run(&load, b->requests, b->n, b->results, &b->took_s));
    lt_progress_end(&b->progress);
    r = report(b);
    if (o->json) {
        json_dumpf(r, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        putchar('\n');
    } else {
        print_report(b, r);
    }
    answered = f64(r, "completed") + f64(r, "dropped") > 0;
    json_decref(r);
    if (!answered) {
        LT_FAIL(LT_ERR_REMOTE, "%s: none of %lld requests was answered", b->url, (long long)b->n);
    }
    return LT_OK;
}

int lt_bench_serve(int argc, char **argv) {
    bench_serve_options o;
    const char *where[1] = {NULL};
    bench b = {.o = &o, .progress = {.plain_every_s = 10}};
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(
            &table, &o, argc, argv, "bench serve URL|MODEL [options]",
            "Send an OpenAI-compatible server requests from a trace or with fixed lengths, and "
            "print what its clients see. For a MODEL, `lateen serve` is started.",
            where, 1, &n, &status)) {
        return status;
    }
    if (n != 1) {
        fprintf(stderr, "lateen: bench serve needs a server (http://host:port) or a model\n");
        return LT_EXIT_USAGE;
    }
    signal(SIGPIPE, SIG_IGN);
    err = run(&b, where[0]);
    if (b.child > 0) {
        kill(b.child, SIGTERM);
        waitpid(b.child, NULL, 0);
    }
    for (int64_t i = 0; b.requests != NULL && i < b.n; i++) {
        free((void *)(uintptr_t)b.requests[i].blocks);
    }
    free(b.requests);
    free(b.results);
    free(b.gaps.data);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
