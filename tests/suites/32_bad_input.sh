# Invalid files and options: one message that names the object, exit status 1 (2 for usage), and
# no files left. Sourced by tests/run.sh.
bad_input() {
    local dir n tok=tests/golden/data/demo_tokenizer.json
    dir=$(mktemp -d) || return 1
    # refused CODE TEXT COMMAND...: it exits with CODE, prints one line "lateen: ... TEXT ..." and writes nothing to standard output.
    refused() {
        local code=$1 says=$2 got
        shift 2
        timeout 60 build/lateen "$@" >"$dir/out" 2>"$dir/err" </dev/null
        got=$?
        if [ "$got" -eq "$code" ] && [ "$(grep -c '^lateen: ' "$dir/err")" -eq 1 ] && grep -qF -- "$says" "$dir/err" && [ ! -s "$dir/out" ]; then
            echo "ok - $says"
        else
            echo "not ok - lateen $* ended with $got: $(head -c 300 "$dir/err")"
        fi
    }
    accepted() { # accepted DOCUMENTS COMMAND...
        local documents=$1
        shift
        timeout 60 build/lateen "$@" 2>"$dir/err" </dev/null | grep -q "^documents    $documents\$" && echo "ok - accepted" || echo "not ok - lateen $*: $(head -c 300 "$dir/err")"
    }
    shard() { rm -f "$dir"/s.*; refused "$1" "$2" tokenize "$dir/$3" --tokenizer "$tok" --out "$dir/s" "${@:4}"; }

    # Where an error arose: --verbose prints a line for each call that passed it on, and each line
    # names a source line that fails or tries.
    traced() { # traced FIRST LAST COMMAND...: the chain begins in FIRST and ends in LAST ("file.c in function")
        local first=$1 last=$2 wrong
        shift 2
        timeout 60 build/lateen "$@" 2>"$dir/err" >"$dir/out" </dev/null
        sed -n '/^lateen: /,$p' "$dir/err" | sed -n 's/^  at \(.*\):\([0-9]*\) in \(.*\)$/\1 \2 \3/p' >"$dir/trace"
        wrong=$(while read -r file line function; do
            sed -n "$line,$((line + 6))p" "$file" | grep -qE 'LT_TRY|LT_FAIL|lt_error_|lt_failure_' || echo "$file:$line"
        done <"$dir/trace")
        if [ "$(sed -n '1s/ [0-9]* / in /p' "$dir/trace")" = "$first" ] && [ "$(sed -n '$s/ [0-9]* / in /p' "$dir/trace")" = "$last" ] && [ -z "$wrong" ]; then
            echo "ok - the trace of $*: $(wc -l <"$dir/trace") levels"
        else
            echo "not ok - the trace of $*: ${wrong:+these lines neither fail nor try: $wrong }$(head -c 900 "$dir/err")"
        fi
    }
    traced "src/model/files/llama2c.c in spec_from_header" "src/cli/verb_generate.c in run" --verbose generate --model README.md --prompt a
    traced "src/model/files/llama2c.c in spec_from_header" "src/cli/verb_generate.c in run" generate --model README.md --verbose --prompt a
    traced "src/train/recipe/recipe.c in lt_recipe_spec" "src/train/run.c in lt_training_in_worlds" train --verbose --out "$dir/run" --data.train nosuch
    timeout 60 build/lateen generate --model README.md --prompt a 2>"$dir/err" >"$dir/out" </dev/null
    grep -q '^  at ' "$dir/err" && echo "not ok - a trace without --verbose" || echo "ok - no trace without --verbose"
    rm -rf "$dir"/trace "$dir"/run
    # `help VERB` prints the same as `VERB --help`, also for two words.
    for words in train "plan serve"; do
        [ "$(build/lateen --verbose help $words)" = "$(build/lateen $words --help)" ] && echo "ok - help $words" || echo "not ok - help $words"
    done
    refused 2 "unknown verb 'nosuch'" help nosuch
    refused 2 "tp 3 does not divide the 32 heads and 8 heads of keys of llama3-8b; the nearest that does is tp 2" plan serve --model llama3-8b --cluster h100-node --tp 3
    refused 2 "the nearest that does is tp 8" plan serve --model llama3-8b --cluster h100-node --tp 7
    refused 2 "plan serve needs --model: a name under recipes/models or a file" plan serve --cluster h100-node
    refused 2 "plan serve needs --cluster: a name under recipes/clusters or a file" plan serve --model llama3-8b
    # A source without a target is fetched into the cache, so it must be a remote location.
    refused 2 "$dir: copy takes a source and a target" copy "$dir"
    refused 2 "file:///etc/hosts: copy takes a source and a target" copy file:///etc/hosts
    refused 2 "agent needs --memory FOLDER (it is ''), --node below --nodes (0 of 1), and the run's LATEEN_TOKEN in the environment (it is not)" agent

    refused 2 "bench generate needs --model" bench generate
    refused 2 "bench tokenizer needs --tokenizer" bench tokenizer --input README.md
    refused 1 "docs is not a model: it has no config.json" generate --model docs --prompt a
    refused 1 "model.init: nosuch: No such file or directory" train --out "$dir/run" --data.train "$dir/no.jsonl" --model.init nosuch --data.seq 32
    refused 2 "data.train: / is a folder. Name a shard in it without its ending" train --out "$dir/run" --data.train / --model.vocab 300 --model.layers 1
    rm -rf "$dir/run"

    # Lines of text.
    printf '\357\273\277{"text": "bom"}\r\n\r\n{"text": "crlf"}\r\n' >"$dir/bom.jsonl"
    accepted 2 tokenize "$dir/bom.jsonl" --tokenizer "$tok" --out "$dir/bom"
    build/lateen tokenize --tokenizer "$tok" --jsonl <"$dir/bom.jsonl" | grep -c ids | grep -qx 2 && echo "ok - the same from a pipe" || echo "not ok - the same from a pipe"
    printf '{"text": "a"}\n{"txt": "a"}\n' >"$dir/field.jsonl" && shard 1 "field.jsonl:2: no member 'text'" field.jsonl
    printf '{"text": 1}\n' >"$dir/number.jsonl" && shard 1 "number.jsonl:1: column 10: 'text' is not a string" number.jsonl
    printf '{"text": "a\0b"}\n' >"$dir/nul.jsonl" && shard 1 "nul.jsonl:1: column 12: control character" nul.jsonl
    printf '{"text": "\\ud800"}\n' >"$dir/lone.jsonl" && shard 1 'lone.jsonl:1: column 11: lone surrogate \ud800' lone.jsonl
    accepted 1 tokenize "$dir/lone.jsonl" --tokenizer "$tok" --out "$dir/lone" --invalid-utf8 replace
    printf '{"text": "\377"}\n' >"$dir/utf8.jsonl" && shard 1 "utf8.jsonl:1: invalid UTF-8 (byte 0xff) at byte 10" utf8.jsonl
    printf '{"messages": []}\n' >"$dir/chat.jsonl" && shard 1 "chat.jsonl:1: 'messages' is not a list of messages: it is empty" chat.jsonl --chat-template chatml
    shard 1 "no chat template; give one with --chat-template" chat.jsonl --chat
    shard 1 "nosuch: no such file, nor one of chatml" chat.jsonl --chat-template nosuch
    shard 2 "--chat does not go with --no-special" chat.jsonl --chat-template chatml --no-special
    printf '{%% if %%}' >"$dir/bad.jinja" && shard 1 "bad.jinja:1:" chat.jsonl --chat-template "$dir/bad.jinja"

    # Invalid UTF-8 is counted and reported, or refused.
    told() { # told TEXT COMMAND...: it ends with 0 and says TEXT as a warning; standard input is $dir/in
        local says=$1
        shift
        timeout 60 build/lateen "$@" >"$dir/out" 2>"$dir/err" <"$dir/in" && grep -qF -- "warn: $says" "$dir/err" && [ "$(grep -c '^warn: ' "$dir/err")" -eq 1 ] &&
            echo "ok - $says" || echo "not ok - lateen $*: $(head -c 300 "$dir/err")"
    }
    printf '{"text": "ok"}\n{"text": "a\377b\376"}\n{"text": "\342\202"}\n' >"$dir/in"
    told "standard input: invalid UTF-8: 3 parts in 2 lines, the first in line 2 at byte 1" tokenize --tokenizer "$tok" --jsonl
    grep -c ids "$dir/out" | grep -qx 3 && echo "ok - every line has its ids" || echo "not ok - every line has its ids"
    told "--text: invalid UTF-8: 2 parts, the first at byte 3" tokenize --tokenizer "$tok" --text "$(printf 'abc\377\342\202')"
    refused 1 "--text: invalid UTF-8: 1 parts, the first at byte 1 (0xff)" tokenize --tokenizer "$tok" --text "$(printf 'a\377')" --invalid-utf8 fail
    told "$dir/in: invalid UTF-8: 3 parts in 2 documents, the first at byte 26" tokenize "$dir/in" --split-on line --tokenizer "$tok" --out "$dir/mended" --invalid-utf8 replace
    # The same for escapes of lone surrogates, whatever reads the JSON; a pair is one character,
    # and only the text that is read counts.
    printf '{"id": "\\ud800", "text": "ok \\ud83d\\ude00"}\n{"text": "ab\\ud800\\udbff"}\n{"text": "\\udc00\377"}\n' >"$dir/in"
    told "standard input: invalid UTF-8: 4 parts (lone surrogate escapes: 3) in 2 lines, the first in line 2 at byte 2" tokenize --tokenizer "$tok" --jsonl
    told "$dir/in: invalid UTF-8: 4 parts (lone surrogate escapes: 3) in 2 documents, the first at byte 56" tokenize "$dir/in" --format jsonl --tokenizer "$tok" --out "$dir/lone3" --invalid-utf8 replace
    stdin_refused() { # stdin_refused TEXT COMMAND...: as refused, with "$dir/in" as standard input
        local says=$1
        shift
        timeout 60 build/lateen "$@" >"$dir/out" 2>"$dir/err" <"$dir/in"
        [ $? -eq 1 ] && grep -qF -- "$says" "$dir/err" && echo "ok - $says" || echo "not ok - lateen $*: $(head -c 300 "$dir/err")"
    }
    stdin_refused "line 2: standard input: invalid UTF-8: 2 parts, the first at byte 2 (a lone surrogate escape)" tokenize --tokenizer "$tok" --jsonl --invalid-utf8 fail
    printf '{"messages": [{"role": "user", "content": "a\\ud800"}]}\n' >"$dir/in"
    told "standard input: invalid UTF-8: 1 parts (lone surrogate escapes: 1) in 1 lines, the first in line 1 at byte 44" tokenize --tokenizer "$tok" --jsonl --chat-template chatml
    stdin_refused "line 1: standard input: invalid UTF-8: 1 parts, the first at byte 44 (a lone surrogate escape)" tokenize --tokenizer "$tok" --jsonl --chat-template chatml --invalid-utf8 fail
    cp "$dir/in" "$dir/lone4.jsonl"
    told "$dir/lone4.jsonl: invalid UTF-8: 1 parts (lone surrogate escapes: 1) in 1 documents, the first at byte 44" tokenize "$dir/lone4.jsonl" --chat-template chatml --tokenizer "$tok" --out "$dir/lone4" --invalid-utf8 replace
    shard 1 'lone4.jsonl:1: column 45: lone surrogate \ud800' lone4.jsonl --chat-template chatml
    printf '{"q": "\\ud800", "text": "\\udc00 \377"}\n' >"$dir/pair.jsonl"
    told "$dir/pair.jsonl: invalid UTF-8: 3 parts (lone surrogate escapes: 2) in 1 documents, the first at byte 7" tokenize "$dir/pair.jsonl" --prompt-field q --tokenizer "$tok" --out "$dir/pair" --invalid-utf8 replace
    printf 'Hi \376\n' >"$dir/in"
    told "--prompt: invalid UTF-8: 1 parts, the first at byte 1" generate --max-tokens 1 --prompt "$(printf 'a\377')"
    told "-: invalid UTF-8: 1 parts, the first at byte 3" generate --max-tokens 1 --prompt-file -
    told "message: invalid UTF-8: 1 parts, the first at byte 3" chat --max-tokens 1
    refused 1 "in: invalid UTF-8: 1 parts, the first at byte 3 (0xfe)" generate --max-tokens 1 --prompt-file "$dir/in" --invalid-utf8 fail

    # Compressed files.
    awk 'BEGIN { srand(2); for (i = 0; i < 9000; i++) { s = ""; for (j = 0; j < 30; j++) s = s sprintf("%c", 97 + int(26 * rand())); printf "{\"text\": \"%s\"}\n", s } }' >"$dir/r.jsonl"
    gzip -k "$dir/r.jsonl" && zstd -q "$dir/r.jsonl"
    for kind in gz zst; do
        cat "$dir/r.jsonl.$kind" "$dir/r.jsonl.$kind" >"$dir/two.jsonl.$kind" && accepted 18000 tokenize "$dir/two.jsonl.$kind" --tokenizer "$tok" --out "$dir/two-$kind"
        head -c 60000 "$dir/r.jsonl.$kind" >"$dir/cut.jsonl.$kind" && shard 1 "stream is truncated: the file ends at byte 60000" "cut.jsonl.$kind"
        { cat "$dir/r.jsonl.$kind"; echo "garbage behind it"; } >"$dir/more.jsonl.$kind" && shard 1 "stream is damaged near byte" "more.jsonl.$kind"
    done

    cp "$dir/bom.jsonl" "$dir/plain.jsonl.gz" && shard 1 "plain.jsonl.gz: its name ends with .gz, but its first bytes, ef bb bf 7b" plain.jsonl.gz

    # Where output goes.
    refused 1 "none/x.bin.part: No such file or directory" tokenize "$dir/r.jsonl" --tokenizer "$tok" --out "$dir/none/x"
    refused 2 "is a folder; name the shard in it" tokenize "$dir/r.jsonl" --tokenizer "$tok" --out "$dir"
    refused 1 "nofile.jsonl: No such file or directory" tokenize "$dir/nofile.jsonl" --tokenizer "$tok" --out "$dir/x"
    refused 2 "characters, at most 1023 fit" tokenize --tokenizer "$(printf 'a%.0s' {1..2000})" --text a

    # Tokenizers.
    : >"$dir/nothing.txt" && printf '{"text": ""}\n' >"$dir/blank.jsonl"
    refused 1 "nothing.txt: nothing to train on: none of 0 documents has text" tokenizer train "$dir/nothing.txt" --vocab-size 300 --out "$dir/none.json"
    refused 1 "nothing.txt and the other files: nothing to train on: none of 1 documents has text" tokenizer train "$dir/nothing.txt" "$dir/blank.jsonl" --vocab-size 300 --out "$dir/none.json"
    head -c 5000 "$tok" >"$dir/cut.json"
    refused 2 "unknown pattern 'nosuch'; known are" tokenizer train "$tok" --vocab-size 300 --pattern nosuch --out "$dir/none.json"
    refused 2 "unknown pattern 'cl100k-tiktoken'; known are" tokenizer train "$tok" --vocab-size 300 --pattern cl100k-tiktoken --out "$dir/none.json"
    refused 1 "cut.json: ends at byte 5000" tokenize --tokenizer "$dir/cut.json" --text hi
    printf '\n\303\251\n' >"$dir/x.model" && refused 1 "x.model: " tokenize --tokenizer "$dir/x.model" --text hi
    printf 'IQ== 0\n' >"$dir/x.tiktoken" && refused 1 "x.tiktoken: byte 0x00 has no rank" tokenize --tokenizer "$dir/x.tiktoken" --pattern gpt2 --text hi
    printf 'YQ== 0\nYg== 1\nYw== 12' | head -c -1 >"$dir/y.tiktoken" && refused 1 "duplicate id 1, of 'b' and 'c'; is the file cut off?" tokenize --tokenizer "$dir/y.tiktoken" --pattern gpt2 --text hi
    printf '\001\002\003' >"$dir/tokenizer.bin" && refused 1 "tokenizer.bin" tokenize --tokenizer "$dir/tokenizer.bin" --text hi

    # Models, recipes, and their evaluation.
    for verb in "generate --prompt x" "chat" "eval $dir/bom.jsonl"; do
        refused 1 "r.jsonl.gz: neither GGUF nor llama2.c" $verb --model "$dir/r.jsonl.gz"
        refused 1 "nofile: no such file or folder" $verb --model "$dir/nofile"
    done
    # A cache whose files were removed, so that only the links to them are left.
    mkdir "$dir/linked" && cp tests/golden/model/gpt2/config.json "$dir/linked" && ln -s ../../blobs/12ab "$dir/linked/model.safetensors"
    refused 1 "linked/model.safetensors: it is a broken link: its target ../../blobs/12ab is not there" convert "$dir/linked" "$dir/converted"
    refused 1 "r.jsonl.gz: neither GGUF nor llama2.c" convert "$dir/r.jsonl.gz" "$dir/converted"
    small=tests/golden/stories260k/stories260K.bin
    refused 2 "its name must end in .gguf" quantize "$small" "$dir/converted.safetensors"
    refused 2 "its name must end in .gguf" quantize "$small" "$dir/converted"
    mkdir "$dir/folder.gguf" && refused 2 "exists already" quantize "$small" "$dir/folder.gguf"
    refused 1 "$dir/converted is not a folder" quantize "$small" "$dir/converted/x.gguf"
    refused 2 "must not end in .safetensors" convert "$small" "$dir/converted.safetensors"
    refused 2 "exists already" convert "$small" "$dir"
    for recipe in "stepz: 3|2|did you mean 'steps'" "steps: abc|2|'abc' is not a number" "steps: 3\nsteps: 4|1|is already on line 1" "- a\n- b|1|expected a mapping" \
        "a: *b|1|aliases" "steps: 3\n---\nseed: 1|1|a second document begins" "model:\n\twidth: 3|1|cannot start any token" "steps: \"3|1|unexpected end of stream"; do
        IFS='|' read -r text code says <<<"$recipe"
        printf -- "$text" >"$dir/r.yaml"
        refused "$code" "$says" train "$dir/r.yaml" --out "$dir/run"
    done

    # Limits of a prompt and its text.
    head -c 9000 LICENSE | tr -c 'a-z' ' ' >"$dir/long.txt"
    refused 1 "the model's context is 1024" generate --prompt-file "$dir/long.txt"
    refused 2 "no bench is named 'nonsense'" bench kernels --op gemm,nonsense
    refused 2 "give --prompt or --prompt-file, not both" generate --prompt a --prompt-file "$dir/long.txt"
    for verb in "--version" "doctor --no-measure --json" "tokenize --tokenizer $tok --text a"; do
        build/lateen $verb >/dev/full 2>"$dir/err" && echo "not ok - $verb on a full disk ended well" || { grep -qF "standard output: No space left" "$dir/err" && echo "ok - a full disk" || echo "not ok - $verb on a full disk: $(cat "$dir/err")"; }
    done
    printf 'some words\n' >"$dir/words.txt"
    build/lateen tokenize "$dir/words.txt" --tokenizer "$tok" --out "$dir/words" 2>/dev/null >&2
    for file in "$tok" "$dir/other.json"; do
        [ -f "$file" ] || build/lateen tokenizer train "$dir/words.txt" --vocab-size 258 --out "$file" 2>/dev/null
        timeout 60 build/lateen train --out "$dir/warned" --data.train "$dir/words" --data.tokenizer "$file" --model.vocab 70000 --model.layers 1 --model.width 8 --model.heads 1 --data.seq 4 --batch.size 1 --steps 1 --export false >"$dir/out" 2>&1
        n=$(grep -c "was made with another tokenizer" "$dir/out"); [ "$n" = "$([ "$file" = "$tok" ] && echo 0 || echo 1)" ] && echo "ok - a shard of another tokenizer is reported" || echo "not ok - $file: $n warnings: $(tail -3 "$dir/out")"
        rm -rf "$dir/warned"
    done
    ls "$dir" | grep -qE '^(run|converted|x\.bin)' && echo "not ok - something is left: $(ls "$dir")" || echo "ok - nothing is left"
    rm -rf "$dir"
    echo "# end"
}
export -f bad_input
beside "wrong files and words" bash -c bad_input
