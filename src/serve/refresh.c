/* refresh.c: the engine at rest while its weights change (lateen/serve.h, "Weights that change").
 *
 *     RUNNING ──hold──▶ coming to rest ──no step is on its way──▶ AT REST ──refresh──▶ RUNNING
 *                         FINISH: requests submitted before end       │ ▲
 *                         PREEMPT: running ones wait again            └─┘ cancellations, arrivals
 *
 * hold sets e->hold under the lock and waits for e->at_rest. The engine's thread sees the hold when
 * it takes in what was submitted (step.c), so it has all requests submitted before the hold; later
 * ones, recognised by their ids, are held back. It then runs until there is nothing to do or, for
 * PREEMPT, collects the steps in flight and preempts all sequences. Then it waits (lt_engine_rest):
 * nothing is queued, no page is held, no weight is read. The refresh itself also runs on the
 * engine's thread, which alone uses the forward pass and the pages; the caller waits for it. The
 * thread stops waiting and clears at_rest in one critical section, so that the next hold cannot
 * mistake this rest for its own. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "serve/engine_impl.h"

lt_err lt_engine_hold(lt_engine *e, lt_hold how) {
    if (e->disk.disk != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "the engine has a cache on disk, whose pages are of its weights: "
                "they cannot change");
    }
    pthread_mutex_lock(&e->lock);
    if (e->hold != LT_HOLD_NONE) {
        pthread_mutex_unlock(&e->lock);
        LT_FAIL(LT_ERR_ARG, "the engine is held already");
    }
    e->hold = how == LT_HOLD_PREEMPT ? LT_HOLD_TO_PREEMPT : LT_HOLD_TO_FINISH;
    e->hold_last_id = e->n_ids;
    pthread_cond_signal(&e->wake);
    while (!e->at_rest) {
        pthread_cond_wait(&e->rested, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return LT_OK;
}

lt_err lt_engine_refresh(lt_engine *e, uint64_t *version) {
    char why[sizeof e->refresh_message];
    lt_err err = LT_OK;
    pthread_mutex_lock(&e->lock);
    if (!e->at_rest) {
        pthread_mutex_unlock(&e->lock);
        LT_FAIL(LT_ERR_ARG, "the engine is not held, so its weights cannot be refreshed");
    }
    e->refresh = true;
    pthread_cond_signal(&e->wake);
    while (e->refresh) {
        pthread_cond_wait(&e->rested, &e->lock);
    }
    err = e->refresh_err;
    memcpy(why, e->refresh_message, sizeof why);
    if (version != NULL) {
        *version = e->stats.version;
    }
    pthread_mutex_unlock(&e->lock);
    if (err != LT_OK) {
        LT_FAIL(err, "%s", why);
    }
    return LT_OK;
}

void lt_step_preempt_all(lt_engine *e) {
    for (const lt_seq *seq = e->sched.running.first; seq != NULL; seq = seq->next) {
        const lt_job_choice *s = seq->owner;
        if (!s->job->forked) {
            lt_job_begin_again(s->job, e->spec->width);
        }
    }
    lt_sched_preempt_all(&e->sched);
}

/* Discard everything derived from older weights. */
static lt_err refresh(lt_engine *e) {
    bool changed = false;
    LT_TRY(lt_paged_forward_refresh(e->forward, &changed));
    if (changed) {
        lt_pages_forget(&e->sched.pages);
        lt_engine_forget_host(e);
        e->version = lt_model_version(e->model);
        lt_log_debug("engine: runs on version %llu of its weights", (unsigned long long)e->version);
    }
    return LT_OK;
}

/* Called with the lock held, which is released during the work. */
static void answer_refresh(lt_engine *e) {
    lt_err err;
    pthread_mutex_unlock(&e->lock);
    err = refresh(e);
    pthread_mutex_lock(&e->lock);
    e->refresh_err = err;
    (void)snprintf(e->refresh_message, sizeof e->refresh_message, "%s",
                   err != LT_OK ? lt_error_message() : "");
    e->stats.version = e->version;
    e->refresh = false;
    if (err == LT_OK) {
        e->hold = LT_HOLD_NONE;
        e->at_rest = false;
    }
    pthread_cond_broadcast(&e->rested);
}

bool lt_engine_rest(lt_engine *e) {
    bool rested;
    pthread_mutex_lock(&e->lock);
    rested = e->at_rest = e->taken_hold != LT_HOLD_NONE && !e->closing;
    pthread_cond_broadcast(&e->rested);
    while (e->at_rest && !e->closing) {
        if (e->refresh && e->n_lent == 0) {
            answer_refresh(e);
        } else if (e->submitted != NULL || e->cancelled != NULL || e->questions != NULL) {
            pthread_mutex_unlock(&e->lock);
            (void)lt_engine_step(e);
            pthread_mutex_lock(&e->lock);
        } else {
            pthread_cond_wait(&e->wake, &e->lock);
        }
    }
    pthread_mutex_unlock(&e->lock);
    return rested;
}
