/* health.c: what a run publishes when its numbers go wrong, and what it goes on from.
 *
 * At a checkpoint:
 *     the last step's loss or gradient is not finite       save at the next step at which they are
 *     the weights' loss on the step's rows is not finite   the same
 *     a weight or a moment is not finite                   publish nothing and end the run, because
 *                                                          such a number never goes away
 *     finite, but far above the best, or a gradient of 0   publish as suspect; keep the newest good
 *                                                          checkpoint
 * At the end, after guard.limit skipped updates in a row or one of the above: the message names the
 * newest good checkpoint and RUN/diverged.json records it. The next start resumes from it and
 * renames newer ones to step-N.left.
 *
 * The loss of step N + 1 is the first that depends on the weights of step N, so the weights of a
 * checkpoint are checked by a forward pass of their own. If updates were skipped because nothing
 * was finite, the run does not resume from checkpoints that hold these same weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "train/run.h"

#define NOTE_BYTES_MAX ((size_t)1 << 16)

lt_err lt_training_judge(lt_training *t, bool *publish) {
    lt_publish_decision d;
    lt_step_record probe = {0};
    int64_t last_good = -1;

    if (t->guard.not_finite_in_a_row == 0) {
        LT_TRY(lt_training_probe(t, &probe));
    }
    lt_publish_decide(&d, &probe, &t->guard, t->dead);
    *publish = d.publish;
    if (!d.publish) {
        if (!t->save_late) {
            lt_log_warn("step %lld: no checkpoint while the loss is not finite",
                        (long long)t->state.step);
        }
        return LT_OK;
    }
    LT_TRY(lt_checkpoint_newest(&last_good, t->checkpoints, INT64_MAX, true));
    t->state.loss = d.loss;
    t->state.suspect = d.suspect;
    if (d.suspect) {
        lt_log_warn("step %lld: loss %.4g%s, the best was %.4g: the run seems to have diverged; %s",
                    (long long)t->state.step, d.loss, t->dead ? " and a gradient of 0" : "",
                    t->guard.best,
                    last_good >= 0 ? "the last good checkpoint stays beside this one"
                                   : "there is no good checkpoint");
    } else {
        lt_guard_note_good(&t->guard);
    }
    return LT_OK;
}

static lt_err note_path(char path[LT_PATH_BYTES], const lt_training *t) {
    return lt_path_join(path, t->recipe.out, "diverged.json");
}

static lt_err write_note(const lt_training *t, int64_t go_on_from, const char *why) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    json_t *note = json_pack("{s:I, s:s, s:I}", "step", (json_int_t)t->state.step, "why", why,
                             "go_on_from", (json_int_t)go_on_from);
    char *text = note != NULL ? json_dumps(note, JSON_INDENT(1)) : NULL;

    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "note of what to go on from");
    }
    LT_TRY_DONE(note_path(path, t));
    LT_TRY_DONE(lt_lease_write(&t->lease, path, text, strlen(text)));
done:
    json_decref(note);
    free(text);
    return err;
}

/* Find the newest good checkpoint that does not have the failed weights; if there is none, the
 * newest finite one. -1: none. */
static lt_err find_way_back(const lt_training *t, int64_t *step, bool *good) {
    const int64_t before = t->guard.not_finite_in_a_row > 0 ? t->applied_step : INT64_MAX;
    LT_TRY(lt_checkpoint_newest(step, t->checkpoints, before, true));
    *good = *step >= 0;
    return *good ? LT_OK : lt_checkpoint_newest(step, t->checkpoints, before, false);
}

lt_err lt_training_give_up(lt_training *t) {
    char why[1024], path[LT_PATH_BYTES];
    int64_t step = -1;
    bool good = false;

    snprintf(why, sizeof why, "%s", lt_error_message());
    lt_saver_settle(t);
    LT_TRY(find_way_back(t, &step, &good));
    LT_TRY(write_note(t, step, why));
    LT_TRY(lt_metrics_put(&t->metrics, json_pack("{s:s, s:I, s:s, s:I}", "kind", "diverged", "step",
                                                 (json_int_t)t->state.step, "why", why,
                                                 "go_on_from", (json_int_t)step)));
    if (step < 0) {
        LT_FAIL(LT_ERR_NUMERIC,
                "%s: lower optim.lr, or check the data. There is no earlier checkpoint: start "
                "again with another --out",
                why);
    }
    LT_TRY(lt_checkpoint_path(path, t->checkpoints, step));
    if (!good) {
        LT_FAIL(LT_ERR_NUMERIC,
                "%s: lower optim.lr, or check the data. No checkpoint is good: the newest with "
                "finite numbers, %s, had diverged already. The same command continues from it; it "
                "is better to start again with another --out",
                why, path);
    }
    LT_FAIL(LT_ERR_NUMERIC,
            "%s: lower optim.lr, or check the data. The last good checkpoint is %s: the same "
            "command with a smaller --optim.lr continues from it",
            why, path);
}

lt_err lt_training_find_back(lt_training *t) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    int64_t step = -1, newest = -1;
    json_t *note = NULL;

    t->back_to = INT64_MAX;
    LT_TRY(note_path(path, t));
    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_json_load(&note, path, NOTE_BYTES_MAX));
    LT_TRY_DONE(lt_json_i64(note, "go_on_from", &step, false, path));
    LT_TRY_DONE(lt_checkpoint_newest(&newest, t->checkpoints, INT64_MAX, false));
    if (step < 0 && newest >= 0) {
        LT_FAIL_DONE(LT_ERR_STATE,
                     "%s: the run diverged, and its checkpoints hold the failed weights: start "
                     "again with another --out, or choose one with --resume FOLDER",
                     path);
    }
    t->back_to = step;
done:
    json_decref(note);
    return err;
}

lt_err lt_training_go_back(lt_training *t) {
    char path[LT_PATH_BYTES];
    int64_t newest = -1;
    if (t->back_to == INT64_MAX) {
        return LT_OK;
    }
    LT_TRY(note_path(path, t));
    LT_TRY(lt_lease_check(&t->lease));
    LT_TRY(lt_checkpoint_newest(&newest, t->checkpoints, INT64_MAX, false));
    if (newest > t->back_to) {
        LT_TRY(lt_training_leave_branch(t, t->back_to));
    }
    if (unlink(path) != 0) {
        LT_FAIL(LT_ERR_IO, "%s cannot be removed", path);
    }
    t->back_to = INT64_MAX;
    return LT_OK;
}
