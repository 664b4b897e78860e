#!/usr/bin/env bash
# Measure what the Goldfish loss is for: small models read one short text more than a hundred times, without Goldfish, with the recipe's k, and with k 4. How much do they recite?
#   memorise.sh DATA OUT [lateen] [steps]
# Prints the lines of tools/memorisation.py for this text, and for a text that the models never saw.
set -eu
data=$1 out=$2 lateen=${3:-build/lateen} steps=${4:-1500}
here=$(dirname "$0")
mkdir -p "$out"
for k in 0 50 4; do
    [ -d "$out/goldfish-$k/model" ] || $lateen train "$here/../polyglot-46m.yaml" --out "$out/goldfish-$k" --steps "$steps" --model.layers 6 --model.width 384 \
        --model.heads 6 --model.kv_heads 3 --model.ffn 1536 --data.train "$data/por.valid" --data.valid "" --data.tokenizer "$data/tokenizer.json" \
        --data.goldfish_k $k $([ $k -eq 0 ] || echo --data.goldfish_h 13) --batch.size 16 --optim.kind adamw --optim.beta2 0.95 --optim.decay 0 --optim.mix_warmup 0 --lr.warmup 50 \
        --lr.cooldown $((steps / 4)) --sample.every 0 --sample.tokens 0 --eval.every 0 --checkpoint.every 0 --log.every 50 >"$out/goldfish-$k.log" 2>&1
    rm -rf "${out:?}/goldfish-$k/checkpoints"
done
python3 "$here/../../tools/memorisation.py" $(for k in 0 50 4; do echo "goldfish-$k=$out/goldfish-$k/model:$data/por.valid,$data/spa.valid"; done)
