/* together.c: see together.h. */
#include "train/together.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/board.h"
#include "model/lora/lora.h"
#include "platform/agent/memory.h"
#include "platform/telemetry/identity.h"
#include "train/recipe/memory.h"
#include "train/run.h"
#include "train/together_impl.h"

/* ---- Which runs can be trained together ---- */

bool lt_together_own(const lt_option *row) {
    static const char *const own[] = {"steps", "seed", "export", "batch.size", "batch.ramp"};
    static const char *const own_groups[] = {"data.", "lora.", "optim.",  "lr.",        "guard.",
                                             "eval.", "log.",  "sample.", "checkpoint."};
    static const char *const common[] = {"data.seq", "data.mask_documents", "data.tokenizer",
                                         "lora.base", "log.plain_every"};
    bool is = false;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        is = is || strcmp(row->name, own[i]) == 0;
    }
    for (size_t i = 0; i < sizeof own_groups / sizeof *own_groups; i++) {
        is = is || strncmp(row->name, own_groups[i], strlen(own_groups[i])) == 0;
    }
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        is = is && strcmp(row->name, common[i]) != 0;
    }
    return is;
}

static lt_err check_one(const char *name, const lt_recipe *r) {
    const struct {
        const char *what;
        bool asked;
    } refused[] = {
        {"objective.kind other than sft", r->objective != LT_RECIPE_OBJECTIVE_sft},
        {"lora.dora", r->lora_dora},
        {"lora.dropout", r->lora_dropout > 0.0},
        {"layout = auto", r->layout == LT_LAYOUT_AUTO},
        {"diloco.sites", r->sites > 1},
        {"metrics.listen", r->metrics_listen[0] != '\0'},
        {"page", r->page > 0},
        {"trace_step", r->trace_step > 0},
        {"resume of a folder", strcmp(r->resume, "auto") != 0 && strcmp(r->resume, "none") != 0},
    };
    if (r->lora_rank == 0 && r->lora_init[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "adapter %s: it needs a lora.rank, or a lora.init to start from", name);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "adapter %s: several adapters at once with %s: not supported", name,
                    refused[i].what);
        }
    }
    return LT_OK;
}

lt_err lt_together_check(const lt_named_recipe *named, int n) {
    for (int i = 0; i < n; i++) {
        LT_TRY(check_one(named[i].name, named[i].recipe));
    }
    return LT_OK;
}

/* Refuse a launch that keeps snapshots in memory. */
static lt_err check_launch(const lt_world *w) {
    lt_node_memory memory;
    if (w->comm != NULL && lt_node_memory_of_rank(&memory)) {
        LT_FAIL(LT_ERR_ARG, /* ARG, so that the launcher does not try again. */
                "lateen launch --nodes keeps snapshots of one run in memory, and several adapters "
                "at once are several runs: leave --nodes out, and with it --spares and --shrink");
    }
    return LT_OK;
}

/* ---- Opening ---- */

/* Rows of run i in a pass, if the rows of its steps are divided among n_passes. */
static int64_t share_of(const lt_together *g, int i, int64_t n_passes) {
    const int64_t dp = g->world->comm != NULL ? g->world->dp : 1;
    const int64_t rows = lt_recipe_largest_batch(g->named[i].recipe) / dp,
                  share = (rows + n_passes - 1) / n_passes;
    return share > 0 ? share : 1;
}

static int64_t rows_of_pass(const lt_together *g, int64_t n_passes) {
    int64_t rows = 0;
    for (int i = 0; i < g->n; i++) {
        rows += share_of(g, i, n_passes);
    }
    return rows;
}

/* The fewest passes for which the rows of all runs in a pass are at most micro, or one row of
 * each run if micro is smaller. micro 0: one pass, or as many as keep a pipeline busy. */
static int64_t count_passes(const lt_together *g, int64_t micro) {
    const int64_t most = micro > g->n ? micro : g->n;
    int64_t n_passes = 1;
    if (micro == 0) {
        return g->world->comm != NULL ? lt_training_passes(&g->world->shape) : 1;
    }
    while (rows_of_pass(g, n_passes) > most) {
        n_passes++;
    }
    return n_passes;
}

static lt_err open_run(lt_together *g, int i) {
    const lt_named_recipe *of = &g->named[i];
    const bool ranks = g->world->comm != NULL;
    const lt_training_with with = {
        .ranks = {.rank = g->world->rank, .combine = ranks ? lt_rank_records_combine : NULL},
        .world = ranks ? g->world : NULL,
        .together = g,
        .member = i};
    lt_device *device = i > 0 ? g->runs[0].device : NULL;
    lt_training *t = &g->runs[i];
    lt_recipe *r = malloc(sizeof *r);
    lt_err err;
    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    *r = *of->recipe;
    r->micro = g->micros[i];
    lt_log_info("adapter %s: %s", of->name, r->out);
    t->lease.lock_fd = -1; /* So that closing it is safe. */
    g->n_opened = i + 1;
    err = ranks ? lt_training_open_in_turn(t, r, device, g->world, &with)
                : lt_training_open_with(t, r, device, &with);
    free(r);
    if (err == LT_OK && t->recipe.mask_documents != g->runs[0].recipe.mask_documents) {
        err = lt_error_set(LT_ERR_UNSUPPORTED, "data.mask_documents differs from that of %s",
                           g->named[0].name);
    }
    return err != LT_OK ? lt_error_prefix(err, "adapter %s", of->name) : LT_OK;
}

