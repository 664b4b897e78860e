#!/usr/bin/env bash
# Compare the memory that `lateen train` announces with the peak that the system saw. They must agree within 5 % for the demo's shape, in fp32 and bf16,
# for a model like GPT-2, and for adapters (LoRA, DoRA) beside a quantised model, with validation, a sample and a checkpoint on the way. Prints TAP.
# The conversations are short questions with long answers, so that nearly all labels count: a CPU touches no memory for logits of those that do not.
set -u
cd "$(dirname "$0")/../.."
lateen=${LATEEN:-build/lateen}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0 bad=0
within() { # name, train arguments...
    local name=$1
    shift
    n=$((n + 1))
    rm -rf "$work/run"
    if "$lateen" train "$@" --steps 2 --lr.warmup 1 --sample.every 1 --sample.tokens 8 --checkpoint.every 1 --out "$work/run" 2>"$work/log" &&
        python3 - "$work/run/metrics.jsonl" >"$work/said" <<'PY'; then
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
start, end = rows[0], rows[-1]
assert start["announced_bytes"] == end["announced_bytes"] <= sum(start["memory"].values())
ratio = end["peak_bytes"] / end["announced_bytes"]
print(f"{end['peak_bytes'] >> 20} of {end['announced_bytes'] >> 20} MiB, {100 * (ratio - 1):+.1f} %")
sys.exit(abs(ratio - 1) > 0.05)
PY
        echo "ok $n - $name: $(cat "$work/said")"
    else
        echo "not ok $n - $name: $(cat "$work/said")"
        tail -n 30 "$work/log" | sed 's/^/# /'
        bad=1
    fi
}
"$lateen" tokenizer train data/demo/val.jsonl.zst --vocab-size 4096 --out "$work/tokenizer.json" 2>"$work/log" &&
    "$lateen" tokenize data/demo/val.jsonl.zst --tokenizer "$work/tokenizer.json" --out "$work/shard" >/dev/null 2>>"$work/log" || {
    sed 's/^/# /' "$work/log"
    echo "not ok 1 - prepare"
    exit 1
}
shard=(--eval.every 1 --eval.rows 4 --data.train "$work/shard" --data.valid "$work/shard" --data.val_fraction 0 --data.tokenizer "$work/tokenizer.json")
small=(--model.layers 3 --model.width 512 --model.heads 8 --model.vocab 16384 --model.max_seq 256 --data.seq 256 --batch.size 2 --batch.micro 2)
within "the demo" recipes/demo.yaml "${shard[@]}" --lr.cooldown 1
within "the demo in bf16" recipes/demo.yaml "${shard[@]}" --lr.cooldown 1 --model.dtype bf16
within "like GPT-2" recipes/gpt2-124m.yaml "${shard[@]}" "${small[@]}" --model.dtype fp32
within "like GPT-2, bf16, with a copy for checkpoints" recipes/gpt2-124m.yaml "${shard[@]}" "${small[@]}" --model.dtype bf16 --checkpoint.async true
python3 -c '
import json
for i in range(64):
    print(json.dumps({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": f"answer {i} is a long one, " * 200}]}))' >"$work/chats.jsonl"
chats=(--data.train "$work/chats.jsonl" --data.too_long cut)
within "adapters" recipes/sft-lora.yaml "${chats[@]}"
within "adapters with dropout, base in fp32" recipes/sft-lora.yaml "${chats[@]}" --lora.base dtype --lora.dropout 0.1
within "adapters, DoRA" recipes/sft-lora.yaml "${chats[@]}" --lora.dora true
echo "1..$n"
exit $bad
