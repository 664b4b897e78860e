/* Adapters on a GPU, where there is one: their gradients are near the CPU's, in F32 and BF16, and
 * have the same bits eager, as a recorded graph, and for another level of recompute. */
#include "unit/model/adapters.h"

#define TOLERANCE_F32  2e-5
#define TOLERANCE_BF16 0.03

static void on_a_gpu(void **state) {
    static const char *const names[] = {"llama3", "gpt2", "apertus", "gpt2"};
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (int half = 0; half < 2; half++) {
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_a_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
