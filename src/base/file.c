/* file.c: see file.h. Messages name the path and give the system's error text. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

lt_err lt_file_open_failed(const char *path) {
    const int why = errno;
    char target[LT_PATH_BYTES];
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (why == ENOENT && n > 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: it is a broken link: its target %.*s is not there", path,
                (int)n, target);
    }
    LT_FAIL(why == ENOENT ? LT_ERR_NOT_FOUND : LT_ERR_IO, "%s: %s", path, strerror(why));
}

static lt_err open_read(int *fd, struct stat *st, const char *path) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) {
        return lt_file_open_failed(path);
    }
    if (fstat(*fd, st) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(st->st_mode)) {
        LT_FAIL(LT_ERR_IO, "%s: is a folder, not a file", path);
    }
    return LT_OK;
}

lt_err lt_file_map_open(lt_file_map *out, const char *path) {
    lt_err err = LT_OK;
    struct stat st;
    int fd = -1;
    void *data;

    LT_TRY_DONE(open_read(&fd, &st, path));
    if (!S_ISREG(st.st_mode)) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: a pipe or device, where a file is needed", path);
    }
    if (st.st_size == 0) {
        *out = (lt_file_map){.data = (const unsigned char *)"", .size_bytes = 0};
        goto done;
    }
    data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: mmap of %lld bytes: %s", path, (long long)st.st_size,
                     strerror(errno));
    }
    *out = (lt_file_map){.data = data, .size_bytes = (size_t)st.st_size};
done:
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

void lt_file_map_close(lt_file_map *m) {
    if (m->size_bytes > 0) {
        munmap((void *)(uintptr_t)m->data, m->size_bytes);
    }
    *m = (lt_file_map){0};
}

void lt_file_span_forget(const void *data, size_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)data;
    const uintptr_t first = (at + page - 1) / page * page, end = (at + bytes) / page * page;
    if (first < end) {
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
    }
}

void lt_file_map_forget(const lt_file_map *m) {
    lt_file_span_forget(m->data, m->size_bytes);
}

lt_err lt_file_read(char **out, size_t *size_bytes, const char *path, size_t max_bytes) {
    lt_err err = LT_OK;
    size_t used = 0, room = 4096;
    struct stat st;
    char *data = NULL;
    int fd = -1;

    LT_TRY_DONE(open_read(&fd, &st, path));
    if (st.st_size > 0) {
        room = (size_t)st.st_size + 1;
    }
    for (;;) { /* Pipes and /proc files have no size: grow until the end of the file. */
        ssize_t got;
        if (used + 1 >= room || data == NULL) {
            room = data == NULL ? room : 2 * room;
            char *grown = realloc(data, room + 1);
            if (grown == NULL) {
                LT_FAIL_DONE(LT_ERR_OOM, "%s: %zu bytes", path, room);
            }
            data = grown;
        }
        got = read(fd, data + used, room - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
        }
        if (got == 0) {
            break;
        }
        used += (size_t)got;
        if (used > max_bytes) {
            LT_FAIL_DONE(LT_ERR_LIMIT, "%s: more than %zu bytes", path, max_bytes);
        }
    }
    data[used] = '\0';
    *out = data;
    if (size_bytes != NULL) {
        *size_bytes = used;
    }
    data = NULL;
done:
    if (fd >= 0) {
        close(fd);
    }
    free(data);
    return err;
}

static lt_err write_all(int fd, const char *path, const unsigned char *data, size_t size_bytes) {
    while (size_bytes > 0) {
        const ssize_t put = write(fd, data, size_bytes);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
        }
        data += put;
        size_bytes -= (size_t)put;
    }
    return LT_OK;
}

lt_err lt_file_may_replace(const char *path) {
    struct stat st;
    char target[16] = "";
    const ssize_t n = readlink(path, target, sizeof target - 1);
    if (n > 0 && strncmp(target, "/proc/", 6) == 0) {
        LT_FAIL(LT_ERR_IO, "%s is a link to a stream of this process, not the name of a file",
                path);
    }
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) {
        return LT_OK;
    }
    LT_FAIL(LT_ERR_IO, "%s is %s, which a file cannot replace", path,
            S_ISDIR(st.st_mode)                          ? "a folder"
            : S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode) ? "a device"
                                                         : "a pipe or socket");
}

lt_err lt_file_spare(const char *output, const char *input) {
    struct stat a, b;
    if (stat(output, &a) == 0 && stat(input, &b) == 0 && S_ISREG(a.st_mode) &&
        a.st_dev == b.st_dev && a.st_ino == b.st_ino) {
        LT_FAIL(LT_ERR_ARG, "%s is the input: it cannot be written at the same time%s%s", input,
                strcmp(input, output) != 0 ? ", as " : "",
                strcmp(input, output) != 0 ? output : "");
    }
    return LT_OK;
}

static void parent_of(char out[LT_PATH_BYTES], const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        snprintf(out, LT_PATH_BYTES, ".");
    } else {
        snprintf(out, LT_PATH_BYTES, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    }
}

