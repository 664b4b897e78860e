/* file.h: whole files, mapped files, and writes that take effect completely or not at all. */
#ifndef LT_BASE_FILE_H
#define LT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_PATH_BYTES 4096

/* A file mapped read-only. An empty file maps to data "", size 0. */
typedef struct {
    const unsigned char *data;
    size_t size_bytes;
} lt_file_map;

LT_MUST_USE lt_err lt_file_map_open(lt_file_map *out, const char *path);
void lt_file_map_close(lt_file_map *m); /* Accepts a zeroed map. */

/* Release the resident pages: they no longer count as memory of this process, and are read again
 * (usually from the page cache) when next touched. Safe while others read. */
void lt_file_map_forget(const lt_file_map *m);
/* The same of the whole pages in a part of a mapped file. */
void lt_file_span_forget(const void *data, size_t bytes);

/* Read a whole file of at most max_bytes into malloc'ed memory, followed by a 0. */
LT_MUST_USE lt_err lt_file_read(char **out, size_t *size_bytes, const char *path, size_t max_bytes);

/* Fails if path names something that a renamed file must not replace: a folder, a device, a pipe,
 * or a link into /proc such as /dev/stdout. Succeeds if nothing has this name. */
LT_MUST_USE lt_err lt_file_may_replace(const char *path);

/* Fails if output is the same file as input, by whatever name: writing it would destroy what is
 * read. */
LT_MUST_USE lt_err lt_file_spare(const char *output, const char *input);

/* Write path.tmp, sync it, rename it to path, sync the folder: a crash leaves the old file or the
 * new one. */
LT_MUST_USE lt_err lt_file_write_atomic(const char *path, const void *data, size_t size_bytes);

/* The same with `aside`, on the same file system, as the temporary name. may(of) is called right
 * before the rename, which happens only if it returns LT_OK; may NULL: always. */
LT_MUST_USE lt_err lt_file_write_by(const char *path, const char *aside, const void *data,
                                    size_t size_bytes, lt_err (*may)(const void *of),
                                    const void *of);

/* Copy a file of at most max_bytes; `to` is written as by lt_file_write_atomic. */
LT_MUST_USE lt_err lt_file_copy(const char *from, const char *to, size_t max_bytes);

LT_MUST_USE lt_err lt_file_make_dirs(const char *path);   /* mkdir -p */
LT_MUST_USE lt_err lt_file_make_parent(const char *path); /* The folder of path, likewise. */
LT_MUST_USE lt_err lt_file_sync_dir(const char *path);
/* Sync the folder of path, e.g. after a rename in it. */
LT_MUST_USE lt_err lt_file_sync_parent(const char *path);
LT_MUST_USE lt_err lt_file_remove_tree(const char *path); /* rm -r; no error if absent. */
int64_t lt_file_tree_bytes(const char *path); /* Bytes of all files in a folder; 0: it is absent. */
bool lt_file_exists(const char *path);
/* The same, but also true for a symbolic link whose target is missing. */
bool lt_file_has_name(const char *path);
/* The failure of an open for reading, by errno: NOT_FOUND or IO. */
lt_err lt_file_open_failed(const char *path);
bool lt_file_is_dir(const char *path);

/* a + "/" + b into out (LT_PATH_BYTES); error LIMIT when too long. */
LT_MUST_USE lt_err lt_path_join(char out[LT_PATH_BYTES], const char *a, const char *b);
bool lt_path_has_suffix(const char *path, const char *suffix);

/* Names in a folder, sorted, without "." and ".."; free with lt_file_list_free. */
LT_MUST_USE lt_err lt_file_list(char ***names, size_t *count, const char *path);
void lt_file_list_free(char **names, size_t count);

/* The folder for files that can be made again. It is created if it is missing: $LATEEN_CACHE_DIR,
 * else $XDG_CACHE_HOME/lateen, else ~/.cache/lateen. */
LT_MUST_USE lt_err lt_cache_dir(char out[LT_PATH_BYTES]);

#endif
