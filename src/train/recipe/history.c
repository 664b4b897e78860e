/* history.c: recipe.yaml of a run and its earlier versions: nothing that a person may want to read
 * is overwritten.
 *
 *   RUN/history/recipe-000.yaml     in force until the step in its first line
 *   RUN/history/metrics-000.jsonl   the lines dropped when the run went back to an older
 *                                   checkpoint */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/run.h"

#define RECIPE_BYTES_MAX ((size_t)1 << 20)
#define HISTORY_MAX      100000

lt_err lt_training_history_path(const lt_training *t, char path[LT_PATH_BYTES], const char *name,
                                const char *suffix) {
    char folder[LT_PATH_BYTES], file[64];
    LT_TRY(lt_path_join(folder, t->recipe.out, "history"));
    LT_TRY(lt_file_make_dirs(folder));
    for (int i = 0; i < HISTORY_MAX; i++) {
        (void)snprintf(file, sizeof file, "%s-%03d.%s", name, i, suffix);
        LT_TRY(lt_path_join(path, folder, file));
        if (!lt_file_exists(path)) {
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_LIMIT, "%s holds %d files already", folder, HISTORY_MAX);
}

/* Keep the recipe.yaml that will be replaced, with the last step for which it was in force. */
static lt_err keep_old_recipe(const lt_training *t, const char *path, const char *text) {
    lt_err err = LT_OK;
    char kept[LT_PATH_BYTES], *old = NULL, *all = NULL;
    size_t bytes = 0, room;

    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_file_read(&old, &bytes, path, RECIPE_BYTES_MAX));
    if (strcmp(old, text) == 0) {
        goto done;
    }
    room = bytes + 64;
    all = malloc(room);
    if (all == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    snprintf(all, room, "# In force until step %lld.\n%s", (long long)t->state.step, old);
    LT_TRY_DONE(lt_training_history_path(t, kept, "recipe", "yaml"));
    LT_TRY_DONE(lt_lease_write(&t->lease, kept, all, strlen(all)));
done:
    free(old);
    free(all);
    return err;
}

lt_err lt_training_write_recipe(const lt_training *t) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    lt_recipe *r = malloc(sizeof *r);
    FILE *to = open_memstream(&text, &bytes);

    if (to == NULL || r == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "recipe");
    }
    *r = t->recipe;
    r->allow_change[0] = '\0'; /* These affect only this start. */
    r->stage[0] = '\0';
    r->trace_step = 0;
    r->layout = LT_LAYOUT_MESH;
    lt_options_dump_yaml(&lt_recipe_table, r, to);
    fclose(to);
    to = NULL;
    LT_TRY_DONE(lt_path_join(path, t->recipe.out, "recipe.yaml"));
    LT_TRY_DONE(keep_old_recipe(t, path, text));
    LT_TRY_DONE(lt_lease_write(&t->lease, path, text, bytes));
done:
    if (to != NULL) {
        fclose(to);
    }
    free(text);
    free(r);
    return err;
}

lt_err lt_training_tell_changes(lt_training *t) {
    size_t i;
    json_t *change;
    json_array_foreach(t->changes, i, change) {
        json_t *line = json_pack("{s:s, s:I}", "kind", "change", "step", (json_int_t)t->state.step);
        json_object_update(line, change);
        LT_TRY(lt_metrics_put(&t->metrics, line));
    }
    return LT_OK;
}
