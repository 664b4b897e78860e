# shellcheck shell=bash
# The model that ships with Lateen: it is found without --model, both beside the build and after
# an installation elsewhere; it can be served; its loss is close to the one on its card; and it is
# small enough for a repository.
shipped_model() {
    local dir size
    dir=$(mktemp -d)
    say() { if [ "$2" = yes ]; then echo "ok - $1"; else echo "not ok - $1: $(tail -n 2 "$dir/log")"; fi; }
    size=$(cat models/*.gguf | wc -c)
    say "at most 48 MiB together: $size" "$([ "$size" -le 50331648 ] && echo yes)"
    build/lateen generate --prompt "Era una sera d'autunno, e" --max-tokens 12 --temperature 0 >"$dir/here" 2>"$dir/log"
    build/lateen generate --model models/polyglot-46m.gguf --prompt "Era una sera d'autunno, e" --max-tokens 12 --temperature 0 >"$dir/named" 2>"$dir/log"
    say "generate without --model: the story model" "$([ -s "$dir/here" ] && cmp -s "$dir/here" "$dir/named" && echo yes)"
    echo "Multiply 42 by 23." | build/lateen chat --temperature 0 >"$dir/talk" 2>"$dir/log"
    say "chat without --model: the one that talks, and its thought before the answer" "$(grep -q '^42 \* ' "$dir/talk" && tail -n 1 "$dir/talk" | grep -q 'The answer is 966.' && echo yes)"
    say "threads spin briefly" "$(env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT bash -c 'mkfifo "$0/pipe"; build/lateen chat <"$0/pipe" >"$0/log" 2>&1 & exec 3>"$0/pipe"; for _ in $(seq 50); do
        grep -qz GOMP_SPINCOUNT=4000 /proc/$!/environ && echo yes && break; sleep 0.1; done' "$dir")"
    make -s install DESTDIR="$dir/installed" PREFIX=/usr >"$dir/log" 2>&1
    (cd / && "$dir/installed/usr/bin/lateen" generate --prompt "Era una sera d'autunno, e" --max-tokens 12 --temperature 0 >"$dir/there" 2>"$dir/log")
    say "the same from an installation" "$(cmp -s "$dir/here" "$dir/there" && echo yes)"
    mkdir "$dir/bare" && cp build/lateen "$dir/bare/"
    "$dir/bare/lateen" generate --prompt x >/dev/null 2>"$dir/log"
    say "a binary alone says that no model came with it" "$(grep -q 'no model: give a Hugging Face folder' "$dir/log" && echo yes)"
    # The card says 3.8 nats per token on English novels that it was not trained on.
    zstd -dc data/demo/val.jsonl.zst | head -n 1 | cut -c 1-12000 | sed 's/[^"}]$/&"}/' >"$dir/novel.jsonl"
    build/lateen eval --model models/polyglot-46m.gguf "$dir/novel.jsonl" --json >"$dir/eval" 2>"$dir/log"
    say "loss on English prose: $(grep -o '"loss": [0-9.]*' "$dir/eval")" "$(awk -F'[:,]' '/"loss"/ { ok = $2 > 2.5 && $2 < 4.6 } END { if (ok) print "yes" }' "$dir/eval")"
    say "eval computes as serve does, and says so" "$(grep -q '"dtype": "stored"' "$dir/eval" && grep -q '"weights": "Q5_K, Q6_K"' "$dir/eval" && echo yes)"
    build/lateen eval --model models/polyglot-46m.gguf --dtype fp32 "$dir/novel.jsonl" >"$dir/wide" 2>"$dir/log"
    say "eval in fp32 says that serve does not" "$(grep -q '^computed in fp32 (F32), while serve computes as stored$' "$dir/wide" && echo yes)"
    say "fp32 and as stored agree on average" "$(awk '/"loss"/ { a = $2 + 0 } /^loss/ { b = $2 } END { d = a - b; if (a > 0 && d < 0.02 && d > -0.02) print "yes" }' "$dir/eval" "$dir/wide")"
    set -- --model tests/golden/stories260k/stories260K.bin --tokenizer tests/golden/stories260k/tok512.bin --temperature 0 --max-tokens 5 --echo
    say "the text after a prompt begins with its space" "$([ "$(build/lateen generate "$@" --prompt Once)" = "Once upon a time, there" ] && echo yes)"
    say "after an empty prompt it begins without one" "$([ "$(build/lateen generate "$@" --prompt "")" = "Once upon a time," ] && echo yes)"
    say "no rate is printed for no tokens" "$(build/lateen generate --model tests/golden/stories260k/stories260K.bin --tokenizer tests/golden/stories260k/tok512.bin --prompt Once --max-tokens 0 --stats 2>&1 | grep -q ', 0 new in [0-9.]* s (0.0 tok/s)$' && echo yes)"
    # convert writes the tokenizer of a GGUF, or of llama2.c's two files, into the new folder.
    printf '{"text": "%s"}\n' "Once upon a time" " two  spaces\\n\\n" "caf\u00e9 \ud83d\ude00 12345" "[a]" "" "don't" >"$dir/texts"
    same_ids() { # NAME TOKENIZER MODEL OPTIONS...
        local name=$1 from=$2
        shift 2
        build/lateen convert "$1" "$dir/$name" "${@:2}" 2>"$dir/log" && build/lateen tokenize --tokenizer "$from" --jsonl <"$dir/texts" >"$dir/ids_a" && build/lateen tokenize --tokenizer "$dir/$name" --jsonl <"$dir/texts" >"$dir/ids_b" 2>"$dir/log"
        say "convert writes the tokenizer of $name" "$([ -s "$dir/ids_a" ] && cmp -s "$dir/ids_a" "$dir/ids_b" && [ -s "$dir/$name/tokenizer_config.json" ] && echo yes)"
    }
    same_ids polyglot models/polyglot-46m.gguf models/polyglot-46m.gguf
    same_ids stories tests/golden/stories260k/tok512.bin tests/golden/stories260k/stories260K.bin --tokenizer tests/golden/stories260k/tok512.bin
    rm -rf "$dir"
    echo "# end"
}
export -f shipped_model
beside "the model that comes with it" bash -c shipped_model
