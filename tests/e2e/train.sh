#!/usr/bin/env bash
# `lateen train` as users run it: clean stops, resume, damaged checkpoints, bad recipes, a full disk. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
lateen=${LATEEN:-build/lateen}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0 bad=0
ok() { # name, command...: passes if the command does
    local name=$1
    shift
    n=$((n + 1))
    if "$@" >"$work/out" 2>&1; then echo "ok $n - $name"; else
        echo "not ok $n - $name"
        tail -n 15 "$work/log" "$work/out" 2>/dev/null
        bad=1
    fi
}
cat src/base/*.c | head -c 60000 >"$work/text"
python3 tests/e2e/make_shard.py "$work/text" "$work/shard" 700
cat >"$work/recipe.yaml" <<YAML
steps: 30
threads: 1
model: {vocab: 256, layers: 1, width: 32, heads: 2}
data: {train: $work/shard, seq: 32, val_fraction: 0.1}
batch: {size: 4}
checkpoint: {every: 5, keep_last: 3}
eval: {rows: 8}
lr: {schedule: constant}
YAML
run() { "$lateen" train "$work/recipe.yaml" --out "$work/$1" "${@:2}" >"$work/stdout" 2>"$work/log"; }
says() { grep -qE -- "$1" "$work/log"; }
fails() { # exit status, message, run arguments...
    local status=$1 message=$2
    shift 2
    run "$@"
    [ $? -eq "$status" ] && says "$message" && [ "$(grep -c '^lateen: ' "$work/log")" -eq 1 ]
}
weights() { python3 -c 'import json,sys; print([f["xxh3"] for f in json.load(open(sys.argv[1]))["files"]])' "$work/$1/checkpoints/step-000000030/manifest.json"; }

ok "a run finishes" run whole
for f in recipe.yaml metrics.jsonl log.txt report.html checkpoints/step-000000030/manifest.json model/model.safetensors model/config.json; do
    ok "it leaves $f" test -s "$work/whole/$f"
done
ok "keep_last removes older checkpoints" test ! -e "$work/whole/checkpoints/step-000000015"
ok "metrics hold every step, a validation and an end" python3 - "$work/whole/metrics.jsonl" <<'PY'
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
assert [r["step"] for r in rows if r["kind"] == "train"] == list(range(1, 31))
assert rows[0]["kind"] == "start" and rows[-1]["kind"] == "end"
first, last = [r["loss"] for r in rows if r["kind"] == "train"][:2], [r["loss"] for r in rows if r["kind"] == "train"][-2:]
assert sum(last) < sum(first)
assert any(r["kind"] == "eval" and r["perplexity"] > 1 for r in rows)
PY
chromium=$(command -v chromium || command -v chromium-headless-shell || command -v google-chrome)
if [ -n "$chromium" ]; then ok "its report can be read" python3 tests/e2e/report_page.py "$work/whole/report.html" "$chromium"; else
    n=$((n + 1))
    echo "ok $n - its report can be read # SKIP no chromium"
fi
ok "the effective recipe gives the same bits" bash -c "'$lateen' train '$work/whole/recipe.yaml' --out '$work/again' 2>'$work/log'"
ok "... equal" test "$(weights whole)" = "$(weights again)"
ok "another number of threads gives the same bits" run threads --threads 2
ok "... equal" test "$(weights whole)" = "$(weights threads)"
ok "a Gemma of fewer layers than its window's period is saved" run gemma --model.family gemma3
ok "a finished run run again does nothing" run whole

# Stop process $pid at its fifth step: thirty of these steps may take less than a tenth of a
# second.
hold() { # folder
    until [ -e "$work/$1/checkpoints/step-000000005" ] || ! kill -0 "$pid"; do :; done
    kill -STOP "$pid"
}
stopped() { # how: a shell command that stops process $pid
    rm -rf "$work/stop"
    "$lateen" train "$work/recipe.yaml" --out "$work/stop" 2>"$work/log" &
    pid=$!
    hold stop
    eval "$1"
    kill -CONT "$pid"
    wait "$pid"
    [ $? -eq 75 ] && run stop && [ "$(weights stop)" = "$(weights whole)" ]
}
ok "SIGTERM: saved, exit 75, resumed bit for bit" stopped 'kill -TERM $pid'
for signal in HUP USR1 USR2 XCPU; do ok "SIG$signal likewise" stopped "kill -$signal \$pid"; done
hung_up() { # nohup has SIGHUP ignored: the run continues to its end.
    nohup "$lateen" train "$work/recipe.yaml" --out "$work/nohup" >/dev/null 2>"$work/log" &
    pid=$!
    hold nohup
    kill -HUP "$pid"
    kill -CONT "$pid"
    wait "$pid" && [ "$(weights nohup)" = "$(weights whole)" ]
}
ok "under nohup SIGHUP is ignored" hung_up
no_reader() { # The reader of its messages disappears.
    "$lateen" train "$work/recipe.yaml" --out "$work/piped" --log.plain_every 0 2>&1 | head -n 1 >/dev/null
    [ "${PIPESTATUS[0]}" -eq 0 ] && [ "$(weights piped)" = "$(weights whole)" ]
}
ok "a reader that disappears does not end the run" no_reader
ok "a file named exit likewise" stopped 'touch "$work/stop/exit"'

run broken --steps 15
flip() { printf "$(printf '\\x%02x' $((0x$(xxd -s "$2" -l 1 -p "$1" 2>/dev/null || od -An -tx1 -j "$2" -N 1 "$1" | tr -d ' ') ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }
flip "$work/broken/checkpoints/step-000000015/m.safetensors" 5000
ok "a flipped bit: the older checkpoint is taken" run broken
ok "... and the message names the file" says 'step-000000015 is broken and skipped.*m.safetensors has checksum'
ok "... and the result is the same" test "$(weights broken)" = "$(weights whole)"
ok "... the broken one has been replaced by a whole one" run broken --steps 30
run lost --steps 5
for d in "$work"/lost/checkpoints/step-*; do truncate -s 100 "$d/weights.safetensors"; done
ok "all checkpoints broken: refused, nothing removed" fails 1 'all 1 checkpoints' lost
ok "... still there" test -e "$work/lost/checkpoints/step-000000005/m.safetensors"
ok "a checkpoint of another model is refused" fails 1 'model.width was 32, now 64' whole --steps 40 --model.width 64
ok "a checkpoint of another optimiser is refused" fails 1 'optim.kind was adamw, now ademamix' whole --steps 40 --optim.kind ademamix
ok "... also when the change is allowed, because some moments are missing" fails 1 "keeps no 'slow'" whole --steps 40 --optim.kind ademamix --allow-change optim.kind

ok "a flag without effect is refused" fails 2 '--optim.beta3 0.5 has no effect: it needs optim.kind = ademamix' x --optim.beta3 0.5
printf 'optim: {beta3: 0.5}\nsteps: 1\nmodel: {vocab: 256, layers: 1, width: 32, heads: 2}\ndata: {train: %s}\n' "$work/shard" >"$work/idle.yaml"
ok "... one in a recipe is reported" bash -c "'$lateen' train '$work/idle.yaml' --out '$work/idle' 2>'$work/log' && grep -q 'warn: optim.beta3 = 0.5 has no effect' '$work/log'"
ok "help lists what a resumed run may change" bash -c "'$lateen' train --help | sed -n '/A resumed run may change/,\$p' | tr '\n' ' ' | grep -q 'steps resume verify .*optim.lr optim.clip .*export'"
ok "... and not what it keeps" bash -c "! '$lateen' train --help | sed -n '/A resumed run may change/,\$p' | grep -qE 'seed|model.act|optim.beta1|batch.size'"
ok "an option for each name that a resume refuses" fails 1 'model.act was xielu, now silu; optim.beta1 was 0.9, now 0.8' whole --steps 40 --model.act silu --optim.beta1 0.8
ok "... allowed by name, once" run whole --steps 31 --optim.beta1 0.8 --allow-change optim.beta1
ok "... and kept" bash -c "grep -q 'beta1: 0.9' '$work/whole/history/recipe-000.yaml' && grep -q 'beta1: 0.8' '$work/whole/recipe.yaml'"

ok "unknown key" fails 2 "did you mean 'optim.lr'" x --optim.lrr 1
ok "out of range" fails 2 'steps = 0|-1' x --optim.lr=-1
ok "contradiction" fails 2 'lr.warmup = 100 steps is longer' x --lr.warmup 100
ok "missing data" fails 1 'no-such-shard' x --data.train "$work/no-such-shard"
ok "missing validation data, before the first step" fails 1 'no-such-shard' x --data.valid "$work/no-such-shard" --data.val_fraction 0
ok "... of which there is none" test ! -e "$work/x/metrics.jsonl"
ok "ids out of the vocabulary" fails 1 'token [0-9]+ is id [0-9]+, the vocabulary has 64' x --model.vocab 64
printf 'steps: 5\nsteps: 6\n' >"$work/twice.yaml"
ok "a key twice" bash -c "'$lateen' train '$work/twice.yaml' --out '$work/x' 2>'$work/log'; [ \$? -eq 1 ]"
ok "unreadable recipe" bash -c "'$lateen' train '$work/none.yaml' --out '$work/x' 2>'$work/log'; [ \$? -eq 1 ] && grep -q none.yaml '$work/log'"

# Files may not grow beyond 40 KiB: the save fails, the message says so, and no partial checkpoint
# is left.
disk_full() {
    (trap '' XFSZ; ulimit -f 40; run full --steps 10)
    [ $? -eq 1 ] && says 'not saved: write .*(File too large|No space)' && [ -z "$(ls "$work/full/checkpoints")" ]
}
ok "a full disk" disk_full
ok "... and when there is room again the run continues" run full
"$lateen" train "$work/recipe.yaml" --out "$work/busy" --steps 2000 2>/dev/null &
pid=$!
for _ in $(seq 3000); do [ -s "$work/busy/metrics.jsonl" ] && break; sleep 0.02; done
ok "a busy run folder is refused" fails 1 'in use by another process' busy
kill -9 "$pid"
ok "a diverging run gives up with its numbers" fails 1 'updates in a row were skipped' nan --optim.lr 100 --optim.clip 0 --guard.limit 3 --steps 400
ok "... every checkpoint that it left is finite, and its message names one" bash -c "grep -q 'nan/checkpoints/step-' '$work/log' && python3 - '$work/nan/checkpoints' <<'PY'
import glob, json, struct, sys, array, math
files = glob.glob(sys.argv[1] + '/step-*/*.safetensors')
assert len(files) >= 3
for f in files:
    raw = open(f, 'rb').read()
    n = struct.unpack('<Q', raw[:8])[0]
    assert all(map(math.isfinite, array.array('f', raw[8 + n:]))), f
PY"
stopped_while_diverged() {
    rm -rf "$work/sick"
    "$lateen" train "$work/recipe.yaml" --out "$work/sick" --optim.lr 100 --optim.clip 0 --guard.limit 1000000000 --steps 1000000 2>"$work/log" &
    pid=$!
    for _ in $(seq 3000); do grep -q 'no checkpoint while' "$work/log" && break; sleep 0.02; done
    kill -TERM "$pid"
    wait "$pid"
    [ $? -eq 75 ] && says 'not finite, so nothing was saved since step'
}
ok "stopped while it diverges: 75, and nothing of it is saved" stopped_while_diverged
echo "1..$n"
exit $bad
