/* tuning_models.c: the adapters of fine-tuning jobs, and the files that an ended job keeps: see
 * tuning.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "serve/api/access.h"
#include "serve/api/adapters.h"
#include "serve/api/files/tuning.h"

void lt_tuning_name(const lt_tuning *t, int64_t step, char out[LT_TUNING_NAME_BYTES]) {
    const lt_server *s = t->all->server;
    const size_t n = strlen(t->id);
    char at[48] = "";
    if (step >= 0) {
        snprintf(at, sizeof at, ":ckpt-step-%lld", (long long)step);
    }
    snprintf(out, LT_TUNING_NAME_BYTES, "ft:%.120s:%s:%s%s", s->name, t->suffix,
             t->id + (n > 8 ? n - 8 : 0), at);
}

void lt_tuning_adapter(const lt_tuning *t, int64_t step, char out[160]) {
    if (step < 0) {
        snprintf(out, 160, "%s/run/adapter", t->id);
    } else {
        snprintf(out, 160, "%s/run/adapters/step-%09lld", t->id, (long long)step);
    }
}

void lt_tuning_own(lt_tuning *t, int64_t step) {
    const lt_server *s = t->all->server;
    char name[LT_TUNING_NAME_BYTES], below[160], path[LT_PATH_BYTES];
    lt_tuning_name(t, step, name);
    lt_tuning_adapter(t, step, below);
    if (lt_path_join(path, t->all->dir, below) != LT_OK ||
        lt_adapter_set_own(s->adapters, name, path, lt_access_key_of(s, t->owner)) != LT_OK) {
        lt_log_error("serve: %s is not served: %s", name, lt_error_message());
    }
}

static void disown(const lt_tuning *t, int64_t step) {
    char name[LT_TUNING_NAME_BYTES];
    lt_tuning_name(t, step, name);
    lt_adapter_set_disown(t->all->server->adapters, name);
}

/* List the steps of the folders step-N in run/adapters, at most `most`. */
static int list_saved(const lt_tuning *t, int64_t *steps, int most) {
    char path[LT_PATH_BYTES], **names = NULL;
    size_t count = 0;
    int n = 0;
    if (lt_tuning_path(t, "run/adapters", path) != LT_OK || !lt_file_is_dir(path) ||
        lt_file_list(&names, &count, path) != LT_OK) {
        return 0;
    }
    for (size_t i = 0; i < count && n < most; i++) {
        char *end = NULL;
        const int64_t step = strncmp(names[i], "step-", 5) == 0 ? strtoll(names[i] + 5, &end, 10)
                                                                : -1;
        if (step > 0 && *end == '\0') { /* Others are still being written. */
            steps[n++] = step;
        }
    }
    lt_file_list_free(names, count);
    return n;
}

static bool has_step(const int64_t *steps, int n, int64_t step) {
    for (int i = 0; i < n; i++) {
        if (steps[i] == step) {
            return true;
        }
    }
    return false;
}

static void tell_saved(lt_tuning *t, int64_t step) {
    char name[LT_TUNING_NAME_BYTES];
    if (lt_tuning_is_trained(t)) { /* After a restart there is no second event. */
        lt_tuning_name(t, step, name);
        lt_tuning_tell(t, "info", "message", NULL, "Checkpoint created at step %lld: %s",
                       (long long)step, name);
    }
}

void lt_tuning_name_saved(lt_tuning *t) {
    enum { MOST = sizeof t->saved / sizeof *t->saved };
    int64_t now[MOST];
    const int n = list_saved(t, now, MOST);
    for (int i = 0; i < t->n_saved; i++) {
        if (!has_step(now, n, t->saved[i])) {
            disown(t, t->saved[i]);
        }
    }
    for (int i = 0; i < n; i++) {
        if (!has_step(t->saved, t->n_saved, now[i])) {
            lt_tuning_own(t, now[i]);
            tell_saved(t, now[i]);
        }
    }
    memcpy(t->saved, now, (size_t)n * sizeof *now);
    t->n_saved = n;
}

int64_t lt_tuning_saved_at(const lt_tuning *t, int64_t step) {
    char below[160], path[LT_PATH_BYTES];
    struct stat st;
    lt_tuning_adapter(t, step, below);
    return lt_path_join(path, t->all->dir, below) == LT_OK && stat(path, &st) == 0
               ? (int64_t)st.st_mtime
               : 0;
}

lt_tuning *lt_tuning_of_model(const lt_tunings *f, const char *name, const char *owner,
                              int64_t *step) {
    char own_name[LT_TUNING_NAME_BYTES];
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        if (strcmp(t->owner, owner) != 0) {
            continue;
        }
        *step = -1;
        lt_tuning_name(t, -1, own_name);
        if (t->state == LT_TUNING_SUCCEEDED && !t->deleted && strcmp(own_name, name) == 0) {
            return t;
        }
        for (int i = 0; i < t->n_saved; i++) {
            *step = t->saved[i];
            lt_tuning_name(t, *step, own_name);
            if (strcmp(own_name, name) == 0) {
                return t;
            }
        }
    }
    return NULL;
}

bool lt_tuning_delete_model(lt_tuning *t, int64_t step, lt_api_error *e) {
    char below[160], path[LT_PATH_BYTES];
    lt_err err;
    lt_tuning_adapter(t, step, below);
    for (const lt_tuning *other = t->all->first; other != NULL; other = other->next) {
        if (strcmp(other->from, below) == 0 && !lt_tuning_has_ended(other)) {
            return lt_api_refuse(e, "model", "the job %s, which has not ended, starts from it",
                                 other->id);
        }
    }
    if (step >= 0 && lt_tuning_is_trained(t)) {
        return lt_api_refuse(e, "model", "the job %s, which writes its checkpoints, has not ended",
                             t->id);
    }
    disown(t, step);
    err = lt_path_join(path, t->all->dir, below);
    err = err == LT_OK ? lt_file_remove_tree(path) : err;
    if (err == LT_OK && step < 0) {
        t->deleted = true;
        err = lt_tuning_save(t);
    }
    lt_tuning_name_saved(t);
    return err == LT_OK || lt_api_refuse_error(e, NULL, err);
}

/* ---- Ended jobs ---- */

void lt_tuning_tidy(lt_tuning *t) {
    static const char *const rest[] = {"train.jsonl",     "valid.jsonl", "template.jinja",
                                       "run/checkpoints", "run/data",    "run/report.html"};
    char path[LT_PATH_BYTES];
    if (lt_tuning_is_trained(t)) { /* Tried again when it has ended. */
        return;
    }
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        if (lt_tuning_path(t, rest[i], path) != LT_OK || lt_file_remove_tree(path) != LT_OK) {
            lt_log_warn("serve: %s: %s", t->id, lt_error_message());
        }
    }
    t->bytes = lt_tuning_path(t, "", path) == LT_OK ? lt_file_tree_bytes(path) : 0;
}
