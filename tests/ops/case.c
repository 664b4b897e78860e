/* case.c: declaring the tensors of a case (see case.h). */
#include "ops/case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "kernels/registry.h"

const lt_op_cases *const lt_all_op_cases[LT_OP_COUNT] = {
#define CASE_LIST(name, args) [LT_OP_##name] = &lt_cases_##name,
    LT_OP_MAP(CASE_LIST)
#undef CASE_LIST
};

#define ARGS_FIT(name, args) _Static_assert(sizeof(args) <= LT_SETUP_ARGS_BYTES, #args);
LT_OP_MAP(ARGS_FIT)

lt_err lt_op_name_check(const char *name) {
    const char *names[LT_OP_COUNT], *nearest;
    for (int op = 0; op < LT_OP_COUNT; op++) {
        names[op] = lt_op_name((lt_op)op);
        if (name[0] == '\0' || strcmp(name, names[op]) == 0) {
            return LT_OK;
        }
    }
    nearest = lt_name_nearest(name, names, LT_OP_COUNT);
    LT_FAIL(LT_ERR_ARG, "no op '%s'%s%s%s", name, nearest != NULL ? "; did you mean '" : "",
            nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

void lt_setup_build(lt_setup *s, const lt_op_cases *o, const lt_case *c, lt_dtype act,
                    bool as_forward) {
    memset(s, 0, sizeof *s);
    s->c = c;
    s->act = act;
    s->as_forward = as_forward;
    o->build(s);
}

static bool floating(lt_dtype dtype) {
    return dtype == LT_F32 || dtype == LT_BF16 || dtype == LT_F16 || dtype == LT_F64;
}

static lt_case_tensor *declare(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                               int n_dims, const int64_t *shape, lt_case_role role) {
    lt_case_tensor *t = &s->tensors[s->n_tensors];

    LT_ASSERT(s->n_tensors < LT_SETUP_MAX_TENSORS && n_dims >= 1 && n_dims <= LT_MAX_DIMS);
    LT_ASSERT((unsigned char *)slot >= s->args && (unsigned char *)slot < s->args + sizeof s->args);
    s->n_tensors++;
    *t = (lt_case_tensor){.name = name,
                          .slot = slot,
                          .role = role,
                          .n_dims = n_dims,
                          .count = 1,
                          .c = s->c,
                          .fill = lt_fill_normal,
                          .fill_b = 1.0};
    t->dtype = s->act == LT_F64 && floating(dtype) ? LT_F64 : dtype;
    for (int i = 0; i < n_dims; i++) {
        t->shape[i] = shape[i];
        t->count *= shape[i];
    }
    return t;
}

lt_case_tensor *lt_setup_in(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                            int n_dims, const int64_t *shape) {
    return declare(s, name, slot, dtype, n_dims, shape, LT_ROLE_IN);
}

lt_case_tensor *lt_setup_same(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                              int n_dims, const int64_t *shape) {
    lt_case_tensor *t = declare(s, name, slot, dtype, n_dims, shape, LT_ROLE_IN);
    t->source = name;
    return t;
}

lt_case_tensor *lt_setup_out(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                             int n_dims, const int64_t *shape) {
    lt_case_tensor *t = declare(s, name, slot, dtype, n_dims, shape, LT_ROLE_OUT);
    t->grad_of = name[0] == 'd' ? name + 1 : NULL;
    return t;
}

lt_case_tensor *lt_setup_inout(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                               int n_dims, const int64_t *shape) {
    return declare(s, name, slot, dtype, n_dims, shape, LT_ROLE_INOUT);
}

lt_case_tensor *lt_setup_grad(lt_setup *s, const char *name, lt_tensor *slot, lt_dtype dtype,
                              int n_dims, const int64_t *shape) {
    lt_case_tensor *t = declare(s, name, slot, dtype, n_dims, shape, LT_ROLE_INOUT);
    t->adds = true;
    t->grad_of = name[0] == 'd' ? name + 1 : NULL;
    return t;
}

lt_case_tensor *lt_setup_find(const lt_setup *s, const char *name) {
    for (int i = 0; i < s->n_tensors; i++) {
        if (strcmp(s->tensors[i].name, name) == 0) {
            return (lt_case_tensor *)&s->tensors[i];
        }
    }
    return NULL;
}

lt_tensor lt_case_view(const lt_case_tensor *t, void *data, int64_t pad) {
    lt_tensor v = {.data = data, .n_dims = t->n_dims, .dtype = t->dtype};
    const int padded = t->contiguous || t->n_dims == 1 ? -1 : t->n_dims == 4 ? 1 : 0;
    int64_t stride = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        v.shape[i] = t->shape[i];
        v.stride[i] = i == padded ? stride + pad : stride;
        stride = v.stride[i] * t->shape[i];
    }
    return v;
}

void lt_setup_place_dummy(lt_setup *s) {
    for (int i = 0; i < s->n_tensors; i++) {
        *s->tensors[i].slot = lt_case_view(&s->tensors[i], s->args, 0);
    }
}

/* The matrix that is packed for a product: of experts, all of them below one another. */
static lt_tensor packed_matrix(const lt_setup *s, lt_op op, bool *trans_b) {
    const lt_matmul_args *m = (const lt_matmul_args *)s->args;
    const lt_matmul_grouped_args *g = (const lt_matmul_grouped_args *)s->args;
    const lt_matmul_pack_args *p = (const lt_matmul_pack_args *)s->args;
    *trans_b = op == LT_OP_matmul_pack      ? p->trans_b
               : op == LT_OP_matmul_grouped ? g->trans_b
                                            : m->trans_b;
    return op == LT_OP_matmul_pack ? p->b
           : op == LT_OP_matmul_grouped
               ? lt_tensor_2d(g->b.data, g->b.dtype, g->b.shape[0] * g->b.shape[1], g->b.shape[2])
               : m->b;
}

size_t lt_setup_packed_bytes(const lt_setup *s, lt_op op, const lt_device *device) {
    bool trans_b;
    const bool asks = op == LT_OP_matmul_pack ||
                      ((op == LT_OP_matmul || op == LT_OP_matmul_grouped) && s->c->packed);
    if (!asks) {
        return 0;
    }
    const lt_tensor b = packed_matrix(s, op, &trans_b);
    return device->backend->matmul_pack_bytes(device, &b, trans_b);
}

void lt_setup_set_packed(lt_setup *s, lt_op op, void *packed, size_t bytes) {
    if (op == LT_OP_matmul_pack) {
        ((lt_matmul_pack_args *)s->args)->dst = packed;
    } else if (op == LT_OP_matmul_grouped) {
        lt_matmul_grouped_args *a = (lt_matmul_grouped_args *)s->args;
        a->b_packed = packed, a->packed_step = bytes / (size_t)a->b.shape[0];
    } else {
        ((lt_matmul_args *)s->args)->b_packed = packed;
    }
}

lt_err lt_setup_pack(const lt_setup *s, lt_op op, lt_device *device, lt_queue *q, void *packed) {
    lt_matmul_pack_args a = {.dst = packed};
    if (packed == NULL || op == LT_OP_matmul_pack) {
        return LT_OK;
    }
    a.b = packed_matrix(s, op, &a.trans_b);
    return device->backend->ops->matmul_pack(q, &a);
}

void lt_fill_normal(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = t->fill_a + t->fill_b * lt_rng_normal(r);
    }
}

