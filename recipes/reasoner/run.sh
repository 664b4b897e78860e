#!/usr/bin/env bash
# The whole life of a small model that reasons: data, tokenizer, base model, mid-training, fine-tuning, reinforcement learning, evaluation, quantisation.
#   run.sh [--small] [STAGE ...]      stages: data base mid sft sft_think grpo dr_grpo distilled quantise evaluate; none given: all but dr_grpo and distilled
# A stage that is finished is not repeated, and one that was interrupted goes on where it stopped. Settings are environment variables:
#   OUT        folder of everything that is made (runs/reasoner)
#   LATEEN     the program (build/lateen)
#   TEXT       English texts for the base model, .txt or .jsonl, also .gz or .zst (the text in data/demo)
#   INSTRUCT   files of conversations for fine-tuning beside the made problems (none); instruct.py makes them of GSM8K and of Dolly
#   DEVICE     auto, cuda, cpu (auto)
#   STEPS      optimiser steps of a stage, in place of its recipe's: STEPS="base=2000 grpo=100"
#   MINUTES    or the time that a stage may take, from which its steps are computed: MINUTES="base=3 mid=4 sft=1 grpo=5"
#   FLAGS_BASE, FLAGS_MID, FLAGS_SFT, FLAGS_GRPO    further options of `lateen train`
#   KINDS      kinds of problems (all; --small: units strings)
#   RUNNING    answers at once in the evaluation (256)
# --small makes a model of 0.9M parameters that learns two kinds of problems, on a laptop's CPU in some minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
small=
if [ "${1:-}" = --small ]; then
    small=1
    shift
fi
out=${OUT:-runs/reasoner${small:+-small}} lateen=${LATEEN:-build/lateen} device=${DEVICE:-auto}
text=${TEXT:-$here/../../data/demo/train.jsonl.zst} instruct=${INSTRUCT:-} steps=${STEPS:-} minutes=${MINUTES:-}
work=$out/data
mkdir -p "$work"

# kinds: of problems. easy, all: levels. n_*: problems of each data set, and of the evaluation. weights_*: of English, easy and all problems.
if [ -n "$small" ]; then
    kinds=${KINDS:-units strings} easy=1 all=1-2 vocab=1024
    n_base=60000 n_mid_easy=60000 n_mid_all=20000 n_sft_easy=6000 n_sft_all=2000 n_rl=12000 n_test=1500 n_eval=400 rl_tokens=96 quantised=q8_0
    weights_base="40 60" weights_mid="10 60 30"
    base=(--model.layers 4 --model.width 128 --model.heads 4 --model.kv_heads 2 --model.head_dim 32 --model.ffn 384 --model.max_seq 256)
    lm=(--data.seq 256 --batch.size 16 --batch.micro 16 --lr.warmup 20 --optim.lr 4e-3)
    base+=("${lm[@]}" --steps 250 --eval.every 0) mid=("${lm[@]}" --steps 350 --eval.every 0)
    sft=(--data.seq 256 --batch.size 8 --lr.warmup 10 --steps 120 --optim.lr 1e-3)
    rl=(--data.seq 192 --rl.group 8 --batch.size 64 --batch.micro 16 --steps 60 --optim.lr 2e-4 --eval.every 15 --eval.rows 200)
else
    kinds=${KINDS:-all} easy=1-3 all=1-5 vocab=8192
    n_base=2400000 n_mid_easy=2400000 n_mid_all=800000 n_sft_easy=160000 n_sft_all=60000 n_rl=80000 n_test=8000 n_eval=2400 rl_tokens=320 quantised=q5_k_s
    weights_base="40 60" weights_mid="8 69 23"
    base=(--model.dtype bf16) mid=(--model.dtype bf16) sft=(--model.dtype bf16) rl=(--model.dtype bf16)
fi
rl+=(--rl.tokens "$rl_tokens")

say() { printf '%s  %s\n' "$(date +%H:%M:%S)" "$*" | tee -a "$out/stages.log" >&2; }

# The value of a stage in a list such as "base=3 grpo=5".
of_stage() {
    local pair
    for pair in $2; do [ "${pair%%=*}" != "$1" ] || echo "${pair#*=}"; done
}

# make_problems COUNT options: problems of all kinds, in equal parts, to standard output.
make_problems() {
    local count=$1 kind n
    shift
    n=$(echo "$kinds" | wc -w)
    for kind in $kinds; do $lateen data make "$kind" --count $((count / n)) "$@"; done
}

# made FILE COUNT options: the same into a file, unless it is there.
made() {
    local file=$1
    shift
    [ -s "$file" ] || { make_problems "$@" >"$file.part" && mv "$file.part" "$file"; } 2>>"$out/data.log"
}

# shuffled FILE [-n COUNT]: its lines in another order, which is always the same.
shuffled() { shuf --random-source=<(yes) "$@"; }

