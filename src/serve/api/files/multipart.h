/* multipart.h: reads the body of a form (multipart/form-data, RFC 7578), as clients send files.
 *
 * Its first line is the boundary that separates its parts, so the boundary in the header
 * Content-Type is not read. Nothing is copied but the names: the data of a part points into the
 * body. The reader takes time linear in the body and allocates nothing. */
#ifndef LT_SERVE_MULTIPART_H
#define LT_SERVE_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#define LT_MULTIPART_PARTS    16  /* Most parts; more are refused. */
#define LT_MULTIPART_BOUNDARY 70  /* Most characters of a boundary (RFC 2046, 5.1.1). */
#define LT_MULTIPART_NAME     256 /* Most bytes of a name, including its 0. */

typedef struct {
    char name[LT_MULTIPART_NAME];     /* Name of the field; never "". */
    char filename[LT_MULTIPART_NAME]; /* Without a folder; "": not a file. */
    const char *data;                 /* n bytes of the body. */
    size_t n;
} lt_multipart_part;

typedef struct {
    lt_multipart_part parts[LT_MULTIPART_PARTS];
    int n;
} lt_multipart;

/* False: *why says what is wrong with the body. */
bool lt_multipart_read(lt_multipart *out, const char *body, size_t n, const char **why);
/* The part of that name; NULL: there is none. */
const lt_multipart_part *lt_multipart_find(const lt_multipart *m, const char *name);

#endif
