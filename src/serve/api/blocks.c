/* blocks.c: see blocks.h. */
#include "serve/api/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/tokenizer/bpe.h"
#include "lateen/select.h"
#include "serve/api/borders.h"
#include "serve/api/guide.h"
#include "serve/api/judge.h"
#include "serve/api/reply.h"

#define BLOCKS_TOLD 64 /* Most blocks whose scores the answer reports. */

typedef enum { MEAN_LOGPROB, LOGPROB, PROBABILITY, REWARD, N_SCORES } score_kind;
static const char *const score_names[N_SCORES] = {"mean_logprob", "logprob", "probability",
                                                  "reward"};

/* One continuation of this round. */
typedef struct {
    lt_event *tokens; /* (n) */
    int64_t n, room;
    lt_finish finish;
    bool met; /* It has come to a border, and ends there. */
    lt_border_tail tail;
    double score;
    lt_part part; /* Its text on its way through the reward model. */
} candidate;

struct lt_blocks {
    int64_t n, every, n_blocks, n_pending; /* n_pending: texts that the reward model has. */
    score_kind score;
    const lt_select_rule *rule;
    lt_select_options o;
    uint64_t seed;
    bool stepwise; /* Blocks end at borders, too. */
    lt_borders borders;
    double kl;             /* Bound of the answer's divergence from a plain one: of its blocks. */
    lt_ids made;           /* The answer so far. */
    candidate *candidates; /* (n) */
    int64_t dropped, reward_tokens;
    double *steps;                  /* (n_steps) scores of the steps of the answer so far, */
    int64_t n_steps, n_steps_ended; /* of which so many are over. */
    double *told;                   /* (BLOCKS_TOLD, n) scores of the first blocks */
    int64_t chosen[BLOCKS_TOLD];
    double probability[BLOCKS_TOLD];
};

/* ---- The request ---- */

static bool check_others(const lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const struct {
        bool there;
        const char *name;
    } others[] = {{a->n > 1, "n"},
                  {a->best_of > 1, "best_of"},
                  {a->echo, "echo"},
                  {a->prompt_logprobs >= 0, "prompt_logprobs"},
                  {a->use_beam_search, "use_beam_search"},
                  {j->control != NULL, "reasoning"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i].there) {
            return lt_api_refuse(e, others[i].name, "'%s' cannot be combined with method blockwise",
                                 others[i].name);
        }
    }
    return true;
}

static bool read_score(lt_blocks *b, lt_reply *j, lt_api_error *e) {
    const json_t *reward = j->params.group.reward;
    const char *name = json_string_value(reward);
    for (int i = 0; i < N_SCORES && reward != NULL; i++) {
        if (name != NULL && strcmp(name, score_names[i]) == 0) {
            b->score = (score_kind)i;
            return i != REWARD || lt_judge_read(j, e);
        }
    }
    return reward == NULL ||
           lt_api_refuse(e, "alignment.reward",
                         "'alignment.reward' may be mean_logprob, logprob, probability or reward "
                         "with method blockwise");
}

bool lt_blocks_read(lt_reply *j, lt_api_error *e) {
    static const char *const reads[] = {"n",    "every",       "reward", "aggregate",
                                        "seed", "temperature", "border", "return_candidates",
                                        NULL};
    static const char *const needs[] = {"n", NULL};
    const lt_api_params *a = &j->params;
    const bool soft = json_is_number(json_object_get(a->alignment, "temperature"));
    lt_blocks *b = calloc(1, sizeof *b);
    lt_err err;
    j->blocks = b;
    if (b == NULL) {
        return lt_api_refuse_oom(e);
    }
    if (!lt_guide_fields(a->alignment, reads, needs, "method blockwise", e) ||
        !check_others(j, e) || !read_score(b, j, e)) {
        return false;
    }
    b->stepwise = a->group.border != NULL;
    if (!lt_borders_read(&b->borders, a->group.border, LT_BORDER_USUAL, "alignment.border", e)) {
        return false;
    }
    if (a->group.aggregate != NULL && b->score != REWARD) {
        return lt_api_refuse(e, "alignment.aggregate",
                             "'alignment.aggregate' needs 'alignment.reward' = reward");
    }
    b->n = a->group.n;
    b->every = a->group.every;
    b->o.temperature = soft ? a->group.temperature : 0;
    b->seed = a->group.seed != -1 ? (uint64_t)a->group.seed : j->request.sampling.seed;
    err = lt_select_find(&b->rule, soft ? "soft_best_of_n" : "best_of_n");
    err = err == LT_OK ? lt_select_check(b->rule, &b->o) : err;
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment.temperature", err);
    }
    b->candidates = calloc((size_t)b->n, sizeof *b->candidates);
    b->told = calloc((size_t)b->n * BLOCKS_TOLD, sizeof *b->told);
    if (b->candidates == NULL || b->told == NULL) {
        return lt_api_refuse_oom(e);
    }
    j->request.logprobs = j->request.logprobs > 0 ? j->request.logprobs : 0;
    return true;
}

