#!/usr/bin/env bash
# Train a tiny model on the CPU and on the emulated GPU; every loss must agree. Prints TAP.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat src/base/*.c | head -c 60000 >"$work/text" || true # Any text will do.
python3 tests/e2e/make_shard.py "$work/text" "$work/shard" 700
train() { # folder, options...
    local out=$1
    shift
    "$@" build/lateen train --out "$out" --steps 6 --data.train "$work/shard" --model.vocab 256 --model.layers 2 --model.width 64 \
        --model.heads 4 --data.seq 32 --batch.size 4 --threads 2 --export false --device "$device" --model.dtype "$dtype" >"$work/log" 2>&1 ||
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
echo "1..$n"
