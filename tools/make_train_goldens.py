"""Write tests/golden/train: training runs computed by PyTorch and transformers, for tests/e2e/train_truth.py and tests/unit/train/test_recipe.c.

    python3 tools/make_train_goldens.py tests/golden/train           (packages torch, transformers, numpy)

train.json has whole runs of the small models of tests/golden/model on tokens.bin, in double precision, with the learning rate, batch, loss and gradient
norm of every step. They use torch.optim.AdamW or an implementation of the optimiser's paper, torch.optim.lr_scheduler, and torch.nn.utils.clip_grad_norm_ over several
micro-batches. rates.tsv has only schedules, one per line."""
import array
import json
import math
import os
import random
import struct
import sys

import torch
from torch.optim import lr_scheduler as schedulers
from transformers import AutoModelForCausalLM

SEQ, TOKENS, VOCAB = 16, 2400, 64
out = sys.argv[1]
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def write_shard(path, tokens):
    with open(path + ".bin", "wb") as f:
        array.array("H", tokens).tofile(f)
    with open(path + ".idx", "wb") as f:  # Megatron's index: one document.
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(tokens)) + struct.pack("<q", 0) + struct.pack("<qq", 0, 1))


def make_tokens(seed, n):
    """A Markov chain of which a small model can learn something."""
    rng, at, tokens = random.Random(seed), 1, []
    for _ in range(n):
        at = (3 * at + rng.choice((1, 1, 1, 2, 7, 19))) % VOCAB
        tokens.append(at)
    return tokens


# ---- Rates ----

