/* fuzz_file.h: files in memory with the fuzzer's input, for parsers that read a path. They are
 * created once and then only written to: tens of thousands of runs a second. */
#ifndef FUZZ_FILE_H
#define FUZZ_FILE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUZZ_FILES 4

static struct {
    int fd[FUZZ_FILES];
    char path[FUZZ_FILES][96];
    char folder[64];
    int n;
} fuzz_files;

static inline void fuzz_write(int fd, const void *data, size_t size) {
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) {
        abort();
    }
}

/* A file without a name, one per target; returns a path to it. */
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    fuzz_write(fd, data, size);
    return path;
}

static inline void fuzz_remove_folder(void) {
    for (int i = 0; i < fuzz_files.n; i++) {
        unlink(fuzz_files.path[i]);
    }
    rmdir(fuzz_files.folder);
}

/* A folder in memory, made at the first call. */
static inline const char *fuzz_folder(void) {
    if (fuzz_files.folder[0] == '\0') {
        snprintf(fuzz_files.folder, sizeof fuzz_files.folder, "/dev/shm/lateen-fuzz-XXXXXX");
        if (mkdtemp(fuzz_files.folder) == NULL) {
            abort();
        }
        atexit(fuzz_remove_folder);
    }
    return fuzz_files.folder;
}

/* Create a file in it, once for each name; returns its descriptor. */
static inline int fuzz_folder_file(const char *name) {
    const int i = fuzz_files.n;
    if (i == FUZZ_FILES) {
        abort();
    }
    snprintf(fuzz_files.path[i], sizeof fuzz_files.path[i], "%s/%s", fuzz_folder(), name);
    fuzz_files.fd[i] = open(fuzz_files.path[i], O_RDWR | O_CREAT, 0600);
    if (fuzz_files.fd[i] < 0) {
        abort();
    }
    return fuzz_files.fd[fuzz_files.n++];
}

#endif
