/* snapshot.c: see snapshot.h. Where rank 0 holds all, it writes a checkpoint under the node's own/,
 * and a link to it under set/. Where the run is divided, each rank writes its part under its own
 * name, and the leading rank puts the folder under set/ together from links:
 *
 *     rank 0     begin set/step-N.tmp ─┐         ┌─ write ─ link ─┐         ┌─ publish set/step-N
 *     others                           └─ meet ──┴─ write ─ link ─┴─ meet ──┘
 *
 * On several machines snapshot_apart.c brings together what this file finds under set/ on one.
 *
 * A snapshot that fails (no memory left, say) is logged as a warning and skipped: the run does not
 * depend on it. */
#include "train/checkpoint/snapshot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "train/run.h"

static const lt_checkpoint_keep keep = {.last = LT_MEMORY_KEEP, .also = -1}; /* Of a holder. */

/* ---- The choice ------------------------------------------------------------------------------ */

/* The newest step under set/, at most `most`, of which this rank finds all bytes; -1: none. */
int64_t lt_snapshot_newest(const char *set, int64_t most) {
    char path[LT_PATH_BYTES];
    int64_t *steps = NULL, found = -1;
    size_t n = 0;
    if (lt_checkpoint_list(&steps, &n, set) != LT_OK) {
        return -1;
    }
    for (size_t i = 0; i < n && found < 0; i++) {
        if (steps[i] > most || lt_checkpoint_path(path, set, steps[i]) != LT_OK) {
            continue;
        }
        if (lt_checkpoint_verify(path) == LT_OK) {
            found = steps[i];
        } else {
            lt_log_warn("snapshot of step %lld is not whole: %s", (long long)steps[i],
                        lt_error_message());
        }
    }
    free(steps);
    return found;
}

/* Ranks of one machine agree on the same folder. */
static lt_err agree_here(lt_snapshots *s, const lt_world *w) {
    double most = (double)INT32_MAX, least;
    for (;;) { /* Each round ends the loop or lowers `most`. */
        const int64_t own = lt_snapshot_newest(s->memory.set, (int64_t)most);
        LT_TRY(lt_world_range(w, (double)own, &least, &most));
        if (least == most || least < 0.0) {
            s->from = (int64_t)least;
            return LT_OK;
        }
        most = least;
    }
}

lt_err lt_training_agree(lt_snapshots *s, const lt_world *w) {
    *s = (lt_snapshots){.from = -1, .next = INT64_MAX};
    s->wanted = w->comm != NULL && lt_node_memory_of_rank(&s->memory);
    if (!s->wanted) {
        return LT_OK;
    }
    s->near = true;
    return s->memory.apart ? lt_snapshot_agree_apart(s, w) : agree_here(s, w);
}

/* ---- Taking one ------------------------------------------------------------------------------ */

/* own/NAME: the holder for this rank, or for what it publishes for all. */
static lt_err holder_path(char path[LT_PATH_BYTES], const lt_training *t, const char *what) {
    if (snprintf(path, LT_PATH_BYTES, "%s/rank-%d%s", t->snapshots.memory.own, t->ranks.rank,
                 what) >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", t->snapshots.memory.own);
    }
    return LT_OK;
}

static lt_err take_whole(lt_training *t) {
    char holder[LT_PATH_BYTES], from[LT_PATH_BYTES], to[LT_PATH_BYTES];
    if (!lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    LT_TRY(holder_path(holder, t, ""));
    LT_TRY(lt_training_gather_state(t));
    LT_TRY(lt_checkpoint_save(holder, t->trained, &t->optimiser, &t->state, &t->lease));
    LT_TRY(lt_checkpoint_path(from, holder, t->state.step));
    LT_TRY(lt_checkpoint_path(to, t->snapshots.memory.set, t->state.step));
    LT_TRY(lt_memory_link(from, to));
    return lt_checkpoint_prune(holder, &keep, &t->lease);
}

/* Link every file of a holder's folder into the folder under set/. */
static lt_err link_files(const char *folder, const char *aside) {
    lt_err err = LT_OK;
    char **names = NULL, from[LT_PATH_BYTES], to[LT_PATH_BYTES];
    size_t n = 0;
    LT_TRY(lt_file_list(&names, &n, folder));
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(lt_path_join(from, folder, names[i]));
        LT_TRY_DONE(lt_path_join(to, aside, names[i]));
        LT_TRY_DONE(lt_memory_link(from, to));
    }
done:
    lt_file_list_free(names, n);
    return err;
}

static lt_err rename_aside(const char *aside, const char *folder) {
    LT_TRY(lt_file_remove_tree(folder));
    if (rename(aside, folder) != 0) {
        LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", aside, folder, strerror(errno));
    }
    return LT_OK;
}

static lt_err write_part(lt_training *t) {
    char holder[LT_PATH_BYTES], aside[LT_PATH_BYTES], folder[LT_PATH_BYTES], set[LT_PATH_BYTES];
    const int64_t step = t->state.step;
    int n_parts;
    const int part = lt_shards_part(&t->shards, &n_parts);
    if (part < 0) {
        return LT_OK;
    }
    LT_TRY(holder_path(holder, t, ""));
    LT_TRY(lt_checkpoint_begin(holder, step, &t->lease));
    LT_TRY(lt_checkpoint_write_part(holder, step, part, n_parts, t->trained, &t->optimiser,
                                    &t->world->layout, &t->lease));
    LT_TRY(lt_checkpoint_aside(aside, holder, step, &t->lease));
    LT_TRY(lt_checkpoint_path(folder, holder, step));
    LT_TRY(rename_aside(aside, folder));
    if (t->snapshots.near) {
        LT_TRY(lt_checkpoint_aside(set, t->snapshots.memory.set, step, &t->lease));
        LT_TRY(link_files(folder, set));
    }
    return lt_checkpoint_prune(holder, &keep, &t->lease);
}

