#!/usr/bin/env bash
# Ranks on emulated GPUs, which talk through the emulated NCCL, against one rank on one GPU: losses and gradient norms agree, with several micro-batches, clipping and every level of ZeRO. A run that stops and
# continues has the bits of one that does not. What ranks on GPUs cannot do is refused by name. Prints TAP.
#   tests/emu/train_ranks.sh [all]     all: what takes long, too (tests/long)
set -u
cd "$(dirname "$0")/../.."
[ -n "${LATEEN_EMU_MADE:-}" ] || make -s emu 1>&2
. tests/emu/train_runs.sh
all() { [ "$what" = all ]; } # In make test-long only.
what=${1:-}
export LATEEN_EMU_MIB=3000
steps=3
# What is exchanged, and when, does not depend on sizes, so the core has small ones.
all && sizes=(--model.vocab 256 --model.width 64 --model.heads 4 --data.seq 32) || sizes=(--model.vocab 128 --model.width 32 --model.heads 2 --data.seq 16)
options=(--model.layers 2 "${sizes[@]}" --batch.size 8 --batch.micro 2)
shard 60000 700
# The third step replays the recording of the second.
for dtype in fp32 bf16; do
    # Sums in another order differ by the rounding of F32; in BF16 a difference may cross a
    # rounding boundary of a weight.
    [ $dtype = fp32 ] && bounds=(1e-6 1e-5) levels=(3) || bounds=(1e-4 2e-3) levels=(1)
    if all; then [ $dtype = fp32 ] && levels=(0 1 2 3) || levels=(1 3); fi
    train "one-$dtype" cuda 1 --model.dtype $dtype
    for zero in "${levels[@]}"; do
        train "two-$dtype-$zero" cuda 2 --model.dtype $dtype --mesh.zero $zero
        compare "two GPU ranks, $dtype, mesh.zero $zero: losses and norms of one" "one-$dtype" "two-$dtype-$zero" "${bounds[@]}"
    done
done
agree() { # name, bounds of loss and norm, options of both, --, options of two ranks
    local name=$1 bounds=("$2" "$3") both=()
    shift 3
    while [ "$1" != -- ]; do both+=("$1") && shift; done
    shift
    train "one $name" cuda 1 "${both[@]}"
    train "two $name" cuda 2 "${both[@]}" "$@"
    compare "two GPU ranks, $name $*: losses and norms of one" "one $name" "two $name" "${bounds[@]}"
}
# Newton-Schulz multiplies small singular values, and rounding errors in their directions, by up
# to 3.4445^5 = 485.
agree muon 5e-5 5e-4 --optim.kind muon -- --mesh.zero 3 --trace-step 1
n=$((n + 1))
if got=$(python3 tests/e2e/train_times.py --trace "$work/two muon/trace-step-1.json" 2 2 2 2>&1); then echo "ok $n - the trace of a step of two GPU ranks"; else echo "not ok $n - trace: $(tail -n 1 <<<"$got")"; fi
if all; then
    agree "8-bit products" 1e-4 2e-3 --model.dtype bf16 --model.fp8 tensorwise -- --mesh.zero 2
    train "scales" cuda 2 --model.dtype bf16 --model.fp8 tensorwise --mesh tp=2
    compare "two GPU ranks, 8-bit products with tp, one scale for the parts of a matrix: losses and norms of one" "one 8-bit products" scales 5e-4 5e-3
fi
if all; then # On an H100 that also runs kernels of NCCL, products launch more blocks than fit.
    steps=1 LATEEN_EMU_CAPABILITY=90 LATEEN_EMU_SMS=2 agree "products of an H100" 5e-4 5e-3 --model.dtype bf16 --model.layers 1 --model.width 256 --data.seq 1024 --batch.size 4 --
fi
agree mesh-invariant 0 0 --deterministic mesh-invariant --batch.groups 4 --
if all; then
    LATEEN_EMU_MIB=1000 train four cuda 4 --mesh.zero 3 --mesh.shard 2 --batch.micro 1
    compare "four GPU ranks, mesh.zero 3 in groups of two: losses and norms of one" one-fp32 four 1e-6 1e-5
fi
if all; then
    experts=(--model.family mixtral --model.experts 4 --model.top_k 2 --model.aux_coef 0 --batch.micro 1)
    train experts-one cuda 1 "${experts[@]}"
    LATEEN_EMU_MIB=1000 train experts cuda 4 "${experts[@]}" --mesh dp=4,ep=2 --mesh.zero 3
    compare "four GPU ranks, experts over two of them, mesh.zero 3: losses and norms of one" experts-one experts 1e-6 1e-5
