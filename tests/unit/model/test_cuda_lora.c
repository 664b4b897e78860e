/* Adapters on a GPU (skipped without one), also for experts, and with dropout: their gradients
 * are close to the CPU's, in F32 and BF16, and have the same bits eager, as a recorded graph, and
 * at another level of recompute. On weights in block types, gradients and logits have the bits
 * that they have on the decoded numbers in BF16. */
#include "unit/model/adapters.h"
#include "unit/model/tiny.h"

#include <unistd.h>

#include "base/file.h"
#include "model/files/gguf_save.h"

#define TOLERANCE_F32  2e-5
#define TOLERANCE_BF16 0.03

static void adapters_on_a_gpu(void **state) {
    static const char *const names[] = {"llama3", "gpt2", "apertus", "gpt2", "mixtral", "llama3"};
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        /* Core: F32, whose bound is narrow, for all; BF16 for one. */
        for (int half = 0; half < (core_only() && i != 0 ? 1 : 2); half++) {
            const lt_dtype dtype = half ? LT_BF16 : LT_F32;
            char path[256];
            golden g;
            float *got[2], *again;
            double norm = 0.0, apart = 0.0;
            int64_t n = 0;
            golden_open(&g, names[i], lt_backend_cpu(), LT_F32);
            (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", names[i]);
            for (int side = 0; side < 2; side++) {
                lt_model *m = open_base(path, side == 0 ? lt_backend_cpu() : gpu_backend(), dtype);
                lt_lora *l = NULL;
                lt_lora_options o = adapters_of_all;
                o.dora = i == 3; /* With biases. */
                o.dropout = i == 5 ? 0.25 : 0.0;
                o.targets = i == 0 ? "q_proj,v_proj,o_proj,down_proj,embed_tokens,lm_head"
                                   : o.targets;
                must(lt_lora_open(&l, m, &o, 1), path);
                fill(l);
                n = l->params->table.n_elements;
                got[side] = gradients(m, &g.batch, LT_RECOMPUTE_NONE, 1);
                if (side == 1) { /* Recorded, at another level. */
                    again = gradients(m, &g.batch, LT_RECOMPUTE_FULL, 3);
                    assert_memory_equal(again, got[1], (size_t)n * sizeof *again);
                    free(again);
                }
                lt_lora_close(l);
                lt_model_close(m);
            }
            for (int64_t k = 0; k < n; k++) {
                norm += (double)got[0][k] * (double)got[0][k];
                apart += pow((double)got[0][k] - (double)got[1][k], 2.0);
            }
            if (sqrt(apart) > (half ? TOLERANCE_BF16 : TOLERANCE_F32) * sqrt(norm)) {
                fail_msg("%s in %s: gradients are %g of %g apart", names[i], lt_dtype_name(dtype),
                         sqrt(apart), sqrt(norm));
            }
            free(got[0]);
            free(got[1]);
            golden_close(&g);
        }
    }
}

/* ---- On block types ---- */

enum { V = 128, WIDTH = 256, ROWS = 3, SEQ = 16 };

/* The model of a file in block types, decoded for each product; and the same numbers in BF16.
 * type: F32: as in the file. */
static void open_both(lt_model *both[2], const char *folder, lt_gguf_mix mix, lt_dtype type,
                      bool experts) {
    char file[LT_PATH_BYTES], plain[LT_PATH_BYTES];
    lt_model *from = experts ? tiny_mixture(LT_FAMILY_QWEN3_MOE, WIDTH, WIDTH, V, 5, 2)
                             : tiny_llama(WIDTH, WIDTH, V, 64, mix == LT_GGUF_MIX_Q8_0);
    const lt_model_options o = {.dtype = LT_BF16,
                                .stored = true,
                                .decoded = true,
                                .stored_as = type,
                                .device = device_of(gpu_backend())};
    must(lt_path_join(file, folder, "model.gguf"), file);
    must(lt_path_join(plain, folder, "plain"), plain);
    must(lt_model_save_gguf(from, file, "", mix), file);
    lt_model_close(from);
    must(lt_model_open(&from, file, NULL), file);
    must(lt_model_open(&both[0], file, &o), file);
    assert_non_null(both[0]->stored);
    assert_true(lt_model_bytes(both[0]) < (size_t)lt_model_spec_params(&both[0]->spec) * 3 / 2);
    if (type != LT_F32) {
        replace_by_blocks(from, both[0]);
    }
    must(lt_model_save(from, plain, LT_BF16, 0), plain);
    lt_model_close(from);
    both[1] = open_base(plain, gpu_backend(), LT_BF16);
    both[0]->spec.moe_aux_coef = both[0]->spec.moe_z_coef = 0.0f;
}

