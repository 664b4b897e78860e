/* step_guide.c: guidance by a negative prompt (classifier-free guidance, Sanchez et al. 2023,
 * arXiv:2306.17806): a choice of two sequences, which end with the same tokens.
 *
 *     the choice   prompt, then the answer            ─▶ a row of logits, c ─┐
 *     its shadow   negative prompt, then the answer   ─▶ a row of logits, u ─┴─▶ a token for both
 *
 *     guided = log_softmax(u) + scale (log_softmax(c) - log_softmax(u))
 *
 * and -inf where softmax(c) is 0 or < plausibility max softmax(c) (Li et al. 2022, contrastive
 * decoding, arXiv:2210.15097); mix.h says what counts where softmax(u) is 0. The two have
 * neighbouring places in the scheduler's order, like the beams of a search, and may run in
 * different steps: the row that comes first is kept. Reported log-probabilities are those of c. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "model/infer/logits.h"
#include "serve/engine_impl.h"
#include "serve/mix.h"

static double log_sum(const float *x, int64_t n, float *high) {
    int32_t best = 0;
    *high = lt_logits_best(x, n, &best) ? x[best] : NAN;
    return lt_logits_lse(x, n, *high);
}

/* Write the guided row in place of u's. NUMERIC: a logit is NaN. */
static lt_err combine(lt_job_guide *g, const lt_guidance *how, int64_t n) {
    const float *c = g->rows[0];
    float *u = g->rows[1], high_c, high_u;
    const double scale = (double)how->scale;
    const double lse_c = log_sum(c, n, &high_c), lse_u = log_sum(u, n, &high_u);
    const double least = how->plausibility > 0 ? (double)high_c + log((double)how->plausibility)
                                               : -INFINITY;
    if (!isfinite(lse_c) || !isfinite(lse_u)) {
        return lt_sampler_failure(true);
    }
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)c[i] - lse_c, y = (double)u[i] - lse_u;
        const bool in = c[i] > -INFINITY && (double)c[i] >= least;
        u[i] = in ? (float)(scale * x + lt_mix_term(1 - scale, y, x)) : -INFINITY;
    }
    return LT_OK;
}

static lt_err pick(lt_engine *e, lt_job *j, lt_token_pick *c) {
    const int64_t V = e->spec->vocab_size;
    lt_sampler *p = &e->samplers[0];
    LT_TRY(combine(j->guide, &j->r.guidance, V));
    LT_TRY(lt_job_choice_sampler_args(c->choice, V, e->room.masks, &c->args));
    LT_TRY(lt_sampler_pick(p, j->guide->rows[1], &c->args, &c->pick));
    if (c->args.n_top >= 0) {
        LT_TRY(lt_sampler_logprob(p, j->guide->rows[0], c->pick.id, c->args.n_top, &c->pick));
    }
    return LT_OK;
}

void lt_step_guide(lt_engine *e, lt_job_choice *s, const float *logits) {
    lt_job *j = s->job;
    lt_job_guide *g = j->guide;
    lt_token_pick c = {.choice = &j->choices[0]};
    const int which = s == &g->shadow;
    memcpy(g->rows[which], logits, (size_t)e->spec->vocab_size * sizeof *logits);
    s->seq.fresh = false;
    j->forked = true;
    g->ready[which] = true;
    if (!g->ready[1 - which]) {
        return;
    }
    g->ready[0] = g->ready[1] = false;
    c.err = pick(e, j, &c);
    if (c.err != LT_OK) {
        lt_log_warn("request %llu: %s", (unsigned long long)j->id, lt_error_message());
    }
    lt_step_append(e, &c);
    if (c.choice->finish == LT_FINISH_NONE) {
        g->shadow.tokens[g->shadow.seq.n_tokens++] = c.pick.id;
        if (g->shadow.seq.state == LT_SEQ_RUNNING) {
            lt_sched_learn(&e->sched, &g->shadow.seq);
        }
    }
}
