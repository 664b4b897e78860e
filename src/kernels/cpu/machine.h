/* machine.h: the host as reported by hwloc: cores, caches, memory nodes. */
#ifndef LT_KERNELS_CPU_MACHINE_H
#define LT_KERNELS_CPU_MACHINE_H

#include <stdint.h>

#include "base/limits.h"
#include "lateen/base.h"

#define LT_MACHINE_MAX_CACHES 8

typedef struct {
    int n_packages, n_numa, n_cores, n_pus; /* pus: hardware threads this process may run on. */
    int n_caches;
    struct {
        int level, count;            /* count: how many there are; data and unified caches only. */
        uint64_t bytes;              /* Size of one cache. */
    } caches[LT_MACHINE_MAX_CACHES]; /* From level 1 up. */
    lt_limits limits;                /* Memory and cores that this process may use. */
} lt_machine;

LT_MUST_USE lt_err lt_machine_read(lt_machine *out);

#endif
