/* lease.c: see lease.h. */
#include "platform/agent/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "comm/shm.h"
#include "platform/telemetry/identity.h"

#define FILE_BYTES_MAX ((size_t)1 << 16)
#define LOCK_TRIES     10 /* The lock file may be replaced between its opening and its locking. */
#define HOST_BYTES     256

/* The content of an epoch's file. */
typedef struct {
    int64_t epoch; /* 0: there is none. */
    char job[64], host[HOST_BYTES], taken[LT_CLOCK_TEXT_BYTES];
    uint64_t attempt;
    int64_t pid;
} holder;

void lt_lease_identify(lt_lease *l) {
    const char *slurm = getenv("SLURM_JOB_ID"), *token = getenv(LT_ENV_TOKEN);
    const lt_identity who = lt_identity_of_process();
    l->job[0] = '\0';
    if (slurm != NULL && slurm[0] != '\0') {
        (void)snprintf(l->job, sizeof l->job, "slurm-%s", slurm);
    } else if (token != NULL) { /* The token permits everything, so only its hash is written. */
        (void)snprintf(l->job, sizeof l->job, "launch-%016" PRIx64,
                       (uint64_t)XXH3_64bits(token, strlen(token)));
    }
    l->attempt = (uint64_t)who.attempt << 32 | who.epoch;
}

static lt_err epoch_path(char path[LT_PATH_BYTES], const lt_lease *l, int64_t epoch) {
    char name[64];
    (void)snprintf(name, sizeof name, "%09lld.json", (long long)epoch);
    return lt_path_join(path, l->folder, name);
}

/* Read an epoch's file. One that was cut short, or is being written, names no job. */
static void read_holder(holder *h, const char *path) {
    json_t *root = NULL;
    const char *job = "", *host = "?", *taken = "?";
    int64_t attempt = 0;
    if (lt_json_load(&root, path, FILE_BYTES_MAX) == LT_OK &&
        lt_json_str(root, "job", &job, false, path) == LT_OK &&
        lt_json_str(root, "host", &host, false, path) == LT_OK &&
        lt_json_str(root, "taken", &taken, false, path) == LT_OK &&
        lt_json_i64(root, "attempt", &attempt, false, path) == LT_OK &&
        lt_json_i64(root, "pid", &h->pid, false, path) == LT_OK) {
        (void)snprintf(h->job, sizeof h->job, "%s", job);
    }
    (void)snprintf(h->host, sizeof h->host, "%s", host);
    (void)snprintf(h->taken, sizeof h->taken, "%s", taken);
    h->attempt = (uint64_t)attempt;
    json_decref(root);
}

static lt_err find_holder(holder *h, const lt_lease *l) {
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    *h = (holder){0};
    LT_TRY(lt_file_list(&names, &n, l->folder));
    for (size_t i = 0; i < n; i++) {
        const int64_t epoch = lt_path_has_suffix(names[i], ".json") ? strtoll(names[i], NULL, 10)
                                                                    : 0;
        h->epoch = epoch > h->epoch ? epoch : h->epoch;
    }
    lt_file_list_free(names, n);
    if (h->epoch > 0) {
        LT_TRY(epoch_path(path, l, h->epoch));
        read_holder(h, path);
    }
    return LT_OK;
}

/* ---- The lock -------------------------------------------------------------------------------- */

static bool is_file_of(int fd, const char *path) {
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

static lt_err try_lock(int *fd, const char *path) {
    for (int i = 0; i < LOCK_TRIES; i++) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (*fd < 0) {
            LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
        }
        const bool locked = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        if (locked && is_file_of(*fd, path)) {
            return LT_OK;
        }
        (void)close(*fd);
        *fd = -1;
        if (!locked) {
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_STATE, "%s: replaced again and again", path);
}

/* Lock a new file and give it the name of the one that the holder has locked. */
static lt_err replace_lock(int *fd, const char *path, int64_t epoch) {
    char fresh[LT_PATH_BYTES];
    if (snprintf(fresh, sizeof fresh, "%s.%lld", path, (long long)epoch) >= (int)sizeof fresh) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", path);
    }
    *fd = open(fresh, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) != 0 || rename(fresh, path) != 0) {
        LT_FAIL(LT_ERR_IO, "%s cannot take the place of %s: %s", fresh, path, strerror(errno));
    }
    return LT_OK;
}

/* Remove files that earlier holders were about to publish: the rename then fails, even in a process
 * that has already checked its lease. */
