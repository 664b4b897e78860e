/* job.c: see job.h. */
#include "serve/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/lora/lora_pool.h"
#include "model/infer/steering.h"
#include "serve/narrow.h"

#define SHIFT_LEAST 16 /* Fewest tokens of a context that can be shifted. */
#define MAX_CHOICES 1024

static lt_err check_ids(const char *what, const int32_t *ids, int64_t n, int64_t vocab_size) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab_size) {
            LT_FAIL(LT_ERR_ARG, "%s: token %d at %lld is outside [0, %lld)", what, (int)ids[i],
                    (long long)i, (long long)vocab_size);
        }
    }
    return LT_OK;
}

/* Ending tokens that may end a text. */
static int64_t n_endings_of(const lt_request *r, const lt_job_limits *limits) {
    return r->n_stop_ids + (r->ignore_eos ? 0 : limits->ends.n);
}

/* A search consists of its texts alone: options that would change other texts are refused. Its
 * beams must fit in the pool together, since they wait for each other. */
static lt_err check_beam(const lt_request *r, const lt_job_limits *limits) {
    const lt_sampling *s = &r->sampling;
    const int64_t pages = lt_job_pages(limits, r->n_prompt + r->max_tokens, 2);
    const int64_t n_endings = n_endings_of(r, limits);
    const int n_candidates = lt_beam_candidates(r, n_endings);
    if (r->n_given > 0 || r->min_tokens > 0 || r->embed || r->n_allowed > 0 || r->n_bad > 0 ||
        r->grammar != NULL || r->n_think_end > 0 || s->n_bias > 0 || s->repetition != 1.0 ||
        s->frequency != 0.0 || s->presence != 0.0 || s->dry_multiplier != 0.0 ||
        s->xtc_probability != 0.0 || s->watermark.scheme != LT_WATERMARK_NONE) {
        LT_FAIL(LT_ERR_ARG, "a beam search excludes what changes the choice of tokens: biases, "
                            "penalties, a grammar, min_tokens, thinking or given tokens");
    }
    if (!(fabs(r->beam.length_penalty) <= LT_BEAM_PENALTY)) {
        LT_FAIL(LT_ERR_ARG, "beam search: a length penalty of %g; at most %g is possible",
                r->beam.length_penalty, LT_BEAM_PENALTY);
    }
    if (n_candidates > LT_ENGINE_TOP || n_candidates > limits->spec->vocab_size) {
        LT_FAIL(LT_ERR_ARG,
                "a beam search of width %lld with %lld ending tokens; together they are at most "
                "%d, and at most the vocabulary",
                (long long)r->n_choices, (long long)n_endings, LT_ENGINE_TOP);
    }
    if (r->n_choices > limits->max_running || r->n_choices * pages > limits->n_pages) {
        LT_FAIL(LT_ERR_ARG,
                "a beam search of width %lld and %lld tokens needs %lld places and %lld pages; "
                "there are %lld and %lld",
                (long long)r->n_choices, (long long)(r->n_prompt + r->max_tokens),
                (long long)r->n_choices, (long long)(r->n_choices * pages),
                (long long)limits->max_running, (long long)limits->n_pages);
    }
    return LT_OK;
}

/* Number of tokens of the shadow's prompt. */
static int64_t n_negative(const lt_request *r) {
    return r->guidance.n_prompt > 0 ? r->guidance.n_prompt : 1;
}

static lt_err check_guidance(const lt_request *r, const lt_job_limits *limits) {
    const lt_guidance *g = &r->guidance;
    const int64_t longest = n_negative(r) + r->max_tokens;
    const int64_t pages = lt_job_pages(limits, r->n_prompt + r->max_tokens + longest, 4);
    if (r->n_choices != 1 || r->embed || r->beam.on) {
        LT_FAIL(LT_ERR_ARG, "guidance by a negative prompt is for one choice, without beam search");
    }
    if (!(fabsf(g->scale) <= (float)LT_GUIDANCE_SCALE) ||
        !(g->plausibility >= 0 && g->plausibility <= 1)) {
        LT_FAIL(LT_ERR_ARG,
                "guidance: scale %g, plausibility %g; at most %g, and 0 to 1, are possible",
                (double)g->scale, (double)g->plausibility, LT_GUIDANCE_SCALE);
    }
    if (longest > limits->max_seq || pages > limits->n_pages || limits->max_running < 2) {
        LT_FAIL(LT_ERR_ARG,
                "guidance: a negative prompt of %lld tokens and %lld new ones; a sequence has at "
                "most %lld, and both need %lld of %lld pages and 2 of %lld places",
                (long long)n_negative(r), (long long)r->max_tokens, (long long)limits->max_seq,
                (long long)pages, (long long)limits->n_pages, (long long)limits->max_running);
    }
    return check_ids("negative prompt", g->prompt, g->n_prompt, limits->spec->vocab_size);
}

