/* step_beside.c: models beside the served one, whose logits requests mix into its own:
 *
 *     mixed = own log p + sum over k of weight[k] log p_k
 *
 * and -inf where p is 0 or < plausibility max p, with p of the served model; mix.h says what counts
 * where p_k is 0. Depending on the weights this is contrastive decoding (Li et al. 2022,
 * arXiv:2210.15097; O'Brien and Lewis 2023, arXiv:2309.09117), DExperts (Liu et al. 2021,
 * arXiv:2105.03023) and proxy tuning (Liu et al. 2024, arXiv:2401.08565).
 *
 *     the step's rows ─▶ the served model's forward ───────────────▶ logits ─┐
 *         └─ those of requests that mix ─▶ forward of each model beside ─▶ logits ─┴─▶ a token
 *
 * Each of these models has keys and values in pages of its own pool, with the same numbers, so that
 * the scheduler's decisions for a sequence (pages, forks, preemption) hold for all models. Pages
 * are shared only among requests that mix the same models, because others do not fill these pools.
 * A step with such rows runs alone (it is not sent), so the choices' rows below have one writer.
 * Reported log-probabilities are those of the served model. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "model/infer/logits.h"
#include "model/blocks/exec.h"
#include "serve/engine_impl.h"
#include "serve/mix.h"

static bool mixes(const lt_request *r, int model) {
    bool any = false;
    for (int k = 0; k < r->blend.n; k++) {
        any |= r->blend.model[k] == model;
    }
    return any;
}

lt_err lt_step_open_beside(lt_engine *e, const lt_paged_forward_options *o) {
    lt_paged_forward_options own = *o;
    own.n_penalty_states = 0;
    e->n_common = e->spec->vocab_size;
    for (int k = 0; k < e->o.n_beside; k++) {
        const lt_model_spec *spec = lt_model_get_spec(e->o.beside[k]);
        LT_TRY(lt_model_spec_writes(spec, "a model beside the served one"));
        if ((spec->pos == LT_POS_LEARNED && spec->max_seq < e->o.max_seq) ||
            lt_rope_switch(spec) > 0 || lt_rope_switch(e->spec) > 0) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "model %d beside the served one: it needs positions for %lld tokens that do "
                    "not depend on the length of the text",
                    k, (long long)e->o.max_seq);
        }
        e->n_common = spec->vocab_size < e->n_common ? spec->vocab_size : e->n_common;
        LT_TRY(lt_paged_forward_open(&e->beside[k].forward, e->o.beside[k], &own));
    }
    return LT_OK;
}

void lt_step_carve_beside(lt_engine *e, lt_arena *a) {
    lt_step_beside_rows *b = &e->beside_rows;
    const bool any = e->o.n_beside > 0;
    const size_t rows = any ? (size_t)e->o.step_tokens : 0;
    const size_t seqs = any ? (size_t)e->o.max_running : 0;
    b->ids = lt_arena_take(a, rows * sizeof *b->ids, LT_ARENA_ALIGN);
    b->positions = lt_arena_take(a, rows * sizeof *b->positions, LT_ARENA_ALIGN);
    b->slots = lt_arena_take(a, rows * sizeof *b->slots, LT_ARENA_ALIGN);
    b->out_rows = lt_arena_take(a, seqs * sizeof *b->out_rows, LT_ARENA_ALIGN);
    b->q_start = lt_arena_take(a, (seqs + 1) * sizeof *b->q_start, LT_ARENA_ALIGN);
    b->kv_len = lt_arena_take(a, seqs * sizeof *b->kv_len, LT_ARENA_ALIGN);
    b->table = lt_arena_take(a, seqs * (size_t)e->max_pages * sizeof *b->table, LT_ARENA_ALIGN);
    for (int k = 0; k < e->o.n_beside; k++) {
        e->beside[k].items = lt_arena_take(a, seqs * sizeof(int32_t), LT_ARENA_ALIGN);
    }
}

lt_err lt_step_copy_page_beside(lt_engine *e, int64_t dst, int64_t src) {
    for (int k = 0; k < e->o.n_beside; k++) {
        LT_TRY(lt_paged_forward_copy_page(e->beside[k].forward, dst, src));
    }
    return LT_OK;
}

/* Append one item's rows to those of earlier items. */
static void add_item(lt_engine *e, const lt_step *s, int64_t i, const lt_paged_forward_rows *all,
                     lt_paged_forward_rows *out) {
    lt_step_beside_rows *b = &e->beside_rows;
    const int64_t from = all->q_start[i], n = all->q_start[i + 1] - from, row = out->n_rows;
    const int64_t at = out->n_seqs++;
    memcpy(b->ids + row, all->ids + from, (size_t)n * sizeof *b->ids);
    memcpy(b->positions + row, all->positions + from, (size_t)n * sizeof *b->positions);
    memcpy(b->slots + row, all->slots + from, (size_t)n * sizeof *b->slots);
    memcpy(b->table + at * all->max_pages, all->table + i * all->max_pages,
           (size_t)all->max_pages * sizeof *b->table);
    b->kv_len[at] = all->kv_len[i];
    out->n_rows += n;
    b->q_start[at + 1] = (int32_t)out->n_rows;
    out->q_max = n > out->q_max ? n : out->q_max;
    out->kv_max = all->kv_len[i] > out->kv_max ? all->kv_len[i] : out->kv_max;
    if (s->items[i].first + s->items[i].n >= s->items[i].choice->seq.n_tokens) {
        b->out_rows[out->n_out++] = (int32_t)(out->n_rows - 1);
    }
}

