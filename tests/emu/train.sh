#!/usr/bin/env bash
# Train a tiny model on the CPU and on the emulated GPU. Every loss must agree, also if one
# continues from the other's checkpoint, and stopping must not change a bit. Prints TAP.
set -eu
cd "$(dirname "$0")/../.."
[ -n "${LATEEN_EMU_MADE:-}" ] || make -s emu 1>&2
export LATEEN_EMU_MADE=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat src/base/*.c | head -c 60000 >"$work/text" || true # Any text will do.
python3 tests/e2e/make_shard.py "$work/text" "$work/shard" 700
train() { # folder, env or tests/emu/run, options...
    local out=$1
    shift
    local runner=$1
    shift
    "$runner" build/lateen train --out "$out" --steps 6 --data.train "$work/shard" --model.vocab 256 --model.layers 2 --model.width 64 --model.heads 4 \
        --data.seq 32 --batch.size 4 --threads 2 --export false --device "$device" --model.dtype "$dtype" "$@" >"$work/log" 2>&1 ||
        { tail -n 5 "$work/log"; return 1; }
}
n=0
for dtype in fp32 bf16; do
    n=$((n + 1))
    device=cpu train "$work/cpu-$dtype" env && device=cuda train "$work/cuda-$dtype" tests/emu/run || { echo "not ok $n - training in $dtype"; continue; }
    python3 - "$work" $dtype $n <<'PY'
import json, sys
work, dtype, n = sys.argv[1:]
def losses(where):
    return [r["loss"] for r in map(json.loads, open(f"{work}/{where}-{dtype}/metrics.jsonl")) if r["kind"] == "train"]
cpu, gpu = losses("cpu"), losses("cuda")
off = max(abs(a - b) / a for a, b in zip(cpu, gpu))
good = len(cpu) == len(gpu) == 6 and off < (1e-5 if dtype == "fp32" else 5e-3)
print("ok" if good else "not ok", n, f"- training in {dtype}: losses {off:.1e} apart after {len(gpu)} steps")
PY
done

# Checkpoints move between devices: two steps on one, two on the other; on the GPU in one run, and
# with one more stop. Moments are in bf16, with random rounding.
dtype=bf16
part() { # folder, device, steps
    device=$2
    local runner=env
    [ "$2" = cpu ] || runner=tests/emu/run
    train "$work/$1" $runner --steps "$3" --model.layers 1 --data.seq 16 --batch.size 2 --lr.schedule constant --optim.moments bf16
}
part on-cpu cpu 4 && part to-gpu cpu 2 && cp -r "$work/to-gpu" "$work/stopped" && part to-gpu cuda 4 && part stopped cuda 3 && part stopped cuda 4 &&
    part to-cpu cuda 2 && part to-cpu cpu 4 || echo "not ok - checkpoints across devices"
python3 - "$work" $n <<'PY'
import json, sys
work, n = sys.argv[1], int(sys.argv[2])
def losses(where):
    return [r["loss"] for r in map(json.loads, open(f"{work}/{where}/metrics.jsonl")) if r["kind"] == "train"]
def files(where):
    return json.load(open(f"{work}/{where}/checkpoints/step-000000004/manifest.json"))["files"]
cpu = losses("on-cpu")
for i, (where, what) in enumerate((("to-gpu", "the GPU goes on from the CPU's checkpoint"), ("to-cpu", "the CPU goes on from the GPU's checkpoint"))):
    other = losses(where)
    off = max(abs(a - b) / a for a, b in zip(cpu, other))
    print("ok" if len(other) == len(cpu) == 4 and off < 5e-3 else "not ok", n + 1 + i, f"- {what}: losses {off:.1e} apart from the CPU's alone")
print("ok" if files("to-gpu") == files("stopped") else "not ok", n + 3, "- stopped and resumed on the GPU after the CPU's checkpoint: the same bits")
PY
echo "1..$((n + 3))"
