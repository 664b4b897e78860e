/* adapters.c: see adapters.h: the names, the adapters of a request, and reports about them. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "model/lora/lora_gguf.h"
#include "serve/api/adapters_impl.h"
#include "serve/api/models.h"

#define MIB(bytes)     ((double)(bytes) / 1048576.0)
#define UPDATED_PLACES 4  /* At least, if adapters are loaded later; */
#define UPDATED_RANK   16 /* and the rank: vLLM's --max-lora-rank. */

/* ---- Names, under the lock ---- */

static lt_adapter *find(const lt_adapter_set *a, const char *name) {
    for (size_t i = 0; name != NULL && i < a->n_names; i++) {
        if (strcmp(a->names[i]->name, name) == 0) {
            return a->names[i];
        }
    }
    return NULL;
}

lt_adapter *lt_adapter_of_number(const lt_adapter_set *a, int64_t number) {
    for (size_t i = 0; i < a->n_names; i++) {
        if (a->names[i]->number == number) {
            return a->names[i];
        }
    }
    return NULL;
}

/* owner: the caller's key; NULL: those that are owned are left out. */
static bool is_shown(const lt_adapter *d, const char *owner) {
    return !d->owned || (owner != NULL && d->owner != NULL && strcmp(d->owner, owner) == 0);
}

bool lt_adapter_set_know(lt_adapter_set *a, const char *name) {
    bool known;
    if (a == NULL) {
        return false;
    }
    pthread_mutex_lock(&a->lock);
    known = find(a, name) != NULL;
    pthread_mutex_unlock(&a->lock);
    return known;
}

/* A new number, so that the contents of the older folder in a place are not used for the name. */
static void point_at(lt_adapter_set *a, lt_adapter *d, const char *folder) {
    snprintf(d->path, sizeof d->path, "%s", folder);
    d->number = a->n_numbers++;
    d->created = (int64_t)lt_clock_unix_s();
}

static lt_err append(lt_adapter_set *a, const char *name, const char *folder) {
    lt_adapter **names = realloc(a->names, (a->n_names + 1) * sizeof *names);
    lt_adapter *d = calloc(1, sizeof *d);
    a->names = names != NULL ? names : a->names;
    if (names == NULL || d == NULL) {
        free(d);
        LT_FAIL(LT_ERR_OOM, "adapter %s", name);
    }
    snprintf(d->name, sizeof d->name, "%s", name);
    point_at(a, d, folder);
    a->names[a->n_names++] = d;
    return LT_OK;
}

/* "NAME=PATH". For "PATH" alone the name is its last part, without a file's .gguf. */
static lt_err read_pair(const char *text, char name[256], const char **folder) {
    const char *equals = strchr(text, '=');
    size_t n = equals != NULL ? (size_t)(equals - text) : strlen(text), from = 0;
    *folder = equals != NULL ? equals + 1 : text;
    while (equals == NULL && n > 1 && text[n - 1] == '/') {
        n--;
    }
    if (equals == NULL && lt_lora_is_gguf_path(text)) {
        n -= sizeof ".gguf" - 1;
    }
    for (size_t i = 0; equals == NULL && i < n; i++) {
        from = text[i] == '/' ? i + 1 : from;
    }
    if (n == from || n - from > 255 || (*folder)[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "--lora %.200s: NAME=PATH with a name of 1 to 255 bytes is expected",
                text);
    }
    snprintf(name, 256, "%.*s", (int)(n - from), text + from);
    return LT_OK;
}

/* ---- Opening ---- */

/* Whether the name is that of a model. */
static bool is_model(const lt_adapter_set *a, const char *name) {
    const lt_server *s = a->server;
    return s->models != NULL ? lt_models_find(s->models, name) != NULL
                             : lt_server_answers_to(s, name);
}

