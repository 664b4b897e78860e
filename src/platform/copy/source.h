/* source.h: the source of a copy: a list of files, and ranges of their bytes. */
#ifndef LT_PLATFORM_COPY_SOURCE_H
#define LT_PLATFORM_COPY_SOURCE_H

#include "lateen/copy.h"
#include "platform/copy/hub.h"
#include "platform/copy/location.h"
#include "platform/copy/s3.h"

/* A file of a copy. */
typedef struct {
    char *from; /* Path, key, web address, or name in the repository. */
    /* Its name below the folder or prefix; for a single file, the last part of its path. */
    char *name;
    char *shown; /* For messages. */
    char *to;    /* Path or key of the target; set by the copy. */
    int64_t size_bytes;
    double modified_s; /* Unix time; 0: not known. */
    lt_checksum check; /* If the list has it. */
} lt_item;

#define LT_MOST_ITEMS ((size_t)4 << 20)

typedef struct {
    lt_item *rows;
    size_t n, room;
} lt_items;

/* Strings are copied. */
LT_MUST_USE lt_err lt_items_add(lt_items *l, const char *from, const char *name, const char *shown,
                                int64_t size_bytes, double modified_s);
/* Remove all items after the first n. */
void lt_items_cut(lt_items *l, size_t n);
void lt_items_free(lt_items *l);

typedef struct {
    lt_location at;
    lt_s3 *s3;   /* For S3; owned by the copy. */
    lt_hub *hub; /* For the hub; owned by the copy. */
} lt_copy_source;

/* A file that is open for reading, by several threads. */
typedef struct {
    const lt_copy_source *source;
    const lt_item *item;
    int64_t size_bytes;
    double modified_s;
    lt_checksum check;
    char version[256]; /* Changes with the content: an ETag, a date. */
    int fd;            /* For FILE; otherwise -1. */
    lt_s3_object object;
    bool ranges;           /* For WEB: the server can send ranges. */
    bool in_one;           /* For WEB: all bytes must come in one answer. */
    lt_hub_file *hub_file; /* For HUB and WEB: where redirections lead. */
} lt_opened_item;

/* List the files. NOT_FOUND: there is none. */
LT_MUST_USE lt_err lt_copy_source_list(lt_copy_source *s, lt_web *h, lt_items *out);
/* Open a file: find its size, version and checksum. */
LT_MUST_USE lt_err lt_copy_source_open(const lt_copy_source *s, lt_web *h, const lt_item *item,
                                       lt_opened_item *out);
LT_MUST_USE lt_err lt_copy_source_read(const lt_opened_item *o, lt_web *h, int64_t at, int64_t n,
                                       unsigned char *into);
/* Call it if the content's checksum differs from o->check. *fits: o->check applies, so the content
 * is wrong. It does not apply if the object's parts turn out to have different sizes. */
LT_MUST_USE lt_err lt_copy_source_doubt(const lt_opened_item *o, lt_web *h, bool *fits);
/* STATE: a local file has changed since it was opened. (Requests to services name one
 * version.) */
LT_MUST_USE lt_err lt_copy_source_check(const lt_opened_item *o);
void lt_copy_source_close(lt_opened_item *o);

#endif
