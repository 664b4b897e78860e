/* bench_train.c: `lateen bench train`: seconds of a whole optimiser step, ours and a peer's in
 * turn, and where Lateen's time goes.
 *
 * The peer (base/peer.h; bench/peers/train_torch.py, train_torch_gpu.py) answers a line "N" with
 * the median seconds of one of N steps. The ratio of the medians is reported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "base/peer.h"
#include "base/thread.h"
#include "cli/bench/bench.h"
#include "cli/bench/bench_train_mesh.h"
#include "cli/bench/bench_train_ours.h"
#include "cli/verb.h"

#define MAX_ROUNDS 64
#define MAX_STEPS  1000

/* Limits that the shares are compared with; the defaults are an H100 SXM's datasheet and its
 * measured copy bandwidth. */
#define BENCH_TRAIN_OPTIONS(X)                                                                     \
    X(ENUM, shape, "shape", "gpt2-124m", 0, 0, LT_TRAIN_SHAPES, "model and batch")                 \
    X(ENUM, dtype, "dtype", "fp32", 0, 0, "fp32|bf16", "compute type")                             \
    X(STR, device, "device", "cpu", 0, 1, LT_DEVICE_NAMES, "where to compute")                     \
    X(I64, batch, "batch", "0", 0, 1e6, "ROWS", "rows of a step; 0: the shape's own")              \
    X(I64, seq, "seq", "0", 0, 1e6, "N", "tokens in a row; 0: the shape's own")                    \
    X(ENUM, recompute, "recompute", "none", 0, 0, "none|selective|full",                           \
      "what the backward pass computes again")                                                     \
    X(ENUM, fp8, "fp8", "none", 0, 0, LT_FP8_CHOICES, "linear layers in 8-bit floats")             \
    X(BOOL, fp8_wgrad, "fp8-wgrad", "false", 0, 0, "",                                             \
      "compute the gradients of their weights in 8-bit floats too")                                \
    X(ENUM, optim, "optim", "adamw", 0, 0, LT_RECIPE_OPTIMS, "optimiser")                          \
    X(ENUM, moments, "moments", "fp32", 0, 0, "fp32|bf16", "storage of the optimiser's moments")   \
    X(I64, lora, "lora", "0", 0, 4096, "RANK",                                                     \
      "train adapters of this rank beside all linear layers, not the model; 0: the model")         \
    X(I64, steps, "steps", "3", 1, MAX_STEPS, "N", "steps of a turn; the median counts")           \
    X(I64, rounds, "rounds", "5", 1, MAX_ROUNDS, "N", "turns of each")                             \
    X(I64, threads, "threads", "0", 0, 4096, "N", "threads; 0: all cores of this process")         \
    X(STR, peer, "peer", "", 0, 0, "COMMAND",                                                      \
      "the peer's command; $1 to $5 are SHAPE DTYPE THREADS BATCH SEQ")                            \
    X(STR, mesh, "mesh", "", 0, 0, "AXIS=N,...",                                                   \
      "a mesh of ranks of this CPU in turn with one rank, whose threads are those of each of "     \
      "them")                                                                                      \
    X(I64, zero, "zero", "0", 0, 3, "LEVEL", "mesh.zero of --mesh")                                \
    X(F64, peak_tflops, "peak-tflops", "989", 1, 1e6, "TFLOP/s",                                   \
      "the GPU's peak, for MFU and shares")                                                        \
    X(F64, peak_gbps, "peak-gbps", "3020", 1, 1e6, "GB/s", "the GPU's memory rate, for shares")    \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    BENCH_TRAIN_OPTIONS(LT_OPTION_FIELD)
} bench_train_options;
#define LT_OPTION_STRUCT bench_train_options
static const lt_option rows[] = {BENCH_TRAIN_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench train", rows);

typedef struct {
    const bench_train_options *o;
    lt_device *device;
    lt_train_ours ours;
    double step_s, peer_s; /* Medians; peer_s 0: none. */
    lt_train_shares shares;
    lt_peer peer;
} bench;

static lt_err our_turn(bench *b, double *seconds) {
    double all[MAX_STEPS];
    for (int64_t i = 0; i < b->o->steps; i++) {
        LT_TRY(lt_train_ours_step(&b->ours, &all[i]));
    }
    LT_TRY(b->ours.model->backend->sync(lt_pass_queue(b->ours.pass)));
    *seconds = lt_bench_median(all, b->o->steps);
    return LT_OK;
}

static lt_err open_peer(bench *b) {
    char threads[16], batch[24], seq[24];
    snprintf(threads, sizeof threads, "%d", lt_thread_count());
    snprintf(batch, sizeof batch, "%lld", (long long)b->ours.what.batch);
    snprintf(seq, sizeof seq, "%lld", (long long)b->ours.what.seq);
    return lt_peer_open(&b->peer, b->o->peer,
                        (const char *const[]){b->ours.name, b->o->dtype == 0 ? "fp32" : "bf16",
                                              threads, batch, seq, NULL});
}

static lt_err peer_turn(bench *b, double *seconds) {
    char line[24];
    snprintf(line, sizeof line, "%lld", (long long)b->o->steps);
    return lt_peer_ask(&b->peer, line, seconds);
}

static void close_bench(bench *b) {
    lt_peer_close(&b->peer);
    lt_train_ours_close(&b->ours);
    lt_device_close(b->device);
}

/* The minimum time of an op on the GPU that the options describe. */
static double bound_s(const bench *b, const lt_pass_op_time *t) {
    const double compute = t->flops / (b->o->peak_tflops * 1e12),
                 memory = t->bytes / (b->o->peak_gbps * 1e9);
    return compute > memory ? compute : memory;
}

static bool on_gpu(const bench *b) {
    return !b->ours.model->backend->host_memory;
}

static double ops_s(const bench *b) {
    double sum = b->shares.optimiser_s;
    for (int op = 0; op < LT_TIMED_COUNT; op++) {
        sum += b->shares.ops[op].seconds;
    }
    return sum;
}

static void print_shares(const bench *b) {
    lt_pass_op_time times[LT_TIMED_COUNT];
    memcpy(times, b->shares.ops, sizeof times);
    printf("\n  op                 calls   ms a step   share%s\n",
           on_gpu(b) ? "   of its bound" : "");
    for (;;) {
        int top = -1;
        for (int i = 0; i < LT_TIMED_COUNT; i++) {
            const double s = times[i].seconds;
            top = s > 0.0 && (top < 0 || s > times[top].seconds) ? i : top;
        }
        if (top < 0 || times[top].seconds < 0.001 * b->step_s) {
            break;
        }
        printf("  %-16s %7lld  %10.3f  %5.1f %%", lt_timed_name(top), (long long)times[top].calls,
               1e3 * times[top].seconds, 100.0 * times[top].seconds / b->step_s);
        if (on_gpu(b)) {
            printf("        %5.1f %%", 100.0 * bound_s(b, &times[top]) / times[top].seconds);
        }
        putchar('\n');
        times[top].seconds = 0.0;
    }
    printf("  %-16s %7s  %10.3f  %5.1f %%\n", "norm, optimiser", "", 1e3 * b->shares.optimiser_s,
           100.0 * b->shares.optimiser_s / b->step_s);
    printf("  %-16s %7s  %10.3f  %5.1f %%\n", "the rest", "", 1e3 * (b->step_s - ops_s(b)),
           100.0 * (1.0 - ops_s(b) / b->step_s));
}

static json_t *shares_json(const bench *b) {
    json_t *list = json_array();
    for (int i = 0; i < LT_TIMED_COUNT; i++) {
        const lt_pass_op_time *t = &b->shares.ops[i];
        if (t->seconds > 0.0) {
            json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f}", "op",
                                                  lt_timed_name(i), "calls", (json_int_t)t->calls,
                                                  "ms", 1e3 * t->seconds, "gflop", t->flops * 1e-9,
                                                  "mbytes", t->bytes * 1e-6, "of_bound",
                                                  on_gpu(b) ? bound_s(b, t) / t->seconds : 0.0));
        }
    }
    return list;
}

