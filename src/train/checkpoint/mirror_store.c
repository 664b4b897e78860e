/* mirror_store.c: see mirror_store.h; also finds a run's mirror and begins from it. */
#include "train/checkpoint/mirror_store.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "lateen/copy.h"
#include "platform/copy/location.h"
#include "platform/telemetry/identity.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_parts.h"

#define REQUEST_TRIES 5

/* ---- The copy ---- */

/* ctx: the mirror. */
static bool is_stopped(void *ctx) {
    const lt_mirror *m = ctx;
    return atomic_load(&m->stop);
}

static bool tick(void *ctx, const lt_copy_report *now) {
    lt_mirror *m = ctx;
    atomic_store(&m->done_bytes, now->done_bytes);
    atomic_store(&m->total_bytes, now->total_bytes);
    return is_stopped(m);
}

static lt_copy_options how(lt_training *t) {
    lt_copy_options o = lt_copy_defaults();
    o.n_connections = LT_MIRROR_CONNECTIONS;
    o.part_bytes = LT_MIRROR_PART_BYTES;
    o.n_tries = REQUEST_TRIES;
    o.rate_bytes = t->recipe.mirror_rate;
    o.wait = true; /* In case a replaced attempt is still copying. */
    o.tick = tick;
    o.stop = is_stopped;
    o.ctx = &t->mirror;
    return o;
}

/* "MIRROR/checkpoints/step-N/NAME" */
static lt_err place_of(char out[LT_PATH_BYTES], const lt_mirror *m, int64_t step,
                       const char *name) {
    char folder[LT_CHECKPOINT_NAME_BYTES];
    lt_checkpoint_name(folder, step, "");
    if (snprintf(out, LT_PATH_BYTES, "%s%s/%s", m->place, folder, name) >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s%s/%s", m->place, folder, name);
    }
    return LT_OK;
}

/* The manifest is removed first, since a checkpoint with a manifest must have all its files. */
static lt_err delete_step(lt_training *t, int64_t step) {
    const lt_copy_options o = how(t);
    char path[LT_PATH_BYTES];
    LT_TRY(place_of(path, &t->mirror, step, LT_MANIFEST));
    LT_TRY(lt_copy_delete(path, &o, NULL));
    LT_TRY(place_of(path, &t->mirror, step, ""));
    return lt_copy_delete(path, &o, NULL);
}

/* Copy the mirror's manifest of a step to a file beside the run's. The caller removes it. */
static lt_err bring_manifest(lt_training *t, int64_t step, char path[LT_PATH_BYTES]) {
    lt_copy_options o = how(t);
    char from[LT_PATH_BYTES];
    o.force = true;
    LT_TRY(place_of(from, &t->mirror, step, LT_MANIFEST));
    LT_TRY(lt_path_join(path, t->recipe.out, "mirror-" LT_MANIFEST));
    return lt_copy(from, path, &o, NULL);
}

/* ---- What is there ---- */

typedef struct {
    int64_t step;
    bool whole;
} mirrored;

typedef struct {
    mirrored *rows; /* Sorted with the newest first once the list is complete. */
    size_t n, room;
} mirrored_list;

static lt_err found(void *ctx, const lt_copy_file *file) {
    mirrored_list *l = ctx;
    const char *slash = strchr(file->name, '/');
    char name[LT_CHECKPOINT_NAME_BYTES];
    int64_t step;
    if (slash == NULL || slash - file->name >= (long)sizeof name) {
        return LT_OK;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(slash - file->name), file->name);
    step = lt_checkpoint_step(name);
    if (step < 0) {
        return LT_OK;
    }
    if (l->n == 0 || l->rows[l->n - 1].step != step) { /* Names are listed in order. */
        if (l->n == l->room) {
            const size_t room = l->room == 0 ? 16 : 2 * l->room;
            mirrored *grown = realloc(l->rows, room * sizeof *grown);
            if (grown == NULL) {
                LT_FAIL(LT_ERR_OOM, "a list of %zu checkpoints", l->n);
            }
            l->rows = grown;
            l->room = room;
        }
        l->rows[l->n++] = (mirrored){.step = step};
    }
    l->rows[l->n - 1].whole |= strcmp(slash + 1, LT_MANIFEST) == 0;
    return LT_OK;
}

