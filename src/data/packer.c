/* packer.c: see packer.h.
 *
 * Best fit: pieces, longest first, go into the row with the least space that still fits them (Ding
 * et al. 2024, "Fewer Truncations Improve Language Modeling", arXiv:2404.10830). Rows are kept in
 * lists by free space, with a bit for each non-empty list, so a fit is found by scanning at most
 * T/64 words. */
#include "data/packer.h"

#include <string.h>

#include "base/error.h"
#include "base/rng.h"

void lt_packer_carve(lt_packer *p, const lt_loader_options *o, lt_arena *a) {
    lt_window *w = &p->window;
    const size_t seq = (size_t)o->seq;
    if (o->packing == LT_PACK_STREAM && o->shuffle != LT_SHUFFLE_DOCUMENTS) {
        return;
    }
    w->pieces = lt_arena_take(a, LT_PACK_WINDOW * sizeof *w->pieces, LT_ARENA_ALIGN);
    if (o->packing != LT_PACK_STREAM) {
        w->row_first = lt_arena_take(a, LT_PACK_WINDOW * sizeof *w->row_first, LT_ARENA_ALIGN);
        w->row_last = lt_arena_take(a, LT_PACK_WINDOW * sizeof *w->row_last, LT_ARENA_ALIGN);
        w->row_next = lt_arena_take(a, LT_PACK_WINDOW * sizeof *w->row_next, LT_ARENA_ALIGN);
        w->by_length = lt_arena_take(a, (seq + 1) * sizeof *w->by_length, LT_ARENA_ALIGN);
        w->by_room = lt_arena_take(a, (seq + 1) * sizeof *w->by_room, LT_ARENA_ALIGN);
        w->rooms = lt_arena_take(a, (seq / 64 + 1) * sizeof *w->rooms, LT_ARENA_ALIGN);
    }
}

static uint64_t n_documents(const lt_packer *p) {
    return p->source.doc_hi - p->source.doc_lo;
}

/* The document at position `ordinal` of this epoch. */
static uint64_t in_order(const lt_packer *p, uint64_t epoch, uint64_t ordinal) {
    if (p->options->shuffle != LT_SHUFFLE_DOCUMENTS) {
        return p->source.doc_lo + ordinal;
    }
    return p->source.doc_lo + lt_rng_permute(ordinal, n_documents(p), p->seed, epoch);
}

static uint64_t length_in_order(const lt_packer *p, uint64_t epoch, uint64_t ordinal) {
    uint64_t first, n;
    lt_doc_stream_document(&p->source, in_order(p, epoch, ordinal), &first, &n);
    return n;
}

/* Number of tokens by which the cuts of this epoch move to the left. */
static uint64_t epoch_shift(const lt_packer *p, uint64_t epoch) {
    if (p->options->shuffle == LT_SHUFFLE_NONE || epoch == 0) {
        return 0;
    }
    return lt_rng_mix(p->seed ^ lt_rng_mix(epoch)) % (uint64_t)p->options->seq;
}

uint64_t lt_packer_epoch_rows(const lt_packer *p, uint64_t epoch) {
    const uint64_t seq = (uint64_t)p->options->seq;
    if (p->window.pieces != NULL) {
        return 0;
    }
    return (p->source.hi - p->source.lo - 1 + epoch_shift(p, epoch) + seq - 1) / seq;
}

/* Read up to n + 1 tokens from (ordinal, offset) on, across documents, and make the row. */
static lt_err gather(const lt_packer *p, lt_row_builder *b, const lt_row *row, uint64_t epoch,
                     uint64_t ordinal, uint64_t offset, uint64_t n) {
    uint64_t used = 0;
    size_t n_real;

    b->n_starts = 0;
    for (; used < n + 1 && ordinal < n_documents(p); ordinal++, offset = 0) {
        const uint64_t d = in_order(p, epoch, ordinal);
        uint64_t first, length, some;
        lt_doc_stream_document(&p->source, d, &first, &length);
        some = length - offset < n + 1 - used ? length - offset : n + 1 - used;
        if (some == 0) {
            continue; /* An empty document. */
        }
        LT_TRY(lt_doc_stream_read(&p->source, d, first + offset, (size_t)some, b->ids + used,
                                  b->masked ? b->silent + used : NULL));
        b->starts[b->n_starts++] = (int32_t)used;
        used += some;
    }
    n_real = used > 0 ? (size_t)used - 1 : 0;
    memcpy(row->tokens, b->ids, n_real * sizeof *b->ids);
    memcpy(row->labels, b->ids + 1, n_real * sizeof *b->ids);
    if (b->masked) {
        memcpy(b->unlearnt, b->silent + 1, n_real * sizeof *b->silent);
    }
    lt_row_finish(b, row, (int64_t)n_real, true);
    return LT_OK;
}

