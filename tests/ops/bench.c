#include "ops/optest.h"
void optest_bench(optest *t) {
    (void)t;
}
