/* rollout.c: see rollout.h. The memory of a draw's answers is one block, which grows to the largest
 * draw: (answers, max_tokens) ids and log-probabilities. */
#include "align/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "align/gather.h"
#include "base/clock.h"
#include "base/error.h"
#include "model/blocks/exec.h"

#define PAGE_TOKENS 16

struct lt_rollouts {
    lt_engine *engine;
    lt_rollout_options o;
    int32_t *ids; /* (room, max_tokens) */
    float *logp;  /* (room, max_tokens) */
    int64_t room;
};

lt_err lt_answer_text(char **text, const lt_answer *a, const lt_tokenizer *t) {
    const uint32_t known = lt_tokenizer_describe(t).n_ids;
    const int64_t n = a->n - a->ended;
    uint32_t *ids = malloc((size_t)(n > 0 ? n : 1) * sizeof *ids);
    size_t kept = 0, bytes;
    lt_err err;

    if (ids == NULL) {
        LT_FAIL(LT_ERR_OOM, "answer of %lld tokens", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        ids[kept] = (uint32_t)a->ids[i];
        kept += ids[kept] < known;
    }
    err = lt_tokenizer_decode(t, ids, kept, false, text, &bytes);
    free(ids);
    return err;
}

/* Beyond this length RoPE rotates all tokens of a text by other angles, so that the probability of
 * a token would depend on how much text follows it. */
static lt_err check_rope(const lt_model *m, int64_t max_seq) {
    const int64_t most = lt_rope_switch(lt_model_get_spec(m));
    if (most > 0 && max_seq > most) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "texts of %lld tokens: this model rotates those of more than %lld otherwise "
                "(longrope), which reinforcement learning cannot use; data.seq = %lld can",
                (long long)max_seq, (long long)most, (long long)most);
    }
    return LT_OK;
}

lt_err lt_rollouts_open(lt_rollouts **out, const lt_model *m, const lt_rollout_options *o) {
    lt_err err = LT_OK;
    lt_engine_options how = lt_engine_defaults();
    lt_rollouts *r = calloc(1, sizeof *r);

    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "rollouts");
    }
    LT_TRY_DONE(check_rope(m, o->max_seq));
    LT_ASSERT(o->max_tokens > 0 && o->running > 0 && o->temperature > 0.0);
    r->o = *o;
    how.max_running = o->running;
    how.max_waiting = o->questions;
    how.max_seq = o->max_seq;
    how.page_tokens = PAGE_TOKENS;
    how.prefix_cache = false; /* Groups share the pages of their question in any case. */
    how.deterministic = o->exact;
    if (o->exact) { /* Not rounded to 16 bits beside stored weights. */
        how.cache_dtype = m->options.dtype;
    }
    how.tp = o->exact ? o->tp : 0;
    how.ends = o->ends;
    LT_TRY_DONE(lt_engine_open(&r->engine, m, &how));
    LT_TRY_DONE(lt_engine_hold(r->engine, LT_HOLD_FINISH));
    *out = r;
    r = NULL;
done:
    lt_rollouts_close(r);
    return err;
}

void lt_rollouts_close(lt_rollouts *r) {
    if (r == NULL) {
        return;
    }
    lt_engine_close(r->engine);
    free(r->ids);
    free(r->logp);
    free(r);
}

size_t lt_rollouts_cache_bytes(const lt_rollouts *r) {
    lt_engine_cache c;
    lt_engine_get_cache(r->engine, &c);
    return (size_t)c.pages * (size_t)c.page_bytes;
}

static lt_err reserve(lt_rollouts *r, int64_t n) {
    const size_t numbers = (size_t)(n * r->o.max_tokens);
    if (n <= r->room) {
        return LT_OK;
    }
    free(r->ids);
    free(r->logp);
    r->room = 0;
    r->ids = malloc(numbers * sizeof *r->ids);
    r->logp = malloc(numbers * sizeof *r->logp);
    if (r->ids == NULL || r->logp == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld answers of %lld tokens", (long long)n,
                (long long)r->o.max_tokens);
    }
    r->room = n;
    return LT_OK;
}

static lt_err submit_all(lt_rollouts *r, const lt_rollout_args *asked, lt_answer *answers) {
    lt_request q = lt_request_defaults();
    q.n_choices = asked->group;
    q.max_tokens = r->o.max_tokens;
    q.logprobs = 0;
    q.sampling.temperature = asked->greedy ? 0.0 : r->o.temperature;
    for (int64_t i = 0; i < asked->n; i++) {
        uint64_t id;
        q.prompt = asked->questions[i].prompt;
        q.n_prompt = asked->questions[i].n_prompt;
        q.sampling.seed = asked->questions[i].seed;
        LT_TRY(lt_engine_submit(r->engine, &q, &answers[i * asked->group], &id));
    }
    return LT_OK;
}

/* Handle an event of the group of answers that begins at `user`. */
static lt_err take(const lt_event *e) {
    lt_answer *answer = (lt_answer *)e->user + e->choice;
    switch (e->kind) {
    case LT_EVENT_TOKEN:
        answer->ids[answer->n] = e->id;
        /* Rounding may put the logarithm of a certain token above 0. */
        answer->logp[answer->n++] = e->logprob < 0.0f ? e->logprob : 0.0f;
        return LT_OK;
    case LT_EVENT_CHOICE:
        answer->ended = e->finish == LT_FINISH_EOS;
        if (e->finish == LT_FINISH_FAILED) {
            LT_FAIL(e->failure, "the engine failed to draw an answer; the log says why");
        }
        return LT_OK;
    default:
        return LT_OK;
    }
}

lt_err lt_rollouts_draw(void *rollouts, const lt_rollout_args *asked, lt_answer *answers,
                        lt_rollout_stats *stats) {
    lt_rollouts *r = rollouts;
    const int64_t n_answers = asked->n * asked->group;
    const double start_s = lt_clock_s();
    lt_engine_stats before, after;
    double drawn_s;

    LT_TRY(reserve(r, n_answers));
    for (int64_t i = 0; i < n_answers; i++) {
        answers[i] = (lt_answer){.ids = r->ids + i * r->o.max_tokens,
                                 .logp = r->logp + i * r->o.max_tokens};
    }
    lt_engine_get_stats(r->engine, &before);
    LT_TRY(submit_all(r, asked, answers));
    drawn_s = lt_clock_s();
    LT_TRY(lt_engine_refresh(r->engine, &stats->version));
    stats->refresh_s = lt_clock_s() - drawn_s;
    LT_TRY(lt_gather(r->engine, asked->n, take));
    LT_TRY(lt_engine_hold(r->engine, LT_HOLD_FINISH));
    stats->draw_s = lt_clock_s() - start_s - stats->refresh_s;
    lt_engine_get_stats(r->engine, &after);
    stats->prompt_tokens = after.prompt_tokens - before.prompt_tokens;
    stats->new_tokens = after.new_tokens - before.new_tokens;
    return LT_OK;
}
