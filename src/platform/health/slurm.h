/* slurm.h: drains and resumes a node of Slurm with scontrol. Slurm's HealthCheckProgram must do so
 * itself, because slurmd ignores its exit status. Every reason given here begins with
 * LT_SLURM_REASON, and only nodes with such a reason are resumed. */
#ifndef LT_PLATFORM_HEALTH_SLURM_H
#define LT_PLATFORM_HEALTH_SLURM_H

#include "lateen/health.h"

#define LT_SLURM_REASON "lateen: "

/* Put the node in the state that the result requires; why: the text of the reason. all: the n
 * findings of the check. A node is resumed only if what it was taken out for was checked again: a
 * check of tier 1 says nothing about wrong products, which tier 2 finds. */
LT_MUST_USE lt_err lt_slurm_tell(const char *node, lt_health_result result, const char *why,
                                 const lt_health_finding *all, int n, char told[256]);

#endif