/* Compare an option with a key, which has _ where the option has -. */
static bool same_name(const char *option, const char *key) {
    while (*option != '\0' && (*option == *key || (*option == '-' && *key == '_'))) {
        option++, key++;
    }
    return *option == *key;
}

/* Write the options that change what is measured and differ from their defaults; the planner reads
 * them (tests/unit/plan/test_own.c). */
static void options_json(const bench_train_options *o, json_t *to) {
    static const char *const names[] = {"recompute", "fp8",     "fp8_wgrad",
                                        "optim",     "moments", "lora"};
    for (size_t i = 0; i < table.n_rows; i++) {
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            bench_train_options usual;
            char value[LT_OPTION_STR_BYTES], plain[LT_OPTION_STR_BYTES];
            lt_options_default(&table, &usual);
            lt_option_text(&rows[i], o, value, sizeof value);
            lt_option_text(&rows[i], &usual, plain, sizeof plain);
            if (same_name(rows[i].name, names[k]) && strcmp(value, plain) != 0) {
                json_object_set_new(to, names[k],
                                    strcmp(value, "true") == 0 ? json_true() : json_string(value));
            }
        }
    }
}

static json_t *result_json(const bench *b, double tokens, double flops) {
    const lt_train_ours *u = &b->ours;
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:f, "
        "s:f, s:o}",
        "shape", u->name, "dtype", b->o->dtype == 0 ? "fp32" : "bf16", "device",
        u->model->backend->name, "batch", (json_int_t)u->what.batch, "seq", (json_int_t)u->what.seq,
        "threads", lt_thread_count(), "step_s", b->step_s, "tokens_per_s", tokens / b->step_s,
        "tflops", flops / b->step_s * 1e-12, "mfu",
        on_gpu(b) ? flops / b->step_s / (b->o->peak_tflops * 1e12) : 0.0, "open_s", u->open_s,
        "first_step_s", u->first_step_s, "host_share",
        u->steps_s > 0.0 ? 1.0 - u->wait_s / u->steps_s : 0.0, "announced_bytes",
        (json_int_t)u->announced_bytes, "taken_bytes", (json_int_t)u->taken_bytes, "graphs",
        (json_int_t)lt_pass_graphs(u->pass), "optimiser_ms", 1e3 * b->shares.optimiser_s, "rest_ms",
        1e3 * (b->step_s - ops_s(b)), "ops", shares_json(b));
    if (b->peer_s > 0.0) {
        json_object_set_new(o, "peer", json_string(b->o->peer));
        json_object_set_new(o, "peer_step_s", json_real(b->peer_s));
        json_object_set_new(o, "peer_tokens_per_s", json_real(tokens / b->peer_s));
        json_object_set_new(o, "ratio", json_real(b->peer_s / b->step_s));
    }
    options_json(b->o, o);
    return o;
}

