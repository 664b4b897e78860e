/* box.c: see box.h. Missing dimensions count as one index, so that all arithmetic is in
 * LT_PARAM_DIMS dimensions, with the last one fastest. */
#include "model/box.h"

#include <stdlib.h>

#include "base/error.h"

/* Extend the box to three dimensions: missing ones come first, with one index. */
static lt_box widen(const lt_box *box, int n_dims) {
    const int lead = LT_PARAM_DIMS - n_dims;
    lt_box out = {{0}, {1, 1, 1}};
    LT_ASSERT(n_dims >= 1 && n_dims <= LT_PARAM_DIMS);
    for (int d = 0; d < n_dims; d++) {
        out.first[lead + d] = box->first[d];
        out.extent[lead + d] = box->extent[d];
    }
    return out;
}

static lt_box narrow(const lt_box *box, int n_dims) {
    const int lead = LT_PARAM_DIMS - n_dims;
    lt_box out = {0};
    for (int d = 0; d < n_dims; d++) {
        out.first[d] = box->first[lead + d];
        out.extent[d] = box->extent[lead + d];
    }
    return out;
}

/* Number of elements of the whole from one index of a dimension to the next. */
static void strides_of(int64_t strides[LT_PARAM_DIMS], int n_dims, const int64_t *shape) {
    int64_t step = 1;
    for (int d = LT_PARAM_DIMS - 1; d >= 0; d--) {
        const int at = d - (LT_PARAM_DIMS - n_dims);
        strides[d] = step;
        step *= at >= 0 ? shape[at] : 1;
    }
}

lt_err lt_box_add(lt_box_list *list, const lt_box *box) {
    if (list->n == list->room) {
        const int room = list->room == 0 ? 8 : 2 * list->room;
        lt_box *grown = realloc(list->boxes, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "list of %d boxes", room);
        }
        list->boxes = grown;
        list->room = room;
    }
    list->boxes[list->n++] = *box;
    return LT_OK;
}

int64_t lt_box_count(const lt_box *box, int n_dims) {
    int64_t count = 1;
    for (int d = 0; d < n_dims; d++) {
        count *= box->extent[d];
    }
    return count;
}

bool lt_box_intersect(lt_box *out, const lt_box *a, const lt_box *b, int n_dims) {
    *out = (lt_box){0};
    for (int d = 0; d < n_dims; d++) {
        const int64_t a_end = a->first[d] + a->extent[d], b_end = b->first[d] + b->extent[d];
        const int64_t end = a_end < b_end ? a_end : b_end;
        out->first[d] = a->first[d] > b->first[d] ? a->first[d] : b->first[d];
        out->extent[d] = end - out->first[d];
        if (out->extent[d] <= 0) {
            return false;
        }
    }
    return true;
}

int64_t lt_box_local_index(const lt_box *box, int n_dims, const int64_t *index) {
    int64_t at = 0;
    for (int d = 0; d < n_dims; d++) {
        const int64_t inside = index[d] - box->first[d];
        LT_ASSERT(inside >= 0 && inside < box->extent[d]);
        at = at * box->extent[d] + inside;
    }
    return at;
}

int64_t lt_box_whole_index(const lt_box *boxes, int n_boxes, int n_dims, const int64_t *shape,
                           int64_t local, int64_t *run) {
    int64_t strides[LT_PARAM_DIMS], whole = 0, inside, piece = 1;
    lt_box box;
    int i = 0;

    LT_ASSERT(local >= 0 && n_boxes > 0);
    while (local >= lt_box_count(&boxes[i], n_dims)) {
        local -= lt_box_count(&boxes[i], n_dims);
        i++;
        LT_ASSERT(i < n_boxes);
    }
    box = widen(&boxes[i], n_dims);
    strides_of(strides, n_dims, shape);
    inside = local;
    for (int d = LT_PARAM_DIMS - 1; d >= 0; d--) {
        whole += (box.first[d] + inside % box.extent[d]) * strides[d];
        inside /= box.extent[d];
    }
    /* Contiguous elements: the last dimension, and each further one as long as all faster ones are
     * whole. */
    for (int d = LT_PARAM_DIMS - 1; d >= 0; d--) {
        const bool fills = d > 0 && piece * box.extent[d] == strides[d - 1];
        piece *= box.extent[d];
        if (!fills) {
            break;
        }
    }
    *run = piece - local % piece;
    return whole;
}

int64_t lt_box_count_below(const lt_box *box_in, int n_dims, const int64_t *shape, int64_t whole) {
    const lt_box box = widen(box_in, n_dims);
    int64_t strides[LT_PARAM_DIMS], inner = lt_box_count(box_in, n_dims), below = 0;

    strides_of(strides, n_dims, shape);
    for (int d = 0; d < LT_PARAM_DIMS; d++) {
        const int64_t index = whole / strides[d] - box.first[d];
        inner /= box.extent[d];
        if (index < 0) {
            return below;
        }
        if (index >= box.extent[d]) {
            return below + box.extent[d] * inner;
        }
        below += index * inner;
        whole %= strides[d];
    }
    return below;
}

/* The largest piece that begins at element `from` of the box and ends by `to`: a range of indices
 * of one dimension, one index of each dimension before it, and all of those after it. Returns its
 * number of elements. */
static int64_t cut_piece(lt_box *piece, const lt_box *box, int64_t from, int64_t to) {
    int64_t inner = lt_box_count(box, LT_PARAM_DIMS), rest = from;
    *piece = *box;
    for (int d = 0; d < LT_PARAM_DIMS; d++) {
        inner /= box->extent[d];
        const int64_t index = rest / inner, left = box->extent[d] - index;
        rest %= inner;
        piece->first[d] = box->first[d] + index;
        piece->extent[d] = 1;
        if (rest == 0 && to - from >= inner) {
            const int64_t fit = (to - from) / inner;
            piece->extent[d] = fit < left ? fit : left;
            return piece->extent[d] * inner;
        }
    }
    LT_ASSERT(!"one element fits");
    return 1;
}

lt_err lt_box_cut(lt_box_list *out, const lt_box *boxes, int n_boxes, int n_dims, int64_t from,
                  int64_t to) {
    for (int i = 0; i < n_boxes && from < to; i++) {
        const lt_box box = widen(&boxes[i], n_dims);
        const int64_t count = lt_box_count(&box, LT_PARAM_DIMS), end = to < count ? to : count;
        while (from < end) {
            lt_box piece;
            from += cut_piece(&piece, &box, from, end);
            const lt_box cut = narrow(&piece, n_dims);
            LT_TRY(lt_box_add(out, &cut));
        }
        from -= count;
        to -= count;
        from = from > 0 ? from : 0;
    }
    return LT_OK;
}