# by_key DIGITS FILE COUNT: problems whose keys begin with these digits, in an order that mixes kinds and is always the same. No key of the held-out split is in the
# training split; a part of them is for learning by rewards, and another is for tests.
by_key() { grep -E "\"key\": \"[$1]" "$2" | shuffled - -n "$3"; }

stage_data() {
    local file
    # Seen by the base model.
    made "$work/base.jsonl" $n_base --form text --level $easy --seed 1 --repeats ignore
    made "$work/mid-easy.jsonl" $n_mid_easy --form text --level $easy --seed 2 --repeats ignore
    made "$work/mid-all.jsonl" $n_mid_all --form text --level $all --seed 3 --repeats ignore
    # Conversations: one half thinks, the other answers at once with an empty thought. So thinking can be switched off, and rewards can teach that it pays.
    made "$work/think-easy.jsonl" $n_sft_easy --level $easy --seed 4
    made "$work/think-all.jsonl" $n_sft_all --level $all --seed 5
    made "$work/direct-easy.jsonl" $n_sft_easy --level $easy --seed 6 --steps none
    made "$work/direct-all.jsonl" $n_sft_all --level $all --seed 8 --steps none
    shuffled <(cat "$work"/think-*.jsonl) >"$work/sft_think.jsonl"
    shuffled <(cat "$work"/think-*.jsonl <(sed 's/"role": "assistant", /&"reasoning_content": "", /' "$work"/direct-*.jsonl)) >"$work/sft.jsonl"
    # Never seen before.
    made "$work/held-out.jsonl" $((n_rl * 2)) --level $all --seed 7 --split held-out --repeats drop
    by_key 0-9ab "$work/held-out.jsonl" $n_rl >"$work/rl.jsonl"
    by_key c-f "$work/held-out.jsonl" $n_test >"$work/test.jsonl"
    head -n 512 "$work/test.jsonl" >"$work/valid.jsonl"
    if [ ! -s "$work/tokenizer/tokenizer.json" ]; then
        mkdir -p "$work/tokenizer"
        head -n 100000 "$work/mid-all.jsonl" >"$work/words.jsonl"
        # shellcheck disable=SC2086
        $lateen tokenizer train "$work/words.jsonl" $text --vocab-size $vocab --pattern qwen2 \
            --special '<|endoftext|>,<|im_start|>,<|im_end|>,<think>,</think>' --out "$work/tokenizer/tokenizer.json" 2>>"$out/data.log"
        cp "$here/tokenizer_config.json" "$here/chat_template.jinja" "$work/tokenizer/"
        rm "$work/words.jsonl"
    fi
    # shellcheck disable=SC2086
    [ -s "$work/english.idx" ] || $lateen tokenize $text --tokenizer "$work/tokenizer" --out "$work/english" >>"$out/data.log" 2>&1
    for file in base mid-easy mid-all; do
        [ -s "$work/$file.idx" ] || $lateen tokenize "$work/$file.jsonl" --tokenizer "$work/tokenizer" --out "$work/$file" >>"$out/data.log" 2>&1
    done
}

# train STAGE RECIPE options: as many steps as STEPS says; as fit into MINUTES by the speed of a short run; or as the recipe has.
train() {
    local stage=$1 recipe=$2 n m options
    shift 2
    options=("$@" --device "$device")
    n=$(of_stage "$stage" "$steps")
    m=$(of_stage "$stage" "$minutes")
    if [ -n "$m" ] && [ -z "$n" ]; then
        [ -s "$out/$stage.steps" ] || fitting "$stage" "$recipe" "$m" >"$out/$stage.steps"
        n=$(cat "$out/$stage.steps")
    fi
    [ -z "$n" ] || options+=(--steps "$n")
    $lateen train "$here/$recipe" --out "$out/$stage" "${options[@]}"
}

# The steps that fit into so many minutes: the second half of a short run tells the time of one.
fitting() {
    local probe=$out/probe-$1 few=40
    case $1 in *grpo) few=6 ;; esac
    rm -rf "$probe"
    $lateen train "$here/$2" --out "$probe" "${options[@]}" --steps $few --lr.warmup 0 --log.every 1 --checkpoint.every 0 --eval.every 0 --sample.tokens 0 --export false >&2
    sed -n 's/.*"kind":"train".*"step_s":\([0-9.e-]*\).*/\1/p' "$probe/metrics.jsonl" | tail -n $((few / 2)) |
        awk -v minutes="$3" '{sum += $1} END {steps = int(minutes * 60 * NR / sum); print (steps > 10 ? steps : 10)}'
    rm -rf "$probe"
}

mix() { # weights, names of shards
    local weights=$1 sep=
    shift
    for w in $weights; do
        printf '%s%s:%s' "$sep" "$work/$1" "$w"
        sep=, && shift
    done
}

