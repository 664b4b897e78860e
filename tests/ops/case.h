/* case.h: the one list of op cases. A case is a name, sizes and options; an op's build function
 * turns it into the op's argument struct and declares every tensor of it: name, role, type, shape,
 * how it is filled. Everything that needs shapes reads this list: the four modes of optest (check,
 * grad, golden, bench) and `lateen doctor --ops`.
 *
 * NAMES carry meaning. A backward op is built from the same case as its forward op; where both have
 * a tensor of one name (x, gain, rstd, lse, out, ...), the backward op reads what the forward op
 * was given or computed. Its input "dy" is the gradient of the forward output "y", its output "dx"
 * that of the forward input "x". So no op needs code of its own to be differentiated.
 *
 * TOLERANCE of a result: |got - want| <= rtol |want| + atol max|want|, the maximum over the tensor;
 * want is the reference in F64 on the same (already rounded) inputs. Each op states one pair per
 * element type, and why; integers must be equal. */
#ifndef LT_TESTS_OPS_CASE_H
#define LT_TESTS_OPS_CASE_H

#include "base/rng.h"
#include "tensor/cost.h"
#include "tensor/ops.h"

/* What a case is for. */
enum {
    LT_CASE_CHECK = 1,  /* optest --check: against ref/ in double; small. */
    LT_CASE_GRAD = 2,   /* optest --grad: finite differences; away from kinks. */
    LT_CASE_GOLDEN = 4, /* optest --golden: values of another framework exist. */
    LT_CASE_BENCH = 8,  /* optest --bench and doctor --ops: a shape of a real model. */
    LT_CASE_ALL = LT_CASE_CHECK | LT_CASE_GRAD | LT_CASE_GOLDEN,
};

/* Sizes and options; each op reads those that apply to it. Letters as in ops.h. */
#define LT_CASE_I64_MAP(X)                                                                         \
    X(B)                                                                                           \
    X(T)                                                                                           \
    X(S)                                                                                           \
    X(H)                                                                                           \
    X(G)                                                                                           \
    X(D)                                                                                           \
    X(R)                                                                                           \
    X(C)                                                                                           \
    X(M)                                                                                           \
    X(N)                                                                                           \
    X(K)                                                                                           \
    X(F)                                                                                           \
    X(V)                                                                                           \
    X(E)                                                                                           \
    X(P)                                                                                           \
    X(window)                                                                                      \
    X(capacity)                                                                                    \
    X(act)                                                                                         \
    X(step)                                                                                        \
    X(b_type)                                                                                      \
    X(v_type)                                                                                      \
    X(pack)                                                                                        \
    X(shared)
#define LT_CASE_F32_MAP(X)                                                                         \
    X(scale) X(softcap) X(offset) X(shift) X(z_coef) X(aux_coef) X(grad_scale) X(alpha) X(beta)
#define LT_CASE_BOOL_MAP(X)                                                                        \
    X(causal)                                                                                      \
    X(kv_len)                                                                                      \
    X(doc_start)                                                                                   \
    X(alibi)                                                                                       \
    X(sinks)                                                                                       \
    X(trans_a)                                                                                     \
    X(trans_b)                                                                                     \
    X(accumulate)                                                                                  \
    X(bias)                                                                                        \
    X(residual)                                                                                    \
    X(in_place)                                                                                    \
    X(over_dy)                                                                                     \
    X(gated)                                                                                       \
    X(normalise)                                                                                   \
    X(inverse)                                                                                     \
    X(positions) X(copy) X(extreme) X(packed) X(y_f32) X(y_f16) X(y_f8) X(aligned) X(weights)

typedef struct {
    const char *name;
    int use;
    int dtypes; /* Mask of 1 << dtype of the activations; 0: F32 and BF16. */
#define LT_CASE_I64_FIELD(f)  int64_t f;
#define LT_CASE_F32_FIELD(f)  float f;
#define LT_CASE_BOOL_FIELD(f) bool f;
    LT_CASE_I64_MAP(LT_CASE_I64_FIELD)
    LT_CASE_F32_MAP(LT_CASE_F32_FIELD)
    LT_CASE_BOOL_MAP(LT_CASE_BOOL_FIELD)
} lt_case;

typedef enum { LT_ROLE_IN, LT_ROLE_OUT, LT_ROLE_INOUT, LT_ROLE_SCRATCH } lt_case_role;

#define LT_SETUP_MAX_TENSORS 20
#define LT_SETUP_ARGS_BYTES  2048

typedef struct lt_case_tensor lt_case_tensor;

/* Writes count values; integers are whole numbers. */
typedef void lt_case_fill(double *values, const lt_case_tensor *t, lt_rng *r);

