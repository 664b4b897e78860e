/* normalize.c: see normalize.h.
 *
 * Each step reads one text and writes another, alternating between two buffers. The C forms are
 * skipped for text that is inert (UAX #15's quick check, from the tables), which is nearly all
 * text: then NFC costs one pass of reading.
 *
 * CHARSMAP. The double array is Darts-clone's: a unit holds an offset, a label and two bits (is
 * leaf, has leaf). The blob is checked at every step: an index outside of it ends the search.
 * Hugging Face walks grapheme clusters and takes the *first* (shortest) hit of a cluster under 6
 * bytes; so do we. In so few bytes a cluster is either CR LF or a base character and what extends
 * it. */
#include "data/tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/regex.h"

lt_err lt_charsmap_open(lt_charsmap *out, const void *data, size_t bytes, const char *name) {
    uint32_t trie_bytes;
    lt_charsmap m = {0};
    if (bytes < 4 || (memcpy(&trie_bytes, data, 4), trie_bytes % 4 != 0) ||
        trie_bytes > bytes - 4 || trie_bytes == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: precompiled charsmap of %zu bytes is malformed", name, bytes);
    }
    LT_TRY(lt_text_put(&m.blob, (const char *)data + 4, bytes - 4));
    m.units = (const uint32_t *)(const void *)m.blob.data;
    m.n_units = trie_bytes / 4;
    m.strings = m.blob.data + trie_bytes;
    m.strings_bytes = bytes - 4 - trie_bytes;
    *out = m;
    return LT_OK;
}

void lt_charsmap_free(lt_charsmap *m) {
    lt_text_free(&m->blob);
    *m = (lt_charsmap){0};
}

