/* blocks.c: see blocks.h. */
#include "serve/api/align/blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/tokenizer/bpe.h"
#include "lateen/select.h"
#include "serve/api/align/borders.h"
#include "serve/api/align/guide.h"
#include "serve/api/align/judge.h"
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
    bool met; /* It ended at a border. */
    lt_border_tail tail;
    double score;
    lt_part part; /* Its request to the reward model. */
} candidate;

/* A text that is being written. With width 1 it is the answer so far; otherwise it is one of
 * several, and its tokens are kept here until the search is over. */
typedef struct {
    lt_part part;     /* With a width over 1: its request to the engine. */
    lt_ids made;      /* Its tokens. */
    lt_event *tokens; /* (made.n) with a width over 1: the events of its tokens. */
    /* (n_steps): scores of its steps by a process reward model; the first n_steps_ended steps have
     * ended at a border. */
    double *steps;
    int64_t n_steps, n_steps_ended;
    double score;
    bool over; /* It has ended: it gets no more continuations, and competes with its score. */
    lt_finish finish;
    int64_t first; /* Candidates [first, first + each) are its continuations. */
} path;

struct lt_blocks {
    int64_t n, every, width, n_blocks;
    /* Number of open requests to the engine, and to the reward model. */
    int64_t n_running, n_pending;
    score_kind score;
    const lt_select_rule *rule;
    lt_select_options o;
    uint64_t seed;
    bool stepwise; /* Blocks also end at borders. */
    lt_borders borders;
    /* Bound on the answer's divergence from an ordinary one: the sum over its blocks. */
    double kl;
    path *paths, *next;    /* (width) the texts of this round, and room for those of the next. */
    int64_t n_paths, each; /* each: number of continuations of a path that is not over. */
    candidate *candidates; /* (n) */
    int64_t drawn, reward_tokens;
    lt_json_out told; /* Scores and choices of the first BLOCKS_TOLD blocks. */
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
                  {a->group.width > 1 && j->n_stops > 0, "stop"},
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

/* With a width over 1 the texts share the n continuations of a round evenly, and the best are kept
 * without a draw. */
static bool read_width(lt_blocks *b, const lt_api_params *a, bool soft, lt_api_error *e) {
    b->width = a->group.width > 0 ? a->group.width : 1;
    if (b->width > 1 && soft) {
        return lt_api_refuse(e, "alignment.temperature",
                             "'alignment.temperature' draws one block; with 'alignment.width' %lld "
                             "the best go on",
                             (long long)b->width);
    }
    return b->n % b->width == 0 ||
           lt_api_refuse(e, "alignment.width",
                         "'alignment.n' is %lld, which %lld texts cannot share evenly",
                         (long long)b->n, (long long)b->width);
}

static bool make_room(lt_blocks *b, lt_api_error *e) {
    b->candidates = calloc((size_t)b->n, sizeof *b->candidates);
    b->paths = calloc((size_t)b->width, sizeof *b->paths);
    b->next = calloc((size_t)b->width, sizeof *b->next);
    b->n_paths = 1; /* The empty text, from which all texts of the first round continue. */
    b->each = b->n;
    b->n_running = 1; /* The answer's own part, which begins. */
    return (b->candidates != NULL && b->paths != NULL && b->next != NULL) || lt_api_refuse_oom(e);
}

bool lt_blocks_read(lt_reply *j, lt_api_error *e) {
    static const char *const reads[] = {"n",     "every",       "reward", "aggregate",
                                        "seed",  "temperature", "border", "return_candidates",
                                        "width", NULL};
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
    if (!read_width(b, a, soft, e) || !make_room(b, e)) {
        return false;
    }
    j->request.logprobs = j->request.logprobs > 0 ? j->request.logprobs : 0;
    return true;
}

static void path_free(path *p) {
    lt_ids_free(&p->made);
    free(p->tokens);
    free(p->steps);
    *p = (path){.n_steps = 0};
}

void lt_blocks_free(lt_blocks *b) {
    if (b == NULL) {
        return;
    }
    for (int64_t i = 0; b->candidates != NULL && i < b->n; i++) {
        free(b->candidates[i].tokens);
        lt_judge_close(&b->candidates[i].part);
    }
    for (int64_t i = 0; b->paths != NULL && b->next != NULL && i < b->width; i++) {
        path_free(&b->paths[i]);
        path_free(&b->next[i]);
    }
    free(b->paths);
    free(b->next);
    free(b->candidates);
    lt_out_free(&b->told);
    free(b);
}

static path *path_of(const lt_blocks *b, const lt_part *p) {
    for (int64_t i = 0; i < b->n_paths; i++) {
        if (&b->paths[i].part == p) {
            return &b->paths[i];
        }
    }
    return &b->paths[0]; /* The answer's own part. */
}

/* A continuation is choice `first + i` of the request's seed, so that no two texts have the same
 * random draws. */
void lt_blocks_shape(const lt_blocks *b, const lt_part *p, lt_request *r, int64_t n_given,
                     int64_t most_tokens) {
    r->n_choices = b->each;
    r->first_choice = (int32_t)path_of(b, p)->first;
    r->max_tokens = n_given + b->every < most_tokens ? n_given + b->every : most_tokens;
}

void lt_blocks_cancel(const lt_reply *j) {
    const lt_blocks *b = j->blocks;
    for (int64_t i = 0; b != NULL && b->width > 1 && i < b->n_paths; i++) {
        if (b->paths[i].part.submitted) {
            lt_engine_cancel(j->server->engine, b->paths[i].part.id);
        }
    }
}

int64_t lt_blocks_dropped(const lt_blocks *b) {
    return b != NULL ? b->drawn - (int64_t)b->paths[0].made.n : 0;
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
    k->tokens[k->n++].choice = 0; /* Index of the answer's choice, if the block is kept. */
    return LT_OK;
}

static double logprob_of(const lt_event *tokens, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)tokens[i].logprob;
    }
    return sum;
}