static lt_err open_folder(lt_together *g, const char *out) {
    const lt_identity who = lt_identity_of_process();
    char path[LT_PATH_BYTES], name[LT_RUN_NAME_BYTES];
    LT_TRY(lt_path_join(g->exit_path, out, "exit"));
    lt_log_set_run(lt_run_name(name, out), who.attempt, who.epoch, g->world->rank);
    if (!lt_together_leads(g)) {
        return LT_OK;
    }
    LT_TRY(lt_file_make_dirs(out));
    LT_TRY(lt_path_join(path, out, "log.txt"));
    LT_TRY(lt_log_to_file(path));
    lt_board_folder(g->world->board, out);
    return LT_OK;
}

static void close_runs(lt_together *g) {
    /* The first run has the model and the pass, so it is closed last. */
    for (int i = g->n_opened - 1; i >= 0; i--) {
        lt_training_close(&g->runs[i]);
        g->runs[i] = (lt_training){.lease.lock_fd = -1};
    }
    g->n_opened = 0;
}

static void close_all(lt_together *g) {
    close_runs(g);
    lt_arena_close(&g->rows.arena);
    free(g->rows_of);
    free(g->runs);
    free(g);
}

/* Open every run, on every rank from the same checkpoint. */
static lt_err open_runs(lt_together *g, const char *out) {
    for (bool same = false; !same;) { /* Ends as the loop of lt_training_open_ranks does. */
        close_runs(g);
        LT_TRY(open_folder(g, out));
        for (int i = 0; i < g->n; i++) {
            LT_TRY(open_run(g, i));
        }
        same = true;
        for (int i = 0; i < g->n && g->world->comm != NULL; i++) {
            bool of_run;
            LT_TRY(lt_training_agree_on_step(&g->runs[i], g->world, &of_run));
            same = same && of_run;
        }
    }
    return LT_OK;
}

/* What all ranks do before the first step. */
static lt_err begin_ranks(lt_together *g) {
    LT_TRY(lt_world_connect(g->world, lt_training_queue(&g->runs[0])));
    for (int i = 0; i < g->n && g->world->comm != NULL; i++) {
        const lt_err err = lt_training_begin(lt_together_turn_to(g, i));
        LT_TRY(err != LT_OK ? lt_error_prefix(err, "adapter %s", g->named[i].name) : LT_OK);
    }
    return LT_OK;
}

static lt_err open_all(lt_together *g, int64_t micro, const char *out) {
    const int64_t n_passes = count_passes(g, micro);
    size_t announced = 0;
    for (int i = 0; i < g->n; i++) {
        g->micros[i] = share_of(g, i, n_passes);
    }
    g->pass_rows = rows_of_pass(g, n_passes);
    LT_TRY(open_runs(g, out));
    LT_TRY(lt_together_open_rows(g));
    LT_TRY(begin_ranks(g));
    lt_memory_plan_log(&g->runs[0].memory);
    for (int i = 0; i < g->n; i++) {
        announced += lt_training_join_bytes(&g->runs[i]);
    }
    lt_log_info("%d adapters at once, %lld rows of all in one pass; %.1f MiB more for their "
                "gradients and products",
                g->n, (long long)g->pass_rows, (double)announced / 1048576.0);
    return LT_OK;
}

/* ---- The end of a run ---- */

lt_training *lt_together_turn_to(lt_together *g, int i) {
    lt_lora_use(g->runs[0].model, g->runs[i].lora);
    return &g->runs[i];
}

/* Every rank returns the same error NUMERIC, because it follows from what all ranks know. */
lt_err lt_together_leave_or(lt_together *g, int i, lt_err err) {
    if (err != LT_ERR_NUMERIC) {
        return err != LT_OK ? lt_error_prefix(err, "adapter %s", g->named[i].name) : LT_OK;
    }
    err = lt_together_leads(g) ? lt_training_give_up(&g->runs[i]) : err;
    err = lt_error_prefix(err, "adapter %s", g->named[i].name);
    g->state[i] = LT_TOGETHER_FAILED;
    if (lt_together_leads(g)) {
        lt_log_error("%s", lt_error_message());
    }
    if (g->failure.err == LT_OK) {
        lt_failure_keep(&g->failure, err);
    }
    return LT_OK;
}