static size_t unit_offset(uint32_t unit) {
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

size_t lt_charsmap_find(const lt_charsmap *m, const char *s, size_t n, bool longest,
                        const char **to, size_t *to_bytes) {
    size_t best = 0, at, value = 0;
    if (m->n_units == 0) {
        return 0;
    }
    at = unit_offset(m->units[0]);
    for (size_t i = 0; i < n; i++) {
        const uint8_t byte = (uint8_t)s[i];
        uint32_t unit;
        if (byte == 0 || (at ^= byte) >= m->n_units) {
            break;
        }
        unit = m->units[at];
        if ((unit & ((1u << 31) | 0xFFu)) != byte) {
            break;
        }
        at ^= unit_offset(unit);
        if ((unit >> 8 & 1) != 0 && at < m->n_units) {
            value = m->units[at] & 0x7FFFFFFF;
            best = i + 1;
            if (!longest) {
                break;
            }
        }
    }
    if (best == 0 || value >= m->strings_bytes) {
        return 0;
    }
    *to = m->strings + value;
    *to_bytes = strnlen(*to, m->strings_bytes - value);
    return best;
}

static bool inert(const char *s, size_t n) {
    const uint8_t *p = (const uint8_t *)s, *const end = p + n;
    while (p < end) {
        uint64_t w;
        uint32_t cp;
        while (end - p >= 8 && (memcpy(&w, p, 8), (w & 0x8080808080808080u) == 0)) {
            p += 8;
        }
        if (p == end) {
            break;
        }
        p += lt_utf8_decode(p, end, &cp);
        if (cp >= 0x300 && (lt_unicode_flags(cp) & LT_UNICODE_NFC_INERT) == 0) {
            return false;
        }
    }
    return true;
}

static bool is_ascii(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((uint8_t)s[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

static lt_err put_lower(uint32_t cp, lt_text *out) {
    size_t n;
    const uint32_t *lower;
    if (cp < 0x80) {
        return lt_text_put_cp(out, cp >= 'A' && cp <= 'Z' ? cp + 32 : cp);
    }
    lower = lt_unicode_lower(&cp, &n);
    for (size_t i = 0; i < n; i++) {
        LT_TRY(lt_text_put_cp(out, lower[i]));
    }
    return LT_OK;
}

bool lt_norm_nmt(uint32_t cp, uint32_t *to) {
    static const uint32_t blanks[] = {0x9,    0xA,    0xC,    0xD,    0x1680,
                                      0x200B, 0x200C, 0x200D, 0x200E, 0x200F,
                                      0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD};
    *to = cp;
    for (size_t i = 0; i < sizeof blanks / sizeof *blanks; i++) {
        if (cp == blanks[i]) {
            *to = ' ';
            return true;
        }
    }
    return !((cp >= 1 && cp < 0x20) || cp == 0x7F || cp == 0x8F || cp == 0x9F);
}

/* Drop control characters, and replace unusual spaces and joiners by spaces. */
static lt_err put_nmt(uint32_t cp, lt_text *out) {
    uint32_t to;
    return lt_norm_nmt(cp, &to) ? lt_text_put_cp(out, to) : LT_OK;
}

/* One pass of BertNormalizer: stage 0 cleans, 1 puts spaces around Han characters, 2 strips
 * accents (of NFD text), 3 converts to lower case. */
static lt_err put_bert(int stage, uint32_t cp, lt_text *out) {
    const uint32_t flags = lt_unicode_flags(cp);
    if (stage == 0) {
        if ((flags & LT_UNICODE_BERT_GONE) != 0) {
            return LT_OK;
        }
        return lt_text_put_cp(out, (flags & LT_UNICODE_BERT_BLANK) != 0 ? ' ' : cp);
    }
    if (stage == 1 && (flags & LT_UNICODE_BERT_HAN) != 0) {
        LT_TRY(lt_text_put_cp(out, ' '));
        LT_TRY(lt_text_put_cp(out, cp));
        return lt_text_put_cp(out, ' ');
    }
    if (stage == 2 && (flags & LT_UNICODE_BERT_MARK) != 0) {
        return LT_OK;
    }
    return stage == 3 ? put_lower(cp, out) : lt_text_put_cp(out, cp);
}

static lt_err run_bert(const lt_norm *n, const char *s, size_t bytes, lt_text *out) {
    lt_err err = LT_OK;
    const bool wanted[4] = {n->clean, n->han, n->accents, n->lower};
    lt_text from = {0}, to = {0};

    /* So that an empty text has an address, too. */
    LT_TRY_DONE(lt_text_reserve(&from, bytes + 1));
    LT_TRY_DONE(lt_text_reserve(&to, 1));
    LT_TRY_DONE(lt_text_put(&from, s, bytes));
    for (int stage = 0; stage < 4; stage++) {
        lt_text swap;
        if (!wanted[stage]) {
            continue;
        }
        if (stage == 2) {
            to.n = 0;
            LT_TRY_DONE(lt_unicode_normalize(LT_UNICODE_NFD, from.data, from.n, &to));
            swap = from;
            from = to;
            to = swap;
        }
        to.n = 0;
        for (size_t at = 0; at < from.n;) {
            uint32_t cp;
            at += lt_utf8_decode((uint8_t *)from.data + at, (uint8_t *)from.data + from.n, &cp);
            LT_TRY_DONE(put_bert(stage, cp, &to));
        }
        swap = from;
        from = to;
        to = swap;
    }
    LT_TRY_DONE(lt_text_put(out, from.data, from.n));
done:
    lt_text_free(&from);
    lt_text_free(&to);
    return err;
}

void lt_norm_strip(const lt_norm *n, const char *s, size_t bytes, const char **begin,
                   size_t *left) {
    const uint8_t *p = (const uint8_t *)s, *end = p + bytes, *last;
    uint32_t cp;
    while (n->left && p < end) {
        const size_t size = lt_utf8_decode(p, end, &cp);
        if ((lt_unicode_flags(cp) & LT_UNICODE_SPACE) == 0) {
            break;
        }
        p += size;
    }
    while (n->right && end > p) {
        last = end - 1;
        while (last > p && (*last & 0xC0) == 0x80) {
            last--;
        }
        lt_utf8_decode(last, end, &cp);
        if ((lt_unicode_flags(cp) & LT_UNICODE_SPACE) == 0) {
            break;
        }
        end = last;
    }
    *begin = (const char *)p;
    *left = (size_t)(end - p);
}

static lt_err run_strip(const lt_norm *n, const char *s, size_t bytes, lt_text *out) {
    const char *begin;
    size_t left;
    lt_norm_strip(n, s, bytes, &begin, &left);
    return lt_text_put(out, begin, left);
}

const char *lt_norm_find_bytes(const char *s, size_t bytes, const char *needle, size_t n) {
    const size_t window = 4096 + n;
    for (size_t at = 0; n > 0 && at + n <= bytes; at += window - n + 1) {
        const size_t left = bytes - at;
        const char *hit = memmem(s + at, left < window ? left : window, needle, n);
        if (hit != NULL) {
            return hit;
        }
    }
    return NULL;
}

lt_err lt_norm_find(const lt_norm *n, lt_norm_scratch *scratch, const char *s, size_t bytes,
                    size_t at, lt_regex_cursor *cursor, bool *found, size_t *begin, size_t *end) {
    const char *hit;
    if (n->regex != NULL) {
        LT_TRY(scratch->regex == NULL ? lt_regex_scratch_open(&scratch->regex) : LT_OK);
        return lt_regex_next(n->regex, scratch->regex, s, bytes, cursor, found, begin, end);
    }
    hit = bytes > at ? lt_norm_find_bytes(s + at, bytes - at, n->from.data, n->from.n) : NULL;
    *found = hit != NULL;
    *begin = *found ? (size_t)(hit - s) : 0;
    *end = *begin + n->from.n;
    return LT_OK;
}

lt_err lt_norm_check_size(size_t from, size_t to) {
    if (to > LT_NORM_BYTES_MAX && to / LT_NORM_GROWTH_MAX > from) {
        LT_FAIL(LT_ERR_LIMIT, "the normalizer makes more than %zu bytes of %zu", to, from);
    }
    return LT_OK;
}

static lt_err run_replace(const lt_norm *n, lt_norm_scratch *scratch, const char *s, size_t bytes,
                          lt_text *out) {
    lt_regex_cursor cursor = {0};
    size_t at = 0;
    for (;;) {
        bool found;
        size_t begin, end;
        LT_TRY(lt_norm_find(n, scratch, s, bytes, at, &cursor, &found, &begin, &end));
        if (!found) {
            break;
        }
        LT_TRY(lt_text_put(out, s + at, begin - at));
        LT_TRY(lt_text_put(out, n->to.data, n->to.n));
        LT_TRY(lt_norm_check_size(scratch->from_bytes, out->n));
        at = end;
    }
    return lt_text_put(out, s + at, bytes - at);
}

const uint8_t *lt_norm_cluster_end(const uint8_t *p, const uint8_t *end) {
    uint32_t cp, next;
    const uint8_t *q = p + lt_utf8_decode(p, end, &cp);
    if (cp == '\r' && q < end && *q == '\n') {
        return q + 1;
    }
    while (cp >= 0x20 && q < end) {
        const size_t size = lt_utf8_decode(q, end, &next);
        if ((lt_unicode_flags(next) & LT_UNICODE_EXTEND) == 0) {
            break;
        }
        q += size;
    }
    return q;
}

bool lt_norm_map_cluster(const lt_norm *n, const uint8_t *p, const uint8_t *q, const char **to,
                         size_t *to_bytes) {
    return q - p < 6 && lt_charsmap_find(&n->charsmap, (const char *)p, (size_t)(q - p), false, to,
                                         to_bytes) != 0;
}

static lt_err run_charsmap(const lt_norm *n, const char *s, size_t bytes, lt_text *out) {
    const uint8_t *p = (const uint8_t *)s, *const end = p + bytes;
    const char *to;
    size_t to_bytes;
    while (p < end) {
        const uint8_t *q = lt_norm_cluster_end(p, end);
        uint32_t cp;
        if (lt_norm_map_cluster(n, p, q, &to, &to_bytes)) {
            LT_TRY(lt_text_put(out, to, to_bytes));
            p = q;
            continue;
        }
        while (p < q) {
            const size_t size = lt_utf8_decode(p, q, &cp);
            if (lt_charsmap_find(&n->charsmap, (const char *)p, size, false, &to, &to_bytes) != 0) {
                LT_TRY(lt_text_put(out, to, to_bytes));
            } else {
                LT_TRY(lt_text_put(out, (const char *)p, size));
            }
            p += size;
        }
    }
    return LT_OK;
}

static lt_err run_chars(const lt_norm *n, const char *s, size_t bytes, lt_text *out) {
    for (size_t at = 0; at < bytes;) {
        uint32_t cp;
        at += lt_utf8_decode((const uint8_t *)s + at, (const uint8_t *)s + bytes, &cp);
        if (n->kind == LT_NORM_LOWERCASE) {
            LT_TRY(put_lower(cp, out));
        } else if (n->kind == LT_NORM_NMT) {
            LT_TRY(put_nmt(cp, out));
        } else if ((lt_unicode_flags(cp) & LT_UNICODE_ACCENT) == 0) {
            LT_TRY(lt_text_put_cp(out, cp));
        }
    }
    return LT_OK;
}

static lt_err run_one(const lt_norm *n, lt_norm_scratch *scratch, const char *s, size_t bytes,
                      lt_text *out) {
    switch (n->kind) {
    case LT_NORM_FORM:
        return lt_unicode_normalize(n->form, s, bytes, out);
    case LT_NORM_LOWERCASE:
    case LT_NORM_NMT:
    case LT_NORM_STRIP_ACCENTS:
        return run_chars(n, s, bytes, out);
    case LT_NORM_STRIP:
        return run_strip(n, s, bytes, out);
    case LT_NORM_REPLACE:
        return run_replace(n, scratch, s, bytes, out);
    case LT_NORM_PREPEND:
        LT_TRY(bytes > 0 ? lt_text_put(out, n->to.data, n->to.n) : LT_OK);
        return lt_text_put(out, s, bytes);
    case LT_NORM_BERT:
        return run_bert(n, s, bytes, out);
    case LT_NORM_CHARSMAP:
        return run_charsmap(n, s, bytes, out);
    case LT_NORM_BYTE_MAP:
        for (size_t i = 0; i < bytes; i++) {
            LT_TRY(lt_text_put_cp(out, lt_byte_char((uint8_t)s[i])));
        }
        return LT_OK;
    }
    LT_ASSERT(!"normalizer kind");
    return LT_OK;
}

static bool unchanged(const lt_norm *n, const char *s, size_t bytes) {
    switch (n->kind) {
    case LT_NORM_FORM:
        return n->form == LT_UNICODE_NFC ? inert(s, bytes) : is_ascii(s, bytes);
    case LT_NORM_STRIP_ACCENTS:
        return is_ascii(s, bytes);
    case LT_NORM_REPLACE:
        return n->regex == NULL &&
               (n->from.n == 0 || memmem(s, bytes, n->from.data, n->from.n) == NULL);
    default:
        return false;
    }
}

lt_err lt_normalizer_apply(const lt_normalizer *n, lt_norm_scratch *s, const char *text,
                           size_t bytes, const char **out, size_t *out_bytes) {
    int turn = 0;
    s->from_bytes = bytes;
    for (int i = 0; i < n->n_norms; i++) {
        lt_text *to = &s->texts[turn];
        if (unchanged(&n->norms[i], text, bytes)) {
            continue;
        }
        to->n = 0;
        LT_TRY(lt_text_reserve(to, bytes + 1));
        LT_TRY(run_one(&n->norms[i], s, text, bytes, to));
        text = to->data;
        bytes = to->n;
        turn ^= 1;
    }
    *out = text;
    *out_bytes = bytes;
    return LT_OK;
}

static void free_norm(lt_norm *n) {
    lt_text_free(&n->from);
    lt_text_free(&n->to);
    lt_regex_close(n->regex);
    lt_charsmap_free(&n->charsmap);
}

lt_err lt_normalizer_add(lt_normalizer *n, lt_norm norm) {
    if (n->n_norms == LT_MAX_NORMS) {
        free_norm(&norm);
        LT_FAIL(LT_ERR_LIMIT, "a normalizer of more than %d steps", LT_MAX_NORMS);
    }
    n->norms[n->n_norms++] = norm;
    return LT_OK;
}

void lt_normalizer_free(lt_normalizer *n) {
    for (int i = 0; i < n->n_norms; i++) {
        free_norm(&n->norms[i]);
    }
    n->n_norms = 0;
}

void lt_norm_scratch_free(lt_norm_scratch *s) {
    lt_text_free(&s->texts[0]);
    lt_text_free(&s->texts[1]);
    lt_regex_scratch_close(s->regex);
    lt_text_free(&s->aligned.text);
    lt_text_free(&s->aligned.first);
    lt_text_free(&s->aligned.other);
    lt_text_free(&s->aligned.other_first);
    free(s->aligned.changes.items);
    *s = (lt_norm_scratch){0};
}