/* The block's score; if several texts compete, the score of the whole text. */
static double own_score(const lt_blocks *b, const path *p, const candidate *k) {
    const int64_t before = b->width > 1 ? (int64_t)p->made.n : 0, n = before + k->n;
    const double sum = logprob_of(p->tokens, before) + logprob_of(k->tokens, k->n);
    return b->score == LOGPROB       ? sum
           : n == 0                  ? 0
           : b->score == PROBABILITY ? exp(sum / (double)n)
                                     : sum / (double)n;
}

static lt_err add_ids(lt_ids *made, const candidate *k) {
    for (int64_t i = 0; i < k->n; i++) {
        const uint32_t id = (uint32_t)k->tokens[i].id;
        LT_TRY(lt_ids_append(made, &id, 1));
    }
    return LT_OK;
}

/* Append tokens to the answer, at most up to a stop string; returns how many were taken. whole: the
 * answer ends with them. */
static int64_t replay(lt_reply *j, const lt_event *tokens, int64_t n, lt_finish finish,
                      bool whole) {
    lt_part *p = &j->parts[0];
    lt_event end = {.kind = LT_EVENT_CHOICE, .finish = finish};
    int64_t used = 0;
    for (; used < n && !p->choices[0].ended; used++) {
        lt_reply_token(p, &tokens[used]);
    }
    if (p->choices[0].ended) { /* It ended at a stop string, which the engine does not know. */
        end.finish = LT_FINISH_CANCELLED;
    }
    if (p->choices[0].ended || whole) {
        lt_reply_choice_over(p, &end);
    }
    return used;
}

/* The scores of the candidate's steps become those of the path. The next round does not compute
 * those of ended steps again, because their tokens no longer change. */
static void take_steps(path *p, candidate *k) {
    free(p->steps);
    p->steps = k->part.steps;
    p->n_steps = k->part.n_steps;
    p->n_steps_ended = k->part.n_ended;
    k->part.steps = NULL;
}

static bool is_over(const lt_reply *j, const path *p, const candidate *k) {
    return k->finish != LT_FINISH_LENGTH || (int64_t)p->made.n >= j->parts[0].most_tokens;
}

static void put_scores(lt_json_out *o, const lt_blocks *b) {
    lt_out_key_open(o, "scores", '[');
    for (int64_t i = 0; i < b->n; i++) {
        if (b->candidates[i].finish != LT_FINISH_NONE) {
            lt_out_real(o, b->candidates[i].score);
        }
    }
    lt_out_shut(o, ']');
}

