/* listing.c: lt_copy_list and lt_copy_delete of lateen/copy.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "platform/copy/session.h"

static int by_name(const void *a, const void *b) {
    const lt_item *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Request size and date of a file that was named by itself; no list has them. */
static lt_err complete(lt_copying *c, lt_item *item) {
    lt_opened_item opened = {.fd = -1};
    LT_TRY(lt_copy_source_open(&c->source, c->http, item, &opened));
    item->size_bytes = opened.size_bytes;
    item->modified_s = opened.modified_s;
    lt_copy_source_close(&opened);
    return LT_OK;
}

/* List the files at c->source.at that the options select. */
static lt_err files_of(lt_copying *c, const lt_copy_options *o, lt_items *items) {
    LT_TRY(lt_copying_open(c, o));
    LT_TRY(lt_copy_source_list(&c->source, c->http, items));
    if (!c->source.at.many) {
        return complete(c, &items->rows[0]);
    }
    lt_copy_choose(items, o);
    qsort(items->rows, items->n, sizeof *items->rows, by_name);
    return LT_OK;
}

lt_err lt_copy_list(const char *place, const lt_copy_options *options,
                    lt_err (*found)(void *ctx, const lt_copy_file *file), void *ctx) {
    const lt_copy_options o = options != NULL ? *options : lt_copy_defaults();
    lt_copying c = {.http = NULL};
    lt_items items = {0};
    lt_err err = LT_OK;

    LT_TRY(lt_copy_check_options(&o));
    LT_TRY(lt_location_read(&c.source.at, place));
    LT_TRY_DONE(files_of(&c, &o, &items));
    if (items.n == 0) {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s: no file matches", c.source.at.shown);
    }
    for (size_t i = 0; i < items.n; i++) {
        const lt_item *item = &items.rows[i];
        LT_TRY_DONE(found(ctx, &(lt_copy_file){.name = item->name,
                                               .shown = item->shown,
                                               .size_bytes = item->size_bytes,
                                               .modified_s = item->modified_s}));
    }
done:
    lt_items_free(&items);
    lt_copying_close(&c);
    return err;
}

static lt_err delete_one(lt_copying *c, const lt_item *item) {
    if (c->source.at.at == LT_AT_S3) {
        return lt_s3_delete(c->s3, c->http, c->source.at.place, item->from);
    }
    if (unlink(item->from) != 0 && errno != ENOENT) {
        LT_FAIL(LT_ERR_IO, "%s cannot be removed: %s", item->from, strerror(errno));
    }
    return LT_OK;
}

lt_err lt_copy_delete(const char *place, const lt_copy_options *options, int64_t *n) {
    const lt_copy_options o = options != NULL ? *options : lt_copy_defaults();
    lt_copying c = {.http = NULL};
    lt_items items = {0};
    lt_err err = LT_OK;
    int64_t deleted = 0;

    LT_TRY(lt_copy_check_options(&o));
    LT_TRY(lt_location_read(&c.source.at, place));
    if (c.source.at.at != LT_AT_FILE && c.source.at.at != LT_AT_S3) {
        LT_FAIL(LT_ERR_ARG, "%s: only files and objects of s3 are deleted", c.source.at.shown);
    }
    err = files_of(&c, &o, &items);
    if (err == LT_ERR_NOT_FOUND) {
        err = LT_OK; /* There is nothing to delete. */
        goto done;
    }
    LT_TRY_DONE(err);
    for (; deleted < (int64_t)items.n; deleted++) {
        LT_TRY_DONE(delete_one(&c, &items.rows[deleted]));
    }
    if (c.source.at.at == LT_AT_FILE && c.source.at.many && o.include[0] == '\0' &&
        o.exclude[0] == '\0') {
        err = lt_file_remove_tree(c.source.at.path); /* Remove the folders. */
    }
done:
    if (n != NULL) {
        *n = deleted;
    }
    lt_items_free(&items);
    lt_copying_close(&c);
    return err;
}
