#include <stdlib.h>
#include <stdio.h>
#include "plan/plan.h"
double lt_knob(const char *n, double d) { char b[64]; const char *v; snprintf(b, sizeof b, "K_%s", n); v = getenv(b); return v ? atof(v) : d; }
