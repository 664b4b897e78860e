/* Families served on a GPU, skipped without one: the greedy output of the engine there equals
 * that of a session on the CPU. With LATEEN_TEST_ALL=1, every family whose layers differ from the
 * others; otherwise those that differ most. */
#include "unit/serve/fleet.h"

#include "unit/device.h"

static const char *const core[] = {"model/gpt_oss", "model/qwen3_moe_dense"};
static const char *const others[] = {"rope/longrope", "rope/phi3",     "model/olmo2",
                                     "model/smollm3", "model/granite", "model/qwen3_moe",
                                     "model/phi4",    "model/mistral"};

static void served(const char *name) {
    lt_model *on_gpu = NULL, *on_cpu = NULL;
    char path[128];
    (void)snprintf(path, sizeof path, "tests/golden/%s", name);
    must(lt_model_open(&on_gpu, path, &(lt_model_options){.device = gpu_device()}), path);
    must(lt_model_open(&on_cpu, path, NULL), path);
    engine_says_what_a_session_says(on_gpu, on_cpu, name);
    lt_model_close(on_gpu);
    lt_model_close(on_cpu);
}

static void families_on_a_gpu(void **state) {
    const char *all = getenv("LATEEN_TEST_ALL");
    (void)state;
    if (gpu_device() == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof core / sizeof *core; i++) {
        served(core[i]);
    }
    for (size_t i = 0; all != NULL && i < sizeof others / sizeof *others; i++) {
        served(others[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(families_on_a_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
