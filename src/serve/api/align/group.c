/* group.c: see group.h: the candidates run, are scored and cut, and one of them is kept. */
#include "serve/api/align/group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/text_utf8.h"
#include "serve/api/align/group_impl.h"
#include "serve/api/align/judge.h"

#define ANSWER_MOST 4096 /* Most bytes of an extracted answer. */

void lt_group_free(lt_group *g) {
    if (g == NULL) {
        return;
    }
    for (int64_t i = 0; g->candidates != NULL && i < g->n; i++) {
        lt_confidence_free(&g->candidates[i].confidence);
        lt_judge_close(&g->candidates[i].whole.part);
        for (int64_t k = 0; k < g->candidates[i].n_begun; k++) {
            lt_judge_close(&g->candidates[i].begun[k]->part);
            free(g->candidates[i].begun[k]);
        }
        free(g->candidates[i].begun);
    }
    for (int i = 0; i < g->n_answers; i++) {
        lt_checker_close(g->answers[i].checker);
        free(g->answers[i].text);
    }
    lt_checker_close(g->check);
    lt_tournament_close(g->tournament);
    free(g->candidates);
    free(g->answers);
    free(g);
}

/* ---- Scores ---- */

static double mean_logprob(const lt_reply_choice *c) {
    return c->new_tokens > 0 ? c->logprob_sum / (double)c->new_tokens : 0;
}

void lt_group_text_of(lt_reply_choice *c, lt_json_out *text) {
    if (c->reply->formatter->answer != NULL) {
        c->reply->formatter->answer(c, text);
    } else {
        lt_out_raw(text, c->text.data != NULL ? c->text.data : "", c->text.n);
    }
}

static bool takes(const lt_checker *checker, const lt_json_out *text, bool strict) {
    bool right = false;
    const lt_err err = lt_checker_run(checker, text->data != NULL ? text->data : "", text->n,
                                      strict ? LT_ANSWER_STRICT : LT_ANSWER_LENIENT, &right, NULL);
    return err == LT_OK && right;
}

static double score_of(const lt_group *g, lt_reply_choice *c, const lt_group_candidate *k,
                       const lt_json_out *text) {
    switch (g->score) {
    case LT_SCORE_MEAN_LOGPROB:
        return mean_logprob(c);
    case LT_SCORE_LOGPROB:
        return c->logprob_sum;
    case LT_SCORE_PROBABILITY:
        return exp(mean_logprob(c));
    case LT_SCORE_CONFIDENCE:
        return lt_confidence_of(&k->confidence);
    case LT_SCORE_BEAM:
        return c->logprob_sum / pow((double)c->new_tokens, c->reply->params.length_penalty);
    case LT_SCORE_REWARD: /* Known once the text has been judged. */
    case LT_SCORE_WINS:
        return 0;
    case LT_SCORE_CHECK:
        break;
    }
    return takes(g->check, text, c->reply->params.group.strict) ? 1 : 0;
}

/* Index of the text's answer among the group's; a new one if it equals no earlier answer. */
static int32_t answer_of(lt_group *g, const lt_json_out *text) {
    size_t begin = 0, end = 0;
    const char *data = text->data != NULL ? text->data : "";
    lt_group_answer *a = &g->answers[g->n_answers];
    for (int i = 0; i < g->n_answers; i++) {
        if (takes(g->answers[i].checker, text, false)) {
            return i;
        }
    }
    if (lt_answer_find(data, text->n, LT_ANSWER_LENIENT, &begin, &end) == LT_ANSWER_NONE ||
        end == begin || end - begin > ANSWER_MOST ||
        lt_checker_open(&a->checker, g->extract, data + begin, end - begin) != LT_OK) {
        return -1;
    }
    if (!takes(a->checker, text, false)) { /* It is not even equal to itself. */
        lt_checker_close(a->checker);
        *a = (lt_group_answer){0};
        return -1;
    }
    a->text = malloc(3 * (end - begin) + 1);
    if (a->text != NULL) {
        a->text[lt_utf8_replace_invalid(a->text, data + begin, end - begin)] = '\0';
    }
    return g->n_answers++;
}

/* ---- While it runs ---- */

static void cut(lt_reply_choice *c, lt_group_candidate *k) {
    k->cut = true;
    c->ended = true;
    c->finish = LT_FINISH_CANCELLED;
    lt_engine_cancel_choice(c->reply->server->engine, c->part->id,
                            c->choice - c->part->first_choice);
}

