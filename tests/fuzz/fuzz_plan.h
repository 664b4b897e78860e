/* fuzz_plan.h: loads the planner's tables; without them every run would end before it begins. */
#ifndef FUZZ_PLAN_H
#define FUZZ_PLAN_H

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "lateen/plan.h"

static inline void fuzz_plan_tables(void) {
    static lt_plan_gpu gpu;
    if (gpu.name[0] == '\0' && lt_plan_gpu_find(&gpu, "h100-sxm") != LT_OK) {
        fprintf(stderr, "%s; run it where recipes/ is\n", lt_error_message());
        abort();
    }
}

#endif
