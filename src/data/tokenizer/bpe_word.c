/* bpe_word.c: encodes one word as ids: finds its first symbols, which depend on the kind of
 * vocabulary, and merges them. */
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_merge.h"

/* The first symbols of BYTES if the vocabulary has every byte, as nearly all have. False: some
 * byte has no piece. */
static bool first_bytes(const lt_bpe *b, const uint8_t *p, size_t n, uint32_t *ids) {
    uint32_t missing = 0;
    for (size_t i = 0; i < n; i++) {
        ids[i] = b->byte_id[p[i]];
        missing |= ids[i];
    }
    return missing < LT_VOCAB_MAX;
}

/* The same, but a character that is certain to become one symbol is that symbol (bpe_chars.c).
 * Ill-formed UTF-8, and a character followed by stray continuation bytes, stay bytes. */
static bool first_sure(const lt_bpe *b, const uint8_t *p, size_t n, uint32_t *ids, size_t *n_ids) {
    uint32_t missing = 0;
    size_t out = 0, at = 0;
    while (at < n) {
        size_t size = p[at] < 0xC2 || p[at] >= 0xF0 ? 1 : p[at] < 0xE0 ? 2 : 3;
        uint32_t id = b->byte_id[p[at]];
        if (size > 1 && at + size <= n && (p[at + 1] & 0xC0) == 0x80 &&
            (size == 2 || (p[at + 2] & 0xC0) == 0x80) &&
            (at + size == n || (p[at + size] & 0xC0) != 0x80)) {
            const uint32_t cp = size == 2 ? (p[at] & 31u) << 6 | (p[at + 1] & 63u)
                                          : (p[at] & 15u) << 12 | (p[at + 1] & 63u) << 6 |
                                                (p[at + 2] & 63u);
            const uint32_t sure = size == 3 && cp < 0x800 ? LT_NO_ID : b->chars[cp];
            const uint32_t c = sure & ~LT_BPE_BY_BYTE_BEFORE;
            const bool ok = sure != LT_NO_ID &&
                            (sure == c || at == 0 ||
                             b->before_char[lt_bpe_before_char(p + at, size)] > c);
            id = ok ? c : id;
            size = ok ? size : 1;
        } else {
            size = 1;
        }
        missing |= id;
        ids[out++] = id;
        at += size;
    }
    if (missing >= LT_VOCAB_MAX) {
        return false;
    }
    *n_ids = out;
    return true;
}

/* CHARS (and BYTES with missing bytes), as in Hugging Face's merge_word: an unknown character is
 * held back until a known symbol comes, so byte-fallback symbols may come before it. */
typedef struct {
    uint32_t *ids;
    size_t n;
    bool pending, failed;
} symbols;

static void add_unknown(const lt_bpe *b, symbols *out) {
    if (b->unk == LT_NO_ID) {
        out->failed |= b->unk_missing;
        return;
    }
    if (out->pending && !b->fuse_unk) {
        out->ids[out->n++] = b->unk;
    }
    out->pending = true;
}

static void add_known(const lt_bpe *b, symbols *out, uint32_t id) {
    if (out->pending) {
        out->ids[out->n++] = b->unk;
        out->pending = false;
    }
    out->ids[out->n++] = id;
}

static bool add_fallback(const lt_bpe *b, symbols *out, const uint8_t *p, size_t n) {
    if (!b->byte_fallback) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (b->fallback_id[p[i]] == LT_NO_ID) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i++) {
        out->ids[out->n++] = b->fallback_id[p[i]];
    }
    return true;
}

/* The piece of one character, with the continuing prefix and the end-of-word suffix if the model
 * has them. */