/* One text: its best continuation becomes part of the answer at once. */
static lt_err keep_one(lt_reply *j) {
    lt_blocks *b = j->blocks;
    path *p = &b->paths[0];
    double scores[LT_SELECT_MOST];
    lt_selection kept = {0};
    candidate *k;
    for (int64_t i = 0; i < b->n; i++) {
        scores[i] = b->candidates[i].score;
    }
    LT_TRY(lt_select(b->rule, &b->o, scores, NULL, b->n,
                     lt_rng_mix(b->seed + (uint64_t)b->n_blocks), &kept, NULL));
    k = &b->candidates[kept.chosen];
    if (b->n_blocks < BLOCKS_TOLD) {
        lt_out_open(&b->told, '{');
        lt_out_key_int(&b->told, "chosen", kept.chosen);
        lt_out_key_real(&b->told, "probability", kept.probability);
        put_scores(&b->told, b);
        lt_out_shut(&b->told, '}');
    }
    b->n_blocks++;
    b->kl += kept.kl;
    take_steps(p, k);
    LT_TRY(add_ids(&p->made, k));
    p->made.n -= (size_t)(k->n - replay(j, k->tokens, k->n, k->finish, is_over(j, p, k)));
    p->over = j->parts[0].choices[0].ended;
    return LT_OK;
}

/* ---- Several texts: a beam search ---- */

/* A rival for a place in the next round: a continuation (index: of its candidate), or a text that
 * is over (index: n + that of its path). */
typedef struct {
    double score;
    int64_t index;
} rival;

static int best_first(const void *a, const void *b) {
    const rival *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : (x->index > y->index) - (x->index < y->index);
}

/* The path that candidate `index` continues. */
static path *path_before(const lt_blocks *b, int64_t index) {
    path *found = &b->paths[0];
    for (int64_t i = 0; i < b->n_paths; i++) {
        if (!b->paths[i].over && b->paths[i].first <= index) {
            found = &b->paths[i];
        }
    }
    return found;
}

/* Make out a text of the next round: one of this round with its continuation k. */
static lt_err extend(const lt_reply *j, path *out, const path *from, candidate *k) {
    const size_t before = from->made.n;
    out->tokens = malloc((before + (size_t)k->n + 1) * sizeof *out->tokens);
    if (out->tokens == NULL) {
        LT_FAIL(LT_ERR_OOM, "a text of %lld tokens", (long long)before + k->n);
    }
    if (before > 0) {
        memcpy(out->tokens, from->tokens, before * sizeof *out->tokens);
    }
    if (k->n > 0) {
        memcpy(out->tokens + before, k->tokens, (size_t)k->n * sizeof *out->tokens);
    }
    LT_TRY(lt_ids_append(&out->made, from->made.data, before));
    LT_TRY(add_ids(&out->made, k));
    take_steps(out, k);
    out->score = k->score;
    out->finish = k->finish;
    out->over = is_over(j, out, k);
    return LT_OK;
}

static int64_t rivals_of(const lt_blocks *b, rival *out) {
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++) {
        if (b->candidates[i].finish != LT_FINISH_NONE) {
            out[n++] = (rival){b->candidates[i].score, i};
        }
    }
    for (int64_t i = 0; i < b->n_paths; i++) {
        if (b->paths[i].over) {
            out[n++] = (rival){b->paths[i].score, b->n + i};
        }
    }
    qsort(out, (size_t)n, sizeof *out, best_first);
    return n;
}

static void tell_kept(lt_blocks *b, const rival *best, int64_t n) {
    lt_json_out *o = &b->told;
    if (b->n_blocks >= BLOCKS_TOLD) {
        return;
    }
    lt_out_open(o, '{');
    put_scores(o, b);
    lt_out_key_open(o, "kept", '[');
    for (int64_t i = 0; i < n; i++) {
        lt_out_real(o, best[i].score);
    }
    lt_out_shut(o, ']');
    lt_out_shut(o, '}');
}

