/* uploads.h: /v1/uploads: a file that comes in parts.
 *
 *     DIR/uploads/part_ID     a part, until its upload has ended
 *
 * An upload announces its bytes; its parts come in any order, several at once; at the end the
 * client lists them in the right order, and together they become a file of files.h.
 *
 *     PENDING ──complete──▶ COMPLETED      An upload that has ended takes no part, and its parts
 *        │ ├─────cancel───▶ CANCELLED      are gone. While it is being completed it is `busy`:
 *        │ └─its time ends▶ EXPIRED        nothing else may change it.
 *
 * A wrong call to complete an upload leaves it PENDING, so that the client may correct the call.
 * Uploads live in memory: the next server deletes their parts. They have an owner, as files have,
 * and other keys do not find them. All functions may be called from any thread. */
#ifndef LT_SERVE_UPLOADS_H
#define LT_SERVE_UPLOADS_H

#include "base/json.h"
#include "serve/api/files/files.h"

#define LT_UPLOAD_PARTS 1000 /* Most parts of one upload. */

typedef struct lt_uploads lt_uploads;

typedef enum {
    LT_UPLOAD_PENDING,
    LT_UPLOAD_COMPLETED,
    LT_UPLOAD_CANCELLED,
    LT_UPLOAD_EXPIRED
} lt_upload_state;

typedef struct {
    char id[LT_FILE_ID_BYTES];
    lt_upload_state state;
    int64_t bytes, created, expires; /* expires: when it must be complete. Unix seconds. */
    /* Lifetime of its file in seconds from the file's creation; 0: unlimited. */
    int64_t keep_s;
    lt_file_entry file; /* Owner, name, purpose; COMPLETED: all fields. */
} lt_upload;

typedef struct {
    const char *dir; /* The server's folder of state. */
    lt_files *files;
    /* Most pending uploads of one owner, and most bytes of all of them. */
    int64_t max_uploads, max_bytes;
    int64_t pending_s; /* Time in which an upload must be complete. */
} lt_uploads_options;

LT_MUST_USE lt_err lt_uploads_open(lt_uploads **out, const lt_uploads_options *o);
void lt_uploads_close(lt_uploads *u); /* Accepts NULL. */

/* Begin an upload. asked has its id, bytes, keep_s and the file's owner, name and purpose; the
 * other fields are set. */
bool lt_uploads_create(lt_uploads *u, lt_upload *asked, lt_api_error *e);
/* Keep a part of it, under a new id. */
bool lt_uploads_add(lt_uploads *u, const char *id, const char *owner, const char *part,
                    const void *data, size_t n, lt_api_error *e);
/* Join the named parts, in the order of the list, to a file with that id. md5: 32 hexadecimal
 * digits that must be the file's; NULL: any. */
bool lt_uploads_complete(lt_uploads *u, const char *id, const char *owner, const json_t *parts,
                         const char *md5, const char *file_id, lt_upload *out, lt_api_error *e);
bool lt_uploads_cancel(lt_uploads *u, const char *id, const char *owner, lt_upload *out,
                       lt_api_error *e);

#endif
