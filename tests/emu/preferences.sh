#!/usr/bin/env bash
# Objectives over preferences, distillation, and reinforcement learning on emulated GPUs: one GPU
# and two take the same steps as the CPU. Prints TAP.
set -u
cd "$(dirname "$0")/../.."
[ -n "${LATEEN_EMU_MADE:-}" ] || make -s emu 1>&2
# shellcheck source=tests/emu/train_runs.sh
. tests/emu/train_runs.sh
golden=tests/golden/preference
steps=3
options=(--model.dtype fp32 --data.tokenizer tests/golden/sft --data.seq 96 --batch.size 4 --optim.lr 1e-3 --optim.decay 0 --data.shuffle none --sample.tokens 0)
kto=(--model.init tests/golden/sft --data.train $golden/labels.jsonl --objective.kind kto --objective.beta 0.3)
reward=(--model.init $golden/reward --data.train $golden/pairs.jsonl --objective.kind reward)
: >"$work/shard"
train kto-cpu cpu 1 "${kto[@]}" && train kto-gpu cuda 1 "${kto[@]}"
compare "kto: a GPU takes the CPU's steps" kto-cpu kto-gpu 1e-5 1e-4
train kto-gpus cuda 2 "${kto[@]}" --mesh.zero 3
compare "kto: so do two that divide the model (mesh.zero 3), with the reference point of both" kto-cpu kto-gpus 1e-5 1e-4
train reward-cpu cpu 1 "${reward[@]}" && train reward-gpu cuda 1 "${reward[@]}"
compare "reward: a GPU takes the CPU's steps" reward-cpu reward-gpu 1e-5 1e-4
train reward-gpus cuda 2 "${reward[@]}" --mesh pp=2
compare "reward: so does a pipeline of two" reward-cpu reward-gpus 1e-5 1e-4
adapters=("${reward[@]}" --lora.rank 4 --lora.alpha 64)
train head-cpu cpu 1 "${adapters[@]}" && train head-gpu cuda 1 "${adapters[@]}"
compare "reward: adapters and the score head beside them, a GPU takes the CPU's steps" head-cpu head-gpu 1e-5 1e-4
train head-gpus cuda 2 "${adapters[@]}" --mesh tp=2
compare "reward: so do two that share the layers" head-cpu head-gpus 1e-5 1e-4
distill=(--model.init tests/golden/sft --data.train tests/golden/sft/chat.jsonl --data.seq 112 --optim.lr 3e-3 --objective.kind distill --distill.teacher tests/golden/distill/teacher
    --distill.beta 0.5 --distill.labels 0.6)
train distill-cpu cpu 1 "${distill[@]}" && train distill-gpu cuda 1 "${distill[@]}"
compare "distillation: a GPU takes the CPU's steps" distill-cpu distill-gpu 1e-5 1e-4
# Engines draw the answers with weights that were sent to each GPU. The advantages of answers of
# one length sum to 0, so the losses are only rounding errors; the gradient norms are not.
cat >"$work/differ.py" <<'PY'
import json, sys
for line in sys.stdin:
    print(json.dumps({"reward": sum(map(ord, json.loads(line)["completion"])) % 11}), flush=True)
PY
printf '{"prompt": "2+2?", "answer": "4"}\n{"prompt": "6*7?", "answer": "42"}\n' >"$work/problems.jsonl"
rl=(--model.init tests/golden/sft --data.train "$work/problems.jsonl" --data.seq 48 --data.shuffle rows --batch.size 8 --objective.kind dapo --rl.group 4 --rl.tokens 8 --rl.kl 0.1 --rl.rewards command
    --rl.command "exec python3 $work/differ.py")
train rl-cpu cpu 1 "${rl[@]}" && train rl-gpus cuda 2 "${rl[@]}" --mesh tp=2
compare "reinforcement learning: two that share the layers take the CPU's steps" rl-cpu rl-gpus inf 1e-4
train rl-adapters-cpu cpu 1 "${rl[@]}" --lora.rank 4 --lora.alpha 64 && train rl-adapters-gpus cuda 2 "${rl[@]}" --lora.rank 4 --lora.alpha 64 --mesh.zero 3
compare "reinforcement learning: so do the adapters of two that divide the model beside them" rl-adapters-cpu rl-adapters-gpus inf 1e-4
# The engine draws with older weights, on a queue of its own, while the trainer trains.
ahead=(--rl.staleness 1 --rl.correction token-truncate --checkpoint.every 4)
train rl-ahead-cpu cpu 1 "${rl[@]}" "${ahead[@]}" && train rl-ahead-gpu cuda 1 "${rl[@]}" "${ahead[@]}"
compare "reinforcement learning: a GPU draws answers ahead as the CPU does" rl-ahead-cpu rl-ahead-gpu inf 1e-4
# With rl.exact the engine and the trainer agree to the last bit, also in BF16 and with adapters;
# without it they do not.
train rl-exact cuda 1 "${rl[@]}" --model.dtype bf16 --rl.exact true
train rl-exact-adapters cuda 1 "${rl[@]}" --lora.rank 4 --lora.alpha 64 --rl.exact true
train rl-inexact cuda 1 "${rl[@]}"
# Experts and adapters on two GPUs that share the layers, or divide the rows of a text. The model
# has been trained on text for one step.
shard 20000 200
train rl-moe cpu 1 --model.family mixtral --model.layers 2 --model.width 32 --model.heads 4 --model.kv_heads 2 --model.ffn 32 --model.experts 4 --model.top_k 2 --model.vocab 320 --batch.size 4 \
    --steps 1 --data.seq 48 --export true
moe=("${rl[@]}" --model.init "$work/rl-moe/model" --model.aux_coef 0 --model.dtype bf16 --rl.exact true)
train rl-exact-tp cuda 2 "${moe[@]}" --mesh tp=2 --lora.rank 8
train rl-exact-cp cuda 2 "${moe[@]}" --mesh cp=2
n=$((n + 1))
python3 - "$n" "$work" "$steps" <<'PY'
import json, sys
def most(run):
    lines = [r for r in map(json.loads, open(f"{sys.argv[2]}/{run}/metrics.jsonl")) if r["kind"] == "rl"]
    assert len(lines) == int(sys.argv[3])
    return max(r["mismatch"] for r in lines)
try:
    found = {run: most(run) for run in ("rl-exact", "rl-exact-adapters", "rl-exact-tp", "rl-exact-cp", "rl-inexact")}
    good = found.pop("rl-inexact") > 0 and not any(found.values())
except (OSError, KeyError, AssertionError) as e:
    good, found = False, repr(e)
print("ok" if good else "not ok", sys.argv[1], "- rl.exact: log-probabilities of engine and trainer have the same bits on a GPU", "" if good else found)
PY
echo "1..$n"
