#!/usr/bin/env python3
"""Compare GPT-2 124M in Lateen and in PyTorch: the same initial weights, the same batches, 200 steps of 8 rows of 1,024 tokens. The losses must agree within bf16's noise.

  gpt2_torch.py run --out FILE [--device cuda|cpu] [--steps 200 ...]     needs torch, transformers and lateen
  gpt2_torch.py compare FILE [--svg FILE]                                print differences, check bounds (exit 1 beyond one), draw a figure if gnuplot is installed

transformers draws the weights and writes them as a Hugging Face folder, from which both sides start. PyTorch trains them in the usual way: bf16 autocast over
fp32 weights, SDPA, fused AdamW, clipping at 1. Text and tokenizer are data/demo's (3,072 entries; the model keeps its 50,304), rows follow one another.

PyTorch itself shows how large bf16's noise is, by three further runs: with TF32's products (10 bits of mantissa instead of 7) and everything else in fp32; with all weights
and activations in bf16 over an fp32 master copy, which is how Lateen stores them (autocast keeps the residual stream and the norms in fp32); and with the rows of a
step in two micro-batches, which sums in another order. In fp32, without TF32, both sides take fewer steps and must agree much more closely."""
import argparse
import copy
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

from demo import HERE, prepare

LR, WARMUP, LR_MIN, BETA1, BETA2, EPS, DECAY, CLIP = 6e-4, 20, 0.1, 0.9, 0.95, 1e-8, 0.1, 1.0
WINDOW = 20  # Number of steps in a mean.
# Bounds in nats. fp32: for any step. bf16: the allowed difference to each of PyTorch's runs is measured in the same comparison: NOISE times the largest difference
# between PyTorch's own runs (at least NOISE_STEP and NOISE_MEAN, in case these happen to agree).
BOUND_FP32, NOISE, NOISE_STEP, NOISE_MEAN = 2e-4, 1.5, 2e-3, 1e-3


def lr_at(step, steps):
    if step <= WARMUP:
        return LR * step / WARMUP
    return LR * (LR_MIN + (1 - LR_MIN) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))))


def say(text):
    print(time.strftime("%T"), text, flush=True)


def draw_weights(a, folder):
    import torch
    import transformers
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=a.vocab, n_positions=a.seq, n_embd=a.width, n_layer=a.layers, n_head=a.heads, resid_pdrop=0.0, embd_pdrop=0.0,
                                     attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    path = os.path.join(folder, "init")
    model.save_pretrained(path)
    return path


