#!/usr/bin/env bash
# The recipes for many GPUs and their Slurm scripts agree: every recipe is valid, the product of
# its mesh is the number of ranks that its script requests, and `lateen plan` announces memory
# that one of the GPUs has. Recipes damaged on purpose must fail the same checks. Each recipe also
# trains two steps on CPU ranks with a small model: 8 or 16 ranks, with its optimiser, schedule
# and ZeRO. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
. tests/tap.sh
lateen=${LATEEN:-build/lateen}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
asked() { # script, option: its number
    sed -nE "s/^#SBATCH --$2=([0-9]+)$/\1/p" "$1"
}
product() { # recipe: of the axes of its mesh
    sed -nE 's/^mesh: ([a-z]+=[0-9]+(,[a-z]+=[0-9]+)*)$/\1/p' "$1" | tr ',' '\n' | awk -F= '{ p = (NR == 1 ? 1 : p) * $2 } END { print p + 0 }'
}
ranks_agree() { # recipe, script
    local nodes tasks gpus
    nodes=$(asked "$2" nodes) tasks=$(asked "$2" ntasks-per-node) gpus=$(asked "$2" gpus-per-node)
    [ -n "$nodes" ] && [ -n "$tasks" ] && [ "$tasks" = "$gpus" ] && [ "$(product "$1")" = $((nodes * tasks)) ]
}
fits() { # recipe, cluster, GiB of a GPU
    "$lateen" plan --model "$1" --cluster "$2" --json >"$work/plan.json" 2>"$work/log" &&
        python3 -c 'import json, sys; sys.exit(not 0 < json.load(open(sys.argv[1]))["device_bytes"] < 0.9 * 2**30 * float(sys.argv[2]))' "$work/plan.json" "$3"
}
checked() { # name, cluster, nodes, ranks a node, GiB of a GPU
    local recipe=recipes/parallel/$1.yaml script=recipes/parallel/$1.sbatch
    bash -n "$script" && grep -q "train $recipe " "$script"
    say "$1: the script is one of bash and starts this recipe" $?
    [ "$(asked "$script" nodes) $(asked "$script" ntasks-per-node)" = "$3 $4" ] && ranks_agree "$recipe" "$script"
    say "$1: the mesh has the ranks that the script asks for" $? "mesh of $(product "$recipe")"
    fits "$recipe" "$2" "$5"
    say "$1: the plan is accepted, and fits" $? "$(cat "$work/log")"
}
checked llama-1b-8gpus h100-node 1 8 80
checked llama-8b-2x8gpus dgx-h100 2 8 80
checked apertus-8b-alps-64 alps 64 4 96

# What the script does with the exit status of the ranks, with srun and scontrol replaced.
printf '#!/bin/sh\necho "$@" >"%s/srun"\nexit $STATUS\n' "$work" >"$work/srun.sh"
printf '#!/bin/sh\necho "$@" >"%s/requeued"\n' "$work" >"$work/scontrol"
mkdir "$work/bin" && mv "$work/srun.sh" "$work/bin/srun" && mv "$work/scontrol" "$work/bin/scontrol" && chmod +x "$work/bin/"*
for script in recipes/parallel/*.sbatch; do
    started() { # status of the ranks
        rm -f "$work/requeued"
        PATH="$work/bin:$PATH" STATUS=$1 SLURM_SUBMIT_DIR=$PWD SLURM_CPUS_PER_TASK=8 SLURM_JOB_ID=7 bash "$script" --steps 9 2>"$work/log"
    }
    started 75; status=$?
    [ $status = 75 ] && [ "$(cat "$work/requeued")" = "requeue 7" ] && grep -q 'train recipes/parallel/.* --steps 9$' "$work/srun"
    say "$script: ranks that saved and stopped are queued again" $? "status $status"
    started 1; status=$?
    [ $status = 1 ] && [ ! -e "$work/requeued" ]
    say "$script: ranks that failed are not" $? "status $status"
done

cat src/base/*.c >"$work/text"
python3 tests/e2e/make_shard.py "$work/text" "$work/shard" 700 >"$work/log" 2>&1
say "a small shard" $? "$(cat "$work/log")"
trains() { # name, ranks, options...
    local name=$1 ranks=$2
    shift 2
    OMP_NUM_THREADS=1 timeout 120 "$lateen" launch --ranks "$ranks" --plain train "recipes/parallel/$name.yaml" --mesh "dp=$ranks" \
        --out "$work/$name" --data.train "$work/shard" --data.valid "$work/shard" --model.layers 2 --model.width 64 --model.heads 8 --model.ffn 128 \
        --model.vocab 1024 --data.seq 64 --batch.size 64 --steps 2 --lr.warmup 0 --eval.every 0 --export false --device cpu "$@" >"$work/log" 2>&1 &&
        grep -q '^finished 2 steps' "$work/log"
    say "$name: trains with a small model on $ranks CPU ranks" $? "$(grep -v 'another rank' "$work/log" | tail -3)"
}
trains llama-1b-8gpus 8
trains llama-8b-2x8gpus 16
trains apertus-8b-alps-64 16 --lr.cooldown 1

# The checks notice the faults that they are for.
good=recipes/parallel/llama-8b-2x8gpus
sed 's/^mesh: .*/mesh: dp=8/' $good.yaml >"$work/few.yaml"
! ranks_agree "$work/few.yaml" $good.sbatch
say "half of the ranks is noticed" $?
sed '/^mesh.zero/d; /^mesh.shard/d' $good.yaml >"$work/whole.yaml"
! fits "$work/whole.yaml" dgx-h100 80
say "8B undivided does not fit 80 GiB" $?
sed 's/^mesh.zero/mesh.zeros/' $good.yaml >"$work/wrong.yaml"
! fits "$work/wrong.yaml" dgx-h100 80 && grep -q 'mesh.zeros' "$work/log"
say "a misspelt key is refused by name" $? "$(cat "$work/log")"
finish