static int newest_first(const void *a, const void *b) {
    const mirrored *x = a, *y = b;
    return x->step < y->step ? 1 : x->step > y->step ? -1 : 0;
}

/* Free the rows. An empty mirror gives none. */
static lt_err list_mirror(lt_training *t, mirrored_list *l) {
    const lt_copy_options o = how(t);
    const lt_err err = lt_copy_list(t->mirror.place, &o, found, l);
    if (err != LT_OK && err != LT_ERR_NOT_FOUND) {
        free(l->rows);
        l->rows = NULL;
        return err;
    }
    if (l->n > 0) {
        qsort(l->rows, l->n, sizeof *l->rows, newest_first);
    }
    return LT_OK;
}

/* ---- Phases ---- */

static lt_err same_file(const char *a, const char *b, bool *same) {
    lt_err err = LT_OK;
    char *x = NULL, *y = NULL;
    size_t n = 0, k = 0;
    LT_TRY_DONE(lt_file_read(&x, &n, a, LT_MANIFEST_BYTES_MAX));
    LT_TRY_DONE(lt_file_read(&y, &k, b, LT_MANIFEST_BYTES_MAX));
    *same = n == k && memcmp(x, y, n) == 0;
done:
    free(x);
    free(y);
    return err;
}

lt_err lt_mirror_store_clear(lt_training *t) {
    lt_mirror *m = &t->mirror;
    const int64_t step = atomic_load(&m->step);
    char own[LT_PATH_BYTES], folder[LT_PATH_BYTES], theirs[LT_PATH_BYTES];
    lt_err err;

    LT_TRY(lt_checkpoint_path(folder, t->checkpoints, step));
    LT_TRY(lt_path_join(own, folder, LT_MANIFEST));
    if (m->sent == step) {
        m->there = true;
        return LT_OK;
    }
    err = bring_manifest(t, step, theirs);
    if (err == LT_ERR_NOT_FOUND) {
        return LT_OK;
    }
    LT_TRY(err);
    err = same_file(own, theirs, &m->there);
    (void)remove(theirs);
    LT_TRY(err);
    return m->there ? LT_OK : delete_step(t, step);
}

static void add_report(lt_mirror *m, const lt_copy_report *r) {
    m->moved_bytes += r->moved_bytes;
    m->n_retries += r->n_retries;
}

/* Files of the step that match `names` ("": all), without the manifest. */
static lt_err send_files(lt_training *t, const char *names) {
    lt_mirror *m = &t->mirror;
    const int64_t step = atomic_load(&m->step);
    lt_copy_options o = how(t);
    lt_copy_report report = {0};
    char from[LT_PATH_BYTES], to[LT_PATH_BYTES];
    lt_err err;

    o.include = names;
    o.exclude = LT_MANIFEST;
    LT_TRY(lt_checkpoint_path(from, t->checkpoints, step));
    LT_TRY(place_of(to, m, step, ""));
    err = lt_copy(from, to, &o, &report);
    add_report(m, &report);
    return err;
}

lt_err lt_mirror_store_send(lt_training *t) {
    const lt_mirror *m = &t->mirror;
    char own[LT_PART_NAME_BYTES];
    lt_part_file(own, "*", m->part, m->n_parts, ".*");
    return send_files(t, m->n_parts > 1 ? own : "");
}