/* End all candidates that still run or have not begun. */
static void cut_the_rest(lt_group *g, lt_part *p, const char *why) {
    for (int64_t i = 0; i < g->n; i++) {
        lt_group_candidate *k = &g->candidates[i];
        if (i >= g->until) {
            k->cut = true;
            p->choices[i].ended = true;
            p->choices[i].finish = LT_FINISH_CANCELLED;
        } else if (!k->ended && !k->cut) {
            g->stopped_by = why;
            cut(&p->choices[i], k);
        }
    }
}

typedef struct {
    double score;
    int64_t index;
} ranked;

static int worst_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score) - (x->score < y->score)
                                : (x->index < y->index) - (x->index > y->index);
}

/* Can the candidates that are left be compared at this length? One of them must have come so far,
 * and the scores of all must be known there, or of their whole texts if these are shorter. So what
 * is cut depends on the texts alone, not on which of them was first. */
static bool round_is_due(const lt_group *g, int64_t round) {
    bool reached = false;
    for (int64_t i = 0; i < g->n; i++) {
        const lt_group_candidate *k = &g->candidates[i];
        const bool here = k->n_begun >= round;
        if (!k->cut && !(here ? k->begun[round - 1]->known : k->ended)) {
            return false;
        }
        reached |= here && !k->cut;
    }
    return reached;
}

/* Speculative rejection (Sun et al. 2024, arXiv:2410.20290): of those that are left, ended ones
 * too, the share `keep` with the best scores at this length goes on, however far each has come
 * since. Of equal scores the later goes. */
static void cut_worst(lt_group *g, lt_part *p, int64_t round) {
    ranked left[LT_GROUP_MOST];
    int64_t n = 0, n_cut;
    for (int64_t i = 0; i < g->n; i++) {
        lt_group_candidate *k = &g->candidates[i];
        if (!k->cut) {
            left[n++] = (ranked){k->n_begun >= round ? k->begun[round - 1]->score : k->score, i};
        }
    }
    n_cut = n - (int64_t)ceil(p->reply->params.group.keep * (double)n);
    qsort(left, (size_t)n, sizeof *left, worst_first);
    for (int64_t i = 0; i < n_cut; i++) {
        lt_group_candidate *k = &g->candidates[left[i].index];
        if (k->ended) {
            k->cut = true;
        } else {
            cut(&p->choices[left[i].index], k);
        }
    }
}

static void cut_where_due(lt_reply *j) {
    lt_group *g = j->group;
    const int64_t every = j->params.group.every;
    for (; round_is_due(g, g->next_cut / every); g->next_cut += every) {
        cut_worst(g, &j->parts[0], g->next_cut / every);
    }
}

/* A place for the score of the text so far; NULL: out of memory, and the score at the end counts
 * instead. */
static lt_group_text *begin_text(lt_group_candidate *k) {
    lt_group_text **more = realloc(k->begun, (size_t)(k->n_begun + 1) * sizeof *more);
    lt_group_text *t = more != NULL ? calloc(1, sizeof *t) : NULL;
    k->begun = more != NULL ? more : k->begun;
    if (t != NULL) {
        t->of = k;
        k->begun[k->n_begun++] = t;
    }
    return t;
}

static bool is_alone(const lt_group *g) {
    int64_t n = 0;
    for (int64_t i = 0; i < g->n; i++) {
        n += !g->candidates[i].cut;
    }
    return n == 1;
}

/* The answer waits until the reward model has judged the text. */
static void begin_to_judge(lt_reply *j, lt_group_text *t, const lt_json_out *text) {
    lt_api_error e = {0};
    if (lt_judge_submit(j, &t->part, text->data != NULL ? text->data : "", text->n, NULL, 0, &e)) {
        j->parts_left++;
    } else {
        lt_reply_fail(j, &e);
    }
}

/* The candidate has reached a length at which candidates are compared. The reward model reads its
 * whole text, including the reasoning. */
static void score_beginning(lt_reply_choice *c, lt_group_candidate *k) {
    lt_group *g = c->reply->group;
    lt_group_text *t = is_alone(g) ? NULL : begin_text(k);
    if (t != NULL && g->score == LT_SCORE_REWARD) {
        begin_to_judge(c->reply, t, &c->text);
    } else if (t != NULL) {
        t->score = score_of(g, c, k, NULL);
        t->known = true;
        cut_where_due(c->reply);
    }
}

