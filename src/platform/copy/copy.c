/* copy.c: determines the target of each source file; see lateen/copy.h. */
#include "lateen/copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/copy/session.h"

lt_copy_options lt_copy_defaults(void) {
    return (lt_copy_options){.n_connections = 8,
                             .part_bytes = (int64_t)16 << 20,
                             .n_tries = 8,
                             .delay_s = 0.5,
                             .stall_s = 30.0,
                             .profile = "",
                             .region = "",
                             .endpoint = "",
                             .include = "",
                             .exclude = "",
                             .sha256 = ""};
}

/* Determine the target of each file. If the target is a folder or ends with a slash, files keep
 * their names. */
static lt_err place(lt_items *items, const lt_location *source, lt_location *target) {
    char to[LT_PATH_BYTES];
    const bool folder = target->at == LT_AT_FILE && lt_file_is_dir(target->path);
    if (source->many || folder) {
        target->many = true;
    }
    for (size_t i = 0; i < items->n; i++) {
        lt_item *item = &items->rows[i];
        const size_t n = strlen(target->path);
        const char *slash = n > 0 && target->path[n - 1] != '/' ? "/" : "";
        const int bytes = target->many
                              ? snprintf(to, sizeof to, "%s%s%s", target->path, slash, item->name)
                              : snprintf(to, sizeof to, "%s", target->path);
        if (bytes >= (int)sizeof to) {
            LT_FAIL(LT_ERR_LIMIT, "path too long: %s/%s", target->path, item->name);
        }
        if (target->many && target->at == LT_AT_FILE && !lt_location_is_safe(item->name)) {
            LT_FAIL(LT_ERR_ARG,
                    "%s cannot be written below %s: a part of its name is empty, '.' or '..'",
                    item->shown, target->path);
        }
        item->to = strdup(to);
        if (item->to == NULL) {
            LT_FAIL(LT_ERR_OOM, "a list of %zu files", items->n);
        }
    }
    return LT_OK;
}

static int compare_to(const void *a, const void *b) {
    const lt_item *const *x = a, *const *y = b;
    return strcmp((*x)->to, (*y)->to);
}

static int compare_key(const void *key, const void *b) {
    const lt_item *const *y = b;
    return strcmp(key, (*y)->to);
}

/* The file whose name is also a folder in this one's path; NULL: none. */
static const lt_item *file_above(const lt_item **sorted, size_t n, const lt_item *item) {
    char above[LT_PATH_BYTES];
    (void)snprintf(above, sizeof above, "%s", item->to);
    for (char *slash; (slash = strrchr(above, '/')) != NULL && slash != above;) {
        const lt_item **found;
        *slash = '\0';
        found = bsearch(above, sorted, n, sizeof *sorted, compare_key);
        if (found != NULL) {
            return *found;
        }
    }
    return NULL;
}

/* Refuse two files of one name, and a file that is a folder of another. */
static lt_err check_names(const lt_items *items, const lt_location *target) {
    const lt_item **sorted = malloc((items->n + 1) * sizeof *sorted);
    lt_err err = LT_OK;
    if (sorted == NULL) {
        LT_FAIL(LT_ERR_OOM, "a list of %zu files", items->n);
    }
    for (size_t i = 0; i < items->n; i++) {
        sorted[i] = &items->rows[i];
    }
    qsort(sorted, items->n, sizeof *sorted, compare_to);
    for (size_t i = 0; i < items->n; i++) {
        const lt_item *other = i > 0 && strcmp(sorted[i]->to, sorted[i - 1]->to) == 0
                                   ? sorted[i - 1]
                               : target->at == LT_AT_FILE ? file_above(sorted, items->n, sorted[i])
                                                          : NULL;
        if (other != NULL) {
            LT_FAIL_DONE(LT_ERR_ARG, "%s and %s cannot both be files below %s", other->shown,
                         sorted[i]->shown, target->path);
        }
    }
done:
    free(sorted);
    return err;
}

lt_err lt_copy(const char *source, const char *target, const lt_copy_options *options,
               lt_copy_report *report) {
    const lt_copy_options o = options != NULL ? *options : lt_copy_defaults();
    lt_copying c = {.target = {.force = o.force, .wait = o.wait}};
    lt_copy_report r = {0};
    lt_items items = {0};
    lt_err err = LT_OK;

    LT_TRY(lt_copy_check_options(&o));
    LT_TRY(lt_location_read(&c.source.at, source));
    LT_TRY(lt_location_read(&c.target.at, target));
    if (c.target.at.at != LT_AT_FILE && c.target.at.at != LT_AT_S3) {
        LT_FAIL(LT_ERR_ARG, "%s: a copy writes to files and to s3 only", c.target.at.shown);
    }
    LT_TRY_DONE(lt_copying_open(&c, &o));
    LT_TRY_DONE(lt_copy_source_list(&c.source, c.http, &items));
    if (c.source.at.many) {
        lt_copy_choose(&items, &o);
        if (items.n == 0) {
            LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s: no file matches", c.source.at.shown);
        }
    }
    if (o.sha256[0] != '\0' && c.source.at.many) {
        LT_FAIL_DONE(LT_ERR_ARG, "a SHA-256 was given for %zu files", items.n);
    }
    LT_TRY_DONE(place(&items, &c.source.at, &c.target.at));
    LT_TRY_DONE(check_names(&items, &c.target.at));
    err = lt_engine_run(&(lt_engine_work){.source = &c.source,
                                          .target = &c.target,
                                          .items = &items,
                                          .options = &o,
                                          .shared = &c.shared},
                        &r);
    if (report != NULL) {
        *report = r;
    }
done:
    lt_items_free(&items);
    lt_copying_close(&c);
    return err;
}
