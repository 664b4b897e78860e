/* lora.c (ref): adapters, where each row may have another one. ops.h has the formula. */
#include "kernels/host.h"
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

lt_err lt_ref_matmul_lora(lt_queue *q, const lt_matmul_lora_args *a) {
    return lt_matmul_lora_in_parts(lt_backend_ref()->ops, q, a);
}

static void shrink_row(const lt_lora_add_args *a, int64_t row, int64_t place) {
    const int64_t rank = a->b.shape[1];
    for (int64_t j = 0; j < a->u.shape[1]; j++) {
        double sum = 0.0;
        for (int64_t k = 0; k < a->x.shape[1]; k++) {
            sum += get(&a->x, at2(&a->x, row, k)) *
                   get(&a->a, at4(&a->a, place, j / rank, j % rank, k));
        }
        set(&a->u, at2(&a->u, row, j), sum);
    }
}

static void expand_row(const lt_lora_add_args *a, const lt_lora_add_part *p, int64_t first_of_u,
                       int64_t row, int64_t place) {
    const int64_t rank = a->b.shape[1];
    const double scale = present(&a->scale) ? get(&a->scale, at1(&a->scale, row)) : 1.0;
    for (int64_t c = 0; c < p->columns; c++) {
        const int64_t to = at2(&a->y, row, p->first_of_y + c);
        double sum = 0.0;
        for (int64_t r = 0; r < rank; r++) {
            sum += get(&a->u, at2(&a->u, row, first_of_u + r)) *
                   get(&a->b, at3(&a->b, place, r, p->first_of_b + c));
        }
        set(&a->y, to, get(&a->y, to) + scale * sum);
    }
}

lt_err lt_ref_lora_add(lt_queue *q, const lt_lora_add_args *a) {
    (void)q;
#pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < a->x.shape[0]; row++) {
        const int64_t place = get_i32(&a->place, at1(&a->place, row));
        if (place < 0) {
            continue;
        }
        shrink_row(a, row, place);
        for (int i = 0; i < a->n_parts; i++) {
            expand_row(a, &a->parts[i], i * a->b.shape[1], row, place);
        }
    }
    return LT_OK;
}

lt_err lt_ref_lora_scale(lt_queue *q, const lt_lora_scale_args *a) {
    (void)q;
    for (int64_t row = 0; row < a->y.shape[0]; row++) {
        const int64_t place = get_i32(&a->place, at1(&a->place, row));
        for (int64_t c = 0; place >= 0 && c < a->y.shape[1]; c++) {
            const int64_t at = at2(&a->y, row, c);
            const double offset = present(&a->offset) ? get(&a->offset, at2(&a->offset, place, c))
                                                      : 0.0;
            set(&a->y, at, get(&a->factor, at2(&a->factor, place, c)) * get(&a->y, at) + offset);
        }
    }
    return LT_OK;
}
