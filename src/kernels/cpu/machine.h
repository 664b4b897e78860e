/* machine.h: the host as reported by hwloc: cores, caches, memory nodes. */
#ifndef LT_KERNELS_CPU_MACHINE_H
#define LT_KERNELS_CPU_MACHINE_H

#include <stdint.h>

#include "base/limits.h"
#include "lateen/base.h"

#define LT_MACHINE_MAX_CACHES 8

typedef struct {
    /* pus: hardware threads on which this process may run. */
    int n_packages, n_numa, n_cores, n_pus;
    int n_caches;
    struct {
        /* count: number of such caches; only data and unified caches count. */
        int level, count;
        uint64_t bytes;              /* Size of one cache. */
    } caches[LT_MACHINE_MAX_CACHES]; /* From level 1 up. */
    lt_limits limits;                /* Memory and cores that this process may use. */
} lt_machine;

LT_MUST_USE lt_err lt_machine_read(lt_machine *out);

#endif
