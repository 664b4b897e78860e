#!/usr/bin/env bash
# The recipe's parts, one changed at a time, at equal tokens, two seeds each; a model of half the width.   ablations.sh DATA OUT [lateen] [steps]
# Prints one line of JSON a run: {"ablation", "seed", "loss", "bits_per_byte"}. SwiGLU has two thirds of the feed-forward width: equal
# parameters; it runs as qwen3, which is Apertus' block but for the activation (and RoPE's scaling).
set -eu
data=$1 out=$2 lateen=${3:-build/lateen} steps=${4:-900}
here=$(dirname "$0")
mkdir -p "$out"
mix() { for l in eng deu fra ita ukr pol spa por; do printf '%s%s/%s.%s' "${sep:-}" "$data" "$l" "$1"; sep=,; done; }
run() { # name, seed, options
    name=$1 seed=$2
    shift 2
    $lateen train "$here/../polyglot-46m.yaml" --out "$out/$name-$seed" --seed "$seed" --steps "$steps" --model.layers 6 --model.width 256 --model.heads 4 \
        --model.kv_heads 2 --model.ffn 1024 --data.train "$(mix train)" --data.valid "$(mix valid)" --data.tokenizer "$data/tokenizer.json" \
        --batch.size 64 --data.goldfish_k 0 --optim.lr 2e-3 --optim.mix_warmup $((steps / 3)) --optim.beta3 0.99 --lr.warmup 50 --lr.cooldown $((steps / 4)) \
        --eval.every 0 --eval.rows 1024 --checkpoint.every 0 --sample.every 0 --sample.tokens 0 --export false --log.every 10 "$@" 2>"$out/$name-$seed.log" || {
        tail -n 3 "$out/$name-$seed.log" >&2
        exit 1
    }
    grep '"kind":"eval"' "$out/$name-$seed/metrics.jsonl" | tail -n 1 | sed "s/^{/{\"ablation\":\"$name\",\"seed\":$seed,/"
    rm -rf "$out/$name-$seed/checkpoints"
}
for seed in ${SEEDS:-1 2}; do
    run apertus $seed
    run swiglu $seed --model.family qwen3 --model.tied false --model.ffn 680
    run adamw $seed --optim.kind adamw --optim.beta2 0.95
    run cosine $seed --lr.schedule cosine
    run goldfish $seed --data.goldfish_k 50
done
