#!/usr/bin/env python3
"""Time steps of LoRA (rank 16 beside all linear layers, AdamW, fp32) on a CPU, alternating with transformers with PEFT. Both start from the same folder, the
shape of SmolLM2-135M with random weights, and learn random tokens. Prints a table: tokens/s (median, lowest to highest, of the medians of the rounds).

    pip install torch transformers peft numpy
    bench/lora.py build/lateen PYTHON [--threads 2] [--seq 512] [--rounds 3] [--steps 8]"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))
from make_shard import write_shard  # noqa: E402

PEER = """
import statistics, sys, time, torch, transformers, peft
folder, threads, seq, steps, how = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
torch.set_num_threads(threads)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0))
model.train()
learnt = [p for p in model.parameters() if p.requires_grad]
optimiser = torch.optim.AdamW(learnt, lr=1e-4, fused=True)
forward = torch.compile(model) if how == "compile" else model
ids = torch.randint(0, model.config.vocab_size, (1, seq))
times = []
for _ in range(steps):
    start = time.perf_counter()
    forward(input_ids=ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(learnt, 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - start)
print(statistics.median(times[2:]), torch.__version__, transformers.__version__, peft.__version__)
"""

a = argparse.ArgumentParser()
a.add_argument("lateen")
a.add_argument("python")
a.add_argument("--threads", type=int, default=2)
a.add_argument("--seq", type=int, default=512)
a.add_argument("--rounds", type=int, default=3)
a.add_argument("--steps", type=int, default=8)
o = a.parse_args()
dir = tempfile.mkdtemp(prefix="lateen-lora-")
vocab = 49152
random.seed(1)
write_shard(f"{dir}/shard", [[random.randrange(vocab) for _ in range(64 * o.seq)]])
shape = "--model.family llama --model.layers 30 --model.width 576 --model.heads 9 --model.kv_heads 3 --model.ffn 1536 --model.tied true".split()
common = ["--data.train", f"{dir}/shard", "--data.seq", str(o.seq), "--batch.size", "1", "--sample.tokens", "0", "--device", "cpu", "--threads", str(o.threads)]


def train(out, *options):
    subprocess.run([o.lateen, "train", "--out", f"{dir}/{out}", *common, *options], check=True, capture_output=True)


train("base", *shape, "--model.vocab", str(vocab), "--steps", "0", "--export", "true")
base = f"{dir}/base/model"


def ours():
    subprocess.run(["rm", "-rf", f"{dir}/lora"], check=True)
    train("lora", "--model.init", base, "--lora.rank", "16", "--lora.alpha", "32", "--optim.lr", "1e-4", "--steps", str(o.steps), "--export", "false")
    with open(f"{dir}/lora/metrics.jsonl") as f:
        rows = [r for r in map(json.loads, f) if r["kind"] == "train"]
    return statistics.median(r["step_s"] for r in rows[2:])


versions = ""


def peer(how):
    global versions
    r = subprocess.run([o.python, "-c", PEER, base, str(o.threads), str(o.seq), str(o.steps), how], check=True, capture_output=True, text=True)
    seconds, *names = r.stdout.split()[-4:]
    versions = "torch {}, transformers {}, peft {}".format(*names)
    return float(seconds)


def eager():
    return peer("eager")


def compiled():
    return peer("compile")


sides = {"lateen": ours, "PEFT, eager": eager, "PEFT, torch.compile": compiled}
got = {name: [] for name in sides}
for _ in range(o.rounds):
    for name, side in sides.items():
        got[name].append(o.seq / side())
print(f"{versions}; {o.threads} threads, one row of {o.seq} tokens; load {os.getloadavg()[0]:.1f}")
ours_median = statistics.median(got["lateen"])
print("| | tokens/s | Lateen's over it |\n| --- | --- | --- |")
for name, rates in got.items():
    m = statistics.median(rates)
    print(f"| {name} | {m:.1f} ({min(rates):.1f} to {max(rates):.1f}) | {ours_median / m:.2f} |")
subprocess.run(["rm", "-rf", dir], check=True)
