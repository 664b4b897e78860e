/* Fuzz target: a cluster file of the planner. */
#include "fuzz_file.h"
#include "fuzz_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_plan_cluster c;
    fuzz_plan_tables();
    (void)!lt_plan_cluster_load(&c, fuzz_file(data, size));
    return 0;
}
