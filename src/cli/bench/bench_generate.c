/* bench_generate.c: `lateen bench generate`: tokens per second of prefill and of decoding, ours and
 * a peer's in turn, and where Lateen's time goes.
 *
 * The tests are llama-bench's: a prompt of P random tokens; N random tokens one by one from an
 * empty cache; the choice of tokens is not timed. The peer is a program that takes llama-bench's
 * options (-m -p -n -t -r -o json) and prints its JSON; it runs once a round, after ours. The ratio
 * of the medians is reported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/thread.h"
#include "cli/bench/bench.h"
#include "cli/platform/copying.h"
#include "cli/opened.h"
#include "cli/verb.h"
#include "model/infer/session.h"
#include "tensor/ops.h"

#define MAX_ROUNDS 64

#define BENCH_GENERATE_OPTIONS(X)                                                                  \
    X(STR, model, "model", "", 0, 0, "PATH", "Hugging Face folder, GGUF, or llama2.c .bin")        \
    X(ENUM, dtype, "dtype", "stored", 0, 0, "stored|fp32|bf16",                                    \
      "weights: as the file has them, or all in one type")                                         \
    X(I64, prompt, "prompt", "512", 0, 1e6, "N", "tokens of the prompt; 0: leave this out")        \
    X(I64, tokens, "tokens", "128", 0, 1e6, "N", "tokens written one by one; 0: leave this out")   \
    X(I64, batch, "batch", "0", 0, 256, "N", "also time this many sequences at once; 0: do not")   \
    X(I64, rounds, "rounds", "5", 1, MAX_ROUNDS, "N", "turns of each program; the median counts")  \
    X(I64, threads, "threads", "0", 0, 4096, "N", "threads; 0: all cores of this process")         \
    X(STR, peer, "peer", "", 0, 0, "PROGRAM",                                                      \
      "llama-bench or a program with its options; empty: LLAMA_BENCH of the environment")          \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    BENCH_GENERATE_OPTIONS(LT_OPTION_FIELD)
} bench_generate_options;
#define LT_OPTION_STRUCT bench_generate_options
static const lt_option rows[] = {BENCH_GENERATE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench generate", rows);

enum { PROMPT, TOKENS, BATCH, N_TESTS };
static const char *const test_names[N_TESTS] = {"prompt", "tokens", "batch"};

typedef struct {
    const bench_generate_options *o;
    const char *peer;
    lt_model *model;
    lt_session *session;
    int32_t *ids;
    float *logits;
    double open_s;
    double ours[N_TESTS][MAX_ROUNDS], peers[N_TESTS][MAX_ROUNDS]; /* Tokens a second. */
} bench;

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static lt_err open_ours(bench *b) {
    const bench_generate_options *o = b->o;
    const lt_model_options options = {.dtype = o->dtype == LT_OPENED_BF16 ? LT_BF16 : LT_F32,
                                      .stored = o->dtype == LT_OPENED_STORED};
    const double start = lt_clock_s();
    lt_rng rng = {.seed = 1};
    LT_TRY(lt_model_open(&b->model, o->model, &options));
    const int64_t V = lt_model_get_spec(b->model)->vocab_size, n = most(o->prompt, o->tokens);
    LT_TRY(lt_session_open(&b->session, b->model, most(1, o->batch), n + 1));
    b->open_s = lt_clock_s() - start;
    b->ids = malloc((size_t)most(n, 256) * sizeof *b->ids);
    b->logits = malloc((size_t)(V * most(1, o->batch)) * sizeof *b->logits);
    if (b->ids == NULL || b->logits == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld tokens and their logits", (long long)n);
    }
    for (int64_t i = 0; i < most(n, 256); i++) {
        b->ids[i] = (int32_t)lt_rng_below(&rng, (uint64_t)V);
    }
    return LT_OK;
}

static void clear(bench *b) {
    for (int64_t i = 0; i < most(1, b->o->batch); i++) {
        lt_session_truncate(b->session, i, 0);
    }
}

static lt_err run_test(bench *b, int test, int64_t n, double *rate) {
    int64_t seqs[256];
    clear(b);
    for (int64_t i = 0; i < 256; i++) {
        seqs[i] = i;
    }
    const double start = lt_clock_s();
    if (test == PROMPT) {
        LT_TRY(lt_session_eval(b->session, 0, b->ids, n, b->logits));
    }
    for (int64_t i = 0; test == TOKENS && i < n; i++) {
        LT_TRY(lt_session_eval(b->session, 0, b->ids + i, 1, b->logits));
    }
    for (int64_t i = 0; test == BATCH && i < n; i++) {
        LT_TRY(lt_session_step(b->session, seqs, b->ids, b->o->batch, b->logits));
    }
    *rate = (double)n * (test == BATCH ? (double)b->o->batch : 1.0) / (lt_clock_s() - start);
    return LT_OK;
}

static int64_t test_length(const bench *b, int test) {
    return test == PROMPT ? b->o->prompt : test == BATCH && b->o->batch == 0 ? 0 : b->o->tokens;
}

/* Read the rates from the peer's JSON: an array of objects with n_prompt, n_gen and avg_ts; "test"
 * identifies a batch. */
static lt_err read_peer(bench *b, const json_t *all, int64_t round) {
    size_t i;
    json_t *row;
    json_array_foreach(all, i, row) {
        const char *name = json_string_value(json_object_get(row, "test"));
        const int test = name != NULL && strcmp(name, "tgb") == 0                   ? BATCH
                         : json_integer_value(json_object_get(row, "n_prompt")) > 0 ? PROMPT
                                                                                    : TOKENS;
        b->peers[test][round] = json_number_value(json_object_get(row, "avg_ts"));
    }
    return json_array_size(all) > 0 ? LT_OK
                                    : lt_error_set(LT_ERR_REMOTE, "the peer's answer is empty");
}

