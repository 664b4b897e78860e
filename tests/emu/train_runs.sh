# shellcheck shell=bash
# Runs of `lateen train` on emulated GPUs and on CPUs, one rank or several, and comparisons of them; sourced by train_ranks.sh and train_axes.sh.
# They set `steps`, the default number of steps of a run, and `options`, the options that all runs
# have in common. They print TAP.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LATEEN_EMU_MADE=1
n=0
shard() { # bytes of text, bytes of a document: $work/shard
    # Any ASCII text will do that does not change with the sources: differences by rounding depend
    # on it.
    LC_ALL=C tr -d '\200-\377' <tests/golden/data/chat_rows.jsonl | head -c "$1" >"$work/text" || true
    python3 tests/e2e/make_shard.py "$work/text" "$work/shard" "$2"
}
train() { # folder, device, ranks, options...; its output goes to $work/FOLDER.log
    local out=$1 device=$2 ranks=$3 run=(env) start=() status
    shift 3
    [ "$ranks" = 1 ] || start=(launch --ranks "$ranks")
    [ "$device" = cpu ] || run=(env "LATEEN_EMU_DEVICES=$ranks" tests/emu/run)
    timeout 200 "${run[@]}" build/lateen "${start[@]}" train --out "$work/$out" --device "$device" --data.train "$work/shard" --threads 1 --export false --lr.schedule constant \
        --lr.warmup 0 --optim.clip 0.5 --steps "$steps" "${options[@]}" "$@" >"$work/$out.log" 2>&1
    status=$?
    [ $status = 0 ] || echo "# $out: $(tail -n 5 "$work/$out.log" | tr '\n' ' ')"
    return $status
}
compare() { # name, folder, folder, largest relative difference of a loss, and of a gradient norm
    n=$((n + 1))
    python3 - "$n" "$@" "$work" "$steps" <<'PY'
import json, sys
n, name, a, b, loss, norm, work, last = sys.argv[1:]
def steps(folder):
    return {r["step"]: r for r in map(json.loads, open(f"{work}/{folder}/metrics.jsonl")) if r["kind"] == "train"}
try:
    a, b = steps(a), steps(b)
    worst = [max(abs(a[i][k] - b[i][k]) / abs(a[i][k]) for i in a) for k in ("loss", "grad_norm")]
    good = sorted(a) == sorted(b) == list(range(1, int(last) + 1)) and worst[0] <= float(loss) and worst[1] <= float(norm)
    # Gradients must have been clipped at least once, or the norm is not tested.
    good = good and all(r["grad_norm"] > 0.5 for r in a.values())
except (OSError, KeyError) as e:
    good, worst = False, repr(e)
print("ok" if good else "not ok", n, "-", name, "" if good else worst)
PY
}
refuses() { # text, options...: of two ranks on GPUs
    local text=$1 got status
    shift
    n=$((n + 1))
    got=$(train refused cuda 2 "$@")
    status=$?
    if [ $status -ne 0 ] && grep -qF -- "$text" "$work/refused.log" && [ ! -e "$work/refused/metrics.jsonl" ]; then
        echo "ok $n - refused: $*"
    else
        echo "not ok $n - $* ($status): $got"
    fi
    rm -rf "$work/refused"
}