def ours(a, shard, init, dtype, micro, steps):
    """The losses of our run, and its seconds without the start."""
    out = os.path.join(os.path.dirname(init), f"ours-{dtype}-{micro}")
    options = {"out": out, "steps": a.steps, "model.init": init, "model.dtype": dtype, "device": a.device, "data.train": shard, "data.seq": a.seq,
               "data.shuffle": "none", "data.packing": "stream", "data.mask_documents": "false", "data.reset_positions": "false", "data.mask_eod": "false",
               "batch.size": a.batch, "batch.micro": micro, "optim.kind": "adamw", "optim.lr": LR, "optim.beta1": BETA1, "optim.beta2": BETA2,
               "optim.eps": EPS, "optim.decay": DECAY, "optim.clip": CLIP, "lr.schedule": "cosine", "lr.warmup": WARMUP, "lr.min": LR_MIN, "log.every": 1,
               "export": "false"}
    command = [a.lateen, "train"] + [word for name, value in options.items() for word in ("--" + name, str(value))]
    metrics = os.path.join(out, "metrics.jsonl")
    done = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, errors = done.communicate() if steps == a.steps else stop_after(done, metrics, steps)
    rows = [json.loads(line) for line in open(metrics) if line.endswith("}\n")] if os.path.exists(metrics) else []
    rows = [r for r in rows if r["kind"] == "train"][:steps]
    if len(rows) < steps:
        sys.exit(f"lateen ended with {done.returncode} after {len(rows)} of {steps} steps:\n{errors[-3000:]}")
    for r in rows:
        if abs(r["lr"] - lr_at(r["step"], a.steps)) > 1e-6 * LR:
            sys.exit(f"step {r['step']}: learning rate {r['lr']} here, {lr_at(r['step'], a.steps)} in PyTorch")
    shutil.rmtree(out)
    return [r["loss"] for r in rows], [r["grad_norm"] for r in rows], sorted(r["step_s"] for r in rows)[len(rows) // 2]


def stop_after(process, metrics, steps):
    """End a run that takes fewer steps than its schedule has; its checkpoint is not needed."""
    while process.poll() is None:
        n = sum('"kind":"train"' in line for line in open(metrics)) if os.path.exists(metrics) else 0
        if n > steps:
            process.kill()
        time.sleep(0.2)
    return process.communicate()


def theirs(a, shard, init, dtype, micro, steps):
    import numpy
    import torch
    import transformers
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    tokens = torch.from_numpy(numpy.fromfile(shard + ".bin", dtype=numpy.uint16).astype(numpy.int64))
    model = transformers.GPT2LMHeadModel.from_pretrained(init, dtype=torch.float32, attn_implementation="sdpa").to(a.torch_device).train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    low = copy.deepcopy(model).to(torch.bfloat16) if dtype == "stored" else model
    opt = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=EPS, fused=a.torch_device == "cuda")
    losses, norms, seconds = [], [], []
    for step in range(1, steps + 1):
        start, total = time.time(), 0.0
        for group in opt.param_groups:
            group["lr"] = lr_at(step, a.steps)
        for first in range(0, a.batch, micro):
            at = ((step - 1) * a.batch + first) * a.seq
            x = tokens[at:at + micro * a.seq].view(micro, a.seq).to(a.torch_device)
            y = tokens[at + 1:at + micro * a.seq + 1].view(micro, a.seq).to(a.torch_device)
            with torch.autocast(a.torch_device, torch.bfloat16, enabled=dtype == "bf16"):
                logits = low(input_ids=x, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.float().view(-1, a.vocab), y.view(-1), reduction="sum") / (a.batch * a.seq)
            loss.backward()
            total += loss.detach()
        if low is not model:
            for p, q in zip(model.parameters(), low.parameters()):
                p.grad, q.grad = q.grad.float(), None
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        opt.step()
        if low is not model:
            with torch.no_grad():
                torch._foreach_copy_(list(low.parameters()), list(model.parameters()))
        opt.zero_grad(set_to_none=True)
        losses.append(float(total))
        seconds.append(time.time() - start)
    return losses, [float(n) for n in norms], sorted(seconds)[len(seconds) // 2]


def write(out, path):
    with open(path, "w") as f:
        f.write(json.dumps(out).replace(': {"loss"', ':\n  {"loss"') + "\n")


def run(a):
    import torch
    out = {"device": torch.cuda.get_device_name() if a.torch_device == "cuda" else a.device, "torch": torch.__version__,
           "model": f"{a.layers} layers of {a.width}, {a.heads} heads, vocabulary {a.vocab}", "batch": a.batch, "seq": a.seq, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        shard, init = prepare(a.lateen, folder, a.entries), draw_weights(a, folder)
        need, have = a.steps * a.batch * a.seq + 1, os.path.getsize(shard + ".bin") // 2
        if need > have:
            sys.exit(f"{a.steps} steps need {need} tokens, the text has {have}: fewer steps, or fewer --entries")
        both, few = (("ours", ours), ("torch", theirs)), min(a.steps_fp32, a.steps)
        for dtype, micro, steps, sides in (("bf16", a.batch, a.steps, both), ("fp32", a.batch, few, both), ("tf32", a.batch, a.steps, both[1:]),
                                           ("stored", a.batch, a.steps, both[1:]), ("bf16", a.batch // 2, a.steps, both[1:])):
            for name, side in sides:
                losses, norms, step_s = side(a, shard, init, dtype, micro, steps)
                out["runs"][f"{name} {dtype} {micro}"] = {"loss": [float(f"{x:.8g}") for x in losses], "grad_norm": [float(f"{x:.6g}") for x in norms]}
                write(out, a.out)
                say(f"{name} in {dtype}, micro-batches of {micro}: {steps} steps, loss {losses[0]:.5f} to {losses[-1]:.5f}, {step_s * 1e3:.1f} ms a step (median)")
    return compare(argparse.Namespace(file=a.out, svg=None))


def means(x):
    return [sum(x[i:i + WINDOW]) / WINDOW for i in range(0, len(x) - WINDOW + 1)]


def gap(x, y):
    n = min(len(x), len(y))
    step = max((abs(p - q), i + 1) for i, (p, q) in enumerate(zip(x, y)))
    mean = max((abs(p - q) for p, q in zip(means(x[:n]), means(y[:n]))), default=0.0)
    return step[0], step[1], mean, (sum(x[:n]) - sum(y[:n])) / n


def compare(a):
    data = json.load(open(a.file))
    runs, batch = {k: v["loss"] for k, v in data["runs"].items()}, data["batch"]
    ours = [("ours and PyTorch", f"ours bf16 {batch}", f"torch bf16 {batch}"),
            ("ours and PyTorch stored in bf16", f"ours bf16 {batch}", f"torch stored {batch}"),
            ("ours and PyTorch in TF32", f"ours bf16 {batch}", f"torch tf32 {batch}")]
    noise = [("noise: PyTorch, autocast and TF32", f"torch bf16 {batch}", f"torch tf32 {batch}"),
             ("noise: PyTorch, stored in bf16 and TF32", f"torch stored {batch}", f"torch tf32 {batch}"),
             (f"noise: PyTorch, {batch} rows and {batch // 2} twice", f"torch bf16 {batch}", f"torch bf16 {batch // 2}")]
    exact = ("fp32: ours and PyTorch", f"ours fp32 {batch}", f"torch fp32 {batch}")
    off = {name: gap(runs[left], runs[right]) for name, left, right in ours + noise + [exact]}
    bound_step, bound_mean = (NOISE * max(off[name][i] for name, *_ in noise) + more for i, more in ((0, NOISE_STEP), (2, NOISE_MEAN)))
    bad = []
    print(f"{data['model']}; {batch} rows of {data['seq']} tokens; {data['device']}, PyTorch {data['torch']}. Differences in nats.\n")
    print(f"| pair | steps | last loss | first step | largest (at step) | largest mean of {WINDOW} steps | mean of all, signed |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name, left, right in ours + noise + [exact]:
        x, y, (step, at, mean, signed) = runs[left], runs[right], off[name]
        print(f"| {name} | {len(x)} | {x[-1]:.4f}, {y[-1]:.4f} | {abs(x[0] - y[0]):.1e} | {step:.1e} ({at}) | {mean:.1e} | {signed:+.1e} |")
    for name, *_ in ours:
        if not off[name][0] <= bound_step:
            bad.append(f"{name}: step {off[name][1]} is {off[name][0]:.2e} off, PyTorch's own noise allows {bound_step:.2e}")
        if not off[name][2] <= bound_mean:
            bad.append(f"{name}: a mean of {WINDOW} steps is {off[name][2]:.2e} off, PyTorch's own noise allows {bound_mean:.2e}")
    if not off[exact[0]][0] <= BOUND_FP32:
        bad.append(f"{exact[0]}: step {off[exact[0]][1]} is {off[exact[0]][0]:.2e} off, the bound is {BOUND_FP32:.0e}")
    if a.svg:
        draw(data, runs, a.svg)
    print("\n" + ("\n".join(bad) if bad else f"All within the bounds: {NOISE} times PyTorch's own noise in bf16 ({bound_step:.2e} a step, {bound_mean:.2e} a mean), "
                                              f"{BOUND_FP32} in fp32."))
    return 1 if bad else 0


def draw(data, runs, path):
    """The two curves on the left; on the right, their difference and the noise of either side."""
    if shutil.which("gnuplot") is None:
        print(f"{path} is not drawn: no gnuplot here")
        return
    batch = data["batch"]
    o, t, f, b = (runs[k] for k in (f"ours bf16 {batch}", f"torch bf16 {batch}", f"torch tf32 {batch}", f"torch stored {batch}"))
    diff = lambda x, y: [max(abs(p - q), 1e-7) for p, q in zip(x, y)]
    left = [(t, "PyTorch, bf16", 5, "#f0a080"), (o, "Lateen, bf16", 1.5, "#1f5fa8")]
    right = [(diff(t, f), "PyTorch: autocast and TF32", 1, "#f0a080"), (diff(b, f), "PyTorch: stored in bf16 and TF32", 1, "#b3401f"),
             (diff(o, t), "Lateen and PyTorch, bf16", 1.5, "#1f5fa8"),
             (diff(runs[f"ours fp32 {batch}"], runs[f"torch fp32 {batch}"]), "Lateen and PyTorch, fp32", 2, "#2f8f4f")]
    lines = [f"set terminal svg size 1000,400 font 'sans,12' background 'white'\nset output '{path}'\nset multiplot layout 1,2",
             "set grid lc rgb '#dddddd'\nset xlabel 'step'\nset xrange [0:*]"]
    for curves, title, scale in ((left, "Loss", "set key top right"),
                                 (right, "|difference of the losses|", "set logscale y\nset format y '%.0e'\nset yrange [1e-7:100]\nset ytics 10\nset key top right")):
        lines += [scale, f"set title '{title}'",
                  "plot " + ", ".join(f"'-' with lines lw {width} lc rgb '{colour}' title '{name}'" for _, name, width, colour in curves)]
        lines += ["\n".join(f"{i + 1} {v}" for i, v in enumerate(values)) + "\ne" for values, *_ in curves]
    subprocess.run(["gnuplot"], input="\n".join(lines), text=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    p = verbs.add_parser("run")
    p.add_argument("--out", required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--torch-device", help="PyTorch's, if another (an emulated GPU is not one for it)")
    p.add_argument("--lateen", default=os.path.join(HERE, "build/lateen"))
    for name, value in (("steps", 200), ("steps-fp32", 20), ("batch", 8), ("seq", 1024), ("layers", 12), ("width", 768), ("heads", 12), ("vocab", 50304),
                        ("entries", 3072)):
        p.add_argument("--" + name, type=int, default=value)
    p.set_defaults(do=run)
    p = verbs.add_parser("compare")
    p.add_argument("file")
    p.add_argument("--svg")
    p.set_defaults(do=compare)
    a = parser.parse_args()
    if a.do is run:
        a.torch_device = a.torch_device or a.device
    sys.exit(a.do(a))


main()
