/* slurm.h: drains and resumes a node of Slurm with scontrol. Slurm's HealthCheckProgram must do so
 * itself, because slurmd ignores its exit status. Every reason given here begins with
 * LT_SLURM_REASON, and only nodes with such a reason are resumed. */
#ifndef LT_PLATFORM_HEALTH_SLURM_H
#define LT_PLATFORM_HEALTH_SLURM_H

#include "lateen/health.h"

#define LT_SLURM_REASON "lateen: "

/* Put the node in the state that the result requires; why: the text of the reason. */
LT_MUST_USE lt_err lt_slurm_tell(const char *node, lt_health_result result, const char *why,
                                 char told[256]);

#endif
