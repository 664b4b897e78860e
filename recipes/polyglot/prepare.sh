#!/usr/bin/env bash
# Make the tokenizer and shards for recipes/polyglot-46m.yaml.   prepare.sh TEXTS OUT [lateen]
#   TEXTS  folder of LANG.jsonl.zst (eng fra deu ita spa por pol ukr), one novel {"text": ...} a line: the ELTeC collections
#   OUT    gets tokenizer.json (unless it exists), LANG.train.*, LANG.valid.*, and the held-out text LANG.valid.jsonl
# Whole novels are held out: lines 8, 24, 40, ... of each collection. The tokenizer is trained on the others, with half of the three large collections and the
# four small ones twice, so that the small languages are not disadvantaged.
set -eu
texts=$1 out=$2 lateen=${3:-build/lateen}
langs="eng fra deu ita spa por pol ukr"
mkdir -p "$out"
split() { # language: training novels on standard output, held-out ones into a file
    zstd -dc --long=27 "$texts/$1.jsonl.zst" | awk -v held="$out/$1.valid.jsonl" 'NR % 16 == 8 {print > held; next} {print}'
}
for l in $langs; do
    [ -s "$out/$l.train.jsonl" ] || [ -s "$out/$l.train.idx" ] || split "$l" >"$out/$l.train.jsonl"
done
if [ ! -s "$out/tokenizer.json" ]; then
    for l in eng deu fra; do awk 'NR % 2 == 1' "$out/$l.train.jsonl" >"$out/half.$l.jsonl"; done
    small=$(for l in spa por pol ukr; do echo "$out/$l.train.jsonl"; done)
    # shellcheck disable=SC2086
    $lateen tokenizer train "$out"/half.*.jsonl "$out/ita.train.jsonl" $small $small \
        --vocab-size 16384 --pattern tekken --special '<unk>,<s>,</s>,<pad>' --out "$out/tokenizer.json"
    rm "$out"/half.*.jsonl
fi
for l in $langs; do
    for part in train valid; do
        [ -s "$out/$l.$part.idx" ] || $lateen tokenize "$out/$l.$part.jsonl" --tokenizer "$out/tokenizer.json" --out "$out/$l.$part"
    done
    rm -f "$out/$l.train.jsonl"
done
