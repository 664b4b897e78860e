#!/usr/bin/env bash
# `lateen serve` end to end, as TAP: raw bytes, OpenAI's Python client, the pages in Chromium, keys, loading, draining, bench.
#   tests/e2e/serve.sh [raw|openai|anthropic|ollama|agents|state|bodies|pages|life|calls|ends|edges|seeds|abuse|safe|groups|adapters|scores|models|infill|shift_context|slots|kept|disk|drafts|control|batches|tuning|tuning_slurm|bench]...       without words: all
# The model is stories260K (tests/golden/stories260k).
set -u
cd "$(dirname "$0")/../.."
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
lateen=${LATEEN:-build/lateen}
dir=$(mktemp -d)
server=0
trap '[ "$server" = 0 ] || kill "$server" 2>/dev/null; rm -rf "$dir"' EXIT
. tests/tap.sh

shared=tests/golden/stories260k
run=() # The command that runs the program: the emulated GPU.
model=("$shared/stories260K.bin" --tokenizer "$shared/tok512.bin")
name=stories260K

start() { # flags of the server; sets server, port
    # Remove the address of the previous server: the new one's shell may truncate the file after
    # it is read here.
    : >"$dir/url"
    "${run[@]}" "$lateen" serve "${model[@]}" --port 0 --quiet "$@" >"$dir/url" 2>"$dir/err" &
    server=$!
    for _ in $(seq 1200); do
        port=$(sed -n 's/.*:\([0-9]*\)$/\1/p' "$dir/url")
        [ -z "$port" ] || break
        sleep 0.05
    done
}
ready() { for _ in $(seq 1200); do curl -sf "http://127.0.0.1:$port/health" >/dev/null && return 0; sleep 0.05; done; return 1; }
status_of() { curl -s -m 20 -o "$dir/out" -w '%{http_code}' "$@"; }
stop() { kill -TERM "$server"; wait "$server"; local s=$?; server=0; return $s; }

raw() {
    start --request-s 2 --cors https://a.example
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within python3 tests/e2e/serve_raw.py "$port" $name
    stop
    say "SIGTERM ends it cleanly" $? "$(tail -3 "$dir/err")"
}

# A Python that has the modules; .ci/run installs what clients need into build/venv.
python_with() { # module...
    for p in build/venv/bin/python python3; do "$p" -c "import $1" 2>/dev/null && python=$p && return; done
    skip "$1's client" "python3 has no $1 (.ci/run installs it into build/venv); raw and state test the same paths"
    return 1
}

openai() {
    python_with openai || return
    start
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within "$python" tests/e2e/serve_openai.py "http://127.0.0.1:$port" $name
    stop
    say "SIGTERM ends it cleanly" $? "$(tail -3 "$dir/err")"
}

# A template that opens the reasoning, and shows earlier reasoning, calls and tools.
reasons() {
    printf '%s' "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{{ m.thoughts and '</think>' }}{% endfor %}{% for t in tools or [] %}{{ t | tojson }} as <tool_call>{\"name\": ...}</tool_call>{% endfor %}<think>" >"$dir/reasons.jinja"
    start --chat-template "$dir/reasons.jinja" "$@"
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return 1; }
}

anthropic() {
    python_with anthropic || return
    reasons --api-key one,one-other || return
    within "$python" tests/e2e/serve_anthropic.py "http://127.0.0.1:$port" $name one
    stop
}

bodies() { # For $SERVE_BODIES_S seconds.
    reasons || return
    within python3 tests/e2e/serve_bodies.py "$port" "${SERVE_BODIES_S:-10}"
    stop
    say "SIGTERM ends it cleanly" $? "$(tail -3 "$dir/err")"
}

