#!/bin/sh
# Slurm's HealthCheckProgram (slurm.conf: HealthCheckInterval=300, HealthCheckNodeState=ANY,CYCLE). Slurm ignores its exit status, so
# --slurm drains the node with a reason, takes it down if its jobs should leave, and resumes it when it is fit again. An idle node that was
# drained is checked at tier 2, so that one which the prolog drained can be resumed. A node that tier 2 has evicted, for example because of
# wrong bits, stays out of service until somebody has looked at it and calls `lateen health --tier 2 --slurm`.
tier=1
case $(scontrol show node "${SLURMD_NODENAME:-$(hostname -s)}" 2>/dev/null) in
*State=IDLE+DRAIN*"Reason=lateen: drain: "*) tier=2 ;;
esac
exec lateen health --tier $tier --slurm --history /var/lib/lateen/health.jsonl ${LATEEN_HEALTH_LEVELS:+--levels "$LATEEN_HEALTH_LEVELS"} >/dev/null
