/* step_draft_chain.c: the drafts of a step on a device (step_draft_model.c). The calls of the draft
 * model are queued one after another: the device chooses each draft token, and the next call reads
 * it from the device, so the host waits only for the last one.
 *
 *     call 1 (each text's last tokens) ─▶ call 2 ─▶ call 3 ...
 *         └─▶ picks: draft tokens 1        └─▶ 2      └─▶ 3
 *                 └─ taken when call 2 is queued, and so on
 *
 * A draft token is chosen with the temperature, the cuts and the random number of its request, so
 * it is the token that the served model would choose if it had the same logits. Penalties and
 * grammars, which depend on tokens that the host does not know yet, are left to the verification.
 * All rows of a call are wanted, so that it can be a recorded one (model/infer/paged_forward.h);
 * most choose nothing. */
#include "base/clock.h"
#include "base/error.h"
#include "serve/engine_impl.h"

void lt_step_draft_how(const lt_job_choice *s, int64_t place, double *how) {
    lt_sampler_args args = lt_job_choice_plain_args(s, s->n_out + place);
    args.n_top = -1;
    lt_sampler_as_op(&args, how);
}

/* Add an item's rows to the call that makes draft tokens `place`: tokens that the draft model has
 * not run, or the draft token of the previous call. */
static void add_item(lt_engine *e, lt_paged_forward_rows *call, const lt_sched_item *item,
                     int64_t place, lt_job_choice **choices) {
    lt_step_drafter *d = &e->drafter;
    const lt_seq *seq = item->seq;
    lt_job_choice *s = seq->owner;
    const int64_t first = place > 0 ? seq->n_tokens + place - 1 : lt_step_draft_known(e, seq);
    const int64_t from = call->n_rows;
    lt_step_draft_rows(e, call, seq, place, first, seq->n_tokens + place - first, false);
    for (int64_t row = from; row < call->n_rows; row++) {
        const bool last = row + 1 == call->n_rows;
        d->rows.out_rows[row] = (int32_t)row;
        d->choose[row] = last;
        choices[row] = last ? s : NULL;
    }
    if (place > 0) {
        d->rows.ids[from] = -1 - s->late;
    }
    s->late = (int32_t)(call->n_rows - 1);
    lt_step_draft_how(s, place, d->how + (call->n_rows - 1) * LT_CHOOSE_HOW_COUNT);
}

/* Draft tokens `place` of the texts; *start_s is the time of the call before. A token that the
 * served model does not have becomes 0, which is verified like any other. The time of a
 * call is not noted if it was recorded, or if the call behind it was. */
static lt_err take(lt_engine *e, int64_t place, int64_t n_rows, lt_job_choice *const *choices,
                   double *start_s) {
    lt_paged_forward_picks picks;
    const double before_s = *start_s;
    LT_TRY(lt_paged_forward_take_picks(e->drafter.forward, &picks));
    for (int64_t row = 0; row < n_rows; row++) {
        const int32_t id = picks.id[row];
        if (choices[row] != NULL) {
            choices[row]->tokens[choices[row]->seq.n_tokens + place] =
                id >= 0 && id < e->spec->vocab_size ? id : 0;
        }
    }
    *start_s = lt_clock_s();
    lt_draft_times_note(&e->drafter.times, e->drafter.recorded ? 0 : n_rows, *start_s - before_s);
    return LT_OK;
}

lt_err lt_step_propose_chain(lt_engine *e) {
    lt_step_drafter *d = &e->drafter;
    lt_job_choice **choices[2] = {d->choices, d->choices + LT_DRAFT_ROWS};
    double start_s = lt_clock_s();
    int64_t n_rows = 0; /* Of the call whose picks have not been taken. */
    for (int64_t place = 0; place <= LT_DRAFT_MOST; place++) {
        lt_paged_forward_rows call = lt_step_draft_call(e);
        for (int64_t i = 0; i < e->sched.n_items; i++) {
            if (lt_step_draft_planned(&e->sched.items[i]) > place) {
                add_item(e, &call, &e->sched.items[i], place, choices[place % 2]);
            }
        }
        if (call.n_rows > 0) {
            call.n_out = call.n_choose = call.n_rows;
            call.choose = d->choose;
            call.how = d->how;
            LT_TRY(lt_paged_forward_run(d->forward, &call));
            LT_TRY(lt_paged_forward_send_picks(d->forward, call.n_rows));
            d->recorded = d->recorded || !lt_paged_forward_usual(d->forward);
        }
        LT_TRY(n_rows > 0 ? take(e, place - 1, n_rows, choices[(place + 1) % 2], &start_s) : LT_OK);
        n_rows = call.n_rows;
        if (n_rows == 0) {
            return LT_OK;
        }
    }
    return LT_OK;
}