lt_err lt_together_finish_if_done(lt_together *g, int i) {
    lt_training *t = &g->runs[i];
    lt_err err;
    if (!lt_together_runs(g, i) || t->state.step < t->recipe.steps) {
        return LT_OK;
    }
    lt_progress_end(&g->progress);
    err = lt_training_finish(lt_together_turn_to(g, i));
    g->state[i] = err == LT_OK ? LT_TOGETHER_DONE : g->state[i];
    return lt_together_leave_or(g, i, err);
}

static int n_running(const lt_together *g) {
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        n += lt_together_runs(g, i);
    }
    return n;
}

static lt_err stop_all(lt_together *g, int why) {
    lt_progress_end(&g->progress);
    for (int i = 0; i < g->n; i++) {
        const lt_err err = lt_together_runs(g, i) ? lt_training_stop(lt_together_turn_to(g, i), why)
                                                  : LT_OK;
        if (err != LT_OK && err != LT_ERR_INTERRUPTED) {
            return lt_error_prefix(err, "adapter %s", g->named[i].name);
        }
        if (err == LT_ERR_INTERRUPTED) {
            lt_log_note(LT_LOG_INFO, "adapter %s: %s", g->named[i].name, lt_error_message());
        }
    }
    LT_FAIL(LT_ERR_INTERRUPTED,
            "stopped by %s; every adapter is saved in its folder; the same command continues",
            lt_stop_text(why));
}

/* Report progress to the launcher: the step of the run that is furthest ahead. */
static void show_step(const lt_together *g) {
    int64_t step = 0;
    for (int i = 0; i < g->n; i++) {
        step = g->runs[i].state.step > step ? g->runs[i].state.step : step;
    }
    lt_board_step(g->world->board, step);
}

static lt_err train_all(lt_together *g) {
    int stop = 0;
    show_step(g);
    lt_board_phase(g->world->board, LT_PHASE_LOADED);
    for (int i = 0; i < g->n; i++) {
        lt_training *t = lt_together_turn_to(g, i);
        LT_TRY(lt_training_sample_first(t));
        lt_training_spend(t, LT_GOODPUT_restart);
        LT_TRY(lt_together_finish_if_done(g, i));
    }
    LT_TRY(n_running(g) > 0 ? lt_training_ask_stop(&g->runs[0], &stop) : LT_OK);
    while (n_running(g) > 0 && stop == 0) {
        LT_TRY(lt_together_step(g, &stop));
        show_step(g);
    }
    if (n_running(g) > 0) {
        return stop_all(g, stop);
    }
    lt_progress_end(&g->progress);
    lt_log_info("peak memory %.1f MiB", (double)lt_memory_peak() / 1048576.0);
    return lt_failure_raise(&g->failure);
}

lt_err lt_run_together_in(lt_world *world, const lt_named_recipe *named, int n, int64_t micro,
                          const char *out) {
    lt_together *g = calloc(1, sizeof *g);
    lt_err err = LT_OK;
    if (g == NULL) {
        LT_FAIL(LT_ERR_OOM, "training");
    }
    LT_ASSERT(n >= 1 && n <= LT_TOGETHER_MAX);
    *g = (lt_together){
        .named = named, .n = n, .world = world, .runs = calloc((size_t)n, sizeof *g->runs)};
    g->progress.plain_every_s = named[0].recipe->plain_every;
    if (g->runs == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "training of %d adapters", n);
    }
    LT_TRY_DONE(lt_together_check(named, n));
    LT_TRY_DONE(check_launch(world));
    LT_TRY_DONE(open_all(g, micro, out));
    LT_TRY_DONE(train_all(g));
done:
    for (int i = 0; i < g->n_opened; i++) {
        err = lt_training_or_replaced(&g->runs[i], err);
    }
    if (err == LT_ERR_INTERRUPTED && lt_together_leads(g)) {
        unlink(g->exit_path);
    }
    lt_training_note_end(err);
    if (err == LT_ERR_INTERRUPTED && !lt_together_leads(g)) {
        err = LT_OK; /* The leading rank reports the error. */
    }
    for (int i = 0; i < g->n_opened; i++) {
        lt_saver_settle(&g->runs[i]); /* It uses the world, which is closed next. */
    }
    lt_world_close(world, err);
    close_all(g);
    return err;
}

/* ---- Worlds ---- */

typedef struct {
    const lt_named_recipe *named;
    int n;
    int64_t micro;
    const char *out;
} job;

static lt_err run_in_world(const void *of) {
    const job *j = of;
    const lt_recipe *r = j->named[0].recipe;
    lt_world world;
    LT_TRY(lt_world_open(&world, r->mesh, 1, r->deadline, j->out));
    if (world.rank > 0) {
        lt_log_set_level(LT_LOG_ERROR); /* Only rank 0 logs. */
    }
    return lt_run_together_in(&world, j->named, j->n, j->micro, j->out);
}

lt_err lt_run_together(const lt_named_recipe *named, int n, int64_t micro, const char *out) {
    const job j = {named, n, micro, out};
    return lt_training_in_worlds(run_in_world, &j);
}
