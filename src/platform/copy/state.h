/* state.h: the record of a file that is being copied, from which the same command resumes after any
 * interruption, kill -9 and power cuts included. It is a text to which lines are only added:
 *
 *     lateen-copy 1
 *     key HEX                  hash of the source, version, size and size of parts to which it
 *     belongs
 *     upload ID                to S3: the upload at the service, which has the parts
 *     part I HEX               to a file: part I (from 0) was written; XXH3 of its bytes
 *
 * A last line without a newline is ignored. A line about a part is not trusted: the part is read
 * again and must have that hash, so the record need not be synced. */
#ifndef LT_PLATFORM_COPY_STATE_H
#define LT_PLATFORM_COPY_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_STATE_KEY_BYTES    33
#define LT_STATE_UPLOAD_BYTES 1024
#define LT_STATE_MOST_BYTES   ((size_t)64 << 20)

typedef struct {
    bool has;
    uint64_t hash;
} lt_state_part;

/* The key of this combination, in hex. */
void lt_state_key(char key[LT_STATE_KEY_BYTES], const char *source, const char *version,
                  const char *target, int64_t size_bytes, int64_t part_bytes);

/* Read a text of `bytes` bytes. False: it does not belong to this key, and nothing was written.
 * *kept: the bytes up to the end of its last whole line. */
bool lt_state_read(const char *text, size_t bytes, const char *key,
                   char upload[LT_STATE_UPLOAD_BYTES], lt_state_part *parts, int64_t n_parts,
                   size_t *kept);

/* Open a file of this kind, and lock it against other copies to the same target. If it is locked
 * already, fail with STATE; or, with `wait`, wait until it is free or *wait is set (INTERRUPTED).
 * *found: it belongs to the key, and upload and parts were read from it; otherwise the file
 * begins anew. */
typedef struct lt_state lt_state;
LT_MUST_USE lt_err lt_state_open(lt_state **out, const char *path, const char *key,
                                 const atomic_bool *wait, char upload[LT_STATE_UPLOAD_BYTES],
                                 lt_state_part *parts, int64_t n_parts, bool *found);
LT_MUST_USE lt_err lt_state_add_upload(lt_state *s, const char *id);
LT_MUST_USE lt_err lt_state_add_part(lt_state *s, int64_t part, uint64_t hash);
/* Discard the content, and begin again with the same key. */
LT_MUST_USE lt_err lt_state_begin(lt_state *s);
/* Close it; `keep` leaves the file for the next try. */
void lt_state_close(lt_state *s, bool keep);
/* Remove a file that an ended owner left behind. */
void lt_state_forget(const char *path);

#endif
