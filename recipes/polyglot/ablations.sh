#!/usr/bin/env bash
# The recipe's parts, one changed at a time, at equal tokens, two seeds each; a model of half the width.   ablations.sh DATA OUT [lateen] [steps]
# Prints one line of JSON a run: {"ablation", "seed", "loss", "bits_per_byte"}. SwiGLU has two thirds of the feed-forward width: equal
# parameters; it runs as qwen3, which is Apertus' block but for the activation (and RoPE's scaling). The optimisers are compared over rates.
set -eu
data=$1 out=$2 lateen=${3:-build/lateen} steps=${4:-900}
here=$(dirname "$0")
mkdir -p "$out"
mix() { for l in eng deu fra ita ukr pol spa por; do printf '%s%s/%s.%s' "${sep:-}" "$data" "$l" "$1"; sep=,; done; }
run() { # name, seed, options
    name=$1 seed=$2 folder=$out/$(echo "$1-$2" | tr ' ' '-')
    shift 2
    $lateen train "$here/../polyglot-46m.yaml" --out "$folder" --seed "$seed" --steps "$steps" --model.layers 6 --model.width 256 --model.heads 4 \
        --model.kv_heads 2 --model.ffn 1024 --data.train "$(mix train)" --data.valid "$(mix valid)" --data.tokenizer "$data/tokenizer.json" \
        --batch.size 64 --data.goldfish_k 0 --optim.lr 2e-3 --optim.mix_warmup $((steps / 3)) --optim.beta3 0.99 --lr.warmup 50 --lr.cooldown $((steps / 4)) \
        --eval.every 0 --eval.rows 1024 --checkpoint.every 0 --sample.every 0 --sample.tokens 0 --export false --log.every 10 "$@" 2>"$folder.log" || {
        tail -n 3 "$folder.log" >&2
        exit 1
    }
    grep '"kind":"eval"' "$folder/metrics.jsonl" | tail -n 1 | sed "s/^{/{\"ablation\":\"$name\",\"seed\":$seed,/"
    rm -rf "${folder:?}/checkpoints"
}
# Each optimiser at its own best rate: what one rate says of two optimisers says more about the rate.
for lr in 5e-4 1e-3 2e-3 4e-3; do
    for beta2 in 0.95 0.999; do
        run "ademamix lr $lr beta2 $beta2" 1 --optim.lr $lr --optim.beta2 $beta2
        run "adamw lr $lr beta2 $beta2" 1 --optim.kind adamw --optim.lr $lr --optim.beta2 $beta2
    done
done
for seed in ${SEEDS:-1 2}; do
    run apertus "$seed"
    run swiglu "$seed" --model.family qwen3 --model.tied false --model.ffn 680
    run cosine "$seed" --lr.schedule cosine
    run goldfish "$seed" --data.goldfish_k 50
done
