/* shapes.c: see shapes.h. */
#include "train/recipe/shapes.h"

#include <string.h>

#include "model/family.h"

#define LEAST_POSITIONS 1024

const lt_train_shape lt_train_shapes[LT_TRAIN_N_SHAPES] = {
    {"gpt2-124m", LT_FAMILY_GPT2, 12, 768, 12, 12, 3072, 50304, 4, 256, 64, 1024, true, 0},
    {"apertus-10m", LT_FAMILY_APERTUS, 8, 256, 8, 4, 1024, 8192, 8, 256, 64, 1024, false, 0},
    {"llama-1b", LT_FAMILY_LLAMA, 16, 2048, 32, 8, 8192, 128256, 1, 128, 4, 4096, true, 0},
    {"apertus-300m", LT_FAMILY_APERTUS, 24, 1024, 16, 4, 4096, 32768, 1, 256, 32, 2048, false, 0},
    {"moe-8x125m", LT_FAMILY_MIXTRAL, 12, 768, 12, 12, 3072, 32768, 1, 128, 16, 2048, false, 8},
    {"llama-8b", LT_FAMILY_LLAMA, 32, 4096, 32, 8, 14336, 128256, 1, 128, 2, 4096, false, 0}};

const lt_train_shape *lt_train_shape_find(const char *name) {
    for (int i = 0; i < LT_TRAIN_N_SHAPES; i++) {
        if (strcmp(lt_train_shapes[i].name, name) == 0) {
            return &lt_train_shapes[i];
        }
    }
    return NULL;
}

lt_model_spec lt_train_shape_spec(const lt_train_shape *shape, int64_t seq) {
    lt_model_spec s = lt_family_get(shape->family)->preset;
    s.n_layers = shape->layers;
    s.width = shape->width;
    s.n_heads = shape->heads;
    s.n_kv_heads = shape->kv_heads;
    s.head_dim = s.width / s.n_heads;
    s.ffn_width = shape->ffn;
    s.vocab_size = shape->vocab;
    s.tied = shape->tied;
    s.n_experts = shape->experts;
    s.top_k = shape->experts > 0 ? 2 : 0;
    s.max_seq = seq > LEAST_POSITIONS ? seq : LEAST_POSITIONS;
    return s;
}
