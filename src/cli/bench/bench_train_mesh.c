/* bench_train_mesh.c: see bench_train_mesh.h. The ranks of the mesh and the thread of the single
 * rank meet at a barrier before and after each turn of the mesh, so that none of them computes or
 * spins while the others are timed. A rank that fails still comes to the barriers. */
#include "cli/bench/bench_train_mesh.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "train/run.h"

#define WARM_STEPS  2
#define DEADLINE_S  3600.0
#define SHARD_IDS   60000 /* Below the 65,536 of a shard of two bytes. */
#define SHARD_WORDS 256   /* Words of the header of llm.c's .bin. */

typedef struct {
    const lt_bench_mesh_case *what;
    char folder[LT_PATH_BYTES];
    lt_recipe mesh, one; /* Recipes. */
    pthread_barrier_t turn;
    lt_err err; /* How the mesh ended, set by its thread. */
    lt_failure failure;
    /* (rounds): medians of turns. */
    double mesh_s[LT_BENCH_MESH_TURNS], one_s[LT_BENCH_MESH_TURNS], exposed_s[LT_BENCH_MESH_TURNS];
    int ranks;
} bench;

/* ---- The files of a run ---- */

static lt_err write_shard(const char *path, int64_t n, int64_t vocab) {
    int32_t header[SHARD_WORDS] = {20240520, 1, (int32_t)n};
    const size_t bytes = sizeof header + (size_t)n * sizeof(uint16_t);
    lt_rng rng = {.seed = 1};
    char *data = malloc(bytes);
    lt_err err;
    if (data == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld tokens", (long long)n);
    }
    memcpy(data, header, sizeof header);
    for (int64_t i = 0; i < n; i++) {
        const uint16_t id = (uint16_t)lt_rng_below(
            &rng, (uint64_t)(vocab < SHARD_IDS ? vocab : SHARD_IDS));
        memcpy(data + sizeof header + (size_t)i * sizeof id, &id, sizeof id);
    }
    err = lt_file_write_atomic(path, data, bytes);
    free(data);
    return err;
}

static lt_err set(lt_recipe *r, const char *name, const char *value) {
    return lt_options_set(&lt_recipe_table, r, name, value, "bench train --mesh");
}

static lt_err set_number(lt_recipe *r, const char *name, int64_t value) {
    char text[24];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    return set(r, name, text);
}

/* The part that both runs share. */
static lt_err make_recipe(const bench *b, lt_recipe *r, const char *name, int64_t batch,
                          int64_t seq, int threads) {
    static const char *const plain[][2] = {
        {"sample.tokens", "0"},           {"export", "false"}, {"log.every", "1"},
        {"data.mask_documents", "false"}, {"lr.warmup", "0"},  {"device", "cpu"},
        {"lr.schedule", "constant"}};
    const lt_bench_mesh_case *w = b->what;
    char path[LT_PATH_BYTES];
    lt_options_default(&lt_recipe_table, r);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        LT_TRY(set(r, plain[i][0], plain[i][1]));
    }
    LT_TRY(lt_path_join(path, b->folder, name));
    LT_TRY(set(r, "out", path));
    LT_TRY(lt_path_join(path, b->folder, "config.json"));
    LT_TRY(set(r, "model.config", path));
    LT_TRY(lt_path_join(path, b->folder, "shard.bin"));
    LT_TRY(set(r, "data.train", path));
    LT_TRY(set(r, "model.dtype", w->bf16 ? "bf16" : "fp32"));
    LT_TRY(set_number(r, "data.seq", seq));
    LT_TRY(set_number(r, "batch.size", batch));
    LT_TRY(set_number(r, "threads", threads));
    return set_number(r, "steps", w->steps * w->rounds + WARM_STEPS);
}

