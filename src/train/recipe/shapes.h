/* shapes.h: the models that `lateen bench train` measures, by name; the planner predicts the same
 * ones. */
#ifndef LT_TRAIN_SHAPES_H
#define LT_TRAIN_SHAPES_H

#include "lateen/model.h"

#define LT_TRAIN_SHAPES "gpt2-124m|apertus-10m|llama-1b|apertus-300m|moe-8x125m|llama-8b"

typedef struct {
    const char *name;
    lt_family family;
    int64_t layers, width, heads, kv_heads, ffn, vocab;
    int64_t batch, seq;               /* On a CPU. */
    int64_t device_batch, device_seq; /* On a GPU. */
    bool tied;
    int64_t experts;
} lt_train_shape;

/* In the order of LT_TRAIN_SHAPES. */
#define LT_TRAIN_N_SHAPES 6
extern const lt_train_shape lt_train_shapes[LT_TRAIN_N_SHAPES];

/* NULL: there is no such name. */
const lt_train_shape *lt_train_shape_find(const char *name);
/* seq: the longest row that it will have. */
lt_model_spec lt_train_shape_spec(const lt_train_shape *s, int64_t seq);

#endif
