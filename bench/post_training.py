#!/usr/bin/env python3
"""Time steps of DPO and GRPO on one device, alternating with TRL's trainers. Both sides start from the same folder (random weights, a vocabulary of words
that are one token each), learn all weights in bf16 with AdamW, and read the same file; both compute the reference's log-probabilities of DPO before the
first step. GRPO's answers are drawn by Lateen's engine, and in TRL by transformers (TRL's default; vLLM is another program). No group of answers is
left out: the reward is a number that differs from answer to answer.

    pip install torch transformers trl
    bench/post_training.py build/lateen PYTHON --objective dpo [--shape llama-1b] [--device cuda] [--batch 8] [--prompt 256] [--answer 512] [--mode eager]
    bench/post_training.py build/lateen PYTHON --objective grpo --batch 128 --group 16 --micro 64
    bench/post_training.py build/lateen PYTHON --objective dpo --alone --also objective.keep_logits=false

--batch counts pairs (DPO) or answers (GRPO). It prints one line of JSON: seconds per step of each run, and the ratio of the medians."""
import argparse
import atexit
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "e2e"))
from make_shard import write_shard  # noqa: E402

SHAPES = {"llama-1b": (16, 2048, 32, 8, 8192, 128256), "tiny": (2, 64, 4, 2, 128, 512)}
a = argparse.ArgumentParser()
a.add_argument("lateen")
a.add_argument("python")
a.add_argument("--objective", choices=["dpo", "grpo"], default="dpo")
a.add_argument("--shape", choices=SHAPES, default="llama-1b")
a.add_argument("--device", default="cuda")
a.add_argument("--batch", type=int, default=8)
a.add_argument("--micro", type=int, default=0, help="examples in one pass; 0: all")
a.add_argument("--group", type=int, default=16)
a.add_argument("--prompt", type=int, default=256)
a.add_argument("--answer", type=int, default=512)
a.add_argument("--steps", type=int, default=8)
a.add_argument("--rounds", type=int, default=2)
a.add_argument("--generation", choices=["static", "continuous"], default="static", help="how transformers batches the peer's answers")
a.add_argument("--mode", choices=["eager", "compile"], default="eager", help="mode of the peer")
a.add_argument("--also", metavar="NAME=VALUE", help="also run Lateen, in turn, with this option, or with several separated by spaces")
a.add_argument("--alone", action="store_true", help="leave the peer out")
o = a.parse_args()
o.micro = o.micro or o.batch
layers, width, heads, kv_heads, ffn, vocab = SHAPES[o.shape]
bf16 = o.device == "cuda"
dir = tempfile.mkdtemp(prefix="lateen-post-training-")
atexit.register(shutil.rmtree, dir, ignore_errors=True)
random.seed(1)


def tokenizer():
    """A unigram model in which "_w17" is one token, with as many such words as fit the vocabulary."""
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], *[[c, -20.0] for c in "\u2581w0123456789"]]
    pieces += [[f"\u2581w{i}", -10.0] for i in range(vocab - len(pieces))]
    special = [{"id": i, "content": pieces[i][0], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i in range(3)]
    space = {"replacement": "\u2581", "prepend_scheme": "never", "split": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": {"type": "Metaspace", **space},
            "post_processor": None, "decoder": {"type": "Metaspace", **space}, "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}}


def words(n):
    return "".join(f" w{random.randrange(vocab - 15)}" for _ in range(n))


def train(out, *options):
    command = [o.lateen, "train", "--out", f"{dir}/{out}", "--device", o.device, "--sample.tokens", "0", *map(str, options)]
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{r.stdout[-2000:]}\n{r.stderr[-2000:]}")


write_shard(f"{dir}/shard", [[random.randrange(min(vocab, 65536)) for _ in range(4096)]])
shape = ["--model.family", "llama", "--model.layers", layers, "--model.width", width, "--model.heads", heads, "--model.kv_heads", kv_heads,
         "--model.ffn", ffn, "--model.tied", "true", "--model.vocab", vocab]
dtype = ["--model.dtype", "bf16"] if bf16 else []
train("base", *shape, *dtype, "--data.train", f"{dir}/shard", "--data.seq", o.prompt + o.answer + 8, "--batch.size", 1, "--steps", 0, "--export", "true")
base = f"{dir}/base/model"
shutil.rmtree(f"{dir}/base/checkpoints", ignore_errors=True)
with open(f"{base}/tokenizer.json", "w") as f:
    json.dump(tokenizer(), f)
with open(f"{base}/tokenizer_config.json", "w") as f:
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}, f)
rows = 16 if o.objective == "dpo" else 64
with open(f"{dir}/data.jsonl", "w") as f:
    for _ in range(max(rows, o.batch)):
        row = {"prompt": words(o.prompt)}
        if o.objective == "dpo":
            row.update(chosen=words(o.answer), rejected=words(o.answer))
        f.write(json.dumps(row) + "\n")
