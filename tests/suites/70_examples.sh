# The smallest program for each public header, with files that are written here.
examples() {
    local dir e=build/examples
    dir=$(mktemp -d) || return 1
    cat src/base/*.c >"$dir/text"
    python3 tests/e2e/make_shard.py "$dir/text" "$dir/shard" 700
    run() { # name, expected words in the output, command...
        local name=$1 want=$2
        shift 2
        if "$@" >"$dir/out" 2>&1 && grep -q "$want" "$dir/out"; then echo "ok - example $name"; else
            echo "not ok - example $name"
            head -5 "$dir/out"
        fi
    }
    run errors "no-such-model.gguf" $e/errors
    run problems "^The answer is " $e/problems logic 7
    run views "row 1: 7 8" $e/views
    run model "parameters" $e/model "$dir/model"
    run "model's folder" "model_type" cat "$dir/model/config.json"
    run tokens "= Hello" $e/tokens tests/golden/data/demo_tokenizer.json Hello
    run serve "^[0-9]* [0-9]*" bash -c "printf '5 6 7\\n9\\n' | $e/serve tests/golden/model/qwen3 4"
    run training "finished 3 steps" $e/training "$dir/run" "$dir/shard"
    run copies "1 files, .* checked by length" $e/copy "$dir/text" "$dir/copied"
    run "the copy" "same" bash -c "cmp '$dir/text' '$dir/copied' && echo same"
    local stories=tests/golden/stories260k
    run write "Once upon a time, there was" $e/write $stories/stories260K.bin $stories/tok512.bin ""
    run measure "bits per byte" $e/measure $stories/stories260K.bin $stories/tok512.bin $stories/expected_greedy_200.txt
    rm -rf "$dir"
    echo "# end"
}
export -f examples
beside "examples" bash -c examples