static lt_err check_blend(const lt_request *r, const lt_job_limits *limits) {
    const lt_blend *m = &r->blend;
    bool right = m->n >= 0 && m->n <= LT_BLEND_MOST &&
                 fabsf(m->own) <= (float)LT_GUIDANCE_SCALE + 1;
    for (int k = 0; right && k < m->n; k++) {
        right = m->model[k] >= 0 && m->model[k] < limits->n_beside &&
                fabsf(m->weight[k]) <= (float)LT_GUIDANCE_SCALE + 1;
    }
    if (!right || !(m->plausibility >= 0 && m->plausibility <= 1)) {
        LT_FAIL(LT_ERR_ARG,
                "a blend of %d models of %d beside the served one: weights of at most %g and a "
                "plausibility from 0 to 1 are possible",
                m->n, limits->n_beside, LT_GUIDANCE_SCALE + 1);
    }
    if (m->n > 0 && (r->embed || r->beam.on || r->guidance.on)) {
        LT_FAIL(LT_ERR_ARG, "a blend of models cannot be combined with an embedding, beam search "
                            "or guidance");
    }
    return LT_OK;
}

static lt_err check_shift(const lt_request *r, const lt_job_limits *limits) {
    if (r->embed || r->beam.on || r->guidance.on || r->blend.n > 0 || r->n_given > 0) {
        LT_FAIL(LT_ERR_ARG, "the context cannot be shifted for embeddings, beam search, guidance, "
                            "blends and continued texts");
    }
    if (r->n_prompt >= limits->max_seq || r->max_tokens > LT_SHIFT_TOKENS ||
        limits->max_seq < SHIFT_LEAST || r->shift.discard < 0) {
        LT_FAIL(LT_ERR_ARG,
                "a prompt of %lld tokens and %lld new ones in contexts of %lld that are shifted by "
                "%lld: the prompt must fit, and at most %lld tokens may follow, in contexts of at "
                "least %d",
                (long long)r->n_prompt, (long long)r->max_tokens, (long long)limits->max_seq,
                (long long)r->shift.discard, (long long)LT_SHIFT_TOKENS, SHIFT_LEAST);
    }
    return LT_OK;
}

static lt_err check_length(const lt_request *r, const lt_job_limits *limits) {
    if (r->shift.on) {
        return check_shift(r, limits);
    }
    if (r->max_tokens > limits->max_seq ||
        r->n_prompt - r->n_given + r->max_tokens > limits->max_seq) {
        LT_FAIL(LT_ERR_ARG,
                "a prompt of %lld tokens and %lld new ones exceed the %lld tokens of a sequence",
                (long long)(r->n_prompt - r->n_given), (long long)r->max_tokens,
                (long long)limits->max_seq);
    }
    return LT_OK;
}

/* The tokens at which a score head is read. */
static lt_err check_score_at(const lt_request *r) {
    for (int64_t i = 0; i < r->n_score_at; i++) {
        if (r->score_at[i] < 0 || r->score_at[i] >= r->n_prompt ||
            (i > 0 && r->score_at[i] <= r->score_at[i - 1])) {
            LT_FAIL(LT_ERR_ARG,
                    "scores at token %d of a prompt of %lld, which is number %lld of %lld",
                    (int)r->score_at[i], (long long)r->n_prompt, (long long)i,
                    (long long)r->n_score_at);
        }
    }
    if (r->n_score_at > 0 && (!r->score || r->score_at[r->n_score_at - 1] != r->n_prompt - 1)) {
        LT_FAIL(LT_ERR_ARG, "scores of tokens: the last of them must be the prompt's last");
    }
    return LT_OK;
}

/* Check what is reported with each token. */
static lt_err check_reports(const lt_request *r) {
    if (r->logprobs < -1 || r->logprobs > LT_ENGINE_TOP || r->prompt_logprobs < -1 ||
        r->prompt_logprobs > LT_ENGINE_TOP) {
        LT_FAIL(LT_ERR_ARG, "log-probabilities of %d and %d alternatives: -1 to %d are possible",
                r->logprobs, r->prompt_logprobs, LT_ENGINE_TOP);
    }
    if (r->entropy && (r->logprobs < 0 || r->beam.on || r->guidance.on)) {
        LT_FAIL(LT_ERR_ARG, "the entropy of tokens needs log-probabilities, and is not reported of "
                            "beams and guided choices");
    }
    return LT_OK;
}