/* The mirror's newest good checkpoint. If the run folder has it too, its manifest is read there. */
static lt_err find_good(lt_training *t, const mirrored_list *l, int64_t *step) {
    *step = -1;
    for (size_t i = 0; i < l->n && *step < 0; i++) {
        char folder[LT_PATH_BYTES], path[LT_PATH_BYTES];
        if (!l->rows[i].whole) {
            continue;
        }
        LT_TRY(lt_checkpoint_path(folder, t->checkpoints, l->rows[i].step));
        LT_TRY(lt_path_join(path, folder, LT_MANIFEST));
        const bool here = lt_file_exists(path);
        LT_TRY(here ? LT_OK : bring_manifest(t, l->rows[i].step, path));
        *step = lt_checkpoint_is_good(path) ? l->rows[i].step : -1;
        if (!here) {
            (void)remove(path);
        }
    }
    return LT_OK;
}

/* A checkpoint newer than `step`, the newest of the run, belongs to a branch that the run has left;
 * an older, incomplete one was abandoned. */
static lt_err prune(lt_training *t, int64_t step) {
    const lt_recipe *r = &t->recipe;
    const lt_checkpoint_keep keep = {.last = r->mirror_keep > 0 ? r->mirror_keep : r->keep_last,
                                     .every = r->keep_every,
                                     .also = -1};
    mirrored_list l = {0};
    int64_t last_good = -1, n_newer = 0;
    lt_err err = LT_OK;

    LT_TRY(list_mirror(t, &l));
    if ((int64_t)l.n > keep.last) {
        LT_TRY_DONE(find_good(t, &l, &last_good));
    }
    LT_TRY_DONE(lt_lease_check(&t->lease));
    for (size_t i = 0; i < l.n; i++) {
        const mirrored *c = &l.rows[i];
        const bool counts = c->whole && c->step <= step;
        if (!counts || !lt_checkpoint_stays(&keep, c->step, n_newer, last_good)) {
            LT_TRY_DONE(delete_step(t, c->step));
        }
        n_newer += counts;
    }
done:
    free(l.rows);
    return err;
}

lt_err lt_mirror_store_end(lt_training *t) {
    lt_mirror *m = &t->mirror;
    const int64_t step = atomic_load(&m->step);
    lt_copy_options o = how(t);
    lt_copy_report report = {0};
    char folder[LT_PATH_BYTES], from[LT_PATH_BYTES], to[LT_PATH_BYTES];
    lt_err err;

    o.force = true; /* Files that already exist belong to another checkpoint. */
    LT_TRY(lt_checkpoint_path(folder, t->checkpoints, step));
    LT_TRY(lt_path_join(from, folder, LT_MANIFEST));
    LT_TRY(place_of(to, m, step, LT_MANIFEST));
    /* Files that no rank has sent, for example because another number of ranks wrote the
     * checkpoint. */
    LT_TRY(m->n_parts > 1 ? send_files(t, "") : LT_OK);
    LT_TRY(lt_lease_check(&t->lease));
    err = lt_copy(from, to, &o, &report);
    add_report(m, &report);
    LT_TRY(err);
    return prune(t, step);
}

/* ---- The beginning ---- */

/* "MIRROR/checkpoints/", preceded by the site's name if there are several. */
static lt_err find_place(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    char site[32] = "", *place = t->mirror.place;
    size_t n = strlen(r->mirror);
    while (n > 1 && r->mirror[n - 1] == '/') {
        n--;
    }
    if (r->sites > 1) {
        (void)snprintf(site, sizeof site, "/site-%lld", (long long)r->site);
    }
    if (snprintf(place, LT_PATH_BYTES, "%.*s%s/checkpoints/", (int)n, r->mirror, site) >=
        LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", r->mirror);
    }
    return LT_OK;
}

static lt_err check_place(const lt_training *t) {
    lt_location at;
    char own[PATH_MAX], theirs[PATH_MAX];
    LT_TRY(lt_location_read(&at, t->recipe.mirror));
    if (at.at != LT_AT_FILE && at.at != LT_AT_S3) {
        LT_FAIL(LT_ERR_ARG, "%s: a mirror is a folder or s3://BUCKET/PREFIX", at.shown);
    }
    LT_TRY(lt_location_read(&at, t->mirror.place));
    if (at.at == LT_AT_FILE) {
        LT_TRY(lt_file_make_dirs(at.path));
        LT_TRY(lt_file_make_dirs(t->checkpoints));
        if (realpath(at.path, theirs) != NULL && realpath(t->checkpoints, own) != NULL &&
            strcmp(own, theirs) == 0) {
            LT_FAIL(LT_ERR_ARG, "%s is the run folder itself", t->recipe.mirror);
        }
    }
    return LT_OK;
}

