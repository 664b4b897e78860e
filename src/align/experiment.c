/* experiment.c: reads the file of an experiment: see experiment.h. Its rows become a JSON tree;
 * then the lists of numbers under a method are expanded to all combinations. */
#include "align/experiment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/option.h"
#include "base/yaml.h"

#define MAX_AXES   8
#define MAX_VALUES 256

/* ---- Rows to a tree ---- */

/* A scalar as JSON: true, false, a number, or a text. */
static json_t *scalar(const char *text) {
    char *end = NULL;
    const double x = strtod(text, &end);
    const long long whole = strtoll(text, NULL, 10);
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
        return json_boolean(text[0] == 't');
    }
    if (text[0] == '\0' || *end != '\0' || strspn(text, "+-.0123456789eE") != strlen(text)) {
        return json_string(text);
    }
    return strpbrk(text, ".eE") == NULL ? json_integer(whole) : json_real(x);
}

/* Follow a path such as "models.0.name". Here a list is an object with the keys "0", "1", ... */
static lt_err set_row(json_t *root, const lt_yaml_entry *row, const char *path) {
    char key[512];
    char *rest = NULL, *word;
    json_t *at = root;

    if (snprintf(key, sizeof key, "%s", row->key) >= (int)sizeof key) {
        LT_FAIL(LT_ERR_LIMIT, "%s:%d: key too long", path, row->line);
    }
    for (word = strtok_r(key, ".", &rest); word != NULL;) {
        char *next = strtok_r(NULL, ".", &rest);
        json_t *child = json_object_get(at, word);
        if (next == NULL) {
            return json_object_set_new(at, word, scalar(row->value)) == 0
                       ? LT_OK
                       : lt_error_set(LT_ERR_OOM, "%s", path);
        }
        if (child == NULL) {
            child = json_object();
            json_object_set_new(at, word, child);
        }
        if (!json_is_object(child)) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: %s is a value and a mapping", path, row->line, word);
        }
        at = child;
        word = next;
    }
    return LT_OK;
}

static lt_err read_tree(json_t **out, const char *path) {
    lt_yaml_entry *rows = NULL;
    size_t n = 0;
    lt_err err = LT_OK;

    *out = json_object();
    if (*out == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", path);
    }
    LT_TRY(lt_yaml_load(&rows, &n, path));
    for (size_t i = 0; i < n && err == LT_OK; i++) {
        err = set_row(*out, &rows[i], path);
    }
    lt_yaml_free(rows, n);
    return err;
}

static char *copy_of(const char *text) {
    return strdup(text != NULL ? text : "");
}

static const char *text_of(const json_t *object, const char *key, const char *usual) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : usual;
}

lt_err lt_experiment_check_keys(const json_t *object, const char *const *known, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        int i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            LT_FAIL(LT_ERR_ARG, "%s: no key is named '%s'", where, key);
        }
    }
    return LT_OK;
}

/* ---- Grids ---- */

/* A list of numbers that is expanded: its place, and its values. */
typedef struct {
    json_t *in;
    char key[64];
    json_t *values[MAX_VALUES];
    int64_t n;
} axis;

typedef struct {
    axis axes[MAX_AXES];
    int64_t n;
} grid;

static void grid_free(grid *g) {
    for (int64_t i = 0; i < g->n; i++) {
        for (int64_t k = 0; k < g->axes[i].n; k++) {
            json_decref(g->axes[i].values[k]);
        }
    }
}

/* "1,2,4" as values; 0: the text is not a list of numbers. */
static int64_t split_numbers(const char *text, json_t *values[MAX_VALUES]) {
    int64_t n = 0;
    if (strchr(text, ',') == NULL || strspn(text, "+-.0123456789eE, ") != strlen(text)) {
        return 0;
    }
    while (*text != '\0' && n < MAX_VALUES) {
        char word[64];
        const size_t width = strcspn(text, ",");
        json_t *value;
        if (width == 0 || width >= sizeof word) {
            break;
        }
        memcpy(word, text, width);
        word[width] = '\0';
        value = scalar(word + strspn(word, " "));
        if (!json_is_number(value)) {
            json_decref(value);
            break;
        }
        values[n++] = value;
        text += width + (text[width] == ',');
    }
    if (*text != '\0' || n < 2) {
        while (n > 0) {
            json_decref(values[--n]);
        }
    }
    return n;
}

