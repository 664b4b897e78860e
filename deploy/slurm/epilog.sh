#!/bin/sh
# Slurm's Epilog: what a job left behind. A status other than 0 drains the node.
# Jobs that were killed may have left snapshots in /dev/shm; only those of the job's user that no run uses are removed.
setpriv --reuid "$SLURM_JOB_UID" --regid "$(id -g "$SLURM_JOB_UID")" --clear-groups lateen agent --sweep 2>/dev/null || true
exec lateen health --slurm --history /var/lib/lateen/health.jsonl ${LATEEN_HEALTH_LEVELS:+--levels "$LATEEN_HEALTH_LEVELS"} >/dev/null
