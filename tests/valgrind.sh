#!/usr/bin/env bash
# Run memcheck over the unit programs that are quick enough and over the verbs; prints TAP. Run by hand; it takes some minutes.
#   tests/valgrind.sh [unit|verbs]
# It uses one thread, since libgomp's pool looks like a leak. tests/valgrind.supp names libraries that keep memory until exit.
set -u
cd "$(dirname "$0")/.."
lateen=${LATEEN:-build/lateen}
what=${1:-all}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
n=0 bad=0
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
clean() { # name, command...
    local name=$1
    shift
    n=$((n + 1))
    if timeout "${VALGRIND_SECONDS:-600}" valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \
        --suppressions=tests/valgrind.supp "$@" >"$work/out" 2>"$work/err"; then
        echo "ok $n - $name"
    else
        echo "not ok $n - $name (exit $?)"
        grep -A 14 '^==' "$work/err" | head -40 | sed 's/^/# /'
        bad=1
    fi
}

if [ "$what" != verbs ]; then # Left out: thousands of vectors and whole models, which take hours under memcheck.
    # Nor test_far: its stand-in for a device searches every word of an op's arguments, including
    # padding, for addresses to translate.
    for program in $(find build/tests/unit -type f -executable -name 'test_*' | grep -vE 'test_(golden|far|pass|smollm2|stories|tokenizer_exact|cuda_compile|recompute|search|vec|grammar|json|template)$' | sort); do
        clean "$program" "$program"
    done
fi
if [ "$what" != unit ]; then
    head -c 20000 docs/tour.md >"$work/text.txt"
    printf '{"text": "Ein Wort."}\n{"text": "a b c"}\n' >"$work/lines.jsonl"
    clean "tokenizer train" "$lateen" tokenizer train "$work/text.txt" --vocab-size 300 --out "$work/tokenizer.json"
    clean "tokenize a file" "$lateen" tokenize "$work/text.txt" --tokenizer "$work/tokenizer.json" --out "$work/shard"
    clean "tokenize lines" bash -c "exec '$lateen' tokenize --tokenizer '$work/tokenizer.json' --jsonl <'$work/lines.jsonl'"
    small=(--model.layers 1 --model.width 32 --model.heads 2 --model.ffn 64 --model.max_seq 32 --data.seq 32 --data.train "$work/shard" --data.tokenizer "$work/tokenizer.json"
        --data.val_fraction 0.1 --batch.size 2 --steps 3 --eval.every 2 --eval.rows 2 --sample.every 2 --sample.tokens 4 --checkpoint.every 2)
    clean "train 3 steps" "$lateen" train --out "$work/run" "${small[@]}" --model.family apertus
    clean "resume" "$lateen" train --out "$work/run" "${small[@]}" --model.family apertus --steps 4
    clean "train in bf16 with Muon" "$lateen" train --out "$work/bf16" "${small[@]}" --model.family mixtral --model.experts 4 --model.top_k 2 --model.dtype bf16 --optim.kind muon
    clean "generate" "$lateen" generate --model "$work/run/model" --prompt "The" --max-tokens 4
    clean "eval" "$lateen" eval --model "$work/run/model" "$work/text.txt"
    clean "convert" "$lateen" convert "$work/run/model" "$work/converted"
    clean "a broken file" bash -c "head -c 100 '$work/run/model/model.safetensors' >'$work/broken.gguf'; exec '$lateen' generate --model '$work/broken.gguf' --prompt x; [ \$? -eq 1 ]"
    clean "doctor" "$lateen" doctor --no-measure
fi
echo "1..$n"
exit $bad