def scheduler(optimiser, c):
    """c: steps, warmup, warmup_from, min, kind, cooldown, shape. After k calls of step() the rate is that of step k."""
    warmup, kind, low = c.get("warmup", 0), c.get("kind", "cosine"), c.get("min", 0.1)
    rest = c["steps"] - warmup
    if kind == "cosine":
        after = schedulers.CosineAnnealingLR(optimiser, rest, eta_min=low * optimiser.param_groups[0]["initial_lr"]) if rest else None
    elif kind == "linear":
        after = schedulers.LinearLR(optimiser, 1.0, low, total_iters=rest) if rest else None
    elif kind == "constant":
        after = schedulers.ConstantLR(optimiser, 1.0, 1)
    else:
        n = c.get("cooldown", 0)
        shape = {"1-sqrt": lambda t: 1 - math.sqrt(t), "linear": lambda t: 1 - t, "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2}[c.get("shape", "1-sqrt")]
        start = rest - n  # Steps at the peak.
        after = schedulers.LambdaLR(optimiser, lambda k: 1.0 if k <= start else low + (1 - low) * shape((k - start) / n))
    if warmup == 0:
        return after
    begin = schedulers.LambdaLR(optimiser, lambda k: c.get("warmup_from", 0.0) + (1 - c.get("warmup_from", 0.0)) * min(k / warmup, 1.0))
    return (begin, after, warmup)


def rates(c, peak=1.0):
    """The rate of each step from 1."""
    result = []
    warmup = c.get("warmup", 0)
    for k in range(1, c["steps"] + 1):
        o = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
        o.param_groups[0]["initial_lr"] = peak
        s = scheduler(o, c)
        if isinstance(s, tuple):
            if k <= warmup:
                s = scheduler(o, dict(c, kind="constant"))[0]
                n = k
            else:
                o = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
                o.param_groups[0]["initial_lr"] = peak
                s, n = scheduler(o, dict(c, steps=c["steps"] - warmup, warmup=0)), k - warmup
        else:
            n = k
        for _ in range(n):
            o.step()
            s.step()
        result.append(o.param_groups[0]["lr"])
    return result


RATES = [dict(kind=k, steps=n, warmup=w, warmup_from=f, min=m)
         for k in ("constant", "linear", "cosine") for n, w, f, m in ((12, 0, 0.0, 0.1), (12, 3, 0.0, 0.0), (9, 4, 0.25, 0.3), (5, 5, 0.1, 0.1), (1, 0, 0.0, 0.2))]
RATES += [dict(kind="wsd", steps=n, warmup=w, warmup_from=f, min=m, cooldown=c, shape=s)
          for s in ("1-sqrt", "linear", "cosine") for n, w, f, m, c in ((12, 2, 0.0, 0.0, 4), (10, 0, 0.0, 0.1, 1), (8, 3, 0.5, 0.2, 5), (6, 0, 0.0, 0.1, 0), (7, 0, 0.0, 0.0, 7))]


# ---- Optimisers that PyTorch does not have, by their papers ----

class Papers(torch.optim.Optimizer):
    def __init__(self, groups, kind, c):
        super().__init__(groups, dict(lr=c["lr"]))
        self.kind, self.c, self.k = kind, c, 0

    def slow(self):
        """AdEMAMix (Pagliardini et al. 2024): alpha grows linearly, beta3's half-life grows linearly from beta1's."""
        c, share = self.c, min(self.k / (self.c["mix_warmup"] or self.c["steps"]), 1.0)
        life = lambda b: math.log(0.5) / math.log(b + 1e-8) - 1  # noqa: E731
        beta3 = c["beta3"] if share >= 1 else 0.5 ** (1 / ((1 - share) * life(c["beta1"]) + share * life(c["beta3"]) + 1))
        return share * c["alpha"], beta3

    @torch.no_grad()
    def step(self, scale=1.0):
        self.k += 1
        c = self.c
        for group in self.param_groups:
            lr, decay = group["lr"], group["weight_decay"]
            for p in group["params"]:
                g, s = p.grad, self.state[p]
                zero = lambda name: s.setdefault(name, torch.zeros_like(p))  # noqa: E731
                if self.kind == "lion":  # Chen et al. 2023.
                    m = zero("m")
                    u = torch.sign(c["beta1"] * m + (1 - c["beta1"]) * g)
                    m.mul_(c["beta2"]).add_(g, alpha=1 - c["beta2"])
                    p.mul_(1 - lr * decay).sub_(u, alpha=lr)
                elif not group["muon"]:
                    m, v = zero("m"), zero("v")
                    m.mul_(c["beta1"]).add_(g, alpha=1 - c["beta1"])
                    v.mul_(c["beta2"]).addcmul_(g, g, value=1 - c["beta2"])
                    u = m / (1 - c["beta1"] ** self.k)
                    if self.kind == "ademamix":
                        alpha, beta3 = self.slow()
                        slow = zero("slow")
                        slow.mul_(beta3).add_(g, alpha=1 - beta3)
                        u = u + alpha * slow
                    u = u / ((v / (1 - c["beta2"] ** self.k)).sqrt() + c["eps"])
                    p.mul_(1 - lr * decay).sub_(u, alpha=lr)
            if group["muon"]:
                self.muon(group["params"], lr / c["lr"] * c["muon_lr"], decay)

    def muon(self, params, rate, decay):
        """Jordan 2024, for each of transformers' matrices separately, also queries, keys, values, gate and up."""
        c = self.c
        for p in params:
            m = self.state[p].setdefault("m", torch.zeros_like(p))
            m.mul_(c["muon_momentum"]).add_(p.grad)
            u = newton_schulz(p.grad + c["muon_momentum"] * m, c["muon_steps"]) * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
            p.mul_(1 - rate * decay).sub_(u, alpha=rate)


def newton_schulz(g, steps):
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / max(x.norm().item(), 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


# ---- Whole runs ----

DEFAULTS = dict(lr=3e-3, beta1=0.9, beta2=0.95, beta3=0.9999, alpha=8.0, mix_warmup=0, eps=1e-8, decay=0.1, clip=1.0, muon_lr=0.02, muon_momentum=0.95, muon_steps=5)


def batches(c, n):
    """Rows of each step: ramp, a list of (size, from this row on), then the batch."""
    seen, sizes = 0, []
    for _ in range(n):
        size = c["batch"]
        for s, start in c.get("ramp", []):
            if seen >= start:
                size = s
        sizes.append(size)
        seen += size
    return sizes


def loss_of(model, tokens, first, rows):
    """Sum of the losses of these rows, their labels, and how many were the most likely token."""
    x = torch.tensor([tokens[(first + r) * SEQ:(first + r) * SEQ + SEQ] for r in range(rows)])
    y = torch.tensor([tokens[(first + r) * SEQ + 1:(first + r) * SEQ + SEQ + 1] for r in range(rows)])
    logits = model(x).logits.to(torch.float64).reshape(-1, VOCAB)
    return torch.nn.functional.cross_entropy(logits, y.reshape(-1), reduction="sum"), rows * SEQ, (logits.argmax(-1) == y.reshape(-1)).sum().item(), logits


def run(c, train, valid):
    o = dict(DEFAULTS, **c["optim"])
    o["steps"] = c["rates"]["steps"]
    model = AutoModelForCausalLM.from_pretrained(f"tests/golden/model/{c['model']}", dtype=torch.float64, attn_implementation="eager")
    model.train()
    kind = o.get("kind", "adamw")
    groups = {}
    for name, p in model.named_parameters():
        muon = kind == "muon" and p.ndim == 2 and "embed" not in name and "lm_head" not in name
        groups.setdefault((p.ndim >= 2, muon), []).append(p)
    groups = [dict(params=ps, weight_decay=o["decay"] if decays else 0.0, muon=muon) for (decays, muon), ps in groups.items()]
    optimiser = torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"]) if kind == "adamw" else Papers(groups, kind, o)
    lr, first, steps, evals = rates(c["rates"], o["lr"]), 0, [], []
    for k, rows in enumerate(batches(c, o["steps"])):
        optimiser.zero_grad()
        total = 0.0
        for at in range(0, rows, c["micro"]):
            n = min(c["micro"], rows - at)
            loss, _, _, logits = loss_of(model, train, first + at, n)
            z = c.get("z", 0.0) * logits.logsumexp(-1).square().sum()
            ((loss + z) / (rows * SEQ)).backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), o["clip"] if o["clip"] > 0 else math.inf).item()
        for group in optimiser.param_groups:
            group["lr"] = lr[k]
        optimiser.step()
        first += rows
        steps.append(dict(step=k + 1, lr=lr[k], batch=rows, loss=total / (rows * SEQ), grad_norm=norm))
        if c.get("eval_every") and ((k + 1) % c["eval_every"] == 0 or k + 1 == o["steps"]):
            with torch.no_grad():
                loss, n, right, _ = loss_of(model, valid, 0, c["eval_rows"])
            evals.append(dict(step=k + 1, loss=loss.item() / n, accuracy=right / n, tokens=n))
    return dict(name=c["name"], args=arguments(c, o), steps=steps, evals=evals)