/* The leading rank's additions to the parts (manifest, config) must be on another node, too: they
 * move to a separate holder. */
static lt_err move_rest(lt_training *t) {
    static const char *const names[] = {"config.json", LT_MANIFEST};
    char holder[LT_PATH_BYTES], aside[LT_PATH_BYTES], folder[LT_PATH_BYTES], set[LT_PATH_BYTES],
        from[LT_PATH_BYTES], to[LT_PATH_BYTES];
    LT_TRY(holder_path(holder, t, "-set"));
    LT_TRY(lt_checkpoint_begin(holder, t->state.step, &t->lease));
    LT_TRY(lt_checkpoint_aside(aside, holder, t->state.step, &t->lease));
    LT_TRY(lt_checkpoint_path(folder, holder, t->state.step));
    LT_TRY(lt_checkpoint_path(set, t->snapshots.memory.set, t->state.step));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        LT_TRY(lt_path_join(from, set, names[i]));
        LT_TRY(lt_path_join(to, aside, names[i]));
        LT_TRY(lt_file_copy(from, to, (size_t)1 << 30));
    }
    LT_TRY(rename_aside(aside, folder));
    LT_TRY(link_files(folder, set));
    return lt_checkpoint_prune(holder, &keep, &t->lease);
}

static lt_err publish_set(lt_training *t) {
    int n_parts;
    (void)lt_shards_part(&t->shards, &n_parts);
    LT_TRY(lt_training_gather_state(t));
    LT_TRY(lt_checkpoint_publish(t->snapshots.memory.set, n_parts, t->trained, &t->optimiser,
                                 &t->state, &t->lease));
    return move_rest(t);
}

static lt_err take_parts(lt_training *t) {
    const bool leads = lt_ranks_lead(&t->ranks);
    lt_err err;
    LT_TRY(lt_training_meet(
        t, leads ? lt_checkpoint_begin(t->snapshots.memory.set, t->state.step, &t->lease) : LT_OK));
    err = lt_training_meet(t, write_part(t));
    if (err == LT_OK && t->snapshots.memory.apart) {
        err = lt_training_meet(t, lt_snapshot_gather_parts(t));
    }
    if (err == LT_OK && leads) {
        err = publish_set(t);
    }
    return lt_training_meet(t, err);
}

/* Remove links to snapshots that their holders have removed. */
static lt_err prune_set(const lt_training *t) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0;
    LT_TRY(lt_checkpoint_list(&steps, &n, t->snapshots.memory.set));
    for (size_t i = LT_MEMORY_KEEP; i < n; i++) {
        LT_TRY_DONE(lt_checkpoint_path(path, t->snapshots.memory.set, steps[i]));
        if (unlink(path) != 0) { /* A folder of links. */
            LT_TRY_DONE(lt_file_remove_tree(path));
        }
    }
done:
    free(steps);
    return err;
}

/* ---- When ------------------------------------------------------------------------------------ */

int64_t lt_snapshot_interval(double mtbf_s, double save_s, double step_s) {
    const double least_s = save_s / LT_SNAPSHOT_SHARE,
                 best_s = fmax(lt_daly_interval_s(mtbf_s, save_s), least_s),
                 steps = ceil(best_s / fmax(step_s, 1e-9));
    return steps < 1.0 ? 1 : steps > 1e9 ? 1000000000 : (int64_t)steps;
}

/* All ranks receive the leading rank's measurements. */
static lt_err plan_next(lt_training *t, double save_s) {
    lt_snapshots *s = &t->snapshots;
    double every = (double)s->memory.every;
    if (s->memory.every == 0) {
        every = (double)lt_snapshot_interval(s->memory.mtbf_s, save_s, s->step_s);
        LT_TRY(lt_broadcast(t->world->mesh.world, &every, 1, LT_F64, 0, NULL));
    }
    s->next = t->state.step + (int64_t)every;
    s->step_s = 0.0;
    s->n_steps = 0;
    return LT_OK;
}

lt_err lt_training_snapshot(lt_training *t, double step_s) {
    lt_snapshots *s = &t->snapshots;
    const double start_s = lt_clock_s();
    double save_s;
    lt_err err;
    if (!s->wanted) {
        return LT_OK;
    }
    /* Measured after the first step of this attempt, which is slower. */
    if (s->next == INT64_MAX) {
        s->next = t->state.step + (s->memory.every > 0 ? s->memory.every - 1 : 1);
    }
    s->n_steps++;
    s->step_s += (step_s - s->step_s) / (double)s->n_steps;
    if (t->state.step < s->next || t->state.step >= t->recipe.steps || !lt_training_is_whole(t)) {
        return LT_OK;
    }
    LT_TRY(lt_diloco_settle(t));
    LT_TRY(lt_training_settle(t));
    LT_TRY(lt_replicas_compare_state(t));
    if (t->guard.not_finite_in_a_row == 0) {
        err = lt_training_is_divided(t) ? take_parts(t) : take_whole(t);
        err = err == LT_OK && lt_ranks_lead(&t->ranks) ? prune_set(t) : err;
        if (err == LT_ERR_REPLACED) {
            return err;
        }
        if (err != LT_OK) {
            lt_log_warn("step %lld: no snapshot in memory: %s", (long long)t->state.step,
                        lt_error_message());
        }
    }
    save_s = lt_clock_s() - start_s;
    LT_TRY(plan_next(t, save_s));
    return lt_metrics_put(&t->metrics, json_pack("{s:s, s:I, s:f, s:I}", "kind", "snapshot", "step",
                                                 (json_int_t)t->state.step, "stall_s", save_s,
                                                 "next", (json_int_t)s->next));
}