static lt_err add_named(lt_adapter_set *a, const char *text) {
    const char *folder;
    char name[256];
    LT_TRY(read_pair(text, name, &folder));
    if (find(a, name) != NULL || is_model(a, name)) {
        LT_FAIL(LT_ERR_ARG, "--lora %s: the name is already that of %s", text,
                find(a, name) != NULL ? "another adapter" : "a model");
    }
    return append(a, name, folder);
}

lt_err lt_adapter_set_open(lt_adapter_set **out, lt_server *s) {
    lt_err err = LT_OK;
    lt_adapter_set *a;
    if (s->o.n_lora == 0 && !s->o.lora_updating && s->o.tuning.dir[0] == '\0') {
        return LT_OK;
    }
    if (s->o.n_lora > LT_ADAPTERS_MOST) {
        LT_FAIL(LT_ERR_LIMIT, "%d adapters: at most %d are possible", s->o.n_lora,
                LT_ADAPTERS_MOST);
    }
    a = calloc(1, sizeof *a);
    if (a == NULL) {
        LT_FAIL(LT_ERR_OOM, "adapters");
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->idle, NULL);
    a->server = s;
    a->generation = 1;
    a->on_retry = event_new(s->base, -1, 0, lt_adapter_set_retry, a);
    if (a->on_retry == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "adapters");
    }
    for (int i = 0; i < s->o.n_lora; i++) {
        LT_TRY_DONE(add_named(a, s->o.lora[i]));
    }
    *out = a;
    a = NULL;
done:
    lt_adapter_set_close(a);
    return err;
}

