#!/usr/bin/env python3
"""Compare the loss of training with linear layers in 8-bit floats and in BF16, from the same initial weights on the same batches.

  fp8.py run --out FILE [--device cuda|cpu] [--steps 400 ...]     needs only python3 and lateen
  fp8.py compare FILE [--svg FILE]                                print differences, check a bound (exit 1 beyond it), draw a figure if gnuplot is installed

The model is a Llama of 88M parameters (12 layers of 768) on data/demo (4,096 entries, two novels held out), with AdamW and a cosine schedule. Another seed in BF16
(other weights, another order of the same data) shows how large a difference must be to mean anything. The bound: the loss of held-out text may exceed BF16's
by the largest difference between seeds, plus 1 %."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from demo import HERE, prepare, quiet

SEEDS, WINDOW, MORE = (1234, 1), 20, 0.01
WAYS = {"bf16": (), "blockwise": ("--model.fp8", "blockwise"), "blockwise, wgrad": ("--model.fp8", "blockwise", "--model.fp8_wgrad", "true"),
        "tensorwise": ("--model.fp8", "tensorwise"), "tensorwise, wgrad": ("--model.fp8", "tensorwise", "--model.fp8_wgrad", "true")}
RECIPE = {"model.family": "llama", "model.layers": 12, "model.width": 768, "model.heads": 12, "model.ffn": 2048, "model.tied": "true", "model.dtype": "bf16",
          "data.seq": 512, "batch.size": 32, "optim.kind": "adamw", "optim.lr": 6e-4, "optim.beta2": 0.95, "optim.decay": 0.1, "optim.clip": 1,
          "lr.schedule": "cosine", "lr.warmup": 40, "lr.min": 0.1, "eval.rows": 0, "log.every": 1, "sample.tokens": 0, "export": "false"}


def train(a, folder, seed, words):
    out = os.path.join(folder, "run")
    options = dict(RECIPE, **{"out": out, "steps": a.steps, "seed": seed, "device": a.device, "data.train": os.path.join(folder, "train"),
                              "data.valid": os.path.join(folder, "valid"), "data.tokenizer": os.path.join(folder, "tokenizer.json")})
    for text in a.set:
        options.update([text.split("=", 1)])
    quiet(a.lateen, "train", *[word for name, value in options.items() for word in ("--" + name, str(value))], *words)
    rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
    shutil.rmtree(out)
    steps = [r for r in rows if r["kind"] == "train"]
    speed = sorted(r["tokens_per_s"] for r in steps)[len(steps) // 2]
    return {"loss": [float(f"{r['loss']:.6g}") for r in steps], "held_out": [r["loss"] for r in rows if r["kind"] == "eval"][-1], "tokens_per_s": round(speed)}


def run(a):
    out = {"device": a.device, "recipe": RECIPE, "set": a.set, "steps": a.steps, "runs": {}}
    if a.device == "cuda":
        out["device"] = quiet_text("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    with tempfile.TemporaryDirectory() as folder:
        prepare(a.lateen, folder, 4096)
        quiet(a.lateen, "tokenize", os.path.join(HERE, "data/demo/val.jsonl.zst"), "--tokenizer", os.path.join(folder, "tokenizer.json"), "--append-eod",
              "--out", os.path.join(folder, "valid"))
        for name, seed in [(name, SEEDS[0]) for name in WAYS] + [("bf16", s) for s in SEEDS[1:]]:
            start = time.time()
            result = train(a, folder, seed, WAYS[name])
            out["runs"][name if seed == SEEDS[0] else f"{name}, seed {seed}"] = result
            with open(a.out, "w") as f:
                f.write(json.dumps(out).replace(': {"loss"', ':\n  {"loss"') + "\n")
            print(f"{name}, seed {seed}: loss {result['loss'][-1]:.4f}, held out {result['held_out']:.4f}, {time.time() - start:.1f} s", flush=True)
    return compare(argparse.Namespace(file=a.out, svg=None))


def quiet_text(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def mean(x):
    return sum(x) / len(x)


def at_the_end(r):
    return r["last_50"] if "last_50" in r else mean(r["loss"][-50:])


def compare(a):
    data = json.load(open(a.file))
    runs = data["runs"]
    seeds = [r for name, r in runs.items() if name.startswith("bf16")]
    spread = max(r["held_out"] for r in seeds) - min(r["held_out"] for r in seeds)
    base, bound, bad = runs["bf16"], spread + MORE * runs["bf16"]["held_out"], []
    print(f"{data['steps']} steps, {data['device']}. Nats; seeds in BF16 lie {spread:.4f} apart.\n")
    print("| run | last 50 steps | above BF16 | held-out text | above BF16 |\n| --- | --- | --- | --- | --- |")
    for name, r in runs.items():
        last, was = at_the_end(r), at_the_end(base)
        print(f"| {name} | {last:.4f} | {last - was:+.4f} | {r['held_out']:.4f} | {r['held_out'] - base['held_out']:+.4f} |")
        if r["held_out"] - base["held_out"] > bound:
            bad.append(f"{name}: held-out loss is {r['held_out'] - base['held_out']:.4f} above BF16's, the bound is {bound:.4f}")
    if a.svg:
        draw(data, a.svg)
    print("\n" + ("\n".join(bad) if bad else f"All within {bound:.4f} of BF16."))
    return 1 if bad else 0


def smooth(x):
    return [mean(x[max(0, i - WINDOW + 1):i + 1]) for i in range(len(x))]


def draw(data, path):
    """Left the curves, right how far each lies above BF16's, means of WINDOW steps."""
    if shutil.which("gnuplot") is None:
        print(f"{path} is not drawn: no gnuplot here")
        return
    runs, plots, apart, text = {name: r for name, r in data["runs"].items() if "loss" in r}, [], [], ""
    base = smooth(runs["bf16"]["loss"])
    for i, (name, r) in enumerate(runs.items()):
        curve = smooth(r["loss"])
        text += f"$d{i} << E\n" + "\n".join(f"{s + 1} {x} {x - y}" for s, (x, y) in enumerate(zip(curve, base))) + "\nE\n"
        dashed = " dt 2" if "seed" in name else ""
        plots.append(f"$d{i} u 1:2 w l lw 1.5 lc {i + 1}{dashed} t '{name}'")
        if name != "bf16":
            apart.append(f"$d{i} u 1:3 w l lw 1.5 lc {i + 1}{dashed} notitle")
    script = f"""set term svg size 1000,400 font 'sans,12' background 'white'
set output '{path}'
{text}set multiplot layout 1,2
set xlabel 'step'; set grid; set key top right
set title 'loss, mean of {WINDOW} steps'
set yrange [*:*]
plot {', '.join(plots)}
set title 'above BF16 of the same seed'
set yrange [-0.15:0.15]
plot {', '.join(apart)}, 0 lc rgb 'black' lw 0.5 notitle
unset multiplot
"""
    subprocess.run(["gnuplot"], input=script, text=True, check=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="what", required=True)
    r = sub.add_parser("run")
    r.add_argument("--out", required=True)
    r.add_argument("--device", default="cuda")
    r.add_argument("--steps", type=int, default=400)
    r.add_argument("--lateen", default=os.path.join(HERE, "build/lateen"))
    r.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another value of the recipe")
    c = sub.add_parser("compare")
    c.add_argument("file")
    c.add_argument("--svg")
    a = p.parse_args()
    return run(a) if a.what == "run" else compare(a)


if __name__ == "__main__":
    sys.exit(main())