static void print_result(const bench *b) {
    const lt_train_ours *u = &b->ours;
    const double tokens = (double)(u->what.batch * u->what.seq),
                 flops = u->flops_per_token * tokens;
    if (b->o->json) {
        json_t *o = result_json(b, tokens, flops);
        json_dumpf(o, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(o);
        return;
    }
    printf("%s %s%s on %s, B%lld T%lld, %d threads\n  lateen  %.4f s a step, %.0f tokens/s, %.0f "
           "GFLOP/s (%s)",
           u->name, b->o->dtype == 0 ? "fp32" : "bf16", u->lora != NULL ? " adapters" : "",
           u->model->backend->name, (long long)u->what.batch, (long long)u->what.seq,
           lt_thread_count(), b->step_s, tokens / b->step_s, flops / b->step_s * 1e-9,
           u->lora != NULL ? "4N + 12LHDT, 6 of adapters" : "6N + 12LHDT");
    if (on_gpu(b)) {
        printf(", MFU %.1f %% of %.0f", 100.0 * flops / b->step_s / (b->o->peak_tflops * 1e12),
               b->o->peak_tflops);
    }
    if (b->peer_s > 0.0) {
        printf("\n  peer    %.4f s a step, %.0f tokens/s\n  ratio   %.3f", b->peer_s,
               tokens / b->peer_s, b->peer_s / b->step_s);
    }
    printf("\n  open %.2f s, first step %.2f s, memory %.2f GiB announced", u->open_s,
           u->first_step_s, (double)u->announced_bytes / 1073741824.0);
    if (u->taken_bytes > 0) {
        printf(", %.2f GiB taken", (double)u->taken_bytes / 1073741824.0);
    }
    printf(", host busy %.1f %% of a step, %lld graphs\n", 100.0 * (1.0 - u->wait_s / u->steps_s),
           (long long)lt_pass_graphs(u->pass));
    print_shares(b);
}

static lt_err run(const bench_train_options *o) {
    lt_err err = LT_OK;
    bench *b = calloc(1, sizeof *b);
    double ours[MAX_ROUNDS], peers[MAX_ROUNDS] = {0};

    if (b == NULL) {
        LT_FAIL(LT_ERR_OOM, "bench");
    }
    b->o = o;
    if (o->threads > 0) {
        lt_thread_set_count((int)o->threads);
    }
    LT_TRY_DONE(lt_device_open_named(&b->device, o->device));
    LT_TRY_DONE(
        lt_train_ours_open(&b->ours, &(lt_train_case){.shape = o->shape,
                                                      .bf16 = o->dtype == 1,
                                                      .device = b->device,
                                                      .batch = o->batch,
                                                      .seq = o->seq,
                                                      .recompute = (lt_recompute)o->recompute,
                                                      .fp8 = (lt_fp8_recipe)o->fp8,
                                                      .fp8_wgrad = o->fp8_wgrad,
                                                      .optim = (lt_optim_kind)o->optim,
                                                      .bf16_moments = o->moments != 0,
                                                      .lora_rank = o->lora}));
    if (o->peer[0] != '\0') {
        LT_TRY_DONE(open_peer(b));
    }
    for (int64_t i = 0; i < o->rounds; i++) {
        LT_TRY_DONE(our_turn(b, &ours[i]));
        if (o->peer[0] != '\0') {
            LT_TRY_DONE(peer_turn(b, &peers[i]));
        }
    }
    b->step_s = lt_bench_median(ours, o->rounds);
    b->peer_s = lt_bench_median(peers, o->rounds);
    LT_TRY_DONE(lt_train_ours_shares(&b->ours, &b->shares));
    print_result(b);
done:
    close_bench(b);
    free(b);
    return err;
}

/* ---- A mesh of ranks ---- */

/* Refuse options that do not work with --mesh. */
static lt_err check_mesh(const bench_train_options *o) {
    const struct {
        const char *name;
        bool given;
    } others[] = {{"device", strcmp(o->device, "cpu") != 0},
                  {"peer", o->peer[0] != '\0'},
                  {"recompute", o->recompute != 0},
                  {"fp8", o->fp8 != 0},
                  {"optim", o->optim != 0},
                  {"moments", o->moments != 0}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].given) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "bench train --mesh with --%s: not supported",
                    others[i].name);
        }
    }
    if (o->steps > LT_BENCH_MESH_TURNS) {
        LT_FAIL(LT_ERR_ARG, "--steps %lld with --mesh: at most %d", (long long)o->steps,
                LT_BENCH_MESH_TURNS);
    }
    return LT_OK;
}

