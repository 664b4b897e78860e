#!/bin/sh
# From `lateen cluster policy`: guarantees as reservations; run again, it changes what is there.
# A node of one that fails is replaced. One that is over is left out.
set -eu
reservation() { # NAME FROM UNTIL OPTION...
    name=$1 from=$2 until=$3 now=$(date +%Y-%m-%dT%H:%M:%S) verb=create
    shift 3
    expr "$until" '>' "$now" >/dev/null || return 0
    scontrol show reservation "$name" >/dev/null 2>&1 && verb=update
    if expr "$from" '>' "$now" >/dev/null; then
        set -- StartTime="$from" "$@"
    elif [ $verb = create ]; then # Slurm takes no time that has passed.
        set -- StartTime=now "$@"
    fi
    scontrol $verb reservation ReservationName="$name" EndTime="$until" "$@"
}

reservation 'deadline-2027' 2027-01-10T08:00:00 2027-01-12T08:00:00 PartitionName='batch' NodeCnt=2 Accounts='physics' Flags=REPLACE_DOWN
