/* memory.c: see memory.h. */
#include "platform/agent/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "comm/shm.h"

#define SHARED "/dev/shm"
#define PREFIX "lateen-run-"

bool lt_node_memory_of_rank(lt_node_memory *m) {
    const char *root = getenv(LT_ENV_MEMORY), *node = getenv(LT_ENV_NODE),
               *every = getenv(LT_ENV_SNAPSHOT), *mtbf = getenv(LT_ENV_MTBF),
               *local = getenv(LT_ENV_LOCAL_RANK);
    *m = (lt_node_memory){0};
    if (root == NULL || node == NULL || every == NULL || mtbf == NULL) {
        return false;
    }
    m->every = strtoll(every, NULL, 10);
    m->mtbf_s = strtod(mtbf, NULL);
    m->node = atoi(node);
    m->apart = local != NULL; /* Only ranks of several machines have this variable. */
    return snprintf(m->root, sizeof m->root, "%s", root) < (int)sizeof m->root &&
           snprintf(m->set, sizeof m->set, "%s/set", root) < (int)sizeof m->set &&
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

/* Whether the owner of ROOT has ended: the kernel removes the lock of ROOT/launcher with it. Its
 * pid would not tell, since containers with one /dev/shm may have pids of their own, and another
 * process may have been given the pid. Folders of other users do not count. */
static bool is_left(const char *root) {
    char path[LT_PATH_BYTES];
    struct stat st;
    int fd;
    bool left;
    if (lstat(root, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
        lt_path_join(path, root, "launcher") != LT_OK) {
        return false;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    left = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return left;
}

int lt_memory_sweep(void) {
    char **names = NULL, root[LT_PATH_BYTES];
    size_t n = 0;
    int removed = 0;
    if (lt_file_list(&names, &n, SHARED) != LT_OK) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], PREFIX, strlen(PREFIX)) != 0 ||
            lt_path_join(root, SHARED, names[i]) != LT_OK || !is_left(root)) {
            continue;
        }
        if (lt_file_remove_tree(root) != LT_OK) {
            lt_log_warn("%s", lt_error_message());
            continue;
        }
        removed++;
    }
    lt_file_list_free(names, n);
    return removed;
}

/* Make this process the owner of ROOT, which is named in ROOT/launcher and removes ROOT; if the
 * owner is gone, lt_memory_sweep() does. The file appears under its name when it is locked, and its
 * descriptor stays open for as long as this process lives. */
static lt_err take(const char *root) {
    char path[LT_PATH_BYTES], aside[LT_PATH_BYTES], name[48];
    int fd;
    (void)snprintf(name, sizeof name, "launcher.%d", (int)getpid());
    LT_TRY(lt_path_join(path, root, "launcher"));
    LT_TRY(lt_path_join(aside, root, name));
    fd = open(aside, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 || dprintf(fd, "%d\n", (int)getpid()) < 0 ||
        rename(aside, path) != 0) {
        const int failure = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(failure));
    }
    return LT_OK;
}

lt_err lt_memory_make(char root[LT_PATH_BYTES], int n_nodes) {
    char path[LT_PATH_BYTES], name[64];
    (void)lt_memory_sweep();
    (void)snprintf(root, LT_PATH_BYTES, SHARED "/" PREFIX "XXXXXX");
    if (mkdtemp(root) == NULL) { /* Only this user may enter it. */
        LT_FAIL(LT_ERR_IO, "%s: %s", root, strerror(errno));
    }
    LT_TRY(take(root));
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

lt_err lt_memory_enter(const char *root) {
    struct stat st;
    if (strncmp(root, SHARED "/" PREFIX, strlen(SHARED "/" PREFIX)) != 0 ||
        strchr(root + strlen(SHARED "/"), '/') != NULL) {
        LT_FAIL(LT_ERR_ARG, "%s is not the memory of a run", root);
    }
    if (mkdir(root, 0700) == 0) {
        return LT_OK;
    }
    if (errno != EEXIST || lstat(root, &st) != 0 || !S_ISDIR(st.st_mode) ||
        st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", root,
                errno != EEXIST ? strerror(errno) : "it is there, and is not this user's alone");
    }
    return LT_OK;
}

lt_err lt_memory_join(const char *root, bool *owner) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_memory_enter(root));
    LT_TRY(lt_path_join(path, root, "launcher"));
    *owner = !lt_file_exists(path) || is_left(root);
    /* It comes before lt_memory_sweep(), which would remove ROOT, too. */
    LT_TRY(*owner ? take(root) : LT_OK);
    (void)lt_memory_sweep();
    return LT_OK;
}

/* ---- The set of a machine -------------------------------------------------------------------- */

typedef lt_err (*on_name)(const char *path, const char *name, void *ctx);

/* Call fn for each name in a folder; a missing folder has no names. */
static lt_err for_each(const char *folder, on_name fn, void *ctx) {
    lt_err err = LT_OK;
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    if (lt_file_list(&names, &n, folder) != LT_OK) {
        return lt_file_exists(folder) ? LT_ERR_IO : LT_OK;
    }
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(lt_path_join(path, folder, names[i]));
        LT_TRY_DONE(fn(path, names[i], ctx));
    }
done:
    lt_file_list_free(names, n);
    return err;
}

static lt_err link_file(const char *path, const char *name, void *to) {
    char link[LT_PATH_BYTES];
    LT_TRY(lt_path_join(link, to, name));
    return lt_file_exists(link) ? LT_OK : lt_memory_link(path, link);
}

/* Link a holder's step-N into the set. A snapshot that is being received has another name. If one
 * is replaced meanwhile, the set is incomplete, which its checksums reveal. */
static lt_err link_step(const char *path, const char *name, void *set) {
    char to[LT_PATH_BYTES];
    if (strncmp(name, "step-", 5) != 0 || strchr(name, '.') != NULL) {
        return LT_OK;
    }
    LT_TRY(lt_path_join(to, set, name));
    LT_TRY(lt_file_make_dirs(to));
    return for_each(path, link_file, to);
}

static lt_err link_holder(const char *path, const char *name, void *set) {
    (void)name;
    return for_each(path, link_step, set);
}

typedef struct {
    char *set;
    const char *part; /* "own", "kept" */
} source;

static lt_err link_node(const char *path, const char *name, void *of) {
    const source *s = of;
    char holders[LT_PATH_BYTES];
    if (strncmp(name, "node-", 5) != 0) {
        return LT_OK;
    }
    LT_TRY(lt_path_join(holders, path, s->part));
    return for_each(holders, link_holder, s->set);
}

/* Remove a folder without a manifest, which is not a checkpoint. */
static lt_err drop_partial(const char *path, const char *name, void *ctx) {
    char manifest[LT_PATH_BYTES];
    (void)name, (void)ctx;
    LT_TRY(lt_path_join(manifest, path, "manifest.json"));
    return lt_file_exists(manifest) ? LT_OK : lt_file_remove_tree(path);
}

lt_err lt_memory_assemble(const char *root) {
    char set[LT_PATH_BYTES];
    source own = {.set = set, .part = "own"}, kept = {.set = set, .part = "kept"};
    LT_TRY(lt_path_join(set, root, "set"));
    LT_TRY(lt_file_remove_tree(set));
    LT_TRY(lt_file_make_dirs(set));
    /* Files written on this node are newer than copies. */
    LT_TRY(for_each(root, link_node, &own));
    LT_TRY(for_each(root, link_node, &kept));
    return for_each(set, drop_partial, NULL);
}

/* For ".../node-K/own/REST" or ".../node-K/kept/REST", find the same REST on any node. */
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
