/* optest.h: the modes of build/optest. Each mode walks the case lists and reports to a tally. */
#ifndef LT_TESTS_OPS_OPTEST_H
#define LT_TESTS_OPS_OPTEST_H

#include "ops/world.h"

typedef struct {
    lt_device *device;
    const char *op, *impl, *case_name; /* Filters; empty: all. */
    /* --check: the most work of a case in millions of operations; 0: no limit. */
    double mflop;
    int rounds; /* Rounds of random sizes; 0: the sizes of the cases. */
    uint64_t seed;
    /* --check: one type and one kind of strides per case, if an implementation accepts it. */
    bool core;
    bool tap, verbose;
    int n_passed, n_failed;
} optest;

/* Report one result, as a TAP line in TAP mode; failures are always printed, the rest if
 * verbose. */
void optest_report(optest *t, bool passed, const char *name, const char *detail);

bool optest_wants(const optest *t, const lt_op_cases *o, const lt_case *c, int use);

void optest_check(optest *t);
void optest_grad(optest *t);
void optest_golden(optest *t, const char *folder);
/* Inputs of every golden case as JSON, for tools/make_op_goldens.py. */
void optest_describe_golden(void);

#endif
