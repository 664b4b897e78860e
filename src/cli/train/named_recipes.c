/* named_recipes.c: see named_recipes.h. */
#include "cli/train/named_recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/yaml.h"

/* The part of a key after "stages.", or NULL. */
static const char *key_of_list(const char *key, const lt_named_kind *kind) {
    const size_t n = strlen(kind->key);
    return strncmp(key, kind->key, n) == 0 && key[n] == '.' ? key + n + 1 : NULL;
}

static lt_err check_name(const char *name, size_t n, const lt_named_kind *kind,
                         const char *origin) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
    if (n == 0 || n >= sizeof((lt_named_recipe *)0)->name || strspn(name, letters) < n) {
        LT_FAIL(
            LT_ERR_ARG,
            "%s: '%.*s' is not a name of %s %s, which is a folder: up to %zu of a to z, 0 to 9, "
            "_ and -",
            origin, (int)n, name, strchr("aeiou", kind->what[0]) != NULL ? "an" : "a", kind->what,
            sizeof((lt_named_recipe *)0)->name - 1);
    }
    return LT_OK;
}

/* The list while it is being read. */
typedef struct {
    const lt_named_kind *kind;
    lt_named_recipe *all;
    int *n;
} list;

/* The entry of this name, which is added if it is new. */
static lt_err find_or_add(const list *l, lt_named_recipe **out, const char *name, size_t n,
                          const char *origin) {
    for (int i = 0; i < *l->n; i++) {
        if (strlen(l->all[i].name) == n && strncmp(l->all[i].name, name, n) == 0) {
            *out = &l->all[i];
            return LT_OK;
        }
    }
    LT_TRY(check_name(name, n, l->kind, origin));
    if (*l->n == l->kind->most) {
        LT_FAIL(LT_ERR_LIMIT, "%s: more than %d %s", origin, l->kind->most, l->kind->key);
    }
    *out = &l->all[*l->n];
    (*out)->recipe = calloc(1, sizeof *(*out)->recipe);
    if ((*out)->recipe == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe of %s", l->kind->what);
    }
    ++*l->n;
    (void)snprintf((*out)->name, sizeof(*out)->name, "%.*s", (int)n, name);
    lt_options_default(&lt_recipe_table, (*out)->recipe);
    return LT_OK;
}

static lt_err refuse_value(const list *l, const char *name, const char *value, const char *origin) {
    LT_FAIL(LT_ERR_ARG, "%s: %s: %s%s%s: each %s has a name and its options, NAME: {steps: 100}%s",
            origin, l->kind->key, name, name[0] != '\0' ? ": " : "", value, l->kind->what,
            l->kind->value != NULL ? ", or a recipe, NAME: FILE" : "");
}

/* Set one option of one entry. */
static lt_err set_option(const list *l, lt_named_recipe *of, const char *option,
                         const lt_yaml_entry *e, const char *origin) {
    const lt_option *row = lt_option_find(&lt_recipe_table, option);
    if (row == NULL && strcmp(option, "name") == 0) {
        return refuse_value(l, "name", e->value, origin);
    }
    if (row != NULL && l->kind->may_have != NULL) {
        LT_TRY(l->kind->may_have(row, of->name, origin));
    }
    return lt_options_set_yaml(&lt_recipe_table, of->recipe, option, e, origin);
}

/* apply: also apply their additions to the common options. */
static lt_err read_list(const list *l, const lt_yaml_entry *entries, size_t n, const char *path,
                        bool apply) {
    for (size_t i = 0; i < n; i++) {
        const char *rest = key_of_list(entries[i].key, l->kind);
        const char *dot = rest != NULL ? strchr(rest, '.') : NULL;
        char origin[LT_OPTION_STR_BYTES];
        lt_named_recipe *of;
        (void)snprintf(origin, sizeof origin, "%s:%d", path, entries[i].line);
        if (strcmp(entries[i].key, l->kind->key) == 0) {
            return refuse_value(l, "", entries[i].value, origin);
        }
        if (rest == NULL) {
            continue;
        }
        const size_t length = dot != NULL ? (size_t)(dot - rest) : strlen(rest);
        LT_TRY(find_or_add(l, &of, rest, length, origin));
        if (apply && dot != NULL) {
            LT_TRY(set_option(l, of, dot + 1, &entries[i], origin));
        } else if (apply && entries[i].value[0] == '\0') {
            continue; /* It has no options of its own. */
        } else if (apply && l->kind->value != NULL) {
            LT_TRY(l->kind->value(of, entries[i].value, of == &l->all[0]));
        } else if (apply) {
            return refuse_value(l, rest, entries[i].value, origin);
        }
    }
    return LT_OK;
}

