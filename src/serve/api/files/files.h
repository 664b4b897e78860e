/* files.h: the files of /v1/files, kept in a folder, so that they outlive the server.
 *
 *     DIR/files/file-ID         the content
 *     DIR/files/file-ID.json    its description, written last: a file without it does not exist
 *
 * The content of a file never changes. Files have an owner, as a digest of the API key, and other
 * keys do not find them. A file that is held can be neither deleted nor forgotten when its time is
 * over. All functions may be called from any thread. */
#ifndef LT_SERVE_FILES_H
#define LT_SERVE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "lateen/base.h"
#include "serve/api/api_params.h"

#define LT_FILE_ID_BYTES    64
#define LT_FILE_NAME_BYTES  256
#define LT_OWNER_NAME_BYTES 65 /* 64 hexadecimal digits and a 0. */

typedef struct lt_files lt_files;

typedef struct {
    char id[LT_FILE_ID_BYTES], owner[LT_OWNER_NAME_BYTES], name[LT_FILE_NAME_BYTES];
    const char *purpose;             /* A name from lt_file_purpose_find. */
    int64_t bytes, created, expires; /* Unix seconds; expires 0: never. */
    int64_t order_us;                /* Unix microseconds: the order of files. */
} lt_file_entry;

typedef struct {
    const char *dir;              /* The server's folder of state; created if it does not exist. */
    int64_t max_files, max_bytes; /* Limits per owner. */
} lt_files_options;

/* "batch", "batch_output", "fine-tune" or "fine-tune-results"; NULL: another name. */
const char *lt_file_purpose_find(const char *name);

/* The name of an API key in files: its SHA-256; "" for no key. False: out of memory. */
bool lt_owner_name(const char *key, char out[LT_OWNER_NAME_BYTES]);

LT_MUST_USE lt_err lt_files_open(lt_files **out, const lt_files_options *o);
void lt_files_close(lt_files *f); /* Accepts NULL. */

/* The path of the content of the file with that id. */
LT_MUST_USE lt_err lt_files_path(const lt_files *f, const char *id, char out[LT_PATH_BYTES]);

/* Keep a file of n bytes. entry has everything but bytes and order_us, which are set on success.
 * data NULL: the content lies at its path already, and with n 0 no limit applies. If the file is
 * refused, its content is deleted, unless no limit applies. */
bool lt_files_put(lt_files *f, lt_file_entry *entry, const void *data, size_t n, lt_api_error *e);
/* Find a file of the owner. hold: keep it until lt_files_release. */
bool lt_files_get(lt_files *f, const char *id, const char *owner, bool hold, lt_file_entry *out);
void lt_files_release(lt_files *f, const char *id);
/* Delete it. False: *e says that it does not exist, or that it is held. */
bool lt_files_delete(lt_files *f, const char *id, const char *owner, lt_api_error *e);
/* The owner's files, oldest first; malloc'ed. NULL: out of memory. */
lt_file_entry *lt_files_list(lt_files *f, const char *owner, size_t *n);

typedef struct {
    int64_t files, bytes;
} lt_files_stats;
lt_files_stats lt_files_get_stats(lt_files *f);

#endif
