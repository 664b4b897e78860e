/* train_stages.c: see train_stages.h. */
#include "cli/train/train_stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "lateen/comm.h"
#include "train/recipe/changes.h"

#define RECORD_BYTES ((size_t)1 << 20)

/* ---- Reading ---- */

/* Read a recipe as a stage. The stage replaces the run folder that it names and, except in the
 * first stage, its model. */
static lt_err read_recipe(lt_named_recipe *s, const char *path, bool first) {
    lt_err err = LT_OK;
    lt_recipe *before = malloc(sizeof *before);
    if (before == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe of a stage");
    }
    *before = *s->recipe;
    LT_TRY_DONE(lt_options_load_yaml(&lt_recipe_table, s->recipe, path));
    memcpy(s->recipe->out, before->out, sizeof before->out);
    if (!first) {
        memcpy(s->recipe->init, before->init, sizeof before->init);
        memcpy(s->recipe->lora_init, before->lora_init, sizeof before->lora_init);
    }
done:
    free(before);
    return err;
}

static const lt_named_kind kind = {
    .key = "stages", .what = "stage", .most = LT_LIFE_STAGES, .value = read_recipe};

/* ---- What follows from the order ---- */

static bool trains_adapters(const lt_recipe *r) {
    return r->lora_rank > 0 || r->lora_init[0] != '\0';
}

/* Make stage i begin where the previous one has ended. */
static lt_err chain(const lt_life *l, int i, const lt_recipe *common) {
    const lt_named_recipe *before = &l->stages[i - 1], *s = &l->stages[i];
    const lt_recipe *was = before->recipe;
    lt_recipe *r = s->recipe;
    const bool other = strcmp(r->init, common->init) != 0;
    if (other || strcmp(r->lora_init, common->lora_init) != 0) {
        LT_FAIL(LT_ERR_ARG,
                "stage %s: %s = %s, but it begins with what stage %s has made; only the first "
                "stage has a model.init or lora.init",
                s->name, other ? "model.init" : "lora.init", other ? r->init : r->lora_init,
                before->name);
    }
    if (!was->export_model) {
        LT_FAIL(LT_ERR_ARG, "stage %s: export = false leaves no model, with which stage %s begins",
                before->name, s->name);
    }
    if ((was->objective == LT_RECIPE_OBJECTIVE_reward ||
         was->objective == LT_RECIPE_OBJECTIVE_prm) &&
        r->objective != was->objective) {
        LT_FAIL(LT_ERR_ARG,
                "stage %s trains a reward model, which writes no text: stage %s cannot begin with "
                "it",
                before->name, s->name);
    }
    if (!trains_adapters(was)) {
        r->lora_init[0] = '\0'; /* It was meant for the first stage only. */
        return lt_named_recipe_path(r, "model.init", was->out, "model", kind.key);
    }
    LT_TRY(lt_options_set(&lt_recipe_table, r, "model.init", was->init, kind.key));
    return lt_named_recipe_path(r, "lora.init", was->out, "adapter", kind.key);
}

lt_err lt_life_open(lt_life *l, const char *path, int argc, char **argv) {
    lt_err err = LT_OK;
    lt_recipe *common = calloc(1, sizeof *common);

    *l = (lt_life){.n = 0};
    if (common == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    LT_TRY_DONE(lt_named_recipes_read(l->stages, &l->n, common, &kind, path, argc, argv));
    if (l->n == 0) {
        goto done;
    }
    LT_TRY_DONE(lt_named_recipes_place(l->stages, l->n, common, &kind));
    LT_TRY_DONE(lt_path_join(l->record, common->out, "stages.json"));
    for (int i = 0; i < l->n; i++) {
        LT_TRY_DONE(i > 0 ? chain(l, i, common) : LT_OK);
        LT_TRY_DONE(lt_named_recipe_check(&l->stages[i], kind.what));
    }
done:
    free(common);
    return err;
}

void lt_life_close(lt_life *l) {
    lt_named_recipes_free(l->stages, l->n);
    *l = (lt_life){.n = 0};
}

/* ---- The record of finished stages ---- */

static json_t *finished_stages(json_t *record) {
    return json_object_get(record, "finished");
}

/* The record, or a new one if there is none. */
static lt_err load_record(json_t **out, const lt_life *l) {
    if (!lt_file_exists(l->record)) {
        *out = json_pack("{s:[]}", "finished");
        return LT_OK;
    }
    LT_TRY(lt_json_load(out, l->record, RECORD_BYTES));
    if (!json_is_array(finished_stages(*out))) {
        json_decref(*out);
        LT_FAIL(LT_ERR_FORMAT, "%s: no list of finished stages", l->record);
    }
    return LT_OK;
}

static lt_err note_finished(const lt_life *l, json_t *record, const lt_named_recipe *s) {
    json_t *entry = json_pack("{s:s, s:o}", "name", s->name, "options", lt_recipe_json(s->recipe));
    char *text = NULL;
    lt_err err;
    json_array_append_new(finished_stages(record), entry);
    text = json_dumps(record, JSON_INDENT(1));
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", l->record);
    }
    err = lt_file_write_atomic(l->record, text, strlen(text));
    free(text);
    return err;
}

/* Whether the result of a finished stage depends on the option. Other options may change when a run
 * is resumed. */
