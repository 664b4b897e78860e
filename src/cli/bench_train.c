/* bench_train.c: `lateen bench train`: seconds of a whole optimiser step, ours and a peer's in turn, and where our time goes.
 *
 * The peer is a process that warms up, prints "ready", and for each line "N" on its standard input runs N steps and prints the median seconds of one
 * (bench/peers/train_torch.py). Turns alternate, so that a noisy machine is noisy for both; the ratio of medians is what counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/thread.h"
#include "cli/bench.h"
#include "cli/verb.h"
#include "model/family.h"
#include "model/pass.h"
#include "tensor/ops.h"
#include "train/optimiser.h"

#define MAX_ROUNDS 64

#define BENCH_TRAIN_OPTIONS(X)                                                                     \
    X(ENUM, shape, "shape", "gpt2-124m", 0, 0, "gpt2-124m|apertus-10m", "model and batch")         \
    X(ENUM, dtype, "dtype", "fp32", 0, 0, "fp32|bf16", "compute type")                             \
    X(I64, steps, "steps", "3", 1, 1000, "N", "steps of a turn; the median counts")                \
    X(I64, rounds, "rounds", "5", 1, MAX_ROUNDS, "N", "turns of each")                             \
    X(I64, threads, "threads", "0", 0, 4096, "N", "threads; 0: all cores of this process")         \
    X(STR, peer, "peer", "", 0, 0, "COMMAND", "the peer; gets SHAPE DTYPE THREADS as $1 $2 $3")    \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    BENCH_TRAIN_OPTIONS(LT_OPTION_FIELD)
} bench_train_options;
#define LT_OPTION_STRUCT bench_train_options
static const lt_option rows[] = {BENCH_TRAIN_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench train", rows);

static const struct {
    const char *name;
    lt_family family;
    int64_t layers, width, heads, kv_heads, ffn, vocab, batch, seq;
} shapes[] = {{"gpt2-124m", LT_FAMILY_GPT2, 12, 768, 12, 12, 3072, 50304, 4, 256},
              {"apertus-10m", LT_FAMILY_APERTUS, 8, 256, 8, 4, 1024, 8192, 8, 256}};

typedef struct {
    const bench_train_options *o;
    lt_recipe recipe;
    lt_model *model;
    lt_pass *pass;
    lt_optimiser optimiser;
    int32_t *tokens, *labels;
    int64_t batch, seq, step;
    lt_rng rng;
    double optimiser_s, total_s;
    FILE *to_peer, *from_peer;
    pid_t peer;
} bench;

static lt_err open_ours(bench *b) {
    const int i = b->o->shape;
    const lt_model_options options = {.dtype = b->o->dtype == 0 ? LT_F32 : LT_BF16,
                                      .trainable = true};
    lt_pass_options p = {.batch = shapes[i].batch, .seq = shapes[i].seq, .train = true};
    lt_model_spec s = lt_family_get(shapes[i].family)->preset;

    s.n_layers = shapes[i].layers;
    s.width = shapes[i].width;
    s.n_heads = shapes[i].heads;
    s.n_kv_heads = shapes[i].kv_heads;
    s.head_dim = s.width / s.n_heads;
    s.ffn_width = shapes[i].ffn;
    s.vocab_size = shapes[i].vocab;
    s.max_seq = 1024;
    b->batch = shapes[i].batch;
    b->seq = shapes[i].seq;
    lt_options_default(&lt_recipe_table, &b->recipe);
    LT_TRY(lt_model_create(&b->model, &s, &options, 1));
    LT_TRY(lt_pass_open(&b->pass, b->model, &p));
    LT_TRY(lt_optimiser_open(&b->optimiser, &b->recipe, b->model, lt_pass_queue(b->pass)));
    b->tokens = malloc((size_t)(b->batch * b->seq) * sizeof *b->tokens);
    b->labels = malloc((size_t)(b->batch * b->seq) * sizeof *b->labels);
    if (b->tokens == NULL || b->labels == NULL) {
        LT_FAIL(LT_ERR_OOM, "rows of tokens");
    }
    return LT_OK;
}

/* One step as training runs it: forward, backward, norm, update. */
static lt_err our_step(bench *b, double *seconds) {
    const lt_pass_batch rows_of = {
        .batch = b->batch, .seq = b->seq, .tokens = b->tokens, .labels = b->labels};
    const int64_t n = b->batch * b->seq;
    lt_pass_result r;
    double start, before;

    for (int64_t i = 0; i < n; i++) {
        b->tokens[i] = (int32_t)lt_rng_below(&b->rng, (uint64_t)b->model->spec.vocab_size);
        b->labels[i] = (int32_t)lt_rng_below(&b->rng, (uint64_t)b->model->spec.vocab_size);
    }
    start = lt_clock_s();
    LT_TRY(lt_pass_zero_gradients(b->pass));
    LT_TRY(lt_pass_train(b->pass, &rows_of, 1.0f / (float)n, &r));
    before = lt_clock_s();
    LT_TRY(lt_optimiser_sumsq(&b->optimiser, lt_pass_gradients(b->pass)));
    LT_TRY(lt_optimiser_step(&b->optimiser, lt_pass_gradients(b->pass), 1.0f, ++b->step));
    b->optimiser_s += lt_clock_s() - before;
    *seconds = lt_clock_s() - start;
    b->total_s += *seconds;
    return LT_OK;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

static lt_err our_turn(bench *b, double *seconds) {
    double all[1000];
    for (int64_t i = 0; i < b->o->steps; i++) {
        LT_TRY(our_step(b, &all[i]));
    }
    *seconds = median(all, b->o->steps);
    return LT_OK;
}

static lt_err open_peer(bench *b) {
    int to[2], from[2];
    char threads[16], line[64];
    if (pipe(to) != 0 || pipe(from) != 0) {
        LT_FAIL(LT_ERR_IO, "pipe to the peer");
    }
    snprintf(threads, sizeof threads, "%d", lt_thread_count());
    b->peer = fork();
    if (b->peer == 0) {
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        close(to[1]);
        close(from[0]);
        execl("/bin/sh", "sh", "-c", b->o->peer, "peer", shapes[b->o->shape].name,
              b->o->dtype == 0 ? "fp32" : "bf16", threads, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    b->to_peer = fdopen(to[1], "w");
    b->from_peer = fdopen(from[0], "r");
    if (b->peer < 0 || fgets(line, sizeof line, b->from_peer) == NULL ||
        strcmp(line, "ready\n") != 0) {
        LT_FAIL(LT_ERR_REMOTE, "the peer did not get ready: %s", b->o->peer);
    }
    return LT_OK;
}

static lt_err peer_turn(bench *b, double *seconds) {
    char line[64];
    fprintf(b->to_peer, "%lld\n", (long long)b->o->steps);
    fflush(b->to_peer);
    if (fgets(line, sizeof line, b->from_peer) == NULL || (*seconds = atof(line)) <= 0.0) {
        LT_FAIL(LT_ERR_REMOTE, "the peer ended: %s", b->o->peer);
    }
    return LT_OK;
}

static void close_bench(bench *b) {
    if (b->to_peer != NULL) {
        fclose(b->to_peer);
        fclose(b->from_peer);
        waitpid(b->peer, NULL, 0);
    }
    if (b->model != NULL) {
        lt_optimiser_close(&b->optimiser);
    }
    lt_pass_close(b->pass);
    lt_model_close(b->model);
    free(b->tokens);
    free(b->labels);
}

static lt_err print_shares(const bench *b) {
    lt_pass_op_time times[LT_OP_COUNT];
    LT_TRY(lt_pass_profile(b->pass, times));
    printf("\n  share of our time    seconds a step\n");
    for (;;) {
        int top = -1;
        for (int i = 0; i < LT_OP_COUNT; i++) {
            const double s = times[i].seconds;
            top = s > 0.0 && (top < 0 || s > times[top].seconds) ? i : top;
        }
        if (top < 0 || times[top].seconds < 0.002 * b->total_s) {
            break;
        }
        printf("  %-16s %5.1f %%  %.4f\n", lt_op_name((lt_op)top),
               100.0 * times[top].seconds / b->total_s, times[top].seconds / (double)b->step);
        times[top].seconds = 0.0;
    }
    printf("  %-16s %5.1f %%  %.4f\n", "norm, optimiser", 100.0 * b->optimiser_s / b->total_s,
           b->optimiser_s / (double)b->step);
    return LT_OK;
}

static lt_err print_result(const bench *b, double ours, double peer) {
    const double tokens = (double)(b->batch * b->seq),
                 flops = lt_model_spec_train_flops(&b->model->spec, b->seq) * tokens;
    const char *dtype = b->o->dtype == 0 ? "fp32" : "bf16";
    if (b->o->json) {
        json_t *o = json_pack(
            "{s:s, s:s, s:i, s:I, s:f, s:f, s:f}", "shape", shapes[b->o->shape].name, "dtype",
            dtype, "threads", lt_thread_count(), "tokens_a_step", (json_int_t)(b->batch * b->seq),
            "step_s", ours, "tokens_per_s", tokens / ours, "gflops", flops / ours * 1e-9);
        if (peer > 0.0) {
            json_object_set_new(o, "peer", json_string(b->o->peer));
            json_object_set_new(o, "peer_step_s", json_real(peer));
            json_object_set_new(o, "ratio", json_real(peer / ours));
        }
        json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(o);
        return LT_OK;
    }
    printf("%s %s, B%lld T%lld, %d threads\n  lateen  %.4f s a step, %.0f tokens/s, %.0f GFLOP/s "
           "(6N + 12LHDT)\n",
           shapes[b->o->shape].name, dtype, (long long)b->batch, (long long)b->seq,
           lt_thread_count(), ours, tokens / ours, flops / ours * 1e-9);
    if (peer > 0.0) {
        printf("  peer    %.4f s a step, %.0f tokens/s\n  ratio   %.2f\n", peer, tokens / peer,
               peer / ours);
    }
    return print_shares(b);
}

static lt_err run(const bench_train_options *o) {
    lt_err err = LT_OK;
    bench *b = calloc(1, sizeof *b);
    double ours[MAX_ROUNDS], peers[MAX_ROUNDS] = {0}, warm;

    if (b == NULL) {
        LT_FAIL(LT_ERR_OOM, "bench");
    }
    b->o = o;
    if (o->threads > 0) {
        lt_thread_set_count((int)o->threads);
    }
    LT_TRY_DONE(open_ours(b));
    if (o->peer[0] != '\0') {
        LT_TRY_DONE(open_peer(b));
    }
    LT_TRY_DONE(our_step(b, &warm));
    LT_TRY_DONE(our_step(b, &warm));
    for (int64_t i = 0; i < o->rounds; i++) {
        LT_TRY_DONE(our_turn(b, &ours[i]));
        if (o->peer[0] != '\0') {
            LT_TRY_DONE(peer_turn(b, &peers[i]));
        }
    }
    LT_TRY_DONE(print_result(b, median(ours, o->rounds), median(peers, o->rounds)));
done:
    close_bench(b);
    free(b);
    return err;
}

int lt_bench_train(int argc, char **argv) {
    static const char prose[] =
        "Time whole optimiser steps on random tokens, a peer's in turn with ours, and tell where "
        "our time goes.\n"
        "Peer: --peer 'python3 bench/peers/train_torch.py $1 $2 compile $3'";
    bench_train_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&table, &o, argc, argv,
                       "bench train [--shape S] [--dtype D] [--peer COMMAND]", prose, NULL, 0, &n,
                       &status)) {
        return status;
    }
    err = run(&o);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
