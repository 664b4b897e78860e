#!/usr/bin/env bash
# Change the parts of the recipe one at a time, at equal tokens, with two seeds each, in a model of half the width.   ablations.sh DATA OUT [lateen] [steps]
# Prints one line of JSON a run: {"ablation", "seed", "loss", "bits_per_byte"}. SwiGLU has two thirds of the feed-forward width, which gives equal
# parameters; it runs as qwen3, which equals Apertus' block except for the activation (and RoPE's scaling). The optimisers are compared over learning rates.
# LANGS: some of the recipe's languages. JOBS: runs at a time (1), distributed over GPUS devices (1). SEEDS: of the second part ("1 2").
set -eu
export data=$1 out=$2 lateen=${3:-build/lateen} steps=${4:-900} GPUS=${GPUS:-1} LANGS=${LANGS:-eng deu fra ita ukr pol spa por}
here=$(dirname "$0")
export here
mkdir -p "$out"
mix() { for l in $LANGS; do printf '%s%s/%s.%s' "${sep:-}" "$data" "$l" "$1"; sep=,; done; }
# One line of the list below: name;seed;options.
run() {
    IFS=';' read -r slot name seed options <<<"$1"
    folder=$out/$(echo "$name-$seed" | tr ' ' '-')
    # shellcheck disable=SC2086
    CUDA_VISIBLE_DEVICES=$((slot % GPUS)) $lateen train "$here/../polyglot-46m.yaml" --out "$folder" --seed "$seed" --steps "$steps" --model.layers 6 \
        --model.width 256 --model.heads 4 --model.kv_heads 2 --model.ffn 1024 --data.train "$(mix train)" --data.valid "$(mix valid)" \
        --data.tokenizer "$data/tokenizer.json" --batch.size 64 --data.goldfish_k 0 --optim.lr 2e-3 --optim.mix_warmup $((steps / 3)) --optim.beta3 0.99 \
        --lr.warmup 50 --lr.cooldown $((steps / 4)) --eval.every 0 --eval.rows 1024 --checkpoint.every 0 --sample.every 0 --sample.tokens 0 --export false \
        --log.every 10 $options 2>"$folder.log" || {
        tail -n 3 "$folder.log" >&2
        exit 1
    }
    grep '"kind":"eval"' "$folder/metrics.jsonl" | tail -n 1 | sed "s/^{/{\"ablation\":\"$name\",\"seed\":$seed,/"
    rm -rf "${folder:?}/checkpoints"
}
export -f run mix
# Each optimiser must be judged at its own best rate; a comparison at a single rate says more about the rate.
list() {
    for lr in 5e-4 1e-3 2e-3 4e-3; do
        for beta2 in 0.95 0.999; do
            echo "ademamix lr $lr beta2 $beta2;1;--optim.lr $lr --optim.beta2 $beta2"
            echo "adamw lr $lr beta2 $beta2;1;--optim.kind adamw --optim.lr $lr --optim.beta2 $beta2 --optim.beta3 0.9999 --optim.mix_warmup 0"
        done
    done
    for seed in ${SEEDS:-1 2}; do
        echo "apertus;$seed;"
        echo "swiglu;$seed;--model.family qwen3 --model.tied false --model.ffn 680"
        echo "cosine;$seed;--lr.schedule cosine --lr.cooldown 0"
        echo "goldfish;$seed;--data.goldfish_k 50"
    done
}
list | awk '{print NR ";" $0}' | xargs -P "${JOBS:-1}" -d '\n' -I{} bash -euc 'run "$1"' run {}