void lt_blocks_free(lt_blocks *b) {
    if (b == NULL) {
        return;
    }
    for (int64_t i = 0; b->candidates != NULL && i < b->n; i++) {
        free(b->candidates[i].tokens);
        lt_judge_close(&b->candidates[i].part);
    }
    free(b->steps);
    lt_ids_free(&b->made);
    free(b->candidates);
    free(b->told);
    free(b);
}

void lt_blocks_shape(const lt_blocks *b, lt_request *r, int64_t n_given, int64_t most_tokens) {
    r->n_choices = b->n;
    r->max_tokens = n_given + b->every < most_tokens ? n_given + b->every : most_tokens;
}

int64_t lt_blocks_dropped(const lt_blocks *b) {
    return b != NULL ? b->dropped : 0;
}

/* ---- A round ---- */

static lt_err push(candidate *k, const lt_event *ev) {
    if (k->n == k->room) {
        const int64_t room = k->room > 0 ? 2 * k->room : 16;
        lt_event *more = realloc(k->tokens, (size_t)room * sizeof *more);
        if (more == NULL) {
            LT_FAIL(LT_ERR_OOM, "a block of %lld tokens", (long long)room);
        }
        k->tokens = more;
        k->room = room;
    }
    k->tokens[k->n] = *ev;
    k->tokens[k->n++].choice = 0; /* The choice of the answer, if the block is kept. */
    return LT_OK;
}

static double own_score(const lt_blocks *b, const candidate *k) {
    double sum = 0;
    for (int64_t i = 0; i < k->n; i++) {
        sum += (double)k->tokens[i].logprob;
    }
    return b->score == LOGPROB       ? sum
           : k->n == 0               ? 0
           : b->score == PROBABILITY ? exp(sum / (double)k->n)
                                     : sum / (double)k->n;
}

/* The kept tokens become part of the answer. False: the answer has ended. */
static bool replay(lt_reply *j, const candidate *k) {
    lt_part *p = &j->parts[0];
    lt_event end = {.kind = LT_EVENT_CHOICE, .finish = k->finish};
    for (int64_t i = 0; i < k->n && !p->choices[0].ended; i++) {
        const uint32_t id = (uint32_t)k->tokens[i].id;
        if (lt_ids_append(&j->blocks->made, &id, 1) != LT_OK) {
            lt_api_error e;
            lt_api_refuse_oom(&e);
            lt_reply_fail(j, &e);
            return false;
        }
        lt_reply_token(p, &k->tokens[i]);
    }
    if (p->choices[0].ended) { /* At a stop string, which the engine does not know. */
        end.finish = LT_FINISH_CANCELLED;
    }
    if (p->choices[0].ended || k->finish != LT_FINISH_LENGTH ||
        (int64_t)j->blocks->made.n >= p->most_tokens) {
        lt_reply_choice_over(p, &end);
    }
    return !p->choices[0].ended && j->conn != NULL && !j->failed;
}

/* A step that is over keeps its score: what follows changes none of its tokens. */
static void keep_steps(lt_blocks *b, candidate *k) {
    free(b->steps);
    b->steps = k->part.steps;
    b->n_steps = k->part.n_steps;
    b->n_steps_ended = k->part.n_ended;
    k->part.steps = NULL;
}

