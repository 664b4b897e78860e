/* row.c: see row.h.
 *
 *     tokens     a a a a b b b . .        starts 0 4 7, n_real 7
 *     labels     a a a x b b b - -        x: crosses into b, ignored when documents are masked; -:
 *                                         padding, ignored
 *     doc_start  0 0 0 0 4 4 4 7 7        all 0 when documents are not masked
 *     positions  0 1 2 3 0 1 2 0 1        0 1 2 ... 8 when not reset
 *
 * As in the reference, the Goldfish hash reads the labels before any is ignored, with padding as id
 * 0. */
#include "data/row.h"

#include "base/error.h"

void lt_row_builder_carve(lt_row_builder *b, int64_t seq, lt_arena *a) {
    const size_t n = (size_t)seq;
    b->ids = lt_arena_take(a, (n + 1) * sizeof *b->ids, LT_ARENA_ALIGN);
    b->starts = lt_arena_take(a, (n + 2) * sizeof *b->starts, LT_ARENA_ALIGN);
    b->dropped = lt_arena_take(a, n * sizeof *b->dropped, LT_ARENA_ALIGN);
    if (b->masked) {
        b->silent = lt_arena_take(a, (n + 1) * sizeof *b->silent, LT_ARENA_ALIGN);
        b->unlearnt = lt_arena_take(a, n * sizeof *b->unlearnt, LT_ARENA_ALIGN);
    }
}

void lt_row_carve(lt_row *row, int64_t seq, lt_arena *a) {
    const size_t bytes = (size_t)seq * sizeof(int32_t);
    row->tokens = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    row->labels = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    row->doc_start = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    row->positions = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
}

/* Set doc_start and positions of the segment [from, to). */
static void fill_segment(const lt_loader_options *o, const lt_row *row, int64_t from, int64_t to) {
    const int32_t start = o->mask_documents ? (int32_t)from : 0;
    const int32_t zero = o->reset_positions ? (int32_t)from : 0;
    for (int64_t t = from; t < to; t++) {
        row->doc_start[t] = start;
        row->positions[t] = (int32_t)t - zero;
    }
}

void lt_row_finish(lt_row_builder *b, const lt_row *row, int64_t n_real, bool joined) {
    const lt_loader_options *o = b->options;
    const int64_t seq = o->seq;
    const int32_t pad = o->pad_id >= 0 ? (int32_t)o->pad_id : 0;

    LT_ASSERT(n_real >= 0 && n_real <= seq);
    for (int64_t t = n_real; t < seq; t++) {
        row->tokens[t] = pad;
        row->labels[t] = 0;
    }
    if (b->goldfish != NULL) {
        lt_goldfish_mark(b->goldfish, b->dropped, row->labels, seq);
        for (int64_t t = 0; t < n_real; t++) {
            row->labels[t] = b->dropped[t] ? LT_LABEL_IGNORED : row->labels[t];
        }
    }
    for (int64_t t = 0; b->masked && t < n_real; t++) {
        row->labels[t] = b->unlearnt[t] ? LT_LABEL_IGNORED : row->labels[t];
    }
    for (int64_t t = n_real; t < seq; t++) {
        row->labels[t] = LT_LABEL_IGNORED;
    }
    for (int64_t i = 0; i < b->n_starts && b->starts[i] < n_real; i++) {
        const int64_t from = i == 0 ? 0 : b->starts[i];
        const int64_t next = i + 1 < b->n_starts && b->starts[i + 1] < n_real ? b->starts[i + 1]
                                                                              : n_real;
        fill_segment(o, row, from, next);
    }
    fill_segment(o, row, n_real, seq);
    for (int64_t i = 0; joined && o->mask_documents && i < b->n_starts; i++) {
        if (b->starts[i] > 0 && b->starts[i] <= n_real) {
            row->labels[b->starts[i] - 1] = LT_LABEL_IGNORED;
        }
    }
    for (int64_t t = 0; o->mask_eod && t < n_real; t++) {
        row->labels[t] = row->tokens[t] == o->eod_id ? LT_LABEL_IGNORED : row->labels[t];
    }
}

void lt_row_blank(lt_row_builder *b, const lt_row *row) {
    b->n_starts = 0;
    lt_row_finish(b, row, 0, false);
}