static lt_err char_piece(const lt_bpe *b, lt_bpe_word *s, const uint8_t *p, size_t n, bool first,
                         bool last, uint32_t *id) {
    if (b->prefix[0] == '\0' && b->suffix[0] == '\0') {
        *id = lt_vocab_find(b->vocab, (const char *)p, n);
        return LT_OK;
    }
    s->word.n = 0;
    if (!first) {
        LT_TRY(lt_text_put(&s->word, b->prefix, strlen(b->prefix)));
    }
    LT_TRY(lt_text_put(&s->word, (const char *)p, n));
    if (last) {
        LT_TRY(lt_text_put(&s->word, b->suffix, strlen(b->suffix)));
    }
    *id = lt_vocab_find(b->vocab, s->word.data, s->word.n);
    return LT_OK;
}

static lt_err first_chars(const lt_bpe *b, lt_bpe_word *s, const uint8_t *p, size_t n,
                          uint32_t *ids, size_t *n_ids) {
    const bool dressed = b->prefix[0] != '\0' || b->suffix[0] != '\0';
    symbols out = {.ids = ids};
    size_t at = 0;
    while (at < n) {
        uint32_t id, cp;
        const size_t size = b->mode == LT_BPE_BYTES ? 1 : lt_utf8_decode(p + at, p + n, &cp);
        if (b->mode == LT_BPE_BYTES) {
            id = b->byte_id[p[at]];
        } else {
            LT_TRY(char_piece(b, s, p + at, size, at == 0, at + size == n, &id));
        }
        if (id != LT_NO_ID) {
            add_known(b, &out, id);
        } else if (!(dressed ? add_fallback(b, &out, (uint8_t *)s->word.data, s->word.n)
                             : add_fallback(b, &out, p + at, size))) {
            add_unknown(b, &out);
        }
        at += size;
    }
    if (out.failed) {
        LT_FAIL(LT_ERR_FORMAT, "a character is not in the vocabulary, nor is its unknown token");
    }
    if (out.pending) {
        out.ids[out.n++] = b->unk;
    }
    *n_ids = out.n;
    return LT_OK;
}

#define SPM_UNKNOWN (LT_VOCAB_MAX - 1) /* A symbol that forms no pair. */

static void first_spm(const lt_bpe *b, const uint8_t *p, size_t n, uint32_t *ids, size_t *n_ids) {
    size_t n_out = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp, id;
        const size_t size = lt_utf8_decode(p + at, p + n, &cp);
        id = lt_vocab_find(b->vocab, (const char *)p + at, size);
        if (id == LT_NO_ID) {
            id = lt_vocab_find(&b->phantom, (const char *)p + at, size);
            id = id == LT_NO_ID ? SPM_UNKNOWN : id + b->phantom_base;
        }
        ids[n_out++] = id;
        at += size;
    }
    *n_ids = n_out;
}

/* Replace symbols that are not pieces by byte pieces or <unk>. The concatenated texts of the
 * symbols are the word. */
static lt_err finish_spm(const lt_bpe *b, const uint8_t *p, size_t n, const uint32_t *ids,
                         size_t n_ids, lt_ids *out) {
    size_t at = 0;
    LT_TRY(lt_ids_reserve(out, n));
    for (size_t i = 0; i < n_ids; i++) {
        uint32_t cp;
        symbols fallback = {.ids = out->data + out->n};
        if (ids[i] < b->phantom_base) {
            out->data[out->n++] = ids[i];
            at += b->vocab->bytes[ids[i]];
            continue;
        }
        LT_ASSERT(at < n);
        const size_t size = lt_utf8_decode(p + at, p + n, &cp);
        if (add_fallback(b, &fallback, p + at, size)) {
            out->n += fallback.n;
        } else if (b->unk != LT_NO_ID &&
                   !(b->fuse_unk && out->n > 0 && out->data[out->n - 1] == b->unk)) {
            out->data[out->n++] = b->unk;
        }
        at += size;
    }
    return LT_OK;
}