static lt_err check_request(const lt_request *r, const lt_job_limits *limits) {
    const int64_t V = limits->spec->vocab_size;
    if (r->n_prompt < 1) {
        LT_FAIL(LT_ERR_ARG, "the prompt is empty");
    }
    if (r->n_given < 0 || r->n_given >= r->n_prompt ||
        (r->n_given > 0 && (r->n_given >= r->max_tokens || r->embed || r->prompt_logprobs >= 0)) ||
        r->first_choice < 0 || r->first_choice > MAX_CHOICES) {
        LT_FAIL(
            LT_ERR_ARG,
            "%lld given tokens, first choice %d: they must be fewer than the %lld of the prompt "
            "and the %lld of max_tokens, without an embedding and log-probabilities of the "
            "prompt, and the choice from 0 to %d",
            (long long)r->n_given, (int)r->first_choice, (long long)r->n_prompt,
            (long long)r->max_tokens, MAX_CHOICES);
    }
    if (r->max_tokens < (r->embed ? 0 : 1) || r->min_tokens < 0 || r->min_tokens > r->max_tokens) {
        LT_FAIL(LT_ERR_ARG, "min_tokens %lld and max_tokens %lld are out of range",
                (long long)r->min_tokens, (long long)r->max_tokens);
    }
    LT_TRY(check_length(r, limits));
    if (r->n_choices < 1 || r->n_choices > MAX_CHOICES || (r->embed && r->n_choices != 1)) {
        LT_FAIL(LT_ERR_ARG, "%lld choices: 1 to %d are possible, of an embedding 1",
                (long long)r->n_choices, MAX_CHOICES);
    }
    LT_TRY(check_reports(r));
    if (r->think_budget < -1 || (r->think_budget >= 0 && r->n_think_end < 1)) {
        LT_FAIL(LT_ERR_ARG, "a thinking budget of %lld tokens needs tokens that end the thinking",
                (long long)r->think_budget);
    }
    if (!r->embed || r->prompt_logprobs >= 0) {
        LT_TRY(lt_model_spec_writes(limits->spec, "a request for text"));
    }
    if (r->score && (!r->embed || limits->spec->n_scores == 0)) {
        LT_FAIL(LT_ERR_ARG, "a request for scores: this model has no score head");
    }
    LT_TRY(check_score_at(r));
    if (!(r->keep_s >= 0.0 && r->keep_s <= LT_ENGINE_KEEP_S)) {
        LT_FAIL(LT_ERR_ARG, "a prompt kept for %g s; at most %g are possible", r->keep_s,
                LT_ENGINE_KEEP_S);
    }
    if (r->steer < 0 || r->steer > limits->n_steering ||
        !(fabsf(r->steer_scale) <= (float)LT_STEERING_SCALE)) {
        LT_FAIL(LT_ERR_ARG, "steering vector %d of %d, scale %g: at most %g is possible",
                (int)r->steer, (int)limits->n_steering, (double)r->steer_scale, LT_STEERING_SCALE);
    }
    if (r->adapter < 0 || r->adapter > lt_lora_pool_places(limits->adapters) ||
        !(fabsf(r->adapter_scale) <= (float)LT_LORA_SCALE)) {
        LT_FAIL(LT_ERR_ARG, "adapter %d of %d, scale %g: at most %g is possible", (int)r->adapter,
                (int)lt_lora_pool_places(limits->adapters), (double)r->adapter_scale,
                LT_LORA_SCALE);
    }
    if (r->adapter > 0 && r->adapter_scale != 1.0f &&
        lt_lora_pool_has_factors(limits->adapters, r->adapter - 1)) {
        LT_FAIL(LT_ERR_ARG,
                "adapter %d with the scale %g: it has magnitudes (use_dora), so its "
                "place is filled with its scale, and requests have 1",
                (int)r->adapter, (double)r->adapter_scale);
    }
    LT_TRY(check_ids("prompt", r->prompt, r->n_prompt, V));
    LT_TRY(check_ids("prediction", r->predicted, r->n_predicted, V));
    LT_TRY(check_ids("stop ids", r->stop_ids, r->n_stop_ids, V));
    LT_TRY(check_ids("beginning of thinking", r->think_begin, r->n_think_begin, V));
    LT_TRY(check_ids("end of thinking", r->think_end, r->n_think_end, V));
    LT_TRY(lt_narrow_check(r, &limits->ends, V));
    LT_TRY(r->beam.on ? check_beam(r, limits) : LT_OK);
    LT_TRY(r->guidance.on ? check_guidance(r, limits) : LT_OK);
    LT_TRY(check_blend(r, limits));
    return lt_sampling_check(&r->sampling, V);
}

static void guide_carve(lt_job *j, const lt_job_limits *limits, lt_arena *a) {
    const int64_t longest = n_negative(&j->r) + j->r.max_tokens;
    const size_t row = (size_t)limits->spec->vocab_size * sizeof(float);
    lt_job_guide dummy, *g;
    j->guide = lt_arena_take(a, sizeof *j->guide, 8);
    g = j->guide != NULL ? j->guide : &dummy;
    g->shadow.tokens = lt_arena_take(a, (size_t)longest * sizeof(int32_t), 8);
    g->shadow.seq.table = lt_arena_take(
        a, (size_t)lt_job_pages(limits, longest, 1) * sizeof(int32_t), 8);
    g->rows[0] = lt_arena_take(a, row, LT_ARENA_ALIGN);
    g->rows[1] = lt_arena_take(a, row, LT_ARENA_ALIGN);
}

