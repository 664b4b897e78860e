/* grammar/doc.h: the document of a schema: the location of each value in it, and the targets of
 * references. */
#ifndef LT_SERVE_GRAMMAR_DOC_H
#define LT_SERVE_GRAMMAR_DOC_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"

typedef struct lt_gdoc lt_gdoc;

/* root remains the caller's and must outlive the document. FORMAT: a member's name begins with
 * U+0001, which is reserved for internal use. */
LT_MUST_USE lt_err lt_gdoc_open(lt_gdoc **out, const json_t *root);
void lt_gdoc_close(lt_gdoc *d); /* Accepts NULL. */

/* The draft that $schema names: 3, 4, 6, 7, 2019 or 2020; 2020 if it names no known one. */
int lt_gdoc_draft(const lt_gdoc *d);
bool lt_gdoc_names_draft(const lt_gdoc *d); /* $schema named one. */

/* "#/properties/a" for an object or array of the document; "#" for others. Returns out. */
const char *lt_gdoc_pointer(const lt_gdoc *d, const json_t *v, char *out, size_t room);

/* The target of a $ref (dynamic: $dynamicRef) in the schema `from`. UNSUPPORTED: it is outside the
 * document. */
LT_MUST_USE lt_err lt_gdoc_resolve(const lt_gdoc *d, const json_t *from, const char *ref,
                                   bool dynamic, const json_t **out);

#endif
