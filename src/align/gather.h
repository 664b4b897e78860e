/* gather.h: collects the events of many requests to an engine in this process, until all are
 * done. */
#ifndef LT_ALIGN_GATHER_H
#define LT_ALIGN_GATHER_H

#include "lateen/serve.h"

/* Wait for the events of n submitted requests, and call take for each. It continues after a failure
 * of take, so that no event is left for later requests, and returns the first failure. */
LT_MUST_USE lt_err lt_gather(lt_engine *e, int64_t n, lt_err (*take)(const lt_event *event));

#endif
