/* mirror.c: the phases of mirror.h and their threads; mirror_store.c reads and writes the
 * mirror. */
#include "train/checkpoint/mirror.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "train/checkpoint/mirror_store.h"
#include "train/run.h"

#define TRIES      7 /* Attempts per phase, with waits of 1, 2, ..., 32 s between them. */
#define TICK_S     0.2
#define TOGETHER_S 1.0 /* During a wait, ranks exchange their progress at this interval. */

/* ---- The thread ---- */

typedef lt_err work_of_phase(lt_training *t);
static work_of_phase *const works[] = {[LT_MIRROR_CLEARING] = lt_mirror_store_clear,
                                       [LT_MIRROR_SENDING] = lt_mirror_store_send,
                                       [LT_MIRROR_ENDING] = lt_mirror_store_end};

/* Whether the same work may succeed later, and is still needed. */
static bool is_worth_another(const lt_mirror *m, lt_err err) {
    return err != LT_ERR_REPLACED && err != LT_ERR_INTERRUPTED && !atomic_load(&m->stop) &&
           !atomic_load(&m->hurry) && atomic_load(&m->next) < 0;
}

static void tell_try(const lt_training *t, int wait_s, int left) {
    const char *more = left == 1 ? "y" : "ies";
    const long long step = atomic_load(&t->mirror.step);
    if (lt_ranks_lead(&t->ranks)) {
        lt_log_warn("the checkpoint of step %lld is not in the mirror yet: %s; %d more tr%s, the "
                    "next in %d s",
                    step, lt_error_message(), left, more, wait_s);
    } else { /* The leading rank reports messages below this level. */
        lt_log_error("rank %d: its part of the checkpoint of step %lld is not in the mirror yet: "
                     "%s; %d more tr%s, the next in %d s",
                     t->ranks.rank, step, lt_error_message(), left, more, wait_s);
    }
}

static void wait_before_try(const lt_mirror *m, int wait_s) {
    const double until_s = lt_clock_s() + wait_s;
    const struct timespec tick = {.tv_nsec = (long)(TICK_S * 1e9)};
    while (lt_clock_s() < until_s && is_worth_another(m, LT_OK)) {
        (void)nanosleep(&tick, NULL);
    }
}

static void *work(void *arg) {
    lt_training *t = arg;
    lt_mirror *m = &t->mirror;
    int left = TRIES;
    while ((m->err = works[m->phase](t)) != LT_OK && --left > 0 && is_worth_another(m, m->err)) {
        const int wait_s = 1 << (TRIES - 1 - left);
        tell_try(t, wait_s, left);
        wait_before_try(m, wait_s);
    }
    if (m->err != LT_OK && lt_ranks_lead(&t->ranks)) {
        lt_log_warn("checkpoint.mirror: %s", lt_error_message());
    } else if (m->err != LT_OK) {
        lt_log_error("rank %d: checkpoint.mirror: %s", t->ranks.rank, lt_error_message());
    }
    atomic_store(&m->done, true);
    return NULL;
}

static void end_thread(lt_mirror *m) {
    if (m->has_thread) {
        (void)pthread_join(m->thread, NULL);
        m->has_thread = false;
        m->news = m->err != LT_OK ? LT_MIRROR_FAILED : m->there ? LT_MIRROR_THERE : LT_MIRROR_DONE;
    }
}

/* ---- Phases ---- */

