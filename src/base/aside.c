/* aside.c: see aside.h. The paths are global, because a signal handler has nothing else; it calls
 * only what POSIX allows in it, and getdents64, since readdir may allocate. */
#include "base/aside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

#define MOST  8
#define TURNS 10 /* Attempts to remove a folder into which another thread still writes. */

static char paths[MOST][LT_PATH_BYTES]; /* Written before its `used`. */
static atomic_bool used[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int n_used;
static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
#define N_NUMBERS (sizeof numbers / sizeof *numbers)

/* ---- Signals --------------------------------------------------------------------------------- */

static void set_default(int number) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    (void)sigemptyset(&plain.sa_mask);
    (void)sigaction(number, &plain, NULL);
}

static void remove_files(const char *folder) {
    _Alignas(struct dirent64) char entries[4096];
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(entries + at);
            (void)unlinkat(fd, e->d_name, 0); /* It fails for "." and "..". */
            at += e->d_reclen;
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

static void remove_all(int number) {
    for (int i = 0; i < MOST; i++) {
        if (atomic_load(&used[i]) && unlink(paths[i]) != 0 && errno == EISDIR) {
            for (int turn = 0; turn < TURNS && rmdir(paths[i]) != 0; turn++) {
                remove_files(paths[i]);
            }
        }
    }
    set_default(number);
    (void)raise(number); /* It ends the process when this function returns. */
}

/* Handle the signals that would end the process. */
static void watch(void) {
    struct sigaction now, ours = {.sa_handler = remove_all};
    (void)sigemptyset(&ours.sa_mask);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
            (void)sigaction(numbers[i], &ours, NULL);
        }
    }
}

static void forget(void) {
    struct sigaction now;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == remove_all) {
            set_default(numbers[i]);
        }
    }
}

static int take_slot(const char *path) {
    int found = -1;
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && found < 0; i++) {
        found = atomic_load(&used[i]) ? -1 : i;
    }
    if (found >= 0) {
        memcpy(paths[found], path, strlen(path) + 1);
        atomic_store(&used[found], true);
        if (n_used++ == 0) {
            watch();
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return found + 1;
}

static void give_slot(int slot) {
    if (slot == 0) {
        return;
    }
    (void)pthread_mutex_lock(&lock);
    atomic_store(&used[slot - 1], false);
    if (--n_used == 0) {
        forget();
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- Files and folders ----------------------------------------------------------------------- */

static lt_err name(lt_aside *a, const char *to) {
    size_t n = strlen(to);
    while (n > 1 && to[n - 1] == '/') {
        n--;
    }
    *a = (lt_aside){.slot = 0};
    if (snprintf(a->path, sizeof a->path, "%.*s.tmp", (int)n, to) >= (int)sizeof a->path) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", to);
    }
    return LT_OK;
}

lt_err lt_aside_open(lt_aside *a, const char *to) {
    LT_TRY(name(a, to));
    LT_TRY(lt_file_may_replace(to));
    a->slot = take_slot(a->path);
    a->file = fopen(a->path, "wbe");
    if (a->file == NULL) {
        const int why = errno;
        lt_aside_close(a);
        LT_FAIL(LT_ERR_IO, "%s.tmp: %s", to, strerror(why));
    }
    a->to = to;
    return LT_OK;
}

static lt_err exists(const char *path) {
    LT_FAIL(LT_ERR_ARG, "%s exists already, perhaps from a run that was killed: remove it", path);
}

/* A signal may arrive right after mkdir, so the path must be registered before. Only a folder that
 * does not exist yet is registered. */
lt_err lt_aside_open_folder(lt_aside *a, const char *to) {
    LT_TRY(name(a, to));
    LT_TRY(lt_file_make_parent(a->path));
    if (lt_file_exists(a->path)) {
        return exists(a->path);
    }
    a->slot = take_slot(a->path);
    if (mkdir(a->path, 0777) != 0) {
        const int why = errno;
        give_slot(a->slot);
        a->slot = 0;
        if (why == EEXIST) {
            return exists(a->path);
        }
        LT_FAIL(LT_ERR_IO, "%s: %s", a->path, strerror(why));
    }
    a->to = to;
    return LT_OK;
}

lt_err lt_aside_publish(lt_aside *a) {
    if (a->file != NULL && (fflush(a->file) != 0 || fsync(fileno(a->file)) != 0)) {
        LT_FAIL(LT_ERR_IO, "sync %s: %s", a->path, strerror(errno));
    }
    LT_TRY(a->file == NULL ? lt_file_sync_dir(a->path) : LT_OK);
    if (rename(a->path, a->to) != 0) {
        LT_FAIL(LT_ERR_IO, "rename %s to %s: %s", a->path, a->to, strerror(errno));
    }
    a->to = NULL;
    return lt_file_sync_parent(a->path);
}

void lt_aside_close(lt_aside *a) {
    const bool folder = a->file == NULL;
    if (a->file != NULL) {
        (void)fclose(a->file);
    }
    if (a->to != NULL && (folder ? lt_file_remove_tree(a->path) != LT_OK : unlink(a->path) != 0)) {
        lt_log_warn("%s is incomplete and could not be removed", a->path);
    }
    give_slot(a->slot);
    *a = (lt_aside){.slot = 0};
}