/* The row of the stream at position `row` of this epoch. Windows follow each other in the order
 * of the stream, so that shards are read one after the other. */
static uint64_t row_in_order(const lt_packer *p, uint64_t epoch, uint64_t row, uint64_t n_rows) {
    const uint64_t size = (uint64_t)p->options->shuffle_rows;
    uint64_t window, first, n;
    if (p->options->shuffle == LT_SHUFFLE_NONE) {
        return row;
    }
    if (size == 0) {
        return lt_rng_permute(row, n_rows, p->seed, epoch);
    }
    window = row / size;
    first = window * size;
    n = n_rows - first < size ? n_rows - first : size;
    return first + lt_rng_permute(row - first, n, p->seed, lt_rng_mix(epoch ^ lt_rng_mix(window)));
}

static lt_err take_by_number(lt_packer *p, lt_loader_cursor *c, lt_row_builder *b,
                             const lt_row *row) {
    const lt_doc_stream *s = &p->source;
    const uint64_t seq = (uint64_t)p->options->seq, n_rows = lt_packer_epoch_rows(p, c->epoch);
    if (c->row >= n_rows) {
        LT_FAIL(LT_ERR_STATE,
                "shards %s: row %llu of an epoch of %llu: the state belongs to other data", s->path,
                (unsigned long long)c->row, (unsigned long long)n_rows);
    }
    if (row != NULL) {
        const uint64_t shift = epoch_shift(p, c->epoch), inputs = s->hi - s->lo - 1;
        const uint64_t r = row_in_order(p, c->epoch, c->row, n_rows);
        const uint64_t from = r * seq > shift ? r * seq - shift : 0;
        const uint64_t to = (r + 1) * seq - shift < inputs ? (r + 1) * seq - shift : inputs;
        const uint64_t d = lt_doc_stream_find(s, s->lo + from);
        uint64_t first, n;
        lt_doc_stream_document(s, d, &first, &n);
        LT_TRY(gather(p, b, row, c->epoch, d - s->doc_lo, s->lo + from - first, to - from));
    }
    if (++c->row == n_rows) {
        c->row = 0;
        c->epoch++;
    }
    return LT_OK;
}

/* Find where the next rows of the stream of shuffled documents begin. */
static void plan_stream(lt_packer *p) {
    lt_window *w = &p->window;
    const uint64_t seq = (uint64_t)p->options->seq, end = n_documents(p);
    uint64_t ordinal = w->document, offset = w->offset;

    while (w->n_rows < LT_PACK_WINDOW && ordinal < end) {
        uint64_t used = 0;
        w->pieces[w->n_rows] = (lt_piece){.document = ordinal, .offset = offset, .next = -1};
        while (used < seq && ordinal < end) {
            const uint64_t length = length_in_order(p, w->epoch, ordinal);
            const uint64_t some = length - offset < seq - used ? length - offset : seq - used;
            used += some;
            offset += some;
            if (offset == length) {
                ordinal++;
                offset = 0;
            }
        }
        w->n_rows += used >= 2; /* A single last token has no label. */
    }
    w->end_document = ordinal;
    w->end_offset = offset;
}

