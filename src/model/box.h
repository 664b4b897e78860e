/* box.h: boxes of a tensor: determines which elements of the whole a list of boxes holds, and in
 * which order.
 *
 * A box is a range of indices in each dimension. A list of boxes that do not overlap holds their
 * elements one box after the other, each row-major; `local` counts elements in that order, `whole`
 * row-major in the whole tensor. */
#ifndef LT_MODEL_BOX_H
#define LT_MODEL_BOX_H

#include "lateen/base.h"

#include <stdbool.h>
#include <stdint.h>

#define LT_PARAM_DIMS 3

/* Indices [first, first + extent) in each dimension. */
typedef struct {
    int64_t first[LT_PARAM_DIMS], extent[LT_PARAM_DIMS];
} lt_box;

/* A growing list of boxes. Begin with {0}; free(list.boxes). */
typedef struct {
    lt_box *boxes;
    int n, room;
} lt_box_list;

LT_MUST_USE lt_err lt_box_add(lt_box_list *list, const lt_box *box);
int64_t lt_box_count(const lt_box *box, int n_dims); /* Elements. */
bool lt_box_intersect(lt_box *out, const lt_box *a, const lt_box *b, int n_dims);

/* Position in the box of the element with these indices in the whole. */
int64_t lt_box_local_index(const lt_box *box, int n_dims, const int64_t *index);

/* Index in the whole of element `local` of the boxes; *run: number of elements from there on that
 * are contiguous in the whole, too. */
int64_t lt_box_whole_index(const lt_box *boxes, int n_boxes, int n_dims, const int64_t *shape,
                           int64_t local, int64_t *run);

/* Number of elements of the box whose index in the whole is below `whole`. They are the first ones
 * of the box. */
int64_t lt_box_count_below(const lt_box *box, int n_dims, const int64_t *shape, int64_t whole);

/* Elements [from, to) of the boxes, counted locally, as boxes themselves: a flat range of a whole
 * tensor is at most five of them. */
LT_MUST_USE lt_err lt_box_cut(lt_box_list *out, const lt_box *boxes, int n_boxes, int n_dims,
                              int64_t from, int64_t to);

#endif