/* Each start writes MIRROR/checkpoints/run.json, so that credentials without write permission are
 * reported before the first step rather than at the first checkpoint. */
static lt_err probe(lt_training *t) {
    const lt_copy_options o = how(t);
    lt_copy_options write = o;
    char own[LT_PATH_BYTES], theirs[LT_PATH_BYTES], name[LT_RUN_NAME_BYTES], text[512];
    if (snprintf(theirs, sizeof theirs, "%srun.json", t->mirror.place) >= (int)sizeof theirs) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", t->mirror.place);
    }
    if (!lt_ranks_lead(&t->ranks)) {
        return lt_copy_list(theirs, &o, found, &(mirrored_list){0});
    }
    write.force = true;
    LT_TRY(lt_path_join(own, t->recipe.out, "mirror.json"));
    (void)snprintf(text, sizeof text,
                   "{\"format\": \"lateen-mirror\", \"version\": 1, \"run\": \"%s\", "
                   "\"epoch\": %lld, \"program\": \"%s\"}\n",
                   lt_run_name(name, t->recipe.out), (long long)t->lease.epoch, lt_version());
    LT_TRY(lt_lease_write(&t->lease, own, text, strlen(text)));
    return lt_copy(own, theirs, &write, NULL);
}

lt_err lt_mirror_open(lt_training *t) {
    lt_mirror *m = &t->mirror;
    lt_err err;
    atomic_store(&m->step, -1);
    atomic_store(&m->next, -1);
    m->sent = -1;
    m->n_parts = 1;
    if (lt_training_is_divided(t)) {
        m->part = lt_shards_part(&t->shards, &m->n_parts);
    }
    if (t->recipe.mirror[0] == '\0') {
        return LT_OK;
    }
    LT_TRY(find_place(t));
    err = check_place(t);
    err = err == LT_OK ? probe(t) : err;
    return lt_training_about("checkpoint.mirror", err);
}

typedef struct {
    const lt_training *t;
    int64_t step;
    lt_progress line;
} fetching;

static bool tick_fetch(void *ctx, const lt_copy_report *now) {
    fetching *f = ctx;
    char eta[LT_CLOCK_TEXT_BYTES] = "?";
    if (now->moved_bytes > 0) {
        (void)lt_duration_text(eta, now->seconds * (double)(now->total_bytes - now->done_bytes) /
                                        (double)now->moved_bytes);
    }
    lt_progress_show(&f->line, "the checkpoint of step %lld comes: %.1f of %.1f MB, %s left",
                     (long long)f->step, (double)now->done_bytes * 1e-6,
                     (double)now->total_bytes * 1e-6, eta);
    return lt_training_stop_asked(f->t) != 0;
}

static lt_err fetch_files(lt_training *t, int64_t step, const char *to, lt_copy_report *report) {
    fetching f = {.t = t,
                  .step = step,
                  .line = {.plain_every_s = t->recipe.plain_every,
                           .next_plain_s = lt_clock_s() + t->recipe.plain_every}};
    lt_copy_options o = lt_copy_defaults();
    char from[LT_PATH_BYTES];
    lt_err err;
    o.tick = tick_fetch;
    o.ctx = &f;
    LT_TRY(place_of(from, &t->mirror, step, ""));
    err = lt_copy(from, to, &o, report);
    lt_progress_end(&f.line);
    return err;
}

/* Fetch it into the run folder as a save would write it: aside, checked, renamed. FORMAT: it is
 * damaged. */
