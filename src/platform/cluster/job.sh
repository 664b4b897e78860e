
cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}" || exit 1
export OMP_NUM_THREADS=$cpus

# Slurm signals the ranks by itself. TERM reaches this shell only when Slurm is ending the job.
ended=0
trap 'ended=1' TERM

say() { echo "lateen submit: $*" >&2; }

# The TERM of scancel may reach ranks on other nodes before it reaches this shell. They save and end as if the job were to go on, but Slurm's state has changed already.
is_ending() {
    [ "$ended" = 1 ] || squeue --noheader --jobs="$SLURM_JOB_ID" --states=all --format=%T | grep -q -e COMPLETING -e CANCELLED
}

queue_again() { # VERB WHY: of scontrol
    if ! is_ending; then
        say "$2; the job queues again"
        scontrol "$1" "$SLURM_JOB_ID"
    fi
    exit 75
}

# Names of the nodes that respond and are fit, one a line.
fit_nodes() {
    local alive
    alive=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --format='%N %t' | awk '$2 !~ /^down|[*]$/ && !seen[$1]++ { print $1 }')
    if [ "$check" = 0 ] || [ -z "$alive" ]; then
        echo "$alive"
        return
    fi
    timeout 300 srun --nodes="$(wc -l <<<"$alive")" --ntasks="$(wc -l <<<"$alive")" --ntasks-per-node=1 --nodelist="$(paste -sd, <<<"$alive")" \
        --cpus-per-task="$cpus" --no-kill --kill-on-bad-exit=0 "${in_step[@]}" "${in_image[@]}" \
        bash -c '"$0" health --tier 2 >&2 && echo "$SLURMD_NODENAME"' "$lateen"
}

size_for() { # The most nodes, of at most $1, on which the recipe trains; 0: none.
    local size
    for size in $sizes; do
        if [ "$size" -le "$1" ]; then
            echo "$size"
            return
        fi
    done
    echo 0
}

newest() { # The newest checkpoint.
    find "$run/checkpoints" -maxdepth 1 -name 'step-*' ! -name '*.tmp' 2>/dev/null | sort | tail -n 1
}

# When a larger size could begin on idle nodes for which nobody waits, the ranks are asked to save and end.
grow() { # nodes of this size
    local larger idle sleeper
    trap 'kill "$sleeper"; exit' TERM
    while :; do
        sleep "$grow_s" &
        sleeper=$!
        wait "$sleeper"
        idle=$(sinfo --noheader --partition="$SLURM_JOB_PARTITION" --states=idle --format=%D | awk '{ n += $1 } END { print n + 0 }')
        larger=$(size_for $((SLURM_JOB_NUM_NODES + idle - spares)))
        if [ "$larger" -gt "$1" ] && [ -z "$(squeue --noheader --partition="$SLURM_JOB_PARTITION" --states=PENDING)" ]; then
            say "$idle nodes are idle: saving, to go on with $larger nodes instead of $1"
            scancel --signal=USR2 "$SLURM_JOB_ID"
            return
        fi
    done
}

run_on() { # nodes, their names
    local mesh=${axes:+$axes,}dp=$(($1 * node_gpus / rest))
    say "training on $1 nodes ($2) with mesh $mesh"
    if [ "$1" = 1 ]; then # The launcher keeps heartbeats, and starts ranks again after a fault.
        srun --nodes=1 --ntasks=1 --nodelist="$2" --cpus-per-task=$((node_gpus * cpus)) --no-kill "${in_step[@]}" "${in_image[@]}" \
            "$lateen" launch --ranks "$node_gpus" --retries "$retries" train "${train[@]}" --mesh "$mesh"
    else # Ranks end by themselves after a fault. Where one dies while MPI starts, MPI lets the others wait for ever: srun ends them.
        srun --mpi="$mpi" --wait=600 --nodes="$1" --ntasks=$(($1 * node_gpus)) --ntasks-per-node="$node_gpus" --nodelist="$2" --cpus-per-task="$cpus" \
            --no-kill --kill-on-bad-exit=0 "${in_step[@]}" "${in_image[@]}" "$lateen" train "${train[@]}" --mesh "$mesh"
    fi
}

faults=0
while :; do
    mapfile -t fit < <(fit_nodes | sed '/^$/d')
    size=$(size_for ${#fit[@]})
    if [ "$size" = 0 ]; then
        why="${#fit[@]} of $SLURM_JOB_NUM_NODES nodes are fit, and the recipe needs ${sizes##* }"
        # A job that meets unfit nodes again and again is held until somebody has looked.
        if [ "${SLURM_RESTART_COUNT:-0}" -ge 20 ]; then queue_again requeuehold "$why"; else queue_again requeue "$why"; fi
    fi
    before=$(newest)
    grower=
    if [ "$grow_s" -gt 0 ] && [ "$size" -lt "${sizes%% *}" ]; then
        grow "$size" &
        grower=$!
    fi
    run_on "$size" "$(printf '%s,' "${fit[@]:0:size}" | sed 's/,$//')"
    status=$?
    if [ -n "$grower" ]; then kill "$grower" 2>/dev/null; fi
    case $status in
    0) exit 0 ;;
    75) queue_again requeue "the ranks have saved" ;;
    # A device, another rank or wrong bits; a signal that ended a rank.
    74 | 76 | 78 | 1[3-9][0-9]) ;;
    *) exit "$status" ;;
    esac
    if [ "$(newest)" != "$before" ]; then faults=0; fi
    faults=$((faults + 1))
    if [ "$ended" = 1 ] || [ "$faults" -ge 3 ]; then exit "$status"; fi
    say "status $status: the nodes are checked, and the ranks start again from the newest checkpoint"
done
