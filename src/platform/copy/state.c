/* state.c: see state.h. The lock is flock's, so it ends with the process. If the last owner removed
 * the file while this process waited for the lock, the file is opened again. */
#include "platform/copy/state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include <unistd.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"

#define WAIT_NS 50000000L /* Interval between two attempts to get a lock. */
#define HEAD    "lateen-copy 1\nkey "

struct lt_state {
    int fd;
    pthread_mutex_t lock; /* It keeps lines of several threads apart. */
    char path[LT_PATH_BYTES], key[LT_STATE_KEY_BYTES];
};

void lt_state_key(char key[LT_STATE_KEY_BYTES], const char *source, const char *version,
                  const char *target, int64_t size_bytes, int64_t part_bytes) {
    const int64_t numbers[] = {size_bytes, part_bytes};
    XXH3_state_t *x = XXH3_createState();
    XXH128_hash_t hash;
    LT_ASSERT(x != NULL);
    (void)XXH3_128bits_reset(x);
    (void)XXH3_128bits_update(x, source, strlen(source) + 1);
    (void)XXH3_128bits_update(x, version, strlen(version) + 1);
    (void)XXH3_128bits_update(x, target, strlen(target) + 1);
    (void)XXH3_128bits_update(x, numbers, sizeof numbers);
    hash = XXH3_128bits_digest(x);
    (void)XXH3_freeState(x);
    (void)snprintf(key, LT_STATE_KEY_BYTES, "%016llx%016llx", (unsigned long long)hash.high64,
                   (unsigned long long)hash.low64);
}

static void read_line(const char *line, char upload[LT_STATE_UPLOAD_BYTES], lt_state_part *parts,
                      int64_t n_parts) {
    long long part = 0;
    unsigned long long hash = 0;
    int n = 0;
    const size_t length = strlen(line);
    if (strncmp(line, "upload ", 7) == 0 && length - 7 < LT_STATE_UPLOAD_BYTES) {
        memcpy(upload, line + 7, length - 7 + 1);
    } else if (sscanf(line, "part %18lld %16llx%n", &part, &hash, &n) == 2 && line[n] == '\0' &&
               part >= 0 && part < n_parts) {
        parts[part] = (lt_state_part){true, hash};
    }
}

bool lt_state_read(const char *text, size_t bytes, const char *key,
                   char upload[LT_STATE_UPLOAD_BYTES], lt_state_part *parts, int64_t n_parts,
                   size_t *kept) {
    const size_t head = strlen(HEAD), n = strlen(key);
    const char *end = text + bytes;
    if (bytes < head + n + 1 || memcmp(text, HEAD, head) != 0 || memcmp(text + head, key, n) != 0 ||
        text[head + n] != '\n') {
        return false;
    }
    upload[0] = '\0';
    memset(parts, 0, (size_t)n_parts * sizeof *parts);
    text += head + n + 1;
    *kept = head + n + 1;
    for (const char *stop; (stop = memchr(text, '\n', (size_t)(end - text))) != NULL;
         text = stop + 1) {
        char line[LT_STATE_UPLOAD_BYTES + 16];
        const size_t length = (size_t)(stop - text);
        *kept += length + 1;
        if (length < sizeof line && memchr(text, '\0', length) == NULL) {
            memcpy(line, text, length);
            line[length] = '\0';
            read_line(line, upload, parts, n_parts);
        }
    }
    return true;
}

static lt_err write_text(lt_state *s, const char *text) {
    const size_t n = strlen(text);
    lt_err err = LT_OK;
    pthread_mutex_lock(&s->lock);
    if (write(s->fd, text, n) != (ssize_t)n) {
        err = lt_error_set(LT_ERR_IO, "%s: %s", s->path, strerror(errno));
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

lt_err lt_state_begin(lt_state *s) {
    char text[128];
    if (ftruncate(s->fd, 0) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", s->path, strerror(errno));
    }
    (void)snprintf(text, sizeof text, "%s%s\n", HEAD, s->key);
    return write_text(s, text);
}

/* Open and lock the file, which must still have that name afterwards. */
static lt_err open_locked(lt_state *s, const atomic_bool *wait) {
    for (;;) {
        struct stat own, named;
        s->fd = open(s->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (s->fd < 0) {
            LT_FAIL(LT_ERR_IO, "%s: %s", s->path, strerror(errno));
        }
        while (flock(s->fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR) {
                LT_FAIL(LT_ERR_IO, "%s: lock: %s", s->path, strerror(errno));
            }
            if (wait == NULL) {
                LT_FAIL(LT_ERR_STATE, "%s is locked: another process makes the same copy", s->path);
            }
            if (atomic_load(wait)) {
                LT_FAIL(LT_ERR_INTERRUPTED, "the copy was stopped");
            }
            (void)nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
        }
        if (fstat(s->fd, &own) == 0 && stat(s->path, &named) == 0 && own.st_ino == named.st_ino &&
            own.st_dev == named.st_dev) {
            return LT_OK;
        }
        close(s->fd);
    }
}

lt_err lt_state_open(lt_state **out, const char *path, const char *key, const atomic_bool *wait,
                     char upload[LT_STATE_UPLOAD_BYTES], lt_state_part *parts, int64_t n_parts,
                     bool *found) {
    lt_err err = LT_OK;
    lt_state *s = calloc(1, sizeof *s);
    char *text = NULL;
    size_t bytes = 0, kept = 0;

    *found = false;
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "the state of a copy");
    }
    s->fd = -1;
    LT_ASSERT(pthread_mutex_init(&s->lock, NULL) == 0);
    if (snprintf(s->path, sizeof s->path, "%s", path) >= (int)sizeof s->path) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "path too long: %s", path);
    }
    (void)snprintf(s->key, sizeof s->key, "%s", key);
    LT_TRY_DONE(open_locked(s, wait));
    LT_TRY_DONE(lt_file_read(&text, &bytes, path, LT_STATE_MOST_BYTES));
    *found = lt_state_read(text, bytes, key, upload, parts, n_parts, &kept);
    if (*found && kept < bytes && ftruncate(s->fd, (off_t)kept) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!*found) {
        LT_TRY_DONE(lt_state_begin(s));
    }
    *out = s;
    s = NULL;
done:
    free(text);
    if (s != NULL) {
        lt_state_close(s, true);
    }
    return err;
}

lt_err lt_state_add_upload(lt_state *s, const char *id) {
    char line[LT_STATE_UPLOAD_BYTES + 16];
    (void)snprintf(line, sizeof line, "upload %s\n", id);
    LT_TRY(write_text(s, line));
    /* Without the upload's ID, its parts at the service could not be found again. */
    if (fsync(s->fd) != 0) {
        LT_FAIL(LT_ERR_IO, "sync of %s: %s", s->path, strerror(errno));
    }
    return LT_OK;
}

lt_err lt_state_add_part(lt_state *s, int64_t part, uint64_t hash) {
    char line[64];
    (void)snprintf(line, sizeof line, "part %lld %016llx\n", (long long)part,
                   (unsigned long long)hash);
    return write_text(s, line);
}

void lt_state_forget(const char *path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            (void)unlink(path);
        }
        close(fd);
    }
}

void lt_state_close(lt_state *s, bool keep) {
    if (s != NULL) {
        if (!keep) {
            (void)unlink(s->path);
        }
        if (s->fd >= 0) {
            close(s->fd);
        }
        (void)pthread_mutex_destroy(&s->lock);
        free(s);
    }
}
