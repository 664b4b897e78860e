/* normalize_align.c: a second implementation of the normalizer, with the alignment that a
 * Metaspace needs if it prepends to the first word only.
 *
 * Hugging Face's NormalizedString records for each byte which range of the original text it stands
 * for, and "the first word" is every word whose range begins at 0. There may be several: the
 * ligature "ﬁ" becomes "fi", both letters stand for bytes 0 to 3, and an added token "f" leaves
 * an "i" that counts as first too. There may be none: if a normalizer removes the first character,
 * the text begins at 1. So each step of the normalizer here records what it did in the package's
 * way, with a `change` for each character:
 *
 *      0  replaces the next old character
 *     -n  the same, and the n old characters after it are removed
 *      1  is new, and stands for the same range as the character before it
 *
 * and each byte of the text has a mark in `first`, which is 1 if its range begins at 0. This is
 * done only for tokenizers whose ids depend on it (lt_tokenizer.tracks_first). References:
 * tokenizers' normalizer.rs, the crate unicode-normalization-alignments. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/regex.h"

static lt_err put_change(lt_norm_changes *list, uint32_t cp, int64_t change) {
    if (list->n == list->room) {
        const size_t room = list->room == 0 ? 256 : 2 * list->room;
        lt_norm_change *grown = realloc(list->items, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu normalised characters", room);
        }
        list->items = grown;
        list->room = room;
    }
    list->items[list->n++] = (lt_norm_change){cp, 0, change};
    return LT_OK;
}

static size_t next_char(const lt_text *s, size_t at, uint32_t *cp) {
    return lt_utf8_decode((const uint8_t *)s->data + at, (const uint8_t *)s->data + s->n, cp);
}

static void swap_texts(lt_norm_aligned *a) {
    const lt_text text = a->text, first = a->first;
    a->text = a->other;
    a->first = a->other_first;
    a->other = text;
    a->other_first = first;
}

/* Like the package's `transform`: make a text from changes. gone: number of old characters that
 * are removed before the first. */
static lt_err apply(lt_norm_aligned *a, const lt_norm_changes *list, size_t gone) {
    size_t at = 0;
    uint32_t cp;
    for (; gone > 0 && at < a->text.n; gone--) {
        at += next_char(&a->text, at, &cp);
    }
    a->other.n = a->other_first.n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const lt_norm_change *c = &list->items[i];
        const size_t from = c->change > 0 ? at - (at > 0) : at;
        const char mark = (char)(c->change > 0 && at == 0 ? 1
                                 : from < a->text.n       ? a->first.data[from]
                                                          : 0);
        LT_TRY(lt_text_put_cp(&a->other, c->cp));
        while (a->other_first.n < a->other.n) {
            LT_TRY(lt_text_put(&a->other_first, &mark, 1));
        }
        for (int64_t k = c->change; k <= 0 && at < a->text.n; k++) {
            at += next_char(&a->text, at, &cp);
        }
    }
    swap_texts(a);
    return LT_OK;
}

/* Set *to to what a character becomes; false: it is dropped. */
typedef bool (*map_fn)(uint32_t cp, uint32_t *to);

static lt_err filter(lt_norm_aligned *a, map_fn map) {
    size_t gone = 0, removed = 0;
    bool started = false;
    a->changes.n = 0;
    for (size_t at = 0; at < a->text.n;) {
        uint32_t cp, to;
        at += next_char(&a->text, at, &cp);
        to = cp;
        if (map(cp, &to)) {
            gone = started ? gone : removed;
            started = true;
            removed = 0;
            LT_TRY(put_change(&a->changes, to, 0));
        } else {
            removed++;
            if (started) {
                a->changes.items[a->changes.n - 1].change--;
            }
        }
    }
    return apply(a, &a->changes, gone);
}

static bool keep_unaccented(uint32_t cp, uint32_t *to) {
    (void)to;
    return (lt_unicode_flags(cp) & LT_UNICODE_ACCENT) == 0;
}

