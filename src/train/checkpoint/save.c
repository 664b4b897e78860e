/* save.c: what a run saves: checkpoints, by one rank or by all, and the model at the end.
 *
 * Where rank 0 holds the whole model it writes alone. Where the model is divided, every rank writes
 * the boxes that it answers for, all at once:
 *
 *     rank 0     begin ─┐         ┌─ write its part ─┐          ┌─ publish
 *     others            └─ meet ──┴─ write theirs ───┴─ meet ───┘
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "data/tokenizer/bring.h"
#include "model/alloc.h"
#include "model/infer/generation.h"
#include "parallel/whole.h"
#include "train/recipe/changes.h"
#include "train/run.h"

lt_err lt_training_gather_state(lt_training *t) {
    json_decref(t->state.loader);
    json_decref(t->state.guard);
    json_decref(t->state.recipe);
    json_decref(t->state.data);
    t->state.loader = t->source.print(t->source.of, &t->place);
    t->state.guard = lt_guard_save(&t->guard);
    t->state.recipe = lt_recipe_json(&t->recipe);
    t->state.data = json_incref(t->data);
    if (t->state.loader == NULL || t->state.guard == NULL || t->state.recipe == NULL) {
        LT_FAIL(LT_ERR_OOM, "run state");
    }
    return LT_OK;
}

/* Rank 0 holds the whole model. */
static lt_err save_whole(lt_training *t) {
    if (!lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    LT_TRY(lt_training_gather_state(t));
    return lt_checkpoint_save(t->checkpoints, t->trained, &t->optimiser, &t->state, &t->lease);
}

lt_err lt_training_meet(lt_training *t, lt_err err) {
    lt_step_record record = {0};
    return lt_ranks_combine(&t->ranks, &record, err);
}

static lt_err write_own_part(lt_training *t) {
    int n_parts;
    const int part = lt_shards_part(&t->shards, &n_parts);
    if (part < 0) {
        return LT_OK;
    }
    return lt_checkpoint_write_part(t->checkpoints, t->state.step, part, n_parts, t->trained,
                                    &t->optimiser, &t->world->layout, &t->lease);
}

static lt_err publish_parts(lt_training *t) {
    int n_parts;
    (void)lt_shards_part(&t->shards, &n_parts);
    LT_TRY(lt_training_gather_state(t));
    return lt_checkpoint_publish(t->checkpoints, n_parts, t->trained, &t->optimiser, &t->state,
                                 &t->lease);
}

/* Copy the state now, and write it while the run continues. */
static lt_err save_behind(lt_training *t) {
    const bool leads = lt_ranks_lead(&t->ranks);
    LT_TRY(leads ? lt_training_gather_state(t) : LT_OK);
    if (lt_training_is_divided(t)) {
        LT_TRY(lt_training_meet(
            t, leads ? lt_checkpoint_begin(t->checkpoints, t->state.step, &t->lease) : LT_OK));
    }
    return lt_saver_start(t);
}

static lt_err save_parts(lt_training *t) {
    const bool leads = lt_ranks_lead(&t->ranks);
    lt_err err;
    LT_TRY(lt_training_meet(t, leads ? lt_checkpoint_begin(t->checkpoints, t->state.step, &t->lease)
                                     : LT_OK));
    err = lt_training_meet(t, write_own_part(t));
    if (err == LT_OK && leads) {
        err = publish_parts(t);
    }
    err = lt_training_meet(t, err); /* Afterwards every rank finds the checkpoint. */
    return err != LT_OK && leads
               ? lt_checkpoint_give_up(t->checkpoints, t->state.step, &t->lease, err)
               : err;
}

static lt_err prune(const lt_training *t, const char *folder, int64_t also) {
    const lt_checkpoint_keep keep = {
        .last = t->recipe.keep_last, .every = t->recipe.keep_every, .also = also};
    return lt_checkpoint_prune(folder, &keep, &t->lease);
}

lt_err lt_training_prune(lt_training *t) {
    return prune(t, t->checkpoints, atomic_load(&t->mirror.step));
}

/* ---- Adapters ---- */

/* Put what this rank sends of a parameter at its place among all values. */
static lt_err put_values(const lt_training *t, const lt_param *p, float *values) {
    const lt_model *m = t->trained;
    const size_t bytes = (size_t)p->local_count * sizeof *values;
    const lt_box *boxes = lt_param_boxes(&m->table, p);
    float *held = malloc(bytes);
    lt_err err = held == NULL ? lt_error_set(LT_ERR_OOM, "%s", p->name)
                              : lt_model_download(m, held, lt_param_data(&m->master, p), bytes);
    for (int64_t at = 0, run, b = 0, end = 0; err == LT_OK && at < p->local_count; at += run) {
        const int64_t whole = lt_param_whole_index(&m->table, p, at, &run);
        while (at >= end) {
            end += lt_box_count(&boxes[b++], p->n_dims);
        }
        if (lt_whole_sends(t->world, &t->shards, p, &boxes[b - 1])) {
            memcpy(values + p->whole_at + whole, held + at, (size_t)run * sizeof *values);
        }
    }
    free(held);
    return err;
}

/* A collective call if ranks divide the adapters: all values on every rank; NULL if they are whole.
 * Values are summed as integers, of which all but one are 0, so that every bit is kept. Free
 * *out. */
static lt_err bring_values(const lt_training *t, float **out) {
    const lt_param_table *table = &t->trained->table;
    float *values = NULL;
    lt_err err = LT_OK;
    *out = NULL;
    if (!lt_training_is_divided(t)) {
        return LT_OK;
    }
    values = calloc((size_t)table->whole_elements, sizeof *values);
    if (values == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld values of adapters", (long long)table->whole_elements);
    }
    for (int i = 0; i < table->n_params; i++) {
        const lt_param *p = &table->params[i];
        LT_TRY_DONE(p->local_count > 0 ? put_values(t, p, values) : LT_OK);
    }
    LT_TRY_DONE(lt_all_reduce(t->world->mesh.world, values, values, table->whole_elements, LT_I32,
                              LT_REDUCE_SUM, NULL));
    *out = values;
    values = NULL;
done:
    free(values);
    return err;
}

/* values: from bring_values. */
static lt_err write_adapters(const lt_training *t, const float *values, const char *folder) {
    return values != NULL ? lt_lora_write(t->lora, values, folder, t->recipe.init)
                          : lt_lora_save(t->lora, folder, t->recipe.init);
}

/* Write RUN/adapters/step-N, complete or not at all, as checkpoints are. A folder of an earlier
 * start at the same step is replaced, because that start may have had another learning rate. */
static lt_err save_values(const lt_training *t, const float *values) {
    char folder[LT_PATH_BYTES], aside[LT_PATH_BYTES];
    LT_TRY(lt_path_join(folder, t->recipe.out, "adapters"));
    LT_TRY(lt_checkpoint_aside(aside, folder, t->state.step, &t->lease));
    LT_TRY(lt_file_remove_tree(aside));
    LT_TRY(write_adapters(t, values, aside));
    LT_TRY(lt_checkpoint_take_name(folder, t->state.step, &t->lease));
    return prune(t, folder, -1);
}

static lt_err save_adapters(const lt_training *t) {
    float *values;
    lt_err err = LT_OK;
    if (!t->recipe.save_adapters) {
        return LT_OK;
    }
    LT_TRY(bring_values(t, &values));
    err = lt_ranks_lead(&t->ranks) ? save_values(t, values) : LT_OK;
    free(values);
    return err;
}

lt_err lt_training_save(lt_training *t) {
    double start;
    bool publish = false;
    if (t->saved_step == t->state.step) {
        return LT_OK;
    }
    LT_TRY(lt_saver_wait(t)); /* Wait for the previous checkpoint. */
    LT_TRY(lt_diloco_settle(t));
    start = lt_clock_s();
    LT_TRY(lt_training_settle(t));
    LT_TRY(lt_replicas_compare_state(t));
    LT_TRY(lt_training_judge(t, &publish));
    t->save_late = !publish;
    if (!publish) {
        return LT_OK;
    }
    LT_TRY(save_adapters(t));
    if (t->recipe.save_async) {
        t->saved_step = t->state.step;
        return save_behind(t);
    }
    LT_TRY(lt_training_is_divided(t) ? save_parts(t) : save_whole(t));
    if (lt_ranks_lead(&t->ranks)) {
        LT_TRY(lt_training_prune(t));
    }
    t->saved_step = t->state.step;
    lt_live_saved(t->live, t->saved_step);
    LT_TRY(lt_mirror_publish(t, t->saved_step));
    lt_log_debug("step %lld: checkpoint in %.2f s", (long long)t->state.step, lt_clock_s() - start);
    return LT_OK;
}

/* ---- The model at the end ---- */

static lt_err export_own(lt_training *t, const char *folder) {
    LT_TRY(lt_training_settle(t));
    return lt_model_save(t->model, folder, t->model->options.dtype, 0);
}

/* No rank holds the whole model, but the checkpoint of the last step does. */
static lt_err export_checkpoint(const lt_training *t, const char *folder) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    lt_model *m = NULL;
    LT_ASSERT(t->saved_step == t->state.step);
    LT_TRY(lt_checkpoint_path(path, t->checkpoints, t->saved_step));
    LT_TRY(lt_checkpoint_open_model(&m, path));
    err = lt_generation_copy(m, t->trained);
    err = err == LT_OK ? lt_model_save(m, folder, t->model->options.dtype, 0) : err;
    lt_model_close(m);
    return err;
}