static lt_err read_common(lt_recipe *r, const lt_named_kind *kind, const lt_yaml_entry *entries,
                          size_t n, const char *path) {
    for (size_t i = 0; i < n; i++) {
        char origin[LT_OPTION_STR_BYTES];
        (void)snprintf(origin, sizeof origin, "%s:%d", path, entries[i].line);
        if (key_of_list(entries[i].key, kind) == NULL) {
            LT_TRY(lt_options_set_yaml(&lt_recipe_table, r, entries[i].key, &entries[i], origin));
        }
    }
    return LT_OK;
}

static lt_err parse_flags(lt_recipe *r, int argc, char **argv) {
    const char *path[1] = {NULL};
    bool help = false;
    int n = 0;
    return lt_options_parse(&lt_recipe_table, r, argc, argv, path, 1, &n, &help);
}

lt_err lt_named_recipes_read(lt_named_recipe *out, int *n, lt_recipe *common,
                             const lt_named_kind *kind, const char *path, int argc, char **argv) {
    const list l = {kind, out, n};
    lt_err err = LT_OK;
    lt_yaml_entry *entries = NULL;
    size_t n_entries = 0;

    *n = 0;
    LT_TRY_DONE(lt_yaml_load(&entries, &n_entries, path));
    LT_TRY_DONE(read_list(&l, entries, n_entries, path, false));
    if (*n == 0) {
        goto done;
    }
    lt_options_default(&lt_recipe_table, common);
    LT_TRY_DONE(read_common(common, kind, entries, n_entries, path));
    for (int i = 0; i < *n; i++) {
        *out[i].recipe = *common;
    }
    LT_TRY_DONE(read_list(&l, entries, n_entries, path, true));
    LT_TRY_DONE(parse_flags(common, argc, argv));
    for (int i = 0; i < *n; i++) {
        LT_TRY_DONE(parse_flags(out[i].recipe, argc, argv));
    }
done:
    lt_yaml_free(entries, n_entries);
    return err;
}

void lt_named_recipes_free(lt_named_recipe *of, int n) {
    for (int i = 0; i < n; i++) {
        free(of[i].recipe);
    }
}

lt_err lt_named_recipe_path(lt_recipe *r, const char *option, const char *folder, const char *name,
                            const char *origin) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_path_join(path, folder, name));
    return lt_options_set(&lt_recipe_table, r, option, path, origin);
}

lt_err lt_named_recipes_place(lt_named_recipe *of, int n, const lt_recipe *common,
                              const lt_named_kind *kind) {
    char mirror[LT_OPTION_STR_BYTES];
    if (common->out[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "no run folder: give --out FOLDER, or out: in the recipe");
    }
    for (int i = 0; i < n; i++) {
        if (strcmp(of[i].recipe->out, common->out) != 0) {
            LT_FAIL(LT_ERR_ARG, "%s %s: out = %s, but its folder is %s/%s", kind->what, of[i].name,
                    of[i].recipe->out, common->out, of[i].name);
        }
        LT_TRY(lt_named_recipe_path(of[i].recipe, "out", common->out, of[i].name, kind->key));
        if (of[i].recipe->mirror[0] != '\0') {
            memcpy(mirror, of[i].recipe->mirror, sizeof mirror);
            LT_TRY(lt_named_recipe_path(of[i].recipe, "checkpoint.mirror", mirror, of[i].name,
                                        kind->key));
        }
    }
    return LT_OK;
}

lt_err lt_named_recipe_check(const lt_named_recipe *of, const char *what) {
    lt_err err;
    if (of->recipe->train[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "%s %s: no data: it needs data.train", what, of->name);
    }
    err = lt_recipe_check(of->recipe);
    return err != LT_OK ? lt_error_prefix(err, "%s %s", what, of->name) : LT_OK;
}
