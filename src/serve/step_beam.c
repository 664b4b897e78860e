/* step_beam.c: beam search in the engine's steps (beam.h decides, this moves sequences).
 *
 *     the prompt's last row ─▶ candidates of beam 0 ─▶ up to `width` beams, forked from it
 *     a row of each beam ─▶ ... when all have come: order them, then
 *         a beam of which no candidate is kept   ─▶ its pages are dropped
 *         the first kept candidate of a beam     ─▶ the beam goes on in place
 *         each further one                       ─▶ a fork of the beam, in a free place
 *
 * A beam whose candidates have come waits for the others without running. The beams of a search
 * have neighbouring places in the scheduler's order (lt_seq.family), so while one of them waits for
 * pages, no later sequence keeps them: lt_sched_unblock. The request's tokens are public at its
 * end. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/engine_impl.h"

static lt_output output_of(const lt_job_choice *s) {
    return (lt_output){s->tokens + s->job->r.n_prompt, s->logprobs, s->versions};
}

/* The candidate as a pick, with the requested alternatives. */
static lt_pick pick_of(const lt_beam *b, const lt_beam_next *x) {
    lt_pick pick = b->picks[x->beam];
    pick.id = x->id;
    pick.logprob = x->logprob;
    return pick;
}

static void keep_text(lt_engine *e, lt_job *j, const lt_beam_next *x, lt_finish finish) {
    const lt_job_choice *s = &j->choices[x->beam];
    const lt_output from = output_of(s);
    const lt_pick pick = pick_of(j->beam, x);
    lt_beam_text *text = lt_beam_add_text(j->beam, x->sum, s->n_out + 1);
    if (text != NULL) {
        text->finish = finish;
        lt_output_copy(&text->output, &from, s->n_out, j->r.logprobs);
        lt_output_put(&text->output, s->n_out, j->r.logprobs, &pick, e->version);
    }
}

/* The search is done: its texts become those of the choices. */
static void finish(lt_engine *e, lt_job *j) {
    const lt_beam *b = j->beam;
    for (int i = 0; i < b->n_texts; i++) {
        const lt_beam_text *text = &b->texts[i];
        lt_job_choice *s = &j->choices[i];
        lt_output to = output_of(s);
        lt_output_copy(&to, &text->output, text->n, j->r.logprobs);
        s->n_out = text->n;
    }
    for (int i = 0; i < b->width; i++) {
        const bool there = i < b->n_texts;
        lt_step_finish(e, &j->choices[i], there ? b->texts[i].finish : LT_FINISH_FAILED,
                       there ? LT_OK : LT_ERR_NUMERIC);
    }
}

/* A choice that no beam has, for a fork. */
static lt_job_choice *free_choice(lt_job *j) {
    for (int i = 0; i < j->beam->width; i++) {
        if (!j->beam->live[i]) {
            return &j->choices[i];
        }
    }
    LT_ASSERT(!"more beams than the width");
    return NULL;
}

static void fork_beam(lt_engine *e, lt_job *j, const lt_job_choice *from, lt_job_choice *to) {
    const lt_output source = output_of(from);
    lt_output copy = output_of(to);
    lt_output_copy(&copy, &source, from->n_out, j->r.logprobs);
    to->n_out = from->n_out;
    to->seq.n_tokens = from->seq.n_tokens;
    to->started = true;
    to->seq.fresh = false;
    if (from->seq.state != LT_SEQ_RUNNING || !lt_sched_fork(&e->sched, &from->seq, &to->seq)) {
        lt_sched_add(&e->sched, &to->seq);
    }
}

/* Assign the next beams to choices; choices without a beam end, then the others fork. */
static void move_beams(lt_engine *e, lt_job *j) {
    lt_beam *b = j->beam;
    /* Whether a beam of the next step continues in this choice. Valid until this function ends. */
    memset(b->ready, 0, (size_t)b->width * sizeof *b->ready);
    for (int k = 0; k < b->n_next; k++) {
        const int32_t beam = b->next[k].beam;
        b->places[k] = b->ready[beam] ? -1 : beam;
        b->ready[beam] = true;
    }
    for (int i = 0; i < b->width; i++) {
        if (b->live[i] && !b->ready[i]) {
            lt_sched_remove(&e->sched, &j->choices[i].seq);
            b->live[i] = false;
        }
    }
    for (int k = 0; k < b->n_next; k++) {
        if (b->places[k] < 0) {
            lt_job_choice *to = free_choice(j);
            b->places[k] = to->index;
            b->live[to->index] = true;
            fork_beam(e, j, &j->choices[b->next[k].beam], to);
        }
    }
    memset(b->ready, 0, (size_t)b->width * sizeof *b->ready);
}

static void append_tokens(lt_engine *e, lt_job *j) {
    lt_beam *b = j->beam;
    for (int k = 0; k < b->n_next; k++) {
        lt_job_choice *s = &j->choices[b->places[k]];
        const lt_pick pick = pick_of(b, &b->next[k]);
        lt_output to = output_of(s);
        lt_output_put(&to, s->n_out, j->r.logprobs, &pick, e->version);
        s->n_out++;
        s->seq.n_tokens++;
        b->sums[b->places[k]] = b->next[k].sum;
        e->n_new_tokens++;
    }
    for (int k = 0; k < b->n_next; k++) {
        lt_seq *seq = &j->choices[b->places[k]].seq;
        if (seq->state == LT_SEQ_RUNNING) {
            lt_sched_learn(&e->sched, seq);
        }
    }
}

/* All beams have n tokens. */
static void advance(lt_engine *e, lt_job *j, int64_t n) {
    lt_beam *b = j->beam;
    lt_beam_order(b);
    for (int i = 0; i < b->n_all && b->n_next < b->width; i++) {
        const lt_finish ending = lt_job_ending(j, b->all[i].id);
        const lt_finish why = ending == LT_FINISH_NONE && n + 1 == j->r.max_tokens
                                  ? LT_FINISH_LENGTH
                                  : ending;
        if (why == LT_FINISH_NONE) {
            b->next[b->n_next++] = b->all[i];
        } else if (i < b->width) {
            keep_text(e, j, &b->all[i], why);
        }
    }
    if (lt_beam_done(b, n + 1, j->r.max_tokens)) {
        finish(e, j);
        return;
    }
    move_beams(e, j);
    append_tokens(e, j);
}

void lt_step_beam(lt_engine *e, lt_job_choice *s, const lt_pick *pick) {
    lt_job *j = s->job;
    lt_beam *b = j->beam;
    b->picks[s->index] = *pick;
    b->live[s->index] = b->ready[s->index] = true; /* Beam 0, at first. */
    if (j->first_s == 0.0) {
        j->first_s = lt_clock_s();
    }
    for (int i = 0; i < b->width; i++) {
        if (b->live[i] && !b->ready[i]) {
            return;
        }
    }
    advance(e, j, s->n_out);
    lt_step_touch(e, j);
}