/* Carve everything that belongs to a job, except the struct itself. */
static void job_carve(lt_job *j, const lt_job_limits *limits, lt_arena *a) {
    const lt_request *r = &j->r;
    const int64_t longest = r->n_prompt + r->max_tokens;
    const int64_t at_once = longest < limits->max_seq ? longest : limits->max_seq;
    const int64_t n_pages = lt_job_pages(limits, at_once, 1);
    const size_t window = r->shift.on ? (size_t)limits->max_seq : 0;
    const size_t width = r->embed && !r->score ? (size_t)limits->spec->width : 0;
    const size_t words = (size_t)(limits->spec->vocab_size + 31) / 32;
    const size_t n_bad_ids = (size_t)j->n_bad_ids;
    const size_t mixed = r->blend.n > 0 ? (size_t)((r->blend.n + 1) * limits->spec->vocab_size) : 0;

    j->choices = lt_arena_take(a, (size_t)r->n_choices * sizeof *j->choices, LT_ARENA_ALIGN);
    for (int64_t i = 0; i < r->n_choices; i++) {
        lt_job_choice dummy, *s = j->choices != NULL ? &j->choices[i] : &dummy;
        s->tokens = lt_arena_take(a, (size_t)longest * sizeof *s->tokens, 8);
        s->window = window > 0 ? lt_arena_take(a, window * sizeof *s->window, 8) : NULL;
        s->seq.table = lt_arena_take(a, (size_t)n_pages * sizeof *s->seq.table, 8);
        lt_logprobs_carve(&s->logprobs, r->max_tokens, r->logprobs, r->entropy, a);
        s->versions = lt_arena_take(a, (size_t)r->max_tokens * sizeof *s->versions, 8);
        s->beside = lt_arena_take(a, mixed * sizeof *s->beside, LT_ARENA_ALIGN);
    }
    lt_logprobs_carve(&j->prompt_logprobs, r->n_prompt, r->prompt_logprobs, false, a);
    j->endings = lt_arena_take(a, (size_t)(r->n_stop_ids + limits->ends.n) * sizeof *j->endings, 8);
    j->r.sampling.bias = lt_arena_take(a, (size_t)r->sampling.n_bias * sizeof *r->sampling.bias, 8);
    j->r.sampling.dry_breakers = lt_arena_take(
        a, (size_t)r->sampling.n_dry_breakers * sizeof *r->sampling.dry_breakers, 8);
    j->r.think_begin = lt_arena_take(a, (size_t)r->n_think_begin * sizeof *r->think_begin, 8);
    j->r.think_end = lt_arena_take(a, (size_t)r->n_think_end * sizeof *r->think_end, 8);
    j->r.predicted = lt_arena_take(a, (size_t)r->n_predicted * sizeof *r->predicted, 8);
    j->allowed = r->n_allowed > 0 ? lt_arena_take(a, words * sizeof *j->allowed, 8) : NULL;
    j->r.bad = lt_arena_take(a, n_bad_ids * sizeof *r->bad, 8);
    j->r.bad_ends = lt_arena_take(a, (size_t)r->n_bad * sizeof *r->bad_ends, 8);
    j->n_embedding = r->score ? lt_model_spec_says(limits->spec) *
                                    (r->n_score_at > 0 ? r->n_score_at : 1)
                              : (int64_t)width;
    j->r.score_at = lt_arena_take(a, (size_t)r->n_score_at * sizeof *r->score_at, 8);
    j->embedding = lt_arena_take(a, (size_t)j->n_embedding * sizeof *j->embedding, 8);
    j->hidden_sum = lt_arena_take(a, width * sizeof *j->hidden_sum, 8);
    if (r->guidance.on) {
        guide_carve(j, limits, a);
    }
    if (r->beam.on) {
        lt_beam dummy = {0};
        j->beam = lt_arena_take(a, sizeof *j->beam, 8);
        lt_beam_carve(j->beam != NULL ? j->beam : &dummy, r, n_endings_of(r, limits), a);
    }
}

static void copy(const void *dst, const void *src, size_t bytes) {
    if (bytes > 0) {
        memcpy((void *)(uintptr_t)dst, src, bytes); /* Const for other files only. */
    }
}

/* Whether the output ends with these tokens. */
static bool ends_with(const lt_job_choice *s, const int32_t *ids, int64_t n) {
    return s->n_out >= n &&
           memcmp(s->tokens + s->job->r.n_prompt + s->n_out - n, ids, (size_t)n * sizeof *ids) == 0;
}

static void follow_thinking(lt_job_choice *s) {
    const lt_request *r = &s->job->r;
    if (s->thinking && s->n_forced < 0 && ends_with(s, r->think_end, r->n_think_end)) {
        s->thinking = false;
    }
    if (r->n_think_begin > 0 && s->n_out == r->n_think_begin &&
        ends_with(s, r->think_begin, r->n_think_begin)) {
        s->thinking = true;
        s->think_from = s->n_out;
    }
}

