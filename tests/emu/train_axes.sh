#!/usr/bin/env bash
# The axes of the mesh that divide the model, on two emulated GPUs and the emulated NCCL: losses and gradient norms are those of one GPU and of two CPU ranks, in fp32 and bf16, and a checkpoint of
# two ranks continues on one. What ranks on GPUs cannot divide is refused by name. Prints TAP. Rows alone (dp) and ZeRO: train_ranks.sh.
#   tests/emu/train_axes.sh [all]      all: what takes long, too (tests/long)
set -u
cd "$(dirname "$0")/../.."
[ -n "${LATEEN_EMU_MADE:-}" ] || make -s emu 1>&2
. tests/emu/train_runs.sh
# In the core, BF16 is tested with tp, whose parts of weights are narrow, and with experts, whose
# rows travel.
[ "${1:-}" = all ] && schedules=(zbv v-half) levels=(2 3) in_bf16='*' || schedules=(zbv) levels=(3) in_bf16='tp=2 ep=2'
export LATEEN_EMU_MIB=1100 LATEEN_EMU_NCCL_DELAY_US=50
steps=2
options=(--model.vocab 259 --model.layers 2 --model.width 64 --model.heads 4 --model.kv_heads 2 --data.seq 16 --batch.size 2 --batch.micro 1)
shard 20000 23
# The runs that must agree, and how closely: sums in F32 may have another order; in BF16 a
# difference may cross a rounding boundary of an activation.
axis() { # model, name, options of the mesh...
    local model=$1 name=$2
    shift 2
    train "$name" cuda 2 --model.dtype fp32 ${models[$model]} "$@" &
    train "$name-cpu" cpu 2 --model.dtype fp32 ${models[$model]} "$@"
    [[ " $in_bf16 " == *" $name "* || $in_bf16 = '*' ]] && train "$name-bf16" cuda 2 --model.dtype bf16 ${models[$model]} "$@"
    wait
    compare "$name on two GPUs, fp32: one GPU" "$model-fp32" "$name" 1e-6 1e-5
    compare "$name on two GPUs, fp32: two CPU ranks" "$name-cpu" "$name" 1e-5 1e-4
    [ ! -e "$work/$name-bf16.log" ] || compare "$name on two GPUs, bf16: one GPU" "$model-bf16" "$name-bf16" 5e-4 5e-3
}
# The load-balancing loss depends on the rows of a rank alone, so it is off.
declare -A models=([dense]=--model.family=llama [experts]="--model.family=mixtral --model.experts=4 --model.top_k=2 --model.aux_coef=0")
for model in "${!models[@]}"; do
    for dtype in fp32 bf16; do train "$model-$dtype" cuda 1 --model.dtype $dtype ${models[$model]} & done
    wait
done
axis dense tp=2 --mesh tp=2
# Norms of q and k over the heads of both ranks.
for device in cpu cuda; do train olmo2-$device $device 2 --model.dtype fp32 --model.family olmo2 --mesh tp=2; done
compare "tp=2 of olmo2 on two GPUs, fp32: two CPU ranks" olmo2-cpu olmo2-cuda 1e-5 1e-4
# A rank's own rows lie between rows of other ranks: the products of those wait for the gather,
# its own does not.
train tp=4 cuda 4 --model.dtype fp32 ${models[dense]} --mesh tp=4
compare "tp=4 on four GPUs, fp32: one GPU" dense-fp32 tp=4 1e-6 1e-5
axis dense pp=2 --mesh pp=2
# A schedule in the shape of a V: each rank has two stages, and gradients of weights are computed
# later.
train four cpu 1 --model.layers 4
for schedule in "${schedules[@]}"; do train $schedule cuda 2 --model.layers 4 --mesh pp=2 --mesh.schedule $schedule --trace-step 1 & done
wait
for schedule in "${schedules[@]}"; do compare "pp=2 as $schedule on two GPUs, fp32: one CPU rank" four $schedule 1e-5 1e-4; done
# Gradients of several micro-batches are summed once over the replicas of a pipeline.
train replicas-cpu cpu 1 --batch.size 4
train replicas cuda 4 --batch.size 4 --mesh pp=2,dp=2
compare "pp=2 with dp=2 on four GPUs, fp32: one CPU rank" replicas-cpu replicas 1e-5 1e-4
# Each micro-batch reduces its gradients and gathers its weights, also in the trial pass that
# loads kernels, whose gradients are dropped. A tied embedding is in both stages, and each rank
# has two runs of layers.
tied=(--batch.size 4 --model.layers 4 --model.tied true)
train tied-cpu cpu 1 "${tied[@]}"
for zero in "${levels[@]}"; do
    train zero$zero cuda 4 "${tied[@]}" --mesh pp=2,dp=2 --mesh.zero $zero --mesh.schedule interleaved
    compare "mesh.zero $zero in a pipeline on four GPUs, fp32: one CPU rank" tied-cpu zero$zero 1e-5 1e-4
done
axis dense ring --mesh cp=2 --mesh.context ring
for context in gather ulysses; do train $context cuda 2 --model.dtype fp32 ${models[dense]} --mesh cp=2 --mesh.context $context & done
wait
for context in gather ulysses; do
    compare "cp=2 by $context on two GPUs, fp32: one GPU" dense-fp32 $context 1e-6 1e-5
done
axis experts ep=2 --mesh dp=2,ep=2
# The parts that two ranks wrote at step 1 are resumed by one rank.
train parts cuda 2 --model.dtype fp32 ${models[dense]} --steps 1 --checkpoint.every 1 --mesh tp=2 && train parts cuda 1 --model.dtype fp32 ${models[dense]}
compare "a checkpoint of tp=2 continues on one GPU" dense-fp32 parts 1e-6 1e-5
refuses "no two ranks have the same experts" ${models[experts]} --mesh dp=2,ep=2 --mesh.zero 1
echo "1..$n"
