/* ahead.h: answers for the next step that are drawn while the trainer learns from those of this one
 * (rl.staleness).
 *
 *     weights    v0 ───────────────── v1 ───────────────── v2
 *     trainer       learns from A1       learns from A2       learns from A3
 *     engine     A1 │ draws A2 with v0   │ draws A3 with v1   │ ...
 *
 * The engine has a copy of the weights that change (all, or the adapters), which is made anew
 * before each draw (lt_objective_open_whole), and threads or a queue of its own. A thread waits
 * for the answers and judges them. So the weights that drew an answer are one update older than
 * those that learn from it, or as many updates as learn from a draw (rl.updates, rl.passes). The
 * importance weights of rl.correction make up for this: the trainer's probability of a token
 * divided by the engine's.
 *
 * RESUMING   Checkpoints hold no answers. So no answers are drawn ahead during the steps of a draw
 *            if a checkpoint is due after one of them (checkpoint.every): the next draw uses its
 *            own weights, whether the run was stopped there or not. A request to stop takes effect
 *            after such a draw. */
#ifndef LT_ALIGN_AHEAD_H
#define LT_ALIGN_AHEAD_H

#include <pthread.h>

#include "align/reinforce.h"
#include "base/error.h"

typedef struct {
    lt_reinforce r; /* Holds the answers that are drawn ahead. */
    pthread_t thread;
    bool pending; /* Answers are being drawn, or were drawn and not yet taken. */
    bool apart;   /* Other ranks with the same questions have a part of them. */
    bool running; /* The thread is drawing, or has ended and was not joined. */
    bool serial;  /* For tests: the draw is done when begin returns. */
    int threads;  /* Number of threads for judging. */
    lt_failure failure;
} lt_ahead;

/* Make room for the answers of one draw of `of`, and share its problems, rewards and engine. Close
 * it also after a failure; close accepts a zeroed struct. */
LT_MUST_USE lt_err lt_ahead_open(lt_ahead *a, const lt_reinforce *of, int threads);
void lt_ahead_close(lt_ahead *a);
/* Begin to draw answers to the questions that follow those of `now`. Until settle or take returns,
 * the caller must not use the engine, its weights or the rewards. */
LT_MUST_USE lt_err lt_ahead_begin(lt_ahead *a, const lt_reinforce *now);
void lt_ahead_wait(lt_ahead *a); /* Waits until the draw has ended. */
/* Waits, then receives the answers of other ranks, in a collective call. The engine is free
 * afterwards. */
void lt_ahead_settle(lt_ahead *a);
/* Settles, then moves the answers to `into`. Returns the failure of the draw. */
LT_MUST_USE lt_err lt_ahead_take(lt_ahead *a, lt_reinforce *into);

#endif