/* Find the lists in an object and in the objects in it, one level deep. */
static lt_err find_axes(grid *g, json_t *object, bool deeper, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (json_is_object(value) && deeper) {
            LT_TRY(find_axes(g, value, false, where));
        } else if (json_is_string(value) && strlen(key) < sizeof g->axes[0].key) {
            axis *a = &g->axes[g->n];
            if (g->n == MAX_AXES) {
                LT_FAIL(LT_ERR_LIMIT, "%s: more than %d lists of numbers", where, MAX_AXES - 1);
            }
            a->n = split_numbers(json_string_value(value), a->values);
            a->in = object;
            snprintf(a->key, sizeof a->key, "%s", key);
            g->n += a->n > 0;
        }
    }
    return LT_OK;
}

static lt_err add_config(lt_experiment *e, const char *name, const grid *g, const json_t *request,
                         int64_t at) {
    lt_experiment_config *more = realloc(e->configs, (size_t)(e->n_configs + 1) * sizeof *more);
    lt_experiment_config *c;
    json_t *alignment;

    if (more == NULL) {
        LT_FAIL(LT_ERR_OOM, "method %s", name);
    }
    e->configs = more;
    c = &more[e->n_configs++];
    *c = (lt_experiment_config){.method = copy_of(name), .parameters = json_object()};
    for (int64_t i = 0; i < g->n; i++) {
        const axis *a = &g->axes[i];
        json_t *value = a->values[at % a->n];
        at /= a->n;
        json_object_set(a->in, a->key, value);
        json_object_set(c->parameters, a->key, value);
    }
    c->request = json_deep_copy(request);
    alignment = json_object_get(c->request, "alignment");
    c->gold = strcmp(text_of(alignment, "reward", ""), "gold") == 0;
    return c->method != NULL && c->request != NULL && c->parameters != NULL
               ? LT_OK
               : lt_error_set(LT_ERR_OOM, "method %s", name);
}

/* The fields of all requests, then those of the method, in all combinations. */
static lt_err read_method(lt_experiment *e, const json_t *common, const json_t *method,
                          const char *where) {
    const char *name = text_of(method, "name", NULL);
    json_t *request = common != NULL ? json_deep_copy(common) : json_object();
    grid g = {0};
    int64_t n = 1;
    lt_err err = LT_OK;

    if (name == NULL) {
        json_decref(request);
        LT_FAIL(LT_ERR_ARG, "%s has no name", where);
    }
    json_object_update(request, (json_t *)(uintptr_t)method);
    json_object_del(request, "name");
    LT_TRY_DONE(find_axes(&g, request, true, where));
    for (int64_t i = 0; i < g.n; i++) {
        n *= g.axes[i].n;
    }
    for (int64_t i = 0; i < n; i++) {
        LT_TRY_DONE(add_config(e, name, &g, request, i));
    }
done:
    grid_free(&g);
    json_decref(request);
    return err;
}

/* ---- The file ---- */

static lt_err read_methods(lt_experiment *e, const json_t *root, const char *path) {
    const json_t *methods = json_object_get(root, "methods");
    const size_t n = json_object_size(methods);
    for (size_t i = 0; i < n; i++) {
        char key[24], where[LT_PATH_BYTES];
        snprintf(key, sizeof key, "%zu", i);
        snprintf(where, sizeof where, "%.2000s: methods.%zu", path, i);
        LT_TRY(
            read_method(e, json_object_get(root, "request"), json_object_get(methods, key), where));
    }
    if (e->n_configs == 0) {
        LT_FAIL(LT_ERR_ARG, "%s: no methods", path);
    }
    return LT_OK;
}

