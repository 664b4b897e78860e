/* xml.h: a pull reader for the answers of object stores: elements and their text. Attributes,
 * comments, declarations and namespace prefixes are skipped; a document type is refused, because no
 * answer of S3 has one. It allocates nothing. */
#ifndef LT_PLATFORM_COPY_XML_H
#define LT_PLATFORM_COPY_XML_H

#include <stddef.h>

#include "lateen/base.h"

/* A key has at most 1,024 bytes, and three times as many when encoded. */
#define LT_XML_TEXT_BYTES 8192
#define LT_XML_NAME_BYTES 64
#define LT_XML_DEPTH      16

typedef enum { LT_XML_OPEN, LT_XML_CLOSE, LT_XML_END } lt_xml_kind;

typedef struct {
    const char *text, *end, *at;
    char names[LT_XML_DEPTH][LT_XML_NAME_BYTES]; /* The elements that are open. */
    int depth;
    int close_next; /* After "<name/>": the end of the element must still be reported. */
    /* The last thing read: */
    char name[LT_XML_NAME_BYTES];
    char value[LT_XML_TEXT_BYTES]; /* CLOSE: the decoded text since the previous tag. */
} lt_xml;

void lt_xml_begin(lt_xml *x, const char *text, size_t bytes);
/* FORMAT, LIMIT: not such a document; the message says at which byte. */
LT_MUST_USE lt_err lt_xml_next(lt_xml *x, lt_xml_kind *kind);

#endif