static bool keep_clean(uint32_t cp, uint32_t *to) {
    const uint32_t flags = lt_unicode_flags(cp);
    *to = (flags & LT_UNICODE_BERT_BLANK) != 0 ? ' ' : cp;
    return (flags & LT_UNICODE_BERT_GONE) == 0;
}

static bool keep_unmarked(uint32_t cp, uint32_t *to) {
    (void)to;
    return (lt_unicode_flags(cp) & LT_UNICODE_BERT_MARK) == 0;
}

static lt_err lower(lt_norm_aligned *a) {
    a->changes.n = 0;
    for (size_t at = 0; at < a->text.n;) {
        uint32_t cp;
        size_t n;
        at += next_char(&a->text, at, &cp);
        const uint32_t *to = lt_unicode_lower(&cp, &n);
        for (size_t i = 0; i < n; i++) {
            LT_TRY(put_change(&a->changes, to[i], i > 0));
        }
    }
    return apply(a, &a->changes, 0);
}

static lt_err space_han(lt_norm_aligned *a) {
    a->changes.n = 0;
    for (size_t at = 0; at < a->text.n;) {
        uint32_t cp;
        at += next_char(&a->text, at, &cp);
        const bool han = (lt_unicode_flags(cp) & LT_UNICODE_BERT_HAN) != 0;
        LT_TRY(han ? put_change(&a->changes, ' ', 0) : LT_OK);
        LT_TRY(put_change(&a->changes, cp, han));
        LT_TRY(han ? put_change(&a->changes, ' ', 1) : LT_OK);
    }
    return apply(a, &a->changes, 0);
}

static lt_err byte_map(lt_norm_aligned *a) {
    a->changes.n = 0;
    for (size_t i = 0; i < a->text.n; i++) {
        const uint8_t byte = (uint8_t)a->text.data[i];
        LT_TRY(put_change(&a->changes, lt_byte_char(byte), (byte & 0xC0) == 0x80));
    }
    return apply(a, &a->changes, 0);
}

