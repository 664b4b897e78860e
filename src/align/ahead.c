/* ahead.c: see ahead.h. */
#include "align/ahead.h"

#include "base/thread.h"

lt_err lt_ahead_open(lt_ahead *a, const lt_reinforce *of, int threads) {
    a->threads = threads;
    LT_TRY(lt_reinforce_open(&a->r, &of->o, of->problems, of->rewards, &of->answerer));
    a->r.curriculum = of->curriculum;
    return LT_OK;
}

void lt_ahead_close(lt_ahead *a) {
    lt_ahead_wait(a);
    lt_reinforce_close(&a->r);
    *a = (lt_ahead){.pending = false};
}

/* Draw on the thread. If other ranks have the same questions, it draws only this rank's share,
 * because only the trainer's thread may call other ranks. */
static lt_err draw_apart(lt_reinforce *r) {
    return r->o.sharers != NULL ? lt_reinforce_draw_own(r) : lt_reinforce_draw(r);
}

static void *draw(void *of) {
    lt_ahead *a = of;
    lt_thread_set_count(a->threads);
    lt_failure_keep(&a->failure, draw_apart(&a->r));
    return NULL;
}

lt_err lt_ahead_begin(lt_ahead *a, const lt_reinforce *now) {
    LT_ASSERT(!a->pending);
    a->r.asked = now->asked;
    a->r.done = now->done + lt_reinforce_steps_a_draw(now);
    a->pending = true;
    a->apart = a->r.o.sharers != NULL;
    if (a->serial) {
        lt_failure_keep(&a->failure, draw_apart(&a->r));
        return LT_OK;
    }
    if (pthread_create(&a->thread, NULL, draw, a) != 0) {
        a->pending = a->apart = false;
        LT_FAIL(LT_ERR_OOM, "a thread that draws answers ahead");
    }
    a->running = true;
    return LT_OK;
}

void lt_ahead_wait(lt_ahead *a) {
    if (a->running) {
        (void)pthread_join(a->thread, NULL);
        a->running = false;
    }
}

void lt_ahead_settle(lt_ahead *a) {
    lt_ahead_wait(a);
    if (a->apart) {
        a->apart = false;
        lt_failure_keep(&a->failure,
                        lt_reinforce_draw_others(&a->r, lt_failure_raise(&a->failure)));
    }
}

lt_err lt_ahead_take(lt_ahead *a, lt_reinforce *into) {
    const lt_reinforce before = *into;
    LT_ASSERT(a->pending);
    lt_ahead_settle(a);
    a->pending = false;
    LT_TRY(lt_failure_raise(&a->failure));
    into->drawn = a->r.drawn;
    into->parts = a->r.parts;
    into->draw = a->r.draw;
    into->asked = a->r.asked;
    into->chosen = a->r.chosen;
    a->r.drawn = before.drawn;
    a->r.parts = before.parts;
    a->r.chosen = before.chosen;
    return LT_OK;
}