static lt_err fetch_step(lt_training *t, int64_t step) {
    lt_copy_report r = {0};
    char aside[LT_PATH_BYTES], took[LT_CLOCK_TEXT_BYTES];
    LT_TRY(lt_checkpoint_begin(t->checkpoints, step, &t->lease));
    LT_TRY(lt_checkpoint_aside(aside, t->checkpoints, step, &t->lease));
    LT_TRY(fetch_files(t, step, aside, &r));
    LT_TRY(lt_checkpoint_verify(aside));
    LT_TRY(lt_checkpoint_take_name(t->checkpoints, step, &t->lease));
    lt_log_info("the checkpoint of step %lld was fetched from %s: %.1f MB in %s, checksums "
                "checked; the run goes on from it",
                (long long)step, t->mirror.place, (double)r.moved_bytes * 1e-6,
                lt_duration_text(took, r.seconds));
    return LT_OK;
}

/* Whether the run folder has set aside a checkpoint of this step, because it was damaged or the run
 * left its branch. If so, the mirror's is the same one. */
static lt_err was_set_aside(const lt_training *t, int64_t step, bool *yes) {
    char **names = NULL, start[LT_CHECKPOINT_NAME_BYTES];
    size_t n = 0;
    *yes = false;
    if (!lt_file_is_dir(t->checkpoints)) {
        return LT_OK;
    }
    LT_TRY(lt_file_list(&names, &n, t->checkpoints));
    lt_checkpoint_name(start, step, ".left");
    for (size_t i = 0; i < n; i++) {
        *yes = *yes || strncmp(names[i], start, strlen(start)) == 0;
    }
    lt_file_list_free(names, n);
    return LT_OK;
}

/* n_broken: number of damaged checkpoints newer than `newest`. */
static lt_err fetch_newest(lt_training *t, const mirrored_list *l, int64_t newest,
                           int64_t *n_broken) {
    for (size_t i = 0; i < l->n && l->rows[i].step > newest; i++) {
        const int64_t step = l->rows[i].step;
        bool left = false;
        lt_err err;
        LT_TRY(was_set_aside(t, step, &left));
        if (!l->rows[i].whole || left) {
            continue;
        }
        err = fetch_step(t, step);
        if (err == LT_OK) {
            t->mirror.sent = step;
            return LT_OK;
        }
        if (err != LT_ERR_FORMAT && err != LT_ERR_NOT_FOUND) {
            return err;
        }
        *n_broken += 1;
        lt_log_warn("the mirror's checkpoint of step %lld is broken and skipped: %s",
                    (long long)step, lt_error_message());
        lt_checkpoint_abandon(t->checkpoints, step, &t->lease);
    }
    return LT_OK;
}

lt_err lt_mirror_fetch(lt_training *t) {
    const bool none = strcmp(t->recipe.resume, "none") == 0;
    mirrored_list l = {0};
    int64_t newest = -1, n_broken = 0, n_whole = 0;
    lt_err err = LT_OK;

    if (t->mirror.place[0] == '\0' || (!none && strcmp(t->recipe.resume, "auto") != 0)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_checkpoint_newest(&newest, t->checkpoints, INT64_MAX, false));
    LT_TRY_DONE(list_mirror(t, &l));
    for (size_t i = 0; i < l.n; i++) {
        n_whole += l.rows[i].whole;
    }
    if (none && n_whole > 0) {
        LT_FAIL_DONE(LT_ERR_STATE,
                     "resume = none, but %s holds %lld checkpoints: choose another place, or "
                     "remove them",
                     t->mirror.place, (long long)n_whole);
    }
    LT_TRY_DONE(fetch_newest(t, &l, newest, &n_broken));
    if (newest < 0 && t->mirror.sent < 0 && n_broken > 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT,
                     "all %lld checkpoints in %s are broken (see above); --resume none and another "
                     "place start again",
                     (long long)n_broken, t->mirror.place);
    }
    if (newest < 0 && n_whole == 0) {
        lt_log_info("%s holds no whole checkpoint: the run begins", t->mirror.place);
    }
done:
    free(l.rows);
    return lt_training_about("checkpoint.mirror", err);
}