/* Cut documents into pieces, put them into lists by length, and return their number. */
static int32_t cut_pieces(lt_packer *p) {
    lt_window *w = &p->window;
    const uint64_t seq = (uint64_t)p->options->seq, end = n_documents(p);
    uint64_t ordinal = w->document, offset = w->offset;
    int32_t n_pieces = 0;

    for (uint64_t i = 0; i <= seq; i++) {
        w->by_length[i] = -1;
    }
    while (n_pieces < LT_PACK_WINDOW && ordinal < end) {
        const uint64_t length = length_in_order(p, w->epoch, ordinal);
        if (offset + 1 < length) {
            const uint64_t left = length - 1 - offset, n = left < seq ? left : seq;
            w->pieces[n_pieces] = (lt_piece){ordinal, offset, (int32_t)n, w->by_length[n]};
            w->by_length[n] = n_pieces++;
            offset += n;
        }
        if (offset + 1 >= length) {
            ordinal++;
            offset = 0;
        }
    }
    w->end_document = ordinal;
    w->end_offset = offset;
    return n_pieces;
}

/* Each piece is a row, in the order of the documents. */
static void plan_single(lt_packer *p) {
    lt_window *w = &p->window;
    w->n_rows = cut_pieces(p);
    for (int32_t i = 0; i < w->n_rows; i++) {
        w->row_first[i] = w->row_last[i] = i;
        w->pieces[i].next = -1;
    }
}

static void push_row(lt_window *w, int32_t row, int32_t room) {
    w->row_next[row] = w->by_room[room];
    w->by_room[room] = row;
    w->rooms[room / 64] |= (uint64_t)1 << room % 64;
}

/* Take the row with the least room >= n out of its list, or a new row when there is none. */
static int32_t pop_row(lt_window *w, int32_t n, int32_t seq, int32_t *room) {
    for (int32_t word = n / 64; word <= seq / 64; word++) {
        const uint64_t bits = w->rooms[word] &
                              (word == n / 64 ? ~(uint64_t)0 << n % 64 : ~(uint64_t)0);
        if (bits != 0) {
            int32_t row;
            *room = word * 64 + __builtin_ctzll(bits);
            row = w->by_room[*room];
            w->by_room[*room] = w->row_next[row];
            if (w->by_room[*room] < 0) {
                w->rooms[word] &= ~((uint64_t)1 << *room % 64);
            }
            return row;
        }
    }
    *room = seq;
    w->row_first[w->n_rows] = w->row_last[w->n_rows] = -1;
    return (int32_t)w->n_rows++;
}

static void plan_best_fit(lt_packer *p) {
    lt_window *w = &p->window;
    const int32_t seq = (int32_t)p->options->seq;

    (void)cut_pieces(p);
    for (int32_t i = 0; i <= seq; i++) {
        w->by_room[i] = -1;
    }
    memset(w->rooms, 0, ((size_t)seq / 64 + 1) * sizeof *w->rooms);
    for (int32_t n = seq; n >= 1; n--) {
        int32_t piece = w->by_length[n];
        while (piece >= 0) {
            const int32_t following = w->pieces[piece].next;
            int32_t room;
            const int32_t row = pop_row(w, n, seq, &room);
            if (w->row_last[row] >= 0) {
                w->pieces[w->row_last[row]].next = piece;
            } else {
                w->row_first[row] = piece;
            }
            w->row_last[row] = piece;
            w->pieces[piece].next = -1;
            if (room > n) {
                push_row(w, row, room - n);
            }
            piece = following;
        }
    }
}

/* Whether nothing is left to predict in the epoch after this window. Then it is the last one,
 * even if documents of no token or one token follow, and a loader that ends with the epoch ends
 * there. */
static bool is_last_window(const lt_packer *p) {
    const lt_window *w = &p->window;
    uint64_t left = 0, offset = w->end_offset;
    for (uint64_t d = w->end_document; d < n_documents(p) && left < 2; d++, offset = 0) {
        const uint64_t n = length_in_order(p, w->epoch, d) - offset;
        left = p->options->packing == LT_PACK_STREAM ? left + n : n;
    }
    return left < 2;
}

static void (*const plans[])(lt_packer *p) = {
    [LT_PACK_STREAM] = plan_stream,
    [LT_PACK_BEST_FIT] = plan_best_fit,
    [LT_PACK_SINGLE] = plan_single,
};

/* Plan the window that contains the cursor. Windows without rows (only empty documents) are
 * skipped. */
