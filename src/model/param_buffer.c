/* param_buffer.c: buffers over a parameter table, with a base pointer for each unit. See
 * params.h. */
#include <stdlib.h>

#include "base/error.h"
#include "model/params.h"
#include "tensor/ops.h"

lt_err lt_param_buffer_open(lt_param_buffer *b, const lt_param_table *t, lt_dtype dtype) {
    *b = (lt_param_buffer){.dtype = dtype};
    b->base = calloc((size_t)t->n_units, sizeof *b->base);
    if (b->base == NULL) {
        LT_FAIL(LT_ERR_OOM, "places of %d units", t->n_units);
    }
    return LT_OK;
}

void lt_param_buffer_close(lt_param_buffer *b) {
    free(b->base);
    *b = (lt_param_buffer){0};
}

size_t lt_param_buffer_bytes(const lt_param_table *t, lt_dtype dtype) {
    return (size_t)t->n_elements * lt_dtype_bytes(dtype);
}

void lt_param_buffer_place(lt_param_buffer *b, const lt_param_table *t, void *flat) {
    const size_t each = lt_dtype_bytes(b->dtype);
    LT_ASSERT(b->base != NULL);
    b->flat = flat;
    for (int u = 0; u < t->n_units; u++) {
        const lt_unit *unit = &t->units[u];
        LT_ASSERT(unit->at >= 0 && unit->at + unit->n_elements <= t->n_elements);
        b->base[u] = unit->n_elements > 0 ? (char *)flat + (size_t)unit->at * each : NULL;
    }
}

void *lt_param_data(const lt_param_buffer *b, const lt_param *p) {
    char *base = b->base != NULL ? b->base[p->unit] : NULL;
    LT_ASSERT(p->at >= 0); /* It is not a stored weight. */
    return base != NULL && p->local_count > 0 ? base + (size_t)p->at * lt_dtype_bytes(b->dtype)
                                              : NULL;
}

float *lt_param_floats(const lt_param_buffer *b) {
    LT_ASSERT(b->dtype == LT_F32 && b->flat != NULL);
    return b->flat;
}

lt_tensor lt_param_view(const lt_param_table *t, lt_param_kind kind, int layer,
                        const lt_param_buffer *b) {
    const int index = lt_param_index(t, kind, layer);
    const lt_param *p;
    void *data;

    if (index < 0 || b->base == NULL) {
        return (lt_tensor){0};
    }
    p = &t->params[index];
    LT_ASSERT(p->kind == kind && (p->layer < 0 || p->layer == layer));
    data = lt_param_data(b, p);
    if (data == NULL) {
        return (lt_tensor){0};
    }
    return p->local_dims == 1   ? lt_tensor_1d(data, b->dtype, p->local_shape[0])
           : p->local_dims == 2 ? lt_tensor_2d(data, b->dtype, p->local_shape[0], p->local_shape[1])
                                : lt_tensor_3d(data, b->dtype, p->local_shape[0], p->local_shape[1],
                                               p->local_shape[2]);
}