/* Count tokens of the prompt as output that was already chosen. */
static lt_err take_given(lt_job_choice *s, int64_t n_given) {
    for (int64_t i = 0; i < n_given; i++) {
        const int32_t id = s->tokens[s->job->r.n_prompt + i];
        if (s->grammar != NULL) {
            LT_TRY(lt_grammar_accept(s->grammar, id));
        }
        s->versions[i] = 0;
        s->n_out = i + 1;
        if (s->thinking && s->job->r.think_budget >= 0 && s->n_forced < 0 &&
            i - s->think_from >= s->job->r.think_budget) {
            s->n_forced = 0;
        }
        if (s->n_forced >= 0 && ++s->n_forced == s->job->r.n_think_end) {
            s->n_forced = -1;
        }
        follow_thinking(s);
    }
    s->n_public = s->front.n_told = s->n_out;
    return LT_OK;
}

/* Mix one more thing on which keys and values depend, and its scale, into the salt. */
static uint64_t add_salt(uint64_t salt, uint64_t what, float scale) {
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    return lt_rng_mix(salt ^ lt_rng_mix(what ^ (uint64_t)bits << 32));
}

/* Keys and values are shared only among requests that have the same steering, adapters with the
 * same numbers, and the same mixed models. */
static uint64_t salt_of(const lt_request *r, const lt_job_limits *limits) {
    uint64_t salt = r->cache_salt;
    if (r->steer > 0) {
        salt = add_salt(salt, (uint64_t)r->steer, r->steer_scale);
    }
    if (r->adapter > 0) {
        salt = add_salt(salt, lt_lora_pool_digest(limits->adapters, r->adapter - 1),
                        r->adapter_scale);
    }
    for (int k = 0; k < limits->n_beside; k++) {
        for (int m = 0; m < r->blend.n; m++) {
            if (r->blend.model[m] == k) {
                salt = add_salt(salt, UINT64_MAX - (uint64_t)k, 1);
                break; /* A model that is named twice counts once. */
            }
        }
    }
    return salt;
}

void lt_job_choice_rope(lt_job_choice *s, const lt_job_limits *limits) {
    s->seq.long_text = limits->rope_switch > 0 && s->seq.n_tokens > limits->rope_switch;
    s->seq.again_at = s->seq.long_text || !limits->spec->rope_runs_again ? 0 : limits->rope_switch;
}

/* Open a sequence of n_tokens that waits for its first step; its tokens are already written. */
static void open_seq(lt_job *j, lt_job_choice *s, int64_t n_tokens, const lt_request *r,
                     const lt_job_limits *limits) {
    s->job = j;
    for (int k = 0; k < LT_STEPS_QUEUED; k++) {
        s->place[k] = -1;
    }
    s->slot = -1;
    s->seq.tokens = s->window != NULL ? s->window : s->tokens;
    s->seq.n_tokens = n_tokens;
    s->shift_at = s->window != NULL ? limits->max_seq : 0;
    s->seq.priority = r->priority;
    s->seq.background = r->background;
    s->seq.keep_s = r->keep_s;
    s->seq.n_keep = r->n_prompt - r->n_given;
    s->seq.salt = salt_of(r, limits);
    s->seq.owner = s;
}

static lt_err open_choice(lt_job *j, int64_t i, const lt_request *r, const lt_job_limits *limits) {
    lt_job_choice *s = &j->choices[i];
    copy(s->tokens, r->prompt, (size_t)r->n_prompt * sizeof *r->prompt);
    if (s->window != NULL) {
        copy(s->window, r->prompt, (size_t)r->n_prompt * sizeof *r->prompt);
    }
    open_seq(j, s, r->n_prompt, r, limits);
    lt_job_choice_rope(s, limits);
    s->index = (int32_t)i;
    s->seq.fresh = (r->embed && !r->score && !r->last) || r->prompt_logprobs >= 0 ||
                   r->n_score_at > 1;
    if (j->beam != NULL) {
        s->seq.family = &j->choices[0].seq;
        s->seq.member = i;
        s->seq.n_members = j->r.n_choices;
    }
    s->thinking = r->n_think_end > 0 && r->n_think_begin == 0;
    s->n_forced = -1;
    if (r->grammar != NULL) {
        LT_TRY(lt_grammar_state_open(&s->grammar, r->grammar));
        LT_TRY(limits->drafts ? lt_grammar_state_open(&s->draft_grammar, r->grammar) : LT_OK);
    }
    return take_given(s, r->n_given);
}

/* Open the shadow of choice 0, which is open: its prompt and the given tokens. */
static void open_guide(lt_job *j, const lt_request *r, const lt_job_limits *limits) {
    lt_seq *leader = &j->choices[0].seq;
    const int32_t *own = r->prompt + j->r.n_prompt - 1;
    const int64_t n = n_negative(r);
    lt_job_choice *s = &j->guide->shadow;
    copy(s->tokens, r->guidance.n_prompt > 0 ? r->guidance.prompt : own,
         (size_t)n * sizeof *s->tokens);
    copy(s->tokens + n, r->prompt + j->r.n_prompt, (size_t)r->n_given * sizeof *s->tokens);
    open_seq(j, s, n + r->n_given, r, limits);
    s->seq.long_text = leader->long_text;
    s->seq.again_at = leader->again_at;
    s->seq.family = leader->family = leader;
    s->seq.member = 1;
    s->seq.n_members = leader->n_members = 2;
    j->r.guidance.prompt = s->tokens;
}

