/* together.c: see together.h. */
#include "train/together.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "lateen/comm.h"
#include "model/lora/lora.h"
#include "platform/telemetry/identity.h"
#include "train/recipe/memory.h"
#include "train/run.h"
#include "train/together_impl.h"

#define SHOWN_LOSSES 6 /* A progress line has the losses of this many runs. */

/* ---- What goes together ---- */

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
        {"mesh", r->mesh[0] != '\0'},
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
            LT_FAIL(LT_ERR_UNSUPPORTED, "adapter %s: several adapters at once with %s: not built",
                    name, refused[i].what);
        }
    }
    return LT_OK;
}

lt_err lt_together_check(const lt_named_recipe *named, int n) {
    if (lt_comm_is_rank()) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "several adapters at once on several ranks: not built; start them without a "
                "launcher");
    }
    for (int i = 0; i < n; i++) {
        LT_TRY(check_one(named[i].name, named[i].recipe));
    }
    return LT_OK;
}

/* ---- Opening ---- */

/* Rows of run i in a pass, if the rows of its steps are divided among n_passes. */
static int64_t share_of(const lt_named_recipe *of, int64_t n_passes) {
    return (lt_recipe_largest_batch(of->recipe) + n_passes - 1) / n_passes;
}

static int64_t rows_of_pass(const lt_named_recipe *named, int n, int64_t n_passes) {
    int64_t rows = 0;
    for (int i = 0; i < n; i++) {
        rows += share_of(&named[i], n_passes);
    }
    return rows;
}

/* The fewest passes whose rows, of all runs, are at most micro, or one of each run. */
static int64_t count_passes(const lt_named_recipe *named, int n, int64_t micro) {
    const int64_t most = micro > n ? micro : n;
    int64_t n_passes = 1;
    while (micro > 0 && rows_of_pass(named, n, n_passes) > most) {
        n_passes++;
    }
    return n_passes;
}

static lt_err open_run(lt_together *g, int i, const lt_named_recipe *of, int64_t n_passes) {
    lt_training *t = &g->runs[i];
    lt_recipe *r = malloc(sizeof *r);
    lt_err err;
    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    *r = *of->recipe;
    r->micro = share_of(of, n_passes);
    lt_log_info("adapter %s: %s", of->name, r->out);
    g->n_opened = i + 1;
    err = lt_training_open_with(t, r, i > 0 ? g->runs[0].device : NULL,
                                &(lt_training_with){.together = g, .member = i});
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
    LT_TRY(lt_file_make_dirs(out));
    LT_TRY(lt_path_join(path, out, "log.txt"));
    LT_TRY(lt_log_to_file(path));
    lt_log_set_run(lt_run_name(name, out), who.attempt, who.epoch, 0);
    return lt_path_join(g->exit_path, out, "exit");
}

static lt_err open_all(lt_together *g, int64_t micro, const char *out) {
    const int64_t n_passes = count_passes(g->named, g->n, micro);
    size_t announced = 0;
    g->pass_rows = rows_of_pass(g->named, g->n, n_passes);
    LT_TRY(open_folder(g, out));
    for (int i = 0; i < g->n; i++) {
        LT_TRY(open_run(g, i, &g->named[i], n_passes));
    }
    LT_TRY(lt_step_rows_open(&g->rows, g->pass_rows, g->runs[0].recipe.seq, false));
    lt_memory_plan_log(&g->runs[0].memory);
    for (int i = 0; i < g->n; i++) {
        announced += lt_pass_join_bytes(g->runs[0].pass, i);
    }
    lt_log_info("%d adapters at once, %lld rows of all in one pass; %.1f MiB more for their "
                "gradients and products",
                g->n, (long long)g->pass_rows, (double)announced / 1048576.0);
    return LT_OK;
}

static void close_all(lt_together *g) {
    for (int i = g->n_opened - 1; i >= 0; i--) { /* The first has the model and the pass. */
        lt_training_close(&g->runs[i]);
    }
    lt_arena_close(&g->rows.arena);
    free(g->runs);
}

/* ---- A step of all ---- */

static bool runs(const lt_together *g, int i) {
    return g->state[i] == LT_TOGETHER_RUNS;
}

/* From now on what is opened on the model computes with the adapters of run i. */
static lt_training *turn_to(lt_together *g, int i) {
    lt_lora_use(g->runs[0].model, g->runs[i].lora);
    return &g->runs[i];
}

/* Tokens of the longest of n rows, where rows of one document each may be cut. */
static int64_t used_of(const lt_training *t, int64_t first, int64_t n) {
    const bool cut = t->recipe.packing == LT_RECIPE_PACK_SINGLE && t->device->backend->host_memory;
    const lt_batch *b = &lt_training_draw(t)->rows.batch.ids;
    return cut ? lt_rows_used(b, first, n, LT_ROWS_STEP) : t->recipe.seq;
}