reward = f"{dir}/reward.py" # The share of the digit 7 among the characters, which differs from answer to answer.
with open(reward, "w") as f:
    f.write("import json, sys\nfor line in sys.stdin:\n    text = json.loads(line)['completion']\n    print(text.count('7') / max(1, len(text)), flush=True)\n")


def ours(name, options=()):
    # In both trainers an answer has one more token, that of its end.
    common = ["--model.init", base, *dtype, "--objective.kind", o.objective, "--data.train", f"{dir}/data.jsonl", "--data.chat_template", "plain", "--data.seq", o.prompt + o.answer + 8,
              "--batch.size", o.batch, "--batch.micro", o.micro, "--steps", o.steps, "--optim.lr", 1e-6, "--optim.beta2", 0.999, "--optim.decay", 0, "--lr.schedule", "constant", "--export", "false"]
    extra = ["--rl.group", o.group, "--rl.tokens", o.answer, "--rl.rewards", "command", "--rl.command", f"{o.python} {reward}"] if o.objective == "grpo" else ["--objective.beta", 0.1]
    train(name, *common, *extra, *options)
    with open(f"{dir}/{name}/metrics.jsonl") as f:
        lines = [json.loads(line) for line in f]
    shutil.rmtree(f"{dir}/{name}")
    steps = [r for r in lines if r["kind"] == "train"]
    seconds = [r["step_s"] for r in steps[2:]]
    rl = [r for r in lines if r["kind"] == "rl"]
    start = next(r for r in lines if r["kind"] == "start")
    return seconds, {"losses": [r["loss"] for r in steps], "memory": start["memory"], "metrics": {**steps[-1], **(rl[-1] if rl else {})}}


def peer():
    settings = dict(objective=o.objective, base=base, data=f"{dir}/data.jsonl", batch=o.batch, micro=o.micro, group=o.group, answer=o.answer, length=o.prompt + o.answer + 8,
                    steps=o.steps, mode=o.mode, generation=o.generation, device=o.device, out=f"{dir}/peer")
    r = subprocess.run([o.python, os.path.join(HERE, "peers", "train_trl.py"), json.dumps(settings)], capture_output=True, text=True)
    if r.returncode != 0:
        sys.exit(f"{r.stdout[-2000:]}\n{r.stderr[-4000:]}")
    answer = json.loads(r.stdout.splitlines()[-1])
    return answer["step_s"][2:], answer


sides = {"lateen": lambda: ours("ours")}
if o.also:
    sides[o.also] = lambda: ours("also", [word for option in o.also.split() for word in ("--" + option.split("=")[0], option.split("=", 1)[1])])
if not o.alone:
    sides["peer"] = peer
times, notes = {name: [] for name in sides}, {}
for round in range(o.rounds):
    for name, run in sides.items():
        seconds, notes[name] = run()
        times[name] += seconds
    print(f"round {round}: " + ", ".join(f"{name} {statistics.median(s):.4f} s per step" for name, s in times.items()), file=sys.stderr, flush=True)
medians = {name: statistics.median(s) for name, s in times.items()}
ratios = {"ratio": medians["peer"] / medians["lateen"]} if "peer" in medians else {}
print(json.dumps({"options": vars(o), **{f"{name}_s": s for name, s in times.items()}, **ratios, **notes}))
