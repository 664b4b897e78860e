/* target.h: the target of a copy: one file or object at a time, written in parts in any order,
 * which becomes visible only when it is complete.
 *
 *     to a file   parts go into FILE.lateen-part at their offsets; the end syncs it, gives it the
 *                 source's date, renames it and syncs the folder
 *     to S3       one part: PUT; more: an upload in parts, which the end joins
 *
 *     open ──▶ recall, put: each part once ──▶ end                   the target is there
 *                    └──▶ close(keep)                                parts are kept for
 *                    the next try
 *                    └──▶ close(!keep)                               nothing is kept */
#ifndef LT_PLATFORM_COPY_TARGET_H
#define LT_PLATFORM_COPY_TARGET_H

#include "platform/copy/source.h"
#include "platform/copy/state.h"

#define LT_TARGET_DATA  ".lateen-part"
#define LT_TARGET_STATE ".lateen-state"

typedef struct {
    lt_location at;
    lt_s3 *s3; /* For S3; owned by the copy. */
    bool force, wait;
} lt_target;

typedef struct lt_landing lt_landing;

/* Find out whether the target is there already: it has the same size, and the date of the source
 * (for a file to the second; for an object in its metadata) or, if the source has no date, its
 * checksum. */
LT_MUST_USE lt_err lt_target_has(const lt_target *t, lt_web *h, const lt_opened_item *o,
                                 bool *same);

/* Begin, or resume where an earlier copy was interrupted. IO: no room for the file. STATE: another
 * process copies to it. */
LT_MUST_USE lt_err lt_landing_open(lt_landing **out, const lt_target *t, lt_web *h,
                                   const lt_opened_item *o, int64_t part_bytes, int64_t n_parts);
/* Check a part of an earlier copy. For a file: it is read into `data`; *have: it is complete. For
 * S3: `data` is the source's part; *have: the service has the same bytes. */
LT_MUST_USE lt_err lt_landing_recall(lt_landing *l, int64_t part, unsigned char *data, size_t bytes,
                                     bool *have);
/* Whether lt_landing_recall needs the source's bytes first. */
bool lt_landing_compares(const lt_landing *l);
LT_MUST_USE lt_err lt_landing_put(lt_landing *l, lt_web *h, int64_t part, const unsigned char *data,
                                  size_t bytes);
LT_MUST_USE lt_err lt_landing_end(lt_landing *l, lt_web *h);
void lt_landing_close(lt_landing *l, lt_web *h, bool keep);

#endif
