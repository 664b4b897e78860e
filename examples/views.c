/* lateen/tensor.h: a view of part of a matrix, and conversion to bf16. */
#include <stdio.h>

#include "lateen/tensor.h"

int main(void) {
    float data[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8.01f}};
    const lt_tensor all = lt_tensor_2d(data, LT_F32, 2, 4);
    /* Columns 2 and 3, the same rows: nothing is copied. */
    const lt_tensor right = lt_tensor_cols(&all, 2, 2);
    uint16_t bf16[2];

    lt_convert(bf16, LT_BF16, (const float *)right.data + right.stride[0], LT_F32, 2);
    printf("%lld x %lld, row 1: %g %g\n", (long long)right.shape[0], (long long)right.shape[1],
           (double)lt_bf16_to_f32(bf16[0]), (double)lt_bf16_to_f32(bf16[1]));
    return 0;
}
