#!/bin/sh
# Slurm's Prolog (slurm.conf: PrologFlags=Alloc): at most 10 s before each job. A status other than 0 drains the node, and Slurm queues the
# job again. The reason that --slurm gives names what is wrong.
exec lateen health --tier 2 --slurm --history /var/lib/lateen/health.jsonl ${LATEEN_HEALTH_LEVELS:+--levels "$LATEEN_HEALTH_LEVELS"} >/dev/null
