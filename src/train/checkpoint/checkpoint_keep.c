/* checkpoint_keep.c: which of a run's checkpoints are kept, and under which names
 * (checkpoint.h). */
#include "train/checkpoint/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#define STEP_PREFIX "step-"
#define ASIDE_MAX   1000

void lt_checkpoint_name(char name[LT_CHECKPOINT_NAME_BYTES], int64_t step, const char *suffix) {
    snprintf(name, LT_CHECKPOINT_NAME_BYTES, STEP_PREFIX "%09lld%s", (long long)step, suffix);
}

int64_t lt_checkpoint_step(const char *name) {
    const size_t n = strlen(STEP_PREFIX);
    char again[LT_CHECKPOINT_NAME_BYTES];
    int64_t step;
    if (strncmp(name, STEP_PREFIX, n) != 0) {
        return -1;
    }
    step = strtoll(name + n, NULL, 10);
    lt_checkpoint_name(again, step, "");
    return step >= 0 && strcmp(again, name) == 0 ? step : -1; /* Only digits, without leftovers. */
}

static int newest_first(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Sorted by number: beyond step 999999999, names no longer sort. */
lt_err lt_checkpoint_list(int64_t **steps, size_t *count, const char *folder) {
    char **names = NULL;
    size_t n = 0, used = 0;

    *steps = NULL;
    *count = 0;
    if (!lt_file_is_dir(folder)) {
        return LT_OK;
    }
    LT_TRY(lt_file_list(&names, &n, folder));
    *steps = calloc(n + 1, sizeof **steps);
    for (size_t i = 0; *steps != NULL && i < n; i++) {
        const int64_t step = lt_checkpoint_step(names[i]);
        (*steps)[used] = step;
        used += step >= 0;
    }
    lt_file_list_free(names, n);
    if (*steps == NULL) {
        LT_FAIL(LT_ERR_OOM, "list of %s", folder);
    }
    qsort(*steps, used, sizeof **steps, newest_first);
    *count = used;
    return LT_OK;
}

lt_err lt_checkpoint_path(char path[LT_PATH_BYTES], const char *folder, int64_t step) {
    char name[LT_CHECKPOINT_NAME_BYTES];
    lt_checkpoint_name(name, step, "");
    return lt_path_join(path, folder, name);
}

static lt_err move(const char *from, const char *to) {
    if (rename(from, to) != 0) {
        LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", from, to, strerror(errno));
    }
    return LT_OK;
}

/* Rename it first: a half-removed folder must not look like a checkpoint, and one that is about to
 * be published is published before or not at all. */
static lt_err put_away(const char *path, bool *found) {
    char old[LT_PATH_BYTES];
    if (snprintf(old, sizeof old, "%s.old", path) >= (int)sizeof old) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", path);
    }
    LT_TRY(lt_file_remove_tree(old)); /* Left by a crash. */
    *found = rename(path, old) == 0;
    if (!*found && errno != ENOENT) {
        LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", path, old, strerror(errno));
    }
    return lt_file_remove_tree(old);
}

lt_err lt_checkpoint_remove(const char *path) {
    bool found;
    LT_TRY(put_away(path, &found));
    if (!found) {
        LT_FAIL(LT_ERR_IO, "%s: there is no such checkpoint", path);
    }
    return LT_OK;
}

bool lt_checkpoint_is_good(const char *manifest) {
    json_t *root = NULL;
    bool good = true;
    if (lt_json_load(&root, manifest, LT_MANIFEST_BYTES_MAX) != LT_OK) {
        return false;
    }
    good = lt_json_bool(root, "good", &good, true, manifest) == LT_OK && good;
    json_decref(root);
    return good;
}

static bool is_good(const char *path) {
    char manifest[LT_PATH_BYTES];
    return lt_path_join(manifest, path, LT_MANIFEST) == LT_OK && lt_checkpoint_is_good(manifest);
}

lt_err lt_checkpoint_newest(int64_t *step, const char *folder, int64_t before, bool good) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    int64_t *steps = NULL;
    size_t n = 0;

    *step = -1;
    LT_TRY_DONE(lt_checkpoint_list(&steps, &n, folder));
    for (size_t i = 0; i < n && *step < 0; i++) {
        LT_TRY_DONE(lt_checkpoint_path(path, folder, steps[i]));
        *step = steps[i] < before && (!good || is_good(path)) ? steps[i] : -1;
    }
