#!/usr/bin/env bash
# Adapters on meshes of emulated GPUs: losses and gradient norms are those of one CPU rank in fp32, and of one GPU in bf16. The base comes unit by unit at mesh.zero 3, with a family whose small
# parameters ops want in fp32 beside bf16 weights. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
make -s emu 1>&2
. tests/emu/train_runs.sh
export LATEEN_EMU_MIB=1000 LATEEN_EMU_NCCL_DELAY_US=50
steps=2
options=(--data.seq 16 --batch.size 2 --batch.micro 1)
shard 20000 23
base() { # family
    train "base-$1" cpu 1 --model.vocab 259 --model.layers 2 --model.width 64 --model.heads 4 --model.kv_heads 2 --model.family "$1" --steps 1 --export true
}
# The factor is large so that the clip decides something in the first steps.
adapt() { # family, folder, device, ranks, options...
    local family=$1
    shift
    train "$@" --model.init "$work/base-$family/model" --lora.rank 4 --lora.alpha 64 --lora.targets all-linear,embed_tokens,lm_head --optim.lr 1e-3
}
base llama
base apertus
for family in llama apertus; do
    adapt $family $family cpu 1 --model.dtype fp32 &
    adapt $family $family-bf16 cuda 1 --model.dtype bf16
    wait
done
mesh() { # family, name, options of the mesh...
    local family=$1 name=$2
    shift 2
    adapt "$family" "$name" cuda 2 --model.dtype fp32 "$@" &
    adapt "$family" "$name-bf16" cuda 2 --model.dtype bf16 "$@"
    wait
    compare "adapters of $family, $* on two GPUs, fp32: one CPU rank" "$family" "$name" 1e-5 1e-4
    compare "adapters of $family, $* on two GPUs, bf16: one GPU" "$family-bf16" "$name-bf16" 1e-3 1e-2
}
mesh llama tp --mesh tp=2
mesh llama pp --mesh pp=2
mesh llama cp --mesh cp=2
mesh llama zero2 --mesh dp=2 --mesh.zero 2
mesh apertus zero3 --mesh dp=2 --mesh.zero 3
echo "1..$n"
