/* tokenizer/mask.c: finds the ids that stand for given bytes of a text, for the label masks of
 * conversations.
 *
 * Encoding stores the edges between added tokens and the segments around them (keep_edge in
 * tokenizer.c). A segment entirely inside or outside a span needs nothing more, and most answers
 * are such segments, because they end with a special token. In the others, each id's piece is
 * searched for in the text that the model saw, from left to right:
 *
 *     raw        <|im_start|>assistant\n The answer<|im_end|>   span: from "The" on
 *     edges     ^0           ^12                 ^33        ^43
 *     normalised              assistant\n The answer            pieces  |assistant|\n| The| answer|
 *
 * A position in the raw segment is mapped to the normalised segment by normalising the text before
 * it. Pieces may differ from the text: U+2581 for a space, a space put before the first word, <unk>
 * for anything. So when a piece is not found, the text up to the next piece that is found belongs
 * to it.
 *
 * The result is that of transformers' char_to_token, except for a span that ends inside a
 * character's bytes: of such a character's ids it takes the first, and we take all. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/impl.h"
#include "data/text_utf8.h"

#define SEARCH_BYTES 4096 /* How far after an unknown piece the next one is searched for. */
#define NOT_HERE     SIZE_MAX

static const char space_mark[] = "\xE2\x96\x81"; /* U+2581 */
#define SPACE_MARK_BYTES 3

static bool begins_with_mark(const char *p, size_t n) {
    return n >= SPACE_MARK_BYTES && memcmp(p, space_mark, SPACE_MARK_BYTES) == 0;
}

/* If the text begins with the piece, the number of bytes that the piece covers; otherwise
 * NOT_HERE. */
static size_t match(const char *piece, size_t n, const char *text, size_t room) {
    size_t used = 0;
    for (size_t i = 0; i < n; used++) {
        if (used == room) {
            return NOT_HERE;
        }
        if (text[used] == ' ' && begins_with_mark(piece + i, n - i)) {
            i += SPACE_MARK_BYTES;
        } else if (text[used] == piece[i]) {
            i++;
        } else {
            return NOT_HERE;
        }
    }
    return used;
}

/* The piece without the mark of its position in a word: WordPiece's "##" or an end-of-word
 * suffix. */
static const char *bare_piece(const lt_tokenizer *t, uint32_t id, size_t *n) {
    const char *piece = lt_tokenizer_piece(t, id, n);
    const size_t suffix = strlen(t->bpe.suffix);
    if (piece == NULL) {
        return "";
    }
    if (t->model == LT_MODEL_WORDPIECE && *n > 2 && piece[0] == '#' && piece[1] == '#') {
        *n -= 2;
        return piece + 2;
    }
    if (t->model == LT_MODEL_BPE && suffix > 0 && *n > suffix &&
        memcmp(piece + *n - suffix, t->bpe.suffix, suffix) == 0) {
        *n -= suffix;
    }
    return piece;
}

/* Find the piece at or after `at`: *begin is its first byte, and its length is returned; NOT_HERE:
 * it is not found. */
static size_t find_piece(const char *piece, size_t n, const char *text, size_t bytes, size_t at,
                         size_t *begin) {
    const size_t last = bytes - at > SEARCH_BYTES ? at + SEARCH_BYTES : bytes;
    const size_t space = n > 0 && piece[0] == ' '     ? 1
                         : begins_with_mark(piece, n) ? SPACE_MARK_BYTES
                                                      : 0;
    size_t used = match(piece, n, text + at, bytes - at);
    *begin = at;
    if (used == NOT_HERE && space > 0) { /* It may have a space that was put before the text. */
        used = match(piece + space, n - space, text + at, bytes - at);
    }
    for (; used == NOT_HERE && *begin < last; (*begin)++) {
        used = match(piece, n, text + *begin + 1, bytes - *begin - 1);
    }
    return used;
}