static lt_err add_model(lt_experiment *e, const char *name, const char *model,
                        const char *tokenizer) {
    lt_experiment_model *more = realloc(e->models, (size_t)(e->n_models + 1) * sizeof *more);
    if (more == NULL) {
        LT_FAIL(LT_ERR_OOM, "model %s", model);
    }
    e->models = more;
    more[e->n_models++] = (lt_experiment_model){copy_of(name), copy_of(model), copy_of(tokenizer)};
    return LT_OK;
}

static lt_err read_models(lt_experiment *e, const json_t *root, const char *path) {
    static const char *const known[] = {"name", "path", "tokenizer", NULL};
    const json_t *models = json_object_get(root, "models");
    const char *one = text_of(root, "model", NULL);

    if (one != NULL) {
        LT_TRY(add_model(e, one, one, text_of(root, "tokenizer", "")));
    }
    for (size_t i = 0; i < json_object_size(models); i++) {
        char key[24];
        const json_t *m;
        snprintf(key, sizeof key, "%zu", i);
        m = json_object_get(models, key);
        LT_TRY(lt_experiment_check_keys(m, known, "models"));
        if (text_of(m, "path", NULL) == NULL) {
            LT_FAIL(LT_ERR_ARG, "%s: models.%zu has no path", path, i);
        }
        LT_TRY(add_model(e, text_of(m, "name", text_of(m, "path", "")), text_of(m, "path", ""),
                         text_of(m, "tokenizer", "")));
    }
    if (e->n_models == 0) {
        LT_FAIL(LT_ERR_ARG, "%s: no model", path);
    }
    return LT_OK;
}

static lt_err read_tasks(lt_experiment *e, const json_t *root, const char *path) {
    const json_t *tasks = json_object_get(root, "tasks");
    const size_t n = json_object_size(tasks);
    e->tasks = calloc(n + 1, sizeof *e->tasks);
    if (e->tasks == NULL || n == 0) {
        LT_FAIL(n == 0 ? LT_ERR_ARG : LT_ERR_OOM, "%s: no tasks", path);
    }
    for (size_t i = 0; i < n; i++) {
        char key[24], where[LT_PATH_BYTES];
        snprintf(key, sizeof key, "%zu", i);
        snprintf(where, sizeof where, "%.2000s: tasks.%zu", path, i);
        e->n_tasks++;
        LT_TRY(lt_experiment_read_task(&e->tasks[i], json_object_get(tasks, key), e->chat, where));
    }
    return LT_OK;
}

static lt_err read_seeds(lt_experiment *e, const json_t *root, const char *path) {
    const json_t *seeds = json_object_get(root, "seeds");
    json_t *values[MAX_VALUES];
    const char *list = json_string_value(seeds);
    bool whole = list != NULL || seeds == NULL || json_is_null(seeds) || json_is_integer(seeds);

    e->seeds[0] = json_integer_value(seeds);
    e->n_seeds = list != NULL ? split_numbers(list, values) : 1;
    for (int64_t i = 0; list != NULL && i < e->n_seeds; i++) {
        whole = whole && json_is_integer(values[i]);
        if (i < LT_EXPERIMENT_SEEDS) {
            e->seeds[i] = json_integer_value(values[i]);
        }
        json_decref(values[i]);
    }
    if (!whole || e->n_seeds < 1 || e->n_seeds > LT_EXPERIMENT_SEEDS) {
        LT_FAIL(LT_ERR_ARG, "%s: seeds must be 1 to %d whole numbers", path, LT_EXPERIMENT_SEEDS);
    }
    return LT_OK;
}

