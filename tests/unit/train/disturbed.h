/* disturbed.h: a small run on ranks that are threads, in which a test disturbs one of them: what
 * it holds, what it computes, or nothing. LATEEN_TEST_DEVICE=cuda: on GPUs, whose memory the test
 * can write if they are emulated. */
#ifndef TESTS_TRAIN_DISTURBED_H
#define TESTS_TRAIN_DISTURBED_H

#include "unit/parallel/ranks.h"

#include "train/checkpoint/checksum.h"

#define MODEL      "model.layers=1 model.width=16 model.heads=2 model.ffn=32 batch.size=12 steps=8 "
#define MOST_RANKS 4

typedef struct run {
    const lt_recipe *recipe;
    const char *mesh;
    lt_err (*steps)(lt_training *t, const struct run *r); /* What a rank does with its run. */
    const void *disturbance;                              /* Belongs to the test; NULL: none. */
    lt_err ends[MOST_RANKS];
    int64_t steps_made[MOST_RANKS];
    char said[MOST_RANKS][512];
    uint64_t hash; /* Hash of rank 0's weights at the end, if it has all of them. */
} run;

static lt_err disturbed_rank(lt_comm *c, void *ctx) {
    run *r = ctx;
    lt_world world = {0};
    lt_training *t = calloc(1, sizeof *t);
    const int rank = lt_comm_rank(c);
    lt_err err = t == NULL ? lt_error_set(LT_ERR_OOM, "training") : LT_OK;
    err = err == LT_OK ? lt_world_open_on(&world, c, r->mesh) : err;
    if (err == LT_OK) {
        err = lt_training_open_ranks(t, r->recipe, NULL, &world, NULL);
        err = err == LT_OK ? r->steps(t, r) : err;
        if (err == LT_OK && rank == 0 && t->shards.level == 0) {
            err = lt_weights_checksum(&r->hash, t->model, NULL, NULL);
        }
        r->ends[rank] = err;
        r->steps_made[rank] = t->state.step;
        (void)snprintf(r->said[rank], sizeof r->said[rank], "%s", lt_error_message());
        lt_world_close(&world, err);
        lt_training_close(t);
    }
    free(t);
    return err;
}

/* Run with options on top of a small recipe, in run folder `out`; r has the steps and the
 * disturbance. */
static lt_err run_disturbed(run *r, const char *out, const char *options, const char *mesh, int n) {
    const lt_comm_options o = {.deadline_s = 240, .check = true};
    char all[512];
    lt_recipe *recipe;
    lt_err err;
    (void)snprintf(all, sizeof all, MODEL "threads=0 device=%s %s",
                   getenv("LATEEN_TEST_DEVICE") != NULL ? getenv("LATEEN_TEST_DEVICE") : "cpu",
                   options);
    recipe = run_recipe(out, all);
    run_set(recipe, "mesh", mesh);
    r->recipe = recipe;
    r->mesh = mesh;
    lt_thread_set_count(1);
    lt_log_set_level(LT_LOG_ERROR);
    err = lt_comm_run_threads(n, &o, disturbed_rank, r);
    free(recipe);
    r->recipe = NULL;
    return err;
}

static void forget(const char *out) {
    char path[LT_PATH_BYTES];
    run_path(path, out);
    must(lt_file_remove_tree(path), path);
}

#endif