lt_err lt_file_sync_dir(const char *path) {
    lt_err err = LT_OK;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        err = lt_error_set(LT_ERR_IO, "sync of folder %s: %s", path, strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

lt_err lt_file_sync_parent(const char *path) {
    char folder[LT_PATH_BYTES];
    parent_of(folder, path);
    return lt_file_sync_dir(folder);
}

lt_err lt_file_write_atomic(const char *path, const void *data, size_t size_bytes) {
    char aside[LT_PATH_BYTES];
    if (snprintf(aside, sizeof aside, "%s.tmp", path) >= (int)sizeof aside) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", path);
    }
    return lt_file_write_by(path, aside, data, size_bytes, NULL, NULL);
}

lt_err lt_file_write_by(const char *path, const char *aside, const void *data, size_t size_bytes,
                        lt_err (*may)(const void *of), const void *of) {
    lt_err err = LT_OK;
    int fd;

    LT_TRY(lt_file_may_replace(path));
    fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", aside, strerror(errno));
    }
    LT_TRY_DONE(write_all(fd, aside, data, size_bytes));
    if (fsync(fd) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "sync of %s: %s", aside, strerror(errno));
    }
    LT_TRY_DONE(may != NULL ? may(of) : LT_OK);
    if (rename(aside, path) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "rename %s to %s: %s", aside, path, strerror(errno));
    }
    LT_TRY_DONE(lt_file_sync_parent(path));
done:
    close(fd);
    if (err != LT_OK) {
        unlink(aside);
    }
    return err;
}

lt_err lt_file_copy(const char *from, const char *to, size_t max_bytes) {
    lt_err err;
    char *data = NULL;
    size_t bytes = 0;
    LT_TRY(lt_file_read(&data, &bytes, from, max_bytes));
    err = lt_file_write_atomic(to, data, bytes);
    free(data);
    return err;
}

lt_err lt_file_make_dirs(const char *path) {
    char part[LT_PATH_BYTES];
    const size_t len = strlen(path);

    if (len == 0 || len >= sizeof part) {
        LT_FAIL(LT_ERR_ARG, "folder name of %zu characters", len);
    }
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != '\0') {
            continue;
        }
        part[i] = '\0';
        if (mkdir(part, 0755) != 0 && errno != EEXIST) {
            LT_FAIL(LT_ERR_IO, "make folder %s: %s", part, strerror(errno));
        }
        part[i] = path[i];
    }
    if (!lt_file_is_dir(path)) {
        LT_FAIL(LT_ERR_IO, "%s exists and is not a folder", path);
    }
    return LT_OK;
}

lt_err lt_file_make_parent(const char *path) {
    char folder[LT_PATH_BYTES];
    parent_of(folder, path);
    return lt_file_make_dirs(folder);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where) {
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

lt_err lt_file_remove_tree(const char *path) {
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        LT_FAIL(LT_ERR_IO, "remove %s: %s", path, strerror(errno));
    }
    return LT_OK;
}

bool lt_file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

bool lt_file_has_name(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

bool lt_file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static _Thread_local int64_t tree_bytes; /* nftw passes no context. */

static int add_bytes(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)path;
    (void)ftw;
    tree_bytes += type == FTW_F ? (int64_t)st->st_size : 0;
    return 0;
}

int64_t lt_file_tree_bytes(const char *path) {
    tree_bytes = 0;
    (void)nftw(path, add_bytes, 16, FTW_PHYS);
    return tree_bytes;
}

lt_err lt_path_join(char out[LT_PATH_BYTES], const char *a, const char *b) {
    const int n = snprintf(out, LT_PATH_BYTES, "%s/%s", a, b);
    if (n < 0 || n >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s/%s", a, b);
    }
    return LT_OK;
}

bool lt_path_has_suffix(const char *path, const char *suffix) {
    const size_t np = strlen(path), ns = strlen(suffix);
    return np >= ns && strcmp(path + np - ns, suffix) == 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

lt_err lt_file_list(char ***names, size_t *count, const char *path) {
    lt_err err = LT_OK;
    char **list = NULL;
    size_t n = 0, room = 0;
    struct dirent *entry;
    DIR *dir = opendir(path);

    if (dir == NULL) {
        LT_FAIL(errno == ENOENT ? LT_ERR_NOT_FOUND : LT_ERR_IO, "folder %s: %s", path,
                strerror(errno));
    }
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (n == room) {
            room = room == 0 ? 16 : 2 * room;
            char **grown = realloc(list, room * sizeof *list);
            if (grown == NULL) {
                LT_FAIL_DONE(LT_ERR_OOM, "list of folder %s", path);
            }
            list = grown;
        }
        list[n] = strdup(entry->d_name);
        if (list[n] == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "list of folder %s", path);
        }
        n++;
    }
    if (n > 1) {
        qsort(list, n, sizeof *list, compare_names);
    }
    *names = list;
    *count = n;
    list = NULL;
done:
    closedir(dir);
    lt_file_list_free(list, list == NULL ? 0 : n);
    return err;
}

void lt_file_list_free(char **names, size_t count) {
    for (size_t i = 0; names != NULL && i < count; i++) {
        free(names[i]);
    }
    free(names);
}

lt_err lt_cache_dir(char out[LT_PATH_BYTES]) {
    const char *own = getenv("LATEEN_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    int n;
    if (own != NULL && own[0] != '\0') {
        n = snprintf(out, LT_PATH_BYTES, "%s", own);
    } else if (xdg != NULL && xdg[0] != '\0') {
        n = snprintf(out, LT_PATH_BYTES, "%s/lateen", xdg);
    } else {
        n = snprintf(out, LT_PATH_BYTES, "%s/.cache/lateen",
                     home != NULL && home[0] != '\0' ? home : "/tmp");
    }
    if (n >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "cache folder: path of %d bytes", n);
    }
    return lt_file_make_dirs(out);
}