static lt_err prepare(bench *b, lt_bench_mesh_result *out) {
    const lt_bench_mesh_case *w = b->what;
    const lt_train_shape *shape = &lt_train_shapes[w->shape];
    const int64_t batch = w->batch > 0 ? w->batch : shape->batch,
                  seq = w->seq > 0 ? w->seq : shape->seq;
    const lt_model_spec spec = lt_train_shape_spec(shape, seq);
    const char *temporary = getenv("TMPDIR");
    char path[LT_PATH_BYTES];
    lt_mesh_shape mesh;
    lt_layout layout;
    LT_TRY(lt_mesh_parse(&mesh, w->mesh));
    b->ranks = mesh.pp * mesh.dp * mesh.cp * mesh.tp;
    if (b->ranks < 2) {
        LT_FAIL(LT_ERR_ARG,
                "--mesh %s: a mesh of one rank; only a mesh of two or more can be compared with "
                "one rank",
                w->mesh);
    }
    LT_TRY(lt_mesh_check(&mesh, b->ranks));
    LT_TRY(lt_layout_open(&layout, &spec, &mesh, 0)); /* Check that it can divide the model. */
    out->ranks = b->ranks;
    out->threads = w->threads > 0 ? w->threads : lt_thread_count() / b->ranks;
    out->threads = out->threads > 0 ? out->threads : 1;
    out->batch = batch * mesh.dp;
    out->seq = seq;
    (void)snprintf(b->folder, sizeof b->folder, "%s/lateen-bench-XXXXXX",
                   temporary != NULL ? temporary : P_tmpdir);
    if (mkdtemp(b->folder) == NULL) {
        b->folder[0] = '\0';
        LT_FAIL(LT_ERR_IO, "a folder in %s", temporary != NULL ? temporary : P_tmpdir);
    }
    LT_TRY(lt_path_join(path, b->folder, "config.json"));
    LT_TRY(lt_model_spec_write(&spec, w->bf16 ? LT_BF16 : LT_F32, path));
    LT_TRY(lt_path_join(path, b->folder, "shard.bin"));
    LT_TRY(write_shard(path, 4 * (out->batch * seq + 1), spec.vocab_size));
    LT_TRY(make_recipe(b, &b->one, "one", batch, seq, out->threads));
    LT_TRY(make_recipe(b, &b->mesh, "mesh", out->batch, seq, out->threads));
    LT_TRY(set_number(&b->mesh, "mesh.zero", w->zero));
    return set(&b->mesh, "mesh", w->mesh);
}

/* ---- Turns ---- */

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t n) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    return values[n / 2];
}

/* Run n steps: the median of their seconds and, for a mesh, the average wait of a step. */
static lt_err take_steps(lt_training *t, int64_t n, double *step_s, double *exposed_s) {
    double all[LT_BENCH_MESH_TURNS];
    *exposed_s = 0.0;
    for (int64_t i = 0; i < n; i++) {
        lt_step_outcome o;
        LT_TRY(lt_training_step(t, &o));
        all[i] = o.step_s;
        *exposed_s += o.record.comm_s / (double)n;
    }
    *step_s = median(all, n);
    return lt_training_settle(t);
}

static lt_err rank_turns(bench *b, lt_training *t, int64_t *turns) {
    double seconds, exposed;
    for (; *turns < b->what->rounds; ++*turns) {
        lt_err err;
        (void)pthread_barrier_wait(&b->turn);
        err = take_steps(t, b->what->steps, &seconds, &exposed);
        (void)pthread_barrier_wait(&b->turn);
        if (err != LT_OK) {
            ++*turns;
            return err;
        }
        if (lt_ranks_lead(&t->ranks)) {
            b->mesh_s[*turns] = seconds;
            b->exposed_s[*turns] = exposed;
        }
    }
    return LT_OK;
}