# What is kept between requests.
state() {
    reasons --api-key one,two --store-entries 6 || return
    within python3 tests/e2e/serve_state.py "$port" one two
    within python3 tests/e2e/serve_messages.py "$port" one two
    stop
    reasons --store-s 1 || return
    local id
    id=$(curl -s "http://127.0.0.1:$port/v1/responses" -H 'Content-Type: application/json' -d '{"input":"Once","max_output_tokens":4}' | grep -oE -m 1 'resp_[0-9A-Za-z]+' | head -n 1)
    sleep 1.2 # A second without a use; requesting it is a use.
    [ -n "$id" ] && [ "$(status_of "http://127.0.0.1:$port/v1/responses/$id")" = 404 ]
    say "a response is forgotten after --store-s" $? "$id: $(cat "$dir/out")"
    stop
}

ollama() {
    python_with ollama || return
    reasons || return
    within "$python" tests/e2e/serve_ollama.py "http://127.0.0.1:$port" $name
    stop
}

# Frameworks, each with the first Python that has it; the model that ships with Lateen, because
# stories260K's context is too short for their prompts.
agents() {
    local framework module found
    local -A of=()
    for framework in openai_agents:agents instructor_modes:instructor dspy_adapters:dspy litellm_calls:litellm langchain:langchain_openai langchain_ollama:langchain_ollama pydantic_ai:pydantic_ai llama_index:llama_index.llms.openai_like; do
        module=${framework#*:} found=
        for p in build/venv*/bin/python python3; do "$p" -c "import $module" 2>/dev/null && found=$p && break; done
        if [ -n "$found" ]; then of[$found]+=" ${framework%%:*}"; else skip "${framework%%:*}" "no $module (.ci/run installs some, tests/long/agents.sh all)"; fi
    done
    [ ${#of[@]} -gt 0 ] || return
    model=(models/polyglot-46m.gguf)
    start
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    for p in "${!of[@]}"; do
        # shellcheck disable=SC2086
        within "$p" tests/e2e/serve_agents.py "http://127.0.0.1:$port" polyglot-46m ${of[$p]} 2>"$dir/agents.err"
    done
    stop
}

groups() {
    python3 tests/e2e/serve_guides.py vector "$dir/push.safetensors"
    python3 tests/e2e/serve_guides.py small "$dir/small"
    start --steer "push=$dir/push.safetensors" --second "twin=${model[0]},small=$dir/small"
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within python3 tests/e2e/serve_groups.py "http://127.0.0.1:$port"
    within python3 tests/e2e/serve_guides.py "http://127.0.0.1:$port" "$shared/tok512.bin" "$lateen"
    stop
    timeout 60 "$lateen" serve "${model[@]}" --port 0 --second models/polyglot-46m.gguf >"$dir/out" 2>&1
    say "a second model with another tokenizer: exit 1" $(($? != 1)) "$(cat "$dir/out")"
    grep -q "models/polyglot-46m.gguf: its tokenizer has" "$dir/out"
    say "and the message says so" $? "$(cat "$dir/out")"
    timeout 20 "$lateen" serve "${model[@]}" --port 0 --second "=x" >"$dir/out" 2>&1
    say "a second model without a name: exit 2" $(($? != 2)) "$(cat "$dir/out")"
}

adapters() {
    python3 tests/e2e/serve_adapters.py make "$dir/lora"
    start --lora "red=$dir/lora/red" --lora "green=$dir/lora/green" --max-loras 2 --max-lora-rank 8 --lora-updating --deterministic
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within python3 tests/e2e/serve_adapters.py "http://127.0.0.1:$port" "$dir/lora" "$lateen" "${model[0]}" "$shared/tok512.bin"
    stop
    say "SIGTERM ends it cleanly" $? "$(tail -3 "$dir/err")"
    local wrong code
    for wrong in "x=$dir/lora/other_base" "x=$dir/nothing" "$name=$dir/lora/red" "x=" "$dir/lora/red --max-lora-rank 2" "$dir/lora/red,$dir/lora/red"; do
        # shellcheck disable=SC2086
        timeout 60 "$lateen" serve "${model[@]}" --port 0 --lora $wrong >"$dir/out" 2>&1
        code=$?
        say "--lora $(basename "$wrong"): the server does not start" $((code == 0)) "$(cat "$dir/out")"
    done
    start --lora "$dir/lora/red.gguf,$dir/lora/blue"
    ready && [ "$(status_of "http://127.0.0.1:$port/v1/load_lora_adapter" -H 'Content-Type: application/json' -d '{"lora_name":"x","lora_path":"/"}')" = 404 ] && curl -s "http://127.0.0.1:$port/v1/models" | grep '"id":"red"' | grep -q '"id":"blue"'
    say "names of folders and files; loading is refused without --lora-updating" $? "$(cat "$dir/out" "$dir/err")"
    stop
}

# Models that judge texts: alone, and beside one that writes. Their ids are those of the stories'
# tokenizer.
scores() {
    local stories=("${model[@]}") kind
    cp -r tests/golden/serve/reward "$dir/pooled" && mkdir "$dir/pooled/1_Pooling"
    printf '{"word_embedding_dimension": 16, "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true}' >"$dir/pooled/1_Pooling/config.json"
    for kind in reward classify pooled text beside; do
        model=("${stories[@]}")
        [ $kind = pooled ] && model=("$dir/pooled" --tokenizer "$shared/tok512.bin")
        [ -d "tests/golden/serve/$kind" ] && model=("tests/golden/serve/$kind" --tokenizer "$shared/tok512.bin")
        if [ $kind = beside ]; then start --dtype fp32 --reward tests/golden/serve/reward --reward-tokenizer "$shared/tok512.bin"; else start --dtype fp32; fi
        ready || { say "the server is ready: $kind" 1 "$(cat "$dir/err")"; continue; }
        within python3 tests/e2e/serve_scores.py $kind "http://127.0.0.1:$port"
        stop
        say "SIGTERM ends it cleanly: $kind" $? "$(tail -3 "$dir/err")"
    done
    python3 tests/e2e/serve_steps.py folder "$dir/judge"
    python3 tests/e2e/serve_steps.py head_folder "$dir/head"
    for kind in tokens steps judged head head_judged; do
        case $kind in
        tokens) model=(tests/golden/prm/model --tokenizer tests/golden/sft) && start --dtype fp32 ;;
        steps) model=("$dir/judge") && start --dtype fp32 ;;
        judged) model=("${stories[@]}") && start --dtype fp32 --reward "$dir/judge" ;;
        head) model=("$dir/head") && start --dtype fp32 ;;
        head_judged) model=("${stories[@]}") && start --dtype fp32 --reward "$dir/head" ;;
        esac
        ready || { say "the server is ready: $kind" 1 "$(cat "$dir/err")"; continue; }
        within python3 tests/e2e/serve_steps.py $kind "http://127.0.0.1:$port"
        stop
        say "SIGTERM ends it cleanly: $kind" $? "$(tail -3 "$dir/err")"
    done
    model=("${stories[@]}")
    sed -i 's/score\.2\.weight/score.3.weight/' "$dir/head/model.safetensors"
    timeout 60 "$lateen" serve "$dir/head" --port 0 >"$dir/out" 2>&1
    [ $? = 1 ] && grep -q "tensor score.2.weight is missing" "$dir/out"
    say "a head without its second layer: exit 1, by name" $? "$(cat "$dir/out")"
}

