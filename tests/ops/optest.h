/* optest.h: the modes of build/optest. Each mode walks the case lists and reports to a tally. */
#ifndef LT_TESTS_OPS_OPTEST_H
#define LT_TESTS_OPS_OPTEST_H

#include "ops/world.h"

typedef struct {
    lt_device *device;
    const char *op, *impl, *case_name; /* Filters; empty: all. */
    double mflop;                      /* --check: the most work of a case; 0: any. */
    int rounds;                        /* Of random sizes; 0: the cases' own. */
    uint64_t seed;
    bool core; /* --check: one type and strides of a case, if an implementation accepts it. */
    bool tap, verbose;
    int n_passed, n_failed;
} optest;

/* One result, with a TAP line in TAP mode; failures are always printed, the rest when verbose. */
void optest_report(optest *t, bool passed, const char *name, const char *detail);

bool optest_wants(const optest *t, const lt_op_cases *o, const lt_case *c, int use);

void optest_check(optest *t);
void optest_grad(optest *t);
void optest_golden(optest *t, const char *folder);
/* Inputs of every golden case as JSON, for tools/make_op_goldens.py. */
void optest_describe_golden(void);

#endif
