#!/usr/bin/env bash
# Run the verbs that have threads of their own (tokenize's workers, training's prefetch and page) in a build for ThreadSanitizer:
#   LATEEN=build/tsan/lateen tests/e2e/threads.sh        Prints TAP.
# libgomp is not built for ThreadSanitizer, which would report its barriers, so parallel loops run on one thread.
set -u
cd "$(dirname "$0")/../.."
lateen=${LATEEN:-build/tsan/lateen}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive TSAN_OPTIONS="exitcode=66"
n=0 bad=0
clean() { # name, command...
    local name=$1
    shift
    n=$((n + 1))
    if "$@" >"$work/out" 2>&1; then echo "ok $n - $name"; else
        echo "not ok $n - $name (exit $?)"
        grep -A 20 'WARNING: Thread' "$work/out" | head -40 | sed 's/^/# /'
        bad=1
    fi
}
for i in 1 2 3 4; do head -c 30000 docs/tour.md >"$work/$i.txt"; done
clean "tokenizer train" "$lateen" tokenizer train "$work/1.txt" --vocab-size 300 --out "$work/tokenizer.json"
clean "tokenize on 3 threads" "$lateen" tokenize "$work"/[1-4].txt --tokenizer "$work/tokenizer.json" --threads 3 --out "$work/shard"
clean "train with prefetch, validation, samples, checkpoints and page" "$lateen" train --out "$work/run" --steps 20 --page $((20000 + RANDOM % 20000)) \
    --model.layers 1 --model.width 32 --model.heads 2 --model.ffn 64 --model.max_seq 32 --data.seq 32 --data.train "$work/shard" --data.prefetch 8 \
    --data.tokenizer "$work/tokenizer.json" --data.val_fraction 0.1 --batch.size 4 --eval.every 10 --eval.rows 2 --sample.every 10 --sample.tokens 4 --checkpoint.every 10
echo "1..$n"
exit $bad