def arguments(c, o):
    """The same run on the command line of lateen train."""
    r = c["rates"]
    a = {"model.init": f"tests/golden/model/{c['model']}", "data.seq": SEQ, "data.shuffle": "none", "data.mask_documents": "false", "data.reset_positions": "false", "data.mask_eod": "false",
         "batch.size": c["batch"], "batch.micro": c["micro"], "steps": r["steps"], "lr.schedule": r["kind"], "lr.warmup": r.get("warmup", 0),
         "lr.warmup_from": r.get("warmup_from", 0.0), "lr.min": r.get("min", 0.1), "optim.kind": o.get("kind", "adamw"), "loss.z": c.get("z", 0.0)}
    if r["kind"] == "wsd":
        a |= {"lr.cooldown": r["cooldown"], "lr.cooldown_shape": r["shape"]}
    if "ramp" in c:
        a["batch.ramp"] = ",".join(f"{s}@{n}" for s, n in c["ramp"])
    if c.get("eval_every"):
        a |= {"eval.every": c["eval_every"], "eval.rows": c["eval_rows"]}
    names = [n for n in DEFAULTS if n not in ("lr",)] + ["lr"]
    return a | {f"optim.{n}": o[n] for n in names}


RUNS = [
    dict(name="AdamW, cosine, clipped over two micro-batches", model="llama3", batch=6, micro=4, eval_every=5, eval_rows=7,
         rates=dict(kind="cosine", steps=12, warmup=3, warmup_from=0.2, min=0.1), optim=dict(clip=0.5)),
    dict(name="AdamW, a ramp, WSD, not clipped", model="llama3", batch=6, micro=2, ramp=[(2, 0), (3, 4), (5, 11)],
         rates=dict(kind="wsd", steps=12, warmup=2, min=0.0, cooldown=5, shape="1-sqrt"), optim=dict(clip=0.0, beta1=0.8, beta2=0.9, eps=1e-4, decay=1.0)),
    dict(name="AdamW, biases and gains do not decay", model="qwen2", batch=4, micro=3, rates=dict(kind="constant", steps=10), optim=dict(decay=8.0, clip=1.0)),
    dict(name="AdamW, z-loss", model="llama3", batch=4, micro=4, z=0.02, rates=dict(kind="constant", steps=8), optim=dict(clip=0.3)),
    dict(name="AdEMAMix, its warm-up", model="llama3", batch=4, micro=4, rates=dict(kind="linear", steps=12, warmup=2, min=0.5),
         optim=dict(kind="ademamix", mix_warmup=6, beta3=0.999, alpha=5.0)),
    dict(name="AdEMAMix, warm-up of all steps", model="llama3", batch=3, micro=2, rates=dict(kind="constant", steps=6), optim=dict(kind="ademamix")),
    dict(name="Lion", model="llama3", batch=4, micro=1, rates=dict(kind="wsd", steps=10, warmup=1, min=0.2, cooldown=4, shape="linear"),
         optim=dict(kind="lion", lr=3e-4, beta2=0.99, decay=1.0)),
    dict(name="Muon for matrices, AdamW for the rest", model="llama3", batch=4, micro=4, rates=dict(kind="cosine", steps=8, warmup=2), optim=dict(kind="muon", decay=0.5)),
]


def main():
    train, valid = make_tokens(1, TOKENS), make_tokens(2, 400)
    write_shard(os.path.join(out, "tokens"), train)
    write_shard(os.path.join(out, "valid"), valid)
    with open(os.path.join(out, "rates.tsv"), "w") as f:
        f.write("# schedule, steps, warmup, warmup_from, min, cooldown, shape; then the rate of each step as a share of the peak (tools/make_train_goldens.py)\n")
        for c in RATES:
            f.write(" ".join(str(x) for x in (c["kind"], c["steps"], c["warmup"], c["warmup_from"], c["min"], c.get("cooldown", 0), c.get("shape", "1-sqrt"))))
            f.write("\t" + " ".join(f"{r:.12g}" for r in rates(c)) + "\n")
    runs = [run(c, train, valid) for c in RUNS]
    with open(os.path.join(out, "train.json"), "w") as f:
        f.write(json.dumps(runs, indent=1).replace("\n    ", " ").replace("\n   }", " }") + "\n")
    for r in runs:
        print(r["name"], [round(s["loss"], 4) for s in r["steps"]], [round(s["grad_norm"], 3) for s in r["steps"]])


main()