static void copy_request(lt_job *j, const lt_request *r, const lt_ends *ends, int64_t V) {
    if (j->allowed != NULL) {
        lt_narrow_allow(r, j->allowed, V);
    }
    copy(j->r.bad, r->bad, (size_t)j->n_bad_ids * sizeof *r->bad);
    copy(j->r.bad_ends, r->bad_ends, (size_t)r->n_bad * sizeof *r->bad_ends);
    copy(j->r.sampling.bias, r->sampling.bias,
         (size_t)r->sampling.n_bias * sizeof *r->sampling.bias);
    j->r.sampling.n_bias = lt_sampling_merge_bias((lt_logit_bias *)(uintptr_t)j->r.sampling.bias,
                                                  r->sampling.n_bias);
    copy(j->r.sampling.dry_breakers, r->sampling.dry_breakers,
         (size_t)r->sampling.n_dry_breakers * sizeof *r->sampling.dry_breakers);
    copy(j->r.predicted, r->predicted, (size_t)r->n_predicted * sizeof *r->predicted);
    copy(j->r.score_at, r->score_at, (size_t)r->n_score_at * sizeof *r->score_at);
    copy(j->r.think_begin, r->think_begin, (size_t)r->n_think_begin * sizeof *r->think_begin);
    copy(j->r.think_end, r->think_end, (size_t)r->n_think_end * sizeof *r->think_end);
    copy(j->endings, r->stop_ids, (size_t)r->n_stop_ids * sizeof *r->stop_ids);
    j->r.prompt = j->choices[0].tokens;
    j->r.stop_ids = j->endings;
    j->n_endings = r->n_stop_ids + ends->n;
    copy(j->endings + r->n_stop_ids, ends->ids, (size_t)ends->n * sizeof *ends->ids);
}

lt_err lt_job_open(lt_job **out, const lt_request *r, const lt_job_limits *limits) {
    lt_err err = LT_OK;
    lt_job *j = NULL;

    LT_TRY(check_request(r, limits));
    j = calloc(1, sizeof *j);
    if (j == NULL) {
        LT_FAIL(LT_ERR_OOM, "a request");
    }
    j->r = *r;
    j->r.n_prompt -= r->n_given;
    if (r->adapter > 0) {
        j->adapters = limits->adapters;
        lt_lora_pool_hold(j->adapters, r->adapter - 1);
    }
    if (r->beam.on) { /* A beam only needs the likeliest tokens. */
        j->r.sampling = lt_sampling_defaults();
        j->r.sampling.temperature = 0;
    }
    j->n_bad_ids = r->n_bad > 0 ? r->bad_ends[r->n_bad - 1] : 0;
    job_carve(j, limits, &j->arena);
    LT_TRY_DONE(lt_arena_open(&j->arena, "a request"));
    job_carve(j, limits, &j->arena);
    copy_request(j, r, &limits->ends, limits->spec->vocab_size);
    for (int64_t i = 0; i < r->n_choices; i++) {
        LT_TRY_DONE(open_choice(j, i, r, limits));
    }
    if (j->guide != NULL) {
        open_guide(j, r, limits);
    }
    j->submit_s = lt_clock_s();
    *out = j;
    j = NULL;
done:
    lt_job_close(j);
    return err;
}

void lt_job_release_adapter(lt_job *j) {
    if (j->adapters != NULL) {
        lt_lora_pool_release(j->adapters, j->r.adapter - 1);
        j->adapters = NULL;
    }
}

void lt_job_close(lt_job *j) {
    if (j == NULL) {
        return;
    }
    for (int64_t i = 0; j->choices != NULL && i < j->r.n_choices; i++) {
        lt_grammar_state_close(j->choices[i].grammar);
        lt_grammar_state_close(j->choices[i].draft_grammar);
    }
    lt_job_release_adapter(j);
    lt_arena_close(&j->arena);
    free(j);
}

bool lt_job_choice_is_late(const lt_job_choice *s) {
    const lt_request *r = &s->job->r;
    const int64_t n = s->n_out + 1;
    const bool masked = s->grammar != NULL || lt_narrows(r);
    if (masked || s->seq.n_ahead == 0) {
        return masked;
    }
    if (s->n_forced >= 0) {
        return true;
    }
    if (s->thinking) { /* Its budget may be exhausted. */
        return r->think_budget >= 0 && n - s->think_from >= r->think_budget;
    }
    return r->think_budget == 0 && r->n_think_begin > 0 && n == r->n_think_begin;
}

/* Fill the mask, if there is one: with the ids that the grammar allows, or all, without those that
 * the request itself excludes. */
