/* diloco.h: a run that is one of several sites (diloco.sites), each with a mesh, data and a run
 * folder of its own. Every `diloco.every` inner steps a round brings their parameters together:
 * outer.h has the arithmetic, sites.h the folder through which they exchange files.
 *
 *   overlap 0     steps ... 100 │ send, wait, outer step, own = outer │ 101 ...
 *   overlap 5     steps ... 100 │ send │ 101 ... 105 │ wait, outer step, merge │ 106 ...
 *
 * The overlapped form is that of Streaming DiLoCo (Douillard et al. 2025, arXiv:2501.18512,
 * algorithm 2): deltas of step t reach the outer optimiser after step t + overlap, and the site's
 * own parameters become merge * own + (1 - merge) * outer. The next delta is the difference to the
 * outer parameters. After the last step of a run there is a round of the whole model without
 * overlap, so at its end all sites have the same parameters: the outer ones.
 *
 *   fragments 2, every 100     ... 50 │ layers 0, 2, ... │ ... 100 │ layers 1, 3, ... │ ... 150
 *
 * With `diloco.fragments` = n each round is of every n-th layer alone, so the link carries the same
 * bytes in smaller pieces. A fragment's round ends before its next one begins. Rounds of other
 * fragments may begin meanwhile, so several are in progress at once; each is merged `overlap` steps
 * after its own beginning:
 *
 *   every 100, overlap 70      50 ├──── layers 0, 2, ... ────┤ 120
 *                                     100 ├──── layers 1, 3, ... ────┤ 170
 *                                                   150 ├──── layers 0, 2, ... ──── ...
 *
 * The batch.size rows of a step are divided among all ranks of all sites. Each site has an inner
 * optimiser of its own, whose moments are never sent.
 *
 * STATE    outer parameters and momentum are buffers of the optimiser (optimiser.h), divided and
 *          saved as moments are; lt_run_state.outer_step is the newest round that they include. A
 *          checkpoint is written only when this site's files of the rounds in progress are on disk,
 *          so that a run that resumes finds them there. Rounds end in the order in which they
 *          began, so those in progress lie between outer_step and the step of the run.
 * ABSENCE  A site without which the others have gone on takes their newest outer parameters and
 *          goes on at their step, without the steps and rows in between. Its own later rounds that
 *          have begun go on. A site that starts late does the same.
 * STOP     A stop request ends the wait for a round. The run is saved as it is, and the next start
 *          finishes the round. */
#ifndef LT_TRAIN_DILOCO_H
#define LT_TRAIN_DILOCO_H

#include "parallel/sites.h"
#include "parallel/world.h"
#include "train/optimiser.h"

struct lt_training;

typedef struct {
    bool on;
    /* Rounds in progress: n_under, starting at flights[oldest] and wrapping around. The first place
     * has room for the whole model, the others for the largest fragment. */
    lt_sites *flights; /* (n_flights) */
    int n_flights, oldest, n_under;
    lt_outer_state state;
    /* Ranks that hold the same parameters as their member 0, which exchanges them; NULL: only this
     * one. */
    lt_group *same;
    /* On the host: for a sum and, if the model is on a device, three more copies of the largest
     * parameter. */
    float *room;
    size_t bytes; /* Bytes of `room` and of the own files. */
    /* Rounds of this process, for all ranks of the site. */
    int64_t n_rounds;
    double sent_bytes, received_bytes, waited_s;
} lt_diloco;

/* Write into the recipe which site this is, its run folder, and the folder through which sites
 * exchange files; the world must be open. ARG: it is not known which site this is. */
LT_MUST_USE lt_err lt_diloco_place(lt_recipe *r, const lt_world *w);
/* The optimiser is open. */
LT_MUST_USE lt_err lt_diloco_open(struct lt_training *t);
void lt_diloco_close(struct lt_training *t);

/* Collective calls of the site's ranks. join: after opening and resuming, before the first step;
 * finishes a round that a stop interrupted, and brings a site that comes late to the others' step.
 * follow: after the update of a step and before weights are gathered; *changed: it has changed the
 * weights. *stop: a stop was requested while it waited. */
LT_MUST_USE lt_err lt_diloco_join(struct lt_training *t);
LT_MUST_USE lt_err lt_diloco_follow(struct lt_training *t, int64_t step, bool *changed, int *stop);
/* Whether a round may end after this step. If so, weights and the next step's number may differ
 * from those after the update. */
bool lt_diloco_is_due(const struct lt_training *t, int64_t step);
/* Whether the run was stopped while a round was in progress that its last step needs. */
bool lt_diloco_waits(const struct lt_training *t);
/* Called before a checkpoint: waits until this site's files of the rounds in progress are on
 * disk. */
LT_MUST_USE lt_err lt_diloco_settle(struct lt_training *t);
void lt_diloco_tell_end(const struct lt_training *t);

#endif