/* Mark the ids of one normalised segment that overlap a span. */
static void mark_pieces(const lt_tokenizer *t, const uint32_t *ids, size_t n, const char *text,
                        size_t bytes, const lt_text_span *spans, size_t n_spans,
                        unsigned char *mask) {
    /* `lost` ids before this one were not found: they end where it begins. */
    size_t at = 0, lost = 0;
    size_t lost_from = 0;
    for (size_t i = 0; i <= n; i++) {
        size_t begin = bytes, piece_bytes, used = 0;
        if (i < n) {
            const char *piece = bare_piece(t, ids[i], &piece_bytes);
            used = find_piece(piece, piece_bytes, text, bytes, at, &begin);
            if (used == NOT_HERE) {
                lost_from = lost == 0 ? at : lost_from;
                lost++;
                continue;
            }
        }
        for (size_t k = 0; k < n_spans; k++) {
            if (lost > 0 && spans[k].begin < begin && spans[k].end > lost_from) {
                memset(mask + i - lost, 1, lost);
            }
            if (i < n && spans[k].begin < begin + used && spans[k].end > begin) {
                mask[i] = 1;
            }
        }
        lost = 0;
        at = begin + used;
    }
}

/* Map a position in the raw segment to the normalised one. */
static lt_err normal_place(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                           size_t place, size_t *out) {
    const char *unused;
    *out = 0;
    return place == 0 ? LT_OK : lt_tokenizer_normalize(t, s, text, place, &unused, out);
}

/* Mark the ids of a segment that the spans cover in part. Spans count bytes of the whole text. */
static lt_err mark_segment(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                           const lt_token_edge *from, const lt_token_edge *to,
                           const lt_text_span *spans, size_t n_spans, const uint32_t *ids,
                           unsigned char *mask) {
    lt_err err = LT_OK;
    const size_t bytes = to->bytes - from->bytes;
    const char *segment = text + from->bytes, *seen;
    size_t seen_bytes;
    lt_text_span *inside = malloc(n_spans * sizeof *inside);

    if (inside == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu answers", n_spans);
    }
    for (size_t k = 0; k < n_spans; k++) {
        const size_t begin = spans[k].begin > from->bytes ? spans[k].begin - from->bytes : 0;
        const size_t end = spans[k].end < to->bytes ? spans[k].end - from->bytes : bytes;
        LT_TRY_DONE(normal_place(t, s, segment, begin, &inside[k].begin));
        LT_TRY_DONE(normal_place(t, s, segment, end, &inside[k].end));
    }
    LT_TRY_DONE(lt_tokenizer_normalize(t, s, segment, bytes, &seen, &seen_bytes));
    mark_pieces(t, ids, to->ids - from->ids, seen, seen_bytes, inside, n_spans, mask);
done:
    free(inside);
    return err;
}

/* Mark the ids of all segments; ids and mask are those of the whole text. */
static lt_err mark_all(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                       const lt_text_span *spans, size_t n_spans, const lt_ids *ids, size_t first,
                       unsigned char *mask) {
    size_t k = 0;
    for (size_t e = 0; e + 1 < s->n_edges; e++) {
        const lt_token_edge *from = &s->edges[e], *to = &s->edges[e + 1];
        size_t last;
        while (k < n_spans && spans[k].end <= from->bytes) {
            k++;
        }
        for (last = k; last < n_spans && spans[last].begin < to->bytes; last++) {}
        if (last == k || to->ids == from->ids) {
            continue;
        }
        if (spans[k].begin <= from->bytes && spans[k].end >= to->bytes) {
            memset(mask + from->ids - first, 1, to->ids - from->ids);
        } else if (to->ids - from->ids == 1) {
            mask[from->ids - first] = 1;
        } else {
            LT_TRY(mark_segment(t, s, text, from, to, spans + k, last - k, ids->data + from->ids,
                                mask + from->ids - first));
        }
    }
    return LT_OK;
}

lt_err lt_tokenizer_encode_masked(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                                  size_t bytes, unsigned flags, const lt_text_span *spans,
                                  size_t n_spans, lt_ids *out, unsigned char **mask) {
    lt_err err = LT_OK;
    const size_t first = out->n;
    unsigned char *made = NULL;

    LT_ASSERT((flags & LT_ENCODE_FIT) == 0 && mask != NULL);
    if (lt_utf8_valid_prefix(text, bytes) != bytes) {
        LT_FAIL(LT_ERR_FORMAT, "text to mask: invalid UTF-8 at byte %zu",
                lt_utf8_valid_prefix(text, bytes));
    }
    s->keeps_edges = true;
    s->n_edges = 0;
    LT_TRY_DONE(lt_tokenizer_encode(t, s, text, bytes, flags, out));
    made = calloc(out->n - first + 1, 1);
    if (made == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "mask of %zu ids", out->n - first);
    }
    LT_TRY_DONE(mark_all(t, s, text, spans, n_spans, out, first, made));
    *mask = made;
    made = NULL;
done:
    s->keeps_edges = false;
    free(made);
    return err;
}
