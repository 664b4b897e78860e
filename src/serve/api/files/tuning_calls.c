/* tuning_calls.c: /v1/fine_tuning/jobs: creates, lists, describes, pauses, resumes and cancels
 * jobs, lists their events and checkpoints, and deletes their models: see tuning.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"
#include "base/json.h"
#include "base/option.h"
#include "serve/api/access.h"
#include "serve/api/adapters.h"
#include "serve/api/listing.h"
#include "serve/api/route.h"
#include "serve/api/state_calls.h"
#include "serve/api/stored/stored_chat.h"
#include "serve/api/files/tuning.h"

static const lt_field fields[] = {LT_STR("model", model),
                                  LT_STR("training_file", training_file),
                                  LT_STR("validation_file", validation_file),
                                  LT_STR("suffix", suffix_name),
                                  LT_I64("seed", seed, 0, 2147483647),
                                  LT_JSON("hyperparameters", hyperparameters),
                                  LT_JSON("method", tuning_method),
                                  LT_ONLY("integrations", "[]|null"),
                                  LT_JSON("metadata", metadata)};
const lt_field_table lt_fields_tuning_create = LT_FIELD_TABLE(fields, "model,training_file");

/* Check that the server has jobs; the caller's name is stored. False: the call was answered. */
static bool check(lt_call *call, char owner[LT_OWNER_NAME_BYTES]) {
    lt_api_error e;
    if (call->server->tunings == NULL) {
        lt_api_refuse(&e, NULL,
                      "fine-tuning needs a folder: start the server with --fine-tuning DIR");
        e.status = 501;
        e.code = "not_supported";
        lt_call_error(call, &e);
        return false;
    }
    return lt_state_check(call, owner);
}

/* ---- Create ---- */

static const struct {
    const char *name;
    size_t offset;
    bool whole, pairs;
    double above, most; /* Values must be larger than `above`. */
} hyperparameters[] = {
    {"n_epochs", offsetof(lt_tuning, epochs), true, false, 0, 50},
    {"batch_size", offsetof(lt_tuning, batch), true, false, 0, 256},
    {"learning_rate_multiplier", offsetof(lt_tuning, multiplier), false, false, 0, 1000},
    {"beta", offsetof(lt_tuning, beta), false, true, 0, 2},
};
#define N_HYPERPARAMETERS (sizeof hyperparameters / sizeof *hyperparameters)

static bool read_value(lt_tuning *t, size_t i, const json_t *value, const char *where,
                       lt_api_error *e) {
    char *at = (char *)t + hyperparameters[i].offset;
    const double x = json_number_value(value);
    const char *name = hyperparameters[i].name, *text = json_string_value(value);
    if (json_is_null(value) || (text != NULL && strcmp(text, "auto") == 0)) {
        return true;
    }
    if (!json_is_number(value) || !(x > hyperparameters[i].above && x <= hyperparameters[i].most) ||
        (hyperparameters[i].whole && x != floor(x))) {
        return lt_api_refuse(e, name, "'%s.%s' must be auto or a%s number above %g, at most %g",
                             where, name, hyperparameters[i].whole ? " whole" : "",
                             hyperparameters[i].above, hyperparameters[i].most);
    }
    if (hyperparameters[i].whole) {
        *(int64_t *)(void *)at = (int64_t)x;
    } else {
        *(double *)(void *)at = x;
    }
    return true;
}

static bool read_hyperparameters(lt_tuning *t, const json_t *object, const char *where,
                                 lt_api_error *e) {
    const char *key;
    json_t *value;
    if (object != NULL && !json_is_object(object)) {
        return lt_api_refuse(e, where, "'%s' is not an object", where);
    }
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        size_t i = 0;
        while (i < N_HYPERPARAMETERS && strcmp(hyperparameters[i].name, key) != 0) {
            i++;
        }
        if (i == N_HYPERPARAMETERS || (hyperparameters[i].pairs && !t->pairs)) {
            return lt_api_refuse(e, where, "'%s.%.60s' is not supported%s", where, key,
                                 i < N_HYPERPARAMETERS ? ": it is of method dpo" : "");
        }
        if (!read_value(t, i, value, where, e)) {
            return false;
        }
    }
    return true;
}