lt_err lt_step_run_beside(lt_engine *e, lt_step *s, const lt_paged_forward_rows *all) {
    const lt_step_beside_rows *b = &e->beside_rows;
    for (int k = 0; k < e->o.n_beside; k++) {
        lt_paged_forward_rows rows = {.ids = b->ids,
                                      .positions = b->positions,
                                      .slots = b->slots,
                                      .q_start = b->q_start,
                                      .kv_len = b->kv_len,
                                      .table = b->table,
                                      .max_pages = all->max_pages,
                                      .out_rows = b->out_rows};
        b->q_start[0] = 0;
        for (int64_t i = 0; i < s->n_items; i++) {
            const int64_t n = rows.n_out;
            if (s->items[i].choice != NULL && mixes(&s->items[i].choice->job->r, k)) {
                s->sent = false;
                add_item(e, s, i, all, &rows);
            }
            if (rows.n_out > n) {
                e->beside[k].items[n] = (int32_t)i;
            }
        }
        e->beside[k].n_items = rows.n_out;
        LT_TRY(rows.n_rows > 0 ? lt_paged_forward_run(e->beside[k].forward, &rows) : LT_OK);
    }
    return LT_OK;
}

/* A row of logits as log-probabilities of the first `common` ids. NUMERIC: one is NaN. */
static lt_err normalise(float *to, const float *from, int64_t n, int64_t common) {
    int32_t best = 0;
    double lse;
    if (!lt_logits_best(from, n, &best)) {
        return lt_sampler_failure(true);
    }
    lse = lt_logits_lse(from, n, from[best]);
    if (!isfinite(lse)) {
        return lt_sampler_failure(true);
    }
    for (int64_t i = 0; i < common; i++) {
        to[i] = (float)((double)from[i] - lse);
    }
    return LT_OK;
}

/* Keep the row of model k, if the choice mixes it. */
static lt_err keep_row(lt_engine *e, lt_job_choice *s, int k, const float *logits) {
    const lt_request *r = &s->job->r;
    for (int m = 0; m < r->blend.n; m++) {
        if (r->blend.model[m] == k) {
            LT_TRY(normalise(s->beside + m * e->spec->vocab_size, logits,
                             lt_model_get_spec(e->o.beside[k])->vocab_size, e->n_common));
        }
    }
    return LT_OK;
}

lt_err lt_step_read_beside(lt_engine *e, const lt_step *s) {
    for (int k = 0; k < e->o.n_beside; k++) {
        lt_engine_beside *b = &e->beside[k];
        for (int64_t i = 0; i < b->n_items; i++) {
            float *const *logits;
            lt_job_choice *choice = s->items[b->items[i]].choice;
            if (i % e->out_rows == 0) {
                const int64_t left = b->n_items - i;
                LT_TRY(lt_paged_forward_logits(
                    b->forward, i, left < e->out_rows ? left : e->out_rows, NULL, &b->logits));
            }
            logits = b->logits;
            if (choice != NULL && keep_row(e, choice, k, logits[i % e->out_rows]) != LT_OK) {
                lt_step_fail(e, choice, LT_ERR_NUMERIC);
            }
        }
        b->n_items = 0;
    }
    return LT_OK;
}

lt_err lt_step_blend(const lt_engine *e, const lt_job_choice *from, const float *logits,
                     float *mixed) {
    const lt_blend *m = &from->job->r.blend;
    const int64_t V = e->spec->vocab_size;
    float high;
    double least;
    LT_TRY(normalise(mixed, logits, V, V));
    high = -INFINITY;
    for (int64_t i = 0; i < V; i++) {
        high = mixed[i] > high ? mixed[i] : high;
    }
    least = m->plausibility > 0 ? (double)high + log((double)m->plausibility) : -INFINITY;
    for (int64_t i = 0; i < V; i++) {
        const double own = (double)mixed[i];
        double x = (double)m->own * own;
        const bool in = i < e->n_common && own >= least && own > -INFINITY;
        for (int k = 0; k < m->n && in; k++) {
            x += lt_mix_term((double)m->weight[k], (double)from->beside[k * V + i], own);
        }
        mixed[i] = in ? (float)x : -INFINITY;
    }
    return LT_OK;
}

void lt_step_close_beside(lt_engine *e) {
    for (int k = 0; k < LT_ENGINE_BESIDE; k++) {
        lt_paged_forward_close(e->beside[k].forward);
    }
}
