/* beam.c: see beam.h. */
#include "serve/beam.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void lt_logprobs_carve(lt_logprobs *l, int64_t n, int n_top, bool entropy, lt_arena *a) {
    *l = (lt_logprobs){0};
    if (n_top >= 0) {
        l->logprob = lt_arena_take(a, (size_t)n * sizeof *l->logprob, 8);
        l->n_top = lt_arena_take(a, (size_t)n * sizeof *l->n_top, 8);
        l->rank = lt_arena_take(a, (size_t)n * sizeof *l->rank, 8);
        l->top = lt_arena_take(a, (size_t)(n * n_top) * sizeof *l->top, 8);
        l->entropy = entropy ? lt_arena_take(a, (size_t)n * sizeof *l->entropy, 8) : NULL;
    }
}

void lt_logprobs_tell(const lt_logprobs *l, int64_t at, int n_top, lt_event *e) {
    if (l->logprob == NULL) {
        return;
    }
    e->logprob = l->logprob[at];
    e->entropy = l->entropy != NULL ? l->entropy[at] : 0;
    e->n_top = l->n_top[at];
    e->rank = l->rank[at];
    for (int i = 0; i < e->n_top; i++) {
        e->top[i].id = l->top[at * n_top + i].id;
        e->top[i].logprob = l->top[at * n_top + i].p;
    }
}

void lt_output_put(lt_output *o, int64_t at, int n_top, const lt_pick *pick, uint64_t version) {
    o->tokens[at] = pick->id;
    o->versions[at] = version;
    if (o->logprobs.logprob != NULL) {
        const int n = pick->n_top < n_top ? pick->n_top : n_top;
        o->logprobs.logprob[at] = pick->logprob;
        o->logprobs.n_top[at] = n;
        o->logprobs.rank[at] = pick->rank;
        if (o->logprobs.entropy != NULL) {
            o->logprobs.entropy[at] = pick->entropy;
        }
        memcpy(o->logprobs.top + at * n_top, pick->top, (size_t)n * sizeof *pick->top);
    }
}

void lt_output_copy(lt_output *to, const lt_output *from, int64_t n, int n_top) {
    memcpy(to->tokens, from->tokens, (size_t)n * sizeof *to->tokens);
    memcpy(to->versions, from->versions, (size_t)n * sizeof *to->versions);
    if (to->logprobs.logprob != NULL) {
        memcpy(to->logprobs.logprob, from->logprobs.logprob, (size_t)n * sizeof(float));
        memcpy(to->logprobs.n_top, from->logprobs.n_top, (size_t)n * sizeof(int32_t));
        memcpy(to->logprobs.rank, from->logprobs.rank, (size_t)n * sizeof(int32_t));
        memcpy(to->logprobs.top, from->logprobs.top, (size_t)(n * n_top) * sizeof(lt_candidate));
    }
}

int lt_beam_candidates(const lt_request *r, int64_t n_endings) {
    const int64_t n = r->n_choices + n_endings;
    return n < INT32_MAX ? (int)n : INT32_MAX;
}

void lt_beam_carve(lt_beam *b, const lt_request *r, int64_t n_endings, lt_arena *a) {
    const size_t width = (size_t)r->n_choices;
    b->how = r->beam;
    b->width = (int)r->n_choices;
    b->n_top = lt_beam_candidates(r, n_endings);
    b->live = lt_arena_take(a, width * sizeof *b->live, 8);
    b->ready = lt_arena_take(a, width * sizeof *b->ready, 8);
    b->sums = lt_arena_take(a, width * sizeof *b->sums, 8);
    b->picks = lt_arena_take(a, width * sizeof *b->picks, 8);
    b->all = lt_arena_take(a, width * (size_t)b->n_top * sizeof *b->all, 8);
    b->next = lt_arena_take(a, width * sizeof *b->next, 8);
    b->places = lt_arena_take(a, width * sizeof *b->places, 8);
    b->texts = lt_arena_take(a, width * sizeof *b->texts, 8);
    for (size_t i = 0; i < width; i++) {
        lt_beam_text dummy, *t = b->texts != NULL ? &b->texts[i] : &dummy;
        t->output.tokens = lt_arena_take(a, (size_t)r->max_tokens * sizeof(int32_t), 8);
        t->output.versions = lt_arena_take(a, (size_t)r->max_tokens * sizeof(uint64_t), 8);
        lt_logprobs_carve(&t->output.logprobs, r->max_tokens, r->logprobs, false, a);
    }
}

/* Higher sums first; of equal ones the lower beam, then the lower id. */
static int by_sum(const void *a, const void *b) {
    const lt_beam_next *x = a, *y = b;
    return x->sum != y->sum     ? (x->sum < y->sum) - (x->sum > y->sum)
           : x->beam != y->beam ? (x->beam > y->beam) - (x->beam < y->beam)
                                : (x->id > y->id) - (x->id < y->id);
}

void lt_beam_order(lt_beam *b) {
    b->n_all = b->n_next = 0;
    for (int32_t i = 0; i < b->width; i++) {
        for (int k = 0; b->live[i] && k < b->picks[i].n_top; k++) {
            const lt_candidate *c = &b->picks[i].top[k];
            b->all[b->n_all++] = (lt_beam_next){b->sums[i] + (double)c->p, i, c->id, c->p};
        }
    }
    qsort(b->all, (size_t)b->n_all, sizeof *b->all, by_sum);
}

lt_beam_text *lt_beam_add_text(lt_beam *b, double sum, int64_t n) {
    const double score = sum / pow((double)n, b->how.length_penalty);
    int at = b->n_texts;
    lt_beam_text last;
    if (at == b->width && !(score > b->texts[at - 1].score)) {
        return NULL;
    }
    at -= at == b->width; /* The worst text is dropped, and its memory is reused. */
    b->n_texts = at + 1;
    last = b->texts[at];
    while (at > 0 && score > b->texts[at - 1].score) {
        b->texts[at] = b->texts[at - 1];
        at--;
    }
    b->texts[at] = last;
    b->texts[at].score = score;
    b->texts[at].n = n;
    return &b->texts[at];
}

bool lt_beam_done(const lt_beam *b, int64_t n, int64_t max_tokens) {
    const double penalty = b->how.length_penalty;
    const int64_t length = b->how.stop == LT_BEAM_NEVER && penalty > 0 ? max_tokens : n;
    if (b->n_next == 0) {
        return true;
    }
    return b->n_texts == b->width &&
           (b->how.stop == LT_BEAM_FIRST ||
            !(b->next[0].sum / pow((double)length, penalty) > b->texts[b->width - 1].score));
}
