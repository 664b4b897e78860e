/* Fuzz target: a table of published runs. One that parses must be validated (one in 512, since
 * this takes milliseconds) without a crash, and every row is used or left out with a reason. */
#include <stdint.h>
#include <stdlib.h>

#include "fuzz_plan.h"
#include "plan/points.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lt_points p;
    lt_point_result *r = NULL;
    lt_plan_group_stats s;
    uint32_t hash = 0;
    fuzz_plan_tables();
    for (size_t i = 0; i < size; i++) {
        hash = hash * 31 + data[i];
    }
    if (lt_points_parse(&p, (const char *)data, size, "fuzz") != LT_OK) {
        return 0;
    }
    if (p.n <= 64 && hash % 512 == 0 && lt_plan_validate(&p, &r) == LT_OK) {
        for (size_t i = 0; i < p.n; i++) {
            if (!r[i].used && r[i].why[0] == 0) {
                abort();
            }
        }
        lt_plan_group_stats_of(&s, r, p.n, NULL);
    }
    free(r);
    lt_points_free(&p);
    return 0;
}
