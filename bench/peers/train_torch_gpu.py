"""The peer of `lateen bench train --device cuda`: the same training step on one GPU in PyTorch, as a user would write it:
torch.compile, bf16 (autocast over fp32 parameters, or bf16 parameters for llama-1b), SDPA, fused AdamW, gradient clipping.
With OPTIM muon the matrices of the layers are updated by torch.optim.Muon; queries, keys, values, gate and up are then layers of their own, as in
transformers.

Usage: train_torch_gpu.py SHAPE BATCH SEQ [MODE [OPTIM]]
       SHAPE  gpt2-124m | llama-1b | apertus-300m | moe-8x125m      MODE  compile | eager      OPTIM  adamw | muon
It warms up, prints "ready", then for each line "N" on standard input runs N steps and prints the median seconds of a step; at the end of its
input it prints its peak of memory, in GiB, on standard error."""
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

shape, B, T = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
mode = sys.argv[4] if len(sys.argv) > 4 else "compile"
optim = sys.argv[5] if len(sys.argv) > 5 else "adamw"
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
SHAPES = {  # layers, width, heads, kv heads, ffn, vocabulary, kind
    "gpt2-124m": (12, 768, 12, 12, 3072, 50304, "gpt2"),
    "llama-1b": (16, 2048, 32, 8, 8192, 128256, "llama"),
    "apertus-300m": (24, 1024, 16, 4, 4096, 32768, "apertus"),
    "moe-8x125m": (12, 768, 12, 12, 3072, 32768, "mixtral"),
}
L, C, H, KV, FF, V, kind = SHAPES[shape]
HD, EXPERTS, TOP_K = C // H, 8, 2


class RMS(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.w)


def norm(d):
    return nn.LayerNorm(d) if kind == "gpt2" else RMS(d)


class Apart(nn.Module):
    """Linear layers of one input, their results side by side."""

    def __init__(self, sizes, bias):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(C, n, bias=bias) for n in sizes)

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], -1)


def linear(sizes, bias):
    return Apart(sizes, bias) if optim == "muon" and len(sizes) > 1 else nn.Linear(C, sum(sizes), bias=bias)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = linear([FF, FF] if kind == "llama" else [FF], kind == "gpt2")
        self.dn = nn.Linear(FF, C, bias=kind == "gpt2")
        if kind == "apertus":
            self.p, self.n = nn.Parameter(torch.tensor(0.2)), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x):
        u = self.up(x)
        if kind == "llama":
            g, u = u.chunk(2, -1)
            return self.dn(F.silu(g) * u)
        if kind == "gpt2":
            return self.dn(F.gelu(u, approximate="tanh"))
        ap, an = F.softplus(self.p), 0.5 + F.softplus(self.n)
        u = u.float()
        y = torch.where(u > 0, ap * u * u + 0.5 * u, (torch.expm1(u.clamp(max=-1e-6)) - u) * an + 0.5 * u)
        return self.dn(y.to(x.dtype))


class Moe(nn.Module):
    """Dropless top-2 of 8: rows sorted by expert, grouped products."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(C, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, C, 2 * FF) * 0.02)
        self.dn = nn.Parameter(torch.randn(EXPERTS, FF, C) * 0.02)

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, C)
        logits = self.router(x).float()
        probs = logits.softmax(-1)
        w, e = probs.topk(TOP_K, -1)
        w = w / w.sum(-1, keepdim=True)
        order = e.flatten().argsort(stable=True)
        counts = torch.zeros(EXPERTS, device=x.device, dtype=torch.int32).scatter_add_(
            0, e.flatten(), torch.ones_like(e.flatten(), dtype=torch.int32))
        ends = counts.cumsum(0).to(torch.int32)
        xs = x[order // TOP_K].to(torch.bfloat16)
        u = torch._grouped_mm(xs, self.up.to(torch.bfloat16), offs=ends)
        g, u = u.chunk(2, -1)
        y = torch._grouped_mm(F.silu(g) * u, self.dn.to(torch.bfloat16), offs=ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=x.device)
        y = (y[back].view(-1, TOP_K, C) * w.unsqueeze(-1).to(y.dtype)).sum(1)
        f = counts.float() / counts.sum()
        aux = EXPERTS * (f * probs.mean(0)).sum()
        return y.view(shape), aux


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        bias = kind == "gpt2"
        self.n1, self.n2 = norm(C), norm(C)
        self.qkv, self.o = linear([H * HD, KV * HD, KV * HD], bias), nn.Linear(C, C, bias=bias)
        self.mlp = Moe() if kind == "mixtral" else Mlp()
        if kind == "apertus":
            self.qn, self.kn = RMS(HD), RMS(HD)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).split([H * HD, KV * HD, KV * HD], -1)
        q, k, v = (z.view(b, t, -1, HD).transpose(1, 2) for z in (q, k, v))
        if kind == "apertus":
            q, k = self.qn(q), self.kn(k)
        if kind != "gpt2":
            def rot(z):
                a, c = z.float().chunk(2, -1)
                return torch.cat([a * cos - c * sin, c * cos + a * sin], -1).to(v.dtype)
            q, k = rot(q), rot(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != KV)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, C))
        if kind == "mixtral":
            y, aux = self.mlp(self.n2(x))
            return x + y, aux
        return x + self.mlp(self.n2(x)), 0.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, C)
        self.p = nn.Embedding(T, C) if kind == "gpt2" else None
        self.b, self.n = nn.ModuleList(Block() for _ in range(L)), norm(C)
        self.head = nn.Linear(C, V, bias=False)
        if kind in ("gpt2", "llama"):
            self.head.weight = self.e.weight
        angle = torch.outer(torch.arange(T).float(), 500000.0 ** (-torch.arange(0, HD, 2).float() / HD))
        self.register_buffer("cos", angle.cos(), False)
        self.register_buffer("sin", angle.sin(), False)

    def forward(self, ids, labels):
        x, aux = self.e(ids), 0.0
        if self.p is not None:
            x = x + self.p.weight
        for block in self.b:
            x, a = block(x, self.cos, self.sin)
            aux = aux + a
        loss = F.cross_entropy(self.head(self.n(x)).float().view(-1, V), labels.view(-1))
        return loss + 0.01 * aux if kind == "mixtral" else loss


with torch.device("cuda"):
    model = Model()
if kind == "llama":
    model = model.to(torch.bfloat16)
matrices = [p for p in model.b.parameters() if p.ndim == 2 and optim == "muon"]
others = [p for p in model.parameters() if all(p is not m for m in matrices)]
opts = [torch.optim.AdamW(others, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)]
if matrices:
    opts.append(torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.95))
run = torch.compile(model) if mode == "compile" else model
x = torch.randint(0, V - 64, (B, T), device="cuda")
y = torch.randint(0, V - 64, (B, T), device="cuda")


def step():
    with torch.autocast("cuda", torch.bfloat16):
        loss = run(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for opt in opts:
        opt.step()
        opt.zero_grad(set_to_none=True)


start = time.perf_counter()
step()
torch.cuda.synchronize()
first = time.perf_counter() - start
for _ in range(5):
    step()
torch.cuda.synchronize()
print(f"{shape}: first step {first:.1f} s", file=sys.stderr)
print("ready", flush=True)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(statistics.median(times), flush=True)
print(f"{shape}: peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB", file=sys.stderr)