static bool decides(const lt_option *row) {
    return (row->flags & LT_RECIPE_MAY_CHANGE) == 0 || strcmp(row->name, "steps") == 0;
}

/* more: the last finished stage now has more steps. */
static lt_err compare_finished(const json_t *entry, const lt_named_recipe *s, bool last,
                               bool *more) {
    const json_t *then = json_object_get(entry, "options");
    const char *name = json_string_value(json_object_get(entry, "name"));
    *more = false;
    if (name == NULL || strcmp(name, s->name) != 0) {
        LT_FAIL(LT_ERR_STATE,
                "stage %s: stage %s has been finished in its place; another order, or other "
                "stages, need another --out",
                s->name, name != NULL ? name : "(without a name)");
    }
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        const char *was = json_string_value(json_object_get(then, row->name));
        char now[LT_OPTION_STR_BYTES];
        lt_option_text(row, s->recipe, now, sizeof now);
        if (!decides(row) || was == NULL || strcmp(was, now) == 0) {
            continue;
        }
        if (last && strcmp(row->name, "steps") == 0 && s->recipe->steps > strtoll(was, NULL, 10)) {
            *more = true;
            continue;
        }
        LT_FAIL(LT_ERR_STATE,
                "stage %s is finished, and its %s was %s, now %s; give the old value, or another "
                "--out",
                s->name, row->name, was, now);
    }
    return LT_OK;
}

/* Whether a stage after i has written anything. */
static bool later_began(const lt_life *l, int i) {
    return i + 1 < l->n && lt_file_exists(l->stages[i + 1].recipe->out);
}

/* The number of finished stages. */
static lt_err count_finished(int *out, const lt_life *l, json_t *record) {
    const size_t n = json_array_size(finished_stages(record));
    bool more = false;
    if (n > (size_t)l->n) {
        LT_FAIL(LT_ERR_STATE, "%s: %zu stages are finished, the recipe has %d", l->record, n, l->n);
    }
    for (size_t i = 0; i < n; i++) {
        const bool last = i + 1 == n && !later_began(l, (int)i);
        LT_TRY(compare_finished(json_array_get(finished_stages(record), i), &l->stages[i], last,
                                &more));
    }
    if (more) { /* It is trained further. */
        json_array_remove(finished_stages(record), n - 1);
    }
    *out = (int)n - more;
    return LT_OK;
}

/* ---- Training ---- */

/* Index of the stage that --stage names; -1: none is named. */
static lt_err named(int *out, const lt_life *l) {
    const char *name = l->stages[0].recipe->stage;
    *out = -1;
    for (int i = 0; name[0] != '\0' && i < l->n; i++) {
        *out = strcmp(l->stages[i].name, name) == 0 ? i : *out;
    }
    if (name[0] != '\0' && *out < 0) {
        LT_FAIL(LT_ERR_ARG, "--stage %s: the recipe has no such stage; its first is %s", name,
                l->stages[0].name);
    }
    return LT_OK;
}

lt_err lt_life_stage(const lt_life *l, lt_recipe *out) {
    int i;
    LT_TRY(named(&i, l));
    if (i < 0) {
        LT_FAIL(LT_ERR_ARG, "the recipe has %d stages: name one, --stage %s first", l->n,
                l->stages[0].name);
    }
    *out = *l->stages[i].recipe;
    return LT_OK;
}

/* The same, after checking that it can be trained. */
static lt_err chosen(int *out, const lt_life *l, int finished) {
    LT_TRY(named(out, l));
    if (*out > finished) {
        LT_FAIL(LT_ERR_STATE, "--stage %s: stage %s before it is not finished",
                l->stages[*out].name, l->stages[finished].name);
    }
    if (*out < 0 && lt_comm_is_rank()) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "stages one after the other with several ranks: not supported; start each stage by "
                "itself, --stage %s first",
                l->stages[finished < l->n ? finished : 0].name);
    }
    return LT_OK;
}

static lt_err train_stage(const lt_life *l, int i, json_t *record, lt_err (*train)(lt_recipe *r)) {
    const lt_named_recipe *s = &l->stages[i];
    lt_recipe *r = malloc(sizeof *r);
    int rank = 0, n_ranks = 1;
    lt_err err = LT_OK;
    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe of a stage");
    }
    *r = *s->recipe; /* A copy, because training resolves the recipe in place. */
    LT_TRY_DONE(lt_comm_started_as(&rank, &n_ranks));
    if (rank == 0) {
        lt_log_info("stage %s, %d of %d: %s", s->name, i + 1, l->n, r->out);
    }
    LT_TRY_DONE(train(r));
    LT_TRY_DONE(rank == 0 ? note_finished(l, record, s) : LT_OK);
done:
    free(r);
    return err;
}

lt_err lt_life_train(const lt_life *l, lt_err (*train)(lt_recipe *r)) {
    lt_err err = LT_OK;
    json_t *record = NULL;
    int finished = 0, one = -1;
    LT_TRY(load_record(&record, l));
    LT_TRY_DONE(count_finished(&finished, l, record));
    LT_TRY_DONE(chosen(&one, l, finished));
    if (finished > 0) {
        lt_log_info("%d of %d stages are finished", finished, l->n);
    }
    for (int i = finished; i < (one >= 0 ? one + 1 : l->n); i++) {
        LT_TRY_DONE(train_stage(l, i, record, train));
    }
done:
    json_decref(record);
    return err;
}
