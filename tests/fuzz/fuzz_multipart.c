/* Forms with files: each part lies in the body, the parts are in order, and reading the body
 * again gives the same. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/files/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *body = (const char *)data, *at = body, *why = NULL;
    lt_multipart m;
    const bool ok = lt_multipart_read(&m, body, size, &why);

    LT_ASSERT(ok || why != NULL);
    LT_ASSERT(!ok || m.n > 0);
    for (int i = 0; i < m.n; i++) {
        const lt_multipart_part *p = &m.parts[i];
        LT_ASSERT(p->name[0] != '\0' && strlen(p->name) < sizeof p->name);
        LT_ASSERT(strchr(p->filename, '/') == NULL);
        LT_ASSERT(p->data >= at && p->data + p->n <= body + size);
        LT_ASSERT(lt_multipart_find(&m, p->name) != NULL);
        at = p->data + p->n;
    }
    return 0;
}
