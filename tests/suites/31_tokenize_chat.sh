# Conversations: `lateen tokenize --chat` on the command line, killed and resumed; and training
# only on what the assistant says. Sourced by tests/run.sh.
tokenize_chat() {
    local dir runs=0 status=1 most_ms=75 ms tok=tests/golden/data/demo_tokenizer.json
    dir=$(mktemp -d) || return 1
    # The questions are random and the answer is always the same, so a loss that counts the
    # questions stays high.
    awk 'BEGIN { srand(1); for (i = 0; i < 40000; i++) { q = ""; for (j = 0; j < 12; j++) q = q sprintf("%c", 97 + int(26 * rand()));
        printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"yes\"}]}\n", q } }' >"$dir/c.jsonl"
    printf '%s' "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}" >"$dir/t.jinja"
    set -- tokenize "$dir/c.jsonl" --tokenizer "$tok" --chat-template "$dir/t.jinja"
    build/lateen "$@" --out "$dir/one" --threads 1 >"$dir/log" 2>&1 || { cat "$dir/log"; echo "not ok 1 - straight run"; return 1; }
    grep -q '^labels ' "$dir/log" && echo "ok 1 - the straight run counts the labels" || echo "not ok 1 - the straight run counts the labels"
    # Each run gets longer, so that the last one ends on a busy machine, too.
    while [ "$runs" -lt 60 ] && [ "$status" -ne 0 ]; do
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
    for suffix in bin idx mask json; do
        cmp -s "$dir/one.$suffix" "$dir/killed.$suffix" && echo "ok - same .$suffix" || echo "not ok - same .$suffix"
    done
    build/lateen tokenize "$dir/c.jsonl" --tokenizer "$tok" --chat-template chatml --out "$dir/killed" >"$dir/log" 2>&1
    [ $? -eq 1 ] && grep -q "other inputs or options" "$dir/log" && echo "ok - another template is refused for the same shard" || echo "not ok - another template is refused for the same shard"
    head -n 2 "$dir/c.jsonl" | build/lateen tokenize --tokenizer "$tok" --chat-template "$dir/t.jinja" --jsonl >"$dir/lines"
    [ "$(grep -c '"mask": \[0, .*1\]}$' "$dir/lines")" = 2 ] && echo "ok - ids and mask of lines" || echo "not ok - ids and mask of lines"
    cp "$dir/one.bin" "$dir/bare.bin"
    cp "$dir/one.idx" "$dir/bare.idx" # The same tokens without the mask.
    for shard in one bare; do
        build/lateen train --out "$dir/run-$shard" --steps 60 --data.train "$dir/$shard" --model.vocab "$(sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' "$dir/one.json")" \
            --model.layers 1 --model.width 32 --model.heads 2 --data.seq 64 --batch.size 8 --optim.lr 0.01 --threads 1 --export false >"$dir/log" 2>&1 || tail -n 3 "$dir/log"
        grep '"train"' "$dir/run-$shard/metrics.jsonl" | tail -n 1 | sed 's/.*"loss": *\([0-9.e-]*\).*/\1/' >"$dir/loss-$shard"
    done
    awk -v a="$(cat "$dir/loss-one")" -v b="$(cat "$dir/loss-bare")" 'BEGIN { ok = a != "" && a + 0 < 0.1 && b + 0 > 1; print (ok ? "ok" : "not ok") " - only the answers are learnt: loss " a ", of all tokens " b }'
    rm -rf "$dir"
    echo "# end"
}
export -f tokenize_chat
beside "tokenize, conversations" bash -c tokenize_chat
