/* world.h: runs a case: buffers on a backend are filled, an op is called, and the results are
 * read back.
 *
 * Every tensor lives in a block of its own between two guards; in a strided world its rows are
 * padded and it starts one element off alignment. Guards and gaps hold a pattern, results and
 * scratch hold NaN before the call. After the call everything outside the results must be as it
 * was. Values travel as contiguous doubles, whatever the type and strides. */
#ifndef LT_TESTS_OPS_WORLD_H
#define LT_TESTS_OPS_WORLD_H

#include "kernels/registry.h"
#include "ops/case.h"

typedef struct {
    unsigned char *image, *before; /* Host copies: now, and as uploaded. */
    void *device;
    size_t bytes, start; /* Size of the block; where the tensor starts in it. */
} lt_world_block;

typedef struct {
    lt_device *device;
    const lt_backend *backend; /* The device's backend. */
    lt_queue *queue;
    lt_op op;
    lt_setup setup;
    /* Empty for a tensor that shares the memory of another. */
    lt_world_block blocks[LT_SETUP_MAX_TENSORS];
    void *packed;
    size_t packed_bytes;
} lt_world;

/* The reference device, which is the oracle. */
lt_device *lt_world_ref(void);

/* The values of a setup's tensors, by index; NULL if not known yet. */
typedef struct {
    double *values[LT_SETUP_MAX_TENSORS];
} lt_values;

lt_err lt_world_open(lt_world *w, lt_device *device, const lt_op_cases *o, const lt_case *c,
                     lt_dtype act, bool as_forward, bool strided);
void lt_world_close(lt_world *w); /* Accepts a zeroed world. */

/* Write a tensor (rounded to its type) or read it. */
void lt_world_put(lt_world *w, int tensor, const double *values);
void lt_world_get(const lt_world *w, int tensor, double *values);

/* Prepare every block: guard patterns, poison, the inputs in v. */
void lt_world_fill(lt_world *w, const lt_values *v);

/* Upload the blocks as they were filled, call the op, wait, and download. It may be called
 * repeatedly. */
LT_MUST_USE lt_err lt_world_run(lt_world *w, const lt_op_impl *impl);

/* NULL, or a description of what was written outside the results. */
const char *lt_world_damage(const lt_world *w);

/* The tensor that owns t's memory: itself, or the one it shares. */
int lt_world_owner(const lt_setup *s, int tensor);

/* The origin of input values: writes t->count values. */
typedef lt_err lt_values_from(double *values, const lt_case_tensor *t, void *ctx);
/* The tensor's fill, seeded by the names of case and tensor; ctx is not used. */
lt_values_from lt_values_fill;

/* Make the inputs of a setup, rounded to the tensors' types. Tensors with a source get their
 * values from a run of the forward op by the reference in F64, on inputs of the same origin. Free
 * with lt_values_free. */
LT_MUST_USE lt_err lt_values_make(lt_values *v, const lt_setup *s, const lt_op_cases *o,
                                  lt_values_from *from, void *ctx);
void lt_values_free(lt_values *v);

/* Round values as the type would store them. */
void lt_round_to(lt_dtype dtype, double *values, int64_t n);

/* Results of the reference in F64 for inputs v (a setup of any type with the same tensors): want
 * gets the values of every result. */
LT_MUST_USE lt_err lt_values_want(lt_values *want, const lt_op_cases *o, const lt_case *c,
                                  const lt_values *v);

/* Worst |got - want| / tolerance over a tensor; *worst_at its index; > 1 fails. NaN results where
 * want is not NaN give INFINITY. */
double lt_compare(const double *got, const double *want, const lt_case_tensor *t, lt_tolerance tol,
                  int64_t *worst_at);

/* The tolerance of one result in a case of this activation type. */
lt_tolerance lt_tolerance_of(const lt_op_cases *o, const lt_case_tensor *t, lt_dtype act);

#endif