void lt_fill_grid(double *values, const lt_case_tensor *t, lt_rng *r) {
    lt_fill_normal(values, t, r);
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = round(values[i] * 16.0) / 16.0;
    }
}

void lt_fill_uniform(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = t->fill_a + (t->fill_b - t->fill_a) * lt_rng_uniform(r);
    }
}

void lt_fill_away(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        const double x = t->fill_b * lt_rng_normal(r);
        values[i] = x < 0.0 ? x - t->fill_a : x + t->fill_a;
    }
}

void lt_fill_ids(double *values, const lt_case_tensor *t, lt_rng *r) {
    const uint64_t n = (uint64_t)(t->fill_b - t->fill_a);
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = t->fill_a + (double)lt_rng_below(r, n);
    }
}

void lt_fill_count(double *values, const lt_case_tensor *t, lt_rng *r) {
    (void)r;
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = (double)(i % (int64_t)t->fill_b);
    }
}

void lt_case_text(const lt_case *c, char *out, size_t out_bytes) {
    size_t used = 0;
    out[0] = '\0';
#define TEXT(...)                                                                                  \
    if (used < out_bytes) {                                                                        \
        used += (size_t)snprintf(out + used, out_bytes - used, __VA_ARGS__);                       \
    }
#define TEXT_I64(f)                                                                                \
    if (c->f != 0 && strcmp(#f, "act") != 0) {                                                     \
        TEXT("%s%s%s%lld", used > 0 ? " " : "", #f, sizeof #f > 2 ? " " : "", (long long)c->f)     \
    }
#define TEXT_BOOL(f)                                                                               \
    if (c->f) {                                                                                    \
        TEXT("%s%s", used > 0 ? " " : "", #f)                                                      \
    }
    LT_CASE_I64_MAP(TEXT_I64)
    LT_CASE_BOOL_MAP(TEXT_BOOL)
}
