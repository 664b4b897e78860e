/* registry.h: selects the implementation for a shape. Every op of a backend has an ordered list;
 * the first entry that does not refuse the arguments runs, and the last is the reference, which
 * refuses nothing. `lateen doctor --ops` prints choice and refusals from the same table, and optest
 * runs every entry that accepts a case, not only the chosen one. */
#ifndef LT_KERNELS_REGISTRY_H
#define LT_KERNELS_REGISTRY_H

#include "tensor/ops.h"

typedef struct {
    const char *name; /* "onednn", "avx512", "avx2", "portable", "ref" */
    /* Can the device run these arguments? Returns NULL if so, otherwise the reason in a few words
     * ("needs AVX512-BF16", "rows not contiguous"). A NULL function accepts all arguments. On a
     * CPU, device may be NULL. */
    const char *(*refuse)(const void *args, const lt_device *device);
    lt_err (*run)(lt_queue *q, const void *args);
} lt_op_impl;

struct lt_op_list {
    const lt_op_impl *impls;
    int n_impls;
};

#define LT_REGISTRY_MAX_IMPLS 16 /* Entries of one list, the reference included. */

/* The list for one op of a backend: "ref" has one entry per op; "cpu" has its own entries, then
 * those of ref. */
lt_op_list lt_registry_list(const lt_backend *backend, lt_op op);

/* The entry that serves these arguments. *refusals (may be NULL) gets one line "name: why" for
 * each entry that refuses. NULL if all refuse, which never happens if the list ends with the
 * reference. */
const lt_op_impl *lt_registry_choose(lt_op_list list, const void *args, const lt_device *device,
                                     char *refusals, int refusals_bytes);

/* Run the entry that serves these arguments on the queue's device; the message of a failure
 * starts with "op/implementation: ". UNSUPPORTED if all refuse. */
LT_MUST_USE lt_err lt_registry_run(const lt_op_list *list, lt_op op, lt_queue *q, const void *args);

/* How a backend's file generates its op table from its lists (LT_REGISTRY_LISTS: an array of
 * LT_OP_COUNT lt_op_list):
 *     #define LT_REGISTRY_LISTS lt_ref_lists
 *     LT_OP_MAP(LT_HOST_TRAMPOLINE), of host.h, or a macro of its own that calls lt_registry_run
 *     static const lt_ops ops = {LT_OP_MAP(LT_REGISTRY_FIELD)}; */
#define LT_REGISTRY_FIELD(name, args) .name = call_##name,

#endif