/* {type, supervised | dpo: {hyperparameters}} */
static bool read_method(lt_tuning *t, const json_t *method, lt_api_error *e) {
    const char *type = json_string_value(json_object_get(method, "type")), *key;
    const json_t *inner;
    json_t *value;
    if (method == NULL) {
        return true;
    }
    if (type == NULL || (strcmp(type, "supervised") != 0 && strcmp(type, "dpo") != 0)) {
        return lt_api_refuse(e, "method", "'method.type' = %.40s; it may be supervised or dpo here",
                             type != NULL ? type : "?");
    }
    t->pairs = type[0] == 'd';
    json_object_foreach((json_t *)(uintptr_t)method, key, value) {
        if (strcmp(key, "type") != 0 && strcmp(key, type) != 0 && !json_is_null(value)) {
            return lt_api_refuse(e, "method", "'method.%.60s' does not belong to the type %s", key,
                                 type);
        }
    }
    inner = json_object_get(method, type);
    json_object_foreach((json_t *)(uintptr_t)inner, key, value) {
        if (strcmp(key, "hyperparameters") != 0) {
            return lt_api_refuse(e, "method", "'method.%s.%.60s' is not supported", type, key);
        }
    }
    return read_hyperparameters(t, json_object_get(inner, "hyperparameters"),
                                "method.hyperparameters", e);
}

/* The served model, or one of the caller's models. */
static bool read_model(const lt_server *s, const char *owner, const char *name, lt_tuning *t,
                       lt_api_error *e) {
    int64_t step = -1;
    const lt_tuning *before = lt_tuning_of_model(s->tunings, name, t->owner, &step);
    if (before != NULL) {
        lt_tuning_adapter(before, step, t->from);
    } else if (!lt_server_is_named(s, name)) {
        lt_server_refuse_model(s, owner, name, e);
        return false;
    }
    if (strlen(name) >= sizeof t->model) {
        return lt_api_refuse(e, "model", "'model' has %zu bytes", strlen(name));
    }
    memcpy(t->model, name, strlen(name) + 1);
    return lt_access_check_model(s, owner, e);
}

static bool read_file(const lt_server *s, const char *id, const char *param, const lt_tuning *t,
                      char out[LT_FILE_ID_BYTES], lt_api_error *e) {
    lt_file_entry file;
    if (strlen(id) >= LT_FILE_ID_BYTES || !lt_files_get(s->files, id, t->owner, false, &file) ||
        strcmp(file.purpose, "fine-tune") != 0) {
        return lt_api_refuse(e, param, "there is no file %.80s whose purpose is fine-tune", id);
    }
    memcpy(out, id, strlen(id) + 1);
    return true;
}

static bool read_suffix(const char *suffix, lt_tuning *t, lt_api_error *e) {
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    if (suffix == NULL) {
        return true;
    }
    if (strlen(suffix) > LT_TUNING_SUFFIX || strspn(suffix, good) != strlen(suffix)) {
        return lt_api_refuse(e, "suffix",
                             "'suffix' must be at most %d of A-Z, a-z, 0-9, -, _ and .",
                             LT_TUNING_SUFFIX);
    }
    memcpy(t->suffix, suffix, strlen(suffix) + 1);
    return true;
}

static bool read_job(const lt_call *call, const lt_api_params *a, lt_tuning *t, lt_api_error *e) {
    const lt_server *s = call->server;
    if (a->model == NULL || a->training_file == NULL) {
        return lt_api_refuse(e, NULL, "model and training_file are required");
    }
    t->seed = a->seed;
    t->metadata = (json_t *)(uintptr_t)a->metadata;
    if (a->hyperparameters != NULL && a->tuning_method != NULL) {
        return lt_api_refuse(
            e, "hyperparameters",
            "'hyperparameters' cannot be combined with 'method', which has its own");
    }
    return read_model(s, call->owner, a->model, t, e) &&
           read_file(s, a->training_file, "training_file", t, t->training, e) &&
           (a->validation_file == NULL ||
            read_file(s, a->validation_file, "validation_file", t, t->validation, e)) &&
           read_suffix(a->suffix_name, t, e) && read_method(t, a->tuning_method, e) &&
           read_hyperparameters(t, a->hyperparameters, "hyperparameters", e) &&
           (a->metadata == NULL || lt_metadata_check(a->metadata, e));
}

static void answer(lt_call *call, const lt_tuning *t) {
    lt_json_out o = {0};
    lt_tuning_write(&o, t);
    lt_call_json(call, 200, &o);
}

void lt_api_tuning_create(lt_call *call) {
    lt_server *s = call->server;
    lt_tuning asked = {.pairs = false}, *t = NULL;
    lt_api_error e = {0};
    lt_api_params a;

    if (!check(call, asked.owner)) {
        return;
    }
    lt_api_params_defaults(&a);
    a.seed = -1;
    if (lt_call_read(call, &a, fields, sizeof fields / sizeof *fields, &e) &&
        read_job(call, &a, &asked, &e)) {
        t = lt_tuning_create(s->tunings, &asked, &e);
    }
    if (t != NULL) {
        answer(call, t);
    } else {
        lt_call_error(call, &e);
    }
    lt_api_params_free(&a);
}