/* Counting the same answers twice would make intervals too narrow. */
static lt_err check_seeds(const lt_experiment *e, const char *path) {
    for (int64_t i = 1; i < e->n_seeds; i++) {
        for (int64_t k = 0; k < i; k++) {
            if (e->seeds[i] == e->seeds[k]) {
                LT_FAIL(LT_ERR_ARG, "%s: seeds: %lld is listed twice", path,
                        (long long)e->seeds[i]);
            }
        }
    }
    return LT_OK;
}

/* The results and the report identify models and tasks by their names, and methods by name and
 * parameters. */
static lt_err check_names(const lt_experiment *e, const char *path) {
    for (int64_t i = 1; i < e->n_models; i++) {
        for (int64_t k = 0; k < i; k++) {
            if (strcmp(e->models[i].name, e->models[k].name) == 0) {
                LT_FAIL(LT_ERR_ARG, "%s: two models are named '%s'", path, e->models[i].name);
            }
        }
    }
    for (int64_t i = 1; i < e->n_tasks; i++) {
        for (int64_t k = 0; k < i; k++) {
            if (strcmp(e->tasks[i].name, e->tasks[k].name) == 0) {
                LT_FAIL(LT_ERR_ARG, "%s: two tasks are named '%s'", path, e->tasks[i].name);
            }
        }
    }
    for (int64_t i = 1; i < e->n_configs; i++) {
        const lt_experiment_config *c = &e->configs[i];
        for (int64_t k = 0; k < i; k++) {
            if (strcmp(c->method, e->configs[k].method) == 0 &&
                json_equal(c->parameters, e->configs[k].parameters)) {
                LT_FAIL(LT_ERR_ARG, "%s: two methods with the same parameters are named '%s'", path,
                        c->method);
            }
        }
    }
    return LT_OK;
}

static void add_text(XXH3_state_t *h, const char *text) {
    XXH3_64bits_update(h, text, strlen(text) + 1);
}

static void add_tree(XXH3_state_t *h, const json_t *tree) {
    char *text = json_dumps(tree, JSON_SORT_KEYS | JSON_COMPACT);
    add_text(h, text != NULL ? text : "");
    free(text);
}

/* Hash everything that determines the results. A folder with the results of another experiment is
 * refused. */
static lt_err hash_all(lt_experiment *e) {
    XXH3_state_t *h = XXH3_createState();
    if (h == NULL) {
        LT_FAIL(LT_ERR_OOM, "experiment");
    }
    XXH3_64bits_reset(h);
    for (int64_t i = 0; i < e->n_models; i++) {
        add_text(h, e->models[i].path);
    }
    for (int64_t i = 0; i < e->n_tasks; i++) {
        for (int64_t k = 0; k < e->tasks[i].n_problems; k++) {
            add_text(h, e->tasks[i].problems[k].prompt);
            add_text(h, e->tasks[i].problems[k].answer);
        }
    }
    for (int64_t i = 0; i < e->n_configs; i++) {
        add_tree(h, e->configs[i].request);
    }
    XXH3_64bits_update(h, e->seeds, (size_t)e->n_seeds * sizeof *e->seeds);
    e->hash = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return LT_OK;
}

static lt_err make_cells(lt_experiment *e, const char *path) {
    for (int64_t t = 0; t < e->n_tasks; t++) {
        e->n_cells += e->n_models * e->n_configs * e->n_seeds * e->tasks[t].n_problems;
    }
    if (e->n_cells > LT_EXPERIMENT_CELLS) {
        LT_FAIL(LT_ERR_LIMIT, "%s: %lld requests; at most %lld", path, (long long)e->n_cells,
                (long long)LT_EXPERIMENT_CELLS);
    }
    e->cells = calloc((size_t)e->n_cells, sizeof *e->cells);
    if (e->cells == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %lld requests", path, (long long)e->n_cells);
    }
    return LT_OK;
}

