/* score_ends.c: see score_ends.h. */
#include "model/pass/score_ends.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lateen/tensor.h"

/* Read a tensor of this many rows and columns (cols 0: one dimension) as F32. */
static lt_err read_tensor(float *out, const lt_source *s, const char *name, int64_t rows,
                          int64_t cols) {
    const int64_t n = cols > 0 ? rows * cols : rows;
    lt_weight w;
    bool found = false;
    LT_TRY(lt_source_find(s, name, &w, &found));
    if (!found) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s is missing: the head has two layers", s->path, name);
    }
    if (w.n_dims != (cols > 0 ? 2 : 1) || w.shape[0] != rows || (cols > 0 && w.shape[1] != cols)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s has not the shape of %lld x %lld", s->path, name,
                (long long)rows, (long long)(cols > 0 ? cols : 1));
    }
    lt_convert(out, LT_F32, w.data, w.type, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(out[i])) {
            LT_FAIL(LT_ERR_FORMAT, "%s: tensor %s: element %lld is not finite", s->path, name,
                    (long long)i);
        }
    }
    return LT_OK;
}

lt_err lt_score_ends_read(lt_model *m, const lt_source *s) {
    const int64_t rows = m->spec.score_ends, cols = m->spec.n_scores;
    m->score_ends = malloc((size_t)(rows * cols + rows) * sizeof *m->score_ends);
    if (m->score_ends == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: the score head", s->path);
    }
    LT_TRY(read_tensor(m->score_ends, s, "score.2.weight", rows, cols));
    return read_tensor(m->score_ends + rows * cols, s, "score.2.bias", rows, 0);
}

void lt_score_ends_of(const lt_model *m, const float *values, float *out) {
    const int64_t rows = m->spec.score_ends, cols = m->spec.n_scores;
    if (rows == 0) {
        memcpy(out, values, (size_t)cols * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        double sum = (double)m->score_ends[rows * cols + i];
        for (int64_t k = 0; k < cols; k++) {
            sum += (double)m->score_ends[i * cols + k] * (double)fmaxf(values[k], 0.0f);
        }
        out[i] = (float)sum;
    }
}