/* ---- Lists ---- */

static const char *job_id(const void *items, size_t i) {
    return ((const lt_tuning *const *)items)[i]->id;
}

static void job_write(lt_json_out *o, const void *items, size_t i) {
    lt_tuning_write(o, ((const lt_tuning *const *)items)[i]);
}

void lt_api_tuning_list(lt_call *call) {
    char owner[LT_OWNER_NAME_BYTES];
    const lt_tuning **list;
    lt_api_error e = {0};
    lt_page p;
    size_t n = 0;

    if (!check(call, owner)) {
        return;
    }
    if (!lt_page_read(call->request->query, false, &p, &e)) {
        lt_call_error(call, &e);
        return;
    }
    for (const lt_tuning *t = call->server->tunings->first; t != NULL; t = t->next) {
        n++;
    }
    list = malloc((n + 1) * sizeof *list);
    n = 0;
    for (const lt_tuning *t = call->server->tunings->first; t != NULL; t = t->next) {
        if (list != NULL && strcmp(t->owner, owner) == 0 &&
            lt_metadata_fits(t->metadata, call->request->query)) {
            list[n++] = t;
        }
    }
    lt_page_answer(call, &(lt_listing){n, list, job_id, job_write}, &p);
    free(list);
}

static const char *event_id(const void *items, size_t i) {
    return json_string_value(json_object_get(json_array_get(items, i), "id"));
}

static void event_write(lt_json_out *o, const void *items, size_t i) {
    lt_out_value(o, json_array_get(items, i));
}

static void list_events(lt_call *call, const lt_tuning *t, const lt_page *p) {
    char path[LT_PATH_BYTES], *text = NULL;
    json_t *events = json_array();
    size_t n = 0;
    if (lt_tuning_path(t, "events.jsonl", path) == LT_OK && lt_file_exists(path) &&
        lt_file_read(&text, &n, path, LT_TUNING_EVENTS_BYTES) == LT_OK) {
        for (const char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
            json_t *event = lt_json_loadb(at, (size_t)(end - at), 0, NULL);
            (void)json_array_append_new(events, event);
        }
        free(text);
    }
    lt_page_answer(call, &(lt_listing){json_array_size(events), events, event_id, event_write}, p);
    json_decref(events);
}

/* Checkpoints of a job, with the metrics of their steps. */
typedef struct {
    const lt_tuning *t;
    lt_tuning_step *steps; /* (n) */
    size_t n;
    char ids[sizeof((lt_tuning *)0)->saved / sizeof(int64_t)][64];
} checkpoints;

static const char *checkpoint_id(const void *items, size_t i) {
    return ((const checkpoints *)items)->ids[i];
}

