/* together_step.c: a step of several runs of one model (together.h): their rows in common passes,
 * or through a common pipeline; then, run by run, what each does with its own gradients.
 *
 *     pass 0   | rows of run 0 | rows of run 1 | rows of run 2 |
 *     pass 1   | rows of run 0 | rows of run 2 |
 *
 * A step has as many passes as the run with the most rows needs; a run whose rows are used up is
 * left out of the further ones.
 *
 * Ranks of a mesh have the same numbers of rows of every run, so they make the same passes and call
 * sums over ranks in the same order: unit by unit, and within a unit run by run. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "train/together_impl.h"

#define SHOWN_LOSSES 6 /* A progress line shows the losses of this many runs. */

/* ---- Rows ---- */

/* Tokens of a row that this rank has. */
static int64_t own_seq(const lt_training *t) {
    return t->recipe.seq / lt_training_cp(t);
}

/* A pass copies its batch when it is staged; a pipeline reads the batches of a step until the
 * step ends. */
lt_err lt_together_open_rows(lt_together *g) {
    const lt_training *host = &g->runs[0];
    g->n_places = 1;
    for (int i = 0; i < g->n && host->pipeline != NULL; i++) {
        const int64_t rows = lt_recipe_largest_batch(g->named[i].recipe) / lt_training_dp(host),
                      n = (rows + g->micros[i] - 1) / g->micros[i];
        g->n_places = n > g->n_places ? n : g->n_places;
    }
    g->rows_of = calloc((size_t)(g->n_places * g->n), sizeof *g->rows_of);
    if (g->rows_of == NULL) {
        LT_FAIL(LT_ERR_OOM, "rows of %d adapters", g->n);
    }
    return lt_step_rows_open(&g->rows, g->n_places * g->pass_rows, own_seq(host), false);
}

/* Tokens of the longest of n rows, if rows of one document each may be shortened. */
static int64_t used_of(const lt_training *t, int64_t first, int64_t n) {
    const lt_batch *b = &lt_training_draw(t)->rows.batch.ids;
    const bool cut = t->recipe.packing == LT_RECIPE_PACK_SINGLE && own_seq(t) == b->seq &&
                     t->device->backend->host_memory && t->pipeline == NULL;
    return cut ? lt_rows_used(b, first, n, LT_ROWS_STEP) : own_seq(t);
}

/* Copy rows [first, first + n) of a run's step, each of seq tokens, to the batch after its first
 * `at` tokens. */
static void put_rows(const lt_batch *to, int64_t at, int64_t seq, const lt_training *t,
                     int64_t first, int64_t n) {
    const lt_batch *from = &lt_training_draw(t)->rows.batch.ids;
    int32_t *const target[] = {to->tokens, to->labels, to->doc_start, to->positions};
    const int32_t *const source[] = {from->tokens, from->labels, from->doc_start, from->positions};
    for (size_t k = 0; k < sizeof target / sizeof *target; k++) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(target[k] + at + i * seq, source[k] + (first + i) * own_seq(t),
                   (size_t)seq * sizeof *target[k]);
        }
    }
}

/* Number of rows of run i in a pass. */
static int64_t rows_in(const lt_together *g, int i, int64_t pass) {
    const int64_t micro = g->micros[i];
    const int64_t left = lt_together_runs(g, i)
                             ? lt_training_draw(&g->runs[i])->n_rows - pass * micro
                             : 0;
    return left < 0 ? 0 : left < micro ? left : micro;
}

/* Number of passes in the step. */
static int64_t n_passes(const lt_together *g) {
    int64_t n = 0;
    for (bool more = true; more; n += more) {
        more = false;
        for (int i = 0; i < g->n; i++) {
            more = more || rows_in(g, i, n) > 0;
        }
    }
    return n;
}

/* Gather the batch of a pass of the step. */
static lt_pass_batch gather(lt_together *g, int64_t pass) {
    const lt_batch *to = &g->rows.batch.ids;
    const int64_t place = pass % g->n_places, at = place * g->pass_rows * to->seq;
    int64_t *rows_of = g->rows_of + place * g->n;
    lt_pass_batch b = {.seq = 1,
                       .tokens = to->tokens + at,
                       .labels = to->labels + at,
                       .doc_start = to->doc_start + at,
                       .positions = to->positions + at,
                       .rows_of = rows_of};
    for (int i = 0; i < g->n; i++) {
        rows_of[i] = rows_in(g, i, pass);
        const int64_t used = rows_of[i] > 0 ? used_of(&g->runs[i], pass * g->micros[i], rows_of[i])
                                            : 1;
        b.seq = used > b.seq ? used : b.seq;
    }
    for (int i = 0; i < g->n; i++) {
        if (rows_of[i] > 0) {
            put_rows(to, at + b.batch * b.seq, b.seq, &g->runs[i], pass * g->micros[i], rows_of[i]);
        }
        b.batch += rows_of[i];
    }
    b.doc_start = g->runs[0].recipe.mask_documents ? b.doc_start : NULL;
    return b;
}

/* ---- Gradients ---- */

