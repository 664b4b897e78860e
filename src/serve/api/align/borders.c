/* borders.c: see borders.h. */
#include "serve/api/align/borders.h"

#include <string.h>

bool lt_borders_read(lt_borders *b, const json_t *value, const char *usual, const char *param,
                     lt_api_error *e) {
    *b = (lt_borders){.texts = {usual}, .lengths = {strlen(usual)}, .n = 1};
    if (value != NULL &&
        !lt_api_params_strings(value, param, b->texts, b->lengths, LT_BORDERS_MOST, &b->n, e)) {
        return false;
    }
    for (int i = 0; i < b->n; i++) {
        if (b->lengths[i] == 0 || b->lengths[i] > LT_BORDER_BYTES) {
            return lt_api_refuse(e, param, "'%s' must hold texts of 1 to %d bytes", param,
                                 LT_BORDER_BYTES);
        }
        b->longest = b->lengths[i] > b->longest ? b->lengths[i] : b->longest;
    }
    return b->n > 0 || lt_api_refuse(e, param, "'%s' is an empty list", param);
}

bool lt_borders_met(const lt_borders *b, lt_border_tail *t, const char *text, size_t bytes) {
    const size_t keep = b->longest > 0 ? b->longest - 1 : 0;
    size_t n = bytes < sizeof t->bytes - keep ? bytes : sizeof t->bytes - keep;
    bool found = false;
    if (n == 0) {
        return false;
    }
    memcpy(t->bytes + t->n, text + bytes - n, n);
    t->n += n;
    for (int i = 0; i < b->n && !found; i++) {
        found = memmem(t->bytes, t->n, b->texts[i], b->lengths[i]) != NULL;
    }
    n = found ? 0 : t->n < keep ? t->n : keep;
    memmove(t->bytes, t->bytes + t->n - n, n);
    t->n = n;
    return found;
}
