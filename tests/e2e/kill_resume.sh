#!/usr/bin/env bash
# Kill training with SIGKILL at random instants until it has finished, and compare every checkpointed bit with an uninterrupted run's.
#   tests/e2e/kill_resume.sh [KILLS]     default 8; prints TAP
# A run is killed KILLS times at a random moment of the time an uninterrupted one takes, then let finish.
set -eu
cd "$(dirname "$0")/../.."
kills=${1:-8}
lateen=${LATEEN:-build/lateen}
work=$(mktemp -d)
trap 'status=$?; [ $status -eq 0 ] || { echo "not ok 1 - ended with $status after ${died:-0} kills"; tail -n 5 "$work/log"; }; rm -rf "$work"' EXIT
cat src/base/*.c | head -c 60000 >"$work/text" || true # Any text will do.
python3 tests/e2e/make_shard.py "$work/text" "$work/shard" 700
# A script that becomes the program, so that the process to kill is the program itself.
cat >"$work/train" <<SCRIPT
#!/usr/bin/env bash
exec $lateen train --out "\$1" --steps 40 --data.train $work/shard --model.vocab 256 --model.layers 1 --model.width 32 \\
    --model.heads 2 --data.seq 32 --batch.size 4 --batch.ramp 2@0,4@40 --optim.kind ademamix --data.goldfish_k 7 \\
    --data.goldfish_h 5 --guard.loss_z 6 --guard.window 8 --checkpoint.every 3 --checkpoint.keep_last 3 \\
    --data.shuffle documents --threads 1 --export false --checkpoint.async "\${2:-false}"
SCRIPT
chmod +x "$work/train"
sums() { python3 - "$1" <<'PY'
import json, sys, glob
m = json.load(open(sorted(glob.glob(sys.argv[1] + "/checkpoints/step-*/manifest.json"))[-1]))
print(m["step"], m["rows"], m["tokens"], m["loader"], m["guard"], [(f["name"], f["xxh3"]) for f in m["files"]])
losses = [(r["step"], r["loss"], r["grad_norm"]) for r in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if r["kind"] == "train"]
print(losses)
PY
}
start=$(date +%s%N)
"$work/train" "$work/whole" 2>"$work/log" || { cat "$work/log"; exit 1; }
took_ms=$((($(date +%s%N) - start) / 1000000))
want=$(sums "$work/whole")
died=0 attempt=0
while [ "$died" -lt "$kills" ]; do
    attempt=$((attempt + 1))
    behind=false && [ $((attempt % 2)) = 0 ] && behind=true # Every second run writes checkpoints while it goes on.
    "$work/train" "$work/killed" $behind 2>"$work/log" &
    pid=$!
    sleep "$(awk -v r="$RANDOM" -v t="$took_ms" 'BEGIN { printf "%.3f", (0.02 + 0.5 * r / 32768) * t / 1000 }')"
    if kill -9 "$pid" 2>/dev/null; then died=$((died + 1)); fi
    wait "$pid" 2>/dev/null || true
    if [ -d "$work/killed/checkpoints/step-000000040" ]; then # Done: compare, and begin again.
        "$work/train" "$work/killed" 2>"$work/log"
        [ "$(sums "$work/killed")" = "$want" ] || { echo "not ok 1 - killed $died times, then equal"; sums "$work/killed" | head -c 2000; exit 1; }
        rm -rf "$work/killed"
    fi
done
"$work/train" "$work/killed" 2>"$work/log" || { cat "$work/log"; echo "not ok 1 - resume after $died kills"; exit 1; }
if [ "$(sums "$work/killed")" = "$want" ]; then
    echo "ok 1 - training killed $died times resumes bit for bit"
else
    echo "not ok 1 - training killed $died times resumes bit for bit"
    diff <(echo "$want") <(sums "$work/killed") | head -c 4000
    exit 1
fi
echo 1..1
