#!/bin/sh
# Slurm's HealthCheckProgram (slurm.conf: HealthCheckInterval=300, HealthCheckNodeState=ANY,CYCLE). Slurm ignores its exit status, so
# --slurm drains the node with a reason, takes it down if its jobs should leave, and resumes it when it is fit again.
exec lateen health --slurm --history /var/lib/lateen/health.jsonl ${LATEEN_HEALTH_LEVELS:+--levels "$LATEEN_HEALTH_LEVELS"} >/dev/null