/* All scores are known. */
static void choose(lt_reply *j) {
    lt_blocks *b = j->blocks;
    lt_part *p = &j->parts[0];
    double scores[LT_SELECT_MOST];
    lt_selection kept = {0};
    lt_api_error e = {0};
    lt_err err;
    bool go_on = false;
    for (int64_t i = 0; i < b->n; i++) {
        scores[i] = b->candidates[i].score;
        b->dropped += b->candidates[i].n;
    }
    err = lt_select(b->rule, &b->o, scores, NULL, b->n, lt_rng_mix(b->seed + (uint64_t)b->n_blocks),
                    &kept, NULL);
    if (err != LT_OK) {
        lt_api_refuse_error(&e, "alignment", err);
        lt_reply_fail(j, &e);
    } else {
        if (b->n_blocks < BLOCKS_TOLD) {
            memcpy(b->told + b->n_blocks * b->n, scores, (size_t)b->n * sizeof *scores);
            b->chosen[b->n_blocks] = kept.chosen;
            b->probability[b->n_blocks] = kept.probability;
        }
        b->n_blocks++;
        b->kl += kept.kl;
        b->dropped -= b->candidates[kept.chosen].n;
        j->server->metrics.group_kept += (uint64_t)b->candidates[kept.chosen].n;
        keep_steps(b, &b->candidates[kept.chosen]);
        go_on = replay(j, &b->candidates[kept.chosen]);
    }
    for (int64_t i = 0; i < b->n; i++) {
        j->server->metrics.group_dropped += (uint64_t)(i == kept.chosen ? 0 : b->candidates[i].n);
        b->candidates[i].n = 0;
        b->candidates[i].met = false;
        b->candidates[i].tail.n = 0;
        b->candidates[i].finish = LT_FINISH_NONE;
    }
    if (go_on && !lt_reply_resume(p, &b->made, &e)) {
        lt_reply_fail(j, &e);
        go_on = false;
    }
    if (!go_on) {
        lt_reply_part_done(p);
    }
}

/* No score is outstanding. */
static void choose_or_end(lt_reply *j) {
    if (j->conn == NULL || j->failed) {
        lt_reply_part_done(&j->parts[0]);
    } else {
        choose(j);
    }
}

/* The answer so far with this continuation, to the reward model. */
static bool judge(lt_reply *j, candidate *k, lt_api_error *e) {
    lt_ids ids = {0};
    char *text = NULL;
    size_t n = 0;
    bool ok;
    lt_err err = lt_ids_append(&ids, j->blocks->made.data, j->blocks->made.n);
    for (int64_t i = 0; err == LT_OK && i < k->n; i++) {
        const uint32_t id = (uint32_t)k->tokens[i].id;
        err = lt_ids_append(&ids, &id, 1);
    }
    err = err == LT_OK ? lt_tokenizer_decode(j->server->tokenizer, ids.data, ids.n, true, &text, &n)
                       : err;
    ok = err == LT_OK
             ? lt_judge_submit(j, &k->part, text, n, j->blocks->steps, j->blocks->n_steps_ended, e)
             : lt_api_refuse_error(e, NULL, err);
    free(text);
    lt_ids_free(&ids);
    return ok;
}

/* The round is over: all continuations have come. */
static void score(lt_reply *j) {
    lt_blocks *b = j->blocks;
    lt_api_error e = {0};
    for (int64_t i = 0; i < b->n && !j->failed; i++) {
        candidate *k = &b->candidates[i];
        if (b->score != REWARD) {
            k->score = own_score(b, k);
        } else if (judge(j, k, &e)) {
            b->n_pending++;
        } else {
            lt_reply_fail(j, &e);
        }
    }
    if (b->n_pending == 0) {
        choose_or_end(j);
    }
}

void lt_blocks_judged(lt_part *p, const lt_event *ev) {
    lt_reply *j = p->reply;
    lt_blocks *b = j->blocks;
    candidate *k = (candidate *)((char *)p - offsetof(candidate, part));
    if (lt_judge_event(j, ev, &k->score, &b->reward_tokens) && --b->n_pending == 0) {
        choose_or_end(j);
    }
}

