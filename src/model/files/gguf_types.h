/* gguf_types.h: which type each tensor of a GGUF file gets. */
#ifndef LT_MODEL_GGUF_TYPES_H
#define LT_MODEL_GGUF_TYPES_H

#include "model/names.h"

/* option, type of most matrices, general.file_type */
#define LT_GGUF_MIX_MAP(X)                                                                         \
    X(F32, "f32", F32, 0)                                                                          \
    X(F16, "f16", F16, 1)                                                                          \
    X(BF16, "bf16", BF16, 32)                                                                      \
    X(Q8_0, "q8_0", Q8_0, 7)                                                                       \
    X(Q4_0, "q4_0", Q4_0, 2)                                                                       \
    X(Q4_1, "q4_1", Q4_1, 3)                                                                       \
    X(Q5_0, "q5_0", Q5_0, 8)                                                                       \
    X(Q5_1, "q5_1", Q5_1, 9)                                                                       \
    X(Q4_K_M, "q4_k_m", Q4_K, 15)                                                                  \
    X(Q5_K_S, "q5_k_s", Q5_K, 16)                                                                  \
    X(Q5_K_M, "q5_k_m", Q5_K, 17)                                                                  \
    X(Q6_K, "q6_k", Q6_K, 18)
#define LT_GGUF_MIX_CHOICES "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q4_k_m|q5_k_s|q5_k_m|q6_k"

typedef enum {
#define LT_GGUF_MIX_ENUM(name, text, type, number) LT_GGUF_MIX_##name,
    LT_GGUF_MIX_MAP(LT_GGUF_MIX_ENUM)
#undef LT_GGUF_MIX_ENUM
        LT_GGUF_MIX_COUNT
} lt_gguf_mix;

int64_t lt_gguf_mix_number(lt_gguf_mix mix); /* general.file_type */
/* The mixture's name as llama.cpp prints it, "Q4_K_M"; NULL: we make none of this number. */
const char *lt_gguf_mix_of_number(int64_t number);

/* The type of a part of a parameter with `cols` columns. */
lt_dtype lt_gguf_type_of(lt_gguf_mix mix, const lt_model_spec *spec, const lt_param *param,
                         lt_param_part part, int64_t cols);

#endif