models() { # It starts its own servers.
    within python3 tests/e2e/serve_models.py "$lateen"
}

infill() { # It has its own tokenizers, whose ids are bytes.
    local kind
    for kind in qwen llama; do
        python3 tests/e2e/serve_infill.py tokenizer $kind "$dir/$kind"
        model=("$shared/stories260K.bin" --tokenizer "$dir/$kind")
        start
        ready || { say "the server is ready: $kind" 1 "$(cat "$dir/err")"; continue; }
        within python3 tests/e2e/serve_infill.py $kind "http://127.0.0.1:$port"
        stop
    done
    model=("$shared/stories260K.bin" --tokenizer "$shared/tok512.bin")
}

shift_context() {
    start --context 64 --context-shift --dtype fp32 --cache-dtype fp32
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within python3 tests/e2e/serve_shift.py "http://127.0.0.1:$port"
    stop
    say "SIGTERM ends it cleanly" $? "$(tail -3 "$dir/err")"
}

slots() {
    local step
    mkdir "$dir/slots"
    for step in save restore other; do
        # shellcheck disable=SC2046 # Words.
        start --slot-save-path "$dir/slots" --deterministic $([ $step = other ] && echo --cache-dtype fp8)
        ready || { say "the server is ready: $step" 1 "$(cat "$dir/err")"; return; }
        within python3 tests/e2e/serve_slots.py $step "http://127.0.0.1:$port" "$dir/slots"
        stop
    done
    start
    ready
    say "without --slot-save-path: 501" $(($(status_of "http://127.0.0.1:$port/slots/0?action=erase" -d '{"prompt": "a"}') != 501)) "$(cat "$dir/out")"
    stop
    timeout 20 "$lateen" serve "${model[@]}" --port 0 --slot-save-path "$dir/nowhere" >"$dir/out" 2>&1
    say "a folder that does not exist: exit 2" $(($? != 2)) "$(cat "$dir/out")"
}

kept() {
    printf '%s' "{% for m in messages %}{{ m.content }}{% endfor %}" >"$dir/plain.jinja"
    start --chat-template "$dir/plain.jinja" --cache-dtype fp32 --cache-bytes 819200 --max-running 2
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within python3 tests/e2e/serve_kept.py "http://127.0.0.1:$port"
    stop
}

disk() {
    local step
    mkdir "$dir/disk"
    for step in evict return; do
        start --cache-disk "$dir/disk/pages" --deterministic --cache-dtype fp32 --cache-bytes 819200 --max-running 2
        ready || { say "the server is ready: $step" 1 "$(cat "$dir/err")"; return; }
        within python3 tests/e2e/serve_disk.py $step "http://127.0.0.1:$port" "$dir/disk"
        stop
    done
    timeout 20 "$lateen" serve "${model[@]}" --port 0 --cache-disk-bytes 1GiB >"$dir/out" 2>&1
    say "a size without a folder: exit 2" $(($? != 2)) "$(cat "$dir/out")"
    timeout 20 "$lateen" serve "${model[@]}" --port 0 --cache-disk "$dir/disk/pages" --cache-disk-bytes 100 >"$dir/out" 2>&1
    say "a size too small for a page: exit 1, and both numbers" $(($? != 1)) "$(cat "$dir/out")"
}

