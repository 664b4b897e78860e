/* names.h: maps a row of a name table to the name of a foreign tensor and its place in our
 * parameter; used to load and to save. */
#ifndef LT_MODEL_NAMES_H
#define LT_MODEL_NAMES_H

#include "model/family.h"

/* The place of a foreign tensor in the whole parameter: rows x cols elements from `first` on, row
 * after row; a vector has cols 1. stacked: it has all experts, at distances of expert_stride.
 * transposed: the file has (cols, rows). alternating: its rows 2 i and 2 i + 1 are rows i of gate
 * and of up. */
typedef struct {
    lt_param_kind kind;
    lt_param_part part;
    int64_t first, rows, cols;
    int64_t n_experts, expert_stride;
    bool stacked, transposed, alternating;
} lt_name_place;

bool lt_name_has_expert(const lt_name_row *row); /* There is one tensor per expert. */

/* Whether the row is for a part of this parameter. That of a gate is not if the parameter has
 * none. */
bool lt_name_applies(const lt_name_row *row, const lt_model_spec *spec, const lt_param *param);

/* n_dims: number of dimensions of the foreign tensor (it is stacked if it has one more than an
 * expert), or 0 when saving (then it is stacked if the name has no %E). */
void lt_name_place_of(lt_name_place *out, const lt_model_spec *spec, const lt_param *param,
                      const lt_name_row *row, int64_t expert, int n_dims);

/* Whether a tensor of this name is read, into a parameter of the table or as a constant of the
 * family. */
bool lt_name_is_read(const lt_name_row *rows, int n_rows, const lt_model_spec *spec,
                     const lt_param_table *table, const char *name);

/* The row that has such a name; *at: the index of its parameter. NULL: there is none, or the
 * tensor belongs to one of several experts. */
const lt_name_row *lt_name_row_of(const lt_name_row *rows, int n_rows, const lt_model_spec *spec,
                                  const lt_param_table *table, const char *name, int *at);

bool lt_param_kind_is_norm(lt_param_kind kind);

#endif
