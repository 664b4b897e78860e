/* recipe.c: where the shipped files are, and typed reads of flat YAML rows.
 *
 * A name such as "alps" is searched as recipes/<folder>/alps<suffix> under, in this order:
 * $LATEEN_RECIPES, the current folder, the folder of the program and its two parents (a build
 * tree), and ../share/lateen (an installation). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/option.h"
#include "plan/plan.h"

#define MAX_NAMES 128

static bool try_root(char *out, size_t bytes, const char *root, const char *folder,
                     const char *name, const char *suffix) {
    const int n = snprintf(out, bytes, "%s/%s/%s%s", root, folder, name, suffix);
    return n > 0 && (size_t)n < bytes && lt_file_exists(out) && !lt_file_is_dir(out);
}

static bool try_all(char *out, size_t bytes, const char *folder, const char *name,
                    const char *suffix) {
    static const char *const below[] = {"recipes", "../recipes", "../../recipes",
                                        "../share/lateen/recipes"};
    const char *env = getenv("LATEEN_RECIPES");
    char exe[LT_PATH_BYTES / 2], root[LT_PATH_BYTES];
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (env != NULL && try_root(out, bytes, env, folder, name, suffix)) {
        return true;
    }
    if (try_root(out, bytes, "recipes", folder, name, suffix)) {
        return true;
    }
    if (n <= 0) {
        return false;
    }
    exe[n] = 0;
    /* From build/lateen, build/asan/lateen or build/tests/unit/plan/test_x. */
    for (int up = 0; up < 4; up++) {
        char *slash = strrchr(exe, '/');
        if (slash == NULL) {
            return false;
        }
        *slash = 0;
        for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
            snprintf(root, sizeof root, "%s/%s", exe, below[i]);
            if (try_root(out, bytes, root, folder, name, suffix)) {
                return true;
            }
        }
    }
    return false;
}

/* "; did you mean 'alps'?", from the files beside a file that certainly exists. */
static void suggest(char *out, size_t bytes, const char *folder, const char *name,
                    const char *suffix) {
    char probe[LT_PATH_BYTES];
    const char *known = strcmp(folder, "models") == 0 ? "llama3-8b" : "gpus";
    char **names = NULL;
    const char *stems[MAX_NAMES];
    const char *nearest;
    size_t n = 0, n_stems = 0;

    out[0] = 0;
    if (!try_all(probe, sizeof probe, folder, known, suffix)) {
        return;
    }
    *strrchr(probe, '/') = 0;
    if (lt_file_list(&names, &n, probe) != LT_OK) {
        return;
    }
    for (size_t i = 0; i < n && n_stems < MAX_NAMES; i++) {
        if (lt_path_has_suffix(names[i], suffix)) {
            names[i][strlen(names[i]) - strlen(suffix)] = 0;
            stems[n_stems++] = names[i];
        }
    }
    nearest = lt_name_nearest(name, stems, n_stems);
    /* "gpt2" means gpt2-124m, however many letters are missing. */
    for (size_t i = n_stems; i > 0; i--) {
        nearest = strncmp(stems[i - 1], name, strlen(name)) == 0 ? stems[i - 1] : nearest;
    }
    if (nearest != NULL) {
        snprintf(out, bytes, "; did you mean '%s'?", nearest);
    }
    lt_file_list_free(names, n);
}

lt_err lt_plan_recipe_find(char *out, size_t out_bytes, const char *folder, const char *name,
                           const char *suffix) {
    char hint[LT_PLAN_TEXT_BYTES];
    LT_ASSERT(out != NULL && folder != NULL && name != NULL && suffix != NULL);
    if (name[0] == 0 || strlen(name) >= out_bytes) {
        LT_FAIL(LT_ERR_ARG, "%s: the name is empty or too long", folder);
    }
    if (lt_file_is_dir(name)) {
        const int n = snprintf(out, out_bytes, "%s/config.json", name);
        if (n > 0 && (size_t)n < out_bytes && lt_file_exists(out)) {
            return LT_OK;
        }
    } else if (lt_file_exists(name)) {
        snprintf(out, out_bytes, "%s", name);
        return LT_OK;
    }
    if (strchr(name, '/') == NULL && try_all(out, out_bytes, folder, name, suffix)) {
        return LT_OK;
    }
    if (lt_file_is_dir(name)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "folder '%s' has no config.json", name);
    }
    if (strchr(name, '/') != NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no file '%s'", name);
    }
    suggest(hint, sizeof hint, folder, name, suffix);
    LT_FAIL(LT_ERR_NOT_FOUND, "no file '%s' and no recipes/%s/%s%s%s", name, folder, name, suffix,
            hint);
}

const lt_yaml_entry *lt_plan_yaml_get(const lt_yaml_entry *e, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(e[i].key, key) == 0) {
            return &e[i];
        }
    }
    return NULL;
}

lt_err lt_plan_yaml_number(const lt_yaml_entry *e, size_t n, const char *key, double *out,
                           double min, double max, const char *path) {
    const lt_yaml_entry *row = lt_plan_yaml_get(e, n, key);
    char *end = NULL;
    double value;
    if (row == NULL) {
        return LT_OK;
    }
    value = strtod(row->value, &end);
    if (row->kind == LT_YAML_LIST) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: %s is a list; it takes one number", path, row->line, key);
    }
    if (end == row->value || *end != 0 || !isfinite(value)) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: %s: '%s' is not a number", path, row->line, key, row->value);
    }
    if (value < min || value > max) {
        LT_FAIL(LT_ERR_ARG, "%s:%d: %s: %g is outside [%g, %g]", path, row->line, key, value, min,
                max);
    }
    *out = value;
    return LT_OK;
}

lt_err lt_plan_yaml_choice(const lt_yaml_entry *e, size_t n, const char *key, int *out,
                           const char *const *names, int n_names, const char *path) {
    const lt_yaml_entry *row = lt_plan_yaml_get(e, n, key);
    const char *nearest;
    if (row == NULL) {
        return LT_OK;
    }
    for (int i = 0; i < n_names; i++) {
        if (strcmp(row->value, names[i]) == 0) {
            *out = i;
            return LT_OK;
        }
    }
    nearest = lt_name_nearest(row->value, names, (size_t)n_names);
    LT_FAIL(LT_ERR_ARG, "%s:%d: %s: unknown '%s'; e.g. '%s'", path, row->line, key, row->value,
            nearest != NULL ? nearest : names[0]);
}
