"""Measure how much of its training text a model recites.  memorisation.py NAME=MODEL:SHARD,SHARD... [--windows 256] [--prefix 64] [--length 128]

MODEL is a Hugging Face folder, SHARD a Megatron pair of uint16 tokens (SHARD.bin, SHARD.idx). At evenly spaced positions of the shard the model gets
`prefix` tokens and continues greedily; the result is the number of tokens that it repeats before the first wrong one.
Prints one line of JSON for each model and shard: mean and quantiles of that length, and the share of windows recited to the end."""
import argparse
import json

import numpy as np
import torch
from transformers import AutoModelForCausalLM

p = argparse.ArgumentParser()
p.add_argument("runs", nargs="+")
p.add_argument("--windows", type=int, default=256)
p.add_argument("--prefix", type=int, default=64)
p.add_argument("--length", type=int, default=128)
a = p.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"


def recited(model, shard):
    tokens = np.fromfile(shard + ".bin", dtype=np.uint16).astype(np.int64)
    starts = np.linspace(1000, len(tokens) - a.prefix - a.length - 1, a.windows).astype(int)
    lengths = []
    for i in range(0, a.windows, 128):
        rows = torch.tensor(np.stack([tokens[s:s + a.prefix + a.length] for s in starts[i:i + 128]]), device=device)
        begin = rows[:, :a.prefix]
        out = model.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=a.length, min_new_tokens=a.length,
                             do_sample=False, pad_token_id=3, eos_token_id=None)
        same = (out[:, a.prefix:] == rows[:, a.prefix:]).long()
        lengths += same.cumprod(1).sum(1).tolist()
    return np.array(lengths)


for run in a.runs:
    name, rest = run.split("=", 1)
    folder, shards = rest.rsplit(":", 1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    for shard in shards.split(","):
        with torch.no_grad():
            m = recited(model, shard)
        print(json.dumps({"kind": "memorisation", "name": name, "shard": shard.split("/")[-1], "windows": a.windows, "prefix": a.prefix,
                          "length": a.length, "mean": float(m.mean()), "median": float(np.median(m)),
                          "p90": float(np.quantile(m, 0.9)), "max": int(m.max()), "whole": float((m == a.length).mean())}), flush=True)
