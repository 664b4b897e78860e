/* byte_source.h: the bytes of a file, decompressed while reading. Plain, gzip and zstd are
 * distinguished by their first bytes, never by the name, so a mislabelled download is read
 * correctly; but a file named .gz or .zst that is neither is refused. Memory is bounded: one
 * input chunk, plus the window that the compressed frame asks for (zstd: at most 2 GiB,
 * `--long=31`). */
#ifndef LT_DATA_BYTE_SOURCE_H
#define LT_DATA_BYTE_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct lt_byte_source lt_byte_source;

/* Open a file for reading; "-" is standard input. *out is written only on success. */
LT_MUST_USE lt_err lt_byte_source_open(lt_byte_source **out, const char *path);
void lt_byte_source_close(lt_byte_source *s); /* Accepts NULL. */

/* Fill `to` with up to room (> 0) unpacked bytes; *got == 0 means the end. A truncated or damaged
 * compressed stream fails with FORMAT; the message has the byte offset in the file. */
LT_MUST_USE lt_err lt_byte_source_read(lt_byte_source *s, void *to, size_t room, size_t *got);

/* Skip the next `bytes` unpacked bytes: seek in a plain file, otherwise decompress and drop
 * them. */
LT_MUST_USE lt_err lt_byte_source_skip(lt_byte_source *s, uint64_t bytes);

/* For progress bars: bytes of the file itself consumed so far, and its size (0 if it has none: a
 * pipe). */
uint64_t lt_byte_source_consumed_bytes(const lt_byte_source *s);
uint64_t lt_byte_source_file_bytes(const lt_byte_source *s);

#endif
