#!/usr/bin/env bash
# Compare what `lateen plan --model RECIPE` announces with what `lateen train` announces for the same recipe: every row must be equal to the byte,
# over families, types, levels of recomputation, 8-bit products and optimisers. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
lateen=${LATEEN:-build/lateen}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0 bad=0
said() { # result, name
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else
        echo "not ok $n - $2"
        sed 's/^/# /' "$work/log"
        bad=1
    fi
}
shard="data: {train: $work/shard, seq: 48}"
same() { # name, lines of the recipe...
    local name=$1 line
    shift
    printf 'out: %s\nsteps: 1\nexport: false\nsample: {tokens: 0}\n' "$work/run" >"$work/recipe.yaml"
    for line in "${data:-$shard}" "$@"; do echo "$line" >>"$work/recipe.yaml"; done
    rm -rf "$work/run"
    "$lateen" train "$work/recipe.yaml" >"$work/log" 2>&1 &&
        "$lateen" plan --model "$work/recipe.yaml" --json >"$work/plan.json" 2>>"$work/log" &&
        "$lateen" plan --model "$work/run" --json >"$work/folder.json" 2>>"$work/log" &&
        python3 - "$work" >>"$work/log" 2>&1 <<'PY'
import json, sys
work = sys.argv[1]
with open(work + "/run/metrics.jsonl") as f:
    told = json.loads(f.readline())["memory"]
for name in "plan", "folder":
    with open(f"{work}/{name}.json") as f:
        plan = json.load(f)
    assert len(plan["memory"]) == 9 and plan["memory"]["weights"] > 0, plan
    differ = {k: (v, told.get(k)) for k, v in plan["memory"].items() if told.get(k) != v}
    assert not differ, (name, differ)
    assert plan["buffers_bytes"] == sum(plan["memory"].values())
PY
    said $? "$name"
}
"$lateen" tokenizer train data/demo/val.jsonl.zst --vocab-size 512 --out "$work/tokenizer.json" >"$work/log" 2>&1 &&
    "$lateen" tokenize data/demo/val.jsonl.zst --tokenizer "$work/tokenizer.json" --out "$work/shard" >>"$work/log" 2>&1
said $? "prepare"
size='layers: 2, width: 64, heads: 4, vocab: 512, max_seq: 64'
same "gpt2, fp32, adamw" "model: {family: gpt2, $size}" "batch: {size: 4, micro: 2}"
same "llama, bf16, selective, lion" "model: {family: llama, $size, kv_heads: 2, dtype: bf16, recompute: selective}" \
    "batch: {size: 3}" "optim: {kind: lion, lr: 1e-4}"
same "apertus, bf16, full, ademamix, moments in bf16" "model: {family: apertus, $size, kv_heads: 2, dtype: bf16, recompute: full}" \
    "batch: {size: 4, micro: 4}" "optim: {kind: ademamix, moments: bf16, lr: 1e-4}"
same "qwen3, fp32, full, muon" "model: {family: qwen3, $size, kv_heads: 2, recompute: full}" "batch: {size: 2, micro: 1}" "optim: {kind: muon, lr: 1e-4}"
same "gemma3, bf16, a ramp" "model: {family: gemma3, $size, kv_heads: 2, dtype: bf16}" "batch: {size: 4, micro: 2, ramp: 2@0}"
same "mixtral, bf16" "model: {family: mixtral, $size, kv_heads: 2, dtype: bf16, experts: 4, top_k: 2}" "batch: {size: 2, micro: 2}"
same "llama, bf16, 8 bits in blocks" "model: {family: llama, layers: 2, width: 256, heads: 4, vocab: 512, max_seq: 64, dtype: bf16, fp8: blockwise}" \
    "batch: {size: 2, micro: 2}"
same "llama, bf16, 8 bits, gradients too" \
    "model: {family: llama, layers: 2, width: 256, heads: 4, vocab: 512, max_seq: 64, dtype: bf16, fp8: tensorwise, fp8_wgrad: true}" "batch: {size: 4, micro: 4}"
preferences="{train: tests/golden/preference/pairs.jsonl, tokenizer: tests/golden/sft, seq: 96}"
for keep in true false; do
    data="data: $preferences" same "dpo, keep_logits: $keep" "model: {init: tests/golden/sft}" "objective: {kind: dpo, keep_logits: $keep}" "batch: {size: 2, micro: 2}"
    eval "logits_$keep=$(grep -o '"logits": [0-9]*' "$work/plan.json" | head -n 1 | grep -o '[0-9]*')"
done
[ "$((logits_true - logits_false))" = $((4 * 96 * $(python3 -c 'import json; print(json.load(open("tests/golden/sft/config.json"))["vocab_size"])') * 4)) ]
said $? "and the logits that stay are counted"
"$lateen" plan --model recipes/gpt2-124m.yaml --cluster h100-node --json >"$work/plan.json" 2>"$work/log" &&
    python3 - "$work/plan.json" >>"$work/log" 2>&1 <<'PY'
import json, sys
with open(sys.argv[1]) as f:
    plan = json.load(f)
step = plan["step"]
ops = sum(op["seconds"] for op in step["ops"].values())
assert step["gpu"] == "h100-sxm" and step["measured"] is True, step
assert 0.9 * step["step_s"] < ops <= step["step_s"], step
assert step["ops"]["adamw"]["calls"] == 148 and step["ops"]["matmul"]["calls"] % 128 == 0, step["ops"]
assert abs(step["tokens_per_s"] * step["step_s"] - 524288) < 1, step
PY
said $? "the step of a recipe on a GPU, op by op"
# Recipes that divide the model: plan_layouts.py.
if "$lateen" plan --model "$work/recipe.yaml" --tp 2 >"$work/log" 2>&1; then said 1 "a layout beside a recipe is refused"; else
    grep -q -- '--tp 2 contradicts' "$work/log"
    said $? "a layout beside a recipe is refused"
fi
echo "1..$n"
exit $bad