/* Choose the paths of the next round: the `width` rivals with the best scores, the best first. */
static lt_err keep_several(lt_reply *j) {
    lt_blocks *b = j->blocks;
    rival rivals[2 * LT_SELECT_MOST];
    const int64_t n = rivals_of(b, rivals), n_kept = n < b->width ? n : b->width;
    path *const before = b->paths;
    int64_t first = 0;
    tell_kept(b, rivals, n_kept);
    b->n_blocks++;
    for (int64_t i = 0; i < n_kept; i++) {
        path *to = &b->next[i];
        if (rivals[i].index >= b->n) {
            *to = before[rivals[i].index - b->n];
            before[rivals[i].index - b->n] = (path){.n_steps = 0};
        } else {
            LT_TRY(extend(j, to, path_before(b, rivals[i].index), &b->candidates[rivals[i].index]));
        }
    }
    for (int64_t i = 0; i < b->n_paths; i++) {
        path_free(&before[i]);
    }
    b->paths = b->next;
    b->next = before;
    b->n_paths = n_kept;
    b->each = b->n / b->width;
    for (int64_t i = 0; i < n_kept; i++) {
        b->paths[i].first = first;
        first += b->paths[i].over ? 0 : b->each;
    }
    return LT_OK;
}

static bool all_over(const lt_blocks *b) {
    for (int64_t i = 0; i < b->n_paths; i++) {
        if (!b->paths[i].over) {
            return false;
        }
    }
    return true;
}

/* ---- From one round to the next ---- */

static void finish_answer(lt_reply *j) {
    lt_blocks *b = j->blocks;
    const path *best = &b->paths[0];
    if (b->width > 1 && j->conn != NULL && !j->failed && all_over(b)) {
        (void)replay(j, best->tokens, (int64_t)best->made.n, best->finish, true);
    }
    j->server->metrics.group_kept += best->made.n;
    j->server->metrics.group_dropped += (uint64_t)lt_blocks_dropped(b);
    lt_reply_part_done(&j->parts[0]);
}

/* Submit the requests of the next round. */
static bool resume(lt_reply *j, lt_api_error *e) {
    lt_blocks *b = j->blocks;
    if (b->width == 1) {
        const bool ok = lt_reply_resume(&j->parts[0], &b->paths[0].made, e);
        b->n_running += ok;
        return ok;
    }
    for (int64_t i = 0; i < b->n_paths; i++) {
        lt_part *p = &b->paths[i].part;
        if (b->paths[i].over) {
            continue;
        }
        *p = (lt_part){.reply = j,
                       .prompt = j->parts[0].prompt, /* The prompt is lent. */
                       .most_tokens = j->parts[0].most_tokens};
        if (!lt_reply_resume(p, &b->paths[i].made, e)) {
            return false;
        }
        p->submitted = true;
        b->n_running++;
    }
    return true;
}

static void forget_round(lt_blocks *b) {
    for (int64_t i = 0; i < b->n; i++) {
        b->candidates[i].n = 0;
        b->candidates[i].met = false;
        b->candidates[i].tail.n = 0;
        b->candidates[i].finish = LT_FINISH_NONE;
    }
}

/* Called when all scores are known. */
static void choose(lt_reply *j) {
    lt_blocks *b = j->blocks;
    lt_api_error e = {0};
    lt_err err;
    for (int64_t i = 0; i < b->n; i++) {
        b->drawn += b->candidates[i].n;
    }
    err = b->width > 1 ? keep_several(j) : keep_one(j);
    forget_round(b);
    if (err != LT_OK) {
        lt_api_refuse_error(&e, "alignment", err);
        lt_reply_fail(j, &e);
    } else if (!all_over(b) && j->conn != NULL && !j->failed && !resume(j, &e)) {
        lt_reply_fail(j, &e);
    }
    if (b->n_running == 0) {
        finish_answer(j);
    }
}

/* Called when no score is outstanding. */
static void choose_or_end(lt_reply *j) {
    if (j->conn == NULL || j->failed) {
        finish_answer(j);
    } else {
        choose(j);
    }
}

/* Send the answer so far, with this continuation, to the reward model. */
static bool judge(lt_reply *j, const path *p, candidate *k, lt_api_error *e) {
    lt_ids ids = {0};
    char *text = NULL;
    size_t n = 0;
    bool ok;
    lt_err err = lt_ids_append(&ids, p->made.data, p->made.n);
    err = err == LT_OK ? add_ids(&ids, k) : err;
    err = err == LT_OK ? lt_tokenizer_decode(j->server->tokenizer, ids.data, ids.n, true, &text, &n)
                       : err;
    ok = err == LT_OK ? lt_judge_submit(j, &k->part, text, n, p->steps, p->n_steps_ended, e)
                      : lt_api_refuse_error(e, NULL, err);
    free(text);
    lt_ids_free(&ids);
    return ok;
}

