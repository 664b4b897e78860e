/* page_disk.h: pages of the prefix cache in files of a folder, for an engine whose pool is too
 * small for them, and for the engine that opens the folder next.
 *
 *     FOLDER/secret            8 random bytes, the seed of all chains (pages.h)
 *     FOLDER/CHAIN.page        one page (page_file.h, version 2), named by its chain in 32 digits
 *
 * A chain stands for all tokens up to the end of the page, and for the salt of those who may share
 * it. Without the secret nobody can make a text with the chain of another one, and a page's own
 * tokens are compared as well. All files have the same size, so the limit of bytes is a limit of
 * files; beyond it, the least recently used one is removed. Closing sets the mtimes of the files in
 * the order of their use, which the next engine reads.
 *
 * CRASHES  Files are not synced: a crash of the machine may damage those written last, and a reader
 *          notices it.
 * IGNORED  Files of other models, types and sizes of pages, damaged ones and those that are not
 *          files of pages are left as they are, and the log reports them once, at open. A page
 *          whose content turns out to be damaged when it is read is removed.
 * THREADS  has and touch may be called from any thread, and never wait for a file; put and get from
 *          one thread at a time. One program at a time uses a folder. */
#ifndef LT_SERVE_PAGE_DISK_H
#define LT_SERVE_PAGE_DISK_H

#include "serve/page_file.h"

typedef struct lt_page_disk lt_page_disk;

/* Make the folder if it does not exist. head: what each file begins with, without tokens and chain.
 * LIMIT: a file exceeds most_bytes. STATE: another program uses the folder. */
LT_MUST_USE lt_err lt_page_disk_open(lt_page_disk **out, const char *folder, int64_t most_bytes,
                                     const lt_page_file_head *head);
void lt_page_disk_close(lt_page_disk *d); /* Accepts NULL. */
uint64_t lt_page_disk_seed(const lt_page_disk *d);

bool lt_page_disk_has(lt_page_disk *d, lt_page_chain chain);
/* The page was used, so it is removed after all others. False: it is not there. */
bool lt_page_disk_touch(lt_page_disk *d, lt_page_chain chain);
/* Write a page and its page_tokens tokens, unless it is there. */
LT_MUST_USE lt_err lt_page_disk_put(lt_page_disk *d, lt_page_chain chain, const int32_t *tokens,
                                    const void *page);
/* Read a page of these tokens. NOT_FOUND: it is not there. FORMAT: it was damaged, and has been
 * removed. */
LT_MUST_USE lt_err lt_page_disk_get(lt_page_disk *d, lt_page_chain chain, const int32_t *tokens,
                                    void *page);

typedef struct {
    int64_t pages, most_pages, file_bytes;
    int64_t written, read, failed; /* Since the start; failed: writes and reads. */
} lt_page_disk_counts;
void lt_page_disk_get_counts(lt_page_disk *d, lt_page_disk_counts *out);

#endif