static lt_err fill_mask(const lt_job_choice *s, lt_grammar_state *grammar, int64_t n_output,
                        int64_t vocab_size, uint32_t *mask, lt_sampler_args *out) {
    const lt_job *j = s->job;
    if (grammar == NULL && !lt_narrows(&j->r)) {
        return LT_OK;
    }
    out->mask = mask;
    if (grammar != NULL) {
        LT_TRY(lt_grammar_mask(grammar, mask, vocab_size));
    } else {
        memset(mask, 0xFF, (size_t)((vocab_size + 31) / 32) * sizeof *mask);
        if (vocab_size % 32 != 0) {
            mask[vocab_size / 32] = (1U << (vocab_size % 32)) - 1;
        }
    }
    if (lt_narrows(&j->r)) {
        lt_narrow(&j->r, j->allowed, s->tokens + j->r.n_prompt, n_output, mask, vocab_size);
    }
    return LT_OK;
}

lt_sampler_args lt_job_choice_plain_args(const lt_job_choice *s, int64_t n_output) {
    const lt_job *j = s->job;
    const bool bans = n_output < j->r.min_tokens;
    return (lt_sampler_args){.how = &j->r.sampling,
                             .tokens = s->tokens,
                             .n_prompt = j->r.n_prompt,
                             .n_output = n_output,
                             .choice = j->r.first_choice + s->index,
                             .banned = bans ? j->endings : NULL,
                             .n_banned = bans ? j->n_endings : 0,
                             .forced = -1,
                             .n_top = lt_job_n_top(j),
                             .entropy = j->r.entropy};
}

lt_err lt_job_choice_sampler_args(lt_job_choice *s, int64_t vocab_size, uint32_t *mask,
                                  lt_sampler_args *out) {
    const lt_job *j = s->job;
    const int64_t n = s->n_out + s->seq.n_ahead;
    *out = lt_job_choice_plain_args(s, n);
    if (s->thinking && s->n_forced < 0 && j->r.think_budget >= 0 &&
        n - s->think_from >= j->r.think_budget) {
        s->n_forced = 0;
    }
    if (s->n_forced >= 0) {
        out->forced = j->r.think_end[s->n_forced];
        return LT_OK;
    }
    return fill_mask(s, s->grammar, n, vocab_size, mask, out);
}

lt_err lt_job_choice_draft_args(lt_job_choice *s, int64_t place, int64_t vocab_size, uint32_t *mask,
                                lt_sampler_args *out) {
    lt_grammar_state *grammar = s->draft_grammar;
    *out = lt_job_choice_plain_args(s, s->n_out + place);
    if (grammar != NULL && place == 0) {
        lt_grammar_state_copy(grammar, s->grammar);
    } else if (grammar != NULL) {
        LT_TRY(lt_grammar_accept(grammar, s->tokens[s->seq.n_tokens + place - 1]));
    }
    return fill_mask(s, grammar, s->n_out + place, vocab_size, mask, out);
}

lt_finish lt_job_ending(const lt_job *j, int32_t id) {
    for (int64_t i = j->n_endings; i-- > 0;) { /* The model's own come first. */
        const bool asked = i < j->r.n_stop_ids;
        if (j->endings[i] == id && (asked || !j->r.ignore_eos)) {
            return asked ? LT_FINISH_STOP_ID : LT_FINISH_EOS;
        }
    }
    return LT_FINISH_NONE;
}

lt_err lt_job_choice_append(lt_job_choice *s, const lt_pick *pick, uint64_t version) {
    lt_job *j = s->job;
    lt_output out = {s->tokens + j->r.n_prompt, s->logprobs, s->versions};
    lt_finish finish;
    LT_ASSERT(s->finish == LT_FINISH_NONE && s->n_out < j->r.max_tokens);
    if (s->grammar != NULL) {
        LT_TRY(lt_grammar_accept(s->grammar, pick->id));
    }
    lt_output_put(&out, s->n_out++, j->r.logprobs, pick, version);
    if (s->window != NULL) {
        s->window[s->seq.n_tokens] = pick->id;
    }
    s->seq.n_tokens++;
    s->seq.n_ahead = 0;
    if (s->n_forced >= 0 && ++s->n_forced == j->r.n_think_end) {
        s->n_forced = -1;
    }
    follow_thinking(s);
    finish = lt_job_ending(j, pick->id);
    if (finish == LT_FINISH_NONE && s->n_out == j->r.max_tokens) {
        finish = LT_FINISH_LENGTH;
    }
    if ((finish == LT_FINISH_NONE || finish == LT_FINISH_LENGTH) && s->grammar != NULL &&
        lt_grammar_done(s->grammar)) {
        finish = LT_FINISH_GRAMMAR; /* Only an ending token could follow, so it is not computed. */
    }
    if (finish != LT_FINISH_NONE) {
        lt_job_choice_finish(s, finish, LT_OK);
    }
    return LT_OK;
}

void lt_job_begin_again(lt_job *j, int64_t width) {
    if (j->r.prompt_logprobs >= 0) {
        j->n_prompt_out = j->n_prompt_public > 1 ? j->n_prompt_public : 1;
    }
    if (j->r.embed && !j->r.score) {
        j->n_embedded = 0;
        memset(j->hidden_sum, 0, (size_t)width * sizeof *j->hidden_sum);
    }
}