static void round_over(lt_reply *j, const lt_event *ev) {
    lt_part *p = &j->parts[0];
    if (!p->resumed) {
        p->cached_tokens = ev->cached_tokens;
        p->queue_s = ev->queue_s;
        p->prefill_s = ev->prefill_s;
    }
    if (j->conn == NULL || j->failed) {
        lt_reply_part_done(p);
    } else {
        score(j);
    }
}

/* The engine may have gone on for some tokens before it is told: these are ignored. */
static void stop_at_border(lt_reply *j, candidate *k, const lt_event *ev) {
    const lt_tokenizer *t = j->server->tokenizer;
    size_t n = 0;
    const char *text = lt_tokenizer_piece(t, (uint32_t)ev->id, &n);
    if (!j->blocks->stepwise || k->met || ev->finish != LT_FINISH_NONE || text == NULL ||
        lt_tokenizer_is_special(t, (uint32_t)ev->id)) {
        return;
    }
    k->met = lt_borders_met(&j->blocks->borders, &k->tail, text, n);
    if (k->met) {
        lt_engine_cancel_choice(j->server->engine, j->parts[0].id, ev->choice);
    }
}

void lt_blocks_event(const lt_event *ev) {
    const lt_part *p = ev->user;
    lt_reply *j = p->reply;
    candidate *k = &j->blocks->candidates[ev->choice];
    lt_api_error e = {0};
    if (ev->kind == LT_EVENT_TOKEN) {
        if (!k->met && push(k, ev) != LT_OK) {
            lt_api_refuse_oom(&e);
            lt_reply_fail(j, &e);
        }
        stop_at_border(j, k, ev);
    } else if (ev->kind == LT_EVENT_CHOICE) {
        k->finish = k->met ? LT_FINISH_LENGTH : ev->finish; /* How the block ended. */
        if (ev->finish == LT_FINISH_FAILED) {
            lt_reply_choice_over(&j->parts[0], &(lt_event){.kind = LT_EVENT_CHOICE,
                                                           .finish = LT_FINISH_FAILED,
                                                           .failure = ev->failure});
        }
    } else if (ev->kind == LT_EVENT_DONE) {
        round_over(j, ev);
    }
}

/* ---- The report ---- */

static void write_blocks(lt_json_out *o, const lt_blocks *b) {
    const int64_t n = b->n_blocks < BLOCKS_TOLD ? b->n_blocks : BLOCKS_TOLD;
    lt_out_key_open(o, "candidates", '[');
    for (int64_t i = 0; i < n; i++) {
        lt_out_open(o, '{');
        lt_out_key_int(o, "chosen", b->chosen[i]);
        lt_out_key_real(o, "probability", b->probability[i]);
        lt_out_key_open(o, "scores", '[');
        for (int64_t k = 0; k < b->n; k++) {
            lt_out_real(o, b->told[i * b->n + k]);
        }
        lt_out_shut(o, ']');
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
}

void lt_blocks_write(lt_json_out *o, const lt_reply *j) {
    const lt_blocks *b = j->blocks;
    lt_out_key_open(o, "alignment", '{');
    lt_out_key_str(o, "method", "blockwise");
    lt_out_key_str(o, "reward", score_names[b->score]);
    lt_out_key_int(o, "n", b->n);
    lt_out_key_int(o, "blocks", b->n_blocks);
    lt_out_key_real(o, "kl_bound", b->kl);
    lt_judge_write(o, b->steps, b->n_steps);
    lt_out_key_open(o, "tokens", '{');
    lt_out_key_int(o, "kept", (int64_t)b->made.n);
    lt_out_key_int(o, "dropped", b->dropped);
    if (b->score == REWARD) {
        lt_out_key_int(o, "reward", b->reward_tokens);
    }
    lt_out_shut(o, '}');
    if (j->params.group.candidates) {
        write_blocks(o, b);
    }
    lt_out_shut(o, '}');
}