void lt_adapter_set_close(lt_adapter_set *a) {
    if (a == NULL) {
        return;
    }
    lt_adapter_set_unload(a);
    if (a->on_retry != NULL) {
        event_free(a->on_retry);
    }
    for (size_t i = 0; i < a->n_names; i++) {
        free(a->names[i]);
    }
    free(a->names);
    pthread_cond_destroy(&a->idle);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* ---- Beside a model ---- */

/* Number and folder of the i-th name; path "": it is owned, and not yet read. False: there are
 * fewer. */
static bool name_at(lt_adapter_set *a, size_t i, int64_t *number, char path[LT_PATH_BYTES]) {
    bool found;
    pthread_mutex_lock(&a->lock);
    found = i < a->n_names;
    if (found) {
        *number = a->names[i]->number;
        snprintf(path, LT_PATH_BYTES, "%s", a->names[i]->owned ? "" : a->names[i]->path);
    }
    pthread_mutex_unlock(&a->lock);
    return found;
}

/* Whether one of the named adapters has magnitudes. If adapters are loaded later, one may. */
static lt_err choose_dora(lt_adapter_set *a, bool *dora) {
    char path[LT_PATH_BYTES];
    int64_t number;
    *dora = a->server->o.lora_updating;
    for (size_t i = 0; !*dora && name_at(a, i, &number, path); i++) {
        const bool folder = path[0] != '\0' && !lt_lora_is_gguf_path(path);
        LT_TRY(folder ? lt_lora_dora_of(dora, path) : LT_OK);
    }
    return LT_OK;
}

/* The largest rank of the adapters that are named or will be trained, unless the options set it. */
static lt_err choose_rank(lt_adapter_set *a, int64_t *rank) {
    const lt_server_options *o = &a->server->o;
    char path[LT_PATH_BYTES];
    int64_t number;
    *rank = o->lora_updating ? UPDATED_RANK : 1;
    if (o->tuning.dir[0] != '\0' && o->tuning.rank > *rank) {
        *rank = o->tuning.rank;
    }
    for (size_t i = 0; o->max_lora_rank == 0 && name_at(a, i, &number, path); i++) {
        int64_t own = 0;
        LT_TRY(path[0] != '\0' ? lt_lora_rank_of(&own, path) : LT_OK);
        *rank = own > *rank ? own : *rank;
    }
    *rank = o->max_lora_rank > 0 ? o->max_lora_rank : *rank;
    return LT_OK;
}

static int32_t choose_places(const lt_server_options *o) {
    const bool grows = o->lora_updating || o->tuning.dir[0] != '\0';
    const int64_t least = grows ? UPDATED_PLACES : 1;
    const int64_t n = o->max_loras > 0 ? o->max_loras : o->n_lora > least ? o->n_lora : least;
    return (int32_t)(n < LT_LORA_POOL_MOST ? n : LT_LORA_POOL_MOST);
}

/* Each adapter is read, so that errors are reported at the start; places are filled until none is
 * free. */
static lt_err load_one(lt_adapter_set *a, size_t i, int64_t number, const char *path) {
    lt_lora_image image = {0};
    LT_TRY(lt_lora_image_open(&image, a->pool, &(lt_lora_source){path, 1.0f}, 1));
    lt_err err = LT_OK;
    pthread_mutex_lock(&a->lock);
    lt_adapter *d = lt_adapter_of_number(a, number);
    if (d != NULL) {
        d->dora = image.dora;
    }
    pthread_mutex_unlock(&a->lock);
    if (i < (size_t)a->n_places) {
        lt_adapter_place *p = &a->places[i];
        err = lt_lora_pool_fill(a->pool, (int32_t)i, &image);
        *p = (lt_adapter_place){
            .state = LT_PLACE_FILLED, .n = 1, .used = ++a->clock, .filled = a->clock};
        p->uses[0] = (lt_adapter_use){number, 1.0f, image.dora};
    }
    lt_lora_image_close(&image);
    return err;
}

lt_err lt_adapter_set_load(lt_adapter_set *a) {
    char path[LT_PATH_BYTES];
    int64_t rank = 0, number;
    size_t i;
    bool dora = false;
    if (a == NULL) {
        return LT_OK;
    }
    LT_TRY(choose_rank(a, &rank));
    a->n_places = choose_places(&a->server->o);
    a->places = calloc((size_t)a->n_places, sizeof *a->places);
    if (a->places == NULL) {
        LT_FAIL(LT_ERR_OOM, "adapters");
    }
    LT_TRY(choose_dora(a, &dora));
    LT_TRY(lt_lora_pool_open(a->server->model, a->n_places, rank, dora));
    a->pool = a->server->model->lora_pool;
    for (i = 0; name_at(a, i, &number, path); i++) {
        LT_TRY(path[0] != '\0' ? load_one(a, i, number, path) : LT_OK);
    }
    if (!a->server->o.quiet) {
        lt_log_info("serve: %zu adapter%s; %d in memory at once, %.1f MiB each, of rank %lld "
                    "at most",
                    i, i == 1 ? "" : "s", (int)a->n_places, MIB(lt_lora_pool_place_bytes(a->pool)),
                    (long long)lt_lora_pool_rank(a->pool));
    }
    pthread_mutex_lock(&a->lock);
    a->loaded = true;
    pthread_mutex_unlock(&a->lock);
    return LT_OK;
}

void lt_adapter_set_unload(lt_adapter_set *a) {
    if (a == NULL) {
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->loaded = false;
    a->generation++;
    while (a->n_readers > 0) {
        pthread_cond_wait(&a->idle, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    free(a->places);
    a->places = NULL;
    a->n_places = 0;
    a->pool = NULL;
}

bool lt_adapter_set_begin_read(lt_adapter_set *a, uint64_t generation) {
    bool ok;
    pthread_mutex_lock(&a->lock);
    ok = a->loaded && (generation == 0 || generation == a->generation);
    a->n_readers += ok;
    pthread_mutex_unlock(&a->lock);
    return ok;
}

void lt_adapter_set_end_read(lt_adapter_set *a) {
    pthread_mutex_lock(&a->lock);
    a->n_readers--;
    pthread_cond_signal(&a->idle);
    pthread_mutex_unlock(&a->lock);
}

/* ---- What a request asks for ---- */

static bool add_use(lt_adapter_choice *c, const lt_adapter *d, double scale, lt_api_error *e) {
    const int64_t number = d->number;
    int at = c->n;
    if (scale == 0.0) {
        return true;
    }
    for (int i = 0; i < c->n; i++) {
        if (c->uses[i].number == number) {
            return lt_api_refuse(e, "lora", "'lora' names the adapter %lld twice",
                                 (long long)number);
        }
    }
    if (c->n == LT_ADAPTERS_OF_REQUEST) {
        return lt_api_refuse(e, "lora", "'lora' adds up more than %d adapters",
                             LT_ADAPTERS_OF_REQUEST);
    }
    while (at > 0 && c->uses[at - 1].number > number) {
        c->uses[at] = c->uses[at - 1];
        at--;
    }
    c->uses[at] = (lt_adapter_use){number, (float)scale, d->dora};
    c->n++;
    return true;
}

/* One {id, scale}: *found, *scale. id: the number, or a name. */
static bool read_entry(const lt_adapter_set *a, const json_t *entry, const char *owner,
                       lt_adapter **found, double *scale, lt_api_error *e) {
    const json_t *id = json_object_get(entry, "id"), *s = json_object_get(entry, "scale");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)entry, key, value) {
        if (strcmp(key, "id") != 0 && strcmp(key, "scale") != 0) {
            return lt_api_refuse(e, "lora",
                                 "'lora' has a field '%.60s': its entries are {id, "
                                 "scale}",
                                 key);
        }
    }
    if (!json_is_number(s) || (!json_is_integer(id) && !json_is_string(id))) {
        return lt_api_refuse(e, "lora",
                             "an entry of 'lora' is {id, scale}: a number of /lora-adapters or a "
                             "name, and a factor");
    }
    *scale = json_number_value(s);
    if (!(*scale >= -LT_LORA_SCALE && *scale <= LT_LORA_SCALE)) {
        return lt_api_refuse(e, "lora", "'lora' has the scale %g: at most %g is possible", *scale,
                             LT_LORA_SCALE);
    }
    *found = json_is_string(id) ? find(a, json_string_value(id))
                                : lt_adapter_of_number(a, json_integer_value(id));
    *found = *found != NULL && is_shown(*found, owner) ? *found : NULL;
    if (*found == NULL && json_is_string(id)) {
        return lt_api_refuse(e, "lora", "invalid adapter id: no adapter is named '%.100s'",
                             json_string_value(id));
    }
    return *found != NULL || lt_api_refuse(e, "lora", "invalid adapter id %lld; there are %zu",
                                           (long long)json_integer_value(id), a->n_names);
}

static bool read_list(lt_adapter_set *a, const json_t *list, const char *owner,
                      lt_adapter_choice *c, lt_api_error *e) {
    if (!json_is_array(list)) {
        return lt_api_refuse(e, "lora", "'lora' is not a list of {id, scale}");
    }
    if (json_array_size(list) > 0 && a == NULL) {
        return lt_api_refuse(e, "lora",
                             "'lora': there are no adapters here (serve --lora NAME=PATH)");
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        lt_adapter *d = NULL;
        double scale = 1.0;
        if (!read_entry(a, json_array_get(list, i), owner, &d, &scale, e) ||
            !add_use(c, d, scale, e)) {
            return false;
        }
    }
    return true;
}

/* Called with the lock held. */
static bool choose(lt_adapter_set *a, const lt_api_params *p, const char *owner,
                   lt_adapter_choice *c, lt_api_error *e) {
    const lt_adapter *named = find(a, p->model);
    if (named != NULL && !is_shown(named, owner)) {
        lt_server_refuse_model(lt_server_front(a->server), owner, p->model, e);
        return false;
    }
    if (named != NULL && p->lora != NULL) {
        return lt_api_refuse(e, "lora",
                             "the model is an adapter and there is also 'lora': name the model "
                             "'%.100s' and all adapters in 'lora'",
                             a->server->name);
    }
    if (p->lora != NULL) {
        return read_list(a, p->lora, owner, c, e);
    }
    if (named != NULL) {
        c->name = p->model;
        return add_use(c, named, 1.0, e);
    }
    for (size_t i = 0; i < a->n_names; i++) {
        if (!add_use(c, a->names[i], (double)a->names[i]->scale, e)) {
            return false;
        }
    }
    return true;
}

bool lt_adapter_set_choose(lt_reply *j, lt_api_error *e) {
    lt_adapter_set *a = j->server->adapters;
    bool ok;
    if (j->model != j->server) { /* A reward model reads texts, without adapters. */
        return true;
    }
    if (a == NULL) {
        return j->params.lora == NULL || read_list(NULL, j->params.lora, j->owner, &j->adapters, e);
    }
    pthread_mutex_lock(&a->lock);
    ok = choose(a, &j->params, j->owner, &j->adapters, e);
    pthread_mutex_unlock(&a->lock);
    return ok;
}

/* ---- Names that come and go ---- */

static bool refuse_input(lt_api_error *e, const char *param, const char *what, const char *name,
                         const char *rest) {
    lt_api_refuse(e, param, "%s '%.200s' %s", what, name, rest);
    e->type = "InvalidUserInput";
    return false;
}

static bool refuse_folder(lt_api_error *e, const char *name, lt_err err) {
    char why[sizeof e->message];
    lt_log_warn("serve: adapter %s: %s", name, lt_error_message());
    snprintf(why, sizeof why, "%s", lt_error_message());
    lt_api_hide_paths(why);
    lt_api_refuse(e, "lora_path", "loading the lora adapter '%.100s' failed: %.350s", name, why);
    e->type = "BadRequestError";
    if (err == LT_ERR_NOT_FOUND) {
        e->status = 404;
        e->type = "NotFoundError";
    }
    return false;
}

bool lt_adapter_set_add(lt_adapter_set *a, const char *name, const char *folder, bool inplace,
                        lt_api_error *e) {
    static const char taken[] = "has already been loaded";
    lt_lora_image image = {0};
    lt_adapter *d;
    lt_err err;
    bool dora;
    if (strlen(name) > 255 || strlen(folder) >= LT_PATH_BYTES) {
        return refuse_input(e, "lora_name", "The name or the path of the lora adapter", name,
                            "is too long");
    }
    if (!inplace && lt_adapter_set_know(a, name)) {
        return refuse_input(e, "lora_name", "The lora adapter", name, taken);
    }
    if (!lt_adapter_set_know(a, name) && is_model(a, name)) {
        return refuse_input(e, "lora_name", "The name", name, "is that of a model");
    }
    if (!lt_adapter_set_begin_read(a, 0)) {
        lt_api_refuse(e, NULL, "the model '%.100s' is not loaded", a->server->name);
        e->status = 503;
        return false;
    }
    err = lt_lora_image_open(&image, a->pool, &(lt_lora_source){folder, 1.0f}, 1);
    dora = image.dora;
    lt_lora_image_close(&image);
    lt_adapter_set_end_read(a);
    if (err != LT_OK) {
        return refuse_folder(e, name, err);
    }
    pthread_mutex_lock(&a->lock);
    d = find(a, name);
    if (d != NULL && inplace) {
        point_at(a, d, folder);
        d->dora = dora;
    } else if (d == NULL && a->n_names < LT_ADAPTERS_MOST) {
        err = append(a, name, folder);
        if (err == LT_OK) {
            a->names[a->n_names - 1]->dora = dora;
        }
    } else {
        err = LT_ERR_LIMIT;
    }
    pthread_mutex_unlock(&a->lock);
    if (err == LT_ERR_LIMIT) {
        return refuse_input(e, "lora_name", "The lora adapter", name,
                            d != NULL ? taken : "is one too many: there are 4096");
    }
    return err == LT_OK || lt_api_refuse_error(e, NULL, err);
}

static bool take_out(lt_adapter_set *a, const char *name, bool owned) {
    bool found = false;
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->n_names && !found; i++) {
        found = strcmp(a->names[i]->name, name) == 0 && a->names[i]->owned == owned;
        if (found) {
            free(a->names[i]);
            memmove(&a->names[i], &a->names[i + 1], (--a->n_names - i) * sizeof *a->names);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return found;
}

lt_err lt_adapter_set_own(lt_adapter_set *a, const char *name, const char *folder,
                          const char *owner) {
    lt_err err = LT_OK;
    if (strlen(name) > 255) {
        LT_FAIL(LT_ERR_LIMIT, "the name of a model of %zu bytes", strlen(name));
    }
    pthread_mutex_lock(&a->lock);
    if (a->n_names == LT_ADAPTERS_MOST) {
        err = lt_error_set(LT_ERR_LIMIT, "%s is one too many: there are %d adapters", name,
                           LT_ADAPTERS_MOST);
    } else {
        err = append(a, name, folder);
    }
    if (err == LT_OK) {
        a->names[a->n_names - 1]->owned = true;
        a->names[a->n_names - 1]->owner = owner;
    }
    pthread_mutex_unlock(&a->lock);
    return err;
}

void lt_adapter_set_disown(lt_adapter_set *a, const char *name) {
    (void)take_out(a, name, true);
}

bool lt_adapter_set_remove(lt_adapter_set *a, const char *name, lt_api_error *e) {
    const bool found = take_out(a, name, false);
    if (!found) {
        lt_api_refuse(e, "lora_name", "The lora adapter '%.200s' cannot be found.", name);
        e->status = 404;
        e->type = "NotFoundError";
    }
    return found;
}

bool lt_adapter_set_set_scales(lt_adapter_set *a, const json_t *list, lt_api_error *e) {
    lt_adapter_choice c = {.n = 0};
    bool ok;
    if (a == NULL) {
        return read_list(NULL, list, NULL, &c, e);
    }
    pthread_mutex_lock(&a->lock);
    ok = read_list(a, list, NULL, &c, e);
    for (size_t i = 0; ok && i < a->n_names; i++) {
        lt_adapter *d = a->names[i];
        d->scale = 0.0f;
        for (int k = 0; k < c.n; k++) {
            d->scale = c.uses[k].number == d->number ? c.uses[k].scale : d->scale;
        }
    }
    pthread_mutex_unlock(&a->lock);
    return ok;
}

/* ---- What is told ---- */

void lt_adapter_set_write(lt_adapter_set *a, lt_json_out *o) {
    lt_out_open(o, '[');
    if (a != NULL) {
        pthread_mutex_lock(&a->lock);
        for (size_t i = 0; i < a->n_names; i++) {
            const lt_adapter *d = a->names[i];
            if (d->owned) {
                continue;
            }
            lt_out_open(o, '{');
            lt_out_key_int(o, "id", d->number);
            lt_out_key_str(o, "name", d->name);
            lt_out_key_str(o, "path", d->path);
            lt_out_key_real(o, "scale", (double)d->scale);
            lt_out_key_str(o, "task_name", "");
            lt_out_key_str(o, "prompt_prefix", "");
            lt_out_shut(o, '}');
        }
        pthread_mutex_unlock(&a->lock);
    }
    lt_out_shut(o, ']');
}

bool lt_adapter_set_write_models(lt_adapter_set *a, lt_json_out *o, const char *name,
                                 const char *owner) {
    bool found = false;
    if (a == NULL) {
        return false;
    }
    pthread_mutex_lock(&a->lock);
    for (size_t i = 0; i < a->n_names; i++) {
        const lt_adapter *d = a->names[i];
        if (!is_shown(d, owner) || (name != NULL && strcmp(name, d->name) != 0)) {
            continue;
        }
        found = true;
        lt_out_open(o, '{');
        lt_out_key_str(o, "id", d->name);
        lt_out_key_str(o, "object", "model");
        lt_out_key_int(o, "created", d->created);
        lt_out_key_str(o, "owned_by", "lateen");
        lt_out_key_str(o, "root", d->owned ? a->server->name : d->path);
        lt_out_key_str(o, "parent", a->server->name);
        lt_out_key_int(o, "max_model_len", lt_server_context(a->server));
        lt_out_key_str(o, "type", "model");
        lt_out_key_str(o, "display_name", d->name);
        lt_out_shut(o, '}');
    }
    pthread_mutex_unlock(&a->lock);
    return found;
}

void lt_adapter_set_write_uses(const lt_adapter_choice *c, lt_json_out *o) {
    lt_out_key_open(o, "lora", '[');
    for (int i = 0; i < c->n; i++) {
        lt_out_open(o, '{');
        lt_out_key_int(o, "id", c->uses[i].number);
        lt_out_key_real(o, "scale", (double)c->uses[i].scale);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
}

/* Whether a list of names, separated by commas, has this one. */
static bool is_in(const char *list, const char *name) {
    const size_t n = strlen(name);
    while (list[0] != '\0') {
        const size_t width = strcspn(list, ",");
        if (width == n && strncmp(list, name, n) == 0) {
            return true;
        }
        list += width + (list[width] == ',');
    }
    return false;
}

/* Append the names of a choice or a place to out, separated by commas, each once. Names that would
 * break a label are omitted. Called with the lock held. */
static void add_names(const lt_adapter_set *a, char *out, size_t room, const lt_adapter_use *uses,
                      int n) {
    for (int i = 0; i < n; i++) {
        const lt_adapter *d = lt_adapter_of_number(a, uses[i].number);
        const size_t used = strlen(out);
        if (d != NULL && strpbrk(d->name, "\"\\\n,") == NULL && !is_in(out, d->name) &&
            used + strlen(d->name) + 2 < room) {
            snprintf(out + used, room - used, "%s%s", used > 0 ? "," : "", d->name);
        }
    }
}

void lt_adapter_set_metrics(lt_adapter_set *a, lt_expo *o) {
    char running[1024] = "", waiting[1024] = "";
    int filled = 0;
    size_t n_names;
    if (a == NULL) {
        return;
    }
    pthread_mutex_lock(&a->lock);
    n_names = a->n_names;
    for (int32_t i = 0; a->loaded && i < a->n_places; i++) {
        filled += a->places[i].state == LT_PLACE_FILLED;
        if (lt_lora_pool_holds(a->pool, i) > 0) {
            add_names(a, running, sizeof running, a->places[i].uses, a->places[i].n);
        }
    }
    for (const lt_fifo_link *l = a->waiting.first; l != NULL; l = l->next) {
        const lt_adapter_choice *c = (const lt_adapter_choice *)l;
        add_names(a, waiting, sizeof waiting, c->uses, c->n);
    }
    pthread_mutex_unlock(&a->lock);
    lt_expo_family(o, LT_EXPO_GAUGE, "vllm:lora_requests_info",
                   "Adapters with running and with waiting requests; the value is the time.");
    lt_expo_value(o, lt_clock_unix_s(),
                  "max_lora=\"%d\",running_lora_adapters=\"%s\",waiting_lora_adapters=\"%s\"",
                  (int)a->n_places, running, waiting);
    lt_expo_one(o, LT_EXPO_GAUGE, "lateen_adapters", "", "Adapters that requests can name.",
                (double)n_names);
    lt_expo_one(o, LT_EXPO_GAUGE, "lateen_adapter_places", "", "Adapters in memory at most.",
                (double)a->n_places);
    lt_expo_one(o, LT_EXPO_GAUGE, "lateen_adapter_places_filled", "", "Adapters in memory.",
                (double)filled);
    lt_expo_family(o, LT_EXPO_COUNTER, "lateen_adapter_loads_total",
                   "Adapters that were loaded because a request needed them.");
    lt_expo_value(o, (double)a->n_loads, "result=\"loaded\"");
    lt_expo_value(o, (double)a->n_load_failures, "result=\"failed\"");
}
