/* names.h: maps a row of a name table to the name of a foreign tensor and its place in our
 * parameter; used to load and to save. */
#ifndef LT_MODEL_NAMES_H
#define LT_MODEL_NAMES_H

#include "model/family.h"

/* The place of a foreign tensor in the whole parameter: rows x cols elements from `first` on, row
 * after row; a vector has cols 1. stacked: it holds all experts, each expert_stride further.
 * transposed: the file keeps (cols, rows). alternating: its rows 2 i and 2 i + 1 are rows i of gate
 * and of up. */
typedef struct {
    lt_param_kind kind;
    lt_param_part part;
    int64_t first, rows, cols;
    int64_t n_experts, expert_stride;
    bool stacked, transposed, alternating;
} lt_name_place;

bool lt_name_has_expert(const lt_name_row *row); /* A tensor an expert. */

/* Does the row hold a part of this parameter? A gate does not if the parameter has none. */
bool lt_name_applies(const lt_name_row *row, const lt_model_spec *spec, const lt_param *param);

/* n_dims: dimensions of the foreign tensor (one more than an expert's: stacked), or 0 when saving
 * (then it is stacked iff the name has no %E). */
void lt_name_place_of(lt_name_place *out, const lt_model_spec *spec, const lt_param *param,
                      const lt_name_row *row, int64_t expert, int n_dims);

/* Does a tensor of this name fill a parameter of the table, or a constant of the family? */
bool lt_name_is_read(const lt_name_row *rows, int n_rows, const lt_model_spec *spec,
                     const lt_param_table *table, const char *name);

/* The row from which such a name comes, and the index of its parameter in *at; NULL: there is none,
 * or the tensor belongs to one of several experts. */
const lt_name_row *lt_name_row_of(const lt_name_row *rows, int n_rows, const lt_model_spec *spec,
                                  const lt_param_table *table, const char *name, int *at);

bool lt_param_kind_is_norm(lt_param_kind kind);

#endif