static lt_err remove_asides(const lt_lease *l) {
    lt_err err = LT_OK;
    char **names = NULL, path[LT_PATH_BYTES];
    size_t n = 0;
    LT_TRY(lt_file_list(&names, &n, l->folder));
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(lt_path_join(path, l->folder, names[i]));
        if (lt_path_has_suffix(names[i], ".tmp") && strtoll(names[i], NULL, 10) < l->epoch &&
            unlink(path) != 0 && errno != ENOENT) {
            LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
        }
    }
done:
    lt_file_list_free(names, n);
    return err;
}

/* ---- Taking ---------------------------------------------------------------------------------- */

static lt_err create_epoch(const lt_lease *l, int64_t epoch) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], host[HOST_BYTES] = "?", taken[LT_CLOCK_TEXT_BYTES], *text = NULL;
    json_t *root = NULL;
    int fd = -1;

    (void)gethostname(host, sizeof host - 1);
    root = json_pack("{s:I, s:s, s:I, s:s, s:I, s:s}", "epoch", (json_int_t)epoch, "job", l->job,
                     "attempt", (json_int_t)l->attempt, "host", host, "pid", (json_int_t)getpid(),
                     "taken", lt_clock_text(taken));
    text = root != NULL ? json_dumps(root, 0) : NULL;
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "lease of epoch %lld", (long long)epoch);
    }
    LT_TRY_DONE(epoch_path(path, l, epoch));
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST) {
        LT_FAIL_DONE(LT_ERR_STATE, "%s: another process has just taken the lease", path);
    }
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
done:
    if (fd >= 0) {
        (void)close(fd);
    }
    json_decref(root);
    free(text);
    return err;
}

static lt_err take(lt_lease *l, const char *run_folder, const char *lock) {
    holder h;
    bool same_job;
    LT_TRY(try_lock(&l->lock_fd, lock));
    LT_TRY(find_holder(&h, l));
    same_job = h.job[0] != '\0' && strcmp(h.job, l->job) == 0;
    if (same_job && h.attempt > l->attempt) {
        LT_FAIL(LT_ERR_REPLACED,
                "run folder %s belongs to a later attempt of this job: epoch %lld, process %lld on "
                "%s, since %s",
                run_folder, (long long)h.epoch, (long long)h.pid, h.host, h.taken);
    }
    if (l->lock_fd < 0 && !(same_job && h.attempt < l->attempt)) {
        LT_FAIL(LT_ERR_STATE, "run folder %s is in use by another process", run_folder);
    }
    LT_TRY(l->lock_fd < 0 ? replace_lock(&l->lock_fd, lock, h.epoch + 1) : LT_OK);
    LT_TRY(create_epoch(l, h.epoch + 1));
    l->epoch = h.epoch + 1;
    return remove_asides(l);
}

lt_err lt_lease_take(lt_lease *l, const char *run_folder) {
    char lock[LT_PATH_BYTES];
    lt_err err;
    l->lock_fd = -1;
    l->epoch = 0;
    LT_TRY(lt_path_join(l->folder, run_folder, "lease"));
    LT_TRY(lt_path_join(lock, run_folder, "lock"));
    LT_TRY(lt_file_make_dirs(l->folder));
    err = take(l, run_folder, lock);
    if (err != LT_OK) {
        lt_lease_close(l);
    }
    return err;
}

lt_err lt_lease_check(const lt_lease *l) {
    char path[LT_PATH_BYTES];
    holder h = {0};
    if (l == NULL || l->folder[0] == '\0' || l->epoch == 0) {
        return LT_OK;
    }
    LT_TRY(epoch_path(path, l, l->epoch + 1));
    if (access(path, F_OK) != 0) {
        return LT_OK;
    }
    LT_TRY(find_holder(&h, l));
    LT_FAIL(LT_ERR_REPLACED,
            "this attempt (epoch %lld) was replaced by epoch %lld, process %lld on %s, since %s; "
            "it publishes nothing more",
            (long long)l->epoch, (long long)h.epoch, (long long)h.pid, h.host, h.taken);
}

static lt_err may_publish(const void *lease) {
    return lt_lease_check(lease);
}

lt_err lt_lease_write(const lt_lease *l, const char *path, const void *data, size_t bytes) {
    const char *slash = strrchr(path, '/');
    char aside[LT_PATH_BYTES], name[LT_PATH_BYTES];
    if (l == NULL || l->epoch == 0) {
        return lt_file_write_atomic(path, data, bytes);
    }
    (void)snprintf(name, sizeof name, "%lld.%s.tmp", (long long)l->epoch,
                   slash != NULL ? slash + 1 : path);
    LT_TRY(lt_path_join(aside, l->folder, name));
    return lt_file_write_by(path, aside, data, bytes, may_publish, l);
}

void lt_lease_close(lt_lease *l) {
    if (l->lock_fd >= 0) {
        (void)close(l->lock_fd);
    }
    l->lock_fd = -1;
}
