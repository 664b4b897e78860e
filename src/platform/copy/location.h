/* location.h: parses the places that a copy reads or writes.
 *
 *     dir/file, dir/, file:///dir/file            files and folders
 *     s3://BUCKET/KEY, s3://BUCKET/PREFIX/        an object; all objects whose keys have this
 *                                                 prefix
 *     https://HOST/PATH, http://HOST/PATH         a file on a web server
 *     hf://[datasets/|spaces/]ORG/NAME[@REVISION][/FILE]
 *                                                 a repository of Hugging Face's hub, or one file
 *
 * A slash in a revision is written %2F ("@refs%2Fpr%2F1"). `shown` is the form in messages and
 * journals: a web address without user, password and query, which may be secret. */
#ifndef LT_PLATFORM_COPY_LOCATION_H
#define LT_PLATFORM_COPY_LOCATION_H

#include <stdbool.h>

#include "base/file.h"

typedef enum { LT_AT_FILE, LT_AT_S3, LT_AT_WEB, LT_AT_HUB } lt_at;

typedef struct {
    lt_at at;
    bool many; /* It is a folder, a prefix or a whole repository: it ends in '/', or is empty. */
    char path[LT_PATH_BYTES]; /* The file; the key or prefix; the web address; the file's name. */
    char place[256];          /* S3: the bucket. HUB: "ORG/NAME". */
    char kind[16];            /* HUB: "models", "datasets", "spaces". */
    char revision[256];       /* HUB: "main" if none was given. */
    char shown[LT_PATH_BYTES];
} lt_location;

/* Parse a location. ARG: the message says what is wrong with it. */
LT_MUST_USE lt_err lt_location_read(lt_location *out, const char *text);

/* Whether it begins with one of the schemes, and so is not just a path. */
bool lt_location_is_remote(const char *text);

/* The last part of a path or key, after its last slash. */
const char *lt_location_name(const char *path);

/* Whether an object of this name may be written below a folder. If a part of it is empty, "." or
 * "..", or if it begins with a slash, it would be written elsewhere. */
bool lt_location_is_safe(const char *name);

/* Decode percent-encoding ("%41" to "A") in place; `plus`: also convert '+' to a blank, as in the
 * lists of S3. False: a '%' without two hexadecimal digits, or a byte 0. */
bool lt_uri_decode(char *text, bool plus);

#endif
