/* identity.h: which attempt at a run this process belongs to, from its environment. */
#ifndef LT_PLATFORM_TELEMETRY_IDENTITY_H
#define LT_PLATFORM_TELEMETRY_IDENTITY_H

#include <stdint.h>

typedef struct {
    uint32_t attempt; /* Attempt of the job: how often Slurm has started it again, from 0. */
    uint32_t epoch;   /* Epoch of the ranks within the attempt, from 1; 0: there is no launcher. */
} lt_identity;

/* The name of a run: the last part of its folder's path. Returns out. */
#define LT_RUN_NAME_BYTES 256
const char *lt_run_name(char out[LT_RUN_NAME_BYTES], const char *folder);

/* Read it from LATEEN_EPOCH, which `lateen launch` sets for its ranks, or from
 * SLURM_RESTART_COUNT. */
lt_identity lt_identity_of_process(void);

#endif