drafts() {
    python3 tests/e2e/serve_guides.py small "$dir/knows_nothing"
    for right in 1 0; do
        start --speculate model --draft "$( ((right)) && echo "${model[0]}" || echo "$dir/knows_nothing")" --draft-tokens 3
        ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
        within python3 tests/e2e/serve_drafts.py "http://127.0.0.1:$port" "$right"
        stop
        say "SIGTERM ends it cleanly" $? "$(tail -3 "$dir/err")"
    done
    local group=("$lateen" generate --model "${model[@]}" --prompt "Once upon a time" --align '{"method": "best_of_n", "n": 4}' --seed 3)
    timeout 60 "${group[@]}" >"$dir/plain" 2>"$dir/err" && timeout 60 "${group[@]}" --speculate model --draft "${model[0]}" >"$dir/out" 2>>"$dir/err" && cmp -s "$dir/plain" "$dir/out" && [ -s "$dir/out" ]
    say "generate --align with a draft model: the same text" $? "$(cat "$dir/err")"
    timeout 60 "$lateen" generate --model "${model[@]}" --speculate ngram >"$dir/out" 2>&1
    [ $? = 2 ] && grep -q "have no effect without --align" "$dir/out"
    say "without --align it is refused" $? "$(cat "$dir/out")"
    timeout 60 "$lateen" serve "${model[@]}" --port 0 --speculate model --draft models/polyglot-46m.gguf >"$dir/out" 2>&1
    say "a draft model with another tokenizer: exit 1" $(($? != 1)) "$(cat "$dir/out")"
    grep -q -- "--draft models/polyglot-46m.gguf: its tokenizer has [0-9]* tokens, that of the served model 512" "$dir/out"
    say "and the message has both sizes" $? "$(cat "$dir/out")"
    timeout 20 "$lateen" serve "${model[@]}" --port 0 --speculate head --draft tests/golden/draft_head/head >"$dir/out" 2>&1
    [ $? = 1 ] && grep -q "for a model of width 32 with 80 tokens and has width 32; the served model has width 64 and 512 tokens" "$dir/out"
    say "a head of another model: exit 1, and the message has both shapes" $? "$(cat "$dir/out")"
    timeout 20 "$lateen" serve "${model[@]}" --port 0 --speculate head >"$dir/out" 2>&1
    [ $? = 1 ] && grep -q "${model[0]} is not a folder; a draft head is the folder of an EAGLE-3 head, or of a model with layers of multi-token prediction" "$dir/out"
    say "a model without a layer of its own: exit 1" $? "$(cat "$dir/out")"
    for flags in "--speculate model" "--draft ${model[0]}" "--speculate ngram --draft ${model[0]}"; do
        # shellcheck disable=SC2086 # Words.
        timeout 20 "$lateen" serve "${model[@]}" --port 0 $flags >"$dir/out" 2>&1
        say "$flags: exit 2" $(($? != 2)) "$(cat "$dir/out")"
    done
}

control() {
    reasons --deterministic || return
    within python3 tests/e2e/serve_control.py "http://127.0.0.1:$port"
    stop
    say "SIGTERM ends it cleanly" $? "$(tail -3 "$dir/err")"
    # Models with other marks: Seed-OSS's, and gpt-oss's channels.
    sed "s/<think>/<seed:think>/; s/'<\/think>'/'<\/seed:think>'/" "$dir/reasons.jinja" >"$dir/seed.jinja"
    start --deterministic --chat-template "$dir/seed.jinja"
    ready && within python3 tests/e2e/serve_marks.py "http://127.0.0.1:$port" "</seed:think>"
    stop
    sed "s/<think>/<|start|>assistant<|channel|>analysis<|message|>/; s/'<\/think>'/''/" "$dir/reasons.jinja" >"$dir/channels.jinja"
    start --deterministic --chat-template "$dir/channels.jinja"
    ready && within python3 tests/e2e/serve_marks.py "http://127.0.0.1:$port" "<|end|><|start|>assistant<|channel|>final<|message|>"
    stop
    # A model whose mark is one token.
    local stories=("${model[@]}")
    mkdir "$dir/thinks" && cp tests/golden/sft/{config.json,model.safetensors,tokenizer_config.json} "$dir/thinks"
    sed 's/<|tool|>/<\/think>/' tests/golden/sft/tokenizer.json >"$dir/thinks/tokenizer.json"
    model=("$dir/thinks")
    reasons --deterministic && within python3 tests/e2e/serve_waits.py "http://127.0.0.1:$port"
    stop
    model=("${stories[@]}")
}

# The model that ships with Lateen for chats.
reasoner() {
    model=()
    start --deterministic
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within python3 tests/e2e/serve_reasoner.py "http://127.0.0.1:$port" "$lateen"
    stop
}

pages() {
    local chromium
    chromium=$(command -v chromium || command -v chromium-headless-shell || command -v google-chrome)
    if [ -z "$chromium" ]; then skip pages "no chromium"; return; fi
    start
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within timeout 240 python3 tests/e2e/serve_pages.py "http://127.0.0.1:$port" "$chromium"
    stop
}

