/* slice.h: a unit's elements in n slices of equal size, of which the last may be shorter or empty.
 * ZeRO divides units like this, and each rank sums the squares of its slice. Boundaries are
 * multiples of LT_PARAM_ALIGN. */
#ifndef LT_PARALLEL_SLICE_H
#define LT_PARALLEL_SLICE_H

#include "model/params.h"

typedef struct {
    int64_t first, end; /* Elements of the unit, gaps included. */
} lt_slice;

static inline int64_t lt_slice_size(int64_t n_elements, int n) {
    const int64_t each = (n_elements + n - 1) / n;
    return (each + LT_PARAM_ALIGN - 1) / LT_PARAM_ALIGN * LT_PARAM_ALIGN;
}

static inline lt_slice lt_slice_of(int64_t n_elements, int n, int i) {
    const int64_t size = lt_slice_size(n_elements, n), first = i * size, end = first + size;
    return (lt_slice){first < n_elements ? first : n_elements, end < n_elements ? end : n_elements};
}

#endif