static lt_err read_file(lt_experiment *e, const json_t *root, const char *path, const char *out) {
    static const char *const known[] = {"out",         "model",   "tokenizer", "models",
                                        "tasks",       "methods", "seeds",     "request",
                                        "max_running", "chat",    NULL};
    const json_t *running = json_object_get(root, "max_running");
    const json_t *chat = json_object_get(root, "chat");

    LT_TRY(lt_experiment_check_keys(root, known, path));
    out = out != NULL && out[0] != '\0' ? out : text_of(root, "out", NULL);
    if (out == NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: 'out' names no folder, nor does --out", path);
    }
    if (snprintf(e->out, sizeof e->out, "%s", out) >= (int)sizeof e->out) {
        LT_FAIL(LT_ERR_LIMIT, "%s: the path of 'out' is too long", path);
    }
    if (chat != NULL && !json_is_null(chat) && !json_is_boolean(chat)) {
        LT_FAIL(LT_ERR_ARG, "%s: chat must be true or false", path);
    }
    e->chat = json_is_true(chat);
    e->max_running = running != NULL ? json_integer_value(running) : 64;
    if (e->max_running < 1 || e->max_running > 65536) {
        LT_FAIL(LT_ERR_ARG, "%s: max_running must be 1 to 65536", path);
    }
    LT_TRY(read_models(e, root, path));
    LT_TRY(read_seeds(e, root, path));
    LT_TRY(read_methods(e, root, path));
    LT_TRY(read_tasks(e, root, path));
    LT_TRY(check_seeds(e, path));
    LT_TRY(check_names(e, path));
    LT_TRY(hash_all(e));
    return make_cells(e, path);
}

lt_err lt_experiment_open(lt_experiment *e, const char *path, const char *out) {
    json_t *root = NULL;
    lt_err err;
    *e = (lt_experiment){0};
    err = read_tree(&root, path);
    err = err == LT_OK ? read_file(e, root, path, out) : err;
    json_decref(root);
    return err;
}

void lt_experiment_close(lt_experiment *e) {
    for (int64_t i = 0; i < e->n_models; i++) {
        free(e->models[i].name);
        free(e->models[i].path);
        free(e->models[i].tokenizer);
    }
    for (int64_t i = 0; i < e->n_tasks; i++) {
        for (int64_t k = 0; k < e->tasks[i].n_problems; k++) {
            free(e->tasks[i].problems[k].prompt);
            free(e->tasks[i].problems[k].answer);
        }
        free(e->tasks[i].problems);
        free(e->tasks[i].name);
    }
    for (int64_t i = 0; i < e->n_configs; i++) {
        free(e->configs[i].method);
        json_decref(e->configs[i].parameters);
        json_decref(e->configs[i].request);
    }
    free(e->models);
    free(e->tasks);
    free(e->configs);
    free(e->cells);
}

/* Cells are in the order model, task, method, seed, problem. */
int64_t lt_experiment_index(const lt_experiment *e, const lt_experiment_place *p) {
    int64_t all = 0, before = 0;
    for (int64_t t = 0; t < e->n_tasks; t++) {
        before += t < p->task ? e->tasks[t].n_problems : 0;
        all += e->tasks[t].n_problems;
    }
    return (p->model * all + before) * e->n_configs * e->n_seeds +
           (p->config * e->n_seeds + p->seed) * e->tasks[p->task].n_problems + p->problem;
}

lt_experiment_place lt_experiment_place_of(const lt_experiment *e, int64_t cell) {
    lt_experiment_place p = {0};
    const int64_t each = e->n_configs * e->n_seeds;
    while (cell >= each * e->tasks[p.task].n_problems) {
        cell -= each * e->tasks[p.task].n_problems;
        if (++p.task == e->n_tasks) {
            p.task = 0;
            p.model++;
        }
    }
    p.problem = cell % e->tasks[p.task].n_problems;
    cell /= e->tasks[p.task].n_problems;
    p.seed = cell % e->n_seeds;
    p.config = cell / e->n_seeds;
    return p;
}
