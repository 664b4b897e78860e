/* wordpiece.c: WordPiece and WordLevel; see wordpiece.h. In WordPiece, a word is one <unk> if any
 * part of it matches no piece. */
#include "data/tokenizer/wordpiece.h"

#include <string.h>

#include "base/error.h"

static size_t count_chars(const uint8_t *p, size_t n) {
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) {
        chars += (p[i] & 0xC0) != 0x80;
    }
    return chars;
}

static lt_err put_unknown(const lt_wordpiece *w, lt_ids *out) {
    if (w->unk == LT_NO_ID) {
        LT_FAIL(LT_ERR_FORMAT, "a word is not in the vocabulary, nor is its unknown token '%s'",
                w->unk_name);
    }
    return lt_ids_append(out, &w->unk, 1);
}

lt_err lt_wordpiece_encode(const lt_wordpiece *w, lt_text *scratch, const uint8_t *p, size_t n,
                           lt_ids *out) {
    const size_t before = out->n, prefix_n = strlen(w->prefix);
    bool bad = count_chars(p, n) > w->max_chars;
    size_t at = 0;

    LT_TRY(lt_ids_reserve(out, n + 1));
    while (at < n && !bad) {
        size_t end = n;
        uint32_t id = LT_NO_ID;
        scratch->n = 0;
        LT_TRY(lt_text_put(scratch, w->prefix, at > 0 ? prefix_n : 0));
        LT_TRY(lt_text_put(scratch, (const char *)p + at, n - at));
        while (end > at) {
            id = lt_vocab_find(w->vocab, scratch->data, scratch->n - (n - end));
            if (id != LT_NO_ID) {
                break;
            }
            do { /* Try one character less. */
                end--;
            } while (end > at && (p[end] & 0xC0) == 0x80);
        }
        bad = id == LT_NO_ID;
        out->data[out->n++] = id;
        at = end;
    }
    if (bad) {
        out->n = before;
        return put_unknown(w, out);
    }
    return LT_OK;
}

lt_err lt_wordlevel_encode(const lt_wordpiece *w, const uint8_t *p, size_t n, lt_ids *out) {
    const uint32_t id = lt_vocab_find(w->vocab, (const char *)p, n);
    return id != LT_NO_ID ? lt_ids_append(out, &id, 1) : put_unknown(w, out);
}