static lt_err rank_main(lt_comm *c, void *of) {
    bench *b = of;
    lt_world world = {0};
    lt_training *t = calloc(1, sizeof *t);
    double seconds, exposed;
    int64_t turns = 0;
    lt_failure failure;
    lt_err err = t == NULL ? lt_error_set(LT_ERR_OOM, "training") : LT_OK;
    err = err == LT_OK ? lt_world_open_on(&world, c, b->what->mesh) : err;
    if (err == LT_OK) {
        err = lt_training_open_ranks(t, &b->mesh, NULL, &world, NULL);
        err = err == LT_OK ? take_steps(t, WARM_STEPS, &seconds, &exposed) : err;
        err = err == LT_OK ? rank_turns(b, t, &turns) : err;
        lt_failure_keep(&failure, err);
        lt_world_close(&world, err); /* Other ranks that wait for this one fail at once. */
        lt_training_close(t);
    } else {
        lt_failure_keep(&failure, err);
    }
    for (; turns < b->what->rounds; turns++) {
        (void)pthread_barrier_wait(&b->turn);
        (void)pthread_barrier_wait(&b->turn);
    }
    free(t);
    return lt_failure_raise(&failure);
}

static void *mesh_main(void *of) {
    bench *b = of;
    const lt_comm_options o = {.deadline_s = DEADLINE_S};
    b->err = lt_comm_run_threads(b->ranks, &o, rank_main, b);
    lt_failure_keep(&b->failure, b->err);
    return NULL;
}

/* The single rank measures its turns, and sets when the mesh has its own. */
static lt_err take_turns(bench *b, lt_training *one) {
    lt_err err = LT_OK;
    double unused;
    for (int64_t i = 0; i < b->what->rounds; i++) {
        (void)pthread_barrier_wait(&b->turn);
        (void)pthread_barrier_wait(&b->turn);
        err = err == LT_OK ? take_steps(one, b->what->steps, &b->one_s[i], &unused) : err;
    }
    return err;
}

static lt_err run_both(bench *b) {
    lt_training *one = calloc(1, sizeof *one);
    lt_err err = LT_OK;
    double unused;
    pthread_t thread;
    lt_failure own;
    if (one == NULL) {
        LT_FAIL(LT_ERR_OOM, "training");
    }
    LT_TRY_DONE(lt_training_open(one, &b->one, NULL));
    LT_TRY_DONE(take_steps(one, WARM_STEPS, &unused, &unused));
    if (pthread_create(&thread, NULL, mesh_main, b) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "a thread for the mesh");
    }
    err = take_turns(b, one);
    lt_failure_keep(&own, err);
    (void)pthread_join(thread, NULL);
    err = b->err != LT_OK ? lt_failure_raise(&b->failure) : lt_failure_raise(&own);
done:
    lt_training_close(one);
    free(one);
    return err;
}

lt_err lt_bench_mesh_run(lt_bench_mesh_result *out, const lt_bench_mesh_case *what) {
    lt_err err = LT_OK;
    bench *b = calloc(1, sizeof *b);
    if (b == NULL) {
        LT_FAIL(LT_ERR_OOM, "bench");
    }
    LT_ASSERT(what->steps <= LT_BENCH_MESH_TURNS && what->rounds <= LT_BENCH_MESH_TURNS);
    b->what = what;
    lt_log_set_level(LT_LOG_ERROR);
    LT_TRY_DONE(prepare(b, out));
    if (pthread_barrier_init(&b->turn, NULL, (unsigned)b->ranks + 1) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "a barrier of %d threads", b->ranks + 1);
    }
    err = run_both(b);
    (void)pthread_barrier_destroy(&b->turn);
    if (err == LT_OK) {
        out->step_s = median(b->mesh_s, what->rounds);
        out->one_step_s = median(b->one_s, what->rounds);
        out->exposed_s = median(b->exposed_s, what->rounds);
        out->tokens_per_s = (double)(out->batch * out->seq) / out->step_s;
        out->one_tokens_per_s = (double)(b->one.batch * out->seq) / out->one_step_s;
    }
done:
    if (b->folder[0] != '\0' && lt_file_remove_tree(b->folder) != LT_OK) {
        lt_log_warn("%s is left behind", b->folder);
    }
    free(b);
    return err;
}
