/* record.c: see record.h. */
#include "train/record.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

/* In nats. A gradient of exactly 0 is correct after everything has been learnt. */
#define DEAD_LOSS 1e-3

const char *lt_stop_text(int stop) {
    return stop == LT_STOP_FILE ? "the file named exit" : strsignal(stop);
}

void lt_step_record_combine(lt_step_record *into, const lt_step_record *other) {
#define COMBINE_SUM(a, b)        ((a) + (b))
#define COMBINE_MAX(a, b)        ((a) > (b) ? (a) : (b))
#define COMBINE(name, how, help) into->name = COMBINE_##how(into->name, other->name);
    LT_STEP_RECORD_MAP(COMBINE)
    for (int i = 0; i < LT_OBJECTIVE_SUMS; i++) {
        into->objective[i] = COMBINE_SUM(into->objective[i], other->objective[i]);
    }
    for (int i = 0; i < LT_OBJECTIVE_MOST; i++) {
        into->most[i] = COMBINE_MAX(into->most[i], other->most[i]);
    }
#undef COMBINE
#undef COMBINE_MAX
#undef COMBINE_SUM
}

lt_err lt_ranks_combine(const lt_ranks *r, lt_step_record *record, lt_err err) {
    lt_failure own;
    record->ranks = 1.0;
    record->error = (double)err;
    if (r->combine == NULL) {
        return err;
    }
    lt_failure_keep(&own, err);
    const lt_err failed = r->combine(r->of, record);
    /* The others may have ended the world before this rank received all records. */
    if (err != LT_OK) {
        return lt_failure_raise(&own);
    }
    LT_TRY(failed);
    if (record->error != 0.0) {
        LT_FAIL(LT_ERR_REMOTE, "another rank failed: %s", lt_err_text((lt_err)record->error));
    }
    return LT_OK;
}

static bool is_due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

void lt_step_decide(lt_step_decision *d, const lt_step_record *r, const lt_step_facts *f) {
    const lt_recipe *recipe = f->recipe;
    const double scale = r->weight_sum != 0.0 ? 1.0 / r->weight_sum / f->summed_scale : 0.0;

    *d = (lt_step_decision){.grad_scale = scale};
    d->loss = r->weight_sum != 0.0 ? r->loss_sum / r->weight_sum : 0.0;
    d->grad_norm = sqrt(r->sumsq) * fabs(scale);
    d->apply = lt_guard_allows(f->guard, d->loss, d->grad_norm, d->why, sizeof d->why);
    d->dead = d->grad_norm == 0.0 && d->loss > DEAD_LOSS;
    d->give_up = !d->apply && f->guard->skipped_in_a_row + 1 >= recipe->guard_limit;
    if (recipe->clip > 0.0 && d->grad_norm > recipe->clip) {
        d->grad_scale *= recipe->clip / d->grad_norm;
    }
    d->validate = is_due(f->step, recipe->eval_every);
    d->sample = is_due(f->step, recipe->sample_every);
    d->save = f->save_late || is_due(f->step, recipe->save_every);
    d->save_late = d->save && !f->whole;
    d->save = d->save && f->whole;
    /* After the last step there is nothing to stop. */
    d->stop = f->step < recipe->steps && f->whole ? (int)r->stop : 0;
}

void lt_publish_decide(lt_publish_decision *d, const lt_step_record *probe, const lt_guard *guard,
                       bool dead) {
    *d = (lt_publish_decision){.publish = guard->not_finite_in_a_row == 0};
    if (!d->publish) {
        return;
    }
    d->loss = probe->rows == 0.0         ? 0.0 /* No step has been taken yet. */
              : probe->weight_sum != 0.0 ? probe->loss_sum / probe->weight_sum
                                         : lt_guard_recent(guard);
    d->publish = isfinite(d->loss);
    d->suspect = dead || lt_guard_suspects(guard, d->loss);
}