life() {
    local code first long
    "$lateen" serve "$dir/nothing.gguf" --port 0 >"$dir/out" 2>&1
    say "a model that does not exist: exit 1 and its name" $(($? != 1)) "$(cat "$dir/out")"
    grep -q nothing.gguf "$dir/out"
    say "the message names it" $?
    "$lateen" serve "${model[@]}" --port 70000 >"$dir/out" 2>&1
    say "a port that is not valid: exit 2" $(($? != 2))
    "$lateen" serve "${model[@]}" --port 0 --defaults '{"temprature": 1}' >"$dir/out" 2>&1
    say "--defaults with a wrong field: exit 2, and the nearest name" $(($? != 2)) "$(cat "$dir/out")"
    grep -q "temperature" "$dir/out"
    say "the message names it" $?
    : >"$dir/empty.gguf"
    for model_path in "$dir/nowhere" "$dir/empty.gguf"; do
        "$lateen" serve "$model_path" --port 0 >"$dir/out" 2>"$dir/err"
        say "a model that is missing or refused: it fails" $(($? != 1)) "$(cat "$dir/err")"
        [ ! -s "$dir/out" ]
        say "no address is printed for ${model_path##*/}" $? "$(cat "$dir/out")"
    done
    : >"$dir/nokeys"
    for keys in "--api-key-file $dir/nokeys" "--api-key ,"; do
        timeout 20 "$lateen" serve "${model[@]}" --port 0 $keys >"$dir/out" 2>&1
        say "${keys%% *} without a key: exit 2, not a server without keys" $(($? != 2)) "$(cat "$dir/out")"
    done
    for host in ::1 "[::1]"; do
        : >"$dir/url" >"$dir/err"
        "${run[@]}" "$lateen" serve "${model[@]}" --port 0 --quiet --host "$host" >"$dir/url" 2>"$dir/err" &
        server=$!
        for _ in $(seq 1200); do [ -s "$dir/url" ] || [ -s "$dir/err" ] || sleep 0.05; done
        if grep -q "assign requested address\|not supported" "$dir/err"; then
            wait "$server"
            skip IPv6 "this machine has none"
        else
            curl -sg -m 5 -o /dev/null "$(cat "$dir/url")/health"
            say "--host $host: the address it prints is valid ($(cat "$dir/url"))" $? "$(cat "$dir/err")"
            kill "$server" && wait "$server"
        fi
        server=0
    done
    start --alias 'org/a model:é %41'
    ready
    [ "$(status_of "http://127.0.0.1:$port/v1/models/org%2Fa%20model:%c3%A9%20%2541")" = 200 ]
    say "a model's name as clients write it in a path" $? "$(cat "$dir/out")"
    [ "$(status_of "http://127.0.0.1:$port/v1/models/org%2Fa%20model:%c3%A9%20%41%4%")" = 404 ]
    say "and another's" $? "$(cat "$dir/out")"
    stop
    start --api-key one,two --max-waiting 2 --max-running 1 --drain-s $((80 * ${DEADLINE_FACTOR:-1}))
    code=$(status_of "http://127.0.0.1:$port/health")
    [ "$code" = 503 ] || [ "$code" = 200 ]
    say "/health answers from the start ($code)" $?
    ready
    say "and is 200 when ready, without a key" $?
    [ "$(status_of -D "$dir/head" "http://127.0.0.1:$port/v1/models")" = 401 ] && grep -qi '^www-authenticate: bearer' "$dir/head"
    say "no key: 401, and how to give one" $?
    [ "$(status_of -H 'Authorization: Bearer two' "http://127.0.0.1:$port/v1/models")" = 200 ]
    say "the second key: 200" $?
    [ "$(status_of -H 'x-api-key: one' "http://127.0.0.1:$port/v1/models")" = 200 ]
    say "x-api-key: 200" $?
    [ "$(status_of -H 'Authorization: Bearer onetwo' "http://127.0.0.1:$port/v1/models")" = 401 ]
    say "a wrong key: 401" $?
    # One request of 6 samples occupies the only place for at least half a second, five wait: the
    # queue is full, however slow the machine.
    curl -s -m $((90 * ${DEADLINE_FACTOR:-1})) -o "$dir/full" -H 'Authorization: Bearer one' "http://127.0.0.1:$port/v1/completions" \
        -d '{"prompt":"Once","max_tokens":300,"n":6,"ignore_eos":true}' &
    long=$!
    for _ in $(seq 3000); do
        curl -s -H 'Authorization: Bearer one' "http://127.0.0.1:$port/status.json" | grep -qE '"waiting":[2-5]' && break
        sleep 0.02
    done
    code=$(status_of -D "$dir/head" -H 'Authorization: Bearer one' "http://127.0.0.1:$port/v1/completions" -d '{"prompt":"Once"}')
    [ "$code" = 429 ] && grep -qi '^retry-after: *[1-9]' "$dir/head" && grep -q "requests wait" "$dir/out"
    say "a full queue: 429 with Retry-After ($code)" $? "$(cat "$dir/head" "$dir/out")"
    kill -TERM "$server"
    for _ in $(seq 1200); do # Until the server has seen the signal its queue is still full: 429.
        code=$(status_of -H 'Authorization: Bearer one' "http://127.0.0.1:$port/v1/completions" -d '{"prompt":"Once"}')
        [ "$code" = 429 ] || break
        sleep 0.05
    done
    [ "$code" = 503 ] || [ "$code" = 000 ]
    say "while it ends: new requests get 503 ($code)" $?
    wait "$server"
    say "it ends when its requests have" $?
    server=0
    wait "$long"
    first=$(grep -o '"finish_reason":"length"' "$dir/full" | wc -l)
    [ "$first" = 6 ]
    say "the request that ran was finished ($first of 6 samples)" $? "$(head -c 300 "$dir/full")"
}

# A template that knows Hermes' calls: of a named tool there is one call, of required ones there
# may be more.
calls() {
    printf '%s' "{% for t in tools %}{{ t | tojson }} as <tool_call>{\"name\": ...}</tool_call>{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}" >"$dir/hermes.jinja"
    start --chat-template "$dir/hermes.jinja"
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    python3 - "$port" <<'END' >"$dir/out" 2>&1
import json, sys, urllib.request
def n_calls(choice, seed):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "temperature": 1.5, "seed": seed, "tool_choice": choice,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}},
                                                                                     "required": ["a"], "additionalProperties": False}}}]}
    r = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions", json.dumps(body).encode())
    return len(json.load(r)["choices"][0]["message"]["tool_calls"])
