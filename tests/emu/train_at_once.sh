#!/usr/bin/env bash
# Several adapters at once on meshes of emulated GPUs: losses and gradient norms of each are those of one CPU rank. The third step replays what the second has recorded, with callbacks of all adapters
# between the pieces. Prints TAP.
#   tests/emu/train_at_once.sh [all]      all: further meshes, and the base in bf16 and in blocks (tests/long)
set -u
cd "$(dirname "$0")/../.."
[ -n "${LATEEN_EMU_MADE:-}" ] || make -s emu 1>&2
. tests/emu/train_runs.sh
export LATEEN_EMU_MIB=1000 LATEEN_EMU_NCCL_DELAY_US=50
steps=3
options=(--data.seq 16)
shard 20000 23
train base cpu 1 --model.family apertus --model.vocab 259 --model.layers 2 --model.width 64 --model.heads 4 --model.kv_heads 2 --batch.size 2 --steps 1 --export true
cat >"$work/many.yaml" <<'YAML'
adapters:
  wide: {batch.size: 4, optim.lr: 1e-3}
  narrow: {batch.size: 2, lora.rank: 2, lora.targets: "q_proj,down_proj", optim.lr: 1e-4}
YAML
# The factor is large so that the gradients are clipped in the first steps.
many() { # folder, device, ranks, options...
    train "$@" "$work/many.yaml" --model.init "$work/base/model" --lora.rank 4 --lora.alpha 64
}
each() { # what, folder, folder, bounds of loss and norm
    for adapter in wide narrow; do compare "$1: $adapter" "$2/$adapter" "$3/$adapter" "$4" "$5"; done
}
mesh() { # ranks, options of the mesh...
    local ranks=$1
    shift
    many gpus cuda "$ranks" --model.dtype fp32 "$@"
    each "adapters at once, $* on $ranks GPUs, fp32: one CPU rank" one gpus 1e-5 1e-4
    rm -rf "$work/gpus"
}
many one cpu 1 --model.dtype fp32
mesh 2 --mesh tp=2
mesh 2 --mesh pp=2 --batch.micro 2
mesh 2 --mesh dp=2 --mesh.zero 3 --batch.micro 2
if [ "${1:-}" = all ]; then
    mesh 2 --mesh cp=2
    mesh 2 --mesh dp=2 --mesh.zero 1
    mesh 4 --mesh pp=2,dp=2 --mesh.zero 2 --batch.micro 2
    for more in "--model.dtype bf16" "--model.dtype bf16 --lora.base q8_0"; do
        # shellcheck disable=SC2086
        many alone cuda 1 $more && many gpus cuda 2 $more --mesh dp=2 --mesh.zero 3
        each "adapters at once, mesh.zero 3 on two GPUs, $more: one GPU" alone gpus 1e-3 1e-2
        rm -rf "$work/alone" "$work/gpus"
    done
fi
echo "1..$n"