/* The round is over: all continuations have ended. */
static void score(lt_reply *j) {
    lt_blocks *b = j->blocks;
    lt_api_error e = {0};
    for (int64_t i = 0; i < b->n && !j->failed; i++) {
        candidate *k = &b->candidates[i];
        const path *p = path_before(b, i);
        if (k->finish == LT_FINISH_NONE) {
            continue; /* Texts that are over have no continuations. */
        }
        if (b->score != REWARD) {
            k->score = own_score(b, p, k);
        } else if (judge(j, p, k, &e)) {
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

static void request_over(lt_reply *j, lt_part *own, const lt_event *ev) {
    lt_part *p = &j->parts[0];
    lt_blocks *b = j->blocks;
    own->submitted = own == p && b->width == 1; /* Its id no longer belongs to a request. */
    if (b->n_blocks == 0) {
        p->cached_tokens = ev->cached_tokens;
        p->queue_s = ev->queue_s;
        p->prefill_s = ev->prefill_s;
    }
    if (--b->n_running > 0) {
        return;
    }
    if (j->conn == NULL || j->failed) {
        finish_answer(j);
    } else {
        score(j);
    }
}

/* The engine may generate some more tokens before it stops; these are ignored. */
static void stop_at_border(lt_reply *j, const lt_part *p, candidate *k, const lt_event *ev) {
    const lt_tokenizer *t = j->server->tokenizer;
    size_t n = 0;
    const char *text = lt_tokenizer_text(t, (uint32_t)ev->id, &n);
    if (!j->blocks->stepwise || k->met || ev->finish != LT_FINISH_NONE || text == NULL ||
        lt_tokenizer_is_special(t, (uint32_t)ev->id)) {
        return;
    }
    k->met = lt_borders_met(&j->blocks->borders, &k->tail, text, n);
    if (k->met) {
        lt_engine_cancel_choice(j->server->engine, p->id, ev->choice);
    }
}

void lt_blocks_event(const lt_event *ev) {
    lt_part *p = ev->user;
    lt_reply *j = p->reply;
    candidate *k = &j->blocks->candidates[path_of(j->blocks, p)->first + ev->choice];
    lt_api_error e = {0};
    if (ev->kind == LT_EVENT_TOKEN) {
        if (!k->met && push(k, ev) != LT_OK) {
            lt_api_refuse_oom(&e);
            lt_reply_fail(j, &e);
        }
        stop_at_border(j, p, k, ev);
    } else if (ev->kind == LT_EVENT_CHOICE) {
        k->finish = k->met ? LT_FINISH_LENGTH : ev->finish; /* How the block ended. */
        if (ev->finish == LT_FINISH_FAILED) {
            lt_reply_choice_over(&j->parts[0], &(lt_event){.kind = LT_EVENT_CHOICE,
                                                           .finish = LT_FINISH_FAILED,
                                                           .failure = ev->failure});
        }
    } else if (ev->kind == LT_EVENT_DONE) {
        request_over(j, p, ev);
    }
}

/* ---- The report ---- */

void lt_blocks_write(lt_json_out *o, const lt_reply *j) {
    const lt_blocks *b = j->blocks;
    const path *best = &b->paths[0];
    lt_out_key_open(o, "alignment", '{');
    lt_out_key_str(o, "method", "blockwise");
    lt_out_key_str(o, "reward", score_names[b->score]);
    lt_out_key_int(o, "n", b->n);
    lt_out_key_int(o, "blocks", b->n_blocks);
    if (b->width > 1) {
        lt_out_key_int(o, "width", b->width);
        lt_out_key_real(o, "score", best->score);
        lt_out_key_null(o, "kl_bound");
    } else {
        lt_out_key_real(o, "kl_bound", b->kl);
    }
    lt_judge_write(o, best->steps, best->n_steps);
    lt_out_key_open(o, "tokens", '{');
    lt_out_key_int(o, "kept", (int64_t)best->made.n);
    lt_out_key_int(o, "dropped", lt_blocks_dropped(b));
    if (b->score == REWARD) {
        lt_out_key_int(o, "reward", b->reward_tokens);
    }
    lt_out_shut(o, '}');
    if (j->params.group.candidates) {
        lt_out_key_open(o, "candidates", '[');
        lt_out_raw(o, b->told.data != NULL ? b->told.data : "", b->told.n);
        lt_out_shut(o, ']');
    }
    lt_out_shut(o, '}');
}
