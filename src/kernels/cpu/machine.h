/* machine.h: the host as hwloc sees it: cores, caches, memory nodes. */
#ifndef LT_KERNELS_CPU_MACHINE_H
#define LT_KERNELS_CPU_MACHINE_H

#include <stdint.h>

#include "lateen/base.h"

#define LT_MACHINE_MAX_CACHES 8

typedef struct {
    int n_packages, n_numa, n_cores, n_pus; /* pus: hardware threads this process may run on. */
    int n_caches;
    struct {
        int level, count;            /* count: how many there are; data and unified caches only. */
        uint64_t bytes;              /* Of one. */
    } caches[LT_MACHINE_MAX_CACHES]; /* From level 1 up. */
    uint64_t memory_bytes,
        available_bytes; /* Available: what a new program could use (Linux's MemAvailable); 0 if unknown. */
} lt_machine;

LT_MUST_USE lt_err lt_machine_read(lt_machine *out);

#endif
