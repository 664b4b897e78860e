/* memory.c: see memory.h. */
#include "platform/agent/memory.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

#define SHARED        "/dev/shm"
#define PREFIX        "lateen-run-"
#define PID_BYTES_MAX ((size_t)64)

bool lt_node_memory_of_rank(lt_node_memory *m) {
    const char *root = getenv(LT_ENV_MEMORY), *node = getenv(LT_ENV_NODE),
               *every = getenv(LT_ENV_SNAPSHOT), *mtbf = getenv(LT_ENV_MTBF);
    *m = (lt_node_memory){0};
    if (root == NULL || node == NULL || every == NULL || mtbf == NULL) {
        return false;
    }
    m->every = strtoll(every, NULL, 10);
    m->mtbf_s = strtod(mtbf, NULL);
    return snprintf(m->set, sizeof m->set, "%s/set", root) < (int)sizeof m->set &&
           snprintf(m->own, sizeof m->own, "%s/node-%s/own", root, node) < (int)sizeof m->own;
}

lt_err lt_memory_link(const char *target, const char *path) {
    char aside[LT_PATH_BYTES];
    if (snprintf(aside, sizeof aside, "%s.link", path) >= (int)sizeof aside) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", path);
    }
    (void)unlink(aside);
    if (symlink(target, aside) != 0 || rename(aside, path) != 0) {
        LT_FAIL(LT_ERR_IO, "link from %s to %s: %s", path, target, strerror(errno));
    }
    return LT_OK;
}

double lt_daly_interval_s(double mtbf_s, double save_s) {
    const double x = save_s / (2.0 * mtbf_s);
    if (x >= 1.0) {
        return mtbf_s;
    }
    return sqrt(2.0 * save_s * mtbf_s) * (1.0 + sqrt(x) / 3.0 + x / 9.0) - save_s;
}

/* ---- The launcher ---------------------------------------------------------------------------- */

/* Remove the memory that is left of this user's launchers if they and their agents were killed. */
static void sweep(void) {
    char **names = NULL, root[LT_PATH_BYTES], path[LT_PATH_BYTES], *text = NULL;
    size_t n = 0, bytes;
    if (lt_file_list(&names, &n, SHARED) != LT_OK) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], PREFIX, strlen(PREFIX)) != 0 ||
            lt_path_join(root, SHARED, names[i]) != LT_OK ||
            lt_path_join(path, root, "launcher") != LT_OK ||
            lt_file_read(&text, &bytes, path, PID_BYTES_MAX) != LT_OK) {
            continue;
        }
        if (kill((pid_t)strtol(text, NULL, 10), 0) != 0 && errno == ESRCH &&
            lt_file_remove_tree(root) != LT_OK) {
            lt_log_warn("%s", lt_error_message());
        }
        free(text);
        text = NULL;
    }
    lt_file_list_free(names, n);
}

lt_err lt_memory_make(char root[LT_PATH_BYTES], int n_nodes) {
    char path[LT_PATH_BYTES], name[64];
    sweep();
    (void)snprintf(root, LT_PATH_BYTES, SHARED "/" PREFIX "XXXXXX");
    if (mkdtemp(root) == NULL) { /* Only this user may enter it. */
        LT_FAIL(LT_ERR_IO, "%s: %s", root, strerror(errno));
    }
    (void)snprintf(name, sizeof name, "%lld\n", (long long)getpid());
    LT_TRY(lt_path_join(path, root, "launcher"));
    LT_TRY(lt_file_write_atomic(path, name, strlen(name)));
    LT_TRY(lt_path_join(path, root, "set"));
    LT_TRY(lt_file_make_dirs(path));
    for (int k = 0; k < n_nodes; k++) {
        for (int kept = 0; kept < 2; kept++) {
            (void)snprintf(name, sizeof name, "node-%d/%s", k, kept ? "kept" : "own");
            LT_TRY(lt_path_join(path, root, name));
            LT_TRY(lt_file_make_dirs(path));
        }
    }
    return LT_OK;
}

/* ".../node-K/own/REST" or ".../node-K/kept/REST": the same REST, where any node has it. */
static bool find_copy(char out[LT_PATH_BYTES], const char *root, int n_nodes, const char *target) {
    const char *rest = strstr(target, "/own/");
    rest = rest != NULL ? rest + strlen("/own/") : strstr(target, "/kept/");
    if (rest != NULL && strncmp(rest, "/kept/", 6) == 0) {
        rest += strlen("/kept/");
    }
    for (int k = 0; rest != NULL && k < n_nodes; k++) {
        for (int kept = 0; kept < 2; kept++) {
            if (snprintf(out, LT_PATH_BYTES, "%s/node-%d/%s/%s", root, k, kept ? "kept" : "own",
                         rest) < LT_PATH_BYTES &&
                lt_file_exists(out)) {
                return true;
            }
        }
    }
    return false;
}

static void repair_link(const char *root, int n_nodes, const char *path) {
    char target[LT_PATH_BYTES], copy[LT_PATH_BYTES];
    const ssize_t bytes = readlink(path, target, sizeof target - 1);
    if (bytes <= 0 || lt_file_exists(path)) {
        return;
    }
    target[bytes] = '\0';
    if (find_copy(copy, root, n_nodes, target) && lt_memory_link(copy, path) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
}

static void repair_folder(const char *root, int n_nodes, const char *folder) {
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    if (lt_file_list(&names, &n, folder) != LT_OK) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (lt_path_join(path, folder, names[i]) == LT_OK) {
            repair_link(root, n_nodes, path);
        }
    }
    lt_file_list_free(names, n);
}

void lt_memory_repair(const char *root, int n_nodes) {
    char set[LT_PATH_BYTES], **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    struct stat st;
    if (lt_path_join(set, root, "set") != LT_OK) {
        return;
    }
    repair_folder(root, n_nodes, set);
    if (lt_file_list(&names, &n, set) != LT_OK) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (lt_path_join(path, set, names[i]) == LT_OK && lstat(path, &st) == 0 &&
            S_ISDIR(st.st_mode)) {
            repair_folder(root, n_nodes, path);
        }
    }
    lt_file_list_free(names, n);
}