static void checkpoint_write(lt_json_out *o, const void *items, size_t i) {
    const checkpoints *c = items;
    const int64_t step = c->t->saved[i];
    char name[LT_TUNING_NAME_BYTES];
    lt_tuning_name(c->t, step, name);
    lt_out_open(o, '{');
    lt_out_key_str(o, "object", "fine_tuning.job.checkpoint");
    lt_out_key_str(o, "id", c->ids[i]);
    lt_out_key_int(o, "created_at", lt_tuning_saved_at(c->t, step));
    lt_out_key_str(o, "fine_tuned_model_checkpoint", name);
    lt_out_key_str(o, "fine_tuning_job_id", c->t->id);
    lt_out_key_int(o, "step_number", step);
    lt_out_key_open(o, "metrics", '{');
    lt_out_key_int(o, "step", step);
    for (size_t k = 0; k < c->n; k++) {
        if (c->steps[k].step == step) {
            lt_tuning_put_known(o, "train_loss", c->steps[k].loss);
            lt_tuning_put_known(o, "full_valid_loss", c->steps[k].valid_loss);
            lt_tuning_put_known(o, "full_valid_mean_token_accuracy",
                                c->t->pairs ? (double)NAN : c->steps[k].valid_accuracy);
        }
    }
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

static void list_checkpoints(lt_call *call, const lt_tuning *t, const lt_page *p) {
    checkpoints c = {.t = t};
    c.steps = lt_tuning_steps(t, &c.n);
    for (int i = 0; i < t->n_saved; i++) {
        snprintf(c.ids[i], sizeof c.ids[i], "ftckpt_%s-%lld", t->id + strlen("ftjob-"),
                 (long long)t->saved[i]);
    }
    lt_page_answer(call, &(lt_listing){(size_t)t->n_saved, &c, checkpoint_id, checkpoint_write}, p);
    free(c.steps);
}

/* ---- One job ---- */

/* The job at the beginning of the path's tail; *rest is what follows. NULL: the call was
 * answered. */
static lt_tuning *find(lt_call *call, const char **rest) {
    char owner[LT_OWNER_NAME_BYTES], id[sizeof((lt_tuning *)0)->id] = "";
    const size_t n = strcspn(call->tail, "/");
    lt_tuning *t;
    lt_api_error e;

    if (!check(call, owner)) {
        return NULL;
    }
    memcpy(id, call->tail, n < sizeof id ? n : 0);
    *rest = call->tail + n;
    t = lt_tuning_find(call->server->tunings, id, owner);
    if (t == NULL) {
        lt_api_refuse(&e, "fine_tuning_job_id", "No fine-tuning job found with id '%.*s'.",
                      (int)(n < 80 ? n : 80), call->tail);
        e.status = 404;
        lt_call_error(call, &e);
    }
    return t;
}

static void no_such_path(lt_call *call) {
    lt_api_error e;
    lt_api_refuse(&e, NULL, "there is no %.200s here", call->request->path);
    e.status = 404;
    lt_call_error(call, &e);
}

void lt_api_tuning_get(lt_call *call) {
    const char *rest = NULL;
    const lt_tuning *t = find(call, &rest);
    const bool events = t != NULL && strcmp(rest, "/events") == 0;
    const bool saved = t != NULL && strcmp(rest, "/checkpoints") == 0;
    lt_api_error e = {0};
    lt_page p;
    if (t == NULL) {
        return;
    }
    if (rest[0] == '\0') {
        answer(call, t);
    } else if (!events && !saved) {
        no_such_path(call);
    } else if (!lt_page_read(call->request->query, false, &p, &e)) {
        lt_call_error(call, &e);
    } else if (events) {
        list_events(call, t, &p);
    } else {
        list_checkpoints(call, t, &p);
    }
}

void lt_api_tuning_change(lt_call *call) {
    static const struct {
        const char *path;
        bool (*change)(lt_tuning *t, lt_api_error *e);
    } changes[] = {
        {"/cancel", lt_tuning_cancel}, {"/pause", lt_tuning_pause}, {"/resume", lt_tuning_resume}};
    const char *rest = NULL;
    lt_tuning *t = find(call, &rest);
    lt_api_error e = {0};
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        if (strcmp(rest, changes[i].path) != 0) {
            continue;
        }
        if (changes[i].change(t, &e)) {
            answer(call, t);
        } else {
            lt_call_error(call, &e);
        }
        return;
    }
    no_such_path(call);
}

/* ---- Their models ---- */

/* Whether the name is that of a model or adapter that the owner may use. */
static bool is_served(lt_server *front, const char *owner, const char *name) {
    for (int i = 0; i < lt_server_count(front); i++) {
        const lt_server *s = lt_server_at(front, i);
        if (lt_access_may_use(s, owner) && lt_server_answers_to(s, name)) {
            return true;
        }
    }
    return false;
}

void lt_api_model_delete(lt_call *call) {
    char owner[LT_OWNER_NAME_BYTES], name[LT_TUNING_NAME_BYTES];
    lt_server *s = call->server;
    lt_api_error e = {0};
    lt_json_out o = {0};
    int64_t step = -1;
    lt_tuning *t = NULL;

    (void)lt_percent_decode(name, sizeof name, call->tail, strlen(call->tail), false);
    if (s->tunings != NULL) {
        if (!check(call, owner)) {
            return;
        }
        t = lt_tuning_of_model(s->tunings, name, owner, &step);
    }
    if (t == NULL && is_served(s, call->owner, name) && strncmp(name, "ft:", 3) != 0) {
        lt_api_refuse(&e, "model", "'%.100s' was not made by fine-tuning: it cannot be deleted",
                      name);
        e.status = 403;
        e.type = "permission_error";
    } else if (t == NULL) {
        lt_server_refuse_model(s, call->owner, name, &e);
    }
    if (t == NULL || !lt_tuning_delete_model(t, step, &e)) {
        lt_call_error(call, &e);
        return;
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "id", name);
    lt_out_key_str(&o, "object", "model");
    lt_out_key_bool(&o, "deleted", true);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}