fi
# Sites of one launch: of one rank each; and of two ranks each that divide the optimiser's state
# and train while a round is sent.
if all; then
    sites=(--diloco.sites 2 --diloco.every 2 --diloco.bits 32)
    train sites-cpu cpu 2 "${sites[@]}"
    LATEEN_EMU_MIB=1000 train sites cuda 2 "${sites[@]}"
    train sites-of-two-cpu cpu 4 "${sites[@]}" --batch.micro 1 --diloco.overlap 1
    LATEEN_EMU_MIB=1000 train sites-of-two cuda 4 "${sites[@]}" --batch.micro 1 --diloco.overlap 1 --mesh.zero 1
    for site in 0 1; do
        compare "GPU ranks as sites, site $site: losses and norms of CPU ranks" sites-cpu/site-$site sites/site-$site 1e-5 1e-4
        compare "GPU ranks as sites of two, mesh.zero 1, site $site: losses and norms of CPU ranks" sites-of-two-cpu/site-$site sites-of-two/site-$site 1e-5 1e-4
    done
fi
# The recorded passes of the whole run are replayed, while those of its parts are run or recorded.
parts() { # the whole run, its options...
    local whole=$1
    shift
    [ -e "$work/$whole" ] || train "$whole" cuda 2 "$@"
    rm -rf "$work/other" "$work/parts"
    # What step 1 wrote is copied while step 2 computes, so late that the update would overtake
    # the copy if it did not wait.
    LATEEN_EMU_LATE_DOWNLOADS_MS=100 train parts cuda 2 "$@" --steps 2 --checkpoint.every 1 --checkpoint.async true
    rm -rf "$work/parts/checkpoints/step-000000002"
    cp -r "$work/parts" "$work/other"
    train parts cuda 2 "$@" --checkpoint.every 1
    compare "two GPU ranks, $*: stopped and continued, bit for bit" "$whole" parts 0 0
}
if all; then
    parts tp --mesh tp=2
    parts cp --mesh cp=2 --mesh.context ulysses
    parts two-fp32-1 --mesh.zero 1
fi
parts two-fp32-3 --mesh.zero 3
train other cuda 1 --checkpoint.every 1
compare "a checkpoint of two GPU ranks, mesh.zero 3, continues on one" one-fp32 other 1e-6 1e-5
# guard.replay runs the passes of another rank's rows in parts, and compares hashes with those of
# the recorded pass as a whole.
[ -e "$work/two-fp32-1" ] || train two-fp32-1 cuda 2 --mesh.zero 1
train replayed cuda 2 --mesh.zero 1 --guard.replay 1
compare "two GPU ranks, guard.replay: the bits of a run without" two-fp32-1 replayed 0 0
n=$((n + 1))
if grep -q "the rows of 3 steps were computed on another rank, too" "$work/replayed.log"; then echo "ok $n - each step was computed again"; else echo "not ok $n - $(tail -n 3 "$work/replayed.log" | tr '\n' ' ')"; fi
# guard.replicas hashes on the GPU, after the sum; the results are read after the wait for the
# loss, however late they arrive. Bit flips: tests/unit/train/test_replicas.c.
LATEEN_EMU_LATE_DOWNLOADS_MS=50 train compared cuda 2 --guard.replicas 1
compare "two GPU ranks, guard.replicas: losses and norms of one" one-fp32 compared 1e-6 1e-5
n=$((n + 1))
if grep -q "the state of the ranks was compared 4 times" "$work/compared.log"; then echo "ok $n - three steps and a save were compared"; else echo "not ok $n - $(tail -n 3 "$work/compared.log" | tr '\n' ' ')"; fi
# A rank dies in the middle of a pass, or its transfer never ends: the other rank reports it
# within the deadline of 8 s, and the run ends with the status of a failed rank.
fails() { # fault, text, options...
    local fault=$1 text=$2 got status
    shift 2
    n=$((n + 1))
    got=$(LATEEN_PEER_COPIES=0 LATEEN_EMU_NCCL_FAULT=$fault train failed cuda 2 --steps 9 --mesh.deadline 8 "$@")
    status=$?
    if [ $status -eq 76 ] && grep -qF -- "$text" "$work/failed.log" && grep -qF "step 1/9" "$work/failed.log" && ! grep -qF "step 9/9" "$work/failed.log"; then
        echo "ok $n - fault $fault $*: named, status 76"
    else
        echo "not ok $n - fault $fault ($status): $got"
    fi
    rm -rf "$work/failed"
}
fails 1:20:die "[0] lateen: rank 1 was ended by signal 9"
fails 1:60:stall "of group grad (2 members): NCCL does not end it" --mesh.zero 3
LATEEN_TRANSFER_MIB=0 refuses "LATEEN_TRANSFER_MIB = '0' is not a number from 1 to 65536"
refuses "mesh.shard = 1 on device cuda divides nothing" --mesh.zero 3 --mesh.shard 1
refuses "each takes a GPU of its own" --device cuda:1
echo "1..$n"
