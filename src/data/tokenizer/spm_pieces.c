/* spm_pieces.c: see spm_pieces.h.
 *
 * CHAR cuts the text into user-defined symbols (the longest first) and characters; WORD cuts before
 * every U+2581 and ignores user-defined symbols. Text that is not a piece becomes its bytes if the
 * model has byte pieces, and otherwise one <unk> for each run. */
#include "data/tokenizer/spm_pieces.h"

#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe.h"

static const uint8_t mark[3] = {0xE2, 0x96, 0x81}; /* U+2581 */

static size_t next_piece(const lt_spm_pieces *m, const uint8_t *p, size_t n) {
    uint32_t value, cp;
    size_t size;
    if (m->words) {
        const uint8_t *hit = n > 1 ? memmem(p + 1, n - 1, mark, sizeof mark) : NULL;
        return hit != NULL ? (size_t)(hit - p) : n;
    }
    size = m->user->n_first > 0 ? lt_trie_longest(m->user, p, n, &value) : 0;
    return size > 0 ? size : lt_utf8_decode(p, p + n, &cp);
}

lt_err lt_spm_pieces_encode(const lt_spm_pieces *m, const uint8_t *p, size_t n, lt_ids *out) {
    bool after_unknown = false;
    while (n > 0) {
        const size_t size = next_piece(m, p, n);
        const uint32_t id = lt_vocab_find(m->vocab, (const char *)p, size);
        LT_TRY(lt_ids_reserve(out, size));
        if (id != LT_NO_ID) {
            out->data[out->n++] = id;
        } else if (m->byte_fallback) {
            for (size_t i = 0; i < size; i++) {
                out->data[out->n++] = m->fallback_id[p[i]];
            }
        } else if (!after_unknown) {
            out->data[out->n++] = m->unk;
        }
        after_unknown = id == LT_NO_ID;
        p += size;
        n -= size;
    }
    return LT_OK;
}
