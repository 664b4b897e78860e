/* lateen/model.h: a model with random weights, its logits, and the folder that transformers
 * loads. */
#include <stdio.h>

#include "lateen/model.h"

int main(int argc, char **argv) {
    static float logits[64];
    const int32_t ids[] = {1, 2, 3};
    const lt_model_spec spec = {.family = LT_FAMILY_LLAMA,
                                .n_layers = 2,
                                .width = 32,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 8,
                                .ffn_width = 64,
                                .vocab_size = 64,
                                .max_seq = 128,
                                .norm_eps = 1e-5f,
                                .act = 2 /* SiLU */,
                                .gated = true,
                                .embed_scale = 1,
                                .pos = LT_POS_ROPE,
                                .rope_theta = 10000,
                                .rope_factor = 1,
                                .bos_id = 1,
                                .eos = {.ids = {2}, .n = 1},
                                .pad_id = -1};
    lt_model *m = NULL;
    lt_session *s = NULL;
    int status = 1;

    if (lt_model_create(&m, &spec, NULL, 42) == LT_OK && lt_session_open(&s, m, 1, 128) == LT_OK &&
        lt_session_eval(s, 0, ids, 3, logits) == LT_OK) {
        printf("%lld parameters, logit of token 5 after 1 2 3: %.4f\n",
               (long long)lt_model_spec_params(&spec), (double)logits[5]);
        status = argc > 1 && lt_model_save(m, argv[1], LT_BF16, 0) != LT_OK ? 1 : 0;
    }
    if (status != 0) {
        fprintf(stderr, "%s\n", lt_error_message());
    }
    lt_session_close(s);
    lt_model_close(m);
    return status;
}