/* Start this rank's thread, if it has work in this phase. */
static lt_err begin_phase(lt_training *t, lt_mirror_phase phase) {
    lt_mirror *m = &t->mirror;
    int e;
    m->phase = phase;
    m->news = LT_MIRROR_DONE;
    m->there = false;
    atomic_store(&m->done, false);
    atomic_store(&m->done_bytes, 0);
    atomic_store(&m->total_bytes, 0);
    if (phase == LT_MIRROR_SENDING ? m->part < 0 : !lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    e = pthread_create(&m->thread, NULL, work, t);
    if (e != 0) {
        LT_FAIL(LT_ERR_OOM, "thread of checkpoint.mirror: %s", strerror(e));
    }
    m->has_thread = true;
    return LT_OK;
}

static lt_err begin_next(lt_training *t) {
    lt_mirror *m = &t->mirror;
    const int64_t step = atomic_load(&m->next);
    if (step < 0) {
        return LT_OK;
    }
    atomic_store(&m->step, step);
    atomic_store(&m->next, -1);
    m->moved_bytes = m->n_retries = 0;
    m->start_s = lt_clock_s();
    return begin_phase(t, LT_MIRROR_CLEARING);
}

/* Report the result. there: nothing had to be sent. */
static lt_err end_step(lt_training *t, bool whole, bool there) {
    lt_mirror *m = &t->mirror;
    const int64_t step = atomic_load(&m->step);
    const double took_s = lt_clock_s() - m->start_s;
    m->phase = LT_MIRROR_IDLE;
    atomic_store(&m->step, -1);
    m->n_sent += whole && !there;
    m->n_failed += !whole;
    m->sent = whole ? step : m->sent;
    if (whole) {
        lt_log_debug("step %lld: checkpoint in %s after %.2f s", (long long)step, m->place, took_s);
    } else {
        lt_log_warn("step %lld: the checkpoint is not in %s; the run goes on (%lld given up so "
                    "far)",
                    (long long)step, m->place, (long long)m->n_failed);
    }
    lt_live_mirrored(t->live, m->sent, m->n_failed);
    if (!there) {
        LT_TRY(lt_metrics_put(
            &t->metrics, json_pack("{s:s, s:I, s:b, s:f, s:I, s:I, s:I}", "kind", "mirror", "step",
                                   (json_int_t)step, "whole", whole, "seconds", took_s, "bytes",
                                   (json_int_t)m->moved_bytes, "retries", (json_int_t)m->n_retries,
                                   "failed", (json_int_t)m->n_failed)));
    }
    return begin_next(t);
}

lt_err lt_mirror_publish(lt_training *t, int64_t step) {
    lt_mirror *m = &t->mirror;
    if (m->place[0] == '\0') {
        return LT_OK;
    }
    atomic_store(&m->next, step);
    return m->phase == LT_MIRROR_IDLE ? begin_next(t) : LT_OK;
}

lt_mirror_news lt_mirror_look(lt_training *t) {
    lt_mirror *m = &t->mirror;
    if (m->has_thread && !atomic_load(&m->done)) {
        return LT_MIRROR_RUNS;
    }
    end_thread(m);
    return m->news;
}

lt_err lt_mirror_advance(lt_training *t, lt_mirror_news news) {
    lt_mirror *m = &t->mirror;
    if (m->phase == LT_MIRROR_IDLE || news == LT_MIRROR_RUNS) {
        return LT_OK;
    }
    if (news == LT_MIRROR_DONE && m->phase != LT_MIRROR_ENDING) {
        return begin_phase(t, m->phase + 1);
    }
    return end_step(t, news != LT_MIRROR_FAILED, news == LT_MIRROR_THERE);
}

/* ---- The end ---- */

/* Show this rank's progress for a second while its thread runs. */
static void watch(lt_training *t, lt_progress *line) {
    const lt_mirror *m = &t->mirror;
    const struct timespec tick = {.tv_nsec = 20000000};
    const double until_s = lt_clock_s() + TOGETHER_S;
    char eta[LT_CLOCK_TEXT_BYTES] = "?";
    while (m->has_thread && !atomic_load(&m->done) && lt_clock_s() < until_s) {
        const double done = (double)atomic_load(&m->done_bytes),
                     total = (double)atomic_load(&m->total_bytes),
                     took_s = lt_clock_s() - m->start_s;
        (void)nanosleep(&tick, NULL);
        if (!lt_ranks_lead(&t->ranks) || total <= 0.0) {
            continue;
        }
        if (done > 0.0) {
            (void)lt_duration_text(eta, took_s * (total - done) / done);
        }
        lt_progress_show(line, "the checkpoint of step %lld goes to %s: %.1f of %.1f MB, %s left",
                         (long long)atomic_load(&m->step), m->place, done * 1e-6, total * 1e-6,
                         eta);
    }
}

lt_err lt_mirror_wait(lt_training *t, bool patient) {
    lt_mirror *m = &t->mirror;
    lt_progress line = {.plain_every_s = t->recipe.plain_every,
                        .next_plain_s = lt_clock_s() + t->recipe.plain_every};
    lt_err err = LT_OK;
    atomic_store(&m->hurry, !patient);
    while (err == LT_OK && m->phase != LT_MIRROR_IDLE) {
        lt_step_record record = {0};
        watch(t, &line);
        record.mirror = lt_mirror_look(t);
        err = lt_ranks_combine(&t->ranks, &record, LT_OK);
        err = err == LT_OK ? lt_mirror_advance(t, (lt_mirror_news)record.mirror) : err;
    }
    lt_progress_end(&line);
    LT_TRY(err);
    if (m->n_sent > 0 || m->n_failed > 0) {
        lt_log_info("mirror: %lld checkpoint%s sent, %lld given up; the newest is step %lld in %s",
                    (long long)m->n_sent, m->n_sent == 1 ? "" : "s", (long long)m->n_failed,
                    (long long)m->sent, m->place);
    }
    return LT_OK;
}

void lt_mirror_close(lt_training *t) {
    atomic_store(&t->mirror.stop, true);
    end_thread(&t->mirror);
}