/* Rows [first, first + n) of a run's step as rows from `at` on, each of seq tokens. */
static void put_rows(lt_batch *to, int64_t at, int64_t seq, const lt_training *t, int64_t first,
                     int64_t n) {
    const lt_batch *from = &lt_training_draw(t)->rows.batch.ids;
    int32_t *const target[] = {to->tokens, to->labels, to->doc_start, to->positions};
    const int32_t *const source[] = {from->tokens, from->labels, from->doc_start, from->positions};
    for (size_t k = 0; k < sizeof target / sizeof *target; k++) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(target[k] + (at + i) * seq, source[k] + (first + i) * from->seq,
                   (size_t)seq * sizeof *target[k]);
        }
    }
}

/* Rows of run i in a pass. */
static int64_t rows_in(const lt_together *g, int i, int64_t pass) {
    const int64_t micro = g->runs[i].micro;
    const int64_t left = runs(g, i) ? lt_training_draw(&g->runs[i])->n_rows - pass * micro : 0;
    return left < 0 ? 0 : left < micro ? left : micro;
}

/* The batch of a pass of the step; without rows behind the last. */
static lt_pass_batch gather(lt_together *g, int64_t pass) {
    const lt_batch *to = &g->rows.batch.ids;
    lt_pass_batch b = {.seq = 1,
                       .tokens = to->tokens,
                       .labels = to->labels,
                       .positions = to->positions,
                       .rows_of = g->rows_of};
    for (int i = 0; i < g->n; i++) {
        const int64_t n = g->rows_of[i] = rows_in(g, i, pass);
        const int64_t used = n > 0 ? used_of(&g->runs[i], pass * g->runs[i].micro, n) : 1;
        b.seq = used > b.seq ? used : b.seq;
    }
    for (int i = 0; i < g->n; i++) {
        const lt_training *t = &g->runs[i];
        if (g->rows_of[i] > 0) {
            put_rows(&g->rows.batch.ids, b.batch, b.seq, t, pass * t->micro, g->rows_of[i]);
        }
        b.batch += g->rows_of[i];
    }
    b.doc_start = g->runs[0].recipe.mask_documents ? to->doc_start : NULL;
    return b;
}

/* Gradients and losses of all. */
static lt_err compute(lt_together *g) {
    lt_pass *p = g->runs[0].pass;
    lt_pass_result results[LT_TOGETHER_MAX] = {0};
    lt_pass_batch b = gather(g, 0);
    LT_TRY(lt_pass_zero_gradients(p));
    for (int64_t pass = 1; b.batch > 0; pass++) {
        LT_TRY(lt_pass_full(p) ? lt_pass_collect_each(p, results) : LT_OK);
        LT_TRY(lt_pass_stage(p, &b));
        LT_TRY(lt_pass_train_staged(p, (float)lt_training_gradient_scale(&g->runs[0])));
        b = gather(g, pass);
    }
    for (int i = 0; i < g->n; i++) {
        LT_TRY(runs(g, i) ? lt_training_step_ahead(&g->runs[i]) : LT_OK);
    }
    LT_TRY(lt_pass_collect_each(p, results));
    for (int i = 0; i < g->n; i++) {
        if (runs(g, i)) {
            lt_training_step_add(&g->runs[i], &g->outcomes[i], &results[i]);
        }
    }
    return LT_OK;
}

/* What an adapter's own run does behind a step: the update, its numbers, validation, checkpoint. */
static lt_err end_step(lt_together *g, int i) {
    lt_training *t = turn_to(g, i);
    bool slow;
    LT_TRY(lt_training_step_end(t, &g->outcomes[i], LT_OK));
    LT_TRY(lt_training_tell(t, &g->outcomes[i]));
    LT_TRY(lt_training_follow(t, &g->outcomes[i].decision, &slow));
    return LT_OK;
}

/* A run that cannot go on leaves the others; any other error ends all. */
static lt_err leave_or(lt_together *g, int i, lt_err err) {
    if (err != LT_ERR_NUMERIC) {
        return err != LT_OK ? lt_error_prefix(err, "adapter %s", g->named[i].name) : LT_OK;
    }
    err = lt_error_prefix(lt_training_give_up(&g->runs[i]), "adapter %s", g->named[i].name);
    g->state[i] = LT_TOGETHER_FAILED;
    lt_log_error("%s", lt_error_message());
    if (g->failure.err == LT_OK) {
        lt_failure_keep(&g->failure, err);
    }
    return LT_OK;
}

