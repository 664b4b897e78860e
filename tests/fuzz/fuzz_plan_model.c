/* Fuzz target: a model's config.json as the planner reads it. */
#include "base/log.h"
#include "fuzz_file.h"
#include "lateen/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_plan_model m;
    lt_log_set_level(LT_LOG_ERROR); /* Each unknown family would log a warning. */
    (void)!lt_plan_model_load(&m, fuzz_file(data, size));
    return 0;
}