named = [n_calls({"type": "function", "function": {"name": "f"}}, seed) for seed in range(8)]
required = [n_calls("required", seed) for seed in range(8)]
print(named, required)
sys.exit(not (named == [1] * 8 and max(required) > 1))
END
    say "calls: a named tool is called once, required ones as often as the model likes" $? "$(cat "$dir/out")"
    python3 - "$port" <<'END' >"$dir/out" 2>&1
import json, sys, urllib.request
tool = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"a": {"enum": ["one"]}}, "required": ["a"], "additionalProperties": False}}}
def post(path, **kw):
    r = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{path}", json.dumps(kw).encode()).read().decode()
    return [json.loads(line[6:]) for line in r.split("\n") if line.startswith("data: {")] if kw.get("stream") else json.loads(r)
talk = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1.5, "seed": 3}
seen, wrong, arguments = set(), [], '{"a":"one"}'
for most in range(1, 75):
    ask = dict(talk, max_tokens=most, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    c = post("/v1/chat/completions", **ask)["choices"][0]
    chunks = [e["choices"][0] for e in post("/v1/chat/completions", stream=True, **ask)]
    parts = [d for e in chunks for d in e["delta"].get("tool_calls", [])]
    calls = [(t["function"]["name"], t["function"]["arguments"]) for t in c["message"].get("tool_calls", [])]
    streamed = [("".join(t["function"].get("name", "") for t in parts), "".join(t["function"]["arguments"] for t in parts))] if parts else []
    text = "".join(e["delta"].get("content") or "" for e in chunks)
    blocks = post("/v1/messages", max_tokens=most, **talk, tool_choice={"type": "any", "disable_parallel_tool_use": True},
                  tools=[{"name": "get_time", "input_schema": tool["function"]["parameters"]}])["content"]
    items = post("/v1/responses", input="Hi", temperature=1.5, seed=3, max_output_tokens=most, tool_choice="required", parallel_tool_calls=False, tools=[dict(tool["function"], type="function")])["output"]
    seen.add((len(calls), c["finish_reason"]))
    whole = len(calls) == 1 and calls[0][1].replace(" ", "").replace("\n", "") == arguments
    if (c["message"]["content"] or text or calls != streamed or chunks[-1]["finish_reason"] != c["finish_reason"] or (c["finish_reason"] == "tool_calls" and not whole) or
            any(b.get("text") for b in blocks) or [b["name"] for b in blocks if b["type"] == "tool_use"] != [n for n, _ in calls] or
            [i["arguments"] for i in items if i["type"] == "function_call"] != [a for _, a in calls] or any(i["type"] == "message" and i["content"][0]["text"] for i in items)):
        wrong.append((most, c, text, streamed, blocks, items))
print(seen, wrong[:1])
sys.exit(bool(wrong) or not seen >= {(0, "length"), (1, "length"), (1, "tool_calls")})
END
    say "calls: if max_tokens cuts them off, no mark is left as content, and what is known of the call is returned" $? "$(cat "$dir/out")"
    stop
    # Whether it was asked to or not.
    printf '%s' "{% for m in messages %}{{ m.content }}{{ m.thoughts and '</think>' }}{% endfor %}<think>" >"$dir/thinks.jinja"
    start --chat-template "$dir/thinks.jinja"
    ready
    python3 - "$port" <<'END' >"$dir/out" 2>&1
import json, sys, urllib.request
def ask(path, **kw):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60, "temperature": 0, **kw}
    return json.load(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{path}", json.dumps(body).encode()))
much, *nones = (ask("/v1/chat/completions", **kw)["choices"][0]["message"] for kw in ({}, {"reasoning_effort": "none"}, {"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}))
blocks = [[b["type"] for b in ask("/v1/messages", **kw)["content"]] for kw in ({}, {"thinking": {"type": "disabled"}})]
print(much, nones, blocks)
sys.exit(not (len(much["reasoning_content"]) > 20 and not any(none.get("reasoning_content") or len(none["content"]) < 20 for none in nones) and blocks == [["thinking"], ["text"]]))
END
    say "thinking: an effort of none, and disabled, are obeyed even if the template always reasons" $? "$(cat "$dir/out")"
    stop
}

# A folder whose files name several ending tokens (among them a comma and a full stop, so that
# texts end soon) and sampling defaults.
ends() {
    local comma stop model=("${model[@]}") # Its own, for the servers it starts.
    "$lateen" convert "${model[0]}" "$dir/own" --tokenizer "${model[2]}" 2>"$dir/err"
    say "convert" $? "$(cat "$dir/err")"
    comma=$(printf '{"text": ","}' | "$lateen" tokenize --tokenizer "${model[2]}" --jsonl | tr -cd '0-9 ,\n' | tr ', ' '\n\n' | tail -1)
    stop=$(printf '{"text": "."}' | "$lateen" tokenize --tokenizer "${model[2]}" --jsonl | tr -cd '0-9 ,\n' | tr ', ' '\n\n' | tail -1)
    printf '{"eos_token_id": [2, %s, %s], "do_sample": false, "temperature": 0.9, "top_k": 7, "max_new_tokens": 150}' "$comma" "$stop" >"$dir/own/generation_config.json"
    [ "$("$lateen" generate --model "$dir/own" --prompt "Once" 2>"$dir/err")" = " upon a time" ]
    say "generate ends at the first of them, and chooses as the file says" $? "$(cat "$dir/err")"
    [ "$("$lateen" generate --model "$dir/own" --prompt "Once" --max-tokens 2 2>"$dir/err")" = " upon a" ]
    say "a flag overrides the file" $? "$(cat "$dir/err")"
    "$lateen" convert "$dir/own" "$dir/own.gguf" 2>"$dir/err" && [ "$("$lateen" generate --model "$dir/own.gguf" --prompt "Once" 2>"$dir/err")" = " upon a time" ]
    say "as a GGUF, too" $? "$(cat "$dir/err")"
    for at in own own.gguf; do
        model=("$dir/$at")
        start
        ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
        within python3 tests/e2e/serve_ends.py "http://127.0.0.1:$port" "2,$comma,$stop"
        stop
        start --generation-config none
        ready
        curl -s "http://127.0.0.1:$port/props" | grep -q '"temperature": *0.8,'
        say "--generation-config none: the server's own defaults" $?
        stop
        start --defaults '{"temperature": 0.25}'
        ready
        curl -s "http://127.0.0.1:$port/props" | grep -q '"temperature": *0.25, *"top_k": *7,'
        say "--defaults override the file" $?
        stop
    done
}

# The exact edges of limits.
edges() {
    start
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    within python3 tests/e2e/serve_edges.py "http://127.0.0.1:$port"
    stop
    # Parts of a content: as the template joins them, or as lines.
    local lines="{# tool #}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    local joins="{# tool #}{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text ~ (' + ' if not loop.last) }}{% endfor %}{% endif %}{% endfor %}"
    for template in "$lines" "$joins"; do
        printf '%s' "$template" >"$dir/parts.jinja"
        start --chat-template "$dir/parts.jinja"
        ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
        python3 - "$port" "$([ "$template" = "$joins" ] && echo ' + ')" <<'END' >"$dir/out" 2>&1
import json, sys, urllib.request
gap = sys.argv[2] or "\n"
def ask(path, **body):
    r = urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}))
    return json.load(r)
def parts(kind, *texts):
    return [{"type": kind, "text": t} for t in texts]
prompt = ask("/apply-template", messages=[{"role": "system", "content": parts("text", "a", "b", "c")}, {"role": "user", "content": parts("text", "d", "e")},
                                          {"role": "assistant", "content": parts("text", "f", "g")}, {"role": "tool", "content": parts("text", "h", "i")}])["prompt"]
want = f"[system]a{gap}b{gap}c[user]d{gap}e[assistant]fg[tool]h{gap}i"
said = {"messages": [{"role": "system", "content": f"a{gap}b"}, {"role": "user", "content": f"d{gap}e"}]}
n = [ask("/v1/chat/completions/input_tokens", **said)["input_tokens"],
     ask("/v1/messages/count_tokens", model="stories260K", system=parts("text", "a", "b"), messages=[{"role": "user", "content": parts("text", "d", "e")}])["input_tokens"],
     ask("/v1/responses/input_tokens", instructions=f"a{gap}b", input=[{"role": "user", "content": parts("input_text", "d", "e")}])["input_tokens"]]
print(prompt, want, n)
sys.exit(not (prompt == want and len(set(n)) == 1))
END
        say "the parts of a content" $? "$(cat "$dir/out")"
        stop
    done
}

abuse() { # It starts its own servers.
    within python3 tests/e2e/serve_abuse.py "$lateen" "$shared/stories260K.bin" "$shared/tok512.bin"
}

safe() { # It starts its own servers.
    within python3 tests/e2e/serve_safe.py "$lateen" "$shared/stories260K.bin" "$shared/tok512.bin"
}

tuning() { # It starts its own servers, and they start trainers.
    python_with openai || python=python3
    within "$python" tests/e2e/serve_tuning.py "$lateen" "$shared/stories260K.bin" "$shared/tok512.bin"
}

tuning_slurm() { # It starts its own servers.
    within python3 tests/e2e/tuning_queue.py "$lateen" "$shared/stories260K.bin" "$shared/tok512.bin"
}

batches() { # It starts its own servers.
    python_with openai || python=python3
    within "$python" tests/e2e/serve_batches.py "$lateen" "$shared/stories260K.bin" "$shared/tok512.bin"
    within "$python" tests/e2e/serve_uploads.py "$lateen" "$shared/stories260K.bin" "$shared/tok512.bin"
}

# A seed gives the same text from generate, chat and serve. SEEDS_DEVICE=cuda: on the emulated GPU.
seeds() {
    local device=${SEEDS_DEVICE:-cpu}
    [ "$device" = cpu ] || run=(tests/emu/run)
    printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }}. {% endfor %}{% if add_generation_prompt %}So{% endif %}" >"$dir/seeds.jinja"
    start --device "$device" --dtype fp32 --generation-config none --chat-template "$dir/seeds.jinja"
    ready || { say "the server is ready" 1 "$(cat "$dir/err")"; return; }
    SEEDS_MODEL="${model[*]}" SEEDS_TEMPLATE="$dir/seeds.jinja" within python3 tests/e2e/serve_seeds.py "$port" "$device" "$([ "$device" = cpu ] && echo all || echo few)" -- "${run[@]}" "$lateen"
    stop
}