static lt_err finish_if_done(lt_together *g, int i) {
    lt_training *t = &g->runs[i];
    lt_err err;
    if (!runs(g, i) || t->state.step < t->recipe.steps) {
        return LT_OK;
    }
    lt_progress_end(&g->progress);
    err = lt_training_finish(turn_to(g, i));
    g->state[i] = err == LT_OK ? LT_TOGETHER_DONE : g->state[i];
    return leave_or(g, i, err);
}

/* One line for all: the losses, and what is left of the run with the most steps before it. */
static void show(lt_together *g, double step_s) {
    char losses[SHOWN_LOSSES * 96 + 8] = "", eta[LT_CLOCK_TEXT_BYTES];
    const lt_training *last = NULL;
    double tokens = 0.0;
    int shown = 0;
    for (int i = 0; i < g->n; i++) {
        const lt_training *t = &g->runs[i];
        const size_t used = strlen(losses);
        if (!runs(g, i)) {
            continue;
        }
        tokens += g->outcomes[i].record.tokens;
        if (last == NULL ||
            t->recipe.steps - t->state.step > last->recipe.steps - last->state.step) {
            last = t;
        }
        if (shown < SHOWN_LOSSES) {
            (void)snprintf(losses + used, sizeof losses - used, "  %s %.4f", g->named[i].name,
                           g->outcomes[i].decision.loss);
        } else if (shown == SHOWN_LOSSES) {
            (void)snprintf(losses + used, sizeof losses - used, "  ...");
        }
        shown++;
    }
    if (last != NULL) {
        lt_progress_show(
            &g->progress, "step %lld/%lld  loss%s  %.0f tok/s  ETA %s", (long long)last->state.step,
            (long long)last->recipe.steps, losses, tokens / step_s,
            lt_duration_text(eta, (double)(last->recipe.steps - last->state.step) * step_s));
    }
}

/* *stop: why all are to stop; 0: they are not. */
static lt_err step_all(lt_together *g, int *stop) {
    const double start_s = lt_clock_s();
    for (int i = 0; i < g->n; i++) {
        LT_TRY(runs(g, i) ? leave_or(g, i, lt_training_step_begin(&g->runs[i], &g->outcomes[i]))
                          : LT_OK);
    }
    LT_TRY(compute(g));
    for (int i = 0; i < g->n; i++) {
        LT_TRY(runs(g, i) ? leave_or(g, i, end_step(g, i)) : LT_OK);
    }
    show(g, lt_clock_s() - start_s);
    for (int i = 0; i < g->n; i++) {
        LT_TRY(finish_if_done(g, i));
    }
    *stop = lt_training_stop_asked(&g->runs[0]);
    return LT_OK;
}

static int n_running(const lt_together *g) {
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        n += runs(g, i);
    }
    return n;
}

static lt_err stop_all(lt_together *g, int why) {
    lt_progress_end(&g->progress);
    for (int i = 0; i < g->n; i++) {
        const lt_err err = runs(g, i) ? lt_training_stop(turn_to(g, i), why) : LT_OK;
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

static lt_err train_all(lt_together *g) {
    int stop = lt_training_stop_asked(&g->runs[0]);
    for (int i = 0; i < g->n; i++) {
        lt_training *t = turn_to(g, i);
        LT_TRY(lt_training_sample_first(t));
        lt_training_spend(t, LT_GOODPUT_restart);
        LT_TRY(finish_if_done(g, i));
    }
    while (n_running(g) > 0 && stop == 0) {
        LT_TRY(step_all(g, &stop));
    }
    if (n_running(g) > 0) {
        return stop_all(g, stop);
    }
    lt_progress_end(&g->progress);
    lt_log_info("peak memory %.1f MiB", (double)lt_memory_peak() / 1048576.0);
    return lt_failure_raise(&g->failure);
}

lt_err lt_run_together(const lt_named_recipe *named, int n, int64_t micro, const char *out) {
    lt_together *g = calloc(1, sizeof *g);
    lt_err err = LT_OK;
    if (g == NULL) {
        LT_FAIL(LT_ERR_OOM, "training");
    }
    *g = (lt_together){.named = named, .n = n, .runs = calloc((size_t)n, sizeof *g->runs)};
    g->progress.plain_every_s = named[0].recipe->plain_every;
    if (g->runs == NULL) {
        free(g);
        LT_FAIL(LT_ERR_OOM, "training of %d adapters", n);
    }
    LT_ASSERT(n >= 1 && n <= LT_TOGETHER_MAX);
    LT_TRY_DONE(lt_together_check(named, n));
    lt_training_prepare_process();
    LT_TRY_DONE(open_all(g, micro, out));
    LT_TRY_DONE(train_all(g));
done:
    if (err == LT_ERR_INTERRUPTED) {
        unlink(g->exit_path);
    }
    lt_training_note_end(err);
    close_all(g);
    free(g);
    return err;
}
