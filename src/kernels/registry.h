/* registry.h: which implementation serves which shape. For every op of a backend stands an ordered list; the first entry that does not refuse the
 * arguments runs, and the last is the reference, which refuses nothing. `lateen doctor --ops` prints choice and refusals from the same
 * table, and optest runs every entry that accepts a case, not only the chosen one. */
#ifndef LT_KERNELS_REGISTRY_H
#define LT_KERNELS_REGISTRY_H

#include "tensor/ops.h"

typedef struct {
    const char *name; /* "onednn", "avx512", "avx2", "portable", "ref" */
    /* NULL accepts; else why not, in a few words ("needs AVX512-BF16", "rows not contiguous"). A NULL function accepts all. */
    const char *(*refuse)(const void *args);
    lt_err (*run)(lt_queue *q, const void *args);
} lt_op_impl;

typedef struct {
    const lt_op_impl *impls;
    int n_impls;
} lt_op_list;

/* The list of one op of a backend: "ref" has one entry an op; "cpu" has its own entries, then ref's. */
lt_op_list lt_registry_list(const lt_backend *backend, lt_op op);

/* The entry that serves these arguments; *refusals (may be NULL) gets one line a refusing entry. */
const lt_op_impl *lt_registry_choose(lt_op_list list, const void *args, char *refusals, int refusals_bytes);

#endif