static lt_err run_pipeline(lt_together *g, int64_t n, float scale, lt_pass_result *results) {
    lt_training *host = &g->runs[0];
    for (int64_t pass = 0; pass < n; pass++) {
        host->batches[pass] = gather(g, pass);
    }
    return lt_training_run_batches(host, n, scale, results);
}

static lt_err run_passes(lt_together *g, int64_t n, float scale, lt_pass_result *results) {
    lt_training *host = &g->runs[0];
    LT_TRY(lt_pass_zero_gradients(host->pass));
    for (int64_t pass = 0; pass < n; pass++) {
        const lt_pass_batch b = gather(g, pass);
        LT_TRY(lt_pass_full(host->pass) ? lt_pass_collect_each(host->pass, results) : LT_OK);
        LT_TRY(lt_pass_stage(host->pass, &b));
        LT_TRY(lt_training_has_ranks(host) ? lt_zero_begin_batch(&host->zero, 0) : LT_OK);
        LT_TRY(lt_pass_train_staged(host->pass, scale));
    }
    return LT_OK;
}

/* Compute the gradients and losses of all runs. */
static lt_err compute(lt_together *g) {
    lt_training *host = &g->runs[0];
    const int64_t n = n_passes(g);
    const float scale = (float)lt_training_gradient_scale(host);
    const bool piped = host->pipeline != NULL;
    lt_pass_result results[LT_TOGETHER_MAX] = {0};
    for (int i = 0; i < g->n; i++) {
        if (lt_together_runs(g, i) && lt_training_has_ranks(&g->runs[i])) {
            lt_zero_begin_step(&g->runs[i].zero, n);
        }
    }
    LT_TRY(piped ? run_pipeline(g, n, scale, results) : run_passes(g, n, scale, results));
    for (int i = 0; i < g->n; i++) {
        LT_TRY(lt_together_runs(g, i) ? lt_training_step_ahead(&g->runs[i]) : LT_OK);
    }
    LT_TRY(piped ? host->device->backend->sync(lt_training_queue(host))
                 : lt_pass_collect_each(host->pass, results));
    for (int i = 0; i < g->n; i++) {
        LT_TRY(lt_together_runs(g, i)
                   ? lt_training_step_add(&g->runs[i], &g->outcomes[i], &results[i])
                   : LT_OK);
    }
    return LT_OK;
}

/* ---- The end of a step ---- */

/* What the run of one adapter does at the end of a step: the update, its metrics, validation,
 * checkpoint. */
static lt_err end_step(lt_together *g, int i, bool *slow, int *stop) {
    lt_training *t = lt_together_turn_to(g, i);
    lt_step_outcome *o = &g->outcomes[i];
    bool took_long = false;
    LT_TRY(lt_training_step_end(t, o, LT_OK));
    *stop = *stop != 0 ? *stop : (int)o->record.stop;
    LT_TRY(lt_together_leads(g) ? lt_training_tell(t, o) : LT_OK);
    LT_TRY(lt_training_follow(t, &o->decision, &took_long));
    *slow = *slow || took_long;
    return LT_OK;
}

/* One line for all runs: the losses, and the time left for the run with the most steps to go. */
static void show(lt_together *g, double step_s) {
    char losses[SHOWN_LOSSES * 96 + 8] = "", eta[LT_CLOCK_TEXT_BYTES];
    const lt_training *last = NULL;
    double tokens = 0.0;
    int shown = 0;
    for (int i = 0; i < g->n; i++) {
        const lt_training *t = &g->runs[i];
        const size_t used = strlen(losses);
        if (!lt_together_runs(g, i)) {
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
    if (last != NULL && lt_together_leads(g)) {
        lt_progress_show(
            &g->progress, "step %lld/%lld  loss%s  %.0f tok/s  ETA %s", (long long)last->state.step,
            (long long)last->recipe.steps, losses, tokens / step_s,
            lt_duration_text(eta, (double)(last->recipe.steps - last->state.step) * step_s));
    }
}

lt_err lt_together_step(lt_together *g, int *stop) {
    const double start_s = lt_clock_s();
    bool slow = false;
    *stop = 0;
    for (int i = g->n - 1; i >= 0; i--) {
        g->timed = lt_together_runs(g, i) ? i : g->timed;
    }
    for (int i = 0; i < g->n; i++) {
        LT_TRY(
            lt_together_runs(g, i)
                ? lt_together_leave_or(g, i, lt_training_step_begin(&g->runs[i], &g->outcomes[i]))
                : LT_OK);
    }
    LT_TRY(compute(g));
    for (int i = 0; i < g->n; i++) {
        LT_TRY(lt_together_runs(g, i) ? lt_together_leave_or(g, i, end_step(g, i, &slow, stop))
                                      : LT_OK);
    }
    show(g, lt_clock_s() - start_s);
    for (int i = 0; i < g->n; i++) {
        LT_TRY(lt_together_finish_if_done(g, i));
    }
    /* If something took long, the other ranks wait here for the leading one. */
    return slow && *stop == 0 ? lt_training_ask_stop(&g->runs[0], stop) : LT_OK;
}
