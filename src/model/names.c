/* names.c: see names.h. */
#include "model/names.h"

#include <string.h>

#include "base/error.h"

bool lt_name_has_expert(const lt_name_row *row) {
    return strstr(row->name, "%E") != NULL;
}

/* Some architectures of GGUF keep gate and up in one tensor, under the name of up in the others;
 * one has the MLP's norm under another name. */
static bool of_other_family(const lt_name_row *row, const lt_model_spec *spec) {
    const lt_gguf_traits *traits = &lt_family_get(spec->family)->gguf;
    if (strncmp(row->name, "blk.", 4) != 0) {
        return false;
    }
    if (row->kind == LT_PARAM_NORM2) {
        return (strstr(row->name, "post_attention") != NULL) != traits->norm2_is_post;
    }
    return row->kind == LT_PARAM_UP && (row->part == LT_PART_ALL) != traits->fused_up;
}

/* Whether the name is for experts' matrices and the parameter is not, or vice versa. */
static bool of_other_mlp(const lt_name_row *row, const lt_param *param) {
    const bool mlp = row->kind == LT_PARAM_UP || row->kind == LT_PARAM_UP_BIAS ||
                     row->kind == LT_PARAM_DOWN || row->kind == LT_PARAM_DOWN_BIAS;
    const bool experts = lt_name_has_expert(row) || strstr(row->name, "experts") != NULL ||
                         strstr(row->name, "_exps") != NULL;
    return mlp && experts != param->experts;
}

/* A score head of two layers has other names. */
static bool of_other_head(const lt_name_row *row, const lt_model_spec *spec) {
    const bool is_score = row->kind == LT_PARAM_SCORE || row->kind == LT_PARAM_SCORE_BIAS;
    return is_score && (strncmp(row->name, "score.0.", 8) == 0) != (spec->score_ends > 0);
}

bool lt_name_applies(const lt_name_row *row, const lt_model_spec *spec, const lt_param *param) {
    int64_t from, rows = 0;
    if (row->kind == param->kind && !of_other_family(row, spec) && !of_other_mlp(row, param) &&
        !of_other_head(row, spec)) {
        lt_part_rows(spec, param, row->part, &from, &rows);
    }
    return rows > 0;
}

/* Whether the name has the form of the pattern; *layer: the layer in it. */
static bool comes_of(const char *pattern, const char *name, int64_t *layer) {
    *layer = 0;
    for (; *pattern != '\0'; pattern++) {
        if (pattern[0] == '%' && (pattern[1] == 'L' || pattern[1] == 'E')) {
            int64_t number = 0;
            if (*name < '0' || *name > '9') {
                return false;
            }
            for (; *name >= '0' && *name <= '9' && number < 1000000; name++) {
                number = number * 10 + (*name - '0');
            }
            *layer = pattern[1] == 'L' ? number : *layer;
            pattern++;
        } else if (*pattern != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

bool lt_name_is_read(const lt_name_row *rows, int n_rows, const lt_model_spec *spec,
                     const lt_param_table *table, const char *name) {
    const lt_family_row *family = lt_family_get(spec->family);
    int64_t layer;
    if (spec->score_ends > 0 && strncmp(name, "score.2.", 8) == 0) {
        return true; /* score_ends.c reads this tensor. */
    }
    for (int i = 0; i < family->n_constants; i++) {
        if (comes_of(family->constants[i].name, name, &layer)) {
            return true;
        }
    }
    for (int i = 0; i < n_rows; i++) {
        if (!comes_of(rows[i].name, name, &layer)) {
            continue;
        }
        if (rows[i].kind == LT_PARAM_HEAD && spec->tied) {
            return true; /* It is a copy of the embedding. */
        }
        if (layer < spec->n_layers) {
            const int at = lt_param_index(table, rows[i].kind, (int)layer);
            return at >= 0 && lt_name_applies(&rows[i], spec, &table->params[at]);
        }
    }
    return false;
}

const lt_name_row *lt_name_row_of(const lt_name_row *rows, int n_rows, const lt_model_spec *spec,
                                  const lt_param_table *table, const char *name, int *at) {
    int64_t layer;
    for (int i = 0; i < n_rows; i++) {
        if (comes_of(rows[i].name, name, &layer) && layer < spec->n_layers &&
            !lt_name_has_expert(&rows[i])) {
            *at = lt_param_index(table, rows[i].kind, (int)layer);
            if (*at >= 0 && lt_name_applies(&rows[i], spec, &table->params[*at])) {
                return &rows[i];
            }
        }
    }
    return NULL;
}

bool lt_param_kind_is_norm(lt_param_kind kind) {
    return kind == LT_PARAM_NORM1 || kind == LT_PARAM_NORM2 || kind == LT_PARAM_POST_NORM1 ||
           kind == LT_PARAM_POST_NORM2 || kind == LT_PARAM_Q_NORM || kind == LT_PARAM_K_NORM ||
           kind == LT_PARAM_FINAL_NORM;
}

void lt_name_place_of(lt_name_place *out, const lt_model_spec *spec, const lt_param *param,
                      const lt_name_row *row, int64_t expert, int n_dims) {
    const int own = param->n_dims - (param->experts ? 1 : 0); /* Dimensions of one expert. */
    const int64_t cols = own == 1 ? 1 : param->shape[param->n_dims - 1];
    const int64_t rows_all = param->shape[param->experts ? 1 : 0];
    int64_t from, rows;

    lt_part_rows(spec, param, row->part, &from, &rows);
    LT_ASSERT(from + rows <= rows_all);
    *out = (lt_name_place){.kind = param->kind,
                           .part = row->part,
                           .rows = rows,
                           .cols = cols,
                           .transposed = (row->form & LT_FORM_TRANSPOSED) != 0,
                           .alternating = (row->form & LT_FORM_ALTERNATING) != 0};
    out->n_experts = param->experts ? param->shape[0] : 1;
    out->expert_stride = param->experts ? rows_all * cols : 0;
    out->stacked = param->experts && !lt_name_has_expert(row) && (n_dims == 0 || n_dims == own + 1);
    out->first = from * cols + (lt_name_has_expert(row) ? expert * out->expert_stride : 0);
}