static lt_err plan(lt_packer *p, lt_loader_cursor *c) {
    lt_window *w = &p->window;
    if (w->planned && w->epoch == c->epoch && w->document == c->document &&
        w->offset == c->offset) {
        return LT_OK;
    }
    if (c->offset > 0 &&
        (c->document >= n_documents(p) || c->offset >= length_in_order(p, c->epoch, c->document))) {
        LT_FAIL(LT_ERR_STATE,
                "shards %s: token %llu of document %llu: the state belongs to other data",
                p->source.path, (unsigned long long)c->offset, (unsigned long long)c->document);
    }
    /* First the rest of the epoch, then one whole epoch. */
    for (int attempt = 0; attempt < 3; attempt++) {
        do {
            w->planned = true;
            w->epoch = c->epoch;
            w->document = c->document;
            w->offset = c->offset;
            w->n_rows = 0;
            plans[p->options->packing](p);
            w->ends_epoch = is_last_window(p);
            if (w->n_rows > 0) {
                return LT_OK;
            }
            c->document = w->end_document;
            c->offset = w->end_offset;
        } while (!w->ends_epoch);
        c->document = c->offset = 0;
        c->epoch++;
    }
    LT_FAIL(LT_ERR_FORMAT, "shards %s: no document of two tokens: nothing to predict",
            p->source.path);
}

static lt_err gather_pieces(const lt_packer *p, lt_row_builder *b, const lt_row *row,
                            int32_t piece) {
    const lt_window *w = &p->window;
    size_t used = 0;
    b->n_starts = 0;
    for (; piece >= 0; piece = w->pieces[piece].next) {
        const lt_piece *at = &w->pieces[piece];
        const uint64_t d = in_order(p, w->epoch, at->document);
        const size_t n = (size_t)at->n;
        uint64_t first, length;
        lt_doc_stream_document(&p->source, d, &first, &length);
        LT_TRY(lt_doc_stream_read(&p->source, d, first + at->offset, n + 1, b->ids, b->silent));
        memcpy(row->tokens + used, b->ids, n * sizeof *b->ids);
        memcpy(row->labels + used, b->ids + 1, n * sizeof *b->ids);
        if (b->masked) {
            memcpy(b->unlearnt + used, b->silent + 1, n * sizeof *b->silent);
        }
        b->starts[b->n_starts++] = (int32_t)used;
        used += n;
    }
    lt_row_finish(b, row, (int64_t)used, false);
    return LT_OK;
}

static lt_err take_from_window(lt_packer *p, lt_loader_cursor *c, lt_row_builder *b,
                               const lt_row *row) {
    const lt_window *w = &p->window;
    LT_TRY(plan(p, c));
    if (c->row >= (uint64_t)w->n_rows) {
        LT_FAIL(LT_ERR_STATE,
                "shards %s: row %llu of a window of %lld: the state belongs to other data",
                p->source.path, (unsigned long long)c->row, (long long)w->n_rows);
    }
    if (row != NULL) {
        const uint64_t salt = lt_rng_mix(w->epoch ^
                                         lt_rng_mix(w->document ^ lt_rng_mix(w->offset)));
        const uint64_t r = p->options->shuffle == LT_SHUFFLE_NONE
                               ? c->row
                               : lt_rng_permute(c->row, (uint64_t)w->n_rows, p->seed, salt);
        const lt_piece *at = &w->pieces[r];
        LT_TRY(
            p->options->packing != LT_PACK_STREAM
                ? gather_pieces(p, b, row, w->row_first[r])
                : gather(p, b, row, w->epoch, at->document, at->offset, (uint64_t)p->options->seq));
    }
    if (++c->row == (uint64_t)w->n_rows) {
        c->row = 0;
        c->epoch += w->ends_epoch;
        c->document = w->ends_epoch ? 0 : w->end_document;
        c->offset = w->ends_epoch ? 0 : w->end_offset;
    }
    return LT_OK;
}

lt_err lt_packer_take(lt_packer *p, lt_loader_cursor *c, lt_row_builder *b, const lt_row *row) {
    LT_TRY(p->window.pieces == NULL ? take_by_number(p, c, b, row)
                                    : take_from_window(p, c, b, row));
    c->rows++;
    return LT_OK;
}
