#!/usr/bin/env bash
# Evaluate a finished run: bits per byte on the held-out novels of each language, and samples.   evaluate.sh RUN DATA [lateen] [GGUF]
# Prints lines of JSON. For each language the finished run is validated on the whole of that language's shard. With GGUF, the quantised model is also evaluated
# on the first two held-out novels of each language.
set -eu
run=$1 data=$2 lateen=${3:-build/lateen} gguf=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
newest=$(ls -d "$run"/checkpoints/step-* | tail -n 1)
steps=$(basename "$newest" | sed 's/step-0*//')
for l in eng fra deu ita spa por pol ukr; do
    $lateen train "$run/recipe.yaml" --out "$work/$l" --resume "$newest" --steps "$steps" --data.valid "$data/$l.valid" --eval.rows 0 \
        --sample.tokens 0 --export false 2>"$work/log" || {
        tail -n 3 "$work/log" >&2
        exit 1
    }
    grep '"kind":"eval"' "$work/$l/metrics.jsonl" | tail -n 1 | sed "s/^{/{\"lang\":\"$l\",/"
    rm -rf "${work:?}/$l"
    [ -z "$gguf" ] || $lateen eval --model "$gguf" "$data/$l.valid.jsonl" --limit 2 --json | sed "s/^{/{\"lang\":\"$l\",\"quantised\":true,/"
done
sample() { # language, beginning
    text=$($lateen generate --model "${gguf:-$run/model}" --prompt "$2" --max-tokens 120 --temperature 0.7 --top-p 0.9 --seed 5 --echo 2>/dev/null)
    python3 -c 'import json,sys; print(json.dumps({"kind": "sample", "lang": sys.argv[1], "text": sys.argv[2]}, ensure_ascii=False))' "$1" "$text"
}
sample eng "The old house stood at the end of the lane, and"
sample fra "La nuit tombait sur la ville, et"
sample deu "Als der Morgen graute, ging der alte Mann"
sample ita "Era una sera d'autunno, e la contessa"
sample spa "Aquella noche el capitán salió de su casa"
sample por "Era uma vez uma rapariga que"
sample pol "Stary pan siedział przy oknie i"
sample ukr "Була собі в одному селі молода дівчина"