static lt_err run_mesh(const bench_train_options *o) {
    lt_bench_mesh_result r = {0};
    LT_TRY(check_mesh(o));
    LT_TRY(lt_bench_mesh_run(&r, &(lt_bench_mesh_case){.shape = o->shape,
                                                       .bf16 = o->dtype == 1,
                                                       .batch = o->batch,
                                                       .seq = o->seq,
                                                       .mesh = o->mesh,
                                                       .zero = o->zero,
                                                       .steps = o->steps,
                                                       .rounds = o->rounds,
                                                       .threads = (int)o->threads}));
    const char *name = lt_train_shapes[o->shape].name, *dtype = o->dtype == 0 ? "fp32" : "bf16";
    const double ratio = r.tokens_per_s / r.one_tokens_per_s, linear = ratio / r.ranks,
                 exposed = r.exposed_s / r.step_s;
    if (o->json) {
        json_t *all = json_pack(
            "{s:s, s:s, s:s, s:s, s:I, s:i, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
            "shape", name, "dtype", dtype, "device", "cpu", "mesh", o->mesh, "zero",
            (json_int_t)o->zero, "ranks", r.ranks, "threads_of_a_rank", r.threads, "batch",
            (json_int_t)r.batch, "seq", (json_int_t)r.seq, "step_s", r.step_s, "tokens_per_s",
            r.tokens_per_s, "one_step_s", r.one_step_s, "one_tokens_per_s", r.one_tokens_per_s,
            "ratio", ratio, "linear", linear, "exposed", exposed);
        json_dumpf(all, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(all);
        return LT_OK;
    }
    printf("%s %s on cpu, mesh %s, zero %lld, %d ranks of %d threads, B%lld T%lld\n"
           "  mesh      %.4f s a step, %.0f tokens/s\n"
           "  one rank  %.4f s a step, %.0f tokens/s, %d threads\n"
           "  ratio     %.3f, %.1f %% of linear\n"
           "  exposed communication %.1f %% of a step\n",
           name, dtype, o->mesh, (long long)o->zero, r.ranks, r.threads, (long long)r.batch,
           (long long)r.seq, r.step_s, r.tokens_per_s, r.one_step_s, r.one_tokens_per_s, r.threads,
           ratio, 100.0 * linear, 100.0 * exposed);
    return LT_OK;
}

int lt_bench_train(int argc, char **argv) {
    static const char prose[] =
        "Time whole optimiser steps on random tokens, in turn with a peer, and print where "
        "Lateen's time goes.\n"
        "Peer: --peer 'python3 bench/peers/train_torch.py $1 $2 compile $3', on a GPU --peer "
        "'python3 bench/peers/train_torch_gpu.py $1 $4 $5'; with --lora --peer 'python3 "
        "bench/peers/train_peft_gpu.py $1 $4 $5 RANK'";
    bench_train_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&table, &o, argc, argv,
                       "bench train [--shape S] [--dtype D] [--device D] [--peer COMMAND]", prose,
                       NULL, 0, &n, &status)) {
        return status;
    }
    err = o.mesh[0] != '\0' ? run_mesh(&o) : run(&o);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