void lt_job_choice_finish(lt_job_choice *s, lt_finish finish, lt_err failure) {
    LT_ASSERT(s->finish == LT_FINISH_NONE && finish != LT_FINISH_NONE);
    s->finish = finish;
    s->failure = failure;
    s->job->n_finished++;
}

bool lt_job_publish(lt_job *j) {
    bool news = j->n_prompt_public != j->n_prompt_out;
    j->n_prompt_public = j->n_prompt_out;
    for (int64_t i = 0; i < j->r.n_choices; i++) {
        lt_job_choice *s = &j->choices[i];
        if (j->beam != NULL && s->finish == LT_FINISH_NONE) {
            continue; /* Its text is not known before the end. */
        }
        news |= s->n_public != s->n_out || s->public_finish != s->finish;
        s->n_public = s->n_out;
        s->public_finish = s->finish;
    }
    j->done = j->n_finished == j->r.n_choices;
    return news;
}

static void tell_token(const lt_job *j, lt_job_choice *s, lt_event *e) {
    const int64_t at = s->front.n_told++;
    e->kind = LT_EVENT_TOKEN;
    e->choice = s->index;
    e->id = s->tokens[j->r.n_prompt + at];
    e->version = s->versions[at];
    lt_logprobs_tell(&s->logprobs, at, j->r.logprobs, e);
    if (at + 1 == s->n_public &&
        (s->public_finish == LT_FINISH_EOS || s->public_finish == LT_FINISH_STOP_ID)) {
        e->finish = s->public_finish;
    }
}

/* Once a token is public, first_s has been written; before that, the engine may be writing it. */
static double prefill_s(const lt_job *j, const lt_job_choice *s) {
    return s->n_public > j->r.n_given ? j->first_s - j->start_s : 0.0;
}

/* The next event of a job, in the order prompt, embedding, choices, done. False: there is none. */
static bool tell_one(lt_job *j, lt_event *e) {
    e->request = j->id;
    e->user = j->user;
    e->prompt_tokens = j->r.n_prompt;
    e->cached_tokens = j->n_cached;
    if (j->n_prompt_told < j->n_prompt_public) {
        const int64_t at = j->n_prompt_told++;
        e->kind = LT_EVENT_PROMPT;
        e->id = j->r.prompt[at];
        lt_logprobs_tell(&j->prompt_logprobs, at, j->r.prompt_logprobs, e);
        e->n_top = at > 0 ? e->n_top : -1; /* The first token has no predecessor. */
        return true;
    }
    for (int64_t i = 0; i < j->r.n_choices; i++) {
        lt_job_choice *s = &j->choices[i];
        if (s->front.n_told < s->n_public) {
            tell_token(j, s, e);
            e->prefill_s = prefill_s(j, s);
            return true;
        }
        if (s->public_finish != LT_FINISH_NONE && j->r.embed && !j->embed_told &&
            s->public_finish == LT_FINISH_LENGTH) {
            j->embed_told = true;
            e->kind = LT_EVENT_EMBED;
            e->embedding = j->embedding;
            e->n_embedding = j->n_embedding;
            return true;
        }
        if (s->public_finish != LT_FINISH_NONE && !s->front.told) {
            s->front.told = true;
            e->kind = LT_EVENT_CHOICE;
            e->choice = s->index;
            e->finish = s->public_finish;
            e->failure = s->failure;
            e->new_tokens = s->n_public - j->r.n_given;
            e->drafted = s->n_verified;
            e->accepted = s->n_accepted;
            e->dropped = s->n_dropped;
            e->prefill_s = prefill_s(j, s);
            return true;
        }
    }
    return false;
}

/* The front may free the grammar once it has read this event. */
static void tell_done(lt_job *j, lt_event *e) {
    const double start = j->start_s > 0.0 ? j->start_s : j->end_s;
    const double first = j->first_s > 0.0 ? j->first_s : j->end_s;
    e->kind = LT_EVENT_DONE;
    for (int64_t i = 0; i < j->r.n_choices; i++) {
        lt_grammar_state_close(j->choices[i].grammar);
        lt_grammar_state_close(j->choices[i].draft_grammar);
        j->choices[i].grammar = j->choices[i].draft_grammar = NULL;
        e->new_tokens += j->choices[i].n_public - j->r.n_given;
    }
    e->queue_s = start - j->submit_s;
    e->prefill_s = first - start;
    e->decode_s = j->end_s - first;
}

int64_t lt_job_tell(lt_job *j, lt_event *events, int64_t room) {
    int64_t n = 0;
    for (; n < room; n++) {
        events[n] = (lt_event){0};
        if (tell_one(j, &events[n])) {
            continue;
        }
        if (j->done && !j->told) {
            tell_done(j, &events[n]);
            j->told = true;
            return n + 1;
        }
        break;
    }
    return n;
}
