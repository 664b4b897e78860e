/* known.c: see known.h. */
#include "platform/health/known.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "platform/copy/digest.h"

static int element(int64_t row, int64_t k, bool is_b) {
    const int64_t i = row % LT_KNOWN_PERIOD;
    return is_b ? (int)((i * 11 + k * 3 + (i * k) % 7) % 5) - 2
                : (int)((i * 7 + k * 13 + (i * k) % 11) % 5) - 2;
}

void lt_known_fill(void *out, lt_dtype dtype, int64_t side, bool is_b) {
    LT_ASSERT(side % LT_KNOWN_PERIOD == 0 && (dtype == LT_F32 || dtype == LT_BF16));
    for (int64_t i = 0; i < side * LT_KNOWN_K; i++) {
        const float x = (float)element(i / LT_KNOWN_K, i % LT_KNOWN_K, is_b);
        uint32_t bits;
        if (dtype == LT_F32) {
            ((float *)out)[i] = x;
            continue;
        }
        memcpy(&bits, &x, sizeof bits);
        ((uint16_t *)out)[i] = (uint16_t)(bits >> 16); /* Exact for small whole numbers. */
    }
}

/* Bits are compared, not values: a NaN or a -0 is wrong. */
static bool tiles_equal(const float *y, int64_t side) {
    for (int64_t i = 0; i < side; i++) {
        const float *first = y + i % LT_KNOWN_PERIOD * side;
        for (int64_t j = 0; j < side; j += LT_KNOWN_PERIOD) {
            if (memcmp(y + i * side + j, first, LT_KNOWN_PERIOD * sizeof *y) != 0) {
                return false;
            }
        }
    }
    return true;
}

lt_err lt_known_check(bool *holds, const float *y, int64_t side, int rounds) {
    lt_err err = LT_OK;
    const int64_t n = LT_KNOWN_PERIOD;
    char hex[LT_DIGEST_TEXT_BYTES];
    float *tile = malloc((size_t)(n * n) * sizeof *tile);

    LT_ASSERT(side % n == 0 && rounds >= 1 && rounds <= LT_KNOWN_ROUNDS);
    if (tile == NULL) {
        LT_FAIL(LT_ERR_OOM, "check of a product");
    }
    for (int64_t i = 0; i < n * n; i++) {
        tile[i] = y[i / n * side + i % n] / (float)rounds;
    }
    LT_TRY_DONE(lt_digest_hex(hex, LT_DIGEST_SHA256, tile, (size_t)(n * n) * sizeof *tile));
    *holds = strcmp(hex, LT_KNOWN_SHA256) == 0 && tiles_equal(y, side);
done:
    free(tile);
    return err;
}