static lt_err peer_turn(bench *b, int64_t round) {
    char command[LT_PATH_BYTES * 2];
    json_error_t bad;
    const bench_generate_options *o = b->o;
    int n = snprintf(command, sizeof command, "%s -m '%s' -p %lld -n %lld -t %d -r 1 -o json",
                     b->peer, o->model, (long long)o->prompt, (long long)o->tokens,
                     lt_thread_count());
    if (o->batch > 0) {
        n += snprintf(command + n, sizeof command - (size_t)n, " -b %lld", (long long)o->batch);
    }
    (void)snprintf(command + n, sizeof command - (size_t)n, " 2>/dev/null");
    FILE *f = popen(command, "r");
    if (f == NULL) {
        LT_FAIL(LT_ERR_REMOTE, "cannot run the peer: %s", command);
    }
    json_t *all = json_loadf(f, 0, &bad);
    pclose(f);
    if (all == NULL) {
        LT_FAIL(LT_ERR_REMOTE, "the peer printed no JSON (%s): %s", bad.text, command);
    }
    const lt_err err = read_peer(b, all, round);
    json_decref(all);
    return err;
}

static double median(const double *values, int64_t n) {
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    return lt_bench_median(sorted, n);
}

static void print_json(const bench *b) {
    json_t *root = json_pack("{s:s, s:i, s:f, s:I}", "model", b->o->model, "threads",
                             lt_thread_count(), "open_s", b->open_s, "rounds",
                             (json_int_t)b->o->rounds);
    for (int t = 0; t < N_TESTS; t++) {
        if (test_length(b, t) > 0) {
            const double ours = median(b->ours[t], b->o->rounds),
                         peer = median(b->peers[t], b->o->rounds);
            json_t *row = json_pack("{s:I, s:f}", "n", (json_int_t)test_length(b, t),
                                    "tokens_per_s", ours);
            if (peer > 0.0) {
                json_object_set_new(row, "peer_tokens_per_s", json_real(peer));
                json_object_set_new(row, "ratio", json_real(ours / peer));
            }
            json_object_set_new(root, test_names[t], row);
        }
    }
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static void print_shares(const bench *b) {
    double seconds[LT_OP_COUNT], total = 0.0;
    int64_t calls[LT_OP_COUNT];
    lt_session_profile(b->session, seconds, calls);
    for (int i = 0; i < LT_OP_COUNT; i++) {
        total += seconds[i];
    }
    printf("\n  share of our time in ops     us a call\n");
    for (int i = 0; i < LT_OP_COUNT; i++) {
        if (seconds[i] > 0.002 * total) {
            printf("  %-16s %5.1f %%    %9.2f\n", lt_op_name((lt_op)i), 100.0 * seconds[i] / total,
                   1e6 * seconds[i] / (double)calls[i]);
        }
    }
}

static void print_text(const bench *b) {
    printf("%s, %d threads, opened in %.3f s\n", b->o->model, lt_thread_count(), b->open_s);
    for (int t = 0; t < N_TESTS; t++) {
        if (test_length(b, t) > 0) {
            const double ours = median(b->ours[t], b->o->rounds),
                         peer = median(b->peers[t], b->o->rounds);
            printf("  %-7s %6lld   lateen %8.1f tokens/s", test_names[t],
                   (long long)test_length(b, t), ours);
            if (peer > 0.0) {
                printf("   peer %8.1f   ratio %.2f", peer, ours / peer);
            }
            putchar('\n');
        }
    }
    print_shares(b);
}

static lt_err run(bench *b) {
    double warm;
    LT_TRY(open_ours(b));
    for (int t = 0; t < N_TESTS; t++) {
        if (test_length(b, t) > 0) {
            LT_TRY(run_test(b, t, t == PROMPT ? b->o->prompt : 1, &warm));
        }
    }
    for (int64_t round = 0; round < b->o->rounds; round++) {
        for (int t = 0; t < N_TESTS; t++) {
            if (test_length(b, t) > 0) {
                LT_TRY(run_test(b, t, test_length(b, t), &b->ours[t][round]));
            }
        }
        if (b->peer != NULL) {
            LT_TRY(peer_turn(b, round));
        }
    }
    return LT_OK;
}

int lt_bench_generate(int argc, char **argv) {
    static const char prose[] = "Time reading a prompt and writing tokens, as llama-bench does; a "
                                "peer runs in turn with Lateen.";
    bench_generate_options o;
    int n = 0, status = LT_EXIT_DONE;
    bench *b;
    lt_err err;

    if (!lt_verb_parse(&table, &o, argc, argv, "bench generate --model M [--peer llama-bench]",
                       prose, NULL, 0, &n, &status)) {
        return status;
    }
    if (o.model[0] == '\0') {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "bench generate needs --model MODEL"));
    }
    b = calloc(1, sizeof *b);
    if (b == NULL) {
        return lt_verb_fail(lt_error_set(LT_ERR_OOM, "bench"));
    }
    if (o.threads > 0) {
        lt_thread_set_count((int)o.threads);
    }
    b->o = &o;
    b->peer = o.peer[0] != '\0' ? o.peer : getenv("LLAMA_BENCH");
    err = lt_cli_bring_option(o.model);
    err = err == LT_OK ? run(b) : err;
    if (err == LT_OK && o.json) {
        print_json(b);
    } else if (err == LT_OK) {
        print_text(b);
    }
    lt_session_close(b->session);
    lt_model_close(b->model);
    free(b->ids);
    free(b->logits);
    free(b);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