done:
    free(steps);
    return err;
}

static lt_err set_one_aside(const char *folder, int64_t step, const char *suffix) {
    char from[LT_PATH_BYTES], to[LT_PATH_BYTES], name[LT_CHECKPOINT_NAME_BYTES], end[32];
    int count = 1;

    LT_TRY(lt_checkpoint_path(from, folder, step));
    do { /* An earlier folder may have the name. */
        (void)snprintf(end, sizeof end, count > 1 ? "%s%d" : "%s", suffix, count);
        lt_checkpoint_name(name, step, end);
        LT_TRY(lt_path_join(to, folder, name));
    } while (lt_file_exists(to) && ++count < ASIDE_MAX);
    LT_TRY(move(from, to));
    lt_log_warn(
        "checkpoint %s: the run does not continue from it; it is now %s, and you may remove it",
        from, name);
    return LT_OK;
}

lt_err lt_checkpoint_set_aside(const char *folder, int64_t step, const char *suffix) {
    lt_err err = LT_OK;
    int64_t *steps = NULL;
    size_t n = 0;

    LT_TRY_DONE(lt_checkpoint_list(&steps, &n, folder));
    for (size_t i = 0; i < n && steps[i] > step; i++) {
        LT_TRY_DONE(set_one_aside(folder, steps[i], suffix));
    }
    LT_TRY_DONE(n > 0 ? lt_file_sync_dir(folder) : LT_OK);
done:
    free(steps);
    return err;
}

/* The epoch in "step-000000012.e3.tmp"; 0: it has none. */
static int64_t epoch_of(const char *name) {
    const char *at = strstr(name, ".e");
    return at != NULL ? strtoll(at + 2, NULL, 10) : 0;
}

static lt_err remove_leftovers(const char *folder, const lt_lease *lease) {
    const int64_t epoch = lease != NULL && lease->epoch > 0 ? lease->epoch : INT64_MAX;
    lt_err err = LT_OK;
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    bool found;

    if (!lt_file_is_dir(folder)) {
        return LT_OK;
    }
    LT_TRY(lt_file_list(&names, &n, folder));
    for (size_t i = 0; i < n; i++) {
        const bool is_aside = lt_path_has_suffix(names[i], ".tmp");
        if (strncmp(names[i], STEP_PREFIX, strlen(STEP_PREFIX)) == 0 &&
            (is_aside || lt_path_has_suffix(names[i], ".old")) && epoch_of(names[i]) <= epoch) {
            LT_TRY_DONE(lt_path_join(path, folder, names[i]));
            LT_TRY_DONE(is_aside ? put_away(path, &found) : lt_file_remove_tree(path));
        }
    }
done:
    lt_file_list_free(names, n);
    return err;
}

bool lt_checkpoint_stays(const lt_checkpoint_keep *keep, int64_t step, int64_t n_newer,
                         int64_t last_good) {
    return n_newer < keep->last || step == last_good || step == keep->also ||
           (keep->every > 0 && step % keep->every == 0);
}

lt_err lt_checkpoint_prune(const char *folder, const lt_checkpoint_keep *keep,
                           const lt_lease *lease) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    int64_t *steps = NULL, last_good = -1;
    size_t n = 0;

    LT_TRY_DONE(remove_leftovers(folder, lease));
    LT_TRY_DONE(lt_checkpoint_list(&steps, &n, folder));
    if ((int64_t)n > keep->last) {
        LT_TRY_DONE(lt_checkpoint_newest(&last_good, folder, INT64_MAX, true));
    }
    for (size_t i = n; i > 0; i--) { /* The oldest first. */
        if (!lt_checkpoint_stays(keep, steps[i - 1], (int64_t)i - 1, last_good)) {
            LT_TRY_DONE(lt_checkpoint_path(path, folder, steps[i - 1]));
            LT_TRY_DONE(lt_checkpoint_remove(path));
        }
    }
done:
    free(steps);
    return err;
}