bench() {
    "$lateen" bench serve "${model[@]}" --requests 24 --concurrency 8 --prompt-tokens 16 --max-tokens 16 \
        --json >"$dir/bench" 2>"$dir/err"
    say "bench serve starts a server and prints a report" $? "$(tail -2 "$dir/err")"
    python3 -c "
import json, sys
r = json.load(open('$dir/bench'))
sys.exit(not (r['completed'] == 24 and r['output_tokens'] == 24 * 16 and r['ttft_s']['p99'] > 0))"
    say "all requests complete, every token counted" $?
    if [ -d ../shared/data/trace-mooncake ]; then
        "$lateen" bench serve "${model[@]}" --trace ../shared/data/trace-mooncake/conversation_trace.jsonl.zst \
            --requests 12 --time-scale 0 --limit-tokens 200 --json >"$dir/bench" 2>"$dir/err" &&
            "$lateen" bench serve "${model[@]}" --trace ../shared/data/trace-azure-llm-2023/AzureLLMInferenceTrace_conv.csv.zst \
                --requests 12 --time-scale 0.001 --limit-tokens 200 >"$dir/bench2" 2>>"$dir/err"
        say "the traces" $? "$(tail -2 "$dir/err")"
    else
        skip "the traces" "no ../shared/data/trace-mooncake"
    fi
    if [ -e /proc/net/if_inet6 ] && grep -q " lo$" /proc/net/if_inet6; then
        "$lateen" bench serve "${model[@]}" --serve "--host ::1" --requests 2 --prompt-tokens 8 --max-tokens 4 --json >"$dir/bench" 2>"$dir/err" && grep -q '"completed": *2' "$dir/bench"
        say "an IPv6 address" $? "$(tail -2 "$dir/err")"
    else
        skip "an IPv6 address" "this machine has none"
    fi
    "$lateen" bench serve "${model[@]}" --requests 3 --prompt-tokens 2000 --max-tokens 4 >"$dir/out" 2>&1
    [ $? = 1 ] && grep -q "0 of 3 requests completed" "$dir/out" && grep -q "first failure: HTTP 400: the prompt of 2000 tokens exceeds" "$dir/out"
    say "requests that all fail: exit 1, and the server's own words" $? "$(tail -3 "$dir/out")"
    "$lateen" bench serve "${model[@]}" --requests 8 --drop 1 --prompt-tokens 8 --max-tokens 300 --json >"$dir/out" 2>"$dir/err" &&
        python3 -c "
import json, sys
r = json.load(open('$dir/out'))
sys.exit(not (r['dropped'] > 0 == r['failed'] and r['dropped'] + r['completed'] == 8 and r['first_failure'] == ''))"
    say "clients that disconnected because of --drop are not failures" $? "$(tail -2 "$dir/err")"
    "$lateen" bench serve "${model[@]}" --requests 1 --model nobody >"$dir/out" 2>&1
    [ $? = 1 ] && grep -q "the model 'nobody' is not served here" "$dir/out"
    say "a refused first request: the server's own words" $? "$(cat "$dir/out")"
    for where in localhost:8080 https://127.0.0.1:8080; do
        "$lateen" bench serve $where >"$dir/out" 2>&1
        [ $? != 0 ] && grep -q "http://" "$dir/out"
        say "$where: the message says what an address is" $? "$(cat "$dir/out")"
    done
    "$lateen" bench serve http://127.0.0.1:1 --requests 1 >"$dir/out" 2>&1
    say "no server there: exit 1" $(($? != 1)) "$(cat "$dir/out")"
}

[ $# -gt 0 ] || set -- raw openai anthropic ollama agents state bodies pages life calls ends edges seeds abuse safe groups scores control bench
for part in "$@"; do "$part"; done
finish
