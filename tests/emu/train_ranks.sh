#!/usr/bin/env bash
# Ranks on emulated GPUs, which talk through the emulated NCCL, against one rank on one GPU: losses and gradient norms agree, with several micro-batches, clipping and every level of ZeRO. A run that stops and
# continues has the bits of one that does not. What ranks on GPUs cannot do is refused by name. Prints TAP.
#   tests/emu/train_ranks.sh [all]     all: what takes long, too (tests/long)
set -u
cd "$(dirname "$0")/../.."
make -s emu 1>&2
all() { [ "$what" = all ]; } # Of make test-long only.
what=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LATEEN_EMU_MADE=1 LATEEN_EMU_DEVICES=2 LATEEN_EMU_MIB=3000
cat src/base/*.c | head -c 60000 >"$work/text" || true # Any text will do.
python3 tests/e2e/make_shard.py "$work/text" "$work/shard" 700
options=(--data.train "$work/shard" --model.vocab 256 --model.layers 2 --model.width 64 --model.heads 4 --data.seq 32 --batch.size 8 --batch.micro 2 --threads 1
    --export false --device cuda --lr.schedule constant --lr.warmup 0 --optim.clip 0.5)
train() { # folder, ranks, options...
    local out=$1 ranks=$2 start=()
    shift 2
    [ "$ranks" = 1 ] || start=(launch --ranks "$ranks")
    timeout 200 tests/emu/run build/lateen "${start[@]}" train --out "$work/$out" "${options[@]}" "$@" >"$work/log" 2>&1 || { tail -n 5 "$work/log"; return 1; }
}
compare() { # name, folder, folder, largest relative difference of a loss, and of a gradient norm
    n=$((n + 1))
    python3 - "$n" "$@" "$work" <<'PY'
import json, sys
n, name, a, b, loss, norm, work = sys.argv[1:]
def steps(folder):
    return {r["step"]: r for r in map(json.loads, open(f"{work}/{folder}/metrics.jsonl")) if r["kind"] == "train"}
try:
    a, b = steps(a), steps(b)
    worst = [max(abs(a[i][k] - b[i][k]) / abs(a[i][k]) for i in a) for k in ("loss", "grad_norm")]
    good = sorted(a) == sorted(b) == [1, 2, 3] and worst[0] <= float(loss) and worst[1] <= float(norm)
    # The clip must have decided something, or its norm is not tested.
    good = good and all(r["grad_norm"] > 0.5 for r in a.values())
except (OSError, KeyError) as e:
    good, worst = False, repr(e)
print("ok" if good else "not ok", n, "-", name, "" if good else worst)
PY
}
n=0
# The third step replays what the second has recorded.
for dtype in fp32 bf16; do
    # Sums of other orders differ by the rounding of F32; in BF16 a difference may cross a rounding border of a weight.
    [ $dtype = fp32 ] && bounds=(1e-6 1e-5) levels=(0 1 2 3) || bounds=(1e-4 2e-3) levels=(1)
    if [ $dtype = bf16 ] && all; then levels=(1 3); fi
    train "one-$dtype" 1 --model.dtype $dtype --steps 3
    for zero in "${levels[@]}"; do
        train "two-$dtype-$zero" 2 --model.dtype $dtype --mesh.zero $zero --steps 3
        compare "two GPU ranks, $dtype, mesh.zero $zero: losses and norms of one" "one-$dtype" "two-$dtype-$zero" "${bounds[@]}"
    done
done
agree() { # name, bounds of loss and norm, options of both, --, options of two ranks
    local name=$1 bounds=("$2" "$3") both=()
    shift 3
    while [ "$1" != -- ]; do both+=("$1") && shift; done
    shift
    train "one $name" 1 "${both[@]}" --steps 3
    train "two $name" 2 "${both[@]}" "$@" --steps 3
    compare "two GPU ranks, $name $*: losses and norms of one" "one $name" "two $name" "${bounds[@]}"
}
agree muon 1e-6 1e-5 --optim.kind muon -- --mesh.zero 3
agree "8-bit products" 1e-4 2e-3 --model.dtype bf16 --model.fp8 tensorwise -- --mesh.zero 2
if all; then
    train "scales" 2 --model.dtype bf16 --model.fp8 tensorwise --mesh tp=2 --steps 3
    compare "two GPU ranks, 8-bit products with tp, one scale for the parts of a matrix: losses and norms of one" "one 8-bit products" scales 5e-4 5e-3
fi
agree mesh-invariant 0 0 --deterministic mesh-invariant --batch.groups 4 --
if all; then
    LATEEN_EMU_DEVICES=4 LATEEN_EMU_MIB=1000 train four 4 --mesh.zero 3 --mesh.shard 2 --batch.micro 1 --steps 3
    compare "four GPU ranks, mesh.zero 3 in groups of two: losses and norms of one" one-fp32 four 1e-6 1e-5
fi
# The passes of the whole run are recorded and replayed where those of its parts are run or recorded.
parts() { # the whole run, its options...
    local whole=$1
    shift
    [ -e "$work/$whole" ] || train "$whole" 2 "$@" --steps 3
    rm -rf "$work/other" "$work/parts"
    train parts 2 "$@" --steps 1 --checkpoint.every 1
    cp -r "$work/parts" "$work/other"
    train parts 2 "$@" --steps 3 --checkpoint.every 1
    compare "two GPU ranks, $*: stopped and continued, bit for bit" "$whole" parts 0 0
}
if all; then
    parts tp --mesh tp=2
    parts cp --mesh cp=2 --mesh.context ulysses
    parts two-fp32-1 --mesh.zero 1
fi
parts two-fp32-3 --mesh.zero 3
train other 1 --steps 3 --checkpoint.every 1
compare "a checkpoint of two GPU ranks, mesh.zero 3, continues on one" one-fp32 other 1e-6 1e-5
# A rank dies in the middle of a pass, or its transfer never ends: the other one says so within the deadline of 4 s, and the run ends with the status of a failed rank.
fails() { # fault, text, options...
    local fault=$1 text=$2 got status
    shift 2
    n=$((n + 1))
    got=$(LATEEN_EMU_NCCL_FAULT=$fault timeout 120 tests/emu/run build/lateen launch --ranks 2 train --out "$work/failed" "${options[@]}" --steps 9 --mesh.deadline 4 "$@" 2>&1)
    status=$?
    if [ $status -eq 76 ] && grep -qF -- "$text" <<<"$got" && grep -qF "step 1/9" <<<"$got" && ! grep -qF "step 9/9" <<<"$got"; then
        echo "ok $n - fault $fault $*: named, status 76"
    else
        echo "not ok $n - fault $fault ($status): $(tail -n 4 <<<"$got" | tr '\n' ' ')"
    fi
    rm -rf "$work/failed"
}
fails 1:20:die "[0] lateen: rank 1 was ended by signal 9"
fails 1:60:stall "of group grad (2 members): NCCL does not end it" --mesh.zero 3
refuses() { # text, options...
    local text=$1 got status
    shift
    n=$((n + 1))
    got=$(timeout 60 tests/emu/run build/lateen launch --ranks 2 train --out "$work/refused" "${options[@]}" --steps 6 "$@" 2>&1)
    status=$?
    if [ $status -ne 0 ] && grep -qF -- "$text" <<<"$got" && [ ! -e "$work/refused/metrics.jsonl" ]; then
        echo "ok $n - refused: $*"
    else
        echo "not ok $n - $* ($status): $(head -c 300 <<<"$got")"
    fi
    rm -rf "$work/refused"
}
refuses "mesh.shard = 1 on device cuda divides nothing" --mesh.zero 3 --mesh.shard 1
refuses "each takes a GPU of its own" --device cuda:1
echo "1..$n"