static float *learn_and_speak(lt_model *m, const lt_lora_options *o, lt_recompute recompute,
                              size_t *bytes, float logits[2 * V]) {
    int32_t tokens[ROWS * SEQ], labels[ROWS * SEQ];
    const lt_pass_batch b = {.batch = ROWS, .seq = SEQ, .tokens = tokens, .labels = labels};
    const int64_t seq = 0;
    lt_lora *l = NULL;
    lt_session *s = NULL;
    float *out;
    for (int i = 0; i < ROWS * SEQ; i++) {
        tokens[i] = (int32_t)(lt_rng_mix((uint64_t)i) % V);
        labels[i] = i % 5 == 0 ? -1 : (tokens[i] * 7 + 1) % V;
    }
    must(lt_lora_open(&l, m, o, 1), "adapters");
    fill(l);
    *bytes = lt_param_buffer_bytes(&l->params->table, LT_F32);
    out = gradients(m, &b, recompute, 3);
    must(lt_session_open(&s, m, 1, SEQ), "session");
    must(lt_session_eval(s, 0, tokens, SEQ - 1, logits), "prompt");
    must(lt_session_step(s, &seq, tokens + SEQ - 1, 1, logits + V), "step");
    lt_session_close(s);
    lt_lora_close(l);
    return out;
}

static void adapters_on_block_types(void **state) {
    static const struct {
        lt_gguf_mix mix;
        lt_dtype type;
        bool experts;
    } cases[] = {{LT_GGUF_MIX_Q8_0, LT_F32, false},      {LT_GGUF_MIX_Q4_K_M, LT_F32, false},
                 {LT_GGUF_MIX_F32, LT_Q4_0, false},      {LT_GGUF_MIX_Q8_0, LT_NF4, false},
                 {LT_GGUF_MIX_F32, LT_NF4_DOUBLE, true}, {LT_GGUF_MIX_Q4_K_M, LT_F32, true},
                 {LT_GGUF_MIX_F32, LT_NF4_DOUBLE, false}};
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    /* Core: a mixture of types, and the type whose blocks have a table, with DoRA. */
    for (size_t i = core_only() ? 1 : 0; i < sizeof cases / sizeof *cases;
         i += core_only() ? 2 : 1) {
        char folder[] = "/tmp/lateen-blocks-XXXXXX";
        lt_model *both[2];
        lt_lora_options o = adapters_of_all;
        float logits[2][2 * V], *got[2];
        size_t bytes = 0;
        assert_non_null(mkdtemp(folder));
        open_both(both, folder, cases[i].mix, cases[i].type, cases[i].experts);
        o.dora = i == 3;
        o.targets = cases[i].experts ? "q_proj,gate_up_proj,down_proj" : o.targets;
        for (int side = 0; side < 2; side++) {
            got[side] = learn_and_speak(both[side], &o,
                                        side == 0 ? LT_RECOMPUTE_FULL : LT_RECOMPUTE_NONE, &bytes,
                                        logits[side]);
        }
        assert_memory_equal(got[0], got[1], bytes);
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        free(got[0]);
        free(got[1]);
        lt_model_close(both[0]);
        lt_model_close(both[1]);
        assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(adapters_on_a_gpu),
                                       cmocka_unit_test(adapters_on_block_types)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
