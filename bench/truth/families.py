#!/usr/bin/env python3
"""Compare the CPU with the GPU for every family: 1,000 steps of a small model on the same batches, in fp32 and bf16. The curves must agree.

  families.py run --device cpu|cuda --out FILE     train all (or --families, --dtypes, --steps); needs only python3 and lateen
  families.py compare CPU GPU [--noise CPU2] [--svg FILE]
                                                   print differences, check bounds (exit 1 beyond one), draw a figure if gnuplot is installed. CPU2:
                                                   curves of the CPU with other instructions (LATEEN_ISA=avx2), which show the effect of another
                                                   order of summation

The text is data/demo (public domain), and the tokenizer is trained from it at the start. Both are the same on every machine, and the file has
their checksum. Initial weights depend only on the seed. The CPU's curves are stored in bench/results/truth_families_cpu.json."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

from demo import HERE, prepare

EXPERTS = ["--model.experts", "4", "--model.ffn", "128"]
FAMILIES = {"gpt2": [], "llama": [], "qwen2": [], "qwen3": [], "gemma3": ["--model.layers", "6", "--model.ffn", "256"], "apertus": [],
            "mixtral": EXPERTS + ["--model.top_k", "2"], "switch": EXPERTS + ["--model.top_k", "1"]}
DTYPES = ["fp32", "bf16"]
RECIPE = {"seed": 1, "model.vocab": 1024, "model.layers": 4, "model.width": 128, "model.heads": 4, "data.seq": 64, "batch.size": 8,
          "optim.lr": 1e-3, "lr.warmup": 20, "lr.schedule": "constant", "log.every": 1, "export": "false", "checkpoint.keep_last": 1}
EVERY = 10
EARLY, LATE = 20, 200  # Steps from the beginning, and from the end.
# The largest allowed differences between the CPU's curve and the GPU's, in nats. Both start from the same weights, so at first they differ only by rounding. From then on a
# difference doubles every few steps (faster with QK-norm and routing, slower for GPT-2) until the runs are independent: two runs of the CPU, with AVX2 and AVX-512,
# differ by up to 0.08 in one step of 512 tokens and by 0.012 in the mean of the last 200 (bench/results/truth_families_cpu_avx2.json). The bounds allow about twice that.
#              any step up to 20   any step   mean of the last 200 steps
BOUNDS = {"fp32": (1e-4, 0.15, 0.03),
          "bf16": (5e-3, 0.15, 0.03)}


def checksum(shard):
    digest = hashlib.sha256()
    for name in (shard + ".bin", shard + ".idx"):
        digest.update(open(name, "rb").read())
    return digest.hexdigest()


def train(a, shard, folder, family, dtype):
    out = os.path.join(folder, f"{family}-{dtype}")
    command = [a.lateen, "train", "--out", out, "--data.train", shard, "--model.family", family, "--model.dtype", dtype,
               "--device", a.device, "--threads", str(a.threads), "--steps", str(a.steps)] + FAMILIES[family]
    command[2:2] = [word for name, value in RECIPE.items() for word in ("--" + name, str(value))]
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{family} in {dtype} on {a.device} ended with {done.returncode}:\n{done.stderr[-3000:]}", flush=True)
        return None
    lines = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
    steps = {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}
    shutil.rmtree(out)
    kept = [1] + list(range(EVERY, a.steps + 1, EVERY))
    seconds = round(time.time() - start, 1)
    print(f"{a.device} {dtype} {family:8} {lines[0]['parameters']} parameters, loss {steps[1]:.4f} to {steps[a.steps]:.4f}, {seconds} s", flush=True)
    return {"parameters": lines[0]["parameters"], "seconds": seconds, "steps": kept, "loss": [float(f"{steps[s]:.8g}") for s in kept]}


def machine(device):
    if device == "cuda":
        found = shutil.which("nvidia-smi")
        names = subprocess.run([found, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True).stdout if found else ""
        return names.strip().split("\n")[0] or "CUDA device"
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")] if os.path.exists("/proc/cpuinfo") else []
    return names[0] if names else platform.processor()


def run(a):
    out = {"device": a.device, "machine": machine(a.device), "recipe": RECIPE, "families": FAMILIES, "data_sha256": None, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        shard = prepare(a.lateen, folder, 1024)
        out["data_sha256"] = checksum(shard)
        work = [(f, d) for d in a.dtypes.split(",") for f in a.families.split(",")]
        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            for (family, dtype), result in zip(work, pool.map(lambda w: train(a, shard, folder, *w), work)):
                if result is not None:
                    out["runs"].setdefault(family, {})[dtype] = result
                    write(out, a.out)
    return 0 if sum(len(r) for r in out["runs"].values()) == len(work) else 1


def write(out, path):
    """JSON with one run per line."""
    text = json.dumps(out).replace('"runs": ', '\n"runs": ').replace(', "bf16": {', ',\n  "bf16": {').replace("}}, ", "}},\n")
    with open(path, "w") as f:
        f.write(text + "\n")


def tail(r):
    last = [x for s, x in zip(r["steps"], r["loss"]) if s > r["steps"][-1] - LATE]
    return sum(last) / len(last)


def shared(x, y):
    """Both curves, up to the end of the shorter one: the learning rate is constant, so a short run is the beginning of a long one."""
    n = min(len(x["steps"]), len(y["steps"]))
    return tuple({**r, "steps": r["steps"][:n], "loss": r["loss"][:n]} for r in (x, y))


def gaps(x, y):
    """(largest difference up to EARLY, largest, its step, difference of the ends' means) of two runs."""
    off = [(abs(p - q), s) for s, p, q in zip(x["steps"], x["loss"], y["loss"])]
    return max(d for d, s in off if s <= EARLY), *max(off), abs(tail(x) - tail(y))


def compare(a):
    cpu, gpu = (json.load(open(path)) for path in (a.cpu, a.gpu))
    for key in ("recipe", "families", "data_sha256"):
        if cpu[key] != gpu[key]:
            sys.exit(f"{a.cpu} and {a.gpu} differ in {key}")
    noise = json.load(open(a.noise)) if a.noise else {"runs": {}}
    print(f"CPU: {cpu['machine']}; GPU: {gpu['machine']}. Differences in nats; noise: the CPU and itself with other instructions.\n")
    print(f"| family | type | loss: first, last {LATE} | largest, step 1 to {EARLY} | noise | largest (at step) | noise | means of the last {LATE} | noise |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    bad = []
    for family, runs in cpu["runs"].items():
        for dtype, x in runs.items():
            y = gpu["runs"].get(family, {}).get(dtype)
            if y is None:
                bad.append(f"{family} in {dtype}: not in {a.gpu}")
                continue
            x, y = shared(x, y)
            early, most, at, end = gaps(x, y)
            z = noise["runs"].get(family, {}).get(dtype)
            z_early, z_most, _, z_end = gaps(*shared(x, z)) if z else (float("nan"),) * 4
            print(f"| {family} | {dtype} | {x['loss'][0]:.4f}, {tail(x):.4f} | {early:.1e} | {z_early:.1e} | {most:.1e} ({at}) | {z_most:.1e} | {end:.1e} | {z_end:.1e} |")
            for what, got, bound in zip((f"a step up to {EARLY}", "a step", f"the last {LATE} steps' mean"), (early, most, end), BOUNDS[dtype]):
                if not got <= bound:
                    bad.append(f"{family} in {dtype}: {what} is {got:.2e} off, the bound is {bound:.0e}")
    if a.svg:
        draw(cpu, gpu, noise, a.svg)
    print("\n" + ("\n".join(bad) if bad else "All within the bounds " + json.dumps(BOUNDS) + "."))
    return 1 if bad else 0


def draw(cpu, gpu, noise, path):
    """One column for each family: loss above, |GPU - CPU| below, and in grey the effect of another order of summation."""
    if shutil.which("gnuplot") is None:
        print(f"{path} is not drawn: no gnuplot here")
        return
    families = [f for f in cpu["runs"] if f in gpu["runs"]]
    colours = {"fp32": ("#1f5fa8", "#7fb2e5"), "bf16": ("#b3401f", "#f0a080")}
    lines = [f"set terminal svg size 1200,1000 font 'sans,11' background 'white'\nset output '{path}'",
             "set multiplot layout 4,4 margins 0.05,0.99,0.05,0.96 spacing 0.035,0.05", "set tics font ',9'\nset grid lc rgb '#dddddd'\nset xrange [0:*]"]
    for first in range(0, len(families), 4):
        for below in (False, True):
            for family in families[first:first + 4]:
                parts, blocks = [], []
                for dtype in DTYPES:
                    x, y = cpu["runs"][family].get(dtype), gpu["runs"][family].get(dtype)
                    if x is None or y is None:
                        continue
                    x, y = shared(x, y)
                    z = noise["runs"].get(family, {}).get(dtype)
                    if below and z is not None:
                        parts.append(f"'-' with lines lw 1 lc rgb '{colours[dtype][1]}' title '{dtype}: CPU, other instructions'")
                        blocks.append([(s, max(abs(p - q), 1e-8)) for s, p, q in zip(z["steps"], x["loss"], z["loss"])])
                    if below:
                        parts.append(f"'-' with lines lw 1 lc rgb '{colours[dtype][0]}' title '{dtype}: GPU'")
                        blocks.append([(s, max(abs(p - q), 1e-8)) for s, p, q in zip(x["steps"], x["loss"], y["loss"])])
                    else:
                        for r, name, width, colour in ((x, "CPU", 4, colours[dtype][1]), (y, "GPU", 1, colours[dtype][0])):
                            parts.append(f"'-' with lines lw {width} lc rgb '{colour}' title '{name} {dtype}'")
                            blocks.append(list(zip(r["steps"], r["loss"])))
                lines.append("set logscale y\nset format y '%.0e'\nset yrange [1e-8:10]\nset ytics 100\nset key top right font ',8' samplen 2" if below else
                             "unset logscale y\nset format y '%g'\nset yrange [*:*]\nset ytics autofreq\nset key top right font ',8' samplen 2")
                lines.append(f"set title '{family}{': |difference to the CPU|' if below else ': loss'}' offset 0,-0.6")
                lines.append("plot " + ", ".join(parts))
                lines += ["\n".join(f"{s} {v}" for s, v in block) + "\ne" for block in blocks]
            lines += ["set multiplot next"] * (4 - len(families[first:first + 4]))
    subprocess.run(["gnuplot"], input="\n".join(lines), text=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    p = verbs.add_parser("run")
    p.add_argument("--device", default="cpu")
    p.add_argument("--out", required=True)
    p.add_argument("--lateen", default=os.path.join(HERE, "build/lateen"))
    p.add_argument("--families", default=",".join(FAMILIES))
    p.add_argument("--dtypes", default=",".join(DTYPES))
    p.add_argument("--steps", type=int, default=1000)
    p.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    p.add_argument("--threads", type=int, default=0)
    p.set_defaults(do=run)
    p = verbs.add_parser("compare")
    p.add_argument("cpu")
    p.add_argument("gpu")
    p.add_argument("--noise")
    p.add_argument("--svg")
    p.set_defaults(do=compare)
    a = parser.parse_args()
    sys.exit(a.do(a))


main()