static int by_class(const void *a, const void *b) {
    const lt_norm_change *x = a, *y = b;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Decompose fully, in canonical order: the first part of a character has the change 0, the others
 * 1. */
static lt_err decompose(lt_norm_aligned *a, bool compat) {
    lt_norm_changes *list = &a->changes;
    size_t run = 0; /* Where the marks after the last starter begin. */
    list->n = 0;
    for (size_t at = 0; at < a->text.n;) {
        uint32_t cp, parts[LT_UNICODE_PARTS];
        at += next_char(&a->text, at, &cp);
        const size_t n = lt_unicode_decompose(cp, compat, parts);
        for (size_t i = 0; i < n; i++) {
            const unsigned class = lt_unicode_class(parts[i]);
            if (class == 0 && list->n > run + 1) {
                qsort(list->items + run, list->n - run, sizeof *list->items, by_class);
            }
            LT_TRY(put_change(list, parts[i], i > 0));
            list->items[list->n - 1].order = (uint64_t) class << 32 | (list->n & UINT32_MAX);
            run = class == 0 ? list->n : run;
        }
    }
    if (run < list->n) {
        qsort(list->items + run, list->n - run, sizeof *list->items, by_class);
    }
    return LT_OK;
}

/* Compose a->changes in place, as the crate's Recompositions: the change of a composed character
 * is the sum of those of its parts, minus 1. */
static void recompose(lt_norm_changes *list) {
    size_t out = 0, starter = SIZE_MAX;
    unsigned last_class = 0; /* Class of the last mark kept after the starter; 0: none. */
    for (size_t i = 0; i < list->n; i++) {
        const lt_norm_change c = list->items[i];
        const unsigned class = lt_unicode_class(c.cp);
        const bool open = starter != SIZE_MAX && (last_class == 0 || last_class < class);
        const uint32_t both = open ? lt_unicode_compose(list->items[starter].cp, c.cp) : 0;
        if (both != 0) {
            list->items[starter].cp = both;
            list->items[starter].change += c.change - 1;
            continue;
        }
        list->items[out] = c;
        if (class == 0) {
            starter = out;
            last_class = 0;
        } else if (starter != SIZE_MAX) {
            last_class = class;
        }
        out++;
    }
    list->n = out;
}

static lt_err form(lt_norm_aligned *a, lt_unicode_form which) {
    LT_TRY(decompose(a, which == LT_UNICODE_NFKC || which == LT_UNICODE_NFKD));
    if (which == LT_UNICODE_NFC || which == LT_UNICODE_NFKC) {
        recompose(&a->changes);
    }
    return apply(a, &a->changes, 0);
}

static lt_err bert(lt_norm_aligned *a, const lt_norm *n) {
    LT_TRY(n->clean ? filter(a, keep_clean) : LT_OK);
    LT_TRY(n->han ? space_han(a) : LT_OK);
    LT_TRY(n->accents ? form(a, LT_UNICODE_NFD) : LT_OK);
    LT_TRY(n->accents ? filter(a, keep_unmarked) : LT_OK);
    return n->lower ? lower(a) : LT_OK;
}

/* Keep the text from *from to `to`. */
static lt_err keep(lt_norm_aligned *a, size_t from, size_t to) {
    LT_TRY(lt_text_put(&a->other, a->text.data + from, to - from));
    return lt_text_put(&a->other_first, a->first.data + from, to - from);
}

/* Insert a text, which stands for the same range as the byte before `at`. */
static lt_err insert(lt_norm_aligned *a, const lt_text *to, size_t at) {
    if (to->n == 0) {
        return LT_OK;
    }
    LT_TRY(lt_text_put(&a->other, to->data, to->n));
    LT_TRY(lt_text_reserve(&a->other_first, to->n));
    memset(a->other_first.data + a->other_first.n, at > 0 ? a->first.data[at - 1] : 1, to->n);
    a->other_first.n += to->n;
    return LT_OK;
}

static lt_err replace(lt_norm_aligned *a, const lt_norm *n, lt_norm_scratch *scratch) {
    lt_regex_cursor cursor = {0};
    size_t at = 0;
    a->other.n = a->other_first.n = 0;
    for (;;) {
        bool found;
        size_t begin, end;
        LT_TRY(
            lt_norm_find(n, scratch, a->text.data, a->text.n, at, &cursor, &found, &begin, &end));
        if (!found) {
            break;
        }
        LT_TRY(keep(a, at, begin));
        LT_TRY(insert(a, &n->to, end));
        LT_TRY(lt_norm_check_size(scratch->from_bytes, a->other.n));
        at = end;
    }
    LT_TRY(keep(a, at, a->text.n));
    swap_texts(a);
    return LT_OK;
}

/* Prepend a text, which gets the mark of the first character. */
static lt_err prepend(lt_norm_aligned *a, const lt_norm *n) {
    if (a->text.n == 0) {
        return LT_OK;
    }
    a->other.n = a->other_first.n = 0;
    LT_TRY(insert(a, &n->to, 1));
    LT_TRY(keep(a, 0, a->text.n));
    swap_texts(a);
    return LT_OK;
}

static lt_err strip(lt_norm_aligned *a, const lt_norm *n) {
    const char *begin;
    size_t bytes;
    lt_norm_strip(n, a->text.data, a->text.n, &begin, &bytes);
    const size_t from = (size_t)(begin - a->text.data);
    a->other.n = a->other_first.n = 0;
    LT_TRY(keep(a, from, from + bytes));
    swap_texts(a);
    return LT_OK;
}

/* Record a replacement of the charsmap: `old` characters become to[0..n). */
static lt_err put_mapped(lt_norm_changes *list, size_t old, const char *to, size_t n) {
    const lt_text text = {.data = (char *)(uintptr_t)to, .n = n};
    size_t fresh = 0;
    for (size_t at = 0; at < n; fresh++) {
        uint32_t cp;
        at += next_char(&text, at, &cp);
        LT_TRY(put_change(list, cp, fresh >= old));
    }
    /* If no character is before it, the package's count is wrong, and ours must be the same. */
    if (fresh < old && list->n > 0) {
        list->items[list->n - 1].change -= (int64_t)(old - fresh);
    }
    return LT_OK;
}

static lt_err charsmap(lt_norm_aligned *a, const lt_norm *n) {
    const uint8_t *p = (const uint8_t *)a->text.data, *const end = p + a->text.n;
    a->changes.n = 0;
    while (p < end) {
        const uint8_t *const q = lt_norm_cluster_end(p, end);
        const char *to;
        size_t to_n, chars = 0;
        uint32_t cp;
        for (const uint8_t *c = p; c < q; chars++) {
            c += lt_utf8_decode(c, q, &cp);
        }
        if (lt_norm_map_cluster(n, p, q, &to, &to_n)) {
            LT_TRY(put_mapped(&a->changes, chars, to, to_n));
            p = q;
        }
        while (p < q) {
            const size_t size = lt_utf8_decode(p, q, &cp);
            const bool mapped = lt_charsmap_find(&n->charsmap, (const char *)p, size, false, &to,
                                                 &to_n) != 0;
            LT_TRY(mapped ? put_mapped(&a->changes, 1, to, to_n) : put_change(&a->changes, cp, 0));
            p += size;
        }
    }
    return apply(a, &a->changes, 0);
}

static lt_err run_one(lt_norm_aligned *a, const lt_norm *n, lt_norm_scratch *scratch) {
    switch (n->kind) {
    case LT_NORM_FORM:
        return form(a, n->form);
    case LT_NORM_LOWERCASE:
        return lower(a);
    case LT_NORM_NMT:
        return filter(a, lt_norm_nmt);
    case LT_NORM_STRIP_ACCENTS:
        return filter(a, keep_unaccented);
    case LT_NORM_STRIP:
        return strip(a, n);
    case LT_NORM_REPLACE:
        return replace(a, n, scratch);
    case LT_NORM_PREPEND:
        return prepend(a, n);
    case LT_NORM_BERT:
        return bert(a, n);
    case LT_NORM_CHARSMAP:
        return charsmap(a, n);
    case LT_NORM_BYTE_MAP:
        return byte_map(a);
    }
    LT_ASSERT(!"normalizer kind");
    return LT_OK;
}

lt_err lt_normalizer_apply_aligned(const lt_normalizer *n, lt_norm_scratch *s, const char *text,
                                   size_t bytes, const char **out, size_t *out_bytes,
                                   const char **first) {
    lt_norm_aligned *a = &s->aligned;
    uint32_t cp;
    a->text.n = a->first.n = 0;
    s->from_bytes = bytes;
    LT_TRY(lt_text_reserve(&a->text, bytes + 1)); /* So that an empty text has an address too. */
    LT_TRY(lt_text_reserve(&a->other, 1));
    LT_TRY(lt_text_reserve(&a->other_first, 1));
    LT_TRY(lt_text_put(&a->text, text, bytes));
    LT_TRY(lt_text_reserve(&a->first, bytes + 1));
    memset(a->first.data, 0, bytes);
    memset(a->first.data, 1, bytes > 0 ? next_char(&a->text, 0, &cp) : 0);
    a->first.n = bytes;
    for (int i = 0; i < n->n_norms; i++) {
        LT_TRY(run_one(a, &n->norms[i], s));
        LT_ASSERT(a->text.n == a->first.n);
    }
    *out = a->text.data;
    *out_bytes = a->text.n;
    *first = a->first.data;
    return LT_OK;
}