struct lt_case_tensor {
    const char *name;
    lt_tensor *slot; /* The field of the argument struct. */
    lt_case_role role;
    lt_dtype dtype;
    int n_dims;
    int64_t shape[LT_MAX_DIMS], count;
    lt_case_fill *fill;
    double fill_a, fill_b;
    const lt_case *c; /* For fills that need sizes. */
    /* Name of the forward op's tensor from which it takes its values; NULL: fill. */
    const char *source;
    /* Name of the forward op's input of which it is the gradient, or NULL. */
    const char *grad_of;
    const char *alias; /* Name of an earlier tensor whose memory it shares, or NULL. */
    bool adds;         /* INOUT: the result is added to the old values. */
    bool contiguous;   /* Never padded. */
    bool may_be_nan;   /* The result is NaN, and must be. */
    /* OUT of which only a part is written (up to expert_start[E] rows); the rest must stay
     * untouched. */
    bool partial;
    /* The least value that counts as the tensor's largest, for tensors that cancel to about 0. */
    double floor;
    /* Not 0: the op's tolerance is multiplied by it, for a reason given where it is set. */
    double slack;
    /* An F32 result that contains BF16 rounding: judged by the BF16 tolerance in BF16 cases. */
    bool wide;
};

typedef struct {
    _Alignas(64) unsigned char args[LT_SETUP_ARGS_BYTES];
    const lt_case *c;
    lt_dtype act;    /* Type of the activations; if it is F64, everything floating is F64. */
    bool as_forward; /* Run before the backward op of the same case. */
    int n_tensors;
    lt_case_tensor tensors[LT_SETUP_MAX_TENSORS];
} lt_setup;

typedef struct {
    double rtol, atol;
} lt_tolerance;

typedef struct {
    /* forward: the op whose gradient this one is; LT_OP_COUNT if it is no gradient. */
    lt_op op, forward;
    const lt_case *cases;
    int n_cases;
    void (*build)(lt_setup *s);
    /* The function whose gradients are taken; NULL: the sum over outputs y of <dy, y>. f is the
     * forward call, b the backward one; find values by name. */
    double (*objective)(const lt_setup *f, const lt_setup *b);
    lt_tolerance f32, bf16;
    bool exact;      /* The result must be want, rounded once to its type, without tolerance. */
    const char *why; /* The reason for the tolerances. */
} lt_op_cases;

extern const lt_op_cases *const lt_all_op_cases[LT_OP_COUNT];

/* ARG with the nearest name, unless `name` is an op or empty (all ops). */
LT_MUST_USE lt_err lt_op_name_check(const char *name);

#define LT_CASES(rows) .cases = (rows), .n_cases = (int)(sizeof(rows) / sizeof((rows)[0]))

/* Zero the setup, set case and type, and call the op's build function. */
void lt_setup_build(lt_setup *s, const lt_op_cases *o, const lt_case *c, lt_dtype act,
                    bool as_forward);

/* For build functions. slot points into s->args. Floating types become F64 in an F64 setup. Inputs
 * start with a normal fill (mean 0, deviation 1). */
#define LT_SHAPE(...)                                                                              \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) {                 \
        __VA_ARGS__                                                                                \
    }
lt_case_tensor *lt_setup_in(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                            int n_dims, const int64_t *shape);
/* Declare it as the forward op's tensor of this name (see NAMES). */
lt_case_tensor *lt_setup_same(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                              int n_dims, const int64_t *shape);
lt_case_tensor *lt_setup_out(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                             int n_dims, const int64_t *shape);
lt_case_tensor *lt_setup_inout(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                               int n_dims, const int64_t *shape);
/* A gradient that is added to (of parameters). It starts with normal values. */
lt_case_tensor *lt_setup_grad(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                              int n_dims, const int64_t *shape);

lt_case_tensor *lt_setup_find(const lt_setup *s, const char *name); /* NULL if absent. */

/* Point every slot at a view of its declared shape: data is base + offset, and the dimension
 * before the last (in 4-D the second) is padded by `pad` elements. optest uses it with real
 * buffers, doctor with dummy addresses. */
lt_tensor lt_case_view(const lt_case_tensor *t, void *data, int64_t pad);
void lt_setup_place_dummy(lt_setup *s);

/* Bytes of packed weights for matmul (in cases that request it) and matmul_pack on this device;
 * 0: none. The slots must be placed. */
size_t lt_setup_packed_bytes(const lt_setup *s, lt_op op, const lt_device *device);
void lt_setup_set_packed(lt_setup *s, lt_op op, void *packed, size_t bytes);
/* Fill them, unless they are what the op makes. */
lt_err lt_setup_pack(const lt_setup *s, lt_op op, lt_device *device, lt_queue *q, void *packed);

/* Fills. a, b: fill_a, fill_b. */
lt_case_fill lt_fill_normal;  /* mean a, deviation b */
lt_case_fill lt_fill_grid;    /* as normal, rounded to 1/16: the sum of two is exact in BF16 */
lt_case_fill lt_fill_uniform; /* [a, b) */
lt_case_fill lt_fill_away;    /* normal, deviation b, but at least a away from 0 */
lt_case_fill lt_fill_ids;     /* whole numbers in [a, b) */
lt_case_fill lt_fill_count;   /* 0, 1, 2, ... modulo b */

/* "B2 T128 H8 D64 causal": the sizes and options of a case that are set. */
void lt_case_text(const lt_case *c, char *out, size_t out_bytes);

/* The list of each op, defined in the file of its family: lt_cases_<op>. */
#define LT_CASE_LIST_DECLARE(name, args) extern const lt_op_cases lt_cases_##name;
LT_OP_MAP(LT_CASE_LIST_DECLARE)
#undef LT_CASE_LIST_DECLARE

#endif
