/* aside.h: files and folders that have a temporary name, PATH.tmp, until they are complete, so that
 * PATH never names a part of one. If SIGINT, SIGTERM or SIGHUP ends the process before that, they
 * are removed, because they would leave gigabytes that nothing uses. A signal that the process
 * ignores, or handles itself, is left as it is.
 *
 *     LT_TRY(lt_aside_open(&a, "x.gguf"));         a.file is open; or lt_aside_open_folder(&a, "x")
 *     ... write to a.file, or files into the folder a.path ...
 *     LT_TRY_DONE(lt_aside_publish(&a));
 *   done:
 *     lt_aside_close(&a);                          removes what was not published */
#ifndef LT_BASE_ASIDE_H
#define LT_BASE_ASIDE_H

#include <stdio.h>

#include "base/file.h"

typedef struct {
    char path[LT_PATH_BYTES];
    const char *to; /* PATH, which belongs to the caller. NULL: there is nothing to remove. */
    FILE *file;     /* NULL: a folder. */
    /* Slot among the paths that a signal removes, from 1; 0: there was none free. */
    int slot;
} lt_aside;

/* IO or LIMIT: PATH.tmp cannot be written, or cannot take the place of PATH (lt_file_may_replace).
 * A file of the name PATH.tmp is overwritten. Any thread may call it. */
LT_MUST_USE lt_err lt_aside_open(lt_aside *a, const char *to);
/* The folders above it are made, too. It fails if PATH.tmp exists. The folder must hold files
 * only. */
LT_MUST_USE lt_err lt_aside_open_folder(lt_aside *a, const char *to);
/* Sync it, rename it to PATH, sync the folder that holds it. The caller has synced the files of a
 * folder. */
LT_MUST_USE lt_err lt_aside_publish(lt_aside *a);
void lt_aside_close(lt_aside *a); /* Accepts zeros. */

#endif
