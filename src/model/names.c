/* names.c: see names.h. */
#include "model/names.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

void lt_name_format(char out[LT_FOREIGN_NAME_BYTES], const char *pattern, int layer, int64_t expert) {
    size_t n = 0;
    for (const char *p = pattern; *p != '\0' && n + 24 < LT_FOREIGN_NAME_BYTES; p++) {
        if (p[0] == '%' && (p[1] == 'L' || p[1] == 'E')) {
            n += (size_t)snprintf(out + n, 24, "%lld", p[1] == 'L' ? (long long)layer : (long long)expert);
            p++;
        } else {
            out[n++] = *p;
        }
    }
    out[n] = '\0';
}

bool lt_name_has_expert(const lt_name_row *row) {
    return strstr(row->name, "%E") != NULL;
}

bool lt_name_applies(const lt_name_row *row, const lt_model_spec *spec) {
    return row->part != LT_PART_GATE || spec->gated;
}

bool lt_param_kind_is_norm(lt_param_kind kind) {
    return kind == LT_PARAM_NORM1 || kind == LT_PARAM_NORM2 || kind == LT_PARAM_POST_NORM1 || kind == LT_PARAM_POST_NORM2 ||
           kind == LT_PARAM_Q_NORM || kind == LT_PARAM_K_NORM || kind == LT_PARAM_FINAL_NORM;
}

void lt_name_place_of(lt_name_place *out, const lt_model_spec *spec, const lt_param *param, const lt_name_row *row,
                      int64_t expert, int n_dims) {
    const bool has_experts = param->n_dims == 3;
    const int64_t cols = param->n_dims == 1 ? 1 : param->shape[param->n_dims - 1];
    const int64_t rows_all = param->shape[has_experts ? 1 : 0];
    int64_t from = 0, rows = rows_all;

    if (row->part != LT_PART_ALL && (row->part != LT_PART_UP || spec->gated)) {
        lt_part_rows(spec, param->kind, row->part, &from, &rows);
    }
    LT_ASSERT(from + rows <= rows_all);
    *out = (lt_name_place){.kind = param->kind, .part = row->part, .rows = rows, .cols = cols, .turned = row->transpose};
    out->n_experts = has_experts ? param->shape[0] : 1;
    out->expert_stride = has_experts ? rows_all * cols : 0;
    out->stacked = has_experts && !lt_name_has_expert(row) && (n_dims == 0 || n_dims == 3);
    out->first = param->offset + from * cols + (lt_name_has_expert(row) ? expert * out->expert_stride : 0);
}
