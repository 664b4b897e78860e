/* encode_workers.c: see encode_workers.h. */
#include "data/encode_workers.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

lt_err lt_encode_workers_open(lt_encode_workers *w, const lt_tokenizer *t, int n) {
    *w = (lt_encode_workers){.scratch = calloc((size_t)n, sizeof *w->scratch),
                             .ids = calloc((size_t)n, sizeof *w->ids),
                             .n = n};
    if (w->scratch == NULL || w->ids == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d threads", n);
    }
    for (int i = 0; i < n; i++) {
        LT_TRY(lt_tokenizer_scratch_open(&w->scratch[i], t));
    }
    return LT_OK;
}

void lt_encode_workers_close(lt_encode_workers *w) {
    for (int i = 0; w->scratch != NULL && i < w->n; i++) {
        lt_tokenizer_scratch_close(w->scratch[i]);
    }
    for (int i = 0; w->ids != NULL && i < w->n; i++) {
        lt_ids_free(&w->ids[i]);
    }
    free(w->scratch);
    free(w->ids);
}

lt_err lt_encode_put(lt_id_buffer *out, lt_text_buffer *mask, const uint32_t *ids,
                     const unsigned char *marks, size_t n) {
    LT_TRY(lt_id_buffer_reserve(out, out->n + n));
    LT_TRY(mask != NULL ? lt_text_buffer_reserve(mask, out->n + n) : LT_OK);
    for (size_t i = 0; i < n; i++) {
        out->ids[out->n + i] = (int32_t)ids[i];
    }
    if (mask != NULL && n > 0) {
        memcpy(mask->data + out->n, marks, n);
    }
    out->n += n;
    return LT_OK;
}
