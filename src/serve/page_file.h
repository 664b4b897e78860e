/* page_file.h: pages of a text's keys and values in a file.
 *
 * FORMAT   All numbers little-endian.
 *
 *     at   bytes
 *      0   8   "LTPAGES\n"
 *      8   4   version: 1, or 2 with a chain
 *     12   4   0
 *     16   8   fingerprint of the model (model/fingerprint.h)
 *     24   8   type of keys, as lt_dtype_name gives it, then zeros
 *     32   8   type of values
 *     40   4   tokens of a page, P
 *     44   4   number of pages, N
 *     48   8   bytes of a page, B
 *     56   8   XXH3-64 of the bytes before it, and of all between it and the pages
 *     64   16  version 2 only: the chain of a single page (pages.h), by which the cache on disk
 *              knows what came before it
 *          4 N P   tokens (I32): page i holds tokens [i P, (i + 1) P) of the text
 *          N times: B bytes, for each layer its keys (P, G, D), then its values; and their XXH3-64,
 *                   seeded with the page's number
 *
 * CRASHES  The file is written under another name in the same folder, synced and renamed, so a name
 *          has a whole file or none. A file that is not synced may be damaged by a crash, which
 *          its reader notices.
 * DAMAGE   A file that was cut, extended or changed anywhere fails with FORMAT, which names what is
 *          wrong; nothing of it is used. */
#ifndef LT_SERVE_PAGE_FILE_H
#define LT_SERVE_PAGE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/tensor.h"
#include "serve/pages.h"

typedef struct {
    uint64_t fingerprint;
    lt_dtype keys, values;
    int64_t page_tokens, page_bytes, n_pages;
    lt_page_chain chain; /* 0: the pages are the first of their text. */
} lt_page_file_head;

#define LT_PAGE_FILE_SUFFIX ".tmp" /* Suffix of a file that is being written. */

/* The size of a file with this head. */
int64_t lt_page_file_bytes(const lt_page_file_head *head);

/* ---- Writing ---- */

typedef struct lt_page_file lt_page_file;

/* Begin the file at path with its head and the tokens (n_pages * page_tokens). */
LT_MUST_USE lt_err lt_page_file_create(lt_page_file **out, const char *path,
                                       const lt_page_file_head *head, const int32_t *tokens);
/* Write the next page, page_bytes. */
LT_MUST_USE lt_err lt_page_file_put(lt_page_file *f, const void *page);
/* Call it after the last page: gives the file its name, and syncs it if it has to survive a crash.
 * *bytes: its size. */
LT_MUST_USE lt_err lt_page_file_commit(lt_page_file *f, bool sync, int64_t *bytes);
void lt_page_file_close(lt_page_file *f); /* A file that was not committed is removed. */

/* ---- Reading ---- */

typedef struct {
    lt_page_file_head head;
    const unsigned char *tokens, *pages; /* In the file's data; tokens may be unaligned. */
    const char *name;                    /* For messages. */
} lt_page_file_view;

/* Parse only the head of a file of this size, without its checksum. */
LT_MUST_USE lt_err lt_page_file_parse_head(lt_page_file_head *out, const void *data, size_t bytes,
                                           const char *name);
/* Check everything but the pages' content. FORMAT: it is not such a file, or it is damaged. */
LT_MUST_USE lt_err lt_page_file_parse(lt_page_file_view *out, const void *data, size_t bytes,
                                      const char *name);
/* Page i, page_bytes; its checksum is verified. */
LT_MUST_USE lt_err lt_page_file_page(const lt_page_file_view *v, int64_t i, const void **page);

#endif
