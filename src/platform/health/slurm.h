/* slurm.h: drain and resume a node of Slurm by scontrol. Slurm's HealthCheckProgram must do so
 * itself: slurmd does not look at its exit status. Every reason that is given here begins with
 * LT_SLURM_REASON, and only nodes with such a reason are resumed. */
#ifndef LT_PLATFORM_HEALTH_SLURM_H
#define LT_PLATFORM_HEALTH_SLURM_H

#include "lateen/health.h"

#define LT_SLURM_REASON "lateen: "

/* Bring node into the state that the result asks for; why: the text of the reason. */
LT_MUST_USE lt_err lt_slurm_tell(const char *node, lt_health_result result, const char *why,
                                 char told[256]);

#endif