void lt_group_token(lt_reply_choice *c, const lt_event *ev) {
    lt_group *g = c->reply->group;
    lt_group_candidate *k = &g->candidates[c->choice];
    if (g->score == LT_SCORE_CONFIDENCE || c->reply->params.group.confidences) {
        lt_confidence_add(&k->confidence, ev, c->reply->params.group.window);
    }
    if (g->method->confidence && c->choice >= c->reply->params.group.warmup &&
        lt_confidence_now(&k->confidence, c->reply->params.group.window) < g->least) {
        cut(c, k);
    }
}

void lt_group_grown(lt_reply_choice *c) {
    lt_group *g = c->reply->group;
    if (g->method->halves && c->new_tokens % c->reply->params.group.every == 0) {
        score_beginning(c, &g->candidates[c->choice]);
    }
}

/* The answer for which a candidate votes; -1: none. With DeepConf only confident ones vote. */
static int32_t vote_of(const lt_group *g, const lt_group_candidate *k) {
    return !k->ended || k->cut || (g->method->confidence && k->score < g->least) ? -1 : k->answer;
}

/* DeepConf: the leading answer's share of the votes so far. */
static double consensus(const lt_group *g) {
    double weight[LT_GROUP_MOST];
    int32_t answers[LT_GROUP_MOST];
    for (int64_t i = 0; i < g->n; i++) {
        weight[i] = g->candidates[i].score;
        answers[i] = vote_of(g, &g->candidates[i]);
    }
    return lt_select_consensus(weight, answers, g->n);
}

static void stop_at_consensus(lt_reply *j) {
    lt_group *g = j->group;
    g->consensus = consensus(g);
    if (g->consensus >= j->params.group.tau) {
        cut_the_rest(g, &j->parts[0], "consensus");
        g->stopped_by = "consensus";
    }
}

static bool decided(const lt_group *g) {
    double score[LT_GROUP_MOST];
    int32_t answers[LT_GROUP_MOST];
    bool ended[LT_GROUP_MOST];
    for (int64_t i = 0; i < g->n; i++) {
        score[i] = g->candidates[i].score;
        answers[i] = g->candidates[i].answer;
        ended[i] = g->candidates[i].ended;
    }
    return lt_select_decided(g->rule, &g->o, g->rule->groups && !g->scored ? NULL : score, answers,
                             ended, g->n);
}

/* The candidate's score is known. */
static void settle(lt_reply_choice *c, lt_group_candidate *k) {
    lt_group *g = c->reply->group;
    k->ended = true;
    if (g->method->halves) {
        cut_where_due(c->reply);
    }
    if (g->method->confidence && g->from > 0) {
        stop_at_consensus(c->reply);
    }
    if (decided(g)) {
        cut_the_rest(g, c->part, g->rule->groups ? "majority" : "accepted");
    }
}

/* All candidates have ended: the tournament begins. */
static void begin_tournament(lt_reply *j) {
    lt_group *g = j->group;
    lt_json_out *texts = calloc((size_t)g->n, sizeof *texts);
    lt_api_error e = {0};
    for (int64_t i = 0; texts != NULL && i < g->n; i++) {
        lt_group_text_of(&j->parts[0].choices[i], &texts[i]);
    }
    if (texts == NULL ? !lt_api_refuse_oom(&e)
                      : !lt_tournament_open(&g->tournament, j, texts, g->n, &e)) {
        lt_reply_fail(j, &e);
    }
}

static bool all_ended(const lt_group *g) {
    for (int64_t i = 0; i < g->n; i++) {
        if (!g->candidates[i].ended) {
            return false;
        }
    }
    return true;
}

void lt_group_ended(lt_reply_choice *c) {
    lt_group *g = c->reply->group;
    lt_group_candidate *k = &g->candidates[c->choice];
    lt_json_out text = {0};
    lt_group_text_of(c, &text);
    k->answer = g->rule->groups ? answer_of(g, &text) : -1;
    if (g->score == LT_SCORE_REWARD) {
        begin_to_judge(c->reply, &k->whole, &text);
    } else {
        k->score = score_of(g, c, k, &text);
        settle(c, k);
    }
    lt_out_free(&text);
    if (g->method->tournament && g->n > 1 && all_ended(g)) {
        begin_tournament(c->reply);
    }
}

