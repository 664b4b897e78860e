#!/usr/bin/env bash
# `make run`: from a fresh clone to a trained model, in four to six minutes on two cores.
# Installs missing packages (as root; otherwise prints the command and stops), builds, trains a tokenizer and a small Apertus-style model on the
# novels in data/demo, and prints the next commands.
set -eu
cd "$(dirname "$0")/.."
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

missing=$(for p in $(cat packages.txt); do dpkg -s "$p" >/dev/null 2>&1 || echo "$p"; done | tr '\n' ' ')
if [ -n "$missing" ]; then
    echo "apt-get install -y --no-install-recommends $missing"
    if [ "$(id -u)" -ne 0 ]; then
        echo "Some libraries are missing: run the line above as root, then make run again."
        exit 1
    fi
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

say "Build"
make -s -j"$(nproc)" all
lateen=build/lateen
out=${OUT:-runs/demo}
data=$out-data
mkdir -p "$data"

say "Train a tokenizer on data/demo (byte-level BPE, 4096 entries)"
[ -s "$data/tokenizer.json" ] || $lateen tokenizer train data/demo/train.jsonl.zst --vocab-size 4096 --special '<|endoftext|>' --out "$data/tokenizer.json"

say "Tokenise 15 novels to train on and 2 held out for validation"
[ -s "$data/train.idx" ] || $lateen tokenize data/demo/train.jsonl.zst --tokenizer "$data/tokenizer.json" --append-eod --out "$data/train"
[ -s "$data/valid.idx" ] || $lateen tokenize data/demo/val.jsonl.zst --tokenizer "$data/tokenizer.json" --append-eod --out "$data/valid"

say "Pretrain a small Apertus-style model (recipes/demo.yaml)"
$lateen train recipes/demo.yaml --out "$out" --data.train "$data/train" --data.valid "$data/valid" --data.tokenizer "$data/tokenizer.json" "$@"

say "Texts by the model that comes with Lateen (models/README.md: 46M parameters, eight languages)"
for start in "The old house stood at the end of the lane, and" "Era una sera d'autunno, e"; do
    $lateen generate --prompt "$start" --max-tokens 60 --temperature 0.7 --top-p 0.9 --seed 5 --echo
    printf '\n\n'
done

say "A text by the model that was just trained"
$lateen generate --model "$out/model" --prompt "It was a dark night, and" --max-tokens 80 --temperature 0.7 --top-p 0.9 --seed 1 --echo
echo

say "Next steps"
cat <<NEXT
  open $out/report.html                      curves, samples and configuration of this run
  $lateen generate --model $out/model --prompt "The old man"
  $lateen serve                               a model that solves school problems and shows its reasoning, on http://127.0.0.1:8080
  $lateen chat                                the same on the terminal: Multiply 42 by 23.
  $lateen eval --model $out/model data/demo/val.jsonl.zst
  $lateen train recipes/demo.yaml --out runs/longer --steps 5000 --page 8080 \\
      --data.train $data/train --data.valid $data/valid --data.tokenizer $data/tokenizer.json
  docs/tour.md                                a tour of the source
NEXT
