/* family.h: what makes a family: its config.json keys and its tensor names. One row a family in families.c; new code only for a new kind of block. */
#ifndef LT_MODEL_FAMILY_H
#define LT_MODEL_FAMILY_H

#include <jansson.h>

#include "model/params.h"

/* Which rows of our fused parameter a foreign tensor fills. */
typedef enum {
    LT_PART_ALL,
    LT_PART_Q,
    LT_PART_K,
    LT_PART_V,
    LT_PART_GATE,    /* Rows [0, F) of a gated up. */
    LT_PART_UP,      /* Rows [F, 2F). */
    LT_PART_XIELU_P, /* Element 0 of the xIELU scalars, or 1: */
    LT_PART_XIELU_N,
} lt_param_part;

/* One foreign name. "%L" stands for the layer, "%E" for the expert. transpose: the file keeps (in, out) (GPT-2's Conv1D). */
typedef struct {
    lt_param_kind kind;
    lt_param_part part;
    const char *name;
    bool transpose;
} lt_name_row;

typedef struct {
    const char *model_type, *architecture;
    const lt_name_row *names;
    int n_names;
    /* Fill spec from a parsed config.json; `what` names the file in messages. */
    lt_err (*read_config)(lt_model_spec *spec, const json_t *config, const char *what);
    /* Put the family's keys into config. */
    lt_err (*write_config)(const lt_model_spec *spec, json_t *config);
} lt_family_row;

const lt_family_row *lt_family_get(lt_family family);

/* Rows [*from, *from + *count) of a parameter's first non-expert dimension that a part covers. */
void lt_part_rows(const lt_model_spec *spec, lt_param_kind kind, lt_param_part part, int64_t *from,
                  int64_t *count);

#endif
