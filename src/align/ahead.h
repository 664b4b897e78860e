/* ahead.h: answers for the next step that are drawn while the trainer learns from those of this one
 * (rl.staleness).
 *
 *     weights    v0 ───────────────── v1 ───────────────── v2
 *     trainer       learns from A1       learns from A2       learns from A3
 *     engine     A1 │ draws A2 with v0   │ draws A3 with v1   │ ...
 *
 * The engine has weights of its own, a copy that is made anew before each draw
 * (lt_objective_open_whole), and threads of its own. A thread waits for the answers and judges
 * them. So answers are one update older than the weights that learn from them, and the weights of
 * rl.correction make up for it: the trainer's probability of a token by the engine's.
 *
 * RESUMING   Answers are not kept in checkpoints. During a step after which a checkpoint is due
 * (checkpoint.every) none are drawn ahead: the next step draws with its own weights, whether the
 * run was stopped there or not. A stop waits for such a step. */
#ifndef LT_ALIGN_AHEAD_H
#define LT_ALIGN_AHEAD_H

#include <pthread.h>

#include "align/reinforce.h"
#include "base/error.h"

typedef struct {
    lt_reinforce r; /* Holds the answers that are drawn ahead. */
    pthread_t thread;
    bool pending; /* Answers are drawn, or were drawn, and nobody has taken them. */
    bool apart;   /* Of these, other ranks of the same questions have a part. */
    bool running; /* The thread draws them, or has ended and was not joined. */
    bool serial;  /* For tests: the draw is done when begin returns. */
    int threads;  /* For judging. */
    lt_failure failure;
} lt_ahead;

/* Room for the answers of a draw of `of`, whose problems, rewards and engine it shares. Close it
 * also after a failure; a zeroed one is closed. */
LT_MUST_USE lt_err lt_ahead_open(lt_ahead *a, const lt_reinforce *of, int threads);
void lt_ahead_close(lt_ahead *a);
/* Draw answers to the questions that follow those of `now`. Until settle or take returns, nobody
 * else uses the engine, its weights and the rewards. */
LT_MUST_USE lt_err lt_ahead_begin(lt_ahead *a, const lt_reinforce *now);
void lt_ahead_wait(lt_ahead *a); /* Waits until nothing is drawn. */
/* The same, and gets the answers of other ranks, a collective call of them: the engine is free. */
void lt_ahead_settle(lt_ahead *a);
/* The same, and the answers become those of `into`. Returns the failure of the draw. */
LT_MUST_USE lt_err lt_ahead_take(lt_ahead *a, lt_reinforce *into);

#endif
