#!/bin/sh
# Slurm's Epilog: what a job left behind. A status other than 0 drains the node.
exec lateen health --slurm --history /var/lib/lateen/health.jsonl ${LATEEN_HEALTH_LEVELS:+--levels "$LATEEN_HEALTH_LEVELS"} >/dev/null