const char *lt_training_product(const lt_training *t) {
    return t->lora != NULL ? "adapter" : "model";
}

/* The tokenizer's files are copied beside the weights, so that the folder can be used directly. */
static lt_err export_tokenizer(const lt_training *t, const char *folder) {
    const lt_err err = lt_tokenizer_bring(t->recipe.tokenizer, folder);
    if (err == LT_ERR_UNSUPPORTED || err == LT_ERR_NOT_FOUND) {
        lt_log_warn("%s will have no tokenizer: %s", folder, lt_error_message());
        return LT_OK;
    }
    return err;
}

/* A run on conversations exports a model that is ready for them, with tokenizer and template. */
static lt_err export_chat(const lt_training *t, const char *folder) {
    const char *text = lt_chat_template_text(t->chat.template);
    char path[LT_PATH_BYTES];
    LT_TRY(export_tokenizer(t, folder));
    LT_TRY(lt_path_join(path, folder, "chat_template.jinja"));
    return lt_file_write_atomic(path, text, strlen(text));
}

/* Write RUN/adapter, which PEFT loads beside model.init. */
static lt_err export_adapters(lt_training *t, const char *folder) {
    float *values;
    lt_err err = LT_OK;
    LT_TRY(lt_training_settle(t));
    LT_TRY(bring_values(t, &values));
    err = lt_ranks_lead(&t->ranks) ? write_adapters(t, values, folder) : LT_OK;
    free(values);
    return err;
}

/* Write RUN/model: weights, config and, if there is one, the tokenizer's file. */
lt_err lt_training_export(lt_training *t) {
    char folder[LT_PATH_BYTES];

    LT_TRY(lt_path_join(folder, t->recipe.out, lt_training_product(t)));
    if (!lt_ranks_lead(&t->ranks)) {
        return t->lora != NULL ? export_adapters(t, folder) : LT_OK;
    }
    LT_TRY(lt_lease_check(&t->lease));
    LT_TRY(t->lora != NULL             ? export_adapters(t, folder)
           : lt_training_is_divided(t) ? export_checkpoint(t, folder)
                                       : export_own(t, folder));
    if (t->chat.template != NULL) {
        return export_chat(t, folder);
    }
    return t->recipe.tokenizer[0] != '\0' ? export_tokenizer(t, folder) : LT_OK;
}