stage_base() {
    # shellcheck disable=SC2086
    train base base.yaml --data.tokenizer "$work/tokenizer" --data.train "$(mix "$weights_base" english base)" "${base[@]}" ${FLAGS_BASE:-}
}
stage_mid() {
    # shellcheck disable=SC2086
    train mid mid.yaml --data.tokenizer "$work/tokenizer" --data.train "$(mix "$weights_mid" english mid-easy mid-all)" --model.init "$out/base/model" "${mid[@]}" ${FLAGS_MID:-}
}
# tune STAGE: on the conversations of its name.
tune() {
    local data=$work/$1.jsonl file
    for file in $instruct; do data=$data,$file; done
    # shellcheck disable=SC2086
    train "$1" sft.yaml --model.init "$out/mid/model" --data.tokenizer "$work/tokenizer" --data.train "$data" "${sft[@]}" ${FLAGS_SFT:-}
}
stage_sft() { tune sft; }
stage_sft_think() { tune sft_think; }
reinforce() {
    # shellcheck disable=SC2086
    train "$1" grpo.yaml --model.init "$out/sft/model" --data.train "$work/rl.jsonl" --data.valid "$work/valid.jsonl" "${rl[@]}" --objective.kind "$1" ${FLAGS_GRPO:-}
}
stage_grpo() { reinforce grpo; }
stage_dr_grpo() { reinforce dr_grpo; }

# The model before fine-tuning learns from the right answers of the one after reinforcement learning, to problems of which neither is in the evaluation.
stage_distilled() {
    local file=$work/distilled
    [ -s "$file.jsonl" ] || {
        $lateen eval --task problems "$work/rl.jsonl" --model "$out/grpo/model" --chat --max-tokens "$rl_tokens" --max-running "${RUNNING:-256}" --device "$device" \
            --request '{"temperature": 1}' --outputs "$file.answers" --json >"$file.json"
        sed -nE 's/.*"messages":\[(\{"role":"user","content":"([^"\\]|\\.)*"\}),.*"completions":\["<think>(([^"\\]|\\.)*)<\/think>(([^"\\]|\\.)*)"\],"right":\[true\].*/{"messages": [\1, {"role": "assistant", "reasoning_content": "\3", "content": "\5"}]}/p' \
            "$file.answers" >"$file.part"
        rm "$file.answers"
        mv "$file.part" "$file.jsonl"
    }
    tune distilled
}

# ask NAME MODEL SAMPLES: held-out problems, answered greedily (1 sample) or at temperature 1; the answers, judged, go to eval/NAME.SAMPLES.jsonl.
ask() {
    local file=$out/eval/$1.$3
    local options=(--samples "$3" --k "1$([ "$3" = 1 ] || echo ",$3")" --limit $((n_eval / ($3 > 1 ? 2 : 1))))
    [ "$3" = 1 ] || options+=(--request '{"temperature": 1}')
    [ -s "$file.jsonl" ] || {
        $lateen eval --task problems "$work/test.jsonl" --model "$2" --chat --max-tokens "$rl_tokens" --max-running "${RUNNING:-256}" --device "$device" \
            "${options[@]}" --outputs "$file.part" --json >"$file.json"
        mv "$file.part" "$file.jsonl"
    }
    printf '{"model": "%s", "samples": %d, "tokens": %s, "rows": %s}\n' "$1" "$3" "$(sed -n 's/.*"tokens": \([0-9]*\.[0-9]\).*/\1/p' "$file.json")" \
        "$($lateen data check "$file.jsonl" --k "1$([ "$3" = 1 ] || echo ",$3")" --json | tr -d '\n')" >>"$out/evaluation.jsonl"
}

# The models that are there: fine-tuned only, after reinforcement learning, and what ships.
stage_evaluate() {
    local name
    mkdir -p "$out/eval"
    : >"$out/evaluation.jsonl"
    for name in sft sft_think distilled grpo dr_grpo; do
        [ -d "$out/$name/model" ] || continue
        ask $name "$out/$name/model" 1
        ask $name "$out/$name/model" 8
    done
    for name in "$out"/*.gguf; do
        [ ! -s "$name" ] || ask "$(basename "$name")" "$name" 1
    done
    ! command -v python3 >/dev/null || python3 "$here/table.py" "$out/evaluation.jsonl" | tee "$out/evaluation.md"
}

stage_quantise() {
    [ -s "$out/reasoner.gguf" ] || $lateen quantize "$out/grpo/model" "$out/reasoner.gguf" --type "$quantised"
    ls -l "$out/reasoner.gguf" >&2
}

[ $# -gt 0 ] || set -- data base mid sft sft_think grpo quantise evaluate
for stage in "$@"; do
    declare -F "stage_$stage" >/dev/null || {
        echo "run.sh: no stage $stage; there are data base mid sft sft_think grpo dr_grpo distilled quantise evaluate" >&2
        exit 2
    }
    say "$stage begins"
    "stage_$stage"
    say "$stage is done"
done