/* Merge the first symbols ids[0..n): in place or, if there are many, in the list. */
static lt_err merge_symbols(const lt_bpe *b, lt_bpe_word *s, uint32_t *ids, size_t n,
                            const uint8_t *bytes, size_t *left) {
    uint32_t merge[LT_BPE_SMALL];
    if (n <= 1) {
        *left = n;
        return LT_OK;
    }
    if (n > LT_BPE_SMALL) {
        return lt_bpe_merge_list(b, &s->list, n, left); /* ids is the array of the list. */
    }
    for (size_t i = 0; i + 1 < n; i++) {
        merge[i] = bytes != NULL && b->byte_pair != NULL
                       ? b->byte_pair[bytes[i] << 8 | bytes[i + 1]]
                       : lt_bpe_find_pair(b, ids[i], ids[i + 1]);
    }
    *left = lt_bpe_merge_small(b, ids, merge, n);
    return LT_OK;
}

size_t lt_bpe_most_symbols(const lt_bpe *b, size_t n, size_t n_words) {
    return b->byte_fallback ? n * (1 + strlen(b->prefix)) + n_words * strlen(b->suffix) : n;
}

lt_err lt_bpe_encode_word(const lt_bpe *b, lt_bpe_word *s, const uint8_t *p, size_t n) {
    uint32_t small[LT_BPE_SMALL], *ids = small;
    const uint8_t *bytes = NULL;
    size_t n_ids = n;
    const size_t room = lt_bpe_most_symbols(b, n, 1);

    s->result.n = 0;
    /* A word may have no ids; the address of its ids must be valid all the same. */
    LT_TRY(lt_ids_reserve(&s->result, 1));
    if (b->ignore_merges) {
        const uint32_t id = lt_vocab_find(b->vocab, (const char *)p, n);
        if (id != LT_NO_ID) {
            s->result.data[s->result.n++] = id;
            return LT_OK;
        }
    }
    if (room > LT_BPE_SMALL) {
        LT_TRY(lt_bpe_list_reserve(&s->list, room));
        ids = s->list.ids;
    }
    if (b->mode == LT_BPE_SPM) {
        first_spm(b, p, n, ids, &n_ids);
    } else if (b->chars != NULL && first_sure(b, p, n, ids, &n_ids)) {
        bytes = n_ids == n ? p : NULL;
    } else if (b->mode == LT_BPE_BYTES && first_bytes(b, p, n, ids)) {
        bytes = p;
    } else {
        LT_TRY(first_chars(b, s, p, n, ids, &n_ids));
    }
    if (n_ids <= LT_BPE_SMALL && ids != small) { /* The word has many bytes but few characters. */
        memcpy(small, ids, n_ids * sizeof *small);
        ids = small;
    }
    LT_TRY(merge_symbols(b, s, ids, n_ids, bytes, &n_ids));
    if (b->mode == LT_BPE_SPM) {
        return finish_spm(b, p, n, ids, n_ids, &s->result);
    }
    return lt_ids_append(&s->result, ids, n_ids);
}

static bool first_of(const lt_bpe *b, const uint8_t *p, size_t n, uint32_t *ids, size_t *n_ids) {
    *n_ids = n;
    return b->chars != NULL ? first_sure(b, p, n, ids, n_ids) : first_bytes(b, p, n, ids);
}

bool lt_bpe_lane_start(const lt_bpe *b, lt_bpe_lane *l, const uint8_t *p, size_t n) {
    uint32_t ids[LT_BPE_SMALL];
    size_t n_ids;
    bool ok;
    if (n <= LT_BPE_LANE) {
        ok = first_of(b, p, n, l->ids + 1, &n_ids);
    } else {
        ok = n <= LT_BPE_SMALL && first_of(b, p, n, ids, &n_ids) && n_ids <= LT_BPE_LANE;
        memcpy(l->ids + 1, ids, ok ? n_ids * sizeof *ids : 0);
    }
    l->n = ok ? (uint8_t)n_ids : 0;
    return ok;
}

void lt_bpe_word_free(lt_bpe_word *w) {
    lt_bpe_list_free(&w->list);
    lt_text_free(&w->word);
    lt_ids_free(&w->result);
}
