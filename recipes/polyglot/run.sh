#!/usr/bin/env bash
# Make the shipped model from its texts in one command: about ten minutes on one H100, days on a CPU. If started again, it continues where it stopped.
#   run.sh TEXTS OUT [lateen] [train options ...]
#   TEXTS  folder of LANG.jsonl.zst, see prepare.sh
#   OUT    gets data/, polyglot/ (the run), polyglot-46m.gguf and evaluation.jsonl
set -eu
texts=$1 out=$2 lateen=${3:-build/lateen}
shift $(($# < 3 ? $# : 3))
here=$(dirname "$0")
data=$out/data run=$out/polyglot
mix() { sep=; for pair in $2; do printf '%s%s/%s.%s' "$sep" "$data" "${pair%%:*}" "$1${pair#"${pair%%:*}"}"; sep=,; done; }
langs="eng deu fra ita ukr pol spa por"
# Weights are roughly the sizes of the collections; the four small ones are seen 1.5 times as often.
weights="eng:20 deu:20 fra:17 ita:12 ukr:9 pol:9 spa:7 por:6"

"$here/prepare.sh" "$texts" "$data" "$lateen"
$lateen train "$here/../polyglot-46m.yaml" --out "$run" --data.train "$(mix train "$weights")" --data.valid "$(mix valid "$langs")" \
    --data.tokenizer "$data/tokenizer.json" "$@"
$lateen quantize "$run/model" "$out/polyglot-46m.gguf" --type "${TYPE:-q5_k_s}"
"$here/evaluate.sh" "$run" "$data" "$lateen" "$out/polyglot-46m.gguf" >"$out/evaluation.jsonl"
