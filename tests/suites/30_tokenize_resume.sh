# `lateen tokenize`, killed at random instants and started again, writes the same shard as an undisturbed run.
# Sourced by tests/run.sh.
tokenize_resume() {
    local dir corpus runs=0 status=1 most_ms=100 ms
    dir=$(mktemp -d) || return 1
    corpus=$dir/corpus.jsonl
    for _ in 1 2 3; do zstd -dc data/demo/train.jsonl.zst; done >"$corpus"
    zstd -q "$corpus" -o "$corpus.zst"
    set -- tokenize "$corpus.zst" "$corpus" --tokenizer tests/golden/data/demo_tokenizer.json --append-eod --eod "<|endoftext|>"
    build/lateen "$@" --out "$dir/straight" --threads 1 >"$dir/log" 2>&1 || { cat "$dir/log"; echo "not ok 1 - straight run"; return 1; }
    echo "ok 1 - straight run"
    while [ "$runs" -lt 60 ] && [ "$status" -ne 0 ]; do # Each run gets longer, so that the last one ends on a busy machine, too.
        runs=$((runs + 1))
        build/lateen "$@" --out "$dir/killed" --threads 3 --commit-every 0.02 >>"$dir/log" 2>&1 &
        local pid=$!
        ms=$((RANDOM % most_ms)) most_ms=$((most_ms * 11 / 10))
        sleep "$((ms / 1000)).$(printf '%03d' $((ms % 1000)))"
        kill -9 "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        status=$?
    done
    [ "$status" -eq 0 ] && echo "ok 2 - done after $runs starts" || echo "not ok 2 - not done after $runs starts"
    for suffix in bin idx json; do
        cmp -s "$dir/straight.$suffix" "$dir/killed.$suffix" && echo "ok - same .$suffix" || echo "not ok - same .$suffix"
    done
    ls "$dir"/killed.*.part "$dir"/killed.journal >/dev/null 2>&1 && echo "not ok - leftovers" || echo "ok - no leftovers"
    build/lateen "$@" --out "$dir/killed" 2>/dev/null | grep -q "already complete" && echo "ok - a complete shard is reported" || echo "not ok - a complete shard is reported"
    rm -rf "$dir"
    echo "# end"
}
export -f tokenize_resume
beside "tokenize, killed and resumed" bash -c tokenize_resume