static void on_match(lt_part *p, const lt_event *ev) {
    lt_reply *j = p->reply;
    lt_group *g = j->group;
    lt_api_error e = {0};
    const bool over = lt_tournament_event(g->tournament, p, ev, &e);
    if (e.status != 0) {
        lt_reply_fail(j, &e);
    }
    for (int64_t i = 0; over && i < g->n; i++) {
        g->candidates[i].score = (double)lt_tournament_wins(g->tournament, i);
    }
    if (ev->kind == LT_EVENT_DONE) {
        j->server->metrics.judge_tokens += (uint64_t)ev->prompt_tokens;
        lt_reply_let_go(j);
    }
}

void lt_group_judged(lt_part *p, const lt_event *ev) {
    lt_reply *j = p->reply;
    lt_group *g = j->group;
    if (g->tournament != NULL) {
        on_match(p, ev);
        return;
    }
    lt_group_text *t = (lt_group_text *)p; /* The part is the struct's first member. */
    lt_group_candidate *k = t->of;
    if (!lt_judge_event(j, ev, &t->score, &g->reward_tokens)) {
        return;
    }
    t->known = true;
    if (t == &k->whole) {
        k->score = t->score;
    }
    if (j->conn != NULL && !j->failed && !k->cut) {
        if (t == &k->whole) {
            settle(&j->parts[0].choices[k - g->candidates], k);
        } else {
            cut_where_due(j);
        }
    }
    lt_reply_let_go(j);
}

/* ---- Rounds ---- */

void lt_group_shape(const lt_group *g, lt_part *p, lt_request *r) {
    p->first_choice = (int32_t)g->from;
    r->first_choice = (int32_t)g->from;
    r->n_choices = g->until - g->from;
}

/* DeepConf's warm-up is over: the fraction eta of it with the highest confidence sets the threshold
 * for all. */
static void set_threshold(lt_reply *j) {
    lt_group *g = j->group;
    double lowest[LT_GROUP_MOST];
    for (int64_t i = 0; i < g->until; i++) {
        lowest[i] = g->candidates[i].score;
    }
    g->least = lt_confidence_threshold(lowest, g->until, j->params.group.eta);
    stop_at_consensus(j);
}

bool lt_group_goes_on(lt_part *p) {
    lt_reply *j = p->reply;
    lt_group *g = j->group;
    lt_api_error e = {0};
    if (!g->method->confidence || j->conn == NULL || j->failed) {
        return false;
    }
    if (g->from == 0) {
        set_threshold(j);
    }
    if (g->until == g->n || g->candidates[g->until].cut) {
        return false;
    }
    g->from = g->until;
    g->until += j->params.group.round < g->n - g->until ? j->params.group.round : g->n - g->until;
    if (!lt_reply_resume(p, &(lt_ids){0}, &e)) {
        lt_reply_fail(j, &e);
        return false;
    }
    return true;
}

/* ---- The end ---- */

bool lt_group_keep(lt_reply *j, lt_api_error *e) {
    lt_group *g = j->group;
    double score[LT_GROUP_MOST], p[LT_GROUP_MOST];
    int32_t answers[LT_GROUP_MOST];
    int64_t index[LT_GROUP_MOST], n = 0, kept = 0;
    lt_metrics *m = &j->server->metrics;
    lt_err err;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->candidates[i].ended && !g->candidates[i].cut) {
            score[n] = g->candidates[i].score;
            answers[n] = vote_of(g, &g->candidates[i]);
            index[n++] = i;
        }
    }
    err = lt_select(g->rule, &g->o, g->rule->groups && !g->scored ? NULL : score, answers, n,
                    g->seed, &g->kept, p);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment", err);
    }
    for (int64_t i = 0; i < n; i++) {
        g->candidates[index[i]].probability = p[i];
    }
    if (n < g->n) { /* Some were cut, so the probabilities of the others are not enough. */
        g->kept.kl = lt_select_kl(g->rule, &g->o, g->n);
    }
    g->kept.chosen = index[g->kept.chosen];
    j->parts[0].choices[g->kept.chosen].index = 0;
    kept = j->parts[0].choices[g->kept.chosen].new_tokens;
    m->group_kept += (uint64_t)kept;
    m->group_dropped += (uint64_t)(lt_reply_new_tokens(j) - kept);
    return true;
}
